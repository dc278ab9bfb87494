"""Chrome traces of any program are read as their events, Perfetto's trace processor and brute force say."""

from __future__ import annotations

import gzip
import json
import random
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import tracekit as tk
from tests.exporters import trace_processor
from tests.exporters.trace_processor import TraceProcessor
from tracekit.errors import CorruptTraceError, MissingTableError, TracekitWarning
from tracekit.readers.common.slices import match_slices
from tracekit.registry.absence import State
from tracekit.registry.notices import list_notices
from tracekit.trace import get_trace_view

FIXTURE = Path(__file__).parents[2] / "fixtures" / "chrome_trace" / "phases.json"
TRUNCATED = FIXTURE.with_name("truncated.json.gz")
CORPUS = Path(__file__).parents[3] / "shared" / "corpus" / "makers" / "chrome_trace"
OTHER_RULES = {
    "bex-interaction": "slices that begin in a complete event and end after it",
    "invalid-x-nesting": "complete events that cross",
    "end-non-top-of-stack": "slices that are open when the slice around them ends",
    "zero-duration-events": "slices that are open when the slice around them ends",
    "async_begin_end": "phases S, T and F",
    "simple-timeline": "phases S, T and F",
}
"""Public files of which the trace processor drops, cuts or ignores slices, and which."""
Slices = Counter[tuple[Any, ...]]


def save(folder: Path, *events: dict[str, Any], text: str = "{}") -> Path:
    path = folder / "made.json"
    path.write_text(text.replace("{}", json.dumps(list(events))), "utf-8")
    return path


def slice_(ph: str, ts: float, name: str | None = None, **members: Any) -> dict[str, Any]:
    return {"ph": ph, "ts": ts, "pid": 1, "tid": 1, **({} if name is None else {"name": name}), **members}


def shown(trace: tk.Trace, *columns: str) -> list[tuple[Any, ...]]:
    return trace.frame("nvtx_ranges").select(pl.col("name").cast(pl.String), *columns).collect().rows()


def slices_of(trace: tk.Trace) -> Slices:
    """Name, start and duration of all ranges and marks; -1 for one that never ended."""
    duration = (pl.col("end_ns") - pl.col("start_ns")).fill_null(-1)
    rows = shown(trace, "start_ns", duration)
    marks = trace.frame("nvtx_marks").select(pl.col("name").cast(pl.String), "timestamp_ns", pl.lit(0))
    return Counter([*rows, *marks.collect().rows()])


@pytest.fixture(scope="module")
def processor() -> Iterator[TraceProcessor]:
    if missing := trace_processor.missing():
        pytest.skip(f"no {missing}")
    with TraceProcessor() as processor:
        yield processor


def slices_in(processor: TraceProcessor, path: Path) -> Slices:
    processor.load(path)
    rows = processor.query("select name, ts, dur from slice")
    first = min((row["ts"] for row in rows), default=0)
    return Counter((row["name"], row["ts"] - first, row["dur"]) for row in rows)


def load(path: Path) -> tk.Trace:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TracekitWarning)
        return tk.load(path)


