"""Inputs of nodes as edges.

An input is written ``NAME`` (of output 0), ``NAME:OUTPUT`` or ``^NAME`` (control); in the body of a function
``NAME:ARGUMENT:OUTPUT`` or the name of an argument of the function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa

from tracekit.readers.tensorflow.fields import texts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.readers.common.protobuf.decoding import Buffer, Places
    from tracekit.readers.common.protobuf.occurrences import Occurrences


def edges(buffer: Buffer, inputs: Occurrences, owners: Places, nodes: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    """Make edges: m inputs of n nodes in, m rows out.

    Args:
        buffer: Holds the inputs.
        inputs: Where they are, and whose.
        owners: Number of the graph, or of the function, that each node belongs to.
        nodes: Columns of the nodes: ``name``, ``graph``, ``run``.
    """
    target = pa.array(inputs.rows)
    parts = _parts(texts(buffer, inputs.starts, inputs.stops))
    control = parts["control"].to_numpy()
    known = (
        pl.DataFrame({"owner": owners, "name": pl.from_arrow(nodes["name"])})
        .with_row_index("source")
        .unique(("owner", "name"), keep="first")
    )
    wanted = parts.select("name", owner=pl.Series(owners[inputs.rows], dtype=pl.Int64))
    found = wanted.join(known, ["owner", "name"], "left", maintain_order="left")
    return {
        "edge_id": pa.array(np.arange(len(inputs))),
        "run": nodes["run"].take(target),
        "graph": nodes["graph"].take(target),
        "source": found["source"].cast(pl.Int64).to_arrow(),
        "source_name": _texts(parts["name"]),
        "source_argument": _texts(parts["argument"]),
        "source_output": parts["output"].to_arrow(),
        "target": target,
        "target_input": _numbers(inputs.rows, control),
        "control": pa.array(control),
    }


def _parts(inputs: pa.Array) -> pl.DataFrame:
    """Take inputs apart: control, name, argument, output."""
    text = pl.DataFrame({"text": pl.from_arrow(inputs)}, schema={"text": pl.String})
    split = text.select(
        control=pl.col("text").str.starts_with("^"),
        parts=pl.col("text").str.strip_prefix("^").str.splitn(":", 3),
    ).unnest("parts")
    plain = pl.col("field_1").str.contains(r"^\d+$") & pl.col("field_2").is_null()
    number = pl.when(plain).then("field_1").otherwise("field_2").cast(pl.Int32, strict=False)
    return split.select(
        "control",
        name=pl.col("field_0"),
        argument=pl.when(~plain).then("field_1"),
        output=pl.when(~pl.col("control")).then(pl.coalesce(number, pl.lit(0, pl.Int32))),
    )


def _numbers(rows: Places, control: np.ndarray) -> pa.Array:
    """Number the inputs of each node that are not control dependencies."""
    data = ~control
    before = np.cumsum(data) - data
    first = np.searchsorted(rows, rows)
    return pa.array((before - before[first] if len(rows) else before).astype(np.int32), mask=control)


def _texts(column: pl.Series) -> pa.Array:
    return column.to_arrow().cast(pa.string())
