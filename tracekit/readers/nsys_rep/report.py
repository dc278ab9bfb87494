"""One report as source tables: what an export of nsys would hold, with its names, rows and order."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.errors import warn
from tracekit.readers.common import columns as col
from tracekit.readers.common.budget import BYTES_PER_BYTE, Ledger
from tracekit.readers.common.damage import COPY_AGAIN, damage_as_error
from tracekit.readers.common.protobuf.decoding import decode
from tracekit.readers.nsys.tables import ROWID, Request
from tracekit.readers.nsys_rep import arrays, entries, layout, left_out, machine, metrics, mpi, names, payloads
from tracekit.readers.nsys_rep.blocks import RawData
from tracekit.readers.nsys_rep.container import Container
from tracekit.readers.nsys_rep.entries import Wanted
from tracekit.readers.nsys_rep.events import Events
from tracekit.readers.nsys_rep.fields import fields_of
from tracekit.readers.nsys_rep.payload_schemas import Schemas

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from tracekit.readers.common.budget import Budget
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
        with damage_as_error(self.path, file=self.container.file):
            self.raw = RawData(self.container, entries.counter())
        self.columns: Mapping[str, tuple[str, ...]] = self._catalogue()
        self._ledger = Ledger(self.raw.file_bytes)
        self._told: Counter[tuple[int, str]] = Counter()

    def counts(self, wanted: Sequence[tuple[str, Where | None]]) -> list[int]:
        """Numbers of rows of tables that meet conditions; 0 if there is no such table. Those of events in one pass."""
        asked = [nth for nth, (table, _) in enumerate(wanted) if table in self.columns]
        found = [0] * len(wanted)
        for nth, rows in self.pieces([_counting(*wanted[nth]) for nth in asked]):
            found[asked[nth]] += rows
        return found

    def at_most(self, table: str) -> int:
        """About how many rows a table has at most: the report has that many events."""
        if table == SAMPLES:
            return self.raw.events * max((len(listed) for listed in self.metrics.values()), default=0)
        return self.raw.events if table in layout.TABLES else 0

    def pieces(self, requests: Sequence[Request[Made]]) -> Iterator[tuple[int, Made]]:
        """Read columns of tables in the order of the file; those of events together, in one pass over its blocks.

        A pass takes some megabytes of the report at a time, in several threads. A column that the report lacks is null;
        ``rowid`` counts rows from 1.

        Raises:
            CorruptTraceError: The report is damaged there.
        """
        repaired: Counter[tuple[str, str]] = Counter()
        skipped: Counter[tuple[int, str]] = Counter()
        of_events = [nth for nth, r in enumerate(requests) if r.table in layout.TABLES or r.table == SAMPLES]
        for nth, request in enumerate(requests):
            if nth not in of_events:
                with damage_as_error(self.path, request.table, self.container.file), self._reading(request) as budget:
                    yield nth, self._work(request, self._small(request.table, budget), repaired, budget)
        if of_events:
            asked = [requests[nth] for nth in of_events]
            with damage_as_error(self.path, asked[0].table if len(asked) == 1 else None, self.container.file):
                for made in self._pass(asked, repaired, skipped):
                    yield from zip(of_events, made, strict=True)
            self._tell_skipped(skipped, {_payload(r.table) for r in asked})
        for (table, name), number in repaired.items():
            warn(f"{number} texts of {table}.{name} are not UTF-8: repaired", path=self.path)

    def _pass(
        self,
        requests: Sequence[Request[Made]],
        repaired: Counter[tuple[str, str]],
        skipped: Counter[tuple[int, str]],
    ) -> Iterator[list[Made]]:
        """Read tables of events: what the works make of each batch."""
        lock = threading.Lock()

        def work(batch: list[Chosen]) -> list[Made]:
            broken: Counter[tuple[str, str]] = Counter()
            unknown: list[Counter[str]] = [Counter() for _ in requests]
            jobs = zip(requests, batch, budgets, unknown, strict=True)
            done = [self._work(r, self._rows(r, chosen, budget, u), broken, budget) for r, chosen, budget, u in jobs]
            with lock:
                repaired.update(broken)
                for found, total in zip(unknown, totals, strict=True):
                    total.update(found)
            return done

        totals: list[Counter[str]] = [Counter() for _ in requests]
        with contextlib.ExitStack() as stack:
            budgets = [stack.enter_context(self._reading(request)) for request in requests]
            yield from self.events.each([self._wanted(r) for r in requests], work)
        for request, total in zip(requests, totals, strict=True):
            skipped |= Counter({(_payload(request.table), name): n for name, n in total.items()})

    def _tell_skipped(self, skipped: Counter[tuple[int, str]], payloads: Collection[int]) -> None:
        """Warn, once, of events that may be rows of tables that were read, but are not known."""
        known = left_out.of_types(self.events.counts())
        found = skipped | Counter({(payload, name): n for payload, n, name in known if payload in payloads})
        for (payload, name), number in (found - self._told).items():
            said = (
                f"{number} events are left out of {left_out.TABLES[payload]}, as it is not known what they are: {name}"
            )
            warn(said, path=self.path)
        self._told |= found

    def _work(
        self, request: Request[Made], made: dict[str, pa.Array], repaired: Counter[tuple[str, str]], budget: Budget
    ) -> Made:
        """Give a piece of a table to the work: rows that meet the condition, in the types asked for."""
        kept = _met(made, request.where)
        rows = len(next(iter(kept.values())))
        budget.take(rows, request.row_bytes, "events")
        columns: dict[str, pa.Array] = {}
        for name, kind in request.types.items():
            columns[name], broken = (
                col.convert_column(kept[name], kind) if name in kept else (arrays.nulls(rows, kind), 0)
            )
            repaired.update({(request.table, name): broken} if broken else {})
        return request.work(pa.table(columns))

    def rowid(self, table: str, index: int, where: Where | None = None) -> int | None:
        """Number of a row in its table: the one at ``index`` of those that meet a condition; None if there is none."""
        for _, rows in self.pieces([Request(table, {ROWID: pa.int64()}, where, lambda piece: piece[ROWID])]):
            if index < len(rows):
                return int(rows[index].as_py())
            index -= len(rows)
        return None

    @functools.cached_property
    def undecoded(self) -> dict[str, int]:
        """What is recorded and in no declared table: number of events by name, the most frequent first."""
        with damage_as_error(self.path, file=self.container.file):
            found: Counter[str] = Counter()
            for kind, number in self.events.counts().items():
                name = names.of_kind(kind)
                found.update({} if name is None else {name: number})
            found.update(self._others())
            found.update(+Counter({mpi.CALL: self.mpi.count(self.events)}))
            return dict(found.most_common())

    @functools.cached_property
    def events(self) -> Events:
        """The events, found in their blocks."""
        return Events(self.raw)

    @functools.cached_property
    def payload_schemas(self) -> Schemas:
        """What the program said of NVTX payloads."""
        return Schemas.of(self.raw.schemas)

    @functools.cached_property
    def mpi(self) -> mpi.Domains:
        """The NVTX domains whose ranges are calls of MPI."""
        with self._ledger.reading(("MPI",), BYTES_PER_BYTE) as budget:
            return mpi.domains(self.payload_schemas, self.events, self.raw.strings, budget)

    @functools.cached_property
    def metrics(self) -> dict[int, list[Metric]]:
        """GPU metrics of each type of sample."""
        with damage_as_error(self.path, file=self.container.file):
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

    def _reading(self, request: Request[Made]) -> AbstractContextManager[Budget]:
        """Lend the memory that a table may take: the samples of an idle GPU take almost no room in a report."""
        per_byte = (2 if request.table == SAMPLES else 1) * BYTES_PER_BYTE
        return self._ledger.reading((request.table, *request.types, request.where), per_byte)

    def _wanted(self, request: Request[Made]) -> Wanted:
        """Return the events that a request needs; of those that cannot meet its condition some are left out."""
        if request.table == SAMPLES:
            return Wanted(entries.GENERIC)
        table, where = layout.TABLES[request.table], request.where
        if table.payload == layout.NVTX and self.mpi:
            return Wanted(table.payload)
        return Wanted(
            table.payload, where.values if where and where.column == table.event_type_column else table.event_types
        )

    def _rows(
        self, request: Request[Made], chosen: Chosen, budget: Budget, skipped: Counter[str]
    ) -> dict[str, pa.Array]:
        """Decode the columns of a table that a request needs, of a batch of events."""
        if request.table == SAMPLES:
            return metrics.samples(self.metrics, chosen, budget, skipped)
        needed = dict.fromkeys([*request.types, *([request.where.column] if request.where else [])])
        have = [c for c in needed if c == ROWID or c in self.columns[request.table]]
        table = layout.TABLES[request.table]
        without = self.mpi if table.payload == layout.NVTX else None
        if not set(payloads.TEXTS).intersection(have):
            return arrays.columns(chosen, table, have or [ROWID], budget, skipped=skipped, without=without)
        needed = dict.fromkeys([*have, *payloads.NEEDED])
        made = arrays.columns(chosen, table, list(needed), budget, skipped=skipped, without=without)
        return made | payloads.columns(self.payload_schemas, made, budget)

    def _small(self, table: str, budget: Budget) -> dict[str, pa.Array]:
        """Return a whole table that is not one of events."""
        if table == STRINGS:
            ids = np.arange(len(self.raw.strings))
            return {ROWID: pa.array(ids + 1), "id": pa.array(ids), "value": self.raw.strings}
        rows = list(budget.counted(machine.TABLES[table][1](self), f"rows of {table}"))
        for row in rows:
            budget.take(sum(len(v) for v in row.values() if isinstance(v, str)), 1, f"bytes of texts of {table}")
        listed = {c: _listed([r[c] for r in rows]) for c in self.columns[table]}
        return {ROWID: pa.array(np.arange(1, len(rows) + 1)), **listed}

    def _others(self) -> Counter[str]:
        """Count calls and generic events that are in no table, by name."""
        found: Counter[str] = Counter()
        calls = (layout.CALL, layout.CALL_MARK)
        wanted = [Wanted(entries.GENERIC), *(Wanted(layout.API, (event_type,)) for event_type in calls)]
        fields = (fields_of("GenericEvent").type_id, *(layout.CLASS for _ in calls))
        for counted in self.events.each(wanted, lambda batch: [_counted(*x) for x in zip(batch, fields, strict=True)]):
            generic, *classes = counted
            found["generic event"] += sum(n for number, n in generic.items() if number not in self.metrics)
            for event_type, numbers in zip(calls, classes, strict=True):
                for event_class, number in numbers.items():
                    name = names.of_call(event_type, event_class)
                    found.update({} if name is None else {name: number})
        return +found


def _counted(chosen: Chosen, field: int) -> dict[int | None, int]:
    """Count the values of a field of n messages; None counts those without it."""
    found = decode(chosen.buffer, chosen.starts, chosen.stops, (field,)).get(field)
    if found is None:
        return {None: len(chosen.starts)}
    values = found.values if found.valid is None else found.values[found.valid]
    numbers, counts = np.unique_counts(values)
    return {None: len(chosen.starts) - len(values), **dict(zip(numbers.tolist(), counts.tolist(), strict=True))}


def _payload(table: str) -> int:
    return entries.GENERIC if table == SAMPLES else layout.TABLES[table].payload


def _counting(table: str, where: Where | None) -> Request[int]:
    return Request(table, {ROWID: pa.int64()}, where, lambda piece: int(piece.num_rows))


def _listed(values: list[int | str | None]) -> pa.Array:
    return pa.array(values, pa.string() if any(isinstance(v, str) for v in values) else pa.int64())


def _met(made: dict[str, pa.Array], where: Where | None) -> dict[str, pa.Array]:
    """Keep the rows of some columns that meet a condition."""
    if where is None:
        return made
    column = made[where.column]
    keep = pc.is_in(column, pa.array(where.values, pa.int64())) if where.values else column.is_valid()
    return made if keep.true_count == len(keep) else {name: c.filter(keep) for name, c in made.items()}
