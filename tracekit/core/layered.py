"""The tables of a layered trace, in which replayed activities are launched in the ranges that tell their layers.

The layers of a replay are the ranges in which the program created the nodes of its graph. They come from the capture
itself, or from a second capture of the same program in which the same kernels ran with their ranges.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.correlate import CapturedNodes, Correlation
from tracekit.core.layers.notes import describe_unknown_layers, describe_whole_graphs, describe_whole_replays
from tracekit.core.layers.replays import Places, ReplayLayout, place_ranges
from tracekit.core.relations import LAUNCH, OPERATIONS, THREAD
from tracekit.errors import TracekitError, warn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.core.correlate import Frames

RANGES = "nvtx_ranges"
COPY_OF = "captured_range_id"
_TIMES = ("start_ns", "end_ns")
_MAX_ID = (1 << 63) - 1


@dataclass(frozen=True)
class LayeredCapture:
    """The captured ranges of CUDA graphs, placed inside the replays of the graphs.

    Attributes:
        frames: Function that returns the recorded table with a given name.
    """

    frames: Frames

    def compute_activity_columns(self, table: str, names: Sequence[str]) -> pl.DataFrame:
        """Return columns that layers add to a table of activities.

        Args:
            table: Name of the table.
            names: Names of the columns: ``launch_ns``, or columns of correlation that begin with ``capture_``.

        Returns:
            A frame with at least these columns, and one row per row of the table, in the same order.
        """
        launches = self._launches[table]
        columns = [launches[LAUNCH]]
        if captured := [name for name in names if name != LAUNCH]:
            columns += self._nodes.compute_columns(table, captured).get_columns()
        frame = pl.DataFrame(columns)
        if "capture_range_id" not in names:
            return frame
        copy_id = self._first_new_id + launches["copy"]
        return frame.with_columns(
            copy_id.zip_with(copy_id.is_not_null(), frame["capture_range_id"]).alias("capture_range_id")
        )

    def compute_copied_ranges(self, columns: Sequence[str]) -> pl.DataFrame:
        """Return the copied ranges.

        Args:
            columns: Names of the columns of the table ``nvtx_ranges``, or ``captured_range_id``.

        Returns:
            One row per copied range, in the order of the calls of replays and then of starts.
        """
        copies = self.layout.copies
        rows = self._correlation.ranges.push_pop_ranges["row"].gather(copies["range_row"])
        read = ["range_id", *(c for c in columns if c not in {COPY_OF, "range_id", "end_thread_id", *THREAD, *_TIMES})]
        copied = self.frames(RANGES).select(read).collect().select(pl.all().gather(rows))
        copied = copied.rename({"range_id": COPY_OF}).hstack(copies.select(*THREAD, *_TIMES))
        new_ids = pl.int_range(self._first_new_id, self._first_new_id + copies.height, eager=True)
        return copied.with_columns(range_id=new_ids, end_thread_id=pl.lit(None, pl.Int64)).select(columns)

    @functools.cached_property
    def layout(self) -> ReplayLayout:
        """The copied ranges and the moved launches of all activities, in the order of the tables ``OPERATIONS``."""
        activities = [
            pl.DataFrame({"call": self._correlation.activities(t).call_row_number, "place": self._nodes.find_rows(t)})
            for t in OPERATIONS
        ]
        calls = self.frames("api_calls").select(*THREAD, *_TIMES).collect()
        layout = place_ranges(pl.concat(activities), calls, self._places.ranges, self._places)
        self._warn_about_replays_without_layers(layout)
        return layout

    def _warn_about_replays_without_layers(self, layout: ReplayLayout) -> None:
        """Warn about replays whose layers are not known, or in which there is no place for ranges."""
        nodes = [self.frames(t).select(is_node=pl.col("graph_node_id").is_not_null()).collect() for t in OPERATIONS]
        known = [self._nodes.compute_columns(t, ["capture_confidence"]) for t in OPERATIONS]
        is_known = pl.concat(known)["capture_confidence"].is_not_null()
        node_count = int(pl.concat(nodes)["is_node"].sum())
        unknown = node_count - int(is_known.sum())
        if unknown:
            warn(describe_unknown_layers(unknown, node_count))
        if layout.whole_count:
            warn(describe_whole_replays(layout.whole_count, layout.replay_count))
        wholes = self.frames("graph_launches").select(
            pl.len(), pl.struct("process_id", "graph_id").n_unique().alias("graphs")
        )
        executions, graphs = wholes.collect().row(0)
        if executions:
            warn(describe_whole_graphs(executions, graphs))

    @functools.cached_property
    def _launches(self) -> dict[str, pl.DataFrame]:
        """The moved launches of the activities of each table."""
        counts = [self.frames(t).select(pl.len()).collect().item() for t in OPERATIONS]
        starts = [sum(counts[:i]) for i in range(len(counts))]
        return {
            table: self.layout.launches.slice(start, count)
            for table, start, count in zip(OPERATIONS, starts, counts, strict=True)
        }

    @functools.cached_property
    def _places(self) -> Places:
        """The points in time at which the program created the nodes of graphs."""
        ranges, creations = self._correlation.ranges, self._nodes.creations
        return Places(
            creations.calls.with_columns(range_row=creations.range_row),
            ranges.push_pop_ranges.select(*THREAD, *_TIMES),
            ranges.find_outer_rows,
            has_own_ranges=True,
        )

    @functools.cached_property
    def _first_new_id(self) -> int:
        """Id of the first copied range, after the ids of all recorded ranges."""
        last = self.frames(RANGES).select(pl.col("range_id").max()).collect().item() or 0
        if last > _MAX_ID - self.layout.copies.height - 1:
            raise TracekitError(
                f"range {last} has the last id, so ranges cannot be copied", hint="load the capture without layers"
            )
        return int(last) + 1

    @functools.cached_property
    def _correlation(self) -> Correlation:
        return Correlation(self.frames)

    @property
    def _nodes(self) -> CapturedNodes:
        return self._correlation.captured_nodes
