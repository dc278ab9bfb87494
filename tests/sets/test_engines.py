"""Engines apply functions to the members of a set, in this process or in others, with equal results."""

from __future__ import annotations

import functools
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tracekit as tk
from tests.builders.watched_ranks import Delay, write_window
from tests.conftest import FIXTURES
from tracekit.errors import CorruptTraceError, TracekitError, TracekitWarning
from tracekit.sets import LocalEngine, TraceSet, engines, recipes, workers
from tracekit.sets.member import Member
from tracekit.system import no_pandas

RANKS = FIXTURES / "ranks"
RECIPE = "cuda_gpu_kern_sum"


def count_kernels(trace: tk.Trace) -> int:
    return trace.count("kernels")


def warn_of_rank(trace: tk.Trace) -> int:
    warnings.warn("of this rank", TracekitWarning, stacklevel=1)
    return os.getpid()


def process_state(_: tk.Trace) -> tuple[int, bool]:
    return os.getpid(), no_pandas.is_pandas_hidden()


def kill_process(_: tk.Trace) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def damaged_ranks(folder: Path) -> Path:
    """A folder of three captures, of which that of rank 1 is truncated."""
    for number, source in enumerate(["mpi_rank0", "mpi_rank1", "mpi_rank1"]):
        shutil.copy(RANKS / f"{source}.nsys-rep", folder / f"c{number}.nsys-rep")
    (folder / "c1.nsys-rep").write_bytes((folder / "c0.nsys-rep").read_bytes()[:40_000])
    return folder


def given_ranks(count: int) -> dict[str, int]:
    return {f"c{number}": number for number in range(count)}


@pytest.mark.slow
def test_processes_compute_the_same_in_the_order_of_ranks() -> None:
    alone, parallel = tk.load_many(RANKS), tk.load_many(RANKS, engine=LocalEngine(2))
    assert parallel.members == alone.members
    tables = alone.recipe(RECIPE)
    assert {name: rows.equals(tables[name]) for name, rows in parallel.recipe(RECIPE).items()} == dict.fromkeys(
        tables, True
    )
    assert parallel.stats(RECIPE).equals(alone.stats(RECIPE))
    with pytest.warns(TracekitWarning, match="of this rank") as caught:
        processes = parallel.map(warn_of_rank)
    assert len(caught) == 2
    assert os.getpid() not in processes


@pytest.mark.thorough
def test_processes_are_kept_for_further_calls_and_hide_pandas_if_this_process_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(no_pandas, "is_pandas_hidden", lambda: True)
    members = tk.load_many(RANKS, ranks={"mpi_rank0": 0, "mpi_rank1": 1}).captures
    engine = LocalEngine(2)
    traces = TraceSet(members, engine=engine)
    first = traces.map(process_state)
    pool = engine._pool
    second = traces.map(process_state)
    assert pool is not None
    assert engine._pool is pool
    assert {process for process, _ in first + second} <= set(pool.executor._processes)
    assert [is_hidden for _, is_hidden in first + second] == [True] * 4
    assert pickle.loads(pickle.dumps(engine)).jobs == 2


def test_a_pool_with_too_few_processes_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def new_pool(jobs: int) -> SimpleNamespace:
        started.append(jobs)
        return SimpleNamespace(shutdown=lambda **_: None)

    monkeypatch.setattr(engines, "_create_process_pool", new_pool)
    engine = LocalEngine(4)
    for jobs in (2, 2, 4, 3):
        engine._get_process_pool(jobs)
    assert started == [2, 4]


@pytest.mark.slow
def test_errors_of_processes_name_the_file(tmp_path: Path) -> None:
    traces = tk.load_many(damaged_ranks(tmp_path), ranks=given_ranks(3), engine=LocalEngine(2))
    with pytest.raises(CorruptTraceError, match=r"c1\.nsys-rep"):
        traces.map(count_kernels)
    assert [type(result) for _, result in traces.outcomes(count_kernels)] == [int, CorruptTraceError, int]
    assert traces.errors == []


@pytest.mark.thorough
def test_a_function_that_cannot_be_pickled_is_an_error() -> None:
    with pytest.raises(TracekitError, match="cannot be sent to another process"):
        tk.load_many(RANKS, engine=LocalEngine(2)).map(lambda trace: trace.count("kernels"))


@pytest.mark.slow
def test_a_killed_process_is_an_error() -> None:
    with pytest.raises(TracekitError, match="a worker process was killed"):
        tk.load_many(RANKS, engine=LocalEngine(2)).map(kill_process)


@pytest.mark.slow
def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    """Workers that ignore Ctrl-C end when the handler of the command line has ended their parent."""
    code = f"""
import os, sys, tracekit as tk
sys.path.insert(0, {str(FIXTURES.parent)!r})
from tests.sets.test_engines import wait_long
from tracekit.sets import LocalEngine
if __name__ == "__main__":
    tk.load_many({str(RANKS)!r}, ranks={{"mpi_rank0": 0, "mpi_rank1": 1}}, engine=LocalEngine(2)).map(wait_long)
"""
    script = tmp_path / "script.py"
    script.write_text(code)
    parent = subprocess.Popen([sys.executable, script], env={**os.environ, "WORKERS": str(tmp_path)})
    wait_for(lambda: len(list(tmp_path.glob("*.pid"))) == 2)
    parent.kill()
    parent.wait()
    workers = [int(file.stem) for file in tmp_path.glob("*.pid")]
    wait_for(lambda: not any(map(is_running, workers)))


