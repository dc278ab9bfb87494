"""Classify kernels, memory copies and API calls by their names.

Classes and kinds are numbers, so that whole columns can be compared. A name is classified once, however often it
occurs. The rules are regular expressions on names of kernels of CUDA libraries, PyTorch, Triton and XLA, in lower case;
the first rule that matches decides.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    Codes = npt.NDArray[np.int8]


class KernelClass(NamedTuple):
    """A class of GPU work.

    Attributes:
        name: Name in the ledger.
        group: Group in the ledger: ``compute``, ``communication``, ``copy`` or ``opaque``.
    """

    name: str
    group: str


COMPUTE_CLASSES = (
    *("fused_attention", "layout_conversion", "convolution", "convolution_fp32", "matmul", "matmul_fp32"),
    *("matrix_vector", "softmax", "optimizer", "normalization", "embedding", "reduction", "cast_or_copy", "pooling"),
    *("pointwise", "other_kernel"),
)
CLASSES = (
    KernelClass("nccl", "communication"),
    *(KernelClass(name, "compute") for name in COMPUTE_CLASSES),
    KernelClass("opaque_graph", "opaque"),
    *(KernelClass(name, "copy") for name in ("copy_h2d", "copy_d2h", "copy_d2d", "memset")),
)
"""The classes of GPU work."""

NUMBERS = {c.name: i for i, c in enumerate(CLASSES)}
CLASS_NAMES = tuple(c.name for c in CLASSES)
COMPUTE = tuple(c.name for c in CLASSES if c.group == "compute")
_OTHER = NUMBERS["other_kernel"]

_TENSOR = (
    r"tf32|tensorop|[shi]884|s1688|[hs]16816|s161616|i8816|i16832|bf16|fp?16|bfloat16|half|_h_|hmma|_hsh_|_tst_|_hss_|_s8"
    r"|e4m3|e5m2|e2m1|fp8|mxfp|wgmma|gmma|umma|tcgen05|mfma|xdl|cijk_\w+_(hhs|hbh|bbs|bhs|hss|bss|i8)|cijk_\w+_sb<bf"
)
_CONVOLUTION = (
    r"implicit_gemm|implicit_convolve|wgrad|dgrad|fprop|convolve|convolution|winograd|cudnn.*conv(?!ert)|scudnn"
    r"|(884|1688|16816|[hi])cudnn|(^|[^a-z])conv[123]d|conv_?depthwise|depthwise_?conv|miopen.*conv|miopensp3asm"
    r"|igemm_(fwd|bwd|wrw)|gridwise_\w*conv|conv_(fwd|bwd|wrw)|fft2d_[rc]2[rc]|flip_filter"
)
_NO_MATRIX_PRODUCT = (
    r"splitk_?reduce|gemv|gemm_softmax|gemmsn_|gemmk1_|im2col|addpadding|converttensor|pooling|activation::"
)
_MATMUL = (
    r"gemm|nvjet|cutlass|cublas|split_?k|matmul|(^|_)b?mm_|cijk_|moe_(kernel|stage\d|fused)|fused_moe|_dot_|addmm|marlin"
    r"|machete"
)
_FP32 = r"simt|ffma|sgemm|f32f32_f32f32|sm\d+_xmma_gemm_f32|sst_|gemm_f32|sgemv|cijk_\w+_sb_"
_FLOAT_ARGUMENTS, _SHORT_ARGUMENTS = r"\bfloat[ \d]*(const ?)?[*&]", r"half|bfloat16|fp8|int8|char"
_PRODUCT = ""
_KERNEL_PATTERNS = (
    # The names of TorchInductor list all operators that a kernel fuses, so its kind decides.
    ("pooling", r"triton_poi\w*_pool"),
    ("pointwise", r"triton_poi"),
    ("softmax", r"triton_(per|red)\w*(softmax|(amax|max)_\w*exp_)"),
    ("normalization", r"triton_(per|red)\w*(norm|var_mean|welford)"),
    ("reduction", r"triton_(per|red)"),
    (
        "nccl",
        (
            r"nccl|rccl|nvshmem|mscclpp|cross_device_reduce|multimem_|(?<!block)(?<!warp)all_?reduce|all_?gather"
            r"|reduce_?scatter|all_?to_?all"
        ),
    ),
    (
        "fused_attention",
        (
            r"flash|fmha|sdpa|mem_eff|attention|attn_?(fwd|bwd|forward|backward)|(fwd|bwd|fused|paged|decode)_?attn"
            r"|(decode|prefill)withpaged|compute_dot_do_o|convert_dq_to"
        ),
    ),
    (
        "layout_conversion",
        (
            r"nchwtonhwc|nhwctonchw|addpadding|tensortransform|transpose_readwrite|nchw2nhwc|nhwc2nchw|nchwtonc"
            r"|swapdimension|shuffleintensor|genericreformat|generic_reformat|copypackedkernel|batched_transpose_\d"
        ),
    ),
    (_PRODUCT, ""),
    ("matrix_vector", r"gemv|gevv|dot_kernel|spmv|csrmv|csrmm|gemmsn_|gemmk1_"),
    ("softmax", r"softmax|exponential_reduce"),
    (
        "optimizer",
        (
            r"fusedoptimizer|fused_?adam|multi_tensor|\badam|_adam|lamb_|adagrad|rmsprop|fused_?sgd"
            r"|apply_?(adam|momentum|gradientdescent)"
        ),
    ),
    (
        "normalization",
        (
            r"layer_?norm|batch_?norm|bn_fw|bn_bw|gammabeta|rowwisemoments|group_?norm|instance_?norm|welford"
            r"|rms_?norm|compute(internalgradients|fusedparams|backwardfusedparams)|(^|_)ln_(fwd|bwd)"
            r"|nvfuser_(inner|outer)"
        ),
    ),
    ("pointwise", r"rotary|(^|[^a-z])rope([^a-z]|$)|for_?each::|parallel_?for|transform_kernel"),
    (
        "embedding",
        (
            r"embedding|index_?select|gather_?(kernel|nd)|scatter|compute_grad_weight|partials?_(per_)?segment"
            r"|index_put|indexing_backward"
        ),
    ),
    (
        "reduction",
        (
            r"reduce|norm_|scan|sort|cub::|reduction|argmax|argmin|topk|cumsum|cumprod|histogram|nll_loss"
            r"|_sum(_kernel)?$|cupy_(sum|max|min|mean|prod|any|all|amax|amin)|nrm2|asum_|bincount"
        ),
    ),
    (
        "cast_or_copy",
        (
            r"direct_copy|copy_kernel|catarray|_copy_|transpose|_convert|convert_?tensor"
            r"|tensor(conversion|slicing|padding|stridingslicing)op|concat|splitv?op|_slice|pad_?input|store_?kv"
            r"|and_cache|quant(ize)?_|permute|repack|withcasttensor"
        ),
    ),
    ("pooling", r"pool"),
    (
        "pointwise",
        (
            r"elementwise|elemwise|fill|dropout|masked|loop_.*fusion|(^|_)fusion|wrapped_|distribution|pointwise"
            r"|cupyx?_\w+__|eigenmetakernel|bias(nhwc|nchw|add|_add|_act)|(re|ge|se)lu|silu|swi?glu|act_and_mul"
            r"|activation|sigmoid|tanh|axpy_kernel|random|curand|philox|bernoulli|nvfuser_|op_?tensor|tensorop"
            r"|scalepackedtensor|lstm_cell|gru_cell|triu|arange|unrolled_|vectorized_"
        ),
    ),
)
"""Classes of kernels and regular expressions on their names in lower case, of which the first that matches decides.

