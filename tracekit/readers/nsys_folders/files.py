"""Read columns of one Parquet or Arrow file that holds a table of an export, in batches of limited size."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from pyarrow import parquet

from tracekit.readers.common import arrow_ipc, damage, parquet_pages
from tracekit.readers.common.table_files import is_string_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from tracekit.readers.common.budget import Budget
    from tracekit.system.files import InputFile

BATCH_ROWS = 1 << 18


class ExportedTableFile(Protocol):
    """A file that holds one table, together with its metadata.

    Attributes:
        kind: Name of the file format, as printed in error messages.
        magics: Magic numbers that files in this format may begin with.
        schema: Schema of the table.
        rows: Number of rows that the metadata declares.
    """

    kind: ClassVar[str]
    magics: ClassVar[tuple[bytes, ...]]
    schema: pa.Schema
    rows: int

    def __init__(self, file: InputFile) -> None: ...

    def read_batches(self, file: InputFile, columns: Sequence[str], budget: Budget) -> Iterator[pa.RecordBatch]:
        """Yield record batches with the given columns, none of which may be nested. Values are not validated.

        Raises:
            Damage: The columns exceed the memory budget.
        """
        ...


class ParquetTable:
    """A Parquet file that holds one table.

    Strings are read as dictionary arrays, because all rows of a small file may contain the same long string.
    """

    kind: ClassVar[str] = "Parquet"
    magics: ClassVar[tuple[bytes, ...]] = (b"PAR1",)

    def __init__(self, file: InputFile) -> None:
        self._end = damage.find_end(file, self.magics[0]) or file.size
        with parquet.ParquetFile(damage.open_native(file, self._end)) as opened:
            self._metadata = opened.metadata
            self.schema: pa.Schema = opened.schema_arrow
        file.check_unchanged()
        damage.warn_about_trailing_bytes(file.path, file.size - self._end)
        groups = (self._metadata.row_group(i) for i in range(self._metadata.num_row_groups))
        self.rows: int = sum(group.num_rows for group in groups)
        self._string_columns = [field.name for field in self.schema if is_string_type(field.type)]

    def read_batches(self, file: InputFile, columns: Sequence[str], budget: Budget) -> Iterator[pa.RecordBatch]:
        """Yield record batches with the given columns, none of which may be nested. Values are not validated."""
        parquet_pages.reserve_columns(file, self._metadata, columns, budget)
        options = {"page_checksum_verification": True, "read_dictionary": self._string_columns}
        native = damage.open_native(file, self._end)
        with parquet.ParquetFile(native, metadata=self._metadata, **options) as opened:
            for batch in opened.iter_batches(BATCH_ROWS, columns=list(columns)):
                file.check_unchanged()
                yield batch.select(list(columns))


class ArrowTable(arrow_ipc.IpcFile):
    """A table in an Arrow IPC stream, which is the format that nsys writes, or in an Arrow IPC file."""

    kind: ClassVar[str] = "Arrow"
    magics: ClassVar[tuple[bytes, ...]] = (arrow_ipc.STREAM, arrow_ipc.FILE)

    def read_batches(self, file: InputFile, columns: Sequence[str], budget: Budget) -> Iterator[pa.RecordBatch]:
        """Yield record batches with the given columns, none of which may be nested. Values are not validated."""
        self.reserve_buffers(file, budget)
        for batch in self.read_record_batches(file, columns):
            for start in range(0, batch.num_rows, BATCH_ROWS):
                yield batch.slice(start, BATCH_ROWS)
