"""Assign ids to sequences of integers, so that equal sequences get the same id.

The hash table is in the memory of a sandbox. The sequences form a tree in which sequences with a common prefix share
nodes. For example, a call stack is a sequence of frames from the outermost to the innermost one, and stacks with the
same callers share the nodes of these callers. Nodes are numbered in the order in which they are first used.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from tracekit.native.program import Program
from tracekit.native.sandbox import Sandbox
from tracekit.readers.common.damage import Damage

if TYPE_CHECKING:
    from tracekit.readers.common.budget import Budget

UInt32Array: TypeAlias = npt.NDArray[np.uint32]
Int64Array: TypeAlias = npt.NDArray[np.int64]

_STATE = 128
_NAMES = ("count", "parents", "labels", "depths", "table", "mask", "seed")
"""Offset of the numbers that describe a trie in memory (32 bits each), and their names."""
_INPUT = _STATE + 4 * (len(_NAMES) + 1)
PROGRAM = Program(
    "tries",
    {
        "add": ("sequences", "edges", "sequence_labels", "nodes"),
        "merge": ("others", "other_parents", "other_labels", "nodes"),
        "index": (),
    },
    {"STATE": _STATE},
)
CELL, ENTRY = 4, 16
NODE_BYTES = 3 * CELL + 2 * ENTRY
"""Bytes of memory per node: its parent, label and depth, and two entries of the hash table."""
MIN_NODES, MAX_NODES = 1 << 12, 1 << 26
BATCH = 1 << 18
"""Number of labels and sequences that are added at a time, except for a longer sequence."""


class Trie:
    """A prefix tree of sequences of integers from 0 to 2³² - 1, which are called labels. Node 0 is the root.

    Attributes:
        count: Number of nodes, not counting the root.
    """

    def __init__(self, budget: Budget, plural_noun: str) -> None:
        """Create an empty trie.

        Args:
            budget: Memory budget for the nodes.
            plural_noun: Plural noun for the nodes in the error message, such as "frames of call stacks".
        """
        self.count = 0
        self._budget = budget
        self._plural_noun = plural_noun
        self._capacity = self._input_bytes = 0
        self._seed = int.from_bytes(os.urandom(4))
        self._sandbox: Sandbox | None = None

    @property
    def parents(self) -> UInt32Array:
        """The number of the parent of each node, in node order. The root is its own parent."""
        return self._view_node_array("parents")

    @property
    def labels(self) -> UInt32Array:
        """The label of each node, in node order. The root, which has no label, has the value 0.

        The labels on the path from a child of the root to a node are the sequence of the node.
        """
        return self._view_node_array("labels")

    @property
    def depths(self) -> UInt32Array:
        """The length of the sequence of each node, in node order."""
        return self._view_node_array("depths")

    def add_sequences(self, offsets: Int64Array, labels: UInt32Array) -> UInt32Array:
        """Add sequences, and return the number of the node of each sequence.

        Args:
            offsets: Index of the first label of each sequence in ``labels``, followed by the total number of labels.
            labels: Labels of all sequences. The labels of each sequence are in reverse order: the last one belongs to
                a child of the root, the first one to the node of the sequence.

        Raises:
            Damage: The nodes exceed the memory budget.
        """
        nodes = np.empty(len(offsets) - 1, np.uint32)
        first = 0
        while first < len(nodes):
            last = int(np.searchsorted(offsets, offsets[first] + BATCH, "right")) - 1
            last = min(max(last, first + 1), first + BATCH, len(nodes))
            nodes[first:last] = self._add_batch(offsets[first : last + 1], labels)
            first = last
        return nodes

    def merge(self, other: Trie) -> UInt32Array:
        """Add all sequences of another trie to this trie.

        Returns:
            An array of node numbers of this trie. Element ``i`` is the node that has the same sequence as node ``i`` of
            the other trie.

        Raises:
            Damage: The nodes exceed the memory budget.
        """
        size = CELL * (other.count + 1)
        sandbox = self._reserve_sandbox(other.count, 3 * size)
        at = [_INPUT + k * size for k in range(3)]
        for place, values in zip(at, (other.parents, other.labels), strict=False):
            sandbox.array(place, other.count + 1, np.uint32)[:] = values
        sandbox.call("merge", others=other.count, other_parents=at[0], other_labels=at[1], nodes=at[2])
        self.count = _read_number(sandbox, "count")
        return sandbox.array(at[2], other.count + 1, np.uint32).copy()

    def _add_batch(self, offsets: Int64Array, labels: UInt32Array) -> UInt32Array:
        """Add a batch of sequences to the trie, and return the number of the node of each sequence.

        Args:
            offsets: Index of the first label of each sequence in ``labels``, followed by the index after the last label
                of the batch.
            labels: Labels of all sequences, as for ``add_sequences``.
        """
        rows, size = len(offsets) - 1, int(offsets[-1] - offsets[0])
        at = [_INPUT, _INPUT + CELL * (rows + 1), _INPUT + CELL * (2 * rows + 1)]
        sandbox = self._reserve_sandbox(size, at[2] + CELL * size - _INPUT)
        sandbox.array(at[0], rows + 1, np.uint32)[:] = offsets - offsets[0]
        sandbox.array(at[2], size, np.uint32)[:] = labels[offsets[0] : offsets[-1]]
        sandbox.call("add", sequences=rows, edges=at[0], nodes=at[1], sequence_labels=at[2])
        self.count = _read_number(sandbox, "count")
        return sandbox.array(at[1], rows, np.uint32).copy()

    def _reserve_sandbox(self, nodes: int, input_bytes: int) -> Sandbox:
        """Return a sandbox that holds the trie and has room for additional nodes and for the arguments of a call."""
        if self._sandbox and self.count + nodes <= self._capacity and input_bytes <= self._input_bytes:
            return self._sandbox
        capacity = self._capacity
        if self._sandbox is None or self.count + nodes > capacity:
            capacity = max(MIN_NODES, 1 << (self.count + nodes - 1).bit_length())
            if capacity > MAX_NODES:
                raise Damage(
                    f"the file has more than {MAX_NODES:,} {self._plural_noun}, which tracekit does not support"
                )
            self._budget.reserve(capacity - self._capacity, NODE_BYTES, self._plural_noun)
        self._budget.check_temporary_memory(input_bytes, 1, f"bytes of {self._plural_noun}")
        input_bytes = max(self._input_bytes, -(-input_bytes // 8) * 8)
        table, arrays = 2 * capacity, CELL * (capacity + 2)
        at = [_INPUT + input_bytes + k * arrays for k in range(4)]
        sandbox = Sandbox(PROGRAM, at[3] + ENTRY * table, _create_out_of_bounds_error)
        if self._sandbox is not None:
            for place, values in zip(at, (self.parents, self.labels, self.depths), strict=False):
                sandbox.array(place, self.count + 1, np.uint32)[:] = values
        sandbox.array(_STATE, len(_NAMES), np.uint32)[:] = [self.count, *at, table - 1, self._seed]
        sandbox.call("index")
        self._sandbox, self._capacity, self._input_bytes = sandbox, capacity, input_bytes
        return sandbox

    def _view_node_array(self, name: str) -> UInt32Array:
        if self._sandbox is None:
            return np.zeros(1, np.uint32)
        offset = _read_number(self._sandbox, name)
        return self._sandbox.array(offset, self.count + 1, np.uint32)


def _read_number(sandbox: Sandbox, name: str) -> int:
    return int(sandbox.array(_STATE, len(_NAMES), np.uint32)[_NAMES.index(name)])


def _create_out_of_bounds_error() -> Exception:
    return Damage("the nodes of a prefix tree do not fit into the memory of the sandbox")
