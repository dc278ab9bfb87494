"""Draw the figures of a set from the tables of recipes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from tracekit.errors import MissingTableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import polars as pl
    from plotly.graph_objects import Figure

    from tracekit.text.names import RecipeName

Align = Literal["yes", "no"]


class SetPlots:
    """Methods that draw figures of a set. Each method computes a recipe and returns plotly figures of its tables.

    The figures are small even if the ranks have many events. ``recipe`` draws tables that ``TraceSet.recipe`` has
    already computed. The methods need plotly: ``pip install 'tracekit[plots]'``.
    """

    def __init__(self, compute_recipe: Callable[..., dict[str, pl.DataFrame]]) -> None:
        self._compute_recipe = compute_recipe

    def gpu_time(self, *, dark: bool = False) -> Figure:
        """Draw the time in which the GPUs of each rank compute, communicate, copy memory or are idle.

        Args:
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: No rank has GPU activities.
        """
        return self._draw_single_figure("gpu_time_sum", "gpu_time", "GPU activities", dark=dark)

    def arrivals(self, *, dark: bool = False) -> Figure:
        """Draw how long each rank waits for other ranks, and how long it transfers data, in collectives and messages.

        Args:
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: No rank has collectives or messages.
        """
        return self._draw_single_figure("comm_skew", "arrivals", "collectives or messages", dark=dark)

    def iterations(self, *, include_warm_up: bool = False, dark: bool = False) -> Figure:
        """Draw the shortest, median and longest duration of each iteration over all ranks, and mark the stragglers.

        Args:
            include_warm_up: Whether the first iterations are compared even if they are much slower than the others.
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: No rank has iterations.

        Examples:
            >>> import tracekit as tk
            >>> figure = tk.load_many("fixtures/why/ddp_straggler_rank*.nsys-rep").plot.iterations()
            >>> [line.name for line in figure.data]
            ['Shortest', 'Longest', 'Median', 'Warm-up, not aggregated', 'Straggler: rank 1']
        """
        tables = self._compute_recipe("iteration_spread", include_warm_up=include_warm_up)
        return self._draw_single_table(tables, "iterations", "iterations", dark=dark)

    def stragglers(self, *, include_warm_up: bool = False, dark: bool = False) -> Figure:
        """Draw the time that iterations lost because of stragglers, by rank and phase.

        Args:
            include_warm_up: Whether the first iterations are compared even if they are much slower than the others.
            dark: Whether to use the dark template.

        Raises:
            MissingTableError: No rank is a straggler.
        """
        tables = self._compute_recipe("iteration_spread", include_warm_up=include_warm_up)
        return self._draw_single_table(tables, "stragglers", "stragglers", dark=dark)

    def utilization(
        self,
        recipe: Literal[
            "cuda_gpu_time_util_map",
            "gpu_metric_util_map",
            "mpi_gpu_time_util_map",
            "nccl_gpu_time_util_map",
            "ucx_gpu_time_util_map",
        ] = "cuda_gpu_time_util_map",
        *,
        bins: int = 30,
        align: Align = "yes",
        dark: bool = False,
    ) -> dict[str, Figure]:
        """Draw heat maps of the utilization of each rank and GPU over time.

        Args:
            recipe: Name of the recipe whose percentages are drawn.
            bins: Number of time bins.
            align: ``yes`` counts times from the start of the first profile, ``no`` from the start of each profile.
            dark: Whether to use the dark template.

        Returns:
            The heat maps by name, one per column of percentages. Empty if the ranks have no data for the recipe.

        Raises:
            MissingTableError: ``align`` is ``yes``, but the start of a profile is not recorded.

        Examples:
            >>> import tracekit as tk
            >>> figures = tk.load_many("fixtures/ranks").plot.utilization("mpi_gpu_time_util_map")
            >>> [figure.layout.title.text for figure in figures.values()]
            ['Kernels over time', 'MPI over time', 'Overlap over time']
        """
        return self.recipe(self._compute_recipe(recipe, bins=bins, align=align), dark=dark)

    def pace(
        self,
        name: str,
        recipe: Literal["cuda_gpu_kern_pace", "nvtx_gpu_proj_pace", "nvtx_pace"] = "cuda_gpu_kern_pace",
        *,
        align: Align = "yes",
        dark: bool = False,
    ) -> dict[str, Figure]:
        """Draw the start times and durations of the occurrences of a kernel or an NVTX range in each rank.

        Args:
            name: Short name of the kernel, or name of the range.
            recipe: Name of the recipe whose occurrences are drawn.
            align: ``yes`` counts times from the start of the first profile, ``no`` from the start of each profile.
            dark: Whether to use the dark template.

        Returns:
            The figures by name. Empty if no kernel or range has this name.

        Raises:
            MissingTableError: ``align`` is ``yes``, but the start of a profile is not recorded.

        Examples:
            >>> import tracekit as tk
            >>> list(tk.load_many("fixtures/ranks").plot.pace("compute", "nvtx_pace"))
            ['pace_over_time', 'pace_start', 'pace_duration', 'pace_delta']
        """
        return self.recipe(self._compute_recipe(recipe, name=name, align=align), dark=dark)

    def recipe(self, tables: Mapping[str, pl.DataFrame], *, dark: bool = False) -> dict[str, Figure]:
        """Draw the figures of a recipe whose tables have already been computed.

        Args:
            tables: The result of ``TraceSet.recipe``.
            dark: Whether to use the dark template.

        Returns:
            The figures by name. Tables without rows or without a figure are omitted.
        """
        from tracekit.plots import recipes, theme

        drawn = recipes.draw_recipe_figures(tables, dark=dark)
        return {name: theme.convert_to_figure(chart) for name, chart in drawn.items()}

    def _draw_single_figure(self, recipe: RecipeName, figure_name: str, missing_data: str, *, dark: bool) -> Figure:
        """Run a recipe, and return the figure ``figure_name`` of its tables.

        Raises:
            MissingTableError: The ranks have no data for the figure.
        """
        return self._draw_single_table(self._compute_recipe(recipe), figure_name, missing_data, dark=dark)

    def _draw_single_table(
        self, tables: Mapping[str, pl.DataFrame], figure_name: str, missing_data: str, *, dark: bool
    ) -> Figure:
        """Return the figure ``figure_name`` of the tables of a recipe.

        Raises:
            MissingTableError: The ranks have no data for the figure.
        """
        drawn = self.recipe(tables, dark=dark)
        if figure_name not in drawn:
            raise MissingTableError(f"the ranks have no {missing_data}", hint=f"choose captures with {missing_data}")
        return drawn[figure_name]
