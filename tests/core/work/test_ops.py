"""The ops of captures: which kernels they own, and what their kernels say of the types in which they multiply."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import polars as pl
import pytest
import tracekit as tk
from tests.builders.frames import declared
from tests.conftest import FIXTURES
from tracekit.core.work import ops
from tracekit.core.work.arguments import parse_call
from tracekit.core.work.ops import OpWork, are_shapes_recorded, compute_op_work
from tracekit.errors import TracekitWarning

if TYPE_CHECKING:
    from collections.abc import Callable

    Range = tuple[str, int, int, list[object] | None]
    Kernel = tuple[str, int, int]

MM = [[4, 3], [3, 5]]
HALVES = ["c10::Half", "c10::Half"]


def payload(shapes: list[object], types: list[str] | None = None, values: list[str] | None = None) -> str:
    """Return the arguments of a range as PyTorch's profiler records them."""
    recorded = {"Input type": types, "Concrete Inputs": values, "Input Dims": shapes}
    return json.dumps({key: value for key, value in recorded.items() if value is not None})


def scene(ranges: list[tuple[str, int, int, str | None]], kernels: list[Kernel]) -> Callable[[str], pl.LazyFrame]:
    """Return a capture of one thread: ranges (name, start, end, payload) and kernels (name, launch, duration)."""
    rows = [(10 + i, "push_pop", 1, 1, s, e, 0, name, text) for i, (name, s, e, text) in enumerate(ranges)]
    columns = ["range_id", "kind", "process_id", "thread_id", "start_ns", "end_ns", "domain_id", "name", "payload_text"]
    types = {"payload_text": pl.String, "name": pl.String}
    calls = [(i, at, at + 1, 1, 1, i, "cudaLaunchKernel") for i, (_, at, _) in enumerate(kernels, 1)]
    ran = [(100 + i, at + 1, at + 1 + ns, 1, 0, i, name) for i, (name, at, ns) in enumerate(kernels, 1)]
    return declared(
        nvtx_ranges=pl.DataFrame(rows, columns, schema_overrides=types, orient="row"),
        api_calls=pl.DataFrame(
            calls,
            ["api_call_id", "start_ns", "end_ns", "process_id", "thread_id", "correlation_id", "name"],
            orient="row",
        ),
        kernels=pl.DataFrame(
            ran,
            ["kernel_id", "start_ns", "end_ns", "process_id", "device_id", "correlation_id", "name"],
            orient="row",
        ),
    )


def owners(work: OpWork) -> list[int | None]:
    return work.kernels["range_id"].to_list()


def test_a_kernel_belongs_to_the_innermost_op_with_known_work() -> None:
    linear, product = payload([[4, 3], [5, 3]], HALVES), payload(MM, HALVES)
    frames = scene(
        [
            ("step", 0, 100, None),
            ("aten::linear", 10, 50, linear),
            ("aten::mm", 20, 40, product),
            ("helper", 25, 30, None),
            ("aten::mm", 60, 70, payload([[4, 3], [9, 9]], HALVES)),
            ("aten::mm", 80, 90, None),
        ],
        [("half_gemm", 26, 7), ("splitK", 35, 2), ("copy", 45, 5), ("unfit", 65, 4), ("no shapes", 85, 1)],
    )
    work = compute_op_work(frames)
    assert owners(work) == [12, 12, None, None, None]
    assert (work.gpu_time_ns, work.covered_ns, work.left_out) == (19, 9, 0)
    assert work.covered_share == pytest.approx(9 / 19)
    assert work.ops.to_dicts() == [
        {
            "range_id": 12,
            "name": "aten::mm",
            "shapes": "[[4,3],[3,5]]",
            "types": '["c10::Half","c10::Half"]',
            "kind": "matrix_product",
            "type": "fp16",
            "flop": 120,
            "read_bytes": 54,
            "written_bytes": 40,
            "model_flop": None,
            "kernel_count": 2,
            "gpu_time_ns": 9,
        }
    ]


def test_an_outer_op_keeps_its_work_if_inner_ops_did_little_of_it() -> None:
    frames = scene(
        [
            ("aten::matmul", 0, 100, payload([[400, 300], [300, 500]], HALVES)),
            ("aten::mm", 10, 20, payload(MM, HALVES)),
        ],
        [("small", 15, 1), ("half", 50, 9)],
    )
    assert owners(compute_op_work(frames)) == [11, 10]


