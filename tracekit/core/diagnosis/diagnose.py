"""Diagnose a capture: divide the time of its steps, find causes, and predict what their cures save."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.core.communication import (
    LOGGED,
    Communication,
    find_pending_operations,
    list_pending_sentences,
    read_call_tables,
    read_logged_states,
)
from tracekit.core.diagnosis import causes, ledger
from tracekit.core.diagnosis.answer import (
    MAX_CAUSES,
    MIN_SAVING,
    CauseOfTime,
    ColdSteps,
    Evidence,
    LedgerPart,
    Place,
    Rows,
    Saving,
    Status,
    StepFigures,
    Why,
)
from tracekit.core.diagnosis.causes.communication import find_transfer_times
from tracekit.core.diagnosis.causes.host import choose_change_of_loading
from tracekit.core.diagnosis.causes.ranks import find_ends_of_barriers
from tracekit.core.diagnosis.cures import Cure, find_stalls, predict_savings
from tracekit.core.diagnosis.events import JoinedResults, find_framework
from tracekit.core.diagnosis.first_calls import find_compile_times, list_first_calls
from tracekit.core.diagnosis.inspection import Inspection
from tracekit.core.diagnosis.isolated import explain_isolated_kernels
from tracekit.core.diagnosis.model import MAX_ITEMS, MIN_STEPS, Model, build_model, find_representative_steps
from tracekit.core.diagnosis.ranks import (
    CuredSteps,
    CureReplay,
    Examination,
    RankPlan,
    RankProfile,
    plan_ranks,
    predict_job,
    profile_process,
)
from tracekit.core.diagnosis.recording import GRAPH_NODES, RECORD_NODES, find_command
from tracekit.core.diagnosis.replay import CpuScales, ModelReplay, ReplayError, create_unedited
from tracekit.core.diagnosis.steady_steps import Basis, build_steady_models, list_steady_models, measure_steps
from tracekit.core.diagnosis.unexplained import NAME as UNEXPLAINED
from tracekit.core.diagnosis.unexplained import find_unexplained_idle_time
from tracekit.core.rollup.tables import build_iterations
from tracekit.core.totals import TABLE as TABLE_OF_TOTALS
from tracekit.core.totals import summarize_names
from tracekit.errors import TracekitError
from tracekit.system.sorting import create_series
from tracekit.text import format_duration, shorten_middle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from tracekit.core.rollup import Rollup

    Int64s = npt.NDArray[np.int64]
    Mask = npt.NDArray[np.bool_]

MAX_ROW_IDS, MAX_ROW_NAMES = 100, 16
MAX_ERROR = 0.01
_OPAQUE_SHARE, _COMPILING_SHARE, _UNEXPLAINED_SHARE, _LOADING_SHARE = 0.2, 0.3, 0.1, 0.02
_TIMES = {"start_ns": pl.Int64, "end_ns": pl.Int64}
_SLACK = 0.03
"""Share by which each predicted interval is extended on both sides: the difference between two runs of a program."""
_MIN_COVERAGE = 0.9
_BISECTIONS, _FED_SHARE = 24, 0.05
_UNIFORM, _MIDDLE, _LONGEST, _LEAST_SLOWDOWN = 0.5, 0.5, 0.95, 0.01
_DOMAINS_OF_PYTORCH = ["cpu_op", "user_annotation", "python_function"]
_ONLY_MEMORY = (
    "The capture records only the memory of GPUs: the report allocator_peak shows its peak, and allocator_owners what "
    "held the memory then."
)
_UNEVEN_SHARE, _MAIN_COLD_SHARE, _SMALL_SHARE, _LEAST_SHARE = 0.1, 0.25, 0.01, 0.0005


@dataclass(frozen=True, slots=True)
class Options:
    """Options of ``why``.

    Attributes:
        step_ns: Duration of a step without the profiler, in ns, or None if it is unknown.

    Raises:
        TracekitError: The duration is not positive.
    """

    step_ns: int | None = None

    def __post_init__(self) -> None:
        if self.step_ns is not None and self.step_ns <= 0:
            hint = "use a positive number of nanoseconds"
            raise TracekitError(f"the duration of a step cannot be {self.step_ns} ns", hint=hint)


def diagnose(rollup: Rollup, options: Options | None = None, joined: JoinedResults | None = None) -> Why:
    """Explain why the steps of a capture take as long as they do. The answer is computed once per roll-up.

    Args:
        rollup: The roll-up of the capture, whose aggregated iterations are the steady steps.
        options: Options.
        joined: Results of Nsight Compute that are joined to the kernels, or None.

    Returns:
        The answer of the process with the most GPU work. If several processes ran GPU operations, its attribute
        ``ranks`` has the answers of all of them.
    """
    chosen = options or Options()
    key = ("why", chosen, joined and joined.key, *causes.RULES)
    if key not in rollup.results:
        rollup.results[key] = _diagnose_all_processes(rollup, chosen, joined)
    answer: Why = rollup.results[key]
    return answer


def _diagnose_all_processes(rollup: Rollup, options: Options, joined: JoinedResults | None) -> Why:
    models = list_steady_models(rollup, joined)
    if not models:
        return explain_missing_gpu_work(rollup)
    if len(models) == 1:
        return _diagnose_process(models[0], rollup, options)
    plans, notes = plan_processes(models, rollup)
    examinations = [_examine_process(model, rollup, options, plans[model.events.process_id]) for model in models]
    return explain_job(examinations, notes=notes)


def plan_processes(models: Sequence[Model], rollup: Rollup) -> tuple[dict[int | None, RankPlan], list[str]]:
    """Return what is known about the other processes of a capture, for each process by its id, and notes about them."""
    tables = read_call_tables(rollup.measures.ops.frames)
    ranked = {name: rows.with_columns(rank=pl.lit(0, pl.Int64)) for name, rows in tables.items()}
    communication = Communication(ranked, ignores_missing_ranks=True)
    plans, notes = plan_ranks({0: list(map(profile_process, models))}, communication)
    return plans[0], notes


def profile_processes(rollup: Rollup) -> list[RankProfile]:
    """Return the profiles of the processes that ran GPU operations."""
    return list(map(profile_process, build_steady_models(rollup)))


def examine_processes(
    rollup: Rollup, options: Options, plans: Mapping[int | None, RankPlan], joined: JoinedResults | None = None
) -> list[Examination]:
    """Diagnose the processes of one capture, given the plan of each of them by its id."""
    models = build_steady_models(rollup, joined)
    return [_examine_process(model, rollup, options, plans[model.events.process_id]) for model in models]


def explain_job(examinations: Sequence[Examination], others: Sequence[Why] = (), notes: Sequence[str] = ()) -> Why:
    """Return the answer of a job, given what was found out about each of its processes.

    Args:
        examinations: The results for all processes with GPU operations.
        others: The answers of ranks that cannot be explained.
        notes: Sentences about the job as a whole.

    Returns:
        The answer of the slowest rank with the causes of the job. Its attribute ``ranks`` has the answers of all ranks.
    """
    ranked = [replace(e.answer, rank=e.rank) for e in examinations]
    ranks = tuple(sorted([*ranked, *others], key=lambda answer: -1 if answer.rank is None else answer.rank))
    replayed = [e for e in examinations if e.base is not None]
    if not replayed:
        slowest = max(ranks, key=lambda answer: answer.step.median_ns if answer.step else -1)
        return replace(slowest, ranks=ranks, notes=(*notes, *slowest.notes))
    number, listed = predict_job(replayed)
    answer = replace(replayed[number].answer, rank=replayed[number].rank)
    error = max(a.replay_error or 0.0 for a in ranked)
    shown = tuple(c for c in listed if c.saving.likely >= MIN_SAVING)
    listed = _list_shown(shown, tuple(c for c in listed if c not in shown), replayed[number].unexplained)
    status = _choose_status(error, answer.ledger, shown, listed)
    remark = f"rank {answer.rank}, the slowest of {len(ranks)}" if len(ranks) > 1 else ""
    text = (
        answer.sentence
        if answer.step is None
        else _write_sentence(answer.step, answer.ledger, listed, status, answer.cold, remark=remark)
    )
    return replace(
        answer,
        sentence=text,
        status=status,
        causes=listed,
        together=sum((c.after for c in listed), 0.0),
        replay_error=error,
        notes=(*notes, *answer.notes),
        ranks=ranks,
    )


def explain_hang(answer: Why, logged: pl.DataFrame) -> Why:
    """Return the answer of a job whose logs show that it hangs in collectives, or the given answer.

    Args:
        answer: The answer that does not consider the logs.
        logged: The rows of ``read_logged_states`` of all ranks, with the column ``rank``.
    """
    sentences = list_pending_sentences(find_pending_operations(logged))
    if not sentences:
        return answer
    return replace(answer, sentence=sentences[0], status="answered", notes=(*sentences[1:], *answer.notes))


def explain_missing_gpu_work(rollup: Rollup) -> Why:
    """Return the answer of a capture without GPU work, which says what to record."""
    frames = rollup.measures.ops.frames
    if frames("ncu_launches").select(pl.len()).collect().item():
        return explain_isolated_kernels(frames)
    if frames("allocator_events").select(pl.len()).collect().item():
        return Why(_ONLY_MEMORY, "not_applicable")
    if frames("nvtx_ranges").select(pl.len()).collect().item() or frames("api_calls").select(pl.len()).collect().item():
        return (
            _explain_compilation(rollup)
            or _explain_data_loading(rollup)
            or Why(
                f"No GPU work was recorded, so there is nothing to explain: record with {_choose_recording(rollup)}.",
                "not_recorded",
            )
        )
    totals = summarize_names(frames(TABLE_OF_TOTALS).collect())
    if totals.height:
        return Why(_describe_totals(totals, rollup), "not_recorded")
    answer = Why("The capture contains no GPU work that could be explained.", "not_applicable")
    if not frames(LOGGED).select(pl.len()).collect().item():
        return answer
    return explain_hang(answer, read_logged_states(frames).with_columns(rank=pl.lit(None, pl.Int64)))


def _describe_totals(totals: pl.DataFrame, rollup: Rollup) -> str:
    """Return the answer of a profile without a timeline."""
    largest = totals.row(0, named=True)
    share = f" ({largest['share']:.0f}%)" if largest["share"] is not None else ""
    info = rollup.measures.ops.frames("capture_info").select(pl.col("name", "value").cast(pl.String)).collect()
    is_amd = ("device_vendors", "AMD") in info.rows()
    command = "rocprofv3 --sys-trace" if is_amd else "nsys profile --trace=cuda,nvtx"
    return (
        f"No timeline was recorded, only totals, of which {shorten_middle(largest['name'])} has the most time{share}: "
        f"record a timeline with {command}."
    )


def _choose_recording(rollup: Rollup) -> str:
    """Return how the profiler that wrote a capture records GPU work."""
    domains = rollup.measures.ops.frames("nvtx_ranges").select("domain").unique().collect()["domain"].cast(pl.String)
    frames = rollup.measures.ops.frames
    if domains.is_in(_DOMAINS_OF_PYTORCH).any():
        command = "torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])"
        return find_command(frames, "kernels", command, prefers_pytorch=True)
    return find_command(frames, "kernels", "nsys profile --trace=cuda,nvtx")


def _explain_compilation(rollup: Rollup) -> Why | None:
    """Return the answer of a capture without GPU work that mostly compiles code, or None if it does not."""
    frames = rollup.measures.ops.frames
    ranges = frames("nvtx_ranges").select("process_id", "start_ns", "end_ns").drop_nulls("end_ns").collect()
    processes = ranges["process_id"].unique().sort().to_list()
    times = pl.concat([pl.DataFrame(schema=_TIMES), *(find_compile_times(frames, p) for p in processes)])
    if times.is_empty():
        return None
    first, last = ranges.select(pl.col("start_ns").min().alias("first"), pl.col("end_ns").max().alias("last")).row(0)
    duration = pl.col("end_ns") - pl.col("start_ns")
    longest = times.sort(duration, descending=True).row(0)
    total = int(times.select(duration.sum()).item())
    share = min(1.0, total / max(1, last - first))
    if share < _COMPILING_SHARE:
        return None
    recurs = rollup.iterations.frame.height > 1
    names = frames("nvtx_ranges").select(pl.col("name").unique()).drop_nulls().collect().to_series()
    framework = find_framework(names.cast(pl.String), pl.Series(dtype=pl.String))
    name = "recompilation" if recurs else "first_call"
    text = f"ranges of a compiler take {format_duration(total)} of {format_duration(last - first)}"
    cause = CauseOfTime(
        cause=name,
        place=Place(None, None, processes[0]),
        evidence=Evidence(text, times.height, total, "nvtx_ranges", None, longest[0], longest[1]),
        rows=(),
        change=causes.get_change(name, framework),
        check=causes.get_check(name),
        saving=Saving(share / 2, share, 1.0),
        after=share,
        status="unsure",
        missing=f"GPU work: {_choose_recording(rollup)}",
    )
    sentence = f"No GPU work was recorded, but {text}: {name.replace('_', ' ')}."
    return Why(sentence, "unsure", causes=(cause,), together=share, framework=framework)


def _explain_data_loading(rollup: Rollup) -> Why | None:
    """Return the answer of a program on the CPU that loads data in its steps, or None if it does not.

    Workers load data on cores of their own. If the other work uses all of ``n`` cores, they save up to ``1 - 1 / n`` of
    the loading, and less if they slow it down. Captures do not state how many cores there are, and how many are free.
    """
    duration = pl.col("end_ns") - pl.col("start_ns")
    steps = build_iterations(rollup).filter(~pl.col("is_warm_up")).select("in_dataloader_ns", *_TIMES, time=duration)
    if steps.height < MIN_STEPS:
        return None
    total, loading = (int(steps[name].sum()) for name in ("time", "in_dataloader_ns"))
    share = loading / max(1, total)
    if share < _LOADING_SHARE:
        return None
    longest = steps.sort("in_dataloader_ns", descending=True).row(0, named=True)
    names = rollup.measures.ops.frames("nvtx_ranges").select(pl.col("name").unique()).drop_nulls().collect()["name"]
    framework = find_framework(names.cast(pl.String), pl.Series(dtype=pl.String))
    time = f"{format_duration(loading // steps.height)} of {format_duration(total // steps.height)} per step"
    cause = CauseOfTime(
        cause="data_loading",
        place=Place(None, None, None),
        evidence=Evidence(
            f"the data loader takes {time}",
            steps.height,
            loading,
            "nvtx_ranges",
            None,
            longest["start_ns"],
            longest["end_ns"],
        ),
        rows=(),
        change=causes.get_change(choose_change_of_loading(rollup.measures.ops.frames), framework),
        check=causes.get_check("data_loading"),
        saving=Saving(0.0, share / 2, share),
        after=share / 2,
        status="unsure",
        missing="the steps with worker processes, because no capture states how many cores of the CPU are free",
    )
    sentence = f"No GPU work was recorded, but the data loader takes {time} ({share:.0%})."
    return Why(sentence, "unsure", causes=(cause,), together=share / 2, framework=framework)


def _compute_slack(model: Model, error: float) -> float:
    """Return the share by which predicted intervals are extended: half the spread of steps, and the replay's error."""
    durations = np.diff(model.bounds)
    ordered = np.sort(durations)
    median = int(ordered[(len(durations) - 1) // 2])
    last = len(durations) - 1
    spread = int(ordered[3 * last // 4] - ordered[last // 4]) / max(1, median)
    return _SLACK + min(0.3, spread / 2) / 2 + error


def _diagnose_process(model: Model, rollup: Rollup, options: Options) -> Why:
    basis = measure_steps(model, rollup)
    try:
        return _predict_process(basis, options)
    except ReplayError as error:
        return _explain_without_replay(basis, error)


def _explain_without_replay(basis: Basis, error: ReplayError) -> Why:
    """Return the answer without causes, because nothing can be predicted."""
    return Why(
        sentence=_write_sentence(basis.step, basis.parts, (), "unsure", basis.cold),
        status="unsure",
        step=basis.step,
        ledger=basis.parts,
        cold=basis.cold,
        notes=(f"the events cannot be replayed, so no savings are predicted: {error}",),
        device=Inspection(basis.model).device_name,
        framework=basis.model.events.framework,
    )


def _predict_process(basis: Basis, options: Options) -> Why:
    complete, step, parts, cold = basis
    events, model = complete.events, _limit(complete)
    engine = ModelReplay(model)
    inspection = Inspection(model)
    cold = _add_first_calls(cold, inspection)
    cures = list(causes.find_cures(inspection))
    scales, likely = choose_scales(engine, inspection, cures, options)
    slack = _compute_slack(complete, engine.error)
    predictions = predict_savings(engine, cures, scales, slack, likely=likely)
    all_causes = tuple(_describe_cure(inspection, *prediction) for prediction in predictions)
    shown = tuple(c for c in all_causes if c.saving.likely >= MIN_SAVING)[:MAX_CAUSES]
    healthy = {cure.cause for cure in cures if cure.is_healthy}
    others = tuple(c for c in all_causes if c not in shown and (c.status == "unsure" or c.cause in healthy))
    listed = (*shown, *others)
    owners = [prediction.cure for prediction, cause in zip(predictions, all_causes, strict=True) if cause in listed]
    unexplained = find_unexplained_idle_time(inspection, engine, owners, scales[likely], find_stalls(model, cures))
    listed = _list_shown(shown, others, unexplained)
    status = _choose_status(engine.error, parts, shown, listed)
    notes = (
        *list_notes(step, engine, parts, inspection, complete),
        *check_step_time(engine, cures, scales[likely], options),
    )
    return Why(
        sentence=_write_sentence(step, parts, listed, status, cold),
        status=status,
        step=step,
        ledger=parts,
        causes=listed,
        together=sum((c.after for c in listed), 0.0),
        replay_error=engine.error,
        cold=cold,
        first_calls=tuple(list_first_calls(events, inspection.first_calls)),
        notes=notes,
        device=inspection.device_name,
        framework=events.framework,
        roofline=next((c.evidence.text for c in all_causes if c.cause in healthy), ""),
        roofline_share=inspection.roofline[1] if inspection.roofline[0] else None,
        roofline_known=inspection.roofline[0],
    )


def _add_first_calls(cold: ColdSteps | None, inspection: Inspection) -> ColdSteps | None:
    """Add the operations with slow first calls in the warm-up to its description."""
    if cold is None:
        return None
    calls = inspection.first_calls.filter(pl.col("start_ns").is_between(cold.start_ns, cold.end_ns, closed="left"))
    return replace(cold, first_calls=tuple(list_first_calls(inspection.model.events, calls)))


def _examine_process(model: Model, rollup: Rollup, options: Options, plan: RankPlan) -> Examination:
    """Diagnose one process of a job. A process that has no steps in common with others is a separate program."""
    if plan.steps is None:
        return Examination(_diagnose_process(model, rollup, options), plan.rank)
    basis = measure_steps(model, rollup, plan)
    try:
        return _predict_rank(basis, options, plan, plan.steps)
    except ReplayError as error:
        return Examination(_explain_without_replay(basis, error), plan.rank)


def _predict_rank(basis: Basis, options: Options, plan: RankPlan, common_steps: tuple[int, int]) -> Examination:
    complete, step, parts, cold = basis
    events = complete.events
    first, last = common_steps
    is_part = (first, last) != (0, len(complete.steps) - 1)
    model = build_model(events, complete.steps[first : last + 1]) if is_part else complete
    late, waited = plan.find_late_times(model), plan.find_waits_on_cpu(model)
    inspection = Inspection(model, late, plan)
    cold = _add_first_calls(cold, inspection)
    cuts = find_ends_of_barriers(inspection)
    recorded = ModelReplay(model)
    engine = ModelReplay(model, find_transfer_times(inspection), model.items.duration - waited)
    cures = list(causes.find_cures(inspection))
    own_step = None if options.step_ns is None else max(1, round(options.step_ns * plan.speed))
    scales, likely = choose_scales(engine, inspection, cures, Options(own_step))
    slack = _compute_slack(complete, recorded.error)
    replay = CureReplay(engine, scales, find_stalls(model, cures), likely, slack, cuts)
    base = replay.measure_base()
    durations = [replay.measure_cure(cure, base) for cure in cures]
    unknown = Saving(0.0, 0.0, 0.0)
    cured = tuple(
        CuredSteps.create(cure, _describe_cure(inspection, cure, unknown, 0.0), steps)
        for cure, steps in zip(cures, durations, strict=True)
    )
    answer = Why(
        sentence=_write_sentence_of_rank(step, parts),
        status="unsure" if recorded.error > MAX_ERROR else "answered",
        step=step,
        ledger=parts,
        replay_error=recorded.error,
        cold=cold,
        first_calls=tuple(list_first_calls(events, inspection.first_calls)),
        notes=tuple(list_notes(step, recorded, parts, inspection, complete)),
        device=inspection.device_name,
        framework=events.framework,
        roofline_share=inspection.roofline[1] if inspection.roofline[0] else None,
        roofline_known=inspection.roofline[0],
    )
    owners = [cure for cure, d in zip(cures, durations, strict=True) if d is not None or cure.is_unsure]
    return Examination(
        answer,
        plan.rank,
        cured,
        base,
        replay.combine(cures, durations),
        likely,
        slack,
        find_unexplained_idle_time(inspection, engine, owners, scales[likely], replay.is_stall),
        replay.unit_starts,
    )


def _limit(model: Model) -> Model:
    """Return the model, or that of consecutive steps that represent it if it is too large to be replayed often."""
    size = len(model.items.start) + len(model.operations.start)
    if size <= MAX_ITEMS or len(model.steps) < MIN_STEPS:
        return model
    count = max(1, len(model.steps) * MAX_ITEMS // size)
    first = find_representative_steps(np.diff(model.bounds), count)
    return build_model(model.events, model.steps[first : first + count])


def choose_scales(
    engine: ModelReplay, inspection: Inspection, cures: Sequence[Cure], options: Options
) -> tuple[tuple[CpuScales, ...], int]:
    """Return the scales of the CPU without the profiler, and the number of the likely ones.

    If the duration of a step without the profiler is known, scales are solved for it: those in the proportions of each
    of the usual ones, because one duration does not show what the profiler slows down. If the duration hardly depends
    on them because the GPU is the bound, the usual scales are kept.
    """
    if options.step_ns is None:
        return inspection.scales, 1
    is_stall = find_stalls(engine.model, cures)
    unedited, target = create_unedited(engine.model), options.step_ns * len(engine.model.steps)
    recorded, half = (engine.measure(unedited, CpuScales(s, s, s), is_stall) for s in (1.0, 0.5))
    if recorded - half <= _FED_SHARE * recorded:
        return inspection.scales, 1
    if target > recorded:
        fast = inspection.scales[1].launch
        launches = ((1 + fast) / 2, 1.0, fast)
        families = [functools.partial(_stretch_host, launch) for launch in launches]
    else:
        directions = (*inspection.scales[1:], CpuScales(_UNIFORM, _UNIFORM, _UNIFORM))
        families = [functools.partial(_shorten, direction) for direction in directions]
    return tuple(_solve_scales(engine, is_stall, family, target) for family in families), 0


def _stretch_host(launch: float, distance: float) -> CpuScales:
    """Return scales of a program that is slower without the profiler, which makes no call faster: its own work is."""
    host = 1 / (1 - _LONGEST * distance)
    return CpuScales(host, launch, host)


def _shorten(direction: CpuScales, distance: float) -> CpuScales:
    """Return scales between the recorded durations and no time at all, in the proportions of some usual scales."""
    slowdowns = (max(_LEAST_SLOWDOWN, 1 - scale) for scale in direction)
    return CpuScales(*(max(0.0, 1 - distance / _LEAST_SLOWDOWN * slowdown) for slowdown in slowdowns))


def _solve_scales(
    engine: ModelReplay, is_stall: Mask, family: Callable[[float], CpuScales], target: float
) -> CpuScales:
    """Return the scales of a family, numbered from 0 to 1, with which the unchanged steps take a given time.

    The replay is monotone: the longer the items, the longer the steps.
    """
    unedited, low, high = create_unedited(engine.model), 0.0, 1.0
    rising = family(_MIDDLE).host > family(0.0).host
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if (engine.measure(unedited, family(middle), is_stall) > target) == rising:
            high = middle
        else:
            low = middle
    return family(low)


def check_step_time(engine: ModelReplay, cures: Sequence[Cure], scales: CpuScales, options: Options) -> Iterator[str]:
    """Yield a note if no speed of the CPU yields the duration of a step without the profiler."""
    if options.step_ns is None:
        return
    model = engine.model
    time = engine.measure(create_unedited(model), scales, find_stalls(model, cures)) / len(model.steps)
    if abs(time - options.step_ns) > _FED_SHARE * options.step_ns:
        yield (
            f"no speed of the CPU yields a step of {format_duration(options.step_ns)}, so the predictions apply to one "
            f"of {format_duration(time)}"
        )


def _describe_cure(inspection: Inspection, cure: Cure, saving: Saving, after: float) -> CauseOfTime:
    """Return the cause of a cure with its predicted savings."""
    events = inspection.model.events
    return CauseOfTime(
        cause=cure.cause,
        place=Place(cure.place or None, events.main_thread, events.process_id, functions=tuple(cure.functions)),
        evidence=_describe_evidence(inspection, cure),
        rows=tuple(_list_rows(inspection, cure)),
        change=causes.get_change(cure.change or cure.cause, events.framework),
        check=causes.get_check(cure.cause),
        saving=saving,
        after=after,
        status="unsure" if cure.is_unsure else "answered",
        missing=cure.missing,
    )


def _describe_evidence(inspection: Inspection, cure: Cure) -> Evidence:
    items, ops = inspection.model.items, inspection.model.operations
    rows, of_gpu = cure.item_rows, cure.operation_rows
    time = int((items.end - items.start)[rows].sum()) + int(ops.duration[of_gpu].sum())
    table, row_id, start_ns, end_ns = cure.example or (None, None, None, None)
    count = inspection.count_occurrences(cure)
    return Evidence(cure.evidence, count, time, table, row_id, start_ns, end_ns, cure.brief)


def _list_rows(inspection: Inspection, cure: Cure) -> Iterator[Rows]:
    """Yield the GPU operations and API calls of a cure by table, or the ranges around its pauses if it has neither."""
    model, events = inspection.model, inspection.model.events
    operations = events.operations.select("table", "id", "name", "start_ns", "end_ns")
    rows = operations.select(pl.all().gather(create_series(model.operations.row[cure.operation_rows])))
    for (table,), own in rows.group_by("table", maintain_order=True):
        yield _create_rows(str(table), own)
    calls = model.items.call[cure.item_rows]
    calls = calls[calls >= 0]
    if len(calls):
        columns = events.calls.select("name", "start_ns", "end_ns", id="call_id")
        yield _create_rows("api_calls", columns.select(pl.all().gather(create_series(calls))))
    if len(cure.item_rows) and rows.is_empty() and not len(calls):
        ranges = events.list_labeled_ranges(cure.place, model.start_ns, model.end_ns)
        if ranges.height:
            yield _create_rows("nvtx_ranges", ranges)


def _create_rows(table: str, rows: pl.DataFrame) -> Rows:
    """Return the rows of a table, given the columns ``id``, ``name``, ``start_ns`` and ``end_ns``.

    If some of the rows have no name, no names are listed, because they would select only the other rows.
    """
    named = rows.filter(rows["name"].null_count() == 0)["name"]
    names = named.cast(pl.String).value_counts(sort=True)
    listed = names.sort("count", "name", descending=[True, False]).head(MAX_ROW_NAMES)
    first, last = rows.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    ids = tuple(rows["id"].head(MAX_ROW_IDS).to_list())
    return Rows(table, ids, rows.height, tuple(listed["name"]), names.height, int(first), int(last))


def _list_shown(
    shown: tuple[CauseOfTime, ...], others: tuple[CauseOfTime, ...], unexplained: CauseOfTime | None
) -> tuple[CauseOfTime, ...]:
    """Return the causes of an answer: those that save time, others that are unsure, and the unexplained idle time."""
    return (*shown, *others, *(() if unexplained is None else (unexplained,)))[:MAX_CAUSES]


def _sum_shares(parts: Sequence[LedgerPart], *groups: str) -> float:
    """Return the share of the parts of some classes in the time of steps."""
    return sum(part.share for part in parts if part.group in groups)


def _choose_status(
    error: float, parts: Sequence[LedgerPart], shown: Sequence[CauseOfTime], listed: Sequence[CauseOfTime]
) -> Status:
    is_unknown = _sum_shares(parts, "opaque") > _OPAQUE_SHARE or _get_unexplained_share(listed) > _UNEXPLAINED_SHARE
    if error > MAX_ERROR or (is_unknown and not shown):
        return "unsure"
    return "answered" if shown else "nothing_found"


def _get_unexplained_share(listed: Sequence[CauseOfTime]) -> float:
    """Return the share of the time in which the GPU is idle for no known cause."""
    return max((cause.saving.high for cause in listed if cause.cause == UNEXPLAINED), default=0.0)


def list_notes(
    step: StepFigures, engine: ModelReplay, parts: Sequence[LedgerPart], inspection: Inspection, complete: Model
) -> Iterator[str]:
    """Yield what limits the answer."""
    model = inspection.model
    if model.events.distant:
        yield f"events that are more than 73 years from the origin are left out: {model.events.distant:,}"
    if step.name is None:
        yield "no range delimits steps, so the whole capture is one step, which includes start-up"
    elif step.count < MIN_STEPS:
        yield f"the capture has only {step.count} steady {'step' if step.count == 1 else 'steps'}"
    if step.covered is not None and step.covered < _MIN_COVERAGE:
        yield f"steps launched only {step.covered:.0%} of the GPU time"
    if engine.error > MAX_ERROR:
        yield f"the replay of a step is off by up to {engine.error:.1%}, so predictions are unreliable"
    opaque = _sum_shares(parts, "opaque")
    if opaque > _OPAQUE_SHARE:
        yield (
            f"{opaque:.0%} of the step is spent in CUDA graphs that were recorded as a whole, so nothing in them can "
            f"be explained: record with {find_command(model.events.frames, GRAPH_NODES, RECORD_NODES)}"
        )
    if (measured := inspection.measured) is not None and not measured.measured_kernels.any():
        yield "no kernel of the steady steps matches a result of Nsight Compute"
    if len(model.steps) < len(complete.steps):
        yield f"savings are predicted from {len(model.steps)} of {len(complete.steps)} steps"


def _write_sentence(
    step: StepFigures,
    parts: Sequence[LedgerPart],
    listed: Sequence[CauseOfTime],
    status: Status,
    cold: ColdSteps | None,
    *,
    remark: str = "",
) -> str:
    """Return the answer in one or two sentences. The remark states of which rank the steps are."""
    shown = [cause for cause in listed if cause.saving.likely >= MIN_SAVING]
    idle = _get_unexplained_share(listed)
    busy = _sum_shares(parts, "compute", "opaque")
    what = "Steady step" if step.name is not None else "The capture takes"
    remarks = [remark] if remark else []
    if abs(step.mean_ns - step.median_ns) > _UNEVEN_SHARE * step.median_ns:
        remarks.append(f"{format_duration(step.mean_ns)} on average")
    note = f" ({'; '.join(remarks)})" if remarks else ""
    text = f"{what} {format_duration(step.median_ns)}{note}; the GPU computes {_format_share(busy)} of it"
    if shown:
        text += ": " + "; ".join(_describe_cause(cause, step.mean_ns) for cause in shown[:2]) + "."
    elif status == "unsure" and idle > _UNEXPLAINED_SHARE:
        text += f", and the capture does not show why it is idle for {idle:.0%}."
    elif status == "unsure":
        text += ", but the capture does not show what in it could be faster."
    else:
        text += "; no cure is predicted to save 2 % or more."
    if cold is not None and cold.excess_ns > 0:
        count = "The first step is" if cold.count == 1 else f"The first {cold.count} steps are"
        text += f" {count} cold: {format_duration(cold.total_ns)} in total{_describe_excess(cold, parts)}."
    return text


def _format_share(share: float) -> str:
    """Format a share as a percentage, with one decimal if it is less than 1 %."""
    if 0 < share < _LEAST_SHARE:
        return "less than 0.1%"
    return f"{share:.1%}" if 0 < share < _SMALL_SHARE else f"{share:.0%}"


def _describe_excess(cold: ColdSteps, parts: Sequence[LedgerPart]) -> str:
    """Return a clause that states on what most of the additional time of the warm-up was spent, or ""."""
    first = sum(call.excess_ns for call in cold.first_calls)
    if _MAIN_COLD_SHARE * cold.excess_ns <= first <= cold.total_ns:
        main = cold.first_calls[0]
        name = f"of '{shorten_middle(main.name)}'" if 2 * main.excess_ns >= first else ""
        name = f" {name}" if len(cold.first_calls) == 1 else f", mostly {name}" if name else ""
        return f", of which {format_duration(first)} are first calls{name}"
    usual = {part.part: part.ns * cold.count for part in parts}
    excess, name = max((part.total_ns - usual.get(part.part, 0), part.part) for part in cold.ledger)
    if excess < _MAIN_COLD_SHARE * cold.excess_ns:
        return ""
    return f", of which {format_duration(excess)} are additional {name.replace('_', ' ')}"


def _write_sentence_of_rank(step: StepFigures, parts: Sequence[LedgerPart]) -> str:
    """Return how long a step of one rank takes, and how long it waits for other ranks."""
    busy = _sum_shares(parts, "compute", "opaque")
    waits = sum(part.ns for part in parts if part.part == ledger.WAIT_PART)
    what = "Steady step" if step.name is not None else "The capture"
    waiting = (
        f"for others for {format_duration(waits)} ({waits / max(1, step.median_ns):.0%})" if waits else "for no other"
    )
    return f"{what} {format_duration(step.median_ns)}; the GPU computes {busy:.0%} of it, and the rank waits {waiting}."


def _describe_cause(cause: CauseOfTime, step_ns: int) -> str:
    where = f" in '{shorten_middle(cause.place.range)}'" if cause.place.range else ""
    saving = format_duration(cause.saving.likely * step_ns)
    name = cause.cause.replace("_", " ")
    verb = "costs" if re.search(r"[^s]s$", name) is None else "cost"
    if cause.status == "unsure":
        verb = "may cost"
    if cause.evidence.brief:
        where = f"{where} ({cause.evidence.brief})"
    return f"{name}{where} {verb} about {saving} ({cause.saving.likely:.0%})"
