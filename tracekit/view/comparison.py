"""Compare two traces for the page "Compare", and cache the result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.core.compare import EVIDENCE
from tracekit.sets.comparison import diff
from tracekit.view.captures import ShownRows
from tracekit.view.state import CaptureAggregation, parse_aggregation

if TYPE_CHECKING:
    from tracekit.core.compare import Diff
    from tracekit.trace import Trace
    from tracekit.view.captures import ViewedCaptures
    from tracekit.view.state import PageState

OTHER = ("other_capture", "other_iterations", "other_key_op")
"""URL parameters of the capture and aggregation to compare with."""
TITLES = {
    "name": "Name",
    "status": "Status",
    "is_significant": "Significant",
    "count_a": "Count A",
    "count_b": "Count B",
    "time_a_ns": "Time A",
    "time_b_ns": "Time B",
    "change_ns": "Change",
    "change_percent": "Relative change",
    "share_percent": "Share of all changes",
    "iteration_a_ns": "Time A per iteration",
    "iteration_b_ns": "Time B per iteration",
    "iteration_change_ns": "Change per iteration",
    "iteration_change_percent": "Relative change per iteration",
    "evidence": "Evidence",
    "p_value": "p-value",
    "bytes_a": "Bytes A",
    "bytes_b": "Bytes B",
}
"""Titles of the columns, in the order in which they are shown."""
_TOTALS = ("time_a_ns", "time_b_ns", "change_ns", "change_percent")
DESCRIPTIONS = {
    "name": "Name of what is compared.",
    "count_a": "Number of occurrences in A.",
    "count_b": "Number of occurrences in B.",
    "time_a_ns": "Total time in A.",
    "time_b_ns": "Total time in B.",
    "change_ns": "Total time in B minus total time in A.",
    "change_percent": "Change of the total time in percent of the time in A.",
    "iteration_a_ns": "Time in A divided by the number of iterations of A.",
    "iteration_b_ns": "Time in B divided by the number of iterations of B.",
    "iteration_change_ns": "Time per iteration in B minus time per iteration in A.",
    "iteration_change_percent": "Change of the time per iteration in percent of the time in A.",
    "bytes_a": "Bytes in A.",
    "bytes_b": "Bytes in B.",
    "status": "The status compares {base}.",
    "share_percent": "Share in the sum of all absolute changes. It refers to {base}.",
    "is_significant": "Whether A and B differ by more than the iterations of A or of B differ among themselves, and by "
    "more than two runs of one program may differ.",
    "evidence": " ".join(f"{name}: {text}" for name, text in EVIDENCE.items()),
    "p_value": "Probability that A and B differ this much by chance, adjusted for the number of compared values.",
}


def compare(captures: ViewedCaptures | None, a: Trace, b: Trace, by: str) -> Diff:
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


def build_diff_table_rows(differences: Diff, kind: str) -> ShownRows:
    """Return the differences of one kind, such as kernels, as rows of a table. The largest changes come first."""
    frame = differences.frame(kind)
    titles, base = TITLES, "total times"
    if differences.is_per_iteration:
        own = [c for c in TITLES if c.startswith("iteration_")]
        order = [*(dict(zip(_TOTALS, own, strict=True)).get(c, c) for c in TITLES if c not in own), *_TOTALS]
        titles = {c: TITLES[c] for c in order}
        titles |= {c: f"{TITLES[c]}, total" for c in _TOTALS}
        base = "times per iteration, because the numbers of iterations differ"
    shown = {c: title for c, title in titles.items() if c in frame.columns}
    descriptions = {c: DESCRIPTIONS.get(c, "").format(base=base) for c in shown}
    return ShownRows(frame.select(shown.keys()), shown, descriptions)


def parse_compared_aggregation(captures: ViewedCaptures, state: PageState) -> CaptureAggregation:
    """Return the capture and aggregation that the URL selects for the comparison with the capture of the page.

    The default is the next capture. If there is only one capture, the default is all iterations of this capture.
    """
    values = {name.removeprefix("other_"): state.get(name) for name in OTHER if state.get(name)}
    if "capture" not in values:
        values["capture"] = str((state.at.capture + 1) % len(captures))
    return parse_aggregation(values, len(captures))
