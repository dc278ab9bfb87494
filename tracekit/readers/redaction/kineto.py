"""Write a copy of a trace without values that identify people and machines. All other bytes of the JSON are unchanged.

The trace is read twice: first to collect the names of hosts, users and folders, and then to copy it. Values of keys
such as ``host_name`` are replaced, and private values in all other strings are overwritten. Only a few megabytes of
the trace are in memory at a time.
"""

from __future__ import annotations

import json
import re
import zlib
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.errors import CorruptTraceError
from tracekit.readers.common.damage import Damage, convert_damage
from tracekit.readers.common.json.stream import Stream
from tracekit.readers.redaction.escapes import JSON_ESCAPE, decode_escapes, edit_decoded
from tracekit.readers.redaction.json_text import read_sections
from tracekit.readers.redaction.matcher import SearchStrings, find_environment_candidates
from tracekit.readers.redaction.patterns import (
    ADDRESS,
    COMMAND,
    ENVIRONMENT,
    HOST,
    IDENTIFIER,
    OUTPUT,
    PRIVATE_KEY,
    SECRET,
    USER,
    USUAL_VARIABLES,
)
from tracekit.readers.redaction.state import Redaction
from tracekit.readers.redaction.vocabulary import COMMON

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from tracekit.readers.redaction.json_text import JsonText
    from tracekit.readers.redaction.matcher import PrivateValueMatcher
    from tracekit.registry.source import Source

