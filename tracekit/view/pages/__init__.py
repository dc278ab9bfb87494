"""The pages of the viewer: their names, what they show, and which tables of a capture they need.

Most pages are a list of figures and tables, which are declared here. Pages with controls are modules of this package.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from tracekit import schemas
from tracekit.errors import TracekitError
from tracekit.plots import recipes as plots
from tracekit.registry.absence import State as Reason
from tracekit.registry.absence import has_other_profiler
from tracekit.registry.analyses import FIGURE, find_analysis
from tracekit.text.elements import tag
from tracekit.text.makers import is_without_cuda, list_makers_of_capture
from tracekit.trace import get_trace_view
from tracekit.view import components, grid
from tracekit.view import ranks as sets_of_ranks
from tracekit.view.captures import ShownRows
from tracekit.view.datasets import find_dataset
from tracekit.view.pages import (
    communication,
    compare,
    efficiency,
    findings,
    groups,
    iterations,
    maps,
    memory,
    overview,
    pace,
    ranks,
    serving,
    stacks,
    tables,
    timeline,
)
from tracekit.view.state import make_url

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping

    import polars as pl

    from tracekit.text.elements import Content
    from tracekit.text.names import ReportName
    from tracekit.trace import Trace
    from tracekit.view.captures import ViewedCapture, ViewedCaptures
    from tracekit.view.state import PageState


@dataclass(frozen=True, slots=True)
class Context:
    """The captures and the state from which a page is built.

    Attributes:
        captures: The captures of the server.
        state: The state of the page.
        draws_later: Whether the page is shown before its slow panels are computed.
    """

    captures: ViewedCaptures
    state: PageState
    draws_later: bool = False

    @property
    def capture(self) -> ViewedCapture:
        """The capture that the page shows."""
        return self.captures[self.state.at]

    def build_figure(
        self,
        name: str,
        title: str,
        *,
        trace: Trace | None = None,
        cache_key: Any = None,
        may_draw_later: bool = True,
        **options: Any,
    ) -> Any:
        """Return a panel with a figure of ``trace.plot``, or None if the capture has no data for the figure.

        If ``draws_later`` is true and the figure is not cached, return a component that is replaced with the panel.

        Args:
            name: Name of the figure.
            title: Heading of the panel.
            trace: The trace to draw. If None, it is the rolled-up trace of the page.
            cache_key: Key that distinguishes this trace from other traces of the capture in the cache of figures.
            may_draw_later: Whether the figure may be drawn after the page is shown.
            options: Options of the figure.
        """
        key = (name, title, self.state.at, cache_key, tuple(sorted(options.items())))
        trace = trace or self.capture.get_aggregated_trace(self.state.at)
        compute = partial(components.build_figure, trace, name, title, devices=self.state.at.devices, **options)
        if not may_draw_later:
            return self.captures.get_cached_result(key, compute)
        return self.build_later(key, title, compute, f"drawing {title}", "This chart is being drawn …")

    def build_later(self, key: Hashable, title: str, compute: Callable[[], Any], activity: str, status: str) -> Any:
        """Return a panel. If ``draws_later`` is true and it is not cached, return a component that is replaced with it.

        Args:
            key: Key of the panel in the cache.
            title: Heading of the panel.
            compute: Function that returns the panel.
            activity: What the server does while it computes the panel.
            status: Sentence that is shown until then.
        """
        if self.draws_later and not self.captures.has_cached_result(key):
            token = self.captures.defer(key, activity, compute)
            return components.build_deferred_panel(token, title, status, self.state)
        return self.captures.get_cached_result(key, compute)

    def build_recipe_figure(self, recipe: str, name: str, options: Mapping[str, Any] | None = None) -> Any:
        """Return a panel with a figure of a recipe, or None if the recipe has no data for the figure.

        The recipe is applied to all ranks of the job or, if the captures are not the ranks of one job, to the capture
        of the page.

        Args:
            recipe: Name of the recipe.
            name: Name of the figure.
            options: Options of the recipe.
        """
        return self.build_recipe_figures(recipe, options).get(name)

    def build_recipe_figures(self, recipe: str, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return a panel for each figure of a recipe, by figure name."""
        at = self.state.at
        key = ("figures", recipe, at.capture, at.ranks, at.devices, tuple(sorted((options or {}).items())))
        return self.captures.get_cached_result(key, lambda: self._draw_recipe_figures(recipe, options))  # type: ignore[no-any-return]

    def _draw_recipe_figures(self, recipe: str, options: Mapping[str, Any] | None) -> dict[str, Any]:
        tables = sets_of_ranks.run_recipe(self.captures, self.state.at, recipe, options)
        drawn = plots.draw_recipe_figures(tables)
        return {name: components.build_figure_panel(each, each.title) for name, each in drawn.items()}

    def read_report(self, name: ReportName) -> pl.DataFrame:
        """Return the rows of a report, with the titles of the report as column names.

        Raises:
            TracekitError: The report cannot be computed.
        """
        trace = self.capture.get_aggregated_trace(self.state.at)
        return self.captures.get_rows(
            ("report", name, self.state.at), lambda: ShownRows(trace.stats(name), {}, {})
        ).frame

    def build_table(self, name: str, arguments: Mapping[str, str] | None = None, **options: Any) -> Any:
        """Return the component of a table, with the detail tables of the row that the URL selects."""

        def build_details(row: Mapping[str, Any]) -> list[Any]:
            """Return the tables with details about a selected row."""
            return build_detail_tables(self, name, collect_detail_arguments(name, arguments or {}, row))

        return grid.build_table(self.captures, name, self.state, arguments, build_details=build_details, **options)


