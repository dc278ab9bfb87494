"""Kernels of our library that have a faster version, as a cause of ``tracekit why``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from tracekit.core.diagnosis.causes import Cause, register
from tracekit.core.diagnosis.cures import Cure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.core.diagnosis.inspection import Inspection

SLOW_TRIAD = Cause(
    "slow_triad",
    "The program uses the old kernel `triad`.",
    changes={"any": "replace triad with fused_triad of version 2"},
    check="time a step with fused_triad",
)


def find_slow_triads(inspection: Inspection) -> Iterator[Cure]:
    """Find kernels that the new version replaces."""
    operations = inspection.model.operations
    rows = np.flatnonzero(inspection.model.match_names(r"^triad\b") & inspection.claims.free_operations)
    if not len(rows):
        return
    cure = Cure("slow_triad", place=inspection.find_main_label(operations.item[rows], operations.duration[rows]))
    cure.example = inspection.show_operation(rows)
    # The new version took 70 % of the time on small arrays, 50 % usually, and 45 % at best.
    cure.operations = [inspection.claims.scale_operations(rows, (0.7, 0.5, 0.45))]
    cure.evidence = f"{inspection.count_per_step(len(rows))} kernels per step are the old triad"
    yield cure


def add_slow_triad() -> None:
    """Add the cause to those of tracekit."""
    register(SLOW_TRIAD, find_slow_triads)