_GZIP = b"\x1f\x8b"
_GZIP_FORMAT = zlib.MAX_WBITS | 16
_COMPRESSION_LEVEL = 6
_KEYS = (
    (ENVIRONMENT, rb"(?:os[._])?env(?:iron)?|environment(?:[_\- ]?var(?:iable)?s)?|env[_\- ]?var(?:iable)?s?"),
    (COMMAND, rb"(?:launch[_\- ]?)?(?:cmd|command)(?:[_\- ]?line)?(?:[_\- ]?arg(?:ument)?s)?|(?:\w{0,40}[._])?argv"),
    (COMMAND, rb"(?:process|program|script)[_\- ]?arg(?:ument)?s"),
    (COMMAND, rb"cwd|pwd|exe(?:cutable)?|work(?:ing)?[_\- ]?dir(?:ectory)?"),
    (USER, rb"(?:\w{0,40}_)?user(?:[_\- ]?name)?|login|log[_\- ]?name|owner|author|submitter|created[_\- ]by"),
    (HOST, rb"(?:\w{0,40}_)?hosts?(?:[_\- ]?names?)?|(?:\w{0,40}_)?node[_\- ]?(?:name|list)s?"),
    (HOST, rb"(?:computer|machine)[_\- ]?name|fqdn|master[_\- ]?addr(?:ess)?"),
    (OUTPUT, rb"std(?:out|err)|screen_?shot|snapshot"),
)
"""Kinds of private values of JSON members, each with a regular expression for the keys."""
_PRIVATE_KEY = re.compile(b"|".join(rb"(" + names + rb")" for _, names in _KEYS), re.IGNORECASE)
_BEFORE_VALUE = re.compile(rb'"\s{0,200}:\s{0,200}(?=["\[{])')
_VARIABLE = re.compile(rb'"(?:(' + USUAL_VARIABLES + rb')"\s{0,200}:\s{0,200}(?=")|(' + USUAL_VARIABLES + rb")=)")
_ENDS_OF_KEYS = (
    b"env environ environment vars variables envvar variable cmd command cmdline commandline line argv cwd pwd exe "
    b"executable workdir dir directory user login owner author submitter host hosts fqdn addr address stdout stderr "
    b"screenshot screen_shot snapshot "
    b"username user_name user-name logname log_name log-name hostname hostnames host_name host_names host-name "
    b"nodename node_name nodenames node_names node-name nodelist node_list nodelists node_lists node-list "
    b"computername computer_name computer-name machinename machine_name machine-name created_by created-by "
    b"process_args process-args processargs program_args script_args cmd_args command_args line_args cmdargs arguments"
).split()
_ENDS_WITH_SPACES = (b"host name", b"user name", b"node name", b"computer name", b"machine name")
_VARIABLE_NAMES = USUAL_VARIABLES.replace(rb"\w+", b"").lower().split(b"|")
_SEARCH_STRINGS = SearchStrings(
    dict.fromkeys(
        (
            *(end + b'"' for end in (*_ENDS_OF_KEYS, *_ENDS_WITH_SPACES)),
            *(b'"' + name for name in _VARIABLE_NAMES),
        ),
        0,
    )
)
"""Strings to search for: the ends of private keys, and the beginnings of variables in environments."""
_PROCESS_NAME = re.compile(rb'"process_name"')
_LOCAL_ADDRESS = re.compile(rb"127\.[\d.]+|::1|0\.0\.0\.0|\d*")
_MAX_STRINGS_OF_EVENT = 100
_MAX_BEFORE_BYTES = 256
_MAX_ARGUMENTS_BEFORE = 16
_ATTACHED_PASSWORD = re.compile(rb'"-p(?=[^"])')
_NUMBER_KEYS = (
    (SECRET, PRIVATE_KEY),
    (ADDRESS, rb"(?:[\w.]{0,40}[_.\-])?(?:(?:node|port|sys(?:tem)?_?image)?guid|mac(?:_?addr(?:ess)?)?)"),
    (IDENTIFIER, rb"(?:[\w.]{0,40}[_.\-])?serial(?:[_\- ]?(?:number|num|no|nr|id))?"),
)
"""Kinds of private numbers of JSON members, each with a regular expression for the keys."""
_PRIVATE_NUMBER_KEY = re.compile(b"|".join(rb"(" + names + rb")" for _, names in _NUMBER_KEYS), re.IGNORECASE)
_NUMBER = re.compile(rb'"\s{0,200}:\s{0,200}(-?\d[\d.eE+\-]{0,400})')
_MIN_DIGITS = {SECRET: 2, ADDRESS: 10, IDENTIFIER: 6}
"""Number of digits from which a number is private, by kind."""
_ENDS_OF_NUMBER_KEYS = (
    b"password passwd passphrase passcode pwd secret credential credentials key token guid mac addr address "
    b"serial number num no nr serialid serial_id serial-id"
).split()
_NUMBER_SEARCH_STRINGS = SearchStrings(dict.fromkeys((end + b'"' for end in _ENDS_OF_NUMBER_KEYS), 0))
_ESCAPED_ASCII = re.compile(rb"\\u00[2-7][0-9A-Fa-f]")
_MAX_CACHED_STRINGS = 1 << 15


class JsonForm(NamedTuple):
    """What a JSON format holds in addition to members whose keys tell that their values are private.

    Attributes:
        string_table: Regular expression for the beginning of an array of unrelated strings. Such an array is not an
            environment, even if some of its strings are.
        find_private_numbers: Function that yields the kind, start and end of the private numbers in a section, and the
            bytes to replace each of them.
        program: Regular expression for the beginning of a command line that also is the name of a process. It becomes
            the name of the program.
    """

    string_table: re.Pattern[bytes] | None = None
    find_private_numbers: Callable[[JsonText], Iterable[tuple[str, int, int, bytes]]] | None = None
    program: re.Pattern[bytes] | None = None


_PLAIN = JsonForm()


def redact(source: Source, target: Path | None = None, key: bytes | None = None) -> dict[str, int]:
    """Write a copy of a trace without values that identify people and machines.

    The copy is compressed if the trace is compressed.

    Args:
        source: Trace to copy.
        target: Path of the copy, which must not exist. If None, the private values are only counted.
        key: Key that determines the pseudonyms, or None for a random key.

    Returns:
        The number of replaced values of each kind.

    Raises:
        CorruptTraceError: The trace is not valid JSON, or is truncated.
        TracekitError: The trace changed while it was read.
    """
    return redact_json(source, target, key, _PLAIN)


