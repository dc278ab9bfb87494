"""The page "Recorded findings": what the profiler recorded as a problem, and the rules of nsys that list rows."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit import schemas
from tracekit.registry.analyses import RULE, list_built_in_analyses
from tracekit.text.elements import tag
from tracekit.trace import get_trace_view
from tracekit.view import components, grid

if TYPE_CHECKING:
    from tracekit.view.pages import Context

_TITLE = "Rules of nsys analyze"
_ACTIVITY, _STATUS = "applying rules", "The rules of nsys analyze are being applied …"


def build_page(context: Context) -> list[Any]:
    """Return the components of the page "Recorded findings"."""
    parts = [context.build_table("findings")]
    if context.capture.has_rows_in_any(*schemas.list_tables("activity")):
        key = ("rules", context.state.at)
        parts.append(context.build_later(key, _TITLE, partial(_build_rules_panel, context), _ACTIVITY, _STATUS))
    rule = context.state.get("rule")
    if rule in _list_rules():
        parts.append(context.build_table(f"report:{rule}"))
    return parts


def _list_rules() -> dict[str, str]:
    """Return the descriptions of the rules of nsys, by name."""
    return {name: rule.doc for name, rule in list_built_in_analyses(RULE).items() if rule.origin == "nsys"}


def _build_rules_panel(context: Context) -> Any:
    """Return a panel with the rules of nsys that list rows, each with a link to its rows."""
    view = get_trace_view(context.capture.get_aggregated_trace(context.state.at))
    counts = {name: view.report(f"{name}:rows=-1").rows for name in _list_rules()}
    rules = [(name, doc, counts[name]) for name, doc in _list_rules().items() if counts[name]]
    if not rules:
        return components.build_panel(_TITLE, [tag.p("The rules found nothing.", class_="dim")])
    frame = pl.DataFrame(rules, schema={"rule": pl.String, "doc": pl.String, "count": pl.Int64}, orient="row")
    links = [components.build_link("Show rows", context.state.make_url(rule=name)) for name in frame["rule"]]
    titles = {"rule": "Rule", "doc": "What it lists", "count": "Rows"}
    return components.build_panel(_TITLE, [grid.build_plain_table(frame, titles, "Rules that list rows", links)])
