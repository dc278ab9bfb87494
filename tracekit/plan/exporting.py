"""Write traces and single tables to files atomically, with the exporter of a format."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit import registry, schemas
from tracekit.errors import ExportError, UnknownFormatError
from tracekit.registry.interface import ignore_progress
from tracekit.registry.tables import prefetch
from tracekit.system import memory, targets

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tracekit.plan.view import TraceView
    from tracekit.registry.interface import Exporter, Progress, View
    from tracekit.registry.tables import Tables

WRITERS = 4
"""Maximum number of tables that are written at the same time."""


def write_trace(
    view: TraceView,
    path: str | os.PathLike[str],
    exporter: Exporter,
    *,
    tables: Sequence[str] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    is_whole: bool = False,
) -> Path:
    """Write a trace to a file or folder atomically.

    Args:
        view: The trace. An exporter that writes a whole trace to one file reads the selected tables of the view.
        path: File or folder to write.
        exporter: The exporter for the format of the output.
        tables: Names of the tables that an exporter with one file per table writes. If None, all tables are written
            except those that are declared as optional.
        overwrite: Whether to replace an existing output.
        progress: Callback that receives the number of written rows and the total number of rows.
        is_whole: Whether ``tables`` contains all tables that have rows, so that a warning names all events that the
            output lacks.

    Returns:
        The path of the output.

    Raises:
        ExportError: The output exists or cannot be written.
    """
    is_folder = exporter.folder or has_one_file_per_table(exporter, tables)
    is_exported_file = registry.is_exported_file if is_folder else None
    with targets.open_atomic_output(
        path, is_exported_file=is_exported_file, overwrite=overwrite, inputs=list_input_files_of_trace(view)
    ) as new:
        _write_output(view, exporter, new, tables, progress or ignore_progress)
    warn_about_missing_events(view, None if is_whole else tables)
    return Path(path)


def warn_about_missing_events(view: TraceView, tables: Iterable[str] | None = None) -> None:
    """Warn if an output lacks events that the files of a trace contain, but that tracekit does not decode.

    Args:
        view: The trace.
        tables: Names of the tables in the output. If None, the output contains all tables that are selected.
    """
    for source in view.plan.sources:
        if source.is_open:
            source.warn_about_events_missing_in_output(tables or view.selected_tables)


def write_table(
    view: TraceView,
    name: str,
    path: str | os.PathLike[str],
    exporter: Exporter,
    *,
    overwrite: bool = False,
) -> Path:
    """Write one table of a trace to a file atomically.

    Raises:
        UnknownFormatError: The format of the exporter is not one of those that can store a single table.
        ExportError: The output exists or cannot be written.
    """
    if exporter.write_table is None:
        raise UnknownFormatError(
            f"the format {exporter.format} cannot store a single table, only a whole trace", path=path
        )
    with targets.open_atomic_output(path, overwrite=overwrite, inputs=list_input_files_of_trace(view)) as new:
        exporter.write_table(view.tables, name, new, ignore_progress)
    return Path(path)


def list_input_files_of_trace(view: TraceView) -> tuple[targets.Input, ...]:
    """Return the input files and folders of a trace, which an output must not replace."""
    return tuple(i for source in view.plan.sources for i in source.inputs)


def has_one_file_per_table(exporter: Exporter, tables: Sequence[str] | None) -> bool:
    """Return whether an exporter writes tables to a folder with one file per table.

    Args:
        exporter: The exporter for the format of the output.
        tables: Names of the tables to write, or None for all tables. A single table is written to one file.
    """
    return exporter.write is None and (tables is None or len(tables) != 1)


def _write_output(view: View, exporter: Exporter, path: Path, tables: Sequence[str] | None, progress: Progress) -> None:
    if exporter.write is not None:
        exporter.write(view, path, progress)
    elif exporter.write_table is None:
        raise ExportError(f"the exporter {exporter.format!r} defines neither write nor write_table", path=path)
    elif tables is not None and len(tables) == 1:
        exporter.write_table(view.tables, tables[0], path, progress)
    else:
        names = tables or [t for t in schemas.table_names() if not view.tables.schema(t).optional]
        paths = {n: path / f"{n}{exporter.suffixes[0]}" for n in names}
        _write_tables(view.tables, exporter.write_table, paths, progress)


def _write_tables(
    tables: Tables, write: Callable[[Tables, str, Path, Progress], None], paths: Mapping[str, Path], progress: Progress
) -> None:
    """Write each table to its own file in a folder, in several threads that share one progress callback."""
    from tracekit.system.threads import map_in_order

    next(iter(paths.values())).parent.mkdir()
    prefetch(tables, dict.fromkeys(paths))
    lock = threading.Lock()
    counts = tables.count_many(list(paths))
    largest_first = sorted(counts, key=lambda name: -counts[name])
    rows = sum(counts.values())
    written: Counter[str] = Counter()

    def write_one_table(name: str) -> None:
        def report_progress(done: int, total: int) -> None:  # noqa: ARG001
            with lock:
                written[name] = done
                progress(written.total(), rows)
            memory.release_pages()

        write(tables, name, paths[name], report_progress)

    for _ in map_in_order(write_one_table, largest_first, WRITERS):
        pass
