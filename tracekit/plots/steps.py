"""Draw the parts of steps, and the communication in them, as stacked bars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.plots.charts import Chart, ChartTrace
from tracekit.plots.labels import choose_time_unit, format_hover_name, format_nanoseconds
from tracekit.plots.peaks import Peak, choose_highest_duration, mark_peaks
from tracekit.plots.theme import (
    COLORS,
    LEDGER_COLORS,
    LONGEST_COLOR,
    OUTSIDE_COLOR,
    create_chart,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


_HOVER = "%{customdata}<extra></extra>"
_COMMUNICATION = LEDGER_COLORS["communication"]
STEP_PARTS = {
    "compute_ns": ("Computation", LEDGER_COLORS["compute"]),
    "opaque_ns": ("CUDA graphs recorded as a whole", LEDGER_COLORS["opaque"]),
    "communication_ns": ("Communication", _COMMUNICATION),
    "communication_wait_ns": ("Waiting for ranks", LONGEST_COLOR),
    "copy_ns": ("Copies", LEDGER_COLORS["copy"]),
    "idle_cpu_work_ns": ("Idle: CPU work", COLORS[8]),
    "idle_launch_code_ns": ("Idle: launch code", COLORS[3]),
    "idle_launch_calls_ns": ("Idle: launch calls", COLORS[2]),
    "idle_synchronization_ns": ("Idle: synchronization", COLORS[7]),
    "idle_blocking_copy_ns": ("Idle: blocking copy", COLORS[4]),
    "idle_allocation_ns": ("Idle: allocation", COLORS[9]),
    "idle_host_allocation_ns": ("Idle: host allocation", COLORS[9]),
    "idle_code_loading_ns": ("Idle: code loading", COLORS[6]),
    "idle_launch_latency_ns": ("Idle: launch latency", OUTSIDE_COLOR),
    "idle_unknown_ns": ("Idle: unknown", OUTSIDE_COLOR),
}
"""Titles and colors of the parts of a step, by column, in the order in which they are stacked."""
_COMMUNICATION_PARTS = {
    "hidden_communication_ns": ("Beside computation", LEDGER_COLORS["compute"]),
    "communication_ns": ("Exposed", _COMMUNICATION),
    "communication_wait_ns": ("Waiting for ranks", LONGEST_COLOR),
}


def draw_step_parts(steps: pl.DataFrame, *, place: str = "Process", dark: bool = False) -> Chart:
    """Draw each step as a bar that is divided into its parts, with the median of all steady steps and the outliers.

    If there are many steps, a bar is the step with the median duration of consecutive ones, and a line extends from
    the shortest to the longest of them.

    Args:
        steps: Rows of the figure ``step_parts``.
        place: What the column ``process_id`` identifies.
        dark: Whether to use the dark template.
    """
    with_outliers, others = steps.filter(pl.col("outliers") > 0), steps.filter(pl.col("outliers") == 0)
    highest = choose_highest_duration(others["max_ns"], with_outliers["max_ns"], ())
    factor, unit = choose_time_unit(steps["max_ns"] if highest is None else [highest])
    drawings = [*_stack(steps, STEP_PARTS, factor), *_draw_extremes(steps, factor), *_draw_medians(steps, factor)]
    title = "Time of the steady steps by part"
    drawn = create_chart(drawings, dark=dark, title=title, x_title="Step", y_title=f"Duration ({unit})", height=420)
    drawn.update_layout(barmode="stack", legend_traceorder="normal", showlegend=True)
    return mark_peaks(_label_positions(drawn, steps, place), _find_peaks(steps), highest, factor, dark=dark)


def _find_peaks(steps: pl.DataFrame) -> list[Peak]:
    """Return the longest step of each bar."""
    return [
        Peak(n, row["max_ns"], f"step {row['longest']:,}", row["outliers"] > 0, _describe_longest(row))
        for n, row in enumerate(steps.iter_rows(named=True))
    ]


def draw_communication_overlap(steps: pl.DataFrame, *, place: str = "Process", dark: bool = False) -> Chart:
    """Draw the communication of each step as a bar that is divided by whether computation hides it.

    Args:
        steps: Rows of the figure ``communication_overlap``.
        place: What the column ``process_id`` identifies.
        dark: Whether to use the dark template.
    """
    factor, unit = choose_time_unit(steps["duration_ns"])
    bars = _stack(steps, _COMMUNICATION_PARTS, factor)
    title = "Communication in the steady steps"
    drawn = create_chart(bars, dark=dark, title=title, x_title="Step", y_title=f"Time ({unit})", height=360)
    drawn.update_layout(barmode="stack", legend_traceorder="normal", showlegend=True)
    return _label_positions(drawn, steps, place)


def _stack(steps: pl.DataFrame, parts: Mapping[str, tuple[str, str]], factor: float) -> list[ChartTrace]:
    """Return one series of bars per part that takes any time."""
    names = [_name_step(row) for row in steps.iter_rows(named=True)]
    durations = steps["duration_ns"].to_list()
    return [
        ChartTrace(
            "bar",
            x=list(range(steps.height)),
            y=[ns / factor for ns in steps[column]],
            name=title,
            marker_color=color,
            customdata=[
                f"{name}<br>{title}: {format_nanoseconds(ns)}, {100 * ns / max(1, duration):.2f}% of the step"
                f"<br>whole: {format_nanoseconds(duration)}"
                for name, ns, duration in zip(names, steps[column], durations, strict=True)
            ],
            hovertemplate=_HOVER,
        )
        for column, (title, color) in parts.items()
        if steps[column].sum()
    ]


def _draw_extremes(steps: pl.DataFrame, factor: float) -> list[ChartTrace]:
    """Return the range of the durations of each bar that stands for several steps, and a marker at each outlier."""
    rows = list(enumerate(steps.iter_rows(named=True)))
    several = [(n, row) for n, row in rows if row["first"] < row["last"]]
    line = ChartTrace(
        "scatter",
        x=[x for n, _ in several for x in (n, n, None)],
        y=[y for _, row in several for y in (row["min_ns"] / factor, row["max_ns"] / factor, None)],
        mode="lines",
        name="Shortest to longest step of the bar",
        line={"color": LONGEST_COLOR, "width": 1.5},
        customdata=[text for _, row in several for text in (*[_describe_longest(row)] * 2, "")],
        hovertemplate=_HOVER,
    )
    outliers = [(n, row) for n, row in rows if row["outliers"]]
    hover = [f"{row['outliers']:,} of the steps are outliers<br>{_describe_longest(row)}" for _, row in outliers]
    markers = ChartTrace(
        "scatter",
        x=[n for n, _ in outliers],
        y=[row["max_ns"] / factor for _, row in outliers],
        mode="markers",
        name="Outliers",
        marker={"symbol": "diamond", "size": 8, "color": LONGEST_COLOR},
        customdata=hover,
        hovertemplate=_HOVER,
    )
    return [line] * bool(several) + [markers] * bool(outliers)


def _draw_medians(steps: pl.DataFrame, factor: float) -> list[ChartTrace]:
    """Return a line at the median of the steady steps of each process."""
    medians = steps["median_ns"].to_list()
    line = ChartTrace(
        "scatter",
        x=list(range(len(medians))),
        y=[ns / factor for ns in medians],
        mode="lines",
        name="Median",
        line={"color": LONGEST_COLOR, "width": 1.5, "dash": "dash", "shape": "hvh"},
        customdata=[f"median: {format_nanoseconds(ns)}" for ns in medians],
        hovertemplate=_HOVER,
    )
    return [line]


def _label_positions(drawn: Chart, steps: pl.DataFrame, place: str) -> Chart:
    """Label the bars with the numbers of steps and, if there are several processes or ranks, with their ids."""
    several = steps["process_id"].n_unique() > 1
    stride = -(-steps.height // 16)
    rows = list(zip(steps["process_id"], steps["iteration"], strict=True))[::stride]
    labels = [f"{process}: {number:,}" if several else f"{number:,}" for process, number in rows]
    positions = list(range(0, steps.height, stride))
    drawn.update_layout(xaxis_title_text=f"{place}: step" if several else "Step")
    return drawn.update_x_axes(tickmode="array", tickvals=positions, ticktext=labels)


def _name_step(row: Mapping[str, Any]) -> str:
    name = format_hover_name(row["name"] or "")
    text = f"Step {row['iteration']:,}" + (f": {name}" if name else "")
    if row["first"] < row["last"]:
        return f"{text}<br>median of the steps {row['first']:,} to {row['last']:,}"
    return text


def _describe_longest(row: Mapping[str, Any]) -> str:
    name = format_hover_name(row["longest_name"] or f"step {row['longest']:,}")
    return f"longest: {name}, {format_nanoseconds(row['max_ns'])}<br>shortest: {format_nanoseconds(row['min_ns'])}"
