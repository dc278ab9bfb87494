"""Numbering of tracks, against a dictionary."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from tracekit.exporters.timeline import layout

SMALL = st.none() | st.integers(-3, 3)
LARGE = st.none() | st.integers(-(2**63), 2**63 - 1)
MIDDLE = st.none() | st.integers(0, 2**30)
TEXT = st.none() | st.sampled_from(["", "a", "NCCL"])


@given(st.lists(st.tuples(SMALL, LARGE, TEXT, MIDDLE, MIDDLE, MIDDLE), max_size=20))
def test_equal_keys_get_equal_numbers_and_others_others(rows: list[tuple[int | str | None, ...]]) -> None:
    types = [pl.Int32, pl.Int64, pl.Categorical, pl.Int64, pl.UInt32, pl.Int64]
    keys = pl.DataFrame(rows, schema=[(f"key_{n}", t) for n, t in enumerate(types)], orient="row")
    numbers = layout._combination_codes(keys).to_list()
    assert len(numbers) == len(rows)
    assert len(set(zip(rows, numbers, strict=True))) == len(set(rows)) == len(set(numbers))
