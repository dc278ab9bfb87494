"""Format extended NVTX payloads as the JSON text that nsys writes when it exports with ``--include-json``.

All payloads of one schema have their values at the same offsets. Therefore, they are formatted column by column: first
the first value of each payload, then the second value, and so on. A payload is formatted as a hexadecimal string if its
layout depends on its values, or if its schema is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common.columns import coalesce, encode_rows
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import (
    DELIMITED,
    MAX_LENGTH,
    Buffer,
    decode,
    decode_varints,
    extract_strings,
)
from tracekit.readers.nsys_rep.layout import load_fields
from tracekit.readers.nsys_rep.payload_schemas import FIRST_SCHEMA, ValueFormat, encode_json_string

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.native.sandbox import Bytes
    from tracekit.readers.common.budget import Budget
    from tracekit.readers.common.protobuf.decoding import Int64Array, Mask, UInt64Array
    from tracekit.readers.nsys_rep.payload_schemas import EnumLabels, PayloadFormat, PayloadValue, Schemas

Ints: TypeAlias = npt.NDArray[np.integer]

STRING_COLUMNS = ("jsonText", "binaryData")
NEEDED = (*STRING_COLUMNS, "globalTid", "domainId")
MAX_ITEMS, MAX_TEXT = 4096, 1 << 28
PAYLOAD_BYTES = 16
"""Bytes of memory per byte of a payload while the payload is formatted."""
_EXTENDED = load_fields("ExtendedPayload")
PROCESS = ~np.int64((1 << 24) - 1)
_ITEM_KEY = np.uint8(load_fields("NvtxPayload").extended << 3 | DELIMITED)
_BYTES = pa.binary()
_SPECIAL = np.array([*b'\\"/', *range(32)], np.uint8)
_DIGITS = np.frombuffer(b"".join(b"%02x" % n for n in range(256)), np.uint8).reshape(256, 2)
_KINDS = {ValueFormat.SIGNED: "i", ValueFormat.UNSIGNED: "u", ValueFormat.ENUM: "u", ValueFormat.REAL: "f"}


def build_payload_columns(schemas: Schemas, columns: dict[str, pa.Array], budget: Budget) -> dict[str, pa.Array]:
    """Return the columns ``jsonText`` and ``binaryData`` of NVTX events, formatted as ``nsys export`` does.

    Args:
        schemas: Payload schemas of the report.
        columns: The decoded columns ``NEEDED`` of the events.
        budget: Memory budget for the strings.

    Raises:
        Damage: A message is invalid, or the strings exceed the memory budget.
    """
    payloads = columns["binaryData"]
    budget.check_temporary_memory(payloads.nbytes, PAYLOAD_BYTES, "bytes of NVTX payloads")
    text, other = format_payloads(
        schemas, payloads, columns["globalTid"], columns["domainId"], min(MAX_TEXT, budget.remaining_bytes)
    )
    budget.reserve(text.nbytes + other.nbytes, 1, "bytes of NVTX payloads")
    return {"jsonText": coalesce(columns["jsonText"], text), "binaryData": other}


def format_payloads(
    schemas: Schemas, payloads: pa.Array, thread_ids: pa.Array, domain_ids: pa.Array, max_chars: int | None = None
) -> tuple[pa.Array, pa.Array]:
    """Format the extended payloads of events as JSON strings or as hexadecimal strings.

    Args:
        schemas: Payload schemas of the report.
        payloads: Payload message of each event, which is null for an event without payloads.
        thread_ids: Global thread id of each event.
        domain_ids: Domain id of each event.
        max_chars: Maximum number of characters of all strings together. If None, ``MAX_TEXT`` is used.

    Returns:
        The JSON string and the hexadecimal string of each event. The hexadecimal string is null if all payloads
        of the event can be formatted as JSON. Otherwise, the JSON string is null. Events without payloads have neither.

    Raises:
        Damage: A message is invalid, or the strings may exceed the maximum number of characters.
    """
    if payloads.null_count == len(payloads):
        return payloads, payloads
    items = PayloadItems(*_copy_payload_messages(payloads))
    if not len(items.rows):
        return pa.nulls(len(payloads), _BYTES), pa.nulls(len(payloads), _BYTES)
    processes = get_int64_values(thread_ids)[items.rows] & PROCESS
    keys = np.stack([processes, get_int64_values(domain_ids)[items.rows], items.schemas.view(np.int64)], 1)
    formatted = _format_payloads_as_json(schemas, items, keys, MAX_TEXT if max_chars is None else max_chars)
    edges = np.append(np.flatnonzero(np.diff(items.rows, prepend=-1)), len(items.rows))
    joined, first = _join_strings_of_lists(edges, formatted), edges[:-1]
    alone = pa.array((np.diff(edges) == 1) & (items.schemas[first] >= np.uint64(FIRST_SCHEMA)))
    strings = pc.if_else(alone, joined, _concatenate_strings_by_row(b"[", joined, b"]"))
    other = pa.nulls(len(strings), _BYTES)
    if strings.null_count:
        other = pc.if_else(
            strings.is_null(), _join_strings_of_lists(edges, items.format_hexadecimal()), pa.scalar(None, _BYTES)
        )
    places = np.full(len(payloads), -1)
    places[items.rows[first]] = np.arange(len(first))
    index = pa.array(places, mask=places < 0)
    return strings.take(index), other.take(index)


class PayloadItems:
    """The extended payloads of events, in order. An event may have several extended payloads.

    Attributes:
        data: Bytes of the buffer that holds the payloads.
        words: The 64-bit integer at each offset of the buffer.
        rows: Index of the event of each payload.
        schemas: Id of the schema of each payload.
        starts: Start offset of each payload in the buffer.
        stops: End offset of each payload in the buffer.
    """

    def __init__(self, buffer: Buffer, rows: Int64Array, starts: Int64Array, stops: Int64Array) -> None:
        """Find the extended payloads in the payload messages of events.

        Args:
            buffer: Buffer that holds the messages.
            rows: Index of the event of each message, ascending.
            starts: Start offset of each message.
            stops: End offset of each message. Messages without extended payloads are skipped.
        """
        some = np.flatnonzero(stops > starts)
        some = some[buffer.data[starts[some]] == _ITEM_KEY]
        self.rows, starts, stops = _locate_payloads(buffer, rows[some], starts[some], stops[some])
        self.data: Bytes = buffer.data
        self.words: UInt64Array = buffer.words
        fields = decode(buffer, starts, stops, (_EXTENDED.schema_id, _EXTENDED.data))
        schema, content = fields.get(_EXTENDED.schema_id), fields.get(_EXTENDED.data)
        empty = np.zeros(len(self.rows), np.int64)
        self.schemas: UInt64Array = empty.view(np.uint64)
        self.starts: Int64Array = empty
        self.stops: Int64Array = empty
        if schema is not None:
            if schema.stops is not None:
                raise Damage("the schema id of an NVTX payload is not a number")
            self.schemas = np.where(_get_mask_or_true(schema.valid), schema.values, np.uint64(0))
        if content is not None:
            if content.stops is None:
                raise Damage("an NVTX payload is a number instead of bytes")
            present = _get_mask_or_true(content.valid)
            self.starts = np.where(present, content.values.view(np.int64), 0)
            self.stops = np.where(present, content.stops, 0)

    def format_hexadecimal(self) -> pa.Array:
        """Format each payload as its schema id in decimal, a colon, and its bytes as hexadecimal digits."""
        sizes = self.stops - self.starts
        data = extract_strings(self.data, np.stack((self.starts, self.stops), axis=1).reshape(-1)).buffers()[2]
        digits = _DIGITS[np.frombuffer(data or b"", np.uint8)[: int(sizes.sum())]].reshape(-1)
        return _concatenate_strings_by_row(_format_integers(self.schemas), b":", _split_bytes(digits, 2 * sizes))


def _copy_payload_messages(payloads: pa.Array) -> tuple[Buffer, Int64Array, Int64Array, Int64Array]:
    """Copy the messages that contain extended payloads to one buffer.

    Returns:
        The buffer, and arrays with the index in ``payloads``, the start offset and the end offset of each message.
    """
    data = np.frombuffer(payloads.buffers()[2], np.uint8)
    edges = np.frombuffer(payloads.buffers()[1], np.int32)[payloads.offset :][: len(payloads) + 1].astype(np.int64)
    sizes = np.where(payloads.is_valid().to_numpy(zero_copy_only=False), np.diff(edges), 0)
    rows = np.flatnonzero(sizes)
    rows = rows[data[edges[rows]] == _ITEM_KEY]
    chosen = payloads.take(pa.array(rows)).buffers()[2] or b""
    ends = np.cumsum(sizes[rows])
    size = int(sizes[rows].sum())
    buffer = Buffer(size)
    buffer.data[:size] = np.frombuffer(chosen, np.uint8)[:size]
    return buffer, rows, ends - sizes[rows], ends


def _locate_payloads(
    buffer: Buffer, rows: Int64Array, offsets: Int64Array, stops: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return the event index, start offset and end offset of each payload, ordered by event.

    Args:
        buffer: Buffer that holds the messages of all events.
        rows: Index of the event of each message.
        offsets: Offset of the first payload in each message.
        stops: End offset of each message.
    """
    levels: list[tuple[Int64Array, Int64Array, Int64Array]] = []
    while len(rows):
        if len(levels) == MAX_ITEMS:
            raise Damage(f"an event has more than {MAX_ITEMS} NVTX payloads, which tracekit does not support")
        sizes, lengths = decode_varints(buffer, offsets + 1)
        starts = offsets + 1 + lengths
        offsets = starts + np.minimum(sizes, MAX_LENGTH).view(np.int64)
        if (offsets > stops).any():
            raise Damage("an NVTX payload extends beyond the end of its event")
        levels.append((rows, starts, offsets))
        more = np.flatnonzero(offsets < stops)
        more = more[buffer.data[offsets[more]] == _ITEM_KEY]
        rows, offsets, stops = rows[more], offsets[more], stops[more]
    if not levels:
        return rows, offsets, stops
    of, starts, ends = (np.concatenate(parts) for parts in zip(*levels, strict=True))
    order = np.argsort(of, kind="stable")
    return of[order], starts[order], ends[order]


