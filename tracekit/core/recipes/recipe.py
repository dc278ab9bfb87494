"""Define recipes. A recipe has options, a function for one rank, and a function that combines the results of all ranks.

The results of many ranks can be merged in several steps, because their rows can be merged in any grouping.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import polars as pl

from tracekit.core.reports.report import Frames, Request
from tracekit.errors import UnknownFormatError

if TYPE_CHECKING:
    from collections.abc import Iterable

RANK = "rank"
ANALYSIS = "analysis"
MAX_INTEGER = (1 << 63) - 1
UNNAMED_INDEX = "__index_level_0__"
"""Name of the index that numbers the rows of a table, as pandas names an index without a name in a Parquet file."""

TIME_COLUMNS = (
    *("Duration", "Start", "End"),
    *("Mean", "Std", "Min", "Q1", "Median", "Q3", "Max", "Sum", "Sum of NVTX Ranges on CPU"),
)
"""Columns of nsys that contain times in ns in most tables."""

Value = int | str | None
Tables = dict[str, pl.DataFrame]


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a recipe. Its value is an integer if the default is an integer, and a string otherwise.

    Attributes:
        default: Default value, or None if the option is required.
        doc: Description of the option.
        minimum: Smallest allowed integer.
        maximum: Largest allowed integer.
        choices: Allowed strings, or an empty tuple if all strings are allowed.
    """

    default: Value
    doc: str
    minimum: int = 0
    maximum: int = MAX_INTEGER
    choices: tuple[str, ...] = ()

    def check_value(self, recipe_name: str, option_name: str, value: Value) -> None:
        """Check that a value of the option is allowed.

        Args:
            recipe_name: Name of the recipe, for the error message.
            option_name: Name of the option, for the error message.
            value: The value to check.

        Raises:
            UnknownFormatError: The value is not allowed.
        """
        if not self._is_allowed(value):
            message = f"recipe {recipe_name!r}: {value!r} is not a valid value of the option {option_name!r}"
            raise UnknownFormatError(message, hint=f"set {option_name} to {self._allowed_values_text}")

    def _is_allowed(self, value: Value) -> bool:
        if isinstance(self.default, int):
            return isinstance(value, int) and not isinstance(value, bool) and self.minimum <= value <= self.maximum
        return isinstance(value, str) and (not self.choices or value in self.choices)

    @property
    def _allowed_values_text(self) -> str:
        if isinstance(self.default, int):
            return f"an integer from {self.minimum} to {self.maximum}"
        return f"one of {', '.join(self.choices)}" if self.choices else "a string"


ALIGN = Option(
    "yes",
    "Whether times count from the start of the first capture (yes) or from that of each capture (no).",
    choices=("yes", "no"),
)


@dataclass(frozen=True, slots=True)
class Output:
    """The declaration of a table that a recipe returns.

    Attributes:
        name: Name of the table and of its file, as in nsys.
        index: Columns that nsys declares as the index of the table. They are the last columns. ``UNNAMED_INDEX`` is
            omitted if all rows belong to one rank.
        key_columns: Columns that are the point of the table. On a terminal, they are omitted last.
        time_columns: Columns with times in ns whose names do not contain the unit.
    """

    name: str
    index: tuple[str, ...] = ()
    key_columns: tuple[str, ...] = ()
    time_columns: tuple[str, ...] = TIME_COLUMNS


@dataclass(frozen=True, slots=True)
class Clock:
    """The position of a capture on the common time axis of all ranks, which begins with the first capture.

    Attributes:
        offset_ns: Start of the capture on the common time axis, in ns.
        duration_ns: Duration of the capture, in ns.
        end_ns: End of the last capture on the common time axis, in ns.
    """

    offset_ns: int = 0
    duration_ns: int = 0
    end_ns: int = 0


