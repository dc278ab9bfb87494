"""Parse and evaluate conditions on the changes between two sides, such as ``gpu_time > 5%``.

A condition consists of a metric, a comparison and a limit::

    condition  = metric comparison limit
    metric     = NAME | KIND "[" PATTERN "]"
    comparison = ">" | ">=" | "<" | "<="
    limit      = NUMBER [ "%" | "ns" | "us" | "ms" | "s" ]

``NAME`` is a key of ``METRICS`` or ``ROW_COUNTS``. ``KIND[PATTERN]`` is the time of all rows of a kind whose name
matches the pattern, in which ``*`` matches any characters and ``?`` matches one character. The change of the metric
from A to B is compared with the limit, in per cent of A or in the unit of the limit. Counts have no unit. For a key of
``ROW_COUNTS``, the number of rows is compared with the limit.

A condition that cannot be tested, because data is missing or because there are too few iterations, is an error.
``Condition.evaluate`` returns a ``ConditionResult`` instead, as the conditions of a check of several runs do.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, NamedTuple

import polars as pl

from tracekit.core.compare.diff import explain_missing_tests, is_per_iteration
from tracekit.core.compare.notes import have_comparable_iterations
from tracekit.core.compare.summary import DURATION, KINDS
from tracekit.core.diagnosis.answer import Figures
from tracekit.errors import MissingTableError, UnknownFormatError, create_choices_hint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracekit.core.compare.diff import Diff
    from tracekit.core.compare.summary import Summary

    Number = Fraction | float


class Metric(NamedTuple):
    """A metric that is computed for each side of a comparison.

    Attributes:
        doc: Description of the metric.
        kinds: The kinds of rows from which the metric is computed, keys of ``KINDS``.
        column: The column that is summed.
        name: Name of the rows that are summed, or None for all rows.
    """

    doc: str
    kinds: tuple[str, ...]
    column: str = "time_ns"
    name: str | None = None


METRICS = {
    "gpu_time": Metric("Sum of the durations of kernels, copies and memory sets.", ("kernels", "copies")),
    "kernel_time": Metric("Sum of the durations of kernels.", ("kernels",)),
    "kernel_count": Metric("Number of kernels.", ("kernels",), "count"),
    "copy_time": Metric("Sum of the durations of memory copies and sets.", ("copies",)),
    "copy_count": Metric("Number of memory copies and sets.", ("copies",), "count"),
    "copy_bytes": Metric("Number of bytes that were copied or set.", ("copies",), "bytes"),
    "api_time": Metric("Sum of the durations of API calls.", ("api",)),
    "api_count": Metric("Number of API calls.", ("api",), "count"),
    "idle_time": Metric("Time in which GPUs were idle between their first and last activity.", ("idle",)),
    "iteration_time": Metric("Sum of the durations of the iterations.", ("iterations",), name=DURATION),
}
"""Metrics that are computed for both sides, by name. A condition limits the change of a metric."""
ROW_COUNTS = {
    "slower": "Number of rows that are slower in B, counting only significant changes.",
    "faster": "Number of rows that are faster in B, counting only significant changes.",
    "new": "Number of rows that exist only in B, counting only significant changes.",
    "gone": "Number of rows that exist only in A, counting only significant changes.",
}
"""Descriptions of the metrics that count significant rows, by status of the rows."""
_NEEDS_ITERATIONS = ("iteration_time", "iterations")
_ITERATIONS_HINT = "compare captures with more iterations, or name the op that delimits them with --key-op"
_DATA_HINT = "compare captures that recorded this data, or use another metric"
_LISTED = 3
_UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9}
_COMPARISONS: dict[str, Callable[[Number, Number], bool]] = {
    ">": lambda value, limit: value > limit,
    ">=": lambda value, limit: value >= limit,
    "<": lambda value, limit: value < limit,
    "<=": lambda value, limit: value <= limit,
}
_CONDITION = re.compile(
    r"\s*(?P<metric>[a-z_]+)(?:\[(?P<pattern>.+)\])?\s*(?P<comparison>[<>]=?)"
    r"\s*(?P<number>[+-]?[0-9]{1,15}(?:\.[0-9]{1,9})?)\s*(?P<unit>%|ns|us|µs|ms|s|)\s*"
)


ConditionStatus = Literal["holds", "does_not_hold", "untestable"]


@dataclass(frozen=True, slots=True)
class ConditionResult(Figures):
    """Whether a condition holds.

    Attributes:
        text: The condition as it was written.
        status: ``holds``, ``does_not_hold`` or ``untestable``.
        value: The observed value with its unit, or "" if there is none.
        reason: Why the condition cannot be tested, or "".
    """

    text: str
    status: ConditionStatus
    value: str = ""
    reason: str = ""

    @property
    def sentence(self) -> str:
        """A clause that states whether the condition holds, with the value or the reason."""
        if self.status == "untestable":
            return f"{self.text} cannot be tested: {self.reason}"
        return f"{self.text} {'holds' if self.status == 'holds' else 'does not hold'} (the value is {self.value})"


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on the change of a metric.

    Attributes:
        text: The condition as it was written.
        metric: Key of ``METRICS`` or ``ROW_COUNTS``, or of ``KINDS`` if there is a pattern.
        pattern: Pattern of the names of the rows that are summed, or None.
        comparison: Key of the comparison, such as ``>``.
        limit: The limit, in per cent or in the base unit of the metric.
        is_relative: Whether the limit is in per cent.
    """

    text: str
    metric: str
    pattern: str | None
    comparison: str
    limit: Fraction
    is_relative: bool

    @property
    def required_kinds(self) -> tuple[str, ...]:
        """The kinds of rows, such as kernels, that have to be compared to evaluate the condition."""
        return (self.metric,) if self.pattern is not None else METRICS[self.metric].kinds if self._is_metric else ()

    @property
    def _is_metric(self) -> bool:
        return self.metric in METRICS

    def compute_observed_value(self, diff: Diff) -> Number:
        """Return the number to compare with the limit: the change of a metric, or a number of rows.

        Raises:
            MissingTableError: The condition cannot be tested: a side has no data for the metric, no name on either
                side matches the pattern, or no row was tested for significance.
        """
        if self.counts_rows:
            _check_that_rows_were_tested(diff, self.metric)
            return Fraction(diff.significant().filter(pl.col("status") == self.metric).height)
        rows_a, rows_b = self._select_rows_of_side(diff.a, "A"), self._select_rows_of_side(diff.b, "B")
        if self.pattern is not None and rows_a.is_empty() and rows_b.is_empty():
            hint = f"list the names with tracekit diff A B --by {self.metric} --format csv"
            raise MissingTableError(f"no name in A or B matches the pattern in {self.text!r}", hint=hint)
        if self.metric in _NEEDS_ITERATIONS and not have_comparable_iterations(diff.a, diff.b):
            reason = explain_missing_tests(diff)
            raise MissingTableError(f"{self.metric} needs comparable iterations, but {reason}", hint=_ITERATIONS_HINT)
        per_iteration = is_per_iteration(diff.a, diff.b)
        if per_iteration:
            rows_a, rows_b = rows_a.drop_nulls("unit"), rows_b.drop_nulls("unit")
        self._check_that_sides_have_values({"A": rows_a, "B": rows_b}, " in its iterations" if per_iteration else "")
        before = self._compute_metric_value(rows_a, diff.a.iterations if per_iteration else 1)
        after = self._compute_metric_value(rows_b, diff.b.iterations if per_iteration else 1)
        change = after - before
        if not self.is_relative:
            return change
        return change * 100 / before if before else math.copysign(math.inf, change) if change else Fraction(0)

    def evaluate(self, diff: Diff) -> ConditionResult:
        """Return whether the differences between the two sides satisfy the condition, or why it cannot be tested."""
        try:
            value = self.compute_observed_value(diff)
        except MissingTableError as error:
            return ConditionResult(self.text, "untestable", reason=str(error))
        return self.create_result(value)

    def create_result(self, value: Number) -> ConditionResult:
        """Return the result of a condition whose value has been observed."""
        status: ConditionStatus = "holds" if self.is_met_by_value(value) else "does_not_hold"
        return ConditionResult(self.text, status, self.format_value(value))

    def compute_values_of_runs(self, runs: Mapping[str, Summary]) -> list[Fraction]:
        """Return the value of the metric in each run, per iteration.

        Args:
            runs: The runs of both sides, by name, such as ``A (run 1)``.

        Raises:
            MissingTableError: A run has no data for the metric, or no name in any run matches the pattern.
        """
        rows = {name: self._select_rows_of_side(run, name) for name, run in runs.items()}
        if self.pattern is not None and all(frame.is_empty() for frame in rows.values()):
            hint = f"list the names with tracekit diff A B --by {self.metric} --format csv"
            raise MissingTableError(f"no name in A or B matches the pattern in {self.text!r}", hint=hint)
        inside = {name: frame.drop_nulls("unit") if runs[name].iterations else frame for name, frame in rows.items()}
        self._check_that_sides_have_values(inside, " in its iterations")
        return [self._compute_metric_value(frame, runs[name].iterations or 1) for name, frame in inside.items()]

    @property
    def counts_rows(self) -> bool:
        """Whether the value is a number of significant rows, rather than the change of a metric."""
        return self.pattern is None and not self._is_metric

    def is_met_by(self, diff: Diff) -> bool:
        """Return whether the differences between the two sides satisfy the condition.

        Raises:
            MissingTableError: The condition cannot be tested, as for ``compute_observed_value``.
        """
        return self.is_met_by_value(self.compute_observed_value(diff))

    def is_met_by_value(self, value: Number) -> bool:
        """Return whether an observed value satisfies the condition."""
        return _COMPARISONS[self.comparison](value, self.limit)

    def format_value(self, value: Number) -> str:
        """Return an observed value as text with its unit and, for a change, its sign."""
        if self.is_relative:
            return f"{float(value):+,.2f} %"
        column = self._summed_metric.column if self.pattern is not None or self._is_metric else None
        unit = {"time_ns": " ns", "bytes": " bytes"}.get(column or "", "")
        sign = "+" if column else ""
        exact = Fraction(value)
        return f"{int(exact):{sign},}{unit}" if exact.denominator == 1 else f"{float(exact):{sign},.2f}{unit}"

    @property
    def _summed_metric(self) -> Metric:
        """The metric that is computed for each side. For a pattern, the metric is the time of all rows of a kind."""
        return Metric("", (self.metric,)) if self.pattern is not None else METRICS[self.metric]

    def _select_rows_of_side(self, side: Summary, side_name: str) -> pl.DataFrame:
        """Return the samples of side A or B from which the metric is computed: an empty table if no name matches."""
        metric = self._summed_metric
        rows = side.samples.filter(pl.col("kind").is_in(metric.kinds))
        if rows.is_empty():
            raise MissingTableError(f"side {side_name} has no data for {self.metric}", hint=_DATA_HINT)
        if metric.name is not None:
            return rows.filter(pl.col("name") == metric.name)
        if self.pattern is None:
            return rows
        pattern = _convert_glob_to_regex(self.pattern)
        return rows.filter(
            pl.col("name").is_in([n for n in rows["name"].drop_nulls().unique() if pattern.fullmatch(n)])
        )

    def _check_that_sides_have_values(self, sides: Mapping[str, pl.DataFrame], place: str) -> None:
        """Raise an error if a side has no values of the metric, because their sum of 0 would not be a measurement.

        If a pattern matches names of one side only, the other side may have no values. A metric of several kinds
        needs values of the first kind on both sides if one side has any.
        """
        metric = self._summed_metric
        first = {side: rows.filter(pl.col("kind") == metric.kinds[0]) for side, rows in sides.items()}
        counts = {side: rows[metric.column].count() for side, rows in first.items()}
        if not any(counts.values()):
            counts = {side: rows[metric.column].count() for side, rows in sides.items()}
        missing = [side for side, count in counts.items() if not count]
        if missing and (self.pattern is None or len(missing) == len(sides)):
            who = _join_names(missing)
            verb = "side {} has" if len(missing) == 1 else "sides {} have"
            raise MissingTableError(f"{verb.format(who)} no data for {self.metric}{place}", hint=_DATA_HINT)

    def _compute_metric_value(self, rows: pl.DataFrame, iteration_count: int) -> Fraction:
        """Return the sum of the metric's column, divided by the number of iterations."""
        return Fraction(int(rows[self._summed_metric.column].sum() or 0), iteration_count)


