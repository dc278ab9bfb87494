"""Correlate GPU activities with API calls, and API calls with NVTX ranges.

An activity is correlated with the API call of the same process that has the same correlation id. One call may launch
many activities, as the launch of a CUDA graph does.

A call is attributed to the push/pop ranges of its thread that are open when the call starts, in any domain. A range is
open at a time ``t`` if ``start <= t < end``. The innermost of these ranges is the last one in nesting order (see
``intervals.nesting``). Its name is the range name of the call. The names of all of these ranges, in nesting order, form
the path of the call.

Ranges of one thread may cross if their times come from the clocks of two recorders. The path of a range is the path of
its parent, which contains the whole range, followed by its own name. The path does not contain ranges that cross it.

Start/end ranges may overlap and may end on another thread. If several of them are open in a process when a call starts,
the call is attributed to the one that started last. The id of this range is in a separate column.

An activity that a CUDA graph runs is attributed to two places: to the ranges in which the graph was launched, as all
activities are, and to the ranges in which the program created the node of the activity (see ``layers``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.core import intervals, memory, mpi, stacks, trees
from tracekit.core.intervals.containment import add_enclosing_range_id, compute_slice_minima
from tracekit.core.layers.nodes import CREATED, NODE, find_node_creations, number_replayed_activities
from tracekit.core.layers.updates import UpdatedGraphs, find_updated_graphs
from tracekit.core.relations import (
    ACTIVITIES,
    CALL,
    LAUNCH,
    OPERATIONS,
    STREAM,
    THREAD,
    find_first_row_numbers,
    list_launch_columns,
)
from tracekit.core.series import create_nullable_series, map_frame_blocks, spill_frame, spill_series
from tracekit.system import sorting
from tracekit.system.memory import allocate_zeros, drop_mapped_pages
from tracekit.system.sorting import create_series, iterate_row_blocks, sort_rows, take
from tracekit.system.threads import unlocked_property

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Frames = Callable[[str], pl.LazyFrame]

TABLE = "cpu_scheduling"
READ = (*THREAD, "timestamp_ns")
"""Columns of the table ``cpu_scheduling`` that ``find_next_switch_times`` reads."""
_NO_ID = -(1 << 63)
"""Replaces the null id of a stream or context in keys, in which nulls match nothing."""
WITH_STACKS = ("cpu_samples", "osrt_calls", "api_calls", "python_samples")
"""Tables whose rows have a call stack."""
MAX_PATH_LEVELS = trees.MAX_LEVELS
_BATCH_ROWS, _PROJECTED_ROWS = 1 << 16, 1 << 21
_DURATION = pl.col("end_ns") - pl.col("start_ns")
_OPEN_RANGES = ("row", "count")  # the innermost open range and the number of open ranges determine which are open
_TIMES_OF_PROJECTION = ("gpu_start_ns", "gpu_end_ns")
_PROJECTED = (*_TIMES_OF_PROJECTION, "gpu_op_count", "gpu_time_ns")
CAPTURE_COLUMNS = {"capture_range_id": pl.Int64, "capture_path": pl.Categorical, "capture_confidence": pl.Float64}
"""Columns of activities that describe the ranges in which their graph nodes were created, with their types."""
_RANGE_PROPERTIES = {"range_id": "range_id", "range_name": "name", "range_depth": "depth"}
_API_CALL_COLUMNS = {
    "api_call_id": ("api_call_id",),
    "api_start_ns": ("start_ns",),
    "api_end_ns": ("end_ns",),
    "thread_id": ("thread_id",),
}


def find_next_switch_times(switches: pl.DataFrame) -> pl.DataFrame:
    """Return, for each context switch, the time of the next context switch of the same thread.

    Args:
        switches: The columns ``READ`` of the table ``cpu_scheduling``.

    Returns:
        The column ``next_switch_ns``, with one row per switch, in the same order. It is null for the last switch of a
        thread.
    """
    rows = switches.with_row_index("row").sort("timestamp_ns", "row")
    following = pl.col("timestamp_ns").shift(-1).over(THREAD)
    return rows.with_columns(next_switch_ns=following).sort("row").select("next_switch_ns")


@dataclass(frozen=True)
class Correlation:
    """The correlation of the tables of one trace. Intermediate results that several tables need are cached.

    Attributes:
        frames: Function that returns the table with a given name as a LazyFrame.
    """

    frames: Frames

    def compute_columns(self, table: str, names: Sequence[str]) -> pl.DataFrame:
        """Return columns that correlation adds to a table.

        Args:
            table: Name of a table that is declared in ``_correlation.toml``.
            names: Names of the columns, which ``_correlation.toml`` declares for this table.

        Returns:
            A frame with these columns, and possibly others that correlation adds to the table. It has one row per row
            of the table, in the same order.
        """
        if table in WITH_STACKS:
            return stacks.build_stack_paths(
                self._stack_table, self.frames(table).select("stack_id").collect()["stack_id"]
            ).to_frame()
        if table == TABLE:
            return find_next_switch_times(self.frames(table).select(READ).collect())
        if table == mpi.CALLS:
            return mpi.match_mpi_calls(self.frames)
        correlated = self.ranges if table == "nvtx_ranges" else self.activities(table)
        known: dict[str, pl.Series] = {}
        if of_nodes := [n for n in names if n in CAPTURE_COLUMNS]:
            known |= self.captured_nodes.compute_columns(table, of_nodes).to_dict()
        if table == "nvtx_ranges" and {*_PROJECTED} & {*names}:
            known |= self._gpu_projection.to_dict()
        if table == "memory_events" and {*memory.ADDED} & {*names}:
            known |= self._memory_usage.to_dict()
        if table == "memory_events" and stacks.COLUMN in names:
            known[stacks.COLUMN] = self._memory_stack_paths
        return pl.DataFrame([known[n] if n in known else correlated.compute_column(n).alias(n) for n in names])

    def compute_projections(self) -> pl.DataFrame:
        """Return the table ``nvtx_projections``: one row per NVTX range and stream that ran its activities."""
        launches = pl.concat([spill_frame(self.activities(t).read_launches_by_stream()) for t in ACTIVITIES])
        totals = [
            *self.ranges.compute_push_pop_stream_totals(launches),
            self.ranges.compute_start_end_stream_totals(launches),
        ]
        columns = ["range_id", "process_id", "kind", "thread_id", "domain_id", "domain", "name"]
        described = (
            self.frames("nvtx_ranges").select(columns).collect().with_columns(depth=self.ranges.compute_column("depth"))
        )
        parts = [
            spill_frame(part.drop("row").hstack(described.select(pl.all().gather(part["row"]))))
            for part in _merge_stream_totals(totals, self.ranges.range_count)
        ]
        return pl.concat(parts, rechunk=False)

    @unlocked_property
    def _gpu_projection(self) -> pl.DataFrame:
        """The columns of ``nvtx_ranges`` whose names begin with ``gpu_``."""
        return self.ranges.project_onto_gpu(
            pl.concat([spill_frame(self.activities(t).read_launches()) for t in ACTIVITIES])
        )

    @unlocked_property
    def _memory_usage(self) -> pl.DataFrame:
        """The columns ``used_bytes`` and ``freed_ns``, which correlation adds to ``memory_events``."""
        return memory.compute_usage_columns(self.frames("memory_events").select(memory.READ).collect())

    @unlocked_property
    def _stack_table(self) -> pl.DataFrame:
        return self.frames("stacks").select(stacks.READ).collect()

    @property
    def _memory_stack_paths(self) -> pl.Series:
        """The call stack of the API call of each row of ``memory_events``, as a path."""
        calls = self.frames("memory_events").select(CALL).collect()
        return stacks.build_stack_paths(self._stack_table, stacks.read_stack_ids_of_calls(calls, self.frames))

    @unlocked_property
    def ranges(self) -> Ranges:
        """The NVTX ranges of the trace, with their nesting and their projection onto the GPU."""
        return Ranges(self.frames)

    @unlocked_property
    def captured_nodes(self) -> CapturedNodes:
        """The nodes of CUDA graphs that ran, with the ranges in which the program created them."""
        return CapturedNodes(self.frames, self.ranges)

    def activities(self, table: str) -> Activities:
        """Return the activities of a table, such as ``kernels``, with their API calls and NVTX ranges."""
        return self._activities.setdefault(table, Activities(self.frames, table, self.ranges))

    @unlocked_property
    def _activities(self) -> dict[str, Activities]:
        """The activities of each table, cached because projections and tables need the same calls and ranges."""
        return {}


@dataclass(frozen=True)
class Ranges:
    """The NVTX ranges of a trace: the nesting of push/pop ranges, and their names and paths.

    Attributes:
        frames: Function that returns the table with a given name.
    """

    frames: Frames

    def compute_column(self, name: str) -> pl.Series:
        """Return the column with the given name that correlation adds to ``nvtx_ranges``."""
        return _scatter(self.compute_push_pop_column(name), self.push_pop_ranges["row"], self.range_count)

    def compute_push_pop_column(self, name: str) -> pl.Series:
        """Return a computed column of the push/pop ranges, such as ``range_id``, ``depth`` or ``path``."""
        column: pl.Series = getattr(self, name)
        return column

    @unlocked_property
    def range_count(self) -> int:
        """Number of push/pop and start/end ranges."""
        return int(self.frames("nvtx_ranges").select(pl.len()).collect().item())

    @unlocked_property
    def push_pop_ranges(self) -> pl.DataFrame:
        """The push/pop ranges, in file order."""
        return self._select_ranges_of_kind("push_pop")

    @unlocked_property
    def start_end_ranges(self) -> pl.DataFrame:
        """The start/end ranges, in file order."""
        return self._select_ranges_of_kind("start_end")

    @unlocked_property
    def nesting(self) -> intervals.NestingIndex:
        """The nesting of the push/pop ranges within each thread, regardless of their domains."""
        return intervals.NestingIndex.from_intervals(self.push_pop_ranges, THREAD)

    @unlocked_property
    def parent(self) -> pl.Series:
        """Row number, in ``push_pop_ranges``, of the parent of each push/pop range, null for an outermost range."""
        return self.nesting.find_parents()

    def find_outer_rows(self, points: pl.DataFrame) -> pl.Series:
        """Return the row number of the next open range outside of a given one, at points in time.

        Args:
            points: The columns ``THREAD``, ``api_start_ns`` and ``range_row`` (row number of an open push/pop range).
        """
        if not self.nesting.has_crossings:
            return self.parent.gather(points["range_row"])
        return self.nesting.find_next_enclosing(points, "api_start_ns", points["range_row"])

    @property
    def range_id(self) -> pl.Series:
        """Id of each push/pop range."""
        return self.push_pop_ranges["range_id"]

    @property
    def parent_id(self) -> pl.Series:
        """Id of the parent of each push/pop range."""
        return self.range_id.gather(self.parent)

    @unlocked_property
    def depth(self) -> pl.Series:
        """Depth of each push/pop range: the number of ranges on its path, including itself."""
        return spill_series(self.nesting.find_depths())

    @unlocked_property
    def path(self) -> pl.Series:
        """Path of each push/pop range: the names from the outermost range down to it, joined by "/" (Categorical)."""
        tree, nodes = self.tree_and_nodes
        return tree.build_paths().cast(pl.Categorical).gather(nodes)

    @unlocked_property
    def tree_and_nodes(self) -> tuple[trees.Tree, pl.Series]:
        """The tree of the names of push/pop ranges, and the node of each push/pop range in it."""
        return trees.build_range_tree(self.parent, self.depth, self.name)

    @property
    def name(self) -> pl.Series:
        """Name of each push/pop range (Categorical)."""
        names = self.frames("nvtx_ranges").filter(pl.col("kind") == "push_pop").select("name")
        return names.collect()["name"]

    def add_paths_of_calls_in_crossing_ranges(
        self, tree: trees.Tree, calls: pl.DataFrame
    ) -> tuple[trees.Tree, pl.Series]:
        """Add to a tree the paths of the API calls at which the innermost open range crosses another open range.

        The path of such a call differs from the path of its innermost range, because some open ranges are not ancestors
        of the innermost one. The open ranges are visited from the innermost one outwards, until all remaining ones are
        ancestors of the last visited one. The ranges visited before it are then added to the tree below it. The limits
        on paths are those of ``trees.build_range_tree``.

        Args:
            tree: The tree of range names.
            calls: The columns of ``Activities.calls``, ``row`` (innermost open range) and ``count`` (number of open
                ranges).

        Returns:
            The tree with the added nodes, and the node of each call, in the order of ``calls``.
        """
        numbered = calls.with_row_index("call")
        ellipses = numbered.filter(pl.col("count") > MAX_PATH_LEVELS).select("call", "row", count=MAX_PATH_LEVELS + 1)
        pending, inner_ranges = self._limit_levels(numbered), [ellipses]
        nodes = pl.zeros(calls.height, pl.Int64, eager=True)
        while pending.height:
            is_complete = self.depth.gather(pending["row"]) == pending["count"]
            complete, pending = pending.filter(is_complete), pending.filter(~is_complete)
            nodes = nodes.scatter(complete["call"], self.tree_and_nodes[1].gather(complete["row"]))
            inner_ranges.append(pending.select("call", "row", pl.col("count").cast(pl.Int32)))
            outer = self.nesting.find_next_enclosing(pending, "api_start_ns", pending["row"])
            pending = pending.with_columns(row=outer, count=pl.col("count") - 1).filter(outer.is_not_null())
        for inner in reversed(inner_ranges):
            parts = self.name.gather(inner["row"]).fill_null("").set(inner["count"] > MAX_PATH_LEVELS, trees.ELLIPSIS)
            tree, children = tree.add_children(pl.DataFrame({"up": nodes.gather(inner["call"]), "part": parts}))
            nodes = nodes.scatter(inner["call"], children)
        return tree, nodes

    def project_onto_gpu(self, launches: pl.DataFrame) -> pl.DataFrame:
        """Return the projection of all push/pop and start/end ranges onto the GPU.

        Args:
            launches: The launches of all tables of activities, as ``Activities.read_launches`` returns them.

        Returns:
            The columns of ``nvtx_ranges`` whose names begin with ``gpu_``.
        """
        columns = {name: allocate_zeros(self.range_count, np.int64) for name in _PROJECTED}
        for ranges, by in ((self.push_pop_ranges, THREAD), (self.start_end_ranges, THREAD[:1])):
            projected = project_onto_gpu(launches, ranges, by)
            for block in iterate_row_blocks(ranges.height):
                rows = ranges["row"][block].to_numpy()
                for name, column in columns.items():
                    column[rows] = projected[name][block].fill_null(0).to_numpy()
        counts = columns["gpu_op_count"]
        return pl.DataFrame(
            {
                name: create_nullable_series(column, lambda block: counts[block] > 0)
                if name in _TIMES_OF_PROJECTION
                else create_series(column)
                for name, column in columns.items()
            }
        )

    def compute_push_pop_stream_totals(self, launches: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """Yield the number and total duration of the activities that each push/pop range launched on each stream.

        A launch counts for the outermost ``MAX_PATH_LEVELS`` ranges that are open at the launch. Unless ranges cross,
        these are an innermost range and its ancestors.

        Args:
            launches: The launches, as ``Activities.read_launches_by_stream`` returns them.

        Yields:
            The totals of a block of launches, with one row per range and stream: ``row`` (row number in
            ``nvtx_ranges``, in ascending order), the columns of ``STREAM``, ``start_ns`` (first start), ``end_ns``
            (last end), ``gpu_op_count``, ``gpu_time_ns``.
        """
        nearest = trees.find_nearest_matching_rows(self.parent, self.depth <= MAX_PATH_LEVELS)
        for block in iterate_row_blocks(launches.height):
            yield spill_frame(self._compute_stream_totals_of_block(launches[block], nearest))

    def _compute_stream_totals_of_block(self, launches: pl.DataFrame, nearest: pl.Series) -> pl.DataFrame:
        """Return a block of ``compute_push_pop_stream_totals``.

        Launches with the same innermost range and the same number of open ranges have the same open ranges. Their
        totals are therefore rolled up together.

        Args:
            launches: Some launches.
            nearest: The nearest range of each range that is at most ``MAX_PATH_LEVELS`` deep.
        """
        inside = self._add_levels(launches, nearest).drop_nulls("row")
        direct = _sum_by_stream(inside, pl.len().cast(pl.Int64), _DURATION.sum())
        levels = direct.partition_by("level", as_dict=True)
        by_level = [direct.clear()]
        for level in range(_find_deepest_level(direct["level"]), 0, -1):
            below = by_level[-1]
            below = below.with_columns(row=self._find_outer_ranges(below), level=pl.lit(level, pl.Int32))
            by_level.append(_sum_by_stream(pl.concat([levels.get((level,), direct.clear()), below])))
        summed = pl.concat(by_level).drop("level", "api_start_ns")
        return summed.with_columns(row=self.push_pop_ranges["row"].gather(summed["row"])).sort("row")

    def _add_levels(self, launches: pl.DataFrame, nearest: pl.Series) -> pl.DataFrame:
        """Add the columns ``row`` and ``level`` to launches: the innermost open range, and the number of open ranges.

        Only the outermost ``MAX_PATH_LEVELS`` ranges that are open at the launch are considered.
        """
        row = nearest.gather(launches["range_row"])
        levels = launches.with_columns(row=row, level=self.depth.gather(row))
        if not self.nesting.has_crossings:
            return levels
        calls = launches.select(*THREAD, "api_start_ns", row="range_row")
        calls = calls.with_columns(count=self.nesting.count_enclosing(calls, "api_start_ns")).with_row_index("launch")
        crossed = self._limit_levels(calls.filter(pl.col("count") != self.depth.gather(calls["row"])))
        return levels.with_columns(
            row=row.scatter(crossed["launch"], crossed["row"]),
            level=levels["level"].scatter(crossed["launch"], crossed["count"].cast(pl.Int32)),
        )

    def _limit_levels(self, calls: pl.DataFrame) -> pl.DataFrame:
        """Replace the columns ``row`` and ``count`` of API calls with more than ``MAX_PATH_LEVELS`` open ranges.

        ``row`` becomes the innermost of the outermost ``MAX_PATH_LEVELS`` open ranges, and ``count`` their number.
        """
        deep = calls.filter(pl.col("count") > MAX_PATH_LEVELS).unique(_OPEN_RANGES)
        if not deep.height:
            return calls
        last = self.nesting.find_nth_enclosing(deep, "api_start_ns", MAX_PATH_LEVELS)
        known = deep.select(*_OPEN_RANGES, last=last)
        limited = calls.join(known, on=_OPEN_RANGES, how="left", maintain_order="left")
        count = pl.col("count").clip(upper_bound=MAX_PATH_LEVELS)
        return limited.with_columns(row=pl.coalesce("last", "row"), count=count).drop("last")

    def _find_outer_ranges(self, totals: pl.DataFrame) -> pl.Series:
        """Return the row number of the next open range outside of each given range.

        Args:
            totals: The columns ``row`` (the range), ``level`` (number of the range among the open ranges, counted from
                the outermost one) and ``api_start_ns`` (time of an API call).
        """
        outer = self.parent.gather(totals["row"])
        crossed = totals.with_row_index("total").filter(pl.col("level") != self.depth.gather(totals["row"]))
        if not crossed.height:
            return outer
        calls = self.push_pop_ranges.select(pl.col(THREAD).gather(crossed["row"])).hstack(crossed)
        return outer.scatter(crossed["total"], self.nesting.find_next_enclosing(calls, "api_start_ns", crossed["row"]))

    def compute_start_end_stream_totals(self, launches: pl.DataFrame) -> pl.DataFrame:
        """Return the number and total duration of the activities launched during each start/end range, by stream.

        Only launches of the process of the range are included. The columns and their order are those of
        ``compute_push_pop_stream_totals``.
        """
        if not self.start_end_ranges.height:
            launches = launches.clear()
        stream = STREAM[1:]
        if any(launches[name].null_count() for name in stream):
            fill = pl.col(stream).fill_null(_NO_ID)
            launches = map_frame_blocks(lambda block: launches[block].with_columns(fill), launches.height)
        blocks = [
            launches[block].select("process_id", *STREAM).unique(maintain_order=True).drop_nulls()
            for block in iterate_row_blocks(max(launches.height, 1))
        ]
        streams = pl.concat(blocks).unique(maintain_order=True)
        pairs = self.start_end_ranges.join(streams, on="process_id", maintain_order="left")
        projected = project_onto_gpu(launches, pairs, ["process_id", *STREAM])
        projected = projected.rename({"gpu_start_ns": "start_ns", "gpu_end_ns": "end_ns"})
        totals = pairs.select("row", *STREAM).hstack(projected).drop_nulls("start_ns")
        return totals.with_columns(pl.when(pl.col(name) != _NO_ID).then(name) for name in stream)

    def _select_ranges_of_kind(self, kind: str) -> pl.DataFrame:
        """Return the ranges of one kind, with their row number in ``nvtx_ranges`` as ``row``."""
        columns = ["range_id", *THREAD, "domain_id", "start_ns", "end_ns"]
        frame, is_kind = self.frames("nvtx_ranges"), pl.col("kind") == kind
        mask = frame.select(is_kind.fill_null(value=False)).collect().to_series()
        rows = np.flatnonzero(mask.to_numpy()).astype(np.uint32)
        ranges = [spill_series(create_series(rows).alias("row"))]
        for name in columns:
            values = frame.select(name).collect()[name]
            ranges.append(spill_series(values if len(rows) == len(mask) else values.filter(mask)))
        return pl.DataFrame(ranges)


@dataclass(frozen=True)
class Moments:
    """Points in time on threads, such as the starts of API calls, and the push/pop ranges that are open at them.

    Attributes:
        ranges: The NVTX ranges of the trace.
        calls: The points: the columns ``THREAD`` and ``api_start_ns``.
    """

    ranges: Ranges
    calls: pl.DataFrame

    def compute_column(self, name: str) -> pl.Series:
        """Return a column of each point: ``range_id``, ``range_name``, ``range_path`` or ``range_depth``."""
        if name == "range_path":
            return self.build_range_path_column()
        if name == "range_depth" and self.ranges.nesting.has_crossings:
            return self.open_count.cast(pl.Int32)
        column = self.ranges.compute_push_pop_column(_RANGE_PROPERTIES[name]).gather(self.range_row)
        return column.fill_null(0) if name == "range_depth" else column

    @unlocked_property
    def range_row(self) -> pl.Series:
        """Row number of the innermost push/pop range that is open at each point, or null."""
        return spill_series(self.ranges.nesting.find_innermost(self.calls, "api_start_ns"))

    @unlocked_property
    def open_count(self) -> pl.Series:
        """Number of push/pop ranges that are open at each point."""
        return self.ranges.nesting.count_enclosing(self.calls, "api_start_ns")

    def build_range_path_column(self) -> pl.Series:
        """Return the path of all push/pop ranges that are open at each point (Categorical).

        The path contains all open ranges within the limits on paths, even if some of them cross. Paths of ranges that
        launched nothing are not built.
        """
        tree, nodes = self.ranges.tree_and_nodes
        call_nodes = nodes.gather(self.range_row)
        if self.ranges.nesting.has_crossings:
            tree, call_nodes = self._add_crossed_paths(tree, call_nodes)
        return tree.build_paths(nodes=call_nodes.drop_nulls()).cast(pl.Categorical).gather(call_nodes)

    def _add_crossed_paths(self, tree: trees.Tree, call_nodes: pl.Series) -> tuple[trees.Tree, pl.Series]:
        """Return a tree extended by the paths of launches at which open ranges cross, and the node of each launch.

        Args:
            tree: The tree of range names.
            call_nodes: The node of the innermost open range of each launch.
        """
        incomplete = self.open_count != self.ranges.depth.gather(self.range_row).fill_null(0)
        calls = self.calls.with_columns(row=self.range_row, count=self.open_count).with_row_index("row_of_call")
        calls = calls.filter(incomplete)
        distinct = calls.unique(_OPEN_RANGES, maintain_order=True)
        nodes = [pl.Series(dtype=pl.Int64)]
        for batch in distinct.iter_slices(_BATCH_ROWS):
            tree, batch_nodes = self.ranges.add_paths_of_calls_in_crossing_ranges(tree, batch)
            nodes.append(batch_nodes)
        known = distinct.select(*_OPEN_RANGES, node=pl.concat(nodes))
        crossed_nodes = calls.join(known, on=_OPEN_RANGES, how="left", maintain_order="left")["node"]
        return tree, call_nodes.scatter(calls["row_of_call"], crossed_nodes)


@dataclass(frozen=True)
class Activities:
    """The activities of one table, each with the API call that launched it and the ranges that were open at that call.

    Attributes:
        frames: Function that returns the table with a given name.
        table: Name of the table, such as ``kernels``.
        ranges: The NVTX ranges of the trace.
    """

    frames: Frames
    table: str
    ranges: Ranges

    def compute_column(self, name: str) -> pl.Series:
        """Return the column with the given name that correlation adds to the table."""
        if name in _API_CALL_COLUMNS:
            return self.copy_call_column(name)
        if name == "start_end_range_id":
            return self.find_start_end_range_ids()
        return self.starts_of_calls.compute_column(name)

    @unlocked_property
    def call_row_number(self) -> pl.Series:
        """Row number in ``api_calls`` of the call that launched each activity, or null if the call was not recorded."""
        calls, owners = (self.frames(t).select(CALL).collect() for t in ("api_calls", self.table))
        return spill_series(find_first_row_numbers(calls, owners))

    @unlocked_property
    def calls(self) -> pl.DataFrame:
        """Process, thread and time of the launch of each activity.

        The columns are ``process_id``, ``thread_id`` and ``api_start_ns``.
        """
        process = self.frames(self.table).select("process_id").collect()
        columns = [self.copy_call_column(c).alias(c) for c in ("thread_id", "api_start_ns")]
        return spill_frame(process.with_columns(columns))

    def copy_call_column(self, name: str) -> pl.Series:
        """Return a column copied from the API call of each activity, such as ``api_start_ns``."""
        (column,) = _API_CALL_COLUMNS[name]
        values = self.frames("api_calls").select(column).collect().to_series().gather(self.call_row_number)
        drop_mapped_pages()
        return values

    @unlocked_property
    def launch_times(self) -> pl.DataFrame:
        """The columns of ``calls``, with the times at which a layered trace launches activities of graphs."""
        activities = self.frames(self.table)
        if not list_launch_columns(activities):
            return self.calls
        moved = activities.select(LAUNCH).collect()[LAUNCH]
        time = self.calls["api_start_ns"]
        return spill_frame(self.calls.with_columns(moved.zip_with(moved.is_not_null(), time).alias("api_start_ns")))

    @unlocked_property
    def launches(self) -> Moments:
        """The launch of each activity, with the push/pop ranges that were open at it."""
        return Moments(self.ranges, self.launch_times)

    @unlocked_property
    def starts_of_calls(self) -> Moments:
        """The start of the API call of each activity, which is its launch unless a layered trace moves the launch."""
        return self.launches if self.launch_times is self.calls else Moments(self.ranges, self.calls)

    @property
    def range_row(self) -> pl.Series:
        """Row number of the innermost push/pop range that was open when each activity was launched, or null."""
        return self.launches.range_row

    def find_start_end_range_ids(self) -> pl.Series:
        """Return the id of the start/end range in which each activity was launched.

        If several start/end ranges of the process are open at the launch, the one that started last is used.
        """
        if not self.ranges.start_end_ranges.height:
            return pl.repeat(None, self.calls.height, dtype=pl.Int64, eager=True)
        points, ranges = self.calls.lazy(), self.ranges.start_end_ranges.lazy()
        return add_enclosing_range_id(points, ranges, time_column="api_start_ns", by=THREAD[:1]).collect()["range_id"]

    def read_launches_by_stream(self) -> pl.DataFrame:
        """Return the rows of ``read_launches`` with the columns of the stream and ``range_row``.

        ``range_row`` is the row number of the innermost push/pop range that was open at the launch.
        """
        streams = self.frames(self.table).select(STREAM).collect()
        return self.read_launches().hstack(streams).with_columns(range_row=self.range_row)

    def read_launches(self) -> pl.DataFrame:
        """Return the process, thread and time of each launch, and the start and end of the launched activity.

        The columns are those of ``calls``, ``start_ns`` and ``end_ns``.
        """
        ran = self.frames(self.table).select("start_ns", "end_ns").collect()
        return self.launch_times.hstack(ran)


@dataclass(frozen=True)
class CapturedNodes:
    """The nodes of CUDA graphs that ran, with the push/pop ranges that were open when the program created them.

    Attributes:
        frames: Function that returns the table with a given name.
        ranges: The NVTX ranges of the trace.
    """

    frames: Frames
    ranges: Ranges

    def compute_columns(self, table: str, names: Sequence[str]) -> pl.DataFrame:
        """Return columns of the activities of a table whose names begin with ``capture_``.

        Args:
            table: Name of the table of activities.
            names: Names of the columns.

        Returns:
            One row per activity. All values are null for an activity that is not a node of a graph.
        """
        if table not in OPERATIONS:
            rows = self.frames(table).select(pl.len()).collect().item()
            return pl.DataFrame(schema={name: CAPTURE_COLUMNS[name] for name in names}).clear(rows)
        row = self.find_rows(table)
        return self.columns.select(pl.col(names).gather(row))

    def find_rows(self, table: str) -> pl.Series:
        """Return the row number in ``nodes`` of the node that ran each activity, or null."""
        nodes = self.nodes.select(*NODE, row=pl.int_range(pl.len(), dtype=pl.UInt32))
        return spill_series(
            intervals.map_in_threads(
                lambda batch: batch.join(nodes, on=NODE, how="left", maintain_order="left")["row"],
                self.read_nodes(table),
            )
        )

    def read_nodes(self, table: str) -> pl.DataFrame:
        """Return the columns ``NODE`` of the activities of a table, also of nodes whose ids were not recorded."""
        nodes, numbers = self.updated_graphs.read_nodes(table), self._numbers_of_replayed
        return nodes.with_columns(graph_node_id=pl.coalesce(numbers[table], "graph_node_id")) if numbers else nodes

    @unlocked_property
    def _numbers_of_replayed(self) -> dict[str, pl.Series]:
        return number_replayed_activities(self.frames)

    @unlocked_property
    def updated_graphs(self) -> UpdatedGraphs:
        """The executable graphs that ran after updates."""
        return find_updated_graphs(self.frames, lambda at: Moments(self.ranges, at).compute_column("range_path"))

    @unlocked_property
    def nodes(self) -> pl.DataFrame:
        """The nodes that ran, as ``find_node_creations`` returns them."""
        return find_node_creations(self.frames, self.read_nodes)

    @unlocked_property
    def creations(self) -> Moments:
        """The creation of each node, with the push/pop ranges that were open at it."""
        return Moments(self.ranges, self.nodes.select(*THREAD, api_start_ns=CREATED))

    @unlocked_property
    def columns(self) -> pl.DataFrame:
        """The columns of each node whose names begin with ``capture_``.

        The confidence is that in the creation, if API calls were recorded at that time, because ranges were recorded,
        too. If the node was created earlier, its ranges are not known.
        """
        calls = self.frames("api_calls").group_by(THREAD[0]).agg(pl.col("start_ns").min()).collect()
        first = self.nodes.join(calls, on=THREAD[0], how="left", maintain_order="left")["start_ns"]
        range_id, path = (self.creations.compute_column(name) for name in ("range_id", "range_path"))
        is_known = range_id.is_not_null() | (self.nodes[CREATED] >= first).fill_null(value=False)
        confidence = self.nodes.select(pl.when(is_known).then("confidence")).to_series()
        return pl.DataFrame([v.alias(n) for n, v in zip(CAPTURE_COLUMNS, (range_id, path, confidence), strict=True)])


def build_range_paths(parent: pl.Series, depth: pl.Series, name: pl.Series) -> pl.Series:
    """Return the path of each range: the names of its ancestors, outermost first, and its own name, joined by "/".

    Args:
        parent: Row number of the parent of each range, null for an outermost range.
        depth: Depth of each range, 1 for an outermost range.
        name: Name of each range (Categorical).

    Returns:
        One path per range (Categorical). A path of more than 256 levels ends in "/…", and long paths are shortened as
        ``trees.Tree.build_paths`` describes.
    """
    tree, nodes = trees.build_range_tree(parent, depth, name)
    return tree.build_paths().cast(pl.Categorical).gather(nodes)


def project_onto_gpu(launches: pl.DataFrame, ranges: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return the extent, number and total duration of the activities that were launched inside each range.

    Args:
        launches: One row per launched activity: the columns ``by``, ``api_start_ns`` (time of the launch), and
            ``start_ns`` and ``end_ns`` of the activity.
        ranges: The columns ``by``, ``start_ns``, ``end_ns``.
        by: Columns that must be equal in a launch and a range, such as those that identify the thread.

    Returns:
        One row per range, in the same order: ``gpu_start_ns`` (first start), ``gpu_end_ns`` (last end),
        ``gpu_op_count``, ``gpu_time_ns`` (sum of durations). All are null if nothing was launched inside the range.
    """
    axis = intervals.Axis.from_intervals(ranges, by=by)
    drop_mapped_pages()
    ordered = _sort_launches(launches if ranges.height else launches.clear(), axis)
    batches = [ranges] if ranges.height <= _PROJECTED_ROWS else ranges.iter_slices(_PROJECTED_ROWS)
    return pl.concat([spill_frame(_project_batch(ordered, batch, axis)) for batch in batches], rechunk=False)


