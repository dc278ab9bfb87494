"""Encode protobuf messages with the same set of fields: event packets and string tables, by the loop in ``packets.c``.

Each thread has its own sandbox, so several threads can encode packets at the same time.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tracekit import schemas
from tracekit.native.arrays import ArraySandbox
from tracekit.native.program import Program
from tracekit.system.sorting import create_series, sort_and_deduplicate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracekit.system.sorting import Array

    Codes = np.ndarray[tuple[int], np.dtype[np.integer[Any]]]
    Numbers = np.ndarray[tuple[int], np.dtype[np.uint64]]
    Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]
    Offsets = np.ndarray[tuple[int], np.dtype[np.int64]]

BATCH_ROWS: Final = 1 << 14
FIXED64_BYTES: Final = 8
_PAYLOAD_BITS, _CONTINUES, _MAX_DIGITS = 7, 0x80, 10
_PREFIX_BYTES: Final = 16
_SLACK: Final = 256
"""Bytes that are reserved for each message in addition to its fields and its fragment."""
_COPIED_FRAGMENT_BYTES: Final = 1 << 23
"""Size up to which all fragments are copied into a sandbox. Of more fragments, each batch gets its own."""
_COPIED_TEXT_BYTES: Final = 1 << 24
_ERRORS: Final = {
    "FULL": "the output is larger than expected",
    "INVALID_PREFIX": "a field has an invalid prefix",
    "INVALID_CODE": "an offset or the code of a fragment is invalid",
    "INVALID_FLOW": "a flow belongs to no event",
}
_PACKET_TAGS: Final = (("Trace", "packet"), ("TracePacket", "timestamp"), ("TrackEvent", "flow_ids"))
"""The fields whose tags precede the prefixes of other fields."""
_FIELD_ARRAYS: Final[dict[str, type[np.generic]]] = {
    **dict.fromkeys(("prefixes", "prefix_sizes", "length_positions", "is_fixed", "choices"), np.uint8),
    "first_prefixes": np.uint32,
    "values": np.uint64,
}
PROGRAM: Final = Program(
    "packets",
    {
        "fragments": ("rows", "fields", "places", "prefix_count", "capacity"),
        "events": (
            *("rows", "fields", "places", "prefix_count", "capacity", "fragments", "fragment_bytes", "lead_size"),
            *("flows", "event_width", "packet_width", "size"),
        ),
        "strings": (*("rows", "text_bytes", "capacity", "first_id", "id_width", "size_width", "entry_width", "size"),),
    },
    {
        **{name: number for number, name in enumerate(("DONE", *_ERRORS))},
        "PREFIX_BYTES": _PREFIX_BYTES,
        "PACKET": 0,
        "TIMESTAMP": 1,
        "FLOW": 2,
        "FIELD_PREFIXES": 3,
        "ENTRY": 0,
        "ID": 1,
        "TEXT": 2,
    },
    {
        "fragments": {**_FIELD_ARRAYS, "ends": np.uint32, "output": np.uint8},
        "events": {
            **_FIELD_ARRAYS,
            **dict.fromkeys(("lead", "fragments"), np.uint8),
            **dict.fromkeys(("codes", "offsets"), np.uint32),
            "times": np.int64,
            "flow_rows": np.uint32,
            "flow_ids": np.uint64,
            "output": np.uint8,
        },
        "strings": {
            **dict.fromkeys(("prefixes", "prefix_sizes", "text"), np.uint8),
            "offsets": np.uint32,
            "output": np.uint8,
        },
    },
)


@functools.cache
def encode_field_tag(message: str, field: str) -> bytes:
    """Return the tag of a protobuf field: the encoded number and wire type of the field."""
    descriptor = schemas.load_message_class("perfetto", message).DESCRIPTOR.fields_by_name[field]
    fixed = (descriptor.TYPE_FIXED64, descriptor.TYPE_DOUBLE)
    sized = (descriptor.TYPE_STRING, descriptor.TYPE_BYTES, descriptor.TYPE_MESSAGE)
    encoding = 1 if descriptor.type in fixed else 2 if descriptor.type in sized else 0
    return encode_varint(descriptor.number << 3 | encoding)


def encode_varint(number: int) -> bytes:
    """Encode a non-negative integer as a varint."""
    encoded = bytearray()
    while number >= _CONTINUES:
        encoded.append(number & ~_CONTINUES & 0xFF | _CONTINUES)
        number >>= _PAYLOAD_BITS
    return bytes([*encoded, number])


def encode_length_delimited(tag: bytes, content: bytes) -> bytes:
    """Encode a field that contains a message, string or bytes, as the tag, the length and the content."""
    return tag + encode_varint(len(content)) + content


class Prefix(NamedTuple):
    """The bytes that precede a value.

    Attributes:
        data: The bytes, for example the tag of a field.
        is_fixed: Whether the value is encoded as 8 bytes, and not as a varint.
        length_position: Position of a length byte in ``data`` to which the size of the varint is added, or 0.
    """

    data: bytes
    is_fixed: bool = False
    length_position: int = 0


class FieldValues(NamedTuple):
    """The values of a field of consecutive messages, each with one of several prefixes.

    Attributes:
        numbers: The values as 64-bit words: varints (negative integers as their two's complement), or 8 bytes.
        choices: For each message, the number of the prefix, from 1, or 0 if the message does not have the field.
    """

    numbers: Numbers
    choices: Bytes

    def select(self, rows: Array | slice) -> FieldValues:
        """Return the values in the rows with the given row numbers, in this order."""
        return FieldValues(self.numbers[rows], self.choices[rows])


class PacketField(NamedTuple):
    """A field of consecutive messages: the prefixes among which each message chooses, and the values."""

    prefixes: Sequence[Prefix]
    values: FieldValues


class RepeatedFields:
    """Encoded fields that are equal in many messages, which refer to them by a code.

    Attributes:
        data: The bytes of all fragments.
        offsets: Offset of each fragment in ``data``, followed by the size of ``data``.
        max_size: Size of the largest fragment in bytes.
    """

    def __init__(self, data: Bytes, offsets: Offsets) -> None:
        self.data, self.offsets = data, offsets
        self.max_size = int(np.diff(offsets).max(initial=0))

    def select(self, codes: Codes) -> tuple[RepeatedFields, Codes]:
        """Return fragments that fit into a sandbox, among them those with the given codes, and their new codes."""
        if len(self.data) <= _COPIED_FRAGMENT_BYTES:
            return self, codes
        used = sort_and_deduplicate(codes.copy())
        return self.take(used), np.searchsorted(used, codes)

    def take(self, codes: Codes) -> RepeatedFields:
        """Return the fragments with the given codes, in this order."""
        return self._from_arrow(self.to_arrow().take(create_series(codes).to_arrow()))

    def merge_groups(self, starts: Codes) -> RepeatedFields:
        """Return the concatenations of consecutive fragments, given the code of the first fragment of each group."""
        return RepeatedFields(self.data, np.append(self.offsets[starts], self.offsets[-1]))

    def wrap(self, tag: bytes, *, lead: bytes = b"") -> RepeatedFields:
        """Return fields that contain the fragments as messages or strings. An empty fragment remains empty.

        Args:
            tag: The tag of the fields.
            lead: Encoded fields that precede each fragment that is not empty.
        """
        sizes = np.diff(self.offsets)
        distinct = sort_and_deduplicate(sizes.copy())
        heads = [tag + encode_varint(len(lead) + size) + lead if size else b"" for size in distinct.tolist()]
        numbers = create_series(np.searchsorted(distinct, sizes)).to_arrow()
        return self._from_arrow(_join(pa.array(heads, pa.large_binary()).take(numbers), self.to_arrow()))

    @classmethod
    def join(cls, parts: Sequence[RepeatedFields]) -> RepeatedFields:
        """Return fragments that each consist of one fragment of every part. All parts have the same number of them."""
        return cls._from_arrow(_join(*(part.to_arrow() for part in parts)))

    @classmethod
    def concatenate(cls, parts: Sequence[RepeatedFields]) -> RepeatedFields:
        """Return the fragments of all parts, one part after another."""
        return cls._from_arrow(pa.concat_arrays([part.to_arrow() for part in parts]))

    @classmethod
    def encode_texts(cls, texts: pl.Series) -> RepeatedFields:
        """Return strings as UTF-8. Null results in an empty fragment."""
        return cls._from_arrow(texts.fill_null("").to_arrow(compat_level=pl.CompatLevel.oldest()))

    def to_arrow(self) -> pa.LargeBinaryArray:
        """Return the fragments as an array, which shares the memory."""
        buffers = [None, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.large_binary(), len(self.offsets) - 1, buffers)

    @classmethod
    def _from_arrow(cls, values: pa.LargeBinaryArray | pa.LargeStringArray) -> RepeatedFields:
        """Return the values of an array without nulls."""
        _, buffer, data = values.buffers()
        offsets = np.frombuffer(buffer, np.int64)[values.offset : values.offset + len(values) + 1]
        return cls(np.frombuffer(data or b"", np.uint8), offsets)


def _join(*parts: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Return the concatenations of the values in the same rows of several arrays."""
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))


