"""Repeated fields of many messages: where each occurrence lies, and whose it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import numpy.typing as npt

from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.walk import (
    AGAIN,
    FIELDS,
    MAX_SLOTS,
    OCTETS,
    ROOM,
    SCRATCH,
    SLACK,
    SLOTS,
    said,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.readers.common.protobuf.decoding import Buffer, Places

MAX_ROWS = 1 << 14
_EDGE, _CELL = 16, 13
"""Bytes of scratch a message (where it begins and ends), and an occurrence (row, place, end, slot)."""
PLACE, FOUND = 10, 11
"""Where the frame of the walk says at which byte it stands, and how many occurrences it put."""


@dataclass(frozen=True, slots=True)
class Occurrences:
    """Occurrences of a field in n messages, in order.

    Attributes:
        rows: Message of each, 0 to n - 1, ascending.
        starts: Places where their bytes begin.
        stops: Places where their bytes end.
    """

    rows: Places
    starts: Places
    stops: Places

    def __len__(self) -> int:
        return len(self.rows)


def occurrences(
    buffer: Buffer, starts: Places, stops: Places, wanted: Sequence[int], most: int | None = None
) -> list[Occurrences]:
    """Find every occurrence of some fields that hold bytes: n messages in, the occurrences of each field out.

    Args:
        buffer: Holds the messages.
        starts: n places where messages begin.
        stops: n places where they end; none of them beyond the buffer.
        wanted: Numbers of the fields, below 2048. Where one holds a number, it is passed over.
        most: How many occurrences there may be; None for any number.

    Raises:
        Damage: A field reaches beyond its message, or is of no known kind, or there are too many of them.
    """
    if not 0 < len(wanted) <= MAX_SLOTS or not 0 < min(wanted) <= max(wanted) < FIELDS:
        raise ValueError(f"fields {list(wanted)} cannot be found at once")
    table = buffer.part(SLOTS, FIELDS)
    table[:] = 0
    table[list(wanted)] = np.arange(1, len(wanted) + 1)
    found = [_NONE]
    number = 0
    for part in _parts(buffer, starts, stops):
        found.append(part)
        number += len(part[0])
        if most is not None and number > most:
            raise Damage(f"{len(starts)} messages hold more than {most} fields")
    rows, places, ends, slots = (np.concatenate(column) for column in zip(*found, strict=True))
    chosen = (np.flatnonzero(slots == slot) for slot in range(len(wanted)))
    return [Occurrences(rows[c], places[c], ends[c]) for c in chosen]


_NONE = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.uint8))
_Part = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8]]


def _parts(buffer: Buffer, starts: Places, stops: Places) -> Iterator[_Part]:
    """Walk through some messages at a time: rows, places, ends and slots of what is found."""
    for first in range(0, len(starts), MAX_ROWS):
        rows = min(MAX_ROWS, len(starts) - first)
        after = SCRATCH + _EDGE * rows
        room = (SCRATCH + ROOM - after) // _CELL
        at = [SCRATCH, SCRATCH + 8 * rows, *(after + 4 * room * k for k in range(4))]
        for place, edges in zip(at, (starts, stops), strict=False):
            buffer.part(place, 8 * rows).view(np.int64)[:] = edges[first : first + rows]
        frame = buffer.frame(rows, *at, len(buffer.octets) - SLACK, room, 0, 0, 0)
        result = AGAIN
        while result == AGAIN:
            result = buffer.call("occurrences")
            if result not in (0, AGAIN):
                _complain(result, frame, len(buffer.octets) - SLACK)
            n = int(frame[FOUND])
            numbers = [buffer.part(place, 4 * n).view(np.uint32).astype(np.int64) for place in at[2:5]]
            yield numbers[0] + first, numbers[1], numbers[2], buffer.part(at[5], n).copy()


def _complain(result: int, frame: npt.NDArray[np.int32], size: int) -> NoReturn:
    place = max(0, int(frame.view(np.uint32)[PLACE]) - OCTETS)
    raise Damage(f"{said(result)} (byte {place} of {size})")
