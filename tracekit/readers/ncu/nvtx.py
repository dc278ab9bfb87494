r"""NVTX state as Nsight Compute prints it: the ranges that were open when something was launched.

A cell holds entries, each in quotes, with blanks between them. The push/pop column begins with the thread::

    3332  "<default domain>:Batch 0:none:none:none:none:none:none"  "<default domain>:Forward:none:none:…"

An entry is ``Domain:Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg``; start/end ranges have their number in front,
summaries by range leave out the domain. Nothing is escaped, so a text with colons or quotes is read from both ends. The
message is the text of the range once more, and tells where the domain ends.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import polars as pl

Form: TypeAlias = Literal["push_pop", "start_end", "summary"]
PUSH_POP: Form = "push_pop"
START_END: Form = "start_end"
SUMMARY: Form = "summary"

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
_PAYLOADS = {
    "UINT64": "uint64",
    "INT64": "int64",
    "DOUBLE": "double",
    "UINT32": "uint32",
    "INT32": "int32",
    "FLOAT": "float",
    "JSON": "json",
    "BINARY": "binary",
}
_MESSAGES = {"ASCII": "ascii", "UNICODE": "unicode", "REGISTERED": "registered"}


def threads(cells: pl.Expr) -> pl.Expr:
    """Return the thread that a push/pop cell begins with: n cells in, n threads out, null where there is none."""
    return cells.str.extract(r"^\s*(\d+)(?:\s|$)").cast(pl.Int64, strict=False)


def entries(cells: pl.DataFrame, form: Form) -> pl.DataFrame:
    """Split cells into ranges: n rows in, one row a range out, outermost first.

    Args:
        cells: A column ``text`` and others, which are kept.
        form: Of which column the cells are.

    Returns:
        The other columns and those of ``ncu_nvtx_ranges``, but no launch.
    """
    body = pl.col("text").str.extract(r'(?s)"(.*)"').str.replace_all(_SEPARATOR, "", literal=True)
    pieces = (
        cells.with_row_index("cell")
        .with_columns(thread_id=threads(pl.col("text")) if form == "push_pop" else pl.lit(None, pl.Int64))
        .with_columns(entry=body.str.replace_all(r'"\s{2,}"', _SEPARATOR).str.split(_SEPARATOR))
        .drop("text")
        .explode("entry")
        .filter(pl.col("entry").is_not_null())
    )
    return _fields(_whole(pieces), form).drop("cell")


def _whole(pieces: pl.DataFrame) -> pl.DataFrame:
    """Join what was split inside the text of a range; a whole entry ends in its attributes."""
    ends = pl.col("entry").str.ends_with(_PLAIN) | pl.col("entry").str.contains(_TYPED) | _is_known(pl.col("entry"))
    ended = pieces.with_columns(ends=ends)
    if ended["ends"].all():
        return pieces
    number = pl.col("ends").shift(1, fill_value=False).cum_sum().over("cell")
    others = [c for c in pieces.columns if c not in ("cell", "entry")]
    parts = ended.with_columns(number=number).group_by("cell", "number", maintain_order=True)
    return parts.agg(*(pl.col(c).first() for c in others), pl.col("entry").str.join('"  "')).drop("number")


def _fields(pieces: pl.DataFrame, form: Form) -> pl.DataFrame:
    """Take entries apart; what has no attributes at all is kept as the name."""
    entry = pl.col("entry")
    plain = entry.str.ends_with(_PLAIN)
    typed = pl.when(plain).then(None).otherwise(entry)
    groups = (
        pl.when(_is_known(entry)).then(typed.str.extract_groups(_KNOWN)).otherwise(typed.str.extract_groups(_TYPED))
    )
    parts = pieces.with_columns(groups.struct.unnest()).with_columns(
        head=pl.when(plain).then(entry.str.strip_suffix(_PLAIN)).otherwise(pl.coalesce("head", "entry")),
        payload_type=pl.col("payload_type").str.to_uppercase().replace("NONE", "none"),
    )
    if form == "start_end":
        parts = parts.with_columns(
            source_id=pl.col("head").str.extract(r"^(\d+):").cast(pl.Int64, strict=False),
            head=pl.col("head").str.replace(r"^\d+:", ""),
        )
    else:
        parts = parts.with_columns(source_id=pl.lit(None, pl.Int64))
    return parts.with_columns(
        pl.lit("start_end" if form == "start_end" else "push_pop").alias("kind"),
        pl.int_range(1, pl.len() + 1, dtype=pl.Int32).over("cell").alias("depth"),
        *(_split_domain() if form != "summary" else (pl.lit(None, pl.String).alias("domain"), _text(pl.col("head")))),
        *_attributes(),
    ).drop("head", "payload", "color_type", "message")


def _is_known(entry: pl.Expr) -> pl.Expr:
    return entry.str.contains(_KNOWN)


def _split_domain() -> tuple[pl.Expr, pl.Expr]:
    head, message = pl.col("head"), pl.concat_str(pl.lit(":"), "message")
    parts = head.str.splitn(":", 2)
    repeated = (head.str.ends_with(message) & (pl.col("message_type") != "none")).fill_null(value=False)
    domain = (
        pl.when(repeated).then(head.str.head(head.str.len_chars() - message.str.len_chars())).otherwise(parts.struct[0])
    )
    rest = pl.when(repeated).then("message").otherwise(parts.struct[1])
    return pl.when(rest.is_not_null() & (domain != DEFAULT_DOMAIN)).then(domain).alias("domain"), _text(
        pl.coalesce(rest, domain)
    )


def _text(name: pl.Expr) -> pl.Expr:
    """The text of a range: the message where the range has no other."""
    message = pl.when(pl.col("message") != "none").then(pl.col("message"))
    return pl.when(name.is_in(["", "none"]) & message.is_not_null()).then(message).otherwise(name).alias("name")


def _attributes() -> tuple[pl.Expr, ...]:
    kind, value = pl.col("payload_type"), pl.col("payload")
    whole = kind.is_in(["UINT64", "INT64", "UINT32", "INT32"])
    real = kind.is_in(["DOUBLE", "FLOAT"])
    unsigned = value.cast(pl.UInt64, strict=False).reinterpret(signed=True)
    color = pl.col("color")
    hexadecimal = color.str.extract(r"^0[xX]([0-9a-fA-F]+)$").str.to_integer(base=16, strict=False)
    known = kind.replace_strict(_PAYLOADS, default="string", return_dtype=pl.String)
    return (
        pl.when(kind != "none").then(known).alias("payload_type"),
        pl.when(whole).then(pl.coalesce(value.cast(pl.Int64, strict=False), unsigned)).alias("payload_int"),
        pl.when(real).then(value.cast(pl.Float64, strict=False)).alias("payload_float"),
        pl.when((kind != "none") & ~whole & ~real).then(value).alias("payload_text"),
        pl.coalesce(color.cast(pl.Int64, strict=False), hexadecimal).alias("color"),
        pl.col("message_type").replace_strict(_MESSAGES, default=None, return_dtype=pl.String),
    )


def paths(ranges: pl.DataFrame) -> pl.DataFrame:
    """Sum up the push/pop ranges of each launch: ``range_name``, ``range_path`` and ``range_depth`` by ``launch_id``.

    Args:
        ranges: Rows of ``ncu_nvtx_ranges``: launch_id, kind, depth and name.

    Returns:
        One row a launch that has such ranges.
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
