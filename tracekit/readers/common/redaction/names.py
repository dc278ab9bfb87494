"""Overwrite private names, and values with a private format, in strings and binary data.

``Names.candidates`` searches megabytes of messages or strings at once for ranges that may hold a private value.
``Names.rewritten`` then overwrites the private values of one string. Neither function changes the length of the data.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from tracekit.readers.common.redaction import environments
from tracekit.readers.common.redaction.kinds import MENTION
from tracekit.readers.common.redaction.marks import Marks
from tracekit.readers.common.redaction.patterns import FILL, HOME_MARKS, PATTERNS, PROBES
from tracekit.readers.common.redaction.pseudonyms import Pseudonyms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    Candidate = tuple[int, int, int]
    """A range that may hold a private value: its start and end offset, and the bits of possible patterns."""

LITERAL = 1 << len(PATTERNS)
"""Bit that stands for learned names and values. The lower bits stand for the patterns, in their order."""
ANYTHING = 2 * LITERAL - 1
LONG = 5
"""Minimum length of names that are overwritten in binary data, where shorter names occur by chance."""
PART_OF_WORD = 3
"""Minimum length of names that are overwritten within compound words: ``alice`` in ``alice_run3`` and ``runAlice``."""

_CONTROL = re.compile(rb"[\0-\x08\x0b\x0c\x0e-\x1f\x7f]")
_PRINTABLE = re.compile(rb"[\t\x20-\x7e\x80-\xff]{5,}")
_ESCAPE = re.compile(rb"%[0-9A-Fa-f]{2}|\\u00[0-9A-Fa-f]{2}")
_WIDE = re.compile(rb"(?:[\x20-\x7e]\0){4,}"), re.compile(rb"(?:\0[\x20-\x7e]){4,}")
_LONGEST_ESCAPE = 6
_DIGITS = np.zeros(256, np.uint8)
_DIGITS[list(b"0123456789abcdef")] = range(16)
_DIGITS[list(b"ABCDEF")] = range(10, 16)
_AFTER_DRIVE = b":\\"
_MANY_STARTS = 1 << 12
"""Number of matches of the first two bytes of names above which the whole names are searched for instead."""
_AROUND, _MANY_ESCAPES = 300, 1000
"""Number of bytes to decode around an escaped character.

