"""Replace the private values in SQLite exports of Nsight Systems."""

from __future__ import annotations

import re

from tracekit.readers.redaction.databases import RedactedDatabase, create_redactor
from tracekit.readers.redaction.patterns import ADDRESS, COMMAND, ENVIRONMENT, HOST, OUTPUT, USER, is_environment
from tracekit.readers.redaction.state import FOLDER_PROPERTIES, NETWORK_PROPERTY, PRIVATE_PROPERTIES

_SETTINGS = (
    (ENVIRONMENT, r"(?:^|:)ENVIRONMENT_VARIABLE$"),
    (COMMAND, r"(?:^|:)(?:COMMAND|ARGUMENT_\d+|WORKING_DIR)$|^EXPORT_(?:\w+_)?PATH(?:_ABS)?$"),
    (USER, r"(?:^|:|_)USER(?:_NAME)?$"),
    (HOST, r"(?:^|:|_)HOST(?:_?NAME)?$|^DEVICE_DISPLAY_NAME$|^DEVICE_ID$"),
)
"""Kinds of private values in settings, each with a regular expression for the names of the settings."""

_GUID = re.compile(rb'("GUID"\s*:\s*)("[^"]+"|-?\d+)')
_DEVICE_COLUMNS = {"TARGET_INFO_SYSTEM_ENV": "devStateName", "TARGET_INFO_NIC_INFO": "stateName"}
_PATH_COLUMNS = {"OSRT_FILE_ACCESS_DESCRIPTORS": "filePath", "ANALYSIS_FILE": "filename"}
_NETWORK_NAMES = ("name", "des")
"""Columns of the table of InfiniBand devices that usually hold the name of a host."""
_SWITCH_IDS = (("NET_IB_SWITCH_METRIC", "globalId"), ("NET_IB_SWITCH_CONGESTION_EVENT", "globalId"))
"""Tables about InfiniBand devices, and the column of each table that holds the globally unique ids of devices."""
_DEVICE_ID_COLUMN = re.compile(r"\w{0,40}guid|(?:\w{0,40}_)?mac(?:_?addr(?:ess)?)?", re.IGNORECASE)
"""Names of columns that hold globally unique ids or hardware addresses of devices, in any table."""
_DEVICE_ID = re.compile(rb"(?:0x)?(?:[0-9a-f]{12}|[0-9a-f]{16}|\d{12,20})", re.IGNORECASE)
_FIRST_GUID = 1 << 32
"""Smallest globally unique id. Smaller ids are numbers that an earlier redaction assigned."""


