"""Read many SQLite pages at a time, and decode the numbers in them with numpy.

The file is not memory-mapped. If another process truncates it, reading it therefore raises an error, whereas access to
a memory map would crash.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tracekit.errors import TracekitError
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.sqlite_files import HEADER_BYTES, Header
from tracekit.system.files import FileState, open_regular_file

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
"""Number of zero bytes after the last page of a block, so that up to this many bytes can be read at any position."""

LOCK_BYTE = 1 << 30
"""Offset of the lock byte in a file. SQLite stores no data on the page that contains it."""

COPY_HINT = "copy it again from where it was written"
_MORE = 0x80
_FREED_BLOCK_BYTES = (1 << 25) - (1 << 16)


class OutsideError(Exception):
    """Raised if a position is outside a block of pages."""


class PageFile:
    """A thread-safe reader of the pages of one SQLite file. Each read opens the file separately.

    Attributes:
        path: Absolute path of the file.
        state: State of the file when this object was created. If the file changes after that, reading it is an error.
        head: The bytes of the file header.
        header: The parsed file header.
        page_size: Size of a page in bytes.
        usable: Number of bytes of each page that SQLite uses, without the reserved bytes at its end.
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
        with os.fdopen(open_regular_file(self.path), "rb", buffering=0) as f:
            self.head = f.read(HEADER_BYTES) or b""
        self.header = Header.parse(self.head)
        self.page_size, self.usable = self.header.page_size, self.header.page_size - self.header.reserved
        plain = 512 <= self.page_size <= 1 << 16 and self.page_size & (self.page_size - 1) == 0  # noqa: PLR2004 - SQLite's own limits
        if not plain or self.usable < 480:  # noqa: PLR2004
            raise Damage(
                f"the header declares pages of {self.page_size} bytes with {self.header.reserved} reserved bytes, "
                "but SQLite requires a power of two from 512 to 65536, with at least 480 bytes that are not reserved"
            )
        present = self.state.size // self.page_size
        self.count = min(self.header.pages or present, present)
        _increase_malloc_threshold()

    def check_unchanged(self) -> None:
        """Check that the file has not changed since this object was created.

        Raises:
            TracekitError: The file was changed, replaced or removed.
        """
        self.state.check_unchanged(self.path)

    def read(self, page_numbers: Ints) -> PageBlock:
        """Read the pages with the given numbers. Consecutive pages are read together.

        Raises:
            Damage: The file ends before one of the pages.
            TracekitError: The file changed.
        """
        size = self.page_size
        data = np.empty(len(page_numbers) * size + PAD, np.uint8)
        data[-PAD:] = 0
        try:
            with os.fdopen(open_regular_file(self.path), "rb", buffering=0) as f:
                complete = all(
                    f.seek((int(page_numbers[a]) - 1) * size) >= 0
                    and _read_until_full(f, data.data[a * size : b * size])
                    for a, b in _find_consecutive_ranges(page_numbers)
                )
        except OSError as e:
            self.check_unchanged()
            raise TracekitError(f"the file cannot be read: {e.strerror or e}", path=self.path, hint=COPY_HINT) from e
        self.check_unchanged()
        if not complete:
            raise Damage(f"the file ends before page {int(page_numbers.max())}")
        return PageBlock(data, page_numbers, size)


class PageBlock:
    """SQLite pages in memory, followed by zeros. A position is an offset from the start of the first page.

    Bytes and varints at positions outside the block are arbitrary, so callers must check the results.

    Attributes:
        data: All bytes of the pages, followed by the zeros.
        numbers: Page numbers.
        head: Offset of the B-tree header within each page. It is 0, except for a block that consists of page 1, where
            the file header of 100 bytes comes first.
        pages: Two-dimensional array with one row of bytes per page.
        kinds: Type byte of each page.
        counts: Number of cells of each page.
        starts: Position of the start of each page.
    """

    def __init__(self, data: Bytes, numbers: Ints, page_size: int) -> None:
        self.data = data
        self.numbers = numbers
        self.head = HEADER_BYTES if numbers[0] == 1 else 0
        self.pages = data[:-PAD].reshape(-1, page_size)
        self.kinds = self.pages[:, self.head]
        self.counts: Ints = self.pages[:, self.head + 3].astype(np.int64) << 8 | self.pages[:, self.head + 4]
        self.starts: Ints = np.arange(len(numbers)) * page_size

    def get_bytes_at(self, positions: Ints) -> Bytes:
        """Return the byte at each position."""
        return self.data.take(positions, mode="clip")

    def decode_varints_at(self, positions: Ints) -> tuple[Ints, Ints]:
        """Decode the varint at each position.

        Return an array of the values, and an array of the positions after the varints.
        """
        byte = self.get_bytes_at(positions)
        more = byte >= _MORE
        value = (byte & 0x7F).astype(np.int64)
        end = positions + 1
        rows: Ints | slice = slice(None)
        for left in range(8, 0, -1):
            if not more.all():
                longer = np.flatnonzero(more)
                rows = longer if isinstance(rows, slice) else rows[longer]
                if not len(longer):
                    break
            byte = self.get_bytes_at(end[rows])
            shift, mask = (7, 0x7F) if left > 1 else (8, 0xFF)
            value[rows] = value[rows] << shift | (byte & mask)
            end[rows] += 1
            more = byte >= _MORE
        return value, end

    def read_page_numbers(self, positions: Ints) -> Ints:
        """Return the page number, a 4-byte big-endian integer, at each position.

        Raises:
            OutsideError: A position is outside the block.
        """
        return np.ascontiguousarray(self.gather_bytes(positions, 8)[:, :4]).view(">u4")[:, 0].astype(np.int64)

    def gather_bytes(self, positions: Ints, width: int) -> Bytes:
        """Copy ``width`` bytes from each position. Return a two-dimensional array with one row of bytes per position.

        The width is at most ``PAD``.

        Raises:
            OutsideError: A position is outside the block.
        """
        if len(positions) and not (int(positions.min()) >= 0 and int(positions.max()) <= len(self.data) - PAD):
            raise OutsideError
        every = np.ndarray((len(self.data) - width + 1,), f"V{width}", self.data, strides=(1,))
        return every[positions].view(np.uint8).reshape(-1, width)


def _read_until_full(file: io.FileIO, view: memoryview) -> bool:
    """Read bytes until a buffer is full. Return whether the file had enough bytes to fill it."""
    while len(view):
        n = file.readinto(view)
        if not n:
            return False
        view = view[n:]
    return True


def _increase_malloc_threshold() -> None:
    """Make the C library keep freed memory for reuse, because returning it to the system would double the read time.

    glibc keeps blocks up to a threshold. The threshold grows to the size of the largest block that was freed, up to 32
    MiB. Therefore, this function allocates and frees one large block.
    """
    np.empty(_FREED_BLOCK_BYTES, np.uint8)


def _find_consecutive_ranges(page_numbers: Ints) -> Iterator[tuple[int, int]]:
    """Yield the start and end index of each range of consecutive page numbers."""
    cuts = (np.flatnonzero(np.diff(page_numbers) != 1) + 1).tolist()
    yield from zip([0, *cuts], [*cuts, len(page_numbers)], strict=True)
