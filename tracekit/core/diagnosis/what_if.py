"""Predict the time of steps after edits of their events."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tracekit.core.diagnosis import causes, ledger
from tracekit.core.diagnosis.answer import Answer, Figures, LedgerPart, Saving, StepFigures
from tracekit.core.diagnosis.cures import LIKELY, apply_cures, find_stalls
from tracekit.core.diagnosis.diagnose import (
    MAX_ERROR,
    Options,
    check_step_time,
    choose_scales,
    explain_missing_gpu_work,
    list_notes,
)
from tracekit.core.diagnosis.edits import EditSelection, SelectedPart, create_matches_hint, parse_edit, select_events
from tracekit.core.diagnosis.inspection import Inspection
from tracekit.core.diagnosis.operations import NO_WAIT
from tracekit.core.diagnosis.recording import find_command
from tracekit.core.diagnosis.replay import CpuScales, Edit, ModelReplay, ReplayError, create_unedited
from tracekit.core.diagnosis.steady_steps import build_ledger, list_steady_models, measure_steps
from tracekit.errors import TracekitError, UnknownFormatError
from tracekit.schemas.objects import build_object
from tracekit.text import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Self

    import numpy.typing as npt

    from tracekit.core.diagnosis.cures import Cure
    from tracekit.core.diagnosis.edits import Action, StepEdit
    from tracekit.core.diagnosis.model import Model
    from tracekit.core.diagnosis.steady_steps import Basis
    from tracekit.core.rollup import Rollup
    from tracekit.native.replay import ReplayResult

    Floats = npt.NDArray[np.float64]
    Mask = npt.NDArray[np.bool_]

_MAX_TOTAL_NS = 1 << 60
_MOSTLY = 0.5
_SAME = 0.0005
_RECORD_CALLS = "nsys profile --trace=cuda,nvtx"
_CPU_HINT = "API calls ({}) tell the work of the CPU"


@dataclass(frozen=True, slots=True)
class EditMatch(Figures):
    """What an edit selects in the steady steps.

    Attributes:
        number: Number of the edit, from 0.
        edit: The edit.
        name: Name of the edit, or None.
        side: What is changed: ``cpu``, ``gpu`` or ``both``.
        count: Number of selected kernels, copies, calls or occurrences of ranges in all steady steps.
        cpu_ns: Recorded time that they take on the launching thread, with waiting, if it is changed.
        gpu_ns: Recorded time that they take on the GPU, if it is changed.
        hint: What to do if the edit changes nothing, or "".
    """

    number: int
    edit: str
    name: str | None
    side: str
    count: int
    cpu_ns: int
    gpu_ns: int
    hint: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return what the edit selects as a dictionary for JSON."""
        return {name: v for name, v in Figures.to_dict(self).items() if name not in ("number", "hint")}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return what an edit selects, given its dictionary, with the number 0.

        Raises:
            SchemaError: The dictionary is not that of an edit.
        """
        return build_object(cls, values, number=0)


@dataclass(frozen=True, slots=True)
class WhatIf(Answer):
    """The predicted time of steps after edits.

    Attributes:
        sentence: The answer in one sentence.
        status: ``answered``; ``unsure`` if the replay does not reproduce the recorded steps; ``not_recorded`` or
            ``not_applicable`` if the capture has no GPU work.
        step: What was recorded about the steps, or None.
        before_ns: Duration of the median step before the edits: the recorded one, or that without the profiler.
        after_ns: Predicted duration of this step.
        saving: Predicted saving as a share of the time of the steady steps. It is negative if they become longer.
        without_profiler: The saving if the CPU runs as fast as without the profiler, or None.
        edits: What each edit selects.
        ledger: The parts of the time of the predicted steps, the largest first. They add up to ``after_ns``.
        replay_error: Largest difference between the replayed and the recorded duration of a step, as a share.
        notes: What limits the prediction.
        ranks: The predictions for all ranks or processes, if there are several.
        rank: Rank or number of the process, or None if there is only one.
    """

    step: StepFigures | None = None
    before_ns: int = 0
    after_ns: int = 0
    saving: float = 0.0
    without_profiler: Saving | None = None
    edits: tuple[EditMatch, ...] = ()
    ledger: tuple[LedgerPart, ...] = ()
    replay_error: float | None = None
    notes: tuple[str, ...] = ()
    ranks: tuple[WhatIf, ...] = ()
    rank: int | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the prediction whose dictionary is given.

        Raises:
            SchemaError: The dictionary is not that of a prediction.
        """
        built = build_object(cls, values)
        return replace(built, edits=tuple(replace(edit, number=i) for i, edit in enumerate(built.edits)))


def parse_edits(edits: str | Iterable[str]) -> tuple[StepEdit, ...]:
    """Parse one or several edits.

    Raises:
        UnknownFormatError: There is no edit, or a text is not an edit.
    """
    parsed = tuple(parse_edit(text) for text in ([edits] if isinstance(edits, str) else edits))
    if not parsed:
        raise UnknownFormatError("there is no edit", hint="name at least one, such as 'kernel *gemm* x0.5'")
    return parsed


