"""Read table files that tracekit wrote: a single file, or a folder with one file per table."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit import schemas
from tracekit.errors import CorruptTraceError, SchemaError, TracekitError, get_first_line_of_message
from tracekit.readers.common.budget import CELL_BYTES, Ledger
from tracekit.readers.common.damage import Damage
from tracekit.registry.detection import describe_unrecognized
from tracekit.registry.interface import Capture
from tracekit.system.files import PERMISSIONS_HINT, FileState, InputFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tracekit.readers.common.budget import Budget
    from tracekit.registry.source import Source
    from tracekit.schemas import TableSchema

_VIEW = np.dtype([("length", "<i4"), ("rest", "V12")])
"""Layout of one element of an Arrow string view array. Several elements can refer to the same string."""
_WRITE_AGAIN = "write it again with tracekit"


class TablePath(NamedTuple):
    """The path and the state of a table file.

    Attributes:
        path: Path of the file.
        state: Identity, size and modification time of the file when it was listed, or None if it did not exist.
        described: The metadata of the file, or None if it was not read yet.
    """

    path: Path
    state: FileState | None
    described: TableFile | None = None


class TableFile(Protocol):
    """The interface of a table file, which provides its metadata and reads its columns.

    Attributes:
        schema: Schema of the table.
        rows: Number of rows that the file declares.
    """

    schema: pa.Schema
    rows: int

    def read(self, file: InputFile, columns: Sequence[str], budget: Budget) -> pa.Table:
        """Read the given columns into an Arrow table.

        Args:
            file: The open file.
            columns: Names of the columns to read. None of them may be nested.
            budget: Budget from which the memory for the columns is reserved before they are read.

        Raises:
            Damage: The columns exceed the memory budget.
        """
        ...


class TableFiles(Capture):
    """A capture that consists of table files, which are read by column.

    It is an error if a file changes after it was listed.
    """

    def __init__(self, files: Mapping[str, TablePath], describe_file: Callable[[InputFile], TableFile]) -> None:
        """Create a capture of table files without opening them.

        Args:
            files: Path and state of the file of each table.
            describe_file: Function that reads the metadata of a table file.
        """
        self._files = files
        self._describe_file = describe_file
        self._described = {name: path.described for name, path in files.items() if path.described is not None}
        self._ledger = Ledger(sum(path.state.size for path in files.values() if path.state is not None))

    def names(self) -> list[str]:
        """Return the names of the tables that have a file."""
        return list(self._files)

    def can_contain(self, name: str) -> bool:  # noqa: ARG002 - the signature of the base class
        """Return True, because files of this format can contain every table."""
        return True

    def count(self, name: str) -> int:
        """Return the number of rows of a table.

        Raises:
            CorruptTraceError: The file is damaged.
            TracekitError: The file cannot be read, or it changed after it was listed.
        """
        with open_table_file(*self._files[name][:2], name) as file:
            return self._read_metadata(name, file).rows

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Read the given columns of a table into an Arrow table.

        Raises:
            CorruptTraceError: The file is damaged, or its columns differ from the declared columns.
            TracekitError: The file cannot be read, or it changed after it was listed.
        """
        path, state, _ = self._files[name]
        declared = schemas.table(name)
        with open_table_file(path, state, name) as file, self._ledger.open_budget_for_read((name, *columns)) as budget:
            described = self._read_metadata(name, file)
            kinds = {f.name: f.type for f in described.schema if f.name in columns}
            _check_flat_types(kinds, declared)
            budget.reserve(described.rows, sum(map(compute_reserved_value_size, kinds.values())), f"rows of {name}")
            data = described.read(file, list(kinds), budget)
            data.validate(full=True)
            if kinds and data.num_rows != described.rows:
                raise Damage(f"the file declares {described.rows} rows, but holds {data.num_rows}")
            _reserve_shared_strings(data, declared, budget)
        try:
            return schemas.conform(data, declared, columns)
        except SchemaError as e:
            raise CorruptTraceError(get_first_line_of_message(e), path=path, table=name, hint=_WRITE_AGAIN) from e

    def _read_metadata(self, name: str, file: InputFile) -> TableFile:
        if name not in self._described:
            self._described[name] = _read_checked_metadata(file, self._describe_file)
        return self._described[name]


def find_table_files(source: Source, suffix: str) -> dict[str, TablePath]:
    """Return the path and state of each table file in a folder, by table name.

    A table file has the given suffix and is named after a declared table. The mapping is empty if the source is a
    file.
    """
    names = schemas.table_names()
    paths = [source.path / n for n in sorted(source.names)]
    return {p.stem: TablePath(p, FileState.read_file(p)) for p in paths if p.suffix == suffix and p.stem in names}


