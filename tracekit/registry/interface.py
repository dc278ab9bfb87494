"""The interfaces of readers and exporters, and of the captures, reports and traces that they exchange."""

from __future__ import annotations

import functools
import os
import weakref
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from tracekit.errors import ExportError
from tracekit.registry.analyses import resolve_options
from tracekit.registry.tables import Tables

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    import polars as pl
    import pyarrow as pa

    from tracekit.registry.absence import Absence
    from tracekit.registry.analyses import Option, Value
    from tracekit.registry.source import Source
    from tracekit.text.explanations import Explanation


class Progress(Protocol):
    """A callback that receives the progress of a long operation."""

    def __call__(self, done: int, total: int) -> None:
        """Receive the number of processed items, such as rows, and the total number of items."""
        ...


def ignore_progress(done: int, total: int) -> None:
    """Do nothing. This is the default progress callback."""


@dataclass(frozen=True, slots=True)
class Undecoded:
    """The number and the total size of the events of one class, such as ``memory map``, that are in no declared table.

    Attributes:
        count: Number of events, or of rows of a source table.
        bytes: Total uncompressed size of these events in bytes. None if it is unknown.
        tables: Names of the declared tables to which the events may belong. Empty if they belong to none.
        is_auxiliary: Whether the events only describe the capture or repeat others, so that an output is complete
            without them.
    """

    count: int
    bytes: int | None = None
    tables: tuple[str, ...] = ()
    is_auxiliary: bool = field(default=False, repr=False)


RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
"""Environment variables in which launchers store the number of a process in its job. No others are read."""


@dataclass(frozen=True, slots=True)
class LaunchMetadata:
    """The metadata that a capture records about the launch of the profiled program.

    Attributes:
        variables: Numbers that launchers stored in environment variables, by name of the variable. Only
            ``RANK_VARIABLES`` are included.
        host: Name of the machine, which is private. None if it is not recorded.
    """

    variables: Mapping[str, int] = field(default_factory=dict)
    host: str | None = field(default=None, repr=False)


