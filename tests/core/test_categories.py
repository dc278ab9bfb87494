"""Categories of kernels: names from the public sources of libraries, and the table of rules itself."""

from __future__ import annotations

import csv
import re
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from tests.builders.declared import build_frames, build_kernel, build_launch, build_range
from tests.builders.reports import compute_report
from tests.core.diagnosis.test_kinds import KERNELS as KERNELS_BY_CLASS
from tracekit import schemas
from tracekit.core import categories
from tracekit.core.diagnosis.kinds import CLASS_NAMES

KERNELS = {
    "attention": [
        "void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, false, false>>(Flash_fwd_params)",
        "void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2>>>(Params)",
        "flash_fwd_splitkv_mla_kernel<Flash_fwd_kernel_traits_mla<576, 64, 64, 8>, true>",
        "void get_mla_metadata_kernel<256>(Mla_metadata_params)",
        "void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0>(flashinfer::paged_kv_t)",
        "void flashinfer::BatchPrefillWithRaggedKVCacheKernel<flashinfer::KernelTraits>(Params)",
        "void flashinfer::PersistentVariableLengthMergeStatesKernel<8u, 16u, 8u, 4u>",
        "fmhaSm100aKernel_QkvE4m3OBfloat16H128PagedKvCausalP32VarSeqQ128Kv128PersistentContext",
        "fmha_v2_flash_attention_bf16_64_128_S_q_paged_kv_128_causal_tma_ws_sm90_kernel",
        "void tensorrt_llm::kernels::mmha::masked_multihead_attention_kernel<__nv_bfloat16, 128>",
        "kernel_mha",
        "void vllm::paged_attention_v2_kernel<unsigned short, unsigned short, 128, 16, 128>",
        "void vllm::merge_attn_states_kernel<__nv_bfloat16, 128u>",
        "kernel_unified_attention_2d",
        "_fwd_grouped_kernel_stage1",
        "_fwd_kernel_stage2",
        "void deep_gemm::sm90_fp8_paged_mqa_logits<64u, 64u, 128u, 64u>",
        "_ZN7ck_tile6kentryILi2ENS_13FmhaFwdKernelINS_23BlockFmhaPipelineQRKSVSEEEEEvT1_",
        "aiter::mla_dec_stage1_bf16_a16w16_subQ16_mqa16",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0",
        "triton_tem_fused_flex_attention_0",
    ],
    "gemm": [
        "void wvSpltK_hf_sml_<64, 4, 16, 8, 1, 4>",
        "void mul_mat_q<(ggml_type)12, 128, false>",
        "void mul_mat_vec_q<(ggml_type)8, 1, false>",
        "nvjet_tst_128x128_64x6_1x2_h_bz_coopA_NNT",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x3_tn_align8>(Params)",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float>(cublasSplitKParams<float>)",
        "void gemv2T_kernel_val<int, int, __nv_bfloat16, float, 128, 16, 4, 4, false>",
        "void gemmk1_kernel<int, float, 256, 5, false, false, false>",
        "Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x128x64_MI16x16x1_SN_LDSB0",
        "void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)1, 0u, 7168u, 2048u, 1u>(float *)",
        "void marlin::Marlin<__nv_bfloat16, 1125899906843648l, 256, 4, 8, 8, 4, false>",
        "void machete::machete_mm_kernel<Traits>",
        "_w8a8_block_fp8_matmul",
        "void wvSplitK_hf_sml_<__hip_bfloat16, 64, 2, 16, 8, 2, 1>",
        "_lora_shrink_kernel",
        "void flashinfer::gemm::bf16_gemm_kernel<128, 64>",
        "triton_tem_fused_addmm_relu_3",
        "gemm_fusion_dot_7",
        "convolution fusion dot_general",
        "dot.3",
    ],
    "moe": [
        "fused_moe_kernel",
        "fused_moe_kernel_gptq_awq",
        "void vllm::moe::topkGatingSoftmax<8, 128, 4, 16, 32, int>(float const *, bool const *, float *, int)",
        "void vllm::moe::moe_align_block_size_kernel<int>",
        "void vllm::moe::grouped_topk_fused_kernel<float, float, int>",
        "void moe_sum_kernel<c10::BFloat16, 8>",
        "count_and_sort_expert_tokens_kernel",
        "void tensorrt_llm::kernels::cutlass_kernels::expandInputRowsKernel<__nv_bfloat16>",
        "void tensorrt_llm::kernels::cutlass_kernels::finalizeMoeRoutingKernel<__nv_bfloat16>",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<>>>",
        "bmm_E4m3_E4m3E4m3_Fp32_t128x8x128u2_s6_et64x8_m64x8x16_cga1x1x1_16dp256b_TN_transOut_schedS_bN_dynBatch_sm100a",
        "moe::dev::routing::routingRenormalize::routingIndicesClusterKernel",
        "_matmul_ogs_NNT_bf16xbf16xmxfp4_128x256x128x1_swiglu",
        "_topk_forward",
        "_combined_routing_compute",
        "void deep_gemm::fp8_gemm_kernel<GemmType::MGroupedContiguous>",
        "_fwd_kernel_ep_scatter_2",
        "aiter::fmoe_bf16_pertokenFp8_g1u1_vs_silu_1tg_32x512",
        "ck_moe_stage1_kernel",
        "_permute_kernel",
        "_sort_chunks_by_map_kernel",
    ],
    "convolution": [
        "gcnAsmConv1x1WrW",
        "naive_conv_ab_nonpacked_fwd_nchw_half_double_half",
        "Im2d2Col",
        "sm80_xmma_fprop_implicit_gemm_indexed_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_stage3",
        "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>",
        "void im2col_kernel<float>(long, float const *)",
        "cask_cudnn::computeOffsetsKernel(cask_cudnn::ComputeOffsetsParams)",
        "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x16",
        "miopenSp3AsmConv_v21_1_2_gfx9_fp32_stride1_group",
        "triton_tem_fused_convolution_4",
    ],
    "state_space": [
        "void causal_conv1d_fwd_kernel<Causal_conv1d_fwd_kernel_traits<128, 4>>",
        "void selective_scan_fwd_kernel<Selective_Scan_fwd_kernel_traits<32>>",
        "_chunk_scan_fwd_kernel",
        "_state_passing_fwd_kernel",
        "chunk_gated_delta_rule_fwd_kernel_h_blockdim64",
        "fused_recurrent_gated_delta_rule_fwd_kernel",
    ],
    "normalization": [
        "void l2_norm_f32<32>",
        "void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>",
        "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>",
        "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>",
        "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<Kernel_traits>",
        "void (anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>",
        "_ZN5aiter25add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb1EEEvPT0_",
        "cudnn::bn_fw_tr_1C11_singleread",
        "triton_red_fused_add_mean_mul_pow_rsqrt_1",
        "triton_per_fused_native_layer_norm_2",
    ],
    "rope": [
        "void vllm::rotary_embedding_kernel<c10::BFloat16, true>",
        "void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheKernel<true, 128u, 8u, 16u>",
        "void fused_rope_forward<c10::BFloat16>",
        "_triton_mrope_forward",
    ],
    "pointwise": [
        "void k_bin_bcast<&(op_add(float, float)), float, float, float>",
        "Op2dTensorGeneric",
        "MIOpenNeuronFwd",
        "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel<c10::BFloat16>, true>",
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>",
        "void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, &silu>",
        "triton_poi_fused_mul_silu_0",
        "loop_add_fusion_3",
    ],
    "embedding": [
        "void k_get_rows_float<float, float>",
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long, unsigned, 2, 2, -2, true>",
        "void at::native::vectorized_gather_kernel<16, long>",
        "split_embedding_codegen_forward_unweighted_kernel",
        "void fbgemm_gpu::permute_2D_data_kernel<int, long, float>",
    ],
    "softmax": [
        "void soft_max_f32<true, 0, 0, float>",
        "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float>",
        "void softmax_warp_forward<float, float, float, 10, false>",
        "triton_per_fused__softmax_1",
    ],
    "sampling": [
        "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024u>",
        "void flashinfer::sampling::TopPSamplingFromProbKernel<1024u>",
        "void flashinfer::sampling::RadixTopKMaskLogitsKernel_MultiCTA<1024u>",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>>>",
        "void vllm::apply_repetition_penalties_kernel<float>",
        "rejection_greedy_sample_kernel",
        "void TreeSpeculativeSamplingTargetOnly<1024u, float>",
        "apply_token_bitmask_inplace_kernel",
        "_gumbel_sample_kernel",
        "void tensorrt_llm::kernels::topKStage1<float, 256, 8>",
    ],
    "kv_cache": [
        "void k_set_rows_quant<long, block_q8_0, 32>",
        "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::Fp8KVCacheDataType)0>",
        "void vllm::reshape_and_cache_kernel<unsigned short, unsigned short>",
        "void vllm::concat_and_cache_mla_kernel<__nv_bfloat16, __nv_bfloat16>",
        "void vllm::copy_blocks_kernel<long>",
        "void vllm::gather_and_maybe_dequant_cache<unsigned short, unsigned short>",
        "void flashinfer::AppendPagedKVCacheKernel<128u, 16u>",
        "create_flashinfer_kv_indices_triton",
        "set_mla_kv_buffer_kernel",
        "write_req_to_token_pool_triton",
        "_compute_slot_mapping_kernel",
        "store_kvcache",
    ],
    "quantization": [
        "void quantize_mmq_q8_1<(mmq_q8_1_ds_layout)1>",
        "void vllm::scaled_fp8_quant_kernel<c10::BFloat16, c10::Float8_e4m3fn>",
        "void per_token_group_quant_8bit_kernel<__nv_bfloat16, __nv_fp8_e4m3>",
        "void tensorrt_llm::kernels::quantize_with_block_size<(BlockScaleQuantizationType)1, __nv_bfloat16, 16>",
        "void transformer_engine::detail::cast_transpose_fused_kernel_notaligned<false>",
        "void vllm::cvt_fp16_to_fp4<__nv_bfloat16, false>",
        "act_quant_kernel",
    ],
    "communication": [
        "all-reduce.7",
        "reduce-scatter psum_scatter",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData *, vllm::RankSignals)",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(int)1>",
        "multimem_all_reduce_kernel",
        "void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot>",
        "void deep_ep::intranode::dispatch<8, 768, 8192>(int4 *, float *)",
        "void deep_ep::internode_ll::combine<true, 7168, 9>(void *)",
        "nvshmemi_transfer_rma_on_stream",
        "void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<8>",
        "mscclKernel_Sum_half_LL",
    ],
    "optimizer": [
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<List<3>, FusedAdamMathFunctor<float>>",
        "void at::native::amp_update_scale_cuda_kernel(float *, int *)",
    ],
    "reduction": [
        "void k_sum_rows_f32<float>",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>",
        "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>",
        "void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy>",
        "triton_red_fused_sum_3",
        "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float>",
        "void at::native::(anonymous namespace)::max_pool_forward_nchw<float, int>",
    ],
    "copy": [
        "__amd_rocclr_copyBuffer",
        "__amd_rocclr_fillBufferAligned",
        "void cpy_scalar<float>",
        "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)>",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<c10::BFloat16, unsigned int, 2, 128, 1>",
        "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, (bool)0, (bool)1>(cudnn::ops::nchw2nhwc_params_t)",
    ],
    "other": ["my_kernel", "", "saxpy(int, float, float*, float*)", "property_update", "upsample_thing"],
}


