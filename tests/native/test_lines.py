"""Lines of text that the program in C writes are those of a plain implementation, and JSON strings can be parsed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tracekit.native import lines
from tracekit.native.lines import LineField, LineWriter

INT64 = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-1001, 1001) | st.sampled_from([10**n for n in range(19)])
HOSTILE = st.sampled_from(
    ["", '"', "\\", "\0", "\x1f", "\x7f", "\n\r\t", "\u2028\u2029", "\u2027\u202a", "€", "x" * 40]
)
TEXT = st.lists(st.text() | HOSTILE, max_size=6).map("".join)
ESCAPES = {chr(code): f"\\u{code:04x}" for code in (*range(0x20), 0x7F, 0x2028, 0x2029)}
ESCAPES |= {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


@pytest.fixture(scope="module")
def writer() -> LineWriter:
    return LineWriter()


def text_of(form: int, value: Any) -> str:
    """A value as the program is to write it."""
    if form == lines.THOUSANDTHS:
        return f"{'-' if value < 0 else ''}{abs(value) // 1000}.{abs(value) % 1000:03}"
    if form == lines.STRING:
        return '"' + "".join(ESCAPES.get(c, c) for c in value) + '"'
    return "" if form == lines.CONSTANT else str(value % (1 << 64) if form == lines.UNSIGNED else value)


def column(form: int, values: list[Any]) -> dict[str, Any]:
    """The values as the arguments of a field. Strings are told apart by codes, in any order."""
    valid = np.array([v is not None for v in values], np.bool_)
    if form in (lines.STRING, lines.TEXT):
        strings = sorted({v for v in values if v is not None})
        codes = [lines.NONE if v is None else strings.index(v) for v in values]
        return {"values": np.array(codes, np.uint32), "strings": pa.array(strings, pa.large_string())}
    masked = None if valid.all() and len(values) % 2 else valid
    if form == lines.CONSTANT:
        return {"is_valid": masked}
    return {"values": np.array([v or 0 for v in values], np.int64), "is_valid": masked}


@st.composite
def tables(draw: st.DrawFn) -> tuple[int, list[tuple[LineField, list[Any]]]]:
    """The number of rows, and fields with their values."""
    rows = draw(st.integers(0, 20))
    fields = []
    for _ in range(draw(st.integers(0, 8))):
        form = draw(st.sampled_from(range(6)))
        value = TEXT if form in (lines.STRING, lines.TEXT) else INT64
        values = draw(st.lists(st.none() | value, min_size=rows, max_size=rows))
        lead = draw(st.text(max_size=40)).encode()
        fields.append((LineField(form, lead, **column(form, values), alternatives=0), values))
    for n in reversed(range(len(fields))):
        fields[n] = fields[n][0]._replace(alternatives=draw(st.integers(0, len(fields) - 1 - n))), fields[n][1]
    return rows, fields


@settings(max_examples=100)
@given(tables())
def test_lines_are_those_of_a_plain_implementation(
    writer: LineWriter, table: tuple[int, list[tuple[LineField, list[Any]]]]
) -> None:
    rows, fields = table
    expected = ""
    for row in range(rows):
        n = 0
        while n < len(fields):
            field, values = fields[n]
            is_null = values[row] is None and (field.strings is not None or field.is_valid is not None)
            value = values[row] if field.strings is not None else values[row] or 0
            expected += "" if is_null else field.lead.decode() + text_of(field.form, value)
            n += 1 if is_null else 1 + field.alternatives
    assert bytes(writer.write([field for field, _ in fields], rows)).decode() == expected


@given(st.lists(TEXT, min_size=1, max_size=40))
def test_strings_can_be_parsed_as_json(writer: LineWriter, values: list[str]) -> None:
    field = LineField(lines.STRING, b",", **column(lines.STRING, values))
    assert json.loads(b"[0" + bytes(writer.write([field], len(values))) + b"]") == [0, *values]


def test_lines_that_do_not_fit_into_the_output_are_written_later() -> None:
    values = ["\1" * 100_000, "", "é" * 5_000_000, "\x7f" * 1_000_000]
    fields = [
        LineField(lines.TEXT, b"[", **column(lines.TEXT, values)),
        LineField(lines.STRING, b":", **column(4, values)),
    ]
    text = bytes(LineWriter().write(fields, len(values))).decode()
    assert text == "".join(f"[{v}:{text_of(lines.STRING, v)}" for v in values)


def test_values_outside_of_their_arrays_are_an_error() -> None:
    field = LineField(lines.STRING, b"", np.array([1], np.uint32), pa.array(["a"], pa.large_string()))
    for broken in (field, field._replace(strings=pa.array([], pa.large_string())), field._replace(alternatives=-1)):
        with pytest.raises(ValueError, match="lies outside of its array"):
            LineWriter().write([broken], 1)
