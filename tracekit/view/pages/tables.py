"""The page "Tables": the declared tables, each with all columns and an SQL filter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.plan import ROLLED_UP
from tracekit.view import components, missing

if TYPE_CHECKING:
    from tracekit.view.pages import Context


def build_page(context: Context) -> list[Any]:
    """Return the components of the page "Tables"."""
    trace = context.capture.get_aggregated_trace(context.state.at)
    requested = context.state.get("table")
    names = [name for name in trace.tables if name == requested or context.capture.has_rows_in_any(name)]
    if not names:
        return [missing.build_missing_data_note(trace)]
    chosen = requested if requested in names else names[0]
    choices = [(name, name) for name in names]
    select = components.build_navigation_select(context.state, "Table", "table", choices, chosen)
    notes = components.build_step_notes(context) if chosen in ROLLED_UP else []
    return [select, *notes, context.build_table(f"table:{chosen}", is_condition_field_open=True)]
