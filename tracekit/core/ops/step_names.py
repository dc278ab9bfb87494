"""Recognize the names of steps, which are the passes of a loop, and replace their numbers with ``*``.

A program names its steps in one of two ways. Either the name contains a word such as "step" and a number
(``ProfilerStep#3``, ``## train_step 3 ##``, ``epoch 1 step 12``), or sibling ranges differ only in the number at the
end of their name (``decode 0``, ``decode 1``). A number that is joined to a word (``frame_3``) counts only after words
such as "frame" or "decode" and after letters that are not Latin, because parts of a model and functions are often named
so (``conv1``). Parts of a model are numbered in the same way (``layer 0``), but their names recur in each step.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import polars as pl

from tracekit.core.ops.step_annotations import combine_patterns, load_annotation_patterns
from tracekit.core.series import map_categories_expr, select_by_string

_WORD = r"(?i:steps?|iters?|iterations?|(?:(?:mini|micro)_?)?batch(?:es)?|epochs?)"
_COUNTER = r"(?:[\s_]?(?i:num|number|no|idx|index|id)\.?)?"
_ORDINAL_STEP = r"(?:步|次|批|回|ステップ)"
_ORDINAL_EPOCH = r"(?:轮|輪|代|エポック)"
_WORD_AND_NUMBER = (
    rf"((?:^|[^A-Za-z]|[a-z]){_WORD}{_COUNTER}[\s:=#\[(_\-]*)\d+\b|(第\s*)\d+(\s*(?:{_ORDINAL_STEP}|{_ORDINAL_EPOCH}))"
)
_NUMBER_REPLACED = "${1}${2}*${3}"
_NUMBER_AT_END = r"^(.*[^\s:=#\[(])[\s:=#\[(]+\d+[\])]?$"
_NUMBER_IN_BRACKETS = r"^(.*[\[(<][^\[\](){}<>]*[^\s:=#\[(<])[\s:=#]+\d+([\])>])$"
_BARE_NUMBER = r"^([\s:=#\[(]*)\d+([\])]?)$"
_COUNTS = r"^[A-Za-z]+(?:_[A-Za-z]+)*_\d+\(\d+\)(?:_[A-Za-z]+(?:_[A-Za-z]+)*_\d+\(\d+\))*$"
_REPEATED_WORD = (
    r"(?i:frames?|decode|tokens?|requests?|req|generations?|infer(?:ence)?|train(?:ing)?|eval|rounds?|cycles?|runs?"
    r"|replays?|trials?|episodes?|rollouts?|quer(?:y|ies)|prompts?|ticks?|schritt)"
)
_JOINED_NUMBER_AT_END = rf"^((?:.*[^A-Za-z])?{_REPEATED_WORD}[_\-./]*|.*[\p{{L}}--\p{{Latin}}])\d+[\])]?$"
_REPEATED_NUMBER = (
    rf"(?:(?:^|[^A-Za-z]){_REPEATED_WORD}|步骤?|步驟|迭代|批次?|轮|輪|ステップ|反復|스텝|단계|반복|(?i:шаг|étape|paso|passo))"
    r"[\W_]*\d*[\W_]*$"
)
_AFTER_NUMBER = r"^([^*]*\*)(.*)$"
_OTHER_NUMBER = r"\b(?:0[xX][0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"
_MODEL_PART = (
    r"(?i)(?:^|[^a-z])(?:layers?|blocks?|stages?|heads?|modules?|levels?|experts?|conv|bn|norm|fc|linear|mlp|attn"
    r"|attention|encoders?|decoders?|buckets?|chunks?|shards?|towers?|branch|cells?|units?|groups?|res|层|層|块)[\W_]*$"
)
_ENDS_WITH_STAR = r"\*[\])>]*$"
_NAMES_FORWARD = r"(?i)(?:^|[^a-z])(?:forward|fwd|backward|bwd)[\W_\d]*$|^nn\.Module: "
_NAMES_MICRO_BATCH = r"(?i)(?:^|[^a-z])micro[\W_]*(?:batch|step)"
_NAMES_REQUEST = (
    r"(?i)(?:^|[^a-z])(?:requests?|req|generat(?:e|ions?)|quer(?:y|ies)|prompts?|infer(?:ence)?|predict|images?|samples?"
    r"|frames?|tokens?)[\W_]*$"
)
_NAMES_EVALUATION = (
    r"(?:(?:^|[^A-Za-z])(?i:eval|val)|[a-z](?:Eval|Val))(?i:uat(?:e|ion|ing|or)|id(?:at(?:e|ion|ing|or))?)?(?:$|[^a-z])"
    r"|^(?i:test(?:ing)?)(?:[\W_]*(?i:steps?|epochs?|loop|batch|iter\w*))?[\W_\d]*$"
)
_NAMES_TRAINING = r"(?i)train"
_NAMES_STEP = rf"(?:^|[^A-Za-z]|[a-z]){_WORD}[\W_\d]*(?:\bto\b[\W_\d]*)?$|第[\s\d*]*{_ORDINAL_STEP}"
_NAMES_EPOCH = rf"(?i)epochs?[\W_\d]*$|第[\s\d*]*{_ORDINAL_EPOCH}"
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
      part of a model, or directly inside a range such as "forward".

    Ranges such as ``depth 0`` and ``depth 1``, one of which directly contains the other, keep their numbers unless the
    first condition holds.

    Args:
        parent: Row number of the parent of each range, null for an outermost range.
        names: Name of each range.
        threads: Columns that identify the thread of each range, in any number.

    Returns:
        One label per range (Categorical).
    """
    distinct = names.unique().drop_nulls()
    parsed = _parse_names(distinct.to_frame("text"))
    row = select_by_string(pl.int_range(len(distinct), dtype=pl.UInt32, eager=True), distinct, names)
    rows = parsed["stem"].is_not_null().gather(row).arg_true()
    above = row.gather(parent.gather(rows))
    numbered = parsed.select(pl.all().gather(row.gather(rows))).with_columns(
        threads.select(pl.all().gather(rows)),
        is_nested=parent.gather(rows).is_not_null(),
        nests=pl.col("stem") == parsed["stem"].gather(above),
        is_in_forward=parsed["is_forward"].gather(above).fill_null(value=False) & ~pl.col("is_repeated"),
    )
    is_single = pl.struct("text", *threads.columns).is_unique()
    recurs = pl.col("is_nested") & (~is_single | pl.col("is_in_forward"))
    counts = (~pl.col("is_nested") | ~recurs.any().over("stem")) & ~pl.col("nests").any().over("stem")
    is_step = (pl.col("text").n_unique().over("stem") > 1) & (pl.col("has_word") | (counts & ~pl.col("is_model_part")))
    steps = rows.filter(numbered.select(is_step).to_series())
    mask = pl.repeat(False, len(names), eager=True).scatter(steps, True)  # noqa: FBT003
    text = pl.lit(names).fill_null(pl.lit("", pl.Categorical))
    return pl.select(pl.when(mask).then(parsed["stem"].gather(row)).otherwise(text)).to_series()


