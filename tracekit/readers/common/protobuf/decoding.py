"""Decode many protobuf messages of one type. Each field becomes a column with a number or byte range per message."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.native.program import Program
from tracekit.native.sandbox import Sandbox
from tracekit.readers.common import columns as col
from tracekit.readers.common.damage import Damage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.system.files import Region, Window

    Value = int | memoryview
    from collections.abc import Sequence

    Int32Array: TypeAlias = npt.NDArray[np.int32]
    from collections.abc import Collection

    from tracekit.native.sandbox import Bytes

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
MAX_VARINT = 10
MORE = 0x80
_U64 = (1 << 64) - 1
MAX_ROWS_OF_OCCURRENCES = 1 << 14
_BYTES_PER_MESSAGE, _OCCURRENCE_BYTES = 16, 13
"""Bytes of scratch memory per message (start and end offset), and per occurrence (message index, start, end, slot)."""
_NO_OCCURRENCES = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.uint8))
_OccurrenceBatch = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8]]
MAX_ROWS_OF_STRINGS = 1 << 14
SLOTS = 4096
"""Offset of the slot table, which has one byte per field number: the slot plus 1, or 0 for fields to skip.

The slot of a field is its index among the fields to decode.
"""
COUNTS, WIRE_TYPES = 8192, 12288
"""Offsets of two tables with 32 bits per slot: the number of messages with the field, and a bit mask of wire types."""
SCRATCH = 16384
"""Offset of the input and output arrays of a function."""
STRINGS, MAX_STRINGS, STRING_BYTES = 1 << 22, 1 << 19, 16
"""Offset of the hash table of strings, its maximum number of entries, and the size of an entry in bytes."""
BUFFER = STRINGS + MAX_STRINGS * STRING_BYTES
"""Offset of the messages."""
SCRATCH_BYTES = STRINGS - SCRATCH
SLACK = 32
"""Number of zero bytes after the messages, so that eight bytes can be read at any offset."""
MAX_SLOTS, FIELDS = 255, 2048
OVERRUN, FIELD_NUMBER, WIRE_TYPE, BROKEN_CHAIN, EVENT_OVERRUN, TOO_MANY, FULL = range(1, 8)
BYTES_INSTEAD_OF_NUMBER, NUMBER_INSTEAD_OF_BYTES = 8, 9
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
    FIELD_NUMBER: "a field has a number of 2^29 or more",
    WIRE_TYPE: "a field has an unknown wire type",
    EVENT_OVERRUN: "the payload of an event extends beyond the end of the event",
    BYTES_INSTEAD_OF_NUMBER: "a field holds bytes instead of a number",
    NUMBER_INSTEAD_OF_BYTES: "a field holds a number instead of bytes",
}
INT32, INT64, BYTES, CHAIN, RANK = range(5)
"""Kinds of columns, which ``rows.ColumnKind`` describes."""
OTHER_VALUE, ABSENT = 254, 255
"""Indices in a table of 256 truth values: of all values from 254 on, and of an absent field."""
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
            *("rows", "starts", "stops", "hashes", "codes", "first_rows", "table", "mask", "limit"),
            *("next_code", "entries"),
        ),
        "rows": ("messages", "starts", "stops", "types", "layout", "limit", "message", "stamp"),
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
        "TRIES": 64,
        "FIELDS": FIELDS,
        "BYTES_INSTEAD_OF_NUMBER": BYTES_INSTEAD_OF_NUMBER,
        "NUMBER_INSTEAD_OF_BYTES": NUMBER_INSTEAD_OF_BYTES,
        "INT32": INT32,
        "INT64": INT64,
        "BYTES": BYTES,
        "CHAIN": CHAIN,
        "RANK": RANK,
        "OTHER_VALUE": OTHER_VALUE,
        "ABSENT": ABSENT,
    },
)
UInt64Array: TypeAlias = npt.NDArray[np.uint64]
Int64Array: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
WORD = 8
MAX_ROWS = (1 << 14) - 8
"""Number of messages that are decoded at a time, so that the result stays in the processor's cache.