def _sort_launches(launches: pl.DataFrame, axis: intervals.Axis) -> pl.DataFrame:
    """Return launched activities in the order of their launches.

    Args:
        launches: The launched activities, as in ``project_onto_gpu``.
        axis: The axis of the ranges.

    Returns:
        One row per launch on a track of the axis: ``at`` (position of the launch), ``start_ns``, ``end_ns``.
    """
    columns = {name: allocate_zeros(launches.height, np.int64) for name in ("at", "start_ns", "end_ns")}
    count = 0
    for block in iterate_row_blocks(launches.height):
        rows = launches[block]
        placed = rows.with_columns(at=axis.compute_point_positions(rows, "api_start_ns")).drop_nulls("at")
        for name, column in columns.items():
            column[count : count + placed.height] = placed[name].to_numpy()
        count += placed.height
    at, start, end = (column[:count] for column in columns.values())
    order, (at,) = sort_rows(at)
    if order is not None:
        start, end = take(start, order), take(end, order)
    drop_mapped_pages()
    ordered = zip(columns, map(create_series, (at, start, end)), strict=True)
    return pl.DataFrame([values.alias(name) for name, values in ordered])


def _project_batch(launches: pl.DataFrame, ranges: pl.DataFrame, axis: intervals.Axis) -> pl.DataFrame:
    """Return the result of ``project_onto_gpu`` for one batch of ranges.

    Args:
        launches: The launched activities, in ascending order of ``at``, the position of the launch on the axis.
        ranges: The ranges of the batch.
        axis: The axis, with the tracks of all ranges.
    """
    positions = axis.compute_nonempty_positions(ranges)
    slices = positions.select(
        "row",
        first=intervals.search_sorted(launches["at"], positions["start"], "left"),
        stop=intervals.search_sorted(launches["at"], positions["end"], "left"),
    ).filter(pl.col("first") < pl.col("stop"))
    first, stop = slices["first"].min() or 0, slices["stop"].max() or 0
    launches = launches[first:stop]
    slices = slices.with_columns(pl.col("first", "stop") - first)
    projected = slices.select(
        gpu_start_ns=compute_slice_minima(launches["start_ns"], slices),
        gpu_end_ns=-compute_slice_minima(-launches["end_ns"], slices),
        gpu_op_count=pl.col("stop") - pl.col("first"),
        gpu_time_ns=_sum_slices(launches["end_ns"] - launches["start_ns"], slices),
    )
    return pl.DataFrame([_scatter(column, slices["row"], ranges.height) for column in projected])


