"""A trace goes to another process as its path and what was done to it; it is the same trace there."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
import tracekit as tk
from tests.fake_nsys import TRAIN, FakeNsys
from tracekit.errors import TracekitError
from tracekit.plan import LiveCapture, Plan, RecordedTables

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "fixtures"
SECONDS = 300
FILES = [
    *(f"train_amp{form}" for form in (".sqlite", ".nsys-rep", "_parquetdir", "_arrowdir")),
    *("kineto/train.pt.trace.json.gz", "ncu/ncu_basic.ncu-rep", "ncu/ncu_details.csv"),
    *("tensorflow/network.pb", "tensorflow/runs"),
]


def whole(trace: tk.Trace) -> dict[str, pa.Table]:
    """Every table with rows."""
    return {name: table for name in trace.tables if (table := trace[name]).num_rows}


def assert_same(one: tk.Trace, other: tk.Trace) -> None:
    """Both have the same rows and columns."""
    tables, others = whole(one), whole(other)
    assert tables.keys() == others.keys()
    assert [name for name in tables if not tables[name].equals(others[name], check_metadata=True)] == []


def sent(trace: tk.Trace) -> tk.Trace:
    """The trace, pickled and loaded."""
    loaded = pickle.loads(pickle.dumps(trace))
    assert isinstance(loaded, tk.Trace)
    return loaded


@pytest.mark.many(3)
@pytest.mark.parametrize("file", FILES)
def test_a_file_is_opened_again(file: str) -> None:
    with tk.load(FIXTURES / file) as trace:
        trace.count_all()
        with sent(trace) as loaded:
            assert (loaded.path, loaded.format, loaded.info) == (FIXTURES / file, trace.format, trace.info)
            assert_same(trace, loaded)
            with sent(loaded) as again:
                assert_same(trace, again)


def joined(trace: tk.Trace) -> tk.Trace:
    return trace.join_ncu(tk.load(FIXTURES / "ncu" / "ncu_basic.ncu-rep"), metrics=["dram__bytes.sum"])


def with_graph(trace: tk.Trace) -> tk.Trace:
    return trace.join_graph(tk.load(FIXTURES / "tensorflow" / "pytorch"))


DONE = {
    "correlated": lambda t: t.correlate(),
    "rolled up": lambda t: t.rollup(iterations=(1, 2), dialect="emit-nvtx"),
    "rolled up twice": lambda t: t.rollup().rollup(iterations=(1, 2)),
    "selected": lambda t: t.select(time=(100_000_000, 300_000_000), devices=[0]),
    "some tables": lambda t: t.select(tables=["kernels", "devices"]),
    "both": lambda t: t.select(tables=["kernels", "nvtx_ranges", "api_calls"], min_duration_ns=5000),
    "nothing selected": lambda t: t.select(),
    "selected, correlated": lambda t: t.select(min_duration_ns=10_000).correlate(),
    "correlated, rolled up, selected": lambda t: t.correlate().rollup().select(devices=[0]),
    "joined": joined,
    "joined, selected, rolled up": lambda t: joined(t).select(time=(None, 200_000_000)).rollup(),
    "joined with a graph": with_graph,
    "joined with both": lambda t: with_graph(joined(t)),
}


@pytest.mark.many(1)
@pytest.mark.parametrize("done", DONE)
def test_what_was_done_is_done_again(done: str) -> None:
    trace = DONE[done](tk.load(FIXTURES / "train_amp.sqlite"))
    loaded = sent(trace)
    assert_same(trace, loaded)
    if "rolled" in done:
        assert tk.stats(trace, "op-type").equals(tk.stats(loaded, "op-type"))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, sent])
def test_a_copy_has_a_file_of_its_own(copied: object) -> None:
    assert callable(copied)
    trace = tk.load(FIXTURES / "train_amp.nsys-rep").correlate()
    other = copied(trace)
    assert other is not trace
    trace.close()
    with other:
        assert other.frame("kernels").select("range_path").collect().height == 334


@pytest.mark.slow
def test_tables_in_memory_go_along() -> None:
    with tk.load(FIXTURES / "train_amp.sqlite") as file:
        tables = {name: file[name] for name in ("kernels", "api_calls", "nvtx_ranges")}
    trace = tk.Trace.from_tables(tables).correlate()
    for other in (sent(trace), copy.copy(trace), copy.deepcopy(trace)):
        assert (other.path, other.format) == (None, "memory")
        assert_same(trace, other)


def test_nothing_is_opened_before_it_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "train.nsys-rep"
    shutil.copyfile(FIXTURES / "train_amp.nsys-rep", path)
    loaded = sent(tk.load(path))
    assert repr(loaded) == f"<tracekit.Trace nsys-rep {path}>"
    loaded.close()
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"train\.nsys-rep"):
        loaded.count("kernels")


def test_a_path_is_that_of_the_folder_where_it_was_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FIXTURES)
    pickled = pickle.dumps(tk.load("train_amp.sqlite"))
    monkeypatch.chdir(tmp_path)
    loaded = pickle.loads(pickled)
    assert loaded.path == FIXTURES / "train_amp.sqlite"
    assert loaded.count("kernels") == 334


def test_a_file_that_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.sqlite"
    shutil.copyfile(FIXTURES / "train_amp.sqlite", path)
    pickled = pickle.dumps(tk.load(path).correlate())
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))
    with pytest.raises(TracekitError) as raised:
        pickle.loads(pickled).count("kernels")
    assert str(raised.value) == f"{path}: the file has changed since the trace was loaded\nHint: load it again"
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert pickle.loads(pickled).count("kernels") == 334
    copied = tmp_path / "copied"
    shutil.copy2(path, copied)  # the same content and time in another inode, as on another machine
    copied.replace(path)
    assert pickle.loads(pickled).count("kernels") == 334
    with path.open("ab") as file:
        file.write(b"\0")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(TracekitError, match="has changed since the trace was loaded"):
        pickle.loads(pickled).count("kernels")


def test_errors_can_be_pickled_too(tmp_path: Path) -> None:
    path = tmp_path / "cut.sqlite"
    path.write_bytes(TRAIN.read_bytes()[:5000])
    with pytest.raises(tk.errors.CorruptTraceError) as raised:
        tk.load(path)
    loaded = pickle.loads(pickle.dumps(raised.value))
    assert (str(loaded), loaded.path, loaded.hint) == (str(raised.value), str(path), raised.value.hint)


@pytest.mark.slow
def test_what_nsys_exports_is_exported_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNsys(tmp_path, monkeypatch)
    fake.install_exporter()
    with tk.load(fake.report, via="nsys") as trace, sent(trace) as loaded:
        assert (loaded.path, loaded.format) == (fake.report, "nsys-sqlite")
        assert_same(trace, loaded)
        assert len(fake.left()) == 2 * 3  # a folder, its lock and a file
    assert fake.left() == []


def test_a_trace_of_unknown_origin_says_so() -> None:
    with tk.load(TRAIN) as file:
        unknown = tk.Trace(Plan(RecordedTables(LiveCapture(file._plan.source.capture))))
        ncu = tk.load(FIXTURES / "ncu" / "ncu_basic.ncu-rep")
        results = tk.Trace(Plan(RecordedTables(LiveCapture(ncu._plan.source.capture))))
        for copied in (copy.copy, copy.deepcopy):
            assert_same(unknown, copied(unknown))
        for trace in (unknown, unknown.correlate(), tk.load(TRAIN).join_ncu(results)):
            with pytest.raises(TracekitError, match=r"cannot be pickled, because .*\nHint: create the trace with"):
                pickle.dumps(trace)


def kernels(trace: tk.Trace) -> tuple[int, int, list[str]]:
    """What a worker does: rows, the process, the first names of ranges."""
    frame = trace.frame("kernels").collect()
    names = trace.frame("kernels").select("range_name").collect()["range_name"].drop_nulls().head(3)
    return frame.height, os.getpid(), names.to_list()


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_share_the_work(method: str) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip("not on this system")
    context = multiprocessing.get_context(method)
    traces = [tk.load(FIXTURES / f).correlate() for f in ("train_amp.sqlite", "train_amp.nsys-rep", "ddp2.sqlite")]
    expected = [kernels(t) for t in traces]
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        made = list(pool.map(kernels, traces, timeout=SECONDS))
    assert [(rows, names) for rows, _, names in made] == [(rows, names) for rows, _, names in expected]
    assert os.getpid() not in {process for _, process, _ in made}


@pytest.mark.slow
def test_a_worker_says_what_is_wrong_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "train.sqlite"
    shutil.copyfile(TRAIN, path)
    trace = tk.load(path)
    with path.open("ab") as file:
        file.write(b"\0")
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with pytest.raises(TracekitError, match="has changed since the trace was loaded"):
            pool.submit(kernels, trace).result(SECONDS)
        assert pool.submit(os.getpid).result(SECONDS)


PROGRAM = """
import sys
from concurrent.futures import ThreadPoolExecutor
import polars as pl
import tracekit as tk

