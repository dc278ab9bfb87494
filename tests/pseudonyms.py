"""Columns of tables that hold pseudonyms once a capture is redacted."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

COLUMNS = {"devices": ("uuid", "bus_location")}


def comparable(name: str, table: pa.Table) -> pa.Table:
    """Number the values of columns that become pseudonyms: a redacted table has the same numbers as the original."""
    for column in COLUMNS.get(name, ()):
        at = table.column_names.index(column)
        encoded = pc.dictionary_encode(table[column]).combine_chunks()
        table = table.set_column(at, column, encoded.indices)
    return table
