"""Trees of names against brute force."""

from __future__ import annotations

from unittest import mock

import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from tracekit import sorting
from tracekit.core import trees
from tracekit.core.forests import compute_depths

texts = st.sampled_from(["a", "b", "a/b", "", None])
forests = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), texts), max_size=12)


def forest(drawn: list[tuple[float, str | None]]) -> tuple[pl.Series, list[str | None]]:
    """Parents before children: a row hangs below a row before it, or below none."""
    parents = [None if (at := int(share * (row + 1)) - 1) < 0 else at for row, (share, _) in enumerate(drawn)]
    return pl.Series(parents, dtype=pl.Int64), [text for _, text in drawn]


def way(parents: pl.Series, names: list[str | None], row: int | None) -> tuple[str, ...]:
    return () if row is None else (*way(parents, names, parents[row]), names[row] or "")


@given(forests)
def test_ranges_of_the_same_names_below_the_same_names_are_one_node(drawn) -> None:
    parents, names = forest(drawn)
    ways = [way(parents, names, row) for row in range(len(names))]
    tree, nodes = trees.build_range_tree(parents, compute_depths(parents), pl.Series(names, dtype=pl.Categorical))
    assert [nodes[a] == nodes[b] for a in range(len(ways)) for b in range(len(ways))] == [
        a == b for a in ways for b in ways
    ]
    assert tree.build_paths().gather(nodes).to_list() == ["/".join(w) for w in ways]
    assert tree.nodes["level"].gather(nodes).to_list() == [len(w) for w in ways]
    assert tree.nodes.height == len(set(ways)) + 1


@given(forests)
def test_trees_of_small_blocks_are_those_of_one_block(drawn) -> None:
    parents, names = forest(drawn)
    ranges = parents, compute_depths(parents), pl.Series(names, dtype=pl.Categorical)
    tree, nodes = trees.build_range_tree(*ranges)
    with mock.patch.object(sorting, "BLOCK_ROWS", 2):
        blocks, found = trees.build_range_tree(*ranges)
    assert blocks.nodes.equals(tree.nodes)
    assert found.equals(nodes)


@given(forests, st.lists(st.tuples(st.integers(0, 11), st.sampled_from(["a", "a/b", "b//a", "", None])), max_size=6))
def test_names_grow_below_nodes_that_are_there(drawn, added) -> None:
    parents, names = forest(drawn)
    tree, nodes = trees.build_range_tree(parents, compute_depths(parents), pl.Series(names, dtype=pl.Categorical))
    added = [(row, name) for row, name in added if row < len(names)]
    base = pl.Series([nodes[row] for row, _ in added], dtype=pl.Int64)
    grown, found = tree.add_names(base, pl.Series([name for _, name in added], dtype=pl.String))
    ways = [(*way(parents, names, row), *(name or "").split("/")) for row, name in added]
    assert grown.build_paths(nodes=found).gather(found).to_list() == ["/".join(w) for w in ways]
    assert grown.nodes["level"].gather(found).to_list() == [len(w) for w in ways]
    assert grown.nodes.head(tree.nodes.height).equals(tree.nodes)
    assert grown.nodes.select("up", "part").is_unique().all()


def test_paths_are_neither_too_deep_nor_too_long() -> None:
    count, size = trees.MAX_LEVELS + 40, 100
    parents = pl.Series([None, *range(count - 1)], dtype=pl.Int64)
    for name, levels in (("x", trees.MAX_LEVELS), ("y" * (size - 1), trees.MAX_PATH_BYTES // size)):
        tree, nodes = trees.build_range_tree(
            parents, compute_depths(parents), pl.Series([name] * count, dtype=pl.Categorical)
        )
        assert tree.nodes["level"].gather(nodes).to_list() == [min(n, levels + 1) for n in range(1, count + 1)]
        assert nodes.slice(levels).n_unique() == 1
        assert tree.build_paths()[nodes[-1]] == "/".join([*[name] * levels, trees.ELLIPSIS])


def test_one_long_name_stays() -> None:
    name = "x" * 3 * trees.MAX_PATH_BYTES
    parents = pl.Series([None, 0], dtype=pl.Int64)
    tree, nodes = trees.build_range_tree(parents, compute_depths(parents), pl.Series([name, "a"], dtype=pl.Categorical))
    assert tree.build_paths().gather(nodes).to_list() == [name, f"{name}/…"]
