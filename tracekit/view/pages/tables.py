"""The page of declared tables, each with all columns and an SQL filter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dash_mantine_components as dmc
from dash import html

if TYPE_CHECKING:
    from tracekit.view.pages import Context


def build(context: Context) -> list[Any]:
    """Return the components of the page."""
    trace = context.capture.at(context.state.at)
    names = [name for name in trace.tables if context.capture.has(name)]
    if not names:
        return [html.P("No table of this capture has rows.", className="dimmed")]
    chosen = context.state.get("table")
    chosen = chosen if chosen in names else names[0]
    select = dmc.Select(
        id={"part": "navigate", "name": "table"},
        label="Table",
        data=[{"value": context.state.url(table=name), "label": name} for name in names],
        value=context.state.url(table=chosen),
        searchable=True,
        allowDeselect=False,
        size="xs",
        w=320,
    )
    return [select, context.table(f"table:{chosen}", condition=True)]
