"""Compute recipes over many ranks: the recipes of ``nsys recipe``, with the same tables, columns and numbers.

A recipe computes small tables for each rank, and combines the tables of all ranks. Quartiles and standard deviations
over all ranks are exact, whereas nsys approximates them.

To add a recipe, declare it in ``schemas/analyses/recipes.toml``, and write a function decorated with ``@recipe`` in the
module of its subject.
"""

from __future__ import annotations

from tracekit.core.recipes.recipe import UNNAMED_INDEX, Recipe, RecipeTables
from tracekit.core.reports.report import Clock, Request
from tracekit.registry.analyses import RECIPE, get_analysis

__all__ = ["UNNAMED_INDEX", "Clock", "Recipe", "RecipeTables", "Request", "load_recipe"]


def load_recipe(name: str) -> Recipe:
    """Return the functions of the recipe with the given name. A plug-in may have only a function for one rank.

    Raises:
        UnknownFormatError: No recipe has this name.
    """
    recipe = get_analysis(name, RECIPE).load_compute_function()
    return recipe if isinstance(recipe, Recipe) else Recipe(recipe, lambda tables: tables)
