"""Write copies of profiles of AMD GPUs without private values: databases, JSON files and CSV files."""

from __future__ import annotations

import contextlib
import json
import os
import re
from typing import TYPE_CHECKING

from tracekit.errors import TracekitError
from tracekit.readers.common.json.stream import Stream
from tracekit.readers.redaction import kineto
from tracekit.readers.redaction.csv_text import CsvRedactor, read_rows, split_header
from tracekit.readers.redaction.databases import RedactedDatabase, Wording, create_redactor
from tracekit.readers.redaction.patterns import COMMAND, ENVIRONMENT, HOST, IDENTIFIER
from tracekit.readers.redaction.state import Redaction
from tracekit.readers.rocm import ROCPD_TABLE
from tracekit.readers.rocm.csv_files import list_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracekit.readers.redaction.json_text import JsonText
    from tracekit.registry.source import Source

_NO_OBJECT = b"{}"
_COLUMNS = {
    "info_node": {"machine_id": HOST, "hostname": HOST, "domain_name": HOST},
    "info_process": {"command": COMMAND, "environment": ENVIRONMENT, "extdata": COMMAND},
}
"""Kinds of the private values in columns, by kind of table."""
_JSON_COLUMNS = ("environment", "extdata")
_NODE_ID = "nid"
_FIRST_NODE_ID = 1 << 12
"""Smallest id of a node that is computed from the id of a machine. Smaller ids are numbers of nodes."""
_UUID = re.compile(rb'"uuid"\s{0,20}:\s{0,20}\{[^{}]{0,1000}(?:\{[^{}]{0,1000}\}[^{}]{0,100})?\}')


_OBJECTS = re.compile(rb'"(?:(uuid)|node)"\s{0,200}:\s{0,200}(?=\{)')
_NUMBER_VALUE = re.compile(rb"[:,\[]\s{0,200}(-?\d{1,40})")
_HIVE_ID = re.compile(rb'"hive_id"\s{0,200}:\s{0,200}(\d{6,40})')
_MIN_DIGITS = 5


class RedactedRocmDatabase(RedactedDatabase):
    """A temporary copy of a database that is being redacted."""

    wording = Wording("database", "copy the file again from where the profiler wrote it")

    def replace_private_fields(self) -> None:
        """Replace names of hosts, environments, command lines, settings of processes, and ids of nodes and devices."""
        for table in self.strings.columns:
            match = ROCPD_TABLE.fullmatch(table)
            for column, kind in _COLUMNS.get(match[1] if match else "", {}).items():
                if not self.has_columns(table, column):
                    continue
                if column in _JSON_COLUMNS:
                    self.update_column(table, column, "TRUE", self._replace_object)
                else:
                    self.redact_column(kind, table, column, "TRUE")

            if match and match[1] == "info_agent" and self.has_columns(table, "extdata"):
                self.update_column(table, "extdata", "TRUE", self._clear_uuids)
        self._replace_node_ids()

    def _replace_node_ids(self) -> None:
        """Replace the ids of nodes, which rocprofv3 computes from the ids of machines, with numbers in all tables."""
        tables = {table: match[1] for table in self.strings.columns if (match := ROCPD_TABLE.fullmatch(table))}
        nodes = [table for table, kind in tables.items() if kind == "info_node"]
        ids = [(table, "id") for table in nodes if self.has_columns(table, "id")]
        ids += [(table, _NODE_ID) for table in tables if self.has_columns(table, _NODE_ID)]
        self.replace_ids_with_numbers(IDENTIFIER, ids, _FIRST_NODE_ID)
        hashes = [(table, "hash") for table in nodes if self.has_columns(table, "hash")]
        self.replace_ids_with_numbers(IDENTIFIER, hashes, _FIRST_NODE_ID)

    def _clear_uuids(self, text: bytes) -> bytes:
        """Return JSON in which the numbers in the unique ids of devices are 0."""
        cleared = _UUID.sub(lambda match: re.sub(rb"(:\s{0,20})-?\d+", rb"\g<1>0", match[0]), text)
        self.redaction.counts[IDENTIFIER] += cleared != text
        return cleared

    def _replace_object(self, text: bytes) -> bytes:
        """Return an empty JSON object instead of another one, after collecting the private names in its members."""
        if text == _NO_OBJECT:
            return text
        try:
            members = json.loads(text)
        except (ValueError, RecursionError):
            members = None
        if isinstance(members, dict):
            variables = (f"{name}={value}" for name, value in members.items() if isinstance(value, str))
            self.redaction.collect_names(ENVIRONMENT, "\n".join(variables).encode("utf-8", "replace"))
        self.redaction.replace_value(ENVIRONMENT, text)
        return _NO_OBJECT