def _format_payloads_as_json(
    schemas: Schemas, items: PayloadItems, keys: npt.NDArray[np.int64], max_chars: int
) -> pa.Array:
    """Format each payload as a JSON string, or as null if formatting is not possible.

    Args:
        schemas: Payload schemas of the report.
        items: The payloads.
        keys: Matrix with one row per payload: process id, domain id and schema id.
        max_chars: Maximum number of characters of all strings together.
    """
    arrays: list[pa.Array] = [pa.array([], _BYTES)]
    places = np.full(len(keys), -1)
    done = width = 0
    for (process, domain, number), rows in group_indices_of_equal_rows(keys):
        plan = schemas.plan_formatting(process, domain, number)
        if plan is None:
            continue
        sizes = items.stops[rows] - items.starts[rows]
        group = rows[sizes >= plan.min_size if plan.size is None else sizes == plan.size]
        if not len(group):
            continue
        width += plan.max_width * len(group)
        if width > max_chars:
            raise Damage(
                f"the texts of {len(keys):,} NVTX payloads could have more than {max_chars:,} characters in total, "
                "the maximum that tracekit supports"
            )
        arrays.append(_format_payloads_by_plan(items.data, items.starts[group], items.stops[group], plan))
        places[group] = np.arange(done, done + len(group))
        done += len(group)
    return pa.concat_arrays(arrays).take(pa.array(places, mask=places < 0))


