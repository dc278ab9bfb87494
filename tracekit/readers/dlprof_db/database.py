"""Tables of a DLProf database as frames.

Tables are read one by one and joined here, not by SQLite: joins on columns that are not unique, or that only an index
of a damaged file says are, would make any number of rows of a small file.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa

from tracekit.errors import CorruptTraceError
from tracekit.readers.common import columns as col
from tracekit.readers.common.sqlite import database

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.registry import Source

AGAIN = "copy the database again from where DLProf wrote it"
ID = "id"


class Database(database.Database):
    """One opened database."""

    def __init__(self, source: Source) -> None:
        super().__init__(source, AGAIN)

    def rows(self, table: str, numbers: Sequence[str], texts: Sequence[str] = ()) -> pl.DataFrame:
        """Read columns of a table; if it is missing, there are no rows.

        Args:
            table: Name of the table.
            numbers: Columns of integers.
            texts: Columns of texts.

        Returns:
            One row per row of the table, as they are stored.

        Raises:
            CorruptTraceError: The table is damaged, or a column holds something else.
        """
        types = dict.fromkeys(numbers, pa.int64()) | dict.fromkeys(texts, pa.string())
        if table not in self.columns:
            return pl.DataFrame(pa.table({c: pa.array([], kind) for c, kind in types.items()}))
        columns, _ = self.read_columns(table, types)
        return pl.DataFrame(pa.table(columns))

    def unique(self, frame: pl.DataFrame, keys: Sequence[str], table: str) -> pl.DataFrame:
        """Return the rows of a frame whose keys are not null.

        Raises:
            CorruptTraceError: Several rows have the same keys.
        """
        known = frame.drop_nulls(keys)
        repeated = known.height - known.select(keys).n_unique() if known.height else 0
        if repeated:
            what = f"{repeated} rows repeat the {', '.join(keys)} of another"
            raise CorruptTraceError(what, path=self.path, table=table, hint=AGAIN)
        return known

    def by_id(self, table: str, numbers: Sequence[str], texts: Sequence[str] = ()) -> pl.DataFrame:
        """Read columns of a table with its ids, in their order; each row has another one.

        Raises:
            CorruptTraceError: The table is missing or damaged, or ids are not unique.
        """
        if table not in self.columns:
            raise CorruptTraceError("is missing", path=self.path, table=table, hint=AGAIN)
        rows = self.rows(table, tuple(dict.fromkeys((ID, *numbers))), texts)
        known = self.unique(rows, [ID], table)
        if known.height != rows.height:
            what = f"{rows.height - known.height} rows have no id"
            raise CorruptTraceError(what, path=self.path, table=table, hint=AGAIN)
        return known if known[ID].is_sorted() else known.sort(ID)

    @functools.cached_property
    def strings(self) -> col.Strings:
        """The dictionary of the database."""
        return strings(self.by_id("dictionary", (), ("string",)), "string")

    def named(
        self, ids: pl.Series, change: Callable[[pl.Series], pl.Series] | None = None, of: col.Strings | None = None
    ) -> pa.DictionaryArray:
        """Look up the texts that ids name: n ids in, n texts out, null where an id is null or names none.

        Args:
            ids: The ids.
            change: What to do with each text first.
            of: The texts by id; those of the dictionary, if None.
        """
        names, _ = (of or self.strings).look_up(pa.chunked_array([ids.to_arrow()]))
        if change is None:
            return names
        return col.named(names.indices, change(pl.Series(names.dictionary)).to_arrow().cast(pa.string()))

    def spelled_out(self, names: pa.DictionaryArray, table: str) -> pa.Array:
        """Return a text for each row: n in, n out.

        Raises:
            CorruptTraceError: They would take far more memory than the file has bytes.
        """
        try:
            return col.spelled_out(names)
        except ValueError as e:
            raise CorruptTraceError(str(e), path=self.path, table=table, hint=AGAIN) from e


def strings(rows: pl.DataFrame, column: str) -> col.Strings:
    """Return texts of rows by their ids."""
    return col.Strings(rows[ID].to_arrow(), rows[column].to_arrow().cast(pa.string()))
