"""Compute reports on OpenMP events and MPI calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.relations import THREAD
from tracekit.core.reports.summary import (
    DURATION,
    sort_largest_total_first,
    summarize_groups,
)
from tracekit.core.series import string_ranks_expr

if TYPE_CHECKING:
    from tracekit.core.reports.report import Request


def openmp_sum(request: Request) -> pl.LazyFrame:
    """OpenMP events by kind and name."""
    first = pl.col("openmp_event_id").min().over("kind").alias("first")
    rows = request.frames("openmp_events").select("name_id", "name", DURATION, first)
    grouped = summarize_groups(rows, ["first", "name_id", "name"])
    return sort_largest_total_first(grouped, "first", "name_id")


def mpi_event_sum(request: Request) -> pl.LazyFrame:
    """MPI calls by kind and function."""
    rows = request.frames("mpi_calls").select("kind", "name_id", "name", DURATION)
    return sort_largest_total_first(summarize_groups(rows, ["kind", "name_id", "name"]), "kind", "name_id")


def mpi_event_trace(request: Request) -> pl.LazyFrame:
    """Every MPI call in order of start. A call that waits for several requests has one row per request."""
    ranks = request.frames("mpi_ranks").select(*THREAD, "rank")
    printed = ("name", *THREAD, "tag", "remote_rank", "root_rank", "receive_size_bytes")
    rows = request.frames("mpi_calls").select(
        *("start_ns", "end_ns", *printed),
        DURATION,
        pl.when(_IS_COLLECTIVE.not_()).then("size_bytes").alias("message_bytes"),
        pl.when(_IS_COLLECTIVE).then("size_bytes").alias("sent_bytes"),
    )
    return rows.sort("start_ns", maintain_order=True).join(ranks, on=THREAD, how="left", maintain_order="left_right")


def mpi_msg_size_sum(request: Request) -> pl.LazyFrame:
    """Sizes of MPI messages in bytes by direction and function, most frequent first."""
    calls = request.frames("mpi_calls")
    parts = [
        _read_message_sizes(calls.filter(kind="p2p"), "size_bytes", "p2p"),
        _read_message_sizes(calls.filter(_IS_COLLECTIVE), "size_bytes", "coll_send").drop_nulls("bytes"),
        _read_message_sizes(calls.filter(_IS_COLLECTIVE), "receive_size_bytes", "coll_recv").drop_nulls("bytes"),
    ]
    grouped = summarize_groups(pl.concat(parts), ["source", "name_id", "name"], "bytes")
    keys = ("count", string_ranks_expr(pl.col("source")), "name_id")
    return grouped.sort(*keys, descending=[True, False, False])


_IS_COLLECTIVE = pl.col("kind") == "collectives"


def _read_message_sizes(calls: pl.LazyFrame, size_column: str, source: str) -> pl.LazyFrame:
    """Return the sizes of MPI messages: ``source``, ``name_id``, ``name`` and ``bytes`` (null if unknown).

    Args:
        calls: The MPI calls.
        size_column: Name of the column of ``calls`` that contains the sizes.
        source: The value of the returned column ``source``.
    """
    return calls.select(pl.lit(source).alias("source"), "name_id", "name", pl.col(size_column).alias("bytes"))
