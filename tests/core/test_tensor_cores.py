"""Which kernels run on Tensor Cores, against DLProf's answers and Nsight Compute's counts."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import tomllib
import warnings
from typing import TYPE_CHECKING

import polars as pl
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import FIXTURES, ROOT, SHARED
from tracekit.core import tensor_cores

if TYPE_CHECKING:
    from pathlib import Path

DECLARED = tomllib.loads((ROOT / "schemas" / "tensor_cores.toml").read_text("utf-8"))
CORPUS = SHARED / "corpus"
WITH = [
    "volta_h884gemm_64x128_ldg8_nn",
    "volta_fp16_s884cudnn_fp16_128x128_ldg8_relu_f2f_exp_small_nhwc_tn_v1",
    "turing_fp16_s1688gemm_fp16_256x64_ldg8_f2f_nn",
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
    "void cutlass::Kernel<cutlass_80_tensorop_d884gemm_32x32_16x5_nn_align1>(T1::Params)",
    "sm80_xmma_fprop_implicit_gemm_f16f16_f16f16_f16_nhwckrsc_nhwc_tilesize128x64x64_stage3_warpsize2x2x1_g1_tensor16x8x16_execute_kernel_trt",
    "sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
    "nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NTN",
    "nvjet_sm100_tst_mma_128x256x64_4_48x256x64_cta1_tmaAB_bz_TNT",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0",
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<(int)64>>(T1)",
    "fmha_cutlassF_f16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::half_t>::Params)",
]
WITHOUT = [
    "volta_sgemm_128x64_nn",
    "ampere_sgemm_128x64_nn",
    "volta_scudnn_128x64_relu_interior_nn_v1",
    "void cutlass::Kernel<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>(T1::Params)",
    "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x64x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas",
    "sm50_xmma_pooling_coalescedC_NHWC_kMAX_3_False_execute_kernel_trt",
    "void cublasLt::splitKreduce_kernel<(int)32, (int)16, int, __half>(T1)",
    "void pytorch_flash::flash_bwd_dot_do_o_kernel<(bool)1>(T1)",
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::CUDAFunctor_add<float>>(int, T2, T3)",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
    "sized_name_1688",
    "conv2d_c1_k1_nchw_shmem_tiling",
    "triton_poi_fused_addmm_relu_0",
    "triton_per_fused_native_layer_norm_0",
    "triton_per_fused_convolution_sum_2",
    "loop_reduce_fusion_1",
    "add_kernel",
]
UNKNOWN = [
    "gemm_fusion_dot_3",
    "gemm_fusion_dot_general_1",
    "triton_gemm_dot_12",
    "triton_tem_fused_mm_0",
    "triton_tem_fused_add_addmm_relu_t_4",
    "triton_red_fused_mm_0",
    "matmul_kernel",
    "_attn_fwd",
    "_fwd_kernel",
    "gemm_sized_name_1688",
]


def uses(names: list[str | None], mode: tensor_cores.Mode = "extended") -> list[bool | None]:
    return (
        pl.DataFrame({"name": names}, schema={"name": pl.String})
        .select(tensor_cores.uses_tensor_cores_expr(pl.col("name"), mode=mode))["name"]
        .to_list()
    )


def dlprof(name: str) -> bool:
    """DLProf's rule, one substring after the other."""

    def spelled(told: dict[str, object]) -> list[str]:
        return [*told["any"], *(a.replace("{n}", str(n)) for g in told["sizes"] for a in g["any"] for n in g["n"])]  # type: ignore[misc,attr-defined]

    told = DECLARED["dlprof"]
    told = told["instead"] if told["instead"]["when"] in name else told
    return any(s in name for s in spelled(told)) and not any(s in name for s in told["none"])


FRAGMENTS = [
    *DECLARED["dlprof"]["any"],
    *DECLARED["dlprof"]["none"],
    *DECLARED["dlprof"]["instead"]["none"],
    "cudnnRNNMode",
    "<__half, __half, float, (cudnnRNNMode_t)2, true",
    "localMLPKernel<__half, 4, 64,",
    "sgemm",
    "_",
    "s16",
    "816",
]


