"""Compute unions, intersections and nesting of half-open intervals ``[start_ns, end_ns)`` in polars frames.

An interval lies on one *track*, which the columns ``by`` identify. A row with a null in one of these columns lies on no
track. Times may be any Int64, and comparisons between them are always exact, because ``axis`` lays out all tracks on
one axis and never overflows. Durations are Int64 differences, so they are exact up to 2**63 ns (292 years).

``axis`` lays out all tracks on one axis. ``unions`` computes unions, gaps and intersections. ``nesting`` finds
innermost intervals and parents, as NVTX ranges nest. ``containment`` finds which intervals contain which, with both
bounds included. ``maximum_tree`` finds the last value that is large enough.

All functions are eager, because each of them needs whole sorted columns.
"""

from tracekit.core.intervals.axis import Axis, search
from tracekit.core.intervals.nesting import Nest
from tracekit.core.intervals.unions import gaps, latest_end_before, merge, overlap, union_duration

__all__ = ["Axis", "Nest", "gaps", "latest_end_before", "merge", "overlap", "search", "union_duration"]
