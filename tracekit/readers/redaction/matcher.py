"""Overwrite private names and values in strings and binary data.

``PrivateValueMatcher.find_candidates`` searches megabytes of messages or strings at once for ranges that may hold a
private value. ``PrivateValueMatcher.redact`` then overwrites the private values in one string with the letter ``x`` or
with a pseudonym, without changing the length of the string.
"""

from __future__ import annotations

import functools
import operator
import re
import unicodedata
from bisect import bisect_right
from collections import defaultdict
from itertools import accumulate
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np

from tracekit.readers.redaction.escapes import ESCAPE, MAX_LEVELS, Decoded, decode_escapes, edit_decoded
from tracekit.readers.redaction.patterns import (
    ENVIRONMENT_SEARCH_STRINGS,
    FILL,
    HOMES,
    MENTION,
    NAMED_VALUE_PATTERNS,
    PATTERNS,
    PREFILTERS,
    VARIABLES_ALMOST_ALWAYS_SET,
)
from tracekit.readers.redaction.pseudonyms import Pseudonyms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt


Key = TypeVar("Key")
Candidate = tuple[int, int, int]
"""A range that may hold a private value: its start offset, its end offset, and a bit mask of possible patterns."""

LITERAL = 1 << len(PATTERNS)
"""Bit that represents collected names and values in bit masks. Each lower bit i represents ``PATTERNS[i]``."""
ALL_PATTERNS = 2 * LITERAL - 1
NAMED_VALUES = sum(1 << PATTERNS.index(pattern) for pattern in NAMED_VALUE_PATTERNS)
"""Bits of the patterns of values that are private because of the name before them, such as ``password``."""
_QUOTES = b"\"\\'"
_MASKED = bytes.maketrans(_QUOTES, b"\1\2\3")
MIN_BINARY_LENGTH = 5
"""Minimum length of names and values to overwrite in binary data, where shorter ones may occur by chance."""
PART_OF_WORD = 3
"""Minimum length of names to overwrite within compound words, such as ``alice`` in ``alice_run3`` and ``runAlice``."""

_CONTROL = re.compile(rb"[\0-\x08\x0b\x0c\x0e-\x1f\x7f]")
_PRINTABLE = re.compile(rb"[\t\x20-\x7e\x80-\xff]{5,}")
_WIDE = re.compile(rb"(?:[\x20-\x7e]\0){4,}"), re.compile(rb"(?:\0[\x20-\x7e]){4,}")
_AFTER_DRIVE = b":\\"
_SEPARATORS = b"/\\"
_MANY_STARTS = 1 << 12
"""If the first two bytes of names and values occur more often than this in a string, whole names are searched for."""
_PERCENT, _BACKSLASH = ord("%"), ord("\\")
_ESCAPE_STARTS = np.zeros(1 << 16, np.bool_)
_ESCAPE_STARTS[[_PERCENT << 8 | char for char in b"0123456789abcdefABCDEF"]] = True
_ESCAPE_STARTS[[_BACKSLASH << 8 | char for char in b"ux'\"\\/bfnrt"]] = True
"""Whether an escaped character may begin with each pair of bytes."""
_LONG_STRING = 1 << 12
"""Length from which a search for all patterns at once is faster than a search for each pattern."""
BATCH_BYTES = 4 << 20
"""Number of bytes that are searched together."""
_AROUND = 300
"""Number of bytes to decode before and after an escaped character to check whether it is part of a private value."""

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