def test_the_fixture() -> None:
    with tk.load(FIXTURE) as trace:
        assert trace.format == "chrome-trace"
        ranges = shown(trace, "start_ns", "end_ns", "thread_id", "end_thread_id", "payload_text")
        marks = trace["nvtx_marks"].to_pylist()
        counters = trace["counters"].select(["timestamp_ns", "name", "field", "value_int", "value_float"]).to_pylist()
        threads = trace["threads"].select(["thread_id", "name"]).to_pylist()
        undecoded = {name: size.count for name, size in trace.undecoded.items()}
    by_name = {name: rest for name, *rest in ranges}
    assert by_name["outer"][:3] == [1, 100_000, 1]
    assert json.loads(by_name["outer"][4]) == {"step": 1, "loss": 0.5}
    assert json.loads(by_name["call"][4]) == {"bytes": 4096, "to": "d\u00fc\nsk"}
    assert by_name["inner"][:2] == [10_000, 20_000]
    assert by_name["late"][:3] == [250_125, 251_000, 7]
    assert (by_name["a"][:2], by_name["b"][:2]) == ([300_000, 320_000], [310_000, 320_000])
    assert by_name["never ends"][:2] == [400_000, None]
    assert by_name["old"][:4] == [200_000, 210_000, 1, 7]
    assert [rest[:4] for name, *rest in ranges if name == "request"] == [[0, 40_000, 1, 7], [5000, 50_000, 1, None]]
    assert [(m["name"], m["timestamp_ns"]) for m in marks] == [
        *(("first byte", 12_000), ("old", 205_000), ("mark", 1000), ("old mark", 2000), ("navigation", 3000))
    ]
    assert [tuple(row.values()) for row in counters] == [
        (0, "memory", "used", 100, None),
        (0, "memory", "free", 9007199254740993, None),
        (100_000, "memory", "used", None, 150.0),
        (100_000, "memory", "free", None, -1.25),
        (100_000, "load cpu 1", "load cpu 1", 3, None),
    ]
    assert {row["name"] for row in threads} == {"main", "worker", "queue 3"}
    assert undecoded == {
        "flows": 2,
        "ends of slices without a beginning": 1,
        "events of phase ?": 1,
        "samples": 1,
        **dict.fromkeys(("creations of objects", "snapshots of objects", "deletions of objects"), 1),
    }


def test_no_gpu_work_can_be_told() -> None:
    with tk.load(FIXTURE) as trace:
        assert trace.count("kernels") == 0
        assert trace.explain_missing_rows("kernels").state is State.NOT_DECODED
        assert "Chrome traces do not state which events are kernels" in " ".join(list_notices(get_trace_view(trace)))


def test_the_fixture_in_perfetto(processor: TraceProcessor) -> None:
    with tk.load(FIXTURE) as trace:
        ours = slices_of(trace)
    theirs = slices_in(processor, FIXTURE)
    assert not theirs - ours
    assert {name for name, _, _ in ours - theirs} == {"old"}


def test_a_truncated_array() -> None:
    with tk.load(TRUNCATED) as trace:
        assert trace.count("nvtx_ranges") == 8
        assert trace["processes"].to_pylist() == [{"process_id": 100, "name": "program"}]


@pytest.mark.slow
@pytest.mark.skipif(not CORPUS.is_dir(), reason="no corpus beside the checkout")
def test_public_files_in_perfetto(processor: TraceProcessor) -> None:
    compared = 0
    for path in sorted(CORPUS.rglob("*.json")):
        try:
            trace = load(path)
        except (CorruptTraceError, MissingTableError, tk.errors.UnknownFormatError):
            continue
        theirs, ours = slices_in(processor, path), slices_of(trace)
        first = min((start for _, start, _ in ours), default=0)
        moved = Counter({(name, start - first, duration): n for (name, start, duration), n in ours.items()})
        numbers = processor.query("select count(*) as n from counter")
        assert numbers[0]["n"] == trace.count("counters")
        if path.stem in OTHER_RULES:
            assert theirs.total() <= ours.total()
        else:
            assert moved == theirs, path.name
            compared += 1
    assert compared == 33


@pytest.mark.slow
def test_random_slices_in_perfetto(processor: TraceProcessor, tmp_path: Path) -> None:
    dice = random.Random(0)
    for _ in range(12):
        events, open_, ts = [], defaultdict[int, list[str]](list), 1
        for _ in range(200):
            tid, ts = dice.randrange(1, 4), ts + dice.randrange(1, 3)
            if open_[tid] and dice.random() < 0.5:
                name = open_[tid].pop()
                events.append(slice_("E", ts, dice.choice((name, None)), tid=tid))
            elif dice.random() < 0.1:
                events.append(slice_("E", ts, "unknown", tid=tid))
            else:
                open_[tid].append(dice.choice("abc"))
                events.append(slice_("B", ts, open_[tid][-1], tid=tid))
        dice.shuffle(events)
        path = save(tmp_path, *events)
        with tk.load(path) as trace:
            ours = slices_of(trace)
        first = min(start for _, start, _ in ours)
        assert slices_in(processor, path) == Counter({(n, s - first, d): k for (n, s, d), k in ours.items()})


