"""Trees of names: what lies in what, by parent pointers, so that no path is ever taken apart or written out per level.

A node is a parent and a part, the name of the node itself, which may hold any character. Node 0 is the root, and has
the part "". A path is the text of all parts below the root, joined by "/".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.forests import ancestor_sums, nearest_ancestors

if TYPE_CHECKING:
    from collections.abc import Iterator

DEEPEST = 256
LONGEST_BYTES = 1 << 14
ELLIPSIS = "…"
_KEY = ["up", "part"]
_ROOT = {"up": [None], "part": [""], "level": [0]}
_NODE = {"up": pl.Int64(), "part": pl.String(), "level": pl.Int64()}


@dataclass(frozen=True, slots=True)
class Tree:
    """Names as a tree.

    Attributes:
        nodes: One row per node, parents first: ``up`` (row of the parent), ``part``, ``level`` (0 for the root). No two
            nodes have the same parent and part.
    """

    nodes: pl.DataFrame

    @classmethod
    def root(cls) -> Tree:
        """Return a tree of nothing but its root."""
        return cls(pl.DataFrame(_ROOT, schema=_NODE))

    def grown(self, base: pl.Series, names: pl.Series) -> tuple[Tree, pl.Series]:
        """Add names whose parts stand between "/".

        Args:
            base: Node below which each name belongs.
            names: Names (String). Parts beyond the deepest level are left out.

        Returns:
            The tree with their nodes, and the node of each name: n rows in, n rows out.
        """
        distinct = pl.DataFrame({"base": base, "name": names}).unique(maintain_order=True)
        parts = distinct["name"].fill_null("").str.split("/").list.head(DEEPEST)
        rows = pl.DataFrame({"at": distinct["base"].cast(pl.Int64), "parts": parts, "size": parts.list.len()})
        tree, here = self, rows.with_row_index("row")
        found = rows["at"]
        for level in range(_largest(rows["size"])):
            here = here.filter(pl.col("size") > level)
            asked = here.select(up="at", part=pl.col("parts").list.get(level))
            tree, nodes = tree.with_children(asked)
            here = here.with_columns(at=nodes)
            found = found.scatter(here["row"], nodes)
        keys = pl.DataFrame({"base": base, "name": names})
        known = distinct.with_columns(node=found)
        joined = keys.join(known, on=["base", "name"], how="left", maintain_order="left", nulls_equal=True)
        return tree, joined["node"]

    def with_children(self, asked: pl.DataFrame) -> tuple[Tree, pl.Series]:
        """Add nodes where they are missing.

        Args:
            asked: Columns ``up`` and ``part``.

        Returns:
            The tree with them, and the node of each: n rows in, n rows out.
        """
        known = self.nodes.select(*_KEY, node=pl.int_range(pl.len()))
        fresh = asked.unique(_KEY, maintain_order=True).join(known, on=_KEY, how="anti", maintain_order="left")
        level = self.nodes["level"].gather(fresh["up"]) + 1
        tree = Tree(pl.concat([self.nodes, fresh.select(*_KEY).with_columns(level=level)]))
        made = fresh.select(*_KEY, node=pl.int_range(pl.len()) + self.nodes.height)
        nodes = asked.join(pl.concat([known, made]), on=_KEY, how="left", maintain_order="left")
        return tree, nodes["node"]

    def by_level(self) -> Iterator[pl.Series]:
        """Yield the nodes of each level, from the root down."""
        order = self.nodes["level"].arg_sort().cast(pl.Int64)
        sizes = self.nodes.group_by("level").len().sort("level")["len"]
        at = 0
        for size in sizes:
            yield order.slice(at, size)
            at += size

    def paths(self, *, wanted: pl.Series | None = None) -> pl.Series:
        """Write out paths.

        Args:
            wanted: Nodes whose paths are asked for; None asks for all. Others may be null.

        Returns:
            One text per node (String).
        """
        needed = self.above(wanted) if wanted is not None else pl.repeat(True, self.nodes.height, eager=True)  # noqa: FBT003
        place = pl.repeat(None, self.nodes.height, dtype=pl.Int64, eager=True)
        done, count = [], 0
        above = pl.Series([], dtype=pl.String)
        start = 0
        for level, nodes in enumerate(self.by_level()):
            here = nodes.filter(needed.gather(nodes))
            own = self.nodes["part"].gather(here)
            if level > 1:
                own = above.gather(place.gather(self.nodes["up"].gather(here)) - start) + "/" + own
            start, above = count, own
            place = place.scatter(here, pl.int_range(len(here), eager=True) + count)
            done.append(own)
            count += len(own)
        return pl.concat(done).gather(place).alias("path")

    def above(self, wanted: pl.Series) -> pl.Series:
        """Tell which nodes are wanted or have a wanted one below: one Boolean per node."""
        marked = pl.repeat(False, self.nodes.height, eager=True)  # noqa: FBT003
        marked = marked.scatter(wanted.unique(), True)  # noqa: FBT003
        for nodes in reversed(list(self.by_level())):
            ups = self.nodes["up"].gather(nodes.filter(marked.gather(nodes))).drop_nulls().unique()
            marked = marked.scatter(ups, True)  # noqa: FBT003
        return marked


def of_ranges(parent: pl.Series, depth: pl.Series, name: pl.Series) -> tuple[Tree, pl.Series]:
    """Make the tree of the names of nested ranges.

    A path is at most 256 levels deep and, from the second level on, 16 KiB long: ranges below that are one node, "…",
    under their last ancestor that is not.

    Args:
        parent: Row of the parent of each range, null for an outermost one.
        depth: Its level; 1 for an outermost one.
        name: Its text (Categorical).

    Returns:
        The tree, and the node of each range: n rows in, n rows out.
    """
    rows = pl.DataFrame({"up": parent, "depth": depth, "text": name}).with_row_index("row")
    rows = rows.with_columns(pl.col("text").fill_null(pl.lit("", pl.Categorical)))
    low = _too_deep(rows)
    shown = rows.filter(~low).sort("depth", maintain_order=True)
    ids = pl.zeros(rows.height, pl.Int64, eager=True)
    parts, count = [pl.DataFrame(_ROOT, schema=_NODE)], 1
    for (level,), here in shown.partition_by("depth", as_dict=True, maintain_order=True).items():
        pairs = here.select(up=ids.gather(here["up"]).fill_null(0), part="text")
        fresh = pairs.unique(maintain_order=True).with_columns(node=pl.int_range(pl.len()) + count)
        nodes = pairs.join(fresh, on=_KEY, how="left", maintain_order="left")["node"]
        ids = ids.scatter(here["row"], nodes)
        count += fresh.height
        parts.append(fresh.select("up", pl.col("part").cast(pl.String), level=pl.lit(level, pl.Int64)))
    tree = Tree(pl.concat(parts))
    if not low.any():
        return tree, ids
    nearest = ids.gather(nearest_ancestors(parent, ~low).filter(low))
    tree, nodes = tree.with_children(nearest.to_frame("up").with_columns(part=pl.lit(ELLIPSIS)))
    return tree, ids.scatter(low.arg_true(), nodes)


def _too_deep(rows: pl.DataFrame) -> pl.Series:
    """Tell which ranges lie below the deepest level, or have too long a path."""
    size = rows["text"].cat.len_bytes().cast(pl.Int64) + 1
    low = rows["depth"] > DEEPEST
    if _largest(rows["depth"]) * _largest(size) <= LONGEST_BYTES:
        return low
    return low | ((rows["depth"] > 1) & (ancestor_sums(rows["up"], size) > LONGEST_BYTES))


def _largest(numbers: pl.Series) -> int:
    largest = numbers.max()
    return largest if isinstance(largest, int) else 0