def predict(
    rollup: Rollup, edits: Sequence[StepEdit], options: Options | None = None, *, rank: int | None = None
) -> WhatIf:
    """Predict the time of the steps of a capture after edits.

    An edit that matches nothing is no error (see ``check_matches``).

    Args:
        rollup: The roll-up of the capture, whose aggregated iterations are the steady steps.
        edits: The edits.
        options: Options.
        rank: Rank of the capture, or None if it is unknown. Processes of one capture are numbered from 0.

    Returns:
        The prediction for the process with the most GPU work. If several processes ran GPU operations, its attribute
        ``ranks`` has the predictions for all of them.
    """
    chosen, processes = options or Options(), list_steady_models(rollup)
    if not processes:
        return _explain_missing_steps(rollup, rank)
    if len(processes) == 1 or rank is not None:
        return _predict_process(processes[0], rollup, edits, chosen, rank)
    return combine([_predict_process(each, rollup, edits, chosen, i) for i, each in enumerate(processes)])


def _explain_missing_steps(rollup: Rollup, rank: int | None) -> WhatIf:
    """Return the answer for a capture without GPU work in steps, about which ``why`` may have something to say."""
    reason = explain_missing_gpu_work(rollup)
    if reason.status in ("not_applicable", "not_recorded"):
        return WhatIf(reason.sentence, reason.status, rank=rank)
    sentence = f"The capture contains no steps with GPU work, so nothing is predicted. {reason.sentence}"
    return WhatIf(sentence, "not_applicable", rank=rank)


def combine(answers: Sequence[WhatIf]) -> WhatIf:
    """Return the prediction for the rank with the longest predicted step, with those of all ranks."""
    slowest = max(answers, key=lambda answer: answer.after_ns)
    note = "ranks are replayed separately: the time for which they wait for one another stays as recorded"
    return replace(slowest, ranks=tuple(answers), notes=(*slowest.notes, note))


def check_matches(edits: Sequence[StepEdit], answer: WhatIf) -> None:
    """Raise an error if an edit changes nothing in any rank.

    Raises:
        UnknownFormatError: An edit matches nothing, or applies to no rank.
    """
    answers = [each for each in (answer.ranks or (answer,)) if each.step is not None]
    if not answers:
        return
    for number, edit in enumerate(edits):
        matches = [match for each in answers for match in each.edits if match.number == number]
        if not matches:
            ranks = [str(each.rank) for each in answers if each.rank is not None]
            hint = f"the ranks are {', '.join(ranks)}" if ranks else "remove the rank, because there is only one"
            raise UnknownFormatError(f"the edit {str(edit)!r} applies to no rank", hint=hint)
        if all(match.hint for match in matches):
            raise UnknownFormatError(
                f"the edit {str(edit)!r} matches nothing in the steady steps", hint=matches[0].hint
            )


def _predict_process(
    model: Model, rollup: Rollup, edits: Sequence[StepEdit], options: Options, rank: int | None
) -> WhatIf:
    basis = measure_steps(model, rollup)
    try:
        return _replay(basis, edits, options, rank)
    except ReplayError as error:
        sentence = f"The events cannot be replayed, so nothing is predicted: {error}."
        return WhatIf(sentence, "unsure", rank=rank)


def _replay(basis: Basis, edits: Sequence[StepEdit], options: Options, rank: int | None) -> WhatIf:
    model, step, _, _ = basis
    engine, inspection = ModelReplay(model), Inspection(model)
    cures = list(causes.find_cures(inspection))
    scales, likely = choose_scales(engine, inspection, cures, options)
    own = [(number, edit) for number, edit in enumerate(edits) if edit.applies_to(rank)]
    selections = [select_events(inspection, cures, edit) for _, edit in own]
    matches = tuple(
        _describe_match(inspection, cures, number, edit, selection)
        for (number, edit), selection in zip(own, selections, strict=True)
    )
    changed = _apply(model, cures, [edit for _, edit in own], selections)
    unedited, is_stall = create_unedited(model), find_stalls(model, cures)
    before = [engine.measure(unedited, scale, is_stall) for scale in scales]
    after = [engine.measure(changed, scale, is_stall) for scale in scales]
    savings = [1 - max(0, a) / b if b > 0 else 0.0 for a, b in zip(after, before, strict=True)]
    before_ns = options.step_ns if options.step_ns is not None else step.median_ns
    after_ns = round(before_ns * (1 - savings[0]))
    replayed = _create_replayed_model(engine, changed, engine.run(changed, scales[0], is_stall))
    parts = build_ledger(ledger.divide_steps(replayed), after_ns)
    without_cpu = _predict_without_cpu(engine, changed, unedited, is_stall) if model.events.has_no_cpu_events else None
    is_unknown = without_cpu is not None and abs(without_cpu - savings[0]) >= _SAME
    is_unsure = engine.error > MAX_ERROR
    bounds = (savings[0], without_cpu) if without_cpu is not None and is_unknown else (savings[0],)
    return WhatIf(
        sentence=_write_sentence(before_ns, bounds, is_unsure=is_unsure),
        status="unsure" if is_unsure or is_unknown else "answered",
        step=step,
        before_ns=before_ns,
        after_ns=after_ns,
        saving=savings[0],
        without_profiler=None if is_unknown else Saving(min(savings), savings[likely], max(savings)),
        edits=matches,
        ledger=parts,
        replay_error=engine.error,
        notes=(
            *list_notes(step, engine, parts, inspection, model),
            *check_step_time(engine, cures, scales[likely], options),
            *([_CPU_HINT.format(find_command(model.events.frames, "api_calls", _RECORD_CALLS))] * is_unknown),
        ),
        rank=rank,
    )


