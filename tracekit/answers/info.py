"""Collect what captures contain as rows: their properties, GPUs, tables, and events that are not decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from tracekit.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.sets import TraceSet

    TraceOrSet: TypeAlias = Trace | TraceSet

RowsByTable: TypeAlias = dict[str, list[dict[str, Any]]]
_DEVICE = ("device_id", "name", "compute_major", "compute_minor", "sm_count", "memory_bytes")


def collect_rows(traces: TraceOrSet) -> RowsByTable:
    """Return the rows of each table of the method ``info``, by name. Those of a set state the rank."""
    if isinstance(traces, Trace):
        return _collect_rows_of_trace(traces)
    results = traces.outcomes(_collect_rows_of_trace)
    return _merge((member.rank, rows) for member, rows in results if not isinstance(rows, Exception))


def _merge(by_rank: Iterable[tuple[int, RowsByTable]]) -> RowsByTable:
    merged: RowsByTable = {}
    for rank, rows in by_rank:
        for name, each in rows.items():
            merged.setdefault(name, []).extend({**row, "rank": rank} for row in each)
    return merged


def _collect_rows_of_trace(trace: Trace) -> RowsByTable:
    span = trace.span()
    properties = {"format": trace.format, **trace.info}
    if span is not None:
        properties |= {"first_event_ns": str(span[0]), "last_event_ns": str(span[1])}
    devices = trace.devices.select(_DEVICE).sort("device_id").to_dicts()
    return {
        "properties": [{"name": name, "value": value} for name, value in properties.items()],
        "devices": devices,
        "tables": [{"table": name, "rows": count} for name, count in trace.count_all().items() if count],
        "undecoded": [{"event_class": n, "count": u.count, "bytes": u.bytes} for n, u in trace.undecoded.items()],
    }
