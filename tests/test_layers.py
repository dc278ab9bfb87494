"""A layered trace: everything that groups by range groups the activities of graphs by layer, and sums stay the same."""

from __future__ import annotations

import json
import pickle
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
import tracekit as tk
from tests.conftest import FIXTURES
from tests.exporters.test_perfetto_trace import decoded
from tracekit.errors import UnknownFormatError
from tracekit.sets import load_many

pytestmark = pytest.mark.core
INSIDE = FIXTURES / "layers" / "layers_inside.nsys-rep"
STEPS, LAYERS, PARTS = 8, 6, ("attention", "mlp")
OUTER = r"^(capture/(?:layer \d/\w+|\w+))"
Sums = dict[str, tuple[int, int]]


@pytest.fixture(scope="module")
def plain() -> tk.Trace:
    with tk.load(INSIDE) as trace:
        yield trace


@pytest.fixture(scope="module")
def layered() -> tk.Trace:
    with tk.load(INSIDE, layers="capture") as trace:
        yield trace


@pytest.fixture(scope="module")
def sums(plain: tk.Trace) -> Sums:
    """The number and GPU time of the activities that were captured in each range, from row to row."""
    counts: Counter[str] = Counter()
    times: Counter[str] = Counter()
    for table in ("kernels", "memsets"):
        rows = plain.correlate().frame(table).select("capture_path", "start_ns", "end_ns").collect()
        for path, start, end in rows.drop_nulls().rows():
            names = path.split("/")
            for depth in range(1, len(names) + 1):
                counts["/".join(names[:depth])] += 1
                times["/".join(names[:depth])] += end - start
    assert len(counts) == 1 + LAYERS * 3
    return {path: (counts[path], times[path]) for path in counts}


def test_activities_keep_the_range_of_the_replay_and_have_a_layer(plain: tk.Trace, layered: tk.Trace) -> None:
    for table in ("kernels", "memsets", "memcpys", "graph_launches"):
        before, after = (trace.correlate().frame(table).collect() for trace in (plain, layered))
        assert after.drop("launch_ns", "capture_range_id", strict=False).equals(before.drop("capture_range_id"))
    ranges = layered.correlate().frame("nvtx_ranges").select("range_id", "path", "captured_range_id").collect()
    kernels = layered.correlate().frame("kernels").drop_nulls("launch_ns").collect()
    copies = kernels.join(ranges, left_on="capture_range_id", right_on="range_id", maintain_order="left")
    paths = copies.select(pl.concat_str("range_path", "capture_path", separator="/")).to_series()
    assert copies["path"].cast(pl.String).to_list() == paths.to_list()
    assert ranges["captured_range_id"].count() == STEPS * (1 + LAYERS * 3)


def test_copied_ranges_hold_the_time_of_their_layer(layered: tk.Trace, sums: Sums) -> None:
    rows = layered.correlate().frame("nvtx_ranges").drop_nulls("captured_range_id").collect()
    path = pl.col("path").cast(pl.String).str.replace(r"^step \d/", "")
    grouped = rows.group_by(path=path).agg(pl.col("gpu_op_count").sum(), pl.col("gpu_time_ns").sum())
    assert {path: (count, time) for path, count, time in grouped.rows()} == sums
    projections = layered.correlate().frame("nvtx_projections").collect()
    layers = projections.filter(pl.col("name") == "layer 3")
    assert layers["gpu_op_count"].to_list() == [11] * STEPS
    assert layers["gpu_time_ns"].sum() == sums["capture/layer 3"][1]


def test_groups_and_ops_are_layers(layered: tk.Trace, plain: tk.Trace, sums: Sums) -> None:
    ops = layered.rollup().frame("ops").filter(pl.col("gpu_time_ns") > 0).collect()
    names = ops["op_name"].cast(pl.String).str.strip_prefix("step */")
    direct = {path: time for path, (_, time) in sums.items() if path.endswith(PARTS)}
    assert names.sort().to_list() == sorted(direct)
    for name, time in zip(names, ops["gpu_time_ns"], strict=True):
        assert time <= direct[name]  # GPU time is that of a union
    groups = layered.rollup().frame("group_nodes").filter(pl.col("path") == "step */capture/").collect()
    assert groups["gpu_time_ns"].sum() == ops["gpu_time_ns"].sum()
    before, after = (trace.rollup().frame("ops").collect() for trace in (plain, layered))
    for column in ("gpu_time_ns", "api_time_ns", "cpu_time_ns"):
        assert before[column].sum() == after[column].sum()
    instances = layered.rollup().frame("kernels").drop_nulls("launch_ns").select("op_name", "iteration").collect()
    assert instances.group_by("op_name", "iteration").len()["len"].to_list() == [5] * STEPS * LAYERS * len(PARTS)


