"""Find the passes of a loop in each process.

A range that runs once per pass, the *key*, delimits the passes. If the key begins them, a pass lasts from the start of
its key to the start of the next key. Ops between two keys are part of the loop if they also run between most of the
other keys. The pass ends early at the first op that is not part of the loop, such as an evaluation. The last pass has
no next key, so it ends with its last op that is part of the loop.

If the key ends the passes, the same rules apply with time reversed. There are two exceptions: a pass never ends between
two keys, and everything before a single key is part of its pass.
"""

from __future__ import annotations

from typing import Literal

import polars as pl

Delimits = Literal["ends", "begins"]
BOUNDS = {"process_id": pl.Int64, "iteration": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64}
_SLOT = ["process_id", "slot"]


def passes(instances: pl.DataFrame, key: int, delimits: Delimits) -> pl.DataFrame:
    """Return the passes of each process.

    Args:
        instances: One row per op instance, in order of start: ``process_id``, ``thread_id``, ``start_ns``, ``end_ns``,
            ``op``, ``parent`` (row number in this frame), ``has_work`` (whether it is a range or has GPU activities).
        key: Number of the op that delimits passes.
        delimits: Whether the key begins or ends a pass.

    Returns:
        One row per process and pass, in order: ``process_id``, ``iteration`` (from 0 in each process), ``start_ns``,
        ``end_ns``. The passes of one process do not overlap.
    """
    if delimits == "begins":
        return _passes_begun_by_key(instances, key, ends_early=True)
    mirrored = _passes_begun_by_key(_time_reversed(instances), key, ends_early=False)
    last = pl.col("iteration").max().over("process_id")
    return _time_reversed(mirrored).with_columns(last - pl.col("iteration")).sort("process_id", "iteration")


def _time_reversed(frame: pl.DataFrame) -> pl.DataFrame:
    """Reverse the direction of time in a frame of intervals. The order of the rows does not change."""
    return frame.with_columns(start_ns=-pl.col("end_ns"), end_ns=-pl.col("start_ns"))


def _passes_begun_by_key(instances: pl.DataFrame, key: int, *, ends_early: bool) -> pl.DataFrame:
    """Return passes that begin with their key.

    With ``ends_early``, a pass ends at the first op that is not part of the loop.
    """
    keys = _numbered_keys(instances.filter(pl.col("op") == key))
    between = _work_between_keys(instances, keys)
    looped = _ops_of_loop(between, keys) if ends_early or (keys["slot"] > 0).any() else between["op"].unique()
    others = between.filter(pl.col("has_work") & ~pl.col("op").is_in(looped.implode()))
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


def _numbered_keys(keys: pl.DataFrame) -> pl.DataFrame:
    """Number the keys of each process, in order of time.

    The columns are ``process_id``, ``thread_id``, ``start_ns``, ``end_ns``, ``slot`` (the number of the key) and
    ``next`` (start of the next key).
    """
    ordered = keys.sort("process_id", "start_ns", "end_ns", maintain_order=True)
    following = pl.col("start_ns").shift(-1).over("process_id")
    numbered = ordered.select(
        *["process_id", "thread_id", "start_ns", "end_ns"],
        slot=pl.int_range(pl.len(), dtype=pl.Int64).over("process_id"),
        next=following,
    )
    return numbered.with_columns(end_ns=pl.min_horizontal("end_ns", "next"))


def _work_between_keys(instances: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
    """Return the outermost instances between keys on the threads of the keys: columns of ``instances`` and ``slot``.

    The slot is the number of the preceding key. It is -1 before the first key. Instances that contain a key are
    omitted.
    """
    rows = instances.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    rows = rows.join(keys.select("process_id", "thread_id").unique(), on=["process_id", "thread_id"], nulls_equal=True)
    by_process = keys.group_by("process_id", maintain_order=True)
    between = pl.concat([_with_slot(rows, process_keys) for _, process_keys in by_process]).sort("row")
    return between.filter(pl.col("parent").is_null() | ~pl.col("parent").is_in(between["row"].implode()))


def _with_slot(rows: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
    """Return the instances of one process that lie between its keys, with ``slot``, the number of the preceding key."""
    instances = rows.filter(pl.col("process_id").eq_missing(pl.lit(keys["process_id"][0], pl.Int64)))
    slot = keys["start_ns"].search_sorted(instances["start_ns"], side="right").cast(pl.Int64) - 1
    key_bounds = keys.select("slot", key_end="end_ns", next="next")
    bounds = pl.DataFrame({"slot": slot}).join(key_bounds, on="slot", how="left")
    bounds = bounds.with_columns(next=pl.when(pl.col("slot") < 0).then(keys["start_ns"][0]).otherwise("next"))
    beside = (pl.col("start_ns") >= pl.col("key_end")).fill_null(value=True)
    beside &= (pl.col("end_ns") <= pl.col("next")).fill_null(value=True)
    return instances.hstack(bounds).filter(beside).drop("key_end", "next")


def _ops_of_loop(between: pl.DataFrame, keys: pl.DataFrame) -> pl.Series:
    """Return the ops that are part of the loop, which run in most of the slots before, between and after the keys."""
    slots = keys.height + keys["process_id"].n_unique()
    counts = between.unique([*_SLOT, "op"]).group_by("op").len("slots")
    return counts.filter(2 * pl.col("slots") > slots)["op"]
