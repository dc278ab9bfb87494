"""Containment against brute force: intervals that nest, touch, cross, coincide, are empty, run backwards, never end."""

from __future__ import annotations

import polars as pl
from hypothesis import example, given
from hypothesis import strategies as st
from tests.helpers import small_blocks
from tracekit.core.intervals import containment
from tracekit.core.intervals.containment import (
    add_enclosing_range_id,
    compute_axis_positions,
    find_contained_slices,
    find_last_containers,
    find_shortest_containers,
    list_contained_pairs,
    split_into_chains,
)
from tracekit.core.trees import compute_depths, concat_strings_from_root

BY = ["process_id", "thread_id"]
Interval = tuple[int | None, int | None, int | None, int | None]  # process, thread, start, end

times = st.integers(0, 12)
numbers = st.sampled_from([1, 2, None])
intervals = st.lists(st.tuples(st.just(7), numbers, times, times | st.none()), max_size=14)
nested = st.lists(st.tuples(st.just(7), st.just(1), times, st.integers(1, 9)), max_size=14).map(
    lambda rows: [(p, t, s, s + length) for p, t, s, length in rows]
)
bounds = st.sampled_from([-(1 << 63), 1 - (1 << 63), -1, 0, (1 << 63) - 2, (1 << 63) - 1])
extreme = st.lists(st.tuples(st.sampled_from([-(1 << 63), 0]), numbers, bounds, bounds | st.none()), max_size=9)
any_intervals = intervals | nested | extreme


def frame(rows: list[Interval]) -> pl.DataFrame:
    names = [*BY, "start_ns", "end_ns"]
    return pl.DataFrame(rows, schema=dict.fromkeys(names, pl.Int64), orient="row")


def contains(p: Interval, c: Interval) -> bool:
    return None not in (*p, *c) and p[:2] == c[:2] and p[2] <= c[2] and p[3] >= c[3]


def brute_parents(rows: list[Interval], allowed: list[bool] | None = None) -> list[int | None]:
    found = []
    for i, c in enumerate(rows):
        outer = [(p[3] - p[2], j) for j, p in enumerate(rows) if j != i and contains(p, c)]
        outer = [o for o in outer if allowed is None or allowed[o[1]]]
        found.append(min(outer)[1] if outer else None)
    return found


def climb(parent: list[int | None], row: int) -> list[int] | None:
    """The rows from this one up to a root; None if there is no root."""
    path = [row]
    while (up := parent[path[-1]]) is not None:
        if up in path:
            return None
        path.append(up)
    return path


@given(any_intervals)
@example([(7, 1, 0, 10), (7, 1, 0, 10), (7, 1, 0, 10), (7, 1, 2, 3)])
@example([(7, 1, 0, 10), (7, 1, 5, 15), (7, 1, 6, 8), (7, 2, 0, 3), (7, 2, 1, 2)])
@example([(7, 1, 0, 10), (7, 1, 10, 10), (7, 1, 10, 20)])
def test_parents_are_the_shortest_containers(rows: list[Interval]) -> None:
    assert find_shortest_containers(frame(rows), by=BY).to_list() == brute_parents(rows)


@given(st.lists(st.tuples(st.tuples(st.just(7), numbers, times, times | st.none()), st.booleans()), max_size=14))
def test_parents_can_be_restricted_to_some_intervals(cases: list[tuple[Interval, bool]]) -> None:
    rows, allowed = [r for r, _ in cases], [a for _, a in cases]
    found = find_shortest_containers(frame(rows), by=BY, is_candidate=pl.Series(allowed, dtype=pl.Boolean)).to_list()
    assert found == brute_parents(rows, allowed)


@given(any_intervals)
def test_parents_of_crossing_intervals_also_hold_where_intervals_nest(rows: list[Interval]) -> None:
    data = frame(rows)
    found = containment._find_parents_of_overlapping_intervals(compute_axis_positions(data, by=BY)[0], data)
    twins = {r for r in rows if rows.count(r) > 1}
    want = brute_parents(rows)
    for row, parent in found.iter_rows():
        assert rows[row] in twins or parent == want[row]