@given(st.lists(st.lists(st.sampled_from(FRAGMENTS), max_size=4).map("".join), max_size=12))
def test_dlprof_mode_is_the_rule(names: list[str]) -> None:
    assert uses([*names], "dlprof") == [dlprof(n) for n in names]


@pytest.mark.parametrize("name", WITH)
def test_extended_knows(name: str) -> None:
    assert uses([name]) == [True]


@pytest.mark.parametrize("name", WITHOUT)
def test_extended_leaves_out(name: str) -> None:
    assert uses([name]) == [False]


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_a_name_cannot_tell_is_unknown(name: str) -> None:
    """Both kinds of kernels have such names; DLProf knew two answers only."""
    assert uses([name]) == [None]
    assert uses([name], "dlprof") == [False]


@given(st.lists(st.sampled_from([*WITH, *WITHOUT, *UNKNOWN, None])))
def test_each_name_is_judged_alone(names: list[str | None]) -> None:
    assert uses([*names]) == [None if n in UNKNOWN else n and n in WITH for n in names]


def test_names_may_be_categories_and_missing() -> None:
    names = pl.Series("name", [WITH[0], None, WITHOUT[0], WITH[0]])
    for dtype in (pl.String, pl.Categorical, pl.Enum([WITH[0], WITHOUT[0]])):
        frame = pl.DataFrame({"name": names.cast(dtype), "group": [1, 1, 2, 2]}).lazy()
        made = frame.with_columns(tc=tensor_cores.uses_tensor_cores_expr(pl.col("name"))).collect()
        assert made["tc"].to_list() == [True, None, False, True]
        by_group = frame.group_by("group").agg(tensor_cores.uses_tensor_cores_expr(pl.col("name")).any()).sort("group")
        assert by_group.collect()["name"].to_list() == [True, True]


def test_unknown_modes_are_refused() -> None:
    with pytest.raises(ValueError, match="the mode must be 'extended' or 'dlprof'"):
        tensor_cores.uses_tensor_cores_expr(pl.col("name"), mode="exact")  # type: ignore[arg-type]


def test_patterns_are_declared_whole() -> None:
    for pattern in tensor_cores.load_extended_kernel_rules():
        assert pattern.keys() == {"regex", "doc", "since", "evidence"}
        assert re.fullmatch(r"\d+\.\d", pattern["since"])
        assert pattern["evidence"] in {"measured", "name", "dlprof", "source"}
        re.compile(pattern["regex"])
    assert all(p.keys() == {"regex", "doc"} for p in DECLARED["never"])
    assert all(p.keys() - {"unless"} == {"regex", "doc", "evidence"} for p in DECLARED["unknown"])


def test_support_of_op_types() -> None:
    types = [
        "Conv2d",
        "linear",
        "backward",
        "relu",
        "aten::addmm",
        "AddmmBackward0",
        "scaled_dot_product_attention",
        None,
    ]
    frame = pl.DataFrame({"type": types})
    old = frame.select(tensor_cores.support_status_expr(pl.col("type"), mode="dlprof"))["type"].to_list()
    new = frame.select(tensor_cores.support_status_expr(pl.col("type").cast(pl.Categorical)))["type"].to_list()
    assert old == [0, 0, 2, 3, 3, 3, 3, None]
    assert new == [0, 0, 2, 3, 0, 0, 0, None]
    theirs = pl.DataFrame({"type": ["CudnnRNNV3", "_XlaRun", "Cast"]})
    found = theirs.select(tensor_cores.support_status_expr(pl.col("type"), framework="tensorflow", mode="dlprof"))[
        "type"
    ].to_list()
    assert found == [0, 2, 3]
    could = frame.select(tensor_cores.is_eligible_expr(pl.col("type")))["type"].to_list()
    assert could == [True, True, False, False, True, True, True, None]


def test_training_in_float32_uses_them_for_convolutions_only() -> None:
    """PyTorch lets convolutions of float32 run in TF32 unless told otherwise, products not."""
    with tk.load(FIXTURES / "ops" / "emit_nvtx.nsys-rep") as trace:
        launched = trace.correlate().frame("kernels").select("name", path=pl.col("range_path").cast(pl.String))
        used = launched.with_columns(tc=tensor_cores.uses_tensor_cores_expr(pl.col("name"))).filter("tc").collect()
    name = used["name"].cast(pl.String)
    single = used["path"].str.contains("iteration [345]/|iteration [345]$")
    assert single.any()
    assert name.filter(single).str.contains("tf32").all()
    assert name.filter(~single).str.contains("nvjet_sm90_hsh_").any()