class PrivateValueMatcher:
    """A matcher for names and values collected from a capture, and for values in recognizable formats, such as UUIDs.

    Attributes:
        literals: The collected names and values in lower case. A name with non-ASCII letters has several spellings.
        examined: Number of possible matches that ``find_candidates`` examined so far.
        depth: Length of the longest chain of literals in which each literal is a prefix of the next one.
    """

    def __init__(
        self, names: Iterable[bytes], values: Iterable[bytes] = (), pseudonyms: Pseudonyms | None = None
    ) -> None:
        """Create a matcher for the given names and values, and for values in recognizable formats.

        Args:
            names: Names of hosts and users. They match in any case and Unicode normalization form. Names of fewer than
                ``PART_OF_WORD`` bytes match only whole words.
            values: Other private values, such as secrets and paths. They match in any case.
            pseudonyms: Pseudonyms for UUIDs and PCI addresses, or None for pseudonyms from a random key.
        """
        self._pseudonyms = pseudonyms or Pseudonyms()
        spellings = {spelling for name in names for spelling in _iterate_spellings(name)}
        self._values = frozenset(value.lower() for value in values)
        self.literals = self._values | spellings
        self.examined = 0
        self._literal_strings = SearchStrings(dict.fromkeys(self.literals, LITERAL))
        self.depth = self._literal_strings.depth
        self._pairs = np.zeros(1 << 16, np.bool_)
        self._pairs[[int.from_bytes(literal[:2], "big") for literal in self.literals]] = True

    def redact(self, text: bytes, pattern_mask: int = ALL_PATTERNS, min_length: int = 0) -> tuple[bytes, set[str]]:
        """Overwrite the private values in a string or in binary data.

        Args:
            text: The string or the binary data.
            pattern_mask: Bit mask of the patterns to search for in a string, from the result of ``find_candidates``.
                Binary data is always searched for all patterns.
            min_length: Minimum length of the collected names and values to overwrite in a string.

        Returns:
            The redacted bytes, and the kinds of the overwritten values.
        """
        kinds: set[str] = set()
        if is_text(text):
            return self._redact_string(text, kinds, pattern_mask, min_length=min_length), kinds
        redacted = text
        for wide in _WIDE if b"\0" in text else ():
            redacted = wide.sub(lambda match: self._redact_utf16(match[0], kinds), redacted)
        return _PRINTABLE.sub(lambda match: self._redact_printable(match[0], kinds), redacted), kinds

    def redact_string(self, text: bytes, before: bytes = b"") -> tuple[bytes, set[str]]:
        """Overwrite the private values in a string, which may contain control characters.

        Args:
            text: The string.
            before: JSON before the string that tells its meaning, such as the key ``password": ``. It is not changed.

        Returns:
            The redacted string, and the kinds of the overwritten values.
        """
        kinds: set[str] = set()
        redacted = self._redact_string(text, kinds, ALL_PATTERNS)
        if not before:
            return redacted, kinds
        quoted = before + b'"' + redacted.translate(_MASKED) + b'"'
        changed = self._redact_unescaped(quoted, kinds, pattern_mask=NAMED_VALUES)
        if changed == quoted:
            return redacted, kinds
        start = len(before) + 1
        pairs = zip(redacted, quoted[start:-1], changed[start:-1], strict=True)
        return bytes(old if after == masked or old in _QUOTES else after for old, masked, after in pairs), kinds

    def redact_copy(self, text: bytes) -> bytes:
        """Return a copy of a string or of binary data in which all private values are overwritten."""
        return self.redact(text)[0]

    def find_candidates(self, data: bytes, max_candidates: int | None = None) -> list[Candidate]:
        """Return the ranges of data that may contain a private value, in ascending order.

        Each range consists of its start offset, its end offset, and a bit mask of the patterns that may match there.
        Every private value in a string within the data overlaps one of the ranges.

        Args:
            data: The bytes to search, for example messages or strings.
            max_candidates: Maximum number of possible matches to examine, or None for no limit.

        Raises:
            TooManyCandidates: There are more possible matches than the maximum.
        """
        candidates = self._find_unescaped_candidates(data, max_candidates)
        return sorted((*candidates, *self._find_escaped_candidates(data, max_candidates)))

    def _find_unescaped_candidates(self, data: bytes, max_candidates: int | None) -> list[Candidate]:
        """Return the ranges of data that may contain a private value without decoding escaped characters."""
        starts = self._all_search_strings.find_string_starts(data)
        _check_candidate_count(len(starts), max_candidates)
        prefiltered = list(_find_prefilter_candidates(data, max_candidates))
        self.examined += len(starts) + len(prefiltered)
        return [*self._find_search_string_candidates(data, starts), *prefiltered]

    def _find_escaped_candidates(self, data: bytes, max_candidates: int | None) -> list[Candidate]:
        """Return the ranges of data that may contain a private value with escaped characters, such as ``%2F``.

        The bytes around each escaped character are decoded, as often as they contain escaped characters, and searched.
        """
        around = _select_bytes_around_escapes(data)
        origin_starts, origin_ends = around.starts, around.ends
        candidates: list[Candidate] = []
        text = around.text
        for _ in range(MAX_LEVELS):
            if not ESCAPE.search(text):
                break
            decoded = decode_escapes(text)
            origin_starts, origin_ends = origin_starts[decoded.starts], origin_ends[decoded.ends - 1]
            text = decoded.text
            candidates += (
                (int(origin_starts[start]), int(origin_ends[end - 1]), bits)
                for start, end, bits in self._find_unescaped_candidates(text, max_candidates)
            )
        return candidates

    def _redact_string(
        self, text: bytes, kinds: set[str], pattern_mask: int, levels: int = MAX_LEVELS, min_length: int = 0
    ) -> bytes:
        """Overwrite the private values in a string, including those with escaped characters such as ``%2F``.

        The escaped characters of a string may themselves be escaped. They are decoded at most ``levels`` times.
        """
        redacted = self._redact_unescaped(text, kinds, min_length=min_length, pattern_mask=pattern_mask)
        if not levels or not ESCAPE.search(redacted):
            return redacted
        return edit_decoded(redacted, lambda decoded: self._redact_decoded(decoded, kinds, levels - 1))

    def _redact_decoded(self, text: bytes, kinds: set[str], levels: int) -> bytes:
        """Overwrite the private values in a decoded string, which is searched for the patterns that it may contain."""
        pattern_mask = ALL_PATTERNS
        if len(text) > _LONG_STRING:
            candidates = self._find_unescaped_candidates(text, None)
            pattern_mask = join_masks(candidates)
        return self._redact_string(text, kinds, pattern_mask, levels)

    def _redact_unescaped(
        self, text: bytes, kinds: set[str], *, min_length: int = 0, pattern_mask: int = ALL_PATTERNS
    ) -> bytes:
        """Overwrite the private values in a string, without decoding escaped characters such as ``%2F``.

        Args:
            text: The string.
            kinds: Set to which the kinds of the overwritten values are added.
            min_length: Minimum length of the collected names and values to overwrite.
            pattern_mask: Bit mask of the patterns that the string may contain. Only these are searched for.
        """
        low = text.lower()
        for nth, pattern in enumerate(PATTERNS):
            if not pattern_mask >> nth & 1:
                continue
            redacted = pattern.overwrite_matches(text, low, self._pseudonyms)
            if redacted != text:
                kinds.add(pattern.kind)
                text, low = redacted, redacted.lower()
        redacted = self._redact_literals(text, min_length) if pattern_mask & LITERAL else text
        if redacted != text:
            kinds.add(MENTION)
        return redacted

    def _redact_literals(self, text: bytes, min_length: int) -> bytes:
        """Overwrite the collected names and values wherever they occur as whole words or parts of compound words.

        The separator at the beginning of a path is not overwritten, so that the text still begins like a path.

        Args:
            text: The bytes to redact.
            min_length: Minimum length of the names and values to overwrite.
        """
        low, out, after = text.lower(), bytearray(text), 0
        for start in self._find_literal_starts(low):
            if start < after:
                continue
            for literal in self._literal_strings.find_strings_at_offset(low, start):
                end, is_name = start + len(literal), literal not in self._values
                if len(literal) >= min_length and _is_separate_word(text, start, end, is_name=is_name):
                    first = start + (text[start] in _SEPARATORS)
                    out[first:end] = FILL * (end - first)
                    after = end
                    break
        return bytes(out)

    def _find_literal_starts(self, lower_text: bytes) -> list[int]:
        """Return the ascending offsets in a lower-case string at which a collected name or value may begin."""
        data = np.frombuffer(lower_text, np.uint8)
        pairs = data[:-1].astype(np.uint16) << 8 | data[1:]
        starts: list[int] = np.flatnonzero(self._pairs[pairs]).tolist()
        return starts if len(starts) <= _MANY_STARTS else self._literal_strings.find_string_starts(lower_text)

    def _redact_printable(self, printable_bytes: bytes, kinds: set[str]) -> bytes:
        """Overwrite private values in consecutive printable bytes of binary data.

        The first byte may be a length prefix that happens to be printable. Therefore, the bytes are searched a second
        time without the first one.
        """
        redacted = self._redact_unescaped(printable_bytes, kinds, min_length=MIN_BINARY_LENGTH)
        return redacted[:1] + self._redact_unescaped(redacted[1:], kinds, min_length=MIN_BINARY_LENGTH)

    def _redact_utf16(self, text: bytes, kinds: set[str]) -> bytes:
        """Overwrite private values in a UTF-16 string of ASCII characters."""
        first = 0 if text[0] else 1
        redacted = bytearray(text)
        redacted[first::2] = self._redact_unescaped(text[first::2], kinds)
        return bytes(redacted)

    @functools.cached_property
    def _all_search_strings(self) -> SearchStrings:
        """The search strings of all patterns, together with all collected names and values."""
        pattern_bits: defaultdict[bytes, int] = defaultdict(int)
        for nth, pattern in enumerate(PATTERNS):
            for string in pattern.search_strings:
                pattern_bits[string] |= 1 << nth
        for literal in self.literals:
            pattern_bits[literal] |= LITERAL
        for text in (*HOMES.search_strings, *(t for t in self.literals if len(t) >= PART_OF_WORD)):
            pattern_bits[_interleave_zeros(text)] |= ALL_PATTERNS
        return SearchStrings(pattern_bits)

    def _find_search_string_candidates(self, data: bytes, starts: list[int]) -> Iterator[Candidate]:
        """Yield the ranges of data that contain a search string and may be part of a private value.

        Args:
            data: The searched bytes.
            starts: Offsets at which a search string may begin.
        """
        low = data.lower() if starts else b""
        pattern_bits = self._all_search_strings.pattern_bits
        for start in starts:
            held, end = 0, start
            for string in self._all_search_strings.find_strings_at_offset(low, start):
                confirmed = _select_confirmed_patterns(pattern_bits[string], data, start)
                if confirmed:
                    held, end = held | confirmed, max(end, start + len(string))
            if held:
                yield start, end, held


