"""Compute statistics of the whole model: utilization, categories of ops, parts of the time, and iterations."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.rollup.groups import STATISTICS
from tracekit.core.rollup.measures import PARTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.core.rollup import Rollup

_KEY = list(STATISTICS)
CATEGORY_COLUMNS = ("cpu_time", "gpu_time", "cpu_overhead", "gpu_idle", "count")
GPU_PARTS = ("tensor_core", "other_kernel", "memory")


def round_to_six_decimals(values: pl.Series) -> pl.Series:
    """Round each number to six decimals as DLProf does.

    Python's ``round`` rounds the exact value of a double, as DLProf does. ``round`` of polars can return other digits.
    """
    distinct = values.unique().to_frame("value")
    results = distinct.with_columns(rounded=pl.Series([round(v, 6) for v in distinct["value"]], dtype=pl.Float64))
    return values.to_frame("value").join(results, on="value", how="left", maintain_order="left")["rounded"]


def average_expr(total: str = "sum", count: str = "count") -> pl.Expr:
    """Return an expression for the average of a metric, which is 0 if the metric has no values.

    Args:
        total: Name of the column with the sum.
        count: Name of the column with the number of values.
    """
    return pl.when(pl.col(count) > 0).then(pl.col(total) / pl.col(count)).otherwise(0.0)


@dataclass(frozen=True)
class MetricTable:
    """The distinct metrics of a DLProf database, in the order of their first use.

    Attributes:
        frame: One row per distinct metric: ``count``, ``max``, ``min``, ``sum``, ``avg``. The id of a metric is its row
            number plus 1.
    """

    frame: pl.DataFrame

    @classmethod
    def build(cls, frames_with_metrics: Sequence[tuple[pl.DataFrame, Sequence[str]]]) -> MetricTable:
        """Collect the distinct metrics of several frames in the order of their first use.

        Args:
            frames_with_metrics: Frames, each with the names of its metrics, in the order in which DLProf writes them.
        """
        stacked = [_convert_metrics_to_rows(frame, metrics) for frame, metrics in frames_with_metrics]
        distinct = pl.concat(stacked).unique(_KEY, keep="first", maintain_order=True)
        return cls(distinct.with_columns(avg=round_to_six_decimals(distinct.select(average_expr()).to_series())))

    def look_up_metric_ids(self, frame: pl.DataFrame, metric: str) -> pl.Series:
        """Return one metric id per row of a frame.

        Args:
            frame: The columns ``{metric}_count``, ``{metric}_max``, ``{metric}_min`` and ``{metric}_sum``.
            metric: Name of the metric, such as ``cpu``.

        Returns:
            The id, in the table ``metric``, of the values in each row.
        """
        values = frame.select(pl.col(f"{metric}_{s}").alias(s) for s in _KEY)
        entries = self.frame.select(*_KEY, id=pl.int_range(1, pl.len() + 1))
        return values.join(entries, on=_KEY, how="left", maintain_order="left")["id"]


def _convert_metrics_to_rows(frame: pl.DataFrame, metrics: Sequence[str]) -> pl.DataFrame:
    """Convert each row of a frame to one row per metric. The metrics of an original row are adjacent."""
    row = pl.int_range(pl.len())
    slots = [
        frame.select(*(pl.col(f"{m}_{s}").cast(pl.Int64).alias(s) for s in _KEY), position=row * len(metrics) + slot)
        for slot, m in enumerate(metrics)
    ]
    return pl.concat(slots).sort("position").drop("position")


@dataclass(frozen=True)
class ModelSummary:
    """Statistics of the whole model over the aggregated iterations.

    Attributes:
        rollup: The roll-up from which the statistics are computed.
    """

    rollup: Rollup

    @functools.cached_property
    def wall_ns(self) -> int:
        """Wall-clock time of the aggregated iterations, in ns. Time in which iterations overlap counts once."""
        duration = pl.col("end_ns") - pl.col("start_ns")
        return int(self.rollup.iterations.merged_times.select(duration.sum()).item())

    @functools.cached_property
    def part_times(self) -> pl.DataFrame:
        """Time of each aggregated iteration, divided into parts such as Tensor Core kernels.

        The columns are ``iteration`` and, in ns, one column per part, named as in ``rollup.breakdown``. Times are
        averaged over the used GPUs.
        """
        chosen = self.rollup.iterations.aggregated["iteration"].implode()
        rows = self.rollup.breakdown.filter(pl.col("iteration").is_in(chosen))
        return rows.group_by("iteration").agg(pl.col(PARTS).sum() / pl.len()).sort("iteration")

    @functools.cached_property
    def part_percentages(self) -> dict[str, float]:
        """Percentage of the time of the aggregated iterations that each part takes, keyed by part.

        The parts are those of ``part_times``.
        """
        return {p: self.compute_percentage_of_iteration_time(sum(self.part_times[p].to_list())) for p in PARTS}

    @functools.cached_property
    def device_utilization(self) -> dict[int, float]:
        """Percentage of the time of the aggregated iterations during which each GPU ran kernels, keyed by device id."""
        listed = self.rollup.devices.filter(pl.lit("name" in self.rollup.devices.columns))["device_id"]
        chosen = self.rollup.iterations.aggregated["iteration"].implode()
        kernels = pl.col("tensor_core").sum() + pl.col("other_kernel").sum()
        rows = self.rollup.breakdown.filter(pl.col("iteration").is_in(chosen)).group_by("device_id").agg(ns=kernels)
        kernel_ns = dict(rows.select("device_id", "ns").iter_rows())
        return {d: self.compute_percentage_of_iteration_time(kernel_ns.get(d, 0)) for d in listed}

    @functools.cached_property
    def gpu_utilization(self) -> float:
        """Mean of ``device_utilization`` over the used GPUs, as a percentage."""
        used = set(self.rollup.used_devices.to_list())
        percentages = [value for device, value in self.device_utilization.items() if device in used]
        return sum(percentages) / len(percentages) if percentages else 0.0

    @functools.cached_property
    def tc_utilization(self) -> float:
        """Percentage of the kernel time of eligible ops that is spent in Tensor Core kernels."""
        kernels = self.rollup.select_kernels("op", "uses_tc")
        kernels = kernels.filter(self.rollup.ops["eligible"].gather(kernels["op"]))
        total, used = (int(k["kernel_gpu"].sum()) for k in (kernels, kernels.filter("uses_tc")))
        return 100 * used / total if total else 0.0

    @functools.cached_property
    def iteration_mean_and_std_ns(self) -> tuple[float, float]:
        """Mean and population standard deviation of the durations of the aggregated iterations, in ns."""
        durations = self.iteration_durations
        mean = sum(durations) / len(durations)
        return mean, math.sqrt(sum((n - mean) ** 2 for n in durations) / len(durations))

    @functools.cached_property
    def iteration_durations(self) -> list[int]:
        """Duration of each aggregated iteration, in ns."""
        durations: list[int] = (
            self.rollup.iterations.aggregated.select(pl.col("window_end_ns") - pl.col("window_start_ns"))
            .to_series()
            .to_list()
        )
        return durations

    @functools.cached_property
    def categories(self) -> pl.DataFrame:
        """Counts and times of DLProf's eight categories of ops, kernels and memory operations.

        There is one row per category, with the columns ``CATEGORY_COLUMNS``, in this order:

        1. all ops
        2. ops that are eligible for Tensor Cores but did not use them
        3. ops that used Tensor Cores
        4. all other ops
        5. all kernels
        6. kernels that used Tensor Cores
        7. all other kernels
        8. memory copies and memory sets

        For ops, ``count`` is the number of ops with instances. For kernels and memory operations, ``count`` is the
        number of distinct names, as in DLProf.
        """
        eligible, used = pl.col("eligible"), pl.col("uses_tc")
        ops = [self._build_op_category_row(w) for w in (pl.lit(value=True), eligible & ~used, used, ~used & ~eligible)]
        activities = self.rollup.select_kernels("name", "uses_tc")
        with_tc, without_tc = (_build_activity_category_row(activities.filter(w)) for w in (used, ~used))
        kernels = tuple(a + b for a, b in zip(with_tc, without_tc, strict=True))
        rows = [*ops, kernels, with_tc, without_tc, _build_activity_category_row(self.rollup.memory)]
        return pl.DataFrame(rows, schema=dict.fromkeys(CATEGORY_COLUMNS, pl.Int64), orient="row")

    def compute_percentage_of_iteration_time(self, time_ns: float) -> float:
        """Return a time in ns as a percentage of the summed durations of the aggregated iterations, as DLProf does.

        If iterations overlap, the sum is larger than the wall-clock time.
        """
        total = sum(self.iteration_durations)
        return 100 * time_ns / total if total else 0.0

    def _build_op_category_row(self, condition: pl.Expr) -> tuple[int, ...]:
        """Return the times and the count of the ops that satisfy a condition, as one row of ``categories``."""
        sums = [pl.col(f"{m}_sum").sum() for m in ("cpu", "gpu", "overhead", "idle")]
        row = self.rollup.ops.filter(condition).select(*sums, (pl.col("count") > 0).sum().cast(pl.Int64))
        return tuple(row.row(0))


def _build_activity_category_row(calls: pl.DataFrame) -> tuple[int, ...]:
    """Return the times and the count of kernels or memory operations, as one row of ``ModelSummary.categories``."""
    names = calls["name"].cast(pl.String).n_unique() if calls.height else 0
    return int(calls["kernel_api"].sum()), int(calls["kernel_gpu"].sum()), 0, 0, names
