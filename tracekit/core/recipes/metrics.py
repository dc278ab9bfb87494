"""Declare recipes on sampled metrics of GPUs and network devices, for each rank and over all ranks.

No table of nsys with rows was available to compare these recipes with. Their tables have the form of the other sums and
maps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.recipes.maps import OPTIONS, OUTPUT, Bins, combine_map
from tracekit.core.recipes.recipe import ANALYSIS, UNNAMED_INDEX, Option, RankRequest, Tables, recipe
from tracekit.core.recipes.sums import (
    DEVICE,
    DEVICE_ID,
    NAME,
    OUTPUTS_BY_DEVICE,
    REDUCTIONS,
    combine_sums,
    sum_by_device,
)

if TYPE_CHECKING:
    from tracekit.core.reports.report import Frames

_UTILIZATION = ("SM Active", "SM Issue", "Tensor Active")
_UNIT = r" \[([^\[\]]*)\]$"
_METRICS = Option(
    "util",
    "Metrics to summarize: util (SM Active, SM Issue and Tensor Active) or all (every metric in percent).",
    choices=("util", "all"),
)
_METRIC_KEY = ["metrics_list_id", "metric_index"]


def _read_percentages(frames: Frames) -> pl.LazyFrame:
    """Read the samples of GPU metrics in percent: ``Name`` (no unit), ``device_id``, ``timestamp_ns``, ``value``.

    Some GPUs call SM Active SMs Active. It is called SM Active here.
    """
    name = pl.col("metric").cast(pl.String)
    is_percentage = name.str.extract(_UNIT).str.contains("%", literal=True)
    plain = name.str.replace(_UNIT, "").str.replace("^SMs Active$", "SM Active")
    return frames("gpu_metrics").filter(is_percentage).select(plain.alias(NAME), "device_id", "timestamp_ns", "value")


@recipe(*OUTPUTS_BY_DEVICE, combine=combine_sums, options={"metrics": _METRICS}, reductions=REDUCTIONS)
def gpu_metric_util_sum(request: RankRequest) -> Tables:
    """Samples of the utilization of GPUs in percent, by metric."""
    rows = _read_percentages(request.frames)
    if request.text("metrics") == "util":
        rows = rows.filter(pl.col(NAME).is_in(_UTILIZATION))
    return sum_by_device(rows.select(NAME, DEVICE, "value"))


@recipe(*OUTPUTS_BY_DEVICE, combine=combine_sums, reductions=REDUCTIONS)
def nvlink_sum(request: RankRequest) -> Tables:
    """Samples of the utilization of NVLink in percent, by metric."""
    rows = _read_percentages(request.frames).filter(pl.col(NAME).str.contains("(?i)nvlink"))
    return sum_by_device(rows.select(NAME, DEVICE, "value"))


@recipe(*OUTPUTS_BY_DEVICE, combine=combine_sums, reductions=REDUCTIONS)
def network_sum(request: RankRequest) -> Tables:
    """Values of the metrics of network cards and InfiniBand switches, by metric."""
    names = request.frames("network_metric_names").select(*_METRIC_KEY, pl.col("name").alias(NAME)).unique(_METRIC_KEY)
    device = pl.col("network_device_id").alias(DEVICE_ID)
    values = request.frames("network_metrics").select(*_METRIC_KEY, device, "value")
    return sum_by_device(values.join(names, on=_METRIC_KEY, how="inner").select(NAME, DEVICE_ID, "value"))


@recipe(OUTPUT, combine=combine_map, options=OPTIONS, aligned=True)
def gpu_metric_util_map(request: RankRequest) -> Tables:
    """Average utilization of GPUs in percent, by time and device."""
    bins = Bins.of(request)
    rows = _read_percentages(request.frames).filter(pl.col(NAME).is_in(_UTILIZATION)).collect()
    sampled = rows.with_columns(bins.number_at(pl.col("timestamp_ns")).alias("bin"))
    means = sampled.group_by("device_id", "bin").agg(
        pl.col("value").filter(pl.col(NAME) == name).mean().round(1).alias(name) for name in _UTILIZATION
    )
    devices = rows.select("device_id").unique().sort("device_id")
    starts = pl.DataFrame({"Duration": bins.starts}).with_row_index("bin").cast(pl.Int64)
    joined = devices.join(starts, how="cross").join(means, on=["device_id", "bin"], how="left", maintain_order="left")
    device = pl.col("device_id").cast(pl.Int64).alias(DEVICE_ID)
    return {ANALYSIS: joined.select("Duration", *_UTILIZATION, device).with_row_index(UNNAMED_INDEX)}
