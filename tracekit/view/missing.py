"""Explain on pages why a table or a page has no data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dash import html

from tracekit.trace import get_trace_view

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracekit.trace import Trace

ORIGINS: Mapping[str, str] = {
    "op_types": "ops",
    **dict.fromkeys(("op_kernels", "iteration_kernels", "kernels", "launches", "expert"), "kernels"),
    **dict.fromkeys(("collectives", "collective_launches"), "kernels"),
    **dict.fromkeys(("iteration_ops", "group_ops"), "ops"),
    **dict.fromkeys(("kernel_iterations", "op_iterations", "iterations", "gpus"), "iterations"),
    "copies": "cuda_gpu_mem_time_sum",
    "copy_sizes": "cuda_gpu_mem_size_sum",
    "memory_peak": "gpu_memory_peak",
    "memory_alive": "gpu_memory_alive",
    "api": "cuda_api_sum",
    "osrt": "osrt_sum",
    "nvtx": "nvtx_sum",
    "nvtx_gpu": "nvtx_gpu_proj_sum",
    "idle_causes": "gpu_idle_causes",
    "idle_gaps": "gpu_idle_gaps",
    "ranks_summary": "comm_sum",
    **dict.fromkeys(("ranks_arrivals", "ranks_operations", "ranks_clocks"), "comm_skew"),
    **dict.fromkeys(("ranks_stragglers", "ranks_iterations"), "iteration_spread"),
    "gpu_time": "gpu_time_sum",
    "mpi": "mpi_event_sum",
    **dict.fromkeys(("stack_functions", "stack_events", "stack_frames"), "stacks"),
    "metrics": "gpu_metrics",
    "roofline": "ncu_roofline",
    "limiters": "ncu_limiter",
    "groups": "group_nodes",
}
"""The table, report, rule or recipe from which the rows of a table on a page result, unless it has the same name."""
EVENTS = ("kernels", "memcpys", "memsets", "graph_launches", "api_calls", "nvtx_ranges", "osrt_calls")
"""Tables with the events of programs."""
RECIPE_ARGUMENTS = {"utilization": "map", "pace": "kind"}
"""The argument that contains the name of the recipe from which the rows of a table result."""


def explain_missing_rows(trace: Trace, name: str, arguments: Mapping[str, str]) -> str:
    """Return a sentence that states why a table on a page has no rows.

    Args:
        trace: The capture.
        name: Name of the table, as for ``datasets.find_dataset``.
        arguments: The values from which the rows of the table are computed, such as those of a selected row. If there
            are any, the table shows a part of the capture.
    """
    table = name.removeprefix("table:")
    origin = table if name != table else ORIGINS.get(name, arguments.get(RECIPE_ARGUMENTS.get(name, ""), name))
    is_part = not arguments.keys() <= {"map", "bins"}
    absence = get_trace_view(trace).explain_missing_rows(origin, is_part=is_part)
    return f"No rows: {absence.sentence}."


def build_missing_data_note(trace: Trace, tables: Sequence[str] = EVENTS) -> Any:
    """Return a paragraph that states why a capture has no rows in the tables that a page needs."""
    absence = get_trace_view(trace).explain_missing_tables(tables)
    return html.P(f"No data: {absence.sentence}.", className="dimmed")
