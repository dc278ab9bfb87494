"""Write the captures of a set to one output, with one open capture at a time.

In formats with one file per table, every table has an additional column ``rank``. CSV and Parquet files are written one
capture after another, so they need the memory of one capture. Other formats need the memory of the largest table.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tracekit import registry
from tracekit.errors import ExportError
from tracekit.plan import exporting
from tracekit.sets import frames
from tracekit.sets.notices import MissingEvents
from tracekit.sets.page import render_ranks_page
from tracekit.sets.timeline import align_traces
from tracekit.system import targets

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import polars as pl
    import pyarrow as pa

    from tracekit.plan import TraceView
    from tracekit.registry.interface import Exporter, ManyTraces, Progress
    from tracekit.schemas import TableSchema
    from tracekit.sets.trace_set import TraceSet
    from tracekit.text.names import TableName

CSV, PARQUET, SQLITE, HTML = "csv", "parquet", "sqlite", "html"


def export(
    traces: TraceSet,
    path: str | os.PathLike[str],
    exporter: Exporter,
    *,
    tables: Sequence[str] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    is_whole: bool = False,
) -> Path:
    """Write the traces of a set to a file or folder atomically.

    Args:
        traces: The set of traces.
        path: File or folder to write.
        exporter: The exporter for the format of the output.
        tables: Names of the tables to write. If None, all tables are written except those declared as optional.
        overwrite: Whether to replace an existing output.
        progress: Callback that receives the number of members written so far and the number of all members.
        is_whole: Whether ``tables`` contains all tables that have rows, so that a warning names all events that the
            output lacks.

    Returns:
        The path of the output.

    Raises:
        ExportError: The format cannot hold several ranks, the output exists, or the output cannot be written.
    """
    if not _can_write_several_ranks(exporter):
        known = ", ".join(e.format for e in registry.exporters().values() if _can_write_several_ranks(e))
        raise ExportError(
            f"the format {exporter.format} cannot hold the profiles of several ranks",
            path=path,
            hint=f"choose a format for several ranks ({known}), or export each rank separately",
        )
    missing = MissingEvents(None if is_whole else tables)
    progress = progress or _ignore_progress
    write = _WRITERS_OF_FILES.get(exporter.format)
    if exporter.write_many is not None:
        write = functools.partial(_write_timeline, write_many=exporter.write_many)
    is_folder = write is None and exporting.has_one_file_per_table(exporter, tables)
    write = write or functools.partial(_write_tables, exporter=exporter, tables=tables, is_folder=is_folder)
    is_exported_file = registry.is_exported_file if is_folder else None
    with targets.open_atomic_output(
        path, is_exported_file=is_exported_file, overwrite=overwrite, inputs=traces.inputs
    ) as new:
        write(traces, progress, missing, new)
    missing.warn()
    return Path(path)


class RankedView:
    """A view of the tables of one rank with the column ``rank``, for exporters that write single tables.

    Attributes:
        view: The tables of the rank without the column ``rank``.
    """

    def __init__(self, view: TraceView, rank: int) -> None:
        self.view = view
        self._rank = rank

    def chunked_table(self, name: str) -> pa.Table:
        """Return a table with the column ``rank``, without unifying the dictionaries of its string columns."""
        schema = self.schema(name)
        return frames.add_rank_to_table(schema, schema.names, self._rank, self.view.chunked_table(name))

    def schema(self, name: str) -> TableSchema:
        """Return the schema of a table, including the column ``rank``."""
        return frames.add_rank_to_schema(self.view.schema(name))


class SetView:
    """A view of the tables of all ranks of a set, for exporters that write single tables."""

    def __init__(self, traces: TraceSet) -> None:
        self._traces = traces
        self.tables = traces.tables
        self.schema = traces.schema
        self.count = traces.count

    @property
    def info(self) -> Mapping[str, str]:
        """An empty mapping, because properties such as the driver version may differ between ranks."""
        return {}

    def prefetch(self, columns: Mapping[str, Sequence[str] | None]) -> None:
        """Do nothing, because a set does not cache columns."""

    def table(self, name: str) -> pa.Table:
        """Return a table of all ranks, in which each string column has a single dictionary."""
        return self._traces.table(cast("TableName", name))

    chunked_table = table

    def frame(self, name: str) -> pl.LazyFrame:
        """Return a table of all ranks as a LazyFrame."""
        return self._traces.frame(cast("TableName", name))


def _iterate_open_views_with_index(
    traces: TraceSet, progress: Progress, missing: MissingEvents | None = None
) -> Iterator[tuple[RankedView, int]]:
    """Open each member in turn, and yield its view and its index. Each view is closed before the next one is opened.

    Args:
        traces: The set of traces.
        progress: Callback that receives the number of members read so far and the number of all members.
        missing: Collection to which the events are added that are recorded, but not decoded.
    """
    from tracekit.trace import get_trace_view

    for number, rank in enumerate(traces.ranks):
        with traces.open(rank) as trace:
            yield RankedView(get_trace_view(trace), rank), number
            if missing is not None:
                missing.add(missing.count(trace))
        progress(number + 1, len(traces))


def _write_page(traces: TraceSet, progress: Progress, missing: MissingEvents, path: Path) -> None:
    """Write an HTML page that shows the ranks side by side."""
    path.write_text(render_ranks_page(traces, progress), "utf-8", newline="\n")
    for counts in traces.map(missing.count):
        missing.add(counts)


def _write_timeline(
    traces: TraceSet,
    progress: Progress,
    missing: MissingEvents,
    path: Path,
    *,
    write_many: Callable[[ManyTraces, Path, Progress], None],
) -> None:
    """Write the traces of all ranks on one clock."""
    write_many(align_traces(traces, missing), path, progress)


def _write_tables(
    traces: TraceSet,
    progress: Progress,
    missing: MissingEvents,
    path: Path,
    *,
    exporter: Exporter,
    tables: Sequence[str] | None,
    is_folder: bool,
) -> None:
    """Write tables with the rows of all ranks, as one file each or as a single file."""
    names = list(tables or [t for t in traces.tables if not traces.schema(t).optional])
    files = {name: path / f"{name}{exporter.suffixes[0]}" for name in names} if is_folder else {names[0]: path}
    if is_folder:
        path.mkdir()
    write = _WRITERS.get(exporter.format, _write_whole_tables)
    write(traces, exporter, files, progress, missing)


def _write_whole_tables(
    traces: TraceSet, exporter: Exporter, files: Mapping[str, Path], progress: Progress, missing: MissingEvents
) -> None:
    """Write each table with an exporter that receives the rows of all ranks at once."""
    view: Any = SetView(traces)
    write = exporter.write_table
    for number, (name, file) in enumerate(files.items()):
        if write is not None:
            write(view, name, file, _ignore_progress)
        progress(number + 1, len(files))
    for counts in traces.map(missing.count):
        missing.add(counts)


def _can_write_several_ranks(exporter: Exporter) -> bool:
    """Return whether an exporter can write the traces of several ranks to one output."""
    return bool(exporter.write_table or exporter.write_many) or exporter.format in (SQLITE, HTML)


def _write_sqlite(traces: TraceSet, progress: Progress, missing: MissingEvents, path: Path) -> None:
    """Write a SQLite database of all ranks, in which the column ``rank`` is part of the key of each table.

    Each member is opened twice, the first time to determine which keys are unique in all members.
    """
    from tracekit.exporters.sqlite import choose_table_names
    from tracekit.exporters.sqlite.export import write_database
    from tracekit.exporters.sqlite.keys import find_valid_keys, intersect_keys

    views = (view for view, _ in _iterate_open_views_with_index(traces, _ignore_progress))
    names: list[str] = []
    keys, rows = [], 0
    for ranked in views:
        names = names or choose_table_names(ranked.view)
        schemas = {name: ranked.view.schema(name) for name in names}
        keys.append(find_valid_keys(ranked.view, schemas))
        rows += sum(map(ranked.view.count, names))
    tables = (
        (name, view.chunked_table(name))
        for view, _ in _iterate_open_views_with_index(traces, _ignore_progress, missing)
        for name in names
    )
    ranked_schemas = {name: traces.schema(cast("TableName", name)) for name in names}
    write_database(
        path, ranked_schemas, intersect_keys(keys).add_leading_column(frames.RANK), tables, progress, total_rows=rows
    )


def _write_csv(
    traces: TraceSet, exporter: Exporter, files: Mapping[str, Path], progress: Progress, missing: MissingEvents
) -> None:
    """Write each table as CSV, by appending the rows of each member in turn."""
    write: Any = exporter.write_table
    for view, number in _iterate_open_views_with_index(traces, progress, missing):
        for name, file in files.items():
            if not number:
                write(view, name, file, _ignore_progress)
                continue
            with targets.create_workspace(file.parent) as folder:
                rows = folder / file.name
                write(view, name, rows, _ignore_progress)
                with rows.open("rb") as source, file.open("ab") as target:
                    source.readline()
                    shutil.copyfileobj(source, target)


def _write_parquet(
    traces: TraceSet, _exporter: Exporter, files: Mapping[str, Path], progress: Progress, missing: MissingEvents
) -> None:
    """Write each table as Parquet, with at least one row group for each member that has rows."""
    from tracekit.exporters.parquet import TableWriter

    with contextlib.ExitStack() as stack:
        writers: dict[str, TableWriter] = {}
        for view, _number in _iterate_open_views_with_index(traces, progress, missing):
            for name, file in files.items():
                table = view.chunked_table(name)
                if name not in writers:
                    writers[name] = stack.enter_context(TableWriter(file, table))
                writers[name].write(table)


_WRITERS: dict[str, Callable[[TraceSet, Exporter, Mapping[str, Path], Progress, MissingEvents], None]] = {
    CSV: _write_csv,
    PARQUET: _write_parquet,
}


_WRITERS_OF_FILES: dict[str, Callable[[TraceSet, Progress, MissingEvents, Path], None]] = {
    HTML: _write_page,
    SQLITE: _write_sqlite,
}
"""Functions that write all tables of all ranks to one file, by format."""


def _ignore_progress(done: int, total: int) -> None:
    """Do nothing. This is the default progress callback."""
