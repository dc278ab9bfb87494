"""One export of Nsight Systems, whatever its form, as declared tables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracekit.errors import warn
from tracekit.readers.nsys.capture import NsysCapture
from tracekit.readers.nsys.versions import NEWEST_SCHEMA

if TYPE_CHECKING:
    from tracekit.readers.nsys.tables import Tables


class Export(NsysCapture):
    """An opened export: declared tables on demand, only the columns asked for."""

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        self._check_version()

    def _check_version(self) -> None:
        """Warn of an export newer than the newest known one; what is known of it is read."""
        facts = {r["name"]: r["value"] for r in self.small("capture_info").to_pylist()}
        version = facts.get("schema_version", "")
        numbers = tuple(int(n) for n in re.findall(r"\d{1,9}", version)[:2])
        if numbers > NEWEST_SCHEMA:
            newest = ".".join(map(str, NEWEST_SCHEMA))
            what = f"schema {version} is newer than {newest}, the newest known: what is known of it is read"
            warn(what, path=self.path)