def is_text(value: bytes) -> bool:
    """Return whether bytes are valid UTF-8 and have no ASCII control characters except for tabs, LF and CR."""
    if _CONTROL.search(value):
        return False
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


class TooManyCandidates(Exception):  # noqa: N818 - never leaves the readers
    """Raised if data has more possible matches of private values than the caller allows."""


def join_masks(candidates: Iterable[Candidate]) -> int:
    """Return a bit mask of the patterns that may match in any of the given ranges."""
    return functools.reduce(operator.or_, (pattern_mask for _, _, pattern_mask in candidates), 0)


class SearchedBatch(NamedTuple, Generic[Key]):
    """Strings or messages that were searched together.

    Attributes:
        items: Key and bytes of each item.
        candidates: Ranges of each item that may hold a private value, by index in ``items``. Items without such ranges
            are missing.
    """

    items: list[tuple[Key, bytes]]
    candidates: dict[int, list[Candidate]]


def search_in_batches(
    items: Iterable[tuple[Key, bytes]], find_candidates: Callable[[bytes], Sequence[Candidate]]
) -> Iterator[SearchedBatch[Key]]:
    """Search strings or messages for private values, several megabytes at once, which is faster than one by one.

    Args:
        items: Key and bytes of each item.
        find_candidates: Function that returns the ascending ranges of data that may hold a private value.
    """
    batch: list[tuple[Key, bytes]] = []
    size = 0
    for item in items:
        batch.append(item)
        size += len(item[1])
        if size >= BATCH_BYTES:
            yield _search_batch(batch, find_candidates)
            batch, size = [], 0
    if batch:
        yield _search_batch(batch, find_candidates)