@pytest.mark.parametrize(("name", "category"), [(n, c) for c, names in KERNELS.items() for n in names])
def test_categories_of_kernels(name: str, category: str) -> None:
    assert categories.classify_kernel(name).category == category


def test_names_are_classified_in_columns() -> None:
    names = pl.Series("name", ["nvjet_tst", None, "my_kernel", "nvjet_tst"], dtype=pl.Categorical)
    rows = names.to_frame().select(categories.category_expr(pl.col("name")))
    assert rows["name"].to_list() == ["gemm", "other", "other", "gemm"]
    assert names.clear().to_frame().select(categories.category_expr(pl.col("name"))).height == 0


def test_the_table_is_consistent() -> None:
    rules = schemas.load_kernel_rules()
    declared = set(rules["categories"])
    assert {rule["category"] for rule in rules["rules"]} == declared - {categories.GRAPH, categories.OTHER}
    assert set(KERNELS) == declared - {categories.GRAPH}
    classes = {rule[key] for rule in rules["rules"] for key in rule if key.startswith("class")}
    assert classes | {categories.OTHER_CLASS} <= set(CLASS_NAMES)
    assert classes | {categories.OTHER_CLASS} == set(KERNELS_BY_CLASS)
    assert all(rule["sources"] for rule in rules["rules"])
    patterns = [p for rule in rules["rules"] for key in ("patterns", "unless") for p in rule.get(key, ())]
    assert [p for p in (*patterns, *rules["precision"].values()) if re.search(r"[w.][*+]", p)] == []  # would take long