class Capture(Tables):
    """An open file whose declared tables can be read, as returned by ``Reader.open``.

    Its methods are never called by two threads at once.
    """

    @abstractmethod
    def names(self) -> Collection[str]:
        """Return the names of the declared tables that may have rows in this file."""

    def may_have(self, name: str) -> bool:
        """Return whether a declared table may have rows in this file.

        Override this method if there is a faster way than listing all tables.
        """
        return name in self.names()

    def count(self, name: str) -> int:
        """Return the number of rows of one table. A subclass implements this method or ``count_many``."""
        raise NotImplementedError

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Return the requested columns of one table, with all its rows.

        A subclass implements this method or ``read_many``.
        """
        raise NotImplementedError

    def count_many(self, names: Sequence[str]) -> Mapping[str, int]:
        """Return the number of rows of several tables, by table name.

        A subclass implements this method instead of ``count`` if one pass over the file can count several tables.
        """
        return {name: self.count(name) for name in names}

    def read_many(self, columns: Mapping[str, Sequence[str]]) -> Mapping[str, pa.Table]:
        """Return the requested columns of several tables, by table name.

        A subclass implements this method instead of ``read`` if one pass over the file can read several tables.
        """
        return {name: self.read(name, names) for name, names in columns.items()}

    def count_undecoded(self) -> Mapping[str, int | Undecoded]:
        """Return the number of events that are in no declared table, by class of event, such as ``memory map``.

        A value is the number of events of a class, or an ``Undecoded`` if the size of the events is also known.

        The mapping is empty if the reader does not count these events.
        """
        return {}

    def can_contain(self, name: str) -> bool:
        """Return whether files in this format can contain rows of a declared table, even if this file has none."""
        return self.may_have(name)

    def list_undecodable_tables(self) -> Collection[str]:
        """Return the names of the tables to which events may belong that ``count_undecoded`` counts.

        If one of these tables is read and has no rows, the undecoded events are counted for a warning.
        """
        return ()

    def read_launch_metadata(self) -> LaunchMetadata:
        """Return the rank variables, such as ``RANK``, and the host of the profiled program, if they were recorded.

        Override this method if the format records them.
        """
        return LaunchMetadata()


class TemporaryCapture(Capture):
    """A capture whose tables are read from a temporary file, by delegating to the capture of that file.

    The file is deleted when the capture is closed or garbage-collected. It is closed before, because Windows does not
    delete open files.
    """

    def __init__(self, capture: Capture, temporary: contextlib.ExitStack) -> None:
        self._capture = capture
        temporary.callback(capture.close)
        self._close_and_delete = weakref.finalize(self, temporary.close)

    def names(self) -> Collection[str]:
        """Return the names of the declared tables that may have rows."""
        return self._capture.names()

    def count_many(self, names: Sequence[str]) -> Mapping[str, int]:
        """Return the number of rows of several tables, by table name."""
        return self._capture.count_many(names)

    def read_many(self, columns: Mapping[str, Sequence[str]]) -> Mapping[str, pa.Table]:
        """Return the requested columns of several tables, by table name."""
        return self._capture.read_many(columns)

    def count_undecoded(self) -> Mapping[str, int | Undecoded]:
        """Return the number of events that are in no declared table, by class of event."""
        return self._capture.count_undecoded()

    def can_contain(self, name: str) -> bool:
        """Return whether files in this format can contain rows of a declared table."""
        return self._capture.can_contain(name)

    def list_undecodable_tables(self) -> Collection[str]:
        """Return the names of the tables to which undecoded events may belong."""
        return self._capture.list_undecodable_tables()

    def read_launch_metadata(self) -> LaunchMetadata:
        """Return the rank variables, such as ``RANK``, and the host of the profiled program, if they were recorded."""
        return self._capture.read_launch_metadata()

    def close(self) -> None:
        """Close the temporary file and delete it."""
        self._close_and_delete()


class Report(Protocol):
    """A computed report, which can be returned as a data frame or written as CSV."""

    @property
    def rows(self) -> int:
        """Number of rows of the report."""
        ...

    def frame(self, max_rows: int | None = None) -> pl.DataFrame:
        """Return the rows of the report, or the first ``max_rows`` rows."""
        ...

    def csv(self, sink: BinaryIO) -> None:
        """Write the report as CSV, byte for byte as the tool that defines the report, such as nsys, writes it."""
        ...


class View(Protocol):
    """A trace for an exporter: its tables, its metadata, and the results that are computed from the tables."""

    @property
    def name(self) -> str:
        """Name of the file or folder of the capture without the folders that contain it, or "" for tables in memory."""
        ...

    @property
    def tables(self) -> Tables:
        """The tables, which functions such as ``scan_table`` read."""
        ...

    def without(self, *conditions: str) -> Tables:
        """Return the tables without some conditions on rows, such as ``time``, or with all recorded rows."""
        ...

    @property
    def selected_tables(self) -> frozenset[str] | None:
        """Names of the selected tables. All other tables have no rows. None if all tables are selected."""
        ...

    @property
    def info(self) -> Mapping[str, str]:
        """Metadata of the capture, such as ``duration_ns``, as strings by name."""
        ...

    def report(self, name: str) -> Report:
        """Return the report with this name, such as ``cuda_gpu_kern_sum``."""
        ...

    def figure_rows(self, name: str, **options: Any) -> pl.DataFrame:
        """Return the rows of an analysis of the kind ``figure``: the data that a figure or page shows.

        Args:
            name: Name of the analysis.
            options: Values of its options.
        """
        ...

    def explanation(self) -> Explanation:
        """Return why the steps of the trace take as long as they do, as texts."""
        ...

    def explain_missing_rows(self, name: str) -> Absence:
        """Return why a table, a report or a rule has no rows."""
        ...

    def explain_missing_tables(self, tables: Iterable[str], *, required: Iterable[str] = ()) -> Absence:
        """Return why a result that is computed from the given tables has no rows."""
        ...

    def model(self, name: str, *, in_background: bool = False) -> Mapping[str, pl.DataFrame]:
        """Return the tables of a data model by table name.

        Args:
            name: Name of the data model: ``dlprof`` for the DLProf database, or ``graph`` for the graph of ops.
            in_background: Whether slow tables may still be computed in another thread when the method returns. An
                access to a slow table waits for its computation.
        """
        ...


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader for the files of one format.

    Attributes:
        format: Name of the format in kebab case, such as ``nsys-sqlite``.
        doc: Description of the files that are read, in one line.
        suffixes: File suffixes. They only determine the order in which readers are tried.
        sniff: Function that returns whether the content of a source is in this format. It must not raise an error if
            the content is in another format.
        open: Function that opens a source and returns a ``Capture``, or a mapping of table names to Arrow tables.
        redact: Function that writes a copy of a source without private values to a path that does not exist yet, and
            returns the number of replaced values by kind. None if the format cannot be redacted.
        redact_with_key: Function like ``redact`` whose pseudonyms depend on an additional key. None if the reader does
            not support keys.
        unredacted: Function that returns the number of values that ``redact`` would replace, by kind. None if they
            cannot be counted.
        leading_info: Function that returns the rows of ``capture_info`` that precede the events of a source, as values
            by name such as ``distributed_rank``, without reading the events. The mapping is empty if no rows precede
            the events, or if the content before the events is damaged. None if the format never has these rows.
    """

    format: str
    doc: str
    suffixes: tuple[str, ...]
    sniff: Callable[[Source], bool]
    open: Callable[[Source], Capture | Mapping[str, pa.Table]]
    redact: Callable[[Source, Path], Mapping[str, int]] | None = None
    redact_with_key: Callable[[Source, Path, bytes], Mapping[str, int]] | None = None
    unredacted: Callable[[Source], Mapping[str, int]] | None = None
    leading_info: Callable[[Source], Mapping[str, str]] | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """One of several traces that are written to one file.

    A time ``t`` of the trace is ``t + offset_ns + drift * t`` on the clock that the traces share.

    Attributes:
        name: Name of the trace in the file, such as ``rank 3``.
        open: Function that opens the trace, and returns a context manager that closes it.
        offset_ns: Offset of the clock of the trace in ns.
        drift: Drift of the clock of the trace in ns per ns.
    """

    name: str
    open: Callable[[], AbstractContextManager[View]]
    offset_ns: int = 0
    drift: float = 0.0


