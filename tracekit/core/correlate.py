"""Attach GPU activities to API calls, and API calls to NVTX ranges.

A GPU activity belongs to the API call of its process with its correlation id; one call may own many activities (CUDA
graphs). A call belongs to the push/pop ranges of its thread that are open when it starts, ``start <= t < end``, over all
domains; the innermost names it. Start/end ranges may cross threads and overlap: a call belongs to the one of its process
that began last among those open when it starts, kept in a column of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core import intervals
from tracekit.core.containment import latest_enclosing, slice_min

if TYPE_CHECKING:
    from collections.abc import Callable

    Frames = Callable[[str], pl.LazyFrame]

THREAD = ["process_id", "thread_id"]
CALL = ["process_id", "correlation_id"]
ACTIVITIES = ("kernels", "memcpys", "memsets", "graph_launches")
DEEPEST_PATH = 256
_RANGE = ["range_id", "process_id", "thread_id", "domain_id", "start_ns", "end_ns"]


def activities(frames: Frames, name: str) -> pl.LazyFrame:
    """Find the call and the ranges behind each row of a table of GPU activities.

    Args:
        frames: Gives a table by name.
        name: ``kernels``, ``memcpys``, ``memsets`` or ``graph_launches``.

    Returns:
        n rows in, n rows out in their order: the columns that correlation adds.
    """
    owners = frames(name).select(CALL).collect()
    calls = _calls(frames, owners)
    push_pop = _ranges(frames, "push_pop")
    placed = intervals.innermost(calls, push_pop, at="api_start_ns", by=THREAD)
    start_end = _ranges(frames, "start_end")
    if start_end.height:
        open_ = latest_enclosing(placed.drop("range_id").lazy(), start_end.lazy(), at="api_start_ns", by=["process_id"]).collect()
        placed = placed.with_columns(start_end_range_id=open_["range_id"])
    else:
        placed = placed.with_columns(start_end_range_id=pl.lit(None, pl.Int64))
    described = placed.join(_described(frames), on="range_id", how="left", maintain_order="left")
    linked = owners.join(described, on=CALL, how="left", maintain_order="left")
    return linked.lazy().drop(CALL).with_columns(pl.col("range_depth").fill_null(0))


def ranges(frames: Frames) -> pl.LazyFrame:
    """Find parent, depth, path and projection on the GPU of each NVTX range.

    Returns:
        n rows in, n rows out in their order: the columns that correlation adds.
    """
    listed = frames("nvtx_ranges").select("range_id").collect()
    tree = _described(frames).rename({"range_depth": "depth", "range_path": "path"}).drop("range_name")
    projected = projections(frames)
    return (
        listed.join(tree, on="range_id", how="left", maintain_order="left")
        .join(projected, on="range_id", how="left", maintain_order="left")
        .lazy()
        .with_columns(pl.col("gpu_op_count", "gpu_time_ns").fill_null(0))
    )


def projections(frames: Frames) -> pl.DataFrame:
    """Project ranges on the GPU: first start to last end of what was launched inside them.

    Returns:
        One row a range inside which something was launched: ``range_id``, ``gpu_start_ns``, ``gpu_end_ns``,
        ``gpu_op_count``, ``gpu_time_ns``.
    """
    operations = pl.concat([_operations(frames, name) for name in ACTIVITIES])
    calls = _calls(frames, operations.select(CALL))
    launched = calls.join(operations, on=CALL, how="inner").rename({"api_start_ns": "at_ns"})
    push_pop = _project(launched, _ranges(frames, "push_pop"), THREAD)
    return pl.concat([push_pop, _project(launched, _ranges(frames, "start_end"), ["process_id"])])


def _calls(frames: Frames, owners: pl.DataFrame) -> pl.DataFrame:
    """The API calls that some activities belong to, one row a (process, correlation id): of several calls the first."""
    called = frames("api_calls").select(
        *CALL, "thread_id", "api_call_id", api_start_ns=pl.col("start_ns"), api_end_ns=pl.col("end_ns")
    )
    wanted = owners.lazy().unique()
    return called.join(wanted, on=CALL, how="semi").unique(CALL, keep="first", maintain_order=True).collect()


def _ranges(frames: Frames, kind: str) -> pl.DataFrame:
    return frames("nvtx_ranges").filter(pl.col("kind") == kind).select(_RANGE).collect()


def _described(frames: Frames) -> pl.DataFrame:
    """Parent, depth, name and path of each push/pop range."""
    named = frames("nvtx_ranges").filter(pl.col("kind") == "push_pop").select(*_RANGE, range_name="name").collect()
    tree = intervals.parents(named, by=THREAD, within=["domain_id"])
    paths = _paths(named.select("range_id", "range_name").join(tree, on="range_id", how="left", maintain_order="left"))
    return paths.select("range_id", "parent_id", "range_name", "range_path", range_depth="depth")


def _paths(tree: pl.DataFrame) -> pl.DataFrame:
    """Add ``range_path``: the texts from the outermost range down to each, joined by "/"; n rows in, n out.

    A path is the path of the parent and one more text, so there are few distinct ones; they are made level by level.
    """
    rows = tree.select("range_id", up=pl.int_range(pl.len()))
    nodes = tree.join(rows, left_on="parent_id", right_on="range_id", how="left", maintain_order="left").select(
        "up", "depth", text=pl.col("range_name").cast(pl.String).fill_null("").cast(pl.Categorical)
    )
    ids = pl.zeros(nodes.height, pl.Int64, eager=True)
    paths = [pl.Series([""], dtype=pl.String)]
    known = 1
    for level in range(1, min(int(nodes["depth"].max() or 0), DEEPEST_PATH) + 1):
        here = nodes.with_row_index("row").filter(pl.col("depth") == level)
        pairs = here.select("row", "text", outer=ids.gather(here["up"]).fill_null(0))
        fresh = pairs.select("outer", "text").unique(maintain_order=True).with_columns(id=pl.int_range(pl.len()) + known)
        paths.append(_extended(pl.concat(paths), fresh, outermost=level == 1))
        ids.scatter(here["row"], pairs.join(fresh, on=["outer", "text"], how="left", maintain_order="left")["id"])
        known += fresh.height
    texts = pl.concat(paths)
    ids, texts = _cut_deep(nodes, ids, texts)
    return tree.with_columns(range_path=texts.cast(pl.Categorical).gather(ids))


def _extended(paths: pl.Series, fresh: pl.DataFrame, *, outermost: bool) -> pl.Series:
    texts = fresh["text"].cast(pl.String)
    return texts if outermost else paths.gather(fresh["outer"]) + "/" + texts


def _cut_deep(nodes: pl.DataFrame, ids: pl.Series, texts: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Give ranges below the deepest level the path of their ancestor there, marked with "…"."""
    deep = nodes["depth"] > DEEPEST_PATH
    if not deep.any():
        return ids, texts
    own = pl.int_range(nodes.height, eager=True)
    up = own.zip_with(~deep, nodes["up"])
    while (deep.gather(up)).any():
        up = up.gather(up)
    return ids.gather(up) + deep.cast(pl.Int64) * len(texts), pl.concat([texts, texts + "/…"])


