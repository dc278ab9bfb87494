"""Find causes in what Nsight Compute measured of each kernel, and state which share of its duration a cure leaves.

The same rules apply to a report of Nsight Compute alone (``isolated``) and to the kernels of a timeline that match its
results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.core.diagnosis import kinds
from tracekit.core.ncu.limits import compute_limits
from tracekit.core.ncu.roofline import NEAR_PEAK
from tracekit.core.work.peaks import COLUMNS, find_peaks, get_default_peaks
from tracekit.system.sorting import create_series

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracekit.core.correlate import Frames
    from tracekit.core.work.peaks import Peaks

    Int64s = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]
    Mask = npt.NDArray[np.bool_]

CAUSES = ("", "precision", "memory_layout", "low_occupancy")
NUMBERS = {name: i for i, name in enumerate(CAUSES)}
LIMITS = ("memory_bound", "compute_bound")
"""The healthy causes: what limits kernels at the roofline."""
SHORT_NS = 3_000
"""Duration of a kernel up to which it mostly consists of starting and ending, so that no cure makes it shorter."""
LIBRARY_CLASSES = ("matmul", "matmul_fp32", "matrix_vector", "convolution", "convolution_fp32", "fused_attention")
_PRODUCTS, _PRODUCTS_FP32 = ("matmul", "convolution"), ("matmul_fp32", "convolution_fp32")
_IDLE_TENSOR, _BUSY_FP32 = 0.01, 0.1
_MIN_SPEEDUP, _MOVING_SHARE = 0.05, 0.4
_NEEDED_SECTORS, _USUAL_SECTORS, _LEAST_SECTORS = 16.0, 8.0, 4.0
_REACHED_SHARES = (0.3, 0.6, 1.0)
"""Share of a possible saving that is reached in the low, the likely and the high case.

