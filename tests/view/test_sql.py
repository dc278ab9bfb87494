"""Conditions in SQL: the same rows as SQLite selects, and what is refused."""

from __future__ import annotations

import math
import sqlite3
import sys
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
import tracekit as tk
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import examples
from tests.view.support import captures_of, table
from tracekit.errors import TracekitError
from tracekit.view import query as queries
from tracekit.view.query import filter_expr
from tracekit.view.sql import where_expr
from tracekit.view.state import CaptureAggregation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BIG = 2**53 + 1
SCHEMA = pl.Schema(
    {"n": pl.Int64, "i": pl.Int32, "x": pl.Float64, "s": pl.String, "c": pl.Categorical(), "b": pl.Boolean}
)
ROWS: list[tuple[Any, ...]] = [
    (1, 1, 0.5, "gemm", "a%b", True),
    (BIG, 2, 1.0, "Gemm_fp16", "a_b", False),
    (BIG + 1, 2, -2.25, "a.b*(c)", "", None),
    (-7, -3, None, "it's", None, True),
    (None, None, 3.0, None, "x\ny", False),
    (0, 0, 0.0, "", "ab", None),
    (6, 5, 8.0, "ZZ", "a%b", True),
]
FRAME = pl.DataFrame(ROWS, schema=SCHEMA, orient="row")

INTEGER = st.recursive(
    st.sampled_from(["n", "i", "I", '"n"', "0", "1", "2", "7", "-3", str(BIG), "(i)"]),
    lambda e: (
        st.tuples(e, st.sampled_from(["+", "-"]), e).map(" ".join) | e.map("ABS({})".format) | e.map("-({})".format)
    ),
    max_leaves=3,
)
REAL = st.sampled_from(["x", "0.5", "x * 2", "x + 1.5", "-x", "x / 4.0"])
TEXT = st.sampled_from(["s", "c", "'gemm'", "'it''s'", "''", "LOWER(s)", "UPPER(c)", "'a%b'"])
PATTERN = st.sampled_from(["'%'", "'_'", "'gemm%'", "'%b%'", "'a.b*(c)'", "'a__'", "''", "'%''s'", "'x_y'", "'%%__'"])
COMPARISON = st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">=", "=="])
NOT = st.sampled_from(["", "NOT "])


def joined(*parts: Any) -> st.SearchStrategy[str]:
    return st.tuples(*(st.just(p) if isinstance(p, str) else p for p in parts)).map(" ".join)


LEAF = st.one_of(
    joined(INTEGER, COMPARISON, INTEGER),
    joined(REAL, COMPARISON, REAL),
    joined(TEXT, COMPARISON, TEXT),
    joined(INTEGER, NOT, "BETWEEN", INTEGER, "AND", INTEGER),
    joined(INTEGER, NOT, "IN (", INTEGER, ",", INTEGER, ")"),
    joined(TEXT, NOT, "IN ('gemm', 'a%b',", TEXT, ")"),
    joined(st.sampled_from(["s", "c"]), NOT, "LIKE", PATTERN),
    joined(st.sampled_from(["n", "x", "s", "c", "b"]), "IS", NOT, "NULL"),
    joined("LENGTH(", TEXT, ")", COMPARISON, "2"),
    joined("n %", st.sampled_from(["2", "3", "-3"]), "=", st.sampled_from(["0", "1", "-1", "2"])),
    joined("b IS", NOT, st.sampled_from(["TRUE", "FALSE"])),
    st.sampled_from(["b", "NOT b", "b = TRUE", "TRUE", "FALSE"]),
)
CONDITION = st.recursive(
    LEAF,
    lambda e: st.one_of(
        st.tuples(e, st.sampled_from([" AND ", " or "]), e).map("".join), e.map("({})".format), e.map("NOT ({})".format)
    ),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def database() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.execute("PRAGMA case_sensitive_like = ON")
    connection.execute("CREATE TABLE t (n INTEGER, i INTEGER, x REAL, s TEXT, c TEXT, b INTEGER)")
    connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?, ?)", ROWS)
    yield connection
    connection.close()


def selected(condition: str) -> list[int]:
    return [r + 1 for r in FRAME.with_row_index("_row").filter(where_expr(condition, SCHEMA))["_row"].to_list()]


