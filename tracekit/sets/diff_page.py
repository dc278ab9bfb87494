"""Create an HTML page, without scripts or external resources, that shows the differences between two captures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.compare import EVIDENCE, KINDS
from tracekit.exporters.html.markup import Section, Table
from tracekit.exporters.html.page import build_static_page

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.core.compare import Diff, Summary

ROWS = 100
"""Default number of rows per kind."""
_FACTS = {
    "gpus": "GPUs",
    "tool": "Tool",
    "tool_version": "Version of the tool",
    "export_version": "Version of the exporting tool",
    "driver_version": "Driver version",
    "cuda_version": "CUDA version",
    "cpu_model": "CPU",
    "os": "Operating system",
    "key_op": "Key op",
    "steps": "Steps",
    "recorded": "Recorded",
}
_TITLES = {
    "name": "Name",
    "status": "Status",
    "evidence": "Evidence",
    "time_a_ns": "Time A (ns)",
    "time_b_ns": "Time B (ns)",
    "change_ns": "Change (ns)",
    "change_percent": "Change (%)",
    "share_percent": "Share (%)",
    "count_a": "Count A",
    "count_b": "Count B",
}


def build_diff_page(diff: Diff, names: tuple[str, str], limit: int | None = None) -> str:
    """Return an HTML page that shows the differences between two captures.

    Args:
        diff: The differences.
        names: Names of the two captures.
        limit: Maximum number of rows per kind. None means ``ROWS``, and 0 means all rows.
    """
    rows = ROWS if limit is None else limit
    sections = [_build_overview_section(diff, names), *(_build_kind_section(diff, kind, rows) for kind in diff.kinds)]
    note = (
        "Written by tracekit. A is the first side of the comparison, and B is the second side. A positive change means "
        "that B takes longer."
    )
    return build_static_page(f"{names[0]} and {names[1]}", sections, note)


def _build_overview_section(diff: Diff, names: tuple[str, str]) -> Section:
    """Return the section with facts about the two captures, notes on the comparison, and the significant changes."""
    sides = (dict(_iterate_labels_and_facts(side, name)) for side, name in zip((diff.a, diff.b), names, strict=True))
    a, b = sides
    facts = [(label, a.get(label), b.get(label)) for label in dict.fromkeys([*a, *b])]
    verdict = f"Verdict: {diff.verdict}."
    meanings = [f"{evidence}: {meaning}" for evidence, meaning in EVIDENCE.items()]
    significant = diff.replace_times_by_base(diff.significant()).select("kind", *_TITLES).drop("evidence")
    titles = {"kind": "Kind", **{c: t for c, t in diff.get_titles(_TITLES).items() if c != "evidence"}}
    tables = [
        Table("Sides", ("", "A", "B"), facts, len(facts)),
        Table.from_frame("Significant changes", _convert_to_display_values(significant), titles, ROWS, "name"),
    ]
    return Section("Overview", "overview", notes=[verdict, *diff.notes, *meanings], tables=tables)


def _iterate_labels_and_facts(side: Summary, name: str) -> Iterator[tuple[str, str]]:
    """Yield the facts about one capture as pairs of a label and a value."""
    yield "Name", name
    yield "Iterations", f"{side.iterations:,}"
    for fact, label in _FACTS.items():
        if fact in side.facts:
            yield label, side.facts[fact]


def _build_kind_section(diff: Diff, kind: str, limit: int) -> Section:
    """Return the section of one kind of event, such as kernels, without rows that are equal in both captures."""
    frame = diff.frame(kind)
    changed = diff.replace_times_by_base(frame.filter(pl.col("status") != "equal"))
    counts = f"{changed.height:,} of {frame.height:,} rows changed. The time is the {KINDS[kind].time}."
    explanation = diff.explain_missing_rows(kind)
    notes = [f"{explanation[:1].upper()}{explanation[1:]}." if explanation else counts]
    shown = _convert_to_display_values(changed)
    table = Table.from_frame(KINDS[kind].title, shown, diff.get_titles(_TITLES), limit or changed.height, "name")
    return Section(KINDS[kind].title, kind, notes=notes, tables=[table] if changed.height else [])


def _convert_to_display_values(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows in which floats are rounded to two decimals, and enumerations are converted to strings."""
    return rows.with_columns(pl.selectors.float().round(2), pl.selectors.enum().cast(pl.String))
