"""Draw the marks of charts as SVG paths: bars, lines, points, cells of heat maps, boxes and nodes of trees.

A chart with few marks has one path with a tooltip per mark. In a chart with many, one path draws all marks of a series,
and invisible areas have the tooltips of the largest marks below them. The size of a chart is therefore bounded.
"""

from __future__ import annotations

import html
import itertools
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from tracekit.plots.scales import Scale, fit_text, format_quantity, measure_text, read_number
from tracekit.plots.theme import COLORS, DARK_COLORS, LONGEST_COLOR, OUTSIDE_COLOR
from tracekit.text.elements import LINE_END, Element, tag

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

MAX_MARKS = 600
"""Maximum number of marks of a chart in which each mark has its own element and tooltip."""
_MAX_POINTS, _MAX_CELLS, _MAX_AREAS = 3000, 8000, 160
_MAX_TOOLTIP_LINES, _TOOLTIP_CHARACTERS = 40, 20_000
_TAG = re.compile(r"<[^<>]*>")
_SHADES = 10
_CLASSES = {
    **{color: f"c{n}" for n, color in enumerate(COLORS)},
    OUTSIDE_COLOR: "outside",
    LONGEST_COLOR: "longest",
}
_CLASSES |= {dark: _CLASSES[light] for light, dark in DARK_COLORS.items()}


class Mark(NamedTuple):
    """One mark of a chart.

    Attributes:
        path: The outline of the mark.
        position: Coordinate on the axis along which marks are merged if there are many.
        size: What decides which of several close marks names them in a tooltip.
        tooltip: Text of the tooltip, as plotly has it.
    """

    path: str
    position: float
    size: float
    tooltip: str


class Area(NamedTuple):
    """The rectangle in which the marks of a chart are drawn, in pixels."""

    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """Coordinate of the right edge."""
        return self.left + self.width

    @property
    def bottom(self) -> float:
        """Coordinate of the bottom edge."""
        return self.top + self.height


def find_color_class(color: Any, index: int = 0) -> str:
    """Return the CSS class of a color of a figure. An unknown color has that of the series with this index."""
    return _CLASSES.get(color, f"c{index % len(COLORS)}") if isinstance(color, str) else f"c{index % len(COLORS)}"


def read_text(markup: Any) -> str:
    """Return the text that plotly displays for a label or hover text, with line ends instead of ``<br>``."""
    if not isinstance(markup, str):
        return "" if markup is None else str(markup)
    return html.unescape(_TAG.sub("", markup.replace("<br>", "\n")))


def build_tooltip(markup: Any) -> Element | None:
    """Return the element with the tooltip of a mark, or None if the mark has none."""
    lines = read_text(markup).split("\n")
    if not any(lines):
        return None
    shown = lines[:_MAX_TOOLTIP_LINES] + ["…"] * (len(lines) > _MAX_TOOLTIP_LINES)
    separated = itertools.chain.from_iterable((LINE_END, line) for line in shown)
    return tag.title(*itertools.islice(separated, 1, None))


def write_number(value: float) -> str:
    """Write a coordinate with at most one decimal."""
    text = f"{value:.1f}"
    return text.removesuffix(".0") if text != "-0.0" else "0"


def write_rectangle(left: float, top: float, right: float, bottom: float) -> str:
    """Return the path of a rectangle."""
    x, y, width, height = (write_number(v) for v in (left, top, right - left, bottom - top))
    return f"M{x} {y}h{width}v{height}h-{width}z" if right >= left else ""


def write_line(points: Iterable[tuple[float, float]]) -> str:
    """Return the path of a line through points."""
    path: list[str] = []
    last = ("", "")
    for point in points:
        x, y = write_number(point[0]), write_number(point[1])
        if not path:
            path.append(f"M{x} {y}")
        elif x != last[0]:
            path.append(f"H{x}" if y == last[1] else f"L{x} {y}")
        elif y != last[1]:
            path.append(f"V{y}")
        last = (x, y)
    return "".join(path)


