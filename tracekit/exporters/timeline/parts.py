"""Lay out several traces that are written to one file, on one clock.

One trace is open at a time. Times in the file begin at the earliest origin. If an event is earlier than that, which is
only known when its trace is laid out, writing starts again with later times, because viewers cannot show negative ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.exporters.timeline import kinds
from tracekit.exporters.timeline.columns import Clock
from tracekit.exporters.timeline.layout import compute_layout

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from tracekit.exporters.timeline.layout import Layout
    from tracekit.interface import ManyTraces, Part, View


class _EarlierEventError(Exception):
    """An event precedes time 0 of the file. The argument is the difference in ns."""


def retry_with_shift(traces: ManyTraces, write: Callable[[int], None]) -> None:
    """Call a function that writes the file, given the shift of the clock in ns. Retry with a larger shift."""
    shift = -min((part.offset_ns for part in traces.parts), default=0)
    while True:
        try:
            write(shift)
        except _EarlierEventError as e:
            shift += e.args[0]
        else:
            return


def origin_facts(traces: ManyTraces, shift: int) -> dict[str, str]:
    """Return the facts about the file."""
    origin = {} if traces.origin_utc_ns is None else {"origin_utc_ns": str(traces.origin_utc_ns - shift)}
    return {**origin, **traces.facts}


def part_layout(view: View, part: Part, tracks: Collection[str], shift: int) -> Layout:
    """Lay out the events of a trace on the shared clock.

    Raises:
        _EarlierEventError: The trace has an event before time 0 of the file.
    """
    layout = compute_layout(view, kinds.stages_of(tracks))
    clock = Clock(shift + part.offset_ns, layout.clock.end_ns, part.drift)
    first = pl.select(clock.convert(pl.lit(-layout.clock.shift_ns, pl.Int64))).item()
    if first < 0:
        raise _EarlierEventError(-first)
    return layout._replace(clock=clock)