@pytest.mark.slow
def test_ops_say_when_it_is_unknown() -> None:
    """XLA's products have names of both kinds of kernels; those who answer as DLProf did know two answers."""
    with tk.load(FIXTURES / "ops" / "jax_scopes.nsys-rep") as trace:
        extended, dlprof = (
            trace.rollup(tensor_cores=mode).frame("ops").select("op_name", "uses_tensor_cores").collect()
            for mode in ("extended", "dlprof")
        )
    unknown = extended.filter(pl.col("uses_tensor_cores").is_null())["op_name"].cast(pl.String)
    assert unknown.len() > 0
    assert unknown.str.contains("dot").all()
    assert dlprof["uses_tensor_cores"].null_count() == 0


PLAIN = r"^(plain|norm|pool|order|copy|embedding|triton (add|softmax)) "
ANY_NAME = r"^(dot|add|softmax)_kernel$"
"""Triton kernels of programs: their names tell nothing."""


def counted() -> pl.DataFrame:
    """Kernels whose matrix instructions Nsight Compute counted: ``name``, ``uses``; null where the counts do not tell.

    The counter of HMMA also counts plain arithmetic (``HFMA2.MMA``), less than 2 % of all instructions where nothing is
    multiplied but numbers, and up to 4.3 % in additions of halves. Products of matrices have more than 5 %.
    """
    with tk.load(FIXTURES / "tensor_cores" / "kernels.csv") as trace:
        rows = trace.wide().lazy().with_columns(pl.col("name", "range_path").cast(pl.String)).collect()
    pipe = {kind: pl.col(f"sm__inst_executed_pipe_tensor_op_{kind}.sum") for kind in ("hmma", "gmma", "imma", "dmma")}
    share = (pipe["hmma"] - pipe["gmma"]) / pl.col("sm__inst_executed.sum")
    exact = pipe["gmma"] + pipe["imma"] + pipe["dmma"] > 0
    plain = pl.col("range_path").str.contains(PLAIN).fill_null(value=False)
    uses = pl.when(exact).then(1).when(plain | (share < 0.02)).then(0).when(share > 0.05).then(1)
    named = rows.filter(~pl.col("name").str.contains(ANY_NAME)).with_columns(uses=uses.cast(pl.Boolean))
    return named.group_by("name").agg(pl.col("uses").max())


def test_every_kernel_that_was_counted() -> None:
    found = counted().with_columns(said=tensor_cores.uses_tensor_cores_expr(pl.col("name")))
    judged = found.drop_nulls("uses")
    assert (found.height, judged.height) == (263, 252)
    assert judged.filter(pl.col("said") & ~pl.col("uses"))["name"].to_list() == []
    assert judged.filter(~pl.col("said") & pl.col("uses"))["name"].to_list() == []
    assert judged.filter(pl.col("said").is_null())["name"].to_list() == ["triton_tem_fused_mm_0"]
    assert judged["uses"].sum() == 74


ONE_WAY = {
    *("matmul_by_sums", "dot_scaled_kernel"),
    *("triton_tem_fused__to_copy_mm_0", "triton_tem_fused__to_copy_mm_1", "triton_tem_fused__grouped_mm_0"),
    "triton_per_fused_mm_0",
}
"""Kernels that were counted one way only, and are unknown.

Other programs may give the first two names to other kernels. Products after a cast and grouped products were counted in
half precision only, in which all products use Tensor Cores. The last one sums up the parts of a product.
"""


def generated() -> pl.DataFrame:
    """Launches of kernels that Triton and XLA made: ``name``, ``case``, ``data_type``, ``precision``, ``uses``.

    Of Triton's the executed opcodes are known. Of XLA's the counters of the pipe, of which HMMA's also counts plain
    arithmetic: null where nothing else was counted.
    """
    rows = pl.read_csv(FIXTURES / "tensor_cores" / "generated.csv")
    by_pipe = pl.when(pl.col("gmma") + pl.col("imma") + pl.col("dmma") > 0).then(1).when(pl.col("hmma") == 0).then(0)
    uses = pl.coalesce((pl.col("matrix_opcodes") != "none").cast(pl.Int32), by_pipe).cast(pl.Boolean)
    return rows.with_columns(uses=uses)


