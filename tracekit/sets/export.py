"""Write the captures of a set to one output, with one open capture at a time.

In formats with one file per table, every table has an additional column ``rank``. Formats such as CSV and Parquet are
written one capture after another, so they need the memory of one capture. Others need that of the largest table.
"""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit import registry, schemas
from tracekit.core.recipes import load_recipe
from tracekit.errors import ExportError
from tracekit.plan import exporting
from tracekit.registry.interface import Part, ignore_progress
from tracekit.sets import recipes
from tracekit.sets.diagnosis import explain_job
from tracekit.sets.frames import RankedTables
from tracekit.sets.member_set import get_set_tables
from tracekit.sets.notices import MissingEvents, explain_missing_recipes, list_notices_of_ranks
from tracekit.sets.timeline import align_traces
from tracekit.system import targets
from tracekit.trace import get_trace_view

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    import polars as pl

    from tracekit.registry.interface import AlignedTraces, Exporter, Progress, View
    from tracekit.registry.tables import Tables
    from tracekit.sets.member_set import MemberSet
    from tracekit.text.explanations import Explanation


def export(
    traces: MemberSet,
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
    if not exporter.can_write_many:
        known = ", ".join(e.format for e in registry.exporters().values() if e.can_write_many)
        raise ExportError(
            f"the format {exporter.format} cannot hold the profiles of several ranks",
            path=path,
            hint=f"choose a format for several ranks ({known}), or export each rank separately",
        )
    written = _WrittenTraces(traces, MissingEvents(None if is_whole else tables))
    is_folder = exporter.write_many is None and exporting.has_one_file_per_table(exporter, tables)
    is_exported_file = registry.is_exported_file if is_folder else None
    with targets.open_atomic_output(
        path, is_exported_file=is_exported_file, overwrite=overwrite, inputs=traces.inputs
    ) as new:
        if exporter.write_many is not None:
            exporter.write_many(written, new, progress or ignore_progress)
        else:
            _write_tables(written, exporter, new, tables, progress or ignore_progress, is_folder=is_folder)
    written.warn_about_missing_events()
    return Path(path)


def _write_tables(
    traces: _WrittenTraces,
    exporter: Exporter,
    path: Path,
    tables: Sequence[str] | None,
    progress: Progress,
    *,
    is_folder: bool,
) -> None:
    """Write tables with the rows of all ranks, as one file each or as a single file."""
    names = list(tables or [t for t in schemas.table_names() if not schemas.table(t).optional])
    files = {name: path / f"{name}{exporter.suffixes[0]}" for name in names} if is_folder else {names[0]: path}
    if is_folder:
        path.mkdir()
    if exporter.write_many_tables is not None:
        exporter.write_many_tables(traces, files, progress)
        return
    for number, (name, file) in enumerate(files.items()):
        if exporter.write_table is not None:
            exporter.write_table(traces.tables, name, file, ignore_progress)
        progress(number + 1, len(files))


class _WrittenTraces:
    """The traces of a set for an exporter, as ``interface.ManyTraces``."""

    def __init__(self, traces: MemberSet, missing: MissingEvents) -> None:
        self._traces = traces
        self._missing = missing
        self._counted: set[int] = set()
        self.tables = get_set_tables(traces)
        self.parts = [Part(f"rank {rank}", functools.partial(self._open_view, rank)) for rank in traces.ranks]

    def iterate_tables(self, progress: Progress) -> Iterator[Tables]:
        """Open each trace in turn, and yield its tables with the column ``rank``."""
        for number, rank in enumerate(self._traces.ranks):
            with self._open_view(rank) as view:
                yield RankedTables(view.tables, rank)
            progress(number + 1, len(self._traces))

    def align(self) -> AlignedTraces:
        """Return the traces with aligned clocks."""
        return align_traces(self._traces, self.parts)

    def compute_recipes(
        self, names: Sequence[str], progress: Progress | None = None, **options: str
    ) -> Mapping[str, Mapping[str, pl.DataFrame]]:
        """Return the tables of recipes. Times are not aligned if the origin of a capture is unknown."""
        is_unaligned = any(member.origin_utc_ns is None for member in self._traces.members) and len(self._traces) > 1
        values: dict[str, dict[str, Any]] = {}
        for name in names:
            values[name] = {"align": "no"} if is_unaligned and load_recipe(name).aligned else {}
            values[name] |= recipes.choose_iteration_options(self._traces) if name == "iteration_spread" else {}
            values[name] |= options
        return recipes.run_recipes(self._traces, values, progress=progress)

    def list_step_notes(self, tables: Mapping[str, pl.DataFrame]) -> list[str]:
        """Return sentences about the steps over which the tables of a recipe are computed."""
        return recipes.list_step_notes(tables)

    def explanation(self) -> Explanation:
        """Return why the steps of the job take as long as they do, as texts."""
        from tracekit.core.diagnosis import Options
        from tracekit.core.diagnosis.texts import write_explanation

        return write_explanation(explain_job(self._traces, Options()))

    def list_notices(self) -> list[str]:
        """Return sentences about the warnings of the profiler and about missing GPU work."""
        return list_notices_of_ranks(self._traces)

    def explain_missing_recipes(self, names: Sequence[str]) -> Mapping[str, list[str]]:
        """Return sentences that state why some recipes have no rows, by recipe."""
        return explain_missing_recipes(self._traces, names)

    def warn_about_missing_events(self) -> None:
        """Warn about events that the captures contain, but the output lacks. Captures are opened to count them."""
        if not self._counted:
            for counts in self._traces.map(self._missing.count):
                self._missing.add(counts)
        self._missing.warn()

    @contextlib.contextmanager
    def _open_view(self, rank: int) -> Iterator[View]:
        """Open a trace, and count the events that the output lacks when it is closed for the first time."""
        with self._traces.open(rank) as trace:
            yield get_trace_view(trace)
            if rank not in self._counted:
                self._counted.add(rank)
                self._missing.add(self._missing.count(trace))
