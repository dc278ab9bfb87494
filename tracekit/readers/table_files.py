"""Folders of table files, as tracekit writes them: ``kernels.parquet``, ``nvtx_ranges.parquet``, … ; or one such file."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from tracekit import schemas
from tracekit.errors import CorruptTraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tracekit.registry import Source


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
        with _guarded(self.files[name], name) as path:
            return self.count_rows(path)

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Read some columns of a table."""
        with _guarded(self.files[name], name) as path:
            return self.read_columns(path, columns)


def find(source: Source, suffix: str) -> dict[str, Path]:
    """Find the files of declared tables: in a folder by their names, else the file itself by its schema or name."""
    names = schemas.tables()
    paths = [source.path / n for n in sorted(source.names)]
    return {p.stem: p for p in paths if p.suffix == suffix and p.stem in names}


def one_file(source: Source, read_schema: Callable[[Path], pa.Schema]) -> dict[str, Path]:
    """Return the table that a single file holds: the one its schema names.

    Raises:
        CorruptTraceError: It is damaged, or holds no table of tracekit.
    """
    with _guarded(source.path, None) as path:
        name = ((read_schema(path).metadata or {}).get(b"tracekit.table") or b"").decode("utf-8", "replace")
    if name not in schemas.tables():
        raise CorruptTraceError("holds no table of tracekit", path=source.path, hint="give a file that tracekit wrote")
    return {name: source.path}


@contextmanager
def _guarded(path: Path, table: str | None) -> Iterator[Path]:
    try:
        yield path
    except (pa.ArrowException, OSError, KeyError) as e:
        text = str(e).splitlines()[0]
        raise CorruptTraceError(f"cannot be read: {text}", path=path, table=table, hint="write it again") from e
