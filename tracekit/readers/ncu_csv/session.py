"""Read the session page of an Nsight Compute CSV file, which lists versions, the start time, processes and devices.

Command lines, host names and addresses are not added to any table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

from tracekit import schemas
from tracekit.readers.ncu import devices as gpus
from tracekit.readers.ncu.devices import ATTRIBUTE_PREFIX
from tracekit.readers.ncu_csv.frame import NEWLINE, parse_csv_line
from tracekit.readers.ncu_csv.launches import iso_timestamp_expr

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.readers.ncu_csv.metrics import Metrics

    Attributes = dict[int, dict[str, float | str | None]]
    from tracekit.readers.ncu_csv.frame import NcuPage

TOOL = "NVIDIA Nsight Compute"
MACHINE_COLUMNS = {
    "launch_id": pl.Int64,
    "device_id": pl.Int32,
    "compute_major": pl.Int32,
    "compute_minor": pl.Int32,
    "process_id": pl.Int64,
    "process_name": pl.String,
}
"""The columns of launches from which the tables of devices and processes are built."""
_MAX_ROWS = 10_000


def build_capture_info_table(session: SessionPage, pages: Iterable[str]) -> pl.DataFrame:
    """Build the table ``capture_info`` from the metadata on the session page and the layouts of the pages."""
    metadata = {"tool": TOOL, **session.metadata, "pages": ", ".join(pages)}
    rows = [(name, value) for name, value in metadata.items() if value is not None]
    return pl.DataFrame(rows, ["name", "value"], orient="row")


def build_devices_table(session: SessionPage, launches: pl.DataFrame, metrics: Metrics | None) -> pl.DataFrame:
    """Build the table ``devices`` from the launches, their metrics and the session page, with one row per device."""
    first_launches = launches.drop_nulls("device_id").unique("device_id", keep="first", maintain_order=True)
    rows_by_device = {
        r["device_id"]: r for r in first_launches.select("device_id", "compute_major", "compute_minor").rows(named=True)
    }
    for attributes_by_device in (
        _collect_attributes_by_device(first_launches, metrics) if metrics else {},
        session.devices,
    ):
        for device, attributes in attributes_by_device.items():
            values = {
                name: value for name, value in gpus.compute_device_values(attributes).items() if value is not None
            }
            rows_by_device[device] = {"device_id": device} | rows_by_device.get(device, {}) | values
    rows = [{**rows_by_device[device], "cuda_device_id": device} for device in sorted(rows_by_device)]
    return pl.DataFrame(rows, schemas.polars_schema(schemas.table("devices")))


def build_processes_table(session: SessionPage, launches: pl.DataFrame) -> pl.DataFrame:
    """Return one row per process that has a launch or is listed on the session page, ordered by process id."""
    launched = launches.select("process_id", "process_name").drop_nulls("process_id").unique("process_id", keep="first")
    names = {process: re.split(r"[/\\]", path)[-1] for process, path in session.processes.items()} | dict(
        launched.rows()
    )
    return pl.DataFrame(sorted(names.items()), {"process_id": pl.Int64, "name": pl.String}, orient="row")


def _collect_attributes_by_device(first_launches: pl.DataFrame, metrics: Metrics) -> Attributes:
    """Return the attributes of each device, by device id, from the metrics of the first launch on the device."""
    rows = metrics.select_metrics(lambda name: name.startswith(ATTRIBUTE_PREFIX)).join(
        first_launches, "launch_id", maintain_order="left"
    )
    attributes: Attributes = {}
    for device, name, value, text in rows.select("device_id", "metric", "value", "text").iter_rows():
        attributes.setdefault(device, {})[name.removeprefix(ATTRIBUTE_PREFIX)] = text if value is None else value
    return attributes


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

    def add_rows(self, page: NcuPage, text: bytes) -> None:
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

    def _add_device_attribute(self, page: NcuPage, row: list[str]) -> None:
        for header, value in zip(page.header[1:], row[1:], strict=False):
            match = re.fullmatch(r"Device ([0-9]{1,9})", header)
            if match is not None and value:
                self.devices.setdefault(int(match[1]), {})[row[0]] = value
