"""Decode the event fields of a batch once for all source tables with the same payload field.

One payload field stores all function calls, and another field stores all GPU activities. The table of an event is
determined by its class, its event type or a message inside the payload. Tables that are read together share the decoded
fields, and each table selects its own rows.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.readers.common.protobuf.decoding import decode, find_occurrences
from tracekit.readers.nsys_rep import layout, unknown_events

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from tracekit.readers.common.budget import Budget
    from tracekit.readers.common.protobuf.decoding import Field, Int64Array, Mask
    from tracekit.readers.nsys_rep.events import SelectedEvents
    from tracekit.readers.nsys_rep.layout import EventTable

FIELD_BYTES = 17
"""Bytes of memory per value of a decoded field: the value, its end offset and its validity."""
WITHOUT_NESTED_MESSAGE = 0
"""Key of the events that have none of the nested messages by which tables are identified. No field has this number."""
_CODES, _NO_CLASS = 256, 255
"""Number of class codes, and the code of events without a class or with a class that no table has."""


class NeededFields(NamedTuple):
    """Numbers of the payload fields that are decoded together.

    Attributes:
        numbers: Numbers of the fields.
        frames: Number of the repeated field that contains the frames of a call stack, or None. All frames of an event
            are decoded as one range of bytes. The number is also in ``numbers``.
    """

    numbers: frozenset[int] = frozenset()
    frames: int | None = None

    def __or__(self, other: NeededFields) -> NeededFields:
        return NeededFields(self.numbers | other.numbers, other.frames if self.frames is None else self.frames)


class EventFields:
    """The decoded fields of the selected events of one batch, for all tables that need them.

    Attributes:
        selected_events: The selected events.
        types: Event types that are selected. If empty, all types are selected.
        mpi_calls: Columns of each table of MPI calls. The mapping is empty until one of the tables is decoded.
    """

    def __init__(self, selected_events: SelectedEvents, needed: NeededFields, types: tuple[int, ...] = ()) -> None:
        """Select the fields to decode. Decoding is deferred until the first use.

        Args:
            selected_events: The selected events.
            needed: Fields that at least one table needs.
            types: Event types that are selected. If empty, all types are selected.
        """
        self.selected_events = selected_events
        self.types = types
        self.mpi_calls: dict[str, dict[str, pa.Array]] = {}
        self._needed = needed
        self._fields: dict[int, Field] | None = None
        self._types: npt.NDArray[np.uint8] | None = None
        self._classes: npt.NDArray[np.uint8] | None = None
        self._unknown_calls: dict[tuple[int, ...], Counter[str]] = {}
        self._parts: dict[tuple[int, tuple[int, ...]], dict[int, Int64Array]] = {}

    def decode_needed_fields(self, budget: Budget) -> dict[int, Field]:
        """Return the decoded fields by field number. Fields that no event has are omitted.

        Raises:
            Damage: A message is invalid, or the fields take more memory than the budget allows.
        """
        if self._fields is None:
            selected_events, numbers = self.selected_events, self._needed.numbers
            budget.check_temporary_memory(len(selected_events.starts), FIELD_BYTES * len(numbers), "events")
            self._fields = decode(
                selected_events.buffer, selected_events.starts, selected_events.stops, numbers, self._needed.frames
            )
        return self._fields

    def compute_mask_of_types(self, types: Sequence[int]) -> Mask:
        """Return a mask of the events that have one of the given event types."""
        if self._types is None:
            self._types = (self.selected_events.get_types(np.arange(len(self.selected_events.starts))) % _CODES).astype(
                np.uint8
            )
        return _compute_membership_mask(types)[self._types]

    def compute_mask_of_classes(self, classes: Sequence[int], budget: Budget) -> Mask:
        """Return a mask of the events that have one of the given class numbers, each of which must be less than 255."""
        if self._classes is None:
            field = self.decode_needed_fields(budget).get(layout.CLASS)
            if field is None:
                self._classes = np.full(len(self.selected_events.starts), _NO_CLASS, np.uint8)
            else:
                self._classes = np.minimum(field.values, np.uint64(_NO_CLASS)).astype(np.uint8)
                if field.valid is not None:
                    self._classes[~field.valid] = _NO_CLASS
        return _compute_membership_mask(classes)[self._classes]

    def find_row_indices_with_nested_message(self, table: EventTable, budget: Budget) -> Int64Array:
        """Return the indices of the events that are rows of a table, identified by class and nested message.

        Raises:
            Damage: A message is invalid.
        """
        outer, *inner = table.nested_message
        key = outer, table.event_classes
        if key not in self._parts:
            self._parts[key] = self._find_event_indices_by_nested_message(outer, table, budget)
        return self._parts[key].get(inner[0] if inner else WITHOUT_NESTED_MESSAGE, np.zeros(0, np.int64))

    def count_unknown_events(
        self, table: EventTable, rows: Int64Array | None, types: Sequence[int], budget: Budget
    ) -> Counter[str]:
        """Count events of unknown types that were read for a table but are not rows of the table, by type name.

        Args:
            table: Source table that was read.
            rows: Indices of the events that are rows of the table, or None if all events are rows.
            types: Event types that were read for the table. If empty, events of all types were read.
            budget: Memory budget of the table.
        """
        if table.event_classes:
            return self._count_unknown_calls(tuple(types), budget)
        if rows is None or table.payload not in unknown_events.TABLES:
            return Counter()
        rest = self.compute_mask_of_types(types) if types else np.ones(len(self.selected_events.starts), np.bool_)
        rest[rows] = False
        return unknown_events.count_unknown_activities(
            self.selected_events, self.decode_needed_fields(budget), table, np.flatnonzero(rest)
        )

    def _count_unknown_calls(self, types: tuple[int, ...], budget: Budget) -> Counter[str]:
        """Count calls with one of the given event types and an unknown class, by class name.

        The result is cached.
        """
        if types not in self._unknown_calls:
            unknown = ~self.compute_mask_of_classes(unknown_events.KNOWN_CLASSES, budget)
            rows = np.flatnonzero(unknown & self.compute_mask_of_types(types) if types else unknown)
            field = self.decode_needed_fields(budget).get(layout.CLASS)
            self._unknown_calls[types] = unknown_events.count_unknown_calls(field, rows) if len(rows) else Counter()
        return self._unknown_calls[types]

    def _find_event_indices_by_nested_message(
        self, outer_field: int, table: EventTable, budget: Budget
    ) -> dict[int, Int64Array]:
        """Find the nested messages that identify table rows, in events with one of the event classes of a table.

        Returns:
            The indices of the events that contain each nested message, by the field number of the message. The key
            ``WITHOUT_NESTED_MESSAGE`` stands for the events that contain none of these messages.
        """
        field = self.decode_needed_fields(budget).get(outer_field)
        if field is None:
            return {}
        keep = self.compute_mask_of_classes(table.event_classes, budget)
        rows = np.flatnonzero(keep if field.valid is None else keep & field.valid)
        starts, stops = field.compute_byte_ranges()
        numbers = sorted(
            {
                t.nested_message[1]
                for t in layout.TABLES.values()
                if len(t.nested_message) > 1 and t.nested_message[0] == outer_field
            }
        )
        occurrences = find_occurrences(
            self.selected_events.buffer, starts[rows], stops[rows], numbers, len(rows) * len(numbers)
        )
        indices = {
            number: rows[np.unique(part.rows)] if (np.diff(part.rows) <= 0).any() else rows[part.rows]
            for number, part in zip(numbers, occurrences, strict=True)
        }
        return indices | {WITHOUT_NESTED_MESSAGE: np.setdiff1d(rows, np.concatenate(list(indices.values())))}


def _compute_membership_mask(codes: Sequence[int]) -> Mask:
    """Return a mask with one element for each code from 0 to 255, which is true for the given codes."""
    table = np.zeros(_CODES, np.bool_)
    table[list(codes)] = True
    return table
