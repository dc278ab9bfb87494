"""The roll-up of a capture: activities aggregated by op, op type, group and iteration.

``measures`` computes everything that does not depend on iterations, so that changing the key op or the aggregated
iterations is cheap. ``groups`` aggregates over the tree of op names, ``breakdown`` divides the time of iterations,
``statistics`` summarises metrics, ``tables`` returns the declared tables.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import polars as pl

from tracekit.core.iterations import find_iterations
from tracekit.core.ops import Ops
from tracekit.core.rollup import breakdown, groups, statistics
from tracekit.core.rollup.measures import METRICS, Measures

if TYPE_CHECKING:
    from tracekit.core.correlate import Frames
    from tracekit.core.iterations import Iterations
    from tracekit.core.rollup.groups import Style

__all__ = ["METRICS", "Rollup"]

KERNEL_METRICS = ("kernel_gpu", "kernel_api")
Span = tuple[int | None, int | None]


@dataclass(frozen=True)
class Rollup:
    """Ops, op types, groups and kernels over the aggregated iterations; each frame is computed on first access.

    Attributes:
        measures: The ops of the capture, measured.
        key_op: Id or name of the op that delimits iterations, or None for the default of the dialect.
        span: First and last iteration to aggregate, both included, or None for all.
    """

    measures: Measures
    key_op: str | None = None
    span: Span | None = None

    @classmethod
    def from_frames(
        cls,
        frames: Frames,
        *,
        key_op: str | None = None,
        span: Span | None = None,
        dialect: str | None = None,
        tensor_cores: Literal["extended", "dlprof"] = "extended",
    ) -> Rollup:
        """Roll up the tables of a capture.

        Args:
            frames: Returns a declared table by name.
            key_op: As the attribute.
            span: As the attribute.
            dialect: Name of the dialect of the ranges, or None for the first one that matches them.
            tensor_cores: Rules for kernels that use Tensor Cores; ``dlprof`` computes all figures as DLProf did.
        """
        return cls(Measures(Ops(frames, dialect), tensor_cores), key_op, span)

    def with_iterations(self, *, key_op: str | None = None, span: Span | None = None) -> Rollup:
        """Return the roll-up of the same ops over other iterations, without reading or measuring them again."""
        return replace(self, key_op=key_op, span=span)

    @functools.cached_property
    def iterations(self) -> Iterations:
        """The iterations of the capture."""
        measures = self.measures
        return find_iterations(measures.ops, key_op=self.key_op, span=self.span, mode=measures.mode)

    @functools.cached_property
    def devices(self) -> pl.DataFrame:
        """The GPUs in order of ``device_id``: those in the table ``devices`` or, if it is empty, with activities."""
        devices = self.measures.ops.frames("devices").unique("device_id", keep="first", maintain_order=True)
        listed = devices.sort("device_id").collect()
        used = pl.concat([self.measures.gpu_activities["device_id"].drop_nulls().unique().sort(), _DEVICE_0]).head(64)
        return listed if listed.height else used.unique(maintain_order=True).to_frame("device_id")

    @functools.cached_property
    def used_devices(self) -> pl.Series:
        """Numbers of the GPUs with activities, in order; of all GPUs if none has any, or in DLProf's mode.

        DLProf averaged over all GPUs.
        """
        active = self.measures.gpu_activities["device_id"].drop_nulls().unique().sort()
        all_devices = self.devices["device_id"]
        used = all_devices.filter(all_devices.is_in(active.implode()))
        return used if len(used) and self.measures.mode == "extended" else all_devices

    @functools.cached_property
    def iteration(self) -> pl.Series:
        """Aggregated iteration of each instance, or null."""
        return self.iterations.instance_iterations(self.measures.ops.instances)

    @functools.cached_property
    def instances(self) -> pl.DataFrame:
        """The instances in aggregated iterations: ``Measures.instances``, ``instance`` (its row), ``iteration``."""
        rows = self.measures.instances.with_columns(instance=pl.int_range(pl.len()), iteration=self.iteration)
        return rows.drop_nulls("iteration")

    @functools.cached_property
    def children(self) -> pl.DataFrame:
        """The calls of all ops, in order of op, name and start: ``Measures.calls`` and ``iteration``."""
        calls = self.measures.calls.with_columns(iteration=self.iteration.gather(self.measures.calls["instance"]))
        names = calls.select("name").unique().with_columns(rank=pl.col("name").cast(pl.String).rank("dense"))
        rank = calls.select("name").join(names, on="name", how="left", maintain_order="left", nulls_equal=True)["rank"]
        op_and_name = pl.col("op") * (names.height + 1) + rank.cast(pl.Int64).fill_null(0)
        return calls.sort(op_and_name, "start_ns", "index", -pl.col("call_id"), "activity")

    @functools.cached_property
    def kernels(self) -> pl.DataFrame:
        """The kernels of aggregated instances, in order of ``children``, with ``kernel_gpu``, ``kernel_api`` in ns."""
        return _with_durations(self.children.filter((pl.col("kind") == "kernel") & pl.col("iteration").is_not_null()))

    @functools.cached_property
    def memory(self) -> pl.DataFrame:
        """The memory copies and sets of aggregated instances, with the columns of ``kernels``."""
        is_memory_op = pl.col("kind").is_in(["memset", "memcpy"]) & pl.col("iteration").is_not_null()
        return _with_durations(self.children.filter(is_memory_op))

    @functools.cached_property
    def ops(self) -> pl.DataFrame:
        """The ops in order of name and id, with figures of the aggregated iterations.

        Columns: those of ``Ops.ops`` and ``Measures.op_properties``, ``count`` (of instances), ``kernel_count``,
        ``eligible``, ``uses_tc``, ``tc_unknown`` (some kernel may use Tensor Cores, none is known to), ``bad_type``
        (eligible and not in half precision; except in DLProf's mode also without kernels on Tensor Cores), and the
        statistics of ``METRICS``, ``kernel_gpu`` and ``kernel_api``.
        """
        rows = self.measures.ops.ops.hstack(self.measures.op_properties).with_columns(op=pl.int_range(pl.len()))
        instances = self.instances.group_by("op").agg(pl.len().alias("count"), *statistics.summaries(METRICS))
        kernels = self.kernels.group_by("op").agg(
            pl.len().alias("kernel_count"), pl.col("uses_tc", "tc_unknown").any(), *statistics.summaries(KERNEL_METRICS)
        )
        ops = rows.join(instances, on="op", how="left", maintain_order="left")
        ops = ops.join(kernels, on="op", how="left", maintain_order="left")
        return ops.with_columns(
            pl.col("count", "kernel_count").fill_null(0).cast(pl.Int64),
            pl.col("uses_tc").fill_null(value=False),
            (pl.col("tc_unknown") & ~pl.col("uses_tc")).fill_null(value=False),
            *statistics.zero_where_missing([*METRICS, *KERNEL_METRICS]),
            eligible=pl.col("support") == 0,
        ).with_columns(bad_type=pl.col("eligible") & (pl.col("count") > 0) & ~pl.col("half") & ~self._uses_tensor_cores)

    @property
    def _uses_tensor_cores(self) -> pl.Expr:
        """Whether kernels of an op used Tensor Cores, in which case its data type is not reported as bad."""
        return pl.col("uses_tc") if self.measures.mode == "extended" else pl.lit(value=False)

    @functools.cached_property
    def op_types(self) -> pl.DataFrame:
        """One row per op type, in order: ``op_type``, ``op_count``, ``count``, and the statistics of ``METRICS``."""
        op_type = pl.col("op_type").cast(pl.String)
        counts = self.ops.group_by(op_type).agg(op_count=pl.len().cast(pl.Int64), count=pl.col("count").sum())
        metrics = statistics.summarize(self.instances.with_columns(op_type), ["op_type"], METRICS)
        types = counts.join(metrics, on="op_type", how="left")
        return types.with_columns(statistics.zero_where_missing(METRICS)).sort("op_type")

    @functools.cached_property
    def groups(self) -> pl.DataFrame:
        """The group nodes, the root first, as of ``groups.groups``; in DLProf's mode in its style."""
        return self._groups_in(self.measures.mode)

    @functools.cached_property
    def dlprof_groups(self) -> pl.DataFrame:
        """The group nodes in the style of DLProf, without directions."""
        return self.groups if self.measures.mode == "dlprof" else self._groups_in("dlprof")

    def _groups_in(self, style: Style) -> pl.DataFrame:
        """Return the group nodes in a style."""
        devices, ops = self.devices["device_id"], self.ops.select("count", "eligible", "uses_tc")
        return groups.groups(self.measures, self.iterations, devices, ops, style)

    @functools.cached_property
    def kernel_summaries(self) -> pl.DataFrame:
        """One row per op and short kernel name, in order: ``op``, ``name``, ``uses_tc``, statistics of its kernels."""
        summaries = self.kernels.group_by("op", pl.col("name").cast(pl.String), maintain_order=True).agg(
            pl.col("uses_tc").any(), *statistics.summaries(KERNEL_METRICS)
        )
        return summaries.sort("op", "name")

    @functools.cached_property
    def kernels_by_iteration(self) -> pl.DataFrame:
        """Kernels by aggregated iteration: ``iteration``, ``kernel_count``, ``tc_count``, ``gpu_time``, ``tc_time``."""
        aggregated = self.iterations.aggregated.select("iteration")
        counts = aggregated.join(self.kernels.group_by("iteration").agg(_KERNEL_COUNTS), on="iteration", how="left")
        return counts.sort("iteration").with_columns(pl.exclude("iteration").fill_null(0))

    @functools.cached_property
    def kernels_by_op_and_iteration(self) -> pl.DataFrame:
        """One row per op and aggregated iteration with kernels: ``op`` and the columns of ``kernels_by_iteration``."""
        return self.kernels.group_by("op", "iteration").agg(_KERNEL_COUNTS).sort("op", "iteration")

    @functools.cached_property
    def breakdown(self) -> pl.DataFrame:
        """The time of every iteration on each used device, divided into parts, as of ``breakdown.breakdown``."""
        return breakdown.breakdown(self.measures, self.iterations, self.used_devices)


_DEVICE_0 = pl.Series("device_id", [0], dtype=pl.Int32)
_GPU_TIME = pl.col("kernel_gpu")
_KERNEL_COUNTS = [
    pl.len().cast(pl.Int64).alias("kernel_count"),
    pl.col("uses_tc").sum().cast(pl.Int64).alias("tc_count"),
    _GPU_TIME.sum().alias("gpu_time"),
    _GPU_TIME.filter("uses_tc").sum().alias("tc_time"),
]


def _with_durations(calls: pl.DataFrame) -> pl.DataFrame:
    """Add the durations of each activity and its call: ``kernel_gpu``, ``kernel_api``."""
    return calls.with_columns(
        kernel_gpu=pl.col("gpu_end_ns") - pl.col("gpu_start_ns"), kernel_api=pl.col("end_ns") - pl.col("start_ns")
    )
