"""Edit single fields of encoded protobuf messages, leaving the bytes of all other fields unchanged."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.wire import DELIMITED, FIXED32, FIXED64, MAX_VARINT, MORE, VARINT, read_varint

if TYPE_CHECKING:
    from collections.abc import Iterator

Edit: TypeAlias = Callable[[bytes], bytes]
"""A function that takes the old value of a field and returns the new value. Numbers are passed as encoded bytes."""

MAX_FIELDS = 1 << 21
_SIZES = {FIXED64: 8, FIXED32: 4}
_NUMBER = re.compile(rb"[\x80-\xff]{0,%d}[\0-\x7f]" % (MAX_VARINT - 1))


class FieldSpan(NamedTuple):
    """The location of a field in an encoded protobuf message.

    Attributes:
        number: Field number.
        kind: Wire type.
        start: Offset of the key.
        value_start: Offset of the value, after the key and the length.
        end: Offset after the value.
    """

    number: int
    kind: int
    start: int
    value_start: int
    end: int


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


def iterate_field_spans(data: bytes) -> Iterator[FieldSpan]:
    """Yield the location of each field in an encoded message, in ascending order of the offsets.

    Raises:
        Damage: The bytes are not a valid message, or have more than ``MAX_FIELDS`` fields.
    """
    view = memoryview(data)
    at, end = 0, len(data)
    for _ in range(MAX_FIELDS):
        if at >= end:
            return
        part = locate_field(data, view, at)
        yield part
        at = part.end
    raise Damage(f"a message has more than {MAX_FIELDS} fields, which tracekit does not support")


def locate_field(data: bytes, view: memoryview, offset: int) -> FieldSpan:
    """Return the location of the field that begins at an offset of an encoded message.

    Args:
        data: The encoded message.
        view: A view of the same bytes.
        offset: Offset of the key of the field.

    Raises:
        Damage: No valid field begins at the offset.
    """
    key, start = _read_varint(data, view, offset)
    kind = key & 7
    if kind == DELIMITED:
        size, start = _read_varint(data, view, start)
        stop = start + size
    elif kind == VARINT:
        stop = _find_varint_end(data, start)
    elif kind in _SIZES:
        stop = start + _SIZES[kind]
    else:
        raise Damage(f"a field has the unknown wire type {kind}")
    if stop > len(data):
        raise Damage(f"a field at offset {offset} extends beyond the end of its message of {len(data)} bytes")
    return FieldSpan(key >> 3, kind, offset, start, stop)


def create_message_editor(edits: Mapping[int, Edit]) -> Edit:
    """Return a function that edits length-delimited fields of an encoded message.

    Args:
        edits: For each field number, a function that takes the old value of the field and returns the new value.
            Fields with other numbers are unchanged.
    """

    def edit_field(span: FieldSpan, value: bytes) -> bytes:
        return edits[span.number](value) if span.kind == DELIMITED and span.number in edits else value

    return lambda data: edit_message(data, edit_field)


def edit_message(data: bytes, edit: Callable[[FieldSpan, bytes], bytes]) -> bytes:
    """Return an encoded message after replacing the value of each field with the result of a function.

    Args:
        data: The encoded message.
        edit: Function that is called with the location and the value of each field, and returns the new value.
    """
    out: list[bytes] = []
    copied = 0
    for part in iterate_field_spans(data):
        value = data[part.value_start : part.end]
        edited = edit(part, value)
        if edited != value:
            is_delimited = part.kind == DELIMITED
            head = encode_field(part.number, edited) if is_delimited else data[part.start : part.value_start] + edited
            out += (data[copied : part.start], head)
            copied = part.end
    return b"".join((*out, data[copied:])) if out else data


def _read_varint(data: bytes, view: memoryview, offset: int) -> tuple[int, int]:
    """Return the value of the varint at an offset, and the offset after the varint.

    Varints of one or two bytes, which are the most frequent, are decoded here, because that is faster than calling
    ``wire.read_varint``.
    """
    if offset + 1 < len(data):
        first, second = data[offset], data[offset + 1]
        if first < MORE:
            return first, offset + 1
        if second < MORE:
            return first % MORE | second << 7, offset + 2
    return read_varint(view, offset)


def _find_varint_end(data: bytes, offset: int) -> int:
    """Return the offset after the varint that begins at an offset."""
    match = _NUMBER.match(data, offset)
    if match is None:
        raise Damage(f"the varint at offset {offset} is too long or truncated")
    return match.end()
