"""Find causes in which ranks differ from one another or wait for one another."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.core.diagnosis.causes.host import DATA_LABEL, IO_LABEL
from tracekit.core.diagnosis.cures import Cure, Stays, deduplicate
from tracekit.core.diagnosis.model import MIN_STEPS
from tracekit.core.diagnosis.operations import NO_WAIT
from tracekit.core.diagnosis.ranks import CPU, GPU, find_waits_in_calls
from tracekit.text import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from tracekit.core.diagnosis.inspection import Inspection
    from tracekit.core.diagnosis.ranks import Excess, RankPlan

    Int64s = npt.NDArray[np.int64]

_BARRIER_BYTES = 64
_MAIN_EXCESS = 0.5
_ORDINALS = {2: "second", 3: "third", 4: "fourth", 5: "fifth", 6: "sixth", 8: "eighth", 10: "tenth"}


def late_rank(inspection: Inspection) -> Iterator[Cure]:
    """Find work on the CPU that takes longer than on the other ranks, which wait for this rank."""
    plan = inspection.plan
    if plan is None:
        return
    for excess in (e for e in plan.excesses if e.unit == CPU):
        yield _cure_late_work(inspection, plan, excess)


def _cure_late_work(inspection: Inspection, plan: RankPlan, excess: Excess) -> Cure:
    model = inspection.model
    rows = _find_items(inspection, excess)
    is_main = excess.others_ns < _MAIN_EXCESS * excess.own_ns
    cure = Cure("late_rank", excess.label)
    cure.example = inspection.show_item(rows)
    claimed_rows = inspection.claims.take_items(rows) if is_main else rows
    step_of_row = model.step_of_item[claimed_rows]
    for step, share in zip(excess.steps, excess.shares, strict=True):
        stays: Stays = (share + 0.15 * (1 - share), share, share)
        cure.items.append((claimed_rows[step_of_row == step], stays))
    count = len(excess.steps)
    name = _name_work(excess.label)
    text, cure.brief = _describe_lateness(inspection, plan, excess)
    cure.evidence = (
        f"{text}: {name}it works on the CPU for "
        f"{format_duration(excess.own_ns / count)} per step, the others for "
        f"{format_duration(excess.others_ns / count)}, and then wait in collectives"
    )
    cure.functions = inspection.list_functions(rows[model.long_pauses[rows]])
    return cure


def _find_items(inspection: Inspection, excess: Excess) -> Int64s:
    """Return the items of the label in the steps in which the rank is late."""
    model, items = inspection.model, inspection.model.items
    label = inspection.model.labels.names.index(excess.label)
    own = (items.lane == 0) & (items.label == label) & np.isin(model.step_of_item, excess.steps)
    return np.flatnonzero(own)


def _describe_lateness(inspection: Inspection, plan: RankPlan, excess: Excess) -> tuple[str, str]:
    """Return by how much the rank is late, and in which steps: in full, and in a few words."""
    count = inspection.step_count
    late = f"rank {plan.rank} is late by {format_duration(excess.late_ns)}"
    if len(excess.steps) == count:
        return f"{late} in every step", f"{late} in every step"
    text = f"{late} in {len(excess.steps)} of {count} steps"
    distances = {after - before for before, after in itertools.pairwise(excess.steps)}
    distance = distances.pop() if len(distances) == 1 and len(excess.steps) >= MIN_STEPS else 1
    period = f"every {_ORDINALS.get(distance, f'{distance}th')} step"
    return (f"{text} ({period})", f"{late} {period}") if distance > 1 else (text, text)


def _name_work(label: str) -> str:
    """Return what a range does, as far as its name tells."""
    labels = pl.Series([label])
    if labels.str.contains(IO_LABEL).item():
        return "it writes files, "
    return "it loads data, " if labels.str.contains(DATA_LABEL).item() else ""


def imbalance(inspection: Inspection) -> Iterator[Cure]:
    """Find ranges in which the GPU works longer than on the other ranks, which wait for this rank."""
    plan, model, ops = inspection.plan, inspection.model, inspection.model.operations
    if plan is None:
        return
    for excess in (e for e in plan.excesses if e.unit == GPU):
        label = model.labels.names.index(excess.label)
        own = (inspection.label_of_operation == label) & ~model.find_class("nccl")
        own &= np.isin(inspection.step_of_operation, excess.steps)
        rows = np.flatnonzero(own)
        shares = np.zeros(inspection.step_count)
        shares[list(excess.steps)] = excess.shares
        share = shares[inspection.step_of_operation[rows]]
        duration = ops.duration[rows]
        least = min(1.0, excess.others_ns / max(1, excess.own_ns))
        factors = ((1 + share) / 2, share, np.minimum(share, least))
        low, likely, high = ((duration * factor).astype(np.int64) for factor in factors)
        cure = Cure("imbalance", excess.label)
        cure.example = inspection.show_operation(rows)
        cure.shared = [(rows, (low, likely, high))]
        count = len(excess.steps)
        text, cure.brief = _describe_lateness(inspection, plan, excess)
        cure.evidence = (
            f"{text}: its GPU works for "
            f"{format_duration(excess.own_ns / count)} per step, those of the others for "
            f"{format_duration(excess.others_ns / count)}"
        )
        yield cure


def barrier(inspection: Inspection) -> Iterator[Cure]:
    """Find barriers in the loop: MPI_Barrier, and collectives of a few bytes after which the CPU synchronizes."""
    plan, items = inspection.plan, inspection.model.items
    if plan is None or plan.calls.is_empty():
        return
    rows, syncs, on_cpu = _find_barriers(inspection, plan)
    count = len(rows) + _list_mpi_barriers(inspection, plan).height
    if not count:
        return
    own = np.concatenate([syncs, inspection.find_launch_items(rows)])
    everything = np.concatenate([own, on_cpu])
    cure = Cure("barrier", inspection.find_main_label(everything, np.ones(len(everything), np.int64)))
    cure.example = inspection.show_operation(rows) or inspection.show_item(on_cpu)
    waits = (items.end - items.start)[np.concatenate([syncs, on_cpu])].sum()
    cure.waits = syncs
    cure.joins_ranks = True
    cure.items = [(inspection.claims.take_items(everything), (0.5, 0.2, 0.05))]
    cure.operations = [inspection.claims.scale_operations(rows, (0.5, 0.2, 0.0))]
    cure.evidence = (
        f"the ranks wait for one another in barriers {inspection.describe_count(count, 'time|times')}, in which the "
        f"CPU waits for {inspection.describe_time(float(waits))}"
    )
    yield cure


def find_ends_of_barriers(inspection: Inspection) -> Int64s:
    """Return the items at whose ends all ranks have met in a barrier, in order."""
    plan = inspection.plan
    if plan is None or plan.calls.is_empty():
        return np.zeros(0, np.int64)
    _, syncs, on_cpu = _find_barriers(inspection, plan)
    return np.sort(np.concatenate([syncs, on_cpu]))


def _find_barriers(inspection: Inspection, plan: RankPlan) -> tuple[Int64s, Int64s, Int64s]:
    """Return the operations of barriers on the GPU, the synchronizations after them, and items in MPI barriers."""
    ops = inspection.model.operations
    tiny = plan.calls.filter(
        pl.col("kernel_id").is_not_null() & (pl.col("message_bytes") <= _BARRIER_BYTES) & (pl.col("kind") != "send")
    )
    ids = inspection.model.events.operations.select("table", "id").with_row_index("row")
    ids = ids.filter((pl.col("table") == "kernels") & pl.col("id").is_in(tiny["kernel_id"].implode()))
    rows = np.flatnonzero(np.isin(ops.row, ids["row"].to_numpy()) & inspection.claims.free_operations)
    syncs, followed = _find_synchronizations_after(inspection, rows)
    items = inspection.model.items
    is_barrier = (
        2 * find_waits_in_calls(inspection.model, _list_mpi_barriers(inspection, plan)) > items.end - items.start
    )
    return rows[followed], syncs, np.flatnonzero(is_barrier & inspection.claims.free_items)


def _find_synchronizations_after(inspection: Inspection, rows: Int64s) -> tuple[Int64s, npt.NDArray[np.bool_]]:
    """Return the synchronizations after operations and before the next launch, and which operations have one."""
    model, items = inspection.model, inspection.model.items
    launch = np.append(np.flatnonzero((items.launches > 0) & (items.lane == 0)), len(items.start))
    sync = np.flatnonzero(model.find_kind("synchronize") & (items.wait != NO_WAIT) & inspection.claims.free_items)
    sync = np.append(sync, len(items.start))
    item = model.operations.item[rows]
    next_launch = launch[np.searchsorted(launch, item, side="right")]
    next_sync = sync[np.searchsorted(sync, item, side="right")]
    followed = next_sync < next_launch
    return deduplicate(next_sync[followed]), followed


def _list_mpi_barriers(inspection: Inspection, plan: RankPlan) -> pl.DataFrame:
    """Return the MPI barriers in the steps, in all of which the rank waits: ``start_ns``, ``wait_ns``."""
    model = inspection.model
    in_steps = pl.col("start_ns").is_between(model.start_ns, model.end_ns, closed="left")
    barriers = plan.calls.filter(pl.col("kernel_id").is_null() & (pl.col("kind") == "barrier") & in_steps)
    return barriers.select("start_ns", wait_ns=pl.col("end_ns") - pl.col("start_ns"))
