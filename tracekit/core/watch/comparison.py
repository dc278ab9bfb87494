"""Compare the ranks of a window: which rank the others wait for, which one is slow in which phase, and by how much.

Each time of a rank, such as its CPU time in a phase, is compared with the median of the other ranks, once as the median
and once as the mean of its steps. The difference counts if it exceeds both of these limits:

- A share of a step (``min_share``), because smaller losses are not worth an alarm.
- The differences that the variation of the ranks explains: a quantile of Student's distribution, times the scale. The
  scale is the median absolute deviation of the ranks, or the standard error that follows from the variation between
  steps if this is larger. Waits of all ranks vary together from step to step, so only the ranks count for them. Fewer
  than ``MIN_RANKS`` ranks do not show how much ranks vary, so only the steps count. The quantile is chosen so that
  ``false_alarms`` comparisons per window are expected to exceed the limit by chance: the probability is divided by the
  number of comparisons (Bonferroni).

A difference of the medians is a phase that is slow in most steps, a difference of the means alone is time lost in a few
of them. A rank for which others wait spends less time than they in synchronizing collectives. The difference of the
means is the time by which this rank is late, even if several ranks are late in different steps: the times that they
cost the others add up.

A phase in which a rank is slow is reported only if the others wait for the rank, or if no collectives show whether
they do: a rank that arrives before the others costs no time.

The members of a small communicator wait for its late rank, and are then late in larger communicators. What such a
rank waits for in one communicator is subtracted from the time by which it is late in another.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from tracekit.core.watch.summary import CPU, GPU, STEP, WAIT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from numpy.typing import NDArray

    from tracekit.core.watch.summary import CaptureSummary

    Floats = NDArray[np.float64]

LATE_RANK, SLOW_PHASE, LOST_TIME = "late_rank", "slow_phase", "lost_time"
MIN_RANKS = 5
"""Smallest number of ranks whose variation is measured."""
MIN_LOST_NS = 20_000
"""Smallest loss per step that counts."""
MIN_OWN_SHARE = 0.5
"""Smallest share of the time by which a rank is late in one communicator that remains after its waits in others."""
MIN_WAIT_SHARE = 0.3
"""Smallest share of a loss for which the others wait. The waits for a loss in the last step are not recorded."""
MIN_EXPLAINED = 0.3
"""Smallest share of the time by which a rank is late that a phase must explain to be named."""
INNER_SHARE = 0.8
"""Smallest share of the lost time of a phase at which an inner phase is named instead."""
MAX_CAUSES = 5
_NORMAL = 1.4826
_MEDIAN_ERROR = 1.2533
_INTERVAL = 0.975
_SMALL_SAMPLE = 0.8
_MAX_FREEDOM = 1000.0
_STATISTICS: dict[str, type[pl.DataType]] = {
    "rank": pl.Int64,
    "on": pl.String,
    "phase": pl.String,
    "steps": pl.Int64,
    "mean": pl.Float64,
    "median": pl.Float64,
    "deviation": pl.Float64,
    "mad": pl.Float64,
}


class Limits(NamedTuple):
    """What counts as a finding.

    Attributes:
        min_share: Smallest loss per step, as a share of the median duration of a step.
        false_alarms: Number of findings per window that are expected by chance.
    """

    min_share: float = 0.02
    false_alarms: float = 0.001


class PhaseLoss(NamedTuple):
    """A phase in which a rank lost time.

    Attributes:
        phase: Path of the phase in the step. "" is the whole step.
        on: ``cpu`` or ``gpu``.
        lost_ns: Time that the rank lost in all steps of the window.
        low_ns: Lower end of the interval of this time.
        high_ns: Upper end of the interval.
        own_ns: Mean time of the rank in a step.
        others_ns: Median of the mean times of the other ranks.
        is_steady: Whether the rank is slow in most steps.
        steps: Number of steps of the rank.
        ranks: Number of ranks that were compared.
    """

    phase: str
    on: str
    lost_ns: int
    low_ns: int
    high_ns: int
    own_ns: int
    others_ns: int
    is_steady: bool
    steps: int
    ranks: int


class RankFinding(NamedTuple):
    """A rank that is late, slow in a phase, or lost time.

    Attributes:
        kind: ``late_rank`` if other ranks wait for it, otherwise ``slow_phase`` or ``lost_time``.
        rank: The rank.
        lost_ns: Time that the rank lost or, for a late rank, by which it was late, in all steps of the window.
        low_ns: Lower end of the interval of this time.
        high_ns: Upper end of the interval.
        steps: Number of steps of the rank.
        ranks: Number of ranks that were compared.
        causes: The phases in which the rank lost time, largest loss first. Empty for a late rank if it is unknown.
        communicator: Communicator in which others wait for the rank. None if it is unknown.
    """

    kind: str
    rank: int
    lost_ns: int
    low_ns: int
    high_ns: int
    steps: int
    ranks: int
    causes: tuple[PhaseLoss, ...]
    communicator: str | None = None


def compare_ranks(summary: CaptureSummary, limits: Limits = Limits()) -> list[RankFinding]:  # noqa: B008 - a tuple
    """Return the ranks of a window that are late, slow in a phase or lost time, largest loss first.

    Args:
        summary: The merged summary of the captures of the window.
        limits: What counts as a finding.
    """
    statistics = compute_statistics(summary)
    compared = compare_times(statistics, limits.false_alarms)
    step = statistics.filter(pl.col("on") == STEP)["median"].median()
    if compared.is_empty() or not isinstance(step, float):
        return []
    least = max(limits.min_share * step, MIN_LOST_NS)
    is_steady = (pl.col("median_excess") > pl.col("median_limit")) & (pl.col("median_excess") >= least)
    unlikely = compared.filter((pl.col("excess") > pl.col("limit")) | is_steady)
    is_large = pl.col("excess") >= least
    late = _find_late_ranks(compared, unlikely.filter(is_large))
    phases = _select_phases(unlikely.filter(is_large | pl.col("rank").is_in(list(late))), compared, late)
    findings: list[RankFinding] = []
    causes = {rank: list(_choose_causes(rows)) for (rank,), rows in phases.group_by("rank")}
    for rank in sorted({*late, *causes}):
        findings += _combine(rank, late.get(rank), causes.get(rank, []))
    return sorted(findings, key=lambda f: (-f.lost_ns, f.rank, f.causes[:1]))


def compute_statistics(summary: CaptureSummary) -> pl.DataFrame:
    """Return statistics of the steps of each rank: ``mean``, ``median``, standard ``deviation`` and ``mad`` in ns.

    Phases that a rank does not have at all are 0 ns in all of its steps, unless phases of the rank are left out.

    Returns:
        One row per rank, kind of time and phase: ``rank``, ``on``, ``phase``, ``steps``, and the statistics.
    """
    key = ["rank", "on", "phase"]
    level = pl.col("sum_ns") / pl.col("count")
    rows = summary.times.with_columns(_level=level).sort(*key, "bucket")
    rows = _add_middle(rows, key, "_level", "median")
    mean = pl.col("sum_ns").sum().over(key) / pl.col("count").sum().over(key)
    rows = rows.with_columns(_mean=mean, _from_median=(pl.col("_level") - pl.col("median")).abs())
    rows = _add_middle(rows.sort(*key, "_from_median"), key, "_from_median", "mad")
    squares = (pl.col("count") * (pl.col("_level") - pl.col("_mean")) ** 2).sum()
    known = rows.group_by(key).agg(
        steps=pl.col("count").sum(),
        mean=pl.col("_mean").first(),
        median=pl.col("median").first(),
        deviation=(squares / (pl.col("count").sum() - 1).clip(1)).sqrt(),
        mad=pl.col("mad").first(),
    )
    whole = summary.ranks.filter((pl.col("steps") > 0) & ~pl.col("is_cut")).select("rank", _steps="steps")
    phases = known.filter(pl.col("on").is_in([CPU, GPU])).select("on", "phase").unique()
    every = whole.join(phases, how="cross").join(known, on=key, how="anti", nulls_equal=True)
    zero = {name: pl.lit(0.0) for name in ("mean", "median", "deviation", "mad")}
    absent = every.select(*key, steps="_steps", **zero)
    return pl.concat([known.select(*_STATISTICS), absent.select(*_STATISTICS)]).sort(key)


def _add_middle(rows: pl.DataFrame, key: list[str], column: str, name: str) -> pl.DataFrame:
    """Add the weighted median of a column, by which the rows of each group are sorted. The weights are ``count``."""
    total = pl.col("count").sum().over(key)
    below = pl.col("count").cum_sum().over(key)
    rows = rows.with_columns(_below=below, _total=total)
    low = pl.col(column).filter(pl.col("_below") > (pl.col("_total") - 1) // 2).first().over(key)
    high = pl.col(column).filter(pl.col("_below") > pl.col("_total") // 2).first().over(key)
    return rows.with_columns(((low + high) / 2).alias(name)).drop("_below", "_total")


def compare_times(statistics: pl.DataFrame, false_alarms: float) -> pl.DataFrame:
    """Compare each time of each rank with the median of the other ranks.

    Args:
        statistics: The result of ``compute_statistics``.
        false_alarms: Expected number of comparisons that exceed their limit by chance.

    Returns:
        The rows of ``statistics`` for phases and communicators of at least two ranks, with ``ranks`` (their number),
        ``others`` (the median of the means of the other ranks), ``excess`` and ``median_excess`` (by how much the
        mean and the median of the rank exceed those of the others or, for the kind ``wait``, stay below them),
        ``limit`` and ``median_limit`` (what is explained by chance), and ``error`` (half of the interval of the mean).
    """
    rows = statistics.filter(pl.col("on") != STEP)
    rows = rows.with_columns(ranks=pl.len().cast(pl.Int64).over("on", "phase")).filter(pl.col("ranks") > 1)
    probability = false_alarms / max(1, 2 * rows.height)
    parts = [
        _compare_group(group, probability, sign=-1 if on == WAIT else 1)
        for (on, _), group in rows.group_by("on", "phase", maintain_order=True)
    ]
    added = ("others", "excess", "median_excess", "limit", "median_limit", "error")
    schema: dict[str, type[pl.DataType]] = {**_STATISTICS, "ranks": pl.Int64, **dict.fromkeys(added, pl.Float64)}
    return pl.concat([pl.DataFrame(schema=schema), *(part.select(*schema) for part in parts)])


def _compare_group(group: pl.DataFrame, probability: float, *, sign: int) -> pl.DataFrame:
    """Compare the ranks in one phase or communicator."""
    steps = group["steps"].to_numpy().astype(np.float64)
    columns = {}
    for name in ("mean", "median"):
        values = group[name].to_numpy()
        spread = group["deviation"].to_numpy() if name == "mean" else _NORMAL * _MEDIAN_ERROR * group["mad"].to_numpy()
        others = compute_medians_of_others(values)
        scale, freedom = _estimate_scale(values, spread, steps, is_wait=sign < 0)
        prefix = "" if name == "mean" else "median_"
        columns[f"{prefix}excess"] = sign * (values - others)
        columns[f"{prefix}limit"] = compute_student_quantile(probability, freedom) * scale
        if name == "mean":
            columns["others"] = others
            columns["error"] = compute_student_quantile(1 - _INTERVAL, freedom) * scale
    return group.with_columns(pl.Series(name, values, pl.Float64) for name, values in columns.items())


def _estimate_scale(values: Floats, spread: Floats, steps: Floats, *, is_wait: bool) -> tuple[Floats, float]:
    """Return by how much each value is expected to differ from the others by chance, and the degrees of freedom.

    Args:
        values: Mean or median of the steps of each rank.
        spread: Standard deviation of one step of each rank, multiplied by the efficiency of the statistic.
        steps: Number of steps of each rank.
        is_wait: Whether the times are those of collectives, which vary less on the rank that is late.
    """
    count = len(values)
    typical = float(np.median(steps))
    within = float(np.median(spread / np.sqrt(steps)))
    freedom = count * max(typical - 1, 1)
    factor = np.sqrt(np.maximum(1, typical / steps)) * math.sqrt(count / (count - 1))
    if count >= MIN_RANKS:
        middle = np.median(values)
        between = _NORMAL * count / (count - _SMALL_SAMPLE) * float(np.median(np.abs(values - middle)))
        if between > within or is_wait:  # waits of all ranks vary together from step to step
            within, freedom = between, count - 1
    else:
        within = float(np.sort(spread / np.sqrt(steps))[count - 1 if is_wait else (count - 1) // 2])
        freedom = max(typical - 1, 1)
    return within * factor, min(freedom, _MAX_FREEDOM)


def compute_medians_of_others(values: Floats) -> Floats:
    """Return, for each value, the median of all other values. There must be at least two."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    place = np.empty(len(values), np.int64)
    place[order] = np.arange(len(values))
    others = len(values) - 1
    low, high = (index + (place <= index) for index in ((others - 1) // 2, others // 2))
    medians: Floats = (ordered[low] + ordered[high]) / 2
    return medians


def _find_late_ranks(compared: pl.DataFrame, large: pl.DataFrame) -> dict[int, dict[str, Any]]:
    """Return the row of ``compared`` in which each late rank is late by most, by rank."""
    waits = compared.filter(pl.col("on") == WAIT)
    net = waits.group_by("rank").agg(_net=pl.col("excess").sum())
    worst = large.filter(pl.col("on") == WAIT).sort("rank", pl.col("excess") * -1, "phase")
    worst = worst.unique("rank", keep="first", maintain_order=True).join(net, on="rank")
    rows = worst.filter(pl.col("_net") >= MIN_OWN_SHARE * pl.col("excess"))
    return {row["rank"]: row for row in rows.iter_rows(named=True)}


def _select_phases(unlikely: pl.DataFrame, compared: pl.DataFrame, late: Collection[int]) -> pl.DataFrame:
    """Return the rows of phases, each on the processor on which the rank lost more time in it.

    If it is known how long a rank waits in collectives, only phases count because of which the others wait longer.
    """
    rows = unlikely.filter(pl.col("on").is_in([CPU, GPU])).sort("rank", "phase", pl.col("excess") * -1, "on")
    rows = rows.unique(["rank", "phase"], keep="first", maintain_order=True)
    waits = compared.filter(pl.col("on") == WAIT).group_by("rank").agg(_late=pl.col("excess").max())
    rows = rows.join(waits, on="rank", how="left", maintain_order="left")
    costs_time = pl.col("_late") >= MIN_WAIT_SHARE * pl.col("excess")
    return rows.filter(costs_time.fill_null(value=True) | pl.col("rank").is_in(list(late)))


def _choose_causes(rows: pl.DataFrame) -> Iterator[PhaseLoss]:
    """Yield the phases in which one rank lost time, so that no time is in two of them, largest loss first.

    A phase is replaced by the phases inside it if these explain most of its loss. Otherwise, the phases inside it are
    left out.
    """
    named = rows.sort(pl.col("excess") * -1, "phase").rows(named=True)
    chosen = _choose_disjoint("", named)
    for row in sorted(chosen, key=lambda row: -row["excess"]):
        steps, error = row["steps"], row["error"]
        lost, low, high = (round(steps * max(row["excess"] + d, 0)) for d in (0, -error, error))
        is_steady = row["median_excess"] > max(row["median_limit"], row["excess"] / 2)
        means = round(row["mean"]), round(row["others"])
        yield PhaseLoss(row["phase"], row["on"], lost, low, high, *means, is_steady, steps, row["ranks"])


def _choose_disjoint(path: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a phase, or of the phases inside it, so that no phase contains another one."""
    prefix = f"{path}/" if path else ""
    own = [row for row in rows if row["phase"] == path]
    inner = [row for row in rows if str(row["phase"]).startswith(prefix) and row["phase"] != path]
    outermost = [row for row in inner if not any(str(row["phase"]).startswith(f"{other['phase']}/") for other in inner)]
    parts = [part for row in outermost for part in _choose_disjoint(str(row["phase"]), inner)]
    explained = sum(part["excess"] for part in parts)
    return parts if not own or (parts and explained >= INNER_SHARE * own[0]["excess"]) else own


def _combine(rank: int, late: dict[str, Any] | None, causes: Sequence[PhaseLoss]) -> list[RankFinding]:
    """Return the findings of one rank: that it is late with the causes, or one finding per phase."""
    if late is None:
        return [
            RankFinding(
                SLOW_PHASE if c.is_steady else LOST_TIME, rank, c.lost_ns, c.low_ns, c.high_ns, c.steps, c.ranks, (c,)
            )
            for c in causes
        ]
    steps, excess, error = late["steps"], late["excess"], late["error"]
    lost, low, high = (round(steps * max(excess + d, 0)) for d in (0, -error, error))
    named = tuple(c for c in causes if c.lost_ns >= MIN_EXPLAINED * lost)[:MAX_CAUSES]
    return [RankFinding(LATE_RANK, rank, lost, low, high, steps, late["ranks"], named, late["phase"])]


@functools.lru_cache(maxsize=1 << 12)
def compute_student_quantile(probability: float, freedom: float) -> float:
    """Return the value that Student's distribution exceeds with a probability of at most one half.

    Args:
        probability: The probability, above 0.
        freedom: Degrees of freedom, at least 1.
    """
    low, high = 0.0, 1.0
    while _compute_student_tail(high, freedom) > probability:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        if _compute_student_tail(middle, freedom) > probability:
            low = middle
        else:
            high = middle
    return high


def _compute_student_tail(value: float, freedom: float) -> float:
    """Return the probability with which Student's distribution exceeds a value that is not negative."""
    return 0.5 * _compute_incomplete_beta(freedom / (freedom + value * value), freedom / 2, 0.5)


def _compute_incomplete_beta(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function, by its continued fraction (Abramowitz and Stegun, 26.5.8)."""
    if x > (a + 1) / (a + b + 2):
        return 1 - _compute_incomplete_beta(1 - x, b, a)
    scale = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    return scale / _evaluate_fraction(x, a, b)


def _evaluate_fraction(x: float, a: float, b: float, terms: int = 400) -> float:
    """Return 1 + d1 / (1 + d2 / (1 + …)), evaluated from the last term."""
    value = 1.0
    for n in range(terms, 0, -1):
        m = n // 2
        if n % 2:
            d = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            d = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        value = 1 + d / value
    return value
