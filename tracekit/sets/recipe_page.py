"""Create an HTML page with the figures of a recipe and the first rows of its tables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracekit.exporters.html.ranks import build_recipe_charts
from tracekit.pages.document import ExportedPage, Section
from tracekit.pages.tables import build_frame_table
from tracekit.registry.analyses import RECIPE, get_analysis, list_names
from tracekit.sets.recipes import list_step_notes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from tracekit.schemas import Column
    from tracekit.text.elements import Element

_ROWS = 50
_HEAD_BYTES = 1 << 12
_TITLE = re.compile(r"<title>Recipe (\w+)</title>")


def render_recipe_page(
    recipe: str,
    tables: Mapping[str, pl.DataFrame],
    get_printable_rows: Callable[[str], pl.DataFrame],
    notices: Sequence[str] = (),
) -> str:
    """Return an HTML page with the figures of a recipe and the first rows of its tables.

    Args:
        recipe: Name of the recipe.
        tables: The tables of the recipe by name.
        get_printable_rows: Function that returns the printable rows of a table, given the name of the table.
        notices: Sentences that come before the figures and tables.
    """
    analysis = get_analysis(recipe, RECIPE)
    declared = {result.name: result.columns for result in analysis.results}
    shown = [
        _build_recipe_table(name, get_printable_rows(name), declared.get(name, ()))
        for name, rows in tables.items()
        if not rows.is_empty()
    ]
    section = Section(recipe, recipe, [*build_recipe_charts(tables), *shown], [analysis.doc, *list_step_notes(tables)])
    return ExportedPage(f"Recipe {recipe}", [section], notices=notices).render()


def is_recipe_page(path: Path) -> bool:
    """Return whether an HTML file is named after a recipe and has the title of the page of this recipe."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES).decode("utf-8", "replace")
    title = _TITLE.search(head)
    return title is not None and title[1] == path.stem and path.stem in list_names(RECIPE)


def _build_recipe_table(name: str, rows: pl.DataFrame, declared: Sequence[Column]) -> Element:
    return build_frame_table(name, rows, rows.columns, max_rows=_ROWS, declared=declared)
