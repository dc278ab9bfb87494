"""Compare the ranks of a job: how long each one waits for the others, which one is late, and in what.

The diagnosis of a job has two passes. The first one profiles each process (``profile_processes``). From the profiles
and the matched communication calls of all ranks, ``plan_ranks`` derives what the diagnosis of each process has to know
about the others: the steps that all ranks have in common, how long each call waits, and by how much each rank is late.
The second pass diagnoses each process with its plan (see ``job``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.core.communication.calls import MPI
from tracekit.core.communication.clocks import convert_to_common_clock
from tracekit.core.communication.stragglers import find_iteration_shifts
from tracekit.core.diagnosis.kinds import CLASSES, select_classes
from tracekit.core.diagnosis.ledger import measure_before
from tracekit.core.diagnosis.model import MAX_ITEMS, build_model, find_representative_steps

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from tracekit.core.communication import Communication
    from tracekit.core.diagnosis.events import Events
    from tracekit.core.diagnosis.model import Model

    Int64s = npt.NDArray[np.int64]

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


def profile_process(events: Events) -> RankProfile:
    """Return the profile of one process."""
    steady = tuple(s for s in events.steps if not s.is_cold) or events.steps
    model = build_model(events, steady)
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
    bounds, starts = tuple(model.bounds.tolist()), tuple(s.start_ns for s in steady)
    return RankProfile(events.process_id, bounds, starts, len(items.start) + len(ops.start), times)


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
        step = np.searchsorted(bounds, own["start_ns"].to_numpy(), side="right") - 1 - first
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
