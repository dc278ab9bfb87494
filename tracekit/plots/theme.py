"""The appearance of figures: colors, and a light and a dark template."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracekit.errors import TracekitError
from tracekit.plots.charts import Chart, ChartTrace
from tracekit.system.installation import create_extra_hint

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

    import polars as pl
    from plotly.graph_objects import Figure

PART_NAMES = {
    "tensor_core": "Tensor Cores",
    "other_kernel": "Other kernels",
    "memory": "Memory",
    "dataloader": "Data loader",
    "io": "I/O",
    "cpu": "CPU",
    "other": "Other",
}
"""Titles of the parts into which the time of an iteration is divided, in figures."""

PART_COLORS = {
    "tensor_core": "#009E73",
    "other_kernel": "#0072B2",
    "memory": "#C48200",
    "dataloader": "#C06C9A",
    "io": "#D55E00",
    "cpu": "#2F95D2",
    "other": "#8A909A",
}
"""Colors of the parts of iterations in all figures. People with color vision deficiencies can distinguish them."""

LEDGER_COLORS = {"compute": "#0072B2", "opaque": "#7B5EA7", "communication": "#D55E00", "copy": "#C48200"}
"""Colors of the classes of parts into which the time of steps is divided. Idle parts have colors of their own."""

GRAPH_COLOR = "#7B5EA7"
COLORS = ("#0072B2", "#C48200", "#009E73", "#C06C9A", "#2F95D2", "#D55E00", "#7B5EA7", "#978A1E", "#8A909A", "#4C7A34")
DIRECTION_COLORS = {"fprop": "#0072B2", "bprop": "#D55E00", None: "#8A909A"}
OUTSIDE_COLOR = "#8C919B"
LONGEST_COLOR = "#C2185B"
FEW = 12
"""Maximum number of occurrences or iterations for which each one has a tick and a marker."""
DARK_COLORS = {
    "#0072B2": "#3D8FD6",
    "#C48200": "#F0B020",
    "#009E73": "#00A87B",
    "#C06C9A": "#DF93BE",
    "#2F95D2": "#9AD2F7",
    "#D55E00": "#E8703A",
    "#7B5EA7": "#AB90D6",
    "#978A1E": "#C9BC57",
    "#8A909A": "#979CA6",
    "#4C7A34": "#82B366",
    "#C2185B": "#FF6F9F",
}
"""Maps colors of the light template to colors of the dark one, whose contrast to the background is at least 4.5."""
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"


@dataclass(frozen=True, slots=True)
class Palette:
    """The colors of the light or dark template."""

    background: str
    text: str
    grid: str
    line: str
    hover: str


LIGHT = Palette("#ffffff", "#1c2128", "#e3e7ec", "#8a919b", "#ffffff")
DARK = Palette("#161a20", "#dfe4ea", "#303741", "#79818c", "#232932")


def import_graph_objects() -> ModuleType:
    """Import and return ``plotly.graph_objects``.

    Raises:
        TracekitError: plotly is not installed.
    """
    try:
        import plotly.graph_objects as go
    except ImportError as e:
        raise TracekitError(
            "figures need the package plotly, which is not installed", hint=create_extra_hint("plots")
        ) from e
    return go  # type: ignore[no-any-return]


def create_chart(
    traces: Iterable[ChartTrace],
    *,
    dark: bool,
    title: str,
    x_title: str | None = None,
    y_title: str | None = None,
    height: int | None = None,
) -> Chart:
    """Create a chart with titles, in the light or dark template.

    Args:
        traces: The series of marks. Their colors are replaced if the template is dark.
        dark: Whether to use the dark template.
        title: Title of the chart.
        x_title: Title of the x axis, with the unit.
        y_title: Title of the y axis, with the unit.
        height: Height in pixels. If None, the chart is as high as its container.
    """
    drawn = Chart(list(traces), dark=dark)
    if dark:
        for trace in drawn.traces:
            _replace_with_dark_colors(trace)
    drawn.update_layout(title_text=title, height=height)
    if x_title is not None:
        drawn.update_x_axes(title_text=x_title)
    if y_title is not None:
        drawn.update_y_axes(title_text=y_title)
    return drawn


def convert_to_figure(chart: Chart) -> Figure:
    """Convert a chart to a figure of plotly.

    Raises:
        TracekitError: plotly is not installed.
    """
    figure: Figure = import_graph_objects().Figure(chart.to_plotly_json())
    figure.update_layout(template=build_plotly_template(dark=chart.dark))
    return figure


def _replace_with_dark_colors(trace: ChartTrace) -> None:
    """Replace the colors of a series of marks with those of the dark template."""
    for part, name in (("marker", "color"), ("marker", "colors"), ("line", "color")):
        own = trace.properties.get(part, {})
        if name in own:
            own[name] = convert_to_dark_colors(own[name])


def draw_band(
    x: list[float], low: pl.Series, high: pl.Series, style_index: int, shape: str = "linear"
) -> list[ChartTrace]:
    """Return two series that fill the area between the lowest and highest values, or none if all are equal."""
    if (low == high).all():
        return []
    color = COLORS[style_index % len(COLORS)]
    ends = [
        ChartTrace(
            "scatter",
            x=x,
            y=values.to_list(),
            mode="lines",
            line={"color": color, "width": 0, "shape": shape},
            showlegend=False,
            hoverinfo="skip",
        )
        for values in (low, high)
    ]
    return [ends[0], ends[1].update(fill="tonexty")]


def order_bands_first(lines: list[ChartTrace]) -> list[ChartTrace]:
    """Return series of marks in an order in which no band covers a line."""
    return sorted(lines, key=lambda line: line.properties.get("line", {}).get("width") != 0)


def convert_to_dark_colors(colors: Any) -> Any:
    """Return the dark color for a color of the light template, or for each color in a list.

    Colors that are not in ``DARK_COLORS``, and other values, are returned unchanged.
    """
    if isinstance(colors, str):
        return DARK_COLORS.get(colors, colors)
    return [DARK_COLORS.get(each, each) for each in colors] if isinstance(colors, list | tuple) else colors


def compute_contrast_ratio(first_color: str, second_color: str) -> float:
    """Return the contrast ratio of two colors, as defined by WCAG 2."""
    low, high = sorted((_compute_luminance(first_color), _compute_luminance(second_color)))
    return (high + 0.05) / (low + 0.05)


def _compute_luminance(color: str) -> float:
    """Return the relative luminance of a color such as ``#0072B2``."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)  # noqa: PLR2004
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@functools.cache
def choose_text_color(background: str) -> str:
    """Return the text color with the higher contrast to a background color: black or white."""
    return max("#000000", "#ffffff", key=lambda text: compute_contrast_ratio(text, background))


