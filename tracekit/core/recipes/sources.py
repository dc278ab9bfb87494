"""Read the kernels, memory operations and ranges for several recipes, with names as in the recipes of nsys."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.reports import sources as report_sources
from tracekit.core.reports.names import read_runtime_prefix
from tracekit.core.runtimes import COLLECTIVE_KERNEL
from tracekit.core.series import map_categories_expr, match_categories_expr

if TYPE_CHECKING:
    from tracekit.core.reports.report import Frames, Request

NCCL_DOMAIN = "NCCL"
_COPY_KINDS = {
    "Unknown": "UNKNOWN",
    "Host-to-Device": "HTOD",
    "Device-to-Host": "DTOH",
    "Host-to-Array": "HTOA",
    "Array-to-Host": "ATOH",
    "Array-to-Array": "ATOA",
    "Array-to-Device": "ATOD",
    "Device-to-Array": "DTOA",
    "Device-to-Device": "DTOD",
    "Host-to-Host": "HTOH",
    "Peer-to-Peer": "PTOP",
    "Unified Host-to-Device": "UVM_HTOD",
    "Unified Device-to-Host": "UVM_DTOH",
    "Unified Device-to-Device": "UVM_DTOD",
}


def read_kernels(request: Request, *columns: str) -> pl.LazyFrame:
    """Read kernels in file order, with the given columns and the ``name`` that the option ``kernel_name`` selects."""
    kind = request.options.get("kernel_name")
    flags = {"base": kind == "short", "mangled": kind == "mangled"}
    return report_sources.read_kernels(replace(request, options=flags), *columns)


def read_memory_operations(frames: Frames, *columns: str) -> pl.LazyFrame:
    """Read memory copies, followed by memory sets.

    The columns are ``name``, such as ``CUDA_MEMCPY_KIND_HTOD``, and the given columns.
    """
    prefix = f"{read_runtime_prefix(frames)}MEM".replace(" ", "_")

    def memcpy_name_expr(label: pl.Expr) -> pl.Expr:
        return pl.concat_str(pl.lit(f"{prefix}CPY_KIND_"), label.replace_strict(_COPY_KINDS, default=label))

    copies = frames("memcpys").select(
        map_categories_expr(pl.col("copy_kind"), memcpy_name_expr).alias("name"), *columns
    )
    sets = frames("memsets").select(pl.lit(f"{prefix}SET").cast(pl.Categorical).alias("name"), *columns)
    return pl.concat([copies, sets])


def read_ranges(frames: Frames, domain: str | None = None) -> pl.LazyFrame:
    """Read the NVTX ranges of one domain, or of all domains. The end of an open range is null."""
    rows = report_sources.read_ranges(frames)
    return rows if domain is None else rows.filter(pl.col("domain") == domain)


def is_nccl_kernel_expr() -> pl.Expr:
    """Return an expression for whether the Categorical column ``name`` contains the name of an NCCL kernel."""
    return match_categories_expr(pl.col("name"), lambda names: names.str.contains(COLLECTIVE_KERNEL))
