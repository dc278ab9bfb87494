"""The result of a check: the verdict about the duration of a step, and about phases, ops and kernels.

All times are in ns per iteration. Changes are in per cent of the baseline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from tracekit.core.check.inference import Method  # noqa: TC001 - the types of fields are read at run time
from tracekit.core.check.prediction import PredictionResult  # noqa: TC001 - as above
from tracekit.core.compare.conditions import ConditionResult  # noqa: TC001 - as above
from tracekit.core.diagnosis.answer import Answer, Figures
from tracekit.errors import SchemaError
from tracekit.text import format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

Verdict = Literal["faster", "slower", "same", "untestable"]
Presence = Literal["both", "new", "gone"]
Outcome = Literal["passed", "failed", "untestable"]
VERDICTS = {
    "faster": "The runs of B take less time than those of A.",
    "slower": "The runs of B take more time than those of A.",
    "same": "No difference is shown, or one below the smallest change of interest. The interval bounds the difference.",
    "untestable": "There are too few runs, the runs differ too much from one another, or the data is missing.",
}
_OUTCOMES: dict[str, Outcome] = {
    "holds": "failed",
    "slower": "failed",
    "below": "failed",
    "untestable": "untestable",
    **dict.fromkeys(("does_not_hold", "faster", "same", "inside", "above"), "passed"),
}
"""The outcome that the status of a condition, the verdict or the agreement with a prediction stands for."""
ROWS: dict[str, pl.DataType | type[pl.DataType]] = {
    "level": pl.String,
    "name": pl.String,
    "verdict": pl.Enum(list(VERDICTS)),
    "change_percent": pl.Float64,
    "low_percent": pl.Float64,
    "high_percent": pl.Float64,
    "within_percent": pl.Float64,
    "time_a_ns": pl.Float64,
    "time_b_ns": pl.Float64,
    "noise_percent": pl.Float64,
    "detectable_percent": pl.Float64,
    "presence": pl.String,
    "method": pl.String,
    "kind": pl.String,
    "names": pl.Int64,
}
"""Columns of the rows of a check."""


@dataclass(frozen=True, slots=True)
class CheckRow(Figures):
    """How much the time of a step, or of a part of it, differs between two groups of runs.

    Attributes:
        level: ``step``, ``part`` (of a step), ``phase``, ``op``, ``kernel``, or another kind of rows.
        name: Name of the row, or None for events without a name. ``(others)`` is the sum of all smaller rows.
        verdict: ``faster``, ``slower``, ``same`` or ``untestable``.
        change_percent: Estimated change, or None if a side does not have the row.
        low_percent: Lower end of the interval of the change, or None if it is unknown.
        high_percent: Upper end of the interval of the change, or None if it is unknown.
        within_percent: Largest absolute change in the interval, or None if it is unknown.
        time_a_ns: Median over the runs of A of the time per iteration.
        time_b_ns: Median over the runs of B of the time per iteration.
        noise_percent: Standard deviation between the runs of a side, or None if no side has several runs.
        detectable_percent: Increase that would be shown in 9 of 10 checks, or None if it is unknown.
        presence: ``both``, ``new`` if no run of A has the row, or ``gone`` if no run of B has it.
        method: ``ranks``, ``variance``, or ``none`` if there are too few runs.
        kind: The kind of rows of ``diff``, such as ``kernels``.
        names: Number of names that the row stands for.
    """

    level: str
    name: str | None
    verdict: Verdict
    change_percent: float | None
    low_percent: float | None
    high_percent: float | None
    within_percent: float | None
    time_a_ns: float
    time_b_ns: float
    noise_percent: float | None
    detectable_percent: float | None
    presence: Presence
    method: Method
    kind: str
    names: int = 1

    @property
    def claim(self) -> str:
        """The verdict in a few words, such as ``slower by 3.02 %`` or ``same within 1.2 %``."""
        if self.verdict == "untestable" or (self.verdict == "same" and self.within_percent is None):
            return self.verdict
        if self.verdict == "same":
            return f"same within {_format_bound(self.within_percent)} %"
        if self.change_percent is None:
            return f"{self.verdict}: {self.presence}"
        return f"{self.verdict} by {abs(self.change_percent):,.2f} %"

    @property
    def interval(self) -> str:
        """The interval of the change as text, or "" if it is unknown."""
        if self.low_percent is None or self.high_percent is None:
            return ""
        return f"{self.low_percent:+,.2f} % to {self.high_percent:+,.2f} %"


@dataclass(frozen=True, slots=True)
class CheckedRun(Figures):
    """A run of one side of a check.

    Attributes:
        side: The side, ``a`` or ``b``.
        run: Number of the run on its side, from 1, in the order in which the runs were passed.
        run_id: Hash of the names, counts and times of the run.
        iterations: Number of iterations.
        step_ns: Duration of a step, or None if it was not recorded.
        copy_of: Number of the run of the same side of which this one is a copy, or None. Copies are left out.
    """

    side: Literal["a", "b"]
    run: int
    run_id: str
    iterations: int
    step_ns: float | None
    copy_of: int | None = None


@dataclass(frozen=True, slots=True)
class Check(Answer):
    """Whether the runs of B are slower or faster than those of A, compared with the differences between runs.

    Attributes:
        sentence: The verdict in one or two sentences.
        status: ``answered`` if B is slower or faster, ``nothing_found`` if no difference is shown, ``unsure`` if the
            duration of a step is untestable, and ``not_recorded`` if the data is missing.
        verdict: The verdict about the duration of a step.
        rows: The step first, then the parts, phases, ops and kernels, each level ordered by verdict and change.
        conditions: The results of the conditions, in their order.
        prediction: How the measured saving compares with a predicted one, or None if there is no prediction.
        runs_a: Number of different runs of A.
        runs_b: Number of different runs of B.
        earlier_runs: Number of earlier runs whose variation is known.
        alpha: Probability that any row or condition of a check without a change is slower. The same applies to faster
            rows.
        min_change_percent: Smallest change that is slower or faster.
        resolution_percent: Largest change that the noise may hide before the duration of a step is untestable.
        reason: Why the duration of a step is untestable, or "".
        notes: What limits the comparison.
        runs: The runs of A and B whose durations were compared.
    """

    verdict: Verdict = "untestable"
    rows: tuple[CheckRow, ...] = ()
    conditions: tuple[ConditionResult, ...] = ()
    prediction: PredictionResult | None = None
    runs_a: int = 0
    runs_b: int = 0
    earlier_runs: int = 0
    alpha: float = 0.05
    min_change_percent: float = 0.0
    resolution_percent: float = 0.0
    reason: str = ""
    notes: tuple[str, ...] = ()
    runs: tuple[CheckedRun, ...] = ()

    @property
    def step(self) -> CheckRow | None:
        """The row of the duration of a step, or None if it was not recorded."""
        return next((row for row in self.rows if row.level == "step"), None)

    @property
    def outcome(self) -> Outcome:
        """Whether the check is passed, failed or untestable.

        A check is passed if all conditions were tested and none holds. It is never passed if one cannot be tested.
        Without conditions, the check is failed if a step is slower, and untestable if the duration of a step is. It is
        also failed if less than predicted is saved.
        """
        outcomes = [_OUTCOMES[result.status] for result in self.conditions] or [_OUTCOMES[self.verdict]]
        if self.prediction is not None:
            only = not self.conditions and self.runs_a == 0
            outcomes = [*([] if only else outcomes), _OUTCOMES[self.prediction.agreement]]
        return "failed" if "failed" in outcomes else "untestable" if "untestable" in outcomes else "passed"

    def to_dict(self) -> dict[str, Any]:
        """Return the check as a dictionary for JSON, with its outcome."""
        return {"outcome": self.outcome, **Answer.to_dict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the check whose dictionary is given.

        Raises:
            SchemaError: The dictionary is not that of a check, or its outcome contradicts its rows and conditions.
        """
        check = super(Check, cls).from_dict({name: each for name, each in values.items() if name != "outcome"})
        if values.get("outcome") != check.outcome:
            raise SchemaError(
                f"the outcome of the check is {values.get('outcome')!r}, but it must be {check.outcome!r}"
            )
        return check

    def frame(self) -> pl.DataFrame:
        """Return one row per step, part, phase, op and kernel, with the attributes of ``CheckRow`` as columns."""
        return pl.DataFrame([[getattr(row, name) for name in ROWS] for row in self.rows], schema=ROWS, orient="row")


