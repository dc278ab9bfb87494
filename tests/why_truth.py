"""Compare the predictions of ``why`` with what cures saved in truth.

A file ``truth.jsonl`` beside captures has one line per program (see ``fixtures/README.md``): its cause, or those of a
program with several, and the times of a step with it and without it. A line without the cause of a program with
several has ``cured_alone_ms`` instead.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tracekit as tk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tracekit.core.diagnosis import Why
    from tracekit.core.diagnosis.answer import CauseOfTime

SUFFIXES = (".nsys-rep", ".pt.trace.json.gz")
STEPS = 12
"""Number of steps in a report, unless ``steps_captured`` states it."""

STEPS_OF_PYTORCH = 6
MIN_SAVING = 0.1
"""Saving from which on the true cause has to be the first one."""

HEALTHY = 0.02
"""Saving below which a program is healthy, so that no cause may be reported."""


@dataclass(frozen=True)
class Illness:
    """A cause of a program, and what its cure saved.

    Attributes:
        causes: Names that are right; the first one is the name of the cause.
        saving: Saving as a share of a step, from the medians of runs.
        low: Smallest saving among the runs.
        high: Largest saving among the runs.
    """

    causes: tuple[str, ...]
    saving: float
    low: float
    high: float

    def is_covered(self, low: float, high: float) -> bool:
        """Return whether an interval contains the true saving of a run."""
        return low <= self.high and self.low <= high


@dataclass(frozen=True)
class Program:
    """A program whose causes are known.

    Attributes:
        name: Name of the captures.
        captures: The paths of each capture: one, or those of all ranks.
        illnesses: The causes, the one that costs most first. A healthy program has none.
        sick_ms: Time of a step without a profiler.
        steps: Number of steps in a report.
        is_unknowable: Whether ``unsure`` is a right answer.
        together: What curing all causes saved.
    """

    name: str
    captures: tuple[tuple[Path, ...], ...]
    illnesses: tuple[Illness, ...]
    sick_ms: float
    steps: int
    is_unknowable: bool
    together: float


@dataclass(frozen=True)
class Prediction:
    """The prediction for a cause of one capture.

    Attributes:
        capture: Name of the capture.
        illness: The cause, and what its cure saved.
        rank: Number of the cause in the answer, from 1, or None if the answer does not have it.
        status: Status of the cause, or of the answer if the answer does not have it.
        first: Name of the first cause of the answer, or "".
        low: Low prediction, or 0.
        likely: Likely prediction, or 0.
        high: High prediction, or 0.
        is_right: Whether the cause is the first one, or the answer is rightly unsure.
        is_unknowable: Whether ``unsure`` is a right answer.
    """

    capture: str
    illness: Illness
    rank: int | None
    status: str
    first: str
    low: float
    likely: float
    high: float
    is_right: bool
    is_unknowable: bool

    @property
    def error(self) -> float:
        """The difference between the likely and the true saving."""
        return self.likely - self.illness.saving

    @property
    def is_covered(self) -> bool:
        """Whether the interval contains the true saving of a run."""
        return self.illness.is_covered(self.low, self.high)


@dataclass
class Assessment:
    """The predictions for all captures of some programs.

    Attributes:
        predictions: The predictions, in the order of the captures.
        findings: For each capture of a healthy program, the largest likely saving that is predicted.
        together: For each capture of a program with several causes: the predicted and the true saving of all cures.
        answers: The answer for each capture.
    """

    predictions: list[Prediction] = field(default_factory=list)
    findings: dict[str, float] = field(default_factory=dict)
    together: dict[str, tuple[float, float]] = field(default_factory=dict)
    answers: dict[str, Why] = field(default_factory=dict)

    def add(self, other: Assessment) -> None:
        """Add the predictions for further programs."""
        self.predictions += other.predictions
        self.findings |= other.findings
        self.together |= other.together

    @property
    def firsts(self) -> list[Prediction]:
        """The predictions of the most expensive cause of each capture, if it costs at least ``MIN_SAVING``."""
        largest: dict[str, Prediction] = {}
        for prediction in self.predictions:
            largest.setdefault(prediction.capture, prediction)
        return [p for p in largest.values() if p.illness.saving >= MIN_SAVING]

    @property
    def errors(self) -> list[float]:
        """The absolute errors of the savings that a capture can show."""
        return [abs(p.error) for p in self.predictions if not p.is_unknowable]

    def summarize(self) -> Iterator[str]:
        """Yield sentences with the median error, the coverage and the share of true causes that come first."""
        firsts, known = self.firsts, [p for p in self.predictions if not p.is_unknowable]
        right = sum(p.is_right for p in firsts)
        yield f"- true cause first: {right} of {len(firsts)} captures whose cause costs {MIN_SAVING:.0%} or more"
        if known:
            errors = self.errors
            within = sum(e <= 0.2 for e in errors)
            yield (
                f"- error of the saving: median {100 * statistics.median(errors):.1f} points; within 20 points: "
                f"{within} of {len(errors)}"
            )
            covered = sum(p.is_covered for p in known)
            yield f"- intervals that contain the saving of a run: {covered} of {len(known)}"
        if self.findings:
            quiet = sum(saving < HEALTHY for saving in self.findings.values())
            yield f"- healthy captures without a finding of {HEALTHY:.0%} or more: {quiet} of {len(self.findings)}"
        for capture, (predicted, true) in self.together.items():
            yield f"- all cures of {capture} together: {predicted:.1%} predicted, {true:.1%} true"


def read_programs(truth: Path) -> Iterator[Program]:
    """Yield the programs of a file ``truth.jsonl`` whose captures lie in its folder."""
    for line in truth.read_text("utf-8").splitlines():
        row = json.loads(line)
        captures = tuple(_find_captures(truth.parent, row["capture"]))
        if not captures:
            continue
        illnesses = sorted(_read_illnesses(row), key=lambda illness: -illness.saving)
        yield Program(
            row["capture"],
            captures,
            tuple(i for i in illnesses if i.saving >= HEALTHY or "cured_alone_ms" in row),
            row["sick_ms"],
            row.get("steps_captured", 8 if "cured_alone_ms" in row else STEPS),
            row.get("unknowable", "unsure" in row.get("cause", "")),
            row["saving"],
        )


def _find_captures(folder: Path, name: str) -> Iterator[tuple[Path, ...]]:
    for suffix in SUFFIXES:
        if (path := folder / f"{name}{suffix}").exists():
            yield (path,)
    if ranks := sorted(folder.glob(f"{name}_rank*.nsys-rep")):
        yield tuple(ranks)


def _read_illnesses(row: dict[str, Any]) -> Iterator[Illness]:
    sick = row.get("sick_runs_ms", [row["sick_ms"]])
    if "cured_alone_ms" in row:
        for cause, well in row["cured_alone_ms"].items():
            runs = row.get("cured_alone_runs_ms", {}).get(cause, [well])
            yield Illness((cause,), 1 - well / row["sick_ms"], 1 - max(runs) / min(sick), 1 - min(runs) / max(sick))
        return
    runs = row["well_runs_ms"]
    causes = (row["cause"].partition(" ")[0], *row.get("also_right", ()))
    yield Illness(causes, row["saving"], 1 - max(runs) / min(sick), 1 - min(runs) / max(sick))


def assess(programs: Iterable[Program], *, with_step_time: bool = False) -> Assessment:
    """Predict the savings of programs.

    Args:
        programs: The programs.
        with_step_time: Whether ``why`` is told the time of a step without the profiler.
    """
    result = Assessment()
    for program in programs:
        for paths in program.captures:
            answer = explain(paths)
            if with_step_time and answer.step is not None:
                steps = min(program.steps, STEPS_OF_PYTORCH) if ".pt." in paths[0].name else program.steps
                count = 1 if answer.step.name is not None else steps
                answer = explain(paths, round(program.sick_ms * 1e6 * count))
            name = program.name if paths[0].name.endswith(".nsys-rep") else f"{program.name} (PyTorch)"
            result.answers[name] = answer
            if not program.illnesses:
                result.findings[name] = max((c.saving.likely for c in answer.causes), default=0.0)
            result.predictions += [_find_prediction(name, program, answer, i) for i in program.illnesses]
            if len(program.illnesses) > 1:
                result.together[name] = (answer.together, program.together)
    return result


def explain(paths: Sequence[Path], step_time_ns: int | None = None) -> Why:
    """Return the answer of ``why`` for a capture, or for those of all ranks."""
    if len(paths) > 1:
        return tk.load_many([str(p) for p in paths]).why(step_time_ns=step_time_ns)
    return tk.load(paths[0]).why(step_time_ns=step_time_ns)


def _find_prediction(capture: str, program: Program, answer: Why, illness: Illness) -> Prediction:
    """Return the prediction for one of the causes of a program."""
    ranks = [i for i, cause in enumerate(answer.causes) if cause.cause in illness.causes]
    cause: CauseOfTime | None = answer.causes[ranks[0]] if ranks else None
    first = answer.causes[0] if answer.causes else None
    status = answer.status if cause is None else cause.status
    is_unsure = program.is_unknowable and (answer.status == "unsure" if first is None else first.status == "unsure")
    return Prediction(
        capture=capture,
        illness=illness,
        rank=ranks[0] + 1 if ranks else None,
        status=status,
        first=first.cause if first is not None else "",
        low=cause.saving.low if cause is not None else 0.0,
        likely=cause.saving.likely if cause is not None else 0.0,
        high=cause.saving.high if cause is not None else 0.0,
        is_right=is_unsure or ranks[:1] == [0],
        is_unknowable=program.is_unknowable,
    )
