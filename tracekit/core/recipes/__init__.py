"""Compute recipes over many ranks: the recipes of ``nsys recipe``, with the same tables, columns and numbers.

A recipe computes small tables for each rank, and combines the tables of all ranks. Quartiles and standard deviations
over all ranks are exact, whereas nsys approximates them.

To add a recipe, declare it in ``schemas/analyses/recipes.toml``, and write a function decorated with ``@recipe`` in the
module of its subject.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.core.recipes.recipe import UNNAMED_INDEX, Recipe, Tables
from tracekit.core.reports.report import Clock, Request
from tracekit.errors import UnknownFormatError, create_choices_hint
from tracekit.registry import analyses

if TYPE_CHECKING:
    from tracekit.registry.analyses import Analysis

__all__ = ["UNNAMED_INDEX", "Clock", "Recipe", "Request", "Tables", "find_recipe", "load_recipe"]


def find_recipe(name: str) -> Analysis:
    """Return the declaration of the recipe with the given name.

    Raises:
        UnknownFormatError: No recipe has this name.
    """
    declared = analyses.find_analysis(analyses.RECIPE, name)
    if declared is None:
        hint = create_choices_hint("recipes", analyses.list_names(analyses.RECIPE), name)
        raise UnknownFormatError(f"unknown recipe {name!r}", hint=hint)
    return declared


def load_recipe(name: str) -> Recipe:
    """Return the functions of the recipe with the given name.

    Raises:
        UnknownFormatError: No recipe has this name.
    """
    recipe = find_recipe(name).load_compute_function()
    return recipe if isinstance(recipe, Recipe) else Recipe(recipe, lambda tables: tables)
