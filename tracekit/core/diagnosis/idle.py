"""List the times of the steady steps in which the GPUs of a process are idle, with the parts of the ledger.

The times of each part add up to the time of this part in the ledger of ``why``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.core.diagnosis.diagnose import plan_processes
from tracekit.core.diagnosis.ledger import find_idle_times, list_part_names
from tracekit.core.diagnosis.steady_steps import list_steady_models
from tracekit.system.sorting import create_series

if TYPE_CHECKING:
    from tracekit.core.diagnosis.model import Model
    from tracekit.core.diagnosis.ranks import RankPlan
    from tracekit.core.rollup import Rollup

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
    models = list_steady_models(rollup)
    plans = plan_processes(models, rollup)[0] if len(models) > 1 else {}
    frames = [_list_idle_times_of_process(model, plans.get(model.events.process_id)) for model in models]
    return pl.concat([pl.DataFrame(schema=SCHEMA), *frames]).sort("process_id", "start_ns", maintain_order=True)


def _list_idle_times_of_process(model: Model, plan: RankPlan | None) -> pl.DataFrame:
    events = model.events
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
    devices = events.operations["device_id"].unique()
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
