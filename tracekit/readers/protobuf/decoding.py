"""Many protobuf messages of one kind, decoded in step with numpy: one field of all of them at a time.

Messages of one kind have nearly the same fields in the same order. So one step looks at the next key of every message,
takes the lowest, and reads that field wherever it comes next; the others wait. The cost is a few array operations a
field, not a loop over messages. A step loads the eight bytes at each place at once: the key and all of a short number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracekit.readers.damage import Damage
from tracekit.readers.protobuf.wire import DELIMITED, FIXED32, FIXED64, MORE, VARINT

if TYPE_CHECKING:
    from collections.abc import Collection

Octets: TypeAlias = npt.NDArray[np.uint8]
Words: TypeAlias = npt.NDArray[np.uint64]
Places: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

WORD, SLACK = 8, 32
MAX_STEPS = 4096
MAX_LENGTH = np.uint64(1 << 40)
_ENDS = np.uint64(0x8080808080808080)
_BYTE, _KEY = np.uint64(0xFF), np.uint64(0xFFFF)
_MORE, _SEVEN = np.uint64(0x80), np.uint64(0x7F)
_FOLDS = (
    (0xFF, 0x007F007F007F007F, 0x7F007F007F007F00, 1),
    (0xFFFF, 0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
    (0xFFFFFFFF, 0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
)


class Buffer:
    """Bytes, and the eight-byte word that begins at each of them; zeros follow the last."""

    __slots__ = ("octets", "words")

    def __init__(self, size: int) -> None:
        self.octets: Octets = np.empty(size + SLACK, np.uint8)
        self.octets[size:] = 0
        self.words: Words = np.ndarray((size + SLACK - 8,), "<u8", self.octets.data, strides=(1,))


@dataclass(slots=True)
class Field:
    """One field of n messages.

    Attributes:
        values: n numbers, or n places where bytes begin; whatever stands where the field is absent.
        stops: n places where bytes end; None for numbers.
        valid: Where the field is present; None if everywhere.
    """

    values: Words
    stops: Places | None
    valid: Mask | None

    def rows(self) -> Places | None:
        """Rows that have the field; None if all."""
        return None if self.valid is None else np.flatnonzero(self.valid)

    def spans(self) -> tuple[Places, Places]:
        """Places where the bytes begin and end, of the rows that have the field."""
        if self.stops is None:
            raise Damage("a field holds a number instead of bytes")
        starts, stops = self.values.view(np.int64), self.stops
        return (starts, stops) if self.valid is None else (starts[self.valid], stops[self.valid])


def decode(buffer: Buffer, starts: Places, stops: Places, wanted: Collection[int]) -> dict[int, Field]:
    """Decode some fields of n messages.

    Args:
        buffer: Holds the messages.
        starts: n places where messages begin.
        stops: n places where they end; none of them beyond the buffer.
        wanted: Numbers of fields. Of a repeated field the last value counts.

    Returns:
        The fields that occur.

    Raises:
        Damage: A field reaches beyond its message, or is of no known kind.
    """
    return _Walk(buffer, starts, stops).run(frozenset(wanted)) if wanted else {}


def varints(buffer: Buffer, places: Places) -> tuple[Words, Places | int]:
    """Read numbers: n places in, n values and their n lengths in bytes out (one length if they are equal)."""
    return number_in(buffer, buffer.words[places], places, WORD)


class _Walk:
    """Where each message stands; finished ones are left out as the walk goes on."""

    def __init__(self, buffer: Buffer, starts: Places, stops: Places) -> None:
        self.buffer = buffer
        self.total = len(starts)
        self.rows: Places | None = None
        self.at = starts.copy()
        self.stops = stops
        self.found: dict[int, Field] = {}
        self._leave_finished()

    def run(self, wanted: frozenset[int]) -> dict[int, Field]:
        """Walk until every message is read or beyond the wanted fields."""
        last = max(wanted)
        for _ in range(MAX_STEPS):
            if not len(self.at):
                return self.found
            words = self.buffer.words[self.at]
            key, width, chosen = _next_key(words)
            if key >> 3 > last:
                return self.found
            self._step(words, key, width, chosen, wanted)
        raise Damage(f"messages of more than {MAX_STEPS} fields")

    def _step(self, words: Words, key: int, width: int, chosen: Places | None, wanted: frozenset[int]) -> None:
        at, stops = self.at, self.stops
        if chosen is not None:
            at, stops, words = at[chosen], stops[chosen], words[chosen]
        values, ends, after = self._read(at + width, words >> np.uint64(8 * width), key & 7, WORD - width)
        if (after > stops).any():
            raise Damage("a field reaches beyond its message")
        if key >> 3 in wanted:
            self._keep(key >> 3, values, ends, chosen)
        if chosen is None:
            self.at = after if ends is None else after.copy()
        else:
            self.at[chosen] = after
        self._leave_finished()

    def _read(self, at: Places, words: Words, kind: int, have: int) -> tuple[Words, Places | None, Places]:
        """Read one value of each message: numbers (or places), ends of bytes, and the places after it."""
        if kind == VARINT:
            values, lengths = number_in(self.buffer, words, at, have)
            return values, None, at + lengths
        if kind == DELIMITED:
            sizes, lengths = number_in(self.buffer, words, at, have)
            starts = at + lengths
            ends = starts + np.minimum(sizes, MAX_LENGTH).view(np.int64)
            return starts.view(np.uint64), ends, ends
        if kind == FIXED64:
            return self.buffer.words[at], None, at + 8
        if kind == FIXED32:
            return self.buffer.words[at] & np.uint64(0xFFFFFFFF), None, at + 4
        raise Damage(f"no field is of kind {kind}")

    def _keep(self, number: int, values: Words, ends: Places | None, chosen: Places | None) -> None:
        rows = self.rows if chosen is None else chosen if self.rows is None else self.rows[chosen]
        known = self.found.get(number)
        if rows is None:
            self.found[number] = Field(values, ends, None)
            return
        if known is None:
            stops = None if ends is None else np.zeros(self.total, np.int64)
            known = self.found[number] = Field(np.zeros(self.total, np.uint64), stops, np.zeros(self.total, np.bool_))
        if (known.stops is None) != (ends is None):
            raise Damage(f"field {number} holds both numbers and bytes")
        known.values[rows] = values
        if known.valid is not None:
            known.valid[rows] = True
        if known.stops is not None and ends is not None:
            known.stops[rows] = ends

    def _leave_finished(self) -> None:
        open_ = self.at < self.stops
        if not open_.all():
            kept = np.flatnonzero(open_)
            self.rows = kept if self.rows is None else self.rows[kept]
            self.at, self.stops = self.at[kept], self.stops[kept]


def _next_key(words: Words) -> tuple[int, int, Places | None]:
    """Find the lowest key among the next ones: key, its width in bytes, and which messages have it (None: all)."""
    first = int(words[0]) & 0xFFFF
    wide = bool(first & 0x80)
    if ((words & (_KEY if wide else _BYTE)) == np.uint64(first if wide else first & 0xFF)).all():
        return _plain(first) if wide else first & 0xFF, 1 + wide, None
    keys = words & _KEY
    keys = np.where(keys & _MORE, (keys & _SEVEN) | (keys >> np.uint64(8) << np.uint64(7)), keys & _BYTE)
    lowest = int(keys.min())
    if lowest >> 14:
        raise Damage("a field has a number beyond all known ones")
    return lowest, 1 + (lowest >= MORE), np.flatnonzero(keys == np.uint64(lowest))


def _plain(raw: int) -> int:
    """Return the key that two bytes encode."""
    if raw & 0x8000:
        raise Damage("a field has a number beyond all known ones")
    return raw & 0x7F | raw >> 8 << 7


def number_in(buffer: Buffer, words: Words, places: Places, have: int) -> tuple[Words, Places | int]:
    """Read numbers whose first ``have`` bytes are in words: n values, n lengths in bytes (one if all are equal)."""
    ends = ~words & _ENDS
    if have < WORD:
        ends &= np.uint64((1 << 8 * have) - 1)
    if not ends.all():
        return _long_numbers(buffer, places)
    upto = (ends - np.uint64(1)) ^ ends
    top = int(upto.max(initial=np.uint64(0)))
    if top >> 8 == 0:
        return words & _SEVEN, 1
    return _folded(words & upto & ~_ENDS, top), (np.bitwise_count(upto) >> 3).astype(np.int64)


def _long_numbers(buffer: Buffer, places: Places) -> tuple[Words, Places]:
    """Read numbers of up to ten bytes."""
    words = buffer.words[places]
    ends = ~words & _ENDS
    upto = (ends - np.uint64(1)) ^ ends
    values = _folded(words & upto & ~_ENDS, 1 << 63)
    lengths = (np.bitwise_count(upto) >> 3).astype(np.int64)
    longer = np.flatnonzero(ends == np.uint64(0))
    if len(longer):
        ninth, tenth = buffer.octets[places[longer] + 8], buffer.octets[places[longer] + 9]
        if (ninth & tenth & np.uint8(0x80)).any():
            raise Damage("a number does not end")
        values[longer] |= (ninth & np.uint8(0x7F)).astype(np.uint64) << np.uint64(56)
        ten = ninth >= np.uint8(0x80)
        values[longer] |= np.where(ten, tenth & np.uint8(1), np.uint8(0)).astype(np.uint64) << np.uint64(63)
        lengths[longer] = np.where(ten, 10, 9)
    return values, lengths


def _folded(groups: Words, top: int) -> Words:
    """Push groups of seven bits, one a byte, together; ``top`` covers every byte in use."""
    for covers, low, high, shift in _FOLDS:
        if top > covers:
            groups = (groups & np.uint64(low)) | ((groups & np.uint64(high)) >> np.uint64(shift))
    return groups


def cut(
    octets: np.ndarray[tuple[int], np.dtype[np.uint8]], edges: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> pa.Array:
    """Cut texts out of bytes: 2n ascending edges (start, end, start, end …) in, n texts out."""
    offsets = pa.py_buffer(edges.astype(np.int32))
    between = pa.Array.from_buffers(pa.binary(), max(0, len(edges) - 1), [None, offsets, pa.py_buffer(octets)])
    return between.take(pa.array(np.arange(0, len(between), 2)))
