"""Read the event blocks of a report in batches, using several threads.

The first pass over a block caches the offsets of its events (8 bytes per event), in temporary files if they are large.
Later passes decompress only the blocks that contain selected events, and visit only the selected events.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from tracekit.readers.common.budget import Budget
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import SLACK, Buffer
from tracekit.readers.common.protobuf.rows import Messages
from tracekit.readers.nsys_rep import entries
from tracekit.system import memory
from tracekit.system.threads import RunningTotals, map_in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from tracekit.readers.common.protobuf.decoding import Int64Array, Mask
    from tracekit.readers.nsys_rep.container import Block, RawData
    from tracekit.readers.nsys_rep.entries import Entries, EventSelection, UndecodedSize

    PrefixTotals = Callable[[Mapping[str, int]], Mapping[str, int]]

Result = TypeVar("Result")

BATCH_BYTES, MIN_BATCH_BYTES = 24 << 20, 4 << 20
"""Size of a batch of large events, and minimum size of a batch of small events, in bytes."""
BATCH_EVENTS = 1 << 18
"""Mean number of small events in a batch, whose decoded fields stay in the processor's cache."""
USUAL_RATIO = 16
"""Maximum compression ratio of blocks in real reports."""
THREADS = 4


class SelectedEvents(NamedTuple):
    """The selected events in a batch of blocks, in order.

    Attributes:
        buffer: Buffer that holds the decompressed blocks.
        starts: Start offset of each payload in the buffer.
        stops: End offset of each payload in the buffer.
        types: Event type of each selected event.
        compute_positions: Function that returns, for each selected event, its position among all events of the batch
            with the same payload field, counted from 0.
        total: Number of all events of the batch with the payload field of the selected events, including events that
            are not selected.
        exchange_totals: Function that takes the totals of this batch by name, and returns the sums of the totals of all
            earlier batches. Call the function only once.
    """

    buffer: Buffer
    starts: Int64Array
    stops: Int64Array
    types: npt.NDArray[np.uint8]
    compute_positions: Callable[[], Int64Array]
    total: int
    exchange_totals: PrefixTotals

    @property
    def messages(self) -> Messages:
        """The payloads, as messages of the event types."""
        return Messages(self.starts, self.stops, self.types)

    def take(self, rows: Int64Array) -> SelectedEvents:
        """Return the events at the given indices, whose positions are counted anew."""
        parts = (self.starts[rows], self.stops[rows], self.types[rows])
        return SelectedEvents(
            self.buffer, *parts, functools.partial(np.arange, len(rows)), len(rows), self.exchange_totals
        )


