"""The session page of a report: the tool, the time, the devices. Command lines, hosts and addresses are left out."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

from tracekit.readers.ncu_csv.frame import NEWLINE, cells
from tracekit.readers.ncu_csv.launches import moment

if TYPE_CHECKING:
    from tracekit.readers.ncu_csv.frame import Page

_MOST_ROWS = 10_000


@dataclass(slots=True)
class Session:
    """What a session page tells.

    Attributes:
        attributes: Facts of the session by name.
        processes: Paths of programs by process.
        devices: Attributes of each device by its number.
    """

    attributes: dict[str, str] = field(default_factory=dict)
    processes: dict[int, str] = field(default_factory=dict)
    devices: dict[int, dict[str, float | str | None]] = field(default_factory=dict)

    def add(self, page: Page, text: bytes) -> None:
        """Take some rows of one of the four tables."""
        for line in text.split(b"\n", _MOST_ROWS)[:_MOST_ROWS]:
            row = cells(line.decode("utf-8", "replace").replace(NEWLINE, "\n"))
            if len(row) < len(page.header):
                continue
            if page.header[0] == "Session Attribute":
                self.attributes[row[0]] = row[1]
            elif page.header[0] == "Process Id" and re.fullmatch(r"[0-9]{1,9}", row[0]):
                self.processes[int(row[0])] = row[1]
            elif page.header[0] == "Device Attribute":
                self._add_devices(page, row)

    @property
    def facts(self) -> dict[str, str | None]:
        """What is public of it, by the names of ``capture_info``."""
        version = self.attributes.get("Nsight Compute Target", "").split(" ")[0]
        return {
            "tool_version": version or None,
            "cuda_version": self.attributes.get("CUDA Version"),
            "created_local": pl.select(moment(pl.lit(self.attributes.get("Created"), pl.String))).item(),
        }

    def _add_devices(self, page: Page, row: list[str]) -> None:
        for header, value in zip(page.header[1:], row[1:], strict=False):
            number = re.fullmatch(r"Device ([0-9]{1,9})", header)
            if number is not None and value:
                self.devices.setdefault(int(number[1]), {})[row[0]] = value
