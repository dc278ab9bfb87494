"""Memory in use over time, its peak and what was allocated then, against a simulation and on real captures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.reports import compute_report
from tracekit.core import memory

from .test_reports import frames

FIXTURES = Path(__file__).parents[2] / "fixtures"
ALLOCATE, FREE = "Allocation", "Deallocation"
ORIGIN = {"process_id": 7, "device_id": 0, "memory_kind": "Device", "correlation_id": 0, "name": None}


def event(time: int, operation: str, address: int, size: int = 10, **more: Any) -> dict[str, Any]:
    return {**ORIGIN, "timestamp_ns": time, "operation": operation, "address": address, "bytes": size, **more}


def table(rows: list[dict[str, Any]]) -> pl.DataFrame:
    numbered = [{"memory_event_id": n, **row} for n, row in enumerate(rows, 1)]
    kinds = {**dict.fromkeys(("memory_event_id", "timestamp_ns", "process_id", "device_id"), pl.Int64)}
    kinds |= {**dict.fromkeys(("correlation_id", "address", "bytes"), pl.Int64)}
    kinds |= dict.fromkeys(("operation", "memory_kind", "name"), pl.String)
    return pl.DataFrame(numbered, schema=kinds)


def test_an_address_is_freed_and_used_again() -> None:
    rows = memory.pair_allocations(
        table([event(1, ALLOCATE, 5), event(2, FREE, 5), event(3, ALLOCATE, 5, 20), event(4, ALLOCATE, 6, 40)])
    )
    assert rows.select("start_ns", "end_ns", "is_freed").rows() == [(1, 2, True), (3, None, False), (4, None, False)]
    changes = memory.compute_memory_usage(rows)
    assert changes.select("timestamp_ns", "bytes", "used_bytes", "peak_bytes").rows() == [
        (1, 10, 10, 10), (2, -10, 0, 10), (3, 20, 20, 20), (4, 40, 60, 60),
    ]  # fmt: skip


def test_an_address_that_is_allocated_again_was_freed_unseen() -> None:
    rows = memory.pair_allocations(table([event(1, ALLOCATE, 5), event(2, ALLOCATE, 5, 30)]))
    assert rows.select("end_ns", "end_event_id", "is_freed").rows() == [(2, 2, False), (None, None, False)]
    assert memory.compute_memory_usage(rows)["used_bytes"].to_list() == [10, 0, 30]


def test_memory_allocated_before_the_capture_is_not_counted() -> None:
    rows = memory.pair_allocations(table([event(1, FREE, 5), event(2, ALLOCATE, 6)]))
    assert memory.compute_memory_usage(rows)["used_bytes"].to_list() == [10]


def test_columns_follow_the_order_of_the_events() -> None:
    events = table(
        [event(9, FREE, 5), event(1, FREE, 8), event(2, ALLOCATE, 5, 30), event(2, ALLOCATE, 6, memory_kind="Pinned")]
    )
    assert memory.compute_usage_columns(events).rows() == [(0, None), (0, None), (30, 9), (10, None)]


def test_correlation_adds_them_to_the_table(tmp_path: Path) -> None:
    with tk.load(FIXTURES / "memory" / "memory_pools.nsys-rep") as trace:
        rows = trace.correlate().frame("memory_events").collect()
        calls = trace.frame("api_calls").select("api_call_id", call=pl.col("name").cast(pl.String)).collect()
        report = tk.stats(trace, "gpu_memory_usage")
    last = rows.sort("timestamp_ns", "memory_event_id").group_by("memory_kind").agg(pl.col("used_bytes").last())
    assert dict(last.cast({"memory_kind": pl.String}).rows())["Pinned"] == 7000
    named = rows.join(calls, on="api_call_id", how="left", maintain_order="left")["call"].to_list()
    assert named[0] == "cudaMallocFromPoolAsync_ptsz_v11020" or str(named[0]).startswith("cudaMallocAsync")
    assert report["Used (bytes)"].sort().to_list() == rows["used_bytes"].sort().to_list()


def test_processes_and_devices_have_their_own_addresses() -> None:
    events = [event(1, ALLOCATE, 5), event(2, FREE, 5, process_id=8), event(3, FREE, 5, device_id=1)]
    assert memory.pair_allocations(table(events))["end_ns"].to_list() == [None]


EVENTS = st.lists(
    st.builds(
        event,
        st.integers(0, 8),
        st.sampled_from([ALLOCATE, FREE]),
        st.integers(0, 3),
        st.integers(1, 9),
        memory_kind=st.sampled_from(["Device", "Pinned"]),
        device_id=st.integers(0, 1),
    ),
    max_size=25,
)


@given(EVENTS)
def test_peaks_by_simulation(events: list[dict[str, Any]]) -> None:
    live: dict[tuple[int, int], tuple[str, int, int]] = {}
    peaks: dict[tuple[int, str], tuple[int, set[int]]] = {}
    numbered = sorted(enumerate(events, 1), key=lambda pair: (pair[1]["timestamp_ns"], pair[0]))
    for number, e in numbered:
        live.pop((e["device_id"], e["address"]), None)
        if e["operation"] == ALLOCATE:
            live[e["device_id"], e["address"]] = e["memory_kind"], e["bytes"], number
            group = e["device_id"], e["memory_kind"]
            alive = {n: size for (device, _), (kind, size, n) in live.items() if (device, kind) == group}
            if sum(alive.values()) > peaks.get(group, (0, set()))[0]:
                peaks[group] = sum(alive.values()), set(alive)
    rows = memory.pair_allocations(table(events))
    changes = memory.compute_memory_usage(rows)
    highest = memory.find_memory_peaks(changes)
    found = memory.select_allocations_at_peak(rows, highest)
    assert {(r["device_id"], r["memory_kind"]): r["peak_bytes"] for r in highest.to_dicts()} == {
        group: peak for group, (peak, _) in peaks.items()
    }
    for group, (_, alive) in peaks.items():
        chosen = found.filter(device_id=group[0], memory_kind=group[1])
        assert set(chosen["memory_event_id"]) == alive
    last = {(r["device_id"], r["memory_kind"]): r["last_bytes"] for r in highest.to_dicts()}
    for group, total in last.items():
        assert total == sum(size for (d, _), (kind, size, _) in live.items() if (d, kind) == group)


@given(EVENTS, st.tuples(st.none() | st.integers(0, 8), st.none() | st.integers(0, 9)))
def test_memory_in_a_window_by_simulation(events: list[dict[str, Any]], window: tuple[int | None, int | None]) -> None:
    low, high = (0 if window[0] is None else window[0]), (99 if window[1] is None else window[1])
    changes = memory.compute_memory_usage(memory.pair_allocations(table(events)))
    whole = changes.to_dicts()
    inside = [row for row in whole if low <= row["timestamp_ns"] < high]
    groups = {(row["device_id"], row["memory_kind"]) for row in whole}

    def group_of(rows: list[dict[str, Any]], group: tuple[int, str]) -> list[int]:
        return [r["used_bytes"] for r in rows if (r["device_id"], r["memory_kind"]) == group]

    before = {g: (group_of([r for r in whole if r["timestamp_ns"] < low], g) or [0])[-1] for g in groups}
    made = memory.select_memory_changes_in_window(changes, window)
    kept = made.filter(pl.col("timestamp_ns") >= low).to_dicts()
    assert [{**r, "peak_bytes": 0} for r in kept] == [{**r, "peak_bytes": 0} for r in inside]
    for group in groups if low < high else ():
        levels = [before[group], *group_of(inside, group)]
        mine = made.filter(device_id=group[0], memory_kind=group[1])
        assert (mine["used_bytes"].max() or 0) == max(levels)
        assert (mine["used_bytes"].to_list() or [0])[-1] == levels[-1]
        seen = group_of(inside, group)
        peaks = [max(levels[: n + 2]) for n in range(len(seen))]
        assert mine.filter(pl.col("timestamp_ns") >= low)["peak_bytes"].to_list() == peaks


def test_memory_that_was_allocated_before_the_selected_time_counts(tmp_path: Path) -> None:
    events = [event(1, ALLOCATE, 1, 8), event(2, ALLOCATE, 2, 4), event(3, FREE, 2, 4), event(6, ALLOCATE, 3, 2)]
    whole = frames(memory_events=[*events, event(7, FREE, 1, 8), event(9, ALLOCATE, 4, 1)])
    some = frames(memory_events=[event(6, ALLOCATE, 3, 2)])

    def rows(report: str, window: tuple[int | None, int | None]) -> list[tuple[Any, ...]]:
        return compute_report(some, report, window=window, without=lambda *_: whole).frame().rows()

    assert rows("gpu_memory_usage", (4, 7)) == [(6, 0, "Device", 2, 10, 10)]
    assert rows("gpu_memory_usage", (2, 4)) == [(2, 0, "Device", 4, 12, 12), (3, 0, "Device", -4, 8, 12)]
    assert [row[3:6] for row in rows("gpu_memory_peak", (4, 7))] == [(6, 2, 0.0)]
    assert [row[3:5] for row in rows("gpu_memory_peak", (4, 6))] == [(4, 1)]
    alive = compute_report(some, "gpu_memory_alive", window=(4, 6), without=lambda *_: whole).frame()
    assert alive.select("Bytes", "Address").rows() == [(8, "0x1")]
    assert rows("gpu_memory_usage", (4, 6)) == []


@pytest.mark.parametrize("form", ["nsys-rep", "sqlite"])
def test_selected_times_of_a_real_capture(form: str) -> None:
    with tk.load(FIXTURES / f"um.{form}") as trace:
        whole = trace.stats("gpu_memory_usage")
        middle = whole["Time (ns)"][len(whole) // 2]
        rest = trace.select(time=(middle, None)).stats("gpu_memory_usage")
        columns = ["Time (ns)", "Device", "Kind", "Change (bytes)", "Used (bytes)"]
        assert rest.select(columns).equals(whole.filter(pl.col("Time (ns)") >= middle).select(columns))
        assert rest["Used (bytes)"][0] > rest["Change (bytes)"][0]
        selected = trace.select(time=(middle, None)).select(time=(None, middle + 1)).stats("gpu_memory_peak")
        before = whole.filter(pl.col("Time (ns)") <= middle).group_by("Kind").agg(pl.col("Used (bytes)").last())
        assert set(selected["Kind"]) <= set(before["Kind"])


def test_allocations_have_the_call_and_the_range_that_made_them() -> None:
    thread = {"process_id": 7, "thread_id": 1}
    made = frames(
        memory_events=[
            event(12, ALLOCATE, 255, 2_000_000, correlation_id=3),
            event(13, ALLOCATE, 16, 1_000_000, memory_kind="Device Static", name="table"),
        ],
        api_calls=[{"start_ns": 11, "end_ns": 14, "name": "cudaMalloc", "correlation_id": 3, **thread}],
        nvtx_ranges=[
            {"range_id": 1, "start_ns": 0, "end_ns": 50, "name": "step", **thread},
            {"range_id": 2, "start_ns": 10, "end_ns": 20, "name": "forward", **thread},
        ],
    )
    alive = compute_report(made, "gpu_memory_alive").frame()
    columns = ["Kind", "Bytes", "Address", "Function", "NVTX Range", "Variable"]
    assert alive.select(columns).rows() == [
        ("Device", 2_000_000, "0xFF", "cudaMalloc", "forward", None),
        ("Device Static", 1_000_000, "0x10", None, None, "table"),
    ]
    peak = compute_report(made, "gpu_memory_peak").frame()
    assert peak.rows() == [
        (0, "Device", 2.0, 12, 1, 2.0, 1, 2.0),
        (0, "Device Static", 1.0, 13, 1, 1.0, 1, 1.0),
    ]


@pytest.mark.parametrize("form", ["nsys-rep", "sqlite"])
def test_the_peak_of_a_real_capture(form: str) -> None:
    with tk.load(FIXTURES / f"um.{form}") as trace:
        peak = tk.stats(trace, "gpu_memory_peak")
        alive = tk.stats(trace, "gpu_memory_alive").filter(pl.col("Kind") == "Managed")
        usage = tk.stats(trace, "gpu_memory_usage")
    assert peak.filter(pl.col("Kind") == "Managed").rows() == [
        (0, "Managed", 50.332, 807_982_684, 3, 33.554, 2, 33.554),
    ]
    assert alive["Bytes"].to_list() == [1 << 24] * 3
    assert usage["Change (bytes)"].sum() == (2 << 24) + int(
        usage.filter(pl.col("Kind") != "Managed")["Change (bytes)"].sum()
    )


def test_faults_and_migrations_of_an_address_are_one_row() -> None:
    copy = {"start_ns": 0, "end_ns": 1000, "virtual_address": 4096}
    made = frames(
        memcpys=[
            {**copy, "copy_kind": "Unified Host-to-Device", "bytes": 3_000},
            {**copy, "copy_kind": "Unified Device-to-Host", "bytes": 5_000},
            {**copy, "copy_kind": "Device-to-Host", "bytes": 7_000},
        ],
        cpu_page_faults=[{"virtual_address": a, "function_id": 1, "function": "f"} for a in (4096, -1, 0)],
        gpu_page_faults=[{"virtual_address": 4096, "page_faults": n} for n in (2, 3)],
    )
    assert compute_report(made, "um_sum").frame().rows() == [
        ("0x1000", 0.003, 0.005, 1, 5, 4000.0),
        ("0xFFFFFFFFFFFFFFFF", None, None, 1, None, None),
        ("0x0", None, None, 1, None, None),
    ]
    assert compute_report(made, "um_sum:rows=1").rows == 1
    assert compute_report(made, "um_cpu_page_faults_sum").frame().rows() == [(3, "f", None, None)]
    (total,) = compute_report(made, "um_total_sum").frame().rows()
    assert total[:4] == (0.003, 0.005, 3, 5)


def test_totals_of_one_direction_have_no_addresses() -> None:
    made = frames(
        memcpys=[
            {
                "start_ns": 0,
                "end_ns": 1000,
                "virtual_address": 4096,
                "copy_kind": "Unified Host-to-Device",
                "bytes": 3_000_000,
            }
        ],
        cpu_page_faults=[{"virtual_address": 1, "function_id": 1}],
        gpu_page_faults=[{"virtual_address": 4096, "page_faults": 1}],
    )
    assert compute_report(made, "um_total_sum").frame().rows() == [(3.0, None, 1, 1, None, None)]


def test_system_calls_by_function() -> None:
    call = {"process_id": 7, "thread_id": 1, "name_id": 4, "name": "read"}
    made = frames(
        syscalls=[
            {**call, "start_ns": 0, "end_ns": 30, "event_class": 107},
            {**call, "start_ns": 0, "end_ns": 90, "event_class": 108},
        ]
    )
    assert compute_report(made, "syscall_sum").frame().select("Num Calls", "Total Time (ns)", "Name").rows() == [
        (1, 30, "read")
    ]


@pytest.mark.parametrize("by", ["range", "function", "stack", "size"])
@pytest.mark.parametrize("name", ["memory/memory_pools.sqlite", "um.sqlite"])
def test_the_owners_hold_all_memory_at_the_peak(name: str, by: str) -> None:
    with tk.load(FIXTURES / name) as trace:
        owners, alive = trace.stats(f"gpu_memory_owners:by={by}"), trace.stats("gpu_memory_alive")
        peaks = trace.stats("gpu_memory_peak")
    totals = owners.group_by("Device", "Kind", maintain_order=True).agg(
        pl.col("Size (bytes)", "Peak (%)", "Allocations").sum(), pl.col("Peak (bytes)").first()
    )
    assert totals["Size (bytes)"].to_list() == totals["Peak (bytes)"].to_list()
    assert totals["Peak (%)"].to_list() == pytest.approx([100] * totals.height, abs=0.3)
    assert totals["Allocations"].to_list() == peaks["Allocations"].to_list()
    assert [round(b / 1e6, 3) for b in totals["Peak (bytes)"]] == peaks["Peak (MB)"].to_list()
    assert owners["Size (bytes)"].sum() == alive["Bytes"].sum()
    assert owners["Largest (bytes)"].max() == alive["Bytes"].max()
    assert owners["First Allocated (ns)"].min() == alive["Allocated (ns)"].min()
    if by == "size":
        sizes = alive.group_by("Device", "Kind", "Bytes").agg(pl.len())
        assert sorted(owners["Owner"]) == sorted(f"{b} bytes" for b in sizes["Bytes"])


def test_a_kind_of_memory_that_is_never_in_use_has_no_share() -> None:
    rows = memory.pair_allocations(table([event(1, ALLOCATE, 5, 0)])).with_columns(owner=pl.lit("a"))
    peaks = memory.find_memory_peaks(memory.compute_memory_usage(rows))
    owners = memory.sum_owners(memory.select_allocations_at_peak(rows, peaks))
    assert owners.select("owner", "bytes", "share", "allocations").rows() == [("a", 0, None, 1)]
