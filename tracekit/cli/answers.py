"""The options and the output of commands that explain or predict how long a step takes."""

from __future__ import annotations

import contextlib
import functools
import warnings
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tracekit.cli.options import (
    add_options,
    input_options,
    jobs_option,
    load_inputs,
    parse_duration,
    quiet_option,
    rank_option,
    rollup_options,
    selection_options,
)
from tracekit.cli.output import open_output_page, print_recorded_warnings, show_progress_bar
from tracekit.registry.notices import list_recorded_warnings
from tracekit.text.urls import remove_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tracekit.cli.options import CapturePath, RollUpOptions, Select, TraceOrSet
    from tracekit.core.diagnosis.answer import Answer

    AnyAnswer = TypeVar("AnyAnswer", bound=Answer)


def _parse_step_time(text: str) -> int:
    """Parse the duration of a step."""
    duration = parse_duration(text)
    if duration <= 0:
        raise click.BadParameter(f"{text!r} is not a positive duration, such as 52ms")
    return duration


@dataclass(frozen=True)
class Question:
    """The inputs and options of a command that prints an answer about steps."""

    paths: tuple[CapturePath, ...]
    step_ns: int | None
    from_: str | None
    select: Select
    roll_up: RollUpOptions
    style: str
    quiet: bool

    def print_answer(
        self,
        compute: Callable[[TraceOrSet, int | None], AnyAnswer],
        format_lines: Callable[[AnyAnswer], Iterable[str]],
    ) -> None:
        """Load the inputs, and print an answer.

        Args:
            compute: Function that returns the answer, given the inputs and the duration of a step without the profiler
                in ns, or None.
            format_lines: Function that returns the lines of the answer as text.
        """
        with _collect_warnings() as texts, load_inputs(self.paths, self.from_) as trace:
            print_recorded_warnings(trace, quiet=self.quiet)
            with show_progress_bar("computing", quiet=self.quiet):
                answer = compute(self.roll_up(self.select(trace)), self.step_ns)
            with open_output_page() as page:
                if self.style == "json":
                    inputs = [remove_secrets(str(path)) for path in self.paths]
                    page.print_json(answer.to_envelope(inputs, [*_list_recorded_warnings(trace), *texts]))
                    return
                for line in format_lines(answer):
                    page.print_wrapped_line(line)


@contextlib.contextmanager
def _collect_warnings() -> Iterator[list[str]]:
    """Collect the texts of the warnings that are shown in a with statement."""
    texts: list[str] = []
    show = warnings.showwarning

    def collect(message: Warning | str, *arguments: Any, **others: Any) -> None:
        texts.append(remove_secrets(str(message)))
        show(message, *arguments, **others)

    with warnings.catch_warnings():
        warnings.showwarning = collect
        yield texts


def _list_recorded_warnings(trace: TraceOrSet) -> list[str]:
    """Return the warnings of the profiler in one capture. Those in the captures of a set are not read."""
    from tracekit.trace import Trace, get_trace_view

    return [w.sentence for w in list_recorded_warnings(get_trace_view(trace))] if isinstance(trace, Trace) else []


def answer_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a command that prints an answer about steps.

    The command receives ``question``, a ``Question``.
    """
    options = (
        click.option(
            "--step-time",
            "step_ns",
            metavar="TIME",
            type=_parse_step_time,
            help="Duration of a step without the profiler, such as 52ms. It calibrates the times on the CPU.",
        ),
        *(input_options, rank_option, jobs_option, selection_options, rollup_options),
        click.option(
            "--format",
            "style",
            type=click.Choice(["text", "json"]),
            default="text",
            help="How to print the answer. json is one object with all figures.",
        ),
        quiet_option,
    )

    @functools.wraps(command)
    def run_with_question(**arguments: Any) -> None:
        values = {name: arguments.pop(name) for name in (field.name for field in fields(Question))}
        command(question=Question(**values), **arguments)

    return add_options(options, run_with_question)
