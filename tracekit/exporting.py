"""Writing traces and tables with exporters, in atomic writes."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit import registry, targets
from tracekit.errors import ExportError, UnknownFormatError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from tracekit.interface import Exporter, Progress, View
    from tracekit.plan.view import TraceView

WRITERS = 4
"""Number of tables that are written at the same time."""


def write_trace(
    view: TraceView,
    path: str | os.PathLike[str],
    exporter: Exporter,
    *,
    tables: Sequence[str] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Write a trace; the output appears whole or not at all.

    Args:
        view: The trace, with the selected tables.
        path: File or folder to write.
        exporter: The exporter.
        tables: Names of the selected tables; None is all of them.
        overwrite: Whether to replace an existing output.
        progress: Called with the number of rows written.

    Returns:
        The path.

    Raises:
        ExportError: The output exists or cannot be written.
    """
    is_folder = exporter.folder or holds_one_table_per_file(exporter, tables)
    is_ours = registry.is_ours if is_folder else None
    with targets.atomic_output(path, is_ours=is_ours, overwrite=overwrite, inputs=inputs_of(view)) as new:
        _write(view, exporter, new, tables, progress or _ignore_progress)
    return Path(path)


def write_table(
    view: TraceView,
    name: str,
    path: str | os.PathLike[str],
    exporter: Exporter,
    *,
    overwrite: bool = False,
) -> Path:
    """Write one table of a trace to one file.

    Raises:
        UnknownFormatError: The exporter writes no single tables.
        ExportError: The output exists or cannot be written.
    """
    if exporter.write_table is None:
        raise UnknownFormatError(f"{exporter.format} holds whole traces, not one table", path=path)
    with targets.atomic_output(path, overwrite=overwrite, inputs=inputs_of(view)) as new:
        exporter.write_table(view, name, new, _ignore_progress)
    return Path(path)


def inputs_of(view: TraceView) -> tuple[targets.Input, ...]:
    """Return the files and folders that a trace is read from, which no output may replace."""
    return tuple(i for source in view.plan.sources for i in source.inputs)


def holds_one_table_per_file(exporter: Exporter, tables: Sequence[str] | None) -> bool:
    """Return whether an exporter writes a folder with one file per table."""
    return exporter.write is None and (tables is None or len(tables) != 1)


def _write(view: View, exporter: Exporter, path: Path, tables: Sequence[str] | None, progress: Progress) -> None:
    if exporter.write is not None:
        exporter.write(view, path, progress)
    elif exporter.write_table is None:
        raise ExportError(f"exporter {exporter.format!r} writes nothing", path=path)
    elif tables is not None and len(tables) == 1:
        exporter.write_table(view, tables[0], path, progress)
    else:
        names = tables or [t for t in view.tables if not view.schema(t).optional]
        paths = {n: path / f"{n}{exporter.suffixes[0]}" for n in names}
        _write_tables(view, exporter.write_table, paths, progress)


def _write_tables(
    view: View, write: Callable[[View, str, Path, Progress], None], paths: Mapping[str, Path], progress: Progress
) -> None:
    """Write tables to the files of one folder, in several threads with a common progress."""
    from tracekit.threads import map_in_order

    next(iter(paths.values())).parent.mkdir()
    view.prefetch(dict.fromkeys(paths))
    lock = threading.Lock()
    counts = {name: view.count(name) for name in paths}
    largest_first = sorted(counts, key=lambda name: -counts[name])
    rows = sum(counts.values())
    written: Counter[str] = Counter()

    def write_one(name: str) -> None:
        def report(done: int, total: int) -> None:  # noqa: ARG001
            with lock:
                written[name] = done
                progress(written.total(), rows)

        write(view, name, paths[name], report)

    for _ in map_in_order(write_one, largest_first, WRITERS):
        pass


def _ignore_progress(done: int, total: int) -> None:
    """Do nothing with the progress."""