def _format_bound(percent: float | None) -> str:
    """Return a bound in per cent, rounded up, so that the bound remains true."""
    value = percent or 0.0
    digits = 2 if value < 1 else 1
    rounded = round(value, digits)
    return f"{rounded if rounded >= value else rounded + 10**-digits:,.{digits}f}"


def describe_step(step: CheckRow) -> str:
    """Return a clause about the duration of a step, with the durations, the change and its interval."""
    times = f"{format_duration(step.time_b_ns)} instead of {format_duration(step.time_a_ns)}"
    if step.change_percent is None:
        return f"a step takes {times}"
    interval = f" ({step.interval})" if step.interval else ""
    return f"a step takes {times}, {step.change_percent:+,.2f} %{interval}"


def describe_noise(step: CheckRow, runs_a: int, runs_b: int, earlier_runs: int) -> str:
    """Return a sentence about the variation between runs, or "" if it is unknown."""
    if step.noise_percent is None:
        return ""
    runs = f"{runs_a:,} of A, {runs_b:,} of B"
    if step.method == "variance" and earlier_runs:
        runs += f", and {earlier_runs:,} earlier ones"
    text = f"The duration of a step varies by {step.noise_percent:.2g} % from run to run ({runs})"
    if step.detectable_percent is None:
        return f"{text}."
    return f"{text}; an increase of {step.detectable_percent:.2g} % would be shown in 9 of 10 checks."
