"""Decode the events of a report into the columns of a source table.

Decode the call stacks of events. Equal stacks and equal frames are decoded only once.

Most call stacks occur in several events. Therefore, the bytes of the stacks are dictionary-encoded first. Later, each
distinct stack is split into frames. The frames are dictionary-encoded in the same way, and each distinct frame is
decoded once.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common import columns as col
from tracekit.readers.common.budget import CELL_BYTES
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import (
    Buffer,
    Field,
    decode,
    dictionary_encode,
    encode_distinct_strings,
    extract_strings,
    find_occurrences,
)
from tracekit.readers.nsys.tables import ROWID
from tracekit.readers.nsys_rep.event_fields import EventFields, NeededFields
from tracekit.readers.nsys_rep.layout import CLASS, ValueDecoding, convert_to_snake_case, load_fields

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from tracekit.readers.common.budget import Budget
    from tracekit.readers.common.protobuf.decoding import Int64Array, Mask
    from tracekit.readers.nsys_rep.events import SelectedEvents
    from tracekit.readers.nsys_rep.layout import EventTable, SourceColumn

COLUMNS = ("symbol", "module", "kernelMode", "thumbCode", "unresolved", "specialEntry", "originalIP", "unwindMethod")
FRAME_BYTES = 48
"""Bytes of memory per frame of a distinct stack while a batch is decoded."""
_NUMBERS = {
    c: getattr(load_fields("Frame"), "original_ip" if c == "originalIP" else convert_to_snake_case(c)) for c in COLUMNS
}
_FRAME = pa.struct([(c, pa.int64()) for c in COLUMNS])
TYPE = pa.dictionary(pa.int32(), pa.binary())
_ARROW_TYPES = {
    ValueDecoding.INT: pa.int64(),
    ValueDecoding.CHAIN: pa.int64(),
    ValueDecoding.DOUBLE: pa.float64(),
    ValueDecoding.FLOAT: pa.float64(),
    ValueDecoding.BYTES: pa.binary(),
    ValueDecoding.NAME: pa.dictionary(pa.int32(), pa.binary()),
}


def encode_stacks(buffer: Buffer, field: Field | None, message_count: int) -> pa.DictionaryArray:
    """Dictionary-encode the call stacks of messages without decoding their frames.

    Args:
        buffer: Buffer that holds the messages.
        field: Byte ranges of the frames of each message, or None if no message has frames.
        message_count: Number of messages.

    Returns:
        The encoded stack of each message, as described for ``tables.FRAMES``, or null for a message without frames.
    """
    if field is None:
        return col.build_null_array(message_count, TYPE)
    array = dictionary_encode(buffer, *field.spans())
    if field.valid is None:
        return array
    codes = np.zeros(message_count, np.int32)
    codes[field.valid] = array.indices
    return pa.DictionaryArray.from_arrays(col.build_number_array(codes, field.valid), array.dictionary)


def decode_stacks(stacks: pa.BinaryArray, frames_field: int, budget: Budget) -> pa.ListArray:
    """Decode encoded call stacks into lists of frames.

    Args:
        stacks: Encoded stacks, none of which is null.
        frames_field: Number of the repeated field that contains the frames.
        budget: Memory budget that the frames must not exceed. The frames are not deducted from the budget.

    Returns:
        The frames of each stack, as described for ``StackTables.decode_stacks``.

    Raises:
        Damage: A stack is invalid, or the frames take more memory than the budget allows.
    """
    edges = np.frombuffer(stacks.buffers()[1], np.int32)[stacks.offset :][: len(stacks) + 1].astype(np.int64)
    size = int(edges[-1] - edges[0])
    buffer = Buffer(size)
    buffer.data[:size] = np.frombuffer(stacks.buffers()[2] or b"", np.uint8)[edges[0] : edges[-1]]
    edges -= edges[0]
    (frames,) = find_occurrences(buffer, edges[:-1], edges[1:], (frames_field,), budget.limit // FRAME_BYTES)
    frame_codes, new = encode_distinct_strings(buffer, frames.starts, frames.stops)
    values = _decode_frames(buffer, frames.starts[new], frames.stops[new])
    offsets = np.searchsorted(frames.rows, np.arange(len(stacks) + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(
        col.build_number_array(offsets), pa.DictionaryArray.from_arrays(col.build_number_array(frame_codes), values)
    )


def _decode_frames(buffer: Buffer, starts: Int64Array, stops: Int64Array) -> pa.StructArray:
    """Decode frames into a struct array of integers. A field that a frame lacks is null."""
    fields = decode(buffer, starts, stops, _NUMBERS.values())
    columns = []
    for number in _NUMBERS.values():
        field = fields.get(number)
        if field is None:
            columns.append(pa.nulls(len(starts), pa.int64()))
            continue
        if field.stops is not None:
            raise Damage(f"field {number} of a frame holds bytes instead of a number")
        columns.append(col.build_number_array(field.values.view(np.int64), field.valid))
    return pa.StructArray.from_arrays(columns, fields=list(_FRAME))


def list_payload_fields(
    table: EventTable, column_names: Sequence[str], exclusion: EventFilter | None = None
) -> NeededFields:
    """Return the payload fields that ``decode_columns`` needs for the given columns of a source table."""
    numbers = {
        *table.identifying_fields,
        *table.sibling_fields,
        *table.nested_message[:1],
        *(exclusion.needed_field_numbers if exclusion else ()),
    }
    if table.event_classes:
        numbers.add(CLASS)
    frame_fields = None
    for column in (table.columns[name] for name in column_names if name != ROWID):
        if column.kind is not ValueDecoding.ROW:
            numbers |= {path[0] for path in (column.path, *column.fallbacks)}
        if column.kind is ValueDecoding.FRAMES:
            frame_fields = column.path[0]
    return NeededFields(frozenset(numbers), frame_fields)


def decode_columns(
    event_fields: EventFields,
    selected_events: SelectedEvents,
    table: EventTable,
    names: Sequence[str],
    budget: Budget,
    *,
    skipped: Counter[str],
    types: Sequence[int] = (),
    exclusion: EventFilter | None = None,
) -> dict[str, pa.Array]:
    """Decode events into columns of a source table, in event order. Events that are not rows of the table are skipped.

    Args:
        event_fields: Fields of the events, including all fields that ``list_payload_fields`` returns.
        selected_events: The same events as in ``event_fields``. Their function ``exchange_totals`` provides the number
            of rows of this table in all earlier batches.
        table: Source table that the columns belong to.
        names: Names of the columns to decode.
        budget: Memory budget for the columns.
        skipped: Counter of skipped events by the name of their type, which is updated. Only events of unknown types are
            counted, because they might be rows of the table.
        types: Event types of the events to decode. If empty, events of all types are decoded.
        exclusion: Filter that selects additional events to skip.

    Raises:
        Damage: A message is invalid, or the columns exceed the memory budget.
    """
    row_numbers = [n for n in names if n == ROWID or table.columns[n].kind is ValueDecoding.ROW]
    stacks = [n for n in names if n != ROWID and table.columns[n].kind is ValueDecoding.FRAMES]
    needed = {name: table.columns[name] for name in names if name not in (*row_numbers, *stacks)}
    total = len(selected_events.starts)
    rows = _find_row_indices(event_fields, table, budget, types, exclusion)
    skipped.update(event_fields.count_unknown_events(table, rows, types, budget))
    budget.reserve(total if rows is None else len(rows), CELL_BYTES * len(names), "events")
    fields_by_number = event_fields.decode_needed_fields(budget) if needed or stacks else {}
    fields = DecodedFields(selected_events.buffer, fields_by_number, rows, total if rows is None else len(rows))
    fields.decode_fields_at_paths([p for c in needed.values() for p in (c.path, *c.fallbacks)])
    arrays = {name: _build_column_array(fields, column) for name, column in needed.items()}
    for name in stacks:
        field = fields.get_payload_field(table.columns[name].path[0])
        arrays[name] = encode_stacks(selected_events.buffer, field, fields.rows)
    chains = {name: c for name, c in needed.items() if c.kind is ValueDecoding.CHAIN}
    totals = {name: len(arrays[name]) - arrays[name].null_count for name in chains}
    if row_numbers:
        is_filtered = bool(table.identifying_fields or table.event_classes or exclusion)
        ranks = (
            np.arange(fields.rows)
            if is_filtered
            else selected_events.compute_positions()
            if rows is None
            else selected_events.compute_positions()[rows]
        )
        arrays |= dict.fromkeys(row_numbers, col.build_number_array(ranks + 1))
        totals |= dict.fromkeys(row_numbers, fields.rows if is_filtered else selected_events.total)
    if totals:
        before = selected_events.exchange_totals(totals)
        firsts = {name: c.first_chain - 1 for name, c in chains.items()}
        arrays |= {name: pc.add(arrays[name], before[name] + firsts.get(name, 0)) for name in totals}
    return arrays | {n: pc.fill_null(arrays[n], c.default) for n, c in chains.items() if c.default is not None}


def decode_events(
    selected_events: SelectedEvents, table: EventTable, names: Sequence[str], budget: Budget
) -> dict[str, pa.Array]:
    """Decode events into columns of a source table, in event order, without counting events of unknown types.

    Args:
        selected_events: Events to decode.
        table: Source table that the columns belong to.
        names: Names of the columns to decode.
        budget: Memory budget for the columns.

    Raises:
        Damage: A message is invalid, or the columns exceed the memory budget.
    """
    event_fields = EventFields(selected_events, list_payload_fields(table, names))
    return decode_columns(event_fields, selected_events, table, names, budget, skipped=Counter())


class EventFilter(Protocol):
    """A filter that selects the events to exclude from a table."""

    @property
    def needed_field_numbers(self) -> tuple[int, ...]:
        """Numbers of the event fields that the filter needs."""
        ...

    def compute_exclusion_mask(self, fields_by_number: Mapping[int, Field], event_count: int) -> Mask:
        """Return a mask of the events to exclude.

        Args:
            fields_by_number: Decoded fields of the events, by field number.
            event_count: Number of events.
        """
        ...


class DecodedFields:
    """The decoded fields of the rows of one source table, by field path."""

    def __init__(
        self, buffer: Buffer, fields_by_number: Mapping[int, Field], selected: Int64Array | None, rows: int
    ) -> None:
        """Create an object that decodes fields of the rows of a source table.

        Args:
            buffer: Buffer that holds the messages.
            fields_by_number: Decoded fields of all events, by field number.
            selected: Indices of the events that are rows of the table, or None if all events are rows.
            rows: Number of rows of the table.
        """
        self.buffer = buffer
        self.rows = rows
        self._fields_by_number = fields_by_number
        self._selected = selected
        self._fields: dict[tuple[int, ...], Field | None] = {}

    def decode_fields_at_paths(self, paths: Iterable[tuple[int, ...]]) -> None:
        """Decode the fields at the given paths for later calls of ``get_decoded_field``."""
        inner: defaultdict[int, set[tuple[int, ...]]] = defaultdict(set)
        for path in paths:
            if len(path) == 1:
                self._fields[path] = self.get_payload_field(path[0])
            else:
                inner[path[0]].add(path[1:])
        for outer, rest in inner.items():
            nested = decode_nested_fields(self.buffer, self.get_payload_field(outer), rest)
            self._fields |= {(outer, *path): field for path, field in nested.items()}

    def get_decoded_field(self, path: tuple[int, ...]) -> Field | None:
        """Return the field at a path that ``decode_fields_at_paths`` has decoded, or None if no row has the field.

        The field has one value per row of the table.
        """
        return self._fields[path]

    def get_payload_field(self, field_number: int) -> Field | None:
        """Return a field of the payload with one value per row of the table, or None if no event has the field."""
        field = self._fields_by_number.get(field_number)
        return field if field is None or self._selected is None else field.take(self._selected)


def decode_nested_fields(
    buffer: Buffer, parent: Field | None, paths: Collection[tuple[int, ...]]
) -> dict[tuple[int, ...], Field | None]:
    """Decode fields inside a nested message, and return them by path. A field that no row has is None.

    Each field has one value per row of ``parent``.

    Args:
        buffer: Buffer that holds the messages.
        parent: Field that holds the nested message, or None if no row has the field.
        paths: Paths of the fields to decode, relative to the nested message.
    """
    if parent is None:
        return dict.fromkeys(paths)
    fields = decode(buffer, *parent.spans(), {path[0] for path in paths})
    rows = parent.rows()
    if rows is not None:
        fields = {n: _expand_to_all_rows(f, rows, len(parent.values)) for n, f in fields.items()}
    result: dict[tuple[int, ...], Field | None] = {path: fields.get(path[0]) for path in paths if len(path) == 1}
    for outer in {path[0] for path in paths if len(path) > 1}:
        rest = [path[1:] for path in paths if path[0] == outer and len(path) > 1]
        result |= {(outer, *path): f for path, f in decode_nested_fields(buffer, fields.get(outer), rest).items()}
    return result


def _find_row_indices(
    event_fields: EventFields, table: EventTable, budget: Budget, types: Sequence[int], exclusion: EventFilter | None
) -> Int64Array | None:
    """Return the indices of the events that are rows of a table, or None if all events are rows."""
    if table.nested_message:
        return event_fields.find_row_indices_with_nested_message(table, budget)
    total = len(event_fields.selected_events.starts)
    masks: list[Mask] = [event_fields.compute_mask_of_types(types)] if types else []
    if table.identifying_fields:
        fields_by_number, identified = event_fields.decode_needed_fields(budget), np.zeros(total, np.bool_)
        for field in (fields_by_number[number] for number in table.identifying_fields if number in fields_by_number):
            identified |= True if field.valid is None else field.valid
        masks.append(identified)
    if table.event_classes:
        masks.append(event_fields.compute_mask_of_classes(table.event_classes, budget))
    if exclusion:
        masks.append(~exclusion.compute_exclusion_mask(event_fields.decode_needed_fields(budget), total))
    if not masks:
        return None
    keep = functools.reduce(np.logical_and, masks)
    return None if keep.all() else np.flatnonzero(keep)


def _expand_to_all_rows(field: Field, rows: Int64Array, row_count: int) -> Field:
    """Expand a field with values for only some rows of a table to all rows. The field is absent in the added rows."""
    values, valid = np.zeros(row_count, np.uint64), np.zeros(row_count, np.bool_)
    values[rows] = field.values
    valid[rows] = True if field.valid is None else field.valid
    stops = None
    if field.stops is not None:
        stops = np.zeros(row_count, np.int64)
        stops[rows] = field.stops
    return Field(values, stops, valid, field.number)


def _build_column_array(fields: DecodedFields, column: SourceColumn) -> pa.Array:
    """Return a column of a source table, given its definition and the decoded fields."""
    array = _build_field_array(fields, column.path, column.kind)
    for path in column.fallbacks:
        array = pc.coalesce(array, _build_field_array(fields, path, column.kind))
    if column.default is not None and column.kind is not ValueDecoding.CHAIN:
        array = pc.fill_null(array, column.default)
    return array


def _build_field_array(fields: DecodedFields, path: tuple[int, ...], kind: ValueDecoding) -> pa.Array:
    """Return the values of one field as an Arrow array. The value is null where the field is absent."""
    field = fields.get_decoded_field(path)
    if field is None:
        return col.build_null_array(fields.rows, _ARROW_TYPES[kind])
    if kind is ValueDecoding.CHAIN:
        return _compute_selected_row_numbers(field.valid, fields.rows)
    if kind in _BYTES_CONVERTERS:
        return _BYTES_CONVERTERS[kind](fields.buffer, field, fields.rows)
    if field.stops is not None:
        raise Damage(f"field {path[-1]} of an event holds bytes instead of a number")
    if kind is ValueDecoding.DOUBLE:
        return col.build_number_array(field.values.view(np.float64), field.valid)
    if kind is ValueDecoding.FLOAT:
        return col.build_number_array(field.values.astype(np.uint32).view(np.float32).astype(np.float64), field.valid)
    return col.build_number_array(field.values.view(np.int64), field.valid)


def _compute_selected_row_numbers(mask: Mask | None, row_count: int) -> pa.Array:
    """Return consecutive numbers, starting with 1, for the rows that a mask selects, and null for all other rows.

    If the mask is None, all rows are numbered.
    """
    return col.build_number_array(np.arange(1, row_count + 1) if mask is None else np.cumsum(mask), mask)


def _build_bytes_array(buffer: Buffer, field: Field, row_count: int) -> pa.Array:
    """Return the values of a bytes field as a binary array."""
    if field.stops is None:
        raise Damage(f"field {field.number} of an event holds a number instead of bytes")
    starts, stops = field.values.view(np.int64), field.stops
    if field.valid is not None:
        stops = np.maximum.accumulate(np.where(field.valid, stops, 0))
        starts = np.where(field.valid, starts, stops)
    array = extract_strings(buffer.data, np.stack((starts, stops), axis=1).reshape(-1))
    if field.valid is None:
        return array
    return pa.Array.from_buffers(array.type, row_count, [col.pack_bits(field.valid), *array.buffers()[1:]])


def _build_dictionary_array(buffer: Buffer, field: Field, row_count: int) -> pa.DictionaryArray:
    """Return the values of a bytes field as a dictionary array."""
    array = dictionary_encode(buffer, *field.spans())
    if field.valid is None:
        return array
    codes = np.zeros(row_count, np.int32)
    codes[field.valid] = array.indices
    return pa.DictionaryArray.from_arrays(col.build_number_array(codes, field.valid), array.dictionary)


_BYTES_CONVERTERS = {ValueDecoding.BYTES: _build_bytes_array, ValueDecoding.NAME: _build_dictionary_array}
