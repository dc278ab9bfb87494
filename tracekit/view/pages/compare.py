"""The page "Compare": differences between two captures, or between two aggregations of one capture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.core.compare import KINDS
from tracekit.errors import TracekitError
from tracekit.text.elements import tag
from tracekit.view import comparison, components

if TYPE_CHECKING:
    from tracekit.core.compare import Diff
    from tracekit.view.pages import Context
    from tracekit.view.state import CaptureAggregation


def build_page(context: Context) -> list[Any]:
    """Return the components of the page "Compare"."""
    by = context.state.get("by", "kernels")
    by = by if by in KINDS else "kernels"
    other = comparison.parse_compared_aggregation(context.captures, context.state)
    parameters = {name: context.state.get(name) for name in comparison.OTHER if context.state.get(name)}
    choices = [(kind.title, context.state.make_url(by=name, **parameters)) for name, kind in KINDS.items()]
    kinds = components.build_navigation_control("by", choices, context.state.make_url(by=by, **parameters))
    unchanged = {**context.state.at.to_url_parameters(), "by": by}
    fields = [_build_capture_selector(context, other.capture), *_build_iteration_fields(other)]
    form = components.build_form("/compare", unchanged, fields, "Compare")
    chosen = [components.build_panel("Compare with", [form]), kinds]
    try:
        sides = (
            context.capture.get_aggregated_trace(context.state.at),
            context.captures[other].get_aggregated_trace(other),
        )
        differences = comparison.compare(context.captures, *sides, by)
    except TracekitError as error:
        return [*chosen, components.build_error_message(error)]
    if differences.frame(by).is_empty():
        explanation = differences.explain_missing_rows(by)
        return [*chosen, tag.p(f"{explanation[:1].upper()}{explanation[1:]}.", class_="dimmed")]
    arguments = {"by": by, **{f"other_{name}": value for name, value in other.to_url_parameters().items()}}
    arguments["other_capture"] = str(other.capture)
    parts = [
        tag.p(f"Verdict: {differences.verdict}.", id="verdict"),
        *components.build_note_paragraphs(differences.step_notes),
        *chosen,
        _build_totals_panel(context, other, differences, by),
        components.build_panel("Notes", [tag.ul([tag.li(note) for note in differences.notes])])
        if differences.notes
        else None,
        context.build_table("comparison", arguments),
    ]
    return [part for part in parts if part is not None]


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
                f"A{base}", components.format_duration(before), _format_capture_label(context, context.state.at)
            ),
            components.build_number_card(
                f"B{base}", components.format_duration(after), _format_capture_label(context, other)
            ),
            components.build_number_card(
                f"Change{base}", "+" * (change > 0) + components.format_duration(change), exact
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
