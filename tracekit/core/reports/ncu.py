"""Reports on results of Nsight Compute: the roofline, and what limits each kernel, launch or NVTX range."""

from __future__ import annotations

import polars as pl

from tracekit.core.ncu import roofline
from tracekit.core.reports.numbers import percent
from tracekit.core.reports.report import Request, report
from tracekit.core.reports.table import integer, nanoseconds, share, text, thousandths
from tracekit.errors import UnknownFormatError

OPTIONS = ("launch", "range")
_GIGA = 1e9
_RATES = ("flop_per_s", "peak_flop_per_s", "bytes_per_s", "peak_bytes_per_s")
_SHARES = ("math_share", "memory_share", "sm_throughput_share", "memory_throughput_share")
_WHOLE = ("time_ns", "fp64_flop", "fp32_flop", "fp16_flop", "tensor_flop", "dram_bytes")


@report(
    integer("ID", "launch_id"),
    integer("Launches", "launches"),
    nanoseconds("Time", "time_ns"),
    integer("FP64 FLOP", "fp64_flop"),
    integer("FP32 FLOP", "fp32_flop"),
    integer("FP16 FLOP", "fp16_flop"),
    integer("Tensor FLOP", "tensor_flop"),
    integer("DRAM Bytes", "dram_bytes"),
    thousandths("FLOP/Byte", "flop_per_byte"),
    thousandths("GFLOP/s", "flop_per_s"),
    thousandths("Peak GFLOP/s", "peak_flop_per_s"),
    thousandths("GB/s", "bytes_per_s"),
    thousandths("Peak GB/s", "peak_bytes_per_s"),
    share("Math", "math_share"),
    share("Memory", "memory_share"),
    text("Limiter", "limiter"),
    text("Name", "name"),
    options=OPTIONS,
)
def ncu_roofline(request: Request) -> pl.LazyFrame:
    """Operations, DRAM traffic, intensity and peaks by kernel; by launch or NVTX range as an option."""
    return _rows(request)


@report(
    share("Time", "time_share"),
    nanoseconds("Total Time", "time_ns"),
    integer("Launches", "launches"),
    share("Math", "math_share"),
    text("Pipe", "pipe"),
    text("Math From", "math_from"),
    share("Memory", "memory_share"),
    text("Memory From", "memory_from"),
    share("SM Throughput", "sm_throughput_share"),
    share("Memory Throughput", "memory_throughput_share"),
    text("Limiter", "limiter"),
    text("Name", "name"),
    options=OPTIONS,
)
def ncu_limiter(request: Request) -> pl.LazyFrame:
    """What limits each kernel, and which metrics say so; by launch or NVTX range as an option."""
    rows = _rows(request)
    total = pl.lit(None, pl.Float64) if "range" in request.options else percent(pl.col("time_ns").cast(pl.Int64))
    return rows.with_columns(total.alias("time_share"))


def _rows(request: Request) -> pl.LazyFrame:
    """The roofline as asked for: rates in 10**9 a second, shares in percent, counts whole."""
    launches, metrics = request.frames("ncu_launches"), request.frames("ncu_metrics")
    if set(OPTIONS) <= set(request.options):
        raise UnknownFormatError("the report was asked for launches and for ranges", hint="take one")
    if "range" in request.options:
        made = roofline.by_range(launches, metrics, request.frames("ncu_nvtx_ranges"))
    elif "launch" in request.options:
        made = roofline.by_launch(launches, metrics)
    else:
        made = roofline.by_kernel(launches, metrics)
    return made.lazy().with_columns(
        *(pl.col(c) / _GIGA for c in _RATES),
        *(pl.col(c) * 100 for c in _SHARES),
        *(pl.col(c).round().cast(pl.Int64) for c in _WHOLE),
    )
