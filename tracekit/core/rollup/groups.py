"""Group nodes: the inner nodes of the tree of op names, with the totals of what is below them.

Metrics of a group have one value an aggregated iteration in which it has instances. CPU, API time and CPU overhead are
sums over its instances. GPU time is, device by device, how long anything of the group ran; GPU idle how long a stretch
from the first to the last activity of one of its instances was open and nothing of the group ran.

What other threads ran during a step of the loop lies below that step (``grafts``). A scope has a group for each
direction of the ops in it, the whole model one for all. DLProf moves nothing, knows no directions, and takes every "/"
in the name of an op for a level; ``Style`` says which is meant.

Sums and unions are made from the deepest level upwards: those of a group are those of the groups and ops right below
it, so that what is held at a time is in proportion to groups and ops.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import polars as pl

from tracekit.core import intervals
from tracekit.core.rollup import grafts, statistics
from tracekit.core.rollup.measures import METRICS
from tracekit.core.trees import Tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracekit.core.iterations import Iterations
    from tracekit.core.ops import Ops
    from tracekit.core.rollup.measures import Measures

Style = Literal["extended", "dlprof"]
_SUMMED = ("cpu", "api", "overhead")
_COUNTED = ("op_count", "instance_count", "eligible_count", "uses_tc_count")
_LENGTH = (pl.col("end_ns") - pl.col("start_ns")).sum()
_GROUP = ["node", "direction"]
_CELL = [*_GROUP, "iteration"]
_DIRECTIONS = {"fprop": 1, "bprop": 2}


def groups(
    measures: Measures, iterations: Iterations, devices: pl.Series, ops: pl.DataFrame, style: Style = "extended"
) -> pl.DataFrame:
    """Sum up groups.

    Args:
        measures: The ops, measured.
        iterations: The iterations.
        devices: Devices that count for GPU time.
        ops: One row an op: ``count`` (instances that are aggregated), ``eligible``, ``uses_tc``.
        style: Whether groups are those of DLProf.

    Returns:
        One row a group in order of its path (by bytes) and direction, the whole model (``path`` "") first: ``path``,
        ``level``, ``direction``, ``parent`` (row of this frame), ``op_count``, ``instance_count``, ``eligible_count``,
        ``uses_tc_count``, and the statistics of ``METRICS``.
    """
    tree, of = placed(measures.ops, style, iterations.key)
    iteration = iterations.of(measures.ops.instances)
    active = ops.select(
        op_count=pl.lit(1, pl.Int64),
        instance_count=pl.col("count"),
        eligible_count=(pl.col("eligible") & (pl.col("count") > 0)).cast(pl.Int64),
        uses_tc_count=pl.col("uses_tc").cast(pl.Int64),
    )
    counted = pl.concat(from_below(tree, of.hstack(active), _sum(_GROUP, _COUNTED)))
    work = _Work(tree, of.select(pl.all().gather(measures.instances["op"])).with_columns(iteration=iteration))
    found = statistics.by(work.cells(measures, devices), _GROUP, METRICS)
    whole = counted.join(found, on=_GROUP, how="left").with_columns(statistics.blank(METRICS))
    return _described(tree, whole)


def placed(ops: Ops, style: Style, key: str) -> tuple[Tree, pl.DataFrame]:
    """Find the group that each op lies in.

    Returns:
        The tree, and one row an op: ``node`` (of the tree) and ``direction`` (its number, 0 for none).
    """
    rows, tree = ops.ops, Tree.root()
    name = rows["op_name"].cast(pl.String)
    if style == "dlprof":
        tree, node = tree.grown(pl.zeros(rows.height, pl.Int64, eager=True), name)
        direction = pl.zeros(rows.height, pl.Int64, eager=True)
    else:
        flat = rows["node"].is_null()
        split = name.filter(flat)
        tree, grown = (ops.timeline.tree or tree).grown(pl.zeros(len(split), pl.Int64, eager=True), split)
        tree, node = grafts.below_steps(ops, key, tree, rows["node"].scatter(flat.arg_true(), grown))
        direction = rows["direction"].cast(pl.String).replace_strict(_DIRECTIONS, default=0, return_dtype=pl.Int64)
    group = tree.nodes["up"].gather(node).fill_null(0)
    at_root = group == 0
    return tree, pl.DataFrame({"node": group, "direction": direction.zip_with(~at_root, direction * 0)})


def from_below(
    tree: Tree, rows: pl.DataFrame, merged: Callable[[pl.DataFrame], pl.DataFrame]
) -> Iterator[pl.DataFrame]:
    """Merge what lies right in each group with what lies in the groups below it.

    Args:
        tree: The tree.
        rows: Columns of ``_GROUP`` and others.
        merged: Merges rows of the same group.

    Yields:
        The merged rows of the groups of a level, from the deepest level to the root.
    """
    levels = rows.with_columns(_level=tree.nodes["level"].gather(rows["node"]))
    of_level = levels.partition_by("_level", as_dict=True, include_key=False)
    below = rows.clear()
    for level in range(max((n for (n,) in of_level), default=0), -1, -1):
        here = merged(pl.concat([of_level.pop((level,), rows.clear()), below]))
        yield here
        below = here.with_columns(node=tree.nodes["up"].gather(here["node"]))
        below = below.with_columns(direction=0) if level == 1 else below
        below = below.cast({"direction": pl.Int64})


def _sum(keys: list[str], values: tuple[str, ...]) -> Callable[[pl.DataFrame], pl.DataFrame]:
    return lambda rows: rows.group_by(keys).agg(pl.col(values).sum())


def _described(tree: Tree, whole: pl.DataFrame) -> pl.DataFrame:
    """Add paths, levels, directions and parents, and put groups in order."""
    paths = tree.paths(wanted=whole["node"])
    path, level, up = (s.gather(whole["node"]) for s in (paths, tree.nodes["level"], tree.nodes["up"]))
    named = {number: name for name, number in _DIRECTIONS.items()}
    rows = whole.with_columns(
        path=pl.when(level > 0).then(path + "/").otherwise(pl.lit("")),
        level=level,
        up=up,
        upper=pl.when(level > 1).then("direction").otherwise(pl.lit(0, pl.Int64)),
    ).sort("path", "direction", "node")
    places = rows.select(up="node", upper="direction", parent=pl.int_range(pl.len()))
    rows = rows.join(places, on=["up", "upper"], how="left", maintain_order="left")
    direction = pl.col("direction").replace_strict(named, default=None, return_dtype=pl.String)
    first = ["path", "level", "direction", "parent", *_COUNTED]
    return rows.with_columns(direction=direction).select(*first, pl.exclude(*first, *_GROUP, "up", "upper"))


@dataclass(frozen=True, slots=True)
class _Work:
    """The instances of ops with the group that each lies in.

    Attributes:
        tree: The tree of groups.
        instances: One row per instance: ``_CELL``; ``iteration`` is null where it is not aggregated.
    """

    tree: Tree
    instances: pl.DataFrame

    def cells(self, measures: Measures, devices: pl.Series) -> pl.DataFrame:
        """Measure each group in each iteration: columns of ``_CELL`` and ``METRICS``."""
        rows = self.instances.hstack(measures.instances.select(_SUMMED)).drop_nulls("iteration")
        summing = _sum(_CELL, _SUMMED)
        summed = pl.concat(from_below(self.tree, summing(rows), summing))
        work, spans = (self.lengths(s, devices, n) for s, n in ((measures.busy, "gpu"), (measures.spans, "span")))
        both = summed.join(work, on=_CELL, how="left").join(spans, on=_CELL, how="left")
        both = both.with_columns(pl.col("gpu", "span").fill_null(0))
        return both.select(*_CELL, *_SUMMED, "gpu", idle=pl.col("span") - pl.col("gpu"))

    def lengths(self, stretches: pl.DataFrame, devices: pl.Series, name: str) -> pl.DataFrame:
        """Measure the unions of stretches by group and iteration, summed over devices: ``_CELL`` and ``name``."""
        known = stretches.filter(pl.col("device_id").is_in(devices.implode()))
        rows = self.instances.select(pl.all().gather(known["instance"])).hstack(known.drop("instance"))
        by = [*_CELL, "device_id"]
        rows = rows.drop_nulls("iteration").select(*by, "start_ns", "end_ns")
        levels = from_below(self.tree, rows, lambda some: intervals.merge(some, by=by))
        return pl.concat([level.group_by(_CELL).agg(_LENGTH.alias(name)) for level in levels])
