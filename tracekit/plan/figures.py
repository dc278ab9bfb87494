"""Draw figures of a trace. ``FigureRows`` computes the data frame of a figure, and ``tracekit.plots`` draws it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from tracekit.errors import MissingTableError, UnknownFormatError, create_choices_hint
from tracekit.plan.figure_rows import FigureRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl
    from plotly.graph_objects import Figure

    from tracekit.exporters.stacks.options import Options
    from tracekit.plan.view import TraceView

MAX_POINTS = 4000
"""Maximum number of points of a line chart."""
MAX_NODES = 1000
"""Maximum number of nodes of an icicle chart."""
MAX_BARS = 400
"""Maximum number of bars in a bar chart."""
MAX_METRICS = 8
"""Number of GPU metrics that are drawn by default."""


class Plots:
    """The figures of a trace. Each method returns a plotly figure.

    Figures are small however large the capture is: at most a few thousand points, bars or nodes. Numbers in hover
    texts are exact. Names in the capture are displayed as text and never interpreted as markup. If a figure needs a
    correlated or rolled-up trace, the trace is correlated or rolled up with the default parameters. plotly has to be
    installed: ``pip install 'tracekit[view]'``.
    """

    def __init__(self, view: TraceView) -> None:
        self._rows = FigureRows(view)

    def gpu_utilization(self, *, dark: bool = False) -> Figure:
        """Draw the utilization of each GPU, in percent.

        The utilization states how long the GPU ran kernels in the aggregated iterations, relative to their duration.

        Args:
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: The capture has no GPU activities.

        Examples:
            >>> import tracekit as tk
            >>> figure = tk.load("fixtures/train_amp.sqlite").plot.gpu_utilization()
            >>> figure.data[0].y, figure.layout.xaxis.range
            (('GPU 0', 'GPU 1'), (0, 100))
        """
        from tracekit.plots import bars

        return bars.draw_gpu_utilization(self._rows.gpu_utilization(), dark=dark)

    def utilization(self) -> pl.DataFrame:
        """Return the utilization of each GPU, as ``gpu_utilization`` draws it.

        Returns:
            One row per GPU, in ascending order of ``device_id``. The columns are ``device_id``, ``name`` (null if
            unknown), ``busy_ns`` (the time during which the GPU ran kernels), ``total_ns`` (the total duration of the
            aggregated iterations) and ``percent``.

        Raises:
            MissingTableError: The capture has no GPU activities.

        Examples:
            >>> import tracekit as tk
            >>> tk.load("fixtures/train_amp.sqlite").plot.utilization().select("device_id", "busy_ns").rows()
            [(0, 4894131), (1, 0)]
        """
        return self._rows.gpu_utilization()

    def time_breakdown(self, *, dark: bool = False) -> Figure:
        """Draw how much time the aggregated iterations spent in each part, averaged over the GPUs in use.

        Each moment is attributed to the first of these parts that is active: Tensor Core kernels, kernels without
        Tensor Cores, memory operations, the data loader, I/O, and ops on the CPU. Time in which none of them is active
        is drawn as "Other".

        Args:
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: The capture has neither ops nor GPU activities.
        """
        from tracekit.plots import bars

        return bars.draw_time_breakdown(self._rows.time_breakdown(), dark=dark)

    def kernel_time(self, *, dark: bool = False) -> Figure:
        """Draw the total duration of the GPU activities in the aggregated iterations, by kind.

        The kinds are kernels that use Tensor Cores, other kernels, CUDA graphs and memory operations.

        Args:
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: The capture has no GPU activities.
        """
        from tracekit.plots import bars

        return bars.draw_kernel_time(self._rows.kernel_time(), dark=dark)

    def iterations(self, *, dark: bool = False) -> Figure:
        """Draw the duration of each iteration, divided into the parts of ``time_breakdown``.

        Iterations that are not aggregated, such as the warm-up, are gray. If there are many iterations, each bar shows
        the mean of several consecutive iterations, and a marker the longest of them.

        Args:
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: The capture has neither ops nor GPU activities.
        """
        from tracekit.core.figures import overview
        from tracekit.plots import bars

        bins = overview.merge_iterations_into_bins(self._rows.iterations(), MAX_BARS)
        return bars.draw_iterations(bins, overview.PART_COLUMNS, dark=dark)

    def groups(
        self,
        metric: str = "gpu_time_ns",
        direction: Literal["fprop", "bprop"] | None = None,
        *,
        dark: bool = False,
    ) -> Figure:
        """Draw the groups of ops, and the ops in them, as an icicle chart.

        Args:
            metric: Column of ``group_nodes`` that determines the width of a node: ``gpu_time_ns``, ``cpu_time_ns``,
                ``api_time_ns``, ``cpu_overhead_ns`` or ``gpu_idle_ns``.
            direction: Direction of the ops to draw. If None, both directions are drawn in different colors.
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: The capture has no ops with this metric and direction.
            UnknownFormatError: The metric or the direction does not exist.
        """
        from tracekit.core.figures import trees
        from tracekit.plots import icicles

        _check_choice("metric", "metrics", metric, trees.GROUP_METRICS)
        if direction is not None:
            _check_choice("direction", "directions", direction, trees.DIRECTIONS)
        return icicles.draw_group_tree(self._rows.group_tree(metric, direction, MAX_NODES), metric, dark=dark)

    def top_ops(self, n: int = 10, *, dark: bool = False) -> Figure:
        """Draw the ops with the longest total GPU time or, if no op ran on a GPU, with the longest total CPU time.

        Args:
            n: Maximum number of ops.
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: The capture has no ops.
        """
        from tracekit.plots import bars

        ops = self._rows.ops()
        metric = "gpu_time_ns" if ops["gpu_time_ns"].sum() else "cpu_time_ns"
        return bars.draw_top_ops(ops.head(_clip_bar_count(n)), metric, dark=dark)

    def top_kernels(self, n: int = 10, *, dark: bool = False) -> Figure:
        """Draw the kernels with the longest total duration, grouped by kernel name.

        If the capture has no kernels, the kernels that Nsight Compute profiled are drawn.

        Args:
            n: Maximum number of kernel names.
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: The capture has no kernels, and no kernels that Nsight Compute profiled.
        """
        from tracekit.plots import bars

        return bars.draw_top_kernels(self._rows.kernels().head(_clip_bar_count(n)), dark=dark)

    def api(self, n: int = 10, *, dark: bool = False) -> Figure:
        """Draw the CUDA API functions with the longest total duration, as the report ``cuda_api_sum`` computes it.

        Args:
            n: Maximum number of functions.
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: The capture has no API calls.
        """
        from tracekit.plots import bars

        return bars.draw_api_calls(self._rows.api_calls().head(_clip_bar_count(n)), dark=dark)

    def copies(self, *, dark: bool = False) -> Figure:
        """Draw the size and the time of the memory copies of each kind, and of memory sets.

        Args:
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: The capture has no memory copies or memory sets.
        """
        from tracekit.plots import bars

        return bars.draw_memory_copies(self._rows.copies(), dark=dark)

    def idle_causes(self, *, dark: bool = False) -> Figure:
        """Draw the idle time of each GPU by cause, as the rule ``gpu_idle_causes`` computes it.

        Args:
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: No GPU was idle between two activities.
        """
        from tracekit.plots import bars

        return bars.draw_idle_causes(self._rows.idle_causes(), dark=dark)

    def utilization_over_time(self, bins: int = 400, *, device: int | None = None, dark: bool = False) -> Figure:
        """Draw the utilization of each GPU over time, from the first to the last activity of the GPUs.

        The utilization in a time bin is the exact time during which kernels, CUDA graphs or memory operations ran on
        the GPU, divided by the duration of the bin.

        Args:
            bins: Number of bins of equal duration, at most 4,000 for all GPUs together.
            device: Id of the GPU. If None, all GPUs are drawn.
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: The capture has no activities on this GPU.
        """
        from tracekit.plots import lines

        return lines.draw_utilization_over_time(self._rows.busy_times(bins, device, MAX_POINTS), dark=dark)

    def memory_usage(self, *, dark: bool = False) -> Figure:
        """Draw the memory in use on each device over time, by kind of memory.

        Args:
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: Allocations were not recorded.
        """
        from tracekit.plots import lines

        return lines.draw_memory_usage(self._rows.memory_changes(MAX_POINTS), dark=dark)

    def metrics(self, names: Sequence[str] | None = None, *, dark: bool = False) -> Figure:
        """Draw sampled GPU metrics over time.

        If there are many samples, only the smallest, the largest and the last sample of each time bin are drawn.

        Args:
            names: Names of the metrics. If None, the eight percentage metrics with the highest values are drawn.
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: GPU metrics were not recorded.
            UnknownFormatError: The capture lacks one of the metrics.
        """
        from tracekit.core.figures import timeline
        from tracekit.plots import lines

        known, frames = self._rows.metric_names(), self._rows.view.frame
        for name in names or ():
            _check_choice("metric", "metrics", name, known)
        chosen = list(names) if names else timeline.find_names_of_highest_metrics(frames, MAX_METRICS)
        return lines.draw_gpu_metrics(timeline.read_metric_samples(frames, chosen, MAX_POINTS), dark=dark)

    def roofline(self, *, dark: bool = False) -> Figure:
        """Draw the roofline of the kernels that Nsight Compute profiled, as the report ``ncu_roofline`` computes it.

        Args:
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: The capture has no Nsight Compute results, or they lack the metrics of a roofline.
        """
        from tracekit.core.ncu.roofline import HINT
        from tracekit.plots import rooflines

        rows = self._rows.roofline()
        if rooflines.select_drawable_rows(rows).is_empty():
            message = "the capture has no kernel with both floating-point operations and DRAM traffic"
            raise MissingTableError(message, path=self._rows.view.path, hint=HINT)
        return rooflines.draw_roofline(rows, dark=dark)

    def nvtx(self, *, dark: bool = False) -> Figure:
        """Draw the tree of NVTX range paths as an icicle chart.

        The width of a path is the GPU time of the activities that were launched inside its ranges. If no activity was
        launched inside any range, the width is the duration of the ranges.

        Args:
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: The capture has no push/pop ranges.
        """
        from tracekit.plots import icicles

        metric, nodes = self._rows.metric_and_range_tree(MAX_NODES)
        return icicles.draw_nvtx_tree(nodes, metric, dark=dark)

    def stacks(
        self,
        events: str | None = None,
        weight: Literal["samples", "time"] = "samples",
        *,
        process: int | None = None,
        thread: int | None = None,
        dark: bool = False,
    ) -> Figure:
        """Draw the call tree of samples or traced calls as an icicle chart.

        Args:
            events: ``cpu_samples``, ``osrt_calls``, ``api_calls``, ``python_samples`` (periodic samples of Python) or
                ``python_calls`` (Python stacks of CUDA API calls). If None, the first kind with call stacks is drawn.
            weight: ``samples`` counts the events. ``time`` adds up the duration of each call or, for samples, the
                sampling period.
            process: Id of the process to draw. If None, all processes are drawn.
            thread: Id of the thread to draw. If None, all threads are drawn.
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: The capture has no call stacks of these events.
            UnknownFormatError: The value of ``events`` or ``weight`` is unknown.
        """
        from tracekit.core.figures import stacks
        from tracekit.plots import icicles

        options = _create_stack_options(events, weight, process, thread)
        nodes = stacks.select_heaviest_calls(self._rows.call_tree(options), MAX_NODES)
        if nodes.is_empty():
            raise self._rows.create_missing_data_error("call stacks of the selected events", ("stacks",))
        return icicles.draw_call_stacks(nodes, weight, dark=dark)

    def functions(
        self,
        events: str | None = None,
        weight: Literal["samples", "time"] = "samples",
        *,
        process: int | None = None,
        thread: int | None = None,
    ) -> pl.DataFrame:
        """Return the weight of each function in the call stacks that ``stacks`` draws.

        The arguments are those of ``stacks``.

        Returns:
            One row per function, the one with the largest weight first. The columns are ``name``, ``module`` (null if
            unknown), ``self`` (weight of the events whose innermost function it is) and ``total`` (weight of the
            events that have it anywhere in their call stack). Weights are numbers of events or times in ns.

        Raises:
            MissingTableError: The capture has no call stacks of these events.
            UnknownFormatError: The value of ``events`` or ``weight`` is unknown.

        Examples:
            >>> import tracekit as tk
            >>> tk.load("fixtures/osrt_libs.sqlite").plot.functions()["self"].sum()
            96
        """
        from tracekit.core.figures import stacks

        return stacks.compute_function_totals(
            self._rows.call_tree(_create_stack_options(events, weight, process, thread))
        )

    def stack_events(self) -> list[str]:
        """Return the names of the events that have call stacks. By default, ``stacks`` draws the first of these events.

        Examples:
            >>> import tracekit as tk
            >>> tk.load("fixtures/osrt_libs.sqlite").plot.stack_events()
            ['cpu_samples', 'osrt_calls']
        """
        return self._rows.list_events_with_stacks()


FIGURES = tuple(
    name
    for name, method in vars(Plots).items()
    if not name.startswith("_") and method.__annotations__["return"] == "Figure"
)
"""Names of the figures."""


def _check_choice(noun: str, plural_noun: str, name: str, known_names: Sequence[str]) -> None:
    """Check that ``known_names`` contains the name of a metric, direction, event or weight.

    Raises:
        UnknownFormatError: The name is unknown.
    """
    if name not in known_names:
        raise UnknownFormatError(
            f"there is no {noun} {name!r}", hint=create_choices_hint(plural_noun, known_names, name)
        )


def _create_stack_options(events: str | None, weight: str, process: int | None, thread: int | None) -> Options:
    """Return the options that select the events of call stacks."""
    from tracekit.exporters.stacks.options import EVENTS, Options

    if events is not None:
        _check_choice("event", "events", events, EVENTS)
    _check_choice("weight", "weights", weight, ("samples", "time"))
    return Options(events=events, weight=weight, process=process, thread=thread)


def _clip_bar_count(bar_count: int) -> int:
    """Return a requested number of bars, clipped to the range from 1 to ``MAX_BARS``."""
    return max(1, min(bar_count, MAX_BARS))
