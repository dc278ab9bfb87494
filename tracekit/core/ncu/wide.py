"""Pivot Nsight Compute metrics into a table with one row per launch and one column per metric."""

from __future__ import annotations

import polars as pl

from tracekit.errors import TracekitError

FREE_CELLS, CELLS_PER_VALUE = 1 << 22, 64
"""A wide table may have FREE_CELLS cells, and CELLS_PER_VALUE further cells for each value."""
_COLUMNS = ("launch_id", "metric", "label", "section", "value", "text", "resolution")


def add_metric_columns(launches: pl.LazyFrame, metrics: pl.LazyFrame) -> pl.DataFrame:
    """Add one column per metric to the table of launches.

    Args:
        launches: The table ``ncu_launches``.
        metrics: The table ``ncu_metrics``.

    Returns:
        One row per launch, with the columns of ``ncu_launches`` and one column per metric, in the order in which
        metrics first occur. A column is named after its metric, or ``section: label`` if the metric is unknown. It
        contains numbers in base units, or strings if the metric has no numbers. If a launch has several values of a
        metric, the most precise one is used.

    Raises:
        TracekitError: The table would have too many empty cells, because most launches have only a few of the metrics.
    """
    rows, best = launches.collect(), select_most_precise_values(metrics)
    kinds = best.group_by("column", maintain_order=True).agg(pl.col("value").is_not_null().any())
    _check_table_size(rows.height, kinds.height, best.height)
    for values, columns in (("value", kinds.filter("value")), ("text", kinds.filter(~pl.col("value")))):
        selected = best.filter(pl.col("column").is_in(columns["column"].implode()))
        rows = rows.join(pivot_values(selected, values), "launch_id", how="left", maintain_order="left")
    return rows.select(*launches.collect_schema().names(), *kinds["column"])


def _check_table_size(launch_count: int, column_count: int, value_count: int) -> None:
    """Raise an error if a wide table would be too large because most of its cells are empty."""
    cell_count = launch_count * column_count
    if cell_count > FREE_CELLS + CELLS_PER_VALUE * value_count:
        need = f"{launch_count:,} launches with {column_count:,} metrics need {cell_count:,} cells"
        raise TracekitError(
            f"the table with one column per metric is too large: {need} for {value_count:,} values",
            hint="read the table ncu_metrics, which has one row per value",
        )


def select_most_precise_values(metrics: pl.LazyFrame) -> pl.DataFrame:
    """Return the most precise value of each metric of each launch.

    Args:
        metrics: Rows of the table ``ncu_metrics``.

    Returns:
        One row per launch and metric, in file order: ``launch_id``, ``column``, ``value``, ``text``, ``resolution``.
        ``column`` is the name of the metric, or ``section: label`` if the metric is unknown.
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
    """Pivot one column of values into a frame with one row per launch that has a value, and one column per metric."""
    if not values.height:
        return pl.DataFrame(schema={"launch_id": pl.Int64})
    return values.pivot(on="column", index="launch_id", values=column)
