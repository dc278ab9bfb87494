"""Edit the messages of a report, and overwrite private values in them. All other bytes are unchanged.

Only fields that may hold private values are visited.

The number of steps is limited in proportion to the size of the file. Otherwise, redacting a small file could take a
very long time, because LZ4 can compress a million fields to a few kilobytes.
"""

from __future__ import annotations

import dataclasses
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import (
    DELIMITED,
    FIXED32,
    FIXED64,
    MAX_VARINT,
    MORE,
    VARINT,
    Buffer,
    encode_field,
    find_occurrences,
    read_varint,
)
from tracekit.readers.nsys_rep.layout import load_fields
from tracekit.readers.redaction.matcher import TooManyCandidates, find_environment_candidates, join_masks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tracekit.readers.common.protobuf.decoding import Int64Array
    from tracekit.readers.redaction.matcher import Candidate, PrivateValueMatcher
    from tracekit.readers.redaction.state import Redaction

    Candidates = Sequence[Candidate]

FieldEdit: TypeAlias = Callable[[bytes], bytes]
"""A function that takes the old value of a field and returns the new value. Numbers are passed as encoded bytes."""

MAX_FIELDS = 1 << 21
_SIZES = {FIXED64: 8, FIXED32: 4}
_NUMBER = re.compile(rb"[\x80-\xff]{0,%d}[\0-\x7f]" % (MAX_VARINT - 1))

MAX_FIELDS = 1 << 21
_SIZES = {FIXED64: 8, FIXED32: 4}
_NUMBER = re.compile(rb"[\x80-\xff]{0,%d}[\0-\x7f]" % (MAX_VARINT - 1))
BASE_STEPS, STEPS_PER_BYTE = 1 << 18, 1
"""Number of steps that are allowed for a file of any size, and number of additional steps per byte of the file."""
BYTES_PER_STEP = 16
"""Number of bytes of a string that may be searched per step."""
MAX_ENTRIES = 1 << 21
MAX_DEPTH = 24
_ENTRY_FIELDS = (load_fields("EventBlock").events, load_fields("EventBlock").generic_events)
_KEY_AND_LENGTH = 5
"""Maximum number of bytes of the key and the length of an entry."""


class FieldSpan(NamedTuple):
    """The location of a field in an encoded protobuf message.

    Attributes:
        number: Field number.
        kind: Wire type.
        start: Offset of the key.
        value_start: Offset of the value, after the key and the length.
        end: Offset after the value.
    """

    number: int
    kind: int
    start: int
    value_start: int
    end: int


def iterate_field_spans(data: bytes) -> Iterator[FieldSpan]:
    """Yield the location of each field in an encoded message, in ascending order of the offsets.

    Raises:
        Damage: The bytes are not a valid message, or have more than ``MAX_FIELDS`` fields.
    """
    view = memoryview(data)
    at, end = 0, len(data)
    for _ in range(MAX_FIELDS):
        if at >= end:
            return
        part = locate_field(data, view, at)
        yield part
        at = part.end
    raise Damage(f"a message has more than {MAX_FIELDS} fields, which tracekit does not support")


def locate_field(data: bytes, view: memoryview, offset: int) -> FieldSpan:
    """Return the location of the field that begins at an offset of an encoded message.

    Args:
        data: The encoded message.
        view: A view of the same bytes.
        offset: Offset of the key of the field.

    Raises:
        Damage: No valid field begins at the offset.
    """
    key, start = _read_varint(data, view, offset)
    kind = key & 7
    if kind == DELIMITED:
        size, start = _read_varint(data, view, start)
        stop = start + size
    elif kind == VARINT:
        stop = _find_varint_end(data, start)
    elif kind in _SIZES:
        stop = start + _SIZES[kind]
    else:
        raise Damage(f"a field has the unknown wire type {kind}")
    if stop > len(data):
        raise Damage(f"a field at offset {offset} extends beyond the end of its message of {len(data)} bytes")
    return FieldSpan(key >> 3, kind, offset, start, stop)


def create_message_editor(edits: Mapping[int, FieldEdit]) -> FieldEdit:
    """Return a function that edits length-delimited fields of an encoded message.

    Args:
        edits: For each field number, a function that takes the old value of the field and returns the new value.
            Fields with other numbers are unchanged.
    """

    def edit_field(span: FieldSpan, value: bytes) -> bytes:
        return edits[span.number](value) if span.kind == DELIMITED and span.number in edits else value

    return lambda data: edit_message(data, edit_field)