redact = create_redactor(RedactedRocmDatabase)


def redact_json(source: Source, target: Path | None = None, key: bytes | None = None) -> dict[str, int]:
    """Write a copy of a JSON file of rocprofv3 without values that identify people and machines.

    The ids of the node, which rocprofv3 computes from the id of the machine, and the unique ids of GPUs become other
    numbers. The arguments, results and errors are those of ``kineto.redact``.
    """
    return kineto.redact_json(source, target, key, kineto.JsonForm(find_private_numbers=_find_private_numbers))


def _find_private_numbers(text: JsonText) -> Iterator[tuple[str, int, int, bytes]]:
    """Yield the kind, start, end and replacement of each number that identifies a GPU or a machine."""
    for match in _HIVE_ID.finditer(text.data):
        yield from _replace_number(text, *match.span(1), b"1")
    for match in _OBJECTS.finditer(text.data):
        end = text.find_closing_bracket(match.end()) if text.find_string_index(match.end()) is None else None
        for number in () if end is None else _NUMBER_VALUE.finditer(text.data, match.end(), end):
            if match[1] or len(number[1]) >= _MIN_DIGITS:
                yield from _replace_number(text, *number.span(1), b"0" if match[1] else b"1")


def _replace_number(text: JsonText, start: int, end: int, first: bytes) -> Iterator[tuple[str, int, int, bytes]]:
    """Yield the replacement of a number outside of strings, which begins with a given digit: ``1000`` or ``0``."""
    replacement = first.ljust(end - start, b"0") if first != b"0" else b"0"
    if text.data[start:end] != replacement and text.find_string_index(start) is None:
        yield IDENTIFIER, start, end, replacement


def redact_csv(source: Source, target: Path | None = None, key: bytes | None = None) -> dict[str, int]:
    """Write a copy of a CSV file of rocprofv3, or of the CSV files in a folder, without private values.

    Other files in the folder are not copied. The names of files, which contain the name of the host if the user chose
    so, are redacted too.

    Args:
        source: File or folder to copy.
        target: Path of the copy, which must not exist. If None, the private values are only counted.
        key: Key that determines the pseudonyms, or None for a random key.

    Returns:
        The number of replaced values of each kind.

    Raises:
        TracekitError: Two files have the same name after redaction, or a file changed while it was read.
    """
    redactor = CsvRedactor(Redaction(source.path, key))
    files = [file for file, _, _ in list_files(source)]
    for file in files:
        redactor.redaction.collect_names_from_string(os.fsencode(file.path.name))
        for rows, columns in _read_csv(file):
            redactor.collect_names(rows, columns)
    redactor.set_matcher(matcher := redactor.redaction.build_matcher())
    is_folder = source.path.is_dir()
    if is_folder and target is not None:
        target.mkdir()
    for file in files:
        name = redactor.redaction.overwrite_private_values(matcher, os.fsencode(file.path.name)) if is_folder else b""
        copy = target if target is None or not is_folder else target / os.fsdecode(name)
        if copy is not None and copy.exists():
            raise TracekitError("two files have the same name after redaction", path=file.path, hint="rename one")
        with contextlib.nullcontext() if copy is None else copy.open("xb") as out:
            for rows, columns in _read_csv(file):
                redacted = redactor.redact(rows, columns)
                if out is not None:
                    out.write(redacted)
    return dict(redactor.redaction.counts)


def _read_csv(source: Source) -> Iterator[tuple[bytes, list[bytes]]]:
    """Yield the rows of a CSV file in sections, with the names of the columns. The header is a section."""
    columns: list[bytes] | None = None
    with source.open() as file, Stream(file, compressed=False) as stream:
        for rows in read_rows(stream.read):
            if columns is None:
                end = rows.find(b"\n") + 1 or len(rows)
                columns = split_header(rows[:end])
                yield rows[:end], columns
                rows = rows[end:]  # noqa: PLW2901 - the rest of the section
            if rows:
                yield rows, columns
        file.check_unchanged()
