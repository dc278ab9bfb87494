"""Compute recipes, each of which applies one rule of ``tracekit analyze`` to every rank and lists the matching rows."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.recipes.recipe import ANALYSIS, UNNAMED_INDEX, Recipe, RecipeTables, move_rank_to_end
from tracekit.core.reports import compute_rows
from tracekit.registry.analyses import RULE, get_analysis

if TYPE_CHECKING:
    from tracekit.core.reports.report import Request
    from tracekit.registry.analyses import ResultColumn

_GREEN_CONTEXT = "Green Context ID"


def _find_matching_rows(rule_name: str, request: Request) -> RecipeTables:
    """Return all rows of one rank that match a rule. The recipe has the options of the rule."""
    rule = get_analysis(rule_name, RULE)
    rows = compute_rows(rule, request)
    return {ANALYSIS: rows.select(*map(_value_expr, rule.columns)).with_row_index(UNNAMED_INDEX)}


def _value_expr(column: ResultColumn) -> pl.Expr:
    """Return an expression for the values of a printed column, without conversion to the printed unit."""
    x = pl.col(column.row_name)
    if column.type == "string":
        x = x.cast(pl.String)
    elif column.unit == "%":
        x = x.cast(pl.Float64).round(1)
    else:
        x = x.cast(pl.Int64)
    return x.alias(column.name.partition(" (")[0])


def _concat_ranks(tables: RecipeTables) -> RecipeTables:
    rows = move_rank_to_end(tables[ANALYSIS], UNNAMED_INDEX)
    if _GREEN_CONTEXT in rows.columns and rows[_GREEN_CONTEXT].null_count() == rows.height:
        rows = rows.with_columns(pl.lit(None).alias(_GREEN_CONTEXT))  # as in nsys if there are no green contexts
    return {ANALYSIS: rows}


def _create_recipe(rule_name: str) -> Recipe:
    return Recipe(functools.partial(_find_matching_rows, rule_name), _concat_ranks)


cuda_api_sync = _create_recipe("cuda_api_sync")
cuda_memcpy_async = _create_recipe("cuda_memcpy_async")
cuda_memcpy_sync = _create_recipe("cuda_memcpy_sync")
cuda_memset_sync = _create_recipe("cuda_memset_sync")
gpu_gaps = _create_recipe("gpu_gaps")
gpu_time_util = _create_recipe("gpu_time_util")
