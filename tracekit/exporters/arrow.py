"""Arrow IPC files: one file a table, with the declared schema; not compressed, so that readers can map them."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    with ipc.new_file(str(path), table.schema) as writer:
        for batch in table.to_batches(BATCH_ROWS):
            writer.write_batch(batch)
            done += batch.num_rows
            progress(done, table.num_rows)


EXPORTER = Exporter(
    "arrow",
    "Arrow IPC files (Feather 2), one a table, to be memory-mapped",
    (".arrow", ".feather"),
    write_table=write_table,
)
