"""Lanes against brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tracekit.native import lanes
from tracekit.native.lanes import LaneSweep

Slice = tuple[int, int]

slices = st.lists(st.tuples(st.integers(-5, 25), st.integers(0, 9)).map(lambda s: (s[0], s[0] + s[1])), max_size=24)


Swept = tuple[list[int], list[int], LaneSweep]


def sweep(rows: list[Slice], tracks: list[int] | None = None, *, nests: bool = False) -> Swept:
    """The number of open slices at the start of each slice, its lane, and the sweep."""
    swept = LaneSweep(max(tracks or [0]) + 1, nests=nests)
    order = sorted(range(len(rows)), key=lambda i: (rows[i][0], -extent(rows[i])[1]))
    starts, ends = (np.array([rows[i][n] for i in order], np.int64) for n in (0, 1))
    slices = starts, ends, np.array([(tracks or [0] * len(rows))[i] for i in order], np.uint32)
    size = 5 if len(rows) < 100 else 5000
    blocks = [tuple(values[n : n + size] for values in slices) for n in range(0, len(rows), size)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanes, "_CHUNK_ROWS", 2 if len(rows) < 100 else 1000)
        depths = [swept.find_overlaps(*block).tolist() for block in blocks]
        swept.finish_overlaps()
        assigned = [swept.assign_lanes(*block).tolist() for block in blocks]
    by_row = [dict(zip(order, itertools.chain(*values), strict=True)) for values in (depths, assigned)]
    return *([values[i] for i in range(len(rows))] for values in by_row), swept


def assigned(rows: list[Slice], *, nests: bool = False) -> list[int]:
    return sweep(rows, nests=nests)[1]


def extent(row: Slice) -> Slice:
    return row[0], max(row[1], row[0] + 1)


def overlap(a: Slice, b: Slice) -> bool:
    (a0, a1), (b0, b1) = extent(a), extent(b)
    return a0 < b1 and b0 < a1


def cross(a: Slice, b: Slice) -> bool:
    (a0, a1), (b0, b1) = sorted([extent(a), extent(b)])
    return a0 < b0 < a1 < b1


def pairs(rows: list[Slice], given: list[int]) -> list[tuple[Slice, Slice]]:
    """Pairs of slices in the same lane."""
    both = itertools.combinations(zip(rows, given, strict=True), 2)
    return [(a, b) for (a, lane), (b, other) in both if lane == other]


def components(rows: list[Slice]) -> list[list[int]]:
    """Slices that touch each other, by their position."""
    found: list[list[int]] = []
    for i in sorted(range(len(rows)), key=lambda i: extent(rows[i])):
        if found and extent(rows[i])[0] < max(extent(rows[j])[1] for j in found[-1]):
            found[-1].append(i)
        else:
            found.append([i])
    return found


@given(slices)
@example([])
@example([(0, 0), (0, 0), (0, 0)])
@example([(0, 5), (5, 5), (5, 9)])
@example([(0, 4), (2, 6), (4, 8), (6, 10)])
def test_a_lane_holds_no_overlap_and_there_are_no_more_lanes_than_needed(rows: list[Slice]) -> None:
    given_lanes = assigned(rows)
    assert not any(overlap(a, b) for a, b in pairs(rows, given_lanes))
    for component in components(rows):
        deepest = max(sum(overlap((rows[i][0], rows[i][0]), rows[j]) for j in component) for i in component)
        assert {given_lanes[i] for i in component} == set(range(deepest))


@given(slices)
@example([(0, 9), (0, 9), (2, 5), (5, 9), (9, 9)])
def test_where_slices_nest_only_what_crosses_is_spread(rows: list[Slice]) -> None:
    given_lanes = assigned(rows, nests=True)
    assert not any(cross(a, b) for a, b in pairs(rows, given_lanes))
    strict = assigned(rows)
    for component in components(rows):
        crosses = any(cross(rows[i], rows[j]) for i, j in itertools.combinations(component, 2))
        assert [given_lanes[i] for i in component] == [strict[i] if crosses else 0 for i in component]


@given(slices)
@example([(0, 9), (2, 9), (2, 9), (9, 12)])
@example([(0, 0), (0, 5), (4, 5), (5, 9), (4, 6)])
def test_slices_that_do_not_cross_are_nested(rows: list[Slice]) -> None:
    depths, _, swept = sweep(rows)
    assert swept.has_crossings == any(cross(a, b) for a, b in itertools.combinations(rows, 2))
    order = sorted(range(len(rows)), key=lambda i: (rows[i][0], -extent(rows[i])[1]))
    for n, i in enumerate(order):
        assert depths[i] == sum(extent(rows[j])[1] > rows[i][0] for j in order[:n])


@given(slices, st.data())
def test_tracks_do_not_affect_one_another(rows: list[Slice], data: st.DataObject) -> None:
    tracks = data.draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows)))
    depths, assigned_lanes, swept = sweep(rows, tracks, nests=True)
    for track in set(tracks):
        chosen = [i for i in range(len(rows)) if tracks[i] == track]
        alone = sweep([rows[i] for i in chosen], nests=True)
        assert ([depths[i] for i in chosen], [assigned_lanes[i] for i in chosen]) == alone[:2]
        assert swept.lane_counts[track] == max(alone[1]) + 1


def test_many_overlapping_slices() -> None:
    """One after the other they need one lane more, and all at once as many lanes as there are slices."""
    assert assigned([(n, n + 3) for n in range(0, 40_000, 2)]) == [0, 1] * 10_000
    assert assigned([(n, 40_000) for n in range(20_000)]) == list(range(20_000))


def test_unknown_tracks_are_an_error() -> None:
    one = np.ones(1, np.int64)
    with pytest.raises(ValueError, match="unknown track"):
        LaneSweep(1, nests=False).find_overlaps(one, one, one.astype(np.uint32))