def _parse_names(distinct: pl.DataFrame) -> pl.DataFrame:
    """Find the numbers in names of ranges.

    Args:
        distinct: The distinct names, in the column ``text``.

    Returns:
        One row per name: ``text``, ``stem`` (the name with ``*`` instead of numbers, or null if it has no number),
        ``has_word`` (whether the number follows a word for steps), ``is_model_part``, ``is_forward`` (whether the name
        is that of a forward or backward pass), ``is_repeated`` (whether the name contains a word such as "decode").
    """
    distinct = distinct.join(_label_serving_steps(distinct["text"]), on="text", how="left", maintain_order="left")
    text = pl.col("text").cast(pl.String)
    with_star = text.str.replace_all(_WORD_AND_NUMBER, _NUMBER_REPLACED)
    rows = distinct.select(
        "text", "serving_label", has_word=text.str.contains(_WORD_AND_NUMBER), starred=with_star, string=text
    )
    at_end, joined = (pl.col("string").str.extract(pattern) for pattern in (_NUMBER_AT_END, _JOINED_NUMBER_AT_END))
    bracketed = [pl.col("string").str.extract(_NUMBER_IN_BRACKETS, group) for group in (1, 2)]
    bare = [pl.col("string").str.extract(_BARE_NUMBER, group) for group in (1, 2)]
    counts = pl.when(pl.col("string").str.contains(_COUNTS)).then(pl.col("string").str.replace_all(r"\d+", "*"))
    before, after = (pl.col("starred").str.extract(_AFTER_NUMBER, group) for group in (1, 2))
    inside = before + after.str.replace_all(_OTHER_NUMBER, "*")
    with_bracket = bracketed[0].str.replace_all(_WORD_AND_NUMBER, _NUMBER_REPLACED) + STAR + bracketed[1]
    with_word = pl.coalesce(with_bracket, at_end.str.replace_all(_WORD_AND_NUMBER, _NUMBER_REPLACED) + STAR, inside)
    other = pl.coalesce(with_bracket, counts, at_end + STAR, joined + "*", bare[0] + "*" + bare[1])
    stem = pl.coalesce("serving_label", pl.when("has_word").then(with_word).otherwise(other))
    rows = rows.with_columns(stem=stem.cast(pl.Categorical))
    string = pl.col("string")
    return rows.select(
        *["text", "stem"],
        has_word=pl.col("has_word") | string.str.contains(_COUNTS) | pl.col("serving_label").is_not_null(),
        is_model_part=pl.col("stem").cast(pl.String).str.contains(_MODEL_PART),
        is_forward=string.str.contains(_NAMES_FORWARD),
        is_repeated=string.str.contains(_REPEATED_NUMBER),
    )


