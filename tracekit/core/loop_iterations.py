"""Find the iterations of a loop in each process.

The iterations are delimited by *keys*, which are the instances of an op that runs once per iteration (the key op). If a
key starts an iteration, the iteration lasts until the next key starts. It ends earlier if an op runs that is not part
of the loop, such as an evaluation. An op is part of the loop if it runs in most of the *slots*, which are the times
before, between and after the keys of a process. No key follows the last iteration, so that iteration ends with its last
op that is part of the loop.

If a key ends an iteration, the same rules apply with time reversed, with two exceptions. Between two keys, an iteration
is not shortened by ops that are not part of the loop. If no process has more than one key, all ops before a key are
part of its iteration.
"""

from __future__ import annotations

from typing import Literal

import polars as pl

from tracekit.core.relations import THREAD

KeyPosition = Literal["start", "end"]
BOUNDS = {"process_id": pl.Int64, "iteration": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64}
_SLOT = ["process_id", "slot"]


def find_loop_iterations(instances: pl.DataFrame, is_key: pl.Series, key_position: KeyPosition) -> pl.DataFrame:
    """Return the iterations of the loop in each process.

    Args:
        instances: One row per op instance, in order of start: ``process_id``, ``thread_id``, ``start_ns``, ``end_ns``,
            ``op``, ``parent`` (row number in this frame), ``ends_loop`` (whether the instance ends an iteration early
            if its op is not part of the loop).
        is_key: Whether each instance delimits iterations. These instances are *keys*.
        key_position: Whether the key op is at the start or at the end of an iteration.

    Returns:
        One row per process and iteration, sorted by both. The columns are ``process_id``, ``iteration`` (from 0 in each
        process), ``start_ns`` and ``end_ns``. The iterations of one process do not overlap.
    """
    if key_position == "start":
        return _find_iterations_starting_with_key_op(instances, is_key, ends_early=True)
    mirrored = _find_iterations_starting_with_key_op(_reverse_time(instances), is_key, ends_early=False)
    last = pl.col("iteration").max().over("process_id")
    return _reverse_time(mirrored).with_columns(last - pl.col("iteration")).sort("process_id", "iteration")


def _reverse_time(frame: pl.DataFrame) -> pl.DataFrame:
    """Negate the times of intervals, which reverses the direction of time. The order of the rows does not change."""
    return frame.with_columns(start_ns=-pl.col("end_ns"), end_ns=-pl.col("start_ns"))


def _find_iterations_starting_with_key_op(
    instances: pl.DataFrame, is_key: pl.Series, *, ends_early: bool
) -> pl.DataFrame:
    """Return the iterations of a loop, each of which starts with a key.

    If ``ends_early`` is true, an iteration ends at the first op that is not part of the loop.
    """
    keys = _assign_key_op_numbers(instances.filter(is_key))
    between = _find_outermost_instances_between_key_ops(instances, keys)
    looped = _find_loop_ops(between, keys) if ends_early or (keys["slot"] > 0).any() else between["op"].unique()
    others = between.filter(pl.col("ends_loop") & ~pl.col("op").is_in(looped.implode()))
    first_other = others.group_by(_SLOT).agg(other=pl.col("start_ns").min())
    slots = keys.join(first_other, on=_SLOT, how="left", maintain_order="left", nulls_equal=True)
    slots = slots.with_columns(other=pl.col("other") if ends_early else pl.lit(None, pl.Int64))
    within = between.filter(pl.col("op").is_in(looped.implode())).join(slots, on=_SLOT, nulls_equal=True)
    within = within.filter((pl.col("end_ns") <= pl.col("other")).fill_null(value=True))
    slots = slots.join(within.group_by(_SLOT).agg(loop=pl.col("end_ns").max()), on=_SLOT, how="left", nulls_equal=True)
    last = pl.max_horizontal("end_ns", "loop")
    end = pl.when(pl.col("next").is_null()).then(last).otherwise(pl.coalesce("other", "next"))
    bounds = slots.select("process_id", "slot", "start_ns", end)
    return bounds.rename({"slot": "iteration"}).cast(BOUNDS).sort("process_id", "iteration")  # type: ignore[arg-type]


def _assign_key_op_numbers(keys: pl.DataFrame) -> pl.DataFrame:
    """Number the instances of the key op in each process from 0, in order of time.

    The columns are ``process_id``, ``thread_id``, ``start_ns``, ``end_ns``, ``slot`` (the number) and ``next`` (start
    of the next instance of the key op).
    """
    ordered = keys.sort("process_id", "start_ns", "end_ns", maintain_order=True)
    following = pl.col("start_ns").shift(-1).over("process_id")
    numbered = ordered.select(
        *[*THREAD, "start_ns", "end_ns"],
        slot=pl.int_range(pl.len(), dtype=pl.Int64).over("process_id"),
        next=following,
    )
    return numbered.with_columns(end_ns=pl.min_horizontal("end_ns", "next"))


def _find_outermost_instances_between_key_ops(instances: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
    """Return the outermost op instances between the instances of the key op, on the threads that run the key op.

    The columns are those of ``instances``, ``row`` (row number in ``instances``) and ``slot``, which is the number of
    the preceding instance of the key op, or -1 if there is none.
    """
    rows = instances.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    rows = rows.join(keys.select(THREAD).unique(), on=THREAD, nulls_equal=True)
    by_process = keys.group_by("process_id", maintain_order=True)
    between = pl.concat([_find_instances_between_key_ops(rows, process_keys) for _, process_keys in by_process]).sort(
        "row"
    )
    return between.filter(pl.col("parent").is_null() | ~pl.col("parent").is_in(between["row"].implode()))


def _find_instances_between_key_ops(rows: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
    """Return the op instances of one process that overlap none of its instances of the key op.

    The column ``slot`` is added: the number of the preceding instance of the key op, or -1 if there is none.
    """
    instances = rows.filter(pl.col("process_id").eq_missing(pl.lit(keys["process_id"][0], pl.Int64)))
    slot = keys["start_ns"].search_sorted(instances["start_ns"], side="right").cast(pl.Int64) - 1
    key_bounds = keys.select("slot", key_end="end_ns", next="next")
    bounds = pl.DataFrame({"slot": slot}).join(key_bounds, on="slot", how="left")
    bounds = bounds.with_columns(next=pl.when(pl.col("slot") < 0).then(keys["start_ns"][0]).otherwise("next"))
    beside = (pl.col("start_ns") >= pl.col("key_end")).fill_null(value=True)
    beside &= (pl.col("end_ns") <= pl.col("next")).fill_null(value=True)
    return instances.hstack(bounds).filter(beside).drop("key_end", "next")


def _find_loop_ops(instances_between: pl.DataFrame, keys: pl.DataFrame) -> pl.Series:
    """Return the ops that are part of the loop.

    The instances of the key op divide the time of each process into *slots*: the time before the first instance, the
    times between consecutive instances, and the time after the last one. An op is part of the loop if it runs in more
    than half of all slots.

    Args:
        instances_between: The op instances outside of the instances of the key op, with their ``slot``.
        keys: The instances of the key op.
    """
    slots = keys.height + keys["process_id"].n_unique()
    counts = instances_between.unique([*_SLOT, "op"]).group_by("op").len("slots")
    return counts.filter(2 * pl.col("slots") > slots)["op"]
