"""Divide the time of steps into parts, so that each nanosecond is counted once.

Where the GPU works, the time belongs to the class of the operation. If operations of several groups run at the same
time, computation comes before graphs whose contents are unknown, communication, and copies, so communication and copies
count only where they are exposed. Of several operations of one group, the first one counts. Where the GPU is idle, the
time belongs to what the launching CPU thread did at that time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tracekit.core.diagnosis.kinds import CALL_NUMBERS, CLASS_NAMES, CLASSES
from tracekit.core.diagnosis.model import find_steps
from tracekit.core.diagnosis.operations import LONG_NS, NO_WAIT, PAUSE
from tracekit.system.sorting import create_series

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from tracekit.core.diagnosis.model import Model

    Int64s = npt.NDArray[np.int64]
    Int32s = npt.NDArray[np.int32]

WAIT_PART, TRANSFER_PART = "communication_wait", "communication"
IDLE_PARTS = (
    *("cpu_work", "launch_code", "launch_calls", "synchronization", "blocking_copy", "allocation", "host_allocation"),
    *("code_loading", "launch_latency", "unknown"),
)
"""What the CPU does while the GPU is idle."""
PARTS = {
    **{("communication" if c.name == "nccl" else c.name): c.group for c in CLASSES},
    WAIT_PART: "communication",
    **dict.fromkeys(IDLE_PARTS, "idle"),
}
"""The parts of a step, and the class of each part."""
MEANINGS = {
    "communication": "Collectives and other transfers of NCCL.",
    "fused_attention": "Attention in one kernel.",
    "layout_conversion": "Conversions between memory layouts, such as NCHW and NHWC.",
    "convolution": "Convolutions on Tensor Cores.",
    "convolution_fp32": "Convolutions in FP32 without Tensor Cores.",
    "matmul": "Matrix products on Tensor Cores.",
    "matmul_fp32": "Matrix products in FP32 without Tensor Cores.",
    "matrix_vector": "Products of a matrix and a vector.",
    "softmax": "Softmax in a kernel of its own.",
    "optimizer": "Fused kernels of optimizers.",
    "normalization": "Normalization of layers, batches or groups.",
    "embedding": "Embeddings, gathers and scatters.",
    "reduction": "Sums, norms, scans and sorts.",
    "cast_or_copy": "Kernels that copy, convert, concatenate or transpose tensors.",
    "pooling": "Pooling.",
    "pointwise": "Pointwise kernels, also those that compilers fuse.",
    "other_kernel": "Kernels with other names.",
    "opaque_graph": "CUDA graphs that were recorded as a whole, so that their kernels are unknown.",
    "copy_h2d": "Copies from the host to the GPU.",
    "copy_d2h": "Copies from the GPU to the host.",
    "copy_d2d": "Copies within and between GPUs.",
    "memset": "Memory sets.",
    "communication_wait": "Collectives that wait for a late rank.",
    "cpu_work": "The launching thread works without API calls for 0.2 ms or more.",
    "launch_code": "The launching thread is between API calls for less than 0.2 ms.",
    "launch_calls": "The launching thread is in API calls that launch work.",
    "synchronization": "The launching thread is in calls that wait for the GPU.",
    "blocking_copy": "The launching thread is in copies that block it.",
    "allocation": "The launching thread allocates or frees memory of the GPU.",
    "host_allocation": "The launching thread allocates, registers or frees pinned memory.",
    "code_loading": "The launching thread loads or compiles code for the GPU.",
    "launch_latency": "All calls have returned, and the last work has not started yet.",
    "unknown": "Neither API calls nor ranges of the launching thread were recorded.",
}
"""What the GPU does in each part, or what the CPU does while the GPU is idle."""
_GROUPS = ("compute", "opaque", "communication", "copy")
"""The groups of classes. Where operations of several groups run at the same time, the first group counts."""
_NAMES = tuple(PARTS)
_PART = {name: i for i, name in enumerate(_NAMES)}
NAME_OF_CLASS = tuple("communication" if n == "nccl" else n for n in CLASS_NAMES)
"""Names of the parts of all classes of operations."""
_PART_OF_CLASS = np.array([_PART[n] for n in NAME_OF_CLASS], np.int8)
_GROUP_OF_CLASS = np.array([_GROUPS.index(c.group) for c in CLASSES], np.int8)
_CALL_PARTS = {
    "synchronize": "synchronization",
    "allocate": "allocation",
    "host_allocate": "host_allocation",
    "load": "code_loading",
}


class Segments(NamedTuple):
    """Disjoint intervals in order of time, each with the number of its part and its label."""

    start: Int64s
    end: Int64s
    part: npt.NDArray[np.int8]
    label: Int32s


def divide_steps(model: Model, late_ns: Int64s | None = None, calls_on_cpu: pl.DataFrame | None = None) -> pl.DataFrame:
    """Divide the time of each step of a model into parts.

    Args:
        model: The model.
        late_ns: Time for which each operation waits for other ranks before it transfers data, or None if it is unknown.
        calls_on_cpu: Calls in which the CPU communicates with other ranks (``start_ns``, ``end_ns``), which begin with
            a wait (``wait_ns``), in order of start.

    Returns:
        One row per step, part and label: ``step`` (number in the model), ``part``, ``label`` (of the launching or
        running code), ``ns``. The sum of ``ns`` in a step is the duration of the step.
    """
    busy, idle = divide_time(model, late_ns, calls_on_cpu)
    parts = [_split(segments, model.bounds) for segments in (*busy, idle)]
    frames = [
        pl.DataFrame(
            {
                "step": create_series(find_steps(model.bounds, s.start).astype(np.int32)),
                "part": create_series(s.part),
                "label": create_series(s.label),
                "ns": create_series(s.end - s.start),
            }
        )
        for s in parts
    ]
    rows = pl.concat(frames).group_by("step", "part", "label").agg(pl.col("ns").sum()).filter(pl.col("ns") > 0)
    labels = pl.Series("label", model.labels.names, pl.String)
    named = rows.with_columns(part=list_part_names(rows["part"].to_numpy()), label=labels.gather(rows["label"]))
    return named.sort("step", "ns", "part", "label", descending=[False, True, False, False])


def _assign_communication_on_cpu(idle: Segments, calls: pl.DataFrame) -> Segments:
    """Assign the idle time during calls in which the CPU communicates to communication, and to waiting for ranks."""
    start, end = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    latest = np.maximum.accumulate(end) if len(end) else end
    begin = np.maximum(start, np.concatenate([start[:1], latest[:-1]]))
    split = np.clip(start + calls["wait_ns"].to_numpy(), begin, np.maximum(begin, end))
    segments = idle
    for part, starts, ends in ((WAIT_PART, begin, split), (TRANSFER_PART, split, end)):
        first, last = starts[ends > starts], ends[ends > starts]
        segments = _split(segments, np.sort(np.concatenate([first, last])))
        row = np.searchsorted(first, segments.start, side="right") - 1
        inside = (
            (row >= 0) & (segments.start < last[np.maximum(row, 0)]) if len(first) else np.zeros(len(row), np.bool_)
        )
        segments = segments._replace(part=np.where(inside, np.int8(_PART[part]), segments.part))
    return segments


def divide_time(
    model: Model, late_ns: Int64s | None = None, calls_on_cpu: pl.DataFrame | None = None
) -> tuple[list[Segments], Segments]:
    """Return the times in which the GPU works, for each group of classes, and the times in which it is idle.

    Together, the intervals cover the steps of the model exactly once. The arguments are those of ``divide_steps``.
    """
    segments = _divide_operations(model, late_ns)
    busy: list[Segments] = []
    covered = _empty_union()
    for group in range(len(_GROUPS)):
        of_group = segments[group]
        busy.append(_subtract(of_group, covered))
        covered = _unite(covered, (of_group.start, of_group.end))
    first, last = model.start_ns, model.end_ns
    idle = _label_idle_times(model, _invert(covered, first, last))
    return busy, idle if calls_on_cpu is None else _assign_communication_on_cpu(idle, calls_on_cpu)


def find_idle_times(
    model: Model, late_ns: Int64s | None = None, calls_on_cpu: pl.DataFrame | None = None
) -> tuple[Segments, Int64s]:
    """Return the times of the idle parts, and the row of the item of lane 0 at each of these times, or -1.

    No interval extends over the bounds of steps or items. The arguments are those of ``divide_steps``.
    """
    _, idle = divide_time(model, late_ns, calls_on_cpu)
    segments = _split(idle, model.bounds)
    is_idle = segments.part >= _PART[IDLE_PARTS[0]]
    start, end, part, label = segments
    segments = Segments(start[is_idle], end[is_idle], part[is_idle], label[is_idle])
    rows = np.flatnonzero((model.items.lane == 0) & (model.items.end > model.items.start))
    if not len(rows):
        return segments, np.full(len(segments.start), -1)
    position = np.searchsorted(model.items.start[rows], segments.start, side="right") - 1
    item = rows[np.maximum(position, 0)]
    return segments, np.where((position >= 0) & (segments.start < model.items.end[item]), item, -1)


def list_part_names(numbers: npt.NDArray[np.int8]) -> pl.Series:
    """Return the names of parts, given their numbers in ``Segments``."""
    return pl.Series("part", _NAMES, pl.Enum(_NAMES)).gather(create_series(numbers))


def measure_busy_times(model: Model, group: str, calls_on_cpu: pl.DataFrame | None = None) -> Int64s:
    """Return how long operations of a group run in each step, also while operations of other groups run, in ns.

    Args:
        model: The model.
        group: The group: ``compute``, ``opaque``, ``communication`` or ``copy``.
        calls_on_cpu: Calls in which the CPU communicates, which count in addition: ``start_ns``, ``end_ns``.
    """
    ops = model.operations
    rows = np.flatnonzero(_GROUP_OF_CLASS[ops.cls] == _GROUPS.index(group))
    busy = ops.start[rows], ops.end[rows]
    if calls_on_cpu is not None:
        starts, ends = (calls_on_cpu[c].to_numpy() for c in ("start_ns", "end_ns"))
        busy = np.append(busy[0], starts), np.append(busy[1], ends)
    return np.diff(measure_before(_unite(_empty_union(), busy), model.bounds))


def find_exposed_times(model: Model) -> Int64s:
    """Return how long no operation of another group that comes before runs during each operation, in ns."""
    ops = model.operations
    exposed = np.zeros(len(ops.start), np.int64)
    covered = _empty_union()
    for group in range(len(_GROUPS)):
        rows = np.flatnonzero(_GROUP_OF_CLASS[ops.cls] == group)
        start, end = ops.start[rows], ops.end[rows]
        exposed[rows] = (end - start) - (measure_before(covered, end) - measure_before(covered, start))
        covered = _unite(covered, (start, end))
    return exposed


def _divide_operations(model: Model, late_ns: Int64s | None) -> list[Segments]:
    """Return disjoint intervals for the operations of each group, clipped to the steps."""
    ops = model.operations
    label = model.items.label[ops.item]
    part = _PART_OF_CLASS[ops.cls]
    group = _GROUP_OF_CLASS[ops.cls]
    start, end = ops.start, ops.end
    if late_ns is not None:
        waits = np.flatnonzero(late_ns > 0)
        split = np.minimum(start[waits] + late_ns[waits], end[waits])
        rest = start.copy()
        rest[waits] = split
        start, end = np.concatenate([start[waits], rest]), np.concatenate([split, end])
        label, group = np.concatenate([label[waits], label]), np.concatenate([group[waits], group])
        part = np.concatenate([np.full(len(waits), _PART[WAIT_PART], np.int8), part])
    start, end = np.clip(start, model.start_ns, model.end_ns), np.clip(end, model.start_ns, model.end_ns)
    segments = []
    for number in range(len(_GROUPS)):
        rows = np.flatnonzero((group == number) & (end > start))
        rows = rows[np.lexsort((-end[rows], start[rows]))]
        latest = np.maximum.accumulate(end[rows]) if len(rows) else end[rows]
        before = np.concatenate([[model.start_ns], latest[:-1]]) if len(rows) else latest
        begin = np.maximum(start[rows], before)
        own = end[rows] > begin
        segments.append(Segments(begin[own], end[rows][own], part[rows][own], label[rows][own]))
    return segments


def _label_idle_times(model: Model, gaps: tuple[Int64s, Int64s]) -> Segments:
    """Divide idle times at the bounds of the items of lane 0, and return what the CPU did."""
    items = model.items
    rows = np.flatnonzero((items.lane == 0) & (items.end > items.start))
    starts = items.start[rows]
    until = int(items.end[rows[-1]]) if len(rows) else model.start_ns
    cuts = np.append(starts, until)
    whole = Segments(*gaps, np.zeros(len(gaps[0]), np.int8), np.zeros(len(gaps[0]), np.int32))
    pieces = _split(whole, cuts)
    row = np.searchsorted(starts, pieces.start, side="right") - 1
    inside = (row >= 0) & (pieces.start < until)
    item = rows[np.maximum(row, 0)] if len(rows) else np.zeros(len(row), np.int64)
    part = np.full(len(row), _PART["launch_latency"], np.int8)
    label = np.zeros(len(row), np.int32)
    if len(rows):
        part[inside] = _find_parts_of_items(model)[item[inside]]
        label[inside] = items.label[item[inside]]
    return Segments(pieces.start, pieces.end, part, label)


def _find_parts_of_items(model: Model) -> npt.NDArray[np.int8]:
    """Return the number of the part to which idle time during each item belongs."""
    items = model.items
    part = np.full(len(items.start), _PART["launch_calls"], np.int8)
    is_pause = items.kind == PAUSE
    part[is_pause] = _PART["launch_code"]
    part[is_pause & (items.end - items.start >= LONG_NS)] = _PART["cpu_work"]
    if model.events.has_no_cpu_events:
        part[:] = _PART["unknown"]
    for kind, name in _CALL_PARTS.items():
        part[items.kind == CALL_NUMBERS[kind]] = _PART[name]
    part[(items.kind == CALL_NUMBERS["copy"]) & (items.wait != NO_WAIT)] = _PART["blocking_copy"]
    return part


Union = tuple["Int64s", "Int64s"]


def _empty_union() -> Union:
    return np.zeros(0, np.int64), np.zeros(0, np.int64)


def _unite(first: Union, second: Union) -> Union:
    """Return the union of intervals as disjoint intervals in order."""
    start, end = np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1]])
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, latest = start[order], np.maximum.accumulate(end[order])
    is_first = np.concatenate([[True], start[1:] > latest[:-1]])
    is_last = np.concatenate([is_first[1:], [True]])
    return start[is_first], latest[is_last]


def measure_before(union: Union, times: Int64s) -> Int64s:
    """Return how much of a union of intervals lies before each time, in ns."""
    starts, ends = union
    if not len(starts):
        return np.zeros(len(times), np.int64)
    total = np.concatenate([[0], np.cumsum(ends - starts)])
    row = np.searchsorted(starts, times, side="right") - 1
    inside = np.minimum(times, ends[np.maximum(row, 0)]) - starts[np.maximum(row, 0)]
    return np.where(row >= 0, total[np.maximum(row, 0)] + inside, 0)


def _subtract(segments: Segments, union: Union) -> Segments:
    """Return the parts of segments that a union does not cover."""
    if not len(union[0]) or not len(segments.start):
        return segments
    pieces = _split(segments, np.sort(np.concatenate(union)))
    free = measure_before(union, pieces.end) == measure_before(union, pieces.start)
    return Segments(*(column[free] for column in pieces))


def _invert(union: Union, first: int, last: int) -> Union:
    """Return the times from ``first`` to ``last`` that a union does not cover."""
    start, end = np.concatenate([[first], union[1]]), np.concatenate([union[0], [last]])
    start, end = np.maximum(start, first), np.minimum(end, last)
    is_gap = end > start
    return start[is_gap], end[is_gap]


def _split(segments: Segments, points: Int64s | Sequence[int]) -> Segments:
    """Divide segments at points in time, which are sorted."""
    cuts = np.asarray(points, np.int64)
    first = np.searchsorted(cuts, segments.start, side="right")
    stop = np.searchsorted(cuts, segments.end, side="left")
    count = np.maximum(stop - first, 0) + 1
    row = np.repeat(np.arange(len(count)), count)
    offset = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    index = first[row] + offset
    start = np.where(
        offset == 0, segments.start[row], cuts[np.clip(index - 1, 0, max(len(cuts) - 1, 0))] if len(cuts) else 0
    )
    end = np.where(
        offset == count[row] - 1, segments.end[row], cuts[np.clip(index, 0, max(len(cuts) - 1, 0))] if len(cuts) else 0
    )
    nonempty = end > start
    return Segments(start[nonempty], end[nonempty], segments.part[row][nonempty], segments.label[row][nonempty])
