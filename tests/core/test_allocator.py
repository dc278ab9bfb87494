"""The memory of an allocator: its peak, owners and fragments, against a simulation and the numbers of PyTorch."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tracekit.core import allocator
from tracekit.core.figures.timeline import read_memory_changes

FIXTURES = Path(__file__).parents[2] / "fixtures" / "memory_snapshot"
TRUTH = json.loads((FIXTURES / "truth.json").read_text("utf-8"))
OWNERS = ("frame", "stack", "stream", "size", "context", "metadata", "category")
_IDS = ("stack_id", "user_stack_id")
EVENT = {
    **dict.fromkeys(("allocator_event_id", "timestamp_ns", "device_id", "stream_id", "address", "bytes"), pl.Int64),
    **dict.fromkeys(("allocated_bytes", "reserved_bytes", *_IDS), pl.Int64),
    **dict.fromkeys(("operation", "compile_context", "metadata", "category"), pl.String),
}
BLOCK = {
    **dict.fromkeys(("segment_id", "device_id", "stream_id", "address", "bytes", "requested_bytes", *_IDS), pl.Int64),
    **dict.fromkeys(("state", "segment_type", "pool"), pl.String),
}
SEGMENT = {
    **dict.fromkeys(("segment_id", "device_id", "stream_id", "bytes"), pl.Int64),
    **dict.fromkeys(("segment_type", "pool"), pl.String),
}


def events(*rows: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame([{"allocator_event_id": n, "device_id": 0, **row} for n, row in enumerate(rows, 1)], EVENT)


class Simulation:
    """Two devices, whose blocks are allocated and freed. What happens before the recording begins is not recorded."""

    def __init__(self, steps: list[tuple[int, int, int]], first: int) -> None:
        self.live: dict[tuple[int, int], tuple[int, str]] = {}
        self.recorded: list[dict[str, Any]] = []
        self.states: list[tuple[int, dict[tuple[int, int], tuple[int, str]]]] = []
        for n, (device, address, size) in enumerate(steps):
            if n == first:
                self.states = [(device, {**self.live}) for device in (0, 1)]
            freed = self.live.pop((device, address), None)
            if freed is None:
                self.live[device, address] = (size, f"step {n}")
            if n >= first:
                self.record(device, address, n, freed)
        if first >= len(steps):
            self.states = [(device, {**self.live}) for device in (0, 1)]

    def record(self, device: int, address: int, n: int, freed: tuple[int, str] | None) -> None:
        self.states.append((device, {**self.live}))
        size, text = freed or self.live[device, address]
        event = {"device_id": device, "address": address, "bytes": size, "metadata": None if freed else text}
        event |= {"operation": "free" if freed else "allocate", "timestamp_ns": n}
        event |= {"allocated_bytes": self.allocated(device), "reserved_bytes": 1000}
        self.recorded.append(event)

    def allocated(self, device: int) -> int:
        return sum(size for (d, _), (size, _) in self.live.items() if d == device)

    def tables(self) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
        rows = [{"allocator_event_id": 0} | event for event in sorted(self.recorded, key=lambda e: e["device_id"])]
        for n, row in enumerate(rows, 1):
            row["allocator_event_id"] = n
        blocks = [
            {"device_id": d, "address": a, "bytes": 512, "requested_bytes": size, "state": "allocated"}
            for (d, a), (size, _) in self.live.items()
        ]
        free = {"device_id": 0, "address": 99, "bytes": 7, "requested_bytes": 0, "state": "inactive"}
        segments = [{"device_id": d, "bytes": 1000} for d in (0, 1)]
        return pl.DataFrame(rows, EVENT), pl.DataFrame([*blocks, free], BLOCK), pl.DataFrame(segments, SEGMENT)


STEPS = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 4), st.integers(0, 9)), max_size=30)


@given(STEPS, st.integers(0, 20))
def test_blocks_at_the_peak_are_those_of_a_simulation(steps: list[tuple[int, int, int]], first: int) -> None:
    simulation = Simulation(steps, first)
    recorded, blocks, segments = simulation.tables()
    initial = allocator.compute_initial_states(recorded, blocks, segments)
    peaks = allocator.find_peaks(allocator.compute_states(recorded, initial))
    at_peak = allocator.select_blocks_at_peak(allocator.pair_blocks(recorded, blocks), peaks)
    assert peaks["device_id"].to_list() == [0, 1]
    for device, peak in peaks.select("device_id", "peak_bytes").iter_rows():
        states = [
            {address: block for (d, address), block in live.items() if d == device}
            for of_device, live in simulation.states
            if of_device == device
        ]
        sizes = [sum(size for size, _ in live.values()) for live in states]
        assert peak == max(sizes)
        expected = states[sizes.index(peak)]
        rows = at_peak.filter(device_id=device)
        assert sorted(rows.select("address", "bytes").rows()) == sorted((a, size) for a, (size, _) in expected.items())
        for address, text in rows.filter(pl.col("start_event_id").is_not_null()).select("address", "metadata").rows():
            assert expected[address][1] == text


def test_unknown_memory_has_no_peak() -> None:
    rows = events({"operation": "allocate", "bytes": 5, "address": 1}, {"operation": "allocate", "bytes": 5})
    peaks = allocator.find_peaks(allocator.compute_states(rows, None))
    assert peaks.row(0, named=True) == {"device_id": 0} | dict.fromkeys(peaks.columns[1:])
    assert allocator.select_blocks_at_peak(allocator.pair_blocks(rows, pl.DataFrame(schema=BLOCK)), peaks).is_empty()


def test_changes_have_a_known_time() -> None:
    known = {"allocated_bytes": 7, "reserved_bytes": 9}
    rows = events(
        {"operation": "allocate segment", "timestamp_ns": 4, **known},
        {"operation": "allocate", "timestamp_ns": 4, **known},
        {"operation": "free", "timestamp_ns": 2, **known},
        {"operation": "free", **known},
        {"operation": "request free", "timestamp_ns": 3, **known},
        {"operation": "unmap segment", "timestamp_ns": 5},
    )
    changes = allocator.compute_changes(rows.select(allocator.CHANGES))
    assert changes.rows() == [(2, 0, "Allocated", 7), (4, 0, "Allocated", 7), (4, 0, "Reserved", 9)]


def test_segments_are_divided() -> None:
    keys = {"device_id": 0, "stream_id": 0, "segment_type": "large", "pool": None}
    blocks = [
        {**keys, "state": state, "bytes": size, "requested_bytes": requested}
        for state, size, requested in (
            *(("allocated", 10, 7), ("allocated", 10, None), ("awaiting free", 5, 3)),
            *(("inactive", 20, 0), ("inactive", 30, 0), (None, 1, None)),
        )
    ]
    segments = [{**keys, "bytes": 70}, {**keys, "bytes": 6}, {**keys, "pool": "1.0", "bytes": 0}]
    sums = allocator.sum_segments(pl.DataFrame(blocks, BLOCK), pl.DataFrame(segments, SEGMENT)).to_dicts()
    common, private = sorted(sums, key=lambda row: row["pool"] is not None)
    assert common == {
        **keys, "segments": 2, "reserved_bytes": 76, "blocks": 2, "requested_bytes": 17, "rounding_bytes": 3,
        "awaiting_bytes": 5, "inactive_bytes": 51, "inactive_blocks": 3, "largest_inactive_bytes": 30,
        "inactive_share": 100 * 51 / 76,
    }  # fmt: skip
    assert private["segments"] == 1
    assert private["inactive_share"] is None


def test_reports_are_the_numbers_of_pytorch() -> None:
    truth = TRUTH["oom"]
    with tk.load(FIXTURES / "oom.pickle") as trace:
        peak = trace.stats("allocator_peak").row(0, named=True)
        segments = trace.stats("allocator_segments")
        failures = trace.stats("allocator_failures")
        unfreed = trace.stats("allocator_unfreed")
    assert peak["Peak (bytes)"] == truth["requested_bytes.all.peak"]
    assert peak["At End (bytes)"] == truth["requested_bytes.all.current"]
    assert peak["Peak Reserved (bytes)"] == truth["reserved_bytes.all.peak"]
    assert peak["Reserved At End (bytes)"] == truth["reserved_bytes.all.current"]
    assert peak["Failures"] == failures.height == truth["num_ooms"]
    assert segments["Segments"].sum() == truth["segment.all.current"]
    assert segments["Blocks"].sum() == truth["allocation.all.current"]
    assert segments["Inactive (bytes)"].sum() == truth["inactive_split_bytes.all.current"]
    parts = sum(segments[f"{part} (bytes)"] for part in ("Requested", "Rounding", "Awaiting Free", "Inactive"))
    assert (parts == segments["Reserved (bytes)"]).all()
    assert unfreed["Size (bytes)"].sum() == truth["requested_bytes.all.current"]
    assert failures["Call Stack"].to_list() == ["<module>"]


@pytest.mark.parametrize("name", ["oom", "ring"])
def test_owners_add_up_to_the_peak(name: str) -> None:
    with tk.load(FIXTURES / f"{name}.pickle") as trace:
        peak = trace.stats("allocator_peak").row(0, named=True)
        for owner in OWNERS:
            owners = trace.stats(f"allocator_owners:owner={owner}")
            assert owners["Size (bytes)"].sum() == peak["Peak (bytes)"]
            assert owners["Allocations"].sum() == peak["Allocations"]
        assert (trace.stats("allocator_owners")["Owner"] == allocator.EARLIER).any() == (name == "ring")


def test_a_time_window_limits_the_events() -> None:
    with tk.load(FIXTURES / "oom.pickle") as trace:
        rows = trace.frame("allocator_events").collect()
        middle = int(rows["timestamp_ns"][rows.height // 2])
        part = trace.select(time=(None, middle))
        before = rows.filter(pl.col("timestamp_ns") < middle)
        peak = part.stats("allocator_peak").row(0, named=True)
        assert peak["Peak (bytes)"] == before["allocated_bytes"].max()
        assert peak["At End (bytes)"] == before["allocated_bytes"][-1]
        owners = part.stats("allocator_owners:owner=size")
        assert owners["Size (bytes)"].sum() == peak["Peak (bytes)"]
        assert (
            part.stats("allocator_unfreed")["Allocations"].sum() < trace.stats("allocator_unfreed")["Allocations"].sum()
        )
        changes = read_memory_changes(trace.frame, 10_000, (middle, None))
    assert changes["timestamp_ns"].min() == middle
    assert set(changes["memory_kind"]) == {"Allocated", "Reserved"}
    assert changes.filter(memory_kind="Allocated")["max_bytes"].max() == rows["allocated_bytes"].max()


def test_a_snapshot_without_events_has_the_peak_of_its_blocks(tmp_path: Path) -> None:
    with (FIXTURES / "ring.pickle").open("rb") as file:
        snapshot = pickle.load(file)
    path = tmp_path / "bare.pickle"
    path.write_bytes(pickle.dumps({**snapshot, "device_traces": [[]]}))
    with tk.load(path) as trace:
        peak = trace.stats("allocator_peak").row(0, named=True)
        owners = trace.stats("allocator_owners")
    assert peak["Peak (bytes)"] == TRUTH["ring"]["requested_bytes.all.current"] == owners["Size (bytes)"].sum()
    assert peak["Peak Event"] == 0
    assert peak["Failures"] == 0
