"""List the times of the steady steps in which the GPUs of a process are idle, with the parts of the ledger.

The times of each part add up to the time of this part in the ledger of ``why``.

Report the idle time of the GPU that no cause explains.

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
from tracekit.core.diagnosis.diagnose import plan_processes
from tracekit.core.diagnosis.events import read_events
from tracekit.core.diagnosis.ledger import find_idle_times, list_part_names
from tracekit.core.diagnosis.model import build_model
from tracekit.core.diagnosis.replay import RECORDED
from tracekit.core.diagnosis.roofline import select_steady_steps
from tracekit.system.sorting import create_series

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from tracekit.core.diagnosis.cures import Cure
    from tracekit.core.diagnosis.inspection import Inspection
    from tracekit.core.diagnosis.replay import CpuScales, Engine

    Mask = npt.NDArray[np.bool_]
    from tracekit.core.diagnosis.events import Events
    from tracekit.core.diagnosis.ranks import Plan
    from tracekit.core.rollup import Rollup

NAME = "gpu_idle_unexplained"
_TABLES_OF_SAMPLES = {
    "cpu_samples": "samples of the CPU (nsys profile --sample=process-tree)",
    "osrt_calls": "calls of the operating system (nsys profile --trace=cuda,nvtx,osrt)",
    "python_samples": "Python stacks (nsys profile --python-sampling=true, or with_stack=True in PyTorch)",
}
_RANGES = "NVTX ranges in the code that runs in this time"


def find_unexplained_idle_time(
    inspection: Inspection, engine: Engine, listed: Sequence[Cure], scales: CpuScales, is_stall: Mask
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
        yield "API calls (nsys profile --trace=cuda,nvtx)"
    count = 0
    for table, record in _TABLES_OF_SAMPLES.items():
        if events.frames(table).select("process_id").collect().is_empty():
            count += 1
            yield record
    if not count:
        yield _RANGES


SCHEMA = {
    "process_id": pl.Int64,
    "device_id": pl.Int32,
    "thread_id": pl.Int64,
    "gap_start_ns": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "cause": pl.String,
    "name": pl.String,
}
"""Columns of the idle times."""


def list_idle_times(rollup: Rollup) -> pl.DataFrame:
    """Return the times in which no GPU of a process works, divided by what the launching CPU thread does.

    Args:
        rollup: The roll-up of the capture, whose aggregated iterations are the steady steps.

    Returns:
        One row per interval, in order of process and time, with the columns ``SCHEMA``. ``device_id`` is null if the
        process uses several GPUs. ``gap_start_ns`` is the start of the time without interruption in which the GPU is
        idle, ``cause`` is the idle part of the ledger, and ``name`` is the API call in which the CPU is, or the
        innermost range of the program, or null.
    """
    events = list(read_events(rollup))
    plans = plan_processes(events, rollup)[0] if len(events) > 1 else {}
    frames = [_list_idle_times_of_process(e, plans.get(e.process_id)) for e in events]
    return pl.concat([pl.DataFrame(schema=SCHEMA), *frames]).sort("process_id", "start_ns", maintain_order=True)


def _list_idle_times_of_process(events: Events, plan: Plan | None) -> pl.DataFrame:
    model = build_model(events, select_steady_steps(events))
    late, on_cpu = (None, None) if plan is None else (plan.find_late_times(model), plan.list_calls_on_cpu())
    segments, item = find_idle_times(model, late, on_cpu)
    order = np.argsort(segments.start, kind="stable")
    start, end, part, label = segments
    start, end, part, label = start[order], end[order], part[order], label[order]
    is_first = np.concatenate([[True], start[1:] != end[:-1]])
    gap = start[is_first][np.cumsum(is_first) - 1] if len(start) else start
    call = np.where(item[order] >= 0, model.items.call[item[order]], -1)
    call_row = create_series(call)
    calls = events.calls["name"].cast(pl.String).gather(call_row.set(call_row < 0, None))
    labels = pl.Series(model.labels.names, dtype=pl.String).gather(create_series(label))
    devices = model.events.operations["device_id"].unique()
    rows = pl.DataFrame(
        {
            "gap_start_ns": create_series(gap),
            "start_ns": create_series(start),
            "end_ns": create_series(end),
            "cause": list_part_names(part).cast(pl.String),
            "name": calls.fill_null(labels.replace("", None)),
        }
    )
    place = {"process_id": events.process_id, "thread_id": events.main_thread}
    place["device_id"] = devices[0] if len(devices) == 1 else None
    return rows.with_columns(pl.lit(v, SCHEMA[c]).alias(c) for c, v in place.items()).select(
        pl.col(c).cast(dtype) for c, dtype in SCHEMA.items()
    )