@settings(max_examples=examples(1600))
@given(condition=CONDITION)
def test_conditions_select_the_rows_that_sqlite_selects(database: sqlite3.Connection, condition: str) -> None:
    wanted = [row for (row,) in database.execute(f"SELECT rowid FROM t WHERE {condition} ORDER BY rowid")]
    assert selected(condition) == wanted


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("s ILIKE 'gemm%'", [1, 2]),
        ("s ILIKE '%É%'", []),
        ("n // 2 = 3", [7]),
        ("i / 2 = 2.5", [7]),
        (f"n = {BIG}", [2]),
        (f"n > {BIG}", [3]),
        ("c LIKE 'x_y'", [5]),
        ("n > 5 AND n < 7;", [7]),
        ("i = 3000000000", []),
        (f"n * n = {BIG} * {BIG}", [2]),
        (f"n * n > {BIG} * {BIG} AND n * 1024 > 9223372036854775807", [3]),
        ("n * 9223372036854775807 < 0", [4]),
        ("- n * 9223372036854775807 > 0", [4]),
        ("n / 0 > 1", []),
        ("n / 0 IS NULL", [1, 2, 3, 4, 5, 6, 7]),
        ("i / n < 1 AND n = 0", []),
        ("x / 0 > 1 OR x / 0.0 >= 0 OR n // 0 = n OR n % 0 = 0 OR x % 0 < 1", []),
        ("NOT (n / 0 > 1)", []),
        ("x / (x - x) IS NULL", [1, 2, 3, 4, 5, 6, 7]),
        ("i * i * i * i * i * i * i * i * i * i * i * i * i * i * i * i * i = 762939453125", [7]),
    ],
)
def test_what_sqlite_does_otherwise(condition: str, rows: list[int]) -> None:
    assert selected(condition) == rows


@settings(max_examples=examples(200))
@given(
    st.tuples(st.sampled_from(["n", "i", "x", "1", "0.5"]), st.sampled_from(["/", "%"])),
    st.sampled_from(["0", "0.0", "n", "i", "x", "n - n", "x * 0"]),
    COMPARISON,
    NOT,
)
def test_divisions_by_zero_are_null_as_in_sqlite(
    database: sqlite3.Connection, dividend: tuple[str, str], divisor: str, comparison: str, negation: str
) -> None:
    """A quotient of two integers is a float, and a remainder may be one, so only nulls are compared with SQLite."""
    value = f"{' '.join(dividend)} ({divisor})"
    nulls = [row for (row,) in database.execute(f"SELECT rowid FROM t WHERE 1.0 * {value} IS NULL ORDER BY rowid")]
    assert selected(f"{value} IS NULL") == nulls or "%" in value
    assert not set(selected(f"{negation} ({value} {comparison} 1)")) & set(selected(f"{value} IS NULL"))


def test_nan_is_null_as_on_the_page() -> None:
    frame = pl.DataFrame({"x": [float("nan"), 1.0, None, math.inf]})
    for condition, rows in (
        ("x > 0", [1, 3]),
        ("x IS NULL", [0, 2]),
        ("x * 2 > 0", [1, 3]),
        ("x - x IS NULL", [0, 2, 3]),
    ):
        found = frame.with_row_index("_row").filter(where_expr(condition, frame.schema))["_row"].to_list()
        assert found == rows, condition
    for comparison, rows in (("greaterThan", [1, 3]), ("blank", [0, 2]), ("notBlank", [1, 3])):
        expr = filter_expr({"x": {"type": comparison, "filter": 0}}, frame.schema)
        assert expr is not None
        assert frame.with_row_index("_row").filter(expr)["_row"].to_list() == rows, comparison


