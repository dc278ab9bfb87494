"""Ops of frameworks that keep their ranges in a domain of their own."""

from __future__ import annotations

import json
from collections import Counter

import polars as pl
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.frames import declared
from tests.conftest import FIXTURES, SHARED
from tracekit.core.ops import Ops, identity
from tracekit.core.ops.dialect import DialectTables

TENSORRT = SHARED / "corpus" / "nsys_pairs" / "LeiWang1999__memfusion_artifact" / "report1.sqlite"
CONV = "/layer1/layer1.0/conv1/Conv + /layer1/layer1.0/relu/Relu"


def captured(*ranges: tuple[str | None, str, int, int], kind: str = "push_pop", **more: list[object]) -> Ops:
    """Ops of ranges (domain, text, start, end) of one thread."""
    columns = ["range_id", "kind", "process_id", "thread_id", "domain_id", "domain", "name", "start_ns", "end_ns"]
    rows = [(i, kind, 1, 1, 0 if d is None else 1, d, text, s, e) for i, (d, text, s, e) in enumerate(ranges)]
    made = pl.DataFrame(rows, schema=columns, orient="row").with_columns(**{k: pl.Series(v) for k, v in more.items()})

    return Ops(declared(nvtx_ranges=made))


def said(ops: Ops, *columns: str) -> list[tuple[object, ...]]:
    return ops.instances.select(pl.col(columns).cast(pl.String)).rows()


def test_xla_scopes_directions_and_programs() -> None:
    ops = captured(
        (None, "step 0", 0, 100),
        ("TSL", "XlaModule:#hlo_module=jit_f,program_id=7#", 1, 90),
        ("TSL", "Thunk:#name=jit(f)/jvp(enc)/dense/dot_general,hlo_op=dot.3,unique_hlo_op_id=1#", 2, 10),
        ("TSL", "Thunk:#name=jit(f)/transpose(jvp(enc))/dense/a,b,hlo_op=fusion_1,unique_hlo_op_id=2#", 11, 20),
        ("TSL", "Thunk:#name=jit(f)/while/body,hlo_op=while.2#", 21, 60),
        ("TSL", "Thunk:#name=jit(f)/while/body/jit(inner)/add,hlo_op=add.1.0#", 22, 30),
        ("TSL", "Thunk:#hlo_op=copy,unique_hlo_op_id=9#", 31, 40),
        ("TSL", "Thunk:#name=jit(f)/jvp()/mul,unique_hlo_op_id=3#", 61, 70),
    )
    assert ops.dialect.name == "xla"
    assert said(ops, "op_name", "op_type", "direction", "parent") == [
        ("step 0", "step 0", None, None),
        ("step 0/jit_f", "jit_f", None, "0"),
        ("step 0/jit_f/enc/dense/dot_general/dot.3", "dot", "fprop", "1"),
        ("step 0/jit_f/enc/dense/a,b/fusion_1", "fusion", "bprop", "1"),
        ("step 0/jit_f/while/body/while.2", "while", None, "1"),
        ("step 0/jit_f/while/body/jit(inner)/add/add.1.0", "add", None, "4"),
        ("step 0/jit_f/copy", "copy", None, "4"),
        ("step 0/jit_f/mul", "mul", "fprop", "1"),
    ]


def test_functions_of_xla_and_python_are_neither_ops_nor_scopes() -> None:
    ops = captured(
        (None, "step 0", 0, 100),
        ("python_function", "a.py(3): f", 1, 99),
        ("TraceMe", "Execute", 2, 95),
        ("TSL", "XlaModule:#hlo_module=jit_f#", 3, 90),
        ("TraceMe", "Prepare", 4, 5),
        ("TSL", "Thunk:#name=jit(f)/mul,hlo_op=mul.1#", 6, 10),
    )
    assert said(ops, "op_name", "parent") == [("step 0", None), ("step 0/jit_f", "0"), ("step 0/jit_f/mul/mul.1", "1")]


