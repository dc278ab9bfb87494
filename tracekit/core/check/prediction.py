"""Compare a measured saving with the one that an earlier answer of ``why`` or ``what-if`` predicted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tracekit.core.diagnosis.answer import Figures
from tracekit.errors import CorruptTraceError, TracekitError, create_choices_hint
from tracekit.text import format_duration, shorten_middle, to_printable

if TYPE_CHECKING:
    from collections.abc import Mapping

Agreement = Literal["inside", "below", "above", "untestable"]
TOGETHER = "together"
"""Name of the prediction that all cures of an answer are applied."""
EDITS = "edits"
"""Name of the prediction of an answer of ``what-if``."""
_MAX_NS = 1 << 62
_MAX_SAVING = 1.0
_HINT = "choose a file that tracekit why --format json or tracekit what-if --format json wrote"


@dataclass(frozen=True, slots=True)
class PredictedSaving(Figures):
    """What an answer of ``why`` or ``what-if`` predicted. Savings are fractions of the duration of a step.

    Attributes:
        cause: Name of the cause that is cured, ``together`` for all causes, or ``edits``.
        step_ns: Duration of a step before the change.
        low: Lower end of the interval of the saving.
        likely: Likely saving.
        high: Upper end of the interval of the saving.
        device: GPU on which the prediction was made, or None if it is unknown.
        step: Name of the range that delimits steps, or None.
    """

    cause: str
    step_ns: int
    low: float
    likely: float
    high: float
    device: str | None = None
    step: str | None = None


@dataclass(frozen=True, slots=True)
class PredictionResult(Figures):
    """How a measured saving compares with a predicted one. Savings are fractions of the duration of a step.

    Attributes:
        prediction: The prediction.
        agreement: Where the measured saving is: ``inside``, ``below`` or ``above`` the predicted interval, or
            ``untestable`` if there is no measured saving.
        measured: Measured saving, or None if it is unknown.
        runs: Number of measured runs.
        measured_low: Smallest saving of a run, or None if it is unknown.
        measured_high: Largest saving of a run, or None if it is unknown.
        sentence: The result in one sentence.
    """

    prediction: PredictedSaving
    agreement: Agreement
    measured: float | None
    runs: int
    measured_low: float | None
    measured_high: float | None
    sentence: str


def parse_prediction(value: object, cause: str | None = None) -> PredictedSaving:
    """Parse the JSON values of an answer of ``why`` or ``what-if``, and return a prediction.

    Args:
        value: The JSON values, which may be of any type: those of ``--format json``, or of ``--format answer``.
        cause: Name of the cause that was cured, or ``together``. If None, it is the first cause of an answer of
            ``why``, and the edits of an answer of ``what-if``.

    Raises:
        CorruptTraceError: The values are not an answer.
        TracekitError: The answer has no prediction, or none for this cause.
    """
    data = (value.get("data") or value.get("answer")) if isinstance(value, dict) else None
    if not (isinstance(value, dict) and isinstance(data, dict) and isinstance(value.get("schema"), int)):
        raise CorruptTraceError("the file is not an answer of tracekit", hint=_HINT)
    device = data.get("device") if isinstance(data.get("device"), str) else None
    step = data.get("step")
    if not isinstance(step, dict):
        raise TracekitError("the answer predicts no saving", hint="save the answer about a capture with steps")
    savings = _list_savings(data)
    chosen = next(iter(savings), "") if cause is None else cause
    if chosen not in savings:
        if not savings:
            raise TracekitError("the answer predicts no saving", hint="save the answer about a capture with causes")
        raise TracekitError(
            f"the answer has no cause {chosen!r}", hint=create_choices_hint("causes", list(savings), chosen)
        )
    name = step.get("name") if isinstance(step.get("name"), str) else None
    return PredictedSaving(chosen, _parse_time(step.get("mean_ns")), *savings[chosen], device, name)


def _list_savings(data: Mapping[str, Any]) -> dict[str, tuple[float, float, float]]:
    """Return the predicted savings of an answer by cause, each with the ends of its interval: low, likely, high.

    An answer about all cures together has no interval. It saves at least what any cure saves at least, and at most what
    all of them save at most.
    """
    causes, likely = data.get("causes"), data.get("saving")
    if not isinstance(causes, list):
        if likely is None:
            return {}
        ends = _parse_saving(data["without_profiler"])[::2] if data.get("without_profiler") else (likely, likely)
        point = _parse_saving({"low": likely, "likely": likely, "high": likely})[0]
        return {EDITS: (min(point, ends[0]), point, max(point, ends[1]))}
    savings: dict[str, tuple[float, float, float]] = {}
    for each in causes:
        if not (isinstance(each, dict) and isinstance(each.get("cause"), str)):
            raise CorruptTraceError("a cause of the answer has no name", hint=_HINT)
        savings.setdefault(each["cause"], _parse_saving(each.get("saving")))
    if savings and (together := data.get(TOGETHER)) is not None:
        point = _parse_saving({"low": together, "likely": together, "high": together})[0]
        low, high = max(s[0] for s in savings.values()), min(sum(s[2] for s in savings.values()), _MAX_SAVING)
        savings.setdefault(TOGETHER, (min(low, point), point, max(high, point)))
    return savings


def _parse_time(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _MAX_NS:
        raise CorruptTraceError("the duration of a step in the answer must be a positive integer", hint=_HINT)
    return value


def _parse_saving(value: object) -> tuple[float, float, float]:
    """Parse the interval of a saving. Its three numbers are fractions of at most 1, in ascending order."""
    numbers = [value.get(key) for key in ("low", "likely", "high")] if isinstance(value, dict) else []
    valid = [float(n) for n in numbers if isinstance(n, int | float) and not isinstance(n, bool) and abs(n) < _MAX_NS]
    if len(valid) != 3 or not all(map(math.isfinite, valid)) or valid != sorted(valid) or valid[2] > _MAX_SAVING:  # noqa: PLR2004
        raise CorruptTraceError(
            '"saving" in the answer must have the numbers "low", "likely" and "high", at most 1, in this order',
            hint=_HINT,
        )
    return valid[0], valid[1], valid[2]


def compare_with_prediction(prediction: PredictedSaving, step_times: list[float]) -> PredictionResult:
    """Return how the measured durations of a step compare with a prediction.

    Args:
        prediction: The prediction.
        step_times: Duration of a step in each run after the change, in ns. It is empty if it was not recorded.
    """
    cause = shorten_middle(to_printable(prediction.cause))
    predicted = f"predicted a saving of {_format(prediction.likely)}"
    predicted += f" ({_format(prediction.low)} to {_format(prediction.high)})"
    if not step_times:
        sentence = f"{cause}: {predicted}; no step was measured"
        return PredictionResult(prediction, "untestable", None, 0, None, None, sentence)
    savings = sorted(1 - time / prediction.step_ns for time in step_times)
    half = len(savings) // 2
    measured = savings[half] if len(savings) % 2 else (savings[half - 1] + savings[half]) / 2
    agreement: Agreement = "inside"
    if not prediction.low <= measured <= prediction.high:
        agreement = "below" if measured < prediction.low else "above"
    after = sorted(step_times)[half]
    runs = "1 run" if len(savings) == 1 else f"{len(savings):,} runs, {_format(savings[0])} to {_format(savings[-1])}"
    times = f"{format_duration(after)} instead of {format_duration(prediction.step_ns)}"
    place = f"{agreement} the predicted interval"
    sentence = f"{cause}: {predicted}, measured {_format(measured)} ({runs}; {times}): {place}"
    return PredictionResult(prediction, agreement, measured, len(savings), savings[0], savings[-1], sentence)


def _format(saving: float) -> str:
    return f"{round(saving * 100, 1) + 0.0:.1f} %"
