"""Compute reports on the memory of the allocator of a framework, such as PyTorch's caching allocator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core import allocator, memory, stacks

if TYPE_CHECKING:
    from tracekit.core.reports.report import Request


def allocator_peak(request: Request) -> pl.LazyFrame:
    """Peak of the allocated and of the reserved memory of each device, and the memory at the end.

    If a time window is selected, only the events in the window are considered.
    """
    peaks = _find_peaks(request)
    at_peak = allocator.select_blocks_at_peak(_read_pairs(request), peaks)
    counts = at_peak.group_by(allocator.DEVICE).agg(allocations=pl.len().cast(pl.Int64))
    failed = pl.col("operation").cast(pl.String) == allocator.FAILURE
    failures = request.frames("allocator_events").group_by(allocator.DEVICE).agg(failures=failed.sum().cast(pl.Int64))
    joined = peaks.join(counts, on=allocator.DEVICE, how="left", maintain_order="left")
    joined = joined.join(failures.collect(), on=allocator.DEVICE, how="left", maintain_order="left")
    return joined.with_columns(pl.col("failures").fill_null(0)).lazy()


def allocator_owners(request: Request) -> pl.LazyFrame:
    """Owners of the allocated memory at the peak of each device, largest first. Their sizes add up to the peak."""
    at_peak = allocator.select_blocks_at_peak(_read_pairs(request), _find_peaks(request))
    return _sum_owners(request, at_peak)


def allocator_unfreed(request: Request) -> pl.LazyFrame:
    """Owners of the memory that was allocated in the recording and never freed, largest first."""
    pairs = _read_pairs(request)
    unfreed = pairs.filter(pl.col("start_event_id").is_not_null(), pl.col("end_event_id").is_null())
    low, high = request.window
    if low is not None or high is not None:
        started = request.frames("allocator_events").select(start_event_id="allocator_event_id").collect()
        unfreed = unfreed.join(started, on="start_event_id", how="semi", maintain_order="left")
    total = pl.col("bytes").sum().over(allocator.DEVICE).alias("peak_bytes")
    return _sum_owners(request, unfreed.with_columns(total))


def allocator_segments(request: Request) -> pl.LazyFrame:
    """Reserved memory by device, stream, pool and segment type: what is in use, and what fragments it."""
    segments = request.frames("memory_segments").collect()
    return allocator.sum_segments(allocator.read_blocks(request.frames), segments).lazy()


def allocator_failures(request: Request) -> pl.LazyFrame:
    """Allocations that failed, with the memory that was free, reserved and allocated then, and their call stacks."""
    failed = pl.col("operation").cast(pl.String) == allocator.FAILURE
    events = request.frames("allocator_events").filter(failed).sort("allocator_event_id").collect()
    known = request.frames("stacks").select(stacks.READ).collect()
    paths = stacks.build_stack_paths(known, events["stack_id"])
    unused = pl.col("reserved_bytes") - pl.col("allocated_bytes")
    return events.with_columns(paths, unused_bytes=unused).lazy()


def _read_pairs(request: Request) -> pl.DataFrame:
    """Return all blocks of the recording. A time window does not limit them, because they are in use for longer."""
    frames = request.get_frames_without("time")
    return allocator.pair_blocks(frames("allocator_events").collect(), allocator.read_blocks(frames))


def _find_peaks(request: Request) -> pl.DataFrame:
    """Return the peaks of the selected events. The start of the recording counts if no time window is selected."""
    initial = None
    if request.window == (None, None):
        events, segments = (request.frames(name).collect() for name in ("allocator_events", "memory_segments"))
        initial = allocator.compute_initial_states(events, allocator.read_blocks(request.frames), segments)
    return allocator.find_peaks(allocator.compute_states(request.frames("allocator_events").collect(), initial))


def _sum_owners(request: Request, pairs: pl.DataFrame) -> pl.LazyFrame:
    owned = allocator.add_owners(pairs, request.get_frames_without("time"), request.get_text("owner"))
    return memory.sum_owners(owned.with_columns(memory_kind=pl.lit(None, pl.String))).lazy()
