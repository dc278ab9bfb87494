"""Overwriting in the messages of a report: only fields in which something may stand are looked at one by one.

How much that costs is bounded by the size of the file: a few bytes of LZ4 can become a million fields.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import Buffer
from tracekit.readers.common.protobuf.occurrences import find_occurrences
from tracekit.readers.common.protobuf.rewriting import encode_field, field_span_at
from tracekit.readers.common.protobuf.wire import DELIMITED
from tracekit.readers.common.redaction import Names, Redaction, TooManyCandidates
from tracekit.readers.nsys_rep.fields import fields_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tracekit.readers.common.protobuf.decoding import Places
    from tracekit.readers.common.protobuf.rewriting import FieldSpan

    Span = tuple[int, int, int]
    """A stretch of bytes in which something may stand: where it begins and ends, and the bits of what that may be."""
    Spans = Sequence[Span]

LEAST_STEPS, STEPS_PER_BYTE = 1 << 18, 1
BYTES_PER_STEP = 16
"""Bytes of a text that may be searched for a step."""
MAX_ENTRIES = 1 << 21
DEEPEST = 24
_ENTRY_FIELDS = (fields_of("EventBlock").events, fields_of("EventBlock").generic_events)
_KEY_AND_LENGTH = 5
"""Bytes that stand before those of an entry at most."""


class Budget:
    """How many fields and stretches may be looked at one by one in a file.

    Attributes:
        left: How many more.
    """

    def __init__(self, size: int) -> None:
        """Allow what a file of so many bytes may cost."""
        self._most = self.left = LEAST_STEPS + STEPS_PER_BYTE * size

    def spend(self, steps: int = 1) -> None:
        """Take steps.

        Raises:
            Damage: None are left.
        """
        self.left -= steps
        if self.left < 0:
            raise self.exceeded()

    def spend_bytes(self, size: int) -> None:
        """Take the steps that a text of some bytes costs.

        Raises:
            Damage: So many are not left.
        """
        self.spend(1 + size // BYTES_PER_STEP)

    def exceeded(self) -> Damage:
        """Return what to raise when more would have to be looked at."""
        return Damage(f"more than {self._most} fields and texts would have to be looked at to redact it")


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of a block of events or strings.

    Attributes:
        body: The block.
        starts: n places where the bytes of an entry begin, ascending.
        stops: n places where they end.
        numbers: n numbers of fields: those of ``EventBlock`` or ``StringBlock``, which are the same.
    """

    body: bytes
    starts: Places
    stops: Places
    numbers: Places

    @classmethod
    def of(cls, body: bytes) -> Entries:
        """Find the entries of a block.

        Raises:
            Damage: A field reaches beyond the block, or there are too many.
        """
        buffer = Buffer(len(body))
        buffer.data[: len(body)] = np.frombuffer(body, np.uint8)
        parts = find_occurrences(buffer, np.zeros(1, np.int64), np.full(1, len(body)), _ENTRY_FIELDS, MAX_ENTRIES)
        starts, stops = (np.concatenate(x) for x in zip(*((p.starts, p.stops) for p in parts), strict=True))
        numbers = np.repeat(_ENTRY_FIELDS, [len(p) for p in parts])
        order = np.argsort(starts, kind="stable")
        return cls(body, starts[order], stops[order], numbers[order])

    def holding(self, places: Iterable[int]) -> list[int]:
        """Return which entries places of the block lie in; ascending."""
        at = np.fromiter(places, np.int64)
        nth = np.searchsorted(self.starts, at, side="right") - 1
        inside = (nth >= 0) & (at < self.stops[nth]) if len(self.stops) else np.zeros(len(at), np.bool_)
        return [int(n) for n in np.unique(nth[inside])]

    def __getitem__(self, nth: int) -> bytes:
        return self.body[self.starts[nth] : self.stops[nth]]

    def spans(self, nth: int, spans: Spans) -> list[Span]:
        """Return the stretches that begin in an entry, from its start."""
        start, stop = int(self.starts[nth]), int(self.stops[nth])
        first, last = (bisect_left(spans, (place, 0, 0)) for place in (start, stop))
        return [(a - start, b - start, bits) for a, b, bits in spans[first:last]]

    def others(self, budget: Budget) -> Iterator[tuple[int, int]]:
        """Yield where the bytes of fields with other numbers begin and end; no release has any."""
        view, befores = memoryview(self.body), np.concatenate(([0], self.stops))
        afters = np.concatenate((self.starts, [len(self.body)]))
        room = np.append(np.full(len(self.starts), _KEY_AND_LENGTH), 0)
        for nth in np.flatnonzero(afters - befores > room):
            at, end = int(befores[nth]), int(afters[nth])
            while at < end:
                budget.spend()
                part = field_span_at(self.body, view, at)
                if part.kind == DELIMITED and part.start != end:
                    yield part.start, part.end
                at = part.end

    def replaced(self, values: dict[int, bytes], budget: Budget) -> bytes:
        """Return the block with other values in some entries; all other bytes stay."""
        out: list[bytes] = []
        kept = 0
        for nth, value in sorted(values.items()):
            after = int(self.stops[nth - 1]) if nth else 0
            out += (
                self.body[kept : self._begin(after, int(self.starts[nth]), budget)],
                encode_field(int(self.numbers[nth]), value),
            )
            kept = int(self.stops[nth])
        return b"".join((*out, self.body[kept:]))

    def _begin(self, after: int, start: int, budget: Budget) -> int:
        """Return where the field begins whose bytes begin at a place."""
        view = memoryview(self.body)
        while (part := field_span_at(self.body, view, after)).start < start:
            budget.spend()
            after = part.end
        return part.begin