@dataclass(frozen=True)
class Page:
    """The declaration of a page of the viewer.

    Attributes:
        name: Name, which is the path of its URL.
        title: Title in the navigation and as heading.
        group: Group of the navigation that contains the page, one of ``GROUPS``.
        needs: Names of tables, of which at least one must have rows. Otherwise, the page has no data. None stands for
            the tables that the figures of the page need or, without figures, the first table of the page.
        figures: Names of figures of ``trace.plot``, each with its heading.
        tables: Names of the tables of the page, in the order in which they are shown.
        details: Names of the detail tables of a selected row, by the name of the table that contains this row.
        build: Function that returns the components of the page, instead of the declared figures and tables.
        needs_ranks: Whether the page has no data if the captures are not the ranks of a job.
        about: Sentence below the heading.
        without_figures: Sentence that is shown instead of the figures if the capture has no data for them.
        shows_whole_capture: Whether the page shows the whole capture, and not only the aggregated iterations. In this
            case, a sentence on the page states this.
        shows_steps: Whether the page shows the aggregated iterations. In this case, a sentence on the page states what
            delimits them and how much work lies in them.
        shows_layers: Whether the page groups activities by range. If the capture has CUDA graphs, sentences on the page
            state which of their replays have layers.
        shows_cpu_events: Whether the page shows calls, ranges or samples of the CPU. If GPUs are selected, a sentence
            on the page states that these are not restricted.
        recording_hint: What to do if the page has no data. None for the command that records the needed tables.
        explain_absence: Function that returns why the page has no data for a capture that has rows in the needed
            tables, or None.
        scripts: Names of the scripts that only this page needs.
    """

    name: str
    title: str
    group: str
    figures: Mapping[str, str] = field(default_factory=dict)
    tables: tuple[str, ...] = ()
    details: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    build: Callable[[Context], list[Any]] | None = None
    needs: tuple[str, ...] | None = None
    about: str = ""
    needs_ranks: bool = False
    without_figures: str = ""
    shows_whole_capture: bool = False
    shows_steps: bool = False
    shows_layers: bool = False
    shows_cpu_events: bool = False
    recording_hint: str | None = None
    explain_absence: Callable[[Trace], TracekitError | None] | None = None
    scripts: tuple[str, ...] = ()

    @functools.cached_property
    def needed_tables(self) -> tuple[str, ...]:
        """Tables of which at least one must have rows, or an empty tuple if the page always has data."""
        if self.needs is not None:
            return self.needs
        figures = [find_analysis(FIGURE, name) for name in self.figures]
        return tuple(table for each in figures if each for table in each.tables) or (
            find_dataset(self.tables[0]).shows,
        )

    def build_content(self, context: Context) -> list[Any]:
        """Return the components of the page: the heading, and the declared or built content."""
        heading: list[Content] = [tag.h1(self.title, class_=None if self.name else "hidden")]
        if self.about:
            heading.append(tag.p(self.about, class_="dim"))
        if self.shows_whole_capture and context.capture.has_rows_in_any(*WITH_ITERATIONS):
            heading.append(tag.p(WHOLE_CAPTURE, class_="dim"))
        if self.shows_cpu_events and context.state.at.devices:
            heading.append(tag.p(ALL_CPU_EVENTS, class_="dim"))
        if self.shows_steps:
            heading += components.build_step_notes(context)
        if self.shows_layers:
            heading += components.build_layer_notes(context)
        if self.build:
            return [*heading, *self.build(context)]
        later = not self.without_figures
        figures = [context.build_figure(name, title, may_draw_later=later) for name, title in self.figures.items()]
        if self.without_figures and all(figure is None for figure in figures):
            figures = [tag.p(self.without_figures, class_="dim")]
        return [*heading, *figures, *(context.build_table(name) for name in self.tables)]


