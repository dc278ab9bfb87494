"""Captures of a few rows, as the frames that the core works on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from tracekit import schemas

if TYPE_CHECKING:
    from collections.abc import Callable

Range = tuple[str, int, int, int]
RANGE = ["range_id", "kind", "process_id", "thread_id", "start_ns", "end_ns", "domain_id", "name"]


def declared(**given: pl.DataFrame) -> Callable[[str], pl.LazyFrame]:
    """Give declared tables by name: columns that are not given are null, tables that are not given have no rows."""

    def frame(name: str) -> pl.LazyFrame:
        types = schemas.polars_schema(schemas.table(name))
        made = given.get(name, pl.DataFrame())
        if not made.height:
            return pl.LazyFrame(schema=types)
        known = [pl.col(c).cast(t) if c in made.columns else pl.lit(None, t).alias(c) for c, t in types.items()]
        return made.select(known).lazy()

    return frame


def nvtx(*ranges: Range, process: int = 1) -> pl.DataFrame:
    """Ranges (text, thread, start, end) of one process."""
    rows = [(i, "push_pop", process, t, s, e, 0, text) for i, (text, t, s, e) in enumerate(ranges)]
    return pl.DataFrame(rows, schema=RANGE, orient="row")


def launches(*calls: tuple[int, int, int, int]) -> dict[str, pl.DataFrame]:
    """Calls of one process (thread, start, end, device), each with a kernel that runs from 1 ns after it to 1 after."""
    api = [(i, s, e, 1, t, i, "cudaLaunchKernel") for i, (t, s, e, _) in enumerate(calls, 1)]
    ran = [(s + 1, e + 1, 1, d, i, "k", "k") for i, (_, s, e, d) in enumerate(calls, 1)]
    times, key = ["start_ns", "end_ns", "process_id"], "correlation_id"
    return {
        "api_calls": pl.DataFrame(api, ["api_call_id", *times, "thread_id", key, "name"], orient="row"),
        "kernels": pl.DataFrame(ran, [*times, "device_id", key, "short_name", "name"], orient="row"),
    }