def _predict_without_cpu(engine: ModelReplay, changed: Edit, unedited: Edit, is_stall: Mask) -> float:
    """Return the saving if the CPU never holds back the GPU."""
    none = CpuScales(0.0, 0.0, 0.0)
    before, after = (engine.measure(edit, none, is_stall) for edit in (unedited, changed))
    return 1 - max(0, after) / before if before > 0 else 0.0


def _describe_match(
    inspection: Inspection, cures: Sequence[Cure], number: int, edit: StepEdit, selection: EditSelection
) -> EditMatch:
    items, ops = inspection.model.items, inspection.model.operations
    on_cpu, on_gpu = selection.items, selection.operations
    cpu_ns = float(((items.end - items.start)[on_cpu.rows] * on_cpu.share).sum())
    gpu_ns = int(ops.duration[on_gpu.rows].sum())
    is_match = len(on_cpu.rows) > 0 or len(on_gpu.rows) > 0
    hint = "" if is_match else create_matches_hint(inspection, cures, edit, selection)
    return EditMatch(number, str(edit), edit.name, edit.side, selection.occurrences, round(cpu_ns), gpu_ns, hint)


def _apply(model: Model, cures: Sequence[Cure], edits: Sequence[StepEdit], selections: Sequence[EditSelection]) -> Edit:
    """Return the changes of all edits. Cures come first, and the other edits apply one after another.

    Raises:
        TracekitError: The steps would take years.
    """
    cured = [edit.pattern for edit in edits if edit.action.verb == "cured"]
    result = apply_cures(model, [cure for cure in cures if cure.cause in cured], LIKELY)
    items, operations = result.item_duration, result.operation_duration.astype(np.float64)
    dropped = result.dropped_waits.copy()
    for edit, (_, on_cpu, on_gpu) in zip(edits, selections, strict=True):
        if edit.action.verb == "cured":
            continue
        items = _change_durations(items, on_cpu, edit.action)
        operations = _change_durations(operations, on_gpu, edit.action)
        if edit.action.verb != "scaled":
            dropped[on_cpu.rows[on_cpu.share >= _MOSTLY]] = True
    if items.sum() + operations.sum() > _MAX_TOTAL_NS:
        raise TracekitError("the edited steps would take years", hint="use smaller factors and times")
    return result._replace(
        item_duration=np.rint(items),
        operation_duration=np.rint(operations).astype(np.int64),
        dropped_waits=dropped,
    )


def _change_durations(durations: Floats, part: SelectedPart, action: Action) -> Floats:
    """Return durations of which a part is scaled, set or removed."""
    inside = durations[part.rows] * part.share
    if action.verb == "set":
        group = np.unique(part.group, return_inverse=True)[1]
        total, count = np.bincount(group, weights=inside)[group], np.bincount(group)[group]
        changed = np.where(total > 0, inside * (action.ns / np.maximum(total, 1)), action.ns / count)
    else:
        changed = inside * float(action.factor if action.verb == "scaled" else 0)
    result = durations.copy()
    np.add.at(result, part.rows, changed - inside)
    return np.maximum(result, 0.0)


def _create_replayed_model(engine: ModelReplay, changed: Edit, result: ReplayResult) -> Model:
    """Return the model with the times of a replay."""
    model = engine.model
    wait = np.where(changed.dropped_waits, NO_WAIT, model.items.wait).astype(np.uint8)
    items = model.items._replace(start=result.item_start, end=result.item_end, wait=wait)
    operations = model.operations._replace(start=result.op_start, end=result.op_end)
    bounds = np.maximum.accumulate(engine.measure_steps(result))
    return replace(model, bounds=bounds, items=items, operations=operations)


def _write_sentence(before_ns: int, savings: Sequence[float], *, is_unsure: bool) -> str:
    """Return the prediction in one sentence. Several savings are the bounds if the work of the CPU is unknown."""
    first = savings[0]
    after = [format_duration(round(before_ns * (1 - saving))) for saving in sorted(savings, reverse=True)]
    if len(savings) > 1:
        text = (
            f"A step would take {' to '.join(after)} instead of {format_duration(before_ns)}: neither API calls nor "
            "ranges were recorded, so the work of the CPU is unknown."
        )
    elif abs(first) < _SAME:
        text = f"A step would still take {format_duration(before_ns)}."
    else:
        change = f"{first:.1%} less" if first > 0 else f"{-first:.1%} more"
        text = f"A step would take {after[0]} instead of {format_duration(before_ns)}: {change}."
    return f"{text} This is unreliable: the replay does not reproduce the recorded steps." if is_unsure else text
