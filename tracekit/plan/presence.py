"""Check that a capture has the selected GPUs and NVTX domains, and events in the selected time window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit import schemas
from tracekit.errors import TracekitError, create_choices_hint, warn
from tracekit.registry.tables import count_rows, prefetch, scan_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tracekit.plan.view import TraceView

    Time = tuple[int | None, int | None]

_TIMES = ("start_ns", "end_ns", "timestamp_ns", "created_ns", "end_seen_ns")
_OTHER_TIMED = ("allocator_events", "communication_calls", "counters", "memory_events", "nvtx_marks")
"""Further tables with events of the program, which captures of some profilers consist of."""


def find_time_span(view: TraceView, tables: Sequence[str] | None = None) -> tuple[int, int] | None:
    """Return the earliest and the latest time in the given tables, in ns. Return None if the tables have no rows.

    The default tables are activities, API calls, NVTX ranges, calls of the OS runtime, and the tables ``_OTHER_TIMED``.
    """
    import polars as pl

    tables = (*schemas.list_tables("event"), *_OTHER_TIMED) if tables is None else tables
    columns = {name: [c for c in _TIMES if c in view.tables.schema(name).names] for name in tables}
    prefetch(view.tables, columns)
    ends = []
    for name, times in columns.items():
        if count_rows(view.tables, name):
            low, high = pl.min_horizontal(times).min(), pl.max_horizontal(times).max()
            ends.append(scan_table(view.tables, name).select(low=low, high=high).collect())
    if not ends:
        return None
    low, high = pl.concat(ends).select(pl.col("low").min(), pl.col("high").max()).row(0)
    return None if low is None or high is None else (low, high)


def check_selection(view: TraceView, values: Mapping[str, Any]) -> None:
    """Check that the capture has the selected GPUs and NVTX domains, and events in the selected time.

    A missing domain causes only a warning, because other captures of the same program may have it.

    Args:
        view: The trace.
        values: The values of filters by name. Filters that are not in ``_CHECKS`` are not checked.

    Raises:
        TracekitError: The capture does not contain a selected GPU, or has no events in the selected time.
    """
    for name, check in _CHECKS.items():
        if name in values:
            check(view, values[name])


def _check_devices(view: TraceView, devices: Sequence[int]) -> None:
    known = _find_distinct_values(view, ["devices"], "device_id")
    if set(devices) <= set(known):
        return
    known = sorted({*known, *_find_distinct_values(view, _list_recorded_tables("device_id"), "device_id")})
    if missing := [d for d in devices if d not in known]:
        hint = f"choose one of these GPUs: {', '.join(map(str, known))}" if known else "the capture contains no GPUs"
        raise TracekitError(f"there is no GPU {missing[0]} in the capture", path=view.path, hint=hint)


def _check_domains(view: TraceView, domains: Sequence[str]) -> None:
    known = _find_distinct_values(view, _list_recorded_tables("domain"), "domain")
    for missing in (d for d in domains if d and d not in known):
        hint = create_choices_hint("domains", sorted(known), missing, quoted=True)
        warn(f"there is no NVTX domain {missing!r} in the capture; {hint}", path=view.path)


def _check_time(view: TraceView, time: Time) -> None:
    """Check that the capture has events in a time window.

    The times of all tables are read only if the window is outside the recorded duration.
    """
    start, end = time
    duration = view.info.get("duration_ns", "")
    if duration.isdecimal() and (start or 0) < int(duration) and (end is None or end > 0):
        return
    timed = _list_recorded_tables(*_TIMES)
    timed.remove("diagnostics")  # messages of the profiler, also from before and after the recording
    known = find_time_span(view, timed)
    if known is not None and ((start or 0) > known[1] or (end is not None and end <= known[0])):
        message = f"the capture has no events {_format_window(time)}"
        hint = f"the capture has events from {_format_ms(known[0])} to {_format_ms(known[1])}"
        raise TracekitError(message, path=view.path, hint=hint)


def _list_recorded_tables(*columns: str) -> list[str]:
    """Return the tables that profilers record and that have at least one of the given columns."""
    tables = schemas.tables().items()
    return [name for name, schema in tables if schema.recorded_by and any(c in schema for c in columns)]


def _find_distinct_values(view: TraceView, tables: Iterable[str], column: str) -> list[Any]:
    """Return the distinct values of a column in several tables.

    Null strings are returned as empty strings, and other nulls are omitted.
    """
    import polars as pl

    values: dict[Any, None] = {}
    for name in tables:
        kind = scan_table(view.tables, name).collect_schema().get(column)
        if kind is None:
            continue
        value = pl.col(column).cast(pl.String).fill_null("") if kind == pl.Categorical else pl.col(column).drop_nulls()
        values |= dict.fromkeys(scan_table(view.tables, name).select(value.unique()).collect().to_series())
    return list(values)


def _format_window(time: Time) -> str:
    start, end = time
    if start is None or end is None:
        return f"from {_format_ms(start)} on" if start is not None else f"before {_format_ms(end or 0)}"
    return f"from {_format_ms(start)} to {_format_ms(end)}"


def _format_ms(time_ns: int) -> str:
    return f"{time_ns / 1e6:,.3f} ms"


_CHECKS: Mapping[str, Callable[[TraceView, Any], None]] = {
    "devices": _check_devices,
    "domains": _check_domains,
    "time": _check_time,
}
