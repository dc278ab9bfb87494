"""The entries of a block of events: where each one's payload lies, and what kind it is.

A block is a chain: each entry begins where the one before it ends. Instead of following it link by link, all places
that look like the head of an entry are found at once, and then proved to chain without a gap; a block in which they do
not is followed link by link.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tracekit.readers.damage import Damage
from tracekit.readers.protobuf.decoding import SLACK, Buffer, number_in
from tracekit.readers.protobuf.wire import varint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.readers.protobuf.decoding import Mask, Octets, Places, Words

Kinds: TypeAlias = npt.NDArray[np.uint16]

EVENT_TAG, GENERIC_TAG, TYPE_TAG = 0x0A, 0x12, 0x08
_NONE = np.uint64(0)
_FIRST = np.zeros(1, np.int64)
_EVENT, _GENERIC, _TYPE = np.uint8(EVENT_TAG), np.uint8(GENERIC_TAG), np.uint8(TYPE_TAG)
MAX_ENTRIES = 1 << 17
MAX_CANDIDATES = 4 * MAX_ENTRIES
WINDOW = 1 << 20
"""Bytes looked through at a time: what is made of them stays in the processor's cache, and steps are not too short."""
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

    starts: npt.NDArray[np.uint32]
    sizes: npt.NDArray[np.uint16 | np.uint32]
    kinds: Kinds
    bounds: Places
    counts: dict[int, int]

    def mask(self, wanted: Wanted) -> Mask:
        """Say of each entry whether it is wanted."""
        mask = np.zeros(len(self.kinds), np.bool_)
        for kind in self._kinds(wanted):
            mask |= self.kinds == np.uint16(kind)
        return mask

    def by_block(self, mask: Mask) -> Places:
        """Count the entries of each block where a mask is set."""
        return np.diff(np.concatenate((_FIRST, np.cumsum(mask)))[self.bounds])

    def ranks(self, rows: Places, wanted: Wanted) -> Places:
        """Return which of all that have the payload the rows are; they are those that are wanted."""
        if not wanted.types:
            return np.arange(len(rows))
        return np.cumsum(self.mask(Wanted(wanted.payload)))[rows] - 1

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


def find(buffer: Buffer, edges: Sequence[int]) -> Entries:
    """Find the entries of blocks that lie end to end.

    Args:
        buffer: Holds the blocks.
        edges: Where each block begins, and where the last one ends.

    Raises:
        Damage: The chain of a block breaks.
    """
    chain = _chain_through(buffer, edges) or _chain_of_chains(buffer, edges)
    kinds, payloads, ends = _heads(buffer, chain)
    bounds = np.searchsorted(chain.bodies, edges)
    starts = payloads - np.repeat(np.array(edges[:-1]), np.diff(bounds))
    sizes = ends - payloads
    narrow: type[np.uint16 | np.uint32] = np.uint32 if len(sizes) and int(sizes.max()) >> 16 else np.uint16
    return Entries(starts.astype(np.uint32), sizes.astype(narrow), kinds, bounds, _counts(kinds))


def _counts(kinds: Kinds) -> dict[int, int]:
    """Count each kind; a radix sort, as ``stable`` is for 16 bits, is several times faster than ``np.unique``."""
    ordered = np.sort(kinds, kind="stable")
    lasts = np.append(np.flatnonzero(ordered[1:] != ordered[:-1]), len(ordered) - 1) if len(ordered) else ordered
    return dict(zip(ordered[lasts].tolist(), np.diff(lasts, prepend=-1).tolist(), strict=True))


def count(body: memoryview) -> int:
    """Return the number of entries of a block."""
    buffer = Buffer(len(body))
    buffer.octets[: len(body)] = np.frombuffer(body, np.uint8)
    return len(_chain(buffer, 0, len(body)).bodies)


class Chain(NamedTuple):
    """Entries found: where their bodies begin and end, and which are generic events."""

    bodies: Places
    ends: Places
    generic: Mask


def _chain_through(buffer: Buffer, edges: Sequence[int]) -> Chain | None:
    """Find the entries of several blocks at once; None if no chain of them goes through every edge."""
    begin, end = edges[0], edges[-1]
    heads, bodies, ends = _candidates(buffer, begin, end)
    kept = _linked(heads, ends, begin, end)
    if kept is None:
        return None
    heads = heads[kept]
    inner = np.array(edges[1:-1], np.int64)
    if not np.array_equal(np.append(heads, end)[np.searchsorted(heads, inner)], inner):
        return None
    return Chain(bodies[kept], ends[kept], buffer.octets[heads] == _GENERIC)


def _chain_of_chains(buffer: Buffer, edges: Sequence[int]) -> Chain:
    """Find the entries block by block."""
    chains = [_chain(buffer, begin, end) for begin, end in itertools.pairwise(edges)]
    bodies, ends, generic = (np.concatenate(parts) for parts in zip(*chains, strict=True))
    return Chain(bodies, ends, generic)


def _chain(buffer: Buffer, begin: int, end: int) -> Chain:
    """Find the entries of one block."""
    heads, bodies, ends = _candidates(buffer, begin, end)
    kept = _linked(heads, ends, begin, end)
    if kept is None:
        heads, bodies, ends = _follow(buffer, begin, end)
    else:
        heads, bodies, ends = heads[kept], bodies[kept], ends[kept]
    if len(heads) > MAX_ENTRIES:
        raise Damage(f"a block holds more than {MAX_ENTRIES} events")
    return Chain(bodies, ends, buffer.octets[heads] == _GENERIC)


