"""Analyze the communication between ranks, starting from the tables of the trace of each rank."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.communication import operations, stragglers
from tracekit.core.communication.calls import read_communication_calls
from tracekit.core.communication.clocks import UTC, align_clocks, convert_to_common_clock
from tracekit.core.communication.iterations import ITERATION_COLUMNS, PHASE_COLUMNS, read_iterations_and_phases
from tracekit.core.communication.matching import INCOMPLETE, MATCHED, match_calls
from tracekit.core.correlate import Correlation
from tracekit.core.rollup import Rollup
from tracekit.core.steps import StepSummary, list_notes_by_rank, read_summaries

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Frames = Callable[[str], pl.LazyFrame]

CALLS, ORIGINS, ITERATIONS, PHASES, STEPS = "calls", "origins", "iterations", "phases", "steps"
_TIMES = ("call_start_ns", "call_end_ns", "kernel_start_ns", "kernel_end_ns", "start_ns", "end_ns")
_SCHEMAS: dict[str, dict[str, type[pl.DataType]]] = {ITERATIONS: ITERATION_COLUMNS, PHASES: PHASE_COLUMNS}
_ADDED = {"kernels": ("range_id", "thread_id", "api_start_ns"), "nvtx_ranges": ("parent_id", "depth", "path")}
_DIGITS = 19


def read_rank_tables(
    frames: Frames, *, key_op: str | None = None, include_warm_up: bool = False
) -> dict[str, pl.DataFrame]:
    """Return the tables of one trace that ``Communication`` needs: calls, origin in UTC, iterations, phases and steps.

    Args:
        frames: Function that returns the declared table with a given name.
        key_op: Id or name of the op that delimits iterations, or None for the default of the dialect.
        include_warm_up: Whether the first iterations are compared even if they are much slower than the others.
    """
    linked = _correlate_frames(frames)
    rollup = Rollup.from_frames(linked, key_op=key_op, include_warm_up=include_warm_up)
    iterations, phases = read_iterations_and_phases(linked, rollup.iterations)
    return {
        CALLS: read_communication_calls(linked),
        ORIGINS: _build_utc_origin_table(frames),
        ITERATIONS: iterations,
        PHASES: phases,
        STEPS: rollup.step_summary.to_frame(),
    }


def read_call_tables(frames: Frames) -> dict[str, pl.DataFrame]:
    """Return the tables of one trace that are needed to align clocks: calls, and the origin in UTC.

    Args:
        frames: Function that returns the declared table with a given name.
    """
    return {CALLS: read_communication_calls(_correlate_frames(frames)), ORIGINS: _build_utc_origin_table(frames)}


def _correlate_frames(frames: Frames) -> Frames:
    """Return a version of ``frames`` in which kernels and NVTX ranges have the columns that correlation adds."""
    correlation = Correlation(frames)

    @functools.cache
    def read_correlated_table(name: str) -> pl.DataFrame:
        return correlation.compute_columns(name, _ADDED[name])

    def read_table(name: str) -> pl.LazyFrame:
        if name not in _ADDED:
            return frames(name)
        recorded = frames(name).drop(_ADDED[name], strict=False)
        return pl.concat([recorded, read_correlated_table(name).lazy()], how="horizontal")

    return read_table


def _build_utc_origin_table(frames: Frames) -> pl.DataFrame:
    """Return a table with one value, ``origin_utc_ns``: time 0 of a trace in UTC, or null if it was not recorded."""
    values = frames("capture_info").filter(pl.col("name") == "origin_utc_ns").select("value").collect()["value"]
    text = next(iter(values.drop_nulls()), "")
    known = text.isdecimal() and len(text) <= _DIGITS
    return pl.DataFrame(
        {"origin_utc_ns": [int(text) if known else None]}, schema={"origin_utc_ns": pl.Int64}, strict=False
    )


@dataclass(frozen=True)
class Communication:
    """The communication of all ranks. Each table is computed when it is first accessed.

    Times are on the clock of the first trace. Calls and iterations of traces that cannot be aligned have no times.

    Attributes:
        tables: The tables of ``read_rank_tables`` or ``read_call_tables``, concatenated over all traces. The column
            ``rank`` contains the rank of the trace. Without tables of iterations, phases and steps, there are no
            iterations.
        ignores_missing_ranks: Whether operations count whose members are not all present. Waits are then lower bounds.
    """

    tables: Mapping[str, pl.DataFrame]
    ignores_missing_ranks: bool = False

    @functools.cached_property
    def _origins_by_rank(self) -> dict[int, int | None]:
        return dict(self.tables[ORIGINS].select("rank", "origin_utc_ns").iter_rows())

    @functools.cached_property
    def _matched_calls(self) -> pl.DataFrame:
        calls = match_calls(self.tables[CALLS], self._origins_by_rank)
        if not self.ignores_missing_ranks:
            return calls
        status = pl.when(pl.col("status") == INCOMPLETE).then(pl.lit(MATCHED)).otherwise("status")
        return calls.with_columns(status=status)

    @functools.cached_property
    def clocks(self) -> pl.DataFrame:
        """The conversion of the times of each trace to the common clock (see ``align_clocks``)."""
        return align_clocks(self._matched_calls, self._origins_by_rank)

    @functools.cached_property
    def calls(self) -> pl.DataFrame:
        """All calls of all ranks, each with its collective or message (see ``match_calls``)."""
        return convert_to_common_clock(self._matched_calls, self.clocks, _TIMES, rank_column="trace_rank")

    @functools.cached_property
    def rank_operations(self) -> pl.DataFrame:
        """Wait and transfer times of each rank in each communication operation."""
        return operations.compute_operation_times_by_rank(self.calls)

    @functools.cached_property
    def waits(self) -> pl.DataFrame:
        """How long each call waits for other ranks, with the times of its trace (see ``compute_waits_by_call``).

        Waits of traces whose clocks are not
        aligned by collectives are unknown, because clocks that are set by a network differ by milliseconds.
        """
        exact = self.clocks.with_columns(offset_ns=pl.when(pl.col("method") != UTC).then("offset_ns"))
        calls = convert_to_common_clock(self._matched_calls, exact, _TIMES, rank_column="trace_rank")
        return operations.compute_waits_by_call(calls, self._matched_calls)

    @functools.cached_property
    def operations(self) -> pl.DataFrame:
        """Times, bandwidths and skew of each communication operation (see ``aggregate_operations``)."""
        return operations.aggregate_operations(self.rank_operations)

    @functools.cached_property
    def summary(self) -> pl.DataFrame:
        """Total times and bandwidths of operations by library, kind, communicator and size."""
        return operations.summarize_operations(self.operations)

    @functools.cached_property
    def arrivals(self) -> pl.DataFrame:
        """Statistics of how late each rank starts its collective operations."""
        return operations.summarize_arrivals(self.rank_operations)

    @functools.cached_property
    def _aligned_iterations_and_phases(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The iterations of all ranks on the common clock, and their phases.

        The column ``rank`` identifies the process. Corresponding iterations of different ranks have the same number.
        An iteration that is warm-up on any rank is warm-up on all ranks.
        """
        empty = {name: pl.DataFrame(schema={"rank": pl.Int64, **schema}) for name, schema in _SCHEMAS.items()}
        tables = (self.tables.get(name, empty[name]).rename({"rank": "trace_rank"}) for name in (ITERATIONS, PHASES))
        traces, phases = tables
        who = ["trace_rank", "process_id"]
        ranks = traces.select(who).unique().sort(who)
        if ranks["trace_rank"].is_unique().all():
            ranks = ranks.with_columns(rank="trace_rank")
        else:
            by_call = self.calls.group_by(who).agg(own=pl.col("rank").min())
            ranks = ranks.join(by_call, on=who, how="left", maintain_order="left").sort("own", *who, nulls_last=True)
            ranks = ranks.with_columns(rank=pl.int_range(pl.len(), dtype=pl.Int64)).drop("own")
        iterations = convert_to_common_clock(traces, self.clocks, ["start_ns", "end_ns"], rank_column="trace_rank")
        iterations, phases = (
            rows.join(ranks, on=who, maintain_order="left").drop(who) for rows in (iterations, phases)
        )
        iterations = iterations.drop_nulls("start_ns")
        shifts = stragglers.find_iteration_shifts(iterations, self.rank_operations)
        shift = pl.col("rank").replace_strict(shifts, default=0, return_dtype=pl.Int64)
        iterations, phases = (rows.with_columns(pl.col("iteration") + shift) for rows in (iterations, phases))
        flags = pl.col("is_warm_up").any(), pl.col("is_aggregated").all()
        return iterations.with_columns(flag.over("iteration") for flag in flags), phases

    @functools.cached_property
    def steps(self) -> pl.DataFrame:
        """What delimits the iterations of each trace, and how much of the GPU work lies in them.

        One row per trace: ``rank``, and the attributes of ``StepSummary``.
        """
        columns: dict[str, type[pl.DataType]] = {"rank": pl.Int64, **StepSummary.get_schema()}
        return self.tables.get(STEPS, pl.DataFrame(schema=columns)).select(*columns)

    @property
    def step_notes(self) -> list[str]:
        """Sentences about the iterations, one for all ranks whose steps agree."""
        return list_notes_by_rank(read_summaries(self.steps))

    @functools.cached_property
    def iterations(self) -> pl.DataFrame:
        """One row per iteration, with the differences between the ranks and the straggler.

        Iterations of the warm-up have no straggler unless they are included.
        """
        return stragglers.compute_iteration_spread(*self._aligned_iterations_and_phases, self.rank_operations)

    @functools.cached_property
    def stragglers(self) -> pl.DataFrame:
        """The phases in which ranks were stragglers, with the time that the ranks lost in them."""
        return stragglers.summarize_stragglers(self.iterations)
