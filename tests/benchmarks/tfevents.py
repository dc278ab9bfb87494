"""Event files against TensorBoard's own loader and tbparse, in events per second.

The file holds one point of a curve per event, of 20 curves in turn. tracekit creates the table of points with all its
columns; tbparse creates its frame of them, with wall times; TensorBoard reads events one by one and keeps nothing.
"""

from __future__ import annotations

import importlib.util
import json
import os
import struct
import sys
import time
from pathlib import Path

from measuring import Measure, install, median_of_runs, peak_mib

ROOT = Path(__file__).parents[2]
EVENTS = int(os.environ.get("SCALAR_EVENTS", "500000"))
PACKAGES = ("tensorboard==2.21.0", "tbparse==0.0.9", "setuptools<81")
CURVES = 20


def against(peer: str, folder: Path) -> tuple[Measure, Measure]:
    """Run tracekit and a peer in fresh processes; medians."""
    path = str(generate(folder))
    python = install(folder / "tbparse", PACKAGES)
    return median_of_runs([sys.executable, __file__, path, "ours"]), median_of_runs([python, __file__, path, peer])


def generate(folder: Path) -> Path:
    """Write a file of points, once."""
    path = folder / f"scalars_{EVENTS}" / "events.out.tfevents.1.bench"
    if path.exists():
        return path
    sys.path.insert(0, str(ROOT))
    from tests.builders.tfevents import VERSION
    from tracekit.native.crc32c import compute_masked_crc32c

    def framed(data: bytes) -> bytes:
        size = struct.pack("<Q", len(data))
        return (
            size
            + struct.pack("<I", compute_masked_crc32c(size))
            + data
            + struct.pack("<I", compute_masked_crc32c(data))
        )

    path.parent.mkdir(parents=True, exist_ok=True)
    making = path.with_name("making")
    with making.open("wb") as file:
        file.write(framed(VERSION))
        for number in range(EVENTS):
            file.write(framed(point(number)))
    making.rename(path)
    return path


def point(number: int) -> bytes:
    """An event with one point."""
    tag = b"train/curve_%d" % (number % CURVES)
    value = b"\x0a" + bytes([len(tag)]) + tag + b"\x15" + struct.pack("<f", number / EVENTS)
    summary = b"\x0a" + bytes([len(value)]) + value
    step = bytearray()
    rest = number // CURVES
    while rest > 127:
        step.append(rest % 128 | 128)
        rest >>= 7
    return (
        b"\x09"
        + struct.pack("<d", 1.7e9 + number / 100)
        + b"\x10"
        + bytes((*step, rest))
        + b"\x2a"
        + bytes([len(summary)])
        + summary
    )


def ours(path: str) -> int:
    """All columns of all points."""
    import tracekit as tk

    with tk.load(path) as trace:
        return int(trace.table("scalars").num_rows)


def tbparse(path: str) -> int:
    """The frame of the points, with wall times."""
    from tbparse import SummaryReader

    return len(SummaryReader(path, extra_columns={"wall_time"}).scalars)


def tensorboard(path: str) -> int:
    """Every event, one after the other."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    return sum(len(event.summary.value) for event in LegacyEventFileLoader(path).Load())


MODULES = {
    ours: "tracekit.readers.tfevents.capture",
    tbparse: "tbparse",
    tensorboard: "tensorboard.backend.event_processing.event_file_loader",
}


def run(path: str, name: str) -> Measure:
    """Measure one; importing does not count."""
    job = next(j for j in MODULES if j.__name__ == name)
    importlib.import_module(MODULES[job])
    began = time.perf_counter()
    rows = job(path)
    seconds = time.perf_counter() - began
    if rows != EVENTS:
        raise SystemExit(f"{name} read {rows} points of {EVENTS}")
    return {"seconds": seconds, "rows": EVENTS, "peak_mb": peak_mib()}


if __name__ == "__main__":
    print(json.dumps(run(*sys.argv[1:])))
