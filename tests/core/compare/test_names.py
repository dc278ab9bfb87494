"""Names without the parts that differ between runs of one program."""

from __future__ import annotations

import polars as pl
import pytest
from tracekit.core.compare.names import normalize_categorical_names_expr, normalize_names_expr

KERNELS = {
    "void k<(int)4, at::F<float>, std::array<char *, (unsigned long)1>>(int, T2)": (
        "void k<(int)*, at::F<float>, std::array<char *, (unsigned long)*>>(int, T2)"
    ),
    "k<128, 4u, -3, 2ull, f<x::{lambda(float)#1}>>(int)": "k<*, *, *, *, f<x::{lambda(float)#1}>>(int)",
    "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN": "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN",
    "triton_poi_fused_add_mul_12": "triton_poi_fused_add_mul_*",
    "loop_add_fusion.4": "loop_add_fusion_*",
    "kernel_3f2a9b8c1d": "kernel_*",
    "_ZN4core3fmt17h0123456789abcdefE": "_ZN4core3fmt17h*E",
    "f_0x7f12ab34 tile10x20": "f_* tile10x20",
    "k_123e4567-e89b-12d3-a456-426614174000": "k_*",
    "cutlass_80_f16_s161616gemm_f16_32x32": "cutlass_80_f16_s161616gemm_f16_32x32",
}
RANGES = {
    "iteration 17/forward": "iteration */forward",
    "step_17": "step_*",
    "Epoch: 3": "Epoch: *",
    "layer.12.forward": "layer.12.forward",
    "encoder/layer_3": "encoder/layer_3",
    "aten::linear, seq = 123, op_id = 456": "aten::linear, seq = *, op_id = *",
    "1 2 3": "* * *",
    "waited 3.5 ms": "waited * ms",
}
CALLS = {
    "cudaLaunchKernel_v7000": "cudaLaunchKernel",
    "cudaLaunchKernelExC_v11060_ptsz": "cudaLaunchKernelExC",
    "cudaMemcpyAsync_ptsz": "cudaMemcpyAsync",
    "cuMemcpyHtoD_v2": "cuMemcpyHtoD",
    "cudaStreamSynchronize": "cudaStreamSynchronize",
}


@pytest.mark.parametrize(("rules", "names"), [("kernel", KERNELS), ("range", RANGES), ("call", CALLS)])
def test_variable_parts_are_replaced(rules: str, names: dict[str, str]) -> None:
    frame = pl.DataFrame({"name": [*names, None]})
    assert frame.select(normalize_names_expr(pl.col("name"), rules)).to_series().to_list() == [*names.values(), None]
    column = frame.cast(pl.Categorical).select(normalize_categorical_names_expr(pl.col("name"), rules)).to_series()
    assert column.cast(pl.String).to_list() == [*names.values(), None]


def test_names_are_normalised_once() -> None:
    for rules, names in (("kernel", KERNELS), ("range", RANGES), ("call", CALLS)):
        once = pl.Series(list(names.values()))
        assert pl.select(normalize_names_expr(pl.lit(once), rules)).to_series().to_list() == once.to_list()


def test_exact_names_are_unchanged() -> None:
    names = pl.DataFrame({"name": [*KERNELS, *RANGES]}).cast(pl.Categorical)
    assert names.select(normalize_categorical_names_expr(pl.col("name"), "exact")).to_series().to_list() == [
        *KERNELS,
        *RANGES,
    ]
