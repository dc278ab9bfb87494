"""Find the last of the slices of a column that cover each row.

The slices are visited from the last to the first, and each one covers the rows that no later slice covers. Each row
refers to a later row that may be free, so that rows that are covered are skipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tracekit.native.program import Program

if TYPE_CHECKING:
    import numpy.typing as npt

_SLICES: Final[dict[str, type[np.generic]]] = dict.fromkeys(("first", "stop", "number"), np.uint32)
_ROWS: Final[dict[str, type[np.generic]]] = dict.fromkeys(("next", "cover"), np.uint32)
PROGRAM: Final = Program("covering", {"cover": ("slices",)}, arrays={"cover": {**_SLICES, **_ROWS}})
_CHUNK: Final = 1 << 16
"""Number of slices that are in the sandbox at a time."""
_WINDOW: Final = 1 << 20
"""Number of rows that are in the sandbox at a time."""
_NONE: Final = (1 << 32) - 1


def find_last_covering_slices(
    first: npt.NDArray[np.int64], stop: npt.NDArray[np.int64], last: npt.NDArray[np.int64]
) -> None:
    """Find the last slice that covers each row of a column.

    Args:
        first: First row of each slice.
        stop: Row after the last row of each slice.
        last: Array with one element per row, to which the number of the slice is written, or -1 if no slice covers the
            row.

    Raises:
        MemoryError: There are too many slices.
    """
    from tracekit.native.arrays import ArraySandbox

    if len(first) > _NONE:
        raise MemoryError(f"{len(first):,} slices cannot be compared, and at most {_NONE:,} are possible")
    sandbox = ArraySandbox(PROGRAM)
    sizes = {**dict.fromkeys(_SLICES, min(_CHUNK, len(first))), **dict.fromkeys(_ROWS, min(_WINDOW, len(last)) + 1)}
    for start in range(0, len(last), _WINDOW):
        window = slice(start, min(start + _WINDOW, len(last)))
        rows = window.stop - start
        arrays = sandbox.allocate("cover", **sizes)
        arrays["next"][:] = np.arange(len(arrays["next"]))
        arrays["cover"][:] = _NONE
        for end in range(len(first), 0, -_CHUNK):
            chunk = slice(max(end - _CHUNK, 0), end)
            chosen = np.flatnonzero((first[chunk] < window.stop) & (stop[chunk] > start))[::-1]
            here = slice(0, len(chosen))
            arrays["first"][here] = np.maximum(first[chunk][chosen] - start, 0)
            arrays["stop"][here] = np.minimum(stop[chunk][chosen] - start, rows)
            arrays["number"][here] = chosen + chunk.start
            sandbox.call("cover", slices=len(chosen))
        cover = arrays["cover"][:rows].astype(np.int64)
        cover[cover == _NONE] = -1
        last[window] = cover