REFUSED = {
    "another table": ["t.n = 1", "n = (SELECT 1)", "EXISTS (SELECT 1)", "n IN (SELECT 1)", "(FROM 'secret.csv') = 1"],
    "files": ["read_csv('secret.csv')", "s = read_text('secret.csv')", "EXISTS (FROM 'secret.csv')", "glob('*') = 's'"],
    "memory": ["lpad(s, 1000000000, 'x') = 'a'", "repeat(s, 1000000000) = 'a'", "range(1000000000) = n"],
    "functions": ["version() = s", "getenv('HOME') = s", "count(*) = 1", "s ~ 'a'", "regexp_matches(s, '(a+)+$')"],
    "statements": ["n = 1; DROP TABLE t", "b; SELECT 1", "n = 1 UNION SELECT 1", "n = 1 LIMIT 1", "n = 1 GROUP BY n"],
    "clauses": ["n = 1 ORDER BY n", "TRUE QUALIFY TRUE", "n = 1 FOR UPDATE", "n = 1 USING SAMPLE 1", "n=1 HAVING TRUE"],
    "comments": ["n = 1 -- AND b", "n = 1 /* b */", "-- n = 1"],
    "parameters": ["n = ?", "n = $1", "n = :x"],
    "other operators": ["n & 1 = 1", "n << 1 = 2", "CAST(n AS INT) = 1", "s[1] = 'a'", "CASE WHEN b THEN b END"],
    "ranges": ["n BETWEEN SYMMETRIC 2 AND 1", "n BETWEEN 1 AND 's'"],
    "types": ["n = s", "n AND b", "n", "s = 1", "NOT n", "-b", "s LIKE s", "s LIKE 1"],
    "no numbers": ["s + s = s", "ABS(s) = 1", "(n = s) + 1 = 1"],
    "syntax": ["", " ", "n =", "n = 1 AND", "(n = 1", "n = 1)", "'", "n n", "b WHERE b", "n IS 5", "n IN ()", "*"],
    "unknown": ["nope = 1", "kernels = 1", "NULL", "n = NULL", "s LIKE 'a' ESCAPE 'a'", "n = 9223372036854775808"],
}  # fmt: skip


@pytest.mark.parametrize(
    "condition", [f"n * n * n > {BIG}", "n * n - n * n = 0", "ABS(n * n) + 1 > 0", "- (n * n) * 2 < 0"]
)
def test_integers_never_overflow_silently(condition: str) -> None:
    """An operation is exact, or it is an error if its operands have more than 64 bits."""
    trace = tk.Trace.from_tables({"kernels": table("kernels", [{"kernel_id": 1, "grid_id": BIG}])})
    query = queries.Query("table:kernels", CaptureAggregation(), condition=condition.replace("n", "grid_id"))
    with pytest.raises(TracekitError, match="64 bits") as error:
        queries.load_page(captures_of(trace), query, 0, 10)
    assert error.value.hint == "write 1.0 * COLUMN to compute with floats"
    exact = queries.Query("table:kernels", CaptureAggregation(), condition="1.0 * grid_id * grid_id * grid_id > 1")
    assert queries.load_page(captures_of(trace), exact, 0, 10).matching == 1


@pytest.mark.parametrize("condition", [c for each in REFUSED.values() for c in each])
def test_everything_else_is_refused(condition: str) -> None:
    with pytest.raises(TracekitError) as error:
        where_expr(condition, SCHEMA)
    assert error.value.message


@pytest.mark.parametrize(
    "condition",
    [
        "(" * 2000 + "n = 1" + ")" * 2000,
        "(" * 240 + "n = 1" + ")" * 240,
        "NOT " * 1000 + "b",
        "NOT " * 240 + "b",
        "- " * 2000 + "n = 1",
        "-(" * 200 + "n" + ")" * 200 + " = 1",
        "ABS(" * 200 + "n" + ")" * 200 + " = 1",
        " OR ".join(["n = 1"] * 300),
        "n = 1 OR " + "x" * 5000,
        "n IN (" + ", ".join(["1"] * 1000) + ")",
        "n" + " + n" * 900 + " = 1",
    ],
)
def test_conditions_that_are_too_long_or_nested_too_deeply(condition: str) -> None:
    with pytest.raises(TracekitError):
        where_expr(condition, SCHEMA)


def test_nesting_up_to_the_limit_needs_no_deep_stack() -> None:
    """A condition is either refused or translated, whatever the depth of its nesting."""
    for depth in range(1, 120, 3):
        for text in ("(" * depth + "b" + ")" * depth, "NOT " * depth + "b", "-(" * depth + "n" + ")" * depth + "= 1"):
            try:
                FRAME.filter(where_expr(text, SCHEMA))
            except TracekitError:
                continue


def test_no_condition_opens_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("a\n1\n")
    opened: list[str] = []
    active = True

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if active and event == "open" and "secret" in str(arguments[0]):
            opened.append(str(arguments[0]))

    sys.addaudithook(watch)
    for text in (c for each in REFUSED.values() for c in each):
        with pytest.raises(TracekitError):
            where_expr(text.replace("secret.csv", str(tmp_path / "secret.csv")), SCHEMA)
    active = False
    assert opened == []
