"""Compute recipes over many ranks: the recipes of ``nsys recipe``, with the same tables, columns and numbers.

A recipe computes small tables for each rank, and combines the tables of all ranks. Quartiles and standard deviations
over all ranks are exact, whereas nsys approximates them.

To add a recipe, write a function decorated with ``@recipe`` in the module of its subject, and add its name to
``RECIPES``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from tracekit.core.recipes.recipe import UNNAMED_INDEX, Clock, Option, Output, RankRequest, Recipe, Tables, Value
from tracekit.errors import UnknownFormatError, create_choices_hint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.core.reports.report import Frames

__all__ = [
    "RECIPES",
    "UNNAMED_INDEX",
    "Clock",
    "Option",
    "Output",
    "RankRequest",
    "Recipe",
    "Tables",
    "Value",
    "find_recipe",
    "resolve_option_values",
]

RECIPES = {
    "comm_skew": "communication",
    "comm_sum": "communication",
    "comm_trace": "communication",
    "cuda_api_sum": "sums",
    "cuda_api_sync": "rules",
    "cuda_gpu_kern_hist": "traces",
    "cuda_gpu_kern_pace": "pace",
    "cuda_gpu_kern_sum": "sums",
    "cuda_gpu_mem_size_sum": "sums",
    "cuda_gpu_mem_time_sum": "sums",
    "cuda_gpu_time_util_map": "maps",
    "cuda_memcpy_async": "rules",
    "cuda_memcpy_sync": "rules",
    "cuda_memset_sync": "rules",
    "gpu_gaps": "rules",
    "gpu_metric_util_map": "metrics",
    "gpu_metric_util_sum": "metrics",
    "gpu_time_breakdown": "breakdown",
    "gpu_time_sum": "gpu_time",
    "gpu_time_util": "rules",
    "iteration_spread": "communication",
    "mpi_gpu_time_util_map": "maps",
    "mpi_sum": "sums",
    "nccl_gpu_overlap_trace": "traces",
    "nccl_gpu_proj_sum": "sums",
    "nccl_gpu_time_util_map": "maps",
    "nccl_sum": "sums",
    "network_sum": "metrics",
    "nvlink_sum": "metrics",
    "nvtx_gpu_proj_pace": "pace",
    "nvtx_gpu_proj_sum": "sums",
    "nvtx_gpu_proj_trace": "traces",
    "nvtx_pace": "pace",
    "nvtx_sum": "sums",
    "osrt_sum": "sums",
    "ucx_gpu_time_util_map": "maps",
}
"""The recipes: a mapping from the name of each recipe to the module that declares it."""


def find_recipe(name: str) -> Recipe:
    """Return the recipe with the given name.

    Raises:
        UnknownFormatError: No recipe has this name.
    """
    if name not in RECIPES:
        raise UnknownFormatError(f"unknown recipe {name!r}", hint=create_choices_hint("recipes", RECIPES, name))
    return cast("Recipe", getattr(import_module(f"{__name__}.{RECIPES[name]}"), name))


def compute_default_rank_tables(frames: Frames, name: str) -> Tables:
    """Compute the tables of a recipe for one rank, with the default values of its options.

    An option without a default is an empty string.

    Args:
        frames: Function that returns the declared table with a given name.
        name: Name of the recipe.
    """
    declared = find_recipe(name)
    required = {option: "" for option, declaration in declared.options.items() if declaration.default is None}
    return declared.per_rank(RankRequest(frames, resolve_option_values(declared, required)))


def resolve_option_values(recipe: Recipe, settings: Mapping[str, Value]) -> dict[str, Value]:
    """Check the settings of a recipe, and return the values of all its options.

    The value of an option that is not set is its default.

    Raises:
        UnknownFormatError: An option is unknown, a value is not allowed, or a required option is missing. Despite its
            name, this error also reports invalid options.
    """
    for name, value in settings.items():
        if name not in recipe.options:
            hint = (
                create_choices_hint("options", recipe.options, name) if recipe.options else "the recipe has no options"
            )
            raise UnknownFormatError(f"recipe {recipe.name!r} has no option {name!r}", hint=hint)
        recipe.options[name].check_value(recipe.name, name, value)
    values = {name: settings.get(name, option.default) for name, option in recipe.options.items()}
    for name, value in values.items():
        if value is None:
            option = recipe.options[name]
            raise UnknownFormatError(f"recipe {recipe.name!r} requires the option {name!r}", hint=option.doc)
    return values
