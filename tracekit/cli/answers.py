"""The options and the output of commands that explain or predict how long a step takes."""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click
from click.core import ParameterSource

from tracekit.cli.options import (
    ANSWER,
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
from tracekit.errors import collect_warnings
from tracekit.registry.notices import list_recorded_warnings
from tracekit.text.urls import remove_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tracekit.answers.build import Asked
    from tracekit.answers.envelope import Envelope
    from tracekit.cli.options import CapturePath, Printing, RollUpOptions, Select, TraceOrSet
    from tracekit.cli.output import HasInputs
    from tracekit.core.diagnosis.answer import Answer

    AnyAnswer = TypeVar("AnyAnswer", bound=Answer)


_NO_SCOPE = frozenset(
    {
        *("style", "out", "force", "quiet", "spreadsheet", "timeunit", "limit", "report_names", "rule_names", "recipe"),
        *(
            "edits",
            "kinds",
            "jobs",
            "memory",
            "to",
            "baseline",
            "conditions",
            "allow_untestable",
            "no_cache",
            "as_json",
        ),
        *("history", "prediction", "cause", "run", "repeat", "profiler", "keep", "reports"),
    }
)
"""Names of the arguments of options that name what is asked for, or how to print the answer."""


def _parse_step_time(text: str) -> int:
    """Parse the duration of a step."""
    duration = parse_duration(text)
    if duration <= 0:
        raise click.BadParameter(f"{text!r} is not a positive duration, such as 52ms")
    return duration


@dataclass(frozen=True)
class StepQuestion:
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
        command: Literal["why", "what-if"],
        names: tuple[str, ...],
        compute: Callable[[TraceOrSet, int | None], AnyAnswer],
        format_lines: Callable[[AnyAnswer], Iterable[str]],
    ) -> None:
        """Load the inputs, and print an answer.

        Args:
            command: Command that answers.
            names: Names of what is asked for.
            compute: Function that returns the answer, given the inputs and the duration of a step without the profiler
                in ns, or None.
            format_lines: Function that returns the lines of the answer as text.
        """
        with collect_warnings() as texts, load_inputs(self.paths, self.from_) as trace:
            print_recorded_warnings(trace, quiet=self.quiet)
            with show_progress_bar("computing", quiet=self.quiet):
                answer = compute(self.roll_up(self.select(trace)), self.step_ns)
            with open_output_page() as page:
                if self.style == ANSWER:
                    from tracekit.answers.build import Asked

                    asked = Asked(command, names, trace, read_scope(), warnings=texts)
                    page.print_json(asked.wrap_answer(answer).to_dict())
                    return
                if self.style == "json":
                    inputs = [remove_secrets(str(path)) for path in self.paths]
                    page.print_json(answer.to_envelope(inputs, [*_list_recorded_warnings(trace), *texts]))
                    return
                for line in format_lines(answer):
                    page.print_wrapped_line(line)


def read_scope() -> dict[str, Any]:
    """Return the values of the options of the current command that restrict what is asked, by name of the option."""
    context = click.get_current_context()
    sources = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
    values = {
        parameter.opts[-1].removeprefix("--"): context.params.get(parameter.name or "")
        for parameter in context.command.params
        if isinstance(parameter, click.Option)
        and parameter.name not in _NO_SCOPE
        and context.get_parameter_source(parameter.name or "") in sources
    }
    return {name: _convert_to_json(value) for name, value in values.items() if value not in (None, ())}


def _convert_to_json(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(map(_convert_to_json, value))
    return value if isinstance(value, (bool, int, float)) or value is None else remove_secrets(str(value))


def print_report_answer(
    asked: Asked, selected: TraceOrSet, printing: Printing, *, source: HasInputs | None = None
) -> None:
    """Print the envelope of reports or rules as JSON.

    Args:
        asked: The question, which names the reports.
        selected: The captures with the selections of the question.
        printing: How and where to print.
        source: What is being read. The output must not replace its files.
    """
    from tracekit.answers.build import wrap_reports
    from tracekit.answers.tables import compute_reports

    print_envelope(wrap_reports(asked, selected, compute_reports(selected, asked.names)), printing, source)


def print_envelope(envelope: Envelope, printing: Printing, source: HasInputs | None = None) -> None:
    """Print an envelope as JSON."""
    with printing.open_output_page(source) as page:
        page.print_json(envelope.to_dict())


def _list_recorded_warnings(trace: TraceOrSet) -> list[str]:
    """Return the warnings of the profiler in one capture. Those in the captures of a set are not read."""
    from tracekit.trace import Trace, get_trace_view

    return [w.sentence for w in list_recorded_warnings(get_trace_view(trace))] if isinstance(trace, Trace) else []


def answer_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a command that prints an answer about steps.

    The command receives ``question``, a ``StepQuestion``.
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
            type=click.Choice(["text", "json", ANSWER]),
            default="text",
            help="How to print the answer. json is one object with all figures. answer also contains the captures, "
            "what was recorded, and a status.",
        ),
        quiet_option,
    )

    @functools.wraps(command)
    def run_with_question(**arguments: Any) -> None:
        values = {name: arguments.pop(name) for name in (field.name for field in fields(StepQuestion))}
        command(question=StepQuestion(**values), **arguments)

    return add_options(options, run_with_question)
