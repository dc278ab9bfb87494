"""Times at the edges of 64 bits are an error that names the table and the value, in every format with times."""

from __future__ import annotations

import contextlib
import gzip
import json
import shutil
import sqlite3
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import ipc, parquet
from tests.builders.nsys_rep import Parts, event, message, strings
from tests.builders.reports import REPORTS_OF_NSYS, RULES
from tests.exporters.test_perfetto_trace import check as check_perfetto
from tracekit import registry, schemas
from tracekit.errors import CorruptTraceError, SchemaError, TracekitError, TracekitWarning
from tracekit.plan.recorded import MAX_TIME_NS, MAX_TOTAL_NS
from tracekit.readers.nsys_rep import layout
from tracekit.registry.interface import Reader

FIXTURES = Path(__file__).parents[1] / "fixtures"
LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
EDGES = [(LOWEST, 5), (5, HIGHEST), (LOWEST, HIGHEST), (-MAX_TIME_NS - 1, 0), (0, MAX_TIME_NS + 1)]
Writer = Callable[[Path, int, int], Path]


def kernels(start: int, end: int, rows: int = 1, first_id: int = 1) -> pa.Table:
    schema = schemas.table("kernels")
    example = schemas.create_example_frame(schema).with_columns(start_ns=pl.lit(start), end_ns=pl.lit(end))
    frame = pl.concat([example] * rows).with_columns(kernel_id=first_id + pl.int_range(rows))
    return schemas.conform(frame.to_arrow(), schema)


def write_sqlite(folder: Path, start: int, end: int) -> Path:
    path = Path(shutil.copyfile(FIXTURES / "train_amp.sqlite", folder / "x.sqlite"))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = ?, end = ? WHERE rowid = 3", (start, end))
    return path


def write_folder(folder: Path, start: int, end: int, kind: str) -> Path:
    path = Path(shutil.copytree(FIXTURES / f"train_amp_{kind}dir", folder / kind))
    file = path / f"CUPTI_ACTIVITY_KIND_KERNEL.{kind}"
    table = parquet.read_table(file) if kind == "parquet" else ipc.open_stream(file.read_bytes()).read_all()
    for column, value in (("start", start), ("end", end)):
        index = table.column_names.index(column)
        mask = pc.equal(pa.array(range(table.num_rows)), 2)
        changed = pc.if_else(mask, pa.scalar(value, pa.int64()), table[column].cast(pa.int64()))
        table = table.set_column(index, column, changed)
    if kind == "parquet":
        parquet.write_table(table, file)
    else:
        with ipc.new_stream(str(file), table.schema) as writer:
            writer.write_table(table)
    return path


def write_report(folder: Path, start: int, end: int) -> Path:
    path = folder / "x.nsys-rep"
    kernel = message((1, 0), (2, 0), (10, 1), (11, 1), (12, 1), (13, 1), (14, 1), (15, 1))
    block = event(79, layout.GPU, (1, start), (2, end), (3, 1), (4, 0), (5, 1), (6, 7), (8, 7 << 24), (101, kernel))
    path.write_bytes(Parts([block], [strings("name")]).pack())
    return path


def write_parquet(folder: Path, start: int, end: int) -> Path:
    parquet.write_table(kernels(start, end), folder / "kernels.parquet")
    return folder / "kernels.parquet"


def write_arrow(folder: Path, start: int, end: int) -> Path:
    table = kernels(start, end)
    with ipc.new_file(str(folder / "kernels.arrow"), table.schema) as writer:
        writer.write_table(table)
    return folder / "kernels.arrow"


WRITERS: dict[str, Writer] = {
    "nsys-sqlite": write_sqlite,
    "nsys-parquetdir": lambda folder, start, end: write_folder(folder, start, end, "parquet"),
    "nsys-arrowdir": lambda folder, start, end: write_folder(folder, start, end, "arrow"),
    "nsys-rep": write_report,
    "parquet": write_parquet,
    "arrow": write_arrow,
}


