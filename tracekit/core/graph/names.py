"""Derive unique node names from op names, using only characters that TensorFlow allows."""

from __future__ import annotations

import polars as pl

from tracekit.core.ops.identity import BACKWARD_SUFFIX

UNNAMED = "unnamed"
BACKWARD = "_bprop"
_MODULE = r"\b[A-Za-z_]\w*\[([^\[\]/]+)\]"
_ILLEGAL = r"[^A-Za-z0-9_.\-]+"


def choose_op_node_names(ops: pl.DataFrame) -> pl.Series:
    """Return a distinct node name for each op.

    A backward op has the name of its forward op with the suffix ``_bprop``. If several names are equal, all but the
    first get a number, such as ``_1``, in the order of the numbers in the op ids.

    Args:
        ops: One row per op: ``op_id`` and ``op_name``.
    """
    ids = ops["op_id"].cast(pl.String)
    forward = ids.str.strip_suffix(BACKWARD_SUFFIX)
    is_backward = ids.str.ends_with(BACKWARD_SUFFIX) & forward.is_in(ids.implode())
    number = pl.col("id").str.extract(r"_(\d{1,18})(?:_BPROP)?$").cast(pl.Int64)
    rows = pl.DataFrame(
        {"name": convert_to_legal_node_names(ops["op_name"]), "id": ids, "is_backward": is_backward}
    ).with_row_index("row")
    rows = rows.with_columns(name=pl.col("name") + pl.when("is_backward").then(pl.lit(BACKWARD)).otherwise(pl.lit("")))
    rows = rows.sort(number, "id")
    return rows.with_columns(name=append_numbers_to_duplicates(rows["name"])).sort("row")["name"]


def convert_to_legal_node_names(names: pl.Series) -> pl.Series:
    """Convert each op name to a legal TensorFlow node name.

    In each part of a path, a sequence of characters other than letters, digits, ``_``, ``.`` and ``-`` is replaced with
    ``_``, or removed if it is at the start or end of the part. For example, ``iteration */aten::mm`` becomes
    ``iteration/aten_mm``. Empty parts are removed. Legal names are unchanged.
    """
    part = pl.element()
    legal = part.str.replace(_ILLEGAL + "$", "").str.replace("^" + _ILLEGAL, "").str.replace_all(_ILLEGAL, "_")
    parts = pl.col("name").cast(pl.String).fill_null("").str.split("/")
    parts = parts.list.eval(pl.when(part == "").then(pl.lit("")).when(legal == "").then(pl.lit("_")).otherwise(legal))
    joined = parts.list.eval(part.filter(part != "")).list.join("/")
    prefixed = pl.when(joined.str.contains("^[_-]")).then("." + joined).otherwise(joined)
    result = names.to_frame("name").select(pl.when(joined == "").then(pl.lit(UNNAMED)).otherwise(prefixed))
    return result.to_series().alias(names.name)


def normalize_node_names(names: pl.Series) -> pl.Series:
    """Convert the node names of another graph to legal node names that can be compared with op names.

    PyTorch writes the class of a module before its name. The class is removed: ``Net/Conv2d[conv1]`` becomes
    ``Net/conv1``.
    """
    return convert_to_legal_node_names(names.cast(pl.String).str.replace_all(_MODULE, "$1"))


def append_numbers_to_duplicates(names: pl.Series) -> pl.Series:
    """Append numbers to repeated names, such as ``conv_1`` for the second ``conv``, so that all names are distinct."""
    rows = pl.DataFrame({"name": names, "row": range(len(names))})
    while True:
        repetition = pl.int_range(pl.len()).over("name")
        rows = rows.with_columns(repetition=repetition)
        if not (rows["repetition"] > 0).any():
            return rows.sort("row")["name"].alias(names.name)
        numbered = pl.when(pl.col("repetition") > 0).then(pl.format("{}_{}", "name", "repetition")).otherwise("name")
        rows = rows.sort("repetition", "row").with_columns(name=numbered)
