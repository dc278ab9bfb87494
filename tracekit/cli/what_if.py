"""The command ``tracekit what-if``, which predicts the time of steps after edits of their events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tracekit.cli.answers import answer_options
from tracekit.cli.options import inputs_argument
from tracekit.cli.why import format_ledger
from tracekit.text import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.cli.answers import StepQuestion
    from tracekit.core.diagnosis import WhatIf
    from tracekit.core.diagnosis.what_if import EditMatch

_SAME = 0.005


@click.command("what-if")
@inputs_argument
@click.option(
    "--edit",
    "edits",
    metavar="EDIT",
    multiple=True,
    required=True,
    help="What to change, such as 'kernel *gemm* x0.5'. Can be repeated.",
)
@answer_options
def what_if_command(*, edits: tuple[str, ...], question: StepQuestion) -> None:
    """Predict how long a step would take after edits, by a replay of the events of the steady steps.

    An edit consists of a selector and an action. Selectors are `kernel PATTERN`, `range PATTERN`, `call PATTERN`,
    `copy KIND` (such as `copy Host-to-Device pageable <64KiB`) and `cause:NAME` (the events of a cause of `tracekit
    why`). The action `x0.5` scales their time, `=20us` sets the time of each of them, and `removed` removes it.
    Without an action, `cause:NAME` is cured.

    A PATTERN has to match the whole name: * matches any characters, and ? matches one. Quotes keep special words in a
    name. Edits change kernels and copies on the GPU, ranges and calls on the CPU, and causes on both. To change another
    side, end an edit with `on cpu`, `on gpu` or `on both`. The CPU side of a kernel is the call that launches it and
    the code before this call; the GPU side of a range or call is what it launches.

    `NAME = ` before an edit gives it a name, and `rank 0,2-5: ` limits it to some ranks. Edits apply in order, after
    all cures.

    Examples: --edit 'range data removed', --edit 'faster attention = kernel *softmax* x0.3', --edit 'call
    cudaStreamSynchronize removed', --edit 'rank 1: range data x0.1'.
    """
    question.print_answer(
        "what-if",
        edits,
        lambda trace, step_ns: trace.what_if(edits, step_time_ns=step_ns),
        format_prediction,
    )


def format_prediction(answer: WhatIf) -> Iterator[str]:
    """Yield the lines of a prediction: the sentence, what each edit selects, the ledger, ranks, and notes."""
    from tracekit.core.diagnosis.texts import list_ledger_rows, list_ranks

    slowest = f"Rank {answer.rank}, the slowest: " if answer.ranks else ""
    yield slowest + answer.sentence
    saving = answer.without_profiler
    if saving is not None and saving.high - saving.low >= _SAME:
        interval = f"{saving.low:.0%} to {saving.high:.0%}"
        yield f"Without the profiler, the likely saving is {saving.likely:.0%} ({interval})."
    if answer.edits:
        yield ""
    for match in answer.edits:
        yield _format_match(match)
    if answer.ledger:
        yield ""
        yield from format_ledger(tuple(list_ledger_rows(answer.ledger)))
    if answer.ranks:
        yield ""
    yield from list_ranks(answer.ranks)
    for note in answer.notes:
        yield f"note: {note}"


def _format_match(match: EditMatch) -> str:
    """Return an edit, the number of events that it selects, and the time that they take in all steps."""
    times = [(match.cpu_ns, "CPU"), (match.gpu_ns, "GPU")]
    shown = " and ".join(f"{format_duration(ns)} on the {side}" for ns, side in times if ns)
    return f"{match.edit}: selects {match.count:,}, which take {shown or 'no time'} in all steps"
