r"""Decode escaped characters in strings, such as ``%2F`` in URLs and ``\u0041`` and ``\"`` in JSON.

Private values may be escaped several times, for example in JSON that is a string of another JSON document. Therefore,
strings are decoded level by level, and changes of a decoded string are copied back to the original string.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.readers.redaction.patterns import FILL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    Int64Array = npt.NDArray[np.int64]

MAX_LEVELS = 4
"""Maximum number of times that a string is decoded."""

_JSON = (
    rb"\\(?:u[dD][89abAB][0-9A-Fa-f]{2}\\u[dD][c-fC-F][0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|[\"\\/bfnrt])"
)  # fmt: skip
JSON_ESCAPE = re.compile(_JSON)
"""An escaped character in a JSON string. Two escaped surrogates are one character."""
ESCAPE = re.compile(rb"%[0-9A-Fa-f]{2}|\\(?:x[89A-Fa-f][0-9A-Fa-f]|')|" + _JSON)
"""An escaped character in a URL, in JSON or in a string literal of Python."""

_LETTERS = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}
_BYTE_SIZES = (3, 4)
"""Sizes of the escaped forms of one byte: ``%2F`` and ``\\x2f``."""
_SURROGATE_PAIR_SIZE = 12


class Decoded(NamedTuple):
    """A decoded string, and the origin of each of its bytes in the original string.

    Attributes:
        text: The decoded string.
        starts: For each byte of ``text``, the offset in the original string of the character that it belongs to.
        ends: For each byte of ``text``, the end of this character.
    """

    text: bytes
    starts: Int64Array
    ends: Int64Array

    def apply_changes(self, original: bytes, changed: bytes) -> bytes:
        """Return the original string with the changes that were made to the decoded string.

        If an escaped character changed, all bytes that encode it are overwritten with ``FILL``. The result has the
        same length as the original string.

        Args:
            original: The string that was decoded.
            changed: The decoded string after the changes, of the same length.
        """
        before, after = (np.frombuffer(text, np.uint8) for text in (self.text, changed))
        is_changed = before != after
        is_escaped = self.ends - self.starts > 1
        out = np.frombuffer(original, np.uint8).copy()
        plain = is_changed & ~is_escaped
        out[self.starts[plain]] = after[plain]
        for start, end in np.unique(np.stack((self.starts, self.ends))[:, is_changed & is_escaped], axis=1).T.tolist():
            out[start:end] = FILL[0]
        return out.tobytes()


def decode_escapes(text: bytes, pattern: re.Pattern[bytes] = ESCAPE) -> Decoded:
    """Decode the escaped characters of a string once.

    Args:
        text: The string.
        pattern: Regular expression that matches an escaped character.
    """
    pieces: list[bytes] = []
    escapes: list[tuple[int, int, int]] = []
    copied = 0
    for match in pattern.finditer(text):
        start, end = match.span()
        character = _decode_escape(match[0])
        pieces += (text[copied:start], character)
        escapes.append((start, end, len(character)))
        copied = end
    pieces.append(text[copied:])
    decoded = b"".join(pieces)
    if not escapes:
        offsets = np.arange(len(text))
        return Decoded(text, offsets, offsets + 1)
    starts, ends, sizes = np.array(escapes, np.int64).T
    plain = starts - np.concatenate(([0], ends[:-1]))
    counts = np.stack((plain, sizes), axis=1).ravel()
    is_plain = np.repeat(np.tile((True, False), len(escapes)), counts)
    is_plain = np.append(is_plain, np.ones(len(text) - copied, np.bool_))
    origin_starts, origin_ends = np.empty((2, len(decoded)), np.int64)
    is_original = np.ones(len(text), np.bool_)
    is_original[_expand_intervals(starts, ends)] = False
    origin_starts[is_plain] = np.flatnonzero(is_original)
    origin_ends[is_plain] = origin_starts[is_plain] + 1
    origin_starts[~is_plain], origin_ends[~is_plain] = np.repeat(starts, sizes), np.repeat(ends, sizes)
    return Decoded(decoded, origin_starts, origin_ends)


def iterate_levels(text: bytes) -> Iterator[bytes]:
    """Yield a string, and the results of decoding its escaped characters once and several times."""
    yield text
    for _ in range(MAX_LEVELS):
        if not ESCAPE.search(text):
            return
        text = ESCAPE.sub(lambda match: _decode_escape(match[0]), text)
        yield text


def edit_decoded(text: bytes, edit: Callable[[bytes], bytes], pattern: re.Pattern[bytes] = ESCAPE) -> bytes:
    """Decode a string, apply a function that keeps its length, and return the original string with the changes."""
    decoded = decode_escapes(text, pattern)
    changed = edit(decoded.text)
    return text if changed == decoded.text else decoded.apply_changes(text, changed)


def _decode_escape(escape: bytes) -> bytes:
    """Return the bytes of an escaped character, such as ``/`` for ``%2F``."""
    kind = escape[1:2]
    if len(escape) in _BYTE_SIZES:
        return bytes((int(escape[-2:], 16),))
    if len(escape) == _SURROGATE_PAIR_SIZE:
        high, low = int(escape[2:6], 16), int(escape[8:], 16)
        return chr(0x10000 + (high - 0xD800 << 10) + low - 0xDC00).encode()
    if kind == b"u":
        return chr(int(escape[-4:], 16)).encode("utf-8", "surrogatepass")
    return _LETTERS.get(kind, kind)


def _expand_intervals(starts: Int64Array, ends: Int64Array) -> Int64Array:
    """Return all integers in the given disjoint intervals."""
    sizes = ends - starts
    firsts = np.cumsum(sizes) - sizes
    integers: Int64Array = np.arange(int(sizes.sum())) + np.repeat(starts - firsts, sizes)
    return integers