@pytest.mark.many(10)
@pytest.mark.parametrize(("start", "end"), EDGES)
@pytest.mark.parametrize("name", WRITERS)
def test_times_at_the_edges_are_an_error(name: str, start: int, end: int, tmp_path: Path) -> None:
    with tk.load(WRITERS[name](tmp_path, start, end), cache=False) as trace:
        assert trace.format == name
        with pytest.raises(CorruptTraceError, match=r"1 values of (start|end)_ns are outside ±2\^61 ns, such as -?\d+"):
            trace.table("kernels")
        with pytest.raises(CorruptTraceError, match="kernels"):
            trace.stats("cuda_gpu_kern_sum")
        with pytest.raises(CorruptTraceError):
            trace.span()


@pytest.mark.parametrize(("start", "end"), [(1e300, 1e300), (-9.3e15, 9.3e15), (-1.8e16, 1.8e16), (0, 1.8e19)])
def test_times_of_a_pytorch_trace_at_the_edges(start: float, end: float, tmp_path: Path) -> None:
    path = tmp_path / "x.pt.trace.json.gz"
    times = [(0.0, 1.0), (start, 1.0), (end, 1.0), (0.0, end)]
    events = [
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": {"device": 0}}
        for ts, dur in times
    ]
    path.write_bytes(gzip.compress(json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()))
    with pytest.warns(TracekitWarning, match="[23] events have no valid time or duration and were skipped"):
        trace = tk.load(path, cache=False)
    with trace:
        frame = trace.frame("kernels").select(d=pl.col("end_ns") - pl.col("start_ns")).collect()
        assert frame.filter(pl.col("d") < 0).is_empty()


def test_times_within_the_limits_are_kept() -> None:
    for start in (-MAX_TIME_NS, MAX_TIME_NS - MAX_TOTAL_NS):
        trace = tk.Trace.from_tables({"kernels": kernels(start, start + MAX_TOTAL_NS)})
        (row,) = trace.stats("cuda_gpu_kern_sum").to_dicts()
        assert row["Total Time (ns)"] == row["Max (ns)"] == MAX_TOTAL_NS
        assert (row["Avg (ns)"], row["Med (ns)"]) == pytest.approx((MAX_TOTAL_NS, MAX_TOTAL_NS), rel=1e-15)
        assert trace.span() == (start, start + MAX_TOTAL_NS)


@given(
    start=st.sampled_from([LOWEST, -MAX_TIME_NS - 1, -MAX_TIME_NS, -1, 0, MAX_TIME_NS, HIGHEST]),
    end=st.sampled_from([LOWEST, -MAX_TIME_NS, 0, 1, MAX_TIME_NS, MAX_TIME_NS + 1, HIGHEST]),
    name=st.sampled_from([*REPORTS_OF_NSYS, *RULES, "advise"]),
)
@pytest.mark.filterwarnings("ignore::tracekit.errors.TracekitWarning")
def test_reports_compute_or_raise_a_typed_error(start: int, end: int, name: str) -> None:
    trace = tk.Trace.from_tables({"kernels": kernels(start, end)})
    with contextlib.suppress(TracekitError):
        frame = trace.report(name).frame()
        spread = [c for c in frame.columns if c.startswith("StdDev")]
        assert all((frame[c].drop_nulls() >= 0).all() for c in spread)


STACK_FORMATS = ("collapsed", "pprof", "speedscope")
"""Formats of call stacks, which contain no times."""
TIME_TABLES = [name for name in schemas.table_names() if {"start_ns", "timestamp_ns"} & set(schemas.table(name).names)]
NORMAL = (3, 8)
ODD = [
    (5, 5),
    (9, 5),
    (MAX_TIME_NS, MAX_TIME_NS),
    (-MAX_TIME_NS, -MAX_TIME_NS),
    (-MAX_TIME_NS, MAX_TOTAL_NS - MAX_TIME_NS),
]
"""Times that are accepted: zero length, an end before the start, and the limits."""