def edit_message(data: bytes, edit: Callable[[FieldSpan, bytes], bytes]) -> bytes:
    """Return an encoded message after replacing the value of each field with the result of a function.

    Args:
        data: The encoded message.
        edit: Function that is called with the location and the value of each field, and returns the new value.
    """
    out: list[bytes] = []
    copied = 0
    for part in iterate_field_spans(data):
        value = data[part.value_start : part.end]
        edited = edit(part, value)
        if edited != value:
            is_delimited = part.kind == DELIMITED
            head = encode_field(part.number, edited) if is_delimited else data[part.start : part.value_start] + edited
            out += (data[copied : part.start], head)
            copied = part.end
    return b"".join((*out, data[copied:])) if out else data


def _read_varint(data: bytes, view: memoryview, offset: int) -> tuple[int, int]:
    """Return the value of the varint at an offset, and the offset after the varint.

    Varints of one or two bytes, which are the most frequent, are decoded here, because that is faster than calling
    ``wire.read_varint``.
    """
    if offset + 1 < len(data):
        first, second = data[offset], data[offset + 1]
        if first < MORE:
            return first, offset + 1
        if second < MORE:
            return first % MORE | second << 7, offset + 2
    return read_varint(view, offset)


def _find_varint_end(data: bytes, offset: int) -> int:
    """Return the offset after the varint that begins at an offset."""
    match = _NUMBER.match(data, offset)
    if match is None:
        raise Damage(f"the varint at offset {offset} is too long or truncated")
    return match.end()