def _candidates(buffer: Buffer, begin: int, end: int) -> tuple[Places, Places, Places]:
    """Find what looks like an entry of up to 16383 bytes: where heads, bodies and ends are."""
    windows = (_looks(buffer.octets, at, min(at + WINDOW, end)) for at in range(begin, end, WINDOW))
    heads = np.concatenate([np.zeros(0, np.int64), *windows])
    if len(heads) > MAX_CANDIDATES:
        heads = heads[:0]
    words = buffer.words[heads]
    short = words >> np.uint64(8) & np.uint64(0x7F)
    long = (words & np.uint64(0x8000)) != _NONE
    sizes = np.where(long, short | words >> np.uint64(9) & np.uint64(0x3F80), short).view(np.int64)
    bodies = heads + 2 + long
    ends = bodies + sizes
    fits = (buffer.octets[bodies] == _TYPE) & (ends <= end) & ~(long & ((words & np.uint64(0x800000)) != _NONE))
    tags = buffer.octets[heads]
    fits &= (tags == _EVENT) | (tags == _GENERIC)
    kept = np.flatnonzero(fits)
    return heads[kept], bodies[kept], ends[kept]


def _looks(octets: Octets, begin: int, end: int) -> Places:
    """Find where an entry may begin: at its tag, two or three bytes before the tag of its type."""
    size = end - begin
    near = octets[begin : end + SLACK]
    typed = near == _TYPE
    looks = typed[2 : size + 2] | typed[3 : size + 3]
    looks &= (near[:size] | (_EVENT ^ _GENERIC)) == _EVENT | _GENERIC
    return _positions(looks) + begin


def _positions(mask: Mask) -> Places:
    """Return where a sparse mask is set: it is looked through eight places at a time."""
    whole = len(mask) // 8 * 8
    hit = np.flatnonzero(mask[:whole].view(np.uint64) != _NONE)
    found = np.flatnonzero(mask[:whole].reshape(-1, 8)[hit])
    return np.concatenate((hit[found >> 3] * 8 + (found & 7), np.flatnonzero(mask[whole:]) + whole))


def _linked(heads: Places, ends: Places, begin: int, end: int) -> Places | None:
    """Choose the candidates that form a chain from begin to end; None if none do."""
    if not len(heads) or heads[0] != begin:
        return None
    keep = np.ones(len(heads), np.bool_)
    last, checked = len(heads) - 1, 0
    for link in np.flatnonzero(heads[1:] != ends[:-1]).tolist():
        if link < checked:
            continue
        checked = int(np.searchsorted(heads, ends[link]))
        keep[link + 1 : checked] = False
        if checked == len(heads):
            last = link
        elif heads[checked] != ends[link]:
            return None
    return np.flatnonzero(keep) if ends[last] == end else None


def _follow(buffer: Buffer, begin: int, end: int) -> tuple[Places, Places, Places]:
    """Follow the chain link by link; fields of other numbers are passed over."""
    data = memoryview(buffer.octets.data)[:end]
    links: list[int] = []
    at = begin
    while at < end:
        head, tag = at, data[at]
        size, body = varint(data, at + 1)
        at = body + size
        if tag & 7 != EVENT_TAG & 7 or at > end:
            raise Damage(f"a block of events is damaged at byte {head - begin} of {end - begin}")
        if tag in (EVENT_TAG, GENERIC_TAG):
            links += (head, body, at)
        if len(links) > 3 * MAX_ENTRIES:
            raise Damage(f"a block holds more than {MAX_ENTRIES} events")
    found = np.array(links, np.int64).reshape(-1, 3)
    return found[:, 0].copy(), found[:, 1].copy(), found[:, 2].copy()


def _heads(buffer: Buffer, chain: Chain) -> tuple[Kinds, Places, Places]:
    """Read the heads of n entries: kinds, and where the payloads begin and end; generic events are all payload.

    A head is the type (a tag and one or two bytes), the key of the payload (two bytes) and its size.
    """
    starts, stops, generic = chain
    words = buffer.words[starts]
    wide = words >> np.uint64(15) & np.uint64(1)
    types = (words >> np.uint64(8) & np.uint64(0x7F)) | (words >> np.uint64(9) & np.uint64(0x3F80)) * wide
    words >>= (wide + np.uint64(2)) << np.uint64(3)
    at = starts + (wide + np.uint64(4)).view(np.int64)
    sizes, lengths = number_in(buffer, words >> np.uint64(16), np.minimum(at, stops), 3)
    payloads = at + lengths
    ends = payloads + np.minimum(sizes, np.uint64(1 << 40)).view(np.int64)
    event = ((words & np.uint64(0x8087)) == np.uint64(0x82)) & (buffer.octets[starts] == _TYPE) & ~generic
    if ((ends > stops) & event).any():
        raise Damage("an event reaches beyond its end")
    fields = ((words & np.uint64(0x7F)) | (words >> np.uint64(1) & np.uint64(0x3F80))) >> np.uint64(3)
    kinds = np.where(event, _kinds(fields, types), np.uint16(UNKNOWN))
    kinds[generic] = GENERIC
    return kinds, np.where(event, payloads, starts), np.where(event, ends, stops)


def _kinds(fields: Words, types: Words) -> Kinds:
    numbers = fields - np.uint64(FIRST_PAYLOAD)
    known = (numbers < np.uint64(PAYLOADS)) & (types < np.uint64(TYPES))
    return np.where(known, numbers * np.uint64(TYPES) + types, np.uint64(UNKNOWN)).astype(np.uint16)
