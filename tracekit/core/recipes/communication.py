"""Declare the recipes on communication between ranks. nsys does not have these recipes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.communication import Communication, read_call_tables, read_rank_tables
from tracekit.core.recipes.recipe import Option, Output, Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracekit.core.recipes.recipe import RankRequest, Tables, Value

_DECIMALS = {"algorithm_gb_per_s": 3, "bus_gb_per_s": 3, "drift_ppm": 3}


_KEY_COLUMNS = {
    "summary": ("kind", "communicator", "bytes", "count", "time_ns", "wait_ns"),
    "operations": ("operation_id", "kind", "bytes", "skew_ns", "last_rank", "wait_ns"),
    "arrivals": ("kind", "communicator", "last_count", "delay_ns", "wait_ns"),
    "calls": ("kind", "start_ns", "end_ns", "status"),
    "clocks": ("method", "offset_ns", "max_residual_ns"),
    "iterations": ("iteration", "spread_ns", "straggler", "lost_ns", "lost_on"),
    "steps": ("key_op", "steps", "kernels", "kernels_in_steps", "gpu_time_ns", "gpu_time_in_steps_ns"),
    "stragglers": ("straggler", "phase", "lost_on", "iteration_count", "lost_ns"),
}
"""Columns that are the point of a table, by table."""


def _declare_analysis_recipe(
    name: str,
    doc: str,
    read_tables: Callable[[RankRequest], Tables],
    *outputs: str,
    options: Mapping[str, Option] | None = None,
) -> Recipe:
    """Declare a recipe that returns tables of the communication analysis.

    Args:
        name: Name of the recipe.
        doc: Description of the recipe.
        read_tables: Function that returns the tables of one rank that the analysis needs.
        outputs: Names of the returned tables, which are attributes of ``Communication``.
        options: The options of the recipe, keyed by name.
    """

    def combine_rank_tables(tables: Tables, _option_values: Mapping[str, Value]) -> Tables:
        analysis = Communication(tables)
        return {output: _round_float_columns(getattr(analysis, output)) for output in outputs}

    declared = tuple(Output(output, key_columns=_KEY_COLUMNS.get(output, ())) for output in outputs)
    return Recipe(name, doc, declared, read_tables, combine_rank_tables, options or {})


def _round_float_columns(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(pl.col(c).round(_DECIMALS.get(c, 1)) for c, t in rows.schema.items() if t == pl.Float64)


def _read_calls(request: RankRequest) -> Tables:
    return read_call_tables(request.frames)


def _read_calls_and_iterations(request: RankRequest) -> Tables:
    key_op, included = (request.get_text_option(option) for option in _STEP_OPTIONS)
    return read_rank_tables(request.frames, key_op=key_op or None, include_warm_up=included == "yes")


_STEP_OPTIONS = {
    "key_op": Option("", "Id or name of the op that delimits iterations, or the name of a range."),
    "include_warm_up": Option(
        "no",
        "Whether the first iterations are compared even if they are much slower than the others.",
        choices=("yes", "no"),
    ),
}


comm_sum = _declare_analysis_recipe(
    "comm_sum",
    "Bandwidth, waits and overlap of collectives and messages, by kind, communicator and size.",
    _read_calls,
    *("summary", "operations", "clocks"),
)
comm_skew = _declare_analysis_recipe(
    "comm_skew",
    "How late each rank starts collectives and messages, and how long it waits in them.",
    _read_calls,
    *("arrivals", "operations", "clocks"),
)
comm_trace = _declare_analysis_recipe(
    "comm_trace",
    "Every collective and message of every rank, matched across ranks, on a common clock.",
    _read_calls,
    *("calls", "clocks"),
)
iteration_spread = _declare_analysis_recipe(
    "iteration_spread",
    "How much the ranks differ in each iteration, and which rank lost time in which phase.",
    _read_calls_and_iterations,
    *("iterations", "stragglers", "clocks", "steps"),
    options=_STEP_OPTIONS,
)
