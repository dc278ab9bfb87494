"""Decode the events of a report into the columns of source tables, and call stacks into frames.

Most call stacks occur in several events. Therefore, the bytes of the stacks are dictionary-encoded first. Later, each
distinct stack is split into frames. The frames are dictionary-encoded in the same way, and each distinct frame is
decoded once.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common import columns as col
from tracekit.readers.common.budget import CELL_BYTES
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import Buffer, decode, encode_distinct_strings, find_occurrences
from tracekit.readers.common.protobuf.rows import (
    MESSAGE_TYPE,
    ColumnKind,
    FieldTest,
    RowColumn,
    RowDecoder,
    RowTable,
)
from tracekit.readers.nsys.tables import ROWID
from tracekit.readers.nsys_rep import layout, unknown_events
from tracekit.readers.nsys_rep.layout import ValueDecoding, convert_to_snake_case, load_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracekit.readers.common.budget import Budget
    from tracekit.readers.common.protobuf.decoding import Int64Array
    from tracekit.readers.common.protobuf.rows import Clause, DecodedRows
    from tracekit.readers.nsys.tables import Where
    from tracekit.readers.nsys_rep.events import SelectedEvents
    from tracekit.readers.nsys_rep.layout import EventTable

COLUMNS = ("symbol", "module", "kernelMode", "thumbCode", "unresolved", "specialEntry", "originalIP", "unwindMethod")
FRAME_BYTES = 48
"""Bytes of memory per frame of a distinct stack while a batch is decoded."""
_NUMBERS = {
    c: getattr(load_fields("Frame"), "original_ip" if c == "originalIP" else convert_to_snake_case(c)) for c in COLUMNS
}
_FRAME = pa.struct([(c, pa.int64()) for c in COLUMNS])
_NAMES = pa.dictionary(pa.int32(), pa.binary())
_KINDS = {
    ValueDecoding.INT: (ColumnKind.INT64, pa.int64()),
    ValueDecoding.DOUBLE: (ColumnKind.INT64, pa.float64()),
    ValueDecoding.FLOAT: (ColumnKind.INT64, pa.int64()),
    ValueDecoding.BYTES: (ColumnKind.BYTES, pa.binary()),
    ValueDecoding.NAME: (ColumnKind.BYTES, _NAMES),
    ValueDecoding.FRAMES: (ColumnKind.BYTES, _NAMES),
    ValueDecoding.ROW: (ColumnKind.RANK, pa.int64()),
    ValueDecoding.CHAIN: (ColumnKind.CHAIN, pa.int64()),
}
_RANK = RowColumn(*_KINDS[ValueDecoding.ROW])


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


class TableRequest(NamedTuple):
    """Columns of a source table that are decoded from events.

    Attributes:
        table: The source table.
        types: Types of the columns by name. Columns of integers may have the type int32, and names may be strings.
            Otherwise, the type of a column is determined by how its values are decoded.
        event_types: Event types of the events to decode. If empty, events of all types are decoded.
        where: Filter of the rows by values of an integer column, which are less than 254.
    """

    table: EventTable
    types: Mapping[str, pa.DataType]
    event_types: tuple[int, ...] = ()
    where: Where | None = None

    @property
    def has_identified_rows(self) -> bool:
        """Whether fields identify the rows. If not, every event with the payload field of the table has a number."""
        return bool(self.table.identifying_fields or self.table.event_classes)

    def build_row_table(self) -> RowTable:
        """Return the definition of the rows and columns."""
        types = ((FieldTest(MESSAGE_TYPE, frozenset(self.event_types)),),) if self.event_types else ()
        clauses, filters = [*_list_clauses(self.table)], [*(() if self.has_identified_rows else types)]
        if self.where is not None:
            filters.append((FieldTest(self.table.columns[self.where.column].path, frozenset(self.where.values)),))
        columns = {name: self._define_column(name, kind) for name, kind in self.types.items()}
        return RowTable(columns, (*(types if self.has_identified_rows else ()), *clauses), tuple(filters))

    def _define_column(self, name: str, arrow_type: pa.DataType) -> RowColumn:
        if name == ROWID:
            return _RANK
        source = self.table.columns[name]
        kind, declared = _KINDS[source.kind]
        if source.kind is ValueDecoding.INT and arrow_type == pa.int32():
            kind, declared = ColumnKind.INT32, arrow_type
        if source.kind is ValueDecoding.NAME and arrow_type == col.DICTIONARY:
            declared = arrow_type
        default = source.default if source.kind is ValueDecoding.INT else None
        return RowColumn(kind, declared, (source.path, *source.fallbacks), default)


class EventDecoder:
    """A decoder of several source tables whose events have the same payload field. Several threads may use it."""

    def __init__(self, requests: Sequence[TableRequest]) -> None:
        """Create a decoder.

        Args:
            requests: The columns to decode.
        """
        self._requests = requests
        tables = [request.build_row_table() for request in requests]
        self._unknown_tables = [
            unknown_events.define_tables(request.table, request.event_types) for request in requests
        ]
        unknown = dict.fromkeys(table for listed in self._unknown_tables for table in listed)
        self._indices_of_unknown = {table: len(tables) + nth for nth, table in enumerate(unknown)}
        frames = [
            request.table.columns[name].path
            for request in requests
            for name in request.types
            if name != ROWID and request.table.columns[name].kind is ValueDecoding.FRAMES
        ]
        decoded = [*tables, *(table.build_row_table() for table in unknown)]
        self._decoder = RowDecoder(decoded, frames[0] if frames else MESSAGE_TYPE)

    def decode(
        self, selected_events: Sequence[SelectedEvents], budgets: Sequence[Budget], skipped: Sequence[Counter[str]]
    ) -> list[dict[str, pa.Array]]:
        """Decode events into the columns of each request, in event order. Events that are no rows are skipped.

        Args:
            selected_events: The same events for each request. Their function ``exchange_totals`` provides the number
                of rows of its table in all earlier batches.
            budgets: Memory budget of each request.
            skipped: For each request, a counter of skipped events by the name of their type, which is updated. Only
                events of unknown types are counted, because they might be rows of the table.

        Raises:
            Damage: A message is invalid, or the columns exceed the memory budget.
        """
        requests = self._requests

        def reserve(nth: int, rows: int) -> None:
            if nth < len(requests):
                budgets[nth].reserve(rows, CELL_BYTES * len(requests[nth].types), "events")

        decoded = self._decoder.decode(selected_events[0].buffer, selected_events[0].messages, reserve)
        for tables, counter in zip(self._unknown_tables, skipped, strict=True):
            for table in tables:
                counter.update(table.count_names(decoded[self._indices_of_unknown[table]].columns))
        return [_number_rows(*item) for item in zip(requests, selected_events, decoded, strict=False)]


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
    request = TableRequest(table, {name: _KINDS[table.columns[name].kind][1] for name in names})
    return EventDecoder([request]).decode([selected_events], [budget], [Counter()])[0]


def _list_clauses(table: EventTable) -> Iterable[Clause]:
    """Yield the clauses that hold for the payloads of the rows of a table."""
    if table.identifying_fields:
        yield tuple(FieldTest((number,)) for number in table.identifying_fields)
    if table.event_classes:
        yield (FieldTest((layout.CLASS,), frozenset(table.event_classes)),)
    if table.nested_message:
        yield (FieldTest(table.nested_message),)
    if len(table.nested_message) == 1:
        for path in layout.list_nested_messages(table.nested_message):
            yield (FieldTest(path, is_negated=True),)


def _number_rows(request: TableRequest, selected_events: SelectedEvents, decoded: DecodedRows) -> dict[str, pa.Array]:
    """Return the columns of a table in which rows and call chains are numbered across batches, from 1 or 0."""
    arrays = decoded.columns
    columns = {name: request.table.columns[name] for name in request.types if name != ROWID}
    ranks = [name for name in request.types if name == ROWID or columns[name].kind is ValueDecoding.ROW]
    chains = {name: c for name, c in columns.items() if c.kind is ValueDecoding.CHAIN}
    totals = {name: len(arrays[name]) - arrays[name].null_count for name in chains}
    if ranks and request.has_identified_rows:
        totals |= dict.fromkeys(ranks, decoded.total)
    elif ranks:
        positions = selected_events.compute_positions()
        arrays |= {n: col.build_number_array(positions[arrays[n].to_numpy()]) for n in ranks}
        totals |= dict.fromkeys(ranks, selected_events.total)
    if totals:
        before = selected_events.exchange_totals(totals)
        firsts = dict.fromkeys(ranks, 1) | {name: c.first_chain - 1 for name, c in chains.items()}
        arrays |= {name: pc.add(arrays[name], before[name] + firsts[name]) for name in totals}
    floats = {n: _convert_to_doubles(arrays[n]) for n, c in columns.items() if c.kind is ValueDecoding.FLOAT}
    return arrays | floats | {n: arrays[n].fill_null(c.default) for n, c in chains.items() if c.default is not None}


def _convert_to_doubles(bits: pa.Array) -> pa.Array:
    """Convert the bits of floating-point numbers of 32 bits, which are stored as integers, to doubles."""
    if bits.null_count == len(bits):
        return col.build_null_array(len(bits), pa.float64())
    values = np.frombuffer(bits.buffers()[1], np.int64).astype(np.uint32).view(np.float32).astype(np.float64)
    return pa.Array.from_buffers(pa.float64(), len(bits), [bits.buffers()[0], pa.py_buffer(values)])
