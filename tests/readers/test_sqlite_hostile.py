"""SQLite files made to do harm: each ends in an error of ours, within limits that the system holds."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import tracekit as tk
from tests import fork_server
from tests.builders.dlprof_db import database as dlprof_database
from tests.builders.nsys_sqlite import FIXTURES, KERNEL, edited, plain, untouched
from tests.conftest import ALL
from tests.fuzz import nsys_sqlite, sqlite_pages
from tests.fuzz.sqlite_pages import Pages, changed, number
from tracekit.errors import CorruptTraceError, TracekitError
from tracekit.readers.common import columns
from tracekit.readers.common.sqlite import connections, database, tables
from tracekit.readers.nsys_sqlite.tables import ExportTables
from tracekit.registry.source import Source

SYNC = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the system does not limit memory")
SECONDS, BYTES = 20, 2 << 30
READ = """
import resource, sys, warnings
import tracekit as tk
import adbc_driver_sqlite.dbapi, polars
limit, bytes_, seconds = getattr(resource, sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
warnings.simplefilter("ignore")
resource.setrlimit(limit, (bytes_, bytes_))
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
try:
    with tk.load(sys.argv[4]) as trace:
        for name in sys.argv[5:] or trace.tables:
            rows = trace.count(name)
            assert trace[name].num_rows == rows
            print(name, rows)
except tk.TracekitError as e:
    print(type(e).__name__, str(e).partition(": ")[2])
"""
MANY = "WITH RECURSIVE k(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM k WHERE i < {})"


def read(path: Path, *tables: str, limit: str = "RLIMIT_DATA", size: int = BYTES, seconds: int = SECONDS) -> list[str]:
    """Read tables, or all of them, in a process with limits; return what it prints: rows of each, or an error."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COV")}
    command = [sys.executable, "-c", READ, limit, str(size), str(seconds), str(path), *tables]
    done = fork_server.run(command, capture_output=True, text=True, timeout=600, check=False, env=environment)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    return done.stdout.splitlines()


def refused(path: Path, *tables: str, seconds: int = SECONDS) -> str:
    """Read a file that is to be refused; return the message."""
    with untouched(path):
        said = read(path, *tables, seconds=seconds)
    errors = [line for line in said if line.startswith(("CorruptTraceError", "UnsupportedVersionError"))]
    assert len(errors) == 1, said
    return errors[0].partition(" ")[2]


def rewritten(path: Path, change: Callable[[bytes], bytes]) -> Path:
    path.write_bytes(change(path.read_bytes()))
    return path


def root_of(path: Path, table: str) -> int:
    ((root,),) = plain(path, "SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,))
    assert isinstance(root, int)
    return root


def many_syncs(folder: Path, rows: int = 2193) -> Path:
    """Write an export with so many rows in one table that its tree has an inner page."""
    columns = "start, end, deviceId, contextId, greenContextId, streamId, correlationId, globalPid, syncType, eventId"
    more = ", ".join(f"i AS {c.strip()}" for c in columns.split(","))
    path = edited(
        folder,
        f"CREATE TABLE more AS {MANY.format(rows)} SELECT {more}, 0 AS eventSyncId FROM k",
        f"DELETE FROM {SYNC}",
        f"INSERT INTO {SYNC} ({columns}, eventSyncId) SELECT * FROM more",
        "DROP TABLE more",
    )
    assert plain(path, f"SELECT count(*) FROM {SYNC}") == [(rows,)]
    return path


@LINUX
@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("AS (printf('%.*c', 200000, 'x'))", "column value is a generated column, which tracekit does not support"),
        (
            f"DEFAULT '{'x' * 15_000}'",
            "column value has a default value of 15002 characters, but tracekit supports at most 32",
        ),
    ],
)
def test_two_gigabytes_of_text_in_a_small_file(tmp_path: Path, column: str, said: str) -> None:
    path = edited(
        tmp_path,
        "DROP TABLE StringIds",
        "CREATE TABLE StringIds (id INTEGER PRIMARY KEY)",
        f"INSERT INTO StringIds {MANY.format(200_000)} SELECT i FROM k",
        f"ALTER TABLE StringIds ADD COLUMN value TEXT {column}",
    )
    assert path.stat().st_size < 3 << 20
    assert f"table StringIds: cannot be read: {said}" in refused(path, "kernels")


