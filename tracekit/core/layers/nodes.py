"""Find where the program created the nodes of CUDA graphs.

A node is created when an API call is captured, or when the program adds a node to a graph. An executable graph consists
of copies of these nodes, and so does a clone of a graph. The replay of a graph runs copies, so each copy is traced back
to the node that the program created. Ids of nodes are unique within a process. The high 32 bits of an id are the id of
the graph, and the low 32 bits are the number of the node within the graph, in the order of creation.

A graph can contain child graphs, and conditional nodes contain the graphs of their branches. When it is instantiated,
the nodes of these graphs are copied to graphs of their own, but they run as nodes of the executable graph: with the
numbers after those of its own nodes, in the order of the ids of the graphs. Their creation is not recorded.

If the creation of the nodes of a graph was not recorded, its activities are compared with the calls between the begin
and the end of a stream capture that launched nothing at once: the n-th node belongs to the n-th of these calls. This is
done only if the kinds of all nodes and calls agree, if no other graph or capture has the same sequence of kinds, if the
graph did not run before the capture, and if no kernel was launched elsewhere only by API functions other than that of
its call. A graph that was captured before the recording may still have the same sequence as another one that was
captured during it and never ran, so the confidence is ``INFERRED_CONFIDENCE``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from tracekit.core.layers.alignment import SHAPE
from tracekit.core.relations import CALL, NODES_PER_GRAPH, OPERATIONS, THREAD
from tracekit.core.runtimes import API_PREFIX
from tracekit.core.series import match_categories_expr
from tracekit.system.sorting import iterate_row_blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    Frames = Callable[[str], pl.LazyFrame]

EVENTS = "cuda_graph_node_events"
NODE = ("process_id", "graph_node_id")
"""Columns that identify a node of a graph."""
CREATED = "created_ns"
ORIGINAL = "original_graph_node_id"
INFERRED_CONFIDENCE: Final = 0.9
"""Confidence in the layers of nodes that were matched with captured calls by their order."""
LAUNCH_PATTERN = "(?i)graphlaunch"
"""Regular expression that matches API functions that launch a graph."""
_FIRST_NUMBER = 1 << 30
"""Number of the first graph whose id was not recorded."""
_ROUNDS = 6
"""Number of rounds in which copies of nodes are traced back. Each round doubles the length of the chains of copies that
are followed, up to 64 copies.
"""
_GRAPH, _NUMBER = pl.col("graph_node_id") // NODES_PER_GRAPH, pl.col("graph_node_id") % NODES_PER_GRAPH
_INSTANTIATING_CALLS = API_PREFIX + "GraphInstantiate"
_COPYING_CALLS = API_PREFIX + "Graph(Instantiate|Clone|ExecUpdate|Upload|Launch)"
"""Regular expression that matches API functions that copy the nodes of a graph."""
_CAPTURE_LIMITS = API_PREFIX + "Stream(Begin|End)Capture"
_CAPTURED_CALLS = {
    "kernels": API_PREFIX + "(?:Ext)?(?:Module)?Launch",
    "memcpys": API_PREFIX + "Memcpy",
    "memsets": API_PREFIX + "Memset",
}
"""Regular expressions that match the API functions whose capture creates a node, by table of its activities."""


def find_original_nodes(events: pl.DataFrame) -> pl.DataFrame:
    """Return the original of each graph node: the first node in its chain of copies.

    The columns are ``NODE`` and ``original`` (id of the original). A node that is not a copy is its own original.

    Args:
        events: The columns ``NODE`` and ``original_graph_node_id`` of the table ``cuda_graph_node_events``.
    """
    original = pl.col(ORIGINAL).drop_nulls().first().fill_null(pl.col("graph_node_id").first())
    nodes = events.group_by(NODE).agg(original.alias("original"))
    for _ in range(_ROUNDS):
        further = nodes.select("process_id", original="graph_node_id", further="original")
        joined = nodes.join(further, on=["process_id", "original"], how="left")
        nodes = joined.select(*NODE, pl.coalesce("further", "original").alias("original"))
    return nodes


def number_nested_nodes(events: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the nodes of executable graphs that run those of child graphs and of branches of conditional nodes.

    Nodes that an executable graph has besides copies are numbered last. Where the numbers do not agree with them,
    nothing is returned.

    Args:
        events: The table ``cuda_graph_node_events``.
        calls: The API calls.

    Returns:
        The columns ``NODE`` and ``original_graph_node_id``, the node of which it is a copy.
    """
    copies = events.filter(pl.col(ORIGINAL).is_not_null()).unique(NODE, keep="first").sort("start_ns")
    call = (*THREAD, "call_start_ns")
    copies = _find_enclosing_calls(copies, select_calls(calls, _INSTANTIATING_CALLS)).sort(*call, "graph_node_id")
    copies = copies.with_columns(
        place=pl.int_range(pl.len()).over(call), count=pl.len().over(call), graph=_GRAPH, top=_GRAPH.min().over(call)
    )
    others = events.join(copies, on=NODE, how="anti").select("process_id", top=_GRAPH, first=_NUMBER)
    others = others.group_by("process_id", "top").agg(pl.col("first").min())
    nested = copies.filter(pl.col("graph") > pl.col("top")).join(others, on=["process_id", "top"], how="left")
    nested = nested.filter((pl.col("first") == pl.col("count")).fill_null(value=True))
    number = (pl.col("top") * NODES_PER_GRAPH + pl.col("place")).alias("graph_node_id")
    return nested.select("process_id", number, pl.col("graph_node_id").alias(ORIGINAL))


