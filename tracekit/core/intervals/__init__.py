"""Algebra of half-open intervals ``[start_ns, end_ns)`` on polars frames, independent of traces.

An interval lies on one *track*, identified by the columns ``by``; a row with a null in one of them lies on no track.
Times are any Int64, and comparisons between them are always exact: ``axis`` puts all tracks on one axis and never
overflows. Durations are plain Int64 differences, so they are exact up to 2**63 ns (292 years).

The modules: ``axis`` (all tracks on one axis), ``unions`` (union, gaps, intersection), ``nesting`` (innermost interval
and parents, as NVTX ranges nest), ``containment`` (which intervals contain which, with bounds included),
``maximum_tree`` (the last value that is large enough).

The functions are eager, because each of them needs whole sorted columns.
"""

from tracekit.core.intervals.axis import Axis, search
from tracekit.core.intervals.nesting import Nest
from tracekit.core.intervals.unions import gaps, latest_end_before, merge, overlap, union_duration

__all__ = ["Axis", "Nest", "gaps", "latest_end_before", "merge", "overlap", "search", "union_duration"]
