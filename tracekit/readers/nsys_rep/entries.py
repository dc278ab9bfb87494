"""The entries of a block of events: where each one's payload lies, and what kind it is.

A block is a chain: each entry begins where the one before it ends. Instead of following it link by link, all places that
look like the head of an entry are found at once, and then proved to chain without a gap; a block in which they do not is
followed link by link.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracekit.readers.nsys_rep.decoding import SLACK, Buffer, varints
from tracekit.readers.nsys_rep.wire import Damage, varint

if TYPE_CHECKING:
    from tracekit.readers.nsys_rep.decoding import Places, Words

EVENT_TAG, GENERIC_TAG, TYPE_TAG = 0x0A, 0x12, 0x08
MAX_ENTRIES = 1 << 17
GENERIC, UNKNOWN = 0xFFFF, 0xFFFE
FIRST_PAYLOAD, PAYLOADS, TYPES = 96, 64, 256
"""Payload fields 96 to 159 and event types up to 255 have a kind of their own."""


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of one block, in order.

    Attributes:
        starts: n places where payloads begin, from the start of the block.
        sizes: n sizes of payloads in bytes.
        kinds: n kinds.
        counts: Entries of each kind.
    """

    starts: npt.NDArray[np.uint32]
    sizes: npt.NDArray[np.uint16] | npt.NDArray[np.uint32]
    kinds: npt.NDArray[np.uint16]
    counts: dict[int, int]


def kind_of(payload: int, event_type: int) -> int:
    """Return the kind of events of a type whose payload is a certain field."""
    known = FIRST_PAYLOAD <= payload < FIRST_PAYLOAD + PAYLOADS and event_type < TYPES
    return (payload - FIRST_PAYLOAD) * TYPES + event_type if known else UNKNOWN


def parts_of(kind: int) -> tuple[int, int]:
    """Return the payload field and the event type of a kind."""
    return kind // TYPES + FIRST_PAYLOAD, kind % TYPES


def find(buffer: Buffer, begin: int, end: int) -> Entries:
    """Find the entries of a block.

    Args:
        buffer: Holds the block.
        begin: Where its message begins.
        end: Where it ends.

    Raises:
        Damage: The chain breaks.
    """
    starts, stops, generic = _chain(buffer, begin, end)
    kinds, payloads, ends = _heads(buffer, starts, stops, generic)
    sizes = ends - payloads
    small = not len(sizes) or int(sizes.max()) < 1 << 16
    numbers, counts = np.unique_counts(kinds)
    return Entries(
        (payloads - begin).astype(np.uint32),
        sizes.astype(np.uint16 if small else np.uint32),
        kinds,
        dict(zip(numbers.tolist(), counts.tolist(), strict=True)),
    )


def count(body: memoryview) -> int:
    """Return the number of entries of a block."""
    buffer = Buffer(len(body))
    buffer.octets[: len(body)] = np.frombuffer(body, np.uint8)
    return len(_chain(buffer, 0, len(body))[0])


def _chain(buffer: Buffer, begin: int, end: int) -> tuple[Places, Places, npt.NDArray[np.bool_]]:
    """Return where the bodies of the entries begin and end, and which are generic events."""
    heads, bodies, ends = _candidates(buffer, begin, end)
    whole = len(heads) and heads[0] == begin and ends[-1] == end and bool((heads[1:] == ends[:-1]).all())
    if not whole:
        heads, bodies, ends = _follow(buffer, begin, end)
    if len(heads) > MAX_ENTRIES:
        raise Damage(f"a block holds {len(heads)} events, more than {MAX_ENTRIES}")
    return bodies, ends, buffer.octets[heads] == GENERIC_TAG


def _candidates(buffer: Buffer, begin: int, end: int) -> tuple[Places, Places, Places]:
    """Find what looks like an entry, up to 16383 bytes long, whose end looks like the next one's head."""
    octets = buffer.octets[begin : end + SLACK]
    size = end - begin
    lead = octets[:size]
    typed = octets == TYPE_TAG
    looks = ((lead == EVENT_TAG) | (lead == GENERIC_TAG)) & (typed[2 : size + 2] | typed[3 : size + 3])
    heads = _positions(looks)
    words = buffer.words[heads + begin]
    long = (words & np.uint64(0x8000)) != 0
    sizes = np.where(long, (words >> np.uint64(8) & np.uint64(0x7F)) | (words >> np.uint64(9) & np.uint64(0x3F80)), 0)
    sizes = np.where(long, sizes, words >> np.uint64(8) & np.uint64(0x7F)).astype(np.int64)
    bodies = heads + 2 + long
    ends = bodies + sizes
    fits = (octets[bodies] == TYPE_TAG) & (ends <= size) & ~(long & ((words & np.uint64(0x800000)) != 0))
    heads, bodies, ends = heads[fits], bodies[fits], ends[fits]
    meets = np.zeros(size + 1, np.bool_)
    meets[heads] = True
    meets[size] = True
    meeting = meets[ends]
    heads, bodies, ends = heads[meeting], bodies[meeting], ends[meeting]
    reached = np.zeros(size + 1, np.bool_)
    reached[ends] = True
    reached[0] = True
    kept = reached[heads]
    return heads[kept] + begin, bodies[kept] + begin, ends[kept] + begin


def _positions(mask: npt.NDArray[np.bool_]) -> Places:
    """Return where a sparse mask is set: it is looked through eight places at a time."""
    whole = len(mask) // 8 * 8
    groups = mask[:whole].reshape(-1, 8)
    hit = np.flatnonzero(mask[:whole].view(np.uint64))
    rows, columns = np.nonzero(groups[hit])
    return np.concatenate((hit[rows] * 8 + columns, np.flatnonzero(mask[whole:]) + whole))


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
    found = np.array(links, np.int64).reshape(-1, 3)
    return found[:, 0].copy(), found[:, 1].copy(), found[:, 2].copy()


def _heads(
    buffer: Buffer, starts: Places, stops: Places, generic: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.uint16], Places, Places]:
    """Read the heads of n entries: kinds, and where the payloads begin and end; generic events are all payload."""
    types, lengths = varints(buffer, starts + 1)
    at = starts + 1 + lengths
    keys = buffer.words[np.minimum(at, stops)] & np.uint64(0xFFFF)
    sizes, lengths = varints(buffer, np.minimum(at + 2, stops))
    payloads = at + 2 + lengths
    ends = payloads + np.minimum(sizes, np.uint64(1 << 40)).view(np.int64)
    fields = ((keys & np.uint64(0x7F)) | (keys >> np.uint64(8) << np.uint64(7))) >> np.uint64(3)
    event = ((keys & np.uint64(0x8087)) == np.uint64(0x82)) & (buffer.octets[starts] == TYPE_TAG) & ~generic
    if (ends > stops)[event].any():
        raise Damage("an event reaches beyond its end")
    kinds = np.where(event, _kinds(fields, types), np.uint16(UNKNOWN))
    kinds[generic] = GENERIC
    return kinds.astype(np.uint16), np.where(event, payloads, starts), np.where(event, ends, stops)


def _kinds(fields: Words, types: Words) -> npt.NDArray[np.uint16]:
    numbers = fields - np.uint64(FIRST_PAYLOAD)
    known = (numbers < np.uint64(PAYLOADS)) & (types < np.uint64(TYPES))
    return np.where(known, numbers * np.uint64(TYPES) + types, np.uint64(UNKNOWN)).astype(np.uint16)
