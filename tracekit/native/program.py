"""WebAssembly programs, which ``make native`` compiles from the C files in ``tracekit/native``.

The constants that a program and Python share, such as the offsets of arrays, and the parameters of its functions are
declared once, in Python. For the compiler, they are written into a header.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

PARAMETERS: Final = 64
"""Offset in memory of the parameters of a call, which are 32-bit integers. Functions may also return results there."""
MAX_PARAMETERS: Final = 16
ARRAYS: Final = PARAMETERS + 4 * MAX_PARAMETERS
"""Offset in memory of the offsets of the arrays that ``native.arrays`` allocates for a call."""
MAX_ARRAYS: Final = 64


@dataclass(frozen=True, eq=False)
class Program:
    """A WebAssembly module.

    Attributes:
        name: Name of the file, without its suffix ``.wasm``.
        parameters: Parameter names of each exported function, in order.
        constants: Integers by name, for example the offsets of arrays in memory.
        arrays: For each exported function that ``native.arrays`` calls, its arrays and their data types by name, such
            as ``{"starts": np.int64}``.
        package: Package that contains the file. A plug-in names its own package.
    """

    name: str
    parameters: Mapping[str, tuple[str, ...]]
    constants: Mapping[str, int] = field(default_factory=dict)
    arrays: Mapping[str, Mapping[str, type[np.generic]]] = field(default_factory=dict)
    package: str = "tracekit.native"

    def read_bytes(self) -> bytes:
        """Return the module."""
        return resources.files(self.package).joinpath(f"{self.name}.wasm").read_bytes()
