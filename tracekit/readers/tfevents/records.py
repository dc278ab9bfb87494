"""An event file, record by record: the frames of TFRecord, their sums checked, some megabytes at a time."""

from __future__ import annotations

import threading
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.errors import TracekitError
from tracekit.files import CHANGED_HINT, InputFile
from tracekit.readers.common.protobuf.decoding import Buffer
from tracekit.readers.tfevents.walker import BAD_DATA, FOOTER_BYTES, FULL, HEADER_BYTES, MORE, Walker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracekit.readers.common.protobuf.decoding import Places

WINDOW_BYTES = 16 << 20
MAX_RECORD_BYTES = 1 << 30


class Batch(NamedTuple):
    """Records of a file that lie in memory.

    Attributes:
        buffer: Holds them; what follows in the file takes its place.
        starts: n places where the data of records begin.
        stops: n places where they end.
        offset: Where in the file the buffer begins.
    """

    buffer: Buffer
    starts: Places
    stops: Places
    offset: int


class Room:
    """Memory to read in, and the same bytes for decoding.

    Attributes:
        size: Bytes of the file that it has room for.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.walker = Walker(size)
        self.buffer = Buffer(size)


class Rooms:
    """Rooms that readers share, one at a time each."""

    def __init__(self) -> None:
        self._free: list[Room] = []
        self._turn = threading.Lock()

    @contextmanager
    def one(self) -> Iterator[Room]:
        """Lend a room."""
        with self._turn:
            room = self._free.pop() if self._free else None
        room = room or Room(WINDOW_BYTES)
        try:
            yield room
        finally:
            with self._turn:
                self._free.append(room)


class Records:
    """The records of one file.

    Attributes:
        size: Bytes of the file when it was opened.
        count: Records read so far.
        end: Place in the file behind the last of them.
        damage: What is wrong with the file there; None if nothing is, or if it only ends within a record.
    """

    def __init__(self, file: InputFile, room: Room) -> None:
        self.size = file.size
        self.count = self.end = 0
        self.damage: str | None = None
        self._file, self._room = file, room
        self._read = self._filled = self._at = 0

    def batches(self) -> Iterator[Batch]:
        """Read whole records, up to the end of the file or to damage.

        Raises:
            TracekitError: The file cannot be read, or changed in another way than that something was added to it.
        """
        while self._refill():
            self._room.buffer.octets[: self._filled] = self._room.walker.octets[: self._filled]
            result = FULL
            while result == FULL:
                found = self._room.walker.records(self._at, self._filled)
                result, self._at = found.result, found.at
                self.count += len(found.starts)
                self.end = self._offset + found.at
                if len(found.starts):
                    yield Batch(self._room.buffer, found.starts, found.stops, self._offset)
            if result != MORE:
                self.damage = f"the checksum of a {'record' if result == BAD_DATA else 'size'} is wrong"
                return
            if not self._fits():
                return

    @property
    def rest(self) -> int:
        """Bytes of the file that were not read, once all records were."""
        return self.size - self.end

    @property
    def _offset(self) -> int:
        return self._read - self._filled

    def _refill(self) -> bool:
        """Move what is not taken to the front, and read on; False at the end of the file."""
        octets, rest = self._room.walker.octets, self._filled - self._at
        if self._at:
            octets[:rest] = octets[self._at : self._filled].copy()
        self._at, self._filled = 0, rest
        wanted = min(self._room.size - rest, self.size - self._read)
        self._file.read_into(self._read, memoryview(octets.data)[rest : rest + wanted])
        self._filled += wanted
        self._read += wanted
        return wanted > 0

    def _fits(self) -> bool:
        """Make room for the next record; False if it is not whole, or larger than any event."""
        rest = self._filled - self._at
        if rest < HEADER_BYTES:
            return True
        header = self._room.walker.octets[self._at : self._at + 8]
        size = int(header.copy().view(np.uint64)[0])
        if size > MAX_RECORD_BYTES:
            self.damage = f"a record of {size} bytes, more than any event has"
            return False
        needed = HEADER_BYTES + size + FOOTER_BYTES
        if needed > self.size - self.end:
            return False
        if needed > self._room.size:
            self._grow(needed)
        return True

    def _grow(self, size: int) -> None:
        larger = Room(size)
        larger.walker.octets[: self._filled] = self._room.walker.octets[: self._filled]
        self._room = larger


def again(path: Path, start: int, size: int, checksum: int) -> bytes:
    """Read some bytes of a file another time.

    Args:
        path: The file, to which something may have been added since.
        start: Where they begin.
        size: How many there are.
        checksum: CRC-32 of what they were.

    Raises:
        TracekitError: They are not what they were, or cannot be read any more.
    """
    try:
        with InputFile(path, may_grow=True) as file:
            octets = file.read(start, size) if start + size <= file.size else b""
    except FileNotFoundError as e:
        raise TracekitError("was removed while it was open", path=path, hint=CHANGED_HINT) from e
    if len(octets) != size or zlib.crc32(octets) != checksum:
        what = f"changed while it was open: the {size} bytes at byte {start} are not what they were"
        raise TracekitError(what, path=path, hint=CHANGED_HINT)
    return octets
