"""Call stacks as strings are what a loop over the frames writes."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tests.exporters.test_chrome_trace import trace
from tracekit.core import stacks
from tracekit.schemas.callstacks import iterate_frame_batches

FIXTURES = Path(__file__).parents[2] / "fixtures"
Row = tuple[int | None, int, str | None]


def frame(rows: list[Row]) -> pl.DataFrame:
    return pl.DataFrame(rows, {"parent_id": pl.Int64, "depth": pl.Int32, "symbol": pl.Categorical}, orient="row")


@st.composite
def trees(draw: st.DrawFn) -> list[Row]:
    rows: list[Row] = []
    for number in range(draw(st.integers(0, 12))):
        parent = draw(st.one_of(st.none(), st.integers(1, number))) if number else None
        depth = 1 if parent is None else rows[parent - 1][1] + 1
        rows.append((parent, depth, draw(st.sampled_from([None, "main", "a;b", "wörk", "x" * 20]))))
    return rows


def path(rows: list[Row], number: int | None) -> str | None:
    names: list[str] = []
    while number is not None and 0 < number <= len(rows):
        parent, _, symbol = rows[number - 1]
        names.insert(0, (symbol or "[unknown]").replace(";", ":"))
        number = parent
    return ";".join(names) or None


@given(trees(), st.lists(st.one_of(st.none(), st.integers(-1, 14)), max_size=20))
def test_paths(rows: list[Row], ids: list[int | None]) -> None:
    found = stacks.build_stack_paths(frame(rows), pl.Series("stack_id", ids, pl.Int64))
    assert found.dtype == pl.Categorical
    assert found.to_list() == [path(rows, n) for n in ids]


@given(trees(), st.lists(st.integers(0, 12), max_size=9), st.integers(1, 6))
def test_frames_in_batches(rows: list[Row], chosen: list[int], size: int) -> None:
    nodes = np.array([n for n in chosen if n <= len(rows)], np.int64)
    parents, depths = (np.array([0, *(row[k] or 0 for row in rows)], np.int64) for k in (0, 1))
    found = []
    for batch, edges, frames in iterate_frame_batches(parents, depths, nodes, size):
        assert len(edges) == batch.stop - batch.start + 1
        assert batch.stop - batch.start == 1 or edges[-1] <= size
        found += [frames[a:b].tolist() for a, b in itertools.pairwise(edges)]
    expected = []
    for node in nodes.tolist():
        listed: list[int] = []
        while node:
            listed.insert(0, node)
            node = rows[node - 1][0] or 0
        expected.append(listed)
    assert found == expected


def test_a_long_path_keeps_its_inner_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(n or None, n + 1, f"f{n}") for n in range(9)]
    monkeypatch.setattr(stacks, "MAX_PATH_BYTES", 9)
    ids = pl.Series([9, 2, 3, 4])
    assert stacks.build_stack_paths(frame(rows), ids).to_list() == ["…;f6;f7;f8", "f0;f1", "f0;f1;f2", "…;f1;f2;f3"]
    monkeypatch.setattr(stacks, "MAX_TOTAL_BYTES", 16)
    assert stacks.build_stack_paths(frame(rows), ids).to_list() == ["…;f8", "…;f1", "…;f2", "…;f3"]
    assert stacks.build_stack_paths(frame([(None, 1, "x" * 2000)]), pl.Series([1])).to_list() == [
        "x" * stacks.MAX_NAME_CHARS
    ]


def test_parents_that_are_no_tree() -> None:
    rows: list[Row] = [(2, 3, "a"), (1, 2, "b"), (99, 2, "c"), (None, 0, "d")]
    assert stacks.build_stack_paths(frame(rows), pl.Series([1, 2, 3, 4])).to_list() == [
        "a;b;a",
        "a;b",
        "[unknown];c",
        "d",
    ]


def test_correlation_adds_them() -> None:
    with tk.load(FIXTURES / "osrt_libs.sqlite") as of:
        linked = of.correlate()
        symbols = of["stacks"]["symbol"].to_pylist()
        for table in ("cpu_samples", "osrt_calls", "api_calls", "python_samples"):
            rows = linked.table(table, ["stack_id", "stack"]).to_pylist()
            assert all((row["stack_id"] is None) == (row["stack"] is None) for row in rows)
            known = [r for r in rows if r["stack"] is not None]
            assert all(r["stack"].split(";")[-1] == (symbols[r["stack_id"] - 1] or "[unknown]") for r in known)
        assert linked["cpu_samples"]["stack"].null_count == 0


def test_memory_has_the_stack_of_its_call_or_its_python_stack() -> None:
    thread = {"process_id": 7, "thread_id": 8}
    calls = [
        {**thread, "start_ns": 10, "end_ns": 12, "correlation_id": 1, "stack_id": 2},
        {**thread, "start_ns": 20, "end_ns": 22, "correlation_id": 2},
        {**thread, "start_ns": 30, "end_ns": 32, "correlation_id": 3},
        {**thread, "start_ns": 20, "end_ns": 22, "correlation_id": 2, "process_id": 9, "stack_id": 1},
    ]
    samples = [{**thread, "timestamp_ns": t, "kind": kind, "stack_id": 1} for t, kind in ((10, "cuda"), (20, "cuda"))]
    samples.append({**thread, "timestamp_ns": 30, "kind": "periodic", "stack_id": 1})
    allocated = {"process_id": 7, "operation": "Allocation", "memory_kind": "Device", "bytes": 5}
    events = [{**allocated, "address": n, "timestamp_ns": n, "correlation_id": n} for n in (1, 2, 3, 4)]
    of = trace(
        api_calls=calls,
        python_samples=samples,
        memory_events=events,
        stacks=[{"depth": 1, "symbol": "main"}, {"depth": 2, "parent_id": 1, "symbol": "work"}],
    )
    assert of.correlate()["memory_events"]["stack"].to_pylist() == ["main;work", "main", None, None]
    alive = tk.stats(of, "gpu_memory_alive")
    assert alive["Call Stack"].to_list() == ["main;work", "main", None, None]


def test_a_switch_ends_with_the_next_one_of_its_thread() -> None:
    rows = [(5, 1, True), (9, 1, False), (6, 2, True), (2, 1, False), (9, 1, True), (7, None, True), (8, None, False)]
    switches = [
        {"timestamp_ns": time, "process_id": 7, "thread_id": thread, "is_scheduled_in": scheduled}
        for time, thread, scheduled in rows
    ]
    linked = trace(cpu_scheduling=switches).correlate()
    assert linked["cpu_scheduling"]["next_switch_ns"].to_pylist() == [9, 9, None, 5, None, 8, None]
