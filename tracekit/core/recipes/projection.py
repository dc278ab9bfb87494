"""Project NVTX ranges onto the GPU as the recipes of nsys do, which differs from the reports of ``nsys stats``.

The activities of the nodes of a CUDA graph belong not only to the ranges in which the graph was launched, but also to
those in which its nodes were created, usually by capturing a stream. Such a range has a projection that extends over
all activities of its nodes, and one more projection per activity.

Projections are nested in the same way as their ranges. In addition, projections of ranges with the same parent, or
without a parent, are nested if one contains the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.forests import concat_ancestor_strings, depths
from tracekit.core.intervals.containment import shortest_containers
from tracekit.core.reports.nvtx import CHILDREN, add_child_aggregates, gpu_extents, gpu_launches, range_launch_pairs
from tracekit.core.reports.report import THREAD
from tracekit.core.reports.sources import read_owning_ranges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.core.reports.report import Frames

_NODE_KEY = ("process_id", "graph_node_id")
_NODE_TABLES = ("kernels", "memcpys", "memsets")
_BOUNDS = ("start_ns", "end_ns")
_GPU_BOUNDS = ("gpu_start_ns", "gpu_end_ns")
_ROUNDS = 6
"""Rounds in which copies of nodes are traced back. Each doubles the number of copies, so 64 copies are followed."""


def project_with_nodes(frames: Frames) -> pl.DataFrame:
    """Return the projections of all ranges onto the GPU.

    Returns:
        One row per projection: the columns of the range, ``gpu_start_ns``, ``gpu_end_ns``, ``row`` (number of the
        range) and ``activity`` (number of the activity of a node, null for the projection of the whole range).
    """
    owners = read_owning_ranges(frames).collect()
    launches = gpu_launches(frames, (*_NODE_TABLES, "graph_launches")).select(*THREAD, *_BOUNDS, *_GPU_BOUNDS)
    nodes = _created_nodes(frames)
    creations = nodes.group_by(*THREAD, *_BOUNDS).agg(pl.col("gpu_start_ns").min(), pl.col("gpu_end_ns").max())
    extents = gpu_extents(owners, pl.concat([launches, creations.select(launches.columns)]))
    rows = extents.select("row", gpu_start_ns="low", gpu_end_ns="high", activity=pl.lit(None, pl.UInt32))
    if nodes.height:
        rows = pl.concat([rows, _single_projections(owners, nodes).select(rows.columns)])
    return owners[rows["row"]].hstack(rows)


def _single_projections(owners: pl.DataFrame, nodes: pl.DataFrame) -> pl.DataFrame:
    """Return every pair of a range and an activity of a node that was created in it."""
    pairs = range_launch_pairs(owners, nodes)
    activities = nodes.select(*_GPU_BOUNDS, pl.int_range(pl.len(), dtype=pl.UInt32).alias("activity"))
    return pairs.select("row").hstack(activities[pairs["member"]])


def _created_nodes(frames: Frames) -> pl.DataFrame:
    """Return the activities of nodes of CUDA graphs with the times at which the nodes were created.

    A node of an executable graph is a copy of the node that the program created. The creation of the original is used.
    """
    columns = (*_NODE_KEY, "thread_id", *_BOUNDS, "original_graph_node_id")
    events = frames("cuda_graph_node_events").select(columns).collect()
    if events.is_empty():
        return pl.DataFrame(schema=dict.fromkeys((*THREAD, *_BOUNDS, *_GPU_BOUNDS), pl.Int64))
    created = events.filter(pl.col("original_graph_node_id").is_null()).unique(_NODE_KEY, keep="first")
    nodes = _original_nodes(events).join(
        created.drop("original_graph_node_id"),
        left_on=["process_id", "original"],
        right_on=list(_NODE_KEY),
        how="inner",
    )
    tables = (frames(t).select(*_NODE_KEY, gpu_start_ns="start_ns", gpu_end_ns="end_ns") for t in _NODE_TABLES)
    activities = pl.concat(tables).drop_nulls("graph_node_id")
    return activities.join(nodes.lazy(), on=_NODE_KEY, how="inner", maintain_order="left").collect()


def _original_nodes(events: pl.DataFrame) -> pl.DataFrame:
    """Return the original of each copied node, following chains of copies: ``_NODE_KEY`` and ``original``."""
    original = pl.col("original_graph_node_id").drop_nulls().first().fill_null(pl.col("graph_node_id").first())
    nodes = events.group_by(_NODE_KEY).agg(original.alias("original"))
    for _ in range(_ROUNDS):
        further = nodes.select("process_id", original="graph_node_id", further="original")
        joined = nodes.join(further, on=["process_id", "original"], how="left")
        nodes = joined.select(*_NODE_KEY, pl.coalesce("further", "original").alias("original"))
    return nodes


def nest_projections(rows: pl.DataFrame) -> pl.DataFrame:
    """Sort projections by thread and start, and determine their nesting within each thread.

    Returns:
        The rows, with ``range_id`` (number of the row), ``parent_id``, ``level``, ``children`` and ``stack`` (the
        numbers of the ancestors and of the row itself).
    """
    order = [*THREAD, *_GPU_BOUNDS, *_BOUNDS, "range_id"]
    rows = rows.sort(order, descending=[c in ("gpu_end_ns", "end_ns") for c in order]).with_row_index("number")
    outer = _outer_projections(rows)
    families = rows.select(*THREAD, outer.alias("outer"), start_ns="gpu_start_ns", end_ns="gpu_end_ns")
    inner = _smallest_containers(families.with_columns(pl.col("outer").fill_null(rows.height)), by=(*THREAD, "outer"))
    parent = pl.select(pl.coalesce(inner, outer)).to_series()
    numbers = rows.select(":" + pl.col("number").cast(pl.String)).to_series()
    stack = concat_ancestor_strings(parent, numbers).str.strip_prefix(":").str.split(":").cast(pl.List(pl.Int64))
    number = pl.col("number").cast(pl.Int64)
    tree = rows.drop("row", "range_id").with_columns(
        parent.alias("parent"), pl.col("number").alias("row"), (depths(parent).cast(pl.Int64) - 1).alias("level")
    )
    return add_child_aggregates(tree, CHILDREN).with_columns(
        number.alias("range_id"), pl.col("parent").cast(pl.Int64).alias("parent_id"), stack.alias("stack")
    )


def _outer_projections(rows: pl.DataFrame) -> pl.Series:
    """Return, for each projection, the row number of the projection of the next outer range, or null.

    The projection of one activity of an inner range is inside that of the same activity of the outer range.
    """
    ranges = rows.unique("row").sort("range_id").select("row", *THREAD, *_BOUNDS)
    outer = ranges.select("row", outer_row=ranges["row"].gather(_smallest_containers(ranges, by=THREAD)))
    numbers = rows.select(outer_row="row", activity="activity", outer="number")
    keyed = rows.select("row", "activity").join(outer, on="row", how="left", maintain_order="left")
    on = ["outer_row", "activity"]
    return keyed.join(numbers, on=on, how="left", nulls_equal=True, maintain_order="left")["outer"]


def _smallest_containers(rows: pl.DataFrame, *, by: Sequence[str]) -> pl.Series:
    """Return, for each interval, the row number of the shortest interval that contains it, or null.

    Of intervals with equal bounds, the first one contains the others, each of which contains the next.
    """
    keyed = rows.select(*by, *_BOUNDS).with_row_index("at")
    group = [*by, *_BOUNDS]
    twins = keyed.with_columns(
        pl.col("at").shift(1).over(group).alias("twin"), pl.col("at").first().over(group).alias("first")
    )
    firsts = twins.filter(pl.col("twin").is_null())
    contained = firsts["at"].gather(shortest_containers(firsts, by=by))
    parents = pl.repeat(None, rows.height, dtype=pl.UInt32, eager=True).scatter(firsts["at"], contained)
    return pl.select(pl.coalesce(twins["twin"], parents)).to_series()
