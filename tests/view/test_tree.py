"""Tables that are trees: which rows are visible, against brute force, and on a page."""

from __future__ import annotations

import polars as pl
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tests.view.support import FIXTURES, captures_of
from tracekit.errors import TracekitError
from tracekit.view import query as queries
from tracekit.view.query import Query
from tracekit.view.state import CaptureAggregation
from tracekit.view.tree import Expansion, TreeColumns, compute_row_states, parse_expansion

TREE = TreeColumns("key", "up", "level", "name")
AT = CaptureAggregation()


@st.composite
def trees(draw: st.DrawFn) -> list[tuple[int, int | None, int]]:
    """Keys, keys of parents and levels, in the order in which a tree is printed."""
    rows: list[tuple[int, int | None, int]] = []
    path: list[int] = []
    for key in draw(st.permutations(range(draw(st.integers(0, 9))))):
        path = path[: draw(st.integers(0, len(path)))]
        rows.append((key, path[-1] if path else None, len(path)))
        path = [*path, key]
    return rows


@given(trees(), st.none() | st.integers(0, 4), st.frozensets(st.integers(0, 9).map(str)))
def test_rows_in_collapsed_rows_are_not_visible(
    rows: list[tuple[int, int | None, int]], depth: int | None, toggled: frozenset[str]
) -> None:
    parents = {key: up for key, up, _ in rows}
    levels = {key: level for key, _, level in rows}

    def is_expanded(key: int) -> bool:
        return (depth is None or levels[key] < depth) != (str(key) in toggled)

    def is_visible(key: int) -> bool:
        up = parents[key]
        return up is None or (is_expanded(up) and is_visible(up))

    frame = pl.DataFrame(rows, {"key": pl.Int64, "up": pl.Int64, "level": pl.Int64}, orient="row")
    shown = compute_row_states(frame, TREE, Expansion(depth, toggled))
    assert shown["visible"].to_list() == [is_visible(key) for key in parents]
    expanded = [is_expanded(key) if key in parents.values() else None for key in parents]
    assert shown["expanded"].to_list() == expanded


@pytest.mark.slow
def test_groups_are_expanded_and_collapsed() -> None:
    captures = captures_of(tk.load(FIXTURES / "train_amp.sqlite"))
    frame = queries.load_rows(captures, Query("groups", AT)).frame
    whole = queries.load_page(captures, Query("groups", AT), 0, 100)
    assert (whole.matching, whole.total, whole.is_tree) == (frame.height, frame.height, True)
    assert {row["_expanded"] for row in whole.rows} == {True, None}
    top = queries.load_page(captures, Query("groups", AT, (("depth", "1"),)), 0, 100)
    assert top.matching == len(top.rows) == frame.filter(pl.col("level") <= 1).height
    assert [row["_expanded"] for row in top.rows[:2]] == [True, False]
    inner = top.rows[1]["_id"]
    more = queries.load_page(captures, Query("groups", AT, (("depth", "1"),), toggled=inner), 0, 100)
    children = frame.filter(pl.col("parent_id") == int(inner))["group_node_id"].to_list()
    assert [row["_id"] for row in more.rows[2 : 2 + len(children)]] == [str(child) for child in children]
    assert more.matching == top.matching + len(children)
    root = queries.load_page(captures, Query("groups", AT, toggled=top.rows[0]["_id"]), 0, 100)
    assert [row["_expanded"] for row in root.rows] == [False]
    some = queries.load_page(captures, Query("groups", AT, (("depth", "1"),), search="forward", toggled=inner), 0, 100)
    assert not some.is_tree
    assert some.matching == frame.filter(pl.col("path").cast(pl.String).str.contains("Forward")).height > 1
    assert "_expanded" not in some.rows[0]
    assert queries.read_matching_frame(captures, Query("groups", AT, (("depth", "1"),))).height == frame.height


@pytest.mark.slow
def test_ops_of_a_group_have_its_direction() -> None:
    captures = captures_of(tk.load(FIXTURES / "train_amp.sqlite"))
    for group in queries.load_rows(captures, Query("groups", AT)).frame.iter_rows(named=True):
        arguments = (("direction", group["direction"] or ""), ("path", group["path"]))
        ops = queries.load_rows(captures, Query("group_ops", AT, arguments)).frame
        assert ops.height == group["op_count"], group
        assert ops["instance_count"].sum() == group["instance_count"], group
        outside = ops.filter(~pl.col("op_name").cast(pl.String).str.starts_with(group["path"]))
        if group["direction"] != "bprop":  # only the backward ops of other threads are below a step of the loop
            assert outside.is_empty()
    arguments = (("direction", "bprop"), ("path", "Batch */"))
    ops = queries.load_rows(captures, Query("group_ops", AT, arguments)).frame
    assert ops.filter(pl.col("op_name") == "torch::autograd::AccumulateGrad").height == 1


@pytest.mark.parametrize(("depth", "toggled"), [("x", ""), ("-1", ""), ("9" * 9, ""), ("", "1," * 2001)])
def test_trees_that_are_not_valid(depth: str, toggled: str) -> None:
    with pytest.raises(TracekitError):
        parse_expansion({"depth": depth}, toggled)
