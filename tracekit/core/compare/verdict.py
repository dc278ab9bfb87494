"""Summarize a comparison in one sentence: whether B is slower or faster than A, or why this was not tested."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.compare.notes import have_comparable_iterations
from tracekit.core.compare.summary import KINDS

if TYPE_CHECKING:
    from tracekit.core.compare.diff import Diff

_MEASURES = {
    "iterations": "the duration of the iterations",
    "kernels": "the time in kernels",
    "ops": "the GPU time of ops",
    "groups": "the GPU time of ops",
    "copies": "the time in memory copies and sets",
    "api": "the time in API calls",
    "idle": "the idle time of GPUs",
}
"""The times that decide which side is slower, by kind. The first compared kind with rows decides."""
_DIRECTIONS = {"slower": ("slower", "new"), "faster": ("faster", "gone")}


def format_verdict(diff: Diff) -> str:
    """Return a sentence that states whether B is slower or faster than A, or why this was not tested."""
    if all(frame.is_empty() for frame in diff.frames.values()):
        return "nothing was compared, because neither A nor B has data of the compared kinds"
    kind = next((k for k in _MEASURES if k in diff.kinds and not diff.frames[k].is_empty()), None)
    change = "" if kind is None else _format_measure(diff, kind)
    measure = f": {change}" if change else ""
    if all((frame["status"] == "equal").all() for frame in diff.frames.values()):
        return f"A and B are equal{measure}"
    if len(diff.list_untested_kinds()) == sum(not frame.is_empty() for frame in diff.frames.values()):
        reason = f"not tested whether B differs from A, because {explain_missing_tests(diff)}"
        return "; ".join(filter(None, [reason, change]))
    counts = diff.significant()["status"].value_counts(sort=True).rows()
    if not counts:
        return f"B does not differ significantly from A{measure}"
    rows = ", ".join(f"{count:,} {status}" for status, count in counts)
    direction = None if kind is None else _find_significant_direction(diff, kind)
    claim = "B differs from A" if direction is None else f"B is {direction} than A"
    return f"{claim}{measure}; significant rows: {rows}"


def explain_missing_tests(diff: Diff) -> str:
    """Return the reason why rows were not tested for significance, as a clause."""
    if not have_comparable_iterations(diff.a, diff.b):
        return f"no op delimits iterations in {'A' if 'key_op' in diff.b.facts else 'B'}"
    if not diff.has_enough_iterations:
        return f"{diff.a.iterations:,} (A) and {diff.b.iterations:,} (B) iterations are too few"
    return f"the rows of {', '.join(diff.list_untested_kinds())} are outside of all iterations"


def _format_measure(diff: Diff, kind: str) -> str:
    """Return the change of the total time of one kind, as in "the time in kernels changed by +5.00 % (…)"."""
    before, after = diff.compute_totals(kind) or (0, 0)
    percent = f"by {(after - before) * 100 / before:+,.2f} %" if before else "from 0"
    base = " per iteration" if diff.is_per_iteration else ""
    change = "did not change" if before == after else f"changed {percent}"
    return f"{_MEASURES[kind]} {change} ({before:,} ns in A, {after:,} ns in B{base})"


def _find_significant_direction(diff: Diff, kind: str) -> str | None:
    """Return whether the total time of one kind is significantly slower or faster, or None.

    A total that is the sum of rows is significant if a row that changed in the same direction is significant.
    """
    before, after = diff.compute_totals(kind) or (0, 0)
    direction = "slower" if after > before else "faster"
    rows = diff.frames[kind].filter("is_significant", pl.col("status").cast(pl.String).is_in(_DIRECTIONS[direction]))
    total = KINDS[kind].total
    rows = rows.filter(pl.col("name") == total) if total else rows
    return None if rows.is_empty() or before == after else direction
