"""Profiles of XLA: 300,000 kernels with their launches and ranges, against the tables of kernels and ops of XProf."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

TITLE = "makers: xplane"
PACKAGES = ("xprof==2.24.2",)
KERNELS, OPS = 300_000, 400


class _Plane:
    """Builds a plane of a profile whose names are numbered in the order of their first use."""

    def __init__(self, message: Any, name: bytes) -> None:
        self.plane = message(name=name)
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        if text not in self._numbers:
            self._numbers[text] = len(self._numbers) + 1
            for entries in (self.plane.stat_metadata, self.plane.event_metadata):
                entry = entries.add(key=self._numbers[text])
                entry.value.id, entry.value.name = self._numbers[text], text.encode()
        return self._numbers[text]

    def add(self, line: Any, event_name: str, start_ns: int, duration_ns: int, **values: int | str) -> None:
        event = line.events.add(
            metadata_id=self.number(event_name), offset_ps=start_ns * 1000, duration_ps=duration_ns * 1000
        )
        for key, value in values.items():
            kind = {"ref_value": self.number(value)} if isinstance(value, str) else {"int64_value": value}
            event.stats.add(metadata_id=self.number(key), **kind)


def write(folder: Path) -> Path:
    """Write a profile, and return its path."""
    from tracekit import schemas

    path = folder / "big.xplane.pb"
    if path.exists():
        return path
    message = schemas.load_message_class("xla_profile", "XPlane")
    gpu, host = _Plane(message, b"/device:GPU:0"), _Plane(message, b"/host:CPU")
    stream = gpu.plane.lines.add(id=7, name=b"Stream #7(Compute)")
    thread, calls = (host.plane.lines.add(id=4, name=name) for name in (b"python3", b"Host Threads/4"))
    details = "regs:40 static_shared:0 dynamic_shared:0 grid:132,1,1 block:128,1,1 occ_pct:50"
    for i in range(KERNELS):
        op, at = f"fusion.{i % OPS}", i * 3_000
        values: dict[str, int | str] = {
            "correlation_id": i + 1,
            "hlo_op": op,
            "hlo_module": "jit_step",
            "program_id": 5,
            "name": f"jit(step)/jvp(layer{i % OPS // 20})/mul",
            "tf_op": "XlaModule:",
        }
        if i % OPS == 0:
            host.add(thread, "train", at, 3_000 * OPS - 10, step_num=i // OPS)
        host.add(thread, op, at + 10, 2_000)
        host.add(calls, "cuLaunchKernel", at + 20, 1_500, **values)
        gpu.add(stream, op.replace(".", "_"), at + 4_000, 2_500, context_id="$$1", kernel_details=details, **values)
    space = schemas.load_message_class("xla_profile", "XSpace")(planes=[gpu.plane, host.plane])
    path.write_bytes(space.SerializeToString())
    return path


def read_with_peer(path: str) -> int:
    """Compute the tables of kernels and ops with XProf, and return the number of their rows."""
    from xprof.convert import raw_to_tool_data

    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "host.xplane.pb"
        profile.symlink_to(path)  # XProf stores results beside the profile, and would read them again
        rows = 0
        for tool in ("kernel_stats", "framework_op_stats"):
            data, _ = raw_to_tool_data.xspace_to_tool_data([str(profile)], tool, {})
            tables = json.loads(data)
            rows += sum(len(table["rows"]) for table in (tables if isinstance(tables, list) else [tables]))
        return rows
