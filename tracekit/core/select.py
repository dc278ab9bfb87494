"""Declare the filters of rows, which are arguments of ``Trace.select`` and options of commands.

A new filter needs a declaration in ``FILTERS``, and an argument of ``Trace.select`` and ``TraceSet.select``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:  # the command line lists the filters without importing polars
    from collections.abc import Callable, Collection, Hashable, Iterable, Sequence

    import polars as pl
    import pyarrow as pa

LAUNCH = "launch_id"
"""Column that contains the id of an Nsight Compute result. Tables with this column have no start times."""


class RowCondition(NamedTuple):
    """A condition on rows: the name of a filter, and its value."""

    filter: str
    value: Hashable


class Filter(NamedTuple):
    """The declaration of a filter.

    Attributes:
        name: Name of the filter, which is that of the argument of ``Trace.select``.
        build_exprs: Function that returns the expressions that must be true for selected rows, given the columns of a
            table and the value of the filter. There are none if the filter does not apply to the table. None if
            ``Trace.select`` replaces the filter with conditions of other filters.
        option: Name of the option of commands. Empty if there is none.
        metavar: Description of the value in the help of commands.
        kind: Kind of the value of the option.
        is_repeated: Whether the option can be repeated.
        help: Description of the option.
    """

    name: str
    build_exprs: Callable[[Collection[str], Any], Sequence[pl.Expr]] | None
    option: str = ""
    metavar: str = ""
    kind: Literal["text", "integer", "duration", "time_window"] = "text"
    is_repeated: bool = False
    help: str = ""


def create_condition(name: str, value: Any) -> RowCondition:
    """Return the condition of a filter. Values that are lists become tuples."""
    return RowCondition(name, tuple(value) if FILTERS[name].is_repeated else value)


def row_condition_expr(columns: Collection[str], conditions: Iterable[tuple[str, Any]]) -> pl.Expr | None:
    """Return an expression that is true for rows that meet all conditions, or None if none applies to the table.

    Args:
        columns: Columns of the table. A filter without a corresponding column does not apply.
        conditions: The conditions.
    """
    import polars as pl

    exprs = [e for name, value in conditions if (build := FILTERS[name].build_exprs) for e in build(columns, value)]
    return pl.all_horizontal(exprs) if exprs else None


def launch_condition_expr(launch_ids: pa.ChunkedArray, condition: pl.Expr | None) -> pl.Expr:
    """Return an expression for whether a row has one of the given launch ids and meets a further condition.

    Args:
        launch_ids: Ids of Nsight Compute results.
        condition: The further condition, or None if there is none.
    """
    import polars as pl

    in_launches = pl.col(LAUNCH).is_in(pl.Series("", launch_ids).implode())
    return in_launches if condition is None else in_launches & condition


def _time_exprs(columns: Collection[str], time: tuple[int | None, int | None]) -> list[pl.Expr]:
    """Return the conditions under which a row overlaps a window ``[a, b)``. Rows without an end are open."""
    import polars as pl

    start, (low, high) = _find_start_column(columns), time
    if start is None:
        return []
    exprs = [] if high is None else [pl.col(start) < high]
    if low is not None and "end_ns" in columns:
        exprs.append(pl.col("end_ns").is_null() | (pl.max_horizontal("end_ns", pl.col("start_ns") + 1) > low))
    elif low is not None:
        exprs.append(pl.col(start) >= low)
    return exprs


def _device_exprs(columns: Collection[str], devices: Sequence[int]) -> list[pl.Expr]:
    import polars as pl

    applies = "device_id" in columns and (_find_start_column(columns) or LAUNCH in columns)
    return [pl.col("device_id").is_in(list(devices))] if applies else []


def _domain_exprs(columns: Collection[str], domains: Sequence[str]) -> list[pl.Expr]:
    import polars as pl

    return [pl.col("domain").cast(pl.String).fill_null("").is_in(list(domains))] if "domain" in columns else []


def _duration_exprs(columns: Collection[str], min_duration_ns: int) -> list[pl.Expr]:
    """Return the condition under which a row has a minimum duration. Rows without an end or duration meet it."""
    import polars as pl

    if "end_ns" in columns:
        return [(pl.col("end_ns") - pl.col("start_ns")).fill_null(min_duration_ns) >= min_duration_ns]
    if LAUNCH in columns and "duration_ns" in columns:
        return [pl.col("duration_ns").fill_null(min_duration_ns) >= min_duration_ns]
    return []


def _process_exprs(columns: Collection[str], process_id: int | None) -> list[pl.Expr]:
    return _owner_exprs(columns, "process_id", process_id)


def _thread_exprs(columns: Collection[str], thread_id: int | None) -> list[pl.Expr]:
    return _owner_exprs(columns, "thread_id", thread_id)


def _owner_exprs(columns: Collection[str], column: str, owner: int | None) -> list[pl.Expr]:
    """Return the condition under which an event has a process or thread. An unknown one meets the condition."""
    import polars as pl

    applies = owner is not None and column in columns and _find_start_column(columns) is not None
    return [(pl.col(column) == owner).fill_null(value=True)] if applies else []


def _find_start_column(columns: Collection[str]) -> str | None:
    """Return the name of the column of start times, or None if there is no such column."""
    return next((c for c in ("start_ns", "timestamp_ns") if c in columns), None)


_DECLARED = (
    Filter(
        "time",
        _time_exprs,
        "--time",
        "A:B",
        "time_window",
        help="Select events that overlap a window of time since the trace origin, such as '1.5s:2s' or '10ms:'.",
    ),
    Filter(
        "nvtx",
        None,
        "--nvtx",
        "RANGE[@DOMAIN][/INDEX]",
        help="Select events that overlap an NVTX range, in its process and thread. INDEX is the position of the "
        "range among ranges with the same name, from 0. A backslash before @ or / makes it part of a name.",
    ),
    Filter(
        "devices",
        _device_exprs,
        "--device",
        "ID",
        "integer",
        is_repeated=True,
        help="Select events of a GPU. Can be repeated.",
    ),
    Filter(
        "domains",
        _domain_exprs,
        "--domain",
        "NAME",
        is_repeated=True,
        help='Select ranges and marks of an NVTX domain. "" is the default domain. Can be repeated.',
    ),
    Filter(
        "min_duration_ns",
        _duration_exprs,
        "--min-dur",
        "TIME",
        "duration",
        help="Select events with at least this duration, such as 10us.",
    ),
    Filter("process_id", _process_exprs),
    Filter("thread_id", _thread_exprs),
)
FILTERS = {declared.name: declared for declared in _DECLARED}
"""The filters by name."""
