"""From decoded fields to the columns of a table."""

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
from tracekit.readers.common.protobuf.decoding import Field, decode, extract_strings
from tracekit.readers.common.protobuf.distinct import dictionary_encode
from tracekit.readers.nsys.tables import ROWID
from tracekit.readers.nsys_rep import left_out
from tracekit.readers.nsys_rep.layout import CLASS, ValueKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracekit.readers.common.budget import Budget
    from tracekit.readers.common.protobuf.decoding import Buffer, Mask, Places
    from tracekit.readers.nsys_rep.events import Chosen
    from tracekit.readers.nsys_rep.layout import EventTable, SourceColumn

FIELD_BYTES = 17
"""Memory of a decoded field: its value, where it ends, and whether it is there."""


def columns(
    chosen: Chosen,
    table: EventTable,
    names: Sequence[str],
    budget: Budget,
    *,
    skipped: Counter[str],
    without: Unwanted | None = None,
) -> dict[str, pa.Array]:
    """Decode n events into columns of a table: one row for each that belongs to it, in order.

    Args:
        chosen: The events.
        table: The table.
        names: The columns.
        budget: Memory that they may take.
        skipped: Is given the number of events that may belong to it but are not known, by name.
        without: Events that are no rows of it, though they look like them.

    Raises:
        Damage: A message is damaged, or there are more rows than there may be.
    """
    wanted = {name: table.columns[name] for name in names if name != ROWID}
    paths = [p for c in wanted.values() for p in (c.path, c.fallback) if p]
    filters = [*table.parts, *((CLASS,) if table.event_classes else ()), *(without.fields if without else ())]
    total = len(chosen.starts)
    outer = {*(p[0] for p in paths), *filters, *table.sibling_parts}
    budget.check(total, FIELD_BYTES * len(outer), "events")
    top = decode(chosen.buffer, chosen.starts, chosen.stops, outer)
    kept = _kept(top, table, total, without)
    skipped.update(left_out.rows(chosen, top, table, kept))
    budget.take(total if kept is None else len(kept), CELL_BYTES * len(names), "events")
    parts = Parts(chosen.buffer, top, kept, total if kept is None else len(kept))
    parts.decode(paths)
    made = {name: _array(parts, column) for name, column in wanted.items()}
    chains = {name: c for name, c in wanted.items() if c.kind is ValueKind.CHAIN}
    totals = {name: len(made[name]) - made[name].null_count for name in chains}
    if ROWID in names:
        ranks = np.arange(parts.rows) if filters else chosen.ranks()
        made[ROWID] = pa.array(ranks + 1)
        totals[ROWID] = parts.rows if filters else chosen.total
    if totals:
        before = chosen.hand_on(totals)
        firsts = {name: c.first_chain - 1 for name, c in chains.items()}
        made |= {name: pc.add(made[name], before[name] + firsts.get(name, 0)) for name in totals}
    return made | {n: pc.fill_null(made[n], c.default) for n, c in chains.items() if c.default is not None}


class Unwanted(Protocol):
    """Events that are left out of a table, told by some of their fields."""

    @property
    def fields(self) -> tuple[int, ...]:
        """The fields."""
        ...

    def mask(self, top: Mapping[int, Field], rows: int) -> Mask:
        """Say of n events, whose fields are decoded, which ones are left out."""
        ...


class Parts:
    """The fields of the rows of one table, by path."""

    def __init__(self, buffer: Buffer, top: Mapping[int, Field], kept: Places | None, rows: int) -> None:
        self.buffer = buffer
        self.rows = rows
        self._top = top
        self._kept = kept
        self._fields: dict[tuple[int, ...], Field | None] = {}

    def decode(self, paths: Iterable[tuple[int, ...]]) -> None:
        """Make the fields at some paths ready."""
        inner: defaultdict[int, set[int]] = defaultdict(set)
        for path in paths:
            if len(path) == 1:
                self._fields[path] = self._of_top(path[0])
            else:
                inner[path[0]].add(path[1])
        for outer, numbers in inner.items():
            found = self._inside(outer, numbers)
            self._fields |= {(outer, n): found.get(n) for n in numbers}

    def field(self, path: tuple[int, ...]) -> Field | None:
        """The field at a path: of as many rows as the table has; None if no row has it."""
        return self._fields[path]

    def _of_top(self, number: int) -> Field | None:
        found = self._top.get(number)
        if found is None or self._kept is None:
            return found
        stops = None if found.stops is None else found.stops[self._kept]
        valid = None if found.valid is None else found.valid[self._kept]
        return Field(found.values[self._kept], stops, valid)

    def _inside(self, outer: int, numbers: set[int]) -> dict[int, Field]:
        part = self._of_top(outer)
        if part is None:
            return {}
        found = decode(self.buffer, *part.spans(), numbers)
        rows = part.rows()
        return found if rows is None else {n: _spread(f, rows, self.rows) for n, f in found.items()}


