"""Parent pointers against brute force, with and without cycles."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import small_blocks
from tracekit.core import trees

pointers = st.integers(0, 12).flatmap(
    lambda n: st.lists(st.integers(0, n - 1) | st.none() if n else st.none(), min_size=n, max_size=n)
)


def way_up(parents: list[int | None], row: int) -> list[int] | None:
    """The row and its ancestors, innermost first; None if they never end."""
    way = [row]
    while (up := parents[way[-1]]) is not None:
        if up in way:
            return None
        way.append(up)
    return way


@given(pointers, st.data())
def test_values_of_ancestors(parents: list[int | None], data: st.DataObject) -> None:
    size = len(parents)
    parent = pl.Series(parents, dtype=data.draw(st.sampled_from([pl.Int64, pl.UInt32])))
    numbers = data.draw(st.lists(st.integers(-5, 5), min_size=size, max_size=size))
    flags = data.draw(st.lists(st.booleans(), min_size=size, max_size=size))
    ways = [way_up(parents, row) for row in range(size)]

    assert trees.compute_depths(parent).to_list() == [None if w is None else len(w) for w in ways]
    sums = trees.sum_over_ancestors(parent, pl.Series(numbers, dtype=pl.Int64))
    assert sums.to_list() == [None if w is None else sum(numbers[i] for i in w) for w in ways]
    strings = trees.concat_strings_from_root(parent, pl.Series([f":{n}" for n in numbers], dtype=pl.String))
    assert strings.to_list() == [None if w is None else "".join(f":{numbers[i]}" for i in w[::-1]) for w in ways]
    flagged = trees.mark_flagged_rows_and_descendants(parent, pl.Series(flags, dtype=pl.Boolean))
    assert flagged.to_list() == [None if w is None else any(flags[i] for i in w) for w in ways]
    assert trees.find_roots(parent).to_list() == [None if w is None else w[-1] for w in ways]


@given(pointers, st.integers(2, 5))
def test_rows_that_are_too_deep_are_below_their_outermost_ancestors(parents: list[int | None], max_depth: int) -> None:
    limited, is_deep = trees.skip_middle_ancestors(pl.Series(parents, dtype=pl.UInt32), max_depth)
    for row in range(len(parents)):
        way = way_up(parents, row)
        if way is not None and len(way) > max_depth:
            assert is_deep[row]
            assert way_up(limited.to_list(), row) == [row, *way[-max_depth + 1 :]]
        else:
            assert not is_deep[row]
            assert limited[row] == parents[row]


@given(pointers, st.data())
def test_numbers_of_ancestors_in_blocks(parents: list[int | None], data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(-5, 5), min_size=len(parents), max_size=len(parents)))
    parent, values = pl.Series(parents, dtype=pl.Int64), pl.Series(numbers, dtype=pl.Int64)
    with small_blocks(3):
        sums, roots, depths = (
            trees.sum_over_ancestors(parent, values),
            trees.find_roots(parent),
            trees.compute_depths(parent),
        )
    assert sums.equals(trees.sum_over_ancestors(parent, values))
    assert roots.equals(trees.find_roots(parent))
    assert depths.equals(trees.compute_depths(parent))
    assert depths.dtype == pl.Int32


@given(pointers, st.data())
def test_nearest_matching_ancestor(parents: list[int | None], data: st.DataObject) -> None:
    size = len(parents)
    matches = data.draw(st.lists(st.booleans(), min_size=size, max_size=size))
    nearest = trees.find_nearest_matching_rows(pl.Series(parents, dtype=pl.Int64), pl.Series(matches, dtype=pl.Boolean))
    for row, found in enumerate(nearest):
        steps, here = 0, row
        while here is not None and not matches[here] and steps <= size:
            here, steps = parents[here], steps + 1
        assert found == (None if here is None or not matches[here] else here)


def test_a_string_that_is_missing_makes_the_strings_below_it_missing() -> None:
    parent = pl.Series([None, 0, 1, 2], dtype=pl.Int64)
    strings = pl.Series(["a", None, "b", "c"], dtype=pl.String)
    assert trees.concat_strings_from_root(parent, strings).to_list() == ["a", None, None, None]


def test_a_chain_of_many_rows() -> None:
    parent = pl.Series([None, *range(999)], dtype=pl.UInt32)
    assert trees.compute_depths(parent).to_list() == list(range(1, 1001))
    assert trees.find_roots(parent).to_list() == [0] * 1000
