"""What rules look at: GPU work and ops within the aggregated iterations; what lies outside of them is left out."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core import intervals
from tracekit.core.ops.calls import ON_GPU
from tracekit.core.rollup import breakdown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.core.rollup import Rollup

LENGTH = pl.col("end_ns") - pl.col("start_ns")
LONGEST_NAME = 80
_AROUND = (("start_ns", -1), ("end_ns", 0))


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding; the columns of ``advise``, with ``figures`` as a mapping."""

    rule: str
    problem: str
    evidence: str
    advice: str
    time_ns: int
    share: float
    count: int
    start_ns: int
    end_ns: int
    figures: Mapping[str, int]


@dataclass(frozen=True)
class Scene:
    """The aggregated iterations of a roll-up.

    Attributes:
        rollup: The roll-up.
    """

    rollup: Rollup

    @functools.cached_property
    def windows(self) -> pl.DataFrame:
        """The time of the iterations, without overlaps, from the first op on: ``start_ns``, ``end_ns``."""
        first = self.rollup.instances["start_ns"].min()
        opening = pl.max_horizontal("start_ns", pl.lit(first if isinstance(first, int) else 0))
        return self.rollup.iterations.stretches.with_columns(start_ns=opening).filter(LENGTH > 0)

    @functools.cached_property
    def length_ns(self) -> int:
        """Length of the windows."""
        return total(self.windows)

    @property
    def iterations(self) -> int:
        """Number of iterations."""
        return self.rollup.iterations.chosen.height

    @functools.cached_property
    def gpu(self) -> pl.DataFrame:
        """What ran on GPUs, one row an activity in order of start.

        Columns: ``device_id``, ``start_ns``, ``end_ns``, ``kind``, ``name``, ``uses_tc``, ``tc_unknown``, ``activity``,
        ``op``, ``instance``, ``call``, ``api_start_ns``, ``api_end_ns``, ``graph`` (whether a CUDA graph ran it).
        """
        ran = self.rollup.measures.calls.filter(pl.col("kind").is_in(ON_GPU))
        api = [pl.col("start_ns").alias("api_start_ns"), pl.col("end_ns").alias("api_end_ns")]
        times = [pl.col("gpu_start_ns").alias("start_ns"), pl.col("gpu_end_ns").alias("end_ns")]
        names = ["name", "uses_tc", "tc_unknown"]
        rows = ran.select("device_id", *times, "kind", *names, "activity", "op", "instance", "call", *api)
        found = self.clipped(rows.drop_nulls("start_ns")).sort("start_ns", "end_ns")
        kernel = found["kind"] == "kernel"
        nodes = self.rollup.measures.ops.frames("kernels").select("graph_node_id").collect().to_series()
        row = found["activity"].zip_with(kernel, pl.repeat(None, found.height, dtype=pl.Int64, eager=True))
        return found.with_columns(graph=nodes.gather(row).is_not_null() | (found["kind"] == "graph"))

    @functools.cached_property
    def kernels(self) -> pl.DataFrame:
        """The kernels of ``gpu``."""
        return self.gpu.filter(pl.col("kind") == "kernel")

    @functools.cached_property
    def graphs(self) -> bool:
        """Whether the program launches CUDA graphs."""
        return bool(self.gpu["graph"].any())

    @functools.cached_property
    def launches(self) -> pl.DataFrame:
        """The first thing that each call ran on a device, as in ``gpu``: a graph is launched as a whole."""
        return self.gpu.unique(["call", "device_id"], keep="first", maintain_order=True)

    @functools.cached_property
    def calls(self) -> pl.LazyFrame:
        """All CUDA calls of the capture: ``start_ns``, ``end_ns``, ``name`` (String)."""
        return self.rollup.measures.ops.frames("api_calls").select("start_ns", "end_ns", pl.col("name").cast(pl.String))

    @functools.cached_property
    def busy(self) -> pl.DataFrame:
        """When each device does anything: ``device_id``, ``start_ns``, ``end_ns``."""
        return intervals.merge(self.gpu, by=["device_id"])

    @functools.cached_property
    def any_busy(self) -> pl.DataFrame:
        """When any device does anything: ``start_ns``, ``end_ns``."""
        return intervals.merge(self.gpu, by=[])

    @functools.cached_property
    def idle(self) -> pl.DataFrame:
        """When no device does anything within the windows: ``start_ns``, ``end_ns``."""
        return self.without(self.any_busy)

    @functools.cached_property
    def spent(self) -> pl.DataFrame:
        """Where the time of the windows went, by used device: ``device_id`` and ns by part, as of ``breakdown``."""
        rollup, chosen = self.rollup, self.rollup.iterations.chosen
        if self.length_ns == total(chosen):
            made = rollup.breakdown.join(chosen.select("iteration"), on="iteration", how="semi")
            return made.group_by("device_id").agg(pl.col(breakdown.PARTS).sum()).sort("device_id")
        windows = self.windows.with_columns(iteration=pl.int_range(pl.len(), dtype=pl.Int64))
        made = breakdown.breakdown(rollup.measures, replace(rollup.iterations, frame=windows), rollup.used_devices)
        return made.group_by("device_id").agg(pl.col(breakdown.PARTS).sum()).sort("device_id")

    def without(self, stretches: pl.DataFrame) -> pl.DataFrame:
        """Find the time of the windows in which no stretch is open: ``start_ns``, ``end_ns``."""
        bounds = self.windows.select(pl.col("start_ns").min(), pl.col("end_ns").max())
        outer = [bounds.select(start_ns=pl.col(c) + d, end_ns=pl.col(c) + d + 1) for c, d in _AROUND]
        free = intervals.gaps(pl.concat([stretches.select("start_ns", "end_ns"), *outer]), by=[])
        return intervals.overlap(free, self.windows, by=[])

    def clipped(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Cut rows off at the bounds of the windows: one row per row and window that it reaches into."""
        first = self.windows["end_ns"].search_sorted(rows["start_ns"], side="right").cast(pl.Int64)
        stop = self.windows["start_ns"].search_sorted(rows["end_ns"], side="left").cast(pl.Int64)
        reached = rows.with_columns(_first=first, _stop=stop).filter(pl.col("_first") < pl.col("_stop"))
        reached = reached.with_columns(_window=pl.int_ranges("_first", "_stop")).explode("_window")
        bounds = self.windows.select(pl.all().gather(reached["_window"]))
        cut = reached.with_columns(
            pl.max_horizontal("start_ns", bounds["start_ns"]).alias("start_ns"),
            pl.min_horizontal("end_ns", bounds["end_ns"]).alias("end_ns"),
        )
        return cut.select(rows.columns).filter(LENGTH > 0)

    def share(self, time_ns: int) -> float:
        """Give a time in percent of the iterations."""
        return 100 * time_ns / self.length_ns

    def op_name(self, op: int) -> str:
        """Name of an op, of a long one the end."""
        name = str(self.rollup.ops["op_name"][op])
        return name if len(name) <= LONGEST_NAME else "…" + name[1 - LONGEST_NAME :]

    def by_op(self, rows: pl.DataFrame, weight: pl.Expr, at_most: int = 3) -> str:
        """Name the ops that weigh most, each with its part: ``conv1/conv2d (61 %), fc/linear (20 %)``."""
        totals = (
            rows.with_columns(weight=weight)
            .group_by("op")
            .agg(pl.col("weight").sum())
            .sort("weight", "op", descending=[True, False])
        )
        whole = totals["weight"].sum() or 1
        parts = totals.head(at_most).iter_rows()
        return ", ".join(f"{self.op_name(op)} ({100 * w / whole:.0f} %)" for op, w in parts)


def total(rows: pl.DataFrame) -> int:
    """Sum of the lengths of stretches, in ns."""
    return int(rows.select(LENGTH.sum()).item())


def longest(rows: pl.DataFrame) -> tuple[int, int]:
    """Start and end of the longest stretch; the first of equal ones."""
    at = rows.select(LENGTH.arg_max()).item()
    return int(rows["start_ns"][at]), int(rows["end_ns"][at])


def shown(time_ns: float) -> str:
    """Write a time as people read it."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if time_ns >= size:
            return f"{time_ns / size:.3g} {unit}"
    return f"{time_ns:.0f} ns"
