"""The measured jobs, each in a process of its own: ``python jobs.py NAME FILE`` prints seconds, rows, peak MiB."""

from __future__ import annotations

import json
import sqlite3
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import adbc_driver_sqlite.dbapi  # noqa: F401 - imported before the clock starts
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute
import tracekit as tk
from measuring import peak_mib
from tracekit import schemas
from tracekit.core import intervals
from tracekit.core.layers.alignment import SHAPE, align_replays
from tracekit.trace import prefetch

if TYPE_CHECKING:
    from collections.abc import Callable

COLUMNS = ["start_ns", "end_ns", "device_id", "context_id", "stream_id", "correlation_id", "process_id", "name"]
EVENTS = ["kernels", "api_calls", "nvtx_ranges", "memcpys"]
OPENMP, MEMORY = ["openmp_events"], ["memcpys", "cpu_page_faults", "gpu_page_faults", "memory_events"]
RAW = "start, end, deviceId, contextId, streamId, correlationId"


def end_to_end(path: str) -> tuple[float, int]:
    """SQLite to tables, attribution, and GPU time per range text."""
    began = time.perf_counter()
    with tk.load(path) as trace:
        kernels = trace.correlate().frame("kernels")
        spent = (pl.col("end_ns") - pl.col("start_ns")).sum()
        rolled = kernels.group_by("range_name").agg(pl.len(), gpu_ns=spent).collect()
    return time.perf_counter() - began, int(rolled["len"].sum())


def start(_path: str) -> tuple[float, int]:
    """Nothing, so that the peak is that of the interpreter and the libraries."""
    return 0.0, 0


def innermost(path: str) -> tuple[float, int]:
    """Attribution alone: the innermost range of each kernel, launches already joined."""
    with tk.load(path) as trace:
        calls = trace.correlate().frame("kernels").select("process_id", "thread_id", "api_start_ns").collect()
        wanted = trace.frame("nvtx_ranges").filter(pl.col("kind") == "push_pop")
        ranges = wanted.select("process_id", "thread_id", "start_ns", "end_ns").collect()
    began = time.perf_counter()
    found = intervals.NestingIndex.from_intervals(ranges, ["process_id", "thread_id"]).find_innermost(
        calls, "api_start_ns"
    )
    return time.perf_counter() - began, len(found)


def chrome_kernels(path: str) -> tuple[float, int]:
    """Kernels from SQLite to a Chrome trace."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        with tk.load(path) as trace:
            trace.select(tables=["kernels", "devices", "processes"]).export(Path(folder) / "kernels.json")
            return time.perf_counter() - began, trace.count("kernels")


def perfetto_timeline(path: str) -> tuple[float, int]:
    """All events of the timeline from SQLite to a Perfetto trace."""
    return _timeline(path, "pftrace")


def chrome_timeline(path: str) -> tuple[float, int]:
    """The same events from SQLite to a Chrome trace."""
    return _timeline(path, "json")


def _timeline(path: str, suffix: str) -> tuple[float, int]:
    events: set[int] = set()
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / f"timeline.{suffix}"
        began = time.perf_counter()
        with tk.load(path) as trace:
            trace.export(target, progress=lambda _, total: events.add(total))
        seconds = time.perf_counter() - began
        print(f"{target.stat().st_size / 1e6:.0f} MB of {suffix}", file=sys.stderr)
    return seconds, max(events)


def event_tables(path: str) -> tuple[float, int]:
    """Four tables of events to Arrow, all their columns; says how large they are."""
    return _tables(path, EVENTS)


def openmp_table(path: str) -> tuple[float, int]:
    """The table of OpenMP events to Arrow, all its columns."""
    return _tables(path, OPENMP)


def openmp_baseline(path: str) -> tuple[float, int]:
    """OpenMP events with the standard library: rows of each table of sqlite3, with names, put into Arrow columns."""
    return _all_rows(path, lambda table: table.startswith("OPENMP_EVENT_KIND_"))


def memory_tables(path: str) -> tuple[float, int]:
    """Migrations and page faults of unified memory and memory events to Arrow, all their columns."""
    return _tables(path, MEMORY)


def memory_baseline(path: str) -> tuple[float, int]:
    """The same with the standard library: rows of each table of sqlite3 put into Arrow columns."""
    return _all_rows(path, lambda table: "_UM_" in table or table.endswith(("_MEMCPY", "MEMORY_USAGE_EVENTS")))


def collapsed_stacks(path: str) -> tuple[float, int]:
    """CPU samples with call stacks to collapsed stacks."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        with tk.load(path) as trace:
            trace.export(Path(folder) / "stacks.txt", format="collapsed")
            return time.perf_counter() - began, trace.count("cpu_samples")


