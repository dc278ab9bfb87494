"""One report as source tables: what an export of nsys would hold, with its names, rows and order."""

from __future__ import annotations

import functools
from collections import Counter
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.errors import CorruptTraceError
from tracekit.readers.nsys_rep import arrays, entries, layout, machine, metrics, names
from tracekit.readers.nsys_rep.arrays import ROWID, Slice
from tracekit.readers.nsys_rep.blocks import RawData
from tracekit.readers.nsys_rep.container import COPY_AGAIN, Container, located
from tracekit.readers.nsys_rep.decoding import decode
from tracekit.readers.nsys_rep.events import Events
from tracekit.readers.nsys_rep.layout import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracekit.readers.nsys_rep.events import Chosen
    from tracekit.readers.nsys_rep.metrics import Metric
    from tracekit.registry import Source

    Where = tuple[str, tuple[int, ...]]
    """Rows in which a column has one of some values; with no values, rows in which it is not null."""

Made = TypeVar("Made")
STRINGS, SAMPLES = "StringIds", "GPU_METRICS"


class Report:
    """An opened report: source tables by name, and slices of them as Arrow arrays.

    Attributes:
        path: The file.
        columns: Columns of each source table, whether it has rows or not.
    """

    def __init__(self, source: Source) -> None:
        self.path = source.path
        self.container = Container(source)
        with located(self.path):
            self.raw = RawData(self.container, entries.count)
        self.columns = self._catalogue()

    def count(self, table: str, where: Where | None = None) -> int:
        """Number of rows of a table that meet a condition; 0 if there is no such table."""
        if table not in self.columns:
            return 0
        return sum(size for (size,) in self.slices(table, [ROWID], where, lambda _, array: len(array)))

    def slices(
        self, table: str, columns: Sequence[str], where: Where | None, work: Callable[[str, pa.Array], Made]
    ) -> Iterator[list[Made]]:
        """Read rows of a table in the order of the file, some megabytes of the report at a time, in several threads.

        Args:
            table: Name of a table of ``columns``.
            columns: Names of its columns: integers and reals in 64 bits, texts as bytes; ``rowid`` counts rows from 1.
            where: Only rows that meet this condition.
            work: What to do with a column of a slice, in the thread that read it.

        Yields:
            What ``work`` made of each column.

        Raises:
            CorruptTraceError: The report is damaged there.
        """
        missing = self._counting(table)
        plain = [c for c in dict.fromkeys([*columns, *([where[0]] if where else [])]) if c != ROWID]

        def convert(made: Slice) -> tuple[Slice, dict[str, Made]]:
            kept = made if where is None else made.filter(_condition(made.columns[where[0]], where[1]))
            return kept, {c: work(c, a) for c, a in kept.columns.items() if c in columns}

        done: Counter[str] = Counter()
        with located(self.path, table):
            for made, worked in self._each(table, plain, where, convert):
                for name in made.counted.keys() & set(columns):
                    worked[name] = work(name, _from(made.counted[name].numbers, done[name], missing[name]))
                done.update({name: c.total for name, c in made.counted.items()})
                yield [worked[c] for c in columns]

    def rowid(self, table: str, index: int, where: Where | None = None) -> int | None:
        """Number of a row in its table: the one at ``index`` of those that meet a condition; None if there is none."""
        for (rows,) in self.slices(table, [ROWID], where, lambda _, array: array):
            if index < len(rows):
                return int(rows[index].as_py())
            index -= len(rows)
        return None

    def wrong_type(self, table: str, column: str, expected: str) -> CorruptTraceError:
        """Return the error for a column of a foreign type."""
        return CorruptTraceError(f"column {column} is not {expected}", path=self.path, table=table, hint=COPY_AGAIN)

    @functools.cached_property
    def undecoded(self) -> dict[str, int]:
        """What is recorded and in no declared table: number of events by name, the most frequent first."""
        with located(self.path):
            found: Counter[str] = Counter()
            for kind, number in self.events.counts().items():
                name = names.of_kind(kind)
                found.update({} if name is None else {name: number})
            found.update(self._other_calls())
            found.update(self._other_generic())
            return dict(found.most_common())

    @functools.cached_property
    def events(self) -> Events:
        """The events, found in their blocks."""
        return Events(self.raw)

    @functools.cached_property
    def metrics(self) -> dict[int, list[Metric]]:
        """GPU metrics of each type of sample."""
        return metrics.types(self.raw)

    def close(self) -> None:
        """Close the file."""
        self.container.close()

    def _catalogue(self) -> dict[str, tuple[str, ...]]:
        release = self.container.release
        known = {
            name: tuple(c for c, at in table.columns.items() if not () < release < at.since)
            for name, table in layout.TABLES.items()
        }
        small = {name: machine.TABLES[name][0] for name in machine.table_names(release)}
        return {**known, **small, STRINGS: ("id", "value"), SAMPLES: metrics.COLUMNS}

    def _each(
        self, table: str, columns: list[str], where: Where | None, work: Callable[[Slice], Made]
    ) -> Iterator[Made]:
        """Do some work on slices of a table; of rows that cannot meet a condition some are left out."""
        if table == SAMPLES:
            known = self.metrics
            yield from self.events.each(entries.GENERIC, (), lambda chosen: work(metrics.samples(known, chosen)))
        elif table in layout.TABLES:
            at = layout.TABLES[table]
            types = where[1] if where and where[0] == at.typed_by else at.types
            yield from self.events.each(at.payload, types, lambda chosen: work(arrays.columns(chosen, at, columns)))
        elif table == STRINGS:
            strings = self.raw.strings
            ids = pa.array(np.arange(len(strings)))
            yield work(Slice.whole(len(strings), {"id": ids, "value": strings}))
        else:
            rows = list(machine.TABLES[table][1](self))
            yield work(Slice.whole(len(rows), {c: _listed([r[c] for r in rows]) for c in columns}))

    def _counting(self, table: str) -> dict[str, int | None]:
        """Columns of a table that number rows, and what stands where there is nothing to number."""
        declared = layout.TABLES.get(table)
        listed = {} if declared is None else declared.columns
        return {ROWID: None} | {name: c.missing for name, c in listed.items() if c.kind is Kind.CHAIN}

    def _other_calls(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for event_type in (layout.CALL, layout.CALL_MARK):
            for counted in self.events.each(layout.API, (event_type,), lambda chosen: _counted(chosen, layout.CLASS)):
                for event_class, number in counted.items():
                    name = names.of_call(event_type, event_class)
                    found.update({} if name is None else {name: number})
        return found

    def _other_generic(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for counted in self.events.each(entries.GENERIC, (), lambda chosen: _counted(chosen, 1)):
            other = sum(n for number, n in counted.items() if number not in self.metrics)
            found.update({"generic event": other} if other else {})
        return found


def _counted(chosen: Chosen, field: int) -> dict[int, int]:
    """Count the values of a field of n messages."""
    found = decode(chosen.buffer, chosen.starts, chosen.stops, (field,)).get(field)
    if found is None:
        return {}
    values = found.values if found.valid is None else found.values[found.valid]
    numbers, counts = np.unique_counts(values)
    return dict(zip(numbers.tolist(), counts.tolist(), strict=True))


def _from(numbers: pa.Array, before: int, missing: int | None) -> pa.Array:
    """Count on from the slices before; rows without a number get what stands for it."""
    counted = pc.add(numbers, before)
    return counted if missing is None else pc.fill_null(counted, missing)


def _listed(values: list[int | str | None]) -> pa.Array:
    return pa.array(values, pa.string() if any(isinstance(v, str) for v in values) else pa.int64())


def _condition(column: pa.Array, values: tuple[int, ...]) -> pa.Array:
    return pc.is_in(column, pa.array(values, pa.int64())) if values else column.is_valid()
