"""Determine which events each flow connects, and encode the ids of the flows (``flow_ids``) for these events.

A flow is drawn as an arrow from one event to another.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tracekit.exporters.perfetto.slots import byte_windows
from tracekit.exporters.perfetto.wire import FIXED64_BYTES, field_tag
from tracekit.exporters.timeline import flows as timeline_flows
from tracekit.exporters.timeline import kinds
from tracekit.exporters.timeline.layout import read_events, with_lane_ids

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.exporters.perfetto.wire import Bytes, Numbers, Sizes
    from tracekit.exporters.timeline.kinds import EventKind
    from tracekit.exporters.timeline.layout import Layout
    from tracekit.interface import View

_ENDS = ("from", "to")
_ENTRY_BYTES = 10
"""Size in bytes of the encoded id of a flow, including the tag of the field."""


class Flows(NamedTuple):
    """The flows that begin or end at the events of one kind.

    Attributes:
        ends: Position in ``ids`` of the first id of each event, followed by the total number of ids.
        ids: The ids of the flows, ordered by event.
    """

    ends: Sizes
    ids: Numbers

    def batch(self, start: int, stop: int) -> Flows:
        """Return the flows that begin or end at the events at the positions ``start`` to ``stop - 1``."""
        ends = self.ends[start : stop + 1]
        return Flows(ends - ends[0], self.ids[ends[0] : ends[-1]])

    @property
    def sizes(self) -> Sizes:
        """Size in bytes of the encoded flow ids of each event."""
        return np.diff(self.ends) * _ENTRY_BYTES

    def write(self, data: Bytes, offsets: Sizes) -> None:
        """Write the encoded flow ids of each event to ``data``, beginning at the given offset of the event."""
        entries = np.empty((len(self.ids), _ENTRY_BYTES), np.uint8)
        entries[:, :-FIXED64_BYTES] = np.frombuffer(field_tag("TrackEvent", "flow_ids"), np.uint8)
        entries[:, -FIXED64_BYTES:] = self.ids.astype("<u8").view(np.uint8).reshape(-1, FIXED64_BYTES)
        counts = np.diff(self.ends)
        nth = np.arange(len(self.ids)) - np.repeat(self.ends[:-1], counts)
        targets = np.repeat(offsets, counts) + nth * _ENTRY_BYTES
        byte_windows(data, _ENTRY_BYTES)[targets] = entries.view(f"V{_ENTRY_BYTES}")[:, 0]


class FlowTable:
    """The flows that begin or end at the events of a trace.

    Attributes:
        count: Number of flows in the file so far, which is also the id of the last flow.
    """

    def __init__(self, count: int = 0) -> None:
        self.count = count
        self._ends: defaultdict[EventKind, list[pl.DataFrame]] = defaultdict(list)

    def add_flows_within_trace(self, view: View, layout: Layout) -> None:
        """Add the flows from API calls to the activities that they launched, and between MPI calls."""
        for start, end, links in _flows_within_trace(view, layout):
            ids = pl.int_range(self.count + 1, self.count + 1 + pl.len(), dtype=pl.UInt64)
            self._ends[start].append(links.select(row="from_row", flow=ids))
            self._ends[end].append(links.select(row="to_row", flow=ids))
            self.count += links.height

    def add_flows_between_traces(self, links: pl.DataFrame, part: int, kind: EventKind, view: View) -> None:
        """Add the flows between traces that begin or end at events of one kind. Flows between traces have ids from 1.

        Args:
            links: All flows between traces, as in ``ManyTraces.links``.
            part: Number of the trace that contains the events.
            kind: The kind of the events.
            view: The trace that contains the events.
        """
        numbered = links.with_row_index("flow", offset=1).filter(pl.col("from_ns") <= pl.col("to_ns"))
        for end in _ENDS:
            is_kind = (pl.col(f"{end}_part") == part) & (pl.col(f"{end}_table") == kind.table)
            chosen = numbered.filter(is_kind).select(pl.col("flow").cast(pl.UInt64), id=f"{end}_id")
            if chosen.height:
                rows = read_events(view, kind)
                events = rows.select(id=pl.col(kind.key), row=pl.int_range(pl.len(), dtype=pl.UInt32))
                self._ends[kind].append(chosen.join(events, on="id").select("row", "flow"))

    def flows(self, kind: EventKind, order: Sizes | None, count: int) -> Flows | None:
        """Return the flows that begin or end at the events of one kind, or None if there are none.

        Args:
            kind: The kind of the events.
            order: Row numbers in the order in which events are written, or None if they are written in row order.
            count: Number of events.
        """
        if kind not in self._ends:
            return None
        ends = pl.concat(self._ends.pop(kind))
        places, flows = ends["row"].to_numpy(), ends["flow"].to_numpy()
        if order is not None:
            position = np.empty(count, np.int64)
            position[order] = np.arange(count)
            places = position[places]
        counts = np.bincount(places, minlength=count)
        if not (places[1:] >= places[:-1]).all():
            flows = flows[np.argsort(places, kind="stable")]
        return Flows(np.concatenate([[0], np.cumsum(counts)]), flows)


def _flows_within_trace(view: View, layout: Layout) -> Iterator[tuple[EventKind, EventKind, pl.DataFrame]]:
    """Yield frames of flows, each with the kinds of the events at which the flows begin and end."""

    def rows(kind: EventKind) -> pl.DataFrame:
        events = read_events(view, kind)
        return with_lane_ids(events, layout.lane_ids[kind])

    if kinds.API_CALLS in layout.lane_ids:
        calls = timeline_flows.call_flow_starts(rows(kinds.API_CALLS))
        for kind in layout.lane_ids:
            activities = rows(kind) if kind.launched else pl.DataFrame()
            if "api_call_id" in activities.columns:
                yield kinds.API_CALLS, kind, timeline_flows.launch_flows(calls, activities)
    if kinds.MPI_CALLS in layout.lane_ids:
        for _, links in timeline_flows.mpi_flows(kinds.MPI_CALLS, rows(kinds.MPI_CALLS)):
            yield kinds.MPI_CALLS, kinds.MPI_CALLS, links
