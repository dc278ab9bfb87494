"""Decode and encode small protobuf messages without a schema, such as file headers and descriptions of machines."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from tracekit.readers.common.damage import Damage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.system.files import Region, Window

    Value = int | memoryview

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
MAX_VARINT = 10
MORE = 0x80
_U64 = (1 << 64) - 1


def read_varint(data: memoryview | Region | Window, offset: int) -> tuple[int, int]:
    """Return the unsigned 64-bit value of the varint at an offset, and the offset after the varint."""
    value = 0
    for i, byte in enumerate(data[offset : offset + MAX_VARINT]):
        value |= (byte % MORE) << 7 * i
        if byte < MORE:
            return value & _U64, offset + i + 1
    raise Damage(f"the varint at offset {offset} is too long or truncated")


def read_delimited(data: memoryview | Region, offset: int) -> tuple[memoryview, int]:
    """Return the bytes of the length-delimited value at an offset, and the offset after the value."""
    size, start = read_varint(data, offset)
    if size > len(data) - start:
        raise Damage(
            f"a length of {size} bytes is declared at offset {offset}, but only {len(data) - start} bytes follow"
        )
    return data[start : start + size], start + size


def read_fields(data: memoryview) -> Iterator[tuple[int, Value]]:
    """Yield the number and the value of each field of an encoded protobuf message.

    The value of a varint field is an unsigned integer. The value of any other field is its bytes.
    """
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        kind = key & 7
        if kind == VARINT:
            value, at = read_varint(data, at)
            yield key >> 3, value
        elif kind == DELIMITED:
            part, at = read_delimited(data, at)
            yield key >> 3, part
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
            if size > len(data) - at:
                raise Damage(f"a field of {size} bytes extends beyond the end of its message of {len(data)} bytes")
            yield key >> 3, data[at : at + size]
            at += size
        else:
            raise Damage(f"a field has the unknown wire type {kind}")


def convert_to_signed(value: int) -> int:
    """Convert an unsigned 64-bit number to the signed number with the same bits."""
    return value - (1 << 64) if value >> 63 else value


def encode_varint(value: int) -> bytes:
    """Encode a non-negative integer as a protobuf varint."""
    out = bytearray()
    while value >= MORE:
        out.append(value % MORE | MORE)
        value >>= 7
    return bytes((*out, value))


def encode_delimited(data: bytes) -> bytes:
    """Return bytes as a length-delimited protobuf value: their length as a varint, followed by the bytes."""
    return encode_varint(len(data)) + data


def encode_field(number: int, value: int | bytes) -> bytes:
    """Encode the key and the value of a protobuf field. Integers become varints, and bytes are length-delimited."""
    if isinstance(value, int):
        return encode_varint(number << 3 | VARINT) + encode_varint(value)
    return encode_varint(number << 3 | DELIMITED) + encode_delimited(value)


class Message:
    """A decoded protobuf message whose fields are accessed by number."""

    __slots__ = ("_fields",)

    def __init__(self, data: memoryview) -> None:
        self._fields: dict[int, list[Value]] = {}
        for number, value in read_fields(data):
            self._fields.setdefault(number, []).append(value)

    def int_values(self, field: int) -> list[int]:
        """Return the varint values of a repeated field as signed 64-bit numbers."""
        return [convert_to_signed(v) for v in self._fields.get(field, ()) if isinstance(v, int)]

    def int_value(self, field: int) -> int | None:
        """Return the first varint value of a field as a signed 64-bit number, or None if the field is absent."""
        return next(iter(self.int_values(field)), None)

    def bytes_values(self, field: int) -> list[memoryview]:
        """Return the values of a repeated field as bytes, skipping varints."""
        return [v for v in self._fields.get(field, ()) if isinstance(v, memoryview)]

    def bytes_value(self, field: int) -> memoryview:
        """Return the first value of a field as bytes, skipping varints, or empty bytes if the field is absent."""
        return next(iter(self.bytes_values(field)), memoryview(b""))

    def text(self, field: int) -> str | None:
        """Return the first value of a string field with invalid UTF-8 replaced, or None if the field is absent."""
        values = self.bytes_values(field)
        return bytes(values[0]).decode("utf-8", "replace") if values else None

    def double_value(self, field: int) -> float:
        """Return the value of a field of type double, or 0 if the field is absent or does not have 8 bytes."""
        value = self.bytes_value(field)
        return float(struct.unpack("<d", value)[0]) if len(value) == struct.calcsize("<d") else 0.0

    def iterate_messages(self, field: int) -> Iterator[Message]:
        """Return an iterator that decodes the messages in a repeated field one at a time."""
        return map(Message, self.bytes_values(field))

    def messages(self, field: int) -> list[Message]:
        """Return the decoded messages of a repeated field."""
        return list(self.iterate_messages(field))

    def message(self, field: int) -> Message:
        """Return the first message of a field in decoded form, or an empty message if the field is absent."""
        return Message(self.bytes_value(field))
