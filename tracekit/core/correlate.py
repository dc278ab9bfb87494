"""Attach GPU activities to API calls, and API calls to NVTX ranges.

A GPU activity belongs to the API call of its process with its correlation id; one call may own many activities
(CUDA graphs). A call belongs to the push/pop ranges of its thread that are open when it starts, ``start <= t < end``,
over all domains; the innermost, the last in order of nesting (``intervals``), names it, and all of them, in that order,
are its path. Ranges of a thread may cross, as clocks of two recorders make them do: the path of a range is then that of
its parent, which contains it as a whole, and its own text, and one that crosses it is not in it. Start/end ranges may
cross threads and overlap: a call belongs to the one of its process that began last among those open when it starts,
kept in a column of its own.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core import forests, intervals, trees
from tracekit.core.intervals.containment import latest_enclosing, slice_minima

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Frames = Callable[[str], pl.LazyFrame]

ACTIVITIES = ("kernels", "memcpys", "memsets", "graph_launches")
THREAD = ("process_id", "thread_id")
CALL = ("process_id", "correlation_id")
STREAM = ("device_id", "context_id", "stream_id")
DEEPEST_PATH = trees.DEEPEST
_SPARSE, _FEW = 8, 1 << 16
_LENGTH = pl.col("end_ns") - pl.col("start_ns")
_OF_RANGE = {"range_id": "range_id", "range_name": "name", "range_path": "path", "range_depth": "depth"}
_OF_CALL = {
    "api_call_id": ("api_call_id",),
    "api_start_ns": ("start_ns",),
    "api_end_ns": ("end_ns",),
    "thread_id": ("thread_id",),
}


@dataclass(frozen=True)
class Correlation:
    """Correlates the tables of one trace; what several of them need is found once and kept.

    Attributes:
        frames: Gives a table by name.
    """

    frames: Frames

    def columns(self, table: str, names: Sequence[str]) -> pl.DataFrame:
        """Compute some of the columns that correlation adds to a table: n rows in, n rows out in their order.

        Args:
            table: ``nvtx_ranges``, or a table of GPU activities.
            names: Columns of ``_correlation.toml``.
        """
        part = self.ranges if table == "nvtx_ranges" else self.activities(table)
        return pl.DataFrame([part.column(n).alias(n) for n in names])

    def projections(self) -> pl.DataFrame:
        """Project each NVTX range on each stream that it launched on: rows of ``nvtx_projections``."""
        launches = pl.concat([self.activities(t).launches_by_stream() for t in ACTIVITIES])
        on_streams = pl.concat([self.ranges.push_pop_on_streams(launches), self.ranges.start_end_on_streams(launches)])
        ordered = on_streams.sort("row", *STREAM)
        columns = ["range_id", "process_id", "kind", "thread_id", "domain_id", "domain", "name"]
        described = self.frames("nvtx_ranges").select(columns).collect().with_columns(depth=self.ranges.column("depth"))
        return ordered.drop("row").hstack(described.select(pl.all().gather(ordered["row"])))

    @functools.cached_property
    def ranges(self) -> Ranges:
        """The NVTX ranges as a forest."""
        return Ranges(self.frames)

    def activities(self, table: str) -> Activities:
        """The rows of a table of GPU activities, with their calls and ranges."""
        return Activities(self.frames, table, self.ranges)


@dataclass(frozen=True)
class Ranges:
    """NVTX ranges: the push/pop ones nested, each with parent, depth and path; all of them projected on the GPU."""

    frames: Frames

    def column(self, name: str) -> pl.Series:
        """Compute an added column of ``nvtx_ranges``."""
        if name.startswith("gpu_"):
            return self.projected[name]
        return _spread(self.of_push_pop(name), self.push_pop["row"], self.count)

    def of_push_pop(self, name: str) -> pl.Series:
        """What is known of the push/pop ranges, in the order of the file: ``range_id``, ``depth``, ``path``."""
        found: pl.Series = getattr(self, name)
        return found

    @functools.cached_property
    def count(self) -> int:
        """Number of ranges of both kinds."""
        return int(self.frames("nvtx_ranges").select(pl.len()).collect().item())

    @functools.cached_property
    def push_pop(self) -> pl.DataFrame:
        """The push/pop ranges in the order of the file."""
        return self._of_kind("push_pop")

    @functools.cached_property
    def start_end(self) -> pl.DataFrame:
        """The start/end ranges in the order of the file."""
        return self._of_kind("start_end")

    @functools.cached_property
    def nest(self) -> intervals.Nest:
        """The push/pop ranges, nested by thread over all domains."""
        return intervals.Nest.of(self.push_pop, THREAD)

    @functools.cached_property
    def parent(self) -> pl.Series:
        """Row of ``push_pop`` of each one's parent."""
        return self.nest.parents()

    @property
    def range_id(self) -> pl.Series:
        """Id of each push/pop range."""
        return self.push_pop["range_id"]

    @property
    def parent_id(self) -> pl.Series:
        """Id of the parent of each push/pop range."""
        return self.range_id.gather(self.parent)

    @functools.cached_property
    def depth(self) -> pl.Series:
        """Ranges on the path of each push/pop range."""
        return forests.depths(self.parent)

    @functools.cached_property
    def path(self) -> pl.Series:
        """Texts from the outermost range down to each push/pop range, joined by "/"."""
        tree, nodes = self.placed
        return tree.paths().cast(pl.Categorical).gather(nodes)

    @functools.cached_property
    def placed(self) -> tuple[trees.Tree, pl.Series]:
        """The tree of the texts of push/pop ranges, and the node of each range."""
        return trees.of_ranges(self.parent, self.depth, self.name)

    @property
    def name(self) -> pl.Series:
        """Text of each push/pop range."""
        names = self.frames("nvtx_ranges").filter(pl.col("kind") == "push_pop").select("name")
        return names.collect()["name"]

    def through_crossings(self, tree: trees.Tree, calls: pl.DataFrame) -> tuple[trees.Tree, pl.Series]:
        """Find the nodes of the paths of calls that have open ranges beside the ancestors of the innermost one.

        Outwards from the innermost range, until all ranges that are still open are ancestors of the last one.

        Args:
            tree: The tree of texts.
            calls: The columns of ``Activities.calls``, ``row`` (innermost range) and ``count`` (open ranges).

        Returns:
            The tree with these nodes, and the node of each call: n rows in, n rows out.
        """
        left, inner = calls.with_row_index("at"), []
        base = pl.zeros(calls.height, pl.Int64, eager=True)
        while left.height:
            whole = self.depth.gather(left["row"]) == left["count"]
            done, left = left.filter(whole), left.filter(~whole)
            base = base.scatter(done["at"], self.placed[1].gather(done["row"]))
            inner.append(left.select("at", "row"))
            outer = self.nest.next_enclosing(left, "api_start_ns", left["row"])
            left = left.with_columns(row=outer, count=pl.col("count") - 1).filter(outer.is_not_null())
        for step in reversed(inner):
            part = self.name.gather(step["row"]).cast(pl.String).fill_null("")
            tree, nodes = tree.with_children(pl.DataFrame({"up": base.gather(step["at"]), "part": part}))
            base = base.scatter(step["at"], nodes)
        return tree, base

    @functools.cached_property
    def projected(self) -> pl.DataFrame:
        """What was launched inside each range of either kind."""
        launches = pl.concat([Activities(self.frames, t, self).launches() for t in ACTIVITIES])
        parts = [project(launches, self.push_pop, THREAD), project(launches, self.start_end, THREAD[:1])]
        both = pl.concat(parts).with_columns(row=pl.concat([self.push_pop["row"], self.start_end["row"]]))
        return both.sort("row").with_columns(pl.col("gpu_op_count", "gpu_time_ns").fill_null(0))

    def push_pop_on_streams(self, launches: pl.DataFrame) -> pl.DataFrame:
        """Sum up launches by push/pop range and stream, from the innermost ranges outwards, a level at a time.

        What lies below the deepest level counts for the ancestor there.

        Returns:
            ``row`` (of ``nvtx_ranges``), the columns of ``STREAM``, ``start_ns``, ``end_ns``, ``gpu_op_count``,
            ``gpu_time_ns``.
        """
        nearest = forests.nearest_ancestors(self.parent, self.depth <= DEEPEST_PATH)
        inside = launches.drop_nulls("range_row").with_columns(row=nearest.gather(launches["range_row"].drop_nulls()))
        direct = _by_stream(inside.with_columns(gpu_op_count=pl.lit(1, pl.Int64), gpu_time_ns=_LENGTH))
        levels = direct.with_columns(depth=self.depth.gather(direct["row"])).partition_by("depth", as_dict=True)
        done = [direct.clear()]
        for level in range(_deepest(self.depth), 0, -1):
            within = done[-1].with_columns(row=self.parent.gather(done[-1]["row"])).drop_nulls("row")
            here = levels.get((level,), direct.clear().with_columns(depth=pl.lit(0, pl.Int32))).drop("depth")
            done.append(_by_stream(pl.concat([here, within])))
        found = pl.concat(done)
        return found.with_columns(row=self.push_pop["row"].gather(found["row"]))

    def start_end_on_streams(self, launches: pl.DataFrame) -> pl.DataFrame:
        """Sum up launches by start/end range and stream of its process."""
        streams = launches.select("process_id", *STREAM).unique(maintain_order=True).drop_nulls()
        spread = self.start_end.join(streams, on="process_id", maintain_order="left")
        found = project(launches, spread, ["process_id", *STREAM])
        made = spread.select("row", *STREAM).hstack(found.rename({"gpu_start_ns": "start_ns", "gpu_end_ns": "end_ns"}))
        return made.drop_nulls("start_ns")

    def _of_kind(self, kind: str) -> pl.DataFrame:
        columns = ["row", "range_id", *THREAD, "domain_id", "start_ns", "end_ns"]
        return self.frames("nvtx_ranges").with_row_index("row").filter(pl.col("kind") == kind).select(columns).collect()