The number is not a power of two, so that the columns do not compete for the same cache sets.
"""
MAX_GAP_FACTOR = 32
"""Strings are copied to a new buffer if the range from the first to the last exceeds this many times their size."""
MAX_LENGTH = np.uint64(1 << 40)
_ABSENT = np.uint64(0)
_MESSAGE_BYTES, _FIELD_BYTES = 2 * WORD, 2 * WORD + 1
"""Bytes of scratch memory per message (start and end offset), and per field of a message (value, end, presence)."""


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


@dataclass(frozen=True, slots=True)
class Occurrences:
    """The occurrences of one field in many protobuf messages. Each array has one element per occurrence.

    Attributes:
        rows: Index of the message that contains each occurrence, in ascending order.
        starts: Start offset of the bytes of each occurrence.
        stops: End offset of the bytes of each occurrence.
    """

    rows: Int64Array
    starts: Int64Array
    stops: Int64Array

    def __len__(self) -> int:
        return len(self.rows)


def find_occurrences(
    buffer: Buffer, starts: Int64Array, stops: Int64Array, fields: Sequence[int], max_occurrences: int | None = None
) -> list[Occurrences]:
    """Find all occurrences of the given length-delimited fields in many protobuf messages.

    Args:
        buffer: Buffer that holds the messages.
        starts: Start offset of each message.
        stops: End offset of each message, within the buffer.
        fields: Field numbers below 2048. Occurrences with a numeric value are ignored.
        max_occurrences: Maximum number of occurrences of all fields together, or None for no limit.

    Returns:
        The occurrences of each field, in the order of ``fields``.

    Raises:
        Damage: A field extends beyond the end of its message or has an unknown wire type, or there are too many
            occurrences.
    """
    if not 0 < len(fields) <= MAX_SLOTS:
        raise ValueError(f"{len(fields)} fields were requested, but 1 to {MAX_SLOTS} fields are allowed")
    unsupported = [number for number in fields if not 0 < number < FIELDS]
    if unsupported:
        raise ValueError(f"field numbers from 1 to {FIELDS - 1} are supported, but not {unsupported}")
    table = buffer.bytes(SLOTS, FIELDS)
    table[:] = 0
    table[list(fields)] = np.arange(1, len(fields) + 1)
    batches = [_NO_OCCURRENCES]
    count = 0
    for batch in _find_occurrence_batches(buffer, starts, stops):
        batches.append(batch)
        count += len(batch[0])
        if max_occurrences is not None and count > max_occurrences:
            raise Damage(
                f"the repeated fields of {len(starts)} messages have more than {max_occurrences} values in total, "
                "which tracekit does not support"
            )
    rows, begins, ends, slots = (np.concatenate(column) for column in zip(*batches, strict=True))
    by_field = (np.flatnonzero(slots == slot) for slot in range(len(fields)))
    return [Occurrences(rows[i], begins[i], ends[i]) for i in by_field]


def find_complete_occurrences(buffer: Buffer, size: int, field: int) -> tuple[Occurrences, int]:
    """Find the occurrences of a length-delimited field in a message that is not complete yet.

    Args:
        buffer: Buffer that begins with the message.
        size: Number of bytes of the message that are in the buffer.
        field: Number of the field.

    Returns:
        The occurrences in the bytes of all complete fields, and the offset of the end of these fields.

    Raises:
        Damage: A field has an unknown wire type.
    """
    table = buffer.bytes(SLOTS, FIELDS)
    table[:] = 0
    table[field] = 1
    end, batches = size, [_NO_OCCURRENCES]
    try:
        for batch in _find_occurrence_batches(buffer, np.zeros(1, np.int64), np.full(1, size)):
            batches.append(batch)  # noqa: PERF402 - the batches before an error are kept
    except _IncompleteFieldError as e:
        end = e.offset
    rows, begins, ends, _ = (np.concatenate(column) for column in zip(*batches, strict=True))
    return Occurrences(rows, begins, ends), end


class _IncompleteFieldError(Damage):
    """Error that is raised if a field extends beyond the end of its message.

    Attributes:
        offset: Offset of the field.
    """

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


def _find_occurrence_batches(buffer: Buffer, starts: Int64Array, stops: Int64Array) -> Iterator[_OccurrenceBatch]:
    """Yield the message indices, start offsets, end offsets and field indices of the occurrences, in batches.

    The occurrences before a field that extends beyond the end of its message are yielded before the error.
    """
    for first in range(0, len(starts), MAX_ROWS_OF_OCCURRENCES):
        rows = min(MAX_ROWS_OF_OCCURRENCES, len(starts) - first)
        after = SCRATCH + _BYTES_PER_MESSAGE * rows
        room = (SCRATCH + SCRATCH_BYTES - after) // _OCCURRENCE_BYTES
        at = [SCRATCH, SCRATCH + 8 * rows, *(after + 4 * room * k for k in range(4))]
        for place, edges in zip(at, (starts, stops), strict=False):
            buffer.array(place, rows, np.int64)[:] = edges[first : first + rows]
        arrays = dict(zip(("starts", "stops", "rows", "begins", "ends", "slots"), at, strict=True))
        result = buffer.call("occurrences", messages=rows, limit=buffer.size, capacity=room, **arrays)
        while True:
            n = buffer.parameter("occurrences", "count")
            numbers = [buffer.array(place, n, np.uint32).astype(np.int64) for place in at[2:5]]
            yield numbers[0] + first, numbers[1], numbers[2], buffer.bytes(at[5], n).copy()
            if result not in (0, FULL):
                offset = max(0, buffer.parameter("occurrences", "offset") - BUFFER)
                message = f"{format_error_message(result)} (offset {offset} of {buffer.size})"
                raise _IncompleteFieldError(message, offset) if result == OVERRUN else Damage(message)
            if not result:
                break
            result = buffer.call("occurrences")


def encode_distinct_strings(buffer: Buffer, starts: Int64Array, stops: Int64Array) -> tuple[Int32Array, Int64Array]:
    """Assign a number to each distinct string in a buffer, from 0 in the order in which the strings first occur.

    Args:
        buffer: Buffer that holds the strings.
        starts: Start offset of each string.
        stops: End offset of each string.

    Returns:
        An array with the number of each string, and an array with the index of the first string that has each number.
        If there are hundreds of thousands of distinct strings, or if their hashes collide, equal strings may get
        different numbers.

    Raises:
        Damage: An offset is beyond the end of the buffer.
    """
    n = min(MAX_ROWS_OF_STRINGS, len(starts))
    at = [SCRATCH + 8 * n * k for k in range(4)] + [SCRATCH + 28 * n]
    arrays = dict(zip(("starts", "stops", "hashes", "codes", "first_rows"), at, strict=True))
    entries = min(MAX_STRINGS, 1 << (2 * len(starts)).bit_length())
    buffer.bytes(STRINGS, STRING_BYTES * entries)[:] = 0
    codes = np.empty(len(starts), np.int32)
    first_rows: list[Int64Array] = [np.empty(0, np.int64)]
    count = used = 0
    for first in range(0, len(starts), MAX_ROWS_OF_STRINGS):
        part = slice(first, min(first + MAX_ROWS_OF_STRINGS, len(starts)))
        rows = part.stop - first
        buffer.array(at[0], rows, np.int64)[:] = starts[part]
        buffer.array(at[1], rows, np.int64)[:] = stops[part]
        table = {"table": STRINGS, "mask": entries - 1, "entries": used}
        check_result_code(buffer.call("distinct", rows=rows, limit=buffer.size, next_code=count, **arrays, **table))
        codes[part] = buffer.array(at[3], rows, np.int32)
        new = buffer.parameter("distinct", "next_code") - count
        first_rows.append(first + buffer.array(at[4], new, np.int32).astype(np.int64))
        count, used = count + new, buffer.parameter("distinct", "entries")
    return codes, np.concatenate(first_rows)


def dictionary_encode(buffer: Buffer, starts: Int64Array, stops: Int64Array) -> pa.DictionaryArray:
    """Return strings in a buffer as a dictionary array.

    Args:
        buffer: Buffer that holds the strings.
        starts: Start offset of each string, in ascending order.
        stops: End offset of each string.

    Raises:
        Damage: An offset is beyond the end of the buffer.
    """
    codes, new_rows = encode_distinct_strings(buffer, starts, stops)
    strings = extract_strings(buffer.data, np.stack((starts[new_rows], stops[new_rows]), axis=1).reshape(-1))
    indices = col.build_number_array(codes)
    if buffer.parameter("distinct", "entries") < len(new_rows):
        distinct = strings.unique()
        indices, strings = pc.index_in(strings, distinct).take(indices), distinct
    return pa.DictionaryArray.from_arrays(indices, strings, safe=False)


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


class Buffer(DecoderSandbox):
    """A decoder sandbox whose memory can be accessed as 64-bit integers.

    Attributes:
        words: The unsigned little-endian 64-bit integer that begins at each offset: element ``i`` consists of the bytes
            ``i`` to ``i + 7``.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.words: UInt64Array = np.ndarray((size + SLACK - WORD,), "<u8", self.data.data, strides=(1,))