def wait_long(_: tk.Trace) -> None:
    (Path(os.environ["WORKERS"]) / f"{os.getpid()}.pid").touch()
    time.sleep(60)


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 50
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


def test_the_number_of_processes_depends_on_sizes_cores_and_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "count_available_cores", lambda: 4)
    monkeypatch.setattr(engines, "read_total_memory_bytes", lambda: 64 << 30)
    files = [tmp_path / name for name in "abcde"]
    for file in files:
        with file.open("wb") as new:
            new.truncate(100 << 20)
    assert engines.choose_process_count([]) == 1
    assert engines.choose_process_count(files[:1]) == 1
    assert engines.choose_process_count(files[:2]) == 2
    assert engines.choose_process_count(files) == 4
    assert engines.choose_process_count([FIXTURES / "train_amp.nsys-rep"] * 3) == 1
    monkeypatch.setattr(engines, "read_total_memory_bytes", lambda: 4 << 30)
    assert engines.choose_process_count(files) == 3


def test_engines_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    local = LocalEngine(3)
    assert engines.resolve_engine(local) is local
    assert engines.resolve_engine("local").jobs == 1  # type: ignore[attr-defined]
    with pytest.raises(TracekitError, match="the number of jobs must be at least 1, but is 0"):
        LocalEngine(0)
    with pytest.raises(TracekitError, match=r"there is no engine 'dusk'\nHint: .*dask"):
        engines.resolve_engine("dusk")
    monkeypatch.setitem(sys.modules, "distributed", None)
    hint = r"pip install ['\"]tracekit\[dask\]['\"]"  # double quotes on Windows
    with pytest.raises(TracekitError, match=rf"needs the packages dask and distributed\nHint: {hint}"):
        tk.load_many(RANKS, engine="dask")


def test_a_worker_returns_warnings_and_errors() -> None:
    """What workers run is called here, too, because coverage is not measured in them."""
    member: Any = SimpleNamespace()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = pickle.loads(pickle.dumps(workers.call_and_collect_warnings(warn_of_rank, member)))
    with pytest.warns(TracekitWarning, match="of this rank"):
        assert answer.reissue_warnings_and_get_outcome() == os.getpid()
    assert isinstance(workers.call_and_collect_warnings(fail, member).outcome, PermissionError)


def fail(_: object) -> None:
    raise PermissionError("not allowed")


@pytest.fixture(scope="module")
def client() -> Any:
    distributed = pytest.importorskip("distributed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with (
            distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
            distributed.Client(cluster) as client,
        ):
            yield client