class Flows(NamedTuple):
    """The flows that begin or end at consecutive events.

    Attributes:
        positions: Positions of the events in the order of writing, ascending: one entry per start or end of a flow.
        ids: The id of the flow of each entry.
    """

    positions: Array
    ids: Array

    def select_flows_of_events(self, start: int, stop: int) -> Flows:
        """Return the flows that begin or end at the events ``start`` to ``stop - 1``, with positions from 0."""
        first, last = np.searchsorted(self.positions, [start, stop]).tolist()
        return Flows(self.positions[first:last] - start, self.ids[first:last])


NO_FLOWS: Final = Flows(np.zeros(0, np.int64), np.zeros(0, np.uint64))


def encode_fragments(fields: Sequence[PacketField], row_count: int) -> RepeatedFields:
    """Encode each row of the given fields as one fragment."""
    sandbox = ArraySandbox(PROGRAM)
    parts, offsets, end = [], np.zeros(row_count + 1, np.int64), 0
    for start in range(0, row_count, BATCH_ROWS):
        rows = min(BATCH_ROWS, row_count - start)
        batch = [PacketField(f.prefixes, f.values.select(slice(start, start + rows))) for f in fields]
        sizes, parameters = _measure_fields(batch, rows)
        capacity = rows * _bound_message_size(batch)
        arrays = sandbox.allocate("fragments", **sizes, ends=rows, output=capacity)
        _fill_fields(arrays, batch, rows)
        _check(sandbox.call("fragments", **parameters, capacity=capacity))
        offsets[start + 1 : start + rows + 1] = arrays["ends"] + np.int64(end)
        parts.append(arrays["output"][: arrays["ends"][-1]].copy())
        end += len(parts[-1])
    return RepeatedFields(np.concatenate([np.zeros(0, np.uint8), *parts]), offsets)