@dataclass(slots=True)
class Field:
    """One field of many protobuf messages, decoded into arrays with one element per message.

    Attributes:
        values: The numbers, or the start offsets of the bytes. The value is undefined if the message lacks the field.
        stops: The end offsets of the bytes, or None if the field holds numbers.
        valid: For each message, whether it has the field. None if all messages have it.
        number: The field number.
    """

    values: UInt64Array
    stops: Int64Array | None
    valid: Mask | None
    number: int

    def rows(self) -> Int64Array | None:
        """Return the indices of the messages that have the field, or None if all messages have it."""
        return None if self.valid is None else np.flatnonzero(self.valid)

    def spans(self) -> tuple[Int64Array, Int64Array]:
        """Return the start and end offsets of the bytes of the field in the messages that have the field.

        Raises:
            Damage: The field holds numbers.
        """
        starts, stops = self.compute_byte_ranges()
        return (starts, stops) if self.valid is None else (starts[self.valid], stops[self.valid])

    def compute_byte_ranges(self) -> tuple[Int64Array, Int64Array]:
        """Return the start and end offsets of the bytes of the field in all messages.

        The offsets are undefined for messages that lack the field.

        Raises:
            Damage: The field holds numbers.
        """
        if self.stops is None:
            raise Damage(f"field {self.number} holds a number instead of bytes")
        return self.values.view(np.int64), self.stops

    def take(self, rows: Int64Array) -> Field:
        """Return this field for the messages with the given indices, in the order of the indices."""
        stops = None if self.stops is None else self.stops[rows]
        return Field(self.values[rows], stops, None if self.valid is None else self.valid[rows], self.number)


