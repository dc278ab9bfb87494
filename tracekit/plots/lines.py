"""Draw line charts of utilization, memory in use and GPU metrics over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.plots.labels import (
    choose_byte_unit,
    choose_time_unit,
    format_bytes,
    format_hover_name,
    format_integer,
    format_nanoseconds,
    format_short_label,
)
from tracekit.plots.theme import COLORS, create_figure, import_graph_objects

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_LIMITERS = {
    "memory-limited": COLORS[1],
    "math-limited": COLORS[2],
    "SM-limited": COLORS[2],
    "math- and memory-limited": COLORS[6],
    "SM- and memory-limited": COLORS[6],
    "latency-limited": COLORS[0],
}
_HOVER = "%{customdata}<extra></extra>"


def draw_roofline(rows: pl.DataFrame, *, dark: bool = False) -> Figure:
    """Draw the FLOP/s of kernels over their FLOP per byte of DRAM traffic, together with the highest roofline.

    Args:
        rows: Rows of the report ``ncu_roofline`` with positive coordinates, which logarithmic axes require.
        dark: Whether to use the dark template.
    """
    traces = [_draw_roof_line(rows)] if rows["Peak GFLOP/s"].max() and rows["Peak GB/s"].max() else []
    longest = max(rows["Time (ns)"].fill_null(0).to_list(), default=0) or 1
    for kind in rows["Limiter"].unique(maintain_order=True).to_list():
        chosen = rows.filter(pl.col("Limiter").eq_missing(pl.lit(kind, pl.String))).rows(named=True)
        hover = [
            f"{format_hover_name(r['Name'])}<br>{r['GFLOP/s']:,.3f} GFLOP/s at {r['FLOP/Byte']:,.3f} FLOP/byte"
            f"<br>{format_integer(r['Launches'])} launches, {format_nanoseconds(r['Time (ns)'] or 0)}"
            for r in chosen
        ]
        points = import_graph_objects().Scatter(
            x=[r["FLOP/Byte"] for r in chosen],
            y=[r["GFLOP/s"] for r in chosen],
            mode="markers",
            name=format_short_label(kind),
            marker={
                "color": _LIMITERS.get(kind or "", COLORS[8]),
                "size": [8 + 22 * ((r["Time (ns)"] or 0) / longest) ** 0.5 for r in chosen],
                "opacity": 0.85,
                "line": {"width": 1},
            },
            customdata=hover,
            hovertemplate="%{customdata}<extra></extra>",
        )
        traces.append(points)
    x, y = "Arithmetic intensity (FLOP per byte of DRAM traffic)", "Performance (GFLOP/s)"
    drawn = create_figure(traces, dark=dark, title="Roofline", x_title=x, y_title=y)
    drawn.update_layout(legend_y=-0.25, showlegend=True)
    return drawn.update_xaxes(type="log").update_yaxes(type="log")


def _draw_roof_line(rows: pl.DataFrame) -> Any:
    """Return the plotly trace of the highest roofline of the kernels.

    Left of the ridge point, the bandwidth of DRAM limits the FLOP/s. Right of this point, the peak FLOP/s is the limit.
    """
    math, memory = float(rows["Peak GFLOP/s"].max()), float(rows["Peak GB/s"].max())  # type: ignore[arg-type]
    ridge = math / memory
    low = min(float(rows["FLOP/Byte"].min()) / 2, ridge / 10)  # type: ignore[arg-type]
    high = max(float(rows["FLOP/Byte"].max()) * 2, ridge * 10)  # type: ignore[arg-type]
    hover = [
        f"DRAM: {memory:,.3f} GB/s",
        f"ridge point: {ridge:,.3f} FLOP/byte<br>{math:,.3f} GFLOP/s, {memory:,.3f} GB/s",
        f"{math:,.3f} GFLOP/s",
    ]
    return import_graph_objects().Scatter(
        x=[low, ridge, high],
        y=[low * memory, math, math],
        mode="lines",
        name="Highest peaks",
        line={"color": COLORS[8], "width": 2},
        customdata=hover,
        hovertemplate="%{customdata}<extra></extra>",
    )


def draw_utilization_over_time(bins: pl.DataFrame, *, dark: bool = False) -> Figure:
    """Draw the utilization of GPUs over time, in percent of each time bin, with one line per GPU.

    Args:
        bins: One row per GPU and time bin, with the columns ``device_id``, ``start_ns``, ``end_ns`` and ``busy_ns``.
        dark: Whether to use the dark template.
    """
    factor, unit = choose_time_unit(bins["end_ns"])
    lines = []
    for nth, rows in enumerate(bins.partition_by("device_id", maintain_order=True)):
        device = rows["device_id"][0]
        columns = list(zip(rows["start_ns"], rows["end_ns"], rows["busy_ns"], strict=True))
        hover = [
            f"GPU {device}: {100 * busy / (end - start):.2f}%<br>busy for {format_nanoseconds(busy)}"
            f"<br>from {format_integer(start)} to {format_integer(end)} ns"
            for start, end, busy in columns
        ]
        line = _draw_line(
            [start / factor for start, _, _ in columns] + [columns[-1][1] / factor],
            [100 * busy / (end - start) for start, end, busy in columns] + [None],
            [*hover, ""],
            f"GPU {device}",
            nth,
        )
        line.update(line_shape="hv", fill="tozeroy" if bins["device_id"].n_unique() == 1 else None)
        lines.append(line)
    drawn = create_figure(
        lines,
        dark=dark,
        title="GPU utilization over time",
        x_title=f"Time since the start of the capture ({unit})",
        y_title="Busy (%)",
    )
    drawn.update_layout(showlegend=len(lines) > 1, legend_y=-0.25)
    return drawn.update_yaxes(range=[0, 100])


def draw_memory_usage(changes: pl.DataFrame, *, dark: bool = False) -> Figure:
    """Draw the memory in use over time, with one line per device and kind of memory, and a marker at each peak.

    Args:
        changes: One row per change of the memory in use, in order of time, with the columns ``timestamp_ns``,
            ``device_id``, ``memory_kind`` and ``used_bytes``.
        dark: Whether to use the dark template.
    """
    factor, unit = choose_time_unit(changes["timestamp_ns"])
    byte_factor, byte_name = choose_byte_unit(changes["used_bytes"])
    lines = []
    for nth, rows in enumerate(changes.partition_by("device_id", "memory_kind", maintain_order=True)):
        name = f"GPU {rows['device_id'][0]}: {format_short_label(rows['memory_kind'][0])}"
        points = list(zip(rows["timestamp_ns"], rows["used_bytes"], strict=True))
        hover = [f"{name}<br>{format_bytes(used)}<br>at {format_integer(time)} ns" for time, used in points]
        line = _draw_line([t / factor for t, _ in points], [used / byte_factor for _, used in points], hover, name, nth)
        top = rows["used_bytes"].arg_max() or 0
        time, used = points[top]
        marker = import_graph_objects().Scatter(
            x=[time / factor],
            y=[used / byte_factor],
            mode="markers+text",
            text=[f"peak {used / byte_factor:,.2f} {byte_name}"],
            textposition="top center",
            name=f"Peak of {name}",
            showlegend=False,
            marker={"symbol": "diamond", "size": 9, "color": COLORS[nth % len(COLORS)]},
            customdata=[f"peak of {hover[top]}"],
            hovertemplate=_HOVER,
        )
        lines += [line.update(line_shape="hv"), marker]
    drawn = create_figure(
        lines,
        dark=dark,
        title="Memory in use",
        x_title=f"Time since the start of the capture ({unit})",
        y_title=f"Allocated ({byte_name})",
    )
    drawn.update_layout(showlegend=True, legend_y=-0.25)
    return drawn.update_yaxes(rangemode="tozero")


def draw_queue_lengths(lengths: pl.DataFrame, *, dark: bool = False) -> Figure:
    """Draw the length of the queues of streams over time, with one line per stream.

    Args:
        lengths: Rows of the figure ``queue_length``.
        dark: Whether to use the dark template.
    """
    factor, unit = choose_time_unit(lengths["timestamp_ns"])
    several = lengths["process_id"].n_unique() > 1
    lines = []
    by = ("process_id", "device_id", "context_id", "stream_id")
    for nth, (queue, rows) in enumerate(lengths.partition_by(by, maintain_order=True, as_dict=True).items()):
        process, device, context, stream = queue
        name = f"GPU {device}, stream {stream}" + (f", process {process}" if several else "")
        points = list(zip(rows["timestamp_ns"], rows["length"], strict=True))
        hover = [
            f"{name}, context {context}<br>{format_integer(length)} operations wait<br>since {format_integer(time)} ns"
            for time, length in points
        ]
        line = _draw_line([t / factor for t, _ in points], [length for _, length in points], hover, name, nth)
        lines.append(line.update(line_shape="hv"))
    x_title = f"Time since the start of the capture ({unit})"
    title, y_title = "Queue of each stream", "Operations that have not started"
    drawn = create_figure(lines, dark=dark, title=title, x_title=x_title, y_title=y_title)
    drawn.update_layout(showlegend=True, legend_y=-0.25)
    return drawn.update_yaxes(rangemode="tozero")


def draw_gpu_metrics(samples: pl.DataFrame, *, dark: bool = False) -> Figure:
    """Draw GPU metrics over time, with one line per GPU and metric.

    Args:
        samples: One row per sample of a metric, in order of time, with the columns ``timestamp_ns``, ``device_id``,
            ``metric`` and ``value``.
        dark: Whether to use the dark template.
    """
    factor, unit = choose_time_unit(samples["timestamp_ns"])
    lines = []
    several = samples["device_id"].n_unique() > 1
    for nth, rows in enumerate(samples.partition_by("device_id", "metric", maintain_order=True)):
        device, metric = rows["device_id"][0], rows["metric"][0]
        name = f"GPU {device}: {format_short_label(metric)}" if several else format_short_label(metric)
        points = list(zip(rows["timestamp_ns"], rows["value"], strict=True))
        hover = [
            f"GPU {device}: {format_hover_name(metric)}<br>{format_integer(value)}<br>at {format_integer(time)} ns"
            for time, value in points
        ]
        lines.append(_draw_line([t / factor for t, _ in points], [v for _, v in points], hover, name, nth))
    percent = all((name or "").endswith("%]") for name in samples["metric"].unique())
    y = "Share of the peak (%)" if percent else "Value (unit in brackets)"
    drawn = create_figure(
        lines, dark=dark, title="GPU metrics", x_title=f"Time since the start of the capture ({unit})", y_title=y
    )
    drawn.update_layout(showlegend=True, legend_y=-0.25)
    return drawn.update_yaxes(rangemode="tozero")


def _draw_line(x_values: list[float], y_values: list[Any], hover_texts: list[str], name: str, style_index: int) -> Any:
    color = COLORS[style_index % len(COLORS)]
    dash = ("solid", "dash", "dot", "dashdot")[style_index // len(COLORS) % 4]
    return import_graph_objects().Scatter(
        x=x_values,
        y=y_values,
        mode="lines",
        name=name,
        line={"color": color, "width": 1.5, "dash": dash},
        customdata=hover_texts,
        hovertemplate=_HOVER,
    )
