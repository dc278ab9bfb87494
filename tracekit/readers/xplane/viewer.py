"""Read the trace that XLA's profiler writes for the trace viewer beside a profile (``*.trace.json.gz``).

Its processes are the planes of the profile, its threads the lines, and the arguments of its events their values. So the
trace becomes planes like those of a profile. It contains no properties of devices and no compiled programs, numbers of
threads that are hashes, and at most a million events.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.errors import CorruptTraceError, format_count, warn
from tracekit.readers.common.builders import TableBuilder
from tracekit.readers.common.columns import DICTIONARY, build_number_array, compact_dictionary
from tracekit.readers.common.damage import Damage, warn_about_trailing_bytes
from tracekit.readers.common.json.document import Document, DocumentFormat
from tracekit.readers.common.json.scanner import THOUSANDTHS, JsonCells, JsonScanner
from tracekit.readers.common.json.stream import Stream
from tracekit.readers.common.protobuf.decoding import Buffer, Occurrences
from tracekit.readers.xplane.space import GZIP, MAX_PLANES, EventBatch, Line, Plane, Space

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from tracekit.readers.common.budget import Budget
    from tracekit.readers.common.protobuf.decoding import Int64Array, Mask
    from tracekit.readers.xplane.space import TotalBatch
    from tracekit.system.files import InputFile

MAX_EVENTS = 1_000_000
"""Number of events from which on the profiler leaves out others."""
_HINT = "read the profile beside it, whose name ends in .xplane.pb, or record it again"
_FORMAT = DocumentFormat("traceEvents", "events", _HINT)
_ARGS, _PHASE, _NAME, _PID, _TID, _START, _DURATION = range(7)
_MEMBERS = {
    "args": _ARGS,
    "ph": _PHASE,
    "name": _NAME,
    "pid": _PID,
    "tid": _TID,
    "ts": _START + THOUSANDTHS,
    "dur": _DURATION + THOUSANDTHS,
}
_VALUES = (
    *("correlation_id", "program_id", "hlo_op", "hlo_module", "name", "tf_op", "annotation", "context_id"),
    *("kernel_details", "memcpy_details", "memset_details", "memalloc_details", "memfree_details"),
    *("memory_residency_details", "memory_details", "cuda_graph_id", "cuda_graph_node_id", "step_num"),
    *("allocator_name", "addr", "allocation_bytes", "index_on_host", "_pt", "_p", "_ct", "_c"),
    *("device_offset_ps", "device_duration_ps", "hlo_category", "long_name", "flops", "model_flops"),
    *("bytes_accessed", "shape_with_layout"),
)
"""Names of the values that are read."""
KEYS = {
    **{(0, key): slot for key, slot in _MEMBERS.items()},
    **{(1, name): slot for slot, name in enumerate(_VALUES, start=_DURATION + 1)},
}
_NAMES, _EVENTS = "names", "events"
_TYPES, _ALWAYS = ("pid", "tid", "start", "duration"), ("event", "args")
_MAX_TIME, _UNKNOWN_PHASE = 1 << 60, -2
_BATCH_ROWS, _FEW_ROWS = 1 << 16, 1 << 10
_NO_MESSAGES = Occurrences(*(np.zeros(0, np.int64) for _ in range(3)))


def read_viewer_trace(file: InputFile, budget: Budget) -> Space:
    """Read a trace of the trace viewer as planes, and warn about events that it does not contain.

    Raises:
        CorruptTraceError: The file is not JSON with events, or is truncated before the first event.
        Damage: There are too many processes or threads, or the events exceed the memory budget.
    """
    sandbox, repairs = JsonScanner(KEYS), Counter[str]()
    builders = {_NAMES: TableBuilder(_FEW_ROWS), _EVENTS: TableBuilder(_FEW_ROWS)}
    is_compressed = file.read(0, min(len(GZIP), file.size)) == GZIP
    others = 0
    with Stream(file, compressed=is_compressed) as stream:
        document = Document(file.path, stream, sandbox, _FORMAT)
        for _ in document.parse_in_batches():
            others += _add_events(JsonCells(sandbox, repairs), builders, budget)
    names, events = (pa.table(builder.finish() or {}) for builder in (builders[_NAMES], builders[_EVENTS]))
    if not events.num_rows:
        what = "the trace contains no events" + " because it is truncated" * document.truncated
        raise CorruptTraceError(what, path=file.path, hint=_HINT)
    _warn_about_missing_events(file.path, document, stream, events.num_rows)
    return Space(_build_planes(names, events, budget), 0, 0, others)


def _add_events(cells: JsonCells, builders: dict[str, TableBuilder], budget: Budget) -> int:
    """Add the names and the timed events of a batch to the builders, and return the number of other events."""
    phases = cells.find_string_indices(_PHASE, pa.array(["M", "X"]))
    others = int(np.count_nonzero(phases == _UNKNOWN_PHASE))
    for phase, group in enumerate((_NAMES, _EVENTS)):
        rows = np.flatnonzero(phases == phase)
        if group == _EVENTS:
            times = [cells.get_member_integers(slot, rows).is_valid() for slot in (_START, _DURATION)]
            is_timed = pc.and_(*times).to_numpy(zero_copy_only=False)
            others += int(np.count_nonzero(~is_timed))
            rows = rows[is_timed]
        batch: dict[str, pa.Array] = {
            name: cells.get_member_integers(slot, rows)
            for name, slot in zip(_TYPES, (_PID, _TID, _START, _DURATION), strict=True)
        }
        batch["event"] = cells.get_member_strings(_NAME, rows)
        listed = _VALUES if group == _EVENTS else ("name",)
        batch |= {
            name: cells.get_member_strings(KEYS[1, name], rows, include_other_types=True).cast(DICTIONARY)
            for name in listed
        }
        if group == _EVENTS:
            batch["args"] = cells.format_nested_json(rows)
        if len(rows):
            budget.reserve(sum(column.nbytes for column in batch.values()), 1, f"bytes of {group}")
            builders[group].append(batch)
    return others


def _warn_about_missing_events(path: Path, document: Document, stream: Stream, count: int) -> None:
    if document.truncated or stream.damage:
        reason = stream.damage or "its JSON is incomplete"
        warn(
            f"the file is truncated ({reason}): {format_count(count, 'complete event', 'were read', 'was read')}",
            path=path,
        )
    if document.invalid:
        rest, rest_of_one = "are not valid JSON and were skipped", "is not valid JSON and was skipped"
        warn(format_count(document.invalid, "event", rest, rest_of_one), path=path)
    if count >= MAX_EVENTS:
        warn(
            f"the trace contains {count:,} events, and the profiler leaves out all others: the profile beside it "
            "(.xplane.pb) contains them",
            path=path,
        )
    warn_about_trailing_bytes(path, stream.trailing_bytes + document.trailing_bytes)


def _build_planes(names: pa.Table, events: pa.Table, budget: Budget) -> list[Plane]:
    """Return one plane per process of a trace."""
    labels: dict[tuple[int, int | None], str] = {}
    if names.num_rows:
        columns = (names[c].to_pylist() for c in ("pid", "tid", "event", "name"))
        for pid, tid, event, label in zip(*columns, strict=True):
            if pid is not None and label is not None and event in ("process_name", "thread_name"):
                labels[pid, tid if event == "thread_name" else None] = label
    start, duration = (_to_numpy(events[c]) for c in ("start", "duration"))
    if np.abs(start).max() > _MAX_TIME or duration.min() < 0 or duration.max() > _MAX_TIME:
        raise Damage("the time or duration of an event is out of range")
    pids, tids = _to_numpy(events["pid"]), _to_numpy(events["tid"])
    order = np.lexsort((tids, pids))
    processes, firsts = np.unique(pids[order], return_index=True)
    if len(processes) > MAX_PLANES:
        raise Damage(f"the trace has {len(processes):,} processes, but tracekit supports at most {MAX_PLANES:,}")
    buffer = Buffer(len(processes))
    present = (c for c in events.column_names if c in _ALWAYS or events[c].null_count < events.num_rows)
    combined = {c: _combine(events[c]) for c in present if c not in _TYPES}
    planes: list[Plane] = []
    for nth, (pid, rows) in enumerate(zip(processes.tolist(), np.split(order, firsts[1:]), strict=True)):
        numbers, lines = np.unique(tids[rows], return_inverse=True)
        budget.reserve(len(numbers), _FEW_ROWS, "lines")
        values = ViewerValues({c: _take(column, rows) for c, column in combined.items()})
        listed = tuple(Line(tid, labels.get((pid, tid), ""), 0) for tid in numbers.tolist())
        name = labels.get((pid, None), "/host:CPU")
        begin, end = start[rows], start[rows] + duration[rows]
        lines = lines.astype(np.int64)
        batch = EventBatch(_NO_MESSAGES, lines, begin, end, end > begin, values.get_strings("event"), values)
        planes.append(ViewerPlane(buffer, budget, nth, nth, name, listed, batch, values))
    return planes


def _take(column: Any, rows: Int64Array) -> Any:
    if not pa.types.is_dictionary(column.type):
        return column.take(build_number_array(rows))
    return compact_dictionary(column.indices.take(build_number_array(rows)), column.dictionary)


def _combine(column: pa.ChunkedArray) -> Any:
    if not pa.types.is_dictionary(column.type):
        return column.combine_chunks()
    unified = column.unify_dictionaries().combine_chunks()
    return unified.chunk(0) if isinstance(unified, pa.ChunkedArray) else unified


def _to_numpy(column: pa.ChunkedArray) -> Int64Array:
    numbers: Int64Array = pc.fill_null(column, 0).to_numpy()
    return numbers


class ViewerValues:
    """The values of a batch of events of a trace, which has the methods of ``EventValues``."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self._columns = columns
        self._rows = len(columns["args"])

    def take(self, rows: Int64Array) -> ViewerValues:
        """Return the values of the events with the given indices."""
        indices = build_number_array(rows)
        return ViewerValues({name: column.take(indices) for name, column in self._columns.items()})

    def get_integers(self, name: str) -> tuple[Int64Array, Mask]:
        """Return the integer value with a name of each event, and a mask of the events that have one."""
        texts = self._columns.get(name)
        if texts is None or texts.null_count == self._rows:
            return np.zeros(self._rows, np.int64), np.zeros(self._rows, np.bool_)
        parsed = pa.array([_parse_number(text) for text in texts.dictionary.to_pylist()], pa.int64())
        numbers = parsed.take(texts.indices)
        return numbers.fill_null(0).to_numpy(), numbers.is_valid().to_numpy(zero_copy_only=False)

    def get_strings(self, name: str) -> pa.DictionaryArray:
        """Return the string value with a name of each event, null for events that have none."""
        return self._columns[name] if name in self._columns else pa.nulls(self._rows, DICTIONARY)

    def has(self, name: str) -> Mask:
        """Return a mask of the events that have a value with a name."""
        mask: Mask = self.get_strings(name).is_valid().to_numpy(zero_copy_only=False)
        return mask

    def to_json(self, ignored: Collection[str], is_selected: Mask) -> pa.Array:  # noqa: ARG002 - as in EventValues
        """Return the values of each event as a JSON object, null for events without values."""
        texts = self._columns["args"]
        is_empty = pc.match_substring_regex(texts, r"^(?:\{\s*\})?$")
        return pc.if_else(pc.and_not(pa.array(is_selected), is_empty), texts, pa.scalar(None, pa.string()))