def write_symbol(symbol: Any, x: float, y: float, size: float) -> str:
    """Return the path of a marker with the name that plotly gives its shape."""
    r = size / 2
    name = str(symbol).removesuffix("-open").removesuffix("-thin")
    if name in _SYMBOLS:
        return write_line((x + dx * r, y + dy * r) for dx, dy in _SYMBOLS[name]) + "z"
    radius, d = write_number(r), write_number(2 * r)
    arcs = f"a{radius} {radius} 0 1 0 {d} 0a{radius} {radius} 0 1 0 -{d} 0z"
    return f"M{write_number(x - r)} {write_number(y)}{arcs}"


_SYMBOLS: Mapping[str, Sequence[tuple[float, float]]] = {
    "square": ((-1, -1), (1, -1), (1, 1), (-1, 1)),
    "diamond": ((0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)),
    "triangle-up": ((0, -1.2), (1.1, 0.9), (-1.1, 0.9)),
    "star": ((0, -1.5), (0.5, -0.5), (1.5, 0), (0.5, 0.5), (0, 1.5), (-0.5, 0.5), (-1.5, 0), (-0.5, -0.5)),
    "line-ew": ((-1, -0.15), (1, -0.15), (1, 0.15), (-1, 0.15)),
    "x": tuple(
        (sx * dx, sy * dy)
        for sx, sy, corners in (
            (-1, -1, ((1, 0.6), (0.6, 1), (0, 0.4))),
            (1, -1, ((0.6, 1), (1, 0.6), (0.4, 0))),
            (1, 1, ((1, 0.6), (0.6, 1), (0, 0.4))),
            (-1, 1, ((0.6, 1), (1, 0.6), (0.4, 0))),
        )
        for dx, dy in corners
    ),
}
"""Corners of the markers that are no circles, by their name in plotly, for a radius of 1."""


def draw_marks(marks: Sequence[Mark], class_: str, *, merge: bool) -> Element:
    """Return a group of marks of one color: one element per mark, or one for all."""
    if merge:
        return tag.g(tag.path(d="".join(mark.path for mark in marks)), class_=class_)
    return tag.g(
        *(tag.path(build_tooltip(mark.tooltip), d=mark.path, class_="mark") for mark in marks if mark.path),
        class_=class_,
    )


