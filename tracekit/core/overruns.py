"""Find activities whose recorded times contradict their stream, in which activities run one after the other."""

from __future__ import annotations

import polars as pl

from tracekit.core.relations import STREAM

_STREAM = ("process_id", *STREAM)
READ = (*_STREAM, "start_ns", "end_ns", "graph_node_id")
MAX_OVERLAP_NS, MAX_ROUNDING_NS = 100_000, 1_000
"""Overlaps up to these durations are normal: of an activity with one that starts and ends later, because programmatic
dependent launches start the next kernel early, and with one that ends earlier, because some times are rounded to µs."""


def find_overrunning_activities(activities: pl.DataFrame) -> pl.DataFrame:
    """Return the activities that run over the start of the next activity of their stream by more than is possible.

    An activity overruns if it ends after the next activity has ended, or more than 100 µs after the next activity has
    started. Activities of CUDA graphs are ignored, because a graph runs activities of one stream in parallel. So are
    activities of unknown streams.

    Args:
        activities: The columns ``READ``.

    Returns:
        One row per overrunning activity: ``row`` (row number in ``activities``), ``start_ns``, ``end_ns``, and
        ``next_row`` and ``next_ns`` (row number and start of the next activity), in order of ``row``.
    """
    launched = activities.with_row_index("row").filter(pl.col("graph_node_id").fill_null(0) == 0)
    ordered = launched.sort(*_STREAM, "start_ns", "end_ns", nulls_last=True, maintain_order=True)
    is_same_stream = pl.all_horizontal(pl.col(name).eq_missing(pl.col(name).shift(-1)) for name in _STREAM)
    is_same_stream &= pl.col("stream_id").is_not_null()
    next_start, next_end = pl.col("start_ns").shift(-1), pl.col("end_ns").shift(-1)
    overlap = pl.col("end_ns") - next_start
    overruns = (overlap > MAX_OVERLAP_NS) | ((overlap > MAX_ROUNDING_NS) & (pl.col("end_ns") > next_end))
    rows = ordered.select(
        "row",
        "start_ns",
        "end_ns",
        next_row=pl.col("row").shift(-1),
        next_ns=next_start,
        overruns=is_same_stream & overruns,
    )
    return rows.filter("overruns").drop("overruns").sort("row")
