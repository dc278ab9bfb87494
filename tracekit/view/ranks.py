"""Analyze the communication between ranks: of all captures if they are the ranks of a job, otherwise of one."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from tracekit.core.communication import Communication, rank_tables
from tracekit.errors import TracekitError, TracekitWarning
from tracekit.sets import load_many
from tracekit.sets.communication import collect_rank_tables
from tracekit.view.captures import Rows

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.trace import Trace
    from tracekit.view.captures import Captures

TABLES = ("summary", "arrivals", "stragglers", "iterations", "operations", "clocks")
"""Tables of the analysis that the page shows."""
_OF_SEVERAL_RANKS = ("stragglers", "iterations", "clocks")
"""Tables that say nothing about a single rank."""
_COMMON = {"start_ns": "common_start_ns", "end_ns": "common_end_ns", "last_start_ns": "common_last_start_ns"}
"""Times on the clock of the first rank, which have other names so that they do not lead to the timeline of another."""
_TITLES = {
    "algorithm_gb_per_s": "Algorithm bandwidth (GB/s)",
    "bus_gb_per_s": "Bus bandwidth (GB/s)",
    "common_start_ns": "Start on the common clock (ns)",
    "common_end_ns": "End on the common clock (ns)",
    "common_last_start_ns": "Last start on the common clock (ns)",
    "drift_ppm": "Drift (ppm)",
}


def communication(captures: Captures, trace: Trace) -> Communication:
    """Return the analysis of the communication between ranks. The result is cached.

    Args:
        captures: The captures of the server. If they are the ranks of a job, all of them are analyzed.
        trace: The capture that is analyzed otherwise.

    Raises:
        TracekitError: The capture has no file, or cannot be read.
    """
    paths = [each.trace.path for each in captures.all]
    if trace.path is None or None in paths:
        raise TracekitError("the communication of captures without a file cannot be analyzed")
    found: Communication | None = captures.figure(
        "communication", lambda: _of_ranks([p for p in paths if p is not None])
    )
    if found is not None:
        return found
    path = trace.path
    return captures.figure(("communication", path), lambda: _of_one(path))  # type: ignore[no-any-return]


def _of_ranks(paths: list[Path]) -> Communication | None:
    """Analyze the communication between several captures. Return None if they are not the ranks of one job."""
    if len(paths) < 2:  # noqa: PLR2004
        return None
    try:
        with warnings.catch_warnings(record=True) as problems:
            warnings.simplefilter("always", TracekitWarning)
            traces = load_many(paths)
    except TracekitError:
        return None
    if any(issubclass(each.category, TracekitWarning) for each in problems):  # the ranks are only guessed
        return None
    with traces:
        return Communication(collect_rank_tables(traces, rank_tables))


def _of_one(path: Path) -> Communication:
    """Analyze the communication in one capture."""
    with load_many([path]) as traces:
        return Communication(collect_rank_tables(traces, rank_tables))


def present(found: Communication) -> list[str]:
    """Return the names of the tables that have rows."""
    several = (found.iterations["rank_count"].max() or 0) > 1  # type: ignore[operator]
    return [name for name in TABLES if getattr(found, name).height and (several or name not in _OF_SEVERAL_RANKS)]


def rows(found: Communication, name: str) -> Rows:
    """Return the rows of a table of the analysis."""
    from tracekit.view.sources import title_of

    frame = getattr(found, name)
    if found.clocks.height > 1:
        frame = frame.rename({old: new for old, new in _COMMON.items() if old in frame.columns})
    titles = {c: _TITLES.get(c) or title_of(c) for c in frame.columns}
    return Rows(frame, titles, dict.fromkeys(titles, ""))
