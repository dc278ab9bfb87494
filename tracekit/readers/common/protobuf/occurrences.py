"""Find the message index and the byte range of every occurrence of repeated fields in many protobuf messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoder import (
    BUFFER,
    FIELDS,
    FULL,
    MAX_SLOTS,
    SCRATCH,
    SCRATCH_BYTES,
    SLOTS,
    format_error_message,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.readers.common.protobuf.decoding import Buffer, Int64Array

MAX_ROWS = 1 << 14
_MESSAGE_BYTES, _OCCURRENCE_BYTES = 16, 13
"""Bytes of scratch memory per message (start and end offset), and per occurrence (message index, start, end, slot)."""


@dataclass(frozen=True, slots=True)
class Occurrences:
    """The occurrences of one field in many protobuf messages. Each array has one element per occurrence.

    Attributes:
        rows: Index of the message that contains each occurrence, in ascending order.
        starts: Start offset of the bytes of each occurrence.
        stops: End offset of the bytes of each occurrence.
    """

    rows: Int64Array
    starts: Int64Array
    stops: Int64Array

    def __len__(self) -> int:
        return len(self.rows)


def find_occurrences(
    buffer: Buffer, starts: Int64Array, stops: Int64Array, fields: Sequence[int], max_occurrences: int | None = None
) -> list[Occurrences]:
    """Find all occurrences of the given length-delimited fields in many protobuf messages.

    Args:
        buffer: Buffer that holds the messages.
        starts: Start offset of each message.
        stops: End offset of each message, within the buffer.
        fields: Field numbers below 2048. Occurrences with a numeric value are ignored.
        max_occurrences: Maximum number of occurrences of all fields together, or None for no limit.

    Returns:
        The occurrences of each field, in the order of ``fields``.

    Raises:
        Damage: A field extends beyond the end of its message or has an unknown wire type, or there are too many
            occurrences.
    """
    if not 0 < len(fields) <= MAX_SLOTS:
        raise ValueError(f"{len(fields)} fields were requested, but 1 to {MAX_SLOTS} fields are allowed")
    unsupported = [number for number in fields if not 0 < number < FIELDS]
    if unsupported:
        raise ValueError(f"field numbers from 1 to {FIELDS - 1} are supported, but not {unsupported}")
    table = buffer.bytes(SLOTS, FIELDS)
    table[:] = 0
    table[list(fields)] = np.arange(1, len(fields) + 1)
    batches = [_NO_OCCURRENCES]
    count = 0
    for batch in _find_occurrence_batches(buffer, starts, stops):
        batches.append(batch)
        count += len(batch[0])
        if max_occurrences is not None and count > max_occurrences:
            raise Damage(
                f"the repeated fields of {len(starts)} messages have more than {max_occurrences} values in total, "
                "which tracekit does not support"
            )
    rows, begins, ends, slots = (np.concatenate(column) for column in zip(*batches, strict=True))
    by_field = (np.flatnonzero(slots == slot) for slot in range(len(fields)))
    return [Occurrences(rows[i], begins[i], ends[i]) for i in by_field]


_NO_OCCURRENCES = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.uint8))
_OccurrenceBatch = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8]]


def _find_occurrence_batches(buffer: Buffer, starts: Int64Array, stops: Int64Array) -> Iterator[_OccurrenceBatch]:
    """Yield the message indices, start offsets, end offsets and field indices of the occurrences, in batches."""
    for first in range(0, len(starts), MAX_ROWS):
        rows = min(MAX_ROWS, len(starts) - first)
        after = SCRATCH + _MESSAGE_BYTES * rows
        room = (SCRATCH + SCRATCH_BYTES - after) // _OCCURRENCE_BYTES
        at = [SCRATCH, SCRATCH + 8 * rows, *(after + 4 * room * k for k in range(4))]
        for place, edges in zip(at, (starts, stops), strict=False):
            buffer.array(place, rows, np.int64)[:] = edges[first : first + rows]
        arrays = dict(zip(("starts", "stops", "rows", "begins", "ends", "slots"), at, strict=True))
        result = buffer.call("occurrences", messages=rows, limit=buffer.size, capacity=room, **arrays)
        while True:
            if result not in (0, FULL):
                offset = max(0, buffer.parameter("occurrences", "offset") - BUFFER)
                raise Damage(f"{format_error_message(result)} (offset {offset} of {buffer.size})")
            n = buffer.parameter("occurrences", "count")
            numbers = [buffer.array(place, n, np.uint32).astype(np.int64) for place in at[2:5]]
            yield numbers[0] + first, numbers[1], numbers[2], buffer.bytes(at[5], n).copy()
            if not result:
                break
            result = buffer.call("occurrences")
