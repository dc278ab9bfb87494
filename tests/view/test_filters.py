"""Filters, search and sort order against a brute force in Python."""

from __future__ import annotations

import math
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import examples
from tests.view.support import BIG
from tracekit.errors import TracekitError
from tracekit.view import query

Row = dict[str, Any]
TEXT = st.sampled_from(["", "a", "A", "ab", "aB c", "b%", "c_", "ü", "Ü", "<b>", "null"])
NUMBER = st.sampled_from([-(2**63), -3, 0, 1, 2, 7, BIG, BIG + 1, 2**62])
SCHEMA = pl.Schema(
    {"n": pl.Int64, "i": pl.Int32, "x": pl.Float64, "s": pl.String, "c": pl.Categorical(), "b": pl.Boolean}
)
ROW = st.fixed_dictionaries(
    {
        "n": st.none() | NUMBER,
        "i": st.none() | st.integers(-2, 2),
        "x": st.none() | st.sampled_from([-1.5, 0.0, 1.0, 2.5, 1e300]),
        "s": st.none() | TEXT,
        "c": st.none() | TEXT,
        "b": st.none() | st.booleans(),
    }
)
ROWS = st.lists(ROW, max_size=8)
COMPARISONS = ["equals", "notEqual", "lessThan", "lessThanOrEqual", "greaterThan", "greaterThanOrEqual"]
TEXT_COMPARISONS = ["contains", "notContains", "equals", "notEqual", "startsWith", "endsWith"]
BLANK = st.fixed_dictionaries({"type": st.sampled_from(["blank", "notBlank"])})


