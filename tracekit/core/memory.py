"""Compute the memory in use from allocations and deallocations, and find its peaks and the allocations at a peak."""

from __future__ import annotations

import polars as pl

_ORDER = ("timestamp_ns", "memory_event_id")
_ADDRESS = ("process_id", "device_id", "address")
GROUP = ("device_id", "memory_kind")
"""Columns that identify a kind of memory on a device. Memory in use is computed for each combination of values."""


READ = (
    *("memory_event_id", "timestamp_ns", "process_id", "device_id", "operation", "memory_kind", "address", "bytes"),
)
ADDED = ("used_bytes", "freed_ns")
"""Columns of the table ``memory_events`` that ``compute_usage_columns`` reads (``READ``) and computes (``ADDED``)."""


def compute_usage_columns(memory_events: pl.DataFrame) -> pl.DataFrame:
    """Return the memory in use after each memory event, and the time at which each allocation was freed.

    Args:
        memory_events: The columns ``READ`` of the table ``memory_events``.

    Returns:
        The columns ``used_bytes`` and ``freed_ns``, with one row per event, in the same order.
    """
    rows = pair_allocations(memory_events)
    used = compute_memory_usage(rows).group_by("memory_event_id", *GROUP).agg(pl.col("used_bytes").last())
    kinds = memory_events.with_columns(pl.col("memory_kind").cast(pl.String))
    known = kinds.join(used, on=["memory_event_id", *GROUP], how="left", nulls_equal=True, maintain_order="left")
    known = known.join(
        rows.select("memory_event_id", freed_ns="end_ns"), on="memory_event_id", how="left", maintain_order="left"
    )
    latest = pl.col("used_bytes").forward_fill().fill_null(0).over(GROUP, order_by=_ORDER)
    return known.select(latest, "freed_ns")


def pair_allocations(events: pl.DataFrame) -> pl.DataFrame:
    """Pair each allocation with the event that ends it, in the order of allocation.

    An allocation ends with the next deallocation of its address in the same process and on the same device. If its
    deallocation was not recorded, it ends when the address is allocated again. Deallocations of memory that was
    allocated before the capture are ignored.

    Args:
        events: The table ``memory_events``.

    Returns:
        One row per allocation, with all columns of the table except ``operation``. ``timestamp_ns`` is renamed to
        ``start_ns``. ``end_ns`` and ``end_event_id`` are the time and id of the event that ends the allocation, and are
        null if the memory is still allocated at the end of the capture. ``is_freed`` is true if the memory was
        deallocated.
    """
    rows = events.with_columns(pl.col("operation", "memory_kind").cast(pl.String)).sort(_ORDER)
    following = [pl.col(c).shift(-1).over(_ADDRESS) for c in ("timestamp_ns", "memory_event_id", "operation")]
    ends = [e.alias(name) for e, name in zip(following, ("end_ns", "end_event_id", "next"), strict=True)]
    paired = rows.with_columns(ends).filter(operation="Allocation")
    freed = (pl.col("next") == "Deallocation").fill_null(value=False).alias("is_freed")
    return paired.with_columns(freed).drop("operation", "next").rename({"timestamp_ns": "start_ns"})


def compute_memory_usage(allocations: pl.DataFrame) -> pl.DataFrame:
    """Return the memory in use after each start and end of an allocation.

    Args:
        allocations: Allocations, as ``pair_allocations`` returns them.

    Returns:
        One row per change, in order of time. The columns are ``timestamp_ns``, ``memory_event_id``, ``device_id``,
        ``memory_kind``, ``bytes`` (the change, negative if memory is freed), ``used_bytes`` (memory of this kind in use
        on this device after the change) and ``peak_bytes`` (running maximum of ``used_bytes``).
    """
    ended = allocations.filter(pl.col("end_ns").is_not_null())
    changes = pl.concat(
        [
            allocations.select(
                *GROUP, "bytes", timestamp_ns="start_ns", memory_event_id="memory_event_id", rank=pl.lit(1)
            ),
            ended.select(
                *GROUP, -pl.col("bytes"), timestamp_ns="end_ns", memory_event_id="end_event_id", rank=pl.lit(0)
            ),
        ]
    )
    used = pl.col("bytes").cum_sum().over(GROUP).alias("used_bytes")
    ordered = changes.sort("timestamp_ns", "memory_event_id", "rank").with_columns(used)
    peak = pl.col("used_bytes").cum_max().over(GROUP).alias("peak_bytes")
    return ordered.select("timestamp_ns", "memory_event_id", *GROUP, "bytes", "used_bytes", peak)


