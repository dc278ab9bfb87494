"""What the headers of a report say of the capture: facts, GPUs, processes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tracekit.readers.ncu import devices as gpus
from tracekit.readers.ncu_rep.container import text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.readers.ncu_rep.container import Session
    from tracekit.readers.ncu_rep.rows import Row

TARGET = "Nsight Compute Target"
NS = 1_000_000_000


def facts(session: Session) -> Iterator[Row]:
    """The rows of ``capture_info``."""
    known = {
        "tool": "NVIDIA Nsight Compute",
        "tool_version": session.versions.get(TARGET, "").partition(" ")[0],
        "cuda_version": session.versions.get("CUDA Version"),
        "origin_utc_ns": str(session.created_s * NS) if session.created_s else None,
    }
    return ({"name": name, "value": value} for name, value in known.items() if value)


def devices(session: Session) -> Iterator[Row]:
    """The rows of ``devices``; of a GPU that several headers describe, what the last one says."""
    found: dict[int, Row] = {}
    for device in session.devices:
        given = {text(a.name).removeprefix(gpus.PREFIX): _value(a.value) for a in device.attributes}
        known = {**gpus.columns(given), "device_id": device.device_id, "cuda_device_id": device.device_id}
        found[device.device_id] = known | ({"name": text(device.name)} if device.name else {})
    return iter(found.values())


def processes(session: Session) -> Iterator[Row]:
    """The rows of ``processes``: of a path only the file name, for folders may name a user."""
    known = {**({} if session.process_id is None else {session.process_id: ""}), **session.processes}
    return ({"process_id": pid, "name": re.split(r"[/\\]", path)[-1] or None} for pid, path in known.items())


def _value(value: Any) -> float | str | None:
    field = next((f for f in ("whole", "real", "small", "single", "text") if value.HasField(f)), None)
    if field is None:
        return None
    return text(value.text) if field == "text" else float(getattr(value, field))
