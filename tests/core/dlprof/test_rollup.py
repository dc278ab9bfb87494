"""Corners of the roll-up that captures do not have."""

from __future__ import annotations

from typing import Literal

import polars as pl
import pytest
import tracekit as tk
from tests.conftest import FIXTURES
from tracekit.core import tensor_cores
from tracekit.core.dlprof.model import round_to_six_decimals
from tracekit.core.ops.shapes import infer_formats_and_output_shape, infer_formats_and_output_shapes
from tracekit.core.reports.dlprof import format_shapes
from tracekit.core.rollup import Rollup
from tracekit.core.trees import MAX_LEVELS, Tree


def groups_of(names: list[str]) -> list[list[str]]:
    """Paths of the groups that each op lies in, the whole model first, as DLProf reads them from names."""
    tree, nodes = Tree.create_with_root().add_names(pl.Series([0] * len(names)), pl.Series(names))
    paths, found = tree.build_paths(), []
    for node in nodes:
        found.append([])
        while (node := tree.nodes["up"][node]) is not None:
            found[-1].insert(0, f"{paths[node]}/" if node else "")
    return found


def test_groups_are_the_prefixes_that_end_in_a_slash() -> None:
    assert groups_of(["/a/b", "c", ""]) == [["", "/", "/a/"], [""], [""]]


def test_groups_are_not_endlessly_deep() -> None:
    (found,) = groups_of(["/" * 100_000])
    assert len(found) == MAX_LEVELS


def test_averages_are_rounded_as_python_does() -> None:
    values = [1 / 3, 0.0000005, 1e10 + 1e-6, 2.5e-6, 0.0]
    assert round_to_six_decimals(pl.Series(values)).to_list() == [round(v, 6) for v in values]


def test_shapes_are_printed_with_the_names_of_their_dimensions() -> None:
    formats = pl.Series(["N,C,H,W;K,C,R,S", "N,C,H,W;K,C,R,S", "", ""])
    shapes = pl.Series(["[[32,3,32,32],[6,3,3,3],[6]]", "[[3,32,32],null]", "[[2,1]]", None])
    assert format_shapes(formats, shapes).to_list() == [
        "<N:32, C:3, H:32, W:32>; <K:6, C:3, R:3, S:3>; <6>",
        "<3, 32, 32>; <>",
        "<2, 1>",
        "",
    ]


def test_the_result_of_a_convolution_follows_from_its_arguments() -> None:
    stride = {"data_type": "int", "name": "stride", "value": [2, 1]}
    padding = {"data_type": "int", "name": "padding", "value": [1]}
    image, kernel = [8, 3, 32, 32], [6, 3, 5, 5]
    assert infer_formats_and_output_shape("conv2d", [image, kernel], [])[1] == [8, 6, 28, 28]
    assert infer_formats_and_output_shape("conv2d", [image, kernel], [stride, padding])[1] == [8, 6, 15, 28]
    assert infer_formats_and_output_shape("conv2d", [image], [stride])[1] is None
    assert infer_formats_and_output_shape("linear", [[2, 7, 8], [5, 8]], [])[1] == [2, 7, 5]
    assert infer_formats_and_output_shape("matmul", [[4, 8], [3, 8, 5]], [])[1] == [3, 4, 5]
    assert infer_formats_and_output_shape("matmul", [[4], [4]], [])[1] == [1]
    assert infer_formats_and_output_shape("matmul", [[4, 8]], [])[1] is None
    assert infer_formats_and_output_shape("mm", [[4, 8], [8, 5]], [])[1] == [4, 5]
    assert infer_formats_and_output_shape("mm", [[4, 8]], []) == (
        infer_formats_and_output_shape("mm", [[4, 8], [8, 5]], [])[0],
        None,
    )
    assert infer_formats_and_output_shape("mm", [[4], []], []) == (("", "", ""), None)
    assert infer_formats_and_output_shape("linear", [[2, 7, 8]], [])[1] is None
    assert infer_formats_and_output_shape("relu", [[4]], []) == (("", "", ""), None)


def test_arguments_that_are_no_json_have_no_shape() -> None:
    assert format_shapes(pl.Series(["N", "N"]), pl.Series(["{", "[" * 100_000])).to_list() == ["", ""]
    assert infer_formats_and_output_shape("conv2d", [], [{"name": "stride", "value": [2]}])[1] is None


def test_arguments_that_are_no_json_say_nothing() -> None:
    types = dict.fromkeys(("op_type", "input_shapes", "parameters"), pl.Categorical())
    asked = pl.DataFrame([("relu", "{", "[" * 100_000)], schema=types, orient="row")
    assert infer_formats_and_output_shapes(asked).row(0)[-4:] == ("", "", "", None)


def test_a_whole_cuda_graph_is_work_of_the_gpu() -> None:
    """As nsys records graphs by default: one event per launch, which stands for kernels."""
    with tk.load(FIXTURES / "jax_mlp.nsys-rep") as trace:
        rolled = trace.rollup()
        graphs = trace.frame("graph_launches").select("start_ns", "end_ns").collect()
        spent = rolled.frame("iterations").select(pl.col("in_other_kernels_ns", "in_memory_ops_ns").sum()).collect()
        model = rolled._view.model("dlprof")
    ran = sum(end - start for start, end in graphs.rows())
    assert spent.row(0) == (ran, 0)
    assert model["model_summary"]["gpu_utilization"][0] > 0
    assert "GPUs without any activity: 0 1" not in model["expert_systems_feedback"]["problem"]


@pytest.mark.parametrize("capture", ["train_amp.nsys-rep", "gpu_metrics.nsys-rep", "ops/emit_nvtx.nsys-rep"])
def test_each_kernel_keeps_its_own_name_and_use_of_tensor_cores(capture: str) -> None:
    """DLProf has one object per short name in an op, which has the name of one of its launches."""
    with tk.load(FIXTURES / capture) as trace:
        names = trace.frame("kernels").select(pl.col("name").cast(str)).collect()["name"]
        own, shared = (_kernels(trace, mode) for mode in ("extended", "dlprof"))
    told = own["long_name"].cast(str)
    assert told.to_list() == names.gather(own["activity"]).to_list()
    uses = told.to_frame("n").select(tensor_cores.uses_tensor_cores_expr(pl.col("n"))).to_series()
    assert own["uses_tc"].to_list() == uses.to_list()
    assert shared.group_by("op", "name").agg(pl.col("long_name", "uses_tc").n_unique().eq(1)).select(
        pl.col("long_name", "uses_tc").all()
    ).row(0) == (True, True)


def test_kernels_that_use_tensor_cores_are_those_whose_names_say_so() -> None:
    with tk.load(FIXTURES / "train_amp.nsys-rep") as trace:
        counts = trace.rollup().frame("iterations").select(pl.col("tensor_core_kernel_count").sum()).collect()
    assert counts.item() == 28


def _kernels(trace: tk.Trace, mode: Literal["extended", "dlprof"]) -> pl.DataFrame:
    calls = Rollup.from_frames(trace.frame, tensor_cores=mode).measures.calls
    return calls.filter(pl.col("kind") == "kernel")
