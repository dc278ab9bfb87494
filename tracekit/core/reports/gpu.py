"""Reports on GPU work: kernels, copies and sets, summed or one by one."""

from __future__ import annotations

import polars as pl

from tracekit.core.reports.names import copy_name, dimensions, relabelled, set_name, without_version
from tracekit.core.reports.report import KERNEL_OPTIONS, TIMES, Request, report
from tracekit.core.reports.sources import MEMORY_OPS, kernels, memory_ops
from tracekit.core.reports.summary import DURATION, largest_first, summarize, summary_columns
from tracekit.core.reports.table import (
    integer,
    megabytes,
    megabytes_per_second,
    nanoseconds,
    text,
)

_SIZES = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
_PLACE = ("device_id", "context_id", "green_context_id", "stream_id")
_MEMORY = ("static_shared_memory_bytes", "dynamic_shared_memory_bytes")
_KERNEL_ROW = ("start_ns", "correlation_id", *_PLACE, *_SIZES, "registers_per_thread", *_MEMORY)
_COPY_ROW = ("start_ns", "correlation_id", *_PLACE, "bytes", "src_memory_kind", "dst_memory_kind")
_SET_ROW = ("start_ns", "correlation_id", *_PLACE, "bytes")
_NS_PER_S = 1_000_000_000


@report(*summary_columns("Instances"), text("Name", "name"), options=KERNEL_OPTIONS, reads={"kernels": TIMES})
def cuda_gpu_kern_sum(request: Request) -> pl.LazyFrame:
    """Kernels by name."""
    rows = kernels(request, "start_ns", "end_ns").select("name", DURATION)
    return largest_first(summarize(rows, ["name"]), "count", "name")


@report(
    *summary_columns("Instances"),
    text("GridXYZ", "grid"),
    text("BlockXYZ", "block"),
    text("Name", "name"),
    options=KERNEL_OPTIONS,
    reads={"kernels": (*TIMES, *_SIZES)},
)
def cuda_gpu_kern_gb_sum(request: Request) -> pl.LazyFrame:
    """Kernels by name, grid and block."""
    rows = kernels(request, "start_ns", "end_ns", *_SIZES).select("name", *_SIZES, DURATION)
    grouped = largest_first(summarize(rows, ["name", *_SIZES]), "count", "name", *_SIZES)
    return grouped.with_columns(dimensions("grid"), dimensions("block"))


@report(
    *summary_columns("Instances"),
    text("Category", "category"),
    text("Operation", "name"),
    options=KERNEL_OPTIONS,
    reads={"kernels": TIMES, **MEMORY_OPS},
)
def cuda_gpu_sum(request: Request) -> pl.LazyFrame:
    """Kernels and memory operations by name."""
    return _by_category(*_gpu_work(request))


@report(
    *summary_columns("Instances"),
    text("Category", "category"),
    text("Operation", "name"),
    options=KERNEL_OPTIONS,
    reads={"api_calls": ("name", *TIMES), "kernels": TIMES, **MEMORY_OPS},
)
def cuda_api_gpu_sum(request: Request) -> pl.LazyFrame:
    """CUDA API calls, kernels and memory operations by name."""
    name = relabelled(pl.col("name"), without_version)
    calls = request.frames("api_calls").select(name, DURATION, category=pl.lit("CUDA_API"))
    return _by_category(calls, *_gpu_work(request))


@report(*summary_columns("Count"), text("Operation", "name"), reads=MEMORY_OPS)
def cuda_gpu_mem_time_sum(request: Request) -> pl.LazyFrame:
    """Time of copies and sets of memory by kind."""
    return largest_first(summarize(memory_ops(request.frames), ["name"]), "name")


@report(
    megabytes("Total", "total"),
    integer("Count", "count"),
    megabytes("Avg", "mean"),
    megabytes("Med", "median"),
    megabytes("Min", "min"),
    megabytes("Max", "max"),
    megabytes("StdDev", "deviation"),
    text("Operation", "name"),
    reads=MEMORY_OPS,
)
def cuda_gpu_mem_size_sum(request: Request) -> pl.LazyFrame:
    """Size of copies and sets of memory by kind."""
    return largest_first(summarize(memory_ops(request.frames), ["name"], "bytes"), "name")