@dataclass(frozen=True)
class Activities:
    """Rows of one table of GPU activities, with the call that caused each and the ranges that call lies in."""

    frames: Frames
    table: str
    ranges: Ranges

    def column(self, name: str) -> pl.Series:
        """Compute an added column of the table."""
        if name in _OF_CALL:
            return self.called(name)
        if name == "start_end_range_id":
            return self.start_end_range_id()
        if self.ranges.nest.has_crossings and name in ("range_depth", "range_path"):
            return self.open_count.cast(pl.Int32) if name == "range_depth" else self.open_path()
        found = self.ranges.of_push_pop(_OF_RANGE[name]).gather(self.range_row)
        return found.fill_null(0) if name == "range_depth" else found

    @functools.cached_property
    def call_row(self) -> pl.Series:
        """Row of the API call that caused each activity."""
        calls, owners = (self.frames(t).select(CALL).collect() for t in ("api_calls", self.table))
        return first_rows(calls, owners)

    @functools.cached_property
    def calls(self) -> pl.DataFrame:
        """Where and when each activity was launched: ``process_id``, ``thread_id``, ``api_start_ns``."""
        process = self.frames(self.table).select("process_id").collect()
        return process.with_columns(self.called(c).alias(c) for c in ("thread_id", "api_start_ns"))

    def called(self, name: str) -> pl.Series:
        """A column of the call behind each activity."""
        (column,) = _OF_CALL[name]
        return self.frames("api_calls").select(column).collect().to_series().gather(self.call_row)

    @functools.cached_property
    def range_row(self) -> pl.Series:
        """Row of the innermost push/pop range around each call."""
        return self.ranges.nest.innermost(self.calls, "api_start_ns")

    @functools.cached_property
    def open_count(self) -> pl.Series:
        """How many push/pop ranges are open at each call."""
        return self.ranges.nest.enclosing_counts(self.calls, "api_start_ns")

    def open_path(self) -> pl.Series:
        """Texts of all push/pop ranges open at each call: the path of the innermost one, unless some cross it."""
        tree, nodes = self.ranges.placed
        found = nodes.gather(self.range_row)
        missing = self.open_count != self.ranges.depth.gather(self.range_row).fill_null(0)
        calls = self.calls.with_columns(row=self.range_row, count=self.open_count).with_row_index("call")
        for some in calls.filter(missing & (self.open_count <= DEEPEST_PATH)).iter_slices(_FEW):
            tree, here = self.ranges.through_crossings(tree, some)
            found = found.scatter(some["call"], here)
        return tree.paths(wanted=found.drop_nulls()).cast(pl.Categorical).gather(found)

    def start_end_range_id(self) -> pl.Series:
        """Id of the start/end range of the process that began last among those open at each call."""
        if not self.ranges.start_end.height:
            return pl.repeat(None, self.calls.height, dtype=pl.Int64, eager=True)
        points, spans = self.calls.lazy(), self.ranges.start_end.lazy()
        found = latest_enclosing(points, spans, time="api_start_ns", by=THREAD[:1]).collect()
        return found["range_id"]

    def launches_by_stream(self) -> pl.DataFrame:
        """The launches, with stream and innermost push/pop range (row of ``push_pop``): n rows in, n rows out."""
        streams = self.frames(self.table).select(STREAM).collect()
        return self.launches().hstack(streams).with_columns(range_row=self.range_row)

    def launches(self) -> pl.DataFrame:
        """Where and when each activity was launched, and when it ran: n rows in, n rows out."""
        ran = self.frames(self.table).select("start_ns", "end_ns").collect()
        return self.calls.hstack(ran)


