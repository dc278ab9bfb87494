"""Describe why the two sides of a comparison are not fully comparable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.core.compare.summary import ALLOCATOR, LOGS, TOTALS
from tracekit.text import shorten_middle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.core.compare.summary import Summary

_TITLES = {
    "gpus": "the GPUs",
    "tool": "the tools",
    "tool_version": "the versions of the tool",
    "export_version": "the versions of the tool that exported the captures",
    "driver_version": "the driver versions",
    "cuda_version": "the CUDA versions",
    "cpu_model": "the CPUs",
    "os": "the operating systems",
    "key_op": "the key ops, which delimit iterations,",
}


_NOT_COMPARED = {
    ALLOCATOR: "the memory of allocators is not compared; the report allocator_peak shows it for A and B",
    LOGS: "the logs of collectives are not compared; tracekit why A B shows what the ranks of a job wait for",
    TOTALS: "totals without a timeline are not compared; the report activity_total_sum shows them for A and B",
}
"""Sentences about data that is recorded, but not compared."""


def list_comparability_notes(a: Summary, b: Summary, *, has_enough_iterations: bool) -> tuple[str, ...]:
    """Return sentences that describe why the two sides of a comparison are not fully comparable.

    Args:
        a: The first side.
        b: The second side.
        has_enough_iterations: Whether both sides have enough iterations for a statistical test.
    """
    return tuple(_generate_notes(a, b, has_enough_iterations=has_enough_iterations))


def describe_steps_of_sides(a: Summary, b: Summary) -> tuple[str, ...]:
    """Return sentences that describe what delimits the iterations of each side, and how much work lies in them."""
    texts = {name: side.facts["steps"] for name, side in (("A", a), ("B", b)) if "steps" in side.facts}
    if len(texts) > 1 and len(set(texts.values())) == 1:
        texts = {"A and B": texts["A"]}
    return tuple(f"steps of {name}: {text}" for name, text in texts.items())


def have_comparable_iterations(a: Summary, b: Summary) -> bool:
    """Return whether an op delimits the iterations of both sides or of neither side.

    Without such an op, the whole capture is one iteration, which is not comparable with an iteration of a loop.
    """
    return ("key_op" in a.facts) == ("key_op" in b.facts)


def _generate_notes(a: Summary, b: Summary, *, has_enough_iterations: bool) -> Iterator[str]:
    for fact, title in _TITLES.items():
        if fact in a.facts and fact in b.facts and a.facts[fact] != b.facts[fact]:
            values = [shorten_middle(side.facts[fact]) if fact == "key_op" else side.facts[fact] for side in (a, b)]
            yield f"{title} differ: {values[0]} (A), {values[1]} (B)"
    if a.facts.get("names") != b.facts.get("names"):
        yield "names were normalized on one side only, so the same events may have different names"
    for side, other, name, other_name in ((a, b, "A", "B"), (b, a, "B", "A")):
        extra = [t for t in _list_recorded_data(side) if t not in _list_recorded_data(other)]
        if extra:
            missing = f"{name} recorded {', '.join(extra)}, but {other_name} did not"
            yield f"{missing}, so the captures may have been recorded with different options"
    recorded = {*_list_recorded_data(a), *_list_recorded_data(b)}
    yield from (sentence for data, sentence in _NOT_COMPARED.items() if data in recorded)
    if not have_comparable_iterations(a, b):
        whole = "A" if "key_op" in b.facts else "B"
        remedy = "name one with --key-op or key_op="
        yield f"no op delimits iterations in {whole}, so its iterations are not compared; {remedy}"
    elif a.iterations != b.iterations and min(a.iterations, b.iterations) > 0:
        counts = f"{a.iterations:,} (A), {b.iterations:,} (B)"
        yield f"the numbers of iterations differ: {counts}; A and B are compared per iteration"
    if not has_enough_iterations and have_comparable_iterations(a, b):
        counts = f"{a.iterations:,} (A) and {b.iterations:,} (B)"
        unnamed = any("key_op" not in side.facts for side in (a, b))
        remedy = "; name the op that delimits iterations with --key-op or key_op=" if unnamed else ""
        yield f"{counts} iterations are too few to test whether differences are significant{remedy}"


def _list_recorded_data(side: Summary) -> list[str]:
    """Return the names of the recorded data of a summary, such as ``CUDA``, or an empty list if they are unknown."""
    recorded = side.facts.get("recorded", "")
    return recorded.split(", ") if recorded else []
