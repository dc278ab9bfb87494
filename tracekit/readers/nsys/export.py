"""One export of Nsight Systems, whatever its form, as declared tables."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from tracekit import schemas
from tracekit.errors import CorruptTraceError, warn
from tracekit.readers.nsys.capture import NsysCapture
from tracekit.readers.nsys.versions import CONTEXTS, DEVICES, FACT_TABLES, LOOKED_UP, NEWEST_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.readers.nsys.tables import Tables

_NO_RECORDS = ("ENUM_", "sqlite_")


class Export(NsysCapture):
    """An opened export: declared tables on demand, only the columns asked for."""

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        self._check_version()

    def count_undecoded(self) -> Mapping[str, int]:
        """Return the number of events, by name, that the file holds and no table has."""
        return self.undecoded

    @functools.cached_property
    def undecoded(self) -> dict[str, int]:
        """What the export holds and no declared table is made of: number of rows by source table, where it has any.

        Labels of numbers (``ENUM_*``) are not listed. Tables that cannot be counted are warned of.
        """
        used, counts, failed = sources(), {}, []
        for table in self.tables.columns:
            if table not in used and not table.startswith(_NO_RECORDS):
                try:
                    counts[table] = self.tables.counts([(table, None)])[0]
                except CorruptTraceError as e:
                    failed.append(e.message)
        if failed:
            warn(f"{len(failed)} tables that are not decoded cannot be counted: {failed[0]}", path=self.path)
        return {table: rows for table, rows in counts.items() if rows}

    def _check_version(self) -> None:
        """Warn of an export newer than the newest known one; what is known of it is read."""
        facts = {r["name"]: r["value"] for r in self.small("capture_info").to_pylist()}
        version = facts.get("schema_version", "")
        numbers = tuple(int(n) for n in re.findall(r"\d{1,9}", version)[:2])
        if numbers > NEWEST_SCHEMA:
            newest = ".".join(map(str, NEWEST_SCHEMA))
            what = f"schema {version} is newer than {newest}, the newest known: what is known of it is read"
            warn(what, path=self.path)


@functools.cache
def sources() -> frozenset[str]:
    """Return the source tables that declared tables are made of, directly or by what is looked up in them."""
    declared = (str(c.source) for schema in schemas.tables().values() for c in schema.columns if c.source)
    origins = (origin.table for origin in (*DEVICES, *CONTEXTS))
    return frozenset((*(s.partition(".")[0] for s in declared), *origins, *FACT_TABLES, *LOOKED_UP))
