"""Charts as plain objects with the structure of plotly's figures, so that they can be drawn without plotly.

``tracekit.plots.svg`` draws charts, and ``tracekit.plots.theme`` converts them to figures of plotly. As in plotly, an
underscore in the name of a property separates nested names: ``marker_color`` is the property ``color`` of ``marker``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self


class ChartTrace:
    """One series of marks in a chart, such as bars or a line: a plotly trace.

    Attributes:
        properties: Nested properties of the plotly trace by name.
    """

    __slots__ = ("properties",)

    def __init__(self, kind: str, **properties: Any) -> None:
        """Create a series of marks.

        Args:
            kind: Type of the plotly trace, such as ``bar`` or ``scatter``.
            properties: Properties of the plotly trace.
        """
        self.properties: dict[str, Any] = {"type": kind}
        _merge_properties(self.properties, properties)

    def update(self, **properties: Any) -> Self:
        """Change properties, and return the series."""
        _merge_properties(self.properties, properties)
        return self


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart.

    Attributes:
        traces: The series of marks.
        dark: Whether the chart has the dark template.
        layout: Nested properties of the layout by name, such as the title and the axes.
    """

    traces: list[ChartTrace]
    dark: bool
    layout: dict[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Title of the chart, or an empty string."""
        return str(self.layout.get("title", {}).get("text") or "")

    def add_trace(self, trace: ChartTrace) -> Self:
        """Add a series of marks, and return the chart."""
        self.traces.append(trace)
        return self

    def add_annotation(self, **properties: Any) -> Self:
        """Add a text, and return the chart."""
        annotation: dict[str, Any] = {}
        _merge_properties(annotation, properties)
        self.layout.setdefault("annotations", []).append(annotation)
        return self

    def update_layout(self, **properties: Any) -> Self:
        """Change properties of the layout, and return the chart."""
        _merge_properties(self.layout, properties)
        return self

    def update_x_axes(self, **properties: Any) -> Self:
        """Change properties of all x axes, and return the chart."""
        return self._update_axes("xaxis", properties)

    def update_y_axes(self, **properties: Any) -> Self:
        """Change properties of all y axes, and return the chart."""
        return self._update_axes("yaxis", properties)

    def _update_axes(self, first: str, properties: dict[str, Any]) -> Self:
        self.layout.setdefault(first, {})
        for name, axis in self.layout.items():
            if name.startswith(first):
                _merge_properties(axis, properties)
        return self

    def to_plotly_json(self) -> dict[str, Any]:
        """Return the chart as the JSON object of a plotly figure, without its template."""
        return {"data": [trace.properties for trace in self.traces], "layout": self.layout}


def _merge_properties(target: dict[str, Any], properties: dict[str, Any]) -> None:
    """Set nested properties. Objects are merged, and a property that is None is removed."""
    for name, value in properties.items():
        own, _, nested = name.partition("_")
        if nested:
            _merge_properties(target.setdefault(own, {}), {nested: value})
        elif value is None:
            target.pop(own, None)
        elif isinstance(value, dict):
            _merge_properties(target.setdefault(own, {}), value)
        else:
            target[own] = value