def test_jax_capture_against_what_its_program_knows() -> None:
    truth = json.loads((FIXTURES / "ops" / "jax_scopes.json").read_text())
    with tk.load(FIXTURES / "ops" / "jax_scopes.nsys-rep") as trace:
        ops = Ops(trace.frame)
        assert ops.dialect.name == "xla"
        kernels = trace.count("kernels")
        attached = ops.calls.filter(pl.col("kind") == "kernel")
    assert attached.height == kernels
    named = ops.instances.select(pl.col("op_name", "op_type").cast(pl.String), "associated")
    assert named["associated"].all()
    assert {k: named.filter(pl.col("op_type") == k).height for k in truth["modules"]} == truth["modules"]
    paths = named["op_name"].str.strip_prefix("train */jit_train_step/").unique().to_list()
    assert [s for s in truth["scopes"] if not any(p.startswith(f"{s}/") for p in paths)] == []
    kind = named["op_type"].gather(attached["instance"])
    assert not set(kind) & {"train", "eval", "jit_train_step", "jit_eval_step"}
    assert Counter(ops.ops["direction"].cast(pl.String)) == {None: 25, "fprop": 6, "bprop": 2}


def test_tensorrt_layers() -> None:
    ops = captured(
        (None, "inference", 0, 100),
        ("TensorRT", "ExecutionContext::enqueue", 1, 90),
        ("TensorRT", "Reformatting CopyNode for Input Tensor 0 to /conv1/Conv + /relu/Relu", 2, 4),
        ("TensorRT", CONV, 5, 10),
        ("TensorRT", "PWN(/act/Sigmoid, /act/Mul)", 11, 12),
        ("TensorRT", "{ForeignNode[/head/norm/Sub.../head/fc/MatMul]}", 13, 14),
        ("TensorRT", "Conv_12 + Relu_13", 15, 16),
        ("TensorRT", "onnx::Conv_194_clone_1", 17, 18),
    )
    assert ops.dialect.name == "tensorrt"
    assert said(ops, "op_name", "op_type") == [
        ("inference", "inference"),
        ("inference/ExecutionContext::enqueue", "ExecutionContext::enqueue"),
        (
            "inference/ExecutionContext::enqueue/conv1/Reformatting CopyNode for Input Tensor 0 to Conv + Relu",
            "Reformat",
        ),
        ("inference/ExecutionContext::enqueue/layer1/layer1.0/conv1/Conv + Relu", "Conv"),
        ("inference/ExecutionContext::enqueue/act/PWN(Sigmoid, Mul)", "PWN"),
        ("inference/ExecutionContext::enqueue/head/norm/{ForeignNode[Sub ... MatMul]}", "ForeignNode"),
        ("inference/ExecutionContext::enqueue/Conv_12 + Relu_13", "Conv"),
        ("inference/ExecutionContext::enqueue/onnx::Conv_194_clone_1", "onnx::Conv"),
    ]


@pytest.mark.corpus
@pytest.mark.skipif(not TENSORRT.exists(), reason="no corpus beside the checkout")
def test_public_tensorrt_capture() -> None:
    with tk.load(TENSORRT) as trace:
        ops = Ops(trace.frame)
        assert ops.dialect.name == "tensorrt"
        assert ops.instances.height == trace.count("nvtx_ranges")
        owned = ops.instances["associated"].gather(ops.calls["instance"])
        assert ops.calls.filter(owned & (pl.col("kind") == "kernel")).height == trace.count("kernels")
    kinds = Counter(ops.instances["op_type"].cast(pl.String))
    assert (kinds["Conv"], kinds["MaxPool"], kinds["GlobalAveragePool"]) == (20, 1, 1)