If data has more escaped characters than the second number, nothing is decoded around them.
"""


class Names:
    """The private names and values of a capture, together with the patterns of values that have a private format.

    Attributes:
        literals: The private names and values in lower case.
        examined: Number of possible matches examined so far.
        depth: Length of the longest chain of literals that are prefixes of one another.
    """

    def __init__(
        self, names: Iterable[bytes], values: Iterable[bytes] = (), pseudonyms: Pseudonyms | None = None
    ) -> None:
        """Create a matcher. A name matches as a word or a part of a compound word, and a value matches as a word."""
        self._pseudonyms = pseudonyms or Pseudonyms()
        spellings = {spelling for name in names for spelling in _spellings(name)}
        self._values = frozenset(value.lower() for value in values)
        self.literals = self._values | spellings
        self.examined = 0
        self._literal_marks = Marks(dict.fromkeys(self.literals, LITERAL))
        self.depth = self._literal_marks.depth
        self._pairs = np.zeros(1 << 16, np.bool_)
        self._pairs[[int.from_bytes(literal[:2], "big") for literal in self.literals]] = True

    def rewritten(self, text: bytes, may_hold: int = ANYTHING) -> tuple[bytes, set[str]]:
        """Overwrite the private values in a string or in other bytes.

        Args:
            text: The string or bytes.
            may_hold: Bits of the patterns that may match, from the result of ``candidates``.

        Returns:
            The redacted bytes, and the kinds of the overwritten values.
        """
        kinds: set[str] = set()
        if is_text(text):
            return self._redact_string(text, kinds, may_hold), kinds
        redacted = text
        for wide in _WIDE if b"\0" in text else ():
            redacted = wide.sub(lambda match: self._redact_utf16(match[0], kinds), redacted)
        return _PRINTABLE.sub(lambda match: self._redact_printable(match[0], kinds), redacted), kinds

    def overwritten(self, text: bytes) -> bytes:
        """Return a copy of a string in which all private values are overwritten."""
        return self.rewritten(text)[0]

    def candidates(self, data: bytes, most: int | None = None) -> list[Candidate]:
        """Return the ranges of data that may hold a private value, in ascending order.

        Every private value in a string within the data overlaps one of the ranges.

        Args:
            data: Any bytes, for example messages or strings.
            most: Maximum number of possible matches to examine, or None for no limit.

        Raises:
            TooManyCandidates: There are more possible matches than the maximum.
        """
        starts = self._all_marks.find_starts(data)
        _check_count(len(starts), most)
        probed = list(_probe_candidates(data, most))
        escaped = [match.span() for match in _limit_matches(_ESCAPE.finditer(data), most)]
        self.examined += len(starts) + len(probed) + len(escaped)
        return sorted((*self._mark_candidates(data, starts), *probed, *self._escape_candidates(data, escaped)))

    def _redact_string(self, text: bytes, kinds: set[str], may_hold: int) -> bytes:
        redacted = self._redact_unescaped(text, kinds, may_hold=may_hold)
        if not _ESCAPE.search(redacted):
            return redacted
        decoded, lengths = _decode_escapes(redacted)
        after = self._redact_unescaped(decoded, kinds)
        return redacted if after == decoded else _encode_escapes(redacted, decoded, after, lengths)

    def _redact_unescaped(self, text: bytes, kinds: set[str], *, shortest: int = 0, may_hold: int = ANYTHING) -> bytes:
        """Overwrite the matches of patterns, names and values in a string, without decoding escaped characters."""
        low = text.lower()
        for nth, pattern in enumerate(PATTERNS):
            if not may_hold >> nth & 1:
                continue
            redacted = pattern.overwritten(text, low, self._pseudonyms)
            if redacted != text:
                kinds.add(pattern.kind)
                text, low = redacted, redacted.lower()
        redacted = self._redact_literals(text, shortest) if may_hold & LITERAL else text
        if redacted != text:
            kinds.add(MENTION)
        return redacted

    def _redact_literals(self, text: bytes, shortest: int) -> bytes:
        """Overwrite names and values of a minimum length. Only ASCII letters count as letters in binary data."""
        letters = _TEXT_LETTERS if shortest == 0 else _ASCII_LETTERS
        low, out, after = text.lower(), bytearray(text), 0
        for start in self._literal_starts(low):
            if start < after:
                continue
            for literal in self._literal_marks.matches_at(low, start):
                end, is_name = start + len(literal), literal not in self._values
                if len(literal) >= shortest and _is_separate_word(text, start, end, is_name, letters):
                    out[start:end] = FILL * (end - start)
                    after = end
                    break
        return bytes(out)

    def _literal_starts(self, low: bytes) -> list[int]:
        """Return the ascending offsets in a lower-case string at which a name or value may begin."""
        data = np.frombuffer(low, np.uint8)
        pairs = data[:-1].astype(np.uint16) << 8 | data[1:]
        starts: list[int] = np.flatnonzero(self._pairs[pairs]).tolist()
        return starts if len(starts) <= _MANY_STARTS else self._literal_marks.find_starts(low)

    def _redact_printable(self, run: bytes, kinds: set[str]) -> bytes:
        """Overwrite private values in printable binary data, whose first byte may be the length of a string."""
        redacted = self._redact_unescaped(run, kinds, shortest=LONG)
        return redacted[:1] + self._redact_unescaped(redacted[1:], kinds, shortest=LONG)

    def _redact_utf16(self, text: bytes, kinds: set[str]) -> bytes:
        """Overwrite private values in a UTF-16 string."""
        first = 0 if text[0] else 1
        redacted = bytearray(text)
        redacted[first::2] = self._redact_unescaped(text[first::2], kinds)
        return bytes(redacted)

    @functools.cached_property
    def _all_marks(self) -> Marks:
        """The marks of all patterns, names and values, which are searched for together."""
        owners: defaultdict[bytes, int] = defaultdict(int)
        for nth, pattern in enumerate(PATTERNS):
            for mark in pattern.marks:
                owners[mark] |= 1 << nth
        for literal in self.literals:
            owners[literal] |= LITERAL
        for text in (*HOME_MARKS, *(t for t in self.literals if len(t) >= PART_OF_WORD)):
            owners[_interleave_zeros(text)] |= ANYTHING
        return Marks(owners)

    def _mark_candidates(self, data: bytes, starts: list[int]) -> Iterator[Candidate]:
        """Yield the ranges of marks that may be part of a private value."""
        low = data.lower() if starts else b""
        owners = self._all_marks.owners
        for start in starts:
            held, end = 0, start
            for mark in self._all_marks.matches_at(low, start):
                owning = _confirm_owners(owners[mark], data, start)
                if owning:
                    held, end = held | owning, max(end, start + len(mark))
            if held:
                yield start, end, held

    def _escape_candidates(self, data: bytes, places: list[tuple[int, int]]) -> Iterator[Candidate]:
        """Yield the ranges of escaped characters whose surroundings may hold a private value once they are decoded."""
        if len(places) > _MANY_ESCAPES:
            yield from ((start, end, ANYTHING) for start, end in places)
            return
        for start, end in places:
            around = _ESCAPE.sub(lambda m: bytes((int(m[0][-2:], 16),)), data[max(0, start - _AROUND) : end + _AROUND])
            if self._may_hold(around):
                yield start, end, ANYTHING

    def _may_hold(self, data: bytes) -> bool:
        """Return whether a short byte string contains a mark or a match of a probe."""
        low = data.lower()
        marked = any(self._all_marks.matches_at(low, start) for start in range(len(low)))
        return marked or any(probe.search(data) for probe, _ in PROBES)


def is_text(value: bytes) -> bool:
    """Return whether bytes are printable UTF-8."""
    if _CONTROL.search(value):
        return False
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


class TooManyCandidates(Exception):  # noqa: N818 - never leaves the readers
    """Data has more possible matches than is allowed for a file of its size."""


def _check_count(number: int, most: int | None) -> None:
    if most is not None and number > most:
        raise TooManyCandidates


def environment_candidates(data: bytes, most: int | None = None, *, homes: bool = False) -> list[int]:
    """Return the offsets at which a complete environment may begin.

    Args:
        data: Any bytes.
        most: Maximum number of offsets, or None for no limit.
        homes: Whether to include the offsets of single variables and of paths of home folders.

    Raises:
        TooManyCandidates: There are more offsets than the maximum.
    """
    if not homes and not any(name in data for name in environments.NEARLY_ALWAYS):
        return []
    starts = _environment_marks(homes=homes).find_starts(data)
    _check_count(len(starts), most)
    return starts


@functools.cache
def _environment_marks(*, homes: bool) -> Marks:
    return Marks(dict.fromkeys((*environments.MARKS, *(HOME_MARKS if homes else ())), 0))


def _confirm_owners(owners: int, data: bytes, start: int) -> int:
    """Return the bits of the patterns that may match where a mark begins, given all patterns of the mark."""
    for nth, confirm in _CONFIRMED:
        if owners >> nth & 1 and not confirm(data, start):
            owners ^= 1 << nth
    return owners


_CONFIRMED = [(nth, pattern.confirm) for nth, pattern in enumerate(PATTERNS) if pattern.confirm is not None]


def _limit_matches(matches: Iterator[re.Match[bytes]], most: int | None) -> Iterator[re.Match[bytes]]:
    """Yield matches, and raise an error if there are more than a maximum number."""
    for number, match in enumerate(matches, 1):
        _check_count(number, most)
        yield match


def _probe_candidates(data: bytes, most: int | None) -> Iterator[Candidate]:
    """Yield the ranges that match a probe."""
    for probe, owners in PROBES:
        for match in _limit_matches(probe.finditer(data), most):
            start, end = match.span()
            if data[start : start + 2] != _AFTER_DRIVE or data[max(0, start - 1) : start].isalpha():
                yield start, end, owners


def _is_separate_word(text: bytes, start: int, end: int, is_name: bool, letters: frozenset[int]) -> bool:  # noqa: FBT001
    """Return whether a range is a word or a part of a compound word, rather than the middle of another word."""
    before, after = text[start - 1 : start] if start else b"", text[end : end + 1]
    if is_name and end - start < PART_OF_WORD:
        return not (_is_word(before, letters) or _is_word(after, letters))
    first, second, last = text[start : start + 1], text[start + 1 : start + 2], text[end - 1 : end]
    return _begins_word(before, first, second, letters) and _ends_word(last, after, text[end + 1 : end + 2], letters)


_ASCII_LETTERS = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_TEXT_LETTERS = _ASCII_LETTERS | frozenset(range(0x80, 0x100))
"""Bytes that count as letters in text. Every byte beyond ASCII is part of a letter in UTF-8."""


def _is_word(char: bytes, letters: frozenset[int]) -> bool:
    return bool(char) and (char[0] in letters or char.isdigit() or char == b"_")


def _begins_word(before: bytes, first: bytes, second: bytes, letters: frozenset[int]) -> bool:
    if before and before[0] in letters and first[0] in letters:
        return first.isupper() and (before.islower() or second.islower())
    return not (first.isdigit() and before.isdigit())


def _ends_word(last: bytes, after: bytes, next_after: bytes, letters: frozenset[int]) -> bool:
    if after and last[0] in letters and after[0] in letters:
        return after.isupper() and (last.islower() or next_after.islower())
    return not (last.isdigit() and after.isdigit())


def _spellings(name: bytes) -> Iterator[bytes]:
    """Yield the byte sequences in which a name may occur, in lower case."""
    yield name.lower()
    if name.isascii():
        return
    text = name.decode("utf-8", "surrogateescape")
    for form in ("NFC", "NFD"):
        for spelling in (text.lower(), text.upper(), text.title()):
            normal = unicodedata.normalize(form, spelling)
            yield normal.encode("utf-8", "surrogateescape").lower()


def _interleave_zeros(text: bytes) -> bytes:
    """Return a string encoded in UTF-16, without the zero byte at its beginning or end."""
    return b"\0".join(bytes((c,)) for c in text)


def _decode_escapes(text: bytes) -> tuple[bytes, npt.NDArray[np.int8]]:
    """Decode escaped characters. Return the decoded bytes and the number of original bytes of each decoded byte."""
    starts, stops = np.array([match.span() for match in _ESCAPE.finditer(text)]).T
    lengths = np.ones(len(text), np.int8)
    for offset in range(1, _LONGEST_ESCAPE):
        lengths[starts[starts + offset < stops] + offset] = 0
    lengths[starts] = stops - starts
    decoded = np.frombuffer(text, np.uint8).copy()
    decoded[starts] = _DIGITS[decoded[stops - 2]] << 4 | _DIGITS[decoded[stops - 1]]
    return decoded[lengths > 0].tobytes(), lengths[lengths > 0]


def _encode_escapes(text: bytes, decoded: bytes, after: bytes, lengths: npt.NDArray[np.int8]) -> bytes:
    """Apply the changes of a decoded string to the original string, overwriting each escaped character that changed."""
    before, now = (np.frombuffer(x, np.uint8) for x in (decoded, after))
    changed = np.repeat(before != now, lengths)
    values = np.repeat(np.where(lengths > 1, np.uint8(FILL[0]), now), lengths)
    return np.where(changed, values, np.frombuffer(text, np.uint8)).tobytes()
