"""Reduce summaries of captures to runs, and read the values of runs as matrices.

A run is a summary with at most one unit, which contains all iterations. A check compares the values of runs per
iteration, so that runs with different numbers of iterations are comparable.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.core.compare.summary import DURATION, KINDS, Summary, merge_all_units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]

MIN_SHARE = 0.001
"""Smallest share of the time of a kind that a row has of its own. Smaller rows are tested together."""
MAX_ROWS = 200
"""Maximum number of rows per kind that are tested on their own."""
OTHERS = "(others)"
"""Name of the row that is the sum of all smaller rows."""
_SEPARATOR = b"\0"


def reduce_to_run(summary: Summary) -> Summary:
    """Return a summary of a capture as a run: with a single unit, and without the steps of the capture."""
    merged = merge_all_units(summary)
    return Summary(merged.samples, merged.units, merged.facts)


def compute_run_id(run: Summary) -> str:
    """Return a hash of the names, counts and times of a run. Two captures have the same one only if one is a copy."""
    texts, numbers = ("kind", "name"), ("unit", "count", "time_ns", "bytes")
    columns = (pl.col(texts).cast(pl.String).fill_null(""), pl.col(numbers).fill_null(-1))
    rows = run.samples.lazy().select(*columns).sort(*texts, "unit").collect()
    digest = hashlib.blake2b(repr(run.units).encode(), digest_size=16)
    for column in texts:
        encoded = (text.encode("utf-8", "surrogatepass") for text in rows[column].to_list())
        digest.update(_SEPARATOR.join(encoded) + _SEPARATOR)
    for column in numbers:
        digest.update(rows[column].to_numpy().astype("<i8").tobytes())
    return digest.hexdigest()


def find_repeated_runs(runs: Sequence[Summary]) -> dict[int, int]:
    """Return the positions of runs that are copies of earlier ones, each with the position of the earlier run."""
    first: dict[str, int] = {}
    ids = [compute_run_id(run) for run in runs]
    return {i: first[id_] for i, id_ in enumerate(ids) if first.setdefault(id_, i) != i}


def sum_by_name(runs: Sequence[Summary], kind: str) -> pl.DataFrame:
    """Return the time per iteration of each name of a kind in each run.

    Events outside of all iterations are omitted, unless a run has no iterations at all.

    Returns:
        One row per run and name: ``run`` (its position), ``name`` and ``time_ns`` (Float64, time per iteration).
    """
    is_inside = pl.col("unit").is_not_null()
    frames = [
        run.samples.lazy()
        .filter((pl.col("kind") == kind) & (is_inside if run.iterations else pl.lit(value=True)))
        .select(pl.lit(i, pl.Int64).alias("run"), "name", pl.col("time_ns") / max(run.iterations, 1))
        for i, run in enumerate(runs)
    ]
    empty = pl.LazyFrame(schema={"run": pl.Int64, "name": pl.Categorical, "time_ns": pl.Float64})
    return pl.concat([empty, *frames]).group_by("run", "name").agg(pl.col("time_ns").sum()).collect()


def choose_rows(runs: Sequence[Summary], kind: str) -> list[tuple[str | None, ...]]:
    """Return the rows of a kind that are tested: groups of names, the largest first.

    Each name with at least ``MIN_SHARE`` of the time of the kind is a group of its own. If the rows of the kind add up
    to its time, all other names are one group. Rows are chosen by the mean over the runs of both sides, which does not
    depend on the difference between the sides.

    Args:
        runs: The runs of both sides.
        kind: Key of ``KINDS``. The duration of the iterations is no row of the kind ``iterations``.
    """
    totals = sum_by_name(runs, kind).group_by("name").agg(pl.col("time_ns").sum())
    totals = totals.with_columns(pl.col("name").cast(pl.String)).sort("time_ns", "name", descending=[True, False])
    names, times = totals["name"].to_list(), totals["time_ns"].to_list()
    if kind == "iterations":
        return [(name,) for name, time in zip(names, times, strict=True) if name != DURATION and time > 0]
    is_sum = KINDS[kind].total == ""
    least = MIN_SHARE * (sum(times) if is_sum else max(times, default=0))
    count = min(sum(time > 0 and time >= least for time in times), MAX_ROWS)
    others = tuple(names[count:])
    return [*((name,) for name in names[:count]), *([others] if is_sum and others and sum(times[count:]) > 0 else [])]


def read_times(runs: Sequence[Summary], kind: str, rows: Sequence[tuple[str | None, ...]]) -> Matrix:
    """Return the time per iteration of each row in each run, in ns.

    Args:
        runs: The runs.
        kind: Key of ``KINDS``.
        rows: Groups of names, as ``choose_rows`` returns them.

    Returns:
        One row per run, and one column per group of names.
    """
    times = np.zeros((len(runs), len(rows)))
    names = [(name, column) for column, group in enumerate(rows) for name in group]
    columns = pl.DataFrame(names, schema={"name": pl.String, "column": pl.Int64}, orient="row")
    columns = columns.with_columns(pl.col("name").cast(pl.Categorical))
    cells = sum_by_name(runs, kind).join(columns, on="name", how="inner", nulls_equal=True)
    np.add.at(times, (cells["run"].to_numpy(), cells["column"].to_numpy()), cells["time_ns"].to_numpy())
    return times
