"""Compare the computed operations of 173 calls with those that the hardware counters of an H200 measured."""

from __future__ import annotations

import polars as pl
import pytest
from tests.builders.counted_work import TABLES, TOLERANCES, compute_cases, read_counted


@pytest.mark.parametrize("table", TABLES)
def test_operations_equal_hardware_counters(table: str) -> None:
    counted = read_counted(table)
    cases = counted.filter(pl.col("family").is_in(list(TOLERANCES)))
    cases = cases.join(compute_cases(table), on="case", how="left", suffix="_computed")
    assert cases["flop"].to_list() == cases["computed_flop"].to_list(), "write the column anew and look at the change"
    assert cases["type_computed"].to_list() == [[t] for t in cases["type"]]
    difference = (pl.col("flop") / pl.col("counted_flop") - 1).abs()
    tolerance = pl.col("family").replace_strict(TOLERANCES, return_dtype=pl.Float64)
    differs = cases.filter(difference > tolerance)
    assert differs["case"].to_list() == cases.filter(pl.col("reason").is_not_null())["case"].to_list()
    same = cases.filter(pl.col("reason").is_null())
    assert abs(same["flop"].sum() / same["counted_flop"].sum() - 1) < 0.04