class PacketBatch(NamedTuple):
    """Consecutive events of a packet sequence.

    Attributes:
        lead: The encoded fields of every packet that precede the event.
        times: The time of the event before the first one, followed by the time of each event, in ns.
        fields: The fields that are not in ``fragments``.
        fragments: The encoded fields that are equal in many events.
        codes: Index of the fields of each event in ``fragments``.
        flows: The flows that begin or end at the events.
    """

    lead: bytes
    times: Array
    fields: Sequence[PacketField]
    fragments: RepeatedFields
    codes: Codes
    flows: Flows = NO_FLOWS

    def select(self, start: int, stop: int) -> PacketBatch:
        """Return the events ``start`` to ``stop - 1`` of the batch, or fewer if the batch ends before."""
        rows = slice(start, min(stop, len(self.codes)))
        return self._replace(
            times=self.times[rows.start : rows.stop + 1],
            fields=[PacketField(field.prefixes, field.values.select(rows)) for field in self.fields],
            codes=self.codes[rows],
            flows=self.flows.select_flows_of_events(rows.start, rows.stop),
        )


class PacketEncoder(threading.local):
    """An encoder with one sandbox per thread."""

    def __init__(self) -> None:
        self._sandbox = ArraySandbox(PROGRAM)
        self._sizes: dict[str, int] = {}
        self._fragments: RepeatedFields | None = None
        self._widths = {"event_width": 1, "packet_width": 1}

    def encode_events(self, batch: PacketBatch) -> memoryview:
        """Encode one packet per event. All packets have sizes of equal width, and their times are differences."""
        rows = len(batch.codes)
        fragments, codes = batch.fragments.select(batch.codes)
        flow_count = len(batch.flows.ids)
        sizes, parameters = _measure_fields(batch.fields, rows)
        capacity = rows * (_bound_message_size(batch.fields) + fragments.max_size) + _PREFIX_BYTES * flow_count
        sizes |= {"lead": _PREFIX_BYTES, "codes": rows, "times": rows + 1, "output": capacity}
        sizes |= {"fragments": len(fragments.data) + _PREFIX_BYTES, "offsets": len(fragments.offsets)}
        sizes |= {"flow_rows": flow_count, "flow_ids": flow_count}
        arrays = self._sandbox.allocate("events", **sizes)
        if self._fragments is not fragments or self._sizes != sizes:
            arrays["fragments"][: len(fragments.data)] = fragments.data
            arrays["offsets"][:] = fragments.offsets
            self._fragments, self._sizes = fragments, sizes
        _fill_fields(arrays, batch.fields, rows)
        arrays["lead"][: len(batch.lead)] = np.frombuffer(batch.lead, np.uint8)
        arrays["codes"][:], arrays["times"][:] = codes, batch.times
        arrays["flow_rows"][:], arrays["flow_ids"][:] = batch.flows
        result = self._sandbox.call(
            "events",
            **parameters,
            **self._widths,
            capacity=capacity,
            fragments=len(fragments.offsets) - 1,
            fragment_bytes=len(fragments.data),
            lead_size=len(batch.lead),
            flows=flow_count,
        )
        _check(result)
        self._widths = {name: self._sandbox.parameter("events", name) for name in self._widths}
        return memoryview(arrays["output"][: self._sandbox.parameter("events", "size")].tobytes())

    def encode_string_table(self, tag: bytes, first_id: int, texts: pa.LargeStringArray) -> bytes:
        """Encode strings and their consecutive ids as entries of a string table (messages ``InternedText``).

        Args:
            tag: The tag of the table.
            first_id: The id of the first string.
            texts: The strings, of which none is null.
        """
        _, buffer, data = texts.buffers()
        offsets = np.frombuffer(buffer, np.int64)[texts.offset : texts.offset + len(texts) + 1]
        content = np.frombuffer(data or b"", np.uint8)
        tags = [tag, *(encode_field_tag("InternedText", field) for field in ("iid", "text"))]
        largest = int(np.diff(offsets).max(initial=0))
        widths = {"id_width": encode_varint(first_id + len(texts) - 1), "size_width": encode_varint(largest)}
        widths["entry_width"] = encode_varint(sum(map(len, (*tags[1:], *widths.values()))) + largest)
        parts, start = [], 0
        while start < len(texts):
            within = int(np.searchsorted(offsets, offsets[start] + _COPIED_TEXT_BYTES, side="right")) - 1
            stop = min(max(within, start + 1), len(texts))
            parts.append(self._encode_strings(tags, first_id + start, offsets[start : stop + 1], content, widths))
            start = stop
        return b"".join(parts)

    def _encode_strings(
        self, tags: Sequence[bytes], first_id: int, offsets: Offsets, content: Bytes, widths: Mapping[str, bytes]
    ) -> bytes:
        """Encode consecutive strings of a string table, with ids and sizes as wide as the given varints."""
        sandbox, rows = self._sandbox, len(offsets) - 1
        text = content[offsets[0] : offsets[-1]]
        capacity = len(text) + rows * _SLACK
        arrays = sandbox.allocate(
            "strings",
            prefixes=_PREFIX_BYTES * len(tags),
            prefix_sizes=len(tags),
            text=len(text) + _PREFIX_BYTES,
            offsets=rows + 1,
            output=capacity,
        )
        self._fragments = None
        _fill_prefixes(arrays, tags)
        arrays["text"][: len(text)], arrays["offsets"][:] = text, offsets - offsets[0]
        parameters = {name: len(varint) for name, varint in widths.items()}
        parameters |= {"rows": rows, "text_bytes": len(text), "capacity": capacity, "first_id": first_id}
        _check(sandbox.call("strings", **parameters))
        return arrays["output"][: sandbox.parameter("strings", "size")].tobytes()


