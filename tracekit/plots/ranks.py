"""Draw figures that compare the ranks of a job: their GPU time, their waiting times and their iterations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.plots.labels import format_integer, format_nanoseconds, label, time_unit
from tracekit.plots.theme import COLORS, GRAPH_COLOR, PART_COLORS, figure, graph_objects

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_HOVER = "%{customdata}<extra></extra>"
_ROW_PIXELS, _MAX_PIXELS, _LABELLED = 26, 1200, 40
FEW = 12
"""Maximum number of occurrences or iterations for which each one has a tick and a marker."""
_PARTS = {
    "compute_ns": ("Computation", PART_COLORS["tensor_core"]),
    "hidden_ns": ("Computation and communication", GRAPH_COLOR),
    "exposed_ns": ("Exposed communication", PART_COLORS["io"]),
    "memory_ns": ("Memory operations", PART_COLORS["memory"]),
    "idle_ns": ("Idle", PART_COLORS["other"]),
}
_WAITS = {"wait_ns": ("Waiting", PART_COLORS["io"]), "transfer_ns": ("Transfer", PART_COLORS["other_kernel"])}


def gpu_time(rows: pl.DataFrame, *, dark: bool = False) -> Figure:
    """Draw the time that each GPU spends in computation, communication and memory operations, and its idle time.

    There is one stacked bar per rank and GPU.

    Args:
        rows: The table ``gpu_time`` of the recipe ``gpu_time_sum``.
        dark: Whether to use the dark template.
    """
    ranks = _gpu_names(rows)
    bars = [_time_bars(rows, ranks, column, *part, of="total_ns") for column, part in _PARTS.items()]
    return _stacked_bar_figure(bars, ranks, dark=dark, title="Time of the GPUs of each rank", x="Share of the time (%)")


def _gpu_names(rows: pl.DataFrame) -> list[str]:
    """Return the label of each row, which contains the GPU and, if there are several ranks, the rank."""
    names = rows.select(
        pl.format("GPU {}", "device_id"), pl.format("rank {}, GPU {}", "rank", "device_id").alias("both")
    )
    return (names["both"] if rows["rank"].n_unique() > 1 else names.to_series()).to_list()


def arrivals(rows: pl.DataFrame, *, dark: bool = False) -> Figure:
    """Draw how long each rank waits for other ranks, and how long it transfers data, in collectives and messages.

    Args:
        rows: The table ``arrivals`` of the recipe ``comm_skew``.
        dark: Whether to use the dark template.
    """
    sums = rows.group_by("rank").agg(pl.col(*_WAITS, "count", "last_count").sum()).sort("rank")
    ranks = [f"rank {rank}" for rank in sums["rank"]]
    factor, unit = time_unit(sums.select(pl.sum_horizontal(*_WAITS)).to_series())
    bars = [_time_bars(sums, ranks, column, *part, factor=factor) for column, part in _WAITS.items()]
    return _stacked_bar_figure(
        bars, ranks, dark=dark, title="Collectives and messages of each rank", x=f"Time ({unit})"
    )


def _time_bars(
    rows: pl.DataFrame, ranks: list[str], column: str, name: str, color: str, *, of: str = "", factor: int = 1
) -> Any:
    """Return a plotly trace with one horizontal bar per row, whose length is a time.

    Args:
        rows: The rows, with times in ns.
        ranks: Label of each row.
        column: Name of the column with the times.
        name: Name of the times in the legend.
        color: Color of the bars.
        of: Name of a column. If it is not empty, times are drawn in per cent of the value in this column.
        factor: Number of ns in the unit of the axis, if times are not drawn in per cent.
    """
    totals = rows[of].to_list() if of else [None] * rows.height
    shares = [100 * time / total if total else time / factor for time, total in zip(rows[column], totals, strict=True)]
    hover = [
        f"{rank}<br>{name}: {format_nanoseconds(time)}{f', {share:.2f}%' if of else ''}"
        for rank, time, share in zip(ranks, rows[column], shares, strict=True)
    ]
    return graph_objects().Bar(
        y=list(range(rows.height)),
        x=shares,
        orientation="h",
        name=name,
        marker_color=color,
        customdata=hover,
        hovertemplate=_HOVER,
    )


def _stacked_bar_figure(bars: list[Any], ranks: list[str], *, dark: bool, title: str, x: str) -> Figure:
    height = 190 + min(_ROW_PIXELS * len(ranks), _MAX_PIXELS)
    drawn = figure(bars, dark=dark, title=title, x=x, height=height)
    labels = ranks if len(ranks) <= _LABELLED else []
    drawn.update_yaxes(tickmode="array", tickvals=list(range(len(labels))), ticktext=labels, autorange="reversed")
    return drawn.update_layout(
        barmode="stack",
        showlegend=True,
        legend={"traceorder": "normal", "yref": "container", "y": 0, "yanchor": "bottom"},
    )


def iteration_spread(rows: pl.DataFrame, *, dark: bool = False) -> Figure:
    """Draw the shortest, median and longest duration of each iteration over the ranks, and mark the stragglers.

    Args:
        rows: The table ``iterations`` of the recipe ``iteration_spread``.
        dark: Whether to use the dark template.
    """
    factor, unit = time_unit(rows["max_ns"].drop_nulls())
    lines = [
        _iteration_line(rows, "min_ns", "Shortest", factor, COLORS[4]),
        _iteration_line(rows, "max_ns", "Longest", factor, COLORS[4]).update(fill="tonexty"),
        _iteration_line(rows, "median_ns", "Median", factor, COLORS[0]),
    ]
    late = rows.drop_nulls("straggler")
    lines += [
        _straggler_markers(late.filter(straggler=rank), n, factor)
        for n, rank in enumerate(late["straggler"].unique().sort())
    ]
    drawn = figure(lines, dark=dark, title="Iterations over all ranks", x="Iteration", y=f"Duration ({unit})")
    drawn.update_layout(showlegend=True, legend={"y": -0.25, "traceorder": "normal"})
    drawn.update_xaxes(dtick=1 if rows.height <= FEW else None)
    return drawn.update_yaxes(rangemode="tozero")


def _iteration_line(rows: pl.DataFrame, column: str, name: str, factor: int, color: str) -> Any:
    hover = [
        f"iteration {format_integer(number)}<br>{name.lower()}: {'' if time is None else format_nanoseconds(int(time))}"
        for number, time in rows["iteration", column].rows()
    ]
    return graph_objects().Scatter(
        x=rows["iteration"].to_list(),
        y=(rows[column] / factor).to_list(),
        mode="lines+markers" if rows.height <= FEW else "lines",
        name=name,
        line={"color": color, "width": 1.5},
        customdata=hover,
        hovertemplate=_HOVER,
    )


_SYMBOLS = ("diamond", "circle", "square", "x", "triangle-up", "star")


def _straggler_markers(rows: pl.DataFrame, nth: int, factor: int) -> Any:
    rank = rows["straggler"][0]
    hover = [
        f"iteration {format_integer(number)}<br>rank {rank} lost {format_nanoseconds(lost)}"
        f"<br>in {label(phase)} on the {where}"
        for number, lost, phase, where in rows["iteration", "lost_ns", "phase", "lost_on"].rows()
    ]
    return graph_objects().Scatter(
        x=rows["iteration"].to_list(),
        y=(rows["max_ns"] / factor).to_list(),
        mode="markers",
        name=f"Straggler: rank {rank}",
        marker={"color": COLORS[(5, 3, 1, 6, 7, 9)[nth % 6]], "size": 9, "symbol": _SYMBOLS[nth % len(_SYMBOLS)]},
        customdata=hover,
        hovertemplate=_HOVER,
    )


def stragglers(rows: pl.DataFrame, *, dark: bool = False) -> Figure:
    """Draw the time that iterations lost because of stragglers, by rank and phase.

    Args:
        rows: The table ``stragglers`` of the recipe ``iteration_spread``.
        dark: Whether to use the dark template.
    """
    names = [
        f"rank {rank}: {label(phase)} ({where})" for rank, phase, where in rows["straggler", "phase", "lost_on"].rows()
    ]
    factor, unit = time_unit(rows["lost_ns"])
    hover = [
        f"{name}<br>{format_nanoseconds(lost)}<br>in {format_integer(count)} iterations"
        for name, lost, count in zip(names, rows["lost_ns"], rows["iteration_count"], strict=True)
    ]
    bars = graph_objects().Bar(
        y=list(range(rows.height)),
        x=(rows["lost_ns"] / factor).to_list(),
        orientation="h",
        marker_color=COLORS[5],
        customdata=hover,
        hovertemplate=_HOVER,
    )
    drawn = _stacked_bar_figure([bars], names, dark=dark, title="Time that stragglers lost", x=f"Lost time ({unit})")
    return drawn.update_layout(showlegend=False, height=drawn.layout.height - 60)
