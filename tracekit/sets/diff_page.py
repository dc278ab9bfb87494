"""Create an HTML page that shows the differences between two captures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.compare import EVIDENCE, KINDS
from tracekit.exporters.html.sections import hide_host
from tracekit.pages.columns import ColumnText, describe_columns
from tracekit.pages.document import ExportedPage, Section, build_description_list
from tracekit.pages.tables import build_frame_table, build_table
from tracekit.registry.analyses import METHOD, get_analysis
from tracekit.text.elements import tag

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.core.compare import Diff, Summary
    from tracekit.text.elements import Element

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
_COLUMNS = (
    *("name", "status", "evidence", "time_a_ns", "time_b_ns", "change_ns", "change_percent", "share_percent"),
    *("count_a", "count_b"),
)
_PER_ITERATION = {
    "time_a_ns": "iteration_a_ns",
    "time_b_ns": "iteration_b_ns",
    "change_ns": "iteration_change_ns",
    "change_percent": "iteration_change_percent",
}
"""The columns of times per iteration that replace those of total times."""


def build_diff_page(diff: Diff, names: tuple[str, str], limit: int | None = None) -> str:
    """Return an HTML page that shows the differences between two captures.

    Args:
        diff: The differences.
        names: Names of the two captures. Names of hosts in them are removed.
        limit: Maximum number of rows per kind. None means ``ROWS``, and 0 means all rows.
    """
    rows = ROWS if limit is None else limit
    a, b = map(hide_host, names)
    sections = [_build_overview_section(diff, (a, b)), *(_build_kind_section(diff, kind, rows) for kind in diff.kinds)]
    note = (
        "Written by tracekit. A is the first side of the comparison, and B is the second side. A positive change means "
        "that B takes longer."
    )
    return ExportedPage(f"{a} and {b}", sections, "Comparison of two captures", note=note).render()


def _build_overview_section(diff: Diff, names: tuple[str, str]) -> Section:
    """Return the section with facts about the two captures, notes on the comparison, and the significant changes."""
    sides = (dict(_iterate_labels_and_facts(side, name)) for side, name in zip((diff.a, diff.b), names, strict=True))
    a, b = sides
    facts = [(label, a.get(label), b.get(label)) for label in dict.fromkeys([*a, *b])]
    verdict = f"Verdict: {diff.verdict}."
    significant = diff.replace_times_by_base(diff.significant())
    columns = [ColumnText("kind", "Kind"), *(c for c in _describe_columns(diff) if c.name != "evidence")]
    changes = _build_rows_table(diff, "Significant changes", significant, columns, ROWS)
    content = [
        build_table("Sides", [ColumnText(name, name) for name in ("", "A", "B")], facts),
        tag.p("No change is significant.") if significant.is_empty() else changes,
        tag.h3("What the evidence of a change means"),
        build_description_list(EVIDENCE.items()),
    ]
    return Section("Overview", "overview", content, [verdict, *diff.notes])


def _describe_columns(diff: Diff) -> list[ColumnText]:
    """Return what the page says about the columns of changes, whose times may be those of one iteration."""
    declared = {column.name: column for column in get_analysis("diff", METHOD).columns}
    texts = describe_columns(_COLUMNS, declared.values())
    if not diff.is_per_iteration:
        return texts
    return [t._replace(doc=declared[_PER_ITERATION.get(t.name, t.name)].doc) for t in texts]


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
    columns = _describe_columns(diff)
    table = _build_rows_table(diff, KINDS[kind].title, changed, columns, limit or changed.height)
    return Section(KINDS[kind].title, kind, [table] if changed.height else [], notes)


def _build_rows_table(
    diff: Diff, title: str, rows: pl.DataFrame, columns: Sequence[ColumnText], max_rows: int
) -> Element:
    caption = f"{title}, times per iteration" if diff.is_per_iteration else title
    texts = rows.with_columns(pl.selectors.enum().cast(pl.String))
    return build_frame_table(caption, texts, columns, max_rows=max_rows, header="name")
