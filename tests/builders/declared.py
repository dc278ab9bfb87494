"""Build declared tables from a few rows, for tests of functions that read tables by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
from tracekit import schemas

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.core.reports import Frames

PROCESS, THREAD = 7, 1


def build_frames(**tables: Iterable[dict[str, Any]]) -> Frames:
    """Give the declared tables with these rows; what a row leaves out is null, 0 or "push_pop"."""

    def frame(name: str) -> pl.LazyFrame:
        schema = schemas.table(name)
        empty = {c.name: None if c.nullable else "push_pop" if c.values else 0 for c in schema.columns}
        return pl.LazyFrame([empty | row for row in tables.get(name, [])], schema=schemas.polars_schema(schema))

    return frame


def build_range(number: int, name: str, start: int, end: int | None, thread: int = THREAD) -> dict[str, Any]:
    times = {"start_ns": start, "end_ns": end}
    return {"range_id": number, "name": name, "process_id": PROCESS, "thread_id": thread, **times}


def build_launch(number: int, at: int, thread: int = THREAD, name: str = "cudaLaunchKernel") -> dict[str, Any]:
    of = {"process_id": PROCESS, "thread_id": thread, "correlation_id": number}
    return {"name": name, "start_ns": at, "end_ns": at + 1, **of}


def build_kernel(number: int, start: int, end: int, name: str = "k", device: int = 0) -> dict[str, Any]:
    of = {"process_id": PROCESS, "correlation_id": number, "device_id": device}
    return {"name": name, "start_ns": start, "end_ns": end, **of}
