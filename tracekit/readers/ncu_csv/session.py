"""Read the session page of an Nsight Compute CSV file, which lists versions, the start time, processes and devices.

Command lines, host names and addresses are not added to any table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

from tracekit.readers.ncu_csv.frame import NEWLINE, parse_csv_line
from tracekit.readers.ncu_csv.launches import iso_timestamp_expr

if TYPE_CHECKING:
    from tracekit.readers.ncu_csv.frame import Page

_MAX_ROWS = 10_000


@dataclass(slots=True)
class SessionPage:
    """The contents of the session page of an Nsight Compute CSV file.

    Attributes:
        attributes: Values of the attributes of the session, by printed name.
        processes: Path of the program of each process, by process id.
        devices: Attributes of each device by name, by device id.
    """

    attributes: dict[str, str] = field(default_factory=dict)
    processes: dict[int, str] = field(default_factory=dict)
    devices: dict[int, dict[str, float | str | None]] = field(default_factory=dict)

    def add_rows(self, page: Page, text: bytes) -> None:
        """Add the rows of one of the tables on the session page."""
        for line in text.split(b"\n", _MAX_ROWS)[:_MAX_ROWS]:
            row = parse_csv_line(line.decode("utf-8", "replace").replace(NEWLINE, "\n"))
            if len(row) < len(page.header):
                continue
            if page.header[0] == "Session Attribute":
                self.attributes[row[0]] = row[1]
            elif page.header[0] == "Process Id" and re.fullmatch(r"[0-9]{1,9}", row[0]):
                self.processes[int(row[0])] = row[1]
            elif page.header[0] == "Device Attribute":
                self._add_device_attribute(page, row)

    @property
    def metadata(self) -> dict[str, str | None]:
        """The versions and the start time from the session page, keyed by their names in the table ``capture_info``."""
        version = self.attributes.get("Nsight Compute Target", "").split(" ")[0]
        return {
            "tool_version": version or None,
            "cuda_version": self.attributes.get("CUDA Version"),
            "created_local": pl.select(iso_timestamp_expr(pl.lit(self.attributes.get("Created"), pl.String))).item(),
        }

    def _add_device_attribute(self, page: Page, row: list[str]) -> None:
        for header, value in zip(page.header[1:], row[1:], strict=False):
            match = re.fullmatch(r"Device ([0-9]{1,9})", header)
            if match is not None and value:
                self.devices.setdefault(int(match[1]), {})[row[0]] = value