def _measure_fields(fields: Sequence[PacketField], rows: int) -> tuple[dict[str, int], dict[str, int]]:
    """Return the sizes of the arrays, and the parameters, that describe fields."""
    count = len(_PACKET_TAGS) + sum(len(field.prefixes) for field in fields)
    sizes = dict.fromkeys(("prefix_sizes", "length_positions", "is_fixed"), count)
    sizes |= {
        "prefixes": count * _PREFIX_BYTES,
        "first_prefixes": len(fields),
        **dict.fromkeys(("choices", "values"), len(fields) * rows),
    }
    return sizes, {"rows": rows, "fields": len(fields), "places": len(fields) * rows, "prefix_count": count}


def _fill_fields(arrays: Mapping[str, Any], fields: Sequence[PacketField], rows: int) -> None:
    """Copy the prefixes and values of fields to a sandbox."""
    prefixes = [Prefix(encode_field_tag(*tag)) for tag in _PACKET_TAGS]
    for number, field in enumerate(fields):
        place = slice(number * rows, (number + 1) * rows)
        arrays["first_prefixes"][number] = len(prefixes)
        arrays["values"][place], arrays["choices"][place] = field.values
        prefixes += field.prefixes
    _fill_prefixes(arrays, [prefix.data for prefix in prefixes])
    arrays["is_fixed"][:] = [prefix.is_fixed for prefix in prefixes]
    arrays["length_positions"][:] = [prefix.length_position for prefix in prefixes]


def _fill_prefixes(arrays: Mapping[str, Any], prefixes: Sequence[bytes]) -> None:
    """Copy the bytes that precede values to a sandbox, in slots of equal size."""
    padded = b"".join(prefix.ljust(_PREFIX_BYTES, b"\0") for prefix in prefixes)
    arrays["prefixes"][:] = np.frombuffer(padded, np.uint8)
    arrays["prefix_sizes"][:] = list(map(len, prefixes))


def _bound_message_size(fields: Sequence[PacketField]) -> int:
    return len(fields) * (_PREFIX_BYTES + _MAX_DIGITS) + _SLACK


def _check(result: int) -> None:
    """Raise an error if a function of the program did not succeed."""
    if result:
        raise ValueError(f"a Perfetto packet cannot be encoded: {list(_ERRORS.values())[result - 1]}")
