"""Read a JSON export of Nsight Systems as declared tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.readers.nsys.export import Export
from tracekit.readers.nsys_jsonlines.lines import MARKS
from tracekit.registry.interface import Undecoded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.readers.nsys_jsonlines.tables import LineTables


class JsonLinesCapture(Export):
    """An open JSON export of Nsight Systems."""

    tables: LineTables

    def __init__(self, tables: LineTables) -> None:
        super().__init__(tables)

    def count_undecoded(self) -> Mapping[str, Undecoded]:
        """Return the number of events that are in no table, by kind."""
        return {
            kind: Undecoded(count, is_auxiliary=kind == MARKS) for kind, count in self.tables.undecoded.items() if count
        }
