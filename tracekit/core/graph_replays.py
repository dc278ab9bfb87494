"""List the kernels of replayed graphs, and the recorded kernels with which they can be aligned.

An activity belongs to a replay if its node in a graph was recorded, or if a call that launches a graph launched it. All
other activities were launched one by one. Those of one step, one process and one device form a recorded sequence, in
the order of their API calls. So do those before, between and after the steps, such as the runs that warm up a program
before it captures a graph. If the layers of replays are known from their own capture, these replays are recorded
sequences, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from tracekit.core.iterations import find_iterations
from tracekit.core.layers.alignment import SHAPE, align_replays
from tracekit.core.layers.nodes import LAUNCH_PATTERN
from tracekit.core.ops import Ops
from tracekit.core.relations import NODES_PER_GRAPH, OPERATIONS
from tracekit.core.series import match_categories_expr

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.core.correlate import Correlation, Frames

    ComputeColumns = Callable[[str, Sequence[str]], pl.DataFrame]

REPLAYED: Final = ("row", "table", "table_row", "replay", "graph", "step", "name", *SHAPE)
_RECORDED_PLACE = ("row", "table", "table_row", "sequence", "sequence_name", "step_ns", "range_id", "path")
RECORDED: Final = (*_RECORDED_PLACE, "name", *SHAPE)
"""The columns of ``list_replayed_kernels`` and of ``list_recorded_kernels``."""
CALL_COLUMNS: Final = ("api_call_id", "api_start_ns")
"""Columns of correlation that ``list_activities`` needs."""
OUTSIDE: Final = "outside of all steps"
WHOLE: Final = "the whole capture"
"""Names of recorded sequences that are no steps."""
_COPY_NAMES: Final = {"memcpys": "[copy]", "memsets": "[memset]"}
"""Names by which copies and memory sets are compared, because profilers name them differently."""
GRAPH_NODE: Final = pl.when(pl.col("graph_node_id") > 0).then("graph_node_id")
"""Expression for the node of a graph that ran each activity. The PyTorch profiler writes 0 for no graph."""
_LAUNCH = ("process_id", "correlation_id")
_RANGES = ("range_id", "range_path", "capture_range_id", "capture_path")
_PLACE = ("process_id", "device_id")


class CaptureAlignment(NamedTuple):
    """Where the activities of replays were recorded in a second capture.

    Attributes:
        activities: For each table of operations, one row per activity: ``recorded_table`` and ``recorded_row`` (table
            and row number of the recorded activity in the second capture; null if the layer is not known), ``step_ns``
            (start of the recorded step, or null) and ``confidence`` (null if the activity does not belong to a replay,
            or was compared with nothing).
        graphs: One row per graph and distinct sequence of kernels, as ``Alignment.graphs``, with ``sequence_name``.
    """

    activities: dict[str, pl.DataFrame]
    graphs: pl.DataFrame


def align_captures(replays: Correlation, recorded: Correlation) -> CaptureAlignment:
    """Find, for each activity of a replayed graph, the activity of a second capture that tells its layer.

    Args:
        replays: The capture with the replays.
        recorded: A capture of the same program in which the kernels ran one by one, or in which the graphs were
            captured.
    """
    replayed, known = list_replayed_kernels(replays), list_recorded_kernels(recorded)
    alignment = align_replays(replayed, known)
    places = known.select("step_ns", recorded_table="table", recorded_row="table_row")
    places = places.select(pl.all().gather(alignment.kernels["recorded_row"]))
    rows = replayed.select("table", "table_row").hstack(places).hstack([alignment.kernels["confidence"]])
    activities: dict[str, pl.DataFrame] = {}
    for table in OPERATIONS:
        count = replays.frames(table).select(table_row=pl.int_range(pl.len(), dtype=pl.Int64)).collect()
        own = rows.filter(pl.col("table") == table).drop("table")
        activities[table] = count.join(own, on="table_row", how="left", maintain_order="left").drop("table_row")
    names = known.select("sequence", "sequence_name").unique("sequence")
    graphs = alignment.graphs.join(names, on="sequence", how="left", maintain_order="left")
    return CaptureAlignment(activities, graphs)


def list_replayed_kernels(replays: Correlation) -> pl.DataFrame:
    """Return the kernels, copies and memory sets of replayed graphs, as ``align_replays`` expects them.

    The activities of a replay are sorted by their starts, or by their nodes if they ran on several streams.

    Args:
        replays: The capture with the replays.

    Returns:
        The columns ``REPLAYED``. ``table`` and ``table_row`` say which activity it is. ``step`` is the iteration of the
        launch if the ids of graphs were not recorded.
    """
    rows = list_activities(replays.frames, replays.compute_columns, CALL_COLUMNS).filter("is_replayed")
    node = pl.col("graph_node_id")
    is_parallel = pl.struct("device_id", "stream_id").n_unique().over(_LAUNCH) > 1
    is_one_graph = (node.null_count().over(_LAUNCH) == 0) & (pl.col("graph").n_unique().over(_LAUNCH) == 1)
    rows = rows.with_columns(
        first=pl.col("launched_ns").min().over(_LAUNCH),
        place=pl.when(is_parallel & is_one_graph).then(node).otherwise("start_ns"),
    )
    rows = rows.sort("first", *_LAUNCH, "place", maintain_order=True)
    replay = pl.struct("first", *_LAUNCH).rle_id().cast(pl.Int64)
    rows = rows.with_columns(row=pl.int_range(pl.len()), replay=replay, step=pl.lit(None, pl.Int64))
    if rows["graph"].null_count():
        iterations = find_iterations(Ops(replays.frames))
        calls = rows.select("process_id", start_ns="launched_ns")
        rows = rows.with_columns(iterations.find_call_iterations(calls).cast(pl.Int64).alias("step"))
    return rows.select(REPLAYED)


def list_recorded_kernels(recorded: Correlation) -> pl.DataFrame:
    """Return the kernels, copies and memory sets whose ranges are known, as ``align_replays`` expects them.

    Args:
        recorded: The capture in which the kernels ran in their ranges.

    Returns:
        The columns ``RECORDED``. ``sequence_name`` is the name of a step, or says what else the sequence is, and
        ``step_ns`` is the start of the step, or null.
    """
    columns = (*CALL_COLUMNS, *_RANGES)
    rows = list_activities(recorded.frames, recorded.compute_columns, columns)
    launched = rows.filter(~pl.col("is_replayed")).sort(*_PLACE, "launched_ns", "start_ns", maintain_order=True)
    iterations = find_iterations(Ops(recorded.frames))
    numbers = iterations.find_call_iterations(launched.select("process_id", start_ns="launched_ns")).cast(pl.Int64)
    number = pl.format("step {}", "iteration")
    names = iterations.frame.select(
        pl.col("iteration").cast(pl.Int64),
        step_name=pl.lit(WHOLE) if iterations.is_whole_capture else pl.coalesce(pl.col("name").cast(pl.String), number),
        step_ns=pl.lit(None, pl.Int64) if iterations.is_whole_capture else pl.col("start_ns"),
    )
    launched = launched.with_columns(iteration=numbers).join(names, on="iteration", how="left", maintain_order="left")
    launched = launched.with_columns(
        run=pl.struct(*_PLACE, "iteration").rle_id().cast(pl.Int64),
        sequence_name=pl.col("step_name").fill_null(OUTSIDE),
        path="range_path",
    ).drop("iteration", "step_name")
    layered = rows.filter(pl.col("is_replayed") & pl.col("capture_path").is_not_null().any().over(_LAUNCH))
    layered = layered.sort(*_LAUNCH, "start_ns", maintain_order=True).with_columns(
        run=pl.struct(_LAUNCH).rle_id().cast(pl.Int64),
        sequence_name=pl.format("the capture of graph {}", pl.col("graph").cast(pl.String).fill_null("?")),
        path="capture_path",
        range_id="capture_range_id",
    )
    last = pl.lit(launched["run"].max(), pl.Int64).fill_null(-1)
    both = pl.concat([launched, layered.with_columns(run=pl.col("run") + last + 1)], how="diagonal")
    both = both.with_columns(pl.col("sequence_name").cast(pl.Categorical), row=pl.int_range(pl.len()), sequence="run")
    return both.select(RECORDED)


def list_activities(frames: Frames, compute: ComputeColumns, columns: Sequence[str]) -> pl.DataFrame:
    """Return all kernels, copies and memory sets that calls launched, whether they were replayed, and their graphs.

    Args:
        frames: Function that returns the recorded table with a given name.
        compute: Function that returns columns that correlation adds, given the name of a table and their names.
        columns: Names of columns that correlation adds, among them ``CALL_COLUMNS``.

    Returns:
        One row per activity in the order of the tables: ``table``, ``table_row``, ``process_id``, ``device_id``,
        ``stream_id``, ``correlation_id``, ``start_ns``, ``name``, ``SHAPE``, ``graph_node_id``, ``graph``,
        ``launched_ns``, ``is_replayed``, and the columns of correlation.
    """
    calls = frames("api_calls").select("api_call_id", "name")
    matches = match_categories_expr(pl.col("name"), lambda names: names.str.contains(LAUNCH_PATTERN))
    launches = calls.filter(matches.fill_null(value=False)).select("api_call_id").collect().to_series()
    tables = [
        _read_activities(frames, table).hstack(compute(table, columns).select(columns).get_columns())
        for table in OPERATIONS
    ]
    is_launched = pl.col("api_call_id").is_in(launches.implode()).fill_null(value=False)
    rows = pl.concat(tables).with_columns(
        launched_ns=pl.coalesce("api_start_ns", "start_ns"),
        is_replayed=pl.col("graph_node_id").is_not_null() | is_launched,
    )
    return rows.filter(pl.col("correlation_id") != 0)  # nodes of conditional graphs have no launch


def graph_expr(activities: pl.LazyFrame) -> pl.Expr:
    """Return an expression for the id of the graph that ran each activity, or null if it was not recorded."""
    of_node = GRAPH_NODE // NODES_PER_GRAPH
    graph = pl.when(of_node > 0).then(of_node)
    if "graph_id" not in activities.collect_schema().names():
        return graph
    return pl.coalesce(pl.when(pl.col("graph_id") > 0).then("graph_id"), graph)


def _read_activities(frames: Frames, table: str) -> pl.DataFrame:
    """Return the activities of one table, in the order of the table."""
    frame = frames(table)
    name, shape = pl.col("name"), [pl.col(c).cast(pl.Int64) for c in SHAPE]
    if table in _COPY_NAMES:
        name, size = pl.lit(_COPY_NAMES[table]), pl.col("bytes").cast(pl.Int64)
        shape = [size.alias(SHAPE[0]), *(pl.lit(None, pl.Int64).alias(c) for c in SHAPE[1:])]
    return frame.select(
        pl.lit(table).cast(pl.Categorical).alias("table"),
        pl.int_range(pl.len(), dtype=pl.Int64).alias("table_row"),
        pl.col("device_id", "stream_id").cast(pl.Int64),
        *("process_id", "correlation_id", "start_ns"),
        *shape,
        name=name.cast(pl.Categorical),
        graph_node_id=GRAPH_NODE,
        graph=graph_expr(frame),
    ).collect()
