"""Passes over the blocks of events: only blocks that hold what is wanted are unpacked, in batches, on all cores.

The first pass over a block keeps where its events lie (8 bytes an event); later passes go straight to the wanted ones.
"""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from tracekit.readers.nsys_rep import entries
from tracekit.readers.nsys_rep.decoding import Buffer
from tracekit.readers.threads import Relay, in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tracekit.readers.nsys_rep.blocks import Block, RawData
    from tracekit.readers.nsys_rep.decoding import Places
    from tracekit.readers.nsys_rep.entries import Entries

Made = TypeVar("Made")

BATCH_BYTES = 6 << 20


@dataclass(frozen=True, slots=True)
class Chosen:
    """Some events of a batch of blocks, in order.

    Attributes:
        buffer: Holds them.
        starts: n places where payloads begin.
        stops: n places where they end.
        ranks: n numbers: of all events of that payload in the batch, which one it is.
        total: How many there are.
        hand_on: Takes totals of this batch and returns those of all batches before; may be called once.
    """

    buffer: Buffer
    starts: Places
    stops: Places
    ranks: Places
    total: int
    hand_on: Callable[[Mapping[str, int]], Mapping[str, int]]


class Events:
    """All events of a report."""

    def __init__(self, raw: RawData) -> None:
        self._raw = raw
        self._known: list[Entries | None] = [None] * len(raw.blocks)
        self._batches = list(_batches(raw.blocks))

    def each(self, payload: int, types: tuple[int, ...], work: Callable[[Chosen], Made]) -> Iterator[Made]:
        """Do some work on the events of a payload, a batch of blocks at a time.

        Args:
            payload: Field that holds the payload; ``entries.GENERIC`` for generic events.
            types: Event types; any if empty.
            work: Is given the events of a batch; runs on several threads at once.

        Yields:
            What the work makes of each batch, in the order of the file; without any, of no events.
        """
        relay = Relay()

        def job(nth: int) -> Made:
            with relay.holding():
                return work(self._choose(batches[nth], payload, types, functools.partial(relay.hand_on, nth)))

        batches = self._batches or [range(0)]
        yield from in_order(job, range(len(batches)))

    def counts(self) -> Counter[int]:
        """Number of events of each kind."""
        total: Counter[int] = Counter()
        for counted in in_order(self._count, self._batches):
            total.update(counted)
        return total

    def _count(self, batch: range) -> Counter[int]:
        total: Counter[int] = Counter()
        unknown = [i for i in batch if self._known[i] is None]
        self._load(unknown)
        for i in batch:
            found = self._known[i]
            total.update({} if found is None else found.counts)
        return total

    def _choose(
        self,
        batch: range,
        payload: int,
        types: tuple[int, ...],
        hand_on: Callable[[Mapping[str, int]], Mapping[str, int]],
    ) -> Chosen:
        blocks = [i for i in batch if self._may_hold(i, payload, types)]
        buffer, bases = self._load(blocks)
        base_of = dict(zip(blocks, bases, strict=True))
        starts, stops, ranks, total = [_NOWHERE], [_NOWHERE], [_NOWHERE], 0
        for i in batch:
            found = self._known[i]
            if found is not None and i in base_of:
                rows = found.rows(payload, types)
                starts.append(found.starts[rows] + np.int64(base_of[i]))
                stops.append(starts[-1] + found.sizes[rows])
                ranks.append(found.ranks(rows, payload, types) + total)
            total += 0 if found is None else found.total(payload)
        return Chosen(buffer, np.concatenate(starts), np.concatenate(stops), np.concatenate(ranks), total, hand_on)

    def _may_hold(self, block: int, payload: int, types: tuple[int, ...]) -> bool:
        found = self._known[block]
        return found is None or found.holds(payload, types)

    def _load(self, blocks: list[int]) -> tuple[Buffer, list[int]]:
        """Unpack blocks end to end into one buffer, and see what is in them: the buffer and where each begins."""
        buffer = Buffer(sum(self._raw.blocks[i].size for i in blocks))
        edges = [0]
        for i in blocks:
            body = self._raw.unpack(self._raw.blocks[i])
            edges.append(edges[-1] + len(body))
            buffer.octets[edges[-2] : edges[-1]] = body
        buffer.octets[edges[-1] :] = 0
        for i, base, stop in zip(blocks, edges[:-1], edges[1:], strict=True):
            if self._known[i] is None:
                self._known[i] = entries.find(buffer, base, stop)
        return buffer, edges[:-1]


_NOWHERE = np.zeros(0, np.int64)


def _batches(blocks: Sequence[Block]) -> Iterator[range]:
    """Group blocks, in order, into batches of some megabytes."""
    first, size = 0, 0
    for i, block in enumerate(blocks):
        size += block.size
        if size >= BATCH_BYTES:
            yield range(first, i + 1)
            first, size = i + 1, 0
    if first < len(blocks):
        yield range(first, len(blocks))
