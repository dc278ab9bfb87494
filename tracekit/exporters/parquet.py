"""Export one Parquet file per table, with zstd compression and the declared Arrow schema."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Self

from tracekit import schemas
from tracekit.registry.interface import Exporter
from tracekit.registry.tables import read_chunks

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

    import pyarrow as pa

    from tracekit.registry.interface import ManyTraces, Progress
    from tracekit.registry.tables import Tables

GROUP_ROWS, MAX_DICTIONARY_VALUES = 1 << 18, 1 << 15


def write_table(tables: Tables, name: str, path: Path, progress: Progress) -> None:
    """Write one table to a Parquet file that preserves its rows, types, dictionaries and field metadata."""
    table = read_chunks(tables, name)
    with TableWriter(path, table) as writer:
        writer.write(table, progress)


def write_many_tables(traces: ManyTraces, files: Mapping[str, Path], progress: Progress) -> None:
    """Write tables of several traces, with at least one row group for each trace that has rows."""
    with contextlib.ExitStack() as stack:
        writers: dict[str, TableWriter] = {}
        for tables in traces.iterate_tables(progress):
            for name, file in files.items():
                table = read_chunks(tables, name)
                if name not in writers:
                    writers[name] = stack.enter_context(TableWriter(file, table))
                writers[name].write(table)


class TableWriter:
    """Writer that appends tables to a Parquet file. The first table determines the dictionary-encoded columns."""

    def __init__(self, path: Path, first: pa.Table) -> None:
        from pyarrow import parquet

        self._dictionary_columns = _choose_dictionary_columns(first)
        self._file = path.open("wb")
        options = {"compression": "zstd", "use_dictionary": self._dictionary_columns}
        self._writer = parquet.ParquetWriter(self._file, first.schema, **options)

    def write(self, table: pa.Table, progress: Progress | None = None) -> None:
        """Append the rows of a table to the file as new row groups."""
        for column in self._dictionary_columns:
            table = table.set_column(
                table.column_names.index(column), table.field(column), table[column].unify_dictionaries()
            )
        for offset in range(0, table.num_rows, GROUP_ROWS):
            self._writer.write_table(table.slice(offset, GROUP_ROWS))
            if progress is not None:
                progress(min(offset + GROUP_ROWS, table.num_rows), table.num_rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._file:
            self._writer.close()


def _choose_dictionary_columns(table: pa.Table) -> list[str]:
    """Return the names of the columns to dictionary-encode in the Parquet file.

    Columns with large dictionaries are excluded, because every row group contains the whole dictionary again.
    """
    import pyarrow as pa

    def count_dictionary_values(column: pa.ChunkedArray) -> int:
        if not pa.types.is_dictionary(column.type):
            return 0
        dictionaries = (chunk.dictionary for chunk in column.chunks)
        shared = {(len(d), d.buffers()[-1].address if d.buffers()[-1] else 0) for d in dictionaries}
        return sum(size for size, _ in shared)

    return [name for name in table.column_names if count_dictionary_values(table[name]) <= MAX_DICTIONARY_VALUES]


def is_own_file(path: Path) -> bool:
    """Return whether this exporter probably wrote a file: the file is named after the table in its Arrow schema."""
    from pyarrow import ArrowException, parquet

    if path.suffix != ".parquet":
        return False
    try:
        with path.open("rb") as file:
            return schemas.read_table_name(parquet.read_schema(file)) == path.stem
    except (ArrowException, OSError, ValueError):
        return False


EXPORTER = Exporter(
    "parquet",
    "Parquet (zstd), one file per table, with the declared Arrow schema",
    (".parquet",),
    write_table=write_table,
    write_many_tables=write_many_tables,
    wrote=is_own_file,
)
