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
    made = builders.create_column_builder(parts[0].type, 3)
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
        patch.setattr(builders, "has_mostly_distinct_strings", lambda *_: True)
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


NUMBERS = pa.array([1, None, 3], pa.int32())
LETTERS = pa.array(["a", None, "b"]).dictionary_encode()


@pytest.mark.parametrize(
    "array", [NUMBERS, NUMBERS.cast(pa.float64()), LETTERS, pa.array(["x", None]), pa.array([True])]
)
def test_concatenated_chunks_are_all_values(array: pa.Array) -> None:
    nothing = columns.build_null_array(2, array.type)
    chunks = [array, nothing, array.slice(1), array.slice(0, 0)]
    made = builders.concatenate(chunks, array.type)
    assert made.type == array.type
    assert made.to_pylist() == [value for chunk in chunks for value in chunk.to_pylist()]


@pytest.mark.parametrize("kind", [pa.int32(), pa.float64(), columns.DICTIONARY, pa.string(), pa.bool_()])
def test_nulls_share_their_memory(kind: pa.DataType) -> None:
    before = pa.total_allocated_bytes()
    made = builders.concatenate([columns.build_null_array(n, kind) for n in (3_000_000, 1)], kind)
    made.validate(full=True)
    assert pa.total_allocated_bytes() - before < 1000
    assert made.null_count == len(made) == 3_000_001
    assert made.type == kind


def test_chunks_of_different_widths() -> None:
    builder = builders.ChunkBuilder()
    for batch in ([1], [], [1 << 40], [2]):
        builder.append({"a": pa.array(batch, pa.int64() if 1 << 40 in batch else pa.int32())})
    made = builder.finish()
    assert made["a"].type == pa.int64()
    assert made["a"].to_pylist() == [1, 1 << 40, 2]


def test_chunks_without_rows() -> None:
    builder = builders.ChunkBuilder()
    for _ in range(3):
        builder.append({"a": pa.chunked_array([], pa.int32())})
    assert builder.finish()["a"].to_pylist() == []
