"""Build the panel that explains why steps take as long as they do: those of a job or of a capture."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tracekit import schemas
from tracekit.core.diagnosis.texts import write_explanation
from tracekit.errors import TracekitError
from tracekit.pages.answer import TITLE, TITLE_OF_RANKS, build_answer
from tracekit.text.elements import tag
from tracekit.text.explanations import KERNELS_TITLE
from tracekit.view import components, grid, ranks, sources
from tracekit.view.state import CaptureAggregation, make_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.pages.answer import MakeUrl
    from tracekit.text.elements import Content, Element
    from tracekit.text.explanations import Explanation
    from tracekit.view.pages import Context

_SCOPE_OF_RANKS = "The ranks are examined without their warm-up, whatever steps the other panels show."
_ACTIVITY = "explaining the steps"
_STATUS = "The steps are being examined …"
_LIMITS = {"limiter": "Limiter", "time_percent": "Time", "name": "Kernel"}
_MAX_LIMITS = 8


def build_panel(context: Context) -> Content:
    """Return a panel that explains the steps of the job if the captures are its ranks, and else those of the capture.

    If the scope selects a single rank, its capture is explained.
    """
    is_quick = len(context.captures) == 1 and not _has_much_to_explain(context)
    key = ("why", context.state.at)
    if is_quick:
        return context.captures.get_cached_result(key, partial(_build_panel, context))  # type: ignore[no-any-return]
    return context.build_later(key, TITLE, partial(_build_panel, context), _ACTIVITY, _STATUS)  # type: ignore[no-any-return]


def build_panel_of_ranks(context: Context) -> Content:
    """Return a panel that explains the steps of a job, with the rank whose steps take longest."""
    compute = partial(_build_panel_of_job, context)
    return context.build_later(  # type: ignore[no-any-return]
        ("why of ranks", context.state.at), TITLE_OF_RANKS, compute, _ACTIVITY, _STATUS
    )


def list_causes(context: Context) -> list[str]:
    """Return the names of the causes of the capture.

    Raises:
        TracekitError: The steps cannot be explained.
    """
    explanation = _explain_capture(context)
    return [cause.cause for cause in explanation.causes] if explanation.is_answered else []


def _has_much_to_explain(context: Context) -> bool:
    return context.capture.has_rows_in_any(*schemas.list_tables("activity"), "ncu_launches")


def _explain_capture(context: Context) -> Explanation:
    return context.capture.explain(context.state.at)


def _explain_job(context: Context) -> Explanation:
    at = CaptureAggregation(ranks=context.state.at.ranks, devices=context.state.at.devices)
    return write_explanation(ranks.find_causes_of_job(context.captures, at))


def _build_panel(context: Context) -> Element:
    is_of_job = len(context.state.at.ranks) != 1 and ranks.get_rank_set(context.captures) is not None
    if is_of_job:
        return _build_panel_of_job(context)
    try:
        explanation = _explain_capture(context)
        beside = _build_limits(context) if explanation.ledger_title == KERNELS_TITLE else None
    except TracekitError as error:
        return components.build_panel(TITLE, [components.build_error_message(error)])
    return build_answer(explanation, create_url_maker(context), beside=beside)


def _build_panel_of_job(context: Context) -> Element:
    try:
        explanation = _explain_job(context)
    except TracekitError as error:
        return components.build_panel(TITLE_OF_RANKS, [components.build_error_message(error)])
    follows = context.state.at.is_default
    note = None if follows else tag.p(_SCOPE_OF_RANKS, class_="dim")
    return build_answer(explanation, create_url_maker(context), beside=note)


def create_url_maker(context: Context) -> MakeUrl:
    """Return the function with which answers link to pages: those of the capture of a rank, or else of this capture."""
    state, by_rank = context.state, ranks.list_captures_by_rank(context.captures)
    devices, layers = state.at.devices, state.at.layers

    def make(page: str, rank: int | None, parameters: Mapping[str, str]) -> str | None:
        tables = [name.removesuffix(".filter") for name in parameters if name.endswith(".filter")]
        anchor = f"#{grid.make_key(tables[0])}-table" if tables else ""
        if rank is not None and rank in by_rank:
            chosen = (rank,) if page == "" else state.at.ranks
            at = CaptureAggregation(by_rank[rank].index, ranks=chosen, devices=devices, layers=layers)
            return make_url(page, at, parameters) + anchor
        return None if page == "" else state.make_url(page, **parameters) + anchor

    return make


def _build_limits(context: Context) -> Element:
    """Return a table of the kernels that Nsight Compute measured, with what limits them."""
    rows = sources.convert_report_rows(context.read_report("ncu_limiter"), "ncu_limiter").frame
    link = components.build_link("All kernels and their rates", context.state.make_url("roofline"))
    shown = grid.build_plain_table(rows.head(_MAX_LIMITS), _LIMITS, "What limits the longest kernels")
    return tag.div(shown, tag.p(link))
