"""Draw icicle charts of the trees of groups, NVTX ranges and call stacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.plots.charts import Chart, ChartTrace
from tracekit.plots.labels import format_hover_name, format_integer, format_nanoseconds, format_short_label
from tracekit.plots.theme import (
    COLORS,
    DIRECTION_COLORS,
    choose_text_color,
    convert_to_dark_colors,
    create_chart,
)

if TYPE_CHECKING:
    import polars as pl

METRIC_NAMES = {
    "gpu_time_ns": "GPU time",
    "cpu_time_ns": "CPU time",
    "api_time_ns": "API time",
    "cpu_overhead_ns": "CPU overhead",
    "gpu_idle_ns": "GPU idle time",
    "duration_ns": "duration",
}
"""Names of metrics for titles and hover texts, by column name."""

_DIRECTIONS = {"fprop": "forward (fprop)", "bprop": "backward (bprop)"}
_LABEL_LENGTH = 60
_LEVELS = 16
_LEVEL_PIXELS, _HIGHEST = 60, 460
_PATH_LENGTH = 300


def draw_group_tree(nodes: pl.DataFrame, *, dark: bool = False) -> Chart:
    """Draw the tree of groups and ops as an icicle chart, colored by direction (forward or backward).

    Args:
        nodes: One row per node: ``node`` (id), ``parent`` (id, null for a root), ``path``, ``name``, ``direction``,
            ``op_id``, ``count`` (number of calls), ``value``, ``own`` (width that the children do not fill), and
            ``metric`` (what the widths are: a key of ``METRIC_NAMES``).
        dark: Whether to use the dark template.
    """
    names = [op or name or "All ops" for op, name in zip(nodes["op_id"], nodes["name"], strict=True)]
    colors = [DIRECTION_COLORS[d] for d in nodes["direction"]]
    drawn = _draw_metric_icicle(nodes, names, colors, "calls", dark=dark, title="Groups")
    known = [d for d in DIRECTION_COLORS if d and d in nodes["direction"]]
    shown = {d: convert_to_dark_colors(DIRECTION_COLORS[d]) if dark else DIRECTION_COLORS[d] for d in known}
    legend = [f'<span style="color:{shown[d]}">■</span> {_DIRECTIONS[d]}' for d in known]
    entries = [(shown[d], _DIRECTIONS[d]) for d in known]
    return drawn.update_layout(title_subtitle_text="   ".join(legend), meta={"legend": entries})


def draw_nvtx_tree(nodes: pl.DataFrame, *, dark: bool = False) -> Chart:
    """Draw the tree of NVTX range paths as an icicle chart, colored by level.

    Args:
        nodes: One row per node: ``node`` (id), ``parent`` (id, null for a root), ``path``, ``name``, ``direction``
            (null), ``count`` (number of ranges), ``value``, ``own`` (width that the children do not fill), and
            ``metric`` (what the widths are: a key of ``METRIC_NAMES``).
        dark: Whether to use the dark template.
    """
    names = [name or "All ranges" for name in nodes["name"]]
    levels = _compute_node_levels(nodes)
    colors = [DIRECTION_COLORS[None] if not levels[n] else COLORS[levels[n] % 6] for n in nodes["node"]]
    return _draw_metric_icicle(nodes, names, colors, "ranges", dark=dark, title="NVTX ranges")


def draw_call_stacks(nodes: pl.DataFrame, *, dark: bool = False) -> Chart:
    """Draw the tree of call stacks as an icicle chart, colored by module.

    Args:
        nodes: One row per node: ``node`` (id), ``parent`` (id, null for the root), ``name``, ``module``, ``value``
            (weight with callees), ``count`` (weight of the stacks that end at the node), ``own`` (width that the
            children do not fill), and ``weight`` (what the widths are: ``samples`` or ``time`` in ns).
        dark: Whether to use the dark template.
    """
    names = ["All stacks", *(name or "unknown" for name in nodes["name"][1:])]
    modules = list(dict.fromkeys(module for module in nodes["module"] if module))
    colors = {module: COLORS[n % len(COLORS)] for n, module in enumerate(modules)}
    total, weight = nodes["value"][0], nodes["weight"][0]
    amount = format_nanoseconds if weight == "time" else format_integer
    rows = zip(names, nodes["module"], nodes["value"], nodes["count"], strict=True)
    hover = [
        f"{format_hover_name(name[:_PATH_LENGTH])}{f'<br>{format_short_label(module)}' if module else ''}<br>"
        f"{100 * value / total:.2f}%, {amount(value)}{'' if weight == 'time' else ' samples'}<br>"
        f"{amount(own)} in the function itself"
        for name, module, value, own in rows
    ]
    levels = min(1 + max(_compute_node_levels(nodes).values()), _STACK_LEVELS)
    drawn = _draw_icicle(
        nodes,
        names,
        [colors.get(module or "", DIRECTION_COLORS[None]) for module in nodes["module"]],
        hover,
        dark=dark,
        title="Call stacks by time" if weight == "time" else "Call stacks by number of samples",
        height=80 + _STACK_LEVEL_PIXELS * levels,
        levels=levels,
    )
    entries = [(color, format_short_label(module)) for module, color in [*colors.items()][: len(COLORS)]]
    return drawn.update_layout(meta={"legend": entries})


_STACK_LEVELS, _STACK_LEVEL_PIXELS = 40, 22


def _draw_metric_icicle(
    nodes: pl.DataFrame,
    names: list[str],
    colors: list[str],
    count_noun: str,
    *,
    dark: bool,
    title: str,
) -> Chart:
    rows = zip(nodes["path"], nodes["direction"], nodes["value"], nodes["count"], strict=True)
    total, metric = max(nodes["value"].to_list(), default=0), nodes["metric"][0]
    hover = [
        f"{format_hover_name(path[:_PATH_LENGTH] or 'all')}{f'<br>{direction}' if direction else ''}<br>"
        f"{METRIC_NAMES[metric]} {format_nanoseconds(value)}, {100 * value / total if total else 0:.2f}%<br>"
        f"{format_integer(count)} {count_noun}"
        for path, direction, value, count in rows
    ]
    height = min(_HIGHEST, 80 + _LEVEL_PIXELS * (1 + max(_compute_node_levels(nodes).values(), default=0)))
    title = f"{title} by {METRIC_NAMES[metric]}"
    return _draw_icicle(nodes, names, colors, hover, dark=dark, title=title, height=height, levels=_LEVELS)


def _draw_icicle(
    nodes: pl.DataFrame,
    names: list[str],
    colors: list[str],
    hover_texts: list[str],
    *,
    dark: bool,
    title: str,
    height: int,
    levels: int,
) -> Chart:
    """Draw an icicle chart that shows ``levels`` levels of a tree at once.

    Args:
        nodes: The columns ``node``, ``parent`` and ``own``.
        names: Name of each node.
        colors: Color of each node.
        hover_texts: Hover text of each node.
        dark: Whether to use the dark template.
        title: Title of the figure.
        height: Height of the figure in pixels.
        levels: Maximum number of levels that are shown at once.
    """
    icicle = ChartTrace(
        "icicle",
        ids=[str(n) for n in nodes["node"]],
        parents=["" if p is None else str(p) for p in nodes["parent"]],
        labels=[format_short_label(n, _LABEL_LENGTH) for n in names],
        values=nodes["own"].to_list(),
        branchvalues="remainder",
        maxdepth=levels,
        sort=True,
        customdata=hover_texts,
        hovertemplate="%{customdata}<extra></extra>",
        marker={"colors": colors, "line": {"width": 1}},
        leaf={"opacity": 1},
        textfont={"color": [choose_text_color(convert_to_dark_colors(c) if dark else c) for c in colors]},
        tiling={"orientation": "v"},
        textinfo="label",
        pathbar={"thickness": 22},
    )
    return create_chart([icicle], dark=dark, title=title, height=height)


def _compute_node_levels(nodes: pl.DataFrame) -> dict[int, int]:
    """Return the level of each node, by node id. The level of a root is 0. Parents must precede their children."""
    levels: dict[int, int] = {}
    for node, parent in zip(nodes["node"], nodes["parent"], strict=True):
        levels[node] = 0 if parent is None else levels[parent] + 1
    return levels
