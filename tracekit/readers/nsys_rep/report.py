"""Read the source tables of a report, with the same names, rows and row order as in an export."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.errors import format_count, warn
from tracekit.readers.common import columns as col
from tracekit.readers.common.budget import MEMORY_PER_FILE_BYTE, Budget, Ledger
from tracekit.readers.common.damage import COPY_AGAIN, convert_damage
from tracekit.readers.nsys.capture import NsysCapture
from tracekit.readers.nsys.tables import FRAMES, ROWID, ColumnsRequest
from tracekit.readers.nsys_rep import (
    arrays,
    counters,
    entries,
    layout,
    machine,
    metrics,
    mpi_calls,
    payloads,
    undecoded,
    unknown_events,
)
from tracekit.readers.nsys_rep.container import Container, RawData
from tracekit.readers.nsys_rep.entries import TABLES_OF_UNDECODED_EVENTS, EventSelection
from tracekit.readers.nsys_rep.events import ReportEvents
from tracekit.readers.nsys_rep.payload_schemas import Schemas
from tracekit.registry.detection import create_report_hint

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from tracekit.readers.nsys.tables import Result, Where
    from tracekit.readers.nsys_rep.counters import CounterField
    from tracekit.readers.nsys_rep.events import SelectedEvents
    from tracekit.readers.nsys_rep.metrics import MetricLocation
    from tracekit.registry.interface import Undecoded
    from tracekit.registry.source import Source

STRINGS, SAMPLES, PAYLOAD_SCHEMAS = "StringIds", "GPU_METRICS", "NVTX_PAYLOAD_SCHEMAS"
GENERIC_TABLES = frozenset((SAMPLES, counters.TABLE))
"""Tables whose rows are the values in generic events."""
EVENT_TABLES = frozenset((*layout.TABLES, *mpi_calls.CALLS, *GENERIC_TABLES))
NO_EVENTS = EventSelection(layout.NVTX, (entries.TYPES,))


class NsysReport:
    """The source tables of an open Nsight Systems report.

    Attributes:
        path: Path of the file.
        columns: Column names of each source table, including tables without rows.
    """

    def __init__(self, source: Source) -> None:
        self.path = source.path
        self.container = Container(source)
        with convert_damage(self.path, file=self.container.file):
            self.raw_data = RawData(self.container, entries.create_block_event_counter())
        self.columns: Mapping[str, tuple[str, ...]] = self._list_source_columns()
        self._ledger = Ledger(self.raw_data.file_bytes)
        self._warned: Counter[tuple[int, str]] = Counter()

    @property
    def hint(self) -> str:
        """Hint in error messages about a damaged report."""
        return create_report_hint(self.path, COPY_AGAIN)

    def count_rows(self, conditions: Sequence[tuple[str, Where | None]]) -> list[int]:
        """Count the matching rows for each pair of a table and a filter. The count is 0 if the table is missing.

        All tables of events are counted in one pass over the report.
        """
        existing = [nth for nth, (table, _) in enumerate(conditions) if table in self.columns]
        counts = [0] * len(conditions)
        for nth, rows in self.read_batches([_create_row_count_request(*conditions[nth]) for nth in existing]):
            counts[existing[nth]] += rows
        return counts

    def compute_max_rows(self, table: str) -> int:
        """Return the number of rows to reserve memory for: an upper limit derived from the number of events.

        The result is 0 for tables that are usually small. Memory for small tables is reserved as their rows are read.
        """
        if table in GENERIC_TABLES:
            listed = self.gpu_metrics_by_type if table == SAMPLES else self.counter_fields_by_type
            return self.raw_data.event_count * max(map(len, listed.values()), default=0)
        return self.raw_data.event_count if table in layout.TABLES and not layout.TABLES[table].nested_message else 0

    def read_batches(self, requests: Sequence[ColumnsRequest[Result]]) -> Iterator[tuple[int, Result]]:
        """Read columns of several tables in batches. All tables of events are read in one pass over the report.

        Several threads read the report in batches of several megabytes. All values of a column that the report lacks
        are null. The column ``rowid`` numbers the rows from 1.

        Yields:
            For each batch, the index of its request and the result of ``ColumnsRequest.convert``.

        Raises:
            CorruptTraceError: The report is damaged.
        """
        repaired: Counter[tuple[str, str]] = Counter()
        skipped: Counter[tuple[int, str]] = Counter()
        of_events = [nth for nth, r in enumerate(requests) if r.table in EVENT_TABLES]
        for nth, request in enumerate(requests):
            if nth not in of_events:
                with (
                    convert_damage(self.path, request.table, self.container.file),
                    self._open_memory_budget(request) as budget,
                ):
                    columns = _filter_rows(self._build_small_table(request.table, budget), request.where)
                    yield nth, self._convert_batch(request, columns, repaired, budget)
        if of_events:
            event_requests = [requests[nth] for nth in of_events]
            with convert_damage(
                self.path, event_requests[0].table if len(event_requests) == 1 else None, self.container.file
            ):
                for results in self._read_events(event_requests, repaired, skipped):
                    yield from zip(of_events, results, strict=True)
            self._warn_about_skipped_events(skipped, {_find_payload_field(r.table) for r in event_requests})
        for (table, name), number in repaired.items():
            strings, verb = format_count(number, "string"), "is" if number == 1 else "are"
            warn(f"{strings} of {table}.{name} {verb} not UTF-8: invalid bytes are replaced", path=self.path)

    def _read_events(
        self,
        requests: Sequence[ColumnsRequest[Result]],
        repaired: Counter[tuple[str, str]],
        skipped: Counter[tuple[int, str]],
    ) -> Iterator[list[Result]]:
        """Read all batches of events. For each batch, yield the results of all requests.

        Args:
            requests: Requests for tables of events.
            repaired: Counter of strings with invalid UTF-8 by table and column, which is updated.
            skipped: Counter of skipped events by payload field and name, which is updated. If several requests skip
                events with the same name, the largest of their counts is used.
        """
        lock = threading.Lock()
        shared = _merge_selections_by_payload([self._create_event_selection(r) for r in requests])
        decoders = [
            (indices, arrays.EventDecoder([self._create_table_request(requests[nth], shared[nth]) for nth in indices]))
            for indices in _group_by_payload(requests)
        ]

        def decode_batch(batch: list[SelectedEvents]) -> list[Result]:
            broken: Counter[tuple[str, str]] = Counter()
            unknown: list[Counter[str]] = [Counter() for _ in requests]
            decoded = self._decode_special_tables(requests, batch, budgets, unknown)
            for indices, decoder in decoders:
                events = self._exclude_mpi_calls(requests[indices[0]], [batch[nth] for nth in indices])
                columns = decoder.decode(events, [budgets[nth] for nth in indices], [unknown[nth] for nth in indices])
                decoded |= zip(indices, columns, strict=True)
            done = [
                self._convert_batch(request, decoded.pop(nth), broken, budget)
                for nth, (request, budget) in enumerate(zip(requests, budgets, strict=True))
            ]
            with lock:
                repaired.update(broken)
                for counts, total in zip(unknown, totals, strict=True):
                    total.update(counts)
            return done

        totals: list[Counter[str]] = [Counter() for _ in requests]
        with contextlib.ExitStack() as stack:
            budgets = [stack.enter_context(self._open_memory_budget(request)) for request in requests]
            yield from self.events.map_batches(shared, decode_batch)
        for request, total in zip(requests, totals, strict=True):
            skipped |= Counter({(_find_payload_field(request.table), name): n for name, n in total.items()})

    def _warn_about_skipped_events(self, skipped: Counter[tuple[int, str]], payload_fields: Collection[int]) -> None:
        """Warn about skipped events that are unknown or incomplete, but may be rows of the tables that were read.

        Events that were counted in an earlier warning are not counted again.
        """
        known = unknown_events.iterate_unknown_event_types(self.events.count_by_kind())
        unknown = skipped | Counter({(payload, name): n for payload, n, name in known if payload in payload_fields})
        for (payload, name), number in (unknown - self._warned).items():
            tables = unknown_events.TABLES[payload]
            warn(
                f"{format_count(number, 'unknown or incomplete event', 'were', 'was')} skipped ({name}), "
                f"but may belong to {tables}",
                path=self.path,
            )
        self._warned |= unknown

    def _convert_batch(
        self,
        request: ColumnsRequest[Result],
        batch: dict[str, pa.Array],
        repaired: Counter[tuple[str, str]],
        budget: Budget,
    ) -> Result:
        """Convert the column types of a batch, and return the result of ``ColumnsRequest.convert``."""
        rows = len(next(iter(batch.values())))
        budget.reserve(rows, request.row_bytes, "events")
        if set(payloads.STRING_COLUMNS).intersection(batch):
            batch |= payloads.build_payload_columns(self.payload_schemas, batch, budget)
        columns: dict[str, pa.Array] = {}
        for name, kind in request.types.items():
            columns[name], broken = (
                col.convert_column(batch[name], kind) if name in batch else (col.build_null_array(rows, kind), 0)
            )
            repaired.update({(request.table, name): broken} if broken else {})
        return request.convert(pa.table(columns))

    def find_rowid(self, table: str, index: int, where: Where | None = None) -> int | None:
        """Return the ``rowid`` of the row at ``index`` among the rows that match a filter.

        The result is None if fewer rows match. Indices are counted from 0, and ``rowid`` from 1.
        """
        for _, rows in self.read_batches(
            [ColumnsRequest(table, {ROWID: pa.int64()}, where, lambda batch: batch[ROWID])]
        ):
            if index < len(rows):
                return int(rows[index].as_py())
            index -= len(rows)
        return None

    def decode_stacks(self, table: str, stacks: pa.BinaryArray) -> pa.ListArray:
        """Decode call stacks from the column ``FRAMES`` of a table into lists of frames.

        Raises:
            Damage: A stack is invalid, or the frames take more memory than tracekit allows for a report of this size.
        """
        number = layout.TABLES[table].columns[FRAMES].path[0]
        return arrays.decode_stacks(stacks, number, Budget(self.raw_data.file_bytes))

    @functools.cached_property
    def undecoded(self) -> dict[str, Undecoded]:
        """Number and size in bytes of the events that no declared table contains, by class of event."""
        with convert_damage(self.path, file=self.container.file):
            return undecoded.count_undecoded_events(self)

    @functools.cached_property
    def events(self) -> ReportEvents:
        """The events of the report."""
        return ReportEvents(self.raw_data, undecoded.SELECTIONS, undecoded.list_undecoded_sizes)

    @functools.cached_property
    def payload_schemas(self) -> Schemas:
        """The schemas of NVTX payloads in the report."""
        return Schemas.parse(self.raw_data.schemas_message)

    @functools.cached_property
    def mpi_domains(self) -> mpi_calls.MpiDomains:
        """The NVTX domains of the MPI wrapper of nsys, whose ranges are MPI calls."""
        with self._ledger.open_budget_for_read(("MPI",), MEMORY_PER_FILE_BYTE) as budget:
            return mpi_calls.find_mpi_domains(self.payload_schemas, self.events, self.raw_data.strings, budget)

    @functools.cached_property
    def gpu_metrics_by_type(self) -> dict[int, list[MetricLocation]]:
        """The GPU metrics in each sample, by event type."""
        with convert_damage(self.path, file=self.container.file):
            return metrics.read_gpu_metrics_by_type(self.raw_data)

    @functools.cached_property
    def counter_fields_by_type(self) -> dict[int, list[CounterField]]:
        """The fields of each counter sample, by event type."""
        with convert_damage(self.path, file=self.container.file):
            return counters.read_counter_fields_by_type(self.raw_data)

    def close(self) -> None:
        """Close the report file."""
        self.container.close()

    def _list_source_columns(self) -> dict[str, tuple[str, ...]]:
        """Return the column names of each source table, as exported by the nsys version that wrote the report."""
        version = self.container.nsys_version
        known = {
            name: tuple(c for c, at in table.columns.items() if not () < version < at.since)
            for name, table in layout.TABLES.items()
        }
        small = {name: machine.TABLES[name][0] for name in machine.list_table_names(version)}
        calls = {**mpi_calls.CALLS, **mpi_calls.SMALL}
        return {
            **known,
            **small,
            **calls,
            STRINGS: ("id", "value"),
            PAYLOAD_SCHEMAS: ("name",),
            SAMPLES: metrics.COLUMNS,
            counters.TABLE: counters.COLUMNS,
        }

    def _open_memory_budget(self, request: ColumnsRequest[Result]) -> AbstractContextManager[Budget]:
        """Return a context manager that provides the memory budget of a request.

        The budget for generic events is twice as large, because repeated samples have a high compression ratio.
        """
        per_byte = (2 if request.table in GENERIC_TABLES else 1) * MEMORY_PER_FILE_BYTE
        return self._ledger.open_budget_for_read((request.table, *request.types, request.where), per_byte)

    def _create_event_selection(self, request: ColumnsRequest[Result]) -> EventSelection:
        """Return the selection of the events that a request needs.

        If the request filters by event type, only events of the requested types are selected.
        """
        if request.table in GENERIC_TABLES:
            return EventSelection(entries.GENERIC)
        if request.table in mpi_calls.CALLS:
            return EventSelection(layout.NVTX) if self.mpi_domains else NO_EVENTS
        table, where = layout.TABLES[request.table], request.where
        if table.payload == layout.NVTX and self.mpi_domains:
            return EventSelection(table.payload)
        return EventSelection(
            table.payload, where.values if where and where.column == table.event_type_column else table.event_types
        )

    def _create_table_request(self, request: ColumnsRequest[Result], selection: EventSelection) -> arrays.TableRequest:
        """Return the columns to decode for a request. There is at least one column.

        Args:
            request: Request for columns of a table whose rows are events with a payload.
            selection: Selection of the events to decode.
        """
        names = [c for c in request.types if c == ROWID or c in self.columns[request.table]]
        needed = dict.fromkeys(names or [ROWID])
        if set(payloads.STRING_COLUMNS).intersection(needed):
            needed |= dict.fromkeys(payloads.NEEDED)
        types = self._create_event_selection(request).types
        return arrays.TableRequest(
            layout.TABLES[request.table],
            {name: request.types.get(name, pa.int64()) for name in needed},
            () if types == selection.types else types,
            request.where,
        )

    def _exclude_mpi_calls(
        self, request: ColumnsRequest[Result], selected_events: list[SelectedEvents]
    ) -> list[SelectedEvents]:
        """Return events without the MPI calls among them, if a request reads NVTX events."""
        if not self.mpi_domains or layout.TABLES[request.table].payload != layout.NVTX:
            return selected_events
        others = np.flatnonzero(~self.mpi_domains.compute_call_mask(selected_events[0]))
        return [events.take(others) for events in selected_events]

    def _decode_special_tables(
        self,
        requests: Sequence[ColumnsRequest[Result]],
        batch: Sequence[SelectedEvents],
        budgets: Sequence[Budget],
        skipped: Sequence[Counter[str]],
    ) -> dict[int, dict[str, pa.Array]]:
        """Decode tables of generic events and of MPI calls, and return their columns by the index of the request."""
        decoded = {}
        calls: dict[str, dict[str, pa.Array]] = {}
        for nth, (request, events, budget) in enumerate(zip(requests, batch, budgets, strict=True)):
            if request.table == SAMPLES:
                decoded[nth] = metrics.decode_metric_samples(self.gpu_metrics_by_type, events, budget, skipped[nth])
            elif request.table == counters.TABLE:
                decoded[nth] = counters.decode_counter_samples(
                    self.counter_fields_by_type, events, budget, skipped[nth]
                )
            elif request.table in mpi_calls.CALLS and not self.mpi_domains:
                decoded[nth] = mpi_calls.create_empty_call_columns(request.table)
            elif request.table in mpi_calls.CALLS:
                calls = calls or mpi_calls.decode_mpi_calls(self.payload_schemas, self.mpi_domains, events, budget)
                rows = len(calls[request.table]["start"])
                before = events.exchange_totals({ROWID: rows})[ROWID]
                decoded[nth] = calls[request.table] | {
                    ROWID: col.build_number_array(np.arange(before + 1, before + rows + 1))
                }
        return decoded

    def _build_small_table(self, table: str, budget: Budget) -> dict[str, pa.Array]:
        """Return all columns of a table that is built at once instead of from batches of events."""
        if table == STRINGS:
            ids = np.arange(len(self.raw_data.strings))
            return {
                ROWID: col.build_number_array(ids + 1),
                "id": col.build_number_array(ids),
                "value": self.raw_data.strings,
            }
        rows = list(budget.reserve_each(self._read_small_table_rows(table, budget), f"rows of {table}"))
        for row in rows:
            budget.reserve(sum(len(v) for v in row.values() if isinstance(v, str)), 1, f"bytes of strings of {table}")
        listed = {c: _build_value_array([r[c] for r in rows]) for c in self.columns[table]}
        return {ROWID: col.build_number_array(np.arange(1, len(rows) + 1)), **listed}

    def _read_small_table_rows(self, table: str, budget: Budget) -> Iterable[Mapping[str, int | str | None]]:
        """Return the rows of a small source table, each as a mapping from column names to values."""
        if table == PAYLOAD_SCHEMAS:
            return ({"name": schema.name} for schema in self.payload_schemas.schemas.values())
        if table not in mpi_calls.SMALL:
            return machine.TABLES[table][1](self)
        ranks = mpi_calls.decode_rank_rows(self.mpi_domains, self.events, self.raw_data.strings, budget)
        return ranks if table == mpi_calls.RANKS else mpi_calls.decode_communicator_rows(self.payload_schemas, ranks)


def _merge_selections_by_payload(selections: Sequence[EventSelection]) -> list[EventSelection]:
    """Replace each selection by the union of all selections with the same payload field."""
    types_by_payload: dict[int, set[int]] = {}
    for payload, types in selections:
        types_by_payload.setdefault(payload, set()).update(types)
    unrestricted = {payload for payload, types in selections if not types}
    return [EventSelection(p, () if p in unrestricted else tuple(sorted(types_by_payload[p]))) for p, _ in selections]


def _group_by_payload(requests: Sequence[ColumnsRequest[Result]]) -> list[list[int]]:
    """Return the indices of the requests for tables of events with each payload field."""
    groups: dict[int, list[int]] = {}
    for nth, request in enumerate(requests):
        if request.table in layout.TABLES:
            groups.setdefault(layout.TABLES[request.table].payload, []).append(nth)
    return list(groups.values())


def _find_payload_field(table: str) -> int:
    """Return the number of the event field that holds the payload of each row of a table."""
    if table in mpi_calls.CALLS:
        return layout.NVTX
    return entries.GENERIC if table in GENERIC_TABLES else layout.TABLES[table].payload


def _create_row_count_request(table: str, where: Where | None) -> ColumnsRequest[int]:
    """Return a request that counts the matching rows of a table."""
    return ColumnsRequest(table, {ROWID: pa.int64()}, where, lambda batch: int(batch.num_rows))


def _build_value_array(values: list[int | str | None]) -> pa.Array:
    return pa.array(values, pa.string() if any(isinstance(v, str) for v in values) else pa.int64())


def _filter_rows(columns: dict[str, pa.Array], where: Where | None) -> dict[str, pa.Array]:
    """Return the given columns with only the rows that match a filter."""
    if where is None:
        return columns
    column = columns[where.column]
    keep = pc.is_in(column, pa.array(where.values, pa.int64())) if where.values else column.is_valid()
    return columns if keep.true_count == len(keep) else {name: c.filter(keep) for name, c in columns.items()}


class NsysReportCapture(NsysCapture):
    """An open Nsight Systems report, whose declared tables are read column by column on demand."""

    def __init__(self, source: Source) -> None:
        self.report = NsysReport(source)
        super().__init__(self.report)

    def count_undecoded(self) -> Mapping[str, Undecoded]:
        """Return the number and size in bytes of the events that no declared table contains, by class of event."""
        return self.undecoded

    def list_undecodable_tables(self) -> Collection[str]:
        """Return the names of the tables to which undecoded events of a known class may belong."""
        return frozenset(table for tables in TABLES_OF_UNDECODED_EVENTS.values() for table in tables)

    @property
    def undecoded(self) -> dict[str, Undecoded]:
        """Number and size in bytes of the events that no declared table contains, by class of event."""
        return self.report.undecoded
