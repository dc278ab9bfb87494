"""Number the arrows of a trace, and find the events that they connect."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tracekit.exporters.timeline import arrows, kinds
from tracekit.exporters.timeline.layout import read_events

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.exporters.perfetto.wire import Numbers, Sizes
    from tracekit.exporters.timeline.kinds import EventKind
    from tracekit.exporters.timeline.layout import Layout
    from tracekit.interface import View

_ENDS = ("from", "to")


class Flows(NamedTuple):
    """The arrows at the events of one kind.

    Attributes:
        ends: The position of the first id of each event in ``ids``, and the number of ids at the end.
        ids: The ids of the arrows, in the order of the events.
    """

    ends: Sizes
    ids: Numbers

    def batch(self, start: int, stop: int) -> Flows:
        """Return the arrows at some events."""
        ends = self.ends[start : stop + 1]
        return Flows(ends - ends[0], self.ids[ends[0] : ends[-1]])


class FlowTable:
    """The arrows that begin or end at the events of a trace.

    Attributes:
        count: Number of arrows in the file so far. Ids are numbered from 1.
    """

    def __init__(self, count: int = 0) -> None:
        self.count = count
        self._ends: defaultdict[EventKind, list[pl.DataFrame]] = defaultdict(list)

    def add_own(self, view: View, layout: Layout) -> None:
        """Add the arrows from API calls to the activities that they launched, and between MPI calls."""
        for start, end, links in _own_links(view, layout):
            ids = pl.int_range(self.count + 1, self.count + 1 + pl.len(), dtype=pl.UInt64)
            self._ends[start].append(links.select(row="from_row", flow=ids))
            self._ends[end].append(links.select(row="to_row", flow=ids))
            self.count += links.height

    def add_shared(self, links: pl.DataFrame, part: int, kind: EventKind, view: View) -> None:
        """Add the ends of arrows between traces that are events of a kind. The n-th arrow has the id n.

        Args:
            links: The arrows, as in ``ManyTraces``.
            part: Number of the trace.
            kind: The kind of the events.
            view: The trace.
        """
        numbered = links.with_row_index("flow", offset=1).filter(pl.col("from_ns") <= pl.col("to_ns"))
        for end in _ENDS:
            is_kind = (pl.col(f"{end}_part") == part) & (pl.col(f"{end}_table") == kind.table)
            chosen = numbered.filter(is_kind).select(pl.col("flow").cast(pl.UInt64), id=f"{end}_id")
            if chosen.height:
                rows = read_events(view, kind)
                events = rows.select(id=pl.col(kind.key), row=pl.int_range(pl.len(), dtype=pl.UInt32))
                self._ends[kind].append(chosen.join(events, on="id").select("row", "flow"))

    def flows(self, kind: EventKind, order: pl.Series) -> Flows | None:
        """Return the arrows at the events of a kind, or None if there are none.

        Args:
            kind: The kind of the events.
            order: The row number of each event, in the order in which events are written.
        """
        if kind not in self._ends:
            return None
        ends = pl.concat(self._ends.pop(kind)).sort("row", "flow")
        rows, flows = ends["row"].to_numpy(), ends["flow"].to_numpy()
        position = np.empty(len(order), np.int64)
        position[order.to_numpy()] = np.arange(len(order))
        places = position[rows]
        counts = np.bincount(places, minlength=len(order))
        return Flows(np.concatenate([[0], np.cumsum(counts)]), flows[np.argsort(places, kind="stable")])


def _own_links(view: View, layout: Layout) -> Iterator[tuple[EventKind, EventKind, pl.DataFrame]]:
    """Yield the kinds of the events at which arrows begin and end, and the arrows."""

    def rows(kind: EventKind) -> pl.DataFrame:
        return read_events(view, kind).with_columns(layout.lane_ids[kind])

    if kinds.API_CALLS in layout.lane_ids:
        calls = arrows.call_arrow_starts(rows(kinds.API_CALLS))
        for kind in layout.lane_ids:
            activities = rows(kind) if kind.launched else pl.DataFrame()
            if "api_call_id" in activities.columns:
                yield kinds.API_CALLS, kind, arrows.launch_arrows(calls, activities)
    if kinds.MPI_CALLS in layout.lane_ids:
        for _, links in arrows.mpi_arrows(kinds.MPI_CALLS, rows(kinds.MPI_CALLS)):
            yield kinds.MPI_CALLS, kinds.MPI_CALLS, links


def flow_bytes(tag: bytes, flows: Flows) -> tuple[np.ndarray[tuple[int], np.dtype[np.uint8]], Sizes]:
    """Return the encoded ids of all events, one after another, and the number of bytes of each event."""
    encoded = np.empty((len(flows.ids), len(tag) + 8), np.uint8)
    encoded[:, : len(tag)] = np.frombuffer(tag, np.uint8)
    encoded[:, len(tag) :] = flows.ids.astype("<u8").view(np.uint8).reshape(-1, 8)
    return encoded.reshape(-1), np.diff(flows.ends) * encoded.shape[1]