def find_node_creations(frames: Frames, read_nodes: Callable[[str], pl.DataFrame]) -> pl.DataFrame:
    """Return the thread and the time at which the program created each graph node that ran.

    Args:
        frames: Function that returns the table with a given name.
        read_nodes: Function that returns the columns ``NODE`` of the activities of a table.

    Returns:
        One row per node: ``NODE``, ``thread_id``, ``created_ns`` and ``confidence``. These are null if they are not
        known.
    """
    events = frames(EVENTS).select(*NODE, "thread_id", "start_ns", ORIGINAL).collect()
    calls = frames("api_calls").select(*CALL, "thread_id", "start_ns", "end_ns", "name").collect()
    ran = {t: frames(t).select("correlation_id").collect().hstack(read_nodes(t)) for t in OPERATIONS}
    nodes = pl.concat(_list_distinct_nodes(rows).with_columns(kind=pl.lit(t)) for t, rows in ran.items()).unique(NODE)
    originals = find_original_nodes(pl.concat([events, number_nested_nodes(events, calls)], how="diagonal"))
    nodes = nodes.join(originals, on=NODE, how="left")
    created = select_created_nodes(events, calls).rename({"graph_node_id": "original"})
    nodes = nodes.join(created, on=["process_id", "original"], how="left")
    nodes = nodes.with_columns(confidence=pl.when(pl.col(CREATED).is_not_null()).then(1.0))
    lost = nodes.filter(pl.col(CREATED).is_null())
    limits = select_calls(calls, _CAPTURE_LIMITS)["start_ns"]
    if lost.height and len(limits):
        launched = pl.concat(rows.select(CALL) for rows in ran.values())
        inside = calls.filter(pl.col("start_ns").is_between(limits.min(), limits.max()))
        captured = _list_captured_calls(inside.join(launched, on=CALL, how="anti"), events)
        times = pl.concat(ran[t].select(NODE).hstack(frames(t).select("start_ns").collect()) for t in OPERATIONS)
        starts = times.join(lost.select(NODE), on=NODE, how="semi").group_by(NODE).agg(pl.col("start_ns").min())
        matches = _match_nodes_with_calls(lost.join(starts, on=NODE), captured)
        if matches.height:
            kernels = ran["kernels"].hstack(frames("kernels").select("name").collect())
            matches = _drop_contradictions(matches, kernels, calls)
        nodes = nodes.update(matches.with_columns(confidence=pl.lit(INFERRED_CONFIDENCE)), on=NODE)
    return nodes.select(*NODE, "thread_id", CREATED, "confidence")


