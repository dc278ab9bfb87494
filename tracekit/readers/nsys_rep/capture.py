"""Read an Nsight Systems report as declared tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.readers.nsys.capture import NsysCapture
from tracekit.readers.nsys_rep.names import TABLES_OF_UNDECODED_EVENTS
from tracekit.readers.nsys_rep.report import NsysReport

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tracekit.registry.interface import Undecoded
    from tracekit.registry.source import Source


class NsysReportCapture(NsysCapture):
    """An open Nsight Systems report, whose declared tables are read column by column on demand."""

    def __init__(self, source: Source) -> None:
        self.report = NsysReport(source)
        super().__init__(self.report)

    def count_undecoded(self) -> Mapping[str, Undecoded]:
        """Return the number and size in bytes of the events that no declared table contains, by class of event."""
        return self.undecoded

    def list_undecodable_tables(self) -> Collection[str]:
        """Return the names of the tables to which undecoded events of a known class may belong."""
        return frozenset(table for tables in TABLES_OF_UNDECODED_EVENTS.values() for table in tables)

    @property
    def undecoded(self) -> dict[str, Undecoded]:
        """Number and size in bytes of the events that no declared table contains, by class of event."""
        return self.report.undecoded
