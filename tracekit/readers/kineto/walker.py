"""Events taken apart in a sandbox, whose code is ``walk.wat``: for each event and wanted key a number or a text."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from tracekit.readers.common.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.readers.common.sandbox import Octets

Numbers: TypeAlias = npt.NDArray[np.int64]

SLOTS, ROWS = 64, 1 << 14
ENDED, MORE, FULL, STRANGE = range(4)
CAPACITY = 1 << 24
"""Bytes of JSON in memory at most: no event is longer."""
INPUT = 0xC00000
THOUSANDTHS, AS_TEXT = 1 << 8, 1 << 9
_KEYS, _KEY_COUNT, _TEXTS, _STARTS, _SIZES = 1024, 512, 0x4000, 0xC4000, 0x104000
_CELLS, _MARKS = 0x150000, 0x950000
_SLACK = 64
_PIECES = INPUT + CAPACITY + _SLACK
_MOST = 1 << 16
_ENDS = _PIECES + 8 * _MOST
_OUT = _ENDS + 4 * _MOST


class Walker(Sandbox):
    """Memory for some JSON and for what is found in it.

    Attributes:
        octets: The JSON.
        at: Place of what is not taken yet.
        end: End of the JSON.
        rows: Events found.
        far: Place up to which what is no event was looked at.
    """

    def __init__(self, keys: Mapping[tuple[int, str], int]) -> None:
        """Set it up.

        Args:
            keys: Slots by level (0 the event's own members, 1 its arguments) and key; 256 is added where numbers are
                counted in thousandths, 512 where they are left as text.
        """
        super().__init__(__package__, _OUT + CAPACITY, "an event reaches beyond its bytes")
        self.octets = self.memory[INPUT : INPUT + CAPACITY + _SLACK]
        self.at = self.end = self.rows = self.far = self._codes = 0
        for (level, key), slot in keys.items():
            self._want(level, key.encode(), slot)

    @property
    def values(self) -> Numbers:
        """Cells, by slot and row."""
        return self._words(_CELLS, SLOTS * ROWS).reshape(SLOTS, ROWS)

    @property
    def marks(self) -> Octets:
        """Marks of the cells, by slot and row: 1 a number, 2 a text, 3 another value as text."""
        return self.memory[_MARKS : _MARKS + SLOTS * ROWS].reshape(SLOTS, ROWS)

    def put(self, data: bytes) -> None:
        """Add JSON behind what is not taken yet, which moves to the front. There must be no rows."""
        rest = self.end - self.at
        self.octets[:rest] = self.octets[self.at : self.end].copy()
        self.octets[rest : rest + len(data)] = np.frombuffer(data, np.uint8)
        self.at, self.end = 0, rest + len(data)
        self.octets[self.end : self.end + _SLACK] = 0

    @property
    def room(self) -> int:
        """Bytes that can be added."""
        return CAPACITY - (self.end - self.at)

    def clear(self) -> None:
        """Forget the rows."""
        self.rows = self._codes = 0
        self.memory[_TEXTS : _TEXTS + 4 * _MOST] = 0
        self.memory[_MARKS : _MARKS + SLOTS * ROWS] = 0

    def events(self) -> int:
        """Take events apart, as many as are whole and as there is room for: why it ended."""
        frame = self.frame(INPUT + self.at, INPUT + self.end, self.rows, ROWS, self._codes, 0)
        result = self.call("events")
        self.at, self.rows, self._codes = int(frame[0]) - INPUT, int(frame[2]), int(frame[4])
        self.far = max(int(frame[5]) - INPUT, self.at)
        return result

    def skip(self, depth: int = 0, *, inside: bool = False) -> tuple[bool, int, bool]:
        """Go through a nested value or a text: whether it goes on, how deep it is there, and whether in a text."""
        frame = self.frame(INPUT + self.at, INPUT + self.end, depth, int(inside))
        on = bool(self.call("pass"))
        self.at = int(frame[0]) - INPUT
        return on, int(frame[2]), bool(frame[3])

    def texts(self) -> tuple[Octets, npt.NDArray[np.int32]]:
        """Return the numbered texts: their bytes end to end, and where each ends."""
        starts, sizes = (self.memory[p : p + 4 * self._codes].view(np.int32) for p in (_STARTS, _SIZES))
        return self.gather(starts.astype(np.int64) | ((starts + sizes).astype(np.int64) << 32))

    def gather(self, pieces: Numbers) -> tuple[Octets, npt.NDArray[np.int32]]:
        """Copy pieces together: n places (and above 32 bits the places behind) in; bytes, and n ends out."""
        self._words(_PIECES, len(pieces))[:] = pieces
        self.frame(len(pieces), _PIECES, _ENDS, _OUT)
        size = self.call("gather")
        ends = self.memory[_ENDS : _ENDS + 4 * len(pieces)].view(np.int32)
        return self.memory[_OUT : _OUT + size].copy(), ends.copy()

    def _want(self, level: int, key: bytes, slot: int) -> None:
        self.octets[: len(key)] = np.frombuffer(key, np.uint8)
        self.frame(INPUT, len(key), level, _OUT)
        self.call("hash")
        found = int(self.memory[_OUT : _OUT + 8].view(np.uint64)[0])
        table = self.memory[_KEYS : _KEYS + 16 * _KEY_COUNT].view(np.uint32).reshape(_KEY_COUNT, 4)
        row = found % _KEY_COUNT
        while table[row, 3]:
            row = (row + 1) % _KEY_COUNT
        table[row] = (found & 0xFFFFFFFF, found >> 32, len(key), slot + 1)

    def _words(self, place: int, count: int) -> Numbers:
        return self.memory[place : place + 8 * count].view(np.int64)
