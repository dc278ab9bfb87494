"""Build the nodes of the graph and their inputs.

A capture does not record which op produced a tensor, so only two kinds of inputs are known. The forward op is a data
input of its backward op. The op whose first instance immediately precedes the first instance of another op on the same
thread is a control input of that other op.
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

ELEMENT_BYTES = {
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    **dict.fromkeys(("int8", "uint8", "bool"), 1),
    "complex128": 16,
}
"""Size of an element in bytes, keyed by data type."""
_OP_COLUMNS = ("op_id", "op_name", "op_type", "direction", "data_type", "tensor_core_support")
_THREAD = ["process_id", "thread_id"]
_LIMIT = 1 << 62
_SHAPES = pl.List(pl.List(pl.Int64))


def build_op_nodes(rollup: Rollup) -> pl.DataFrame:
    """Return one graph node for each op.

    Returns:
        One row per op, in order of its first start: ``op`` (row number in ``Rollup.ops``), ``name`` (name of the node),
        ``op_id``, ``op_name``, ``op_type``, ``direction``, ``data_type``, ``tensor_core_support`` and
        ``uses_tensor_cores`` as in the table ``ops``, ``device_id`` (the GPU on which the op spent the most time, or
        null), ``input_shapes`` (JSON), ``output_shapes`` (lists, or null) and ``output_bytes`` (null if unknown).
    """
    instances = rollup.measures.instances.with_columns(rollup.measures.formats_and_output_shapes["output_shapes"])
    first = instances.with_row_index("instance").filter(pl.col("index") == 0).sort("op")
    ops = tables.build_ops(rollup).select(*(pl.col(c).cast(pl.String) for c in _OP_COLUMNS), "uses_tensor_cores")
    rows = ops.hstack(first.select("op", "start_ns", "input_shapes", "output_shapes"))
    rows = rows.with_columns(name=names.choose_op_node_names(ops)).sort("start_ns", "op")
    rows = rows.join(_find_main_devices(rollup), on="op", how="left", maintain_order="left")
    return rows.with_columns(_build_output_shape_columns(rows)).drop("start_ns")


def build_node_inputs(rollup: Rollup, nodes: pl.DataFrame) -> pl.DataFrame:
    """Return the data and control inputs of graph nodes.

    Returns:
        One row per input in order of nodes, with data inputs before control inputs: ``node`` and ``input`` (row numbers
        in ``nodes``), ``is_control``.
    """
    instances = rollup.measures.instances
    first = instances.filter(pl.col("index") == 0).sort("op").select("op", *_THREAD, "forward")
    rows = nodes.select("op").with_row_index("node").join(first, on="op", how="left", maintain_order="left")
    rows = rows.with_columns(pl.col("node").cast(pl.Int64), source_op=instances["op"].gather(rows["forward"]))
    sources = rows.select(input="node", source_op="op")
    data = rows.select("node", "source_op").join(sources, on="source_op").drop("source_op")
    control = rows.select("node", input=pl.col("node").shift(1).over(_THREAD)).drop_nulls()
    both = [f.select("node", "input", is_control=pl.lit(c)) for f, c in ((data, False), (control, True))]
    return pl.concat(both).filter(pl.col("node") != pl.col("input")).sort("node", "is_control")


def _find_main_devices(rollup: Rollup) -> pl.DataFrame:
    """Return the GPU on which each op spent the most time: ``op``, ``device_id``."""
    busy = rollup.measures.gpu_busy_times
    times = busy.select("device_id", op=rollup.measures.instances["op"].gather(busy["instance"]), ns=_DURATION)
    spent = times.group_by("op", "device_id").agg(pl.col("ns").sum()).sort("op", -pl.col("ns"), "device_id")
    return spent.unique("op", keep="first", maintain_order=True).select("op", "device_id")


def _build_output_shape_columns(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the columns ``output_shapes`` (lists) and ``output_bytes``, which is null if the data type is unknown."""
    described = rows.select(pl.col("output_shapes", "data_type").cast(pl.String))
    distinct = described.filter(pl.col("output_shapes").is_not_null()).unique(maintain_order=True)
    shapes = [parse_shapes(string) for string in distinct["output_shapes"]]
    sizes = [
        _compute_total_bytes(s, ELEMENT_BYTES.get(kind)) for s, kind in zip(shapes, distinct["data_type"], strict=True)
    ]
    parsed = {"shapes": pl.Series(shapes, dtype=_SHAPES), "output_bytes": pl.Series(sizes, dtype=pl.Int64)}
    joined = described.join(
        distinct.with_columns(**parsed), on=described.columns, how="left", maintain_order="left", nulls_equal=True
    )
    return joined.select("output_bytes", output_shapes="shapes")


def _compute_total_bytes(shapes: list[list[int]], element_bytes: int | None) -> int | None:
    """Return the total size of tensors in bytes, or None if it is 0, too large or unknown."""
    total = sum(math.prod(s) for s in shapes) * (element_bytes or 0)
    return total if 0 < total < _LIMIT else None


def parse_shapes(string: str | None) -> list[list[int]]:
    """Return the shapes in a JSON list, or an empty list if the string is not a JSON list of shapes."""
    try:
        value = json.loads(string) if string else []
    except (ValueError, RecursionError):
        return []
    shapes = value if isinstance(value, list) else []
    valid = all(isinstance(s, list) and all(isinstance(d, int) and 0 <= d < _LIMIT for d in s) for s in shapes)
    return shapes if valid else []


_DURATION = pl.col("end_ns") - pl.col("start_ns")
