"""The figures of a DLProf database about the whole model: utilisations, categories, shares of time, iterations."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.rollup.breakdown import PARTS

if TYPE_CHECKING:
    from tracekit.core.rollup import Rollup

CATEGORY = ("cpu_time", "gpu_time", "cpu_overhead", "gpu_idle", "count")
ON_DEVICE = ("tensor_core", "other_kernel", "memory")


@dataclass(frozen=True)
class Model:
    """Figures of the whole model over the aggregated iterations.

    Attributes:
        rollup: The roll-up they are made of.
    """

    rollup: Rollup

    @functools.cached_property
    def wall_ns(self) -> int:
        """How long any aggregated iteration ran: from the first start to the last end, without what lies between."""
        length = pl.col("end_ns") - pl.col("start_ns")
        return int(self.rollup.iterations.stretches.select(length.sum()).item())

    @functools.cached_property
    def shares(self) -> pl.DataFrame:
        """Time by part of each aggregated iteration, the mean of the used devices: ``iteration``, ns by part."""
        chosen = self.rollup.iterations.chosen["iteration"].implode()
        found = self.rollup.breakdown.filter(pl.col("iteration").is_in(chosen))
        return found.group_by("iteration").agg(pl.col(PARTS).sum() / pl.len()).sort("iteration")

    @functools.cached_property
    def percentages(self) -> dict[str, float]:
        """Share of the time of the iterations by part, in percent."""
        return {p: self.percent(sum(self.shares[p].to_list())) for p in PARTS}

    @functools.cached_property
    def device_utilization(self) -> dict[int, float]:
        """Share of the time of the iterations in which a device ran a kernel, in percent, of each listed device."""
        listed = self.rollup.devices.filter(pl.lit("name" in self.rollup.devices.columns))["device_id"]
        chosen = self.rollup.iterations.chosen["iteration"].implode()
        kernels = pl.col("tensor_core").sum() + pl.col("other_kernel").sum()
        found = self.rollup.breakdown.filter(pl.col("iteration").is_in(chosen)).group_by("device_id").agg(ns=kernels)
        ran = dict(found.select("device_id", "ns").iter_rows())
        return {d: self.percent(ran.get(d, 0)) for d in listed}

    @functools.cached_property
    def gpu_utilization(self) -> float:
        """Mean of the used devices, in percent."""
        used = set(self.rollup.used_devices.to_list())
        found = [share for device, share in self.device_utilization.items() if device in used]
        return sum(found) / len(found) if found else 0.0

    @functools.cached_property
    def tc_utilization(self) -> float:
        """Share of Tensor Core kernels in the kernel time of ops that are eligible, in per cent."""
        eligible = self.rollup.ops["eligible"].gather(self.rollup.kernels["op"])
        kernels = self.rollup.kernels.filter(eligible)
        total, used = (int(k["kernel_gpu"].sum()) for k in (kernels, kernels.filter("uses_tc")))
        return 100 * used / total if total else 0.0

    @functools.cached_property
    def iteration_ns(self) -> tuple[float, float]:
        """Mean and standard deviation of the lengths of aggregated iterations."""
        lengths = self.lengths
        mean = sum(lengths) / len(lengths)
        return mean, math.sqrt(sum((n - mean) ** 2 for n in lengths) / len(lengths))

    @functools.cached_property
    def lengths(self) -> list[int]:
        """Length of each aggregated iteration."""
        found: list[int] = (
            self.rollup.iterations.chosen.select(pl.col("end_ns") - pl.col("start_ns")).to_series().to_list()
        )
        return found

    @functools.cached_property
    def categories(self) -> pl.DataFrame:
        """DLProf's eight categories, one row each, columns ``CATEGORY``.

        All ops, those eligible that did not use Tensor Cores, those that did, all others; all kernels, those on Tensor
        Cores, all others; copies and sets.
        """
        eligible, used = pl.col("eligible"), pl.col("uses_tc")
        ops = [self._ops(w) for w in (pl.lit(value=True), eligible & ~used, used, ~used & ~eligible)]
        on, off = (_calls(self.rollup.kernels.filter(w)) for w in (used, ~used))
        both = tuple(a + b for a, b in zip(on, off, strict=True))
        rows = [*ops, both, on, off, _calls(self.rollup.memory)]
        return pl.DataFrame(rows, schema=dict.fromkeys(CATEGORY, pl.Int64), orient="row")

    def percent(self, ns: float) -> float:
        """Return a time in percent of the aggregated iterations, which add up to the wall time unless they overlap."""
        whole = sum(self.lengths)
        return 100 * ns / whole if whole else 0.0

    def _ops(self, wanted: pl.Expr) -> tuple[int, ...]:
        sums = [pl.col(f"{m}_sum").sum() for m in ("cpu", "gpu", "overhead", "idle")]
        found = self.rollup.ops.filter(wanted).select(*sums, (pl.col("count") > 0).sum().cast(pl.Int64))
        return tuple(found.row(0))


def _calls(calls: pl.DataFrame) -> tuple[int, ...]:
    names = calls["name"].cast(pl.String).n_unique() if calls.height else 0
    return int(calls["kernel_api"].sum()), int(calls["kernel_gpu"].sum()), 0, 0, names
