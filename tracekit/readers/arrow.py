"""Arrow IPC files of declared tables, one file or a folder of them; read through a memory map."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.readers.common.table_files import TableFiles, find, one_file
from tracekit.registry import Reader

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa

    from tracekit.registry import Source

MAGIC = b"ARROW1"


def sniff(source: Source) -> bool:
    """Whether this is an Arrow IPC file, or a folder with some that are named as tables."""
    return source.head.startswith(MAGIC) or bool(find(source, ".arrow"))


def open_(source: Source) -> TableFiles:
    """Open a file or a folder."""
    import pyarrow as pa
    from pyarrow import ipc

    def opened(path: Path, columns: Sequence[int] | None = None) -> ipc.RecordBatchFileReader:
        only = ipc.IpcReadOptions(included_fields=columns)
        return ipc.open_file(pa.memory_map(str(path)), options=only)

    def count(path: Path) -> int:
        file = opened(path)
        return sum(file.get_batch(i).num_rows for i in range(file.num_record_batches))

    def read(path: Path, columns: Sequence[str]) -> pa.Table:
        fields = opened(path).schema.names
        return opened(path, [fields.index(c) for c in columns if c in fields]).read_all()

    files = find(source, ".arrow") or one_file(source, lambda path: opened(path).schema)
    return TableFiles(files, count, read)


READER = Reader("arrow", "Arrow IPC files of tracekit's tables, one or a folder", (".arrow",), sniff, open_)
