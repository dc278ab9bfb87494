"""Text from files does nothing in a terminal, in JSON and in a spreadsheet."""

from __future__ import annotations

import json
import unicodedata

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracekit import text

ANY = st.text(st.characters(codec=None), max_size=20)
SURROGATES = st.text(st.characters(categories=("Cs", "Cc", "Cf", "Lu", "Zl", "Zp")), max_size=20)
UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def categories(shown: str) -> set[str]:
    return {unicodedata.category(c) for c in shown}


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("kernel<float, 3>(int*)", "kernel<float, 3>(int*)"),
        ("Übung 漢字 🚀", "Übung 漢字 🚀"),
        ("\x1b]0;title\x07\x1b[2J", r"\x1b]0;title\x07\x1b[2J"),
        ("a\tb\nc\rd", r"a\tb\nc\rd"),
        ("\x7f\x9b31m\x85", r"\x7f\x9b31m\x85"),
        ("\u202egnp.exe\u2066\u200f", r"\u202egnp.exe\u2066\u200f"),
        ("\u2028\u2029\ufeff\u200b", r"\u2028\u2029\ufeff\u200b"),
        ("\U000e0041", r"\U000e0041"),
        ("\udcff", r"\udcff"),
        ("", ""),
    ],
)
def test_printable(raw: str, shown: str) -> None:
    assert text.to_printable(raw) == shown


def test_surrogates_are_replaced() -> None:
    assert text.replace_surrogates("caf\udce9 \ud800 \U0001f680") == "caf\ufffd \ufffd \U0001f680"


@given(ANY | SURROGATES)
def test_nothing_acts_on_a_terminal(raw: str) -> None:
    shown = text.to_printable(raw)
    assert not categories(shown) & UNSAFE
    assert text.to_printable(shown) == shown
    assert text.to_printable(raw, keep="\n\x1b").replace("\n", "").replace("\x1b", "") == text.to_printable(
        raw.replace("\n", "").replace("\x1b", "")
    )


@given(st.recursive(ANY | SURROGATES, lambda inner: st.lists(inner) | st.dictionaries(ANY, inner), max_leaves=5))
def test_json_has_the_same_value(value: object) -> None:
    shown = text.escape_json_text(json.dumps(value, ensure_ascii=False, indent=1))
    assert not categories(shown.replace("\n", "")) & UNSAFE
    assert json.loads(shown) == value


FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1", "＋1", "－1", "＠1"]


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_formula_gets_an_apostrophe(formula: str) -> None:
    assert text.escape_formula(formula) == f"'{formula}"
    assert text.escape_formula(f" {formula}") == f" {formula}"


def test_frames_for_spreadsheets() -> None:
    frame = pl.DataFrame(
        {"name": ["=1", "plain", None], "=title": [-1, 2, 3], "kind": ["-x", "y", "@z"]},
        schema={"name": pl.String, "=title": pl.Int64, "kind": pl.Categorical},
    )
    safe = text.escape_formulas(frame)
    assert safe.columns == ["name", "'=title", "kind"]
    assert safe.rows() == [("'=1", -1, "'-x"), ("plain", 2, "y"), (None, 3, "'@z")]
    assert text.escape_formulas(safe).rows() == safe.rows()


def test_frames_without_text() -> None:
    frame = pl.DataFrame({"a": [1]})
    assert text.escape_formulas(frame).equals(frame)