class StepBudget:
    """A limit on the number of steps for redacting a file. For example, visiting a field takes one step.

    Attributes:
        left: Number of remaining steps.
    """

    def __init__(self, size: int) -> None:
        """Create the budget for a file with the given size in bytes."""
        self._limit = self.left = BASE_STEPS + STEPS_PER_BYTE * size

    def deduct_steps(self, steps: int = 1) -> None:
        """Subtract a number of steps from the remaining budget.

        Raises:
            Damage: Not enough steps are left.
        """
        self.left -= steps
        if self.left < 0:
            raise self.create_limit_exceeded_error()

    def deduct_string_steps(self, string_size: int) -> None:
        """Subtract the steps for searching a string of the given size in bytes from the remaining budget.

        Raises:
            Damage: Not enough steps are left.
        """
        self.deduct_steps(1 + string_size // BYTES_PER_STEP)

    def find_environment_candidates(self, data: bytes, *, include_homes: bool = False) -> list[Candidate]:
        """Return the offsets at which a list of environment variables may begin, as intervals of one byte.

        Raises:
            Damage: There are more offsets than steps left.
        """
        try:
            candidates = find_environment_candidates(data, self.left, include_homes=include_homes)
        except TooManyCandidates as e:
            raise self.create_limit_exceeded_error() from e
        self.deduct_steps(len(candidates))
        return candidates

    def create_limit_exceeded_error(self) -> Damage:
        """Return the error for a file whose redaction exceeds the maximum number of steps."""
        return Damage(
            f"redacting the report takes more than {self._limit} steps, which is too many for a file of this size"
        )


@dataclass(frozen=True, slots=True)
class BlockEntries:
    """The entries of a block: encoded events in a block of events, or encoded strings in a block of strings.

    Attributes:
        body: Bytes of the decompressed block.
        starts: Start offset of each entry, ascending.
        stops: End offset of each entry.
        numbers: Field number of each entry. The messages ``EventBlock`` and ``StringBlock`` use the same field numbers.
    """

    body: bytes
    starts: Int64Array
    stops: Int64Array
    numbers: Int64Array

    @classmethod
    def parse(cls, block_data: bytes) -> BlockEntries:
        """Find the encoded events or strings of a decompressed block.

        Raises:
            Damage: A field extends beyond the end of the block, or there are too many entries.
        """
        buffer = Buffer(len(block_data))
        buffer.data[: len(block_data)] = np.frombuffer(block_data, np.uint8)
        parts = find_occurrences(buffer, np.zeros(1, np.int64), np.full(1, len(block_data)), _ENTRY_FIELDS, MAX_ENTRIES)
        starts, stops = (np.concatenate(x) for x in zip(*((p.starts, p.stops) for p in parts), strict=True))
        numbers = np.repeat(_ENTRY_FIELDS, [len(p) for p in parts])
        order = np.argsort(starts, kind="stable")
        return cls(block_data, starts[order], stops[order], numbers[order])

    def find_entry_indices_at(self, offsets: Iterable[int]) -> list[int]:
        """Return the ascending indices of the events or strings that contain at least one of the given offsets."""
        at = np.fromiter(offsets, np.int64)
        nth = np.searchsorted(self.starts, at, side="right") - 1
        inside = (nth >= 0) & (at < self.stops[nth]) if len(self.stops) else np.zeros(len(at), np.bool_)
        return [int(n) for n in np.unique(nth[inside])]

    def __getitem__(self, entry_index: int) -> bytes:
        return self.body[self.starts[entry_index] : self.stops[entry_index]]

    def select_spans_starting_in_entry(self, entry_index: int, spans: Candidates) -> list[Candidate]:
        """Return the intervals that start in an event or string, with offsets relative to the event or string."""
        start, stop = int(self.starts[entry_index]), int(self.stops[entry_index])
        first, last = (bisect_left(spans, (place, 0, 0)) for place in (start, stop))
        return [(a - start, b - start, pattern_mask) for a, b, pattern_mask in spans[first:last]]

    def iterate_unknown_value_ranges(self, budget: StepBudget) -> Iterator[tuple[int, int]]:
        """Yield the start and end offset of each length-delimited value that is neither an event nor a string.

        No known release of nsys writes such values.
        """
        view, befores = memoryview(self.body), np.concatenate(([0], self.stops))
        afters = np.concatenate((self.starts, [len(self.body)]))
        room = np.append(np.full(len(self.starts), _KEY_AND_LENGTH), 0)
        for nth in np.flatnonzero(afters - befores > room):
            at, end = int(befores[nth]), int(afters[nth])
            while at < end:
                budget.deduct_steps()
                part = locate_field(self.body, view, at)
                if part.kind == DELIMITED and part.value_start != end:
                    yield part.value_start, part.end
                at = part.end

    def encode_with_values(self, values_by_entry: dict[int, bytes], budget: StepBudget) -> bytes:
        """Return the bytes of the block with new values for the given events or strings.

        The argument ``values_by_entry`` maps the index of an event or string in the block to its new value.
        """
        out: list[bytes] = []
        copied = 0
        for nth, value in sorted(values_by_entry.items()):
            after = int(self.stops[nth - 1]) if nth else 0
            out += (
                self.body[copied : self._find_field_offset(after, int(self.starts[nth]), budget)],
                encode_field(int(self.numbers[nth]), value),
            )
            copied = int(self.stops[nth])
        return b"".join((*out, self.body[copied:]))

    def _find_field_offset(self, search_start: int, value_start: int, budget: StepBudget) -> int:
        """Return the offset of the field with a value at ``value_start``. The search begins at ``search_start``."""
        view = memoryview(self.body)
        while (part := locate_field(self.body, view, search_start)).value_start < value_start:
            budget.deduct_steps()
            search_start = part.end
        return part.start


class Overwriter:
    """A redactor that overwrites private values in the messages and strings of a report.

    Private values are names and other values that were collected from the report, and values with a recognizable
    format, such as UUIDs.
    """

    def __init__(self, redaction: Redaction, budget: StepBudget, matcher: PrivateValueMatcher) -> None:
        self.redaction = redaction
        self.budget = budget
        self.matcher = matcher

    def find_private_value_spans(self, data: bytes) -> list[Candidate]:
        """Return the intervals of bytes that may hold private values, each with a bit mask of patterns.

        Raises:
            Damage: The budget is exceeded, because there are too many intervals.
        """
        before = self.matcher.examined
        try:
            candidates = self.matcher.find_candidates(data, self.budget.left)
        except TooManyCandidates as e:
            raise self.budget.create_limit_exceeded_error() from e
        self.budget.deduct_steps(self.matcher.examined - before)
        return candidates

    def overwrite_private_values(self, value: bytes, spans: Candidates | None = None) -> bytes:
        """Return a copy of a message, a string or other bytes in which private values are overwritten.

        Args:
            value: Bytes to copy.
            spans: Intervals that may hold private values. If None, the bytes are searched for private values.
        """
        spans = self.find_private_value_spans(value) if spans is None else spans
        out = bytearray(value)
        for start, end, pattern_mask in find_innermost_fields(value, spans, self.budget):
            out[start:end] = self.overwrite_string(value[start:end], pattern_mask)
        return bytes(out)

    def overwrite_string(self, text: bytes, pattern_mask: int) -> bytes:
        """Return a copy of a string, or of bytes that are not a message, in which private values are overwritten.

        Args:
            text: String to copy.
            pattern_mask: Bit mask of the patterns that the string may contain, as for ``PrivateValueMatcher.redact``.
        """
        self.budget.deduct_string_steps(len(text))
        return self.redaction.overwrite_private_values(self.matcher, text, pattern_mask)

    def overwrite_unknown_fields(self, entries: BlockEntries, spans: Candidates) -> BlockEntries:
        """Return a copy of a block with private values overwritten in fields that hold neither events nor strings."""
        out = bytearray(entries.body)
        for start, end in entries.iterate_unknown_value_ranges(self.budget):
            inside = [(a - start, b - start, pattern_mask) for a, b, pattern_mask in spans if start <= a < end]
            out[start:end] = self.overwrite_private_values(entries.body[start:end], inside)
        return dataclasses.replace(entries, body=bytes(out))


def find_innermost_fields(value: bytes, spans: Candidates, budget: StepBudget) -> Iterator[Candidate]:
    """Yield the innermost fields of a message that contain any of the given intervals.

    Bytes are treated as a message if they can be parsed as a message and each interval lies within one field of this
    message.

    Yields:
        The start and end offset of a field, and the bitwise OR of the pattern masks of the intervals in the field.
    """
    waiting: list[tuple[int, int, int, Candidates]] = [(0, len(value), 0, spans)]
    while waiting:
        start, end, depth, inside = waiting.pop()
        if not inside:
            continue
        inner = _find_fields_with_intervals(value[start:end], inside, budget) if depth < MAX_DEPTH else None
        if inner is None:
            yield start, end, join_masks(inside)
            continue
        for part, intervals in inner:
            waiting.append((start + part.value_start, start + part.end, depth + 1, intervals))


def _find_fields_with_intervals(
    value: bytes, spans: Candidates, budget: StepBudget
) -> list[tuple[FieldSpan, Candidates]] | None:
    """Return the fields of a message that contain any of the given intervals, and the intervals in each field.

    The result is None if the bytes are not a message, or if an interval does not lie within one field.
    """
    try:
        budget.deduct_steps(len(spans))
        fields = list(_iterate_delimited_fields(value, budget))
    except _NotAMessageError:
        return None
    starts = [part.value_start for part in fields]
    spans_by_field: dict[int, list[Candidate]] = {}
    for begin, end, pattern_mask in spans:
        nth = bisect_right(starts, begin) - 1
        if nth < 0 or fields[nth].end < end:
            return None
        offset = fields[nth].value_start
        spans_by_field.setdefault(nth, []).append((begin - offset, end - offset, pattern_mask))
    return [(fields[nth], intervals) for nth, intervals in spans_by_field.items()]


class _NotAMessageError(Exception):
    """Error that is raised if bytes cannot be parsed as a message."""


def _iterate_delimited_fields(message: bytes, budget: StepBudget) -> Iterator[FieldSpan]:
    """Yield the length-delimited fields of a message."""
    view, at = memoryview(message), 0
    while at < len(message):
        budget.deduct_steps()
        try:
            part = locate_field(message, view, at)
        except Damage as e:
            raise _NotAMessageError from e
        if part.kind == DELIMITED:
            yield part
        at = part.end


def edit_entries(
    entries: BlockEntries, indices: Iterable[int], edit: Callable[[int, bytes], bytes], budget: StepBudget
) -> bytes:
    """Edit the events or strings at the given indices of a block, and return the bytes of the changed block."""
    values: dict[int, bytes] = {}
    for nth in indices:
        budget.deduct_steps()
        before = entries[nth]
        after = edit(nth, before)
        if after != before:
            values[nth] = after
    return entries.encode_with_values(values, budget) if values else entries.body