def _parse_number(text: str) -> int | None:
    digits = text.removeprefix("-")
    if not (digits.isdecimal() and digits.isascii() and len(digits) <= 20):  # noqa: PLR2004
        return None
    number = int(text) % (1 << 64)
    return number - (1 << 64) if number >> 63 else number


@dataclass(frozen=True)
class ViewerPlane(Plane):
    """A process of a trace, as a plane.

    Attributes:
        listed: The threads of the process.
        batch: All events, in the order of threads.
        known: The values of all events.
    """

    listed: tuple[Line, ...]
    batch: EventBatch
    known: ViewerValues

    @property
    def lines(self) -> list[Line]:
        """The lines of the plane."""
        return list(self.listed)

    def count_events_by_line(self) -> list[int]:
        """Return the number of events of each line."""
        counts: list[int] = np.bincount(self.batch.lines, minlength=len(self.listed)).tolist()
        return counts

    def iterate_events(self, line_indices: list[int]) -> Iterator[EventBatch]:
        """Yield batches of the events of the given lines."""
        is_selected = np.zeros(len(self.listed), np.bool_)
        is_selected[line_indices] = True
        rows = np.flatnonzero(is_selected[self.batch.lines])
        for first in range(0, len(rows), _BATCH_ROWS):
            yield self.batch.take(rows[first : first + _BATCH_ROWS])

    def iterate_totals(self) -> Iterator[TotalBatch]:
        """Yield nothing, because each event of a trace has a start."""
        yield from ()

    def read_ops(self) -> dict[str, pa.Array]:
        """Return what the events with each name are, in the order of ``batch.names.dictionary``, as columns of text."""
        names = self.batch.names
        codes, firsts = np.unique(names.indices.fill_null(-1).to_numpy(), return_index=True)
        values = self.known.take(firsts[codes >= 0])
        columns = ("long_name", "tf_op", "hlo_category", "shape_with_layout")
        return {name: values.get_strings(name).cast(pa.string()) for name in columns} | {
            name: build_number_array(*values.get_integers(name))
            for name in ("program_id", "flops", "model_flops", "bytes_accessed")
        }
