"""Compute the data of figures and pages of a trace, and draw figures. ``tracekit.plots`` draws the computed rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from tracekit.plots import draw_figure
from tracekit.plots.theme import convert_to_figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl
    from plotly.graph_objects import Figure

    from tracekit.registry.interface import View

MAX_BARS = 400
"""Maximum number of bars in a bar chart."""


class Plots:
    """The figures of a trace. Each method returns a plotly figure.

    Figures are small however large the capture is: at most a few thousand points, bars or nodes. Numbers in hover
    texts are exact. Names in the capture are displayed as text and never interpreted as markup. If a figure needs a
    correlated or rolled-up trace, the trace is correlated or rolled up with the default parameters. plotly has to be
    installed: ``pip install 'tracekit[plots]'``.
    """

    def __init__(self, view: View) -> None:
        self._view = view

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
        return self._draw("gpu_utilization", dark=dark)

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
        return self._view.figure_rows("gpu_utilization")

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
        return self._draw("time_breakdown", dark=dark)

    def kernel_time(self, *, dark: bool = False) -> Figure:
        """Draw the total duration of the GPU activities in the aggregated iterations, by kind.

        The kinds are kernels that use Tensor Cores, other kernels, CUDA graphs and memory operations.

        Args:
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: The capture has no GPU activities.
        """
        return self._draw("kernel_time", dark=dark)

    def iterations(self, *, dark: bool = False) -> Figure:
        """Draw the duration of each iteration, divided into the parts of ``time_breakdown``.

        Iterations that are not aggregated, such as the warm-up, are gray. If there are many iterations, each bar shows
        the mean of several consecutive iterations, and a line connects the shortest and the longest of them. Outliers
        are marked, and the longest of them are named. If the warm-up or an outlier is much longer than the other
        iterations, it is cut off, and its label states its duration.

        Args:
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: The capture has neither ops nor GPU activities.
        """
        return self._draw("iterations", dark=dark)

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
        return self._draw("groups", metric=metric, direction=direction, dark=dark)

    def top_ops(self, n: int = 10, *, dark: bool = False) -> Figure:
        """Draw the ops with the longest total GPU time or, if no op ran on a GPU, with the longest total CPU time.

        Args:
            n: Maximum number of ops.
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: The capture has no ops.
        """
        return self._draw("top_ops", count=n, dark=dark)

    def top_kernels(self, n: int = 10, *, dark: bool = False) -> Figure:
        """Draw the kernels with the longest total duration, grouped by kernel name.

        If the capture has no kernels, the kernels that Nsight Compute profiled are drawn.

        Args:
            n: Maximum number of kernel names.
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: The capture has no kernels, and no kernels that Nsight Compute profiled.
        """
        return self._draw("top_kernels", count=n, dark=dark)

    def api(self, n: int = 10, *, dark: bool = False) -> Figure:
        """Draw the CUDA API functions with the longest total duration, as the report ``cuda_api_sum`` computes it.

        Args:
            n: Maximum number of functions.
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: The capture has no API calls.
        """
        return self._draw("api", count=n, dark=dark)

    def copies(self, *, dark: bool = False) -> Figure:
        """Draw the size and the time of the memory copies of each kind, and of memory sets.

        Args:
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: The capture has no memory copies or memory sets.
        """
        return self._draw("copies", dark=dark)

    def idle_causes(self, *, dark: bool = False) -> Figure:
        """Draw the idle time of each GPU by cause, as the rule ``gpu_idle_causes`` computes it.

        Args:
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: No GPU was idle between two activities.
        """
        return self._draw("idle_causes", dark=dark)

    def utilization_over_time(self, bins: int = 400, *, device: int | None = None, dark: bool = False) -> Figure:
        """Draw the utilization of each GPU over time, from the first to the last activity of the GPUs.

        The utilization in a time bin is the exact time during which kernels, CUDA graphs or memory operations ran on
        the GPU, divided by the duration of the bin. A band extends from the lowest to the highest utilization in the
        sixteenths of each bin.

        Args:
            bins: Number of bins of equal duration, at most 4,000 for all GPUs together.
            device: Id of the GPU. If None, all GPUs are drawn.
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: The capture has no activities on this GPU.
        """
        return self._draw("utilization_over_time", bins=max(1, bins), device=device, dark=dark)

    def memory_usage(self, *, dark: bool = False) -> Figure:
        """Draw the memory in use on each device over time, by kind of memory, and mark its peaks.

        If there are many changes, the line shows the last one in each time bin, and a band the least and the most
        memory in use.

        Args:
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: Allocations were not recorded.
        """
        return self._draw("memory_usage", dark=dark)

    def step_parts(self, bins: int = 400, *, dark: bool = False) -> Figure:
        """Draw the parts of each steady step, as the report ``step_parts`` computes them.

        The parts of a step add up to its duration. A line shows the median of the steady steps, and markers show
        outliers. If there are more than ``bins`` steps, a bar is the step with the median duration of consecutive ones,
        and a line extends from the shortest to the longest of them.

        Args:
            bins: Maximum number of bars.
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: The capture has no GPU activities.
        """
        return self._draw("step_parts", bins=max(1, bins), dark=dark)

    def communication_overlap(self, bins: int = 400, *, dark: bool = False) -> Figure:
        """Draw the communication of each steady step, divided by whether computation hides it.

        The report ``communication_overlap`` computes the rows. If there are more than ``bins`` steps, a bar is the step
        with the median duration of consecutive ones.

        Args:
            bins: Maximum number of bars.
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: The capture has no communication in steps.
        """
        return self._draw("communication_overlap", bins=max(1, bins), dark=dark)

    def queue_length(self, streams: int = 8, *, dark: bool = False) -> Figure:
        """Draw how many operations of each stream were launched and have not started, over time.

        If there are many operations, the line shows the last length in each time bin, and a band the shortest and the
        longest queue.

        Args:
            streams: Maximum number of streams, those with the longest queues.
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: The capture has no GPU activities whose API calls were recorded.
        """
        return self._draw("queue_length", streams=max(1, streams), dark=dark)

    def metrics(self, names: Sequence[str] | None = None, *, dark: bool = False) -> Figure:
        """Draw sampled GPU metrics over time.

        If there are many samples, the line shows the median of each time bin, and a band the lowest and the highest
        sample.

        Args:
            names: Names of the metrics. If None, the eight percentage metrics with the highest values are drawn.
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: GPU metrics were not recorded.
            UnknownFormatError: The capture lacks one of the metrics.
        """
        return self._draw("metrics", names=tuple(names) if names else None, dark=dark)

    def roofline(self, *, dark: bool = False) -> Figure:
        """Draw the roofline of the kernels that Nsight Compute profiled, as the report ``ncu_roofline`` computes it.

        Args:
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: The capture has no Nsight Compute results, or they lack the metrics of a roofline.
        """
        return self._draw("roofline", dark=dark)

    def op_roofline(self, count: int = 200, *, dark: bool = False) -> Figure:
        """Draw the roofline of the ops whose work is known, as the report ``op_roofline`` computes it.

        Each point is an op with shapes and types, and the lines are the bandwidth of the memory and the peak rates.

        Args:
            count: Maximum number of ops, those with the largest GPU time.
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: The capture has no op whose work is known.
        """
        return self._draw("op_roofline", count=count, dark=dark)

    def nvtx(self, *, dark: bool = False) -> Figure:
        """Draw the tree of NVTX range paths as an icicle chart.

        The width of a path is the GPU time of the activities that were launched inside its ranges. If no activity was
        launched inside any range, the width is the duration of the ranges.

        Args:
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: The capture has no push/pop ranges.
        """
        return self._draw("nvtx", dark=dark)

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
        return self._draw("stacks", events=events, weight=weight, process=process, thread=thread, dark=dark)

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
        options = {"events": events, "weight": weight, "process": process, "thread": thread}
        return self._view.figure_rows("functions", **options)

    def stack_events(self) -> list[str]:
        """Return the names of the events that have call stacks. By default, ``stacks`` draws the first of these events.

        Examples:
            >>> import tracekit as tk
            >>> tk.load("fixtures/osrt_libs.sqlite").plot.stack_events()
            ['cpu_samples', 'osrt_calls']
        """
        from tracekit.plan.stacks import list_events_with_stacks

        return list_events_with_stacks(self._view)

    def _draw(self, name: str, *, dark: bool, count: int | None = None, **options: Any) -> Figure:
        rows = self._view.figure_rows(name, **options)
        limit = None if count is None else max(1, min(count, MAX_BARS))
        return convert_to_figure(draw_figure(name, rows, count=limit, dark=dark))
