"""The sandbox, and what its programs share with Python."""

from __future__ import annotations

import re
from importlib import resources

import numpy as np
import pytest
from tracekit import crc32c
from tracekit.readers.common import tries
from tracekit.readers.common.protobuf import decoder
from tracekit.readers.kineto import event_sandbox as kineto
from tracekit.readers.tfevents import record_sandbox as tfevents
from tracekit.sandbox import Sandbox
from tracekit.sandbox.program import CRC32C, MAX_PARAMETERS, PARAMETERS, Program

PROGRAMS = {
    "protobuf": decoder._PROGRAM,
    "tries": tries._PROGRAM,
    "kineto": kineto._PROGRAM,
    "tfevents": tfevents._PROGRAM,
    "crc32c": crc32c._build_crc32c_program(),
}
ARRAYS = {
    "protobuf": {
        decoder.SLOTS: decoder.FIELDS,
        decoder.COUNTS: 4 * decoder.MAX_SLOTS,
        decoder.WIRE_TYPES: 4 * decoder.MAX_SLOTS,
        decoder.SCRATCH: decoder.SCRATCH_BYTES,
        decoder.BUFFER: 0,
    },
    "tries": {tries._STATE: 4 * len(tries._NAMES), tries._INPUT: 0},
    "kineto": {
        kineto._KEYS: 16 * kineto._KEY_COUNT,
        kineto._STRING_TABLE: 4 << 16,
        kineto._STRING_HASHES: 8 << 16,
        kineto._STRING_STARTS: 4 << 16,
        kineto._STRING_SIZES: 4 << 16,
        kineto._CELLS: 8 * kineto.SLOTS * kineto.ROWS,
        kineto._TYPES: kineto.SLOTS * kineto.ROWS,
        kineto.INPUT: kineto.CAPACITY + kineto._SLACK,
        kineto._RANGES: 8 << 16,
        kineto._ENDS: 4 << 16,
        kineto._OUT: 0,
    },
    "tfevents": {
        tfevents._CRC_TABLES: 8192,
        tfevents._STARTS: 4 * tfevents.MAX_RECORDS,
        tfevents._SIZES: 4 * tfevents.MAX_RECORDS,
        tfevents._BUFFER: 0,
    },
    "crc32c": {crc32c._TABLES: 8192, crc32c._BUFFER: 0},
}
"""Offset and size in bytes of every array in the memory of a program."""
FIRST_SHARED = 256
"""Numbers from here on are offsets or limits; below are bytes, small counts and masks."""
ARITHMETIC = {0x3F80, 0x8087, 1000, 9_000_000_000_000_000, *range(1024, 7169, 1024), 256, 2048, 0x82F63B78, 0xA282EAD8}
"""Larger numbers that the text alone knows: bits of varints, decimal places, tables and constants of CRC-32C."""


def source(program: Program) -> str:
    text = "\n".join(resources.files(package).joinpath(name).read_text("utf-8") for package, name in program.files)
    return re.sub(r";;.*", "", text)


@pytest.mark.parametrize("name", PROGRAMS)
def test_constants_are_defined_in_python_alone(name: str) -> None:
    text = source(PROGRAMS[name])
    assert set(re.findall(r"offset=(\d\w*)", text)) <= {"1", "4", "8", "9", "12", "16", "24"}
    numbers = {int(number, 0) for number in re.findall(r"i32\.const (\d\w*)", text)}
    numbers |= {int(number, 0) for number in re.findall(r"i64\.const ([1-9][0-9]*)\b", text)}
    assert {n for n in numbers if n >= FIRST_SHARED} <= ARITHMETIC


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_constant_and_parameter_is_used(name: str) -> None:
    program = PROGRAMS[name]
    declared = {*program.constants, *(f"{f}.{p}" for f, names in program.parameters.items() for p in names)}
    assert set(re.findall(r"\{([\w.]+)\}", source(program))) == declared
    assert set(re.findall(r'\(export "(\w+)"\)', source(program))) == set(program.parameters)
    assert all(len(names) == len(set(names)) <= MAX_PARAMETERS for names in program.parameters.values())


@pytest.mark.parametrize("name", PROGRAMS)
def test_arrays_do_not_overlap(name: str) -> None:
    end = PARAMETERS + 4 * MAX_PARAMETERS
    for offset, size in ARRAYS[name].items():
        assert offset >= end
        assert offset % 8 == 0
        end = offset + size


def test_no_function_is_written_twice() -> None:
    bodies: dict[str, str] = {}
    for package, name in {file for program in PROGRAMS.values() for file in program.files}:
        text = re.sub(r"\s+", " ", re.sub(r";;.*", "", resources.files(package).joinpath(name).read_text("utf-8")))
        for function, rest in re.findall(r"\(func (\$\w+)(.*?)(?= \(func|$)", text):
            body = re.sub(r"\$\w+", "$", rest)
            assert body not in bodies, f"{function} and {bodies.get(body)}"
            bodies[body] = function


def test_a_name_that_is_not_defined() -> None:
    with pytest.raises(KeyError, match="CRC_TABLES"):
        Program((CRC32C,), {}, {}).build_text()


def test_unknown_parameters_are_an_error() -> None:
    sandbox = decoder.DecoderSandbox(0)
    with pytest.raises(TypeError, match=r"varints\(\) has no parameters \['row'\], only \['rows', "):
        sandbox.call("varints", row=1)


def test_parameters_left_out_are_zero_and_stay_without_any() -> None:
    sandbox = decoder.DecoderSandbox(8)
    sandbox.data[:2] = [0x08, 0x07]
    sandbox.call("varints", rows=1, offsets=decoder.SCRATCH, values=decoder.SCRATCH + 8, lengths=decoder.SCRATCH + 16)
    assert sandbox.parameter("varints", "limit") == 0
    assert sandbox.array(decoder.SCRATCH, 3, np.uint64).tolist() == [0, 8, 1]
    sandbox.array(decoder.SCRATCH, 3, np.uint64)[1:] = 0
    assert sandbox.call("varints") == 0
    assert sandbox.array(decoder.SCRATCH, 3, np.uint64).tolist() == [0, 8, 1]


def test_memory_outside_the_sandbox_cannot_be_read() -> None:
    sandbox = Sandbox(Program((CRC32C,), {"CRC_TABLES": 1024}, PROGRAMS["crc32c"].parameters), 1 << 16, ArithmeticError)
    assert sandbox.call("checksum", offset=(1 << 16) - 8, size=8)
    with pytest.raises(ArithmeticError):
        sandbox.call("checksum", offset=(1 << 16) - 7, size=8)
    with pytest.raises(ArithmeticError):
        sandbox.call("checksum", offset=0xFFFFFFFF, size=1)
