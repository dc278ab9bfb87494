"""Folders of table files, as tracekit writes them: ``kernels.parquet``, ``nvtx_ranges.parquet``, …; or one of these."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit import schemas
from tracekit.errors import CorruptTraceError, SchemaError, TracekitError, first_line
from tracekit.files import InputFile, state_of
from tracekit.readers.common.budget import CELL_BYTES, Ledger
from tracekit.readers.common.damage import Damage
from tracekit.registry import Capture, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tracekit.files import FileState
    from tracekit.readers.common.budget import Budget
    from tracekit.registry import Source
    from tracekit.schemas import TableSchema

_VIEW = np.dtype([("length", "<i4"), ("rest", "V12")])
"""How a view says where a text lies, which many rows may share."""
_WRITE_AGAIN = "write it again with tracekit"


class TablePath(NamedTuple):
    """The file of a table: its path, and its state when it was found; None if there was no such file."""

    path: Path
    state: FileState | None


class TableFile(Protocol):
    """What a file says it holds.

    Attributes:
        schema: Its schema.
        rows: Number of rows.
    """

    schema: pa.Schema
    rows: int

    def read(self, file: InputFile, columns: Sequence[str], budget: Budget) -> pa.Table:
        """Read columns of the file, which are not nested; what they take in memory is checked first.

        Raises:
            Damage: They take too much.
        """
        ...


class TableFiles(Capture):
    """An opened folder: one file a table, read by column. A file that is not as it was found is not read."""

    def __init__(self, files: Mapping[str, TablePath], describe_file: Callable[[InputFile], TableFile]) -> None:
        """Note which files there are; none of them is opened.

        Args:
            files: File of each table.
            describe_file: Reads what a file says it holds.
        """
        self._files = files
        self._describe_file = describe_file
        self._described: dict[str, TableFile] = {}
        self._ledger = Ledger(sum(path.state.size for path in files.values() if path.state is not None))

    def names(self) -> list[str]:
        """Names of the tables that have a file."""
        return list(self._files)

    def count(self, name: str) -> int:
        """Number of rows of a table.

        Raises:
            CorruptTraceError: The file is damaged.
            TracekitError: It cannot be read, or changed.
        """
        with opened(*self._files[name], name) as file:
            return self._description(name, file).rows

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Read some columns of a table.

        Raises:
            CorruptTraceError: The file is damaged, or does not hold the table as declared.
            TracekitError: It cannot be read, or changed.
        """
        path, state = self._files[name]
        declared = schemas.table(name)
        with opened(path, state, name) as file, self._ledger.reading((name, *columns)) as budget:
            described = self._description(name, file)
            kinds = {f.name: f.type for f in described.schema if f.name in columns}
            _check_kinds(kinds, declared)
            budget.take(described.rows, sum(map(row_bytes, kinds.values())), f"rows of {name}")
            data = described.read(file, list(kinds), budget)
            data.validate(full=True)
            if kinds and data.num_rows != described.rows:
                raise Damage(f"it holds {data.num_rows} rows and says it has {described.rows}")
            _check_texts(data, declared, budget)
        try:
            return schemas.conform(data, declared, columns)
        except SchemaError as e:
            raise CorruptTraceError(first_line(e), path=path, table=name, hint=_WRITE_AGAIN) from e

    def _description(self, name: str, file: InputFile) -> TableFile:
        if name not in self._described:
            described = self._describe_file(file)
            if described.rows < 0:
                raise Damage(f"it says it has {described.rows} rows")
            self._described[name] = described
        return self._described[name]


def find(source: Source, suffix: str) -> dict[str, TablePath]:
    """Find the files of declared tables in a folder, by their names; none if the source is a file."""
    names = schemas.tables()
    paths = [source.path / n for n in sorted(source.names)]
    return {p.stem: TablePath(p, state_of(p)) for p in paths if p.suffix == suffix and p.stem in names}


