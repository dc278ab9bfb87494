"""Messages changed in a few fields: all others stay as they are, byte for byte."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.wire import DELIMITED, FIXED32, FIXED64, MAX_VARINT, MORE, VARINT, varint

if TYPE_CHECKING:
    from collections.abc import Iterator

Edit: TypeAlias = Callable[[bytes], bytes]
"""What is to become of the value of a field; of a number, of the bytes that encode it."""

MAX_PARTS = 1 << 21
_SIZES = {FIXED64: 8, FIXED32: 4}
_NUMBER = re.compile(rb"[\x80-\xff]{0,%d}[\0-\x7f]" % (MAX_VARINT - 1))


class Part(NamedTuple):
    """A field of a message: its number and kind, where it begins, and where its value begins and ends."""

    number: int
    kind: int
    begin: int
    start: int
    end: int


def encoded(value: int) -> bytes:
    """Encode a number."""
    out = bytearray()
    while value >= MORE:
        out.append(value % MORE | MORE)
        value >>= 7
    return bytes((*out, value))


def counted(data: bytes) -> bytes:
    """Put the length before bytes."""
    return encoded(len(data)) + data


def field(number: int, value: int | bytes) -> bytes:
    """Encode a field."""
    if isinstance(value, int):
        return encoded(number << 3 | VARINT) + encoded(value)
    return encoded(number << 3 | DELIMITED) + counted(value)


def parts(data: bytes) -> Iterator[Part]:
    """Yield the fields of a message in order.

    Raises:
        Damage: It is none.
    """
    view = memoryview(data)
    at, end = 0, len(data)
    for _ in range(MAX_PARTS):
        if at >= end:
            return
        part = part_at(data, view, at)
        yield part
        at = part.end
    raise Damage(f"a message of more than {MAX_PARTS} fields")


def part_at(data: bytes, view: memoryview, at: int) -> Part:
    """Return the field of a message that begins at a place.

    Raises:
        Damage: No field begins there.
    """
    key, start = _number(data, view, at)
    kind = key & 7
    if kind == DELIMITED:
        size, start = _number(data, view, start)
        stop = start + size
    elif kind == VARINT:
        stop = _end_of_number(data, start)
    elif kind in _SIZES:
        stop = start + _SIZES[kind]
    else:
        raise Damage(f"no field is of kind {kind}")
    if stop > len(data):
        raise Damage(f"a field at byte {at} reaches beyond its message of {len(data)} bytes")
    return Part(key >> 3, kind, at, start, stop)


def within(edits: Mapping[int, Edit]) -> Edit:
    """Return the edit of a message that edits some of its fields; numbers stay."""

    def edit(part: Part, value: bytes) -> bytes:
        return edits[part.number](value) if part.kind == DELIMITED and part.number in edits else value

    return lambda data: edited(data, edit)


def edited(data: bytes, edit: Callable[[Part, bytes], bytes]) -> bytes:
    """Edit the fields of a message; what becomes no other value is not encoded anew."""
    out: list[bytes] = []
    kept = 0
    for part in parts(data):
        value = data[part.start : part.end]
        made = edit(part, value)
        if made != value:
            head = field(part.number, made) if part.kind == DELIMITED else data[part.begin : part.start] + made
            out += (data[kept : part.begin], head)
            kept = part.end
    return b"".join((*out, data[kept:])) if out else data


def _number(data: bytes, view: memoryview, at: int) -> tuple[int, int]:
    """Read a number; most are of one or two bytes."""
    if at + 1 < len(data):
        first, second = data[at], data[at + 1]
        if first < MORE:
            return first, at + 1
        if second < MORE:
            return first % MORE | second << 7, at + 2
    return varint(view, at)


def _end_of_number(data: bytes, at: int) -> int:
    match = _NUMBER.match(data, at)
    if match is None:
        raise Damage(f"a number at byte {at} does not end")
    return match.end()