@dataclass(frozen=True, slots=True)
class AlignedTraces:
    """Several traces that are written to one timeline, on one clock.

    Attributes:
        parts: The traces. One of them is open at a time.
        links: Flows, which are drawn as arrows between events, with one row per flow. Besides ``name``, the columns
            are ``from_part``, ``from_table``, ``from_id`` and ``from_ns`` for the event at the start of the flow, and
            ``to_part``, ``to_table``, ``to_id`` and ``to_ns`` for the event at its end. A part is an index in
            ``parts``, an id is that of the event in its table, and times are in ns on the shared clock.
        origin_utc_ns: UTC time of the origin of the shared clock in ns since 1970. None if it is unknown.
        metadata: Metadata of the file, by name.
    """

    parts: Sequence[Part]
    links: pl.DataFrame
    origin_utc_ns: int | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


class ManyTraces(Protocol):
    """The traces of several ranks for an exporter. One of them is open at a time."""

    @property
    def tables(self) -> Tables:
        """The tables with the rows of all traces. Their first column is ``rank``."""
        ...

    @property
    def parts(self) -> Sequence[Part]:
        """The traces, with times relative to their own origins."""
        ...

    def iterate_tables(self, progress: Progress) -> Iterator[Tables]:
        """Open each trace in turn, and yield its tables with the additional first column ``rank``.

        Args:
            progress: Callback that receives the number of traces read so far and the number of all traces.
        """
        ...

    def align(self) -> AlignedTraces:
        """Return the traces with their clocks aligned, and with flows between ranks that communicate.

        Raises:
            ExportError: A trace cannot be aligned.
        """
        ...

    def compute_recipes(
        self, names: Sequence[str], progress: Progress | None = None, **options: str
    ) -> Mapping[str, Mapping[str, pl.DataFrame]]:
        """Return the tables of several recipes, by name of the recipe and of the table.

        Args:
            names: Names of the recipes.
            progress: Callback that receives the number of traces read so far and the number of all traces.
            options: Options of all recipes. By default, iterations and clocks are those of the traces.
        """
        ...

    def list_step_notes(self, tables: Mapping[str, pl.DataFrame]) -> list[str]:
        """Return sentences about the steps over which the tables of a recipe are computed."""
        ...

    def explanation(self) -> Explanation:
        """Return why the steps of the job take as long as they do, as texts."""
        ...

    def list_notices(self) -> list[str]:
        """Return sentences about the warnings of the profiler and about missing GPU work."""
        ...

    def explain_missing_recipes(self, names: Sequence[str]) -> Mapping[str, list[str]]:
        """Return sentences that state why some recipes have no rows, by recipe."""
        ...


