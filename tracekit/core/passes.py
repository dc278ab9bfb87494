"""Bounds of the passes of a loop, process by process, and the work that belongs to none of them.

A range that runs once a pass, the *key*, delimits the passes. Where the key begins them, a pass lasts from the start of
its key to the start of the next one. Work between two keys is part of the loop if its op also runs between most of the
others; at work that is not, such as an evaluation, the pass ends. The last pass has no next key and ends with its last
work that is part of the loop. Where the key ends the passes, all this holds with time reversed, except that nothing
cuts the time between two keys, and that all that comes before an only key is part of its pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator

Delimits = Literal["ends", "begins"]
BOUNDS = {"process_id": pl.Int64, "iteration": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64}
_SLOT = ["process_id", "slot"]


def passes(instances: pl.DataFrame, key: int, delimits: Delimits) -> pl.DataFrame:
    """Find the passes of each process.

    Args:
        instances: One row per op instance, in order of start: ``process_id``, ``thread_id``, ``start_ns``, ``end_ns``,
            ``op``, ``parent`` (row of this frame), ``works`` (whether it is a range, or did something on a GPU).
        key: Number of the op that delimits passes.
        delimits: Whether the key begins or ends a pass.

    Returns:
        One row per process and pass, in order: ``process_id``, ``iteration`` (from 0 in each process), ``start_ns``,
        ``end_ns``. The passes of one process do not overlap.
    """
    if delimits == "begins":
        return _begun(instances, key, cuts=True)
    found = _mirrored(_begun(_mirrored(instances), key, cuts=False))
    last = pl.col("iteration").max().over("process_id")
    return found.with_columns(last - pl.col("iteration")).sort("process_id", "iteration")


def _mirrored(frame: pl.DataFrame) -> pl.DataFrame:
    """Reverse time: n rows in, n rows out in their order."""
    return frame.with_columns(start_ns=-pl.col("end_ns"), end_ns=-pl.col("start_ns"))


def _begun(instances: pl.DataFrame, key: int, *, cuts: bool) -> pl.DataFrame:
    """Find passes that begin with their key; with ``cuts``, work that is not part of the loop ends a pass."""
    keys = _keys(instances.filter(pl.col("op") == key))
    between = _between(instances, keys)
    looped = _looped(between, keys) if cuts or (keys["slot"] > 0).any() else between["op"].unique()
    others = between.filter(pl.col("works") & ~pl.col("op").is_in(looped.implode()))
    first_other = others.group_by(_SLOT).agg(other=pl.col("start_ns").min())
    found = keys.join(first_other, on=_SLOT, how="left", maintain_order="left", nulls_equal=True)
    found = found.with_columns(other=pl.col("other") if cuts else pl.lit(None, pl.Int64))
    within = between.filter(pl.col("op").is_in(looped.implode())).join(found, on=_SLOT, nulls_equal=True)
    within = within.filter((pl.col("end_ns") <= pl.col("other")).fill_null(value=True))
    found = found.join(within.group_by(_SLOT).agg(loop=pl.col("end_ns").max()), on=_SLOT, how="left", nulls_equal=True)
    last = pl.max_horizontal("end_ns", "loop")
    end = pl.when(pl.col("next").is_null()).then(last).otherwise(pl.coalesce("other", "next"))
    made = found.select("process_id", "slot", "start_ns", end)
    return made.rename({"slot": "iteration"}).cast(BOUNDS).sort("process_id", "iteration")  # type: ignore[arg-type]


def _keys(mine: pl.DataFrame) -> pl.DataFrame:
    """Number the keys of each process: ``process_id``, ``thread_id``, ``slot``, times, ``next`` (start of the next)."""
    ordered = mine.sort("process_id", "start_ns", "end_ns", maintain_order=True)
    following = pl.col("start_ns").shift(-1).over("process_id")
    keys = ordered.select(
        *["process_id", "thread_id", "start_ns", "end_ns"],
        slot=pl.int_range(pl.len(), dtype=pl.Int64).over("process_id"),
        next=following,
    )
    return keys.with_columns(end_ns=pl.min_horizontal("end_ns", "next"))


def _between(instances: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
    """Find the outermost work beside the keys, on their threads: columns of ``instances`` and ``slot``.

    The slot is the number of the key before it, -1 before the first. What lies around a key has no slot.
    """
    rows = instances.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    rows = rows.join(keys.select("process_id", "thread_id").unique(), on=["process_id", "thread_id"], nulls_equal=True)
    placed = pl.concat([_placed(rows, own) for own in _by_process(keys)]).sort("row")
    return placed.filter(pl.col("parent").is_null() | ~pl.col("parent").is_in(placed["row"].implode()))


def _placed(rows: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
    """Keep the work of one process that lies between its keys, with ``slot``."""
    mine = rows.filter(pl.col("process_id").eq_missing(pl.lit(keys["process_id"][0], pl.Int64)))
    slot = keys["start_ns"].search_sorted(mine["start_ns"], side="right").cast(pl.Int64) - 1
    before = pl.DataFrame({"slot": slot}).join(keys.select("slot", done="end_ns", next="next"), on="slot", how="left")
    before = before.with_columns(next=pl.when(pl.col("slot") < 0).then(keys["start_ns"][0]).otherwise("next"))
    found = mine.hstack(before)
    beside = (pl.col("start_ns") >= pl.col("done")).fill_null(value=True)
    beside &= (pl.col("end_ns") <= pl.col("next")).fill_null(value=True)
    return found.filter(beside).drop("done", "next")


def _by_process(frame: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Split a frame that is sorted by process."""
    yield from (part for _, part in frame.group_by("process_id", maintain_order=True))


def _looped(between: pl.DataFrame, keys: pl.DataFrame) -> pl.Series:
    """Find the ops that are part of the loop: there in most of the slots before, between and after the keys."""
    slots = keys.height + keys["process_id"].n_unique()
    counts = between.unique([*_SLOT, "op"]).group_by("op").len("slots")
    return counts.filter(2 * pl.col("slots") > slots)["op"]
