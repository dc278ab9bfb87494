"""The command ``tracekit why``, which explains why a step is slow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tracekit.cli.answers import answer_options
from tracekit.cli.options import inputs_argument
from tracekit.text import format_duration
from tracekit.text.explanations import REST

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.cli.answers import StepQuestion
    from tracekit.text.explanations import Explanation, LedgerRow

_BAR_CHARS = 24
_INDENT = "     "


@click.command("why")
@inputs_argument
@answer_options
def why_command(*, question: StepQuestion) -> None:
    """Explain why a step is slow: where its time goes, the causes, and what each cure would save.

    The ledger divides the time of the steady steps, so that each nanosecond is counted once. At most five causes
    follow, ordered by what their cure would save. Each has its evidence, one change, and a predicted saving with an
    interval. Predictions come from a replay of the events of the steps.

    A program is slower under a profiler. With --step-time, predictions apply to the program without the profiler.
    """
    from tracekit.core.diagnosis.texts import write_explanation

    question.print_answer(
        "why",
        ("why",),
        lambda trace, step_ns: trace.why(step_time_ns=step_ns),
        lambda answer: format_explanation(write_explanation(answer)),
    )


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
