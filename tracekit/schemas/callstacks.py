"""Read call stacks from a tree of frames, in which each frame refers to the frame of its caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterator

Int64Array: TypeAlias = npt.NDArray[np.int64]

BATCH_FRAMES = 1 << 20


class FrameBatch(NamedTuple):
    """The frames of consecutive call stacks.

    Attributes:
        rows: The slice of the array of stacks that the batch contains.
        offsets: Offsets into ``frames`` as in an Arrow list array: the frames of stack ``i`` of the batch are
            ``frames[offsets[i]:offsets[i + 1]]``.
        frames: Nodes of all stacks of the batch, each stack from the outermost to the innermost frame. If a stack has
            fewer callers than its depth, the missing outermost frames are node 0.
    """

    rows: slice
    offsets: Int64Array
    frames: Int64Array


def iterate_frame_batches(
    parents: Int64Array, depths: Int64Array, innermost_nodes: Int64Array, max_frames: int = BATCH_FRAMES
) -> Iterator[FrameBatch]:
    """Yield the frames of call stacks in batches.

    Args:
        parents: Node of the caller of each node. Node 0 is the root, which is not a frame.
        depths: Number of frames from the outermost caller of each node to the node itself.
        innermost_nodes: Node of the innermost frame of each call stack.
        max_frames: Maximum number of frames of a batch that has more than one stack.

    Yields:
        The batches, in the order of ``innermost_nodes``.
    """
    ends = np.cumsum(depths[innermost_nodes])
    first = 0
    while first < len(innermost_nodes):
        before = int(ends[first - 1]) if first else 0
        last = max(int(np.searchsorted(ends, before + max_frames, "right")), first + 1)
        rows = slice(first, last)
        edges = np.concatenate(([0], ends[rows] - before))
        yield FrameBatch(rows, edges, _collect_stack_nodes(parents, innermost_nodes[rows], edges))
        first = last


def _collect_stack_nodes(parents: Int64Array, innermost_nodes: Int64Array, offsets: Int64Array) -> Int64Array:
    """Return the frames of several call stacks in one array, each stack from the outermost to the innermost frame.

    Args:
        parents: Node of the caller of each node.
        innermost_nodes: Node of the innermost frame of each stack.
        offsets: Offset of each stack in the result, followed by the size of the result.
    """
    frames = np.zeros(int(offsets[-1]), np.int64)
    nodes, starts, at = innermost_nodes, offsets[:-1], offsets[1:] - 1
    while len(nodes):
        inside = (nodes > 0) & (at >= starts)
        nodes, at, starts = nodes[inside], at[inside], starts[inside]
        frames[at] = nodes
        nodes, at = parents[nodes], at - 1
    return frames
