"""Look up strings, enum labels and names in the source tables of a capture."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.errors import format_count, warn
from tracekit.readers.common import columns as col
from tracekit.readers.common.budget import Budget
from tracekit.readers.common.builders import TableBuilder
from tracekit.readers.common.damage import convert_damage
from tracekit.readers.common.spilling import BATCH_ROWS, SpillingBuilder
from tracekit.readers.nsys.generic_events import GenericEvents
from tracekit.readers.nsys.tables import ColumnsRequest
from tracekit.readers.nsys.versions import LABELS
from tracekit.system import memory
from tracekit.system.files import FileState

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence
    from pathlib import Path

    from tracekit.readers.common.builders import Builder
    from tracekit.readers.nsys.tables import SourceTables, Where

    Resolver = tuple[tuple[str, ...], Callable[["Lookups", str, pa.Table], pa.Array]]
    """The source columns from which a declared column is computed, and a function that computes it."""

_STRINGS = ("jsonText", "binaryData", "name", "label", "chipName", "uuid", "busLocation", "pciBusId", "metricName")
_VALUES = (
    "TARGET_INFO_PERF_METRIC.unit",
    "StringIds.value",
    "META_DATA_CAPTURE.value",
    "META_DATA_EXPORT.value",
    "EXPORT_META_DATA.value",
    "TARGET_INFO_SYSTEM_ENV.value",
)
_SYSTEM = ("gpuCount", "cpuModel", "driverVersion", "framework", "cudaVersion", "cudnnVersion", "nsysVersion")
STRING_COLUMNS = frozenset((*_STRINGS, *_VALUES, *(f"SystemInfo.{c}" for c in _SYSTEM)))
NO_STRING = (1 << 32) - 1
"""String id of events without a name."""
INLINE_NAMES = frozenset(
    {
        *("CUDA_GPU_MEMORY_USAGE_EVENTS.name", "DIAGNOSTIC_EVENT.text", "CUPTI_ACTIVITY_KIND_JIT.cachePath"),
    }
)
"""Columns that hold names instead of string ids. They are read as dictionaries."""
_STRING_BYTES = 16
"""Assumed memory of a string column in bytes per row."""
FLOAT_COLUMNS = frozenset({"doubleValue", "floatValue", "doubleVal", "floatVal"})


class Collector(Protocol):
    """An object that requests columns of a source table, and receives them batch by batch."""

    @property
    def request(self) -> ColumnsRequest[dict[str, pa.Array]]:
        """The request whose results are collected."""
        ...

    def append(self, batch: dict[str, pa.Array]) -> None:
        """Add the result of one batch."""
        ...


class Lookups:
    """The source tables of an open file, together with cached lookup tables.

    Attributes:
        path: Path of the file.
        tables: Source tables of the file.
        defined_names: Names that NVTX events define, by declared column (``domain`` or ``category``), and then by the
            key of the named domain or category. A column is added when its definitions are first read.
    """

    def __init__(self, tables: SourceTables) -> None:
        self.path = tables.path
        self.tables = tables
        self._labels: dict[str, col.StringTable] = {}
        self._unknown: Counter[tuple[str, str]] = Counter()
        self.defined_names: dict[Hashable, Mapping[str, str]] = {}
        self._lock = threading.Lock()
        self._string_budget = Budget(_compute_total_file_size(self.path))

    def reserve_string_memory(self, table: str, column: pa.DictionaryArray) -> None:
        """Reserve the memory that the strings of a dictionary column take once they are decoded.

        Raises:
            CorruptTraceError: The columns of all calls together take more memory than tracekit allows for the file
                size.
        """
        lengths = pc.binary_length(column.dictionary).cast(pa.int64())
        with convert_damage(self.path, table):
            self._string_budget.reserve(pc.sum(lengths.take(column.indices)).as_py() or 0, 1, "bytes of strings")

    def create_memory_budget(self) -> Budget:
        """Return a new memory budget for data that is computed from the file. Its limit depends on the file size."""
        return Budget(_compute_total_file_size(self.path))

    def fetch(self, table: str, columns: Sequence[str], where: Where | None = None) -> pa.Table:
        """Read columns of a source table as numbers or strings. All values of a column that the file lacks are null."""
        return pa.table(self.read_requests([create_source_request(table, columns, where)])[0])

    def read_requests(
        self,
        requests: Sequence[ColumnsRequest[dict[str, pa.Array]]],
        builders: Sequence[Builder | None] = (),
        collectors: Sequence[Collector] = (),
    ) -> list[dict[str, pa.Array]]:
        """Read the columns of several requests together, and return the resulting columns of each request.

        Args:
            requests: Columns of source tables to read.
            builders: The builder that joins the batches of each request, in the order of the requests. If a builder is
                missing or None, a new one is created.
            collectors: Collectors whose requests are also read. Their batches are appended to them.
        """
        chosen = [*builders, *(None for _ in requests[len(builders) :])]
        rows = [self.tables.compute_max_rows(r.table) for r in requests]
        sizes = [n * estimate_row_bytes(r) for n, r in zip(rows, requests, strict=True)]
        use_files = 2 * max(sizes, default=0) > memory.compute_memory_budget()
        used = [b or _create_table_builder(n, use_files=use_files) for b, n in zip(chosen, rows, strict=True)]
        targets: list[Builder | Collector] = [*used, *collectors]
        for index, batch in self.tables.read_batches([*requests, *(c.request for c in collectors)]):
            targets[index].append(batch)
        return [builder.finish() for builder in used]

    def look_up_strings(
        self, table_name: str, column_name: str, ids: pa.ChunkedArray, strings: col.StringTable
    ) -> pa.DictionaryArray:
        """Return the string of each string id, or the label of each enum value. Unknown ids become null.

        Args:
            table_name: Name of the declared table.
            column_name: Name of the declared column. Its unknown string ids, except ``NO_STRING``, are counted for a
                warning.
            ids: The ids or enum values.
            strings: String table of the file, or labels of an enum.
        """
        names, missing = strings.look_up_strings_of_ids(ids)
        if missing and strings is self.strings:
            missing -= pc.sum(pc.equal(ids, NO_STRING)).as_py() or 0
            with self._lock:
                self._unknown.update({(table_name, column_name): missing} if missing else {})
        return names

    @functools.cached_property
    def strings(self) -> col.StringTable:
        """The string table of the file. If several strings have the same id, the first one is used."""
        if "StringIds" not in self.tables.columns:
            return col.StringTable.from_mapping({})
        raw = self.fetch("StringIds", ["id", "value"])
        ids, values = raw["id"].combine_chunks(), raw["value"].combine_chunks()
        if repeated := len(ids) - len(ids.unique()):
            warn(
                f"{format_count(repeated, 'string', 'have', 'has')} the same id as an earlier string: the first string "
                "with each id is used",
                path=self.path,
            )
            rows = pa.table({"id": ids, "row": pa.array(range(len(ids)))})
            first = rows.group_by("id").aggregate([("row", "min")])["row_min"].combine_chunks()
            ids, values = ids.take(first), values.take(first)
        return col.StringTable(ids, values)

    @functools.cached_property
    def generic_events(self) -> GenericEvents:
        """The generic events of an export. These events contain the times and threads of counter values."""
        columns, table = GenericEvents.COLUMNS, GenericEvents.TABLE
        if table in self.tables.columns:
            return GenericEvents.from_table(self.fetch(table, columns))
        return GenericEvents.from_table(pa.table({column: pa.array([], pa.int64()) for column in columns}))

    def read_enum_labels(self, enum_name: str) -> col.StringTable:
        """Return the labels of an enum. If the file has no label for a value, the label of nsys 2025.3 is used."""
        if enum_name not in self._labels:
            labels: dict[int, str | None] = dict(LABELS[enum_name])
            if enum_name in self.tables.columns:
                raw = self.fetch(enum_name, ["id", "label"])
                listed = zip(raw["id"].to_pylist(), raw["label"].to_pylist(), strict=True)
                labels |= {number: label for number, label in listed if number is not None}
            self._labels[enum_name] = col.StringTable.from_mapping(labels)
        return self._labels[enum_name]

    def warn_about_unknown_strings(self) -> None:
        """Warn about the unknown string ids that were looked up since the last warning."""
        with self._lock:
            unknown, self._unknown = self._unknown, Counter()
        for (name, column), missing in unknown.items():
            rows, whose = format_count(missing, "row"), "its" if missing == 1 else "their"
            refer = "refers" if missing == 1 else "refer"
            what = f"{rows} of {name} {refer} to strings that the file lacks: {whose} {column} is null"
            warn(what, path=self.path)


def _compute_total_file_size(path: Path) -> int:
    """Return the size of a file, or the total size of the files in a folder, in bytes."""
    files = path.iterdir() if path.is_dir() else [path]
    return sum(state.size for state in map(FileState.read_file, files) if state is not None)


def _create_table_builder(max_rows: int, *, use_files: bool) -> Builder:
    """Return a builder for a table. The builder may write batches of rows to temporary files.

    Args:
        max_rows: Upper limit for the number of rows of the table.
        use_files: Whether to write the rows of all but small tables to temporary files.
    """
    return SpillingBuilder(max_rows) if use_files and max_rows > BATCH_ROWS else TableBuilder(max_rows)


def estimate_row_bytes(request: ColumnsRequest[dict[str, pa.Array]]) -> int:
    """Return the estimated size in bytes of one row of the requested columns."""
    return sum(
        _STRING_BYTES if not col.is_numeric_type(kind) else kind.bit_width // 8 for kind in request.types.values()
    )


def create_source_request(
    table: str, columns: Sequence[str], where: Where | None = None
) -> ColumnsRequest[dict[str, pa.Array]]:
    """Return the request that reads columns of a source table without converting them."""

    def convert(source_rows: pa.Table) -> dict[str, pa.Array]:
        return dict(zip(columns, source_rows.columns, strict=True))

    return ColumnsRequest(table, {c: find_arrow_type(table, c) for c in columns}, where, convert)


def find_arrow_type(table: str, column: str) -> pa.DataType:
    """Return the Arrow type with which a source column is read."""
    if column == "text" or f"{table}.{column}" in INLINE_NAMES:
        return col.DICTIONARY
    if column in STRING_COLUMNS or f"{table}.{column}" in STRING_COLUMNS:
        return pa.string()
    return pa.float64() if column in FLOAT_COLUMNS else pa.int64()
