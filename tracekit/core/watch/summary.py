"""Reduce a capture to a small summary of its ranks. Summaries can be merged in any order.

A summary contains, for each rank, how its steps and their phases took in the steps of one or several captures. The
times of one phase are a sketch: the steps are counted in buckets whose bounds grow by 1 %, each with the sum of its
times. The sum, the mean and the number of steps are therefore exact, and medians are exact to within 1 %. Sketches are
merged by adding their buckets. The size of a summary depends neither on the number of events nor, beyond some bound, on
the number of steps.

Times are of four kinds: ``cpu`` and ``gpu`` are those of phases (see ``communication.stragglers``), ``step`` is the
duration of the whole step, and ``wait`` is the time in the synchronizing collectives of one communicator. All ranks
leave such a collective at the same time, because no rank can complete it before all have begun it. The time in it is
therefore the time of the transfer, which is equal for all ranks, and the time for which the rank waited for the last
one. A rank that begins later than the others spends less time in it, by as much as it is late. No clocks need to be
compared for this.

Source: C. Masson, J. Rim, H. Lee, "DDSketch", VLDB 2019 (buckets with a relative error).
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import polars as pl

from tracekit.core.communication.analysis import CALLS, ITERATIONS, ORIGINS, PHASES, STEPS
from tracekit.core.communication.calls import NCCL, SYNCHRONIZING
from tracekit.core.communication.stragglers import select_rows_in_iterations
from tracekit.errors import TracekitError
from tracekit.text import shorten_middle

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SCHEMA_VERSION = 1
"""Version of the JSON form of summaries. Summaries of other versions are rejected."""
CPU, GPU, WAIT, STEP = "cpu", "gpu", "wait", "step"
KINDS = (CPU, GPU, WAIT, STEP)
MAX_PHASES = 48
"""Maximum number of phases of a rank. Those with the least time are left out, and the rank is marked."""
MAX_COMMUNICATORS = 16
"""Maximum number of communicators of a rank. Those with the least time are left out."""
MAX_NAME_CHARS = 160
GROWTH = 1.01
"""Ratio of the bounds of a bucket."""
_MAX_NS = (1 << 62) - 1
_MAX_BUCKET = 1 + math.ceil(math.log(_MAX_NS) / math.log(GROWTH))
_MAX_ROWS = 1 << 20
_NUMBER_AT_END = re.compile(r"(?:.*[^0-9])?([0-9]{1,15})", re.DOTALL)
_KEY = ("rank", "on", "phase", "bucket")
TIMES: dict[str, type[pl.DataType]] = {
    "rank": pl.Int64,
    "on": pl.String,
    "phase": pl.String,
    "bucket": pl.Int64,
    "count": pl.Int64,
    "sum_ns": pl.Int64,
}
"""Columns of ``CaptureSummary.times``."""
RANKS: dict[str, type[pl.DataType]] = {
    "rank": pl.Int64,
    "captures": pl.Int64,
    "steps": pl.Int64,
    "first_step": pl.Int64,
    "last_step": pl.Int64,
    "start_utc_ns": pl.Int64,
    "end_utc_ns": pl.Int64,
    "world_size": pl.Int64,
    "is_cut": pl.Boolean,
}
"""Columns of ``CaptureSummary.ranks``."""


@dataclass(frozen=True)
class CaptureSummary:
    """How the steps of some ranks took in some captures.

    Attributes:
        ranks: One row per rank, in order of ``rank``: ``captures``, ``steps`` (their number), ``first_step`` and
            ``last_step`` (the numbers that the program gave to them, or null), ``start_utc_ns`` and ``end_utc_ns`` (of
            the steps, or null if the origin is not recorded), ``world_size`` (null if it is not recorded) and
            ``is_cut`` (whether phases are left out).
        times: One row per rank, kind of time (``on``), phase or communicator, and bucket: ``count`` (steps) and
            ``sum_ns``. Steps in which a phase does not occur are in bucket 0.
    """

    ranks: pl.DataFrame
    times: pl.DataFrame

    @classmethod
    def create_empty(cls) -> Self:
        """Return a summary of no captures."""
        return cls(pl.DataFrame(schema=RANKS), pl.DataFrame(schema=TIMES))

    def equals(self, other: CaptureSummary) -> bool:
        """Return whether another summary has the same content."""
        return self.ranks.equals(other.ranks) and self.times.equals(other.times)

    def to_json(self) -> str:
        """Return the summary as JSON, which ``from_json`` reads."""
        tables = {
            name: frame.to_dict(as_series=False) for name, frame in (("ranks", self.ranks), ("times", self.times))
        }
        return json.dumps({"version": SCHEMA_VERSION, **tables}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Return the summary in a JSON text.

        Raises:
            TracekitError: The text is not a summary, or that of another version.
        """
        try:
            values = json.loads(text)
            version = values["version"]
            frames = [_build_frame(values[name], schema) for name, schema in (("ranks", RANKS), ("times", TIMES))]
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError, pl.exceptions.PolarsError):
            version, frames = None, []
        if frames and version == SCHEMA_VERSION and _is_valid(*frames):
            return cls(*frames)
        if isinstance(version, int) and version != SCHEMA_VERSION:
            raise TracekitError(f"this is a summary of version {version}, but only {SCHEMA_VERSION} is supported")
        raise TracekitError("this is not a summary of a capture")


