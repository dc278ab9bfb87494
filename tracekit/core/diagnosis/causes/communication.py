"""Find causes in the communication between GPUs, as far as one process shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.core.diagnosis.cures import Cure
from tracekit.core.diagnosis.kinds import CLASSES

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from tracekit.core.diagnosis.inspection import Inspection

    Int64s = npt.NDArray[np.int64]

_SMALL_NS = 50_000
_MIN_SMALL = 12
_COMPUTE = tuple(c.name for c in CLASSES if c.group == "compute" and c.name != "optimizer")


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
    cure.items = [(inspection.claims.take_items(inspection.find_launch_items(rows)), (0.7, 0.3, 0.1))]
    cure.operations = [inspection.claims.scale_operations(rows, (0.9, 0.6, 0.3))]
    cure.evidence = (
        f"{inspection.count_per_step(len(rows))} collectives per step transfer data for less than "
        f"{inspection.format(_SMALL_NS)} each, {inspection.describe_time(float(time[rows].sum()))} in total"
    )
    yield cure


def communication_exposed(inspection: Inspection) -> Iterator[Cure]:
    """Find collectives that run while no computation runs."""
    model, ops = inspection.model, inspection.model.operations
    rows = np.flatnonzero(model.find_class("nccl") & inspection.claims.free_operations)
    time = find_transfer_times(inspection)[rows]
    total = float(time.sum())
    exposed = np.minimum(inspection.exposed_ns[rows], time)
    if not len(rows) or exposed.sum() < 0.4 * total or exposed.sum() < 0.005 * model.duration_ns:
        return
    compute = 0.66 * float(ops.duration[model.find_class(*_COMPUTE)].sum())
    share = min(7 / 8, compute / max(1.0, total))
    cure = Cure("communication_exposed", inspection.find_main_label(ops.item[rows], time))
    cure.example = inspection.show_operation(rows)
    order = np.argsort(rows, kind="stable")
    claimed_rows = inspection.claims.take_operations(rows)
    own = time[order]
    low, likely, high = ((own * (1 - k * share)).astype(np.int64) for k in (0.3, 0.7, 1.0))
    cure.operations = [(claimed_rows, (low, likely, high))]
    cure.items = [(inspection.claims.take_items(inspection.find_launch_items(claimed_rows)), (1.0, 0.6, 0.3))]
    cure.is_unsure = inspection.late_ns is None
    cure.missing = (
        "the captures of all ranks, which tell waiting for a late rank from transfer" if cure.is_unsure else ""
    )
    cure.evidence = (
        f"{inspection.count_per_step(len(rows))} collectives per step take {inspection.describe_time(total)}, of which "
        f"{exposed.sum() / max(1.0, total):.0%} while no computation runs"
    )
    yield cure