@given(any_intervals)
def test_depths_and_paths(rows: list[Interval]) -> None:
    parent = find_shortest_containers(frame(rows), by=BY)
    ways = [climb(parent.to_list(), i) for i in range(len(rows))]
    texts = pl.Series([f":{i}" for i in range(len(rows))], dtype=pl.String)
    assert compute_depths(parent).to_list() == [None if w is None else len(w) for w in ways]
    assert concat_strings_from_root(parent, texts).to_list() == [
        None if w is None else "".join(f":{i}" for i in w[::-1]) for w in ways
    ]


@given(any_intervals, any_intervals)
def test_slices_of_all_chains_are_all_that_is_contained(outer: list[Interval], inner: list[Interval]) -> None:
    ranges, calls = compute_axis_positions(frame(outer), frame(inner), by=BY)
    split = list(split_into_chains(calls))
    pairs = pl.concat([list_contained_pairs(find_contained_slices(ranges, chain), chain) for chain in split])
    want = [(i, j) for i, p in enumerate(outer) for j, c in enumerate(inner) if contains(p, c)]
    assert sorted(pairs.iter_rows()) == want
    assert sorted(pl.concat(split)["row"]) == [j for j, c in enumerate(inner) if None not in c]
    for chain in split:
        assert chain["start"].is_sorted()
        assert chain["end"].is_sorted()


slice_lists = st.integers(1, 40).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(-5, 5), min_size=n, max_size=n),
        st.lists(st.tuples(st.integers(0, n - 1), st.integers(1, n)).map(lambda s: (s[0], min(n, sum(s)))), max_size=9),
    )
)


def found_frame(found: list[tuple[int, int]]) -> pl.DataFrame:
    return pl.DataFrame(found, schema={"first": pl.Int64, "stop": pl.Int64}, orient="row")


@given(slice_lists)
def test_slice_minima(case: tuple[list[int], list[tuple[int, int]]]) -> None:
    values, found = case
    got = containment.compute_slice_minima(pl.Series(values, dtype=pl.Int64), found_frame(found))
    assert got.to_list() == [min(values[a:b]) for a, b in found]


@given(
    any_intervals,
    st.lists(st.tuples(st.sampled_from([7, 0]), numbers, st.integers(-2, 25) | bounds | st.none()), max_size=9),
)
@example([(7, 1, 3, 3), (7, 1, 0, None)], [(7, 1, 3)])
def test_latest_enclosing(rows: list[Interval], points: list[tuple[int, int | None, int | None]]) -> None:
    ids = [100 - i for i in range(len(rows))]
    ranges = frame(rows).with_columns(pl.Series("range_id", ids, dtype=pl.Int64))
    asked = pl.DataFrame(points, schema=dict.fromkeys([*BY, "at_ns"], pl.Int64), orient="row")
    got = add_enclosing_range_id(asked.lazy(), ranges.lazy(), time_column="at_ns", by=BY).collect()
    want = []
    for process, thread, t in points:
        around = [
            (start, i)
            for (p, n, start, end), i in zip(rows, ids, strict=True)
            if None not in (t, thread) and (p, n) == (process, thread) and start <= t and (end is None or t < end)
        ]
        want.append(max(around)[1] if around else None)
    assert got["range_id"].to_list() == want
    assert got.drop("range_id").equals(asked)


def test_far_apart_tracks_fit_one_axis() -> None:
    day = 86_400 * 10**9
    rows = [(1, 1, 20_000 * day, 20_000 * day + 5), (2, 1, 0, 3), (2, 2, -(2**62), -(2**62) + 9), (2, 2, -(2**62), 0)]
    assert find_shortest_containers(frame(rows), by=BY).to_list() == [None, None, 3, None]


@given(any_intervals, any_intervals)
def test_last_containers_of_small_blocks(outer: list[Interval], inner: list[Interval]) -> None:
    with small_blocks(3):
        got = find_last_containers(frame(inner), frame(outer), by=BY, allow_inverted=True).to_list()
    assert got == [max((i for i, p in enumerate(outer) if contains(p, c)), default=None) for c in inner]