def test_ends_by_brute_force() -> None:
    dice = random.Random(1)
    for case in range(400):
        rows = dice.randrange(30)
        tracks = np.sort(np.array([dice.randrange(4) for _ in range(rows)], np.int64))
        is_end = np.array([dice.random() < 0.5 for _ in range(rows)], np.bool_)
        codes = (-1, 0, 1) if case % 2 else (-1,)
        labels = [np.array([dice.choice(codes) for _ in range(rows)], np.int64) for _ in range(case % 3)]
        ends, unmatched = [-1] * rows, [False] * rows
        stacks = defaultdict[int, list[int]](list)
        for row in range(rows):
            stack = stacks[int(tracks[row])]
            if not is_end[row]:
                stack.append(row)
                continue
            fits = [
                height
                for height, begin in enumerate(stack)
                if all(
                    label[row] in (-1, label[begin]) or (nth == 0 and label[begin] == -1)
                    for nth, label in enumerate(labels)
                )
            ]
            unmatched[row] = not fits
            for begin in stack[max(fits) :] if fits else []:
                ends[begin] = row
            del stack[max(fits, default=len(stack)) :]
        matched = match_slices(tracks, is_end, *labels)
        assert (matched.ends.tolist(), matched.is_unmatched.tolist()) == (ends, unmatched)


def test_many_ends_of_other_names_take_no_time(tmp_path: Path) -> None:
    begins = [slice_("B", n, f"f{n}") for n in range(20_000)]
    ends = [slice_("E", 20_000 + n, "other") for n in range(20_000)]
    with tk.load(save(tmp_path, *begins, slice_("E", 30_000, "f0"), *ends)) as trace:
        assert trace["nvtx_ranges"]["end_ns"].null_count == 0
        assert trace.undecoded["ends of slices without a beginning"].count == 20_000