def _search_batch(
    batch: list[tuple[Key, bytes]], find_candidates: Callable[[bytes], Sequence[Candidate]]
) -> SearchedBatch[Key]:
    """Search the items of a batch, separated by zero bytes. A range ends with the item in which it starts."""
    candidates: dict[int, list[Candidate]] = {}
    starts: list[int] = []
    for first, last, pattern_mask in find_candidates(b"\0".join([data for _, data in batch])):
        starts = starts or list(accumulate((len(data) + 1 for _, data in batch), initial=0))
        nth = bisect_right(starts, first) - 1
        start, end = starts[nth], starts[nth + 1] - 1
        if first < end:
            candidates.setdefault(nth, []).append((first - start, min(last, end) - start, pattern_mask))
    return SearchedBatch(batch, candidates)


def _check_candidate_count(count: int, max_candidates: int | None) -> None:
    """Raise ``TooManyCandidates`` if the number of candidates exceeds the maximum. None means no limit."""
    if max_candidates is not None and count > max_candidates:
        raise TooManyCandidates


def find_environment_candidates(
    data: bytes, max_candidates: int | None = None, *, include_homes: bool = False
) -> list[Candidate]:
    """Return the offsets at which a complete process environment may begin in data, as ranges of one byte.

    Args:
        data: The bytes to search.
        max_candidates: Maximum number of offsets, or None for no limit.
        include_homes: Whether to also return the offsets at which a single variable or the path of a home folder may
            begin.

    Raises:
        TooManyCandidates: There are more offsets than the maximum.
    """
    if not include_homes and not any(name in data for name in VARIABLES_ALMOST_ALWAYS_SET):
        return []
    starts = _build_environment_search_strings(include_homes=include_homes).find_string_starts(data)
    _check_candidate_count(len(starts), max_candidates)
    return [(start, start + 1, 0) for start in starts]