def work(number):
    trace = (linked, rolled)[number % 2]
    kernels, calls = trace.frame("kernels"), trace.frame("api_calls").select("api_call_id", call_name="name")
    return kernels.join(calls, on="api_call_id").filter(pl.col("range_id").is_not_null()).collect().height

with tk.load(sys.argv[1]) as trace, ThreadPoolExecutor(6) as pool:
    linked, rolled = trace.correlate(), trace.correlate().rollup()
    print(pl.thread_pool_size(), set(pool.map(work, range(12))))
"""


@pytest.mark.thorough
def test_threads_of_polars_share_a_trace() -> None:
    """Each query scans two tables, in threads of polars."""
    command = [sys.executable, "-c", PROGRAM, str(TRAIN)]
    environment = os.environ | {"POLARS_MAX_THREADS": "4"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=SECONDS, check=False
    )
    assert (done.returncode, done.stdout) == (0, "4 {334}\n"), done.stderr


@pytest.mark.many(1)
@pytest.mark.parametrize("file", FILES)
def test_threads_share_a_trace(file: str) -> None:
    def work(number: int) -> list[int]:
        names = trace.tables if number % 2 else trace.tables[::-1]
        counts = {}
        for name in names:
            table = trace.table(name) if number % 3 else trace.frame(name).collect()
            counts[name] = len(table)
        return [counts[name] for name in trace.tables]

    with tk.load(FIXTURES / file) as original:
        expected = [original.correlate().table(name).num_rows for name in original.tables]
    for trace in (sent(original).correlate(), sent(original.correlate())):
        with ThreadPoolExecutor(6) as pool, trace:
            assert list(pool.map(work, range(6), timeout=SECONDS)) == [expected] * 6
