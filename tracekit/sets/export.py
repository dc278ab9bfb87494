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
from tracekit.registry.tables import read_chunks
from tracekit.sets import frames
from tracekit.sets.frames import RankedTables
from tracekit.sets.notices import MissingEvents
from tracekit.sets.page import render_ranks_page
from tracekit.sets.timeline import align_traces
from tracekit.system import targets

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tracekit.registry.interface import Exporter, ManyTraces, Progress, View
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


def _iterate_open_views(
    traces: TraceSet, progress: Progress, missing: MissingEvents | None = None
) -> Iterator[tuple[View, int]]:
    """Open each member in turn, and yield its view and its rank. Each view is closed before the next one is opened.

    Args:
        traces: The set of traces.
        progress: Callback that receives the number of members read so far and the number of all members.
        missing: Collection to which the events are added that are recorded, but not decoded.
    """
    from tracekit.trace import get_trace_view

    for number, rank in enumerate(traces.ranks):
        with traces.open(rank) as trace:
            yield get_trace_view(trace), rank
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
    from tracekit.sets.trace_set import get_set_tables

    write = exporter.write_table
    for number, (name, file) in enumerate(files.items()):
        if write is not None:
            write(get_set_tables(traces), name, file, _ignore_progress)
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

    names: list[str] = []
    keys, rows = [], 0
    for view, _ in _iterate_open_views(traces, _ignore_progress):
        names = names or choose_table_names(view.tables, view.selected_tables)
        keys.append(find_valid_keys(view.tables, {name: view.tables.schema(name) for name in names}))
        rows += sum(view.tables.count_many(names).values())
    tables = (
        (name, read_chunks(RankedTables(view.tables, rank), name))
        for view, rank in _iterate_open_views(traces, _ignore_progress, missing)
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
    for view, rank in _iterate_open_views(traces, progress, missing):
        tables = RankedTables(view.tables, rank)
        for name, file in files.items():
            if rank == traces.ranks[0]:
                write(tables, name, file, _ignore_progress)
                continue
            with targets.create_workspace(file.parent) as folder:
                rows = folder / file.name
                write(tables, name, rows, _ignore_progress)
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
        for view, rank in _iterate_open_views(traces, progress, missing):
            tables = RankedTables(view.tables, rank)
            for name, file in files.items():
                table = read_chunks(tables, name)
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
