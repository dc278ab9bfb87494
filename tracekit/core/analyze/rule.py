"""Define rules. A rule consists of a function that finds problems in a trace, and of the columns to print."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tracekit.core.reports.table import ReportColumn, ReportTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.core.reports.report import Frames
    from tracekit.core.rollup import Rollup

ALL_ROWS = -1
MAX_ROWS = 50
"""Number of rows that a rule lists by default, as in nsys."""


class Option(NamedTuple):
    """An option of a rule. Its value is an integer.

    Attributes:
        default: Value if the option is not set.
        doc: Description of the option.
        minimum: Smallest allowed value.
        maximum: Largest allowed value. None if there is no limit.
    """

    default: int
    doc: str
    minimum: int = 0
    maximum: int | None = None


ROWS = Option(MAX_ROWS, "Number of rows to list; -1 lists all rows.", minimum=ALL_ROWS)


@dataclass(frozen=True, slots=True)
class Request:
    """The input of a rule: the tables of a trace, and the values of the options of the rule.

    Attributes:
        frames: Function that returns the declared table with a given name.
        values: The values of the options of the rule.
        rollup: The roll-up of the trace, or None for one with the default iterations.
    """

    frames: Frames
    values: Mapping[str, int]
    rollup: Rollup | None = None

    def get_rollup(self) -> Rollup:
        """Return the roll-up of the trace."""
        from tracekit.core.rollup import Rollup

        return Rollup.from_frames(self.frames) if self.rollup is None else self.rollup


RowsFunction = Callable[[Request], pl.DataFrame]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that finds problems. Calling it with a request returns the rows that it finds.

    Attributes:
        name: Name of the rule.
        doc: Description of the rule in one line.
        columns: The printed columns, in order.
        options: The options of the rule, by name.
        find_rows: Function that returns all rows in print order.
    """

    name: str
    doc: str
    columns: tuple[ReportColumn, ...]
    options: Mapping[str, Option]
    find_rows: RowsFunction

    def __call__(self, request: Request) -> ReportTable:
        """Return the rows that the rule finds, numbered from 1 in the column ``row``."""
        rows = self.find_rows(request)
        limit = request.values["rows"]
        listed = rows if limit == ALL_ROWS else rows.head(limit)
        return ReportTable(self.name, self.columns, listed.with_row_index("row", offset=1))


def rule(*columns: ReportColumn, options: Mapping[str, Option] | None = None) -> Callable[[RowsFunction], Rule]:
    """Return a decorator that turns a function into a rule.

    The function finds the rows. Its name becomes the name of the rule, and the first line of its docstring becomes the
    description. Every rule also has the option ``rows``.
    """

    def declare_rule(find_rows: RowsFunction) -> Rule:
        doc = (find_rows.__doc__ or "").partition("\n")[0]
        return Rule(find_rows.__name__, doc, columns, {"rows": ROWS, **(options or {})}, find_rows)

    return declare_rule


def sort_longest_first(rows: pl.DataFrame, *tie_columns: str) -> pl.DataFrame:
    """Sort rows by descending ``duration_ns``, then by start, then by the columns ``tie_columns``."""
    keys: Sequence[str] = ("duration_ns", "start_ns", *tie_columns)
    return rows.sort(keys, descending=[True] + [False] * (len(keys) - 1), maintain_order=True)
