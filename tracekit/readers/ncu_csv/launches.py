"""Identify the launches that CSV rows describe, and build the tables ``ncu_launches`` and ``ncu_nvtx_ranges``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.readers.ncu import nvtx

if TYPE_CHECKING:
    from tracekit.readers.ncu_csv.numbers import NumberStyle

_GROUP_COLUMNS = ("name", "block", "grid", "device_id", "cc", "domain", "ranges", "invocations")
_MONTH_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTHS = {name: f"{number:02}" for number, name in enumerate(_MONTH_NAMES, start=1)}


def assign_launch_ids(runs: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
    """Assign a launch id to each launch or group of launches, and to each run of rows.

    Runs with equal identifying columns belong to the same launch or group.

    Args:
        runs: One row per run, in file order. A run consists of consecutive rows of the same launch or group.

    Returns:
        A frame with the first run of each launch or group and its ``launch_id``, and a series with the ``launch_id`` of
        every run.
    """
    group = pl.col("scope") != "launch"
    keys = runs.select(
        "scope",
        "number",
        "process_id",
        "source_id",
        *(pl.when(group).then(pl.col(c)).alias(c) for c in _GROUP_COLUMNS),
    )
    names = keys.unique(keep="first", maintain_order=True).with_row_index("launch_id")
    names = names.with_columns(pl.col("launch_id").cast(pl.Int64))
    launch_ids_by_run = keys.join(names, on=keys.columns, how="left", maintain_order="left", nulls_equal=True)[
        "launch_id"
    ]
    return runs.with_columns(launch_ids_by_run).filter(launch_ids_by_run.is_first_distinct()), launch_ids_by_run


def convert_launch_columns(launches: pl.DataFrame, style: NumberStyle) -> pl.DataFrame:
    """Convert the cells that describe launches to columns of ``ncu_launches``, with one row per launch."""
    group = pl.col("scope") != "launch"
    count = pl.col("invocations").str.replace_all(style.thousands, "").cast(pl.Int64, strict=False)
    has_grid = pl.col("grid").str.contains(r"\d")
    range_kind = pl.col("name").str.extract(r"(?:^|/)(range|graph)$")  # a graph may have the size of one of its nodes
    kind = pl.when(group).then(pl.lit("group")).when(pl.col("name") == "graph").then(pl.lit("graph")).when(has_grid)
    return launches.select(
        "launch_id",
        pl.col("source_id").cast(pl.Int64, strict=False),
        kind.then(pl.lit("kernel")).otherwise(range_kind.fill_null("kernel")).alias("kind"),
        pl.when(group).then(count).otherwise(1).fill_null(1).alias("invocations"),
        pl.col("process_id").cast(pl.Int64, strict=False),
        nvtx.thread_id_expr(pl.col("push_pop")).alias("thread_id"),
        pl.col("device_id").cast(pl.Int32, strict=False),
        pl.col("context_id").cast(pl.Int64, strict=False),
        pl.col("stream_id").cast(pl.Int64, strict=False),
        pl.col("name").replace("", None),
        *_dimension_exprs("grid"),
        *_dimension_exprs("block"),
        *_create_compute_capability_exprs(),
        iso_timestamp_expr(pl.col("created_local")).alias("created_local"),
    )


def parse_nvtx_ranges(launches: pl.DataFrame) -> pl.DataFrame:
    """Parse the NVTX cells of launches into rows of ``ncu_nvtx_ranges``."""
    frames = []
    for column, cell_kind in (("push_pop", nvtx.PUSH_POP), ("start_end", nvtx.START_END), ("ranges", nvtx.SUMMARY)):
        cells = launches.select("launch_id", nvtx_domain="domain", text=column).filter(pl.col("text") != "")
        ranges = nvtx.parse_nvtx_cells(cells, cell_kind)
        if cell_kind == nvtx.SUMMARY:
            ranges = ranges.with_columns(domain=pl.col("nvtx_domain").replace([nvtx.DEFAULT_DOMAIN, ""], None))
        frames.append(ranges.drop("nvtx_domain"))
    return pl.concat(frames).sort("launch_id", "kind", "depth", maintain_order=True)


def name_without_range_expr(name: pl.Expr, range_name: pl.Expr) -> pl.Expr:
    """Return an expression for kernel names without the range name that ``--print-nvtx-rename`` puts before them."""
    prefix = pl.concat_str(range_name, pl.lit("/"))
    renamed = name.str.starts_with(prefix).fill_null(value=False)
    return pl.when(renamed).then(name.str.slice(prefix.str.len_chars())).otherwise(name)


def _dimension_exprs(column: str) -> list[pl.Expr]:
    """Return expressions for the x, y and z sizes in strings such as ``(128, 1, 1)``. Omitted sizes are 1."""
    numbers = pl.col(column).str.extract_all(r"\d+")
    sizes = [numbers.list.get(i, null_on_oob=True).cast(pl.Int32, strict=False) for i in range(3)]
    has_any = numbers.list.len() > 0
    return [
        pl.when(has_any & (numbers.list.len() <= i)).then(1).otherwise(size).alias(f"{column}_{axis}")
        for i, (size, axis) in enumerate(zip(sizes, "xyz", strict=True))
    ]


def _create_compute_capability_exprs() -> list[pl.Expr]:
    parts = pl.col("cc").str.extract_groups(r"^(\d+)[.,](\d+)$").struct
    return [
        parts[i].cast(pl.Int32, strict=False).alias(name) for i, name in enumerate(("compute_major", "compute_minor"))
    ]


def iso_timestamp_expr(time: pl.Expr) -> pl.Expr:
    """Return an expression that converts times such as ``2020-Apr-07 17:01:05`` to ISO 8601.

    Strings in any other format become null.
    """
    parts = time.str.extract_groups(r"^(\d{4})-([A-Z][a-z]{2})-(\d{2}) (\d{2}:\d{2}:\d{2})$").struct
    month = parts[1].replace_strict(_MONTHS, default=None, return_dtype=pl.String)
    day = pl.concat_str(parts[0], month, parts[2], separator="-")
    return pl.concat_str(day, parts[3], separator="T")
