"""The report of the GPU time of graphs by layer."""

from __future__ import annotations

import polars as pl
import pytest
import tracekit as tk
from tests.builders.frames import declared, nvtx
from tests.conftest import FIXTURES
from tests.core.layers.test_nodes import CALL, EVENT, frame
from tests.core.layers.test_replays import GRAPH, KERNEL, REPLAY
from tests.core.test_categories import compute_report

INSIDE = FIXTURES / "layers" / "layers_inside.nsys-rep"


def test_the_time_of_each_activity_of_a_graph_counts_once() -> None:
    with tk.load(INSIDE) as trace:
        rows = trace.stats("layer_gpu_sum")
        layered = trace.with_layers().stats("layer_gpu_sum")
        selected = trace.select(time=(0, 38_700_000)).stats("layer_gpu_sum")
        linked = [trace.correlate().frame(t).drop_nulls("capture_path").collect() for t in ("kernels", "memsets")]
    columns = ("capture_path", "start_ns", "end_ns")
    ran = pl.concat(table.select(*columns) for table in linked).cast({"capture_path": pl.String})
    sums = ran.group_by("capture_path").agg((pl.col("end_ns") - pl.col("start_ns")).sum().alias("time"), pl.len())
    expected = {path: (time, count) for path, time, count in sums.rows()}
    assert {path: tuple(of) for path, *of in rows.select("Layer", "Total Time (ns)", "Activities").rows()} == expected
    assert rows.select("Replays", "Confidence", "Note", "PID", "Graph").unique().rows() == [(8, 1.0, None, 504, 2)]
    assert rows["Time (%)"].sum() == pytest.approx(100, abs=0.6)
    assert rows.equals(layered)
    assert selected["Replays"].max() == 2


def test_rows_without_a_layer_say_why() -> None:
    with tk.load(FIXTURES / "jax_mlp.nsys-rep") as trace:
        (row,) = trace.stats("layer_gpu_sum").select("Replays", "Total Time (ns)", "Layer", "Note").rows()
        assert row[:3] == (
            4,
            trace.frame("graph_launches").select(pl.col("end_ns") - pl.col("start_ns")).sum().collect().item(),
            None,
        )
        assert "--cuda-graph-trace=node" in row[3]
    rows = compute_report(declared(**REPLAY), "layer_gpu_sum").data
    assert rows.select("path", "replays", "count", "total", "confidence").rows() == [
        (None, 1, 2, 2, None),
        ("a", 1, 1, 1, 1.0),
        (None, 1, 1, 1, None),
    ]
    notes = rows["note"].to_list()
    assert [None if note is None else note.partition(":")[0] for note in notes] == [
        "recorded as a whole",
        None,
        "not known",
    ]


def test_layers_of_emit_nvtx_are_named_without_the_arguments_of_their_calls() -> None:
    names = [f"aten::mm, op_id = {number}, sizes = [[2, {number}], [3, 4]]" for number in (1, 2)]
    calls = frame([(1, 1, 40, 60, "cudaGraphLaunch", 2)], CALL)
    events = frame([(1, 1, 5, GRAPH, None), (1, 1, 15, GRAPH + 1, None)], EVENT)
    kernels = frame([(0, 7, 1, 2, GRAPH), (7, 9, 1, 2, GRAPH + 1)], KERNEL)
    ranges = nvtx(("a", 1, 0, 30), *((name, 1, start, start + 8) for name, start in zip(names, (2, 12), strict=True)))
    tables = declared(api_calls=calls, kernels=kernels, nvtx_ranges=ranges, cuda_graph_node_events=events)
    rows = compute_report(tables, "layer_gpu_sum").data
    assert rows.select("path", "count", "total").rows() == [("a/aten::mm", 2, 9)]
