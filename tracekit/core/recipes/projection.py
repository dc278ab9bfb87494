"""Project NVTX ranges onto the GPU like the recipes of nsys, whose projections differ from those of ``nsys stats``.

The activities of a CUDA graph are attributed to the ranges in which the graph was launched, created and instantiated.
Some graphs are recorded node by node. If a range contains no other range, it has one projection per activity of a node
that was created in the range, usually by capturing a stream.

Each projection is nested in the shortest projection of the same thread that contains it. A projection that is a single
activity contains only projections with the same bounds, because other activities in this time run concurrently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.intervals.containment import find_shortest_containers
from tracekit.core.layers.nodes import NODE, find_original_nodes
from tracekit.core.relations import ACTIVITIES, LAUNCH, OPERATIONS, THREAD, list_launch_columns
from tracekit.core.reports.nvtx import (
    CHILDREN,
    add_child_aggregates,
    compute_range_gpu_extents,
    pair_ranges_with_launches,
    read_gpu_launches,
)
from tracekit.core.reports.sources import read_attributable_ranges
from tracekit.core.trees import MAX_LEVELS, compute_depths, concat_strings_from_root, skip_middle_ancestors

if TYPE_CHECKING:
    from tracekit.core.reports.report import Frames

_BOUNDS = ("start_ns", "end_ns")
_GPU_BOUNDS = ("gpu_start_ns", "gpu_end_ns")
_GRAPHS = "graph_launches"
_TIMES = ("gpu_start_ns", "gpu_first_end_ns", "gpu_end_ns")
_COLUMNS = (*THREAD, *_BOUNDS, *_TIMES)
_BOUNDS_OF_EXTENT = (pl.col("gpu_start_ns").min(), pl.col("gpu_first_end_ns").min(), pl.col("gpu_end_ns").max())


def project_ranges_and_nodes(frames: Frames) -> pl.DataFrame:
    """Return the projections of NVTX ranges onto the GPU, including those of the nodes of CUDA graphs.

    Returns:
        One row per projection: the columns of the range, ``gpu_start_ns``, ``gpu_first_end_ns`` (first end of an
        activity), ``gpu_end_ns``, ``row`` (row number of the range) and ``activity`` (number of the activity of a node,
        or null for the projection of the whole range).
    """
    ranges = read_attributable_ranges(frames).collect()
    nodes = _read_node_activities(frames)
    singles, outer = _pair_nodes_with_ranges(ranges, nodes)
    sources = [
        read_gpu_launches(frames, ACTIVITIES).select(_COLUMNS).collect(),
        _read_graph_launches(frames),
        _read_node_activities(frames, use_original_creation_times=False),
    ]
    extents = (
        pl.concat([_compute_range_gpu_extents(ranges, pl.concat(sources)), outer])
        .group_by("row")
        .agg(*_BOUNDS_OF_EXTENT)
    )
    rows = pl.concat([extents.with_columns(activity=pl.lit(None, pl.UInt32)), singles]).sort("row", maintain_order=True)
    return ranges[rows["row"]].hstack(rows)


def _read_graph_launches(frames: Frames) -> pl.DataFrame:
    """Return the launches of whole CUDA graphs, with the times at which the graphs were created and instantiated.

    Each launch has one row for the creation of its graph and one row for the instantiation.
    """
    events = frames("cuda_graph_events").select(*THREAD, *_BOUNDS, "graph_id", "graph_exec_id")
    launches = frames(_GRAPHS).select(
        "process_id",
        "graph_id",
        "graph_exec_id",
        gpu_start_ns="start_ns",
        gpu_first_end_ns="end_ns",
        gpu_end_ns="end_ns",
    )
    is_instantiation = pl.col("graph_exec_id").is_not_null()
    parts = []
    for key, condition in (("graph_id", ~is_instantiation), ("graph_exec_id", is_instantiation)):
        keys = ["process_id", key]
        created = (
            events.filter(condition).select(*THREAD, *_BOUNDS, key).unique(keys, keep="first", maintain_order=True)
        )
        parts.append(created.join(launches, on=keys, how="inner").select(_COLUMNS))
    return pl.concat(parts).collect()


def _compute_range_gpu_extents(ranges: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Return the first start, first end and last end of the activities of each range.

    The columns are ``row``, ``gpu_start_ns``, ``gpu_first_end_ns`` and ``gpu_end_ns``.
    """
    whole = compute_range_gpu_extents(ranges, launches)
    ends = compute_range_gpu_extents(ranges, launches.with_columns(gpu_start_ns="gpu_first_end_ns"))
    joined = whole.join(ends.select("row", first_end="low"), on="row", how="inner")
    return joined.select("row", gpu_start_ns="low", gpu_first_end_ns="first_end", gpu_end_ns="high")


