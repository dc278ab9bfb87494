"""Define dialects, which describe how each framework writes its ops into NVTX ranges.

A dialect is a module that ends in ``DIALECT = Dialect(...)`` and is listed in ``tracekit.core.ops.DIALECTS``. It
converts the ranges of a capture into a ``Timeline`` with one row per op instance. All later steps are the same for
every dialect: ``attach`` attributes API calls to the instances, and ``identity`` groups the instances that form one op
and numbers the ops.

To write a dialect:

1. Write ``matches``, which takes the distinct names of the ranges in the capture and returns whether they follow this
   dialect.
2. Write ``timeline``, which takes the ``DialectTables`` and returns a ``Timeline``. ``build_timeline_instances`` adds
   missing columns of ``INSTANCE`` as nulls and sorts the rows.
3. Parse each distinct name once (``add_parsed_names``), not once per range, and never evaluate a name as code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import polars as pl

from tracekit.core import trees
from tracekit.core.correlate import Ranges
from tracekit.core.ops.step_names import label_ranges
from tracekit.core.relations import THREAD
from tracekit.core.series import select_by_string
from tracekit.core.trees import compute_depths, find_nearest_matching_rows
from tracekit.system.threads import unlocked_property

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracekit.core.correlate import Frames

INSTANCE: dict[str, Any] = {
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "process_id": pl.Int64(),
    "thread_id": pl.Int64(),
    "range_id": pl.Int64(),
    "parent": pl.Int64(),
    "op_name": pl.Categorical(),
    "op_type": pl.Categorical(),
    "direction": pl.Categorical(),
    "stack_trace": pl.Categorical(),
    "data_type": pl.Categorical(),
    "input_names": pl.Categorical(),
    "input_shapes": pl.Categorical(),
    "parameters": pl.Categorical(),
    "sequence_number": pl.Int64(),
    "forward": pl.Int64(),
    "ends_iteration": pl.Boolean(),
    "node": pl.Int64(),
}
"""Columns of a timeline.

