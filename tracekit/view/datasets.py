"""The declarations of the tables on pages of the viewer: how their rows are computed, sorted, linked and shown.

To add a table to a page, name it in ``pages.PAGES``: ``table:NAME`` for a declared table, ``report:NAME`` for a report
or rule, or the name of a ``Dataset`` in ``DATASETS``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracekit.errors import TracekitError
from tracekit.registry.analyses import parse_name
from tracekit.view import sources
from tracekit.view.tree import TreeColumns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracekit.view.captures import ShownRows
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
        shows: Name of the declared table, report, rule or recipe that has the rows, or from which they are computed. It
            determines why there are no rows.
        sort: The initial sort order: a column and ``desc`` or ``asc``, such as ``total_time_ns:desc``.
        rows: Function that computes the rows. If None, the rows are those of ``shows``.
        share_of: Name of a column. A column with its values as percentages of their sum is inserted after it.
        recipe_argument: Name of the argument that contains the name of the recipe, instead of ``shows``.
        first: Columns that are shown before the others.
        hidden: Columns that are hidden until the user selects them.
        key: Column that identifies a row, for tables with detail tables below them.
        select: Arguments that detail tables receive when a row is selected. Maps the name of each argument to the
            column of the row that contains its value.
        has_sums: Whether the sums of the columns over filtered rows are meaningful and shown. The times of nested rows
            are not added.
        link: Link from each row to another page.
        rows_of: Columns with the name of a declared table, and the name of one of its columns and a value, if each row
            is about the rows of that table with the value. Rows then have a link to them.
        note: Sentence above the table.
        tree: Columns that define a tree of rows. None if the rows do not form a tree.
    """

    name: str
    title: str
    shows: str
    sort: str = ""
    rows: Callable[[TableInputs], ShownRows] | None = None
    share_of: str = ""
    recipe_argument: str = ""
    first: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    key: str | None = None
    select: Mapping[str, str] = field(default_factory=dict)
    has_sums: bool = True
    link: Link | None = None
    rows_of: tuple[str, str, str] | None = None
    note: str = ""
    tree: TreeColumns | None = None

    def read_rows(self, inputs: TableInputs) -> ShownRows:
        """Return the rows of the table."""
        rows = sources.read_result(inputs, self.shows) if self.rows is None else self.rows(inputs)
        return sources.add_share_column(rows, self.share_of) if self.share_of in rows.frame.columns else rows


