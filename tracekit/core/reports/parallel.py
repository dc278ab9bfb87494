"""Declare reports on parallel programming models of the CPU and of several processes: OpenMP and MPI."""

from __future__ import annotations

import polars as pl

from tracekit.core.reports.report import Request, report
from tracekit.core.reports.summary import DURATION, sort_largest_first, summarize, summary_columns
from tracekit.core.reports.table import text_column


@report(*summary_columns("Count"), text_column("Name", "name"))
def openmp_sum(request: Request) -> pl.LazyFrame:
    """OpenMP events by kind and name."""
    first = pl.col("openmp_event_id").min().over("kind").alias("first")
    rows = request.frames("openmp_events").select("name_id", "name", DURATION, first)
    grouped = summarize(rows, ["first", "name_id", "name"])
    return sort_largest_first(grouped, "first", "name_id")
