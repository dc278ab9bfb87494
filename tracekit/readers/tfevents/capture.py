"""Build declared tables from event files. All files are read when they are opened. Columns are built on demand."""

from __future__ import annotations

import functools
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit import schemas
from tracekit.errors import CorruptTraceError, MissingTableError, TracekitError, UnknownFormatError, format_count, warn
from tracekit.readers.common.columns import compact_dictionary
from tracekit.readers.common.damage import convert_damage
from tracekit.readers.tensorflow.graph import EDGES, NODES
from tracekit.readers.tfevents import events, exported, graphs, step_stats
from tracekit.readers.tfevents.events import FileEvents, NotAnEventFile
from tracekit.readers.tfevents.records import BufferPool
from tracekit.readers.tfevents.runs import Run
from tracekit.registry.detection import describe_unrecognized
from tracekit.registry.interface import Capture
from tracekit.registry.source import Source
from tracekit.system.files import REMOVED_HINT
from tracekit.system.threads import map_in_order

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tracekit.readers.tensorflow.graph import Graph

SCALARS, TEXTS, STEP_STATS, CAPTURE_INFO = "scalars", "texts", "step_stats", "capture_info"
THREADS = 4
_IDS = {SCALARS: "scalar_id", TEXTS: "text_id", STEP_STATS: "execution_id"}
_COPY_AGAIN = "copy the file again from its source"


def read_event_files(source: Source) -> EventsCapture:
    """Read an event file, or all event files in a folder.

    Raises:
        CorruptTraceError: A file is damaged, or none of the files is an event file.
        MissingTableError: The files contain no events, only the marker of a TensorFlow profile.
        UnknownFormatError: The records of the file are not events.
        TracekitError: A file cannot be read.
    """
    path = source.path
    paths = exported.list_files_by_run(path)
    if not paths:
        hint = "read an event file, events.out.tfevents.*, or a folder of them"
        raise CorruptTraceError("the folder contains no event files", path=path, hint=hint)
    pool = BufferPool()
    jobs = [(run, file) for run, files in paths.items() for file in files]
    results = zip(jobs, map_in_order(lambda job: _read_file(job[1], pool), jobs, THREADS), strict=True)
    by_run: dict[str, list[FileEvents]] = {run: [] for run in paths}
    for (run, file), result in results:
        if isinstance(result, FileEvents):
            _warn_about_unread_bytes(result)
            by_run[run].append(result)
        elif file == path:
            raise result.error_type(result.message, path=path, hint=result.hint)
        else:
            warn(f"the file was skipped: {result.message}", path=file)
    runs = [exported.add_exported_run_metadata(Run(run, files)) for run, files in by_run.items() if files]
    _require_events(path, runs, [file for _, file in jobs])
    return EventsCapture(path, runs)


class SkippedFile(NamedTuple):
    """A file that is not an event file, with the type, message and hint of the error that explains why."""

    error_type: type[CorruptTraceError | UnknownFormatError]
    message: str
    hint: str


def _read_file(path: Path, pool: BufferPool) -> FileEvents | SkippedFile:
    """Read an event file, or return the reason why the file is not an event file."""
    try:
        with convert_damage(path):
            file_events = events.read_events(path, pool)
    except NotAnEventFile:
        message = "this is a TFRecord file, but its records are not TensorBoard events"
        return SkippedFile(UnknownFormatError, message, "read files named events.out.tfevents.*")
    except FileNotFoundError as e:
        raise TracekitError("the file was removed while it was being read", path=path, hint=REMOVED_HINT) from e
    if file_events.records or not file_events.damage:
        return file_events
    unknown = "this is not an event file, because it does not begin with a valid record", _COPY_AGAIN
    message, hint = describe_unrecognized(Source(path), unknown)
    return SkippedFile(CorruptTraceError, message, hint)


def _warn_about_unread_bytes(events: FileEvents) -> None:
    """Warn if a file ends with bytes that were not read because a record is invalid or incomplete."""
    unread = events.size - events.end
    left = format_count(unread, "byte", "were", "was")
    if events.damage:
        warn(
            f"{events.damage} at byte {events.end}: the {format_count(events.records, 'record')} before it "
            f"{'was' if events.records == 1 else 'were'} read, but the last {left} not",
            path=events.path,
        )
    elif unread:
        warn(
            f"the file ends within a record, perhaps because it is still being written: "
            f"{format_count(events.records, 'record', 'were', 'was')} read, but the last {left} not",
            path=events.path,
        )


def _require_events(path: Path, runs: Sequence[Run], files: Sequence[Path]) -> None:
    """Raise an error if no file is an event file, or if the files contain only the marker of a TensorFlow profile.

    Raises:
        CorruptTraceError: None of the files is an event file.
        MissingTableError: The files contain no events, only the marker of a TensorFlow profile.
    """
    if not runs:
        message = f"the folder contains {len(files)} files with names of event files, but none of them is an event file"
        raise CorruptTraceError(message, path=path, hint=_COPY_AGAIN)
    has_contents = any(f.points or f.executions or f.graphs or f.counts for run in runs for f in run.files)
    if not has_contents and all(file.name.endswith(exported.PROFILE_SUFFIX) for file in files):
        raise MissingTableError(
            "the files contain only the marker of a TensorFlow profile in plugins/profile, and tracekit cannot read "
            "this profile",
            path=path,
            hint="read an event file with scalars, graphs or run metadata, or the trace of another profiler",
        )


