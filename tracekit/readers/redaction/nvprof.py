"""Write copies of databases of nvprof and of sessions of the NVIDIA Visual Profiler without private values."""

from __future__ import annotations

import base64
import contextlib
import gzip
import html
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from tracekit.errors import TracekitError
from tracekit.readers.common.budget import Budget
from tracekit.readers.common.sqlite_files import MAGIC
from tracekit.readers.nvprof import PREFIX, STRINGS
from tracekit.readers.nvprof.database import RECORD_AGAIN
from tracekit.readers.nvprof.session import SPLIT, read_session, unpack_database
from tracekit.readers.redaction.databases import (
    RedactedDatabase,
    Wording,
    copy_database,
    create_redactor,
    write_database,
)
from tracekit.readers.redaction.kineto import find_kind_of_key
from tracekit.readers.redaction.patterns import COMMAND, ENVIRONMENT, is_environment
from tracekit.readers.redaction.state import Redaction
from tracekit.registry.source import Source
from tracekit.system.targets import create_workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracekit.readers.redaction.matcher import PrivateValueMatcher

_UUID_COLUMNS = ("uuid", "idDev0", "idDev1")
_FILE_COLUMNS = ("srcFile", "fileName")
"""Columns that refer to the path of a source file."""
_PATH = re.compile(rb"(?:[/\\]|~/|[A-Za-z]:[/\\]).*|.*[/\\].*\.\w{1,4}", re.DOTALL)
_PDM = re.compile(rb"(<pdm\b[^<>]{0,200}>)(.*?)(</pdm>)", re.DOTALL)
_TOKEN = re.compile(
    rb"<!--.*?(?:-->|\Z)|<!\[CDATA\[.*?(?:\]\]>|\Z)|<[\w/?](?:\"[^\"]*\"|'[^']*'|[^<>\"'])*>|[^<]+|<", re.DOTALL
)
"""A comment, a tag or a text of XML."""
_TAG = re.compile(rb"<[\w/?]")
_ATTRIBUTE = re.compile(rb"([\w:.\-]{1,200})(\s*=\s*)(\"[^\"]*\"|'[^']*')")
_ENVIRONMENT = re.compile(rb"(<envs?\b[^<>]*(?<!/)>)(.*?)(</envs?>)", re.DOTALL)
_VARIABLE = re.compile(rb"<\w+((?:\s+[\w:.\-]{1,200}\s*=\s*(?:\"[^\"]*\"|'[^']*')){1,20})")
_COMMAND_ATTRIBUTE = re.compile(rb"args?|arguments|exe(?:cutable)?|cwd|workingdir(?:ectory)?|program", re.IGNORECASE)
_PATH_ATTRIBUTE = re.compile(rb"\w{0,40}(?:file|path|dir)(?:name)?", re.IGNORECASE)
_COMPRESSION_LEVEL = 6
_SPLIT_BYTES = 3 << 18


class RedactedNvprofDatabase(RedactedDatabase):
    """A temporary copy of a database that is being redacted."""

    wording = Wording("profile", RECORD_AGAIN)

    def replace_private_fields(self) -> None:
        """Replace environments, the unique ids of devices, and private folders in the paths of source files."""
        has_strings = self.has_columns(STRINGS, "_id_", "value")
        if has_strings:
            self.update_column(STRINGS, "value", "instr(value, '=')", self._redact_environment)
        for table in self.strings.columns:
            for column in _UUID_COLUMNS:
                if table.startswith(PREFIX) and self.has_columns(table, column):
                    self.update_column(table, column, f"typeof({column}) = 'blob'", self.redaction.replace_uuid)
            for column in _FILE_COLUMNS if has_strings else ():
                if table.startswith(PREFIX) and self.has_columns(table, column):
                    condition = f'_id_ IN (SELECT "{column}" FROM "{table}")'  # noqa: S608 - the table exists
                    self.update_column(STRINGS, "value", condition, self._redact_path)

    def _redact_path(self, text: bytes) -> bytes:
        return self.redaction.redact_folders(text) if _PATH.fullmatch(text) else text

    def _redact_environment(self, text: bytes) -> bytes:
        return self.redaction.replace_value(ENVIRONMENT, text) if is_environment(text) else text


