"""Tables of FlatBuffers, in which Arrow describes its messages; every place is checked before it is looked at."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from tracekit.readers.common.damage import Damage

if TYPE_CHECKING:
    from collections.abc import Iterator

_OFFSET = struct.Struct("<I")
_TO_VTABLE = struct.Struct("<i")
_ENTRY = struct.Struct("<H")


class Table:
    """A table in some bytes; its fields are asked for by number.

    Attributes:
        at: Where it begins.
    """

    __slots__ = ("_data", "_vtable", "_vtable_size", "at")

    def __init__(self, data: bytes, at: int) -> None:
        self.at = at
        self._data = data
        self._vtable = at - _number(data, at, _TO_VTABLE)
        self._vtable_size = _number(data, self._vtable, _ENTRY)

    @classmethod
    def root(cls, data: bytes) -> Table:
        """Return the table at the root of some bytes.

        Raises:
            Damage: There is none.
        """
        return cls(data, _number(data, 0, _OFFSET))

    def number(self, field: int, form: str, default: int = 0) -> int:
        """Return a number, packed as ``struct`` calls it.

        Raises:
            Damage: It lies outside.
        """
        at = self._field(field)
        return default if at is None else _number(self._data, at, struct.Struct(form))

    def table(self, field: int) -> Table | None:
        """Return a table inside; None if it is absent.

        Raises:
            Damage: It lies outside.
        """
        at = self._field(field)
        return None if at is None else Table(self._data, at + _number(self._data, at, _OFFSET))

    def structs(self, field: int, form: str) -> Iterator[tuple[int, ...]]:
        """Yield the structs of a vector, packed as ``struct`` calls them; none if it is absent.

        Raises:
            Damage: They lie outside.
        """
        at = self._field(field)
        if at is None:
            return iter(())
        at += _number(self._data, at, _OFFSET)
        start = at + _OFFSET.size
        stop = start + _number(self._data, at, _OFFSET) * struct.calcsize(form)
        if stop > len(self._data):
            raise Damage(f"a vector at byte {at} of {len(self._data)} reaches beyond its message")
        return struct.iter_unpack(form, memoryview(self._data)[start:stop])

    def _field(self, field: int) -> int | None:
        """Return where a field stands; None if it is absent."""
        place = 2 * _ENTRY.size + field * _ENTRY.size
        if place + _ENTRY.size > self._vtable_size:
            return None
        offset = _number(self._data, self._vtable + place, _ENTRY)
        return self.at + offset if offset else None


def _number(data: bytes, at: int, form: struct.Struct) -> int:
    if not 0 <= at <= len(data) - form.size:
        raise Damage(f"a number at byte {at} of {len(data)} lies outside of its message")
    number: int = form.unpack_from(data, at)[0]
    return number
