"""Parse plain nested ranges, as users of Nsight Systems write them. Each push/pop range is an op named after its path.

The type of an op is the name of its range, so the same call at several places in the program gives several ops of one
type. Steps that differ only in their number are one op. A ``/`` in the name of a range, such as in a file path, does
not start a new level, because only nested ranges form levels.

The frames of Python's call stack that the PyTorch profiler records (``with_stack=True``) are scopes. They are part of
the paths of the ops inside them, but are not ops themselves.
"""

from __future__ import annotations

import polars as pl

from tracekit.core.ops.dialect import (
    PYTHON_FUNCTIONS,
    Dialect,
    DialectTables,
    Timeline,
    build_op_tree_and_paths,
    build_timeline_instances,
    select_ops,
)
from tracekit.core.ops.step_names import remove_star_expr
from tracekit.core.relations import THREAD


def _matches_every_capture(_texts: pl.DataFrame) -> bool:
    return True


def _build_timeline(capture: DialectTables) -> Timeline:
    parent, ranges = capture.nested_ranges.parent, capture.ranges
    tree, paths = build_op_tree_and_paths(parent, ranges["text"], ranges.select(THREAD))
    rows = ranges.hstack(paths).select(
        *["start_ns", "end_ns", *THREAD, "range_id"],
        parent=parent,
        op_name="path",
        op_type=remove_star_expr(pl.col("label")),
        node="node",
    )
    is_op = ranges.select((pl.col("domain") != PYTHON_FUNCTIONS).fill_null(value=True)).to_series()
    if not is_op.all():
        rows = select_ops(rows, is_op)
    return Timeline(build_timeline_instances(rows), tree=tree)


DIALECT = Dialect(
    "plain",
    "Nested ranges of any program. Each range is an op, named after its path.",
    _matches_every_capture,
    _build_timeline,
)
