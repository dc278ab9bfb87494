"""Find the ops of a capture. An op is an operation that a framework executed, with its API calls and GPU activities.

- ``dialect``: definition of a dialect, which parses the ranges of one framework in a module of its own
- ``calls``: pairs of API calls and GPU activities
- ``attach``: attribution of API calls to op instances
- ``identity``: grouping of op instances into ops, and ids of ops
- ``shapes``: shapes of results
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tracekit.core.ops import emit_nvtx, identity, nccl, plain, pyprof, tensorflow, tensorrt, xla
from tracekit.core.ops.attach import (
    COLUMNS,
    AttributedCalls,
    find_instances_of_calls,
    find_instances_of_launches,
    pair_calls_with_activities,
)
from tracekit.core.ops.dialect import INSTANCE, Dialect, DialectTables, Timeline
from tracekit.core.relations import LAUNCH
from tracekit.core.series import map_categories_expr, map_frame_blocks, spill_frame, string_ranks_expr
from tracekit.errors import UnknownFormatError, create_choices_hint
from tracekit.system.threads import unlocked_property

if TYPE_CHECKING:
    from tracekit.core.correlate import Frames

__all__ = ["DIALECTS", "Dialect", "DialectTables", "Ops", "Timeline", "find_dialect"]

_MODULES = (pyprof, emit_nvtx, tensorflow, tensorrt, xla, nccl, plain)
DIALECTS: dict[str, Dialect] = {m.DIALECT.name: m.DIALECT for m in _MODULES}
"""The dialects, keyed by name, in the order in which they are tried. The last one matches any ranges."""

UNASSOCIATED = "unassociated_"


def find_dialect(name: str) -> Dialect:
    """Return the dialect with a given name.

    Raises:
        UnknownFormatError: No dialect has this name.
    """
    try:
        return DIALECTS[name]
    except KeyError:
        raise UnknownFormatError(
            f"unknown dialect {name!r}", hint=create_choices_hint("dialects", DIALECTS, name)
        ) from None


@dataclass(frozen=True)
class Ops:
    """The ops of one capture. Each property except ``capture`` and ``calls`` is computed on first access and cached.

    Attributes:
        frames: Function that returns the declared table with a given name.
        name: Name of the dialect, or None for the first dialect in ``DIALECTS`` that matches the ranges.
    """

    frames: Frames
    name: str | None = None

    @property
    def capture(self) -> DialectTables:
        """The input of the dialects: the tables of the capture, and data that is derived from them.

        This property is not cached, because its data is only needed to find the op instances.
        """
        return DialectTables(self.frames)

    @property
    def dialect(self) -> Dialect:
        """The dialect of the capture."""
        return self._tables.dialect

    @property
    def timeline(self) -> Timeline:
        """The settings of the profiled program and the tree of op names, parsed from the NVTX ranges.

        The attribute ``instances`` of this timeline is empty. The op instances are in ``Ops.instances``.
        """
        return self._tables.timeline

    @property
    def calls(self) -> pl.DataFrame:
        """The API calls that are attributed to an op instance.

        The columns are those of ``calls.pair_calls_with_activities``, and ``instance`` (row number of the op instance).
        All columns are computed on each access. To compute only some columns, call ``select_calls``.
        """
        return self.select_calls(*COLUMNS, "instance")

    def select_calls(self, *columns: str, rows: pl.Series | None = None) -> pl.DataFrame:
        """Return selected columns and rows of ``calls``.

        Args:
            columns: Names of the columns.
            rows: Row numbers of the calls to return, or None for all rows.
        """
        return self._tables.calls.select(columns, rows)

    @property
    def instances(self) -> pl.DataFrame:
        """All op instances. The last ones are unassociated: they represent API calls outside of all ops.

        The columns are those of ``INSTANCE``, and:

        - ``associated``: false for unassociated instances
        - ``op``: row number in ``ops``
        - ``index``: number of the instance within its op, from 0 in order of start

        ``op_type`` is the type of the op.
        """
        return self._tables.instances

    @property
    def ops(self) -> pl.DataFrame:
        """The ops, in order of name and id, with the properties of their first instance.

        Columns: ``op_id``, ``op_name``, ``op_type``, ``direction``, ``data_type``, ``stack_trace``, ``input_shapes``,
        ``parameters``, ``node``, ``ends_iteration``, ``associated``, ``instance_count``.
        """
        return self._tables.ops

    @unlocked_property
    def _tables(self) -> _Tables:
        """The dialect, timeline, op instances, ops and API calls. Intermediate data is freed."""
        dialect, timeline = self._find_dialect_and_build_timeline()
        instances, calls = _attribute_calls_to_instances(pair_calls_with_activities(self.frames), timeline.instances)
        instances, ops = _assign_instances_to_ops(instances, timeline.folding)
        stored = AttributedCalls.from_rows(self.frames, calls)
        timeline = replace(timeline, instances=timeline.instances.clear())
        return _Tables(dialect, timeline, spill_frame(instances), ops, stored)

    def _find_dialect_and_build_timeline(self) -> tuple[Dialect, Timeline]:
        """Return the dialect of the capture, and the timeline with the op instances."""
        capture = self.capture
        if self.name is not None:
            dialect = find_dialect(self.name)
        else:
            dialect = next(d for d in DIALECTS.values() if d.matches(capture.texts))
        return dialect, dialect.timeline(capture)


class _Tables(NamedTuple):
    """The dialect, timeline, op instances, ops and API calls of a capture, which ``Ops`` computes together."""

    dialect: Dialect
    timeline: Timeline
    instances: pl.DataFrame
    ops: pl.DataFrame
    calls: AttributedCalls


def _attribute_calls_to_instances(
    calls: pl.DataFrame, timeline_instances: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Attribute API calls to op instances.

    Args:
        calls: The API calls, as ``pair_calls_with_activities`` returns them.
        timeline_instances: The op instances of the timeline.

    Returns:
        Two frames. The first one has all op instances. Those that represent API calls outside of all ops are at the
        end. The second one has the attributed calls, with the row number of their op instance in ``instance``.
    """
    moved = calls.clear()
    if LAUNCH in calls.columns:
        inside = find_instances_of_launches(calls, timeline_instances)
        moved = calls.with_columns(instance=inside).filter(inside.is_not_null())
        calls = calls.with_columns(pl.lit(None, pl.Int64).alias(LAUNCH)).filter(inside.is_null())
    is_first = calls["call"] != calls["call"].shift(1)  # pairs of one call follow each other
    is_first = is_first.fill_null(value=True)
    api_calls = map_frame_blocks(lambda block: calls[block].filter(is_first[block]), calls.height)
    has_work = api_calls.with_columns(has_work=pl.col("kind") != "call")
    owner = find_instances_of_calls(has_work, timeline_instances).with_columns(row=pl.int_range(pl.len()))
    roots = api_calls.filter(owner["root_call"] == owner["row"]).sort("call_id", descending=True)
    first = timeline_instances.height
    numbers = pl.repeat(None, api_calls.height, dtype=pl.Int64, eager=True)
    numbers = numbers.scatter(roots["call"], pl.int_range(roots.height, eager=True) + first)
    unassociated = numbers.gather(owner["root_call"]).alias("unassociated")
    instance = owner.select(pl.coalesce("instance", unassociated)).to_series()
    instances = pl.concat([timeline_instances, _build_unassociated_instances(roots)])

    def add_instances(block: slice) -> pl.DataFrame:
        rows = calls[block]
        return rows.with_columns(instance=instance.gather(rows["call"])).drop_nulls("instance")

    with_instance = map_frame_blocks(add_instances, calls.height)
    if moved.height:
        with_instance = pl.concat([with_instance, moved]).sort("call", maintain_order=True)
    return instances.with_columns(associated=pl.int_range(pl.len()) < first), with_instance