def number_replayed_activities(frames: Frames) -> dict[str, pl.Series]:
    """Return ids for the nodes of graphs whose ids were not recorded, by table. It is empty if no ids are missing.

    The PyTorch profiler, for example, may record only which call replayed an activity. Replays of equal activities get
    equal ids: a number of the graph in the high bits, and the number of the activity in the order of starts. Activities
    are equal if their names, launch shapes and sizes are, and the ids of their graphs if they were recorded.

    Returns:
        The id of each activity, in the order of the table, or null if its node has a recorded id, or if no call that
        launches a graph launched it.
    """
    calls = frames("api_calls").select(*CALL, "name").collect()
    is_launch = match_categories_expr(pl.col("name"), lambda names: names.str.contains(LAUNCH_PATTERN))
    launches = calls.filter(is_launch.fill_null(value=False)).select(CALL).unique()
    if not launches.height:
        return {}
    is_unknown = (pl.col("graph_node_id") > 0).not_().fill_null(value=True)
    tables: list[pl.DataFrame] = []
    counts: list[int] = []
    for table in OPERATIONS:
        frame = frames(table)
        contents = ("name", *SHAPE) if table == "kernels" else ("bytes",)
        graph_id = {"graph_id"} & {*frame.collect_schema().names()}
        content = pl.struct(pl.col(*contents, *graph_id).to_physical()).hash()
        columns = frame.select(*CALL, "start_ns", "graph_node_id", *contents, *graph_id).with_row_index("row").collect()
        for block in (slice(0), *iterate_row_blocks(columns.height)):
            unknown = columns[block].filter(is_unknown).join(launches, on=CALL, how="semi", maintain_order="left")
            row = pl.col("row") + sum(counts)
            tables.append(unknown.select(*CALL, "start_ns", content=content, kind=pl.lit(table), row=row))
        counts.append(columns.height)
    replayed = pl.concat(tables)
    if not replayed.height:
        return {}
    ordered = replayed.sort(*CALL, "start_ns", maintain_order=True)
    ordered = ordered.with_columns(number=pl.int_range(pl.len()).over(CALL))
    content = pl.struct("kind", "content", "number").hash()
    graph = pl.struct("process_id", hash=content.sum().over(CALL), size=pl.len().over(CALL)).hash().rank("dense")
    ordered = ordered.with_columns(id=(_FIRST_NUMBER + graph.cast(pl.Int64)) * NODES_PER_GRAPH + pl.col("number"))
    ids = pl.repeat(None, sum(counts), dtype=pl.Int64, eager=True).scatter(ordered["row"], ordered["id"])
    return {t: ids.slice(sum(counts[:i]), counts[i]) for i, t in enumerate(OPERATIONS)}


def _list_distinct_nodes(activities: pl.DataFrame) -> pl.DataFrame:
    """Return the columns ``NODE`` of the nodes that ran, without duplicates."""
    nodes = activities.select(NODE)
    blocks = [nodes[block].drop_nulls().unique() for block in iterate_row_blocks(nodes.height)]
    return pl.concat([nodes.clear(), *blocks]).unique()


