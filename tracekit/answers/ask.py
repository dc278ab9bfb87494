"""Answer questions about captures: reports, rules, recipes, tables, causes of slow steps, predictions, differences."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Literal, TypeAlias

from tracekit import schemas
from tracekit.answers.build import Asked, wrap_diff, wrap_info, wrap_recipe, wrap_reports, wrap_rows
from tracekit.answers.captures import describe_side
from tracekit.answers.tables import compute_reports
from tracekit.errors import TracekitError, UnknownFormatError, collect_warnings, create_choices_hint
from tracekit.registry.analyses import RECIPE, REPORT, RULE, find_analysis, list_names, parse_name
from tracekit.sets.trace_set import open_captures
from tracekit.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from typing import Any

    from tracekit.answers.envelope import Command, Envelope
    from tracekit.registry.analyses import Value
    from tracekit.sets import TraceSet

    TraceOrSet: TypeAlias = Trace | TraceSet
    PathLike: TypeAlias = str | os.PathLike[str]
    Captures: TypeAlias = TraceOrSet | PathLike

WHY: Literal["why"] = "why"
INFO: Literal["info"] = "info"
TABLE = "table"


def answer(
    captures: Captures,
    question: str | Sequence[str],
    *,
    kind: Literal["report", "rule", "recipe", "table"] | None = None,
    options: Mapping[str, Any] | None = None,
    limit: int | None = None,
    step_time_ns: int | None = None,
) -> Envelope:
    """Answer a question about captures in the envelope that all answers share.

    Args:
        captures: A trace, a set of traces, the path of a capture, a folder of captures, or a pattern.
        question: ``why``, ``info``, the name of a report, rule, recipe or table, or the names of several reports or
            several rules.
        kind: Kind of what is asked for. By default, reports and rules come before recipes and tables of the same name.
        options: Values of options of a report, rule or recipe, by name.
        limit: Maximum number of rows of each table and rank, or None for all rows.
        step_time_ns: Duration of a step without the profiler in ns, for ``why``.

    Returns:
        The envelope: the captures, rows or an answer with evidence, how much of what was recorded it is about, and a
        status. A result without rows states why.

    Raises:
        UnknownFormatError: The question or an option does not exist.
        TracekitError: A file cannot be read.

    Examples:
        >>> import tracekit as tk
        >>> envelope = tk.answer("fixtures/train_amp.sqlite", "cuda_gpu_kern_sum", limit=1)
        >>> envelope.status, envelope.results[0].evidence[0].count
        ('answered', 4)
    """
    names = (question,) if isinstance(question, str) else tuple(question)
    with _open(captures) as traces, collect_warnings() as texts:
        if names == (WHY,):
            explained = traces.why(step_time_ns=step_time_ns)
            return Asked(WHY, names, traces, warnings=texts).wrap_answer(explained)
        if names == (INFO,):
            return _answer_info(traces, texts)
        chosen = kind or _find_kind(names[0])
        if chosen == RECIPE:
            return _answer_recipe(traces, names[0], options, limit, texts)
        if chosen == TABLE:
            frame = traces.frame(names[0]).collect()  # type: ignore[arg-type]
            return wrap_rows(
                Asked("rows", names, traces, limit=limit, warnings=texts), traces, frame, is_filtered=False
            )
        return _answer_reports(traces, names, options, limit, texts)


def answer_what_if(captures: Captures, edits: str | Iterable[str], *, step_time_ns: int | None = None) -> Envelope:
    """Predict how long a step would take after edits, in the envelope that all answers share.

    Args:
        captures: The captures, as for ``answer``.
        edits: One or several edits, as for ``Trace.what_if``.
        step_time_ns: Duration of a step without the profiler in ns.

    Raises:
        UnknownFormatError: A text is not an edit.
        TracekitError: A file cannot be read.
    """
    texts = (edits,) if isinstance(edits, str) else tuple(edits)
    with _open(captures) as traces, collect_warnings() as collected:
        predicted = traces.what_if(texts, step_time_ns=step_time_ns)
        return Asked("what-if", texts, traces, warnings=collected).wrap_answer(predicted)


def answer_diff(a: PathLike, b: PathLike, *, by: Sequence[str] | None = None, limit: int | None = None) -> Envelope:
    """Compare two captures, sets of captures or saved baselines, in the envelope that all answers share.

    Args:
        a: Path of the first side, as for ``diff``.
        b: Path of the second side.
        by: Kinds of rows to compare, as for ``diff``.
        limit: Maximum number of rows of each kind, or None for all rows.

    Raises:
        UnknownFormatError: A kind does not exist, or no reader recognizes a file.
        TracekitError: A file cannot be read.
    """
    from tracekit.sets.comparison import diff

    with collect_warnings() as texts:
        compared = diff(a, b, by=by)
        captures = [*describe_side(a, compared.a, "a"), *describe_side(b, compared.b, "b")]
        return wrap_diff(compared, captures, scope={}, limit=limit, warnings=texts)


def answer_check(
    baseline: PathLike | Sequence[PathLike],
    current: PathLike | Sequence[PathLike],
    *,
    fail_if: str | Sequence[str] = (),
    by: Sequence[str] | None = None,
    one_run: bool = False,
    history: PathLike | None = None,
    prediction: PathLike | None = None,
    cause: str | None = None,
    limit: int | None = None,
) -> Envelope:
    """Check whether several runs are slower than those of a baseline, in the envelope that all answers share.

    Args:
        baseline: Path of the runs of A, or several paths, as for ``check``.
        current: Path of the runs of B, or several paths, as for ``check``.
        fail_if: Conditions, as for ``check``.
        by: Kinds of rows to check beside the duration of a step, as for ``check``.
        one_run: Whether the captures of each folder or pattern are the ranks of one run.
        history: Folder in which the runs are kept, as for ``check``.
        prediction: JSON file with an answer of ``why`` or ``what-if``, as for ``check``.
        cause: Name of the cause that was cured, as for ``check``.
        limit: Maximum number of rows, or None for all rows.

    Raises:
        UnknownFormatError: A kind does not exist, a condition is invalid, or no reader recognizes a file.
        TracekitError: A file cannot be read.
    """
    from tracekit.answers.check import RunRecorder, wrap_check
    from tracekit.sets.check import GateKeeper, read_prediction
    from tracekit.sets.comparison import Summarizer
    from tracekit.sets.run_sources import RunReader

    gate = GateKeeper.create(
        by,
        [fail_if] if isinstance(fail_if, str) else fail_if,
        alpha=None,
        min_change=None,
        resolution=None,
        history=history,
        prediction=None if prediction is None else read_prediction(prediction, cause),
    )
    recorder = RunRecorder()
    with collect_warnings() as texts:
        reader = RunReader(Summarizer(gate.required_kinds), is_one_run=one_run, observe=recorder)
        before = reader.read(baseline)
        result = gate.check(before, reader.read(current))
    runs = recorder.runs
    return wrap_check(
        result, runs[: len(before)], runs[len(before) :], scope={"by": gate.kinds}, limit=limit, warnings=texts
    )


def _open(captures: Captures) -> AbstractContextManager[TraceOrSet]:
    return open_captures(captures) if isinstance(captures, str | os.PathLike) else nullcontext(captures)


def _answer_reports(
    traces: TraceOrSet,
    names: tuple[str, ...],
    options: Mapping[str, Any] | None,
    limit: int | None,
    texts: Sequence[str],
) -> Envelope:
    kinds = {parse_name(name, kinds=[RULE, REPORT])[0].kind for name in names}
    if len(kinds) > 1:
        raise TracekitError("reports and rules are answered separately", hint="ask for either reports or rules")
    command: Command = "analyze" if kinds == {RULE} else "stats"
    asked = Asked(command, names, traces, limit=limit, warnings=texts)
    return wrap_reports(asked, traces, compute_reports(traces, names, options))


def _find_kind(text: str) -> str:
    """Return the kind of what a text names: a report, a rule, a recipe or a table.

    Raises:
        UnknownFormatError: The text names nothing.
    """
    name = text.partition(":")[0]
    for kind in (RULE, REPORT, RECIPE):
        if find_analysis(kind, name) is not None:
            return kind
    if name in schemas.table_names():
        return TABLE
    known = [WHY, INFO, *list_names(REPORT), *list_names(RULE), *list_names(RECIPE), *schemas.table_names()]
    raise UnknownFormatError(f"unknown question {name!r}", hint=create_choices_hint("questions", known, name))


def _answer_recipe(
    traces: TraceOrSet, name: str, options: Mapping[str, Value] | None, limit: int | None, texts: Sequence[str]
) -> Envelope:
    from tracekit.sets import load_many, recipes

    declared, values = parse_name(name, options, [RECIPE])
    if isinstance(traces, Trace):
        if traces.path is None:
            raise TracekitError("recipes need captures in files", hint="export the trace, and pass the path")
        traces = load_many([traces.path])
    tables = recipes.run_recipe(traces, declared.name, declared.resolve_options(values))
    asked = Asked("recipe", (name,), traces, limit=limit, warnings=texts)
    return wrap_recipe(asked, declared.name, tables, [declared.results[0].name])


def _answer_info(traces: TraceOrSet, texts: Sequence[str]) -> Envelope:
    from tracekit.answers.info import collect_rows

    return wrap_info(Asked(INFO, (), traces, warnings=texts), collect_rows(traces))