def one_file(source: Source, describe_file: Callable[[InputFile], TableFile]) -> dict[str, TablePath]:
    """Return the table that a single file holds: the one its schema names, else the one it is named as.

    Raises:
        CorruptTraceError: It is damaged, or holds no table of tracekit.
        TracekitError: It cannot be read, or changed.
    """
    if not source.path.is_file():
        what, hint = describe(source)
        raise CorruptTraceError(what, path=source.path, hint=hint)
    with opened(source.path, source.state, None) as file:
        schema = describe_file(file).schema
    name = next((n for n in (schemas.table_of(schema), source.path.stem) if n in schemas.tables()), None)
    if name is None:
        by_nsys = b"table_name" in (schema.metadata or {})
        hint = "give the folder that nsys exported" if by_nsys else "give a file that tracekit wrote"
        raise CorruptTraceError("holds no table of tracekit", path=source.path, hint=hint)
    return {name: TablePath(source.path, source.state)}


@contextmanager
def opened(path: Path, state: FileState | None, table: str | None, hint: str = _WRITE_AGAIN) -> Iterator[InputFile]:
    """Open the file of a table, in the state that it was found in, and close it afterwards.

    What Arrow and the system say of it becomes the error that names it.

    Raises:
        CorruptTraceError: It is damaged.
        TracekitError: It cannot be read, or changed.
    """
    try:
        with InputFile(path, state) as file:
            try:
                yield file
            except (Damage, pa.ArrowException, OSError, LookupError, ValueError, TypeError):
                file.check()
                raise
    except TracekitError:
        raise
    except PermissionError as e:
        raise TracekitError("cannot be read: permission denied", path=path, hint="check its mode") from e
    except (Damage, pa.ArrowException, OSError, LookupError, ValueError, TypeError) as e:
        raise CorruptTraceError(f"cannot be read: {first_line(e)}", path=path, table=table, hint=hint) from e


def is_text(kind: pa.DataType) -> bool:
    """Whether a column holds texts or bytes."""
    texts = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view())
    return kind in texts


def is_plain(kind: pa.DataType) -> bool:
    """Whether a column holds one number or text on each row."""
    if pa.types.is_dictionary(kind):
        return is_plain(kind.value_type)
    return bool(pa.types.is_primitive(kind) or pa.types.is_null(kind) or is_text(kind))


def row_bytes(kind: pa.DataType) -> int:
    """Memory of a value on its row; of a text, without its bytes."""
    return max(CELL_BYTES, kind.bit_width // 8) if pa.types.is_primitive(kind) else CELL_BYTES


def _check_kinds(kinds: Mapping[str, pa.DataType], declared: TableSchema) -> None:
    """Refuse lists and structs, of which a row may hold any number."""
    for name, kind in kinds.items():
        if not is_plain(kind):
            raise Damage(f"column {name!r} of {declared.name!r} is not {declared[name].type}: it holds {kind}")


def _check_texts(data: pa.Table, declared: TableSchema, budget: Budget) -> None:
    """Check what texts take that many rows share in the file, but not in the table."""
    for name, column in zip(data.column_names, data.columns, strict=True):
        is_view = column.type in (pa.string_view(), pa.binary_view())
        if is_view or (pa.types.is_dictionary(column.type) and declared[name].type != "dictionary"):
            budget.take(sum(map(_bytes_of_texts, column.chunks)), 1, f"bytes of {name}")


def _bytes_of_texts(chunk: pa.Array) -> int:
    if not pa.types.is_dictionary(chunk.type):
        views = np.frombuffer(chunk.buffers()[1] or b"", _VIEW)[chunk.offset :][: len(chunk)]
        return int(views["length"][chunk.is_valid().to_numpy(zero_copy_only=False)].sum(dtype=np.int64))
    if is_text(chunk.type.value_type):
        lengths = pc.binary_length(chunk.dictionary).cast(pa.int64())
        return pc.sum(lengths.take(chunk.indices)).as_py() or 0
    return 0
