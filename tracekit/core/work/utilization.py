"""Compute the model FLOP utilization (MFU) of steps: the work of a step ÷ what the GPU could do at its peak rates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.correlate import Ranges
from tracekit.core.trees import find_nearest_matching_rows
from tracekit.core.work.peaks import MATRIX_KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.core.correlate import Frames
    from tracekit.core.work.peaks import Peaks
    from tracekit.core.work.roofline import BoundedOps

TYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp4")
"""The types for which the operations of a step are counted."""
_COUNTS = ("flop", "without_peak_flop", "recomputed_flop", *(f"{t}_flop" for t in TYPES))
_TIMES = {"hfu": "executed_ns", "mfu": "model_ns", "measured_mfu": "measured_ns", "sheet_mfu": "sheet_ns"}
"""The utilizations, and the times at peak rates from which they are computed."""
_BACKWARD = r"^autograd::engine::evaluate_function"
_FORWARD = r"^aten::(linear|scaled_dot_product_attention|conv[123]d|conv_transpose[123]d)\b"
"""Ops that only forward passes call. In a backward pass, their work is that of a forward pass that is done again."""


def compute_step_utilization(frames: Frames, steps: pl.DataFrame, bounded: BoundedOps) -> pl.DataFrame:
    """Return the work and the utilization of each step, and those of all steady steps of each process.

    A kernel belongs to the step in which it starts, and an op to that of its first kernel.

    Args:
        frames: Function that returns the declared table with a given name.
        steps: Steps in order of process and time: ``process_id``, ``iteration``, ``name``, ``start_ns``, ``end_ns``,
            ``is_warm_up`` and ``duration_ns``.
        bounded: The ops of the capture with their bounds.

    Returns:
        The rows of ``steps`` with ``gpu_time_ns`` (of kernels), ``known_ns`` (of kernels whose work is known), ``flop``
        (of the matrix products, convolutions and attention of the model, see ``Work.model_flop``), ``executed_flop``
        (which the GPU executed), ``without_peak_flop`` (whose type or peak is unknown), ``recomputed_flop``, one
        column per type of ``TYPES``, ``covered``, and the keys of ``_TIMES``, as shares. The
        row of all steady steps has no ``iteration``. A utilization is null if no peak is known. All work is null if
        that of no kernel is known.
    """
    steps = steps.select("process_id", "iteration", "name", "start_ns", "end_ns", "is_warm_up", "duration_ns")
    steps = steps.with_row_index("step")
    kernels = _find_steps(bounded.kernels, steps)
    places = _find_steps(bounded.ops.select("process_id", "start_ns", "range_id"), steps)
    ops = places.join(_measure_ops(frames, bounded), on="range_id")
    executed = pl.col("executed_flop")
    sums = ops.group_by("step").agg(
        pl.col(*_COUNTS, *_TIMES.values()).sum(), executed.sum(), is_executed_unknown=executed.has_nulls()
    )
    duration = pl.col("duration_ns")
    is_known = pl.col("range_id").is_not_null()
    times = kernels.group_by("step").agg(gpu_time_ns=duration.sum(), known_ns=duration.filter(is_known).sum())
    rows = steps.join(times, on="step", how="left", maintain_order="left")
    rows = rows.join(sums, on="step", how="left", maintain_order="left").drop("step")
    used = bounded.kernels.group_by("process_id").agg(device_ids=pl.col("device_id").unique())
    rows = rows.join(used, on="process_id", how="left", nulls_equal=True, maintain_order="left")
    summed = ("gpu_time_ns", "known_ns", "executed_flop", *_COUNTS, *_TIMES.values())
    rows = rows.with_columns(pl.col(summed).fill_null(0), pl.col("is_executed_unknown").fill_null(value=False))
    totals = (
        rows.filter(~pl.col("is_warm_up"))
        .group_by("process_id", maintain_order=True)
        .agg(
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
            pl.col("duration_ns", *summed).sum(),
            pl.col("device_ids").first(),
            pl.col("is_executed_unknown").any(),
            is_warm_up=pl.lit(value=False),
        )
    )
    return _add_shares(pl.concat([rows, totals], how="diagonal"), bounded)


def _add_shares(rows: pl.DataFrame, bounded: BoundedOps) -> pl.DataFrame:
    """Add the utilizations of steps: the time at peak rates ÷ the duration of the step on all devices of a process."""
    devices = pl.col("device_ids")
    available = pl.col("duration_ns") * devices.list.len()
    available = pl.when(available > 0).then(available)
    peaks = bounded.peaks
    known: Mapping[str, Mapping[int, Peaks]] = {"measured_mfu": peaks.measured, "sheet_mfu": peaks.sheets}
    shares = {
        name: pl.when(devices.list.set_difference(list(known.get(name, peaks.recorded))).list.len() == 0).then(
            pl.col(time) / available
        )
        for name, time in _TIMES.items()
    }
    covered = pl.col("known_ns") / pl.when(pl.col("gpu_time_ns") > 0).then(pl.col("gpu_time_ns"))
    rows = rows.with_columns(**shares, covered=covered).drop(*_TIMES.values(), "device_ids")
    is_unknown = (pl.col("covered") == 0).fill_null(value=False)
    executed = pl.when(~is_unknown & ~pl.col("is_executed_unknown")).then(pl.col("executed_flop", "hfu"))
    return rows.with_columns(pl.when(~is_unknown).then(pl.col(*_COUNTS, *_TIMES))).with_columns(executed)


def _find_steps(rows: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that start within a step of their process, with the number ``step``."""
    bounds = steps.select("process_id", "step", "end_ns", from_ns="start_ns").sort("from_ns")
    parts = [
        own.sort("start_ns", maintain_order=True).join_asof(
            bounds.filter(pl.col("process_id").eq_missing(pl.lit(process, pl.Int64))).drop("process_id"),
            left_on="start_ns",
            right_on="from_ns",
        )
        for (process,), own in rows.partition_by("process_id", as_dict=True, maintain_order=True).items()
    ]
    empty = rows.clear().with_columns(step=pl.lit(None, pl.UInt32), end_ns=pl.lit(None, pl.Int64))
    joined = pl.concat([empty, *(part.select(empty.columns) for part in parts)])
    return joined.filter(pl.col("start_ns") < pl.col("end_ns")).drop("end_ns")


