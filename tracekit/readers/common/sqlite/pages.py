"""Read pages of a SQLite file into memory, many at a time, and parse numbers in them with numpy.

Pages are read, not mapped: a file that someone truncates meanwhile gives an error instead of a dead process.
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
"""Bytes of pages that are read and decoded at a time."""

PAD = 64
"""Zeros after the last page of a block, so that a few bytes may be read from any position."""

LOCK_BYTE = 1 << 30
"""SQLite keeps the page that holds this byte of a file unused."""

COPY_HINT = "copy it again from where it was written"
_MORE = 0x80
_KEPT_BYTES = (1 << 25) - (1 << 16)


class OutsideError(Exception):
    """A position lies outside the pages that were read."""


class PageFile:
    """The pages of one SQLite file. Nothing is kept open, so several threads may share it.

    Attributes:
        path: The file, absolute.
        state: What it was when it was opened; a read of a file that is no longer in this state is an error.
        head: The bytes of its header.
        header: What its header says.
        page_size: Bytes per page.
        usable: Bytes per page that SQLite uses.
        count: Number of pages.
    """

    def __init__(self, path: Path) -> None:
        """Read the header of a file.

        Raises:
            Damage: It is no header of a SQLite file.
            TracekitError: It is not a regular file, or may not be read.
        """
        self.path = path.absolute()
        self.state = FileState.of(self.path)
        with os.fdopen(open_regular(self.path), "rb", buffering=0) as f:
            self.head = f.read(HEADER_BYTES) or b""
        self.header = Header.parse(self.head)
        self.page_size, self.usable = self.header.page_size, self.header.page_size - self.header.reserved
        plain = 512 <= self.page_size <= 1 << 16 and self.page_size & (self.page_size - 1) == 0  # noqa: PLR2004 - SQLite's own limits
        if not plain or self.usable < 480:  # noqa: PLR2004
            raise Damage(f"pages of {self.page_size} bytes, {self.header.reserved} of them reserved")
        present = self.state.size // self.page_size
        self.count = min(self.header.pages or present, present)
        _keep_memory()

    def check(self) -> None:
        """Check that the file is what it was when it was opened.

        Raises:
            TracekitError: It was changed, replaced or removed.
        """
        self.state.check(self.path)

    def read(self, numbers: Ints) -> Block:
        """Read pages by number, neighbours at once.

        Raises:
            Damage: The file ends before them.
            TracekitError: The file changed.
        """
        size = self.page_size
        data = np.empty(len(numbers) * size + PAD, np.uint8)
        data[-PAD:] = 0
        try:
            with os.fdopen(open_regular(self.path), "rb", buffering=0) as f:
                complete = all(
                    f.seek((int(numbers[a]) - 1) * size) >= 0 and _fill(f, data.data[a * size : b * size])
                    for a, b in _stretches(numbers)
                )
        except OSError as e:
            self.check()
            raise TracekitError(f"cannot be read: {e.strerror or e}", path=self.path, hint=COPY_HINT) from e
        self.check()
        if not complete:
            raise Damage("the file ends before its last page")
        return Block(data, numbers, size)


class Block:
    """Pages one after the other in memory, followed by some zeros; positions are offsets from the beginning.

    A position outside reads as some byte of the block: what it leads to has to be checked afterwards.

    Attributes:
        numbers: Page numbers [n].
        pages: Their bytes [n, page size].
        kinds: Kind of each page [n].
        counts: Number of cells of each page [n].
        starts: Position of each page [n].
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
        """Read a number of 1 to 9 bytes at each position [n]: the numbers [n], and where they end [n]."""
        byte = self.bytes(at)
        more = byte >= _MORE
        value = (byte & 0x7F).astype(np.int64)
        end = at + 1
        rows: Ints | slice = slice(None)
        for left in range(8, 0, -1):
            if not more.all():
                kept = np.flatnonzero(more)
                rows = kept if isinstance(rows, slice) else rows[kept]
                if not len(kept):
                    break
            byte = self.bytes(end[rows])
            shift, mask = (7, 0x7F) if left > 1 else (8, 0xFF)
            value[rows] = value[rows] << shift | (byte & mask)
            end[rows] += 1
            more = byte >= _MORE
        return value, end

    def numbers_at(self, at: Ints) -> Ints:
        """Read a big-endian number of 4 bytes at each position [n]; no position may be beyond the last page."""
        return np.ascontiguousarray(self.rows(at, 8)[:, :4]).view(">u4")[:, 0].astype(np.int64)

    def rows(self, at: Ints, width: int) -> Bytes:
        """Return the bytes [n, width] that follow each position [n]; at most 64.

        Raises:
            OutsideError: A position is outside the pages.
        """
        if len(at) and not (int(at.min()) >= 0 and int(at.max()) <= len(self.data) - PAD):
            raise OutsideError
        every = np.ndarray((len(self.data) - width + 1,), f"V{width}", self.data, strides=(1,))
        return every[at].view(np.uint8).reshape(-1, width)


def _fill(f: io.FileIO, view: memoryview) -> bool:
    """Read until a buffer is full; False if the file ends before."""
    while len(view):
        n = f.readinto(view)
        if not n:
            return False
        view = view[n:]
    return True


def _keep_memory() -> None:
    """Let the C library keep freed memory: by default it gives it back block by block, which doubles the time.

    Its thresholds for that follow the largest block that was freed, up to 32 MiB.
    """
    np.empty(_KEPT_BYTES, np.uint8)


def _stretches(numbers: Ints) -> Iterator[tuple[int, int]]:
    """Cut page numbers where one is not the successor of the one before; yield first and end of each part."""
    cuts = (np.flatnonzero(np.diff(numbers) != 1) + 1).tolist()
    yield from zip([0, *cuts], [*cuts, len(numbers)], strict=True)
