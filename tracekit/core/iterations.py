"""Iterations: where one pass of a loop ends and the next begins.

A *key op* delimits them. The op of the backward pass, and any op named as key in a capture that has such ops, ends an
iteration. Where the dialect has no such op, the key is a range that repeats, and begins an iteration. Each process is
cut by its own key ops, and what lies outside of every pass of the loop has no iteration, as told in ``passes``.

DLProf cut all processes at the same times and left nothing out: the first iteration begins at 0, what is left after the
last key op is one more. So does the mode ``dlprof``.

An instance belongs to the iteration in which it ends: ``start < end_ns <= end``.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core import intervals
from tracekit.core.ops.calls import ON_GPU
from tracekit.core.passes import BOUNDS, passes
from tracekit.core.trees import ELLIPSIS
from tracekit.errors import TracekitError, choices_hint

if TYPE_CHECKING:
    from tracekit.core.ops import Ops
    from tracekit.core.passes import Delimits
    from tracekit.core.tensor_cores import Mode

    Span = tuple[int | None, int | None]

_TWO = 2
_SHOWN, _COMPARED, _DIGITS = 20, 5000, 19


@dataclass(frozen=True, slots=True)
class Iterations:
    """The iterations of a capture.

    Attributes:
        frame: One row per iteration: ``iteration`` (from 0), ``start_ns``, ``end_ns``, ``aggregated``. Those of several
            processes reach from the first start to the last end, and may overlap.
        key: Name of the key op, or what was asked for; "" if there is none.
        found: Whether there is such an op.
        by_process: The bounds in each process that has its own: ``process_id``, ``iteration``, ``start_ns``,
            ``end_ns``. In other processes those of ``frame`` count.
    """

    frame: pl.DataFrame
    key: str
    found: bool
    by_process: pl.DataFrame

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
    def stretches(self) -> pl.DataFrame:
        """The time of the aggregated iterations, without overlaps and in order: ``start_ns``, ``end_ns``."""
        return intervals.merge(self.chosen.select(_TIMES), by=[])

    def of(self, instances: pl.DataFrame) -> pl.Series:
        """Return the aggregated iteration of each instance: n rows in, n numbers out, null for none.

        Args:
            instances: ``process_id``, ``end_ns``.
        """
        ends = instances["end_ns"]
        number = _iteration(self.frame, ends)
        for (process,), own in self.by_process.group_by("process_id"):
            mine = instances["process_id"].eq_missing(pl.Series([process], dtype=pl.Int64))
            number = _iteration(own, ends).zip_with(mine, number)
        chosen = number.is_in(self.chosen["iteration"].implode()).fill_null(value=False)
        return number.zip_with(chosen, pl.repeat(None, len(number), dtype=pl.Int64, eager=True))


def _iteration(bounds: pl.DataFrame, ends: pl.Series) -> pl.Series:
    """Find the last iteration that begins before each end and does not end before it; null where there is none."""
    ordered = bounds.sort("start_ns", maintain_order=True)
    row = ordered["start_ns"].search_sorted(ends, side="left").cast(pl.Int64) - 1
    row = row.zip_with(row >= 0, pl.repeat(None, len(row), dtype=pl.Int64, eager=True))
    inside = (ends <= ordered["end_ns"].gather(row)).fill_null(value=False)
    return ordered["iteration"].gather(row.zip_with(inside, pl.repeat(None, len(row), dtype=pl.Int64, eager=True)))


def find(ops: Ops, *, key_op: str | None = None, span: Span | None = None, mode: Mode = "extended") -> Iterations:
    """Find the iterations of a capture.

    Args:
        ops: Its ops.
        key_op: Id or name of an op; None takes the dialect's own.
        span: First and last iteration to aggregate, both included; a last one beyond the last of all is that one.
        mode: ``dlprof`` cuts as DLProf 1.8.0 did. It takes an op that does not exist as none, and iterations beyond the
            last one as the last one.

    Raises:
        TracekitError: No op is called so, the span ends before it begins, or the capture has no such iterations.
    """
    row = _key(ops, key_op)
    if row is None and key_op and mode == "extended":
        raise TracekitError(f"no op is called {key_op!r}", hint=_called(ops, key_op))
    own = pl.DataFrame(schema=BOUNDS)
    if row is not None and mode == "extended":
        own = passes(_working(ops), row, _delimits(ops))
        frame = own.group_by("iteration").agg(pl.col("start_ns").min(), pl.col("end_ns").max()).sort("iteration")
    else:
        frame = _contiguous(ops, row, mode)
    first, stop = _chosen(span, frame.height - 1, mode)
    frame = frame.with_columns(aggregated=pl.col("iteration").is_between(first, stop))
    key = key_op or ("" if row is None else str(ops.ops["op_name"][row]))
    return Iterations(frame, key, row is not None, own)


def _delimits(ops: Ops) -> Delimits:
    return "ends" if ops.dialect.key_op == "backward" else "begins"


def _called(ops: Ops, name: str) -> str:
    """Name the ops that there are, the likeliest first."""
    both = ops.ops.select(pl.concat_list(pl.col("op_name").cast(pl.String), "op_id")).to_series().explode()
    known = both.unique(maintain_order=True).head(_COMPARED).to_list()
    near = difflib.get_close_matches(name, known, n=1)
    listed = [*near, *(n for n in ops.ops["op_name"].cast(pl.String).unique(maintain_order=True) if n not in near)]
    return choices_hint("ops", listed[:_SHOWN], name) + (", …" if len(listed) > _SHOWN else "")


def _working(ops: Ops) -> pl.DataFrame:
    """The instances, with whether each one is a range or did something on a GPU (``works``)."""
    ran = ops.calls.filter(pl.col("kind").is_in(ON_GPU))["instance"].unique()
    works = pl.col("associated") | pl.int_range(pl.len()).is_in(ran.implode())
    return ops.instances.select("process_id", "thread_id", *_TIMES, "op", "parent", works=works)


def _contiguous(ops: Ops, row: int | None, mode: Mode) -> pl.DataFrame:
    """Cut the whole capture into iterations: ``iteration``, ``start_ns``, ``end_ns``.

    A capture without ops has one iteration as long as itself, because DLProf's viewer cannot draw one without length.
    """
    ends = ops.instances["end_ns"].max()
    last = ends if isinstance(ends, int) else _duration(ops) if mode == "extended" else 0
    if row is None:
        bounds = [0, last]
    else:
        mine = ops.instances.filter(pl.col("op") == row)
        bounds = _ended(mine, last) if _delimits(ops) == "ends" else _begun(mine, ops.instances, last)
    frame = pl.DataFrame({"start_ns": bounds[:-1], "end_ns": bounds[1:]}, schema=dict.fromkeys(_TIMES, pl.Int64))
    return frame.select(pl.int_range(pl.len(), dtype=pl.Int64).alias("iteration"), *_TIMES)


def _duration(ops: Ops) -> int:
    """Return how long the capture lasted, 1 ns if that is not known."""
    told = ops.capture.frames("capture_info").filter(pl.col("name") == "duration_ns").select("value").collect()
    text = next((v for v in told["value"] if v), "")
    return max(int(text), 1) if text.isdecimal() and len(text) < _DIGITS else 1


_TIMES = ("start_ns", "end_ns")


def _chosen(span: Span | None, last: int, mode: Mode) -> tuple[int, int]:
    """Return the first and the last wanted iteration, no further than the last of all."""
    low, high = span or (None, None)
    first, stop = low or 0, last if high is None else high
    if (first > stop and not (high is None and first > last)) or first < 0:
        raise TracekitError(f"iterations {first} to {stop} are none", hint=f"give A:B with 0 <= A <= B <= {last}")
    if first > last and mode == "extended":
        asked = f"{first} and later" if high is None else f"{first}:{stop}"
        there = f"iterations 0 to {last}" if last else "one iteration, 0"
        raise TracekitError(f"iterations {asked}: the capture has {there}", hint="count iterations from 0")
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

    One loop is run by one thread: ranges of one name on several threads of a process are no passes. What stands for
    all ranges that are too deep for a path of their own is no one op, and none of them.
    """
    lasted = ops.instances.group_by("op").agg(total=(pl.col("end_ns") - pl.col("start_ns")).sum())
    found = rows.filter(
        pl.col("associated")
        & (pl.col("instance_count") > 1)
        & (pl.col("direction").cast(pl.String) == "bprop").fill_null(value=False).not_()
        & ~pl.col("op_name").cast(pl.String).str.ends_with(f"/{ELLIPSIS}")
    )
    threads = ops.instances.group_by("op", "process_id").agg(threads=pl.col("thread_id").n_unique())
    shared = threads.filter(pl.col("threads") > 1)["op"].unique()
    found = found.with_columns(pl.col("row").cast(pl.Int64)).filter(~pl.col("row").is_in(shared.implode()))
    found = found.join(lasted, left_on="row", right_on="op")
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
    bounds = [0, *(c for c in cuts.unique().sort().to_list() if c >= 0)]
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
