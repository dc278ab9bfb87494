"""Narrow the events of a batch to the rows of each table, decoding the fields that decide it once for all tables.

Function calls of all kinds have the same payload. Their class determines the table, and the tables of OpenMP also
depend on a message inside the payload. Tables that are read together share these fields.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tracekit.readers.common.protobuf.decoding import decode
from tracekit.readers.nsys_rep import layout, unknown_events
from tracekit.readers.nsys_rep.arrays import nested_fields

if TYPE_CHECKING:
    from collections import Counter

    import pyarrow as pa

    from tracekit.readers.common.protobuf.decoding import Field, Int64Array, Mask
    from tracekit.readers.nsys_rep.entries import Selection
    from tracekit.readers.nsys_rep.events import SelectedEvents
    from tracekit.readers.nsys_rep.layout import EventTable


class Narrowing:
    """The fields of the events of one batch that decide which table an event belongs to.

    Attributes:
        mpi_calls: Columns of all tables of MPI calls, once one of them is decoded.
    """

    def __init__(self) -> None:
        self.mpi_calls: dict[str, dict[str, pa.Array]] = {}
        self._classes: dict[Selection, Field | None] = {}
        self._rows: dict[tuple[Selection, tuple[int, ...]], Int64Array] = {}
        self._parts: dict[tuple[Selection, tuple[int, ...]], dict[tuple[int, ...], Field | None]] = {}

    def narrow(
        self, selection: Selection, chosen: SelectedEvents, table: EventTable, skipped: Counter[str]
    ) -> SelectedEvents:
        """Return the selected events that have a class of a table, and the message that identifies its rows.

        Args:
            selection: Selection that the events come from.
            chosen: Events of the selection.
            table: Source table, which has event classes.
            skipped: Counter to which events of unknown classes are added by name.

        Raises:
            Damage: A message is invalid.
        """
        key = selection, table.event_classes
        if key not in self._rows:
            self._rows[key] = self._rows_of_classes(selection, chosen, table, skipped)
        rows = self._rows[key]
        if table.part:
            if key not in self._parts:
                self._parts[key] = _decode_parts(chosen, rows)
            rows = rows[_validity(self._parts[key][table.part], len(rows))]
        return replace(
            chosen, starts=chosen.starts[rows], stops=chosen.stops[rows], types=lambda nth: chosen.types(rows[nth])
        )

    def _rows_of_classes(
        self, selection: Selection, chosen: SelectedEvents, table: EventTable, skipped: Counter[str]
    ) -> Int64Array:
        """Return the indices of the events that have a class of a table."""
        if selection not in self._classes:
            self._classes[selection] = decode(chosen.buffer, chosen.starts, chosen.stops, (layout.CLASS,)).get(
                layout.CLASS
            )
            classes = self._classes[selection]
            top = {} if classes is None else {layout.CLASS: classes}
            skipped.update(unknown_events.count_unknown(chosen, top, table, np.zeros(0, np.int64)))
        classes = self._classes[selection]
        if classes is None:
            return np.zeros(0, np.int64)
        keep = np.isin(classes.values, np.array(table.event_classes, np.uint64))
        return np.flatnonzero(keep if classes.valid is None else keep & classes.valid)


def _decode_parts(chosen: SelectedEvents, rows: Int64Array) -> dict[tuple[int, ...], Field | None]:
    """Decode the messages that identify the rows of tables, in the events at some indices."""
    parts = {t.part for t in layout.TABLES.values() if t.part}
    fields = decode(chosen.buffer, chosen.starts[rows], chosen.stops[rows], {part[0] for part in parts})
    result: dict[tuple[int, ...], Field | None] = {}
    for outer in {part[0] for part in parts}:
        inner = {part[1:] for part in parts if part[0] == outer}
        nested = nested_fields(chosen.buffer, fields.get(outer), inner)
        result |= {(outer, *path): field for path, field in nested.items()}
    return result


def _validity(field: Field | None, rows: int) -> Mask:
    """Return whether each of n events has a field."""
    if field is None:
        return np.zeros(rows, np.bool_)
    return np.ones(rows, np.bool_) if field.valid is None else field.valid