def test_opcodes_and_pipes_agree() -> None:
    """What the opcodes tell of Triton's kernels, the rule for XLA's would have told too, or nothing."""
    rows = generated().drop_nulls("matrix_opcodes")
    exact = pl.col("gmma") + pl.col("imma") + pl.col("dmma") > 0
    assert rows.filter(exact & ~pl.col("uses")).height == 0
    assert rows.filter((pl.col("hmma") == 0) & ~exact & pl.col("uses")).height == 0
    assert rows.filter(~exact & (pl.col("hmma") > 0))["uses"].n_unique() == 2


def test_every_generated_kernel_that_was_counted() -> None:
    rows = generated()
    assert (rows.height, rows["uses"].null_count(), rows["name"].n_unique()) == (393, 47, 88)
    numbered = pl.col("name").str.replace(r"_\d+$", "")  # compilers number what they call alike
    over = {"some": pl.col("uses").any().over(numbered), "every": pl.col("uses").all().over(numbered)}
    known = rows.drop_nulls("uses").with_columns(**over, stem=numbered).unique("name")
    said = known.with_columns(said=tensor_cores.uses_tensor_cores_expr(pl.col("name")))
    assert said.filter(pl.col("said") & ~pl.col("every"))["name"].to_list() == []
    assert said.filter(~pl.col("said") & pl.col("some"))["name"].to_list() == []
    unknown = said.filter(pl.col("said").is_null())
    assert unknown.filter(pl.col("some") & ~pl.col("every"))["stem"].n_unique() == 18
    assert set(unknown.filter(pl.col("some") == pl.col("every"))["name"]) == ONE_WAY


@pytest.mark.parametrize(("compiler", "precisions"), [("triton", ["ieee"]), ("xla", ["highest"])])
def test_products_of_float32_use_them_unless_exact(compiler: str, precisions: list[str]) -> None:
    """What names cannot tell: float32 in the highest precision runs on FMA units, every other type does not."""
    product = "gemm_fusion" if compiler == "xla" else r"^(dot|matmul)_kernel|^_attn_fwd"
    rows = (
        generated().filter((pl.col("compiler") == compiler) & pl.col("name").str.contains(product)).drop_nulls("uses")
    )
    exact = (pl.col("data_type") == "float32") & pl.col("precision").is_in(precisions).fill_null(value=False)
    assert not rows.filter(exact)["uses"].any()
    assert rows.filter(~exact)["uses"].all()
    assert rows.filter(exact).height >= 4
    assert rows.filter(~exact)["data_type"].n_unique() == 7


def test_what_is_called_unknown_was_counted_both_ways() -> None:
    rows = generated().drop_nulls("uses")
    for rule in DECLARED["unknown"]:
        if rule["evidence"] == "measured":
            assert rows.filter(pl.col("name").str.contains(rule["regex"]))["uses"].n_unique() == 2, rule["regex"]


def test_what_is_called_measured_was() -> None:
    names = pl.concat([counted().filter("uses")["name"], generated().filter("uses")["name"]])
    for pattern in tensor_cores.load_extended_kernel_rules():
        if pattern["evidence"] == "measured":
            assert names.str.contains(pattern["regex"]).any(), pattern["regex"]


def measured(path: Path) -> pl.DataFrame:
    """Kernel names of a result of Nsight Compute, and the highest figure of any metric of the tensor pipe."""
    with warnings.catch_warnings(), tk.load(path) as trace:
        warnings.simplefilter("ignore", tk.TracekitWarning)
        metric = pl.col("metric").cast(pl.String)
        pipe = metric.str.contains("pipe_tensor") & ~metric.str.contains(r"breakdown|peak_sustained(\.|$)|Triage")
        values = trace.frame("ncu_metrics").filter(pipe).group_by("launch_id").agg(pl.col("value").max())
        kernels = trace.frame("ncu_launches").filter(pl.col("kind") == "kernel").select("launch_id", "name")
        return kernels.join(values, "launch_id").drop_nulls().with_columns(pl.col("name").cast(pl.String)).collect()