def first_rows(table: pl.DataFrame, wanted: pl.DataFrame) -> pl.Series:
    """Find the row of a table with the same (process_id, correlation_id); of several the first.

    Args:
        table: m rows of the two columns.
        wanted: n rows of the two columns.

    Returns:
        n rows of ``table``, null where there is none or a value is null.
    """
    if not table.height:
        return pl.repeat(None, wanted.height, dtype=pl.Int64, eager=True)
    process, number = CALL
    low, high = pl.col(number).min(), pl.col(number).max()
    lows = table.drop_nulls().group_by(process).agg(low=low, size=high - low + 1)
    size = int(lows["size"].cast(pl.Int128).sum() or 0)
    if size > _SPARSE * (table.height + wanted.height):
        numbered = table.with_columns(row=pl.int_range(pl.len())).unique(CALL, keep="first")
        return wanted.join(numbered, on=CALL, how="left", maintain_order="left")["row"]
    lows = lows.with_columns(offset=pl.col("size").cum_sum() - pl.col("size"))
    slots, asked = (_slots(f, lows) for f in (table, wanted))
    book = pl.repeat(None, size, dtype=pl.Int64, eager=True)
    backwards = slots.with_columns(row=pl.int_range(pl.len())).drop_nulls().reverse()
    return book.scatter(backwards["slot"], backwards["row"]).gather(asked["slot"])


