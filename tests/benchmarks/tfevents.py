"""Event files against TensorBoard's own loader and tbparse, events a second: ``python tests/benchmarks/tfevents.py``.

The file holds one point of a curve an event, of 20 curves in turn. Ours makes the table of points with all its columns;
tbparse makes its frame of them, with wall times; TensorBoard reads events one by one and keeps nothing. ``measured``
gives the lines of the table to ``make bench``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import statistics
import struct
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
EVENTS = int(os.environ.get("SCALAR_EVENTS", "500000"))
PACKAGES = ("tensorboard==2.21.0", "tbparse==0.0.9", "setuptools<81")
CURVES = 20

Measure = dict[str, float]


def measured(folder: Path, runs: int) -> list[tuple[str, Measure, Measure | None]]:
    """Measure in fresh processes: what it is, medians of ours, medians of the peer."""
    path = generate(folder)
    peer = install(folder / "tbparse")
    own = median(sys.executable, path, runs, "ours")
    return [
        ("TensorBoard events: points → Arrow, peer tbparse", own, median(peer, path, 1, "tbparse")),
        ("the same, peer TensorBoard, which only reads", own, median(peer, path, 1, "tensorboard")),
    ]


def generate(folder: Path) -> Path:
    """Write a file of points, once."""
    path = folder / f"scalars_{EVENTS}" / "events.out.tfevents.1.bench"
    if path.exists():
        return path
    sys.path.insert(0, str(ROOT))
    from tests.readers.tfevents_files import VERSION
    from tracekit.crc32c import masked_crc32c

    def framed(data: bytes) -> bytes:
        size = struct.pack("<Q", len(data))
        return size + struct.pack("<I", masked_crc32c(size)) + data + struct.pack("<I", masked_crc32c(data))

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


def install(folder: Path) -> str:
    """Install the peers in an environment of their own, once."""
    if not (folder / "installed").exists():
        venv.create(folder, with_pip=True)
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", *PACKAGES], check=True)
        (folder / "installed").touch()
    return str(folder / "bin" / "python")


def median(python: str, path: Path, runs: int, job: str) -> Measure:
    """Run in fresh processes; medians."""
    command = [python, __file__, str(path), job]
    lines = [subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(runs)]
    found = [json.loads(text.splitlines()[-1]) for text in lines]
    return {key: statistics.median(f[key] for f in found) for key in found[0]}


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
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {"seconds": seconds, "rows": EVENTS, "peak_mb": peak}


def main() -> None:
    """Print the table."""
    heads = ["job", "events", "s", "M events/s", "peak MB", "peer s", "peer MB", "times faster"]
    print("|", " | ".join(heads), "|\n|", " | ".join(["---"] * len(heads)), "|")
    for job, own, other in measured(ROOT / "out" / "bench", int(os.environ.get("RUNS", "3"))):
        compared = "" if other is None else f"{other['seconds']:.2f} | {other['peak_mb']:.0f}"
        faster = "" if other is None else f"{other['seconds'] / own['seconds']:.1f}"
        rate = own["rows"] / own["seconds"] / 1e6
        row = [job, f"{own['rows']:,.0f}", f"{own['seconds']:.2f}", f"{rate:.2f}", f"{own['peak_mb']:.0f}"]
        print("|", " | ".join([*row, compared, faster]), "|")


if __name__ == "__main__" and len(sys.argv) > 1:
    print(json.dumps(run(*sys.argv[1:])))
elif __name__ == "__main__":
    main()
