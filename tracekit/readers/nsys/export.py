"""Read an Nsight Systems export, in any export format, as declared tables."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from tracekit.errors import CorruptTraceError, warn
from tracekit.readers.nsys.capture import NsysCapture
from tracekit.readers.nsys.mapping import SOURCES
from tracekit.readers.nsys.versions import CONTEXTS, DEVICES, FACT_TABLES, LOOKUP_TABLES, NEWEST_SCHEMA
from tracekit.registry.interface import Undecoded

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tracekit.readers.nsys.tables import SourceTables

_NO_RECORDS = ("ENUM_", "sqlite_")
_AUXILIARY_PREFIXES = ("TARGET_INFO_", "META_DATA_", "NVTX_PAYLOAD_")
_AUXILIARY_TABLES = frozenset(
    (
        *("ANALYSIS_FILE", "OSRT_FILE_ACCESS_DESCRIPTORS", "ProcessStreams", "SystemInfo", "UnwindMethodType"),
        *("DomainStrings", "MemcpyOperationStrings", "NvtxPushPopRanges", "cudaAPIStats", "cudaKernelStats"),
        *("cudaMemoryOperationByteStats", "cudaMemoryOperationTimeStats", "nvtxPushPopRangeStats", "osrtAPIStats"),
        *("estEnd", "me", "ms"),
    )
)
"""Source tables that describe the capture, and tables that ``nsys stats`` computed from others."""
_TABLES_OF_SOURCES: Mapping[str, tuple[str, ...]] = {
    "WDDM_QUEUES_UTILIZATION": ("wddm_packets",),
    "OSRT_FILE_ACCESS_EVENTS": ("osrt_calls",),
    "FECS_EVENTS": ("gpu_context_switches",),
    **dict.fromkeys(("VULKAN_PIPELINE_CREATION_EVENTS", "VULKAN_PIPELINE_STAGE_EVENTS"), ("graphics_calls",)),
}
"""Names of the declared tables to which rows of source tables that are not decoded may belong."""


class Export(NsysCapture):
    """An open Nsight Systems export. Its declared tables are read on demand, column by column."""

    def __init__(self, tables: SourceTables) -> None:
        super().__init__(tables)
        self._warn_if_too_new()

    def count_undecoded(self) -> Mapping[str, Undecoded]:
        """Return the number of rows of each source table that tracekit does not decode, by table name.

        Tables without rows are omitted.
        """
        return {
            table: Undecoded(
                count,
                tables=_TABLES_OF_SOURCES.get(table, ()),
                is_auxiliary=table in _AUXILIARY_TABLES or table.startswith(_AUXILIARY_PREFIXES),
            )
            for table, count in self.undecoded.items()
        }

    def list_undecodable_tables(self) -> Collection[str]:
        """Return the names of the tables to which rows of undecoded source tables may belong."""
        present = _TABLES_OF_SOURCES.keys() & self.tables.columns.keys()
        return frozenset(name for table in present for name in _TABLES_OF_SOURCES[table])

    @functools.cached_property
    def undecoded(self) -> dict[str, int]:
        """Number of rows of each source table that tracekit does not decode, by table name.

        Tables without rows, tables of enum labels (``ENUM_*``) and SQLite's own tables are omitted. One warning reports
        all tables whose rows cannot be counted.
        """
        decoded, counts, errors = list_decoded_tables(), {}, []
        for table in self.tables.columns:
            if table not in decoded and not table.startswith(_NO_RECORDS):
                try:
                    counts[table] = self.tables.count_rows([(table, None)])[0]
                except CorruptTraceError as e:
                    errors.append(e.message)
        if errors:
            warn(
                f"the rows of {len(errors)} undecoded tables cannot be counted; the first error is: {errors[0]}",
                path=self.path,
            )
        return {table: rows for table, rows in counts.items() if rows}

    def _warn_if_too_new(self) -> None:
        """Warn if the schema version of the export is newer than the newest supported version."""
        metadata = {r["name"]: r["value"] for r in self.read_machine_table("capture_info").to_pylist()}
        version = metadata.get("schema_version", "")
        numbers = tuple(int(n) for n in re.findall(r"\d{1,9}", version)[:2])
        if numbers > NEWEST_SCHEMA:
            newest = ".".join(map(str, NEWEST_SCHEMA))
            message = (
                f"the schema version {version} is newer than {newest}, the newest that tracekit supports: "
                "new tables and columns are ignored"
            )
            warn(message, path=self.path)


@functools.cache
def list_decoded_tables() -> frozenset[str]:
    """Return the names of all source tables that tracekit reads, including those that store strings and properties."""
    origins = (origin.table for origin in (*DEVICES, *CONTEXTS))
    return frozenset().union(*(s.list_tables() for s in SOURCES.values()), origins, FACT_TABLES, LOOKUP_TABLES)
