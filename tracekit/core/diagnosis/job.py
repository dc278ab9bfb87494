"""Predict what cures save in a job of several ranks.

Each rank is replayed with collectives that take only as long as their transfer. The ranks meet in every step and in
barriers, which divide the steps into *units*. A unit of the job takes as long as that of its slowest rank. A cure is
applied on all ranks that have its cause at the same place, and saves what the slowest ranks gain.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from tracekit.core.diagnosis.answer import MAX_CAUSES, MIN_SAVING, CauseOfTime, Why
from tracekit.core.diagnosis.cures import HIGH, LIKELY, LOW, Cure, apply_cures, extend_interval
from tracekit.core.diagnosis.replay import CpuScales, create_unedited

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from tracekit.core.diagnosis.replay import Edit, ModelReplay

    Int64s = npt.NDArray[np.int64]
    Mask = npt.NDArray[np.bool_]

_MAX_COMBINED = 5
_CASES = (LOW, LIKELY, HIGH)


@dataclass(frozen=True)
class CuredSteps:
    """A cause on one rank, and the durations of the steps of this rank after its cure.

    Attributes:
        cause: The cause, without a predicted saving.
        key: What identifies the cause on all ranks: its name, its place, and its communicator.
        durations: Durations of units, with the axes case, CPU scales and unit, or None if they stay the same.
        is_healthy: Whether the cause says that nothing has to be cured.
        joins_ranks: Whether ranks meet only once per step after the cure.
    """

    cause: CauseOfTime
    key: tuple[str, str, str]
    durations: Int64s | None
    is_healthy: bool
    joins_ranks: bool = False

    @classmethod
    def create(cls, cure: Cure, cause: CauseOfTime, durations: Int64s | None) -> Self:
        """Return the cause of a cure with the durations of steps after it."""
        key = (cure.cause, cure.place, cure.communicator)
        return cls(cause, key, durations, cure.is_healthy, cure.joins_ranks)


@dataclass(frozen=True)
class Examination:
    """What the second pass finds out about one process.

    Attributes:
        answer: The answer without causes, or with its own causes if it is a separate program.
        rank: Rank of the process.
        cures: The causes with the durations of steps after their cures.
        base: Durations of units without waiting for other ranks, with the axes CPU scales and unit. None for a
            separate program.
        combined: Likely durations of units after several cures, by the sorted positions of the cures.
        likely: Number of the likely CPU scales.
        slack: Share by which each interval is extended on both sides.
        unexplained: The idle time of the GPU that no cause on this rank explains, or None if there is little.
        unit_starts: Number of the first unit of each step.
    """

    answer: Why
    rank: int
    cures: tuple[CuredSteps, ...] = ()
    base: Int64s | None = None
    combined: dict[tuple[int, ...], Int64s] = field(default_factory=dict)
    likely: int = 0
    slack: float = 0.0
    unexplained: CauseOfTime | None = None
    unit_starts: tuple[int, ...] = (0,)

    def merge_units(self) -> Examination:
        """Return the same results with steps as units."""
        cures = [c if c.durations is None else replace(c, durations=self._merge(c.durations)) for c in self.cures]
        base = None if self.base is None else self._merge(self.base)
        combined = {chosen: self._merge(durations) for chosen, durations in self.combined.items()}
        starts = tuple(range(len(self.unit_starts)))
        return replace(self, cures=tuple(cures), base=base, combined=combined, unit_starts=starts)

    def _merge(self, durations: Int64s) -> Int64s:
        return np.add.reduceat(durations, self.unit_starts, axis=-1)


class _Job(NamedTuple):
    """The ranks of a job, and how long its steps take without a cure.

    Attributes:
        examinations: The results of all ranks.
        base: Durations of the units of each rank, with the axes CPU scales and unit.
        total: Time of all steps of the job, for each of the scales.
        likely: Number of the likely scales.
        slack: Share by which each interval is extended on both sides.
        unit_starts: Number of the first unit of each step.
    """

    examinations: Sequence[Examination]
    base: Sequence[Int64s]
    total: Int64s
    likely: int
    slack: float
    unit_starts: tuple[int, ...]

    def sum_slowest(self, durations: Sequence[Int64s], *, joins_ranks: bool) -> Int64s:
        """Return the time of all steps of the job after cures: the sum of the slowest ranks over units or steps."""
        merged = [np.add.reduceat(d, self.unit_starts, axis=-1) for d in durations] if joins_ranks else durations
        return _sum_slowest(merged)


class CureReplay(NamedTuple):
    """How the cures of one process are replayed.

    Attributes:
        engine: The replay, without waiting for other ranks.
        scales: Scales between which the CPU ran without the profiler.
        is_stall: Which items are long pauses that no cure explains.
        likely: Number of the likely scales.
        slack: Share of the time below which a cure counts as saving nothing.
        cuts: The items at whose ends all ranks meet in barriers.
    """

    engine: ModelReplay
    scales: Sequence[CpuScales]
    is_stall: Mask
    likely: int
    slack: float
    cuts: Int64s

    @property
    def unit_starts(self) -> tuple[int, ...]:
        """The number of the first unit of each step."""
        model = self.engine.model
        cuts = np.bincount(model.step_of_item[self.cuts], minlength=len(model.steps))
        return tuple((np.cumsum(cuts + 1) - cuts - 1).tolist())

    def measure_base(self) -> Int64s:
        """Return the durations of steps without a cure, for each of the scales."""
        unedited = create_unedited(self.engine.model)
        return np.stack([self._measure(unedited, scales) for scales in self.scales])

    def measure_cure(self, cure: Cure, base: Int64s) -> Int64s | None:
        """Return the durations of steps after a cure, for each case and each of the scales, or None if they stay."""
        edits = [apply_cures(self.engine.model, [cure], case) for case in _CASES]
        likely = self._measure(edits[LIKELY], self.scales[self.likely])
        best = self._measure(edits[HIGH], self.scales[0])
        saved = (base[self.likely].sum() - likely.sum(), base[0].sum() - best.sum())
        limits = (self.slack / 2 * base[self.likely].sum(), self.slack / 2 * base[0].sum())
        if not cure.joins_ranks and saved[0] < limits[0] and saved[1] < limits[1]:
            return None
        return np.stack([[self._measure(edit, scales) for scales in self.scales] for edit in edits])

    def combine(self, cures: Sequence[Cure], durations: Sequence[Int64s | None]) -> dict[tuple[int, ...], Int64s]:
        """Return the likely durations of steps after each combination of the cures that save most."""
        likely = {i: int(d[LIKELY, self.likely].sum()) for i, d in enumerate(durations) if d is not None}
        best = sorted(sorted(likely, key=lambda i: (likely[i], i))[:_MAX_COMBINED])
        result = {}
        for count in range(2, len(best) + 1):
            for chosen in itertools.combinations(best, count):
                edit = apply_cures(self.engine.model, [cures[i] for i in chosen], LIKELY)
                result[chosen] = self._measure(edit, self.scales[self.likely])
        return result

    def _measure(self, edit: Edit, scales: CpuScales) -> Int64s:
        return self.engine.measure_units(self.engine.run(edit, scales, self.is_stall), self.cuts)


def predict_job(examinations: Sequence[Examination]) -> tuple[int, tuple[CauseOfTime, ...]]:
    """Return the position of the slowest rank, and the causes of the job in order of their savings."""
    if len({e.unit_starts for e in examinations}) > 1:
        examinations = [e.merge_units() for e in examinations]
    count = min(len(e.base) for e in examinations if e.base is not None)
    likely = min(examinations[0].likely, count - 1)
    base = [e.base[:count] for e in examinations if e.base is not None]
    slowest = int(np.argmax([rank[likely].sum() for rank in base]))
    starts = examinations[slowest].unit_starts
    job = _Job(examinations, base, _sum_slowest(base), likely, examinations[slowest].slack, starts)
    joining = {cured.key for e in examinations for cured in e.cures if cured.joins_ranks}
    keys = dict.fromkeys(cured.key for e in examinations for cured in e.cures)
    predicted = [(key, *_predict_cure(job, key)) for key in keys]
    ordered = sorted(predicted, key=lambda p: (-p[2], -p[1].saving.low))
    shown = [p for p in ordered if p[1].saving.likely >= MIN_SAVING][:MAX_CAUSES]
    causes, before = [], 0.0
    for i, (_, cause, _) in enumerate(shown):
        chosen = {key for key, *_ in shown[: i + 1]}
        durations = [_combine_durations(e, b[likely], chosen, likely) for e, b in zip(examinations, base, strict=True)]
        time = float(job.sum_slowest(durations, joins_ranks=bool(chosen & joining)))
        now = max(1 - time / max(1, int(job.total[likely])), before)
        causes.append(replace(cause, after=now - before))
        before = now
    healthy = {cured.cause.cause for e in examinations for cured in e.cures if cured.is_healthy}
    others = [p[1] for p in ordered if p not in shown and (p[1].status == "unsure" or p[1].cause in healthy)]
    return slowest, (*causes, *others)[:MAX_CAUSES]


def _sum_slowest(durations: Sequence[Int64s]) -> Int64s:
    """Return the time of all steps of the job: the sum over units of the duration on the slowest rank."""
    total: Int64s = np.max(np.stack(durations), axis=0).sum(axis=-1)
    return total


def _predict_cure(job: _Job, key: tuple[str, str, str]) -> tuple[CauseOfTime, float]:
    """Return the cause with the saving of its cure on all ranks that have it, and the saving by which it is ordered."""
    cured = {i: c for i, e in enumerate(job.examinations) for c in e.cures if c.key == key}
    durations = []
    for i, unedited in enumerate(job.base):
        changed = cured[i].durations if i in cured else None
        durations.append(np.stack([unedited] * len(_CASES)) if changed is None else changed[:, : len(job.total)])
    joins_ranks = any(c.joins_ranks for c in cured.values())
    shares = 1 - job.sum_slowest(durations, joins_ranks=joins_ranks) / np.maximum(job.total, 1)
    middle = max(0.0, float(shares[LIKELY, job.likely]))
    low, high = min(middle, float(shares[LOW].min())), max(middle, float(shares[HIGH].max()))
    changes = middle > 0 or high > job.slack / 2
    saving = extend_interval(low, middle, high, job.slack if changes else 0.0)
    saved = [int((b - d[LIKELY])[job.likely].sum()) for b, d in zip(job.base, durations, strict=True)]
    main = max(cured, key=lambda i: (saved[i], -i))
    cause = cured[main].cause
    weight = (saving.low + saving.likely) / 2 if cause.status == "unsure" else saving.likely
    place = replace(cause.place, rank=job.examinations[main].rank)
    return replace(cause, place=place, saving=saving), weight


def _combine_durations(
    examination: Examination, base: Int64s, chosen: Iterable[tuple[str, str, str]], likely: int
) -> Int64s:
    """Return the likely durations of the steps of one rank after the chosen cures.

    Only the cures that save most on the rank have been replayed together, so others are left out.
    """
    cured = [(i, c.durations) for i, c in enumerate(examination.cures) if c.key in chosen and c.durations is not None]
    together = tuple(i for i, _ in cured if any(i in combination for combination in examination.combined))
    if len(together) > 1:
        return examination.combined[together]
    best = [durations[LIKELY, likely] for _, durations in cured]
    return min(best, key=lambda durations: int(durations.sum()), default=base)
