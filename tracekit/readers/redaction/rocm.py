"""Write copies of databases of rocprofv3 (rocpd) and rocmProfileData (RPD) without private values."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tracekit.errors import TracekitError
from tracekit.readers.common.sqlite_files import EXPORT_AGAIN
from tracekit.readers.redaction.nsys_sqlite import RedactedExport, redact_database
from tracekit.readers.redaction.patterns import COMMAND, ENVIRONMENT, HOST
from tracekit.readers.rocm import DATABASE_MAGICS, ROCPD_TABLE

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.registry.source import Source

_HINT = "copy the file again from where the profiler wrote it"
_NO_OBJECT = b"{}"
_COLUMNS = {
    "info_node": {"machine_id": HOST, "hostname": HOST, "domain_name": HOST},
    "info_process": {"command": COMMAND, "environment": ENVIRONMENT, "extdata": COMMAND},
}
"""Kinds of the private values in columns, by kind of table."""
_JSON_COLUMNS = ("environment", "extdata")


def redact(source: Source, target: Path | None = None, key: bytes | None = None) -> dict[str, int]:
    """Write a copy of a database without values that identify people and machines.

    Args:
        source: Database to copy.
        target: Path of the copy, which must not exist. If None, the private values are only counted.
        key: Key that determines the pseudonyms, or None for a random key.

    Returns:
        The number of redacted values of each kind.

    Raises:
        CorruptTraceError: The file is damaged, or its strings exceed the limits for a file of its size.
        TracekitError: The file is gzipped, contains SQL that would run during redaction, or changed.
    """
    if source.head.startswith(DATABASE_MAGICS[1]):
        hint = "decompress it first: gunzip FILE"
        raise TracekitError("a gzipped database cannot be redacted", path=source.path, hint=hint)
    try:
        return redact_database(source, target, key, RedactedRocmDatabase)
    except TracekitError as e:
        if e.hint != EXPORT_AGAIN:
            raise
        raise type(e)(e.message, path=source.path, hint=_HINT) from e


class RedactedRocmDatabase(RedactedExport):
    """A temporary copy of a database that is being redacted."""

    def replace_private_fields(self) -> None:
        """Replace names of hosts, environments, command lines and settings of processes."""
        for table in self.strings.columns:
            match = ROCPD_TABLE.fullmatch(table)
            for column, kind in _COLUMNS.get(match[1] if match else "", {}).items():
                if not self._has_columns(table, column):
                    continue
                if column in _JSON_COLUMNS:
                    self._update_column(table, column, "TRUE", self._replace_object)
                else:
                    self._redact_column(kind, table, column, "TRUE")

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
