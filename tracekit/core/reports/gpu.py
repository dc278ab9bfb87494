"""Compute reports on GPU activities: kernels, memory copies and memory sets, summed or listed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core import queues
from tracekit.core.reports.names import (
    format_dimensions_expr,
    memcpy_label_expr,
    memset_label_expr,
    read_runtime_prefix,
    strip_api_version_expr,
)
from tracekit.core.reports.sources import read_kernels, read_memory_operations
from tracekit.core.reports.summary import (
    DURATION,
    sort_largest_total_first,
    summarize_groups,
)
from tracekit.core.series import map_categories_expr

if TYPE_CHECKING:
    from tracekit.core.reports.report import Request

_SIZES = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
_STREAM = ("device_id", "context_id", "green_context_id", "stream_id")
_SHARED_MEMORY = ("static_shared_memory_bytes", "dynamic_shared_memory_bytes")
_KERNEL_ROW = ("start_ns", "correlation_id", *_STREAM, *_SIZES, "registers_per_thread", *_SHARED_MEMORY)
_MEMCPY_ROW = ("start_ns", "correlation_id", *_STREAM, "bytes", "src_memory_kind", "dst_memory_kind")
_MEMSET_ROW = ("start_ns", "correlation_id", *_STREAM, "bytes")
_NS_PER_S = 1_000_000_000


def cuda_gpu_kern_sum(request: Request) -> pl.LazyFrame:
    """Kernels by name."""
    rows = read_kernels(request, "start_ns", "end_ns").select("name", DURATION)
    return sort_largest_total_first(summarize_groups(rows, ["name"]), "count", "name")


def cuda_gpu_kern_gb_sum(request: Request) -> pl.LazyFrame:
    """Kernels by name, grid and block."""
    rows = read_kernels(request, "start_ns", "end_ns", *_SIZES).select("name", *_SIZES, DURATION)
    grouped = sort_largest_total_first(summarize_groups(rows, ["name", *_SIZES]), "count", "name", *_SIZES)
    return grouped.with_columns(format_dimensions_expr("grid"), format_dimensions_expr("block"))


def queue_length(request: Request) -> pl.DataFrame:
    """Longest and mean queue of each stream: operations that were launched and have not started, weighted by time.

    An operation is in the queue from the start of the API call that launched it to its own start.
    """
    launches = queues.read_launches(request.frames, request.get_frames_without())
    return queues.summarize_queues(launches, request.get_integer("threshold"))


def cuda_gpu_sum(request: Request) -> pl.LazyFrame:
    """Kernels and memory operations by name."""
    return _summarize_durations_by_name(*_read_gpu_activities(request))


def cuda_api_gpu_sum(request: Request) -> pl.LazyFrame:
    """CUDA API calls, kernels and memory operations by name."""
    name = map_categories_expr(pl.col("name"), strip_api_version_expr)
    calls = request.frames("api_calls").select(name, DURATION, category=pl.lit(_name_category(request, "API")))
    return _summarize_durations_by_name(calls, *_read_gpu_activities(request))


def cuda_gpu_mem_time_sum(request: Request) -> pl.LazyFrame:
    """Time of memory copies and sets by kind."""
    return sort_largest_total_first(summarize_groups(read_memory_operations(request.frames), ["name"]), "name")


def cuda_gpu_mem_size_sum(request: Request) -> pl.LazyFrame:
    """Size of memory copies and sets by kind."""
    return sort_largest_total_first(summarize_groups(read_memory_operations(request.frames), ["name"], "bytes"), "name")


def cuda_gpu_trace(request: Request) -> pl.LazyFrame:
    """Every kernel and memory operation in order of start. At equal starts, kernels precede copies and sets."""
    rows = pl.concat([_read_kernels(request), _read_memcpys(request), _read_memsets(request)], how="diagonal")
    rows = rows.sort("start_ns", maintain_order=True)
    devices = request.frames("devices").select("device_id", device_name="name")
    rows = rows.join(devices, on="device_id", how="left", maintain_order="left_right")
    device = pl.format("{} ({})", pl.col("device_name").fill_null(""), "device_id")
    numbered = (pl.when(pl.col(c) != 0).then(c).alias(c) for c in _STREAM[1:])
    return rows.with_columns(_throughput_expr(), device.alias("device"), *numbered)


def _read_kernels(request: Request) -> pl.LazyFrame:
    return read_kernels(request, *_KERNEL_ROW, "end_ns").select(*_KERNEL_ROW, DURATION, "name")


def _read_memcpys(request: Request) -> pl.LazyFrame:
    label = memcpy_label_expr(pl.col("copy_kind"), read_runtime_prefix(request.frames))
    return request.frames("memcpys").select(*_MEMCPY_ROW, DURATION, label.alias("name"))


def _read_memsets(request: Request) -> pl.LazyFrame:
    kind = pl.col("memory_kind").alias("src_memory_kind")
    label = memset_label_expr(read_runtime_prefix(request.frames))
    return request.frames("memsets").select(*_MEMSET_ROW, kind, DURATION, name=label)


def _throughput_expr() -> pl.Expr:
    """Return an expression for the throughput in bytes per second, with the rounding of nsys.

    nsys divides one second by the duration, rounds down, and then multiplies by the number of bytes. The result is
    imprecise. It is null if the duration is 0.
    """
    duration = pl.col("duration_ns")
    divisor = pl.when(duration != 0).then(duration)
    return (pl.col("bytes") * (_NS_PER_S // divisor)).alias("throughput")


def _read_gpu_activities(request: Request) -> tuple[pl.LazyFrame, pl.LazyFrame]:
    """Return two frames, the kernels and the memory operations: ``name``, ``duration_ns`` and ``category``."""
    category = pl.lit(_name_category(request, "KERNEL"))
    activities = read_kernels(request, "start_ns", "end_ns").select("name", DURATION, category=category)
    memory = read_memory_operations(request.frames).select("name", "duration_ns", category=pl.lit("MEMORY_OPER"))
    return activities, memory


def _name_category(request: Request, kind: str) -> str:
    """Return nsys's name of a category, such as ``CUDA_KERNEL``, without the runtime if it is not CUDA."""
    return f"{read_runtime_prefix(request.frames)}{kind}".replace(" ", "_")


def _summarize_durations_by_name(*tables: pl.LazyFrame) -> pl.LazyFrame:
    """Summarize the durations of calls, kernels and memory operations by name.

    As in nsys, rows with the same name form one group even if their categories differ. The category of the group is
    that of its longest row, or of the first one if several rows are equally long.
    """
    rows = pl.concat(tables)
    longest = pl.col("category").get(pl.col("duration_ns").arg_max())
    categories = rows.group_by("name").agg(longest)
    grouped = summarize_groups(rows, ["name"]).join(categories, on="name", how="left", nulls_equal=True)
    return sort_largest_total_first(grouped, "name")
