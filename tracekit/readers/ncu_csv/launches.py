"""Identify the launches that CSV rows describe, and build the tables ``ncu_launches`` and ``ncu_nvtx_ranges``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from tracekit import schemas
from tracekit.readers.common import columns
from tracekit.readers.ncu import nvtx
from tracekit.readers.ncu.units import find_base_unit_and_exponent, find_metric_and_label, find_section_id
from tracekit.readers.ncu_csv.rows import METRICS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.readers.ncu_csv.numbers import NumberStyle
    from tracekit.readers.ncu_csv.rows import RowCollector
_GROUP_COLUMNS = ("name", "block", "grid", "device_id", "cc", "domain", "ranges", "invocations")
_MONTH_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTHS = {name: f"{number:02}" for number, name in enumerate(_MONTH_NAMES, start=1)}


class MetricKind(NamedTuple):
    """The description of a metric value: the printed section, name and unit, and the identifiers derived from them.

    Attributes:
        metric: Name of the metric, or None if its label is unknown.
        label: Label that is printed instead of the name of the metric, or None if the name is printed.
        section: Display name of the section, or None outside of sections.
        section_id: Identifier of the section, or None if it is unknown.
        unit: Base unit, or None for values without a unit.
        printed_unit: Unit as printed, or None if no unit is printed.
    """

    metric: str | None
    label: str | None
    section: str | None
    section_id: str | None
    unit: str | None
    printed_unit: str | None

    @classmethod
    def from_printed(cls, section: str | None, name: str, unit: str | None) -> MetricKind:
        """Create the description of a metric value from the section, name and unit that are printed with the value."""
        metric, label = find_metric_and_label(section or None, name)
        return cls(
            metric,
            label,
            section or None,
            find_section_id(section),
            find_base_unit_and_exponent(unit or "")[0],
            unit or None,
        )


class Metrics:
    """The metric values of a file in batches, and the launch id of each run.

    A run consists of consecutive rows of one launch.
    """

    def __init__(self, rows: RowCollector, launch_ids_by_run: pl.Series) -> None:
        self._batches = rows.metrics or [pl.DataFrame(schema=METRICS)]
        self._of_run = launch_ids_by_run
        self._kinds = [MetricKind.from_printed(*key) for key in rows.kinds]

    def select_metrics(self, is_selected: Callable[[str], bool]) -> pl.DataFrame:
        """Return the values of the metrics for whose name ``is_selected`` returns True.

        The columns are those of ``METRICS``, ``launch_id``, and ``metric`` with the name of the metric.
        """
        names = {n: k.metric for n, k in enumerate(self._kinds) if k.metric is not None and is_selected(k.metric)}
        matching = pl.col("kind").is_in(list(names))
        values = pl.concat([batch.select(METRICS.names()).filter(matching) for batch in self._batches])
        return values.with_columns(
            self._of_run.gather(values["run"]).alias("launch_id"),
            pl.col("kind").replace_strict(names, return_dtype=pl.String).alias("metric"),
        )

    def build_table(self) -> pa.Table:
        """Build the table ``ncu_metrics``. This releases all values, so the method can be called only once."""
        tables = []
        while self._batches:
            tables.append(self._convert_batch(self._batches.pop(0)))
        return pa.concat_tables(tables)

    def _convert_batch(self, batch: pl.DataFrame) -> pa.Table:
        kinds = batch["kind"].to_numpy()
        described = {
            c: _build_dictionary_column([getattr(k, c) for k in self._kinds], kinds) for c in MetricKind._fields
        }
        values = {c: batch[c].to_arrow() for c in batch.columns if c not in ("run", "kind")}
        missing = {c: pa.nulls(len(kinds), pa.float64()) for c in ("minimum", "maximum") if c not in values}
        launch = self._of_run.gather(batch["run"]).to_arrow()
        columns = {"launch_id": launch, **values, **missing, **described}
        return pa.table({c: columns[c] for c in schemas.table("ncu_metrics").names})


def _build_dictionary_column(values: list[str | None], value_indices: np.ndarray) -> pa.DictionaryArray:
    """Return a dictionary-encoded column whose element ``i`` is ``values[value_indices[i]]``."""
    unique: dict[str | None, int] = {v: i for i, v in enumerate(dict.fromkeys(v for v in values if v is not None))}
    codes = np.array([unique.get(v, -1) for v in values], np.int32)[value_indices]
    index_array = (
        columns.build_number_array(np.maximum(codes, 0), codes >= 0)
        if None in values
        else columns.build_number_array(codes)
    )
    return pa.DictionaryArray.from_arrays(index_array, pa.array(unique, pa.string()), safe=False)


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
