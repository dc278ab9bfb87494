"""Draw the charts of this package as SVG that needs no script.

Colors are CSS classes, so one drawing serves the light and the dark theme: the style sheet ``svg.css`` defines them.
A drawing has no style attributes, which content security policies forbid. The marks of charts have the hover texts of
the figures as tooltips. Names in captures are escaped like all texts of elements.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from tracekit.plots import marks
from tracekit.plots.marks import Area, find_color_class, pick, read_text, write_number
from tracekit.plots.scales import FONT_SIZE, Scale, build_scale, choose_ticks, fit_text, measure_text, read_number
from tracekit.text.elements import Element, tag

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from plotly.graph_objects import Figure

    from tracekit.plots.charts import Chart
    from tracekit.plots.marks import Bar

    Json = Mapping[str, Any]

_HEIGHT, _MIN_PLOT_HEIGHT = 340, 40
_ROW_PIXELS, _MAX_ROWS_PIXELS, _MAX_STRETCH = 26, 1000, 1.5
_LINE_PIXELS, _TITLE_PIXELS, _LEGEND_PIXELS = 18, 20, 20
_MAX_LABEL_SHARE = 0.34
_MAX_LEGEND_ROWS, _MAX_LEGEND_PIXELS = 6, 260
_UNIT = re.compile(r"\(([^()]{1,16})\)$")
_MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class _Axis:
    """An axis of a subplot: its settings in the figure, its categories and the values that it shows."""

    settings: Json
    categories: Mapping[str, int]
    values: Sequence[float]

    @property
    def title(self) -> str:
        """Title of the axis, with the unit."""
        return read_text((self.settings.get("title") or {}).get("text"))

    @property
    def unit(self) -> str:
        """Unit in the title of the axis, or an empty string."""
        match = _UNIT.search(self.title)
        return match[1] if match else ""

    @property
    def labels(self) -> list[tuple[float, str]] | None:
        """Positions and labels of the ticks of an axis with categories or given ticks, or None for other axes."""
        if self.settings.get("tickmode") == "array":
            values = [read_number(value) for value in self.settings.get("tickvals") or ()]
            texts = map(read_text, self.settings.get("ticktext") or ())
            return [(v, text) for v, text in zip(values, texts, strict=False) if v is not None]
        if self.categories:
            return [(float(n), read_text(name)) for name, n in self.categories.items()]
        return None

    def build_scale(self, start: float, end: float) -> Scale:
        """Return the scale of the axis between two coordinates."""
        is_reversed = self.settings.get("autorange") == "reversed"
        bounds = self.settings.get("range") or ()
        is_log, padding = self.settings.get("type") == "log", 0.0 if self.labels is not None else 0.04
        values = [*self.values, 0.0] if self.settings.get("rangemode") == "tozero" else self.values
        return build_scale(values, (start, end), bounds=bounds, is_log=is_log, is_reversed=is_reversed, padding=padding)


def load_style_sheet() -> str:
    """Return the style sheet of the drawings, which the page that contains them has to include."""
    return _read_style_sheet()


@cache
def _read_style_sheet() -> str:
    return files("tracekit.plots").joinpath("svg.css").read_text("utf-8")


def draw_svg(figure: Chart | Figure | Json, *, width: int = 860, height: int | None = None) -> Element:
    """Draw a figure as SVG.

    Args:
        figure: A chart of ``tracekit.plots``, or the figure of plotly that shows it, or the JSON object of either.
            Other plotly figures may have parts that are not drawn.
        width: Width of the drawing in pixels. Browsers scale it to the width of its container.
        height: Height in pixels. If None, it is chosen.

    Returns:
        An ``svg`` element. Its accessible name is the title of the figure, which is not drawn.
    """
    content: Json = figure if isinstance(figure, dict) else figure.to_plotly_json()  # type: ignore[union-attr]
    layout: Json = content.get("layout") or {}
    traces: Sequence[Json] = content.get("data") or ()
    title = read_text((layout.get("title") or {}).get("text")) or "Chart"
    legend = _read_legend(traces, layout)
    if any(trace.get("type") == "icicle" for trace in traces):
        drawn, total = _draw_tree(traces[0], layout, legend, width, height)
    else:
        drawn, total = _draw_subplots(traces, layout, legend, width, height)
    return tag.svg(
        tag.desc(_describe(traces)),
        *drawn,
        viewBox=f"0 0 {width} {write_number(total)}",
        role="img",
        aria_label=title,
        class_="chart-svg",
        xmlns="http://www.w3.org/2000/svg",
    )


def _describe(traces: Sequence[Json]) -> str:
    """Return a sentence that says what a figure contains."""
    counts = [len(trace.get("customdata") or trace.get("y") or ()) for trace in traces]
    kinds = {"bar": "Bar chart", "heatmap": "Heat map", "box": "Box plot", "icicle": "Tree"}
    kind = kinds.get(str(traces[0].get("type")) if traces else "", "Line or point chart")
    names = [read_text(trace.get("name")) for trace in traces if trace.get("name")]
    shown = ", ".join(names[:_MAX_NAMED]) + (f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else "")
    rows = "row" if kind == "Heat map" else "mark"
    return f"{kind} with {sum(counts):,} {rows}{'' if sum(counts) == 1 else 's'}{f': {shown}' if shown else ''}."


def _read_legend(traces: Sequence[Json], layout: Json) -> list[tuple[str, str, str]]:
    """Return the entries of the legend: color class, shape and text."""
    own = (layout.get("meta") or {}).get("legend")
    if own:
        return [(find_color_class(color), "square", read_text(text)) for color, text in own]
    shown = layout.get("showlegend")
    if shown is False or (shown is None and len(traces) < 2):  # noqa: PLR2004
        return []
    entries = []
    for index, trace in enumerate(traces):
        if trace.get("showlegend") is False or not trace.get("name"):
            continue
        marker, line, mode = trace.get("marker") or {}, trace.get("line") or {}, str(trace.get("mode", "lines"))
        is_line = trace.get("type", "scatter") == "scatter" and "lines" in mode
        color = find_color_class(line.get("color") if is_line else pick(marker.get("color"), 0), index)
        symbol = "bar" if trace.get("type") == "bar" else str(pick(marker.get("symbol"), 0) or "circle")
        shape = f"line {line.get('dash') or 'solid'}" if is_line else symbol
        entries.append((color, shape + (" hatched" if marker.get("pattern") else ""), read_text(trace["name"])))
    return entries


def _draw_legend(entries: Sequence[tuple[str, str, str]], width: float) -> tuple[list[Element], float]:
    """Return the elements of a legend whose top is at zero, and its height."""
    drawn: list[Element] = []
    x, y = 8.0, 0.0
    for number, (color, shape, text) in enumerate(entries):
        label = fit_text(text, _MAX_LEGEND_PIXELS)
        needed = measure_text(label) + 34
        if x > 8 and x + needed > width:  # noqa: PLR2004
            x, y = 8.0, y + _LEGEND_PIXELS
            if y >= _MAX_LEGEND_ROWS * _LEGEND_PIXELS:
                more = f"and {len(entries) - number:,} more"
                drawn.append(tag.text(more, x=8, y=write_number(y + 13), class_="tick"))
                break
        kind, _, style = shape.partition(" ")
        if kind == "line":
            swatch = tag.path(d=f"M{write_number(x)} {write_number(y + 9)}h16", class_=f"line {style}")
        elif kind in ("bar", "square"):
            swatch = tag.path(d=marks.write_rectangle(x + 2, y + 4, x + 13, y + 15))
        else:
            swatch = tag.path(d=marks.write_symbol(kind, x + 8, y + 9, 9))
        class_ = f"{color} {'' if kind == 'line' else 'bar ' + style if kind == 'bar' else 'point'}".strip()
        title = tag.title(text) if label != text else None
        name = tag.text(title, label, x=write_number(x + 22), y=write_number(y + 13), class_="legend")
        drawn += [tag.g(swatch, class_=class_), name]
        x += needed
    return drawn, y + _LEGEND_PIXELS if entries else 0.0


def _draw_tree(
    trace: Json, layout: Json, legend: Sequence[tuple[str, str, str]], width: int, height: int | None
) -> tuple[list[Element], float]:
    """Return the elements of a tree, and the height of the drawing."""
    entries, legend_height = _draw_legend(legend, width)
    levels = 1 + max((node.depth for node in marks.lay_out_tree(trace, int(trace.get("maxdepth") or 16))), default=0)
    plot = height - legend_height if height else min(max((layout.get("height") or _HEIGHT) - 80, 26.0), 26.0 * levels)
    row_height = max(plot / levels, 12.0)
    area = Area(0.0, legend_height, float(width), row_height * levels)
    return [*entries, *marks.draw_icicle(trace, area, row_height)], area.bottom


def _draw_subplots(
    traces: Sequence[Json], layout: Json, legend: Sequence[tuple[str, str, str]], width: int, height: int | None
) -> tuple[list[Element], float]:
    """Return the elements of all subplots, which lie side by side and share their y axis, and the height."""
    mode = str(layout.get("barmode") or "group")
    groups: dict[str, list[Json]] = {}
    for trace in traces:
        groups.setdefault(str(trace.get("xaxis") or "x"), []).append(trace)
    plots = {name: _read_subplot(group, layout, name, mode) for name, group in (groups or {"x": []}).items()}
    y_axis = next(iter(plots.values())).y
    rows = y_axis.labels if any(_is_horizontal(trace) for trace in traces) else None
    left = _measure_left_margin(y_axis, width) if len(rows or (1,)) else 12.0
    keys = [_draw_color_bar(traces[0])] if traces and traces[0].get("type") == "heatmap" else []
    entries, legend_height = _draw_legend(legend, width)
    legend_height += 24 if keys else 0
    below = _LINE_PIXELS + (_TITLE_PIXELS if any(plot.x.title for plot in plots.values()) else 0) + 6
    top = 22.0 if layout.get("annotations") else 8.0
    plot_height = _choose_plot_height(plots, layout, rows)
    if height:
        room = height - top - below - legend_height
        plot_height = room if rows is None else min(room, _MAX_STRETCH * plot_height)
    plot_height = max(plot_height, _MIN_PLOT_HEIGHT)
    drawn: list[Element] = []
    for nth, (name, plot) in enumerate(plots.items()):
        settings = layout.get("xaxis" + name[1:]) or {}
        share = [read_number(v) or 0.0 for v in settings.get("domain") or (0, 1)]
        inner = width - left - 16
        area = Area(left + share[0] * inner, top, max((share[1] - share[0]) * inner, 10.0), plot_height)
        drawn += plot.draw(area, layout, labels_rows=nth == 0)
    bottom = top + plot_height + below
    for key in keys:
        drawn.append(tag.g(key, transform=f"translate({write_number(left)} {write_number(bottom)})"))
    where = f"translate(0 {write_number(bottom + (24 if keys else 0))})"
    return [*drawn, *([tag.g(*entries, transform=where)] if entries else [])], bottom + legend_height


def _is_horizontal(trace: Json) -> bool:
    return trace.get("orientation") == "h" or trace.get("type") == "heatmap"


def _measure_left_margin(axis: _Axis, width: int) -> float:
    """Return the space that the labels and the title of the y axis need."""
    scale = axis.build_scale(300.0, 0.0)
    if axis.settings.get("showticklabels") is False:
        return 12.0
    labels = axis.labels if axis.labels is not None else choose_ticks(scale, 6, step=axis.settings.get("dtick"))
    widest = max((measure_text(text) for _, text in labels), default=0.0)
    return min(widest + 6, _MAX_LABEL_SHARE * width) + 10 + (_TITLE_PIXELS if axis.title else 0)


def _choose_plot_height(plots: Mapping[str, _Subplot], layout: Json, rows: Sequence[tuple[float, str]] | None) -> float:
    if rows is None:
        return float(min(read_number(layout.get("height")) or _HEIGHT, 2 * _MAX_ROWS_PIXELS)) - 70
    scales = [plot.y.values for plot in plots.values() if plot.y.values]
    count = max((max(values) - min(values) for values in scales), default=1.0)
    return min(_ROW_PIXELS * max(count, 1.0), _MAX_ROWS_PIXELS) + 4


@dataclass(frozen=True, slots=True)
class _Subplot:
    """The marks and axes of one subplot."""

    bars: Sequence[Sequence[Bar]]
    others: Sequence[Json]
    x: _Axis
    y: _Axis
    is_horizontal: bool

    def draw(self, area: Area, layout: Json, *, labels_rows: bool) -> Iterator[Element]:
        """Yield the elements of the subplot.

        Args:
            area: The rectangle of the marks.
            layout: The layout of the figure.
            labels_rows: Whether the y axis has labels.
        """
        x, y = self.x.build_scale(area.left, area.right), self.y.build_scale(area.bottom, area.top)
        shapes, notes = layout.get("shapes") or (), layout.get("annotations") or ()
        yield from _draw_shapes(shapes, x, area)
        yield from _draw_x_axis(self.x, x, area)
        yield from _draw_y_axis(self.y, y, area, has_labels=labels_rows, tooltips=self._find_row_tooltips())
        for trace in self.others:
            if trace.get("type") == "heatmap":
                yield from marks.draw_heat_map(trace, x, y)
            elif trace.get("type") == "box":
                yield from marks.draw_boxes(trace, x, y, dict(self.y.labels or ()))
        if self.bars:
            unit = (self.x if self.is_horizontal else self.y).unit
            yield from marks.draw_bars(self.bars, x, y, area, horizontal=self.is_horizontal, unit=unit)
        scatter = [trace for trace in self.others if trace.get("type", "scatter") == "scatter"]
        if scatter:
            yield from marks.draw_scatter(scatter, x, y, area, self.x.categories)
        yield from _draw_annotations(notes, x, y, area)

    def _find_row_tooltips(self) -> dict[float, str]:
        """Return the tooltips of rows: those of the first bars, whose names may be longer than their labels."""
        return {bar.position: bar.tooltip for bars in self.bars[:1] for bar in bars} if self.is_horizontal else {}


def _read_subplot(traces: Sequence[Json], layout: Json, x_name: str, mode: str) -> _Subplot:
    x_settings, y_settings = layout.get("xaxis" + x_name[1:]) or {}, layout.get("yaxis") or {}
    x_categories, y_categories = _find_categories(traces, "x", x_settings), _find_categories(traces, "y", y_settings)
    bar_traces = [trace for trace in traces if trace.get("type") == "bar"]
    horizontal = any(trace.get("orientation") == "h" for trace in traces)
    bars = marks.read_bars(bar_traces, y_categories if horizontal else x_categories, mode)
    others = [trace for trace in traces if trace.get("type") != "bar"]
    places = [end for each in bars for b in each for end in (b.position - b.width / 2, b.position + b.width / 2)]
    lengths = [end for each in bars for b in each for end in (b.start, b.end)]
    x_values, y_values = (lengths, places) if horizontal else (places, lengths)
    for trace in others:
        if trace.get("type") == "heatmap":
            x_values += _read_numbers(trace["x"], x_categories)
            y_values += [-0.5, len(trace["z"]) - 0.5]
        elif trace.get("type") == "box":
            x_values += [v for name in ("lowerfence", "upperfence") for v in _read_numbers(trace[name], {})]
            y_values += [v + side for v in _read_numbers(trace["y"], {}) for side in (-0.5, 0.5)]
        else:
            x_values += _read_numbers(trace.get("x") or (), x_categories)
            y_values += _read_numbers(trace.get("y") or (), y_categories)
            y_values += [0.0] * (trace.get("fill") == "tozeroy")
    if not horizontal:
        x_values += [b.position + side * b.width for each in bars for b in each for side in (-0.6, 0.6)]
    if y_categories:
        y_values += [-0.5, len(y_categories) - 0.5]
    elif horizontal and (labels := y_settings.get("tickvals")) and bars:
        y_values += [v + side for v in _read_numbers(labels, {}) for side in (-0.5, 0.5)]
    return _Subplot(
        bars, others, _Axis(x_settings, x_categories, x_values), _Axis(y_settings, y_categories, y_values), horizontal
    )


def _read_numbers(values: Iterable[Any], categories: Mapping[str, int]) -> list[float]:
    numbers = (marks.place_category(value, categories) for value in values)
    return [number for number in numbers if number is not None]


def _find_categories(traces: Sequence[Json], axis: str, settings: Json) -> dict[str, int]:
    """Return the position of each category of an axis. It is empty for an axis of numbers."""
    keys = [key for trace in traces if trace.get("type") != "heatmap" for key in trace.get(axis) or ()]
    if settings.get("type") != "category" and not any(isinstance(key, str) for key in keys):
        return {}
    names = list(dict.fromkeys(map(str, keys)))
    if settings.get("categoryorder") == "category descending":
        names.sort(reverse=True)
    return {name: n for n, name in enumerate(names)}


def _draw_x_axis(axis: _Axis, scale: Scale, area: Area) -> Iterator[Element]:
    """Yield the ticks, grid lines and title of a horizontal axis. Labels that would overlap are omitted."""
    ticks = axis.labels
    if ticks is None:
        is_integer = str(axis.settings.get("tickformat") or "") == ",d"
        for count in (10, 8, 6, 5, 4, 3, 2):
            ticks = choose_ticks(scale, count, step=axis.settings.get("dtick"), is_integer=is_integer)
            if sum(measure_text(text) + 14 for _, text in ticks) < area.width:
                break
    right = -1e9
    for value, text in ticks or ():
        center, half = scale.place(value), measure_text(text) / 2
        x = write_number(center)
        if axis.settings.get("showgrid") is not False:
            yield tag.path(d=f"M{x} {write_number(area.top)}V{write_number(area.bottom)}", class_="grid")
        if center - half >= right:
            yield tag.text(text, x=x, y=write_number(area.bottom + 16), class_="tick", text_anchor="middle")
            right = center + half + 8
    if axis.title:
        where = {"x": write_number(area.left + area.width / 2), "y": write_number(area.bottom + 34)}
        yield tag.text(fit_text(axis.title, area.width + 60), class_="axis", text_anchor="middle", **where)


def _draw_y_axis(
    axis: _Axis, scale: Scale, area: Area, *, has_labels: bool, tooltips: Mapping[float, str]
) -> Iterator[Element]:
    """Yield the ticks, grid lines and title of a vertical axis."""
    is_named = axis.labels is not None
    ticks = axis.labels
    if ticks is None:
        ticks = choose_ticks(scale, max(2, int(area.height / 44)), step=axis.settings.get("dtick"))
    low = write_number(area.bottom)
    yield tag.path(d=f"M{write_number(area.left)} {low}H{write_number(area.right)}", class_="base")
    room = _MAX_LABEL_SHARE * (area.left + area.width)
    previous = 1e9
    for value, text in ticks:
        y = scale.place(value)
        if not is_named and axis.settings.get("showgrid") is not False:
            path = f"M{write_number(area.left)} {write_number(y)}H{write_number(area.right)}"
            yield tag.path(d=path, class_="grid")
        if not has_labels or axis.settings.get("showticklabels") is False or abs(y - previous) < FONT_SIZE:
            continue
        previous, label = y, fit_text(text, room)
        shortened = text if label != text else None
        title = marks.build_tooltip(tooltips.get(value) or shortened) if is_named else None
        where = {"x": write_number(area.left - 8), "y": write_number(y + 4)}
        yield tag.text(title, label, class_="tick", text_anchor="end", **where)
    if axis.title and has_labels:
        middle = write_number(area.top + area.height / 2)
        text = fit_text(axis.title, max(area.height + 30, 60.0))
        yield tag.text(text, class_="axis", text_anchor="middle", transform=f"translate(12 {middle}) rotate(-90)")


def _draw_color_bar(trace: Json) -> Element:
    """Return the key of the shades of a heat map."""
    low, high = read_number(trace.get("zmin")) or 0.0, read_number(trace.get("zmax"))
    unit = read_text(((trace.get("colorbar") or {}).get("title") or {}).get("text"))
    shades = [tag.path(d=f"M{n * 16} 10h16", class_=f"h{n}") for n in range(10)]
    ends = (f"{low:,.0f} {unit}", "" if high is None else f"{high:,.0f} {unit}")
    left = measure_text(ends[0]) + 8
    return tag.g(
        tag.text(ends[0], x=0, y=14, class_="tick"),
        tag.g(*shades, class_="heat", stroke_width=12, transform=f"translate({write_number(left)} 0)"),
        tag.text(ends[1], x=write_number(left + 168), y=14, class_="tick"),
    )


def _draw_shapes(shapes: Iterable[Json], x: Scale, area: Area) -> Iterator[Element]:
    """Yield the shaded parts of a chart, such as the warm-up."""
    for shape in shapes:
        ends = [read_number(shape.get(name)) for name in ("x0", "x1")]
        if ends[0] is None or ends[1] is None:
            continue
        left, right = sorted(map(x.place, (ends[0], ends[1])))
        path = marks.write_rectangle(left, area.top, max(right, left + 1), area.bottom)
        yield tag.path(d=path, class_="shaded")


def _draw_annotations(notes: Iterable[Json], x: Scale, y: Scale, area: Area) -> Iterator[Element]:
    """Yield the texts in a chart. A text that would cover an earlier one is moved or, without room, left out."""
    placed: list[tuple[float, float, float]] = []
    for note in notes:
        position, value, text = read_number(note.get("x")), read_number(note.get("y")), read_text(note.get("text"))
        if position is None or not text:
            continue
        half = measure_text(text, _NOTE_SIZE) / 2
        center = min(max(x.place(position), area.left + half), max(area.right - half, area.left))
        if note.get("yref") == "paper" or value is None:
            neighbors = [side for left, right, _ in placed for side in (right + 6 + half, left - 6 - half)]
            near = [c for c in neighbors if abs(c - center) < half and area.left <= c - half < c + half <= area.right]
            nearest = sorted((abs(c - center), c) for c in near)
            places = [(c, area.top - 8) for c in (center, *(c for _, c in nearest))]
        else:
            row = max(y.place(value) - 8, area.top + 4)
            places = [(center, row), (center, max(row - 13, area.top + 4))]
        for c, row in places:
            if all(
                abs(row - r) > _NOTE_SIZE or c + half + 5 < left or right + 5 < c - half for left, right, r in placed
            ):
                placed.append((c - half, c + half, row))
                yield tag.text(text, x=write_number(c), y=write_number(row), class_="note", text_anchor="middle")
                break


_NOTE_SIZE = 11
