"""Determine the flows from API calls to the activities that they launched, and between MPI calls.

A flow is drawn as an arrow from one event to another.

A table of flows has one row per flow with the columns ``from_ns``, ``from_lane_id`` and ``from_row`` of the event
at which it begins, and ``to_ns``, ``to_lane_id`` and ``to_row`` of the event at which it ends. Rows are numbered in the
order of ``read_events``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.exporters.timeline import kinds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.exporters.timeline.kinds import EventKind

_ROW = pl.int_range(pl.len(), dtype=pl.UInt32)
LAUNCH, MESSAGE, COLLECTIVE = "launch", "message", "collective"


def read_mpi_flows(kind: EventKind, rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield the flows between MPI calls as two tables with names, one of messages and one of collective operations.

    Args:
        kind: The kind of the events. Kinds other than MPI calls have no such flows.
        rows: The events, with their lane ids.
    """
    if kind is kinds.MPI_CALLS and set(kind.links) <= set(rows.columns):
        yield MESSAGE, _drop_backward_flows(_pair_message_flows(rows))
        yield COLLECTIVE, _drop_backward_flows(_link_collective_flows(rows))


def read_launch_flows(calls: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the flows from API calls to activities, in the order of the activities.

    Args:
        calls: The API calls as returned by ``read_call_flow_starts``.
        rows: The activities, with their lane ids.
    """
    activities = rows.select("api_call_id", to_ns="start_ns", to_lane_id="lane_id", to_row=_ROW)
    return _drop_backward_flows(activities.join(calls, "api_call_id", maintain_order="left"))


def read_call_flow_starts(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the start points of flows that begin at API calls, with one row per call."""
    return rows.select("api_call_id", from_ns="start_ns", from_lane_id="lane_id", from_row=_ROW)


def _drop_backward_flows(links: pl.DataFrame) -> pl.DataFrame:
    """Return the flows that end at or after their start, because viewers cannot draw flows that lead back in time."""
    return links.filter(pl.col("from_ns") <= pl.col("to_ns"))


def _pair_message_flows(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the flows from the calls that send messages to the ends of the calls that receive them."""
    rows = rows.with_row_index("row")
    sent = rows.select(sender_call_id="mpi_call_id", from_ns="start_ns", from_lane_id="lane_id", from_row="row")
    last = pl.max_horizontal("start_ns", pl.col("end_ns").fill_null(pl.col("start_ns")) - 1)
    receivers = rows.drop_nulls("sender_call_id")
    received = receivers.select("sender_call_id", to_ns=last, to_lane_id="lane_id", to_row="row")
    return received.join(sent, "sender_call_id", maintain_order="left")


def _link_collective_flows(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the flows that connect the calls of each collective operation, in the order of their starts."""
    calls = rows.with_row_index("row").drop_nulls("collective_id").sort("start_ns", "mpi_call_id")
    ends = {"ns": pl.col("start_ns"), "lane_id": pl.col("lane_id"), "row": pl.col("row")}
    before = {f"from_{name}": end.shift(1).over("collective_id") for name, end in ends.items()}
    return calls.select(**before, **{f"to_{name}": end for name, end in ends.items()}).drop_nulls()
