"""Read a file a few megabytes at a time, and decompress it if necessary."""

from __future__ import annotations

import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tracekit.errors import CorruptTraceError

if TYPE_CHECKING:
    from concurrent.futures import Future
    from types import TracebackType
    from typing import Self

    from tracekit.system.files import InputFile

READ_BYTES = 1 << 22
"""Maximum number of decompressed bytes that a read returns."""
COMPRESSED_READ_BYTES = 1 << 18
MAX_COMPRESSION_RATIO = 250
"""Maximum ratio of the decompressed to the compressed size. Real traces have ratios from 10 to 50."""
UNCHECKED_BYTES = 1 << 26
"""Decompressed size in bytes up to which the compression ratio is not checked."""
_GZIP = zlib.MAX_WBITS | 16


class Stream:
    """An open plain or gzipped file, which is read sequentially.

    Args:
        file: The file.
        compressed: Whether the file is gzipped.
        block_bytes: Number of bytes that a read returns, unless the file ends. At most ``READ_BYTES``.

    Attributes:
        trailing_bytes: Number of bytes that follow the compressed data and are ignored.
        damage: Why the compressed data is invalid or truncated, or None if no damage has been found. The data before
            the damage can be read.
    """

    def __init__(self, file: InputFile, *, compressed: bool, block_bytes: int = READ_BYTES) -> None:
        self.damage: str | None = None
        self.trailing_bytes = 0
        self._file = file
        self._block_bytes = block_bytes
        self._offset = 0
        self._decompressor = zlib.decompressobj(_GZIP) if compressed else None
        self._pending = b""
        self._compressed_bytes = self._decompressed_bytes = 0
        self._executor = ThreadPoolExecutor(1, "tracekit-gunzip") if compressed else None
        self._next: Future[bytes] | None = None

    def read(self) -> bytes:
        """Return the next decompressed bytes of the file, or an empty bytes object at its end.

        If the file is compressed, a thread decompresses the following bytes in advance.

        Raises:
            CorruptTraceError: The compression ratio exceeds ``MAX_COMPRESSION_RATIO``.
            TracekitError: The file cannot be read, or changed since it was opened.
        """
        return (
            self._read_file(self._block_bytes)
            if self._executor is None
            else self._read_decompressed_block(self._executor)
        )

    def _read_file(self, max_bytes: int) -> bytes:
        """Return the next bytes of the file, or an empty bytes object at its end."""
        data = self._file.read(self._offset, min(max_bytes, self._file.size - self._offset))
        self._offset += len(data)
        return data

    def _read_decompressed_block(self, executor: ThreadPoolExecutor) -> bytes:
        data = self._next.result() if self._next is not None else self._decompress_block()
        self._next = executor.submit(self._decompress_block) if data else None
        return data

    def _decompress_block(self) -> bytes:
        blocks: list[bytes] = []
        free_bytes = self._block_bytes
        while free_bytes > 0 and self._decompressor is not None:
            block = self._decompress_next_bytes(free_bytes)
            if block is None:
                break
            blocks.append(block)
            free_bytes -= len(block)
        return b"".join(blocks)

    def _decompress_next_bytes(self, max_bytes: int) -> bytes | None:
        """Return the next decompressed bytes, or None at the end of the data or where the data is damaged.

        A file may consist of several gzip members, which are decompressed one after another.
        """
        if self._decompressor is None:
            return None
        compressed = self._pending or self._read_file(COMPRESSED_READ_BYTES)
        self._compressed_bytes += len(compressed) - len(self._pending)
        if not compressed:
            self.damage = "the compressed data ends before the end of the gzip trailer"
            self._decompressor = None
            return None
        try:
            block = self._decompressor.decompress(compressed, max_bytes)
        except zlib.error:
            self.damage = f"the compressed data is damaged near byte {self._compressed_bytes}"
            self._decompressor = None
            return None
        self._check_compression_ratio(len(block))
        self._pending = self._decompressor.unconsumed_tail
        if self._decompressor.eof:
            self._pending = self._decompressor.unused_data or self._read_file(COMPRESSED_READ_BYTES)
            self._compressed_bytes += len(self._pending) - len(self._decompressor.unused_data)
            self._decompressor = zlib.decompressobj(_GZIP) if self._pending.startswith(b"\x1f\x8b") else None
            if self._decompressor is None:
                self.trailing_bytes = self._file.size - self._offset + len(self._pending)
        return block

    def _check_compression_ratio(self, size: int) -> None:
        self._decompressed_bytes += size
        if self._decompressed_bytes > max(UNCHECKED_BYTES, MAX_COMPRESSION_RATIO * self._compressed_bytes):
            raise CorruptTraceError(
                f"the decompressed size exceeds tracekit's limit of {MAX_COMPRESSION_RATIO} times the compressed size",
                path=self._file.path,
                hint="if you trust the file, decompress it with gunzip and read the result",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
