"""Rare and hostile Perfetto traces: their slices are those of Perfetto's trace processor, and they cost little."""

from __future__ import annotations

import json
import struct
import time
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tracekit as tk
from tests.exporters import trace_processor
from tests.exporters.trace_processor import TraceProcessor
from tracekit.errors import CorruptTraceError, MissingTableError, TracekitWarning
from tracekit.readers.common.protobuf.decoding import encode_field
from tracekit.readers.pftrace import categories, clocks

BOOT, MONOTONIC, OWN = 6, 3, 64
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
CLEARED = 1
Row = tuple[str | None, int, int, int | None, int | None, str | None]
SLICES = """
select s.name, s.ts, s.dur, coalesce(p.pid, q.pid) as pid, th.tid, s.category
from slice s join track t on s.track_id = t.id left join thread_track k on k.id = t.id left join thread th using (utid)
left join process p using (upid) left join process_track pt on pt.id = t.id left join process q on q.upid = pt.upid
"""


def field(number: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return encode_field(number, value % (1 << 64))
    return encode_field(number, value.encode() if isinstance(value, str) else value)


def message(*fields: tuple[int, int | bytes | str]) -> bytes:
    return b"".join(field(*each) for each in fields)


def packet(*parts: bytes, at: int | None = None, sequence: int = 1, flags: int = 0, clock: int = BOOT) -> bytes:
    content = b"".join(parts) + message((10, sequence), (13, flags), (58, clock))
    return field(1, content + (b"" if at is None else field(8, at)))


def snapshot(*times: tuple[int, int], incremental: bool = False) -> bytes:
    own = [message((1, clock), (2, at), (3, int(incremental and clock == OWN))) for clock, at in times]
    return message(*((6, message(*((1, each) for each in own), (2, BOOT))),))


def event(kind: int, at: int, *fields: tuple[int, int | bytes | str], track: int = 7, clock: int = BOOT) -> bytes:
    return packet(field(11, message((9, kind), (11, track), *fields)), at=at, clock=clock)


def legacy(
    phase: str, at: int, name: str, *ids: tuple[int, int | str], track: int | None = 7, category: str | None = "x"
) -> bytes:
    fields: list[tuple[int, int | str]] = [(22, category)] if category else []
    fields += [] if track is None else [(11, track)]
    return packet(field(11, message((23, name), *fields, (6, message((2, ord(phase)), *ids)))), at=at)


def thread(uuid: int, pid: int, tid: int) -> bytes:
    return packet(field(60, message((1, uuid), (4, message((1, pid), (2, tid), (5, "t"))))))


def counter(value: int, at: int = 2000) -> bytes:
    return event(COUNTER, at, (30, value), track=20)


def describe_counter(*fields: tuple[int, int]) -> bytes:
    return packet(field(60, message((1, 20), (2, "c"), (8, message(*fields)))))


NAME, CATEGORY, SCOPE, UNSCOPED, LOCAL, GLOBAL = 23, 22, 7, 6, 10, 11
START = packet(snapshot((BOOT, 1000), (MONOTONIC, 500)), flags=CLEARED) + thread(7, 1, 2)
A, B = (NAME, "a"), (NAME, "b")
CASES: dict[str, tuple[bytes, list[Row]]] = {
    "all categories of an event": (
        event(BEGIN, 2000, A, (CATEGORY, "c1"), (CATEGORY, "c2")) + event(END, 3000),
        [("a", 0, 1000, 1, 2, "c1,c2")],
    ),
    "interned categories in any order": (
        packet(field(12, message((1, message((1, 1), (2, "i1"))), (1, message((1, 24), (2, "i24"))))))
        + event(INSTANT, 2000, A, (3, 24), (CATEGORY, "t"), (3, 1))
        + event(INSTANT, 2001, B, (3, 24)),
        [("a", 0, 0, 1, 2, "i24,i1,t"), ("b", 1, 0, 1, 2, "i24")],
    ),
    "an end with a name ends the slice of this name": (
        event(BEGIN, 2000, A) + event(BEGIN, 2100, B) + event(END, 3000, A) + event(END, 3100, B),
        [("a", 0, 1000, 1, 2, None), ("b", 100, 900, 1, 2, None)],
    ),
    "an end with a category ends the slice of this category": (
        event(BEGIN, 2000, A, (CATEGORY, "x"))
        + event(BEGIN, 2100, B, (CATEGORY, "y"))
        + event(END, 3000, (CATEGORY, "x"))
        + event(END, 3100, (CATEGORY, "y")),
        [("a", 0, 1000, 1, 2, "x"), ("b", 100, 900, 1, 2, "y")],
    ),
    "a negative duration is no duration": (
        legacy("X", 2000, "a", (3, -5)) + legacy("X", 2100, "b", (3, 1)),
        [("b", 0, 1000, 1, 2, "x")],
    ),
    "one id in two categories": (
        legacy("b", 2000, "a", (UNSCOPED, 5))
        + legacy("b", 2100, "b", (UNSCOPED, 5), category="y")
        + legacy("e", 3000, "a", (UNSCOPED, 5))
        + legacy("e", 3100, "b", (UNSCOPED, 5), category="y"),
        [("a", 0, 1000, None, None, "x"), ("b", 100, 1000, None, None, "y")],
    ),
    "one id in two scopes": (
        legacy("b", 2000, "a", (UNSCOPED, 5), (SCOPE, "s"))
        + legacy("b", 2100, "b", (UNSCOPED, 5), (SCOPE, "t"))
        + legacy("e", 3000, "a", (UNSCOPED, 5), (SCOPE, "s"))
        + legacy("e", 3100, "b", (UNSCOPED, 5), (SCOPE, "t")),
        [("a", 0, 1000, None, None, "x"), ("b", 100, 1000, None, None, "x")],
    ),
    "one id with two names in the old phases": (
        legacy("S", 2000, "a", (UNSCOPED, 5))
        + legacy("S", 2100, "b", (UNSCOPED, 5))
        + legacy("F", 3000, "a", (UNSCOPED, 5))
        + legacy("F", 3100, "b", (UNSCOPED, 5)),
        [("a", 0, 1000, None, None, "x"), ("b", 100, 1000, None, None, "x")],
    ),
    "an id of a process on two threads": (
        thread(8, 1, 3) + legacy("b", 2000, "a", (LOCAL, 5)) + legacy("e", 3000, "a", (LOCAL, 5), track=8),
        [("a", 0, 1000, 1, None, "x")],
    ),
    "one id in two processes": (
        thread(8, 5, 6)
        + legacy("b", 2000, "a", (LOCAL, 5))
        + legacy("b", 2500, "a", (LOCAL, 5), track=8)
        + legacy("e", 3000, "a", (LOCAL, 5), track=8)
        + legacy("e", 3100, "a", (LOCAL, 5)),
        [("a", 0, 1100, 1, None, "x"), ("a", 500, 500, 5, None, "x")],
    ),
    "a track takes precedence over a thread": (
        legacy("X", 2000, "a", (3, 5), (18, 77), (19, 78))
        + legacy("X", 9000, "b", (3, 5), (18, 77), (19, 78), track=0),
        [("a", 0, 5000, 1, 2, "x"), ("b", 7000, 5000, 77, 78, "x")],
    ),
    "events without a track belong to the thread of their sequence": (
        packet(field(11, message((9, BEGIN), A)), at=2000) + packet(field(11, message((9, END))), at=3000),
        [("a", 0, 1000, 1, 2, None)],
    ),
    "times in microseconds are those of the monotonic clock": (
        event(INSTANT, 2000, A) + packet(field(11, message((9, INSTANT), (11, 7), B, (16, 100)))),
        [("a", 0, 0, 1, 2, None), ("b", 98_500, 0, 1, 2, None)],
    ),
    "a clock snapshot is valid from its place in the file on": (
        event(INSTANT, 900, A, clock=MONOTONIC)
        + packet(snapshot((BOOT, 3000), (MONOTONIC, 800)))
        + event(INSTANT, 900, B, clock=MONOTONIC),
        [("a", 0, 0, 1, 2, None), ("b", 1700, 0, 1, 2, None)],
    ),
}
"""Packets, and the name, start, duration, process, thread and category of their slices in the trace processor."""


def save(folder: Path, *parts: bytes) -> Path:
    path = folder / "made.pftrace"
    path.write_bytes(b"".join(parts))
    return path


def read_slices(path: Path) -> list[Row]:
    columns = ("process_id", "thread_id", pl.col("category").cast(pl.String))
    with tk.load(path) as trace:
        name, duration = pl.col("name").cast(pl.String), (pl.col("end_ns") - pl.col("start_ns")).fill_null(-1)
        ranges = trace.frame("nvtx_ranges").select(name, "start_ns", duration.alias("duration"), *columns)
        marks = trace.frame("nvtx_marks").select(name, pl.col("timestamp_ns").alias("start_ns"), pl.lit(0), *columns)
        return sorted([*ranges.collect().rows(), *marks.collect().rows()], key=lambda row: row[1])


@pytest.fixture(scope="module")
def processor() -> Iterator[TraceProcessor]:
    if missing := trace_processor.missing():
        pytest.skip(f"no {missing}")
    with TraceProcessor() as processor:
        yield processor


@pytest.mark.parametrize("case", CASES)
def test_slices(case: str, tmp_path: Path) -> None:
    content, expected = CASES[case]
    assert read_slices(save(tmp_path, START, content)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_slices_in_perfetto(case: str, processor: TraceProcessor, tmp_path: Path) -> None:
    content, expected = CASES[case]
    processor.load(save(tmp_path, START, content))
    rows = processor.query(SLICES)
    first = min(row["ts"] for row in rows)
    theirs = [(row["name"], row["ts"] - first, row["dur"], row["pid"], row["tid"], row["category"]) for row in rows]
    assert sorted(theirs, key=lambda row: row[1]) == expected


def test_what_is_left_out_is_stated(tmp_path: Path) -> None:
    twice = zlib.compress(packet(field(50, zlib.compress(event(INSTANT, 2000, A)))))
    path = save(
        tmp_path, START, CASES["a negative duration is no duration"][0], packet(field(50, twice)),
        event(COUNTER, 2000, track=20),
    )  # fmt: skip
    with tk.load(path) as trace:
        assert {name: size.count for name, size in trace.undecoded.items()} == {
            "events with an invalid duration": 1,
            "compressed packets in compressed packets": 1,
            "counters without a value": 1,
        }


@pytest.mark.parametrize(
    ("fields", "values", "expected"),
    [
        (((4, 1024),), (5,), [5120]),
        (((4, -2),), (5,), [5]),
        (((4, 1 << 40),), (1 << 40, 1), [float(1 << 80), 1 << 40]),
        (((5, 1),), (5, 7), [5, 12]),
        (((5, 1),), ((1 << 63) - 1, (1 << 63) - 1), [float(1 << 63), float(1 << 64)]),
    ],
)
def test_counters_never_overflow(
    fields: tuple[tuple[int, int], ...], values: tuple[int, ...], expected: list[float], tmp_path: Path
) -> None:
    events = [counter(value, 2000 + nth) for nth, value in enumerate(values)]
    with tk.load(save(tmp_path, START, describe_counter(*fields), *events)) as trace:
        rows = trace["counters"].to_pylist()
        assert [row["value_float"] if row["value_int"] is None else row["value_int"] for row in rows] == expected


def test_annotations_are_always_json(tmp_path: Path) -> None:
    named = (4, message((10, "k"), (4, 5)))
    path = save(
        tmp_path, START,
        event(INSTANT, 2000, A, (4, message((3, 5))), named),
        event(INSTANT, 2001, A, (4, message((10, "d"), (11, message((3, 5))))), named),
        event(INSTANT, 2002, A, (4, message((10, "j"), (9, '1,"x":2}'))), named),
        event(INSTANT, 2003, A, (4, message((10, "j"), (9, "NaN"))), named),
        event(INSTANT, 2004, A, (4, message((10, "j"), (9, "[" * 100_000))), named),
        event(INSTANT, 2005, A, (4, message((10, "j"), (9, '{"x": 1}'))), named),
    )  # fmt: skip
    with tk.load(path) as trace:
        payloads = [json.loads(text) for text in trace["nvtx_marks"]["payload_text"].to_pylist()]
    assert payloads == [
        {"": 5, "k": 5},
        {"d": {"": 5}, "k": 5},
        {"j": '1,"x":2}', "k": 5},
        {"j": "NaN", "k": 5},
        {"j": "[" * 100_000, "k": 5},
        {"j": {"x": 1}, "k": 5},
    ]


def test_packets_that_cannot_be_read_are_stated(tmp_path: Path) -> None:
    compressed = packet(field(133, b"\x28\xb5\x2f\xfd"))
    with pytest.warns(TracekitWarning, match="1 packets compressed with zstd were skipped.*traceconv decompress_pack"):
        tk.load(save(tmp_path, START, compressed, event(INSTANT, 2000, A)))
    with pytest.raises(MissingTableError, match="contains only packets compressed with zstd\nHint: record the trace"):
        tk.load(save(tmp_path, START, compressed))


@pytest.mark.parametrize(
    "content",
    [
        event(INSTANT, 0, A, clock=MONOTONIC) + legacy("X", (1 << 62) - 1, "b", (3, 1 << 49)),
        event(INSTANT, (1 << 62) - 1, A, clock=BOOT) + event(INSTANT, (1 << 62) - 1, B, clock=9),
    ],
)
def test_times_far_apart_are_damage(content: bytes, tmp_path: Path) -> None:
    start = packet(snapshot((BOOT, 0), (MONOTONIC, 1 << 62)), flags=CLEARED)
    start += packet(snapshot((BOOT, 1 << 62), (9, 0)))
    with pytest.raises(CorruptTraceError, match=r"out of range|extend over"):
        tk.load(save(tmp_path, start, thread(7, 1, 2), content))


def build_exported(about: str, label: str) -> list[bytes]:
    metadata = message((2, message((1, "producer"), (2, "tracekit"))))
    described = message((1, 7), (4, message((1, 1), (2, 2), (5, "CUDA API · x 2"))), (14, about))
    process = message((1, 9), (3, message((1, 9), (6, label))))
    return [packet(field(5, metadata)), packet(field(60, described)), packet(field(60, process))]


def test_attributes_of_tracks_are_checked(tmp_path: Path) -> None:
    annotation = (4, message((10, "api_call_id"), (4, 1)))
    for label in ("GPU ² name", f"GPU {'9' * 5000} name"):
        about = json.dumps({"process_id": 10**30, "thread_id": True, "context_id": [1], "stream_id": 1 << 63})
        parts = build_exported(about, label)
        path = save(tmp_path, START, *parts, event(BEGIN, 2000, A, annotation), event(END, 2100))
        with tk.load(path) as trace:
            assert trace.count("api_calls") == 1
            assert trace.count("devices") == trace.count("threads") == trace.count("streams") == 0


def test_a_thread_has_one_name(tmp_path: Path) -> None:
    again = packet(field(60, message((1, 7), (4, message((1, 1), (2, 2), (5, "later"))))))
    with tk.load(save(tmp_path, START, again, event(INSTANT, 2000, A))) as trace:
        assert [(row["thread_id"], row["name"]) for row in trace["threads"].to_pylist()] == [(2, "later")]


def test_large_thread_ids_are_exact(tmp_path: Path) -> None:
    tid = (1 << 53) + 1
    with tk.load(
        save(tmp_path, START, thread(8, 1, tid), packet(field(60, field(1, 9))), event(INSTANT, 2000, A, track=8))
    ) as t:
        assert t["nvtx_marks"]["thread_id"].to_pylist() == [tid]


def build_snapshots(count: int) -> bytes:
    parts = []
    for nth in range(count):
        parts.append(packet(snapshot((BOOT, 1000 + 100 * nth), (OWN, 5), incremental=True)))
        parts += [event(BEGIN, 1, A, clock=OWN), event(END, 1, clock=OWN)]
    return b"".join(parts)


HOSTILE = {
    "empty compressed packets": packet(field(50, zlib.compress(b""))) * 20_000,
    "snapshots of many clocks": packet(snapshot(*((200 + nth, 5) for nth in range(512)))) * 100,
    "many snapshots": build_snapshots(10_000),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_traces_take_no_time(case: str, tmp_path: Path) -> None:
    path = save(tmp_path, START, HOSTILE[case], event(INSTANT, 2000, A))
    started = time.process_time()
    with tk.load(path) as trace:
        assert trace.count("nvtx_marks") == 1
    assert time.process_time() - started < 8


def test_numbers_of_clocks_and_fields_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "MAX_GROUPS", 2)
    many = b"".join(packet(snapshot((BOOT, 5), (200 + nth, 5))) for nth in range(2))
    with pytest.raises(CorruptTraceError, match="contain more than 2 different combinations of clocks"):
        tk.load(save(tmp_path, START, many, event(INSTANT, 2000, A)))
    monkeypatch.setattr(categories, "MAX_FIELDS", 8)
    with pytest.raises(CorruptTraceError, match="an event has more than 8 fields"):
        tk.load(save(tmp_path, START, event(INSTANT, 2000, A, *[(3, 1)] * 9)))


def test_events_far_from_each_other_have_the_same_strings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strings of many batches are found without joining them all."""
    from tracekit.readers.pftrace import packets

    monkeypatch.setattr(packets, "BATCH_BYTES", 100)
    events = [
        event(BEGIN, 2000 + 2 * nth, (NAME, f"n{nth % 3}"), (4, message((10, f"k{nth}"), (6, f"v{nth % 2}"))))
        + event(END, 2001 + 2 * nth, (NAME, f"n{nth % 3}"))
        for nth in range(50)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with tk.load(save(tmp_path, START, *events)) as trace:
            rows: list[dict[str, Any]] = trace["nvtx_ranges"].to_pylist()
    assert [(row["name"], row["end_ns"] - row["start_ns"], row["payload_text"]) for row in rows] == [
        (f"n{nth % 3}", 1, f'{{"k{nth}":"v{nth % 2}"}}') for nth in range(50)
    ]


def test_real_numbers_and_integers_of_one_counter(tmp_path: Path) -> None:
    real = packet(field(11, message((9, COUNTER), (11, 20)) + b"\xe1\x02" + struct.pack("<d", 0.5)), at=2001)
    with tk.load(save(tmp_path, START, describe_counter((4, 4)), counter(3), real)) as trace:
        rows = trace["counters"].select(["value_int", "value_float"]).to_pylist()
        assert rows == [{"value_int": 12, "value_float": None}, {"value_int": None, "value_float": 2.0}]
