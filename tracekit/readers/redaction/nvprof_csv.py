"""Write a copy of CSV that nvprof printed without values that identify people and machines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracekit.readers.common.damage import Damage, convert_damage
from tracekit.readers.common.encodings import convert_to_utf8
from tracekit.readers.nvprof_csv import HEADER
from tracekit.readers.redaction.csv_text import CsvRedactor, split_header
from tracekit.readers.redaction.patterns import COMMAND, OUTPUT
from tracekit.readers.redaction.state import Redaction

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracekit.registry.source import Source

_LINE = re.compile(rb"[^\r\n]+")
_COMMAND = re.compile(rb"==[^\r\n]{0,100}?(?:command: |Profiling application: |(?:Generated|Created) [\w ]{1,40}: ?)")
"""What precedes a command line, or the path of a file that nvprof wrote."""
_OWN_LINE = b"=="
_END = re.compile(rb"^(?:==|\r?\n)", re.MULTILINE)
"""What follows a table: a line that nvprof begins with ``==``, or an empty line."""
_MAX_TABLES = 512


def redact(source: Source, target: Path | None = None, key: bytes | None = None) -> dict[str, int]:
    """Write a copy of a CSV file without values that identify people and machines.

    Lines between the tables that nvprof did not print are the output of the program, and become empty.

    Args:
        source: File to copy.
        target: Path of the copy, which must not exist. If None, the private values are only counted.
        key: Key that determines the pseudonyms, or None for a random key.

    Returns:
        The number of replaced values of each kind.

    Raises:
        CorruptTraceError: The file has too many tables or private names.
        TracekitError: The file changed while it was read.
    """
    redaction = Redaction(source.path, key)
    with source.open() as file, convert_damage(source.path, file=file):
        content = convert_to_utf8(file.read(0, file.size))
        file.check_unchanged()
        parts = list(_split(content))
    redactor = CsvRedactor(redaction)
    for text, columns in parts:
        if columns is None:
            _collect_names_from_lines(redaction, text)
        else:
            redactor.collect_names(text, columns)
    redactor.set_matcher(matcher := redaction.build_matcher())

    def overwrite_line(line: re.Match[bytes]) -> bytes:
        command = _COMMAND.match(line[0])
        if command is not None:
            return command[0] + redaction.replace_value(COMMAND, line[0][command.end() :])
        if not line[0].startswith(_OWN_LINE):
            return redaction.replace_value(OUTPUT, line[0])
        return redaction.overwrite_private_values(matcher, line[0])

    copies = (_LINE.sub(overwrite_line, text) if c is None else redactor.redact(text, c) for text, c in parts)
    copy = b"".join(copies)
    if target is not None:
        target.write_bytes(copy)
    return dict(redaction.counts)


def _split(content: bytes) -> Iterator[tuple[bytes, list[bytes] | None]]:
    """Yield the tables with the names of their columns, and the lines between them with None."""
    end = 0
    for header, start, stop in _locate_tables(content):
        yield content[end : header.start()], None
        yield content[header.start() : start], split_header(header[0])
        yield content[start:stop], split_header(header[0])
        end = stop
    yield content[end:], None


def _collect_names_from_lines(redaction: Redaction, text: bytes) -> None:
    """Collect the private names in lines that are not rows of a table."""
    for line in _LINE.findall(text):
        command = _COMMAND.match(line)
        if command is not None:
            redaction.collect_names(COMMAND, line[command.end() :])
    redaction.collect_names_from_string(text)


def _locate_tables(content: bytes) -> Iterator[tuple[re.Match[bytes], int, int]]:
    """Yield the header of each table, and the start and end offset of its rows.

    A table ends at an empty line, or at a line that nvprof begins with ``==``.

    Raises:
        Damage: The last table is truncated, or there are too many tables.
    """
    headers = list(HEADER.finditer(content))
    if headers and b"Time(%)" not in headers[-1][0] and not content.endswith(b"\n"):
        raise Damage("the last row does not end with a line break, so it is truncated")
    if len(headers) > _MAX_TABLES:
        raise Damage(f"the file has more than {_MAX_TABLES} tables")
    for header, following in zip(headers, [*headers[1:], None], strict=True):
        stop = following.start() if following else len(content)
        end = _END.search(content, header.end(), stop)
        yield header, min(header.end() + 1, len(content)), end.start() if end else stop
