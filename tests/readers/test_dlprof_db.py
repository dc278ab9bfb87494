"""Databases of DLProf: what is in them, what is kept out, and what damage does."""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
import warnings
from pathlib import Path

import polars as pl
import pytest
import tracekit as tk
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders.dlprof_db import CHILDREN, TABLES, database
from tests.builders.nsys_sqlite import outcome, plain, untouched
from tests.conftest import ALL, FIXTURES, SHARED, examples
from tracekit.errors import CorruptTraceError, TracekitWarning, UnknownFormatError, UnsupportedVersionError
from tracekit.readers.common import columns

PAIR = SHARED / "corpus" / "nsys_pairs" / "MohanadOdema__DLProf" / "w_Relu" / "nsys_profile.sqlite"
PUBLIC = sorted((SHARED / "corpus" / "dlprof").rglob("*.sqlite"))
AGAIN = "\nHint: copy the database again from where DLProf wrote it"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return database(tmp_path / "dlprof_dldb.sqlite")


def rows(path: Path, table: str, *columns: str) -> list[tuple[object, ...]]:
    with tk.load(path) as trace:
        return trace.frame(table).select(columns).collect().rows()


@settings(max_examples=examples(40))
@given(seed=st.integers(0, 1 << 20), calls=st.integers(0, 60))
def test_every_row_is_there(tmp_path_factory: pytest.TempPathFactory, seed: int, calls: int) -> None:
    made = database(tmp_path_factory.mktemp("any") / "any", seed=seed, calls=calls)
    device = dict(plain(made, "SELECT id, device_id FROM read_only_gpu_infos"))
    for name, table in (("kernels", CHILDREN[0]), ("memsets", CHILDREN[1]), ("memcpys", CHILDREN[2])):
        theirs = plain(made, f"SELECT gpu_start, gpu_stop, process_id, device_id FROM {table} ORDER BY id")
        wanted = [(*r[:3], device[r[3]]) for r in theirs]
        assert rows(made, name, "start_ns", "end_ns", "process_id", "device_id") == wanted
    times = "SELECT api_start, api_stop, thread_id FROM"
    all_calls = sorted(r for t in CHILDREN for r in plain(made, f"{times} {t}"))
    assert rows(made, "api_calls", "start_ns", "end_ns", "thread_id") == all_calls
    assert rows(made, "threads", "process_id", "thread_id") == sorted({(7, 8), *((7, c[2]) for c in all_calls)})


def test_one_of_each(path: Path) -> None:
    with untouched(path), tk.load(path) as trace:
        assert trace.format == "dlprof-db"
        kernel = trace.frame("kernels").head(1).collect().to_dicts()[0]
        copy = trace.frame("memcpys").head(1).collect().to_dicts()[0]
        sync = trace.frame("syncs").head(1).collect().to_dicts()[0]
        devices = trace.frame("devices").select("device_id", "name", "sm_count", "memory_bytes").collect().rows()
    assert (kernel["name"], kernel["short_name"]) == ("void gemm<float>(T1)", "gemm")
    assert (kernel["block_x"], kernel["block_y"], kernel["registers_per_thread"]) == (32, 1, None)
    assert kernel["mangled_name"] is None
    assert copy["copy_kind"] in {"Host-to-Device", "Device-to-Host", "Device-to-Device"}
    assert (sync["sync_type"], sync["event_id"]) == ("Stream sync", 4294967295)
    assert sync["end_ns"] > sync["start_ns"] >= 0
    assert devices == [(3, "GPU 3", 80, None), (0, "GPU 0", 80, None)]


def test_activities_lead_to_their_calls(path: Path) -> None:
    with tk.load(path) as trace:
        linked = trace.correlate().frame("kernels").select("kernel_id", "api_start_ns", "thread_id").collect().rows()
    assert linked == plain(path, "SELECT id, api_start, thread_id FROM read_only_kernels ORDER BY id")


