"""Compute recipes on sampled metrics of GPUs and network devices, for each rank and over all ranks.

``network_sum`` could not be compared with nsys, because nsys printed no rows for any available capture. Its tables have
the columns of the other recipes that sum by device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.recipes.maps import Bins, concatenate_heat_maps
from tracekit.core.recipes.recipe import ANALYSIS, UNNAMED_INDEX, RecipeTables, move_rank_to_end, recipe
from tracekit.core.recipes.statistics import compute_statistics_from_counts, count_values, sum_counts
from tracekit.core.recipes.sums import (
    DEVICE_ID,
    NAME,
    REDUCTIONS,
    combine_sums,
    compute_statistics_by_device,
)

if TYPE_CHECKING:
    from tracekit.core.reports.report import Frames, Request

_SM = "SM Active"
_UTILIZATION = (_SM, "SM Issue", "Tensor Active")
_NAMES_OF_SM = (_SM, "SMs Active")
_WITHOUT_UNIT = (*_NAMES_OF_SM, *_UTILIZATION[1:], "Unallocated Warps in Active SMs")
"""Metrics that nsys lists without their unit if the unit is percent."""
_UNIT = r" \[([^\[\]]*)\]$"
_GPU, _METRIC_NAME, _SM_NAME = "GPU ID", "Metric Name", "sm_name"
_RANK_STATS = "rank_stats"
_ALL_STATS, _STATS_BY_GPU, _GPU_LABEL = "all_stats", "stats_by_gpu", "GPU"
_METRIC_KEY = ["metrics_list_id", "metric_index"]


def _is_percentage_expr(name: pl.Expr) -> pl.Expr:
    return name.str.extract(_UNIT).str.contains("%", literal=True)


def _read_percentages(frames: Frames) -> pl.LazyFrame:
    """Read the samples of metrics whose unit is percent.

    The columns are ``Name`` (without unit), ``device_id``, ``timestamp_ns`` and ``value``.
    """
    name = pl.col("metric").cast(pl.String)
    plain = name.str.replace(_UNIT, "").alias(NAME)
    return frames("gpu_metrics").filter(_is_percentage_expr(name)).select(plain, "device_id", "timestamp_ns", "value")


def _combine_metrics(tables: RecipeTables) -> RecipeTables:
    return {_RANK_STATS: move_rank_to_end(tables[_RANK_STATS], _GPU, _METRIC_NAME)}


@recipe(combine=_combine_metrics)
def gpu_metric_util_sum(request: Request) -> RecipeTables:
    """Statistics of GPU metrics by GPU and metric, without samples from before the start of the capture."""
    gpu, name = pl.col("device_id").cast(pl.Int64).alias(_GPU), pl.col("metric").alias(_METRIC_NAME)
    recorded = request.frames("gpu_metrics").filter(pl.col("timestamp_ns") >= 0)
    counts = count_values(recorded.select(gpu, name, pl.col("value").cast(pl.Float64)), [_GPU, _METRIC_NAME])
    stats = compute_statistics_from_counts(counts, [_GPU, _METRIC_NAME])
    full = pl.col(_METRIC_NAME).cast(pl.String)
    plain = full.str.replace(_UNIT, "")
    is_plain = plain.is_in(_WITHOUT_UNIT) & _is_percentage_expr(full)
    return {_RANK_STATS: stats.with_columns(pl.when(is_plain).then(plain).otherwise(full).alias(_METRIC_NAME))}


def _combine_links(tables: RecipeTables) -> RecipeTables:
    by_gpu = move_rank_to_end(tables[_STATS_BY_GPU], _METRIC_NAME, _GPU_LABEL)
    return {_ALL_STATS: move_rank_to_end(tables[_ALL_STATS], _METRIC_NAME), _STATS_BY_GPU: by_gpu}


@recipe(combine=_combine_links)
def nvlink_sum(request: Request) -> RecipeTables:
    """Statistics of the utilization of NVLink in percent, without samples of 0, by rank and metric."""
    samples = _read_percentages(request.frames).rename({NAME: _METRIC_NAME})
    rows = samples.filter(pl.col(_METRIC_NAME).str.contains("(?i)nvlink") & (pl.col("value") != 0))
    labeled = rows.join(_read_gpu_labels(request.frames), on="device_id", how="left")
    gpu = pl.coalesce(_GPU_LABEL, pl.col("device_id").cast(pl.String)).alias(_GPU_LABEL)
    keys = [_METRIC_NAME, _GPU_LABEL]
    counts = count_values(labeled.select(_METRIC_NAME, gpu, "value"), keys)
    totals = sum_counts(counts.drop(_GPU_LABEL))
    return {
        _ALL_STATS: compute_statistics_from_counts(totals, keys[:1]),
        _STATS_BY_GPU: compute_statistics_from_counts(counts, keys),
    }


def _read_gpu_labels(frames: Frames) -> pl.LazyFrame:
    """Read the label of each GPU, as nsys prints it: ``device_id`` and ``GPU`` (bus location and name)."""
    parts = (pl.col(c).cast(pl.String) for c in ("bus_location", "name"))
    label = pl.concat_str(*parts, separator=" - ", ignore_nulls=True).replace("", None).alias(_GPU_LABEL)
    return frames("devices").select("device_id", label).unique("device_id", keep="first")


@recipe(combine=combine_sums, reductions=REDUCTIONS)
def network_sum(request: Request) -> RecipeTables:
    """Statistics of the metrics of network cards and InfiniBand switches, by metric."""
    names = request.frames("network_metric_names").select(*_METRIC_KEY, pl.col("name").alias(NAME)).unique(_METRIC_KEY)
    device = pl.col("network_device_id").alias(DEVICE_ID)
    values = request.frames("network_metrics").select(*_METRIC_KEY, device, "value")
    return compute_statistics_by_device(
        values.join(names, on=_METRIC_KEY, how="inner").select(NAME, DEVICE_ID, "value")
    )


def _combine_utilization(tables: RecipeTables) -> RecipeTables:
    """Concatenate the heat maps of all ranks.

    Captures name the metric either ``SM Active`` or ``SMs Active``. The column has the name in the first row.
    """
    name = str(tables[ANALYSIS][_SM_NAME].first() or _SM)
    return concatenate_heat_maps({ANALYSIS: tables[ANALYSIS].drop(_SM_NAME).rename({_SM: name})})


@recipe(combine=_combine_utilization, aligned=True)
def gpu_metric_util_map(request: Request) -> RecipeTables:
    """Average utilization in percent in each bin of time, by GPU. Bins without samples are not listed."""
    bins = Bins.from_request(request)
    name = pl.col(NAME)
    is_sm = name.is_in(_NAMES_OF_SM)
    rows = _read_percentages(request.frames).filter(pl.col("timestamp_ns") >= 0, is_sm | name.is_in(_UTILIZATION))
    plain = pl.when(is_sm).then(pl.lit(_SM)).otherwise(name)
    sampled = rows.with_columns(plain.alias(NAME), pl.when(is_sm).then(name).alias(_SM_NAME)).collect()
    means = sampled.group_by("device_id", bins.bin_index_expr(pl.col("timestamp_ns")).alias("bin")).agg(
        *(pl.col("value").filter(name == metric).mean().round(1).alias(metric) for metric in _UTILIZATION),
        pl.col(_SM_NAME).max(),
    )
    starts = pl.DataFrame({"Duration": bins.starts}).with_row_index("bin").cast(pl.Int64)
    joined = starts.join(means, on="bin", how="inner").sort("device_id", "bin")
    gpu = pl.col("device_id").cast(pl.UInt64).alias("GPU")
    return {ANALYSIS: joined.select("Duration", *_UTILIZATION, gpu, _SM_NAME).with_row_index(UNNAMED_INDEX)}
