"""Compute the tables of ``nsys recipe`` for the profiles of a set, with one open profile at a time."""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, cast

from tracekit.core.recipes import Clock, Request, load_recipe
from tracekit.errors import MissingTableError, TracekitWarning, convert_to_printable_path
from tracekit.registry.analyses import RECIPE, get_analysis
from tracekit.sets.engines import MergingEngine
from tracekit.trace import call_with_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import polars as pl

    from tracekit.core.recipes import Recipe, RecipeTables
    from tracekit.core.reports import Frames
    from tracekit.registry.analyses import Value
    from tracekit.registry.interface import Progress
    from tracekit.sets.member import Member
    from tracekit.sets.member_set import MemberSet
    from tracekit.trace import Trace

FILES, FILE, RANK, CLOCKS = "files", "File", "Rank", "clocks"
_MERGED = 16
"""Number of results that are merged at once, so that aggregated rows do not take more memory with more ranks."""


def run_recipe(
    traces: MemberSet, name: str, options: Mapping[str, Value], *, progress: Progress | None = None
) -> RecipeTables:
    """Run a recipe on the profiles of a set, and return its tables.

    Args:
        traces: The set of profiles.
        name: Name of the recipe.
        options: Values of options of the recipe, by option name. Other options have their default values.
        progress: Callback that receives the number of profiles processed so far and the number of all profiles.

    Returns:
        The tables of the recipe by name, the main table first. The table ``files`` lists the file of each rank.

    Raises:
        UnknownFormatError: The recipe or an option does not exist, or the value of an option is not allowed.
        MissingTableError: The option ``align`` is ``yes``, but the start of a profile is not recorded.
    """
    return run_recipes(traces, {name: options}, progress=progress)[name]


def run_recipes(
    traces: MemberSet, options_by_recipe: Mapping[str, Mapping[str, Value]], *, progress: Progress | None = None
) -> dict[str, RecipeTables]:
    """Run several recipes in one pass over the profiles of a set, and return their tables by recipe name.

    Args:
        traces: The set of profiles.
        options_by_recipe: The options of each recipe, by recipe name.
        progress: Callback, as for ``run_recipe``.

    Raises:
        UnknownFormatError: A recipe or an option does not exist, or the value of an option is not allowed.
        MissingTableError: The option ``align`` is ``yes``, but the start of a profile is not recorded.
    """
    declared = {name: get_analysis(name, RECIPE) for name in options_by_recipe}
    values = {name: declared[name].resolve_options(options) for name, options in options_by_recipe.items()}
    recipes = {name: load_recipe(name) for name in options_by_recipe}
    times = _read_start_times_and_durations(traces) if any(recipe.aligned for recipe in recipes.values()) else {}
    axes = {
        n: _find_common_start_and_length(traces, times, values[n]) if r.aligned else (None, 0)
        for n, r in recipes.items()
    }
    functions = {name: functools.partial(_compute_rank_tables, name, values[name], *axes[name]) for name in recipes}
    if len(recipes) == 1:
        merged = {
            name: _compute_merged_tables(name, recipe, traces, functions[name], progress)
            for name, recipe in recipes.items()
        }
    else:
        merged = _compute_merged_tables_by_recipe(recipes, traces, functions, progress)
    tables_by_recipe = {
        name: _compute_final_tables(recipe, merged[name], [result.name for result in declared[name].results])
        for name, recipe in recipes.items()
    }
    clocks = next((tables[CLOCKS] for tables in tables_by_recipe.values() if CLOCKS in tables), None)
    if clocks is not None:
        from tracekit.sets.communication import warn_about_unaligned_clocks

        warn_about_unaligned_clocks(clocks)
    files = _build_file_name_table(traces)
    return {name: {**tables, FILES: files} for name, tables in tables_by_recipe.items()}


def choose_iteration_options(traces: MemberSet) -> dict[str, Value]:
    """Return the options with which the recipe ``iteration_spread`` uses the roll-up of a set."""
    arguments = traces.rollup_arguments
    if arguments.get("iterations") is not None:
        message = "the iterations of ranks are compared over the whole capture: the chosen iterations have no effect"
        warnings.warn(message, TracekitWarning, stacklevel=2)
    included = "yes" if arguments.get("include_warm_up") else "no"
    return {"key_op": arguments.get("key_op") or "", "include_warm_up": included}


