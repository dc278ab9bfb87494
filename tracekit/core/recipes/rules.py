"""Declare recipes, each of which applies one rule of ``tracekit analyze`` to every rank and lists the matching rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core import analyze
from tracekit.core.analyze.rule import ALL_ROWS
from tracekit.core.recipes.recipe import ANALYSIS, MAX_INTEGER, UNNAMED_INDEX, Option, Output, Recipe, move_rank_to_end
from tracekit.core.reports.table import ColumnStyle, ReportColumn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.core.recipes.recipe import RankRequest, Tables, Value

_ROWS = Option(ALL_ROWS, "Number of rows to list for each rank; -1 lists all rows.", minimum=ALL_ROWS)
_OUTPUT = Output(ANALYSIS, (UNNAMED_INDEX,))
_GREEN_CONTEXT = "Green Context ID"


def _declare_rule_recipe(name: str) -> Recipe:
    """Return the recipe that lists all rows that match a rule in each rank. The recipe has the options of the rule."""
    rule = analyze.find_rule(name)
    options = {**{n: _convert_to_recipe_option(o) for n, o in rule.options.items()}, "rows": _ROWS}

    def find_matching_rows(request: RankRequest) -> Tables:
        settings = "".join(f":{option}={request.values[option]}" for option in options)
        rows = analyze.apply_rule(request.frames, name + settings).data
        return {ANALYSIS: rows.select(*map(_value_expr, rule.columns)).with_row_index(UNNAMED_INDEX)}

    return Recipe(name, rule.doc, (_OUTPUT,), find_matching_rows, _concat_ranks, options)


def _convert_to_recipe_option(option: analyze.Option) -> Option:
    """Convert an option of a rule to an option of a recipe."""
    maximum = MAX_INTEGER if option.maximum is None else option.maximum
    return Option(option.default, option.doc, option.minimum, maximum)


def _value_expr(column: ReportColumn) -> pl.Expr:
    """Return an expression for the values of a printed column, without conversion to the printed unit."""
    x = pl.col(column.source)
    match column.style:
        case ColumnStyle.TEXT:
            x = x.cast(pl.String)
        case ColumnStyle.TENTHS:
            x = x.cast(pl.Float64).round(1)
        case _:
            x = x.cast(pl.Int64)
    return x.alias(column.title.partition(" (")[0])


def _concat_ranks(tables: Tables, _option_values: Mapping[str, Value]) -> Tables:
    rows = move_rank_to_end(tables[ANALYSIS], UNNAMED_INDEX)
    if _GREEN_CONTEXT in rows.columns and rows[_GREEN_CONTEXT].null_count() == rows.height:
        rows = rows.with_columns(pl.lit(None).alias(_GREEN_CONTEXT))  # as in nsys if there are no green contexts
    return {ANALYSIS: rows}


cuda_api_sync = _declare_rule_recipe("cuda_api_sync")
cuda_memcpy_async = _declare_rule_recipe("cuda_memcpy_async")
cuda_memcpy_sync = _declare_rule_recipe("cuda_memcpy_sync")
cuda_memset_sync = _declare_rule_recipe("cuda_memset_sync")
gpu_gaps = _declare_rule_recipe("gpu_gaps")
gpu_time_util = _declare_rule_recipe("gpu_time_util")
