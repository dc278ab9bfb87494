"""Names of nodes: paths of ops in the letters that TensorFlow allows, each given once."""

from __future__ import annotations

import polars as pl

from tracekit.core.ops.identity import BACKWARD_SUFFIX

UNNAMED = "unnamed"
BACKWARD = "_bprop"
_MODULE = r"\b[A-Za-z_]\w*\[([^\[\]/]+)\]"
_OTHERS = r"[^A-Za-z0-9_.\-]+"


def of_ops(ops: pl.DataFrame) -> pl.Series:
    """Name the node of each op: n rows of ``op_id`` and ``op_name`` in, n different names out.

    A backward pass is called after its op. Of equal names the second, in order of the numbers of the ops, ends in
    ``_1``.
    """
    ids = ops["op_id"].cast(pl.String)
    forward = ids.str.strip_suffix(BACKWARD_SUFFIX)
    back = ids.str.ends_with(BACKWARD_SUFFIX) & forward.is_in(ids.implode())
    number = pl.col("id").str.extract(r"_(\d{1,18})(?:_BPROP)?$").cast(pl.Int64)
    rows = pl.DataFrame({"name": legal(ops["op_name"]), "id": ids, "back": back}).with_row_index("row")
    rows = rows.with_columns(name=pl.col("name") + pl.when("back").then(pl.lit(BACKWARD)).otherwise(pl.lit("")))
    rows = rows.sort(number, "id")
    return rows.with_columns(name=unique(rows["name"])).sort("row")["name"]


def legal(names: pl.Series) -> pl.Series:
    """Spell op names as TensorFlow allows names of nodes: n names in, n names out.

    What is not a letter, digit, ``_``, ``.`` or ``-`` becomes one ``_``, and nothing at the ends of a part:
    ``iteration */aten::mm`` becomes ``iteration/aten_mm``. Empty parts are left out. A name that is legal stays.
    """
    part = pl.element()
    spelt = part.str.replace(_OTHERS + "$", "").str.replace("^" + _OTHERS, "").str.replace_all(_OTHERS, "_")
    parts = pl.col("name").cast(pl.String).fill_null("").str.split("/")
    parts = parts.list.eval(pl.when(part == "").then(pl.lit("")).when(spelt == "").then(pl.lit("_")).otherwise(spelt))
    joined = parts.list.eval(part.filter(part != "")).list.join("/")
    begun = pl.when(joined.str.contains("^[_-]")).then("." + joined).otherwise(joined)
    found = names.to_frame("name").select(pl.when(joined == "").then(pl.lit(UNNAMED)).otherwise(begun))
    return found.to_series().alias(names.name)


def of_nodes(names: pl.Series) -> pl.Series:
    """Spell names of nodes as those of ops: n names in, n names out.

    PyTorch writes a module as its class and its name, ``Net/Conv2d[conv1]``: its name alone is kept, ``Net/conv1``.
    """
    return legal(names.cast(pl.String).str.replace_all(_MODULE, "$1"))


def unique(names: pl.Series) -> pl.Series:
    """Number names that come again, ``conv`` and ``conv_1``: n names in, n names out, all different."""
    rows = pl.DataFrame({"name": names, "row": range(len(names))})
    while True:
        again = pl.int_range(pl.len()).over("name")
        rows = rows.with_columns(again=again)
        if not (rows["again"] > 0).any():
            return rows.sort("row")["name"].alias(names.name)
        numbered = pl.when(pl.col("again") > 0).then(pl.format("{}_{}", "name", "again")).otherwise("name")
        rows = rows.sort("again", "row").with_columns(name=numbered)
