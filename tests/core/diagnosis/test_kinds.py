"""Classes of kernels and kinds of API calls, by the names that profilers record."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from tracekit.core.diagnosis import kinds

KERNELS = {
    "nccl": [
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_AllGather_RING",
        "void vllm::cross_device_reduce_1stage<__half, 2>(RankData *)",
        "ncclDevKernel_Generic",
    ],
    "fused_attention": [
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(Flash_fwd_params)",
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<>)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0",
        "attn_fwd",
        "_attn_bwd_preprocess",
        "void cudnn::fusion::compute_dot_do_o_specialized<true, 64>(void const *)",
    ],
    "layout_conversion": [
        "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, (bool)0, (bool)1>(cudnn::ops::nchw2nhwc_params_t)",
        "void nhwcToNchwKernel<float>",
        "nhwcAddPaddingKernel<__half>",
        "void tensorflow::functor::ShuffleInTensor3Simple<float, 0, 2, 1>",
        "batched_transpose_64x64_pack_4x4_ediv_4x4_half",
        "void genericReformat::copyPackedKernel<float, float>",
    ],
    "convolution": [
        "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_stage4",
        "sm90_xmma_wgrad_implicit_gemm_indexed_f16f16_f32f32_nhwckrsc_nhwc_tilesize64x64x64",
        "cutlass_tensorop_s1688wgrad_optimized_tf32_128x128_16x4_nhwc_align4",
        "volta_fp16_s884cudnn_fp16_256x128_ldg8_relu_exp_small_nhwc_tn_v1",
        "miopenSp3AsmConv_v30_3_1_gfx9_fp16_dot2",
        "igemm_fwd_gtcx2_nhwc_bf16_bx0_ex1",
    ],
    "convolution_fp32": [
        "void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1>",
        "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>",
        "void conv2d_grouped_direct_kernel<float>",
        "void at::native::conv_depthwise2d_forward_kernel<1, float, int>",
        "volta_scudnn_128x64_relu_interior_nn_v1",
        "void fft2d_r2c_32x32<float>(float2 *, const T1 *, int, cudnn::reduced_divisor)",
    ],
    "matmul": [
        "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_32x6_tn",
        "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT",
        "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_tensor16x8x8",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8>",
        "gemm_fusion_dot_12_bf16",
        "triton_tem_fused_mm_0_matmul",
        "Cijk_Ailk_Bljk_HHS_BH_MT128x128x16_matmul_half",
        "triton_tem_fused_addmm_relu_3",
        "cutlass3x_sm100_tensorop_s64x128x8gemm_f32_f32_f32",
        "fused_moe_kernel",
        "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_MT128x256x32",
        "void gemm_wmma(const __half *, const __half *, float *, int)",
        "my_matmul(const double *, const double *, double *)",
    ],
    "matmul_fp32": [
        "ampere_sgemm_128x64_nn",
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_simt_sgemm",
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>",
        "nvjet_sst_128x64_gemm",
        "Cijk_Ailk_Bljk_SB_MT32x32x8",
        "matmul_naive(const float *, const float *, float *, int)",
        "void magma_sgemmEx_kernel<float>(float const*)",
    ],
    "matrix_vector": [
        "void gemv2T_kernel_val<int, int, float>",
        "void gemvx::kernel<int>",
        "void dot_kernel<float>",
        "void gemmSN_TN_kernel<float, 128, 16, 2>",
    ],
    "softmax": [
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, false, false>",
        "void at::native::cunn_SoftMaxForward<4, float, float, float, SoftMaxForwardEpilogue>",
        "triton_per_fused__softmax_0",
        "gemm_softmax_kernel",
        "triton_per_fused_amax_div_exp_sub_sum_4",
        "input_exponential_reduce_fusion",
    ],
    "optimizer": [
        "void at::native::multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>",
        "multi_tensor_apply_kernel",
        "apex_adam_kernel",
        "void tensorflow::functor::ApplyAdamKernel<float>",
    ],
    "normalization": [
        "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>",
        "void at::native::vectorized_layer_norm_kernel<float, float>",
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>",
        "void at::native::GammaBetaBackwardCUDAKernel",
        "rms_norm_kernel",
        "triton_red_fused_native_layer_norm_1",
        "triton_red_fused_add_native_group_norm_5",
        "void at::native::(anonymous namespace)::ComputeFusedParamsCUDAKernel<float>(long, float const*)",
        "nvfuser_inner_persistent_f0_c1_r0_g0",
    ],
    "embedding": [
        "void at::native::indexSelectLargeIndex<float>",
        "embedding_backward_feature_kernel",
        "scatter_add",
        "void at::native::(anonymous namespace)::compute_grad_weight<float, long>(long const*)",
    ],
    "reduction": [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>",
        "void splitKreduce_kernel<32, 16, int, float>",
        "void cub::DeviceScanKernel<>",
        "input_reduce_fusion_3",
        "cupy_sum",
        "triton_per_fused_convolution_backward_mean_1",
        "void at::native::nll_loss2d_forward_kernel<float>",
    ],
    "cast_or_copy": [
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>",
        "void at::native::CatArrayBatchedCopy<float>",
        "wrapped_convert",
        "wrapped_transpose",
        "void tensorflow::SplitVOpKernel_fixed<float>",
        "void Eigen::internal::EigenMetaKernel<Eigen::TensorSlicingOp<float> >",
    ],
    "pooling": [
        "void at::native::max_pool_forward_nchw<float>",
        "sm50_xmma_pooling_coalescedC_NHWC_kMAX_3_False_execute_kernel_trt",
        "triton_poi_fused_max_pool2d_with_indices_7",
    ],
    "pointwise": [
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
        "triton_poi_fused_add_0",
        "loop_multiply_fusion",
        "fused_dropout_kernel_vec",
        "triton_poi_fused_convolution_relu_0",
        "triton_poi_fused__scaled_dot_product_flash_attention_2",
        "cupy_multiply__float64_float_float64",
        "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)",
        "void Eigen::internal::EigenMetaKernel<Eigen::TensorAssignOp<float> >",
        "void cub::detail::for_each::static_kernel<int>",
        "nvfuser_pointwise_f0_c1_r0_g0",
    ],
    "other_kernel": [
        "my_kernel",
        "",
        "saxpy(int, float, float*, float*)",
        "seed(curandStateXORWOW *, int)",
        "relax(float *, const float *, int)",
        "broken)",
        "(broken))",
    ],
}


@pytest.mark.parametrize(("name", "cls"), [(name, cls) for cls, names in KERNELS.items() for name in names])
def test_classes_of_kernels(name: str, cls: str) -> None:
    assert kinds.CLASS_NAMES[kinds.classify_kernel_name(name)] == cls


CALLS = {
    "launch": (
        "cudaLaunchKernel_v7000 cudaLaunchKernelExC_v11060 cuLaunchKernel "
        "cuLaunchKernelEx hipLaunchKernel hipExtLaunchKernel hipModuleLaunchKernel "
        "cudaLaunchCooperativeKernel_ptsz_v9000"
    ),
    "graph_launch": "cudaGraphLaunch_v10000 cuGraphLaunch hipGraphLaunch",
    "load": (
        "cuModuleLoadData cuLibraryLoadData cuModuleGetFunction cuLinkComplete "
        "nvrtcCompileProgram cudaGraphInstantiate_v12000 "
        "cudaGraphInstantiateWithFlags_v11040 hipModuleLoadData cuLibraryGetKernel"
    ),
    "host_allocate": (
        "cudaHostAlloc_v3020 cuMemHostAlloc cudaMallocHost_v3020 cudaFreeHost_v3020 "
        "hipHostMalloc hipHostFree cuMemAllocHost_v2 cudaHostRegister_v4000 cuMemFreeHost"
    ),
    "other": ("cudaMallocAsync_v11020 cudaFreeAsync_v11020 cuMemPoolCreate cudaSetDevice_v3020 cuCtxGetId"),
    "allocate": (
        "cudaMalloc_v3020 cudaFree_v3020 cuMemAlloc_v2 cuMemCreate cuMemMap cuMemFree_v2 "
        "cuMemAddressReserve hipMalloc cudaMallocManaged_v6000 cuMemSetAccess"
    ),
    "copy": "cudaMemcpyAsync_v3020 cudaMemcpy_v3020 cuMemcpyHtoDAsync_v2 hipMemcpyWithStream",
    "memset": "cudaMemsetAsync_v3020 cuMemsetD32Async hipMemsetAsync",
    "wait_event": "cudaStreamWaitEvent_v3020 cuStreamWaitEvent hipStreamWaitEvent",
    "synchronize": (
        "cudaDeviceSynchronize_v3020 cudaStreamSynchronize_v3020 "
        "cudaEventSynchronize_v3020 cuCtxSynchronize hipDeviceSynchronize "
        "hipStreamSynchronize zeCommandQueueSynchronize"
    ),
    "record_event": ("cudaEventRecord_v3020 cudaEventRecordWithFlags_v11010 cuEventRecord hipEventRecord"),
    "query": ("cudaEventQuery_v3020 cudaStreamIsCapturing_v10000 cudaGetLastError_v3020 hipGetDevice"),
}


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for kind, names in CALLS.items() for name in names.split()])
def test_kinds_of_calls(name: str, kind: str) -> None:
    assert kinds.CALL_KINDS[kinds.classify_call_name(name)] == kind


def test_names_are_classified_once() -> None:
    called: list[str] = []

    def classify(name: str) -> int:
        called.append(name)
        return len(name)

    names = pl.Series(["a", None, "bb", "a"], dtype=pl.Categorical)
    assert kinds.map_names(names, classify, 99).tolist() == [1, 99, 2, 1]
    assert sorted(called) == ["a", "bb"]
    assert kinds.map_names(names.clear(), classify, 99).tolist() == []


def test_selection_of_classes() -> None:
    codes = np.array([kinds.NUMBERS[n] for n in ("nccl", "matmul", "memset", "matmul")], np.int8)
    assert kinds.select_classes(codes, ["matmul", "memset"]).tolist() == [False, True, True, True]
    assert kinds.select_classes(codes, []).tolist() == [False] * 4
