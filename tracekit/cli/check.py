"""The command ``tracekit check``, which checks whether runs of a program are slower than those of a baseline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tracekit.cli.answers import print_envelope, read_scope
from tracekit.cli.ci_reports import REPORTS
from tracekit.cli.conditions import (
    CONDITION_HOLDS,
    CONDITION_IS_UNTESTABLE,
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
from tracekit.cli.reports import ROWS_OF_ONE, compute_max_rows_per_report
from tracekit.errors import collect_warnings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import polars as pl

    from tracekit.answers.check import RunRecorder
    from tracekit.cli.options import CapturePath, Printing
    from tracekit.cli.output import CommandOutput
    from tracekit.core.check import Check
    from tracekit.core.compare import Summary
    from tracekit.sets.recording import ProfilerName
    from tracekit.sets.run_sources import RunReader
    from tracekit.system.files import Input

_COMMAND = "tracekit.command"
_TITLES = {
    "level": "Level",
    "name": "Name",
    "verdict": "Verdict",
    "change_percent": "Change (%)",
    "low_percent": "From (%)",
    "high_percent": "To (%)",
    "time_a_ns": "Time A (ns)",
    "time_b_ns": "Time B (ns)",
    "noise_percent": "Noise (%)",
    "detectable_percent": "Detectable (%)",
}
_KEY_COLUMNS = ("level", "name", "verdict", "change_percent", "low_percent", "high_percent")
_STATUSES = {"passed": 0, "failed": CONDITION_HOLDS, "untestable": CONDITION_IS_UNTESTABLE}


class _ReportTarget(NamedTuple):
    """A report and the file to which it is written."""

    name: str
    path: Path


class _CommandWithProgram(click.Command):
    """A command whose arguments after ``--`` are a program with its arguments, which are not parsed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments before ``--``, and store those after it in the context."""
        if "--" in args:
            position = args.index("--")
            ctx.meta[_COMMAND] = args[position + 1 :]
            args = args[:position]
        return super().parse_args(ctx, args)


def _parse_report(text: str) -> _ReportTarget:
    """Parse ``FORMAT=FILE`` into the name of a report and its file."""
    name, equals, path = text.partition("=")
    if name not in REPORTS or not (path or (name == "github" and not equals)):
        raise click.BadParameter(
            f"{text!r} does not have the form FORMAT=FILE, such as junit=check.xml; formats are {', '.join(REPORTS)}"
        )
    return _ReportTarget(name, Path(path or "-"))


@click.command("check", cls=_CommandWithProgram)
@click.argument("paths", metavar="[BASELINE] [CURRENT]... [-- PROGRAM...]", nargs=-1, type=CAPTURE)
@condition_options
@click.option(
    "--by",
    "kinds",
    type=parse_names,
    metavar="KIND[,KIND]",
    shell_complete=create_name_completer(list_comparison_kinds),
    help="Kinds of rows to check beside the duration of a step, as for tracekit diff. The default is iterations (parts "
    "of a step), nvtx_gpu (phases), ops and kernels.",
)
@summary_options("Check", "each run")
@click.option("--one-run", is_flag=True, help="Read the captures of each folder or pattern as the ranks of one run.")
@click.option(
    "--alpha",
    type=click.FloatRange(0, 0.5, min_open=True, max_open=True),
    help="Probability that a check without a change reports any slower row. The default is 0.05.",
)
@click.option(
    "--min-change",
    metavar="PERCENT",
    type=click.FloatRange(0),
    help="Smallest change that is slower or faster. The default is 0.5.",
)
@click.option(
    "--resolution",
    metavar="PERCENT",
    type=click.FloatRange(0),
    help="Change of the duration of a step that the differences between runs must not hide. If they may hide it, the "
    "check is untestable. The default is 10.",
)
@click.option(
    "--history",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Add the runs to a folder of Parquet files. If there are too few runs, the differences between earlier runs "
    "in it are used.",
)
@click.option(
    "--prediction",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Compare the measured saving with the one that tracekit why --format json (or answer) predicted in this file.",
)
@click.option(
    "--cause",
    metavar="NAME",
    help="Cause in the file of --prediction that was cured, or together. The default is the first.",
)
@click.option("--run", is_flag=True, help="Record PROGRAM with nsys on the PATH, or else with the PyTorch profiler.")
@click.option("--repeat", metavar="N", type=click.IntRange(1, 1000), default=1, help="How often --run records PROGRAM.")
@click.option("--profiler", type=click.Choice(["nsys", "pytorch"]), help="Profiler of --run.")
@click.option(
    "--keep", metavar="FOLDER", type=click.Path(path_type=Path), help="Keep the captures of --run in a folder."
)
@click.option(
    "--report",
    "reports",
    metavar="FORMAT=FILE",
    type=_parse_report,
    multiple=True,
    help="Write a report: github (annotations; without =FILE to standard output), gitlab (code quality), junit or "
    "markdown. Can be repeated.",
)
@click.option(
    "--save",
    "baseline",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Save the runs of BASELINE, or without it those of --run, as a baseline in a JSON file.",
)
@limit_option(f"Number of rows to print; 0 prints all. The default is {ROWS_OF_ONE} on a terminal, and all otherwise.")
@answer_printing_options
@quiet_option
@layers_option
@strict_option
@memory_option
@click.pass_context
def check_command(
    context: click.Context,
    /,
    *,
    paths: tuple[CapturePath, ...],
    baseline: Path | None,
    printing: Printing,
    **options: Any,
) -> None:
    """Check whether runs of a program are slower than those of a baseline.

    BASELINE and CURRENT are captures, folders or patterns of captures, or baselines that --save wrote. Each capture is
    one run of the program, unless the names of several captures differ in a rank. The differences between the runs of
    each side are estimated first: the verdict is faster, slower, same within a number of per cent, or untestable.

    With --run, the program after -- is recorded, and its runs are compared with BASELINE, or else with the last runs of
    --history. Quote patterns, so that the shell does not expand them.

    The exit status is 3 if a condition of --fail-if holds, and 4 if one cannot be tested. Without conditions, it is 3
    if a step is slower, and 4 if this is untestable. It is also 3 if less is saved than --prediction says.
    """
    program: list[str] | None = context.meta.get(_COMMAND)
    _check_arguments(paths, program, baseline, options)
    from tracekit.core import compare
    from tracekit.sets.check import GateKeeper, read_prediction
    from tracekit.sets.comparison import Summarizer, write_baseline
    from tracekit.sets.run_sources import RunReader
    from tracekit.system import no_pandas

    no_pandas.hide_pandas()
    prediction = None if options["prediction"] is None else read_prediction(options["prediction"], options["cause"])
    gate = GateKeeper.create(
        options["kinds"],
        options["conditions"],
        alpha=options["alpha"],
        min_change=options["min_change"],
        resolution=options["resolution"],
        history=options["history"],
        prediction=prediction,
    )
    needed = tuple(compare.KINDS) if baseline is not None else gate.required_kinds
    shared = (options["key_op"], options["iterations"], options["exact_names"], is_strict())
    summarizer = Summarizer(needed, *shared, options["include_warm_up"], get_layers())
    recorder = _create_recorder(printing.style)
    reader = RunReader(summarizer, is_one_run=options["one_run"], observe=recorder)
    with collect_warnings() as texts:
        before = reader.read(paths[0]) if paths else None
        after = reader.read(paths[1:])
        if options["run"] and program is not None:
            after += _record_runs(program, reader, options)
    if baseline is not None:
        write_baseline(before or after, baseline, overwrite=printing.force, inputs=reader.inputs)
        print_message(f"wrote {baseline}", quiet=options["quiet"])
    is_only_saved = baseline is not None and before is None and options["history"] is None and prediction is None
    if not after or is_only_saved:
        return
    check = gate.check(before if before is not None or options["history"] is not None else [], after)
    if recorder is None:
        _print_check(check, printing, reader, options["limit"], options["quiet"])
    else:
        others = {"inputs": reader.inputs, "limit": options["limit"], "kinds": gate.kinds, "warnings": texts}
        _print_answer(check, recorder, len(before or ()), printing, **others)
    _write_reports(check, options["reports"], printing, reader, paths)
    report_conditions(check.conditions, allow_untestable=options["allow_untestable"], quiet=options["quiet"])
    status = _STATUSES[check.outcome]
    context.exit(0 if status == CONDITION_IS_UNTESTABLE and options["allow_untestable"] else status)


def _create_recorder(style: str) -> RunRecorder | None:
    """Return what describes the captures of the runs, or None if the output does not contain them."""
    if style != ANSWER:
        return None
    from tracekit.answers.check import RunRecorder

    return RunRecorder()


def _check_arguments(
    paths: Sequence[CapturePath], program: list[str] | None, baseline: Path | None, options: dict[str, Any]
) -> None:
    """Raise an error if a side is missing, or if options contradict one another."""
    if options["run"] != (program is not None):
        raise click.UsageError(
            "--run and a program after -- belong together, as in: check base.json --run -- python train.py"
        )
    if program is not None and not program:
        raise click.UsageError("the program after -- is missing, as in: check base.json --run -- python train.py")
    if not options["run"] and len(paths) < (1 if baseline else 2):
        raise click.UsageError("BASELINE and CURRENT are required; CURRENT can be omitted only with --save or --run")
    if not options["run"]:
        for name, unused in (
            ("--repeat", options["repeat"] == 1),
            ("--profiler", not options["profiler"]),
            ("--keep", not options["keep"]),
        ):
            if not unused:
                raise click.UsageError(f"{name} applies only to --run")
    if options["cause"] is not None and options["prediction"] is None:
        raise click.UsageError("--cause applies only to --prediction")


def _record_runs(program: Sequence[str], reader: RunReader, options: dict[str, Any]) -> list[Summary]:
    """Record a program several times, and return its runs."""
    from tracekit.sets.recording import choose_profiler, record_runs

    profiler: ProfilerName = choose_profiler(program, options["profiler"])
    runs: list[Summary] = []
    for number, capture in enumerate(record_runs(program, options["repeat"], profiler, options["keep"]), start=1):
        print_message(f"recorded run {number} of {options['repeat']} with {profiler}", quiet=options["quiet"])
        runs += reader.read(capture)
    return runs


def _print_answer(
    check: Check,
    recorder: RunRecorder,
    runs_a: int,
    printing: Printing,
    *,
    inputs: Sequence[Input],
    limit: int | None,
    kinds: Sequence[str],
    warnings: Sequence[str],
) -> None:
    """Print a check in the envelope that all answers share.

    Args:
        check: The result of the check.
        recorder: The runs of A and of B that were read.
        runs_a: Number of the runs of A that were read.
        printing: How and where to print.
        inputs: The files that were read, which the output must not replace.
        limit: Maximum number of rows.
        kinds: Kinds of rows that were checked.
        warnings: Warnings that were shown while the runs were read.
    """
    from tracekit.answers.check import wrap_check

    a, b = recorder.runs[:runs_a], recorder.runs[runs_a:]
    scope = {"by": tuple(kinds), **read_scope()}
    envelope = wrap_check(check, a, b, scope=scope, limit=limit or None, warnings=warnings)
    print_envelope(envelope, printing, ComparedFiles(tuple(inputs)))


def _print_check(check: Check, printing: Printing, reader: RunReader, limit: int | None, quiet: bool) -> None:  # noqa: FBT001
    """Print the verdict and the rows of a check, or write them to the output."""
    max_rows = compute_max_rows_per_report(limit, printing, 1)
    rows = check.frame()
    shown = rows.head(max_rows) if max_rows else rows
    with printing.open_output_page(ComparedFiles(tuple(reader.inputs)), limit=limit) as page:
        if printing.style == "json":
            value = check.to_dict()
            limited = value["rows"][: max_rows or None]
            page.print_json({**value, "rows": limited})
        elif printing.style == "table":
            for line in _format_introduction(check):
                page.print_wrapped_line(line)
            _print_table(page, shown, printing)
            if shown.height < rows.height:
                page.print_line(f"(first {shown.height:,} of {rows.height:,} rows; -n 0 prints all)")
        else:
            printing.print_frame(page, shown)
    if printing.style != "table":
        for line in _format_introduction(check):
            print_message(line, quiet=quiet)


def _format_introduction(check: Check) -> Iterator[str]:
    """Yield the outcome with the verdict, the comparison with a prediction, and the notes."""
    yield check.sentence if check.outcome == check.verdict else f"{check.outcome}: {check.sentence}"
    if check.prediction is not None:
        yield f"prediction: {check.prediction.sentence}"
    for note in check.notes:
        yield f"note: {note}"


def _print_table(page: CommandOutput, rows: pl.DataFrame, printing: Printing) -> None:
    """Print the rows of a check as a table. Its lines begin with the level, so no name is read as a command of a CI."""
    import polars as pl

    if rows.is_empty():
        return
    name = pl.col("name").fill_null("(no name)").str.replace_all("##[", "#\\#[", literal=True)
    percents = [pl.col(c).round(2) for c in _TITLES if c.endswith("_percent")]
    times = pl.col("time_a_ns", "time_b_ns").round(0).cast(pl.Int64)
    texts = rows.with_columns(name, *percents, times, pl.col("verdict").cast(pl.String))
    table = texts.select(pl.col(column).alias(title) for column, title in _TITLES.items())
    page.print_line()
    if page.width is None:
        printing.print_frame(page, table)
    else:
        keys = [_TITLES[column] for column in _KEY_COLUMNS]
        page.print_rows(table, key_columns=keys, times=printing.get_times(is_terminal=True))


def _write_reports(
    check: Check,
    targets: Sequence[_ReportTarget],
    printing: Printing,
    reader: RunReader,
    paths: Sequence[CapturePath],
) -> None:
    """Write the reports for CI systems."""
    from tracekit.cli.output import open_output_page

    path = get_local_name(paths[0]).name if paths else "tracekit"
    for target in targets:
        with open_output_page(
            target.path, overwrite=printing.force, source=ComparedFiles(tuple(reader.inputs))
        ) as page:
            page.data.write(REPORTS[target.name](check, path=path).encode("utf-8", "surrogatepass"))
