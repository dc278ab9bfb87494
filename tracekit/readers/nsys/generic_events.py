"""Look up the times, types and threads of generic events by event id.

Exports store the values of generic events in another table, whose rows refer to the events by id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from tracekit.readers.common.tries import Int64Array


@dataclass(frozen=True, slots=True)
class GenericEvents:
    """The generic events of an export, sorted by id.

    Attributes:
        ids: Id of each event, ascending.
        columns: The source columns ``timestamp``, ``typeId`` and ``globalTid``, with one row per element of ``ids``.
    """

    TABLE: ClassVar = "GENERIC_EVENTS"
    COLUMNS: ClassVar = ("genericEventId", "timestamp", "typeId", "globalTid")

    ids: Int64Array
    columns: pa.Table

    @classmethod
    def from_table(cls, source_rows: pa.Table) -> GenericEvents:
        """Create a lookup table from the columns ``COLUMNS`` of generic events. The rows may be in any order."""
        source_rows = source_rows.filter(pc.is_valid(source_rows["genericEventId"]))
        keys = source_rows["genericEventId"].to_numpy()
        if len(keys) > 1 and not (keys[1:] >= keys[:-1]).all():
            order = np.argsort(keys, kind="stable")
            keys, source_rows = keys[order], source_rows.take(order)
        return cls(keys, source_rows.drop_columns("genericEventId"))

    def look_up_column(self, column_name: str, event_ids: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the value of a source column for each event id. The value is null for an unknown id."""
        values = pc.fill_null(event_ids, -1).to_numpy()
        rows = np.searchsorted(self.ids, values)
        known = rows < len(self.ids)
        known[known] = self.ids[rows[known]] == values[known]
        return self.columns[column_name].take(pa.array(rows, mask=~known))