class RedactedExport(RedactedDatabase):
    """A temporary copy of an export that is being redacted."""

    def replace_private_fields(self) -> None:
        """Replace the values of columns and rows that hold only private values."""
        for table in ("META_DATA_CAPTURE", "EXPORT_META_DATA", "META_DATA_EXPORT"):
            self._redact_settings(table)
        self._redact_properties()
        self._redact_devices()
        self._redact_infiniband_devices()
        self._redact_environments()
        self._redact_outputs()
        self._redact_processes()
        self._redact_paths()

    def _redact_settings(self, table: str) -> None:
        """Replace the private values in a table of settings, which has the columns ``name`` and ``value``."""
        if not self.has_columns(table, "name", "value"):
            return
        for (name,) in self.db.execute(f"SELECT DISTINCT CAST(name AS BLOB) FROM {table}").fetchall():  # noqa: S608
            named = "name = CAST(? AS TEXT)"
            if name == b"DEVICE_ID":
                self.update_column(table, "value", named, self.redaction.replace_device_name, (name,))
            elif kind := _find_private_kind_of_setting((name or b"").decode("utf-8", "replace")):
                self.redact_column(kind, table, "value", named, (name,))

    def _redact_properties(self) -> None:
        """Redact the private properties of machines, including paths and the addresses of network devices."""
        table = "TARGET_INFO_SYSTEM_ENV"
        if self.has_columns(table, "nameEnum", "value"):
            for number, kind in PRIVATE_PROPERTIES.items():
                self.redact_column(kind, table, "value", f"nameEnum = {number}")
            for number in FOLDER_PROPERTIES:
                self.update_column(table, "value", f"nameEnum = {number}", self.redaction.redact_folders)
            self.update_column(table, "value", f"nameEnum = {NETWORK_PROPERTY}", self._redact_addresses)
        if self.has_columns("TARGET_INFO_NIC_INFO", "GUID"):
            done = self.db.execute("UPDATE TARGET_INFO_NIC_INFO SET GUID = 0 WHERE GUID <> 0")
            self.redaction.counts[ADDRESS] += done.rowcount

    def _redact_addresses(self, text: bytes) -> bytes:
        cleared, number = _GUID.subn(rb'\1""', text)
        self.redaction.counts[ADDRESS] += number
        return cleared

    def _redact_devices(self) -> None:
        """Replace all device names that do not denote the local machine, because they contain a host name."""
        for table, column in _DEVICE_COLUMNS.items():
            if self.has_columns(table, column):
                self.update_column(table, column, "TRUE", self.redaction.replace_device_name)

    def _redact_infiniband_devices(self) -> None:
        """Replace the names of InfiniBand devices, and the unique ids of devices in all tables.

        Equal ids are replaced by equal numbers.
        """
        for column in _NETWORK_NAMES:
            if self.has_columns("NET_IB_DEVICE_INFO", column):
                self.redact_column(HOST, "NET_IB_DEVICE_INFO", column, "TRUE")
        listed = [(table, column) for table, column in _SWITCH_IDS if self.has_columns(table, column)]
        for table in self.strings.columns:
            names = [c.decode() for (c,) in self.db.execute("SELECT name FROM pragma_table_info(?)", (table,))]
            listed += [(table, name) for name in names if _DEVICE_ID_COLUMN.fullmatch(name)]
        for table, column in listed:
            self.update_column(table, column, "TRUE", self._overwrite_device_id)
        self.replace_ids_with_numbers(ADDRESS, listed, _FIRST_GUID)

    def _overwrite_device_id(self, text: bytes) -> bytes:
        if not _DEVICE_ID.fullmatch(text):
            return text
        self.redaction.counts[ADDRESS] += 1
        return b"x" * len(text)

    def _redact_environments(self) -> None:
        """Replace the strings that contain the environment variables of processes with empty strings."""
        if self.has_columns("StringIds", "value"):
            self.update_column("StringIds", "value", "instr(value, '=')", self._redact_environment)

    def _redact_environment(self, text: bytes) -> bytes:
        return self.redaction.replace_value(ENVIRONMENT, text) if is_environment(text) else text

    def _redact_outputs(self) -> None:
        """Replace the recorded output of the profiled programs with empty strings."""
        for table in ("ProcessStreams", "ANALYSIS_FILE"):
            if self.has_columns(table, "contentId") and self.has_columns("StringIds", "id", "value"):
                self.redact_column(OUTPUT, "StringIds", "value", f"id IN (SELECT contentId FROM {table})")  # noqa: S608
            if self.has_columns(table, "content"):
                self.redact_column(OUTPUT, table, "content", "TRUE")

    def _redact_processes(self) -> None:
        """Remove the folders from process names that are paths of programs."""
        if self.has_columns("PROCESSES", "name"):
            self.update_column("PROCESSES", "name", "TRUE", self.redaction.shorten_program_name)

    def _redact_paths(self) -> None:
        """Overwrite private folder names in file paths."""
        for table, column in _PATH_COLUMNS.items():
            if self.has_columns(table, column):
                self.update_column(table, column, "TRUE", self.redaction.redact_folders)


def _find_private_kind_of_setting(name: str) -> str | None:
    """Return the kind of the private values of a setting, or None if its values are not private."""
    return next((kind for kind, pattern in _SETTINGS if re.search(pattern, name)), None)


redact = create_redactor(RedactedExport)
