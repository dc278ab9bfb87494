"""The sandbox, and what its programs share with Python."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tracekit.native import compile as native_programs
from tracekit.native import crc32c
from tracekit.native.program import MAX_ARRAYS, MAX_PARAMETERS, PARAMETERS
from tracekit.native.sandbox import Sandbox
from tracekit.readers.common import tries
from tracekit.readers.common.json import scanner as json_scanner
from tracekit.readers.common.protobuf import decoding
from tracekit.readers.tfevents import records

ARRAYS = {
    "protobuf": {
        decoding.SLOTS: decoding.FIELDS,
        decoding.COUNTS: 4 * decoding.MAX_SLOTS,
        decoding.WIRE_TYPES: 4 * decoding.MAX_SLOTS,
        decoding.SCRATCH: decoding.SCRATCH_BYTES,
        decoding.BUFFER: 0,
    },
    "tries": {tries._STATE: 4 * len(tries._NAMES), tries._INPUT: 0},
    "json": {
        json_scanner._KEYS: 16 * json_scanner._KEY_COUNT,
        json_scanner._STRING_TABLE: 4 << 16,
        json_scanner._STRING_HASHES: 8 << 16,
        json_scanner._STRING_STARTS: 4 << 16,
        json_scanner._STRING_SIZES: 4 << 16,
        json_scanner._CELLS: 8 * json_scanner.SLOTS * json_scanner.ROWS,
        json_scanner._TYPES: json_scanner.SLOTS * json_scanner.ROWS,
        json_scanner.INPUT: json_scanner.CAPACITY + json_scanner._SLACK,
        json_scanner._RANGES: 8 << 16,
        json_scanner._ENDS: 4 << 16,
        json_scanner._OUT: 0,
    },
    "records": {
        records._CRC_TABLES: 8192,
        records._STARTS: 4 * records.MAX_RECORDS,
        records._SIZES: 4 * records.MAX_RECORDS,
        records._BUFFER: 0,
    },
    "crc32c": {crc32c._TABLES: 8192, crc32c._BUFFER: 0},
}
"""Offset and size in bytes of every array in the memory of a program."""
FIRST_SHARED = 256
"""Numbers from here on are offsets or limits; below are bytes, small counts and masks."""
ARITHMETIC = {0x3F80, 0x8000, 1000, 9_000_000_000_000_000, 256, 0x82F63B78, 0xA282EAD8, 0x0FFFFFFF, 0x0FFFFFFF00000000}
ARITHMETIC |= {0x007F007F007F007F, 0x7F007F007F007F00, 0x00003FFF00003FFF, 0x3FFF00003FFF0000}
ARITHMETIC |= {0x8080808080808080, 0x9E3779B97F4A7C15, 10_000, 100_000_000, 10_486}
ARITHMETIC |= {0x7F0000007F, 0x000F000F000F000F, 0x0F0F0F0F0F0F0F0F, 0x3030303030303030}
"""Larger numbers that only the C files know: bits of varints, decimal places, constants of CRC-32C and of hashes."""
DECLARED_IN_C = {"replay"} | {name for name, program in native_programs.PROGRAMS.items() if program.arrays}
"""Programs whose arrays are described by a struct."""


def code_of(name: str) -> str:
    sources = native_programs.list_sources(native_programs.PROGRAMS[name])
    return re.sub(r"/\*.*?\*/", "", "\n".join(path.read_text("utf-8") for path in sources), flags=re.DOTALL)


@pytest.mark.parametrize("name", native_programs.PROGRAMS)
def test_constants_are_defined_in_python_alone(name: str) -> None:
    numbers = {int(number, 0) for number in re.findall(r"\b(0x[0-9a-f]+|[1-9][0-9]*)\b", code_of(name))}
    assert {n for n in numbers if n >= FIRST_SHARED} <= ARITHMETIC


@pytest.mark.parametrize("name", native_programs.PROGRAMS)
def test_every_constant_and_parameter_is_used(name: str) -> None:
    program, code = native_programs.PROGRAMS[name], code_of(name)
    words = set(re.findall(r"\w+", code))
    assert set(program.constants) <= words
    assert set(re.findall(r"EXPORT\((\w+)\)", code)) - {"name"} == set(program.parameters)
    for function, names in program.parameters.items():
        assert {function + "_parameters"} <= words or not names
        assert {n for n in names if not re.search(rf"(\bp|progress|shared)(\.|->){n}\b", code)} == set()
        assert len(names) == len(set(names)) <= MAX_PARAMETERS
    for function, arrays in program.arrays.items():
        assert {function + "_arrays"} <= words
        assert {name for name in arrays if not re.search(rf"(\.|->){name}\b", code)} == set()
        assert len(arrays) <= MAX_ARRAYS


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_do_not_overlap(name: str) -> None:
    assert set(ARRAYS) | DECLARED_IN_C == set(native_programs.PROGRAMS)
    end = PARAMETERS + 4 * MAX_PARAMETERS
    for offset, size in ARRAYS[name].items():
        assert offset >= end
        assert offset % 8 == 0
        end = offset + size


def test_unknown_parameters_are_an_error() -> None:
    sandbox = decoding.DecoderSandbox(0)
    with pytest.raises(TypeError, match=r"varints\(\) has no parameters \['row'\], only \['rows', "):
        sandbox.call("varints", row=1)


def test_parameters_left_out_are_zero_and_stay_without_any() -> None:
    sandbox = decoding.DecoderSandbox(8)
    sandbox.data[:2] = [0x08, 0x07]
    sandbox.call(
        "varints", rows=1, offsets=decoding.SCRATCH, values=decoding.SCRATCH + 8, lengths=decoding.SCRATCH + 16
    )
    assert sandbox.parameter("varints", "limit") == 0
    assert sandbox.array(decoding.SCRATCH, 3, np.uint64).tolist() == [0, 8, 1]
    sandbox.array(decoding.SCRATCH, 3, np.uint64)[1:] = 0
    assert sandbox.call("varints") == 0
    assert sandbox.array(decoding.SCRATCH, 3, np.uint64).tolist() == [0, 8, 1]


def test_memory_outside_the_sandbox_cannot_be_read() -> None:
    sandbox = Sandbox(crc32c.build_program(), 1 << 16, ArithmeticError)
    assert sandbox.call("checksum", offset=(1 << 16) - 8, size=8)
    with pytest.raises(ArithmeticError):
        sandbox.call("checksum", offset=(1 << 16) - 7, size=8)
    with pytest.raises(ArithmeticError):
        sandbox.call("checksum", offset=0xFFFFFFFF, size=1)
