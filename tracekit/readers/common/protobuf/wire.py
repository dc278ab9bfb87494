"""Small protobuf messages, one at a time and without a schema: headers, tables of contents, machine descriptions."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from tracekit.readers.common.damage import Damage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.files import Region, Window

    Value = int | memoryview

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
MAX_VARINT = 10
MORE = 0x80
_U64 = (1 << 64) - 1


def varint(data: memoryview | Region | Window, at: int) -> tuple[int, int]:
    """Read an unsigned number of up to 64 bits: its value and the place after it."""
    value = 0
    for i, octet in enumerate(data[at : at + MAX_VARINT]):
        value |= (octet % MORE) << 7 * i
        if octet < MORE:
            return value & _U64, at + i + 1
    raise Damage(f"a number at byte {at} does not end")


def delimited(data: memoryview | Region, at: int) -> tuple[memoryview, int]:
    """Read bytes that stand behind their length: the bytes and the place after them."""
    size, start = varint(data, at)
    if size > len(data) - start:
        raise Damage(f"{size} bytes are announced at byte {at}, {len(data) - start} are left")
    return data[start : start + size], start + size


def fields(data: memoryview) -> Iterator[tuple[int, Value]]:
    """Yield the fields of a message in order: number, and an unsigned integer or the bytes."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == VARINT:
            value, at = varint(data, at)
            yield key >> 3, value
        elif kind == DELIMITED:
            part, at = delimited(data, at)
            yield key >> 3, part
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
            if size > len(data) - at:
                raise Damage(f"a field of {size} bytes is cut off")
            yield key >> 3, data[at : at + size]
            at += size
        else:
            raise Damage(f"no field is of kind {kind}")


def signed(value: int) -> int:
    """Take an unsigned number of 64 bits as a signed one."""
    return value - (1 << 64) if value >> 63 else value


class Message:
    """A message taken apart; fields are asked for by number."""

    __slots__ = ("_fields",)

    def __init__(self, data: memoryview) -> None:
        self._fields: dict[int, list[Value]] = {}
        for number, value in fields(data):
            self._fields.setdefault(number, []).append(value)

    def numbers(self, field: int) -> list[int]:
        """Integers of a repeated field, as signed 64-bit numbers."""
        return [signed(v) for v in self._fields.get(field, ()) if isinstance(v, int)]

    def number(self, field: int) -> int | None:
        """The integer of a field; None if it is absent."""
        return next(iter(self.numbers(field)), None)

    def parts(self, field: int) -> list[memoryview]:
        """Bytes of a repeated field."""
        return [v for v in self._fields.get(field, ()) if isinstance(v, memoryview)]

    def part(self, field: int) -> memoryview:
        """The bytes of a field; empty if it is absent."""
        return next(iter(self.parts(field)), memoryview(b""))

    def text(self, field: int) -> str | None:
        """The text of a field, with bytes that are not UTF-8 replaced; None if it is absent."""
        found = self.parts(field)
        return bytes(found[0]).decode("utf-8", "replace") if found else None

    def real(self, field: int) -> float:
        """The double of a field; 0 if it is absent."""
        found = self.part(field)
        return float(struct.unpack("<d", found)[0]) if len(found) == struct.calcsize("<d") else 0.0

    def each(self, field: int) -> Iterator[Message]:
        """Take the messages of a repeated field apart one by one."""
        return map(Message, self.parts(field))

    def messages(self, field: int) -> list[Message]:
        """Messages of a repeated field."""
        return list(self.each(field))

    def message(self, field: int) -> Message:
        """The message of a field; an empty one if it is absent."""
        return Message(self.part(field))
