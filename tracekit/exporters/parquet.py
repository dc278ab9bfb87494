"""Parquet: one file a table, compressed with zstd, with the declared Arrow schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit import schemas
from tracekit.registry import Exporter

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from tracekit.registry import Progress, View

GROUP_ROWS, MANY_TEXTS = 1 << 18, 1 << 15


def write_table(view: View, name: str, path: Path, progress: Progress) -> None:
    """Write one table; reading it gives the same rows, types and field metadata, dictionaries included."""
    from pyarrow import parquet

    table = view.chunked_table(name)
    repeating = _repeating(table)
    for column in repeating:
        table = table.set_column(
            table.column_names.index(column), table.field(column), table[column].unify_dictionaries()
        )
    options = {"compression": "zstd", "use_dictionary": repeating}
    with path.open("wb") as file, parquet.ParquetWriter(file, table.schema, **options) as writer:
        for at in range(0, table.num_rows, GROUP_ROWS):
            writer.write_table(table.slice(at, GROUP_ROWS))
            progress(min(at + GROUP_ROWS, table.num_rows), table.num_rows)


def _repeating(table: pa.Table) -> list[str]:
    """Return the columns that are worth a dictionary in the file: each row group holds the whole one again."""
    import pyarrow as pa

    def texts(column: pa.ChunkedArray) -> int:
        return sum(len(c.dictionary) for c in column.chunks) if pa.types.is_dictionary(column.type) else 0

    return [name for name in table.column_names if texts(table[name]) <= MANY_TEXTS]


def wrote(path: Path) -> bool:
    """Return whether a file is a table of this exporter: its schema names the table that the file is named as."""
    from pyarrow import ArrowException, parquet

    if path.suffix != ".parquet":
        return False
    try:
        with path.open("rb") as file:
            return schemas.table_of(parquet.read_schema(file)) == path.stem
    except (ArrowException, OSError, ValueError):
        return False


EXPORTER = Exporter(
    "parquet",
    "Parquet (zstd), one file a table, with the declared Arrow schema",
    (".parquet",),
    write_table=write_table,
    wrote=wrote,
)
