"""Draw bar charts of GPU utilization, iterations, idle causes, ops, kernels, API calls and memory copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.plots.charts import Chart, ChartTrace
from tracekit.plots.labels import (
    choose_byte_unit,
    choose_time_unit,
    format_bytes,
    format_hover_name,
    format_integer,
    format_kernel_label,
    format_nanoseconds,
    format_short_label,
)
from tracekit.plots.peaks import Peak, choose_highest_duration, mark_peaks
from tracekit.plots.theme import (
    COLORS,
    FEW,
    GRAPH_COLOR,
    LONGEST_COLOR,
    OUTSIDE_COLOR,
    PART_COLORS,
    PART_NAMES,
    create_chart,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


_HOVER = "%{customdata}<extra></extra>"
_ROW_PIXELS = 30
_KERNEL_KINDS = {
    "tensor_core": ("Tensor Core kernels", PART_COLORS["tensor_core"]),
    "other_kernel": ("Other kernels", PART_COLORS["other_kernel"]),
    "graph": ("CUDA graphs", GRAPH_COLOR),
    "memory": ("Memory copies and sets", PART_COLORS["memory"]),
}
CAUSE_COLORS = {
    "cpu_work": "#C06C9A",
    "launch_code": "#2F95D2",
    "launch_calls": "#0072B2",
    "synchronization": "#D55E00",
    "blocking_copy": "#7B5EA7",
    "allocation": "#978A1E",
    "host_allocation": "#4C7A34",
    "code_loading": "#C48200",
    "launch_latency": "#009E73",
    "unknown": "#8A909A",
}
"""Colors of the idle parts of the ledger."""


def draw_gpu_utilization(devices: pl.DataFrame, *, dark: bool = False) -> Chart:
    """Draw the utilization of each GPU as a horizontal bar.

    Args:
        devices: One row per GPU, with the columns ``device_id``, ``name``, ``busy_ns``, ``total_ns`` and ``percent``.
        dark: Whether to use the dark template.
    """
    rows = devices.rows(named=True)
    hover = [
        f"GPU {r['device_id']}: {format_hover_name(r['name'])}<br>{r['percent']:.3f}%<br>"
        f"kernels ran for {format_nanoseconds(r['busy_ns'])}<br>of {format_nanoseconds(r['total_ns'])}"
        for r in rows
    ]
    bars = ChartTrace(
        "bar",
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
    drawn = create_chart([bars], dark=dark, title="GPU utilization", x_title="Time with kernels (%)", height=height)
    drawn.update_y_axes(type="category", autorange="reversed")
    return drawn.update_x_axes(range=[0, 100])


def draw_time_breakdown(parts: pl.DataFrame, *, dark: bool = False) -> Chart:
    """Draw the time of iterations by part, such as Tensor Core kernels and I/O, as one stacked bar.

    Args:
        parts: One row per part, with the columns ``part``, ``time_ns`` and ``percent``.
        dark: Whether to use the dark template.
    """
    bars = [
        ChartTrace(
            "bar",
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
    drawn = create_chart(bars, dark=dark, title="Time of the iterations", x_title="Share of the time (%)", height=230)
    drawn.update_layout(barmode="stack", legend={"traceorder": "normal", "y": -0.75, "maxheight": 1})
    drawn.update_y_axes(showticklabels=False)
    return drawn.update_x_axes(range=[0, 100])


def draw_kernel_time(kinds: pl.DataFrame, *, dark: bool = False) -> Chart:
    """Draw the total durations of kernels, CUDA graphs and memory operations as horizontal bars.

    Args:
        kinds: One row per kind of activity, with the columns ``kind``, ``time_ns`` and ``count``.
        dark: Whether to use the dark template.
    """
    rows = [r for r in kinds.rows(named=True) if r["kind"] != "graph" or r["count"]]
    total = sum(r["time_ns"] for r in rows)
    factor, unit = choose_time_unit(r["time_ns"] for r in rows)
    hover = [
        f"{_KERNEL_KINDS[r['kind']][0]}<br>{format_nanoseconds(r['time_ns'])}"
        f"<br>{_format_percent(r['time_ns'], total)} of GPU time"
        f"<br>{format_integer(r['count'])} activities"
        for r in rows
    ]
    bars = ChartTrace(
        "bar",
        y=[_KERNEL_KINDS[r["kind"]][0] for r in rows],
        x=[r["time_ns"] / factor for r in rows],
        orientation="h",
        marker_color=[_KERNEL_KINDS[r["kind"]][1] for r in rows],
        text=[_format_percent(r["time_ns"], total) for r in rows],
        textposition="auto",
        customdata=hover,
        hovertemplate=_HOVER,
    )
    drawn = create_chart([bars], dark=dark, title="GPU time by kind", x_title=f"Sum of durations ({unit})", height=260)
    return drawn.update_y_axes(autorange="reversed", type="category")


def draw_iterations(bins: pl.DataFrame, *, dark: bool = False) -> Chart:
    """Draw the duration of each iteration as a bar that is divided into parts, such as Tensor Core kernels and I/O.

    If there are many iterations, a bar shows the mean of several iterations, and a line connects the shortest and the
    longest of them. Outliers are marked, and the longest of them are named. Bars of iterations that are not aggregated
    are hatched in gray and not divided into parts. The legend states which of them are warm-up. Neither the warm-up nor
    extreme outliers set the scale: they are cut off and named.

    Args:
        bins: One row per bar: ``first`` and ``last`` (first and last iteration that the bar shows), ``duration_ns``,
            ``is_aggregated``, ``is_warm_up``, a column with the time of each part of ``PART_NAMES`` in ns, ``longest``,
            ``longest_ns``, ``longest_name`` and ``longest_is_outlier`` (number, duration and name of the longest
            iteration of the bar, and whether it is an outlier), and the same columns of the ``shortest`` iteration.
        dark: Whether to use the dark template.
    """
    steady = bins.filter(~pl.col("is_warm_up") & ~pl.col("longest_is_outlier"))
    outliers = bins.filter(~pl.col("is_warm_up") & pl.col("longest_is_outlier"))
    highest = choose_highest_duration(
        steady["longest_ns"], outliers["longest_ns"], bins.filter("is_warm_up")["longest_ns"]
    )
    factor, unit = choose_time_unit(bins["longest_ns"] if highest is None else [highest])
    inside, outside = bins.filter("is_aggregated"), bins.filter(~pl.col("is_aggregated"))
    position, width = _compute_bar_centers_and_widths(inside)
    bars = [
        ChartTrace(
            "bar",
            x=position,
            y=[ns / factor for ns in inside[part]],
            width=width,
            name=name,
            marker_color=PART_COLORS[part],
            customdata=_format_iteration_hover_texts(inside, part, name),
            hovertemplate=_HOVER,
        )
        for part, name in PART_NAMES.items()
    ]
    bars += [
        _draw_iterations_outside(rows, name, pattern, factor)
        for name, pattern, rows in (
            ("Warm-up, not aggregated", "x", outside.filter("is_warm_up")),
            ("Not aggregated", "/", outside.filter(~pl.col("is_warm_up"))),
        )
        if rows.height
    ]
    if (bins["first"] < bins["last"]).any():
        bars.append(_draw_ranges_of_durations(bins, factor))
    bars += _draw_outliers(bins, factor)
    drawn = create_chart(bars, dark=dark, title="Iterations", x_title="Iteration", y_title=f"Duration ({unit})")
    drawn.update_layout(barmode="stack", legend_traceorder="normal")
    drawn.update_x_axes(tickformat=",d", dtick=1 if bins.height <= FEW else None)
    return mark_peaks(drawn, _find_peaks(bins), highest, factor, dark=dark)


def _draw_iterations_outside(bins: pl.DataFrame, name: str, pattern: str, factor: float) -> ChartTrace:
    """Return hatched gray bars of iterations that are not aggregated.

    Args:
        bins: The rows of these iterations, as for ``draw_iterations``.
        name: Text of the legend, which says why the iterations are not aggregated.
        pattern: Shape of the hatching.
        factor: Number of ns in the unit of the axis.
    """
    position, width = _compute_bar_centers_and_widths(bins)
    return ChartTrace(
        "bar",
        x=position,
        y=[ns / factor for ns in bins["duration_ns"]],
        width=width,
        name=name,
        marker={"color": OUTSIDE_COLOR, "pattern": {"shape": pattern, "size": 6}},
        customdata=_format_iteration_hover_texts(bins, "duration_ns", name),
        hovertemplate=_HOVER,
    )


def _draw_ranges_of_durations(bins: pl.DataFrame, factor: float) -> ChartTrace:
    """Return a line from the shortest to the longest iteration of each bar."""
    x, y, hover = [], [], []
    extremes = zip(_compute_bar_centers_and_widths(bins)[0], bins.iter_rows(named=True), strict=True)
    for position, row in extremes:
        text = f"{_format_extreme(row, 'longest')}<br>{_format_extreme(row, 'shortest')}"
        x += [position, position, None]
        y += [row["shortest_ns"] / factor, row["longest_ns"] / factor, None]
        hover += [text, text, ""]
    return ChartTrace(
        "scatter",
        x=x,
        y=y,
        mode="lines",
        name="Shortest to longest iteration of the bar",
        line={"color": LONGEST_COLOR, "width": 1},
        customdata=hover,
        hovertemplate=_HOVER,
    )


def _draw_outliers(bins: pl.DataFrame, factor: float) -> list[ChartTrace]:
    """Return markers at the longest and at the shortest iteration of each bar that are outliers, if there are any."""
    positions = _compute_bar_centers_and_widths(bins)[0]
    points = [
        (position, row[f"{kind}_ns"], _format_extreme(row, kind))
        for kind in ("longest", "shortest")
        for position, row in zip(positions, bins.iter_rows(named=True), strict=True)
        if row[f"{kind}_is_outlier"] and (kind == "longest" or row["shortest"] != row["longest"])
    ]
    count = int(bins["outlier_count"].sum())
    outliers = ChartTrace(
        "scatter",
        x=[position for position, _, _ in points],
        y=[ns / factor for _, ns, _ in points],
        mode="markers",
        name=f"Outliers: {count:,}",
        marker={"symbol": "diamond", "size": 6, "color": LONGEST_COLOR},
        customdata=[text for _, _, text in points],
        hovertemplate=_HOVER,
    )
    return [outliers] if points else []


def _find_peaks(bins: pl.DataFrame) -> list[Peak]:
    """Return the longest iteration of each bar."""
    return [
        Peak(
            position,
            row["longest_ns"],
            "warm-up" if row["is_warm_up"] else _name_iteration(row["longest"], row["longest_name"]),
            row["longest_is_outlier"],
            _format_extreme(row, "longest"),
        )
        for position, row in zip(_compute_bar_centers_and_widths(bins)[0], bins.iter_rows(named=True), strict=True)
    ]


def _name_iteration(number: int, name: str | None) -> str:
    return format_short_label(name) if name and len(name) <= _SHORT_NAME else f"iteration {number:,}"


_SHORT_NAME = 16


def _format_extreme(row: dict[str, Any], kind: str) -> str:
    """Return the hover text of the longest or shortest iteration of a bar."""
    number, ns, name = row[kind], row[f"{kind}_ns"], row[f"{kind}_name"]
    note = "<br>outlier: far from the median" if row[f"{kind}_is_outlier"] else ""
    if row["first"] < row["last"]:
        who = f"{kind.capitalize()}: {format_hover_name(name or f'iteration {number:,}')}"
    else:
        who = f"Iteration {number:,}" + (f": {format_hover_name(name)}" if name else "")
    return f"{who}<br>{format_nanoseconds(ns)}{note}"


def _compute_bar_centers_and_widths(bins: pl.DataFrame) -> tuple[list[float], list[float]]:
    """Return the centers and the widths of bars on an axis of iteration numbers."""
    ends = list(zip(bins["first"], bins["last"], strict=True))
    return [(a + b) / 2 for a, b in ends], [0.8 * (b - a + 1) for a, b in ends]


def _format_iteration_hover_texts(bins: pl.DataFrame, column: str, part: str) -> list[str]:
    rows = zip(bins["first"], bins["last"], bins[column], bins["duration_ns"], bins["longest_name"], strict=True)
    return [
        f"{_format_iteration_range(first, last, name)}<br>{part}: {format_nanoseconds(time)}, "
        f"{_format_percent(time, duration)}<br>whole: {format_nanoseconds(duration)}"
        for first, last, time, duration, name in rows
    ]


def _format_iteration_range(first: int, last: int, name: str | None) -> str:
    if first < last:
        return f"Iterations {first:,} to {last:,} (means)"
    return f"Iteration {first:,}" + (f": {format_hover_name(name)}" if name else "")


def draw_top_ops(ops: pl.DataFrame, *, dark: bool = False) -> Chart:
    """Draw the GPU time of ops as horizontal bars, or their CPU time if no op ran on a GPU.

    Args:
        ops: Rows of the table ``ops``, in descending order of this time.
        dark: Whether to use the dark template.
    """
    metric = "gpu_time_ns" if ops["gpu_time_ns"].sum() else "cpu_time_ns"
    rows = ops.rows(named=True)
    names = [format_short_label(r["op_id"] + (f" ({r['direction']})" if r["direction"] else "")) for r in rows]
    hover = [
        f"{format_hover_name(r['op_name'])}<br>{format_short_label(r['op_id'])}, "
        f"type {format_short_label(r['op_type'])}"
        f"{', ' + r['direction'] if r['direction'] else ''}<br>GPU time {format_nanoseconds(r['gpu_time_ns'])}"
        f"<br>CPU time {format_nanoseconds(r['cpu_time_ns'])}<br>{format_integer(r['instance_count'])} calls, "
        f"{format_integer(r['kernel_count'])} kernels"
        for r in rows
    ]
    colors = [
        PART_COLORS["tensor_core"] if r["uses_tensor_cores"] and metric == "gpu_time_ns" else COLORS[0] for r in rows
    ]
    kind = "GPU" if metric == "gpu_time_ns" else "CPU"
    return _draw_horizontal_bars(
        names, ops[metric].to_list(), hover, colors, dark=dark, title=f"Ops by {kind} time", x_title=f"{kind} time"
    )


def draw_top_kernels(kernels: pl.DataFrame, *, dark: bool = False) -> Chart:
    """Draw the total GPU time of kernels as horizontal bars.

    Args:
        kernels: One row per kernel name, longest first, with the columns ``name``, ``time_ns``, ``count`` and
            ``percent``.
        dark: Whether to use the dark template.
    """
    return _draw_bars_by_name(kernels, "launches", dark=dark, title="Kernels by GPU time", x_title="GPU time")


def draw_api_calls(calls: pl.DataFrame, *, dark: bool = False) -> Chart:
    """Draw the total time of the calls of API functions as horizontal bars.

    Args:
        calls: One row per function, longest first, with the columns ``name``, ``time_ns``, ``count`` and ``percent``.
        dark: Whether to use the dark template.
    """
    return _draw_bars_by_name(calls, "calls", dark=dark, title="API calls by time", x_title="Time in calls")


def _draw_bars_by_name(rows: pl.DataFrame, count_noun: str, *, dark: bool, title: str, x_title: str) -> Chart:
    names = [format_kernel_label(name) for name in rows["name"]]
    columns = (rows[c] for c in ("name", "time_ns", "count", "percent"))
    hover = [
        f"{format_hover_name(name)}<br>{format_nanoseconds(time)}, {percent:.2f}%"
        f"<br>{format_integer(count)} {count_noun}"
        for name, time, count, percent in zip(*columns, strict=True)
    ]
    colors = [COLORS[0]] * rows.height
    return _draw_horizontal_bars(
        names, rows["time_ns"].to_list(), hover, colors, dark=dark, title=title, x_title=x_title
    )


def _draw_horizontal_bars(
    labels: Sequence[str],
    times: Sequence[int],
    hover_texts: Sequence[str],
    colors: Sequence[str],
    *,
    dark: bool,
    title: str,
    x_title: str,
) -> Chart:
    """Draw one horizontal bar per label, with the first label at the top. Times are in ns."""
    factor, unit = choose_time_unit(times)
    positions = list(range(len(labels)))
    bars = ChartTrace(
        "bar",
        y=positions,
        x=[t / factor for t in times],
        orientation="h",
        marker_color=list(colors),
        customdata=list(hover_texts),
        hovertemplate=_HOVER,
    )
    height = 110 + _ROW_PIXELS * len(labels)
    drawn = create_chart([bars], dark=dark, title=title, x_title=f"{x_title} ({unit})", height=height)
    ticks = {"tickmode": "array", "tickvals": positions, "ticktext": list(labels)}
    return drawn.update_y_axes(autorange="reversed", **ticks)


def draw_memory_copies(kinds: pl.DataFrame, *, dark: bool = False) -> Chart:
    """Draw two bar charts: the bytes and the time of memory sets and of each kind of memory copy.

    Args:
        kinds: One row per kind of operation, with the columns ``name``, ``time_ns``, ``count`` and ``bytes``.
        dark: Whether to use the dark template.
    """
    rows = kinds.rows(named=True)
    names = [format_short_label(r["name"]) for r in rows]
    hover = [
        f"{format_hover_name(r['name'])}<br>{format_bytes(r['bytes'])}<br>{format_nanoseconds(r['time_ns'])}"
        f"<br>{format_integer(r['count'])} operations"
        for r in rows
    ]
    (byte_factor, byte_name), (time_factor, time_name) = (
        choose_byte_unit(kinds["bytes"]),
        choose_time_unit(kinds["time_ns"]),
    )
    charts = (("bytes", byte_factor, "x", COLORS[0]), ("time_ns", time_factor, "x2", COLORS[1]))
    bars = [
        ChartTrace(
            "bar",
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
    drawn = create_chart(bars, dark=dark, title="Memory copies and sets", height=height)
    drawn.update_layout(
        showlegend=False,
        xaxis={"domain": [0, 0.47], "title": {"text": f"Size ({byte_name})"}},
        xaxis2={"domain": [0.53, 1], "title": {"text": f"Time ({time_name})"}, "anchor": "y"},
    )
    return drawn.update_y_axes(autorange="reversed", type="category")


def draw_idle_causes(idle_times: pl.DataFrame, *, dark: bool = False) -> Chart:
    """Draw the idle time of each process as a bar that is divided by what the CPU did.

    Args:
        idle_times: Rows of the rule ``gpu_idle_causes``.
        dark: Whether to use the dark template.
    """
    factor, unit = choose_time_unit(
        idle_times.group_by("Device ID", "PID").agg(pl.col("Total Time (ns)").sum())["Total Time (ns)"]
    )
    order = {name: n for n, name in enumerate(CAUSE_COLORS)}
    bars = []
    for cause in sorted(idle_times["Cause"].unique(), key=lambda c: order[c]):
        rows = idle_times.filter(pl.col("Cause") == cause).rows(named=True)
        hover = [
            f"{_name_gpus(r)}: {cause.replace('_', ' ')}<br>{format_nanoseconds(r['Total Time (ns)'])}, "
            f"{r['Idle (%)']:.1f}% of the idle time<br>{format_integer(r['Gaps'])} gaps"
            + (f"<br>mostly in {format_hover_name(r['Mostly In'])}" if r["Mostly In"] else "")
            for r in rows
        ]
        bar = ChartTrace(
            "bar",
            y=[_name_gpus(r) for r in rows],
            x=[r["Total Time (ns)"] / factor for r in rows],
            orientation="h",
            name=cause.replace("_", " "),
            marker_color=CAUSE_COLORS[cause],
            customdata=hover,
            hovertemplate=_HOVER,
        )
        bars.append(bar)
    devices = idle_times.select("Device ID", "PID").n_unique()
    height = 220 + 2 * _ROW_PIXELS * devices
    drawn = create_chart(
        bars, dark=dark, title="Idle time of the GPUs by cause", x_title=f"Idle time ({unit})", height=height
    )
    drawn.update_layout(barmode="stack", legend_traceorder="normal", legend_y=-0.5)
    return drawn.update_y_axes(type="category", categoryorder="category descending")


def _name_gpus(row: dict[str, Any]) -> str:
    """Return the name of the GPU that a process uses, or of all its GPUs if there are several."""
    return f"GPUs of process {row['PID']}" if row["Device ID"] is None else f"GPU {row['Device ID']}"


def _format_percent(value: int, total: int) -> str:
    return f"{100 * value / total:.2f}%" if total else "0.00%"
