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
from tracekit.core.advise.iteration_activity import format_duration
from tracekit.urls import remove_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.cli.options import CapturePath, RollUp, Select
    from tracekit.core.diagnosis import Why
    from tracekit.core.diagnosis.answer import CauseOfTime, LedgerPart

_BAR_CHARS = 24
_MIN_SHARE = 0.005
_MAX_PARTS = 12
_MAX_RANKS = 16
_INDENT = "     "


@click.command("why")
@inputs_argument
@click.option(
    "--step-time",
    "step_ns",
    metavar="TIME",
    type=parse_duration,
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
    with load_inputs(paths, from_) as trace:
        selected = roll_up(select(trace))
        print_recorded_warnings(trace, quiet=quiet)
        with show_progress_bar("computing", quiet=quiet):
            answer = selected.why(step_time_ns=step_ns)
        with open_output_page() as page:
            if style == "json":
                page.print_json(answer.to_envelope([remove_secrets(str(path)) for path in paths]))
                return
            for line in format_answer(answer):
                page.print_wrapped_line(line)


def format_answer(answer: Why) -> Iterator[str]:
    """Yield the lines of an answer: the sentence, the ledger, the causes, the warm-up, and notes."""
    yield answer.sentence
    if answer.ledger:
        yield ""
        yield from format_ledger(answer.ledger)
    for i, cause in enumerate(answer.causes, start=1):
        yield ""
        yield from _format_cause(i, cause)
    if len(answer.causes) > 1:
        yield ""
        yield f"all together: {answer.together:.0%}"
    if answer.cold is not None:
        yield ""
        yield f"the first {answer.cold.count} steps take {format_duration(answer.cold.total_ns)}:"
        yield from format_ledger(answer.cold.ledger)
    if answer.ranks:
        yield ""
        yield from _format_ranks(answer.ranks)
    for note in answer.notes:
        yield f"note: {note}"


def _format_ranks(ranks: Sequence[Why]) -> Iterator[str]:
    """Yield one line per rank: its sentence. Only the first ranks are shown if there are many."""
    for rank in ranks[:_MAX_RANKS]:
        yield f"rank {rank.rank}: {rank.sentence}"
    if len(ranks) > _MAX_RANKS:
        yield f"{len(ranks) - _MAX_RANKS} more ranks"


def format_ledger(parts: Sequence[LedgerPart]) -> Iterator[str]:
    """Yield one line per part of a ledger: a bar, the share, the time, the name, and the main range."""
    shown = [part for part in parts if part.share >= _MIN_SHARE][:_MAX_PARTS]
    for part in shown:
        bar = "█" * max(1, round(_BAR_CHARS * part.share))
        place = f" in '{part.places[0][0]}'" if part.places and part.places[0][0] else ""
        idle = "idle: " if part.group == "idle" else ""
        name = part.part.replace("_", " ")
        yield f"{bar:<{_BAR_CHARS}} {part.share:>6.1%} {format_duration(part.ns):>9}  {idle}{name}{place}"
    rest = len(parts) - len(shown)
    if rest:
        share = sum(part.share for part in parts) - sum(part.share for part in shown)
        ns = sum(part.ns for part in parts) - sum(part.ns for part in shown)
        yield f"{'':<{_BAR_CHARS}} {share:>6.1%} {format_duration(ns):>9}  {rest} more"


def _format_cause(number: int, cause: CauseOfTime) -> Iterator[str]:
    """Yield the lines of a cause: its name and saving, the evidence, the change, and the check."""
    place = f" in '{cause.place.range}'" if cause.place.range else ""
    name = cause.cause.replace("_", " ")
    saving = f"saves {cause.saving.likely:.0%} ({cause.saving.low:.0%} to {cause.saving.high:.0%})"
    if cause.status == "unsure":
        saving = f"unsure: may save {cause.saving.low:.0%} to {cause.saving.high:.0%}"
    if cause.saving.high == 0:
        saving = "healthy"
    after = f", {cause.after:.0%} after those above" if number > 1 and cause.after else ""
    yield f"{number:>3}. {name}{place}: {saving}{after}"
    yield f"{_INDENT}{cause.evidence.text}"
    if cause.place.functions:
        yield f"{_INDENT}samples are in {', '.join(cause.place.functions)}"
    if cause.change:
        yield f"{_INDENT}change: {cause.change}"
    if cause.missing:
        yield f"{_INDENT}to be sure, record: {cause.missing}"
