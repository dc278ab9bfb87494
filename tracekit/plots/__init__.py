"""Draw charts from data frames. The modules of this package neither compute data nor read files.

Names in captures are displayed as text: ``labels`` escapes everything that plotly would interpret as markup. Charts are
drawn as SVG without plotly, which is imported when the first chart is converted to a figure of plotly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import polars as pl

    from tracekit.plots.charts import Chart


class Drawing(NamedTuple):
    """How a figure of a trace is drawn.

    Attributes:
        function: Location ``MODULE:NAME`` of the function that draws the rows, in this package.
        rows: Number of first rows that are drawn by default. None if all rows are drawn.
    """

    function: str
    rows: int | None = None


FIGURES = {
    "gpu_utilization": Drawing("bars:draw_gpu_utilization"),
    "time_breakdown": Drawing("bars:draw_time_breakdown"),
    "kernel_time": Drawing("bars:draw_kernel_time"),
    "iterations": Drawing("bars:draw_iterations"),
    "groups": Drawing("icicles:draw_group_tree"),
    "top_ops": Drawing("bars:draw_top_ops", 10),
    "top_kernels": Drawing("bars:draw_top_kernels", 10),
    "api": Drawing("bars:draw_api_calls", 10),
    "copies": Drawing("bars:draw_memory_copies"),
    "idle_causes": Drawing("bars:draw_idle_causes"),
    "utilization_over_time": Drawing("lines:draw_utilization_over_time"),
    "memory_usage": Drawing("lines:draw_memory_usage"),
    "queue_length": Drawing("lines:draw_queue_lengths"),
    "step_parts": Drawing("steps:draw_step_parts"),
    "communication_overlap": Drawing("steps:draw_communication_overlap"),
    "metrics": Drawing("lines:draw_gpu_metrics"),
    "roofline": Drawing("lines:draw_roofline"),
    "op_roofline": Drawing("lines:draw_op_roofline", 200),
    "nvtx": Drawing("icicles:draw_nvtx_tree"),
    "stacks": Drawing("icicles:draw_call_stacks"),
}
"""The figures of ``Trace.plot``, by name, which is also that of the analysis that computes the drawn rows."""


def draw_figure(name: str, rows: pl.DataFrame, *, count: int | None = None, dark: bool = False) -> Chart:
    """Draw a figure of ``FIGURES`` as a chart.

    Args:
        name: Name of the figure.
        rows: The rows that the analysis of this name computes.
        count: Number of first rows to draw. If None, it is that of the figure.
        dark: Whether to use the dark template.
    """
    drawing = FIGURES[name]
    module, _, function = drawing.function.partition(":")
    draw = getattr(import_module(f"tracekit.plots.{module}"), function)
    limit = drawing.rows if count is None else count
    chart: Chart = draw(rows if limit is None else rows.head(limit), dark=dark)
    return chart
