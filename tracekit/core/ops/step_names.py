"""Recognize the names of steps, which are the passes of a loop, and replace their numbers with ``*``.

A program names its steps in one of two ways. Either the name contains a word such as "step" and a number
(``ProfilerStep#3``, ``## train_step 3 ##``, ``epoch 1 step 12``), or sibling ranges differ only in the number at the
end of their name (``decode 0``, ``decode 1``). A number that is joined to a word (``frame_3``) counts only after words
such as "frame" or "decode" and after letters that are not Latin, because parts of a model and functions are often named
so (``conv1``). Parts of a model are numbered in the same way (``layer 0``), but their names recur in each step.
"""

from __future__ import annotations

import polars as pl

from tracekit.core.categorical import map_categories_expr

_WORD = r"(?i:steps?|iters?|iterations?|(?:(?:mini|micro)_?)?batch(?:es)?|epochs?)"
_COUNTER = r"(?:[\s_]?(?i:num|number|no|idx|index|id)\.?)?"
_WORD_AND_NUMBER = rf"((?:^|[^A-Za-z]|[a-z]){_WORD}{_COUNTER}[\s:=#\[(_\-]*)\d+\b"
_NUMBER_AT_END = r"^(.*[^\s:=#\[(])[\s:=#\[(]+\d+[\])]?$"
_REPEATED_WORD = (
    r"(?i:frames?|decode|tokens?|requests?|req|generations?|infer(?:ence)?|train(?:ing)?|eval|rounds?|cycles?|runs?"
    r"|replays?|trials?|episodes?|rollouts?|quer(?:y|ies)|prompts?|ticks?|schritt)"
)
_JOINED_NUMBER_AT_END = rf"^((?:.*[^A-Za-z])?{_REPEATED_WORD}[_\-./]*|.*[\p{{L}}--\p{{Latin}}])\d+[\])]?$"
_AFTER_NUMBER = r"^([^*]*\*)(.*)$"
_OTHER_NUMBER = r"\b(?:0[xX][0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"
_MODEL_PART = (
    r"(?i)(?:^|[^a-z])(?:layers?|blocks?|stages?|heads?|modules?|levels?|experts?|conv|bn|norm|fc|linear|mlp|attn"
    r"|attention|encoders?|decoders?|buckets?|chunks?|shards?|towers?|branch|cells?|units?|groups?|res|层|層|块)[\W_]*$"
)
_NAMES_STEP = rf"(?:^|[^A-Za-z]|[a-z]){_WORD}[\W_\d]*(?:\bto\b[\W_\d]*)?$"
_NAMES_EPOCH = r"(?i)epochs?[\W_\d]*$"
_OPTIMIZER = r"(?i)optim"
STAR = " *"
"""End of the label of a step, in place of the number at the end of its name."""


def label_ranges(parent: pl.Series, names: pl.Series, threads: pl.DataFrame) -> pl.Series:
    """Return the label of each range: its name, in which ``*`` replaces the numbers of a step.

    Numbers are replaced only if several ranges have names that differ in nothing else, and if one of these conditions
    holds:

    - The name contains a word such as step, iter, iteration, batch or epoch, followed by a number.
    - The range is outermost, and its name ends in a number, unless it is the name of a part of a model.
    - The range is nested, its name ends in a number and occurs only once on each thread, unless it is the name of a
      part of a model.

    Ranges such as ``depth 0`` and ``depth 1``, one of which directly contains the other, keep their numbers unless the
    first condition holds.

    Args:
        parent: Row number of the parent of each range, null for an outermost range.
        names: Name of each range.
        threads: Columns that identify the thread of each range, in any number.

    Returns:
        One label per range (Categorical).
    """
    distinct = names.unique().to_frame("text").drop_nulls()
    columns = {"text": names, "is_nested": parent.is_not_null()}
    ranges = pl.DataFrame(columns).join(_parse_names(distinct), on="text", how="left", maintain_order="left")
    is_single = pl.struct("text", *threads.columns).is_unique()
    ranges = ranges.with_columns(nests=ranges["stem"] == ranges["stem"].gather(parent))
    numbered = ranges.hstack(threads).filter(pl.col("stem").is_not_null()).with_columns(is_single=is_single)
    kinds = numbered.group_by("stem").agg(
        several=pl.col("text").n_unique() > 1,
        recurs=(pl.col("is_nested") & ~pl.col("is_single")).any(),
        contains_itself=pl.col("nests").any(),
    )
    ranges = ranges.drop("nests").join(kinds, on="stem", how="left", maintain_order="left")
    counts = (~pl.col("is_nested") | ~pl.col("recurs")) & ~pl.col("contains_itself")
    is_step = pl.col("several") & (pl.col("has_word") | (counts & ~pl.col("is_model_part")))
    label = pl.when(is_step).then("stem").otherwise(pl.col("text").fill_null(pl.lit("", pl.Categorical)))
    return ranges.select(label).to_series()


