"""The description of a format of private values, and functions that overwrite matches of such a format."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.readers.redaction.pseudonyms import Pseudonyms

FILL = b"x"
Overwrite: TypeAlias = "Callable[[re.Match[bytes], Pseudonyms], bytes]"


@dataclass(frozen=True)
class Pattern:
    """A format of private values.

    Attributes:
        kind: Kind of private value, by which matches are counted.
        expression: Regular expression that matches the values.
        overwrite: Function that returns the replacement of a match, which has the same length.
        search_strings: Lower-case strings. Every match of the pattern contains one of them, or a match of a prefilter.
        prefilters: First byte and remaining regular expression of each prefilter.
        confirm: Function that returns whether a search string at an offset of the data may be part of a match. None
            accepts every search string.
    """

    kind: str
    expression: re.Pattern[bytes]
    overwrite: Overwrite
    search_strings: tuple[bytes, ...] = ()
    prefilters: tuple[tuple[bytes, bytes], ...] = ()
    confirm: Callable[[bytes, int], object] | None = None

    @functools.cached_property
    def prefilter_pattern(self) -> re.Pattern[bytes]:
        """A regular expression that has a match in every lower-case string that may contain a match of the pattern."""
        return re.compile(b"|".join(map(re.escape, (*self.search_strings, *(start for start, _ in self.prefilters)))))

    def overwrite_matches(self, text: bytes, lower_text: bytes, pseudonyms: Pseudonyms) -> bytes:
        """Return a string in which every match is overwritten.

        Args:
            text: The string.
            lower_text: The string in lower case, in which the absence of a match is detected quickly.
            pseudonyms: Pseudonyms for UUIDs and PCI addresses.
        """
        if self.prefilter_pattern.search(lower_text) is None:
            return text
        return self.expression.sub(lambda match: self.overwrite(match, pseudonyms), text)


def overwrite_with_x(text: bytes) -> bytes:
    """Return a string of the letter ``x`` that is as long as ``text``."""
    return FILL * len(text)


def overwrite_match(match: re.Match[bytes], _pseudonyms: Pseudonyms) -> bytes:
    """Replace each byte of a match with ``x``."""
    return overwrite_with_x(match[0])


def overwrite_words(match: re.Match[bytes], _pseudonyms: Pseudonyms) -> bytes:
    """Replace each letter and digit of a match with ``x``, but leave the separators between them unchanged."""
    return re.sub(rb"[\w\x80-\xff]", FILL, match[0])


def overwrite_last_group(match: re.Match[bytes], _pseudonyms: Pseudonyms) -> bytes:
    """Replace each byte of the last capture group of a match with ``x``, and leave all other bytes unchanged."""
    group = match.lastindex or 0
    start, end = (place - match.start() for place in match.span(group))
    return match[0][:start] + overwrite_with_x(match[group]) + match[0][end:]