def _pair_nodes_with_ranges(ranges: pl.DataFrame, nodes: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Pair the activities of graph nodes with the ranges in which the nodes were created.

    Returns:
        Two frames with one row per activity and range. Each row of the first frame is one projection of a range that
        contains no other range. The second frame has the pairs with the other ranges.
    """
    pairs = pair_ranges_with_launches(ranges, nodes)
    times = nodes.select(_TIMES)[pairs["member"]]
    rows = pairs.rename({"member": "activity"}).hstack(times).with_columns(pl.col("activity").cast(pl.UInt32))
    is_single = _compute_innermost_range_mask(ranges)[pairs["row"]]
    names = ["row", *_TIMES]
    singles = rows.filter(is_single).sort("activity", "row")
    return singles.select(*names, "activity"), rows.filter(~is_single).select(names)


def _compute_innermost_range_mask(ranges: pl.DataFrame) -> pl.Series:
    """Return a mask that is true for the ranges that contain no other range of their thread.

    Of several ranges with equal bounds, each one contains the next one.
    """
    order = [*THREAD, *_BOUNDS, "row"]
    rows = ranges.with_row_index("row").sort(order, descending=[c == "end_ns" for c in order])
    first_end_after = pl.col("end_ns").reverse().cum_min().shift(1).reverse().over(THREAD)
    is_free = (first_end_after > pl.col("end_ns")).fill_null(value=True)
    return rows.select("row", is_free.alias("is_free")).sort("row")["is_free"]


def _read_node_activities(frames: Frames, *, use_original_creation_times: bool = True) -> pl.DataFrame:
    """Return the activities of nodes of CUDA graphs, with the times at which the nodes were created.

    A node of an executable graph is a copy of the node that the program created. Activities that a layered trace
    launches in copied ranges are left out.

    Args:
        frames: Function that returns the declared table with a given name.
        use_original_creation_times: Whether to return the creation times of the original nodes instead of those of the
            copies.
    """
    columns = (*NODE, "thread_id", *_BOUNDS, "original_graph_node_id")
    events = frames("cuda_graph_node_events").select(columns).collect()
    if events.is_empty():
        return pl.DataFrame(schema=dict.fromkeys(_COLUMNS, pl.Int64))
    created = events.filter(pl.col("original_graph_node_id").is_null()).unique(NODE, keep="first")
    originals = (
        find_original_nodes(events) if use_original_creation_times else created.select(*NODE, original="graph_node_id")
    )
    nodes = originals.join(
        created.drop("original_graph_node_id"),
        left_on=["process_id", "original"],
        right_on=list(NODE),
        how="inner",
    )
    launched = [frames(t) for t in OPERATIONS]
    launched = [rows.filter(pl.col(LAUNCH).is_null()) if list_launch_columns(rows) else rows for rows in launched]
    tables = (rows.select(*NODE, gpu_start_ns="start_ns", gpu_end_ns="end_ns") for rows in launched)
    activities = pl.concat(tables).drop_nulls("graph_node_id")
    joined = activities.join(nodes.lazy(), on=NODE, how="inner", maintain_order="left")
    return joined.with_columns(gpu_first_end_ns="gpu_end_ns").select(_COLUMNS).collect()


def nest_projections(rows: pl.DataFrame) -> pl.DataFrame:
    """Sort projections by thread and start, and determine their nesting within each thread.

    Returns:
        The sorted rows, with ``range_id`` (row number), ``parent_id`` (``range_id`` of the parent), ``level`` (from 0),
        ``children`` (number of children) and ``stack`` (``range_id`` of all ancestors and of the row itself). At more
        than ``MAX_LEVELS`` levels, the stack contains only the outermost ancestors and the row itself.
    """
    order = [*THREAD, *_GPU_BOUNDS, *_BOUNDS, "range_id"]
    rows = rows.sort(order, descending=[c in ("gpu_end_ns", "end_ns") for c in order]).with_row_index("number")
    parent = _find_shortest_containing_projections(rows)
    numbers = rows.select(":" + pl.col("number").cast(pl.String)).to_series()
    outer, _ = skip_middle_ancestors(parent, MAX_LEVELS)
    stack = concat_strings_from_root(outer, numbers).str.strip_prefix(":").str.split(":").cast(pl.List(pl.Int64))
    number = pl.col("number").cast(pl.Int64)
    tree = rows.drop("row", "range_id").with_columns(
        parent.alias("parent"),
        pl.col("number").alias("row"),
        (compute_depths(parent).cast(pl.Int64) - 1).alias("level"),
    )
    return add_child_aggregates(tree, CHILDREN).with_columns(
        number.alias("range_id"), pl.col("parent").cast(pl.Int64).alias("parent_id"), stack.alias("stack")
    )


def _find_shortest_containing_projections(rows: pl.DataFrame) -> pl.Series:
    """Return the row number of the shortest projection that contains each projection, or null if there is none.

    Of several projections with equal bounds, each one contains the next one.
    """
    group = [*THREAD, *_GPU_BOUNDS]
    is_wide = pl.col("gpu_first_end_ns") < pl.col("gpu_end_ns")
    twins = rows.with_row_index("at").with_columns(
        pl.col("at").shift(1).over(group).alias("twin"),
        pl.col("at").filter(is_wide).last().over(group).alias("container"),
    )
    firsts = twins.filter(pl.col("twin").is_null())
    intervals = firsts.select(*THREAD, start_ns="gpu_start_ns", end_ns="gpu_end_ns")
    containers = find_shortest_containers(intervals, by=THREAD, is_candidate=firsts["container"].is_not_null())
    parents = pl.repeat(None, rows.height, dtype=pl.UInt32, eager=True)
    parents = parents.scatter(firsts["at"], firsts["container"].gather(containers))
    return pl.select(pl.coalesce(twins["twin"], parents)).to_series()
