"""The division of names of ops by ``native/op_names.c``, against regular expressions."""

from __future__ import annotations

import re

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracekit.core.ops import op_names
from tracekit.core.ops.op_names import OpNames

FORM = re.compile(r"(?:autograd::engine::|torch::|aten::)|.*?, (?:(?:seq|op_id) = [0-9]|sizes = \[)", re.DOTALL)
ARGUMENTS = re.compile(r", (?:seq = |op_id = |sizes = \[|input_op_ids = \[)")
SEQUENCE = re.compile(r", seq = ([0-9]{1,18})")
SIZES, INPUTS = ", sizes = [", ", input_op_ids = ["
FRAGMENTS = (
    *(
        ", seq = ",
        ", op_id = ",
        SIZES,
        INPUTS,
        "aten::",
        "torch::",
        "autograd::engine::",
        "mm",
        "[2, 3]",
        "]",
        "[",
        " ",
    ),
    *(",", "x", "é", "步", "0", "12", "9" * 19, "s", "o", "i", "a long name without any argument, "),
)
NAMES = st.lists(st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join), max_size=20)

Row = tuple[str, bool, "int | None", "str | None"]


def divide(text: str) -> Row:
    """Return the name without arguments, whether it looks like an op, its sequence number and its sizes."""
    looks_like_op = FORM.match(text) is not None
    arguments, sequence = ARGUMENTS.search(text), SEQUENCE.search(text)
    name = text[: arguments.start()] if looks_like_op and arguments else text
    sizes = None
    if (start := text.find(SIZES)) >= 0:
        stop = text.find(INPUTS)
        sizes = text[start : stop if stop > start else len(text)]
    return name, looks_like_op, int(sequence[1]) if sequence else None, sizes


def parse(texts: list[str], dtype: pl.DataType | type[pl.DataType] = pl.Categorical) -> list[Row]:
    parsed = OpNames.parse(pl.Series(texts, dtype=dtype))
    names = parsed.names.select(pl.all().gather(parsed.rows["name"]))
    sizes = parsed.sizes.gather(parsed.rows["sizes"]).alias("sizes")
    return names.with_columns(parsed.rows["sequence_number"], sizes).rows()


@pytest.mark.parametrize("limits", [(1 << 16, 1 << 26), (3, 20)])
@given(texts=NAMES)
def test_names_are_divided_as_by_regular_expressions(limits: tuple[int, int], texts: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(op_names, "_CHUNK_NAMES", limits[0])
        patch.setattr(op_names, "_CHUNK_BYTES", limits[1])
        assert parse(texts) == [divide(text) for text in texts]


def test_equal_names_are_numbered_once_per_chunk() -> None:
    texts = [f"aten::mm, seq = {n}, op_id = {n}, sizes = [[2, {n % 3}]], input_op_ids = [[{n},0]]" for n in range(50)]
    parsed = OpNames.parse(pl.Series(texts))
    assert parsed.names.rows() == [("aten::mm", True)]
    assert parsed.sizes.to_list() == [f", sizes = [[2, {n}]]" for n in range(3)]
    assert parsed.gather_input_shapes().cast(pl.String)[:3].to_list() == ["[[2,0]]", "[[2,1]]", "[[2,2]]"]


def test_a_name_that_is_no_op_differs_from_an_op_without_its_arguments() -> None:
    assert parse(["mm", "mm, seq = 3", "mm, seq = x"], pl.String) == [
        ("mm", False, None, None),
        ("mm", True, 3, None),
        ("mm, seq = x", False, None, None),
    ]


def test_many_distinct_names_fit_into_the_table() -> None:
    texts = [f"range {n}" for n in range(5000)]
    assert parse(texts) == [(text, False, None, None) for text in texts]
