"""Compute the recipes on communication between ranks. nsys does not have these recipes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.communication import Communication, read_call_tables, read_rank_tables
from tracekit.core.recipes.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.core.recipes.recipe import RecipeTables
    from tracekit.core.reports.report import Request

_DECIMALS = {"algorithm_gb_per_s": 3, "bus_gb_per_s": 3, "drift_ppm": 3}


def _create_recipe(read_tables: Callable[[Request], RecipeTables], *outputs: str) -> Recipe:
    """Return a recipe that returns tables of the communication analysis.

    Args:
        read_tables: Function that returns the tables of one rank that the analysis needs.
        outputs: Names of the returned tables, which are attributes of ``Communication``.
    """

    def combine_rank_tables(tables: RecipeTables) -> RecipeTables:
        analysis = Communication(tables)
        return {output: _round_float_columns(getattr(analysis, output)) for output in outputs}

    return Recipe(read_tables, combine_rank_tables)


def _round_float_columns(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(pl.col(c).round(_DECIMALS.get(c, 1)) for c, t in rows.schema.items() if t == pl.Float64)


def _read_calls(request: Request) -> RecipeTables:
    return read_call_tables(request.frames)


def _read_calls_and_iterations(request: Request) -> RecipeTables:
    key_op, included = (request.get_text(option) for option in ("key_op", "include_warm_up"))
    return read_rank_tables(request.frames, key_op=key_op or None, include_warm_up=included == "yes")


comm_sum = _create_recipe(_read_calls, "summary", "operations", "clocks")
comm_skew = _create_recipe(_read_calls, "arrivals", "operations", "clocks")
comm_trace = _create_recipe(_read_calls, "calls", "clocks")
iteration_spread = _create_recipe(_read_calls_and_iterations, "iterations", "stragglers", "clocks", "steps")
