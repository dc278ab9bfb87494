"""What is checked of the pages of a SQLite file, one lie at a time, and how an error says where it is."""

from __future__ import annotations

import contextlib
import sqlite3
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import tracekit as tk
from tests.builders.nsys_sqlite import FIXTURES, edited
from tests.fuzz.sqlite_pages import Pages, changed, number
from tests.fuzz.sqlite_pages import edited as edited_bytes
from tracekit.errors import CorruptTraceError, TracekitError, TracekitWarning
from tracekit.readers.common import columns as col
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.sqlite import catalogue, connections, database, pages, tables, trees
from tracekit.readers.common.sqlite.database import Database
from tracekit.readers.common.sqlite.pages import PageFile
from tracekit.readers.nsys.tables import Where
from tracekit.registry.source import Source

ROWS = 4000
LONG, LONG_ROWS = 3000, 16
SMALL = FIXTURES / "graph_node.sqlite"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A database of 512-byte pages: a table three levels deep, one of long texts, and one of a single page."""
    path = tmp_path_factory.mktemp("whole") / "whole.sqlite"
    many = "WITH RECURSIVE k(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM k WHERE i < {})"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA page_size = 512")
        db.execute("CREATE TABLE deep (a INTEGER, b INTEGER, c TEXT)")
        db.execute(f"INSERT INTO deep {many.format(ROWS)} SELECT i, i * i, 'text ' || i FROM k")
        db.execute("CREATE TABLE long (a INTEGER, t TEXT)")
        db.execute(f"INSERT INTO long {many.format(LONG_ROWS)} SELECT i, printf('%.*c', {LONG}, 'x') || i FROM k")
        db.execute("CREATE TABLE single (a INTEGER)")
        db.execute("INSERT INTO single VALUES (1), (2), (3)")
        db.execute("CREATE TABLE empty (a INTEGER)")
        db.commit()
    return path.read_bytes()


def opened(path: Path, file: bytes) -> Database:
    path.write_bytes(file)
    return Database(Source(path))


def tree_of(file: bytes, table: str) -> tuple[list[int], list[int]]:
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.deserialize(file)
        ((root,),) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchall()
    return Pages(file).tree(root)


def said(path: Path, file: bytes, table: str = "deep") -> str:
    """Count and read a damaged table; return what both say."""
    messages = []
    for ask in (lambda d: d.count_table_rows(table), lambda d: d.read_columns(table, {"a": pa.int64()})):
        with contextlib.closing(opened(path, file)) as db, pytest.raises(CorruptTraceError) as caught:
            ask(db)
        assert caught.value.table == table
        messages.append(str(caught.value).partition("cannot be read: ")[2].partition("\n")[0])
    assert messages[0] == messages[1]
    return messages[0]


def test_the_whole_file(whole: bytes, tmp_path: Path) -> None:
    inner, leaves = tree_of(whole, "deep")
    assert len(inner) > 3
    assert len(leaves) > 100
    with contextlib.closing(opened(tmp_path / "x", whole)) as db:
        assert db.count_rows([("deep", None), ("long", None), ("empty", None), ("absent", None)]) == [
            ROWS,
            LONG_ROWS,
            0,
            0,
        ]
        columns, repaired = db.read_columns("deep", {"rowid": pa.int64(), "b": pa.int64(), "c": pa.string()})
        assert columns["b"].to_pylist() == [i * i for i in range(1, ROWS + 1)]
        assert columns["c"].to_pylist()[-1] == f"text {ROWS}"
        assert not +repaired
        assert db.compute_max_rows("deep") == ROWS
        assert db.read_first_row("deep", ["a", "c"]) == {"a": 1, "c": "text 1"}
        assert db.read_first_row("empty", ["a"]) == {}
        assert db.find_rowid("deep", ROWS - 1) == ROWS
        assert db.find_rowid("deep", 1, Where("a", (5, 7, 9))) == 7
        assert db.find_rowid("deep", ROWS) is None


def test_rows_at_most_before_any_is_read(whole: bytes, tmp_path: Path) -> None:
    with contextlib.closing(opened(tmp_path / "x", whole)) as db:
        assert [db.compute_max_rows(t) for t in ("deep", "single", "empty", "long")] == [ROWS, 3, 0, LONG_ROWS]


@pytest.mark.parametrize("child", ["zero", "beyond", "first page", "itself", "sibling", "parent"])
def test_pages_that_lead_elsewhere(whole: bytes, tmp_path: Path, child: str) -> None:
    pages, (inner, _) = Pages(whole), tree_of(whole, "deep")
    page = inner[1]
    at = pages.children(page)[1]
    to = {
        "zero": 0,
        "beyond": pages.count + 1,
        "first page": 1,
        "itself": page,
        "sibling": pages.number(pages.children(page)[0]),
        "parent": inner[0],
    }[child]
    message = said(tmp_path / "x", changed(whole, (at, number(to))))
    if child in ("zero", "beyond", "first page"):
        assert message == f"a B-tree refers to page {to}, but only the pages 2 to {pages.count} are allowed"
    else:
        assert message == f"page {to} is used twice"


def test_pages_of_another_table(whole: bytes, tmp_path: Path) -> None:
    pages, (inner, _) = Pages(whole), tree_of(whole, "deep")
    _, (single,) = tree_of(whole, "single")
    file = changed(whole, (pages.children(inner[1])[1], number(single)))
    with contextlib.closing(opened(tmp_path / "x", file)) as db:
        assert db.count_table_rows("single") == 3
        with pytest.raises(CorruptTraceError, match=f"page {single} is used twice"):
            db.count_table_rows("deep")
    assert said(tmp_path / "x", file) == f"page {single} has rowids outside the range that its parent pages declare"


def test_two_tables_in_one_place(whole: bytes, tmp_path: Path) -> None:
    (single,), (empty,) = tree_of(whole, "single")[1], tree_of(whole, "empty")[1]
    file = edited_bytes(whole, f"UPDATE sqlite_schema SET rootpage = {single} WHERE rootpage = {empty}")
    with contextlib.closing(opened(tmp_path / "x", file)) as db:
        assert db.count_table_rows("single") == 3
        with pytest.raises(CorruptTraceError, match=f"table empty: cannot be read: page {single} is used twice"):
            db.count_table_rows("empty")


def test_too_many_levels(whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "MAX_DEPTH", 2)
    (root, *_), _ = tree_of(whole, "deep")
    assert said(tmp_path / "x", whole) == f"the B-tree with the root page {root} has more than 2 levels"


def test_the_page_that_sqlite_never_uses(whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, leaves = tree_of(whole, "deep")
    monkeypatch.setattr(trees, "LOCK_BYTE", 512 * (leaves[3] - 1) + 100)
    assert (
        said(tmp_path / "x", whole)
        == f"a B-tree refers to page {leaves[3]}, the lock-byte page, which SQLite never uses"
    )


Lie = Callable[[Pages, list[int], list[int]], tuple[int, tuple[tuple[int, bytes], ...]]]
"""From the inner pages and leaves of a table: the page that an error is to name, and what is changed."""


def short(value: int) -> bytes:
    return struct.pack(">H", value)


def inner_kind(it: Pages, inner: list[int], _: list[int]) -> tuple[int, tuple[tuple[int, bytes], ...]]:
    return inner[2], ((it.head(inner[2]), b"\x0d"),)


def leaf_kind(it: Pages, _: list[int], leaves: list[int]) -> tuple[int, tuple[tuple[int, bytes], ...]]:
    return leaves[5], ((it.head(leaves[5]), b"\x05"),)


def no_keys(it: Pages, inner: list[int], _: list[int]) -> tuple[int, tuple[tuple[int, bytes], ...]]:
    return inner[1], ((it.head(inner[1]) + 3, short(0)),)


def swapped_keys(it: Pages, inner: list[int], _: list[int]) -> tuple[int, tuple[tuple[int, bytes], ...]]:
    first, second, *_rest = it.pointers(inner[1])
    third = it.number(it.children(inner[1])[0])
    return third, ((first, short(it.short(second))), (second, short(it.short(first))))


def key_beyond(it: Pages, inner: list[int], _: list[int]) -> tuple[int, tuple[tuple[int, bytes], ...]]:
    return inner[1], ((it.pointers(inner[1])[0], short(it.size - 4)),)


def more_rows(it: Pages, _: list[int], leaves: list[int]) -> tuple[int, tuple[tuple[int, bytes], ...]]:
    return leaves[5], ((it.head(leaves[5]) + 3, short(500)),)


def more_rows_than_room(it: Pages, _: list[int], leaves: list[int]) -> tuple[int, tuple[tuple[int, bytes], ...]]:
    return leaves[5], ((it.head(leaves[5]) + 3, short(80)),)


def pointer_into_head(it: Pages, _: list[int], leaves: list[int]) -> tuple[int, tuple[tuple[int, bytes], ...]]:
    return leaves[5], ((it.pointers(leaves[5])[1], short(9)),)


def pointer_to_end(it: Pages, _: list[int], leaves: list[int]) -> tuple[int, tuple[tuple[int, bytes], ...]]:
    return leaves[5], ((it.pointers(leaves[5])[1], short(it.size - 3)),)


def no_payload(it: Pages, _: list[int], leaves: list[int]) -> tuple[int, tuple[tuple[int, bytes], ...]]:
    return leaves[5], ((it.cells(leaves[5])[2].at, b"\x00"),)


def long_payload(it: Pages, _: list[int], leaves: list[int]) -> tuple[int, tuple[tuple[int, bytes], ...]]:
    return leaves[5], ((it.cells(leaves[5])[2].at, b"\x83\xdc\xcc\xd6\x00"),)


def reaching_over(it: Pages, _: list[int], leaves: list[int]) -> tuple[int, tuple[tuple[int, bytes], ...]]:
    return leaves[5], ((it.cells(leaves[5])[0].at, b"\x70"),)


def overlapping(it: Pages, _: list[int], leaves: list[int]) -> tuple[int, tuple[tuple[int, bytes], ...]]:
    return leaves[5], ((it.cells(leaves[5])[3].at, b"\x30"),)


def same_row(it: Pages, _: list[int], leaves: list[int]) -> tuple[int, tuple[tuple[int, bytes], ...]]:
    first, second, *_rest = it.pointers(leaves[5])
    return leaves[5], ((second, short(it.short(first))),)


def exchanged_rows(it: Pages, _: list[int], leaves: list[int]) -> tuple[int, tuple[tuple[int, bytes], ...]]:
    first, second, *_rest = it.pointers(leaves[5])
    return leaves[5], ((first, short(it.short(second))), (second, short(it.short(first))))


def high_rowid(it: Pages, _: list[int], leaves: list[int]) -> tuple[int, tuple[tuple[int, bytes], ...]]:
    cell = it.cells(leaves[-2])[-1]
    return leaves[-2], ((cell.at + 1, bytes([it.file[cell.at + 1], it.file[cell.at + 2] + 1])),)


def no_rows(it: Pages, _: list[int], leaves: list[int]) -> tuple[int, tuple[tuple[int, bytes], ...]]:
    return leaves[5], ((it.head(leaves[5]) + 3, short(0)),)


@pytest.mark.parametrize(
    ("lie", "what"),
    [
        (inner_kind, "is not an inner page of a table"),
        (leaf_kind, "is not a leaf page of a table"),
        (no_keys, "has no keys"),
        (swapped_keys, "has parent pages whose keys are not in order"),
        (key_beyond, "has a key that extends beyond the end of the page"),
        (more_rows, "declares more cells than fit on it"),
        (more_rows_than_room, "has a pointer to a cell outside the page"),
        (pointer_into_head, "has a pointer to a cell outside the page"),
        (pointer_to_end, "has a pointer to a cell outside the page"),
        (no_payload, "has a record that is empty or larger than the file"),
        (long_payload, "has a record that is empty or larger than the file"),
        (reaching_over, "has a row that extends beyond the end of the page"),
        (overlapping, "has rows that overlap"),
        (same_row, "has rows that overlap"),
        (exchanged_rows, "has rowids that are not in order"),
        (high_rowid, "has rowids outside the range that its parent pages declare"),
        (no_rows, "has no rows"),
    ],
)
def test_what_a_page_may_not_say(whole: bytes, tmp_path: Path, lie: Lie, what: str) -> None:
    page, places = lie(Pages(whole), *tree_of(whole, "deep"))
    assert said(tmp_path / "x", changed(whole, *places)) == f"page {page} {what}".replace(" :", ":")


def test_rows_that_share_their_overflow_pages(whole: bytes, tmp_path: Path) -> None:
    pages = Pages(whole)
    first, second = (c for c in pages.long_cells()[:2])
    shared = pages.number(first.end)
    message = said(tmp_path / "x", changed(whole, (second.end, number(shared))), "long")
    assert message == f"page {shared} is used twice"
    message = said(tmp_path / "x", changed(whole, (second.end, number(pages.count + 7))), "long")
    assert message == f"a row refers to page {pages.count + 7}, but only the pages 1 to {pages.count} are in the file"


@pytest.mark.parametrize("size", [1, 1 << 21])
def test_rows_that_claim_more_than_the_file_has(
    whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    pages = Pages(whole)
    places = []
    for cell in pages.long_cells():
        more = cell.payload + 26 * (pages.usable - 4)  # as many bytes of it are on the leaf
        places.append((cell.at, bytes([more >> 7 | 0x80, more & 0x7F])))
    assert len(places) == LONG_ROWS
    monkeypatch.setattr(tables, "RUN_BYTES", size)
    message = said(tmp_path / "x", changed(whole, *places), "long")
    who = "the rows of the table" if size == 1 else f"page {tree_of(whole, 'long')[1][0]} and the pages after it"
    assert message.startswith(f"{who} declare ")
    assert message.endswith("more than the file has")


def test_texts_are_read_in_batches(whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "BATCH_BYTES", 2 * LONG)
    sizes: list[int] = []
    real = connections.ConnectionPool.fetch

    def fetch(self: connections.ConnectionPool, *arguments: object) -> Iterator[pa.RecordBatch]:
        for batch in real(self, *arguments):  # type: ignore[arg-type]
            sizes.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(connections.ConnectionPool, "fetch", fetch)
    with contextlib.closing(opened(tmp_path / "x", whole)) as db:
        for where, rows in ((None, LONG_ROWS), (Where("a", tuple(range(3, 9))), 6)):
            sizes.clear()
            columns, _ = db.read_columns("long", {"t": pa.string()}, where)
            assert len(columns["t"]) == sum(sizes) == rows
            assert max(sizes) <= 3
            first = 3 if where else 1
            assert [t[LONG:] for t in columns["t"].to_pylist()] == [str(n) for n in range(first, first + rows)]


def test_more_text_than_an_array_holds(whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(col, "MAX_TEXT_BYTES", LONG_ROWS * LONG)
    with contextlib.closing(opened(tmp_path / "x", whole)) as db:
        with pytest.raises(
            CorruptTraceError,
            match=rf"table long: column t holds \d+ bytes of text, but tracekit supports at most {LONG_ROWS * LONG}",
        ):
            db.read_columns("long", {"t": pa.string()})
        db.chunked_columns = frozenset({"t"})
        assert len(db.read_columns("long", {"t": pa.string()})[0]["t"]) == LONG_ROWS


def test_what_a_driver_may_not_return() -> None:
    lying = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(np.array([0, 50, 3], np.int32)), pa.py_buffer(b"text")]
    )
    with pytest.raises(pa.ArrowInvalid):
        connections.validate_batch(pa.RecordBatch.from_arrays([lying], ["a"]))
    with pytest.raises(Damage, match="SQLite returned column 'a' with the type date32"):
        connections.validate_batch(pa.RecordBatch.from_arrays([pa.array([1], pa.int32()).cast(pa.date32())], ["a"]))
    texts, numbers = pa.array(["a", None, "b"]), pa.array([1, 2, 3])
    whole = connections.validate_batch(pa.RecordBatch.from_arrays([texts, numbers], ["a", "b"]))
    assert whole.to_pydict() == {"a": [b"a", None, b"b"], "b": [1, 2, 3]}


def test_a_query_that_takes_too_many_steps(whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(opened(tmp_path / "x", whole)) as db:
        assert db.read_first_row("deep", ["a"]) == {"a": 1}
        monkeypatch.setattr(connections, "STEPS", 10_000)
        monkeypatch.setattr(connections, "STEPS_PER_BYTE", 0)
        monkeypatch.setattr(connections, "_STEPS_AT_A_TIME", 1000)
        db.close()
        with pytest.raises(
            CorruptTraceError,
            match=r"a query executes more than 10,000 SQLite instructions, the maximum that tracekit allows for",
        ):
            db.create_wrong_type_error("deep", "a", "integer")


@pytest.mark.parametrize("always", [True, False])
def test_conditions(whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, always: bool) -> None:
    monkeypatch.setattr(database, "LARGE_RUNS", 0 if always else 1 << 30)
    monkeypatch.setattr(tables, "RUN_BYTES", 4096)
    file = tmp_path / "x"
    file.write_bytes(whole)
    with contextlib.closing(sqlite3.connect(file)) as db:
        db.execute("UPDATE deep SET b = NULL WHERE a % 3 = 0")
        db.execute("UPDATE deep SET b = 'text' WHERE a = 1000")
        db.commit()
    wanted = [("deep", None), ("deep", Where("b")), ("deep", Where("b", (1, 4, 9, 16, 77)))]
    with contextlib.closing(Database(Source(file))) as opened_:
        assert opened_.count_rows(wanted) == [ROWS, ROWS - ROWS // 3, 3]
        for _, where in wanted:
            columns, _ = opened_.read_columns("deep", {"a": pa.int64(), "c": pa.string()}, where)
            assert len(columns["a"]) == len(columns["c"]) == opened_.count_table_rows("deep", where)
        what = "table deep, row 1000: column b must hold values of type integer, but holds text"
        with pytest.raises(CorruptTraceError, match=what):
            opened_.read_columns("deep", {"b": pa.int64()})
        with pytest.raises(CorruptTraceError, match="table deep: cannot be read: the table has no column x"):
            opened_.count_table_rows("deep", Where("x"))


def test_a_condition_that_others_meet_later(whole: bytes, tmp_path: Path) -> None:
    with contextlib.closing(opened(tmp_path / "x", whole)) as db:
        assert db.count_table_rows("single", Where("a", (1, 2))) == 2
        with pytest.raises(Damage, match=r"disagree: 2 rows matched a condition at first, but 3 matched it later"):
            db._get_checked_table("single").record_match_count(0, ("a", (1, 2)), 3)


def test_a_table_whose_rows_have_no_name(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE t (rowid, _rowid_, oid, a TEXT)")
        db.execute("INSERT INTO t VALUES (1, 2, 3, 'x')")
        db.commit()
    with contextlib.closing(Database(Source(path))) as opened_:
        assert opened_.count_table_rows("t") == 1
        with pytest.raises(
            CorruptTraceError, match="table t: cannot be read: the table has columns named rowid, _rowid_ and oid"
        ):
            opened_.read_columns("t", {"a": pa.string()})


def test_the_schema_is_read_as_sqlite_reads_it(tmp_path: Path) -> None:
    paths = [SMALL]
    for encoding in ("UTF-16le", "UTF-16be"):
        paths.append(tmp_path / encoding)
        with contextlib.closing(sqlite3.connect(paths[-1])) as db:
            db.execute(f"PRAGMA encoding = '{encoding}'")
            db.execute(f"CREATE TABLE t (a, 'größer' TEXT, {', '.join(f'c{n}' for n in range(400))})")
            db.execute("CREATE INDEX i ON t (a)")
            db.execute("CREATE TABLE u (a UNIQUE)")
            db.execute("CREATE VIEW v AS SELECT * FROM t")
            db.commit()
    for path in paths:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)) as db:
            rows = db.execute("SELECT type, name, rootpage, ifnull(sql, '') FROM sqlite_schema").fetchall()
        assert [tuple(e) for e in catalogue.read_schema(PageFile(path)).entries] == rows
        assert catalogue.read_table_names(path) == {n for kind, n, *_ in rows if kind == "table"}


def test_a_damaged_schema_is_an_error(tmp_path: Path) -> None:
    whole = SMALL.read_bytes()
    pages = Pages(whole)
    (root,), leaves = pages.tree(1)
    cell = pages.cells(leaves[0])[0]
    long = next(c for page in leaves for c in pages.cells(page) if c.end - c.record < c.payload)
    lies = {
        "belongs to an index": (pages.head(1), b"\x02"),
        "page 999999, but only the pages 2 to": (long.end, number(999_999)),
        "a truncated record": (cell.record + 1, b"\x7f"),
        "has rows that overlap|rowids that are not in order": (
            pages.pointers(leaves[0])[0],
            short(pages.short(pages.pointers(leaves[0])[1])),
        ),
    }
    assert root == 1
    path = tmp_path / "x"
    for message, place in lies.items():
        path.write_bytes(changed(whole, place))
        with pytest.raises(CorruptTraceError, match=message):
            Database(Source(path))
        assert catalogue.read_table_names(path) is None
        with pytest.raises(CorruptTraceError):
            tk.load(path)


def test_pages_that_the_header_does_not_count(tmp_path: Path) -> None:
    path = edited(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data + bytes(5000))
    with pytest.warns(TracekitWarning, match="5,000 bytes after its end are ignored"), tk.load(path) as trace:
        assert trace.count("kernels") == 52
    assert PageFile(path).count == len(data) // 4096
    path.write_bytes(changed(data, (28, number(0))))
    assert PageFile(path).count == len(data) // 4096


def test_a_read_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = edited(tmp_path)
    with contextlib.closing(Database(Source(path))) as db:

        def fail(*_: object) -> bool:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(pages, "_read_until_full", fail)
        with pytest.raises(TracekitError) as caught:
            db.count_table_rows("StringIds")
        assert str(caught.value).startswith(f"{path}: the file cannot be read: Input/output error\nHint: copy it again")
        monkeypatch.setattr(pages, "_read_until_full", lambda *_: False)
        with pytest.raises(
            CorruptTraceError,
            match=r"table PROCESSES: .*: the file ends before page \d+",
        ):
            db.count_table_rows("PROCESSES")


def test_connections_that_are_closed_while_they_are_lent(whole: bytes, tmp_path: Path) -> None:
    with contextlib.closing(opened(tmp_path / "x", whole)) as db:
        for batch in db._connections.fetch("SELECT a FROM single", (), 3):
            db.close()
            assert batch.num_rows == 3
        assert db._connections.idle == []
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            db._connections.query("SELECT * FROM nowhere")


def test_numbers_of_nine_bytes_in_the_schema() -> None:
    assert catalogue._decode_varint(b"\x81\x82" + b"\x80" * 6 + b"\xff", 0) == (1 << 57 | 2 << 50 | 0xFF, 9)
    with pytest.raises(Damage, match="truncated"):
        catalogue._decode_varint(b"\x81\x82", 0)
