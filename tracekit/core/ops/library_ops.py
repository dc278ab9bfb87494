"""Find the ops of libraries that any framework may use: file reads and writes, DALI steps and NCCL calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.categorical import decode_categories_expr, map_categories_expr, match_categories_expr

if TYPE_CHECKING:
    from tracekit.core.ops.dialect import Capture

_IO = ("fread", "fwrite")
_DALI = {
    "[DALI][Executor] RunCPU": "DALI/RunCPU",
    "[DALI][Executor] RunGPU": "DALI/RunCPU",  # DLProf 1.8.0 lists both kinds of steps under this name.
    "[DALI][Executor] RunMixed": "DALI/RunMixed",
}
_COLUMNS = ("start_ns", "end_ns", "process_id", "thread_id", "range_id", "op_name", "op_type")


def read_library_ops(capture: Capture) -> pl.DataFrame:
    """Return the file reads and writes, the DALI steps and the NCCL calls in a capture.

    Returns:
        One row per op: ``start_ns``, ``end_ns``, ``process_id``, ``thread_id``, ``range_id`` (null for file calls),
        ``op_name`` (``IO/fread``, ``DALI/RunCPU``, ``NCCL/ncclAllReduce``), ``op_type`` (``IO``, ``DALI``, ``NCCL``).
    """
    dali = _select_ranges_of_domain(capture, "DALI").with_columns(
        op_name=decode_categories_expr(pl.col("text")).replace_strict(_DALI, default=None)
    )
    nccl = _select_ranges_of_domain(capture, "NCCL").with_columns(
        op_name=decode_categories_expr(map_categories_expr(pl.col("text"), lambda text: "NCCL/" + text))
    )
    named = [f.drop_nulls("op_name").select(_COLUMNS) for f in (nccl, dali)]
    return pl.concat([*named, _read_file_access_calls(capture)])


def _select_ranges_of_domain(capture: Capture, domain: str) -> pl.DataFrame:
    """Return the push/pop ranges of one domain, with the name of the domain as ``op_type``."""
    ranges = capture.ranges.filter(pl.col("domain") == domain)
    return ranges.with_columns(op_type=pl.lit(domain))


def _read_file_access_calls(capture: Capture) -> pl.DataFrame:
    """Return the calls of ``fread`` and ``fwrite`` as ops."""
    columns = ["start_ns", "end_ns", "process_id", "thread_id"]
    calls = capture.frames("osrt_calls").filter(match_categories_expr(pl.col("name"), lambda name: name.is_in(_IO)))
    named = calls.select(
        *columns,
        range_id=pl.lit(None, pl.Int64),
        op_name="IO/" + pl.col("name").cast(pl.String),
        op_type=pl.lit("IO"),
    )
    return named.collect()
