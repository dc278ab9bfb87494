"""Find causes that only the metrics of Nsight Compute show, in the kernels of a timeline that match its results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.core.diagnosis.cures import Cure
from tracekit.core.diagnosis.kinds import NUMBERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.core.diagnosis.inspection import Inspection

_MIN_SHARE = 0.01


def strided_access(inspection: Inspection) -> Iterator[Cure]:
    """Find kernels whose warps touch more memory than they need."""
    rows = inspection.find_measured("memory_layout") & (inspection.model.operations.cls != _CONVERSION)
    yield from _create_cure(
        inspection, rows, "memory_layout", "strided_access", "accesses memory with a stride|access memory with a stride"
    )


def few_warps(inspection: Inspection) -> Iterator[Cure]:
    """Find kernels that do not fill their warps, or wait with few warps."""
    if inspection.measured is None:
        return
    own = inspection.find_measured("low_occupancy")
    partial, certain = inspection.measured.partial_warps, inspection.measured.is_certain
    yield from _create_cure(
        inspection,
        own & certain & partial,
        "low_occupancy",
        "partial_warps",
        "does not fill its warps|do not fill their warps",
    )
    text = "waits with less than half of the possible warps|wait with less than half of the possible warps"
    for cure in _create_cure(inspection, own & ~certain, "low_occupancy", "few_active_warps", text):
        cure.is_unsure = True
        cure.missing = "the effect of more warps: measure the kernels with other block sizes by ncu --set full"
        yield cure


_CONVERSION = NUMBERS["layout_conversion"]


def _create_cure(
    inspection: Inspection, mask: np.typing.NDArray[np.bool_], cause: str, change: str, text: str
) -> Iterator[Cure]:
    """Yield the cure of measured operations that take at least 1 % of the time."""
    model, ops = inspection.model, inspection.model.operations
    rows = np.flatnonzero(mask)
    total = float(ops.duration[rows].sum())
    if not len(rows) or total < _MIN_SHARE * model.duration_ns:
        return
    cure = Cure(cause, inspection.find_main_label(ops.item[rows], ops.duration[rows]), change=change)
    cure.operations = [inspection.claim_measured(rows)]
    cure.example = inspection.show_operation(rows)
    cure.evidence = (
        f"{inspection.describe_count(len(rows), 'kernel|kernels', text)}, for {inspection.describe_time(total)}"
        f"{inspection.cite_measurements(rows)}"
    )
    yield cure
