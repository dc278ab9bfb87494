"""Compute bandwidths from the durations that logs of collectives state.

A log may state how long a call ran on each rank, but not when. The duration includes the wait for the last rank. The
rank that started last waits least. Therefore, the shortest duration of the ranks of a collective is the best estimate
of the time of its transfer, from which bandwidths follow as for captures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.communication.analysis import SEND_RECV, bandwidth_exprs
from tracekit.core.communication.calls import LOGGED, MESSAGES
from tracekit.core.communication.matching import message_scale_expr

if TYPE_CHECKING:
    from collections.abc import Callable

    Frames = Callable[[str], pl.LazyFrame]

_GROUP = ("library", "kind", "communicator", "communicator_name", "rank_count", "bytes", "algorithm", "protocol")
_OPERATION = ("library", "kind", "communicator", "sequence")


def read_logged_durations(frames: Frames) -> pl.DataFrame:
    """Return the logged collectives and messages of one rank with their durations.

    Args:
        frames: Function that returns the table with a given name.

    Returns:
        One row per call whose kind and duration are known. The duration is the recorded one, or that of the execution
        on the GPU.
    """
    texts = ("library", "kind", "communicator", "communicator_name", "algorithm", "protocol")
    duration = pl.coalesce("duration_ns", pl.col("end_ns") - pl.col("start_ns"))
    rows = frames(LOGGED).drop_nulls("kind").with_columns(duration_ns=duration).drop_nulls("duration_ns")
    numbers = ("sequence", "communicator_size", "message_bytes", "duration_ns", "recorded_bus_gb_per_s")
    return rows.select(*(pl.col(name).cast(pl.String) for name in texts), *numbers).collect()


def summarize_logged_durations(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the durations and bandwidths of logged collectives and messages, the longest total time first.

    Args:
        calls: The rows of ``read_logged_durations`` of all ranks, with the column ``rank``.

    Returns:
        One row per kind, communicator, size, algorithm and protocol: ``library``, ``kind`` (messages are
        ``send_recv``), ``communicator``, ``communicator_name``, ``rank_count``, ``bytes`` (as in
        ``summarize_operations``), ``algorithm``, ``protocol``, ``count`` (operations), ``call_count`` (calls of all
        ranks), ``time_ns`` (sum over operations of the shortest duration of the ranks), ``min_ns``, ``median_ns`` and
        ``max_ns`` (durations of calls), ``algorithm_gb_per_s`` and ``bus_gb_per_s`` (of the average time), and
        ``recorded_bus_gb_per_s`` (mean of the logged values).
    """
    is_message = pl.col("kind").is_in(MESSAGES)
    rows = calls.with_row_index("row").rename({"communicator_size": "rank_count"})
    rows = rows.with_columns(bytes=pl.col("message_bytes") * message_scale_expr("rank_count"))
    own = pl.when(is_message | pl.col("sequence").is_null()).then("row")
    shortest = pl.col("duration_ns").min().over(*_OPERATION, own)
    is_first = pl.int_range(pl.len()).over(*_OPERATION, own) == 0
    kind = pl.when(is_message).then(pl.lit(SEND_RECV)).otherwise("kind")
    rows = rows.with_columns(time_ns=pl.when(is_first).then(shortest), is_first=is_first, kind=kind)
    groups = rows.group_by(_GROUP, maintain_order=True).agg(
        count=pl.col("is_first").sum().cast(pl.Int64),
        call_count=pl.len().cast(pl.Int64),
        time_ns=pl.col("time_ns").sum(),
        min_ns=pl.col("duration_ns").min(),
        median_ns=pl.col("duration_ns").median(),
        max_ns=pl.col("duration_ns").max(),
        recorded_bus_gb_per_s=pl.col("recorded_bus_gb_per_s").mean(),
    )
    groups = groups.with_columns(bandwidth_exprs(pl.col("bytes") * pl.col("count"), pl.col("time_ns")))
    ordered = ("count", "call_count", "time_ns", "min_ns", "median_ns", "max_ns")
    bandwidths = ("algorithm_gb_per_s", "bus_gb_per_s", "recorded_bus_gb_per_s")
    return groups.select(*_GROUP, *ordered, *bandwidths).sort("time_ns", descending=True, maintain_order=True)
