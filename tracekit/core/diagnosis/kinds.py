"""Classify kernels, memory copies and API calls by their names.

Classes and kinds are numbers, so that whole columns can be compared. A name is classified once, however often it
occurs. The rules for kernels are those of ``core/categories``. The rules for API calls are regular expressions on names
in lower case; the first rule that matches decides.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tracekit.core.categories import classify_kernel

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
    return NUMBERS[classify_kernel(name).diagnosis_class]


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