def test_count_and_rows_come_from_one_source(tmp_path: Path) -> None:
    """A key that is too small once made 2,193 rows where they were counted, and fewer where they were read."""

    def change(file: bytes) -> bytes:
        key = Pages(file).children(root_of(path, SYNC))[0] + 4
        return changed(file, (key, b"\x0b"))

    path = many_syncs(tmp_path)
    with tk.load(path) as trace:
        assert trace.count("syncs") == trace["syncs"].num_rows == 2193
    rewritten(path, change)
    asked: list[Callable[[tk.Trace], object]] = [lambda t: t.count("syncs"), lambda t: t["syncs"]]
    for ask in asked:
        with untouched(path), tk.load(path) as trace, pytest.raises(CorruptTraceError) as caught:
            ask(trace)
        assert caught.value.table == SYNC
        assert "has rowids outside the range that its parent pages declare" in str(caught.value)


def test_rows_are_those_of_the_table_not_of_an_index(tmp_path: Path) -> None:
    path = edited(
        tmp_path,
        "CREATE INDEX types ON NVTX_EVENTS (eventType) WHERE eventType < 0",
        f"CREATE INDEX starts ON {KERNEL} (start) WHERE start < 0",
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_schema SET sql = substr(sql, 1, instr(sql, ')')) WHERE type = 'index'",
    )
    with tk.load(path) as trace, tk.load(FIXTURES / "graph_node.sqlite") as same:
        for name in ("nvtx_ranges", "kernels"):
            assert trace.count(name) == same.count(name) > 0
            assert trace[name].equals(same[name])


def test_sqlite_reads_what_the_pages_hold_or_it_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = edited(tmp_path)
    real = connections.ConnectionPool.fetch

    def fetch(self: connections.ConnectionPool, sql: str, *rest: object) -> Iterator[pa.RecordBatch]:
        for batch in real(self, sql, *rest):  # type: ignore[arg-type]
            yield batch.slice(1)

    monkeypatch.setattr(connections.ConnectionPool, "fetch", fetch)
    monkeypatch.setattr(database, "LARGE_RUNS", 1 << 30)
    with (
        pytest.raises(
            CorruptTraceError,
            match=r"SQLite returned \d+ rows with rowids from -?\d+ to \d+, but the pages hold \d+ rows",
        ),
        tk.load(path),
    ):
        pass


@pytest.mark.slow
@pytest.mark.many(6)
@pytest.mark.parametrize("number", range(120 if ALL else 20))
def test_what_is_read_of_a_damaged_file_is_what_sqlite_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    dice = random.Random(number)
    monkeypatch.setattr(database, "LARGE_RUNS", dice.choice((0, 1 << 30)))
    monkeypatch.setattr(tables, "RUN_BYTES", dice.choice((1, 1 << 21)))
    file = dice.choice(nsys_sqlite.layouts()[:6])[1]
    path = tmp_path / "damaged.sqlite"
    path.write_bytes(dice.choice(sqlite_pages.CHANGES)(file, dice))
    with contextlib.suppress(TracekitError), contextlib.closing(ExportTables(Source(path))) as ours:
        for table, columns in ours.columns.items():
            with contextlib.suppress(TracekitError):
                types = {
                    "rowid": pa.int64(),
                    **{c: pa.int64() for c in columns[:6] if c not in ("text", "value", "name")},
                }
                read, _ = ours.read_columns(table, types)
                select = ", ".join(f'"{c}"' for c in list(types)[1:]) or "1"
                theirs = plain(path, f'SELECT rowid, {select} FROM "{table}" NOT INDEXED')
                assert list(zip(*(c.to_pylist() for c in read.values()), strict=True)) == [
                    r[: len(types)] for r in theirs
                ]
                assert ours.count_table_rows(table) == len(theirs)


