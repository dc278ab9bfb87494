"""Build the rows of ``capture_info``, ``devices`` and ``processes`` from the block headers of a report."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tracekit.readers.ncu import devices as gpus
from tracekit.readers.ncu_rep.container import decode_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.readers.ncu_rep.container import SessionInfo
    from tracekit.readers.ncu_rep.rows import Row

TARGET = "Nsight Compute Target"
NS = 1_000_000_000


def iterate_capture_info_rows(session: SessionInfo) -> Iterator[Row]:
    """Yield the rows of ``capture_info``: the tool, the versions and the start of the capture."""
    metadata = {
        "tool": "NVIDIA Nsight Compute",
        "tool_version": session.versions.get(TARGET, "").partition(" ")[0],
        "cuda_version": session.versions.get("CUDA Version"),
        "origin_utc_ns": str(session.created_s * NS) if session.created_s else None,
    }
    return ({"name": name, "value": value} for name, value in metadata.items() if value)


def iterate_device_rows(session: SessionInfo) -> Iterator[Row]:
    """Yield the rows of ``devices``. If several block headers describe the same GPU, the last description is used."""
    rows: dict[int, Row] = {}
    for device in session.devices:
        attributes = {
            decode_text(a.name).removeprefix(gpus.ATTRIBUTE_PREFIX): _decode_device_attribute(a.value)
            for a in device.attributes
        }
        row = {
            **gpus.compute_device_values(attributes),
            "device_id": device.device_id,
            "cuda_device_id": device.device_id,
        }
        rows[device.device_id] = row | ({"name": decode_text(device.name)} if device.name else {})
    return iter(rows.values())


def iterate_process_rows(session: SessionInfo) -> Iterator[Row]:
    """Yield the rows of ``processes``. Folders are removed from paths because they may name a user."""
    paths = {**({} if session.process_id is None else {session.process_id: ""}), **session.processes}
    return ({"process_id": pid, "name": re.split(r"[/\\]", path)[-1] or None} for pid, path in paths.items())


def _decode_device_attribute(value: Any) -> float | str | None:
    field = next((f for f in ("whole", "real", "small", "single", "text") if value.HasField(f)), None)
    if field is None:
        return None
    return decode_text(value.text) if field == "text" else float(getattr(value, field))