DATASETS: Mapping[str, Dataset] = {
    each.name: each
    for each in (
        Dataset(
            "op_types",
            "Op types",
            "ops",
            "total_gpu_time_ns:desc",
            link=Link("ops", "Ops", "ops", {"op_type": "op_type"}),
            rows=sources.read_op_types,
        ),
        Dataset(
            "ops",
            "Ops",
            "ops",
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
            share_of="gpu_time_ns",
        ),
        Dataset("op_kernels", "Kernels of the op", "kernels", "total_gpu_time_ns:desc", rows=sources.read_op_kernels),
        Dataset(
            "op_instances",
            "Calls of the op",
            "op_instances",
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
            rows=sources.read_op_instances,
        ),
        Dataset(
            "iterations",
            "Iterations",
            "iterations",
            "iteration:asc",
            key="iteration",
            select={"iteration": "iteration"},
            note="Select an iteration to see its parts, ops and kernels below.",
            rows=sources.read_iterations,
        ),
        Dataset(
            "step_parts",
            "Steps by part",
            "step_parts",
            "step:asc",
            first=("step", "name", "duration_ns", "change_percent", "mostly"),
            hidden=("pid",),
            has_sums=False,
            note="The parts of a step add up to its duration. Parts that no step has are left out.",
            rows=sources.read_step_parts,
        ),
        Dataset(
            "ranks_step_parts",
            "Steps of all ranks by part",
            "step_parts",
            "step:asc,rank:asc",
            first=("rank", "step", "name", "duration_ns", "waiting_for_ranks_ns", "change_percent", "mostly"),
            hidden=("pid", "start_ns"),
            has_sums=False,
            note="The parts of a step add up to its duration. While a rank waits for others, they are late.",
            rows=sources.read_step_parts_of_ranks,
        ),
        Dataset(
            "iteration_ledger",
            "Parts of the step by range",
            "step_ledger",
            "time_ns:desc",
            rows=sources.read_iteration_ledger,
        ),
        Dataset(
            "iteration_kernels",
            "Kernels of the iteration",
            "kernels",
            "gpu_duration_ns:desc",
            hidden=("op_type", "op_id", "direction", "start_ns", "end_ns", "iteration"),
            rows=sources.read_iteration_kernels,
        ),
        Dataset(
            "iteration_ops",
            "Ops of the iteration",
            "ops",
            "gpu_time_ns:desc",
            key="op_id",
            select={"op_id": "op_id"},
            note="Select an op to see its kernels below.",
            rows=sources.read_iteration_ops,
        ),
        Dataset(
            "iteration_op_kernels",
            "Kernels of the op in the iteration",
            "kernels",
            "gpu_duration_ns:desc",
            hidden=("op_type", "op_id", "direction", "start_ns", "end_ns", "iteration"),
            rows=sources.read_iteration_kernels,
        ),
        Dataset("gpus", "GPUs", "iterations", "device_id:asc", rows=sources.read_gpus),
        Dataset(
            "kernels",
            "Kernels by name and launch shape",
            "kernels",
            "total_time_ns:desc",
            key="shape_id",
            select={"name": "name", "grid": "grid", "block": "block"},
            hidden=("shape_id", "first_start_ns"),
            note="Select a row to see its launches below.",
            rows=sources.read_launch_shapes,
        ),
        Dataset(
            "launches",
            "Launches",
            "kernels",
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
            rows=sources.read_launches,
        ),
        Dataset(
            "copies",
            "Memory operations by kind",
            "cuda_gpu_mem_time_sum",
            "total_time_ns:desc",
        ),
        Dataset("copy_sizes", "Sizes by kind", "cuda_gpu_mem_size_sum", "total_mb:desc"),
        Dataset(
            "memcpys",
            "Memory copies",
            "memcpys",
            "start_ns:asc",
            first=("memcpy_id", "copy_kind", "bytes", "duration_ns"),
        ),
        Dataset(
            "memsets",
            "Memory sets",
            "memsets",
            "start_ns:asc",
            first=("memset_id", "bytes", "duration_ns"),
        ),
        Dataset(
            "memory_owners",
            "Owners of the memory at the peak",
            "gpu_memory_owners",
            first=("owner", "size_bytes", "peak_percent", "allocations"),
            rows=sources.read_memory_owners,
        ),
        Dataset("memory_peak", "Peak of GPU memory", "gpu_memory_peak"),
        Dataset("memory_alive", "Allocations at the peak", "gpu_memory_alive"),
        Dataset("allocator_peak", "Peak of the allocator", "allocator_peak"),
        Dataset("allocator_owners", "Owners of the allocated memory at the peak", "allocator_owners"),
        Dataset("allocator_unfreed", "Memory that was never freed", "allocator_unfreed"),
        Dataset("allocator_segments", "Reserved segments", "allocator_segments"),
        Dataset("allocator_failures", "Allocations that failed", "allocator_failures"),
        Dataset("api", "API calls by function", "cuda_api_sum", "total_time_ns:desc"),
        Dataset(
            "api_calls",
            "API calls",
            "api_calls",
            "start_ns:asc",
            first=("api_call_id", "name", "duration_ns", "start_ns"),
            hidden=("name_id", "callchain_id"),
        ),
        Dataset("nvtx", "NVTX ranges by name", "nvtx_sum", "total_time_ns:desc", has_sums=False),
        Dataset("nvtx_gpu", "NVTX ranges by GPU activity", "nvtx_gpu_proj_sum", has_sums=False),
        Dataset(
            "nvtx_ranges",
            "NVTX ranges",
            "nvtx_ranges",
            "start_ns:asc",
            has_sums=False,
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
            "layer_gpu_sum",
            "GPU time of CUDA graphs by layer",
            "layer_gpu_sum",
            "total_time_ns:desc",
            first=("layer", "total_time_ns", "time_percent", "avg_per_replay_ns", "replays", "activities"),
            has_sums=False,
        ),
        Dataset(
            "graph_alignment",
            "Layers of CUDA graphs",
            "graph_alignment",
            "time_ns:desc",
            has_sums=False,
            note="How many activities of the replays of each graph have a layer.",
        ),
        Dataset("queues", "Queues of streams", "queue_length", "max:desc", has_sums=False),
        Dataset("idle_causes", "Idle time by cause", "gpu_idle_causes", "total_time_ns:desc"),
        Dataset("idle_gaps", "Longest gaps", "gpu_idle_gaps", "duration_ns:desc"),
        Dataset("collectives", "NCCL kernels by name", "kernels", "total_time_ns:desc", rows=sources.read_collectives),
        Dataset(
            "collective_launches",
            "NCCL kernels",
            "kernels",
            "start_ns:asc",
            first=("kernel_id", "short_name", "duration_ns", "start_ns", "device_id", "stream_id", "range_path"),
            rows=sources.read_collective_launches,
        ),
        Dataset(
            "ranks_summary",
            "Collectives and messages across ranks, by size",
            "comm_sum",
            "time_ns:desc",
            note="A rank waits until the last rank arrives. The remaining time is the transfer.",
            rows=sources.create_communication_reader("summary"),
        ),
        Dataset(
            "ranks_arrivals",
            "Delays and waiting times by rank",
            "comm_skew",
            "delay_ns:desc",
            first=("rank", "kind", "communicator", "count", "last_count"),
            rows=sources.create_communication_reader("arrivals"),
        ),
        Dataset(
            "ranks_stragglers",
            "Stragglers and the phase in which they lose time",
            "iteration_spread",
            rows=sources.create_communication_reader("stragglers"),
        ),
        Dataset(
            "ranks_iterations",
            "Iterations across ranks",
            "iteration_spread",
            "iteration:asc",
            has_sums=False,
            rows=sources.create_communication_reader("iterations"),
        ),
        Dataset(
            "ranks_operations",
            "Collectives and messages across ranks",
            "comm_skew",
            rows=sources.create_communication_reader("operations"),
        ),
        Dataset(
            "ranks_clocks",
            "Clocks of the ranks",
            "comm_skew",
            "rank:asc",
            has_sums=False,
            rows=sources.create_communication_reader("clocks"),
        ),
        Dataset("gpu_time", "GPUs of all ranks", "gpu_time_sum", "rank:asc", rows=sources.read_gpu_time),
        Dataset(
            "utilization",
            "Utilization by bins of time",
            "cuda_gpu_time_util_map",
            has_sums=False,
            rows=sources.read_utilization,
            recipe_argument="map",
        ),
        Dataset("pace", "Occurrences", "cuda_gpu_kern_pace", rows=sources.read_pace, recipe_argument="kind"),
        Dataset(
            "overlap",
            "Overlap of communication and computation by step",
            "communication_overlap",
            first=("rank", "step", "name", "communication_ns", "overlapped_ns", "exposed_ns", "overlap_percent"),
            hidden=("pid",),
            rows=sources.read_overlap,
        ),
        Dataset(
            "findings",
            "Recorded by the profiler",
            "recorded_findings",
            key="finding",
            select={"table": "table", "column": "column", "value": "value"},
            first=("message", "recommendation", "kind", "rule", "count", "speedup_percent"),
            hidden=("finding", "table", "column", "value"),
            has_sums=False,
            note="Select a finding to see the rows that it is about below.",
            rows_of=("table", "column", "value"),
            rows=sources.read_findings,
        ),
        Dataset(
            "finding_rows",
            "Rows of the finding",
            "recorded_findings",
            first=("launch_id", "kernel", "message", "speedup_percent"),
            has_sums=False,
            rows=sources.read_finding_rows,
        ),
        Dataset("mpi", "MPI calls by function", "mpi_event_sum"),
        Dataset("stack_functions", "Functions", "stacks", rows=sources.read_stack_functions),
        Dataset(
            "stack_events",
            "Events",
            "stacks",
            key="event",
            select={"stack_id": "stack_id"},
            note="Select an event to see its call stack below.",
            hidden=("process_id", "correlation_id", "stack_id", "cpu_cycles"),
            rows=sources.read_stack_events,
        ),
        Dataset(
            "stack_frames",
            "Call stack, the innermost function first",
            "stacks",
            has_sums=False,
            rows=sources.read_stack_frames,
        ),
        Dataset("metrics", "GPU metrics", "gpu_metrics", "device_id:asc", rows=sources.read_metric_summary),
        Dataset(
            "op_roofline",
            "Ops by shapes and types",
            "op_roofline",
            "gpu_time_ns:desc",
            first=(
                *("op", "shapes", "gpu_time_ns", "time_percent", "roofline_percent", "limited_by", "savable_ns"),
                *("type", "tflop_s", "peak_tflop_s", "gb_s", "peak_gb_s"),
            ),
            hidden=("op_row", "types", "kind", "savable_at_60_percent_ns", "savable_at_80_percent_ns"),
            key="op_row",
            select={"name": "op", "shapes": "shapes", "types": "types", "kind": "kind", "type": "type"},
            note="Select an op to see its kernels below.",
            rows=sources.read_op_roofline,
        ),
        Dataset(
            "op_roofline_kernels",
            "Kernels of the op",
            "kernels",
            "duration_ns:desc",
            first=("kernel_id", "short_name", "duration_ns", "start_ns", "device_id", "stream_id", "range_path"),
            rows=sources.read_op_roofline_kernels,
        ),
        Dataset(
            "step_mfu",
            "Utilization of each step",
            "step_mfu",
            "step:asc",
            hidden=("pid",),
            has_sums=False,
            note="The row without a step contains all steady steps.",
            rows=sources.read_step_utilization,
        ),
        Dataset(
            "serving_phases",
            "Phases",
            "serving_phases",
            "total_time_ns:desc",
            hidden=("pid", "cpu_ns", "gpu_busy_ns"),
            has_sums=False,
            rows=sources.read_serving_phases,
        ),
        Dataset(
            "serving_steps",
            "Steps",
            "serving_steps",
            "start_ns:asc",
            first=("step", "phase", "requests", "time_ns", "gpu_time_ns", "gpu_idle_ns", "kernels", "start_ns"),
            hidden=("pid", "cpu_ns", "gpu_busy_ns"),
            has_sums=False,
            rows=sources.read_serving_steps,
        ),
        Dataset(
            "kernel_categories",
            "GPU time by category",
            "kernel_categories",
            "total_time_ns:desc",
            first=("category", "total_time_ns", "time_percent", "instances", "top_kernel", "top_percent"),
            hidden=("busy_ns",),
            rows=sources.read_categories,
        ),
        Dataset(
            "category_layers",
            "GPU time by category and layer",
            "kernel_categories",
            "total_time_ns:desc",
            first=("category", "layer", "total_time_ns", "time_percent", "instances", "top_kernel"),
            hidden=("busy_ns",),
            rows=sources.read_category_layers,
        ),
        Dataset("roofline", "Roofline", "ncu_roofline"),
        Dataset("limiters", "What limits each kernel", "ncu_limiter"),
        Dataset(
            "ncu_launches",
            "Launches",
            "ncu_launches",
            "duration_ns:desc",
            key="launch_id",
            select={"launch_id": "launch_id"},
            note="Select a launch to see its rules and metrics below.",
            share_of="duration_ns",
        ),
        Dataset("ncu_rules", "Rules of the launch", "ncu_rules", rows=sources.create_ncu_launch_reader("ncu_rules")),
        Dataset(
            "ncu_metrics", "Metrics of the launch", "ncu_metrics", rows=sources.create_ncu_launch_reader("ncu_metrics")
        ),
        Dataset("graph_nodes", "Graph nodes", "graph_nodes"),
        Dataset("graph_summary", "Scopes of the graph", "graph_summary"),
        Dataset("scalars", "Scalars", "scalars"),
        Dataset(
            "groups",
            "Groups",
            "group_nodes",
            has_sums=False,
            first=("group", "direction", "gpu_time_ns", "cpu_time_ns", "instance_count", "op_count"),
            hidden=("group_node_id", "parent_id", "api_time_ns"),
            key="group_node_id",
            select={"path": "path", "direction": "direction"},
            note="The arrow of a group expands or collapses it. Sort by a column to rank all groups. Select a group to "
            "see its ops below.",
            tree=TreeColumns("group_node_id", "parent_id", "level", "group"),
            rows=sources.read_groups,
        ),
        Dataset(
            "group_ops",
            "Ops in the group",
            "ops",
            "gpu_time_ns:desc",
            first=("op_name", "direction", "op_type", "gpu_time_ns", "share_percent", "cpu_time_ns", "instance_count"),
            hidden=("is_associated", "stack_trace", "api_time_ns"),
            rows=sources.read_group_ops,
        ),
        Dataset(
            "comparison",
            "By name",
            "kernels",
            note="Sorted by the size of the change. A change is significant if A and B differ by more than the "
            "iterations of A or of B differ among themselves, and by more than two runs of one program may differ.",
            hidden=("p_value",),
            rows=sources.read_comparison,
        ),
    )
}


_NESTED = ("nvtx", "group_nodes")
"""Beginnings of the names of tables and reports whose rows are nested."""


def find_dataset(name: str) -> Dataset:
    """Return the declaration of a table.

    Args:
        name: Name of the table, ``table:NAME`` for a declared table of tracekit with all its columns, or
            ``report:NAME`` for a report or rule.

    Raises:
        TracekitError: The table does not exist.
    """
    kind, _, shown = name.partition(":")
    if kind == "table":
        rows = functools.partial(sources.read_declared_table, name=shown)
        return Dataset(name, shown, shown, rows=rows, has_sums=not shown.startswith(_NESTED))
    if kind == "report":
        analysis, _ = parse_name(shown)
        title = analysis.doc.partition(". ")[0].removesuffix(".")
        return Dataset(name, title, analysis.name, has_sums=not shown.startswith(_NESTED))
    if name not in DATASETS:
        raise TracekitError(f"the viewer has no table {name!r}", hint="follow a link of the viewer, or correct the URL")
    return DATASETS[name]
