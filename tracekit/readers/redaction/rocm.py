"""Replace the private values in databases of rocprofv3 (rocpd) and rocmProfileData (RPD), and in JSON of rocprofv3."""

from __future__ import annotations

import json
import re

from tracekit.readers.redaction.databases import RedactedDatabase, Wording, create_redactor
from tracekit.readers.redaction.patterns import COMMAND, ENVIRONMENT, HOST, IDENTIFIER
from tracekit.readers.rocm import ROCPD_TABLE

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
