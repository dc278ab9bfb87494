"""Communication calls of several ranks with known answers, as the core reads them from traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from tests.exporters.test_chrome_trace import call, kernel, push, trace
from tracekit.core.communication.calls import COLUMNS

if TYPE_CHECKING:
    import tracekit as tk

Row = dict[str, object]


def nccl(rank: int, start: int, end: int, **more: object) -> Row:
    """An all-reduce of NCCL whose kernel runs from ``start`` to ``end``."""
    row: Row = {"rank": rank, "library": "NCCL", "kind": "all_reduce", "communicator": "7", "message_bytes": 64}
    row |= {"process_id": rank, "device_id": 0, "stream_id": 17, "kernel_id": start, "kernel_calls": 1}
    row |= {"call_start_ns": start - 5, "call_end_ns": start - 1, "start_ns": start, "end_ns": end, "hidden_ns": 0}
    return {**row, "kernel_start_ns": start, "kernel_end_ns": end, **more}


def calls(rows: list[Row]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"rank": pl.Int64, **COLUMNS})


def payload(communicator: int | None = None, size: int | None = None, **more: object) -> str:
    facts: list[tuple[str, object]] = [("NCCL communicator ID", communicator), ("Message size [bytes]", size)]
    listed = [*facts, *((name.replace("_", " "), value) for name, value in more.items())]
    quoted = [f'"{k}":"{v}"' if isinstance(v, str) else f'"{k}":{v}' for k, v in listed if v is not None]
    return "{" + ",".join(quoted) + "}"


def nccl_range(start: int, end: int, name: str, text: str | None = None, **more: object) -> Row:
    return push(start, end, name, domain="NCCL", domain_id=3, payload_text=text, **more)


def nccl_kernel(start: int, end: int, name: str, at: int, **more: object) -> tuple[Row, Row]:
    """A kernel and the API call that launches it at a time."""
    ids: Row = {"correlation_id": at, **more}
    full: Row = {"name": f"{name}(ncclDevKernelArgsStorage<4096ul>)", "short_name": name}
    process = {"process_id": more["process_id"]} if "process_id" in more else {}
    return kernel(start, end, **full, **ids), call(at, at + 1, correlation_id=at, **process)


def scene(ranges: list[Row], launched: list[tuple[Row, Row]], **more: list[Row]) -> tk.Trace:
    api_calls = sorted((c for _, c in launched), key=lambda c: str(c["start_ns"]).zfill(20))
    return trace(nvtx_ranges=ranges, kernels=[k for k, _ in launched], api_calls=api_calls, **more).correlate()
