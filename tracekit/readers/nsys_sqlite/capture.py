"""Read an Nsight Systems SQLite export as declared tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.readers.nsys.export import Export
from tracekit.readers.nsys_sqlite.tables import ExportTables

if TYPE_CHECKING:
    from tracekit.source import Source


class ExportCapture(Export):
    """An open SQLite export whose declared tables are read on demand and by column."""

    tables: ExportTables

    def __init__(self, source: Source) -> None:
        super().__init__(ExportTables(source))
