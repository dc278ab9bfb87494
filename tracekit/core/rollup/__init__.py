"""The roll-up of a capture: ops, op types, group nodes and kernels, over some of its iterations.

``measures`` has what does not depend on iterations, so that another key op or another span is cheap. ``groups`` sums up
the tree of op names, ``breakdown`` divides the time of iterations, ``statistics`` are those of all metrics.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import polars as pl

from tracekit.core import iterations
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
    """Ops, op types, groups and kernels over the aggregated iterations; each frame is computed when first asked for.

    Attributes:
        measures: The ops of the capture, measured.
        key_op: Id or name of the op that delimits iterations; None takes the dialect's own.
        span: First and last iteration to aggregate, both included; None is all of them.
    """

    measures: Measures
    key_op: str | None = None
    span: Span | None = None

    @classmethod
    def of(
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
            frames: Gives a declared table by name.
            key_op: As the attribute.
            span: As the attribute.
            dialect: How its ranges are written; None takes the first dialect that recognises them.
            tensor_cores: Which kernels are taken to use Tensor Cores; ``dlprof`` computes all as DLProf did.
        """
        return cls(Measures(Ops(frames, dialect), tensor_cores), key_op, span)

    def again(self, *, key_op: str | None = None, span: Span | None = None) -> Rollup:
        """Roll up the same ops over other iterations; nothing is read or measured again."""
        return replace(self, key_op=key_op, span=span)

    @functools.cached_property
    def iterations(self) -> Iterations:
        """The iterations."""
        return iterations.find(self.measures.ops, key_op=self.key_op, span=self.span, mode=self.measures.mode)

    @functools.cached_property
    def devices(self) -> pl.DataFrame:
        """The GPUs, one row each in order of ``device_id``: those listed and, if none is, those that did anything."""
        found = self.measures.ops.frames("devices").unique("device_id", keep="first", maintain_order=True)
        listed = found.sort("device_id").collect()
        seen = pl.concat([self.measures.gpu_work["device_id"].drop_nulls().unique().sort(), _DEVICE_0]).head(64)
        return listed if listed.height else seen.unique(maintain_order=True).to_frame("device_id")

    @functools.cached_property
    def used_devices(self) -> pl.Series:
        """Numbers of the GPUs on which anything ran, in order, or of all of them if nothing did.

        DLProf took the mean of all GPUs, so in its mode these are all.
        """
        seen = self.measures.gpu_work["device_id"].drop_nulls().unique().sort()
        every = self.devices["device_id"]
        used = every.filter(every.is_in(seen.implode()))
        return used if len(used) and self.measures.mode == "extended" else every

    @functools.cached_property
    def iteration(self) -> pl.Series:
        """Aggregated iteration of each instance, null for none."""
        return self.iterations.of(self.measures.ops.instances)

    @functools.cached_property
    def instances(self) -> pl.DataFrame:
        """The instances that are aggregated, in order, with ``instance``, ``iteration`` and metrics."""
        rows = self.measures.instances.with_columns(instance=pl.int_range(pl.len()), iteration=self.iteration)
        return rows.drop_nulls("iteration")

    @functools.cached_property
    def children(self) -> pl.DataFrame:
        """The calls of ops, in order of op, name and start: ``Measures.calls`` and ``iteration``."""
        calls = self.measures.calls.with_columns(iteration=self.iteration.gather(self.measures.calls["instance"]))
        names = calls.select("name").unique().with_columns(rank=pl.col("name").cast(pl.String).rank("dense"))
        rank = calls.select("name").join(names, on="name", how="left", maintain_order="left", nulls_equal=True)["rank"]
        place = pl.col("op") * (names.height + 1) + rank.cast(pl.Int64).fill_null(0)
        return calls.sort(place, "start_ns", "index", -pl.col("call_id"), "activity")

    @functools.cached_property
    def kernels(self) -> pl.DataFrame:
        """The kernels of aggregated instances, in order of ``children``, with ``kernel_gpu``, ``kernel_api`` in ns."""
        return _lasting(self.children.filter((pl.col("kind") == "kernel") & pl.col("iteration").is_not_null()))

    @functools.cached_property
    def memory(self) -> pl.DataFrame:
        """The copies and sets of aggregated instances, likewise."""
        wanted = pl.col("kind").is_in(["memset", "memcpy"]) & pl.col("iteration").is_not_null()
        return _lasting(self.children.filter(wanted))

    @functools.cached_property
    def ops(self) -> pl.DataFrame:
        """The ops in order of name and id: ``Ops.ops``, ``Measures.kinds``, and figures of the aggregated iterations.

        These are ``count`` (instances), ``kernel_count``, ``eligible``, ``uses_tc``, ``tc_unknown`` (some kernel may
        use Tensor Cores, none is known to), ``bad_type`` (eligible and not in half precision; unless in DLProf's mode
        also without kernels on Tensor Cores), and the statistics of
        ``METRICS``, ``kernel_gpu`` and ``kernel_api``.
        """
        rows = self.measures.ops.ops.hstack(self.measures.kinds).with_columns(op=pl.int_range(pl.len()))
        inside = self.instances.group_by("op").agg(pl.len().alias("count"), *statistics.of(METRICS))
        ran = self.kernels.group_by("op").agg(
            pl.len().alias("kernel_count"), pl.col("uses_tc", "tc_unknown").any(), *statistics.of(KERNEL_METRICS)
        )
        whole = rows.join(inside, on="op", how="left", maintain_order="left")
        whole = whole.join(ran, on="op", how="left", maintain_order="left")
        return whole.with_columns(
            pl.col("count", "kernel_count").fill_null(0).cast(pl.Int64),
            pl.col("uses_tc").fill_null(value=False),
            (pl.col("tc_unknown") & ~pl.col("uses_tc")).fill_null(value=False),
            *statistics.blank([*METRICS, *KERNEL_METRICS]),
            eligible=pl.col("support") == 0,
        ).with_columns(bad_type=pl.col("eligible") & (pl.col("count") > 0) & ~pl.col("half") & ~self._served)

    @property
    def _served(self) -> pl.Expr:
        """Whether kernels of an op used Tensor Cores, so that its data type is none to complain of."""
        return pl.col("uses_tc") if self.measures.mode == "extended" else pl.lit(value=False)

    @functools.cached_property
    def op_types(self) -> pl.DataFrame:
        """One row an op type, in order: ``op_type``, ``op_count``, ``count``, and the statistics of ``METRICS``."""
        kind = pl.col("op_type").cast(pl.String)
        counts = self.ops.group_by(kind).agg(op_count=pl.len().cast(pl.Int64), count=pl.col("count").sum())
        found = statistics.by(self.instances.with_columns(kind), ["op_type"], METRICS)
        whole = counts.join(found, on="op_type", how="left")
        return whole.with_columns(statistics.blank(METRICS)).sort("op_type")

    @functools.cached_property
    def groups(self) -> pl.DataFrame:
        """The group nodes, the whole model first, as of ``groups.groups``; by ``mode`` in the style of DLProf."""
        return self._groups_in(self.measures.mode)

    @functools.cached_property
    def dlprof_groups(self) -> pl.DataFrame:
        """The group nodes as DLProf has them, without directions."""
        return self.groups if self.measures.mode == "dlprof" else self._groups_in("dlprof")

    def _groups_in(self, style: Style) -> pl.DataFrame:
        devices, ops = self.devices["device_id"], self.ops.select("count", "eligible", "uses_tc")
        return groups.groups(self.measures, self.iterations, devices, ops, style)

    @functools.cached_property
    def kernel_summaries(self) -> pl.DataFrame:
        """One row an op and short name of a kernel, in order: ``op``, ``name``, ``uses_tc``, statistics of kernels."""
        found = self.kernels.group_by("op", pl.col("name").cast(pl.String), maintain_order=True).agg(
            pl.col("uses_tc").any(), *statistics.of(KERNEL_METRICS)
        )
        return found.sort("op", "name")

    @functools.cached_property
    def kernels_by_iteration(self) -> pl.DataFrame:
        """One row an aggregated iteration: ``iteration``, ``kernel_count``, ``tc_count``, ``gpu_time``, ``tc_time``."""
        chosen = self.iterations.chosen.select("iteration")
        whole = chosen.join(self.kernels.group_by("iteration").agg(_COUNTED), on="iteration", how="left")
        return whole.sort("iteration").with_columns(pl.exclude("iteration").fill_null(0))

    @functools.cached_property
    def kernels_by_op_and_iteration(self) -> pl.DataFrame:
        """One row an op and aggregated iteration in which it ran kernels: ``op`` and the columns as by iteration."""
        return self.kernels.group_by("op", "iteration").agg(_COUNTED).sort("op", "iteration")

    @functools.cached_property
    def breakdown(self) -> pl.DataFrame:
        """Where the time of every iteration went, by used device, as of ``breakdown.breakdown``."""
        return breakdown.breakdown(self.measures, self.iterations, self.used_devices)


_DEVICE_0 = pl.Series("device_id", [0], dtype=pl.Int32)
_SPENT = pl.col("kernel_gpu")
_COUNTED = [
    pl.len().cast(pl.Int64).alias("kernel_count"),
    pl.col("uses_tc").sum().cast(pl.Int64).alias("tc_count"),
    _SPENT.sum().alias("gpu_time"),
    _SPENT.filter("uses_tc").sum().alias("tc_time"),
]


def _lasting(calls: pl.DataFrame) -> pl.DataFrame:
    """Add how long each activity ran and its call took: ``kernel_gpu``, ``kernel_api``."""
    return calls.with_columns(
        kernel_gpu=pl.col("gpu_end_ns") - pl.col("gpu_start_ns"), kernel_api=pl.col("end_ns") - pl.col("start_ns")
    )
