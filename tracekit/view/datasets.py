"""The declarations of the tables on pages of the viewer: how their rows are computed, sorted, linked and shown.

To add a table to a page, add a ``Dataset`` to ``DATASETS`` and name it in ``pages.PAGES``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracekit.errors import TracekitError
from tracekit.view import sources
from tracekit.view.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracekit.view.captures import Rows
    from tracekit.view.sources import TableInputs


@dataclass(frozen=True, slots=True)
class Link:
    """A link from each row to another page.

    Attributes:
        page: Name of the page.
        label: Text of the link.
        filters: Maps columns of the linked table to columns of this table. The linked page shows only rows whose values
            in the former equal the values of the clicked row in the latter.
        table: Name of the table on the linked page.
    """

    page: str
    label: str
    table: str
    filters: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Dataset:
    """The declaration of a table that pages show.

    Attributes:
        name: Name, which is part of the URL.
        title: Heading above the table.
        rows: Function that computes the rows.
        sort: The initial sort order: a column and ``desc`` or ``asc``, such as ``total_time_ns:desc``.
        first: Columns that are shown before the others.
        hidden: Columns that are hidden until the user selects them.
        key: Column that identifies a row, for tables with detail tables below them.
        select: Arguments that detail tables receive when a row is selected. Maps the name of each argument to the
            column of the row that contains its value.
        has_sums: Whether the sums of the columns are meaningful and shown.
        link: Link from each row to another page.
        note: Sentence above the table.
        tree: Columns that define a tree of rows. None if the rows do not form a tree.
    """

    name: str
    title: str
    rows: Callable[[TableInputs], Rows]
    sort: str = ""
    first: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    key: str | None = None
    select: Mapping[str, str] = field(default_factory=dict)
    has_sums: bool = True
    link: Link | None = None
    note: str = ""
    tree: Tree | None = None


PARTS = tuple(
    f"in_{part}_ns"
    for part in ("tensor_core_kernels", "other_kernels", "memory_ops", "dataloader", "io", "cpu", "nothing")
)
"""Columns of iterations that the figure above the table shows."""

DATASETS: Mapping[str, Dataset] = {
    each.name: each
    for each in (
        Dataset(
            "op_types",
            "Op types",
            sources.read_op_types,
            "total_gpu_time_ns:desc",
            link=Link("ops", "Ops", "ops", {"op_type": "op_type"}),
        ),
        Dataset(
            "ops",
            "Ops",
            sources.create_table_reader("ops", "gpu_time_ns"),
            "gpu_time_ns:desc",
            first=(
                "op_name",
                "direction",
                "op_type",
                "gpu_time_ns",
                "share_percent",
                "cpu_time_ns",
                "instance_count",
                "kernel_count",
            ),
            hidden=("is_associated", "stack_trace", "api_time_ns"),
            key="op_id",
            select={"op_id": "op_id"},
            note="Select an op to see its kernels and calls below.",
        ),
        Dataset("op_kernels", "Kernels of the op", sources.read_op_kernels, "total_gpu_time_ns:desc"),
        Dataset(
            "op_instances",
            "Calls of the op",
            sources.read_op_instances,
            "gpu_time_ns:desc",
            first=(
                "op_instance_id",
                "iteration",
                "gpu_time_ns",
                "cpu_time_ns",
                "kernel_count",
                "input_shapes",
                "output_shapes",
            ),
            hidden=("op_id", "op_name", "process_id"),
        ),
        Dataset(
            "kernel_iterations",
            "Iterations",
            sources.read_iterations,
            "iteration:asc",
            key="iteration",
            select={"iteration": "iteration"},
            note="Select an iteration to see its kernels below.",
            hidden=PARTS,
        ),
        Dataset(
            "op_iterations",
            "Iterations",
            sources.read_iterations,
            "iteration:asc",
            key="iteration",
            select={"iteration": "iteration"},
            note="Select an iteration to see its ops below.",
            hidden=PARTS,
        ),
        Dataset("iterations", "Iterations", sources.read_iterations, "iteration:asc"),
        Dataset(
            "iteration_kernels",
            "Kernels of the iteration",
            sources.read_iteration_kernels,
            "gpu_duration_ns:desc",
            hidden=("op_type", "op_id", "direction", "start_ns", "end_ns", "iteration"),
        ),
        Dataset(
            "iteration_ops",
            "Ops of the iteration",
            sources.read_iteration_ops,
            "gpu_time_ns:desc",
            key="op_id",
            select={"op_id": "op_id"},
            note="Select an op to see its kernels below.",
        ),
        Dataset("gpus", "GPUs", sources.read_gpus, "device_id:asc"),
        Dataset(
            "kernels",
            "Kernels by name and launch shape",
            sources.read_launch_shapes,
            "total_time_ns:desc",
            key="shape_id",
            select={"name": "name", "grid": "grid", "block": "block"},
            hidden=("shape_id", "first_start_ns"),
            note="Select a row to see its launches below.",
        ),
        Dataset(
            "launches",
            "Launches",
            sources.read_launches,
            "start_ns:asc",
            first=(
                "kernel_id",
                "short_name",
                "duration_ns",
                "start_ns",
                "device_id",
                "stream_id",
                "range_path",
                "op_name",
            ),
            hidden=(
                "mangled_name",
                "green_context_id",
                "grid_id",
                "launch_type",
                "local_memory_total_bytes",
                "process_id",
                "context_id",
                "correlation_id",
                "api_call_id",
            ),
        ),
        Dataset(
            "copies",
            "Memory operations by kind",
            sources.create_report_reader("cuda_gpu_mem_time_sum"),
            "total_time_ns:desc",
        ),
        Dataset("copy_sizes", "Sizes by kind", sources.create_report_reader("cuda_gpu_mem_size_sum"), "total_mb:desc"),
        Dataset(
            "memcpys",
            "Memory copies",
            sources.create_interval_reader("memcpys"),
            "start_ns:asc",
            first=("memcpy_id", "copy_kind", "bytes", "duration_ns"),
        ),
        Dataset(
            "memsets",
            "Memory sets",
            sources.create_interval_reader("memsets"),
            "start_ns:asc",
            first=("memset_id", "bytes", "duration_ns"),
        ),
        Dataset("memory_peak", "Peak of GPU memory", sources.create_report_reader("gpu_memory_peak")),
        Dataset("memory_alive", "Allocations at the peak", sources.create_report_reader("gpu_memory_alive")),
        Dataset("api", "API calls by function", sources.create_report_reader("cuda_api_sum"), "total_time_ns:desc"),
        Dataset(
            "api_calls",
            "API calls",
            sources.create_interval_reader("api_calls"),
            "start_ns:asc",
            first=("api_call_id", "name", "duration_ns", "start_ns"),
            hidden=("name_id", "callchain_id"),
        ),
        Dataset(
            "osrt", "Operating system calls by function", sources.create_report_reader("osrt_sum"), "total_time_ns:desc"
        ),
        Dataset("nvtx", "NVTX ranges by name", sources.create_report_reader("nvtx_sum"), "total_time_ns:desc"),
        Dataset("nvtx_gpu", "NVTX ranges by GPU activity", sources.create_report_reader("nvtx_gpu_proj_sum")),
        Dataset(
            "nvtx_ranges",
            "NVTX ranges",
            sources.create_interval_reader("nvtx_ranges"),
            "start_ns:asc",
            first=(
                "range_id",
                "name",
                "duration_ns",
                "gpu_time_ns",
                "gpu_op_count",
                "start_ns",
                "domain",
                "depth",
                "path",
            ),
        ),
        Dataset(
            "idle_causes", "Idle time by cause", sources.create_rule_reader("gpu_idle_causes"), "total_time_ns:desc"
        ),
        Dataset("idle_gaps", "Longest gaps", sources.create_rule_reader("gpu_idle_gaps"), "duration_ns:desc"),
        Dataset("collectives", "NCCL kernels by name", sources.read_collectives, "total_time_ns:desc"),
        Dataset(
            "collective_launches",
            "NCCL kernels",
            sources.read_collective_launches,
            "start_ns:asc",
            first=("kernel_id", "short_name", "duration_ns", "start_ns", "device_id", "stream_id", "range_path"),
        ),
        Dataset(
            "ranks_summary",
            "Collectives and messages across ranks, by size",
            sources.create_communication_reader("summary"),
            "time_ns:desc",
            note="A rank waits until the last rank arrives. The remaining time is the transfer.",
        ),
        Dataset(
            "ranks_arrivals",
            "Delays and waiting times by rank",
            sources.create_communication_reader("arrivals"),
            "delay_ns:desc",
            first=("rank", "kind", "communicator", "count", "last_count"),
        ),
        Dataset(
            "ranks_stragglers",
            "Stragglers and the phase in which they lose time",
            sources.create_communication_reader("stragglers"),
        ),
        Dataset(
            "ranks_iterations",
            "Iterations across ranks",
            sources.create_communication_reader("iterations"),
            "iteration:asc",
            has_sums=False,
        ),
        Dataset(
            "ranks_operations",
            "Collectives and messages across ranks",
            sources.create_communication_reader("operations"),
        ),
        Dataset(
            "ranks_clocks",
            "Clocks of the ranks",
            sources.create_communication_reader("clocks"),
            "rank:asc",
            has_sums=False,
        ),
        Dataset("gpu_time", "GPUs of all ranks", sources.read_gpu_time, "rank:asc"),
        Dataset("utilization", "Utilization by bins of time", sources.read_utilization, has_sums=False),
        Dataset("pace", "Occurrences", sources.read_pace),
        Dataset("mpi", "MPI calls by function", sources.create_report_reader("mpi_event_sum")),
        Dataset("stack_functions", "Functions", sources.read_stack_functions),
        Dataset(
            "stack_events",
            "Events",
            sources.read_stack_events,
            key="event",
            select={"stack_id": "stack_id"},
            note="Select an event to see its call stack below.",
            hidden=("process_id", "correlation_id", "stack_id", "cpu_cycles"),
        ),
        Dataset("stack_frames", "Call stack, the innermost function first", sources.read_stack_frames, has_sums=False),
        Dataset("metrics", "GPU metrics", sources.read_metric_summary, "device_id:asc"),
        Dataset("roofline", "Roofline", sources.create_report_reader("ncu_roofline")),
        Dataset("limiters", "What limits each kernel", sources.create_report_reader("ncu_limiter")),
        Dataset(
            "ncu_launches",
            "Launches",
            sources.read_ncu_launches,
            "duration_ns:desc",
            key="launch_id",
            select={"launch_id": "launch_id"},
            note="Select a launch to see its rules and metrics below.",
        ),
        Dataset("ncu_rules", "Rules of the launch", sources.create_ncu_launch_reader("ncu_rules")),
        Dataset("ncu_metrics", "Metrics of the launch", sources.create_ncu_launch_reader("ncu_metrics")),
        Dataset("graph_nodes", "Graph nodes", sources.create_table_reader("graph_nodes")),
        Dataset("graph_summary", "Scopes of the graph", sources.create_report_reader("graph_summary")),
        Dataset("scalars", "Scalars", sources.create_table_reader("scalars")),
        Dataset(
            "groups",
            "Groups",
            sources.read_groups,
            has_sums=False,
            first=("group", "direction", "gpu_time_ns", "cpu_time_ns", "instance_count", "op_count"),
            hidden=("group_node_id", "parent_id", "api_time_ns"),
            key="group_node_id",
            select={"path": "path", "direction": "direction"},
            note="Click on the arrow of a group, or press Enter, to expand or collapse it. Sort by a column to rank "
            "all groups. Select a group to see its ops below.",
            tree=Tree("group_node_id", "parent_id", "level", "group"),
        ),
        Dataset(
            "group_ops",
            "Ops in the group",
            sources.read_group_ops,
            "gpu_time_ns:desc",
            first=("op_name", "direction", "op_type", "gpu_time_ns", "share_percent", "cpu_time_ns", "instance_count"),
            hidden=("is_associated", "stack_trace", "api_time_ns"),
        ),
        Dataset(
            "comparison",
            "By name",
            sources.read_comparison,
            note="Sorted by the size of the change. A change is significant if A and B differ by more than the "
            "iterations of A or of B differ among themselves, and by more than two runs of one program may differ.",
            hidden=("p_value",),
        ),
        Dataset("advise", "Advice", sources.create_report_reader("advise")),
        Dataset("expert", "Findings of DLProf's rules", sources.create_report_reader("expert-systems")),
    )
}


def find_dataset(name: str) -> Dataset:
    """Return the declaration of a table. The name ``table:NAME`` refers to the declared table ``NAME`` of tracekit.

    Raises:
        TracekitError: The table does not exist.
    """
    if name.startswith("table:"):
        return Dataset(
            name, name.removeprefix("table:"), sources.create_declared_table_reader(name.removeprefix("table:"))
        )
    if name not in DATASETS:
        raise TracekitError(f"the viewer has no table {name!r}", hint="follow a link of the viewer, or correct the URL")
    return DATASETS[name]
