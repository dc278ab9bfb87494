"""Compile the C programs in ``tracekit/native`` to WebAssembly: ``make native``.

``tracekit/native/programs.sha256`` contains a digest per program. It covers the source, the flags, the version of the
compiler and the compiled program. ``tests/native/test_programs.py`` fails if one of them has changed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tracekit" / "native"
DIGESTS = FOLDER / "programs.sha256"
COMPILER = ROOT / ".venv-native" / "bin" / "python"
"""The environment in which ``make native`` installs the compiler."""
COMPILE_FLAGS = [
    *("-target", "wasm32-freestanding", "-std=c11", "-O3", "-msimd128", "-mbulk-memory", "-fno-sanitize=all"),
    *("-g0", "-Wall", "-Wextra", "-Werror", "-Wno-unused-command-line-argument"),
]
LINK_FLAGS = ["-nostdlib", "-s", "-Wl,--no-entry", "-Wl,--import-memory", "-Wl,-z,stack-size=65536"]
_DATA_SECTION = 11


def sources() -> list[Path]:
    """Return the source files of all programs. A program is one file."""
    return sorted(FOLDER.glob("*.c"))


def requirement() -> str:
    """Return the compiler and its version, as pyproject.toml requires them."""
    (required,) = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]["native"]
    return str(required)


def digest_of(source: Path) -> str:
    """Return the digest of a program: of all that determines it, and of the compiled program."""
    settings = [requirement(), *COMPILE_FLAGS, *LINK_FLAGS, ""]
    content = "\n".join(settings).encode() + source.read_bytes() + source.with_suffix(".wasm").read_bytes()
    return hashlib.sha256(content).hexdigest()


def digests() -> str:
    """Return the content of the file of digests."""
    return "".join(f"{digest_of(source)}  {source.stem}\n" for source in sources())


def sections_of(module: bytes) -> set[int]:
    """Return the numbers of the sections of a WebAssembly module or object file."""
    numbers, offset = set(), 8
    while offset < len(module):
        numbers.add(module[offset])
        size = shift = 0
        while True:
            offset += 1
            size |= (module[offset] & 127) << shift
            shift += 7
            if module[offset] < 128:
                break
        offset += 1 + size
    return numbers


def compile_program(source: Path) -> bytes:
    """Compile a program and return the WebAssembly module.

    Raises:
        ValueError: The program has static data, which the linker would silently leave out because the module imports
            its memory, or a stack in memory, which would overwrite the arrays.
    """
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(source, folder)
        caches = {"ZIG_GLOBAL_CACHE_DIR": f"{folder}/cache", "ZIG_LOCAL_CACHE_DIR": f"{folder}/cache"}

        def run(*arguments: str) -> None:
            command = [str(COMPILER), "-m", "ziglang", "cc", *COMPILE_FLAGS, *arguments]
            subprocess.run(command, cwd=folder, env=os.environ | caches, check=True)

        run("-c", "-o", "program.o", source.name)
        run(*LINK_FLAGS, "-o", "program.wasm", source.name)
        compiled = (Path(folder) / "program.o").read_bytes()
        if _DATA_SECTION in sections_of(compiled):
            raise ValueError(f"{source.name} has static data. Hint: pass constants to the program as arrays.")
        if b"__stack_pointer" in compiled:
            raise ValueError(f"{source.name} needs a stack in memory. Hint: use no local arrays.")
        return (Path(folder) / "program.wasm").read_bytes()


def main() -> int:
    """Compile all programs and write their digests."""
    for source in sources():
        source.with_suffix(".wasm").write_bytes(compile_program(source))
    DIGESTS.write_text(digests(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
