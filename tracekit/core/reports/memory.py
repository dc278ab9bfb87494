"""Compute reports on GPU memory and on unified memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core import memory, stacks
from tracekit.core.relations import CALL, join_calls
from tracekit.core.reports.names import format_hexadecimal_expr
from tracekit.core.reports.report import Request, has_rows
from tracekit.core.reports.sources import find_last_started_ranges, read_api_calls, read_attributable_ranges
from tracekit.core.reports.summary import DURATION

if TYPE_CHECKING:
    from tracekit.core.reports.report import Frames

_TO_DEVICE, _TO_HOST = "Unified Host-to-Device", "Unified Device-to-Host"


def gpu_memory_peak(request: Request) -> pl.LazyFrame:
    """Peak of each kind of memory on each device, allocations at the peak, and memory that was never freed.

    If a time window is selected, memory that was allocated before the window is included. If a peak was reached before
    the window, its printed time is the start of the window.
    """
    rows, peaks = _read_allocations_and_peaks(request)
    at_peak = memory.select_allocations_at_peak(rows, peaks).group_by(memory.GROUP).agg(pl.len().alias("allocations"))
    low, high = request.window
    never_freed = (
        rows.filter(~pl.col("is_freed"))
        .filter(pl.lit(low).is_null() | pl.col("end_ns").is_null() | (pl.col("end_ns") > pl.lit(low)))
        .filter(pl.lit(high).is_null() | (pl.col("start_ns") < pl.lit(high)))
        .group_by(memory.GROUP)
        .agg(pl.len().alias("never_freed"), pl.col("bytes").sum().alias("never_freed_bytes"))
    )
    for counts in (at_peak, never_freed):
        peaks = peaks.join(counts, on=memory.GROUP, how="left", nulls_equal=True, maintain_order="left")
    counted = peaks.with_columns(pl.col("never_freed", "never_freed_bytes").fill_null(0))
    return counted.with_columns(pl.max_horizontal("peak_ns", pl.lit(low, pl.Int64)).alias("peak_ns")).lazy()


def gpu_memory_alive(request: Request) -> pl.LazyFrame:
    """Allocations at the peak of each kind of memory, largest first, with their calls, NVTX ranges and call stacks."""
    rows = memory.select_allocations_at_peak(*_read_allocations_and_peaks(request))
    named = _add_call_names(rows, request.get_frames_without("time")).with_columns(
        format_hexadecimal_expr(pl.col("address")).alias("address_text")
    )
    order = [*memory.GROUP, "bytes", "start_ns", "memory_event_id"]
    return named.sort(order, descending=[False, False, True, False, False]).lazy()


def gpu_memory_owners(request: Request) -> pl.LazyFrame:
    """Owners of the memory at the peak of each kind of memory, largest first. Their sizes add up to the peak.

    An owner is an NVTX range, a function, a call stack or a size. An allocation outside of all ranges belongs to its
    variable or, if it has none, to the function that allocated it.
    """
    rows = memory.select_allocations_at_peak(*_read_allocations_and_peaks(request))
    named = _add_call_names(rows, request.get_frames_without("time"))
    texts = {c: pl.col(c).cast(pl.String) for c in ("range_name", "name", "function", "stack")}
    owners = {
        "range": pl.coalesce(texts["range_name"], texts["name"], texts["function"]),
        "function": pl.coalesce(texts["function"], texts["name"]),
        "stack": pl.coalesce(texts["stack"], texts["function"], texts["name"]),
        "size": pl.format("{} bytes", "bytes"),
    }
    return memory.sum_owners(named.with_columns(owner=owners[request.get_text("by")])).lazy()


def gpu_memory_usage(request: Request) -> pl.LazyFrame:
    """Memory in use on each device by kind, after each allocation and deallocation.

    If a time window is selected, memory that was allocated before the window is included.
    """
    low, _ = request.window
    rows = _select_memory_changes_in_window(request, _read_allocations(request))
    return (rows if low is None else rows.filter(pl.col("timestamp_ns") >= low)).lazy()


def um_sum(request: Request) -> pl.LazyFrame:
    """Migrations and page faults of unified memory by virtual address, with the highest throughput first."""
    copies, on_cpu, on_gpu = _read_unified_memory_events(request)
    migrations = copies.group_by("virtual_address").agg(
        *_migrated_bytes_exprs(),
        (pl.col("bytes").sum() * (1_000_000_000 // pl.col("duration_ns").sum())).alias("bytes_per_s"),
    )
    faults = on_cpu.group_by("virtual_address").agg(pl.len().alias("cpu_page_faults"))
    gpu_faults = on_gpu.group_by("virtual_address").agg(pl.col("page_faults").sum().alias("gpu_page_faults"))
    rows = migrations
    for other in (faults, gpu_faults):
        rows = rows.join(other, on="virtual_address", how="full", coalesce=True)
    rows = rows.sort("bytes_per_s", "virtual_address", descending=[True, False], nulls_last=True)
    rows = rows.head(request.get_integer("rows"))
    return rows.with_columns(format_hexadecimal_expr(pl.col("virtual_address")).alias("address_text"))


def um_total_sum(request: Request) -> pl.LazyFrame:
    """Totals of the migrations and page faults of unified memory."""
    copies, on_cpu, on_gpu = _read_unified_memory_events(request)
    address = pl.col("virtual_address")
    directions = [address.filter(pl.col("copy_kind") == kind) for kind in (_TO_DEVICE, _TO_HOST)]
    lows = [d.min().alias(f"low {nth}") for nth, d in enumerate(directions)]
    highs = [d.max().alias(f"high {nth}") for nth, d in enumerate(directions)]
    faults = [pl.len().alias("cpu_page_faults"), _sum_or_null_expr("page_faults").alias("gpu_page_faults")]
    totals = [copies.select(*_migrated_bytes_exprs(), *lows, *highs)]
    for nth, (rows, count) in enumerate(zip((on_cpu, on_gpu), faults, strict=True), 2):
        totals.append(rows.select(count, address.min().alias(f"low {nth}"), address.max().alias(f"high {nth}")))
    joined = pl.concat(totals, how="horizontal")
    extremes = {"lowest": (pl.min_horizontal, "low"), "highest": (pl.max_horizontal, "high")}
    for name, (extreme, prefix) in extremes.items():
        columns = [pl.col(f"{prefix} {nth}") for nth in range(4)]
        known = pl.all_horizontal(c.is_not_null() for c in columns)
        joined = joined.with_columns(pl.when(known).then(format_hexadecimal_expr(extreme(columns))).alias(name))
    counts = pl.col("to_device_bytes", "to_host_bytes", "cpu_page_faults", "gpu_page_faults")
    return joined.filter(pl.any_horizontal(counts > 0))


def um_cpu_page_faults_sum(request: Request) -> pl.LazyFrame:
    """Page faults of unified memory on CPUs, by the function and line that caused them."""
    keys = ("function_id", "function", "source_file_id", "source_file", "source_line")
    grouped = request.frames("cpu_page_faults").group_by(keys).agg(pl.len().alias("count"))
    order = [True, False, False, False]
    return grouped.sort("count", "function_id", "source_file_id", "source_line", descending=order)


def _read_allocations(request: Request) -> pl.DataFrame:
    """Return the allocations of the whole capture.

    The time window does not limit them, because memory that was allocated before the window may still be in use.
    """
    columns = ("memory_event_id", "timestamp_ns", "process_id", "device_id", "correlation_id", "operation")
    more = ("memory_kind", "address", "bytes", "name")
    frames = request.get_frames_without("time")
    return memory.pair_allocations(frames("memory_events").select(*columns, *more).collect())


def _select_memory_changes_in_window(request: Request, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the changes in memory usage within the time window, and the last changes before the window.

    The latter represent the usage at the start of the window.
    """
    return memory.select_memory_changes_in_window(memory.compute_memory_usage(rows), request.window)


