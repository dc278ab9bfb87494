"""Draw bar charts of utilization, iterations and their time, idle causes, ops, kernels, API calls and memory copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.plots.labels import (
    byte_unit,
    format_bytes,
    format_integer,
    format_nanoseconds,
    full_name,
    kernel_label,
    label,
    time_unit,
)
from tracekit.plots.theme import (
    COLORS,
    GRAPH_COLOR,
    OUTSIDE_COLOR,
    PART_COLORS,
    PART_NAMES,
    figure,
    graph_objects,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plotly.graph_objects import Figure

_HOVER = "%{customdata}<extra></extra>"
_ROW_PIXELS = 30
_KERNEL_KINDS = {
    "tensor_core": ("Tensor Core kernels", PART_COLORS["tensor_core"]),
    "other_kernel": ("Other kernels", PART_COLORS["other_kernel"]),
    "graph": ("CUDA graphs", GRAPH_COLOR),
    "memory": ("Memory copies and sets", PART_COLORS["memory"]),
}
CAUSE_COLORS = {
    "launched": "#009E73",
    "module_loading": "#E69F00",
    "synchronization": "#D55E00",
    "memory_management": "#B3A536",
    "api_call": "#0072B2",
    "data_loading": "#CC79A7",
    "os_call": "#7B5EA7",
    "scheduled_out": "#4C7A34",
    "nvtx_range": "#56B4E9",
    "sampled": "#A0522D",
    "other": "#8A8F98",
}
"""Colors of the causes of idle time."""


def gpu_utilization(devices: pl.DataFrame, *, dark: bool = False) -> Figure:
    """Draw the utilization of each GPU.

    Args:
        devices: The columns ``device_id``, ``name``, ``busy_ns``, ``total_ns`` and ``percent``.
        dark: Whether to use the dark template.
    """
    rows = devices.rows(named=True)
    hover = [
        f"GPU {r['device_id']}: {full_name(r['name'])}<br>{r['percent']:.3f}%<br>"
        f"kernels ran for {format_nanoseconds(r['busy_ns'])}<br>of {format_nanoseconds(r['total_ns'])}"
        for r in rows
    ]
    bars = graph_objects().Bar(
        y=[f"GPU {r['device_id']}" for r in rows],
        x=devices["percent"].to_list(),
        orientation="h",
        text=[f"{r['percent']:.2f}%" for r in rows],
        textposition="auto",
        marker_color=COLORS[0],
        customdata=hover,
        hovertemplate=_HOVER,
    )
    height = 110 + _ROW_PIXELS * len(rows)
    drawn = figure([bars], dark=dark, title="GPU utilization", x="Time with kernels (%)", height=height)
    drawn.update_yaxes(type="category", autorange="reversed")
    return drawn.update_xaxes(range=[0, 100])


def time_breakdown(parts: pl.DataFrame, *, dark: bool = False) -> Figure:
    """Draw how the time of iterations is divided into parts, such as Tensor Core kernels and I/O, as one stacked bar.

    Args:
        parts: The columns ``part``, ``time_ns`` and ``percent``.
        dark: Whether to use the dark template.
    """
    bars = [
        graph_objects().Bar(
            y=[""],
            x=[row["percent"]],
            orientation="h",
            name=f"{PART_NAMES[row['part']]} {row['percent']:.2f}%",
            marker_color=PART_COLORS[row["part"]],
            customdata=[f"{PART_NAMES[row['part']]}<br>{row['percent']:.3f}%<br>{format_nanoseconds(row['time_ns'])}"],
            hovertemplate=_HOVER,
        )
        for row in parts.rows(named=True)
    ]
    drawn = figure(bars, dark=dark, title="Time of the iterations", x="Share of the time (%)", height=230)
    drawn.update_layout(barmode="stack", legend={"traceorder": "normal", "y": -0.75, "maxheight": 1})
    drawn.update_yaxes(showticklabels=False)
    return drawn.update_xaxes(range=[0, 100])


def kernel_time(kinds: pl.DataFrame, *, dark: bool = False) -> Figure:
    """Draw the summed durations of kernels, CUDA graphs and memory operations.

    Args:
        kinds: The columns ``kind``, ``time_ns`` and ``count``.
        dark: Whether to use the dark template.
    """
    rows = [r for r in kinds.rows(named=True) if r["kind"] != "graph" or r["count"]]
    total = sum(r["time_ns"] for r in rows)
    factor, unit = time_unit(r["time_ns"] for r in rows)
    hover = [
        f"{_KERNEL_KINDS[r['kind']][0]}<br>{format_nanoseconds(r['time_ns'])}"
        f"<br>{_format_percent(r['time_ns'], total)} of GPU time"
        f"<br>{format_integer(r['count'])} activities"
        for r in rows
    ]
    bars = graph_objects().Bar(
        y=[_KERNEL_KINDS[r["kind"]][0] for r in rows],
        x=[r["time_ns"] / factor for r in rows],
        orientation="h",
        marker_color=[_KERNEL_KINDS[r["kind"]][1] for r in rows],
        text=[_format_percent(r["time_ns"], total) for r in rows],
        textposition="auto",
        customdata=hover,
        hovertemplate=_HOVER,
    )
    drawn = figure([bars], dark=dark, title="GPU time by kind", x=f"Sum of durations ({unit})", height=260)
    return drawn.update_yaxes(autorange="reversed", type="category")


def iterations(bins: pl.DataFrame, columns: Mapping[str, str], *, dark: bool = False) -> Figure:
    """Draw the duration of iterations as stacked bars of parts, such as Tensor Core kernels and I/O.

    Bars of iterations that are not aggregated are hatched in gray and not divided into parts.

    Args:
        bins: One row per bar: ``first`` and ``last`` (numbers of the iterations that the bar shows), ``duration_ns``,
            ``is_aggregated``, and a column with the time of each part in ns.
        columns: Name of the column of ``bins`` for each part, by name of the part.
        dark: Whether to use the dark template.
    """
    factor, unit = time_unit(bins["duration_ns"])
    inside, outside = bins.filter("is_aggregated"), bins.filter(~pl.col("is_aggregated"))
    position, width = _bar_positions(inside)
    bars = [
        graph_objects().Bar(
            x=position,
            y=[ns / factor for ns in inside[column]],
            width=width,
            name=PART_NAMES[part],
            marker_color=PART_COLORS[part],
            customdata=_iteration_hover_texts(inside, column, PART_NAMES[part]),
            hovertemplate=_HOVER,
        )
        for part, column in columns.items()
    ]
    if outside.height:
        position, width = _bar_positions(outside)
        gray = graph_objects().Bar(
            x=position,
            y=[ns / factor for ns in outside["duration_ns"]],
            width=width,
            name="Outside the aggregation",
            marker={"color": OUTSIDE_COLOR, "pattern": {"shape": "/", "size": 6}},
            customdata=_iteration_hover_texts(outside, "duration_ns", "Outside the aggregation"),
            hovertemplate=_HOVER,
        )
        bars.append(gray)
    drawn = figure(bars, dark=dark, title="Iterations", x="Iteration", y=f"Duration ({unit})")
    drawn.update_layout(barmode="stack", legend_traceorder="normal")
    return drawn.update_xaxes(tickformat=",d")


def _bar_positions(bins: pl.DataFrame) -> tuple[list[float], list[float]]:
    """Return the centers and the widths of bars on an axis of iteration numbers."""
    ends = list(zip(bins["first"], bins["last"], strict=True))
    return [(a + b) / 2 for a, b in ends], [0.8 * (b - a + 1) for a, b in ends]


def _iteration_hover_texts(bins: pl.DataFrame, column: str, part: str) -> list[str]:
    rows = zip(bins["first"], bins["last"], bins[column], bins["duration_ns"], strict=True)
    return [
        f"{_iteration_name(first, last)}<br>{part}: {format_nanoseconds(time)}, {_format_percent(time, duration)}"
        f"<br>whole: {format_nanoseconds(duration)}"
        for first, last, time, duration in rows
    ]


def _iteration_name(first: int, last: int) -> str:
    return f"Iteration {first:,}" if first == last else f"Iterations {first:,} to {last:,} (means)"


def top_ops(ops: pl.DataFrame, metric: str, *, dark: bool = False) -> Figure:
    """Draw the ops with the longest time as horizontal bars.

    Args:
        ops: Rows of the table ``ops``, longest first.
        metric: Name of the column with the time in ns.
        dark: Whether to use the dark template.
    """
    rows = ops.rows(named=True)
    names = [label(r["op_id"] + (f" ({r['direction']})" if r["direction"] else "")) for r in rows]
    hover = [
        f"{full_name(r['op_name'])}<br>{label(r['op_id'])}, type {label(r['op_type'])}"
        f"{', ' + r['direction'] if r['direction'] else ''}<br>GPU time {format_nanoseconds(r['gpu_time_ns'])}"
        f"<br>CPU time {format_nanoseconds(r['cpu_time_ns'])}<br>{format_integer(r['instance_count'])} calls, "
        f"{format_integer(r['kernel_count'])} kernels"
        for r in rows
    ]
    colors = [
        PART_COLORS["tensor_core"] if r["uses_tensor_cores"] and metric == "gpu_time_ns" else COLORS[0] for r in rows
    ]
    kind = "GPU" if metric == "gpu_time_ns" else "CPU"
    return _horizontal_bars(
        names, ops[metric].to_list(), hover, colors, dark=dark, title=f"Ops by {kind} time", axis=f"{kind} time"
    )


def top_kernels(kernels: pl.DataFrame, *, dark: bool = False) -> Figure:
    """Draw the kernels with the longest total time as horizontal bars.

    Args:
        kernels: The columns ``name``, ``time_ns``, ``count`` and ``percent``, longest first.
        dark: Whether to use the dark template.
    """
    return _horizontal_bars_by_name(kernels, "launches", dark=dark, title="Kernels by GPU time", axis="GPU time")


def api(calls: pl.DataFrame, *, dark: bool = False) -> Figure:
    """Draw the API functions with the longest total time as horizontal bars.

    Args:
        calls: The columns ``name``, ``time_ns``, ``count`` and ``percent``, longest first.
        dark: Whether to use the dark template.
    """
    return _horizontal_bars_by_name(calls, "calls", dark=dark, title="CUDA API calls by time", axis="Time in calls")


def _horizontal_bars_by_name(rows: pl.DataFrame, what: str, *, dark: bool, title: str, axis: str) -> Figure:
    names = [kernel_label(name) for name in rows["name"]]
    columns = (rows[c] for c in ("name", "time_ns", "count", "percent"))
    hover = [
        f"{full_name(name)}<br>{format_nanoseconds(time)}, {percent:.2f}%<br>{format_integer(count)} {what}"
        for name, time, count, percent in zip(*columns, strict=True)
    ]
    colors = [COLORS[0]] * rows.height
    return _horizontal_bars(names, rows["time_ns"].to_list(), hover, colors, dark=dark, title=title, axis=axis)


def _horizontal_bars(
    labels: Sequence[str],
    times: Sequence[int],
    hover: Sequence[str],
    colors: Sequence[str],
    *,
    dark: bool,
    title: str,
    axis: str,
) -> Figure:
    """Draw one horizontal bar per row, the first row at the top."""
    factor, unit = time_unit(times)
    positions = list(range(len(labels)))
    bars = graph_objects().Bar(
        y=positions,
        x=[t / factor for t in times],
        orientation="h",
        marker_color=list(colors),
        customdata=list(hover),
        hovertemplate=_HOVER,
    )
    height = 110 + _ROW_PIXELS * len(labels)
    drawn = figure([bars], dark=dark, title=title, x=f"{axis} ({unit})", height=height)
    ticks = {"tickmode": "array", "tickvals": positions, "ticktext": list(labels)}
    return drawn.update_yaxes(autorange="reversed", **ticks)


def copies(kinds: pl.DataFrame, *, dark: bool = False) -> Figure:
    """Draw the bytes and, next to them, the time of each kind of memory copy and of memory sets.

    Args:
        kinds: The columns ``name``, ``time_ns``, ``count`` and ``bytes``.
        dark: Whether to use the dark template.
    """
    rows = kinds.rows(named=True)
    names = [label(r["name"]) for r in rows]
    hover = [
        f"{full_name(r['name'])}<br>{format_bytes(r['bytes'])}<br>{format_nanoseconds(r['time_ns'])}"
        f"<br>{format_integer(r['count'])} operations"
        for r in rows
    ]
    (byte_factor, byte_name), (time_factor, time_name) = byte_unit(kinds["bytes"]), time_unit(kinds["time_ns"])
    charts = (("bytes", byte_factor, "x", COLORS[0]), ("time_ns", time_factor, "x2", COLORS[1]))
    bars = [
        graph_objects().Bar(
            y=names,
            x=[r[column] / factor for r in rows],
            orientation="h",
            xaxis=axis,
            yaxis="y",
            marker_color=color,
            customdata=hover,
            hovertemplate=_HOVER,
        )
        for column, factor, axis, color in charts
    ]
    height = 130 + 2 * _ROW_PIXELS * len(names)
    drawn = figure(bars, dark=dark, title="Memory copies and sets", height=height)
    drawn.update_layout(
        showlegend=False,
        xaxis={"domain": [0, 0.47], "title": {"text": f"Size ({byte_name})"}},
        xaxis2={"domain": [0.53, 1], "title": {"text": f"Time ({time_name})"}, "anchor": "y"},
    )
    return drawn.update_yaxes(autorange="reversed", type="category")


def idle_causes(causes: pl.DataFrame, *, dark: bool = False) -> Figure:
    """Draw the idle time of each GPU by cause.

    Args:
        causes: Rows of the rule ``gpu_idle_causes``.
        dark: Whether to use the dark template.
    """
    factor, unit = time_unit(causes.group_by("Device ID").agg(pl.col("Total Time (ns)").sum())["Total Time (ns)"])
    order = {name: n for n, name in enumerate(CAUSE_COLORS)}
    bars = []
    for cause in sorted(causes["Cause"].unique(), key=lambda c: order[c]):
        rows = causes.filter(pl.col("Cause") == cause).rows(named=True)
        hover = [
            f"GPU {r['Device ID']}: {cause.replace('_', ' ')}<br>{format_nanoseconds(r['Total Time (ns)'])}, "
            f"{r['Idle (%)']:.1f}% of the idle time<br>{format_integer(r['Gaps'])} gaps"
            + (f"<br>mostly in {full_name(r['Mostly In'])}" if r["Mostly In"] else "")
            for r in rows
        ]
        bar = graph_objects().Bar(
            y=[f"GPU {r['Device ID']}" for r in rows],
            x=[r["Total Time (ns)"] / factor for r in rows],
            orientation="h",
            name=cause.replace("_", " "),
            marker_color=CAUSE_COLORS[cause],
            customdata=hover,
            hovertemplate=_HOVER,
        )
        bars.append(bar)
    devices = causes["Device ID"].n_unique()
    height = 220 + 2 * _ROW_PIXELS * devices
    drawn = figure(bars, dark=dark, title="Idle time of the GPUs by cause", x=f"Idle time ({unit})", height=height)
    drawn.update_layout(barmode="stack", legend_traceorder="normal", legend_y=-0.5)
    return drawn.update_yaxes(type="category", categoryorder="category descending")


def _format_percent(value: int, total: int) -> str:
    return f"{100 * value / total:.2f}%" if total else "0.00%"
