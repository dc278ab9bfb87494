"""Build trees of names, in which each node refers to its parent instead of storing its path.

A node has a parent and a *part*, which is its own component of the path and may contain any character. Node 0 is the
root and has the part "". The path of a node consists of the parts of its ancestors below the root, in order, and its
own part, joined by "/".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.forests import ancestor_sums, nearest_ancestors

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_LEVELS = 256
MAX_PATH_BYTES = 1 << 14
ELLIPSIS = "…"
_KEY = ["up", "part"]
_ROOT = {"up": [None], "part": [""], "level": [0]}
_NODE = {"up": pl.Int64(), "part": pl.String(), "level": pl.Int64()}


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree of names.

    Attributes:
        nodes: One row per node, parents before children: ``up`` (row number of the parent), ``part``, ``level`` (0 for
            the root). No two nodes have the same parent and part.
    """

    nodes: pl.DataFrame

    @classmethod
    def root(cls) -> Tree:
        """Return a tree that has only a root."""
        return cls(pl.DataFrame(_ROOT, schema=_NODE))

    def with_names(self, base: pl.Series, names: pl.Series) -> tuple[Tree, pl.Series]:
        """Add nodes for names whose parts are separated by "/".

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
        for level in range(_largest_number(rows["size"])):
            pending = pending.filter(pl.col("size") > level)
            tree, children = tree.with_children(pending.select(up="node", part=pl.col("parts").list.get(level)))
            pending = pending.with_columns(node=children)
            nodes = nodes.scatter(pending["row"], children)
        keys = pl.DataFrame({"base": base, "name": names})
        node_of_key = distinct.with_columns(node=nodes)
        joined = keys.join(node_of_key, on=["base", "name"], how="left", maintain_order="left", nulls_equal=True)
        return tree, joined["node"]

    def with_children(self, children: pl.DataFrame) -> tuple[Tree, pl.Series]:
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

    def nodes_by_level(self) -> Iterator[pl.Series]:
        """Yield the nodes of each level, from the root downwards."""
        order = self.nodes["level"].arg_sort().cast(pl.Int64)
        sizes = self.nodes.group_by("level").len().sort("level")["len"]
        start = 0
        for size in sizes:
            yield order.slice(start, size)
            start += size

    def paths(self, *, nodes: pl.Series | None = None) -> pl.Series:
        """Return the paths of nodes.

        Args:
            nodes: The nodes whose paths are needed, or None for all nodes. The paths of all other nodes may be null.

        Returns:
            One string per node of the tree.
        """
        needed = self.is_on_path(nodes) if nodes is not None else pl.repeat(True, self.nodes.height, eager=True)  # noqa: FBT003
        index = pl.repeat(None, self.nodes.height, dtype=pl.Int64, eager=True)  # of each node in the paths so far
        by_level, count = [], 0
        upper = pl.Series([], dtype=pl.String)
        start = 0
        for level, at_level in enumerate(self.nodes_by_level()):
            here = at_level.filter(needed.gather(at_level))
            paths = self.nodes["part"].gather(here)
            if level > 1:
                paths = upper.gather(index.gather(self.nodes["up"].gather(here)) - start) + "/" + paths
            start, upper = count, paths
            index = index.scatter(here, pl.int_range(len(here), eager=True) + count)
            by_level.append(paths)
            count += len(paths)
        return pl.concat(by_level).gather(index).alias("path")

    def is_on_path(self, nodes: pl.Series) -> pl.Series:
        """Return whether each node of the tree is in ``nodes`` or is an ancestor of a node in ``nodes``."""
        marked = pl.repeat(False, self.nodes.height, eager=True)  # noqa: FBT003
        marked = marked.scatter(nodes.unique(), True)  # noqa: FBT003
        for at_level in reversed(list(self.nodes_by_level())):
            parents = self.nodes["up"].gather(at_level.filter(marked.gather(at_level))).drop_nulls().unique()
            marked = marked.scatter(parents, True)  # noqa: FBT003
        return marked


def range_tree(parent: pl.Series, depth: pl.Series, name: pl.Series) -> tuple[Tree, pl.Series]:
    """Build the tree of the names of nested ranges.

    A path has at most 256 levels and at most 16 KiB, except that the name of an outermost range may be longer. Ranges
    whose paths would exceed these limits share one node, "…", below their nearest ancestor within the limits.

    Args:
        parent: Row number of the parent of each range, null for an outermost range.
        depth: Depth of each range, 1 for an outermost range.
        name: Name of each range (Categorical).

    Returns:
        The tree, and the node of each range.
    """
    rows = pl.DataFrame({"up": parent, "depth": depth, "name": name}).with_row_index("row")
    rows = rows.with_columns(pl.col("name").fill_null(pl.lit("", pl.Categorical)))
    too_deep = _exceeds_limits(rows)
    within_limits = rows.filter(~too_deep).sort("depth", maintain_order=True)
    nodes = pl.zeros(rows.height, pl.Int64, eager=True)
    by_level, count = [pl.DataFrame(_ROOT, schema=_NODE)], 1
    for (level,), here in within_limits.partition_by("depth", as_dict=True, maintain_order=True).items():
        pairs = here.select(up=nodes.gather(here["up"]).fill_null(0), part="name")
        new = pairs.unique(maintain_order=True).with_columns(node=pl.int_range(pl.len()) + count)
        nodes = nodes.scatter(here["row"], pairs.join(new, on=_KEY, how="left", maintain_order="left")["node"])
        count += new.height
        by_level.append(new.select("up", pl.col("part").cast(pl.String), level=pl.lit(level, pl.Int64)))
    tree = Tree(pl.concat(by_level))
    if not too_deep.any():
        return tree, nodes
    nearest = nodes.gather(nearest_ancestors(parent, ~too_deep).filter(too_deep))
    tree, ellipses = tree.with_children(nearest.to_frame("up").with_columns(part=pl.lit(ELLIPSIS)))
    return tree, nodes.scatter(too_deep.arg_true(), ellipses)


def _exceeds_limits(rows: pl.DataFrame) -> pl.Series:
    """Return whether the path of each range has more than ``MAX_LEVELS`` levels or ``MAX_PATH_BYTES`` bytes."""
    size = rows["name"].cat.len_bytes().cast(pl.Int64) + 1
    too_deep = rows["depth"] > MAX_LEVELS
    if _largest_number(rows["depth"]) * _largest_number(size) <= MAX_PATH_BYTES:
        return too_deep
    return too_deep | ((rows["depth"] > 1) & (ancestor_sums(rows["up"], size) > MAX_PATH_BYTES))


def _largest_number(numbers: pl.Series) -> int:
    """Return the largest of the integers, or 0 if there are none."""
    largest = numbers.max()
    return largest if isinstance(largest, int) else 0
