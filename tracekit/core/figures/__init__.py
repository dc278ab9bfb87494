"""Compute the data of figures and pages, reduced to a few thousand rows regardless of the size of the capture.

``overview`` summarizes a roll-up, ``totals`` adds up activities by name, ``timeline`` samples values over time,
``trees`` reduces trees of groups and of NVTX ranges to their largest nodes, ``stacks`` sums up call stacks, and
``messages`` collects what the profiler recorded.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracekit import schemas
from tracekit.plots.theme import PART_NAMES
from tracekit.registry.analyses import Analysis, Option
from tracekit.registry.notices import GPU_ACTIVITIES
from tracekit.registry.tables import scan_table
from tracekit.schemas import Column, TableSchema

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl

    from tracekit.core.rollup import Rollup
    from tracekit.registry.interface import View

    Frames = Callable[[str], pl.LazyFrame]


@dataclass(frozen=True, slots=True)
class FigureInputs:
    """The input of the functions that compute the data of figures and pages.

    If a capture lacks the data, these functions raise ``MissingTableError`` with a message that states what is missing.
    The caller adds the reason.

    Attributes:
        view: The tables and reports of the trace.
        get_rollup: Function that returns the roll-up of the trace.
        correlated_frames: Function that returns the tables of the correlated trace.
        window: The time window ``[a, b)`` in ns to which the trace is limited. Either bound may be None.
    """

    view: View
    get_rollup: Callable[[], Rollup]
    correlated_frames: Frames
    window: tuple[int | None, int | None]

    @property
    def frames(self) -> Frames:
        """Function that returns the tables of the trace."""
        return functools.partial(scan_table, self.view.tables)


MAX_POINTS = 4000
"""Maximum number of points of a line chart."""
MAX_NODES = 1000
"""Maximum number of nodes of an icicle chart."""
MAX_BARS = 400
"""Maximum number of bars in a bar chart."""
MAX_METRICS = 8
"""Number of GPU metrics that are drawn by default."""
GROUP_METRICS = ("gpu_time_ns", "cpu_time_ns", "api_time_ns", "cpu_overhead_ns", "gpu_idle_ns")
"""Columns of ``group_nodes`` whose values can be drawn."""
_OPS = ("nvtx_ranges", "kernels", "graph_launches")
_OPS_OR_GPU = (*_OPS, "memcpys", "memsets")
NODES = Option("nodes", "Maximum number of nodes.", "integer", MAX_NODES, minimum=1)
_ROWS = Option("rows", "Approximate number of rows.", "integer", MAX_POINTS, minimum=1)
NAME = Column("name", "string", "Name.", nullable=True)
_TIME = Column("time_ns", "int64", "Sum of the durations.", "ns")
_COUNT = Column("count", "int64", "Number of occurrences.")
_PERCENT = Column("percent", "float64", "Share of the total time.", "%")
_DEVICE = Column("device_id", "int32", "Id of the GPU.", references="devices.device_id")
_TIMESTAMP = Column("timestamp_ns", "int64", "Time.", "ns")
_TREE = (
    Column("node", "int64", "Id of the node."),
    Column("parent", "int64", "Id of the parent. Null for the root.", nullable=True),
    Column("path", "string", "Path of the node."),
    NAME,
    Column("direction", "string", "Direction of the ops: fprop or bprop.", nullable=True),
    Column("count", "int64", "Number of calls or ranges."),
    Column("value", "int64", "Value of the metric.", "ns"),
    Column("width", "int64", "Value, or the sum of the widths of the children if that is larger.", "ns"),
    Column("own", "int64", "Width that the children in the tree do not fill.", "ns"),
    Column("metric", "string", "Name of the metric."),
)


def declare_figure(
    name: str,
    doc: str,
    compute: Callable[..., pl.DataFrame] | str,
    columns: tuple[Column, ...],
    *,
    tables: tuple[str, ...],
    options: tuple[Option, ...] = (),
) -> Analysis:
    """Return the declaration of data that a figure or page shows.

    Args:
        name: Name of the analysis, which is that of the figure if there is one.
        doc: Description of one row.
        compute: Function that computes the rows, or its location ``MODULE:NAME`` in this package. It is called with
            ``FigureInputs`` and the values of the options as keyword arguments.
        columns: The columns of the rows.
        tables: The tables that state why the rows are missing.
        options: The options.
    """
    function = f"tracekit.core.figures.{compute}" if isinstance(compute, str) else compute
    return Analysis("figure", name, doc, function, (TableSchema(name, doc, (), columns),), options, tables)


ANALYSES = (
    declare_figure(
        "gpu_utilization",
        "One GPU, with the time in which it ran kernels in the aggregated iterations.",
        "overview:gpu_utilization",
        (
            _DEVICE,
            NAME,
            Column("busy_ns", "int64", "Time in which the GPU ran kernels.", "ns"),
            Column("total_ns", "int64", "Total duration of the aggregated iterations.", "ns"),
            Column("percent", "float64", "Share of the total duration.", "%"),
        ),
        tables=GPU_ACTIVITIES,
    ),
    declare_figure(
        "time_breakdown",
        "One part of the aggregated iterations, such as Tensor Core kernels, averaged over the used GPUs.",
        "overview:time_breakdown",
        (Column("part", "string", "Name of the part."), _TIME, _PERCENT),
        tables=_OPS_OR_GPU,
    ),
    declare_figure(
        "kernel_time",
        "One kind of GPU activities in the aggregated iterations.",
        "overview:kernel_time",
        (Column("kind", "string", "Kind of the activities."), _TIME, _COUNT),
        tables=GPU_ACTIVITIES,
    ),
    declare_figure(
        "iteration_table",
        schemas.table("iterations").doc,
        "overview:iteration_table",
        schemas.table("iterations").columns,
        tables=_OPS_OR_GPU,
    ),
    declare_figure(
        "iterations",
        "One iteration, or several consecutive iterations if there are many.",
        "overview:iterations",
        (
            Column("first", "int64", "Number of the first iteration."),
            Column("last", "int64", "Number of the last iteration."),
            Column("duration_ns", "int64", "Mean duration of the iterations.", "ns"),
            Column("is_aggregated", "bool", "Whether the iterations are aggregated."),
            Column("is_warm_up", "bool", "Whether the iterations are the warm-up."),
            *(Column(part, "int64", f"Mean time in the part {title}.", "ns") for part, title in PART_NAMES.items()),
            Column("longest", "int64", "Number of the longest iteration."),
            Column("longest_ns", "int64", "Duration of the longest iteration.", "ns"),
            Column("longest_name", "string", "Name of the longest iteration.", nullable=True),
        ),
        tables=_OPS_OR_GPU,
        options=(Option("bins", "Maximum number of rows.", "integer", MAX_BARS, minimum=1),),
    ),
    declare_figure(
        "top_ops", "One op, the longest first.", "overview:top_ops", schemas.table("ops").columns, tables=_OPS
    ),
    declare_figure(
        "op_groups",
        "The group of one op.",
        "overview:op_groups",
        (
            Column("op_id", "string", "Id of the op."),
            Column("group_path", "string", "Path of the group."),
            Column("group_direction", "string", "Direction of the group.", nullable=True),
        ),
        tables=_OPS,
    ),
    declare_figure(
        "groups",
        "One group or op with a large value of a metric, as a node of a tree.",
        "trees:groups",
        (*_TREE, Column("op_id", "string", "Id of the op. Null for groups.", nullable=True)),
        tables=_OPS,
        options=(
            Option("metric", "Column of group_nodes with the values.", default="gpu_time_ns", choices=GROUP_METRICS),
            Option("direction", "Direction of the ops; by default, both.", choices=("fprop", "bprop")),
            NODES,
        ),
    ),
    declare_figure(
        "top_kernels",
        "One kernel name, the longest first. Without kernels, one name of those that Nsight Compute profiled.",
        "totals:top_kernels",
        (NAME, _TIME, _COUNT, _PERCENT),
        tables=("kernels",),
    ),
    declare_figure(
        "api",
        "One function of the CUDA API, the longest first.",
        "totals:api",
        (NAME, _TIME, _COUNT, _PERCENT),
        tables=("api_calls",),
    ),
    declare_figure(
        "copies",
        "One kind of memory copies, or memory sets, the longest first.",
        "totals:copies",
        (NAME, _TIME, _COUNT, Column("bytes", "int64", "Size of the memory.", "bytes")),
        tables=("memcpys", "memsets"),
    ),
    declare_figure(
        "idle_causes", "One cause of idle time on one GPU.", "totals:idle_causes", (), tables=GPU_ACTIVITIES
    ),
    declare_figure(
        "utilization_over_time",
        "One GPU in one bin of time.",
        "timeline:utilization_over_time",
        (
            _DEVICE,
            Column("start_ns", "int64", "Start of the bin.", "ns"),
            Column("end_ns", "int64", "End of the bin.", "ns"),
            Column("busy_ns", "int64", "Time in which at least one activity ran on the GPU.", "ns"),
        ),
        tables=GPU_ACTIVITIES,
        options=(
            Option("bins", "Number of bins; fewer if there would be too many rows.", "integer", 400, minimum=1),
            Option("device", "Id of the GPU; by default, all GPUs.", "integer"),
            _ROWS,
        ),
    ),
    declare_figure(
        "memory_usage",
        "The memory of one kind in use on one device after a change.",
        "timeline:memory_usage",
        (
            _TIMESTAMP,
            _DEVICE,
            Column("memory_kind", "string", "Kind of the memory.", nullable=True),
            Column("used_bytes", "int64", "Memory in use.", "bytes"),
        ),
        tables=("memory_events",),
        options=(_ROWS,),
    ),
    declare_figure(
        "metrics",
        "One sample of a GPU metric.",
        "timeline:metrics",
        (
            _TIMESTAMP,
            _DEVICE,
            Column("metric", "string", "Name of the metric."),
            Column("value", "float64", "Value of the metric."),
        ),
        tables=("gpu_metrics",),
        options=(
            Option("names", "Names of the metrics; by default, the percentages with the highest values.", "list"),
            Option("count", "Number of metrics if none are named.", "integer", MAX_METRICS, minimum=1),
            _ROWS,
        ),
    ),
    declare_figure(
        "roofline", "One kernel name with a position in the roofline.", "totals:roofline", (), tables=("ncu_launches",)
    ),
    declare_figure(
        "nvtx",
        "One path of NVTX ranges with a large GPU time or duration, as a node of a tree.",
        "trees:nvtx",
        _TREE,
        tables=("nvtx_ranges",),
        options=(NODES,),
    ),
    declare_figure(
        "recorded_messages",
        "One warning, error or finding that the profiler recorded.",
        "messages:recorded_messages",
        (
            Column("tool", "string", "The profiler."),
            Column("kind", "string", "Kind of the message: Error, Warning, Finding or Optimization."),
            Column("rule", "string", "Rule that found it.", nullable=True),
            Column("message", "string", "Text of the message.", nullable=True),
            Column("recommendation", "string", "What the rule recommends.", nullable=True),
            Column("count", "int64", "Number of messages."),
            Column("speedup_percent", "float64", "Estimated speedup.", "%", nullable=True),
        ),
        tables=("diagnostics", "findings", "ncu_rules"),
    ),
)
"""The data that figures and pages show."""
