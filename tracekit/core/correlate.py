"""Attach GPU activities to API calls, and API calls to NVTX ranges.

A GPU activity belongs to the API call of its process with its correlation id; one call may own many activities (CUDA
graphs). A call belongs to the push/pop ranges of its thread that are open when it starts, ``start <= t < end``, over all
domains; the innermost names it. Start/end ranges may cross threads and overlap: a call belongs to the one of its process
that began last among those open when it starts, kept in a column of its own.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core import intervals
from tracekit.core.containment import latest_enclosing, slice_min

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Frames = Callable[[str], pl.LazyFrame]

ACTIVITIES = ("kernels", "memcpys", "memsets", "graph_launches")
THREAD = ("process_id", "thread_id")
CALL = ("process_id", "correlation_id")
DEEPEST_PATH = 256
_SPARSE = 8


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
        values = {"parent_id": self.parent_id, "depth": self.depth, "path": self.path}[name]()
        return _spread(values, self.push_pop["row"], self.count)

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
        """Row of ``push_pop`` of each one's parent; within its own domain where the domains of a thread cross."""
        return self.nest.parents(within=["domain_id"])

    def parent_id(self) -> pl.Series:
        """Id of the parent of each push/pop range."""
        return self.push_pop["range_id"].gather(self.parent)

    @functools.cache  # noqa: B019 - lives as long as the trace
    def depth(self) -> pl.Series:
        """Ranges on the path of each push/pop range."""
        return intervals.depths(self.parent)

    @functools.cache  # noqa: B019 - lives as long as the trace
    def path(self) -> pl.Series:
        """Texts from the outermost range down to each push/pop range, joined by "/"."""
        return paths(self.parent, self.depth(), self.name())

    def name(self) -> pl.Series:
        """Text of each push/pop range."""
        names = self.frames("nvtx_ranges").filter(pl.col("kind") == "push_pop").select("name")
        return names.collect()["name"]

    @functools.cached_property
    def projected(self) -> pl.DataFrame:
        """What was launched inside each range of either kind."""
        launches = pl.concat([Activities(self.frames, t, self).launches() for t in ACTIVITIES])
        parts = [project(launches, self.push_pop, THREAD), project(launches, self.start_end, THREAD[:1])]
        both = pl.concat(parts).with_columns(row=pl.concat([self.push_pop["row"], self.start_end["row"]]))
        return both.sort("row").with_columns(pl.col("gpu_op_count", "gpu_time_ns").fill_null(0))

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
        if name in ("api_call_id", "api_start_ns", "api_end_ns", "thread_id"):
            return self.calls[name]
        if name == "start_end_range_id":
            return self.start_end_range_id()
        made = {
            "range_id": lambda: self.ranges.push_pop["range_id"],
            "range_name": self.ranges.name,
            "range_path": self.ranges.path,
            "range_depth": self.ranges.depth,
        }[name]().gather(self.range_row)
        return made.fill_null(0) if name == "range_depth" else made

    @functools.cached_property
    def calls(self) -> pl.DataFrame:
        """The call behind each activity: ``process_id``, ``api_call_id``, ``api_start_ns``, ``api_end_ns``, ``thread_id``."""
        owners = self.frames(self.table).select(CALL).collect()
        called = self.frames("api_calls").select(*CALL).collect()
        rows = first_rows(called, owners)
        wanted = self.frames("api_calls").select(
            "api_call_id", "thread_id", api_start_ns=pl.col("start_ns"), api_end_ns=pl.col("end_ns")
        )
        return wanted.collect().select(pl.all().gather(rows)).with_columns(owners["process_id"])

    @functools.cached_property
    def range_row(self) -> pl.Series:
        """Row of the innermost push/pop range around each call."""
        return self.ranges.nest.innermost(self.calls, "api_start_ns")

    def start_end_range_id(self) -> pl.Series:
        """Id of the start/end range of the process that began last among those open at each call."""
        if not self.ranges.start_end.height:
            return pl.repeat(None, self.calls.height, dtype=pl.Int64, eager=True)
        points, spans = self.calls.lazy(), self.ranges.start_end.lazy()
        return latest_enclosing(points, spans, at="api_start_ns", by=THREAD[:1]).collect()["range_id"]

    def launches(self) -> pl.DataFrame:
        """Where and when each activity was launched, and when it ran: n rows in, n rows out."""
        ran = self.frames(self.table).select("start_ns", "end_ns").collect()
        return self.calls.select(*THREAD, "api_start_ns").hstack(ran)


