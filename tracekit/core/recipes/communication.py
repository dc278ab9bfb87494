"""Declare the recipes on communication between ranks. nsys does not have these recipes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.communication import Communication, read_call_tables, read_rank_tables
from tracekit.core.recipes.recipe import Output, Recipe

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


def _declare_analysis_recipe(name: str, doc: str, read_tables: Callable[..., Tables], *outputs: str) -> Recipe:
    """Declare a recipe that returns tables of the communication analysis.

    Args:
        name: Name of the recipe.
        doc: Description of the recipe.
        read_tables: Function that returns the tables of one rank that the analysis needs.
        outputs: Names of the returned tables, which are attributes of ``Communication``.
    """

    def compute_rank_tables(request: RankRequest) -> Tables:
        return read_tables(request.frames)

    def combine_rank_tables(tables: Tables, _option_values: Mapping[str, Value]) -> Tables:
        analysis = Communication(tables)
        return {output: _round_float_columns(getattr(analysis, output)) for output in outputs}

    declared = tuple(Output(output, key_columns=_KEY_COLUMNS.get(output, ())) for output in outputs)
    return Recipe(name, doc, declared, compute_rank_tables, combine_rank_tables)


def _round_float_columns(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(pl.col(c).round(_DECIMALS.get(c, 1)) for c, t in rows.schema.items() if t == pl.Float64)


comm_sum = _declare_analysis_recipe(
    "comm_sum",
    "Bandwidth, waits and overlap of collectives and messages, by kind, communicator and size.",
    read_call_tables,
    *("summary", "operations", "clocks"),
)
comm_skew = _declare_analysis_recipe(
    "comm_skew",
    "How late each rank starts collectives and messages, and how long it waits in them.",
    read_call_tables,
    *("arrivals", "operations", "clocks"),
)
comm_trace = _declare_analysis_recipe(
    "comm_trace",
    "Every collective and message of every rank, matched across ranks, on a common clock.",
    read_call_tables,
    *("calls", "clocks"),
)
iteration_spread = _declare_analysis_recipe(
    "iteration_spread",
    "How much the ranks differ in each iteration, and which rank lost time in which phase.",
    read_rank_tables,
    *("iterations", "stragglers", "clocks", "steps"),
)
