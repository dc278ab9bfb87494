"""Compare the work of ops with the peak rates of the GPU: how long each op takes at least, and what limits it.

The *bound* of an op is the longer of two times: its operations ÷ the peak rate of its type, and its bytes ÷ the
bandwidth of the memory. No kernel that does the same work can be faster, unless its data is in a cache.

Collective operations have no bound: their kernels wait for other ranks, and for the links between GPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tracekit.core.work.limits import FILLED, KERNEL_COLUMNS, SHORT_NS, fill_columns, measure_late_launches
from tracekit.core.work.ops import compute_op_work
from tracekit.core.work.peaks import MATRIX_KINDS, read_peaks
from tracekit.core.work.pointwise import COLLECTIVE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.core.correlate import Frames
    from tracekit.core.work.ops import OpWork
    from tracekit.core.work.peaks import KnownPeaks, Peaks

AT_ROOFLINE, GOOD_SHARE = 0.6, 0.8
"""Shares of a peak rate that good libraries reach: between 60 % and 80 %."""
KEYS = ("name", "shapes", "types", "kind", "type")
"""The columns of ``OpWork.ops`` by which instances of ops are grouped."""
_IS_COLLECTIVE = pl.col("kind").cast(pl.String) == COLLECTIVE
_MAX_INTEGER = float(1 << 63)
_SUMS = ("kernel_count", "gpu_time_ns", "flop", "bytes", "compute_ns", "memory_ns", "bound_ns", "measured_bound_ns")


class BoundedOps(NamedTuple):
    """The ops of a capture with their bounds.

    Attributes:
        work: The work of the ops.
        ops: One row per op as in ``work.ops``, and the columns ``device_id``, ``process_id``, ``start_ns`` (of the
            first kernel), ``bytes``, ``rate`` (peak rate in operations per second), ``bandwidth``, ``compute_ns``,
            ``memory_ns`` and ``bound_ns``; ``rate`` and ``bound_ns`` at the measured clock and of the data
            sheet, with the prefixes ``measured_`` and ``sheet_``; ``late_ns`` (for which the GPU was idle before its
            kernels because of late launches), ``limited_ns`` (in kernels that their grids or their shortness limit),
            ``fill_ns`` (time × fill of the GPU) and ``filled_ns`` (time in kernels whose fill is known). Unknown
            values are null.
        kernels: One row per kernel: ``kernel_id``, ``range_id`` of its op or null, ``process_id``, ``device_id``,
            ``start_ns`` and ``duration_ns``.
        peaks: The peak rates of the devices.
    """

    work: OpWork
    ops: pl.DataFrame
    kernels: pl.DataFrame
    peaks: KnownPeaks


def bound_ops(frames: Frames) -> BoundedOps:
    """Return the ops of a capture whose work is known, with the least time that each of them needs.

    Args:
        frames: Function that returns the declared table with a given name.
    """
    work = compute_op_work(frames)
    peaks = read_peaks(frames)
    kernels = frames("kernels").select("process_id", *KERNEL_COLUMNS).collect()
    duration = (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns")
    kernels = kernels.hstack(fill_columns(kernels, peaks.recorded)).with_columns(
        duration, work.kernels["kernel_id"], work.kernels["range_id"], late_ns=measure_late_launches(frames, kernels)
    )
    sums = work.ops.select("range_id").join(_sum_kernels(kernels), on="range_id", how="left", maintain_order="left")
    ops = work.ops.hstack(sums.drop("range_id")).with_columns(bytes=pl.col("read_bytes") + pl.col("written_bytes"))
    bounds = _compute_bounds(ops, peaks.recorded)
    others = [
        _compute_bounds(ops, of_kind).select(pl.col("rate", "bound_ns").name.prefix(prefix))
        for prefix, of_kind in (("measured_", peaks.measured), ("sheet_", peaks.sheets))
    ]
    ops = pl.concat([ops, bounds, *others], how="horizontal")
    shown = ("kernel_id", "range_id", "process_id", "device_id", "start_ns", "duration_ns")
    return BoundedOps(work, ops, kernels.select(shown), peaks)


def _sum_kernels(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return what the kernels of each op have in common, by ``range_id``."""
    duration = pl.col("duration_ns")
    is_limited = (pl.col("fill") < FILLED) | (duration <= SHORT_NS)
    known = pl.col("fill").is_not_null()
    return (
        kernels.drop_nulls("range_id")
        .group_by("range_id")
        .agg(
            pl.col("device_id", "process_id").first(),
            pl.col("start_ns").min(),
            pl.when(pl.col("late_ns").is_not_null().any()).then(pl.col("late_ns").sum()).alias("late_ns"),
            limited_ns=duration.filter(is_limited.fill_null(value=False)).sum(),
            fill_ns=(duration * pl.col("fill")).sum(),
            filled_ns=duration.filter(known).sum(),
        )
    )