def test_tensorflow_types_and_names() -> None:
    texts = ["Conv2D: conv1/Conv2D", "MatMul: MatMul", "my range", "AddV2: a/b: c"]
    ranges = [("tensorflow-core", t, 10 * i, 10 * i + 5) for i, t in enumerate(texts)]
    expected = [("conv1/Conv2D", "Conv2D"), ("MatMul", "MatMul"), ("my range", "CustomNVTX"), ("a/b: c", "AddV2")]
    ops = captured((None, "step 3", 0, 99), *ranges)
    assert ops.dialect.name == "tensorflow"
    assert said(ops, "op_name", "op_type") == [("step 3", "step 3"), *expected]
    assert ops.ops.sort("op_name")["op_id"].to_list()[:2] == ["MATMUL_1", "ADDV2_1"]


def test_tensorflow_ranges_across_threads_are_ops_too() -> None:
    pushed = captured(("tensorflow-core", "Conv2D: conv1/Conv2D", 0, 5))
    begun = captured(("tensorflow-core", "Conv2D: conv1/Conv2D", 0, 5), kind="start_end")
    columns = ["op_name", "op_type", "start_ns", "end_ns", "thread_id", "range_id", "parent"]
    named = Ops(begun.frames, "tensorflow")
    assert said(named, *columns) == said(pushed, *columns) == [("conv1/Conv2D", "Conv2D", "0", "5", "1", "0", None)]


def test_nccl_calls_with_what_they_moved() -> None:
    with tk.load(FIXTURES / "ddp2.nsys-rep") as trace:
        ops = Ops(trace.frame, "nccl")
        moved = ops.instances.filter(pl.col("op_type") == "NCCL")
        assert moved.height == 16
        assert {json.loads(p)["Reduction operation"] for p in moved["parameters"].cast(pl.String)} == {"Sum"}
        assert moved["op_name"].cast(pl.String).str.ends_with("NCCL/ncclAllReduce").all()
        names = trace.frame("kernels").select(pl.col("short_name").cast(pl.String)).collect().to_series()
        of_nccl = ops.instances["op_type"].cast(pl.String) == "NCCL"
        mine = ops.calls.filter(of_nccl.gather(ops.calls["instance"]))
        kernels = names.gather(mine.filter(pl.col("kind") == "kernel")["activity"])
        assert kernels.len() == names.str.starts_with("nccl").sum() > 0
        assert kernels.str.starts_with("nccl").all()


def test_nccl_alone_is_recognized() -> None:
    assert captured(("NCCL", "ncclAllReduce", 0, 5)).dialect.name == "nccl"
    assert captured(("NCCL", "ncclAllReduce", 1, 5), (None, "step", 0, 9)).dialect.name == "plain"
    assert captured().dialect.name == "plain"


@given(st.lists(st.tuples(st.sampled_from(["D", None]), st.integers(0, 2)), max_size=12))
def test_ops_hang_below_the_innermost_range_that_is_none(steps: list[tuple[str | None, int]]) -> None:
    """Against a walk with a stack: what each range is called, and how many ranges close before it."""
    stack: list[int] = []
    ranges: list[tuple[str | None, str, int, int]] = []
    paths: list[str] = []
    now = 0
    for domain, closing in steps:
        for _ in range(min(closing, len(stack))):
            now += 1
            row = stack.pop()
            ranges[row] = (*ranges[row][:3], now)
        now += 1
        text = f"{'op' if domain else 'range'}{chr(97 + len(ranges))}"
        holder = next((r for r in reversed(stack) if ranges[r][0] is None), None)
        paths.append(text if holder is None else f"{paths[holder]}/{text}")
        stack.append(len(ranges))
        ranges.append((domain, text, now, 0))
    for row in reversed(stack):
        now += 1
        ranges[row] = (*ranges[row][:3], now)
    capture = DialectTables(captured(*ranges).frames)
    texts = identity.read_domain_texts(capture, "D")
    parsed = texts.select("text", label="text", scope=pl.lit(None, pl.String), type="text")
    made = identity.build_domain_timeline(capture, "D", parsed).instances
    assert made["op_name"].cast(pl.String).to_list() == paths
