"""Nesting and unions of intervals against brute force."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import small_blocks
from tracekit.core import intervals
from tracekit.core.trees import compute_depths

SCHEMA = {"thread": pl.Int32, "domain": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64}
FAR = 1 << 61


@st.composite
def nested(draw: st.DrawFn) -> list[tuple[int | None, int, int, int | None]]:
    """Push/pop ranges (track, domain, start, end), nested per track, with ties and never-closed ones."""
    rows: list[tuple[int | None, int, int, int | None]] = []
    for track in draw(st.lists(st.sampled_from([0, 1, 2, None]), unique=True, max_size=3)):
        stack: list[int] = []
        now = draw(st.integers(-5, 5))
        for push in draw(st.lists(st.booleans(), max_size=16)):
            now += draw(st.integers(0, 2))
            if push or not stack:
                stack.append(len(rows))
                rows.append((track, 0, now, None))
            else:
                row = stack.pop()
                rows[row] = (*rows[row][:3], now)
        if draw(st.booleans()):
            while stack:
                row = stack.pop()
                rows[row] = (*rows[row][:3], now)
    return rows


@st.composite
def tangled(draw: st.DrawFn) -> list[tuple[int | None, int, int, int | None]]:
    """Any intervals at all, also crossing, empty and backward ones."""
    interval = st.tuples(
        st.sampled_from([0, 1, None]),
        st.integers(0, 2),
        st.integers(-6, 12),
        st.one_of(st.none(), st.integers(-6, 14)),
    )
    return draw(st.lists(interval, max_size=14))


@st.composite
def crossed(draw: st.DrawFn) -> list[tuple[int | None, int, int, int | None]]:
    """Nested ranges, some of which end or start a little too early or late, as clocks of two recorders have it."""
    rows = draw(nested())
    return [
        (track, domain, start + draw(st.sampled_from([0, 0, 0, -1, 1])), None if end is None else end + draw(jitter))
        for track, domain, start, end in rows
    ]


jitter = st.sampled_from([0, 0, 0, -2, -1, 1, 2])
points_of = st.lists(st.tuples(st.sampled_from([0, 1, 2, None]), st.integers(-8, 20)), max_size=25)


def frame(rows: list[tuple[int | None, int, int, int | None]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def encloses(row: tuple[int | None, int, int, int | None], track: int | None, t: int) -> bool:
    return track is not None and row[0] == track and row[2] <= t and (row[3] is None or t < row[3])


def enclosing_by_hand(rows, track, t) -> list[int]:
    """The ranges around an instant in order of nesting: by start, the longer first, then by row."""
    found = [
        (row[2], -(10**18 if row[3] is None else row[3]), i) for i, row in enumerate(rows) if encloses(row, track, t)
    ]
    return [i for *_, i in sorted(found)]


def innermost_by_hand(rows, track, t) -> int | None:
    return next(reversed(enclosing_by_hand(rows, track, t)), None)


@given(st.one_of(nested(), crossed(), tangled()), points_of)
def test_every_range_around_a_point_is_found_from_the_innermost_outwards(rows, points) -> None:
    asked = pl.DataFrame(points, schema={"thread": pl.Int32, "at": pl.Int64}, orient="row")
    nest = intervals.NestingIndex.from_intervals(frame(rows), ["thread"])
    around = [enclosing_by_hand(rows, *p) for p in points]
    assert nest.count_enclosing(asked, "at").to_list() == [len(a) for a in around]
    row, step = nest.find_innermost(asked, "at"), 1
    while row.null_count() < len(row):
        assert row.to_list() == [a[-step] if len(a) >= step else None for a in around]
        asked, around = asked.filter(row.is_not_null()), [a for a in around if len(a) >= step]
        row, step = nest.find_next_enclosing(asked, "at", row.drop_nulls()), step + 1


@given(st.one_of(nested(), crossed(), tangled()), points_of, st.integers(1, 4))
def test_the_ranges_around_a_point_are_numbered_from_the_outermost_inwards(rows, points, number: int) -> None:
    around = [(p, a[number - 1]) for p in points if len(a := enclosing_by_hand(rows, *p)) >= number]
    asked = pl.DataFrame([p for p, _ in around], schema={"thread": pl.Int32, "at": pl.Int64}, orient="row")
    nest = intervals.NestingIndex.from_intervals(frame(rows), ["thread"])
    assert nest.find_nth_enclosing(asked, "at", number).to_list() == [row for _, row in around]


@given(st.one_of(nested(), crossed(), tangled()), points_of)
def test_innermost_is_the_enclosing_range_that_started_last(rows, points) -> None:
    asked = pl.DataFrame(points, schema={"thread": pl.Int32, "at": pl.Int64}, orient="row")
    found = intervals.NestingIndex.from_intervals(frame(rows), ["thread"]).find_innermost(asked, "at")
    assert found.to_list() == [innermost_by_hand(rows, *p) for p in points]


@given(nested(), points_of)
def test_times_too_far_apart_for_one_number_are_ranked(rows, points) -> None:
    far = [(t, d, start * FAR // 8, None if end is None else end * FAR // 8) for t, d, start, end in rows]
    points = [(track, min(t, 14) * FAR // 8) for track, t in points]
    asked = pl.DataFrame(points, schema={"thread": pl.Int32, "at": pl.Int64}, orient="row")
    nest = intervals.NestingIndex.from_intervals(frame(far), ["thread"])
    assert nest.find_innermost(asked, "at").to_list() == [innermost_by_hand(far, *p) for p in points]


def end_of(row: tuple[int | None, int, int, int | None]) -> int:
    return 10**9 if row[3] is None else row[3]


def parent_by_hand(rows, i) -> int | None:
    """The container that comes last before it in nest order; of an empty interval, the one around its start."""
    track, _, start, end = rows[i]
    if end is not None and end <= start:
        return innermost_by_hand(rows, track, start)
    until = 10**9 if end is None else end
    outer = []
    for j, (other, _, s, e) in enumerate(rows):
        e = 10**9 if e is None else e
        before = (s, -e, j) < (start, -until, i)
        if track is not None and other == track and before and s < e and s <= start and until <= e:
            outer.append((s, -e, j))
    return max(outer)[2] if outer else None


@given(st.one_of(nested(), crossed(), tangled()), points_of, st.integers(1, 9))
def test_blocks_do_not_matter(rows, points, size) -> None:
    asked = pl.DataFrame(points, schema={"thread": pl.Int32, "at": pl.Int64}, orient="row")
    index = intervals.NestingIndex.from_intervals(frame(rows), ["thread"])
    with small_blocks(size):
        in_blocks = intervals.NestingIndex.from_intervals(frame(rows), ["thread"])
        assert in_blocks.find_parents().equals(index.find_parents())
        assert in_blocks.find_depths().equals(index.find_depths())
        assert in_blocks.find_innermost(asked, "at").equals(index.find_innermost(asked, "at"))
    assert in_blocks.has_crossings == index.has_crossings


def test_many_levels() -> None:
    count = 70_000
    rows = [(0, 0, i, 2 * count - i) for i in range(count)]
    index = intervals.NestingIndex.from_intervals(frame(rows), ["thread"])
    assert index.find_depths().to_list() == list(range(1, count + 1))
    assert index.find_parents().to_list() == [None, *range(count - 1)]
    asked = pl.DataFrame({"thread": [0, 0], "at": [count, count - 5]}, schema={"thread": pl.Int32, "at": pl.Int64})
    assert index.find_innermost(asked, "at").to_list() == [count - 1, count - 5]


@given(st.one_of(nested(), crossed(), tangled()))
def test_parents_and_depths(rows) -> None:
    index = intervals.NestingIndex.from_intervals(frame(rows), ["thread"])
    parents, depth = index.find_parents(), index.find_depths()
    assert parents.to_list() == [parent_by_hand(rows, i) for i in range(len(rows))]
    assert depth.to_list() == [1 if p is None else depth[p] + 1 for p in parents]
    assert depth.equals(compute_depths(parents))
    assert index.has_crossings == any(
        a[0] is not None and a[0] == b[0] and a[2] < b[2] < end_of(a) < end_of(b) and b[2] < end_of(b)
        for a in rows
        for b in rows
    )


@given(tangled())
def test_parents_of_crossing_ranges_contain_their_children_and_have_no_cycle(rows) -> None:
    parents = intervals.NestingIndex.from_intervals(frame(rows), ["thread"]).find_parents()
    for i, p in enumerate(parents):
        if p is None:
            continue
        track, _, start, end = rows[i]
        assert rows[p][0] == track
        assert rows[p][2] <= start
        assert rows[p][3] is None or (end is not None and rows[p][3] >= max(start, end))
    assert compute_depths(parents).len() == len(rows)


def test_ranges_that_cross_take_no_ancestor_from_others() -> None:
    rows = [(0, 1, 0, 100), (0, 2, 5, 15), (0, 1, 10, 90), (0, 2, 20, 80), (0, 1, 70, 85), (0, 2, 72, 79)]
    parents = intervals.NestingIndex.from_intervals(frame(rows), ["thread"]).find_parents()
    assert parents.to_list() == [None, 0, 0, 2, 2, 4]


covered_rows = st.lists(st.tuples(st.sampled_from([0, 1]), st.integers(-5, 15), st.integers(-5, 18)), max_size=14)


def covered(rows, track) -> set[int]:
    return {t for r, s, e in rows if r == track for t in range(s, e)}


def stretches(moments: set[int]) -> list[tuple[int, int]]:
    starts = sorted(t for t in moments if t - 1 not in moments)
    ends = sorted(t + 1 for t in moments if t + 1 not in moments)
    return list(zip(starts, ends, strict=True))


def intervals_frame(rows) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"thread": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64}, orient="row")


@given(covered_rows)
def test_merge_union_and_gaps(rows) -> None:
    data = intervals_frame(rows)
    expected = {track: stretches(covered(rows, track)) for track in (0, 1)}
    merged = [(track, *s) for track in (0, 1) for s in expected[track]]
    assert intervals.merge_intervals(data, by=["thread"]).rows() == merged
    lengths = {track: sum(e - s for s, e in expected[track]) for track in (0, 1) if expected[track]}
    assert dict(intervals.compute_union_durations(data, by=["thread"]).rows()) == lengths
    between = [(t, a[1], b[0]) for t in (0, 1) for a, b in zip(expected[t], expected[t][1:], strict=False)]
    assert intervals.find_gaps(data, by=["thread"]).rows() == between


@given(covered_rows)
def test_without_tracks_all_intervals_share_one(rows) -> None:
    data = intervals_frame(rows).drop("thread")
    moments = covered(rows, 0) | covered(rows, 1)
    assert intervals.merge_intervals(data, by=[]).rows() == stretches(moments)
    assert intervals.compute_union_durations(data, by=[]).item() == len(moments)
    assert len(intervals.find_gaps(data, by=[])) == max(len(stretches(moments)) - 1, 0)
    assert intervals.intersect_unions(data, data, by=[]).rows() == stretches(moments)


@given(covered_rows, covered_rows)
def test_overlap_is_where_both_are_open(left, right) -> None:
    found = intervals.intersect_unions(intervals_frame(left), intervals_frame(right), by=["thread"]).rows()
    assert found == [(t, *s) for t in (0, 1) for s in stretches(covered(left, t) & covered(right, t))]


@pytest.mark.parametrize("count", [0, 1])
def test_no_points_and_no_ranges(count: int) -> None:
    nest = intervals.NestingIndex.from_intervals(frame([(0, 0, 0, 5)] * count), ["thread"])
    asked = pl.DataFrame(schema={"thread": pl.Int32, "at": pl.Int64})
    assert nest.find_innermost(asked, "at").to_list() == []
    assert nest.find_parents().to_list() == [None] * count


def test_many_values_are_sought_in_parts() -> None:
    ordered = pl.int_range(0, 1000, eager=True) * 3
    wanted = pl.int_range(0, 300_000, eager=True) % 3100
    for side in ("left", "right"):
        assert intervals.search_sorted(ordered, wanted, side).equals(ordered.search_sorted(wanted, side).cast(pl.Int64))


def test_an_ancestor_many_levels_up_is_found() -> None:
    rows = [(0, 0, 0, 1000), *((0, 0, i, 200 - i) for i in range(1, 60))]
    asked = pl.DataFrame({"thread": [0, 0], "at": [500, 150]}, schema={"thread": pl.Int32, "at": pl.Int64})
    found = intervals.NestingIndex.from_intervals(frame(rows), ["thread"]).find_innermost(asked, "at").to_list()
    assert found == [innermost_by_hand(rows, 0, 500), innermost_by_hand(rows, 0, 150)]
