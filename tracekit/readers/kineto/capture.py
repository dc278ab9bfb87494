"""Build declared tables from a Kineto trace. The whole file is read when it is opened. Columns are built on demand."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tracekit import schemas
from tracekit.errors import CorruptTraceError, MissingTableError, format_count, warn
from tracekit.readers.common.budget import Budget
from tracekit.readers.common.damage import Damage, convert_damage, warn_about_trailing_bytes
from tracekit.readers.common.json.document import (
    MAX_METADATA_BYTES,
    MAX_METADATA_ENTRY_BYTES,
    Document,
    DocumentFormat,
)
from tracekit.readers.common.json.scanner import JsonCells, JsonScanner
from tracekit.readers.common.json.stream import Stream
from tracekit.readers.kineto import machine, metrics
from tracekit.readers.kineto.event_tables import (
    AUXILIARY_CATEGORIES,
    FLOW_PREFIX,
    PROFILER_TABLES,
    ROW_IDS,
    WITHOUT_CATEGORY,
    EventCollector,
)
from tracekit.readers.kineto.keys import KEYS, Slot
from tracekit.readers.kineto.labels import describe_devices
from tracekit.readers.kineto.quotes import escape_quotes_in_names
from tracekit.readers.kineto.rows import EventRows
from tracekit.readers.kineto.tracks import Tracks
from tracekit.registry.interface import Capture, Undecoded
from tracekit.system.forks import check_polars_can_run

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from tracekit.registry.source import Source

_GZIP = b"\x1f\x8b"
_LEADING_BLOCK_BYTES = 1 << 16
_EXPORT_AGAIN = "export the trace again"
_FORMAT = DocumentFormat(
    "traceEvents", "events", _EXPORT_AGAIN, machine.METADATA_NAMES, escape_quotes_in_names, may_repeat=True
)


def read_capture(source: Source) -> KinetoCapture:
    """Read a trace of the PyTorch profiler or of tracekit, and return its tables.

    Raises:
        CorruptTraceError: The file is not JSON with trace events, or is truncated before the end of the first event.
        MissingTableError: The file contains no events of the PyTorch profiler or of tracekit.
        TracekitError: The file cannot be read, or changed while it was read.
    """
    reading = _read_events(source, has_escapes=True)
    if reading.repairs["escapes"]:
        reading = _read_events(source, has_escapes=False)
    path, collected = source.path, reading.collector.get_collected_values()
    _require_events(path, reading.document, reading.collector)
    _warn_about_skipped_data(path, reading)
    warn_about_trailing_bytes(path, reading.trailing_bytes)
    return KinetoCapture(path, reading.document.metadata, reading.collector, collected)


class _Reading(NamedTuple):
    """The result of reading all events of a file.

    Attributes:
        document: The JSON document.
        damage: What is wrong with the compressed data, or None.
        trailing_bytes: Number of bytes after the end of the JSON document and after the end of the compressed data.
        collector: The collected events.
        repairs: Number of repaired strings by kind of repair.
    """

    document: Document
    damage: str | None
    trailing_bytes: int
    collector: EventCollector
    repairs: Counter[str]


def _read_events(source: Source, *, has_escapes: bool) -> _Reading:
    """Read all events of a file.

    If ``has_escapes`` is True, reading stops at a backslash that begins no valid escape. The writer of such a file did
    not escape backslashes, so other backslashes begin no escapes either.

    Args:
        source: The file.
        has_escapes: Whether a backslash in the file begins an escape.
    """
    path = source.path
    sandbox, repairs = JsonScanner(KEYS), Counter[str]()
    collector: EventCollector | None = None
    budget = Budget(source.size)
    compressed = source.head.startswith(_GZIP)
    with source.open() as file, convert_damage(path, file=file), Stream(file, compressed=compressed) as stream:
        document = Document(path, stream, sandbox, _FORMAT)
        for _ in document.parse_in_batches():
            if collector is None:
                collector = EventCollector(budget, exported=machine.is_tracekit_export(document.metadata))
            collector.add_events(JsonCells(sandbox, repairs, has_escapes=has_escapes))
            if has_escapes and repairs["escapes"]:
                break
        file.check_unchanged()
    collector = collector or EventCollector(budget, exported=machine.is_tracekit_export(document.metadata))
    return _Reading(document, stream.damage, stream.trailing_bytes + document.trailing_bytes, collector, repairs)


def read_leading_job_metadata(source: Source) -> dict[str, str]:
    """Return the metadata of a distributed job, such as the rank, if it is stored before the events of a trace.

    The metadata is the member ``distributedInfo`` of the trace. The events are not read.

    Returns:
        Values by name: ``distributed_backend``, ``distributed_rank``, ``distributed_world_size``,
        ``distributed_pg_count`` and ``distributed_nccl_version``. Missing values are omitted. The mapping is empty in
        these cases:

        - The trace has no member ``distributedInfo``, or the member follows the events.
        - The file is damaged before its events.
        - tracekit wrote the file.

    Raises:
        TracekitError: The file cannot be read, or changed while it was read.
    """
    compressed = source.head.startswith(_GZIP)
    with source.open() as file, Stream(file, compressed=compressed, block_bytes=_LEADING_BLOCK_BYTES) as stream:
        document = Document(source.path, stream, JsonScanner(KEYS), _FORMAT)
        try:
            has_events = document.advance_to_objects()
        except (CorruptTraceError, Damage):
            has_events = False
        file.check_unchanged()
    return machine.parse_distributed_info(document.metadata) if has_events else {}


def _require_events(path: Path, document: Document, collector: EventCollector) -> None:
    """Raise an error if the file contains no event that belongs to a table.

    However, a complete trace of the PyTorch profiler is accepted even if none of its events belongs to a table.
    """
    if not document.has_array:
        raise CorruptTraceError(
            "the file contains no trace events" + " because it is truncated" * document.truncated,
            path=path,
            hint=_EXPORT_AGAIN,
        )
    if collector.counts.total() or ("schemaVersion" in document.metadata and not document.truncated):
        return
    if document.truncated:
        raise CorruptTraceError(
            "the file is truncated before the end of its first event", path=path, hint=_EXPORT_AGAIN
        )
    if machine.is_tracekit_export(document.metadata):
        hint = "read the capture from which the file was exported"
        raise MissingTableError(
            "the file contains no events that tracekit can read back into a table", path=path, hint=hint
        )
    raise MissingTableError(
        f"the file contains {collector.undecoded.total()} trace events, but none from the PyTorch profiler",
        path=path,
        hint="read a trace that torch.profiler or tracekit wrote",
    )


def _warn_about_skipped_data(path: Path, reading: _Reading) -> None:
    """Warn about skipped events, skipped members of the JSON document, and repaired strings."""
    document, damage, _, collector, repairs = reading
    if document.truncated:
        reason = damage or "its JSON is incomplete"
        read = format_count(collector.counts.total(), "complete event", "were read", "was read")
        warn(f"the file is truncated ({reason}): {read}", path=path)
    elif damage:
        warn(f"{damage}: the events before the damage were read", path=path)
    if document.repaired:
        names, verb = format_count(document.repaired, "name"), "was" if document.repaired == 1 else "were"
        warn(f"{names} contained unescaped quotes and {verb} repaired", path=path)
    if document.invalid:
        rest, rest_of_one = "are not valid JSON and were skipped", "is not valid JSON and was skipped"
        noun, plural = "event or metadata member", "events or metadata members"
        warn(format_count(document.invalid, noun, rest, rest_of_one, plural=plural), path=path)
    for name in document.oversized:
        limits = f"{MAX_METADATA_ENTRY_BYTES >> 20} MiB per member and {MAX_METADATA_BYTES >> 20} MiB in total"
        warn(f"the metadata member {name} was skipped because it exceeds tracekit's limits of {limits}", path=path)
    if collector.untimed:
        what = "1 event has" if collector.untimed == 1 else f"{collector.untimed} events have"
        warn(f"{what} no valid time or duration and {'was' if collector.untimed == 1 else 'were'} skipped", path=path)
    if collector.unplaced:
        noun, plural = "API call or range", "API calls and ranges"
        unplaced = format_count(collector.unplaced, noun, "have", "has", plural=plural)
        warn(
            f"{unplaced} no numeric process id or no numeric thread id: "
            "the events that they launched or enclose are not attributed to them",
            path=path,
        )
    for what, count in repairs.items():
        if count:
            strings, verb = format_count(count, "string"), "was" if count == 1 else "were"
            warn(f"{strings} contained invalid {what} and {verb} repaired", path=path)


class KinetoCapture(Capture):
    """The tables of a trace that the PyTorch profiler or tracekit wrote.

    Attributes:
        undecoded: Number of events that belong to no table, by category.
        metadata: Members of the JSON document other than the events.
        tracks: Threads and streams on which the events occurred.
        origin_ns: Time in the file, in ns, that corresponds to time 0 in the tables.
        rows: The rows of each event table, by table name.
        profiler_ranges: Values collected from the events with metrics of CUPTI, by member. Empty if there are none.
    """

    def __init__(
        self,
        path: Path,
        metadata: Mapping[str, Any],
        collector: EventCollector,
        collected: Mapping[str, Mapping[str, pa.Array]],
    ) -> None:
        self._path = path
        self.undecoded = dict(collector.undecoded)
        self._device_categories = frozenset(collector.device_categories)
        self._uncategorized_marks = collector.uncategorized_marks
        exported = machine.is_tracekit_export(metadata)
        self._non_event_tables: dict[str, pa.Table] = {}
        self.metadata = metadata
        self.tracks = Tracks(collected, collector.track_names.finish(), exported=exported)
        members = self.tracks.members
        self.origin_ns = machine.read_export_shift_ns(metadata) if exported else _find_earliest_start(members)
        self.rows = {
            name: EventRows(name, columns, self.origin_ns, self.tracks)
            for name, columns in members.items()
            if name != metrics.TABLE
        }
        self.profiler_ranges = members.get(metrics.TABLE, {})

    def count_undecoded(self) -> Mapping[str, Undecoded]:
        """Return the number of events that belong to no table, by category."""
        return {
            category: Undecoded(
                count,
                is_auxiliary=category.startswith(FLOW_PREFIX)
                or category in AUXILIARY_CATEGORIES
                or (category == WITHOUT_CATEGORY and count == self._uncategorized_marks),
            )
            for category, count in self.undecoded.items()
        }

    def list_device_categories(self) -> Collection[str]:
        """Return how the categories of events begin that belong to a kind of device, such as ``xpu``."""
        return self._device_categories

    def names(self) -> list[str]:
        """Return the names of the tables that may have rows, and of ``api_calls`` even if there are no calls."""
        return list(dict.fromkeys([*self.rows, *_NON_EVENT_TABLES, *([metrics.TABLE] if self.profiler_ranges else [])]))

    def can_contain(self, name: str) -> bool:
        """Return whether the PyTorch profiler or tracekit can write rows of a table, even if this file has none."""
        tables = ROW_IDS if machine.is_tracekit_export(self.metadata) else PROFILER_TABLES
        return name in tables or self.may_have(name)

    def count(self, name: str) -> int:
        """Return the number of rows of a table."""
        return self.rows[name].count if name in self.rows else int(self._build_non_event_table(name).num_rows)

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Return the requested columns of a table."""
        if name not in self.rows:
            return self._build_non_event_table(name).select(list(columns))
        declared = schemas.arrow_schema(schemas.table(name), columns)
        rows = self.rows[name]
        arrays = [rows.build_column(f.name) for f in declared]
        filled = [pa.nulls(rows.count, f.type) if a is None else a for a, f in zip(arrays, declared, strict=True)]
        return schemas.conform(pa.table(filled, names=list(columns)), schemas.table(name), columns, path=self._path)

    def _build_non_event_table(self, name: str) -> pa.Table:
        """Return a table that contains no events, such as ``devices``. The table is built once and then cached."""
        if name not in self._non_event_tables:
            check_polars_can_run()
            self._non_event_tables[name] = (
                metrics.build_table(self.profiler_ranges, self.origin_ns)
                if name == metrics.TABLE
                else machine.build_declared_table(name, _NON_EVENT_TABLES[name](self))
            )
        return self._non_event_tables[name]


