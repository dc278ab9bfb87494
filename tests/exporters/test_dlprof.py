"""The database and the reports of DLProf: the contract of the viewer, and figures that agree with our own tables."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from pathlib import Path

import polars as pl
import pytest
import tracekit as tk
from tests.conftest import ClosedWhenDeleted
from tests.exporters.dlprof_contract import VIEWS
from tracekit import registry, schemas
from tracekit.errors import ExportError, UnknownFormatError
from tracekit.readers.nsys.capture import NsysCapture

FIXTURES = Path(__file__).parents[2] / "fixtures"
CAPTURES = sorted([*FIXTURES.glob("*.sqlite"), *FIXTURES.glob("ops/*.nsys-rep")])
ONE_ROW = (
    *("view_system_config", "view_db_version", "view_performance_summary", "view_kernel_summary"),
    *("view_resource_usage_breakdown", "view_domain_model_gpu_utilization", "view_tc_utilization"),
)
ITERATIONS = {
    "train_amp": 4,
    "ddp2": 4,
    "graph_node": 5,
    "jax_mlp": 4,
    "gpu_metrics": 2,
    "emit_nvtx": 6,
    "kineto_nsys": 4,
    "modules": 4,
    "pyprof_like": 4,
}
"""As the programs count."""


OUTSIDE = ("graph_node", "jax_scopes", "nvtx_features", "pyprof_like")
"""Captures with kernels outside of every iteration: graph capture, evaluation, the last step of the optimizer."""


@pytest.fixture(params=CAPTURES, ids=lambda p: p.name, scope="module")
def rolled(request: pytest.FixtureRequest) -> tk.Trace:
    return tk.load(request.param).rollup()


@pytest.fixture(scope="module")
def database(rolled: tk.Trace, tmp_path_factory: pytest.TempPathFactory) -> sqlite3.Connection:
    """The database of a capture, exported once for all tests."""
    return opened(rolled.export(tmp_path_factory.mktemp("dlprof") / "made.sqlite", format="dlprof-db"))


def opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, factory=ClosedWhenDeleted)


def empty_database() -> sqlite3.Connection:
    db = sqlite3.connect(":memory:", factory=ClosedWhenDeleted)
    for name in ("tables", "indexes", "views"):
        db.executescript((schemas.FOLDER / "dlprof" / f"{name}.sql").read_text("utf-8"))
    return db


def test_the_views_are_those_the_viewer_asks() -> None:
    db = empty_database()
    made = {
        name: ", ".join(f"{c[1]} {c[2]}".strip() for c in db.execute(f"PRAGMA table_info({name})"))
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'view'")
    }
    assert made == VIEWS


@pytest.mark.parametrize(
    ("kind", "name", "trimmed"),
    [(1, "/", ""), (1, "a/", "a"), (1, "/a/b/", "b"), (1, "a//", ""), (2, "a/b", "b"), (2, "a/b/", ""), (2, "b", "b")],
)
def test_the_last_part_of_a_name_is_what_dlprof_shows(kind: int, name: str, trimmed: str) -> None:
    """Of a group without the "/" that it ends in; of an op whose name ends in "/" nothing."""
    db = empty_database()
    db.execute("INSERT INTO dictionary (string) VALUES (?)", (name,))
    db.execute("INSERT INTO read_only_domains (domain_name_id) VALUES (1)")
    db.execute("INSERT INTO metric (count, max, min, sum, avg) VALUES (0, 0, 0, 0, 0.0)")
    db.execute("INSERT INTO node_time_metrics VALUES (1, 1, 1, 1, 1, 1)")
    db.execute("INSERT INTO aggregations VALUES (1, '', '', 0, 0)")
    db.execute("INSERT INTO group_ops VALUES (1, 1, 1, ?, 1, 1, 0, 0, 0, 0, 1)", (kind,))
    assert db.execute("SELECT row_trimmed_name FROM view_group_ops").fetchone() == (trimmed,)


@pytest.mark.slow
def test_every_capture_makes_a_whole_database(database: sqlite3.Connection) -> None:
    db = database
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert db.execute("PRAGMA foreign_key_check").fetchall() == []
    for view in VIEWS:
        rows = db.execute(f"SELECT * FROM {view}").fetchall()
        assert view not in ONE_ROW or len(rows) == 1
    assert db.execute("SELECT current_version, original_version FROM view_db_version").fetchone() == ("1.8.0", "1.8.0")


def test_the_database_agrees_with_our_tables(rolled: tk.Trace, database: sqlite3.Connection) -> None:
    db = database
    ops, instances = rolled.frame("ops").collect(), rolled.frame("op_instances").collect()
    assert db.execute("SELECT count(*) FROM read_only_ops").fetchone() == (ops.height,)
    assert db.execute("SELECT count(*) FROM read_only_op_instances").fetchone() == (instances.height,)
    totals = "op_node_id, op_node_name, gpu_time, cpu_time, num_calls, kernel_calls"
    columns = ["op_id", "op_name", "gpu_time_ns", "cpu_time_ns", "instance_count", "kernel_count"]
    theirs = db.execute(f"SELECT {totals} FROM view_op_nodes ORDER BY op_node_id").fetchall()
    assert theirs == ops.sort("op_id").select(pl.col("op_id", "op_name").cast(pl.String), *columns[2:]).rows()
    as_dlprof = rolled.rollup(tensor_cores="dlprof")
    nodes = as_dlprof.frame("group_nodes").filter(pl.col("level") > 0).select("path", "cpu_time_ns", "gpu_time_ns")
    theirs = db.execute(
        "SELECT row_full_name, cpu_time_sum, gpu_time_sum FROM view_group_ops WHERE row_type = 1 ORDER BY row_full_name"
    ).fetchall()
    if as_dlprof.frame("ops").select("instance_count").sum().collect().item() == ops["instance_count"].sum():
        assert theirs == nodes.collect().rows()
    else:  # DLProf counts what lies outside of the loop, too
        below = {p: ops.filter(pl.col("op_name").cast(pl.String).str.starts_with(p)) for p, _, _ in theirs}
        assert [(p, c) for p, c, _ in theirs] == [(p, rows["cpu_time_ns"].sum()) for p, rows in below.items()]
        assert all(gpu <= below[p]["gpu_time_ns"].sum() for p, _, gpu in theirs)
        assert below.keys() == set(nodes.collect()["path"])
    aggregated = rolled.frame("iterations").filter("is_aggregated").select("iteration", "kernel_count").collect()
    theirs = db.execute("SELECT iter_value, total_kernel_count FROM view_iterations_profiled ORDER BY 1")
    assert theirs.fetchall() == aggregated.rows()


def ran_in_steps_of_other_threads(rolled: tk.Trace, step: str) -> set[str]:
    """Ids of the ops most of whose instances started on another thread while a step was open."""
    columns = ["op_id", "op_name", "process_id", "thread_id", "start_ns", "end_ns"]
    texts = {"op_id": pl.String, "op_name": pl.String}
    rows = rolled.frame("op_instances").select(columns).cast(texts).collect().rows()
    steps = [r[2:] for r in rows if r[1] == step and step.endswith(" *")]
    threads = {s[:2] for s in steps}
    found: dict[str, list[bool]] = {}
    for op, _, process, thread, start, _ in rows:
        inside = any(p == process and s <= start <= e for p, _, s, e in steps)
        found.setdefault(op, []).append(inside and (process, thread) not in threads)
    return {op for op, inside in found.items() if sum(inside) > len(inside) / 2}


@pytest.mark.slow
def test_totals_add_up(rolled: tk.Trace) -> None:
    ops, sums = rolled.frame("ops").collect(), ["cpu_time_ns", "api_time_ns", "cpu_overhead_ns", "instance_count"]
    (step,) = (
        rolled.frame("iterations").select(pl.col("key_op").cast(pl.String).first().fill_null("")).collect()["key_op"]
    )
    moved = pl.col("op_id").cast(pl.String).is_in(ran_in_steps_of_other_threads(rolled, step))
    name = pl.col("op_name").cast(pl.String)
    for mode in ("extended", "dlprof"):
        extended = pl.lit(mode == "extended")
        ops = rolled.rollup(tensor_cores=mode).frame("ops").collect()
        other = moved & ~name.str.starts_with(f"{step}/")
        named = ops.with_columns(way=pl.when(extended & other).then(f"{step}/" + name).otherwise(name))
        nodes = rolled.rollup(tensor_cores=mode).frame("group_nodes").collect()
        split = extended & (pl.col("level") > 0)
        for path, direction, directed, *totals in nodes.select("path", "direction", split, *sums).rows():
            below = named.filter(pl.col("way").str.starts_with(path))
            below = below.filter(pl.col("direction").eq_missing(pl.lit(direction))) if directed else below
            assert totals == [below[c].sum() for c in sums]
    assert (ops["cpu_time_ns"] == ops["api_time_ns"] + ops["cpu_overhead_ns"]).all()
    parts = [c for c in schemas.table("iterations").names if c.startswith("in_")]
    its = rolled.frame("iterations").with_columns(lost=pl.col("end_ns") - pl.col("start_ns") - pl.sum_horizontal(parts))
    assert its.filter(~pl.col("lost").is_between(0, len(parts))).collect().is_empty()


def test_no_kernel_is_lost(rolled: tk.Trace) -> None:
    launched = rolled.correlate().frame("kernels").filter(pl.col("api_call_id").is_not_null()).collect().height
    assert rolled.frame("op_instances").select(pl.col("kernel_count").sum()).collect().item() == launched
    outside = rolled.frame("kernels").filter(pl.col("op_id").is_not_null() & pl.col("iteration").is_null())
    inside = launched - outside.collect().height
    assert inside == launched or rolled.path.stem in OUTSIDE
    assert rolled.frame("iterations").select(pl.col("kernel_count").sum()).collect().item() == inside
    assert rolled.frame("ops").select(pl.col("kernel_count").sum()).collect().item() == inside


def test_iterations_are_those_of_the_program(rolled: tk.Trace) -> None:
    assert rolled.path
    expected = ITERATIONS.get(rolled.path.stem)
    assert expected is None or rolled.count("iterations") == expected


def test_pyprof_calls_are_those_of_the_program() -> None:
    told = json.loads((FIXTURES / "ops" / "pyprof_like.json").read_text("utf-8"))["calls"]
    with tk.load(FIXTURES / "ops" / "pyprof_like.nsys-rep") as trace:
        ops = trace.rollup().frame("ops").filter(pl.col("op_id").str.contains(r"_\d+(?:_BPROP)?$")).collect()
    for kind in ("conv2d", "linear", "backward"):
        whole = ops.filter((pl.col("op_type").cast(pl.String) == kind) & pl.col("is_associated"))
        own = whole if kind == "backward" else whole.filter(pl.col("direction").cast(pl.String) == "fprop")
        assert own["instance_count"].sum() == told[kind]


@pytest.mark.slow
def test_other_iterations_read_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with tk.load(FIXTURES / "train_amp.sqlite") as trace:
        rolled = trace.rollup()
        assert rolled.count("iterations") == 4
        monkeypatch.delattr(NsysCapture, "read_many")
        last = rolled.rollup(iterations=(3, None))
        counts = last.frame("iterations").select("is_aggregated", "kernel_count").collect()
        assert counts["is_aggregated"].to_list() == [False, False, False, True]
        assert counts["kernel_count"].to_list() == [0, 0, 0, 74]
        optimizer = rolled.rollup(key_op="OPTIMIZER_1")
        assert optimizer.count("iterations") == 4
        assert optimizer.frame("iterations").select("key_op").first().collect().item() == "OPTIMIZER_1"


def test_events_are_read_in_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[set[str]] = []
    read = NsysCapture.read_many

    def noted(capture: NsysCapture, wanted: dict[str, list[str]]) -> object:
        passes.append(set(wanted))
        return read(capture, wanted)

    monkeypatch.setattr(NsysCapture, "read_many", noted)
    with tk.load(FIXTURES / "osrt_libs.nsys-rep") as trace:
        trace.export(tmp_path / "out.sqlite", format="dlprof-db")
    assert [p for p in passes if not p <= {"devices", "capture_info"}] == passes[:1]
    assert {"kernels", "osrt_calls", "cpu_samples"} <= passes[0]


def test_iterations_that_are_none_are_refused() -> None:
    with (
        tk.load(FIXTURES / "train_amp.sqlite") as trace,
        pytest.raises(
            tk.TracekitError,
            match="invalid range of iterations 3:1: the range has a negative start or ends before it starts",
        ),
    ):
        trace.rollup(iterations=(3, 1)).count("iterations")


@pytest.mark.slow
def test_options_stand_in_the_database_and_nothing_else_does(tmp_path: Path) -> None:
    given = {"profile-name": "run 7", "command": "python x.py", "user": "u", "host": "h", "time": "2026-01-02 03:04:05"}
    with tk.load(FIXTURES / "graph_node.sqlite") as trace:
        db = opened(trace.export(tmp_path / "told.sqlite", format="dlprof-db", options=given))
        plain = opened(trace.export(tmp_path / "plain.sqlite", format="dlprof-db"))
        with pytest.raises(UnknownFormatError, match="the format dlprof-db has no option 'x'"):
            trace.export(tmp_path / "no.sqlite", format="dlprof-db", options={"x": "1"})
    who = "SELECT user_name, host_name, aggr_start FROM view_aggregations"
    what = "SELECT profile_name, original_command FROM view_system_config"
    assert db.execute(who).fetchone() == ("u", "h", "2026-01-02 03:04:05")
    assert db.execute(what).fetchone() == ("run 7", "python x.py")
    assert plain.execute(who).fetchone() == ("", "", "")
    assert plain.execute(what).fetchone() == ("", "UNKNOWN")


@pytest.mark.slow
@pytest.mark.many(1)
@pytest.mark.parametrize("suffix", ["sqlite", "nsys-rep"])
def test_the_machine_is_described(suffix: str, tmp_path: Path) -> None:
    with tk.load(FIXTURES / f"train_amp.{suffix}") as trace:
        db = opened(trace.export(tmp_path / "x.sqlite", format="dlprof-db"))
        version, summary = trace.info["tool_version"], trace.report("summary").frame()
    columns = "is_valid, num_gpus, cpu_model, driver_version, framework, cuda_version, cudnn_version, nsys_version"
    expected = (1, "2", "Intel(R) Xeon(R) Processor", "580.159.04", "PyTorch", "13.0", "", version)
    assert db.execute(f"SELECT {columns} FROM view_system_config").fetchall() == [expected]
    assert db.execute("SELECT gpu_name FROM view_gpu_names").fetchall() == [("NVIDIA H200",)] * 2
    assert ("CPU Model", "Intel(R) Xeon(R) Processor") in summary.select("Name", "Value").rows()


def test_the_operating_system_is_a_fact_of_the_capture_and_its_host_is_not() -> None:
    with tk.load(FIXTURES / "train_amp.sqlite") as export, tk.load(FIXTURES / "train_amp.nsys-rep") as report:
        facts = [dict(t.info) for t in (export, report)]
    machine = {"cpu_model", "driver_version", "cuda_version", "os"}
    assert [{k: f[k] for k in machine} for f in facts] == [
        {
            "cpu_model": "Intel(R) Xeon(R) Processor",
            "driver_version": "580.159.04",
            "cuda_version": "13.0",
            "os": "Ubuntu 24.04.3 LTS",
        }
    ] * 2
    assert {n for f in facts for n in f} == {
        *machine,
        *("tool", "tool_version", "schema_version", "origin_utc_ns", "duration_ns"),
    }


@pytest.mark.slow
@pytest.mark.parametrize("capture", ["empty.nsys-rep", "empty.sqlite"])
def test_an_empty_capture_has_an_iteration_that_the_viewer_can_draw(capture: str, tmp_path: Path) -> None:
    with tk.load(FIXTURES / capture) as trace:
        db = opened(trace.export(tmp_path / "x.sqlite", format="dlprof-db"))
        duration = int(trace.info["duration_ns"])
    assert db.execute("SELECT iter_value, start_time, duration FROM view_iterations_all").fetchall() == [
        (0, 0, duration)
    ]
    assert db.execute("SELECT max(duration) FROM view_iterations_profiled").fetchone() == (duration,)
    assert db.execute("SELECT wall_clock_time FROM view_performance_summary").fetchone() == (duration,)
    assert db.execute("SELECT other_duration_pct FROM view_resource_usage_breakdown").fetchone() == (100.0,)


def test_without_a_duration_an_empty_capture_lasts_one_nanosecond() -> None:
    frame = tk.Trace.from_tables({}).rollup().frame("iterations").select("start_ns", "end_ns").collect()
    assert frame.rows() == [(0, 1)]


@pytest.mark.thorough
def test_exported_twice_the_same_bytes(tmp_path: Path) -> None:
    with tk.load(FIXTURES / "train_amp.sqlite") as trace:
        made = [trace.export(tmp_path / f"{i}.sqlite", format="dlprof-db").read_bytes() for i in range(2)]
    assert made[0] == made[1]


def test_an_unwritable_place_is_the_targets_fault(tmp_path: Path) -> None:
    with tk.load(FIXTURES / "graph_node.sqlite") as trace, pytest.raises(ExportError):
        trace.export(tmp_path / "none" / "x.sqlite", format="dlprof-db")


@pytest.mark.slow
@pytest.mark.core
@pytest.mark.many(1)
def test_reports_are_the_same_in_csv_and_json(rolled: tk.Trace, tmp_path: Path) -> None:
    folder = rolled.export(tmp_path / "reports", format="dlprof-reports", options={"dlprof-build": "7"})
    names = sorted(p.stem for p in folder.glob("*.csv"))
    assert names == sorted(p.stem for p in folder.glob("*.json"))
    assert len(names) == 8
    for name in set(names) - {"dlprof_summary"}:
        _, titles, *rows = csv.reader((folder / f"{name}.csv").read_text("utf-8").splitlines(keepends=True))
        twins = json.loads((folder / f"{name}.json").read_text("utf-8"))
        assert len(rows) == len(twins)
        assert all(list(t) == titles for t in twins)
    assert "DLProf Build,7" in (folder / "dlprof_summary.csv").read_text("utf-8").splitlines()


def test_every_option_is_described() -> None:
    for exporter in registry.exporters().values():
        assert all(option.doc for option in exporter.options)


def test_labels_of_the_summary_are_different(tmp_path: Path) -> None:
    """As a table of three columns it says of each number which one it is; its CSV is DLProf's."""
    with tk.load(FIXTURES / "train_amp.sqlite") as trace:
        report = trace.report("summary")
        found = report.frame().filter(pl.col("Section").str.starts_with("All"))
        sink = io.BytesIO()
        report.csv(sink)
    assert found["Name"].n_unique() == found.height == 24
    assert found["Name"].head(4).to_list() == [
        "All ops: GPU Time (ns)", "All ops: CPU Time (ns)", "All ops: # Ops", "Ops using TC: GPU Time (ns)",
    ]  # fmt: skip
    lines = sink.getvalue().decode().splitlines()
    at = lines.index("All Ops")
    assert lines[at + 1] == ",GPU Time (ns),CPU Time (ns),# Ops"
    assert lines[at + 2] == ",".join(["All ops", *found["Value"].head(3)])
