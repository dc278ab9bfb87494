"""Compute bandwidths from the durations that logs of collectives state.

A log may state how long a call ran on each rank, but not when. The duration includes the wait for the last rank. The
rank that started last waits least. Therefore, the shortest duration of the ranks of a collective is the best estimate
of the time of its transfer, from which bandwidths follow as for captures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.communication.analysis import ORIGINS, SEND_RECV, bandwidth_exprs, build_utc_origin_table
from tracekit.core.communication.calls import LOGGED, MESSAGES
from tracekit.core.communication.matching import message_scale_expr

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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


DETAILS = ("communication_call_id", "state", "duration_ns", "algorithm", "protocol", "user_stack_id")
_TOLERANCE_NS = 20_000
"""By how much the clocks of a profiler and of a log on the same machine may differ."""
JOINED: dict[str, type[pl.DataType]] = {
    "rank": pl.Int64,
    "kind": pl.String,
    "communicator": pl.String,
    "message_bytes": pl.Int64,
    **dict.fromkeys(("call_id", "call_start_ns", "call_end_ns", "kernel_id", "start_ns", "end_ns"), pl.Int64),
    "log_communicator": pl.String,
    "sequence": pl.Int64,
    "communication_call_id": pl.Int64,
    "state": pl.String,
    "duration_ns": pl.Int64,
    "algorithm": pl.String,
    "protocol": pl.String,
    "user_stack_id": pl.Int64,
}
"""Columns of ``join_logged_calls``."""


def read_log_tables(frames: Frames) -> dict[str, pl.DataFrame]:
    """Return the tables of one log that are needed to join it with a capture: calls, and the origin in UTC.

    Args:
        frames: Function that returns the table with a given name.
    """
    columns = ("kind", "communicator", "sequence", "created_ns", *DETAILS)
    rows = frames(LOGGED).drop_nulls(["kind", "created_ns"]).select(columns)
    texts = ("kind", "communicator", "state", "algorithm", "protocol")
    calls = rows.with_columns(pl.col(texts).cast(pl.String)).collect()
    return {LOGGED: calls, ORIGINS: build_utc_origin_table(frames)}


def join_logged_calls(
    calls: pl.DataFrame, origins: Mapping[int, int | None], logged: pl.DataFrame, log_origins: Mapping[int, int | None]
) -> pl.DataFrame:
    """Return the calls of captures with the logged calls that were made in them.

    A program logs a call while it makes it. Therefore, a logged call belongs to the call of the same rank and kind
    during which it was logged. If the log names communicators as the captures do, they must also be equal.

    Args:
        calls: The rows of ``read_communication_calls`` of all captures, with the column ``rank``.
        origins: Maps the rank of each capture to its origin in UTC in ns, or to None.
        logged: The calls of ``read_log_tables`` of all logs, with the column ``rank``.
        log_origins: Maps the rank of each log to its origin in UTC in ns, or to None.

    Returns:
        One row per call, with the columns ``JOINED``. Those of the log are null for calls that were not logged.
    """
    by = ["rank", "kind"]
    rows = calls.drop_nulls("call_start_ns").with_row_index("row")
    utc = rows.with_columns(
        origin=pl.col("rank").replace_strict(origins, default=None, return_dtype=pl.Int64)
    ).drop_nulls("origin")
    spans = utc.select(
        *by,
        "row",
        _communicator="communicator",
        _utc=pl.col("call_start_ns") + pl.col("origin") - _TOLERANCE_NS,
        _end=pl.coalesce("call_end_ns", "call_start_ns") + pl.col("origin") + _TOLERANCE_NS,
    ).sort("_utc")
    log_origin = pl.col("rank").replace_strict(log_origins, default=None, return_dtype=pl.Int64)
    entries = logged.with_columns(_utc=pl.col("created_ns") + log_origin).drop_nulls("_utc").sort("_utc")
    inside = entries.join_asof(spans, on="_utc", by=by, check_sortedness=False).drop_nulls("row")
    is_shared = pl.col("communicator").is_in(rows["communicator"].drop_nulls().unique().implode())
    is_same = (pl.col("communicator") == pl.col("_communicator")) | ~is_shared.fill_null(value=False)
    inside = inside.filter((pl.col("_utc") <= pl.col("_end")) & is_same)
    inside = inside.unique("row", keep="first", maintain_order=True)
    inside = inside.select("row", "sequence", *DETAILS, log_communicator="communicator")
    joined = rows.join(inside, on="row", how="left", maintain_order="left")
    return joined.select(pl.col(name).cast(kind) for name, kind in JOINED.items())
