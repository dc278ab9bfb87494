"""The command ``tracekit recipe``, which aggregates the profiles of several ranks."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracekit.cli.options import (
    PAGE_SUFFIXES,
    Printing,
    check_time_unit,
    create_name_completer,
    force_option,
    has_table_suffix,
    input_options,
    inputs_argument,
    jobs_option,
    limit_option,
    load_set,
    quiet_option,
    rank_option,
    selection_options,
    timeunit_option,
)
from tracekit.cli.output import print_message, show_progress_bar
from tracekit.cli.reports import ROWS_OF_ONE, explain_missing_rows, list_option
from tracekit.errors import create_choices_hint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any

    import polars as pl

    from tracekit.cli.options import CapturePath
    from tracekit.core.recipes.recipe import Recipe
    from tracekit.sets import TraceSet

FOLDER_STYLES = ("parquet", "csv", "html")
PRINTED_STYLES = ("table", "csv", "json", "jsonl")


def list_recipe_names() -> Iterable[str]:
    """Return the names of all recipes."""
    from tracekit.core.recipes import RECIPES

    return RECIPES


def _describe_recipes() -> Iterator[tuple[str, str, str]]:
    """Yield the name, description and options of each recipe."""
    from tracekit.core import recipes

    for recipe in map(recipes.find_recipe, recipes.RECIPES):
        options = (name.replace("_", "-") for name in recipe.options)
        yield recipe.name, recipe.doc, ", ".join("no-align" if o == "align" else o for o in options)


_OPTIONS = (
    click.option("--name", metavar="NAME", help="Kernel or NVTX range whose occurrences are shown over time."),
    click.option("--bins", metavar="N", type=int, help="Number of time bins. [default: 30]"),
    click.option("--rows", metavar="N", type=int, help="Number of rows that a rule lists per rank. [default: all]"),
    click.option("--gap", metavar="MS", type=int, help="Minimum duration of gaps in ms. [default: 500]"),
    click.option(
        "--threshold", metavar="PERCENT", type=int, help="Utilization below which a period is reported. [default: 50]"
    ),
    click.option(
        "--chunks", metavar="N", type=int, help="Number of periods into which a profile is divided. [default: 30]"
    ),
    click.option(
        "--kernel-name", type=click.Choice(["short", "full", "mangled"]), help="Form of kernel names. [default: short]"
    ),
    click.option("--metrics", type=click.Choice(["util", "all"]), help="GPU metrics to summarize. [default: util]"),
    click.option("--no-align", "align", flag_value="no", help="Measure the times of each rank from its own start."),
    click.option(
        "--delay",
        metavar="US",
        type=int,
        help="Attribute idle times of a stream that are shorter than this, in µs, to the delay between kernels. "
        "[default: 30]",
    ),
    click.option(
        "--steps",
        type=click.Choice(["all", "recorded", "complete"]),
        help="Steps of the PyTorch profiler to include. [default: all]",
    ),
    click.option(
        "--key-op",
        metavar="OP",
        help="Id or name of the op that delimits iterations, or the name of a range. By default, it is chosen "
        "automatically.",
    ),
    click.option(
        "--include-warm-up",
        "include_warm_up",
        flag_value="yes",
        help="Compare the first iterations even if they are much slower than the others. By default, they are left "
        "out.",
    ),
)


def _add_recipe_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of all recipes to a command. It receives the values that the user sets as ``options``."""

    @functools.wraps(command)
    def run_with_recipe_options(
        *,
        name: str | None,
        bins: int | None,
        rows: int | None,
        gap: int | None,
        threshold: int | None,
        chunks: int | None,
        kernel_name: str | None,
        metrics: str | None,
        align: str | None,
        delay: int | None,
        steps: str | None,
        key_op: str | None,
        include_warm_up: str | None,
        **others: Any,
    ) -> None:
        values = {
            "name": name,
            "bins": bins,
            "rows": rows,
            "gap": gap,
            "threshold": threshold,
            "chunks": chunks,
            "kernel_name": kernel_name,
            "metrics": metrics,
            "align": align,
            "delay": delay,
            "steps": steps,
            "key_op": key_op,
            "include_warm_up": include_warm_up,
        }
        command(options={option: value for option, value in values.items() if value is not None}, **others)

    return functools.reduce(lambda decorated, option: option(decorated), reversed(_OPTIONS), run_with_recipe_options)


