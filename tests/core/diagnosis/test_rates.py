"""Kernels at the peak rates of the GPU, as far as shapes were recorded, and answers about healthy programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tracekit as tk
from tests.builders.programs import HALF_GEMM, MS, US, Program, steps
from tests.conftest import FIXTURES, ROOT
from tracekit.core.diagnosis import Why

SICK = ROOT.parent / "shared" / "captures" / "sick"
HEALTHY = [FIXTURES / "why" / "stream_triad.nsys-rep", *(SICK / f"{n}_well.nsys-rep" for n in ("loader", "pageable"))]
REDUCTION = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >"


def fed(device: str | None, kernel: str, range_name: str, payload: str | None, *, ns: int = MS) -> Why:
    """Return the answer for a GPU that runs one kernel after another."""
    program = Program()
    program.device(name=device)

    def body(_: int) -> None:
        for _ in range(5):
            start = program.now
            program.launch(kernel, ns)
            program.range(range_name, start, program.now, payload_text=payload)
        program.pause(5 * ns - 20 * US)

    return steps(program, 6, body).diagnose()


def payload(shapes: list[list[int]], kind: str) -> str:
    """Return the arguments of a range as PyTorch's profiler records them."""
    return json.dumps({"Input type": [kind] * len(shapes), "Input Dims": shapes})


def test_products_at_the_peak_rate() -> None:
    n = 7000  # 2 * n**3 floating-point operations per ms are 69 % of 989 TFLOP/s
    answer = fed("NVIDIA H100 80GB HBM3", HALF_GEMM, "aten::mm", payload([[n, n], [n, n]], "c10::BFloat16"))
    assert answer.status == "nothing_found"
    (cause,) = [c for c in answer.causes if c.cause == "compute_bound"]
    assert (cause.saving.high, cause.missing) == (0.0, "")
    assert answer.roofline_known == 1
    assert answer.roofline_share == pytest.approx(1, abs=0.03)
    assert "kernels run at 60% of the peak rate or more for 100%" in cause.evidence.text
    assert answer.roofline == cause.evidence.text


def test_kernels_at_the_bandwidth_of_the_memory() -> None:
    size = 2_000_000_000 // 4  # 2 GB per ms are 60 % of 3,350 GB/s
    text = payload([[size]], "float")
    fast, slow = (fed("NVIDIA H100 80GB HBM3", REDUCTION, "aten::sum", text, ns=ns) for ns in (MS * 9 // 10, 2 * MS))
    assert fast.roofline_share == pytest.approx(1, abs=0.03)
    assert slow.roofline_share == 0
    assert [c.cause for c in fast.causes if c.saving.high == 0] == ["memory_bound"]


def test_shapes_in_the_names_of_ranges() -> None:
    answer = fed("NVIDIA H100 80GB HBM3", HALF_GEMM, "aten::mm, seq = 1, sizes = [[7000, 7000], [7000, 7000]]", None)
    assert answer.roofline_share == pytest.approx(1, abs=0.03)


MISSING = (
    "shapes with torch.profiler.profile(record_shapes=True) or, on NVIDIA GPUs, with "
    "torch.autograd.profiler.emit_nvtx(record_shapes=True) and nsys profile --trace=cuda,nvtx"
)


@pytest.mark.parametrize(
    ("device", "name", "text", "missing"),
    [
        ("NVIDIA H100", "aten::mm", "their rates are unknown, because shapes were not recorded", MISSING),
        ("NVIDIA H100", "forward", "their rates are unknown, because shapes were not recorded", MISSING),
        ("GPU", "aten::mm", "the peak rates of the GPU are unknown", ""),
    ],
)
def test_unknown_rates(device: str, name: str, text: str, missing: str) -> None:
    answer = fed(device, HALF_GEMM, name, None)
    (cause,) = [c for c in answer.causes if c.cause == "compute_bound"]
    assert cause.evidence.text.endswith(text)
    assert cause.missing == missing
    assert (answer.roofline_share, answer.roofline_known) == (None, 0.0)


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: path.name)
def test_a_healthy_program_has_no_finding(path: Path) -> None:
    if not path.exists():
        pytest.skip(f"{path.name} is missing")
    answer = tk.load(path).why()
    assert answer.status == "nothing_found"
    assert answer.sentence.endswith("no cure is predicted to save 2 % or more.")
    assert all(cause.saving.likely < 0.02 for cause in answer.causes)
    assert answer.together == 0


@pytest.mark.slow
def test_a_whole_graph_says_what_to_record() -> None:
    path = SICK / "launch_bound_well.nsys-rep"
    if not path.exists():
        pytest.skip(f"{path.name} is missing")
    answer = tk.load(path).why()
    assert (answer.status, answer.causes[0].status) == ("unsure", "unsure")
    assert answer.causes[0].missing == "nsys profile --cuda-graph-trace=node"
