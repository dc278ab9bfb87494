"""Compare two traces for the page "Compare", and cache the result."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tracekit.core.compare import EVIDENCE, KINDS
from tracekit.sets.comparison import diff
from tracekit.view import ranks
from tracekit.view.captures import ShownRows
from tracekit.view.state import CaptureAggregation, parse_aggregation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.core.compare import Diff
    from tracekit.trace import Trace
    from tracekit.view.captures import ViewedCapture, ViewedCaptures
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


def list_compared_kinds(a: ViewedCapture, b: ViewedCapture) -> dict[str, str]:
    """Return, for each kind of rows in ``KINDS``, which side lacks such rows, or "" if both have them."""
    reasons = {}
    for name, kind in KINDS.items():
        missing = [side for side, capture in (("A", a), ("B", b)) if not capture.has_rows_in_any(*kind.tables)]
        reasons[name] = f"no such rows in {' and '.join(missing)}" if missing else ""
    return reasons


class Offer(NamedTuple):
    """A comparison that the page offers.

    Attributes:
        title: What is compared.
        other: Side B.
        own: Side A, if it is not the aggregation of the page.
    """

    title: str
    other: CaptureAggregation
    own: CaptureAggregation | None = None


def list_offers(captures: ViewedCaptures, at: CaptureAggregation) -> list[Offer]:
    """Return the comparisons with other captures or ranks, and of parts of the capture, that have rows to compare."""
    job = ranks.get_rank_set(captures)
    names = {str(member.path): f"rank {member.rank}" for member in job.members} if job else {}
    offers = []
    for capture in captures.all:
        path = capture.trace.path
        if capture.index != at.capture and not all(list_compared_kinds(captures[at], capture).values()):
            rank = names.get(str(path), "")
            title = f"{rank} ({capture.name})" if rank else capture.name
            offers.append(Offer(f"this capture with {title}", CaptureAggregation(capture.index, layers=at.layers)))
    return [*offers, *_list_offers_of_iterations(captures[at], at)]


def list_missing_offers(captures: ViewedCaptures, at: CaptureAggregation) -> list[str]:
    """Return the names of other captures that have no kind of rows in common with the capture of a page."""
    others = [each for each in captures.all if each.index != at.capture]
    return [each.name for each in others if all(list_compared_kinds(captures[at], each).values())]


def _list_offers_of_iterations(capture: ViewedCapture, at: CaptureAggregation) -> Iterator[Offer]:
    """Yield comparisons of iterations of one capture: the warm-up, the longest iteration, and both halves."""
    steady = CaptureAggregation(at.capture, key_op=at.key_op, layers=at.layers)
    iterations = capture.get_aggregated_trace(steady).frame("iterations")
    duration = pl.col("window_end_ns") - pl.col("window_start_ns")
    rows = iterations.select("iteration", "name", "is_warm_up", "is_aggregated", duration=duration).collect()
    cold = rows.filter("is_warm_up")["iteration"].to_list()
    used = rows.filter("is_aggregated", ~pl.col("is_warm_up")).sort("iteration")
    numbers = used["iteration"].to_list()
    if len(numbers) < 2:  # noqa: PLR2004
        return
    if cold:
        yield Offer("the steady steps with the warm-up", replace(steady, first=cold[0], last=cold[-1]), steady)
    number, name = used.sort("duration", descending=True).select("iteration", "name").row(0)
    longest = replace(steady, first=number, last=number)
    yield Offer(f"the steady steps with the longest one, {name or f'iteration {number:,}'}", longest, steady)
    middle = len(numbers) // 2
    first, second = (replace(steady, first=half[0], last=half[-1]) for half in (numbers[:middle], numbers[middle:]))
    yield Offer("the first half of the steady steps with the second half", second, first)


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

    The default is the next capture. If there is only one capture, the default is all iterations of this capture. Both
    sides show the selected GPUs.
    """
    values = {name.removeprefix("other_"): state.get(name) for name in OTHER if state.get(name)}
    if "capture" not in values:
        values["capture"] = str((state.at.capture + 1) % len(captures))
    return replace(parse_aggregation(values, len(captures)), devices=state.at.devices)
