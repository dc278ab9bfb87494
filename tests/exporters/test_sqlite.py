"""One SQLite database: the rows of every table, keys that hold, views, full-text search."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest
import tracekit as tk
from tests.conftest import ClosedWhenDeleted
from tracekit import registry, schemas
from tracekit.errors import ExportError, UnknownFormatError
from tracekit.exporters import databases
from tracekit.exporters import sqlite as exporter
from tracekit.exporters.sqlite import export
from tracekit.exporters.sqlite.export import (
    DETAILS,
    JOINED,
    SUMMARIES,
    ForeignKey,
    Keys,
    build_view_queries,
    find_valid_keys,
    intersect_keys,
    list_declared_foreign_keys,
)
from tracekit.trace import get_trace_view

if TYPE_CHECKING:
    from collections.abc import Iterator

FIXTURES = Path(__file__).parents[2] / "fixtures"
CAPTURES = ("train_amp.nsys-rep", "graph_node.sqlite", "ncu/ncu_basic.ncu-rep", "empty.nsys-rep")


@pytest.fixture(scope="module", params=CAPTURES)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[tk.Trace, sqlite3.Connection]]:
    """A trace, and the database that was exported from it."""
    with tk.load(FIXTURES / request.param) as trace:
        path = trace.export(tmp_path_factory.mktemp("sqlite") / "out.db")
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
            yield trace.correlate(), db


@pytest.fixture(scope="module")
def rolled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[tk.Trace, sqlite3.Connection]]:
    """A trace with ops, and its database."""
    with tk.load(FIXTURES / "train_amp.nsys-rep") as trace:
        ops = trace.correlate().rollup()
        path = ops.export(tmp_path_factory.mktemp("sqlite") / "ops.db")
        with closing(sqlite3.connect(path)) as db:
            yield ops, db


def rows(db: sqlite3.Connection, query: str) -> list[Any]:
    return db.execute(query).fetchall()


def names_of(db: sqlite3.Connection, kind: str) -> list[str]:
    return [n for (n,) in rows(db, f"SELECT name FROM sqlite_master WHERE type = '{kind}' ORDER BY name")]


def database_of(tables: dict[str, pa.Table], folder: Path) -> sqlite3.Connection:
    return sqlite3.connect(tk.Trace.from_tables(tables).export(folder / "out.db"), factory=ClosedWhenDeleted)


def table_of(name: str, columns: dict[str, list[Any]]) -> pa.Table:
    """A table with some columns, zeros in the others that must not be null, and null in the rest."""
    schema = schemas.table(name)
    height = len(next(iter(columns.values())))
    example = schemas.create_example_frame(schema).to_dicts()[0]
    filled = {c.name: [None if c.nullable else example[c.name]] * height for c in schema.columns} | columns
    return schemas.conform(pl.DataFrame(filled, schema=schemas.polars_schema(schema)).to_arrow(), schema)


@pytest.mark.slow
@pytest.mark.many(1)
def test_all_rows_of_all_tables_are_written(pair: tuple[tk.Trace, sqlite3.Connection]) -> None:
    trace, db = pair
    counts = dict(rows(db, "SELECT table_name, rows FROM meta_tables"))
    assert counts == {n: trace.count(n) for n in trace.tables if not trace.schema(n).optional}
    for name in counts:
        recorded = trace[name].to_pylist()
        columns = trace.schema(name).names
        assert [c[1] for c in rows(db, f"PRAGMA table_info({name})")] == columns
        written = [dict(zip(columns, r, strict=True)) for r in rows(db, f"SELECT * FROM {name} ORDER BY rowid")]
        assert len(written) == len(recorded)
        key = trace.schema(name).key
        assert sorted(written, key=lambda r: repr([r[k] for k in key])) == sorted(
            recorded, key=lambda r: repr([r[k] for k in key])
        )


@pytest.mark.slow
def test_integrity_and_foreign_keys_hold(pair: tuple[tk.Trace, sqlite3.Connection]) -> None:
    _, db = pair
    assert rows(db, "PRAGMA integrity_check") == [("ok",)]
    assert rows(db, "PRAGMA foreign_key_check") == []
    assert rows(db, "PRAGMA application_id") == [(export.APPLICATION_ID,)]
    assert rows(db, "PRAGMA user_version") == [(export.FORMAT_VERSION,)]
    assert dict(rows(db, "SELECT key, value FROM meta"))["time_unit"] == "ns"


@pytest.mark.slow
@pytest.mark.core
def test_keys_of_kernels_are_declared(rolled: tuple[tk.Trace, sqlite3.Connection]) -> None:
    _, db = rolled
    foreign: dict[int, list[tuple[str, str, str]]] = {}
    for number, _, parent, own, theirs, *_ in rows(db, "PRAGMA foreign_key_list(kernels)"):
        foreign.setdefault(number, []).append((parent, own, theirs))
    assert sorted(sorted(f) for f in foreign.values()) == sorted(
        sorted((parent, c, "range_id" if c.endswith("range_id") else c) for c in columns)
        for parent, columns in [
            ("processes", ["process_id"]),
            ("threads", ["process_id", "thread_id"]),
            ("devices", ["device_id"]),
            ("contexts", ["process_id", "context_id"]),
            ("streams", ["process_id", "context_id", "stream_id"]),
            ("api_calls", ["api_call_id"]),
            ("nvtx_ranges", ["range_id"]),
            ("nvtx_ranges", ["start_end_range_id"]),
            ("nvtx_ranges", ["capture_range_id"]),
            ("op_instances", ["op_instance_id"]),
            ("ops", ["op_id"]),
            ("iterations", ["iteration"]),
        ]
    )
    assert [c[1] for c in rows(db, "PRAGMA table_info(kernels)") if c[5]] == ["kernel_id"]
    indexed = {n for n in names_of(db, "index") if n.startswith("kernels_")}
    assert {"kernels_start_ns", "kernels_short_name", "kernels_api_call_id", "kernels_range_id"} <= indexed


@pytest.mark.slow
def test_details_of_kernels(rolled: tuple[tk.Trace, sqlite3.Connection]) -> None:
    trace, db = rolled
    calls = trace.frame("api_calls").select("api_call_id", api_call_name="name")
    ops = trace.frame("ops").select("op_id", "op_type")
    devices = trace.frame("devices").select("device_id", device_name="name")
    columns = ("kernel_id", "name", "range_path", "op_name", "op_type", "iteration", "api_call_name", "device_name")
    expected = (
        trace.frame("kernels")
        .with_columns(pl.col("op_id").cast(pl.String))
        .join(calls, on="api_call_id", how="left")
        .join(ops, on="op_id", how="left")
        .join(devices, on="device_id", how="left")
        .with_columns(
            duration_ns=pl.col("end_ns") - pl.col("start_ns"),
            launch_latency_ns=pl.col("start_ns") - pl.col("api_start_ns"),
        )
        .select(*columns, "duration_ns", "launch_latency_ns")
        .sort("kernel_id")
        .collect()
    )
    selected = ", ".join(expected.columns)
    assert rows(db, f"SELECT {selected} FROM kernel_details ORDER BY kernel_id") == expected.rows()
    assert expected["api_call_name"].null_count() < expected.height


@pytest.mark.slow
def test_each_view_of_details_has_the_rows_of_its_table(pair: tuple[tk.Trace, sqlite3.Connection]) -> None:
    trace, db = pair
    for details in DETAILS:
        assert rows(db, f"SELECT count(*) FROM {details.view}") == [(trace.count(details.table),)]


def test_gpu_activities_and_summaries(rolled: tuple[tk.Trace, sqlite3.Connection]) -> None:
    trace, db = rolled
    kinds = {"kernel": "kernels", "memcpy": "memcpys", "memset": "memsets", "graph": "graph_launches"}
    counts = dict(rows(db, "SELECT kind, count(*) FROM gpu_activities GROUP BY kind"))
    assert counts == {k: trace.count(t) for k, t in kinds.items() if trace.count(t)}
    report = tk.stats(trace, "cuda_gpu_kern_sum")
    summary = rows(db, "SELECT name, count, total_ns, min_ns, max_ns FROM kernel_summary")
    expected = report.select("Name", "Instances", "Total Time (ns)", "Min (ns)", "Max (ns)").rows()
    assert sorted(summary) == sorted(expected)
    assert [r[2] for r in summary] == sorted((r[2] for r in summary), reverse=True)
    for view in SUMMARIES:
        assert rows(db, f"SELECT * FROM {view}") is not None


def test_full_text_search_finds_parts_of_names(rolled: tuple[tk.Trace, sqlite3.Connection]) -> None:
    trace, db = rolled
    names = trace.frame("kernels").select(pl.col("short_name").cast(pl.String)).collect().to_series()
    matching = sorted(set(names.filter(names.str.contains("(?i)gemm"))))
    query = "SELECT n.name FROM names_fts JOIN names n ON n.name_id = names_fts.rowid WHERE names_fts MATCH 'gemm'"
    assert (
        sorted(n for (n,) in rows(db, f"{query} AND table_name = 'kernels' AND column_name = 'short_name'")) == matching
    )
    assert matching
    [(counted,)] = rows(db, "SELECT sum(rows) FROM names WHERE table_name = 'kernels' AND column_name = 'name'")
    assert counted == trace.count("kernels")
    db.execute("INSERT INTO names_fts(names_fts) VALUES('integrity-check')")


def test_values_are_exact(tmp_path: Path) -> None:
    numbers = [2**63 - 1, -(2**63), 0, None]
    texts = ["", 'a "quoted", text', "nul\0é\u2028", None]
    floats = [5e-324, float("inf"), 0.1, None]
    ids = [1, 2, 3, 4]
    marks = {"mark_id": ids, "payload_int": numbers, "payload_text": texts, "name": texts, "payload_float": floats}
    with closing(database_of({"nvtx_marks": table_of("nvtx_marks", marks)}, tmp_path)) as db:
        query = "SELECT mark_id, payload_int, payload_text, name, payload_float FROM nvtx_marks"
        assert rows(db, query) == list(zip(*marks.values(), strict=True))


def test_nan_is_null(tmp_path: Path) -> None:
    column = next(
        (t, c.name) for t in schemas.tables().values() for c in t.columns if c.type == "float64" and not c.nullable
    )
    table, name = column
    with closing(database_of({table.name: table_of(table.name, {name: [float("nan")]})}, tmp_path)) as db:
        assert rows(db, f"SELECT {name} FROM {table.name}") == [(None,)]


def test_keys_that_do_not_hold_are_not_declared(tmp_path: Path) -> None:
    """Two kernels have the same id, and their device is not listed. Nulls refer to nothing."""
    kernels = table_of("kernels", {"kernel_id": [1, 1], "device_id": [0, 7], "process_id": [None, None]})
    devices = table_of("devices", {"device_id": [0]})
    with closing(database_of({"kernels": kernels, "devices": devices}, tmp_path)) as db:
        assert rows(db, "SELECT device_id, device_name FROM kernel_details ORDER BY 1") == [
            (0, rows(db, "SELECT name FROM devices")[0][0]),
            (7, None),
        ]
        assert [c for c in rows(db, "PRAGMA table_info(kernels)") if c[5]] == []
        assert "devices" not in {f[2] for f in rows(db, "PRAGMA foreign_key_list(kernels)")}
        assert "processes" in {f[2] for f in rows(db, "PRAGMA foreign_key_list(kernels)")}
        assert rows(db, "PRAGMA foreign_key_check") == []


def test_a_table_with_repeated_keys_is_not_joined(tmp_path: Path) -> None:
    kernels = table_of("kernels", {"kernel_id": [1], "device_id": [0]})
    devices = table_of("devices", {"device_id": [0, 0]})
    with closing(database_of({"kernels": kernels, "devices": devices}, tmp_path)) as db:
        assert rows(db, "SELECT count(*) FROM kernel_details") == [(1,)]
        assert "device_name" not in [d[0] for d in db.execute("SELECT * FROM kernel_details").description]


def test_unordered_keys_are_unique(tmp_path: Path) -> None:
    tables = {"kernels": table_of("kernels", {"kernel_id": [3, 1, 2]})}
    read = get_trace_view(tk.Trace.from_tables(tables)).tables
    assert find_valid_keys(read, {"kernels": read.schema("kernels")}) == Keys(frozenset({"kernels"}), ())


def test_null_in_a_key(tmp_path: Path) -> None:
    nullable = [(t.name, k) for t in schemas.tables().values() for k in t.key if t[k].nullable]
    for name, column in nullable:
        tables = get_trace_view(tk.Trace.from_tables({name: table_of(name, {column: [None]})})).tables
        assert name not in find_valid_keys(tables, {name: tables.schema(name)}).unique
    assert nullable


def test_declared_foreign_keys() -> None:
    tables = schemas.tables()
    keys = list_declared_foreign_keys(tables["stacks"], tables)
    assert ForeignKey("stacks", ("parent_id",), "stacks", ("stack_id",)) in keys
    assert not any(
        k.columns == ("correlation_id",) for t in tables.values() for k in list_declared_foreign_keys(t, tables)
    )
    metrics = list_declared_foreign_keys(tables["network_metrics"], tables)
    both = ("metrics_list_id", "metric_index")
    assert [k.columns for k in metrics if k.parent == "network_metric_names"] == [both]


def test_keys_of_several_traces_hold_in_all_of_them() -> None:
    one, two = (ForeignKey("kernels", (c,), "devices", ("device_id",)) for c in ("device_id", "other_id"))
    first = Keys(frozenset({"devices", "kernels"}), (one, two))
    second = Keys(frozenset({"devices"}), (one,))
    assert intersect_keys([first, second]) == Keys(frozenset({"devices"}), (one,))
    assert intersect_keys([first, Keys(frozenset(), ())]) == Keys(frozenset(), ())


@pytest.mark.thorough
def test_a_set_has_the_rank_in_every_table_and_key(tmp_path: Path) -> None:
    traces = tk.load_many(FIXTURES / "ranks")
    progress: list[tuple[int, int]] = []
    path = traces.export(tmp_path / "ranks.db", progress=lambda *done: progress.append(done))
    with closing(sqlite3.connect(path)) as db:
        assert rows(db, "PRAGMA foreign_key_check") == []
        assert rows(db, "PRAGMA integrity_check") == [("ok",)]
        expected = traces.correlate().frame("kernels").collect()
        counted = rows(
            db, "SELECT rank, count(*), count(api_call_name) FROM kernel_details GROUP BY rank ORDER BY rank"
        )
        assert counted == expected.group_by("rank").agg(pl.len(), n=pl.col("api_call_id").count()).sort("rank").rows()
        assert [c[1] for c in rows(db, "PRAGMA table_info(kernels)") if c[5]] == ["rank", "kernel_id"]
        assert {c[0] for c in rows(db, "SELECT DISTINCT rank FROM gpu_activities")} == set(traces.ranks)
        [(total,)] = rows(db, "SELECT sum(rows) FROM meta_tables")
        assert progress[-1] == (total, total)


def test_selected_tables(tmp_path: Path) -> None:
    trace = tk.load(FIXTURES / "train_amp.nsys-rep")
    path = trace.export(tmp_path / "out.db", tables=["kernels", "devices"])
    with closing(sqlite3.connect(path)) as db:
        assert {n for (n,) in rows(db, "SELECT table_name FROM meta_tables WHERE rows > 0")} == {"kernels", "devices"}
        assert rows(db, "PRAGMA foreign_key_check") == []


def test_optional_tables_are_written_if_they_are_selected() -> None:
    optional = [n for n in schemas.table_names() if schemas.table(n).optional]
    tables = get_trace_view(tk.Trace.from_tables({})).tables
    assert not set(optional) & set(exporter.choose_table_names(tables, None))
    assert optional[0] in exporter.choose_table_names(tables, frozenset(optional[:1]))


def test_the_suffix_of_other_databases_is_theirs(tmp_path: Path) -> None:
    assert registry.find_exporter_for("out.db").format == "sqlite"
    assert registry.find_exporter_for("out.dldb.sqlite").format == "dlprof-db"
    assert registry.find_exporter_for("dlprof_dldb.sqlite").format == "dlprof-db"
    assert registry.find_exporter_for("out.sqlite").format == "sqlite"


def test_what_tracekit_wrote_is_named_when_it_is_read(tmp_path: Path) -> None:
    path = tk.Trace.from_tables({}).export(tmp_path / "out.db")
    with pytest.raises(UnknownFormatError, match="a SQLite database that tracekit wrote, which tracekit cannot read"):
        tk.load(path)


@pytest.mark.parametrize(
    ("error", "hint"),
    [("database or disk is full", "free space on the disk"), ("unable to open database file", "choose another folder")],
)
def test_errors_of_sqlite_are_errors_of_the_export(error: str, hint: str, tmp_path: Path) -> None:
    with (
        pytest.raises(ExportError, match=f"the output cannot be written: {error}\nHint: {hint}"),
        databases.translate_errors(tmp_path),
    ):
        raise sqlite3.OperationalError(error)


@pytest.mark.slow
def test_old_versions_of_sqlite_search_whole_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 33, 0))
    with closing(
        database_of({"nvtx_marks": table_of("nvtx_marks", {"mark_id": [1], "name": ["two words"]})}, tmp_path)
    ) as db:
        assert rows(db, "SELECT name FROM names_fts WHERE names_fts MATCH 'words'") == [("two words",)]


def test_views_refer_to_declared_tables() -> None:
    tables = schemas.tables()
    assert {c for names in JOINED.items() for c in names[1] if c not in tables[names[0]].names} == set()
    assert [name for name, _ in build_view_queries({}, Keys(frozenset(), ()))] == []