@functools.cache
def _build_environment_search_strings(*, include_homes: bool) -> SearchStrings:
    return SearchStrings(
        dict.fromkeys((*ENVIRONMENT_SEARCH_STRINGS, *(HOMES.search_strings if include_homes else ())), 0)
    )


def _select_confirmed_patterns(pattern_bits: int, data: bytes, start: int) -> int:
    """Return a bit mask of the patterns that can match at the offset of a search string.

    Args:
        pattern_bits: Bit mask of the patterns that have this search string.
        data: The searched bytes.
        start: Offset of the search string in the data.

    Returns:
        ``pattern_bits`` without the bits of the patterns that cannot match at the offset.
    """
    for nth, confirm in _CONFIRMED:
        if pattern_bits >> nth & 1 and not confirm(data, start):
            pattern_bits ^= 1 << nth
    return pattern_bits


_CONFIRMED = [(nth, pattern.confirm) for nth, pattern in enumerate(PATTERNS) if pattern.confirm is not None]


def _limit_matches(matches: Iterator[re.Match[bytes]], max_matches: int | None) -> Iterator[re.Match[bytes]]:
    """Yield the given matches, and raise ``TooManyCandidates`` if there are more than ``max_matches``."""
    for count, match in enumerate(matches, 1):
        _check_candidate_count(count, max_matches)
        yield match


def _find_prefilter_candidates(data: bytes, max_candidates: int | None) -> Iterator[Candidate]:
    """Yield the ranges of data that match a prefilter, each with a bit mask of the patterns that have the prefilter."""
    for expression, parts in PREFILTERS:
        for joined in _limit_matches(expression.finditer(data), max_candidates):
            start = joined.start()
            if data[start : start + 2] == _AFTER_DRIVE and not data[max(0, start - 1) : start].isalpha():
                continue
            matches = [(match, bit) for part, bit in parts if (match := part.match(data, start))]
            bits = functools.reduce(operator.or_, (bit for _, bit in matches))
            yield start, max(match.end() for match, _ in matches), bits


