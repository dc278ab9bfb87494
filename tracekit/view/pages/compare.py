"""The page "Compare": differences between two captures, or between two aggregations of one capture."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit import schemas
from tracekit.core.compare import KINDS
from tracekit.core.diagnosis import Options
from tracekit.core.diagnosis.step_parts import compare_ledgers
from tracekit.errors import TracekitError
from tracekit.pages.columns import write_title
from tracekit.pages.values import NANOSECONDS, build_value
from tracekit.registry.analyses import METHOD, get_analysis
from tracekit.text.elements import tag
from tracekit.trace import get_trace_view
from tracekit.view import comparison, components, grid
from tracekit.view.state import make_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.core.compare import Diff
    from tracekit.trace import Trace
    from tracekit.view.pages import Context
    from tracekit.view.state import CaptureAggregation

_LEDGER = "What changed in a step"


def build_page(context: Context) -> list[Any]:
    """Return the components of the page "Compare": the verdict, the changed parts of a step, and the changed rows."""
    if len(context.captures) == 1 and not any(context.state.get(name) for name in comparison.OTHER):
        return [tag.p("Choose what to compare.", class_="dim"), _build_choices_panel(context, None)]
    other = comparison.parse_compared_aggregation(context.captures, context.state)
    reasons = comparison.list_compared_kinds(context.capture, context.captures[other])
    offered = [name for name, reason in reasons.items() if not reason]
    by = context.state.get("by") or (offered[0] if offered else "kernels")
    by = by if by in KINDS else "kernels"
    try:
        sides = (
            context.capture.get_aggregated_trace(context.state.at),
            context.captures[other].get_aggregated_trace(other),
        )
        differences = comparison.compare(context.captures, *sides, by)
    except TracekitError as error:
        return [components.build_error_message(error), _build_choices_panel(context, other)]
    if differences.frame(by).is_empty():
        explanation = differences.explain_missing_rows(by)
        reason = tag.p(f"{explanation[:1].upper()}{explanation[1:]}.", class_="dim")
        return [reason, *_build_kind_control(context, by, reasons), _build_choices_panel(context, other)]
    arguments = {"by": by, **{f"other_{name}": value for name, value in other.to_url_parameters().items()}}
    arguments["other_capture"] = str(other.capture)
    parts = [
        tag.p(f"Verdict: {differences.verdict}.", id="verdict"),
        *components.build_note_paragraphs(differences.step_notes),
        _build_ledger_panel(context, other, sides),
        _build_choices_panel(context, other),
        *_build_kind_control(context, by, reasons),
        _build_totals_panel(context, other, differences, by),
        components.build_panel("Notes", [tag.ul([tag.li(note) for note in differences.notes])])
        if differences.notes
        else None,
        context.build_table("comparison", arguments),
    ]
    return [part for part in parts if part is not None]


def _build_kind_control(context: Context, by: str, reasons: Mapping[str, str]) -> list[Any]:
    """Return links to the kinds of rows that both sides have, and which other kinds there are and why they are missing.

    Args:
        context: The context of the page.
        by: The current kind.
        reasons: For each kind, why it cannot be compared, or "".
    """
    parameters = {name: context.state.get(name) for name in comparison.OTHER if context.state.get(name)}
    urls = {name: context.state.make_url(by=name, **parameters) for name in KINDS}
    choices = [(kind.title, urls[name]) for name, kind in KINDS.items() if not reasons[name] or name == by]
    missing = [f"{kind.title} ({reasons[name]})" for name, kind in KINDS.items() if reasons[name] and name != by]
    control = components.build_navigation_control("by", choices, urls[by])
    return [control, tag.p(f"Not compared: {'; '.join(missing)}.", class_="dim") if missing else None]


def _build_ledger_panel(context: Context, other: CaptureAggregation, sides: tuple[Trace, Trace]) -> Any:
    """Return a panel with the changed parts of a step, or None if a side has no GPU work."""
    activities = schemas.list_tables("activity")
    if not all(each.has_rows_in_any(*activities) for each in (context.capture, context.captures[other])):
        return None
    key = ("ledger changes", context.state.at, other)
    build = partial(_build_changed_parts, sides)
    return context.build_later(key, _LEDGER, build, "explaining the steps", "The steps are being compared …")


def _build_changed_parts(sides: tuple[Trace, Trace]) -> Any:
    """Return a panel with the parts of the median step of both sides, or None if a side has no steps."""
    answers = [get_trace_view(trace).why(Options()) for trace in sides]
    if any(answer.step is None for answer in answers):
        return None
    rows = compare_ledgers(*answers)
    columns = get_analysis("ledger_changes", METHOD).columns
    titles = {c.name: c.title or write_title(c.name.removesuffix("_ns")) for c in columns}
    total = rows.select(pl.lit("whole step").alias("part"), pl.lit("").alias("group"), pl.col("^.*_ns$").sum())
    shown = rows.filter(pl.col("change_ns") != 0).with_columns(_part_name_expr())
    table = grid.build_plain_table(pl.concat([total, shown]), titles, "Parts of the median step")
    return components.build_panel(_LEDGER, [table])


def _part_name_expr() -> pl.Expr:
    """Return an expression for the names of parts as ``why`` writes them."""
    name = pl.col("part").str.replace_all("_", " ")
    return pl.when(pl.col("group") == "idle").then(pl.format("idle: {}", name)).otherwise(name).alias("part")


def _build_choices_panel(context: Context, other: CaptureAggregation | None) -> Any:
    """Return the panel that offers what can be compared by name, with a form for everything else."""
    offers = comparison.list_offers(context.captures, context.state.at)
    links = []
    for title, compared, own in offers:
        values = {f"other_{name}": value for name, value in compared.to_url_parameters().items()}
        url = make_url("compare", own or context.state.at, {**values, "other_capture": str(compared.capture)})
        links.append(tag.li(components.build_link(title[:1].upper() + title[1:], url)))
    missing = comparison.list_missing_offers(context.captures, context.state.at)
    reason = "They have no kernels, ranges, calls, copies or iterations in common with this capture"
    unchanged = {**context.state.at.to_url_parameters(), "by": context.state.get("by")}
    chosen = context.state.at if other is None else other
    fields = [_build_capture_selector(context, chosen.capture), *_build_iteration_fields(chosen)]
    form = components.build_form("/compare", {n: v for n, v in unchanged.items() if v}, fields, "Compare")
    content = [
        tag.ul(links, class_="offers") if links else None,
        tag.p(f"Not offered: {', '.join(missing)}. {reason}.", class_="dim") if missing else None,
        tag.details(tag.summary("Other captures and iterations"), form, open=not links),
    ]
    return components.build_panel("Compare", [each for each in content if each is not None])


def _build_capture_selector(context: Context, selected_index: int) -> Any:
    """Return the drop-down list that selects the capture to compare with.

    Args:
        context: The context of the page.
        selected_index: Index of the capture that is selected.
    """
    choices = [(f"{each.index}: {each.name}", str(each.index)) for each in context.captures.all]
    return components.build_select("Capture", "other_capture", choices, str(selected_index))


def _build_iteration_fields(other: CaptureAggregation) -> list[Any]:
    """Return the input fields for the first and last iteration to compare with."""
    return [
        components.build_input(label, f"other_{name}_iteration", value, type="number", min=0)
        for name, label, value in (("first", "First iteration", other.first), ("last", "Last iteration", other.last))
    ]


def _build_totals_panel(context: Context, other: CaptureAggregation, differences: Diff, by: str) -> Any:
    """Return the total times of both captures and their difference, or None if there are no totals."""
    times = differences.compute_totals(by)
    if times is None:
        return None
    base = " per iteration" if differences.is_per_iteration else ""
    before, after = times
    change = after - before
    exact = f"{change:+,} ns" + (f", {change * 100 / before:+.2f} %" if before else "")
    return tag.dl(
        [
            components.build_number_card(
                f"A{base}", build_value(before, NANOSECONDS), _format_capture_label(context, context.state.at)
            ),
            components.build_number_card(
                f"B{base}", build_value(after, NANOSECONDS), _format_capture_label(context, other)
            ),
            components.build_number_card(
                f"Change{base}", ("+" * (change > 0), build_value(change, NANOSECONDS)), exact
            ),
        ],
        class_="numbers",
    )


def _format_capture_label(context: Context, aggregation: CaptureAggregation) -> str:
    """Return the name of a compared capture. If only some iterations are aggregated, add their range."""
    first, last = _format_iteration(aggregation.first), _format_iteration(aggregation.last)
    bounds = "" if aggregation.is_default else f", iterations {first} to {last}"
    return f"{context.captures[aggregation].name}{bounds}"


def _format_iteration(bound: int | None) -> str:
    """Return the number of the first or last iteration as a string, or "…" for None."""
    return "…" if bound is None else str(bound)
