"""Escape the quotes in the names of events. PyTorch writes these quotes without escapes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from tracekit.readers.common.json.document import OBJECT_BOUNDARY

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAME_START = re.compile(rb'"name"\s{0,200}:\s{0,200}"')
_NAME_END = re.compile(
    rb'"(?=\s{0,200}(?:\}\s{0,200}[,}\]]|,\s{0,200}"(?:args|bp|cat|dur|id|ph|pid|s|tid|ts)"\s{0,200}:))'
)
_ESCAPE_OR_QUOTE = re.compile(rb'\\.|"', re.DOTALL)
_MAX_NAME_BYTES = 1 << 14
"""Maximum size in bytes of a name in which quotes are escaped."""


def escape_quotes_in_names(json: bytes) -> tuple[bytes, int]:
    """Escape the quotes in the names of the events in a section of JSON.

    A name ends at the first quote that precedes another member or the end of the event.

    Returns:
        The JSON with escaped quotes, and the number of names that were changed.
    """
    pieces, copied, count = [], 0, 0
    for start, stop in find_names_with_quotes(json):
        escaped = _ESCAPE_OR_QUOTE.sub(lambda match: match[0] if len(match[0]) > 1 else rb"\"", json[start:stop])
        if len(escaped) > stop - start:
            pieces += [json[copied:start], escaped]
            copied = stop
            count += 1
    return b"".join([*pieces, json[copied:]]), count


def find_names_with_quotes(json: bytes) -> Iterator[tuple[int, int]]:
    """Yield the start and end offset of each name in a section of JSON that contains quotes, escaped or not."""
    starts = np.fromiter((match.end() for match in _NAME_START.finditer(json)), np.int64)
    ends = np.fromiter((match.start() for match in _NAME_END.finditer(json)), np.int64)
    is_quote = np.frombuffer(json, np.uint8) == ord('"')
    quotes_before = np.concatenate([[0], np.cumsum(is_quote)])
    positions = np.searchsorted(ends, starts)
    starts = starts[positions < len(ends)]
    stops = ends[positions[: len(starts)]]
    has_quote = (quotes_before[stops] > quotes_before[starts]) & (stops - starts <= _MAX_NAME_BYTES)
    last_stop = 0
    for start, stop in zip(starts[has_quote].tolist(), stops[has_quote].tolist(), strict=True):
        if start >= last_stop and OBJECT_BOUNDARY.search(json, start, stop) is None:
            yield start, stop
            last_stop = stop
