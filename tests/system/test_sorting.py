"""Sorting and grouping in blocks, against sorting in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.helpers import small_blocks
from tracekit import TracekitError
from tracekit.system import memory, sorting

if TYPE_CHECKING:
    from pathlib import Path

NUMBERS = st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=40), st.integers(1, 50), st.integers(1, 2))
@example([(0, 0), (0, 1), (0, 0), (1, 0)], 1, 2)
@example([(0, 1), (0, 0), (0, 1)], 2, 2)
def test_rows_are_sorted_and_equal_rows_keep_their_order(rows: list[tuple[int, int]], size: int, keys: int) -> None:
    columns = [np.array([row[n] for row in rows], np.int64) for n in range(keys)]
    expected = sorted(range(len(rows)), key=lambda n: rows[n][:keys])
    with small_blocks(size):
        order, ordered = sorting.sort_rows(*columns)
        assert sorting.is_sorted(*columns) == (order is None) == (expected == list(range(len(rows))))
    assert (expected if order is None else order.tolist()) == expected
    assert [key.tolist() for key in ordered] == [key[expected].tolist() for key in columns]


@given(st.lists(st.integers(0, 5), max_size=40), st.integers(1, 50), st.sampled_from([np.uint8, np.int64]))
def test_rows_of_a_group_keep_their_order(groups: list[int], size: int, dtype: type) -> None:
    numbers = np.array(groups, dtype)
    with small_blocks(size):
        grouped = sorting.group_row_numbers(lambda block: numbers[block], len(groups), 6)
    rows = [grouped.order[start:stop].tolist() for start, stop in zip(grouped.starts, grouped.starts[1:], strict=False)]
    assert rows == [[n for n, group in enumerate(groups) if group == chosen] for chosen in range(6)]


def test_row_numbers_have_the_smallest_type() -> None:
    assert sorting.choose_row_number_type(1 << 32) == np.uint32
    assert sorting.choose_row_number_type((1 << 32) + 1) == np.int64


def test_large_arrays_are_in_files_without_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with memory.limit_memory(0):
        array = memory.allocate_zeros(3, np.int64)
        assert not memory.allocate_zeros(0, np.int64).size
    array[1] = 7
    assert memory.drop_mapped_pages()
    assert array.tolist() == [0, 7, 0]
    assert list(tmp_path.iterdir()) == []


def test_spilled_arrays_are_equal_and_in_files_without_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    arrays = [
        np.arange(5, dtype=np.uint32),
        np.zeros(0, np.uint16),
        np.arange(7, dtype=np.int64)[::2],
        np.ones(1, "u2"),
    ]
    spilled = memory.spill_arrays(*arrays)
    assert memory.drop_mapped_pages()
    assert [(a.dtype, a.tolist()) for a in spilled] == [(a.dtype, a.tolist()) for a in arrays]
    assert not any(a.flags.writeable for a in spilled)
    assert [a.size for a in memory.spill_arrays(*(a[:0] for a in arrays))] == [0] * len(arrays)
    assert list(tmp_path.iterdir()) == []


def test_series_of_numbers_and_booleans() -> None:
    for array in (np.arange(9)[::2], np.arange(11) % 3 == 0, np.zeros(0, np.bool_)):
        assert sorting.create_series(array).to_list() == array.tolist()


def test_arrays_cannot_be_spilled_to_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", fail)
    with pytest.raises(TracekitError, match="temporary files cannot be written: No space left"):
        memory.spill_arrays(np.zeros(1))


def test_a_system_may_lack_the_function_that_reserves_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.posix_fallocate", raising=False)
    with memory.limit_memory(0):
        assert memory.allocate_zeros(2, np.int32).tolist() == [0, 0]


def test_a_full_disk_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", fail, raising=False)
    with memory.limit_memory(0), pytest.raises(TracekitError, match="temporary files cannot be written: No space left"):
        memory.allocate_zeros(2, np.int32)


@given(st.lists(NUMBERS, max_size=40))
def test_distinct_values_are_sorted(numbers: list[int]) -> None:
    assert sorting.sort_and_deduplicate(np.array(numbers, np.int64)).tolist() == sorted(set(numbers))
