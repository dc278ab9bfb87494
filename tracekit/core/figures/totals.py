"""Sum the durations of kernels by name, and of memory copies and sets by kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.findings import collect_recorded_messages
from tracekit.core.ncu.roofline import HINT
from tracekit.core.work.pointwise import COLLECTIVE
from tracekit.errors import MissingTableError
from tracekit.registry.analyses import REPORT, get_analysis
from tracekit.registry.tables import count_rows

if TYPE_CHECKING:
    from tracekit.core.figures import FigureInputs, Frames

_DURATION = (pl.col("end_ns") - pl.col("start_ns")).sum().alias("time_ns")
_COUNT = pl.len().cast(pl.Int64).alias("count")
_LARGEST_FIRST = ["time_ns", "name"]


def recorded_messages(inputs: FigureInputs) -> pl.DataFrame:
    """Return the warnings and errors of the profiler, and the findings that it recorded. There may be no rows."""
    return collect_recorded_messages(inputs.frames)


def top_kernels(inputs: FigureInputs) -> pl.DataFrame:
    """Return the total time and number of kernels by name. Without kernels, return those of Nsight Compute."""
    return _add_percent_column(_check_rows(summarize_kernels(inputs.frames), "kernels"))


def api(inputs: FigureInputs) -> pl.DataFrame:
    """Return the total time and number of CUDA API calls by function."""
    rows = _check_rows(inputs.view.report("cuda_api_sum").frame(), "API calls")
    return _add_percent_column(rows.select(name="Name", time_ns="Total Time (ns)", count="Num Calls"))


def copies(inputs: FigureInputs) -> pl.DataFrame:
    """Return the time, number and size of memory copies by kind, and of memory sets."""
    return _check_rows(summarize_memory_operations(inputs.frames), "memory copies or memory sets")


def idle_causes(inputs: FigureInputs) -> pl.DataFrame:
    """Return the idle time of each GPU by cause, as the rule ``gpu_idle_causes`` computes it."""
    rows = inputs.view.report("gpu_idle_causes").frame()
    return _check_rows(rows, "GPU activities with idle time between them")


def roofline(inputs: FigureInputs) -> pl.DataFrame:
    """Return the kernels of the report ``ncu_roofline`` with positive coordinates, which logarithmic axes require."""
    if not count_rows(inputs.view.tables, "ncu_launches"):
        raise MissingTableError("the capture has no Nsight Compute results")
    rows = inputs.view.report("ncu_roofline").frame().filter(pl.col("FLOP/Byte") > 0, pl.col("GFLOP/s") > 0)
    if rows.is_empty():
        message = "the capture has no kernel with both floating-point operations and DRAM traffic"
        raise MissingTableError(message, hint=HINT)
    return rows


def op_roofline(inputs: FigureInputs) -> pl.DataFrame:
    """Return the ops of the report ``op_roofline`` with positive coordinates, which logarithmic axes require.

    Collective operations have no roofline.
    """
    if not count_rows(inputs.view.tables, "kernels"):
        raise MissingTableError("the capture has no kernels")
    rows = inputs.view.report("op_roofline").frame()
    rows = rows.filter(pl.col("FLOP/Byte") > 0, pl.col("TFLOP/s") > 0, pl.col("Kind") != COLLECTIVE)
    if rows.is_empty():
        message = "the capture has no op whose work is known from the recorded shapes of its inputs"
        raise MissingTableError(message, hint=get_analysis("op_roofline", REPORT).recording_hint)
    return rows


def _check_rows(rows: pl.DataFrame, plural_noun: str) -> pl.DataFrame:
    if rows.is_empty():
        raise MissingTableError(f"the capture has no {plural_noun}")
    return rows


def _add_percent_column(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with an additional column ``percent``, the share of each row in the sum of ``time_ns``."""
    total = rows["time_ns"].sum() or 1
    return rows.with_columns(percent=pl.col("time_ns") * 100.0 / total)


def summarize_kernels(frames: Frames) -> pl.DataFrame:
    """Return the duration and number of kernels by name.

    If no kernel was recorded, the kernels that Nsight Compute profiled are used.

    Returns:
        One row per name, longest first: ``name`` (String), ``time_ns`` and ``count``.
    """
    name = pl.col("name").cast(pl.String)
    rows = frames("kernels").group_by("name").agg(_DURATION, _COUNT).with_columns(name).collect()
    if rows.is_empty():
        launches = frames("ncu_launches").filter(
            pl.col("kind").cast(pl.String) != "group", pl.col("name").is_not_null()
        )
        times = pl.col("duration_ns").sum().cast(pl.Int64).alias("time_ns")
        rows = launches.group_by("name").agg(times, _COUNT).with_columns(name).collect()
    return rows.sort(_LARGEST_FIRST, descending=[True, False])


def summarize_memory_operations(frames: Frames) -> pl.DataFrame:
    """Return the duration, number and bytes of memory copies by kind, and of memory sets.

    Returns:
        One row per kind, longest first: ``name`` (null for copies of unknown kind), ``time_ns``, ``count`` and
        ``bytes``.
    """
    size = pl.col("bytes").sum()
    kind = pl.col("copy_kind").cast(pl.String).alias("name")
    copies = frames("memcpys").group_by("copy_kind").agg(_DURATION, _COUNT, size).collect()
    sets = frames("memsets").select(pl.lit("Memset").alias("name"), _DURATION, _COUNT, size).collect()
    rows = [copies.select(kind, "time_ns", "count", "bytes"), sets.filter(pl.col("count") > 0)]
    return pl.concat(rows).sort(_LARGEST_FIRST, descending=[True, False], nulls_last=True)
