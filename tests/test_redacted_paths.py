"""Paths, users and hosts in what the newer tables hold: removed from reports and exports, and counted by a check."""

from __future__ import annotations

from pathlib import Path

import pytest
import tracekit as tk
from tests.builders.nsys_rep import Parts, event, message, strings, take_apart
from tests.builders.nsys_sqlite import edited

USER, HOST, FOLDER = "zaphodb", "deepthought42", "falcon"
PRIVATE = (USER, HOST, FOLDER)
SOURCE_FILE = f"/home/{USER}/solver/main.c"
MODULE = f"/data/{FOLDER}/lib/libsolver.so"
RANK = f"MPI Rank 0 on {HOST}"
TEXTS = (SOURCE_FILE, MODULE, RANK, f"PATH=/opt\0USER={USER}\0HOSTNAME={HOST}\0TERM=xterm\0", "solve", f"{USER}'s loop")
FIRST = 900_000
SOURCE, LIBRARY, NAME, _, FUNCTION, LOOP = range(FIRST, FIRST + len(TEXTS))
GUID = 0xB8CEF60300112233 - 2**64


def table(of: str, /, **values: int | str) -> str:
    """The statement that creates a table with one event."""
    listed = {"start": 1, "end": 2, **values}
    columns = ", ".join(f'{v!r} AS "{c}"' for c, v in listed.items())
    return f"CREATE TABLE {of} AS SELECT {columns}"


STATEMENTS = (
    *(f"INSERT INTO StringIds VALUES ({FIRST + i}, CAST(X'{t.encode().hex()}' AS TEXT))" for i, t in enumerate(TEXTS)),
    table("CUPTI_ACTIVITY_KIND_OPENACC_OTHER", nameId=FUNCTION, lineNo=3, srcFile=SOURCE, funcName=FUNCTION),
    "CREATE TABLE IF NOT EXISTS SAMPLING_CALLCHAINS (id, symbol, module, stackDepth)",
    f"INSERT INTO SAMPLING_CALLCHAINS (id, symbol, module, stackDepth) VALUES (1, {FUNCTION}, {LIBRARY}, 0)",
    table("CUDA_UM_CPU_PAGE_FAULT_EVENTS", address=64, CpuInstruction=FUNCTION, module=LIBRARY, sourceFile=SOURCE),
    table("CUPTI_ACTIVITY_KIND_JIT", nameId=FUNCTION, cachePath=SOURCE_FILE),
    table("CUDA_GPU_MEMORY_USAGE_EVENTS", globalPid=7, name=SOURCE_FILE),
    table("OPENMP_EVENT_KIND_THREAD", nameId=LOOP),
    table("MPI_RANKS", globalTid=7, rank=0, name=RANK),
    f"INSERT INTO ThreadNames (nameId, globalTid) VALUES ({NAME}, 7)",
    table("NET_IB_DEVICE_INFO", networkId=1, guid=GUID, name=f"{HOST} HCA-1", des="Quantum of rack 7", lid=5),
    table("NET_IB_SWITCH_METRIC", globalId=GUID, value=3),
    "INSERT INTO NET_IB_SWITCH_METRIC VALUES (2, 3, 4660133412340001, 4), (3, 4, 4660133412340001, 5)",
)


def frame(symbol: int, module: int) -> bytes:
    return message((1, symbol), (2, module))


def made_report(folder: Path) -> Path:
    """A report whose events refer to the texts, and hold some of them."""
    call = (1, 10), (2, 20), (13, 7 << 24 | 7)
    blocks = [
        event(48, 108, *call, (6, 27), (7, 4), (15, frame(4, 1))),
        event(48, 108, *call, (6, 48), (7, 4), (25, message((1, SOURCE_FILE)))),
        event(48, 108, *call, (6, 102), (7, 4), (40, message((6, SOURCE_FILE)))),
        event(31, 104, (1, 5), (4, frame(4, 1)), (11, 7 << 24 | 7)),
        event(117, 123, (1, 5), (5, 7 << 24), (8, 64), (13, SOURCE_FILE)),
        event(49, 110, (1, message((1, 1))), (4, f"cannot open {SOURCE_FILE} on {HOST}"), (5, 7 << 24)),
        event(59, 102, (1, 59), (2, 1), (7, RANK), (9, 7 << 24 | 7), (10, 2)),
    ]
    named = message((1, message((2, 2), (4, 7 << 24 | 7))))
    path = folder / "made.nsys-rep"
    path.write_bytes(Parts([b"".join(blocks)], [strings(*TEXTS)], rest=[named]).pack())
    return path


def contents(path: Path) -> bytes:
    """All bytes of a file; of a report, unpacked."""
    if path.suffix == ".sqlite":
        return path.read_bytes()
    parts = take_apart(path)
    return b"".join((*parts.blocks, *parts.strings, parts.header, *parts.rest, *parts.sections.values()))


@pytest.fixture(params=["nsys-rep", "sqlite"])
def capture(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return made_report(tmp_path) if request.param == "nsys-rep" else edited(tmp_path, *STATEMENTS, of="empty")


def test_nothing_private_of_the_newer_tables_is_left(capture: Path, tmp_path: Path) -> None:
    before = contents(capture)
    assert all(name.encode() in before for name in PRIVATE)
    found = tk.unredacted(capture)
    copy = tmp_path / f"copy{capture.suffix}"
    assert tk.redact(capture, copy) == found
    assert min(found[kind] for kind in ("environment", "path", "name in another text")) > 0
    assert [name for name in PRIVATE if name.encode() in contents(copy)] == []
    assert set(tk.unredacted(copy).values()) == {0}


def test_tables_show_redacted_paths(capture: Path, tmp_path: Path) -> None:
    copy = tmp_path / f"copy{capture.suffix}"
    tk.redact(capture, copy)
    with tk.load(copy) as trace:
        modules = {m for m in trace["stacks"]["module"].to_pylist() if m}
        assert not any(name in str(modules) for name in PRIVATE)
        names = trace["threads" if capture.suffix == ".sqlite" else "nvtx_ranges"]["name"].to_pylist()
        assert "MPI Rank 0 on xxxxxxxxxxxxx" in names
        if capture.suffix == ".sqlite":
            assert trace["openacc_events"]["source_file"].to_pylist() == ["main.c"]
            assert trace["cpu_page_faults"]["source_file"].to_pylist() == ["main.c"]


def test_identifiers_of_switches_become_numbers(tmp_path: Path) -> None:
    export = edited(tmp_path, *STATEMENTS, of="empty")
    counts = tk.redact(export, tmp_path / "copy.sqlite")
    with tk.load(tmp_path / "copy.sqlite") as trace:
        devices = trace["network_metrics"]["network_device_id"].to_pylist()
    assert len(set(devices)) == 2
    assert devices[1] == devices[2]
    assert all(0 < device < 1 << 32 for device in devices)
    assert counts["hardware address"] == 4
    assert counts["host name"] >= 2
    assert tk.redact(tmp_path / "copy.sqlite", tmp_path / "again.sqlite")["hardware address"] == 0
