"""Read the tiles of matrix products and convolutions from the names of their kernels.

A kernel of a library computes its result tile by tile, and one block of threads computes one tile. The grid times the
tile is therefore the size of the result, rounded up to whole tiles: it shows how much of the work is lost at the edges
and in the last wave, but it is not the size of the problem.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_LARGEST = 4096
_TILE = (
    r"nvjet_(?:sm\d+_)?[a-z]+_(?P<m>\d+)x(?P<n>\d+)_(?P<k>\d+)x\d+",
    r"cutlass3x_\w*?gemm_(?:[a-z]+\d*_)+(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)_",
    r"cutlass_\w*?_(?P<m>\d+)x(?P<n>\d+)_(?:(?P<k>\d+)x\d+_)?",
    r"tile(?:size)?(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)",
    r"^Cijk_\w*?_MT(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)_",
    r"^(?:maxwell|pascal|volta|turing|ampere|hopper)_\w*?_(?P<m>\d+)x(?P<n>\d+)_\w*?stages_(?P<k>\d+)x\d+_",
    r"^(?:maxwell|pascal|volta|turing|ampere|hopper)_\w*?(?:gemm|cudnn)\w*?_(?P<m>\d+)x(?P<n>\d+)(?:_|$)",
)
_TILES = tuple(map(re.compile, _TILE))


class Tile(NamedTuple):
    """The part of a result that one block of threads computes.

    Attributes:
        rows: Number of rows of the tile. Libraries may exchange rows and columns.
        columns: Number of columns of the tile.
        depth: Number of products that the block adds up at a time, or None if the name does not tell.
    """

    rows: int
    columns: int
    depth: int | None


def parse_tile(name: str) -> Tile | None:
    """Return the tile in the name of a kernel of cuBLAS, cuDNN, CUTLASS or Tensile, or None if there is none."""
    for pattern in _TILES:
        match = pattern.search(name)
        if match is not None:
            sizes = match.groupdict()
            rows, columns, depth = (int(sizes[key]) if sizes.get(key) else None for key in ("m", "n", "k"))
            if rows and columns and max(rows, columns) <= _LARGEST:
                return Tile(rows, columns, depth)
    return None