def _measure_ops(frames: Frames, bounded: BoundedOps) -> pl.DataFrame:
    """Return the operations of each op by type, and the times that they need at the peak rates, by ``range_id``."""
    flop, type_ = pl.col("flop"), pl.col("type").cast(pl.String)
    ops = bounded.ops.with_columns(model=pl.coalesce("model_flop", flop)).filter(
        pl.col("kind").cast(pl.String).is_in(MATRIX_KINDS), pl.col("model").is_not_null()
    )
    again = pl.col("range_id").is_in(_find_recomputed_ranges(frames).implode())
    ops = ops.with_columns(again=again).with_columns(model=pl.when(~pl.col("again")).then("model").otherwise(0))
    model = pl.col("model")

    def time_expr(work: pl.Expr, rate: str) -> pl.Expr:
        return (work / pl.col(rate) * 1e9).fill_null(0.0)

    return ops.select(
        "range_id",
        *(pl.when(type_ == t).then(model).otherwise(0).alias(f"{t}_flop") for t in TYPES),
        flop=model,
        executed_flop=flop,
        without_peak_flop=pl.when(pl.col("rate").is_null()).then(model).otherwise(0),
        recomputed_flop=pl.when("again").then(flop.fill_null(0)).otherwise(0),
        executed_ns=time_expr(flop, "rate"),
        model_ns=time_expr(model, "rate"),
        measured_ns=time_expr(model, "measured_rate"),
        sheet_ns=time_expr(model, "sheet_rate"),
    )


def _find_recomputed_ranges(frames: Frames) -> pl.Series:
    """Return the ids of the ranges in which a backward pass computes a forward pass again, as checkpoints require."""
    names = frames("nvtx_ranges").filter(pl.col("kind") == "push_pop").select("name").collect().to_series()
    distinct = names.unique().to_frame()
    text = pl.col("name").cast(pl.String)
    passes = distinct.select("name", forward=text.str.contains(_FORWARD), backward=text.str.contains(_BACKWARD))
    if not (passes["forward"].any() and passes["backward"].any()):
        return pl.Series(dtype=pl.Int64)
    ranges = Ranges(frames)
    kinds = names.to_frame().join(passes, on="name", how="left", maintain_order="left", nulls_equal=True)
    forward = find_nearest_matching_rows(ranges.parent, kinds["forward"].fill_null(value=False))
    backward = find_nearest_matching_rows(ranges.parent, kinds["backward"].fill_null(value=False))
    return ranges.range_id.filter(backward.gather(forward).is_not_null())
