"""The options and the exit status of commands that compare captures and test conditions on the changes."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from tracekit.cli.options import Command, add_options, parse_iterations
from tracekit.cli.output import print_message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tracekit.core.compare import ConditionResult
    from tracekit.system.files import Input

CONDITION_HOLDS = 3
"""Exit status if a condition of ``--fail-if`` holds."""
CONDITION_IS_UNTESTABLE = 4
"""Exit status if a condition of ``--fail-if`` cannot be tested, and none holds."""


@dataclass(frozen=True, slots=True)
class ComparedFiles:
    """The files of the compared captures or baselines. An output must not replace any of them."""

    inputs: tuple[Input, ...]


def list_comparison_kinds() -> Iterable[str]:
    """Return the names of the kinds of rows that ``--by`` compares, such as ``kernels`` and ``api``."""
    from tracekit.core.compare import KINDS

    return KINDS


def summary_options(verb: str, sides: str) -> Callable[[Command], Command]:
    """Return a decorator that adds the options that select and name what is summarized of captures.

    Args:
        verb: What the command does with captures, such as ``Compare``.
        sides: The captures, such as ``A and B``.
    """
    options = (
        click.option(
            "--key-op",
            metavar="OP",
            help="Id or name of the op that delimits iterations. By default, it is chosen automatically.",
        ),
        click.option(
            "--iterations",
            metavar="A:B",
            type=parse_iterations,
            help=f"{verb} only some iterations of {sides}. They are counted from 0: '2:9' selects 2 to 9, '2:' all "
            "from 2.",
        ),
        click.option(
            "--include-warm-up",
            is_flag=True,
            help=f"{verb} the first iterations even if they are much slower than the others. By default, they are left "
            "out.",
        ),
        click.option(
            "--exact-names", is_flag=True, help="Compare names as they were recorded, with hashes and numbers."
        ),
    )
    return functools.partial(add_options, options)


def condition_options(command: Command) -> Command:
    """Add the options ``--fail-if`` and ``--allow-untestable`` to a command."""
    options = (
        click.option(
            "--fail-if",
            "conditions",
            metavar="CONDITION",
            multiple=True,
            help="Exit with status 3 if the condition holds, such as 'gpu_time > 5%' or 'slower > 0', and with "
            "status 4 if it cannot be tested. Can be repeated.",
        ),
        click.option(
            "--allow-untestable",
            is_flag=True,
            help="Ignore conditions of --fail-if that cannot be tested because of missing data or too few iterations.",
        ),
    )
    return add_options(options, command)


def report_conditions(results: Sequence[ConditionResult], *, allow_untestable: bool, quiet: bool) -> int:
    """Print the result of each condition of ``--fail-if``, and return the exit status.

    Args:
        results: The results.
        allow_untestable: Whether the exit status ignores conditions that cannot be tested.
        quiet: Whether to omit the conditions that do not hold.
    """
    status = 0
    for result in results:
        name, is_met = f"the condition {result.text} of --fail-if", result.status == "holds"
        if result.status == "untestable":
            print_message(f"{name} cannot be tested: {result.reason}")
            status = status or (0 if allow_untestable else CONDITION_IS_UNTESTABLE)
            continue
        outcome = f"{'holds' if is_met else 'does not hold'} (the value is {result.value})"
        print_message(f"{name} {outcome}", quiet=quiet and not is_met)
        status = CONDITION_HOLDS if is_met else status
    return status