def test_times_are_exact(tmp_path: Path) -> None:
    events = [slice_("X", 1_700_000_000_000_000.123, "a", dur=0.001), slice_("X", 1_700_000_000_000_001, "b", dur="2")]
    text = json.dumps(events).replace("1700000000000000.0", "1700000000000000.123")
    path = save(tmp_path, text=text)
    with tk.load(path) as trace:
        assert shown(trace, "start_ns", "end_ns") == [("a", 0, 1), ("b", 877, 2877)]


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ('{"traceEvents": [', CorruptTraceError, "is truncated before the end of its first event"),
        ('{"traceEvents": []}', MissingTableError, "contains no slices, marks or counters, but 0 other trace events"),
        ('[{"ph": "P", "ts": 1}]', MissingTableError, "but 1 other trace events"),
        ('[{"ph": "M", "name": "process_name"}]', MissingTableError, "but 0 other"),
    ],
)
def test_files_without_events(tmp_path: Path, text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        tk.load(save(tmp_path, text=text))


def test_what_is_skipped_is_stated(tmp_path: Path) -> None:
    good = slice_("X", 1, "a", dur=1)
    bad = [slice_("X", 1, "no duration"), slice_("X", 1, "negative", dur=-1), slice_("B", 1e300), {"ph": "i"}]
    with pytest.warns(TracekitWarning, match="4 events have no valid time or duration"):
        assert tk.load(save(tmp_path, good, *bad)).count("nvtx_ranges") == 1
    with pytest.warns(TracekitWarning, match=r"is truncated \(its JSON is incomplete\): 1 complete event was read"):
        tk.load(save(tmp_path, text=f'{{"traceEvents": [{json.dumps(good)}, {{"ph"'))
    path = tmp_path / "made.json.gz"
    path.write_bytes(gzip.compress(json.dumps([good] * 100).encode())[:-9])
    with pytest.warns(TracekitWarning, match=r"is truncated \(the compressed data ends"):
        tk.load(path)


def test_ids_of_asynchronous_events_belong_to_no_process(tmp_path: Path) -> None:
    ids: tuple[dict[str, Any], ...] = ({"id": "0x1"}, {"id2": {"global": "0x2"}}, {"id2": {"local": "0x3"}})
    events = [
        slice_(ph, ts, f"n{nth}", cat="c", pid=pid, **each)
        for nth, each in enumerate(ids)
        for ph, ts, pid in (("b", 1, 1), ("e", 5, 2), ("e", 9, 1))
    ]
    with tk.load(save(tmp_path, *events)) as trace:
        assert shown(trace, "end_ns") == [("n0", 4000), ("n1", 4000), ("n2", 8000)]


def test_a_scope_is_no_category(tmp_path: Path) -> None:
    keys: tuple[dict[str, Any], ...] = (
        {"scope": "x", "id": 1},
        {"cat": "x", "id": 1},
        {"cat": "x", "id2": {"local": 1}},
    )
    begins = [slice_("b", nth, f"n{nth}", **key) for nth, key in enumerate(keys)]
    ends = [slice_("e", 5 + nth, f"n{nth}", **key) for nth, key in enumerate(keys)]
    with tk.load(save(tmp_path, *begins, *ends)) as trace:
        assert shown(trace, "end_ns") == [("n0", 5000), ("n1", 6000), ("n2", 7000)]


def test_fields_of_counters_do_not_depend_on_one_event(tmp_path: Path) -> None:
    values: list[tuple[str, dict[str, Any]]] = [
        ("m", {"a": 1, "b": 2.5}), ("m", {"a": 3}), ("m", {"a": "7"}), ("n", {"v": "-1.5e1"}), ("s", {"v": "text"}),
        ("t", {}), ("u", {"a\"b": 1, "é\n": 2}),
    ]  # fmt: skip
    events = [slice_("C", nth, name, args=args) for nth, (name, args) in enumerate(values)]
    with tk.load(save(tmp_path, *events)) as trace:
        rows = trace["counters"].to_pylist()
        found = [(r["name"], r["field"], r["value_int"], r["value_float"]) for r in rows]
        assert trace.undecoded["counters without numbers"].count == 2
    assert found == [
        *(("m", "a", 1, None), ("m", "b", None, 2.5), ("m", "a", 3, None), ("m", "a", 7, None)),
        *(("n", "n", None, -15.0), ("u", 'a"b', 1, None), ("u", "é\n", 2, None)),
    ]


def test_ids_that_are_texts_are_no_other_ids(tmp_path: Path) -> None:
    events = [slice_("X", 1, "a", dur=1, tid="w"), slice_("X", 1, "b", dur=1, tid=1 << 32)]
    with tk.load(save(tmp_path, *events)) as trace:
        assert shown(trace, "thread_id") == [("a", (1 << 32) + 1), ("b", 1 << 32)]
        assert {row["thread_id"]: row["name"] for row in trace["threads"].to_pylist()} == {(1 << 32) + 1: "w"}


def test_a_thread_has_one_name(tmp_path: Path) -> None:
    names = [{"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": name}} for name in ("a", "b")]
    with tk.load(save(tmp_path, *names, slice_("X", 1, "x", dur=1))) as trace:
        assert trace["threads"]["name"].to_pylist() == ["b"]


def test_times_far_apart_are_damage(tmp_path: Path) -> None:
    events = [slice_("X", ts, "a", dur=dur) for ts, dur in ((-4e15, 0), (4.6e15, 1e15))]
    with pytest.raises(CorruptTraceError, match=r"the events extend over 9,600,000,000,000,000,000 ns"):
        tk.load(save(tmp_path, *events))