def _sum_by_stream(
    launches: pl.DataFrame,
    count: pl.Expr = pl.col("gpu_op_count").sum(),  # noqa: B008 - expressions never change
    time: pl.Expr = pl.col("gpu_time_ns").sum(),  # noqa: B008
) -> pl.DataFrame:
    """Sum the number and duration of activities by range and stream.

    Args:
        launches: The columns ``row`` (range), ``level``, ``STREAM``, ``api_start_ns``, ``start_ns``, ``end_ns``, and
            those that ``count`` and ``time`` read.
        count: Expression for the number of activities in a group.
        time: Expression for the total duration of the activities in a group.

    Returns:
        One row per range (``row``), ``level`` and stream: ``api_start_ns`` (last launch), ``start_ns`` (first start),
        ``end_ns`` (last end), ``gpu_op_count``, ``gpu_time_ns``.
    """
    return launches.group_by("row", "level", *STREAM).agg(
        pl.col("api_start_ns").max(),
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
        gpu_op_count=count,
        gpu_time_ns=time,
    )


def _merge_stream_totals(parts: Sequence[pl.DataFrame], range_count: int) -> Iterator[pl.DataFrame]:
    """Yield the sums of totals by range and stream, in the order of ranges and streams, for some ranges at a time.

    Args:
        parts: At least one frame as ``Ranges.compute_push_pop_stream_totals`` yields them. A range and a stream may
            have a row in several frames.
        range_count: Number of ranges.
    """
    rows = sum(part.height for part in parts)
    ranges_at_once = max(range_count * sorting.BLOCK_ROWS // max(rows, 1), 1)
    totals = (pl.col("start_ns").min(), pl.col("end_ns").max(), pl.col("gpu_op_count", "gpu_time_ns").sum())
    for first in range(0, max(range_count, 1), ranges_at_once):
        slices = (np.searchsorted(part["row"].to_numpy(), [first, first + ranges_at_once]) for part in parts)
        here = pl.concat([part[start:stop] for part, (start, stop) in zip(parts, slices, strict=True)])
        yield here.group_by("row", *STREAM).agg(*totals).sort("row", *STREAM)


def _sum_slices(values: pl.Series, slices: pl.DataFrame) -> pl.Series:
    """Return the sum of the values in each slice, which extends from row ``first`` to the row before ``stop``."""
    totals = pl.concat([pl.Series([0], dtype=pl.Int64), values.cum_sum()])
    return totals.gather(slices["stop"]) - totals.gather(slices["first"])


def _scatter(values: pl.Series, row_numbers: pl.Series, row_count: int) -> pl.Series:
    """Return a column of ``row_count`` rows with the values at the given row numbers and nulls elsewhere."""
    if len(row_numbers) == row_count and row_numbers.is_sorted():
        return values
    indices = pl.int_range(len(row_numbers), eager=True)
    index = pl.repeat(None, row_count, dtype=pl.Int64, eager=True).scatter(row_numbers, indices)
    return values.gather(index)


def _find_deepest_level(depth: pl.Series) -> int:
    """Return the largest depth of ranges, limited to ``MAX_PATH_LEVELS``. It is 0 if there are no ranges."""
    return min(int(pl.Series([depth.max()], dtype=pl.Int64).fill_null(0).item()), MAX_PATH_LEVELS)
