"""Runs of a made training program, with the noise of real runs.

The noise is that of 11 real captures of three programs: the durations of a kernel vary by about 1 %, in steps of 32 ns,
and by less than 1 % from run to run; times on the CPU vary by tens of per cent within and between runs; consecutive
iterations resemble one another; and the first iteration is slow.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pyarrow as pa
import tracekit as tk
from tracekit import schemas
from tracekit.core.compare import KINDS, Summary
from tracekit.sets.comparison import Summarizer

PHASES = ("forward", "backward", "optimizer")
KERNELS = tuple(f"kernel_{c}<(int)4>" for c in "abcdefghijkl")
TICK = 32
"""Resolution of the times of GPU activities in ns."""


def normalized(kernel: str) -> str:
    """Return the name of a kernel in a diff."""
    return kernel.replace("4", "*")


def may_contain(row: dict[str, Any], kernel: str) -> bool:
    """Return whether a row of a diff is that of a kernel, of the phase that launches it, or of whole iterations."""
    phase = PHASES[KERNELS.index(kernel) % len(PHASES)]
    return row["name"] == normalized(kernel) or phase in row["name"] or row["kind"] in ("groups", "iterations")


@functools.lru_cache(maxsize=64)
def summary(seed: int, **options: Any) -> Summary:
    """Return the summary of all kinds of a run, for tests that compare the same run several times."""
    return Summarizer(tuple(KINDS)).summarize(run(seed, **options))


@functools.lru_cache(maxsize=16)
def run(
    seed: int, *, iterations: int = 40, slow: tuple[tuple[str, float], ...] = (), gpu: str = "GPU X", osrt: bool = False
) -> tk.Trace:
    """Return a run of the program.

    Args:
        seed: Number of the run.
        iterations: Number of iterations.
        slow: Names of kernels, and the factors of their durations.
        gpu: Name of the GPU.
        osrt: Whether calls of the operating system were recorded.
    """
    program, noise = np.random.default_rng(7), np.random.default_rng(seed)
    durations = {k: float(d) for k, d in zip(KERNELS, program.uniform(3_000, 300_000, len(KERNELS)), strict=True)}
    launches = [(k, PHASES[i % 3]) for i, k in enumerate(KERNELS) for _ in range(1 + i % 4)]
    of_run = {k: noise.normal(1, 0.002) * dict(slow).get(k, 1) for k in KERNELS}
    cpu = noise.uniform(0.85, 1.15)
    drift = 0.0
    tables: dict[str, list[dict[str, Any]]] = {"kernels": [], "api_calls": [], "nvtx_ranges": [], "memcpys": []}
    now = free = 1_000_000
    for i in range(iterations):
        drift = 0.7 * drift + noise.normal(0, 0.003)
        speed = cpu * (3 if i == 0 else 1) * noise.lognormal(0, 0.1)
        start = now
        for phase in PHASES:
            phase_start = now
            for name, in_phase in launches:
                if in_phase != phase:
                    continue
                end = now + int(6_000 * speed * noise.lognormal(0, 0.3))
                tables["api_calls"].append(_call("cudaLaunchKernel_v7000", len(tables["api_calls"]), now, end))
                busy = durations[name] * of_run[name] * (1 + drift) * noise.lognormal(0, 0.01)
                free = max(free, end) + 1_000
                ticks = TICK * max(1, round(busy / TICK))
                tables["kernels"].append(_activity("kernel_id", len(tables["api_calls"]) - 1, free, ticks, name))
                free += ticks
                now = end + int(2_000 * speed)
            tables["nvtx_ranges"].append(_range(phase, len(tables["nvtx_ranges"]), phase_start, now))
        end = now + int(5_000 * speed)
        tables["api_calls"].append(_call("cudaMemcpyAsync_v3020", len(tables["api_calls"]), now, end))
        copy = _activity("memcpy_id", len(tables["api_calls"]) - 1, max(free, end), TICK * round(noise.normal(400, 5)))
        tables["memcpys"].append(copy | {"copy_kind": "Device-to-Host", "bytes": 4096})
        now = free = max(now, copy["end_ns"]) + 1_000
        tables["nvtx_ranges"].append(_range(f"step {i}", len(tables["nvtx_ranges"]), start, now))
        now += int(3_000 * speed)
    tables["devices"] = [{"device_id": 0, "name": gpu}]
    tables["osrt_calls"] = [_call("read", 0, 5, 10)] * osrt
    return trace(**tables)


def trace(**tables: list[dict[str, Any]]) -> tk.Trace:
    """Return a trace of tables, given as rows. Columns that a row does not name are null, 0 or an empty string."""
    return tk.Trace.from_tables({name: _table(name, rows) for name, rows in tables.items()})


def _table(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    schema = schemas.table(name)
    text = ("string", "dictionary")
    empty = {c.name: None if c.nullable else "" if c.type in text else 0 for c in schema.columns}
    arrays = {c.name: [row.get(c.name, empty[c.name]) for row in rows] for c in schema.columns}
    return pa.table(arrays, schema=schemas.arrow_schema(schema)) if rows else schemas.empty(schema)


def _call(name: str, number: int, start: int, end: int) -> dict[str, Any]:
    key = {"api_call_id": number, "osrt_call_id": number, "correlation_id": number + 1, "process_id": 1, "thread_id": 1}
    return {**key, "start_ns": start, "end_ns": end, "name": name}


def _range(name: str, number: int, start: int, end: int) -> dict[str, Any]:
    key = {"range_id": number, "kind": "push_pop", "process_id": 1, "thread_id": 1, "domain_id": 0}
    return {**key, "start_ns": start, "end_ns": end, "name": name}


def _activity(key: str, correlation: int, start: int, duration: int, name: str = "") -> dict[str, Any]:
    ids = {key: correlation, "process_id": 1, "correlation_id": correlation + 1, "stream_id": 7}
    return {**ids, "start_ns": start, "end_ns": start + duration, "name": name, "short_name": name.partition("<")[0]}
