"""Draw roofline charts of kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.plots.labels import format_hover_name, format_integer, format_nanoseconds, format_short_label
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
