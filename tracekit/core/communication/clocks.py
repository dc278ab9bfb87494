"""Align the clocks of several traces, first by their origins in UTC, then by the ends of matched collectives.

Ends are compared, not starts: the ranks start a collective when they reach it, and wait for the last one. None of them
can complete it before all have contributed their data, so all complete it at almost the same time. This holds only for
collectives in which each rank needs data of all others, such as an all-reduce, but not for a broadcast, whose root may
complete it much earlier than the other ranks.

The offset of a clock is the median of the differences between ends. Its drift is the slope of Theil and Sen, computed
from pairs of collectives that are half of the capture apart. Both tolerate wrong values for more than a quarter of the
collectives. A drift is used only if it is much larger than the deviations, because every noisy capture has some slope.

Source: P. K. Sen, "Estimates of the Regression Coefficient Based on Kendall's Tau", 1968.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tracekit.core.communication.calls import NCCL, SYNCHRONIZING
from tracekit.core.communication.matching import MATCHED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

REFERENCE, COLLECTIVES, UTC, NONE = "reference", "collectives", "UTC", "none"
MAX_RESIDUAL_NS = 1_000_000
"""Largest median deviation of the ends of common collectives after alignment.

If the deviation is larger, the collectives are assumed to be matched incorrectly, and are not used.
"""
MIN_PAIRS_FOR_DRIFT = 16
_SIGNIFICANT = 2
CLOCKS: dict[str, type[pl.DataType]] = {
    "rank": pl.Int64,
    "method": pl.String,
    "offset_ns": pl.Int64,
    "utc_offset_ns": pl.Int64,
    "drift_ppm": pl.Float64,
    "collective_count": pl.Int64,
    "residual_ns": pl.Int64,
    "max_residual_ns": pl.Int64,
}
"""Columns of ``align_clocks``."""


class FittedLine(NamedTuple):
    """A line that approximates the differences between a clock and the reference clock.

    Attributes:
        offset_ns: The difference at time 0 in ns.
        drift: The slope of the line in ns per ns.
        residuals_ns: The absolute residual of each event in ns.
    """

    offset_ns: int
    drift: float
    residuals_ns: Numbers


def align_clocks(matched_calls: pl.DataFrame, origins: Mapping[int, int | None]) -> pl.DataFrame:
    """Return the conversion of the times of each trace to the clock of the first trace.

    A time ``t`` of a trace is ``t + offset_ns + drift_ppm * t / 1e6`` on the common clock, which is the clock of the
    first trace.

    Args:
        matched_calls: The result of ``match_calls``.
        origins: Maps the rank of each trace to its origin in UTC in ns, or to None if the origin was not recorded.

    Returns:
        One row per trace, in order of ``rank``, with the columns ``CLOCKS``. ``method`` is reference (the first trace),
        collectives, UTC (the trace has no collective in common with the aligned traces, or their ends contradict each
        other), or none (the trace cannot be aligned, and its offset is null). ``utc_offset_ns`` is the offset according
        to the origins alone. ``residual_ns`` and ``max_residual_ns`` are the median and the largest absolute deviation
        of the ends of ``collective_count`` collectives after alignment.
    """
    ranks = sorted(origins)
    if not ranks:
        return pl.DataFrame(schema=CLOCKS)
    reference = ranks[0]
    utc = {rank: _compute_origin_offset(origins[rank], origins[reference]) for rank in ranks}
    rows: dict[int, tuple[object, ...]] = {reference: (reference, REFERENCE, 0, 0, 0.0, 0, None, None)}
    remaining = _collect_collective_ends(matched_calls)
    common = remaining.filter(trace_rank=reference).select("collective_id", common="end_ns")
    remaining = remaining.filter(pl.col("trace_rank") != reference)
    while (pairs := _select_traces_to_align(remaining, common)).height:
        lines = []
        for (rank,), of_rank in pairs.group_by("trace_rank", maintain_order=True):
            fit = _fit_clock(of_rank)
            if fit is None:
                rows[rank] = (rank, UTC, utc[rank], utc[rank], 0.0, of_rank.height, None, None)
                continue
            offset, drift, residuals = fit
            lines.append((rank, offset, drift))
            middle, largest = int(np.median(residuals)), int(residuals.max())
            rows[rank] = (rank, COLLECTIVES, offset, utc[rank], 1e6 * drift, of_rank.height, middle, largest)
        fits = pl.DataFrame(lines, {"trace_rank": pl.Int64, "offset": pl.Int64, "drift": pl.Float64}, orient="row")
        aligned = remaining.join(fits, on="trace_rank", maintain_order="left")
        moved = pl.col("end_ns") + pl.col("offset") + (pl.col("end_ns") * pl.col("drift")).round().cast(pl.Int64)
        common = pl.concat([common, aligned.select("collective_id", common=moved)])
        common = common.unique("collective_id", keep="first", maintain_order=True)
        remaining = remaining.join(pairs.select("trace_rank").unique(), on="trace_rank", how="anti")
    for rank in ranks:
        known = rows.get(rank, (rank, UTC, utc[rank], utc[rank], 0.0, 0, None, None))
        rows[rank] = known if known[1] != UTC or utc[rank] is not None else (rank, NONE, *known[2:])
    return pl.DataFrame([rows[rank] for rank in ranks], schema=CLOCKS, orient="row")


def _compute_origin_offset(origin_ns: int | None, reference_ns: int | None) -> int | None:
    """Return the origin of a trace minus that of the reference, or None if one of them is unknown."""
    return None if origin_ns is None or reference_ns is None else origin_ns - reference_ns


def _collect_collective_ends(matched_calls: pl.DataFrame) -> pl.DataFrame:
    """Return, for each trace, the end of each complete collective that synchronizes all ranks.

    If a trace contains several ranks, the end is that of the last rank. Collectives that only one trace contains are
    omitted. Nonblocking calls are omitted, because a rank may wait for them long after they are complete.
    """
    rows = matched_calls.filter(pl.col("kind").is_in(SYNCHRONIZING), pl.col("status") == MATCHED)
    is_exact = pl.when(pl.col("library") == NCCL).then(pl.col("kernel_id").is_not_null())
    rows = rows.filter(is_exact.otherwise(pl.col("end_ns") == pl.col("call_end_ns"))).drop_nulls("end_ns")
    rows = rows.filter(pl.col("trace_rank").n_unique().over("collective_id") > 1)
    of = ["trace_rank", "collective_id"]
    return rows.group_by(of).agg(pl.col("end_ns").max()).sort(of)


def _select_traces_to_align(unaligned_ends: pl.DataFrame, aligned_ends: pl.DataFrame) -> pl.DataFrame:
    """Select the traces to align next, and return the ends of the collectives that they share with aligned traces.

    A trace is selected if it shares at least half as many collectives as the trace that shares the most. Other traces
    are aligned later, because they may share more collectives with the traces that are aligned now.

    Args:
        unaligned_ends: The ends of the collectives of the traces that are not yet aligned, on their own clocks.
        aligned_ends: The ends of the collectives of the aligned traces on the common clock, one row per collective.
    """
    pairs = unaligned_ends.join(aligned_ends, on="collective_id")
    count = pl.len().over("trace_rank")
    pairs = pairs.with_columns(_count=count).filter(2 * pl.col("_count") >= pl.col("_count").max())
    return pairs.sort("trace_rank", "end_ns", "collective_id")


def _fit_clock(end_pairs: pl.DataFrame) -> FittedLine | None:
    """Return the result of ``fit_robust_line`` for a clock, or None if the median residual exceeds the limit."""
    times, others = end_pairs["end_ns"].to_numpy(), end_pairs["common"].to_numpy()
    line = fit_robust_line(times, others - times)
    return None if np.median(line.residuals_ns) > MAX_RESIDUAL_NS else line


def fit_robust_line(times: Numbers, differences: Numbers) -> FittedLine:
    """Fit a line to the differences between a clock and the reference clock.

    Args:
        times: Times of one or more events on the clock in ns, in ascending order.
        differences: Time of each event on the reference clock minus its time on the clock, in ns.
    """
    base = int(differences[0])
    relative = differences - base
    level = round(float(np.median(relative)))
    constant = np.abs(relative - level)
    half = len(times) // 2
    spans = times[half:] - times[: len(times) - half]
    pairs = (spans > 0).nonzero()[0]
    if len(times) < MIN_PAIRS_FOR_DRIFT or not len(pairs):
        return FittedLine(base + level, 0.0, constant)
    drift = float(np.median((relative[half:] - relative[: len(times) - half])[pairs] / spans[pairs]))
    if abs(drift) * float(times[-1] - times[0]) <= _SIGNIFICANT * float(np.median(constant)):
        return FittedLine(base + level, 0.0, constant)
    slope = np.round(drift * times).astype(np.int64)
    offset = round(float(np.median(relative - slope)))
    return FittedLine(base + offset, drift, np.abs(relative - slope - offset))


def convert_to_common_clock(
    rows: pl.DataFrame, clocks: pl.DataFrame, time_columns: Sequence[str], *, rank_column: str = "rank"
) -> pl.DataFrame:
    """Convert times of several traces to the common clock.

    Args:
        rows: Rows of several traces.
        clocks: The result of ``align_clocks``.
        time_columns: The columns with times. Times of traces that cannot be aligned become null.
        rank_column: The column with the rank of the trace.
    """
    facts = clocks.select(pl.col("rank").alias(rank_column), _offset="offset_ns", _drift=pl.col("drift_ppm") / 1e6)
    joined = rows.join(facts, on=rank_column, how="left", maintain_order="left")
    drifts = [
        pl.when(pl.col("_drift") == 0).then(0).otherwise((pl.col(c) * pl.col("_drift")).round()) for c in time_columns
    ]
    times = [pl.col(c) + pl.col("_offset") + d.cast(pl.Int64) for c, d in zip(time_columns, drifts, strict=True)]
    return joined.with_columns(times).drop("_offset", "_drift")