def decode(
    buffer: Buffer, starts: Int64Array, stops: Int64Array, fields: Collection[int], span_field: int | None = None
) -> dict[int, Field]:
    """Decode the given fields of many protobuf messages into arrays.

    Args:
        buffer: Buffer that holds the messages.
        starts: Start offset of each message.
        stops: End offset of each message, within the buffer.
        fields: At most 255 field numbers below 2048. If a message has a field several times, the last value is
            decoded.
        span_field: Number of a repeated, length-delimited field in ``fields``, or None. For this field, the byte range
            in each message extends from the key of the first value to the end of the last value, instead of covering
            only the last value. Values of this field that are not length-delimited are ignored.

    Returns:
        The fields that occur in any message, by field number.

    Raises:
        Damage: A field extends beyond the end of its message, has an unknown wire type, or holds both numbers and
            bytes.
    """
    numbers = sorted(fields)
    if not numbers or not len(starts):
        return {}
    collector = _FieldCollector(numbers, len(starts))
    rows = max(1, min(MAX_ROWS, SCRATCH_BYTES // (_MESSAGE_BYTES + _FIELD_BYTES * len(numbers))))
    for first in range(0, len(starts), rows):
        part = slice(first, min(first + rows, len(starts)))
        collector.add_batch(part, _DecodedBatch(buffer, numbers, starts[part], stops[part], span_field))
    return collector.collect_decoded_fields()


def decode_varints(buffer: Buffer, offsets: Int64Array) -> tuple[UInt64Array, Int64Array]:
    """Decode the varint at each offset. Return the values, and the length of each varint in bytes.

    Raises:
        Damage: A varint is too long or truncated.
    """
    values, lengths = np.empty(len(offsets), np.uint64), np.empty(len(offsets), np.int64)
    rows = SCRATCH_BYTES // (3 * WORD)
    for first in range(0, len(offsets), rows):
        part = slice(first, first + rows)
        n = len(offsets[part])
        at = [SCRATCH + k * n * WORD for k in range(3)]
        buffer.array(at[0], n, np.int64)[:] = offsets[part]
        check_result_code(buffer.call("varints", rows=n, offsets=at[0], values=at[1], lengths=at[2], limit=buffer.size))
        values[part] = buffer.array(at[1], n, np.uint64)
        lengths[part] = buffer.array(at[2], n, np.int64)
    return values, lengths


class _DecodedBatch:
    """The decoded fields of a batch of protobuf messages, in arrays that are views of the sandbox memory."""

    def __init__(
        self, buffer: Buffer, numbers: Sequence[int], starts: Int64Array, stops: Int64Array, span_field: int | None
    ) -> None:
        rows, slots = len(starts), len(numbers)
        if slots > MAX_SLOTS:
            raise ValueError(f"{slots} fields were requested, but at most {MAX_SLOTS} fields are allowed")
        unsupported = [number for number in numbers if not 0 <= number < FIELDS]
        if unsupported:
            raise ValueError(f"field numbers from 0 to {FIELDS - 1} are supported, but not {unsupported}")
        at = np.cumsum([SCRATCH, *(WORD * rows for _ in range(2)), *(WORD * rows * slots for _ in range(2))]).tolist()
        buffer.array(at[0], rows, np.int64)[:] = starts
        buffer.array(at[1], rows, np.int64)[:] = stops
        present = buffer.array(at[4], rows * slots, np.bool_)
        present[:] = False
        table = buffer.bytes(SLOTS, FIELDS)
        table[:] = 0
        table[list(numbers)] = np.arange(1, slots + 1)
        self.counts: npt.NDArray[np.int32] = buffer.array(COUNTS, slots, np.int32)
        self.kinds: npt.NDArray[np.int32] = buffer.array(WIRE_TYPES, slots, np.int32)
        self.counts[:], self.kinds[:] = 0, 0
        arrays = dict(zip(("starts", "stops", "values", "ends", "present"), at, strict=True))
        repeated = 0 if span_field is None else 1 + numbers.index(span_field)
        check_result_code(buffer.call("messages", rows=rows, limit=buffer.size, repeated=repeated, **arrays))
        self.values: UInt64Array = buffer.array(at[2], rows * slots, np.uint64).reshape(slots, rows)
        self.stops: Int64Array = buffer.array(at[3], rows * slots, np.int64).reshape(slots, rows)
        self.present: Mask = present.reshape(slots, rows)


class _FieldCollector:
    """A builder that joins the decoded fields of all batches. Memory is allocated only for fields that occur."""

    def __init__(self, numbers: Sequence[int], rows: int) -> None:
        self._numbers = numbers
        self._rows = rows
        self._fields: dict[int, Field] = {}
        self._counts = [0] * len(numbers)

    def add_batch(self, rows: slice, batch: _DecodedBatch) -> None:
        """Copy the fields of a decoded batch into the arrays of all messages.

        Args:
            rows: Indices of the messages of the batch among all messages.
            batch: The decoded batch.
        """
        kinds = batch.kinds.tolist()
        for slot, count in enumerate(batch.counts.tolist()):
            if count:
                field = self._get_field_at_index(slot, kinds[slot])
                present = batch.present[slot]
                everywhere = count == len(present)
                field.values[rows] = (
                    batch.values[slot] if everywhere else np.where(present, batch.values[slot], _ABSENT)
                )
                if field.stops is not None:
                    field.stops[rows] = batch.stops[slot] if everywhere else np.where(present, batch.stops[slot], 0)
                if field.valid is not None:
                    field.valid[rows] = present
                self._counts[slot] += count

    def collect_decoded_fields(self) -> dict[int, Field]:
        """Return the fields that occur in any message, by field number."""
        for slot, number in enumerate(self._numbers):
            if self._counts[slot] == self._rows:
                self._fields[number].valid = None
        return self._fields

    def _get_field_at_index(self, index: int, wire_type_mask: int) -> Field:
        """Return the field at an index among the requested fields. The first call for a field allocates its arrays.

        Args:
            index: Index of the field among the requested fields.
            wire_type_mask: Bit mask of the wire types with which the field occurs in a batch.
        """
        number = self._numbers[index]
        delimited = wire_type_mask == 1 << DELIMITED
        field = self._fields.get(number)
        if field is None:
            stops = np.zeros(self._rows, np.int64) if delimited else None
            field = Field(np.zeros(self._rows, np.uint64), stops, np.zeros(self._rows, np.bool_), number)
            self._fields[number] = field
        if (field.stops is not None) != delimited or (wire_type_mask >> DELIMITED & 1) != delimited:
            raise Damage(f"field {number} holds both numbers and bytes")
        return field


def extract_strings(
    data: np.ndarray[tuple[int], np.dtype[np.uint8]], edges: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> pa.Array:
    """Copy strings from a buffer into an Arrow array of type binary.

    Args:
        data: The bytes that contain the strings.
        edges: Alternating start and end offsets of the strings, in ascending order.
    """
    if len(edges) and MAX_GAP_FACTOR * int((edges[1::2] - edges[::2]).sum()) < edges[-1] - edges[0]:
        data, edges = _gather_strings(data, edges)
    offsets = pa.py_buffer(edges.astype(np.int32))
    between = pa.Array.from_buffers(pa.binary(), max(0, len(edges) - 1), [None, offsets, pa.py_buffer(data)])
    return between.take(col.build_number_array(np.arange(0, len(between), 2)))


def _gather_strings(
    data: np.ndarray[tuple[int], np.dtype[np.uint8]], edges: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> tuple[np.ndarray[tuple[int], np.dtype[np.uint8]], np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Copy strings into a new buffer without the gaps between them.

    Return the new buffer, and the alternating start and end offsets of the strings in the new buffer.
    """
    sizes = edges[1::2] - edges[::2]
    ends = np.cumsum(sizes)
    offsets = np.repeat(edges[::2] - (ends - sizes), sizes) + np.arange(ends[-1])
    return data[offsets], np.stack((ends - sizes, ends), axis=1).reshape(-1)
