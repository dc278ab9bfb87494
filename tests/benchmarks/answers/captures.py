"""Look up in captures what answers refer to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import tracekit as tk
from tracekit import schemas

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class LoadedCapture:
    """The capture of a question, or those of all ranks, of which one has to have the rows."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._traces = [tk.load(path) for path in paths]

    def count_missing(self, table: str, ids: Iterable[int]) -> int:
        """Return how many ids a table lacks: of several captures, the one that has most of them counts."""
        wanted = pl.Series(sorted(set(ids)), dtype=pl.Int64)
        if table not in schemas.table_names():
            return len(wanted)
        key = schemas.table(table).key[0]
        return min(len(wanted) - self._count(trace, table, key, wanted) for trace in self._traces)

    @staticmethod
    def _count(trace: tk.Trace, table: str, key: str, wanted: pl.Series) -> int:
        return trace.frame(table).filter(pl.col(key).is_in(wanted.implode())).select(pl.len()).collect().item()

    def find_rows(self, windows: Iterable[tuple[int, int]]) -> list[tuple[str, list[int]]]:
        """Return the kernels and copies that have exactly one of some times: a table and ids."""
        times = pl.DataFrame(sorted(set(windows)), {"start_ns": pl.Int64, "end_ns": pl.Int64}, orient="row").lazy()
        rows = []
        for table in ("kernels", "memcpys"):
            key = schemas.table(table).key[0]
            frames = [trace.frame(table).join(times, ["start_ns", "end_ns"]).select(key) for trace in self._traces]
            ids = pl.concat(frames).collect()[key].unique().sort().to_list()
            rows += [(table, ids)] if ids else []
        return rows

    def measure_overlap(self, windows: Iterable[tuple[int, int]], ranges: Iterable[str]) -> float:
        """Return the share of windows that lies in ranges: of several captures, the largest one."""
        return max(_measure_overlap(trace, list(windows), list(ranges)) for trace in self._traces)


def _measure_overlap(trace: tk.Trace, windows: list[tuple[int, int]], names: list[str]) -> float:
    ranges = trace.frame("nvtx_ranges").filter(pl.col("name").cast(pl.String).is_in(names))
    spans = ranges.select("start_ns", "end_ns").drop_nulls().sort("start_ns").collect()
    ends = spans["end_ns"].cum_max().shift(1, fill_value=-(2**62))
    union = spans.with_columns(start_ns=pl.max_horizontal(spans["start_ns"], ends)).filter(
        pl.col("start_ns") < pl.col("end_ns")
    )
    inside = total = 0
    for start, end in windows:
        clipped = union.select(pl.col("end_ns").clip(upper_bound=end) - pl.col("start_ns").clip(lower_bound=start))
        inside += int(clipped["end_ns"].clip(lower_bound=0).sum())
        total += end - start
    return inside / total if total else 0.0
