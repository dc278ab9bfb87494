"""Causes of idle time against brute force, and by example."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tests.core.test_report_reads import FIXTURES
from tests.core.test_reports import Row, frames
from tracekit.core import idle
from tracekit.core.analyze import apply_rule

CAPTURES = sorted(FIXTURES.glob("*.sqlite"))
NAMES = {
    "cuLibraryLoadData": "module_loading",
    "cudaStreamSynchronize_v3020": "synchronization",
    "cudaEventQuery_v3020": "synchronization",
    "cudaMalloc_v3020": "memory_management",
    "cuMemFree_v2": "memory_management",
    "cudaHostAlloc_v3020": "memory_management",
    "cudaLaunchKernel_v7000": "api_call",
    "cudaMemcpyAsync_v3020": "api_call",
    None: "api_call",
}
RANGES = {"dataloader": "data_loading", "forward": "nvtx_range", None: "nvtx_range"}
PRIORITY = {cause: i for i, cause in enumerate(idle.CAUSES)}
Tables = dict[str, list[Row]]


@st.composite
def captures(draw: st.DrawFn) -> Tables:
    """A few activities on two devices, and whatever two threads did meanwhile."""
    time, length, thread = st.integers(0, 40), st.integers(0, 9), st.sampled_from([1, 2, None])

    def events(count: int, **more: Any) -> list[Row]:
        rows = []
        for _ in range(draw(st.integers(0, count))):
            start = draw(time)
            row = {"start_ns": start, "end_ns": start + draw(length), "process_id": 7}
            rows.append(row | {k: draw(v) for k, v in more.items()})
        return rows

    places = {"device_id": st.integers(0, 1), "correlation_id": st.sampled_from([None, *range(6)])}
    calls = events(6, thread_id=thread, name=st.sampled_from(list(NAMES)))
    calls = [row | {"correlation_id": i} for i, row in enumerate(calls)]
    ranges = events(4, thread_id=thread, name=st.sampled_from(list(RANGES)))
    if ranges and draw(st.booleans()):
        ranges[0]["end_ns"] = None
    switches = [{"timestamp_ns": draw(time), "process_id": 7, "thread_id": draw(thread)} for _ in range(5)]
    return {
        **{table: events(3, **places) for table in idle.ACTIVITIES},
        "api_calls": calls,
        "nvtx_ranges": ranges,
        "jit_operations": events(2, thread_id=thread, name=st.sampled_from(["k", None])),
        "osrt_calls": events(4, thread_id=thread, event_class=st.sampled_from([27, 28]), name=st.just("poll")),
        "cpu_scheduling": [row | {"is_scheduled_in": draw(st.booleans())} for row in switches],
        "cpu_samples": [
            {"timestamp_ns": draw(time), "process_id": 7, "thread_id": draw(thread)}
            for _ in range(draw(st.integers(0, 5)))
        ],
    }


def activities(tables: Tables) -> list[Row]:
    rows = [r for table in idle.ACTIVITIES for r in tables[table] if r["start_ns"] < r["end_ns"]]
    return sorted(rows, key=lambda r: (r["device_id"], r["start_ns"]))


def call_of(tables: Tables, activity: Row) -> Row | None:
    calls = [c for c in tables["api_calls"] if c["correlation_id"] == activity["correlation_id"]]
    return calls[0] if calls else None


def gaps_of(tables: Tables, device: int) -> list[tuple[int, int]]:
    rows = [r for r in activities(tables) if r["device_id"] == device]
    busy = {t for r in rows for t in range(r["start_ns"], r["end_ns"])}
    gaps: list[tuple[int, int]] = []
    for t in range(min(busy, default=0), max(busy, default=0)):
        if t in busy:
            continue
        if gaps and gaps[-1][1] == t:
            gaps[-1] = (gaps[-1][0], t + 1)
        else:
            gaps.append((t, t + 1))
    return gaps


def thread_of(tables: Tables, device: int, end: int) -> tuple[int | None, int | None]:
    """Thread that is to blame for a gap, and when it had launched the next activity."""
    rows = [r for r in activities(tables) if r["device_id"] == device]
    after = [r for r in rows if r["start_ns"] >= end]
    first = next((r for r in after if r["start_ns"] == end), None)
    launch = call_of(tables, first) if first else None
    threads = [c["thread_id"] for r in after if (c := call_of(tables, r)) and c["thread_id"] is not None]
    earlier = [c["thread_id"] for r in rows if (c := call_of(tables, r)) and c["thread_id"] is not None]
    return (threads or earlier[-1:] or [None])[0], launch["end_ns"] if launch else None


def causes_at(tables: Tables, thread: int, t: int) -> set[str]:
    def around(table: str) -> list[Row]:
        mine = [r for r in tables[table] if r["thread_id"] == thread]
        return [r for r in mine if r["start_ns"] <= t and (r["end_ns"] is None or t < r["end_ns"])]

    causes = {NAMES[c["name"]] for c in around("api_calls")} | {RANGES[r["name"]] for r in around("nvtx_ranges")}
    causes |= {"jit_compilation" for _ in around("jit_operations")}
    causes |= {"os_call" for r in around("osrt_calls") if r["event_class"] == 27}
    switches = sorted(
        (s for s in tables["cpu_scheduling"] if s["thread_id"] == thread), key=lambda s: s["timestamp_ns"]
    )
    before = [s for s in switches if s["timestamp_ns"] <= t]
    if before and len(before) < len(switches) and not before[-1]["is_scheduled_in"]:
        causes.add("scheduled_out")
    samples = sorted(s["timestamp_ns"] for s in tables["cpu_samples"] if s["thread_id"] == thread)
    distances = [b - a for a, b in itertools.pairwise(samples)]
    if distances:
        reach = 2 * int(statistics.median(distances))
        ends = [*samples[1:], samples[-1] + reach]
        if any(s <= t < min(e, s + reach) for s, e in zip(samples, ends, strict=True)):
            causes.add("sampled")
    return causes


def assert_totals_match(totals: idle.IdleTimeTotals, pieces: pl.DataFrame) -> None:
    """Check the sums over causes against the intervals with their causes and names."""
    by_cause: Counter[str] = Counter()
    by_name: Counter[tuple[str, str | None]] = Counter()
    for start, end, cause, name in pieces.select("start_ns", "end_ns", "cause", "name").rows():
        by_cause[cause] += end - start
        by_name[cause, name] += end - start
    ordered = sorted(by_cause.items(), key=lambda c: (-c[1], PRIORITY[c[0]]))
    assert totals.totals.rows() == ordered
    names = [(-time, name) for (cause, name), time in by_name.items() if cause == ordered[0][0] and name is not None]
    assert totals.main_name == (min(names)[1] if names else None)


@given(captures())
def test_by_brute_force(tables: Tables) -> None:
    expected: dict[int, dict[int, tuple[str, int | None]]] = {}
    for device in (0, 1):
        for start, end in gaps_of(tables, device):
            thread, launched = thread_of(tables, device, end)
            for t in range(start, end):
                causes = {"other"} if thread is None else {"other", *causes_at(tables, thread, t)}
                if launched is not None and t >= launched:
                    causes = {"launched"}
                expected.setdefault(device, {})[t] = min(causes, key=PRIORITY.__getitem__), thread
    lazy = frames(**tables)
    gaps = idle.find_idle_times(lazy)
    assert gaps.rows() == [(d, *g) for d in (0, 1) for g in gaps_of(tables, d)]
    pieces = idle.divide_idle_times_by_cause(lazy, gaps)
    found: dict[int, dict[int, tuple[str, int | None]]] = {}
    for row in pieces.iter_rows(named=True):
        for t in range(row["start_ns"], row["end_ns"]):
            moments = found.setdefault(row["device_id"], {})
            assert t not in moments
            moments[t] = row["cause"], row["thread_id"]
    assert found == expected
    if not pieces.is_empty():
        assert_totals_match(idle.sum_idle_times(lazy, gaps), pieces)
    summed = apply_rule(lazy, "gpu_idle_causes:rows=-1").data
    listed = apply_rule(lazy, "gpu_idle_gaps:rows=-1").data
    for device, moments in expected.items():
        rows = summed.filter(pl.col("device_id") == device)
        assert dict(rows.select("cause", "total_ns").iter_rows()) == {
            cause: sum(c == cause for c, _ in moments.values()) for cause in {c for c, _ in moments.values()}
        }
        assert rows["share"].sum() == pytest.approx(100)
    assert sorted(listed.select("device_id", "start_ns", "duration_ns").iter_rows()) == [
        (d, start, end - start) for d in (0, 1) for start, end in gaps_of(tables, d)
    ]


@pytest.mark.many(5)
@pytest.mark.parametrize("path", CAPTURES, ids=lambda p: p.stem)
def test_causes_add_up_to_the_idle_time(path: Path) -> None:
    with tk.load(path) as trace:
        gaps, summed = idle.find_idle_times(trace.frame), trace.analyze("gpu_idle_causes:rows=-1")
        listed = trace.analyze("gpu_idle_gaps:rows=-1")
    lengths = gaps.group_by("device_id").agg((pl.col("end_ns") - pl.col("start_ns")).sum()).sort("device_id")
    assert summed.group_by("Device ID").agg(pl.col("Total Time (ns)").sum()).sort("Device ID").rows() == lengths.rows()
    assert listed.height == gaps.height
    assert listed["Duration (ns)"].sum() == lengths["end_ns"].sum()
    assert (listed["Cause Time (ns)"] <= listed["Duration (ns)"]).all()


def test_what_is_printed() -> None:
    call = {"process_id": 7, "thread_id": 1}
    kernel = {"process_id": 7, "device_id": 0}
    tables: Tables = {
        "kernels": [
            kernel | {"start_ns": 0, "end_ns": 10, "correlation_id": 1},
            kernel | {"start_ns": 110, "end_ns": 120, "correlation_id": 2},
        ],
        "api_calls": [
            call | {"start_ns": 5, "end_ns": 50, "name": "cudaDeviceSynchronize_v3020"},
            call | {"start_ns": 60, "end_ns": 80, "name": "cudaLaunchKernel_v7000", "correlation_id": 2},
        ],
        "nvtx_ranges": [
            call | {"start_ns": 0, "end_ns": 100, "name": "step"},
            call | {"start_ns": 52, "end_ns": 58, "name": "inner"},
        ],
    }
    assert apply_rule(frames(**tables), "gpu_idle_causes").frame().rows() == [
        (0, "synchronization", 40.0, 40, 1, 40, 10, "cudaDeviceSynchronize_v3020", 40),
        (0, "launched", 30.0, 30, 1, 30, 10, None, None),
        (0, "api_call", 20.0, 20, 1, 20, 10, "cudaLaunchKernel_v7000", 20),
        (0, "nvtx_range", 10.0, 10, 1, 10, 10, "inner", 6),
    ]
    gaps = apply_rule(frames(**tables), "gpu_idle_gaps").frame().rows()
    assert gaps == [(1, 100, 10, 0, 7, 1, "synchronization", 40, "cudaDeviceSynchronize_v3020", 40)]
