"""Read FlatBuffers tables, which hold the metadata of Arrow messages. Every offset is checked before it is used."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from tracekit.readers.common.damage import Damage

if TYPE_CHECKING:
    from collections.abc import Iterator

_OFFSET = struct.Struct("<I")
_TO_VTABLE = struct.Struct("<i")
_ENTRY = struct.Struct("<H")


class FlatTable:
    """A FlatBuffers table in a buffer, whose fields are accessed by number.

    Attributes:
        offset: Offset of the table in the buffer.
    """

    __slots__ = ("_data", "_vtable", "_vtable_size", "offset")

    def __init__(self, data: bytes, offset: int) -> None:
        self.offset = offset
        self._data = data
        self._vtable = offset - _read_number(data, offset, _TO_VTABLE)
        self._vtable_size = _read_number(data, self._vtable, _ENTRY)

    @classmethod
    def read_root_table(cls, data: bytes) -> FlatTable:
        """Return the root table of a buffer.

        Raises:
            Damage: The root table lies outside the buffer.
        """
        return cls(data, _read_number(data, 0, _OFFSET))

    def read_number(self, field: int, struct_format: str, default: int = 0) -> int:
        """Return the number that a field holds, or a default value if the field is absent.

        Args:
            field: Number of the field, counted from 0.
            struct_format: Format of the number, in the syntax of the module ``struct``.
            default: Value to return if the field is absent.

        Raises:
            Damage: The number lies outside the buffer.
        """
        at = self._find_field_offset(field)
        return default if at is None else _read_number(self._data, at, struct.Struct(struct_format))

    def read_nested_table(self, field: int) -> FlatTable | None:
        """Return the table that a field holds, or None if the field is absent.

        Raises:
            Damage: The table lies outside the buffer.
        """
        at = self._find_field_offset(field)
        return None if at is None else FlatTable(self._data, at + _read_number(self._data, at, _OFFSET))

    def iterate_structs(self, field: int, struct_format: str) -> Iterator[tuple[int, ...]]:
        """Return an iterator over the structs in a vector field. The iterator is empty if the field is absent.

        Args:
            field: Number of the field, counted from 0.
            struct_format: Format of one struct, in the syntax of the module ``struct``.

        Raises:
            Damage: The vector lies outside the buffer.
        """
        at = self._find_field_offset(field)
        if at is None:
            return iter(())
        at += _read_number(self._data, at, _OFFSET)
        start = at + _OFFSET.size
        stop = start + _read_number(self._data, at, _OFFSET) * struct.calcsize(struct_format)
        if stop > len(self._data):
            raise Damage(f"a vector at offset {at} extends beyond the end of its message of {len(self._data)} bytes")
        return struct.iter_unpack(struct_format, memoryview(self._data)[start:stop])

    def _find_field_offset(self, field: int) -> int | None:
        """Return the offset of the value of a field, or None if the field is absent."""
        entry = 2 * _ENTRY.size + field * _ENTRY.size
        if entry + _ENTRY.size > self._vtable_size:
            return None
        offset = _read_number(self._data, self._vtable + entry, _ENTRY)
        return self.offset + offset if offset else None


def _read_number(data: bytes, offset: int, struct_format: struct.Struct) -> int:
    """Return the number that begins at an offset and has the given binary format."""
    if not 0 <= offset <= len(data) - struct_format.size:
        raise Damage(f"a number at offset {offset} lies outside its message of {len(data)} bytes")
    number: int = struct_format.unpack_from(data, offset)[0]
    return number
