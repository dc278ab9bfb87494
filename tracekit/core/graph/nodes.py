"""Nodes and inputs of the graph.

Two kinds of inputs are known of a capture: a backward pass has the op of its forward pass as input, and an op has as
control input the one that was first called before it on its thread. Where tensors went is not recorded.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.graph import names
from tracekit.core.rollup import tables

if TYPE_CHECKING:
    from tracekit.core.rollup import Rollup

BYTES = {
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    **dict.fromkeys(("int8", "uint8", "bool"), 1),
    "complex128": 16,
}
"""Size of an element, by type."""
_SAID = ("op_id", "op_name", "op_type", "direction", "data_type", "tensor_core_support")
_THREAD = ["process_id", "thread_id"]
_LIMIT = 1 << 62
_SHAPES = pl.List(pl.List(pl.Int64))


def nodes(rollup: Rollup) -> pl.DataFrame:
    """Make a node of each op.

    Returns:
        One row an op in order of its first start: ``op`` (row of ``Rollup.ops``), ``name`` (of the node), ``op_id``,
        ``op_name``, ``op_type``, ``direction``, ``data_type``, ``tensor_core_support``, ``uses_tensor_cores`` as in
        ``ops``, ``device_id`` (where it spent most time; null if on none), ``input_shapes``, and of its results
        ``output_shapes`` (lists) and ``output_bytes``, null if not known.
    """
    found = rollup.measures.instances.with_columns(rollup.measures.described["output_shapes"])
    first = found.with_row_index("instance").filter(pl.col("index") == 0).sort("op")
    ops = tables.ops(rollup).select(*(pl.col(c).cast(pl.String) for c in _SAID), "uses_tensor_cores")
    rows = ops.hstack(first.select("op", "start_ns", "input_shapes", "output_shapes"))
    rows = rows.with_columns(name=names.of_ops(ops)).sort("start_ns", "op")
    rows = rows.join(_devices(rollup), on="op", how="left", maintain_order="left")
    return rows.with_columns(_results(rows)).drop("start_ns")


def inputs(rollup: Rollup, made: pl.DataFrame) -> pl.DataFrame:
    """List the inputs of nodes.

    Returns:
        One row an input, in order of nodes, of one node data before control: ``node`` and ``input`` (rows of
        ``nodes``), ``is_control``.
    """
    every = rollup.measures.instances
    first = every.filter(pl.col("index") == 0).sort("op").select("op", *_THREAD, "forward")
    rows = made.select("op").with_row_index("node").join(first, on="op", how="left", maintain_order="left")
    rows = rows.with_columns(pl.col("node").cast(pl.Int64), of=every["op"].gather(rows["forward"]))
    place = rows.select("node", of="op")
    data = rows.select("node", "of").join(place.rename({"node": "input"}), on="of").drop("of")
    before = rows.select("node", input=pl.col("node").shift(1).over(_THREAD)).drop_nulls()
    both = [f.select("node", "input", is_control=pl.lit(c)) for f, c in ((data, False), (before, True))]
    return pl.concat(both).filter(pl.col("node") != pl.col("input")).sort("node", "is_control")


def _devices(rollup: Rollup) -> pl.DataFrame:
    """Say on which device each op spent most time: ``op``, ``device_id``."""
    busy = rollup.measures.busy
    lasted = busy.select("device_id", op=rollup.measures.instances["op"].gather(busy["instance"]), ns=_LENGTH)
    spent = lasted.group_by("op", "device_id").agg(pl.col("ns").sum()).sort("op", -pl.col("ns"), "device_id")
    return spent.unique("op", keep="first", maintain_order=True).select("op", "device_id")


def _results(rows: pl.DataFrame) -> pl.DataFrame:
    """Shapes of the results of nodes as lists, and their size where the type is known too."""
    asked = rows.select(pl.col("output_shapes", "data_type").cast(pl.String))
    distinct = asked.filter(pl.col("output_shapes").is_not_null()).unique(maintain_order=True)
    shapes = [shapes_of(text) for text in distinct["output_shapes"]]
    sizes = [_size(s, BYTES.get(kind)) for s, kind in zip(shapes, distinct["data_type"], strict=True)]
    made = {"shapes": pl.Series(shapes, dtype=_SHAPES), "output_bytes": pl.Series(sizes, dtype=pl.Int64)}
    found = asked.join(
        distinct.with_columns(**made), on=asked.columns, how="left", maintain_order="left", nulls_equal=True
    )
    return found.select("output_bytes", output_shapes="shapes")


def _size(shapes: list[list[int]], element: int | None) -> int | None:
    total = sum(math.prod(s) for s in shapes) * (element or 0)
    return total if 0 < total < _LIMIT else None


def shapes_of(text: str | None) -> list[list[int]]:
    """Parse shapes; none if they are not shapes."""
    try:
        found = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return []
    shapes = found if isinstance(found, list) else []
    right = all(isinstance(s, list) and all(isinstance(d, int) and 0 <= d < _LIMIT for d in s) for s in shapes)
    return shapes if right else []


_LENGTH = pl.col("end_ns") - pl.col("start_ns")
