"""Build the panel that explains why steps take as long as they do."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tracekit import schemas
from tracekit.core.diagnosis.texts import write_explanation
from tracekit.errors import TracekitError
from tracekit.plots import bars
from tracekit.text.elements import tag
from tracekit.view import components, ranks

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.text.explanations import CauseText, Explanation
    from tracekit.view.captures import ViewedCaptures
    from tracekit.view.pages import Context
    from tracekit.view.state import CaptureAggregation, PageState

TITLE = "Why a step takes this long"
TITLE_OF_RANKS = "Why a step of the job takes this long"
_SCOPE_OF_RANKS = "The ranks are examined without their warm-up, whatever iterations are aggregated on other pages."
_ACTIVITY = "explaining the steps"
_STATUS = "The steps are being examined …"


def build_panel_of_capture(context: Context) -> Any:
    """Return a panel that explains the aggregated iterations of the page, or None without GPU activities."""
    if not context.capture.has_rows_in_any(*schemas.list_tables("activity")):
        return None
    explain = partial(context.capture.explain, context.state.at)
    key = ("why", context.state.at)
    compute = partial(_build_panel, TITLE, explain, context.state)
    return context.build_later(key, TITLE, compute, _ACTIVITY, _STATUS)


def list_causes(context: Context) -> list[str]:
    """Return the names of the causes that the panel of the capture lists.

    Raises:
        TracekitError: The steps cannot be explained.
    """
    if not context.capture.has_rows_in_any(*schemas.list_tables("activity")):
        return []
    explanation = context.capture.explain(context.state.at)
    return [cause.cause for cause in explanation.causes] if explanation.is_answered else []


def build_panel_of_ranks(context: Context) -> Any:
    """Return a panel that explains the steps of a job, with the rank whose steps take longest."""
    key = ("why of ranks", context.state.at.ranks, context.state.at.devices)
    explain = partial(_explain_ranks, context.captures, context.state.at)
    compute = partial(_build_panel, TITLE_OF_RANKS, explain, None)
    return context.build_later(key, TITLE_OF_RANKS, compute, _ACTIVITY, _STATUS)


def _explain_ranks(captures: ViewedCaptures, at: CaptureAggregation) -> Explanation:
    return write_explanation(ranks.get_selected_ranks(captures, at).why())


def _build_panel(title: str, explain: Callable[[], Explanation], state: PageState | None) -> Any:
    """Return a panel with the sentence, the ledger, the causes, the warm-up and notes, or None without an answer.

    Args:
        title: Heading of the panel.
        explain: Function that returns the explanation.
        state: State of the page of the capture to which links lead, or None for no links.
    """
    try:
        explanation = explain()
    except TracekitError as error:
        return components.build_panel(title, [components.build_error_message(error)])
    if not explanation.is_answered:
        return None
    parts: list[Any] = [tag.p(explanation.sentence, class_="answer")]
    if state is None:
        parts.append(tag.p(_SCOPE_OF_RANKS, class_="dimmed"))
    if explanation.ledger:
        drawn = bars.draw_ledger(explanation.ledger, title=title)
        parts.append(components.build_graph(drawn))
    if explanation.causes:
        parts.append(tag.ol([_build_cause(cause, state) for cause in explanation.causes], class_="advice"))
    if explanation.together:
        parts.append(tag.p(explanation.together))
    if explanation.cold:
        drawn = bars.draw_ledger(explanation.cold_ledger, title=title)
        parts.append(tag.details([tag.summary(f"Warm-up: {explanation.cold}"), components.build_graph(drawn)]))
    if explanation.ranks:
        parts.append(tag.ul([tag.li(text) for text in explanation.ranks], class_="advice"))
    parts += [tag.p(f"Note: {note}", class_="dimmed") for note in explanation.notes]
    return components.build_panel(title, parts)


def _build_cause(cause: CauseText, state: PageState | None) -> Any:
    """Return a list item with a cause: its saving, evidence, change, and a link to its longest occurrence."""
    parts: list[Any] = [tag.strong(f"{cause.title}: {cause.saving}"), tag.p(cause.evidence)]
    parts += [tag.p(text, class_="dimmed") for text in (cause.functions, cause.missing) if text]
    parts += [tag.p(text) for text in (cause.change, cause.check) if text]
    if state is not None and cause.start_ns is not None and cause.end_ns is not None:
        url = state.make_url("timeline", start=str(cause.start_ns), end=str(cause.end_ns))
        parts.append(tag.p(components.build_link("Show in timeline", url)))
    return tag.li(parts)
