"""Compare iterations across ranks: their spread, and the rank and phase that lost time.

A rank loses time in a phase of an iteration if it spends more time in the phase than the median of the other ranks. The
rank is the straggler of the iteration if the lost time is significant, if other ranks had to wait for this rank, and if
no other rank lost more. The lost time is significant if it exceeds a minimum share of an iteration and is much larger
than its variation from one iteration to the next. A rank can therefore be a straggler in all iterations or in only a
few.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit.core.communication.iterations import select_rows_in_iterations

MIN_LOST_SHARE = 0.1
"""Smallest time that a straggler loses, as a share of the median duration of an iteration."""
MIN_DEVIATIONS = 5
"""Smallest time that a straggler loses, in standard deviations of the lost time of this rank in the same phase."""
MIN_DELAY_SHARE = 0.5
"""Smallest delay with which a straggler starts operations after all other ranks, as a share of its lost time."""
INNER_SHARE = 0.8
"""Smallest share of the lost time of a phase at which an inner range is reported instead of the phase."""
_NORMAL = 1.4826
"""Standard deviation of a normal distribution divided by its median absolute deviation."""
_PHASE = ("iteration", "path")
_FLAGS = ("is_warm_up", "is_aggregated")


def find_iteration_shifts(iterations: pl.DataFrame, operation_times: pl.DataFrame) -> dict[int, int]:
    """Return the number to add to the iteration numbers of each rank to make them agree across ranks.

    Captures may begin in different iterations. Iterations of two ranks correspond if they contain the same operations.

    Args:
        iterations: ``rank``, ``iteration``, ``start_ns``, ``end_ns`` on the common clock.
        operation_times: The result of ``compute_operation_times_by_rank``.
    """
    numbered = select_operations_in_iterations(iterations, operation_times).select("operation_id", "rank", "iteration")
    order = iterations["rank"].unique().sort().to_list()
    shifts = dict.fromkeys(order, 0)
    if order:
        reference = numbered.filter(rank=order[0]).select("operation_id", first="iteration")
        shared = numbered.filter(pl.col("rank") != order[0]).join(reference, on="operation_id")
        middle = (pl.col("first") - pl.col("iteration")).median().round().cast(pl.Int64)
        shifts |= dict(shared.group_by("rank").agg(middle).iter_rows())
    return shifts


def select_operations_in_iterations(iterations: pl.DataFrame, operation_times: pl.DataFrame) -> pl.DataFrame:
    """Return the operations that each rank started during an iteration, with the number of the iteration.

    Args:
        iterations: ``rank``, ``iteration``, ``start_ns``, ``end_ns`` on the common clock.
        operation_times: The result of ``compute_operation_times_by_rank``.

    Returns:
        One row per operation and rank: ``operation_id``, ``rank``, ``delay_ns``, ``wait_ns``, ``start_ns`` (start of
        the call), and the columns that ``select_rows_in_iterations`` adds.
    """
    calls = operation_times.select("operation_id", "rank", "delay_ns", "wait_ns", start_ns="call_start_ns").drop_nulls(
        "start_ns"
    )
    return select_rows_in_iterations(calls, iterations, key_column="rank")


def compute_lost_times(phases: pl.DataFrame) -> pl.DataFrame:
    """Return how much longer each rank takes than the other ranks in each phase of each iteration.

    Args:
        phases: ``rank``, ``iteration``, ``path``, ``cpu_ns``, ``gpu_ns``. A missing phase of a rank counts as 0 ns.

    Returns:
        The rows of ``phases`` with ``cpu_lost_ns`` and ``gpu_lost_ns``: the time of the rank minus the median time of
        the other ranks in the same phase and iteration. They are null if there are no other ranks.
    """
    present = pl.col("rank").n_unique().over("iteration").cast(pl.Int64)
    rows = phases.with_columns(_ranks=present)
    for column in ("cpu", "gpu"):
        rows = rows.sort(*_PHASE, f"{column}_ns")
        position = pl.int_range(pl.len()).over(_PHASE) + pl.col("_ranks") - pl.len().over(_PHASE).cast(pl.Int64)
        rows = rows.with_columns(_position=position, _row=pl.int_range(pl.len()))
        rows = rows.with_columns(
            (pl.col(f"{column}_ns") - _compute_medians_of_other_ranks(rows, f"{column}_ns")).alias(f"{column}_lost_ns")
        )
    return rows.drop("_ranks", "_position", "_row")


def _compute_medians_of_other_ranks(rows: pl.DataFrame, column: str) -> pl.Series:
    """Return, for each row, the median of a column over all ranks except the rank of the row.

    The rows must be sorted by phase and value. Ranks without the phase have the value 0. The column ``_position`` is
    the position of a row among the values of all ranks.
    """
    values, position, number, row = (rows[c].to_numpy() for c in (column, "_position", "_ranks", "_row"))
    others = number - 1
    middle = []
    for index in ((others - 1) // 2, others // 2):
        target = np.clip(index + (position <= index), 0, None)
        at = row - position + target
        first_present = row - position + (number - rows.select(pl.len().over(_PHASE)).to_series().to_numpy())
        middle.append(np.where(at >= first_present, values[np.clip(at, 0, len(values) - 1)], 0))
    median = pl.Series((middle[0] + middle[1]) // 2, dtype=pl.Int64)
    return (
        pl.DataFrame({"median": median, "others": others})
        .select(pl.when(pl.col("others") > 0).then("median"))
        .to_series()
    )


def find_stragglers(iterations: pl.DataFrame, phases: pl.DataFrame, operation_times: pl.DataFrame) -> pl.DataFrame:
    """Return the straggler of each iteration that has one.

    Args:
        iterations: ``rank``, ``iteration``, ``start_ns``, ``end_ns`` on the common clock.
        phases: ``rank``, ``iteration``, ``path``, ``cpu_ns``, ``gpu_ns``.
        operation_times: The result of ``compute_operation_times_by_rank``. In iterations without operations, it is
            unknown whether other ranks waited, so only the lost time is considered.

    Returns:
        One row per iteration with a straggler: ``iteration``, ``straggler`` (its rank), ``phase`` (the path),
        ``lost_ns``, ``lost_on`` (CPU or GPU), ``delay_ns`` (by how much the straggler started operations of this
        iteration later than all other ranks, or null if the iteration has no operations).
    """
    typical = iterations.select((pl.col("end_ns") - pl.col("start_ns")).median()).item() or 0
    lost = pl.max_horizontal("cpu_lost_ns", "gpu_lost_ns")
    rows = (
        compute_lost_times(phases)
        .with_columns(lost_ns=lost, lost_on=_processor_with_larger_loss_expr())
        .drop_nulls("lost_ns")
    )
    of = ["rank", "path"]
    deviation = (pl.col("lost_ns") - pl.col("lost_ns").median().over(of)).abs().median().over(of) * _NORMAL
    delays = (
        select_operations_in_iterations(iterations, operation_times)
        .group_by("rank", "iteration")
        .agg(pl.col("delay_ns").sum())
    )
    rows = rows.with_columns(_deviation=deviation).join(
        delays, on=["rank", "iteration"], how="left", maintain_order="left"
    )
    is_large = (pl.col("lost_ns") >= MIN_LOST_SHARE * typical) & (pl.col("lost_ns") > 0)
    is_cause = (pl.col("delay_ns") >= MIN_DELAY_SHARE * pl.col("lost_ns")).fill_null(value=True)
    significant = rows.filter(is_large & is_cause, pl.col("lost_ns") > MIN_DEVIATIONS * pl.col("_deviation"))
    order = [pl.col("path") == "", pl.col("lost_ns") * -1, pl.col("rank"), pl.col("path")]
    worst = significant.sort("iteration", *order).unique("iteration", keep="first", maintain_order=True)
    outer = worst.select("iteration", "rank", _path="path", _lost="lost_ns")
    inner = significant.join(outer, on=["iteration", "rank"])
    prefix = pl.col("_path") + "/"
    is_inner = (pl.col("path") == pl.col("_path")) | (pl.col("path").str.starts_with(prefix) & (pl.col("_path") != ""))
    inner = inner.filter(is_inner & (pl.col("lost_ns") >= INNER_SHARE * pl.col("_lost")))
    depth = pl.col("path").str.len_bytes()
    named = inner.sort("iteration", depth, pl.col("path"), descending=[False, True, False])
    named = named.unique("iteration", keep="first", maintain_order=True)
    return named.select("iteration", "lost_ns", "lost_on", "delay_ns", straggler="rank", phase="path").select(
        *("iteration", "straggler", "phase", "lost_ns", "lost_on", "delay_ns")
    )


def _processor_with_larger_loss_expr() -> pl.Expr:
    """Return an expression for the processor on which a rank lost more time in a phase: "CPU" or "GPU"."""
    return pl.when(pl.col("gpu_lost_ns") > pl.col("cpu_lost_ns")).then(pl.lit("GPU")).otherwise(pl.lit("CPU"))


def compute_iteration_spread(
    iterations: pl.DataFrame, phases: pl.DataFrame, operation_times: pl.DataFrame
) -> pl.DataFrame:
    """Return the differences between the ranks in each iteration, and the straggler of the iteration.

    Args:
        iterations: ``rank``, ``iteration``, ``start_ns``, ``end_ns`` on the common clock, ``is_warm_up`` and
            ``is_aggregated``.
        phases: ``rank``, ``iteration``, ``path``, ``cpu_ns``, ``gpu_ns``.
        operation_times: The result of ``compute_operation_times_by_rank``.

    Returns:
        One row per iteration: ``iteration``, ``rank_count``, ``start_ns`` (of the first rank), ``end_ns`` (of the last
        rank), ``start_spread_ns`` (from the first to the last start), ``min_ns``, ``median_ns`` and ``max_ns`` (of the
        durations), ``spread_ns`` (longest minus shortest duration), ``slowest_rank``, ``wait_ns`` (total time for
        which ranks waited in operations, or null without operations), the columns of ``find_stragglers``, which are
        null in iterations without a straggler, ``is_warm_up`` and ``is_aggregated``. Iterations that are not aggregated
        have no straggler, and do not count for the stragglers of other iterations. ``slowest_rank`` is the rank with
        the longest duration without the time for which it waited in operations, because a rank that waits for a slow
        rank takes as long as the slow one.
    """
    duration = pl.col("end_ns") - pl.col("start_ns")
    operations = select_operations_in_iterations(iterations, operation_times)
    waits = operations.group_by("iteration").agg(pl.col("wait_ns").sum())
    waits_by_rank = operations.group_by("iteration", "rank").agg(_waiting=pl.col("wait_ns").sum())
    timed = iterations.with_columns(_duration=duration).join(waits_by_rank, on=["iteration", "rank"], how="left")
    rows = timed.sort("iteration", "rank").group_by("iteration", maintain_order=True)
    length = pl.col("_duration")
    own = length - pl.col("_waiting").fill_null(0)
    spread = rows.agg(
        rank_count=pl.len().cast(pl.Int64),
        start_ns=pl.col("start_ns").min(),
        end_ns=pl.col("end_ns").max(),
        start_spread_ns=pl.col("start_ns").max() - pl.col("start_ns").min(),
        min_ns=length.min(),
        median_ns=length.median(),
        max_ns=length.max(),
        spread_ns=length.max() - length.min(),
        slowest_rank=pl.col("rank").get(own.arg_max()),
        is_warm_up=pl.col("is_warm_up").any(),
        is_aggregated=pl.col("is_aggregated").all(),
    )
    spread = spread.join(waits, on="iteration", how="left", maintain_order="left")
    steady = iterations.filter("is_aggregated")
    stragglers = find_stragglers(steady, phases.join(steady, on="iteration", how="semi"), operation_times)
    joined: pl.DataFrame = spread.join(stragglers, on="iteration", how="left", maintain_order="left")
    return joined.select(pl.exclude(_FLAGS), *_FLAGS)


def summarize_stragglers(spread: pl.DataFrame) -> pl.DataFrame:
    """Return the phases in which ranks were stragglers, with the time that the ranks lost in them.

    Args:
        spread: The result of ``compute_iteration_spread``.

    Returns:
        One row per rank and phase, largest loss first: ``straggler``, ``phase``, ``lost_on``, ``iteration_count``,
        ``lost_ns`` (sum), ``median_lost_ns``, ``delay_ns`` (sum, or null without operations), ``iterations`` (their
        numbers, joined by ", ").
    """
    by = ["straggler", "phase", "lost_on"]
    rows = spread.drop_nulls("straggler").group_by(by, maintain_order=True)
    delay = pl.when(pl.col("delay_ns").is_not_null().any()).then(pl.col("delay_ns").sum())
    summary = rows.agg(
        iteration_count=pl.len().cast(pl.Int64),
        lost_ns=pl.col("lost_ns").sum(),
        median_lost_ns=pl.col("lost_ns").median(),
        delay_ns=delay,
        iterations=pl.col("iteration").cast(pl.String).str.join(", "),
    )
    return summary.sort("lost_ns", descending=True, maintain_order=True)
