"""Parse the NVTX state that Nsight Compute prints: the ranges that were open at each launch.

A cell holds quoted entries separated by blanks. A push/pop cell begins with the thread id::

    3332  "<default domain>:Batch 0:none:none:none:none:none:none"  "<default domain>:Forward:none:none:…"

An entry is ``Domain:Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg``.

- In cells of start/end ranges, the number of the range precedes each entry.
- In cells of summaries by range, entries have no domain.

Nothing is escaped, so names may contain colons and quotes. The message of an entry repeats the name of the range.
Therefore, the message shows where the domain ends.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import polars as pl

CellKind: TypeAlias = Literal["push_pop", "start_end", "summary"]
PUSH_POP: CellKind = "push_pop"
START_END: CellKind = "start_end"
SUMMARY: CellKind = "summary"

DEFAULT_DOMAIN = "<default domain>"
_SEPARATOR = "\0"
_PLAIN = ":none:none:none:none:none:none"
_TYPED = (
    r"(?s)^(?<head>.*?):(?<payload_type>none|[A-Z][A-Z0-9_]*):(?<payload>.*?):(?<color_type>none|[A-Z][A-Z0-9_]*)"
    r":(?<color>[^:]*):(?<message_type>none|[A-Z][A-Z0-9_]*):(?<message>.*)$"
)
_KNOWN = (
    r"(?s)^(?<head>.*?):(?<payload_type>none|(?i:u?int32|u?int64|double|float|json|binary)):(?<payload>.*?)"
    r":(?<color_type>none|A?RGB):(?<color>[^:]*):(?<message_type>none|ASCII|UNICODE|REGISTERED):(?<message>.*)$"
)
_PAYLOAD_TYPES = {
    "UINT64": "uint64",
    "INT64": "int64",
    "DOUBLE": "double",
    "UINT32": "uint32",
    "INT32": "int32",
    "FLOAT": "float",
    "JSON": "json",
    "BINARY": "binary",
}
_MESSAGE_TYPES = {"ASCII": "ascii", "UNICODE": "unicode", "REGISTERED": "registered"}


def thread_id_expr(cells: pl.Expr) -> pl.Expr:
    """Return an expression for the thread id at the beginning of each push/pop cell, null for cells without an id."""
    return cells.str.extract(r"^\s*(\d+)(?:\s|$)").cast(pl.Int64, strict=False)


def parse_nvtx_cells(cells: pl.DataFrame, cell_kind: CellKind) -> pl.DataFrame:
    """Parse NVTX cells into one row per range, with the outermost range of each cell first.

    Args:
        cells: The cells in the column ``text``. The values of all other columns are repeated for each range of a cell.
        cell_kind: Kind of the CSV column that contains the cells.

    Returns:
        The columns of ``cells`` except ``text``, and the columns of ``ncu_nvtx_ranges`` except ``launch_id``.
    """
    body = pl.col("text").str.extract(r'(?s)"(.*)"').str.replace_all(_SEPARATOR, "", literal=True)
    entries = (
        cells.with_row_index("cell")
        .with_columns(thread_id=thread_id_expr(pl.col("text")) if cell_kind == "push_pop" else pl.lit(None, pl.Int64))
        .with_columns(entry=body.str.replace_all(r'"\s{2,}"', _SEPARATOR).str.split(_SEPARATOR))
        .drop("text")
        .explode("entry")
        .filter(pl.col("entry").is_not_null())
    )
    return _parse_entries(_rejoin_split_entries(entries), cell_kind).drop("cell")


def _rejoin_split_entries(entries: pl.DataFrame) -> pl.DataFrame:
    """Rejoin the NVTX entries that were split at quotes inside the names of ranges.

    An entry is complete if it ends with attributes. An incomplete entry is joined with the following entries, up to and
    including the next complete entry.
    """
    ends = (
        pl.col("entry").str.ends_with(_PLAIN)
        | pl.col("entry").str.contains(_TYPED)
        | _has_known_types_expr(pl.col("entry"))
    )
    marked = entries.with_columns(ends=ends)
    if marked["ends"].all():
        return entries
    number = pl.col("ends").shift(1, fill_value=False).cum_sum().over("cell")
    others = [c for c in entries.columns if c not in ("cell", "entry")]
    parts = marked.with_columns(number=number).group_by("cell", "number", maintain_order=True)
    return parts.agg(*(pl.col(c).first() for c in others), pl.col("entry").str.join('"  "')).drop("number")


def _parse_entries(entries: pl.DataFrame, cell_kind: CellKind) -> pl.DataFrame:
    """Split printed NVTX entries into domain, name and attributes, with one row per entry."""
    entry = pl.col("entry")
    plain = entry.str.ends_with(_PLAIN)
    typed = pl.when(plain).then(None).otherwise(entry)
    groups = (
        pl.when(_has_known_types_expr(entry))
        .then(typed.str.extract_groups(_KNOWN))
        .otherwise(typed.str.extract_groups(_TYPED))
    )
    parts = entries.with_columns(groups.struct.unnest()).with_columns(
        head=pl.when(plain).then(entry.str.strip_suffix(_PLAIN)).otherwise(pl.coalesce("head", "entry")),
        payload_type=pl.col("payload_type").str.to_uppercase().replace("NONE", "none"),
    )
    if cell_kind == "start_end":
        parts = parts.with_columns(
            source_id=pl.col("head").str.extract(r"^(\d+):").cast(pl.Int64, strict=False),
            head=pl.col("head").str.replace(r"^\d+:", ""),
        )
    else:
        parts = parts.with_columns(source_id=pl.lit(None, pl.Int64))
    return parts.with_columns(
        pl.lit("start_end" if cell_kind == "start_end" else "push_pop").alias("kind"),
        pl.int_range(1, pl.len() + 1, dtype=pl.Int32).over("cell").alias("depth"),
        *(
            _name_and_domain_exprs()
            if cell_kind != "summary"
            else (pl.lit(None, pl.String).alias("domain"), _range_name_expr(pl.col("head")))
        ),
        *_payload_and_color_exprs(),
    ).drop("head", "payload", "color_type", "message")


def _has_known_types_expr(entry: pl.Expr) -> pl.Expr:
    return entry.str.contains(_KNOWN)


def _name_and_domain_exprs() -> tuple[pl.Expr, pl.Expr]:
    head, message = pl.col("head"), pl.concat_str(pl.lit(":"), "message")
    parts = head.str.splitn(":", 2)
    repeated = (head.str.ends_with(message) & (pl.col("message_type") != "none")).fill_null(value=False)
    domain = (
        pl.when(repeated).then(head.str.head(head.str.len_chars() - message.str.len_chars())).otherwise(parts.struct[0])
    )
    rest = pl.when(repeated).then("message").otherwise(parts.struct[1])
    return pl.when(rest.is_not_null() & (domain != DEFAULT_DOMAIN)).then(domain).alias("domain"), _range_name_expr(
        pl.coalesce(rest, domain)
    )


def _range_name_expr(name: pl.Expr) -> pl.Expr:
    """Return an expression for the name of each range. A missing name is replaced with the message of the range."""
    message = pl.when(pl.col("message") != "none").then(pl.col("message"))
    return pl.when(name.is_in(["", "none"]) & message.is_not_null()).then(message).otherwise(name).alias("name")


def _payload_and_color_exprs() -> tuple[pl.Expr, ...]:
    kind, value = pl.col("payload_type"), pl.col("payload")
    is_integer = kind.is_in(["UINT64", "INT64", "UINT32", "INT32"])
    is_float = kind.is_in(["DOUBLE", "FLOAT"])
    unsigned = value.cast(pl.UInt64, strict=False).reinterpret(signed=True)
    color = pl.col("color")
    hexadecimal = color.str.extract(r"^0[xX]([0-9a-fA-F]+)$").str.to_integer(base=16, strict=False)
    payload_type = kind.replace_strict(_PAYLOAD_TYPES, default="string", return_dtype=pl.String)
    return (
        pl.when(kind != "none").then(payload_type).alias("payload_type"),
        pl.when(is_integer).then(pl.coalesce(value.cast(pl.Int64, strict=False), unsigned)).alias("payload_int"),
        pl.when(is_float).then(value.cast(pl.Float64, strict=False)).alias("payload_float"),
        pl.when((kind != "none") & ~is_integer & ~is_float).then(value).alias("payload_text"),
        pl.coalesce(color.cast(pl.Int64, strict=False), hexadecimal).alias("color"),
        pl.col("message_type").replace_strict(_MESSAGE_TYPES, default=None, return_dtype=pl.String),
    )


def build_range_paths(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the name, path and depth of the innermost push/pop range around each launch.

    Args:
        ranges: The columns ``launch_id``, ``kind``, ``depth`` and ``name`` of ``ncu_nvtx_ranges``.

    Returns:
        One row per launch inside a push/pop range: ``launch_id``, ``range_name``, ``range_path`` and ``range_depth``. A
        path joins the names of all enclosing ranges with slashes, outermost first. The depth is the number of these
        ranges.
    """
    name = pl.col("name").cast(pl.String)
    return (
        ranges.filter(pl.col("kind").cast(pl.String) == "push_pop")
        .sort("launch_id", "depth")
        .group_by("launch_id", maintain_order=True)
        .agg(
            range_name=name.last(),
            range_path=name.fill_null("").str.join("/"),
            range_depth=pl.len().cast(pl.Int32),
        )
    )
