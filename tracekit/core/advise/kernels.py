"""Report kernels with implausible times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core import intervals, overruns
from tracekit.core.advise.iteration_activity import Finding, shorten_name, sum_durations
from tracekit.text import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.core.advise.iteration_activity import IterationActivity


def overrunning_kernels(activity: IterationActivity) -> Iterator[Finding]:
    """Report kernels and copies that run over the start of the next one of their stream, so their times must be wrong.

    The whole capture is examined, because a wrong end also makes the window of an iteration wrong.
    """
    table = _read_activities_of_streams(activity)
    rows = overruns.find_overrunning_activities(table)
    if not rows.height:
        return
    overlaps = rows.select(start_ns="next_ns", end_ns="end_ns")
    overrun = rows["end_ns"] - rows["next_ns"]
    worst = int(overrun.arg_max() or 0)
    names = table["name"]
    time = sum_durations(intervals.merge_intervals(overlaps, by=[]))
    involved = pl.concat([rows["row"], rows["next_row"]])
    one, many = ("kernel", "kernels") if table["is_kernel"].gather(involved).all() else ("activity", "activities")
    subject = f"1 {one} runs" if rows.height == 1 else f"{rows.height} {many} run"
    evidence = (
        f"{subject} over the start of the next {one} of the same stream, by up to {format_duration(overrun[worst])} "
        f"({shorten_name(names[int(rows['row'][worst])])})"
    )
    advice = (
        f"Do not trust the GPU times of this capture: {many} of one stream run one after the other, so the recorded "
        "ends are wrong. Record again with a newer version of the driver and profiler."
    )
    figures = {"kernels": rows.height, "overrun_ns": int(overrun.sum()), "length_ns": activity.duration_ns}
    where = int(rows["start_ns"][worst]), int(rows["end_ns"][worst])
    problem = f"{many.capitalize()} overlap the next {one} of their stream"
    yield Finding(
        "overrunning_kernels",
        problem,
        evidence,
        advice,
        time,
        min(activity.compute_percentage(time), 100.0),
        None,
        rows.height,
        *where,
        figures,
    )


def _read_activities_of_streams(activity: IterationActivity) -> pl.DataFrame:
    """Return the kernels, memory copies and memory sets that ran on a stream, in this order.

    The columns are ``overruns.READ``, ``name`` and ``is_kernel``. Migrations of unified memory run on no stream.
    """
    frames = activity.rollup.measures.ops.frames
    kernel_name = pl.coalesce("short_name", "name").cast(pl.String).fill_null("kernel")
    copy_name = pl.format("memory copy {}", pl.col("copy_kind").cast(pl.String)).fill_null("memory copy")
    migrates = pl.col("migration_cause").is_not_null()
    tables = [
        frames("kernels").select(*overruns.READ, name=kernel_name, is_kernel=pl.lit(value=True)),
        frames("memcpys").filter(~migrates).select(*overruns.READ, name=copy_name, is_kernel=pl.lit(value=False)),
        frames("memsets").select(*overruns.READ, name=pl.lit("memory set"), is_kernel=pl.lit(value=False)),
    ]
    return pl.concat(tables).collect()
