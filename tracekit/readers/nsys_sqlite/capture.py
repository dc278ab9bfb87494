"""Read an Nsight Systems SQLite export as declared tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.readers.nsys.export import Export
from tracekit.readers.nsys_sqlite.tables import ExportTables

if TYPE_CHECKING:
    from tracekit.registry.source import Source


class ExportCapture(Export):
    """An open Nsight Systems SQLite export, whose declared tables are read column by column on demand."""

    tables: ExportTables

    def __init__(self, source: Source) -> None:
        super().__init__(ExportTables(source))