ALL_CPU_EVENTS = "Events on the CPU belong to no GPU. This page shows all of them, whatever GPUs are selected."
WHOLE_CAPTURE = "This page shows the whole capture, not only the aggregated iterations."
WITH_ITERATIONS = (*schemas.list_tables("kernel"), "ops")
"""Tables without which a capture has no iterations."""
DRAWN = (*schemas.list_tables("operation"), "api_calls", "nvtx_ranges", "nvtx_marks", "osrt_calls", "gpu_metrics")
"""Tables with events on the timeline."""

GROUPS = ("Diagnose", "Model", "GPU", "System", "Raw")
"""Groups of pages in the navigation."""
PAGES: Mapping[str, Page] = {
    page.name: page
    for page in (
        Page(
            "",
            "Overview",
            "Diagnose",
            build=overview.build_page,
            needs=(),
        ),
        Page(
            "timeline",
            "Timeline",
            "Diagnose",
            build=timeline.build_page,
            needs=DRAWN,
            scripts=("timeline.js",),
            shows_cpu_events=True,
        ),
        Page("op_types", "Op types", "Model", tables=("op_types",), shows_steps=True),
        Page(
            "groups",
            "Groups",
            "Model",
            build=groups.build_page,
            details={"groups": ("group_ops",)},
            shows_steps=True,
            shows_layers=True,
            needs=("group_nodes",),
        ),
        Page(
            "ops",
            "Ops and kernels",
            "Model",
            tables=("ops",),
            details={"ops": ("op_kernels", "op_instances")},
            shows_steps=True,
            recording_hint="annotate ops with NVTX, such as torch.autograd.profiler.emit_nvtx()",
        ),
        Page(
            "iterations",
            "Iterations",
            "Diagnose",
            build=iterations.build_page,
            details={
                "iterations": ("iteration_ledger", "iteration_ops", "iteration_kernels"),
                "iteration_ops": ("iteration_op_kernels",),
            },
            needs=WITH_ITERATIONS,
        ),
        Page(
            "findings",
            "Recorded findings",
            "Diagnose",
            build=findings.build_page,
            details={"findings": ("finding_rows",)},
            about="What the profiler itself found and recorded, and the rules of nsys analyze that list rows.",
            shows_whole_capture=True,
            needs=("findings", "ncu_rules", "diagnostics", *schemas.list_tables("activity")),
        ),
        Page(
            "gpus",
            "GPUs",
            "GPU",
            {"gpu_utilization": "Utilization"},
            ("gpus", "kernel_categories"),
            shows_steps=True,
            needs=schemas.list_tables("kernel"),
        ),
        Page(
            "ranks",
            "Ranks",
            "Diagnose",
            build=ranks.build_page,
            needs_ranks=True,
            about="A comparison of all captures, which are the ranks of a job.",
            shows_whole_capture=True,
            needs=(*schemas.list_tables("kernel"), "mpi_calls"),
        ),
        Page(
            "maps",
            "Utilization over time",
            "GPU",
            build=maps.build_page,
            shows_whole_capture=True,
            needs=("kernels", "gpu_metrics"),
        ),
        Page(
            "pace",
            "Pace",
            "System",
            build=pace.build_page,
            shows_whole_capture=True,
            needs=("kernels", "nvtx_ranges"),
        ),
        Page(
            "kernels",
            "Kernels",
            "GPU",
            {"top_kernels": "Kernels with the longest total time"},
            ("kernels",),
            {"kernels": ("launches",)},
            shows_whole_capture=True,
        ),
        Page(
            "queues",
            "Queues",
            "GPU",
            {"queue_length": "Operations that were launched and have not started"},
            ("queues",),
            about="An operation is in the queue of its stream from the start of the API call that launched it to its "
            "own start. A long queue hides the time of launches; while it is empty, the GPU waits for the CPU.",
            shows_whole_capture=True,
            needs=("api_calls",),
        ),
        Page(
            "memory",
            "Copies and memory",
            "GPU",
            build=memory.build_page,
            needs=("memory_events", "memcpys", "memsets", "allocator_events", "memory_segments"),
            shows_whole_capture=True,
        ),
        Page(
            "api",
            "API calls",
            "System",
            {"api": "API calls with the longest total time"},
            ("api", "api_calls"),
            shows_whole_capture=True,
            shows_cpu_events=True,
        ),
        Page(
            "nvtx",
            "NVTX",
            "Model",
            {"nvtx": "NVTX ranges"},
            ("nvtx", "nvtx_gpu", "nvtx_ranges"),
            shows_whole_capture=True,
            recording_hint="record NVTX ranges with nsys profile --trace=cuda,nvtx",
            shows_layers=True,
            shows_cpu_events=True,
        ),
        Page(
            "idle",
            "Idle time by cause",
            "Diagnose",
            {"idle_causes": "Idle time of each GPU by cause"},
            ("idle_causes", "idle_gaps"),
            about="What the CPU did while the GPU was idle in the steady steps: the idle parts of the ledger.",
            shows_steps=True,
            needs=("kernels", "memcpys", "graph_launches"),
        ),
        Page(
            "efficiency",
            "Efficiency",
            "Diagnose",
            build=efficiency.build_page,
            details={"op_roofline": ("op_roofline_kernels",)},
            about="What each op could have done: its work follows from its shapes, and is compared with the peak rates "
            "of the GPU. No kernel that does the same work is faster than the roofline, unless its data is in a cache.",
            shows_whole_capture=True,
            needs=("kernels",),
            explain_absence=efficiency.explain_absence,
        ),
        Page(
            "serving",
            "Serving",
            "Diagnose",
            build=serving.build_page,
            about="The phases of an inference server, such as prefill and decode, as the ranges of its steps tell.",
            shows_steps=True,
            needs=("nvtx_ranges",),
            explain_absence=serving.explain_absence,
        ),
        Page(
            "communication",
            "Communication",
            "System",
            build=communication.build_page,
            about="If the captures are the ranks of a job, tables across ranks contain the data of all captures.",
            shows_whole_capture=True,
            needs=("kernels", "mpi_calls"),
        ),
        Page(
            "stacks",
            "Call stacks",
            "System",
            build=stacks.build_page,
            details={"stack_events": ("stack_frames",)},
            about="Functions that CPU threads were executing when they were sampled, or from which they made calls.",
            shows_whole_capture=True,
            needs=("stacks",),
            recording_hint="record call stacks with nsys profile --sample=process-tree or --python-sampling=true",
            shows_cpu_events=True,
        ),
        Page(
            "metrics",
            "GPU metrics",
            "GPU",
            {"metrics": "GPU metrics over time"},
            ("metrics",),
            shows_whole_capture=True,
            recording_hint="record GPU metrics with nsys profile --gpu-metrics-devices=all",
        ),
        Page(
            "roofline",
            "Roofline",
            "GPU",
            {"roofline": "Roofline"},
            ("roofline", "limiters", "ncu_launches"),
            {"ncu_launches": ("ncu_rules", "ncu_metrics")},
            without_figures="The chart needs floating-point operations and DRAM traffic of kernels. "
            "To collect them, profile with ncu --set roofline or ncu --set full.",
            recording_hint="record metrics of kernels with ncu --set full",
        ),
        Page(
            "graph",
            "Graph",
            "Model",
            tables=("graph_summary", "graph_nodes"),
            shows_steps=True,
            needs=("graph_nodes",),
            recording_hint="load a TensorFlow graph, or TensorBoard event files with a graph",
        ),
        Page("scalars", "Scalars", "Model", tables=("scalars",)),
        Page(
            "compare",
            "Compare",
            "Diagnose",
            build=compare.build_page,
            needs=(),
        ),
        Page(
            "tables",
            "Tables",
            "Raw",
            build=tables.build_page,
            needs=(),
        ),
    )
}