class EventsCapture(Capture):
    """The tables of event files that have been read.

    Attributes:
        path: The file or folder.
        runs: The contents of each run.
    """

    def __init__(self, path: Path, runs: Sequence[Run]) -> None:
        self.path = path
        self.runs = runs

    def names(self) -> list[str]:
        """Return the names of the declared tables that may have rows."""
        return [SCALARS, TEXTS, STEP_STATS, NODES, EDGES, CAPTURE_INFO]

    def count(self, name: str) -> int:
        """Return the number of rows of a table."""
        if name in (SCALARS, TEXTS, STEP_STATS):
            return sum(self._count_rows_of_runs(name))
        return int(self.read(name, schemas.table(name).names[:1]).num_rows)

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Return the requested columns of a table.

        Raises:
            CorruptTraceError: A graph is damaged.
        """
        if name in (NODES, EDGES):
            table: pa.Table = (self._graph.nodes if name == NODES else self._graph.edges).select(list(columns))
            return table
        if name == CAPTURE_INFO:
            return pa.table({c: [row[c] for row in self._build_capture_info_rows()] for c in columns})
        return self._build_event_table(name, columns)

    def count_undecoded(self) -> Mapping[str, int]:
        """Return the number of events and summary values that belong to no table, by kind."""
        return self.undecoded

    @functools.cached_property
    def undecoded(self) -> dict[str, int]:
        """Number of events and summary values that belong to no table, by kind."""
        counts: Counter[str] = Counter()
        for run in self.runs:
            counts.update(run.count_undecoded())
        return dict(counts)

    @functools.cached_property
    def _graph(self) -> Graph:
        return graphs.read_merged_graph(self.runs)

    @functools.cached_property
    def _origin_ns(self) -> int:
        return min((f.first for run in self.runs for f in run.files if f.first is not None), default=0)

    def _count_rows_of_runs(self, name: str) -> list[int]:
        if name == STEP_STATS:
            return [sum(e.rows for f in run.files for e in f.executions) for run in self.runs]
        return [len(run.scalars if name == SCALARS else run.texts) for run in self.runs]

    def _build_event_table(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Build an event table from the rows of all runs. Row ids are numbered from 1 across all runs."""
        counts = self._count_rows_of_runs(name)
        schema = schemas.arrow_schema(schemas.table(name), columns)
        file_columns = [c for c in columns if c not in ("run", _IDS[name])]
        batches = [batch for run in self.runs for batch in self._iterate_column_batches(name, run, file_columns)]
        arrays: dict[str, pa.Array | pa.ChunkedArray] = {}
        for field in schema:
            if field.name == "run":
                arrays["run"] = _build_run_column(self.runs, counts)
            elif field.name == _IDS[name]:
                arrays[field.name] = pa.array(np.arange(1, sum(counts) + 1))
            else:
                arrays[field.name] = pa.chunked_array([_cast_column(p, field) for p in batches], field.type)
        return pa.table(arrays)

    def _iterate_column_batches(
        self, table: str, run: Run, column_names: Sequence[str]
    ) -> Iterator[Mapping[str, pa.Array]]:
        if table == SCALARS:
            yield run.build_scalar_columns(column_names)
        elif table == TEXTS:
            yield run.build_text_columns(column_names)
        else:
            for executions in (e for f in run.files for e in f.executions):
                empty = pa.nulls(executions.rows)
                columns = {c: executions.columns.get(c, empty) for c in column_names}
                yield {c: self._subtract_origin(v) if c in step_stats.TIMES else v for c, v in columns.items()}

    def _subtract_origin(self, times: pa.Array) -> pa.Array:
        return pc.subtract(times, self._origin_ns) if pa.types.is_integer(times.type) else times

    def _build_capture_info_rows(self) -> list[dict[str, str]]:
        files = [f for run in self.runs for f in run.files]
        writers = dict.fromkeys(f.writer for f in files if f.writer)
        versions = dict.fromkeys(f.version for f in files if f.version)
        last = max((f.last for f in files if f.last is not None), default=None)
        metadata = {"tool": ", ".join(writers) or "TensorFlow events", "schema_version": ", ".join(versions)}
        metadata["runs"] = str(len(self.runs))
        if last is not None:
            metadata |= {"origin_utc_ns": str(self._origin_ns), "duration_ns": str(last - self._origin_ns)}
        return [{"name": name, "value": value} for name, value in metadata.items() if value]


def _build_run_column(runs: Sequence[Run], row_counts: Sequence[int]) -> pa.DictionaryArray:
    codes = np.repeat(np.arange(len(runs), dtype=np.int32), row_counts)
    return compact_dictionary(pa.array(codes), pa.array([run.name for run in runs], pa.string()))


def _cast_column(batch: Mapping[str, pa.Array], field: pa.Field) -> pa.Array:
    """Cast a column of a batch to its declared type."""
    array = batch[field.name]
    if pa.types.is_dictionary(field.type) and pa.types.is_dictionary(array.type):
        return array
    return array.cast(field.type)
