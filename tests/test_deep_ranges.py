"""The memory of deeply nested ranges with long names is proportional to the size of the file.

40,000 nested ranges with names of 200 characters have paths of 300 MB in total, at a depth of 80. 20,000 ranges that
share one registered name of 100 KB have names of 2 GB in total.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import tracekit as tk
from tests.builders import pytorch_programs

pytestmark = pytest.mark.slow

RANGES, DEPTH, NAME_CHARS = 40_000, 80, 200
MAX_PEAK_MIB, MAX_MESSAGES = 1000, 10_000
SHARED_RANGES, SHARED_NAME = 20_000, "n" * 100_000
PEAK = """
import atexit, pathlib, re, runpy, sys
status = pathlib.Path("/proc/self/status")
atexit.register(lambda: print(re.findall(r"VmHWM:\\s+(\\d+)", status.read_text())[0], file=sys.stderr))
runpy.run_module("tracekit", run_name="__main__")
"""
"""A program that runs the command line and prints the largest memory of its process in KiB."""
COMMANDS = {
    "dlprof-db": ("convert", "{0}", "{1}.sqlite", "--to", "dlprof-db"),
    "html": ("convert", "{0}", "{1}.html"),
    "chrome-trace": ("convert", "{0}", "{1}.json"),
    "perfetto": ("convert", "{0}", "{1}.pftrace"),
    "sqlite": ("convert", "{0}", "{1}.sqlite", "--to", "sqlite"),
    "tfevents": ("convert", "{0}", "{1}", "--to", "tfevents"),
    "correlate": ("correlate", "{0}", "-o", "{1}.parquet"),
    "pushpop": ("stats", "{0}", "--report", "nvtx_pushpop_trace"),
    "projection": ("stats", "{0}", "--report", "nvtx_gpu_proj_trace"),
    "diff": ("diff", "{0}", "{0}"),
    "analyze": ("analyze", "{0}"),
}

OF_SHARED_NAME = {
    "dlprof-db": COMMANDS["dlprof-db"],
    "html": COMMANDS["html"],
    **{name: COMMANDS[name] for name in ("perfetto", "correlate", "tfevents", "diff", "analyze")},
    "diff, JSON": ("diff", "{0}", "{0}", "--format", "json"),
    "baseline": ("diff", "{0}", "--save", "{1}.json"),
    "csv": ("convert", "{0}", "{1}", "--to", "csv"),
    **{
        report: ("stats", "{0}", "--format", "csv", "--report", report)
        for report in ("nvtx_pushpop_trace", "nvtx_gpu_proj_trace", "nvtx_sum", "nvtx_kern_sum", "advise", "steps")
    },
}
"""The commands that must not copy a name for each range. Reports that print it for each row write 2 GB in batches."""


def write_trace(path: Path, ranges: int, depth: int) -> Path:
    """Write a trace of the PyTorch profiler: nests of ranges, with a launch in each innermost range."""
    here = {"ph": "X", "pid": 1, "tid": 1}
    events, time = [], 0
    for nest in range(ranges // depth):
        for level in range(depth):
            name = f"{nest} {level} ".ljust(NAME_CHARS, "x")
            times = {"ts": time + level, "dur": 2 * (depth - level) + 10}
            events.append({**here, **times, "cat": "user_annotation", "name": name})
        args = {"correlation": nest + 1, "device": 0, "context": 1, "stream": 7}
        launch = {"ts": time + depth + 1, "dur": 2, "args": args}
        events.append({**here, **launch, "cat": "cuda_runtime", "name": "cudaLaunchKernel"})
        events.append({**here, **launch, "pid": 0, "tid": 7, "cat": "kernel", "name": "k"})
        time += 4 * depth + 20
    devices = [{"id": 0, "name": "GPU"}]
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": devices, "traceEvents": events}), "utf-8")
    return path


@pytest.fixture(scope="module")
def deep_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trace(tmp_path_factory.mktemp("deep") / "deep.json", RANGES, DEPTH)


@pytest.mark.many(2)
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has VmHWM")
def test_memory_of_deep_ranges_is_bounded(name: str, deep_trace: Path, tmp_path: Path) -> None:
    command = [part.format(deep_trace, tmp_path / "out") for part in COMMANDS[name]]
    run = subprocess.run([sys.executable, "-c", PEAK, *command], check=False, capture_output=True)
    assert run.returncode == 0, run.stderr
    assert int(run.stderr.split()[-1]) / 1024 < MAX_PEAK_MIB


def test_ops_of_deep_ranges_are_distinct(deep_trace: Path) -> None:
    with tk.load(deep_trace) as trace:
        ops = trace.rollup().frame("ops").filter("is_associated").collect()
        instances = trace.rollup().frame("op_instances").collect()
        paths = trace.correlate().frame("nvtx_ranges").select(pl.col("path").cast(pl.String)).collect()["path"]
    assert ops["op_id"].n_unique() == ops["op_name"].n_unique() == paths.n_unique() == RANGES
    assert set(ops["op_name"].cast(pl.String)) == set(paths)
    assert instances["op_id"].n_unique() == RANGES
    assert paths.str.len_chars().sum() < 67_000_000 < RANGES * DEPTH * NAME_CHARS / 2


@pytest.fixture(scope="module")
def shared_name_export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shared") / "shared.sqlite"
    pytorch_programs.Export().write(path)
    name, thread = max(pytorch_programs.ID.values()) + 1, pytorch_programs.tid(1, 1)
    times = [(200 * i, i + 1) for i in range(SHARED_RANGES)]
    ranges = [(t, t + 100, 59, None, thread, None, name, 0) for t, _ in times]
    calls = [(t + 2, t + 6, 0, thread, number, 1, 0) for t, number in times]
    launch = (10, 9, 0, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0, 0)
    kernels = [(t + 50, t + 60, 0, 1, 7, number, 1 << 24, *launch) for t, number in times]
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO StringIds VALUES (?, ?)", (name, SHARED_NAME))
        tables = {"NVTX_EVENTS": ranges, "CUPTI_ACTIVITY_KIND_RUNTIME": calls, "CUPTI_ACTIVITY_KIND_KERNEL": kernels}
        for table, rows in tables.items():
            db.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
    db.close()
    return path


@pytest.mark.many(2)
@pytest.mark.parametrize("name", OF_SHARED_NAME)
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has VmHWM")
def test_memory_of_a_shared_name_is_bounded(name: str, shared_name_export: Path, tmp_path: Path) -> None:
    command = [part.format(shared_name_export, tmp_path / "out") for part in OF_SHARED_NAME[name]]
    program = [sys.executable, "-c", PEAK, *command]
    run = subprocess.run(program, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert run.returncode == 0, run.stderr[-1000:]
    assert int(run.stderr.split()[-1]) / 1024 < MAX_PEAK_MIB
    assert len(run.stderr) < MAX_MESSAGES, "a message contains the whole name"


def test_ops_of_a_shared_name(shared_name_export: Path) -> None:
    with tk.load(shared_name_export) as trace:
        op = trace.rollup().frame("ops").collect().row(0, named=True)
        iterations = trace.rollup().frame("iterations").collect()
    assert (op["op_name"], op["op_type"], op["instance_count"]) == (SHARED_NAME, SHARED_NAME, SHARED_RANGES)
    assert op["op_id"] == "N" * (1 << 14) + "_1"
    assert iterations["name"].cast(pl.String).to_list()[:2] == [f"{SHARED_NAME[:1024]} [{i}]" for i in range(2)]
