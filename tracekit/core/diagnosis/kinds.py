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
        pattern: Regular expression that the names of its kernels match, or None if no name does.
    """

    name: str
    group: str
    pattern: str | None = None


_TENSOR = (
    r"tf32|tensorop|s1688|s16816|s161616|bf16|f16|bfloat16|half|_h_|hmma|_hsh_|_tst_|_s8|e4m3|e5m2|wgmma|h884|_hss_"
)
_CONVOLUTION = (
    r"implicit_gemm|implicit_convolve|wgrad|dgrad|fprop|convolve|winograd|cudnn.*conv(?!ert)|scudnn"
    r"|conv2d|conv_depthwise"
)
_MATMUL = r"gemm|nvjet|cutlass|cublas|splitk|matmul|_mm_"
CLASSES = (
    KernelClass("nccl", "communication", r"nccl"),
    KernelClass("fused_attention", "compute", r"flash|fmha|sdpa|mem_eff|attention"),
    KernelClass(
        "layout_conversion",
        "compute",
        r"nchwtonhwc|nhwctonchw|addpadding|tensortransform|transpose_readwrite|nchw2nhwc|nhwc2nchw",
    ),
    KernelClass("convolution", "compute"),
    KernelClass("convolution_fp32", "compute"),
    KernelClass("matmul", "compute"),
    KernelClass("matmul_fp32", "compute"),
    KernelClass("matrix_vector", "compute", r"gemv|gevv|dot_kernel"),
    KernelClass("softmax", "compute", r"softmax"),
    KernelClass("optimizer", "compute", r"fusedoptimizer|fused_adam|multi_tensor_apply|\badam|_adam|lamb_"),
    KernelClass(
        "normalization",
        "compute",
        r"layer_?norm|batch_?norm|bn_fw|bn_bw|gammabeta|rowwisemoments|group_?norm|welford|rms_?norm",
    ),
    KernelClass("embedding", "compute", r"embedding|index_?select|indexselect|gather_kernel|scatter"),
    KernelClass("reduction", "compute", r"reduce|norm_|scan|sort|cub::|reduction|argmax|topk"),
    KernelClass("cast_or_copy", "compute", r"direct_copy|copy_kernel|catarray|_copy_|transpose|_convert"),
    KernelClass("pooling", "compute", r"pool"),
    KernelClass(
        "pointwise",
        "compute",
        r"elementwise|triton_poi|fill|dropout|masked|loop_.*fusion|_fusion|wrapped_|distribution|pointwise",
    ),
    KernelClass("other_kernel", "compute"),
    KernelClass("opaque_graph", "opaque"),
    KernelClass("copy_h2d", "copy"),
    KernelClass("copy_d2h", "copy"),
    KernelClass("copy_d2d", "copy"),
    KernelClass("memset", "copy"),
)
"""The classes of GPU work. Where several classes run at the same time, the ledger counts the first of ``PRIORITY``."""

NUMBERS = {c.name: i for i, c in enumerate(CLASSES)}
CLASS_NAMES = tuple(c.name for c in CLASSES)
_OTHER = NUMBERS["other_kernel"]
PRIORITY = tuple(
    NUMBERS[c.name] for group in ("compute", "opaque", "communication", "copy") for c in CLASSES if c.group == group
)

CALL_KINDS = (
    *("other", "launch", "graph_launch", "copy", "memset", "synchronize", "wait_event", "record_event"),
    *("allocate", "host_allocate", "load", "query", "peer"),
)
CALL_NUMBERS = {name: i for i, name in enumerate(CALL_KINDS)}
_CALL_PATTERNS = (
    ("graph_launch", r"graphlaunch"),
    ("launch", r"launch"),
    ("load", r"module(load|getfunction)|libraryload|librarygetkernel|kernelgetfunction_load|culink|graphinstantiate"),
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
    text = name.lower()
    for number, kernel_class in enumerate(CLASSES):
        if kernel_class.name == "convolution":
            product = _classify_matrix_product(text)
            if product is not None:
                return product
        if kernel_class.pattern is not None and re.search(kernel_class.pattern, text):
            return number
    return _OTHER


def _classify_matrix_product(text: str) -> int | None:
    """Return the class of a convolution or matrix product, by whether it runs on Tensor Cores, or None."""
    if "splitkreduce" in text or "gemv" in text or "gemm_softmax" in text:
        return None
    tensor = re.search(_TENSOR, text) is not None
    if re.search(_CONVOLUTION, text) and "im2col" not in text and "nhwcaddpadding" not in text:
        return NUMBERS["convolution" if tensor else "convolution_fp32"]
    if not re.search(_MATMUL, text):
        return None
    fp32 = re.search(r"simt|ffma|sgemm|f32f32_f32f32|sm\d+_xmma_gemm_f32|sst_|gemm_f32|sgemv", text) and not tensor
    return NUMBERS["matmul_fp32" if fp32 else "matmul"]


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
