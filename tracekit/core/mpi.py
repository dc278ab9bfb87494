"""Match the MPI calls of the processes in one capture: receives with sends, and the calls of collective operations.

Messages between two ranks with the same communicator and tag arrive in the order in which they were sent. Therefore the
n-th receive matches the n-th send. Messages to a rank that receives from any source or with any tag are not matched.

Some calls, such as ``MPI_Sendrecv``, transfer messages that are not recorded. Messages that have the same communicator
and tag as such a call are not matched. Other messages in this communicator are matched only if the two ranks recorded
equal numbers of sends and receives.

Source: "MPI: A Message-Passing Interface Standard", section 3.5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable

    Frames = Callable[[str], pl.LazyFrame]

CALLS = "mpi_calls"
ADDED = ("sender_call_id", "collective_id")
_SENDS = [f"MPI_{kind}" for kind in ("Send", "Bsend", "Rsend", "Ssend", "Isend", "Ibsend", "Irsend", "Issend")]
_RECEIVES = ["MPI_Recv", "MPI_Irecv"]
_NO_TRANSFERS = ["MPI_Probe", "MPI_Iprobe", "MPI_Cancel"]
_COMMUNICATOR = ["group_root", "group_root_id", "size", "self"]
"""Columns that identify a communicator in all processes. ``self`` distinguishes those of a single process."""
_MESSAGE = [*_COMMUNICATOR, "source", "target", "tag"]
_BEGINNING = -(1 << 62)


def match_mpi_calls(frames: Frames) -> pl.DataFrame:
    """Return, for each MPI call, the id of the matching send and the id of the collective operation.

    Returns:
        The columns ``sender_call_id`` and ``collective_id``, with one row per row of ``mpi_calls``, in the same order.
    """
    calls = read_calls_with_communicators(frames)
    senders = _find_completing_calls(_match_receives_to_sends(calls), calls)
    added = calls.select("mpi_call_id").join(senders, on="mpi_call_id", how="left", maintain_order="left")
    return added.join(_compute_collective_ids(calls), on="mpi_call_id", how="left", maintain_order="left").select(ADDED)


def read_calls_with_communicators(frames: Frames) -> pl.DataFrame:
    """Return the MPI calls with the properties of their communicator and the rank of their process in it."""
    names = ("mpi_call_id", "start_ns", "process_id", "communicator", "tag", "remote_rank", "request")
    texts = [pl.col(c).cast(pl.String) for c in ("kind", "name")]
    calls = frames(CALLS).select(*names, *texts).collect()
    ranks = frames("mpi_ranks").select("process_id", "rank").unique("process_id", keep="first", maintain_order=True)
    more = ("rank", "communicator", "local_rank", *_COMMUNICATOR[:3])
    listed = frames("mpi_communicators").select(*more, start_ns=pl.col("timestamp_ns").fill_null(_BEGINNING)).collect()
    own = pl.when(pl.col("size") == 1).then("rank").otherwise(-1)
    listed = listed.with_columns(pl.col("group_root", "group_root_id").fill_null(-1), own.alias("self"))
    placed = calls.with_row_index("row").join(ranks.collect(), on="process_id", how="left")
    by = ["rank", "communicator"]
    placed = placed.sort("start_ns").join_asof(
        listed.drop_nulls([*by, "size"]).sort("start_ns"), on="start_ns", by=by, check_sortedness=False
    )
    return placed.sort("row")


def _match_receives_to_sends(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the receives with a known matching send, and the id of this send as ``sender_call_id``."""
    transfers = calls.filter(pl.col("kind") == "p2p", ~pl.col("name").is_in(_NO_TRANSFERS).fill_null(value=False))
    sends, receives = (pl.col("name").is_in(names).fill_null(value=False) for names in (_SENDS, _RECEIVES))
    hidden = transfers.filter(~sends & ~receives).select(*_COMMUNICATOR, "tag").unique()
    incoming = transfers.filter(receives).with_columns(source="remote_rank", target="local_rank")
    is_known = (pl.col("source") >= 0) & (pl.col("tag") >= 0)
    of_any = incoming.filter(~is_known.fill_null(value=False)).select(*_COMMUNICATOR, "target").unique()
    outgoing = transfers.filter(sends).with_columns(source="local_rank", target="remote_rank")
    numbered = []
    for rows in (incoming, outgoing):
        known = rows.drop_nulls(_MESSAGE).join(hidden, on=[*_COMMUNICATOR, "tag"], how="anti")
        known = known.join(of_any, on=[*_COMMUNICATOR, "target"], how="anti").sort("start_ns", "mpi_call_id")
        counted = known.with_columns(nth=pl.int_range(pl.len()).over(_MESSAGE), count=pl.len().over(_MESSAGE))
        numbered.append(counted)
    received, sent = numbered
    keys = [*_MESSAGE, "nth"]
    pairs = received.join(sent.select(*keys, "count", sender_call_id="mpi_call_id"), on=keys, suffix="_sent")
    unsure = pl.col("has_hidden") & (pl.col("count") != pl.col("count_sent"))
    marked = pairs.join(
        hidden.select(*_COMMUNICATOR, has_hidden=True).unique(), on=_COMMUNICATOR, how="left", maintain_order="left"
    )
    return marked.filter(~unsure.fill_null(value=False))


def _find_completing_calls(receives: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the id of the call that completes each receive, and the id of the call that sent the message.

    A receive is completed by the first later wait for its request, or by itself if no call waits for it.
    """
    waits = calls.filter(pl.col("kind") == "start-wait", pl.col("name").str.starts_with("MPI_Wait"))
    by = ["process_id", "request"]
    waits = waits.drop_nulls(by).sort("start_ns").select(*by, "start_ns", wait_id="mpi_call_id")
    with_waits = receives.sort("start_ns").join_asof(
        waits, on="start_ns", by=by, strategy="forward", check_sortedness=False
    )
    completed = with_waits.select("sender_call_id", mpi_call_id=pl.coalesce("wait_id", "mpi_call_id"))
    return completed.unique("mpi_call_id", keep="first", maintain_order=True)


def _compute_collective_ids(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the id of the collective operation of each collective call with a known communicator.

    All processes of a communicator call its collective operations in the same order, so the n-th calls of all processes
    are one operation.

    Returns:
        The columns ``mpi_call_id`` and ``collective_id``.
    """
    rows = calls.filter(pl.col("kind") == "collectives").drop_nulls(["size", "local_rank"])
    rows = rows.sort("start_ns", "mpi_call_id")
    rows = rows.with_columns(nth=pl.int_range(pl.len()).over(*_COMMUNICATOR, "local_rank"))
    operation = [*_COMMUNICATOR, "nth"]
    same = rows.filter(pl.col("name").n_unique().over(operation) == 1)
    first = same.unique(operation, keep="first", maintain_order=True).select(operation)
    numbered = first.with_columns(collective_id=pl.int_range(1, pl.len() + 1, dtype=pl.Int64))
    return same.join(numbered, on=operation).select("mpi_call_id", "collective_id")
