"""Captures of single ranks, made of a few rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import tracekit as tk
from tracekit import schemas


def write_capture(path: Path, **tables: list[dict[str, Any]]) -> Path:
    """Write a folder of tables, and return its path."""
    made = {name: table_of(name, rows) for name, rows in tables.items()}
    made.setdefault("capture_info", table_of("capture_info", []))
    made.setdefault("devices", table_of("devices", []))
    tk.Trace.from_tables(made).export(path, format="parquet", tables=list(made))
    return path


def table_of(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    schema = schemas.arrow_schema(schemas.table(name))
    plain = {f.name: pa.array([r.get(f.name, _default(f)) for r in rows], _plain(f.type)) for f in schema}
    return pa.table({f.name: plain[f.name].cast(f.type) for f in schema}, schema=schema)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _default(field: pa.Field) -> object:
    """What a row has in a column that it does not name: null, or else 0, an empty string or False."""
    return None if field.nullable else pa.scalar("0").cast(_plain(field.type)).as_py()


def nccl_init(rank: int, size: int, process: int = 1) -> dict[str, Any]:
    """A call that creates a communicator of NCCL, as a range."""
    payload = json.dumps({"NCCL communicator ID": 7, "No. of ranks": size, "Rank": rank, "CUDA device": rank})
    return {
        "range_id": process,
        "start_ns": 0,
        "end_ns": 10,
        "kind": "push_pop",
        "process_id": process,
        "thread_id": process,
        "domain_id": 1,
        "domain": "NCCL",
        "name": "ncclCommInitRankConfig",
        "payload_type": "json",
        "payload_text": payload,
    }


def mpi_rank(rank: int, process: int = 1) -> dict[str, Any]:
    return {"process_id": process, "thread_id": process, "rank": rank}


def kernel(start: int, end: int, device: int = 0) -> dict[str, Any]:
    return {
        "kernel_id": start + 1,
        "start_ns": start,
        "end_ns": end,
        "process_id": 1,
        "device_id": device,
        "context_id": 1,
        "stream_id": 7,
        "correlation_id": start + 1,
        "name": "k",
        "short_name": "k",
    }
