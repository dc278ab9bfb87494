"""A forked process: what works in it, and what says that it cannot rather than wait for ever."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tracekit as tk
from tracekit.system import forks
from tracekit.system.platform import threads_of_process

ROOT = Path(__file__).parents[2]
SECONDS = 120
CHILD = """
import faulthandler, os, signal, sys, warnings
warnings.simplefilter("ignore")
import tracekit as tk

def query():
    import polars as pl
    pl.DataFrame({"a": [2, 1]}).select(pl.col("a") + 1, b=pl.col("a") * 2).sort("a")

def forked(work):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            print(work(), flush=True)
        except tk.TracekitError as e:
            print(e, flush=True)
        os._exit(0)
    print("ended with", os.waitpid(child, 0)[1])

def kernels(path="fixtures/train_amp.nsys-rep"):
    with tk.load(path) as trace:
        return trace.table("kernels").num_rows

def correlated():
    with tk.load("fixtures/train_amp.sqlite") as trace:
        return trace.correlate().table("kernels").num_rows

def collected():
    with tk.load("fixtures/train_amp.sqlite") as trace:
        return trace.frame("kernels").collect().height
"""
REFUSED = (
    "polars cannot run queries in this process, because it was forked after polars had started its threads\n"
    "Hint: start workers with multiprocessing.get_context('spawn') or 'forkserver'\nended with 0\n"
)
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def run(code: str) -> str:
    """Run some code after ``CHILD`` in a process of its own, and return what it printed."""
    command = [sys.executable, "-c", CHILD + code]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@needs_fork
@pytest.mark.many(1)
@pytest.mark.parametrize(
    "work",
    [
        "collected",
        "correlated",
        "lambda: tk.load('fixtures/kineto/train.pt.trace.json.gz')['threads'].num_rows",
        "lambda: kernels('fixtures/ncu/ncu_details.csv')",
        "lambda: tk.convert('fixtures/train_amp.sqlite', os.devnull + 'x', to='csv')",
    ],
)
def test_a_query_in_a_child_forked_after_polars_ran_is_refused(work: str) -> None:
    assert run(f"query()\nforked({work})") == REFUSED


@pytest.mark.thorough
@needs_fork
def test_a_trace_that_was_used_before_the_fork_refuses_too() -> None:
    code = """
trace = tk.load("fixtures/train_amp.sqlite")
linked, rolled = trace.correlate(), trace.rollup()
linked.table("kernels", ["range_name"]), rolled.table("ops")
print(tk.stats(trace, "cuda_gpu_kern_sum").height > 0)
forked(lambda: linked.table("kernels", ["range_name"]).num_rows)
forked(lambda: linked.table("memcpys", ["range_name"]).num_rows)
forked(lambda: rolled.table("group_nodes").num_rows)
forked(lambda: tk.stats(rolled, "op-type"))
"""
    assert run(code) == "True\n334\nended with 0\n" + 3 * REFUSED


@pytest.mark.thorough
@needs_fork
def test_what_needs_no_query_is_read_in_a_child() -> None:
    assert run("query()\nforked(kernels)\nforked(lambda: kernels('fixtures/train_amp.sqlite'))") == (
        "334\nended with 0\n" * 2
    )


@pytest.mark.thorough
@needs_fork
def test_a_child_forked_before_polars_ran_may_query() -> None:
    code = "import polars\npolars.DataFrame({'a': [1]})\nkernels()\nforked(correlated)\nforked(collected)"
    assert run(code) == "334\nended with 0\n" * 2


@pytest.mark.thorough
@needs_fork
def test_a_child_of_a_child_lacks_the_threads_too() -> None:
    assert run("query()\nforked(lambda: forked(collected))") == f"{REFUSED}None\nended with 0\n"


@pytest.mark.thorough
@needs_fork
def test_the_sandbox_works_in_a_child_of_a_process_that_used_it() -> None:
    code = "kernels()\nforked(lambda: kernels('fixtures/kineto/train.pt.trace.json.gz'))"
    assert run(code) == "308\nended with 0\n"


@pytest.mark.thorough
@needs_fork
def test_a_new_program_is_no_child() -> None:
    code = """
query()
sys.stdout.flush()
if (child := os.fork()) == 0:
    program = "import tracekit as tk; print(tk.load('fixtures/train_amp.sqlite').correlate().count('kernels'))"
    os.execv(sys.executable, [sys.executable, "-c", program])
print("ended with", os.waitpid(child, 0)[1])
"""
    assert run(code) == "334\nended with 0\n"


@pytest.mark.slow
@needs_fork
@pytest.mark.many(1)
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_the_remedy_works(method: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        f"""
import multiprocessing
import tracekit as tk

def count(path):
    return tk.load(path).correlate().frame("kernels").collect().height

if __name__ == "__main__":
    path = {str(ROOT / "fixtures" / "train_amp.sqlite")!r}
    print(count(path))
    with multiprocessing.get_context({method!r}).Pool(2) as pool:
        print(pool.map(count, [path] * 3))
""",
        "utf-8",
    )
    command = [sys.executable, str(program)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=SECONDS, check=False)
    assert (done.stdout, done.returncode) == ("334\n[334, 334, 334]\n", 0), done.stderr


def test_where_the_system_lists_no_threads_what_tracekit_ran_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "polars", forks)
    monkeypatch.setattr(threads_of_process, "TASKS", tmp_path / "nonesuch")
    monkeypatch.setattr(forks, "_state", forks._PolarsState())
    assert not forks._has_polars_threads()
    forks.check_polars_can_run()
    assert forks._has_polars_threads()
    forks._record_polars_threads_before_fork()
    forks._record_lost_polars_threads_after_fork()
    with pytest.raises(tk.TracekitError, match="was forked after polars"):
        forks.check_polars_can_run()


def test_a_thread_that_ends_meanwhile_is_none_of_polars(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "4711").mkdir()
    monkeypatch.setitem(sys.modules, "polars", forks)
    monkeypatch.setattr(threads_of_process, "TASKS", tmp_path)
    assert not forks._has_polars_threads()
    (tmp_path / "4711" / "comm").write_text("polars-0\n", "ascii")
    assert forks._has_polars_threads()
    monkeypatch.delitem(sys.modules, "polars")
    assert not forks._has_polars_threads()
