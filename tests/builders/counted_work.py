"""The work of the cases of ``fixtures/work``, as tracekit computes it and as hardware counters measured it.

``python -m tests.builders.counted_work`` writes the column ``computed_flop`` of the tables anew.
"""

from __future__ import annotations

import polars as pl
import tracekit as tk
from tests.conftest import FIXTURES
from tracekit.core.work.ops import compute_op_work

FOLDER = FIXTURES / "work"
TABLES = ("counted", "held_out")
TOLERANCES = {"matrix product": 0.03, "convolution": 0.03, "convolution backward": 0.03}
TOLERANCES |= {"attention": 0.10, "attention backward": 0.10}
"""Largest relative difference between computed and counted operations by family, where no reason is stated."""


def read_counted(table: str) -> pl.DataFrame:
    """Return the counted work of the cases of a table."""
    return pl.read_csv(FOLDER / f"{table}.csv", schema_overrides={"reason": pl.String, "computed_flop": pl.Int64})


def compute_cases(table: str) -> pl.DataFrame:
    """Return the computed work of each case with a known op: ``case``, ``flop``, ``type`` and bytes."""
    trace = tk.load(FOLDER / f"{table}.pt.trace.json.gz").correlate()
    ops = compute_op_work(trace.frame).ops
    ranges = trace.frame("nvtx_ranges").select("range_id", "start_ns", "end_ns", pl.col("name").cast(pl.String))
    ranges = ranges.sort("start_ns").collect()
    cases = ranges.filter(pl.col("name").str.starts_with("case "))
    cases = cases.select("start_ns", case="name", case_end_ns="end_ns").with_columns(pl.all().set_sorted())
    ops = ops.rename({"name": "op"}).join(ranges, on="range_id").sort("start_ns").join_asof(cases, on="start_ns")
    ops = ops.filter(pl.col("start_ns") <= pl.col("case_end_ns"))
    totals = (pl.col("flop", "read_bytes", "written_bytes").sum(), pl.col("type").cast(pl.String).drop_nulls().unique())
    return ops.group_by("case").agg(*totals)


def write_computed() -> None:
    """Write the column ``computed_flop`` of the tables anew."""
    for table in TABLES:
        computed = compute_cases(table).select("case", computed_flop="flop")
        counted = read_counted(table).drop("computed_flop", strict=False).join(computed, on="case", how="left")
        is_listed = pl.col("family").is_in(list(TOLERANCES))
        counted = counted.with_columns(computed_flop=pl.when(is_listed).then("computed_flop"))
        columns = [c for c in counted.columns if c != "reason"]
        counted.sort(pl.col("case").str.extract(r"(\d+)").cast(pl.Int64)).select(*columns, "reason").write_csv(
            FOLDER / f"{table}.csv"
        )


if __name__ == "__main__":
    write_computed()