def _assign_instances_to_ops(instances: pl.DataFrame, folding: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Group op instances into ops.

    Returns:
        Two frames: the instances, with the row number of their op in ``op``, and the ops.
    """
    numbers = identity.assign_op_numbers(instances, folding)
    by_start = instances.select(row=pl.arg_sort_by("start_ns", maintain_order=True)).to_series()
    ordered = numbers["op"].gather(by_start)
    first = by_start.gather(ordered.arg_unique())
    texts = ["op_name", "op_type", "direction", "data_type", "stack_trace", "input_shapes", "parameters", "node"]
    ops = instances.select(pl.col(*texts, "ends_iteration", "associated").gather(first))
    ops = numbers.select(pl.col("op", "op_id").gather(first)).hstack(ops)
    counts = ordered.value_counts(name="instance_count").with_columns(pl.col("instance_count").cast(pl.Int64))
    ops = ops.join(counts, on="op", maintain_order="left").sort(string_ranks_expr(pl.col("op_name")), "op_id")
    op_row = pl.repeat(0, ops.height, dtype=pl.Int64, eager=True)
    op_row = op_row.scatter(ops["op"], pl.int_range(ops.height, eager=True))
    index = ordered.to_frame().select(pl.int_range(pl.len()).over("op")).to_series()
    op = op_row.gather(numbers["op"])
    indexed = instances.with_columns(op=op, index=pl.zeros(len(op), pl.Int64, eager=True).scatter(by_start, index))
    return indexed.with_columns(op_type=ops["op_type"].gather(op)), ops.drop("op")


def _build_unassociated_instances(roots: pl.DataFrame) -> pl.DataFrame:
    """Return one op instance, with the columns ``INSTANCE``, for each root call (an API call outside of all ops)."""
    name = pl.col("name").fill_null(pl.lit("", pl.Categorical))
    values = {
        "op_name": map_categories_expr(name, lambda text: UNASSOCIATED + text),
        "op_type": name,
        "stack_trace": pl.lit(""),
        "data_type": pl.lit(""),
        "ends_iteration": pl.lit(value=False),
    }
    rows = roots.with_columns(**values)
    empty = [pl.lit(None, t).alias(c) for c, t in INSTANCE.items() if c not in rows.columns]
    return rows.with_columns(empty).select(pl.col(c).cast(t) for c, t in INSTANCE.items())