def test_overlapping_kernels_count_in_the_total_and_once_in_the_busy_time() -> None:
    frames = build_frames(
        kernels=[
            {"name": "nvjet_tst", "start_ns": 0, "end_ns": 10, "device_id": 0},
            {"name": "gemv2T", "start_ns": 5, "end_ns": 20, "device_id": 0},
            {"name": "nvjet_tst", "start_ns": 5, "end_ns": 20, "device_id": 1},
            {"name": None, "start_ns": 20, "end_ns": 21, "device_id": 1},
        ],
        memsets=[{"start_ns": 0, "end_ns": 0, "device_id": 0}],
        graph_launches=[{"start_ns": 30, "end_ns": 35, "device_id": 0}],
    )
    report = compute_report(frames, "kernel_categories").data
    columns = ("category", "total", "busy_ns", "count", "layer", "top")
    assert report.select(columns).rows() == [
        ("gemm", 40, 35, 3, None, "nvjet_tst"),
        ("graph", 5, 5, 1, None, "CUDA graph"),
        ("other", 1, 1, 1, None, None),
        ("copy", 0, 0, 1, None, "[CUDA memset]"),
    ]
    assert report["share"].sum() == pytest.approx(100)
    assert report["top_share"].to_list() == [62.5, 100, 100, None]
    assert compute_report(build_frames(), "kernel_categories").data.is_empty()


