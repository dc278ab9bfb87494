"""What a real TensorBoard serves and shows of an event file: graph, times, scalars and tables, node by node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tracekit as tk
from google.protobuf import text_format

FIXTURES = Path(__file__).parents[2] / "fixtures"


def run_of(name: str, folder: Path) -> tuple[Path, pl.DataFrame, pl.DataFrame]:
    """An exported capture, its ops and its iterations."""
    with tk.load(FIXTURES / name) as trace:
        rolled = trace.rollup()
        run = rolled.export(folder / "run", format="tfevents")
        return run, rolled.frame("ops").collect(), rolled.frame("iterations").collect()


@pytest.mark.slow
def test_it_serves_what_was_written(board: Any, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing import event_accumulator
    from tensorboard.compat.proto import config_pb2, graph_pb2

    run, ops, iterations = run_of("train_amp.sqlite", tmp_path)
    with tk.load(FIXTURES / "train_amp.sqlite") as trace:
        steady = trace.rollup(include_warm_up=False).frame("ops").collect()
    ours = event_accumulator.EventAccumulator(str(run))
    ours.Reload()
    with board.TensorBoard(run) as served:
        info = served.loaded()["."]
        graph = text_format.Parse(served.get("plugin/graphs/graph", run="."), graph_pb2.GraphDef())
        found = {
            tag: text_format.Parse(served.get("plugin/graphs/run_metadata", run=".", tag=tag), config_pb2.RunMetadata())
            for tag in info["tags"]
        }
        scalars = json.loads(served.get("plugin/scalars/scalars", run=".", tag="iteration/kernels"))
        texts = json.loads(served.get("plugin/text/text", run=".", tag="tables/ops"))
    assert info["run_graph"]
    assert all(t["profile"] for t in info["tags"].values())
    assert graph == ours.Graph()
    assert found == {tag: ours.RunMetadata(tag) for tag in ["all iterations", *(f"step {i}" for i in range(4))]}
    spent = [n.all_end_rel_nanos for d in found["all iterations"].step_stats.dev_stats for n in d.node_stats]
    assert sum(spent) == ops["gpu_time_ns"].sum()
    assert [(step, value) for _, step, value in scalars] == iterations.select("iteration", "kernel_count").rows()
    assert texts[0]["text"].count("<tr>") == steady.filter(pl.col("instance_count") > 0).height + 1


@pytest.mark.thorough
def test_the_page_shows_the_times_of_nodes_and_groups(board: Any, tmp_path: Path) -> None:
    run, ops, _ = run_of("train_amp.sqlite", tmp_path)
    ns = {(o or ""): t for o, t in ops.select("op_id", "gpu_time_ns").iter_rows()}
    with board.TensorBoard(run) as served:
        served.loaded()
        with board.GraphPage(served) as page:
            page.color_by_time("all iterations")
            times, scale = page.times(), page.scale()
            page.expand("Batch")
            page.expand("Batch/Forward_pass")
            labels = page.labels()
            page.select("Batch/Forward_pass/layer1")
            card = page.card()
            page.color_by_time("step 1")
            step = page.times()
    conv = "Batch/Forward_pass/layer1/aten_conv2d"
    assert abs(1000 * (times[conv] or 0) - ns["CONV2D_1"]) <= 1000
    assert abs(1000 * (times[f"{conv}_bprop"] or 0) - ns["CONV2D_1_BPROP"]) <= 1000
    paths = pl.col("op_name").cast(pl.String)
    layer = ops.filter(paths.str.starts_with("Batch */Forward pass/layer1"))["gpu_time_ns"].sum()
    assert abs(1000 * (times["Batch/Forward_pass/layer1"] or 0) - layer) <= 2000
    assert abs(1000 * (times["__root__"] or 0) - ops["gpu_time_ns"].sum()) <= 2000
    assert times["Batch/(Batch)"] is None
    assert scale == ["0 µs", "6.89 ms"]
    assert {"Batch", "Batch/(Batch)", "Batch/Forward_pass", "Batch/Forward_pass/layer1"} <= set(labels)
    assert "10 nodes" in card
    assert "Compute Time 4.41 ms" in card
    assert 0 < (step["__root__"] or 0) < (times["__root__"] or 0)


@pytest.mark.slow
@pytest.mark.many(1)
@pytest.mark.parametrize("name", ["ops/pyprof_like.nsys-rep", "kineto/train.pt.trace.json.gz"])
def test_every_node_and_group_of_the_page(name: str, board: Any, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing import event_accumulator

    run, ops, _ = run_of(name, tmp_path)
    ours = event_accumulator.EventAccumulator(str(run))
    ours.Reload()
    ids = {n.name: n.attr["op_id"].s.decode() for n in ours.Graph().node}
    ns = dict(ops.select("op_id", "gpu_time_ns").iter_rows())
    with board.TensorBoard(run) as served:
        served.loaded()
        with board.GraphPage(served) as page:
            page.color_by_time("all iterations")
            times = page.times()
    scopes = {n.rpartition("/")[0] for n in times} - {""}
    assert {n for n in ids if n in scopes} == {n.rpartition("/")[0] for n in times if n.endswith(")")}
    for node, us in times.items():
        path = "" if node == "__root__" else node
        if node not in scopes and node != "__root__":
            spent = ns[ids[node.rpartition("/")[0] if node.endswith(")") else node]]
        else:
            spent = sum(ns[i] for n, i in ids.items() if not path or n == path or n.startswith(f"{path}/"))
        assert abs(1000 * (us or 0) - spent) <= 2000, node
    assert set(ids) <= set(times)