def redact_json(source: Source, target: Path | None, key: bytes | None, form: JsonForm) -> dict[str, int]:
    """Write a copy of a JSON file of a given form without private values, as ``redact`` does."""
    if target is None:
        return _redact(source, key, form, lambda _: None)
    with target.open("wb") as out:
        if not source.head.startswith(_GZIP):
            return _redact(source, key, form, out.write)
        compressor = zlib.compressobj(_COMPRESSION_LEVEL, wbits=_GZIP_FORMAT)
        counts = _redact(source, key, form, lambda data: out.write(compressor.compress(data)))
        out.write(compressor.flush())
    return counts


def _redact(source: Source, key: bytes | None, form: JsonForm, write: Callable[[bytes], object]) -> dict[str, int]:
    """Redact a trace, pass each section of the copy to a function, and return the number of replaced values by kind."""
    redaction = Redaction(source.path, key)
    collector = _NameCollector(redaction, form)
    for text in _read_sections(source):
        collector.collect_names(text)
    redactor = _Redactor(redaction, redaction.build_matcher(), form)
    for text in _read_sections(source):
        write(redactor.redact(text))
    return dict(redaction.counts)


def _read_sections(source: Source) -> Iterator[JsonText]:
    """Yield a trace in sections.

    Raises:
        CorruptTraceError: The trace is not valid JSON, or is truncated.
        TracekitError: The trace changed while it was read.
    """
    compressed = source.head.startswith(_GZIP)
    with source.open() as file, convert_damage(source.path, file=file), Stream(file, compressed=compressed) as stream:
        yield from read_sections(stream)
        if stream.damage is not None:
            raise Damage(stream.damage)
        file.check_unchanged()


class _Value(NamedTuple):
    """A private value of a JSON member.

    Attributes:
        kind: Kind of the private value.
        start: Offset of the value in the section.
        end: End of the value.
        strings: Indices of the strings in the value.
    """

    kind: str
    start: int
    end: int
    strings: range


class _NameCollector:
    """Collects the private names in the sections of a trace."""

    def __init__(self, redaction: Redaction, form: JsonForm) -> None:
        self._redaction = redaction
        self._form = form
        self._searched: set[bytes] = set()

    def collect_names(self, text: JsonText) -> None:
        """Collect the names in private members, environments and paths of home folders in a section."""
        for value in _find_private_values(text, self._redaction.path, self._form):
            for recorded in _extract_recorded_values(text, value):
                if self._redaction.pseudonyms.compute_host_pseudonym(recorded) != recorded:
                    self._redaction.collect_names(value.kind, recorded)
        for offset, _, _ in find_environment_candidates(text.data, include_homes=True):
            index = text.find_string_index(offset)
            string = b"" if index is None else text.get_string(index)
            if string in self._searched:
                continue
            if len(self._searched) >= _MAX_CACHED_STRINGS:
                self._searched.clear()
            self._searched.add(string)
            self._redaction.collect_names_from_string(_decode(string))


