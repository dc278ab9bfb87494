"""Which rows of a table a selection keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import pyarrow as pa


LAUNCH = "launch_id"
"""Column that tells results of Nsight Compute, which have no start."""


def condition(
    columns: Collection[str],
    *,
    time: tuple[int | None, int | None] | None = None,
    devices: Sequence[int] | None = None,
    domains: Sequence[str] | None = None,
    min_duration_ns: int | None = None,
) -> pl.Expr | None:
    """Return the condition that rows of a table with these columns must meet, or None if all of them do.

    Args:
        columns: Columns of the table; a criterion that it has no column for does not apply.
        time: Overlap with ``[a, b)`` ns; an instant lies in it, a row without end is still open.
        devices: Wanted values of ``device_id``.
        domains: Wanted values of ``domain``; "" is the default domain.
        min_duration_ns: Shortest wanted ``end_ns - start_ns``, or ``duration_ns`` of results of Nsight Compute; a row
            without end or duration is long enough.
    """
    parts = [*_time(columns, time), *_duration(columns, min_duration_ns)]
    if devices is not None and "device_id" in columns and (_start(columns) or LAUNCH in columns):
        parts.append(pl.col("device_id").is_in(list(devices)))
    if domains is not None and "domain" in columns:
        parts.append(pl.col("domain").cast(pl.String).fill_null("").is_in(list(domains)))
    return pl.all_horizontal(parts) if parts else None


def of_launches(launches: pa.ChunkedArray, also: pl.Expr | None) -> pl.Expr:
    """Return the condition that rows belong to some results of Nsight Compute, and meet another condition if any."""
    belongs = pl.col(LAUNCH).is_in(pl.Series("", launches).implode())
    return belongs if also is None else belongs & also


def _time(columns: Collection[str], time: tuple[int | None, int | None] | None) -> Iterator[pl.Expr]:
    start = _start(columns)
    if time is None or start is None:
        return
    low, high = time
    if high is not None:
        yield pl.col(start) < high
    if low is not None and "end_ns" in columns:
        yield pl.col("end_ns").is_null() | (pl.max_horizontal("end_ns", pl.col("start_ns") + 1) > low)
    elif low is not None:
        yield pl.col(start) >= low


def _duration(columns: Collection[str], shortest: int | None) -> Iterator[pl.Expr]:
    if shortest is not None and "end_ns" in columns:
        yield (pl.col("end_ns") - pl.col("start_ns")).fill_null(shortest) >= shortest
    elif shortest is not None and LAUNCH in columns and "duration_ns" in columns:
        yield pl.col("duration_ns").fill_null(shortest) >= shortest


def _start(columns: Collection[str]) -> str | None:
    return next((c for c in ("start_ns", "timestamp_ns") if c in columns), None)