``_PRODUCT`` stands for matrix products and convolutions, whose classes depend on the use of Tensor Cores, too.
"""

CALL_KINDS = (
    *("other", "launch", "graph_launch", "copy", "memset", "synchronize", "wait_event", "record_event"),
    *("allocate", "host_allocate", "load", "query", "peer"),
)
CALL_NUMBERS = {name: i for i, name in enumerate(CALL_KINDS)}
_CALL_PATTERNS = (
    ("graph_launch", r"graphlaunch"),
    ("launch", r"launch"),
    (
        "load",
        r"module(un)?load|modulegetfunction|library(un)?load|librarygetkernel|kernelgetfunction_load|culink|graphinstantiate",
    ),
    ("load", r"funcgetattributes_load|nvrtc|funcload|moduleloaddata"),
    (
        "host_allocate",
        r"hostalloc|hostmalloc|hostfree|hostregister|hostunregister|mallochost|freehost|memallochost|memfreehost",
    ),
    ("other", r"mallocasync|freeasync|memallocfrompool|mempool"),
    ("allocate", r"malloc|memalloc|cudafree|memfree|memcreate|memmap|memunmap|memrelease|memsetaccess|addressreserve"),
    ("copy", r"memcpy"),
    ("memset", r"memset"),
    ("wait_event", r"streamwaitevent"),
    ("synchronize", r"(device|stream|event|ctx|thread|context|queue)synchronize|zesynchronize|hostsynchronize"),
    ("record_event", r"eventrecord"),
    ("query", r"(stream|event)query|iscapturing|getlasterror|peekatlasterror|getdevice|getattribute|getname"),
)


def classify_kernel_name(name: str) -> int:
    """Return the number of the class of a kernel, given its name."""
    text, arguments = _split_arguments(name.lower())
    for class_name, pattern in _KERNEL_PATTERNS:
        if class_name == _PRODUCT:
            product = _classify_matrix_product(text, arguments)
            if product is not None:
                return product
        elif re.search(pattern, text):
            return NUMBERS[class_name]
    return _OTHER


def _split_arguments(text: str) -> tuple[str, str]:
    """Return the name of a C++ function with its template arguments, and the list of its arguments or ""."""
    if not text.endswith(")"):
        return text, ""
    depth = 0
    for position in range(len(text) - 1, -1, -1):
        depth += (text[position] == ")") - (text[position] == "(")
        if not depth:
            return text[:position], text[position:]
    return text, ""


def _classify_matrix_product(text: str, arguments: str) -> int | None:
    """Return the class of a convolution or matrix product, by whether it runs on Tensor Cores, or None."""
    if re.search(_NO_MATRIX_PRODUCT, text):
        return None
    tensor = re.search(_TENSOR, text) is not None or re.search(_SHORT_ARGUMENTS, arguments) is not None
    if re.search(_CONVOLUTION, text):
        return NUMBERS["convolution" if tensor else "convolution_fp32"]
    if not re.search(_MATMUL, text):
        return None
    is_fp32 = re.search(_FP32, text) or re.search(_FLOAT_ARGUMENTS, arguments)
    return NUMBERS["matmul_fp32" if is_fp32 and not tensor else "matmul"]


def classify_call_name(name: str) -> int:
    """Return the number of the kind of an API call, given the name of the function."""
    text = name.lower()
    for kind, pattern in _CALL_PATTERNS:
        if re.search(pattern, text):
            return CALL_NUMBERS[kind]
    return CALL_NUMBERS["other"]


def map_names(names: pl.Series, classify: Callable[[str], int], default: int) -> Codes:
    """Return the number that a function assigns to each name. The function is called once per distinct name.

    Args:
        names: Categorical or String names. A null gets the default.
        classify: The function, which returns a number below 128.
        default: The number of nulls.
    """
    distinct = names.unique().drop_nulls()
    texts = distinct.cast(pl.String).to_list()
    table = pl.DataFrame({"name": distinct, "number": pl.Series([classify(t) for t in texts], dtype=pl.Int8)})
    rows = names.to_frame("name").join(table, on="name", how="left", maintain_order="left")
    return rows["number"].fill_null(default).to_numpy()


def select_classes(codes: Codes, names: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return which of the numbers belong to one of the named classes."""
    table = np.zeros(len(CLASSES), np.bool_)
    table[[NUMBERS[n] for n in names]] = True
    return table[codes]