MOVED = {
    "kernels_by_iteration": ("iterations", {"kernel_iterations": "iterations"}),
    "kernels_by_op": ("iterations", {"op_iterations": "iterations", "iteration_kernels": "iteration_op_kernels"}),
}
"""Former names of pages: the name of the page that replaces them, and new names of their tables."""


def find_moved_page(state: PageState) -> str | None:
    """Return the URL of the page that replaces a former page with the same state, or None if it is no former page."""
    if state.page not in MOVED:
        return None
    page, tables = MOVED[state.page]
    parameters = {}
    for name, value in state.parameters.items():
        table, dot, setting = name.partition(".")
        parameters[f"{tables.get(table, table)}{dot}{setting}"] = value
    return make_url(page, state.at, parameters)


def explain_absent_pages(captures: ViewedCaptures, capture: ViewedCapture) -> dict[str, str]:
    """Return why pages have no data for a capture, by the name of the page. The result is cached."""
    return captures.get_cached_result(  # type: ignore[no-any-return]
        _create_absence_key(capture), lambda: dict(_iterate_absences(captures, capture))
    )


def is_absence_known(captures: ViewedCaptures, capture: ViewedCapture) -> bool:
    """Return whether ``explain_absent_pages`` has a cached result for a capture."""
    return captures.has_cached_result(_create_absence_key(capture))


