"""The programs in C are those that were compiled, and what they share with Python is equal."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import wasmtime
from tracekit.native import compile as native_programs
from tracekit.native import replay
from tracekit.readers.common import tries

PROGRAMS = native_programs.PROGRAMS
C_TYPES = {np.int64: "int64_t", np.int32: "int32_t", np.uint8: "uint8_t"}


def struct_of(source: str, name: str) -> list[tuple[str, str]]:
    """Return the type and name of each member of a struct."""
    (body,) = re.findall(r"typedef struct \{([^}]*)\} " + name + ";", source)
    members = [declaration.strip().removeprefix("const ") for declaration in body.split(";") if declaration.strip()]
    return [(m.partition(" ")[0], name.strip(" *")) for m in members for name in m.partition(" ")[2].split(",")]


def test_compiled_programs_belong_to_their_sources() -> None:
    message = "a source, a flag, the compiler or a compiled program has changed. Hint: run 'make native'."
    assert native_programs.DIGESTS.read_text("utf-8") == native_programs.compute_digests(), message
    for suffix in ("c", "wasm"):
        assert set(PROGRAMS) == {path.stem for path in native_programs.FOLDER.glob(f"*.{suffix}")}
    headers = {path for program in PROGRAMS.values() for path in native_programs.list_sources(program)[1:]}
    assert headers == set(native_programs.FOLDER.glob("*.h"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_access_only_their_memory(name: str) -> None:
    module = wasmtime.Module(wasmtime.Engine(), PROGRAMS[name].read_bytes())
    (memory,) = module.imports
    assert isinstance(memory.type, wasmtime.MemoryType)
    assert memory.type.limits.min <= 1
    assert {e.name for e in module.exports} == set(PROGRAMS[name].parameters)
    assert native_programs._DATA_SECTION not in native_programs.list_sections(PROGRAMS[name].read_bytes())


def test_the_structs_in_c_and_in_python_have_the_same_members() -> None:
    source = Path(native_programs.FOLDER / "replay.c").read_text("utf-8")
    assert struct_of(source, "arrays") == [(C_TYPES[a.dtype], name) for name, a in replay._ARRAYS.items()]
    source = Path(native_programs.FOLDER / "tries.c").read_text("utf-8")
    assert [name for _, name in struct_of(source, "trie")] == list(tries._NAMES)


@pytest.fixture
def compiler() -> None:
    if not (native_programs.COMPILER.parents[1] / ".ready").exists():
        pytest.skip("the compiler for the programs in C is not installed; 'make native' installs it")


@pytest.mark.thorough
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_compile_to_the_same_bytes(compiler: None, name: str) -> None:
    assert native_programs.compile_program(PROGRAMS[name]) == PROGRAMS[name].read_bytes()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("static const int t[] = {1, 5, 3, 7, 9, 2, 4}; int f(int n) { return t[n]; }", "static data"),
        ("static int t[100]; int f(int n) { return t[n]++; }", "static data"),
        ("int f(int n) { volatile int a[9]; a[n] = 2; return a[0]; }", "needs a stack"),
    ],
)
def test_programs_that_the_linker_would_break(compiler: None, tmp_path: Path, text: str, message: str) -> None:
    source = tmp_path / "program.c"
    source.write_text(text.replace("int f(", '__attribute__((export_name("f"))) int f('), "utf-8")
    with pytest.raises(ValueError, match=message):
        native_programs.compile_source(source, "")
