"""Tiles in names of kernels."""

from __future__ import annotations

import pytest
from tracekit.core.work.tiles import parse_tile

NAMES = {
    "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT": (256, 128, 64),
    "nvjet_hsh_192x192_64x3_2x1_v_bz_coopB_TNN": (192, 192, 64),
    "nvjet_tst_24x64_64x16_4x1_v_bz_splitK_TNT": (24, 64, 64),
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x256_8x4_nt_align1>(T1::Params)": (128, 256, 8),
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x64_16x6_tn_align4>(T1::Params)": (128, 64, 16),
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_64x1_tn_align8>": (32, 32, 64),
    "cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_bf16_bf16_128x128x64_2x1x1_0_tnn_align8": (128, 128, 64),
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x64x8_stage3_warpsize2x2x1_ffma_execute_kernel": (128, 64, 8),
    "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize256x64x32_stage3": (256, 64, 32),
    "void cutlass::Kernel2<cutlass_75_tensorop_s1688gemm_bf16_64x64_nn_align1>(T1::Params)": (64, 64, None),
    "sm90_xmma_fprop_image_first_layer_f16f16_f32_f16_nhwckrsc_nhwc_hmma_k64c4r7s7_tile16x64x64_": (16, 64, 64),
    "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_tn": (128, 64, 64),
    "ampere_sgemm_128x64_tn": (128, 64, None),
    "volta_h884gemm_64x128_ldg8_nn": (64, 128, None),
    "turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn": (128, 128, None),
    "ampere_scudnn_128x64_relu_medium_nn_v1": (128, 64, None),
    "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT128x256x32_MI16x16x1_SN_LDSB1": (128, 256, 32),
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, float>": None,
    "ampere_sgemm_128x9999999999_tn": None,
    "ampere_sgemm_0x64_tn": None,
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>": None,
    "triton_tem_fused_mm_0": None,
    "": None,
}


@pytest.mark.parametrize("name", NAMES)
def test_tiles(name: str) -> None:
    tile = parse_tile(name)
    assert (None if tile is None else tuple(tile)) == NAMES[name]
