"""The page of groups: the tree of scopes as a table and as an icicle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dash_mantine_components as dmc
import polars as pl

from tracekit.view import components

if TYPE_CHECKING:
    from tracekit.view.pages import Context

METRICS = {"gpu_time_ns": "GPU time", "cpu_time_ns": "CPU time", "api_time_ns": "API time", "gpu_idle_ns": "GPU idle"}


def build(context: Context) -> list[Any]:
    """Return the components of the page."""
    metric = context.state.get("metric", "gpu_time_ns")
    direction = context.state.get("direction")
    metric = metric if metric in METRICS else "gpu_time_ns"
    directions = sorted(_directions(context))
    metrics = [(label, _url(context, name, direction)) for name, label in METRICS.items()]
    controls = [components.navigation_control("metric", metrics, _url(context, metric, direction))]
    if directions:
        names = [("Both directions", ""), *((d.capitalize(), d) for d in directions)]
        choices = [(label, _url(context, metric, value)) for label, value in names]
        controls.append(components.navigation_control("direction", choices, _url(context, metric, direction)))
    options: dict[str, Any] = {"metric": metric}
    if direction in directions:
        options["direction"] = direction
    return [dmc.Group(controls), context.figure("groups", METRICS[metric], **options), context.table("groups")]


def _directions(context: Context) -> list[str]:
    """Return the directions of the ops of the capture."""
    groups = (
        context.capture.at(context.state.at).frame("group_nodes").select(pl.col("direction").cast(pl.String).unique())
    )
    return [direction for direction in groups.collect()["direction"].to_list() if direction]


def _url(context: Context, metric: str, direction: str) -> str:
    """Return the URL of the page for a metric and a direction."""
    return context.state.url(metric=metric, **({"direction": direction} if direction else {}))
