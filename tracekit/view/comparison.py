"""Compare two traces for the page "Compare", and cache the result."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.comparison import diff
from tracekit.core.compare import EVIDENCE, KINDS
from tracekit.view.captures import Rows
from tracekit.view.state import CaptureAggregation, parse_aggregation

if TYPE_CHECKING:
    from tracekit.core.compare import Diff
    from tracekit.trace import Trace
    from tracekit.view.captures import Captures
    from tracekit.view.state import State

OTHER = ("other_capture", "other_iterations", "other_key_op")
"""URL parameters of the capture and aggregation to compare with."""
TITLES = {
    "name": "Name",
    "status": "Status",
    "is_significant": "Significant",
    "count_a": "Count A",
    "count_b": "Count B",
    "time_a_ns": "Time A (ns)",
    "time_b_ns": "Time B (ns)",
    "change_ns": "Change (ns)",
    "change_percent": "Change (%)",
    "share_percent": "Share of all changes (%)",
    "iteration_a_ns": "Per iteration A (ns)",
    "iteration_b_ns": "Per iteration B (ns)",
    "evidence": "Evidence",
    "p_value": "p",
    "bytes_a": "Bytes A",
    "bytes_b": "Bytes B",
}
"""Titles of the columns, in the order in which they are shown."""
DESCRIPTIONS = {
    "is_significant": "Whether A and B differ by more than the iterations of A or of B differ among themselves, and by "
    "more than two runs of one program may differ.",
    "evidence": " ".join(f"{name}: {text}" for name, text in EVIDENCE.items()),
    "p_value": "Probability that A and B differ this much by chance, adjusted for the number of compared values.",
}


def compare(captures: Captures | None, a: Trace, b: Trace, by: str) -> Diff:
    """Return the differences between two traces.

    Args:
        captures: The captures of the server, which cache the result. If None, the result is not cached.
        a: The first trace.
        b: The second trace.
        by: Kind of rows to compare, a key of ``KINDS``.
    """
    if captures is None:
        return diff(a, b, by=[by])
    # the traces are part of the value, so that their ids are not used again
    _, _, result = captures.get_cached_result(("diff", id(a), id(b), by), lambda: (a, b, diff(a, b, by=[by])))
    return result  # type: ignore[no-any-return]


def build_diff_table_rows(differences: Diff, kind: str) -> Rows:
    """Return the differences of one kind, such as kernels, as rows of a table. The largest changes come first."""
    frame = differences.frame(kind)
    frame = frame.select([c for c in TITLES if c in frame.columns])
    return Rows(frame, {c: TITLES[c] for c in frame.columns}, {c: DESCRIPTIONS.get(c, "") for c in frame.columns})


def compute_total_times(differences: Diff, kind: str) -> tuple[int, int] | None:
    """Return the total time of each trace in ns, or None if rows are nested and their times cannot be added."""
    name, frame = KINDS[kind].total, differences.frame(kind)
    if name is None:
        return None
    rows = frame if name == "" else frame.filter(pl.col("name") == name)
    return int(rows["time_a_ns"].sum()), int(rows["time_b_ns"].sum())


def parse_compared_aggregation(captures: Captures, state: State) -> CaptureAggregation:
    """Return the capture and aggregation that the URL selects for the comparison with the capture of the page.

    The default is the next capture. If there is only one capture, the default is all iterations of this capture.
    """
    values = {name.removeprefix("other_"): state.get(name) for name in OTHER if state.get(name)}
    if "capture" not in values:
        values["capture"] = str((state.at.capture + 1) % len(captures))
    return parse_aggregation(values, len(captures))
