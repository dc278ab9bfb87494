"""Find causes in copies between the CPU and the GPU, and in the allocation of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.core.diagnosis.cures import Cure, deduplicate
from tracekit.core.diagnosis.operations import LONG_NS, NO_WAIT, PAUSE

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from tracekit.core.diagnosis.inspection import Inspection

    Int64s = npt.NDArray[np.int64]
    Mask = npt.NDArray[np.bool_]

SMALL_COPY_BYTES = 65_536
_LINK_GB_PER_S = (22.0, 45.0)
_MIN_TINY_COPIES = 16
_EXPOSED_SHARE = 0.35
"""Share of the time of copies that must be exposed. Copies that mostly run beside kernels are healthy."""


def memory_allocation(inspection: Inspection) -> Iterator[Cure]:
    """Find calls that allocate or free memory in the loop."""
    model, n, claims = inspection.model, inspection.step_count, inspection.claims
    items = model.items
    rows = np.flatnonzero(model.find_kind("allocate", "host_allocate") & claims.free_items)
    time = int((items.end - items.start)[rows].sum())
    if not len(rows) or (len(rows) <= 2 * n and time < 0.02 * model.duration_ns):
        return
    near = inspection.find_pauses_near(rows, (-1, 1), LONG_NS)
    pauses = items.duration[model.pauses]
    usual = float(np.median(pauses)) if len(pauses) else 0.0
    excess = float(items.duration[near].sum())
    stays = min(1.0, usual * len(near) / 2 / max(1.0, excess))
    cure = Cure("memory_allocation", inspection.find_main_label(rows, items.end[rows] - items.start[rows]))
    cure.example = inspection.show_item(rows)
    cure.waits = rows
    cure.items = [
        (claims.take_items(rows), (0.1, 0.0, 0.0)),
        (claims.take_items(near), (1.0, stays, 0.5 * stays)),
    ]
    cure.evidence = (
        f"{inspection.describe_count(len(rows), 'call|calls')} to allocate or free memory, for "
        f"{inspection.describe_time(time)}"
    )
    yield cure


def pageable_copy(inspection: Inspection) -> Iterator[Cure]:
    """Find large copies from and to pageable memory, which block the CPU and are slow."""
    model, claims = inspection.model, inspection.claims
    ops, items = model.operations, model.items
    size = model.bytes
    is_pageable = model.find_class("copy_h2d", "copy_d2h") & model.sizes["pageable"].to_numpy()
    rows = np.flatnonzero(is_pageable & (size >= SMALL_COPY_BYTES))
    rows = rows[claims.free_operations[rows] & claims.free_items[ops.item[rows]]]
    if not len(rows):
        return
    calls = deduplicate(ops.item[rows])
    following = find_following_synchronizations(inspection, calls)
    cure = Cure("pageable_copy", inspection.find_main_label(calls, items.end[calls] - items.start[calls]))
    cure.example = inspection.show_operation(rows)
    cure.waits = np.concatenate([calls, following])
    claims.take_items(cure.waits)
    rows = claims.take_operations(rows)
    duration = ops.duration[rows]
    low = np.minimum(duration, (size[rows] / _LINK_GB_PER_S[0]).astype(np.int64))
    likely = (0.3 * np.minimum(duration, size[rows] / _LINK_GB_PER_S[1])).astype(np.int64)
    cure.operations = [(rows, (low, likely, np.zeros_like(duration)))]
    total = float(size[rows].sum())
    cure.evidence = (
        f"{inspection.describe_count(len(rows), 'copy|copies', 'uses|use')} pageable memory, so that the CPU waits: "
        f"{inspection.describe_bytes(total)} at {total / max(1, int(duration.sum())):.3g} GB/s"
    )
    yield cure


def small_copies(inspection: Inspection) -> Iterator[Cure]:
    """Find many small copies to the GPU, each with a call and often a wait."""
    model, claims = inspection.model, inspection.claims
    ops, items = model.operations, model.items
    is_small = model.find_class("copy_h2d") & (model.bytes < SMALL_COPY_BYTES)
    rows = np.flatnonzero(is_small & claims.free_operations & (items.lane[ops.item] == 0))
    if len(rows) <= _MIN_TINY_COPIES * inspection.step_count:
        return
    calls = deduplicate(ops.item[rows])
    following = find_following_synchronizations(inspection, calls)
    near = inspection.find_launch_items(rows)
    near = near[items.duration[near] < LONG_NS]
    cure = Cure("small_copies", inspection.find_main_label(calls, items.end[calls] - items.start[calls]))
    cure.example = inspection.show_operation(rows)
    cure.waits = np.concatenate([calls, following])
    own = np.concatenate([calls, following, near, inspection.find_pauses_near(cure.waits, (1,), LONG_NS)])
    cure.items = [(claims.take_items(own), (0.2, 0.06, 0.02))]
    cure.operations = [claims.scale_operations(rows, (0.2, 0.1, 0.02))]
    cure.evidence = (
        f"{inspection.describe_count(len(rows), 'copy|copies')} of less than {SMALL_COPY_BYTES >> 10} KiB, each with a "
        "call of its own"
    )
    yield cure


def find_following_synchronizations(inspection: Inspection, calls: Int64s) -> Int64s:
    """Return the synchronizations that follow calls with only pauses and other calls in between."""
    model, items = inspection.model, inspection.model.items
    is_sync = model.find_kind("synchronize")
    skips = (items.kind == PAUSE) | model.find_kind("other", "query") | is_sync
    syncs = []
    position, active = calls.copy(), np.ones(len(calls), np.bool_)
    for _ in range(4):
        position = position + 1
        active &= position < len(items.start)
        clipped = np.minimum(position, len(items.start) - 1)
        hits = active & is_sync[clipped]
        syncs.append(clipped[hits])
        active &= skips[clipped] & ~hits
    return deduplicate(np.concatenate(syncs))


def exposed_copy(inspection: Inspection) -> Iterator[Cure]:
    """Find large copies between the CPU and the GPU during which no kernel runs.

    Copies in both directions and kernels can overlap, so the time that remains is that of the slowest of the three.
    """
    model, ops, claims = inspection.model, inspection.model.operations, inspection.claims
    is_copy = model.find_class("copy_h2d", "copy_d2h") & claims.free_operations
    rows = np.flatnonzero(is_copy & (model.bytes >= SMALL_COPY_BYTES))
    exposed, duration = inspection.exposed_ns[rows], ops.duration[rows]
    total = int(exposed.sum())
    if total < 0.01 * model.duration_ns or total < _EXPOSED_SHARE * duration.sum():
        return
    to_device = int(duration[model.find_class("copy_h2d")[rows]].sum())
    rest = model.duration_ns - total
    hidden = total - max(0, max(to_device, int(duration.sum()) - to_device) - rest)
    if hidden <= 0:
        return
    cure = Cure("exposed_copy", inspection.find_main_label(ops.item[rows], exposed))
    claims.take_operations(rows)
    part = hidden / total
    stays = [duration - (k * part * exposed).astype(np.int64) for k in (0.4, 0.95, 1.0)]
    cure.operations = [(rows, (stays[0], stays[1], stays[2]))]
    waits = np.flatnonzero((model.items.wait != NO_WAIT) & claims.free_items & model.find_kind("copy"))
    own = deduplicate(ops.item[rows])
    cure.waits = waits[np.isin(waits, own)]
    cure.example = inspection.show_operation(rows)
    rate = float(model.bytes[rows].sum()) / max(1, int(duration.sum()))
    cure.evidence = (
        f"{inspection.describe_count(len(rows), 'copy|copies', 'runs|run')} while no kernel runs, for "
        f"{inspection.describe_time(total)}, at {rate:.3g} GB/s"
    )
    yield cure
