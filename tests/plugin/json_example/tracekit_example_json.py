"""Read ``.spans.json`` files, in which a profiler that knows only kernels and devices stores its kernels.

A file is one object, such as ``{"gpu_spans": [{"kernel": "gemm", "device": 0, "from": 10, "to": 25}]}``, with times in
nanoseconds. A span may also have the key ``registers``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import tracekit as tk

if TYPE_CHECKING:
    import pyarrow as pa
    from tracekit.registry.source import Source

MAGIC = b'{"gpu_spans":'
COLUMNS = {
    "name": "kernel",
    "start_ns": "from",
    "end_ns": "to",
    "device_id": "device",
    "registers_per_thread": "registers",
}
"""The key of a span that contains the value of each declared column of kernels."""


def sniff(source: Source) -> bool:
    """Return whether the content of a file is in this format."""
    return source.head.startswith(MAGIC)


def open_(source: Source) -> dict[str, pa.Table]:
    """Read a file and return its kernels. tracekit fills all other columns of the table with nulls."""
    import pyarrow as pa

    try:
        spans: list[dict[str, Any]] = json.loads(source.path.read_bytes())["gpu_spans"]
        columns = {column: pa.array([span.get(key) for span in spans]) for column, key in COLUMNS.items()}
    except (ValueError, AttributeError, TypeError) as e:
        raise tk.errors.CorruptTraceError(f"expected a list of spans: {e}", path=source.path) from e
    return {"kernels": pa.table({"kernel_id": pa.array(range(len(spans)), pa.int64()), **columns})}


READER = tk.Reader("gpu-spans", "Kernels of a small JSON format", (".spans.json",), sniff, open_)