def select_created_nodes(events: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the columns ``NODE``, ``thread_id`` and ``created_ns`` of the nodes that the program created.

    A call that copies a graph may also add nodes that are not copies. The program did not create them.
    """
    is_original = pl.col(ORIGINAL).is_null()
    created = events.filter(is_original).unique(NODE, keep="first", maintain_order=True)
    created = created.join(events.filter(~is_original), on=NODE, how="anti").sort("start_ns")
    copying = select_calls(calls, _COPYING_CALLS).with_columns(pl.col("end_ns").cum_max().over(THREAD))
    copies = _find_enclosing_calls(created, copying)
    return created.join(copies, on=NODE, how="anti").select(*NODE, "thread_id", pl.col("start_ns").alias(CREATED))


def select_calls(calls: pl.DataFrame, pattern: str) -> pl.DataFrame:
    """Return the thread and the times of the API calls whose names match a regular expression, in order of start."""
    return calls.filter(_match_names_expr(pattern)).select(*THREAD, "start_ns", "end_ns").sort("start_ns")


def _match_names_expr(pattern: str) -> pl.Expr:
    return match_categories_expr(pl.col("name"), lambda names: names.str.contains(pattern))


def _find_enclosing_calls(points: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the points in time at which a call of their thread was in progress, with the times of the call.

    Args:
        points: The columns ``THREAD``, ``start_ns`` (ascending), and any further columns.
        calls: The columns ``THREAD``, ``start_ns`` (ascending) and ``end_ns``. The calls of a thread do not overlap.
    """
    times = calls.select(*THREAD, "start_ns", call_start_ns="start_ns", call_end_ns="end_ns")
    last = points.join_asof(times, on="start_ns", by=THREAD, check_sortedness=False)
    return last.filter(pl.col("start_ns") <= pl.col("call_end_ns"))


def _list_captured_calls(calls: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of stream captures during which no creation of a node was recorded.

    Args:
        calls: The API calls that launched no activity.
        events: The table ``cuda_graph_node_events``.

    Returns:
        One row per call, in order of start: ``THREAD``, ``call_start_ns`` (start of the capture), ``created_ns`` (start
        of the call) and ``kind`` (table of the activities of such calls).
    """
    begins, ends = (select_calls(calls, f"{API_PREFIX}Stream{word}Capture") for word in ("Begin", "End"))
    ends = ends.select(*THREAD, "start_ns", end_ns="start_ns")
    captures = begins.drop("end_ns").join_asof(
        ends, on="start_ns", by=THREAD, strategy="forward", check_sortedness=False
    )
    created = _find_enclosing_calls(events.select(*THREAD, "start_ns").sort("start_ns"), captures)
    keys = {"start_ns": "call_start_ns", "process_id": "process_id", "thread_id": "thread_id"}
    captures = captures.join(created, left_on=list(keys), right_on=list(keys.values()), how="anti")
    captured = pl.concat(
        select_calls(calls, pattern).with_columns(kind=pl.lit(kind)) for kind, pattern in _CAPTURED_CALLS.items()
    )
    captured = _find_enclosing_calls(captured.sort("start_ns"), captures)
    return captured.select(*THREAD, "call_start_ns", pl.col("start_ns").alias(CREATED), "kind")


def _match_nodes_with_calls(nodes: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the columns ``NODE``, ``thread_id`` and ``created_ns`` of nodes that agree with captured calls.

    A graph agrees with a stream capture if its nodes and the captured calls have the same sequence of kinds, if no
    other graph and no other capture of the process has this sequence, and if the graph did not run before the capture.

    Args:
        nodes: Nodes whose creation was not recorded: ``NODE``, ``original``, ``kind`` and ``start_ns`` (first start).
        calls: The result of ``_list_captured_calls``.
    """
    number = pl.coalesce("original", "graph_node_id")
    graphs = (
        nodes.select(*NODE, "kind", "start_ns", number=number, graph=number // NODES_PER_GRAPH)
        .sort("number")
        .drop("number")
    )
    key, sequence = ["process_id", "sequence"], pl.col("kind").str.join(" ").alias("sequence")
    of_graphs = graphs.group_by("process_id", "graph").agg("graph_node_id", sequence, pl.col("start_ns").min())
    of_calls = calls.group_by(*THREAD, "call_start_ns").agg(CREATED, sequence).drop("call_start_ns")
    of_graphs, of_calls = (rows.filter(pl.struct(key).is_unique()) for rows in (of_graphs, of_calls))
    matches = of_graphs.join(of_calls, on=key).filter(pl.col(CREATED).list.max() < pl.col("start_ns"))
    return matches.select("process_id", "thread_id", "graph_node_id", CREATED).explode("graph_node_id", CREATED)


def _drop_contradictions(matches: pl.DataFrame, kernels: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the matches of the graphs whose kernels were launched elsewhere by the API functions of their calls.

    Args:
        matches: The result of ``_match_nodes_with_calls``.
        kernels: All kernels: ``CALL``, ``graph_node_id`` and ``name``.
        calls: All API calls.
    """
    function = ["process_id", "name", "function"]
    launches = calls.filter(_match_names_expr(_CAPTURED_CALLS["kernels"])).rename({"name": "function"})
    direct = kernels.join(launches, on=CALL).select(function).unique()
    names = kernels.join(matches, on=NODE, how="semi").select(*NODE, "name").unique()
    pairs = matches.join(launches, left_on=[*THREAD, CREATED], right_on=[*THREAD, "start_ns"]).join(names, on=NODE)
    others = pairs.join(direct, on=function[:2], how="semi").join(direct, on=function, how="anti")
    graph = ["process_id", _GRAPH.alias("graph")]
    return matches.join(
        others.select(graph).unique(), left_on=["process_id", _GRAPH], right_on=["process_id", "graph"], how="anti"
    )
