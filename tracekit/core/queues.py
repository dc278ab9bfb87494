"""Compute how many operations wait in the queue of each stream: those that were launched and have not started."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.relations import ACTIVITIES, CALL, STREAM, join_calls

if TYPE_CHECKING:
    from collections.abc import Callable

    Frames = Callable[[str], pl.LazyFrame]

QUEUE = ("process_id", *STREAM)
"""Columns that identify a queue."""


def read_launches(frames: Frames, all_frames: Frames) -> pl.DataFrame:
    """Return when each operation of the GPU was launched and when it started.

    Args:
        frames: Function that returns the table of activities with a given name.
        all_frames: Function that returns the API calls, which a selection of activities does not limit.

    Returns:
        The columns ``QUEUE``, ``launch_ns`` (start of the API call, or null if it was not recorded, at most
        ``start_ns``) and ``start_ns``.
    """
    activities = [frames(table).select(*QUEUE, "correlation_id", "start_ns") for table in ACTIVITIES]
    calls = all_frames("api_calls").filter(pl.col("correlation_id") != 0).select(*CALL, launch_ns="start_ns")
    rows = join_calls(pl.concat(activities), calls, "first", "left")
    return rows.select(
        *QUEUE,
        pl.when(pl.col("launch_ns").is_not_null()).then(pl.min_horizontal("launch_ns", "start_ns")).alias("launch_ns"),
        "start_ns",
    ).collect()


def compute_queue_lengths(launches: pl.DataFrame) -> pl.DataFrame:
    """Return the length of each queue after each change.

    Args:
        launches: The result of ``read_launches``. Operations without ``launch_ns`` are left out.

    Returns:
        One row per queue and time at which its length changes, in order of queue and time: ``QUEUE``, ``timestamp_ns``
        and ``length``. The first row of a queue is that of its first launch, and its last length is 0. A queue whose
        operations all start when they are launched has one row per launch, with the length 0.
    """
    known = launches.drop_nulls("launch_ns")
    queues = known.select(QUEUE).unique().sort(QUEUE, nulls_last=True).with_row_index("queue")
    numbered = known.join(queues, on=list(QUEUE), how="left", nulls_equal=True, maintain_order="left")
    changes = [
        numbered.select("queue", timestamp_ns=c, change=pl.lit(n, pl.Int64))
        for c, n in (("launch_ns", 1), ("start_ns", -1))
    ]
    rows = pl.concat(changes).sort("queue", "timestamp_ns")
    rows = rows.with_columns(length=pl.col("change").cum_sum())  # the changes of a queue add up to 0
    is_last = pl.struct("queue", "timestamp_ns").ne_missing(pl.struct("queue", "timestamp_ns").shift(-1))
    lengths = rows.filter(is_last).join(queues, on="queue", how="left", maintain_order="left")
    return lengths.select(*QUEUE, "timestamp_ns", "length")


def summarize_queues(launches: pl.DataFrame, threshold: int) -> pl.DataFrame:
    """Return the longest and the mean length of each queue, weighted by time.

    Args:
        launches: The result of ``read_launches``.
        threshold: The length above which a queue counts as long.

    Returns:
        One row per queue, in order of ``QUEUE``: the number of ``operations`` and of those ``without_call``,
        ``span_ns`` (from the first launch to the last start), ``max_length`` and the time at which it is first
        reached (``max_ns``), ``mean_length``, ``waiting_ns`` (sum of the times from launch to start), ``above_ns`` and
        ``above_percent`` (time with more than ``threshold`` operations), ``empty_ns`` and ``empty_percent``. If no
        launch was recorded, all but the numbers of operations are null.
    """
    lengths = compute_queue_lengths(launches)
    following = pl.col("timestamp_ns").shift(-1).over(QUEUE)
    lengths = lengths.with_columns(ns=(following - pl.col("timestamp_ns")).fill_null(0))
    length, ns = pl.col("length"), pl.col("ns")
    sums = lengths.group_by(QUEUE).agg(
        span_ns=ns.sum(),
        max_length=length.max(),
        max_ns=pl.col("timestamp_ns").get(length.arg_max()),
        waiting_ns=(length * ns).sum(),
        above_ns=ns.filter(length > threshold).sum(),
        empty_ns=ns.filter(length == 0).sum(),
    )
    counts = launches.group_by(QUEUE).agg(
        operations=pl.len().cast(pl.Int64), without_call=pl.col("launch_ns").null_count().cast(pl.Int64)
    )
    rows = counts.join(sums, on=list(QUEUE), how="left", nulls_equal=True).sort(QUEUE, nulls_last=True)
    shares = {"mean_length": (1, "waiting_ns"), "above_percent": (100, "above_ns"), "empty_percent": (100, "empty_ns")}
    return rows.with_columns(
        pl.when(pl.col("span_ns") > 0).then(factor * pl.col(c) / pl.col("span_ns")).alias(name)
        for name, (factor, c) in shares.items()
    )