def _create_absence_key(capture: ViewedCapture) -> tuple[str, tuple[int, str]]:
    return ("absent pages", capture.key)


def _iterate_absences(captures: ViewedCaptures, capture: ViewedCapture) -> Iterator[tuple[str, str]]:
    """Yield the name of each page without data, and the reason."""
    for page in PAGES.values():
        error = _explain_absence(captures, capture, page)
        if error is not None:
            yield page.name, error.message.partition(": ")[2] or error.message


def build_page(context: Context) -> list[Any]:
    """Return the components of the page that the state selects, or a message if the page has no data.

    Raises:
        TracekitError: The page does not exist.
    """
    page = PAGES.get(context.state.page)
    if page is None:
        raise TracekitError(
            f"the requested page {context.state.page!r} does not exist", hint="choose a page in the navigation"
        )
    if context.state.at.ranks:
        sets_of_ranks.get_selected_ranks(context.captures, context.state.at)  # raises for other ranks
    error = _explain_absence(context.captures, context.capture, page)
    if error is not None:
        return [tag.h1(page.title), components.build_error_message(error)]
    return page.build_content(context)


def _explain_absence(captures: ViewedCaptures, capture: ViewedCapture, page: Page) -> TracekitError | None:
    """Return why a page has no data for a capture, or None if it has."""
    if page.needed_tables and not capture.has_rows_in_any(*page.needed_tables):
        return _create_missing_data_error(capture.trace, page)
    if page.needs_ranks and sets_of_ranks.get_rank_set(captures) is None:
        return TracekitError(
            "this page compares the ranks of one job, but the open captures are not two or more ranks of one job",
            hint="open the captures of all ranks of one job, and no other captures",
        )
    return page.explain_absence(capture.trace) if page.explain_absence else None


def _create_missing_data_error(trace: Trace, page: Page) -> TracekitError:
    """Return an error that states why a capture has no data for a page, and what to do."""
    absence = get_trace_view(trace).explain_missing_tables(page.needed_tables)
    info = trace.info
    is_without_nvidia = is_without_cuda(list_makers_of_capture(info, trace.devices.select("name", "chip").to_dicts()))
    is_other = is_without_nvidia or has_other_profiler(trace.format or "", info.get("tool", ""))
    hint = None if absence.state is Reason.NOT_DECODED or is_other else page.recording_hint
    hint = hint or absence.hint or f"open a capture with rows in the tables {', '.join(page.needed_tables)}"
    return TracekitError(f"this capture has no data for this page: {absence.reason}", hint=hint)


def collect_detail_arguments(table: str, arguments: Mapping[str, str], row: Mapping[str, Any]) -> dict[str, str]:
    """Return the arguments, by name, from which the detail tables of a selected row are computed.

    These are the arguments of the table that contains the row, and the values of the row in the columns that
    ``Dataset.select`` lists.
    """
    values = {name: row.get(column) for name, column in find_dataset(table).select.items()}
    return {**arguments, **{name: "" if value is None else str(value) for name, value in values.items()}}


def build_detail_tables(context: Context, table: str, arguments: Mapping[str, str]) -> list[Any]:
    """Return the tables with details about a selected row."""
    page = PAGES.get(context.state.page)
    names = page.details.get(table, ()) if page else ()
    return [context.build_table(name, arguments, heading="h3") for name in names]
