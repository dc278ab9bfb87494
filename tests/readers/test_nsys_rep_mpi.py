"""Calls of MPI, which a report keeps as NVTX ranges, are in tables of their own: as in an export of nsys."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import tracekit as tk
from tests.builders.nsys_rep import SHARED, Parts, event, message, strings
from tests.builders.reports import REPORTS_OF_NSYS
from tests.test_both_forms import as_csv, differing
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
        assert trace.undecoded == {}
        assert trace.table("mpi_calls", ["kind", "start_ns"]).to_pylist() == [{"kind": "other", "start_ns": 10}] * 4
        assert trace.count("nvtx_ranges") == 4
        assert trace.count("mpi_calls") == 4


@pytest.mark.parametrize(
    ("number", "schema", "name"), [((1 << 24) + 5, "Mine", "MPI"), (WAIT, "", "mine"), (None, "", "MPI")]
)
def test_domains_of_the_program_stay(number: int | None, schema: str, name: str, tmp_path: Path) -> None:
    listed = None if number is None else schemas(PROCESS, 2, number, schema)
    with report(tmp_path, nvtx(75, name, 2) + nvtx(59, "MPI_Send", 2), listed=listed) as trace:
        assert trace.table("nvtx_ranges")["name"].to_pylist() == ["MPI_Send"]
        assert trace.undecoded == {}
        assert trace.count("mpi_calls") == trace.count("mpi_ranks") == 0


@pytest.mark.slow
@pytest.mark.many(1)
@needs_more
@pytest.mark.parametrize("rank", [0, 1])
def test_a_capture_is_read_like_its_export(rank: int) -> None:
    with tk.load(MORE / f"mpi_rank{rank}.sqlite") as export, tk.load(MORE / f"mpi_rank{rank}.nsys-rep") as mine:
        assert differing(export, mine) == []
        assert mine.count("mpi_calls") == 72
        assert "MPI call" not in mine.undecoded
        printed = {p: p.stem.removeprefix(f"mpi_rank{rank}_") for p in (MORE / "stats").glob(f"mpi_rank{rank}_*.csv")}
        known = {p: name for p, name in printed.items() if name in REPORTS_OF_NSYS}
        assert len(known) == 20
        assert [name for p, name in known.items() if as_csv(mine, name) != p.read_bytes()] == []


ENTRIES = {
    10_001: [("Communicator", 18, 0), ("Tag", 15, 8), ("Destination", 15, 12), ("Bytes sent", 18, 16)],
    10_021: [
        *(("Communicator", 18, 0), ("Receive tag", 15, 8), ("Source", 15, 12), ("Send tag", 15, 16)),
        *(("Destination", 15, 20), ("Bytes sent", 18, 24), ("Bytes received", 18, 32)),
    ],
    10_101: [("Communicator", 18, 0), ("Root", 15, 8), ("Bytes sent", 18, 16), ("Bytes received", 18, 24)],
    10_201: [("Request", 18, 0)],
    10_202: [("No. of requests", 18, 0), ("Requests", 18, 8)],
}
FIRST = 1 << 24


def declared(**more: bytes) -> bytes:
    """The schemas of the wrapper for calls of each kind, and communicators."""
    listed = []
    for number, entries in ENTRIES.items():
        flags = {"Requests": 48}
        items = [(4, message((1, t), (2, flags.get(n, 0)), (3, at), (7, n))) for n, t, at in entries]
        listed.append((2, message((1, FIRST + number), (2, 1), *items, (9, 2))))
    team = [("NewComm", 18, 8), ("Size", 15, 28), ("GroupRootGlobalRank", 15, 32), ("Members", 75, 36)]
    items = [(4, message((1, t), (3, at), (7, n))) for n, t, at in team]
    listed.append((2, message((1, 1 << 32), (2, 1), *items, (5, "NsysMpiTeam"), (6, 40), (9, 2))))
    instances = [(3, message((1, 5), (2, 2), (3, 1 << 32), (4, data))) for data in more.values()]
    return message((3, message((1, PROCESS), *listed, *instances)))


def mpi_call(number: int, data: bytes) -> bytes:
    payload = message((9, message((1, FIRST + number), (2, data))))
    return event(59, 102, (1, 59), (2, 10), (8, payload), (9, PROCESS | 1), (10, 20), (12, 0), (13, 2))


def read_calls(folder: Path, *calls: bytes, more: dict[str, bytes] | None = None) -> tk.Trace:
    return report(folder, nvtx(75, "MPI", 2) + b"".join(calls), listed=declared(**(more or {})))


def test_arguments_of_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "BATCH_BYTES", 1)
    send = mpi_call(10_001, struct.pack("<qiiq", 99, 7, 1, 0))
    both = mpi_call(10_021, struct.pack("<qiiiiqq", 99, 1, 2, 3, 4, 5, 6))
    bcast = mpi_call(10_101, struct.pack("<qixxxxqq", 99, 2, 0, 8))
    short = mpi_call(10_001, struct.pack("<qi", 99, 8))
    columns = ["mpi_call_id", "kind", "communicator", "tag", "remote_rank", "root_rank", "size_bytes"]
    with read_calls(tmp_path, bcast, send, both, short) as trace:
        rows = trace.table("mpi_calls", [*columns, "receive_size_bytes"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (1, "p2p", 99, 7, 1, None, 0, None),
        (2, "p2p", 99, 3, 4, None, 6, None),
        (3, "p2p", 99, 8, None, None, None, None),
        (4, "collectives", 99, None, None, 2, None, 8),
    ]


@pytest.mark.parametrize(
    ("data", "requests"),
    [
        (struct.pack("<qqq", 2, 11, 12), [11, 12]),
        (struct.pack("<qq", 5, 11), [11]),
        (struct.pack("<qq", -1, 11), [11]),
        (struct.pack("<qq", 0, 11), [None]),
        (struct.pack("<q", 3), [None]),
        (b"\1", [None]),
        (b"", [None]),
    ],
)
def test_requests_of_calls(data: bytes, requests: list[int | None], tmp_path: Path) -> None:
    wait = mpi_call(10_201, struct.pack("<q", 33))
    with read_calls(tmp_path, mpi_call(10_202, data), wait) as trace:
        assert trace.table("mpi_calls")["request"].to_pylist() == [*requests, 33]
        assert trace.count("mpi_calls") == len(requests) + 1


def test_communicators(tmp_path: Path) -> None:
    root = struct.pack("<8xqq4xii4x", 99, 0, 2, 1)
    none = struct.pack("<8xqq4xii4x", 98, 0, 2, -2021)
    names = nvtx(39, "MPI Rank 3", 0) + nvtx(39, "MPI Rank 4", 0, OTHER) + nvtx(39, "worker", 0)
    with read_calls(tmp_path, names, more={"root": root, "none": none, "short": b"12345678"}) as trace:
        assert trace.table("mpi_ranks").to_pylist() == [{"process_id": 7, "thread_id": 1, "rank": 3}]
        found = trace.table("mpi_communicators", ["rank", "timestamp_ns", "communicator", "size", "group_root"])
    assert [tuple(row.values()) for row in found.to_pylist()] == [
        (3, 5, 99, 2, 1),
        (3, 5, 98, 2, None),
        (3, 5, None, None, None),
    ]
