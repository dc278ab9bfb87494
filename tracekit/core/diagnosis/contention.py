"""Let kernels that share the GPU with others become faster when the others do."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.core.diagnosis import kinds
from tracekit.system.sorting import sort_and_deduplicate

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracekit.core.diagnosis.operations import Operations

    Int64s = npt.NDArray[np.int64]

_MIN_SHARED_NS = 2_000


class Contention(NamedTuple):
    """The kernels that run at the same time as other kernels of the GPU.

    Attributes:
        rows: Rows of the operations.
        begin: Position of the start of each of them among ``bounds``.
        end: Position of its end.
        width: Time from each of the bounds to the next one, divided by the number of kernels that run in it.
    """

    rows: Int64s
    begin: Int64s
    end: Int64s
    width: npt.NDArray[np.float64]

    def shorten_others(self, duration: Int64s, edited: Int64s) -> Int64s:
        """Return durations of operations in which kernels become shorter along with those that run beside them.

        The GPU divides its time equally among the kernels that run at the same time. Therefore, a kernel that is not
        edited becomes shorter by the average of the kernels with which it shares the GPU.

        Args:
            duration: Recorded durations of all operations.
            edited: Durations of all operations after an edit.
        """
        old, new = duration[self.rows], edited[self.rows]
        ratio = np.where(new < old, new / np.maximum(old, 1), 1.0)
        if (ratio == 1).all():
            return edited
        total = np.zeros(len(self.width) + 1)
        np.add.at(total, self.begin, ratio)
        np.add.at(total, self.end, -ratio)
        area = np.concatenate([[0.0], np.cumsum(np.cumsum(total)[:-1] * self.width)])
        shared = (area[self.end] - area[self.begin]).astype(np.int64)
        result = edited.copy()
        result[self.rows] = np.where(new == old, np.minimum(old, shared + 1), new)
        return result


def find_contention(ops: Operations) -> Contention | None:
    """Return the kernels that run at the same time as others for a noticeable time, or None if there are none."""
    kernels = np.flatnonzero(kinds.select_classes(ops.cls, kinds.COMPUTE_CLASSES) & (ops.duration > 0))
    order = kernels[np.argsort(ops.start[kernels], kind="stable")]
    start, end = ops.start[order], ops.end[order]
    if not len(order):
        return None
    after = np.append(np.False_, np.maximum.accumulate(end)[:-1] - start[1:] > _MIN_SHARED_NS)
    if not after.any():
        return None
    before = np.append(end[:-1] - start[1:] > _MIN_SHARED_NS, np.False_)
    rows = order[before | after]
    bounds = sort_and_deduplicate(np.concatenate([ops.start[rows], ops.end[rows]]))
    begin, stop = np.searchsorted(bounds, ops.start[rows]), np.searchsorted(bounds, ops.end[rows])
    count = np.zeros(len(bounds), np.int64)
    np.add.at(count, begin, 1)
    np.add.at(count, stop, -1)
    running = np.maximum(np.cumsum(count)[:-1], 1)
    return Contention(rows, begin, stop, np.diff(bounds) / running)