def group_indices_of_equal_rows(matrix: npt.NDArray[np.int64]) -> Iterator[tuple[tuple[int, ...], Int64Array]]:
    """Yield each distinct row of a matrix, and the ascending indices of all rows equal to this row.

    The values of a distinct row are unsigned 64-bit integers.
    """
    if not len(matrix):
        return
    varying = [nth for nth in range(matrix.shape[1]) if (matrix[:, nth] != matrix[0, nth]).any()]
    if not varying:
        yield tuple(matrix[0].view(np.uint64).tolist()), np.arange(len(matrix))
        return
    codes, distinct = encode_rows(*(pa.array(matrix[:, nth]) for nth in varying))
    code_type = np.uint16 if len(distinct) <= np.iinfo(np.uint16).max else np.int32
    order = np.argsort(codes.to_numpy().astype(code_type), kind="stable")
    ends = np.cumsum(np.bincount(codes.to_numpy(), minlength=len(distinct)))
    first = 0
    for end in ends.tolist():
        group = order[first:end]
        yield tuple(matrix[group[0]].view(np.uint64).tolist()), group
        first = end


def _format_payloads_by_plan(data: Bytes, starts: Int64Array, stops: Int64Array, plan: PayloadFormat) -> pa.Array:
    """Format payloads of the same schema as JSON strings."""
    parts = [p.encode() if isinstance(p, str) else _format_value(data, starts, stops, p) for p in plan.fragments]
    return _concatenate_strings_by_row(pa.array([b""] * len(starts), _BYTES), *parts)


