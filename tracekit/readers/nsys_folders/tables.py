"""Read the source tables of an export folder, which has one file per table.

A file is opened when its table is first used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.errors import CorruptTraceError, TracekitError, format_count, get_first_line_of_message, warn
from tracekit.readers.common.budget import MEMORY_PER_FILE_BYTE, OBJECT_ROW_BYTES, Ledger
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.table_files import compute_reserved_value_size, is_flat_type, open_table_file
from tracekit.readers.nsys import blobs
from tracekit.readers.nsys.tables import ROWID
from tracekit.readers.nsys_folders import sniffing
from tracekit.readers.nsys_folders.values import convert_and_count_repaired, convert_to_sqlite_values, format_payloads
from tracekit.registry.detection import UNKNOWN, describe_unrecognized
from tracekit.registry.source import Source
from tracekit.system.files import FileState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tracekit.readers.common.budget import Budget
    from tracekit.readers.nsys.tables import ColumnsRequest, Result, Where
    from tracekit.readers.nsys_folders.files import ExportedTableFile
    from tracekit.system.files import InputFile

ROWS_PER_BYTE = 8
"""Maximum number of rows that a file may declare per byte, which assumes that each row takes at least one bit."""
GPU_METRICS = "GPU_METRICS"
_BY_ROW = ("TARGET_INFO_", "ENUM_", "META_DATA_", "EXPORT_META_DATA", "ANALYSIS_DETAILS", "SystemInfo")
"""Prefixes of the names of tables whose rows are converted to Python objects."""
_SINGLE_FILE = "this is only one file of an export", "pass the folder that contains the file"


class FolderTables:
    """The source tables of an export folder. The files must not change after the folder has been opened.

    Attributes:
        path: Path of the folder.
        columns: Column names of each table.
        hint: Hint in error messages about damaged files.
    """

    def __init__(self, source: Source, suffix: str, kind: type[ExportedTableFile], option: str) -> None:
        self.path = source.path
        self.hint = f"export it again: nsys export --type {option} REPORT"
        self._paths = sniffing.list_table_paths(source, suffix)
        if not self._paths:
            is_table = source.head.startswith(kind.magics)
            what, hint = _SINGLE_FILE if is_table else describe_unrecognized(source)
            raise CorruptTraceError(f"not a folder of {kind.kind} files: {what}", path=source.path, hint=hint)
        self._states = {table: FileState.read_file(path) for table, path in self._paths.items()}
        self._ledger = Ledger(sum(map(self._get_file_size, self._paths)))
        self._kind = kind
        self._described: dict[str, ExportedTableFile] = {}
        self.columns: Mapping[str, tuple[str, ...]] = LazyColumns(self, self._paths)

    def open_table_file(self, table: str) -> ExportedTableFile:
        """Return the file of a table. The metadata of the file is read by the first call for the table.

        Raises:
            CorruptTraceError: The file has a different format, or it is damaged.
            TracekitError: The file cannot be read, or has changed.
        """
        if table not in self._described:
            self._check_file_format(table)
            with self._open_file(table) as file:
                described = self._kind(file)
            repeated = [name for name, n in Counter(described.schema.names).items() if n > 1]
            if repeated:
                raise self._create_table_error(table, f"the table has several columns named {repeated[0]}")
            self._described[table] = described
        return self._described[table]

    def compute_max_rows(self, table: str) -> int:
        """Return the number of rows that the file of a table declares, as an upper limit for reserving memory.

        The result is 0 if the table is missing.

        Raises:
            CorruptTraceError: The file is damaged, or declares more rows than it can hold.
            TracekitError: The file cannot be read, or has changed.
        """
        return self._read_declared_row_count(table)

    def _count_matching_rows(self, table: str, where: Where | None = None) -> int:
        """Return the number of rows of a table that match a filter. The result is 0 if the table is missing."""
        if where is None or table not in self._paths:
            return self._read_declared_row_count(table)
        return sum(len(batch[ROWID]) for batch in self._read_matching_rows(table, (ROWID,), where))

    def count_rows(self, conditions: Sequence[tuple[str, Where | None]]) -> list[int]:
        """Count the matching rows for each pair of a table and a filter. The count is 0 if the table is missing."""
        return [self._count_matching_rows(table, where) for table, where in conditions]

    def find_rowid(self, table: str, index: int, where: Where | None = None) -> int | None:
        """Return the rowid of the row at ``index`` among the rows that match a filter.

        The rowid is the row number in the whole table. Indices are counted from 0, and rowids from 1. The result is
        None if fewer rows match.
        """
        for batch in self._read_matching_rows(table, (ROWID,), where):
            if index < len(batch[ROWID]):
                return int(batch[ROWID][index].as_py())
            index -= len(batch[ROWID])
        return None

    def read_batches(self, requests: Sequence[ColumnsRequest[Result]]) -> Iterator[tuple[int, Result]]:
        """Read columns of several tables in batches. All values of a column that a file lacks are null.

        Yields:
            For each batch, the index of its request and the result of ``ColumnsRequest.convert``.
        """
        for nth, request in enumerate(requests):
            self._check_no_nested_columns(request)
            repaired: Counter[str] = Counter()
            with self._open_memory_budget(request) as budget:
                for batch in self._read_matching_rows(request.table, tuple(request.types), request.where, budget):
                    with self._add_path_to_errors(request.table):
                        budget.reserve(len(batch[ROWID]), request.row_bytes, "rows")
                        columns = self._convert_types(request, batch, repaired, budget)
                    yield nth, request.convert(columns)
            for column, broken in repaired.items():
                strings, verb = format_count(broken, "string"), "is" if broken == 1 else "are"
                warn(
                    f"{strings} of {request.table}.{column} {verb} not UTF-8: invalid bytes are replaced",
                    path=self.path,
                )

    def close(self) -> None:
        """Do nothing, because no file stays open between reads."""

    def _read_matching_rows(
        self, table: str, requested: Sequence[str], where: Where | None, budget: Budget | None = None
    ) -> Iterator[dict[str, pa.Array]]:
        """Yield batches of the rows that match a filter, as columns by name.

        A batch contains the column ``rowid``, the column that the filter refers to, and all requested columns that the
        file has. If the file has none of these columns, the batch contains the first column of the file. At least one
        batch is yielded, even if it has no rows.
        """
        names = self.open_table_file(table).schema.names
        needed = dict.fromkeys([*requested, *([where.column] if where else [])])
        have = [c for c in needed if c in names] or list(names[:1])
        if where and where.column not in names:
            raise self._create_table_error(table, f"the table has no column {where.column}")
        before, count = 0, 0
        for batch in self._read_validated_batches(table, have, budget or self._ledger.create_temporary_budget()):
            columns = dict(zip(have, batch, strict=True))
            columns[ROWID] = pa.array(np.arange(before + 1, before + len(batch[0]) + 1))
            before, count = before + len(batch[0]), count + 1
            yield columns if where is None else self._filter_rows(table, columns, where)
        if before != self._read_declared_row_count(table):
            raise self._create_table_error(
                table, f"the file declares {self._read_declared_row_count(table)} rows, but holds {before}"
            )
        if not count:
            yield {c: pa.nulls(0) for c in (*have, ROWID)}

    def _read_validated_batches(self, table: str, columns: Sequence[str], budget: Budget) -> Iterator[list[pa.Array]]:
        """Yield batches of the given columns of a table, with validated values that are converted to SQLite types."""
        if not columns:
            return
        rows, described = self._read_declared_row_count(table), self.open_table_file(table)
        width = sum(compute_reserved_value_size(described.schema.field(c).type) for c in columns)
        with self._open_file(table) as file:
            budget.reserve(rows, OBJECT_ROW_BYTES if table.startswith(_BY_ROW) else width, "rows")
            for batch in described.read_batches(file, columns, budget):
                arrays = [convert_to_sqlite_values(array) for array in batch.columns]
                if any(len(array) != batch.num_rows for array in arrays):
                    raise ValueError("the columns have different lengths")
                yield arrays

    def _read_declared_row_count(self, table: str) -> int:
        """Return the number of rows that the file of a table declares, or 0 if the table is missing."""
        if table not in self._paths:
            return 0
        described = self.open_table_file(table)
        rows = described.rows if described.schema.names else 0
        size = self._get_file_size(table)
        if not 0 <= rows <= ROWS_PER_BYTE * size:
            raise self._create_table_error(table, f"the file declares {rows} rows, but has only {size} bytes")
        return rows

    def _open_file(self, table: str) -> AbstractContextManager[InputFile]:
        return open_table_file(self._paths[table], self._states[table], table, self.hint)

    @contextmanager
    def _add_path_to_errors(self, table: str) -> Iterator[None]:
        """Return a context manager that adds the path of the file to errors about the values of a table."""
        try:
            yield
        except TracekitError:
            raise
        except (Damage, pa.ArrowException, ValueError) as e:
            raise self._create_table_error(table, f"cannot be read: {get_first_line_of_message(e)}") from e

    def _get_file_size(self, table: str) -> int:
        state = self._states[table]
        return 0 if state is None else state.size

    def _open_memory_budget(self, request: ColumnsRequest[Result]) -> AbstractContextManager[Budget]:
        """Return a context manager that provides the memory budget for a request.

        The table ``GPU_METRICS`` may take twice as much memory per byte of its file as other tables, because repeated
        samples compress well.
        """
        per_byte = (2 if request.table == GPU_METRICS else 1) * MEMORY_PER_FILE_BYTE
        return self._ledger.open_budget_for_read((request.table, *request.types, request.where), per_byte)

    def _check_no_nested_columns(self, request: ColumnsRequest[Result]) -> None:
        """Raise an error if a requested column is nested. A list in such a column could hold any number of values."""
        if request.table not in self._paths:
            return
        schema, requested = self.open_table_file(request.table).schema, dict(request.types)
        if request.where is not None:
            requested[request.where.column] = pa.int64()
        for name, kind in requested.items():
            if name in schema.names and not is_flat_type(schema.field(name).type):
                raise self._create_wrong_type_error(request.table, name, schema.field(name).type, _format_type(kind))

    def _filter_rows(self, table: str, columns: dict[str, pa.Array], where: Where) -> dict[str, pa.Array]:
        """Return the given columns with only the rows that match a filter."""
        column = columns[where.column]
        if not where.values:
            keep = column.is_valid()
        elif pa.types.is_integer(column.type) or pa.types.is_null(column.type):
            keep = pc.is_in(column.cast(pa.int64()), pa.array(where.values, pa.int64()))
        else:
            raise self._create_wrong_type_error(table, where.column, column.type, "integer")
        return {name: array.filter(keep) for name, array in columns.items()}

    def _convert_types(
        self, request: ColumnsRequest[Result], batch: dict[str, pa.Array], repaired: Counter[str], budget: Budget
    ) -> pa.Table:
        """Convert a batch to the requested column types. Strings with invalid UTF-8 are counted in ``repaired``."""
        rows, columns = len(batch[ROWID]), {}
        for name, kind in request.types.items():
            if name not in batch:
                columns[name] = pa.nulls(rows, kind)
                continue
            try:
                values = format_payloads(batch[name]) if name == blobs.COLUMN else batch[name]
                columns[name], broken = convert_and_count_repaired(values, kind, budget)
            except TypeError as e:
                raise self._create_wrong_type_error(request.table, name, batch[name].type, str(e)) from None
            repaired.update({name: broken} if broken else {})
        return pa.table(columns)

    def _create_wrong_type_error(
        self, table: str, column: str, arrow_type: pa.DataType, expected: str
    ) -> CorruptTraceError:
        holds = arrow_type.value_type if pa.types.is_dictionary(arrow_type) else arrow_type
        return self._create_table_error(
            table, f"column {column} must hold values of type {expected}, but holds {holds}"
        )

    def _check_file_format(self, table: str) -> None:
        """Raise an error if the file of a table has changed or does not have the expected format."""
        path, state = self._paths[table], self._states[table]
        if state is not None:
            state.check_unchanged(path)
        source = Source(path)
        if source.head.startswith(self._kind.magics):
            return
        what, hint = describe_unrecognized(source, (UNKNOWN, self.hint))
        message = f"not a file in {self._kind.kind} format: {what}"
        raise CorruptTraceError(message, path=path, table=table, hint=hint)

    def _create_table_error(self, table: str, message: str) -> CorruptTraceError:
        return CorruptTraceError(message, path=self._paths[table], table=table, hint=self.hint)


def _format_type(arrow_type: pa.DataType) -> str:
    """Return the name of an Arrow type in error messages: ``integer``, ``number`` or ``text``."""
    if pa.types.is_integer(arrow_type):
        return "integer"
    return "number" if pa.types.is_floating(arrow_type) else "text"


class LazyColumns(Mapping[str, tuple[str, ...]]):
    """A mapping from table names to column names, which opens each file when its columns are first accessed."""

    def __init__(self, tables: FolderTables, paths: Mapping[str, Path]) -> None:
        self._tables = tables
        self._paths = paths

    def __getitem__(self, table: str) -> tuple[str, ...]:
        if table not in self._paths:
            raise KeyError(table)
        return tuple(self._tables.open_table_file(table).schema.names)

    def __contains__(self, table: object) -> bool:
        return table in self._paths

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)
