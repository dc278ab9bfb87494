"""Build the tables of an answer from reports, recipes, differences and tables of captures."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias, cast

import polars as pl

from tracekit.answers.envelope import AnswerColumn, AnswerTable, RowIds
from tracekit.answers.evidence import find_row_ids
from tracekit.errors import MissingTableError
from tracekit.registry.absence import Absence, State
from tracekit.registry.analyses import REPORT, RULE, parse_name
from tracekit.sets.frames import RANK
from tracekit.sets.notices import explain_missing_rows
from tracekit.sets.reports import RankedReport
from tracekit.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from tracekit.answers.envelope import Value
    from tracekit.answers.evidence import Scan
    from tracekit.core.diagnosis.answer import Status
    from tracekit.core.reports import ReportTable
    from tracekit.registry.analyses import Analysis
    from tracekit.schemas import Column
    from tracekit.sets import TraceSet

    TraceOrSet: TypeAlias = Trace | TraceSet
    AnyReport: TypeAlias = ReportTable | RankedReport
    Outcome: TypeAlias = AnyReport | MissingTableError

RANK_COLUMN = AnswerColumn(RANK, "int64", None, "Rank of the capture.")
DURATION_COLUMN = AnswerColumn("duration_ns", "int64", "ns", "End minus start.")
_STATUSES: dict[State, Status] = {
    State.NOT_APPLICABLE: "not_applicable",
    State.NOT_DECODED: "unsure",
    State.NOT_RECORDED: "not_recorded",
    State.NOT_SELECTED: "nothing_found",
    State.NOTHING_FOUND: "nothing_found",
}
_ANSWERED: Status = "answered"
_TYPES = {"Boolean": "bool", "Float64": "float64", "Int32": "int32", "Int64": "int64"}


def build_table(
    name: str,
    schema: str,
    frame: pl.DataFrame,
    declared: Iterable[Column | AnswerColumn],
    *,
    absences: Sequence[Absence] = (),
    row_count: int | None = None,
    evidence: Sequence[RowIds | None] = (),
) -> AnswerTable:
    """Return the table of an answer.

    Args:
        name: What was asked for.
        schema: Name of the declaration of a row.
        frame: The rows.
        declared: The declared columns, in any order. Others are described by their type alone.
        absences: Why there are no rows, if there are none.
        row_count: Number of all rows, if ``frame`` contains only the first.
        evidence: The recorded rows that belong to each row.
    """
    columns_by_name = {column.name: column for column in declared}
    columns = tuple(
        AnswerColumn(c.name, _simplify_type(c.type), c.unit, c.doc)
        if (c := columns_by_name.get(column)) is not None
        else AnswerColumn(column, _TYPES.get(str(kind), "string"), None, "")
        for column, kind in frame.schema.items()
    )
    rows = _list_rows(frame)
    status, reason, hint = _explain(absences) if not rows else (_ANSWERED, None, None)
    count = frame.height if row_count is None else row_count
    return AnswerTable(name, schema, status, reason, hint, columns, rows, count, tuple(evidence))


def compute_reports(
    traces: TraceOrSet, names: Iterable[str], options: Mapping[str, Any] | None = None
) -> Iterator[tuple[str, Outcome]]:
    """Yield the name of each report or rule with its rows, or with the error that states what was not recorded."""
    for name in names:
        try:
            yield name, traces.report(name, options=options)  # type: ignore[arg-type]
        except MissingTableError as error:
            yield name, error


def build_report(traces: TraceOrSet, name: str, report: Outcome, limit: int | None) -> AnswerTable:
    """Return the rows of a report or rule, at most ``limit`` of each rank, as the table of an answer.

    If the report is an error, the table has no rows and states what was not recorded.
    """
    analysis, _ = parse_name(name, kinds=[RULE, REPORT])
    if isinstance(report, MissingTableError):
        absence = Absence(State.NOT_RECORDED, report.message, report.hint)
        rows = pl.DataFrame(schema=_list_types(analysis.columns))
        return build_table(name, _get_key(analysis), rows, analysis.columns, absences=[absence])
    limited = report if not limit else _limit(report, limit)
    parts = limited.parts if isinstance(limited, RankedReport) else ((None, limited),)
    evidence = [ids for rank, part in parts for ids in _find_evidence(traces, analysis, part.data, rank)]
    columns: list[Column | AnswerColumn] = [*(parts[0][1].columns if parts else analysis.columns)]
    return build_table(
        name,
        _get_key(analysis),
        limited.frame(),
        [RANK_COLUMN, *columns] if isinstance(report, RankedReport) else columns,
        absences=explain_missing_rows(traces, name) if not report.rows else (),
        row_count=report.rows,
        evidence=evidence if any(evidence) else (),
    )


def _get_key(analysis: Analysis) -> str:
    """Return the name of the declaration of the main table, as ``tracekit schema`` takes it."""
    return f"{analysis.kind}.{analysis.name}"


def _list_types(columns: Iterable[Column]) -> dict[str, type[pl.DataType]]:
    kinds = {kind: getattr(pl, name) for name, kind in _TYPES.items()}
    return {column.name: kinds.get(column.type, pl.String) for column in columns}


def _limit(report: AnyReport, limit: int) -> AnyReport:
    if isinstance(report, RankedReport):
        return report.limit_rows_per_rank(limit)
    return replace(report, data=report.data.head(limit))


def _find_evidence(traces: TraceOrSet, analysis: Analysis, rows: pl.DataFrame, rank: int | None) -> list[RowIds | None]:
    """Return the recorded rows that belong to each row of a report of one capture."""
    if not analysis.evidence or rows.is_empty():
        return [None] * rows.height
    if isinstance(traces, Trace):
        return find_row_ids(cast("Scan", traces.frame), rows, analysis.evidence)
    with traces.open(cast("int", rank)) as trace:
        return find_row_ids(cast("Scan", trace.frame), rows, analysis.evidence, rank)


def _explain(absences: Sequence[Absence]) -> tuple[Status, str | None, str | None]:
    """Return the status of a table without rows, why there are none, and what to do."""
    if not absences:
        return "nothing_found", "there are none", None
    hints = list(dict.fromkeys(each.hint for each in absences if each.hint))
    reasons = list(dict.fromkeys(each.reason for each in absences))
    states = [each.state for each in absences]
    first = next((s for s in (State.NOTHING_FOUND, State.NOT_SELECTED, State.NOT_DECODED) if s in states), states[0])
    return _STATUSES[first], "; ".join(reasons), "; ".join(hints) or None


def _list_rows(frame: pl.DataFrame) -> tuple[tuple[Value, ...], ...]:
    """Return the rows as values that JSON has: no NaN, no infinity, and bytes as hexadecimal digits."""
    exprs = [
        pl.col(name).cast(pl.String).alias(name)
        if isinstance(kind, (pl.Categorical, pl.Enum))
        else pl.col(name).bin.encode("hex")
        if kind == pl.Binary
        else pl.when(pl.col(name).is_finite()).then(pl.col(name)).alias(name)
        if kind.is_float()
        else pl.col(name)
        for name, kind in frame.schema.items()
    ]
    rows = frame.select(exprs).rows()
    if not any(isinstance(kind, pl.List) for kind in frame.schema.values()):
        return tuple(rows)
    return tuple(tuple(tuple(v) if isinstance(v, list) else v for v in row) for row in rows)


def _simplify_type(kind: str) -> str:
    """Return the type of the values of a column, of which JSON keeps no encoding."""
    return "string" if kind in ("dictionary", "binary") else kind
