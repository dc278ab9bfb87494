"""Build the rows of ``ncu_launches`` from the results of a report.

Most columns come from the fields of a result, or from the location of the result in the file. The device, the compute
capability and the duration are metrics of the result. So are the sizes of the grid and the block if the result is that
of a graph.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from tracekit.readers.ncu import units
from tracekit.readers.ncu_rep import nvtx
from tracekit.readers.ncu_rep.container import decode_text, iterate_results

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from tracekit.readers.ncu_rep.container import ReportFile, SessionInfo
    from tracekit.readers.ncu_rep.rows import Row

TARGET = "Nsight Compute Target"
NS = 1_000_000_000
SIZES = tuple(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz")
METRIC_COLUMNS = {
    "device_id": ("device__attribute_device_index", "launch__device_id"),
    "compute_major": ("device__attribute_compute_capability_major",),
    "compute_minor": ("device__attribute_compute_capability_minor",),
    "duration_ns": ("gpu__time_duration.sum",),
    **{size: (f"launch__{size.replace('_', '_dim_')}",) for size in SIZES},
}
"""Names of the metrics from which each column is read, in order of preference."""
RANGE_COLUMNS = ("range_name", "range_path", "range_depth")


def iterate_capture_info_rows(session: SessionInfo) -> Iterator[Row]:
    """Yield the rows of ``capture_info``: the tool, the versions and the start of the capture."""
    metadata = {
        "tool": "NVIDIA Nsight Compute",
        "tool_version": session.versions.get(TARGET, "").partition(" ")[0],
        "cuda_version": session.versions.get("CUDA Version"),
        "origin_utc_ns": str(session.created_s * NS) if session.created_s else None,
    }
    return ({"name": name, "value": value} for name, value in metadata.items() if value)


def iterate_device_rows(session: SessionInfo) -> Iterator[Row]:
    """Yield the rows of ``devices``. If several block headers describe the same GPU, the last description is used."""
    rows: dict[int, Row] = {}
    for device in session.devices:
        attributes = {
            decode_text(a.name).removeprefix(units.ATTRIBUTE_PREFIX): _decode_device_attribute(a.value)
            for a in device.attributes
        }
        row = {
            **units.compute_device_values(attributes),
            "device_id": device.device_id,
            "cuda_device_id": device.device_id,
        }
        rows[device.device_id] = row | ({"name": decode_text(device.name)} if device.name else {})
    return iter(rows.values())


def iterate_process_rows(session: SessionInfo) -> Iterator[Row]:
    """Yield the rows of ``processes``. Folders are removed from paths because they may name a user."""
    paths = {**({} if session.process_id is None else {session.process_id: ""}), **session.processes}
    return ({"process_id": pid, "name": re.split(r"[/\\]", path)[-1] or None} for pid, path in paths.items())


def _decode_device_attribute(value: Any) -> float | str | None:
    field = next((f for f in ("whole", "real", "small", "single", "text") if value.HasField(f)), None)
    if field is None:
        return None
    return decode_text(value.text) if field == "text" else float(getattr(value, field))


def iterate_launch_rows(report: ReportFile, metrics: pa.Table | None, columns: Sequence[str]) -> Iterator[Row]:
    """Yield one row of ``ncu_launches`` per result.

    Args:
        report: The report.
        metrics: The metrics of all results as returned by ``read_metrics``, or None if no requested column needs them.
        columns: The requested columns. All other columns may be missing from the rows.
    """
    metric_values = (
        {}
        if metrics is None
        else _build_columns_from_metrics(report, metrics, [c for c in METRIC_COLUMNS if c in columns])
    )
    ranges = any(c in columns for c in RANGE_COLUMNS)
    for number, result in iterate_results(report):
        row = _read_launch_row(report, number, result)
        from_metrics = {
            c: _round_to_int_or_none(v[number])
            for c, v in metric_values.items()
            if c not in SIZES or row["kind"] == "graph"
        }
        yield row | from_metrics | (nvtx.build_range_values(number, result) if ranges else {})


def _read_launch_row(report: ReportFile, launch_id: int, result: Any) -> Row:
    location = report.results[launch_id]
    # ncu numbers the results of several processes per process, so their IDs differ from the order in the file.
    has_many_processes = len(report.session.processes) > 1
    return {
        "launch_id": launch_id,
        "source_id": None if has_many_processes else launch_id,
        "kind": location.kind,
        "invocations": 1,
        "process_id": report.find_process_id(location),
        **{
            name: _read_optional_number(result, name)
            for name in ("thread_id", "api_call_id", "context_id", "stream_id")
        },
        "name": _read_optional_text(result, "demangled_name")
        or _read_optional_text(result, "function_name")
        or location.kind,
        "short_name": _read_optional_text(result, "function_name"),
        "mangled_name": _read_optional_text(result, "mangled_name"),
        "created_utc_ns": result.created_s * NS if result.created_s else None,
        **_read_grid_and_block_sizes(result),
    }


def _read_optional_number(result: Any, name: str) -> int | None:
    return getattr(result, name) if _has_field(result, name) else None


def _read_optional_text(result: Any, name: str) -> str | None:
    return decode_text(getattr(result, name)) or None if _has_field(result, name) else None


def _has_field(result: Any, name: str) -> bool:
    return name in result.DESCRIPTOR.fields_by_name and result.HasField(name)


def _read_grid_and_block_sizes(result: Any) -> Row:
    sizes = {name: getattr(result, name) for name in ("grid", "block") if _has_field(result, name)}
    return {f"{name}_{axis}": getattr(size, axis) for name, size in sizes.items() for axis in "xyz"}


def _build_columns_from_metrics(
    report: ReportFile, metrics: pa.Table, columns: Sequence[str]
) -> dict[str, list[float]]:
    """Return the requested columns of ``ncu_launches`` from metrics, as lists with one element per result.

    Missing values are NaN.
    """
    launches, names, values = (metrics[c].to_numpy() for c in ("launch_id", "name", "value"))
    values_by_column = {column: np.full(len(report.results), math.nan) for column in columns}
    for column, column_values in values_by_column.items():
        for name in reversed(METRIC_COLUMNS[column]):
            launch_rows = np.flatnonzero(names == report.names.dictionary.index(name).as_py())
            column_values[launches[launch_rows]] = values[launch_rows]
    return {column: column_values.tolist() for column, column_values in values_by_column.items()}


def _round_to_int_or_none(value: float) -> int | None:
    """Return a number rounded to an integer, or None for NaN and infinite numbers."""
    return round(value) if math.isfinite(value) else None
