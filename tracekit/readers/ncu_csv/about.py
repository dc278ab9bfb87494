"""The tables of a CSV about the capture and its machine: facts, devices, processes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from tracekit import schemas
from tracekit.readers.ncu import devices as gpus
from tracekit.readers.ncu.devices import PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.readers.ncu_csv.metrics import Metrics
    from tracekit.readers.ncu_csv.session import Session

    Attributes = dict[int, dict[str, float | str | None]]

TOOL = "NVIDIA Nsight Compute"
LAUNCHES = {
    "launch_id": pl.Int64,
    "device_id": pl.Int32,
    "compute_major": pl.Int32,
    "compute_minor": pl.Int32,
    "process_id": pl.Int64,
    "process_name": pl.String,
}
"""Columns of launches that tell of the machine."""


def capture_info(session: Session, pages: Iterable[str]) -> pl.DataFrame:
    """The facts: the tool, what the session page tells, which pages were read."""
    facts = {"tool": TOOL, **session.facts, "pages": ", ".join(pages)}
    known = [(name, value) for name, value in facts.items() if value is not None]
    return pl.DataFrame(known, ["name", "value"], orient="row")


def devices(session: Session, launches: pl.DataFrame, metrics: Metrics | None) -> pl.DataFrame:
    """What launches, their metrics and the session page tell of each device."""
    own = launches.drop_nulls("device_id").unique("device_id", keep="first", maintain_order=True)
    found = {r["device_id"]: r for r in own.select("device_id", "compute_major", "compute_minor").rows(named=True)}
    for known in (_attributes(own, metrics) if metrics else {}, session.devices):
        for device, attributes in known.items():
            told = {name: value for name, value in gpus.columns(attributes).items() if value is not None}
            found[device] = {"device_id": device} | found.get(device, {}) | told
    rows = [{**found[device], "cuda_device_id": device} for device in sorted(found)]
    return pl.DataFrame(rows, schemas.polars_schema(schemas.table("devices")))


def processes(session: Session, launches: pl.DataFrame) -> pl.DataFrame:
    """The processes that launched something, and those of the session page."""
    own = launches.select("process_id", "process_name").drop_nulls("process_id").unique("process_id", keep="first")
    found = {process: re.split(r"[/\\]", path)[-1] for process, path in session.processes.items()} | dict(own.rows())
    return pl.DataFrame(sorted(found.items()), {"process_id": pl.Int64, "name": pl.String}, orient="row")


def _attributes(own: pl.DataFrame, metrics: Metrics) -> Attributes:
    """Attributes of each device, as its first launch has them."""
    rows = metrics.some(lambda name: name.startswith(PREFIX)).join(own, "launch_id", maintain_order="left")
    found: Attributes = {}
    for device, name, value, text in rows.select("device_id", "metric", "value", "text").iter_rows():
        found.setdefault(device, {})[name.removeprefix(PREFIX)] = text if value is None else value
    return found
