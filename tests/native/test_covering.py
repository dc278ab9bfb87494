"""The last slice that covers each row, against brute force, with chunks and windows of a few rows."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracekit.native import covering
from tracekit.native.arrays import ArraySandbox

slices = st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)).filter(lambda s: s[0] < s[1]), max_size=20)


@given(slices, st.integers(0, 15), st.integers(1, 5), st.integers(1, 6))
def test_last_slices(rows: list[tuple[int, int]], length: int, chunk: int, window: int) -> None:
    first, stop = (np.minimum(np.array([row[i] for row in rows], np.int64), length) for i in range(2))
    last = np.zeros(length, np.int64)
    with mock.patch.multiple(covering, _CHUNK=chunk, _WINDOW=window):
        covering.find_last_covering_slices(first, stop, last)
    assert last.tolist() == [max((j for j, (a, b) in enumerate(rows) if a <= i < b), default=-1) for i in range(length)]


def test_memory_outside_the_sandbox() -> None:
    sandbox = ArraySandbox(covering.PROGRAM)
    sandbox.allocate("cover", first=1)
    with pytest.raises(MemoryError, match="the covering left its memory"):
        sandbox.call("cover", slices=1 << 31)


def test_too_many_slices() -> None:
    none = np.zeros(0, np.int64)
    with mock.patch.object(covering, "_NONE", 1), pytest.raises(MemoryError, match="2 slices cannot be compared"):
        covering.find_last_covering_slices(np.zeros(2, np.int64), none, none)
