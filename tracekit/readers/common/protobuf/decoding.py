"""Many protobuf messages of one kind, decoded into columns: a number or a place for each message and field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.walk import (
    COUNTS,
    FIELDS,
    KINDS,
    MAX_SLOTS,
    ROOM,
    SCRATCH,
    SLACK,
    SLOTS,
    Walk,
    complain,
)
from tracekit.readers.common.protobuf.wire import DELIMITED

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

Words: TypeAlias = npt.NDArray[np.uint64]
Places: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

WORD = 8
MAX_ROWS = (1 << 14) - 8
"""Messages walked through at a time: what is found of them stays in the processor's cache, columns apart."""
FAR_APART = 8
"""Texts are far apart when this many times as many bytes lie from the first to the last one."""
MAX_LENGTH = np.uint64(1 << 40)
_ABSENT = np.uint64(0)
_PLACES, _CELL = 2 * WORD, 2 * WORD + 1
"""Bytes of scratch a message (where it begins and ends), and further ones a field (value, end, mark)."""


class Buffer(Walk):
    """Bytes that hold messages, and the eight-byte word that begins at each of them."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.words: Words = np.ndarray((size + SLACK - WORD,), "<u8", self.octets.data, strides=(1,))


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
        wanted: Numbers of fields below 2048, 255 at most. Of a repeated field the last value counts.

    Returns:
        The fields that occur.

    Raises:
        Damage: A field reaches beyond its message, or is of no known kind.
    """
    numbers = sorted(wanted)
    if not numbers or not len(starts):
        return {}
    found = _Found(numbers, len(starts))
    rows = max(1, min(MAX_ROWS, ROOM // (_PLACES + _CELL * len(numbers))))
    for first in range(0, len(starts), rows):
        part = slice(first, min(first + rows, len(starts)))
        found.take(part, _Walk(buffer, numbers, starts[part], stops[part]))
    return found.fields()


def varints(buffer: Buffer, places: Places) -> tuple[Words, Places]:
    """Read numbers: n places in, n values and their n lengths in bytes out.

    Raises:
        Damage: A number does not end.
    """
    values, lengths = np.empty(len(places), np.uint64), np.empty(len(places), np.int64)
    rows = ROOM // (3 * WORD)
    for first in range(0, len(places), rows):
        part = slice(first, first + rows)
        n = len(places[part])
        at, found, after = (buffer.part(SCRATCH + k * n * WORD, n * WORD) for k in range(3))
        at.view(np.int64)[:] = places[part]
        buffer.frame(n, *(SCRATCH + k * n * WORD for k in range(3)), len(buffer.octets) - SLACK)
        complain(buffer.call("numbers"))
        values[part] = found.view(np.uint64)
        lengths[part] = after.view(np.int64)
    return values, lengths


class _Walk:
    """Some messages, walked through: what was found of each field, still in the memory of the sandbox."""

    def __init__(self, buffer: Buffer, numbers: Sequence[int], starts: Places, stops: Places) -> None:
        rows, slots = len(starts), len(numbers)
        if slots > MAX_SLOTS or numbers[-1] >= FIELDS or numbers[0] < 0:
            raise ValueError(f"fields {numbers[0]} to {numbers[-1]}, {slots} of them, cannot be decoded at once")
        at = np.cumsum([SCRATCH, *(WORD * rows for _ in range(2)), *(WORD * rows * slots for _ in range(2))]).tolist()
        buffer.part(at[0], WORD * rows).view(np.int64)[:] = starts
        buffer.part(at[1], WORD * rows).view(np.int64)[:] = stops
        marks = buffer.part(at[4], rows * slots)
        marks[:] = 0
        table = buffer.part(SLOTS, FIELDS)
        table[:] = 0
        table[list(numbers)] = np.arange(1, slots + 1)
        self.counts: npt.NDArray[np.int32] = buffer.part(COUNTS, 4 * slots).view(np.int32)
        self.kinds: npt.NDArray[np.int32] = buffer.part(KINDS, 4 * slots).view(np.int32)
        self.counts[:], self.kinds[:] = 0, 0
        buffer.frame(rows, *at, len(buffer.octets) - SLACK)
        complain(buffer.call("messages"))
        self.values: Words = buffer.part(at[2], WORD * rows * slots).view(np.uint64).reshape(slots, rows)
        self.stops: Places = buffer.part(at[3], WORD * rows * slots).view(np.int64).reshape(slots, rows)
        self.marks: Mask = marks.view(np.bool_).reshape(slots, rows)


class _Found:
    """What was found of some fields in all messages so far; memory is taken for fields that occur."""

    def __init__(self, numbers: Sequence[int], rows: int) -> None:
        self._numbers = numbers
        self._rows = rows
        self._fields: dict[int, Field] = {}
        self._counts = [0] * len(numbers)

    def take(self, part: slice, walk: _Walk) -> None:
        """Take over what a walk through a part of the messages found."""
        kinds = walk.kinds.tolist()
        for slot, count in enumerate(walk.counts.tolist()):
            if count:
                field = self._field(slot, kinds[slot])
                marks = walk.marks[slot]
                everywhere = count == len(marks)
                field.values[part] = walk.values[slot] if everywhere else np.where(marks, walk.values[slot], _ABSENT)
                if field.stops is not None:
                    field.stops[part] = walk.stops[slot] if everywhere else np.where(marks, walk.stops[slot], 0)
                if field.valid is not None:
                    field.valid[part] = marks
                self._counts[slot] += count

    def fields(self) -> dict[int, Field]:
        """Return the fields that occur."""
        for slot, number in enumerate(self._numbers):
            if self._counts[slot] == self._rows:
                self._fields[number].valid = None
        return self._fields

    def _field(self, slot: int, kinds: int) -> Field:
        number = self._numbers[slot]
        delimited = kinds == 1 << DELIMITED
        known = self._fields.get(number)
        if known is None:
            stops = np.zeros(self._rows, np.int64) if delimited else None
            known = Field(np.zeros(self._rows, np.uint64), stops, np.zeros(self._rows, np.bool_))
            self._fields[number] = known
        if (known.stops is not None) != delimited or (kinds >> DELIMITED & 1) != delimited:
            raise Damage(f"field {number} holds both numbers and bytes")
        return known


def cut(
    octets: np.ndarray[tuple[int], np.dtype[np.uint8]], edges: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> pa.Array:
    """Cut texts out of bytes: 2n ascending edges (start, end, start, end …) in, n texts out."""
    if len(edges) and FAR_APART * int((edges[1::2] - edges[::2]).sum()) < edges[-1] - edges[0]:
        octets, edges = _drawn_together(octets, edges)
    offsets = pa.py_buffer(edges.astype(np.int32))
    between = pa.Array.from_buffers(pa.binary(), max(0, len(edges) - 1), [None, offsets, pa.py_buffer(octets)])
    return between.take(pa.array(np.arange(0, len(between), 2)))


def _drawn_together(
    octets: np.ndarray[tuple[int], np.dtype[np.uint8]], edges: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> tuple[np.ndarray[tuple[int], np.dtype[np.uint8]], np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Copy the bytes of texts that lie far apart: to cut out takes memory for what is between them as well."""
    sizes = edges[1::2] - edges[::2]
    ends = np.cumsum(sizes)
    places = np.repeat(edges[::2] - (ends - sizes), sizes) + np.arange(ends[-1])
    return octets[places], np.stack((ends - sizes, ends), axis=1).reshape(-1)
