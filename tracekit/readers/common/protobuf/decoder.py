"""The sandbox that decodes Protocol Buffers: the memory layout, functions and result codes of ``native/protobuf.c``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.native.program import Program
from tracekit.native.sandbox import Sandbox
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.wire import DELIMITED, FIXED32, FIXED64, VARINT

if TYPE_CHECKING:
    from tracekit.native.sandbox import Bytes

SLOTS = 4096
"""Offset of the slot table, which has one byte per field number: the slot plus 1, or 0 for fields to skip.

The slot of a field is its index among the fields to decode.
"""
COUNTS, WIRE_TYPES = 8192, 12288
"""Offsets of two tables with 32 bits per slot: the number of messages with the field, and a bit mask of wire types."""
SCRATCH = 16384
"""Offset of the input and output arrays of a function."""
BUFFER = 1 << 22
"""Offset of the messages."""
SCRATCH_BYTES = BUFFER - SCRATCH
SLACK = 32
"""Number of zero bytes after the messages, so that eight bytes can be read at any offset."""
MAX_SLOTS, FIELDS = 255, 2048

OVERRUN, FIELD_NUMBER, WIRE_TYPE, BROKEN_CHAIN, EVENT_OVERRUN, TOO_MANY, FULL = range(1, 8)
"""Result codes of the functions. The result 0 means success.

The result ``FULL`` means that the output arrays are full. The next call continues where the function stopped.
"""

EVENT_TAG, GENERIC_TAG, TYPE_TAG = 0x0A, 0x12, 0x08
"""Protobuf keys in the event blocks of nsys reports: of an event, of a generic event, and of the type of an event."""
GENERIC, UNKNOWN = 0xFFFF, 0xFFFE
"""Kind of all generic events, and kind of the events whose payload field or type is out of range."""
FIRST_PAYLOAD, PAYLOADS, TYPES = 96, 64, 256
"""Lowest field number of a payload, number of payload fields, and number of event types.

Each pair of a payload field and an event type is one kind.
"""

_MESSAGES = {
    OVERRUN: "a field extends beyond the end of its message",
    FIELD_NUMBER: f"a field has a number of {FIELDS} or more",
    WIRE_TYPE: "a field has an unknown wire type",
    EVENT_OVERRUN: "the payload of an event extends beyond the end of the event",
}
PROGRAM = Program(
    "protobuf",
    {
        "messages": ("rows", "starts", "stops", "values", "ends", "present", "limit", "repeated"),
        "varints": ("rows", "offsets", "values", "lengths", "limit"),
        "occurrences": (
            *("messages", "starts", "stops", "rows", "begins", "ends", "slots", "limit", "capacity"),
            *("message", "offset", "count"),
        ),
        "entries": (
            *("blocks", "edges", "starts", "sizes", "kinds", "bounds", "capacity", "max_entries"),
            *("block", "offset", "count", "in_block"),
        ),
        "distinct": (
            *("rows", "starts", "stops", "codes", "first_rows", "table", "mask", "max_entries", "limit"),
            *("next_code", "entries"),
        ),
    },
    {
        "SLOTS": SLOTS,
        "COUNTS": COUNTS,
        "WIRE_TYPES": WIRE_TYPES,
        "BUFFER": BUFFER,
        "VARINT": VARINT,
        "FIXED64": FIXED64,
        "DELIMITED": DELIMITED,
        "FIXED32": FIXED32,
        "OVERRUN": OVERRUN,
        "FIELD_NUMBER": FIELD_NUMBER,
        "WIRE_TYPE": WIRE_TYPE,
        "BROKEN_CHAIN": BROKEN_CHAIN,
        "EVENT_OVERRUN": EVENT_OVERRUN,
        "TOO_MANY": TOO_MANY,
        "FULL": FULL,
        "EVENT_TAG": EVENT_TAG,
        "GENERIC_TAG": GENERIC_TAG,
        "TYPE_TAG": TYPE_TAG,
        "GENERIC": GENERIC,
        "UNKNOWN": UNKNOWN,
        "FIRST_PAYLOAD": FIRST_PAYLOAD,
        "PAYLOADS": PAYLOADS,
        "TYPES": TYPES,
        "TRIES": 16,
    },
)


class DecoderSandbox(Sandbox):
    """A sandbox that decodes protobuf messages in its memory.

    Attributes:
        data: The bytes of the messages, followed by zeros.
        size: Size of the messages in bytes.
    """

    def __init__(self, size: int) -> None:
        super().__init__(PROGRAM, BUFFER + size + SLACK, lambda: Damage(format_error_message(OVERRUN)))
        self.size = size
        self.data: Bytes = self.bytes(BUFFER, size + SLACK)


def check_result_code(result_code: int) -> None:
    """Raise ``Damage`` if the result code of a sandbox function reports a failure.

    Raises:
        Damage: The result code is not 0.
    """
    if result_code:
        raise Damage(format_error_message(result_code))


def format_error_message(result_code: int) -> str:
    """Return the error message for a nonzero result code of a sandbox function."""
    return _MESSAGES[result_code]