def _operations(frames: Frames, name: str) -> pl.DataFrame:
    """GPU activities of one table, a row a call: first start, last end, number and sum of durations."""
    return (
        frames(name)
        .select(*CALL, "start_ns", "end_ns")
        .group_by(CALL)
        .agg(
            gpu_start_ns=pl.col("start_ns").min(),
            gpu_end_ns=pl.col("end_ns").max(),
            gpu_op_count=pl.len().cast(pl.Int64),
            gpu_time_ns=(pl.col("end_ns") - pl.col("start_ns")).sum(),
        )
        .collect()
    )


def _project(launched: pl.DataFrame, ranges: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """Sum up what was launched inside each range: in order of time, a slice of the calls of its track."""
    axis = intervals.Axis.of(ranges, by)
    calls = launched.with_columns(at=axis.instants(launched, "at_ns")).drop_nulls("at").sort("at")
    spans = axis.spans(ranges)
    found = spans.with_columns(
        first=calls["at"].search_sorted(spans["start"], "left").cast(pl.Int64),
        stop=calls["at"].search_sorted(spans["end"], "left").cast(pl.Int64),
    ).filter(pl.col("first") < pl.col("stop"))
    return found.select(
        "range_id",
        gpu_start_ns=slice_min(calls["gpu_start_ns"], found),
        gpu_end_ns=-slice_min(-calls["gpu_end_ns"], found),
        gpu_op_count=_slice_sum(calls["gpu_op_count"], found),
        gpu_time_ns=_slice_sum(calls["gpu_time_ns"], found),
    )


def _slice_sum(values: pl.Series, found: pl.DataFrame) -> pl.Series:
    totals = pl.concat([pl.Series([0], dtype=pl.Int64), values.cum_sum()])
    return totals.gather(found["stop"]) - totals.gather(found["first"])