@report(
    nanoseconds("Start", "start_ns"),
    nanoseconds("Duration", "duration_ns"),
    integer("CorrId", "correlation_id"),
    integer("GrdX", "grid_x"),
    integer("GrdY", "grid_y"),
    integer("GrdZ", "grid_z"),
    integer("BlkX", "block_x"),
    integer("BlkY", "block_y"),
    integer("BlkZ", "block_z"),
    integer("Reg/Trd", "registers_per_thread"),
    megabytes("StcSMem", "static_shared_memory_bytes"),
    megabytes("DymSMem", "dynamic_shared_memory_bytes"),
    megabytes("Bytes", "bytes"),
    megabytes_per_second("Throughput", "throughput"),
    text("SrcMemKd", "src_memory_kind"),
    text("DstMemKd", "dst_memory_kind"),
    text("Device", "device"),
    integer("Ctx", "context_id"),
    integer("GreenCtx", "green_context_id"),
    integer("Strm", "stream_id"),
    text("Name", "name"),
    options=KERNEL_OPTIONS,
    reads={
        "kernels": (*_KERNEL_ROW, "end_ns"),
        "memcpys": (*_COPY_ROW, "end_ns", "copy_kind"),
        "memsets": (*_SET_ROW, "end_ns", "memory_kind"),
    },
)
def cuda_gpu_trace(request: Request) -> pl.LazyFrame:
    """Every kernel and memory operation by start; at one start kernels, then copies, then sets."""
    rows = pl.concat([_kernel_rows(request), _copy_rows(request), _set_rows(request)], how="diagonal")
    rows = rows.sort("start_ns", maintain_order=True)
    devices = request.frames("devices").select("device_id", device_name="name")
    rows = rows.join(devices, on="device_id", how="left", maintain_order="left_right")
    device = pl.format("{} ({})", pl.col("device_name").fill_null(""), "device_id")
    numbered = (pl.when(pl.col(c) != 0).then(c).alias(c) for c in _PLACE[1:])
    return rows.with_columns(_throughput(), device.alias("device"), *numbered)


def _kernel_rows(request: Request) -> pl.LazyFrame:
    return kernels(request, *_KERNEL_ROW, "end_ns").select(*_KERNEL_ROW, DURATION, "name")


def _copy_rows(request: Request) -> pl.LazyFrame:
    return request.frames("memcpys").select(*_COPY_ROW, DURATION, copy_name(pl.col("copy_kind")).alias("name"))


def _set_rows(request: Request) -> pl.LazyFrame:
    kind = pl.col("memory_kind").alias("src_memory_kind")
    return request.frames("memsets").select(*_SET_ROW, kind, DURATION, name=set_name())


def _throughput() -> pl.Expr:
    """Bytes/s as nsys has it: coarse, for it divides the second before it multiplies; null where no time passed."""
    duration = pl.col("duration_ns")
    some = pl.when(duration != 0).then(duration)
    return (pl.col("bytes") * (_NS_PER_S // some)).alias("throughput")


def _gpu_work(request: Request) -> tuple[pl.LazyFrame, pl.LazyFrame]:
    work = kernels(request, "start_ns", "end_ns").select("name", DURATION, category=pl.lit("CUDA_KERNEL"))
    memory = memory_ops(request.frames).select("name", "duration_ns", category=pl.lit("MEMORY_OPER"))
    return work, memory


def _by_category(*parts: pl.LazyFrame) -> pl.LazyFrame:
    """Sum by name; of a name in two categories the longest row decides, and among equals the first part."""
    rows = pl.concat(parts)
    longest = pl.col("category").get(pl.col("duration_ns").arg_max())
    categories = rows.group_by("name").agg(longest)
    grouped = summarize(rows, ["name"]).join(categories, on="name", how="left", nulls_equal=True)
    return largest_first(grouped, "name")
