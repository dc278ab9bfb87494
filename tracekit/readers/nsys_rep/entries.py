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
from tracekit.readers.common.protobuf import decoder
from tracekit.readers.common.protobuf.decoder import (
    BROKEN_CHAIN,
    FULL,
    SCRATCH,
    SCRATCH_BYTES,
    SLACK,
    TOO_MANY,
    check_result,
)
from tracekit.readers.common.protobuf.decoding import Buffer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracekit.readers.common.budget import Budget
    from tracekit.readers.common.protobuf.decoding import Mask, Places

Kinds: TypeAlias = npt.NDArray[np.uint16]
Starts: TypeAlias = npt.NDArray[np.uint32]

EVENT_TAG, GENERIC_TAG, TYPE_TAG = decoder.EVENT_TAG, decoder.GENERIC_TAG, decoder.TYPE_TAG
GENERIC, UNKNOWN = decoder.GENERIC, decoder.UNKNOWN
FIRST_PAYLOAD, PAYLOADS, TYPES = decoder.FIRST_PAYLOAD, decoder.PAYLOADS, decoder.TYPES
_FIRST = np.zeros(1, np.int64)
MAX_ENTRIES = 1 << 17
ENTRY_BYTES = 16
"""Memory that is kept of an entry, and what it takes to look for it."""


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
    rows = (SCRATCH + SCRATCH_BYTES - after) // 16
    if rows < 1:
        raise Damage(f"{blocks} blocks of events at once")
    at = [SCRATCH, after, after + 4 * rows, after + 8 * rows, after - 4 * blocks]
    buffer.array(SCRATCH, blocks + 1, np.int64)[:] = edges
    arrays = dict(zip(("edges", "starts", "sizes", "kinds", "bounds"), at, strict=True))
    result = buffer.call("entries", blocks=blocks, capacity=rows, max_entries=MAX_ENTRIES, **arrays)
    while True:
        if result in (BROKEN_CHAIN, TOO_MANY):
            _complain(result, buffer, edges)
        check_result(0 if result == FULL else result)
        count = buffer.parameter("entries", "count")
        starts, sizes = (buffer.array(offset, count, np.uint32).copy() for offset in at[1:3])
        yield starts, sizes, buffer.array(at[3], count, np.uint16).copy()
        if not result:
            break
        result = buffer.call("entries")
    inside[:] = buffer.array(at[4], blocks, np.int32)


def _complain(result: int, buffer: Buffer, edges: Sequence[int]) -> NoReturn:
    if result == TOO_MANY:
        raise Damage(f"a block holds more than {MAX_ENTRIES} events")
    block, offset = (buffer.parameter("entries", name) for name in ("block", "offset"))
    raise Damage(f"a block of events is damaged at byte {offset} of {edges[block + 1] - edges[block]}")


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
        if not buffers or len(buffers[0].data) < len(body) + SLACK:
            buffers[:] = [Buffer(len(body))]
        octets = buffers[0].data
        octets[: len(body)] = np.frombuffer(body, np.uint8)
        octets[len(body) : len(body) + SLACK] = 0
        return len(find(buffers[0], [0, len(body)]).kinds)

    return count_entries