def test_layers_are_ops_without_the_numbers_of_steps() -> None:
    """Launches of two steps: a product in ``layer 1`` of each, and an addition outside of all ranges."""
    starts = {1: 2, 2: 12, 3: 30}
    ranges = [("step 0", 0, 9), ("layer 1", 1, 8), ("step 1", 10, 19), ("layer 1", 11, 18)]
    frames = build_frames(
        kernels=[build_kernel(i, t + 3, t + 7, "add" if i == 3 else "gemm") for i, t in starts.items()],
        api_calls=[build_launch(i, t) for i, t in starts.items()],
        nvtx_ranges=[build_range(n, *of) for n, of in enumerate(ranges, 1)],
    )
    rows = compute_report(frames, "kernel_categories:layer").data
    assert rows.select("layer", "category", "total", "count").rows() == [
        ("step */layer 1", "gemm", 8, 2),
        (None, "other", 4, 1),
    ]


TRACELENS = Path(__file__).parents[2] / "../shared/corpus/makers/kineto_other/AMD-AGI__TraceLens"
OWN = {
    "GEMM": {"gemm"},
    "InferenceAttention": {"attention", "kv_cache"},
    "SDPA_fwd": {"attention"},
    "MoE_aux": {"moe"},
    "MoE_unfused": {"moe"},
    "NORM_fwd": {"normalization"},
    "NORM_bwd": {"normalization"},
    "RMSNorm": {"normalization"},
    "RoPE_fwd": {"rope"},
    "CONV_fwd": {"convolution", "copy"},
    "CONV_bwd": {"convolution", "copy"},
    "elementwise": {"pointwise", "copy"},
    "reduce": {"reduction", "sampling", "softmax"},
    "triton": {"pointwise", "normalization", "reduction"},
    "multi_tensor_apply": {"optimizer"},
}
"""What TraceLens calls an op, and the categories of the kernels of such an op.

TraceLens classifies the op that launched a kernel. Therefore, a convolution has kernels that convert the layout, an op
that writes the cache belongs to attention, and a copy is elementwise.
"""
_KERNEL = re.compile(
    r"""\{'name': (?:'([^']*)'|"([^"]*)"), 'stream': [^,]+, 'count': \d+, 'total_duration_us': np\.float64\(([^)]+)\)"""
)


@pytest.mark.skipif(not TRACELENS.exists(), reason="the captures of TraceLens are not here")
def test_categories_agree_with_tracelens() -> None:
    """99.7 % of the GPU time of ops that TraceLens classifies; 20 % of all GPU time is of ops that it does not."""
    csv.field_size_limit(1 << 30)
    times: Counter[str] = Counter()
    for path in TRACELENS.rglob("ops_unique_args.csv"):
        for row in csv.DictReader(path.read_text("utf-8").splitlines(keepends=True)):
            known = OWN.get(row["op category"])
            for one, other, time in _KERNEL.findall(row["kernel_details_summary"] or ""):
                category = (
                    "copy" if (one or other).startswith("Mem") else categories.classify_kernel(one or other).category
                )
                times["unknown" if known is None else "equal" if category in known else "different"] += float(time)
    compared = times["equal"] + times["different"]
    assert times["equal"] / compared > 0.99
    assert compared / sum(times.values()) > 0.75
