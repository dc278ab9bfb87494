"""Find what keeps kernels from the peak rates of the GPU: small grids, last waves, short kernels, and late launches.

A *wave* is as many blocks as the GPU can hold at a time: its multiprocessors × the blocks that one of them can hold,
which depends on the registers, the shared memory and the warps of a block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.correlate import Activities, Ranges
from tracekit.core.relations import ACTIVITIES
from tracekit.core.series import map_frame_blocks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.core.correlate import Frames
    from tracekit.core.work.peaks import Peaks

SHORT_NS = 5_000
"""Duration of a kernel up to which starting and ending it are a large part of the time."""
FILLED = 0.75
"""Share of the multiprocessors' time that a grid must use at least, or the grid limits the kernel."""
_REGISTER_UNIT, _WARP_UNIT = 256, 4
"""Registers are allocated to warps in units of 256, and warps to the four partitions of a multiprocessor in turn."""
_GRID, _BLOCK = ("grid_x", "grid_y", "grid_z"), ("block_x", "block_y", "block_z")
_SHARED = ("static_shared_memory_bytes", "dynamic_shared_memory_bytes")
KERNEL_COLUMNS = ("device_id", "start_ns", "end_ns", *_GRID, *_BLOCK, "registers_per_thread", *_SHARED)
"""The columns of ``kernels`` that the functions of this module read."""


def fill_columns(kernels: pl.DataFrame, peaks: Mapping[int, Peaks]) -> pl.DataFrame:
    """Compute how well the grid of each kernel fills the GPU.

    Args:
        kernels: Kernels with the columns ``KERNEL_COLUMNS``.
        peaks: The peak rates of the devices, with the resources of their multiprocessors, by ``device_id``.

    Returns:
        One row per kernel: ``waves`` (blocks of the grid ÷ blocks that the GPU holds at a time) and ``fill`` (share of
        the multiprocessors' time that the grid can use, from 0 to 1). They are null if they are unknown.
    """
    return map_frame_blocks(lambda block: _fill_columns_of_block(kernels[block], peaks), kernels.height)


def _fill_columns_of_block(kernels: pl.DataFrame, peaks: Mapping[int, Peaks]) -> pl.DataFrame:
    """Return the rows of ``fill_columns`` for some kernels."""
    schema = {"device_id": pl.Int32, "sms": pl.Int64, "max_blocks": pl.Int64, "max_warps": pl.Int64}
    schema |= {"lanes": pl.Int64, "max_registers": pl.Int64, "max_shared": pl.Int64, "reserved": pl.Int64}
    devices = pl.DataFrame([(d, *p.resources) for d, p in peaks.items()], schema=schema, orient="row")
    rows = kernels.join(devices, on="device_id", how="left", maintain_order="left")
    size = {"blocks": _GRID, "threads": _BLOCK}
    products = {
        name: pl.reduce(lambda a, b: a * b, [pl.col(c).cast(pl.Float64) for c in cs]) for name, cs in size.items()
    }
    rows = rows.with_columns(**products).with_columns(warps=(pl.col("threads") / pl.col("lanes")).ceil())
    blocks, sms, resident = pl.col("blocks"), pl.col("sms"), _resident_blocks_expr()
    rows = rows.with_columns(waves=blocks / (sms * resident))
    of_sm = (blocks / sms).ceil() * sms
    fill = (
        pl.when(blocks < sms)
        .then(blocks / sms)
        .when(pl.col("waves") <= 1)
        .then(blocks / of_sm)
        .otherwise(pl.col("waves") / pl.col("waves").ceil())
    )
    is_known = (blocks > 0) & (pl.col("threads") > 0)
    return rows.select(
        pl.when(is_known).then(c).alias(name) for name, c in (("waves", pl.col("waves")), ("fill", fill))
    )


def _resident_blocks_expr() -> pl.Expr:
    """Return an expression for the number of blocks that a multiprocessor holds at a time, or null if it is unknown."""
    of_warp = (pl.col("registers_per_thread") * pl.col("lanes") / _REGISTER_UNIT).ceil() * _REGISTER_UNIT
    warps_by_registers = (pl.col("max_registers") / of_warp / _WARP_UNIT).floor() * _WARP_UNIT
    shared = pl.sum_horizontal(*_SHARED) + pl.col("reserved")
    limits = (
        pl.when(pl.col("registers_per_thread") > 0).then(warps_by_registers / pl.col("warps")),
        pl.when(shared > 0).then(pl.col("max_shared") / shared),
        pl.col("max_blocks").cast(pl.Float64),
    )
    by_warps = (pl.col("max_warps") / pl.col("warps")).floor()
    least = pl.min_horizontal(by_warps, *(limit.floor() for limit in limits))
    return pl.when(by_warps.is_not_null()).then(pl.max_horizontal(least, 1.0))


def measure_late_launches(frames: Frames, kernels: pl.DataFrame) -> pl.Series:
    """Return for how long the GPU was idle before each kernel because its API call came late, in ns.

    It is 0 if other work of the device ran until the kernel started, or if the call had returned before this work
    ended. It is null if the call was not recorded.

    Args:
        frames: Function that returns the declared table with a given name.
        kernels: All rows of ``kernels`` in order, with ``device_id``, ``start_ns`` and ``end_ns``.
    """
    times = ("device_id", "start_ns", "end_ns")
    others = [frames(table).select(times).collect() for table in ACTIVITIES if table != "kernels"]
    rows = [kernels.select(*times, row=pl.int_range(pl.len())), *(t.with_columns(row=-1) for t in others)]
    ordered = pl.concat(rows, how="vertical_relaxed").sort("device_id", "start_ns", "end_ns", maintain_order=True)
    before = pl.col("end_ns").cum_max().shift(1).over("device_id")
    ends = ordered.with_columns(before=before).filter(pl.col("row") >= 0).sort("row")["before"]
    columns = frames("kernels").collect_schema().names()
    if "api_end_ns" in columns:
        called = frames("kernels").select("api_end_ns").collect().to_series()
    else:
        called = Activities(frames, "kernels", Ranges(frames)).copy_call_column("api_end_ns")
    idle = pl.when(pl.col("called") > pl.col("before")).then(pl.col("start_ns") - pl.col("before")).otherwise(0)
    known = pl.when(pl.col("called").is_not_null()).then(pl.max_horizontal(idle, 0).fill_null(0))
    return kernels.select("start_ns").with_columns(before=ends, called=called).select(idle=known).to_series()
