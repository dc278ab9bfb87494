"""Rules against what ``nsys analyze`` printed, against brute force, and at their edges."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.reports import RULES, RULES_OF_NSYS, compute_report
from tests.core.test_report_reads import FIXTURES
from tests.core.test_reports import Row, frames, printed
from tracekit.errors import UnknownFormatError
from tracekit.registry.analyses import RULE, list_analyses

GOLDEN = sorted((FIXTURES / "analyze").glob("*.csv"))
SHARED = Path(__file__).parents[3] / "shared" / "captures" / "h200_more"
CAPTURES = ["memory", "mpi_rank0", "mpi_rank1", "pystacks", "um"]
MS = 1_000_000
OPERATIONS = ("kernels", "memcpys", "memsets")


def operation(start: int, end: int, device: int = 0, **more: Any) -> Row:
    return {"start_ns": start, "end_ns": end, "process_id": 7, "device_id": device, "context_id": 1, **more}


def copy(nanoseconds: int, name: str, **more: Any) -> tuple[Row, Row]:
    """Give a copy and the call that launched it; both have the duration as their correlation id."""
    key = {"process_id": 7, "correlation_id": nanoseconds}
    launched = {"start_ns": 5, "end_ns": 5 + nanoseconds, "bytes": 1 << 20, "stream_id": 3, **key, **more}
    return launched, {"start_ns": 0, "end_ns": 1, "thread_id": 1, "name": name, **key}


def durations(rule: str, table: str, *launches: tuple[Row, Row]) -> list[int]:
    rows = compute_report(
        frames(**{table: [r for r, _ in launches], "api_calls": [c for _, c in launches]}), rule
    ).frame()
    return rows["Duration (ns)"].to_list()


@pytest.mark.parametrize("form", ["sqlite", "nsys-rep"])
@pytest.mark.parametrize("rule", RULES_OF_NSYS)
@pytest.mark.parametrize("capture", CAPTURES)
def test_prints_what_nsys_prints(capture: str, rule: str, form: str) -> None:
    path = next((p for p in (f / f"{capture}.{form}" for f in (FIXTURES, SHARED)) if p.exists()), None)
    if path is None:
        pytest.skip("the capture is neither a fixture nor beside the checkout")
    golden = FIXTURES / "analyze" / f"{capture}_{rule}.csv"
    with tk.load(path) as trace:
        result = compute_report(trace.frame, rule)
    assert printed(result) == (golden.read_text("utf-8") if golden in GOLDEN else "")


@pytest.mark.parametrize("rule", RULES)
def test_nothing_recorded_finds_nothing(rule: str) -> None:
    result = compute_report(frames(), rule)
    assert printed(result) == ""
    assert result.frame().columns == [c.name for c in list_analyses(RULE)[rule].columns]
    assert list_analyses(RULE)[rule].doc.endswith(".")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "gpu_gaps:chunks=3",
            "'gpu_gaps' has no option 'chunks'\nHint: choose one of these options: rows, gap, start, end",
        ),
        (
            "gpu_gaps:gap",
            "rule 'gpu_gaps': '' is not a valid value of the option 'gap'\nHint: set gap to an integer from 0 to",
        ),
        ("gpu_gaps:gap=1.5", "'1.5' is not a valid value"),
        ("gpu_gaps:rows=-2", "Hint: set rows to an integer of at least -1"),
        ("gpu_gaps:start=99999999999999999999", "is not a valid value"),
        ("gpu_gaps:end=9999999999999999999", "is not a valid value"),
        ("gpu_time_util:chunks=0", "an integer from 1 to 1000000"),
        ("gpu_time_util:threshold=101", "an integer from 0 to 100"),
    ],
)
def test_unknown_rules_and_options(name: str, message: str) -> None:
    with pytest.raises(UnknownFormatError) as e:
        compute_report(frames(), name)
    assert message in str(e.value)


def test_asynchronous_copies_of_pageable_memory() -> None:
    launches = [
        copy(10, "cudaMemcpyAsync_v3020", src_memory_kind="Pageable", dst_memory_kind="Device"),
        copy(30, "cuMemcpyDtoHAsync_v2", src_memory_kind="Device", dst_memory_kind="Pageable"),
        copy(40, "cudaMemcpyAsync_v3020", src_memory_kind="Pinned", dst_memory_kind="Device"),
        copy(50, "cudaMemcpy_v3020", src_memory_kind="Pageable", dst_memory_kind="Device"),
        copy(60, "cudaGraphLaunch_v10000", src_memory_kind="Pageable", dst_memory_kind="Device"),
        copy(20, "cudaMemcpy2DAsync_ptsz_v7000", src_memory_kind="Pageable", dst_memory_kind=None),
    ]
    assert durations("cuda_memcpy_async", "memcpys", *launches) == [20, 10]


def test_synchronous_copies_except_small_ones_to_the_device() -> None:
    small = {"copy_kind": "Host-to-Device", "bytes": 64_000}
    launches = [
        copy(10, "cudaMemcpy_v3020", **small | {"bytes": 64_001}),
        copy(20, "cudaMemcpy_v3020", **small),
        copy(30, "cudaMemcpy_v3020", **small | {"copy_kind": "Device-to-Host"}),
        copy(40, "cudaMemcpyAsync_v3020"),
        copy(50, "cudaMemcpy2D_v3020", **small | {"copy_kind": None}),
        copy(60, "cudaMemsetAsync_v3020"),
        copy(70, "cuMemcpyHtoD_v2", **small | {"bytes": 64_001}),
    ]
    assert durations("cuda_memcpy_sync", "memcpys", *launches) == [50, 30, 10]


def test_synchronous_sets_of_memory_that_the_cpu_uses() -> None:
    launches = [
        copy(10, "cudaMemset_v3020", memory_kind="Pinned"),
        copy(20, "cudaMemset_v3020", memory_kind="Managed"),
        copy(30, "cudaMemset_v3020", memory_kind="Device"),
        copy(40, "cudaMemsetAsync_v3020", memory_kind="Managed"),
        copy(50, "cudaMemset_v3020", memory_kind=None),
        copy(60, "cudaMemset_v3020", memory_kind="Managed Static"),
        copy(70, "cuMemsetD8_v2", memory_kind="Managed"),
    ]
    assert durations("cuda_memset_sync", "memsets", *launches) == [20, 10]
    text = printed(compute_report(frames(memsets=[launches[0][0]], api_calls=[launches[0][1]]), "cuda_memset_sync"))
    assert text == (
        "Duration (ns),Start (ns),Memory Kind,Bytes (MB),PID,Device ID,Context ID,Green Context ID,Stream ID,API Name\n"
        "10,5,Pinned,1.049,7,0,,,3,cudaMemset_v3020\n"
    )


def test_green_contexts_are_printed_unless_zero() -> None:
    launches = [copy(n, "cudaMemcpy_v3020", green_context_id=green) for n, green in ((3, 5), (2, 0), (1, None))]
    rows = {"memcpys": [r for r, _ in launches], "api_calls": [c for _, c in launches]}
    assert compute_report(frames(**rows), "cuda_memcpy_sync").frame()["Green Context ID"].to_list() == [5, None, None]


def test_synchronizations() -> None:
    names = ["cudaDeviceSynchronize_v3020", "cudaStreamSynchronize_ptsz_v7000", "cudaEventSynchronize_v3020", None]
    calls = [{"start_ns": i, "end_ns": 9, "process_id": 1, "thread_id": 2, "name": n} for i, n in enumerate(names)]
    result = compute_report(frames(api_calls=calls), "cuda_api_sync")
    assert result.frame().rows() == [(9, 0, 1, 2, names[0]), (8, 1, 1, 2, names[1])]


def test_at_most_fifty_rows_by_default() -> None:
    calls = [
        {"start_ns": i, "end_ns": i + 1, "process_id": 1, "thread_id": 2, "name": "cudaDeviceSynchronize_v3020"}
        for i in reversed(range(60))
    ]
    listed = {
        options: compute_report(frames(api_calls=calls), f"cuda_api_sync{options}").frame()["Start (ns)"].to_list()
        for options in ("", ":rows=3", ":rows=-1", ":rows=0", ":start=20:end=23:rows=99")
    }
    assert listed == {
        "": list(range(50)),
        ":rows=3": [0, 1, 2],
        ":rows=-1": list(range(60)),
        ":rows=0": [],
        ":start=20:end=23:rows=99": [20, 21, 22],
    }


def test_gaps_are_longer_than_the_threshold() -> None:
    rows = [operation(0, 1), operation(1 + 500 * MS, 2 + 500 * MS), operation(3 + 1000 * MS, 4 + 1000 * MS)]
    assert compute_report(frames(kernels=rows), "gpu_gaps").frame().rows() == [(1, 500 * MS + 1, 2 + 500 * MS, 7, 0, 1)]


def test_the_context_of_a_gap_is_that_of_the_activity_before_it() -> None:
    rows = [operation(0, 9 * MS), operation(1, 2, context_id=2), operation(20 * MS, 21 * MS, context_id=3)]
    assert compute_report(frames(kernels=rows), "gpu_gaps:gap=5").frame().rows() == [(1, 11 * MS, 9 * MS, 7, 0, 1)]


def test_utilization_counts_parallel_activities_twice() -> None:
    rows = [operation(0, 20), operation(0, 20), operation(95, 100)]
    assert compute_report(frames(kernels=rows), "gpu_time_util:chunks=1").frame().rows() == [(1, 45.0, 100, 0, 7, 0, 1)]
    assert compute_report(frames(kernels=[operation(0, 5), *rows]), "gpu_time_util:chunks=1").rows == 0


def test_devices_of_equal_printed_utilization_are_sorted_by_duration() -> None:
    rows = [
        operation(a, b, process_id=p)
        for p, end in ((7, 3000), (8, 2000), (9, 900))
        for a, b in ((0, 1), (end, end + 1))
    ]
    table = compute_report(frames(kernels=rows), "gpu_time_util:chunks=1").frame()
    assert table.select("In-Use (%)", "Duration (ns)").rows() == [(0.1, 2001), (0.1, 3001), (0.2, 901)]


def test_operations_are_joined_with_calls_of_their_own_process() -> None:
    copies = [copy(n, "cudaMemcpy_v3020") for n in (10, 20)]
    calls = [call | {"process_id": call["process_id"] + 1} for _, call in copies]
    assert compute_report(frames(memcpys=[row for row, _ in copies], api_calls=calls), "cuda_memcpy_sync").rows == 0


def test_utilization_of_a_device_is_in_the_context_that_ends_last() -> None:
    rows = [operation(0, 1), operation(5, 90, context_id=4), operation(50, 51, context_id=3), operation(6, 7, 1)]
    rows = compute_report(frames(kernels=rows), "gpu_time_util:chunks=9:threshold=100").frame()
    assert set(rows["Context ID"]) == {4}


activities = st.lists(
    st.tuples(
        st.sampled_from(OPERATIONS),
        st.integers(0, 60),
        st.integers(0, 12),
        st.integers(0, 1),
        st.sampled_from([1, None]),
    ),
    max_size=12,
)
Activity = tuple[str, int, int, int, int | None]


def tables_of(rows: list[Activity]) -> dict[str, list[Row]]:
    return {
        table: [operation(s, s + n, d, process_id=p) for t, s, n, d, p in rows if t == table] for table in OPERATIONS
    }


def by_device(rows: list[Activity]) -> dict[tuple[int | None, int], list[tuple[int, int]]]:
    devices: dict[tuple[int | None, int], list[tuple[int, int]]] = {}
    for _, start, length, device, process in rows:
        devices.setdefault((process, device), []).append((start, start + length))
    return devices


@given(activities)
def test_gaps_by_brute_force(rows: list[Activity]) -> None:
    gaps = []
    for device, spans in by_device(rows).items():
        times = range(min(s for s, _ in spans), max(e for _, e in spans))
        idle = [t for t in times if not any(s <= t < e for s, e in spans)]
        # An empty activity ends a gap and begins another one.
        edges = {s for s, _ in spans}
        starts = [t for t in idle if t - 1 not in idle or t in edges]
        gaps += [(next(n for n in range(1, 99) if t + n not in idle or t + n in edges), t, *device, 1) for t in starts]
    expected = sorted(gaps, key=lambda g: (-g[0], g[1], (g[2] is not None, g[2]), g[3]))
    tables = {
        t: [{**r, **{k: r[k] * MS for k in ("start_ns", "end_ns")}} for r in v] for t, v in tables_of(rows).items()
    }
    found = compute_report(frames(**tables), "gpu_gaps:gap=0:rows=-1").frame().rows()
    assert [(n / MS, t / MS, *more) for _, n, t, *more in found] == expected


@given(activities, st.integers(1, 7), st.integers(0, 100))
def test_utilization_by_brute_force(rows: list[Activity], count: int, threshold: int) -> None:
    expected = []
    for (process, device), spans in by_device(rows).items():
        first, last = min(s for s, _ in spans), max(e for _, e in spans)
        size = -(-(last - first) // count)
        runs: list[list[int]] = []
        for start in range(first, last, size or 1):
            end = min(start + size, last)
            busy = sum(max(0, min(e, end) - max(s, start)) for s, e in spans)
            if 100 * busy >= threshold * (end - start):
                continue
            if runs and runs[-1][1] == start:
                runs[-1][1:] = [end, runs[-1][2] + busy]
            else:
                runs.append([start, end, busy])
        expected += [(busy, end - start, start, process, device) for start, end, busy in runs]
    found = compute_report(frames(**tables_of(rows)), f"gpu_time_util:chunks={count}:threshold={threshold}:rows=-1")
    columns = ["busy_ns", "duration_ns", "start_ns", "process_id", "device_id"]
    assert sorted(found.data.select(columns).rows(), key=str) == sorted(expected, key=str)
    assert found.data["share"].is_sorted()
    assert found.data["row"].to_list() == list(range(1, found.rows + 1))


@pytest.mark.parametrize("rule", RULES)
def test_api(rule: str) -> None:
    with tk.load(FIXTURES / "train_amp.nsys-rep") as trace:
        sink = io.BytesIO()
        result = trace.report(rule)
        result.csv(sink)
        assert tk.analyze(trace, rule).equals(trace.analyze(rule))
        assert trace.analyze(rule).equals(result.frame())
        assert bool(sink.getvalue()) == bool(result.rows)
        assert all(d in (pl.Int64, pl.Float64, pl.String, pl.Categorical) for d in result.frame().dtypes)