@dataclass(frozen=True, slots=True)
class Exporter:
    """An exporter for one format, which writes one file per trace or one file per table.

    Attributes:
        format: Name of the format in kebab case, such as ``chrome-trace``.
        doc: Description of the files that are written, in one line.
        suffixes: Suffixes of the files that are written. The first one is the default.
        write: Function that writes a whole trace: ``write(view, path, progress)``. The path does not exist yet.
        write_table: Function that writes one table, for formats with one file per table: ``write_table(tables, name,
            path, progress)``. The path does not exist yet.
        correlated: Whether a trace has to be correlated before it is written.
        folder: Whether ``write`` creates a folder.
        options: The options of the exporter. If there are any, the functions that write are called
            with the keyword argument ``options``, the checked values of all options by name.
        wrote: Function that returns whether this exporter wrote a file, and never raises an error. A folder can be
            replaced only if exporters wrote all its files. If None, folders of this exporter are never replaced.
        write_many: Function that writes several traces to one file: ``write_many(traces, path, progress)``. The path
            does not exist yet. None if the format holds one trace, or single tables.
        write_many_tables: Function that writes tables with the rows of several traces to the given files, by table
            name: ``write_many_tables(traces, files, progress)``. If None, ``write_table`` writes the rows of all
            traces, which are read into memory.
    """

    format: str
    doc: str
    suffixes: tuple[str, ...]
    write: Callable[..., None] | None = None
    write_table: Callable[..., None] | None = None
    correlated: bool = field(default=False)
    folder: bool = field(default=False)
    options: tuple[Option, ...] = ()
    wrote: Callable[[Path], bool] | None = None
    write_many: Callable[..., None] | None = None
    write_many_tables: Callable[..., None] | None = None

    @property
    def can_write_many(self) -> bool:
        """Whether the exporter can write the traces of several ranks to one output."""
        return self.write_table is not None or self.write_many is not None

    def with_options(self, values: Mapping[str, Value]) -> Exporter:
        """Return the exporter with the given values of its options. Strings are parsed, other values are only checked.

        Raises:
            UnknownFormatError: The exporter lacks one of the options, or a value is not allowed.
        """
        options = resolve_options(f"the format {self.format}", self.options, values)
        if not self.options:
            return self

        def bind(function: Callable[..., None] | None) -> Callable[..., None] | None:
            return None if function is None else functools.partial(function, options=options)

        functions = ("write", "write_table", "write_many", "write_many_tables")
        bound: dict[str, Any] = {name: bind(getattr(self, name)) for name in functions}
        return replace(self, **bound)

    def check_folder(self, path: str | os.PathLike[str]) -> None:
        """Check that the path of a folder of tables does not end with the suffix of a file.

        Raises:
            ExportError: The path ends with a suffix of the files of this format.
        """
        if os.fspath(path).endswith(self.suffixes):
            what = f"the format {self.format} writes several tables to a folder, but this name has the suffix of a file"
            raise ExportError(what, path=path, hint="select a single table, or use a folder name without this suffix")