def _format_value(data: Bytes, starts: Int64Array, stops: Int64Array, value: PayloadValue) -> pa.Array:
    """Format one value of each payload as JSON."""
    begin = starts + value.at
    if value.form is ValueFormat.TEXT and not value.size:
        return _encode_json_strings(_split_bytes(data[_list_interval_offsets(begin, stops - begin)], stops - begin))
    raw = data[begin[:, None] + np.arange(value.size)]
    if value.form is ValueFormat.TEXT:
        sizes = _compute_trimmed_sizes(raw) if value.size > 1 else np.ones(len(raw), np.int64)
        return _encode_json_strings(_split_bytes(data[_list_interval_offsets(begin, sizes)], sizes))
    if value.form in (ValueFormat.ADDRESS, ValueFormat.BYTE):
        digits = _split_bytes(_DIGITS[raw[:, ::-1]].reshape(-1), np.full(len(raw), 2 * value.size)).cast(pa.string())
        shortest = pc.ascii_ltrim(digits, characters="0")
        return _concatenate_strings_by_row(b'"0x', pc.if_else(pc.equal(shortest, ""), "0", shortest).cast(_BYTES), b'"')
    numbers = raw.view(f"<{_KINDS[value.form]}{value.size}").reshape(-1)
    if value.labels is not None:
        return _format_enum_names(numbers, value.labels)
    return _format_floats(numbers) if value.form is ValueFormat.REAL else _format_integers(numbers)


def _compute_trimmed_sizes(byte_rows: Bytes) -> Int64Array:
    """Return the size of each row of bytes without trailing zero bytes."""
    written = byte_rows[:, ::-1] != 0
    return np.where(written.any(axis=1), byte_rows.shape[1] - written.argmax(axis=1), 0)


def _format_enum_names(numbers: Ints, labels: EnumLabels) -> pa.Array:
    """Return the names of enum values as JSON strings."""
    distinct, of = np.unique(numbers, return_inverse=True)
    return pa.array([encode_json_string(labels.format_enum_value(n)).encode() for n in distinct.tolist()], _BYTES).take(
        pa.array(of)
    )


def _format_integers(numbers: Ints) -> pa.Array:
    return pa.array(numbers).cast(pa.string()).cast(_BYTES)


def _format_floats(numbers: npt.NDArray[np.floating]) -> pa.Array:
    """Format floats with the fewest digits that preserve the value. Like nsys, quote numbers in exponential form."""
    if numbers.dtype.itemsize == np.dtype(np.float32).itemsize:
        numbers = numbers.astype("U").astype(np.float64)
    shortest = pc.replace_substring_regex(pa.array(numbers.astype("U")), r"\.0$", "")
    plain = pc.match_substring_regex(shortest, r"^-?[0-9.]+$")
    return pc.if_else(plain, shortest, pc.binary_join_element_wise('"', shortest, '"', "")).cast(_BYTES)


def _encode_json_strings(column: pa.Array) -> pa.Array:
    """Encode byte strings as JSON strings, including the quotes. Invalid UTF-8 is left unchanged."""
    data = np.frombuffer(column.buffers()[2] or b"", np.uint8)
    for special in _SPECIAL[np.isin(_SPECIAL, data)].tolist():
        column = pc.replace_substring(
            column, pattern=bytes([special]), replacement=encode_json_string(chr(special))[1:-1].encode()
        )
    return _concatenate_strings_by_row(b'"', column, b'"')


def _concatenate_strings_by_row(*parts: bytes | pa.Array) -> pa.Array:
    """Concatenate constants and string columns row by row. A row is null if any of its strings is null."""
    return pc.binary_join_element_wise(*(pa.scalar(p, _BYTES) if isinstance(p, bytes) else p for p in parts), b"")


def _join_strings_of_lists(edges: Int64Array, column: pa.Array) -> pa.Array:
    """Join the strings of each list with commas. A list that contains null is converted to null.

    Args:
        edges: Offsets of the lists in ``column``.
        column: The strings of all lists.
    """
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(edges, pa.int32()), column), b",")


def _split_bytes(data: Bytes, sizes: Int64Array) -> pa.Array:
    """Split a byte array into consecutive strings of the given sizes in bytes."""
    edges = np.append(0, np.cumsum(sizes)).astype(np.int32)
    return pa.Array.from_buffers(
        _BYTES, len(sizes), [None, pa.py_buffer(edges), pa.py_buffer(np.ascontiguousarray(data))]
    )


def _list_interval_offsets(starts: Int64Array, sizes: Int64Array) -> Int64Array:
    """Return the offset of every byte in the given intervals, in the order of the intervals."""
    before = np.cumsum(sizes) - sizes
    return np.repeat(starts - before, sizes) + np.arange(int(sizes.sum()))


def get_int64_values(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return the values of an integer column as an array, with 0 in place of null."""
    return np.asarray(pc.fill_null(column, 0).to_numpy(zero_copy_only=False), np.int64)


def _get_mask_or_true(presence: Mask | None) -> Mask | np.bool_:
    """Return the mask ``presence``, or true if it is None because all messages have the field."""
    return np.True_ if presence is None else presence
