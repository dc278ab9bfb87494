"""Read an Nsight Systems report as declared tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.readers.nsys.capture import NsysCapture
from tracekit.readers.nsys_rep.report import Report

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.source import Source


class RepCapture(NsysCapture):
    """An open report whose declared tables are read on demand and by column."""

    def __init__(self, source: Source) -> None:
        self.report = Report(source)
        super().__init__(self.report)

    def count_undecoded(self) -> Mapping[str, int]:
        """Return the number of events in the report that no declared table contains, by event name."""
        return self.undecoded

    @property
    def undecoded(self) -> dict[str, int]:
        """Number of events in the report that no declared table contains, by event name."""
        return self.report.undecoded
