"""Draw figures that compare the GPU times, waiting times and iterations of the ranks of a job."""

from __future__ import annotations

from typing import Any

import polars as pl

from tracekit.plots.charts import Chart, ChartTrace
from tracekit.plots.labels import choose_time_unit, format_integer, format_nanoseconds, format_short_label
from tracekit.plots.peaks import Peak, choose_highest_duration, mark_peaks
from tracekit.plots.theme import COLORS, FEW, GRAPH_COLOR, PART_COLORS, create_chart

_HOVER = "%{customdata}<extra></extra>"
_ROW_PIXELS, _MAX_PIXELS, _LABELLED = 26, 1200, 40
_PARTS = {
    "compute_ns": ("Computation", PART_COLORS["tensor_core"]),
    "hidden_ns": ("Computation and communication", GRAPH_COLOR),
    "exposed_ns": ("Exposed communication", PART_COLORS["io"]),
    "memory_ns": ("Memory operations", PART_COLORS["memory"]),
    "idle_ns": ("Idle", PART_COLORS["other"]),
}
_WAITS = {"wait_ns": ("Waiting", PART_COLORS["io"]), "transfer_ns": ("Transfer", PART_COLORS["other_kernel"])}


def draw_gpu_time(rows: pl.DataFrame, *, dark: bool = False) -> Chart:
    """Draw one stacked bar per rank and GPU: the shares of computation, communication, memory operations and idling.

    Args:
        rows: The table ``gpu_time`` of the recipe ``gpu_time_sum``.
        dark: Whether to use the dark template.
    """
    ranks = _format_gpu_labels(rows)
    bars = [_draw_time_bars(rows, ranks, column, *part, total_column="total_ns") for column, part in _PARTS.items()]
    return _draw_stacked_bars(
        bars, ranks, dark=dark, title="Time of the GPUs of each rank", x_title="Share of the time (%)"
    )


def _format_gpu_labels(rows: pl.DataFrame) -> list[str]:
    """Return a label for each row, with the GPU and, if there are several ranks, the rank."""
    names = rows.select(
        pl.format("GPU {}", "device_id"), pl.format("rank {}, GPU {}", "rank", "device_id").alias("both")
    )
    return (names["both"] if rows["rank"].n_unique() > 1 else names.to_series()).to_list()


def draw_arrivals(rows: pl.DataFrame, *, dark: bool = False) -> Chart:
    """Draw how long each rank waits for other ranks, and how long it transfers data, in collectives and messages.

    Args:
        rows: The table ``arrivals`` of the recipe ``comm_skew``.
        dark: Whether to use the dark template.
    """
    sums = rows.group_by("rank").agg(pl.col(*_WAITS, "count", "last_count").sum()).sort("rank")
    ranks = [f"rank {rank}" for rank in sums["rank"]]
    factor, unit = choose_time_unit(sums.select(pl.sum_horizontal(*_WAITS)).to_series())
    bars = [_draw_time_bars(sums, ranks, column, *part, ns_per_unit=factor) for column, part in _WAITS.items()]
    return _draw_stacked_bars(
        bars, ranks, dark=dark, title="Collectives and messages of each rank", x_title=f"Time ({unit})"
    )


def _draw_time_bars(
    rows: pl.DataFrame,
    row_labels: list[str],
    column: str,
    name: str,
    color: str,
    *,
    total_column: str = "",
    ns_per_unit: int = 1,
) -> ChartTrace:
    """Return a plotly trace with one horizontal bar per row, whose length is a time.

    Args:
        rows: The rows, with times in ns.
        row_labels: Label of each row.
        column: Name of the column with the times.
        name: Name of the times in the legend.
        color: Color of the bars.
        total_column: Name of a column. If not empty, times are drawn in percent of the values of this column.
        ns_per_unit: Number of ns in the unit of the axis, if times are not drawn in percent.
    """
    totals = rows[total_column].to_list() if total_column else [None] * rows.height
    shares = [
        100 * time / total if total else time / ns_per_unit for time, total in zip(rows[column], totals, strict=True)
    ]
    hover = [
        f"{rank}<br>{name}: {format_nanoseconds(time)}{f', {share:.2f}%' if total_column else ''}"
        for rank, time, share in zip(row_labels, rows[column], shares, strict=True)
    ]
    return ChartTrace(
        "bar",
        y=list(range(rows.height)),
        x=shares,
        orientation="h",
        name=name,
        marker_color=color,
        customdata=hover,
        hovertemplate=_HOVER,
    )


