"""The programs in C are those that were compiled, and what they share with Python is equal."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import wasmtime
from tests import native_programs
from tracekit.native import replay

SOURCES = native_programs.sources()
PROGRAMS = {"replay": replay._PROGRAM}
C_TYPES = {np.int64: "int64_t", np.int32: "int32_t", np.uint8: "uint8_t"}


def struct_of(source: str, name: str) -> list[tuple[str, str]]:
    """Return the type and name of each member of a struct."""
    (body,) = re.findall(r"typedef struct \{([^}]*)\} " + name + ";", source)
    members = [declaration.strip().removeprefix("const ") for declaration in body.split(";") if declaration.strip()]
    return [(m.partition(" ")[0], name.strip(" *")) for m in members for name in m.partition(" ")[2].split(",")]


def test_compiled_programs_belong_to_their_sources() -> None:
    message = "a source, a flag, the compiler or a compiled program has changed. Hint: run 'make native'."
    assert native_programs.DIGESTS.read_text("utf-8") == native_programs.digests(), message
    assert {s.stem for s in SOURCES} == set(PROGRAMS) == {p.stem for p in native_programs.FOLDER.glob("*.wasm")}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_access_only_their_memory(name: str) -> None:
    module = wasmtime.Module(wasmtime.Engine(), PROGRAMS[name].read_bytes())
    (memory,) = module.imports
    assert isinstance(memory.type, wasmtime.MemoryType)
    assert memory.type.limits.min <= 1
    assert {e.name for e in module.exports} == set(PROGRAMS[name].parameters)
    assert native_programs._DATA_SECTION not in native_programs.sections_of(PROGRAMS[name].read_bytes())


def test_the_replay_in_c_and_in_python_use_equal_names() -> None:
    source = Path(native_programs.FOLDER / "replay.c").read_text("utf-8")
    assert struct_of(source, "arrays") == [(C_TYPES[a.dtype], name) for name, a in replay._ARRAYS.items()]
    assert struct_of(source, "parameters") == [("uint32_t", p) for p in replay._PROGRAM.parameters["replay"]]
    results = re.search(r"enum \{\s*DONE,([^}]*)\}", source)[1].replace(",", " ").split()
    rules = {code: name.upper() for code, (name, _) in replay._RULES.items()}
    overflows = {code: f"{name}_TIME".upper() for code, name in replay._OVERFLOWS.items()}
    assert dict(enumerate(results, 1)) == rules | overflows
    kinds = re.search(r"enum \{ (NO_WAIT[^}]*) \}", source)[1].split(", ")
    assert {kind: getattr(replay, kind) for kind in kinds} == {kind: i for i, kind in enumerate(kinds)}


@pytest.fixture
def compiler() -> None:
    if not (native_programs.COMPILER.parents[1] / ".ready").exists():
        pytest.skip("the compiler for the programs in C is not installed; 'make native' installs it")


@pytest.mark.thorough
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_programs_compile_to_the_same_bytes(compiler: None, source: Path) -> None:
    assert native_programs.compile_program(source) == source.with_suffix(".wasm").read_bytes()


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
        native_programs.compile_program(source)
