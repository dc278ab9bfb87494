"""An Nsight Compute report to the table of metrics: ours and NVIDIA's ``ncu_report``, same file, same run.

The report holds the results of a fixture many times over.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from measuring import Measure, median_of_runs, peak_mib

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
FIXTURE = ROOT / "fixtures" / "ncu" / "ncu_basic.ncu-rep"
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


def measure(folder: Path) -> tuple[Measure, Measure]:
    """Run tracekit and the peer in fresh processes; medians.

    Raises:
        SystemExit: The two tables do not have the same number of rows.
    """
    path = str(repeated(FIXTURE, folder / f"ncu_{TIMES}.ncu-rep", TIMES))
    own, other = (median_of_runs([sys.executable, __file__, job, path]) for job in JOBS)
    if own["rows"] != other["rows"]:
        raise SystemExit("the two tables differ")
    return own, other


if __name__ == "__main__":
    job = JOBS[sys.argv[1]]
    job(str(FIXTURE))
    began = time.perf_counter()
    rows = job(sys.argv[2]).num_rows
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "rows": rows, "peak_mb": peak_mib()}))
