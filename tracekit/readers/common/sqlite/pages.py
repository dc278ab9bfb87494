"""Read SQLite pages, many at a time, and decode the numbers in them with numpy.

Pages are read rather than memory-mapped, so that truncating the file while it is open causes an error instead of a
crash.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tracekit.errors import TracekitError
from tracekit.files import FileState, open_regular
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.sqlite_files import HEADER_BYTES, Header

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt

    Bytes: TypeAlias = npt.NDArray[np.uint8]
    Flags: TypeAlias = npt.NDArray[np.bool_]
    Ints: TypeAlias = npt.NDArray[np.int64]

RUN_BYTES = 1 << 21
"""Number of bytes of pages to read and decode at a time."""

PAD = 64
"""Number of zero bytes after the last page of a block, so that a few bytes can be read at any position."""

LOCK_BYTE = 1 << 30
"""Offset in a file. SQLite never uses the page that contains this offset."""

COPY_HINT = "copy it again from where it was written"
_MORE = 0x80
_KEPT_BYTES = (1 << 25) - (1 << 16)


class OutsideError(Exception):
    """A position is outside the pages that were read."""


class PageFile:
    """The pages of one SQLite file. The class is thread-safe, because no file stays open between reads.

    Attributes:
        path: Absolute path of the file.
        state: State of the file when it was opened. Reading the file in another state is an error.
        head: The bytes of the file header.
        header: The parsed file header.
        page_size: Size of a page in bytes.
        usable: Number of bytes per page that SQLite uses.
        count: Number of pages.
    """

    def __init__(self, path: Path) -> None:
        """Read and check the header of a SQLite file.

        Raises:
            Damage: The header is invalid.
            TracekitError: The file is not a regular file, or cannot be read.
        """
        self.path = path.absolute()
        self.state = FileState.read(self.path)
        with os.fdopen(open_regular(self.path), "rb", buffering=0) as f:
            self.head = f.read(HEADER_BYTES) or b""
        self.header = Header.parse(self.head)
        self.page_size, self.usable = self.header.page_size, self.header.page_size - self.header.reserved
        plain = 512 <= self.page_size <= 1 << 16 and self.page_size & (self.page_size - 1) == 0  # noqa: PLR2004 - SQLite's own limits
        if not plain or self.usable < 480:  # noqa: PLR2004
            raise Damage(f"invalid page size of {self.page_size} bytes with {self.header.reserved} reserved bytes")
        present = self.state.size // self.page_size
        self.count = min(self.header.pages or present, present)
        _raise_free_threshold()

    def check(self) -> None:
        """Check that the file has not changed since it was opened.

        Raises:
            TracekitError: The file was changed, replaced or removed.
        """
        self.state.check(self.path)

    def read(self, numbers: Ints) -> PageBlock:
        """Read pages by number. Consecutive pages are read in one call.

        Raises:
            Damage: The file ends before one of the pages.
            TracekitError: The file changed.
        """
        size = self.page_size
        data = np.empty(len(numbers) * size + PAD, np.uint8)
        data[-PAD:] = 0
        try:
            with os.fdopen(open_regular(self.path), "rb", buffering=0) as f:
                complete = all(
                    f.seek((int(numbers[a]) - 1) * size) >= 0 and _fill(f, data.data[a * size : b * size])
                    for a, b in _consecutive_ranges(numbers)
                )
        except OSError as e:
            self.check()
            raise TracekitError(f"cannot be read: {e.strerror or e}", path=self.path, hint=COPY_HINT) from e
        self.check()
        if not complete:
            raise Damage("the file ends before its last page")
        return PageBlock(data, numbers, size)


class PageBlock:
    """Pages in memory, followed by zeros. A position is an offset from the start of the first page.

    Reading at a position outside the block returns an arbitrary byte of the block, so that callers must check results.

    Attributes:
        numbers: Number of each page [n].
        pages: Bytes of the pages [n, page size].
        kinds: Type byte of each page [n].
        counts: Number of cells of each page [n].
        starts: Position of the start of each page [n].
    """

    def __init__(self, data: Bytes, numbers: Ints, page_size: int) -> None:
        self.data = data
        self.numbers = numbers
        self.head = HEADER_BYTES if numbers[0] == 1 else 0
        self.pages = data[:-PAD].reshape(-1, page_size)
        self.kinds = self.pages[:, self.head]
        self.counts: Ints = self.pages[:, self.head + 3].astype(np.int64) << 8 | self.pages[:, self.head + 4]
        self.starts: Ints = np.arange(len(numbers)) * page_size

    def bytes(self, at: Ints) -> Bytes:
        """Return the byte at each position [n]."""
        return self.data.take(at, mode="clip")

    def varints(self, at: Ints) -> tuple[Ints, Ints]:
        """Decode the varint at each position [n]. Return the values [n] and the positions after the varints [n]."""
        byte = self.bytes(at)
        more = byte >= _MORE
        value = (byte & 0x7F).astype(np.int64)
        end = at + 1
        rows: Ints | slice = slice(None)
        for left in range(8, 0, -1):
            if not more.all():
                longer = np.flatnonzero(more)
                rows = longer if isinstance(rows, slice) else rows[longer]
                if not len(longer):
                    break
            byte = self.bytes(end[rows])
            shift, mask = (7, 0x7F) if left > 1 else (8, 0xFF)
            value[rows] = value[rows] << shift | (byte & mask)
            end[rows] += 1
            more = byte >= _MORE
        return value, end

    def numbers_at(self, at: Ints) -> Ints:
        """Decode the 4-byte big-endian number at each position [n] within the pages."""
        return np.ascontiguousarray(self.rows(at, 8)[:, :4]).view(">u4")[:, 0].astype(np.int64)

    def rows(self, at: Ints, width: int) -> Bytes:
        """Return the ``width`` bytes that follow each position, as an array [n, width]. The width is at most 64.

        Raises:
            OutsideError: A position is outside the pages.
        """
        if len(at) and not (int(at.min()) >= 0 and int(at.max()) <= len(self.data) - PAD):
            raise OutsideError
        every = np.ndarray((len(self.data) - width + 1,), f"V{width}", self.data, strides=(1,))
        return every[at].view(np.uint8).reshape(-1, width)


def _fill(f: io.FileIO, view: memoryview) -> bool:
    """Read bytes until a buffer is full. Return whether the file had enough bytes."""
    while len(view):
        n = f.readinto(view)
        if not n:
            return False
        view = view[n:]
    return True


def _raise_free_threshold() -> None:
    """Make the C library reuse freed memory, because returning each block to the system would double the time.

    The threshold for returning memory follows the size of the largest freed block, up to 32 MiB. Therefore one large
    block is freed here.
    """
    np.empty(_KEPT_BYTES, np.uint8)


def _consecutive_ranges(numbers: Ints) -> Iterator[tuple[int, int]]:
    """Yield the start and end index of each range of consecutive page numbers."""
    cuts = (np.flatnonzero(np.diff(numbers) != 1) + 1).tolist()
    yield from zip([0, *cuts], [*cuts, len(numbers)], strict=True)