_redact_database = create_redactor(RedactedNvprofDatabase)


def redact(source: Source, target: Path | None = None, key: bytes | None = None) -> dict[str, int]:
    """Write a copy of a database or a session without values that identify people and machines.

    The profiles in a session are unpacked into a temporary folder, which is deleted at the end.

    Args:
        source: File to copy.
        target: Path of the copy, which must not exist. If None, the private values are only counted.
        key: Key that determines the pseudonyms, or None for a random key.

    Returns:
        The number of replaced values of each kind.

    Raises:
        CorruptTraceError: The file is damaged, or its strings exceed the limits for a file of its size.
        UnsupportedVersionError: The strings of the database are not UTF-8.
        TracekitError: The database contains SQL that would run during redaction, or the file changed while it was read.
    """
    if source.head.startswith(MAGIC):
        return _redact_database(source, target, key)
    redaction = Redaction(source.path, key)
    content = read_session(source)
    _collect_names(redaction, content)
    profiles = [pdm[2] for pdm in _PDM.finditer(content)]
    if sum(SPLIT.search(profile) is not None for profile in profiles) > 1:  # collect the names in all of them first
        for profile in profiles:
            _redact_profile(source, redaction, profile)
        redaction.counts.subtract(redaction.counts.copy())
    packed = [_redact_profile(source, redaction, profile) for profile in profiles]
    overwriter = _XmlOverwriter(redaction, redaction.build_matcher())
    pieces: list[bytes] = []
    end = 0
    for pdm, database in zip(_PDM.finditer(content), packed, strict=True):
        pieces += (overwriter.overwrite(content[end : pdm.start()]), pdm[1], database, pdm[3])
        end = pdm.end()
    pieces.append(overwriter.overwrite(content[end:]))
    if target is not None:
        target.write_bytes(b"".join(pieces))
    return dict(redaction.counts)


def _redact_profile(source: Source, redaction: Redaction, pdm: bytes) -> bytes:
    """Return the content of an element ``pdm`` with a redacted copy of its database."""
    if SPLIT.search(pdm) is None:
        return pdm
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(create_workspace(Path(tempfile.gettempdir())))
        original, copy = folder / "unpacked", folder / "redacted"
        with original.open("xb") as file:
            unpack_database(source, pdm, Budget(source.size), file)
        try:
            with copy_database(Source(original), redaction, RedactedNvprofDatabase) as database:
                write_database(database, copy)
        except TracekitError as e:
            raise type(e)(f"the packed profile: {e.message}", path=source.path, hint=e.hint) from e
        packed = gzip.compress(copy.read_bytes(), _COMPRESSION_LEVEL, mtime=0)
    return b"".join(
        b"<split>%b</split>" % base64.b64encode(packed[start : start + _SPLIT_BYTES])
        for start in range(0, len(packed), _SPLIT_BYTES)
    )


def _collect_names(redaction: Redaction, content: bytes) -> None:
    """Collect the private names in the XML of a session."""
    for xml in _iterate_outside_of_profiles(content):
        for environment in _ENVIRONMENT.finditer(xml):
            redaction.collect_names(ENVIRONMENT, _join_variables(environment[2]))
        for token in _TOKEN.findall(xml):
            for name, _, value in _ATTRIBUTE.findall(token) if _TAG.match(token) else ():
                kind = _find_kind(name)
                if kind is not None:
                    redaction.collect_names(kind, _unescape(value[1:-1]))
            redaction.collect_names_from_string(_unescape(token))


