"""Report the idle time of the GPU that no cause explains.

This cause owns no items and no operations, and predicts no saving of its own. It is found after all others: it is the
idle time of the ledger that no listed cause owns, and that remains after the cures of all listed causes. Idle time that
only the profiler causes is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.core.diagnosis import causes
from tracekit.core.diagnosis.answer import MIN_SAVING, CauseOfTime, Evidence, Place, Saving
from tracekit.core.diagnosis.cures import LIKELY, apply_cures
from tracekit.core.diagnosis.ledger import find_idle_times, list_part_names
from tracekit.core.diagnosis.recording import find_command
from tracekit.core.diagnosis.replay import RECORDED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from tracekit.core.diagnosis.cures import Cure
    from tracekit.core.diagnosis.inspection import Inspection
    from tracekit.core.diagnosis.replay import CpuScales, ModelReplay

    Mask = npt.NDArray[np.bool_]

NAME = "gpu_idle_unexplained"
_TABLES_OF_SAMPLES = {
    "cpu_samples": ("samples of the CPU", "nsys profile --sample=process-tree"),
    "osrt_calls": ("calls of the operating system", "nsys profile --trace=cuda,nvtx,osrt"),
    "python_samples": ("Python stacks", "nsys profile --python-sampling=true, or with_stack=True in PyTorch"),
}
_RANGES = "NVTX ranges in the code that runs in this time"


def find_unexplained_idle_time(
    inspection: Inspection, engine: ModelReplay, listed: Sequence[Cure], scales: CpuScales, is_stall: Mask
) -> CauseOfTime | None:
    """Return the idle time that no listed cause explains, as a cause, or None if it is less than 2 % of the time.

    Args:
        inspection: The model, and what is known about other ranks.
        engine: The replay of the model.
        listed: The cures of the causes that the answer lists.
        scales: The likely scales of the CPU without the profiler.
        is_stall: Which items are long pauses that no cure explains.
    """
    model, plan = inspection.model, inspection.plan
    on_cpu = None if plan is None else plan.list_calls_on_cpu()
    segments, item = find_idle_times(model, inspection.late_ns, on_cpu)
    is_owned = np.zeros(len(model.items.start) + 1, np.bool_)
    for cure in listed:
        is_owned[cure.item_rows] = True
        is_owned[cure.waits] = True
    rows = np.flatnonzero(~is_owned[item])
    duration = (segments.end - segments.start)[rows]
    total = int(duration.sum())
    if total <= MIN_SAVING * model.duration_ns:
        return None
    cured = apply_cures(model, listed, LIKELY)
    left, without_profiler = (engine.measure_idle_time(cured, s, is_stall) for s in (RECORDED, scales))
    share = min(total, left) / model.duration_ns
    if min(share, without_profiler / model.duration_ns) < MIN_SAVING:
        return None
    longest, events = rows[duration.argmax()], model.events
    labels = np.bincount(segments.label[rows], weights=duration)
    parts = pl.DataFrame({"part": list_part_names(segments.part[rows])}).with_columns(ns=pl.Series(duration.tolist()))
    part = parts.group_by("part").agg(pl.col("ns").sum()).sort("ns", "part", descending=[True, False])["part"][0]
    return CauseOfTime(
        cause=NAME,
        place=Place(model.labels.names[int(labels.argmax())] or None, events.main_thread, events.process_id),
        evidence=Evidence(
            text=f"no cause explains why the GPU is idle for {share:.0%} of the step, mostly in {_describe(part)}",
            count=len(rows),
            total_ns=total,
            table=None,
            row_id=None,
            start_ns=int(segments.start[longest]),
            end_ns=int(segments.end[longest]),
        ),
        rows=(),
        change=causes.get_change(NAME, events.framework),
        check=causes.get_check(NAME),
        saving=Saving(0.0, 0.0, share),
        after=0.0,
        status="unsure",
        missing=", ".join(list_missing_records(inspection)),
    )


def _describe(part: str) -> str:
    return "time of which nothing was recorded" if part == "unknown" else f"'{part.replace('_', ' ')}'"


def list_missing_records(inspection: Inspection) -> Iterator[str]:
    """Yield what was not recorded and would show what the CPU does."""
    events = inspection.model.events
    if events.calls.is_empty():
        yield f"API calls ({find_command(events.frames, 'api_calls', 'nsys profile --trace=cuda,nvtx')})"
    count = 0
    for table, (noun, command) in _TABLES_OF_SAMPLES.items():
        if events.frames(table).select("process_id").collect().is_empty():
            count += 1
            yield f"{noun} ({find_command(events.frames, table, command)})"
    if not count:
        yield _RANGES