@pytest.mark.many(1)
@LINUX
@pytest.mark.parametrize("gigabytes", [64, 8, 4])
def test_whole_files_where_address_space_is_limited(tmp_path: Path, gigabytes: int) -> None:
    export, made = FIXTURES / "graph_node.sqlite", dlprof_database(tmp_path / "dlprof.sqlite")
    for path, table, rows in ((export, "kernels", 52), (made, "devices", 2)):
        said = read(path, limit="RLIMIT_AS", size=gigabytes << 30)
        assert f"{table} {rows}" in said
        assert len(said) > 10


@pytest.mark.parametrize("suffix", ["-journal", "-wal"])
def test_a_pipe_beside_the_file_is_not_waited_for(tmp_path: Path, suffix: str) -> None:
    for path in (edited(tmp_path), dlprof_database(tmp_path / "dlprof.sqlite")):
        os.mkfifo(path.with_name(path.name + suffix))
        said = f"TracekitError the journal {path.name}{suffix} is a named pipe, not a regular file"
        assert read(path, "kernels") == [said, "Hint: move or delete that file"]


def test_a_name_too_long_for_a_journal(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 252)
    shutil.copyfile(FIXTURES / "graph_node.sqlite", path)
    with tk.load(path) as trace:
        assert trace.count("kernels") == 52


def test_long_texts_that_many_rows_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = edited(
        tmp_path,
        "CREATE TABLE TARGET_INFO_NVTX_CUDA_STREAM AS "
        "SELECT processId, contextId, streamId, 'a long name' AS name FROM TARGET_INFO_CUDA_STREAM",
        "DROP TABLE TARGET_INFO_GPU",
        "CREATE TABLE TARGET_INFO_GPU (deviceId INTEGER, name TEXT)",
        "INSERT INTO TARGET_INFO_GPU VALUES (1, NULL), (1, NULL)",
        "CREATE TABLE TARGET_INFO_CUDA_GPU (deviceId INTEGER, name TEXT)",
        "INSERT INTO TARGET_INFO_CUDA_GPU VALUES (1, 'a GPU'), (1, 'another')",
        name="named.sqlite",
    )
    with tk.load(path) as trace:
        assert set(trace["streams"]["name"].to_pylist()) == {"a long name"}
        assert trace["devices"]["name"].to_pylist() == ["a GPU", "a GPU"]
    monkeypatch.setattr(columns, "SPARE_TEXT_BYTES", 1)
    monkeypatch.setattr(columns, "MAX_TEXT_BYTES_PER_ROW", 0)
    for table, source in (
        ("streams", "TARGET_INFO_NVTX_CUDA_STREAM"),
        ("devices", "TARGET_INFO_CUDA_GPU"),
    ):
        with (
            tk.load(path) as trace,
            pytest.raises(CorruptTraceError, match=r"the strings of \d+ rows have \d+ bytes") as caught,
        ):
            trace[table]
        assert caught.value.table == source


def views_in_the_place_of(path: Path, table: str) -> None:
    endless = "WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r)"
    with contextlib.closing(sqlite3.connect(path)) as db:
        columns = [c for (c,) in db.execute("SELECT name FROM pragma_table_info(?)", (table,))]
        db.execute(f"DROP TABLE {table}")
        db.execute(f"CREATE VIEW {table} AS {endless} SELECT {', '.join(f'i AS {c}' for c in columns)} FROM r")
        db.commit()


@pytest.mark.thorough
@LINUX
def test_an_endless_view_in_the_place_of_a_table(tmp_path: Path) -> None:
    written = tmp_path / "written.sqlite"
    with tk.load(FIXTURES / "ops" / "pyprof_like.nsys-rep") as trace:
        trace.rollup(tensor_cores="dlprof").export(written, format="dlprof-db")
    with tk.load(written) as trace:
        assert trace.count("group_nodes") > 0
    for table in ("read_only_grid_block", "read_only_gpu_infos", "metric", "op_nodes", "iteration_key", "aggregations"):
        path = Path(shutil.copyfile(written, tmp_path / "view.sqlite"))
        views_in_the_place_of(path, table)
        with untouched(path):
            said = read(path)
        assert any(f"table {table}: the table is missing" in line for line in said) == table.startswith("read_only"), (
            said
        )
        assert ("group_nodes 0" in said) != table.startswith("read_only"), said
    for table in ("TARGET_INFO_GPU", "StringIds", KERNEL):
        path = edited(tmp_path)
        views_in_the_place_of(path, table)
        with untouched(path):
            assert read(path, "kernels", "devices")


