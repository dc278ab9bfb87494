"""Lanes against brute force."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
from hypothesis import example, given
from hypothesis import strategies as st
from tests.helpers import small_blocks
from tracekit.exporters.timeline import layout

Slice = tuple[int, int]

slices = st.lists(st.tuples(st.integers(-5, 25), st.integers(0, 9)).map(lambda s: (s[0], s[0] + s[1])), max_size=24)


def assigned(rows: list[Slice], *, nests: bool = False) -> list[int]:
    start, end = (pl.Series([row[i] for row in rows], dtype=pl.Int64) for i in (0, 1))
    with small_blocks(4):
        return layout.assign_lanes(start, end, nests=nests).to_list()


def times(rows: list[Slice]) -> tuple[np.ndarray, np.ndarray]:
    """The starts and the ends of slices."""
    start, end = (np.array([row[i] for row in rows], np.int64) for i in (0, 1))
    return start, end


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
    with small_blocks(4):
        nested = layout.are_nested_or_disjoint(*times(rows))
    assert nested == (not any(cross(a, b) for a, b in itertools.combinations(rows, 2)))


@given(slices)
def test_what_is_not_crowded_does_not_overlap(rows: list[Slice]) -> None:
    with small_blocks(4):
        crowded = layout.may_overlap(*times([extent(row) for row in rows]))
    assert crowded or not any(overlap(a, b) for a, b in itertools.combinations(rows, 2))


def test_a_hundred_thousand_overlapping_slices_need_one_lane_more() -> None:
    start = pl.int_range(0, 200_000, 2, eager=True)
    assert layout.assign_lanes(start, start + 3).to_list() == [0, 1] * 50_000