def test_an_op_of_unknown_operations_keeps_its_work_if_inner_ops_only_fill() -> None:
    shapes = [[1, 4, 2, 8]] * 4
    frames = scene(
        [
            (f"aten::_flash_attention_backward, sizes = {shapes}", 0, 100, None),
            ("aten::zero_, sizes = [[1, 4, 2, 8]]", 10, 20, None),
            ("triton_poi_fused_add_0", 30, 60, payload([[6], [6]], None)),
        ],
        [("fill", 15, 1), ("flash_bwd", 25, 9), ("triton", 40, 1)],
    )
    assert owners(compute_op_work(frames)) == [11, 10, 12]


def test_correlated_tables_determine_the_range_of_a_kernel() -> None:
    trace = tk.load(FIXTURES / "train_amp.nsys-rep")
    correlated = trace.correlate()
    plain, layered = (
        compute_op_work(lambda name, t=t: pl.DataFrame(pl.from_arrow(t[name])).lazy()) for t in (trace, correlated)
    )
    assert plain.ops.equals(layered.ops)
    assert plain.kernels.equals(layered.kernels)
    products = plain.ops.filter(name="aten::addmm")
    assert products["type"].unique().to_list() == ["fp16"]
    assert products["flop"].unique().to_list() == [2 * 256 * 8192 * 10 + 256 * 10]
    assert products["read_bytes"].unique().to_list() == [2 * (10 + 256 * 8192 + 8192 * 10)]


def test_each_replay_does_the_work_of_the_op_in_which_its_nodes_were_captured() -> None:
    plain = scene(
        [("aten::mm", 0, 10, payload(MM, HALVES)), ("step", 20, 90, None)],
        [("half", t, 3) for t in (30, 30, 60, 60, 80)],
    )
    kernels = plain("kernels").with_columns(
        correlation_id=pl.Series([7, 7, 8, 8, 9]),
        range_id=pl.lit(11, pl.Int64),
        capture_range_id=pl.Series([10, 10, 10, 10, None]),
    )
    ranges = plain("nvtx_ranges").with_columns(parent_id=pl.lit(None, pl.Int64))
    tables = {"kernels": kernels, "nvtx_ranges": ranges}
    work = compute_op_work(lambda name: tables.get(name, plain(name)))
    assert owners(work) == [10, 10, -1, -1, None]
    assert work.ops.select("range_id", "flop", "kernel_count", "gpu_time_ns").rows() == [
        (10, 120, 2, 6),
        (-1, 120, 2, 6),
    ]


@pytest.mark.parametrize(
    ("types", "kernel", "kind"),
    [
        (["float"] * 2, "ampere_sgemm_128x64_tn", "fp32"),
        (["float"] * 2, "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize1x1x1_cublas", "tf32"),
        (["float"] * 2, "_fused_attention_matmul_kernel", None),
        (["c10::BFloat16"] * 2, "nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopB_TNT", "bf16"),
        (None, "nvjet_sm90_hsh_128x256_64x4_1x2_h_bz_coopB_TNT", "fp16"),
        (None, "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_tn", "fp16"),
        (None, "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_tn", "bf16"),
        (None, "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize1x1x1_cublas", "tf32"),
        (None, "ampere_sgemm_128x64_tn", "fp32"),
        (None, "gemm_of_nothing_in_particular", None),
    ],
)
def test_types_of_products(types: list[str] | None, kernel: str, kind: str | None) -> None:
    frames = scene([("aten::mm", 0, 10, payload(MM, types))], [(kernel, 5, 1)])
    work = compute_op_work(frames).ops
    assert work["type"].to_list() == [kind]
    assert work["flop"].to_list() == [120]
    sizes = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
    if types is None:
        assert work["read_bytes"].to_list() == [27 * sizes[kind] if kind else None]


