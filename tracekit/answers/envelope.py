"""The envelope that all answers share: what was asked of which captures, the answer with its evidence, and its limits.

``to_dict`` and ``from_dict`` convert an envelope to JSON values and back. ``schemas/answer.json`` is its JSON Schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from tracekit.core.diagnosis.answer import Answer, Status  # noqa: TC001 - the types of fields are read at run time
from tracekit.errors import SchemaError
from tracekit.schemas.objects import build_object, fields_to_json, to_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

ENVELOPE_VERSION = 2
"""Version of the envelope. Version 1 is the object that ``why --format json`` prints."""

Value: TypeAlias = bool | int | float | str | tuple[int, ...] | None
Command: TypeAlias = Literal["analyze", "check", "diff", "info", "recipe", "rows", "stats", "what-if", "why"]
_POLARS_TYPES = {"int64": "Int64", "int32": "Int32", "float64": "Float64", "bool": "Boolean", "uint64": "UInt64"}


@dataclass(frozen=True, slots=True)
class StepCoverage:
    """What is known about the steps of a capture.

    Attributes:
        name: Name of the range that delimits steps, or None if no range does.
        count: Number of steady steps.
        warm_up: Number of steps of the warm-up, which are left out.
        covered: Share of the GPU time of the capture that lies in steps, from 0 to 1, or None if it is unknown.
    """

    name: str | None
    count: int
    warm_up: int
    covered: float | None


@dataclass(frozen=True, slots=True)
class CaptureFacts:
    """A capture that was read for an answer.

    Attributes:
        path: Path or URL, as it was named, without secrets.
        format: Name of the format.
        content_id: Id of the content, to which the ids of rows belong, or None if the content was not hashed.
        profiler: Name of the profiler, or None if it is unknown.
        profiler_version: Version of the profiler, or None if it is unknown.
        devices: Names of the GPUs.
        rank: Rank, or None if the capture is not one of several.
        side: Side of a comparison: ``a`` or ``b``, or None.
        steps: What is known about the steps, or None if the capture has none.
    """

    path: str
    format: str
    content_id: str | None
    profiler: str | None
    profiler_version: str | None
    devices: tuple[str, ...]
    rank: int | None = None
    side: Literal["a", "b"] | None = None
    steps: StepCoverage | None = None


@dataclass(frozen=True, slots=True)
class AnswerColumn:
    """A column of the rows of an answer.

    Attributes:
        name: Name of the column.
        type: Type of the values, such as ``int64``, ``float64`` or ``string``.
        unit: Unit of the values, or None.
        doc: Meaning of the values.
    """

    name: str
    type: str
    unit: str | None
    doc: str


@dataclass(frozen=True, slots=True)
class RowIds:
    """Rows of a recorded table that belong to a row of an answer, which ``tracekit rows`` prints.

    Attributes:
        table: Table of the rows.
        column: Column with the ids.
        ids: Ids of the first rows.
        count: Number of all rows.
        rank: Rank of the capture with the rows, or None if there is only one.
    """

    table: str
    column: str
    ids: tuple[int, ...]
    count: int
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class AnswerTable:
    """Rows of an answer.

    Attributes:
        name: What was asked for, such as the name of a report with its options.
        schema: Name of the declaration of a row, as ``tracekit schema`` takes it.
        status: Whether there are rows, and otherwise why not.
        reason: Why there are no rows, as a clause, or None.
        hint: What to do, such as the option that records what is missing, or None.
        columns: The columns.
        rows: The values of each row, in the order of ``columns``.
        row_count: Number of all rows, of which ``rows`` may be the first.
        evidence: The recorded rows that belong to each row, or None for a row whose recorded rows are not known.
    """

    name: str
    schema: str
    status: Status
    reason: str | None
    hint: str | None
    columns: tuple[AnswerColumn, ...]
    rows: tuple[tuple[Value, ...], ...]
    row_count: int
    evidence: tuple[RowIds | None, ...] = ()

    def frame(self) -> pl.DataFrame:
        """Return the rows as a DataFrame with one column per column of the answer."""
        import polars as pl

        kinds = {
            c.name: pl.List(pl.Int64) if c.type == "list<int64>" else getattr(pl, _POLARS_TYPES.get(c.type, "String"))
            for c in self.columns
        }
        return pl.DataFrame(list(self.rows), schema=kinds, orient="row", strict=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the table as a dictionary for JSON, in which each row is an object."""
        names = [column.name for column in self.columns]
        return {**fields_to_json(self), "rows": [dict(zip(names, map(to_json, row), strict=True)) for row in self.rows]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> AnswerTable:
        """Return the table whose dictionary is given.

        Raises:
            SchemaError: The dictionary is not that of a table.
        """
        try:
            names = [column["name"] for column in values["columns"]]
            rows = tuple(tuple(_freeze(row[name]) for name in names) for row in values["rows"])
        except (KeyError, TypeError) as error:
            raise SchemaError("a row of an answer lacks a column") from error
        return build_object(cls, values, rows=rows)


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of what was recorded an answer is about.

    Attributes:
        captures: Number of captures.
        captures_read: Number of captures that could be read.
        tables: Number of recorded rows of each table from which the answer was computed.
        undecoded: Number of recorded events that no table contains, by class of event.
    """

    captures: int
    captures_read: int
    tables: Mapping[str, int]
    undecoded: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked.

    Attributes:
        command: Command that answers the question.
        names: Names of what was asked for, such as reports or a table.
        scope: Restrictions of the question, such as a time window, by name of the option.
    """

    command: Command
    names: tuple[str, ...]
    scope: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Envelope:
    """An answer in the form that all commands share.

    Attributes:
        schema: Version of the envelope.
        table_schema: Version of the declarations of tables, which ``tracekit schema`` prints.
        tool: Name of the program that answers.
        tool_version: Version of this program.
        question: What was asked.
        inputs: The captures that were read.
        status: ``answered``; ``nothing_found`` if the data was recorded, but nothing of this kind occurred;
            ``not_recorded``; ``not_applicable`` if captures of this kind cannot contain the data; ``unsure`` if the
            answer cannot be trusted.
        sentence: The answer in one or two sentences, or None if it consists of rows.
        reason: Why there is no answer, or why it is unsure, or None.
        hint: What to do, such as the option that records what is missing, or None.
        results: Tables of rows.
        answer: The answer of ``why``, ``what-if`` or ``check``, or None.
        coverage: How much of what was recorded the answer is about.
        warnings: Warnings about the captures.
    """

    schema: int
    table_schema: int
    tool: str
    tool_version: str
    question: Question
    inputs: tuple[CaptureFacts, ...]
    status: Status
    sentence: str | None
    reason: str | None
    hint: str | None
    results: tuple[AnswerTable, ...]
    answer: Answer | None
    coverage: Coverage
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the envelope as a dictionary for JSON, which ``schemas/answer.json`` describes."""
        return fields_to_json(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Envelope:
        """Return the envelope whose dictionary is given.

        Args:
            values: What ``to_dict`` returns, also after it was written as JSON and read.

        Raises:
            SchemaError: The dictionary is not that of an envelope of this version.
        """
        if not isinstance(values, Mapping) or values.get("schema") != ENVELOPE_VERSION:
            version = values.get("schema") if isinstance(values, Mapping) else None
            hint = f"this tracekit reads version {ENVELOPE_VERSION}: use the version of tracekit that wrote it"
            raise SchemaError(
                f"the object is not an envelope of version {ENVELOPE_VERSION}, but {version!r}", hint=hint
            )
        command = build_object(Question, values.get("question")).command
        return build_object(cls, values, answer=_build_answer(command, values.get("answer")))


def list_answer_classes() -> dict[str, type[Answer]]:
    """Return the classes of answers that are objects, by name of the command."""
    from tracekit.core.check import Check
    from tracekit.core.diagnosis import WhatIf, Why

    return {"why": Why, "what-if": WhatIf, "check": Check}


def _build_answer(command: str, values: Any) -> Answer | None:
    """Return the typed answer of a command, given its dictionary, or None if the command answers with rows."""
    if values is None:
        return None
    classes = list_answer_classes()
    if command not in classes:
        raise SchemaError(f"the command {command!r} has no answer that is an object")
    return classes[command].from_dict(values)


def _freeze(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def choose_status(statuses: Sequence[Status]) -> Status:
    """Return the status of an answer that consists of several parts: answered if any part is answered."""
    order: tuple[Status, ...] = ("answered", "unsure", "not_recorded", "nothing_found", "not_applicable")
    return min(statuses, key=order.index, default="nothing_found")
