"""Build trees of names, in which each node refers to its parent instead of storing its path.

A node has a parent and a *part*, which is its own component of the path and may contain any character. Node 0 is the
root and has the part "". The path of a node consists of the parts of its ancestors below the root, in order, and its
own part, joined by "/".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from tracekit import memory, sorting
from tracekit.core.forests import find_nearest_matching_rows, sum_over_ancestors
from tracekit.sorting import create_series

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

MAX_LEVELS = 256
MAX_PATH_BYTES = 1 << 14
ELLIPSIS = "…"
_BLOCKS_PER_LEVEL = 8
_KEY = ["up", "part"]
_ROOT = {"up": [None], "part": [""], "level": [0]}
_NODE = {"up": pl.Int64(), "part": pl.String(), "level": pl.Int64()}


class Tree(NamedTuple):
    """A tree of names. The path of a node consists of the names from the outermost node to this node.

    Attributes:
        nodes: One row per node, parents before children: ``up`` (row number of the parent), ``part`` (name of the
            node), ``level`` (0 for the root). Siblings have different names.
    """

    nodes: pl.DataFrame

    @classmethod
    def create_with_root(cls) -> Tree:
        """Return a tree that has only a root."""
        return cls(pl.DataFrame(_ROOT, schema=_NODE))

    def add_names(self, base: pl.Series, names: pl.Series) -> tuple[Tree, pl.Series]:
        """Add nodes to the tree for names whose parts are separated by "/".

        Args:
            base: Node below which each name is added.
            names: Names (String). If a name has more than 256 parts, the remaining parts are ignored.

        Returns:
            The tree with the added nodes, and the node of each name.
        """
        distinct = pl.DataFrame({"base": base, "name": names}).unique(maintain_order=True)
        parts = distinct["name"].fill_null("").str.split("/").list.head(MAX_LEVELS)
        rows = pl.DataFrame({"node": distinct["base"].cast(pl.Int64), "parts": parts, "size": parts.list.len()})
        tree, pending = self, rows.with_row_index("row")
        nodes = rows["node"]
        for level in range(_find_largest_number(rows["size"])):
            pending = pending.filter(pl.col("size") > level)
            tree, children = tree.add_children(pending.select(up="node", part=pl.col("parts").list.get(level)))
            pending = pending.with_columns(node=children)
            nodes = nodes.scatter(pending["row"], children)
        keys = pl.DataFrame({"base": base, "name": names})
        node_of_key = distinct.with_columns(node=nodes)
        joined = keys.join(node_of_key, on=["base", "name"], how="left", maintain_order="left", nulls_equal=True)
        return tree, joined["node"]

    def add_children(self, children: pl.DataFrame) -> tuple[Tree, pl.Series]:
        """Add the child nodes that the tree does not have yet.

        Args:
            children: One row per child: ``up`` (node of the parent) and ``part``.

        Returns:
            The tree with the added nodes, and the node of each child.
        """
        existing = self.nodes.select(*_KEY, node=pl.int_range(pl.len()))
        new = children.unique(_KEY, maintain_order=True).join(existing, on=_KEY, how="anti", maintain_order="left")
        level = self.nodes["level"].gather(new["up"]) + 1
        tree = Tree(pl.concat([self.nodes, new.select(*_KEY).with_columns(level=level)]))
        added = new.select(*_KEY, node=pl.int_range(pl.len()) + self.nodes.height)
        nodes = children.join(pl.concat([existing, added]), on=_KEY, how="left", maintain_order="left")
        return tree, nodes["node"]

    def iterate_levels(self) -> Iterator[pl.Series]:
        """Yield the nodes of each level of the tree, from the root downwards."""
        order = self.nodes["level"].arg_sort().cast(pl.Int64)
        sizes = self.nodes.group_by("level").len().sort("level")["len"]
        start = 0
        for size in sizes:
            yield order.slice(start, size)
            start += size

    def build_paths(self, *, nodes: pl.Series | None = None) -> pl.Series:
        """Return the paths of nodes.

        Args:
            nodes: The nodes whose paths are needed, or None for all nodes. The paths of all other nodes may be null.

        Returns:
            One string per node of the tree.
        """
        needed = (
            self.mark_nodes_and_ancestors(nodes)
            if nodes is not None
            else pl.repeat(True, self.nodes.height, eager=True)  # noqa: FBT003
        )
        index = pl.repeat(None, self.nodes.height, dtype=pl.Int64, eager=True)  # of each node in the paths so far
        by_level, count = [], 0
        upper = pl.Series([], dtype=pl.String)
        start = 0
        for level, at_level in enumerate(self.iterate_levels()):
            here = at_level.filter(needed.gather(at_level))
            paths = self.nodes["part"].gather(here)
            if level > 1:
                paths = upper.gather(index.gather(self.nodes["up"].gather(here)) - start) + "/" + paths
            start, upper = count, paths
            index = index.scatter(here, pl.int_range(len(here), eager=True) + count)
            by_level.append(paths)
            count += len(paths)
        return pl.concat(by_level).gather(index).alias("path")

    def mark_nodes_and_ancestors(self, nodes: pl.Series) -> pl.Series:
        """Return whether each node of the tree is in ``nodes`` or is an ancestor of a node in ``nodes``."""
        marked = pl.repeat(False, self.nodes.height, eager=True)  # noqa: FBT003
        marked = marked.scatter(nodes.unique(), True)  # noqa: FBT003
        for at_level in reversed(list(self.iterate_levels())):
            parents = self.nodes["up"].gather(at_level.filter(marked.gather(at_level))).drop_nulls().unique()
            marked = marked.scatter(parents, True)  # noqa: FBT003
        return marked


def build_range_tree(parent: pl.Series, depth: pl.Series, name: pl.Series) -> tuple[Tree, pl.Series]:
    """Return the tree of the names of nested ranges, and the node of each range.

    A path has at most 256 levels and at most 16 KiB, except that the name of an outermost range may be longer. Ranges
    whose paths would exceed these limits share one node, "…", below their nearest ancestor within the limits.

    Args:
        parent: Row number of the parent of each range, null for an outermost range.
        depth: Depth of each range, 1 for an outermost range.
        name: Name of each range (Categorical).

    Returns:
        The tree, and the node of each range.
    """
    too_deep = _compute_overlong_range_path_mask(parent, depth, name)

    def compute_levels(block: slice) -> npt.NDArray[np.int64]:
        return (
            pl.select(pl.when(~too_deep[block]).then(depth[block]).otherwise(0).cast(pl.Int64)).to_series().to_numpy()
        )

    rows = sorting.group_row_numbers(compute_levels, len(parent), min(_find_largest_number(depth), MAX_LEVELS) + 1)
    nodes = memory.allocate_zeros(len(parent), np.int64)
    by_level, count = [pl.DataFrame(_ROOT, schema=_NODE)], 1
    for level in range(1, len(rows.starts) - 1):
        here = rows.order[rows.starts[level] : rows.starts[level + 1]]
        new = _assign_nodes_to_ranges(here, parent, name, nodes, count)
        by_level.append(new.select("up", pl.col("part").cast(pl.String), level=pl.lit(level, pl.Int64)))
        count += new.height
    tree = Tree(pl.concat(by_level))
    if rows.starts[1]:
        tree = _add_ellipses(tree, rows.order[: rows.starts[1]], find_nearest_matching_rows(parent, ~too_deep), nodes)
    return tree, create_series(nodes)


def _assign_nodes_to_ranges(
    rows: npt.NDArray[Any], parent: pl.Series, name: pl.Series, nodes: npt.NDArray[np.int64], first_new_node: int
) -> pl.DataFrame:
    """Assign the ranges on one level to nodes, in the order of their first occurrence, and return the nodes.

    Args:
        rows: Row numbers of the ranges.
        parent: Row number of the parent of each range.
        name: Name of each range.
        nodes: The node of each range, which is known on the levels above, and which is set on this level.
        first_new_node: Number of the first new node.
    """
    known = pl.DataFrame(schema={"up": pl.Int64, "part": pl.Categorical, "node": pl.Int64})
    size = max(sorting.BLOCK_ROWS, len(rows) // _BLOCKS_PER_LEVEL)
    for start in range(0, len(rows), size):
        here = rows[start : start + size]
        numbers = create_series(here)
        above = parent.gather(numbers)
        up = np.where(above.is_null().to_numpy(), 0, nodes[above.fill_null(0).to_numpy()])
        part = name.gather(numbers).to_frame("part").select(pl.col("part").fill_null(pl.lit("", pl.Categorical)))
        first_rows, distinct = _assign_numbers_to_pairs(up, part["part"].to_physical().to_numpy())
        pairs = part[create_series(first_rows)].select(up=create_series(up[first_rows]), part="part")
        if known.height:
            pairs = pairs.join(known, on=_KEY, how="left", maintain_order="left")
        else:
            pairs = pairs.with_columns(node=pl.lit(None, pl.Int64))
        is_new = pairs["node"].is_null()
        new_nodes = is_new.cum_sum().cast(pl.Int64) + (first_new_node + known.height - 1)
        pairs = pairs.with_columns(pl.col("node").fill_null(new_nodes))
        known = pl.concat([known, pairs.filter(is_new)])
        nodes[here] = pairs["node"].to_numpy()[distinct]
        memory.release_pages()
    return known


def _assign_numbers_to_pairs(
    up: npt.NDArray[Any], codes: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Number the distinct pairs of parents and codes of names in the order of their first occurrence.

    Sorting the pairs is faster than hashing them, because they are almost in order in most captures.

    Returns:
        The row of the first occurrence of each distinct pair, and the number of the pair in each row.
    """
    keys = up * (int(codes.max()) + 1) + codes
    order = sorting.compute_stable_order(keys)
    ordered = keys[order]
    begins = np.append(True, ordered[1:] != ordered[:-1])
    first_rows = order[begins]
    numbers = np.empty(len(first_rows), np.int64)
    by_row = np.argsort(first_rows, kind="stable")
    numbers[by_row] = np.arange(len(first_rows))
    distinct = np.empty(len(keys), np.int64)
    distinct[order] = numbers[np.cumsum(begins) - 1]
    return first_rows[by_row], distinct


