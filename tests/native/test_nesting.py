"""Parents against brute force, with chunks of a few intervals."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracekit.native import nesting
from tracekit.native.arrays import ArraySandbox

times = st.integers(-3, 20) | st.sampled_from([-(1 << 63), (1 << 63) - 2])
lists = st.lists(st.tuples(times, st.integers(0, 15)), max_size=20).map(
    lambda rows: sorted(((s, min(s + length, (1 << 63) - 1)) for s, length in rows), key=lambda r: (r[0], -r[1]))
)


@given(lists, st.integers(1, 5))
def test_parents_and_depths(rows: list[tuple[int, int]], chunk: int) -> None:
    start, end = (np.array([row[i] for row in rows], np.int64) for i in range(2))
    parent, depth = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int32)
    with mock.patch.object(nesting, "_CHUNK", chunk):
        crossings = nesting.compute_parents(start, end, parent, depth)
    outer = [[j for j in range(i) if rows[j][1] >= e] for i, (_, e) in enumerate(rows)]
    assert parent.tolist() == [max(j, default=-1) for j in outer]
    assert depth.tolist() == [1 if p < 0 else depth[p] + 1 for p in parent.tolist()]
    crossed = [any(a[0] < start < a[1] < end for a in rows) for start, end in rows]
    crossing_pairs = set(np.flatnonzero(crossed).tolist())
    assert set(crossings.tolist()) <= crossing_pairs
    assert len(crossings) > 0 or not crossing_pairs


def test_memory_outside_the_sandbox() -> None:
    sandbox = ArraySandbox(nesting.PROGRAM)
    sandbox.allocate("nest", start=1)
    with pytest.raises(MemoryError, match="the nesting left its memory"):
        sandbox.call("nest", intervals=1 << 31, capacity=1 << 31)


def test_too_many_intervals() -> None:
    none = np.zeros(0, np.int64)
    with mock.patch.object(nesting, "_MAX_INTERVALS", 1), pytest.raises(MemoryError, match="2 intervals cannot be"):
        nesting.compute_parents(np.zeros(2, np.int64), none, none, none.astype(np.int32))
