"""Determine which rows of a tree are visible, and which can be expanded or collapsed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tracekit.errors import TracekitError

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_TOGGLED = 2000
"""Maximum number of rows that a URL lists as expanded or collapsed."""


class TreeColumns(NamedTuple):
    """The columns that define a tree, whose rows are in depth-first order.

    Attributes:
        key: Column that identifies a row.
        parent: Column with the key of the parent, null for a root.
        level: Column with the number of ancestors.
        label: Column whose cells expand and collapse rows.
    """

    key: str
    parent: str
    level: str
    label: str


class Expansion(NamedTuple):
    """The set of expanded rows of a tree.

    Attributes:
        depth: Rows with a lower level than this are expanded by default. If None, all rows are expanded.
        toggled: Keys of the rows whose state is the opposite of the default.
    """

    depth: int | None
    toggled: frozenset[str]


def parse_expansion(arguments: Mapping[str, str], toggled_keys: str) -> Expansion:
    """Return the expanded rows of a tree, according to the arguments of the table and the keys of toggled rows.

    Raises:
        TracekitError: The depth is not an integer or has too many digits, or there are too many keys.
    """
    depth = arguments.get("depth", "")
    keys = toggled_keys.split(",") if toggled_keys else []
    if len(keys) > MAX_TOGGLED:
        raise TracekitError(
            f"{len(keys):,} rows of the tree are expanded or collapsed individually, but at most {MAX_TOGGLED:,} can be"
        )
    if depth and not (depth.isascii() and depth.isdigit() and len(depth) <= len(str(MAX_TOGGLED))):
        raise TracekitError(
            f"the depth of the tree is {depth[:100]!r}, but it must be an integer of at most "
            f"{len(str(MAX_TOGGLED))} digits"
        )
    return Expansion(int(depth) if depth else None, frozenset(keys))


def compute_row_states(frame: pl.DataFrame, tree: TreeColumns, expansion: Expansion) -> pl.DataFrame:
    """Return whether each row of a tree is visible, and whether it is expanded.

    Returns:
        A frame with one row per row of the tree and two Boolean columns: ``visible``, and ``expanded``, which is null
        for rows without children.
    """
    by_default = pl.lit(value=True) if expansion.depth is None else pl.col(tree.level) < expansion.depth
    is_toggled = pl.col(tree.key).cast(pl.String).is_in(sorted(expansion.toggled))
    has_children = pl.col(tree.key).is_in(frame[tree.parent].drop_nulls().implode())
    rows = frame.select(
        level=tree.level,
        parent=tree.parent,
        key=tree.key,
        expanded=pl.when(has_children).then(by_default ^ is_toggled),
    ).with_row_index("row")
    numbers = rows.select(parent="key", above="row")
    rows = rows.join(numbers, on="parent", how="left", maintain_order="left")
    visible = pl.repeat(value=False, n=frame.height, dtype=pl.Boolean, eager=True)
    for level in sorted(rows["level"].unique().to_list()):
        at = rows.filter(pl.col("level") == level)
        above = at["above"]
        shown = visible.gather(above) & rows["expanded"].gather(above)
        visible = visible.scatter(at["row"], above.is_null() | shown.fill_null(value=False))
    return pl.DataFrame({"visible": visible, "expanded": rows["expanded"]})