def tables(start: int, end: int, *names: str) -> dict[str, pa.Table]:
    """One row of some tables, with a start and an end."""
    result = {}
    for name in names:
        schema = schemas.table(name)
        times = {"start_ns": start, "end_ns": end, "timestamp_ns": start if abs(start) > MAX_TIME_NS else end}
        values = {c: pl.lit(v, pl.Int64) for c, v in times.items() if c in schema.names}
        frame = schemas.create_example_frame(schema).with_columns(**values)
        result[name] = schemas.conform(frame.to_arrow(), schema)
    return result


@pytest.fixture
def plugin() -> Callable[[dict[str, pa.Table], Path], tk.Trace]:
    """Load tables as if the reader of a plug-in had read them."""

    def load(content: dict[str, pa.Table], folder: Path) -> tk.Trace:
        (folder / "a.mine").write_bytes(b"MINE")
        with pytest.MonkeyPatch.context() as patched:
            reader = Reader("mine", "a test", (".mine",), lambda source: source.head == b"MINE", lambda _: content)
            patched.setattr(registry, "readers", lambda: {"mine": reader})
            patched.setattr(registry, "BUILTIN_READERS", {})
            return tk.load(folder / "a.mine")

    return load


@pytest.mark.parametrize("name", TIME_TABLES)
def test_every_table_with_times_is_checked(name: str) -> None:
    schema = schemas.table(name)
    for start, end in EDGES:
        trace = tk.Trace.from_tables(tables(start, end, name))
        if "start_ns" not in schema.names and abs(start) <= MAX_TIME_NS and abs(end) <= MAX_TIME_NS:
            continue
        with pytest.raises(CorruptTraceError, match=rf"table {name}(, row 0|: row 0)?.*are outside ±2\^61 ns"):
            trace.table(name)


@pytest.mark.many(12)
@pytest.mark.parametrize("is_plugin", [False, True])
@pytest.mark.parametrize("format_name", sorted(registry.exporters()))
def test_exporters_refuse_times_at_the_edges(
    format_name: str, is_plugin: bool, plugin: Callable[[dict[str, pa.Table], Path], tk.Trace], tmp_path: Path
) -> None:
    names = ("cpu_samples", "stacks") if format_name in STACK_FORMATS else ("kernels", "api_calls", "nvtx_ranges")
    load = plugin if is_plugin else lambda content, _: tk.Trace.from_tables(content)
    suffix = registry.exporter(format_name).suffixes[0]

    def export(start: int, end: int) -> Path:
        with load(tables(start, end, *names), tmp_path) as trace:
            return trace.export(tmp_path / f"out{start}_{end}{suffix}", format=format_name)

    for start, end in EDGES:
        if format_name in STACK_FORMATS:
            assert export(start, end).read_bytes() == export(*NORMAL).read_bytes()
            (tmp_path / f"out{start}_{end}{suffix}").unlink()
            (tmp_path / f"out3_8{suffix}").unlink()
            continue
        with pytest.raises(CorruptTraceError, match=r"1 values of (start|end)_ns are outside ±2\^61 ns, such as -?\d+"):
            export(start, end)
    assert {path.name for path in tmp_path.iterdir()} <= {"a.mine"}


@pytest.mark.slow
@pytest.mark.many(20)
@pytest.mark.filterwarnings("ignore:.* (end before they start|ends before it starts)")
@pytest.mark.parametrize(("start", "end"), ODD)
@pytest.mark.parametrize("format_name", sorted(registry.exporters().keys() - {*STACK_FORMATS, "tfevents"}))
def test_exporters_write_accepted_times_exactly(format_name: str, start: int, end: int, tmp_path: Path) -> None:
    trace = tk.Trace.from_tables(tables(start, end, "kernels"))
    if format_name == "perfetto":
        check_perfetto(trace, tmp_path)
        return
    path = trace.export(tmp_path / f"out{registry.exporter(format_name).suffixes[0]}", format=format_name)
    if format_name == "chrome-trace":
        events = json.loads(path.read_text("utf-8"), parse_float=Decimal)["traceEvents"]
        (event,) = [event for event in events if event["ph"] == "X"]
        assert event["ts"] * 1000 == max(start, 0) or start < 0
        assert event["dur"] * 1000 == max(end - start, 0)
        assert event["args"].get("negative_duration_ns", 0) == min(end - start, 0)
    elif format_name in ("arrow", "parquet"):
        with tk.load(path) as again:
            assert again.frame("kernels").select("start_ns", "end_ns").collect().rows() == [(start, end)]
    elif format_name == "csv":
        assert pl.read_csv(path / "kernels.csv").select("start_ns", "end_ns").rows() == [(start, end)]
    elif format_name == "sqlite":
        with contextlib.closing(sqlite3.connect(path)) as db:
            assert db.execute("SELECT start_ns, end_ns FROM kernels").fetchall() == [(start, end)]
    else:
        assert path.exists()


