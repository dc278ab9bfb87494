"""Compute the recipes on communication between ranks. nsys does not have these recipes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.communication import (
    Communication,
    find_pending_operations,
    read_call_tables,
    read_logged_states,
    read_rank_tables,
)
from tracekit.core.communication.logged import read_logged_durations, summarize_logged_durations
from tracekit.core.recipes.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.core.recipes.recipe import RecipeTables
    from tracekit.core.reports.report import Request

_DECIMALS = dict.fromkeys(("algorithm_gb_per_s", "bus_gb_per_s", "recorded_bus_gb_per_s", "drift_ppm"), 3)


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


def _read_states(request: Request) -> RecipeTables:
    return {_LOGGED: read_logged_states(request.frames)}


def _find_pending(tables: RecipeTables) -> RecipeTables:
    return {"pending": find_pending_operations(tables[_LOGGED])}


def _read_durations(request: Request) -> RecipeTables:
    return {_LOGGED: read_logged_durations(request.frames)}


def _summarize_durations(tables: RecipeTables) -> RecipeTables:
    return {"logged": _round_float_columns(summarize_logged_durations(tables[_LOGGED]))}


_LOGGED = "calls"
comm_pending = Recipe(_read_states, _find_pending)
comm_log_sum = Recipe(_read_durations, _summarize_durations)
