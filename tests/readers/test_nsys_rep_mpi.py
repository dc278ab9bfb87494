"""Calls of MPI, which a report keeps as NVTX ranges, are none of the program's ranges: as in an export of nsys."""

from __future__ import annotations

from pathlib import Path

import pytest
import tracekit as tk
from tests.readers.nsys_rep_files import SHARED, Parts, event, message, strings
from tests.test_both_forms import as_csv, differing
from tracekit.core.reports import REPORTS
from tracekit.readers.nsys_rep import events

MORE = SHARED / "captures" / "h200_more"
needs_more = pytest.mark.skipif(not MORE.is_dir(), reason="no captures beside the checkout")
PROCESS, OTHER = 7 << 24, 8 << 24
WAIT = (1 << 24) + 10_201


def nvtx(event_type: int, text: str | int, domain: int, process: int = PROCESS) -> bytes:
    named = (12, text) if isinstance(text, int) else (7, text)
    ends = [(10, 20)] if event_type in (59, 60) else []
    return event(event_type, 102, (1, event_type), (2, 10), named, (9, process | 1), *ends, (13, domain))


def schemas(process: int, domain: int, number: int, name: str) -> bytes:
    return message((3, message((1, process), (2, message((1, number), (2, 1), (5, name), (6, 8), (9, domain))))))


def report(folder: Path, *blocks: bytes, listed: bytes | None) -> tk.Trace:
    path = folder / "made.nsys-rep"
    path.write_bytes(Parts(blocks, [strings("registered", "MPI")], schemas=listed).pack())
    return tk.load(path)


@pytest.mark.parametrize(("number", "schema"), [(WAIT, ""), (1 << 32, "NsysMpiTeam")])
@pytest.mark.parametrize("name", ["MPI", 1])
def test_calls_are_left_out_and_counted(
    number: int, schema: str, name: str | int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "BATCH_BYTES", 1)
    calls = nvtx(59, "MPI_Send", 2) + nvtx(59, "mine", 0) + nvtx(59, 0, 2) + nvtx(34, "mark", 2)
    others = nvtx(59, "MPI_Send", 2, OTHER) + nvtx(60, "theirs", 3)
    with report(
        tmp_path, calls + others, nvtx(75, name, 2), calls, listed=schemas(PROCESS, 2, number, schema)
    ) as trace:
        found = trace.table("nvtx_ranges", ["range_id", "name", "domain_id"]).to_pydict()
        assert found == {
            "range_id": [1, 3, 4, 6],
            "name": ["mine", "MPI_Send", "theirs", "mine"],
            "domain_id": [0, 2, 3, 0],
        }
        assert trace.table("nvtx_marks")["mark_id"].to_pylist() == [2, 7]
        assert trace.undecoded == {"MPI call": 4}
        assert trace.count("nvtx_ranges") == 4


@pytest.mark.parametrize(
    ("number", "schema", "name"), [((1 << 24) + 5, "Mine", "MPI"), (WAIT, "", "mine"), (None, "", "MPI")]
)
def test_domains_of_the_program_stay(number: int | None, schema: str, name: str, tmp_path: Path) -> None:
    listed = None if number is None else schemas(PROCESS, 2, number, schema)
    with report(tmp_path, nvtx(75, name, 2) + nvtx(59, "MPI_Send", 2), listed=listed) as trace:
        assert trace.table("nvtx_ranges")["name"].to_pylist() == ["MPI_Send"]
        assert trace.undecoded == {}


@needs_more
@pytest.mark.parametrize("rank", [0, 1])
def test_a_capture_is_read_like_its_export(rank: int) -> None:
    with tk.load(MORE / f"mpi_rank{rank}.sqlite") as export, tk.load(MORE / f"mpi_rank{rank}.nsys-rep") as mine:
        assert differing(export, mine) == []
        assert mine.undecoded["MPI call"] == 67
        printed = {p: p.stem.removeprefix(f"mpi_rank{rank}_") for p in (MORE / "stats").glob(f"mpi_rank{rank}_*.csv")}
        known = {p: name for p, name in printed.items() if name in REPORTS}
        assert len(known) == 17
        assert [name for p, name in known.items() if as_csv(mine, name) != p.read_bytes()] == []
