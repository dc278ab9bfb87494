"""Check whether one group of runs is slower or faster than another one, given how much runs differ from one another.

The error rate ``alpha`` bounds the probability that a check without a change reports any slower row, and any condition
that holds because of noise. It is divided between two families of tests, as in the fallback procedure (Wiens, 2003):

1. The duration of a step and the metrics of conditions are tested at ``STEP_WEIGHT`` of the error rate.
2. Parts, phases, ops and kernels are tested together at the rest of it, or at all of it if all tests of the first
   family have rejected.

Source: Wiens, A fixed sequence Bonferroni procedure for testing multiple endpoints (2003).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

import numpy as np

from tracekit.core.check.inference import Inference, infer
from tracekit.core.check.prediction import compare_with_prediction
from tracekit.core.check.result import Check, CheckedRun, CheckRow, describe_noise, describe_step
from tracekit.core.check.runs import OTHERS, choose_rows, compute_run_id, find_repeated_runs, read_times
from tracekit.core.compare.conditions import ConditionResult
from tracekit.core.compare.makers import describe_differences, have_different_makers, use_common_names
from tracekit.core.compare.notes import have_comparable_iterations, list_comparability_notes
from tracekit.core.compare.summary import DURATION
from tracekit.errors import MissingTableError, TracekitError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from tracekit.core.check.prediction import PredictedSaving
    from tracekit.core.check.result import Presence, Verdict
    from tracekit.core.compare import Condition, Summary
    from tracekit.core.diagnosis.answer import Status

    Matrix = NDArray[np.float64]

DEFAULT_KINDS = ("iterations", "nvtx_gpu", "ops", "kernels")
"""Kinds of rows that are checked by default: parts of a step, phases, ops and kernels."""
LEVELS = {"iterations": "part", "nvtx_gpu": "phase", "ops": "op", "kernels": "kernel"}
"""Levels of the rows of kinds. The level of other kinds is their name."""
DEFAULT_ALPHA, DEFAULT_MIN_CHANGE, DEFAULT_RESOLUTION = 0.05, 0.5, 10.0
STEP_WEIGHT = 0.9
"""Share of the error rate at which the duration of a step and the metrics of conditions are tested."""
_NO_VALUE = -50.0
"""Logarithm that stands for that of a value of 0, far below those of times of at least 1 ns in 10**18 iterations."""
_NO_RATIO = 20.0
"""Smallest logarithm of a ratio that is not a change in per cent, because a value is 0."""
TOO_FEW_RUNS = (
    "the variation between runs is unknown: record at least 3 runs of each side, or 5 of one side, "
    "or keep a history of checks"
)
_STEP = -1
"""Key of the duration of a step among the quantities of the first family. Other keys are positions of conditions."""
_COUNTED: dict[str, tuple[Verdict, Presence]] = {
    "slower": ("slower", "both"),
    "faster": ("faster", "both"),
    "new": ("slower", "new"),
    "gone": ("faster", "gone"),
}
"""The verdict and the presence of the rows that a metric counts."""
_STATUS_OF_VERDICT: dict[Verdict, Status] = {
    "slower": "answered",
    "faster": "answered",
    "same": "nothing_found",
    "untestable": "unsure",
}
_ORDER = {"slower": 0, "faster": 1, "same": 2, "untestable": 3}


@dataclass(frozen=True, slots=True)
class CheckLimits:
    """The limits of a check.

    Attributes:
        alpha: Probability that any row or condition of a check without a change is slower, and that any is faster.
        min_change_percent: Smallest change that is slower or faster.
        resolution_percent: Largest change that the noise may hide before the duration of a step is untestable.
    """

    alpha: float = DEFAULT_ALPHA
    min_change_percent: float = DEFAULT_MIN_CHANGE
    resolution_percent: float = DEFAULT_RESOLUTION

    def __post_init__(self) -> None:
        """Check the limits.

        Raises:
            TracekitError: A limit is out of range.
        """
        if not 0 < self.alpha < 0.5:  # noqa: PLR2004 - an interval has two ends
            raise TracekitError(f"alpha is {self.alpha}, but it must be between 0 and 0.5")
        for name, value in (("min_change", self.min_change_percent), ("resolution", self.resolution_percent)):
            if not 0 <= value < math.inf:
                raise TracekitError(f"{name} is {value}, but it must be 0 or more")


def check_runs(
    a: Sequence[Summary],
    b: Sequence[Summary],
    *,
    kinds: Sequence[str] = DEFAULT_KINDS,
    conditions: Sequence[Condition] = (),
    limits: CheckLimits | None = None,
    earlier: Sequence[Sequence[Summary]] = (),
    prediction: PredictedSaving | None = None,
) -> Check:
    """Return whether the runs of B are slower or faster than those of A.

    Args:
        a: The runs of A, the baseline.
        b: The runs of B.
        kinds: Kinds of rows to check beside the duration of a step, keys of ``KINDS``.
        conditions: Conditions on changes from A to B.
        limits: The limits of the check, or None for the default limits.
        earlier: Groups of earlier runs of the same program, from which the variation between runs is estimated if A and
            B have too few runs.
        prediction: A saving to compare with the measured one, or None.
    """
    metrics = [c for c in conditions if not c.counts_rows and _has_values(c, a) and _has_values(c, b)]
    known = [group for group in earlier if all(_has_values(condition, group) for condition in metrics)]
    sides = _Sides.create(a, b, known)
    return _Gate(sides, tuple(kinds), tuple(conditions), limits or CheckLimits()).check(prediction)


@dataclass(frozen=True, slots=True)
class _Sides:
    """The different runs of both sides, earlier runs, notes about them, and the list of all runs of both sides."""

    a: tuple[Summary, ...]
    b: tuple[Summary, ...]
    earlier: tuple[tuple[Summary, ...], ...]
    notes: tuple[str, ...]
    reason: str
    listed: tuple[CheckedRun, ...] = ()

    @classmethod
    def create(cls, a: Sequence[Summary], b: Sequence[Summary], earlier: Sequence[Sequence[Summary]]) -> _Sides:
        """Return both sides without repeated runs, and with the names that GPUs of different makers share."""
        notes, distinct = [], []
        listed: list[CheckedRun] = []
        for name, side in (("A", a), ("B", b)):
            repeated = find_repeated_runs(side)
            listed += _list_runs("a" if name == "A" else "b", side, repeated)
            distinct.append([run for i, run in enumerate(side) if i not in repeated])
            notes += [
                f"run {i + 1} of {name} is a copy of run {first + 1}, so it is left out"
                for i, first in repeated.items()
            ]
        a, b = distinct
        if a and b and have_different_makers(a[0], b[0]):
            notes += describe_differences(a[0], b[0], ("kernels",))
            a, b = ([use_common_names(run) for run in side] for side in (a, b))
        notes += _list_notes(a, b)
        used = [
            tuple(group)
            for group in earlier
            if a and len(group) > 1 and all(_is_comparable(a[0], run) for run in group)
        ]
        reason = "" if a and b else f"{'A' if not a else 'B'} has no run"
        if a and b and not all(have_comparable_iterations(a[0], run) for run in (*a, *b)):
            reason = "an op delimits the iterations of some runs only; name it with --key-op or key_op="
        return cls(tuple(a), tuple(b), tuple(used), tuple(dict.fromkeys(notes)), reason, tuple(listed))

    @property
    def all(self) -> tuple[Summary, ...]:
        """The runs of both sides."""
        return (*self.a, *self.b)

    @property
    def by_name(self) -> dict[str, Summary]:
        """The runs of both sides, by name."""
        return _name_runs("A", self.a) | _name_runs("B", self.b)


def _list_runs(side: Literal["a", "b"], runs: Sequence[Summary], repeated: Mapping[int, int]) -> Iterator[CheckedRun]:
    """Yield the runs of one side with the duration of a step, copies included."""
    times = read_times(runs, "iterations", [(DURATION,)])[:, 0]
    for i, (run, time) in enumerate(zip(runs, times.tolist(), strict=True)):
        copy_of = repeated[i] + 1 if i in repeated else None
        yield CheckedRun(side, i + 1, compute_run_id(run), run.iterations, time or None, copy_of)


def _is_comparable(run: Summary, earlier: Summary) -> bool:
    """Return whether an earlier run was recorded on the same GPUs, with the same steps."""
    return all(run.facts.get(fact) == earlier.facts.get(fact) for fact in ("gpus", "key_op", "names"))


def _list_notes(a: Sequence[Summary], b: Sequence[Summary]) -> Iterator[str]:
    """Yield sentences about what limits the comparison of two groups of runs."""
    for name, side in (("A", a), ("B", b)):
        for fact, title in (("gpus", "GPUs"), ("key_op", "key ops")):
            values = sorted({run.facts.get(fact, "unknown") for run in side})
            if len(values) > 1:
                yield f"the {title} of the runs of {name} differ: {'; '.join(values)}"
    if a and b:
        yield from list_comparability_notes(a[0], b[0], has_enough_iterations=True)


@dataclass(frozen=True, slots=True)
class _Quantity:
    """The values of a quantity in the runs of both sides and in groups of earlier runs.

    Attributes:
        a: One value per run of A.
        b: One value per run of B.
        earlier: The values of each group of earlier runs.
        is_relative: Whether changes are relative. Logarithms are then compared, so that shifts are ratios.
    """

    a: Matrix
    b: Matrix
    earlier: tuple[Matrix, ...] = ()
    is_relative: bool = True

    def convert(self, values: Matrix) -> Matrix:
        """Return the values that are compared: the logarithms, or the values themselves."""
        if not self.is_relative:
            return values
        return np.log(values, out=np.full(values.shape, _NO_VALUE), where=values > 0)


def _infer(quantities: Sequence[_Quantity], alpha: float) -> Inference:
    """Estimate the shifts of several quantities at a common error rate."""
    groups = zip(*([q.convert(values) for values in (q.a, q.b, *q.earlier)] for q in quantities), strict=True)
    a, b, *earlier = [np.stack(columns, axis=1) for columns in groups] or [np.empty((0, 0))] * 2
    return infer(a, b, alpha, earlier)


@dataclass(frozen=True, slots=True)
class _Gate:
    """The checks of two groups of runs."""

    sides: _Sides
    kinds: tuple[str, ...]
    conditions: tuple[Condition, ...]
    limits: CheckLimits

    def check(self, prediction: PredictedSaving | None) -> Check:
        """Return the result of the check."""
        sides, alpha = self.sides, self.limits.alpha
        quantities, reasons = self._list_quantities()
        primary = _infer(list(quantities.values()), alpha * STEP_WEIGHT)
        step, reason = None, sides.reason or "the duration of a step was not recorded in every run"
        if _STEP in quantities:
            step, reason = self._judge_step(quantities[_STEP], primary)
        rows = [] if step is None else [step]
        rows += self._judge_rows(*(alpha if ends else alpha * (1 - STEP_WEIGHT) for ends in _list_rejections(primary)))
        results = []
        for i, condition in enumerate(self.conditions):
            if condition.counts_rows and not sides.reason:
                results.append(_count_rows(condition, rows, reason))
            elif i in quantities:
                results.append(self._decide(condition, primary, list(quantities).index(i)))
            else:
                results.append(ConditionResult(condition.text, "untestable", reason=reasons.get(i, sides.reason)))
        verdict: Verdict = step.verdict if step else "untestable"
        times = read_times(sides.b, "iterations", [(DURATION,)])[:, 0]
        return Check(
            sentence=self._write_sentence(step, reason),
            status=_STATUS_OF_VERDICT[verdict] if step else "not_recorded",
            verdict=verdict,
            rows=tuple(rows),
            conditions=tuple(results),
            prediction=None if prediction is None else compare_with_prediction(prediction, times[times > 0].tolist()),
            runs_a=len(sides.a),
            runs_b=len(sides.b),
            earlier_runs=sum(map(len, sides.earlier)),
            alpha=alpha,
            min_change_percent=self.limits.min_change_percent,
            resolution_percent=self.limits.resolution_percent,
            reason=reason,
            notes=sides.notes,
            runs=sides.listed,
        )

    def _list_quantities(self) -> tuple[dict[int, _Quantity], dict[int, str]]:
        """Return the quantities of the first family by key, and why conditions cannot be tested.

        The keys are ``_STEP``, and the positions of conditions on metrics.
        """
        sides = self.sides
        quantities: dict[int, _Quantity] = {}
        reasons: dict[int, str] = {}
        a, b, *earlier = _read_quantities(sides, "iterations", [(DURATION,)])[0]
        if len(a) and len(b) and min(a.min(), b.min()) > 0:
            quantities[_STEP] = _Quantity(a, b, tuple(earlier))
        for i, condition in enumerate(self.conditions):
            if condition.counts_rows or sides.reason:
                continue
            try:
                values = _read_condition_values(condition, sides.by_name)
            except MissingTableError as error:
                reasons[i] = str(error)
                continue
            groups = tuple(_read_condition_values(condition, _name_runs("A", group)) for group in sides.earlier)
            quantities[i] = _Quantity(values[: len(sides.a)], values[len(sides.a) :], groups, condition.is_relative)
        return quantities, reasons

    def _judge_step(self, quantity: _Quantity, inference: Inference) -> tuple[CheckRow, str]:
        """Return the row of the duration of a step, and why it is untestable, or an empty string."""
        row = self._create_row((DURATION,), quantity, inference, 0, level="step", kind="iterations")
        if self.sides.reason:
            return row, self.sides.reason
        if row.verdict == "untestable":
            return row, TOO_FEW_RUNS
        hidden = _to_percent(float(inference.estimate[0] - inference.low[0]))
        limit = self.limits.resolution_percent
        if row.verdict == "same" and (hidden is None or hidden > limit):
            reason = (
                f"the runs differ so much from one another that an increase of {limit:g} % may not be shown; "
                "record more runs"
            )
            return replace(row, verdict="untestable"), reason
        return row, ""

    def _judge_rows(self, alpha_slower: float, alpha_faster: float) -> list[CheckRow]:
        """Return the rows of all kinds, each level ordered by verdict and change.

        Args:
            alpha_slower: Probability that any row without a change is slower.
            alpha_faster: Probability that any row without a change is faster.
        """
        groups = [(kind, names) for kind in self.kinds for names in choose_rows(self.sides.all, kind)]
        if not groups:
            return []
        quantities = []
        for kind in self.kinds:
            names = [group for of_kind, group in groups if of_kind == kind]
            values = _read_quantities(self.sides, kind, names)
            quantities += [_Quantity(a, b, tuple(earlier)) for a, b, *earlier in values]
        slower = _infer(quantities, alpha_slower)
        faster = slower if alpha_slower == alpha_faster else _infer(quantities, alpha_faster)
        inference = replace(slower, high=faster.high)
        rows = [
            self._create_row(names, quantity, inference, i, level=LEVELS.get(kind, kind), kind=kind)
            for i, ((kind, names), quantity) in enumerate(zip(groups, quantities, strict=True))
        ]
        order = {kind: i for i, kind in enumerate(self.kinds)}
        return sorted(rows, key=lambda r: (order[r.kind], _ORDER[r.verdict], -abs(r.time_b_ns - r.time_a_ns)))

    def _create_row(
        self,
        names: tuple[str | None, ...],
        quantity: _Quantity,
        inference: Inference,
        column: int,
        *,
        level: str,
        kind: str,
    ) -> CheckRow:
        """Return the row of a quantity with its verdict."""
        estimate, low, high = (float(v[column]) for v in (inference.estimate, inference.low, inference.high))
        least = math.log1p(self.limits.min_change_percent / 100)
        verdict: Verdict = "same"
        if self.sides.reason or math.isinf(low) or math.isinf(high):
            verdict, low, high = "untestable", -math.inf, math.inf
        elif low > 0 and estimate >= least:
            verdict = "slower"
        elif high < 0 and -estimate >= least:
            verdict = "faster"
        ends = [_to_percent(end) for end in (low, high)]
        bounds = [abs(end) for end in ends if end is not None]
        presence: Presence = "both" if quantity.a.any() and quantity.b.any() else "gone" if quantity.a.any() else "new"
        return CheckRow(
            level=level,
            name=names[0] if len(names) == 1 else OTHERS,
            verdict=verdict,
            change_percent=_to_percent(estimate),
            low_percent=ends[0],
            high_percent=ends[1],
            within_percent=max(bounds) if len(bounds) == len(ends) else None,
            time_a_ns=_compute_median(quantity.a),
            time_b_ns=_compute_median(quantity.b),
            noise_percent=_to_percent(float(inference.deviation[column])),
            detectable_percent=_to_percent(float(inference.detectable[column])),
            presence=presence,
            method=inference.method,
            kind=kind,
            names=len(names),
        )

    def _decide(self, condition: Condition, inference: Inference, column: int) -> ConditionResult:
        """Return whether a condition on a metric holds, given the change and its interval.

        A condition such as ``gpu_time > 5%`` holds if the change is larger than 5 % and larger than the noise. It does
        not hold if the change is smaller, or not larger than the noise, provided that a change of 5 % would be.
        """
        value, low, high = (float(v[column]) for v in (inference.estimate, inference.low, inference.high))
        if math.isinf(low) or math.isinf(high):
            return ConditionResult(condition.text, "untestable", reason=TOO_FEW_RUNS)
        if condition.is_relative:
            value, low, high = (math.expm1(min(end, _NO_RATIO)) * 100 for end in (value, low, high))
        text = f"{condition.format_value(value)}, {condition.format_value(low)} to {condition.format_value(high)}"
        sign = 1 if condition.comparison.startswith(">") else -1
        limit, nearest = float(condition.limit) * sign, low if sign > 0 else -high
        farthest = high if sign > 0 else -low
        exceeds = condition.is_met_by_value(value)
        if exceeds and limit >= 0 and nearest > 0:
            return ConditionResult(condition.text, "holds", text)
        hidden = value * sign - nearest
        needed = abs(limit) or (self.limits.resolution_percent if condition.is_relative else math.inf)
        if hidden > needed:
            noise = condition.format_value(hidden).lstrip("+")
            reason = f"differences between runs hide changes of up to {noise} (the value is {text}); record more runs"
            return ConditionResult(condition.text, "untestable", text, reason)
        if limit < 0 and (exceeds or farthest >= 0):
            return ConditionResult(condition.text, "holds", text)
        return ConditionResult(condition.text, "does_not_hold", text)

    def _write_sentence(self, step: CheckRow | None, reason: str) -> str:
        """Return the verdict in one or two sentences."""
        if step is None:
            return f"untestable: {reason}."
        claim = f"untestable, because {reason}" if reason else step.claim
        noise = describe_noise(step, len(self.sides.a), len(self.sides.b), sum(map(len, self.sides.earlier)))
        return " ".join(filter(None, [f"{claim}: {describe_step(step)}.", noise]))


def _list_rejections(inference: Inference) -> tuple[bool, bool]:
    """Return whether all quantities are larger, and whether all are smaller."""
    return (bool((inference.low > 0).all()), bool((inference.high < 0).all())) if len(inference.low) else (False, False)


def _count_rows(condition: Condition, rows: Sequence[CheckRow], step_reason: str) -> ConditionResult:
    """Return whether a condition on the number of slower, faster, new or gone rows holds.

    Args:
        condition: The condition.
        rows: The rows of the check.
        step_reason: Why the duration of a step is untestable, or "".
    """
    verdict, presence = _COUNTED[condition.metric]
    counted = [row for row in rows if row.verdict == verdict and row.presence == presence]
    result = condition.create_result(Fraction(len(counted)))
    untested = [row for row in rows if row.verdict == "untestable"]
    is_certain = result.status == "holds" and condition.comparison.startswith(">")
    if is_certain or (rows and not untested and not step_reason):
        return result
    reason = step_reason or (TOO_FEW_RUNS if rows else "neither side has any rows")
    return ConditionResult(condition.text, "untestable", reason=f"{condition.metric} counts rows, but {reason}")


def _read_quantities(sides: _Sides, kind: str, names: Sequence[tuple[str | None, ...]]) -> list[list[Matrix]]:
    """Return, for each group of names, the times per iteration in the runs of A, of B, and of each earlier group."""
    times = [read_times(group, kind, names) for group in (sides.a, sides.b, *sides.earlier)]
    return [[matrix[:, i] for matrix in times] for i in range(len(names))]


def _read_condition_values(condition: Condition, runs: Mapping[str, Summary]) -> Matrix:
    return np.array([float(value) for value in condition.compute_values_of_runs(runs)])


def _name_runs(side: str, runs: Sequence[Summary]) -> dict[str, Summary]:
    return {f"{side} (run {i})": run for i, run in enumerate(runs, start=1)}


def _has_values(condition: Condition, runs: Sequence[Summary]) -> bool:
    """Return whether the value of a condition is known for all runs of a group."""
    try:
        condition.compute_values_of_runs(_name_runs("A", runs))
    except MissingTableError:
        return False
    return True


def _to_percent(log_ratio: float) -> float | None:
    """Return the change in per cent that a logarithm of a ratio stands for, or None if it is not a finite change."""
    return math.expm1(log_ratio) * 100 if abs(log_ratio) < _NO_RATIO else None


def _compute_median(values: Matrix) -> float:
    return float(np.median(values)) if len(values) else 0.0
