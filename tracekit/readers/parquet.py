"""Read declared tables from a Parquet file, or from a folder with one Parquet file per table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.readers.common import damage
from tracekit.readers.common.table_files import TableFiles, find_single_table_file, find_table_files, is_string_type
from tracekit.registry.interface import Reader

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from tracekit.readers.common.budget import Budget
    from tracekit.registry.source import Source
    from tracekit.system.files import InputFile

MAGIC = b"PAR1"


def sniff(source: Source) -> bool:
    """Return whether the source is a Parquet file, or a folder with Parquet files named after declared tables."""
    return source.head.startswith(MAGIC) or bool(find_table_files(source, ".parquet"))


def open_tables(source: Source) -> TableFiles:
    """Open a Parquet file with one declared table, or a folder with one Parquet file per table."""
    return TableFiles(
        find_table_files(source, ".parquet") or find_single_table_file(source, _ParquetFile), _ParquetFile
    )


class _ParquetFile:
    """The schema and size of a Parquet file, according to its footer.

    Attributes:
        schema: Arrow schema of the file.
        rows: Number of rows in all row groups.
    """

    def __init__(self, file: InputFile) -> None:
        self._end = damage.find_end(file, MAGIC) or file.size
        with _open_parquet(file, self._end) as parquet:
            self._metadata = parquet.metadata
            self.schema: pa.Schema = parquet.schema_arrow
        file.check_unchanged()
        damage.warn_about_trailing_bytes(file.path, file.size - self._end)
        groups = (self._metadata.row_group(i) for i in range(self._metadata.num_row_groups))
        self.rows: int = sum(group.num_rows for group in groups)

    def read(self, file: InputFile, columns: Sequence[str], budget: Budget) -> pa.Table:
        """Return the requested columns of the file.

        String columns that could exceed the budget as plain strings are dictionary-encoded.
        """
        from tracekit.readers.common import parquet_pages

        if not self._metadata.num_row_groups:  # pyarrow 18 cannot read such a file
            return self.schema.empty_table().select(list(columns))
        parquet_pages.reserve_columns(file, self._metadata, columns, budget)
        string_columns = [c for c in columns if is_string_type(self.schema.field(c).type)]
        long_columns = parquet_pages.find_columns_of_long_strings(file, self._metadata, string_columns, budget)
        with _open_parquet(file, self._end, metadata=self._metadata, read_dictionary=long_columns) as parquet:
            data = parquet.read(list(columns))
        file.check_unchanged()
        return data


def _open_parquet(file: InputFile, end: int, **options: Any) -> Any:
    from pyarrow import parquet

    return parquet.ParquetFile(damage.open_native(file, end), page_checksum_verification=True, **options)


READER = Reader(
    "parquet", "Parquet files of tracekit's tables: one file, or a folder of files", (".parquet",), sniff, open_tables
)