class _Redactor:
    """Redacts the sections of a trace."""

    def __init__(self, redaction: Redaction, matcher: PrivateValueMatcher, form: JsonForm) -> None:
        self._redaction = redaction
        self._form = form
        self._matcher = matcher
        self._cache: dict[tuple[bytes, bytes], tuple[bytes, frozenset[str]]] = {}

    def redact(self, text: JsonText) -> bytes:
        """Return the redacted bytes of a section."""
        edits: list[tuple[int, int, bytes]] = []
        values = list(_find_private_values(text, self._redaction.path, self._form))
        for value in values:
            edits += self._replace_value(text, value)
        edits += self._shorten_process_names(text)
        chosen = self._find_strings_to_search(text)
        for value in values:
            chosen.difference_update(value.strings)
        chosen.difference_update(text.find_next_string_index(start - 1) for start, _, _ in edits)
        edits += (edit for index in sorted(chosen) if (edit := self._overwrite_string(text, index)) is not None)
        edits += self._overwrite_numbers(text, values)
        return _apply_edits(text.data, sorted(edits))

    def _replace_value(self, text: JsonText, value: _Value) -> Iterator[tuple[int, int, bytes]]:
        """Yield the replacements of a private value, each with the offsets of the bytes that it replaces."""
        opening = text.data[value.start : value.start + 1]
        if value.kind in (HOST, USER, OUTPUT) or opening == b'"':
            for index in value.strings:
                string = text.get_string(index)
                replacement = self._redaction.replace_value(value.kind, _decode(string))
                if replacement != string:
                    yield int(text.strings.starts[index]), int(text.strings.ends[index]), replacement
        elif text.data[value.start + 1 : value.end - 1].strip():
            recorded = b" ".join(_extract_recorded_values(text, value)) or b" "
            self._redaction.replace_value(value.kind, recorded)
            yield value.start + 1, value.end - 1, b""

    def _shorten_process_names(self, text: JsonText) -> Iterator[tuple[int, int, bytes]]:
        """Yield the replacements of the names of processes that are paths of programs: their names without folders."""
        for index, is_command in _find_process_names(text, self._form.program):
            decoded = _decode(text.get_string(index))
            name = self._redaction.shorten_program_name(decoded)
            if is_command and b" " in name:
                self._redaction.replace_value(COMMAND, decoded)
                name = name.split(b" ", 1)[0]
            if name != decoded:
                redacted, kinds = self._matcher.redact_string(name)
                self._redaction.counts.update(kinds)
                yield int(text.strings.starts[index]), int(text.strings.ends[index]), _encode(redacted)

    def _find_strings_to_search(self, text: JsonText) -> set[int]:
        """Return the indices of the strings that may contain private values.

        A string may tell that the next one is private, as in ``"password": "X"`` and ``["--password", "X"]``.
        """
        candidates = np.array(self._matcher.find_candidates(text.data), np.object_).reshape(-1, 3)
        starts, ends = candidates[:, :2].astype(np.int64).T
        chosen = set(text.find_strings_in_intervals(starts, ends).tolist())
        attached = (text.find_string_index(match.end()) for match in _ATTACHED_PASSWORD.finditer(text.data))
        return chosen.union(index for index in attached if index is not None)

    def _overwrite_numbers(self, text: JsonText, values: Sequence[_Value]) -> Iterator[tuple[int, int, bytes]]:
        """Yield the replacements of the numbers of private keys. A replacement has as many digits, 1 and zeros."""
        replaced = np.array([(value.start, value.end) for value in values], np.int64).reshape(-1, 2)
        keys = {text.find_string_index(place) for place in _NUMBER_SEARCH_STRINGS.find_string_starts(text.data)}
        for index in (key for key in keys.union(_find_escaped_strings(text)) if key is not None):
            key = _PRIVATE_NUMBER_KEY.fullmatch(_decode(text.get_string(index)))
            number = None if key is None else _NUMBER.match(text.data, int(text.strings.ends[index]))
            if key is None or number is None:
                continue
            kind, (start, end) = _NUMBER_KEYS[(key.lastindex or 1) - 1][0], number.span(1)
            overwritten = re.sub(rb"\d", b"0", number[1]).replace(b"0", b"1", 1)
            is_inside = ((replaced[:, 0] <= start) & (end <= replaced[:, 1])).any()
            if overwritten.count(b"0") + 1 >= _MIN_DIGITS[kind] and overwritten != number[1] and not is_inside:
                self._redaction.counts[kind] += 1
                yield start, end, overwritten
        for kind, start, end, overwritten in (
            self._form.find_private_numbers(text) if self._form.find_private_numbers else ()
        ):
            self._redaction.counts[kind] += 1
            yield start, end, overwritten

    def _overwrite_string(self, text: JsonText, index: int) -> tuple[int, int, bytes] | None:
        """Return the replacement of a string whose private values are overwritten, or None if it has none."""
        string = text.get_string(index)
        before = _read_text_before(text, index)
        cached = self._cache.get((string, before))
        if cached is None:
            kinds: set[str] = set()

            def redact_string(decoded: bytes) -> bytes:
                redacted, kinds_of_values = self._matcher.redact_string(decoded, before)
                kinds.update(kinds_of_values)
                return redacted

            edited = edit_decoded(string, redact_string, JSON_ESCAPE) if b"\\" in string else redact_string(string)
            cached = edited, frozenset(kinds)
            if len(self._cache) >= _MAX_CACHED_STRINGS:
                self._cache.clear()
            self._cache[string, before] = cached
        redacted, cached_kinds = cached
        if redacted == string:
            return None
        self._redaction.counts.update(cached_kinds)
        return int(text.strings.starts[index]), int(text.strings.ends[index]), redacted


