"""Mask private values in answers: names of users and hosts, home folders, secrets, addresses and ids."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tracekit.readers.redaction.matcher import PART_OF_WORD, PrivateValueMatcher
from tracekit.readers.redaction.pseudonyms import Pseudonyms
from tracekit.readers.redaction.vocabulary import COMMON, TECHNICAL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.answers.envelope import AnswerTable, Envelope
    from tracekit.mcp.roots import AllowedFolders

PROGRAM_TABLES = ("processes", "threads")
"""Tables whose names may be the path of a program, or its command line."""
_PROGRAM_COLUMNS = ("Thread Name",)
"""Columns of reports with names of these tables."""
_PROGRAM = re.compile(r"\A\s*(?:[A-Za-z]:)?[/\\]\S*?([^/\\\s]+)(?:\s.*)?\Z", re.DOTALL)
_OPTION = re.compile(r"\s--?[A-Za-z].*", re.DOTALL)
_MAX_KNOWN = 200_000
_PUBLIC = frozenset({"content_id"})
"""Fields that hold no text of the capture."""


class PrivateTextMask:
    """Masks private values in texts, and shows the paths of captures relative to the roots.

    Attributes:
        is_active: Whether private values are masked. Paths are always shown relative to the roots.
    """

    def __init__(self, folders: AllowedFolders, key: bytes, *, is_active: bool) -> None:
        self._folders = sorted(folders.folders.items(), key=lambda item: -len(os.fspath(item[1])))
        self.is_active = is_active
        self._matcher = PrivateValueMatcher(_list_own_names(), pseudonyms=Pseudonyms(key))
        self._known: dict[str, str] = {}

    def mask_text(self, text: str) -> str:
        """Return a text without private values."""
        masked = self._known.get(text)
        if masked is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            masked = self._known[text] = self._mask(text)
        return masked

    def mask_answer(self, value: Any) -> Any:
        """Return a JSON value without private values in its texts and names."""
        if isinstance(value, str):
            return self.mask_text(value)
        if isinstance(value, (list, tuple)):
            return [self.mask_answer(each) for each in value]
        if isinstance(value, dict):
            return {
                self.mask_text(str(name)): each if name in _PUBLIC else self.mask_answer(each)
                for name, each in value.items()
            }
        return value

    def mask_programs(self, envelope: Envelope) -> Envelope:
        """Return an envelope with only the names of programs in rows of processes and threads, not their arguments."""
        return replace(envelope, results=tuple(map(self._mask_programs_of, envelope.results)))

    def _mask_programs_of(self, table: AnswerTable) -> AnswerTable:
        names = (*_PROGRAM_COLUMNS, *(["name"] if table.schema in PROGRAM_TABLES else []))
        is_name = [column.name in names for column in table.columns]
        if not (self.is_active and any(is_name)):
            return table
        rows = tuple(
            tuple(
                self.mask_program(value) if named and isinstance(value, str) else value
                for value, named in zip(row, is_name, strict=True)
            )
            for row in table.rows
        )
        return replace(table, rows=rows)

    def mask_table(self, name: str, table: pa.Table) -> pa.Table:
        """Return a table without private values in its columns of text.

        Args:
            name: Name of the table.
            table: The table. Each different text is masked once.
        """
        if not self.is_active:
            return table
        for index, field in enumerate(table.schema):
            kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
            if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind)):
                continue
            encoded = table.column(index).combine_chunks()
            if not pa.types.is_dictionary(encoded.type):
                encoded = encoded.dictionary_encode()
            texts = [self._mask_value(name, field.name, value) for value in encoded.dictionary.to_pylist()]
            values = pa.DictionaryArray.from_arrays(encoded.indices, pa.array(texts, pa.string()), safe=False)
            table = table.set_column(index, field.name, values.cast(pa.string()))
        return table

    def mask_program(self, text: str) -> str:
        """Return the name of a program, given its name, its path or its command line."""
        if not self.is_active:
            return self.mask_text(text)
        match = _PROGRAM.match(text)
        return self.mask_text(match[1] if match else _OPTION.sub("", text))

    def _mask_value(self, table: str, column: str, value: str | bytes | None) -> str | None:
        if value is None:
            return None
        text = value.hex() if isinstance(value, bytes) else value
        return self.mask_program(text) if table in PROGRAM_TABLES and column == "name" else self.mask_text(text)

    def _mask(self, text: str) -> str:
        for name, folder in self._folders:
            for path in (os.fspath(folder), folder.as_posix()):  # which differ on Windows
                for separator in ("/", os.sep):
                    text = text.replace(f"{path}{separator}", f"{name}/" if name else "")
                text = text.replace(path, name or ".")
        if not self.is_active:
            return text
        return self._matcher.redact_copy(text.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")


def _list_own_names() -> Iterator[bytes]:
    """Yield the names of the user, of the home folder and of this machine, except those that identify nobody."""
    names = {Path.home().name, socket.gethostname(), socket.gethostname().partition(".")[0]}
    with contextlib.suppress(KeyError, OSError):
        names.add(getpass.getuser())
    for name in names:
        value = name.lower().encode("utf-8", "surrogateescape")
        if len(value) >= PART_OF_WORD and value not in COMMON | TECHNICAL:
            yield value
