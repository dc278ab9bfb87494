"""The recorded tables of one file, with the open file and the cached columns."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from tracekit import registry, schemas
from tracekit.errors import CorruptTraceError, SchemaError, TracekitError, format_count, warn
from tracekit.plan.sources import InMemory, OpenedFile
from tracekit.registry.absence import describe_undecoded
from tracekit.registry.interface import Undecoded
from tracekit.registry.tables import CachedTables, count_rows, read_chunks
from tracekit.system import memory
from tracekit.system.forks import check_polars_can_run
from tracekit.text.makers import ACTIVITY

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from tracekit.plan.remote_file import RemoteFile
    from tracekit.plan.sources import LiveCapture
    from tracekit.registry.interface import Capture, LaunchMetadata
    from tracekit.system.files import Input

_LAUNCHES = "launches"
"""Entry of ``RecordedTables._checked`` that states that the calls of kernels were looked up."""


TIME_COLUMNS = ("start_ns", "end_ns", "timestamp_ns")
MAX_TIME_NS = 1 << 61
"""The largest distance of a time from the trace origin, in ns. The difference of two such times fits into 64 bits."""
MAX_TOTAL_NS = 1 << 59
"""The largest sum of the durations of a table, in ns: 18 years.

The total of several tables fits into 64 bits, and so does ten times a mean, which is rounded to tenths.
"""


class RecordedTables(CachedTables):
    """The tables of one file, or tables in memory, checked against their declarations.

    Each column is read once and cached until the file is closed. Only one thread at a time reads the file. Tables that
    were returned stay valid after the file is closed, but further reads raise an error.

    Attributes:
        origin: The file, tables in memory, or opened capture that the tables come from.
        path: Path of the file or folder, for error messages.
        stages: The tables that result from each plan with this source, by plan. They are freed when no trace uses them.
        rollups: The roll-ups of this source, by row filters and parameters. They are freed when no tables use them.
    """

    def __init__(
        self,
        origin: OpenedFile | RemoteFile | InMemory | LiveCapture,
        *,
        opened: Capture | None = None,
        path: Path | None = None,
    ) -> None:
        """Create the tables of a file without reading them.

        Args:
            origin: The file, tables in memory, or opened capture that the tables come from.
            opened: The opened capture. If None, ``origin`` is opened on first use.
            path: The file or folder as the user wrote it. If None, the path of the origin is used.
        """
        self.origin = origin
        self.path = path or origin.path
        self.stages: weakref.WeakValueDictionary[Hashable, CachedTables] = weakref.WeakValueDictionary()
        self.rollups: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()
        self._companions: list[RecordedTables] = []
        self._opened = opened
        self._inputs = origin.inputs if opened is not None else None
        self._closed = False
        self._lock = threading.RLock()
        self._columns: dict[str, dict[str, pa.ChunkedArray]] = {}
        self._counts: dict[str, int] = {}
        self._checked: set[str] = set()
        self._examined: set[str] = set()
        self._missing_in_output: set[str] = set()
        self._undecoded: dict[str, Undecoded] | None = None

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The file or folder that is read, which an output must not replace. Empty for tables in memory."""
        return self.origin.inputs if self._inputs is None else self._inputs

    @property
    def is_open(self) -> bool:
        """Whether the file is open."""
        return self._opened is not None

    @property
    def capture(self) -> Capture:
        """The opened capture. The file is opened on first use.

        Raises:
            TracekitError: The trace is closed, or the file has changed since it was loaded or cannot be read.
            FileNotFoundError: The file does not exist.
        """
        with self._lock:
            if self._closed:
                raise TracekitError("the trace is closed", path=self.path, hint="load it again")
            if self._opened is None:
                self._inputs = self.origin.inputs
                self._opened = self.origin.open()
            return self._opened

    def undecoded(self) -> dict[str, Undecoded]:
        """Return the number and total size of events that are in no table, by class of event, such as ``memory map``.

        The mapping is empty if the reader does not count these events.
        """
        with self._lock:
            if self._undecoded is None:
                listed = self.capture.count_undecoded().items()
                self._undecoded = {n: Undecoded(size) if isinstance(size, int) else size for n, size in listed}
            return self._undecoded

    @property
    def _is_from_plugin(self) -> bool:
        """Whether the reader of a plug-in reads the file. Its rows are checked more thoroughly."""
        return isinstance(self.origin, OpenedFile) and self.format not in registry.BUILTIN_READERS

    @property
    def format(self) -> str:
        """Name of the format of the file, or ``memory`` for tables in memory."""
        return self.origin.format

    @property
    def tool(self) -> str:
        """The tool that recorded the capture, or an empty string if it is unknown."""
        return self._get_info("tool")

    @property
    def activity(self) -> str:
        """Name in ``ProfilerActivity`` of the devices of the capture, or an empty string for CUDA devices."""
        return self._get_info(ACTIVITY)

    def _get_info(self, name: str) -> str:
        rows = read_chunks(self, "capture_info", ["name", "value"]).to_pylist()
        return next((row["value"] or "" for row in rows if row["name"] == name), "")

    def can_contain(self, name: str) -> bool:
        """Return whether files in this format can contain rows of a table."""
        with self._lock:
            return self.capture.can_contain(name)

    def list_undecoded(self, name: str) -> dict[str, Undecoded]:
        """Return the recorded events that are not decoded, but may belong to a table, by class of event."""
        with self._lock:
            return {event_class: size for event_class, size in self.undecoded().items() if name in size.tables}

    def warn_about_undecoded_events(self, name: str) -> None:
        """Warn once if a table has no rows because its events are recorded, but not decoded."""
        with self._lock:
            if name in self._examined or name not in self.capture.list_undecodable_tables():
                return
            self._examined.add(name)
            if not count_rows(self, name) and (undecoded := self.list_undecoded(name)):
                warn(f"the table {name} has no rows, because {describe_undecoded(undecoded)}", path=self.path)

    def warn_about_events_missing_in_output(self, names: Iterable[str] | None) -> None:
        """Warn if an output lacks events that are recorded, but not decoded. A class of events is named only once.

        Args:
            names: Names of the tables in the output. None if the output contains the whole capture.
        """
        with self._lock:
            listed = self.list_events_missing_in_output(names)
            undecoded = {name: size for name, size in listed.items() if name not in self._missing_in_output}
            if undecoded:
                self._missing_in_output.update(undecoded)
                warn(f"the output is incomplete, because {describe_undecoded(undecoded)}", path=self.path)

    def list_events_missing_in_output(self, names: Iterable[str] | None) -> dict[str, Undecoded]:
        """Return the events, by class, that an output lacks because they are recorded, but not decoded.

        Args:
            names: Names of the tables in the output. None if the output contains the whole capture.
        """
        with self._lock:
            tables = None if names is None else set(self.capture.list_undecodable_tables()).intersection(names)
            if tables is not None and not tables:
                return {}
            try:
                recorded = self.undecoded()
            except TracekitError as e:
                warn(f"the events that tracekit does not decode cannot be counted: {e.message}", path=self.path)
                return {}
            return {
                name: size
                for name, size in recorded.items()
                if not size.is_auxiliary and (tables is None or tables.intersection(size.tables))
            }

    def read_launch_metadata(self) -> LaunchMetadata:
        """Return what the file records about the launch of the profiled program: rank variables and the host."""
        with self._lock:
            return self.capture.read_launch_metadata()

    def count_many(self, names: Sequence[str]) -> dict[str, int]:
        """Return the number of recorded rows of each table in ``names``, by table name.

        The rows are counted in as few passes over the file as its format allows.
        """
        with self._lock:
            for name in names:
                if not self.capture.may_have(name):
                    self._counts[name] = 0
                elif columns := self._columns.get(name):
                    self._counts[name] = len(next(iter(columns.values())))
            unknown = [n for n in names if n not in self._counts]
            if unknown:
                self._counts |= self.capture.count_many(unknown)
            return {name: self._counts[name] for name in names}

    def read_many(self, columns: Mapping[str, Sequence[str]]) -> dict[str, pa.Table]:
        """Return the requested columns of several tables. Columns that are not cached are first read and checked."""
        with self._lock:
            self.prefetch(columns)
            return {name: self._build_table(name, names) for name, names in columns.items()}

    def _build_table(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Return columns of a table that are cached or, if the file does not have the table, have no rows."""
        import pyarrow as pa

        schema, cached = self.schema(name), self._columns.get(name)
        if cached is None:
            return schemas.empty(schema, columns)
        return pa.table([cached[c] for c in columns], schema=schemas.arrow_schema(schema, columns))

    def prefetch(self, columns: Mapping[str, Sequence[str]]) -> None:
        """Read and cache the requested columns of several tables, except those that are already cached."""
        with self._lock:
            uncached = {name: self._list_missing_columns(name, names) for name, names in columns.items()}
            missing = {name: names for name, names in uncached.items() if names and self.capture.may_have(name)}
            if missing:
                for name, data in self.capture.read_many(missing).items():
                    self._cache_columns(name, missing[name], data)
            if all("correlation_id" in columns.get(name, ()) for name in ("kernels", "api_calls")):
                self._warn_about_kernels_without_calls()

    def release(self) -> None:
        """Free the memory of the cached columns and of results that were computed from them."""
        super().release()
        with self._lock:
            self._columns.clear()
            for results in (*list(self.stages.values()), *list(self.rollups.values())):
                results.release()

    def close(self) -> None:
        """Close the file if it is open, and free the cached columns."""
        with self._lock:
            self.release()
            if self._opened is not None:
                self._closed = True
                self._opened.close()
            for companion in self._companions:
                companion.close()

    def close_together(self, companion: RecordedTables) -> None:
        """Close another file when this one is closed, because only traces of this file use it."""
        self._companions.append(companion)

    def reopen(self) -> RecordedTables:
        """Return a separate object for the same origin, which opens the origin again on first use.

        If the origin is a capture that cannot be opened again, return this object.
        """
        return RecordedTables(self.origin) if self.origin.can_reopen else self

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordedTables, (self.origin,)

    def _list_missing_columns(self, name: str, columns: Sequence[str]) -> list[str]:
        """Return the columns that are not cached.

        The key of a table of a plug-in is always read, because it is checked, and because the plug-in may leave out all
        other columns.
        """
        cached = self._columns.get(name, {})
        if self._is_from_plugin:
            columns = (*columns, *self.schema(name).key)
        return [c for c in dict.fromkeys(columns) if c not in cached]

    def _cache_columns(self, name: str, columns: list[str], data: pa.Table) -> None:
        """Check columns against the declared schema of their table, and cache them."""
        import pyarrow as pa

        cached = self._columns.setdefault(name, {})
        checked = schemas.conform(data, self.schema(name), columns, path=self.path)
        if cached and checked.num_rows != (rows := len(next(iter(cached.values())))):
            message = f"table {name!r} had {rows} rows when it was first read, but now it has {checked.num_rows}"
            raise SchemaError(message, path=self.path)
        self._check_times(name, checked)
        new = dict(zip(columns, map(memory.compact_if_all_null, checked.columns), strict=True))
        if self._is_from_plugin and not {*self.schema(name).key, *TIME_COLUMNS}.isdisjoint(columns):
            schemas.check_rows(pa.table({**cached, **new}), self.schema(name), path=self.path)
        self._check_durations(name, cached | new)
        cached.update(new)
        memory.release_pages()

    def _warn_about_kernels_without_calls(self) -> None:
        """Warn about kernels whose API calls cannot be found, once per file.

        Tables in memory and files without the table ``api_calls``, such as those of selected tables, are not checked.
        """
        may_have_both = all(map(self.capture.may_have, ("kernels", "api_calls")))
        if _LAUNCHES in self._checked or isinstance(self.origin, InMemory) or not may_have_both:
            return
        import polars as pl

        from tracekit.core.relations import CALL, count_kernels_without_calls

        check_polars_can_run()
        self._checked.add(_LAUNCHES)
        kernels, calls = (pl.DataFrame(read_chunks(self, name, CALL)) for name in ("kernels", "api_calls"))
        counts = count_kernels_without_calls(kernels, calls)
        if counts.count:
            warn(counts.describe(calls.height), path=self.path)

    def _check_times(self, name: str, data: pa.Table) -> None:
        """Check that the times of a table are so small that no difference of two times overflows.

        Raises:
            CorruptTraceError: A time is outside the range of 62 bits, more than 73 years before or after the origin.
        """
        import pyarrow.compute as pc

        for column in (c for c in TIME_COLUMNS if c in data.column_names):
            outside = pc.or_(pc.less(data[column], -MAX_TIME_NS), pc.greater(data[column], MAX_TIME_NS))
            if count := pc.sum(outside).as_py():
                row = pc.index(outside, True).as_py()
                value = data[column][row].as_py()
                what = f"{count:,} values of {column} are outside ±2^61 ns, such as {value}"
                hint = "record the program again, or remove these rows from the capture"
                raise CorruptTraceError(what, path=self.path, table=name, row=row, hint=hint)

    def _check_durations(self, name: str, columns: dict[str, pa.ChunkedArray]) -> None:
        """Check that no sum of durations overflows, and warn about rows that end before they start.

        The durations of a table are checked once both of its time columns are read.

        Raises:
            CorruptTraceError: The durations of the table add up to more than ``MAX_TOTAL_NS``.
        """
        import pyarrow.compute as pc

        if name in self._checked or not {"start_ns", "end_ns"} <= columns.keys():
            return
        durations = pc.subtract(columns["end_ns"], columns["start_ns"])
        shortest, longest = (pc.min_max(durations)[key].as_py() or 0 for key in ("min", "max"))
        total = max(longest, -shortest) * len(durations)
        if total > MAX_TOTAL_NS:  # the bound is too high, so the durations have to be added
            total = int(pc.sum(pc.cast(pc.abs(durations), "float64", safe=False)).as_py())
        if total > MAX_TOTAL_NS:
            longest = max(longest, -shortest)
            what = f"the durations of the rows add up to more than 2^59 ns, and the longest one is {longest} ns"
            hint = "record the program again, or remove the rows with wrong times from the capture"
            raise CorruptTraceError(what, path=self.path, table=name, hint=hint)
        self._checked.add(name)
        if shortest < 0:
            negative = pc.sum(pc.less(durations, 0)).as_py()
            end = "ends before it starts; it is" if negative == 1 else "end before they start; they are"
            warn(f"{format_count(negative, 'row')} of the table {name} {end} kept as recorded", path=self.path)