def _build_frame(columns: Any, schema: Mapping[str, type[pl.DataType]]) -> pl.DataFrame:
    if set(columns) != set(schema):
        raise ValueError("columns")
    return pl.DataFrame({name: pl.Series(name, columns[name], kind) for name, kind in schema.items()})


def _is_valid(ranks: pl.DataFrame, times: pl.DataFrame) -> bool:
    """Return whether tables have the values of a summary: known ranks and kinds, and no negative numbers."""
    required = ranks.select("rank", "captures", "steps", "is_cut")
    if required.null_count().sum_horizontal().sum() or times.null_count().sum_horizontal().sum():
        return False
    if times.height > _MAX_ROWS or not ranks["rank"].is_unique().all():
        return False
    is_within = pl.col("bucket").is_between(0, _MAX_BUCKET) & (pl.col("count") > 0) & (pl.col("sum_ns") >= 0)
    valid = times.select((is_within & pl.col("on").is_in(KINDS) & pl.col("rank").is_in(ranks["rank"].implode())).all())
    counted = ranks.select(((pl.col("captures") > 0) & (pl.col("steps") >= 0) & (pl.col("rank") >= 0)).all())
    return bool(valid.item()) and bool(counted.item())


def merge_summaries(summaries: Iterable[CaptureSummary]) -> CaptureSummary:
    """Return the summary of all captures of several summaries. The order does not matter.

    The summaries must not contain the same capture twice.
    """
    parts = [CaptureSummary.create_empty(), *summaries]
    times = pl.concat([part.times for part in parts])
    ranks = pl.concat([part.ranks for part in parts]).group_by("rank")
    merged = ranks.agg(
        pl.col("captures", "steps").sum(),
        pl.col("first_step").min(),
        pl.col("last_step").max(),
        pl.col("start_utc_ns").min(),
        pl.col("end_utc_ns").max(),
        pl.col("world_size").max(),
        pl.col("is_cut").any(),
    )
    return CaptureSummary(
        merged.select(*RANKS).sort("rank"), times.group_by(_KEY).agg(pl.col("count", "sum_ns").sum()).sort(_KEY)
    )


def summarize_capture(
    tables: Mapping[str, pl.DataFrame], rank_of_process: Mapping[int, int], world_size: int | None = None
) -> CaptureSummary:
    """Return the summary of one capture.

    Args:
        tables: The tables of ``communication.read_rank_tables``.
        rank_of_process: Rank of each process that has steps, by process id. If there are no steps, the ranks of the
            summary are still these.
        world_size: Number of ranks of the job. None if it is unknown.
    """
    steps = tables[ITERATIONS].filter("is_aggregated").select("process_id", "iteration", "start_ns", "end_ns")
    ranks = pl.DataFrame(list(rank_of_process.items()), {"process_id": pl.Int64, "rank": pl.Int64}, orient="row")
    phases, cut = _limit_phases(_shorten(_measure_phases(tables[PHASES], steps)))
    whole = steps.select("process_id", "iteration", ns=pl.col("end_ns") - pl.col("start_ns"), phase=pl.lit(""))
    parts = [phases, whole.with_columns(on=pl.lit(STEP)), _measure_waits(tables[CALLS], steps)]
    values = pl.concat([part.select("process_id", "on", "phase", "iteration", "ns") for part in parts])
    sketch = _sketch(_fill_absent_phases(values, steps)).join(ranks, on="process_id")
    times = sketch.select(*TIMES).group_by(_KEY).agg(pl.col("count", "sum_ns").sum()).sort(_KEY)
    return CaptureSummary(_describe_ranks(tables, steps, ranks, cut, world_size), times)


