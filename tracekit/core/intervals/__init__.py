"""Compute unions, intersections and nesting of half-open intervals ``[start_ns, end_ns)`` in polars frames.

An interval belongs to one *track*, which is identified by the values of the columns ``by``. A row with a null in one of
these columns belongs to no track. Times may be any Int64, and comparisons between them never overflow. Durations are
Int64 differences, so they are exact up to 2**63 ns (292 years).

``axis`` places all tracks on one axis. ``unions`` computes unions, gaps and intersections. ``nesting`` finds
innermost intervals and parents of intervals that nest like NVTX ranges. ``containment`` finds which intervals contain
which, with both bounds included. ``maximum_tree`` finds the last row before a given row whose value is at least a given
minimum.

All functions except ``latest_end_before_expr`` work on eager frames, because they need whole sorted columns.
``add_enclosing_range_id`` collects the lazy frames that it receives.
"""

from tracekit.core.intervals.axis import (
    Axis,
    CoveredTime,
    compute_union_durations,
    find_gaps,
    intersect_unions,
    latest_end_before_expr,
    map_in_threads,
    merge_intervals,
    search_sorted,
)
from tracekit.core.intervals.nesting import NestingIndex

__all__ = [
    "Axis",
    "CoveredTime",
    "NestingIndex",
    "compute_union_durations",
    "find_gaps",
    "intersect_unions",
    "latest_end_before_expr",
    "map_in_threads",
    "merge_intervals",
    "search_sorted",
]