def _draw_stacked_bars(bars: list[ChartTrace], row_labels: list[str], *, dark: bool, title: str, x_title: str) -> Chart:
    height = 190 + min(_ROW_PIXELS * len(row_labels), _MAX_PIXELS)
    drawn = create_chart(bars, dark=dark, title=title, x_title=x_title, height=height)
    drawn.update_y_axes(autorange="reversed", **select_row_labels(row_labels))
    return drawn.update_layout(
        barmode="stack",
        showlegend=True,
        legend={"traceorder": "normal", "yref": "container", "y": 0, "yanchor": "bottom"},
    )


def select_row_labels(labels: list[str]) -> dict[str, Any]:
    """Return the settings of an axis that labels rows, starting with row 0, but at most 40 of them."""
    stride = -(-len(labels) // _LABELLED) or 1
    return {"tickmode": "array", "tickvals": list(range(0, len(labels), stride)), "ticktext": labels[::stride]}


def draw_iteration_spread(rows: pl.DataFrame, *, dark: bool = False) -> Chart:
    """Draw the shortest, median and longest duration of each iteration over the ranks, and mark the stragglers.

    Lines connect the aggregated iterations. If there are many, a point is the shortest, the median and the longest of
    consecutive ones, and only the stragglers with the largest losses are marked. The warm-up that is left out has
    markers at its longest durations. It does not set the scale.

    Args:
        rows: The table ``iterations`` of the recipe ``iteration_spread``.
        dark: Whether to use the dark template.
    """
    steady, warm_up = rows.filter("is_aggregated"), rows.filter(~pl.col("is_aggregated")).drop_nulls("max_ns")
    highest = choose_highest_duration(steady["max_ns"].drop_nulls(), (), warm_up["max_ns"])
    factor, unit = choose_time_unit(rows["max_ns"].drop_nulls() if highest is None else [highest])
    merged = _merge_iterations(steady)
    lines = [
        _draw_iteration_line(merged, "min_ns", "Shortest", factor, COLORS[4]),
        _draw_iteration_line(merged, "max_ns", "Longest", factor, COLORS[4]).update(fill="tonexty"),
        _draw_iteration_line(merged, "median_ns", "Median", factor, COLORS[0]),
    ]
    if not warm_up.is_empty():
        line = _draw_iteration_line(warm_up.head(_MERGED), "max_ns", "Warm-up, not aggregated", factor, COLORS[4])
        lines.append(line.update(mode="markers", marker={"symbol": "x-thin-open", "size": 9}))
    late = rows.drop_nulls("straggler")
    shown = late.filter(pl.col("lost_ns").rank("ordinal", descending=True) <= _MERGED)
    lines += [
        _draw_straggler_markers(shown.filter(straggler=rank), n, factor)
        for n, rank in enumerate(shown["straggler"].unique().sort())
    ]
    title = f"Iterations over all ranks{_format_limit(_MERGED, late.height)}"
    drawn = create_chart(lines, dark=dark, title=title, x_title="Iteration", y_title=f"Duration ({unit})")
    drawn.update_layout(showlegend=True, legend={"y": -0.25, "traceorder": "normal"})
    drawn.update_x_axes(dtick=1 if rows.height <= FEW else None)
    peaks = [
        Peak(number, ns, "warm-up", is_outlier=False, hover=f"iteration {number:,}<br>{format_nanoseconds(ns)}")
        for number, ns in warm_up["iteration", "max_ns"].rows()
    ]
    return mark_peaks(drawn.update_y_axes(rangemode="tozero"), peaks, highest, factor, dark=dark)


_MERGED = 400


def _format_limit(limit: int, total: int) -> str:
    return f" (the {limit} largest of {total:,} losses to stragglers)" if total > limit else ""


def _merge_iterations(rows: pl.DataFrame) -> pl.DataFrame:
    """Merge consecutive iterations if there are many, and return their shortest, median and longest durations."""
    size = -(-rows.height // _MERGED) or 1
    if size == 1:
        return rows.select("iteration", "min_ns", "median_ns", "max_ns", last="iteration")
    by_bin = rows.group_by(pl.int_range(pl.len()) // size, maintain_order=True)
    return by_bin.agg(
        pl.col("iteration").first(),
        pl.col("min_ns").min(),
        pl.col("median_ns").median(),
        pl.col("max_ns").max(),
        last=pl.col("iteration").last(),
    )


def _draw_iteration_line(rows: pl.DataFrame, column: str, name: str, ns_per_unit: int, color: str) -> ChartTrace:
    lasts = rows["last"] if "last" in rows.columns else rows["iteration"]
    hover = [
        f"{_format_iterations(number, last)}<br>{name.lower()}: {'' if time is None else format_nanoseconds(int(time))}"
        for number, last, time in zip(rows["iteration"], lasts, rows[column], strict=True)
    ]
    return ChartTrace(
        "scatter",
        x=rows["iteration"].to_list(),
        y=(rows[column] / ns_per_unit).to_list(),
        mode="lines+markers" if rows.height <= FEW else "lines",
        name=name,
        line={"color": color, "width": 1.5},
        customdata=hover,
        hovertemplate=_HOVER,
    )


def _format_iterations(first: int, last: int) -> str:
    return f"iteration {first:,}" if first == last else f"iterations {first:,} to {last:,}"


_SYMBOLS = ("diamond", "circle", "square", "x", "triangle-up", "star")


def _draw_straggler_markers(rows: pl.DataFrame, style_index: int, ns_per_unit: int) -> ChartTrace:
    rank = rows["straggler"][0]
    hover = [
        f"iteration {format_integer(number)}<br>rank {rank} lost {format_nanoseconds(lost)}"
        f"<br>in {format_short_label(phase)} on the {where}"
        for number, lost, phase, where in rows["iteration", "lost_ns", "phase", "lost_on"].rows()
    ]
    return ChartTrace(
        "scatter",
        x=rows["iteration"].to_list(),
        y=(rows["max_ns"] / ns_per_unit).to_list(),
        mode="markers",
        name=f"Straggler: rank {rank}",
        marker={
            "color": COLORS[(5, 3, 1, 6, 7, 9)[style_index % 6]],
            "size": 9,
            "symbol": _SYMBOLS[style_index % len(_SYMBOLS)],
        },
        customdata=hover,
        hovertemplate=_HOVER,
    )


def draw_stragglers(rows: pl.DataFrame, *, dark: bool = False) -> Chart:
    """Draw the time that iterations lost because of stragglers, by rank and phase.

    Args:
        rows: The table ``stragglers`` of the recipe ``iteration_spread``.
        dark: Whether to use the dark template.
    """
    names = [
        f"rank {rank}: {format_short_label(phase)} ({where})"
        for rank, phase, where in rows["straggler", "phase", "lost_on"].rows()
    ]
    factor, unit = choose_time_unit(rows["lost_ns"])
    hover = [
        f"{name}<br>{format_nanoseconds(lost)}<br>in {format_integer(count)} iterations"
        for name, lost, count in zip(names, rows["lost_ns"], rows["iteration_count"], strict=True)
    ]
    bars = ChartTrace(
        "bar",
        y=list(range(rows.height)),
        x=(rows["lost_ns"] / factor).to_list(),
        orientation="h",
        marker_color=COLORS[5],
        customdata=hover,
        hovertemplate=_HOVER,
    )
    drawn = _draw_stacked_bars(
        [bars], names, dark=dark, title="Time that stragglers lost", x_title=f"Lost time ({unit})"
    )
    return drawn.update_layout(showlegend=False, height=drawn.layout["height"] - 60)
