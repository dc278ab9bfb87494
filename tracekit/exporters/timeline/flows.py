"""Determine the flows from API calls to the activities that they launched, and the flows between MPI calls.

A flow is drawn as an arrow from one event to another.

A table of flows has one row per flow. The columns ``from_ns``, ``from_lane_id`` and ``from_row`` describe the start of
the flow, and ``to_ns``, ``to_lane_id`` and ``to_row`` describe its end. Event rows are numbered as in ``read_events``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.errors import warn
from tracekit.exporters.timeline import kinds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.exporters.timeline.kinds import EventKind

_ROW = pl.int_range(pl.len(), dtype=pl.UInt32)
LAUNCH, MESSAGE, COLLECTIVE = "launch", "message", "collective"


def find_mpi_flows(kind: EventKind, rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield the name and the table of each group of flows between MPI calls: messages, and collective operations.

    Args:
        kind: The kind of the events. Nothing is yielded unless the events are MPI calls.
        rows: The events, with their lane ids.
    """
    if kind is kinds.MPI_CALLS and set(kind.links) <= set(rows.columns):
        yield MESSAGE, _find_message_flows(rows)
        yield COLLECTIVE, _find_collective_flows(rows)


def find_launch_flows(calls: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the flows from API calls to the activities that they launched, in the order of the activities.

    Args:
        calls: The API calls as returned by ``select_call_flow_starts``.
        rows: The activities, with their lane ids.
    """
    activities = rows.select("api_call_id", to_ns="start_ns", to_lane_id="lane_id", to_row=_ROW)
    return activities.join(calls, "api_call_id", maintain_order="left")


def select_call_flow_starts(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the starts of the flows that begin at API calls, with one row per call."""
    return rows.select("api_call_id", from_ns="start_ns", from_lane_id="lane_id", from_row=_ROW)


def drop_backward_flows(links: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return the flows that do not end before they start, and the number of all other flows.

    Viewers cannot draw flows back in time.
    """
    forward = links.filter(pl.col("from_ns") <= pl.col("to_ns"))
    return forward, links.height - forward.height


def warn_about_backward_flows(count: int) -> None:
    """Warn that a timeline lacks the given number of flows, because they end before they start."""
    if count:
        warn(
            f"the timeline lacks {count:,} arrows between events, because the second event starts before the first, "
            "which viewers cannot draw; the events themselves are drawn"
        )


def _find_message_flows(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the flows of messages, from the start of the sending call to the end of the receiving call."""
    rows = rows.with_row_index("row")
    sent = rows.select(sender_call_id="mpi_call_id", from_ns="start_ns", from_lane_id="lane_id", from_row="row")
    last = pl.max_horizontal("start_ns", pl.col("end_ns").fill_null(pl.col("start_ns")) - 1)
    receivers = rows.drop_nulls("sender_call_id")
    received = receivers.select("sender_call_id", to_ns=last, to_lane_id="lane_id", to_row="row")
    return received.join(sent, "sender_call_id", maintain_order="left")


def _find_collective_flows(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the flows that connect the calls of each collective operation, in the order of the call starts."""
    calls = rows.with_row_index("row").drop_nulls("collective_id").sort("start_ns", "mpi_call_id")
    ends = {"ns": pl.col("start_ns"), "lane_id": pl.col("lane_id"), "row": pl.col("row")}
    before = {f"from_{name}": end.shift(1).over("collective_id") for name, end in ends.items()}
    return calls.select(**before, **{f"to_{name}": end for name, end in ends.items()}).drop_nulls()
