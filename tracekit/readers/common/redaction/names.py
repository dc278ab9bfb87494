"""Overwriting: names that a capture gave away, and what identifies by its form, in texts and among numbers.

``candidates`` looks through megabytes at once, of messages or of many texts, for places where something may stand.
``rewritten`` then overwrites what does stand in one text. Nothing changes its length.
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
    """A stretch in which something may stand: where it begins and ends, and the bits of what that may be."""

LITERAL = 1 << len(PATTERNS)
"""The bit of names and values; patterns have the bits before it, in their order."""
ANYTHING = 2 * LITERAL - 1
LONG = 5
"""Among numbers only names of so many bytes are looked for: shorter ones turn up there by chance."""
PART_OF_WORD = 3
"""Names of so many bytes are also overwritten as parts of words: ``alice`` in ``alice_run3`` and ``runAlice``."""

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
"""Places where two bytes fit the beginning of a name: of more, the whole names are searched for."""
_AROUND, _MANY_ESCAPES = 300, 1000
"""Bytes around an escaped character that are decoded to see whether something stands there, unless there are many."""


class Names:
    """Names of hosts and users and other texts that a capture gave away, and everything that is known by its form.

    Attributes:
        literals: The names and other texts, in lower case.
        examined: How many places were looked at more closely so far.
        depth: How many literals begin with one another at most.
    """

    def __init__(
        self, names: Iterable[bytes], values: Iterable[bytes] = (), pseudonyms: Pseudonyms | None = None
    ) -> None:
        """Look for names as words or parts of words, and for values wherever they stand alone."""
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
        """Overwrite what identifies somebody or something in a text, or in bytes that are none.

        Args:
            text: The text.
            may_hold: Bits of what may stand in it, as ``candidates`` tells.

        Returns:
            The text, and the kinds of what was overwritten.
        """
        kinds: set[str] = set()
        if is_text(text):
            return self._rewritten_text(text, kinds, may_hold), kinds
        made = text
        for wide in _WIDE if b"\0" in text else ():
            made = wide.sub(lambda match: self._rewritten_wide(match[0], kinds), made)
        return _PRINTABLE.sub(lambda match: self._rewritten_run(match[0], kinds), made), kinds

    def overwritten(self, text: bytes) -> bytes:
        """Overwrite what identifies somebody or something in a text."""
        return self.rewritten(text)[0]

    def candidates(self, data: bytes, most: int | None = None) -> list[Candidate]:
        """Return where something may have to be overwritten, ascending.

        Every occurrence in a text within the data touches one of these stretches.

        Args:
            data: Texts, messages, anything.
            most: How many places may be looked at more closely; None for any number.

        Raises:
            TooManyPlaces: There are more.
        """
        starts = self._searched.starts(data)
        _check(len(starts), most)
        probed = list(_probed(data, most))
        escaped = [match.span() for match in _limited(_ESCAPE.finditer(data), most)]
        self.examined += len(starts) + len(probed) + len(escaped)
        return sorted((*self._confirmed(data, starts), *probed, *self._around(data, escaped)))

    def _rewritten_text(self, text: bytes, kinds: set[str], may_hold: int) -> bytes:
        made = self._plain(text, kinds, may_hold=may_hold)
        if not _ESCAPE.search(made):
            return made
        decoded, lengths = _decoded(made)
        after = self._plain(decoded, kinds)
        return made if after == decoded else _encoded_again(made, decoded, after, lengths)

    def _plain(self, text: bytes, kinds: set[str], *, shortest: int = 0, may_hold: int = ANYTHING) -> bytes:
        """Overwrite patterns and literals in a text as it is written."""
        low = text.lower()
        for nth, pattern in enumerate(PATTERNS):
            if not may_hold >> nth & 1:
                continue
            made = pattern.overwritten(text, low, self._pseudonyms)
            if made != text:
                kinds.add(pattern.kind)
                text, low = made, made.lower()
        made = self._without_literals(text, shortest) if may_hold & LITERAL else text
        if made != text:
            kinds.add(MENTION)
        return made

    def _without_literals(self, text: bytes, shortest: int) -> bytes:
        """Overwrite names and values of at least some length; in bytes that are no text only ASCII has letters."""
        letters = _TEXT_LETTERS if shortest == 0 else _ASCII_LETTERS
        low, out, after = text.lower(), bytearray(text), 0
        for start in self._literal_starts(low):
            if start < after:
                continue
            for literal in self._literal_marks.at(low, start):
                end, is_name = start + len(literal), literal not in self._values
                if len(literal) >= shortest and _stands(text, start, end, is_name, letters):
                    out[start:end] = FILL * (end - start)
                    after = end
                    break
        return bytes(out)

    def _literal_starts(self, low: bytes) -> list[int]:
        """Return where names and values may begin in a text in lower case, ascending."""
        data = np.frombuffer(low, np.uint8)
        pairs = data[:-1].astype(np.uint16) << 8 | data[1:]
        starts: list[int] = np.flatnonzero(self._pairs[pairs]).tolist()
        return starts if len(starts) <= _MANY_STARTS else self._literal_marks.starts(low)

    def _rewritten_run(self, run: bytes, kinds: set[str]) -> bytes:
        """Overwrite a printable run among numbers; its first byte may be the length of the text that follows."""
        made = self._plain(run, kinds, shortest=LONG)
        return made[:1] + self._plain(made[1:], kinds, shortest=LONG)

    def _rewritten_wide(self, text: bytes, kinds: set[str]) -> bytes:
        """Overwrite a text of two bytes a letter."""
        first = 0 if text[0] else 1
        made = bytearray(text)
        made[first::2] = self._plain(text[first::2], kinds)
        return bytes(made)

    @functools.cached_property
    def _searched(self) -> Marks:
        """The marks of all patterns and literals, to be searched for together."""
        owners: defaultdict[bytes, int] = defaultdict(int)
        for nth, pattern in enumerate(PATTERNS):
            for mark in pattern.marks:
                owners[mark] |= 1 << nth
        for literal in self.literals:
            owners[literal] |= LITERAL
        for text in (*HOME_MARKS, *(t for t in self.literals if len(t) >= PART_OF_WORD)):
            owners[_wide(text)] |= ANYTHING
        return Marks(owners)

    def _confirmed(self, data: bytes, starts: list[int]) -> Iterator[Candidate]:
        """Yield the stretches of marks that may belong to something."""
        low = data.lower() if starts else b""
        owners = self._searched.owners
        for start in starts:
            held, end = 0, start
            for mark in self._searched.at(low, start):
                owning = _confirmed_owners(owners[mark], data, start)
                if owning:
                    held, end = held | owning, max(end, start + len(mark))
            if held:
                yield start, end, held

    def _around(self, data: bytes, places: list[tuple[int, int]]) -> Iterator[Candidate]:
        """Yield the escaped characters around which something stands once they are decoded."""
        if len(places) > _MANY_ESCAPES:
            yield from ((start, end, ANYTHING) for start, end in places)
            return
        for start, end in places:
            around = _ESCAPE.sub(lambda m: bytes((int(m[0][-2:], 16),)), data[max(0, start - _AROUND) : end + _AROUND])
            if self._may_hold(around):
                yield start, end, ANYTHING

    def _may_hold(self, data: bytes) -> bool:
        """Whether a mark or a probe stands anywhere in a few bytes."""
        low = data.lower()
        marked = any(self._searched.at(low, start) for start in range(len(low)))
        return marked or any(probe.search(data) for probe, _ in PROBES)


def is_text(value: bytes) -> bool:
    """Whether bytes are printable UTF-8."""
    if _CONTROL.search(value):
        return False
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


class TooManyPlaces(Exception):  # noqa: N818 - never leaves the readers
    """More places would have to be looked at than a file of its size may have."""


def _check(number: int, most: int | None) -> None:
    if most is not None and number > most:
        raise TooManyPlaces


def environment_candidates(data: bytes, most: int | None = None, *, homes: bool = False) -> list[int]:
    """Return where the text of a whole environment may stand, or with homes also one variable or the path of a home.

    Raises:
        TooManyPlaces: In more places than there may be.
    """
    if not homes and not any(name in data for name in environments.NEARLY_ALWAYS):
        return []
    starts = _environment_marks(homes=homes).starts(data)
    _check(len(starts), most)
    return starts


@functools.cache
def _environment_marks(*, homes: bool) -> Marks:
    return Marks(dict.fromkeys((*environments.MARKS, *(HOME_MARKS if homes else ())), 0))


def _confirmed_owners(owners: int, data: bytes, start: int) -> int:
    """Return the bits of those to whom a mark that begins at a place may belong."""
    for nth, confirm in _CONFIRMED:
        if owners >> nth & 1 and not confirm(data, start):
            owners ^= 1 << nth
    return owners


_CONFIRMED = [(nth, pattern.confirm) for nth, pattern in enumerate(PATTERNS) if pattern.confirm is not None]


def _limited(matches: Iterator[re.Match[bytes]], most: int | None) -> Iterator[re.Match[bytes]]:
    """Yield matches as long as there are not too many."""
    for number, match in enumerate(matches, 1):
        _check(number, most)
        yield match


def _probed(data: bytes, most: int | None) -> Iterator[Candidate]:
    """Yield the stretches that a probe matches."""
    for probe, owners in PROBES:
        for match in _limited(probe.finditer(data), most):
            start, end = match.span()
            if data[start : start + 2] != _AFTER_DRIVE or data[max(0, start - 1) : start].isalpha():
                yield start, end, owners


def _stands(text: bytes, start: int, end: int, is_name: bool, letters: frozenset[int]) -> bool:  # noqa: FBT001
    """Whether what stands at a place is a word or a part of one, and not letters in the midst of another."""
    before, after = text[start - 1 : start] if start else b"", text[end : end + 1]
    if is_name and end - start < PART_OF_WORD:
        return not (_is_word(before, letters) or _is_word(after, letters))
    first, second, last = text[start : start + 1], text[start + 1 : start + 2], text[end - 1 : end]
    return _begins_word(before, first, second, letters) and _ends_word(last, after, text[end + 1 : end + 2], letters)


_ASCII_LETTERS = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_TEXT_LETTERS = _ASCII_LETTERS | frozenset(range(0x80, 0x100))
"""Bytes of letters; in UTF-8 every byte beyond ASCII counts as one."""


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
    """Yield a name in lower case as the bytes it may be written in."""
    yield name.lower()
    if name.isascii():
        return
    text = name.decode("utf-8", "surrogateescape")
    for form in ("NFC", "NFD"):
        for spelling in (text.lower(), text.upper(), text.title()):
            normal = unicodedata.normalize(form, spelling)
            yield normal.encode("utf-8", "surrogateescape").lower()


def _wide(text: bytes) -> bytes:
    """Return a text in two bytes a letter, without the zero byte at one of its ends."""
    return b"\0".join(bytes((c,)) for c in text)


def _decoded(text: bytes) -> tuple[bytes, npt.NDArray[np.int8]]:
    """Decode escaped characters: the decoded text, and how many bytes of the text each of its bytes is written in."""
    starts, stops = np.array([match.span() for match in _ESCAPE.finditer(text)]).T
    lengths = np.ones(len(text), np.int8)
    for offset in range(1, _LONGEST_ESCAPE):
        lengths[starts[starts + offset < stops] + offset] = 0
    lengths[starts] = stops - starts
    decoded = np.frombuffer(text, np.uint8).copy()
    decoded[starts] = _DIGITS[decoded[stops - 2]] << 4 | _DIGITS[decoded[stops - 1]]
    return decoded[lengths > 0].tobytes(), lengths[lengths > 0]


def _encoded_again(text: bytes, decoded: bytes, after: bytes, lengths: npt.NDArray[np.int8]) -> bytes:
    """Write into a text what became of it decoded; an escaped character that changed is filled."""
    before, now = (np.frombuffer(x, np.uint8) for x in (decoded, after))
    changed = np.repeat(before != now, lengths)
    values = np.repeat(np.where(lengths > 1, np.uint8(FILL[0]), now), lengths)
    return np.where(changed, values, np.frombuffer(text, np.uint8)).tobytes()
