"""Columns put together of slices are the slices, one behind the other."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracekit.readers.common import builders, columns

NAMES = st.lists(st.none() | st.sampled_from("abcdefg"), max_size=12)
CELLS = st.none() | st.integers(-3, 3)


def joined(parts: list[pa.Array]) -> pa.ChunkedArray:
    made = builders.column_builder(parts[0].type, 3)
    for part in parts:
        made.append(part)
    return made.finish()


@given(st.lists(NAMES, min_size=1, max_size=6))
def test_names(parts: list[list[str | None]]) -> None:
    column = joined([pa.array(part, pa.string()).dictionary_encode() for part in parts])
    assert column.to_pylist() == [name for part in parts for name in part]
    (whole,) = column.chunks
    whole.validate(full=True)
    assert whole.dictionary.to_pylist() == list(dict.fromkeys(n for part in parts for n in part if n is not None))


@given(st.lists(NAMES, min_size=1, max_size=6))
def test_names_few_of_which_are_alike(parts: list[list[str | None]]) -> None:
    slices = [pa.array(part, pa.string()).dictionary_encode() for part in parts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builders, "is_mostly_unique", lambda *_: True)
        column = joined(slices)
    assert column.equals(pa.chunked_array(slices))
    column.validate(full=True)


@given(st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=30), st.integers(1, 3))
def test_number_rows(rows: list[tuple[int | None, ...]], width: int) -> None:
    cut = [row[:width] for row in rows]
    numbers, found = columns.encode_rows(*(pa.array([row[i] for row in cut], pa.int64()) for i in range(width)))
    assert found == list(dict.fromkeys(cut))
    assert [found[number] for number in numbers.to_pylist()] == cut


def test_names_are_repaired_and_counted_by_row() -> None:
    raw = pa.array([b"ok", b"\xff", b"\xfe", b"\xff", None, b"ok"]).dictionary_encode()
    made, repaired = columns.convert_column(raw, columns.DICTIONARY)
    assert made.type == columns.DICTIONARY
    assert made.to_pylist() == ["ok", "�", "�", "�", None, "ok"]
    assert made.dictionary.to_pylist() == ["ok", "�"]
    assert repaired == 3
