"""Generate the text of WebAssembly programs, which contain constants and parameters that Python defines.

Each constant is defined once, in Python. The text of a program refers to a constant as ``{NAME}``, and to the offset of
a parameter of an exported function as ``{function.parameter}``. Both are filled in when the program is compiled.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

PARAMETERS: Final = 64
"""Offset in memory of the parameters of a call, which are 32-bit integers. Functions may also return results there."""
MAX_PARAMETERS: Final = 16
STRINGS: Final = ("tracekit.sandbox", "strings.wat")
"""File with functions that hash and compare strings."""
CRC32C: Final = ("tracekit.sandbox", "crc32c.wat")
"""File with functions that compute CRC-32C. The constant ``CRC_TABLES`` is the offset of their tables."""
CRC32C_PARAMETERS: Final = {"checksum": ("crc", "offset", "size")}

_MODULE = '(module (import "tracekit" "memory" (memory 1))\n{}\n)'
_PLACEHOLDER = re.compile(r"\{([\w.]+)\}")


@dataclass(frozen=True, eq=False)
class Program:
    """A WebAssembly module: its text, and the constants and parameters that Python inserts into the text.

    Attributes:
        files: Package and name of each file of functions. The files together form the module.
        constants: Integers by name, for example the offsets of arrays in memory.
        parameters: Parameter names of each exported function, in order.
    """

    files: tuple[tuple[str, str], ...]
    constants: Mapping[str, int]
    parameters: Mapping[str, tuple[str, ...]]

    def build_text(self) -> str:
        """Return the text of the module with constants and parameter offsets filled in.

        Raises:
            KeyError: The text uses a name that is not defined.
        """
        values = {name: str(value) for name, value in self.constants.items()}
        for function, names in self.parameters.items():
            for i, name in enumerate(names):
                values[f"{function}.{name}"] = str(PARAMETERS + 4 * i)
        source = "\n".join(resources.files(package).joinpath(name).read_text("utf-8") for package, name in self.files)
        return _MODULE.format(_PLACEHOLDER.sub(lambda match: values[match[1]], source))


@dataclass(frozen=True, eq=False)
class BinaryProgram:
    """A WebAssembly module that was compiled during development, such as the programs in ``tracekit/native``.

    Attributes:
        file: Package and name of the file.
        parameters: Parameter names of each exported function, in order.
    """

    file: tuple[str, str]
    parameters: Mapping[str, tuple[str, ...]]

    def read_bytes(self) -> bytes:
        """Return the module."""
        package, name = self.file
        return resources.files(package).joinpath(name).read_bytes()
