"""Compare the ranks of a job: how long each one waits for the others, which one is late, and in what.

The diagnosis of a job has two passes. The first one profiles each process (``profile_processes``). From the profiles
and the matched communication calls of all ranks, ``plan_ranks`` derives what the diagnosis of each process has to know
about the others: the steps that all ranks have in common, how long each call waits, and by how much each rank is late.
The second pass diagnoses each process with its plan (see ``job``).

Predict what cures save in a job of several ranks.

Each rank is replayed with collectives that take only as long as their transfer. The ranks meet in every step and in
barriers, which divide the steps into *units*. A unit of the job takes as long as that of its slowest rank. A cure is
applied on all ranks that have its cause at the same place, and saves what the slowest ranks gain.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import polars as pl

from tracekit.core.communication.calls import MPI
from tracekit.core.communication.stragglers import convert_to_common_clock, find_iteration_shifts
from tracekit.core.diagnosis.answer import MAX_CAUSES, MIN_SAVING, CauseOfTime, Why
from tracekit.core.diagnosis.cures import HIGH, LIKELY, LOW, Cure, apply_cures, extend_interval
from tracekit.core.diagnosis.kinds import CLASSES, select_classes
from tracekit.core.diagnosis.ledger import measure_before
from tracekit.core.diagnosis.model import MAX_ITEMS, find_representative_steps, find_steps
from tracekit.core.diagnosis.replay import CpuScales, create_unedited

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from tracekit.core.communication import Communication
    from tracekit.core.diagnosis.model import Model

    Int64s = npt.NDArray[np.int64]
    from collections.abc import Iterable

    from tracekit.core.diagnosis.replay import Edit, ModelReplay

    Mask = npt.NDArray[np.bool_]

CPU, GPU = "cpu", "gpu"
MIN_LATE_SHARE = 0.02
"""Time by which a rank is late in a step, as a share of the step, from which on it counts as late."""
_MIN_LATE_NS = 20_000
_MIN_EXPLAINED = 0.3
_MAIN_SHARE, _RARE_SHARE = 0.25, 0.1
_LISTED = 8
_TIMES = {"step": pl.Int32, "label": pl.String, CPU: pl.Int64, GPU: pl.Int64}
_WAITS = {
    "kernel_id": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "wait_ns": pl.Int64,
    "kind": pl.String,
    "library": pl.String,
    "communicator": pl.String,
    "message_bytes": pl.Int64,
}
_MAX_COMBINED = 5
_CASES = (LOW, LIKELY, HIGH)


@dataclass(frozen=True)
class RankProfile:
    """What the first pass measures in one process.

    Attributes:
        process_id: Id of the process, or None if it is unknown.
        bounds: Time at which each steady step begins, and the time at which the last one ends.
        starts: Time at which the CPU begins each steady step.
        size: Number of items and operations of the steady steps.
        times: Time per step (counted from the first steady one) and label: ``step``, ``label``, ``cpu`` (without
            waiting) and ``gpu`` (without communication), in ns.
    """

    process_id: int | None
    bounds: tuple[int, ...]
    starts: tuple[int, ...]
    size: int
    times: pl.DataFrame


@dataclass(frozen=True)
class Excess:
    """By how much one rank exceeds the others in one label.

    Attributes:
        label: The label.
        unit: ``cpu`` or ``gpu``.
        steps: Numbers of the modeled steps in which the rank is late.
        shares: Time after the cure as a share of the time of this rank, in each of these steps: the median of the
            other ranks on the CPU, and the mean of all ranks on the GPU.
        own_ns: Time of this rank in these steps.
        others_ns: Median time of the other ranks in these steps.
        late_ns: Median by which this rank exceeds it in one of these steps.
    """

    label: str
    unit: str
    steps: tuple[int, ...]
    shares: tuple[float, ...]
    own_ns: int
    others_ns: int
    late_ns: int


@dataclass(frozen=True)
class RankPlan:
    """What the diagnosis of one process has to know about the other ranks.

    Attributes:
        rank: Rank of the process.
        ranks: All ranks of the job.
        steps: First and last of the steady steps (counted from the first one) that all ranks have in common, or None
            if the ranks are separate programs.
        calls: The communication calls of the process: ``kernel_id`` (null for calls without a kernel), ``start_ns``,
            ``end_ns``, ``wait_ns`` (null if it is unknown), ``kind``, ``library``, ``communicator``, ``message_bytes``.
        excesses: Where the rank takes longer than the others while they wait for it.
        speed: Duration of a step of this rank without waiting, as a share of that of the slowest rank.
    """

    rank: int
    ranks: tuple[int, ...]
    steps: tuple[int, int] | None = None
    calls: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_WAITS))
    excesses: tuple[Excess, ...] = ()
    speed: float = 1.0

    def find_late_times(self, model: Model) -> Int64s | None:
        """Return the time for which each operation waits for other ranks, or None if it is unknown."""
        rows = self.calls.drop_nulls(["kernel_id", "wait_ns"])
        if rows.is_empty():
            return None
        waits = rows.group_by("kernel_id").agg(pl.col("wait_ns").max())
        ids = model.events.operations.select("table", kernel_id=pl.col("id")).select(
            kernel_id=pl.when(pl.col("table") == "kernels").then(pl.col("kernel_id").cast(pl.Int64))
        )
        joined = ids.join(waits, on="kernel_id", how="left", maintain_order="left")
        waited: Int64s = joined["wait_ns"].fill_null(0).to_numpy()[model.operations.row]
        return np.clip(waited, 0, model.operations.duration)

    def list_calls_on_cpu(self) -> pl.DataFrame:
        """Return the calls of MPI, in which the CPU communicates: ``start_ns``, ``end_ns``, ``wait_ns``."""
        calls = self.calls.filter(pl.col("kernel_id").is_null() & (pl.col("library") == MPI))
        return calls.select("start_ns", "end_ns", pl.col("wait_ns").fill_null(0)).drop_nulls().sort("start_ns")

    def find_waits_on_cpu(self, model: Model) -> Int64s:
        """Return the time for which each item waits for other ranks in calls without a kernel."""
        return find_waits_in_calls(model, self.calls.filter(pl.col("kernel_id").is_null()))


def find_waits_in_calls(model: Model, calls: pl.DataFrame) -> Int64s:
    """Return the time for which each item waits in calls, which begin with a wait: ``start_ns``, ``wait_ns``."""
    items = model.items
    rows = calls.filter(pl.col("wait_ns") > 0).sort("start_ns")
    start = rows["start_ns"].to_numpy()
    end = np.minimum(start + rows["wait_ns"].to_numpy(), np.append(start[1:], np.iinfo(np.int64).max)[: len(start)])
    waited = measure_before((start, end), items.end) - measure_before((start, end), items.start)
    return np.where(items.lane == 0, np.minimum(waited, items.duration), 0)


def profile_process(model: Model) -> RankProfile:
    """Return the profile of one process, given the model of its steady steps."""
    items, ops = model.items, model.operations
    names = pl.Series(model.labels.names, dtype=pl.String)
    main = items.lane == 0
    communicates = select_classes(ops.cls, [c.name for c in CLASSES if c.group == "communication"])
    on_cpu = pl.DataFrame(
        {"step": model.step_of_item[main], "label": items.label[main], CPU: items.duration[main], GPU: 0}
    )
    item = ops.item[~communicates]
    on_gpu = pl.DataFrame(
        {"step": model.step_of_item[item], "label": items.label[item], CPU: 0, GPU: ops.duration[~communicates]}
    )
    schema = {"step": pl.Int32, "label": pl.Int32, CPU: pl.Int64, GPU: pl.Int64}
    rows = pl.concat([on_cpu.cast(schema), on_gpu.cast(schema)])  # type: ignore[arg-type]
    times = rows.group_by("step", "label").agg(pl.col(CPU, GPU).sum()).sort("step", "label")
    times = times.with_columns(label=names.gather(times["label"])).select(*_TIMES)
    bounds, starts = tuple(model.bounds.tolist()), tuple(s.start_ns for s in model.steps)
    return RankProfile(model.events.process_id, bounds, starts, len(items.start) + len(ops.start), times)


def plan_ranks(
    profiles: Mapping[int, Sequence[RankProfile]], communication: Communication
) -> tuple[dict[int, dict[int | None, RankPlan]], list[str]]:
    """Return the plan of each process, and sentences about the job as a whole.

    Args:
        profiles: The profiles of the processes of each trace, by the rank of the trace.
        communication: The communication between all of them, which has to ignore missing ranks.

    Returns:
        The plans by the rank of the trace and the id of the process, and the sentences.
    """
    waits = communication.waits
    seats = _assign_ranks(profiles, waits)
    notes = list(_describe_missing_ranks(communication.calls))
    ranks = tuple(sorted(seats))
    shared = waits.filter(pl.col("wait_ns").is_not_null())["rank"].n_unique() > 1
    if len(seats) > 1 and not shared and (communication.calls["rank_count"] > 1).any():
        notes.insert(
            0,
            "the clocks of the ranks cannot be aligned by collectives, so it is unknown how long ranks wait for others",
        )
    elif len(seats) > 1 and not shared:
        notes.insert(0, "the ranks have no communication in common, so they are treated as separate programs")
    windows = _find_common_steps(seats, communication) if shared else None
    if shared and windows is None:
        notes.insert(0, "the ranks have no steps in common, so each one is explained on its own")
    late = _find_late_ranks(seats, waits, windows) if windows is not None else {}
    speeds = _compute_speeds(seats, waits)
    plans: dict[int, dict[int | None, RankPlan]] = {trace: {} for trace in profiles}
    for rank, (trace, profile) in seats.items():
        own = _is_of_process_expr(trace, profile)
        calls = waits.filter(own).select(*_WAITS)
        window = None if windows is None else windows[rank]
        plans[trace][profile.process_id] = RankPlan(rank, ranks, window, calls, late.get(rank, ()), speeds[rank])
    return plans, notes


def _is_of_process_expr(trace: int, profile: RankProfile) -> pl.Expr:
    of_process = pl.col("process_id").eq_missing(pl.lit(profile.process_id, pl.Int64))
    return (pl.col("trace_rank") == trace) & of_process


def _assign_ranks(
    profiles: Mapping[int, Sequence[RankProfile]], waits: pl.DataFrame
) -> dict[int, tuple[int, RankProfile]]:
    """Return the rank of the trace and the profile of each process, by the rank of the process.

    If a trace has several processes, the processes of all traces are numbered, in order of their ranks in
    communicators.
    """
    processes = [(trace, profile) for trace in sorted(profiles) for profile in profiles[trace]]
    if all(len(of_trace) <= 1 for of_trace in profiles.values()):
        return {trace: (trace, profile) for trace, profile in processes}
    ranks = waits.group_by("trace_rank", "process_id").agg(pl.col("rank").min())
    known = {(trace, process): rank for trace, process, rank in ranks.iter_rows()}
    last = len(known) + len(processes)
    ordered = sorted(processes, key=lambda p: (known.get((p[0], p[1].process_id), last), p[0], p[1].process_id or -1))
    return dict(enumerate(ordered))


def _describe_missing_ranks(calls: pl.DataFrame) -> Iterator[str]:
    """Yield a sentence about each communicator of which only some ranks were recorded."""
    rows = calls.filter(pl.col("communicator").is_not_null() & (pl.col("communicator_by") == "payload"))
    groups = rows.group_by("library", "communicator").agg(
        pl.col("communicator_size").max(), present=pl.col("communicator_rank").drop_nulls().unique().sort()
    )
    groups = groups.filter(pl.col("present").list.len() < pl.col("communicator_size"))
    sentences = []
    for size, present in (
        groups.sort("communicator_size", "communicator", descending=[True, False])
        .select("communicator_size", "present")
        .iter_rows()
    ):
        known = set(present)
        missing = [str(r) for r in range(min(size, len(known) + _LISTED)) if r not in known][:_LISTED]
        more = ", …" if size - len(known) > len(missing) else ""
        what = "rank" if size - len(known) == 1 else "ranks"
        sentences.append(
            f"a communicator has {size} ranks, but the captures contain only {len(known)} of them: {what} "
            f"{', '.join(missing)}{more} of it {'is' if what == 'rank' else 'are'} missing, so others may be later"
        )
    yield from dict.fromkeys(sentences)


def _find_common_steps(
    seats: Mapping[int, tuple[int, RankProfile]], communication: Communication
) -> dict[int, tuple[int, int]] | None:
    """Return the first and last steady step of each rank that all ranks have in common, or None if there is none."""
    numbers = [
        pl.DataFrame({"iteration": np.arange(len(p.starts)), "start_ns": p.starts, "end_ns": p.bounds[1:]}).select(
            pl.lit(rank, pl.Int64).alias("rank"), pl.lit(trace, pl.Int64).alias("trace_rank"), pl.all().cast(pl.Int64)
        )
        for rank, (trace, p) in seats.items()
    ]
    rows = convert_to_common_clock(
        pl.concat(numbers), communication.clocks, ["start_ns", "end_ns"], rank_column="trace_rank"
    )
    rows = rows.drop_nulls("start_ns").sort("rank", "start_ns")
    following = pl.col("start_ns").shift(-1).over("rank")
    rows = rows.with_columns(end_ns=pl.coalesce(following, pl.max_horizontal("end_ns", pl.col("start_ns") + 1)))
    shifts = find_iteration_shifts(rows.drop("trace_rank"), communication.rank_operations)
    offsets = {rank: shifts.get(rank, 0) for rank in seats}
    first = max(offsets.values())
    last = min(len(p.starts) - 1 + offsets[rank] for rank, (_, p) in seats.items())
    if last < first:
        return None
    windows = {rank: (first - offset, last - offset) for rank, offset in offsets.items()}
    return _limit_steps(seats, windows)


def _limit_steps(
    seats: Mapping[int, tuple[int, RankProfile]], windows: Mapping[int, tuple[int, int]]
) -> dict[int, tuple[int, int]]:
    """Return consecutive steps that represent all of them, if a rank has too many events to be replayed often."""
    durations = [
        np.diff(np.array(profile.bounds, np.int64))[windows[rank][0] : windows[rank][1] + 1]
        for rank, (_, profile) in seats.items()
    ]
    longest = np.max(np.stack(durations), axis=0)
    limits = (len(p.starts) * MAX_ITEMS // max(1, p.size) for _, p in seats.values())
    count = max(1, min(len(longest), *limits))
    start = find_representative_steps(longest, count)
    return {rank: (first + start, first + start + count - 1) for rank, (first, _) in windows.items()}


def _find_late_ranks(
    seats: Mapping[int, tuple[int, RankProfile]], waits: pl.DataFrame, windows: Mapping[int, tuple[int, int]]
) -> dict[int, tuple[Excess, ...]]:
    """Return in what each late rank exceeds the others."""
    ranks = list(seats)
    count = next(last - first + 1 for first, last in windows.values())
    lateness = np.zeros((len(ranks), count), np.int64)
    durations = np.zeros((len(ranks), count), np.int64)
    for i, rank in enumerate(ranks):
        trace, profile = seats[rank]
        first, last = windows[rank]
        bounds = np.array(profile.bounds, np.int64)
        durations[i] = np.diff(bounds)[first : last + 1]
        own = waits.filter(_is_of_process_expr(trace, profile)).unique("operation_id", maintain_order=True)
        own = own.drop_nulls("late_ns")
        step = find_steps(bounds, own["start_ns"].to_numpy()) - first
        inside = (step >= 0) & (step < count)
        lateness[i] = np.bincount(step[inside], weights=own["late_ns"].to_numpy()[inside], minlength=count)
    times, labels = _collect_times(seats, windows, count)
    is_late = lateness > np.maximum(_MIN_LATE_NS, MIN_LATE_SHARE * durations)
    result = {}
    for i, rank in enumerate(ranks):
        late = np.minimum(lateness[i], durations[i])[is_late[i]]
        if late.sum() < MIN_LATE_SHARE * durations[i].sum():
            continue
        steps = np.flatnonzero(is_late[i])
        result[rank] = tuple(_explain_lateness(times[:, :, steps], i, labels, steps, int(late.sum())))
    return result


def _collect_times(
    seats: Mapping[int, tuple[int, RankProfile]], windows: Mapping[int, tuple[int, int]], count: int
) -> tuple[Int64s, list[str]]:
    """Return the times as an array with the axes unit (CPU, GPU), rank, step and label, and the labels."""
    parts = []
    for i, (rank, (_, profile)) in enumerate(seats.items()):
        first, last = windows[rank]
        rows = profile.times.filter(pl.col("step").is_between(first, last))
        parts.append(rows.with_columns(pl.col("step") - first, seat=pl.lit(i, pl.Int32)))
    rows = pl.concat(parts)
    labels = rows["label"].unique().sort()
    number = pl.DataFrame({"label": labels, "number": np.arange(len(labels))})
    rows = rows.join(number, on="label", how="left")
    times = np.zeros((2, len(seats), count, len(labels)), np.int64)
    place = (rows["seat"].to_numpy(), rows["step"].to_numpy(), rows["number"].to_numpy())
    times[(0, *place)] = rows[CPU].to_numpy()
    times[(1, *place)] = rows[GPU].to_numpy()
    return times, labels.to_list()


def _explain_lateness(times: Int64s, rank: int, labels: Sequence[str], steps: Int64s, late_ns: int) -> Iterator[Excess]:
    """Yield the labels in which a rank takes longer than the others, if they explain by how much it is late.

    Args:
        times: Times as of ``_collect_times``, only in the steps in which the rank is late.
        rank: Position of the rank in ``times``.
        labels: The labels.
        steps: Numbers of these steps.
        late_ns: Time by which the rank is late in total.
    """
    own = times[:, rank]
    others = np.sort(np.delete(times, rank, axis=1), axis=1)
    median = others[:, (others.shape[1] - 1) // 2]
    excess = (own - median).sum(axis=1)
    explained = np.maximum(excess, 0).sum(axis=1)
    if explained.sum() < _MIN_EXPLAINED * late_ns:
        return
    aims = (median[0], times[1].mean(axis=0))
    for number, unit in enumerate((CPU, GPU)):
        if explained[number] < _MAIN_SHARE * explained.sum():
            continue
        order = np.argsort(-excess[number], kind="stable")
        is_large = excess[number] >= max(_MIN_LATE_NS, _MAIN_SHARE * excess[number].max())
        for label in order[is_large[order]].tolist():
            by_step = own[number, :, label] - median[number, :, label]
            is_main = by_step > max(_MIN_LATE_NS, _RARE_SHARE * by_step.max())
            time, aim = own[number, is_main, label], aims[number][is_main, label]
            shares = np.minimum(1.0, aim / np.maximum(time, 1))
            yield Excess(
                labels[label],
                unit,
                tuple(steps[is_main].tolist()),
                tuple(shares.tolist()),
                int(time.sum()),
                int(median[number, is_main, label].sum()),
                int(np.median(by_step[is_main])),
            )


def _compute_speeds(seats: Mapping[int, tuple[int, RankProfile]], waits: pl.DataFrame) -> dict[int, float]:
    """Return the duration of a step of each rank without waiting, as a share of that of the slowest rank."""
    means = {}
    for rank, (trace, profile) in seats.items():
        first, last = profile.bounds[0], profile.bounds[-1]
        own = waits.filter(_is_of_process_expr(trace, profile) & pl.col("start_ns").is_between(first, last))
        waited = int(own.unique("operation_id")["wait_ns"].sum())
        means[rank] = max(1, last - first - waited) / len(profile.starts)
    slowest = max(means.values(), default=1.0)
    return {rank: mean / slowest for rank, mean in means.items()}


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
