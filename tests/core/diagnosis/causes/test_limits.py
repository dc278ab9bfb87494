"""Causes in what limits single kernels: FP64, and few active warps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.builders.programs import MS, US, Program, find_cure, steps
from tracekit.core.diagnosis.causes import limits

DGEMM = "cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1"
KERNEL = "integrate(float4*, int)"


def run(name: str = KERNEL, ns: int = MS, count: int = 4, **row: Any) -> Program:
    """Run steps of one kernel each."""
    program = Program()
    program.device(max_warps_per_sm=64, max_registers_per_sm=65_536, max_shared_memory_per_sm_bytes=233_472)
    return steps(program, count, lambda _: program.launch(name, ns, **row))


def test_matrix_products_in_double_precision() -> None:
    program = Program()

    def body(_: int) -> None:
        program.launch(DGEMM, MS)
        program.launch("void at::native::elementwise_kernel<double>", MS)

    cure = find_cure(steps(program, 4, body), "precision")
    assert cure.evidence == "1 matrix product per step computes in FP64, for 1 ms per step"
    (_, (low, likely, high)), (others, halves) = cure.operations[0], cure.shared[0]
    assert (low > likely).all()
    assert (likely > high).all()
    assert len(others) == 4
    assert [int(d[0]) for d in halves] == [MS, 600 * US, 500 * US]
    assert "float32" in program.diagnose().causes[0].change or program.diagnose().causes[0].change.startswith(
        "use single"
    )


@pytest.mark.parametrize("name", ["dgemm_small", KERNEL])
def test_no_double_precision(name: str) -> None:
    program = Program()

    def body(_: int) -> None:
        program.launch(name, 20 * US)
        program.launch("k", MS)

    assert "precision" not in steps(program, 4, body).causes()


@pytest.mark.parametrize(
    ("row", "share", "reason", "limit"),
    [
        ({"block_x": 64, "dynamic_shared_memory_bytes": 163_840}, 2 / 64, limits.SHARED_MEMORY, "shared memory"),
        ({"block_x": 128, "registers_per_thread": 255}, 8 / 64, limits.REGISTERS, "registers"),
        ({"block_x": 32}, 32 / 64, limits.BLOCK_SIZE, None),
        ({"block_x": 256, "grid_x": 132}, 8 / 64, limits.FEW_BLOCKS, None),
        (
            {"block_x": 256, "grid_x": 24, "name": "_sum_kernel"},
            8 / 64 / 5.5,
            limits.FEW_BLOCKS,
            "the number of blocks",
        ),
        ({"block_x": 256}, 1.0, limits.BLOCK_SIZE, None),
    ],
)
def test_active_warps(row: dict[str, Any], share: float, reason: int, limit: str | None) -> None:
    values = {"registers_per_thread": 32, "static_shared_memory_bytes": 0, "dynamic_shared_memory_bytes": 0}
    program = run(**{"name": KERNEL, "grid_x": 10_000, **values, **row})
    shares, reasons = limits.find_active_warps(program.inspection())
    if "registers_per_thread" in row:
        assert share / 2 <= shares[0] <= 2 * share
    else:
        assert shares[0] == share
    assert reasons[0] == reason
    assert (limit is not None and shares[0] <= 0.125) == ("low_occupancy" in program.causes())
    if "low_occupancy" in program.causes():
        cure = find_cure(program, "low_occupancy")
        assert f"limited by {limit}" in cure.evidence
        assert cure.is_unsure == bool(cure.missing) == (shares[0] > 1 / 16)
        assert cure.change == ("" if reason == limits.FEW_BLOCKS else "few_active_warps")
        ((_, (low, likely, high)),) = cure.operations
        assert (high < likely).all()
        assert (likely < low).all()
        assert (low < MS).all()


def test_kernels_without_a_recorded_launch_configuration() -> None:
    program = run(KERNEL, grid_x=None, block_x=None)
    assert np.isnan(limits.find_active_warps(program.inspection())[0]).all()
    assert "low_occupancy" not in program.causes()


def test_unknown_resources_limit_nothing() -> None:
    """Traces of some profilers contain neither registers nor the limits of the GPU."""
    program = Program()
    steps(program, 4, lambda _: program.launch(KERNEL, MS, grid_x=10_000, block_x=256))
    assert limits.find_active_warps(program.inspection())[0].tolist() == [1.0] * 4


def test_kernels_of_libraries_are_as_they_should_be() -> None:
    program = run("void cub::DeviceReduceKernel<float>", grid_x=132, block_x=64)
    assert "low_occupancy" not in program.causes()