def find_single_table_file(source: Source, describe_file: Callable[[InputFile], TableFile]) -> dict[str, TablePath]:
    """Return the path and state of a single table file, in a mapping whose only key is the name of the table.

    The table name is taken from the schema in the file, or from the file name if the schema does not name a table.

    Raises:
        CorruptTraceError: The source is a folder, the file is damaged, or it holds no table that tracekit declares.
        TracekitError: The file cannot be read, or it changed after it was listed.
    """
    if not source.path.is_file():
        what, hint = describe_unrecognized(source)
        raise CorruptTraceError(what, path=source.path, hint=hint)
    with open_table_file(source.path, source.state, None) as file:
        described = _read_checked_metadata(file, describe_file)
        schema = described.schema
    name = next((n for n in (schemas.read_table_name(schema), source.path.stem) if n in schemas.table_names()), None)
    if name is None:
        by_nsys = b"table_name" in (schema.metadata or {})
        hint = "pass the folder that nsys exported" if by_nsys else "pass a file that tracekit wrote"
        raise CorruptTraceError("the file contains no table whose name tracekit knows", path=source.path, hint=hint)
    return {name: TablePath(source.path, source.state, described)}


def _read_checked_metadata(file: InputFile, describe_file: Callable[[InputFile], TableFile]) -> TableFile:
    described = describe_file(file)
    if described.rows < 0:
        raise Damage(f"the file declares a negative number of rows: {described.rows}")
    return described


@contextmanager
def open_table_file(
    path: Path, state: FileState | None, table: str | None, hint: str = _WRITE_AGAIN
) -> Iterator[InputFile]:
    """Return a context manager that opens a table file and adds its path to errors raised inside the context.

    Args:
        path: Path of the file.
        state: Identity, size and modification time that the file must have, or None to accept any file.
        table: Name of the table for the error message, or None if it is not known yet.
        hint: Hint for the error if the file is damaged.

    Raises:
        CorruptTraceError: The file is damaged.
        TracekitError: The file cannot be read, or is not in the expected state.
    """
    try:
        with InputFile(path, state) as file:
            try:
                yield file
            except (Damage, pa.ArrowException, OSError, LookupError, ValueError, TypeError):
                file.check_unchanged()
                raise
    except TracekitError:
        raise
    except PermissionError as e:
        raise TracekitError("the file cannot be read: permission denied", path=path, hint=PERMISSIONS_HINT) from e
    except (Damage, pa.ArrowException, OSError, LookupError, ValueError, TypeError) as e:
        raise CorruptTraceError(
            f"cannot be read: {get_first_line_of_message(e)}", path=path, table=table, hint=hint
        ) from e


def is_string_type(arrow_type: pa.DataType) -> bool:
    """Return whether an Arrow type is a string or binary type, including views."""
    texts = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view())
    return arrow_type in texts


def is_flat_type(arrow_type: pa.DataType) -> bool:
    """Return whether an Arrow type is not nested: primitive, string, binary or null, or a dictionary of these types."""
    if pa.types.is_dictionary(arrow_type):
        return is_flat_type(arrow_type.value_type)
    return bool(pa.types.is_primitive(arrow_type) or pa.types.is_null(arrow_type) or is_string_type(arrow_type))


def compute_reserved_value_size(arrow_type: pa.DataType) -> int:
    """Return the number of bytes to reserve for one value of an Arrow type, not counting the bytes of strings."""
    return max(CELL_BYTES, arrow_type.bit_width // 8) if pa.types.is_primitive(arrow_type) else CELL_BYTES


def _check_flat_types(arrow_types: Mapping[str, pa.DataType], declared: TableSchema) -> None:
    """Check that no column is nested, because a row of a list column can hold any number of values."""
    for name, arrow_type in arrow_types.items():
        if not is_flat_type(arrow_type):
            raise Damage(
                f"column {name!r} of table {declared.name!r} must have the type {declared[name].type}, "
                f"but has the type {arrow_type}"
            )


def _reserve_shared_strings(data: pa.Table, declared: TableSchema, budget: Budget) -> None:
    """Reserve memory for strings that several rows of the file share, but that the resulting table repeats."""
    for name, column in zip(data.column_names, data.columns, strict=True):
        is_view = column.type in (pa.string_view(), pa.binary_view())
        if is_view or (pa.types.is_dictionary(column.type) and declared[name].type != "dictionary"):
            budget.reserve(sum(map(_compute_total_string_size, column.chunks)), 1, f"bytes of {name}")


def _compute_total_string_size(chunk: pa.Array) -> int:
    """Return the total size in bytes of the strings of all rows, counting shared strings once per row."""
    if not pa.types.is_dictionary(chunk.type):
        views = np.frombuffer(chunk.buffers()[1] or b"", _VIEW)[chunk.offset :][: len(chunk)]
        return int(views["length"][chunk.is_valid().to_numpy(zero_copy_only=False)].sum(dtype=np.int64))
    if is_string_type(chunk.type.value_type):
        lengths = pc.binary_length(chunk.dictionary).cast(pa.int64())
        return pc.sum(lengths.take(chunk.indices)).as_py() or 0
    return 0
