"""Compute what limits each kernel that Nsight Compute measured: occupancy, throughputs, pipes, access, and rules.

All shares are from 0 to 1. A value is null if the metrics that it needs were not collected, or if they are not valid
numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.ncu.join import pivot_values, select_most_precise_values
from tracekit.core.ncu.roofline import compute_launch_roofline, select_disjoint_results
from tracekit.errors import MissingTableError

if TYPE_CHECKING:
    from collections.abc import Mapping

_ELAPSED, _ACTIVE = ".avg.pct_of_peak_sustained_elapsed", ".avg.pct_of_peak_sustained_active"
_PERCENTAGES: Mapping[str, tuple[str, ...]] = {
    "occupancy": (f"sm__warps_active{_ACTIVE}",),
    "theoretical_occupancy": ("sm__maximum_warps_per_active_cycle_pct",),
    "l1_share": (f"l1tex__throughput{_ACTIVE}", f"l1tex__throughput{_ELAPSED}"),
    "l2_share": (f"lts__throughput{_ELAPSED}",),
    "fma_share": (
        f"sm__pipe_fma_cycles_active{_ELAPSED}",
        f"sm__pipe_fma_cycles_active{_ACTIVE}",
        f"sm__inst_executed_pipe_fma{_ACTIVE}",
    ),
    "tensor_instructions_share": (
        f"sm__pipe_tensor_cycles_active{_ELAPSED}",
        f"sm__pipe_tensor_cycles_active{_ACTIVE}",
        f"sm__pipe_tensor_op_hmma_cycles_active{_ACTIVE}",
        f"sm__inst_executed_pipe_tensor{_ACTIVE}",
    ),
}
"""The metrics in percent from which each share is derived. The first one that was collected is used."""
_SECTORS = {op: f"l1tex__t_sectors_pipe_lsu_mem_global_op_{op}.sum" for op in ("ld", "st")}
_REQUESTS = {op: f"l1tex__t_requests_pipe_lsu_mem_global_op_{op}.sum" for op in ("ld", "st")}
_COUNTS = {"waves": "launch__waves_per_multiprocessor", "sm_count": "device__attribute_multiprocessor_count"}
_MAX_VALUE, _FULL = 1e18, 100.0
_TENSOR_NOISE = 0.07
"""Share up to which the pipe of Tensor Cores is busy in kernels that do not use them, because other work shares it."""

SPEEDUPS: Mapping[str, tuple[str, ...]] = {
    "layout": ("UncoalescedGlobalAccess", "MemoryCacheAccessPattern"),
    "grid": ("LaunchConfiguration",),
    "warps": ("AchievedOccupancy", "TheoreticalOccupancy", "Occupancy"),
}
"""The rules of Nsight Compute whose estimated speedups are used, by what they are about."""

SCHEMA: Mapping[str, pl.DataType] = {
    "launch_id": pl.Int64(),
    "name": pl.Categorical(),
    "invocations": pl.Int64(),
    "time_ns": pl.Int64(),
    "blocks": pl.Int64(),
    "threads": pl.Int64(),
    **dict.fromkeys(("process_id", "device_id", "stream_id"), pl.Int64()),
    **dict.fromkeys(
        (
            *("math_share", "memory_share", "l1_share", "l2_share", "sm_share", "tensor_share", "fp32_share"),
            *("occupancy", "theoretical_occupancy", "waves", "sm_count", "sectors_per_request"),
            *(f"{about}_speedup" for about in SPEEDUPS),
        ),
        pl.Float64(),
    ),
    "grid_speedup_is_global": pl.Boolean(),
    "limiter": pl.String(),
}


def compute_limits(launches: pl.LazyFrame, metrics: pl.LazyFrame, rules: pl.LazyFrame) -> pl.DataFrame:
    """Compute what limits each result of Nsight Compute.

    Args:
        launches: The table ``ncu_launches``. Groups of launches, from a summary, are used only if there are no single
            launches.
        metrics: The table ``ncu_metrics``.
        rules: The table ``ncu_rules``.

    Returns:
        One row per result with a duration, in file order, with the columns ``SCHEMA``:

        - ``time_ns``: the duration of all invocations.
        - ``blocks``, ``threads``: the number of blocks, and of threads per block.
        - ``math_share``, ``limiter``: as in the report ``ncu_limiter``.
        - ``memory_share``: the throughput of DRAM as a share of its peak. ``l1_share``, ``l2_share`` and ``sm_share``
          are those of the caches and of the multiprocessors.
        - ``tensor_share``, ``fp32_share``: the time in which the pipes of Tensor Cores and of FP32 are busy.
        - ``occupancy``: the warps that were active, as a share of those that a multiprocessor can hold.
        - ``waves``: how often the grid fills the GPU.
        - ``sectors_per_request``: sectors of global memory per request of a warp; at most 16 are needed.
        - ``layout_speedup``, ``grid_speedup``, ``warps_speedup``: the largest speedup that rules of Nsight Compute
          estimate for better memory access, larger grids, and more warps, as a share of the duration.
    """
    rows = launches.collect()
    disjoint = _measure_roofline(rows, metrics)
    values = _read_metrics(metrics)
    sizes = [
        (pl.col(f"{of}_x").cast(pl.Int64) * pl.col(f"{of}_y") * pl.col(f"{of}_z")).alias(name)
        for of, name in (("grid", "blocks"), ("block", "threads"))
    ]
    details = rows.select("launch_id", "process_id", "device_id", "stream_id", *sizes)
    joined = disjoint
    for other in (details, values, _read_speedups(rules)):
        joined = joined.join(other, "launch_id", how="left", maintain_order="left")
    tensor = pl.coalesce(
        pl.col("tensor_busy_ns") / pl.col("time_ns"),
        pl.when(pl.col("tensor_instructions_share") <= _TENSOR_NOISE).then(0.0).otherwise("tensor_instructions_share"),
    )
    named = joined.with_columns(
        tensor_share=tensor,
        fp32_share=pl.coalesce(pl.col("fp32_busy_ns") / pl.col("time_ns"), "fma_share"),
        sm_share=pl.col("sm_throughput_share"),
        invocations=pl.col("launches"),
    )
    return named.select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items())


def _measure_roofline(launches: pl.DataFrame, metrics: pl.LazyFrame) -> pl.DataFrame:
    """Return the roofline of each result with a duration. Its columns are null without metrics of a roofline."""
    try:
        rows = compute_launch_roofline(launches.lazy(), metrics)
    except MissingTableError:
        timed = select_disjoint_results(launches, by_range=False).with_columns(
            time_ns=(pl.col("duration_ns") * pl.col("invocations")).cast(pl.Float64), launches=pl.col("invocations")
        )
        empty = ("math_share", "memory_share", "sm_throughput_share", "tensor_busy_ns", "fp32_busy_ns")
        nulls = [pl.lit(None, pl.Float64).alias(c) for c in empty]
        rows = timed.with_columns(*nulls, limiter=pl.lit(None, pl.String))
    timed = rows.filter(pl.col("time_ns").is_between(0, _MAX_VALUE, closed="right"))
    return timed.with_columns(pl.col("time_ns").round().cast(pl.Int64))


def _read_metrics(metrics: pl.LazyFrame) -> pl.DataFrame:
    """Return the metrics of each result that the roofline does not contain."""
    sources = {**{name: (metric,) for name, metric in _COUNTS.items()}, **_PERCENTAGES}
    access = (*_SECTORS.values(), *_REQUESTS.values())
    names = [*access, *(metric for listed in sources.values() for metric in listed)]
    selected = select_most_precise_values(metrics.filter(pl.col("metric").cast(pl.String).is_in(names)))
    valid = selected.filter(pl.col("value").is_finite() & pl.col("value").is_between(0, _MAX_VALUE))
    wide = pivot_values(valid, "value")
    wide = wide.with_columns(pl.lit(None, pl.Float64).alias(n) for n in names if n not in wide.columns)
    shares = [pl.coalesce(*listed).clip(0, _FULL).truediv(_FULL).alias(n) for n, listed in _PERCENTAGES.items()]
    each = [pl.col(_SECTORS[op]) / pl.when(pl.col(_REQUESTS[op]) > 0).then(pl.col(_REQUESTS[op])) for op in _SECTORS]
    counts = [pl.col(metric).alias(name) for name, metric in _COUNTS.items()]
    return wide.select("launch_id", *counts, *shares, pl.max_horizontal(each).alias("sectors_per_request"))


def _read_speedups(rules: pl.LazyFrame) -> pl.DataFrame:
    """Return the largest estimated speedups of each result, as shares of its duration."""
    rule = pl.coalesce(pl.col("rule_id").cast(pl.String), pl.col("section_id").cast(pl.String))
    percent = pl.col("speedup_percent")
    valid = percent.is_finite() & percent.is_between(0, _FULL, closed="right")
    rows = rules.select("launch_id", "speedup_type", percent, rule=rule).filter(valid)
    is_grid = pl.col("rule").is_in(SPEEDUPS["grid"])
    is_global = pl.col("speedup_type").cast(pl.String) == "global"
    return (
        rows.group_by("launch_id")
        .agg(
            *(
                percent.filter(pl.col("rule").is_in(ids)).max().truediv(_FULL).alias(f"{about}_speedup")
                for about, ids in SPEEDUPS.items()
            ),
            grid_speedup_is_global=is_global.filter(is_grid).any(),
        )
        .collect()
    )
