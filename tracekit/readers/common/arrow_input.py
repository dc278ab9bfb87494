"""Open files as pyarrow reads them: every read is checked, and is a copy, so that tables never change later."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.files import InputFile

_FROM_END = 2


class ArrowInput(io.RawIOBase):
    """An open file, or pieces of it with other bytes between them, as one file for pyarrow.

    Closing it leaves the file open.
    """

    def __init__(self, file: InputFile, before: bytes = b"", size: int | None = None, after: bytes = b"") -> None:
        """Wrap a file.

        Args:
            file: The open file.
            before: Bytes to put before it.
            size: Bytes of the file, from its beginning; all of them if None.
            after: Bytes to put behind these.
        """
        super().__init__()
        self._file = file
        self._before = before
        self._after = after
        self._stop = len(before) + (file.size if size is None else size)
        self._size = self._stop + len(after)
        self._at = 0

    def readable(self) -> bool:
        """Whether it can be read: yes."""
        return True

    def seekable(self) -> bool:
        """Whether places in it can be sought: yes."""
        return True

    def tell(self) -> int:
        """Return the place of the next read."""
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place."""
        self._at = (0, self._at, self._size)[whence] + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Read up to so many bytes; fewer at the end."""
        stop = self._size if size < 0 else min(self._size, self._at + size)
        parts = self._parts(self._at, stop)
        self._at = max(self._at, stop)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _parts(self, start: int, stop: int) -> Sequence[bytes]:
        """Return the bytes between two places, which may lie in several pieces."""
        first = len(self._before)
        parts = [self._before[start:stop]] if start < min(first, stop) else []
        begin, end = max(start, first), min(stop, self._stop)
        if begin < end:
            parts.append(self._file.read(begin - first, end - begin))
        if stop > self._stop:
            parts.append(self._after[max(0, start - self._stop) : stop - self._stop])
        return parts
