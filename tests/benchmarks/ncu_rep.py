"""An Nsight Compute report to the table of metrics: ours and NVIDIA's ``ncu_report``, same file, same run.

``python ncu_rep.py`` makes a large report out of a fixture, measures both in fresh processes, and prints a table.
``measure`` is what ``make bench`` needs.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
FIXTURE = ROOT / "fixtures" / "ncu" / "ncu_basic.ncu-rep"
OUT = ROOT / "out" / "bench"
RUNS = int(os.environ.get("RUNS", "5"))
TIMES = int(os.environ.get("NCU_TIMES", "50"))
COLUMNS = ["launch_id", "metric", "value", "text", "unit", "instances"]


def ours(path: str) -> pa.Table:
    """The table as tracekit reads it."""
    import tracekit as tk

    with tk.load(path) as trace:
        return trace.table("ncu_metrics", COLUMNS)


def peer(path: str) -> pa.Table:
    """The same with ``ncu_report``: rows put into Arrow columns."""
    import ncu_report

    report, rows = ncu_report.load_report(path), []
    ranges = (report.range_by_idx(i) for i in range(report.num_ranges()))
    actions = (found.action_by_idx(i) for found in ranges for i in range(found.num_actions()))
    for number, action in enumerate(actions):
        for name in action.metric_names():
            metric = action.metric_by_name(name)
            value = metric.value()
            is_text = isinstance(value, str)
            number_or_none, text_or_none = (None, value) if is_text else (float(value), None)
            rows.append((number, name, number_or_none, text_or_none, metric.unit() or None, metric.num_instances()))
    types = [pa.int64(), pa.string(), pa.float64(), pa.string(), pa.string(), pa.int32()]
    arrays = [pa.array(c, t) for c, t in zip(zip(*rows, strict=True), types, strict=True)]
    encoded = [a.dictionary_encode() if n in ("metric", "unit") else a for n, a in zip(COLUMNS, arrays, strict=True)]
    return pa.table(encoded, names=COLUMNS)


JOBS: dict[str, Callable[[str], pa.Table]] = {"ours": ours, "peer": peer}


def repeated(source: Path, target: Path, times: int) -> Path:
    """Write a report that holds the results of another one many times over."""
    data = source.read_bytes()
    (size,) = struct.unpack_from("<I", data, 4)
    start = 8 + size
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data + _without_names(data[start:]) * (times - 1))
    return target


def _without_names(blocks: bytes) -> bytes:
    """Return blocks with their tables of names left out, as those of the first copy go on counting."""
    from tracekit.readers.ncu_rep.container import message_class

    out, at = b"", 0
    while at < len(blocks):
        (size,) = struct.unpack_from("<I", blocks, at)
        header = message_class("BlockHeader").FromString(blocks[at + 4 : at + 4 + size])
        payload = blocks[at + 4 + size : at + 4 + size + header.payload_bytes]
        header.ClearField("names")
        made = header.SerializeToString()
        out += struct.pack("<I", len(made)) + made + payload
        at += 4 + size + len(payload)
    return out


def measure(runs: int = RUNS, times: int = TIMES) -> tuple[dict[str, float], dict[str, float]]:
    """Run both in fresh processes, one after the other: medians of seconds, rows, peak MB; of us and of the peer."""
    path = repeated(FIXTURE, OUT / f"ncu_{times}.ncu-rep", times)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in JOBS}
    for _ in range(runs):
        for name, results in found.items():
            command = [sys.executable, __file__, name, str(path)]
            results.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    medians = {n: {k: statistics.median(r[k] for r in results) for k in results[0]} for n, results in found.items()}
    if medians["ours"]["rows"] != medians["peer"]["rows"]:
        raise SystemExit("the two tables differ")
    return medians["ours"], medians["peer"]


def main() -> None:
    """Print a table, or run one job: ``ncu_rep.py JOB FILE`` prints seconds, rows, peak MB."""
    if len(sys.argv) > 1:
        job = JOBS[sys.argv[1]]
        job(str(FIXTURE))
        began = time.perf_counter()
        rows = job(sys.argv[2]).num_rows
        seconds = time.perf_counter() - began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(json.dumps({"seconds": seconds, "rows": rows, "peak_mb": peak}))
        return
    own, other = measure()
    print("| job | rows | s | M rows/s | peak MB | ncu_report s | its peak MB | times faster |")
    print("| --- " * 8 + "|")
    print(
        f"| ncu-rep: metrics → Arrow | {own['rows']:,.0f} | {own['seconds']:.3f} "
        f"| {own['rows'] / own['seconds'] / 1e6:.2f} | {own['peak_mb']:.0f} | {other['seconds']:.2f} "
        f"| {other['peak_mb']:.0f} | {other['seconds'] / own['seconds']:.1f} |"
    )


if __name__ == "__main__":
    main()
