"""Find the peak of the memory that the allocator of a framework has given out, and the blocks that hold it.

Events of an allocator have no time if it was not recorded, so they are ordered by their ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core import stacks

if TYPE_CHECKING:
    from collections.abc import Callable

ALLOCATE, FREE, FAILURE = "allocate", "free", "out of memory"
IN_USE = ("allocated", "awaiting free")
"""States of blocks that are in use."""
DEVICE = "device_id"
EARLIER = "allocated before the recording"
_ADDRESS = (DEVICE, "address")
_OWNED = ("stack_id", "user_stack_id", "compile_context", "metadata", "category")
_BLOCK = (DEVICE, "stream_id", "address", "bytes", *_OWNED)
_SIGNS = {
    "allocated_bytes": {ALLOCATE: 1, FREE: -1},
    "reserved_bytes": {"allocate segment": 1, "map segment": 1, "free segment": -1, "unmap segment": -1},
}
"""Signs with which the sizes of events change the memory in use, by column."""
CHANGES = ("timestamp_ns", DEVICE, "operation", *_SIGNS)
"""Columns of the table ``allocator_events`` that ``compute_changes`` reads."""


def read_blocks(frames: Callable[[str], pl.LazyFrame]) -> pl.DataFrame:
    """Return the table ``memory_blocks`` with the device, stream, type and pool of their segments."""
    segments = frames("memory_segments").select("segment_id", DEVICE, "stream_id", "segment_type", "pool")
    return frames("memory_blocks").join(segments, on="segment_id", maintain_order="left").collect()


def pair_blocks(events: pl.DataFrame, blocks: pl.DataFrame) -> pl.DataFrame:
    """Return every block that was in use at some time, with the events that allocated and freed it.

    Args:
        events: The table ``allocator_events``.
        blocks: The blocks, as ``read_blocks`` returns them.

    Returns:
        One row per allocation. ``start_event_id`` and ``start_ns`` are null if it happened before the recording, and
        ``end_event_id`` and ``end_ns`` if it is still in use at the end. The other columns are those of the event, or
        of the block. The call stack of a block that was allocated before the recording and freed later is unknown.
    """
    texts = pl.col("operation", "compile_context", "metadata", "category").cast(pl.String)
    rows = events.with_columns(texts).filter(pl.col("operation").is_in((ALLOCATE, FREE))).sort("allocator_event_id")
    previous = pl.col("operation").shift(1).over(_ADDRESS)
    following = [pl.col(c).shift(-1).over(_ADDRESS) for c in ("operation", "allocator_event_id", "timestamp_ns")]
    is_freed = following[0] == FREE
    ends = {"end_event_id": pl.when(is_freed).then(following[1]), "end_ns": pl.when(is_freed).then(following[2])}
    paired = rows.with_columns(**ends, was_allocated=(previous == ALLOCATE).fill_null(value=False))
    starts = {"start_event_id": "allocator_event_id", "start_ns": "timestamp_ns"}
    allocated = paired.filter(operation=ALLOCATE).select(*_BLOCK, *ends, **starts)
    freed = paired.filter(pl.col("operation") == FREE, ~pl.col("was_allocated"))
    earlier = freed.select(*_BLOCK[:4], end_event_id="allocator_event_id", end_ns="timestamp_ns")
    still = (
        blocks.filter(pl.col("state").cast(pl.String).is_in(IN_USE)).drop("bytes").rename({"requested_bytes": "bytes"})
    )
    known = allocated.filter(pl.col("end_event_id").is_null())
    alive = still.join(known, on=_ADDRESS, how="anti").select(*_BLOCK[:4], "stack_id", "user_stack_id")
    return pl.concat([allocated, earlier, alive], how="diagonal")


def compute_states(events: pl.DataFrame, initial: pl.DataFrame | None) -> pl.DataFrame:
    """Return the memory in use after each event, and at the start of the recording.

    Args:
        events: The table ``allocator_events``, or a part of it.
        initial: The state of each device at the start, as ``compute_initial_states`` returns it, or None.

    Returns:
        ``device_id``, ``event_id`` (0 for the start of the recording), ``timestamp_ns``, ``allocated_bytes`` and
        ``reserved_bytes``, in the order of the events of each device.
    """
    rows = events.select(DEVICE, "timestamp_ns", *_SIGNS, event_id="allocator_event_id")
    parts = [rows] if initial is None else [initial, rows]
    return pl.concat(parts, how="diagonal_relaxed").sort(DEVICE, "event_id")


def compute_changes(events: pl.DataFrame) -> pl.DataFrame:
    """Return the changes of the allocated and of the reserved memory as ``memory.compute_memory_usage`` does.

    Args:
        events: The columns ``CHANGES`` of the table ``allocator_events``.

    Returns:
        One row per change at a known time: ``timestamp_ns``, ``device_id``, ``memory_kind`` (Allocated or Reserved) and
        ``used_bytes``, in order of time.
    """
    operation = pl.col("operation").cast(pl.String)
    rows = [
        events.filter(operation.is_in(list(signs))).select(
            "timestamp_ns", DEVICE, memory_kind=pl.lit(kind), used_bytes=column
        )
        for kind, (column, signs) in zip(("Allocated", "Reserved"), _SIGNS.items(), strict=True)
    ]
    return pl.concat(rows).drop_nulls(["timestamp_ns", "used_bytes"]).sort("timestamp_ns", maintain_order=True)


def compute_initial_states(events: pl.DataFrame, blocks: pl.DataFrame, segments: pl.DataFrame) -> pl.DataFrame:
    """Return the memory of each device that was in use before the first event.

    Args:
        events: The table ``allocator_events``.
        blocks: The blocks, as ``read_blocks`` returns them.
        segments: The table ``memory_segments``.

    Returns:
        ``device_id``, ``event_id`` (0), ``timestamp_ns`` (0), ``allocated_bytes`` and ``reserved_bytes``.
    """
    operation = pl.col("operation").cast(pl.String)
    changes = [
        pl.col(c) - pl.col("bytes") * operation.replace_strict(signs, default=0, return_dtype=pl.Int64)
        for c, signs in _SIGNS.items()
    ]
    first = events.sort("allocator_event_id").group_by(DEVICE).first().select(DEVICE, *changes)
    used = blocks.filter(pl.col("state").cast(pl.String).is_in(IN_USE)).group_by(DEVICE)
    reserved = segments.group_by(DEVICE).agg(reserved_bytes=pl.col("bytes").sum())
    idle = reserved.join(used.agg(allocated_bytes=pl.col("requested_bytes").sum()), on=DEVICE, how="left")
    idle = idle.join(first, on=DEVICE, how="anti").with_columns(pl.col("allocated_bytes").fill_null(0))
    states = pl.concat([first, idle.select(first.columns)])
    return states.with_columns(event_id=pl.lit(0, pl.Int64), timestamp_ns=pl.lit(0, pl.Int64)).sort(DEVICE)


def find_peaks(states: pl.DataFrame) -> pl.DataFrame:
    """Return the first maximum of the allocated and of the reserved memory of each device.

    Args:
        states: States, as ``compute_states`` returns them.

    Returns:
        One row per device: ``peak_event_id``, ``peak_ns``, ``peak_bytes`` and ``reserved_at_peak_bytes`` for the
        allocated memory, ``peak_reserved_ns`` and ``peak_reserved_bytes`` for the reserved memory, and
        ``last_bytes`` and ``last_reserved_bytes`` after the last event. Values that are unknown are null.
    """
    allocated, reserved = (pl.col(c) for c in _SIGNS)
    at, at_reserved = allocated.arg_max(), reserved.arg_max()
    grouped = states.group_by(DEVICE, maintain_order=True).agg(
        peak_event_id=pl.col("event_id").get(at, null_on_oob=True),
        peak_ns=pl.col("timestamp_ns").get(at, null_on_oob=True),
        peak_bytes=allocated.max(),
        reserved_at_peak_bytes=reserved.get(at, null_on_oob=True),
        peak_reserved_ns=pl.col("timestamp_ns").get(at_reserved, null_on_oob=True),
        peak_reserved_bytes=reserved.max(),
        last_bytes=allocated.last(),
        last_reserved_bytes=reserved.last(),
    )
    return grouped.sort(DEVICE)


def select_blocks_at_peak(pairs: pl.DataFrame, peaks: pl.DataFrame) -> pl.DataFrame:
    """Return the blocks that are in use at the peak of their device, with the columns of the peak.

    Args:
        pairs: Blocks, as ``pair_blocks`` returns them.
        peaks: Peaks, as ``find_peaks`` returns them.
    """
    joined = pairs.join(peaks.drop_nulls("peak_bytes"), on=DEVICE, maintain_order="left")
    started = pl.col("start_event_id").fill_null(0) <= pl.col("peak_event_id")
    return joined.filter(started, (pl.col("end_event_id") > pl.col("peak_event_id")).fill_null(value=True))


def add_owners(pairs: pl.DataFrame, frames: Callable[[str], pl.LazyFrame], group: str) -> pl.DataFrame:
    """Add the column ``owner`` to blocks.

    Args:
        pairs: Blocks, as ``pair_blocks`` returns them.
        frames: Function that returns the table with a given name.
        group: What owns a block: ``frame``, ``stack``, ``stream``, ``size``, ``context``, ``metadata`` or ``category``.
    """
    if group == "frame":
        where = pl.format("{}:{}", pl.col("module").cast(pl.String), "line").fill_null(pl.col("module").cast(pl.String))
        text = pl.format("{} {}", where, pl.col("symbol").cast(pl.String)).fill_null(where)
        users = frames("stacks").select(user_stack_id="stack_id", owner=text).collect()
        owned = pairs.join(users, on="user_stack_id", how="left", maintain_order="left")
    elif group == "stack":
        known = frames("stacks").select(stacks.READ).collect()
        paths = stacks.build_stack_paths(known, pairs["stack_id"]).cast(pl.String).alias("owner")
        owned = pairs.with_columns(paths)
    else:
        columns = {"context": "compile_context", "metadata": "metadata", "category": "category"}
        texts = {"stream": pl.format("stream {}", "stream_id"), "size": pl.format("{} bytes", "bytes")}
        owned = pairs.with_columns(owner=texts[group] if group in texts else pl.col(columns[group]))
    is_lost = pl.col("start_event_id").is_null() & pl.col("stack_id").is_null() & pl.col("owner").is_null()
    return owned.with_columns(owner=pl.when(is_lost).then(pl.lit(EARLIER)).otherwise("owner"))


def sum_segments(blocks: pl.DataFrame, segments: pl.DataFrame) -> pl.DataFrame:
    """Return how much of the reserved memory is in use, and how it is divided, by device, stream, pool and type.

    Args:
        blocks: The blocks, as ``read_blocks`` returns them.
        segments: The table ``memory_segments``.

    Returns:
        ``device_id``, ``stream_id``, ``pool``, ``segment_type``, ``segments``, ``reserved_bytes``, ``blocks``,
        ``requested_bytes``, ``rounding_bytes``, ``awaiting_bytes``, ``inactive_bytes``, ``inactive_blocks``,
        ``largest_inactive_bytes`` and ``inactive_share``. Requested, rounding, awaiting and inactive memory add up to
        the reserved memory.
    """
    keys = [DEVICE, "stream_id", "pool", "segment_type"]
    texts = pl.col("pool", "segment_type").cast(pl.String)
    state, size = pl.col("state").cast(pl.String), pl.col("bytes")
    allocated, awaiting = (state == name for name in IN_USE)
    requested = pl.coalesce("requested_bytes", "bytes")
    inactive = ~(allocated | awaiting).fill_null(value=False)
    sums = (
        blocks.with_columns(texts)
        .group_by(keys)
        .agg(
            blocks=allocated.sum().cast(pl.Int64),
            requested_bytes=requested.filter(allocated).sum(),
            rounding_bytes=(size - requested).filter(allocated).sum(),
            awaiting_bytes=size.filter(awaiting).sum(),
            inactive_bytes=size.filter(inactive).sum(),
            inactive_blocks=inactive.sum().cast(pl.Int64),
            largest_inactive_bytes=size.filter(inactive).max(),
        )
    )
    total = segments.with_columns(texts).group_by(keys).agg(segments=pl.len().cast(pl.Int64), reserved_bytes=size.sum())
    joined = total.join(sums, on=keys, how="left", nulls_equal=True)
    share = pl.when(pl.col("reserved_bytes") > 0).then(100 * pl.col("inactive_bytes") / pl.col("reserved_bytes"))
    return joined.with_columns(inactive_share=share).sort(keys, nulls_last=False)