@dataclass(frozen=True, slots=True)
class RankRequest:
    """The input from which a recipe computes the tables of one rank.

    Attributes:
        frames: Function that returns the declared table with a given name.
        values: The values of the options of the recipe, keyed by name.
        clock: The position of the capture on the common time axis.
    """

    frames: Frames
    values: Mapping[str, Value]
    clock: Clock = Clock()

    def get_integer_option(self, option: str) -> int:
        """Return the value of an option whose values are integers."""
        return cast("int", self.values[option])

    def get_text_option(self, option: str) -> str:
        """Return the value of an option whose values are strings."""
        return cast("str", self.values[option])

    @property
    def report_request(self) -> Request:
        """The input for reports of this rank. It includes the option that selects the names of kernels."""
        kinds = {"short": ("base",), "mangled": ("mangled",)}
        return Request(self.frames, kinds.get(str(self.values.get("kernel_name")), ()))


RankFunction = Callable[[RankRequest], Tables]
ReduceFunction = Callable[[pl.DataFrame], pl.DataFrame]
CombineFunction = Callable[[Tables, Mapping[str, Value]], Tables]


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe, with its options, its returned tables and the functions that compute them.

    Attributes:
        name: Name of the recipe, as in nsys.
        doc: One-line description of the recipe.
        outputs: The returned tables. The first one is the main table.
        per_rank: Function that computes the tables of one rank.
        combine: Function that computes the returned tables from the merged tables of all ranks, which have the column
            ``rank``.
        options: The options of the recipe, keyed by name.
        reductions: Functions that aggregate the rows of several ranks, keyed by table. These tables have no column
            ``rank``.
        aligned: Whether ``per_rank`` uses the position of the capture on the common time axis.
    """

    name: str
    doc: str
    outputs: tuple[Output, ...]
    per_rank: RankFunction
    combine: CombineFunction
    options: Mapping[str, Option] = field(default_factory=dict)
    reductions: Mapping[str, ReduceFunction] = field(default_factory=dict)
    aligned: bool = False

    def add_rank_column(self, tables: Tables, rank: int) -> Tables:
        """Add the column ``rank`` to the tables of one rank.

        Tables that ``reductions`` aggregate over ranks do not get the column.
        """
        number = pl.lit(rank, pl.Int64).alias(RANK)
        return {n: t if n in self.reductions else t.with_columns(number) for n, t in tables.items()}

    def merge_ranks(self, results: Iterable[Tables]) -> Tables:
        """Merge the tables of several ranks into one table per name. The rows are in the order of the ranks."""
        listed: Sequence[Tables] = list(results)
        merged = {name: pl.concat([r[name] for r in listed], how="vertical_relaxed") for name in listed[0]}
        return {n: self.reductions[n](rows) if n in self.reductions else rows for n, rows in merged.items()}


def recipe(
    *outputs: Output,
    combine: CombineFunction,
    options: Mapping[str, Option] | None = None,
    reductions: Mapping[str, ReduceFunction] | None = None,
    aligned: bool = False,
) -> Callable[[RankFunction], Recipe]:
    """Return a decorator that turns a function into a recipe.

    The decorated function computes the tables of one rank. Its name becomes the name of the recipe, and the first line
    of its docstring becomes the description. The arguments are the other attributes of ``Recipe``.
    """

    def declare_recipe(per_rank: RankFunction) -> Recipe:
        doc = (per_rank.__doc__ or "").partition("\n")[0]
        return Recipe(per_rank.__name__, doc, outputs, per_rank, combine, options or {}, reductions or {}, aligned)

    return declare_recipe


def move_rank_to_end(rows: pl.DataFrame, *index_columns: str) -> pl.DataFrame:
    """Rename the column ``rank`` to ``Rank``, and move it and the index columns after all other columns.

    The index ``UNNAMED_INDEX`` numbers the rows of each rank. As in nsys, it is omitted if all rows belong to one rank.
    """
    is_one_rank = RANK in rows.columns and rows[RANK].n_unique() == 1
    keys = [pl.col(c).cast(pl.Int64) if c == UNNAMED_INDEX else pl.col(c) for c in index_columns]
    rank = [pl.col(RANK).alias("Rank")] if RANK in rows.columns else []
    ordered = rows.select(pl.exclude(RANK, *index_columns), *rank, *keys)
    return ordered.drop(UNNAMED_INDEX, strict=False) if is_one_rank else ordered
