"""Passes over the blocks of events: only blocks that hold what is wanted are unpacked, in batches, on all cores.

The first pass over a block keeps where its events lie (8 bytes an event); later passes go straight to the wanted ones.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from tracekit.readers.common.budget import Budget
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoder import SLACK
from tracekit.readers.common.protobuf.decoding import Buffer
from tracekit.readers.nsys_rep import entries
from tracekit.threads import RunningTotals, map_in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tracekit.readers.common.protobuf.decoding import Mask, Places
    from tracekit.readers.nsys_rep.blocks import Block, RawData
    from tracekit.readers.nsys_rep.entries import Entries, Kinds, Wanted

    HandOn = Callable[[Mapping[str, int]], Mapping[str, int]]

Made = TypeVar("Made")

BATCH_BYTES = 24 << 20
USUAL_RATIO = 16
"""Times that the blocks of real reports grow at most when they are unpacked."""
THREADS = 4


@dataclass(frozen=True, slots=True)
class Chosen:
    """Some events of a batch of blocks, in order.

    Attributes:
        buffer: Holds them.
        starts: n places where payloads begin.
        stops: n places where they end.
        ranks: Returns n numbers: of all events of that payload in the batch, which one it is.
        total: How many there are.
        types: Returns the event types of some of the n.
        hand_on: Takes totals of this batch and returns those of all batches before; may be called once.
    """

    buffer: Buffer
    starts: Places
    stops: Places
    ranks: Callable[[], Places]
    total: int
    types: Callable[[Places], Kinds]
    hand_on: HandOn


class Events:
    """All events of a report."""

    def __init__(self, raw: RawData) -> None:
        self._raw = raw
        self._batches = list(_batches(raw.blocks)) or [range(0)]
        self._known: list[Entries | None] = [None] * len(self._batches)
        self._damaged: dict[int, str] = {}
        self._buffers = _Buffers()
        self._budget = Budget(raw.file_bytes)

    def each(self, wanted: Sequence[Wanted], work: Callable[[list[Chosen]], Made]) -> Iterator[Made]:
        """Do some work on events, a batch of blocks at a time; what is wanted of a batch is unpacked once.

        Args:
            wanted: Which events; for each there is one item in what the work is given.
            work: Is given the events of a batch; runs on several threads at once. Keeps nothing of the buffer.

        Yields:
            What the work makes of each batch, in the order of the file; without any, of no events.
        """
        relays = [RunningTotals() for _ in wanted]

        def job(nth: int) -> Made:
            with contextlib.ExitStack() as stack:
                for relay in relays:
                    stack.enter_context(relay.holding(nth))
                hands = [functools.partial(relay.add_totals, nth) for relay in relays]
                with self._chosen(nth, wanted, hands) as chosen:
                    return work(chosen)

        yield from map_in_order(job, range(len(self._batches)), THREADS)

    def counts(self) -> Counter[int]:
        """Number of events of each kind."""
        total: Counter[int] = Counter()
        for counted in map_in_order(self._count, range(len(self._batches)), THREADS):
            total.update(counted)
        return total

    def _count(self, nth: int) -> dict[int, int]:
        found = self._known[nth]
        if found is None:
            buffer, found, _ = self._look(nth)
            self._buffers.give(buffer)
        return found.counts

    @contextlib.contextmanager
    def _chosen(self, nth: int, wanted: Sequence[Wanted], hands: Sequence[HandOn]) -> Iterator[list[Chosen]]:
        """Unpack what is wanted of a batch; the buffer is used again afterwards."""
        found = self._known[nth]
        if found is None:
            buffer, found, bases = self._look(nth)
            masks = [found.mask(w) for w in wanted]
        else:
            masks = [found.mask(w) for w in wanted]
            needed = sum(found.by_block(mask) for mask in masks)
            buffer, bases = self._load(nth, np.flatnonzero(needed))
        chosen = zip(wanted, masks, hands, strict=True)
        yield [_choose(_Loaded(buffer, bases, found), w, mask, hand_on) for w, mask, hand_on in chosen]
        self._buffers.give(buffer)

    def _look(self, nth: int) -> tuple[Buffer, Entries, Places]:
        """Unpack a whole batch and see what is in it; damage is looked for once."""
        batch = self._batches[nth]
        if nth in self._damaged:
            raise Damage(self._damaged[nth])
        try:
            buffer, bases = self._load(nth, np.arange(len(batch)))
            found = entries.find(buffer, bases.tolist(), self._budget) if batch else entries.NONE
        except Damage as e:
            self._damaged[nth] = str(e)
            raise
        self._known[nth] = found
        return buffer, found, bases

    def _load(self, nth: int, which: Places) -> tuple[Buffer, Places]:
        """Unpack some blocks of a batch end to end: the buffer, and where each block begins and the last one ends."""
        blocks = [self._raw.blocks[i] for i in self._batches[nth]]
        buffer = self._buffers.take(sum(blocks[i].size for i in which))
        bases = np.zeros(len(blocks) + 1, np.int64)
        at = 0
        for i in which.tolist():
            body = self._raw.unpack(blocks[i])
            bases[i] = at
            buffer.data[at : at + len(body)] = body
            at += len(body)
        bases[-1] = at
        buffer.data[at : at + SLACK] = 0
        return buffer, bases


class _Loaded(NamedTuple):
    """A batch of blocks: those that are unpacked, where each begins, and all their entries."""

    buffer: Buffer
    bases: Places
    entries: Entries


def _choose(batch: _Loaded, wanted: Wanted, mask: Mask, hand_on: HandOn) -> Chosen:
    buffer, bases, found = batch
    rows = np.flatnonzero(mask)
    starts = np.repeat(bases[:-1], np.diff(np.searchsorted(rows, found.bounds)))
    starts += found.starts[rows]
    stops = starts + found.sizes[rows]
    ranks = functools.partial(found.ranks, rows, wanted)
    types = functools.partial(found.types, rows)
    return Chosen(buffer, starts, stops, ranks, found.total(wanted.payload), types, hand_on)


class _Buffers:
    """Buffers that are used again: memory that is new to a process is slow to write to."""

    def __init__(self) -> None:
        self._idle: list[Buffer] = []

    def take(self, size: int) -> Buffer:
        """Return a buffer with room for so many bytes."""
        try:
            buffer = self._idle.pop()
        except IndexError:
            return Buffer(size)
        return buffer if len(buffer.data) >= size + SLACK else Buffer(size)

    def give(self, buffer: Buffer) -> None:
        """Give a buffer back: nothing looks at it any more."""
        self._idle.append(buffer)


def _batches(blocks: Sequence[Block]) -> Iterator[range]:
    """Group blocks, in order, into batches of some megabytes; where blocks grow unusually much, into smaller ones."""
    first, size = 0, 0.0
    for i, block in enumerate(blocks):
        size += block.size * max(1.0, block.size / (USUAL_RATIO * block.packed))
        if size >= BATCH_BYTES:
            yield range(first, i + 1)
            first, size = i + 1, 0.0
    if first < len(blocks):
        yield range(first, len(blocks))
