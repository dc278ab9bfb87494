"""Read tables of a DLProf database as polars frames.

Tables are read one by one and joined in polars. In a damaged file, the columns of a join may contain duplicates, even
if an index declares these columns unique. A join in SQLite could then return far more rows than the file contains.
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

    from tracekit.registry.source import Source

COPY_AGAIN = "copy the database again from where DLProf wrote it"
ID = "id"


class DlprofFile(database.Database):
    """An open DLProf database, whose tables are read as polars frames."""

    def __init__(self, source: Source) -> None:
        super().__init__(source, COPY_AGAIN)

    def read_rows(self, table: str, integer_columns: Sequence[str], string_columns: Sequence[str] = ()) -> pl.DataFrame:
        """Read columns of a table. The result has no rows if the table is missing.

        Args:
            table: Name of the table.
            integer_columns: Names of the integer columns to read.
            string_columns: Names of the string columns to read.

        Returns:
            All rows of the table, in the order in which they are stored.

        Raises:
            CorruptTraceError: The table is damaged, or a column has values of another type.
        """
        types = dict.fromkeys(integer_columns, pa.int64()) | dict.fromkeys(string_columns, pa.string())
        if table not in self.columns:
            return pl.DataFrame(pa.table({c: pa.array([], kind) for c, kind in types.items()}))
        columns, _ = self.read_columns(table, types)
        return pl.DataFrame(pa.table(columns))

    def require_unique_keys(self, frame: pl.DataFrame, key_columns: Sequence[str], table: str) -> pl.DataFrame:
        """Return the rows of a frame that have no null in a key column. The keys of these rows must be unique.

        Raises:
            CorruptTraceError: Several rows have the same keys.
        """
        with_keys = frame.drop_nulls(key_columns)
        repeated = with_keys.height - with_keys.select(key_columns).n_unique() if with_keys.height else 0
        if repeated:
            what = f"{repeated} rows have the same {', '.join(key_columns)} as an earlier row"
            raise CorruptTraceError(what, path=self.path, table=table, hint=COPY_AGAIN)
        return with_keys

    def read_rows_by_id(
        self, table: str, integer_columns: Sequence[str], string_columns: Sequence[str] = ()
    ) -> pl.DataFrame:
        """Read columns of a table, with the rows sorted by id. The ids must be unique.

        Raises:
            CorruptTraceError: The table is missing or damaged, or ids are missing or not unique.
        """
        if table not in self.columns:
            raise CorruptTraceError(
                "the table is missing from the DLProf database", path=self.path, table=table, hint=COPY_AGAIN
            )
        rows = self.read_rows(table, tuple(dict.fromkeys((ID, *integer_columns))), string_columns)
        with_ids = self.require_unique_keys(rows, [ID], table)
        if with_ids.height != rows.height:
            what = f"{rows.height - with_ids.height} rows have no id"
            raise CorruptTraceError(what, path=self.path, table=table, hint=COPY_AGAIN)
        return with_ids if with_ids[ID].is_sorted() else with_ids.sort(ID)

    @functools.cached_property
    def dictionary_strings(self) -> col.StringTable:
        """The strings of the table ``dictionary``, keyed by id."""
        return map_strings_by_id(self.read_rows_by_id("dictionary", (), ("string",)), "string")

    def look_up_strings(
        self,
        ids: pl.Series,
        transform: Callable[[pl.Series], pl.Series] | None = None,
        strings: col.StringTable | None = None,
    ) -> pa.DictionaryArray:
        """Replace ids with the strings that they refer to. A string is null where the id is null or unknown.

        Args:
            ids: The ids of the strings, which may be null.
            transform: A function that replaces the distinct strings, or None to leave them unchanged.
            strings: The strings by id, or None for the strings of the table ``dictionary``.
        """
        names, _ = (strings or self.dictionary_strings).look_up_strings_of_ids(pa.chunked_array([ids.to_arrow()]))
        if transform is None:
            return names
        return col.build_dictionary_array(
            names.indices, transform(pl.Series(names.dictionary)).to_arrow().cast(pa.string())
        )

    def decode_dictionary(self, names: pa.DictionaryArray, table: str) -> pa.Array:
        """Convert a dictionary-encoded column to plain strings.

        Raises:
            CorruptTraceError: The rows repeat long strings so often that the result would exceed the memory limit.
        """
        try:
            return col.decode_dictionary(names)
        except ValueError as e:
            raise CorruptTraceError(str(e), path=self.path, table=table, hint=COPY_AGAIN) from e


def map_strings_by_id(rows: pl.DataFrame, column: str) -> col.StringTable:
    """Return the strings of a column, keyed by row id."""
    return col.StringTable(rows[ID].to_arrow(), rows[column].to_arrow().cast(pa.string()))