def draw_tooltip_areas(series: Sequence[Sequence[Mark]], area: Area, *, vertical: bool = False) -> Iterator[Element]:
    """Yield invisible strips across a chart, whose tooltips describe the largest mark of each series in the strip.

    Args:
        series: The marks of each series.
        area: The rectangle that the strips divide.
        vertical: Whether positions are vertical coordinates.
    """
    low, length = (area.top, area.height) if vertical else (area.left, area.width)
    positions = sorted({round(mark.position, 1) for marks in series for mark in marks if mark.tooltip})
    texts = [len(mark.tooltip) for marks in series for mark in marks[:_MAX_AREAS]]
    typical = max(1, sum(texts) // max(1, len(texts))) * max(1, sum(1 for marks in series if marks))
    count = max(12, min(_MAX_AREAS, _TOOLTIP_CHARACTERS // typical))
    if len(positions) <= count:
        edges = [low, *((a + b) / 2 for a, b in itertools.pairwise(positions)), low + length]
    else:
        edges = [low + length * n / count for n in range(count + 1)]
    largest: list[dict[int, Mark]] = [{} for _ in edges[1:]]
    for number, marks in enumerate(series):
        nth = 0
        for mark in sorted(marks, key=lambda mark: mark.position):
            while nth < len(largest) - 1 and mark.position >= edges[nth + 1]:
                nth += 1
            if mark.tooltip and (number not in largest[nth] or mark.size > largest[nth][number].size):
                largest[nth][number] = mark
    for (first, last), by_series in zip(itertools.pairwise(edges), largest, strict=True):
        if by_series:
            box = (area.left, first, area.right, last) if vertical else (first, area.top, last, area.bottom)
            lines = (line for mark in by_series.values() for line in mark.tooltip.split("<br>"))
            text = "<br>".join(dict.fromkeys(lines))  # series at one place share lines, such as the iteration
            yield tag.path(build_tooltip(text), d=write_rectangle(*box), class_="hit")


class Bar(NamedTuple):
    """One bar: its extent along the axis of positions and along that of values, in the units of the axes."""

    position: float
    width: float
    start: float
    end: float
    color: str
    is_hatched: bool
    tooltip: str
    label: str


def read_bars(traces: Sequence[Mapping[str, Any]], categories: Mapping[str, int], mode: str) -> list[list[Bar]]:
    """Return the bars of each plotly trace, stacked or side by side as the figure has them.

    Args:
        traces: The plotly traces of bars in one subplot.
        categories: Position of each category on the axis of positions.
        mode: How bars at one position are arranged, as plotly names it.
    """
    totals: dict[tuple[float, bool], float] = {}
    series = []
    for index, trace in enumerate(traces):
        keys, values = ("y", "x") if trace.get("orientation") == "h" else ("x", "y")
        marker = trace.get("marker") or {}
        positions = [place_category(key, categories) for key in trace[keys]]
        numbers = [p for p in positions if p is not None]
        gap = min((b - a for a, b in itertools.pairwise(sorted(set(numbers)))), default=1.0)
        bars = []
        for nth, (position, value) in enumerate(zip(positions, map(read_number, trace[values]), strict=True)):
            if position is None or value is None:
                continue
            width = read_number(pick(trace.get("width"), nth)) or 0.8 * gap
            start = read_number(pick(trace.get("base"), nth)) or 0.0
            center = position
            if mode == "stack":
                start = totals.get((position, value < 0), 0.0)
                totals[position, value < 0] = start + value
            elif mode == "group" and len(traces) > 1:
                width /= len(traces)
                center += width * (index - (len(traces) - 1) / 2)
            color = find_color_class(pick(marker.get("color"), nth), index)
            hover, label = pick(trace.get("customdata"), nth), pick(trace.get("text"), nth)
            is_hatched = bool(marker.get("pattern"))
            bars.append(Bar(center, width, start, start + value, color, is_hatched, hover or "", read_text(label)))
        series.append(bars)
    return series


def pick(values: Any, index: int) -> Any:
    """Return the value of a mark from the values of all marks, or from the one that they share."""
    if isinstance(values, list | tuple):
        return values[index] if index < len(values) else None
    return values


def place_category(key: Any, categories: Mapping[str, int]) -> float | None:
    """Return the position of a category, or that which a number is. It is None if there is none."""
    return float(categories[str(key)]) if str(key) in categories else read_number(key)


def draw_bars(
    series: Sequence[Sequence[Bar]], x: Scale, y: Scale, area: Area, *, horizontal: bool, unit: str
) -> list[Element]:
    """Return the elements of bars. A chart with one bar per position has labels with the values.

    Args:
        series: The bars of each series.
        x: Scale of the horizontal axis.
        y: Scale of the vertical axis.
        area: The rectangle of the chart.
        horizontal: Whether the bars are horizontal.
        unit: Unit of the values.
    """
    count = sum(len(bars) for bars in series)
    drawn: list[Element] = []
    outlines: list[list[Mark]] = []
    for bars in series:
        marks = []
        for bar in bars:
            ends = (bar.position - bar.width / 2, bar.position + bar.width / 2)
            across = sorted(map((y if horizontal else x).place, ends))
            if across[1] - across[0] < _GAPLESS_WIDTH:
                gap = (across[1] - across[0]) / 8
                across = [across[0] - gap, across[1] + gap]
            along = sorted(map((x if horizontal else y).place, (bar.start, bar.end)))
            if along[1] - along[0] < 0.05 and bar.start != bar.end:  # noqa: PLR2004
                along[1] = along[0] + 0.5
            box = (
                (along[0], across[0], along[1], across[1]) if horizontal else (across[0], along[0], across[1], along[1])
            )
            is_drawn = bar.start != bar.end
            path = write_rectangle(*box) if is_drawn else ""
            marks.append((bar, Mark(path, sum(across) / 2, abs(bar.end - bar.start), bar.tooltip)))
        outlines.append([mark for _, mark in marks])
        for (color, is_hatched), group in itertools.groupby(
            marks, key=lambda pair: (pair[0].color, pair[0].is_hatched)
        ):
            class_ = f"{color} bar hatched" if is_hatched else f"{color} bar"
            drawn.append(draw_marks([mark for _, mark in group], class_, merge=count > MAX_MARKS))
    if count > MAX_MARKS:
        return [*drawn, *draw_tooltip_areas(outlines, area, vertical=horizontal)]
    is_single = len(series) == 1 and horizontal
    return [*drawn, *(_label_bars(series[0], x, y, area, unit) if is_single else ())]


def _label_bars(bars: Sequence[Bar], x: Scale, y: Scale, area: Area, unit: str) -> Iterator[Element]:
    """Yield the values of horizontal bars, beside their ends or, where there is no room, in them."""
    for bar in bars:
        if abs(y.place(bar.position + bar.width / 2) - y.place(bar.position - bar.width / 2)) < _LABELED_HEIGHT:
            continue
        text = bar.label or format_quantity(bar.end - bar.start, unit)
        end, width = max(x.place(bar.end), x.place(bar.start)), measure_text(text) + 8
        where = {"y": write_number(y.place(bar.position) + 4)}
        if end + width <= area.right:
            yield tag.text(text, x=write_number(end + 4), class_="value", **where)
        elif end - x.place(bar.start) > width:
            yield tag.text(text, x=write_number(end - 4), text_anchor="end", class_=f"{bar.color} on", **where)


_LABELED_HEIGHT, _GAPLESS_WIDTH = 11, 4


class Point(NamedTuple):
    """One point of a line or of points, in pixels."""

    x: float
    y: float
    value: float
    size: float
    tooltip: str


def draw_scatter(
    traces: Sequence[Mapping[str, Any]], x: Scale, y: Scale, area: Area, categories: Mapping[str, int]
) -> list[Element]:
    """Return the elements of lines, of areas below and between lines, and of points.

    Args:
        traces: The plotly traces of one subplot, in the order in which they are drawn.
        x: Scale of the horizontal axis.
        y: Scale of the vertical axis.
        area: The rectangle of the chart.
        categories: Position of each category on the horizontal axis.
    """
    areas: list[Element] = []
    lines: list[Element] = []
    markers: list[Element] = []
    described: list[list[Mark]] = []
    series = [_read_points(trace, x, y, categories) for trace in traces]
    total = sum(len(points) for trace, points in zip(traces, series, strict=True) if _has_markers(trace))
    for index, (trace, points) in enumerate(zip(traces, series, strict=True)):
        marker, line = trace.get("marker") or {}, trace.get("line") or {}
        color = find_color_class(line.get("color") or pick(marker.get("color"), 0), index)
        has_lines = "lines" in str(trace.get("mode", "lines"))
        is_visible = line.get("width") != 0
        if trace.get("fill"):
            previous = series[index - 1] if trace["fill"] == "tonexty" and index else None
            areas.append(_draw_filled_area(points, previous, y, area, color=color, shape=str(line.get("shape"))))
        if has_lines and is_visible:
            dash = str(line.get("dash") or "solid")
            path = "".join(map(write_line, _split_into_segments(points, str(line.get("shape")), area)))
            lines.append(tag.g(tag.path(d=path, class_=f"line {dash}"), class_=color))
        shown = [point for point in points if point is not None]
        if _has_markers(trace):
            merge = total > MAX_MARKS
            extremes = _keep_extremes(shown, area, max(8, _MAX_POINTS // (2 * len(traces)))) if merge else shown
            marks = [
                Mark(write_symbol(pick(marker.get("symbol"), n), p.x, p.y, p.size), p.x, abs(p.value), p.tooltip)
                for n, p in enumerate(extremes)
            ]
            is_open = "open" in str(pick(marker.get("symbol"), 0))
            markers.append(draw_marks(marks, f"{color} point open" if is_open else f"{color} point", merge=merge))
        if "text" in str(trace.get("mode")):
            markers += _label_points(shown, trace.get("text"), area)
        if (has_lines and is_visible) or total > MAX_MARKS:
            described.append([Mark("", p.x, abs(p.value), p.tooltip) for p in shown])
    if len(areas) > _CLEAR_BANDS:
        areas = [tag.g(*areas, class_="faint")]
    strips = list(draw_tooltip_areas(described, area))
    return [*areas, *lines, *markers, *strips] if total > MAX_MARKS else [*areas, *lines, *strips, *markers]


_CLEAR_BANDS = 2


def _label_points(points: Sequence[Point], texts: Any, area: Area) -> Iterator[Element]:
    """Yield the texts above points. If there are many points, they have no texts."""
    for nth, point in enumerate(points[:MAX_MARKS]):
        text = read_text(pick(texts, nth))
        half = measure_text(text) / 2
        x = min(max(point.x, area.left + half), max(area.right - half, area.left))
        y = max(point.y - point.size, area.top + 4)
        yield tag.text(text, x=write_number(x), y=write_number(y), class_="note", text_anchor="middle")


def _has_markers(trace: Mapping[str, Any]) -> bool:
    return "markers" in str(trace.get("mode", "lines"))


def _read_points(trace: Mapping[str, Any], x: Scale, y: Scale, categories: Mapping[str, int]) -> list[Point | None]:
    """Return the points of a plotly trace. A missing value interrupts its line and is None."""
    points: list[Point | None] = []
    size, hover = (trace.get("marker") or {}).get("size", 6), trace.get("customdata")
    for nth, (key, raw) in enumerate(zip(trace["x"], trace["y"], strict=True)):
        position, value = place_category(key, categories), read_number(raw)
        if position is None or value is None or (x.is_log and position <= 0) or (y.is_log and value <= 0):
            points.append(None)
            if position is not None and str((trace.get("line") or {}).get("shape")) == "hv" and points[:-1]:
                before = points[-2]
                points[-1] = before and before._replace(x=x.place(position), tooltip="")
                points.append(None)
            continue
        pixels = min(60.0, read_number(pick(size, nth)) or 6.0)
        points.append(Point(x.place(position), y.place(value), value, pixels, pick(hover, nth) or ""))
    return points


def _split_into_segments(points: Sequence[Point | None], shape: str, area: Area) -> Iterator[list[tuple[float, float]]]:
    """Yield the parts of a line between missing values, with the corners of steps and reduced to what pixels show."""
    for is_missing, group in itertools.groupby(points, key=lambda point: point is None):
        if not is_missing:
            extremes = _keep_extremes([point for point in group if point is not None], area, int(2 * area.width))
            places = [(point.x, point.y) for point in extremes]
            if shape == "hv":
                corners = [(b[0], a[1]) for a, b in itertools.pairwise(places)]
                places = [*itertools.chain.from_iterable(zip(places, corners, strict=False)), places[-1]]
            yield places if len(places) > 1 else [places[0], (places[0][0] + 1, places[0][1])]


def _keep_extremes(points: Sequence[Point], area: Area, columns: int) -> list[Point]:
    """Return the first, the lowest, the highest and the last point in each column of pixels, in their order."""
    if len(points) <= 2 * columns:
        return list(points)
    extremes: dict[int, None] = {}
    by_column = itertools.groupby(
        range(len(points)), key=lambda n: int((points[n].x - area.left) * columns / 2 / max(area.width, 1))
    )
    for _, group in by_column:
        rows = list(group)
        low, high = min(rows, key=lambda n: points[n].y), max(rows, key=lambda n: points[n].y)
        extremes |= dict.fromkeys(sorted({rows[0], low, high, rows[-1]}))
    return [points[n] for n in extremes]


def _draw_filled_area(
    points: Sequence[Point | None],
    previous: Sequence[Point | None] | None,
    y: Scale,
    area: Area,
    *,
    color: str,
    shape: str,
) -> Element:
    """Return the area between a line and the previous one, or between a line and zero."""
    upper, lower = (
        list(itertools.chain.from_iterable(_split_into_segments(line, shape, area)))
        for line in (points, previous or ())
    )
    lower = lower if previous is not None else [(x, y.place(0)) for x, _ in (upper[:1] + upper[-1:])]
    path = write_line([*upper, *reversed(lower)]) + "z" if upper and lower else ""
    return tag.g(tag.path(d=path, class_="area"), class_=color)


def draw_heat_map(trace: Mapping[str, Any], x: Scale, y: Scale) -> list[Element]:
    """Return the elements of a heat map: one path per shade, and tooltips.

    If a map has many columns, a cell shows the largest value of several of them.
    """
    edges, rows = [read_number(edge) or 0.0 for edge in trace["x"]], trace["z"]
    low, high = read_number(trace.get("zmin")) or 0.0, read_number(trace.get("zmax"))
    high = high if high is not None and high > low else low + 1
    width = max((len(row) for row in rows), default=0)
    columns = max(1, min(width, max(24, _MAX_CELLS // max(len(rows), 1)), int(abs(x.end - x.start) / 2)))
    size = -(-width // columns) if width else 1
    described = max(1, -(-len(rows) * -(-width // size) // (2 * MAX_MARKS)))
    paths: list[list[str]] = [[] for _ in range(_SHADES)]
    hits: list[Element] = []
    for nth, row in enumerate(rows):
        top, bottom = sorted((y.place(nth - 0.5), y.place(nth + 0.5)))
        texts = pick(trace.get("customdata"), nth)
        cells = list(_read_cells(row, size, texts))
        shades = [None if v is None else _choose_shade((v - low) / (high - low)) for v, _ in cells]
        for shade, group in itertools.groupby(range(len(cells)), key=lambda n: shades[n]):
            numbers = list(group)
            if shade is not None:
                left, right = x.place(edges[numbers[0] * size]), x.place(edges[min((numbers[-1] + 1) * size, width)])
                middle = write_number((top + bottom) / 2)
                paths[shade].append(f"M{write_number(left)} {middle}h{write_number(right - left)}")
        for first in range(0, len(cells), described):
            group_ = cells[first : first + described]
            text = max(group_, key=lambda cell: -1.0 if cell[0] is None else cell[0])[1]
            ends = edges[first * size], edges[min((first + described) * size, width)]
            box = write_rectangle(x.place(ends[0]), top, x.place(ends[1]), bottom)
            hits.append(tag.path(build_tooltip(text), d=box, class_="hit"))
    filled = [tag.path(d="".join(path), class_=f"h{shade}") for shade, path in enumerate(paths) if path]
    height = write_number(abs(y.place(1) - y.place(0)) + 0.1)
    return [tag.g(*filled, class_="heat", stroke_width=height), *hits]


def _choose_shade(share: float) -> int:
    """Return the number of the shade of a share of the largest value. Only values up to zero have the first shade."""
    return 0 if share <= 0 else 1 + min(_SHADES - 2, int(share * (_SHADES - 1)))


def _read_cells(row: Sequence[Any], size: int, texts: Any) -> Iterator[tuple[float | None, str]]:
    """Yield the largest value of each ``size`` columns of a heat map, and its hover text."""
    values = [read_number(value) for value in row]
    for first in range(0, len(values), size):
        numbers = [n for n in range(first, min(first + size, len(values))) if values[n] is not None]
        if not numbers:
            yield None, pick(texts, first) or ""
            continue
        largest = max(numbers, key=lambda n: values[n] or 0.0)
        note = f"<br>the largest of {len(numbers)} bins" if size > 1 else ""
        yield values[largest], (pick(texts, largest) or "") + note


def draw_boxes(trace: Mapping[str, Any], x: Scale, y: Scale, names: Mapping[float, str]) -> list[Element]:
    """Return the elements of horizontal box plots.

    Args:
        trace: The plotly trace.
        x: Scale of the values.
        y: Scale of the positions.
        names: The labels of positions.
    """
    marks = []
    statistics = ("lowerfence", "q1", "median", "q3", "upperfence")
    rows = zip(trace["y"], *(trace[name] for name in statistics), trace.get("mean") or trace["median"], strict=True)
    for position, *values, mean in rows:
        numbers, center = [read_number(value) for value in values], read_number(position)
        if center is None or None in numbers:
            continue
        low, q1, median, q3, high = (x.place(number or 0.0) for number in numbers)
        middle, half = y.place(center), min(10.0, abs(y.place(center + 0.35) - y.place(center)))
        whiskers = "".join(write_line([(x0, middle), (x1, middle)]) for x0, x1 in ((low, q1), (q3, high)))
        ends = "".join(write_line([(v, middle - half), (v, middle + half)]) for v in (low, median, high))
        path = whiskers + ends + write_rectangle(q1, middle - half, q3, middle + half)
        titles = ("min", "Q1", "median", "Q3", "max")
        parts = [f"{title} {_format_exactly(value)}" for title, value in zip(titles, values, strict=True)]
        text = "<br>".join([names.get(center, ""), *parts, f"mean {_format_exactly(mean)}"])
        marks.append(Mark(path, middle, 0.0, text))
    color = find_color_class((trace.get("line") or {}).get("color"))
    return [draw_marks(marks, f"{color} box", merge=len(marks) > MAX_MARKS)]


def _format_exactly(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | float) else "unknown"


class Node(NamedTuple):
    """One node of a tree, with the extent of its rectangle as shares of the width of the root."""

    number: int
    depth: int
    start: float
    end: float


def draw_icicle(trace: Mapping[str, Any], area: Area, row_height: float) -> list[Element]:
    """Return the elements of a tree: one row per level, and each node below its parent.

    Nodes that are narrower than a pixel are drawn without a tooltip.

    Args:
        trace: The plotly trace.
        area: The rectangle of the chart.
        row_height: Height of a level in pixels.
    """
    colors = (trace.get("marker") or {}).get("colors")
    nodes = sorted(lay_out_tree(trace, int(area.height // row_height)), key=lambda node: node.start - node.end)
    drawn: list[Element] = []
    narrow: list[tuple[int, float, float, str]] = []
    for nth, node in enumerate(nodes):
        left, right = area.left + node.start * area.width, area.left + node.end * area.width
        top = area.top + node.depth * row_height
        color = find_color_class(pick(colors, node.number), node.depth)
        if nth >= MAX_MARKS or right - left < 1:
            narrow.append((node.depth, left, right, color))
            continue
        box = write_rectangle(left + 0.5, top + 0.5, max(right - 0.5, left + 1), top + row_height - 0.5)
        label = fit_text(read_text(pick(trace["labels"], node.number)), right - left - 8)
        middle = top + row_height / 2 + 4
        text = tag.text(label, x=write_number(left + 5), y=write_number(middle), class_="on") if label else None
        title = build_tooltip(pick(trace.get("customdata"), node.number))
        drawn.append(tag.g(title, tag.path(d=box, class_="mark"), text, class_=f"{color} node"))
    return [*_draw_narrow_nodes(narrow, area, row_height), *drawn]


def _draw_narrow_nodes(
    nodes: Iterable[tuple[int, float, float, str]], area: Area, row_height: float
) -> Iterator[Element]:
    """Yield one path per color. Nodes of one level that share a pixel are drawn as one rectangle."""
    extents: list[tuple[int, float, float, str]] = []
    for depth, left, right, color in sorted(nodes):
        if extents and extents[-1][0] == depth and right - extents[-1][1] < 1:
            extents[-1] = (depth, extents[-1][1], right, extents[-1][3])
        else:
            extents.append((depth, left, right, color))
    paths: dict[str, list[str]] = {}
    for depth, left, right, color in extents:
        top = area.top + depth * row_height
        box = write_rectangle(left, top + 0.5, max(right, left + 0.5), top + row_height - 0.5)
        paths.setdefault(color, []).append(box)
    for color, boxes in paths.items():
        yield tag.g(tag.path(d="".join(boxes)), class_=f"{color} node")


def lay_out_tree(trace: Mapping[str, Any], levels: int) -> list[Node]:
    """Return the place of each node of an icicle on the first levels. The widest children of a node come first."""
    own = [max(read_number(value) or 0.0, 0.0) for value in trace["values"]]
    numbers = {key: n for n, key in enumerate(trace["ids"])}
    parents = [numbers.get(parent) if parent else None for parent in trace["parents"]]
    children: list[list[int]] = [[] for _ in own]
    roots: list[int] = []
    for n, parent in enumerate(parents):
        (roots if parent is None or parent >= n else children[parent]).append(n)
    widths = list(own)
    for n in range(len(own) - 1, -1, -1):
        parent = parents[n]
        if parent is not None and parent < n:
            widths[parent] += widths[n]
    total = sum(widths[n] for n in roots) or 1.0
    nodes = []
    pending = [(0.0, roots, 0)]
    while pending:
        start, siblings, depth = pending.pop()
        for n in sorted(siblings, key=lambda n: -widths[n]):
            share = widths[n] / total
            nodes.append(Node(n, depth, start, start + share))
            if children[n] and depth + 1 < levels:
                pending.append((start, children[n], depth + 1))
            start += share
    return nodes
