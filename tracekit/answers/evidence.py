"""Find the recorded rows that belong to each row of a result, by the columns that the analysis declares."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit import schemas
from tracekit.answers.envelope import RowIds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.registry.analyses import RowReference

    Scan = Callable[[str], pl.LazyFrame]

MAX_IDS = 10
"""Maximum number of ids that are listed for a row of a result."""
_ROW = "row of the result"
_ID = "id of the row"


def find_row_ids(
    scan: Scan, rows: pl.DataFrame, references: Sequence[RowReference], rank: int | None = None
) -> list[RowIds | None]:
    """Return the ids of the recorded rows that belong to each row of a result.

    Args:
        scan: Function that returns a table of the capture.
        rows: The rows of the result, with the columns that the references name. Others are not searched for.
        references: The tables to search. The first one that has rows for a row of the result counts.
        rank: Rank of the capture, or None.

    Returns:
        One entry per row of the result: at most ``MAX_IDS`` ids in the order of the file, and the number of all rows.
        None for a row of the result to which no recorded row belongs.
    """
    matches: list[RowIds | None] = [None] * rows.height
    for reference in references:
        if not set(reference.on.values()) <= set(rows.columns):
            continue
        missing = [i for i, each in enumerate(matches) if each is None]
        if not missing:
            break
        for i, ids, count in _join(scan(reference.table), rows[missing], reference).iter_rows():
            (column,) = schemas.table(reference.table).key
            matches[missing[i]] = RowIds(reference.table, column, tuple(ids), count, rank)
    return matches


def _join(table: pl.LazyFrame, rows: pl.DataFrame, reference: RowReference) -> pl.DataFrame:
    """Return the number of each row of a result that has recorded rows, with their first ids and their number."""
    (column,) = schemas.table(reference.table).key
    kinds = table.collect_schema()
    keys = list(reference.on)
    sought = rows.select(
        pl.int_range(pl.len()).alias(_ROW),
        *(pl.col(field).cast(kinds[name], strict=False).alias(name) for name, field in reference.on.items()),
    )
    listed = sought.select(keys).unique()
    recorded = (
        table.select(pl.col(column).alias(_ID), *keys)
        .join(listed.lazy(), on=keys, how="semi", nulls_equal=True)
        .group_by(keys)
        .agg(pl.col(_ID).sort().head(MAX_IDS).alias("ids"), pl.len().alias("count"))
        .collect()
    )
    joined = sought.join(recorded, on=keys, how="inner", nulls_equal=True, maintain_order="left")
    return joined.select(_ROW, "ids", "count")
