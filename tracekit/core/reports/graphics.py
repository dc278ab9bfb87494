"""Declare reports on OpenACC and on graphics and video APIs: calls, and debug ranges on the CPU and on the GPU.

Only exports contain these events. Most of these reports were not compared with nsys, because no capture with such
events was available. The order of rows with equal totals may therefore differ. The reports on OpenGL were compared with
nsys on exports with artificial rows.
"""

from __future__ import annotations

import polars as pl

from tracekit.core.reports.report import THREAD, Request, report
from tracekit.core.reports.sources import set_open_range_ends
from tracekit.core.reports.summary import (
    DURATION,
    declare_duration_summary_columns,
    sort_largest_total_first,
    summarize_groups,
)
from tracekit.core.reports.table import integer_column, nanoseconds_column, text_column

_VIDEO = ("video_encoder", "video_decoder", "jpeg")
_RANGES = (*declare_duration_summary_columns("Instances"), text_column("Range", "text"))


@report(*declare_duration_summary_columns("Num Calls"), text_column("Name", "name"))
def openacc_sum(request: Request) -> pl.LazyFrame:
    """OpenACC events by name and source line."""
    name, file = (pl.col(c).cast(pl.String) for c in ("name", "source_file"))
    at_line = pl.concat_str(name, pl.lit("@"), file, pl.lit(":"), pl.col("line").cast(pl.String))
    rows = request.frames("openacc_events").select(pl.coalesce(at_line, name).alias("name"), DURATION)
    return sort_largest_total_first(summarize_groups(rows, ["name"]), "name")


@report(*declare_duration_summary_columns("Num Calls"), text_column("Name", "name"))
def vulkan_api_sum(request: Request) -> pl.LazyFrame:
    """Vulkan API calls by function."""
    return _sum_durations_by_name(_read_calls_of_kinds(request, "vulkan"))


@report(
    nanoseconds_column("Start", "start_ns"),
    nanoseconds_column("Duration", "duration_ns"),
    text_column("Name", "name"),
    text_column("Event Class", "event_class"),
    integer_column("Context", "context_id"),
    integer_column("CorrID", "correlation_id"),
    integer_column("Pid", "process_id"),
    integer_column("Tid", "thread_id"),
    integer_column("T-Pri", "priority"),
    text_column("Thread Name", "thread_name"),
)
def vulkan_api_trace(request: Request) -> pl.LazyFrame:
    """Every Vulkan API call in order of start. A call is repeated for each name of its thread."""
    threads = request.frames("threads").select(*THREAD, "priority", thread_name="name")
    rows = _read_calls_of_kinds(request, "vulkan").sort("start_ns", maintain_order=True)
    return rows.join(threads, on=THREAD, how="left", maintain_order="left_right").with_columns(DURATION)


@report(*_RANGES)
def vulkan_marker_sum(request: Request) -> pl.LazyFrame:
    """Vulkan debug ranges on the CPU by text."""
    return _sum_durations_by_text(_read_calls_of_kinds(request, "vulkan_debug"))


@report(*_RANGES)
def vulkan_gpu_marker_sum(request: Request) -> pl.LazyFrame:
    """Vulkan debug ranges on the GPU by text."""
    return _sum_durations_by_text(request.frames("graphics_workloads").filter(kind="vulkan"))


@report(*_RANGES)
def opengl_khr_range_sum(request: Request) -> pl.LazyFrame:
    """OpenGL debug ranges on the CPU by text."""
    return _sum_debug_ranges(request, "KhrDebugPushPopRange")


@report(*_RANGES)
def opengl_khr_gpu_range_sum(request: Request) -> pl.LazyFrame:
    """OpenGL debug ranges on the GPU by text."""
    return _sum_debug_ranges(request, "KhrDebugGpuPushPopRange")


@report(*_RANGES)
def dx11_pix_sum(request: Request) -> pl.LazyFrame:
    """PIX ranges of Direct3D 11 on the CPU by text."""
    return _sum_durations_by_text(_read_calls_of_kinds(request, "dx11_pix"))


@report(*_RANGES)
def dx12_pix_sum(request: Request) -> pl.LazyFrame:
    """PIX ranges of Direct3D 12 on the CPU by text."""
    return _sum_durations_by_text(_read_calls_of_kinds(request, "dx12_pix"))


@report(*_RANGES)
def dx12_gpu_marker_sum(request: Request) -> pl.LazyFrame:
    """PIX ranges of Direct3D 12 on the GPU by text."""
    return _sum_durations_by_text(request.frames("graphics_workloads").filter(kind="dx12"))


@report(
    *declare_duration_summary_columns("Num Calls"),
    text_column("Event Type", "event_class"),
    text_column("Name", "name"),
)
def nvvideo_api_sum(request: Request) -> pl.LazyFrame:
    """Calls of the video encoder, video decoder and JPEG APIs by function."""
    rows = _read_calls_of_kinds(request, *_VIDEO).select("event_class", "name_id", "name", DURATION)
    return sort_largest_total_first(
        summarize_groups(rows, ["event_class", "name_id", "name"]), "event_class", "name_id"
    )


def _read_calls_of_kinds(request: Request, *kinds: str) -> pl.LazyFrame:
    return request.frames("graphics_calls").filter(pl.col("kind").is_in(list(kinds)))


def _sum_durations_by_name(rows: pl.LazyFrame) -> pl.LazyFrame:
    return sort_largest_total_first(
        summarize_groups(rows.select("name_id", "name", DURATION), ["name_id", "name"]), "name_id"
    )


def _sum_durations_by_text(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Summarize the durations of rows by text. Rows without a text are omitted."""
    named = rows.filter(pl.col("text").is_not_null()).select("text", DURATION)
    return sort_largest_total_first(summarize_groups(named, ["text"]), "text")


def _sum_debug_ranges(request: Request, event_class: str) -> pl.LazyFrame:
    """Summarize the OpenGL debug ranges of a class by text.

    The end of open ranges is the latest time of any event. If all events are open, there are no rows, as in nsys.
    """
    rows = set_open_range_ends(request.frames("khr_debug_events")).filter(pl.col("event_class") == event_class)
    rows = rows.select("text", DURATION).drop_nulls("duration_ns")
    return sort_largest_total_first(summarize_groups(rows, ["text"]), "text")