def test_reports_of_ranges_are_by_layer(layered: tk.Trace, plain: tk.Trace, sums: Sums) -> None:
    projected = layered.stats("nvtx_gpu_proj_sum")
    assert dict(projected.select("Range", "Range Instances").rows())[":layer 3"] == STEPS
    kernels = layered.stats("nvtx_kern_sum").filter(pl.col("NVTX Range") == ":layer 3")
    memsets = (
        layered.correlate().frame("memsets").filter(pl.col("capture_path").cast(pl.String).str.contains("layer 3"))
    )
    in_memsets = memsets.select(pl.col("end_ns") - pl.col("start_ns")).collect().sum().item()
    assert kernels["Total Time (ns)"].sum() == sums["capture/layer 3"][1] - in_memsets
    named = layered.stats("cuda_gpu_kern_sum", options={"nvtx-name": True})
    assert named["Name"].cast(pl.String).str.starts_with("attention/").sum() == 5
    for report in ("cuda_api_sum", "cuda_gpu_kern_sum", "cuda_kern_exec_sum"):
        assert layered.stats(report).equals(plain.stats(report))


def test_recipes_count_an_activity_once(layered: tk.Trace) -> None:
    rows = load_many(INSIDE).with_layers().recipe("nvtx_gpu_proj_trace")
    trace = rows["trace"] if isinstance(rows, dict) else rows
    assert trace.filter(pl.col("Text") == "layer 3").height == STEPS


def test_exports_show_layers(layered: tk.Trace, sums: Sums, tmp_path: Path) -> None:
    linked, name = layered.correlate(), "layer 3"
    count, time = sums[f"capture/{name}"]
    events = json.loads(linked.export(tmp_path / "out.json").read_text("utf-8"))["traceEvents"]
    slices = [e["args"] for e in events if e.get("name") == name]
    packets = decoded(linked.export(tmp_path / "out.pftrace").read_bytes())
    slices_of_perfetto = [p["args"] for p in packets if p.get("name") == name]
    for args in (slices, slices_of_perfetto):
        on_gpu = [a for a in args if "thread_id" in a]  # a projection names the thread of the range
        assert len(on_gpu) == STEPS
        assert (sum(a["gpu_op_count"] for a in on_gpu), sum(a["gpu_time_ns"] for a in on_gpu)) == (count, time)
        assert len(args) == len(on_gpu) + STEPS + 1
    database = sqlite3.connect(layered.export(tmp_path / "out.sqlite", format="dlprof-db"))
    names = {op_name for (op_name,) in database.execute("SELECT op_name FROM read_only_ops")}
    assert {f"step */capture/layer {i}/{part}" for i in range(LAYERS) for part in PARTS} <= names
    assert name in layered.export(tmp_path / "out.html").read_text("utf-8")


def test_steps_of_a_plan_can_be_in_any_order(layered: tk.Trace) -> None:
    with tk.load(INSIDE) as trace:
        other = trace.rollup().select(devices=[0]).with_layers().correlate()
        assert other.frame("ops").collect().equals(layered.rollup().frame("ops").collect())
        selected = trace.with_layers().correlate().select(tables=["nvtx_ranges"])
        assert selected.count("nvtx_ranges") == layered.count("nvtx_ranges")
        copy = pickle.loads(pickle.dumps(trace.with_layers(trace)))
        assert copy.with_layers().count("nvtx_ranges") == layered.count("nvtx_ranges")


@pytest.mark.parametrize("name", ["layers_eager", "layers_inside"])
def test_layers_can_come_from_a_second_capture(name: str, layered: tk.Trace, sums: Sums) -> None:
    with tk.load(INSIDE, layers=FIXTURES / "layers" / f"{name}.nsys-rep") as trace:
        linked = trace.correlate()
        for table in ("kernels", "memsets"):
            rows, own = (t.correlate().frame(table).collect() for t in (trace, layered))
            expected = own["capture_path"].cast(pl.String).str.strip_prefix("capture/")
            assert rows["capture_path"].cast(pl.String).to_list() == expected.to_list()
            assert rows["capture_confidence"].drop_nulls().min() > 0.9
            assert (rows["launch_ns"].is_not_null() == rows["capture_path"].is_not_null()).all()
        ranges = linked.frame("nvtx_ranges").drop_nulls("captured_range_id").collect()
        paths = ranges["path"].cast(pl.String).str.replace(r"^step \d/", "capture/")
        grouped = ranges.with_columns(path=paths).group_by("path").agg(pl.col("gpu_op_count", "gpu_time_ns").sum())
        assert {path: (count, time) for path, count, time in grouped.rows()} == {
            path: value for path, value in sums.items() if path != "capture"
        }
        ids = linked.frame("kernels").drop_nulls("capture_range_id").select("capture_range_id").collect()
        assert ids.to_series().is_in(ranges["range_id"].implode()).all()


