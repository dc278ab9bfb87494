"""Pivot the metrics of Nsight Compute: one row per launch, one column per metric."""

from __future__ import annotations

import polars as pl

from tracekit.errors import TracekitError

FREE_CELLS, CELLS_PER_VALUE = 1 << 22, 64
"""A wide table has at most FREE_CELLS cells, plus CELLS_PER_VALUE for each value."""
_COLUMNS = ("launch_id", "metric", "label", "section", "value", "text", "resolution")


def wide_metrics(launches: pl.LazyFrame, metrics: pl.LazyFrame) -> pl.DataFrame:
    """Add one column per metric to the launches: n launches in, n rows out.

    Args:
        launches: ``ncu_launches``.
        metrics: ``ncu_metrics``.

    Returns:
        The columns of ``ncu_launches`` and one column per metric, in the order in which metrics first occur. A column
        is named after its metric, or ``section: label`` if the metric is unknown. It holds numbers in base units, or
        strings if the metric has no numbers. If a launch has several values of a metric, the most precise is used.

    Raises:
        TracekitError: The table would be very large and nearly empty, because most launches have few of the metrics.
    """
    rows, best = launches.collect(), most_precise_values(metrics)
    kinds = best.group_by("column", maintain_order=True).agg(pl.col("value").is_not_null().any())
    _check_size(rows.height, kinds.height, best.height)
    for values, columns in (("value", kinds.filter("value")), ("text", kinds.filter(~pl.col("value")))):
        selected = best.filter(pl.col("column").is_in(columns["column"].implode()))
        rows = rows.join(pivot_values(selected, values), "launch_id", how="left", maintain_order="left")
    return rows.select(*launches.collect_schema().names(), *kinds["column"])


def _check_size(launches: int, columns: int, values: int) -> None:
    """Raise an error if a wide table would be large and nearly empty."""
    if launches * columns > FREE_CELLS + CELLS_PER_VALUE * values:
        sizes = f"{launches} launches with {columns} metrics need {launches * columns} cells for {values} values"
        raise TracekitError(
            f"wide table too large: {sizes}", hint="read the table ncu_metrics, which has one row per value"
        )


def most_precise_values(metrics: pl.LazyFrame) -> pl.DataFrame:
    """Return the most precise value of each metric of each launch.

    Args:
        metrics: n rows of ``ncu_metrics``.

    Returns:
        At most n rows in file order: launch_id, column (name of the metric, or ``section: label`` if it is unknown),
        value, text, resolution.
    """
    label = pl.concat_str([pl.col("section").cast(pl.String), pl.col("label").cast(pl.String)], separator=": ")
    rows = metrics.select(*_COLUMNS).with_columns(
        column=pl.coalesce(pl.col("metric").cast(pl.String), label, pl.col("label").cast(pl.String))
    )
    return (
        rows.drop_nulls("column")
        .select("launch_id", "column", "value", "text", "resolution")
        .with_row_index("row")
        .sort(pl.col("value").is_null(), "resolution", "row")
        .unique(["launch_id", "column"], keep="first", maintain_order=True)
        .sort("row")
        .collect()
    )


def pivot_values(values: pl.DataFrame, column: str) -> pl.DataFrame:
    """Pivot ``column`` of the values: one column per metric, one row per launch that has any value."""
    if not values.height:
        return pl.DataFrame(schema={"launch_id": pl.Int64})
    return values.pivot(on="column", index="launch_id", values=column)
