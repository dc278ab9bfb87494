"""Metrics side by side: every value of the long table is in its place."""

from __future__ import annotations

import polars as pl
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.ncu_csv import FOLDER
from tracekit import schemas
from tracekit.core import ncu

METRIC = {
    "launch_id": 0,
    "metric": None,
    "label": None,
    "section": None,
    "value": None,
    "text": None,
    "resolution": None,
}


def wide(launches: int, *metrics: dict[str, object]) -> pl.DataFrame:
    """The wide view of some metrics of n launches."""
    own = {c: t for c, t in schemas.polars_schema(schemas.table("ncu_metrics")).items() if c in METRIC}
    long = pl.DataFrame([METRIC | m for m in metrics], own)
    return ncu.add_metric_columns(pl.LazyFrame({"launch_id": range(launches), "name": "k"}), long.lazy())


def test_a_row_a_launch_and_a_column_a_metric() -> None:
    found = wide(
        3,
        {"launch_id": 1, "metric": "b", "value": 1.0},
        {"launch_id": 2, "metric": "a", "value": 2.0, "resolution": 0.1},
        {"launch_id": 1, "metric": "policy", "text": "all"},
        {"launch_id": 2, "metric": "b", "text": "n/a (1; 2)"},
    )
    assert found.columns == ["launch_id", "name", "b", "a", "policy"]
    assert found.rows() == [(0, "k", None, None, None), (1, "k", 1.0, None, "all"), (2, "k", None, 2.0, None)]


def test_the_most_precise_of_several() -> None:
    found = wide(
        1,
        {"metric": "a", "value": 2370.0, "resolution": 10.0, "section": "s", "label": "Duration"},
        {"metric": "a", "text": "x"},
        {"metric": "a", "value": 2368.0, "resolution": 0.01},
        {"metric": "a", "value": 2368.5},
    )
    assert found.rows() == [(0, "k", 2368.5)]


def test_columns_of_unknown_metrics_are_called_by_section_and_label() -> None:
    found = wide(
        1,
        {"section": "s", "label": "l", "value": 1.0},
        {"label": "l", "value": 2.0},
        {"section": "t", "label": "l", "value": 3.0},
        {"value": 4.0},
    )
    assert found.to_dicts() == [{"launch_id": 0, "name": "k", "s: l": 1.0, "l": 2.0, "t: l": 3.0}]


def test_without_metrics() -> None:
    assert wide(2).rows() == [(0, "k"), (1, "k")]


@given(st.dictionaries(st.tuples(st.integers(0, 4), st.sampled_from("abcde")), st.floats(allow_nan=False), max_size=12))
def test_every_value_is_in_its_place(values: dict[tuple[int, str], float]) -> None:
    found = wide(5, *({"launch_id": i, "metric": m, "value": v} for (i, m), v in values.items()))
    assert found.height == 5
    for row in found.iter_rows(named=True):
        assert {m: v for m, v in row.items() if m in "abcde" and v is not None} == {
            m: v for (i, m), v in values.items() if i == row["launch_id"]
        }


@pytest.mark.parametrize("name", ["ncu_details.csv", "ncu_raw.csv", "ncu_per_kernel.csv"])
def test_the_wide_view_holds_what_the_captures_hold(name: str) -> None:
    with tk.load(FOLDER / name) as trace:
        found, long = trace.wide(), trace.frame("ncu_metrics").collect()
        assert found.height == trace.count("ncu_launches")
    own = [c for c in found.columns if c not in schemas.table("ncu_launches").names]
    assert set(own) == set(long["metric"].drop_nulls().cast(pl.String))
    filled = sum(found[c].drop_nulls().len() for c in own)
    told = long.filter(pl.col("value").is_not_null() | pl.col("text").is_not_null())
    assert filled == told.select("launch_id", "metric").unique().height