def test_facts_without_people_and_machines(path: Path) -> None:
    with tk.load(path) as trace:
        assert dict(trace.info) == {
            "tool": "DLProf",
            "schema_version": "1.8.0",
            "tool_version": "v1.8.0",
            "framework": "PyTorch 1.10",
            "mode": "pytorch",
            "model_config.amp_enabled": "1",
            "model_config.num_workers": "4",
        }
        for name in trace.tables:
            assert "secret" not in trace.frame(name).collect().write_csv()


def test_formats_do_not_collide(path: Path, tmp_path: Path) -> None:
    unknown = path.rename(tmp_path / "unknown")
    with tk.load(unknown) as trace:
        assert trace.format == "dlprof-db"
    exports = Path(__file__).parents[2] / "fixtures" / "graph_node.sqlite"
    with tk.load(exports) as trace:
        assert trace.format == "nsys-sqlite"
    with pytest.raises(UnsupportedVersionError, match="has no table read_only_ops"):
        tk.load(exports, "dlprof-db")


def test_something_else(tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    other.write_bytes(b"SQLite format 3\x00" + b"\0" * 4080)
    with pytest.raises((UnknownFormatError, CorruptTraceError)):
        tk.load(other)
    with pytest.raises(CorruptTraceError, match=r"cannot be read: .*"):
        tk.load(other, "dlprof-db")
    (tmp_path / "text").write_text("not a database")
    with pytest.raises(CorruptTraceError, match="not a SQLite database"):
        tk.load(tmp_path / "text", "dlprof-db")


@pytest.mark.parametrize(
    ("change", "table", "said"),
    [
        (
            "read_only_kernels SET gpu_start = 'soon' WHERE id = 1",
            "kernels",
            "row 1: column gpu_start must hold values of type integer, but holds text",
        ),
        (
            "read_only_kernels SET gpu_stop = 1.5 WHERE id = 1",
            "kernels",
            "row 1: column gpu_stop must hold values of type integer, but holds real",
        ),
        ("read_only_kernels SET gpu_stop = NULL WHERE id = 1", "kernels", "column 'end_ns' of table 'kernels'"),
        ("read_only_kernels SET grid_id = 99", "kernels", "column 'grid_x' of table 'kernels'"),
        ("read_only_grid_block SET x = 5000000000", "kernels", "column 'grid_x' of table 'kernels'"),
        ("read_only_memcpys SET device_id = -9e18", "memcpys", "column 'device_id' of table 'memcpys'"),
        ("read_only_memcpys SET id = 9223372036854775807 WHERE id = 1", "memcpys", "too large to derive ids of calls"),
        (
            "read_only_cuda_calls SET thread_id = x'00ff'",
            "api_calls",
            "row 1: column thread_id must hold values of type",
        ),
    ],
)
def test_values_that_cannot_be(tmp_path: Path, change: str, table: str, said: str) -> None:
    made = database(tmp_path / "made", f"UPDATE {change}")
    with untouched(made), tk.load(made) as trace, pytest.raises(CorruptTraceError) as caught:
        trace[table]
    assert said in str(caught.value)
    assert str(caught.value).endswith(AGAIN)


@pytest.mark.parametrize(
    ("names", "rows", "said"),
    [
        ("id, x, y, z", "(1, 1, 1, 1), (2, 1, 1, 1), (2, 1, 1, 1)", "1 rows have the same id as an earlier row"),
        ("id, x, y, z", "(1, 1, 1, 1), (NULL, 1, 1, 1)", "1 rows have no id"),
    ],
)
def test_ids_that_are_no_keys(tmp_path: Path, names: str, rows: str, said: str) -> None:
    table = "read_only_grid_block"
    made = database(
        tmp_path / "made",
        f"DROP TABLE {table}",
        f"CREATE TABLE {table} ({names})",
        f"INSERT INTO {table} VALUES {rows}",
    )
    with tk.load(made) as trace, pytest.raises(CorruptTraceError, match=said) as caught:
        trace["kernels"]
    assert caught.value.table == table


def test_ids_in_any_order(path: Path, tmp_path: Path) -> None:
    table = "read_only_kernels"
    made = database(
        tmp_path / "made",
        f"CREATE TABLE other AS SELECT * FROM {table} ORDER BY id DESC",
        f"DROP TABLE {table}",
        f"ALTER TABLE other RENAME TO {table}",
    )
    with tk.load(made) as trace, tk.load(path) as same:
        assert trace["kernels"].equals(same["kernels"])


def test_long_texts_that_many_rows_name(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "SPARE_TEXT_BYTES", 1)
    monkeypatch.setattr(columns, "MAX_TEXT_BYTES_PER_ROW", 0)
    for table, source in (("ops", "read_only_ops"), ("group_nodes", "group_ops")):
        with (
            tk.load(written) as trace,
            pytest.raises(CorruptTraceError, match=r"the strings of \d+ rows have \d+ bytes") as caught,
        ):
            trace[table]
        assert caught.value.table == source


def test_dangling_names_and_kinds_are_null(tmp_path: Path) -> None:
    made = database(
        tmp_path / "made", "DELETE FROM dictionary WHERE id = 2", "UPDATE read_only_memcpys SET copy_kind = 77"
    )
    assert {r[0] for r in rows(made, "kernels", "name")} == {None}
    assert {r[0] for r in rows(made, "memcpys", "copy_kind")} == {None}


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    made = database(tmp_path / "made", "UPDATE dictionary SET string = CAST(x'67ff65' AS TEXT) WHERE id = 2")
    assert {r[0] for r in rows(made, "kernels", "name")} == {"g\ufffde"}


@pytest.mark.many(5)
@pytest.mark.parametrize(
    "table", [t for t in TABLES if t not in {"dictionary", "read_only_ops", "read_only_op_instances"}]
)
def test_a_missing_table_has_no_rows(tmp_path: Path, table: str) -> None:
    made = database(tmp_path / "made", f"DROP TABLE {table}")
    read = outcome(made)
    joined = {"read_only_grid_block", "read_only_gpu_infos"}
    assert set(read.values()) == ({"read", "CorruptTraceError"} if table in joined else {"read"})


def test_another_layout_is_refused(tmp_path: Path) -> None:
    made = database(
        tmp_path / "made",
        "ALTER TABLE read_only_kernels DROP COLUMN gpu_stop",
        "UPDATE db_version SET current_version = '1.2.0'",
    )
    with pytest.raises(UnsupportedVersionError, match=r"\(version 1\.2\.0\) has no column read_only_kernels\.gpu_stop"):
        tk.load(made)


def test_a_newer_version_warns(tmp_path: Path) -> None:
    made = database(tmp_path / "made", "UPDATE db_version SET current_version = '1.10.0'")
    with pytest.warns(TracekitWarning, match=r"the database version 1\.10\.0 is newer than 1\.8"):
        tk.load(made).close()


def test_cut_short_at_every_page(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    for pages in range(1, len(data) // 4096):
        cut = tmp_path / "cut"
        cut.write_bytes(data[: pages * 4096])
        assert outcome(cut, "dlprof-db") == {"load": "CorruptTraceError"}


@pytest.mark.thorough
def test_flipped_bytes_and_zeroed_pages_give_the_same_tables_or_an_error(path: Path, tmp_path: Path) -> None:
    draw = random.Random(5)
    data = path.read_bytes()
    for n in range(80 if ALL else 30):
        changed = bytearray(data)
        if n % 3:
            for _ in range(draw.randrange(1, 6)):
                changed[draw.randrange(len(changed))] = draw.randrange(256)
        else:
            page = 4096 * draw.randrange(len(changed) // 4096)
            changed[page : page + 4096] = bytes(4096) if n % 2 else draw.randbytes(4096)
        bad = tmp_path / "bad"
        bad.write_bytes(changed)
        assert set(outcome(bad, "dlprof-db").values()) <= {"read", "CorruptTraceError", "UnsupportedVersionError"}


def rolled(trace: tk.Trace, table: str) -> pl.DataFrame:
    """Rows of a table in an order that does not depend on the file; what no database holds is left out."""
    key = {"ops": ["op_id"], "op_instances": ["start_ns", "end_ns", "op_id"], "iterations": ["iteration"]}
    unknown = ["op_instance_id", "group_node_id", "range_id", "parent_id", "forward_id", "sequence_number"]
    rows = trace.frame(table).with_columns(pl.col(pl.Categorical).cast(pl.String)).collect()
    rows = rows.filter(pl.col("path") != "") if table == "group_nodes" else rows
    return rows.drop(unknown, strict=False).sort(key.get(table, ["path"]))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database that we wrote, of a capture with the markers of DLProf."""
    path = tmp_path_factory.mktemp("written") / "written.sqlite"
    with tk.load(FIXTURES / "ops" / "pyprof_like.nsys-rep") as trace:
        trace.rollup(tensor_cores="dlprof").export(path, format="dlprof-db")
    return path


@pytest.mark.parametrize("table", ["ops", "op_instances", "iterations", "group_nodes"])
def test_what_we_write_comes_back(written: Path, table: str) -> None:
    with tk.load(FIXTURES / "ops" / "pyprof_like.nsys-rep") as trace, tk.load(written) as kept:
        ours, theirs = rolled(trace.rollup(tensor_cores="dlprof"), table), rolled(kept, table)
        assert ours.height > 0
        assert theirs.equals(ours)
        assert kept.count(table) == theirs.height


@pytest.mark.slow
@pytest.mark.many(1)
@pytest.mark.parametrize("capture", ["ops/emit_nvtx", "ops/jax_scopes", "ddp2", "graph_node"])
def test_ops_within_ops_keep_all_but_their_own_cpu_time(capture: str, tmp_path: Path) -> None:
    with tk.load(FIXTURES / f"{capture}.nsys-rep") as trace:
        made = trace.rollup(tensor_cores="dlprof")
        made.export(tmp_path / "made.sqlite", format="dlprof-db")
        with tk.load(tmp_path / "made.sqlite") as kept:
            for table in ("ops", "iterations", "group_nodes"):
                assert rolled(kept, table).equals(rolled(made, table)), table
            own = ["cpu_time_ns", "cpu_overhead_ns"]
            theirs, ours = rolled(kept, "op_instances"), rolled(made, "op_instances")
            assert theirs.drop(own).equals(ours.drop(own))
            assert (theirs["cpu_time_ns"] == theirs["end_ns"] - theirs["start_ns"]).all()


def test_a_call_that_launched_a_graph_is_one_call(tmp_path: Path) -> None:
    with tk.load(FIXTURES / "graph_node.nsys-rep") as trace:
        trace.rollup(tensor_cores="dlprof").export(tmp_path / "made.sqlite", format="dlprof-db")
        columns = ["start_ns", "api_start_ns"]
        theirs = trace.correlate().frame("kernels").select(columns).collect().sort(columns)
        with tk.load(tmp_path / "made.sqlite") as kept:
            calls = kept.frame("api_calls").select("start_ns", "thread_id").collect()
            assert kept.correlate().frame("kernels").select(columns).collect().sort(columns).equals(theirs)
            assert kept.count("api_calls") == calls.height
    assert calls.is_unique().all()
    assert theirs["api_start_ns"].n_unique() < theirs.height


def test_the_last_aggregation_counts(written: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.sqlite"
    shutil.copyfile(written, again)
    with contextlib.closing(sqlite3.connect(again)) as db:
        columns = [c for (c,) in db.execute("SELECT name FROM pragma_table_info('iteration_list') WHERE name <> 'id'")]
        values = ", ".join("2" if c == "aggr_id" else c for c in columns)
        first = "WHERE iter_value = 0"
        db.execute("INSERT INTO aggregations SELECT 2, server_user_name, server_host_name, 0, 0 FROM aggregations")
        db.execute(f"INSERT INTO iteration_list ({', '.join(columns)}) SELECT {values} FROM iteration_list {first}")
        db.commit()
    with tk.load(again) as trace:
        assert trace.frame("iterations").select("iteration", "is_aggregated").collect().rows() == [(0, False)]
        assert trace.count("group_nodes") == 0
        assert trace.frame("ops").select(pl.col("instance_count").sum()).collect().item() == 0


@pytest.mark.thorough
def test_damage_to_what_was_rolled_up(written: Path, tmp_path: Path) -> None:
    draw = random.Random(8)
    data = written.read_bytes()
    for _ in range(40):
        changed = bytearray(data)
        for _ in range(draw.randrange(1, 40)):
            changed[draw.randrange(4096, len(changed))] = draw.randrange(256)
        bad = tmp_path / "bad"
        bad.write_bytes(changed)
        assert set(outcome(bad, "dlprof-db").values()) <= {"read", "CorruptTraceError", "UnsupportedVersionError"}


@pytest.mark.corpus
@pytest.mark.skipif(not PAIR.exists(), reason="no corpus beside the checkout")
@pytest.mark.parametrize("table", ["ops", "op_instances", "iterations", "group_nodes"])
def test_dlprof_rolled_up_as_we_do(table: str) -> None:
    mine = next(p for p in PUBLIC if p.stem == "dlprof_dldb_1")
    with tk.load(mine) as kept, tk.load(PAIR) as recorded:
        assert rolled(kept, table).equals(rolled(recorded.rollup(tensor_cores="dlprof"), table))


@pytest.mark.corpus
@pytest.mark.parametrize("path", PUBLIC, ids=lambda p: p.stem)
def test_public_databases(path: Path) -> None:
    with untouched(path), warnings.catch_warnings():
        warnings.simplefilter("error")
        with tk.load(path) as trace:
            assert trace.format == "dlprof-db"
            for name in trace.tables:
                trace[name].validate(full=True)
            assert trace.count("api_calls") == sum(plain(path, f"SELECT count(*) FROM {t}")[0][0] for t in CHILDREN)  # type: ignore[misc]


@pytest.mark.corpus
@pytest.mark.skipif(not PAIR.exists(), reason="no corpus beside the checkout")
@pytest.mark.parametrize("which", ["dlprof_dldb_1", "dlprof_dldb_7"])
def test_the_public_pair_says_the_same_twice(which: str) -> None:
    """What DLProf kept of an export is what the export holds, in another order."""
    shared = {
        "kernels": [
            "start_ns",
            "end_ns",
            "process_id",
            "device_id",
            "short_name",
            "grid_x",
            "grid_y",
            "grid_z",
            "block_x",
        ],
        "memcpys": ["start_ns", "end_ns", "process_id", "device_id", "bytes", "copy_kind"],
        "memsets": ["start_ns", "end_ns", "process_id", "device_id", "bytes"],
        "syncs": ["process_id", "device_id", "sync_type", "event_id"],
        "api_calls": ["start_ns", "end_ns", "process_id", "thread_id"],
        "devices": ["device_id", "name", "compute_major", "compute_minor", "sm_count"],
    }
    mine = next(p for p in PUBLIC if p.stem == which)
    with tk.load(mine) as kept, tk.load(PAIR) as recorded:
        for table, columns in shared.items():
            text = pl.col(pl.Categorical).cast(pl.String)
            ours, theirs = (
                t.frame(table).select(columns).with_columns(text).collect().sort(columns) for t in (kept, recorded)
            )
            assert ours.height > 0
            assert ours.equals(theirs), table
        linked = kept.correlate(), recorded.correlate()
        start = [t.frame("kernels").select("start_ns", "api_start_ns").collect().sort("start_ns") for t in linked]
        assert start[0].equals(start[1])
