"""How often ``tracekit.diff`` finds a kernel that became 3 % slower, and reports nothing else.

``python -m tests.benchmarks.planted PAIRS`` compares pairs of generated runs of one program, which
``tests/builders/training_runs.py`` describes: 40 iterations, each with 30 executions of 12 kernels. The standard
deviations of the durations of a kernel are 1 % between executions, 0.4 % between iterations, with autocorrelation,
and 0.2 % between runs, as in real captures. In the second run of a pair, one kernel takes 3 % longer, a different one
from pair to pair. As a control, as many pairs without a change are compared.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import tracekit as tk
from tests.builders import training_runs

if TYPE_CHECKING:
    from collections.abc import Iterator

FACTOR = 1.03
BOUND = 0.95
"""Smallest share of pairs in which the change is found, and of pairs in which nothing else is significant."""
HEADER = ["change", "pairs", "found", "nothing else significant", f"at least {BOUND:.0%}", "s per pair"]


def measured(pairs: int) -> Iterator[str]:
    """Compare pairs with and without a slower kernel, and yield the lines of a table."""
    yield from ("| " + " | ".join(cells) + " |" for cells in (HEADER, ["---"] * len(HEADER)))
    yield "| " + " | ".join(planted(pairs)) + " |"
    yield "| " + " | ".join(unchanged(pairs)) + " |"


def planted(pairs: int) -> list[str]:
    """Return the cells of the pairs whose second run has a slower kernel."""
    detected = quiet = 0
    began = time.perf_counter()
    for pair in range(pairs):
        kernel = training_runs.KERNELS[pair % len(training_runs.KERNELS)]
        rows = significant(2 * pair, slow=((kernel, FACTOR),))
        detected += any(
            (r["kind"], r["name"], r["status"]) == ("kernels", training_runs.normalized(kernel), "slower") for r in rows
        )
        quiet += all(training_runs.may_contain(row, kernel) for row in rows)
    return cells(f"one kernel {FACTOR - 1:.0%} slower", pairs, detected, quiet, time.perf_counter() - began)


def unchanged(pairs: int) -> list[str]:
    """Return the cells of the pairs without a change."""
    began = time.perf_counter()
    quiet = sum(not significant(2 * (pairs + pair)) for pair in range(pairs))
    return cells("none", pairs, None, quiet, time.perf_counter() - began)


def significant(seed: int, **changes: Any) -> list[dict[str, Any]]:
    """Return the significant rows of the comparison of two runs, the second one with changes."""
    return tk.diff(training_runs.run(seed), training_runs.run(seed + 1, **changes)).significant().to_dicts()


def cells(change: str, pairs: int, detected: int | None, quiet: int, seconds: float) -> list[str]:
    """Return one line of the table. The bound fails if one of the counts is too small."""
    counts = [quiet] if detected is None else [detected, quiet]
    verdict = "yes" if min(counts) >= BOUND * pairs else "failed"
    first = "" if detected is None else str(detected)
    return [change, str(pairs), first, str(quiet), verdict, f"{seconds / max(pairs, 1):.2f}"]


if __name__ == "__main__":
    for line in measured(int(sys.argv[1])):
        print(line, flush=True)