def _compute_bounds(ops: pl.DataFrame, peaks: Mapping[int, Peaks]) -> pl.DataFrame:
    """Return the peak rates of ops, and the least times that they need.

    Returns:
        One row per op: ``rate``, ``bandwidth``, ``compute_ns``, ``memory_ns`` and ``bound_ns``. The bound of matrix
        products, convolutions and attention is unknown without the time of the computation, and that of other ops
        without the time of the memory. Collective operations have none of these.
    """
    distinct = ops.filter(~_IS_COLLECTIVE).select("device_id", "type", "kind").unique()
    rates = [
        (device, type_, kind, peaks[device].get_rate(type_, kind), peaks[device].bandwidth)
        for device, type_, kind in distinct.iter_rows()
        if device in peaks
    ]
    keys = {name: ops.schema[name] for name in distinct.columns}
    table = pl.DataFrame(rates, schema={**keys, "rate": pl.Float64, "bandwidth": pl.Float64}, orient="row")
    rows = ops.select(*keys, "flop", "bytes").join(
        table, on=list(keys), how="left", nulls_equal=True, maintain_order="left"
    )
    compute = pl.when(pl.col("flop") == 0).then(0.0).otherwise(pl.col("flop") / pl.col("rate") * 1e9)
    memory = pl.col("bytes") / pl.col("bandwidth") * 1e9
    needed = pl.when(pl.col("kind").cast(pl.String).is_in(MATRIX_KINDS)).then(compute).otherwise(memory)
    bound = pl.when(needed.is_not_null()).then(pl.max_horizontal(compute, memory))
    return rows.select("rate", "bandwidth", compute_ns=compute, memory_ns=memory, bound_ns=bound)


def summarize_ops(bounded: BoundedOps) -> pl.DataFrame:
    """Return the roofline of each op, shapes and types, the longest GPU time first.

    Returns:
        One row per distinct value of ``KEYS``, and ``instances``, the sums ``_SUMS``, ``rate``, ``bandwidth``,
        ``intensity`` (FLOP per byte), ``flop_per_s``, ``bytes_per_s``, ``share`` and ``measured_share`` (bound ÷ GPU
        time), ``limited_by``, ``savable_ns``, ``savable_low_ns``, ``savable_high_ns``, ``fill`` and ``late_ns``. The
        last row has no name: it contains the kernels whose work is unknown, if there are any.
    """
    time, bound = pl.col("gpu_time_ns"), pl.col("bound_ns")
    above = {"savable_ns": 1.0, "savable_high_ns": GOOD_SHARE, "savable_low_ns": AT_ROOFLINE}
    savable = [(time - bound / share).clip(0).alias(name) for name, share in above.items()]
    is_late = pl.col("late_ns") >= time
    rows = bounded.ops.with_columns(savable, is_late=is_late)
    grouped = rows.group_by(KEYS, maintain_order=True).agg(
        *(_sum_or_null_expr(c) for c in (*_SUMS, *above)),
        *(pl.col(c).max() for c in ("rate", "bandwidth")),
        *(pl.col(c).sum() for c in ("late_ns", "limited_ns", "fill_ns", "filled_ns")),
        instances=pl.len().cast(pl.Int64),
        late_count=pl.col("is_late").sum(),
    )
    grouped = grouped.sort("gpu_time_ns", "name", "shapes", descending=[True, False, False], nulls_last=True)
    filled = pl.when(pl.col("filled_ns") > 0).then(pl.col("filled_ns"))
    positive = pl.when(time > 0).then(time)
    grouped = grouped.with_columns(
        intensity=pl.col("flop") / pl.when(pl.col("bytes") > 0).then(pl.col("bytes")),
        flop_per_s=pl.col("flop") / positive * 1e9,
        bytes_per_s=pl.col("bytes") / positive * 1e9,
        share=bound / positive,
        measured_share=pl.col("measured_bound_ns") / positive,
        fill=pl.col("fill_ns") / filled,
    ).with_columns(limited_by=_limit_expr())
    return pl.concat([grouped, _describe_unknown_kernels(bounded, grouped)], how="diagonal_relaxed")


def _sum_or_null_expr(column: str) -> pl.Expr:
    """Return an expression for the sum of a column. It is null if a value is null, or if the sum exceeds 64 bits."""
    values = pl.col(column)
    fits = values.cast(pl.Float64).sum().abs() < _MAX_INTEGER
    return pl.when(values.null_count() == 0, fits).then(values.sum()).alias(column)


def _limit_expr() -> pl.Expr:
    """Return an expression for what limits ops: ``launch``, ``compute``, ``memory``, ``latency``, or null.

    It is null for collective operations.
    """
    is_at_roofline = pl.col("share") >= AT_ROOFLINE
    is_memory = pl.col("memory_ns").fill_null(0) > pl.col("compute_ns").fill_null(0)
    return (
        pl.when(_IS_COLLECTIVE)
        .then(None)
        .when(2 * pl.col("late_count") > pl.col("instances"))
        .then(pl.lit("launch"))
        .when(is_at_roofline & is_memory)
        .then(pl.lit("memory"))
        .when(is_at_roofline)
        .then(pl.lit("compute"))
        .when(2 * pl.col("limited_ns") >= pl.col("gpu_time_ns"))
        .then(pl.lit("latency"))
    )


def _describe_unknown_kernels(bounded: BoundedOps, known: pl.DataFrame) -> pl.DataFrame:
    """Return one row for the kernels whose work is unknown, or none if there are none."""
    unknown = bounded.kernels.filter(pl.col("range_id").is_null())
    if unknown.is_empty():
        return known.clear()
    values = {"kernel_count": unknown.height, "gpu_time_ns": int(unknown["duration_ns"].sum())}
    return pl.DataFrame([values], schema={c: known.schema[c] for c in values})
