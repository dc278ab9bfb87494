"""Positions on one axis against comparisons of (track, time), also near the limits of Int64."""

from __future__ import annotations

import itertools

import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from tracekit.core import intervals
from tracekit.core.intervals.axis import LIMIT, Axis

FIRST, LAST = -(1 << 63), (1 << 63) - 1
near = st.integers(-3, 3)
far = st.sampled_from([FIRST, FIRST + 1, -(1 << 61), 1 << 61, LAST - 1, LAST])
times = st.one_of(near, far)
few_times = st.one_of(st.just(near), st.just(times))
keys = {
    pl.Int64: st.sampled_from([FIRST, -1, 0, 1, LAST, None]),
    pl.Int32: st.sampled_from([-1, 0, 2, None]),
    pl.UInt64: st.sampled_from([0, 1, (1 << 64) - 1, None]),
    pl.String: st.sampled_from(["", "a", "b", None]),
}


@st.composite
def tracks_and_times(draw: st.DrawFn) -> tuple[pl.DataFrame, pl.DataFrame, list[str]]:
    """Two frames of intervals with key columns of any type: none, one or two."""
    types = draw(st.lists(st.sampled_from(list(keys)), max_size=2))
    schema = {f"key{i}": t for i, t in enumerate(types)} | {"start_ns": pl.Int64, "end_ns": pl.Int64}
    moment = draw(few_times)
    row = st.tuples(*(keys[t] for t in types), moment | st.none(), moment | st.none())
    frames = [pl.DataFrame(draw(st.lists(row, max_size=8)), schema=schema, orient="row") for _ in range(2)]
    return frames[0], frames[1], list(schema)[:-2]


@given(tracks_and_times())
def test_positions_compare_like_tracks_and_times_and_convert_back(drawn) -> None:
    left, right, by = drawn
    axis = Axis.from_intervals(left, right, by=by)
    seen = []
    for frame in (left, right):
        placed = axis.compute_positions(frame)
        assert placed["row"].to_list() == [i for i, row in enumerate(frame.rows()) if None not in row]
        assert axis.convert_to_intervals(placed).equals(frame.drop_nulls())
        assert axis.find_track_numbers(placed["end"]).to_list() == placed["track"].to_list()
        for row, (start, end) in zip(frame.drop_nulls().rows(), placed.select("start", "end").rows(), strict=True):
            seen += [((row[:-2], row[-2]), start), ((row[:-2], row[-1]), end)]
    assert [p for _, p in sorted(seen)] == sorted(p for _, p in seen)
    assert len({p for _, p in seen}) == len({key for key, _ in seen})
    assert all(0 <= p < LIMIT for _, p in seen)


@given(tracks_and_times())
def test_an_instant_is_inside_the_intervals_that_enclose_it(drawn) -> None:
    ranges, points, by = drawn
    axis = Axis.from_intervals(ranges, by=by)
    spans = axis.compute_nonempty_positions(ranges)
    rows = ranges.rows()
    keep = [i for i, (*_, s, e) in enumerate(rows) if None not in rows[i][:-1] and (e is None or s < e)]
    assert spans["row"].to_list() == keep
    for (*track, t, _), at in zip(points.rows(), axis.compute_point_positions(points, "start_ns"), strict=True):
        around = [i for i in keep if [*rows[i][:-2]] == track and encloses(rows[i][-2], rows[i][-1], t)]
        inside = [] if at is None else spans.filter((pl.col("start") <= at) & (at < pl.col("end")))["row"].to_list()
        assert inside == around


def encloses(start: int, end: int | None, t: int | None) -> bool:
    return t is not None and start <= t and (end is None or t < end)


def merged_by_hand(rows: list[tuple[int | None, ...]]) -> list[tuple[int | None, ...]]:
    merged: list[tuple[int | None, ...]] = []
    for *track, start, end in sorted(r for r in rows if None not in r and r[-2] < r[-1]):
        if merged and [*merged[-1][:-2]] == track and start <= merged[-1][-1]:
            merged[-1] = (*track, merged[-1][-2], max(end, merged[-1][-1]))
        else:
            merged.append((*track, start, end))
    return merged


@given(tracks_and_times())
def test_merged_intervals_of_any_tracks_and_times(drawn) -> None:
    frame, _, by = drawn
    merged = intervals.merge_intervals(frame, by=by)
    assert merged.schema == frame.schema
    assert merged.rows() == merged_by_hand(frame.rows())


@given(tracks_and_times())
def test_gaps_and_overlaps_of_any_tracks_and_times(drawn) -> None:
    left, right, by = drawn
    sides = [merged_by_hand(f.rows()) for f in (left, right)]
    between = [(*a[:-2], a[-1], b[-2]) for a, b in itertools.pairwise(sides[0]) if a[:-2] == b[:-2]]
    assert intervals.find_gaps(left, by=by).rows() == between
    both = [
        (*a[:-2], max(a[-2], b[-2]), min(a[-1], b[-1]))
        for a in sides[0]
        for b in sides[1]
        if a[:-2] == b[:-2] and max(a[-2], b[-2]) < min(a[-1], b[-1])
    ]
    assert intervals.intersect_unions(left, right, by=by).rows() == sorted(both)