@pytest.mark.thorough
@LINUX
def test_few_pages_with_very_many_ways_through_them(tmp_path: Path) -> None:
    """Each inner page leads to one child only, again and again: 20 ways at each of several levels."""
    statements = [f"INSERT INTO {KERNEL} SELECT * FROM {KERNEL}"] * 9
    file = sqlite_pages.repaged(edited(tmp_path, *statements).read_bytes(), 512)
    pages = Pages(file)
    path = tmp_path / "ways.sqlite"
    path.write_bytes(file)
    inner, _ = pages.tree(root_of(path, KERNEL))
    assert len(inner) > 50
    places = [(at, number(pages.number(pages.children(page)[0]))) for page in inner for at in pages.children(page)]
    path.write_bytes(changed(file, *places))
    assert "is used twice" in refused(path, "kernels")


@pytest.mark.slow
@pytest.mark.parametrize("made", ["export", "database"])
def test_few_rows_that_name_others_very_often(tmp_path: Path, made: str) -> None:
    """Ids that repeat once made of 20,000 rows and 20,000 strings 400 million rows."""
    if made == "export":
        path = edited(
            tmp_path,
            "UPDATE NVTX_EVENTS SET textId = NULL, jsonTextId = 1",
            f"INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid, domainId, jsonTextId) {MANY.format(300_000)} "
            "SELECT i, i, 59, 0, 0, 1 FROM k",
            "UPDATE StringIds SET value = printf('%.*c', 1000000, 'x') WHERE id = 1",
        )
        assert re.search("table nvtx_ranges: [0-9,]+ bytes of strings would take", refused(path, "nvtx_ranges"))
        return
    path = dlprof_database(
        tmp_path / "many.sqlite",
        "DROP TABLE read_only_grid_block",
        "CREATE TABLE read_only_grid_block (id, x, y, z)",
        f"INSERT INTO read_only_grid_block {MANY.format(20_000)} SELECT 1, 1, 1, 1 FROM k",
        f"INSERT INTO read_only_kernels {MANY.format(20_000)} "
        "SELECT i + 100, 1, 1, i, i, 7, 7, 0, 2, 0, i, i, 1, 1, 1 FROM k",
    )
    assert "table read_only_grid_block: 19999 rows have the same id as an earlier row" in refused(path, "kernels")


def calls_to_read(path: Path, *wanted: str) -> int:
    """Count the calls of functions that it takes to read tables."""
    number = 0

    def count(*_: object) -> None:
        nonlocal number
        number += 1

    with tk.load(path) as trace:
        sys.setprofile(count)
        try:
            for name in wanted:
                trace[name]
        finally:
            sys.setprofile(None)
    return number


@pytest.mark.thorough
def test_tables_of_the_machine_are_not_read_row_by_row(tmp_path: Path) -> None:
    tables = ("TARGET_INFO_GPU", "TARGET_INFO_CUDA_CONTEXT_INFO", "TARGET_INFO_CUDA_STREAM", "META_DATA_EXPORT")
    calls = {}
    for rows in (50, 5000):
        many = [f"INSERT INTO {t} SELECT b.* FROM {t} b, ({MANY.format(rows)} SELECT i FROM k)" for t in tables]
        path = edited(tmp_path, *many, name=f"{rows}.sqlite")
        calls[rows] = calls_to_read(path, "devices", "contexts", "streams", "capture_info", "processes", "threads")
        with tk.load(path) as trace:
            assert trace.count("devices") == 2 * (rows + 1)
    assert calls[5000] < calls[50] + 5000


def states(path: Path) -> dict[str, Callable[[], object]]:
    """Ways to change a file while it is open."""
    data = path.read_bytes()
    other = path.with_name("other")
    return {
        "shrunk": lambda: path.write_bytes(data[: len(data) // 2]),
        "rewritten": lambda: path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2)),
        "grown": lambda: path.write_bytes(data * 2),
        "replaced": lambda: (other.write_bytes(data), other.replace(path)),
        "removed": path.unlink,
    }