``parent`` and ``forward`` are row numbers of the same frame. ``parent`` is the enclosing instance on the same thread.
If the instance is a backward pass, ``forward`` is the instance of the corresponding forward op. ``op_name`` is a path
whose parts are separated by ``/``. ``input_names``, ``input_shapes`` and ``parameters`` are JSON without spaces.
``ends_iteration`` is true for the op that computes all gradients. ``node`` is the node of the op in the tree of the
timeline. If it is null, ``op_name`` is split at ``/`` instead.
"""


@dataclass(frozen=True)
class Timeline:
    """The op instances of a capture, with the same columns for all dialects.

    Attributes:
        instances: One row per instance, with the columns of ``INSTANCE``. Rows are in order of start, the longest first
            if starts are equal.
        folding: How instances are grouped into ops. With ``path``, all instances with the same op name form one op.
            With ``occurrence``, instances with the same op name and stack trace are numbered within each iteration, and
            those with the same number form one op. An iteration ends with the op that computes all gradients.
        has_arguments: Whether ``input_shapes`` and ``parameters`` are the arguments of the op in order, so that the
            shape of its result can be derived.
        config: The settings of the profiled program that were recorded in its ranges, keyed by name.
        tree: The tree of op names, or None if instances have no ``node``. A "/" in the name of a range does not start
            a new level of this tree.
    """

    instances: pl.DataFrame
    folding: Literal["path", "occurrence"] = "path"
    has_arguments: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
    tree: trees.Tree | None = None


@dataclass(frozen=True)
class DialectTables:
    """The tables of a capture, and data derived from them that several dialects need. Derived data is cached.

    Attributes:
        frames: Function that returns the declared table with a given name.
    """

    frames: Frames

    @unlocked_property
    def ranges(self) -> pl.DataFrame:
        """The push/pop ranges in file order.

        The columns are ``start_ns``, ``end_ns``, ``process_id``, ``thread_id``, ``range_id``, ``domain`` and ``text``
        (name of the range). The end of a range that was not closed is ``last_ns``.
        """
        columns = ["start_ns", "end_ns", *THREAD, "range_id", "domain", pl.col("name").alias("text")]
        ranges = self.frames("nvtx_ranges").filter(pl.col("kind") == "push_pop").select(columns).collect()
        return ranges.with_columns(pl.col("end_ns").fill_null(self.last_ns))

    @unlocked_property
    def texts(self) -> pl.DataFrame:
        """The distinct names of push/pop ranges: ``domain`` and ``text``, both String."""
        domain, text = (pl.col(c).to_physical().cast(pl.UInt64).fill_null(_NO_CODE) for c in ("domain", "text"))
        is_first = (domain * (_NO_CODE + 1) + text).is_first_distinct()
        return self.ranges.select("domain", "text").filter(is_first).cast(pl.String)

    @unlocked_property
    def nested_ranges(self) -> Ranges:
        """The nesting of the push/pop ranges, with the same rows as ``DialectTables.ranges``, in the same order."""
        return Ranges(self.frames)

    @unlocked_property
    def last_ns(self) -> int:
        """The latest start or end of any NVTX range or API call, in ns."""
        ends = [self.frames(t).select(pl.max_horizontal(pl.col("start_ns", "end_ns").max())) for t in _TIMED]
        last = pl.concat([e.collect().to_series().alias("end") for e in ends]).max()
        return last if isinstance(last, int) else 0

    def select_ranges_by_name(self, names: pl.Series) -> pl.DataFrame:
        """Return the push/pop ranges with the given names, in order of start, the longest first if starts are equal."""
        ranges = self.ranges.filter(pl.col("text").is_in(names.cast(pl.Categorical).implode()))
        return ranges.sort("start_ns", "end_ns", descending=[False, True], maintain_order=True)


_TIMED = ("nvtx_ranges", "api_calls")
_NO_CODE = (1 << 32) - 1
_EXAMINED = 1 << 14


class Dialect(NamedTuple):
    """The conventions by which a framework writes its ops into NVTX ranges.

    Attributes:
        name: Kebab-case name, as in ``--dialect``.
        doc: One-line description of the ranges.
        matches: Function that takes the distinct names of ranges (``DialectTables.texts``), and returns whether they
            follow this dialect.
        timeline: Function that takes a capture, and returns its op instances as a ``Timeline``.
        key_op: Default key op, which delimits iterations: ``backward`` (the op of the backward pass, which ends
            iterations) or ``repeats`` (a range that repeats, which begins iterations).
    """

    name: str
    doc: str
    matches: Callable[[pl.DataFrame], bool]
    timeline: Callable[[DialectTables], Timeline]
    key_op: Literal["backward", "repeats"] = "repeats"


def build_timeline_instances(rows: pl.DataFrame) -> pl.DataFrame:
    """Convert op instances to the form that ``Timeline.instances`` requires.

    Missing columns of ``INSTANCE`` are added as nulls. Rows are sorted by start, the longest first if starts are equal.

    Args:
        rows: ``start_ns``, ``end_ns``, ``process_id``, ``thread_id``, ``op_name``, ``op_type`` and any other columns of
            ``INSTANCE``. ``parent`` and ``forward`` are row numbers of this frame.

    Returns:
        The sorted rows. ``parent`` and ``forward`` are row numbers of the sorted frame.
    """
    missing = [pl.lit(None, t).alias(c) for c, t in INSTANCE.items() if c not in rows.columns]
    rows = rows.with_columns(*missing).select(pl.col(c).cast(t) for c, t in INSTANCE.items())
    rows = rows.with_columns(pl.col("ends_iteration").fill_null(False))  # noqa: FBT003
    order = rows.select(
        pl.arg_sort_by("start_ns", -pl.col("end_ns"), pl.int_range(pl.len())).cast(pl.Int64)
    ).to_series()
    new_row = pl.repeat(0, len(order), dtype=pl.Int64, eager=True)
    new_row = new_row.scatter(order, pl.int_range(len(order), eager=True))
    ordered = rows.select(pl.all().gather(order))
    return ordered.with_columns(new_row.gather(ordered[c]).alias(c) for c in ("parent", "forward"))


def match_any(texts: pl.DataFrame, condition: pl.Expr) -> bool:
    """Return whether any of the distinct names of ranges meets a condition. Later names are not examined."""
    return any(names.select(condition.any()).item() for names in texts.iter_slices(_EXAMINED))


def add_parsed_names(ranges: pl.DataFrame, parsed: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges, in the same order, with the columns that were parsed from their names.

    Args:
        ranges: The ranges, with the column ``text`` (Categorical).
        parsed: One row per distinct name: ``text`` (Categorical or String) and the parsed columns.
    """
    names, columns = parsed["text"].cast(pl.Categorical), parsed.drop("text")
    rows = select_by_string(pl.int_range(parsed.height, dtype=pl.UInt32, eager=True), names, ranges["text"])
    return ranges.hstack(columns.select(pl.all().gather(rows)))


PYTHON_FUNCTIONS = "python_function"
"""Domain of the ranges that are frames of Python's call stack."""


def select_ops(rows: pl.DataFrame, is_op: pl.Series) -> pl.DataFrame:
    """Return the ranges that are ops. The parent of each is its nearest ancestor that is an op."""
    nearest = find_nearest_matching_rows(rows["parent"], is_op).gather(rows["parent"])
    number = pl.Series(is_op.cum_sum().cast(pl.Int64) - 1)
    return rows.with_columns(parent=number.gather(nearest)).filter(is_op)


def build_op_tree_and_paths(
    parent: pl.Series, names: pl.Series, threads: pl.DataFrame
) -> tuple[trees.Tree, pl.DataFrame]:
    """Build the tree of op names of nested ranges. All steps of a loop have the same op name.

    Args:
        parent: Row number of the parent of each range, null for an outermost range.
        names: Name of each range.
        threads: Columns that identify the thread of each range.

    Returns:
        The tree of labels, and a frame with one row per range:

        - ``label`` (Categorical): name of the range, in which ``*`` may replace the numbers of a step, as in
          ``step_names.label_ranges``
        - ``path`` (Categorical): labels from the outermost range down to the range
        - ``node``: node of the range in the tree
    """
    label = label_ranges(parent, names, threads)
    tree, nodes = trees.build_range_tree(parent, compute_depths(parent), label)
    path = tree.build_paths().cast(pl.Categorical).gather(nodes)
    return tree, pl.DataFrame({"label": label, "path": path, "node": nodes})
