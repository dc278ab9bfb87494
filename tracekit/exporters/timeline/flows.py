"""Determine the flows from API calls to the activities that they launched, and the flows between MPI calls.

A flow is drawn as an arrow from one event to another.

A table of flows has one row per flow. The columns ``from_ns``, ``from_lane_id`` and ``from_row`` describe the start of
the flow, and ``to_ns``, ``to_lane_id`` and ``to_row`` describe its end. Event rows are numbered as in ``read_events``.

Convert the times of several traces to a shared clock, and assign their events to the tracks of one file.

Only one trace is open at a time. Time 0 of the file is the earliest origin of the traces. Viewers cannot show negative
times. If an event turns out to precede time 0 when its trace is read, the file is written again with an earlier time 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit import schemas
from tracekit.errors import warn
from tracekit.exporters.timeline import kinds
from tracekit.exporters.timeline.batches import FileClock
from tracekit.exporters.timeline.layout import compute_layout

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from tracekit.exporters.timeline.kinds import EventKind
    from tracekit.exporters.timeline.layout import Layout
    from tracekit.registry.interface import AlignedTraces, Part, View
    from tracekit.registry.tables import Tables
_ROW = pl.int_range(pl.len(), dtype=pl.UInt32)
LAUNCH, MESSAGE, COLLECTIVE = "launch", "message", "collective"


class _EarlierEventError(Exception):
    """Error that is raised if an event precedes time 0 of the file. Its argument is the difference in ns."""


def retry_with_shift(traces: AlignedTraces, write: Callable[[int], None]) -> None:
    """Call ``write`` with the number of ns to add to all times. Retry with larger numbers while a time is negative."""
    shift_ns = -min((part.offset_ns for part in traces.parts), default=0)
    while True:
        try:
            write(shift_ns)
        except _EarlierEventError as e:
            shift_ns += e.args[0]
        else:
            return


def collect_trace_metadata(view: View, shift_ns: int) -> dict[str, str]:
    """Return the trace metadata for the file: the tool, its version, the UTC time at time 0 and the time shift.

    The metadata contains no private values.
    """
    metadata = {name: view.info[name] for name in ("tool", "tool_version") if name in view.info}
    if "origin_utc_ns" in view.info:
        metadata["origin_utc_ns"] = str(int(view.info["origin_utc_ns"]) - shift_ns)
    if shift_ns:
        metadata["shift_ns"] = str(shift_ns)
    return add_producer(metadata)


def add_producer(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata of a file, with the program that wrote it and the version of the tables."""
    return {"producer": "tracekit", "schema_version": str(schemas.SCHEMA_VERSION), **metadata}


def collect_origin_metadata(traces: AlignedTraces, shift_ns: int) -> dict[str, str]:
    """Return metadata of the exported traces, including the UTC time in ns at time 0 of the file, if it is known."""
    origin = {} if traces.origin_utc_ns is None else {"origin_utc_ns": str(traces.origin_utc_ns - shift_ns)}
    return add_producer({**origin, **traces.metadata})


def compute_part_layout(tables: Tables, part: Part, tracks: Collection[str], shift_ns: int) -> Layout:
    """Assign the events of a trace to tracks and lanes, with times on the shared clock.

    Raises:
        _EarlierEventError: The trace has an event before time 0 of the file.
    """
    layout = compute_layout(tables, kinds.group_kinds_by_stage(tracks))
    clock = FileClock(shift_ns + part.offset_ns, layout.clock.end_ns, part.drift)
    first = pl.select(clock.converted_time_expr(pl.lit(-layout.clock.shift_ns, pl.Int64))).item()
    if first < 0:
        raise _EarlierEventError(-first)
    return layout._replace(clock=clock)


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