class ReportEvents:
    """The events of a report, which are decompressed and located on demand."""

    def __init__(
        self,
        raw: RawData,
        selections: Sequence[EventSelection],
        list_undecoded_sizes: Callable[[list[SelectedEvents]], list[UndecodedSize]],
    ) -> None:
        """Create an object that has not read any event yet.

        Args:
            raw: Section of the report with the events.
            selections: Selections of events among which undecoded events are counted.
            list_undecoded_sizes: Function that counts the undecoded events of a batch, given its selected events.
        """
        self._raw = raw
        self._undecoded_selections = selections
        self._list_undecoded_sizes = list_undecoded_sizes
        self._batches = list(_split_into_batches(raw.blocks, raw.event_count)) or [range(0)]
        self._entries: list[Entries | None] = [None] * len(self._batches)
        self._undecoded: list[list[UndecodedSize] | Damage] = [[] for _ in self._batches]
        self._damaged: dict[int, str] = {}
        self._buffers = _BufferPool()
        self._budget = Budget(raw.file_bytes)
        self._are_entries_large = memory.is_large(entries.STORED_BYTES * raw.event_count)

    def map_batches(
        self, selections: Sequence[EventSelection], function: Callable[[list[SelectedEvents]], Result]
    ) -> Iterator[Result]:
        """Call a function with the selected events of each batch of blocks, and yield the results.

        Args:
            selections: Selections of the events that the function receives.
            function: Function that takes the selected events of a batch, as a list with one item per selection.
                Several threads may call the function at once. The function must copy all data that it stores, because
                the events refer to a buffer that is reused for later batches.

        Yields:
            The result of the function for each batch, in file order. A report without events has one empty batch.
        """
        running_totals = [RunningTotals() for _ in selections]

        def call_function_on_batch(batch_index: int) -> Result:
            with contextlib.ExitStack() as stack:
                for totals in running_totals:
                    stack.enter_context(totals.open_job_context(batch_index))
                exchange_totals = [
                    functools.partial(totals.add_counts_and_get_earlier_totals, batch_index)
                    for totals in running_totals
                ]
                with self._open_selected_events(batch_index, selections, exchange_totals) as chosen:
                    return function(chosen)

        yield from map_in_order(call_function_on_batch, range(len(self._batches)), THREADS)

    def count_by_kind(self) -> Counter[int]:
        """Return the number of events of each kind. The keys are computed by ``combine_into_event_kind``."""
        total: Counter[int] = Counter()
        for counted in map_in_order(self._count_events_of_batch_by_kind, range(len(self._batches)), THREADS):
            total.update(counted)
        return total

    def count_events_and_bytes_by_kind(self) -> dict[int, tuple[int, int]]:
        """Return the number of events of each kind, and the total size of their payloads in bytes.

        The keys are computed by ``combine_into_event_kind``.
        """
        totals: Counter[int] = Counter()
        counts = self.count_by_kind()
        for batch in self._entries:
            totals.update({} if batch is None else batch.sum_bytes_by_kind())
        return {kind: (number, totals[kind]) for kind, number in counts.items()}

    def iterate_undecoded_sizes(self) -> Iterator[UndecodedSize]:
        """Yield the number and size of the events of each class that no declared table contains, batch by batch.

        They were counted in the first pass over each batch, so that no batch is decompressed twice.

        Raises:
            Damage: A block or an event is invalid.
        """
        self.count_by_kind()
        for sizes in self._undecoded:
            if isinstance(sizes, Damage):
                raise sizes
            yield from sizes

    def _count_events_of_batch_by_kind(self, batch_index: int) -> dict[int, int]:
        entries_of_batch = self._entries[batch_index]
        if entries_of_batch is None:
            buffer, entries_of_batch, _ = self._decompress_and_find_entries(batch_index)
            self._buffers.release_buffer(buffer)
        return entries_of_batch.counts

    @contextlib.contextmanager
    def _open_selected_events(
        self, batch_index: int, selections: Sequence[EventSelection], exchange_totals: Sequence[PrefixTotals]
    ) -> Iterator[list[SelectedEvents]]:
        """Return a context manager that provides the selected events of a batch.

        At the end of the context, the buffer that holds the events is returned to the pool.
        """
        entries_of_batch = self._entries[batch_index]
        distinct = dict(zip(selections, exchange_totals, strict=True))
        if entries_of_batch is None:
            buffer, entries_of_batch, bases = self._decompress_and_find_entries(batch_index)
            masks = {selection: entries_of_batch.compute_selection_mask(selection) for selection in distinct}
        else:
            masks = {selection: entries_of_batch.compute_selection_mask(selection) for selection in distinct}
            needed = sum(entries_of_batch.count_by_block(mask) for mask in masks.values())
            buffer, bases = self._decompress_blocks(batch_index, np.flatnonzero(needed))
        batch = _LoadedBatch(buffer, bases, entries_of_batch)
        chosen = {
            selection: _select_events(batch, selection, masks[selection], distinct[selection]) for selection in distinct
        }
        yield [
            chosen[s]._replace(exchange_totals=totals) for s, totals in zip(selections, exchange_totals, strict=True)
        ]
        self._buffers.release_buffer(buffer)

    def _decompress_and_find_entries(self, batch_index: int) -> tuple[Buffer, Entries, Int64Array]:
        """Decompress all blocks of a batch, and find their entries.

        If a block is invalid, every later call raises the same error.

        Returns:
            The buffer, the entries, and the offset of each block, followed by the end of the last block.
        """
        batch = self._batches[batch_index]
        if batch_index in self._damaged:
            raise Damage(self._damaged[batch_index])
        try:
            buffer, bases = self._decompress_blocks(batch_index, np.arange(len(batch)))
            entries_of_batch = entries.find_entries(buffer, bases.tolist(), self._budget) if batch else entries.EMPTY
        except Damage as e:
            self._damaged[batch_index] = str(e)
            raise
        batch_of_events = _LoadedBatch(buffer, bases, entries_of_batch)
        try:
            self._undecoded[batch_index] = self._list_undecoded_sizes([
                _select_events(batch_of_events, s, entries_of_batch.compute_selection_mask(s), dict)
                for s in self._undecoded_selections
            ])  # fmt: skip
        except Damage as e:
            self._undecoded[batch_index] = e
        if self._are_entries_large:
            entries_of_batch = entries_of_batch.spill_to_temporary_file()
        self._entries[batch_index] = entries_of_batch
        return buffer, entries_of_batch, bases

    def _decompress_blocks(self, batch_index: int, block_indices: Int64Array) -> tuple[Buffer, Int64Array]:
        """Decompress the blocks at the given indices of a batch into one buffer.

        Returns:
            The buffer, and an array with the offset of each block in the buffer, followed by the end of the last block.
            The offset is 0 for blocks that are not decompressed.
        """
        blocks = [self._raw.blocks[i] for i in self._batches[batch_index]]
        buffer = self._buffers.acquire_buffer(sum(blocks[i].size for i in block_indices))
        bases = np.zeros(len(blocks) + 1, np.int64)
        at = 0
        for i in block_indices.tolist():
            body = self._raw.decompress(blocks[i])
            bases[i] = at
            buffer.data[at : at + len(body)] = body
            at += len(body)
        bases[-1] = at
        buffer.data[at : at + SLACK] = 0
        return buffer, bases


