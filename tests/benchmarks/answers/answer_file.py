"""The answers of a tool in the form of ``answers.schema.json``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.benchmarks.answers import questions

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SCHEMA_FILE = questions.FOLDER / "answers.schema.json"


@dataclass(frozen=True)
class Interval:
    """A predicted saving as a share of a step. Without an interval, ``low`` and ``high`` are None."""

    likely: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Claim:
    """A cause that an answer names.

    Attributes:
        cause: Name of the cause, or None if only its class is stated.
        classes: Classes of the cause.
        is_sure: Whether it is stated without doubt.
        ranges: Ranges of the program in which it occurs.
        kernels: Names of its kernels.
        rank: Its rank.
        windows: Intervals of time in which it occurs, in ns since the origin of the trace.
        saving: What its cure is predicted to save.
        evidence: Rows of tables, as pairs of a table and ids.
    """

    cause: str | None
    classes: tuple[str, ...]
    is_sure: bool = True
    ranges: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    rank: int | None = None
    windows: tuple[tuple[int, int], ...] = ()
    saving: Interval | None = None
    evidence: tuple[tuple[str, tuple[int, ...]], ...] = ()


@dataclass(frozen=True)
class Answer:
    """The answer to one question: a status, and causes, the most expensive one first."""

    status: str
    claims: tuple[Claim, ...] = ()
    together: float | None = None


@dataclass(frozen=True)
class AnswerFile:
    """The answers of one tool, by the id of the question."""

    name: str
    version: str
    provenance: Mapping[str, Any]
    answers: Mapping[str, Answer]


def read_answers(file: Path) -> AnswerFile:
    """Return the answers in a file.

    Raises:
        ValueError: The file contradicts the schema, answers a question twice, or names a cause that is not in the list.
    """
    try:
        content = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{file.name} is not JSON: {error}") from None
    errors = questions.find_errors(content, SCHEMA_FILE)
    if errors:
        raise ValueError(f"{file.name} contradicts answers.schema.json: {'; '.join(errors[:5])}")
    return build_answers(content, file.name)


def build_answers(content: Mapping[str, Any], name: str) -> AnswerFile:
    """Return the answers in a valid JSON object, whose file has a name."""
    answers: dict[str, Answer] = {}
    for row in content["answers"]:
        if row["question"] in answers:
            raise ValueError(f"{name} answers the question {row['question']!r} twice")
        claims = tuple(_build_claim(claim, f"{name}, question {row['question']!r}") for claim in row.get("causes", ()))
        answers[row["question"]] = Answer(row["status"], claims, row.get("together"))
    return AnswerFile(content["tool"]["name"], content["tool"]["version"], content["provenance"], answers)


def _build_claim(row: Mapping[str, Any], origin: str) -> Claim:
    cause = questions.get_name(row["cause"]) if "cause" in row else None
    if "cause" in row and cause is None:
        raise ValueError(f"{origin}: {row['cause']!r} is not in causes.json")
    if cause is None and "class" not in row:
        raise ValueError(f"{origin}: a claim has neither a cause nor a class")
    place, saving = row.get("place", {}), row.get("saving")
    return Claim(
        cause,
        (row["class"],) if cause is None else questions.get_classes(cause),
        row.get("status", "answered") == "answered",
        tuple(place.get("ranges", ())),
        tuple(place.get("kernels", ())),
        place.get("rank"),
        tuple((window["start_ns"], window["end_ns"]) for window in place.get("windows", ())),
        None if saving is None else Interval(saving["likely"], saving.get("low"), saving.get("high")),
        tuple((rows["table"], tuple(rows["ids"])) for rows in row.get("evidence", ())),
    )