def test_layers_come_from_a_recording_with_another_batch_size() -> None:
    """A U-Net that was captured before the window. The recorded steps have twice its batch size, and other tiles."""
    folder = FIXTURES / "layers"
    with tk.load(folder / "unet_before.nsys-rep", layers=folder / "unet_eager_twice.nsys-rep") as trace:
        kernels = trace.correlate().frame("kernels").sort("start_ns").collect()
    with tk.load(folder / "unet_inside.nsys-rep") as trace:
        truth = trace.correlate().frame("kernels").sort("start_ns").collect()
    truth = truth.filter(pl.col("graph_node_id").is_not_null())
    assert kernels["name"].to_list() == truth["name"].to_list()
    layers, known = (
        rows["capture_path"].cast(pl.String).str.replace(r"^(step \d|capture)/?", "") for rows in (kernels, truth)
    )
    is_layer = known != ""
    assert is_layer.sum() == 336
    assert layers.filter(is_layer).to_list() == known.filter(is_layer).to_list()
    assert layers.filter(~is_layer).drop_nulls().len() == 0
    assert kernels["capture_confidence"].filter(is_layer).min() > 0.95


def test_correlation_with_a_second_capture_does_not_wait_for_itself(tmp_path: Path) -> None:
    """Columns of layers are computed in a thread of polars while those of correlation are."""
    program = (
        "import sys, tracekit as tk\n"
        "with tk.load(sys.argv[1], layers=sys.argv[2]) as trace:\n"
        "    frame = trace.correlate().frame('kernels').select('range_name', 'capture_path').collect()\n"
        "    print(frame['capture_path'].null_count() < frame.height)\n"
    )
    command = [sys.executable, "-c", program, str(INSIDE), str(FIXTURES / "layers" / "layers_eager.nsys-rep")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "True\n"


def test_paths_of_many_levels_keep_the_innermost_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracekit.core.layered.MAX_LEVELS", 1)
    with tk.load(INSIDE, layers=FIXTURES / "layers" / "layers_eager.nsys-rep") as trace:
        paths = trace.frame("kernels").select("capture_path").collect().to_series().cast(pl.String)
    assert set(paths.drop_nulls()) == set(PARTS)


def test_a_capture_of_another_program_has_no_layers() -> None:
    with (
        tk.load(INSIDE, layers=FIXTURES / "train_amp.nsys-rep") as trace,
        pytest.warns(
            tk.TracekitWarning, match="the layers of 528 of 528 activities .* the second capture does not show"
        ),
    ):
        assert trace.frame("nvtx_ranges").select(pl.col("captured_range_id").count()).collect().item() == 0


def test_a_graph_that_was_captured_in_a_trace_of_pytorch() -> None:
    """Each of four replays runs the kernels of the modules in the order in which the program calls them."""
    blocks = [f"capture/layer {i}/{part}" for i in range(4) for part in PARTS for _ in range(5)]
    expected = ["capture/embedding", *blocks, *["capture/head"] * 2]
    with tk.load(FIXTURES / "layers" / "graph.pt.trace.json.gz", layers="capture") as trace:
        linked = trace.correlate()
        kernels = linked.frame("kernels").sort("start_ns").drop_nulls("capture_path").collect()
        assert kernels["capture_path"].cast(pl.String).str.extract(OUTER).to_list() == expected * 4
        steps = [f"ProfilerStep#{i}" for i in range(4) for _ in expected]
        assert kernels["range_path"].cast(pl.String).to_list() == steps
        assert kernels["capture_confidence"].min() > 0.8
        memsets = linked.frame("memsets").sort("start_ns").collect()
        assert memsets["capture_path"].cast(pl.String).str.extract(OUTER).to_list() == blocks[::10] * 4
        projected = dict(trace.stats("nvtx_gpu_proj_sum").select("Range", "Range Instances").rows())
        assert [projected[f"user_annotation:layer {i}"] for i in range(4)] == [4] * 4


def test_a_second_capture_without_kernels_or_ranges_is_named(tmp_path: Path) -> None:
    with tk.load(INSIDE) as trace, tk.load(FIXTURES / "layers" / "layers_eager.nsys-rep") as eager:
        eager.select(tables=["kernels", "api_calls"]).export(tmp_path / "eager", format="parquet")
        for path, missing in (
            (FIXTURES / "ncu" / "ncu_basic.ncu-rep", "kernels"),
            (tmp_path / "eager", "ranges around the launches of its kernels"),
        ):
            with pytest.warns(
                tk.TracekitWarning, match=f"{path.name}: this capture has no {missing}, so the layers of"
            ):
                notes = trace.with_layers(path).stats("layer_gpu_sum")["Note"]
            shown = (
                "not known: the second capture does not show it" if missing == "kernels" else "outside of all ranges"
            )
            assert notes.unique().to_list() == [shown]


@pytest.mark.parametrize("layers", [None, 5, "", b"x"])
def test_layers_must_name_a_capture(layers: object, plain: tk.Trace) -> None:
    with pytest.raises(UnknownFormatError, match="layers cannot be"):
        plain.with_layers(layers)
