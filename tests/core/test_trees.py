"""Trees of names against brute force."""

from __future__ import annotations

import hashlib
import re
from unittest import mock

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracekit.core import trees
from tracekit.core.trees import compute_depths
from tracekit.system import sorting

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


def chain(names: list[str]) -> tuple[trees.Tree, pl.Series]:
    """The tree of ranges that nest in each other."""
    parents = pl.Series([None, *range(len(names) - 1)], dtype=pl.Int64)
    return trees.build_range_tree(parents, compute_depths(parents), pl.Series(names, dtype=pl.Categorical))


def test_paths_are_not_too_deep() -> None:
    count, levels = trees.MAX_LEVELS + 40, trees.MAX_LEVELS
    tree, nodes = chain(["x"] * count)
    assert tree.nodes["level"].gather(nodes).to_list() == [min(n, levels + 1) for n in range(1, count + 1)]
    assert nodes.slice(levels).n_unique() == 1
    assert tree.build_paths()[nodes[-1]] == "/".join([*["x"] * levels, trees.ELLIPSIS])


def hash_of(names: list[str]) -> str:
    """A polynomial of the hashes of the names, modulo 2**64."""
    total = 0
    for name in names:
        digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
        total = (total * 0x9E3779B97F4A7C15 + int.from_bytes(digest, "little")) % 2**64
    return f"{total:016x}"[:12]


@pytest.mark.slow
def test_a_long_path_consists_of_its_start_a_hash_and_the_last_name() -> None:
    limit = trees.MAX_PATH_CHARS
    tree, nodes = chain([f"range {n} {'y' * 90}" for n in range(200)])
    paths = tree.build_paths().gather(nodes).to_list()
    assert tree.nodes.height == 201
    for number, path in enumerate(paths):
        name = f"range {number} {'y' * 90}"
        full = "/".join(f"range {n} {'y' * 90}" for n in range(number + 1))
        shortened = re.fullmatch(rf"(.*)…[0-9a-f]{{12}}/{name}", path)
        assert path == full if len(full) <= limit else shortened and shortened[1] == full[: limit // 2]
    assert f"…{hash_of(['', *(f'range {n} ' + 'y' * 90 for n in range(200))])}/range 199 y" in paths[199]
    assert len(set(paths)) == 200


def test_an_outermost_name_is_not_shortened() -> None:
    name, limit = "x" * 3 * trees.MAX_PATH_CHARS, trees.MAX_PATH_CHARS
    tree, nodes = chain([name, "a", f"{name}b", "ü" * limit])
    paths = tree.build_paths().gather(nodes).to_list()
    head, tail = "x" * (limit // 2), limit // 2 - 14
    assert paths[0] == name
    assert [path[: limit // 2] for path in paths[1:]] == [head] * 3
    assert [path[limit // 2 + 13 :] for path in paths[1:]] == ["/a", "…" + f"{name}b"[-tail:], "…" + "ü" * tail]


long_names = st.sampled_from(["a", "b", "a" * 9, "b" * 9, "a" * 60, "b" * 60, "ü" * 30, "", "…"])
long_forests = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), long_names), min_size=1, max_size=25)


@given(long_forests, st.sampled_from([32, 48, 128]), st.integers(0, 12))
def test_different_paths_differ_and_take_memory_in_proportion_to_the_tree(drawn, shortest: int, chosen: int) -> None:
    parents, names = forest(drawn)
    ranges = parents, compute_depths(parents), pl.Series(names, dtype=pl.Categorical)
    limits = {"MIN_PATH_CHARS": shortest, "MIN_TOTAL_CHARS": 1, "CHARS_PER_INPUT_CHAR": 1, "NODE_CHARS": shortest}
    with mock.patch.multiple(trees, MAX_PATH_CHARS=128, **limits):
        tree, nodes = trees.build_range_tree(*ranges)
        paths = tree.build_paths().gather(nodes).to_list()
        some = tree.build_paths(nodes=nodes.slice(chosen, 1)).gather(nodes)
    ways = [way(parents, names, row) for row in range(len(names))]
    assert some.slice(chosen, 1).to_list() == paths[chosen : chosen + 1]
    assert len(set(paths)) == len({"/".join(w) for w in ways})
    parts = sum(map(len, set(names)))
    distinct = {w: path for w, path in zip(ways, paths, strict=True) if len(w) > 1}
    assert sum(map(len, distinct.values())) <= parts + shortest * tree.nodes.height
    for w, path in zip(ways, paths, strict=True):
        whole = "/".join(w)
        assert path == whole or (len(w) > 1 and path[:16] == whole[:16] and len(path) <= 128)


def test_the_path_of_equal_names_is_equal_in_each_tree() -> None:
    names = [f"{n} {'z' * 200}" for n in range(90)]
    one, several = chain(names), chain([*names, "inner", "more"])
    paths = [tree.build_paths().gather(nodes)[89] for tree, nodes in (one, several)]
    assert paths[0] == paths[1]
    assert len(paths[0]) < trees.MAX_PATH_CHARS < len("/".join(names))


def test_the_limit_of_paths_falls_until_their_total_is_in_proportion_to_the_tree() -> None:
    for size, limit in ((100, 1 << 14), (1 << 15, 1 << 14), (1 << 16, 1 << 14)):
        assert trees.compute_path_limit(5000, pl.Series([size] * 1000)) == limit
    with mock.patch.object(trees, "MIN_TOTAL_CHARS", 1 << 20):
        assert trees.compute_path_limit(5000, pl.Series([1 << 15] * 1000)) == 1 << 10
        assert trees.compute_path_limit(5000, pl.Series([1000] * 1000)) == 1 << 14
    with mock.patch.object(trees, "MIN_TOTAL_CHARS", 0):
        assert trees.compute_path_limit(5000, pl.Series([1 << 15] * 1000)) == trees.MIN_PATH_CHARS
    assert trees.CHARS_PER_INPUT_CHAR * trees.NODE_CHARS == trees.MIN_PATH_CHARS, "the smallest limit is small enough"


@pytest.mark.slow
def test_a_long_name_of_many_nodes_takes_its_memory_once() -> None:
    """10,000 outermost ranges with another name, and in each the same name of 100,000 characters, would be 1 GB."""
    count = 10_000
    parents = pl.Series([None if n % 2 == 0 else n - 1 for n in range(2 * count)], dtype=pl.Int64)
    distinct = pl.Series([str(n) for n in range(count)] + ["x" * 100_000], dtype=pl.Categorical)
    names = distinct.gather(pl.Series([n // 2 if n % 2 == 0 else count for n in range(2 * count)]))
    tree, nodes = trees.build_range_tree(parents, compute_depths(parents), names)
    paths = tree.build_paths().gather(nodes)
    assert paths.n_unique() == 2 * count
    assert paths.str.len_chars().sum() <= trees.MIN_TOTAL_CHARS
