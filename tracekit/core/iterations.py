"""Iterations: where one pass of a loop ends and the next begins.

A *key op* delimits them. The op of the backward pass, and any op named as key in a capture that has such ops, ends an
iteration: the first one begins at 0, what is left after the last is one more. Where the dialect has no such op, the key
is a range that repeats, and begins an iteration: the first one begins with the first op, the last one ends with the
last.

An instance belongs to the iteration in which it ends: ``start < end_ns <= end``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import polars as pl

from tracekit.core.trees import ELLIPSIS
from tracekit.errors import TracekitError

if TYPE_CHECKING:
    from tracekit.core.ops import Ops

Delimits = Literal["ends", "begins"]
_TWO = 2


@dataclass(frozen=True, slots=True)
class Iterations:
    """The iterations of a capture.

    Attributes:
        frame: One row an iteration: ``iteration`` (from 0), ``start_ns``, ``end_ns``, ``aggregated``.
        key: Name of the key op, or what was asked for; "" if there is none.
        found: Whether there is such an op.
    """

    frame: pl.DataFrame
    key: str
    found: bool

    @property
    def chosen(self) -> pl.DataFrame:
        """The iterations that are aggregated."""
        return self.frame.filter("aggregated")

    @property
    def first(self) -> int:
        """Number of the first aggregated iteration."""
        return int(self.chosen["iteration"][0])

    @property
    def last(self) -> int:
        """Number of the last aggregated iteration."""
        return int(self.chosen["iteration"][-1])

    @property
    def start_ns(self) -> int:
        """Start of the first aggregated iteration."""
        return int(self.chosen["start_ns"][0])

    @property
    def end_ns(self) -> int:
        """End of the last aggregated iteration."""
        return int(self.chosen["end_ns"][-1])

    def of(self, ends: pl.Series) -> pl.Series:
        """Give the aggregated iteration that each instance belongs to: n ends in, n numbers out, null for none."""
        at = self.frame["end_ns"].search_sorted(ends, side="left").cast(pl.Int64)
        known = (at < self.frame.height) & (ends > self.frame["start_ns"][0])
        at = at.zip_with(known, pl.repeat(None, len(at), dtype=pl.Int64, eager=True))
        chosen = self.frame["aggregated"].gather(at).fill_null(value=False)
        return at.zip_with(chosen, pl.repeat(None, len(at), dtype=pl.Int64, eager=True))


def find(ops: Ops, *, key_op: str | None = None, span: tuple[int | None, int | None] | None = None) -> Iterations:
    """Find the iterations of a capture.

    Args:
        ops: Its ops.
        key_op: Id or name of an op; None takes the dialect's own.
        span: First and last iteration to aggregate, both included; those beyond the last one are the last one.

    Raises:
        TracekitError: The span ends before it begins.
    """
    delimits: Delimits = "ends" if ops.dialect.key_op == "backward" else "begins"
    row = _key(ops, key_op)
    ends = ops.instances["end_ns"].max()
    last = ends if isinstance(ends, int) else 0
    key = key_op or ""
    if row is None:
        bounds = [0, last]
    else:
        key = key_op or str(ops.ops["op_name"][row])
        mine = ops.instances.filter(pl.col("op") == row)
        bounds = _ended(mine, last) if delimits == "ends" else _begun(mine, ops.instances, last)
    first, stop = _clamped(span, len(bounds) - 2)
    number = pl.int_range(pl.len())
    frame = pl.DataFrame({"start_ns": bounds[:-1], "end_ns": bounds[1:]}, schema=dict.fromkeys(_TIMES, pl.Int64))
    frame = frame.select(number.alias("iteration"), *_TIMES, aggregated=number.is_between(first, stop))
    return Iterations(frame, key, row is not None)


_TIMES = ("start_ns", "end_ns")


def _clamped(span: tuple[int | None, int | None] | None, last: int) -> tuple[int, int]:
    first, stop = span or (None, None)
    first, stop = first or 0, last if stop is None else stop
    if first > stop or first < 0:
        raise TracekitError(f"iterations {first} to {stop} are none", hint=f"give A:B with 0 <= A <= B <= {last}")
    return min(first, last), min(stop, last)


def _key(ops: Ops, key_op: str | None) -> int | None:
    """Find the row of the key op."""
    rows = ops.ops.with_row_index("row")
    if key_op:
        named = [rows.filter(pl.col(c).cast(pl.String) == key_op)["row"] for c in ("op_id", "op_name")]
        return next((int(n[0]) for n in named if len(n)), None)
    if ops.dialect.key_op == "backward":
        ending = rows.filter(pl.col("ends_pass") & (pl.col("op_type").cast(pl.String) == "backward"))
        ending = ending.sort("instance_count", "op_id", descending=[True, False])
        return int(ending["row"][0]) if ending.height else None
    return _repeated(ops, rows)


def _repeated(ops: Ops, rows: pl.DataFrame) -> int | None:
    """Find the op that took longest of those that ran more than once and forward; of equal ones the outermost.

    What stands for all ranges that are too deep for a path of their own is no one op, and none of them.
    """
    lasted = ops.instances.group_by("op").agg(total=(pl.col("end_ns") - pl.col("start_ns")).sum())
    found = rows.filter(
        pl.col("associated")
        & (pl.col("instance_count") > 1)
        & (pl.col("direction").cast(pl.String) == "bprop").fill_null(value=False).not_()
        & ~pl.col("op_name").cast(pl.String).str.ends_with(f"/{ELLIPSIS}")
    )
    found = found.with_columns(pl.col("row").cast(pl.Int64)).join(lasted, left_on="row", right_on="op")
    depth = pl.col("op_name").cast(pl.String).str.count_matches("/", literal=True)
    found = found.sort(pl.col("total") * -1, depth, "op_id")
    return int(found["row"][0]) if found.height else None


def _ended(mine: pl.DataFrame, last: int) -> list[int]:
    """Cut where key ops end: 0, the cuts, and the end of the capture if there is anything after them."""
    counts = mine.group_by("process_id").len()["len"]
    sizes = counts.unique().sort().to_list()
    if len(counts) > 1 and len(sizes) == 1:
        cuts = _nth(mine, "end_ns").group_by("nth").agg(pl.col("end_ns").max())["end_ns"]
    elif len(counts) > 1 and len(sizes) == _TWO and (counts == sizes[1]).sum() == 1:
        cuts = _paired(mine, sizes[1])
    else:
        cuts = mine["end_ns"]
    bounds = [0, *(c for c in cuts.unique().sort().to_list() if c > 0)]
    return [*bounds, last] if last > bounds[-1] or len(bounds) == 1 else bounds


def _begun(mine: pl.DataFrame, every: pl.DataFrame, last: int) -> list[int]:
    """Cut where key ops begin, but for the first one."""
    counts = mine.group_by("process_id").len()["len"]
    same = len(counts) > 1 and counts.n_unique() == 1
    starts = _nth(mine, "start_ns").group_by("nth").agg(pl.col("start_ns").min()) if same else mine
    opening = every["start_ns"].min()
    first = opening if isinstance(opening, int) else 0
    cuts = [c for c in starts["start_ns"].unique().sort().to_list()[1:] if first < c < last]
    return [first, *cuts, last]


def _nth(mine: pl.DataFrame, column: str) -> pl.DataFrame:
    """Number the key ops of each process in order of a time."""
    return mine.sort(column).select("process_id", column, nth=pl.int_range(pl.len()).over("process_id"))


def _paired(mine: pl.DataFrame, most: int) -> pl.Series:
    """Cut where all processes have ended their n-th key op, if one process has more of them than the others.

    Of that process the end counts that is nearest to the others'.
    """
    ends = _nth(mine, "end_ns").with_columns(count=pl.len().over("process_id"))
    late = ends.filter(pl.col("count") != most).group_by("nth").agg(pl.col("end_ns").max()).sort("end_ns")
    primary = ends.filter(pl.col("count") == most).select("end_ns", nearest="end_ns").sort("end_ns")
    pairs = late.join_asof(primary, on="end_ns", strategy="nearest")
    return pairs.select(pl.max_horizontal("end_ns", "nearest")).to_series()