def _parse_names(distinct: pl.DataFrame) -> pl.DataFrame:
    """Find the numbers in names of ranges.

    Args:
        distinct: The distinct names, in the column ``text``.

    Returns:
        One row per name: ``text``, ``stem`` (the name with ``*`` instead of numbers, or null if it has no number),
        ``has_word`` (whether the number follows a word for steps), ``is_model_part``.
    """
    text = pl.col("text").cast(pl.String)
    with_star = text.str.replace_all(_WORD_AND_NUMBER, "${1}*")
    rows = distinct.select("text", has_word=text.str.contains(_WORD_AND_NUMBER), starred=with_star, string=text)
    at_end, joined = (pl.col("string").str.extract(pattern) for pattern in (_NUMBER_AT_END, _JOINED_NUMBER_AT_END))
    before, after = (pl.col("starred").str.extract(_AFTER_NUMBER, group) for group in (1, 2))
    inside = before + after.str.replace_all(_OTHER_NUMBER, "*")
    with_word = pl.coalesce(at_end.str.replace_all(_WORD_AND_NUMBER, "${1}*") + STAR, inside)
    stem = pl.when("has_word").then(with_word).otherwise(pl.coalesce(at_end + STAR, joined + "*"))
    rows = rows.with_columns(stem=stem.cast(pl.Categorical), number_after_word=inside)
    is_model_part = pl.col("stem").cast(pl.String).str.contains(_MODEL_PART)
    return rows.select("text", "stem", "has_word", is_model_part=is_model_part)


def remove_star_expr(label: pl.Expr) -> pl.Expr:
    """Return an expression for a label (Categorical) without the ``*`` in place of the number at its end."""
    return map_categories_expr(label, lambda text: text.str.strip_suffix(STAR))


def names_step_expr(label: pl.Expr) -> pl.Expr:
    """Return an expression for whether a label contains a word for a pass of the main loop, such as ``step *``."""
    return label.str.contains(_NAMES_STEP) & ~label.str.contains(_OPTIMIZER) & ~names_epoch_expr(label)


def names_epoch_expr(label: pl.Expr) -> pl.Expr:
    """Return an expression for whether a label names an epoch, which consists of many steps."""
    return label.str.contains(_NAMES_EPOCH)


def names_numbered_step_expr(label: pl.Expr) -> pl.Expr:
    """Return an expression for whether a label contains a word for a pass and its number, such as ``step 3``."""
    return label.str.contains(_WORD_AND_NUMBER)


def names_model_part_expr(label: pl.Expr) -> pl.Expr:
    """Return an expression for whether a label names a part of a model, such as ``layer``."""
    return label.str.contains(_MODEL_PART)


def remove_number_at_end_expr(label: pl.Expr) -> pl.Expr:
    """Return an expression for a label without the number at its end, or null if it has none."""
    return label.str.extract(_NUMBER_AT_END)