def list_step_notes(tables: Mapping[str, pl.DataFrame]) -> list[str]:
    """Return sentences about the steps over which the tables of a recipe are computed.

    There is one sentence for all ranks whose steps agree, and none if the recipe does not use steps.
    """
    from tracekit.core.communication import STEPS
    from tracekit.core.steps import list_notes_by_rank, read_summaries

    return list_notes_by_rank(read_summaries(tables[STEPS])) if STEPS in tables else []


def _compute_final_tables(recipe: Recipe, merged_tables: RecipeTables, names: Sequence[str]) -> RecipeTables:
    """Compute the final tables of a recipe from the merged tables of all ranks, in declared order."""
    combined = recipe.combine(merged_tables)
    return {name: combined[name] for name in names}


def _compute_merged_tables(
    name: str, recipe: Recipe, traces: MemberSet, function: Callable[[Trace], RecipeTables], progress: Progress | None
) -> RecipeTables:
    """Compute the tables of a recipe for each rank, and return the merged tables of all ranks."""
    if recipe.reductions and isinstance(traces.engine, MergingEngine):
        return _merge_tables_in_engine(name, traces, function, progress)
    results: list[RecipeTables] = []
    for done, (member, result) in enumerate(traces.skip_unreadable(traces.outcomes(function)), 1):
        results.append(recipe.add_rank_column(result, member.rank))
        if len(results) == _MERGED:
            results = [recipe.merge_ranks(results)]
        if progress is not None:
            progress(done, len(traces))
    return recipe.merge_ranks(results)


def _compute_merged_tables_by_recipe(
    recipes: Mapping[str, Recipe],
    traces: MemberSet,
    functions: Mapping[str, Callable[[Trace], RecipeTables]],
    progress: Progress | None,
) -> dict[str, RecipeTables]:
    """Return the merged tables of all ranks by recipe name. Each profile is opened once for all recipes."""
    results: dict[str, list[RecipeTables]] = {name: [] for name in recipes}
    outcomes = traces.outcomes(functools.partial(_compute_tables_of_rank, functions))
    for done, (member, tables) in enumerate(traces.skip_unreadable(outcomes), 1):
        for name, recipe in recipes.items():
            results[name].append(recipe.add_rank_column(tables[name], member.rank))
            if len(results[name]) == _MERGED:
                results[name] = [recipe.merge_ranks(results[name])]
        if progress is not None:
            progress(done, len(traces))
    return {name: recipe.merge_ranks(results[name]) for name, recipe in recipes.items()}


def _compute_tables_of_rank(
    functions: Mapping[str, Callable[[Trace], RecipeTables]], trace: Trace
) -> dict[str, RecipeTables]:
    """Compute the tables of several recipes for one rank, by recipe name."""
    return {name: function(trace) for name, function in functions.items()}


def _merge_tables_in_engine(
    recipe_name: str, traces: MemberSet, function: Callable[[Trace], RecipeTables], progress: Progress | None
) -> RecipeTables:
    """Return the merged tables of a recipe for all ranks, which the engine computes and merges.

    Raises:
        TracekitError: No profile can be read.
    """
    tables: RecipeTables | None = None

    def report_progress(done: int) -> None:
        if progress is not None:
            progress(done, len(traces))

    def compute_outcomes() -> Iterator[tuple[Member, RecipeTables | Exception]]:
        nonlocal tables
        engine = cast("MergingEngine", traces.engine)
        ranked = functools.partial(_compute_tables_with_rank, recipe_name, traces.function_of_member(function))
        merge = functools.partial(_merge_tables, recipe_name)
        tables, errors = engine.map_and_merge(ranked, merge, traces.captures, report_progress)
        failed = {member.rank: error for member, error in errors}
        for member in traces.captures:
            yield member, failed.get(member.rank, {})

    for _ in traces.skip_unreadable(compute_outcomes()):
        pass
    return cast("RecipeTables", tables)