@pytest.mark.parametrize("format_name", ["nsys-sqlite", "nsys-parquetdir", "nsys-arrowdir"])
@pytest.mark.parametrize(("start", "end"), [(9, 5), (5, 5)])
def test_files_with_odd_intervals(format_name: str, start: int, end: int, tmp_path: Path) -> None:
    with tk.load(WRITERS[format_name](tmp_path, start, end), cache=False) as trace:
        expected = "1 row of the table kernels ends before it starts"
        with pytest.warns(TracekitWarning, match=expected) if end < start else contextlib.nullcontext():
            assert trace.count("kernels") == trace.table("kernels").num_rows
        rows = trace.frame("kernels").filter(pl.col("start_ns") == start, pl.col("end_ns") == end).collect()
        assert rows.height == 1


@pytest.mark.parametrize("is_plugin", [False, True])
@pytest.mark.filterwarnings("ignore:.* (end before they start|ends before it starts)")
def test_durations_whose_sum_overflows_are_an_error(
    is_plugin: bool, plugin: Callable[[dict[str, pa.Table], Path], tk.Trace], tmp_path: Path
) -> None:
    load = plugin if is_plugin else lambda content, _: tk.Trace.from_tables(content)
    message = r"table kernels: the durations of the rows add up to more than 2\^59 ns"
    longest = (-MAX_TIME_NS, MAX_TIME_NS)
    for start, end in (longest, longest[::-1], (0, MAX_TOTAL_NS // 3)):
        trace = load({"kernels": kernels(start, end, rows=4)}, tmp_path)
        error: tuple[type[Exception], str] = (CorruptTraceError, message)
        if is_plugin and end < start:
            error = SchemaError, "column 'end_ns' of table 'kernels' is less than 'start_ns' in 4 rows"
        for _ in range(2):
            with pytest.raises(error[0], match=error[1]):
                trace.stats("cuda_gpu_kern_sum")
            with pytest.raises(error[0], match=error[1]):
                trace.export(tmp_path / "out.html", format="html")
    within = load({"kernels": kernels(0, MAX_TOTAL_NS // 4, rows=4)}, tmp_path)
    (row,) = within.stats("cuda_gpu_kern_sum").to_dicts()
    assert (row["Total Time (ns)"], row["StdDev (ns)"]) == (MAX_TOTAL_NS, 0)
    assert row["Avg (ns)"] == pytest.approx(MAX_TOTAL_NS / 4, rel=1e-15)
    mixed = pa.concat_tables([kernels(0, MAX_TOTAL_NS - 100), kernels(0, 1, rows=50, first_id=2)])
    (row,) = load({"kernels": mixed}, tmp_path).stats("cuda_gpu_kern_sum").to_dicts()
    assert row["Total Time (ns)"] == MAX_TOTAL_NS - 50


@pytest.mark.many(8)
@pytest.mark.parametrize("name", [*REPORTS_OF_NSYS, *RULES])
def test_no_figure_overflows_within_the_limits(name: str) -> None:
    content = {n: pa.concat_tables([t] * 4) for n, t in tables(0, MAX_TOTAL_NS // 4, *TIME_TABLES).items()}
    with contextlib.suppress(TracekitError):
        frame = tk.Trace.from_tables(content).report(name).frame()
        for column in frame.columns:
            if frame[column].dtype.is_numeric():
                assert (frame[column].drop_nulls() >= 0).all(), column
