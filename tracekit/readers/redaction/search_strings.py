"""Search megabytes of data for many short strings at once."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_TO_ASCII = bytes(range(0x80)) + b"\1" * 0x80
_MAX_SEARCHED_BYTES = 32
"""Maximum number of leading bytes of a string to search for. ``find_strings_at_offset`` compares the rest."""


class SearchStrings:
    """A set of lower-case strings to search for. Each string belongs to one or several patterns.

    Attributes:
        pattern_bits: For each string, a bit mask of the patterns that may match where the string occurs.
        depth: Length of the longest chain of strings in which each string is a prefix of the next one: 3 for ``/a``,
            ``/a/b`` and ``/a/b/c``.
    """

    def __init__(self, pattern_bits: Mapping[bytes, int]) -> None:
        self.pattern_bits = dict(pattern_bits)
        self._ordered = sorted(pattern_bits)
        self._longest = max(map(len, pattern_bits), default=0)
        self._longest_prefix: dict[bytes, bytes] = {}
        self.depth = 0
        chain: list[bytes] = []
        for string in self._ordered:
            while chain and not string.startswith(chain[-1]):
                chain.pop()
            if chain:
                self._longest_prefix[string] = chain[-1]
            chain.append(string)
            self.depth = max(self.depth, len(chain))
        self._patterns = _select_prefix_free_strings(
            {string[:_MAX_SEARCHED_BYTES].translate(_TO_ASCII).decode("ascii") for string in pattern_bits}
        )

    def find_string_starts(self, data: bytes) -> list[int]:
        """Return the ascending offsets in data at which one of the strings may begin, ignoring case.

        Only the leading bytes of the strings are compared, and all non-ASCII bytes are treated as equal.
        ``find_strings_at_offset`` compares whole strings.
        """
        import polars as pl

        text = pl.Series([data.translate(_TO_ASCII).decode("ascii")])
        offsets = text.str.find_many(self._patterns, ascii_case_insensitive=True, overlapping=True)
        return [] if not len(offsets[0]) else sorted(set(offsets[0].to_list()))

    def find_strings_at_offset(self, lower_data: bytes, offset: int) -> list[bytes]:
        """Return the strings that occur at an offset of lower-case data, longest first."""
        data = lower_data[offset : offset + self._longest]
        i = bisect_right(self._ordered, data) - 1
        string = self._ordered[i] if i >= 0 else None
        matches: list[bytes] = []
        while string is not None:
            if data.startswith(string):
                matches.append(string)
            string = self._longest_prefix.get(string)
        return matches


def _select_prefix_free_strings(strings: set[str]) -> list[str]:
    """Return the strings of a set that do not begin with another string of the set, in sorted order.

    At most one of the returned strings occurs at any offset.
    """
    selected: list[str] = []
    for string in sorted(strings):
        if not selected or not string.startswith(selected[-1]):
            selected.append(string)
    return selected
