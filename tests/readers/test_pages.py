"""Integers decoded from pages are what SQLite reads, or nothing is decoded."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import examples
from tracekit.errors import TracekitError
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.sqlite import records, trees
from tracekit.readers.common.sqlite.pages import PageFile
from tracekit.readers.common.sqlite.records import ROWID, ColumnInfo
from tracekit.readers.common.sqlite.trees import LeafRun

if TYPE_CHECKING:
    from tracekit.readers.common.sqlite.records import DecodedColumn

CORPUS = Path(__file__).parents[3] / "shared" / "corpus"
FILES = sorted(CORPUS.glob("**/*.sqlite")) if CORPUS.is_dir() else []
HIGHEST, LOWEST = (1 << 63) - 1, -(1 << 63)


class Counts(NamedTuple):
    """How many runs of pages were decoded, and how many were left to SQLite."""

    decoded: int
    left: int


@contextlib.contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        connection.text_factory = bytes
        yield connection


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class Place(NamedTuple):
    """Where a table is: its root page, and the number of each column that may be decoded."""

    root: int
    columns: dict[str, int]


class Pages:
    """The pages of a file as the tests look at them."""

    def __init__(self, path: Path) -> None:
        self.file = PageFile(path)
        self.count = self.file.count

    def runs(self, root: int, size: int = 1 << 21) -> list[LeafRun]:
        return trees.split_into_page_runs(trees.read_tree(self.file, root), self.file.page_size, size)

    def decode(self, run: LeafRun, columns: list[int]) -> tuple[np.ndarray, list[DecodedColumn]] | None:
        block = self.file.read(run.pages)
        cells = trees.find_cells(self.file, block, run)
        assert trees.summarize_page_run(self.file, block, cells, run).rows == len(cells.rowids)
        found = records.decode_integers(block, cells, columns)
        return None if found is None else (cells.rowids, found)


def layouts(path: Path) -> dict[str, Place]:
    found = {}
    with opened(path) as connection:
        tables = connection.execute("SELECT name, rootpage, sql FROM sqlite_schema WHERE type = 'table'").fetchall()
        for name, root, sql in tables:
            info = connection.execute("SELECT * FROM pragma_table_xinfo(?)", (name.decode(),)).fetchall()
            columns = [
                ColumnInfo(cid, n.decode(), kind.decode(), null, None, pk, hid)
                for cid, n, kind, null, _, pk, hid in info
            ]
            if root and (place := records.find_decodable_columns(sql.decode(), columns)):
                found[name.decode()] = Place(root, place)
    return found


def stored(path: Path, table: str, columns: list[str], run: LeafRun) -> list[tuple[object, ...]]:
    """Rowid and columns of the rows of a run, read by SQLite."""
    select = ", ".join(["rowid", *map(quoted, columns)])
    sql = f"SELECT {select} FROM {quoted(table)} WHERE rowid BETWEEN ? AND ? ORDER BY rowid"
    with opened(path) as connection:
        return connection.execute(sql, (run.min_rowid, run.max_rowid)).fetchall()


def rows_of(found: tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray | None]]]) -> list[tuple[object, ...]]:
    rowids, columns = found
    lists = [rowids.tolist()]
    for values, valid in columns:
        assert values.dtype == np.int64
        assert len(values) == len(rowids)
        lists.append([v if ok else None for v, ok in zip(values.tolist(), _flags(values, valid), strict=True)])
    return list(zip(*lists, strict=True))


def _flags(values: np.ndarray, valid: np.ndarray | None) -> list[bool]:
    return [True] * len(values) if valid is None else valid.tolist()


def compare(path: Path, size: int = 1 << 21, *, short: bool = False) -> Counts:
    """Compare every table with SQLite: all columns that hold only integers together, and every column alone."""
    pages = Pages(path)
    decoded = left = 0
    for table, place in layouts(path).items():
        names = list(place.columns)
        runs = pages.runs(place.root, size)
        assert [r.min_rowid for r in runs] == [LOWEST, *(r.max_rowid + 1 for r in runs[:-1])]
        assert runs[-1].max_rowid == HIGHEST
        for run in runs:
            expected = stored(path, table, names, run)
            plain = [i for i, _ in enumerate(names) if all(isinstance(r[i + 1], int | None) for r in expected)]
            for choice in (plain, *([i] for i in range(len(names)))):
                found = pages.decode(run, [place.columns[names[i]] for i in choice])
                decoded, left = decoded + (found is not None), left + (found is None)
                if found is not None:
                    assert rows_of(found) == [(r[0], *(r[i + 1] for i in choice)) for r in expected]
                else:
                    assert short or any(i not in plain for i in choice)
    return Counts(decoded, left)


def test_fixtures_decode_as_sqlite_reads_them(capture: Path) -> None:
    counts = compare(capture)
    assert counts.decoded > counts.left
    assert compare(capture, 1 << 13).decoded > counts.decoded


@pytest.mark.corpus
@pytest.mark.skipif(not FILES, reason="no corpus beside the checkout")
@pytest.mark.parametrize("number", range(len(FILES)))
def test_corpus_decodes_as_sqlite_reads_it(number: int) -> None:
    try:
        counts = compare(FILES[number], short=True)
    except AssertionError:
        pytest.fail("a table differs", pytrace=False)
    assert counts.decoded > counts.left


WIDTHS = [
    0,
    1,
    -1,
    127,
    -128,
    128,
    32767,
    -32768,
    32768,
    8388607,
    -8388608,
    8388608,
    (1 << 31) - 1,
    -(1 << 31),
    1 << 31,
]
WIDE = [(1 << 47) - 1, -(1 << 47), 1 << 47, HIGHEST, LOWEST]
INTEGERS = st.sampled_from(WIDTHS + WIDE) | st.integers(LOWEST, HIGHEST) | st.integers(-300, 300)
TEXTS = st.integers(0, 140).map("x".__mul__) | st.sampled_from([400, 1000, 9000, 70000]).map("y".__mul__)
SMALL = st.none() | INTEGERS | INTEGERS
LOOSE = SMALL | TEXTS | st.floats(allow_nan=False) | TEXTS.map(str.encode)


@st.composite
def scripts(draw: st.DrawFn) -> tuple[int, int, list[str], list[tuple[object, ...]], list[str]]:
    """A page size, auto_vacuum, declared types, rows (rowid first) and what is done to the table afterwards."""
    kinds = draw(
        st.lists(st.sampled_from(["INTEGER", "INTEGER", "TEXT", "", "REAL", "BIGINT"]), min_size=1, max_size=9)
    )
    loose = draw(st.integers(0, 5)) == 0
    cells = [TEXTS if k == "TEXT" else LOOSE if k in ("", "REAL") or loose else SMALL for k in kinds]
    rowids = st.none() | st.integers(-500, 500) | INTEGERS
    rows = draw(st.lists(st.tuples(rowids, *cells), max_size=30)) * draw(st.sampled_from([1, 1, 20]))
    later = draw(st.lists(st.sampled_from(["delete", "alter", "vacuum", "update", "again"]), max_size=3))
    return draw(st.sampled_from([512, 1024, 4096, 65536])), draw(st.integers(0, 2)), kinds, rows, later


LATER = {
    "delete": "DELETE FROM t WHERE rowid % 3 = 0",
    "alter": "ALTER TABLE t ADD COLUMN n{} INTEGER DEFAULT 7",
    "vacuum": "VACUUM",
    "update": "UPDATE t SET c0 = 99 WHERE rowid % 2 = 0",
    "again": "INSERT INTO t(c0) SELECT c0 FROM t WHERE (SELECT max(rowid) FROM t) < 1000000 LIMIT 50",
}


@given(scripts())
def test_random_tables_decode_as_sqlite_reads_them(
    tmp_path_factory: pytest.TempPathFactory,
    script: tuple[int, int, list[str], list[tuple[object, ...]], list[str]],
) -> None:
    page_size, auto, kinds, rows, later = script
    path = tmp_path_factory.mktemp("random") / "a.sqlite"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(f"PRAGMA page_size = {page_size}")
        connection.execute(f"PRAGMA auto_vacuum = {auto}")
        connection.execute(f"CREATE TABLE t ({', '.join(f'c{i} {k}' for i, k in enumerate(kinds))})")
        marks = ", ".join("?" * (len(kinds) + 1))
        names = ", ".join(["rowid", *(f"c{i}" for i in range(len(kinds)))])
        connection.execute("BEGIN")
        for row in rows:  # SQLite picks random rowids, in vain when seeds are fixed, once the highest one is taken
            taken = connection.execute("SELECT max(rowid) = ? FROM t", (HIGHEST,)).fetchone()[0]
            rowid = 5 if taken and row[0] is None else row[0]
            connection.execute(f"INSERT OR REPLACE INTO t ({names}) VALUES ({marks})", (rowid, *row[1:]))
        connection.execute("COMMIT")
        for number, name in enumerate(later):
            connection.execute(LATER[name].format(number))
    wide = any(sum(len(v) if isinstance(v, str | bytes) else 9 for v in row) > 400 for row in rows)
    compare(path, 3 * page_size, short=wide or "alter" in later)
    path.unlink()


def made(path: Path, *statements: str) -> Path:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    return path


MANY = "WITH RECURSIVE k(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM k WHERE i < 5000)"


def test_columns_before_and_after_overflowing_text(tmp_path: Path) -> None:
    path = made(
        tmp_path / "a.sqlite",
        "CREATE TABLE t (a INTEGER, b TEXT, c INTEGER)",
        "INSERT INTO t VALUES (1, NULL, 2), (300, printf('%.*c', 3000, 'x'), 70000), (5, printf('%.*c', 9000, 'x'), 6)",
    )
    pages, place = Pages(path), layouts(path)["t"]
    (run,) = pages.runs(place.root)
    before = pages.decode(run, [0])
    assert before is not None
    assert rows_of(before) == [(1, 1), (2, 300), (3, 5)]
    assert pages.decode(run, [0, 2]) is None
    path = made(path, "DELETE FROM t WHERE rowid = 3")
    after = Pages(path).decode(run, [2, 0])
    assert after is not None
    assert rows_of(after) == [(1, 2, 1), (2, 70000, 300)]


def test_a_tree_of_three_levels_and_wide_records(tmp_path: Path) -> None:
    columns = ", ".join(f"c{i} INTEGER" for i in range(150))
    values = ", ".join(f"i * {i + 1}" for i in range(150))
    path = made(
        tmp_path / "a.sqlite",
        "PRAGMA page_size = 512",
        f"CREATE TABLE wide ({columns})",
        f"{MANY} INSERT INTO wide SELECT {values} FROM k LIMIT 1",
        "CREATE TABLE deep (a INTEGER)",
        f"{MANY} INSERT INTO deep SELECT i * i FROM k",
    )
    pages, places = Pages(path), layouts(path)
    counts = compare(path, 2048, short=True)
    assert counts.decoded > 2 * len(pages.runs(places["deep"].root, 2048))
    made(path, "DROP TABLE deep", "PRAGMA page_size = 4096", "VACUUM")
    assert compare(path).left == 0


def test_the_rowid_has_other_names(tmp_path: Path) -> None:
    path = made(
        tmp_path / "a.sqlite",
        "CREATE TABLE t (a TEXT, id INTEGER PRIMARY KEY, b INTEGER, c DOUBLE)",
        "CREATE TABLE d (id INTEGER PRIMARY KEY DESC, b INTEGER)",
        "CREATE TABLE two (a INTEGER, b INTEGER, PRIMARY KEY (a, b))",
        "INSERT INTO t VALUES ('x', -7, 8, 1), ('y', 9, 10, 2)",
        "INSERT INTO d VALUES (70, 1), (60, 2)",
        "INSERT INTO two VALUES (1, 2)",
    )
    found = layouts(path)
    assert found["t"].columns == {"a": 0, "id": ROWID, "b": 2}
    assert found["d"].columns == {"b": 1}
    assert found["two"].columns == {"a": 0, "b": 1}
    compare(path)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE t (a INTEGER PRIMARY KEY, b) WITHOUT ROWID",
        "CREATE TABLE t (a INTEGER, b INTEGER AS (a + 1))",
        "CREATE TABLE t (a INTEGER, b INTEGER AS (a + 1) STORED)",
        "CREATE VIRTUAL TABLE t USING fts5(a)",
    ],
)
def test_other_tables_have_no_layout(tmp_path: Path, statement: str) -> None:
    assert "t" not in layouts(made(tmp_path / "a.sqlite", statement))


def test_an_index_is_no_table(tmp_path: Path) -> None:
    path = made(
        tmp_path / "a.sqlite",
        "CREATE TABLE t (a INTEGER PRIMARY KEY, b) WITHOUT ROWID",
        f"{MANY} INSERT INTO t SELECT i, i FROM k",
    )
    with pytest.raises(Damage, match="page 2 belongs to an index or a WITHOUT ROWID table"):
        Pages(path).runs(2)


def test_the_schema_on_the_first_page(tmp_path: Path) -> None:
    path = made(tmp_path / "a.sqlite", "CREATE TABLE t (a)", "CREATE TABLE u (a)")
    pages = Pages(path)
    (run,) = pages.runs(1)
    found = pages.decode(run, [3])
    assert found is not None
    assert rows_of(found) == [(1, 2), (2, 3)]


def test_broken_trees_are_named(tmp_path: Path) -> None:
    path = made(tmp_path / "a.sqlite", "CREATE TABLE t (a INTEGER)", f"{MANY} INSERT INTO t SELECT i FROM k")
    whole = path.read_bytes()
    pages = Pages(path)
    with pytest.raises(Damage, match=rf"refers to page {pages.count + 1}, but only the pages 1 to {pages.count}"):
        pages.runs(pages.count + 1)
    for child, message in ((0, "refers to page 0"), (1, "refers to page 1"), (2, "used twice"), (3, "used twice")):
        data = bytearray(whole)
        data[4096 + 8 : 4096 + 12] = struct.pack(">I", child)
        path.write_bytes(data)
        with pytest.raises(Damage, match=message):
            Pages(path).runs(2)
    data = bytearray(whole)
    data[16:18] = struct.pack(">H", 1000)
    path.write_bytes(data)
    with pytest.raises(Damage, match="pages of 1000 bytes with 0 reserved bytes, but SQLite requires a power of two"):
        Pages(path)


def test_a_file_that_changes_meanwhile_is_an_error(tmp_path: Path) -> None:
    path = made(tmp_path / "a.sqlite", "CREATE TABLE t (a INTEGER)", f"{MANY} INSERT INTO t SELECT i FROM k")
    pages = Pages(path)
    (run,) = pages.runs(2)
    path.write_bytes(path.read_bytes()[: 5 * 4096])
    with pytest.raises(TracekitError, match="changed while it was open: it had"):
        pages.decode(run, [0])
    path.write_bytes(b"")
    with pytest.raises(TracekitError, match="changed while it was open: it had"):
        pages.runs(2)
    path.unlink()
    with pytest.raises(TracekitError, match="was removed while it was open"):
        pages.decode(run, [0])


def test_flipped_bytes_give_values_or_nothing_or_our_error(tmp_path: Path) -> None:
    path = made(
        tmp_path / "a.sqlite",
        "PRAGMA page_size = 512",
        "CREATE TABLE t (a INTEGER, b TEXT, c INTEGER, d INTEGER)",
        f"{MANY} INSERT INTO t SELECT i * i, CASE i % 9 WHEN 0 THEN printf('%.*c', i % 400, 'x') END, -i, i % 2 FROM k LIMIT 900",  # noqa: E501
    )
    whole, count = path.read_bytes(), Pages(path).count
    chance = random.Random(11)
    outcomes = {"values": 0, "left": 0, "error": 0}
    for _ in range(examples(900)):
        data = bytearray(whole)
        for _ in range(chance.choice((1, 1, 4, 200))):
            page = chance.randrange(1, count)
            at = page * 512 + (chance.randrange(24) if chance.random() < 0.5 else chance.randrange(512))
            data[at] = chance.choice((0, 255, 128, 5, 13, chance.randrange(256)))
        path.write_bytes(data)
        pages = Pages(path)
        try:
            found = [pages.decode(run, [0, 2, 3]) for run in pages.runs(2, 1 << 13)]
        except Damage:
            outcomes["error"] += 1
        else:
            left = sum(f is None for f in found)
            outcomes["left"] += left
            outcomes["values"] += len(found) - left
    assert all(outcomes.values()), outcomes