@functools.cache
def build_plotly_template(*, dark: bool) -> Any:
    """Return the light or dark plotly template for figures."""
    colors = DARK if dark else LIGHT
    axis = {
        "gridcolor": colors.grid,
        "linecolor": colors.line,
        "tickcolor": colors.line,
        "zerolinecolor": colors.line,
        "zerolinewidth": 1,
        "automargin": True,
        "ticks": "",
        "title": {"standoff": 8},
    }
    invisible_ticks = {"ticks": "outside", "ticklen": 4, "tickcolor": "rgba(0,0,0,0)"}  # a gap before the labels
    layout = {
        "font": {"family": FONT, "size": 13, "color": colors.text},
        "title": {"font": {"size": 15}, "x": 0, "xref": "container", "xanchor": "left", "pad": {"l": 8}},
        "paper_bgcolor": colors.background,
        "plot_bgcolor": colors.background,
        "colorway": convert_to_dark_colors(COLORS) if dark else list(COLORS),
        "xaxis": axis,
        "yaxis": axis | invisible_ticks,
        "separators": ".,",
        "margin": {"l": 8, "r": 16, "t": 48, "b": 8},
        "hoverlabel": {
            "bgcolor": colors.hover,
            "bordercolor": colors.line,
            "font": {"family": FONT, "size": 13, "color": colors.text},
            "align": "left",
            "namelength": -1,
        },
        "legend": {"orientation": "h", "x": 0, "y": -0.22, "xanchor": "left", "yanchor": "top"},
        "bargap": 0.2,
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": colors.line, "activecolor": colors.text},
    }
    return import_graph_objects().layout.Template(layout=layout)