@click.command("recipe")
@inputs_argument
@click.option(
    "-r",
    "--recipe",
    "recipe",
    metavar="NAME",
    shell_complete=create_name_completer(list_recipe_names),
    help="Recipe to compute. Without this option, the first argument is the name: tracekit recipe NAME IN...",
)
@list_option(
    ("recipe", "shows", "options"),
    _describe_recipes,
    "List all recipes with a description and their options, and exit.",
)
@_add_recipe_options
@rank_option
@jobs_option
@input_options
@click.option("--table", metavar="TABLE", help="Table to print. The default is the main table of the recipe.")
@limit_option(f"Number of rows to print; 0 prints all. The default is {ROWS_OF_ONE} on a terminal, and all otherwise.")
@selection_options
@click.option(
    "--format",
    "style",
    type=click.Choice([*PRINTED_STYLES, "parquet", "html"]),
    help="Format of the printed table (table, csv, json, jsonl) or of the folder (parquet, csv, or html with figures).",
)
@timeunit_option
@click.option("--spreadsheet", is_flag=True, help="In CSV, put an apostrophe before text that looks like a formula.")
@click.option(
    "-o", "--output", "out", type=click.Path(path_type=Path), help="Folder for all tables, one file per table."
)
@force_option
@quiet_option
def recipe_command(
    *,
    recipe: str | None,
    paths: tuple[CapturePath, ...],
    options: Mapping[str, int | str],
    from_: str | None,
    table: str | None,
    limit: int | None,
    select: Callable[[TraceSet], TraceSet],
    style: str | None,
    spreadsheet: bool,
    timeunit: str | None,
    out: Path | None,
    force: bool,
    quiet: bool,
) -> None:
    """Aggregate the profiles of several ranks, with the same tables as in nsys recipe.

    --list shows all recipes. Each IN is a profile, a folder of profiles or a file name pattern. The columns, their
    order and the numbers of each rank are those of nsys. Statistics over all ranks are exact, while nsys approximates
    quartiles and standard deviations.

    Without -o, the main table is printed. With -o, each table is written to a file in a folder, with the file names of
    nsys.
    """
    from tracekit.core.recipes import find_recipe, resolve_option_values
    from tracekit.sets import recipe_files, recipes
    from tracekit.sets.notices import list_notices_of_ranks

    recipe, paths = _split_name_and_inputs(recipe, paths)
    declared = find_recipe(recipe)
    resolve_option_values(declared, options)
    main = declared.outputs[0].name
    _check_table_and_style(style, out, table or main, [*(o.name for o in declared.outputs), recipes.FILES])
    check_time_unit(timeunit, style or ("table" if out is None else "parquet"))
    traces = select(load_set(paths, from_))
    with show_progress_bar("computing", quiet=quiet) as progress:
        tables = recipes.run_recipe(traces, recipe, options, progress=progress)
    missing = _explain_missing_rows(traces, recipe) if tables[main].is_empty() else []
    for message in missing or recipes.list_step_notes(tables):
        print_message(message, quiet=quiet)
    if out is not None:
        recipe_files.write_recipe_folder(
            tables,
            recipe,
            out,
            style or "parquet",
            overwrite=force,
            inputs=traces.inputs,
            spreadsheet=spreadsheet,
            notices=[*list_notices_of_ranks(traces), *missing] if style == "html" else (),
        )
        return
    printing = Printing(style or "table", None, force=False, spreadsheet=spreadsheet, timeunit=timeunit)
    _print_table(declared, table or main, tables[table or main], printing, limit)


def _explain_missing_rows(traces: TraceSet, recipe: str) -> list[str]:
    reason = "; ".join(absence.sentence for absence in explain_missing_rows(traces, recipe))
    return [f"{recipe}: no rows, because {reason}"]


def _split_name_and_inputs(name: str | None, arguments: tuple[CapturePath, ...]) -> tuple[str, tuple[CapturePath, ...]]:
    """Return the name of the recipe and the paths of the inputs. Without ``-r``, the first argument is the name.

    Raises:
        click.UsageError: There is no name or no input.
    """
    if name is not None:
        return name, arguments
    first, *paths = arguments
    if (isinstance(first, str) or first.exists()) and str(first) not in list_recipe_names():
        raise click.UsageError("the name of the recipe is missing: choose one with -r NAME. --list shows all recipes.")
    if not paths:
        raise click.UsageError("Missing argument 'IN...'.")
    return str(first), tuple(paths)


def _check_table_and_style(style: str | None, out: Path | None, table: str, table_names: Sequence[str]) -> None:
    """Check that a recipe has the requested table, and that tables can be printed or written in the requested format.

    Args:
        style: The requested format. None selects the default.
        out: The folder to write. None if a table is printed.
        table: Name of the table to print.
        table_names: Names of the tables of the recipe.

    Raises:
        click.UsageError: The recipe does not have the table, tables cannot be printed or written in the format, or the
            name of the folder has the suffix of a file.
    """
    if out is None and style not in (None, *PRINTED_STYLES):
        raise click.UsageError(f"tables in the format {style} cannot be printed: name an output folder with -o")
    if out is not None and style not in (None, *FOLDER_STYLES):
        raise click.UsageError(f"tables cannot be written to a folder as {style}: choose {' or '.join(FOLDER_STYLES)}")
    if out is not None and (out.suffix.lower() in PAGE_SUFFIXES or has_table_suffix(out)):
        raise click.UsageError(
            f"recipes write several tables to a folder, but the name {str(out)!r} has the suffix of a file: use a name "
            "without this suffix"
        )
    if table not in table_names:
        raise click.UsageError(
            f"the recipe has no table {table!r}; {create_choices_hint('tables of the recipe', table_names, table)}"
        )


def _print_table(recipe: Recipe, name: str, table: pl.DataFrame, printing: Printing, limit: int | None) -> None:
    """Print a table. On a terminal, each row takes one line, and by default only the first rows are printed."""
    from tracekit.core.recipes.recipe import Output
    from tracekit.sets import recipe_files, recipes

    output = next((o for o in recipe.outputs if o.name == name), Output(recipes.FILES))
    index = recipe_files.choose_index_columns(recipe.name, name, table)
    rows = recipe_files.convert_to_printable_rows(table, index)
    count = (ROWS_OF_ONE if printing.is_terminal_table else 0) if limit is None else limit
    listed = rows.head(count) if count else rows
    with printing.open_output_page(limit=limit) as page:
        times = printing.get_times(output.time_columns, is_terminal=page.width is not None)
        if printing.style != "table" or page.width is None:
            page.print_frame(listed, printing.style, spreadsheet=printing.spreadsheet, times=times)
        else:
            page.print_rows(listed, key_columns=(*output.index, *output.key_columns), times=times)
        if printing.is_terminal_table and listed.height < rows.height:
            page.print_line()
            page.print_line(f"(first {count:,} of {rows.height:,} rows; -n 0 prints all)")
