"""The file: chunks of text made by several threads, packed if asked for, written in their order."""

from __future__ import annotations

import os
import zlib
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol, Self

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future
    from pathlib import Path
    from types import TracebackType

MAX_THREADS = 4


class Packer(Protocol):
    """How bytes are packed: chunks on their own, in any thread; then joined in order."""

    def pack(self, data: memoryview) -> memoryview | bytes:
        """Pack a chunk."""
        ...

    def join(self, data: memoryview, packed: memoryview | bytes) -> memoryview | bytes:
        """Take note of the next chunk; return what is to be written."""
        ...

    def end(self) -> bytes:
        """Return what ends the file."""
        ...


class Plain:
    """Bytes as they are."""

    def pack(self, data: memoryview) -> memoryview | bytes:
        """Return the chunk."""
        return data

    def join(self, _: memoryview, packed: memoryview | bytes) -> memoryview | bytes:
        """Return the chunk."""
        return packed

    def end(self) -> bytes:
        """Return nothing."""
        return b""


class Gzip:
    """One gzip member; chunks are deflated on their own (flushed to whole bytes) and put end to end."""

    HEAD = b"\x1f\x8b\x08\0\0\0\0\0\x04\xff"
    """Deflate, no name, no time, fastest, no system."""
    LEVEL = 1

    def __init__(self) -> None:
        self._crc = 0
        self._size = 0

    def pack(self, data: memoryview) -> memoryview | bytes:
        """Deflate a chunk."""
        deflate = zlib.compressobj(self.LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        return deflate.compress(data) + deflate.flush(zlib.Z_FULL_FLUSH)

    def join(self, data: memoryview, packed: memoryview | bytes) -> memoryview | bytes:
        """Count the chunk into checksum and size."""
        head = b"" if self._size else self.HEAD
        self._crc = zlib.crc32(data, self._crc)
        self._size += len(data)
        return head + bytes(packed) if head else packed

    def end(self) -> bytes:
        """Return the last deflate block, checksum and size."""
        last = zlib.compressobj(self.LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS).flush()
        return last + self._crc.to_bytes(4, "little") + (self._size % (1 << 32)).to_bytes(4, "little")


class TextFile:
    """A file to which text is appended, as it is or gzipped (``.gz``); the same text gives the same bytes."""

    def __init__(self, path: Path) -> None:
        self._threads = min(MAX_THREADS, os.cpu_count() or 1)
        self._packer: Packer = Gzip() if path.suffix == ".gz" else Plain()
        self._pool = ThreadPoolExecutor(self._threads, "tracekit-export")
        self._file = path.open("wb", buffering=0)

    def write(self, text: str) -> None:
        """Append a text."""
        data = memoryview(text.encode())
        self._append(data, self._packer.pack(data))

    def extend(self, jobs: Iterable[Callable[[], pl.Series]]) -> None:
        """Append the strings that each job makes. Jobs run in threads; one more than these may be in memory."""
        waiting: deque[Future[tuple[memoryview, memoryview | bytes]]] = deque()
        for job in jobs:
            waiting.append(self._pool.submit(self._make, job))
            if len(waiting) > self._threads:
                self._append(*waiting.popleft().result())
        while waiting:
            self._append(*waiting.popleft().result())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.shutdown(cancel_futures=True)
        with self._file:
            if kind is None:
                self._file.write(self._packer.end())

    def _make(self, job: Callable[[], pl.Series]) -> tuple[memoryview, memoryview | bytes]:
        data = characters(job())
        return data, self._packer.pack(data)

    def _append(self, data: memoryview, packed: memoryview | bytes) -> None:
        rest = memoryview(self._packer.join(data, packed))
        while rest:
            rest = rest[self._file.write(rest) :]


def characters(strings: pl.Series) -> memoryview:
    """Return the UTF-8 of all strings of a series end to end, which is how Arrow keeps them."""
    array = strings.to_arrow(compat_level=pl.CompatLevel.oldest())
    _, offsets, data = array.buffers()
    if not len(array):
        return memoryview(b"")
    ends = memoryview(offsets).cast("B").cast("q")
    return memoryview(data)[ends[array.offset] : ends[array.offset + len(array)]]
