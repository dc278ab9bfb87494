"""Names of nodes: paths of ops in the letters that TensorFlow allows, each given once."""

from __future__ import annotations

import polars as pl

UNNAMED = "unnamed"
BACKWARD = "_bprop"
_OTHERS = r"[^A-Za-z0-9_.\-]+"


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
