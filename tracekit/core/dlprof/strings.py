"""The dictionary of a DLProf database: every text once, numbered in the order of its first use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterable

_OP_BITS, _ROW_BITS, _SLOT_BITS = 35, 3, 33


def used(values: pl.Series, op: pl.Series, part: int, slot: int) -> pl.DataFrame:
    """Say where texts are used first, as ops are written one after the other.

    Args:
        values: One text a row, in the order written.
        op: Row of the op that each belongs to.
        part: 0 of the op itself, 1 of its instances, 2 of its calls.
        slot: Which text of the row it is, below 8.

    Returns:
        One row a distinct text: ``text`` (String), ``at``.
    """
    row = pl.int_range(pl.len())
    at = pl.col("op") * (1 << _OP_BITS) + (part << _SLOT_BITS) + row * (1 << _ROW_BITS) + slot
    found = pl.DataFrame({"text": values, "op": op.cast(pl.Int64)}).select("text", at=at)
    return found.group_by("text").agg(pl.col("at").min()).with_columns(pl.col("text").cast(pl.String))


@dataclass(frozen=True)
class Dictionary:
    """The texts, in order.

    Attributes:
        texts: The distinct texts; the number of each is its row and 1.
    """

    texts: pl.Series

    @classmethod
    def of(cls, first: str, uses: Iterable[pl.DataFrame], then: Iterable[pl.Series]) -> Dictionary:
        """Number texts.

        Args:
            first: The first text.
            uses: Texts and where they are used, as of ``used``.
            then: Texts that come after all these, in order.
        """
        in_order = pl.concat(list(uses)).sort("at")["text"].drop_nulls()
        rest = [s.cast(pl.String) for s in then]
        start = pl.Series([first], dtype=pl.String)
        return cls(pl.concat([start, in_order, *rest]).unique(maintain_order=True).alias("string"))

    def ids(self, values: pl.Series) -> pl.Series:
        """Give the number of each text: n texts in, n numbers out; null for null."""
        numbered = pl.DataFrame({"text": self.texts, "id": pl.int_range(1, len(self.texts) + 1, eager=True)})
        distinct = values.unique().to_frame("value").with_columns(text=pl.col("value").cast(pl.String))
        known = distinct.join(numbered, on="text", how="left").select("value", "id")
        return values.to_frame("value").join(known, on="value", how="left", maintain_order="left")["id"]
