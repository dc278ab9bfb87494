"""Assign a code to each combination of numbers in the rows of a table.

Importing this module imports ``wasmtime``, which takes about 40 ms. It should be imported when it is first needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.native.arrays import ArraySandbox
from tracekit.native.program import Program

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM: Final = Program(
    "combinations",
    {"combinations": ("rows", "columns", "slots")},
    {"INVALID": -1},
    {"combinations": {"numbers": np.uint64, **dict.fromkeys(("table", "codes", "first_rows"), np.uint32)}},
)


class RowCombinations(NamedTuple):
    """The combinations of numbers in the rows of a table.

    Attributes:
        codes: Code of the combination in each row. Codes are numbered from 0, in the order of the first rows.
        first_rows: Number of the first row of each combination.
    """

    codes: npt.NDArray[np.uint32]
    first_rows: npt.NDArray[np.uint32]


class CombinationFinder:
    """A sandbox that tells combinations of numbers apart. Only one thread at a time may use it."""

    def __init__(self) -> None:
        self._sandbox = ArraySandbox(PROGRAM)

    def find(self, columns: Sequence[npt.NDArray[Any]]) -> RowCombinations:
        """Return the combinations of the numbers in at least one column of 64-bit integers.

        Raises:
            MemoryError: The columns do not fit into 4 GiB.
        """
        rows = len(columns[0])
        slots = 1 << (2 * rows).bit_length()
        arrays = self._sandbox.allocate(
            "combinations", numbers=rows * len(columns), table=slots, codes=rows, first_rows=rows
        )
        numbers = arrays["numbers"].reshape(rows, len(columns))
        for n, column in enumerate(columns):
            numbers[:, n] = column.view(np.uint64)
        count = self._sandbox.call("combinations", rows=rows, columns=len(columns), slots=slots)
        return RowCombinations(arrays["codes"].copy(), arrays["first_rows"][:count].copy())
