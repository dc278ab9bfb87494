"""Aggregate values over the tree of groups.

A *cell* is a group, or a group in one iteration. The program ``native/cells.c`` adds values and intervals to a cell and
to all cells that contain it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from tracekit.native.program import Program
from tracekit.system.sorting import create_series

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from tracekit.core.trees import Tree

GROUP_KEY: Final = ["node", "direction"]
"""Columns that identify a group."""
_ROW_ARRAYS: Final[Mapping[str, type[np.generic]]] = {
    "row_cell": np.uint32,
    "row_track": np.uint32,
    "row_start": np.int64,
    "row_end": np.int64,
}
PROGRAM: Final = Program(
    "cells",
    {"sum": ("cells",), "cover": ("cells", "rows")},
    arrays={
        "sum": {"up": np.uint32, "total": np.uint64},
        "cover": {"up": np.uint32, "total": np.uint64, "track": np.uint32, "end": np.int64, **_ROW_ARRAYS},
    },
)
_CHUNK_ROWS = 1 << 18


class GroupCells(NamedTuple):
    """The cells of some rows, and the cells that contain them.

    Attributes:
        keys: The columns that identify each cell. A cell precedes the cell that contains it.
        up: Number of the cell that contains each cell, or the number of cells if there is none.
        of_rows: Number of the cell of each row, or null if it has none.
    """

    keys: pl.DataFrame
    up: pl.Series
    of_rows: pl.Series

    @classmethod
    def from_rows(cls, tree: Tree, rows: pl.DataFrame) -> Self:
        """Return the cells of rows, from the deepest group to the root.

        Args:
            tree: The tree of groups. The root has one group for all directions.
            rows: The columns of ``GROUP_KEY`` and other columns that identify the cell of each row. A row with a null
                has no cell.
        """
        levels, keys = tree.nodes["level"], rows.columns
        own = rows.drop_nulls().unique()
        by_level = own.with_columns(_level=levels.gather(own["node"])).partition_by(
            "_level", as_dict=True, include_key=False
        )
        listed, below = [own.clear()], own.clear()
        for level in range(max((n for (n,) in by_level), default=-1), -1, -1):
            here = pl.concat([by_level.get((level,), own.clear()), below]).unique()
            listed.append(here)
            below = _find_containers(tree, here)
        cells = pl.concat(listed)
        numbers = cells.with_columns(cell=pl.int_range(pl.len(), dtype=pl.UInt32))

        def find_numbers(cells: pl.DataFrame) -> pl.Series:
            return cells.join(numbers, on=keys, how="left", maintain_order="left")["cell"]

        up = find_numbers(_find_containers(tree, cells)).fill_null(cells.height)
        return cls(cells, up, find_numbers(rows))

    def sum(self, values: pl.DataFrame) -> pl.DataFrame:
        """Return the keys of the cells, and the sums of the columns of ``values`` (Int64, one per row) in each cell."""
        from tracekit.native.arrays import ArraySandbox

        sandbox, columns = ArraySandbox(PROGRAM), {}
        views = sandbox.allocate("sum", up=len(self.up), total=len(self.up))
        views["up"][:] = self.up.to_numpy()
        own = values.with_columns(cell=self.of_rows).drop_nulls("cell").group_by("cell").agg(pl.all().sum())
        for name in values.columns:
            views["total"][:] = 0
            views["total"][own["cell"].to_numpy()] = own[name].to_numpy()
            sandbox.call("sum", cells=len(self.up))
            columns[name] = create_series(views["total"].astype(np.int64))
        return self.keys.with_columns(**columns)

    def measure_unions(self, intervals: pl.DataFrame, devices: pl.Series) -> pl.Series:
        """Return the duration of the union of the intervals in each cell in ns, summed over devices.

        Args:
            intervals: ``instance`` (number of a row), ``device_id``, ``start_ns``, ``end_ns``.
            devices: Ids of the devices over which durations are summed.
        """
        from tracekit.native.arrays import ArraySandbox

        rows = intervals.with_columns(cell=self.of_rows.gather(intervals["instance"])).drop_nulls("cell")
        ordered = rows.filter(pl.col("device_id").is_in(devices.implode())).sort("device_id", "start_ns")
        ordered = ordered.with_columns(track=pl.col("device_id").rle_id() + 1)
        sandbox, sizes = ArraySandbox(PROGRAM), dict.fromkeys(("up", "total", "track", "end"), len(self.up))
        views = sandbox.allocate("cover", **sizes, **dict.fromkeys(_ROW_ARRAYS, min(ordered.height, _CHUNK_ROWS)))
        views["up"][:] = self.up.to_numpy()
        views["total"][:] = views["track"][:] = 0
        for start in range(0, ordered.height, _CHUNK_ROWS):
            chunk = ordered.slice(start, _CHUNK_ROWS)
            for array, column in zip(_ROW_ARRAYS, ("cell", "track", "start_ns", "end_ns"), strict=True):
                views[array][: chunk.height] = chunk[column].to_numpy()
            sandbox.call("cover", cells=len(self.up), rows=chunk.height)
        return create_series(views["total"].astype(np.int64))


def _find_containers(tree: Tree, cells: pl.DataFrame) -> pl.DataFrame:
    """Return the keys of the cell that contains each cell. Its node is null for the root."""
    is_below_root = tree.nodes["level"].gather(cells["node"]) == 1
    return cells.with_columns(
        node=tree.nodes["up"].gather(cells["node"]), direction=cells["direction"] * (~is_below_root).cast(pl.Int64)
    )
