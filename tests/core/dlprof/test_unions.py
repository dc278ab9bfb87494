"""Unions of many groups at once are those of the interval algebra."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from tracekit.core import intervals
from tracekit.core.rollup import unions

times = st.integers(0, 20) | st.sampled_from([-(1 << 61), 1 << 61])
rows = st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 1), times, times), max_size=10)


@given(rows)
def test_merged_as_by_the_algebra(found: list) -> None:
    schema = {"a": pl.Int64, "b": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64}
    frame = pl.DataFrame(found, schema=schema, orient="row")
    made = unions.merge(frame, by=["a", "b"])
    expected = intervals.merge(frame, by=["a", "b"])
    assert made.schema == expected.schema
    assert made.rows() == expected.rows()
