"""The recipe ``diff``, against what nsys wrote, and its rules for other tables."""

from __future__ import annotations

import polars as pl
import pytest
from tests.conftest import SHARED
from tracekit.core.compare.recipe import subtract_statistics
from tracekit.errors import MissingTableError, SchemaError

RECIPES = SHARED / "captures" / "h200_more" / "recipes" / "diff"


@pytest.mark.skipif(not RECIPES.is_dir(), reason="the outputs of nsys are not beside the checkout")
def test_output_of_nsys() -> None:
    a, b, expected = (
        {file.stem: pl.read_parquet(file) for file in sorted((RECIPES / name).glob("*.parquet"))}
        for name in ("kdl", "kpy", "diff_dl")
    )
    tables = subtract_statistics(a, b)
    assert tables.keys() == expected.keys() == {"all_stats", "files", "rank_stats"}
    for name, frame in expected.items():
        assert tables[name].equals(frame), name
        assert tables[name].schema == frame.schema


def stats(*rows: tuple[int, str, int, float]) -> pl.DataFrame:
    return pl.DataFrame(
        rows, schema={"Rank": pl.Int64, "Name": pl.String, "Count": pl.Int64, "Mean": pl.Float64}, orient="row"
    )


def test_rows_of_one_side() -> None:
    a = stats((0, "k", 5, 2.5), (1, "k", 3, 1.0), (0, "only a", 1, 9.0))
    b = stats((1, "k", 4, 0.5), (0, "k", 5, 1.0), (0, "a only b", 2, 3.0))
    table = subtract_statistics({"rank_stats": a}, {"rank_stats": b})["rank_stats"]
    assert table.columns == ["Rank", "Count", "Mean", "Name"]
    assert table.rows() == [(0, -2, -3.0, "a only b"), (0, 0, 1.5, "k"), (1, -1, 0.5, "k"), (0, 1, 9.0, "only a")]


def test_tables_that_cannot_be_compared() -> None:
    a = stats((0, "k", 5, 2.5))
    with pytest.raises(
        MissingTableError, match="the outputs of the two jobs have neither the table rank_stats nor the table all_stats"
    ):
        subtract_statistics({"rank_stats": a}, {"all_stats": a})
    with pytest.raises(SchemaError, match="table rank_stats does not have the same columns in both outputs"):
        subtract_statistics({"rank_stats": a}, {"rank_stats": a.drop("Mean")})
    with pytest.raises(SchemaError, match="two rows with the same Rank and Name"):
        subtract_statistics({"rank_stats": a}, {"rank_stats": pl.concat([a, a])})
    unnamed = {"rank_stats": a.rename({"Name": "Metric Name"})}
    with pytest.raises(SchemaError, match="rank_stats has no column 'Name'"):
        subtract_statistics(unnamed, unnamed)
