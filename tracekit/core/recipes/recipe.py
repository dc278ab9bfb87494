"""Define recipes. A recipe has a function for one rank, and a function that combines the results of all ranks.

The results of many ranks can be merged in several steps, because their rows can be merged in any grouping.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.reports.report import Request

if TYPE_CHECKING:
    from collections.abc import Iterable

RANK = "rank"
ANALYSIS = "analysis"
UNNAMED_INDEX = "__index_level_0__"
"""Name of the index that numbers the rows of a table, as pandas names an index without a name in a Parquet file."""

RecipeTables = dict[str, pl.DataFrame]
RankFunction = Callable[[Request], RecipeTables]
ReduceFunction = Callable[[pl.DataFrame], pl.DataFrame]
CombineFunction = Callable[[RecipeTables], RecipeTables]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The functions that compute the tables of a recipe.

    Attributes:
        per_rank: Function that computes the tables of one rank.
        combine: Function that computes the returned tables from the merged tables of all ranks, which have the column
            ``rank``.
        reductions: Functions that aggregate the rows of several ranks, keyed by table. These tables have no column
            ``rank``.
        aligned: Whether ``per_rank`` uses the position of the capture on the common time axis.
    """

    per_rank: RankFunction
    combine: CombineFunction
    reductions: Mapping[str, ReduceFunction] = field(default_factory=dict)
    aligned: bool = False

    def add_rank_column(self, tables: RecipeTables, rank: int) -> RecipeTables:
        """Add the column ``rank`` to the tables of one rank.

        Tables that ``reductions`` aggregate over ranks do not get the column.
        """
        number = pl.lit(rank, pl.Int64).alias(RANK)
        return {n: t if n in self.reductions else t.with_columns(number) for n, t in tables.items()}

    def merge_ranks(self, results: Iterable[RecipeTables]) -> RecipeTables:
        """Merge the tables of several ranks into one table per name. The rows are in the order of the ranks."""
        listed: Sequence[RecipeTables] = list(results)
        merged = {name: pl.concat([r[name] for r in listed], how="vertical_relaxed") for name in listed[0]}
        return {n: self.reductions[n](rows) if n in self.reductions else rows for n, rows in merged.items()}


def recipe(
    *, combine: CombineFunction, reductions: Mapping[str, ReduceFunction] | None = None, aligned: bool = False
) -> Callable[[RankFunction], Recipe]:
    """Return a decorator that turns a function into a recipe.

    The decorated function computes the tables of one rank. The arguments are the other attributes of ``Recipe``.
    """
    return lambda per_rank: Recipe(per_rank, combine, reductions or {}, aligned)


def move_rank_to_end(rows: pl.DataFrame, *index_columns: str) -> pl.DataFrame:
    """Rename the column ``rank`` to ``Rank``, and move it and the index columns after all other columns.

    The index ``UNNAMED_INDEX`` numbers the rows of each rank. As in nsys, it is omitted if all rows belong to one rank.
    """
    is_one_rank = RANK in rows.columns and rows[RANK].n_unique() == 1
    keys = [pl.col(c).cast(pl.Int64) if c == UNNAMED_INDEX else pl.col(c) for c in index_columns]
    rank = [pl.col(RANK).alias("Rank")] if RANK in rows.columns else []
    ordered = rows.select(pl.exclude(RANK, *index_columns), *rank, *keys)
    return ordered.drop(UNNAMED_INDEX, strict=False) if is_one_rank else ordered
