"""Drawings as SVG: hostile values and names, sizes, and labels."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plots.test_plots import EVIL, NS, parse_drawing
from tracekit.plots import marks, scales, svg

VALUES = [1.0, 0.0, -3.0, None, float("nan"), float("inf"), -float("inf"), 10**19, 10**400, 1e-300, "x", True]


@pytest.mark.parametrize("values", [VALUES, [0, 0], [5], [-1, -2], [10**19] * 2, [1e-9], []])
@pytest.mark.parametrize("axis", [{}, {"type": "log"}, {"autorange": "reversed"}, {"range": [None, 5]}])
def test_any_value_is_drawn_or_omitted(values: list[Any], axis: dict[str, Any]) -> None:
    names, hover = [f"{n} {EVIL}" for n in range(len(values))], [EVIL] * len(values)
    numbers = list(range(len(values)))
    traces: list[dict[str, Any]] = [
        {"type": "bar", "x": names, "y": values, "customdata": hover},
        {"type": "bar", "y": names, "x": values, "orientation": "h", "customdata": hover, "name": EVIL},
        {"type": "scatter", "x": numbers, "y": values, "mode": "lines+markers", "fill": "tozeroy", "name": EVIL},
        {
            "type": "scatter",
            "x": values,
            "y": values,
            "mode": "markers+text",
            "text": names,
            "marker": {"size": values},
        },
        {"type": "heatmap", "x": [*numbers, len(values)], "z": [values, values], "zmin": 0, "zmax": 100},
        {"type": "icicle", "ids": names, "parents": ["", *names][:-1], "labels": names, "values": values},
        {"type": "box", "y": numbers, **dict.fromkeys(("lowerfence", "q1", "median", "q3", "upperfence"), values)},
    ]
    for trace in traces:
        for mode in ("stack", "group"):
            layout: dict[str, Any] = {
                "title": {"text": EVIL},
                "xaxis": axis,
                "yaxis": axis,
                "barmode": mode,
                "showlegend": True,
            }
            notes = [{"x": value, "y": value, "text": EVIL} for value in values]
            layout |= {"annotations": notes, "shapes": [{"x0": value, "x1": value} for value in values]}
            root = parse_drawing(str(svg.draw_svg({"data": [trace] * 2, "layout": layout})))
            places = [float(n) for path in root.iter(f"{NS}path") for n in re.findall(r"-?[\d.]+", path.get("d", ""))]
            assert max(map(abs, places), default=0) < 3000


def test_names_are_shortened_and_have_tooltips() -> None:
    name = "very_long_namespace::" * 9 + "kernel"
    bar = {"type": "bar", "orientation": "h", "x": [1.5], "y": [name], "customdata": [f"{name}<br>1,500 ns &lt;&#36;"]}
    layout = {"title": {"text": "Time"}, "xaxis": {"title": {"text": "Time (µs)"}}}
    root = parse_drawing(str(svg.draw_svg({"data": [bar], "layout": layout})))
    label, value = (next(t for t in root.iter(f"{NS}text") if t.get("class") == c) for c in ("tick", "c0 on"))
    ticks = [t for t in root.iter(f"{NS}text") if "…" in "".join(t.itertext())]
    assert len(ticks) == 1
    assert (ticks[0][0].text, ticks[0][0].tag) == (f"{name}\n1,500 ns <$", f"{NS}title")
    assert scales.measure_text(ticks[0][0].tail or "") <= 0.34 * 860
    assert (label.text, value.text) == ("0", "1.500 µs")


def test_sizes_are_bounded_and_extremes_are_drawn() -> None:
    numbers = list(range(20_000))
    line = [0.0] * 20_000
    line[12_321] = 9.0
    trace = {"type": "scatter", "x": numbers, "y": line, "mode": "lines", "customdata": [f"at {n}" for n in numbers]}
    root = parse_drawing(str(svg.draw_svg({"data": [trace], "layout": {"yaxis": {"range": [0, 9]}}})))
    path = next(p.get("d", "") for p in root.iter(f"{NS}path") if p.get("class", "").startswith("line"))
    assert re.search(r"(L\d+(\.\d)? |V)8(?![\d.])", path)
    assert "at 12321" in [t.text for t in root.iter(f"{NS}title")]
    points = {**trace, "mode": "markers"}
    bars = [{"type": "bar", "x": numbers[:400], "y": line[:400], "customdata": ["x" * 90] * 400}] * 8
    tree = {"ids": list(map(str, numbers)), "parents": ["", *["0"] * 19_999], "labels": list(map(str, numbers))}
    icicle = {"type": "icicle", **tree, "values": [1] * 20_000}
    heat = {"type": "heatmap", "x": [*numbers[:1001]], "z": [line[12_000:13_000]] * 300, "zmax": 9}
    for traces in ([points], bars, [icicle], [heat]):
        parse_drawing(str(svg.draw_svg({"data": traces, "layout": {}})))
    assert svg.draw_svg({"data": [heat], "layout": {}}).attributes["role"] == "img"


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=400), st.integers(1, 20))
def test_the_extremes_of_each_column_of_pixels_are_drawn(values: list[int], columns: int) -> None:
    area = marks.Area(0, 0, 40, 50)
    points = [marks.Point(40 * n / len(values), float(v), v, 6, "") for n, v in enumerate(values)]
    kept = marks._keep_extremes(points, area, columns)
    assert kept == [point for point in points if point in kept]
    assert len(kept) <= max(2 * columns, 4 * (columns // 2 + 1))
    by_column = [lambda p, n=n: int(p.x * columns / 2 / 40) == n for n in range(columns // 2 + 1)]
    for is_inside in by_column:
        every, drawn = (np.array([p.y for p in each if is_inside(p)]) for each in (points, kept))
        assert len(every) == 0 or (every.min(), every.max()) == (drawn.min(), drawn.max())


@pytest.mark.parametrize(
    ("high", "labels"),
    [
        (9e-7, ["0", "2.0·10⁻⁷", "4.0·10⁻⁷", "6.0·10⁻⁷", "8.0·10⁻⁷"]),
        (0.9, ["0", "0.2", "0.4", "0.6", "0.8"]),
        (99, ["0", "20", "40", "60", "80"]),
        (250_000, ["0", "50,000", "100,000", "150,000", "200,000", "250,000"]),
        (4.5e6, ["0", "1 M", "2 M", "3 M", "4 M"]),
        (1e19, ["0", "2 E", "4 E", "6 E", "8 E", "10 E"]),
        (1e30, ["0", "2.0·10²⁹", "4.0·10²⁹", "6.0·10²⁹", "8.0·10²⁹", "1.0·10³⁰"]),
    ],
)
def test_labels_of_ticks(high: float, labels: list[str]) -> None:
    assert [text for _, text in scales.choose_ticks(scales.Scale(0, high, 0, 100), 5)] == labels


def test_labels_of_logarithmic_ticks() -> None:
    def label(low: float, high: float) -> list[str]:
        return [text for _, text in scales.choose_ticks(scales.Scale(low, high, 0, 100, is_log=True), 5)]

    assert label(-2, 3) == ["0.01", "0.1", "1", "10", "100", "1,000"]
    assert label(5, 19) == ["100,000", "100 M", "100 G", "100 T", "100 P"]
    assert label(0.1, 0.9) == ["2", "5"]
    assert label(2.31, 2.32) == ["205", "206", "207", "208"]
    assert scales.format_power(-20) == "10⁻²⁰"
    assert [scales.format_quantity(v, u) for v, u in ((0.0125, "ms"), (3, "GiB"), (1e-9, "MiB"), (1234.5, ""))] == [
        "12.50 µs", "3 GiB", "0.001049 bytes", "1,234",
    ]  # fmt: skip
