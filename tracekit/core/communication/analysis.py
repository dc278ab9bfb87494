"""Analyze the communication between ranks, starting from the tables of the trace of each rank.

Compute the times and bandwidths of communication operations.

An operation is a collective or a message, or several of them that share a kernel.

NCCL may run several calls of a group in one kernel. These calls are one operation, whose size is the sum of the sizes
of the calls. Messages that share a kernel in any rank are one operation as well, such as the messages of a ring
exchange.

A rank waits in an operation until the last rank has started it, and transfers data afterwards. The time of an operation
is the time from the last start to the last end. Bandwidths are computed from this time with the formulas of
nccl-tests, which measures operations that all ranks start at once.

Source: nccl-tests, "Performance reported by NCCL tests" (algorithm bandwidth and bus bandwidth).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.core.communication import stragglers
from tracekit.core.communication.calls import MESSAGES, read_communication_calls
from tracekit.core.communication.matching import INCOMPLETE, MATCHED, match_calls
from tracekit.core.communication.stragglers import (
    ITERATION_COLUMNS,
    PHASE_COLUMNS,
    UTC,
    align_clocks,
    convert_to_common_clock,
    read_iterations_and_phases,
)
from tracekit.core.correlate import Correlation
from tracekit.core.rollup import Rollup
from tracekit.core.steps import StepSummary, list_notes_by_rank, read_summaries

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Frames = Callable[[str], pl.LazyFrame]


SEND_RECV = "send_recv"
_HALF = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
_WHOLE = ("broadcast", "reduce", SEND_RECV)
_OPERATION = ("operation_id", "library", "kind", "communicator")
_SUMMED = ("wait_ns", "transfer_ns", "hidden_ns", "exposed_ns")
_GROUP = ("library", "kind", "communicator", "rank_count", "bytes")
CALLS, ORIGINS, ITERATIONS, PHASES, STEPS = "calls", "origins", "iterations", "phases", "steps"
_TIMES = ("call_start_ns", "call_end_ns", "kernel_start_ns", "kernel_end_ns", "start_ns", "end_ns")
_SCHEMAS: dict[str, dict[str, type[pl.DataType]]] = {ITERATIONS: ITERATION_COLUMNS, PHASES: PHASE_COLUMNS}
_ADDED = {"kernels": ("range_id", "thread_id", "api_start_ns"), "nvtx_ranges": ("parent_id", "depth", "path")}
_DIGITS = 19


def compute_operation_times_by_rank(matched_calls: pl.DataFrame) -> pl.DataFrame:
    """Return how long each rank waits and transfers data in each communication operation.

    Args:
        matched_calls: The result of ``match_calls``, with times on the common clock.

    Returns:
        One row per operation and rank, for operations whose members and times are all known: ``operation_id``,
        ``library``, ``kind`` (messages are ``send_recv``), ``communicator``, ``rank``, ``rank_count``, ``call_count``,
        ``bytes`` (of the operation), ``call_start_ns``, ``start_ns``, ``end_ns``, ``last_start_ns`` (of all ranks),
        ``arrival_ns`` (time from the first start to the start of this rank), ``is_last`` (whether this rank started
        last), ``delay_ns`` (for the last rank, the time from the previous start to its start, otherwise 0),
        ``wait_ns``, ``transfer_ns``, ``hidden_ns`` (the time of the kernel in which other kernels ran on the same GPU)
        and ``exposed_ns`` (the remaining time of the kernel). The last two are null without a kernel.
    """
    calls = _add_operation_ids(matched_calls.filter(pl.col("kind") != "unknown"))
    is_known = ((pl.col("status") == MATCHED) & pl.col("start_ns").is_not_null() & pl.col("end_ns").is_not_null()).all()
    calls = calls.filter(is_known.over("operation_id"))
    is_message = pl.col("kind").is_in(MESSAGES)
    sent = pl.col("bytes").filter(pl.col("kind") == "send").sum()
    received = pl.col("bytes").filter(pl.col("kind") == "recv").sum()
    size = pl.when(is_message.any()).then(pl.max_horizontal(sent, received)).otherwise(pl.col("bytes").sum())
    kind = pl.when(is_message).then(pl.lit(SEND_RECV)).otherwise("kind").first()
    facts = [kind.alias("kind"), pl.col("library", "communicator").first(), pl.len().cast(pl.Int64).alias("call_count")]
    known = pl.when(pl.col("bytes").is_not_null().any()).then(size)
    times = [pl.col("call_start_ns", "start_ns").min(), pl.col("end_ns").max(), pl.col("hidden_ns").max()]
    times = [*times, pl.col("kernel_id").first()]
    ranks = calls.group_by("operation_id", "rank", maintain_order=True).agg(*facts, known.alias("bytes"), *times)
    of = "operation_id"
    start, last = pl.col("start_ns"), pl.col("start_ns").max().over(of)
    arrival = start.rank("ordinal").over(of)
    before = start.sort().slice(pl.len() - 2, 1).first().over(of)
    ranks = ranks.with_columns(
        rank_count=pl.len().cast(pl.Int64).over(of),
        bytes=pl.col("bytes").max().over(of),
        last_start_ns=last,
        arrival_ns=start - start.min().over(of),
        is_last=(arrival == pl.len().over(of)) & (pl.len().over(of) > 1),
        wait_ns=pl.min_horizontal(last, "end_ns") - start,
    )
    duration = pl.col("end_ns") - start
    return ranks.with_columns(
        delay_ns=pl.when("is_last").then(start - before).otherwise(0),
        transfer_ns=duration - pl.col("wait_ns"),
        exposed_ns=pl.when(pl.col("kernel_id").is_not_null()).then(duration - pl.col("hidden_ns")),
    ).select(
        *(*_OPERATION, "rank", "rank_count", "call_count", "bytes", "call_start_ns", "start_ns", "end_ns"),
        *("last_start_ns", "arrival_ns"),
        *("is_last", "delay_ns", "wait_ns", "transfer_ns", "hidden_ns", "exposed_ns"),
    )


def _add_operation_ids(calls: pl.DataFrame) -> pl.DataFrame:
    """Add ``operation_id``: the smallest ``collective_id`` of the calls that share kernels.

    Each collective first has its own id as its label. In each round, collectives that share a kernel get the smallest
    of their labels, and each label is replaced with the label of the collective that has this label as its id. Even
    long chains of messages therefore need only a few rounds.
    """
    executed = pl.when(pl.col("kind").is_in(MESSAGES)).then(pl.lit(SEND_RECV)).otherwise("kind")
    shared = pl.struct("rank", "kernel_id", "communicator", executed.alias("executed")).rank("dense")
    shared = pl.when(pl.col("kernel_calls") > 1).then(shared.cast(pl.Int64))
    rows = calls.with_columns(_kernel=shared)
    several = rows.drop_nulls("_kernel").select("_kernel", "collective_id").unique()
    numbers = np.arange(int(calls["collective_id"].to_numpy().max(initial=0)) + 1)
    members, kernels = several["collective_id"].to_numpy(), several["_kernel"].to_numpy()
    labels, before = numbers.copy(), None
    while before is None or (labels != before).any():
        before = labels.copy()
        least = np.full(int(kernels.max(initial=0)) + 1, len(numbers))
        np.minimum.at(least, kernels, labels[members])
        np.minimum.at(labels, members, least[kernels])
        labels = labels[labels]
    return rows.with_columns(operation_id=pl.Series(labels)[calls["collective_id"]]).drop("_kernel")


def compute_waits_by_call(matched_calls: pl.DataFrame, local_calls: pl.DataFrame) -> pl.DataFrame:
    """Return how long each call waits for other ranks, and how much later than half of the ranks it starts.

    Args:
        matched_calls: The result of ``match_calls``, with times on the common clock.
        local_calls: The same rows, with the times of each trace.

    Returns:
        The columns ``trace_rank``, ``process_id``, ``rank``, ``library``, ``kind``, ``name``, ``communicator``,
        ``message_bytes``, ``kernel_id``, ``start_ns`` and ``end_ns`` of ``local_calls``, with ``operation_id``,
        ``wait_ns`` of the operation and ``late_ns``, the time from the median start of all ranks to the start of this
        rank, or 0 if it starts earlier. Both are null if they are unknown.
    """
    numbered = _add_operation_ids(matched_calls)
    times = compute_operation_times_by_rank(matched_calls)
    arrival, of = pl.col("arrival_ns"), "operation_id"
    median = arrival.sort().slice((pl.len() - 1) // 2, 1).first().over(of)
    late = pl.max_horizontal(arrival - median, 0)
    times = times.select("operation_id", "rank", "wait_ns", late_ns=late)
    columns = ("trace_rank", "process_id", "rank", "library", "kind", "name", "communicator", "message_bytes")
    rows = local_calls.select(*columns, "kernel_id", "start_ns", "end_ns", operation_id=numbered["operation_id"])
    return rows.join(times, on=["operation_id", "rank"], how="left", maintain_order="left")


def aggregate_operations(operation_times: pl.DataFrame) -> pl.DataFrame:
    """Return the times and bandwidths of each communication operation.

    An operation is a collective or message, together with all those that share a kernel with it on any rank.

    Args:
        operation_times: The result of ``compute_operation_times_by_rank``.

    Returns:
        One row per operation, in order of start: ``operation_id``, ``library``, ``kind``, ``communicator``,
        ``rank_count``, ``call_count``, ``bytes``, ``start_ns``, ``last_start_ns``, ``end_ns``, ``skew_ns`` (from the
        first to the last start), ``last_rank``, ``time_ns`` (from the last start to the last end), ``wait_ns``,
        ``transfer_ns``, ``hidden_ns``, ``exposed_ns`` (sums over ranks), ``algorithm_gb_per_s`` and ``bus_gb_per_s``.
        Bandwidths are null for operations without a size and for those that take no time.
    """
    rows = operation_times.group_by(_OPERATION, maintain_order=True).agg(
        *_time_sum_exprs(),
        *[pl.col(c).first() for c in ("rank_count", "call_count", "bytes")],
        pl.col("start_ns").min(),
        pl.col("last_start_ns").first(),
        pl.col("end_ns").max(),
        skew_ns=pl.col("arrival_ns").max(),
        last_rank=pl.col("rank").filter("is_last").first(),
        time_ns=pl.col("end_ns").max() - pl.col("last_start_ns").first(),
    )
    rows = rows.with_columns(bandwidth_exprs(pl.col("bytes"), pl.col("time_ns"))).sort("start_ns", "operation_id")
    times = ("start_ns", "last_start_ns", "end_ns", "skew_ns", "last_rank", "time_ns")
    bandwidths = ("algorithm_gb_per_s", "bus_gb_per_s")
    return rows.select(*_OPERATION, "rank_count", "call_count", "bytes", *times, *_SUMMED, *bandwidths)


def bandwidth_exprs(size: pl.Expr, time: pl.Expr) -> list[pl.Expr]:
    """Return expressions for the algorithm and bus bandwidth in GB/s (bytes per ns)."""
    algorithm = pl.when((time > 0) & (size > 0)).then(size / time)
    return [algorithm.alias("algorithm_gb_per_s"), (algorithm * bus_factor_expr()).alias("bus_gb_per_s")]


def bus_factor_expr() -> pl.Expr:
    """Return an expression for the bus bandwidth divided by the algorithm bandwidth.

    The expression reads the columns ``kind`` and ``rank_count``. It is null for kinds that transfer no data.
    """
    n = pl.col("rank_count")
    share = (n - 1) / n
    factor = pl.when(pl.col("kind") == "all_reduce").then(2 * share).when(pl.col("kind").is_in(_HALF)).then(share)
    return factor.when(pl.col("kind").is_in(_WHOLE)).then(1.0)


def summarize_operations(operations: pl.DataFrame) -> pl.DataFrame:
    """Return the total times and bandwidths of operations by library, kind, communicator and size.

    Args:
        operations: The result of ``aggregate_operations``.

    Returns:
        One row per group, largest total time first: ``library``, ``kind``, ``communicator``, ``rank_count``, ``bytes``
        (of one operation), ``count``, ``time_ns``, ``algorithm_gb_per_s`` and ``bus_gb_per_s`` (of the average time, as
        in nccl-tests), ``mean_skew_ns``, ``max_skew_ns``, and the sums over operations and ranks ``wait_ns``,
        ``transfer_ns``, ``hidden_ns``, ``exposed_ns``.
    """
    groups = operations.group_by(_GROUP, maintain_order=True).agg(
        *_time_sum_exprs(),
        count=pl.len().cast(pl.Int64),
        time_ns=pl.col("time_ns").sum(),
        mean_skew_ns=pl.col("skew_ns").mean(),
        max_skew_ns=pl.col("skew_ns").max(),
    )
    groups = groups.with_columns(bandwidth_exprs(pl.col("bytes") * pl.col("count"), pl.col("time_ns")))
    ordered = [*_GROUP, "count", "time_ns", "algorithm_gb_per_s", "bus_gb_per_s", "mean_skew_ns", "max_skew_ns"]
    return groups.select(*ordered, *_SUMMED).sort("time_ns", descending=True, maintain_order=True)


def summarize_arrivals(
    operation_times: pl.DataFrame, by: Sequence[str] = ("library", "kind", "communicator")
) -> pl.DataFrame:
    """Return statistics of how late each rank starts its collective operations.

    Args:
        operation_times: The result of ``compute_operation_times_by_rank``.
        by: Columns to group by in addition to the rank.

    Returns:
        One row per group and rank: the columns ``by``, ``rank``, ``count``, ``last_count`` (operations that this rank
        started last), ``mean_arrival_ns``, ``median_arrival_ns`` and ``max_arrival_ns`` (since the first rank's start),
        ``delay_ns`` (total time from the previous start to the start of this rank, in operations that it started last),
        ``wait_ns``, ``transfer_ns``, ``hidden_ns`` and ``exposed_ns`` (sums).
    """
    arrival = pl.col("arrival_ns")
    groups = operation_times.group_by(*by, "rank").agg(
        *_time_sum_exprs(),
        count=pl.len().cast(pl.Int64),
        last_count=pl.col("is_last").sum().cast(pl.Int64),
        mean_arrival_ns=arrival.mean(),
        median_arrival_ns=arrival.median(),
        max_arrival_ns=arrival.max(),
        delay_ns=pl.col("delay_ns").sum(),
    )
    named = ("count", "last_count", "mean_arrival_ns", "median_arrival_ns", "max_arrival_ns", "delay_ns")
    return groups.select(*by, "rank", *named, *_SUMMED).sort(*by, "rank", nulls_last=True)


def _time_sum_exprs() -> list[pl.Expr]:
    """Return expressions that sum the times of ranks. A sum is null if all of its values are null."""
    return [pl.when(pl.col(c).is_not_null().any()).then(pl.col(c).sum()).alias(c) for c in _SUMMED]


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
        ORIGINS: build_utc_origin_table(frames),
        ITERATIONS: iterations,
        PHASES: phases,
        STEPS: rollup.step_summary.to_frame(),
    }


def read_call_tables(frames: Frames) -> dict[str, pl.DataFrame]:
    """Return the tables of one trace that are needed to align clocks: calls, and the origin in UTC.

    Args:
        frames: Function that returns the declared table with a given name.
    """
    return {CALLS: read_communication_calls(_correlate_frames(frames)), ORIGINS: build_utc_origin_table(frames)}


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


def build_utc_origin_table(frames: Frames) -> pl.DataFrame:
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
        return compute_operation_times_by_rank(self.calls)

    @functools.cached_property
    def waits(self) -> pl.DataFrame:
        """How long each call waits for other ranks, with the times of its trace (see ``compute_waits_by_call``).

        Waits of traces whose clocks are not
        aligned by collectives are unknown, because clocks that are set by a network differ by milliseconds.
        """
        exact = self.clocks.with_columns(offset_ns=pl.when(pl.col("method") != UTC).then("offset_ns"))
        calls = convert_to_common_clock(self._matched_calls, exact, _TIMES, rank_column="trace_rank")
        return compute_waits_by_call(calls, self._matched_calls)

    @functools.cached_property
    def operations(self) -> pl.DataFrame:
        """Times, bandwidths and skew of each communication operation (see ``aggregate_operations``)."""
        return aggregate_operations(self.rank_operations)

    @functools.cached_property
    def summary(self) -> pl.DataFrame:
        """Total times and bandwidths of operations by library, kind, communicator and size."""
        return summarize_operations(self.operations)

    @functools.cached_property
    def arrivals(self) -> pl.DataFrame:
        """Statistics of how late each rank starts its collective operations."""
        return summarize_arrivals(self.rank_operations)

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