def _join_names(names: Sequence[str]) -> str:
    return f"{', '.join(names[:_LISTED])} and others" if len(names) > _LISTED else " and ".join(names)


def _check_that_rows_were_tested(diff: Diff, metric: str) -> None:
    """Raise an error if no row was tested for significance, or if there are kernels but none of them was tested.

    No row is significant then, whatever changed.

    Raises:
        MissingTableError: A count of significant rows would be 0 without a test.
    """
    untested = diff.list_untested_kinds()
    if "kernels" not in untested and len(untested) < sum(not frame.is_empty() for frame in diff.frames.values()):
        return
    if not untested:
        raise MissingTableError(f"{metric} counts significant rows, but neither side has any rows", hint=_DATA_HINT)
    reason = explain_missing_tests(diff)
    raise MissingTableError(
        f"{metric} counts significant rows, but {reason}",
        hint=_ITERATIONS_HINT,
    )


def _convert_glob_to_regex(pattern: str) -> re.Pattern[str]:
    """Convert a pattern, in which ``*`` matches any characters and ``?`` one character, to a regular expression."""
    return re.compile(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)


def parse_condition(text: str) -> Condition:
    """Parse a condition on the change of a metric, such as ``gpu_time > 5%``.

    Raises:
        UnknownFormatError: The text is not a condition, the metric is unknown, or the unit does not fit the metric.
    """
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise UnknownFormatError(
            f"{text!r} is not a condition", hint="write METRIC > LIMIT, such as 'gpu_time > 5%' or 'kernel_time > 2ms'"
        )
    metric, pattern, unit = match["metric"], match["pattern"], match["unit"]
    known = [*METRICS, *ROW_COUNTS] if pattern is None else list(KINDS)
    if metric not in known:
        what = "metric" if pattern is None else "kind"
        raise UnknownFormatError(
            f"unknown {what} {metric!r} in {text!r}", hint=create_choices_hint(f"{what}s", known, metric)
        )
    is_time = pattern is not None or (metric in METRICS and METRICS[metric].column == "time_ns")
    allowed = ["%", *_UNITS] if is_time else ["", "%"] if metric in METRICS else [""]
    if unit not in allowed:
        units = ", ".join(filter(None, allowed))
        forms = [*(["without a unit"] if "" in allowed else []), *([f"in {units}"] if units else [])]
        hint = f"write the limit of {metric} {' or '.join(forms)}"
        unit_text = f"the unit {unit!r}" if unit else "no unit"
        raise UnknownFormatError(f"the limit in {text!r} has {unit_text}, which {metric} does not allow", hint=hint)
    limit = Fraction(match["number"]) * _UNITS.get(unit, 1)
    return Condition(text.strip(), metric, pattern, match["comparison"], limit, is_relative=unit == "%")
