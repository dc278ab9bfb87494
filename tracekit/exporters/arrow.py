"""Arrow IPC files: one file a table, with the declared schema; not compressed, so that readers can map them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit import schemas
from tracekit.registry import Exporter

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.registry import Progress, View

BATCH_ROWS = 1 << 18


def write_table(view: View, name: str, path: Path, progress: Progress) -> None:
    """Write one table; reading it gives the same rows, types and field metadata, dictionaries included."""
    from pyarrow import ipc

    table = view.table(name)
    done = 0
    with path.open("wb") as file, ipc.new_file(file, table.schema) as writer:
        for batch in table.to_batches(BATCH_ROWS):
            writer.write_batch(batch)
            done += batch.num_rows
            progress(done, table.num_rows)


def wrote(path: Path) -> bool:
    """Return whether a file is a table of this exporter: its schema names the table that the file is named as."""
    from pyarrow import ArrowException, ipc

    if path.suffix != ".arrow":
        return False
    try:
        with path.open("rb") as file:
            return schemas.table_of(ipc.open_file(file).schema) == path.stem
    except (ArrowException, OSError, ValueError):
        return False


EXPORTER = Exporter(
    "arrow",
    "Arrow IPC files (Feather 2), one a table, to be memory-mapped",
    (".arrow", ".feather"),
    write_table=write_table,
    wrote=wrote,
)
