"""Analyze the communication between the ranks of a set of profiles, with one open profile at a time."""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING

from tracekit.errors import TracekitWarning
from tracekit.registry.tables import scan_table
from tracekit.trace import Trace, call_with_tables, get_trace_view

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import polars as pl

    from tracekit.core.communication import Communication
    from tracekit.sets.member_set import MemberSet

    RankTables = dict[str, pl.DataFrame]
    Compute = Callable[[Callable[[str], pl.LazyFrame]], RankTables]

RANK = "rank"
_LISTED = 8


def analyze_communication(traces: MemberSet, *, include_warm_up: bool = False) -> Communication:
    """Return an analysis of the communication between all ranks. Warn about clocks that collectives cannot align.

    Args:
        traces: The set of profiles.
        include_warm_up: Whether the first iterations are compared even if they are much slower than the others.
    """
    from tracekit.core.communication import Communication

    analysis = Communication(collect_rank_tables(traces, choose_rank_table_reader(include_warm_up=include_warm_up)))
    warn_about_unaligned_clocks(analysis.clocks)
    return analysis


def choose_rank_table_reader(*, include_warm_up: bool) -> Compute:
    """Return the function that reads the tables of a rank for an analysis with or without the warm-up."""
    from tracekit.core.communication import read_rank_tables

    return _read_tables_with_warm_up if include_warm_up else read_rank_tables


def _read_tables_with_warm_up(frames: Callable[[str], pl.LazyFrame]) -> RankTables:
    from tracekit.core.communication import read_rank_tables

    return read_rank_tables(frames, include_warm_up=True)


def compute_clock_conversions(traces: MemberSet) -> pl.DataFrame:
    """Return the offset and drift that convert the times of each rank to the clock of the first rank.

    The result has one row per rank, as ``TraceSet.clocks`` describes.
    """
    from tracekit.core.communication import Communication, read_call_tables

    return Communication(collect_rank_tables(traces, read_call_tables)).clocks


def join_logs(traces: MemberSet, logs: MemberSet) -> pl.DataFrame:
    """Return the communication calls of all ranks with those in logs, as ``TraceSet.join_logs`` describes."""
    from tracekit.core.communication import LOGGED, join_logged_calls, read_call_tables, read_log_tables

    captured, logged = collect_rank_tables(traces, read_call_tables), collect_rank_tables(logs, read_log_tables)
    origins, log_origins = (
        dict(tables["origins"].select(RANK, "origin_utc_ns").iter_rows()) for tables in (captured, logged)
    )
    return join_logged_calls(captured["calls"], origins, logged[LOGGED], log_origins)


def collect_rank_tables(traces: MemberSet, compute: Compute) -> RankTables:
    """Compute tables for every rank, and return the rows of all ranks by table name, with a column ``rank``."""
    import polars as pl

    results = traces.map(functools.partial(_compute_tables, compute))
    if not results:
        return {
            name: rows.with_columns(pl.lit(0, pl.Int64).alias(RANK)).clear()
            for name, rows in _compute_tables_of_empty_trace(compute)
        }
    return concat_rank_tables(traces.ranks, results)


def concat_rank_tables(ranks: Sequence[int], results: Sequence[RankTables]) -> RankTables:
    """Return the rows of all ranks by table name, with a column ``rank``, given the tables of each rank."""
    import polars as pl

    ranked = [
        {name: rows.with_columns(pl.lit(rank, pl.Int64).alias(RANK)) for name, rows in tables.items()}
        for rank, tables in zip(ranks, results, strict=True)
    ]
    return {name: pl.concat([tables[name] for tables in ranked]) for name in ranked[0]}


def _compute_tables_of_empty_trace(compute: Compute) -> Iterable[tuple[str, pl.DataFrame]]:
    """Return the tables that a function computes for a trace without rows, as pairs of a table name and a table."""
    return compute(functools.partial(scan_table, get_trace_view(Trace.from_tables({})).tables)).items()


def _compute_tables(compute: Compute, trace: Trace) -> RankTables:
    """Return the tables that a function computes for a trace, by table name."""
    return call_with_tables(trace, compute, key=compute)


def warn_about_unaligned_clocks(clocks: pl.DataFrame) -> None:
    """Warn about ranks whose clocks cannot be aligned by collectives.

    Args:
        clocks: The conversion of the times of each rank, as ``TraceSet.clocks`` returns it.
    """
    from tracekit.core.communication.stragglers import NONE, UTC

    problems = {
        NONE: "the clock cannot be aligned with that of the first rank, because neither common collectives nor the UTC "
        "time of the trace origin are recorded; the times are null",
        UTC: "the clock is aligned only by the UTC time of the trace origin, which may be off by milliseconds",
    }
    for method, problem in problems.items():
        ranks = clocks.filter(method=method)[RANK].to_list()
        if ranks:
            listed = ", ".join(map(str, ranks[:_LISTED])) + (", …" if len(ranks) > _LISTED else "")
            warnings.warn(f"rank {listed}: {problem}", TracekitWarning, stacklevel=4)
