"""Parquet files of declared tables, one file or a folder of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.readers.common.table_files import TableFiles, find, one_file
from tracekit.registry import Reader

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa

    from tracekit.registry import Source

MAGIC = b"PAR1"


def sniff(source: Source) -> bool:
    """Whether this is a Parquet file, or a folder with some that are named as tables."""
    return source.head.startswith(MAGIC) or bool(find(source, ".parquet"))


def open_(source: Source) -> TableFiles:
    """Open a file or a folder."""
    from pyarrow import parquet

    def read(path: Path, columns: Sequence[str]) -> pa.Table:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            if not file.num_row_groups:  # pyarrow 18 cannot read such a file
                return file.schema_arrow.empty_table().select(list(columns))
            return file.read(list(columns))

    files = find(source, ".parquet") or one_file(source, parquet.read_schema)
    return TableFiles(files, lambda path: int(parquet.read_metadata(path).num_rows), read)


READER = Reader("parquet", "Parquet files of tracekit's tables, one or a folder", (".parquet",), sniff, open_)