def _build_capture_info_rows(capture: KinetoCapture) -> list[dict[str, Any]]:
    ends = [
        pc.max(rows.compute_end_ns()).as_py()
        for rows in capture.rows.values()
        if Slot.DURATION.name in rows.member_names
    ]
    metadata = machine.collect_capture_info_values(
        capture.metadata, capture.origin_ns, max((e for e in ends if e is not None), default=None)
    )
    if not machine.is_tracekit_export(capture.metadata):
        names = (row["name"] or "" for row in machine.build_device_rows(capture.metadata))
        metadata |= describe_devices(capture.list_device_categories(), names)
    return [{"name": n, "value": v} for n, v in metadata.items()]


def _build_device_rows(capture: KinetoCapture) -> list[dict[str, Any]]:
    if capture.tracks.exported:
        return machine.build_exported_device_rows(capture.rows.values(), capture.tracks)
    return machine.build_device_rows(capture.metadata)


_NON_EVENT_TABLES: dict[str, Callable[[KinetoCapture], list[dict[str, Any]]]] = {
    "api_calls": lambda _: [],
    "capture_info": _build_capture_info_rows,
    "devices": _build_device_rows,
    "processes": lambda c: machine.build_process_rows(c.tracks),
    "threads": lambda c: [] if c.tracks.exported else machine.build_thread_rows(c.tracks),
    "contexts": lambda c: machine.build_context_rows(c.rows.values()),
    "streams": lambda c: machine.build_stream_rows(c.rows.values()),
}


def _find_earliest_start(members: Mapping[str, Mapping[str, pa.Array]]) -> int:
    """Return the start time of the earliest event in ns, or 0 if there are no events."""
    starts = (pc.min(columns[Slot.START.name]).as_py() for columns in members.values())
    return min((start for start in starts if start is not None), default=0)
