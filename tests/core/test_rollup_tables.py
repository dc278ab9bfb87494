"""The declared tables of a roll-up: each op, instance and iteration once, and totals that agree."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import tracekit as tk
from tracekit.core.rollup import Rollup, tables

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.fixture(scope="module")
def trace() -> tk.Trace:
    return tk.load(FIXTURES / "train_amp.sqlite").rollup()


def test_instances_add_up_to_ops(trace: tk.Trace) -> None:
    ops, instances = (
        trace.frame(name).with_columns(pl.col("op_id").cast(pl.String)).collect() for name in ("ops", "op_instances")
    )
    assert ops["op_id"].is_unique().all()
    summed = instances.group_by("op_id").agg(pl.len().alias("n"), pl.col("kernel_count").sum().alias("kernels"))
    both = ops.join(summed, on="op_id", how="left", maintain_order="left")
    assert both["instance_count"].to_list() == both["n"].fill_null(0).to_list()
    assert both["kernel_count"].to_list() == both["kernels"].fill_null(0).to_list()
    assert instances["op_instance_id"].to_list() == list(range(instances.height))
    assert (instances["start_ns"] <= instances["end_ns"]).all()


def test_iterations_contain_the_kernels(trace: tk.Trace) -> None:
    rows = trace.frame("iterations").select("iteration", "kernel_count", "is_aggregated").collect().rows()
    assert rows == [(0, 104, True), (1, 82, True), (2, 74, True), (3, 74, True)]
    assert sum(count for _, count, _ in rows) == trace.count("kernels")


def test_parts_of_iterations_add_up_to_their_windows() -> None:
    """Means over two devices are rounded."""
    rows = tk.load(FIXTURES / "ddp2.sqlite").rollup().frame("iterations").collect()
    windows = rows["window_end_ns"] - rows["window_start_ns"]
    assert rows.select(pl.sum_horizontal(r"^in_.*_ns$")).to_series().to_list() == windows.to_list()


def test_group_nodes_form_a_tree(trace: tk.Trace) -> None:
    nodes = trace.frame("group_nodes").collect()
    parents = nodes.filter(pl.col("parent_id").is_not_null())
    assert nodes.height - parents.height >= 1
    assert (parents["parent_id"] < parents["group_node_id"]).all()
    assert nodes.row(0, named=True)["instance_count"] <= trace.count("op_instances")


def test_tables_are_those_of_the_trace(trace: tk.Trace) -> None:
    with tk.load(FIXTURES / "train_amp.sqlite") as recorded:
        rollup = Rollup.from_frames(recorded.frame)
        built = {name: build(rollup) for name, build in tables.TABLES.items()}
    for name, frame in built.items():
        assert frame.height == trace.count(name) > 0
        assert set(trace.schema(name).names) <= set(frame.columns)


@pytest.mark.slow
def test_only_the_measures_keep_a_frame_with_a_row_per_call() -> None:
    with tk.load(FIXTURES / "train_amp.sqlite") as recorded:
        rollup = Rollup.from_frames(recorded.frame)
        for build in tables.TABLES.values():
            build(rollup)
        calls, kernels = rollup.calls, rollup.kernels
        cached = [value for value in vars(rollup).values() if isinstance(value, pl.DataFrame)]
        assert cached
        assert max(frame.height for frame in cached) < kernels.height < calls.height
        assert calls.columns == [*rollup.measures.calls.columns, "iteration"]
        assert kernels.columns == [*calls.columns, "kernel_gpu", "kernel_api"]
        assert rollup.select_kernels("op", "gpu_end_ns").equals(
            kernels.select("op", "gpu_end_ns", "iteration", "kernel_gpu", "kernel_api")
        )
        assert rollup.select_calls("name").equals(calls.select("name", "iteration"))
        assert rollup.measures.ops.timeline.instances.is_empty()