class Overwriter:
    """Overwrites names, and what is known by its form, in messages, texts and other bytes of a report."""

    def __init__(self, redaction: Redaction, budget: Budget, names: Names) -> None:
        self.redaction = redaction
        self.budget = budget
        self.names = names

    def candidates(self, data: bytes) -> list[Span]:
        """Return where something may stand in data.

        Raises:
            Damage: In more places than the file may have.
        """
        before = self.names.examined
        try:
            spans = self.names.candidates(data, self.budget.left)
        except TooManyCandidates as e:
            raise self.budget.exceeded() from e
        self.budget.spend(self.names.examined - before)
        return spans

    def overwritten(self, value: bytes, spans: Spans | None = None) -> bytes:
        """Overwrite what stands in a message, a text or other bytes, of which the candidates may be known."""
        spans = self.candidates(value) if spans is None else spans
        out = bytearray(value)
        for start, end, bits in leaves(value, spans, self.budget):
            out[start:end] = self.overwritten_text(value[start:end], bits)
        return bytes(out)

    def overwritten_text(self, text: bytes, bits: int) -> bytes:
        """Overwrite what stands in a text, or in bytes that are no message."""
        self.budget.spend_bytes(len(text))
        return self.redaction.overwrite(self.names, text, bits)

    def without_others(self, entries: Entries, spans: Spans) -> Entries:
        """Overwrite what stands in a block outside of its entries."""
        out = bytearray(entries.body)
        for start, end in entries.others(self.budget):
            inside = [(a - start, b - start, bits) for a, b, bits in spans if start <= a < end]
            out[start:end] = self.overwritten(entries.body[start:end], inside)
        return dataclasses.replace(entries, body=bytes(out))


def leaves(value: bytes, spans: Spans, budget: Budget) -> Iterator[Span]:
    """Yield the texts and other bytes in a message in which stretches begin, with the bits of all of these.

    Bytes are taken for a message if they can be one, and if every stretch then lies within one of its fields.
    """
    waiting: list[tuple[int, int, int, Spans]] = [(0, len(value), 0, spans)]
    while waiting:
        start, end, depth, inside = waiting.pop()
        if not inside:
            continue
        inner = _fields(value[start:end], inside, budget) if depth < DEEPEST else None
        if inner is None:
            yield start, end, functools.reduce(operator.or_, (bits for _, _, bits in inside))
            continue
        for part, stretches in inner:
            waiting.append((start + part.start, start + part.end, depth + 1, stretches))


def _fields(value: bytes, spans: Spans, budget: Budget) -> list[tuple[FieldSpan, Spans]] | None:
    """Return the fields of a message that hold stretches; None if it is none, or if one lies elsewhere."""
    try:
        budget.spend(len(spans))
        fields = list(_delimited(value, budget))
    except _NoMessage:
        return None
    starts = [part.start for part in fields]
    held: dict[int, list[Span]] = {}
    for begin, end, bits in spans:
        nth = bisect_right(starts, begin) - 1
        if nth < 0 or fields[nth].end < end:
            return None
        offset = fields[nth].start
        held.setdefault(nth, []).append((begin - offset, end - offset, bits))
    return [(fields[nth], stretches) for nth, stretches in held.items()]


class _NoMessage(Exception):  # noqa: N818 - never leaves this module
    """Bytes are no message."""


def _delimited(value: bytes, budget: Budget) -> Iterator[FieldSpan]:
    """Yield the fields of a message that hold bytes."""
    view, at = memoryview(value), 0
    while at < len(value):
        budget.spend()
        try:
            part = field_span_at(value, view, at)
        except Damage as e:
            raise _NoMessage from e
        if part.kind == DELIMITED:
            yield part
        at = part.end


def each_replaced(
    entries: Entries, chosen: Iterable[int], edit: Callable[[int, bytes], bytes], budget: Budget
) -> bytes:
    """Return a block with some entries edited: what becomes no other value is not encoded anew."""
    values: dict[int, bytes] = {}
    for nth in chosen:
        budget.spend()
        before = entries[nth]
        after = edit(nth, before)
        if after != before:
            values[nth] = after
    return entries.replaced(values, budget) if values else entries.body