@pytest.mark.parametrize("how", ["shrunk", "rewritten", "grown", "replaced", "removed"])
@pytest.mark.parametrize("made", ["export", "database"])
@pytest.mark.parametrize("decoded", [True, False])
def test_a_file_that_changes_while_it_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, made: str, decoded: bool
) -> None:
    monkeypatch.setattr(database, "LARGE_RUNS", 0 if decoded else 1 << 30)
    path = edited(tmp_path) if made == "export" else dlprof_database(tmp_path / "dlprof.sqlite")
    asked: list[Callable[[tk.Trace], object]] = [
        lambda t: t.count("memcpys"),
        lambda t: t["kernels"],
        lambda t: t["api_calls"],
        lambda t: t.frame("memcpys").select("start_ns", "copy_kind").collect(),
    ]
    with tk.load(path) as trace:
        assert trace.count("kernels") > 0
        assert trace["syncs"].num_rows > 0
        states(path)[how]()
        for ask in asked:
            with pytest.raises(TracekitError, match="while it was open") as caught:
                ask(trace)
            assert str(caught.value).startswith(f"{path}: ")


def test_a_file_that_changes_while_it_is_opened(tmp_path: Path) -> None:
    path = edited(tmp_path)
    source = Source(path)
    assert source.size == len(path.read_bytes())
    assert source.head
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(TracekitError, match="the file changed while tracekit opened it"):
        ExportTables(source)


def test_a_file_that_changes_while_a_table_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = edited(tmp_path)
    data = path.read_bytes()
    real = connections.ConnectionPool.fetch

    def fetch(self: connections.ConnectionPool, *arguments: object) -> Iterator[pa.RecordBatch]:
        yield from real(self, *arguments)  # type: ignore[arg-type]
        path.write_bytes(data)

    with tk.load(path) as trace:
        monkeypatch.setattr(connections.ConnectionPool, "fetch", fetch)
        with pytest.raises(TracekitError, match="changed while it was open"):
            trace["kernels"]


@LINUX
@pytest.mark.parametrize(
    ("tables", "columns", "said"),
    [
        (12_000, "c", "the schema has more than 262144 bytes or 10000 entries"),
        (2000, ", ".join(f"c{n}" for n in range(100)), "the schema has more than 262144 bytes or 10000 entries"),
        (1, ", ".join(f"c{n}" for n in range(600)), "too many columns on m0"),
        (
            1,
            "a, b, " + ", ".join(["UNIQUE (a, b)"] * 5000),
            "the schema has an entry of 75040 bytes, but tracekit supports at most 16384 bytes",
        ),
    ],
)
def test_a_schema_that_no_profiler_writes(tmp_path: Path, tables: int, columns: str, said: str) -> None:
    path = edited(tmp_path)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA writable_schema = ON")
        rows = [(f"m{n}", f"m{n}", f"CREATE TABLE m{n} ({columns})") for n in range(tables)]
        db.executemany("INSERT INTO sqlite_schema VALUES ('table', ?, ?, 2, ?)", rows)
        db.commit()
    assert said in refused(path)


@LINUX
def test_statistics_are_checked_before_sqlite_reads_them(tmp_path: Path) -> None:
    rows = f"INSERT INTO sqlite_stat1 {MANY.format(60_000)} SELECT 'x', 'y' || i, '1 1 1 1 1 1' FROM k"
    path = edited(tmp_path, "ANALYZE", rows)
    assert "table sqlite_stat1 has " in refused(path)

    def ways(file: bytes) -> bytes:
        pages = Pages(file)
        children = pages.children(root_of(path, "sqlite_stat1"))
        return changed(file, *((at, number(pages.number(children[0]))) for at in children))

    assert "is used twice" in refused(rewritten(path, ways))
    plainly = edited(tmp_path, "ANALYZE", name="analyzed.sqlite")
    with tk.load(plainly) as trace:
        assert trace.count("kernels") == 52
