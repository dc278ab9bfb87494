"""Sum the totals of activities along their call paths, for profiles without a timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.work.peaks import read_peaks

if TYPE_CHECKING:
    from tracekit.core.reads import Frames
    from tracekit.core.work.peaks import Peaks

TABLE = "activity_totals"
ACTIVITY, CALL = "activity", "api_call"
_ID, _PARENT = "activity_total_id", "parent_id"
_SUMS = ("total_ns", "count", "flops", "bytes")
_UNKNOWN = 0
"""Number of bits of operands whose number of bits is unknown."""
_NS_PER_S, _TERA, _GIGA = 1e9, 1e12, 1e9
_TIME = pl.col("total_ns")


def summarize_names(totals: pl.DataFrame) -> pl.DataFrame:
    """Return the totals of activities and of calls by name, largest first. Shares are those of all rows of a kind."""
    timed = totals.filter(_TIME.is_not_null(), pl.col("kind") != "scope")
    grouped = timed.group_by("kind", "name", maintain_order=True).agg(
        total=_TIME.sum(), count=pl.col("count").sum(), min=pl.col("min_ns").min(), max=pl.col("max_ns").max()
    )
    return grouped.with_columns(
        mean=pl.when(pl.col("count") > 0).then(pl.col("total") / pl.col("count")),
        share=_share_expr(pl.col("total"), pl.col("total").sum().over("kind")),
    ).sort("kind", "total", "name", descending=[False, True, False])


def summarize_paths(frames: Frames) -> pl.DataFrame:
    """Return the totals of each call path with those of the paths that it contains.

    The order is that of the file, in which a path precedes the paths that it contains.

    Returns:
        The columns ``path``, ``total``, ``own``, ``count``, ``share``, ``roofline``, ``tflop_per_s``, ``gb_per_s``,
        ``peak_tflop_per_s`` and ``peak_gb_per_s``. Rates are null if the program did not state its work.
    """
    totals = frames(TABLE).filter(pl.col("kind") != CALL).collect()
    summed = _add_contained_totals(totals)
    seconds = pl.when(_TIME > 0).then(_TIME / _NS_PER_S)
    rated = summed.with_columns(flop_per_s=pl.col("flops") / seconds, bytes_per_s=pl.col("bytes") / seconds)
    limits = _find_limits(frames, rated)
    whole = totals["total_ns"].sum()
    compute, memory = pl.col("flop_per_s") / pl.col("rate"), pl.col("bytes_per_s") / pl.col("bandwidth")
    return rated.with_columns(limits).select(
        "path",
        total=_TIME,
        own="own",
        count="count",
        share=_share_expr(_TIME, pl.lit(whole)),
        tflop_per_s=pl.col("flop_per_s") / _TERA,
        gb_per_s=pl.col("bytes_per_s") / _GIGA,
        peak_tflop_per_s=pl.col("rate") / _TERA,
        peak_gb_per_s=pl.col("bandwidth") / _GIGA,
        roofline=100 * pl.max_horizontal(compute, memory),
    )


def _add_contained_totals(totals: pl.DataFrame) -> pl.DataFrame:
    """Add to each row the totals of the rows that it contains, from the innermost to the outermost rows."""
    known = totals.select(_ID, _PARENT, "depth", "path", "device_id", "flop_bits", *_SUMS).with_columns(
        own=_TIME, flop_bits=pl.when(pl.col("flops").is_not_null()).then(pl.col("flop_bits").fill_null(_UNKNOWN))
    )
    levels = [known.filter(pl.col("depth") == depth) for depth in known["depth"].unique().sort(descending=True)]
    finished: list[pl.DataFrame] = []
    for level in levels:
        inner = finished[-1].drop_nulls(_PARENT) if finished else known.clear()
        sums = inner.group_by(_PARENT).agg(
            *(pl.col(c).sum() for c in _SUMS),
            *(pl.col(c).drop_nulls().unique().alias(c) for c in ("device_id", "flop_bits")),
            *(pl.col(c).is_not_null().any().alias(f"has_{c}") for c in _SUMS),
        )
        sums = sums.rename({c: f"inner_{c}" for c in (*_SUMS, "device_id", "flop_bits")})
        joined = level.join(sums, left_on=_ID, right_on=_PARENT, how="left", maintain_order="left")
        values = (*map(_combine_expr, _SUMS), *map(_single_expr, ("device_id", "flop_bits")))
        finished.append(joined.select(_ID, _PARENT, "depth", "path", "own", *values))
    return pl.concat(finished or [known]).sort(_ID)


def _combine_expr(column: str) -> pl.Expr:
    """Return the sum of a value and of those of the rows that a row contains. It is null if none is known."""
    inner = pl.when(f"has_{column}").then(f"inner_{column}")
    is_known = pl.col(column).is_not_null() | inner.is_not_null()
    return pl.when(is_known).then(pl.col(column).fill_null(0) + inner.fill_null(0)).alias(column)


def _single_expr(column: str) -> pl.Expr:
    """Return a value, or that of the rows that a row contains if it is the same in all of them."""
    inner = pl.col(f"inner_{column}")
    return pl.coalesce(column, pl.when(inner.list.len() == 1).then(inner.list.first())).alias(column)


def _find_limits(frames: Frames, rows: pl.DataFrame) -> list[pl.Series]:
    """Return the peak rate of the operations and the bandwidth of the memory of each row."""
    known = read_peaks(frames).recorded
    devices = frames("devices").select("device_id", "memory_bandwidth_bytes_per_s").collect()
    bandwidths = dict(devices.iter_rows())
    pairs = rows.select("device_id", "flop_bits").rows()
    rates = [_get_rate(known.get(device), bits) for device, bits in pairs]
    return [
        pl.Series("rate", rates, pl.Float64),
        pl.Series("bandwidth", [bandwidths.get(device) for device, _ in pairs], pl.Float64),
    ]


def _get_rate(peaks: Peaks | None, bits: int | None) -> float | None:
    """Return the peak rate of operations whose operands have a number of bits, on matrix units if there are any."""
    if peaks is None:
        return None
    return {8: peaks.matrix.get("fp8"), 16: peaks.half, 32: peaks.tf32, 64: peaks.fp64}.get(bits or _UNKNOWN)


def _share_expr(part: pl.Expr, whole: pl.Expr) -> pl.Expr:
    """Return a share in percent, or null if the whole is 0."""
    return pl.when(whole > 0).then(100 * part / whole)