def _add_ellipses(tree: Tree, rows: npt.NDArray[Any], nearest: pl.Series, nodes: npt.NDArray[np.int64]) -> Tree:
    """Add a node "…" below the nearest allowed ancestor of each given range, and assign the range to this node."""

    def find_ancestor_nodes(block: slice) -> npt.NDArray[np.int64]:
        ancestors: npt.NDArray[np.int64] = nodes[nearest.gather(create_series(rows[block])).to_numpy()]
        return ancestors

    is_listed, listed = np.zeros(tree.nodes.height, np.bool_), []
    for block in sorting.iterate_row_blocks(len(rows)):
        distinct = pl.Series(find_ancestor_nodes(block)).unique(maintain_order=True).to_numpy()
        listed.append(distinct[~is_listed[distinct]])
        is_listed[distinct] = True
    ups = np.concatenate(listed)
    tree, children = tree.add_children(create_series(ups).to_frame("up").with_columns(part=pl.lit(ELLIPSIS)))
    ellipses = np.zeros(len(is_listed), np.int64)
    ellipses[ups] = children.to_numpy()
    for block in sorting.iterate_row_blocks(len(rows)):
        nodes[rows[block]] = ellipses[find_ancestor_nodes(block)]
    return tree


def compute_part_sizes(name: pl.Series) -> pl.Series:
    """Return the number of bytes that each name (Categorical) adds to a path, including a separator."""

    def compute_sizes(block: slice) -> npt.NDArray[np.int64]:
        return (name[block].cat.len_bytes().cast(pl.Int64).fill_null(0) + 1).to_numpy()

    return create_series(sorting.map_blocks(compute_sizes, len(name), np.int64))


def compute_overlong_path_mask(level: pl.Series, size: pl.Series) -> pl.Series:
    """Return whether paths have more than ``MAX_LEVELS`` levels, or several levels and too many bytes.

    Args:
        level: Number of levels of each path.
        size: Size of each path in bytes: the sum of the ``compute_part_sizes`` of its names.
    """
    return (level > MAX_LEVELS) | ((level > 1) & (size > MAX_PATH_BYTES))


def _compute_overlong_range_path_mask(parent: pl.Series, depth: pl.Series, name: pl.Series) -> pl.Series:
    """Return whether the path of each range exceeds the limits on paths."""
    sizes = compute_part_sizes(name)
    if _find_largest_number(depth) * _find_largest_number(sizes) <= MAX_PATH_BYTES:
        return depth > MAX_LEVELS
    return compute_overlong_path_mask(depth, sum_over_ancestors(parent, sizes))


def _find_largest_number(numbers: pl.Series) -> int:
    """Return the largest of the given integers, or 0 if there are none."""
    largest = numbers.max()
    return largest if isinstance(largest, int) else 0
