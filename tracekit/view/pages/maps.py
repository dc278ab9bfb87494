"""The page "Utilization over time": heat maps of each GPU, for all ranks of a job or for one capture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.plots.recipes import MAPS
from tracekit.text.elements import tag
from tracekit.view import components, missing
from tracekit.view.query import Query, load_rows
from tracekit.view.sources import MAX_BINS

if TYPE_CHECKING:
    from tracekit.view.pages import Context

BINS = (30, 100, MAX_BINS)


def build_page(context: Context) -> list[Any]:
    """Return the components of the page "Utilization over time"."""
    names = [name for name in MAPS if _has_rows(context, name)]
    if not names:
        return [missing.build_missing_data_note(context.capture.trace, ("kernels", "gpu_metrics"))]
    name = context.state.get("map")
    name = name if name in names else names[0]
    bins = next((each for each in BINS if str(each) == context.state.get("bins")), BINS[0])
    maps = [(MAPS[each], context.state.make_url(map=each, bins=str(bins))) for each in names]
    sizes = [(f"{each} bins", context.state.make_url(map=name, bins=str(each))) for each in BINS]
    current = context.state.make_url(map=name, bins=str(bins))
    controls = [
        components.build_navigation_control("map", maps, current),
        components.build_navigation_control("bins", sizes, current),
    ]
    return [
        tag.div(controls, class_="controls"),
        *context.build_recipe_figures(name, {"bins": bins}).values(),
        context.build_table("utilization", _build_table_arguments(name, bins)),
    ]


def _has_rows(context: Context, recipe: str) -> bool:
    query = Query("utilization", context.state.at, tuple(sorted(_build_table_arguments(recipe, BINS[0]).items())))
    return load_rows(context.captures, query).frame.height > 0


def _build_table_arguments(recipe: str, bins: int) -> dict[str, str]:
    return {"map": recipe, "bins": str(bins)}