@pytest.mark.parametrize(
    ("op", "shapes", "types", "kernel", "moved"),
    [
        ("aten::add", [[4, 6], [4, 6]], None, "vectorized_elementwise_kernel<4, CUDAFunctor_add<c10::Half>>", 144),
        ("aten::add", [[4, 6], [4, 6]], None, "elementwise_kernel<CUDAFunctor_add<float>, LoadWithCast<2>>", None),
        ("aten::copy_", [[4, 6], [4, 6]], None, "vectorized_elementwise_kernel<4, copy<float>>", None),
        ("aten::cat", [[[4, 6], [4, 6]], []], ["TensorList", ""], "CatArrayBatchedCopy<OpaqueType<2u>, 3>", 192),
        ("aten::_foreach_add_", [[[6]], [[6]]], ["TensorList"] * 2, "multi_tensor_apply<AddFunctor<float, 1>>", 72),
    ],
)
def test_bytes_of_types_that_kernels_state(
    op: str, shapes: list[object], types: list[str] | None, kernel: str, moved: int | None
) -> None:
    work = compute_op_work(scene([(op, 0, 10, payload(shapes, types))], [(kernel, 5, 1)])).ops
    assert (work["read_bytes"] + work["written_bytes"]).to_list() == [moved]


@pytest.mark.parametrize(
    ("kernel", "flop"),
    [
        ("flash_fwd_kernel<Flash_fwd_kernel_traits<64, Flash_kernel_traits<64, half> >, {}, false, false>", 2),
        ("flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<64, Flash_kernel_traits<64, half>>, (bool){}, (bool)0>", 2),
        ("flash_fwd_kernel<Flash_fwd_kernel_traits<64, Flash_kernel_traits<64, half>>, (bool)0, (bool){}, (bool)0>", 2),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_{}", None),
    ],
)
def test_masks_that_kernels_state(kernel: str, flop: int | None) -> None:
    shape = [1, 2, 4, 8]
    op = f"aten::_scaled_dot_product_flash_attention, seq = 1, sizes = {[shape] * 3}"
    computed = [compute_op_work(scene([(op, 0, 10, None)], [(kernel.format(bit), 5, 1)])).ops for bit in (0, 1)]
    whole = 2 * 2 * 4 * 4 * (8 + 8)
    for work, part in zip(computed, (1, 2 if "false, false" not in kernel else 1), strict=True):
        assert work["flop"].to_list() == [None if flop is None else whole // part]
        assert work["written_bytes"].to_list() == [None if flop is None else 2 * 2 * 4 * 8]


def test_results_of_convolutions_whose_gradients_tell_them() -> None:
    image, weight, result = [2, 4, 5, 5], [6, 4, 3, 3], [2, 6, 3, 3]
    names = [
        f"aten::cudnn_convolution, sizes = {[image, weight, [], []]}",
        f"aten::conv2d, sizes = {[image, [6, 4, 2, 2]]}",
        f"aten::conv2d, sizes = {[image]}",
        f"aten::convolution_backward, sizes = {[result, image, weight]}",
        f"aten::convolution_backward, sizes = {[[2, 6, 2, 2], image, [6, 4, 2, 2]]}",
        f"aten::convolution_backward, sizes = {[[2, 6, 4, 4], image, [6, 4, 2, 2]]}",
        "aten::convolution_backward, sizes = []",
    ]
    ranges = [(name, 10 * i, 10 * i + 9, None) for i, name in enumerate(names)]
    work = compute_op_work(scene(ranges, [("sm80_xmma_bf16bf16", 10 * i + 5, 1) for i in range(len(names))]))
    assert owners(work) == [10, None, None, 13, 14, 15, None]
    forward, backward = (work.ops.row(i, named=True) for i in (0, 1))
    flop = 2 * 2 * 6 * 9 * 4 * 9
    assert (forward["flop"], forward["type"], backward["flop"]) == (flop, "bf16", 2 * flop)
    assert (forward["read_bytes"], forward["written_bytes"]) == (2 * (200 + 216), 2 * 108)


def test_messages_of_collective_operations() -> None:
    message = {
        "Collective name": "allreduce",
        "dtype": "Half",
        "In msg nelems": 10,
        "Out msg nelems": 20,
        "Group size": 2,
    }
    text = json.dumps({"Input Dims": [[10], []], "Input type": ["float", ""], **message})
    work = compute_op_work(scene([("record_param_comms", 0, 10, text)], [("ncclDevKernel_AllReduce", 5, 1)])).ops
    assert work.select("kind", "read_bytes", "written_bytes").rows() == [("collective", 20, 40)]


def test_kernels_that_contradict_one_another_state_no_type() -> None:
    frames = scene([("aten::mm", 0, 10, payload(MM))], [("hgemm", 5, 1), ("bf16_gemm", 6, 1)])
    assert compute_op_work(frames).ops["type"].to_list() == [None]


def test_names_of_emit_nvtx_and_pyprof() -> None:
    marker = {
        "mod": "torch",
        "op": "mm",
        "args": [
            {"name": "", "type": "tensor", "shape": (4, 3), "dtype": "float16"},
            {"name": "", "type": "tensor", "shape": (3, 5), "dtype": "float16"},
            {"name": "x", "type": "int", "value": 3},
            {"name": "out", "type": "NoneType", "value": None},
        ],
    }
    frames = scene(
        [
            ("aten::mm, seq = 7, op_id = 3, sizes = [[4, 3], [3, 5]]", 0, 10, None),
            ("mm, seq = 7, sizes = [[4, 3], [3, 5]]", 20, 30, None),
            (str(marker), 40, 50, None),
            ("mm", 60, 70, None),
        ],
        [("half", 5, 1), ("half", 25, 1), ("x", 45, 1), ("x", 65, 1)],
    )
    work = compute_op_work(frames)
    assert owners(work) == [10, 11, 12, None]
    assert work.ops.select("name", "flop", "type").unique().to_dicts() == [
        {"name": "aten::mm", "flop": 120, "type": "fp16"}
    ]


def test_signatures_beyond_the_bound_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "MAX_SIGNATURES", 2)
    monkeypatch.setattr(ops, "_BATCH_ROWS", 3)
    ranges = [("aten::mm", 10 * i, 10 * i + 9, payload([[n, 3], [3, 5]])) for i, n in enumerate([1, 2, 1, 3, 2, 4])]
    ranges += [("other", 1000 + i, 1001 + i, None) for i in range(5)]
    with pytest.warns(TracekitWarning, match=r"the work of 2 ops is unknown, because .* more than 2 distinct combina"):
        work = compute_op_work(scene(ranges, [("k", 10 * i + 5, 1) for i in range(6)]))
    assert owners(work) == [10, 11, 12, None, 14, None]
    assert work.left_out == 2


