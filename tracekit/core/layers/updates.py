"""Find which captured graph an executable graph runs after an update.

``cudaGraphExecUpdate`` gives the nodes of an executable graph the parameters of the nodes of another graph, in the same
order. The ids of the nodes stay the same, and which graph was used is not recorded. It follows from the kernels: the
graph was captured before, has as many nodes, and ran the same kernels whenever it ran before. If this holds for exactly
one graph, or for several whose nodes were created in equal ranges, the executable graph runs the last one. Otherwise
the graph is not known.

Updates of all executable graphs of a process are taken together, as it is not recorded which one was updated.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from tracekit.core.layers.nodes import (
    CREATED,
    EVENTS,
    NODE,
    ORIGINAL,
    find_original_nodes,
    select_calls,
    select_created_nodes,
)
from tracekit.core.relations import CALL, NODES_PER_GRAPH, OPERATIONS, THREAD
from tracekit.core.runtimes import API_PREFIX
from tracekit.system.sorting import iterate_row_blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    Frames = Callable[[str], pl.LazyFrame]

MAX_COMPARISONS: Final = 1 << 20
"""Largest number of graphs that are compared with the runs of executable graphs."""
MAX_GRAPHS: Final = 1 << 16
"""Largest number of captured graphs, and of executable graphs after each update. The graphs of further runs are not
known.
"""
_GRAPH = pl.col("graph_node_id") // NODES_PER_GRAPH
_VERSION = ("process_id", "graph", "updates")
_CANDIDATE = ("process_id", "size", "updates", "graph", "layout")
_VERSIONS = {"process_id": pl.Int64, "graph": pl.Int64, "updates": pl.UInt32, "current": pl.Int64}


class _Candidate(NamedTuple):
    """A captured graph: the number of updates before it was captured, its id, and a hash of the paths of its nodes."""

    updates: int
    graph: int
    layout: int | None


class UpdatedGraphs(NamedTuple):
    """The executable graphs that ran after updates.

    Attributes:
        frames: Function that returns the table with a given name.
        times: The updates: ``process_id``, ``start_ns`` and ``updates``, their number so far.
        versions: One row per executable graph and number of updates before it ran, if it may have been updated:
            ``_VERSION`` and ``current``, the captured graph whose nodes it runs, or null.
    """

    frames: Frames
    times: pl.DataFrame
    versions: pl.DataFrame

    def read_nodes(self, table: str) -> pl.DataFrame:
        """Return the node of each activity of a table: after an update, the captured node, or null if not known."""
        if not self.times.height:
            return self.frames(table).select(NODE).collect()
        rows = _read_activities(self.frames, self.times, table)
        rows = rows.join(self.versions.with_columns(is_updated=True), on=_VERSION, how="left", maintain_order="left")
        current = pl.col("current") * NODES_PER_GRAPH + pl.col("graph_node_id") % NODES_PER_GRAPH
        node = pl.when(pl.col("is_updated")).then(current).otherwise("graph_node_id")
        return rows.select("process_id", node.alias("graph_node_id"))


def find_updated_graphs(frames: Frames, find_paths: Callable[[pl.DataFrame], pl.Series]) -> UpdatedGraphs:
    """Return the executable graphs that ran after updates, and the captured graphs that they run.

    Args:
        frames: Function that returns the table with a given name.
        find_paths: Function that returns the path of the ranges that were open at points in time, given the columns
            ``THREAD`` and ``api_start_ns``.
    """
    calls = frames("api_calls").select("process_id", "thread_id", "start_ns", "end_ns", "name").collect()
    times = select_calls(calls, API_PREFIX + "GraphExecUpdate").select("process_id", "start_ns")
    times = times.with_columns(updates=pl.int_range(1, pl.len() + 1, dtype=pl.UInt32).over("process_id"))
    if not times.height:
        return UpdatedGraphs(frames, times, pl.DataFrame(schema=_VERSIONS))
    events = frames(EVENTS).select(*NODE, "thread_id", "start_ns", ORIGINAL).collect().sort("start_ns")
    created = select_created_nodes(events, calls).sort(NODE)
    path = find_paths(created.select(*THREAD, api_start_ns=CREATED)).to_physical()
    layouts = created.select("process_id", graph=_GRAPH, path=path)
    layouts = layouts.with_columns(place=pl.int_range(pl.len()).over("process_id", "graph"))
    layouts = layouts.group_by("process_id", "graph").agg(layout=pl.struct("place", "path").hash().sum())
    events = _count_updates(events, times).with_columns(graph=_GRAPH)
    versions = _list_versions(frames, times)
    born = events.group_by("process_id", "graph").agg(born=pl.col("updates").min())
    versions = versions.join(born, on=["process_id", "graph"], how="left")
    versions = versions.with_columns(is_updated=(pl.col("updates") > pl.col("born")).fill_null(value=True))
    current = _find_current_graphs(
        versions,
        _list_graphs(events).join(layouts, on=["process_id", "graph"], how="left"),
        _find_original_graphs(events),
    )
    return UpdatedGraphs(frames, times, current)


def _count_updates(rows: pl.DataFrame, times: pl.DataFrame) -> pl.DataFrame:
    """Return rows, which have a ``start_ns``, with the number of ``updates`` of their process before it."""
    counted = (
        rows.with_row_index("order")
        .sort("start_ns")
        .join_asof(times.sort("start_ns"), on="start_ns", by="process_id", check_sortedness=False)
    )
    return counted.sort("order").drop("order").with_columns(pl.col("updates").fill_null(0))


def _read_activities(frames: Frames, times: pl.DataFrame, table: str) -> pl.DataFrame:
    """Return the activities of a table: ``CALL``, ``graph_node_id``, ``graph``, ``start_ns`` and ``updates``.

    ``start_ns`` is the start of the launch. Activities in conditional nodes have no launch, so it is their own start.
    """
    launches = frames("api_calls").select(*CALL, launched_ns="start_ns").collect().unique(CALL, keep="first")
    rows = frames(table).select(*CALL, "graph_node_id", "start_ns").collect()
    rows = rows.join(launches, on=CALL, how="left", maintain_order="left")
    rows = rows.with_columns(start_ns=pl.coalesce("launched_ns", "start_ns"), graph=_GRAPH)
    return _count_updates(rows, times)


def _list_versions(frames: Frames, times: pl.DataFrame) -> pl.DataFrame:
    """Return the columns ``_VERSION`` and ``content``: a hash of what ran per node: kind, name and number of blocks."""
    parts = []
    for table in OPERATIONS:
        rows = _read_activities(frames, times, table)
        if table == "kernels":
            rows = rows.hstack(frames(table).select(pl.col("name").to_physical(), "grid_x").collect())
        rows = rows.filter(pl.col("graph_node_id").is_not_null())
        of_kernels = ("name", "grid_x") if table == "kernels" else ()
        content = pl.struct(pl.lit(table), *of_kernels).hash().alias("content")
        blocks = [rows.clear(), *(rows[block] for block in iterate_row_blocks(rows.height))]
        parts += [block.group_by(*_VERSION, "graph_node_id").agg(content.first()) for block in blocks]
    nodes = pl.concat(parts).group_by(*_VERSION, "graph_node_id").agg(pl.col("content").first())
    entry = pl.struct(pl.col("graph_node_id") % NODES_PER_GRAPH, "content").hash()
    return nodes.group_by(_VERSION).agg(entry.sum().alias("content"))


def _list_graphs(events: pl.DataFrame) -> pl.DataFrame:
    """Return the graphs that no other graph was copied to: ``process_id``, ``graph``, ``size``, ``updates`` before."""
    copies = events.filter(pl.col(ORIGINAL).is_not_null()).select("process_id", "graph").unique()
    captured = events.join(copies, on=["process_id", "graph"], how="anti")
    return captured.group_by("process_id", "graph").agg(
        size=pl.col("graph_node_id").n_unique(), updates=pl.col("updates").min()
    )


def _find_original_graphs(events: pl.DataFrame) -> pl.DataFrame:
    """Return the captured graph of each graph that is a copy: ``process_id``, ``graph``, ``original``, ``size``."""
    copies = events.filter(pl.col(ORIGINAL).is_not_null()).select(NODE).unique()
    originals = find_original_nodes(events).join(copies, on=NODE, how="semi")
    return originals.group_by("process_id", graph=_GRAPH).agg(
        original=pl.col("original").min() // NODES_PER_GRAPH, size=pl.len()
    )


def _find_current_graphs(versions: pl.DataFrame, graphs: pl.DataFrame, originals: pl.DataFrame) -> pl.DataFrame:
    """Return the versions that may have been updated, with the captured graph that each one runs."""
    versions = versions.join(originals, on=["process_id", "graph"], how="left")
    known = versions.filter(~pl.col("is_updated")).drop_nulls("original").select("process_id", "original", "content")
    key = ["process_id", "content"]
    updated = versions.filter("is_updated").join(known.select(*key, seen=True).unique(), on=key, how="left")
    updated = updated.sort("process_id", "updates", pl.col("seen").fill_null(value=False), "graph")
    count = updated.height if max(known.height, graphs.height) <= MAX_GRAPHS else 0
    contents: dict[tuple[int, int], int] = {}
    candidates: dict[tuple[int, int], list[_Candidate]] = defaultdict(list)
    if count:
        contents.update(((process, original), content) for process, original, content in known.iter_rows())
        for process, size, *candidate in graphs.sort("updates", "graph").select(_CANDIDATE).iter_rows():
            candidates[process, size].append(_Candidate(*candidate))
    left, current = MAX_COMPARISONS, []
    for row in updated.head(min(count, MAX_GRAPHS)).iter_rows(named=True):
        possible = candidates[row["process_id"], row["size"]]
        left -= len(possible)
        current.append(_find_only_graph(row, possible, contents) if left >= 0 else None)
    known_graphs = pl.Series("current", current, dtype=pl.Int64).extend_constant(None, updated.height - len(current))
    return updated.select(_VERSION).with_columns(known_graphs)


def _find_only_graph(
    version: dict[str, Any], candidates: list[_Candidate], contents: dict[tuple[int, int], int]
) -> int | None:
    """Return the candidate that a version runs, and note what it runs; None if candidates with other ranges fit."""
    process, content = version["process_id"], version["content"]
    fitting = [
        candidate
        for candidate in candidates
        if candidate.updates < version["updates"] and contents.get((process, candidate.graph), content) == content
    ]
    if len({candidate.layout for candidate in fitting}) != 1:
        return None
    graph = fitting[-1].graph
    contents[process, graph] = content
    return graph
