"""Examine the beginning of a file that may contain plain or gzipped JSON, in order to recognize its format."""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.registry.source import Source

GZIP = b"\x1f\x8b"
JSON_START = re.compile(rb'(?:\xef\xbb\xbf)?\s*(\[\s*)?\{\s*["}]')
"""Matches the start of an object, or of an array of objects. The group matches the bracket of the array."""
_HEAD_BYTES = 1 << 16


def iterate_heads(source: Source) -> Iterator[bytes]:
    """Yield the decompressed first bytes of a file: first those that are in memory, and then a longer section."""
    yield decompress_head(source.head)
    if source.path.is_file():
        with source.path.open("rb") as file:
            yield decompress_head(file.read(_HEAD_BYTES))


def decompress_head(head: bytes) -> bytes:
    """Return the decompressed first bytes of a file, or the bytes themselves if they are not gzipped."""
    if not head.startswith(GZIP):
        return head
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, _HEAD_BYTES)
    except zlib.error:
        return b""
