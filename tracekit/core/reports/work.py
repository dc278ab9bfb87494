"""Compute reports on the work of ops: their rooflines, and the utilization of the GPU in steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.reports.numbers import percent_of_sum_expr
from tracekit.core.steps import PERCENT
from tracekit.core.work.roofline import bound_ops, summarize_ops
from tracekit.core.work.utilization import compute_step_utilization

if TYPE_CHECKING:
    from tracekit.core.reports.report import Request

_TERA, _GIGA = 1e12, 1e9
_WHOLE_NS = ("bound_ns", "savable_ns", "savable_low_ns", "savable_high_ns")


def op_roofline(request: Request) -> pl.DataFrame:
    """Ops by shapes and types: their work, their rates, how long they take at least, and what limits them.

    The last row, without a name, contains the kernels whose work is unknown.
    """
    rows = summarize_ops(bound_ops(request.frames))
    return rows.with_columns(
        pl.col("kind", "type").cast(pl.String),
        pl.col(_WHOLE_NS).round().cast(pl.Int64),
        pl.col("share", "measured_share", "fill") * PERCENT,
        time_share=percent_of_sum_expr(pl.col("gpu_time_ns")),
        tflop_per_s=pl.col("flop_per_s") / _TERA,
        peak_tflop_per_s=pl.col("rate") / _TERA,
        gb_per_s=pl.col("bytes_per_s") / _GIGA,
        peak_gb_per_s=pl.col("bandwidth") / _GIGA,
    )


def step_mfu(request: Request) -> pl.DataFrame:
    """Steps with their work, and with its time at the peak rates of the GPU as a share of the step (MFU)."""
    from tracekit.core.diagnosis.step_parts import measure_step_times

    steps = measure_step_times(request.get_rollup().steady, request.rank_plans).steps
    rows = compute_step_utilization(request.frames, steps, bound_ops(request.frames))
    shares = ("covered", "mfu", "hfu", "measured_mfu", "sheet_mfu")
    return rows.with_columns(pl.col(shares) * PERCENT)
