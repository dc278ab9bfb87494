"""Declare reports on Nsight Compute results: the roofline, and what limits each kernel, launch or NVTX range."""

from __future__ import annotations

import polars as pl

from tracekit.core.ncu import roofline
from tracekit.core.reports.numbers import percent_of_sum_expr
from tracekit.core.reports.report import Request, report
from tracekit.core.reports.table import (
    integer_column,
    nanoseconds_column,
    percent_column,
    text_column,
    thousandths_column,
)
from tracekit.errors import UnknownFormatError

OPTIONS = ("launch", "range")
_GIGA = 1e9
_RATES = ("flop_per_s", "peak_flop_per_s", "bytes_per_s", "peak_bytes_per_s")
_SHARES = ("math_share", "memory_share", "sm_throughput_share", "memory_throughput_share")
_COUNTS = ("time_ns", "fp64_flop", "fp32_flop", "fp16_flop", "tensor_flop", "dram_bytes")


@report(
    integer_column("ID", "launch_id"),
    integer_column("Launches", "launches"),
    nanoseconds_column("Time", "time_ns"),
    integer_column("FP64 FLOP", "fp64_flop"),
    integer_column("FP32 FLOP", "fp32_flop"),
    integer_column("FP16 FLOP", "fp16_flop"),
    integer_column("Tensor FLOP", "tensor_flop"),
    integer_column("DRAM Bytes", "dram_bytes"),
    thousandths_column("FLOP/Byte", "flop_per_byte"),
    thousandths_column("GFLOP/s", "flop_per_s"),
    thousandths_column("Peak GFLOP/s", "peak_flop_per_s"),
    thousandths_column("GB/s", "bytes_per_s"),
    thousandths_column("Peak GB/s", "peak_bytes_per_s"),
    percent_column("Math", "math_share"),
    percent_column("Memory", "memory_share"),
    text_column("Limiter", "limiter"),
    text_column("Name", "name"),
    options=OPTIONS,
)
def ncu_roofline(request: Request) -> pl.LazyFrame:
    """Operations, DRAM traffic, arithmetic intensity and peaks per kernel, or per launch or NVTX range."""
    return _compute_roofline(request)


@report(
    percent_column("Time", "time_share"),
    nanoseconds_column("Total Time", "time_ns"),
    integer_column("Launches", "launches"),
    percent_column("Math", "math_share"),
    text_column("Pipe", "pipe"),
    text_column("Math From", "math_from"),
    percent_column("Memory", "memory_share"),
    text_column("Memory From", "memory_from"),
    percent_column("SM Throughput", "sm_throughput_share"),
    percent_column("Memory Throughput", "memory_throughput_share"),
    text_column("Limiter", "limiter"),
    text_column("Name", "name"),
    options=OPTIONS,
)
def ncu_limiter(request: Request) -> pl.LazyFrame:
    """What limits each kernel, launch or NVTX range, and the metrics from which the limit is derived."""
    rows = _compute_roofline(request)
    total = (
        pl.lit(None, pl.Float64)
        if "range" in request.options
        else percent_of_sum_expr(pl.col("time_ns").cast(pl.Int64))
    )
    return rows.with_columns(total.alias("time_share"))


def _compute_roofline(request: Request) -> pl.LazyFrame:
    """Return one roofline per kernel, launch or NVTX range, in the printed units.

    Rates are in 10**9 per second, shares are percentages, and counts are integers.
    """
    launches, metrics = request.frames("ncu_launches"), request.frames("ncu_metrics")
    if set(OPTIONS) <= set(request.options):
        raise UnknownFormatError(
            "options 'launch' and 'range' are mutually exclusive", hint="use either launch or range"
        )
    if "range" in request.options:
        rows = roofline.compute_range_roofline(launches, metrics, request.frames("ncu_nvtx_ranges"))
    elif "launch" in request.options:
        rows = roofline.compute_launch_roofline(launches, metrics)
    else:
        rows = roofline.compute_kernel_roofline(launches, metrics)
    return rows.lazy().with_columns(
        *(pl.col(c) / _GIGA for c in _RATES),
        *(pl.col(c) * 100 for c in _SHARES),
        *(pl.col(c).round().cast(pl.Int64) for c in _COUNTS),
    )
