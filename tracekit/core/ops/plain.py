"""Parse plain nested ranges, as users of Nsight Systems write them. Each push/pop range is an op named after its path.

The type of an op is the name of its range, so the same call at several places in the program gives several ops of one
type. Steps that differ only in their number are one op. A ``/`` in the name of a range, such as in a file path, does
not start a new level, because only nested ranges form levels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.core.ops.dialect import Capture, Dialect, Timeline, build_op_tree_and_paths, build_timeline_instances

if TYPE_CHECKING:
    import polars as pl


def _matches_every_capture(_texts: pl.DataFrame) -> bool:
    return True


def _build_timeline(capture: Capture) -> Timeline:
    parent = capture.nested_ranges.parent
    tree, paths = build_op_tree_and_paths(parent, capture.ranges["text"])
    rows = capture.ranges.select(
        *["start_ns", "end_ns", "process_id", "thread_id", "range_id"],
        parent=parent,
        op_name=paths["path"],
        op_type=paths["label"].str.strip_suffix(" *"),
        node=paths["node"],
    )
    return Timeline(build_timeline_instances(rows), tree=tree)


DIALECT = Dialect(
    "plain",
    "Nested ranges of any program. Each range is an op, named after its path.",
    _matches_every_capture,
    _build_timeline,
)
