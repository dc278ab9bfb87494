"""Sums and unions over cells, against brute force."""

from __future__ import annotations

import itertools

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracekit.core.rollup import cells
from tracekit.core.rollup.cells import GroupCells
from tracekit.core.trees import Tree

PARENTS = (None, 0, 0, 1, 3, 2)
TREE = Tree(
    pl.DataFrame(
        {"up": PARENTS, "part": list("rabcde"), "level": [0, 1, 1, 2, 3, 2]},
        schema={"up": pl.Int64, "part": pl.Categorical, "level": pl.Int64},
    )
)
ROWS = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 2), st.none() | st.integers(0, 1), st.integers(-5, 9)), max_size=8
)
EXTREME = st.integers(-3, 12) | st.sampled_from([-(2**63), 2**63 - 1])
INTERVALS = st.lists(st.tuples(st.integers(0, 7), st.none() | st.integers(-1, 2), EXTREME, EXTREME), max_size=12)


def list_cells(node: int, direction: int, iteration: int | None) -> list[tuple[int, int, int]]:
    """Return the cell of a row, and the cells that contain it."""
    listed, above = [], PARENTS[node]
    if iteration is not None:
        listed = [(node, direction, iteration)]
        if above is not None:
            listed += list_cells(above, direction if above else 0, iteration)
    return listed


@pytest.mark.parametrize("chunk", [1 << 18, 2])
@given(rows=ROWS, intervals=INTERVALS)
def test_cells_contain_what_is_below_them(
    chunk: int, rows: list[tuple[int, int, int | None, int]], intervals: list[tuple[int, int | None, int, int]]
) -> None:
    keys = ["node", "direction", "iteration"]
    frame = pl.DataFrame(rows, schema=dict.fromkeys([*keys, "value"], pl.Int64), orient="row")
    made = GroupCells.from_rows(TREE, frame.select(keys))
    intervals = [i for i in intervals if i[0] < len(rows)]
    times = ("instance", "device_id", "start_ns", "end_ns")
    data = pl.DataFrame(intervals, schema=dict.fromkeys(times, pl.Int64), orient="row")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cells, "_CHUNK_ROWS", chunk)
        unions = made.measure_unions(data, pl.Series([-1, 0, 1], dtype=pl.Int64))
    sums: dict[tuple[int, ...], int] = {}
    covered: dict[tuple[int, ...], set[tuple[int, int, int]]] = {}
    points = sorted({t for _, _, *ends in intervals for t in ends})
    for number, (*key, value) in enumerate(rows):
        for cell in list_cells(*key):
            sums[cell] = sums.get(cell, 0) + value
            pieces = {
                (device, first, last)
                for instance, device, start, end in intervals
                for first, last in itertools.pairwise(points)
                if instance == number and device in (-1, 0, 1) and start <= first < last <= end
            }
            covered.setdefault(cell, set()).update(pieces)
    assert {tuple(r[:3]): r[3] for r in made.sum(frame.select("value")).rows()} == sums
    for cell, union in zip(made.keys.rows(), unions, strict=True):
        assert (union - sum(last - first for _, first, last in covered[cell])) % 2**64 == 0
