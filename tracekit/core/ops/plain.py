"""Plain nested ranges, as users of Nsight Systems write them: every push/pop range is an op, its path the op's name.

The type of the op is the text of the range, so calls from different places are told apart by name and counted by type.
Steps that are called by their number are one op. A ``/`` in the text of a range, as in the path of a file, is no level:
only ranges that nest make levels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.core.ops.dialect import Capture, Dialect, Timeline, instances, path_parts

if TYPE_CHECKING:
    import polars as pl


def _recognises(_texts: pl.DataFrame) -> bool:
    return True


def _timeline(capture: Capture) -> Timeline:
    parent = capture.nested.parent
    tree, named = path_parts(parent, capture.ranges["text"])
    found = capture.ranges.select(
        *["start_ns", "end_ns", "process_id", "thread_id", "range_id"],
        parent=parent,
        op_name=named["path"],
        op_type=named["label"].str.strip_suffix(" *"),
        node=named["node"],
    )
    return Timeline(instances(found), tree=tree)


DIALECT = Dialect("plain", "Nested ranges of any program: the path of a range is its op.", _recognises, _timeline)
