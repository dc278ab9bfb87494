"""The command ``tracekit why``, which explains why a step is slow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tracekit.cli.options import (
    input_options,
    inputs_argument,
    jobs_option,
    load_inputs,
    parse_duration,
    quiet_option,
    rank_option,
    rollup_options,
    selection_options,
)
from tracekit.cli.output import open_output_page, print_recorded_warnings, show_progress_bar
from tracekit.explanations import REST
from tracekit.text import format_duration
from tracekit.urls import remove_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.cli.options import CapturePath, RollUp, Select
    from tracekit.explanations import Explanation, LedgerRow

_BAR_CHARS = 24
_INDENT = "     "


def _parse_step_time(text: str) -> int:
    """Parse the duration of a step."""
    duration = parse_duration(text)
    if duration <= 0:
        raise click.BadParameter(f"{text!r} is not a positive duration, such as 52ms")
    return duration


@click.command("why")
@inputs_argument
@click.option(
    "--step-time",
    "step_ns",
    metavar="TIME",
    type=_parse_step_time,
    help="Duration of a step without the profiler, such as 52ms. It calibrates the times on the CPU.",
)
@input_options
@rank_option
@jobs_option
@selection_options
@rollup_options
@click.option(
    "--format",
    "style",
    type=click.Choice(["text", "json"]),
    default="text",
    help="How to print the answer. json is one object with all figures.",
)
@quiet_option
def why_command(
    *,
    paths: tuple[CapturePath, ...],
    step_ns: int | None,
    from_: str | None,
    select: Select,
    roll_up: RollUp,
    style: str,
    quiet: bool,
) -> None:
    """Explain why a step is slow: where its time goes, the causes, and what each cure would save.

    The ledger divides the time of the steady steps, so that each nanosecond is counted once. At most five causes
    follow, ordered by what their cure would save. Each has its evidence, one change, and a predicted saving with an
    interval. Predictions come from a replay of the events of the steps.

    A program is slower under a profiler. With --step-time, predictions apply to the program without the profiler.
    """
    from tracekit.core.diagnosis.texts import write_explanation

    with load_inputs(paths, from_) as trace:
        selected = roll_up(select(trace))
        print_recorded_warnings(trace, quiet=quiet)
        with show_progress_bar("computing", quiet=quiet):
            answer = selected.why(step_time_ns=step_ns)
        with open_output_page() as page:
            if style == "json":
                page.print_json(answer.to_envelope([remove_secrets(str(path)) for path in paths]))
                return
            for line in format_explanation(write_explanation(answer)):
                page.print_wrapped_line(line)


def format_explanation(explanation: Explanation, *, is_short: bool = False) -> Iterator[str]:
    """Yield the lines of an answer: the sentence, the ledger, the causes, the warm-up, and notes.

    Args:
        explanation: The answer.
        is_short: Whether to omit the evidence of causes and the ledger of the warm-up.
    """
    yield explanation.sentence
    if explanation.ledger:
        yield ""
        yield from format_ledger(explanation.ledger)
    for i, cause in enumerate(explanation.causes, start=1):
        yield ""
        yield f"{i:>3}. {cause.title}: {cause.saving}"
        full = (cause.evidence, cause.functions, cause.change, cause.check, cause.missing)
        details = (cause.change,) if is_short else full
        yield from (f"{_INDENT}{text}" for text in details if text)
    if explanation.together:
        yield ""
        yield explanation.together
    if explanation.cold and not is_short:
        yield ""
        yield f"{explanation.cold}:"
        yield from format_ledger(explanation.cold_ledger)
    if explanation.ranks:
        yield from ("", *explanation.ranks)
    yield from (f"note: {note}" for note in explanation.notes)


def format_ledger(rows: Sequence[LedgerRow]) -> Iterator[str]:
    """Yield one line per row of a ledger: a bar, the share, the time, the name, and the main range."""
    for row in rows:
        bar = "" if row.group == REST else "█" * max(1, round(_BAR_CHARS * row.share))
        yield f"{bar:<{_BAR_CHARS}} {row.share:>6.1%} {format_duration(row.ns):>9}  {row.label}"
