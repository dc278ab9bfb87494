"""A folder of an export as source tables: a file each, found by name and opened when first asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.errors import CorruptTraceError, TracekitError, first_line, warn
from tracekit.files import state_of
from tracekit.readers.common.budget import BYTES_PER_BYTE, OBJECT_ROW_BYTES, Ledger
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.table_files import is_flat_type, open_table_file, value_bytes
from tracekit.readers.nsys import blobs
from tracekit.readers.nsys.tables import ROWID
from tracekit.readers.nsys_folders import sniffing
from tracekit.readers.nsys_folders.values import payloads, plain, typed
from tracekit.registry import UNKNOWN, Source, describe

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tracekit.files import InputFile
    from tracekit.readers.common.budget import Budget
    from tracekit.readers.nsys.tables import Made, Request, Where
    from tracekit.readers.nsys_folders.files import TableFile

ROWS_A_BYTE = 8
"""More rows than bits is a lie."""
GPU_METRICS = "GPU_METRICS"
_BY_ROW = ("TARGET_INFO_", "ENUM_", "META_DATA_", "EXPORT_META_DATA", "ANALYSIS_DETAILS", "SystemInfo")
"""Beginnings of the names of tables that are read row by row."""


class FolderTables:
    """The tables of a folder. A file that is not as it was when the folder was opened is not read.

    Attributes:
        path: The folder.
        columns: Columns of each table.
        hint: What to do about a damaged file.
    """

    def __init__(self, source: Source, suffix: str, kind: type[TableFile], option: str) -> None:
        self.path = source.path
        self.hint = f"export it again: nsys export --type {option} REPORT"
        self._paths = sniffing.files(source, suffix)
        if not self._paths:
            is_table = source.head.startswith(kind.magics)
            what, hint = ("one file of it", "give the folder that it is in") if is_table else describe(source)
            raise CorruptTraceError(f"no folder of {kind.kind} files: {what}", path=source.path, hint=hint)
        self._states = {table: state_of(path) for table, path in self._paths.items()}
        self._ledger = Ledger(sum(map(self._size, self._paths)))
        self._kind = kind
        self._described: dict[str, TableFile] = {}
        self.columns: Mapping[str, tuple[str, ...]] = Columns(self, self._paths)

    def file(self, table: str) -> TableFile:
        """Return what the file of a table says it holds; it is read once.

        Raises:
            CorruptTraceError: It is of another kind, or damaged.
            TracekitError: It cannot be read, or changed.
        """
        if table not in self._described:
            self._check_kind(table)
            with self._opened(table) as file:
                described = self._kind(file)
            repeated = [name for name, n in Counter(described.schema.names).items() if n > 1]
            if repeated:
                raise self._error(table, f"has two columns called {repeated[0]}")
            self._described[table] = described
        return self._described[table]

    def at_most(self, table: str) -> int:
        """Number of rows of a table; 0 if there is no such table.

        Raises:
            CorruptTraceError: The file says it has more than it can have.
            TracekitError: It cannot be read, or changed.
        """
        if table not in self._paths:
            return 0
        described = self.file(table)
        rows = described.rows if described.schema.names else 0
        size = self._size(table)
        if not 0 <= rows <= ROWS_A_BYTE * size:
            raise self._error(table, f"says it has {rows} rows, in {size} bytes")
        return rows

    def count(self, table: str, where: Where | None = None) -> int:
        """Number of rows of a table that meet a condition; 0 if there is no such table."""
        if where is None or table not in self._paths:
            return self.at_most(table)
        return sum(len(piece[ROWID]) for piece in self._read(table, (ROWID,), where))

    def counts(self, wanted: Sequence[tuple[str, Where | None]]) -> list[int]:
        """Numbers of rows of tables that meet conditions; 0 if there is no such table."""
        return [self.count(table, where) for table, where in wanted]

    def rowid(self, table: str, index: int, where: Where | None = None) -> int | None:
        """Number of the row at ``index`` among the rows of a table that meet a condition; None if there is none."""
        for piece in self._read(table, (ROWID,), where):
            if index < len(piece[ROWID]):
                return int(piece[ROWID][index].as_py())
            index -= len(piece[ROWID])
        return None

    def pieces(self, requests: Sequence[Request[Made]]) -> Iterator[tuple[int, Made]]:
        """Read columns of tables, a piece of their rows at a time; a column that a file lacks is null."""
        for nth, request in enumerate(requests):
            self._check_types(request)
            repaired: Counter[str] = Counter()
            with self._reading(request) as budget:
                for piece in self._read(request.table, tuple(request.types), request.where, budget):
                    with self._located(request.table):
                        budget.take(len(piece[ROWID]), request.row_bytes, "rows")
                        columns = self._typed(request, piece, repaired, budget)
                    yield nth, request.work(columns)
            for column, broken in repaired.items():
                warn(f"{broken} texts of {request.table}.{column} are not UTF-8: repaired", path=self.path)

    def close(self) -> None:
        """Nothing to close: no file stays open."""

    def _read(
        self, table: str, wanted: Sequence[str], where: Where | None, budget: Budget | None = None
    ) -> Iterator[dict[str, pa.Array]]:
        """Read columns that the file has, as it has them, of rows that meet a condition; at least one piece."""
        names = self.file(table).schema.names
        needed = dict.fromkeys([*wanted, *([where.column] if where else [])])
        have = [c for c in needed if c in names] or list(names[:1])
        if where and where.column not in names:
            raise self._error(table, f"has no column {where.column}")
        before, pieces = 0, 0
        for batch in self._batches(table, have, budget or self._ledger.budget()):
            made = dict(zip(have, batch, strict=True))
            made[ROWID] = pa.array(np.arange(before + 1, before + len(batch[0]) + 1))
            before, pieces = before + len(batch[0]), pieces + 1
            yield made if where is None else self._met(table, made, where)
        if before != self.at_most(table):
            raise self._error(table, f"holds {before} rows and says it has {self.at_most(table)}")
        if not pieces:
            yield {c: pa.nulls(0) for c in (*have, ROWID)}

    def _batches(self, table: str, columns: Sequence[str], budget: Budget) -> Iterator[list[pa.Array]]:
        """Read pieces of some columns, with values that are safe to use."""
        if not columns:
            return
        rows, described = self.at_most(table), self.file(table)
        width = sum(value_bytes(described.schema.field(c).type) for c in columns)
        with self._opened(table) as file:
            budget.take(rows, OBJECT_ROW_BYTES if table.startswith(_BY_ROW) else width, "rows")
            for batch in described.batches(file, columns, budget):
                arrays = [plain(array) for array in batch.columns]
                if any(len(array) != batch.num_rows for array in arrays):
                    raise ValueError("its columns are not of one length")
                yield arrays

    def _opened(self, table: str) -> AbstractContextManager[InputFile]:
        return open_table_file(self._paths[table], self._states[table], table, self.hint)

    @contextmanager
    def _located(self, table: str) -> Iterator[None]:
        """Turn what is wrong with values of a file into the error that names it."""
        try:
            yield
        except TracekitError:
            raise
        except (Damage, pa.ArrowException, ValueError) as e:
            raise self._error(table, f"cannot be read: {first_line(e)}") from e

    def _size(self, table: str) -> int:
        state = self._states[table]
        return 0 if state is None else state.size

    def _reading(self, request: Request[Made]) -> AbstractContextManager[Budget]:
        """Lend the memory that a table may take: the samples of an idle GPU take almost no room in a file."""
        per_byte = (2 if request.table == GPU_METRICS else 1) * BYTES_PER_BYTE
        return self._ledger.reading((request.table, *request.types, request.where), per_byte)

    def _check_types(self, request: Request[Made]) -> None:
        """Refuse lists and structs before they are read: a row may hold any number of values."""
        if request.table not in self._paths:
            return
        schema, wanted = self.file(request.table).schema, dict(request.types)
        if request.where is not None:
            wanted[request.where.column] = pa.int64()
        for name, kind in wanted.items():
            if name in schema.names and not is_flat_type(schema.field(name).type):
                raise self._wrong_type(request.table, name, schema.field(name).type, _called(kind))

    def _met(self, table: str, made: dict[str, pa.Array], where: Where) -> dict[str, pa.Array]:
        """Keep the rows of some columns that meet a condition."""
        column = made[where.column]
        if not where.values:
            keep = column.is_valid()
        elif pa.types.is_integer(column.type) or pa.types.is_null(column.type):
            keep = pc.is_in(column.cast(pa.int64()), pa.array(where.values, pa.int64()))
        else:
            raise self._wrong_type(table, where.column, column.type, "integer")
        return {name: array.filter(keep) for name, array in made.items()}

    def _typed(
        self, request: Request[Made], piece: dict[str, pa.Array], repaired: Counter[str], budget: Budget
    ) -> pa.Table:
        """Give a piece the types asked for."""
        rows, made = len(piece[ROWID]), {}
        for name, kind in request.types.items():
            if name not in piece:
                made[name] = pa.nulls(rows, kind)
                continue
            try:
                values = payloads(piece[name]) if name == blobs.COLUMN else piece[name]
                made[name], broken = typed(values, kind, budget)
            except TypeError as e:
                raise self._wrong_type(request.table, name, piece[name].type, str(e)) from None
            repaired.update({name: broken} if broken else {})
        return pa.table(made)

    def _wrong_type(self, table: str, column: str, kind: pa.DataType, expected: str) -> CorruptTraceError:
        holds = kind.value_type if pa.types.is_dictionary(kind) else kind
        return self._error(table, f"column {column} holds {holds}, expected {expected}")

    def _check_kind(self, table: str) -> None:
        """Check that the file of a table is as it was found, and of the right kind."""
        path, state = self._paths[table], self._states[table]
        if state is not None:
            state.check(path)
        source = Source(path)
        if source.head.startswith(self._kind.magics):
            return
        what, hint = describe(source)
        said = f"not {self._kind.kind}: {what}"
        raise CorruptTraceError(said, path=path, table=table, hint=self.hint if what == UNKNOWN else hint)

    def _error(self, table: str, what: str) -> CorruptTraceError:
        return CorruptTraceError(what, path=self._paths[table], table=table, hint=self.hint)


def _called(kind: pa.DataType) -> str:
    """Return what a type is called in messages."""
    if pa.types.is_integer(kind):
        return "integer"
    return "number" if pa.types.is_floating(kind) else "text"


class Columns(Mapping[str, tuple[str, ...]]):
    """The columns of each table; a file is opened when its columns are asked for."""

    def __init__(self, tables: FolderTables, names: Mapping[str, Path]) -> None:
        self._tables = tables
        self._names = names

    def __getitem__(self, table: str) -> tuple[str, ...]:
        if table not in self._names:
            raise KeyError(table)
        return tuple(self._tables.file(table).schema.names)

    def __contains__(self, table: object) -> bool:
        return table in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
