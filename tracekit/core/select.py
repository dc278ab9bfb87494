"""Build the conditions that filter the rows of a table by time, device, domain and duration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import pyarrow as pa


CONDITIONS = ("time", "devices", "domains", "min_duration_ns", "process_id", "thread_id")
"""Names of the conditions on rows."""
LAUNCH = "launch_id"
"""Column that contains the id of an Nsight Compute result. Tables with this column have no start times."""


def row_condition_expr(
    columns: Collection[str],
    *,
    time: tuple[int | None, int | None] | None = None,
    devices: Sequence[int] | None = None,
    domains: Sequence[str] | None = None,
    min_duration_ns: int | None = None,
    process_id: int | None = None,
    thread_id: int | None = None,
) -> pl.Expr | None:
    """Return the condition that rows of a table must meet, or None if no filter applies to the table.

    Args:
        columns: Columns of the table. A filter without a corresponding column does not apply.
        time: A window ``[a, b)`` in ns that rows must overlap. Either bound may be None. The time of a mark must be in
            the window. A row without an end is open until the end of the capture.
        devices: Allowed values of ``device_id``.
        domains: Allowed values of ``domain``. "" is the default domain.
        min_duration_ns: Minimum of ``end_ns - start_ns``, or of ``duration_ns`` for Nsight Compute results. Rows
            without an end or duration meet the condition.
        process_id: Process of events, in tables whose events have a process. An unknown process meets the condition.
        thread_id: Thread of events, in tables whose events have a thread. An unknown thread meets the condition.
    """
    conditions = [*_time_condition_exprs(columns, time), *_duration_condition_exprs(columns, min_duration_ns)]
    if devices is not None and "device_id" in columns and (_find_start_column(columns) or LAUNCH in columns):
        conditions.append(pl.col("device_id").is_in(list(devices)))
    if domains is not None and "domain" in columns:
        conditions.append(pl.col("domain").cast(pl.String).fill_null("").is_in(list(domains)))
    owners = {"process_id": process_id, "thread_id": thread_id}
    if _find_start_column(columns):
        conditions += [
            _equals_or_null_expr(c, owner) for c, owner in owners.items() if owner is not None and c in columns
        ]
    return pl.all_horizontal(conditions) if conditions else None


def _equals_or_null_expr(column: str, value: int) -> pl.Expr:
    """Return an expression for whether a column has the given value or is null."""
    return (pl.col(column) == value).fill_null(value=True)


def launch_condition_expr(launch_ids: pa.ChunkedArray, condition: pl.Expr | None) -> pl.Expr:
    """Return an expression for whether a row has one of the given launch ids and meets a further condition.

    Args:
        launch_ids: Ids of Nsight Compute results.
        condition: The further condition, or None if there is none.
    """
    in_launches = pl.col(LAUNCH).is_in(pl.Series("", launch_ids).implode())
    return in_launches if condition is None else in_launches & condition


def _time_condition_exprs(columns: Collection[str], time: tuple[int | None, int | None] | None) -> Iterator[pl.Expr]:
    """Yield the conditions under which a row overlaps a time window."""
    start = _find_start_column(columns)
    if time is None or start is None:
        return
    low, high = time
    if high is not None:
        yield pl.col(start) < high
    if low is not None and "end_ns" in columns:
        yield pl.col("end_ns").is_null() | (pl.max_horizontal("end_ns", pl.col("start_ns") + 1) > low)
    elif low is not None:
        yield pl.col(start) >= low


def _duration_condition_exprs(columns: Collection[str], min_duration_ns: int | None) -> Iterator[pl.Expr]:
    """Yield the conditions under which a row has a minimum duration."""
    if min_duration_ns is not None and "end_ns" in columns:
        yield (pl.col("end_ns") - pl.col("start_ns")).fill_null(min_duration_ns) >= min_duration_ns
    elif min_duration_ns is not None and LAUNCH in columns and "duration_ns" in columns:
        yield pl.col("duration_ns").fill_null(min_duration_ns) >= min_duration_ns


def _find_start_column(columns: Collection[str]) -> str | None:
    """Return the name of the column of start times, or None if there is no such column."""
    return next((c for c in ("start_ns", "timestamp_ns") if c in columns), None)
