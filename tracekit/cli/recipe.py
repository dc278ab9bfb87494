"""The command ``tracekit recipe``, which aggregates the profiles of several ranks."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracekit.cli.answers import print_envelope, read_scope
from tracekit.cli.options import (
    ANSWER,
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
from tracekit.cli.reports import ROWS_OF_ONE, list_option
from tracekit.errors import create_choices_hint
from tracekit.registry import analyses
from tracekit.registry.analyses import ResultColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    import polars as pl

    from tracekit.cli.options import CapturePath
    from tracekit.registry.analyses import Analysis, Option
    from tracekit.sets import TraceSet

FOLDER_STYLES = ("parquet", "csv", "html")
PRINTED_STYLES = ("table", "csv", "json", "jsonl", ANSWER)


def _describe_recipes() -> Iterator[tuple[str, str, str]]:
    """Yield the name, description and options of each recipe."""
    for name, recipe in analyses.list_analyses(analyses.RECIPE).items():
        yield name, recipe.doc, ", ".join(_get_flag(option) or _dashed(option.name) for option in recipe.options)


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _get_flag(option: Option) -> str | None:
    """Return the name of the flag that sets an option to the other one of the values yes and no, or None."""
    if option.choices != ("yes", "no"):
        return None
    return _dashed(option.name) if option.default == "no" else f"no-{_dashed(option.name)}"


def _create_click_option(option: Option) -> Callable[[Callable[..., None]], Callable[..., None]]:
    flag = _get_flag(option)
    if flag is not None:
        value = "no" if option.default == "yes" else "yes"
        doc = f"Set {_dashed(option.name)} to {value}: {option.doc[0].lower()}{option.doc[1:]}"
        return click.option(f"--{flag}", option.name, flag_value=value, help=doc)
    is_integer = option.type == "integer"
    return click.option(
        f"--{_dashed(option.name)}",
        option.name,
        type=int if is_integer else click.Choice(option.choices) if option.choices else str,
        metavar="N" if is_integer else None if option.choices else _dashed(option.name).upper(),
        help=option.doc if option.default in (None, "") else f"{option.doc} [default: {option.default}]",
    )


def _add_recipe_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of built-in recipes to a command. It receives the values that the user sets as ``options``."""
    recipes = analyses.list_built_in_analyses(analyses.RECIPE).values()
    declared = {option.name: option for recipe in recipes for option in recipe.options}

    @functools.wraps(command)
    def run_with_recipe_options(**arguments: Any) -> None:
        values = {name: arguments.pop(name) for name in declared}
        command(options={name: value for name, value in values.items() if value is not None}, **arguments)

    decorated: Callable[..., None] = run_with_recipe_options
    for option in reversed(declared.values()):
        decorated = _create_click_option(option)(decorated)
    return decorated


@click.command("recipe")
@inputs_argument
@click.option(
    "-r",
    "--recipe",
    "recipe",
    metavar="NAME",
    shell_complete=create_name_completer(lambda: analyses.list_names(analyses.RECIPE)),
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
    help="Format of the printed table (table, csv, json, jsonl; answer is JSON with the captures and a status) or of "
    "the folder (parquet, csv, or html with figures).",
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

    Options can also follow the name of the recipe, as in gpu_gaps:gap=100:rows=10.
    """
    from tracekit.sets import recipe_files, recipes
    from tracekit.sets.notices import list_notices_of_ranks

    recipe, paths = _split_name_and_inputs(recipe, paths)
    declared, values = analyses.parse_name(recipe, options, [analyses.RECIPE])
    recipe = declared.name
    declared.resolve_options(values)
    main = declared.results[0].name
    _check_table_and_style(style, out, table or main, [*(result.name for result in declared.results), recipes.FILES])
    check_time_unit(timeunit, style or ("table" if out is None else "parquet"))
    loaded = load_set(paths, from_)
    traces = select(loaded)
    with show_progress_bar("computing", quiet=quiet) as progress:
        tables = recipes.run_recipe(traces, recipe, values, progress=progress)
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
    if printing.style == ANSWER:
        from tracekit.answers.build import Asked, wrap_recipe

        asked = Asked("recipe", (recipe,), loaded, read_scope(), limit or None)
        print_envelope(wrap_recipe(asked, recipe, tables, [table or main]), printing, traces)
    else:
        _print_table(declared, table or main, tables[table or main], printing, limit)


def _explain_missing_rows(traces: TraceSet, recipe: str) -> list[str]:
    from tracekit.sets.notices import explain_missing_rows

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
    if (isinstance(first, str) or first.exists()) and str(first).partition(":")[0] not in analyses.list_names(
        analyses.RECIPE
    ):
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


def _print_table(recipe: Analysis, name: str, table: pl.DataFrame, printing: Printing, limit: int | None) -> None:
    """Print a table. On a terminal, each row takes one line, and by default only the first rows are printed."""
    from tracekit.sets import recipe_files

    columns = next((result.columns for result in recipe.results if result.name == name), ())
    index = recipe_files.choose_index_columns(recipe.name, name, table)
    rows = recipe_files.convert_to_printable_rows(table, index)
    count = (ROWS_OF_ONE if printing.is_terminal_table else 0) if limit is None else limit
    listed = rows.head(count) if count else rows
    with printing.open_output_page(limit=limit) as page:
        times = printing.get_times([c.name for c in columns if c.unit == "ns"], is_terminal=page.width is not None)
        if printing.style != "table" or page.width is None:
            page.print_frame(listed, printing.style, spreadsheet=printing.spreadsheet, times=times)
        else:
            key_columns = [*index, *(c.name for c in columns if isinstance(c, ResultColumn) and c.is_key)]
            page.print_rows(listed, key_columns=key_columns, times=times)
        if printing.is_terminal_table and listed.height < rows.height:
            page.print_line()
            page.print_line(f"(first {count:,} of {rows.height:,} rows; -n 0 prints all)")
