"""The tables of a layered trace, in which replayed activities are launched in the ranges that tell their layers.

The layers of a replay are the ranges in which the program created the nodes of its graph. They come from the capture
itself, or from a second capture of the same program in which the same kernels ran with their ranges. Ranges of the
second capture that contain a whole step, or a whole capture of a graph, are no layers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.correlate import CapturedNodes, Correlation, Moments
from tracekit.core.graph_replays import CaptureAlignment, align_captures
from tracekit.core.layers.alignment import MIN_CONFIDENCE
from tracekit.core.layers.nodes import LAUNCH_PATTERN, select_calls
from tracekit.core.layers.notes import (
    describe_unknown_layers,
    describe_unsuitable_capture,
    describe_whole_graphs,
    describe_whole_replays,
)
from tracekit.core.layers.replays import Places, ReplayLayout, place_ranges
from tracekit.core.relations import LAUNCH, OPERATIONS, THREAD
from tracekit.core.runtimes import API_PREFIX
from tracekit.core.series import match_categories_expr
from tracekit.core.trees import MAX_LEVELS
from tracekit.errors import TracekitError, warn
from tracekit.system.threads import unlocked_property

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tracekit.core.correlate import Frames

RANGES = "nvtx_ranges"
COPY_OF = "captured_range_id"
_RANGE_ID, _PATH, _CONFIDENCE = "capture_range_id", "capture_path", "capture_confidence"
_TIMES = ("start_ns", "end_ns")
_MAX_ID = (1 << 63) - 1


class LayerSource(ABC):
    """Where the layers of the activities of graphs come from.

    Attributes:
        capture: The capture that contains the ranges.
    """

    capture: Correlation

    @property
    @abstractmethod
    def places(self) -> Places:
        """The points in time at which the program captured or launched what replays run."""

    @abstractmethod
    def find_places(self, table: str) -> pl.Series:
        """Return the row number in ``places.points`` of each activity of a table, or null if it is not known."""

    @abstractmethod
    def compute_columns(self, table: str) -> pl.DataFrame:
        """Return the columns of the activities of a table whose names begin with ``capture_``."""

    def find_missing_data(self) -> str | None:
        """Return what a second capture does not contain, without which it cannot tell layers, or None."""
        return None


@dataclass(frozen=True)
class OwnLayers(LayerSource):
    """The ranges of the capture itself in which the program created the nodes of graphs."""

    capture: Correlation

    @unlocked_property
    def places(self) -> Places:
        """The creations of the nodes that ran."""
        ranges, creations = self.capture.ranges, self._nodes.creations
        points = creations.calls.with_columns(range_row=creations.range_row)
        return Places(points, ranges.push_pop_ranges.select(*THREAD, *_TIMES), ranges.find_outer_rows, True)  # noqa: FBT003

    def find_places(self, table: str) -> pl.Series:
        """Return the row number of the node of each activity."""
        return self._nodes.find_rows(table)

    def compute_columns(self, table: str) -> pl.DataFrame:
        """Return the columns that correlation adds to the activities."""
        return self._nodes.compute_columns(table, [_RANGE_ID, _PATH, _CONFIDENCE])

    @property
    def _nodes(self) -> CapturedNodes:
        return self.capture.captured_nodes


@dataclass(frozen=True)
class AlignedLayers(LayerSource):
    """The ranges of a second capture, with which the replays are aligned.

    Attributes:
        replays: The capture with the replays.
        capture: The second capture.
    """

    replays: Correlation
    capture: Correlation

    @unlocked_property
    def places(self) -> Places:
        """The launches of the activities of the second capture or, if they are those of graphs, their creations.

        Ranges that contain the whole step, or the whole capture of the graph, do not count as open.
        """
        ranges = self.capture.ranges
        bounds = ranges.push_pop_ranges.select(*THREAD, *_TIMES)

        def find_outer_rows(points: pl.DataFrame) -> pl.Series:
            return self._drop_steps(points.with_columns(range_row=ranges.find_outer_rows(points)))["range_row"]

        return Places(self._drop_steps(self._recorded_points), bounds, find_outer_rows, False)  # noqa: FBT003

    def find_places(self, table: str) -> pl.Series:
        """Return the row number of the recorded activity with which each activity is aligned."""
        rows = self._alignment.activities[table]
        first = (
            rows["recorded_table"]
            .cast(pl.String)
            .replace_strict(list(OPERATIONS), self._first_rows, default=None, return_dtype=pl.Int64)
        )
        return (first + rows["recorded_row"]).cast(pl.UInt32)

    def compute_columns(self, table: str) -> pl.DataFrame:
        """Return the path below the step, and the confidence of the alignment. Ranges of the second capture have no id.

        The path is null if the confidence is too low.
        """
        place, confidence = self.find_places(table), self._alignment.activities[table]["confidence"]
        no_ids = pl.repeat(None, len(place), dtype=pl.Int64, eager=True)
        return pl.DataFrame({_RANGE_ID: no_ids, _PATH: self._paths.gather(place), _CONFIDENCE: confidence})

    def find_missing_data(self) -> str | None:
        """Return ``kernels`` or ``ranges around the launches of its kernels``, or None if the capture has both."""
        points = self._recorded_points
        if points.is_empty():
            return "kernels"
        return "ranges around the launches of its kernels" if points["range_row"].null_count() == len(points) else None

    @unlocked_property
    def _alignment(self) -> CaptureAlignment:
        return align_captures(self.replays, self.capture)

    @unlocked_property
    def _first_rows(self) -> list[int]:
        """For each table, the number of the rows of all previous tables of the second capture."""
        counts = [self.capture.frames(t).select(pl.len()).collect().item() for t in OPERATIONS]
        return [sum(counts[:number]) for number in range(len(counts))]

    @unlocked_property
    def _recorded_points(self) -> pl.DataFrame:
        """The launch or the creation of each activity of the second capture, in the order of ``OPERATIONS``.

        The columns are those of ``Places.points``, and ``step_ns`` (start of the step or of the capture of the graph).
        """
        creations = self.capture.captured_nodes.creations
        nodes = creations.calls.with_columns(range_row=creations.range_row)
        nodes = nodes.hstack([self._find_starts_of_captures(nodes)])
        steps = self._find_starts_of_steps()
        parts = []
        for table, first in zip(OPERATIONS, self._first_rows, strict=True):
            launches = self.capture.activities(table).launches
            rows = launches.calls.select(*THREAD, "api_start_ns").with_columns(range_row=launches.range_row)
            rows = rows.with_columns(steps.slice(first, rows.height))
            created = nodes.select(pl.all().gather(self.capture.captured_nodes.find_rows(table)))
            is_created = created["range_row"].is_not_null()
            parts.append(pl.DataFrame([c.zip_with(is_created, rows[c.name]) for c in created]))
        return pl.concat(parts)

    def _find_starts_of_steps(self) -> pl.Series:
        """Return the start of the step of each recorded activity with which another one is aligned."""
        aligned = pl.concat(
            pl.DataFrame({"place": self.find_places(t), "step_ns": self._alignment.activities[t]["step_ns"]})
            for t in OPERATIONS
        ).drop_nulls("place")
        aligned = aligned.unique("place")
        count = self._first_rows[-1] + self.capture.frames(OPERATIONS[-1]).select(pl.len()).collect().item()
        empty = pl.repeat(None, count, dtype=pl.Int64, eager=True).alias("step_ns")
        return empty.scatter(aligned["place"], aligned["step_ns"])

    def _find_starts_of_captures(self, nodes: pl.DataFrame) -> pl.Series:
        """Return the start of the stream capture during which each node was created, or null."""
        calls = self.capture.frames("api_calls").select(*THREAD, *_TIMES, "name").collect()
        begins = select_calls(calls, API_PREFIX + "StreamBeginCapture").select(*THREAD, "start_ns", step_ns="start_ns")
        points = nodes.select(*THREAD, start_ns="api_start_ns").with_row_index("node").drop_nulls().sort("start_ns")
        last = points.join_asof(begins, on="start_ns", by=THREAD, check_sortedness=False).drop_nulls("step_ns")
        return (
            pl.repeat(None, nodes.height, dtype=pl.Int64, eager=True)
            .scatter(last["node"], last["step_ns"])
            .alias("step_ns")
        )

    def _drop_steps(self, points: pl.DataFrame) -> pl.DataFrame:
        """Return points whose ``range_row`` is null if the range began before the step or the capture of the graph."""
        start = self.capture.ranges.push_pop_ranges["start_ns"].gather(points["range_row"])
        is_step = (start <= points["step_ns"]).fill_null(value=False)
        row = points["range_row"]
        return points.with_columns(row.zip_with(~is_step, pl.repeat(None, len(row), dtype=row.dtype, eager=True)))

    @unlocked_property
    def _paths(self) -> pl.Series:
        """The path of each place, below the step (Categorical)."""
        points = self._recorded_points
        whole = Moments(self.capture.ranges, points.select(*THREAD, "api_start_ns")).build_range_path_column()
        step = points
        for _ in range(MAX_LEVELS):
            inner = self._drop_steps(step)["range_row"].is_not_null()
            if not inner.any():
                break
            outer = self.capture.ranges.find_outer_rows(step)
            step = step.with_columns(outer.zip_with(inner, step["range_row"]).alias("range_row"))
        prefix = self.capture.ranges.path.gather(step["range_row"]).cast(pl.String) + "/"
        has_layer = self.places.points["range_row"].is_not_null()
        paths = pl.DataFrame({"path": whole.cast(pl.String), "prefix": prefix.fill_null(""), "has_layer": has_layer})
        below = pl.when("has_layer").then(pl.col("path").str.strip_prefix(pl.col("prefix")))
        return paths.select(below.cast(pl.Categorical)).to_series()


@dataclass(frozen=True)
class LayeredCapture:
    """The captured ranges of CUDA graphs, placed inside the replays of the graphs.

    Attributes:
        frames: Function that returns the recorded table with a given name.
        recorded_frames: The same function of a second capture, from which the ranges come. If None, they are those of
            the capture itself.
        recorded_path: The file or folder of the second capture, for messages.
    """

    frames: Frames
    recorded_frames: Frames | None = None
    recorded_path: Path | None = None

    def compute_activity_columns(self, table: str, names: Sequence[str]) -> pl.DataFrame:
        """Return columns that layers add to a table of activities.

        Args:
            table: Name of the table.
            names: Names of the columns: ``launch_ns``, or columns of correlation that begin with ``capture_``.

        Returns:
            A frame with these columns, and one row per row of the table, in the same order.
        """
        launches = self._launches[table]
        columns = {LAUNCH: launches[LAUNCH]}
        if {*names} - {LAUNCH}:
            columns |= self._source.compute_columns(table).to_dict()
            copy_id = self._first_new_id + launches["copy"]
            columns[_RANGE_ID] = copy_id.zip_with(copy_id.is_not_null(), columns[_RANGE_ID])
        return pl.DataFrame({name: columns[name] for name in names})

    def compute_copied_ranges(self, columns: Sequence[str]) -> pl.DataFrame:
        """Return the copied ranges.

        Args:
            columns: Names of the columns of the table ``nvtx_ranges``, or ``captured_range_id``.

        Returns:
            One row per copied range, in the order of the calls of replays and then of starts.
        """
        copies = self.layout.copies
        rows = self._source.capture.ranges.push_pop_ranges["row"].gather(copies["range_row"])
        read = ["range_id", *(c for c in columns if c not in {COPY_OF, "range_id", "end_thread_id", *THREAD, *_TIMES})]
        copied = self._source.capture.frames(RANGES).select(read).collect().select(pl.all().gather(rows))
        copied = copied.rename({"range_id": COPY_OF}).hstack(copies.select(*THREAD, *_TIMES))
        new_ids = pl.int_range(self._first_new_id, self._first_new_id + copies.height, eager=True)
        return copied.with_columns(range_id=new_ids, end_thread_id=pl.lit(None, pl.Int64)).select(columns)

    @unlocked_property
    def layout(self) -> ReplayLayout:
        """The copied ranges and the moved launches of all activities, in the order of the tables ``OPERATIONS``."""
        activities = [
            pl.DataFrame(
                {"call": self._correlation.activities(t).call_row_number, "place": self._source.find_places(t)}
            )
            for t in OPERATIONS
        ]
        calls = self.frames("api_calls").select(*THREAD, *_TIMES).collect()
        ranges = self._correlation.ranges.push_pop_ranges.select(*THREAD, *_TIMES)
        layout = place_ranges(pl.concat(activities), calls, ranges, self._source.places)
        self._warn_about_replays_without_layers(layout)
        return layout

    def _warn_about_replays_without_layers(self, layout: ReplayLayout) -> None:
        """Warn about replays whose layers are not known, or in which there is no place for ranges."""
        known, node_count = 0, 0
        is_launch = match_categories_expr(pl.col("name"), lambda names: names.str.contains(LAUNCH_PATTERN))
        launches = self.frames("api_calls").select(is_launch).collect().to_series()
        for table in OPERATIONS:
            ids = [
                self.frames(table).select("graph_node_id").collect(),
                self._correlation.captured_nodes.read_nodes(table),
            ]
            is_node = pl.select(pl.max_horizontal(i["graph_node_id"] for i in ids).fill_null(0) > 0).to_series()
            calls = self._correlation.activities(table).call_row_number
            is_node |= launches.gather(calls).fill_null(value=False)
            is_known = self._source.compute_columns(table)[_CONFIDENCE] >= MIN_CONFIDENCE
            known, node_count = known + int((is_node & is_known).sum()), node_count + int(is_node.sum())
        missing = self._source.find_missing_data() if node_count else None
        if missing is not None:
            warn(describe_unsuitable_capture(missing, node_count), path=self.recorded_path)
        elif known < node_count:
            warn(describe_unknown_layers(node_count - known, node_count, is_aligned=self.recorded_frames is not None))
        if layout.whole_count:
            warn(describe_whole_replays(layout.whole_count, layout.replay_count, self._count_replays_with_copies()))
        graph = pl.struct("process_id", "graph_id").n_unique().alias("graphs")
        executions, graphs = self.frames("graph_launches").select(pl.len(), graph).collect().row(0)
        if executions:
            warn(describe_whole_graphs(executions, graphs))

    def _count_replays_with_copies(self) -> int:
        """Return the number of replays inside of which ranges with the names of captured ranges were recorded.

        No program has a range inside of such a call, but a file that was written from a trace with layers does.
        """
        source = self._source
        captured = source.capture.ranges.push_pop_ranges["row"].gather(source.places.points["range_row"].unique())
        names = source.capture.frames(RANGES).select("name").collect().to_series().cast(pl.String).gather(captured)
        is_launch = match_categories_expr(pl.col("name"), lambda names: names.str.contains(LAUNCH_PATTERN))
        calls = self.frames("api_calls").filter(is_launch).select(*THREAD, "start_ns", "api_call_id", call_end="end_ns")
        ranges = self.frames(RANGES).filter(pl.col("kind") == "push_pop").select(*THREAD, *_TIMES, "name").collect()
        ranges = ranges.filter(pl.col("name").cast(pl.String).is_in(names.drop_nulls().implode())).sort("start_ns")
        inside = ranges.join_asof(
            calls.collect().sort("start_ns"), on="start_ns", by=THREAD, check_sortedness=False
        ).filter(pl.col("end_ns") < pl.col("call_end"))
        return inside["api_call_id"].n_unique()

    @unlocked_property
    def _launches(self) -> dict[str, pl.DataFrame]:
        """The moved launches of the activities of each table."""
        counts = [self.frames(t).select(pl.len()).collect().item() for t in OPERATIONS]
        starts = [sum(counts[:i]) for i in range(len(counts))]
        return {
            table: self.layout.launches.slice(start, count)
            for table, start, count in zip(OPERATIONS, starts, counts, strict=True)
        }

    @unlocked_property
    def _first_new_id(self) -> int:
        """Id of the first copied range, after the ids of all recorded ranges."""
        last = self.frames(RANGES).select(pl.col("range_id").max()).collect().item() or 0
        if last > _MAX_ID - self.layout.copies.height - 1:
            message = f"range {last} has the last id, so ranges cannot be copied"
            raise TracekitError(message, hint="load the capture without layers")
        return int(last) + 1

    @unlocked_property
    def _correlation(self) -> Correlation:
        return Correlation(self.frames)

    @unlocked_property
    def _source(self) -> LayerSource:
        if self.recorded_frames is None:
            return OwnLayers(self._correlation)
        return AlignedLayers(self._correlation, Correlation(self.recorded_frames))
