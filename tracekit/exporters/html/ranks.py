"""Select the content of an HTML page that shows several ranks side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.errors import TracekitError
from tracekit.exporters.html.sections import WHOLE_CAPTURE, build_answer_sections
from tracekit.pages.document import ExportedPage, Section, build_chart
from tracekit.pages.tables import build_frame_table
from tracekit.pages.values import NANOSECONDS, format_value
from tracekit.plots import recipes as plots
from tracekit.plots.recipes import MAPS
from tracekit.registry.analyses import RECIPE, get_analysis

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import polars as pl

    from tracekit.registry.interface import ManyTraces, Progress
    from tracekit.text.elements import Element

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
_GPU_TIME = (
    *("rank", "device_id", "utilization_percent", "kernel_count", "kernel_time_ns", "compute_ns", "hidden_ns"),
    *("exposed_ns", "memory_ns", "idle_ns"),
)
_ARRIVALS = (*("rank", "library", "kind", "count", "last_count", "delay_ns", "wait_ns", "transfer_ns", "exposed_ns"),)
_SUMMARY = ("kind", "rank_count", "bytes", "count", "time_ns", "algorithm_gb_per_s", "bus_gb_per_s")
_STRAGGLERS = (
    *("straggler", "phase", "lost_on", "iteration_count", "lost_ns", "median_lost_ns", "delay_ns", "iterations"),
)
_ITERATIONS = (
    *("iteration", "rank_count", "min_ns", "median_ns", "max_ns", "spread_ns", "slowest_rank", "straggler", "phase"),
    *("lost_ns", "is_warm_up"),
)
_CLOCKS = (*("rank", "method", "offset_ns", "drift_ppm", "collective_count", "residual_ns", "max_residual_ns"),)


def build_page(traces: ManyTraces, progress: Progress) -> ExportedPage:
    """Build the HTML page that shows several ranks side by side.

    Args:
        traces: The traces of the ranks.
        progress: Callback that receives the number of traces read so far and the number of all traces.

    Raises:
        TracekitError: A file cannot be read.
    """
    tables = traces.compute_recipes(_RECIPES, progress)
    sections = [
        *_build_explanation_sections(traces),
        *_build_gpu_time_sections(tables),
        *_build_iterations_sections(traces, tables),
        *_build_communication_sections(tables),
        *_build_utilization_sections(tables),
        *_build_pace_sections(traces, tables),
    ]
    title = f"GPU profiles of {len(traces.parts)} ranks"
    missing = _list_missing_sections(traces, {section.title for section in sections})
    return ExportedPage(title, sections, "", missing, traces.list_notices(), _NOTHING_TO_DRAW)


_NOTHING_TO_DRAW = "The captures contain nothing to draw: no GPU activities, and no communication between ranks."


def _list_missing_sections(traces: ManyTraces, titles: Collection[str]) -> list[tuple[str, str]]:
    """Return a message and the reasons for each section that is not on the page, given the titles of the others."""
    recipes_by_title = {title: recipe for title, recipe in _RECIPES_OF_SECTIONS.items() if title not in titles}
    reasons = traces.explain_missing_recipes(list(recipes_by_title.values()))
    return [
        (f"the section {title} is omitted", "; ".join(reasons[recipe])) for title, recipe in recipes_by_title.items()
    ]


def build_recipe_charts(tables: Mapping[str, pl.DataFrame], prefix: str = "") -> list[Element]:
    """Return the charts of a recipe.

    Args:
        tables: The tables of the recipe by name.
        prefix: Prefix that is added to the names of the figures.
    """
    return [build_chart(prefix + name, chart) for name, chart in plots.draw_recipe_figures(tables).items()]


def _build_explanation_sections(traces: ManyTraces) -> Iterator[Section]:
    try:
        explanation = traces.explanation()
    except TracekitError as e:
        yield from build_answer_sections(e)
    else:
        yield from build_answer_sections(explanation)


def _build_gpu_time_sections(tables: Mapping[str, Frames]) -> Iterator[Section]:
    """Yield the section on how the GPUs of each rank spend their time, or nothing if there is no data for it."""
    recipe_tables = tables["gpu_time_sum"]
    note = (
        "The time of a GPU begins with the first activity of its rank and ends with the last one. Communication is "
        "exposed while no other kernel runs. CUDA graphs count as computation."
    )
    shown = _build_tables_unless_empty("GPUs of all ranks", tables, "gpu_time_sum", "gpu_time", _GPU_TIME)
    if shown:
        yield Section("Ranks", "ranks", [*build_recipe_charts(recipe_tables), *shown], [note, WHOLE_CAPTURE])


def _build_iterations_sections(traces: ManyTraces, tables: Mapping[str, Frames]) -> Iterator[Section]:
    """Yield the section on the durations of iterations and on stragglers, or nothing if there is no data for it."""
    recipe_tables = tables["iteration_spread"]
    caption = "Stragglers and the phase in which they lose time"
    shown = _build_tables_unless_empty(caption, tables, "iteration_spread", "stragglers", _STRAGGLERS)
    caption = "Iterations over all ranks"
    shown += _build_tables_unless_empty(caption, tables, "iteration_spread", "iterations", _ITERATIONS)
    if shown:
        notes = traces.list_step_notes(recipe_tables)
        yield Section("Iterations", "iterations", [*build_recipe_charts(recipe_tables), *shown], notes)


def _build_communication_sections(tables: Mapping[str, Frames]) -> Iterator[Section]:
    """Yield the section on collectives, messages and clocks of the ranks, or nothing if there is no data for it."""
    recipe_tables = tables["comm_skew"]
    caption = "Waits and transfers of each rank"
    shown = _build_tables_unless_empty(caption, tables, "comm_skew", "arrivals", _ARRIVALS)
    shown += _build_tables_unless_empty("Collectives and messages", tables, "comm_sum", "summary", _SUMMARY)
    if shown:
        shown += _build_tables_unless_empty("Clocks of the ranks", tables, "comm_skew", "clocks", _CLOCKS)
        content = [*build_recipe_charts(recipe_tables), *shown]
        yield Section("Communication", "communication", content, [WHOLE_CAPTURE])


def _build_utilization_sections(tables: Mapping[str, Frames]) -> Iterator[Section]:
    """Yield the section with heat maps of GPU utilization over time, or nothing if there is no data for it."""
    kernels, nccl, *others = MAPS
    shown = [kernels if tables[nccl]["analysis"].is_empty() else nccl, *others]  # that of NCCL shows all kernels, too
    drawn = [chart for recipe in shown for chart in build_recipe_charts(tables[recipe], f"{recipe}_")]
    if drawn:
        yield Section("Utilization over time", "maps", drawn, [WHOLE_CAPTURE])


def _build_pace_sections(traces: ManyTraces, tables: Mapping[str, Frames]) -> Iterator[Section]:
    """Yield the section on when each rank ran the longest kernel, or nothing if no kernels were recorded.

    The longest kernel is the one with the longest total time over all ranks.
    """
    kernels = tables["cuda_gpu_kern_sum"]["all_stats"].sort("Sum", descending=True, maintain_order=True)
    if kernels.is_empty():
        return
    name, total = kernels["Name", "Sum"].row(0)
    [pace] = traces.compute_recipes(["cuda_gpu_kern_pace"], name=name).values()
    time = format_value(int(total), NANOSECONDS)
    note = f"Occurrences of the kernel with the longest total time, {time}: {name}"
    yield Section("Pace", "pace", build_recipe_charts(pace), [note, WHOLE_CAPTURE])


def _build_tables_unless_empty(
    caption: str, tables: Mapping[str, Frames], recipe: str, name: str, columns: Sequence[str]
) -> list[Element]:
    """Return a list with an HTML table of the first rows of a table of a recipe, or an empty list without rows."""
    rows = tables[recipe][name]
    if rows.is_empty():
        return []
    declared = next(result for result in get_analysis(recipe, RECIPE).results if result.name == name)
    return [build_frame_table(caption, rows, columns, max_rows=_ROWS, declared=declared)]