def first_rows(table: pl.DataFrame, wanted: pl.DataFrame) -> pl.Series:
    """Find the row of a table with the same (process_id, correlation_id); of several the first.

    Args:
        table: m rows of the two columns.
        wanted: n rows of the two columns.

    Returns:
        n rows of ``table``, null where there is none or a value is null.
    """
    process, number = CALL
    lows = table.drop_nulls().group_by(process).agg(low=pl.col(number).min(), size=pl.col(number).max() - pl.col(number).min() + 1)
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

    A path is the path of the parent and one more text, so there are few distinct ones; they are made level by level.

    Args:
        parent: Row of the parent of each range, null for an outermost one.
        depth: Its level; 1 for an outermost one.
        name: Its text (Categorical).

    Returns:
        n texts (Categorical). Below level 256 a path ends in "/…".
    """
    nodes = pl.DataFrame({"up": parent, "depth": depth, "text": name}).with_row_index("row")
    ids = pl.zeros(nodes.height, pl.Int64, eager=True)
    texts = pl.Series([""], dtype=pl.String)
    for level in range(1, min(int(depth.max() or 0), DEEPEST_PATH) + 1):  # type: ignore[call-overload]
        here = nodes.filter(pl.col("depth") == level)
        pairs = here.select("row", "text", outer=ids.gather(here["up"]).fill_null(0))
        fresh = pairs.select("outer", "text").unique(maintain_order=True)
        fresh = fresh.with_columns(id=pl.int_range(pl.len()) + len(texts))
        numbered = pairs.join(fresh, on=["outer", "text"], how="left", maintain_order="left", nulls_equal=True)
        ids = ids.scatter(numbered["row"], numbered["id"])
        own = fresh["text"].cast(pl.String).fill_null("")
        texts = pl.concat([texts, own if level == 1 else texts.gather(fresh["outer"]) + "/" + own])
    ids, texts = _cut(nodes, ids, texts)
    return texts.cast(pl.Categorical).gather(ids)


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
    axis = intervals.Axis.of(ranges, by)
    ordered = launches.with_columns(at=axis.instants(launches, "api_start_ns")).drop_nulls("at").sort("at")
    spans = axis.spans(ranges)
    found = spans.select(
        "row",
        first=ordered["at"].search_sorted(spans["start"], "left").cast(pl.Int64),
        stop=ordered["at"].search_sorted(spans["end"], "left").cast(pl.Int64),
    ).filter(pl.col("first") < pl.col("stop"))
    made = found.select(
        "row",
        gpu_start_ns=slice_min(ordered["start_ns"], found),
        gpu_end_ns=-slice_min(-ordered["end_ns"], found),
        gpu_op_count=pl.col("stop") - pl.col("first"),
        gpu_time_ns=_slice_sum(ordered["end_ns"] - ordered["start_ns"], found),
    )
    return pl.DataFrame([_spread(made[c], made["row"], ranges.height).alias(c) for c in made.columns[1:]])


def _slots(keys: pl.DataFrame, lows: pl.DataFrame) -> pl.DataFrame:
    process, number = CALL
    placed = keys.join(lows, on=process, how="left", maintain_order="left")
    slot = pl.col(number) - pl.col("low")
    return placed.select(slot=pl.when((slot >= 0) & (slot < pl.col("size"))).then(slot + pl.col("offset")))


def _cut(nodes: pl.DataFrame, ids: pl.Series, texts: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Give ranges below the deepest level the path of their ancestor there, marked with "…"."""
    deep = nodes["depth"] > DEEPEST_PATH
    if not deep.any():
        return ids, texts
    up = pl.int_range(nodes.height, eager=True).zip_with(~deep, nodes["up"])
    while deep.gather(up).any():
        up = up.gather(up)
    return ids.gather(up) + deep.cast(pl.Int64) * len(texts), pl.concat([texts, texts + "/…"])


def _slice_sum(values: pl.Series, found: pl.DataFrame) -> pl.Series:
    totals = pl.concat([pl.Series([0], dtype=pl.Int64), values.cum_sum()])
    return totals.gather(found["stop"]) - totals.gather(found["first"])


def _spread(values: pl.Series, rows: pl.Series, count: int) -> pl.Series:
    """Put values in their rows of a longer column; the other rows are null."""
    at = pl.repeat(None, count, dtype=pl.Int64, eager=True).scatter(rows, pl.int_range(len(rows), eager=True))
    return values.gather(at)
