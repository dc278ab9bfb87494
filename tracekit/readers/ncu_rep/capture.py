"""Build the declared tables of an Nsight Compute report on demand."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tracekit import schemas
from tracekit.readers.common.damage import convert_damage
from tracekit.readers.ncu_rep import launches, metrics, nvtx, rows, sources
from tracekit.readers.ncu_rep.container import ReportFile
from tracekit.readers.ncu_rep.rows import build_table
from tracekit.registry.interface import Capture

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracekit.readers.ncu_rep.rows import Row
    from tracekit.registry.source import Source

LAUNCHES, METRICS, INSTANCES, SOURCES = "ncu_launches", "ncu_metrics", "ncu_metric_instances", "ncu_sources"


class NcuReportCapture(Capture):
    """An open Nsight Compute report, whose tables are built when they are read."""

    def __init__(self, source: Source) -> None:
        self._report = ReportFile(source)

    def names(self) -> list[str]:
        """Return the names of the declared tables that may have rows."""
        result_tables = [LAUNCHES, METRICS, INSTANCES, "ncu_nvtx_ranges", "ncu_rules", SOURCES]
        return [*result_tables, "capture_info", "devices", "processes"]

    def count(self, name: str) -> int:
        """Return the number of rows of a table."""
        if name == LAUNCHES:
            return len(self._report.results)
        if name == METRICS:
            with convert_damage(self._report.path, name, self._report.file):
                return int(self._metrics.num_rows)
        if name == INSTANCES:
            with convert_damage(self._report.path, name, self._report.file):
                return int(pc.sum(self._metrics["instances"]).as_py() or 0)
        return int(self.read(name, schemas.table(name).names[:1]).num_rows)

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Return the requested columns of a table.

        Raises:
            CorruptTraceError: The report is damaged where the data of the table is stored.
        """
        with convert_damage(self._report.path, name, self._report.file):
            if name == METRICS:
                return self._read_metric_columns(columns)
            if name == INSTANCES:
                return metrics.read_instances(self._report).select(list(columns))
            return build_table(name, self._iterate_table_rows(name, columns), columns)

    def close(self) -> None:
        """Close the report file."""
        self._report.close()

    @functools.cached_property
    def _metrics(self) -> pa.Table:
        return metrics.read_metrics(self._report)

    def _read_metric_columns(self, columns: Sequence[str]) -> pa.Table:
        arrays = metrics.build_metric_columns(self._metrics, self._report.names.dictionary)
        schema = schemas.arrow_schema(schemas.table(METRICS), columns)
        missing = pa.nulls(self._metrics.num_rows)
        return pa.table({f.name: arrays.get(f.name, missing.cast(_remove_dictionary_type(f.type))) for f in schema})

    def _iterate_table_rows(self, name: str, columns: Sequence[str]) -> Iterable[Row]:
        if name == LAUNCHES:
            needed = any(c in launches.METRIC_COLUMNS for c in columns)
            return launches.iterate_launch_rows(self._report, self._metrics if needed else None, columns)
        if name == SOURCES:
            return sources.iterate_source_rows(self._report, columns)
        session = self._report.session
        if name == "capture_info":
            return launches.iterate_capture_info_rows(session)
        if name == "devices":
            return launches.iterate_device_rows(session)
        if name == "processes":
            return launches.iterate_process_rows(session)
        return (
            nvtx.iterate_range_rows(self._report) if name == "ncu_nvtx_ranges" else rows.iterate_rule_rows(self._report)
        )


def _remove_dictionary_type(arrow_type: pa.DataType) -> pa.DataType:
    """Replace a dictionary type with the string type. All other types are returned unchanged."""
    return pa.string() if pa.types.is_dictionary(arrow_type) else arrow_type
