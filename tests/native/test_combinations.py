"""Combinations of numbers get codes in the order of their first rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracekit.native.combinations import CombinationFinder

NUMBER = st.integers(-2, 2) | st.sampled_from([-(1 << 63), (1 << 63) - 1])


@pytest.fixture(scope="module")
def finder() -> CombinationFinder:
    return CombinationFinder()


@given(st.integers(1, 4).flatmap(lambda columns: st.lists(st.tuples(*[NUMBER] * columns), min_size=1, max_size=60)))
def test_codes_are_those_of_a_dictionary(finder: CombinationFinder, rows: list[tuple[int, ...]]) -> None:
    codes = {}
    expected = [codes.setdefault(row, len(codes)) for row in rows]
    found = finder.find([np.array(column, np.int64) for column in zip(*rows, strict=True)])
    assert found.codes.tolist() == expected
    assert found.first_rows.tolist() == [rows.index(row) for row in codes]


def test_many_rows_without_repetition() -> None:
    numbers = np.arange(300_000) * (1 << 40)
    found = CombinationFinder().find([numbers, -numbers])
    assert (found.codes == np.arange(300_000)).all()
    assert (found.first_rows == np.arange(300_000)).all()
    assert not len(CombinationFinder().find([numbers[:0]]).first_rows)
