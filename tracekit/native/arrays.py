"""Run WebAssembly programs on arrays.

A ``Program`` declares the arrays of its functions by name. ``ArraySandbox.allocate`` places them in the memory of a
sandbox, and the caller fills them. In C, a function finds its arrays in a struct, which ``make native`` writes into
``layout.h``: ``const sweep_arrays a = *(const sweep_arrays *)ARRAYS;``.

Importing this module imports ``wasmtime``, which takes about 40 ms. It should be imported when it is first needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from tracekit.native.program import ARRAYS, MAX_ARRAYS
from tracekit.native.sandbox import Sandbox

if TYPE_CHECKING:
    from tracekit.native.program import Program

_DATA: Final = ARRAYS + 4 * MAX_ARRAYS
_MIN_BYTES: Final = 1 << 20
_MAX_BYTES: Final = (1 << 32) - (1 << 16)


class ArraySandbox:
    """A sandbox that runs the functions of a program on arrays. Only one thread at a time may use it."""

    def __init__(self, program: Program) -> None:
        """Choose a program. The memory is allocated with the first arrays."""
        self._program = program
        self._sandbox: Sandbox | None = None
        self._capacity = 0

    def allocate(self, function: str, /, **sizes: int) -> dict[str, npt.NDArray[Any]]:
        """Allocate the arrays of a function.

        The arrays replace those that were allocated before, and the content of the new arrays is undefined. The content
        remains as it is if the sizes of all arrays are those of the last call with the same function.

        Args:
            function: Name of the function.
            **sizes: Number of values of each array. Arrays that are omitted are empty.

        Returns:
            The arrays by name, as views of the memory. The program writes its results to them.

        Raises:
            TypeError: The function has no array of this name.
            MemoryError: The memory cannot be allocated, or would exceed 4 GiB.
        """
        arrays = self._program.arrays[function]
        if unknown := set(sizes) - set(arrays):
            raise TypeError(f"{function}() has no arrays {sorted(unknown)}, only {list(arrays)}")
        offsets, end = [], _DATA
        for name, dtype in arrays.items():
            offsets.append(end)
            end += -(-sizes.get(name, 0) * np.dtype(dtype).itemsize // 8) * 8
        if end > _MAX_BYTES:
            raise MemoryError(f"the arrays of {function}() need {end} bytes, and at most {_MAX_BYTES} are possible")
        sandbox = self._reserve(end)
        sandbox.array(ARRAYS, len(offsets), np.uint32)[:] = offsets
        return {
            name: sandbox.array(offset, sizes.get(name, 0), dtype)
            for offset, (name, dtype) in zip(offsets, arrays.items(), strict=True)
        }

    def call(self, function: str, /, **parameters: int) -> int:
        """Call a function, and return its result. Parameters that are omitted are 0.

        Raises:
            MemoryError: The program accessed an offset outside its memory.
        """
        return self._reserve(0).call(function, **parameters)

    def parameter(self, function: str, name: str) -> int:
        """Return the value that a parameter of a function has after a call. Functions may change their parameters."""
        return self._reserve(0).parameter(function, name)

    def _reserve(self, size: int) -> Sandbox:
        """Return the sandbox. It is replaced if it is smaller than ``size`` bytes."""
        if self._sandbox is None or size > self._capacity:
            self._capacity = min(max(size + size // 4, _MIN_BYTES), _MAX_BYTES)
            name = self._program.name
            self._sandbox = Sandbox(self._program, self._capacity, lambda: MemoryError(f"the {name} left its memory"))
        return self._sandbox
