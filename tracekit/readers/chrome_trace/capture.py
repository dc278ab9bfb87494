"""Build declared tables from a Chrome trace, all of whose events are read when it is opened."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from tracekit.errors import CorruptTraceError, MissingTableError, format_count, warn
from tracekit.readers.chrome_trace.events import (
    COUNTERS,
    KEYS,
    MARKS,
    NAMES,
    ROW,
    SLICES,
    TEXT,
    PhaseCollector,
    TraceKey,
)
from tracekit.readers.chrome_trace.slices import build_ranges
from tracekit.readers.common.budget import Budget
from tracekit.readers.common.damage import check_time_span, convert_damage, warn_about_trailing_bytes
from tracekit.readers.common.frame_capture import FrameCapture
from tracekit.readers.common.json.document import Document, DocumentFormat
from tracekit.readers.common.json.heads import GZIP
from tracekit.readers.common.json.scanner import JsonCells, JsonScanner
from tracekit.readers.common.json.stream import Stream
from tracekit.registry.interface import Undecoded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tracekit.registry.source import Source

_EXPORT_AGAIN = "write the trace again"
_FORMAT = DocumentFormat("traceEvents", "events", _EXPORT_AGAIN, may_repeat=True)
_FIRST_NUMBER = 1 << 32
"""First id of processes and threads that the file names with a text instead of a number, if no id is higher."""
_LAST_FIRST_NUMBER = 1 << 62
_COLUMNS = {
    ROW: ROW,
    TraceKey.PHASE.name: "phase",
    TraceKey.START.name: "start_ns",
    TraceKey.DURATION.name: "duration_ns",
    TraceKey.CATEGORY.name: "category",
    TraceKey.NAME.name: "name",
    TraceKey.ID.name: "id",
    TraceKey.LOCAL_ID.name: "local_id",
    TraceKey.SCOPE.name: "scope",
    TraceKey.ARGS.name: "args",
    TraceKey.LABEL.name: "label",
}
"""Names of the columns of the collected members."""
_ID_COLUMNS = {TraceKey.PID: "process_id", TraceKey.TID: "thread_id"}
_PAIR = r'"(?:[^"\\]|\\.)*"\s*:\s*(?:"(?:[^"\\]|\\.)*"|[^,{}\[\]"]+)'
"""Matches a member of the arguments of a counter, whose value is not an object or array."""
_NUMBER = r"^\s*-?\d[\d.]*(?:[eE][+-]?\d+)?\s*$"
_MAX_COUNTERS_PER_EVENT = 1000
_WRITERS = {
    "rocprof": ("processes", r"^(?:CPU (?:HIP|HSA) API|GPU Barriers\d+)$"),
    "rocmProfileData": ("threads", r"^Hip \d+$"),
}
"""Table and regular expression for the names of processes or threads that only one tool writes."""
_FLOWS, _UNMATCHED = "flows", "ends of slices without a beginning"
_EVENT_TABLES = ("nvtx_ranges", "nvtx_marks", "counters")


def read_trace(source: Source) -> ChromeTraceCapture:
    """Read a Chrome trace, and return its tables.

    Raises:
        CorruptTraceError: The file is not JSON with trace events, or is truncated before the end of the first event.
        MissingTableError: The file contains no events with times.
        TracekitError: The file cannot be read, or changed while it was read.
    """
    path = source.path
    sandbox, repairs, budget = JsonScanner(KEYS), Counter[str](), Budget(source.size)
    collector = PhaseCollector(budget)
    with source.open() as file, convert_damage(path, file=file):
        with Stream(file, compressed=source.head.startswith(GZIP)) as stream:
            document = Document(path, stream, sandbox, _FORMAT)
            for _ in document.parse_in_batches():
                collector.add_events(JsonCells(sandbox, repairs))
        file.check_unchanged()
        _require_events(path, document, collector)
        _warn_about_skipped_data(path, document, stream, collector, repairs)
        return ChromeTraceCapture(collector, budget)


def _require_events(path: Path, document: Document, collector: PhaseCollector) -> None:
    """Raise an error if the file contains no event that belongs to a table."""
    if not document.has_array:
        what = "the file contains no trace events" + " because it is truncated" * document.truncated
        raise CorruptTraceError(what, path=path, hint=_EXPORT_AGAIN)
    if any(count for group, count in collector.counts.items() if group != NAMES):
        return
    if document.truncated:
        what = "the file is truncated before the end of its first event"
        raise CorruptTraceError(what, path=path, hint=_EXPORT_AGAIN)
    others = collector.undecoded.total() + collector.flows.total()
    raise MissingTableError(
        f"the file contains no slices, marks or counters, but {others:,} other trace events",
        path=path,
        hint="read a trace with slices, such as one of VizTracer or of the developer tools of Chrome",
    )


def _warn_about_skipped_data(
    path: Path, document: Document, stream: Stream, collector: PhaseCollector, repairs: Mapping[str, int]
) -> None:
    """Warn about skipped events and repaired strings."""
    if document.truncated or stream.damage:
        reason = stream.damage or "its JSON is incomplete"
        read = collector.counts.total()
        warn(
            f"the file is truncated ({reason}): {format_count(read, 'complete event', 'were read', 'was read')}",
            path=path,
        )
    if document.invalid:
        rest, rest_of_one = "are not valid JSON and were skipped", "is not valid JSON and was skipped"
        warn(format_count(document.invalid, "event", rest, rest_of_one), path=path)
    if collector.untimed:
        what = "1 event has" if collector.untimed == 1 else f"{collector.untimed} events have"
        warn(f"{what} no valid time or duration and {'was' if collector.untimed == 1 else 'were'} skipped", path=path)
    for what, count in repairs.items():
        if count:
            strings, verb = format_count(count, "string"), "was" if count == 1 else "were"
            warn(f"{strings} contained invalid {what} and {verb} repaired", path=path)
    warn_about_trailing_bytes(path, stream.trailing_bytes + document.trailing_bytes)


class ChromeTraceCapture(FrameCapture):
    """The tables of a Chrome trace.

    Events are ranges, marks and counters, because a Chrome trace does not state which events are kernels or API calls.
    """

    def __init__(self, collector: PhaseCollector, budget: Budget) -> None:
        """Build all tables.

        Raises:
            Damage: A table exceeds the memory budget.
        """
        super().__init__()
        frames = {name: pl.DataFrame(pl.from_arrow(pa.table(columns))) for name, columns in collector.finish().items()}
        texts = _number_text_ids(frames)
        frames = {name: _rename_columns(frame, texts) for name, frame in frames.items()}
        self._budget = budget
        self._undecoded = collector.undecoded
        self._flows = collector.flows.total()
        if SLICES in frames:
            ranges = build_ranges(frames.pop(SLICES))
            self._undecoded[_UNMATCHED] += ranges.unmatched
            self._tables["nvtx_ranges"] = _describe(ranges.frame)
        if MARKS in frames:
            self._tables["nvtx_marks"] = _describe(frames.pop(MARKS)).rename({"start_ns": "timestamp_ns"})
        if COUNTERS in frames:
            self._tables["counters"] = self._build_counters(frames.pop(COUNTERS))
        self._add_names(frames.pop(NAMES, None), texts)
        self._subtract_origin()

    def count_undecoded(self) -> Mapping[str, Undecoded]:
        """Return the number of events that are in no table, by class."""
        counts = {name: Undecoded(count) for name, count in self._undecoded.items() if count}
        return counts | ({_FLOWS: Undecoded(self._flows, is_auxiliary=True)} if self._flows else {})

    def can_contain(self, name: str) -> bool:
        """Return whether a Chrome trace can contain rows of a table."""
        return name in (*_EVENT_TABLES, "processes", "threads") or self.may_have(name)

    def _build_counters(self, events: pl.DataFrame) -> pl.DataFrame:
        """Return the numbers in the arguments of counters, with one row per number.

        The field of a counter whose events never have another argument is its name.
        """
        pairs = pl.col("args").str.extract_all(_PAIR).list.head(_MAX_COUNTERS_PER_EVENT)
        counts = events.select(pairs.list.len().sum()).item()
        self._budget.reserve(counts or 0, 256, "values of counters")
        name = pl.concat_str("name", "id", separator=" ", ignore_nulls=True)
        frame = events.select(
            *("process_id", "thread_id"),
            event_id=pl.int_range(1, pl.len() + 1, dtype=pl.Int64),
            timestamp_ns="start_ns",
            source=pl.lit("Chrome trace"),
            name=name,
            pair=pairs,
        ).explode("pair")
        parts = pl.col("pair").str.extract_groups(r'(?s)^"((?:[^"\\]|\\.)*)"\s*:\s*(.*)$')
        text = parts.struct[1].str.strip_chars().str.replace(r'(?s)^"(.*)"$', "${1}")
        frame = frame.with_columns(key=_unescape(frame.select(parts.struct[0]).to_series()), text=text).filter(
            pl.col("text").str.contains(_NUMBER).fill_null(value=False)
        )
        self._undecoded["counters without numbers"] += events.height - frame["event_id"].n_unique()
        whole = pl.col("text").str.strip_chars().cast(pl.Int64, strict=False)
        real = pl.when(whole.is_null()).then(pl.col("text").str.strip_chars().cast(pl.Float64, strict=False))
        frame = frame.with_columns(value_int=whole, value_float=real)
        has_one_field = pl.col("key").n_unique().over("process_id", "name") == 1
        return frame.with_columns(
            field=pl.when(has_one_field).then("name").otherwise("key"),
            value_type=pl.when(pl.col("value_int").is_not_null()).then(pl.lit("int64")).otherwise(pl.lit("double")),
        )

    def _add_names(self, events: pl.DataFrame | None, texts: Mapping[TraceKey, Mapping[str, int]]) -> None:
        """Add the tables of processes and threads that have events or names."""
        keys = list(_ID_COLUMNS.values())
        empty = pl.DataFrame(schema=dict.fromkeys(keys, pl.Int64))
        used = pl.concat([empty, *(frame.select(keys) for frame in self._tables.values())]).unique(maintain_order=True)
        schema = {"what": pl.String, **dict.fromkeys(keys, pl.Int64), "label": pl.String}
        labels = pl.DataFrame(schema=schema) if events is None else _read_labels(events)
        of_texts = [
            used.select(
                "process_id", "thread_id" if slot is TraceKey.TID else pl.lit(None, pl.Int64).alias("thread_id")
            )
            .with_columns(
                what=pl.lit(what), label=pl.col(_ID_COLUMNS[slot]).replace_strict(_invert(texts[slot]), default=None)
            )
            .select(*schema)
            for slot, what in ((TraceKey.PID, "process_name"), (TraceKey.TID, "thread_name"))
            if texts[slot]
        ]
        labels = pl.concat([*of_texts, labels]).drop_nulls("label")
        processes = labels.filter(pl.col("what") == "process_name").drop_nulls("process_id")
        processes = processes.select("process_id", name="label").unique("process_id", keep="last")
        ids = pl.concat([used.select("process_id"), processes.select("process_id")]).drop_nulls().unique()
        self._tables["processes"] = ids.sort("process_id").join(processes, on="process_id", how="left")
        threads = labels.filter(pl.col("what") == "thread_name").drop_nulls(keys)
        self._tables["threads"] = threads.select(*keys, name="label").unique(keys, keep="last", maintain_order=True)

    def _find_writer(self) -> dict[str, str]:
        """Return the tool that wrote the trace, as far as it is known, and the maker of its GPUs."""
        for tool, (table, pattern) in _WRITERS.items():
            if self._tables[table]["name"].cast(pl.String).str.contains(pattern).any():
                return {"tool": tool, "device_vendors": "AMD"}
        return {"tool": "Chrome trace"}

    def _subtract_origin(self) -> None:
        """Make times relative to the earliest event."""
        columns = [(name, c) for name, frame in self._tables.items() for c in frame.columns if c.endswith("_ns")]
        bounds = [self._tables[name].select(first=pl.col(c).min(), last=pl.col(c).max()).row(0) for name, c in columns]
        first = min((first for first, _ in bounds if first is not None), default=0)
        last = max((last for _, last in bounds if last is not None), default=0)
        check_time_span(first, last)
        for name, column in columns:
            self._tables[name] = self._tables[name].with_columns(pl.col(column) - first)
        info = {**self._find_writer(), "duration_ns": str(last - first)}
        self._tables["capture_info"] = pl.DataFrame({"name": list(info), "value": list(info.values())})


def _number_text_ids(groups: Mapping[str, pl.DataFrame]) -> dict[TraceKey, dict[str, int]]:
    """Return numbers for the ids of processes and threads that are texts, by JSON member and text."""
    numbers: dict[TraceKey, dict[str, int]] = {}
    for slot in _ID_COLUMNS:
        numeric = [pl.Series([0], dtype=pl.Int64), *(frame[slot.name].cast(pl.Int64) for frame in groups.values())]
        highest = pl.concat([series.rename(slot.name) for series in numeric]).drop_nulls().to_numpy().max()
        first = max(_FIRST_NUMBER, min(int(highest) + 1, _LAST_FIRST_NUMBER))
        columns = [frame[f"{slot.name} {TEXT}"].cast(pl.String) for frame in groups.values()]
        used = pl.concat([pl.Series(dtype=pl.String), *columns]).drop_nulls().unique(maintain_order=True)
        numbers[slot] = {text: first + nth for nth, text in enumerate(used.to_list())}
    return numbers


def _rename_columns(frame: pl.DataFrame, texts: Mapping[TraceKey, Mapping[str, int]]) -> pl.DataFrame:
    """Rename the columns of collected events, and replace ids that are texts by their numbers."""
    ids = (
        pl.coalesce(slot.name, _replace_expr(f"{slot.name} {TEXT}", texts[slot])).alias(new)
        for slot, new in _ID_COLUMNS.items()
    )
    return frame.select(*(pl.col(old).alias(new) for old, new in _COLUMNS.items() if old in frame.columns), *ids)


def _unescape(keys: pl.Series) -> pl.Series:
    """Replace the escapes in keys of JSON."""
    escaped = keys.filter(keys.str.contains("\\", literal=True)).unique()
    if escaped.is_empty():
        return keys
    texts = {key: _decode_key(key) for key in escaped.to_list()}
    return keys.replace(list(texts), list(texts.values()))


def _decode_key(key: str) -> str:
    try:
        return str(json.loads(f'"{key}"', strict=False)).encode("utf-8", "replace").decode("utf-8")
    except ValueError:
        return key


def _replace_expr(column: str, numbers: Mapping[str, int]) -> pl.Expr:
    if not numbers:
        return pl.lit(None, pl.Int64)
    return pl.col(column).cast(pl.String).replace_strict(numbers, default=None, return_dtype=pl.Int64)


def _invert(numbers: Mapping[str, int]) -> dict[int, str]:
    return {number: text for text, number in numbers.items()}


def _describe(frame: pl.DataFrame) -> pl.DataFrame:
    """Return events with the columns of ranges and marks."""
    return frame.rename({"args": "payload_text"}).with_columns(
        domain_id=pl.lit(0, pl.Int64),
        payload_type=pl.when(pl.col("payload_text").is_not_null()).then(pl.lit("json")),
    )


def _read_labels(events: pl.DataFrame) -> pl.DataFrame:
    columns: Sequence[Any] = ("process_id", "thread_id", "label")
    return (
        events.select(pl.col("name").cast(pl.String).alias("what"), *columns)
        .drop_nulls("label")
        .with_columns(pl.col("label").cast(pl.String))
    )