class TestDask:
    """The engine for Dask, with a cluster on this machine."""

    @pytest.mark.slow
    def test_the_result_is_the_sequential_one(self, client: Any) -> None:
        alone, distributed = tk.load_many(RANKS), tk.load_many(RANKS, engine=client)
        assert distributed.members == alone.members
        tables = alone.recipe(RECIPE)
        assert all(rows.equals(tables[name]) for name, rows in distributed.recipe(RECIPE).items())
        by_address = tk.load_many(RANKS, engine=client.scheduler.address)
        assert by_address.stats(RECIPE).equals(alone.stats(RECIPE))
        assert os.getpid() not in distributed.map(get_process)
        assert pickle.loads(pickle.dumps(distributed)).recipe(RECIPE)["all_stats"].equals(tables["all_stats"])

    def test_captures_that_cannot_be_read_are_left_out(self, client: Any, tmp_path: Path) -> None:
        traces = tk.load_many(damaged_ranks(tmp_path), ranks=given_ranks(3), engine=client)
        with pytest.warns(TracekitWarning, match=r"c1\.nsys-rep: the capture was skipped, because it cannot be read"):
            tables = traces.recipe(RECIPE)
        assert [type(error) for error in traces.errors] == [CorruptTraceError]
        readable = tk.load_many([tmp_path / "c0.nsys-rep", tmp_path / "c2.nsys-rep"], ranks={"c0": 0, "c2": 1})
        assert tables["all_stats"].equals(readable.recipe(RECIPE)["all_stats"])
        with pytest.warns(TracekitWarning) as caught:
            without_ranks = tk.load_many(tmp_path, engine=client)
        assert len(without_ranks.errors) == 1
        assert any("was skipped" in str(w.message) for w in caught)
        with pytest.raises(CorruptTraceError):
            tk.load_many(tmp_path / "c1.nsys-rep", engine=client)

    @pytest.mark.thorough
    def test_a_watch_raises_the_same_alarms(self, client: Any, tmp_path: Path) -> None:
        write_window(tmp_path, 0, range(2), steps=2, delays=[Delay(1, "data", 9000)])
        (tmp_path / "rank5.pt.trace.json").write_text("{")
        alarms = [
            [
                (a.kind, a.rank, a.phase, a.lost_ns, a.file)
                for a in tk.watch(tmp_path, once=True, settle_s=0, engine=each)
            ]
            for each in (None, client)
        ]
        assert alarms[0] == alarms[1]
        assert ("late_rank", 1) in [alarm[:2] for alarm in alarms[1]]

    @pytest.mark.thorough
    def test_results_are_merged_on_the_workers(
        self, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Only one result of a recipe arrives in this process, whatever the number of ranks."""
        from tracekit.sets import dask_engine

        monkeypatch.setattr(dask_engine, "_MERGED", 3)
        received: list[Any] = []
        reissue = workers.MemberResult.reissue_warnings_and_get_outcome
        monkeypatch.setattr(
            workers.MemberResult, "reissue_warnings_and_get_outcome", lambda a: received.append(a.outcome) or reissue(a)
        )
        for number in range(11):
            shutil.copy(RANKS / "mpi_rank0.nsys-rep", tmp_path / f"c{number}.nsys-rep")
        (tmp_path / "c4.nsys-rep").write_bytes(b"no report")
        (tmp_path / "c7.nsys-rep").unlink()
        (tmp_path / "c7.nsys-rep").mkdir()
        named = sorted(tmp_path.glob("*.nsys-rep"))
        members = [Member(path, int(path.stem[1:]), "nsys-rep") for path in named]
        members.sort(key=lambda m: m.rank)
        progress: list[int] = []
        traces = tk.TraceSet(members, engine=client_engine(client))
        with pytest.warns(TracekitWarning, match="was skipped") as caught:
            tables = recipes.run_recipe(traces, RECIPE, {}, progress=lambda done, _: progress.append(done))
        assert len(caught) == len(traces.errors) == 2
        assert progress == list(range(1, 12))
        assert [type(r) for r in received if isinstance(r, dict)] == [dict]
        alone = tk.TraceSet([m for m in members if m.rank not in (4, 7)]).recipe(RECIPE)
        assert all(tables[name].equals(alone[name]) for name in ("all_stats", "rank_stats", "rank_stats_by_device"))
        with pytest.warns(TracekitWarning), pytest.raises(TracekitError):
            tk.TraceSet([members[4]], engine=client_engine(client)).recipe(RECIPE)

    def test_a_worker_that_dies_loses_nothing(self, client: Any, tmp_path: Path) -> None:
        traces = tk.load_many(RANKS, engine=client)
        assert traces.map(functools.partial(kill_process_once, tmp_path)) == [15, 15]
        assert (tmp_path / "killed").exists()

    def test_a_capture_on_which_workers_die_is_an_error(self, client: Any) -> None:
        client.cluster.scheduler.allowed_failures = 0
        try:
            outcomes = list(tk.load_many(RANKS).select(ranks=[0]).captures)
            (member, error), *_ = engines.resolve_engine(client).map(kill_process, outcomes)  # type: ignore[arg-type]
        finally:
            client.cluster.scheduler.allowed_failures = 3
        assert member.rank == 0
        assert "several workers died" in str(error)

    @pytest.mark.thorough
    def test_errors_of_the_system_are_repeated(self, client: Any, tmp_path: Path) -> None:
        traces = tk.load_many(RANKS, engine=client).select(ranks=[1])
        assert traces.map(functools.partial(fail_once, tmp_path)) == [1]
        outcomes = list(traces.outcomes(fail_always))
        assert [type(error) for _, error in outcomes] == [PermissionError]


def client_engine(client: Any) -> Any:
    return engines.resolve_engine(client)


@pytest.mark.slow
def test_merged_answers_keep_the_warnings() -> None:
    from tracekit.sets.dask_engine import _keep_only_error, _merge_results, _MergeTree

    answers = [workers.MemberResult(1, ("a",)), workers.MemberResult(2), workers.MemberResult(3, ("b", "c"))]
    assert _merge_results(sum, answers) == workers.MemberResult(6, ("a", "b", "c"))  # type: ignore[arg-type]
    assert _keep_only_error(answers[0]) == workers.MemberResult(None)
    error: workers.MemberResult[int] = workers.MemberResult(OSError("x"), ("a",))
    assert _keep_only_error(error) is error
    tree = _MergeTree(lambda tasks: [item for task in tasks for item in (task if isinstance(task, list) else [task])])
    assert tree.submit_root_task() is None
    for number in range(16 * 16 + 17):
        tree.add_task(number)
    assert [len(level) for level in tree._levels] == [1, 1, 1]
    assert tree.submit_root_task() == list(range(16 * 16 + 17))


def get_process(_: tk.Trace) -> int:
    return os.getpid()


def kill_process_once(folder: Path, trace: tk.Trace) -> int:
    try:
        (folder / "killed").mkdir()
    except FileExistsError:
        return trace.count("kernels")
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def fail_once(folder: Path, _: tk.Trace) -> int:
    try:
        (folder / "failed").mkdir()
    except FileExistsError:
        return 1
    raise OSError("stale file handle")


def fail_always(_: tk.Trace) -> None:
    raise PermissionError("not allowed")