def _kept(top: Mapping[int, Field], table: EventTable, rows: int, without: Unwanted | None) -> Places | None:
    """Return which of the rows belong to a table; None if all."""
    keep: Mask = np.ones(rows, np.bool_)
    if table.parts:
        keep = np.zeros(rows, np.bool_)
        for number in table.parts:
            found = top.get(number)
            if found is not None:
                keep |= True if found.valid is None else found.valid
    if table.event_classes:
        found = top.get(CLASS)
        if found is None:
            return np.zeros(0, np.int64)
        keep &= np.isin(found.values, np.array(table.event_classes, np.uint64))
        if found.valid is not None:
            keep &= found.valid
    if without:
        keep &= ~without.mask(top, rows)
    return None if keep.all() else np.flatnonzero(keep)


def _spread(found: Field, rows: Places, total: int) -> Field:
    """Give the fields of some rows back to all rows."""
    values, valid = np.zeros(total, np.uint64), np.zeros(total, np.bool_)
    values[rows] = found.values
    valid[rows] = True if found.valid is None else found.valid
    stops = None
    if found.stops is not None:
        stops = np.zeros(total, np.int64)
        stops[rows] = found.stops
    return Field(values, stops, valid)


def _array(parts: Parts, column: SourceColumn) -> pa.Array:
    made = _plain(parts, column.path, column.kind)
    if column.fallback is not None:
        made = pc.coalesce(made, _plain(parts, column.fallback, column.kind))
    if column.default is not None and column.kind is not ValueKind.CHAIN:
        made = pc.fill_null(made, column.default)
    return made


def _plain(parts: Parts, path: tuple[int, ...], kind: ValueKind) -> pa.Array:
    found = parts.field(path)
    if found is None:
        return nulls(parts.rows, _TYPES[kind])
    if kind is ValueKind.CHAIN:
        return _running(found.valid, parts.rows)
    if kind in _BYTES:
        return _BYTES[kind](parts.buffer, found, parts.rows)
    if found.stops is not None:
        raise Damage("a field holds bytes instead of a number")
    if kind is ValueKind.DOUBLE:
        return col.numbers(found.values.view(np.float64), found.valid)
    if kind is ValueKind.FLOAT:
        return col.numbers(found.values.astype(np.uint32).view(np.float32).astype(np.float64), found.valid)
    return col.numbers(found.values.view(np.int64), found.valid)


def _running(marks: Mask | None, rows: int) -> pa.Array:
    """Number the rows that are marked, all if there are no marks, from 1; the others are null."""
    return col.numbers(np.arange(1, rows + 1) if marks is None else np.cumsum(marks), marks)


def nulls(rows: int, kind: pa.DataType) -> pa.Array:
    """Make a column without values; they all share the same zeros, as most columns of most reports are such."""
    if pa.types.is_dictionary(kind):
        return pa.nulls(rows, kind)
    zeros = _zeros(max(rows, 1).bit_length())
    buffers = [zeros] * (3 if kind in (pa.binary(), pa.string()) else 2)
    return pa.Array.from_buffers(kind, rows, buffers, null_count=rows)


@functools.lru_cache(maxsize=4)
def _zeros(bits: int) -> pa.Buffer:
    return pa.py_buffer(np.zeros(8 << bits, np.uint8))


def _texts(buffer: Buffer, found: Field, rows: int) -> pa.Array:
    if found.stops is None:
        raise Damage("a field holds a number instead of bytes")
    starts, stops = found.values.view(np.int64), found.stops
    if found.valid is not None:
        stops = np.maximum.accumulate(np.where(found.valid, stops, 0))
        starts = np.where(found.valid, starts, stops)
    made = extract_strings(buffer.data, np.stack((starts, stops), axis=1).reshape(-1))
    if found.valid is None:
        return made
    return pa.Array.from_buffers(made.type, rows, [col.pack_bits(found.valid), *made.buffers()[1:]])


def _names(buffer: Buffer, found: Field, rows: int) -> pa.DictionaryArray:
    made = dictionary_encode(buffer, *found.spans())
    if found.valid is None:
        return made
    places = np.zeros(rows, np.int32)
    places[found.valid] = made.indices
    return pa.DictionaryArray.from_arrays(col.numbers(places, found.valid), made.dictionary)


_TYPES = {
    ValueKind.INT: pa.int64(),
    ValueKind.CHAIN: pa.int64(),
    ValueKind.DOUBLE: pa.float64(),
    ValueKind.FLOAT: pa.float64(),
    ValueKind.BYTES: pa.binary(),
    ValueKind.NAME: pa.dictionary(pa.int32(), pa.binary()),
}
_BYTES = {ValueKind.BYTES: _texts, ValueKind.NAME: _names}
