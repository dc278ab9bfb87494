"""Draw the figures of recipes: box plots, occurrences over time, heat maps, histograms and overlaps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.plots import ranks
from tracekit.plots.charts import Chart, ChartTrace
from tracekit.plots.labels import (
    choose_time_unit,
    format_hover_name,
    format_integer,
    format_nanoseconds,
    format_short_label,
)
from tracekit.plots.theme import COLORS, FEW, create_chart, draw_band, order_bands_first

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


_HOVER = "%{customdata}<extra></extra>"
_ROW_PIXELS = 26
_NAMES, _RANKS, _HISTOGRAMS, _MAPPED = 20, 32, 8, 512
_LINE_POINTS, _MIN_POINTS = 4000, 200
_KEYS = ("Name", "Text")
_PLACES = {"Rank": "rank", "PID": "process", "Device ID": "GPU"}
_PACES = {"pace_start": "Start", "pace_duration": "Duration", "pace_delta": "Time since the previous end"}
_OVERLAPS = ("Communication Overlap", "Compute Overlap")
_HISTOGRAM_BINS = 40
_OF_RANKS = {
    "gpu_time": ranks.draw_gpu_time,
    "iterations": ranks.draw_iteration_spread,
    "stragglers": ranks.draw_stragglers,
    "arrivals": ranks.draw_arrivals,
}
"""Function that draws the figure of a recipe table, by name of the table."""
_POINTS = 2000
_INDEX = "__index_level_0__"

MAPS = {
    "cuda_gpu_time_util_map": "Kernels",
    "nccl_gpu_time_util_map": "NCCL",
    "mpi_gpu_time_util_map": "MPI",
    "ucx_gpu_time_util_map": "UCX",
    "gpu_metric_util_map": "GPU metrics",
}
"""Titles of the recipes that are drawn as heat maps."""
PACES = {"cuda_gpu_kern_pace": "Kernels", "nvtx_pace": "NVTX ranges", "nvtx_gpu_proj_pace": "NVTX ranges on the GPU"}
"""Titles of the recipes that are drawn as occurrences."""


def draw_recipe_figures(tables: Mapping[str, pl.DataFrame], *, dark: bool = False) -> dict[str, Chart]:
    """Draw and return the figures of a recipe.

    Args:
        tables: The tables of the recipe by name.
        dark: Whether to use the dark template.

    Returns:
        The figures by name. Tables that have no rows, and tables for which there is no figure, are omitted.
    """
    drawn: dict[str, Chart] = {}
    filled = {name: rows for name, rows in tables.items() if not rows.is_empty()}
    if "all_stats" in filled:
        drawn["spread"] = draw_spread(filled["all_stats"], dark=dark)
    if {"pace_start", "pace_duration"} <= filled.keys():
        drawn["pace_over_time"] = draw_pace_over_time(filled["pace_start"], filled["pace_duration"], dark=dark)
    drawn |= {name: draw_pace(filled[name], what, dark=dark) for name, what in _PACES.items() if name in filled}
    drawn |= {name: draw(filled[name], dark=dark) for name, draw in _OF_RANKS.items() if name in filled}
    if "grouped_trace" in filled:
        drawn["overlap"] = draw_overlap(filled["grouped_trace"], dark=dark)
    analysis = filled.get("analysis", pl.DataFrame())
    if analysis.columns[:2] == ["Duration", "Name"]:
        drawn["histogram"] = draw_histogram(analysis, dark=dark)
    elif analysis.columns[:1] == ["Duration"] and "Start" not in analysis.columns:
        values = [c for c in analysis.columns if c not in ("Duration", _INDEX, *_PLACES)]
        drawn |= {f"map_{n}": draw_heat_map(analysis, value, dark=dark) for n, value in enumerate(values)}
    return drawn


def draw_spread(stats: pl.DataFrame, *, dark: bool = False) -> Chart:
    """Draw the distribution of values over all ranks, with one box plot per name, such as a kernel name.

    Only the names with the largest sums of values are drawn.

    Args:
        stats: The table ``all_stats`` of a recipe.
        dark: Whether to use the dark template.
    """
    key = next(k for k in _KEYS if k in stats.columns)
    rows = stats.sort("Sum", descending=True, maintain_order=True).head(_NAMES).reverse()
    boxes = ChartTrace(
        "box",
        orientation="h",
        y=list(range(rows.height)),
        lowerfence=rows["Min"].to_list(),
        q1=rows["Q1"].to_list(),
        median=rows["Median"].to_list(),
        q3=rows["Q3"].to_list(),
        upperfence=rows["Max"].to_list(),
        mean=rows["Mean"].to_list(),
        line={"color": COLORS[0]},
    )
    height = 160 + _ROW_PIXELS * rows.height
    title = f"Spread over all ranks{_format_first_rows_note(_NAMES, stats.height, 'names')}"
    drawn = create_chart([boxes], dark=dark, title=title, x_title="Value (as in the table)", height=height)
    positive = bool((rows["Min"] > 0).all())
    drawn.update_x_axes(type="log" if positive else "linear").update_layout(showlegend=False)
    return _set_row_labels(drawn, [format_short_label(name) for name in rows[key]])


def draw_pace(occurrences: pl.DataFrame, value_name: str, *, dark: bool = False) -> Chart:
    """Draw one value, such as the duration, of each occurrence of a kernel or range, with one line per rank.

    If there are many occurrences, a point of a line is the median of consecutive ones, and a band extends from the
    smallest to the largest of them.

    Args:
        occurrences: The values in ns, with one column per rank and one row per occurrence.
        value_name: Name of the values in titles, such as ``Duration``.
        dark: Whether to use the dark template.
    """
    shown = occurrences.select(occurrences.columns[:_RANKS])
    limit = max(_MIN_POINTS, _LINE_POINTS // max(shown.width, 1))
    rows = {column.name: _merge_occurrences(column, limit) for column in shown}
    factor, unit = choose_time_unit([int(n) for each in rows.values() for n in each["max"].abs()])
    traces = []
    for n, (name, each) in enumerate(rows.items()):
        if (each["first"] < each["last"]).any():
            traces += draw_band(each["first"].to_list(), each["min"] / factor, each["max"] / factor, n)
        traces.append(_draw_occurrence_line(name, each, n, factor))
    traces = order_bands_first(traces)
    notes = _format_first_rows_note(_RANKS, occurrences.width, "ranks")
    drawn = create_chart(
        traces, dark=dark, title=value_name + notes, x_title="Occurrence", y_title=f"{value_name} ({unit})"
    )
    drawn.update_x_axes(dtick=1 if shown.height <= FEW else None)
    drawn.update_layout(showlegend=shown.width > 1, legend_y=-0.25)
    return drawn.update_y_axes(type="log") if _is_wide(each["max"] for each in rows.values()) else drawn


def _merge_occurrences(values: pl.Series, limit: int) -> pl.DataFrame:
    """Return the values of consecutive occurrences, merged if there are more than ``limit``.

    Returns:
        The columns ``first`` and ``last`` (numbers of occurrences), ``median``, ``min`` and ``max``.
    """
    value, nth = pl.col("value"), pl.col("nth")
    rows = values.rename("value").to_frame().with_row_index("nth").with_columns(nth.cast(pl.Int64))
    size = -(-rows.height // limit) or 1
    if size == 1:
        return rows.select(first="nth", last="nth", median="value", min="value", max="value").drop_nulls("median")
    by_bin = rows.drop_nulls().group_by(nth // size, maintain_order=True)
    return by_bin.agg(
        nth.first().alias("first"), nth.last().alias("last"), median=value.median(), min=value.min(), max=value.max()
    ).drop("nth")


def _draw_occurrence_line(rank: str, rows: pl.DataFrame, color_index: int, ns_per_unit: int) -> ChartTrace:
    hover = [
        f"rank {rank}, occurrence {first:,}<br>{format_nanoseconds(int(median))}"
        if first == last
        else f"rank {rank}, occurrences {first:,} to {last:,}<br>median {format_nanoseconds(int(median))}"
        f"<br>from {format_nanoseconds(int(low))}<br>to {format_nanoseconds(int(high))}"
        for first, last, median, low, high in rows.select("first", "last", "median", "min", "max").iter_rows()
    ]
    return ChartTrace(
        "scatter",
        x=rows["first"].to_list(),
        y=(rows["median"] / ns_per_unit).to_list(),
        mode="lines+markers" if rows.height <= FEW else "lines",
        name=f"rank {rank}",
        line={"color": COLORS[color_index % len(COLORS)], "width": 1.5},
        customdata=hover,
        hovertemplate=_HOVER,
    )


def draw_pace_over_time(starts: pl.DataFrame, durations: pl.DataFrame, *, dark: bool = False) -> Chart:
    """Draw the duration of occurrences of a kernel or range over time, with one series of points per rank.

    If a rank has more than 2,000 occurrences, only the shortest and the longest of each group of consecutive
    occurrences are drawn.

    Args:
        starts: The table ``pace_start`` of a recipe, with one column per rank.
        durations: The table ``pace_duration``, with the same columns.
        dark: Whether to use the dark template.
    """
    names = durations.columns[:_RANKS]
    rows = {name: _select_extreme_occurrences(starts[name], durations[name]) for name in names}
    factor, unit = choose_time_unit(int(n) for each in rows.values() for n in each["duration"])
    start_factor, start_unit = choose_time_unit(int(n) for each in rows.values() for n in each["start"])
    traces = [
        ChartTrace(
            "scatter",
            x=(each["start"] / start_factor).to_list(),
            y=(each["duration"] / factor).to_list(),
            mode="markers",
            name=f"rank {name}",
            marker={"color": COLORS[n % len(COLORS)], "size": 5, "symbol": _SYMBOLS[n % len(_SYMBOLS)]},
            customdata=[
                f"rank {name}, occurrence {nth}<br>{format_nanoseconds(int(duration))}"
                f"<br>at {format_integer(int(start))} ns"
                for nth, start, duration in each.iter_rows()
            ],
            hovertemplate=_HOVER,
        )
        for n, (name, each) in enumerate(rows.items())
    ]
    title = f"Duration over time{_format_first_rows_note(_RANKS, durations.width, 'ranks')}"
    x = f"Start since {_describe_time_origin(len(names))} ({start_unit})"
    drawn = create_chart(traces, dark=dark, title=title, x_title=x, y_title=f"Duration ({unit})")
    drawn.update_layout(showlegend=len(names) > 1, legend_y=-0.25)
    if _is_wide(each["duration"] for each in rows.values()):
        return drawn.update_y_axes(type="log")
    return drawn.update_y_axes(rangemode="tozero")


def _is_wide(values: Iterable[pl.Series]) -> bool:
    """Return whether only a logarithmic axis shows both usual and long durations."""
    every = pl.concat([each.cast(pl.Float64) for each in values]).drop_nulls()
    return bool(len(every) and every.min() > 0 and every.max() > _WIDE * every.median())  # type: ignore[operator]


_WIDE = 50
"""Ratio of the longest to the median duration above which the axis is logarithmic."""
_SYMBOLS = ("circle", "diamond", "square", "x", "triangle-up", "star")


def _select_extreme_occurrences(starts: pl.Series, durations: pl.Series) -> pl.DataFrame:
    """Return all occurrences or, if there are over 2,000, the extremes of each group of consecutive occurrences.

    The extremes of a group are its shortest and its longest occurrence.

    Returns:
        The columns ``nth``, ``start`` and ``duration``.
    """
    nth, duration = pl.col("nth"), pl.col("duration")
    rows = pl.DataFrame({"start": starts, "duration": durations}).with_row_index("nth")
    rows = rows.with_columns(nth.cast(pl.Int64)).drop_nulls()
    if rows.height <= _POINTS:
        return rows
    by_bin = rows.group_by(nth * (_POINTS // 2) // (nth.max() + 1))
    chosen = by_bin.agg(low=nth.get(duration.arg_min()), high=nth.get(duration.arg_max()))
    return rows.filter(nth.is_in(pl.concat([chosen["low"], chosen["high"]]).implode()))


def draw_heat_map(bins: pl.DataFrame, column: str, *, dark: bool = False) -> Chart:
    """Draw percentages over time as a heat map, with one row per rank, process or GPU.

    Args:
        bins: The table ``analysis`` of a recipe: ``Duration`` (despite its name, the start of the bin in ns), the
            columns that identify the rank, process or GPU, and columns of percentages.
        column: Name of the column to draw.
        dark: Whether to use the dark template.
    """
    places = [c for c in _PLACES if c in bins.columns and c != "PID" and (c != "Rank" or bins["Rank"].n_unique() > 1)]
    places = places or ["Rank"]
    groups = bins.partition_by([c for c in _PLACES if c in bins.columns], maintain_order=True)
    shown = groups[:_MAPPED]
    names = [", ".join(f"{_PLACES[c]} {g[c][0]}" for c in places) for g in shown]
    starts = shown[0]["Duration"].to_list()
    factor, unit = choose_time_unit(starts)
    hover = [
        [
            f"{name}<br>from {format_integer(start)} ns<br>{'not recorded' if share is None else f'{share:.1f}%'}"
            for start, share in zip(starts, group[column], strict=True)
        ]
        for name, group in zip(names, shown, strict=True)
    ]
    heat = ChartTrace(
        "heatmap",
        x=[edge / factor for edge in _compute_bin_edges(starts)],
        y=list(range(len(shown))),
        z=[group[column].to_list() for group in shown],
        zmin=0,
        zmax=100,
        colorscale="Cividis",
        colorbar={"title": {"text": "%"}},
        customdata=hover,
        hovertemplate=_HOVER,
    )
    title = f"{_VALUE_NAMES.get(column, column)} over time{_format_first_rows_note(_MAPPED, len(groups), 'rows')}"
    height = 200 + min(_ROW_PIXELS * len(shown), 1200)
    drawn = create_chart(
        [heat],
        dark=dark,
        title=title,
        x_title=f"Time since {_describe_time_origin(bins['Rank'].n_unique())} ({unit})",
        height=height,
    )
    drawn.update_x_axes(showgrid=False, zeroline=False)
    _set_row_labels(drawn, names)
    return drawn.update_y_axes(autorange="reversed", showgrid=False, zeroline=False)


def _describe_time_origin(rank_count: int) -> str:
    """Return how axis titles name the origin of time: the start of the only capture or of the first capture."""
    return "the first capture" if rank_count > 1 else "the start of the capture"


_VALUE_NAMES = {"Kernel": "Kernels", "All": "All kernels", "Compute": "Kernels other than NCCL"}


def _compute_bin_edges(starts: list[int]) -> list[int]:
    """Return the edges of bins of equal duration, given the start times of the bins."""
    return [*starts, 2 * starts[-1] - starts[-2]] if len(starts) > 1 else [*starts, starts[0] + 1]


def draw_histogram(durations: pl.DataFrame, *, dark: bool = False) -> Chart:
    """Draw histograms of the durations of the kernels with the largest total time, over all ranks.

    Args:
        durations: One row per kernel, with the columns ``Duration`` (in ns) and ``Name``.
        dark: Whether to use the dark template.
    """
    totals = durations.group_by("Name").agg(pl.col("Duration").sum()).sort("Duration", "Name", descending=[True, False])
    names = totals["Name"].head(_HISTOGRAMS)
    exponent = pl.col("Duration").clip(1).log10()
    rows = durations.filter(pl.col("Name").is_in(names.implode())).with_columns(exponent.alias("exponent"))
    low, high = float(rows["exponent"].min()), float(rows["exponent"].max())  # type: ignore[arg-type]
    width = max(high - low, 0.1) / _HISTOGRAM_BINS
    number = ((pl.col("exponent") - low) / width).floor().clip(0, _HISTOGRAM_BINS - 1).cast(pl.Int64)
    counts = rows.group_by("Name", number.alias("bin")).len().sort("bin")
    edges = [10 ** (low + n * width) for n in range(_HISTOGRAM_BINS + 1)]
    factor, unit = choose_time_unit([round(10 ** ((low + high) / 2))])
    traces = [
        _draw_histogram_line(counts.filter(pl.col("Name") == name), name, n, edges, factor)
        for n, name in enumerate(names)
    ]
    title = f"Durations of kernels{_format_first_rows_note(_HISTOGRAMS, totals.height, 'names by total time')}"
    drawn = create_chart(traces, dark=dark, title=title, x_title=f"Duration ({unit})", y_title="Kernels")
    return drawn.update_x_axes(type="log").update_layout(showlegend=True, legend_y=-0.25)


def _draw_histogram_line(
    counts: pl.DataFrame, kernel_name: str, color_index: int, bin_edges: list[float], ns_per_unit: int
) -> ChartTrace:
    by_bin = dict(counts.select("bin", "len").rows())
    heights = [by_bin.get(n, 0) for n in range(_HISTOGRAM_BINS)]
    hover = [
        f"{format_hover_name(kernel_name)}<br>{format_integer(height)} kernels<br>"
        f"from {bin_edges[n]:,.0f} to {bin_edges[n + 1]:,.0f} ns"
        for n, height in enumerate(heights)
    ]
    return ChartTrace(
        "scatter",
        x=[edge / ns_per_unit for edge in bin_edges[:-1]],
        y=heights,
        mode="lines",
        line={"color": COLORS[color_index % len(COLORS)], "width": 1.5, "shape": "hv"},
        name=format_short_label(kernel_name),
        customdata=hover,
        hovertemplate=_HOVER,
    )


def draw_overlap(grouped: pl.DataFrame, *, dark: bool = False) -> Chart:
    """Draw what percentages of the time of each kernel overlap with communication and with computation.

    Args:
        grouped: The table ``grouped_trace`` of a recipe.
        dark: Whether to use the dark template.
    """
    largest = pl.max_horizontal(_OVERLAPS)
    rows = grouped.sort(largest, "Count", descending=True, maintain_order=True).head(_NAMES).reverse()
    traces = [
        ChartTrace(
            "bar",
            orientation="h",
            y=list(range(rows.height)),
            x=rows[title].to_list(),
            name=title,
            marker={"color": COLORS[n]},
            customdata=[
                f"{format_hover_name(n)}<br>{title}: {share:.1f}%" for n, share in rows.select("Name", title).rows()
            ],
            hovertemplate=_HOVER,
        )
        for n, title in enumerate(_OVERLAPS)
    ]
    title = f"Overlap of kernels over all ranks{_format_first_rows_note(_NAMES, grouped.height, 'names')}"
    drawn = create_chart(
        traces, dark=dark, title=title, x_title="Overlapped time (%)", height=200 + _ROW_PIXELS * rows.height
    )
    drawn.update_x_axes(range=[0, 100]).update_layout(showlegend=True, legend_y=-0.25)
    return _set_row_labels(drawn, [format_short_label(name) for name in rows["Name"]])


def _set_row_labels(figure: Chart, labels: list[str]) -> Chart:
    """Label the rows of a figure, starting with row 0, and return the figure. Rows with equal labels stay separate."""
    return figure.update_y_axes(**ranks.select_row_labels(labels))


def _format_first_rows_note(limit: int, total: int, plural_noun: str) -> str:
    """Return a note for a title that states how many rows are drawn, or an empty string if all rows are drawn."""
    return f" (first {limit} of {total:,} {plural_noun})" if total > limit else ""