def _read_text_before(text: JsonText, index: int) -> bytes:
    """Return the JSON before a string that tells its meaning: the key before a value, or other elements of an array."""
    before = b""
    for earlier in range(index - 1, max(index - 1 - _MAX_ARGUMENTS_BEFORE, -1), -1):
        separator = text.get_separator_before(earlier + 1)
        if separator not in (b":", b","):
            break
        string = _decode(text.get_string(earlier)[-_MAX_BEFORE_BYTES:])
        before = string + b'"' + separator + b" " + (b'"' + before if before else b"")
        if separator == b":" or len(before) > _MAX_BEFORE_BYTES:
            break
    return before


def is_private_number_key(key: bytes) -> bool:
    """Return whether the number of a member with a key is private."""
    return _PRIVATE_NUMBER_KEY.fullmatch(key) is not None


def find_kind_of_key(key: bytes) -> str | None:
    """Return the kind of the private values of members with a key, or None if their values are not private."""
    match = _PRIVATE_KEY.fullmatch(key)
    return None if match is None else _KEYS[(match.lastindex or 1) - 1][0]


def _find_private_values(text: JsonText, path: Path, form: JsonForm) -> Iterator[_Value]:
    """Yield the private values of the members in a section, in ascending order. They do not overlap.

    Raises:
        CorruptTraceError: The section does not contain the end of a value.
    """
    places = _SEARCH_STRINGS.find_string_starts(text.data)
    kinds = dict(_find_environments(text, places, form.string_table))
    for index in {text.find_string_index(place) for place in places} | set(_find_escaped_strings(text)):
        kind = None if index is None else find_kind_of_key(_decode(text.get_string(index)))
        before = None if kind is None else _BEFORE_VALUE.match(text.data, int(text.strings.ends[index or 0]))
        if kind is not None and before is not None:
            kinds[before.end()] = kind
    for match in () if form.program is None else form.program.finditer(text.data):
        kinds.pop(match.end() - 1, None)
    end = 0
    for start, kind in sorted(kinds.items()):
        if start < end or text.find_string_index(start) is not None:
            continue
        value = _locate_value(text, kind, start, path)
        if value is not None:
            yield value
            end = value.end


def _locate_value(text: JsonText, kind: str, start: int, path: Path) -> _Value | None:
    """Return the value at an offset if a value of its type can be private. For example, an object cannot be a user."""
    first = text.find_next_string_index(start)
    opening = text.data[start : start + 1]
    if opening == b'"':
        string = text.get_string(first)
        is_public = kind == HOST and (string.lower() in COMMON or _LOCAL_ADDRESS.fullmatch(string))
        return None if is_public else _Value(kind, start, int(text.strings.ends[first]) + 1, range(first, first + 1))
    if opening == b"{" and kind != ENVIRONMENT:
        return None
    closing = text.find_closing_bracket(start)
    if closing is None:
        raise CorruptTraceError(
            f"the trace contains a value of the kind '{kind}' that is too long to be redacted", path=path
        )
    last = text.find_next_string_index(closing)
    if kind in (HOST, USER, OUTPUT) and b"{" in text.data[start:closing]:
        return None
    return _Value(kind, start, closing + 1, range(first, last))


