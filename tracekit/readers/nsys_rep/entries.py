"""The entries of a block of events: where each one's payload lies, and what kind it is.

A block is a chain: each entry begins where the one before it ends.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import Buffer
from tracekit.readers.common.protobuf.walk import AGAIN, BROKEN, MANY, ROOM, SCRATCH, SLACK, complain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracekit.readers.common.budget import Budget
    from tracekit.readers.common.protobuf.decoding import Mask, Places

Kinds: TypeAlias = npt.NDArray[np.uint16]
Starts: TypeAlias = npt.NDArray[np.uint32]

_FIRST = np.zeros(1, np.int64)
MAX_ENTRIES = 1 << 17
ENTRY_BYTES = 16
"""Memory that is kept of an entry, and what it takes to look for it."""
BLOCK, PLACE, FOUND = 8, 9, 10
"""Where the frame of the walk says how far it came: the block, the place in it, and the entries put."""
GENERIC, UNKNOWN = 0xFFFF, 0xFFFE
FIRST_PAYLOAD, PAYLOADS, TYPES = 96, 64, 256
"""Payload fields 96 to 159 and event types up to 255 have a kind of their own."""


class Wanted(NamedTuple):
    """Which entries.

    Attributes:
        payload: Field that holds the payload; ``GENERIC`` for generic events.
        types: Event types; any if empty.
    """

    payload: int
    types: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of some blocks, in order.

    Attributes:
        starts: n places where payloads begin, from the start of their block.
        sizes: n sizes of payloads in bytes.
        kinds: n kinds.
        bounds: Number of the first entry of each block, and n.
        counts: Entries of each kind.
    """

    starts: Starts
    sizes: npt.NDArray[np.uint16 | np.uint32]
    kinds: Kinds
    bounds: Places
    counts: dict[int, int]

    def mask(self, wanted: Wanted) -> Mask:
        """Say of each entry whether it is wanted."""
        known = np.zeros(1 << 16, np.bool_)
        known[self._kinds(wanted)] = True
        return known[self.kinds]

    def by_block(self, mask: Mask) -> Places:
        """Count the entries of each block where a mask is set."""
        return np.diff(np.searchsorted(np.flatnonzero(mask), self.bounds))

    def ranks(self, rows: Places, wanted: Wanted) -> Places:
        """Return which of all that have the payload the rows are; they are those that are wanted."""
        if not wanted.types:
            return np.arange(len(rows))
        return np.cumsum(self.mask(Wanted(wanted.payload)))[rows] - 1

    def types(self, rows: Places, some: Places) -> Kinds:
        """Return the event types of some of the rows; none of them is a generic event, or of unknown kind."""
        return self.kinds[rows[some]] % TYPES

    def total(self, payload: int) -> int:
        """How many have a payload."""
        return sum(self.counts[k] for k in self._kinds(Wanted(payload)))

    def _kinds(self, wanted: Wanted) -> list[int]:
        return [k for k in self.counts if _is(k, *wanted)]


NONE = Entries(np.zeros(0, np.uint32), np.zeros(0, np.uint16), np.zeros(0, np.uint16), _FIRST, {})


def kind_of(payload: int, event_type: int) -> int:
    """Return the kind of events of a type whose payload is a certain field."""
    known = FIRST_PAYLOAD <= payload < FIRST_PAYLOAD + PAYLOADS and event_type < TYPES
    return (payload - FIRST_PAYLOAD) * TYPES + event_type if known else UNKNOWN


def parts_of(kind: int) -> tuple[int, int]:
    """Return the payload field and the event type of a kind."""
    return kind // TYPES + FIRST_PAYLOAD, kind % TYPES


@functools.cache
def _is(kind: int, payload: int, types: tuple[int, ...]) -> bool:
    if GENERIC in (kind, payload):
        return kind == payload
    field, event_type = parts_of(kind)
    return field == payload and (not types or event_type in types)


def find(buffer: Buffer, edges: Sequence[int], budget: Budget | None = None) -> Entries:
    """Find the entries of blocks that lie end to end.

    Args:
        buffer: Holds the blocks.
        edges: Where each block begins, and where the last one ends.
        budget: Counts the memory that the entries take.

    Raises:
        Damage: The chain of a block breaks, a block has too many entries, or all of them have.
    """
    inside = np.zeros(len(edges) - 1, np.int64)
    parts = []
    for part in _parts(buffer, edges, inside):
        if budget is not None:
            budget.take(len(part[0]), ENTRY_BYTES, "events")
        parts.append(part)
    starts, sizes, kinds = (np.concatenate(p) for p in zip(*parts, strict=True))
    narrow: type[np.uint16 | np.uint32] = np.uint32 if len(sizes) and int(sizes.max()) >> 16 else np.uint16
    bounds = np.concatenate((_FIRST, np.cumsum(inside)))
    return Entries(starts, sizes.astype(narrow), kinds, bounds, _counts(kinds))


def _parts(buffer: Buffer, edges: Sequence[int], inside: Places) -> Iterator[tuple[Starts, Starts, Kinds]]:
    """Follow the chains as far as there is room, time and again: places and sizes of payloads, and kinds.

    The entries of each block are counted in ``inside``.
    """
    blocks = len(inside)
    after = SCRATCH + 8 * (blocks + 1) + 4 * blocks
    rows = (SCRATCH + ROOM - after) // 16
    if rows < 1:
        raise Damage(f"{blocks} blocks of events at once")
    at = [SCRATCH, after, after + 4 * rows, after + 8 * rows, after - 4 * blocks]
    buffer.part(SCRATCH, 8 * (blocks + 1)).view(np.int64)[:] = edges
    frame = buffer.frame(blocks, *at, rows, MAX_ENTRIES, 0, 0, 0, 0)
    result = AGAIN
    while result == AGAIN:
        result = buffer.call("entries")
        if result in (BROKEN, MANY):
            _complain(result, frame, edges)
        complain(0 if result == AGAIN else result)
        found = int(frame[FOUND])
        starts, sizes = (buffer.part(place, 4 * found).view(np.uint32).copy() for place in at[1:3])
        yield starts, sizes, buffer.part(at[3], 2 * found).view(np.uint16).copy()
    inside[:] = buffer.part(at[4], 4 * blocks).view(np.int32)


def _complain(result: int, frame: npt.NDArray[np.int32], edges: Sequence[int]) -> NoReturn:
    if result == MANY:
        raise Damage(f"a block holds more than {MAX_ENTRIES} events")
    block = int(frame[BLOCK])
    raise Damage(f"a block of events is damaged at byte {frame[PLACE]} of {edges[block + 1] - edges[block]}")


def _counts(kinds: Kinds) -> dict[int, int]:
    """Count each kind."""
    counts = np.bincount(kinds)
    known = np.flatnonzero(counts)
    return dict(zip(known.tolist(), counts[known].tolist(), strict=True))


def count(body: memoryview) -> int:
    """Return the number of entries of a block."""
    return counter()(body)


def counter() -> Callable[[memoryview], int]:
    """Return a function that counts the entries of a block, in memory that it uses again; for one thread."""
    buffers: list[Buffer] = []

    def count_entries(body: memoryview) -> int:
        if not buffers or len(buffers[0].octets) < len(body) + SLACK:
            buffers[:] = [Buffer(len(body))]
        octets = buffers[0].octets
        octets[: len(body)] = np.frombuffer(body, np.uint8)
        octets[len(body) : len(body) + SLACK] = 0
        return len(find(buffers[0], [0, len(body)]).kinds)

    return count_entries
