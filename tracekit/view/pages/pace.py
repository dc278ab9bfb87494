"""The page "Pace": when a kernel or an NVTX range occurs in each rank, and how long it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tracekit.pages.values import NANOSECONDS, format_value
from tracekit.plots.recipes import PACES
from tracekit.text.elements import tag
from tracekit.view import components, missing, ranks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.view.pages import Context

LISTED = 100
"""Maximum number of names in the drop-down list."""
_SUMS = {
    "cuda_gpu_kern_pace": ("cuda_gpu_kern_sum", "Name"),
    "nvtx_pace": ("nvtx_sum", "Text"),
    "nvtx_gpu_proj_pace": ("nvtx_gpu_proj_sum", "Text"),
}
"""For each recipe of ``PACES``, the recipe that sums up the occurrences of each name, and its column of names."""


def build_page(context: Context) -> list[Any]:
    """Return the components of the page "Pace"."""
    totals = {kind: _find_largest_totals(context, kind) for kind in PACES}
    kinds = [kind for kind, names in totals.items() if names]
    if not kinds:
        return [missing.build_missing_data_note(context.capture.trace, ("kernels", "nvtx_ranges"))]
    kind = context.state.get("kind")
    kind = kind if kind in kinds else kinds[0]
    names = totals[kind]
    name = context.state.get("name") or _choose_default_name(context, names)
    firsts = {
        each: context.state.make_url(kind=each, name=_choose_default_name(context, totals[each])) for each in kinds
    }
    offered = [
        (each, f"{each} ({total.occurrences:,}×, {format_value(total.time_ns, NANOSECONDS)})")
        for each, total in names.items()
    ]
    offered = offered if name in names else [(name, name), *offered]
    drawn = context.build_recipe_figures(kind, {"name": name})
    return [
        tag.div(
            components.build_navigation_control(
                "kind", [(PACES[each], url) for each, url in firsts.items()], firsts[kind]
            ),
            components.build_navigation_select(
                context.state, "Name", "name", [(text, each) for each, text in offered], name, parameters={"kind": kind}
            ),
            class_="controls",
        ),
        *drawn.values(),
        tag.p("No kernel or range has this name.", class_="dim") if not drawn else None,
        context.build_table("pace", {"kind": kind, "name": name}),
    ]


class Total(NamedTuple):
    """The number of occurrences of a kernel or NVTX range, and their total time in ns."""

    occurrences: int
    time_ns: int


def _find_largest_totals(context: Context, kind: str) -> dict[str, Total]:
    """Return the totals of the kernels or NVTX ranges with the longest total times, by name."""
    recipe, key = _SUMS[kind]
    rows = ranks.run_recipe(context.captures, context.state.at, recipe)["all_stats"]
    rows = rows.drop_nulls(key).sort("Sum", descending=True, maintain_order=True).head(LISTED)
    return {name: Total(count, int(time)) for name, count, time in rows[key, "Count", "Sum"].rows()}


def _choose_default_name(context: Context, totals: Mapping[str, Total]) -> str:
    """Return the name of the kernel or NVTX range that is selected by default.

    This is the one with the longest total time among those that occur more than once per rank. If there are none, all
    names are considered.
    """
    number = len(ranks.get_selected_ranks(context.captures, context.state.at))
    return next((name for name, total in totals.items() if total.occurrences > number), next(iter(totals)))
