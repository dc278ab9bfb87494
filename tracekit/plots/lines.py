"""Draw line charts of utilization, memory in use and GPU metrics over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from tracekit.plots.charts import Chart, ChartTrace
from tracekit.plots.labels import (
    choose_byte_unit,
    choose_time_unit,
    format_bytes,
    format_hover_name,
    format_integer,
    format_nanoseconds,
    format_short_label,
    format_short_size,
)
from tracekit.plots.theme import COLORS, create_chart, draw_band, order_bands_first

if TYPE_CHECKING:
    from collections.abc import Callable


_LIMITERS = {
    "memory-limited": COLORS[1],
    "math-limited": COLORS[2],
    "SM-limited": COLORS[2],
    "math- and memory-limited": COLORS[6],
    "SM- and memory-limited": COLORS[6],
    "latency-limited": COLORS[0],
}
_LIMITS = {"compute": COLORS[2], "memory": COLORS[1], "latency": COLORS[0], "launch": COLORS[3]}
_HOVER = "%{customdata}<extra></extra>"


def draw_roofline(rows: pl.DataFrame, *, dark: bool = False) -> Chart:
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
        points = ChartTrace(
            "scatter",
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
    drawn = create_chart(traces, dark=dark, title="Roofline", x_title=x, y_title=y)
    drawn.update_layout(legend_y=-0.25, showlegend=True)
    return drawn.update_x_axes(type="log").update_y_axes(type="log")


def draw_op_roofline(rows: pl.DataFrame, *, dark: bool = False) -> Chart:
    """Draw the FLOP/s of ops over their FLOP per byte, together with the peak rates of their types.

    Args:
        rows: Rows of the report ``op_roofline`` with positive coordinates, which logarithmic axes require.
        dark: Whether to use the dark template.
    """
    traces = []
    peaks = rows.group_by("Type").agg(pl.col("Peak TFLOP/s", "Peak GB/s").max()).drop_nulls().sort("Peak TFLOP/s")
    for type_, math, memory in peaks.iter_rows():
        ridge = 1000 * math / memory
        low, high = min(_get_extreme(rows, "min") / 2, ridge / 10), max(_get_extreme(rows, "max") * 2, ridge * 10)
        hover = [f"{memory:,.0f} GB/s", f"{type_}: {math:,.1f} TFLOP/s from {ridge:,.1f} FLOP/byte on", f"{type_}"]
        traces.append(
            ChartTrace(
                "scatter",
                x=[low, ridge, high],
                y=[low * memory / 1000, math, math],
                mode="lines",
                name=f"Peak of {type_}",
                line={"color": COLORS[8], "width": 2},
                customdata=hover,
                hovertemplate=_HOVER,
            )
        )
    longest = max(rows["GPU Time (ns)"].to_list(), default=0) or 1
    for limit in rows["Limited By"].unique(maintain_order=True).to_list():
        chosen = rows.filter(pl.col("Limited By").eq_missing(pl.lit(limit, pl.String))).rows(named=True)
        hover = [
            f"{format_hover_name(r['Op'])}<br>{format_hover_name(r['Shapes'])}"
            f"<br>{r['TFLOP/s']:,.3f} TFLOP/s at {r['FLOP/Byte']:,.3f} FLOP/byte"
            f"<br>{format_integer(r['Instances'])} calls, {format_nanoseconds(r['GPU Time (ns)'])}"
            for r in chosen
        ]
        points = ChartTrace(
            "scatter",
            x=[r["FLOP/Byte"] for r in chosen],
            y=[r["TFLOP/s"] for r in chosen],
            mode="markers",
            name="Unknown" if limit is None else f"Limited by {limit}",
            marker={
                "color": _LIMITS.get(limit or "", COLORS[7]),
                "size": [8 + 22 * (r["GPU Time (ns)"] / longest) ** 0.5 for r in chosen],
                "opacity": 0.85,
                "line": {"width": 1},
            },
            customdata=hover,
            hovertemplate=_HOVER,
        )
        traces.append(points)
    x, y = "Arithmetic intensity (FLOP per byte)", "Performance (TFLOP/s)"
    drawn = create_chart(traces, dark=dark, title="Roofline of ops", x_title=x, y_title=y)
    drawn.update_layout(legend_y=-0.25, showlegend=True)
    return drawn.update_x_axes(type="log").update_y_axes(type="log")


def _get_extreme(rows: pl.DataFrame, name: Literal["min", "max"]) -> float:
    return float(getattr(rows["FLOP/Byte"], name)())


def _draw_roof_line(rows: pl.DataFrame) -> ChartTrace:
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
    return ChartTrace(
        "scatter",
        x=[low, ridge, high],
        y=[low * memory, math, math],
        mode="lines",
        name="Highest peaks",
        line={"color": COLORS[8], "width": 2},
        customdata=hover,
        hovertemplate="%{customdata}<extra></extra>",
    )


def draw_utilization_over_time(bins: pl.DataFrame, *, dark: bool = False) -> Chart:
    """Draw the utilization of GPUs over time, in percent of each time bin, with one line per GPU.

    A band around the line extends from the lowest to the highest utilization in the parts of each bin.

    Args:
        bins: One row per GPU and time bin, with the columns ``device_id``, ``start_ns``, ``end_ns``, ``busy_ns``,
            ``min_percent`` and ``max_percent``.
        dark: Whether to use the dark template.
    """
    factor, unit = choose_time_unit(bins["end_ns"])
    lines = []
    for nth, rows in enumerate(bins.partition_by("device_id", maintain_order=True)):
        device = rows["device_id"][0]
        columns = list(rows.select("start_ns", "end_ns", "busy_ns", "min_percent", "max_percent").iter_rows())
        hover = [
            f"GPU {device}: {100 * busy / (end - start):.2f}%, from {low:.2f} to {high:.2f}% in parts of this time"
            f"<br>busy for {format_nanoseconds(busy)}<br>from {format_integer(start)} to {format_integer(end)} ns"
            for start, end, busy, low, high in columns
        ]
        x = [start / factor for start, *_ in columns] + [columns[-1][1] / factor]
        percent = [100 * busy / (end - start) for start, end, busy, *_ in columns]
        low, high = (rows[name].append(rows[name].tail(1)) for name in ("min_percent", "max_percent"))
        lines += draw_band(x, low, high, nth, shape="hv")
        line = _draw_line(x, [*percent, None], [*hover, ""], f"GPU {device}", nth)
        line.update(line_shape="hv")
        lines.append(line)
    drawn = create_chart(
        order_bands_first(lines),
        dark=dark,
        title="GPU utilization over time",
        x_title=f"Time since the start of the capture ({unit})",
        y_title="Busy (%)",
    )
    drawn.update_layout(showlegend=bins["device_id"].n_unique() > 1, legend_y=-0.25)
    return drawn.update_y_axes(range=[0, 100])


def _extend_to_last_change(changes: pl.DataFrame, end: Any) -> pl.DataFrame:
    """Return the changes of one kind of memory, which stays in use until the last change of any kind."""
    last = changes.tail(1)
    if last["timestamp_ns"].item() == end:
        return changes
    used = pl.col("used_bytes")
    still = last.with_columns(
        timestamp_ns=pl.lit(end, pl.Int64),
        min_bytes=used,
        max_bytes=used,
        maximum_ns=pl.lit(end, pl.Int64),
        sample_count=pl.lit(1, last["sample_count"].dtype),
    )
    return pl.concat([changes, still.select(changes.columns)])


def draw_memory_usage(changes: pl.DataFrame, *, dark: bool = False) -> Chart:
    """Draw the memory in use over time, with one line per device and kind of memory, and a marker at each peak.

    A band around the line extends from the least to the most memory in use in each bin of time.

    Args:
        changes: One row per change of the memory in use, or per bin of time, in order of time, with the columns
            ``timestamp_ns``, ``device_id``, ``memory_kind``, ``used_bytes``, ``min_bytes``, ``max_bytes``,
            ``maximum_ns`` and ``sample_count``.
        dark: Whether to use the dark template.
    """
    factor, unit = choose_time_unit(changes["timestamp_ns"])
    byte_factor, byte_name = choose_byte_unit(changes["max_bytes"])
    lines: list[ChartTrace] = []
    for nth, own in enumerate(changes.partition_by("device_id", "memory_kind", maintain_order=True)):
        rows = _extend_to_last_change(own, changes["timestamp_ns"].max())
        name = f"GPU {rows['device_id'][0]}: {format_short_label(rows['memory_kind'][0])}"
        hover = [
            f"{name}<br>{format_bytes(used)}<br>at {format_integer(time)} ns"
            + _format_range("changes from here on", count, (low, high), peak, format_bytes)
            for time, used, low, high, peak, count in rows.select(
                "timestamp_ns", "used_bytes", "min_bytes", "max_bytes", "maximum_ns", "sample_count"
            ).iter_rows()
        ]
        x, y, low, high = (
            rows[column] / unit_size
            for column, unit_size in (
                ("timestamp_ns", factor),
                ("used_bytes", byte_factor),
                ("min_bytes", byte_factor),
                ("max_bytes", byte_factor),
            )
        )
        lines += draw_band(x.to_list(), low, high, nth, shape="hv")
        lines.append(_draw_line(x.to_list(), y.to_list(), hover, name, nth).update(line_shape="hv"))
        top = rows.row(rows["max_bytes"].arg_max() or 0, named=True)
        marker = ChartTrace(
            "scatter",
            x=[top["maximum_ns"] / factor],
            y=[top["max_bytes"] / byte_factor],
            mode="markers+text",
            text=[f"peak {format_short_size(top['max_bytes'])}"],
            textposition="top center",
            name=f"Peak of {name}",
            showlegend=False,
            marker={"symbol": "diamond", "size": 9, "color": COLORS[nth % len(COLORS)]},
            customdata=[
                f"peak of {name}<br>{format_bytes(top['max_bytes'])}<br>at {format_integer(top['maximum_ns'])} ns"
            ],
            hovertemplate=_HOVER,
        )
        lines.append(marker)
    drawn = create_chart(
        order_bands_first(lines),
        dark=dark,
        title="Memory in use",
        x_title=f"Time since the start of the capture ({unit})",
        y_title=f"In use ({byte_name})",
    )
    drawn.update_layout(showlegend=True, legend_y=-0.25)
    return drawn.update_y_axes(rangemode="tozero")


def draw_queue_lengths(lengths: pl.DataFrame, *, dark: bool = False) -> Chart:
    """Draw the length of the queues of streams over time, with one line per stream.

    Args:
        lengths: Rows of the figure ``queue_length``.
        dark: Whether to use the dark template.
    """
    factor, unit = choose_time_unit(lengths["timestamp_ns"])
    several = lengths["process_id"].n_unique() > 1
    lines: list[ChartTrace] = []
    by = ("process_id", "device_id", "context_id", "stream_id")
    for nth, (queue, rows) in enumerate(lengths.partition_by(by, maintain_order=True, as_dict=True).items()):
        process, device, context, stream = queue
        name = f"GPU {device}, stream {stream}" + (f", process {process}" if several else "")
        columns = rows.select("timestamp_ns", "length", "min_length", "max_length", "maximum_ns", "sample_count")
        hover = [
            f"{name}, context {context}<br>{format_integer(length)} operations wait<br>since {format_integer(time)} ns"
            + _format_range("changes from here on", count, (low, high), peak, format_integer)
            for time, length, low, high, peak, count in columns.iter_rows()
        ]
        x = (rows["timestamp_ns"] / factor).to_list()
        lines += draw_band(x, rows["min_length"], rows["max_length"], nth, shape="hv")
        lines.append(_draw_line(x, rows["length"].to_list(), hover, name, nth).update(line_shape="hv"))
    x_title = f"Time since the start of the capture ({unit})"
    title, y_title = "Queue of each stream", "Operations that have not started"
    drawn = create_chart(order_bands_first(lines), dark=dark, title=title, x_title=x_title, y_title=y_title)
    drawn.update_layout(showlegend=True, legend_y=-0.25)
    return drawn.update_y_axes(rangemode="tozero")


def draw_gpu_metrics(samples: pl.DataFrame, *, dark: bool = False) -> Chart:
    """Draw GPU metrics over time, with one line per GPU and metric.

    Args:
        samples: One row per sample of a metric, or per bin of time, in order of time, with the columns
            ``timestamp_ns``, ``device_id``, ``metric``, ``value``, ``min_value``, ``max_value``, ``maximum_ns`` and
            ``sample_count``. A band extends from the lowest to the highest value of each bin.
        dark: Whether to use the dark template.
    """
    factor, unit = choose_time_unit(samples["timestamp_ns"])
    lines = []
    several = samples["device_id"].n_unique() > 1
    for nth, rows in enumerate(samples.partition_by("device_id", "metric", maintain_order=True)):
        device, metric = rows["device_id"][0], rows["metric"][0]
        name = f"GPU {device}: {format_short_label(metric)}" if several else format_short_label(metric)
        hover = [
            f"GPU {device}: {format_hover_name(metric)}<br>{format_integer(value)}<br>at {format_integer(time)} ns"
            + _format_range("samples, of which this is the median", count, (low, high), peak, format_integer)
            for time, value, low, high, peak, count in rows.select(
                "timestamp_ns", "value", "min_value", "max_value", "maximum_ns", "sample_count"
            ).iter_rows()
        ]
        x = (rows["timestamp_ns"] / factor).to_list()
        lines += draw_band(x, rows["min_value"], rows["max_value"], nth)
        lines.append(_draw_line(x, rows["value"].to_list(), hover, name, nth))
    percent = all((name or "").endswith("%]") for name in samples["metric"].unique())
    y = "Share of the peak (%)" if percent else "Value (unit in brackets)"
    drawn = create_chart(
        order_bands_first(lines),
        dark=dark,
        title="GPU metrics",
        x_title=f"Time since the start of the capture ({unit})",
        y_title=y,
    )
    drawn.update_layout(showlegend=True, legend_y=-0.25)
    return drawn.update_y_axes(rangemode="tozero")


def _format_range(
    noun: str, count: int, extremes: tuple[Any, Any], highest_ns: int, format_value: Callable[[Any], str]
) -> str:
    """Return the lines of a hover text that describe the values in a bin, or an empty string if there is one value."""
    if count == 1:
        return ""
    return (
        f"<br>{count:,} {noun}: {' to '.join(map(format_value, extremes))}"
        f"<br>the highest at {format_integer(highest_ns)} ns"
    )


def _draw_line(
    x_values: list[float], y_values: list[Any], hover_texts: list[str], name: str, style_index: int
) -> ChartTrace:
    color = COLORS[style_index % len(COLORS)]
    dash = ("solid", "dash", "dot", "dashdot")[style_index // len(COLORS) % 4]
    return ChartTrace(
        "scatter",
        x=x_values,
        y=y_values,
        mode="lines",
        name=name,
        line={"color": color, "width": 1.5, "dash": dash},
        customdata=hover_texts,
        hovertemplate=_HOVER,
    )
