"""Queries see the tables of a capture and nothing else, and are exact, bounded and interrupted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tracekit.answers import AnswerTable
from tracekit.errors import TracekitError
from tracekit.mcp import sql as sandbox
from tracekit.mcp.sql import MAX_ROWS, run_query

BIG = 2**62 + 1
KERNELS = pa.table(
    {"start_ns": [BIG, BIG + 2], "name": pa.array(["a", "b"]).dictionary_encode(), "bytes": [b"\1", None]}
)
secret = pa.table({"x": [42]})


def query(text: str, seconds: float = 20, reads: list[str] | None = None) -> AnswerTable:
    def read(name: str) -> pa.Table:
        (reads if reads is not None else []).append(name)
        return KERNELS if name == "kernels" else pa.table({"a": []})

    return run_query(text, lambda _: 2, read, memory_bytes=256 << 20, seconds=seconds)[0]


def rows(text: str) -> Sequence[Any]:
    return query(text).rows


def test_integers_are_exact() -> None:
    table = query("SELECT start_ns, sum(start_ns) OVER () AS total, avg(1.5) OVER () FROM kernels ORDER BY 1")
    assert table.rows == ((BIG, 2 * BIG + 2, 1.5), (BIG + 2, 2 * BIG + 2, 1.5))
    assert [column.type for column in table.columns][:2] == ["int64", "int128"]
    assert rows("SELECT 0.1::DECIMAL(38, 30), 'nan'::DOUBLE, bytes, [1, NULL], {'a': 1} FROM kernels LIMIT 1")[0][
        1:
    ] == (
        None,
        "01",
        [1, None],
        {"a": 1},
    )


def test_only_named_tables_are_read() -> None:
    reads: list[str] = []
    query("SELECT count(*) FROM Kernels k JOIN memcpys ON true", reads=reads)
    assert sorted(reads) == ["kernels", "memcpys"]


def test_columns_of_one_name_are_told_apart() -> None:
    assert [column.name for column in query("SELECT 1 AS a, 2 AS a, 3 AS b").columns] == ["a", "a:1", "b"]
    names = [column.name for column in query('SELECT 1 AS "a:1", 2 AS a, 3 AS a, 4 AS a').columns]
    assert names == ["a:1", "a", "a:2", "a:3"]


def test_large_and_deep_values_are_refused() -> None:
    assert query(f"SELECT {'[' * 20}1{']' * 20} AS a").to_dict()["rows"]
    for text, message in (
        (f"SELECT {'[' * 200}1{']' * 200}", "more than 32 lists and structures inside one another"),
        ("SELECT repeat('x', 20000000)", "the values of the first 1 rows have more than 16,777,216 characters"),
        ("SELECT repeat('x', 10000) FROM range(9000)", "of the first 1,678 rows have more than"),
        ("SELECT [repeat('x', 20000000)]", "have more than 16,777,216 characters"),
        (f"SELECT {','.join('1' * 1001)}", "the query has 1,001 columns, which is more than 1,000"),
    ):
        with pytest.raises(TracekitError, match=message):
            query(text)


def test_rows_are_limited() -> None:
    table = query("SELECT * FROM range(1000000)")
    assert len(table.rows) == MAX_ROWS
    assert "only the first 10,000 rows" in str(table.reason)
    assert query("SELECT * FROM kernels WHERE start_ns = 0").status == "nothing_found"


FORBIDDEN = [
    "SELECT * FROM read_csv('{file}')",
    "SELECT * FROM read_text('{file}')",
    "SELECT * FROM read_blob('{file}')",
    "SELECT * FROM '{file}'",
    "FROM '{file}'",
    "SELECT * FROM glob('{folder}/*')",
    "SELECT * FROM read_csv_auto(['{file}'])",
    "SELECT * FROM read_json('{file}')",
    "SELECT * FROM sniff_csv('{file}')",
    "SELECT * FROM secret",
    "SELECT * FROM KERNELS_",
    "COPY (SELECT 42) TO '{folder}/out.csv'",
    "ATTACH '{folder}/x.db'",
    "ATTACH ':memory:' AS other",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET enable_external_access = true",
    "RESET enable_external_access",
    "PRAGMA enable_profiling",
    "CREATE TABLE t AS SELECT 1",
    "DROP VIEW kernels",
    "EXPORT DATABASE '{folder}/out'",
    "IMPORT DATABASE '{folder}'",
    "CALL duckdb_settings()",
    "SELECT 1; SELECT 2",
    "SELECT 1; SET lock_configuration = false",
    "EXPLAIN ANALYZE SELECT 1",
    "SELECT getenv('HOME')",
    "SELECT * FROM query('COPY (SELECT 1) TO ''{folder}/out.csv''')",
    "SELECT * FROM query_table('{file}')",
    "SELECT * FROM sqlite_scan('{file}', 'a')",
    "SELECT * FROM parquet_scan('{file}')",
    "SELECT * FROM 'https://example.org/a.parquet'",
    "SELECT start_ns FROM kernels WHERE name =",
    "SELECT \ud800",
    "SELECT 1 \0",
    "",
    ";",
    "-- nothing",
    "(" * 5000,
    "SELECT " + "(" * 9000 + "1" + ")" * 9000,
    "SELECT " + "x" * 30_000,
]


def test_nothing_else_is_read_or_written(tmp_path: Path) -> None:
    file = tmp_path / "file.csv"
    file.write_text("password\nhunter2\n", "utf-8")
    for text in FORBIDDEN:
        with pytest.raises(TracekitError) as error:
            query(text.replace("{file}", str(file)).replace("{folder}", str(tmp_path)))
        assert "hunter2" not in str(error.value), text
        assert len(str(error.value)) < 2000, text
        assert list(tmp_path.iterdir()) == [file], text


def test_long_queries_are_interrupted() -> None:
    start = time.monotonic()
    with pytest.raises(TracekitError, match=r"took longer than 0\.5 s"):
        query("SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range * b.range % 7 = 3", seconds=0.5)
    assert time.monotonic() - start < 20


def test_memory_is_limited() -> None:
    with pytest.raises(TracekitError, match=r"(?i)memory"):
        query("SELECT list(range) FROM range(1000000000)")


def test_large_tables_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MAX_TABLE_ROWS", 3)
    with pytest.raises(TracekitError, match="have 4 rows, which is more than 3"):
        query("SELECT 1 FROM kernels, memcpys")
