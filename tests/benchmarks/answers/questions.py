"""The questions of the benchmark of answers, and the causes that answers may name.

``questions.jsonl`` has one line per capture, or per set of captures of one job. A new capture needs one line. Its form
is ``questions.schema.json``.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.generate import why_schema
from tests.why_truth import Illness

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = Path(__file__).parent
FILE = FOLDER / "questions.jsonl"
ROOT = FOLDER.parents[2]
ROOTS = (ROOT / "fixtures", ROOT.parent / "shared" / "captures", *map(Path, os.environ.get("CAPTURES", "").split(":")))
"""Folders in which captures lie."""

SCHEMA = 1
KINDS = ("cause", "place", "saving", "together", "refusal")
"""What is scored: whether the cause, its place, its saving, the saving of all causes, or a refusal is right."""


@dataclass(frozen=True)
class TruePlace:
    """Where a cause is: in one of the ranges, or one of the kernels, and on a rank.

    Attributes:
        ranges: Names of ranges. Each of them is right.
        kernels: Patterns of names of kernels. Each of them is right.
        rank: The rank, or None if every rank has the cause, or there is one rank only.
    """

    ranges: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    rank: int | None = None


@dataclass(frozen=True)
class Question:
    """A question about a capture with a known answer.

    Attributes:
        id: Name of the program, and the kind of capture.
        captures: Path of the capture, or of those of all ranks, relative to one of ``ROOTS``.
        text: The question.
        kinds: What is scored, some of ``KINDS``.
        statuses: Statuses that are right.
        illnesses: The causes, the one that costs most first, with names that are right, and savings.
        place: Where the first cause is.
        together: What curing all causes saved, as a share of a step.
        anywhere: Whether the cause may be at any position of an answer.
        tolerance: Largest error of a saving that is right.
        seen: ``rules``, ``tests`` or ``never``: how tracekit's development used the capture.
        source: Where the truth comes from.
    """

    id: str
    captures: tuple[str, ...]
    text: str
    kinds: tuple[str, ...]
    statuses: tuple[str, ...]
    illnesses: tuple[Illness, ...]
    place: TruePlace | None
    together: float | None
    anywhere: bool
    tolerance: float
    seen: str
    source: str

    @property
    def form(self) -> str:
        """The kind of capture, such as ``nsys`` or ``pytorch``."""
        return self.id.partition("/")[2]

    @property
    def is_unknowable(self) -> bool:
        """Whether the capture has a cause that it does not show."""
        return "refusal" in self.kinds and bool(self.illnesses)

    def find_captures(self) -> tuple[Path, ...] | None:
        """Return the paths of the captures, or None if one of them is not on this machine."""
        paths = []
        for capture in self.captures:
            path = next((root / capture for root in ROOTS if (root / capture).exists()), None)
            if path is None:
                return None
            paths.append(path)
        return tuple(paths)


def read_questions(file: Path = FILE) -> dict[str, Question]:
    """Return the questions in a file by id.

    Raises:
        ValueError: A line contradicts the schema, or an id occurs twice.
    """
    questions: dict[str, Question] = {}
    for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        row = json.loads(line)
        errors = find_errors(row, FOLDER / "questions.schema.json")
        if row.get("id") in questions:
            errors.append(f"the id {row['id']!r} occurs twice")
        if errors:
            raise ValueError(f"{file.name}, line {number}: {'; '.join(errors)}")
        questions[row["id"]] = _build_question(row)
    return questions


def _build_question(row: Mapping[str, Any]) -> Question:
    truth = row["truth"]
    place = truth.get("place")
    return Question(
        row["id"],
        tuple(row["captures"]),
        row["question"],
        tuple(row["kinds"]),
        tuple(truth["statuses"]),
        tuple(_build_illness(illness) for illness in truth.get("illnesses", ())),
        None
        if place is None
        else TruePlace(tuple(place.get("ranges", ())), tuple(place.get("kernels", ())), place.get("rank")),
        truth.get("together"),
        truth.get("position") == "any",
        row["tolerance"],
        row["seen"],
        row["source"],
    )


def _build_illness(illness: Mapping[str, Any]) -> Illness:
    saving = illness.get("saving", {"likely": 0.0, "low": 0.0, "high": 1.0})
    return Illness(tuple(illness["causes"]), saving["likely"], saving["low"], saving["high"])


def find_errors(value: Any, schema_file: Path) -> list[str]:
    """Return what in a value contradicts the JSON Schema in a file."""
    schema: dict[str, Any] = json.loads(schema_file.read_text("utf-8"))
    return why_schema.find_errors(value, schema, schema["$defs"])


@cache
def read_causes() -> dict[str, Any]:
    """Return the published list of causes: their classes, tables and synonyms."""
    causes: dict[str, Any] = json.loads((FOLDER / "causes.json").read_text("utf-8"))
    return causes


@cache
def _names() -> dict[str, str]:
    """Return the name of the cause for each name and synonym."""
    causes = read_causes()["causes"]
    synonyms = {synonym: name for name, cause in causes.items() for synonym in cause["synonyms"]}
    return synonyms | {name: name for name in causes} | {name.replace("_", " "): name for name in causes}


def get_name(cause: str) -> str | None:
    """Return the name of the cause that a name or synonym means, or None if the list does not have it."""
    return _names().get(cause.strip().casefold())


def get_classes(cause: str) -> tuple[str, ...]:
    """Return the classes to which a cause belongs."""
    return tuple(read_causes()["causes"][cause]["classes"])


def get_tables(cause: str) -> tuple[str, ...]:
    """Return the tables whose rows can be evidence of a cause."""
    return tuple(read_causes()["causes"][cause]["tables"])


def get_class_tables(kind: str) -> tuple[str, ...]:
    """Return the tables whose rows can be evidence of any cause of a class."""
    causes = read_causes()["causes"].values()
    return tuple(sorted({table for cause in causes if kind in cause["classes"] for table in cause["tables"]}))