def test_captures_without_kernels_or_ranges() -> None:
    nothing = compute_op_work(declared())
    assert (nothing.covered_share, nothing.ops.height, nothing.kernels.height) == (None, 0, 0)
    kernels = compute_op_work(scene([], [("k", 5, 3)]))
    assert (kernels.covered_share, owners(kernels)) == (0, [None])


@pytest.mark.parametrize(
    "shapes",
    [None, "", "[", "{}", "7", "[" * 5000, "[[1.5]]", "[[true]]", '[["a"]]', "[[[[1]]]]", f"[[{10**30}]]", "[7]"],
)
def test_shapes_that_are_none(shapes: str | None) -> None:
    assert parse_call("aten::mm", shapes) is None


def test_calls() -> None:
    call = parse_call(
        "x", "[[2, 3], [], [[1], [2, 2]]]", '["float", "Scalar", 7]', "[[3, 1], [], []]", '["", "[1, x]"]'
    )
    assert call is not None
    assert call.shapes == ((2, 3), (), ((1,), (2, 2)))
    assert call.types == ("float", "Scalar", "")
    assert call.strides == ((3, 1), (), ())
    assert call.list_integers(1) is None


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("ops/emit_nvtx.nsys-rep", True),
        ("steps/gpt.pt.trace.json.gz", True),
        ("xplane/train.xplane.pb", True),
        ("ddp2.sqlite", False),
        ("empty.sqlite", False),
    ],
)
def test_recorded_shapes_are_noticed_without_computing_work(name: str, *, known: bool) -> None:
    with tk.load(FIXTURES / name) as trace:
        assert are_shapes_recorded(trace.frame) is known
        assert bool(compute_op_work(trace.frame).ops.height) is known