def _tables(path: str, names: list[str]) -> tuple[float, int]:
    began = time.perf_counter()
    with tk.load(path) as trace:
        prefetch(trace, dict.fromkeys(names))
        tables = [trace.table(name) for name in names]
    seconds = time.perf_counter() - began
    print(f"{sum(table.nbytes for table in tables) / 1e6:.0f} MB of Arrow", file=sys.stderr)
    return seconds, sum(table.num_rows for table in tables)


def read_columns(path: str) -> tuple[float, int]:
    """Eight columns of the kernel table to Arrow."""
    began = time.perf_counter()
    with tk.load(path) as trace:
        table = trace.table("kernels", COLUMNS)
    return time.perf_counter() - began, table.num_rows


def read_columns_baseline(path: str) -> tuple[float, int]:
    """The same with the standard library: rows of sqlite3, with names and process ids, put into Arrow columns."""
    named = f"SELECT {RAW}, (globalPid >> 24) & 0xFFFFFF, value FROM CUPTI_ACTIVITY_KIND_KERNEL"
    return _rows(path, f"{named} LEFT JOIN StringIds ON StringIds.id = demangledName", COLUMNS)


def read_numbers_baseline(path: str) -> tuple[float, int]:
    """Less than the same: eight raw columns, names and processes left as numbers."""
    return _rows(path, f"SELECT {RAW}, globalPid, demangledName FROM CUPTI_ACTIVITY_KIND_KERNEL", COLUMNS)


