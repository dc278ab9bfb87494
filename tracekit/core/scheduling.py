"""Find, for each context switch, the next context switch of the same thread."""

from __future__ import annotations

import polars as pl

TABLE = "cpu_scheduling"
READ = ("process_id", "thread_id", "timestamp_ns")
"""Columns of the table ``cpu_scheduling`` that ``find_next_switch_times`` reads."""


def find_next_switch_times(switches: pl.DataFrame) -> pl.DataFrame:
    """Return, for each context switch, the time of the next context switch of the same thread.

    Args:
        switches: The columns ``READ`` of the table ``cpu_scheduling``.

    Returns:
        The column ``next_switch_ns``, with one row per switch, in the same order. It is null for the last switch of a
        thread.
    """
    rows = switches.with_row_index("row").sort("timestamp_ns", "row")
    following = pl.col("timestamp_ns").shift(-1).over("process_id", "thread_id")
    return rows.with_columns(next_switch_ns=following).sort("row").select("next_switch_ns")
