"""Search for many short strings at once in megabytes of bytes."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_TO_ASCII = bytes(range(0x80)) + b"\1" * 0x80
_BEGINNING = 32
"""Number of bytes of a string that are searched for. The remaining bytes are compared at each match."""


class Marks:
    """A set of lower-case strings to search for, each with the bits of the patterns that it indicates.

    Attributes:
        owners: Bits of the patterns that each string indicates, by string.
        depth: Length of the longest chain of prefixes: 3 for ``/a``, ``/a/b`` and ``/a/b/c``.
    """

    def __init__(self, owners: Mapping[bytes, int]) -> None:
        self.owners = dict(owners)
        self._ordered = sorted(owners)
        self._longest = max(map(len, owners), default=0)
        self._shorter: dict[bytes, bytes] = {}
        self.depth = 0
        before: list[bytes] = []
        for mark in self._ordered:
            while before and not mark.startswith(before[-1]):
                before.pop()
            if before:
                self._shorter[mark] = before[-1]
            before.append(mark)
            self.depth = max(self.depth, len(before))
        self._patterns = _remove_prefixed({mark[:_BEGINNING].translate(_TO_ASCII).decode("ascii") for mark in owners})

    def find_starts(self, data: bytes) -> list[int]:
        """Return the ascending offsets at which one of the strings may begin, ignoring case."""
        import polars as pl

        text = pl.Series([data.translate(_TO_ASCII).decode("ascii")])
        offsets = text.str.find_many(self._patterns, ascii_case_insensitive=True, overlapping=True)
        return [] if not len(offsets[0]) else sorted(set(offsets[0].to_list()))

    def matches_at(self, low: bytes, start: int) -> list[bytes]:
        """Return the strings that begin at an offset of lower-case data, longest first."""
        data = low[start : start + self._longest]
        i = bisect_right(self._ordered, data) - 1
        mark = self._ordered[i] if i >= 0 else None
        matches: list[bytes] = []
        while mark is not None:
            if data.startswith(mark):
                matches.append(mark)
            mark = self._shorter.get(mark)
        return matches


def _remove_prefixed(texts: set[str]) -> list[str]:
    """Return the strings that do not begin with another of the strings, so that at most one begins at any offset."""
    shortest: list[str] = []
    for text in sorted(texts):
        if not shortest or not text.startswith(shortest[-1]):
            shortest.append(text)
    return shortest