class _LoadedBatch(NamedTuple):
    """A batch of decompressed blocks: their buffer, the offset of each block, and the entries of all blocks."""

    buffer: Buffer
    bases: Int64Array
    entries: Entries


def _select_events(
    batch: _LoadedBatch, selection: EventSelection, mask: Mask, exchange_totals: PrefixTotals
) -> SelectedEvents:
    buffer, bases, entries_of_batch = batch
    rows = np.flatnonzero(mask)
    starts = np.repeat(bases[:-1], np.diff(np.searchsorted(rows, entries_of_batch.bounds)))
    starts += entries_of_batch.starts[rows]
    stops = starts + entries_of_batch.sizes[rows]
    compute_positions = functools.partial(entries_of_batch.compute_positions_by_payload, rows, selection)
    return SelectedEvents(
        buffer,
        starts,
        stops,
        entries_of_batch.get_event_types_at(rows),
        compute_positions,
        entries_of_batch.count_events_with_payload(selection.payload),
        exchange_totals,
    )


class _BufferPool:
    """A pool of buffers that are reused, because writing to newly allocated memory is slow."""

    def __init__(self) -> None:
        self._idle: list[Buffer] = []

    def acquire_buffer(self, min_size: int) -> Buffer:
        """Return a buffer from the pool that has room for the given number of bytes."""
        try:
            buffer = self._idle.pop()
        except IndexError:
            return Buffer(min_size)
        return buffer if len(buffer.data) >= min_size + SLACK else Buffer(min_size)

    def release_buffer(self, buffer: Buffer) -> None:
        """Put a buffer back into the pool for later use."""
        self._idle.append(buffer)


def _split_into_batches(blocks: Sequence[Block], event_count: int) -> Iterator[range]:
    """Yield the indices of the blocks of each batch.

    Each batch except the last one has at least ``BATCH_BYTES``, or about ``BATCH_EVENTS`` events if the events are
    small. The size of a block with an unusually high compression ratio is overestimated, which makes its batch smaller.

    Args:
        blocks: The blocks of events.
        event_count: Number of events in all blocks.
    """
    mean_size = sum(block.size for block in blocks) / max(event_count, 1)
    batch_bytes = min(BATCH_BYTES, max(MIN_BATCH_BYTES, BATCH_EVENTS * mean_size))
    first, size = 0, 0.0
    for i, block in enumerate(blocks):
        size += block.size * max(1.0, block.size / (USUAL_RATIO * block.packed))
        if size >= batch_bytes:
            yield range(first, i + 1)
            first, size = i + 1, 0.0
    if first < len(blocks):
        yield range(first, len(blocks))
