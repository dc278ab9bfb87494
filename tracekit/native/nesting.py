"""Find the parents of intervals in one pass with a stack.

Intervals are in *nesting order*: by start, and intervals with equal starts by descending end. The *parent* of an
interval is the last earlier one that ends at the same time or later. If intervals are nested, the stack contains those
that are open. If two intervals cross, the shorter one leaves the stack: whatever follows and is contained in it is also
contained in the longer one, which is later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tracekit.native.program import Program

if TYPE_CHECKING:
    import numpy.typing as npt

    Integers = npt.NDArray[np.int64]

_INTERVALS: Final[dict[str, type[np.generic]]] = {
    "start": np.int64,
    "end": np.int64,
    "parent": np.int64,
    "depth": np.int32,
    "crosses": np.uint8,
}
_STACK: Final[dict[str, type[np.generic]]] = {"open_end": np.int64, "open_interval": np.int64}
PROGRAM: Final = Program(
    "nesting",
    {"nest": ("intervals", "first", "height", "capacity")},
    arrays={"nest": {**_INTERVALS, **_STACK}},
)
_CHUNK: Final = 1 << 14
"""Number of intervals that are in the sandbox at a time."""
_MAX_INTERVALS: Final = 1 << 32


def compute_parents(start: Integers, end: Integers, parent: Integers, depth: npt.NDArray[np.int32]) -> Integers:
    """Find the parent of each interval.

    Args:
        start: Start of each interval, in nesting order.
        end: End of each interval.
        parent: Array to which the position of the parent of each interval is written, or -1 for an outermost interval.
        depth: Array to which the number of ancestors of each interval is written, including the interval itself.

    Returns:
        The positions of the intervals that cross an earlier one, which means that they overlap and neither contains the
        other.

    Raises:
        MemoryError: There are too many intervals, or too many are nested in each other.
    """
    if not len(start):
        return np.zeros(0, np.int64)
    from tracekit.native.arrays import ArraySandbox

    if len(start) > _MAX_INTERVALS:
        raise MemoryError(f"{len(start):,} intervals cannot be nested, and at most {_MAX_INTERVALS:,} are possible")
    sandbox = ArraySandbox(PROGRAM)
    capacity = _CHUNK
    sizes = dict.fromkeys(_INTERVALS, min(_CHUNK, len(start)))
    arrays = sandbox.allocate("nest", **sizes, **dict.fromkeys(_STACK, capacity))
    first = height = 0
    crossings = []
    while first < len(start):
        if height == capacity:
            stack = {name: arrays[name].copy() for name in _STACK}
            capacity *= 2
            arrays = sandbox.allocate("nest", **sizes, **dict.fromkeys(_STACK, capacity))
            for name, values in stack.items():
                arrays[name][:height] = values
        here = slice(first, min(first + _CHUNK, len(start)))
        count = here.stop - first
        arrays["start"][:count], arrays["end"][:count] = start[here], end[here]
        sandbox.call("nest", intervals=count, first=first, height=height, capacity=capacity)
        count, height = (sandbox.parameter("nest", name) for name in ("intervals", "height"))
        here = slice(first, first + count)
        parent[here], depth[here] = arrays["parent"][:count], arrays["depth"][:count]
        crossings.append(np.flatnonzero(arrays["crosses"][:count]) + first)
        first = here.stop
    return np.concatenate(crossings)
