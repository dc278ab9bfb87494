"""Names of kernels that two profilers, or two algorithms of a library, write differently."""

from __future__ import annotations

import pytest
from tracekit.core.layers.kernel_names import split_kernel_name

LAMBDA_NSYS = (
    "void at::native::elementwise_kernel<(int)128, (int)2, void f(at::A &, const T1 &)::[lambda(int) (instance 1)]>(T2)"
)
LAMBDA_KINETO = "void at::native::elementwise_kernel<128, 2, f(at::A&, at::B const&)::{lambda(int)#1}>(int, float)"


@pytest.mark.parametrize(
    ("name", "other", "equal"),
    [
        (
            "void <unnamed>::softmax_warp_forward<float, (int)11, (bool)0>(T2 *, const T1 *, int)",
            "void (anonymous namespace)::softmax_warp_forward<float, 11, false>(float*, float const*, int)",
            3,
        ),
        (LAMBDA_NSYS, LAMBDA_KINETO, 3),
        ("void f<(unsigned int)32, (bool)1>(T1)", "void f<32u, true>(int)", 3),
        ("nvjet_sm90_hsh_48x64_64x15_4x2_h_bz_bias_TNN", "nvjet_sm90_hsh_64x64_64x13_2x1_h_bz_bias_TNN", 2),
        ("nvjet_sm90_hsh_48x64_64x15_4x2_h_bz_bias_TNN", "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n", 1),
        ("nvjet_sm90_hsh_48x64_64x15_4x2_h_bz_bias_TNN", "triton_poi_fused_add_0", 0),
        ("_Z3addPf", "_Z3addPf.kd", 3),
        ("add_kernel", "add_kernel [clone .kd]", 3),
        ("f<" + "(" * 20_000, "f<" + "(" * 20_001, 1),
        ("f" + "(" * 100 + ")" * 100, "f", 1),
        ("<int>", "<float>", 1),
    ],
)
def test_equal_parts(name: str, other: str, equal: int) -> None:
    parts = split_kernel_name(name), split_kernel_name(other)
    assert [a == b for a, b in zip(*parts, strict=True)] == [i >= 3 - equal for i in range(3)]