A transposition whose warps touch 32 sectors per request takes 47 % less time if they touch 4.
"""
_FEW_WARPS, _FEW_LANES, _WARP = 0.5, 0.5, 32
_FP32_EFFICIENCY, _TF32_EFFICIENCY, _HALF_EFFICIENCY, _BEST_HALF_EFFICIENCY = 0.76, 0.5, 0.62, 0.75


@dataclass(frozen=True)
class Measurements:
    """What Nsight Compute measured of kernels, and the cause that it shows for each of them.

    Attributes:
        limits: One row per kernel, with the columns of ``compute_limits``. They are null for kernels without a result.
        cls: Number of the class of each kernel.
        cause: Number of the cause of each kernel in ``CAUSES``, or 0.
        stays: Share of the duration of each kernel that stays in the low, the likely and the high case: three columns.
        is_certain: Whether the metrics show that the cause applies to each kernel.
    """

    limits: pl.DataFrame
    cls: npt.NDArray[np.int8]
    cause: npt.NDArray[np.int8]
    stays: Floats
    is_certain: Mask

    @property
    def measured_kernels(self) -> Mask:
        """Which kernels have a result."""
        return self.limits["launch_id"].is_not_null().to_numpy()

    def find_cause(self, name: str) -> Mask:
        """Return which kernels have a cause."""
        result: Mask = self.cause == NUMBERS[name]
        return result

    @property
    def partial_warps(self) -> Mask:
        """Which kernels have blocks that leave at least half of the lanes of their warps idle."""
        threads = self.read("threads")
        result: Mask = threads / (_WARP * np.ceil(threads / _WARP)) <= _FEW_LANES
        return result

    def find_limit(self, name: str) -> Mask:
        """Return which kernels are limited by memory, or by computation."""
        if name == "memory_bound":
            columns: tuple[str, ...] = ("memory_share", "l2_share")
        else:
            columns = ("tensor_share", "fp32_share")
        near = [self.read(column) > NEAR_PEAK for column in columns]
        limiter = self.limits["limiter"].fill_null("").str.contains("^memory" if name == "memory_bound" else "^math")
        result: Mask = near[0] | near[1] | limiter.to_numpy()
        return result

    def read(self, column: str) -> Floats:
        """Return a share of each kernel, or NaN if it was not measured."""
        return self.limits[column].cast(pl.Float64).fill_null(np.nan).to_numpy()

    def average(self, column: str, rows: Int64s) -> float | None:
        """Return the average of a share over kernels, weighted by time, or None if it was not measured."""
        values, weights = self.read(column)[rows], self.limits["time_ns"].fill_null(0).to_numpy()[rows]
        known = ~np.isnan(values)
        total = weights[known].sum()
        return float((values[known] * weights[known]).sum() / total) if total else None

    def gather(self, rows: Int64s) -> Measurements:
        """Return the measurements of the kernels of the given rows. Row -1 has no result."""
        index = np.where(rows < 0, self.limits.height, rows)
        limits = pl.concat([self.limits, self.limits.clear(1)]).select(pl.all().gather(create_series(index)))
        other = np.array([kinds.NUMBERS["other_kernel"]], np.int8)
        return Measurements(
            limits,
            np.concatenate([self.cls, other])[index],
            np.concatenate([self.cause, np.zeros(1, np.int8)])[index],
            np.concatenate([self.stays, np.ones((1, 3))])[index],
            np.concatenate([self.is_certain, np.zeros(1, np.bool_)])[index],
        )

    def describe(self, rows: Int64s) -> str:
        """Return a clause with the averages over kernels, such as "DRAM at 80 % of its peak", or "" without metrics."""
        shares = (
            ("memory_share", "DRAM at {:.0%} of its peak"),
            ("l2_share", "L2 at {:.0%}"),
            ("l1_share", "L1 at {:.0%}"),
            ("sm_share", "multiprocessors at {:.0%}"),
            ("tensor_share", "Tensor Cores at {:.0%}"),
            ("fp32_share", "FP32 at {:.0%}"),
            ("occupancy", "{:.0%} of the possible warps active"),
        )
        averages = [(text, self.average(column, rows)) for column, text in shares]
        return ", ".join(text.format(value) for text, value in averages if value is not None)


def read_measurements(frames: Frames) -> Measurements:
    """Return what Nsight Compute measured of each kernel, in the order of its results."""
    limits = compute_limits(frames("ncu_launches"), frames("ncu_metrics"), frames("ncu_rules"))
    kind = frames("ncu_launches").select("launch_id", pl.col("kind").cast(pl.String)).collect()
    is_opaque = limits.join(kind, "launch_id", how="left", maintain_order="left")["kind"].is_in(
        ["range", "graph", "cmdlist"]
    )
    cls = kinds.map_names(limits["name"], kinds.classify_kernel_name, kinds.NUMBERS["other_kernel"])
    cls = np.where(is_opaque.to_numpy(), kinds.NUMBERS["opaque_graph"], cls).astype(np.int8)
    sm_count = _count_multiprocessors(frames, limits)
    device = next((row for row in frames("devices").select(COLUMNS).collect().to_dicts() if row["name"]), {})
    peaks = find_peaks({**device, "sm_count": sm_count}) or get_default_peaks()
    return find_causes(limits, cls, peaks, sm_count or peaks.resources.sm_count)


def find_device_name(frames: Frames) -> str | None:
    """Return the name of the first GPU whose name is known, or None."""
    return next((n for n in frames("devices").select("name").collect()["name"] if n), None)


def _count_multiprocessors(frames: Frames, limits: pl.DataFrame) -> int | None:
    """Return the number of multiprocessors of the GPU, or None if it is unknown."""
    counts = pl.concat(
        [
            frames("devices").select(pl.col("sm_count").cast(pl.Float64)).collect()["sm_count"],
            limits["sm_count"],
        ]
    )
    return next((int(count) for count in counts.drop_nulls() if count >= 1), None)


def find_causes(limits: pl.DataFrame, cls: npt.NDArray[np.int8], peaks: Peaks, sm_count: int) -> Measurements:
    """Return the cause of each kernel, and the share of its duration that stays."""
    size = limits.height
    cause, stays = np.zeros(size, np.int8), np.ones((size, 3))
    is_certain = np.zeros(size, np.bool_)
    result = Measurements(limits, cls, cause, stays, is_certain)
    each = limits["time_ns"].to_numpy() / np.maximum(limits["invocations"].to_numpy(), 1)
    free = (each > SHORT_NS) & (cls != kinds.NUMBERS["opaque_graph"])
    for name, rule in (
        ("precision", _find_precision(result, peaks)),
        ("memory_layout", _find_conversions(result)),
        ("memory_layout", _find_strided_access(result)),
        ("low_occupancy", _find_partial_warps(result, each)),
        ("low_occupancy", _find_small_grids(result, each, sm_count)),
        ("low_occupancy", _find_few_warps(result, each)),
    ):
        mask, of_cause, certain = rule
        own = free & mask
        cause[own], is_certain[own] = NUMBERS[name], certain
        stays[own] = of_cause[own].clip(0, 1)
        free &= ~own
    return result


_Cases = tuple["Mask", "Floats", bool]


def _find_precision(measured: Measurements, peaks: Peaks) -> _Cases:
    """Find matrix products in FP32: by their names, or by a busy FP32 pipe while Tensor Cores are idle."""
    tensor, single = measured.read("tensor_share"), measured.read("fp32_share")
    named = kinds.select_classes(measured.cls, _PRODUCTS_FP32) & ~(tensor > _IDLE_TENSOR)
    idle = kinds.select_classes(measured.cls, _PRODUCTS) & (tensor <= _IDLE_TENSOR) & (single >= _BUSY_FP32)
    rate = np.where(np.isnan(single), _FP32_EFFICIENCY, single) * peaks.fp32
    usual = np.full(len(rate), _FP32_EFFICIENCY * peaks.fp32)
    stays = np.stack(
        [
            usual / (_TF32_EFFICIENCY * peaks.tf32),
            usual / (_HALF_EFFICIENCY * peaks.half),
            np.minimum(rate, usual) / (_BEST_HALF_EFFICIENCY * peaks.half),
        ],
        axis=1,
    )
    return (named | idle) & (peaks.half > peaks.fp32), stays, True


def _find_conversions(measured: Measurements) -> _Cases:
    mask = kinds.select_classes(measured.cls, ("layout_conversion",))
    return mask, np.tile([0.3, 0.0, 0.0], (len(mask), 1)), True


def _find_strided_access(measured: Measurements) -> _Cases:
    """Find kernels whose warps touch more sectors of memory than they need."""
    estimate, sectors = measured.read("layout_speedup"), measured.read("sectors_per_request")
    is_strided = (estimate >= _MIN_SPEEDUP) | (np.isnan(estimate) & (sectors > _NEEDED_SECTORS))
    shares = [measured.read(c) for c in ("memory_share", "l1_share", "l2_share")]
    moves = np.fmax(np.fmax(shares[0], shares[1]), shares[2])
    is_strided &= ~(moves < _MOVING_SHARE)
    low, likely, high = (1 - n / sectors for n in (_NEEDED_SECTORS, _USUAL_SECTORS, _LEAST_SECTORS))
    savings = np.stack([np.where(np.isnan(estimate), s, estimate) for s in (low, likely, high)], axis=1)
    return is_strided, 1 - np.nan_to_num(savings) * _REACHED_SHARES, True


def _find_partial_warps(measured: Measurements, each: Floats) -> _Cases:
    """Find kernels whose blocks have so few threads that at least half of each warp is idle."""
    threads = measured.read("threads")
    idle = np.nan_to_num(1 - threads / (_WARP * np.ceil(threads / _WARP)))
    mask = measured.partial_warps & (measured.read("blocks") > 1) & (each > 3 * SHORT_NS)
    return mask, 1 - idle[:, None] * _REACHED_SHARES, True


def _find_small_grids(measured: Measurements, each: Floats, sm_count: int) -> _Cases:
    """Find long kernels with fewer blocks than half of the multiprocessors, apart from those of libraries."""
    blocks = measured.read("blocks")
    is_small = (blocks >= 1) & (blocks < sm_count // 2) & (each > 3 * SHORT_NS)
    is_small &= ~kinds.select_classes(measured.cls, LIBRARY_CLASSES)
    share = np.nan_to_num(blocks / max(1, sm_count), nan=1.0)
    stays = np.stack([0.3 + 0.7 * share, 0.6 * share, 0.25 * share], axis=1)
    estimate = measured.read("grid_speedup")
    is_global = measured.limits["grid_speedup_is_global"].fill_null(value=False).to_numpy()
    known = is_global & (estimate > 0)
    stays[known, 2] = np.maximum(stays[known, 2], 1 - estimate[known])
    stays[known, 1] = np.maximum(stays[known, 1], stays[known, 2])
    return is_small, stays, True


def _find_few_warps(measured: Measurements, each: Floats) -> _Cases:
    """Find kernels that wait for memory or for results, and have less than half of the possible warps.

    Nsight Compute's estimate is an upper limit, and so is the distance to the roofline.
    """
    occupancy = measured.read("occupancy")
    busy = np.fmax(
        np.fmax(measured.read("math_share"), measured.read("sm_share")),
        np.fmax(measured.read("memory_share"), np.fmax(measured.read("l1_share"), measured.read("l2_share"))),
    )
    mask = (occupancy < _FEW_WARPS) & (busy < NEAR_PEAK) & (each > 3 * SHORT_NS)
    mask &= ~kinds.select_classes(measured.cls, LIBRARY_CLASSES)
    room = 1 - np.nan_to_num(busy / NEAR_PEAK, nan=1.0)
    estimate = measured.read("warps_speedup")
    high = np.where(np.isnan(estimate), np.minimum(room, 1 - np.nan_to_num(occupancy)), np.minimum(room, estimate))
    return mask & (high > _MIN_SPEEDUP), np.stack([np.ones(len(high)), 1 - high / 3, 1 - high], axis=1), False
