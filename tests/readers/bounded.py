"""Reads a file with little memory and time: ``python -m tests.readers.bounded PATH FORMAT BYTES SECONDS``.

The system refuses more address space than ``BYTES`` beyond what importing takes, and ends the process after ``SECONDS``
of processor time. Prints what was said of each table, the most memory held beyond that, and the seconds, as JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import time
import warnings
from pathlib import Path

import polars as pl
import pyarrow as pa
import tracekit as tk
from pyarrow import compute, ipc, parquet
from tracekit.readers.common.protobuf.decoding import Buffer

FIRST = Path(__file__).parents[2] / "fixtures" / "cpu_only.nsys-rep"
STATUS = Path("/proc/self/status")


def held(name: str) -> int:
    lines = dict(line.split(":", 1) for line in STATUS.read_text("ascii", "replace").splitlines())
    return int(lines[name].split()[0]) << 10


def read(path: str, format: str, table: str | None) -> dict[str, str]:
    said: dict[str, str] = {}
    try:
        with tk.load(path, format) as trace:
            for name in [table] if table else trace.tables:
                try:
                    said[name] = f"{trace[name].num_rows} rows"
                except tk.TracekitError as e:
                    said[name] = str(e)
            said["undecoded"] = f"{len(trace.undecoded)} rows"
    except tk.TracekitError as e:
        said["load"] = str(e)
    return said


def main(path: str, format: str, limit: str, seconds: str, table: str = "") -> None:
    warnings.simplefilter("ignore")
    with tk.load(FIRST) as trace:  # what is imported when it is first needed
        trace.frame("threads").collect()
    _ = pl, pa, compute, ipc, parquet, Buffer(1)
    size = held("VmSize")
    resource.setrlimit(resource.RLIMIT_AS, (size + int(limit), resource.RLIM_INFINITY))
    spent = int(time.process_time() + float(seconds)) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (spent, spent))
    Path("/proc/self/clear_refs").write_text("5", "ascii")
    before, began = held("VmHWM"), time.process_time()
    said = read(path, format, table or None)
    print(json.dumps({"said": said, "bytes": held("VmHWM") - before, "seconds": time.process_time() - began}))


if __name__ == "__main__":
    main(*sys.argv[1:])
