"""Find causes in the communication between GPUs, as far as one process shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.core.diagnosis.cures import Cure
from tracekit.core.diagnosis.kinds import COMPUTE_CLASSES
from tracekit.system.sorting import create_series
from tracekit.text import format_duration, shorten_middle

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from tracekit.core.diagnosis.inspection import Inspection

    Int64s = npt.NDArray[np.int64]

_SMALL_NS = 50_000
_MIN_SMALL = 12
_NEAR_COUNT = 2
"""Distance of collectives in order of launch up to which no work lies between them that needs the first one."""
_COMPUTE = tuple(name for name in COMPUTE_CLASSES if name != "optimizer")


def find_transfer_times(inspection: Inspection) -> Int64s:
    """Return the duration of each operation without the time for which it waits for other ranks."""
    duration = inspection.model.operations.duration
    if inspection.late_ns is None:
        return duration
    result: Int64s = np.maximum(np.minimum(duration, 1_000), duration - inspection.late_ns)
    return result


def small_messages(inspection: Inspection) -> Iterator[Cure]:
    """Find many short collectives per step."""
    model = inspection.model
    time = find_transfer_times(inspection)
    rows = np.flatnonzero(model.find_class("nccl") & (time < _SMALL_NS) & inspection.claims.free_operations)
    if len(rows) <= _MIN_SMALL * inspection.step_count:
        return
    cure = Cure("small_messages", inspection.find_main_label(model.operations.item[rows], time[rows]))
    cure.example = inspection.show_operation(rows)
    near = np.diff(rows, prepend=-_NEAR_COUNT, append=np.iinfo(np.int64).max) <= _NEAR_COUNT
    is_near = near[1:] | np.append(False, near[1:-1])
    if inspection.is_training:
        is_near[:] = True  # gradients of several buckets do not depend on one another
    alone, together = rows[~is_near], rows[is_near]
    cure.items = [
        (inspection.claims.take_items(inspection.find_launch_items(together)), (0.5, 0.1, 0.02)),
        (inspection.claims.take_items(inspection.find_launch_items(alone)), (1.0, 0.6, 0.1)),
    ]
    cure.operations = [
        inspection.claims.scale_operations(together, (0.6, 0.15, 0.03)),
        inspection.claims.scale_operations(alone, (1.0, 0.8, 0.3)),
    ]
    cure.evidence = (
        f"{inspection.describe_count(len(rows), 'collective|collectives')} transfer data for less than "
        f"{format_duration(_SMALL_NS)} each, {inspection.describe_time(float(time[rows].sum()))} in total"
    )
    yield cure


def communication_exposed(inspection: Inspection) -> Iterator[Cure]:
    """Find collectives that run while no computation runs, for each communicator."""
    model, ops = inspection.model, inspection.model.operations
    rows = np.flatnonzero(model.find_class("nccl") & inspection.claims.free_operations)
    time = find_transfer_times(inspection)
    compute = 0.66 * float(ops.duration[model.find_class(*_COMPUTE)].sum())
    share = min(7 / 8, compute / max(1.0, float(time[rows].sum())))
    for communicator, own in _group_by_communicator(inspection, rows):
        exposed, total = np.minimum(inspection.exposed_ns[own], time[own]).sum(), float(time[own].sum())
        if exposed < 0.4 * total or exposed < 0.005 * model.duration_ns:
            continue
        cure = Cure("communication_exposed", inspection.find_main_label(ops.item[own], time[own]))
        cure.communicator = communicator
        cure.example = inspection.show_operation(own)
        claimed_rows = inspection.claims.take_operations(own)
        low, likely, high = ((time[claimed_rows] * (1 - k * share)).astype(np.int64) for k in (0.3, 0.7, 1.0))
        cure.operations = [(claimed_rows, (low, likely, high))]
        cure.items = [(inspection.claims.take_items(inspection.find_launch_items(claimed_rows)), (1.0, 0.6, 0.3))]
        cure.is_unsure = inspection.late_ns is None
        cure.missing = (
            "the captures of all ranks, which tell waiting for a late rank from transfer" if cure.is_unsure else ""
        )
        cure.evidence = (
            f"{inspection.describe_count(len(own), 'collective|collectives')}"
            + (f" of communicator {shorten_middle(communicator)}" if communicator else "")
            + f": {inspection.describe_time(total)}, of which {exposed / max(1.0, total):.0%} while no computation "
            "runs"
        )
        yield cure


def _group_by_communicator(inspection: Inspection, rows: Int64s) -> list[tuple[str, Int64s]]:
    """Return the name and the operations of each communicator, or all operations if there is only one.

    Operations whose communicator is unknown form a group of their own.
    """
    if inspection.plan is None or not len(rows):
        return [("", rows)] if len(rows) else []
    known = inspection.plan.calls.drop_nulls("kernel_id").select("kernel_id", "communicator").unique("kernel_id")
    operations = inspection.model.events.operations.select("table", kernel_id=pl.col("id").cast(pl.Int64))
    own = operations[inspection.model.operations.row[rows]].with_columns(row=create_series(rows))
    joined = own.join(known, on="kernel_id", how="left", maintain_order="left")
    groups = joined.group_by("communicator", maintain_order=True).agg("row")
    if groups.height == 1:
        return [("", rows)]
    return [(name or "", np.array(listed, np.int64)) for name, listed in groups.iter_rows()]