def check_measured(found: pl.DataFrame) -> None:
    """Kernels that leave the tensor pipe idle, or nearly, are not said to use it, and others are not in doubt.

    All that these results hold are percentages; plain arithmetic keeps the pipe busy for 7 % at most.
    """
    said = found.with_columns(said=tensor_cores.uses_tensor_cores_expr(pl.col("name")))
    assert said.filter(pl.col("said") & (pl.col("value") < 7))["name"].to_list() == []
    assert said.filter(~pl.col("said") & (pl.col("value") >= 7))["name"].to_list() == []


@pytest.mark.parametrize("path", sorted((FIXTURES / "ncu").glob("*.ncu-rep")), ids=lambda p: p.stem)
def test_no_false_positive_among_profiled_kernels(path: Path) -> None:
    found = measured(path)
    check_measured(found)
    assert found.height > 0 or path.stem in {"ncu_nvtx", "ncu_range"}


@pytest.mark.corpus
def test_no_false_positive_in_corpus() -> None:
    paths = [p for kind in ("ncu_csv", "ncu_rep") for p in sorted((CORPUS / kind).rglob("*")) if p.is_file()]
    if not paths:
        pytest.skip("no corpus")
    kernels = []
    for path in paths:
        try:
            kernels.append(measured(path))
        except tk.TracekitError:
            continue
    found = pl.concat(kernels)
    assert found["name"].n_unique() >= 20
    check_measured(found)


@pytest.mark.corpus
@pytest.mark.parametrize("path", sorted(CORPUS.glob("dlprof/**/*.sqlite")), ids=lambda p: p.stem)
def test_dlprof_mode_answers_as_dlprof(path: Path) -> None:
    named = "SELECT string, {} FROM {} t JOIN dictionary d ON d.id = t.{} GROUP BY string"
    query = named.format("max(uses_tc)", "read_only_kernels", "long_name_id")
    types = named.format("min(tc_support_status)", "read_only_ops", "op_type_id")
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as db:
        kernels, ops = db.execute(query).fetchall(), db.execute(types).fetchall()
    assert uses([k[0] for k in kernels], "dlprof") == [bool(k[1]) for k in kernels]
    said = pl.DataFrame({"type": [o[0] for o in ops]}).select(
        tensor_cores.support_status_expr(pl.col("type"), mode="dlprof")
    )["type"]
    # types that stand for kernels and calls outside of ops are "may use"
    assert all(
        mine == theirs or (mine, theirs) == (3, 2) for mine, theirs in zip(said, (o[1] for o in ops), strict=True)
    )


@pytest.mark.parametrize(
    ("device", "call", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "cudaLaunchKernel", True),
        ("AMD Instinct MI300X", "cudaLaunchKernel", None),
        ("gfx942", "cudaLaunchKernel", None),
        ("", "hipLaunchKernel", None),
    ],
)
def test_amd_gpus_have_no_tensor_cores(device: str, call: str, expected: bool | None, tmp_path: Path) -> None:
    """Ops on them do not say whether they use any, and no finding asks for it."""
    op = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 2, "ts": 10, "dur": 9}
    launch = {"ph": "X", "cat": "cuda_runtime", "name": call, "pid": 1, "tid": 2, "ts": 11, "dur": 2}
    place = {"device": 0, "context": 1, "stream": 7}
    kernel = {"ph": "X", "cat": "kernel", "name": WITH[3], "pid": 0, "tid": 7, "ts": 20, "dur": 50}
    events = [op, launch | {"args": {"correlation": 1}}, kernel | {"args": {"correlation": 1, **place}}]
    document = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": device}], "traceEvents": events}
    path = tmp_path / "t.pt.trace.json"
    path.write_text(json.dumps(document), "utf-8")
    with tk.load(path) as trace:
        rolled = trace.rollup()
        assert rolled.table("ops")["uses_tensor_cores"].to_pylist() == [expected]
        assert rolled.table("ops")["kernel_count"].to_pylist() == [1]
        assert trace.rollup(tensor_cores="dlprof").table("ops")["uses_tensor_cores"].to_pylist() == [True]
