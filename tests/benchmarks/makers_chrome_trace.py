"""A Chrome trace of one million events as VizTracer writes them, against the json module of Python."""

from __future__ import annotations

import json
from pathlib import Path

TITLE = "Chrome trace of 1 million events"
PACKAGES = ()
EVENTS = 1_000_000


def write(folder: Path) -> Path:
    """Write events in the form of VizTracer, and slices with a begin and an end."""
    path = folder / "events.json"
    if path.exists():
        return path
    with path.open("w", encoding="utf-8") as file:
        file.write('{"traceEvents":[')
        for n in range(EVENTS):
            call = n // 3
            name = f"f{call % 500} (a.py:{call % 500})"
            event: dict[str, object] = {"ph": "XBE"[n % 3], "pid": 1, "tid": call % 4, "ts": n * 1.5, "name": name}
            event |= {"cat": "FEE", "dur": 1.25, "args": {"n": n}} if n % 3 == 0 else {}
            file.write(json.dumps(event) + ("," if n < EVENTS - 1 else ""))
        file.write("]}")
    return path


def read_with_peer(path: str) -> int:
    """Read all events into dictionaries."""
    return len(json.loads(Path(path).read_text("utf-8"))["traceEvents"])
