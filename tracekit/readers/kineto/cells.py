"""What the walker found, as columns: n events in, n numbers or texts out."""

from __future__ import annotations

import functools
import json
import re
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common import columns as col
from tracekit.readers.kineto.keys import Slot

if TYPE_CHECKING:
    from collections import Counter

    from tracekit.readers.common.sandbox import Octets
    from tracekit.readers.kineto.walker import Numbers, Walker

ABSENT, NUMBER, TEXT, OTHER = range(4)
MAX_DIGITS = 40
_THOUSANDTHS = frozenset({Slot.START, Slot.DURATION})
_ESCAPE = re.compile(r'(\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))|\\')
_LOW, _HIGH = -(1 << 63), (1 << 63) - 1


class Cells:
    """Events that the walker holds; to be used before it goes on."""

    def __init__(self, walker: Walker, repaired: Counter[str]) -> None:
        self.rows = walker.rows
        self._walker = walker
        self._values, self._marks = walker.values, walker.marks
        self._repaired = repaired

    def values(self, slot: Slot) -> Numbers:
        """Cells of all events: numbers, or numbers of texts."""
        return self._values[slot, : self.rows]

    def marks(self, slot: Slot) -> Octets:
        """Marks of all events."""
        return self._marks[slot, : self.rows]

    def has(self, slot: Slot) -> bool:
        """Whether any event has the member."""
        return bool(self.marks(slot).any())

    def codes(self, slot: Slot) -> Numbers:
        """Numbers of texts of all events; -1 where there is none."""
        return np.where(self.marks(slot) == TEXT, self.values(slot), -1)

    def known(self, slot: Slot, names: pa.Array) -> Numbers:
        """Number the texts of a member as they stand in a list: -1 where there is none, -2 where it is not listed."""
        listed = pc.index_in(self.names, names).fill_null(-2).to_numpy(zero_copy_only=False)
        return np.append(listed, -1)[self.codes(slot)].astype(np.int64)

    def integers(self, slot: Slot, rows: Numbers) -> pa.Array:
        """Return a member as integers; null where it is absent or no number. Times are in thousandths."""
        marks = self.marks(slot)[rows]
        if not marks.any():
            return pa.nulls(len(rows), pa.int64())
        values = self.values(slot)[rows]
        strange = marks > NUMBER
        if strange.any():
            values, marks = self._parsed(slot, values, marks, strange)
        missing = marks == ABSENT
        return pa.array(values, pa.int64(), mask=missing if missing.any() else None)

    def texts(self, slot: Slot, rows: Numbers, *, other: bool = False) -> pa.DictionaryArray:
        """Return a member as texts; null where it is absent or no text, unless others are taken too, as they stand."""
        marks = self.marks(slot)[rows]
        missing = (marks != TEXT) & (marks != OTHER) if other else marks != TEXT
        if missing.all():
            return pa.nulls(len(rows), col.DICTIONARY)
        codes = pa.array(self.values(slot)[rows], pa.int64(), mask=missing)
        return col.compact(codes, self.names)

    def arguments(self, rows: Numbers) -> pa.Array:
        """Return the arguments as JSON: an empty object where there are none."""
        data, ends = self._walker.gather(np.where(self.marks(Slot.ARGS)[rows], self.values(Slot.ARGS)[rows], 0))
        return self._strings(data, ends)

    @functools.cached_property
    def names(self) -> pa.Array:
        """All numbered texts, without escapes."""
        data, ends = self._walker.texts()
        names = self._strings(data, ends)
        if not (data == ord("\\")).any():
            return names
        listed = names.to_pylist()
        return pa.array([self._unescaped(n) if "\\" in n else n for n in listed], pa.string())

    def _strings(self, data: Octets, ends: np.ndarray) -> pa.Array:
        offsets = np.concatenate([np.zeros(1, np.int32), ends])
        raw = pa.Array.from_buffers(pa.binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
        strings, broken = col.text(raw)
        self._repaired["UTF-8"] += broken
        return strings

    def _unescaped(self, text: str) -> str:
        fixed = _ESCAPE.sub(lambda m: m[1] or "\\\\", text)
        self._repaired["escapes"] += fixed != text
        try:
            made = json.loads(f'"{fixed}"', strict=False)
        except ValueError:
            return text
        return str(made).encode("utf-8", "replace").decode("utf-8")

    def _parsed(self, slot: Slot, values: Numbers, marks: Octets, strange: np.ndarray) -> tuple[Numbers, Octets]:
        """Make numbers of texts that hold one, and of numbers that the walker left as text."""
        codes, which = np.unique(values[strange], return_inverse=True)
        unit = 1000 if slot in _THOUSANDTHS else 1
        made = [integer(t, unit) for t in self.names.take(pa.array(codes)).to_pylist()]
        values, marks = values.copy(), marks.copy()
        values[strange] = np.array([m or 0 for m in made], np.int64)[which]
        marks[strange] = np.array([ABSENT if m is None else NUMBER for m in made], np.uint8)[which]
        return values, marks


def integer(text: str, unit: int = 1) -> int | None:
    """Read a number exactly, times a unit, rounded to an integer; None if it is none, or beyond 64 bits.

    A number from 2^63 to 2^64 is taken as its two's complement.
    """
    if len(text) > MAX_DIGITS:
        return None
    try:
        number = Decimal(text) * unit
        if not number.is_finite() or number.adjusted() > MAX_DIGITS:
            return None
        value = int(number.to_integral_value())
    except (ArithmeticError, ValueError):
        return None
    if _HIGH < value < 1 << 64 and unit == 1:
        value -= 1 << 64
    return value if _LOW <= value <= _HIGH else None
