"""Explain on pages why a table or a page has no data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit import schemas
from tracekit.text.elements import tag
from tracekit.trace import get_trace_view
from tracekit.view.datasets import find_dataset

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracekit.trace import Trace

EVENTS = schemas.list_tables("event")
"""Tables with the events of programs."""


def explain_missing_rows(trace: Trace, name: str, arguments: Mapping[str, str]) -> str:
    """Return a sentence that states why a table on a page has no rows.

    Args:
        trace: The capture.
        name: Name of the table, as for ``datasets.find_dataset``.
        arguments: The values from which the rows of the table are computed, such as those of a selected row. If there
            are any, the table shows a part of the capture.
    """
    dataset = find_dataset(name)
    shown = arguments.get(dataset.recipe_argument, dataset.shows)
    is_part = not arguments.keys() <= {"map", "bins"}
    absence = get_trace_view(trace).explain_missing_rows(shown, is_part=is_part)
    return f"No rows: {absence.sentence}."


def build_missing_data_note(trace: Trace, tables: Sequence[str] = EVENTS) -> Any:
    """Return a paragraph that states why a capture has no rows in the tables that a page needs."""
    absence = get_trace_view(trace).explain_missing_tables(tables)
    return tag.p(f"No data: {absence.sentence}.", class_="dim")
