"""The command ``tracekit diff``, which compares two captures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracekit.cli.answers import print_envelope, read_scope
from tracekit.cli.conditions import (
    ComparedFiles,
    condition_options,
    list_comparison_kinds,
    report_conditions,
    summary_options,
)
from tracekit.cli.options import (
    ANSWER,
    CAPTURE,
    answer_printing_options,
    create_name_completer,
    get_layers,
    get_local_name,
    is_strict,
    layers_option,
    limit_option,
    memory_option,
    parse_names,
    quiet_option,
    strict_option,
)
from tracekit.cli.output import print_message
from tracekit.cli.reports import compute_max_rows_per_report, format_limit_help
from tracekit.errors import format_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import polars as pl

    from tracekit.cli.options import CapturePath, Printing
    from tracekit.cli.output import CommandOutput
    from tracekit.core.compare import Diff
    from tracekit.system.files import Input

_TITLES = {
    "name": "Name",
    "status": "Status",
    "significant": "Significant",
    "change_percent": "Change (%)",
    "change_ns": "Change (ns)",
    "time_a_ns": "Time A (ns)",
    "time_b_ns": "Time B (ns)",
    "count_a": "Count A",
    "count_b": "Count B",
    "share_percent": "Share (%)",
    "p_value": "p",
}
_KEY_COLUMNS = ("name", "status", "significant", "change_percent", "change_ns")
"""Columns that are the point of the comparison. On a terminal, they are omitted last."""
_MARKS = {"significant": "yes", "small": "small", "spread": "no", "untested": "?"}
_DECIMALS = {"change_percent": 2, "share_percent": 2, "p_value": 4, "time_a_ns": 0, "time_b_ns": 0, "change_ns": 0}


@click.command("diff")
@click.argument("a", metavar="A", type=CAPTURE)
@click.argument("b", metavar="[B]", required=False, type=CAPTURE)
@click.option(
    "--by",
    "kinds",
    type=parse_names,
    metavar="KIND[,KIND]",
    shell_complete=create_name_completer(list_comparison_kinds),
    help="Kinds of rows to compare: kernels, ops, groups, nvtx_gpu, nvtx, api, copies, idle, iterations, op_kernels, "
    "categories. The default is all except the last two or, for GPUs of different makers, all except kernels and api.",
)
@summary_options("Compare", "A and B")
@click.option(
    "--alpha",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Probability that any change is shown as significant although A and B do not differ. The default is 0.01.",
)
@click.option(
    "--min-change",
    "min_percent",
    metavar="PERCENT",
    type=click.FloatRange(0),
    help="Smallest increase of a time in percent that is significant. The default depends on the kind of rows.",
)
@condition_options
@click.option(
    "--save", "baseline", metavar="FILE", type=click.Path(path_type=Path), help="Save A as a baseline in a JSON file."
)
@click.option(
    "--to",
    type=click.Choice(["html"]),
    help="Write an HTML page that shows A and B side by side to the -o file.",
)
@limit_option(format_limit_help("kind"))
@answer_printing_options
@quiet_option
@layers_option
@strict_option
@memory_option
@click.pass_context
def diff_command(
    context: click.Context,
    *,
    a: CapturePath,
    b: CapturePath | None,
    kinds: list[str] | None,
    key_op: str | None,
    iterations: tuple[int | None, int | None] | None,
    include_warm_up: bool,
    exact_names: bool,
    alpha: float | None,
    min_percent: float | None,
    conditions: Sequence[str],
    allow_untestable: bool,
    baseline: Path | None,
    to: str | None,
    limit: int | None,
    printing: Printing,
    quiet: bool,
) -> None:
    """Compare two captures, and show what is new, gone, faster or slower in B.

    A and B are captures of any format, folders or patterns of the captures of several ranks, or baselines that --save
    wrote. Kernels, ops, groups, NVTX ranges, API calls, copies, idle times and iterations are compared by name.

    The column Significant contains "no" if the difference between A and B is within the variation of the iterations. It
    contains "small" if the difference is larger, but two runs of the same program may differ as much. It contains "yes"
    if the difference is larger than both, and "?" if there are too few iterations.

    With --save and without B, only the baseline is saved. If A and B are folders of statistics that a recipe of nsys or
    tracekit wrote, their differences are printed or, with -o, written to a folder.
    """
    from tracekit.core import compare
    from tracekit.sets import recipe_files
    from tracekit.sets.comparison import Summarizer, list_input_files_of_side, write_baseline

    _check_arguments(b, conditions, baseline, to, printing.out)
    if b is not None and all(map(recipe_files.is_folder_of_statistics, (a, b))):
        _print_statistics_diff(a, b, printing, {"--fail-if": conditions, "--save": baseline, "--to": to})
        return
    compare.check_kinds(kinds or ())
    parsed = [compare.parse_condition(text) for text in conditions]
    required = [kind for condition in parsed for kind in condition.required_kinds]
    needed = tuple(dict.fromkeys([*kinds, *required]) if kinds and not baseline else compare.KINDS)
    summarizer = Summarizer(needed, key_op, iterations, exact_names, is_strict(), include_warm_up, get_layers())
    inputs = [file for side in (a, b) if side is not None for file in list_input_files_of_side(side)]
    before, after = (summarizer.summarize(a), None) if b is None else summarizer.summarize_both(a, b)
    if baseline is not None:
        write_baseline(before, baseline, overwrite=printing.force, inputs=inputs)
        print_message(f"wrote {baseline}", quiet=quiet)
    if b is None or after is None:
        return
    alpha = compare.DEFAULT_ALPHA if alpha is None else alpha
    chosen = kinds or compare.choose_kinds(before, after)
    diff = compare.compare(before, after, chosen, alpha=alpha, min_percent=min_percent)
    if printing.style == ANSWER and to is None:
        _print_answer(diff, (a, b), printing, inputs, limit)
    elif to is None:
        _print_diff(diff, printing, inputs, limit, quiet=quiet)
    else:
        _write_page(diff, printing, inputs, limit, (get_local_name(a).name, get_local_name(b).name))
    results = [condition.evaluate(diff) for condition in parsed]
    context.exit(report_conditions(results, allow_untestable=allow_untestable, quiet=quiet))


def _print_answer(
    diff: Diff, sides: tuple[CapturePath, CapturePath], printing: Printing, inputs: Sequence[Input], limit: int | None
) -> None:
    """Print the differences in the envelope that all answers share."""
    from tracekit.answers.build import wrap_diff
    from tracekit.answers.captures import describe_side

    captures = [*describe_side(sides[0], diff.a, "a"), *describe_side(sides[1], diff.b, "b")]
    envelope = wrap_diff(diff, captures, scope=read_scope(), limit=limit or None)
    print_envelope(envelope, printing, ComparedFiles(tuple(inputs)))


def _check_arguments(
    b: CapturePath | None, conditions: Sequence[str], baseline: Path | None, to: str | None, out: Path | None
) -> None:
    """Raise an error if B is missing, or if the outputs of the command contradict one another."""
    if b is None and (baseline is None or conditions):
        raise click.UsageError("the argument B is missing: B can be omitted only with --save and without --fail-if")
    if to is not None and out is None:
        raise click.UsageError("an HTML page can only be written to a file: name the file with -o")
    if baseline is not None and out is not None and baseline.resolve() == out.resolve():
        raise click.UsageError(
            "--save and -o name the same file: choose different files, because --save writes the baseline and -o "
            "writes the differences"
        )


def _print_statistics_diff(
    folder_a: CapturePath, folder_b: CapturePath, printing: Printing, others: Mapping[str, object]
) -> None:
    """Print the differences between the recipe statistics in two folders, or write them to a folder.

    Args:
        folder_a: The first folder.
        folder_b: The second folder.
        printing: How to print or write them.
        others: Values of options that apply only to captures. It is an error to use one of them.
    """
    from tracekit.sets import recipe_files
    from tracekit.system import targets

    for option, value in others.items():
        if value:
            raise click.UsageError(f"{option} needs captures, but A and B are folders with the statistics of a recipe")
    tables = recipe_files.diff_statistics(folder_a, folder_b)
    if printing.out is None:
        with printing.open_output_page() as page:
            printing.print_frame(page, tables.get("all_stats", next(iter(tables.values()))))
        return
    style = "parquet" if printing.style == "table" else printing.style
    inputs = [targets.Input.from_path(path) for path in (folder_a, folder_b)]
    recipe_files.write_recipe_folder(
        tables,
        recipe_files.DIFF,
        printing.out,
        style,
        overwrite=printing.force,
        inputs=inputs,
        spreadsheet=printing.spreadsheet,
    )


def _write_page(
    diff: Diff, printing: Printing, inputs: Sequence[Input], limit: int | None, names: tuple[str, str]
) -> None:
    """Write the differences between two captures as an HTML page."""
    from tracekit.sets.diff_page import build_diff_page

    with printing.open_output_page(ComparedFiles(tuple(inputs)), limit=limit) as page:
        page.data.write(build_diff_page(diff, names, limit).encode())


def _print_diff(diff: Diff, printing: Printing, inputs: Sequence[Input], limit: int | None, *, quiet: bool) -> None:
    """Print the differences between two captures, or write them to the output."""
    max_rows = compute_max_rows_per_report(limit, printing, len(diff.kinds))
    with printing.open_output_page(ComparedFiles(tuple(inputs)), limit=limit) as page:
        if printing.style == "json":
            value = diff.to_dict()
            limited = {kind: value[kind][: max_rows or None] for kind in diff.kinds}
            page.print_json({**value, **limited})
        elif printing.style == "table":
            _print_diff_tables(page, diff, printing, max_rows)
        else:
            printing.print_frame(page, _concat_differences(diff, max_rows))
    if printing.style != "table":
        for line in _format_verdict_and_notes(diff):
            print_message(line, quiet=quiet)


def _concat_differences(diff: Diff, max_rows: int) -> pl.DataFrame:
    """Return the differences of all kinds in one frame. Its first column ``kind`` states the kind, such as kernels."""
    import polars as pl

    frames = [(k, f.head(max_rows) if max_rows else f) for k, f in diff.frames.items()]
    return pl.concat([f.select(pl.lit(k).alias("kind"), pl.all()) for k, f in frames], how="diagonal")


def _print_diff_tables(page: CommandOutput, diff: Diff, printing: Printing, max_rows: int) -> None:
    """Print the verdict, the compared captures, the notes, and a heading and a table for each kind of row."""
    for line in _format_introduction(diff):
        page.print_line(line)
    for kind in diff.kinds:
        frame = diff.frame(kind)
        changed = frame.filter(frame["status"] != "equal")
        page.print_line()
        page.print_line(_format_kind_heading(diff, kind))
        shown = changed.head(max_rows) if max_rows else changed
        if shown.is_empty():
            continue
        table = _select_printed_columns(diff, shown)
        if page.width is None:
            printing.print_frame(page, table)
        else:
            keys = [title for column, title in diff.get_titles(_TITLES).items() if column in _KEY_COLUMNS]
            page.print_rows(table, key_columns=keys, times=printing.get_times(is_terminal=True))
        if shown.height < changed.height:
            page.print_line(f"(first {shown.height:,} of {changed.height:,} rows; -n 0 prints all)")


def _format_introduction(diff: Diff) -> Iterator[str]:
    """Yield the verdict, lines about the two compared captures and their steps, and a line per note."""
    verdict, *notes = _format_verdict_and_notes(diff)
    yield verdict
    for name, side in (("A", diff.a), ("B", diff.b)):
        facts = [side.facts[f] for f in ("gpus", "tool", "tool_version", "export_version") if f in side.facts]
        yield f"{name}: {', '.join([format_count(side.iterations, 'iteration'), *facts])}"
    yield from notes


def _format_verdict_and_notes(diff: Diff) -> list[str]:
    return [f"verdict: {diff.verdict}", *diff.step_notes, *(f"note: {note}" for note in diff.notes)]


def _format_kind_heading(diff: Diff, kind: str) -> str:
    """Return the heading of one kind of rows: total times in A and B, and numbers of changed and significant rows."""
    from tracekit.core.compare import KINDS

    if explanation := diff.explain_missing_rows(kind):
        return f"# {KINDS[kind].title}: {explanation}"
    frame, totals = diff.frame(kind), diff.compute_totals(kind)
    changed, significant = (frame["status"] != "equal").sum(), frame["is_significant"].sum()
    counts = f"{changed:,} of {frame.height:,} rows changed, {significant:,} significant"
    if totals is None:
        return f"# {KINDS[kind].title}: {counts}"
    before, after = totals
    percent = f" ({(after - before) * 100 / before:+.2f} %)" if before else ""
    base = " per iteration" if diff.is_per_iteration and kind != "iterations" else ""
    return f"# {KINDS[kind].title}{base}: {before:,} ns in A, {after:,} ns in B{percent}; {counts}"


def _select_printed_columns(diff: Diff, differences: pl.DataFrame) -> pl.DataFrame:
    """Return the columns of the differences of one kind that are printed, renamed to their titles."""
    import polars as pl

    significant = pl.col("evidence").cast(pl.String).replace_strict(_MARKS).alias("significant")
    rows = diff.replace_times_by_base(differences).with_columns(significant, pl.col("status").cast(pl.String))
    rounded = (pl.col(c).round(d) for c, d in _DECIMALS.items() if rows.schema[c].is_float())
    whole = rows.with_columns(rounded).with_columns(pl.col("time_a_ns", "time_b_ns", "change_ns").cast(pl.Int64))
    return whole.select(pl.col(column).alias(title) for column, title in diff.get_titles(_TITLES).items())
