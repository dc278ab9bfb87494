"""Folders of table files, as tracekit writes them: ``kernels.parquet``, ``nvtx_ranges.parquet``, …; or one of these."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from tracekit import schemas
from tracekit.errors import CorruptTraceError, SchemaError, TracekitError, first_line
from tracekit.registry import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tracekit.registry import Source

_WRITE_AGAIN = "write it again with tracekit"


@dataclass(frozen=True, slots=True)
class TableFiles:
    """An opened folder: one file a table, read by column."""

    files: dict[str, Path]
    count_rows: Callable[[Path], int]
    read_columns: Callable[[Path, Sequence[str]], pa.Table]

    def names(self) -> list[str]:
        """Names of the tables that have a file."""
        return list(self.files)

    def count(self, name: str) -> int:
        """Number of rows of a table."""
        with guarded(self.files[name], name) as path:
            return self.count_rows(path)

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Read some columns of a table.

        Raises:
            CorruptTraceError: The file is damaged, or does not hold the table as declared.
        """
        with guarded(self.files[name], name) as path:
            data = self.read_columns(path, columns)
            data.validate(full=True)
        try:
            return schemas.conform(data, schemas.table(name), columns)
        except SchemaError as e:
            raise CorruptTraceError(first_line(e), path=path, table=name, hint=_WRITE_AGAIN) from e


def find(source: Source, suffix: str) -> dict[str, Path]:
    """Find the files of declared tables in a folder, by their names; none if the source is a file."""
    names = schemas.tables()
    paths = [source.path / n for n in sorted(source.names)]
    return {p.stem: p for p in paths if p.suffix == suffix and p.stem in names}


def one_file(source: Source, read_schema: Callable[[Path], pa.Schema]) -> dict[str, Path]:
    """Return the table that a single file holds: the one its schema names, else the one it is named as.

    Raises:
        CorruptTraceError: It is damaged, or holds no table of tracekit.
    """
    if not source.path.is_file():
        what, hint = describe(source)
        raise CorruptTraceError(what, path=source.path, hint=hint)
    with guarded(source.path, None) as path:
        schema = read_schema(path)
    name = next((n for n in (schemas.table_of(schema), source.path.stem) if n in schemas.tables()), None)
    if name is None:
        by_nsys = b"table_name" in (schema.metadata or {})
        hint = "give the folder that nsys exported" if by_nsys else "give a file that tracekit wrote"
        raise CorruptTraceError("holds no table of tracekit", path=source.path, hint=hint)
    return {name: source.path}


@contextmanager
def guarded(path: Path, table: str | None, hint: str = _WRITE_AGAIN) -> Iterator[Path]:
    """Turn what Arrow and the system say of a file into the error that names it."""
    try:
        yield path
    except TracekitError:
        raise
    except PermissionError as e:
        raise TracekitError("cannot be read: permission denied", path=path, hint="check its mode") from e
    except (pa.ArrowException, OSError, LookupError, ValueError, TypeError) as e:
        raise CorruptTraceError(f"cannot be read: {first_line(e)}", path=path, table=table, hint=hint) from e
