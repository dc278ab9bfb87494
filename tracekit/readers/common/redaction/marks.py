"""Many short texts, searched for together in megabytes of anything."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_TO_ASCII = bytes(range(0x80)) + b"\1" * 0x80
_BEGINNING = 32
"""Bytes of a text that are searched for; the rest is compared where they stand."""


class Marks:
    """Texts in lower case to be searched for together, and the bits of what each belongs to.

    Attributes:
        owners: The bits by text.
        depth: How many of the texts begin with one another at most: of ``/a``, ``/a/b`` and ``/a/b/c`` three.
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
        self._patterns = _shortest({mark[:_BEGINNING].translate(_TO_ASCII).decode("ascii") for mark in owners})

    def starts(self, data: bytes) -> list[int]:
        """Return where marks may begin, ascending; upper case counts as lower case."""
        import polars as pl

        text = pl.Series([data.translate(_TO_ASCII).decode("ascii")])
        found = text.str.find_many(self._patterns, ascii_case_insensitive=True, overlapping=True)
        return [] if not len(found[0]) else sorted(set(found[0].to_list()))

    def at(self, low: bytes, start: int) -> list[bytes]:
        """Return the marks that begin at a place of data in lower case, the longest first."""
        data = low[start : start + self._longest]
        nth = bisect_right(self._ordered, data) - 1
        mark = self._ordered[nth] if nth >= 0 else None
        found: list[bytes] = []
        while mark is not None:
            if data.startswith(mark):
                found.append(mark)
            mark = self._shorter.get(mark)
        return found


def _shortest(texts: set[str]) -> list[str]:
    """Return the texts that begin with no other one; at any place at most one of them begins."""
    shortest: list[str] = []
    for text in sorted(texts):
        if not shortest or not text.startswith(shortest[-1]):
            shortest.append(text)
    return shortest
