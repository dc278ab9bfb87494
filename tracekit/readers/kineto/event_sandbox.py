"""Run the JSON parser ``walk.wat`` in a sandbox: bytes in, a number or dictionary code per event and key out."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from tracekit.readers.common.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.readers.common.sandbox import Octets

Int64Array: TypeAlias = npt.NDArray[np.int64]

SLOTS, ROWS = 64, 1 << 14
ENDED, NEED_MORE, ROWS_FULL, INVALID = range(4)
CAPACITY = 1 << 24
"""Maximum number of bytes of JSON in the sandbox, and so of one event."""
INPUT = 0xC00000
THOUSANDTHS, AS_STRING = 1 << 8, 1 << 9
_KEYS, _KEY_COUNT, _STRINGS, _STARTS, _SIZES = 1024, 512, 0x4000, 0xC4000, 0x104000
_CELLS, _MARKS = 0x150000, 0x950000
_SLACK = 64
_RANGES = INPUT + CAPACITY + _SLACK
_MAX_STRINGS = 1 << 16
_ENDS = _RANGES + 8 * _MAX_STRINGS
_OUT = _ENDS + 4 * _MAX_STRINGS


class EventSandbox(Sandbox):
    """A sandbox that holds a section of JSON and the events parsed from it.

    Attributes:
        data: The JSON.
        offset: Offset of the first byte that has not been parsed.
        end: Offset of the end of the JSON.
        rows: Number of parsed events.
        scanned: Offset up to which the bytes of an invalid event were examined.
    """

    def __init__(self, keys: Mapping[tuple[int, str], int]) -> None:
        """Create the sandbox.

        Args:
            keys: Slot by level (0 for members of the event, 1 for members of its arguments) and key. 256 is added to
                slots
                whose numbers are parsed in thousandths, 512 to slots whose numbers are left as strings.
        """
        super().__init__(__package__, _OUT + CAPACITY, "an event reaches beyond its bytes")
        self.data = self.memory[INPUT : INPUT + CAPACITY + _SLACK]
        self.offset = self.end = self.rows = self.scanned = self._codes = 0
        for (level, key), slot in keys.items():
            self._register_key(level, key.encode(), slot)

    @property
    def values(self) -> Int64Array:
        """Numbers or dictionary codes, by slot and row."""
        return self._int64_view(_CELLS, SLOTS * ROWS).reshape(SLOTS, ROWS)

    @property
    def marks(self) -> Octets:
        """Types of the values, by slot and row: 0 missing, 1 number, 2 string, 3 another JSON value as a string."""
        return self.memory[_MARKS : _MARKS + SLOTS * ROWS].reshape(SLOTS, ROWS)

    def append(self, json: bytes) -> None:
        """Append JSON to the bytes that have not been parsed, which move to the front. There must be no rows."""
        rest = self.end - self.offset
        self.data[:rest] = self.data[self.offset : self.end].copy()
        self.data[rest : rest + len(json)] = np.frombuffer(json, np.uint8)
        self.offset, self.end = 0, rest + len(json)
        self.data[self.end : self.end + _SLACK] = 0

    @property
    def free_bytes(self) -> int:
        """Number of bytes that can be appended."""
        return CAPACITY - (self.end - self.offset)

    def clear_rows(self) -> None:
        """Remove all rows and dictionary strings."""
        self.rows = self._codes = 0
        self.memory[_STRINGS : _STRINGS + 4 * _MAX_STRINGS] = 0
        self.memory[_MARKS : _MARKS + SLOTS * ROWS] = 0

    def parse_events(self) -> int:
        """Parse all complete events that there is space for; return why parsing stopped."""
        frame = self.frame(INPUT + self.offset, INPUT + self.end, self.rows, ROWS, self._codes, 0)
        result = self.call("events")
        self.offset, self.rows, self._codes = int(frame[0]) - INPUT, int(frame[2]), int(frame[4])
        self.scanned = max(int(frame[5]) - INPUT, self.offset)
        return result

    def skip_value(self, depth: int = 0, *, in_string: bool = False) -> tuple[bool, int, bool]:
        """Advance past a nested value or a string.

        Returns:
            Whether the value is unfinished at the end of the JSON, its nesting depth there, and whether that is in a
            string.
        """
        frame = self.frame(INPUT + self.offset, INPUT + self.end, depth, int(in_string))
        unfinished = bool(self.call("pass"))
        self.offset = int(frame[0]) - INPUT
        return unfinished, int(frame[2]), bool(frame[3])

    def strings(self) -> tuple[Octets, npt.NDArray[np.int32]]:
        """Return the dictionary: the bytes of its strings end to end, and where each ends."""
        starts, sizes = (self.memory[p : p + 4 * self._codes].view(np.int32) for p in (_STARTS, _SIZES))
        return self.gather(starts.astype(np.int64) | ((starts + sizes).astype(np.int64) << 32))

    def gather(self, ranges: Int64Array) -> tuple[Octets, npt.NDArray[np.int32]]:
        """Concatenate ranges of bytes: n ranges in, their bytes and n ends out.

        A range is one integer, its start in the lower and its end in the upper 32 bits.
        """
        self._int64_view(_RANGES, len(ranges))[:] = ranges
        self.frame(len(ranges), _RANGES, _ENDS, _OUT)
        size = self.call("gather")
        ends = self.memory[_ENDS : _ENDS + 4 * len(ranges)].view(np.int32)
        return self.memory[_OUT : _OUT + size].copy(), ends.copy()

    def _register_key(self, level: int, key: bytes, slot: int) -> None:
        self.data[: len(key)] = np.frombuffer(key, np.uint8)
        self.frame(INPUT, len(key), level, _OUT)
        self.call("hash")
        key_hash = int(self.memory[_OUT : _OUT + 8].view(np.uint64)[0])
        table = self.memory[_KEYS : _KEYS + 16 * _KEY_COUNT].view(np.uint32).reshape(_KEY_COUNT, 4)
        row = key_hash % _KEY_COUNT
        while table[row, 3]:
            row = (row + 1) % _KEY_COUNT
        table[row] = (key_hash & 0xFFFFFFFF, key_hash >> 32, len(key), slot + 1)

    def _int64_view(self, offset: int, count: int) -> Int64Array:
        return self.memory[offset : offset + 8 * count].view(np.int64)
