"""Metrics side by side: a row a launch, a column a metric."""

from __future__ import annotations

import polars as pl

from tracekit.errors import TracekitError

FREE_CELLS, CELLS_PER_VALUE = 1 << 22, 64
"""A wide table may have so many cells, and so many more for each value that stands in it."""
_OWN = ("launch_id", "metric", "label", "section", "value", "text", "resolution")


def wide(launches: pl.LazyFrame, metrics: pl.LazyFrame) -> pl.DataFrame:
    """Put the metrics of each launch beside it: n launches in, n rows out.

    Args:
        launches: ``ncu_launches``.
        metrics: ``ncu_metrics``.

    Returns:
        The columns of ``ncu_launches`` and one a metric, in the order in which they first occur. A column is called as
        its metric, where that is not known ``section: label``. It holds numbers in base units, of a metric without any
        its texts. Of several values that a launch has of a metric it is the most precise.

    Raises:
        TracekitError: Nearly all cells would be empty, and there would be many: most launches have few of the metrics.
    """
    told, best = launches.collect(), most_precise(metrics)
    kinds = best.group_by("column", maintain_order=True).agg(pl.col("value").is_not_null().any())
    _check_size(told.height, kinds.height, best.height)
    for values, columns in (("value", kinds.filter("value")), ("text", kinds.filter(~pl.col("value")))):
        some = best.filter(pl.col("column").is_in(columns["column"].implode()))
        told = told.join(pivoted(some, values), "launch_id", how="left", maintain_order="left")
    return told.select(*launches.collect_schema().names(), *kinds["column"])


def _check_size(launches: int, columns: int, values: int) -> None:
    """Check that a wide table is not much larger than the values in it."""
    if launches * columns > FREE_CELLS + CELLS_PER_VALUE * values:
        what = f"{launches} launches by {columns} metrics would be {launches * columns} cells for {values} values"
        raise TracekitError(what, hint="take the values as they are, one a row, from the table ncu_metrics")


def most_precise(metrics: pl.LazyFrame) -> pl.DataFrame:
    """Leave one value of each metric of each launch, the most precise one.

    Args:
        metrics: n rows of ``ncu_metrics``.

    Returns:
        At most n rows in the order of the file: launch_id, column (name of the metric, where that is not known
        ``section: label``), value, text, resolution.
    """
    label = pl.concat_str([pl.col("section").cast(pl.String), pl.col("label").cast(pl.String)], separator=": ")
    found = metrics.select(*_OWN).with_columns(
        column=pl.coalesce(pl.col("metric").cast(pl.String), label, pl.col("label").cast(pl.String))
    )
    return (
        found.drop_nulls("column")
        .select("launch_id", "column", "value", "text", "resolution")
        .with_row_index("row")
        .sort(pl.col("value").is_null(), "resolution", "row")
        .unique(["launch_id", "column"], keep="first", maintain_order=True)
        .sort("row")
        .collect()
    )


def pivoted(values: pl.DataFrame, column: str) -> pl.DataFrame:
    """Give each metric a column, in which its values of ``column`` stand: a row a launch that has any."""
    if not values.height:
        return pl.DataFrame(schema={"launch_id": pl.Int64})
    return values.pivot(on="column", index="launch_id", values=column)
