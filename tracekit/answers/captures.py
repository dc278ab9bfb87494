"""Describe the captures of an answer: what recorded them, their steps, and how many of their events were read."""

from __future__ import annotations

import os  # noqa: TC003 - an alias names it
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from tracekit import schemas
from tracekit.answers.envelope import CaptureFacts, Coverage, StepCoverage
from tracekit.errors import TracekitError
from tracekit.registry.absence import COMPUTED_TABLES
from tracekit.registry.notices import list_recorded_warnings
from tracekit.sets.comparison import is_baseline
from tracekit.sets.trace_set import open_captures
from tracekit.system.content import compute_content_id
from tracekit.text.urls import is_url, remove_secrets
from tracekit.trace import Trace, get_trace_view

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracekit.core.compare import Summary
    from tracekit.sets import TraceSet

TraceOrSet: TypeAlias = "Trace | TraceSet"
PathLike: TypeAlias = "str | os.PathLike[str]"
BASELINE = "tracekit-baseline"
"""Format of a baseline, which is no capture."""


@dataclass(frozen=True, slots=True)
class CaptureDescription:
    """What an answer states about one capture.

    Attributes:
        facts: What recorded the capture, and its steps.
        tables: Number of rows of each table.
        undecoded: Number of events that no table contains, by class.
        warnings: Warnings and errors that the profiler recorded.
    """

    facts: CaptureFacts
    tables: Mapping[str, int]
    undecoded: Mapping[str, int]
    warnings: tuple[str, ...]


def describe_captures(traces: TraceOrSet) -> list[CaptureDescription]:
    """Return the description of each capture that can be read, in the order of ranks.

    Args:
        traces: A trace or a set of traces, without selections.
    """
    if isinstance(traces, Trace):
        return [_describe_trace(traces)]
    results = traces.outcomes(_describe_trace)
    described = {member.rank: (member, each) for member, each in results if not isinstance(each, Exception)}
    return [
        replace(each, facts=replace(each.facts, rank=rank, path=_format_path(member.url or member.path)))
        for rank, (member, each) in described.items()
    ]


def _describe_trace(trace: Trace) -> CaptureDescription:
    counts = {name: count for name, count in trace.count_all().items() if count}
    devices = trace.devices.select("name").to_series().cast(str).to_list() if counts.get("devices") else []
    facts = CaptureFacts(
        path="" if trace.path is None else _format_path(trace.path),
        format=trace.format,
        content_id=_identify(trace.path),
        profiler=trace.info.get("tool"),
        profiler_version=trace.info.get("tool_version"),
        devices=tuple(name or "" for name in devices),
        steps=_describe_steps(trace, counts),
    )
    warnings = tuple(warning.sentence for warning in list_recorded_warnings(get_trace_view(trace)))
    return CaptureDescription(facts, counts, {name: size.count for name, size in trace.undecoded.items()}, warnings)


def _format_path(path: str | Path) -> str:
    """Return a path, relative to the current folder if it lies inside, or a URL without secrets."""
    if isinstance(path, Path) and path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return remove_secrets(str(path))


def _identify(path: Path | None) -> str | None:
    """Return the id of the content of a local file or folder, or None for others."""
    if path is None or is_url(str(path)):
        return None
    try:
        return compute_content_id(path)
    except (OSError, TracekitError):
        return None


def _describe_steps(trace: Trace, counts: Mapping[str, int]) -> StepCoverage | None:
    """Return what delimits the steps of a capture, or None if there are none or no GPU activities."""
    if not any(counts.get(table) for table in schemas.list_tables("activity")):
        return None
    rows = trace.stats("steps")
    if rows.is_empty():
        return None
    row = rows.row(0, named=True)
    if not row["Aggregated"]:
        return None
    total, inside = row["GPU Time (ns)"], row["GPU Time In Steps (ns)"]
    covered = inside / total if total else None
    return StepCoverage(row["Range"] or None, row["Aggregated"], row["Warm-Up Steps"], covered)


def describe_side(path: PathLike, summary: Summary, side: Literal["a", "b"]) -> list[CaptureDescription]:
    """Return the description of each capture on one side of a comparison, or that of a baseline.

    Args:
        path: Path of a capture, of a folder of captures or of a baseline, or a URL or pattern.
        summary: The summary of the captures.
        side: The side.
    """
    if is_baseline(path):
        return [describe_baseline(summary, path, side)]
    with open_captures(path) as traces:
        described = describe_captures(traces)
    return [replace(each, facts=replace(each.facts, side=side)) for each in described]


def describe_baseline(
    summary: Summary, path: PathLike, side: Literal["a", "b"], iterations: int | None = None
) -> CaptureDescription:
    """Return the description of a baseline.

    Args:
        summary: The summary of a run in the baseline.
        path: Path of the baseline.
        side: The side.
        iterations: Number of iterations of all runs in the baseline. If None, they are those of the summary.
    """
    facts = summary.facts
    count = summary.iterations if iterations is None else iterations
    devices = (facts["gpus"],) if "gpus" in facts else ()
    steps = StepCoverage(facts.get("key_op"), count, 0, None) if count else None
    tool, tool_version = facts.get("tool"), facts.get("tool_version")
    shown = remove_secrets(str(path))
    described = CaptureFacts(shown, BASELINE, None, tool, tool_version, devices, side=side, steps=steps)
    return CaptureDescription(described, {}, {}, ())


def sum_coverage(captures: Sequence[CaptureDescription], total: int, tables: Iterable[str]) -> Coverage:
    """Return how much was recorded of some tables, and what is not decoded, in all captures.

    Args:
        captures: The captures that could be read.
        total: Number of captures.
        tables: The tables from which the answer was computed. Computed tables stand for those that they need.
    """
    recorded = dict.fromkeys(t for name in tables for t in COMPUTED_TABLES.get(name, (name,)))
    counts = {table: sum(each.tables.get(table, 0) for each in captures) for table in recorded}
    undecoded = Counter[str]()
    for each in captures:
        undecoded.update(each.undecoded)
    return Coverage(total, len(captures), counts, dict(undecoded.most_common()))