def paths(parent: pl.Series, depth: pl.Series, name: pl.Series) -> pl.Series:
    """Join the texts from the outermost range down to each range by "/".

    Args:
        parent: Row of the parent of each range, null for an outermost one.
        depth: Its level; 1 for an outermost one.
        name: Its text (Categorical).

    Returns:
        n texts (Categorical). Below level 256, and beyond 16 KiB, a path ends in "/…".
    """
    tree, nodes = trees.of_ranges(parent, depth, name)
    return tree.paths().cast(pl.Categorical).gather(nodes)


def project(launches: pl.DataFrame, ranges: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Sum up what was launched inside each range: in order of time it is a slice of the launches of the track.

    Args:
        launches: The columns ``by``, ``api_start_ns`` (when launched), ``start_ns``, ``end_ns`` (when run).
        ranges: The columns ``by``, ``start_ns``, ``end_ns``.
        by: Columns that name the track.

    Returns:
        n ranges in, n rows out in their order: ``gpu_start_ns``, ``gpu_end_ns`` (first start and last end),
        ``gpu_op_count``, ``gpu_time_ns`` (sum of durations); null where nothing was launched.
    """
    axis = intervals.Axis.of(ranges, by=by)
    ordered = launches.with_columns(at=axis.instants(launches, "api_start_ns")).drop_nulls("at").sort("at")
    spans = axis.nonempty_positions(ranges)
    found = spans.select(
        "row",
        first=intervals.search(ordered["at"], spans["start"], "left"),
        stop=intervals.search(ordered["at"], spans["end"], "left"),
    ).filter(pl.col("first") < pl.col("stop"))
    made = found.select(
        "row",
        gpu_start_ns=slice_minima(ordered["start_ns"], found),
        gpu_end_ns=-slice_minima(-ordered["end_ns"], found),
        gpu_op_count=pl.col("stop") - pl.col("first"),
        gpu_time_ns=_slice_sum(ordered["end_ns"] - ordered["start_ns"], found),
    )
    return pl.DataFrame([_spread(made[c], made["row"], ranges.height).alias(c) for c in made.columns[1:]])


def _slots(keys: pl.DataFrame, lows: pl.DataFrame) -> pl.DataFrame:
    process, number = CALL
    placed = keys.join(lows, on=process, how="left", maintain_order="left")
    slot = pl.col(number) - pl.col("low")
    return placed.select(slot=pl.when((slot >= 0) & (slot < pl.col("size"))).then(slot + pl.col("offset")))


def _by_stream(launches: pl.DataFrame) -> pl.DataFrame:
    return launches.group_by("row", *STREAM).agg(
        pl.col("start_ns").min(), pl.col("end_ns").max(), pl.col("gpu_op_count", "gpu_time_ns").sum()
    )


def _slice_sum(values: pl.Series, found: pl.DataFrame) -> pl.Series:
    totals = pl.concat([pl.Series([0], dtype=pl.Int64), values.cum_sum()])
    return totals.gather(found["stop"]) - totals.gather(found["first"])


def _spread(values: pl.Series, rows: pl.Series, count: int) -> pl.Series:
    """Put values in their rows of a longer column; the other rows are null."""
    at = pl.repeat(None, count, dtype=pl.Int64, eager=True).scatter(rows, pl.int_range(len(rows), eager=True))
    return values.gather(at)


def _deepest(depth: pl.Series) -> int:
    return min(int(pl.Series([depth.max()], dtype=pl.Int64).fill_null(0).item()), DEEPEST_PATH)
