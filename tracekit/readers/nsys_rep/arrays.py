"""From decoded fields to the columns of a table."""

from __future__ import annotations

import functools
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.nsys_rep.blocks import cut
from tracekit.readers.nsys_rep.decoding import Field, decode
from tracekit.readers.nsys_rep.layout import CLASS, Kind
from tracekit.readers.nsys_rep.wire import Damage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracekit.readers.nsys_rep.decoding import Buffer, Mask, Places
    from tracekit.readers.nsys_rep.events import Chosen
    from tracekit.readers.nsys_rep.layout import Column, Table

ROWID = "rowid"


@dataclass(frozen=True, slots=True)
class Counted:
    """A column that numbers rows through the whole table: n numbers from 1 within a slice, and how many it uses."""

    numbers: pa.Array
    total: int


@dataclass(frozen=True, slots=True)
class Slice:
    """Some rows of a table: columns by name, and those that go on counting from slice to slice."""

    columns: dict[str, pa.Array]
    counted: dict[str, Counted]

    @classmethod
    def whole(cls, rows: int, columns: dict[str, pa.Array]) -> Slice:
        """Make a slice whose n rows are all the rows there are."""
        return cls(columns, {ROWID: Counted(pa.array(np.arange(1, rows + 1)), rows)})

    def filter(self, keep: pa.Array) -> Slice:
        """Keep some rows; their numbers stay."""
        counted = {name: Counted(c.numbers.filter(keep), c.total) for name, c in self.counted.items()}
        return Slice({name: c.filter(keep) for name, c in self.columns.items()}, counted)


def columns(chosen: Chosen, table: Table, names: Sequence[str]) -> Slice:
    """Decode n events into columns of a table: one row for each that belongs to it, in order."""
    wanted = {name: table.columns[name] for name in names}
    paths = [p for c in wanted.values() for p in (c.path, c.otherwise) if p]
    filters = [*table.part, *((CLASS,) if table.classes else ())]
    total = len(chosen.starts)
    top = decode(chosen.buffer, chosen.starts, chosen.stops, {*(p[0] for p in paths), *filters})
    kept = _kept(top, table, total)
    parts = Parts(chosen.buffer, top, kept, total if kept is None else len(kept))
    parts.decode(paths)
    made = {name: _array(parts, column) for name, column in wanted.items()}
    chains = {name: _running(made.pop(name)) for name, c in wanted.items() if c.kind is Kind.CHAIN}
    if filters:
        return Slice(made, {**Slice.whole(parts.rows, {}).counted, **chains})
    return Slice(made, {ROWID: Counted(pa.array(chosen.ranks + 1), chosen.total), **chains})


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


def _kept(top: Mapping[int, Field], table: Table, rows: int) -> Places | None:
    """Return which of the rows belong to a table; None if all."""
    keep: Mask = np.ones(rows, np.bool_)
    if table.part:
        keep = np.zeros(rows, np.bool_)
        for number in table.part:
            found = top.get(number)
            if found is not None:
                keep |= True if found.valid is None else found.valid
    if table.classes:
        found = top.get(CLASS)
        if found is None:
            return np.zeros(0, np.int64)
        keep &= np.isin(found.values, np.array(table.classes, np.uint64))
        if found.valid is not None:
            keep &= found.valid
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


def _array(parts: Parts, column: Column) -> pa.Array:
    made = _plain(parts, column.path, column.kind)
    if column.otherwise is not None:
        made = pc.coalesce(made, _plain(parts, column.otherwise, column.kind))
    if column.missing is not None and column.kind is not Kind.CHAIN:
        made = pc.fill_null(made, column.missing)
    return made


def _plain(parts: Parts, path: tuple[int, ...], kind: Kind) -> pa.Array:
    found = parts.field(path)
    if found is None:
        return _nulls(parts.rows, _TYPES[kind])
    if kind is Kind.CHAIN:
        return numbers(np.ones(parts.rows, np.int64), found.valid)
    if kind is Kind.TEXT:
        return _texts(parts.buffer, found, parts.rows)
    if found.stops is not None:
        raise Damage("a field holds bytes instead of a number")
    if kind is Kind.DOUBLE:
        return numbers(found.values.view(np.float64), found.valid)
    if kind is Kind.FLOAT:
        return numbers(found.values.astype(np.uint32).view(np.float32).astype(np.float64), found.valid)
    return numbers(found.values.view(np.int64), found.valid)


def _running(marks: pa.Array) -> Counted:
    """Number the rows that are marked."""
    running = pc.cumulative_sum(pc.fill_null(marks, 0))
    return Counted(pc.if_else(marks.is_valid(), running, None), len(marks) - marks.null_count)


def numbers(values: np.ndarray[tuple[int], np.dtype[np.int64 | np.float64]], valid: Mask | None) -> pa.Array:
    """Wrap n numbers, without a copy; null where they are not valid."""
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [bits, pa.py_buffer(values)])


def _nulls(rows: int, kind: pa.DataType) -> pa.Array:
    """Make a column without values; they all share the same zeros, as most columns of most reports are such."""
    zeros = _zeros(max(rows, 1).bit_length())
    buffers = [zeros, zeros, zeros] if kind == pa.binary() else [zeros, zeros]
    return pa.Array.from_buffers(kind, rows, buffers, null_count=rows)


@functools.lru_cache(maxsize=4)
def _zeros(bits: int) -> pa.Buffer:
    return pa.py_buffer(np.zeros(8 << bits, np.uint8))


def _texts(buffer: Buffer, found: Field, rows: int) -> pa.Array:
    starts, stops = found.spans()
    made = cut(buffer.octets, np.stack((starts, stops), axis=1).reshape(-1))
    if found.valid is None:
        return made
    places = np.full(rows, -1)
    places[found.valid] = np.arange(len(made))
    return made.take(pa.array(places, mask=~found.valid))


_TYPES = {
    Kind.INT: pa.int64(),
    Kind.CHAIN: pa.int64(),
    Kind.DOUBLE: pa.float64(),
    Kind.FLOAT: pa.float64(),
    Kind.TEXT: pa.binary(),
}
