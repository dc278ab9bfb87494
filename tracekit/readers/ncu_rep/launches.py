"""Results as rows of ``ncu_launches``.

What was launched stands in the result; the device, the duration and, of graphs, the grid stand among its metrics.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tracekit.readers.ncu_rep import nvtx
from tracekit.readers.ncu_rep.container import numbered, text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from tracekit.readers.ncu_rep.container import Container
    from tracekit.readers.ncu_rep.rows import Row

SIZES = tuple(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz")
MEASURED = {
    "device_id": ("device__attribute_device_index", "launch__device_id"),
    "compute_major": ("device__attribute_compute_capability_major",),
    "compute_minor": ("device__attribute_compute_capability_minor",),
    "duration_ns": ("gpu__time_duration.sum",),
    **{size: (f"launch__{size.replace('_', '_dim_')}",) for size in SIZES},
}
"""Columns that metrics give, and which; of several, the first that a result has."""
RANGE = ("range_name", "range_path", "range_depth")
NS = 1_000_000_000


def rows(report: Container, metrics: pa.Table | None, columns: Sequence[str]) -> Iterator[Row]:
    """The results, one row each.

    Args:
        report: The report.
        metrics: Metrics of all results, launch_id, name and value; None if no column needs them.
        columns: The columns that are wanted; others may be missing from the rows.
    """
    measured = {} if metrics is None else _measured(report, metrics, [c for c in MEASURED if c in columns])
    ranges = any(c in columns for c in RANGE)
    for number, result in numbered(report):
        row = _row(report, number, result)
        given = {c: _whole(v[number]) for c, v in measured.items() if c not in SIZES or row["kind"] == "graph"}
        yield row | given | (nvtx.path(number, result) if ranges else {})


def _row(report: Container, number: int, result: Any) -> Row:
    place = report.results[number]
    several = len(report.session.processes) > 1  # then ncu prints results process by process, under other IDs
    return {
        "launch_id": number,
        "source_id": None if several else number,
        "kind": place.kind,
        "invocations": 1,
        "process_id": report.process_of(place),
        **{name: _number(result, name) for name in ("thread_id", "api_call_id", "context_id", "stream_id")},
        "name": _text(result, "demangled_name") or _text(result, "function_name") or place.kind,
        "short_name": _text(result, "function_name"),
        "mangled_name": _text(result, "mangled_name"),
        "created_utc_ns": result.created_s * NS if result.created_s else None,
        **_sizes(result),
    }


def _number(result: Any, name: str) -> int | None:
    return getattr(result, name) if _has(result, name) else None


def _text(result: Any, name: str) -> str | None:
    return text(getattr(result, name)) or None if _has(result, name) else None


def _has(result: Any, name: str) -> bool:
    return name in result.DESCRIPTOR.fields_by_name and result.HasField(name)


def _sizes(result: Any) -> Row:
    found = {what: getattr(result, what) for what in ("grid", "block") if _has(result, what)}
    return {f"{what}_{axis}": getattr(size, axis) for what, size in found.items() for axis in "xyz"}


def _measured(report: Container, metrics: pa.Table, columns: Sequence[str]) -> dict[str, list[float]]:
    """Return what metrics give for some columns: n values for n results, not a number where there is none."""
    launches, names, values = (metrics[c].to_numpy() for c in ("launch_id", "name", "value"))
    found = {column: np.full(len(report.results), math.nan) for column in columns}
    for column, into in found.items():
        for name in reversed(MEASURED[column]):
            rows = np.flatnonzero(names == report.names.dictionary.index(name).as_py())
            into[launches[rows]] = values[rows]
    return {column: into.tolist() for column, into in found.items()}


def _whole(value: float) -> int | None:
    return round(value) if math.isfinite(value) else None