def _find_process_names(text: JsonText, program: re.Pattern[bytes] | None) -> Iterator[tuple[int, bool]]:
    """Yield the indices of the strings that are names of processes, and whether they may have arguments."""
    for match in program.finditer(text.data) if program is not None else ():
        index = text.find_string_index(match.end())
        if index is not None and text.strings.starts[index] == match.end():
            yield index, True
    for match in _PROCESS_NAME.finditer(text.data):
        start = text.find_enclosing_bracket(match.start())
        end = None if start is None else text.find_closing_bracket(start)
        if start is None or end is None:
            continue
        first, last = text.find_next_string_index(start), text.find_next_string_index(end)
        for index in range(first + 1, min(last, first + _MAX_STRINGS_OF_EVENT)):
            if text.get_string(index - 1) == b"name" and text.get_separator_before(index) == b":":
                yield index, False


def _find_escaped_strings(text: JsonText) -> Iterator[int]:
    r"""Yield the indices of the strings that contain escaped ASCII characters, such as ``en\u0076``."""
    offsets = [match.start() for match in _ESCAPED_ASCII.finditer(text.data)]
    yield from (index for index in {text.find_string_index(offset) for offset in offsets} if index is not None)


def _find_environments(
    text: JsonText, places: list[int], string_table: re.Pattern[bytes] | None
) -> Iterator[tuple[int, str]]:
    """Yield the start of each object or array that contains at least two variables with well-known names.

    If a variable is a member of the document itself, its value is yielded instead.

    Args:
        text: The section.
        places: Offsets at which a variable may begin.
        string_table: Regular expression for the beginning of an array of unrelated strings, which is not yielded.
    """
    names: dict[int, set[bytes]] = {}
    for match in filter(None, (_VARIABLE.match(text.data, place) for place in places)):
        bracket = text.find_enclosing_bracket(match.start())
        is_document = bracket is None or not text.data[:bracket].strip()
        if bracket is not None and not is_document:
            names.setdefault(bracket, set()).add(match[1] or match[2])
        elif match[1]:
            yield match.end(), ENVIRONMENT
    tables = set() if string_table is None else {match.end() - 1 for match in string_table.finditer(text.data)}
    yield from (
        (bracket, ENVIRONMENT) for bracket, listed in names.items() if len(listed) > 1 and bracket not in tables
    )


def _extract_recorded_values(text: JsonText, value: _Value) -> list[bytes]:
    """Return the strings of a value, decoded. The variables of an environment are returned as one string."""
    strings = [_decode(text.get_string(index)) for index in value.strings]
    if value.kind != ENVIRONMENT or text.data[value.start : value.start + 1] == b'"':
        return [b" ".join(strings)] if value.kind == COMMAND else strings
    if text.data[value.start : value.start + 1] == b"[":
        return [b"\0".join((*strings, b""))]
    try:
        members = json.loads(text.data[value.start : value.end].decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return [text.data[value.start : value.end]]
    pairs = (f"{name}={variable}\0" for name, variable in members.items() if isinstance(variable, str))
    return ["".join(pairs).encode("utf-8", "surrogatepass")]


def _apply_edits(data: bytes, edits: Iterable[tuple[int, int, bytes]]) -> bytes:
    """Return data in which the bytes of ascending intervals are replaced. Intervals inside another one are ignored."""
    pieces: list[bytes] = []
    copied = 0
    for start, end, replacement in edits:
        if start >= copied:
            pieces += (data[copied:start], replacement)
            copied = end
    return b"".join((*pieces, data[copied:]))


def _decode(string: bytes) -> bytes:
    """Return a JSON string without escaped characters."""
    return decode_escapes(string, JSON_ESCAPE).text if b"\\" in string else string


def _encode(string: bytes) -> bytes:
    """Return a string with the escaped characters that JSON requires."""
    return json.dumps(string.decode("utf-8", "replace"), ensure_ascii=False)[1:-1].encode("utf-8", "replace")