def _measure_phases(phases: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the times of phases in steps: ``process_id``, ``iteration``, ``phase``, ``on``, ``ns``."""
    own = phases.join(steps, on=["process_id", "iteration"], how="semi")
    long = [own.select("process_id", "iteration", phase="path", ns=f"{on}_ns", on=pl.lit(on)) for on in (CPU, GPU)]
    rows = pl.concat(long).drop_nulls("phase").with_columns(pl.col("ns").clip(0))
    used = pl.col("ns").sum().over("process_id", "on", "phase") > 0
    return rows.filter(used)


def _shorten(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows with shortened names of phases. The times of phases with equal names are added."""
    names = rows["phase"].unique()
    short = {name: shorten_middle(name, MAX_NAME_CHARS) for name in names if len(name) > MAX_NAME_CHARS}
    if not short:
        return rows
    rows = rows.with_columns(pl.col("phase").replace(short))
    return rows.group_by("process_id", "iteration", "phase", "on", maintain_order=True).agg(pl.col("ns").sum())


def _limit_phases(rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
    """Return the rows of the longest phases of each process, and the processes of which phases are left out."""
    totals = rows.group_by("process_id", "phase").agg(pl.col("ns").sum())
    ordered = totals.sort("process_id", pl.col("ns") * -1, "phase")
    place = pl.int_range(pl.len()).over("process_id")
    longest = ordered.filter(place < MAX_PHASES)
    cut = ordered.filter(place >= MAX_PHASES)["process_id"].unique()
    return rows.join(longest, on=["process_id", "phase"], how="semi"), cut


def _measure_waits(calls: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the time of each step in the synchronizing collectives of each communicator, by name.

    Nonblocking calls without a kernel are left out, because a rank may wait for them long after they are complete.
    """
    rows = calls.filter(pl.col("kind").is_in(SYNCHRONIZING)).drop_nulls(["communicator", "start_ns", "end_ns"])
    is_exact = pl.when(pl.col("library") == NCCL).then(pl.col("kernel_id").is_not_null())
    rows = rows.filter(is_exact.otherwise(pl.col("end_ns") == pl.col("call_end_ns")).fill_null(value=False))
    single = pl.coalesce(pl.col("kernel_id"), pl.int_range(pl.len()) * -1 - 1)
    rows = rows.with_columns(_one=single).unique(["process_id", "_one"], keep="first", maintain_order=True)
    name = pl.concat_str("library", "communicator", separator=" ")
    rows = rows.select(
        "process_id",
        phase=name.str.head(MAX_NAME_CHARS),
        ns=(pl.col("end_ns") - pl.col("start_ns")).clip(0),
        start_ns=pl.coalesce("call_start_ns", "start_ns"),
    )
    placed = select_rows_in_iterations(rows.drop_nulls("process_id"), steps, key_column="process_id")
    sums = placed.group_by("process_id", "iteration", "phase").agg(pl.col("ns").sum())
    totals = sums.group_by("process_id", "phase").agg(pl.col("ns").sum())
    ordered = totals.sort("process_id", pl.col("ns") * -1, "phase")
    longest = ordered.filter(pl.int_range(pl.len()).over("process_id") < MAX_COMMUNICATORS)
    return sums.join(longest, on=["process_id", "phase"], how="semi").with_columns(on=pl.lit(WAIT))


def _fill_absent_phases(values: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Add rows of 0 ns for the steps in which a phase of the process does not occur."""
    known = values.select("process_id", "on", "phase").unique()
    every = known.join(steps.select("process_id", "iteration"), on="process_id")
    key = ["process_id", "on", "phase", "iteration"]
    return every.join(values, on=key, how="left").with_columns(pl.col("ns").fill_null(0))


def _sketch(values: pl.DataFrame) -> pl.DataFrame:
    """Count values in buckets: ``process_id``, ``on``, ``phase``, ``bucket``, ``count``, ``sum_ns``."""
    buckets = pl.Series("bucket", find_buckets(values["ns"].to_numpy()), pl.Int64)
    groups = values.with_columns(buckets).group_by("process_id", "on", "phase", "bucket")
    return groups.agg(count=pl.len().cast(pl.Int64), sum_ns=pl.col("ns").sum())


def find_buckets(ns: np.typing.NDArray[np.int64]) -> np.typing.NDArray[np.int64]:
    """Return the bucket of each time: 0 for 0 ns, and otherwise the number of a power of ``GROWTH``, from 1."""
    power = np.floor(np.log(np.maximum(ns, 1).astype(np.float64)) / math.log(GROWTH)).astype(np.int64)
    return np.where(ns > 0, power + 1, 0)


def _describe_ranks(
    tables: Mapping[str, pl.DataFrame], steps: pl.DataFrame, ranks: pl.DataFrame, cut: pl.Series, world_size: int | None
) -> pl.DataFrame:
    """Return the table ``CaptureSummary.ranks`` of a capture."""
    origin = next(iter(tables[ORIGINS]["origin_utc_ns"]), None)
    by_process = steps.group_by("process_id").agg(
        pl.col("start_ns").min(), pl.col("end_ns").max(), steps=pl.len().cast(pl.Int64)
    )
    first, last = read_step_numbers(tables[STEPS]) or (None, None)
    rows = ranks.join(by_process, on="process_id", how="left", maintain_order="left")
    utc = pl.lit(origin, pl.Int64)
    described = rows.select(
        "rank",
        captures=pl.lit(1, pl.Int64),
        steps=pl.col("steps").fill_null(0),
        first_step=pl.lit(first, pl.Int64),
        last_step=pl.lit(last, pl.Int64),
        start_utc_ns=utc + pl.col("start_ns"),
        end_utc_ns=utc + pl.col("end_ns"),
        world_size=pl.lit(world_size, pl.Int64),
        is_cut=pl.col("process_id").is_in(cut.implode()),
    )
    return described.sort("rank")


def read_step_numbers(step_summary: pl.DataFrame) -> tuple[int, int] | None:
    """Return the numbers that the program gave to the first and the last step, or None if it did not number them.

    Args:
        step_summary: The table ``STEPS`` of one trace.
    """
    for row in step_summary.select("first", "last", "aggregated", "key_op").iter_rows(named=True):
        ends = [_NUMBER_AT_END.fullmatch(row[name] or "") for name in ("first", "last")]
        if row["key_op"] is None or None in ends:
            return None
        first, last = (int(match[1]) for match in ends if match is not None)
        return (first, last) if last - first + 1 == row["aggregated"] else None
    return None


def map_processes_to_ranks(tables: Mapping[str, pl.DataFrame], rank: int | None) -> dict[int, int] | None:
    """Return the rank of each process of a capture that has steps, or None if it is unknown.

    Args:
        tables: The tables of ``communication.read_rank_tables``.
        rank: Rank of the capture. None if the capture has several ranks or none.

    Returns:
        The rank by process id. The rank of the only process is that of the capture. The ranks of several processes are
        those in the largest communicator. Without steps, the key is -1.
    """
    processes = tables[ITERATIONS]["process_id"].unique().sort().to_list()
    if len(processes) <= 1 and rank is not None:
        return {processes[0] if processes else -1: rank}
    calls = tables[CALLS].drop_nulls(["process_id", "communicator_rank", "communicator_size"])
    largest = calls.filter(pl.col("communicator_size") == pl.col("communicator_size").max())
    known = largest.group_by("process_id").agg(pl.col("communicator_rank").unique())
    rank_of = {process: ranks[0] for process, ranks in known.iter_rows() if len(ranks) == 1}
    chosen = {process: rank_of[process] for process in processes if process in rank_of}
    is_complete = len(chosen) == len(processes) > 0 and len(set(chosen.values())) == len(chosen)
    return chosen if is_complete else None