def _read_allocations_and_peaks(request: Request) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return two frames: the allocations of a capture, and the peaks of memory usage in the time window.

    There is one peak per device and kind of memory.
    """
    rows = _read_allocations(request)
    return rows, memory.find_memory_peaks(_select_memory_changes_in_window(request, rows))


def _add_call_names(rows: pl.DataFrame, frames: Frames) -> pl.DataFrame:
    """Add the API function, the innermost NVTX range and the call stack of each allocation."""
    calls = read_api_calls(frames, "name").rename({"name": "function"}).collect()
    launches = join_calls(rows.select("memory_event_id", *CALL), calls, "first")
    ranges = read_attributable_ranges(frames).sort("start_ns", "range_id").collect()
    names = ranges["name"].cast(pl.String).gather(find_last_started_ranges(ranges, launches))
    added = launches.select("memory_event_id", "function", names.alias("range_name"))
    known = frames("stacks").select(stacks.READ).collect()
    paths = stacks.build_stack_paths(known, stacks.read_stack_ids_of_calls(rows.select(CALL), frames))
    return rows.join(added, on="memory_event_id", how="left", maintain_order="left").with_columns(paths)


def _sum_or_null_expr(column: str) -> pl.Expr:
    """Return an expression for the sum of a column, which is null if there are no rows."""
    return pl.when(pl.len() > 0).then(pl.col(column).sum())


def _read_unified_memory_events(request: Request) -> tuple[pl.LazyFrame, pl.LazyFrame, pl.LazyFrame]:
    """Return three frames: the migrations, the page faults on CPUs and the page faults on GPUs.

    As in nsys, all frames are empty if at least one of three tables of the capture has no rows: ``memcpys``,
    ``cpu_page_faults`` and ``gpu_page_faults``.
    """
    frames = request.frames
    copies = frames("memcpys").select(pl.col("copy_kind").cast(pl.String), "virtual_address", "bytes", DURATION)
    tables = (
        copies.filter(pl.col("copy_kind").is_in([_TO_DEVICE, _TO_HOST])),
        frames("cpu_page_faults").select("virtual_address"),
        frames("gpu_page_faults").select("virtual_address", "page_faults"),
    )
    of_capture = request.get_frames_without()
    is_recorded = all(has_rows(of_capture, name) for name in ("memcpys", "cpu_page_faults", "gpu_page_faults"))
    to_device, on_cpu, on_gpu = tables if is_recorded else tuple(t.clear() for t in tables)
    return to_device, on_cpu, on_gpu


def _migrated_bytes_exprs() -> list[pl.Expr]:
    """Return expressions for the number of bytes that migrated in each direction. The number is null if none did."""
    names = {"to_device_bytes": _TO_DEVICE, "to_host_bytes": _TO_HOST}
    sizes = {name: pl.col("bytes").filter(pl.col("copy_kind") == kind) for name, kind in names.items()}
    return [pl.when(s.len() > 0).then(s.sum()).alias(name) for name, s in sizes.items()]
