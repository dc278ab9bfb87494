"""The page "Groups": an icicle chart and a table of the tree of scopes, for one metric, direction and depth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.text.elements import tag
from tracekit.view import components

if TYPE_CHECKING:
    from tracekit.view.pages import Context

METRICS = {"gpu_time_ns": "GPU time", "cpu_time_ns": "CPU time", "api_time_ns": "API time", "gpu_idle_ns": "GPU idle"}
DIRECTIONS = {"fprop": "Forward", "bprop": "Backward"}
MAX_DEPTH = 8
"""Maximum depth that the control offers. The choice "All levels" also shows deeper trees completely."""


def build_page(context: Context) -> list[Any]:
    """Return the components of the page "Groups"."""
    groups = context.capture.get_aggregated_trace(context.state.at).frame("group_nodes")
    nodes = groups.select(pl.col("direction").cast(pl.String), "level").unique().collect()
    directions = sorted(nodes["direction"].drop_nulls().unique())
    deepest = min(max(nodes["level"].to_list(), default=0), MAX_DEPTH)
    depths = [str(level) for level in range(1, deepest + 1)]
    choices = {
        "metric": METRICS,
        "direction": {"": "Both directions", **{d: DIRECTIONS.get(d, d) for d in directions}},
        "depth": {"": "All levels", **{depth: f"Level {depth}" for depth in depths}},
    }
    chosen = {name: context.state.get(name, next(iter(labels))) for name, labels in choices.items()}
    chosen = {name: value if value in choices[name] else next(iter(choices[name])) for name, value in chosen.items()}
    controls = [
        components.build_navigation_control(
            name,
            [(label, _build_page_url(context, {**chosen, name: value})) for value, label in labels.items()],
            _build_page_url(context, chosen),
        )
        for name, labels in choices.items()
        if len(labels) > 1
    ]
    options: dict[str, Any] = {name: chosen[name] for name in ("metric", "direction") if chosen[name]}
    arguments = {"depth": chosen["depth"]} if chosen["depth"] else {}
    figure = context.build_figure("groups", METRICS[chosen["metric"]], **options)
    of_graphs = ("layer_gpu_sum", "graph_alignment") if context.capture.can_have_layers else ()
    layers = [context.build_table(name) for name in of_graphs]
    return [tag.div(controls, class_="controls"), figure, context.build_table("groups", arguments), *layers]


def _build_page_url(context: Context, chosen: dict[str, str]) -> str:
    """Return the URL of the page "Groups" for the selected metric, direction and depth. Empty values are omitted."""
    return context.state.make_url(**{name: value for name, value in chosen.items() if value})
