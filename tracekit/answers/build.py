"""Put results into the envelope, with what is known about the captures from which they were computed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from tracekit import schemas
from tracekit.answers.captures import describe_captures, sum_coverage
from tracekit.answers.envelope import ENVELOPE_VERSION, Envelope, Question, choose_status
from tracekit.answers.tables import DURATION_COLUMN, build_report, build_table
from tracekit.registry.analyses import METHOD, RECIPE, REPORT, RULE, get_analysis, parse_name
from tracekit.sets.notices import explain_missing_rows
from tracekit.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import polars as pl

    from tracekit.answers.captures import CaptureDescription
    from tracekit.answers.envelope import AnswerTable, Command
    from tracekit.answers.tables import Outcome
    from tracekit.core.compare import Diff
    from tracekit.core.diagnosis.answer import Answer, Status
    from tracekit.sets import TraceSet
    from tracekit.text.names import TableName

    TraceOrSet: TypeAlias = Trace | TraceSet

WHY_TABLES = (*schemas.list_tables("activity"), "api_calls", "nvtx_ranges", "syncs", "osrt_calls")
"""Tables from which the answers of ``why`` and ``what-if`` are computed first of all."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, and the captures that it is about.

    Attributes:
        command: Command that answers.
        names: Names of what was asked for.
        traces: The captures, without selections.
        scope: Restrictions of the question, by name of the option.
        limit: Maximum number of rows of each table and rank, or None for all rows.
        warnings: Warnings that were shown while the answer was computed.
    """

    command: Command
    names: tuple[str, ...]
    traces: TraceOrSet
    scope: Mapping[str, Any] = field(default_factory=dict)
    limit: int | None = None
    warnings: Sequence[str] = ()

    @property
    def question(self) -> Question:
        """The question in the form of the envelope."""
        return Question(self.command, self.names, dict(self.scope))

    def wrap_tables(self, results: Iterable[AnswerTable], tables: Iterable[str]) -> Envelope:
        """Return the envelope of an answer that consists of tables.

        Args:
            results: The tables of the answer.
            tables: The recorded tables from which they were computed.
        """
        results = tuple(results)
        status = choose_status([each.status for each in results])
        first = next((each for each in results if each.status == status), None)
        return self._wrap(
            tables,
            status=status,
            reason=None if first is None or status == "answered" else first.reason,
            hint=None if first is None or status == "answered" else first.hint,
            results=results,
        )

    def wrap_answer(self, answer: Answer) -> Envelope:
        """Return the envelope of the answer of ``why`` or ``what-if``."""
        unsure = answer.status not in ("answered", "nothing_found")
        return self._wrap(
            WHY_TABLES,
            status=answer.status,
            sentence=answer.sentence,
            reason=answer.sentence if unsure else None,
            answer=answer,
        )

    def _wrap(self, tables: Iterable[str], **parts: Any) -> Envelope:
        captures = describe_captures(self.traces)
        total = 1 if isinstance(self.traces, Trace) else len(self.traces)
        return create_envelope(self.question, captures, total, tables, self.warnings, **parts)


def wrap_reports(asked: Asked, selected: TraceOrSet, reports: Iterable[tuple[str, Outcome]]) -> Envelope:
    """Return the envelope of reports or rules.

    Args:
        asked: The question.
        selected: The captures with the selections of the question.
        reports: The name of each report with its rows, or with the error that states what was not recorded.
    """
    results = [build_report(selected, name, report, asked.limit) for name, report in reports]
    kinds = [parse_name(name, kinds=[RULE, REPORT])[0] for name in asked.names]
    return asked.wrap_tables(results, [table for analysis in kinds for table in analysis.tables])


def wrap_rows(asked: Asked, selected: TraceOrSet, frame: pl.DataFrame, *, is_filtered: bool) -> Envelope:
    """Return the envelope of the rows of one table.

    Args:
        asked: The question, which names the table.
        selected: The captures with the selections of the question.
        frame: The rows.
        is_filtered: Whether a condition selects the rows, so that it may be the reason why there are none.
    """
    table = cast("TableName", asked.names[0])
    absences = explain_missing_rows(selected, table) if frame.is_empty() else []
    result = build_table(
        table,
        table,
        frame if asked.limit is None else frame.head(asked.limit),
        [*selected.schema(table), DURATION_COLUMN],
        absences=absences,
        row_count=frame.height,
    )
    if is_filtered and result.status == "nothing_found":
        result = replace(result, reason="no row meets the condition", hint=None)
    return asked.wrap_tables([result], [table])


def wrap_recipe(asked: Asked, recipe: str, tables: Mapping[str, pl.DataFrame], names: Sequence[str]) -> Envelope:
    """Return the envelope of a recipe.

    Args:
        asked: The question.
        recipe: Name of the recipe.
        tables: The tables of the result, by name.
        names: Names of those that the answer contains, the main table first.
    """
    analysis = get_analysis(recipe, RECIPE)
    declared = {result.name: result for result in analysis.results}
    results = []
    for name in names:
        schema = f"{RECIPE}.{recipe}" + ("" if name == recipe else f".{name}")
        absences = explain_missing_rows(asked.traces, recipe) if tables[name].is_empty() else []
        rows = tables[name] if asked.limit is None else tables[name].head(asked.limit)
        columns = declared[name].columns if name in declared else ()
        results.append(build_table(name, schema, rows, columns, absences=absences, row_count=tables[name].height))
    return asked.wrap_tables(results, analysis.tables)


def wrap_info(asked: Asked, metadata: Mapping[str, Sequence[Mapping[str, Any]]]) -> Envelope:
    """Return the envelope of what a capture contains.

    Args:
        asked: The question.
        metadata: The rows of each table of the method ``info``, by name.
    """
    import polars as pl

    results = []
    for declared in get_analysis("info", METHOD).results:
        types = schemas.polars_schema(declared)
        rows = pl.DataFrame(list(metadata[declared.name]), schema=types, orient="row")
        results.append(build_table(declared.name, f"{METHOD}.info.{declared.name}", rows, declared.columns))
    return asked.wrap_tables(results, tuple(schemas.table_names()))


def wrap_diff(
    diff: Diff,
    captures: Sequence[CaptureDescription],
    *,
    scope: Mapping[str, Any],
    limit: int | None = None,
    warnings: Sequence[str] = (),
) -> Envelope:
    """Return the envelope of a comparison.

    Args:
        diff: The differences.
        captures: The captures of both sides, or the facts of baselines.
        scope: Restrictions of the question, by name of the option.
        limit: Maximum number of rows of each kind, or None for all rows.
        warnings: Warnings that were shown while the answer was computed.
    """
    declared = {result.name: result for result in get_analysis("diff", METHOD).results}
    results = []
    for kind in diff.kinds:
        frame = diff.frame(kind)
        rows = frame.head(limit) if limit else frame
        columns = declared[kind].columns
        table = build_table(kind, f"{METHOD}.diff.{kind}", rows, columns, row_count=frame.height)
        results.append(replace(table, reason=diff.explain_missing_rows(kind) or None) if frame.is_empty() else table)
    status = choose_status([each.status for each in results])
    is_changed = any((frame["status"] != "equal").any() for frame in diff.frames.values())
    is_untested = status == "answered" and is_changed and not diff.has_enough_iterations
    return create_envelope(
        Question("diff", diff.kinds, dict(scope)),
        captures,
        len(captures),
        WHY_TABLES,
        [*diff.notes, *warnings],
        status="unsure" if is_untested else status,
        sentence=diff.verdict,
        reason=diff.verdict if is_untested else None,
        results=tuple(results),
    )


def create_envelope(
    question: Question,
    captures: Sequence[CaptureDescription],
    total: int,
    tables: Iterable[str],
    warnings: Sequence[str],
    *,
    status: Status,
    sentence: str | None = None,
    reason: str | None = None,
    hint: str | None = None,
    results: tuple[AnswerTable, ...] = (),
    answer: Answer | None = None,
) -> Envelope:
    """Return an envelope with what is known about captures.

    Args:
        question: What was asked.
        captures: The captures that could be read.
        total: Number of captures.
        tables: The recorded tables from which the answer was computed.
        warnings: Warnings that were shown while the answer was computed.
        status: Whether there is an answer, and otherwise why not.
        sentence: The answer in one or two sentences.
        reason: Why there is no answer, or why it is unsure.
        hint: What to do.
        results: Tables of rows.
        answer: The answer as an object.
    """
    return Envelope(
        ENVELOPE_VERSION,
        schemas.SCHEMA_VERSION,
        "tracekit",
        version("tracekit"),
        question,
        tuple(each.facts for each in captures),
        status,
        sentence,
        reason,
        hint,
        results,
        answer,
        sum_coverage(captures, total, tables),
        _merge_warnings(captures, warnings),
    )


def _merge_warnings(captures: Sequence[CaptureDescription], others: Sequence[str]) -> tuple[str, ...]:
    """Return the warnings of the profiler and of tracekit, each of them once."""
    recorded = (warning for each in captures for warning in each.warnings)
    return tuple(dict.fromkeys([*recorded, *others]))
