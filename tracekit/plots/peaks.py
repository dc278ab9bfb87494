"""Keep a few long durations from setting the scale of a chart. They are cut off, marked and named."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tracekit.plots.charts import Chart, ChartTrace
from tracekit.plots.labels import format_short_duration
from tracekit.plots.theme import LONGEST_COLOR, convert_to_dark_colors

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_MAX_NAMED = 8
_OUTLIER_FACTOR, _WARM_UP_FACTOR = 8, 1.5
_ROOM = 1.12


class Peak(NamedTuple):
    """A long duration in a chart.

    Attributes:
        position: Place on the x axis.
        ns: The duration.
        label: What took so long.
        is_outlier: Whether it is named even if it is not cut off.
        hover: Hover text.
    """

    position: float
    ns: int
    label: str
    is_outlier: bool
    hover: str


def choose_highest_duration(usual: Iterable[int], outliers: Iterable[int], warm_up: Iterable[int]) -> int | None:
    """Return the highest duration that a chart shows, or None if it shows all.

    Outliers are cut off if they are more than 8 times as long as the longest usual duration, and the warm-up if it is
    more than 1.5 times as long. If there are no usual durations, nothing is cut off.
    """
    longest = max(usual, default=0)
    if not longest:
        return None
    limits = [(ns, _OUTLIER_FACTOR * longest) for ns in outliers] + [(ns, _WARM_UP_FACTOR * longest) for ns in warm_up]
    highest = max([longest, *(ns for ns, limit in limits if ns <= limit)])
    return highest if any(ns > highest for ns, _ in limits) else None


def mark_peaks(figure: Chart, peaks: Sequence[Peak], highest_ns: int | None, ns_per_unit: int, *, dark: bool) -> Chart:
    """Name the longest peaks of a chart, limit its y axis, and mark what it cuts off. Return the figure.

    Args:
        figure: The figure, whose y axis shows durations.
        peaks: The outliers and the durations that may be cut off.
        highest_ns: The highest duration that the chart shows, or None.
        ns_per_unit: Number of ns in the unit of the y axis.
        dark: Whether the figure has the dark template.
    """
    cut = [peak for peak in peaks if highest_ns is not None and peak.ns > highest_ns]
    named = sorted((peak for peak in peaks if peak.is_outlier or peak in cut), key=lambda peak: -peak.ns)[:_MAX_NAMED]
    for peak in named:
        is_cut = peak in cut
        text = f"{peak.label}: {format_short_duration(peak.ns)}"
        place = {"y": 1, "yref": "paper"} if is_cut else {"y": peak.ns / ns_per_unit}
        figure.add_annotation(x=peak.position, text=text, showarrow=False, yanchor="bottom", **place)
    if highest_ns is not None:
        top = _ROOM * highest_ns / ns_per_unit
        figure.update_y_axes(range=[0, top])
        figure.add_trace(
            ChartTrace(
                "scatter",
                x=[peak.position for peak in cut],
                y=[top] * len(cut),
                mode="markers",
                name="Longer than the chart is high",
                marker={
                    "symbol": "triangle-up",
                    "size": 9,
                    "color": convert_to_dark_colors(LONGEST_COLOR) if dark else LONGEST_COLOR,
                },
                customdata=[peak.hover for peak in cut],
                hovertemplate="%{customdata}<extra></extra>",
                cliponaxis=False,
            )
        )
    return figure