def select_memory_changes_in_window(changes: pl.DataFrame, window: tuple[int | None, int | None]) -> pl.DataFrame:
    """Return the changes of the memory in use within a time window, and the memory in use at the start of the window.

    For each kind of memory on each device, the last change before the window represents the memory in use at the start.
    This row is omitted if no memory is in use.

    Args:
        changes: Changes of the memory in use, as ``compute_memory_usage`` returns them.
        window: Start and end ``[a, b)`` in ns. Either may be None.

    Returns:
        The selected rows, in the order of ``changes``. ``peak_bytes`` is the running maximum since the start of the
        window.
    """
    low, high = window
    time = pl.col("timestamp_ns")
    conditions = [] if high is None else [time < high]
    if low is not None:
        is_last = (time < low) & (time.shift(-1).over(GROUP) >= low).fill_null(value=True) & (pl.col("used_bytes") > 0)
        conditions.append((time >= low) | is_last)
    chosen = changes.filter(pl.all_horizontal(pl.lit(value=True), *conditions))
    return chosen.with_columns(pl.col("used_bytes").cum_max().over(GROUP).alias("peak_bytes"))


def find_memory_peaks(changes: pl.DataFrame) -> pl.DataFrame:
    """Return the first maximum of the memory in use for each kind of memory on each device.

    Args:
        changes: Changes of the memory in use, as ``compute_memory_usage`` returns them.

    Returns:
        One row per device and kind of memory, sorted by both. The columns are ``device_id``, ``memory_kind``, the time
        (``peak_ns``), event (``peak_event_id``) and size (``peak_bytes``) of the first maximum, and ``last_bytes``, the
        memory in use after the last change.
    """
    first = pl.col("used_bytes").arg_max()
    grouped = changes.group_by(GROUP).agg(
        pl.col("timestamp_ns").get(first).alias("peak_ns"),
        pl.col("memory_event_id").get(first).alias("peak_event_id"),
        pl.col("used_bytes").max().alias("peak_bytes"),
        pl.col("used_bytes").last().alias("last_bytes"),
    )
    return grouped.sort(GROUP)


def select_allocations_at_peak(allocations: pl.DataFrame, peaks: pl.DataFrame) -> pl.DataFrame:
    """Return the allocations that exist when the memory of their kind on their device is at its peak.

    Args:
        allocations: Allocations, as ``pair_allocations`` returns them.
        peaks: Peaks, as ``find_memory_peaks`` returns them.

    Returns:
        The selected allocations, in the order of ``allocations``, with the columns of their peak.
    """
    joined = allocations.join(peaks, on=GROUP, how="inner", nulls_equal=True, maintain_order="left")
    started = _is_before_peak_expr("start_ns", "memory_event_id") | (
        pl.col("memory_event_id") == pl.col("peak_event_id")
    )
    ended = _is_before_peak_expr("end_ns", "end_event_id") | (pl.col("end_event_id") == pl.col("peak_event_id"))
    return joined.filter(started, ~ended.fill_null(value=False))


def sum_owners(allocations_at_peak: pl.DataFrame) -> pl.DataFrame:
    """Return how much memory each owner holds at the peak of each kind of memory on each device.

    Args:
        allocations_at_peak: Allocations, as ``select_allocations_at_peak`` returns them, with the column ``owner``.

    Returns:
        One row per device, kind of memory and owner, in this order and the largest first: ``GROUP``, ``owner``,
        ``bytes``, ``share`` (of the peak, in percent), ``allocations``, ``largest_bytes`` and ``first_ns`` (time of its
        first allocation). The sizes of all owners add up to the peak.
    """
    rows = allocations_at_peak.group_by(*GROUP, "owner").agg(
        pl.col("bytes").sum(),
        allocations=pl.len().cast(pl.Int64),
        largest_bytes=pl.col("bytes").max(),
        first_ns=pl.col("start_ns").min(),
        peak_bytes=pl.col("peak_bytes").first(),
    )
    peak = pl.col("peak_bytes")
    rows = rows.with_columns(share=pl.when(peak > 0).then(100 * pl.col("bytes") / peak))
    descending = [False, False, True, False]
    return rows.sort(*GROUP, "bytes", "owner", descending=descending, nulls_last=True)


def _is_before_peak_expr(time_column: str, event_column: str) -> pl.Expr:
    """Return an expression for whether an event precedes the event of the peak, in order of time and id."""
    time, event = pl.col(time_column), pl.col(event_column)
    return (time < pl.col("peak_ns")) | ((time == pl.col("peak_ns")) & (event < pl.col("peak_event_id")))
