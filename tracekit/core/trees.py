"""Build trees of names, in which each node refers to its parent instead of storing its path.

A node has a parent and a *part*, which is its own component of the path and may contain any character. Node 0 is the
root and has the part "". The path of a node consists of the parts of its ancestors below the root, in order, and its
own part, joined by "/".

The paths of all nodes together can be much longer than the parts: 40,000 nested ranges with names of 200 characters can
have paths of 600 MB. ``Tree.build_paths`` therefore shortens long paths, so that the size of all paths is proportional
to the size of the tree (``compute_path_limit``). Different paths stay different.

Compute the depth and the root of each row of a forest, and combine values of the row and its ancestors.

A forest is represented by a column with the row number of each row's parent, which is null for a root. The functions
use pointer jumping: in each round, every row refers to an ancestor twice as far up as in the previous round. A forest
of depth d therefore takes about log2(d) rounds, each of which computes on whole columns.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

from tracekit.core.series import create_nullable_series, decode_categories, select_by_string
from tracekit.system import memory, sorting
from tracekit.system.sorting import create_series
from tracekit.system.threads import unlocked_property

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Combine = Callable[[pl.Series, pl.Series], pl.Series]
MAX_LEVELS = 256
MAX_PATH_CHARS, MIN_PATH_CHARS = 1 << 14, 1 << 7
"""Bounds of the limit of ``compute_path_limit``, in characters."""
MIN_TOTAL_CHARS, CHARS_PER_INPUT_CHAR, NODE_CHARS = 1 << 26, 4, 32
"""The paths of a tree may have a total of ``MIN_TOTAL_CHARS`` characters, or ``CHARS_PER_INPUT_CHAR`` times the size of
the tree, if that is more. The size of a tree is the number of characters of its distinct parts, and ``NODE_CHARS`` per
node."""
ELLIPSIS = "…"
_ARGUMENTS = r", (?:seq|op_id|sizes|input_op_ids) = [^/]*"
"""Regular expression for what ``emit_nvtx`` appends to the names of ops."""
_HASH_BYTES = 6
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_NO_NAME = pl.lit("", pl.Categorical)
_KEY = ["up", "part"]
_ROOT = {"up": [None], "part": [""], "level": [0]}
_NODE = {"up": pl.Int64(), "part": pl.Categorical(), "level": pl.Int64()}


def remove_arguments_expr(paths: pl.Expr) -> pl.Expr:
    """Return an expression that removes the arguments of ``emit_nvtx`` from paths. They differ between equal steps."""
    return paths.str.replace_all(_ARGUMENTS, "")


def combine_with_ancestors(parent: pl.Series, values: pl.Series, combine: Combine) -> pl.Series:
    """Combine the value of each row with the values of all its ancestors.

    Args:
        parent: Row number of the parent of each row, null for a root.
        values: One value per row.
        combine: Associative function that combines two columns: the values of ancestors, and the values of the rows
            below them.

    Returns:
        One combined value per row, null on and below a cycle.
    """
    if len(parent) > sorting.BLOCK_ROWS and values.dtype.is_integer() and not values.null_count():
        return _combine_numbers(parent, values, combine)
    up = parent.cast(pl.UInt32)
    for _ in range(len(parent).bit_length()):
        if up.null_count() == len(up):
            return values
        values = combine(values.gather(up), values).zip_with(up.is_not_null(), values)
        up = up.gather(up)
    return values.zip_with(up.is_null(), pl.repeat(None, len(values), dtype=values.dtype, eager=True))


def _combine_numbers(parent: pl.Series, values: pl.Series, combine: Combine) -> pl.Series:
    """Return the result of ``combine_with_ancestors`` for numbers, replacing blocks of rows in place.

    The value and the reference of a row always belong together: the value combines the row with its ancestors below the
    row that it refers to. Rows may therefore use the results of the same round.
    """
    rows = len(parent)
    up = sorting.map_blocks(lambda block: parent[block].fill_null(-1).to_numpy(), rows, np.int64)
    combined = sorting.map_blocks(
        lambda block: values[block].to_numpy(), rows, values.to_physical().head(0).to_numpy().dtype
    )
    for _ in range(rows.bit_length()):
        is_done = True
        for block in sorting.iterate_row_blocks(rows):
            pending = np.flatnonzero(up[block] >= 0) + block.start
            if len(pending):
                is_done, upper = False, up[pending]
                both = (create_series(combined[numbers]) for numbers in (upper, pending))
                combined[pending] = combine(*both).to_numpy()
                up[pending] = up[upper]
        if is_done:
            return create_series(combined)
    return create_nullable_series(combined, lambda block: up[block] < 0)


def compute_depths(parent: pl.Series) -> pl.Series:
    """Return the depth of each row of a forest as Int32: 1 for a root, null on and below a cycle."""
    return sum_over_ancestors(parent, pl.repeat(1, len(parent), dtype=pl.Int32, eager=True))


def sum_over_ancestors(parent: pl.Series, values: pl.Series) -> pl.Series:
    """Return, for each row of a forest, the sum of the values of it and its ancestors (null on and below a cycle)."""
    return combine_with_ancestors(parent, values, lambda upper, lower: upper + lower)


def concat_strings_from_root(parent: pl.Series, strings: pl.Series) -> pl.Series:
    """Concatenate the strings of the ancestors of each row, from the root downwards, and the string of the row itself.

    Returns:
        One string per row, null on and below a cycle.
    """
    # The length of strings on a cycle would double in every round.
    on_cycle = compute_depths(parent).is_null()
    roots_only = parent.zip_with(~on_cycle, pl.repeat(None, len(parent), dtype=parent.dtype, eager=True))
    acyclic = strings.zip_with(~on_cycle, pl.repeat(None, len(strings), dtype=strings.dtype, eager=True))
    return combine_with_ancestors(roots_only, acyclic, lambda upper, lower: upper + lower)


def skip_middle_ancestors(parent: pl.Series, max_depth: int) -> tuple[pl.Series, pl.Series]:
    """Limit the depth of a forest: attach each row that is too deep to one of its ancestors.

    Args:
        parent: Row number of the parent of each row, null for a root.
        max_depth: Largest depth. A deeper row is attached to its ancestor at the depth ``max_depth`` - 1.

    Returns:
        The parent of each row in the limited forest, and whether ancestors of the row were skipped.
    """
    depth = compute_depths(parent)
    is_deep = (depth > max_depth).fill_null(value=False)
    if not is_deep.any():
        return parent, is_deep
    outer = find_nearest_matching_rows(parent, (depth < max_depth).fill_null(value=True))
    return parent.cast(pl.Int64).zip_with(~is_deep, outer), is_deep


def mark_flagged_rows_and_descendants(parent: pl.Series, flags: pl.Series) -> pl.Series:
    """Return, for each row of a forest, whether it or any of its ancestors is flagged (null on and below a cycle)."""
    return combine_with_ancestors(parent, flags, lambda upper, lower: upper | lower)


def find_roots(parent: pl.Series) -> pl.Series:
    """Return the row number of the root of each row of a forest (Int64), null on and below a cycle.

    A root is its own root.
    """
    return combine_with_ancestors(parent, pl.int_range(len(parent), eager=True), lambda upper, _: upper)


def find_nearest_matching_rows(parent: pl.Series, matches: pl.Series) -> pl.Series:
    """Return the nearest matching row of each row of a forest: the row itself, or its nearest matching ancestor.

    Args:
        parent: Row number of the parent of each row, null for a root.
        matches: Whether each row matches. It must not have nulls.

    Returns:
        One row number per row (Int64). It is null if neither the row nor any of its ancestors matches.
    """
    nearest = find_roots(_replace_with_null_unless(parent, ~matches))
    return _replace_with_null_unless(nearest, matches.gather(nearest))


def _replace_with_null_unless(row_numbers: pl.Series, condition: pl.Series) -> pl.Series:
    """Replace row numbers with null where a condition is not true."""

    def compute_row_numbers_with_null_marker(block: slice) -> npt.NDArray[np.int64]:
        here = row_numbers[block].cast(pl.Int64).fill_null(-1)
        return here.zip_with(condition[block].fill_null(value=False), pl.Series([-1])).to_numpy()

    return create_nullable_series(sorting.map_blocks(compute_row_numbers_with_null_marker, len(row_numbers), np.int64))


@dataclass(frozen=True)
class Tree:
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
            names: Names (String or Categorical). If a name has more than 256 parts, the remaining parts are ignored.

        Returns:
            The tree with the added nodes, and the node of each name.
        """
        keys = pl.DataFrame({"base": base, "name": names.cast(pl.Categorical)})
        distinct = keys.unique(maintain_order=True)
        parts = pl.col("name").cast(pl.String).fill_null("").str.split("/").list.head(MAX_LEVELS)
        split = distinct.select(pl.col("name").unique()).with_columns(parts=parts)
        rows = distinct.join(split, on="name", how="left", maintain_order="left", nulls_equal=True)
        rows = rows.select(pl.col("base").cast(pl.Int64).alias("node"), "parts", size=pl.col("parts").list.len())
        tree, pending = self, rows.with_row_index("row")
        nodes = rows["node"]
        for level in range(_find_largest_number(rows["size"])):
            pending = pending.filter(pl.col("size") > level)
            tree, children = tree.add_children(pending.select(up="node", part=pl.col("parts").list.get(level)))
            pending = pending.with_columns(node=children)
            nodes = nodes.scatter(pending["row"], children)
        node_of_key = distinct.with_columns(node=nodes)
        joined = keys.join(node_of_key, on=["base", "name"], how="left", maintain_order="left", nulls_equal=True)
        return tree, joined["node"]

    def add_children(self, children: pl.DataFrame) -> tuple[Tree, pl.Series]:
        """Add the child nodes that the tree does not have yet.

        Args:
            children: One row per child: ``up`` (node of the parent) and ``part`` (String or Categorical).

        Returns:
            The tree with the added nodes, and the node of each child.
        """
        children = children.cast({"part": pl.Categorical})
        existing = self.nodes.select(*_KEY, node=pl.int_range(pl.len()))
        new = children.unique(_KEY, maintain_order=True).join(existing, on=_KEY, how="anti", maintain_order="left")
        level = self.nodes["level"].gather(new["up"]) + 1
        tree = Tree(pl.concat([self.nodes, new.select(*_KEY).with_columns(level=level)]))
        added = new.select(*_KEY, node=pl.int_range(pl.len()) + self.nodes.height)
        nodes = children.join(pl.concat([existing, added]), on=_KEY, how="left", maintain_order="left")
        return tree, nodes["node"]

    @unlocked_property
    def levels(self) -> list[npt.NDArray[np.uint32]]:
        """The nodes of each level of the tree, from the root downwards."""
        level = self.nodes["level"].to_numpy().astype(np.uint16)
        order = np.argsort(level, kind="stable").astype(np.uint32)
        return np.split(order, np.cumsum(np.bincount(level))[:-1])

    @unlocked_property
    def _parents(self) -> npt.NDArray[np.int64]:
        """The parent of each node. That of the root is the root itself."""
        return self.nodes["up"].fill_null(0).to_numpy()

    def build_paths(self, *, nodes: pl.Series | None = None) -> pl.Series:
        """Return the paths of nodes.

        A path of several levels that exceeds the limit is shortened: its start is followed by "…", a hash of the whole
        path, and the end of the name of the node. The limit depends on all nodes of the tree (``compute_path_limit``).

        Args:
            nodes: The nodes whose paths are needed, or None for all nodes. The paths of all other nodes may be null.

        Returns:
            One string per node of the tree.
        """
        if nodes is not None and nodes.is_empty():
            return pl.repeat(None, self.nodes.height, dtype=pl.String, eager=True).alias("path")
        needed = None if nodes is None else self._mark_nodes_and_ancestors(nodes.to_numpy())
        hashes, limit = self._hashes_of_long_paths
        index = np.full(self.nodes.height, -1)  # of each node in the paths so far
        by_level: list[pl.Series] = []
        start = stop = 0
        for level, at_level in enumerate(self.levels):
            here = at_level if needed is None else at_level[needed[at_level]]
            rows = create_series(here)
            paths = decode_categories(self.nodes["part"].gather(rows))
            if level > 1:
                upper = by_level[-1].gather(create_series(index[self._parents[here]] - start))
                paths = _append_parts(upper, paths, None if hashes is None else hashes.gather(rows), limit)
            start, stop = stop, stop + len(here)
            index[here] = np.arange(start, stop)
            by_level.append(paths)
        return pl.concat(by_level).gather(create_nullable_series(index)).alias("path")

    @unlocked_property
    def _hashes_of_long_paths(self) -> tuple[pl.Series | None, int]:
        """The hash of each path to shorten (hexadecimal), null for other paths, and the limit on characters.

        The hash depends only on the names of the path, so equal paths of two captures have equal hashes. If there is no
        path to shorten, None is returned instead of the hashes.
        """
        parts, parents = self.nodes["part"], self._parents
        distinct = parts.unique()
        lengths = distinct.cast(pl.String).str.len_chars().cast(pl.Int64)
        sizes = select_by_string(lengths, distinct, parts).to_numpy(writable=True)
        for at_level in self.levels[2:]:
            sizes[at_level] += sizes[parents[at_level]] + 1
        limit = compute_path_limit(int(lengths.sum()), create_series(sizes))
        is_long = create_series(sizes > limit) & (self.nodes["level"] > 1)
        if not is_long.any():
            return None, limit
        part_hashes = _hash_strings(parts)
        hashes = np.zeros_like(part_hashes)
        for here in self.levels:
            hashes[here] = hashes[parents[here]] * _MULTIPLIER + part_hashes[here]
        first_bytes = np.ascontiguousarray(hashes.astype(">u8").view(np.uint8).reshape(-1, 8)[:, :_HASH_BYTES])
        binary = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(_HASH_BYTES), len(hashes), [None, pa.py_buffer(first_bytes)]
        )
        digits = pl.Series(binary.cast(pa.binary())).bin.encode("hex")
        return digits.set(~is_long, None), limit

    def _mark_nodes_and_ancestors(self, nodes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return whether each node of the tree is in ``nodes`` or is an ancestor of a node in ``nodes``."""
        marked = np.zeros(self.nodes.height, np.bool_)
        marked[nodes] = True
        for at_level in self.levels[::-1]:
            marked[self._parents[at_level[marked[at_level]]]] = True
        return marked


def compute_path_limit(part_chars: int, sizes: pl.Series) -> int:
    """Return the number of characters above which the paths of a tree are shortened.

    The limit is ``MAX_PATH_CHARS``, unless the paths would have too many characters in total. It is then halved until
    the total is small enough, but not below ``MIN_PATH_CHARS``.

    Args:
        part_chars: Number of characters of all distinct parts.
        sizes: Number of characters of the path of each node.
    """
    allowed = max(MIN_TOTAL_CHARS, CHARS_PER_INPUT_CHAR * (part_chars + NODE_CHARS * len(sizes)))
    limit = MAX_PATH_CHARS
    while limit > MIN_PATH_CHARS and int(sizes.clip(upper_bound=limit).sum()) > allowed:
        limit //= 2
    return limit


def _append_parts(paths: pl.Series, parts: pl.Series, hashes: pl.Series | None, limit: int) -> pl.Series:
    """Append the part of each node to the path of its parent, and shorten the paths that have a hash.

    Args:
        paths: Path of the parent of each node. It may be shortened.
        parts: Part of each node.
        hashes: Hash of the path of each node, null if the path is not shortened, or None if no path is shortened.
        limit: Number of characters of a shortened path.
    """
    if hashes is None or not (is_long := hashes.is_not_null()).any():
        return paths + "/" + parts
    long_rows, short_rows = is_long.arg_true(), (~is_long).arg_true()
    upper, part = paths.gather(long_rows), parts.gather(long_rows)
    head, tail = limit // 2, limit - limit // 2 - 2 * _HASH_BYTES - 2
    separator = pl.when(pl.lit(part).str.len_chars() > tail).then(pl.lit(ELLIPSIS)).otherwise(pl.lit("/"))
    begin = (upper.str.head(head) + "/" + part.str.head(head)).str.head(head)
    shortened = begin + ELLIPSIS + hashes.gather(long_rows) + pl.select(separator).to_series() + part.str.tail(tail)
    both = pl.concat([paths.gather(short_rows) + "/" + parts.gather(short_rows), shortened])
    return both.gather(pl.concat([short_rows, long_rows]).arg_sort())


def _hash_strings(texts: pl.Series) -> npt.NDArray[np.uint64]:
    """Return a hash of each string of a Categorical column, which is the same on all machines."""
    distinct = texts.unique()
    digests = (hashlib.blake2b(text, digest_size=8).digest() for text in distinct.cast(pl.String).cast(pl.Binary))
    hashes = pl.Series(np.frombuffer(b"".join(digests), "<u8"))
    return texts.to_physical().replace_strict(distinct.to_physical(), hashes, return_dtype=pl.UInt64).to_numpy()


def build_range_tree(parent: pl.Series, depth: pl.Series, name: pl.Series) -> tuple[Tree, pl.Series]:
    """Return the tree of the names of nested ranges, and the node of each range.

    A path has at most 256 levels. Deeper ranges share one node, "…", below their ancestor on the last level.

    Args:
        parent: Row number of the parent of each range, null for an outermost range.
        depth: Depth of each range, 1 for an outermost range.
        name: Name of each range (Categorical).

    Returns:
        The tree, and the node of each range.
    """
    from tracekit.native.combinations import CombinationFinder

    too_deep = depth > MAX_LEVELS

    def compute_levels(block: slice) -> npt.NDArray[np.uint16]:
        levels = depth[block].set(~(depth[block] <= MAX_LEVELS).fill_null(value=False), 0)
        return levels.cast(pl.UInt16).to_numpy()

    rows = sorting.group_row_numbers(compute_levels, len(parent), min(_find_largest_number(depth), MAX_LEVELS) + 1)
    nodes = memory.allocate_zeros(len(parent), np.int64)
    by_level, count = [pl.DataFrame(_ROOT, schema=_NODE)], 1
    finder = CombinationFinder()
    for level in range(1, len(rows.starts) - 1):
        here = rows.order[rows.starts[level] : rows.starts[level + 1]]
        above = parent.gather(create_series(here))
        up = np.where(above.is_null().to_numpy(), 0, nodes[above.fill_null(0).to_numpy()])
        part = name.gather(create_series(here)).to_frame("part").with_columns(pl.col("part").fill_null(_NO_NAME))
        codes, first_rows = finder.find([up, part["part"].to_physical().cast(pl.Int64).to_numpy()])
        new = part[create_series(first_rows)].select(up=create_series(up[first_rows]), part="part")
        by_level.append(new.with_columns(level=pl.lit(level, pl.Int64)))
        nodes[here] = codes + np.int64(count)
        count += new.height
        memory.release_pages()
    tree = Tree(pl.concat(by_level))
    if rows.starts[1]:
        tree = _add_ellipses(tree, rows.order[: rows.starts[1]], find_nearest_matching_rows(parent, ~too_deep), nodes)
    return tree, create_series(nodes)


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


def _find_largest_number(numbers: pl.Series) -> int:
    """Return the largest of the given integers, or 0 if there are none."""
    largest = numbers.max()
    return largest if isinstance(largest, int) else 0
