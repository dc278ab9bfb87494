"""The page "Serving": the phases and steps of an inference server, and the time of kernels by category and layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.core.serving import are_steps_annotated
from tracekit.errors import MissingTableError, TracekitError
from tracekit.pages.values import NANOSECONDS, PERCENT, build_value, format_value
from tracekit.registry.analyses import REPORT, get_analysis
from tracekit.text.elements import tag
from tracekit.trace import call_with_tables
from tracekit.view import components

if TYPE_CHECKING:
    import polars as pl

    from tracekit.trace import Trace
    from tracekit.view.pages import Context

BY = {"phase": "Phase", "batch": "Phase and batch size"}
"""What the rows of phases are, by the URL parameter ``by``."""
_MAX_CARDS = 8


def explain_absence(trace: Trace) -> TracekitError | None:
    """Return why the steps of a server are not known, or None if ranges mark them."""
    try:
        if call_with_tables(trace, are_steps_annotated, key=are_steps_annotated):
            return None
    except TracekitError:
        return None  # the page states the error
    analysis = get_analysis("serving_phases", REPORT)
    reason = analysis.recording.partition(": ")[0]
    return MissingTableError(f"this capture has no data for this page: {reason}", hint=analysis.recording_hint)


def build_page(context: Context) -> list[Any]:
    """Return the components of the page "Serving"."""
    by = context.state.get("by")
    by = by if by in BY else "phase"
    choices = [(title, context.state.make_url(by=name)) for name, title in BY.items()]
    return [
        _build_cards(context.read_report("serving_phases")),
        components.build_navigation_control("rows", choices, context.state.make_url(by=by)),
        context.build_table("serving_phases", {"by": by}),
        context.build_table("serving_steps"),
        context.build_table("category_layers"),
    ]


def _build_cards(phases: pl.DataFrame) -> Any:
    """Return a card with the median time of a step of each phase."""
    cards = []
    for row in phases.head(_MAX_CARDS).iter_rows(named=True):
        phase = (row["Phase"] or "unknown phase").replace("_", " ").capitalize()
        share = format_value(row["Time (%)"], PERCENT)
        note = f"median of {row['Steps']:,} step{'s' * (row['Steps'] != 1)}, {share} of the time of all steps"
        cards.append(components.build_number_card(phase, build_value(round(row["P50 (ns)"]), NANOSECONDS), note))
    return tag.dl(cards, class_="numbers")