def compared(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    between = st.fixed_dictionaries({"type": st.just("inRange"), "filter": values, "filterTo": values})
    return st.fixed_dictionaries({"type": st.sampled_from(COMPARISONS), "filter": values}) | between | BLANK


def grouped(condition: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    lists = st.lists(condition, min_size=1, max_size=3)
    return condition | st.fixed_dictionaries({"operator": st.sampled_from(["AND", "OR"]), "conditions": lists})


TEXT_FILTER = grouped(st.fixed_dictionaries({"type": st.sampled_from(TEXT_COMPARISONS), "filter": TEXT}) | BLANK)
MODEL = st.fixed_dictionaries(
    {},
    optional={
        "n": grouped(compared(NUMBER.filter(lambda n: abs(n) < 2**63))),
        "i": grouped(compared(st.integers(-3, 3) | st.just(2**40))),
        "x": grouped(compared(st.sampled_from([-1.5, 0.0, 1.0, 2, 3.5]))),
        "s": TEXT_FILTER,
        "c": TEXT_FILTER,
        "b": grouped(st.fixed_dictionaries({"type": st.just("equals"), "filter": st.sampled_from(["yes", "no"])})),
    },
)


def matches(value: Any, condition: dict[str, Any]) -> bool:
    """Return whether a value matches a condition. Null matches no comparison of numbers."""
    kind, wanted = condition["type"], condition.get("filter")
    if kind in ("blank", "notBlank"):
        return (value in (None, "")) == (kind == "blank")
    if isinstance(wanted, str):
        return text_matches("yes" if value is True else "no" if value is False else value, kind, wanted)
    if value is None:
        return False
    return {
        "equals": value == wanted,
        "notEqual": value != wanted,
        "lessThan": value < wanted,
        "lessThanOrEqual": value <= wanted,
        "greaterThan": value > wanted,
        "greaterThanOrEqual": value >= wanted,
        "inRange": wanted <= value <= condition.get("filterTo", wanted),
    }[kind]


def text_matches(value: str | None, kind: str, wanted: str) -> bool:
    held, text = (value or "").lower(), wanted.lower()
    contains = value is not None and text in held
    return {
        "contains": contains,
        "notContains": not contains,
        "equals": held == text,
        "notEqual": held != text,
        "startsWith": held.startswith(text),
        "endsWith": held.endswith(text),
    }[kind]


def row_matches(row: Row, model: dict[str, Any]) -> bool:
    def one(value: Any, each: dict[str, Any]) -> bool:
        join = any if each.get("operator") == "OR" else all
        return join(matches(value, c) for c in each.get("conditions", [each]))

    return all(one(row[name], each) for name, each in model.items())


def selected(rows: list[Row], condition: pl.Expr | None) -> list[int]:
    frame = pl.DataFrame(rows, schema=SCHEMA).with_row_index("_row")
    return frame["_row"].to_list() if condition is None else frame.filter(condition)["_row"].to_list()


@settings(max_examples=examples(800))
@given(ROWS, MODEL)
def test_filters_select_the_same_rows(rows: list[Row], model: dict[str, Any]) -> None:
    wanted = [i for i, row in enumerate(rows) if row_matches(row, model)]
    assert selected(rows, query.filter_expr(model, SCHEMA)) == wanted


@settings(max_examples=examples(400))
@given(ROWS, TEXT)
def test_the_search_finds_text_in_any_column(rows: list[Row], text: str) -> None:
    wanted = [
        i for i, r in enumerate(rows) if not text or any(text.lower() in (r[c] or "\0").lower() for c in ("s", "c"))
    ]
    assert selected(rows, query.search_expr(f" {text} ", SCHEMA)) == wanted


def test_the_search_reads_numbers_of_a_table_without_text() -> None:
    frame = pl.DataFrame({"n": [BIG, 7, None], "x": [1.5, 2.5, None]})
    assert frame.filter(query.search_expr(str(BIG)[-4:], frame.schema))["n"].to_list() == [BIG]
    assert frame.filter(query.search_expr("2.5", frame.schema))["n"].to_list() == [7]


def test_sort_orders_name_columns_and_directions() -> None:
    assert query.parse_sort_columns("s:desc,n:asc", SCHEMA) == [("s", True), ("n", False)]
    assert query.parse_sort_columns("", SCHEMA) == []


@pytest.mark.parametrize(
    "model",
    [
        {"nope": {"type": "equals", "filter": 1}},
        {"n": 5},
        {"n": {}},
        {"n": {"type": "equals", "filter": "1"}},
        {"n": {"type": "equals", "filter": True}},
        {"n": {"type": "equals", "filter": math.nan}},
        {"n": {"type": "equals", "filter": 2**63}},
        {"n": {"type": "inRange", "filter": 1}},
        {"n": {"type": ["equals"], "filter": 1}},
        {"n": {"type": "__class__", "filter": 1}},
        {"n": {"conditions": []}},
        {"n": {"conditions": [5]}},
        {"n": {"conditions": "x"}},
        {"n": {"conditions": [{"type": "equals", "filter": 1}] * 201}},
        {"s": {"type": "contains", "filter": 5}},
        {"s": {"type": ["contains"], "filter": "x"}},
        {"s": {"type": "regex", "filter": "x"}},
        {"s": {"type": "contains", "filter": "x" * 40_000}},
        {str(key): {"type": "blank"} for key in range(201)},
        [],
        "x",
    ],
)
def test_filters_that_are_not_valid(model: Any) -> None:
    with pytest.raises(TracekitError, match=r"filter|column"):
        query.filter_expr(model, SCHEMA)


@pytest.mark.parametrize("text", ["x", "n", "n:up", ":asc", "nope:asc", "n:asc:asc", ",".join(["n:asc"] * 201)])
def test_sort_orders_that_are_not_valid(text: str) -> None:
    with pytest.raises(TracekitError, match=r"sort order|column"):
        query.parse_sort_columns(text, SCHEMA)


def test_a_search_text_that_is_too_long() -> None:
    with pytest.raises(TracekitError, match="more than 32768 characters"):
        query.search_expr("x" * 40_000, SCHEMA)


def test_long_names_are_found() -> None:
    """The names of templates in C++ have thousands of characters, and links contain them."""
    name = "void kernel<" + "T, " * 5000 + "int>"
    frame = pl.DataFrame({"s": [name, name + "x", "y"]})
    for kind, rows in (("equals", 1), ("contains", 2)):
        condition = query.filter_expr({"s": {"type": kind, "filter": name}}, frame.schema)
        assert condition is not None
        assert frame.filter(condition).height == rows
    found = query.search_expr(name, frame.schema)
    assert found is not None
    assert frame.filter(found).height == 2
