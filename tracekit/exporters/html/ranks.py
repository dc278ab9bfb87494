"""Select the content of an HTML page that shows several ranks side by side."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tracekit.exporters.html.markup import Section, Table
from tracekit.exporters.html.sections import WHOLE_CAPTURE, Contents
from tracekit.plots import recipes as plots
from tracekit.plots.labels import format_nanoseconds
from tracekit.plots.recipes import MAPS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    import polars as pl

    from tracekit.registry.interface import ManyTraces, Progress

    Frames = Mapping[str, pl.DataFrame]

_ROWS = 50
_RECIPES = ("gpu_time_sum", "comm_sum", "comm_skew", "iteration_spread", "cuda_gpu_kern_sum", *MAPS)
_RECIPES_OF_SECTIONS = {
    "Ranks": "gpu_time_sum",
    "Iterations": "iteration_spread",
    "Communication": "comm_skew",
    "Utilization over time": "cuda_gpu_time_util_map",
    "Pace": "cuda_gpu_kern_sum",
}
"""Titles of the sections, and the recipe that has no rows if the section is omitted."""
_GPU_TIME = {
    "rank": "Rank",
    "device_id": "GPU",
    "utilization_percent": "Utilization (%)",
    "kernel_count": "Kernels",
    "kernel_time_ns": "Kernel time (ns)",
    "compute_ns": "Computation (ns)",
    "hidden_ns": "Computation and communication (ns)",
    "exposed_ns": "Exposed communication (ns)",
    "memory_ns": "Memory operations (ns)",
    "idle_ns": "Idle (ns)",
}
_ARRIVALS = {
    "rank": "Rank",
    "library": "Library",
    "kind": "Kind",
    "count": "Count",
    "last_count": "Last",
    "delay_ns": "Delay of others (ns)",
    "wait_ns": "Waiting (ns)",
    "transfer_ns": "Transfer (ns)",
    "exposed_ns": "Exposed (ns)",
}
_SUMMARY = {
    "kind": "Kind",
    "rank_count": "Ranks",
    "bytes": "Bytes",
    "count": "Count",
    "time_ns": "Time (ns)",
    "algorithm_gb_per_s": "Algorithm bandwidth (GB/s)",
    "bus_gb_per_s": "Bus bandwidth (GB/s)",
}
_STRAGGLERS = {
    "straggler": "Rank",
    "phase": "Phase",
    "lost_on": "Lost on",
    "iteration_count": "Iterations",
    "lost_ns": "Lost time (ns)",
    "median_lost_ns": "Median (ns)",
    "delay_ns": "Delay of others (ns)",
    "iterations": "Which iterations",
}
_ITERATIONS = {
    "iteration": "Iteration",
    "rank_count": "Ranks",
    "min_ns": "Shortest (ns)",
    "median_ns": "Median (ns)",
    "max_ns": "Longest (ns)",
    "spread_ns": "Spread (ns)",
    "slowest_rank": "Slowest rank",
    "straggler": "Straggler",
    "phase": "Phase",
    "lost_ns": "Lost time (ns)",
    "is_warm_up": "Warm-up",
}
_CLOCKS = {
    "rank": "Rank",
    "method": "Aligned by",
    "offset_ns": "Offset (ns)",
    "drift_ppm": "Drift (ppm)",
    "collective_count": "Collectives",
    "residual_ns": "Residual (ns)",
    "max_residual_ns": "Largest residual (ns)",
}


def build_contents(traces: ManyTraces, progress: Progress) -> Contents:
    """Return the contents of a page that shows several ranks side by side.

    Args:
        traces: The traces of the ranks.
        progress: Callback that receives the number of traces read so far and the number of all traces.

    Raises:
        TracekitError: A file cannot be read, or plotly is not installed.
    """
    tables = traces.compute_recipes(_RECIPES, progress)
    sections = [
        *_build_gpu_time_sections(tables),
        *_build_iterations_sections(traces, tables),
        *_build_communication_sections(tables),
        *_build_utilization_sections(tables),
        *_build_pace_sections(traces, tables),
    ]
    title = f"GPU profiles of {len(traces.parts)} ranks"
    missing = _list_missing_sections(traces, {section.title for section in sections})
    return Contents(title, sections, missing, traces.list_notices(), _NOTHING_TO_DRAW)


_NOTHING_TO_DRAW = "The captures contain nothing to draw: no GPU activities, and no communication between ranks."


def _list_missing_sections(traces: ManyTraces, titles: Collection[str]) -> list[tuple[str, str]]:
    """Return a message and the reasons for each section that is not on the page, given the titles of the others."""
    recipes_by_title = {title: recipe for title, recipe in _RECIPES_OF_SECTIONS.items() if title not in titles}
    reasons = traces.explain_missing_recipes(list(recipes_by_title.values()))
    return [
        (f"the section {title} is omitted", "; ".join(reasons[recipe])) for title, recipe in recipes_by_title.items()
    ]


def serialize_recipe_figures(tables: Mapping[str, pl.DataFrame], prefix: str = "") -> dict[str, Any]:
    """Return the figures of a recipe as JSON objects for plotly, by figure name, without their templates.

    Args:
        tables: The tables of the recipe by name.
        prefix: Prefix that is added to the names of the figures.
    """
    contents = {prefix + name: json.loads(drawn.to_json()) for name, drawn in plots.draw_recipe_figures(tables).items()}
    for content in contents.values():
        del content["layout"]["template"]
    return contents


def _build_gpu_time_sections(tables: Mapping[str, Frames]) -> Iterator[Section]:
    """Yield the section on how the GPUs of each rank spend their time, or nothing if there is no data for it."""
    recipe_tables = tables["gpu_time_sum"]
    rows = recipe_tables["gpu_time"]
    note = (
        "The time of a GPU begins with the first activity of its rank and ends with the last one. Communication is "
        "exposed while no other kernel runs. CUDA graphs count as computation."
    )
    shown = _build_tables_unless_empty("GPUs of all ranks", rows, _GPU_TIME)
    if shown:
        yield Section(
            "Ranks", "ranks", notes=[note, WHOLE_CAPTURE], figures=serialize_recipe_figures(recipe_tables), tables=shown
        )


def _build_iterations_sections(traces: ManyTraces, tables: Mapping[str, Frames]) -> Iterator[Section]:
    """Yield the section on the durations of iterations and on stragglers, or nothing if there is no data for it."""
    recipe_tables = tables["iteration_spread"]
    shown = _build_tables_unless_empty(
        "Stragglers and the phase in which they lose time", recipe_tables["stragglers"], _STRAGGLERS
    )
    shown += _build_tables_unless_empty("Iterations over all ranks", recipe_tables["iterations"], _ITERATIONS)
    if shown:
        notes = traces.list_step_notes(recipe_tables)
        drawn = serialize_recipe_figures(recipe_tables)
        yield Section("Iterations", "iterations", notes=notes, figures=drawn, tables=shown)


def _build_communication_sections(tables: Mapping[str, Frames]) -> Iterator[Section]:
    """Yield the section on collectives, messages and clocks of the ranks, or nothing if there is no data for it."""
    recipe_tables = tables["comm_skew"]
    shown = _build_tables_unless_empty("Waits and transfers of each rank", recipe_tables["arrivals"], _ARRIVALS)
    shown += _build_tables_unless_empty("Collectives and messages", tables["comm_sum"]["summary"], _SUMMARY)
    if shown:
        shown += _build_tables_unless_empty("Clocks of the ranks", recipe_tables["clocks"], _CLOCKS)
        drawn = serialize_recipe_figures(recipe_tables)
        yield Section("Communication", "communication", notes=[WHOLE_CAPTURE], figures=drawn, tables=shown)


def _build_utilization_sections(tables: Mapping[str, Frames]) -> Iterator[Section]:
    """Yield the section with heat maps of GPU utilization over time, or nothing if there is no data for it."""
    kernels, nccl, *others = MAPS
    shown = [kernels if tables[nccl]["analysis"].is_empty() else nccl, *others]  # that of NCCL shows all kernels, too
    drawn = {
        name: drawn
        for recipe in shown
        for name, drawn in serialize_recipe_figures(tables[recipe], f"{recipe}_").items()
    }
    if drawn:
        yield Section("Utilization over time", "maps", notes=[WHOLE_CAPTURE], figures=drawn)


def _build_pace_sections(traces: ManyTraces, tables: Mapping[str, Frames]) -> Iterator[Section]:
    """Yield the section on when each rank ran the longest kernel, or nothing if no kernels were recorded.

    The longest kernel is the one with the longest total time over all ranks.
    """
    kernels = tables["cuda_gpu_kern_sum"]["all_stats"].sort("Sum", descending=True, maintain_order=True)
    if kernels.is_empty():
        return
    name, total = kernels["Name", "Sum"].row(0)
    [pace] = traces.compute_recipes(["cuda_gpu_kern_pace"], name=name).values()
    note = f"Occurrences of the kernel with the longest total time, {format_nanoseconds(int(total))}: {name}"
    yield Section("Pace", "pace", notes=[note, WHOLE_CAPTURE], figures=serialize_recipe_figures(pace))


def _build_tables_unless_empty(caption: str, rows: pl.DataFrame, columns: Mapping[str, str]) -> list[Table]:
    """Return a list with one HTML table of the first rows of a frame. The list is empty if the frame has no rows."""
    header = next(iter(columns))
    return [] if rows.is_empty() else [Table.from_frame(caption, rows, dict(columns), _ROWS, header)]
