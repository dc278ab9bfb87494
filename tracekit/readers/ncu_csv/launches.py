"""Launches of a CSV: cells that tell what rows are about, as columns of ``ncu_launches`` and ``ncu_nvtx_ranges``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.readers.ncu import nvtx

if TYPE_CHECKING:
    from tracekit.readers.ncu_csv.numbers import Style

_GROUP = ("name", "block", "grid", "device_id", "cc", "domain", "ranges", "invocations")
_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTHS = {name: f"{number:02}" for number, name in enumerate(_NAMES, start=1)}


def numbered(runs: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
    """Find the launches: runs that name the same one are one launch, or group of launches.

    Args:
        runs: A row a run, as the file has them.

    Returns:
        A row a launch, the first of its runs, with ``launch_id``; and the launch of each run.
    """
    group = pl.col("scope") != "launch"
    keys = runs.select(
        "scope",
        "number",
        "process_id",
        "source_id",
        *(pl.when(group).then(pl.col(c)).alias(c) for c in _GROUP),
    )
    names = keys.unique(keep="first", maintain_order=True).with_row_index("launch_id")
    names = names.with_columns(pl.col("launch_id").cast(pl.Int64))
    of_run = keys.join(names, on=keys.columns, how="left", maintain_order="left", nulls_equal=True)["launch_id"]
    return runs.with_columns(of_run).filter(of_run.is_first_distinct()), of_run


def typed(launches: pl.DataFrame, style: Style) -> pl.DataFrame:
    """Give cells the types of ``ncu_launches``: n launches in, n rows out."""
    group = pl.col("scope") != "launch"
    count = pl.col("invocations").str.replace_all(style.thousands, "").cast(pl.Int64, strict=False)
    sized = pl.col("grid").str.contains(r"\d")
    whole = pl.col("name").str.extract(r"(?:^|/)(range|graph)$")  # a graph may have the size of one of its nodes
    kind = pl.when(group).then(pl.lit("group")).when(pl.col("name") == "graph").then(pl.lit("graph")).when(sized)
    return launches.select(
        "launch_id",
        pl.col("source_id").cast(pl.Int64, strict=False),
        kind.then(pl.lit("kernel")).otherwise(whole.fill_null("kernel")).alias("kind"),
        pl.when(group).then(count).otherwise(1).fill_null(1).alias("invocations"),
        pl.col("process_id").cast(pl.Int64, strict=False),
        nvtx.threads(pl.col("push_pop")).alias("thread_id"),
        pl.col("device_id").cast(pl.Int32, strict=False),
        pl.col("context_id").cast(pl.Int64, strict=False),
        pl.col("stream_id").cast(pl.Int64, strict=False),
        pl.col("name").replace("", None),
        *_extents("grid"),
        *_extents("block"),
        *_capability(),
        moment(pl.col("created_local")).alias("created_local"),
    )


def ranges(launches: pl.DataFrame) -> pl.DataFrame:
    """Take the NVTX cells of launches apart: a row a range."""
    found = []
    for column, form in (("push_pop", nvtx.PUSH_POP), ("start_end", nvtx.START_END), ("ranges", nvtx.SUMMARY)):
        cells = launches.select("launch_id", nvtx_domain="domain", text=column).filter(pl.col("text") != "")
        split = nvtx.entries(cells, form)
        if form == nvtx.SUMMARY:
            split = split.with_columns(domain=pl.col("nvtx_domain").replace([nvtx.DEFAULT_DOMAIN, ""], None))
        found.append(split.drop("nvtx_domain"))
    return pl.concat(found).sort("launch_id", "kind", "depth", maintain_order=True)


def without_range(name: pl.Expr, range_name: pl.Expr) -> pl.Expr:
    """Take off a kernel's name the range that ``--print-nvtx-rename`` puts before it."""
    prefix = pl.concat_str(range_name, pl.lit("/"))
    renamed = name.str.starts_with(prefix).fill_null(value=False)
    return pl.when(renamed).then(name.str.slice(prefix.str.len_chars())).otherwise(name)


def _extents(name: str) -> list[pl.Expr]:
    """Read ``(128, 1, 1)``; what is missing of three is 1."""
    found = pl.col(name).str.extract_all(r"\d+")
    sizes = [found.list.get(i, null_on_oob=True).cast(pl.Int32, strict=False) for i in range(3)]
    some = found.list.len() > 0
    return [
        pl.when(some & (found.list.len() <= i)).then(1).otherwise(size).alias(f"{name}_{axis}")
        for i, (size, axis) in enumerate(zip(sizes, "xyz", strict=True))
    ]


def _capability() -> list[pl.Expr]:
    parts = pl.col("cc").str.extract_groups(r"^(\d+)[.,](\d+)$").struct
    return [
        parts[i].cast(pl.Int32, strict=False).alias(name) for i, name in enumerate(("compute_major", "compute_minor"))
    ]


def moment(time: pl.Expr) -> pl.Expr:
    """Write ``2020-Apr-07 17:01:05`` as ``2020-04-07T17:01:05``; null for what is no time."""
    parts = time.str.extract_groups(r"^(\d{4})-([A-Z][a-z]{2})-(\d{2}) (\d{2}:\d{2}:\d{2})$").struct
    month = parts[1].replace_strict(_MONTHS, default=None, return_dtype=pl.String)
    day = pl.concat_str(parts[0], month, parts[2], separator="-")
    return pl.concat_str(day, parts[3], separator="T")