def _iterate_outside_of_profiles(content: bytes) -> Iterator[bytes]:
    """Yield the parts of a session that are not the content of an element ``pdm``."""
    end = 0
    for pdm in _PDM.finditer(content):
        yield content[end : pdm.start()]
        end = pdm.end()
    yield content[end:]


def _join_variables(xml: bytes) -> bytes:
    """Return the variables in the elements of an environment as ``NAME=value``, which NUL bytes separate."""
    pairs = []
    for element in _VARIABLE.findall(xml):
        values = {name.lower(): _unescape(value[1:-1]) for name, _, value in _ATTRIBUTE.findall(element)}
        name = values.get(b"name", values.get(b"key", b""))
        pairs.append(name + b"=" + values.get(b"value", b""))
    return b"".join(pair + b"\0" for pair in pairs)


def _find_kind(attribute: bytes) -> str | None:
    """Return the kind of the private values of an attribute, or None."""
    return COMMAND if _COMMAND_ATTRIBUTE.fullmatch(attribute) else find_kind_of_key(attribute)


class _XmlOverwriter:
    """Overwrites private values in XML."""

    def __init__(self, redaction: Redaction, matcher: PrivateValueMatcher) -> None:
        self._redaction = redaction
        self._matcher = matcher

    def overwrite(self, xml: bytes) -> bytes:
        """Return XML without private values."""
        return _TOKEN.sub(self._overwrite_token, _ENVIRONMENT.sub(self._clear_environment, xml))

    def _clear_environment(self, element: re.Match[bytes]) -> bytes:
        if not element[2].strip():
            return element[0]
        self._redaction.counts[ENVIRONMENT] += 1
        return element[1] + element[3]

    def _overwrite_token(self, token: re.Match[bytes]) -> bytes:
        if not _TAG.match(token[0]):
            is_escaped = not token[0].startswith(b"<!")
            return self._edit(token[0], self._overwrite_text, b"", is_escaped=is_escaped)
        is_program = token[0].startswith(b"<executable")

        def overwrite_attribute(attribute: re.Match[bytes]) -> bytes:
            quote, value = attribute[3][:1], attribute[3][1:-1]
            kind = COMMAND if is_program and attribute[1] == b"file" else _find_kind(attribute[1])
            if kind is not None:
                edited = self._edit(value, lambda text: self._redaction.replace_value(kind, text), quote)
            elif _PATH_ATTRIBUTE.fullmatch(attribute[1]):
                edited = self._edit(value, self._overwrite_path, quote)
            else:
                before = attribute[1] + b'": '
                edited = self._edit(value, lambda text: self._overwrite_text(text, before), quote)
            return attribute[1] + attribute[2] + quote + edited + quote

        return _ATTRIBUTE.sub(overwrite_attribute, token[0])

    def _overwrite_path(self, text: bytes) -> bytes:
        redacted = self._overwrite_text(text)
        return self._redaction.redact_folders(redacted) if _PATH.fullmatch(redacted) else redacted

    def _overwrite_text(self, text: bytes, before: bytes = b"") -> bytes:
        redacted, kinds = self._matcher.redact_string(text, before)
        if redacted != text:
            self._redaction.counts.update(kinds)
        return redacted

    @staticmethod
    def _edit(value: bytes, edit: Callable[[bytes], bytes], quote: bytes, *, is_escaped: bool = True) -> bytes:
        """Return escaped text after applying a function to the text itself."""
        text = _unescape(value) if is_escaped else value
        edited = edit(text)
        if edited == text:
            return value
        if not is_escaped:
            return edited
        entities = {quote.decode(): "&quot;" if quote == b'"' else "&apos;"} if quote else {}
        return escape(edited.decode("utf-8", "surrogateescape"), entities).encode("utf-8", "surrogateescape")


def _unescape(value: bytes) -> bytes:
    """Return the text that escaped text of XML denotes."""
    if b"&" not in value:
        return value
    return html.unescape(value.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
