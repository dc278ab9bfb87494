"""Compute reports on OpenACC and on graphics and video APIs: calls, and debug ranges on the CPU and on the GPU.

tracekit reads these events only from exports of nsys. No capture with such events was available, so the reports were
compared with nsys on exports with random rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.relations import THREAD
from tracekit.core.reports.names import strip_api_version_expr
from tracekit.core.reports.sources import join_thread_names, set_open_range_ends
from tracekit.core.reports.summary import (
    DURATION,
    sort_largest_total_first,
    summarize_groups,
)

if TYPE_CHECKING:
    from tracekit.core.reports.report import Request

_VIDEO_APIS = {"video_encoder": "Encoder", "video_decoder": "Decoder", "jpeg": "JPEG"}
_VULKAN_API_CLASS = 53


def openacc_sum(request: Request) -> pl.LazyFrame:
    """OpenACC events by name and source line."""
    name, file = (pl.col(c).cast(pl.String) for c in ("name", "source_file"))
    at_line = pl.concat_str(name, pl.lit("@"), file, pl.lit(":"), pl.col("line").cast(pl.String))
    rows = request.frames("openacc_events").select(pl.coalesce(at_line, name).alias("name"), DURATION)
    return sort_largest_total_first(summarize_groups(rows, ["name"]), "name")


def vulkan_api_sum(request: Request) -> pl.LazyFrame:
    """Vulkan API calls by function. Calls that create objects are not counted, as in nsys."""
    rows = _read_calls_of_kinds(request, "vulkan").filter(event_class_id=_VULKAN_API_CLASS)
    names = strip_api_version_expr(pl.col("name").cast(pl.String))
    return sort_largest_total_first(
        summarize_groups(rows.select("name_id", names, DURATION), ["name_id", "name"]), "name_id"
    )


def vulkan_api_trace(request: Request) -> pl.LazyFrame:
    """Every Vulkan API call in order of start. A call is repeated for each name of its thread."""
    rows = _read_calls_of_kinds(request, "vulkan").sort("start_ns", maintain_order=True)
    return join_thread_names(rows, request.frames).with_columns(DURATION)


def vulkan_marker_sum(request: Request) -> pl.LazyFrame:
    """CPU times of Vulkan debug ranges, by text of the range."""
    return _summarize_marked_ranges(request, "vulkan_debug")


def vulkan_gpu_marker_sum(request: Request) -> pl.LazyFrame:
    """GPU times of Vulkan debug ranges, by text of the range."""
    return _summarize_workloads(request, "vulkan")


def opengl_khr_range_sum(request: Request) -> pl.LazyFrame:
    """CPU times of OpenGL debug ranges, by text of the range."""
    return _summarize_debug_ranges(request, "KhrDebugPushPopRange")


def opengl_khr_gpu_range_sum(request: Request) -> pl.LazyFrame:
    """GPU times of OpenGL debug ranges, by text of the range."""
    return _summarize_debug_ranges(request, "KhrDebugGpuPushPopRange")


def dx11_pix_sum(request: Request) -> pl.LazyFrame:
    """CPU times of PIX ranges of Direct3D 11, by text of the range."""
    return _summarize_marked_ranges(request, "dx11_pix")


def dx12_pix_sum(request: Request) -> pl.LazyFrame:
    """CPU times of PIX ranges of Direct3D 12, by text of the range."""
    return _summarize_marked_ranges(request, "dx12_pix")


def dx12_gpu_marker_sum(request: Request) -> pl.LazyFrame:
    """GPU times of PIX ranges of Direct3D 12, by text of the range."""
    return _summarize_workloads(request, "dx12")


def nvvideo_api_sum(request: Request) -> pl.LazyFrame:
    """Calls of the video encoder, video decoder and JPEG APIs by function."""
    kind = pl.col("kind").cast(pl.String)
    api, order = (kind.replace_strict(list(_VIDEO_APIS), values) for values in (list(_VIDEO_APIS.values()), range(3)))
    rows = _read_calls_of_kinds(request, *_VIDEO_APIS).select(
        api.alias("api"),
        order.alias("order"),
        "name_id",
        strip_api_version_expr(pl.col("name").cast(pl.String)),
        DURATION,
    )
    return sort_largest_total_first(summarize_groups(rows, ["order", "api", "name_id", "name"]), "order", "name_id")


def _read_calls_of_kinds(request: Request, *kinds: str) -> pl.LazyFrame:
    return request.frames("graphics_calls").filter(pl.col("kind").is_in(list(kinds)))


def _summarize_marked_ranges(request: Request, kind: str) -> pl.LazyFrame:
    """Summarize, by text, the durations of ranges that one call begins and another call ends.

    The call that ends a range has no text. Its thread and correlation id are those of the call that begins the range.
    A range lasts from the end of the first call to the start of the second call.
    """
    calls = _read_calls_of_kinds(request, kind).select(
        *THREAD, "correlation_id", "start_ns", "end_ns", "text_id", "text"
    )
    begins = calls.filter(pl.col("text_id").is_not_null()).select(pl.exclude("start_ns"))
    ends = calls.filter(pl.col("text_id").is_null()).select(*THREAD, "correlation_id", "start_ns")
    pairs = begins.join(ends, on=[*THREAD, "correlation_id"])
    durations = (pl.col("start_ns") - pl.col("end_ns")).alias("duration_ns")
    return _summarize_by_text(pairs.select("text_id", "text", durations), "text_id")


def _summarize_workloads(request: Request, kind: str) -> pl.LazyFrame:
    """Summarize, by text, the durations of the GPU workloads of one API. Workloads without a text are omitted."""
    rows = request.frames("graphics_workloads").filter(kind=kind)
    return _summarize_by_text(
        rows.filter(pl.col("text_id").is_not_null()).select("text_id", "text", DURATION), "text_id"
    )


def _summarize_debug_ranges(request: Request, event_class: str) -> pl.LazyFrame:
    """Summarize the durations of the OpenGL debug ranges of one event class, by text.

    Ranges without a text are grouped by ``debug_id``.

    Open ranges end at the latest start or end of any OpenGL debug event. As in nsys, the result is empty if no event
    has an end.
    """
    rows = set_open_range_ends(request.frames("khr_debug_events")).filter(pl.col("event_class") == event_class)
    number = pl.when(pl.col("text_id").is_null()).then("debug_id").alias("number")
    text = pl.coalesce(pl.col("text").cast(pl.String), number.cast(pl.String))
    rows = rows.select("text_id", number, text.alias("text"), DURATION)
    return _summarize_by_text(rows.drop_nulls("duration_ns"), "text_id", "number")


def _summarize_by_text(rows: pl.LazyFrame, *id_columns: str) -> pl.LazyFrame:
    """Summarize durations by text.

    As in nsys, groups whose total is not positive are omitted, but are included in the sum from which shares are
    computed.

    Args:
        rows: One row per range: ``text``, ``duration_ns`` and the columns ``id_columns``.
        id_columns: Columns that, with ``text``, identify a group. Groups with equal totals are sorted by these columns.
    """
    groups = summarize_groups(rows, [*id_columns, "text"]).filter(pl.col("total") > 0)
    return sort_largest_total_first(groups, *id_columns)
