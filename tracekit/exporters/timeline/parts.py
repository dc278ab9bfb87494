"""Convert the times of several traces to a shared clock, and assign their events to the tracks of one file.

Only one trace is open at a time. Time 0 of the file is the earliest origin of the traces. Viewers cannot show negative
times. If an event turns out to precede time 0 when its trace is read, the file is written again with an earlier time 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.exporters.timeline import kinds
from tracekit.exporters.timeline.batches import FileClock
from tracekit.exporters.timeline.layout import compute_layout

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from tracekit.exporters.timeline.layout import Layout
    from tracekit.registry.interface import AlignedTraces, Part
    from tracekit.registry.tables import Tables


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


def collect_origin_metadata(traces: AlignedTraces, shift_ns: int) -> dict[str, str]:
    """Return metadata of the exported traces, including the UTC time in ns at time 0 of the file, if it is known."""
    origin = {} if traces.origin_utc_ns is None else {"origin_utc_ns": str(traces.origin_utc_ns - shift_ns)}
    return {**origin, **traces.metadata}


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
