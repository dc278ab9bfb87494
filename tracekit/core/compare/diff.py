"""Compare two summaries, and determine which changes exceed the variation between iterations and between runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from tracekit.core.compare import changes, makers, permutation
from tracekit.core.compare.notes import describe_steps_of_sides, have_comparable_iterations, list_comparability_notes
from tracekit.core.compare.summary import DURATION, GPU_PERCENT, KINDS, MISSING, ON_GPU, merge_units_to_equal_sizes
from tracekit.errors import TracekitError, UnknownFormatError, create_choices_hint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from tracekit.core.compare.summary import Summary

    Matrix = NDArray[np.float64]

DEFAULT_ALPHA = 0.01
EVIDENCE = {
    "significant": "The change exceeds the differences between iterations of one side and between runs of one program.",
    "small": "The change exceeds the differences between iterations of one side, but not those between two runs of one "
    "program.",
    "spread": "The change does not exceed the differences between iterations of one side.",
    "untested": "A side has too few iterations for a test, or the events of the row are outside of all iterations.",
}
"""The reasons why a change is significant or not."""
_MEASURES = {
    "iterations": "the duration of the iterations",
    "kernels": "the time in kernels",
    "op_kernels": "the time in kernels",
    "ops": "the GPU time of ops",
    "groups": "the GPU time of ops",
    "copies": "the time in memory copies and sets",
    "api": "the time in API calls",
    "idle": "the idle time of GPUs",
}
"""The times that decide which side is slower, by kind. The first compared kind with rows decides."""
_DIRECTIONS = {"slower": ("slower", "new"), "faster": ("faster", "gone")}
_QUANTITIES = 4
"""Number of tested quantities per row: time per iteration, time per event, number of events, and the longest event."""
_MIDDLE = 4
"""Number of groups into which sorted values are divided. The first and the last group do not affect a midmean."""


@dataclass(frozen=True)
class Diff:
    """The differences between the two sides of a comparison, A and B.

    ``frame`` returns the rows of one kind. Times are in ns, and a positive change means that B takes longer.

    Attributes:
        a: The summary of the first side.
        b: The summary of the second side.
        kinds: The kinds that were compared, keys of ``KINDS``.
        alpha: Probability that any row is marked as ``is_significant`` if both sides come from the same distribution.
        frames: The rows of each kind.
        notes: Sentences about limits of the comparison, such as different GPUs or numbers of iterations.
    """

    a: Summary = field(repr=False)
    b: Summary = field(repr=False)
    kinds: tuple[str, ...]
    alpha: float
    frames: Mapping[str, pl.DataFrame] = field(repr=False)
    notes: tuple[str, ...]

    @property
    def is_per_iteration(self) -> bool:
        """Whether the sides are compared per iteration, because one side has more iterations than the other."""
        return is_per_iteration(self.a, self.b)

    @property
    def step_notes(self) -> tuple[str, ...]:
        """Sentences that describe what delimits the iterations of each side, and how much of the GPU work lies in them.

        The warm-up is left out unless the user includes it, which the sentences state.
        """
        return describe_steps_of_sides(self.a, self.b)

    @property
    def verdict(self) -> str:
        """A sentence that states whether B is slower or faster than A, or why this was not tested."""
        return format_verdict(self)

    @property
    def has_enough_iterations(self) -> bool:
        """Whether both sides have enough iterations to test whether changes are significant."""
        merged_a, merged_b = merge_units_to_equal_sizes([self.a, self.b])
        return _have_enough_iterations(merged_a, merged_b, self.alpha)

    def frame(self, kind: str) -> pl.DataFrame:
        """Return the changes of one kind of rows, the largest changes first.

        Args:
            kind: ``kernels``, ``ops``, ``groups``, ``nvtx``, ``nvtx_gpu``, ``api``, ``copies``, ``idle``,
                ``iterations``, ``op_kernels`` or ``categories``.

        Returns:
            One row per name: ``name``, ``status``, ``count_a``, ``count_b``, ``time_a_ns``, ``time_b_ns``,
            ``change_ns`` and ``change_percent`` (of the total times), ``share_percent``, ``iteration_a_ns`` and
            ``iteration_b_ns`` (time per iteration), ``iteration_change_ns`` and ``iteration_change_percent``,
            ``p_value``, ``is_significant`` (null if untested) and ``evidence``. The kind ``copies`` also has
            ``bytes_a`` and ``bytes_b``. If ``is_per_iteration``, the status, the order and the share refer to the times
            per iteration, and otherwise to the total times.

        Raises:
            UnknownFormatError: The comparison does not include this kind.
        """
        if kind not in self.frames:
            kinds = ", ".join(self.frames)
            message = f"the comparison has no differences of kind {kind!r}, only of {kinds}"
            raise UnknownFormatError(
                message, hint="choose one of these kinds, or compare other kinds with the argument 'by'"
            )
        return self.frames[kind]

    def significant(self) -> pl.DataFrame:
        """Return the rows of all kinds for which ``is_significant`` is true, with the additional column ``kind``."""
        columns = [pl.lit(None, pl.String).alias("kind"), pl.exclude("bytes_a", "bytes_b")]
        rows = [f.filter("is_significant").select(columns).with_columns(kind=pl.lit(k)) for k, f in self.frames.items()]
        return pl.concat(rows)

    def compute_totals(self, kind: str) -> tuple[int, int] | None:
        """Return the total times of both sides in ns, or None if the rows of the kind overlap and have no total.

        If ``is_per_iteration``, the times are those per iteration.
        """
        total = KINDS[kind].total
        if total is None:
            return None
        rows = self.frames[kind] if total == "" else self.frames[kind].filter(pl.col("name") == total)
        column = "iteration_{}_ns" if self.is_per_iteration else "time_{}_ns"
        before, after = (round(rows[column.format(side)].sum()) for side in "ab")
        return before, after

    def list_untested_kinds(self) -> list[str]:
        """Return the kinds that have rows, none of which was tested for significance."""
        return [k for k, f in self.frames.items() if not f.is_empty() and not f["is_significant"].count()]

    def explain_missing_rows(self, kind: str) -> str:
        """Return a clause that states why neither side has rows of a kind, or an empty string if there are rows."""
        if not self.frame(kind).is_empty():
            return ""
        unknown = "the baseline does not contain the reason"
        a, b = (side.facts.get(MISSING.format(kind), unknown) for side in (self.a, self.b))
        return f"no rows in A and B, because {a}" if a == b else f"no rows in A, because {a}; no rows in B, because {b}"

    def replace_times_by_base(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return rows of ``frame`` whose times and changes all have the base that determines their status.

        If ``is_per_iteration``, the columns ``time_a_ns``, ``time_b_ns``, ``change_ns`` and ``change_percent`` contain
        the values per iteration. The function ``get_titles`` returns fitting titles.
        """
        if not self.is_per_iteration:
            return rows
        change = pl.col("iteration_change_ns", "iteration_change_percent").name.map(
            lambda name: name.removeprefix("iteration_")
        )
        return rows.with_columns(change, time_a_ns="iteration_a_ns", time_b_ns="iteration_b_ns")

    def get_titles(self, titles: Mapping[str, str]) -> dict[str, str]:
        """Return the titles of columns that ``replace_times_by_base`` returns, extended by their base."""
        if not self.is_per_iteration:
            return dict(titles)
        based = ("time_a_ns", "time_b_ns", "change_ns", "change_percent", "share_percent")
        return {c: t.replace(" (", " per iteration (") if c in based else t for c, t in titles.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict, the facts about both sides, the notes and the rows of each kind as JSON values."""
        return {
            "verdict": self.verdict,
            "a": {"iterations": self.a.iterations, **self.a.facts},
            "b": {"iterations": self.b.iterations, **self.b.facts},
            "notes": list(self.notes),
            "alpha": self.alpha,
            "per_iteration": self.is_per_iteration,
            **{kind: frame.to_dicts() for kind, frame in self.frames.items()},
        }


def compare(
    a: Summary,
    b: Summary,
    kinds: Sequence[str],
    *,
    alpha: float = DEFAULT_ALPHA,
    min_percent: float | None = None,
) -> Diff:
    """Compare two summaries, and return the changes of each kind of rows and whether they are significant.

    Args:
        a: The first side.
        b: The second side.
        kinds: Kinds to compare, keys of ``KINDS``.
        alpha: Probability that any row is marked as ``is_significant`` if both sides come from the same distribution.
        min_percent: Smallest increase in per cent that is marked as ``is_significant``. The smallest decrease is the
            one that undoes this increase. The default depends on the kind.

    Raises:
        UnknownFormatError: A kind does not exist.
        TracekitError: ``alpha`` is not between 0 and 1, or ``min_percent`` is negative.
    """
    check_kinds(kinds)
    if not 0 < alpha < 1:
        raise TracekitError(f"alpha is {alpha}, but it must be between 0 and 1")
    if min_percent is not None and not 0 <= min_percent < math.inf:
        raise TracekitError(f"min_percent is {min_percent}, but it must be 0 or more")
    if makers.have_different_makers(a, b):
        a, b = makers.use_common_names(a), makers.use_common_names(b)
    per_iteration = is_per_iteration(a, b)
    tables = {kind: _compute_changes_of_kind(a, b, kind, per_iteration=per_iteration) for kind in kinds}
    merged_a, merged_b = merge_units_to_equal_sizes([a, b])
    tested = _add_evidence(merged_a, merged_b, tables, alpha, min_percent)
    notes = list_comparability_notes(a, b, has_enough_iterations=_have_enough_iterations(merged_a, merged_b, alpha))
    return Diff(a, b, tuple(kinds), alpha, tested, (*notes, *makers.describe_differences(a, b, tables)))


def check_kinds(kinds: Sequence[str]) -> None:
    """Raise an error if any of the given kinds of rows cannot be compared.

    Raises:
        UnknownFormatError: A kind does not exist.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise UnknownFormatError(
                f"rows of kind {kind!r} cannot be compared", hint=create_choices_hint("kinds", KINDS, kind)
            )


def is_per_iteration(a: Summary, b: Summary) -> bool:
    """Return whether changes between two summaries are computed per iteration.

    Changes are computed per iteration if both summaries have comparable iterations, but different numbers of them.
    """
    return min(a.iterations, b.iterations) > 0 and a.iterations != b.iterations and have_comparable_iterations(a, b)


def _compute_changes_of_kind(a: Summary, b: Summary, kind: str, *, per_iteration: bool) -> pl.DataFrame:
    """Return the totals of one kind of rows with their changes, the largest changes first."""
    joined = changes.join_totals(*(_sum_by_name(side, kind) for side in (a, b)))
    per_side = changes.add_change_columns(
        joined, pl.col("iteration_b_ns") - pl.col("iteration_a_ns"), pl.col("iteration_a_ns")
    )
    has_iterations = min(a.iterations, b.iterations) > 0
    joined = joined.with_columns(
        pl.when(has_iterations).then(per_side[c]).alias(f"iteration_{c}") for c in ("change_ns", "change_percent")
    )
    shown = pl.col("iteration_change_ns" if per_iteration else "change_ns")
    if per_iteration:
        joined = joined.with_columns(per_side["share_percent"])
    sizes = [c for c in ("bytes_a", "bytes_b") if kind == "copies"]
    columns = (
        *("name", "status", "count_a", "count_b", *sizes, "time_a_ns", "time_b_ns", "change_ns"),
        *("change_percent", "share_percent", "iteration_a_ns", "iteration_b_ns"),
        *("iteration_change_ns", "iteration_change_percent"),
    )
    rows = joined.with_columns(status=changes.change_status_expr(shown))
    ordered = rows.sort(shown.abs(), "name", descending=[True, False], nulls_last=True)
    return ordered.with_columns(pl.col("name").cast(pl.String)).select(columns)


def _sum_by_name(side: Summary, kind: str) -> pl.DataFrame:
    """Return the count, bytes and time of the events of one kind by name.

    Returns:
        One row per name: ``name``, ``count``, ``bytes``, ``time_ns`` and ``iteration_ns`` (time per iteration, without
        events outside of all iterations).
    """
    inside = pl.col("time_ns").filter(pl.col("unit").is_not_null()).sum()
    totals = (
        side.select_samples_of_kind(kind).group_by("name").agg(pl.col("count", "bytes", "time_ns").sum(), inside=inside)
    )
    return totals.with_columns(iteration_ns=pl.col("inside") / max(side.iterations, 1)).drop("inside")


def _have_enough_iterations(a: Summary, b: Summary, alpha: float) -> bool:
    """Return whether both sides have enough iterations for a two-sided test to reach the level ``alpha``."""
    return (
        have_comparable_iterations(a, b)
        and _count_tests(a, b) * 2 / math.comb(len(a.units) + len(b.units), len(b.units)) <= alpha
    )


def _count_tests(a: Summary, b: Summary) -> int:
    """Return the number of statistical tests, by which p-values are multiplied (Bonferroni correction).

    The number is two if the iterations of both sides can also be compared in pairs, and otherwise one.
    """
    return 2 if a.units == b.units else 1


def _add_evidence(
    a: Summary, b: Summary, tables: Mapping[str, pl.DataFrame], alpha: float, min_percent: float | None
) -> dict[str, pl.DataFrame]:
    """Test the changes of all kinds, and add ``p_value``, ``is_significant`` and ``evidence`` to their rows."""
    if not _have_enough_iterations(a, b, alpha):
        return {kind: _mark_as_untested(rows) for kind, rows in tables.items()}
    quantities = {
        kind: [_build_tested_quantities(side, kind, rows["name"]) for side in (a, b)] for kind, rows in tables.items()
    }
    before, after = (np.concatenate([sides[i] for sides in quantities.values()], axis=1) for i in (0, 1))
    p_values = permutation.compute_adjusted_p_values(before, after)
    if _count_tests(a, b) > 1:
        paired = permutation.compute_paired_p_values(before, after)
        p_values = np.minimum(_count_tests(a, b) * np.minimum(p_values, paired), 1)
    tested, start = {}, 0
    for kind, rows in tables.items():
        p = p_values[start : start + _QUANTITIES * rows.height].reshape(_QUANTITIES, -1)
        start += _QUANTITIES * rows.height
        least = KINDS[kind].min_percent if min_percent is None else min_percent
        ratios = _compute_log_ratios(*quantities[kind]).reshape(_QUANTITIES, -1)
        tested[kind] = _add_test_results(
            rows, p, ratios, alpha, np.log1p(_choose_min_percent_by_row(kind, rows, least) / 100)
        )
    return tested


def _mark_as_untested(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(
        p_value=pl.lit(None, pl.Float64),
        is_significant=pl.lit(None, pl.Boolean),
        evidence=pl.lit("untested", pl.Enum(list(EVIDENCE))),
    )


def _choose_min_percent_by_row(kind: str, rows: pl.DataFrame, min_percent: float) -> Matrix:
    """Return, for each row, the smallest increase in per cent that is marked as ``is_significant``.

    In an iteration, the busy time of the GPU is almost the same in all runs of a program, but the remaining time is
    not. The limit for the duration of an iteration is therefore the weighted mean of the limits of both times.

    Args:
        kind: Kind of the rows.
        rows: The changes of this kind.
        min_percent: The limit for all rows. If this is the default of the kind, durations of iterations have their own
            limit.
    """
    limits = np.full(rows.height, min_percent)
    if kind != "iterations" or min_percent != KINDS[kind].min_percent:
        return limits
    on_gpu = pl.col("name").is_in(ON_GPU)
    busy, total = (
        [float(rows.filter(part)[f"iteration_{side}_ns"].sum()) for side in "ab"]
        for part in (on_gpu, pl.col("name") == DURATION)
    )
    idle = max((1 - min(b / t, 1.0) for b, t in zip(busy, total, strict=True) if t), default=1.0)
    limits[(rows["name"] == DURATION).arg_true().to_numpy()] = idle * min_percent + (1 - idle) * GPU_PERCENT
    return limits


def _add_test_results(
    rows: pl.DataFrame, p_values: Matrix, ratios: Matrix, alpha: float, min_ratios: Matrix
) -> pl.DataFrame:
    """Add ``p_value``, ``is_significant`` and ``evidence`` to the changes of one kind.

    Args:
        rows: The changes.
        p_values: The p-values, with one row per quantity and one column per change.
        ratios: The logarithms of the ratios of the sides, in the same shape.
        alpha: Largest p-value of a significant change.
        min_ratios: Smallest absolute logarithm of a ratio that is marked as ``is_significant``, one per change.
    """
    directions = {"new": 1, "slower": 1, "equal": 0, "faster": -1, "gone": -1}
    direction = rows["status"].cast(pl.String).replace_strict(directions, return_dtype=pl.Int64)
    agrees = np.sign(ratios) == direction.to_numpy()
    p_values = np.where(agrees, p_values, 1.0)
    unlikely = p_values <= alpha
    significant = (unlikely & (np.abs(ratios) >= min_ratios)).any(axis=0)
    evidence = np.where(significant, "significant", np.where(unlikely.any(axis=0), "small", "spread"))
    inside = ((pl.col("iteration_a_ns") > 0) | (pl.col("iteration_b_ns") > 0)).alias("inside")
    judged = rows.with_columns(
        p_value=pl.Series(p_values.min(axis=0), dtype=pl.Float64),
        is_significant=pl.Series(significant, dtype=pl.Boolean),
        evidence=pl.Series(evidence.tolist(), dtype=pl.Enum(list(EVIDENCE))),
    )
    is_inside = judged.select(inside).to_series()
    return judged.with_columns(
        pl.when(is_inside).then(c).otherwise(pl.lit(v)).alias(c)
        for c, v in (("p_value", None), ("is_significant", None), ("evidence", "untested"))
    ).cast({"evidence": pl.Enum(list(EVIDENCE))})


def _build_tested_quantities(side: Summary, kind: str, names: pl.Series) -> Matrix:
    """Return the quantities to test: time per iteration, time per event, number of events, and longest event.

    The quantities are computed for each *unit*, which consists of one or more consecutive iterations.

    If durations have an upper bound, the longest duration varies less than the mean duration. Smaller changes of such
    events are then significant.

    Returns:
        One row per unit, and one column per quantity and name. The time per event and the longest event are NaN if a
        name has no events in a unit. The longest event is also NaN for all kinds except kernels.
    """
    units = len(side.units)
    rows = side.select_samples_of_kind(kind).drop_nulls("unit")
    column = pl.DataFrame({"name": names.cast(pl.Categorical), "column": pl.int_range(len(names), eager=True)})
    cells = rows.join(column, on="name", how="inner", nulls_equal=True)
    at = cells["unit"].to_numpy(), cells["column"].to_numpy()
    time, count = np.zeros((units, len(names))), np.zeros((units, len(names)))
    time[at], count[at] = cells["time_ns"].to_numpy(), cells["count"].to_numpy()
    mean = np.divide(time, count, out=np.full(time.shape, np.nan), where=count > 0)
    longest = np.full(time.shape, np.nan)
    longest[at] = cells["max_ns"].cast(pl.Float64).fill_null(np.nan).to_numpy()
    iterations = np.array(side.units, dtype=np.float64)[:, None]
    return np.concatenate([time / iterations, mean, count / iterations, longest], axis=1)


def _compute_log_ratios(a: Matrix, b: Matrix) -> Matrix:
    """Return the natural logarithm of the ratio of the midmean of ``b`` to that of ``a`` for each column.

    The result is ``inf`` if only the midmean of ``a`` is 0, ``-inf`` if only the midmean of ``b`` is 0, and 0 if both
    midmeans are equal.
    """
    before, after = _compute_midmeans(a), _compute_midmeans(b)
    first, second = (np.log(m, out=np.full(m.shape, -np.inf), where=m > 0) for m in (before, after))
    ratios: Matrix = np.subtract(second, first, out=np.zeros(before.shape), where=before != after)
    return ratios


def _compute_midmeans(values: Matrix) -> Matrix:
    """Return the midmean of each column: the mean of the values between the quartiles. NaN is ignored.

    The result is 0 for a column without values.
    """
    ordered = np.sort(values, axis=0)  # NaN is last
    count = (~np.isnan(values)).sum(axis=0)
    first, row = count // _MIDDLE, np.arange(len(values))[:, None]
    inside = (row >= first) & (row < count - first)
    size = np.maximum(inside.sum(axis=0), 1)
    middles: Matrix = np.where(inside, ordered, 0.0).sum(axis=0) / size
    return middles


def format_verdict(diff: Diff) -> str:
    """Return a sentence that states whether B is slower or faster than A, or why this was not tested."""
    if all(frame.is_empty() for frame in diff.frames.values()):
        return "nothing was compared, because neither A nor B has data of the compared kinds"
    kind = next((k for k in _MEASURES if k in diff.kinds and not diff.frames[k].is_empty()), None)
    change = "" if kind is None else _format_measure(diff, kind)
    measure = f": {change}" if change else ""
    if all((frame["status"] == "equal").all() for frame in diff.frames.values()):
        return f"A and B are equal{measure}"
    if len(diff.list_untested_kinds()) == sum(not frame.is_empty() for frame in diff.frames.values()):
        reason = f"not tested whether B differs from A, because {explain_missing_tests(diff)}"
        return "; ".join(filter(None, [reason, change]))
    counts = diff.significant()["status"].value_counts(sort=True).rows()
    if not counts:
        return f"B does not differ significantly from A{measure}"
    rows = ", ".join(f"{count:,} {status}" for status, count in counts)
    direction = None if kind is None else _find_significant_direction(diff, kind)
    claim = "B differs from A" if direction is None else f"B is {direction} than A"
    return f"{claim}{measure}; significant rows: {rows}"


def explain_missing_tests(diff: Diff) -> str:
    """Return the reason why rows were not tested for significance, as a clause."""
    if not have_comparable_iterations(diff.a, diff.b):
        return f"no op delimits iterations in {'A' if 'key_op' in diff.b.facts else 'B'}"
    if not diff.has_enough_iterations:
        return f"{diff.a.iterations:,} (A) and {diff.b.iterations:,} (B) iterations are too few"
    return f"the rows of {', '.join(diff.list_untested_kinds())} are outside of all iterations"


def _format_measure(diff: Diff, kind: str) -> str:
    """Return the change of the total time of one kind, as in "the time in kernels changed by +5.00 % (…)"."""
    before, after = diff.compute_totals(kind) or (0, 0)
    percent = f"by {(after - before) * 100 / before:+,.2f} %" if before else "from 0"
    base = " per iteration" if diff.is_per_iteration else ""
    change = "did not change" if before == after else f"changed {percent}"
    return f"{_MEASURES[kind]} {change} ({before:,} ns in A, {after:,} ns in B{base})"


def _find_significant_direction(diff: Diff, kind: str) -> str | None:
    """Return whether the total time of one kind is significantly slower or faster, or None.

    A total that is the sum of rows is significant if a row that changed in the same direction is significant.
    """
    before, after = diff.compute_totals(kind) or (0, 0)
    direction = "slower" if after > before else "faster"
    rows = diff.frames[kind].filter("is_significant", pl.col("status").cast(pl.String).is_in(_DIRECTIONS[direction]))
    total = KINDS[kind].total
    rows = rows.filter(pl.col("name") == total) if total else rows
    return None if rows.is_empty() or before == after else direction
