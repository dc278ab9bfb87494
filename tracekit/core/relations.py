"""The relations of activities, API calls and processes, and the keys by which tables refer to each other.

Correlation ids are unique only within a process, so an API call is identified by the pair ``CALL``. A null id matches
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
import polars as pl

from tracekit import schemas
from tracekit.core.series import create_nullable_series
from tracekit.system.memory import allocate_zeros
from tracekit.system.sorting import iterate_row_blocks
from tracekit.system.threads import map_in_order

if TYPE_CHECKING:
    import numpy.typing as npt

    Mask = npt.NDArray[np.bool_]

Frame = TypeVar("Frame", pl.DataFrame, pl.LazyFrame)

ACTIVITIES, OPERATIONS, KERNELS = map(schemas.list_tables, ("activity", "operation", "kernel"))
"""Tables of activities, of activities except for graphs as a whole, and of kernels and graphs as a whole."""
THREAD, CALL, STREAM = map(schemas.get_key, ("thread", "call", "stream"))
"""Columns that identify a thread, an API call and a stream."""
NODES_PER_GRAPH = 1 << 32
"""The id of a node of a CUDA graph, divided by this number, is the id of its graph."""
LAUNCH = "launch_ns"
"""Column of activities in a layered trace: the time to which the launch is moved, or null if it is not moved."""
_SLOTS_PER_ROW, _BATCH_ROWS, _LOOKUP_ROWS, _MAX_PROCESSES = 8, 1 << 16, 1 << 18, 16
"""Maximum number of elements per row in arrays of ids, number of rows that are numbered or looked up at a time, and
maximum number of processes that are examined one by one."""
_LOW, _HIGH = pl.col(CALL[1]).min().alias("low"), pl.col(CALL[1]).max().alias("high")
_PLACES = (STREAM, STREAM[:2], STREAM[:1])
"""Columns that may identify a process, from the most to the least specific ones."""


def join_calls(
    rows: Frame, calls: Frame, policy: Literal["first", "all"], how: Literal["left", "inner", "semi"] = "inner"
) -> Frame:
    """Join rows with the API calls that have the same process and correlation id.

    Args:
        rows: Activities, or other rows that API calls caused, with the columns ``CALL``.
        calls: API calls with the columns ``CALL``, in file order.
        policy: If several calls have the same ids, because the events of a capture were copied, ``first`` joins the
            first one, as correlation does, and ``all`` joins each of them, as nsys does.
        how: Kind of join, as in polars.

    Returns:
        The joined rows, in the order of ``rows`` and then of ``calls``.
    """
    if policy == "first" and how != "semi":
        calls = calls.unique(CALL, keep="first", maintain_order=True)
    return rows.join(calls, on=CALL, how=how, maintain_order="left" if how == "semi" else "left_right")


def list_launch_columns(activities: pl.LazyFrame) -> list[str]:
    """Return ``["launch_ns"]`` for the activities of a layered trace, and an empty list for those of other traces."""
    return [LAUNCH] if LAUNCH in activities.collect_schema().names() else []


def move_launches(launches: pl.DataFrame) -> pl.DataFrame:
    """Replace the times of API calls with those to which a layered trace moves the launches of activities.

    Args:
        launches: The columns ``start_ns`` and ``end_ns`` of the calls and, in a layered trace, ``launch_ns``.

    Returns:
        The launches without the column ``launch_ns``. A moved launch takes no time.
    """
    if LAUNCH not in launches.columns:
        return launches
    times = (pl.coalesce(LAUNCH, time).alias(time) for time in ("start_ns", "end_ns"))
    return launches.with_columns(times).drop(LAUNCH)


def find_first_row_numbers(table: pl.DataFrame, keys: pl.DataFrame) -> pl.Series:
    """Return, for each pair of process id and correlation id, the number of the first row of a table that contains it.

    Args:
        table: The columns ``process_id`` and ``correlation_id`` of the table to search.
        keys: The same columns, with the pairs to look up.

    Returns:
        One row number of ``table`` per row of ``keys``. It is null if the table does not contain the pair, if an id
        of the pair is null, or if the correlation id is 0, with which profilers mark events without an id.
    """
    number = CALL[1]
    if (keys[number] == 0).any():
        keys = keys.with_columns(pl.when(pl.col(number) != 0).then(number))
    return _find_row_numbers(table, keys)[0]


def find_only_row_numbers(table: pl.DataFrame, keys: pl.DataFrame) -> pl.Series | None:
    """Return the row of a table that contains each pair of ids, or None if several rows contain the same pair.

    Args:
        table: The columns ``process_id`` and ``correlation_id`` of the table to search.
        keys: The same columns, with the pairs to look up. A correlation id of 0 is looked up like any other.
    """
    rows, has_repeats = _find_row_numbers(table, keys)
    return None if has_repeats else rows


def _find_row_numbers(table: pl.DataFrame, keys: pl.DataFrame) -> tuple[pl.Series, bool]:
    """Return the first row of a table that contains each pair of ids, and whether several rows contain the same pair.

    The rows are not compared if the table or ``keys`` has no rows.
    """
    if not table.height or not keys.height:
        return pl.repeat(None, keys.height, dtype=pl.Int64, eager=True), False
    process = CALL[0]
    blocks = [
        table[block].drop_nulls().group_by(process).agg(_LOW, _HIGH, count=pl.len())
        for block in iterate_row_blocks(table.height)
    ]
    bounds = pl.concat(blocks).group_by(process).agg(pl.col("low").min(), pl.col("high").max(), pl.col("count").sum())
    id_ranges = bounds.select(process, "low", size=pl.col("high").cast(pl.Int128) - pl.col("low") + 1)
    size, count = int(id_ranges["size"].sum() or 0), int(bounds["count"].sum())
    if size > _SLOTS_PER_ROW * (table.height + keys.height):
        numbered = table.with_columns(row=pl.int_range(pl.len())).unique(CALL, keep="first")
        rows = keys.join(numbered, on=CALL, how="left", maintain_order="left")["row"]
        return rows, numbered.drop_nulls().height < count
    id_ranges = id_ranges.with_columns(pl.col("size").cast(pl.Int64))
    id_ranges = id_ranges.with_columns(offset=pl.col("size").cum_sum() - pl.col("size"))
    slots = _number_slots(table, id_ranges, size)
    used = sum(int(np.count_nonzero(slots[block])) for block in iterate_row_blocks(size))

    def look_up(block: slice) -> npt.NDArray[np.int64]:
        indices = _compute_lookup_indices(keys[block], id_ranges).fill_null(size).to_numpy()
        numbers: npt.NDArray[np.int64] = slots[indices].astype(np.int64)
        return numbers - 1

    row_numbers = allocate_zeros(keys.height, np.int64)
    batches = [slice(start, start + _LOOKUP_ROWS) for start in range(0, keys.height, _LOOKUP_ROWS)]
    for batch, rows_of_batch in zip(batches, map_in_order(look_up, batches), strict=True):
        row_numbers[batch] = rows_of_batch
    return create_nullable_series(row_numbers), used < count


def _number_slots(table: pl.DataFrame, id_ranges: pl.DataFrame, size: int) -> npt.NDArray[np.uint32]:
    """Return the number of the first row with each pair of ids, from 1, or 0. One more slot is always 0.

    Args:
        table: The columns ``process_id`` and ``correlation_id``.
        id_ranges: The ids of each process, as ``_compute_lookup_indices`` describes them.
        size: Number of slots.
    """
    slots = allocate_zeros(size + 1, np.uint32)
    for start in range(0, table.height, _BATCH_ROWS)[::-1]:
        indices = _compute_lookup_indices(table.slice(start, _BATCH_ROWS), id_ranges).fill_null(size).to_numpy()
        slots[indices[::-1]] = np.arange(start + len(indices), start, -1, dtype=np.uint32)
    slots[size] = 0
    return slots


def _compute_lookup_indices(keys: pl.DataFrame, id_ranges: pl.DataFrame) -> pl.Series:
    """Return the index of each pair of process and correlation id in a lookup array.

    For each process, the array has one element per correlation id from the smallest to the largest id of the process.
    The index is null if the process is unknown or the id is outside of this range.

    Args:
        keys: The columns ``process_id`` and ``correlation_id``.
        id_ranges: One row per process: ``process_id``, ``low`` (smallest id), ``size`` (number of elements), ``offset``
            (index of the first element).
    """
    process, number = CALL
    joined = keys.join(id_ranges, on=process, how="left", maintain_order="left")
    slot = pl.col(number) - pl.col("low")
    inside = (slot >= 0) & (slot < pl.col("size"))
    return joined.select(slot=pl.when(inside).then(slot + pl.col("offset"))).to_series()


def fill_process_ids(activities: pl.DataFrame) -> pl.DataFrame:
    """Replace null process ids of GPU activities with the id of the only process on the same stream or device.

    If all other activities on the stream belong to one process, that process is used. Otherwise, it is the process of
    the context or of the device, if it is the only one there. If several processes use the device, or none is known,
    the process id remains null.

    Args:
        activities: GPU activities with the columns ``process_id``, ``device_id`` and, if they are known,
            ``context_id`` and ``stream_id``.
    """
    for place in _PLACES:
        if activities["process_id"].null_count() and set(place) <= set(activities.columns):
            process = pl.col("process_id")
            first, last = process.min().over(place), process.max().over(place)
            is_only = (first == last) & pl.all_horizontal(pl.col(place).is_not_null())
            activities = activities.with_columns(pl.coalesce(process, pl.when(is_only).then(first)))
    return activities


@dataclass(frozen=True, slots=True)
class KernelsWithoutCalls:
    """Numbers of kernels whose API calls were not recorded.

    Attributes:
        kernel_count: Number of all kernels.
        without_id: Kernels without a correlation id. An id of 0 is no id.
        without_process: Kernels with a correlation id whose process is unknown.
        earlier: Kernels whose correlation id is lower than those of all recorded calls of the process.
        other: All other kernels whose calls were not recorded.
    """

    kernel_count: int
    without_id: int
    without_process: int
    earlier: int
    other: int

    @property
    def count(self) -> int:
        """Number of all kernels whose calls were not recorded."""
        return self.without_id + self.without_process + self.earlier + self.other

    def describe(self, call_count: int) -> str:
        """Return a sentence with the numbers and the likely reasons.

        Args:
            call_count: Number of recorded API calls.
        """
        reasons = {
            "have no correlation id": self.without_id,
            "have a correlation id that belongs to calls of several processes or of none": self.without_process,
            "were probably launched before the recording began, because their correlation ids are lower than those "
            "of all recorded calls": self.earlier,
            "have a correlation id that no recorded call has": self.other,
        }
        listed = "; ".join(f"{count:,} {reason}" for reason, count in reasons.items() if count)
        return (
            f"the API calls of {self.count:,} of {self.kernel_count:,} kernels cannot be found, so these kernels "
            f"are not attributed to calls, ranges and ops: "
            + (listed if call_count else "the capture contains no API calls")
        )


def count_kernels_without_calls(kernels: pl.DataFrame, calls: pl.DataFrame) -> KernelsWithoutCalls:
    """Count the kernels whose API calls were not recorded.

    Args:
        kernels: The columns ``process_id`` and ``correlation_id`` of all kernels.
        calls: The same columns of all API calls.
    """
    process, number = CALL
    without_id = pl.col(number).is_null() | (pl.col(number) == 0)
    no_id, no_process = kernels.select(
        without_id=without_id.sum(), without_process=(~without_id & pl.col(process).is_null()).sum()
    ).row(0)
    kernel_count = kernels.height
    if no_id or no_process:
        kernels = kernels.filter(~without_id & pl.col(process).is_not_null())
    processes = kernels[process].unique()
    if len(processes) > _MAX_PROCESSES:
        missing = find_first_row_numbers(calls, kernels).is_null()
        lost = kernels.filter(missing)
        lowest = calls.drop_nulls().group_by(process).agg(low=pl.col(number).min())
        is_earlier = lost.join(lowest, process, how="left").select(pl.col(number) < pl.col("low")).to_series()
        earlier, missing_count = int(is_earlier.sum()), lost.height
    else:
        pairs = [_count_missing_ids(kernels, calls, int(p)) for p in processes]
        missing_count, earlier = (sum(column) for column in zip(*pairs, strict=True)) if pairs else (0, 0)
    return KernelsWithoutCalls(kernel_count, no_id, no_process, earlier, missing_count - earlier)


def _count_missing_ids(kernels: pl.DataFrame, calls: pl.DataFrame, process: int) -> tuple[int, int]:
    """Return how many kernels of a process have an id that no call of the process has, and how many a lower one."""
    ids, known = (_select_ids(table, process) for table in (kernels, calls))
    if not len(known):
        return len(ids), 0
    low, high = int(known.min()), int(known.max())
    earlier = int((ids < low).sum())
    if high - low >= _SLOTS_PER_ROW * (len(ids) + len(known)):
        return int((~np.isin(ids, known)).sum()), earlier
    is_known: Mask = np.zeros(high - low + 1, np.bool_)
    is_known[known - low] = True
    inside = ids[(ids >= low) & (ids <= high)]
    return len(ids) - int(is_known[inside - low].sum()), earlier


def _select_ids(table: pl.DataFrame, process: int) -> npt.NDArray[np.int64]:
    """Return the correlation ids of one process, without nulls."""
    name, number = CALL
    is_process = table[name] == process
    ids = table[number] if is_process.all() and not is_process.null_count() else table.filter(is_process)[number]
    return ids.drop_nulls().to_numpy()
