"""Compute reports on Nsight Compute results: the roofline, and what limits each kernel, launch or NVTX range."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.ncu import roofline
from tracekit.core.reports.numbers import percent_of_sum_expr

if TYPE_CHECKING:
    from tracekit.core.reports.report import Request

_GIGA = 1e9
_RATES = ("flop_per_s", "peak_flop_per_s", "bytes_per_s", "peak_bytes_per_s")
_SHARES = ("math_share", "memory_share", "sm_throughput_share", "memory_throughput_share")
_COUNTS = ("time_ns", "fp64_flop", "fp32_flop", "fp16_flop", "tensor_flop", "dram_bytes")


def ncu_roofline(request: Request) -> pl.LazyFrame:
    """Operations, DRAM traffic, arithmetic intensity and peaks per kernel, or per launch or NVTX range."""
    return _compute_roofline(request)


def ncu_limiter(request: Request) -> pl.LazyFrame:
    """What limits each kernel, launch or NVTX range, and the metrics from which the limit is derived."""
    rows = _compute_roofline(request)
    total = (
        pl.lit(None, pl.Float64) if request.has_flag("range") else percent_of_sum_expr(pl.col("time_ns").cast(pl.Int64))
    )
    return rows.with_columns(total.alias("time_share"))


def _compute_roofline(request: Request) -> pl.LazyFrame:
    """Return one roofline per kernel, launch or NVTX range, in the printed units.

    Rates are in 10**9 per second, shares are percentages, and counts are integers.
    """
    launches, metrics = request.frames("ncu_launches"), request.frames("ncu_metrics")
    if request.has_flag("range"):
        rows = roofline.compute_range_roofline(launches, metrics, request.frames("ncu_nvtx_ranges"))
    elif request.has_flag("launch"):
        rows = roofline.compute_launch_roofline(launches, metrics)
    else:
        rows = roofline.compute_kernel_roofline(launches, metrics)
    return rows.lazy().with_columns(
        *(pl.col(c) / _GIGA for c in _RATES),
        *(pl.col(c) * 100 for c in _SHARES),
        *(pl.col(c).round().cast(pl.Int64) for c in _COUNTS),
    )
