"""Score answers: what is right, what is wrong, and what a tool leaves open.

Each question gives one mark per kind. A mark is ``right``, ``wrong``, ``abstained`` (the tool names nothing) or
``not_run`` (the tool cannot read the capture, or there is no answer). docs/answers.md states the rules.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Protocol

from tests.benchmarks.answers import questions
from tests.why_truth import HEALTHY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tests.benchmarks.answers.answer_file import Answer, AnswerFile, Claim
    from tests.benchmarks.answers.questions import Question
    from tests.why_truth import Illness

MISS = 20.0
"""Weight of a miss in the score of an interval: 2 / 0.1, for intervals that should miss one saving in ten."""

LISTED = 5
"""Number of causes, and of kernels of a cause, that count as the answer; further ones are left out."""


class Capture(Protocol):
    """What is looked up in a capture: rows, and the time of ranges."""

    def count_missing(self, table: str, ids: Iterable[int], /) -> int:
        """Return how many ids a table lacks."""

    def measure_overlap(self, windows: Iterable[tuple[int, int]], ranges: Iterable[str], /) -> float:
        """Return the share of some intervals of time that lies in ranges with one of some names."""


@dataclass(frozen=True)
class Mark:
    """The mark for one kind of a question.

    Attributes:
        question: Id of the question.
        kind: What is scored.
        outcome: ``right``, ``wrong``, ``abstained`` or ``not_run``.
        figures: Further figures: for a cause ``listed`` and ``class``, for a saving ``error``, ``covered`` and
            ``interval_score``, for a refusal ``silent`` and ``alarm``, for evidence ``claims``, ``resolved`` and
            ``grounded``.
    """

    question: str
    kind: str
    outcome: str
    figures: Mapping[str, float] = field(default_factory=dict)


def score(
    asked: Mapping[str, Question], answers: AnswerFile, captures: Mapping[str, Capture] | None = None
) -> list[Mark]:
    """Return the marks of a tool, in the order of the questions.

    Args:
        asked: The questions by id.
        answers: The answers of the tool.
        captures: Captures by id of the question. Evidence is looked up in them, and times are compared with ranges.

    Raises:
        ValueError: An answer belongs to none of the questions.
    """
    unknown = [name for name in answers.answers if name not in asked]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not the id of a question")
    marks: list[Mark] = []
    for question in asked.values():
        answer = answers.answers.get(question.id)
        capture = (captures or {}).get(question.id)
        if answer is None or answer.status == "not_run":
            marks += [Mark(question.id, kind, "not_run") for kind in question.kinds]
            continue
        marks += [_score_kind(kind, question, answer, capture) for kind in question.kinds]
        if "cause" in question.kinds and capture is not None:
            marks += _score_evidence(question, answer, capture)
    return marks


def _score_kind(kind: str, question: Question, answer: Answer, capture: Capture | None) -> Mark:
    claims = answer.claims[:LISTED]
    match kind:
        case "cause":
            return _score_cause(question, claims)
        case "place":
            return _score_place(question, claims, capture)
        case "saving":
            return _score_saving(question, claims)
        case "together":
            return _score_together(question, answer)
        case _:
            return _score_refusal(question, answer)


def _score_cause(question: Question, claims: tuple[Claim, ...]) -> Mark:
    """The first claim has to name the first cause. A claim with doubt, or of a class only, names no cause."""
    illness = question.illnesses[0]
    names = [claim.cause in illness.causes for claim in claims]
    first = any(names) if question.anywhere else names[:1] == [True] and claims[0].is_sure
    figures = {"listed": float(any(names)), "class": float(bool(claims) and _shares_class(claims[0], illness))}
    named = [claim for claim in claims if claim.cause is not None and claim.is_sure]
    outcome = "right" if first else "wrong" if named else "abstained"
    return Mark(question.id, "cause", outcome, figures)


def _shares_class(claim: Claim, illness: Illness) -> bool:
    return any(kind in claim.classes for cause in illness.causes for kind in questions.get_classes(cause))


def find_claim(claims: tuple[Claim, ...], illness: Illness) -> Claim | None:
    """Return the first claim that names a cause, or else the first one that states its class only, or None."""
    exact = (claim for claim in claims if claim.cause in illness.causes)
    coarse = (claim for claim in claims if claim.cause is None and _shares_class(claim, illness))
    return next(exact, None) or next(coarse, None)


def _score_place(question: Question, claims: tuple[Claim, ...], capture: Capture | None) -> Mark:
    """The claim that names the cause has to name one of its places, and its rank, if only one rank has it."""
    place, claim = question.place, find_claim(claims, question.illnesses[0])
    if place is None or claim is None:
        return Mark(question.id, "place", "abstained")
    if place.rank is not None and claim.rank != place.rank:
        return Mark(question.id, "place", "abstained" if claim.rank is None else "wrong")
    judged = [name in place.ranges for name in claim.ranges[:1]]
    if claim.kernels and place.kernels:
        names = claim.kernels[:LISTED]
        judged.append(any(fnmatchcase(name, pattern) for name in names for pattern in place.kernels))
    if claim.windows and place.ranges and capture is not None:
        judged.append(capture.measure_overlap(claim.windows, place.ranges) >= 0.5)
    outcome = "abstained" if not judged else "right" if any(judged) else "wrong"
    return Mark(question.id, "place", outcome)


def _score_saving(question: Question, claims: tuple[Claim, ...]) -> Mark:
    """The saving of the first cause has to be within the tolerance. The figures are means over all causes."""
    savings = [(i, claim.saving if (claim := find_claim(claims, i)) else None) for i in question.illnesses]
    figures = [_measure(illness, saving) for illness, saving in savings if saving is not None]
    if savings[0][1] is None:
        return Mark(question.id, "saving", "abstained", {"missed": float(len(savings) - len(figures))})
    outcome = "right" if abs(savings[0][1].likely - savings[0][0].saving) <= question.tolerance else "wrong"
    means = {
        name: statistics.fmean(f[name] for f in figures if name in f)
        for name in sorted({n for f in figures for n in f})
    }
    return Mark(question.id, "saving", outcome, means | {"missed": float(len(savings) - len(figures))})


def _measure(illness: Illness, saving: Any) -> dict[str, float]:
    """Return the error of a saving, and for an interval whether it covers a run, its width and its score."""
    figures = {"error": abs(saving.likely - illness.saving)}
    if saving.low is not None and saving.high is not None:
        missed = max(illness.low - saving.high, saving.low - illness.high, 0.0)
        figures["covered"] = float(illness.is_covered(saving.low, saving.high))
        figures["width"] = saving.high - saving.low
        figures["interval_score"] = saving.high - saving.low + MISS * missed
    return figures


def _score_together(question: Question, answer: Answer) -> Mark:
    if answer.together is None or question.together is None:
        return Mark(question.id, "together", "abstained")
    error = abs(answer.together - question.together)
    return Mark(question.id, "together", "right" if error <= question.tolerance else "wrong", {"error": error})


def _score_refusal(question: Question, answer: Answer) -> Mark:
    """The status has to be right. Where a cause is unknowable, its name or doubt is right, too."""
    alarms = [claim for claim in answer.claims[:LISTED] if is_alarm(claim)]
    first = answer.claims[0] if answer.claims else None
    if question.is_unknowable:
        causes = question.illnesses[0].causes
        is_right = answer.status in question.statuses or (
            first is not None and (not first.is_sure or first.cause in causes)
        )
    else:
        is_right = answer.status in question.statuses and not alarms
    figures = {"silent": float(not alarms), "alarm": float(bool(alarms) and not is_right)}
    return Mark(question.id, "refusal", "right" if is_right else "wrong", figures)


def is_alarm(claim: Claim) -> bool:
    """Return whether a claim says that something is wrong and worth a change.

    A statement that kernels take most of the time, or what limits them, is none. Neither is doubt, nor a saving that is
    too small to matter.
    """
    if not claim.is_sure or (claim.saving is not None and claim.saving.likely < HEALTHY):
        return False
    return (
        claim.classes != ("compute",) if claim.cause is None else claim.cause not in questions.read_causes()["healthy"]
    )


def _score_evidence(question: Question, answer: Answer, capture: Capture) -> Iterator[Mark]:
    """Yield the mark for the first claim with rows: all have to exist, in tables that can show its cause or class."""
    claim = next((c for c in answer.claims if c.evidence and c.is_sure), None)
    if claim is None:
        yield Mark(question.id, "evidence", "abstained")
        return
    resolved = all(ids and not capture.count_missing(table, ids) for table, ids in claim.evidence)
    tables = (
        questions.get_tables(claim.cause) if claim.cause is not None else questions.get_class_tables(claim.classes[0])
    )
    grounded = all(table in tables for table, _ in claim.evidence)
    figures = {"resolved": float(resolved), "grounded": float(grounded)}
    yield Mark(question.id, "evidence", "right" if resolved and grounded else "wrong", figures)


def summarize(marks: Iterable[Mark]) -> dict[str, dict[str, float]]:
    """Return for each kind how often each outcome occurred, and the figures: sums, or medians of errors and widths."""
    listed = list(marks)
    summary: dict[str, dict[str, float]] = {}
    for kind in (*questions.KINDS, "evidence"):
        chosen = [mark for mark in listed if mark.kind == kind]
        if not chosen:
            continue
        counts = {
            outcome: float(sum(mark.outcome == outcome for mark in chosen))
            for outcome in ("right", "wrong", "abstained", "not_run")
        }
        names = sorted({name for mark in chosen for name in mark.figures})
        figures = {name: [mark.figures[name] for mark in chosen if name in mark.figures] for name in names}
        summary[kind] = counts | {name: _reduce(name, values) for name, values in figures.items()}
    return summary


def _reduce(name: str, values: list[float]) -> float:
    if name in ("error", "width"):
        return statistics.median(values)
    return statistics.fmean(values) if name in ("covered", "interval_score") else sum(values)