class _ServingNames(NamedTuple):
    """The names with which frameworks for serving mark their steps.

    Attributes:
        patterns: A regular expression that matches such names, for each label.
        any_name: A regular expression that matches all of them.
    """

    patterns: dict[str, str]
    any_name: str

    def matches_expr(self, label: pl.Expr) -> pl.Expr:
        """Return an expression for whether a label, or the name of a single step, belongs to such steps."""
        return label.is_in(list(self.patterns)) | label.str.contains(self.any_name)


@functools.cache
def _load_serving_names() -> _ServingNames:
    patterns = {rule["label"]: rule["pattern"] for rule in load_annotation_patterns() if "label" in rule}
    return _ServingNames(patterns, combine_patterns(patterns.values()))


def _label_serving_steps(texts: pl.Series) -> pl.DataFrame:
    """Return the labels of the names with which frameworks for serving mark their steps: ``text``, ``serving_label``.

    The steps of all phases and sizes have the same label.
    """
    names = _load_serving_names()
    strings = pl.DataFrame({"text": texts, "string": texts.cast(pl.String)})
    steps = strings.filter(pl.col("string").str.contains(names.any_name))
    labels = [pl.when(pl.col("string").str.contains(p)).then(pl.lit(label)) for label, p in names.patterns.items()]
    return steps.select("text", serving_label=pl.coalesce(labels))


def remove_star_expr(label: pl.Expr) -> pl.Expr:
    """Return an expression for a label (Categorical) without the ``*`` in place of the number at its end."""
    return map_categories_expr(label, lambda text: text.str.strip_suffix(STAR))


def names_step_expr(label: pl.Expr) -> pl.Expr:
    """Return an expression for whether a label contains a word for a pass of the main loop, such as ``step *``."""
    is_step = label.str.contains(_NAMES_STEP) & ~label.str.contains(_OPTIMIZER) & ~names_epoch_expr(label)
    return is_step | _load_serving_names().matches_expr(label)


def names_epoch_expr(label: pl.Expr) -> pl.Expr:
    """Return an expression for whether a label names an epoch, which consists of many steps."""
    return label.str.contains(_NAMES_EPOCH)


def names_numbered_step_expr(label: pl.Expr) -> pl.Expr:
    """Return an expression for whether a label contains a word for a pass and its number, such as ``step 3``."""
    return label.str.contains(_WORD_AND_NUMBER) | _load_serving_names().matches_expr(label)


def names_micro_batch_expr(label: pl.Expr) -> pl.Expr:
    """Return an expression for whether a label names a part of a batch, such as ``micro_batch *``."""
    return label.str.contains(_NAMES_MICRO_BATCH)


def names_request_expr(label: pl.Expr) -> pl.Expr:
    """Return an expression for whether a label names the processing of one input, such as ``request``."""
    return label.str.contains(_NAMES_REQUEST)


def names_repeated_expr(label: pl.Expr) -> pl.Expr:
    """Return an expression for whether a label contains a word for something that repeats, such as ``decode *``."""
    return label.str.contains(_REPEATED_NUMBER)


def names_evaluation_expr(label: pl.Expr) -> pl.Expr:
    """Return an expression for whether a label names an evaluation of a model, such as ``eval_step``."""
    return label.str.contains(_NAMES_EVALUATION)


def names_training_expr(label: pl.Expr) -> pl.Expr:
    """Return an expression for whether a label contains the word "train"."""
    return label.str.contains(_NAMES_TRAINING)


def ends_with_star_expr(label: pl.Expr) -> pl.Expr:
    """Return an expression for whether a label ends with ``*`` in place of a number, such as ``[step *]``."""
    return label.str.contains(_ENDS_WITH_STAR)


def names_model_part_expr(label: pl.Expr) -> pl.Expr:
    """Return an expression for whether a label names a part of a model, such as ``layer``."""
    return label.str.contains(_MODEL_PART)


def remove_number_at_end_expr(label: pl.Expr) -> pl.Expr:
    """Return an expression for a label without the number at its end, or null if it has none."""
    return label.str.extract(_NUMBER_AT_END)
