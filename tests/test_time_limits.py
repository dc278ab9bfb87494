"""Times at the edges of 64 bits are an error that names the table and the value, in every format with times."""

from __future__ import annotations

import contextlib
import gzip
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import ipc, parquet
from tests.readers.nsys_rep_files import Parts, event, message, strings
from tracekit import schemas
from tracekit.core import analyze, reports
from tracekit.errors import CorruptTraceError, TracekitError, TracekitWarning
from tracekit.plan.recorded import MAX_TIME_NS
from tracekit.readers.nsys_rep import layout

FIXTURES = Path(__file__).parents[1] / "fixtures"
LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
EDGES = [(LOWEST, 5), (5, HIGHEST), (LOWEST, HIGHEST), (-MAX_TIME_NS - 1, 0), (0, MAX_TIME_NS + 1)]
Writer = Callable[[Path, int, int], Path]


def kernels(start: int, end: int, rows: int = 1) -> pa.Table:
    schema = schemas.table("kernels")
    example = schemas.create_example_frame(schema).with_columns(start_ns=pl.lit(start), end_ns=pl.lit(end))
    return schemas.conform(pl.concat([example] * rows).to_arrow(), schema)


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
    trace = tk.Trace.from_tables({"kernels": kernels(-MAX_TIME_NS, MAX_TIME_NS - 1)})
    assert trace.stats("cuda_gpu_kern_sum")["Total Time (ns)"].to_list() == [2 * MAX_TIME_NS - 1]


@given(
    start=st.sampled_from([LOWEST, -MAX_TIME_NS - 1, -MAX_TIME_NS, -1, 0, MAX_TIME_NS, HIGHEST]),
    end=st.sampled_from([LOWEST, -MAX_TIME_NS, 0, 1, MAX_TIME_NS, MAX_TIME_NS + 1, HIGHEST]),
    name=st.sampled_from([*reports.REPORTS, *analyze.ALL_RULES, "advise"]),
)
@pytest.mark.filterwarnings("ignore::tracekit.errors.TracekitWarning")
def test_reports_compute_or_raise_a_typed_error(start: int, end: int, name: str) -> None:
    trace = tk.Trace.from_tables({"kernels": kernels(start, end)})
    with contextlib.suppress(TracekitError):
        frame = trace.report(name).frame()
        spread = [c for c in frame.columns if c.startswith("StdDev")]
        assert all((frame[c].drop_nulls() >= 0).all() for c in spread)