def _all_rows(path: str, is_chosen: Callable[[str], bool]) -> tuple[float, int]:
    """All rows and columns of some tables, with the names of their functions."""
    with sqlite3.connect(path) as connection:
        listed = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = {
            table: [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
            for table in filter(is_chosen, listed)
        }
    seconds, rows = 0.0, 0
    for table, names in columns.items():
        join = "LEFT JOIN StringIds s ON s.id = t.nameId" if "nameId" in names else ""
        text = [*names, "text"] if join else names
        sql = f"SELECT t.*{', s.value' if join else ''} FROM {table} t {join}"
        spent, count = _rows(path, sql, text)
        seconds, rows = seconds + spent, rows + count
    return seconds, rows


def _rows(path: str, sql: str, names: list[str]) -> tuple[float, int]:
    began = time.perf_counter()
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
        cursor = connection.execute(sql)
        parts = []
        while rows := cursor.fetchmany(100_000):
            parts.append(pa.table([pa.array(c) for c in zip(*rows, strict=True)], names=names))
    return time.perf_counter() - began, pa.concat_tables(parts).num_rows


def deep_groups(path: str) -> tuple[float, int]:
    """Deeply nested ranges rolled up to groups."""
    began = time.perf_counter()
    with tk.load(path) as trace:
        trace.rollup().table("group_nodes")
        return time.perf_counter() - began, trace.count("nvtx_ranges")


def alignment(_path: str) -> tuple[float, int]:
    """Replays of 20 graphs of about 1,000 kernels, 5 each, aligned with steps of which 1 % of the kernels are fused."""
    names = ("norm", "gemm_qkv", "attention", "gemm_out", "add", "norm", "gemm_up", "gelu", "gemm_down", "add")
    step = [(name, i * 10 + j // 5) for i in range(100) for j, name in enumerate(names)]
    random = np.random.default_rng(0)
    graphs = [[kernel for kernel in step if random.random() > 0.01] for _ in range(20)]
    replays = [graphs[i % 20] for i in range(100)]
    replayed, recorded = (
        pl.DataFrame(
            [(number, name, f"layer {layer}") for number, run in enumerate(runs) for name, layer in run],
            schema=[column, "name", "path"],
            orient="row",
        ).with_columns(graph=pl.lit(None, pl.Int64), row=pl.int_range(pl.len()), **dict.fromkeys(SHAPE, pl.lit(1)))
        for column, runs in (("replay", replays), ("sequence", [step] * 4))
    )
    align_replays(replayed.head(9), recorded.head(9))
    began = time.perf_counter()
    kernels = align_replays(replayed, recorded).kernels
    return time.perf_counter() - began, kernels.height


def layers(_path: str) -> tuple[float, int]:
    """The layers of 1,000 replays of a graph of 1,000 kernels, beyond the other columns of correlation."""
    replays, nodes, count = 1_000, 1_000, 1_000_000
    kernel, replay, node = np.arange(count), np.arange(replays), np.arange(nodes)
    captured, copied = (1 << 32) + node, (2 << 32) + node
    launches = [node * 1_000, 10**8 + replay * 10**5]
    tables = {
        "kernels": {
            "kernel_id": kernel,
            "start_ns": 10**9 + kernel * 1_000,
            "end_ns": 10**9 + kernel * 1_000 + 900,
            "correlation_id": np.repeat(replay + 5_000, nodes),
            "graph_node_id": np.tile(copied, replays),
            "device_id": np.zeros(count),
        },
        "api_calls": {
            "start_ns": np.concatenate(launches),
            "correlation_id": np.concatenate([node + 1, replay + 5_000]),
            "end_ns": np.concatenate([launches[0] + 800, launches[1] + 90_000]),
            "name": ["cudaLaunchKernel"] * nodes + ["cudaGraphLaunch"] * replays,
        },
        "nvtx_ranges": {
            "start_ns": np.concatenate([np.arange(100) * 10_000, launches[1] - 10]),
            "end_ns": np.concatenate([np.arange(100) * 10_000 + 9_999, launches[1] + 90_010]),
            "name": [f"layer {i}" for i in range(100)] + [f"step {i}" for i in range(replays)],
            "kind": ["push_pop"] * (100 + replays),
            "domain_id": np.zeros(100 + replays),
        },
        "cuda_graph_node_events": {
            "start_ns": np.concatenate([launches[0] + 500, np.full(2 * nodes, 10**7)]),
            "end_ns": np.concatenate([launches[0] + 500, np.full(2 * nodes, 10**7)]),
            "graph_node_id": np.concatenate([captured, copied, copied]),
            "original_graph_node_id": [None] * 2 * nodes + captured.tolist(),
            "event_class": np.full(3 * nodes, 77),
        },
    }
    trace = tk.Trace.from_tables({name: _table(name, columns) for name, columns in tables.items()}).correlate()
    trace.table("kernels", ["range_path", "api_call_id", "start_end_range_id"])
    began = time.perf_counter()
    paths = trace.table("kernels", ["capture_range_id", "capture_path", "capture_confidence"])["capture_path"]
    return time.perf_counter() - began, len(paths) - paths.null_count


def _table(name: str, columns: dict[str, Any]) -> pa.Table:
    """Return a declared table of one process and thread. Missing ids are row numbers, and other columns are null."""
    rows = len(next(iter(columns.values())))
    schema = schemas.arrow_schema(schemas.table(name))
    numbers = {f.name: np.arange(1, rows + 1) for f in schema if not f.nullable}
    known = {**numbers, "process_id": np.full(rows, 7), "thread_id": np.full(rows, 7), **columns}
    arrays = [pa.array(known[f.name]).cast(f.type) if f.name in known else pa.nulls(rows, f.type) for f in schema]
    return pa.table(arrays, schema=schema)


JOBS: dict[str, Callable[[str], tuple[float, int]]] = {
    f.__name__: f
    for f in (
        end_to_end,
        start,
        innermost,
        chrome_kernels,
        perfetto_timeline,
        chrome_timeline,
        event_tables,
        openmp_table,
        openmp_baseline,
        memory_tables,
        memory_baseline,
        collapsed_stacks,
        read_columns,
        read_columns_baseline,
        read_numbers_baseline,
        deep_groups,
        alignment,
        layers,
    )
}

if __name__ == "__main__":
    seconds, count = JOBS[sys.argv[1]](sys.argv[2])
    print(json.dumps({"seconds": seconds, "rows": count, "peak_mb": peak_mib()}))