def _compute_tables_with_rank(
    recipe_name: str, function: Callable[[Member], RecipeTables], member: Member
) -> RecipeTables:
    """Return the tables of a recipe for one member, with additional columns for its rank."""
    return load_recipe(recipe_name).add_rank_column(function(member), member.rank)


def _merge_tables(recipe_name: str, results: list[RecipeTables]) -> RecipeTables:
    """Merge the tables of a recipe for several ranks."""
    return load_recipe(recipe_name).merge_ranks(results)


def _compute_rank_tables(
    recipe_name: str, option_values: Mapping[str, Value], origin_ns: int | None, end_ns: int, trace: Trace
) -> RecipeTables:
    """Compute the tables of a recipe for one rank.

    Args:
        recipe_name: Name of the recipe.
        option_values: Values of all options of the recipe.
        origin_ns: UTC time at which the common time axis begins. None if the ranks are not aligned.
        end_ns: End of the last profile on the common time axis.
        trace: The trace of the rank.
    """
    recipe = load_recipe(recipe_name)
    start, duration = _read_start_and_duration(trace) if recipe.aligned else (None, 0)
    offset = 0 if origin_ns is None or start is None else start - origin_ns
    clock = Clock(offset, duration, end_ns)

    def compute_tables(frames: Frames) -> RecipeTables:
        return recipe.per_rank(Request(frames, option_values, clock=clock))

    return call_with_tables(trace, compute_tables, key=(recipe_name, *sorted(option_values.items())))


def _find_common_start_and_length(
    traces: MemberSet, times: Mapping[Member, tuple[int | None, int]], option_values: Mapping[str, Value]
) -> tuple[int | None, int]:
    """Return the UTC start and the length of the time axis that all ranks share, in ns.

    The start is None if the ranks are not aligned. The times of each rank then begin at 0.
    """
    durations = [duration for _, duration in times.values()]
    if option_values["align"] != "yes" or len(traces) == 1 or not times:
        return None, max(durations, default=0)
    starts = [_require_recorded_start(member, start) for member, (start, _) in times.items()]
    origin = min(starts)
    return origin, max(start - origin + duration for start, duration in zip(starts, durations, strict=True))


def _read_start_times_and_durations(traces: MemberSet) -> dict[Member, tuple[int | None, int]]:
    """Return the UTC start and the duration of each profile in ns. The start is None if it is not recorded.

    Profiles are opened only if the recorded metadata lacks the duration of a profile. Profiles that the engine skips,
    because they cannot be read, are omitted.
    """
    known = {m: (m.origin_utc_ns, m.duration_ns) for m in traces.captures if m.duration_ns is not None}
    if len(known) == len(traces):
        return known
    return traces.results_by_member(traces.outcomes(_read_start_and_duration))


def _read_start_and_duration(trace: Trace) -> tuple[int | None, int]:
    """Return the UTC time of the trace origin and the duration of the capture, both in ns.

    The UTC time is None if it is not recorded. If the duration is not recorded, it is the end of the last event.
    """
    info = trace.info
    origin, duration = (int(info[k]) if info.get(k, "").isdecimal() else None for k in ("origin_utc_ns", "duration_ns"))
    return origin, (trace.span() or (0, 0))[1] if duration is None else duration


def _require_recorded_start(member: Member, start: int | None) -> int:
    """Return the UTC start of a profile unchanged, or raise an error if it is not recorded.

    Raises:
        MissingTableError: The start is None.
    """
    if start is None:
        raise MissingTableError(
            "the UTC time of the trace origin is not recorded, so this rank cannot be aligned with the other ranks",
            path=member.path,
            hint="pass align='no', or --no-align on the command line",
        )
    return start


def _build_file_name_table(traces: MemberSet) -> pl.DataFrame:
    """Return a table with the file name of each rank, without suffix.

    The table has a column ``Rank``, unless the ranks are 0, 1, 2 and so on.
    """
    import polars as pl

    files = pl.DataFrame(
        {FILE: [convert_to_printable_path(m.path.stem) for m in traces.captures]}, schema={FILE: pl.String}
    )
    if traces.ranks == list(range(len(traces))):
        return files
    return files.with_columns(pl.Series(RANK, traces.ranks, dtype=pl.Int64))
