"""Determine which events each flow connects.

A flow is drawn as an arrow from one event to another.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tracekit.exporters.perfetto.wire import NO_FLOWS, Flows
from tracekit.exporters.timeline import flows as timeline_flows
from tracekit.exporters.timeline import kinds
from tracekit.exporters.timeline.blocks import evaluate_expression, iterate_frames
from tracekit.exporters.timeline.layout import add_lane_ids, read_events, read_rows
from tracekit.system import memory
from tracekit.system.sorting import choose_row_number_type, iterate_row_blocks, map_blocks, sort_rows, take

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from tracekit.exporters.timeline.blocks import TableRows
    from tracekit.exporters.timeline.kinds import EventKind
    from tracekit.exporters.timeline.layout import Layout
    from tracekit.registry.tables import Tables
    from tracekit.system.sorting import Array

_ENDS = ("from", "to")


class FlowTable:
    """The flows that begin or end at the events of a trace.

    Attributes:
        count: Number of flow ids used in the file so far. It is also the last used id.
        backward_count: Number of flows within the trace that were omitted because they end before they start.
    """

    def __init__(
        self, count: int = 0, *, omitted: Collection[EventKind] = (), stages: Mapping[EventKind, int] | None = None
    ) -> None:
        """Create a table without flows.

        Args:
            count: Number of flow ids used in the file so far.
            omitted: Kinds of events that are not drawn as track events, so that no flow can begin or end at them.
            stages: Id of the first GPU render stage event of each kind that is drawn as such events, in row order.
        """
        self.count = count
        self.backward_count = 0
        self._omitted, self._stages = omitted, stages or {}
        self._ends: defaultdict[EventKind, list[_FlowEnds]] = defaultdict(list)
        self._submissions: defaultdict[EventKind, list[_FlowEnds]] = defaultdict(list)

    def add_flows_within_trace(self, tables: Tables, layout: Layout) -> None:
        """Add the flows from API calls to the activities that they launched, and the flows between MPI calls."""
        for start, end, (from_rows, to_rows, backward_count) in _find_flows_within_trace(tables, layout):
            self.backward_count += backward_count
            if end in self._stages:
                event_ids = to_rows.astype(np.uint64) + np.uint64(self._stages[end])
                self._submissions[start].append(_FlowEnds(from_rows, event_ids))
            if end in self._omitted:
                continue
            first = self.count + 1
            ids = map_blocks(lambda block, n=first: np.arange(n + block.start, n + block.stop), len(to_rows), np.uint64)  # type: ignore[misc]
            self._ends[start].append(_FlowEnds(from_rows, ids))
            self._ends[end].append(_FlowEnds(to_rows, ids))
            self.count += len(to_rows)

    def add_flows_between_traces(self, links: pl.DataFrame, part_number: int, kind: EventKind, tables: Tables) -> None:
        """Add the flows between traces that begin or end at events of one kind. Flows between traces have ids from 1.

        Args:
            links: All flows between traces, as in ``AlignedTraces.links``.
            part_number: Number of the trace that contains the events.
            kind: The kind of the events.
            tables: The tables of the trace that contains the events.
        """
        omitted = [kind.table for kind in self._omitted]
        is_drawn = ~pl.any_horizontal(pl.col(f"{end}_table").is_in(omitted) for end in _ENDS)
        numbered = links.with_row_index("flow", offset=1).filter(pl.col("from_ns") <= pl.col("to_ns"), is_drawn)
        for end in _ENDS:
            is_kind = (pl.col(f"{end}_part") == part_number) & (pl.col(f"{end}_table") == kind.table)
            chosen = numbered.filter(is_kind).select(pl.col("flow").cast(pl.UInt64), id=f"{end}_id")
            if chosen.height:
                rows = read_events(tables, kind)
                events = rows.select(id=pl.col(kind.key), row=pl.int_range(pl.len(), dtype=pl.UInt32))
                ends = chosen.join(events, on="id")
                self._ends[kind].append(_FlowEnds(ends["row"].to_numpy(), ends["flow"].to_numpy()))

    def find_flows(self, kind: EventKind, order: Array | None, event_count: int) -> Flows:
        """Return the flows that begin or end at the events of one kind.

        Args:
            kind: The kind of the events.
            order: Row numbers in the order in which events are written, or None if they are written in row order.
            event_count: Number of events.
        """
        return _sort_by_position(self._ends.pop(kind, []), order, event_count)

    def find_submissions(self, kind: EventKind, order: Array | None, event_count: int) -> Flows:
        """Return the GPU render stage events that the events of one kind launched. The arguments are as above."""
        return _sort_by_position(self._submissions.pop(kind, []), order, event_count)


class _FlowEnds(NamedTuple):
    """Row numbers of the events at which flows begin or end, and the ids of these flows."""

    rows: Array
    ids: Array


def _sort_by_position(ends: Sequence[_FlowEnds], order: Array | None, event_count: int) -> Flows:
    """Return the ends of flows with the positions of their events, sorted by position."""
    if not ends:
        return NO_FLOWS
    rows, ids = (_concatenate(parts) for parts in zip(*ends, strict=True))
    if order is not None:
        position = memory.allocate_zeros(event_count, np.int64)
        for block in iterate_row_blocks(event_count):
            position[order[block]] = np.arange(block.start, block.stop)
        rows = take(position, rows)
    by_place, (places,) = sort_rows(rows)
    if by_place is not None:
        ids = take(ids, by_place)
    return Flows(places, ids)


def _concatenate(arrays: Sequence[Array]) -> Array:
    """Concatenate arrays of non-negative integers."""
    if len(arrays) == 1:
        return arrays[0]
    result, at = memory.allocate_zeros(sum(map(len, arrays)), np.int64), 0
    for values in arrays:
        for block in iterate_row_blocks(len(values)):
            result[at + block.start : at + block.stop] = values[block]
        at += len(values)
    return result


def _find_flows_within_trace(
    tables: Tables, layout: Layout
) -> Iterator[tuple[EventKind, EventKind, tuple[Array, Array, int]]]:
    """Yield, for each group of flows, the kinds of the first and second events, and the row numbers of these events.

    The row numbers are followed by the number of flows that were omitted because they end before they start.
    """
    if kinds.API_CALLS in layout.lane_ids:
        calls = Calls.read(tables)
        for kind in layout.lane_ids:
            if kind.launched and "api_call_id" in (activities := read_rows(tables, kind)).columns:
                yield kinds.API_CALLS, kind, calls.find_call_and_activity_rows(activities)
    if kinds.MPI_CALLS in layout.lane_ids:
        rows = add_lane_ids(read_events(tables, kinds.MPI_CALLS), layout.lane_ids[kinds.MPI_CALLS])
        for _, recorded in timeline_flows.find_mpi_flows(kinds.MPI_CALLS, rows):
            links, backward_count = timeline_flows.drop_backward_flows(recorded)
            ends = links["from_row"].to_numpy(), links["to_row"].to_numpy(), backward_count
            yield kinds.MPI_CALLS, kinds.MPI_CALLS, ends


class Calls(NamedTuple):
    """The API calls at which flows begin.

    Attributes:
        rows: Row number of each of the ``ids``, or None if the ids of the rows are in ascending order already.
        ids: The ids of the calls, in ascending order.
        starts: Start of each call in ns, in row order.
    """

    rows: Array | None
    ids: Array
    starts: Array

    @classmethod
    def read(cls, tables: Tables) -> Calls:
        """Read the ids and starts of the API calls of a trace."""
        calls = read_rows(tables, kinds.API_CALLS)
        ids, starts = (evaluate_expression(calls, pl.col(name), np.int64) for name in ("api_call_id", "start_ns"))
        order, (ids,) = sort_rows(ids)
        return cls(order, ids, starts)

    def find_call_and_activity_rows(self, activities: TableRows) -> tuple[Array, Array, int]:
        """Return the row numbers of launching calls and of the activities that they launched, in activity order.

        Activities that start before their call are omitted, because viewers cannot draw flows back in time. Their
        number is returned as well.
        """
        backward_count = 0
        numbers = choose_row_number_type(max(len(self.ids), activities.height))
        ends, count = [memory.allocate_zeros(activities.height, numbers) for _ in range(2)], 0
        for block, frame in iterate_frames(activities, ["api_call_id", "start_ns"]):
            is_launched = frame["api_call_id"].is_not_null()
            to_row = np.flatnonzero(is_launched.to_numpy())
            called, start = (column.filter(is_launched).to_numpy() for column in frame)
            at = self._find_positions(called)
            rows = at if self.rows is None else self.rows[at]
            known = self.ids[at] == called
            drawn = known & (self.starts[rows] <= start)
            backward_count += int(known.sum() - drawn.sum())
            here = slice(count, count + int(drawn.sum()))
            ends[0][here], ends[1][here] = rows[drawn], to_row[drawn] + block.start
            count = here.stop
        return ends[0][:count], ends[1][:count], backward_count

    def _find_positions(self, ids: Array) -> Array:
        """Return the position of each id in ``self.ids``. The position of an unknown id is arbitrary but valid."""
        last = len(self.ids) - 1
        if int(self.ids[last]) - int(self.ids[0]) == last:
            positions: Array = np.clip(ids - self.ids[0], 0, last)
            return positions
        return np.minimum(np.searchsorted(self.ids, ids), last)
