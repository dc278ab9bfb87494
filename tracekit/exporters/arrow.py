"""Export one uncompressed Arrow IPC file per table, with the declared schema. The files can be memory-mapped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit import schemas
from tracekit.registry.interface import Exporter
from tracekit.registry.tables import read_table

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.registry.interface import Progress
    from tracekit.registry.tables import Tables

BATCH_ROWS = 1 << 18


def write_table(tables: Tables, name: str, path: Path, progress: Progress) -> None:
    """Write one table to an Arrow IPC file that preserves its rows, types, dictionaries and field metadata."""
    from pyarrow import ipc

    table = read_table(tables, name)
    written = 0
    with path.open("wb") as file, ipc.new_file(file, table.schema) as writer:
        for batch in table.to_batches(BATCH_ROWS):
            writer.write_batch(batch)
            written += batch.num_rows
            progress(written, table.num_rows)


def is_own_file(path: Path) -> bool:
    """Return whether this exporter probably wrote a file: the file is named after the table in its Arrow schema."""
    from pyarrow import ArrowException, ipc

    if path.suffix != ".arrow":
        return False
    try:
        with path.open("rb") as file:
            return schemas.read_table_name(ipc.open_file(file).schema) == path.stem
    except (ArrowException, OSError, ValueError):
        return False


EXPORTER = Exporter(
    "arrow",
    "Arrow IPC files (Feather 2), one per table, uncompressed for memory-mapping",
    (".arrow", ".feather"),
    write_table=write_table,
    wrote=is_own_file,
)
