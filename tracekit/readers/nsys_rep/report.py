"""One report as source tables: what an export of nsys would hold, with its names, rows and order."""

from __future__ import annotations

import functools
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.errors import warn
from tracekit.readers.nsys import columns as col
from tracekit.readers.nsys.tables import ROWID
from tracekit.readers.nsys_rep import arrays, entries, layout, machine, metrics, names
from tracekit.readers.nsys_rep.blocks import RawData
from tracekit.readers.nsys_rep.container import COPY_AGAIN, Container, located
from tracekit.readers.nsys_rep.decoding import decode
from tracekit.readers.nsys_rep.events import Events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tracekit.readers.nsys.tables import Made, Where
    from tracekit.readers.nsys_rep.events import Chosen
    from tracekit.readers.nsys_rep.metrics import Metric
    from tracekit.registry import Source

STRINGS, SAMPLES = "StringIds", "GPU_METRICS"


class Report:
    """An opened report: source tables by name, and slices of them as Arrow arrays.

    Attributes:
        path: The file.
        columns: Columns of each source table, whether it has rows or not.
        hint: What to do about a damaged report.
    """

    hint = COPY_AGAIN

    def __init__(self, source: Source) -> None:
        self.path = source.path
        self.container = Container(source)
        with located(self.path):
            self.raw = RawData(self.container, entries.count)
        self.columns: Mapping[str, tuple[str, ...]] = self._catalogue()

    def count(self, table: str, where: Where | None = None) -> int:
        """Number of rows of a table that meet a condition; 0 if there is no such table."""
        if table not in self.columns:
            return 0
        return sum(self.pieces(table, {ROWID: pa.int64()}, where, lambda piece: int(piece.num_rows)))

    def at_most(self, table: str) -> int:
        """About how many rows a table has at most: the report has that many events."""
        if table == SAMPLES:
            return self.raw.events * max((len(listed) for listed in self.metrics.values()), default=0)
        return self.raw.events if table in layout.TABLES else 0

    def pieces(
        self,
        table: str,
        types: Mapping[str, pa.DataType],
        where: Where | None,
        work: Callable[[pa.Table], Made],
    ) -> Iterator[Made]:
        """Read columns of a table in the order of the file, some megabytes of the report at a time, in several threads.

        A column that the report lacks is null; ``rowid`` counts rows from 1.

        Raises:
            CorruptTraceError: The report is damaged there.
        """
        have = [c for c in types if c == ROWID or c in self.columns[table]] or [ROWID]
        needed = list(dict.fromkeys([*have, *([where.column] if where else [])]))
        repaired: Counter[str] = Counter()

        def piece(made: dict[str, pa.Array]) -> tuple[Made, Counter[str]]:
            kept = _met(made, where)
            rows = len(kept[have[0]])
            columns = {c: col.typed(kept[c], t) if c in kept else (arrays.nulls(rows, t), 0) for c, t in types.items()}
            broken = Counter({c: n for c, (_, n) in columns.items() if n})
            return work(pa.table({c: array for c, (array, _) in columns.items()})), broken

        with located(self.path, table):
            for done, broken in self._each(table, needed, where, piece):
                repaired += broken
                yield done
        for name, number in repaired.items():
            warn(f"{number} texts of {table}.{name} are not UTF-8: repaired", path=self.path)

    def rowid(self, table: str, index: int, where: Where | None = None) -> int | None:
        """Number of a row in its table: the one at ``index`` of those that meet a condition; None if there is none."""
        for rows in self.pieces(table, {ROWID: pa.int64()}, where, lambda piece: piece[ROWID]):
            if index < len(rows):
                return int(rows[index].as_py())
            index -= len(rows)
        return None

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
        with located(self.path):
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
        self, table: str, columns: list[str], where: Where | None, work: Callable[[dict[str, pa.Array]], Made]
    ) -> Iterator[Made]:
        """Do some work on slices of a table; of rows that cannot meet a condition some are left out."""
        if table == SAMPLES:
            known = self.metrics
            yield from self.events.each(entries.GENERIC, (), lambda chosen: work(metrics.samples(known, chosen)))
        elif table in layout.TABLES:
            at = layout.TABLES[table]
            types = where.values if where and where.column == at.typed_by else at.types
            yield from self.events.each(at.payload, types, lambda chosen: work(arrays.columns(chosen, at, columns)))
        elif table == STRINGS:
            ids = np.arange(len(self.raw.strings))
            yield work({ROWID: pa.array(ids + 1), "id": pa.array(ids), "value": self.raw.strings})
        else:
            rows = list(machine.TABLES[table][1](self))
            listed = {c: _listed([r[c] for r in rows]) for c in columns if c != ROWID}
            yield work({ROWID: pa.array(np.arange(1, len(rows) + 1)), **listed})

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


def _listed(values: list[int | str | None]) -> pa.Array:
    return pa.array(values, pa.string() if any(isinstance(v, str) for v in values) else pa.int64())


def _met(made: dict[str, pa.Array], where: Where | None) -> dict[str, pa.Array]:
    """Keep the rows of some columns that meet a condition."""
    if where is None:
        return made
    column = made[where.column]
    keep = pc.is_in(column, pa.array(where.values, pa.int64())) if where.values else column.is_valid()
    return made if keep.true_count == len(keep) else {name: c.filter(keep) for name, c in made.items()}
