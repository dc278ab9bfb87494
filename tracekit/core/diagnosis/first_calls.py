"""Find first calls: operations that take much longer when they are called with a shape for the first time.

Libraries are loaded, kernels are compiled, and plans are built and tuned when an operation meets a shape for the first
time. The time is the difference between the first call and later calls of the same shape. If no later call was
recorded, the later calls of other shapes count.

In traces of frameworks, an operation is a range of the framework, without the ranges within it. In other captures, it
is the API call that launches a kernel, or one that loads code. Before the first GPU operation, it is also a long call
that allocates memory or sets something up, because the first one of a process creates the CUDA context.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core import intervals
from tracekit.core.diagnosis.answer import FirstCall
from tracekit.core.diagnosis.kinds import CALL_NUMBERS
from tracekit.core.relations import THREAD
from tracekit.core.series import map_categories_expr, match_categories_expr

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.core.correlate import Frames
    from tracekit.core.diagnosis.events import Events

MIN_EXCESS_NS = 1_000_000
_MIN_SETUP_NS = 10_000_000
"""Duration from which on a call before the first GPU operation creates the context or loads libraries."""
WAITING_OPERATION = r"copy|item|scalar_dense|synchronize|nonzero|^aten::(to|cpu|equal)$"
"""Regular expression that matches the names of operations that wait for the GPU, so that a first call may be long."""

_MIN_RATIO = 5
_SHAPES = r'"Input Dims": *(\[[^"]*\])'
_OPERATION = r"^(aten::|cudnn|torch::|autograd::|triton_|CompiledFunction|Torch-Compiled)"
_BACKWARD = r"^\w+Backward\d*$"
_COMPILING = (
    r"^Xla(Compile|Emit|Optimize|PassPipeline)|(?i)nvrtc|^(cu|hip|mu)link|_compile\.|compile_fx|backend_compile"
    r"|compile_and_load|triton.*compile|torchdynamo.*(convert|compile)|^compile"
)
_SETUP_KINDS = [CALL_NUMBERS[kind] for kind in ("allocate", "other", "query", "synchronize")]

SCHEMA = {
    "name": pl.String,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "excess_ns": pl.Int64,
    "later_ns": pl.Int64,
}


def find_first_calls(events: Events) -> pl.DataFrame:
    """Return the slow first calls of a process.

    Returns:
        One row per first call that takes at least 1 ms longer than later ones: ``name``, ``start_ns``, ``end_ns``,
        ``excess_ns``, and ``later_ns``, the duration of a later call.
    """
    ranges = _read_operation_ranges(events)
    return _select_slow_first_calls(ranges if ranges.height else _read_launching_calls(events))


def find_compile_times(frames: Frames, process_id: int | None) -> pl.DataFrame:
    """Return the disjoint times in which ranges say that a process compiles code: ``start_ns``, ``end_ns``."""
    rows = frames("nvtx_ranges").filter(pl.col("process_id").eq_missing(pl.lit(process_id, pl.Int64)))
    ranges = rows.select("name", "start_ns", "end_ns").drop_nulls().collect()
    names = ranges["name"].unique()
    compiling = names.filter(names.cast(pl.String).str.contains(_COMPILING))
    own = ranges.filter(pl.col("name").is_in(compiling.implode()) & (pl.col("end_ns") > pl.col("start_ns")))
    return intervals.merge_intervals(own.select("start_ns", "end_ns"), by=[])


def list_first_calls(events: Events, first_calls: pl.DataFrame) -> Iterator[FirstCall]:
    """Yield the operations of a process that have slow first calls, the most expensive first.

    Args:
        events: The events of the process.
        first_calls: The rows of ``find_first_calls``.
    """
    calls = first_calls.filter(~pl.col("name").str.contains(WAITING_OPERATION))
    bounds = pl.concat([frame.select("start_ns", "end_ns") for frame in (events.calls, events.operations)])
    first, last = bounds.select(pl.col("start_ns").min().alias("first"), pl.col("end_ns").max().alias("last")).row(0)
    longest = pl.col("end_ns") - pl.col("start_ns")
    grouped = calls.group_by("name").agg(
        pl.len(),
        pl.col("excess_ns").sum(),
        longest.max().alias("longest_ns"),
        pl.col("start_ns").get(longest.arg_max()),
    )
    for name, count, excess, duration, start in grouped.sort("excess_ns", "name", descending=[True, False]).iter_rows():
        yield FirstCall(name, count, excess, min(1.0, excess / max(1, last - first)), duration, start)


def _read_operation_ranges(events: Events) -> pl.DataFrame:
    """Return the ranges of a framework, with the time that no range within them covers: ``own_ns``."""
    columns = ("start_ns", "end_ns", *THREAD, "name", "payload_text")
    is_nested = (pl.col("kind").cast(pl.String) == "push_pop") & (pl.col("end_ns") > pl.col("start_ns"))
    rows = events.read("nvtx_ranges").filter(is_nested).select(columns).collect()
    rows = rows.with_columns(events.remove_arguments(rows["name"]).alias("call"))
    is_whole = pl.col("call") == pl.col("name")
    is_operation = match_categories_expr(pl.col("call"), lambda text: text.str.contains(_OPERATION))
    is_backward = match_categories_expr(pl.col("call"), lambda text: text.str.contains(_BACKWARD))
    rows = rows.filter(is_operation | (is_whole & is_backward))
    times = rows.select("start_ns", "end_ns", *THREAD)
    parents = intervals.NestingIndex.from_intervals(times, by=THREAD).find_parents()
    duration = pl.col("end_ns") - pl.col("start_ns")
    inside = times.select(parent=parents, ns=duration).drop_nulls("parent").group_by("parent").agg(pl.col("ns").sum())
    covered = pl.zeros(rows.height, pl.Int64, eager=True).scatter(inside["parent"], inside["ns"])
    return rows.select(
        "start_ns",
        "end_ns",
        name=map_categories_expr(pl.col("call"), lambda text: text.str.extract(r"^([^,]*)")),
        shape=pl.coalesce(pl.col("payload_text").str.extract(_SHAPES).cast(pl.Categorical), "name"),
        loads=pl.lit(value=False),
        own_ns=duration - covered,
    )


def _read_launching_calls(events: Events) -> pl.DataFrame:
    """Return the API calls that launch kernels, by kernel, and those that load code or set up, by function."""
    first = events.operations.drop_nulls("call").unique("call", keep="first").select("call", kernel="name")
    calls = events.calls.with_row_index("call").with_columns(pl.col("call").cast(pl.Int64))
    joined = calls.join(first.cast({"call": pl.Int64}), on="call", how="left", maintain_order="left")
    start = events.operations["start_ns"].min()
    sets_up = pl.col("kind").is_in(_SETUP_KINDS) & (pl.col("end_ns") - pl.col("start_ns") >= _MIN_SETUP_NS)
    loads = (pl.col("kind") == CALL_NUMBERS["load"]) | (sets_up & (pl.col("end_ns") <= start))
    chosen = joined.filter(loads | (pl.col("kernel").is_not_null() & (pl.col("kind") == CALL_NUMBERS["launch"])))
    return chosen.select(
        "start_ns",
        "end_ns",
        "name",
        shape=pl.when(~loads).then("kernel"),
        loads=loads,
        own_ns=pl.col("end_ns") - pl.col("start_ns"),
    )


def _select_slow_first_calls(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that are the first ones of their shape and much longer than later ones.

    Args:
        calls: ``start_ns``, ``end_ns``, ``name``, ``shape`` (both Categorical), ``loads`` (whether the call loads code
            or sets up, which happens once, so that it has no shape) and ``own_ns``.
    """
    own, loads = pl.col("own_ns"), pl.col("loads")
    may_be_slow = own >= MIN_EXCESS_NS + own.min().clip(upper_bound=0)
    names = calls.filter(may_be_slow)["name"].unique()
    candidates = calls.filter(pl.col("name").is_in(names.implode(), nulls_equal=True))
    ordered = candidates.sort("start_ns", maintain_order=True)
    name, shape = (pl.col(c).to_physical().cast(pl.UInt64) for c in ("name", "shape"))
    ordered = ordered.with_columns(key=name * (1 << 32) + shape)
    ordered = ordered.with_columns(is_first=loads | pl.col("key").is_first_distinct())
    later = ordered.filter(~pl.col("is_first")).drop_nulls("key")
    same, any_shape = (later.group_by(c).agg(own.median().alias(f"of_{c}")) for c in ("key", "name"))
    firsts = ordered.filter("is_first").join(same, on="key", how="left").join(any_shape, on="name", how="left")
    usual = pl.coalesce(pl.when(loads).then(0.0), "of_key", "of_name").floor().cast(pl.Int64)
    firsts = firsts.with_columns(later_ns=usual).drop_nulls("later_ns")
    firsts = firsts.with_columns(excess_ns=own - pl.col("later_ns"))
    slow = firsts.filter((pl.col("excess_ns") >= MIN_EXCESS_NS) & (own >= _MIN_RATIO * pl.col("later_ns")))
    return slow.select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items()).sort("start_ns", "end_ns")
