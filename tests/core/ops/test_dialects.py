"""What dialects make of ranges."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import tracekit as tk
from tests.builders.frames import declared, launches, nvtx
from tracekit.core.ops import DIALECTS, Ops, emit_nvtx, find_dialect
from tracekit.core.ops.dialect import INSTANCE, build_op_tree_and_paths
from tracekit.errors import TracekitWarning, UnknownFormatError

FIXTURES = Path(__file__).parents[3] / "fixtures"
CONVOLUTION = (
    "{'mod': 'torch.nn.functional', 'op': 'conv2d', 'args': ["
    "{'name': '', 'type': 'tensor', 'shape': (8, 3, 32, 32), 'dtype': 'float16'}, "
    "{'name': '', 'type': 'tensor', 'shape': (6, 3, 5, 5), 'dtype': 'float16'}, "
    "{'name': 'stride', 'type': 'tuple', 'value': (2, 1), 'dtype': 'int'}]}"
)
PLACE = "{'traceMarker': ['a.py:3', 'b.py:7'], 'funcStack': '/<module>/Net::forward/conv2d(2)'}"


def captured(*ranges: tuple[str, int, int, int], calls: list[tuple[int, int, int]] | None = None) -> Ops:
    """Ops of ranges (text, thread, start, end) and kernel launches (thread, start, end) in one process."""
    return Ops(declared(nvtx_ranges=nvtx(*ranges), **launches(*((*call, 0) for call in calls or []))))


def rows(frame: pl.DataFrame, *columns: str) -> list[tuple]:
    return frame.select(pl.col(columns).cast(pl.String) if len(columns) > 1 else pl.col(columns)).rows()


def test_a_dialect_has_one_name_and_the_last_takes_everything() -> None:
    assert all(name == d.name for name, d in DIALECTS.items())
    assert list(DIALECTS)[-1] == "plain"
    with pytest.raises(UnknownFormatError, match="unknown dialect 'x'"):
        find_dialect("x")


@pytest.mark.parametrize(
    ("capture", "name"),
    [("train_amp", "emit-nvtx"), ("ddp2", "emit-nvtx"), ("graph_node", "plain"), ("nvtx_features", "plain")],
)
def test_fixtures_are_recognized_and_no_kernel_is_lost(capture: str, name: str) -> None:
    with tk.load(FIXTURES / f"{capture}.sqlite") as trace:
        ops = Ops(trace.frame)
        assert ops.dialect.name == name
        assert ops.dialect.timeline(ops.capture).instances.schema == pl.Schema(INSTANCE)
        kernels = ops.calls.filter(pl.col("kind") == "kernel")
        called = trace.correlate().frame("kernels").filter(pl.col("api_call_id").is_not_null()).collect()
        assert kernels.height == called.height > 0
        assert sorted(kernels["activity"].to_list()) == sorted(set(kernels["activity"].to_list()))
        assert ops.instances.height == ops.ops["instance_count"].sum()
        assert ops.ops["op_id"].is_unique().all()


def test_steps_of_a_loop_are_one_op_and_layers_are_many() -> None:
    parent = pl.Series([None, 0, 1, None, None, None, 5], dtype=pl.Int64)
    names = ["Batch 0", "step=3", "layer 1", "layer1", "x 1 y", "Batch 1", "step=4"]
    _, made = build_op_tree_and_paths(
        parent, pl.Series(names, dtype=pl.Categorical), pl.DataFrame({"thread_id": [1] * len(names)})
    )
    assert made["label"].to_list() == ["Batch *", "step *", "layer 1", "layer1", "x 1 y", "Batch *", "step *"]
    assert made["path"].cast(pl.String).to_list()[2] == "Batch */step */layer 1"


def test_a_number_that_is_there_once_counts_no_steps() -> None:
    parent = pl.Series([None, 0, 0, None, None], dtype=pl.Int64)
    texts = pl.Series(["epoch 0", "step 1", "step 2", "GPU 0", "GPU 0"], dtype=pl.Categorical)
    _, made = build_op_tree_and_paths(parent, texts, pl.DataFrame({"thread_id": [1] * len(texts)}))
    assert made["path"].cast(pl.String).to_list() == ["epoch 0", "epoch 0/step *", "epoch 0/step *", "GPU 0", "GPU 0"]


def test_plain_ranges_nest_and_kernels_belong_to_the_innermost() -> None:
    ops = captured(("a", 1, 0, 100), ("b", 1, 10, 50), calls=[(1, 20, 30), (1, 60, 70), (1, 200, 210)])
    assert rows(ops.ops, "op_id", "op_name") == [
        ("A_1", "a"),
        ("B_1", "a/b"),
        ("K_1", "unassociated_k"),
    ]
    assert ops.instances["parent"].to_list() == [None, 0, None]
    assert ops.calls["instance"].to_list() == [1, 0, 2]


def test_a_marker_says_op_arguments_and_place() -> None:
    ops = captured((PLACE, 1, 0, 90), (CONVOLUTION, 1, 10, 80), (CONVOLUTION, 1, 20, 30), calls=[(1, 40, 50)])
    assert ops.dialect.name == "pyprof"
    assert ops.ops.select("op_id", "op_name", "op_type", "direction", "data_type", "stack_trace").rows() == [
        ("CONV2D_1", "/module/Net::forward/conv2d[2]", "conv2d", "fprop", "float16", "a.py:3\nb.py:7")
    ]
    assert ops.instances["input_shapes"].to_list() == ["[[8,3,32,32],[6,3,5,5]]"]
    assert ops.instances["parameters"].to_list() == ['[{"data_type":"int","name":"stride","value":[2,1]}]']


def test_a_backward_pass_is_found_by_its_number_on_another_thread() -> None:
    backward = CONVOLUTION.replace("conv2d", "backward")
    ops = captured(
        (CONVOLUTION, 1, 0, 10),
        ("aten::conv2d, seq = 7", 1, 1, 9),
        (backward, 1, 20, 60),
        ("ConvolutionBackward0, seq = 7", 2, 30, 40),
        calls=[(1, 2, 3), (2, 31, 33), (2, 45, 46)],
    )
    assert rows(ops.ops, "op_id", "direction") == [
        ("BACKWARD_1_BPROP", "bprop"),
        ("CONV2D_1", "fprop"),
        ("CONV2D_1_BPROP", "bprop"),
    ]
    owners = ops.instances["op"].gather(ops.calls["instance"])
    assert ops.ops["op_id"].gather(owners).to_list() == ["CONV2D_1", "CONV2D_1_BPROP", "BACKWARD_1_BPROP"]


def test_a_loop_with_a_backward_op_folds() -> None:
    step = [(CONVOLUTION, 0), (CONVOLUTION, 20), (CONVOLUTION.replace("conv2d", "backward"), 40)]
    ops = captured(*[(text, 1, at + 100 * k, at + 100 * k + 10) for k in range(3) for text, at in step])
    assert ops.ops.select("op_id", "instance_count").rows() == [
        ("BACKWARD_1_BPROP", 3),
        ("CONV2D_1", 3),
        ("CONV2D_2", 3),
    ]
    assert ops.instances["index"].to_list() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize(
    "text", ["{'mod': open('x'), 'op': 'y'}", "{'mod': 'op'", "['mod', 'op']", "'mod'" + "[" * 9999]
)
def test_markers_are_never_evaluated(text: str) -> None:
    with pytest.warns(TracekitWarning, match="1 of 2 distinct PyProf markers cannot be parsed"):
        found = emit_nvtx.parse_op_markers(pl.Series([text, CONVOLUTION]))
    assert found["op"].to_list() == ["conv2d"]


def test_a_name_that_is_no_op_of_the_framework_is_a_scope() -> None:
    ops = captured(
        ("forward, op_id = 1", 1, 0, 100),
        ("aten::linear, seq = 3, op_id = 2", 1, 5, 20),
        ("mylib::fused, seq = 4, op_id = 3", 1, 30, 40),
        ("Net::encode, op_id = 4", 1, 50, 90),
        ("aten::relu, seq = 5, op_id = 5", 1, 55, 60),
        ("ReluBackward0, seq = 5, op_id = 6", 1, 110, 120),
        calls=[(1, 7, 8), (1, 32, 33), (1, 56, 57), (1, 70, 71), (1, 112, 113)],
    )
    owners = ops.ops["op_name"].cast(pl.String).gather(ops.instances["op"].gather(ops.calls["instance"]))
    relu = "forward/Net::encode/aten::relu"
    assert owners.to_list() == ["forward/aten::linear", "forward/mylib::fused", relu, "forward/Net::encode", relu]
    scopes = ops.ops.filter(pl.col("op_name").cast(pl.String).is_in(["forward", "forward/Net::encode"]))
    assert scopes["direction"].to_list() == [None, None]


def test_a_scope_of_the_profiler_leaves_its_kernels_to_their_ops() -> None:
    with tk.load(FIXTURES / "ops" / "kineto_nsys.nsys-rep") as trace:
        ops = trace.rollup().frame("ops").select("op_type", "kernel_count").collect()
    assert ops["kernel_count"].sum() == 308
    assert ops.filter(pl.col("op_type").cast(pl.String) == "forward")["kernel_count"].to_list() == [0]
    assert ops["kernel_count"].max() == 88


def test_names_within_an_op_are_part_of_it() -> None:
    ops = captured(
        ("aten::detach, op_id = 1", 1, 0, 50),
        ("detach, op_id = 2", 1, 5, 40),
        ("record, op_id = 3", 1, 6, 30),
        ("aten::alias, op_id = 4", 1, 7, 20),
        calls=[(1, 8, 9)],
    )
    assert rows(ops.ops, "op_id", "op_name") == [("DETACH_1", "aten::detach")]


def test_names_of_ops_before_they_were_qualified() -> None:
    ops = captured(("conv2d, seq = 3", 1, 0, 50), ("contiguous, seq = 4", 1, 5, 9), calls=[(1, 6, 7)])
    assert rows(ops.ops, "op_id", "op_name", "direction") == [("CONV2D_1", "conv2d", "fprop")]


def test_what_an_optimizer_runs_is_neither_forward_nor_backward() -> None:
    ops = captured(
        ("aten::mul, seq = 1, op_id = 1", 1, 0, 10),
        ("Optimizer.step#SGD.step, op_id = 2", 1, 20, 60),
        ("aten::mul, op_id = 3", 1, 25, 30),
        ("aten::_fused_sgd_, op_id = 4", 1, 70, 80),
    )
    scope = "Optimizer.step#SGD.step"
    assert rows(ops.ops, "op_name", "direction") == [
        (scope, None),
        (f"{scope}/aten::mul", None),
        ("aten::_fused_sgd_", None),
        ("aten::mul", "fprop"),
    ]


def test_ranges_of_emit_nvtx() -> None:
    ops = captured(
        ("Batch 0", 1, 0, 50),
        ("aten::linear, seq = 3, op_id = 1, sizes = [[8, 16], [4, 16]]", 1, 5, 20),
        ("aten::addmm, seq = 4, op_id = 2", 1, 6, 12),
        ("autograd::engine::evaluate_function: AddmmBackward0, seq = 4, op_id = 9", 2, 60, 70),
        ("AddmmBackward0, seq = 4, op_id = 10", 2, 61, 69),
        calls=[(1, 7, 8), (2, 62, 63)],
    )
    assert ops.dialect.name == "emit-nvtx"
    assert rows(ops.ops, "op_id", "op_name", "direction") == [
        ("BATCH 0_1", "Batch 0", None),
        ("LINEAR_1", "Batch 0/aten::linear", "fprop"),
        ("LINEAR_1_BPROP", "Batch 0/aten::linear", "bprop"),
    ]
    assert ops.instances["input_shapes"].to_list() == [None, "[[8,16],[4,16]]", None]
    assert ops.ops["op_id"].gather(ops.instances["op"].gather(ops.calls["instance"])).to_list() == [
        "LINEAR_1",
        "LINEAR_1_BPROP",
    ]


@pytest.mark.parametrize(
    ("arguments", "shapes"),
    [
        (", seq = 1, op_id = 2, sizes = [[2, 3], []], input_op_ids = [(1,0), (0,-1)]", "[[2,3],[]]"),
        (", sizes = [[2, 3]]", "[[2,3]]"),
        (", input_op_ids = [(1,0)], sizes = [[5]]", "[[5]]"),
        (", sizes = [[5]], seq = 1", "[[5]]"),
        (", sizes = [x]", None),
        (", sizes = [[5", None),
        (", op_id = 3", None),
        ("", None),
    ],
)
def test_input_shapes_of_emit_nvtx(arguments: str, shapes: str | None) -> None:
    ops = captured(("aten::mm" + arguments, 1, 0, 9), ("aten::mm", 1, 10, 19))
    assert ops.instances["input_shapes"].to_list() == [shapes, None]
    assert ops.ops["op_name"].to_list() == ["aten::mm"]
