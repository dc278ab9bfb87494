"""Compute the rules for CUDA API calls that block the CPU: synchronous memory operations and synchronizations.

As in nsys, the rules apply to functions of the runtime API (``cudaMemcpy``), not of the driver API (``cuMemcpyHtoD``).
They also apply to runtimes of other makers (``hipMemcpy``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.relations import CALL, THREAD, join_calls
from tracekit.core.reports.summary import DURATION, sort_longest_first
from tracekit.core.runtimes import RUNTIME_PREFIX
from tracekit.core.series import match_categories_expr

if TYPE_CHECKING:
    from tracekit.core.reports.report import Request

_SYNC_COPY, _SYNC_SET = f"{RUNTIME_PREFIX}Memcpy", f"{RUNTIME_PREFIX}Memset"
_ASYNC_COPY = f"{_SYNC_COPY}.*Async"
_ASYNC = "Async"
_WAITS = f"{RUNTIME_PREFIX}(?:Device|Stream)Synchronize"
_HOST_TO_DEVICE = "Host-to-Device"
_MAX_BUFFERED_BYTES = 64_000  # as in nsys; the driver buffers such copies and returns before they are done
_BLOCKING_KINDS = ("Pinned", "Managed")  # sets of device memory do not block the CPU
_PLACE = ("process_id", "device_id", "context_id", "green_context_id", "stream_id")
_COPY_KINDS = ("src_memory_kind", "dst_memory_kind", "copy_kind")


def cuda_memcpy_async(request: Request) -> pl.DataFrame:
    """Asynchronous copies from or to pageable memory, which block the CPU like synchronous ones."""
    copies = _read_operations_of_calls(request, "memcpys", _COPY_KINDS, name_matches_expr(_ASYNC_COPY))
    is_pageable = pl.any_horizontal(pl.col(c).cast(pl.String) == "Pageable" for c in _COPY_KINDS[:2])
    return sort_longest_first(copies.filter(is_pageable).collect())


def cuda_memcpy_sync(request: Request) -> pl.DataFrame:
    """Synchronous copies, except copies of at most 64 kB to the device."""
    copies = _read_operations_of_calls(
        request, "memcpys", _COPY_KINDS, name_matches_expr(_SYNC_COPY) & ~name_matches_expr(_ASYNC)
    )
    is_buffered = (pl.col("copy_kind").cast(pl.String) == _HOST_TO_DEVICE) & (pl.col("bytes") <= _MAX_BUFFERED_BYTES)
    return sort_longest_first(copies.filter(~is_buffered.fill_null(value=False)).collect())


def cuda_memset_sync(request: Request) -> pl.DataFrame:
    """Synchronous memory sets of pinned or managed memory."""
    sets = _read_operations_of_calls(
        request, "memsets", ("memory_kind",), name_matches_expr(_SYNC_SET) & ~name_matches_expr(_ASYNC)
    )
    return sort_longest_first(sets.filter(pl.col("memory_kind").cast(pl.String).is_in(_BLOCKING_KINDS)).collect())


def cuda_api_sync(request: Request) -> pl.DataFrame:
    """Calls of cudaDeviceSynchronize and cudaStreamSynchronize, in which the CPU waits for GPU activities."""
    calls = request.frames("api_calls").select("start_ns", "end_ns", *THREAD, "name")
    waits = calls.filter(name_matches_expr(_WAITS)).select("start_ns", *THREAD, "name", DURATION)
    return sort_longest_first(waits.collect())


def name_matches_expr(pattern: str) -> pl.Expr:
    """Return an expression that is true where the Categorical column ``name`` matches a regular expression.

    The match is case-insensitive. Each distinct name is matched only once. A null does not match.
    """
    return match_categories_expr(pl.col("name"), lambda names: names.str.contains(f"(?i){pattern}"))


def _read_operations_of_calls(
    request: Request, table: str, columns: tuple[str, ...], call_condition: pl.Expr
) -> pl.LazyFrame:
    """Return the memory operations that selected API calls launched, with the name of the call as ``api_name``.

    Args:
        request: The input of the rule.
        table: Name of the table of memory operations.
        columns: Further columns of this table to return.
        call_condition: Boolean expression that selects rows of ``api_calls``.
    """
    calls = request.frames("api_calls").select(*CALL, "name").filter(call_condition).rename({"name": "api_name"})
    rows = request.frames(table).select("start_ns", DURATION, "bytes", *_PLACE, "correlation_id", *columns)
    green = pl.col("green_context_id")
    joined = join_calls(rows, calls, "all")
    return joined.with_columns(pl.when(green != 0).then(green).alias("green_context_id"))
