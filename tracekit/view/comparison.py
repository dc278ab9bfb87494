"""The comparison of two traces by the names of their kernels, ops, API calls or NVTX ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tracekit.core.compare import changes
from tracekit.view.captures import Rows
from tracekit.view.state import Aggregated, parse_aggregated

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracekit.trace import Trace
    from tracekit.view.captures import Captures
    from tracekit.view.state import State

OTHER = ("other_capture", "other_iterations", "other_key_op")
"""URL parameters of the other side."""


class Kind(NamedTuple):
    """A way to compare two traces: its title and the function that returns names, counts and times."""

    title: str
    totals: Callable[[Trace], pl.LazyFrame]


def _by_name(table: str, name: str = "name") -> Callable[[Trace], pl.LazyFrame]:
    """Return a function that sums the durations of a table by name, over the aggregated iterations."""

    def totals(trace: Trace) -> pl.LazyFrame:
        """Return the name, count and time of each group."""
        frame = trace.frame(table)
        time = pl.col("end_ns") - pl.col("start_ns")
        return frame.group_by(pl.col(name).cast(pl.String).alias("name")).agg(
            count=pl.len().cast(pl.Int64), time_ns=time.sum()
        )

    return totals


def _iteration_kernels(trace: Trace) -> pl.LazyFrame:
    """Return the kernels by name. In a roll-up of some iterations, only their kernels count."""
    frame = trace.frame("kernels")
    iterations = trace.frame("iterations").select("iteration", "is_aggregated").collect()
    if iterations.height and not iterations["is_aggregated"].all():
        frame = frame.filter(pl.col("iteration").is_in(iterations.filter("is_aggregated")["iteration"].implode()))
    time = pl.col("end_ns") - pl.col("start_ns")
    return frame.group_by(pl.col("name").cast(pl.String)).agg(count=pl.len().cast(pl.Int64), time_ns=time.sum())


def _ops(trace: Trace) -> pl.LazyFrame:
    """Return the ops by name and direction with their GPU time."""
    name = pl.concat_str(
        pl.col("op_name").cast(pl.String), pl.col("direction").cast(pl.String), separator=" ", ignore_nulls=True
    )
    return (
        trace.frame("ops")
        .group_by(name.alias("name"))
        .agg(count=pl.col("instance_count").sum(), time_ns=pl.col("gpu_time_ns").sum())
    )


KINDS: Mapping[str, Kind] = {
    "kernels": Kind("Kernels", _iteration_kernels),
    "ops": Kind("Ops", _ops),
    "api": Kind("API calls", _by_name("api_calls")),
    "nvtx": Kind("NVTX ranges", _by_name("nvtx_ranges")),
}


def compare(a: Trace, b: Trace, by: str) -> Rows:
    """Return the times of two traces by name, with the change and its share in the sum of all absolute changes."""
    totals = KINDS[by].totals
    joined = changes.join_totals(*(totals(trace).select("name", "count", "time_ns").collect() for trace in (a, b)))
    status = (
        pl.when(~pl.col("is_in_a"))
        .then(pl.lit("new"))
        .when(~pl.col("is_in_b"))
        .then(pl.lit("gone"))
        .otherwise(pl.lit("in both"))
    )
    numbers = ("count_a", "count_b", "time_a_ns", "time_b_ns", "change_ns", "change_percent", "share_percent")
    frame = joined.select("name", status.alias("status"), *numbers)
    frame = frame.sort(pl.col("change_ns").abs(), "name", descending=[True, False])
    titles = {
        "name": "Name",
        "status": "Status",
        "count_a": "Count A",
        "count_b": "Count B",
        "time_a_ns": "Time A (ns)",
        "time_b_ns": "Time B (ns)",
        "change_ns": "Change (ns)",
        "change_percent": "Change (%)",
        "share_percent": "Share of all changes (%)",
    }
    return Rows(frame, titles, dict.fromkeys(titles, ""))


def other_of(captures: Captures, state: State) -> Aggregated:
    """Return the other side of the comparison: by default the next capture, or all iterations of the same one."""
    values = {name.removeprefix("other_"): state.get(name) for name in OTHER if state.get(name)}
    if "capture" not in values:
        values["capture"] = str((state.at.capture + 1) % len(captures))
    return parse_aggregated(values, len(captures))