def _is_separate_word(text: bytes, start: int, end: int, *, is_name: bool) -> bool:
    """Return whether a range of a string is a whole word, or a part of a compound word such as ``alice_run3``.

    A name that is shorter than ``PART_OF_WORD`` must be a whole word. A non-ASCII character is not part of the word
    before or after it, because languages such as Chinese do not separate words. For the same reason, a name of several
    characters that are not all ASCII may begin and end anywhere.
    """
    before, after = text[start - 1 : start] if start else b"", text[end : end + 1]
    if not text[start:end].isascii():
        has_one_character = len(text[start:end].decode("utf-8", "replace")) == 1
        return not has_one_character or (before.isascii() and after.isascii())
    if is_name and end - start < PART_OF_WORD:
        return not (_is_word_character(before) or _is_word_character(after))
    first, second, last = text[start : start + 1], text[start + 1 : start + 2], text[end - 1 : end]
    next_after = text[end + 1 : end + 2]
    return _is_word_start(before, first, second) and _is_word_end(last, after, next_after)


def _is_word_character(char: bytes) -> bool:
    return char.isalnum() or char == b"_"


def _is_word_start(before: bytes, first: bytes, second: bytes) -> bool:
    """Return whether a word begins with the character ``first``, given the characters before and after it."""
    if before.isalpha() and first.isalpha():
        return first.isupper() and (before.islower() or second.islower())
    return not (first.isdigit() and before.isdigit())


def _is_word_end(last: bytes, after: bytes, next_after: bytes) -> bool:
    """Return whether a word ends with the character ``last``, given the two characters after it."""
    if after.isalpha() and last.isalpha():
        return after.isupper() and (last.islower() or next_after.islower())
    return not (last.isdigit() and after.isdigit())


def _iterate_spellings(name: bytes) -> Iterator[bytes]:
    """Yield the spellings of a name in UTF-8. ASCII letters are in lower case in all of them.

    A name with non-ASCII letters is yielded with these letters in lower, upper and title case, each in the Unicode
    normalization forms NFC and NFD. A spelling may be yielded more than once.
    """
    yield name.lower()
    if name.isascii():
        return
    text = name.decode("utf-8", "surrogateescape")
    for form in ("NFC", "NFD"):
        for spelling in (text.lower(), text.upper(), text.title()):
            normal = unicodedata.normalize(form, spelling)
            yield normal.encode("utf-8", "surrogateescape").lower()


def _interleave_zeros(text: bytes) -> bytes:
    """Return an ASCII string with a zero byte between its characters, as the string occurs in UTF-16.

    Both byte orders of UTF-16 contain these bytes, with a further zero byte before or after them.
    """
    return b"\0".join(bytes((c,)) for c in text)


def _select_bytes_around_escapes(data: bytes) -> Decoded:
    """Return the bytes around all escaped characters in data, and the offset of each of these bytes.

    A NUL byte separates bytes that do not follow each other in data.
    """
    places = _find_escape_offsets(data)
    starts, ends = np.maximum(places - _AROUND, 0), np.minimum(places + _AROUND, len(data))
    is_first = np.ones(len(places), np.bool_)
    is_first[1:] = starts[1:] > ends[:-1]
    starts, ends = starts[is_first], ends[np.roll(is_first, -1)]
    intervals = list(zip(starts.tolist(), ends.tolist(), strict=True))
    text = b"\0".join(data[start:end] for start, end in intervals)
    offsets = np.concatenate([np.arange(start, end + 1) for start, end in intervals] or [np.empty(0, np.int64)])
    offsets = offsets[: len(text)]
    return Decoded(text, offsets, offsets + 1)


def _find_escape_offsets(data: bytes) -> npt.NDArray[np.int64]:
    """Return the ascending offsets in data at which an escaped character may begin."""
    array = np.frombuffer(data, np.uint8)
    places = np.flatnonzero((array[:-1] == _PERCENT) | (array[:-1] == _BACKSLASH))
    offsets: npt.NDArray[np.int64] = places[_ESCAPE_STARTS[array[places].astype(np.uint16) << 8 | array[places + 1]]]
    return offsets


def _select_prefix_free_strings(strings: set[str]) -> list[str]:
    """Return the strings of a set that do not begin with another string of the set, in sorted order.

    At most one of the returned strings occurs at any offset.
    """
    selected: list[str] = []
    for string in sorted(strings):
        if not selected or not string.startswith(selected[-1]):
            selected.append(string)
    return selected
