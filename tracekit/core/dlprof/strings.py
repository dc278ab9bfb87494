"""Build the dictionary of a DLProf database: its distinct strings, with ids in the order of their first use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterable

_OP_BITS, _ROW_BITS, _SLOT_BITS = 35, 3, 33


def find_first_use_positions(values: pl.Series, op_rows: pl.Series, section: int, index_in_row: int) -> pl.DataFrame:
    """Return the position at which DLProf first writes each distinct string.

    Args:
        values: One string per row, in the order in which DLProf writes them.
        op_rows: Row number of the op to which each string belongs.
        section: 0 for strings of ops, 1 for strings of op instances, 2 for strings of API calls.
        index_in_row: Index of the string within its row, from 0 to 7.

    Returns:
        One row per distinct string, in no particular order: ``string`` (String), ``position`` (an integer that
        increases in the order in which DLProf writes strings).
    """
    row = pl.int_range(pl.len())
    position = pl.col("op") * (1 << _OP_BITS) + (section << _SLOT_BITS) + row * (1 << _ROW_BITS) + index_in_row
    uses = pl.DataFrame({"string": values, "op": op_rows.cast(pl.Int64)}).select("string", position=position)
    return uses.group_by("string").agg(pl.col("position").min()).with_columns(pl.col("string").cast(pl.String))


@dataclass(frozen=True)
class StringDictionary:
    """The distinct strings of a DLProf database, in the order of their ids.

    Attributes:
        strings: The distinct strings. The id of a string is its row number plus 1.
    """

    strings: pl.Series

    @classmethod
    def build(
        cls, first_string: str, first_uses: Iterable[pl.DataFrame], last_strings: Iterable[pl.Series]
    ) -> StringDictionary:
        """Collect the distinct strings of a DLProf database in the order of their first use.

        Args:
            first_string: The string with id 1.
            first_uses: Strings after ``first_string``, with the positions of their first uses, as returned by
                ``find_first_use_positions``.
            last_strings: Strings after those of ``first_uses``, in order.
        """
        by_position = pl.concat(list(first_uses)).sort("position")["string"].drop_nulls()
        rest = [s.cast(pl.String) for s in last_strings]
        start = pl.Series([first_string], dtype=pl.String)
        return cls(pl.concat([start, by_position, *rest]).unique(maintain_order=True).alias("string"))

    def look_up_string_ids(self, values: pl.Series) -> pl.Series:
        """Return the id that each given string has in the table ``dictionary``. The id of a null is null."""
        entries = pl.DataFrame({"string": self.strings, "id": pl.int_range(1, len(self.strings) + 1, eager=True)})
        distinct = values.unique().to_frame("value").with_columns(string=pl.col("value").cast(pl.String))
        ids = distinct.join(entries, on="string", how="left").select("value", "id")
        return values.to_frame("value").join(ids, on="value", how="left", maintain_order="left")["id"]
