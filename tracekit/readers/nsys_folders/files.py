"""One table of an export in a file of its own, read by column and in pieces of limited size."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

import pyarrow as pa
from pyarrow import ipc, parquet

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

PIECE_ROWS = 1 << 18
_STREAM, _FILE = b"\xff\xff\xff\xff", b"ARROW1"
_STREAM_END = _STREAM + bytes(4)


class TableFile(Protocol):
    """One file.

    Attributes:
        kind: What such a file is called.
        magics: What such a file begins with.
        names: Its columns.
    """

    kind: ClassVar[str]
    magics: ClassVar[tuple[bytes, ...]]
    names: tuple[str, ...]

    def __init__(self, path: Path) -> None: ...

    def rows(self) -> int:
        """Number of rows that the file says it has."""
        ...

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read columns, at least one, a piece at a time; values are not checked."""
        ...


class ParquetTable:
    """A Parquet file, mapped into memory; of a row group some pages are unpacked at a time.

    Texts come as dictionaries: the few bytes of a page may stand for a long text on every row.
    """

    kind: ClassVar[str] = "Parquet"
    magics: ClassVar[tuple[bytes, ...]] = (b"PAR1",)

    def __init__(self, path: Path) -> None:
        self._path = path
        with parquet.ParquetFile(path, memory_map=True) as file:
            self._metadata = file.metadata
            self.names: tuple[str, ...] = tuple(file.schema_arrow.names)
            self._texts = [f.name for f in file.schema_arrow if f.type in (pa.string(), pa.large_string())]

    def rows(self) -> int:
        """Number of rows that the row groups say they have."""
        return sum(self._metadata.row_group(i).num_rows for i in range(self._metadata.num_row_groups))

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read columns, at least one, a piece at a time; values are not checked."""
        options = {"memory_map": True, "page_checksum_verification": True, "read_dictionary": self._texts}
        with parquet.ParquetFile(self._path, metadata=self._metadata, **options) as file:
            for batch in file.iter_batches(PIECE_ROWS, columns=list(columns)):
                yield batch.select(list(columns))


class ArrowTable:
    """An Arrow stream, as nsys writes it, or an Arrow file; mapped into memory, so that reading it copies nothing."""

    kind: ClassVar[str] = "Arrow"
    magics: ClassVar[tuple[bytes, ...]] = (_STREAM, _FILE)

    def __init__(self, path: Path) -> None:
        self._path = path
        with pa.memory_map(str(path)) as mapped:
            self._size = mapped.size()
            self._is_stream = mapped.read(len(_STREAM)) == _STREAM
            if self._is_stream and mapped.read_at(len(_STREAM_END), self._size - len(_STREAM_END)) != _STREAM_END:
                raise ValueError("cut short: it has no end mark")
            self.names: tuple[str, ...] = tuple(self._opened(mapped, None).schema.names)

    def rows(self) -> int:
        """Number of rows that the batches say they have."""
        return sum(batch.num_rows for batch in self._batches(self.names[:1]))

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read columns, at least one, a piece at a time; values are not checked."""
        for batch in self._batches(columns):
            for start in range(0, batch.num_rows, PIECE_ROWS):
                yield batch.slice(start, PIECE_ROWS)

    def _batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        places = [self.names.index(c) for c in columns]
        with pa.memory_map(str(self._path)) as mapped:
            reader = self._opened(mapped, places)
            if isinstance(reader, ipc.RecordBatchFileReader):
                yield from (reader.get_batch(i).select(columns) for i in range(reader.num_record_batches))
                return
            yield from (batch.select(columns) for batch in reader)
            if mapped.tell() != self._size:
                raise ValueError(f"ends at {mapped.tell()} of {self._size} bytes")

    def _opened(
        self, mapped: pa.MemoryMappedFile, places: list[int] | None
    ) -> ipc.RecordBatchStreamReader | ipc.RecordBatchFileReader:
        mapped.seek(0)
        options = ipc.IpcReadOptions(included_fields=places)
        return (ipc.open_stream if self._is_stream else ipc.open_file)(mapped, options=options)
