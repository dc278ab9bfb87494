"""Compile the C programs in ``tracekit/native`` to WebAssembly: ``make native``.

A program is one C file and the headers that it includes. One of them, ``layout.h``, exists only while the program is
compiled: it contains the constants and parameters that Python declares. ``tracekit/native/programs.sha256`` contains a
digest per program. It covers all sources, the flags, the version of the compiler and the compiled program.
``tests/native/test_programs.py`` fails if one of them has changed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tracekit.native import crc32c
from tracekit.native.program import ARRAYS, PARAMETERS

if TYPE_CHECKING:
    from tracekit.native.program import Program

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent
DIGESTS = FOLDER / "programs.sha256"
COMPILER = ROOT / ".venv-native" / "bin" / "python"
"""The environment in which ``make native`` installs the compiler."""
COMPILE_FLAGS = [
    *("-target", "wasm32-freestanding", "-std=c11", "-O3", "-msimd128", "-mbulk-memory", "-fno-sanitize=all"),
    "-fno-strict-aliasing",  # arrays in the memory of a program are accessed with several types
    *("-g0", "-Wall", "-Wextra", "-Werror", "-Wno-unused-command-line-argument"),
]
LINK_FLAGS = ["-nostdlib", "-s", "-Wl,--no-entry", "-Wl,--import-memory", "-Wl,-z,stack-size=65536"]
_DATA_SECTION = 11


_MODULES = (
    "tracekit.native.alignment",
    "tracekit.native.combinations",
    "tracekit.native.covering",
    "tracekit.native.lanes",
    "tracekit.native.lines",
    "tracekit.native.nesting",
    "tracekit.native.replay",
    *("tracekit.readers.common.tries", "tracekit.readers.common.pickles"),
    "tracekit.core.ops.op_names",
    "tracekit.core.rollup.cells",
    *("tracekit.readers.common.protobuf.decoding", "tracekit.readers.common.json.scanner"),
    *("tracekit.readers.tfevents.records", "tracekit.exporters.perfetto.wire"),
)
"""Modules that declare a program, by name, because readers are in a higher layer."""
_PROGRAMS: tuple[Program, ...] = (crc32c.build_program(), *(import_module(name).PROGRAM for name in _MODULES))
PROGRAMS = {program.name: program for program in _PROGRAMS}
_INCLUDE = re.compile(r'^#include "(.+)"$', re.MULTILINE)


def get_source(program: Program) -> Path:
    """Return the path of the C file of a program."""
    return FOLDER / f"{program.name}.c"


def list_sources(program: Program) -> list[Path]:
    """Return the paths of the C file of a program and of the headers in the folder that it includes."""
    paths = [get_source(program)]
    for path in paths:
        headers = [FOLDER / name for name in _INCLUDE.findall(path.read_text("utf-8")) if name != "layout.h"]
        paths += [header for header in headers if header not in paths]
    return paths


def create_layout(program: Program) -> str:
    """Return the header ``layout.h`` of a program.

    It contains the constants, and structs of the parameters and of the arrays of each function.
    """
    constants = "".join(f"enum {{ {name} = {value} }};\n" for name, value in program.constants.items())
    structs = [
        f"typedef struct {{ uint32_t {', '.join(names)}; }} {function}_parameters;\n"
        for function, names in program.parameters.items()
        if names
    ]
    for function, arrays in program.arrays.items():
        members = "".join(f" {_name_type(dtype)} *{name};" for name, dtype in arrays.items())
        structs.append(f"typedef struct {{{members} }} {function}_arrays;\n")
    places = f"#define PARAMETERS ((void *){PARAMETERS})\n" + (
        f"#define ARRAYS ((const void *){ARRAYS})\n" if program.arrays else ""
    )
    return f"#include <stdint.h>\n{places}{constants}{''.join(structs)}"


def _name_type(dtype: type[np.generic]) -> str:
    """Return the C type of the numbers of an array."""
    name = np.dtype(dtype).name
    return {"float64": "double", "float32": "float", "bool": "uint8_t"}.get(name, f"{name}_t")


def read_requirement() -> str:
    """Return the compiler and its version, as pyproject.toml requires them."""
    (required,) = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]["native"]
    return str(required)


def compute_digest(program: Program) -> str:
    """Return the digest of a program: of all that determines it, and of the compiled program."""
    settings = [read_requirement(), *COMPILE_FLAGS, *LINK_FLAGS, create_layout(program)]
    sources = [path.read_bytes() for path in list_sources(program)]
    return hashlib.sha256(b"\n".join(["\n".join(settings).encode(), *sources, program.read_bytes()])).hexdigest()


def compute_digests() -> str:
    """Return the content of the file of digests."""
    return "".join(f"{compute_digest(program)}  {name}\n" for name, program in sorted(PROGRAMS.items()))


def list_sections(module: bytes) -> set[int]:
    """Return the numbers of the sections of a WebAssembly module or object file."""
    numbers, offset = set(), 8
    while offset < len(module):
        numbers.add(module[offset])
        size = shift = 0
        while True:
            offset += 1
            size |= (module[offset] & 127) << shift
            shift += 7
            if module[offset] < 1 << 7:
                break
        offset += 1 + size
    return numbers


def compile_program(program: Program) -> bytes:
    """Compile a program and return the WebAssembly module."""
    return compile_source(get_source(program), create_layout(program))


def compile_source(source: Path, layout: str) -> bytes:
    """Compile a C file and return the WebAssembly module.

    Args:
        source: The C file.
        layout: The content of ``layout.h``.

    Raises:
        ValueError: The program has static data, which the linker would silently leave out because the module imports
            its memory, or a stack in memory, which would overwrite the arrays.
    """
    with tempfile.TemporaryDirectory() as folder:
        for path in (source, *FOLDER.glob("*.h")):
            shutil.copy(path, folder)
        Path(folder, "layout.h").write_text(layout, "utf-8")
        caches = {"ZIG_GLOBAL_CACHE_DIR": f"{folder}/cache", "ZIG_LOCAL_CACHE_DIR": f"{folder}/cache"}

        def run(*arguments: str) -> None:
            command = [str(COMPILER), "-m", "ziglang", "cc", *COMPILE_FLAGS, *arguments]
            subprocess.run(command, cwd=folder, env=os.environ | caches, check=True)

        run("-c", "-o", "program.o", source.name)
        run(*LINK_FLAGS, "-o", "program.wasm", source.name)
        compiled = (Path(folder) / "program.o").read_bytes()
        if _DATA_SECTION in list_sections(compiled):
            raise ValueError(f"{source.name} has static data. Hint: pass constants to the program as arrays.")
        if b"__stack_pointer" in compiled:
            raise ValueError(f"{source.name} needs a stack in memory. Hint: use no local arrays.")
        return (Path(folder) / "program.wasm").read_bytes()


def main() -> int:
    """Compile all programs and write their digests."""
    for program in PROGRAMS.values():
        get_source(program).with_suffix(".wasm").write_bytes(compile_program(program))
    DIGESTS.write_text(compute_digests(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
