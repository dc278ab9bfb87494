"""Causes in kernels."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from tests.builders.programs import GEMM, HALF_GEMM, LAUNCH, MS, US, Program, find_cure, steps
from tracekit.core.diagnosis.causes import kernels
from tracekit.core.work.peaks import get_default_peaks

ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
ADDCDIV = "void at::native::elementwise_kernel<128, 4, addcdiv_cuda_kernel>"
SOFTMAX = "void softmax_warp_forward<float, float, float, 9, false, false>"
LAYOUT = "void cudnn::ops::nchwToNhwcKernel<__half, __half, float>"
NORM = "void at::native::batch_norm_collect_statistics_kernel<float>"


def run(body: Callable[[Program], object], count: int = 4) -> Program:
    """Run steps that consist of kernels."""
    program = Program()
    return steps(program, count, lambda _: body(program))


def launch(program: Program, *names: str, ns: int = 50 * US, **row: int) -> None:
    for name in names:
        program.launch(name, ns, **row)


@pytest.mark.parametrize(("count", "is_cause"), [(61, True), (60, False)])
def test_optimizer_in_a_range(count: int, is_cause: bool) -> None:
    def body(program: Program) -> None:
        launch(program, HALF_GEMM)
        start = program.now
        launch(program, *[ADD] * count, ns=5 * US)
        program.range("Optimizer.step#SGD.step", start, program.now)

    program = run(body)
    assert ("unfused_optimizer" in program.causes()) == is_cause
    if is_cause:
        cure = find_cure(program, "unfused_optimizer")
        assert cure.place == "optimizer"
        assert len(cure.operation_rows) == 4 * count
        assert cure.evidence.startswith(f"the optimizer launches {count} small kernels per step, which take 305 µs")


@pytest.mark.parametrize(("count", "is_cause"), [(31, True), (30, False)])
def test_optimizer_by_the_names_of_kernels(count: int, is_cause: bool) -> None:
    """All small kernels from the first to the last of these kernels belong to the optimizer."""

    def body(program: Program) -> None:
        launch(program, HALF_GEMM, ADD)
        launch(program, *[ADDCDIV, ADD] * count, ns=5 * US)
        launch(program, HALF_GEMM)

    program = run(body)
    assert ("unfused_optimizer" in program.causes()) == is_cause
    if is_cause:
        assert len(find_cure(program, "unfused_optimizer").operation_rows) == 4 * (2 * count - 1)


def test_attention() -> None:
    program = run(lambda p: launch(p, HALF_GEMM, HALF_GEMM, ADD, SOFTMAX, ADD, HALF_GEMM, ADD))
    cure = find_cure(program, "unfused_attention")
    names = program.model().names.cast(str).gather(cure.operation_rows).to_list()
    assert sorted(names) == sorted(4 * [HALF_GEMM, ADD, SOFTMAX, ADD, HALF_GEMM])
    assert "1 softmax operation per step lies between matrix products, with 150 µs per step" in cure.evidence
    assert not cure.shared[0][0].size


def test_backward_pass_of_attention() -> None:
    """The operations from the second product before to the second product after belong to it."""
    backward = "void softmax_warp_backward<float>"
    program = run(lambda p: launch(p, ADD, HALF_GEMM, HALF_GEMM, backward, ADD, HALF_GEMM, HALF_GEMM))
    cure = find_cure(program, "unfused_attention")
    names = program.model().names.cast(str).gather(cure.operation_rows).to_list()
    assert sorted(names) == sorted(4 * [HALF_GEMM, HALF_GEMM, backward, ADD, HALF_GEMM, HALF_GEMM])


def test_attention_in_fp32_may_get_faster_products() -> None:
    cure = find_cure(run(lambda p: launch(p, GEMM, SOFTMAX, GEMM)), "unfused_attention")
    rows, (low, likely, high) = cure.shared[0]
    assert len(rows) == 8
    assert (low.tolist(), likely.tolist(), high.tolist()) == ([50 * US] * 8, [40 * US] * 8, [25 * US] * 8)


@pytest.mark.parametrize(
    "names",
    [
        [ADD, SOFTMAX, ADD],
        [HALF_GEMM, SOFTMAX, ADD],
        [HALF_GEMM, "void cunn_SoftMaxForward<LogSoftMaxForwardEpilogue>", HALF_GEMM],
        [HALF_GEMM, "sm80_xmma_fprop_implicit_gemm_f16f16", SOFTMAX, HALF_GEMM],
        [HALF_GEMM, *[ADD] * 17, SOFTMAX, HALF_GEMM],
    ],
)
def test_softmax_that_is_not_attention(names: list[str]) -> None:
    """No product, none on one side, a loss, a convolution in between, or too far from a product."""
    assert "unfused_attention" not in run(lambda p: launch(p, *names)).causes()


EXP = "void at::native::vectorized_elementwise_kernel<4, at::native::exp_kernel_cuda>"
REDUCE = "void at::native::reduce_kernel<512, 1, MaxOps>"
LOG = "void at::native::vectorized_elementwise_kernel<4, at::native::log_kernel_cuda>"


@pytest.mark.parametrize(
    ("names", "is_attention"),
    [
        ([HALF_GEMM, REDUCE, ADD, EXP, REDUCE, ADD, HALF_GEMM], True),
        ([HALF_GEMM, ADD, EXP, ADD, HALF_GEMM], False),
        ([HALF_GEMM, REDUCE, ADD, EXP, ADD, HALF_GEMM], False),
        ([HALF_GEMM, REDUCE, ADD, EXP, REDUCE, LOG, HALF_GEMM], False),
    ],
)
def test_softmax_without_a_kernel_of_its_own(names: list[str], is_attention: bool) -> None:
    """Exponentials between reductions are a softmax, unless their logarithm follows as in a loss."""
    assert ("unfused_attention" in run(lambda p: launch(p, *names)).causes()) == is_attention


def test_rare_softmax_is_not_attention() -> None:
    program = run(lambda p: launch(p, ADD), 4)
    for name in (HALF_GEMM, SOFTMAX, HALF_GEMM):
        program.launch(name)
    program.range("step 4", program.now - 15 * US, program.now)
    assert "unfused_attention" not in program.causes()


def test_precision() -> None:
    program = run(lambda p: launch(p, GEMM, "void implicit_convolve_sgemm<float>", HALF_GEMM, ns=MS))
    program.device()
    cure = find_cure(program, "precision")
    assert "2 matrix products and convolutions per step run in FP32 without Tensor Cores, for 2 ms" in cure.evidence
    (_, products), (_, convolutions) = cure.operations
    rate = 0.76 * 66.908
    assert [p[0] for p in products] == pytest.approx(
        [MS * rate / r for r in (0.5 * 494.7, 0.62 * 989.4, 0.75 * 989.4)], rel=1e-4
    )
    assert [c[0] for c in convolutions] == [MS * 2 // 5, MS // 5, MS // 10]


@pytest.mark.parametrize(
    ("shapes", "stays"),
    [
        ([[2048, 2048], [2048, 2048]], [0.2056, 0.0829, 0.02315]),  # 17.2 GFLOP at 742 TFLOP/s in the high case
        ([[1, 20_000], [20_000, 20_000]], [0.7961, 0.2985, 0.2388]),  # 1.6 GB at 3.35 TB/s, or half of it
    ],
)
def test_precision_with_known_work(shapes: list[list[int]], stays: list[float]) -> None:
    text = json.dumps({"Input type": ["float", "float"], "Input Dims": shapes})

    def body(program: Program) -> None:
        start = program.now
        launch(program, GEMM, ns=MS)
        program.range("aten::mm", start, program.now, payload_text=text)

    program = run(body)
    program.device()
    ((_, durations),) = find_cure(program, "precision").operations
    assert [d[0] / MS for d in durations] == pytest.approx(stays, rel=1e-3)


def test_depthwise_convolutions_halve_their_bytes() -> None:
    name = "void at::native::conv_depthwise2d_forward_kernel<1, float, int>"
    cure = find_cure(run(lambda p: launch(p, name, ns=MS)), "precision")
    assert [stay[0] for stay in cure.operations[0][1]] == [MS, MS * 6 // 10, MS // 2]


def test_short_products_are_not_worth_it() -> None:
    assert "precision" not in run(lambda p: launch(p, GEMM, ns=3 * US)).causes()
    cure = find_cure(run(lambda p: launch(p, GEMM, ns=7 * US)), "precision")
    assert [stay[0] for stay in cure.operations[0][1]] == [7 * US, 4 * US, 2500]


def test_precision_without_faster_modes() -> None:
    inspection = run(lambda p: launch(p, GEMM)).inspection()
    inspection.__dict__["peaks"] = get_default_peaks()._replace(matrix={})
    assert list(kernels.precision(inspection)) == []


def test_pointwise_chains() -> None:
    program = run(lambda p: launch(p, HALF_GEMM, ADD, ADD, ADD, HALF_GEMM, ADD, ADD))
    cure = find_cure(program, "unfused_pointwise")
    assert len(cure.operation_rows) == 12
    assert "1 chain per step of 3 or more pointwise kernels, the longest with 3, for 150 µs per step" in cure.evidence
    (_, stays) = cure.operations[0]
    assert [s[0] for s in stays] == [50 * US, 50 * US, 50 * US // 3]  # short chains may have no cure
    (_, stays) = find_cure(run(lambda p: launch(p, *[ADD] * 10)), "unfused_pointwise").operations[0]
    assert [s[0] for s in stays] == [50 * US // 4, 6 * US, 5 * US]


@pytest.mark.parametrize("blocks", [1000, 300, 4000, 222, 4500])
def test_chains_have_similar_sizes(blocks: int) -> None:
    def body(program: Program) -> None:
        launch(program, HALF_GEMM, ADD)
        launch(program, ADD, grid_x=blocks)
        launch(program, ADD, HALF_GEMM)

    assert ("unfused_pointwise" in run(body).causes()) == (222 < blocks < 4500)


@pytest.mark.parametrize("name", ["loop_add_fusion", "triton_poi_fused_add_0", HALF_GEMM])
def test_kernels_that_are_fused_form_no_chain(name: str) -> None:
    assert "unfused_pointwise" not in run(lambda p: launch(p, *[name] * 5)).causes()


def test_chains_that_no_compiler_fuses() -> None:
    """Half of the traffic remains if the kernels are merged by hand."""
    program = run(lambda p: launch(p, *["cupy_add__float32_float32_float32"] * 10))
    (_, stays) = find_cure(program, "unfused_pointwise").operations[0]
    assert [s[0] for s in stays] == [50 * US // 4, int(50 * US * 0.275), 50 * US // 10]
    program = run(lambda p: launch(p, *["cupy_add__float32_float32_float32"] * 5))
    (_, stays) = find_cure(program, "unfused_pointwise").operations[0]
    assert stays[1][0] == int(50 * US * 0.55)


def test_chains_end_with_the_step() -> None:
    assert "unfused_pointwise" not in run(lambda p: launch(p, ADD, ADD)).causes()


def test_memory_layout() -> None:
    cure = find_cure(run(lambda p: launch(p, LAYOUT, HALF_GEMM)), "memory_layout")
    assert cure.evidence == "1 layout conversion per step takes 50 µs per step"
    cure = find_cure(run(lambda p: launch(p, LAYOUT, NORM)), "memory_layout")
    assert cure.evidence.endswith("and batch normalization of images in NCHW takes 50 µs per step")
    cure = find_cure(run(lambda p: launch(p, LAYOUT, NORM + "_channels_last")), "memory_layout")
    assert "batch normalization" not in cure.evidence
    assert "memory_layout" not in run(lambda p: launch(p, NORM)).causes()


@pytest.mark.parametrize("blocks", [1, 65, 66])
def test_grids_that_are_smaller_than_the_gpu(blocks: int) -> None:
    program = run(lambda p: launch(p, "my_kernel", ns=MS, grid_x=blocks))
    program.device()
    assert ("low_occupancy" in program.causes()) == (blocks < 66)
    if blocks == 1:
        cure = find_cure(program, "low_occupancy")
        assert "1 kernel per step has fewer blocks (median 1) than half of the 132 multiprocessors" in cure.evidence


@pytest.mark.parametrize(("sms", "count"), [(114, 114), (None, 132), (0, 132)])
def test_multiprocessors(sms: int | None, count: int) -> None:
    program = run(lambda p: launch(p, "k"))
    program.device(name="NVIDIA H100 PCIe", sm_count=sms)
    assert kernels.find_sm_count(program.inspection()) == count


@pytest.mark.parametrize(("count", "cause"), [(2, "serialized_streams"), (1, "low_occupancy")])
def test_kernels_of_libraries_that_use_few_multiprocessors(count: int, cause: str) -> None:
    """Several of them may be independent. A single one cannot be."""
    cure = find_cure(run(lambda p: [launch(p, HALF_GEMM, ns=MS, grid_x=20) for _ in range(count)]), cause)
    assert cure.is_unsure
    assert cure.missing
    assert "less than half of the 132 multiprocessors" in cure.evidence
    assert ("independent" in cure.evidence) == (count > 1)


def test_large_grids_are_healthy() -> None:
    cure = find_cure(run(lambda p: launch(p, HALF_GEMM, ns=MS)), "compute_bound")
    assert cure.is_healthy
    assert cure.evidence == (
        "kernels keep the GPU busy for 100% of the step; 100% of their time is spent in matrix products; the peak "
        "rates of the GPU are unknown"
    )
    assert "; 100% of their time is spent in kernels that mostly move data; " in (
        find_cure(run(lambda p: launch(p, NORM, ns=MS)), "memory_bound").evidence
    )
    assert run(lambda p: launch(p, "my_kernel", ns=MS)).causes() == []
    assert run(lambda p: [launch(p, HALF_GEMM, ns=MS), p.wait(), p.pause(150 * US)]).causes() == ["synchronization"]


def test_graphs_that_were_recorded_as_a_whole() -> None:
    def body(program: Program) -> None:
        program.graph(program.do("cudaGraphLaunch_v10000"), program.now, program.now + MS)
        program.pause(MS)

    cure = find_cure(run(body), "serialized_streams")
    assert cure.is_unsure
    assert cure.missing == "nsys profile --cuda-graph-trace=node"
    assert cure.evidence.startswith("100% of the step") or cure.evidence.startswith("99% of the step")


def test_short_graphs_are_no_cause() -> None:
    program = run(lambda p: [launch(p, HALF_GEMM, ns=MS), p.graph(p.call(LAUNCH, p.now, p.now), p.now, p.now + US)])
    assert "serialized_streams" not in program.causes()
