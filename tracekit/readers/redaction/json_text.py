"""Locate the strings and brackets in a section of JSON text, without parsing it."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.readers.common.damage import Damage
from tracekit.readers.kineto.quotes import find_names_with_quotes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.readers.common.json.stream import Stream

    Int64Array = npt.NDArray[np.int64]

MAX_SECTION_BYTES = 1 << 25
"""Maximum number of bytes that are read to find the end of an event. Longer JSON values are divided at a comma."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_EVENT_BOUNDARY = re.compile(rb"\}\s{0,200}(?:,(?=\s{0,200}\{)|(?=\{))")
"""The end of an event before another one, which a comma or a line break separates."""
_QUOTE, _COMMA = ord('"'), ord(",")
_ESCAPED_QUOTE = re.compile(rb'\\+"')
_IS_STRUCTURE = np.zeros(256, np.bool_)
_IS_STRUCTURE[list(b'{}[]:,"0123456789+-.eE \t\r\n' + b"truefalsnIityN")] = True
"""Whether a byte may occur outside of strings: brackets, separators, numbers, and letters of words such as ``true``."""
_SPACES = b" \t\r\n"
_NEAR = 256
_TAIL_BYTES = 1 << 20
"""Number of bytes at the end of a section in which the end of the last complete event is searched."""


class Strings(NamedTuple):
    """The strings of a section of JSON, without their quotes: the offsets at which each string starts and ends."""

    starts: Int64Array
    ends: Int64Array


class JsonText:
    """A section of JSON text that begins outside of a string.

    Attributes:
        data: The bytes of the section.
        strings: The strings, including the keys of objects.
    """

    def __init__(self, data: bytes, strings: Strings, is_outside: npt.NDArray[np.bool_]) -> None:
        self.data = data
        self.strings = strings
        self._is_outside = is_outside

    def find_string_index(self, offset: int) -> int | None:
        """Return the index of the string that contains the byte at an offset, or None if it is outside of strings."""
        index = int(np.searchsorted(self.strings.starts, offset, side="right")) - 1
        return index if index >= 0 and offset < self.strings.ends[index] else None

    def find_next_string_index(self, offset: int) -> int:
        """Return the index of the first string that starts after an offset."""
        return int(np.searchsorted(self.strings.starts, offset, side="right"))

    def get_string(self, index: int) -> bytes:
        """Return a string as it is written, with escaped characters."""
        return self.data[self.strings.starts[index] : self.strings.ends[index]]

    def get_separator_before(self, index: int) -> bytes:
        """Return the bytes between a string and the string before it, without spaces, such as ``:`` after a key."""
        if index == 0:
            return b""
        start, end = int(self.strings.ends[index - 1]) + 1, int(self.strings.starts[index]) - 1
        return self.data[start:end].strip(_SPACES) if end - start <= _NEAR else b""

    def find_strings_in_intervals(self, starts: Int64Array, ends: Int64Array) -> Int64Array:
        """Return the indices of the strings that overlap one of the given intervals or follow one of them."""
        number = len(self.strings.starts)
        firsts = np.maximum(np.searchsorted(self.strings.starts, starts, side="right") - 1, 0)
        stops = np.minimum(np.searchsorted(self.strings.starts, ends, side="right") + 1, number)
        changes = np.bincount(firsts, minlength=number + 1) - np.bincount(stops, minlength=number + 1)
        return np.flatnonzero(np.cumsum(changes)[:number] > 0)

    def find_closing_bracket(self, offset: int) -> int | None:
        """Return the offset of the bracket that closes the object or array at an offset, or None if it is missing."""
        places, _, partners = self._brackets
        index = int(np.searchsorted(places, offset))
        partner = int(partners[index])
        return None if partner < 0 else int(places[partner])

    def find_enclosing_bracket(self, offset: int) -> int | None:
        """Return the offset of the opening bracket of the innermost object or array at an offset.

        The result is None if the section does not contain both brackets of this object or array.
        """
        places, depths, partners = self._brackets
        index = int(np.searchsorted(places, offset)) - 1
        if index < 0:
            return None
        opened = self._opening_brackets_by_depth.get(int(depths[index]))
        if opened is None:
            return None
        nth = int(np.searchsorted(opened, index, side="right")) - 1
        if nth < 0:
            return None
        partner = int(partners[opened[nth]])
        return int(places[opened[nth]]) if partner >= 0 and places[partner] >= offset else None

    @functools.cached_property
    def _brackets(self) -> tuple[Int64Array, Int64Array, Int64Array]:
        """The offsets of all brackets, the depth after each of them, and the index of the matching bracket or -1."""
        array = np.frombuffer(self.data, np.uint8)
        is_opening = (array == ord("{")) | (array == ord("["))
        is_bracket = is_opening | (array == ord("}")) | (array == ord("]"))
        places = np.flatnonzero(is_bracket & self._is_outside)
        opens = is_opening[places]
        depths = np.cumsum(np.where(opens, 1, -1))
        levels = np.where(opens, depths, depths + 1)
        order = np.argsort(levels, kind="stable")
        follows = (levels[order[1:]] == levels[order[:-1]]) & opens[order[:-1]] & ~opens[order[1:]]
        partners = np.full(len(places), -1, np.int64)
        partners[order[:-1][follows]] = order[1:][follows]
        return places, depths, partners

    @functools.cached_property
    def _opening_brackets_by_depth(self) -> dict[int, Int64Array]:
        """For each depth, the ascending indices of the brackets that open an object or array of this depth."""
        places, depths, _ = self._brackets
        array = np.frombuffer(self.data, np.uint8)
        opened = np.flatnonzero((array[places] == ord("{")) | (array[places] == ord("[")))
        order = np.argsort(depths[opened], kind="stable")
        values, firsts = np.unique(depths[opened][order], return_index=True)
        return dict(zip(values.tolist(), np.split(opened[order], firsts[1:]), strict=True))


def read_sections(stream: Stream) -> Iterator[JsonText]:
    """Yield a JSON document in sections, each of which ends after a complete event.

    A JSON value of more than ``MAX_SECTION_BYTES``, such as a large list that is not an event, is divided after one of
    the commas between its elements.

    Raises:
        Damage: The document is not valid JSON, or is truncated.
    """
    pending, is_first = b"", True
    position = 0
    while block := stream.read():
        pending += block
        if is_first and len(pending) > len(_BYTE_ORDER_MARK):
            is_first = False
            if pending.startswith(_BYTE_ORDER_MARK):
                yield JsonText(_BYTE_ORDER_MARK, Strings(*np.empty((2, 0), np.int64)), np.zeros(3, np.bool_))
                pending = pending.removeprefix(_BYTE_ORDER_MARK)
        text = _locate_strings(pending, position, is_complete=False)
        if text is None:
            continue
        yield text
        pending = pending[len(text.data) :]
        position += len(text.data)
    last = _locate_strings(pending, position, is_complete=True)
    if last is not None:
        yield last


def _locate_strings(data: bytes, position: int, *, is_complete: bool) -> JsonText | None:
    """Locate the strings in the next bytes of a document, up to the end of the last complete event.

    Args:
        data: The bytes.
        position: Offset of the bytes in the document, for error messages.
        is_complete: Whether the document ends after these bytes.

    Returns:
        The section of the bytes that was located, or None if more bytes must be read first.

    Raises:
        Damage: The bytes are not valid JSON.
    """
    quotes = _find_quotes(data)
    is_outside = _compute_outside(quotes, len(data))
    end = len(data) if is_complete else _find_section_end(data, is_outside)
    fault = None if end is None else _find_fault(data, quotes, is_outside, end)
    if fault is not None:
        quotes = _remove_quotes_in_names(data, quotes)
        is_outside = _compute_outside(quotes, len(data))
        end = len(data) if is_complete else _find_section_end(data, is_outside)
        fault = None if end is None else _find_fault(data, quotes, is_outside, end)
    if fault is not None:
        raise Damage(f"the JSON is invalid or truncated near byte {position + fault} of the decompressed trace")
    if end is None:
        return None
    quotes = quotes[quotes < end]
    return JsonText(data[:end], Strings(quotes[0::2] + 1, quotes[1::2]), is_outside[:end])


def _find_quotes(data: bytes) -> Int64Array:
    """Return the offsets of the quotes that begin and end strings."""
    quotes = np.flatnonzero(np.frombuffer(data, np.uint8) == _QUOTE)
    if b'\\"' not in data:
        return quotes
    escaped = [match.end() - 1 for match in _ESCAPED_QUOTE.finditer(data) if not (match.end() - match.start()) % 2]
    return np.setdiff1d(quotes, escaped, assume_unique=True) if escaped else quotes


def _compute_outside(quotes: Int64Array, size: int) -> npt.NDArray[np.bool_]:
    """Return whether each byte is outside of strings. The quotes themselves are outside."""
    is_quote = np.zeros(size, np.uint8)
    is_quote[quotes] = 1
    is_outside: npt.NDArray[np.bool_] = (np.bitwise_xor.accumulate(is_quote) == 0) | (is_quote == 1)
    return is_outside


def _find_fault(data: bytes, quotes: Int64Array, is_outside: npt.NDArray[np.bool_], end: int) -> int | None:
    """Return the first offset before ``end`` at which the bytes cannot be JSON, or None if there is none."""
    faults = np.flatnonzero(is_outside[:end] & ~_IS_STRUCTURE[np.frombuffer(data, np.uint8, end)])
    if len(faults):
        return int(faults[0])
    count = int(np.searchsorted(quotes, end))
    return int(quotes[count - 1]) if count % 2 else None


def _find_section_end(data: bytes, is_outside: npt.NDArray[np.bool_]) -> int | None:
    """Return the offset after the last event that another one follows, or None if more bytes must be read."""
    for match in reversed(list(_EVENT_BOUNDARY.finditer(data, max(0, len(data) - _TAIL_BYTES)))):
        if is_outside[match.end() - 1]:
            return match.end()
    if len(data) < MAX_SECTION_BYTES:
        return None
    commas = np.flatnonzero((np.frombuffer(data, np.uint8) == _COMMA) & is_outside)
    return int(commas[-1]) + 1 if len(commas) else None


def _remove_quotes_in_names(data: bytes, quotes: Int64Array) -> Int64Array:
    """Return the quotes without those that PyTorch did not escape in the names of events."""
    names = np.array(list(find_names_with_quotes(data)), np.int64).reshape(-1, 2)
    nth = np.searchsorted(names[:, 0], quotes, side="right") - 1
    is_inside = (nth >= 0) & (quotes < names[nth, 1]) if len(names) else np.zeros(len(quotes), np.bool_)
    remaining: Int64Array = quotes[~is_inside]
    return remaining
