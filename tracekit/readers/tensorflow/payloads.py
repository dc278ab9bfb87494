"""Remove the values of constants and other large, unused fields from encoded graphs.

The graph is parsed where it is stored, in memory or in a file, and only the required fields are copied. Therefore, the
values of constants in a file are never loaded into memory.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.wire import DELIMITED, FIXED32, FIXED64, MORE, VARINT, encode_varint, read_varint
from tracekit.system.files import Window

if TYPE_CHECKING:
    from collections.abc import Iterator

    FieldLocation = tuple[int, int, int, int]

LARGE_BYTES = 1 << 28
"""Size in bytes above which the payloads of a graph are removed before it is decoded."""
SMALL_FIELD_BYTES = 1 << 12
"""Maximum size in bytes of fields that are always copied unchanged."""
_WIDTHS = {VARINT: 0, DELIMITED: 0, FIXED64: 8, FIXED32: 4}


class MessageKind(enum.Enum):
    """Types of protobuf messages that may contain the values of constants."""

    SAVED_MODEL = enum.auto()
    META_GRAPH = enum.auto()
    GRAPH = enum.auto()
    LIBRARY = enum.auto()
    FUNCTION = enum.auto()
    NODE = enum.auto()
    ATTRIBUTE = enum.auto()
    VALUE = enum.auto()
    LIST = enum.auto()
    TENSOR = enum.auto()
    INFO = enum.auto()


_NEEDED_FIELDS: dict[MessageKind, dict[int, MessageKind | None]] = {
    MessageKind.SAVED_MODEL: {2: MessageKind.META_GRAPH},
    MessageKind.META_GRAPH: {1: MessageKind.INFO, 2: MessageKind.GRAPH},
    MessageKind.INFO: {4: None, 5: None},
    MessageKind.GRAPH: {1: MessageKind.NODE, 2: MessageKind.LIBRARY, 4: None},
    MessageKind.LIBRARY: {1: MessageKind.FUNCTION},
    MessageKind.FUNCTION: {1: None, 3: MessageKind.NODE},
    MessageKind.NODE: {1: None, 2: None, 3: None, 4: None, 5: MessageKind.ATTRIBUTE},
    MessageKind.ATTRIBUTE: {1: None, 2: MessageKind.VALUE},
    MessageKind.VALUE: {1: MessageKind.LIST, 8: MessageKind.TENSOR, **dict.fromkeys((2, 7, 9, 10))},
    MessageKind.LIST: {8: MessageKind.TENSOR, **dict.fromkeys((2, 3, 4, 5, 6, 7, 9))},
    MessageKind.TENSOR: {2: None},
}
"""The fields that are copied even if they are large, by type of message and field number.

The value is the type of the submessage in the field, or None if the field cannot contain constants.
"""


def drop_unused_fields(data: memoryview | Window, message_kind: MessageKind) -> bytes:
    """Return an encoded message without its large, unused fields.

    If the message is in a file, only the required fields are loaded into memory.

    Raises:
        Damage: A field extends beyond its message, or has an invalid wire type.
    """
    return b"".join(_iterate_needed_bytes(data, message_kind))


def _iterate_needed_bytes(data: memoryview | Window, message_kind: MessageKind) -> Iterator[bytes | memoryview]:
    needed, end = _NEEDED_FIELDS[message_kind], 0
    for number, field_start, start, stop in _iterate_fields(data):
        if stop - start <= SMALL_FIELD_BYTES:
            continue
        yield data[end:field_start]
        end = stop
        submessage = needed.get(number)
        if submessage is not None:
            encoded_submessage = drop_unused_fields(_slice_window(data, start, stop), submessage)
            yield encode_varint(number << 3 | DELIMITED) + encode_varint(len(encoded_submessage))
            yield encoded_submessage
        elif number in needed:
            yield data[field_start:stop]
    yield data[end:]


def _slice_window(data: memoryview | Window, start: int, stop: int) -> memoryview | Window:
    return data.create_window(start, stop) if isinstance(data, Window) else data[start:stop]


def _iterate_fields(data: memoryview | Window) -> Iterator[FieldLocation]:
    """Yield a tuple for each field: its number, its start offset, and the start and end offsets of its value."""
    offset, end = 0, len(data)
    while offset < end:
        field_start = offset
        key, offset = _read_varint(data, offset)
        wire_type = key & 7
        if wire_type not in _WIDTHS:
            raise Damage(f"a field has an invalid wire type (offset {field_start} of {end})")
        size, start = _read_varint(data, offset) if wire_type in (VARINT, DELIMITED) else (0, offset)
        stop = start + (size if wire_type == DELIMITED else _WIDTHS[wire_type])
        if stop > end:
            raise Damage(f"a field extends beyond the end of its message (offset {field_start} of {end})")
        yield key >> 3, field_start, start, stop
        offset = stop


def _read_varint(data: memoryview | Window, offset: int) -> tuple[int, int]:
    """Decode the varint at an offset, and return its value and its end offset."""
    head = data[offset : offset + 2]
    if len(head) and head[0] < MORE:
        return head[0], offset + 1
    if len(head) > 1 and head[1] < MORE:
        return head[0] - MORE | head[1] << 7, offset + 2
    return read_varint(data, offset)
