"""The bytes of a trace, unpacked, a few megabytes at a time."""

from __future__ import annotations

import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tracekit.errors import CorruptTraceError

if TYPE_CHECKING:
    from concurrent.futures import Future
    from types import TracebackType
    from typing import Self

    from tracekit.files import InputFile

PIECE_BYTES = 1 << 22
PACKED_BYTES = 1 << 18
MAX_RATIO = 250
"""Times that a file may grow when it is unpacked; real traces grow 10 to 50 times."""
UNSUSPICIOUS_BYTES = 1 << 26
_GZIP = zlib.MAX_WBITS | 16


class Stream:
    """An open file, plain or gzipped, read from its beginning to its end.

    Attributes:
        damage: What is wrong with the packed bytes, if something is; what comes before can be read.
    """

    def __init__(self, file: InputFile, *, packed: bool) -> None:
        self.damage: str | None = None
        self._file = file
        self._at = 0
        self._inflate = zlib.decompressobj(_GZIP) if packed else None
        self._rest = b""
        self._read = self._made = 0
        self._ahead = ThreadPoolExecutor(1, "tracekit-unpack") if packed else None
        self._next: Future[bytes] | None = None

    def read(self) -> bytes:
        """Return the next bytes; none at the end. A thread unpacks those that come then.

        Raises:
            CorruptTraceError: The file grows beyond measure.
            TracekitError: It cannot be read, or changed since it was opened.
        """
        return self._taken(PIECE_BYTES) if self._ahead is None else self._unpacked_ahead(self._ahead)

    def _taken(self, most: int) -> bytes:
        """Read on in the file; nothing at its end."""
        data = self._file.read(self._at, min(most, self._file.size - self._at))
        self._at += len(data)
        return data

    def _unpacked_ahead(self, thread: ThreadPoolExecutor) -> bytes:
        data = self._next.result() if self._next is not None else self._unpacked()
        self._next = thread.submit(self._unpacked) if data else None
        return data

    def _unpacked(self) -> bytes:
        pieces: list[bytes] = []
        room = PIECE_BYTES
        while room > 0 and self._inflate is not None:
            piece = self._inflated(room)
            if piece is None:
                break
            pieces.append(piece)
            room -= len(piece)
        return b"".join(pieces)

    def _inflated(self, room: int) -> bytes | None:
        """Unpack some bytes; None at the end. Several packed files may stand one after another."""
        if self._inflate is None:
            return None
        packed = self._rest or self._taken(PACKED_BYTES)
        self._read += len(packed) - len(self._rest)
        if not packed:
            self.damage = "the packed bytes end before their end mark"
            self._inflate = None
            return None
        try:
            piece = self._inflate.decompress(packed, room)
        except zlib.error:
            self.damage = f"the packed bytes are damaged near byte {self._read}"
            self._inflate = None
            return None
        self._count(len(piece))
        self._rest = self._inflate.unconsumed_tail
        if self._inflate.eof:
            self._rest = self._inflate.unused_data or self._taken(PACKED_BYTES)
            self._read += len(self._rest) - len(self._inflate.unused_data)
            self._inflate = zlib.decompressobj(_GZIP) if self._rest.startswith(b"\x1f\x8b") else None
        return piece

    def _count(self, size: int) -> None:
        self._made += size
        if self._made > max(UNSUSPICIOUS_BYTES, MAX_RATIO * self._read):
            raise CorruptTraceError(
                f"unpacks to more than {MAX_RATIO} times its size: no trace does",
                path=self._file.path,
                hint="unpack it first if you trust it",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._ahead is not None:
            self._ahead.shutdown(cancel_futures=True)
