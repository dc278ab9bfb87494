"""Traces of the PyTorch profiler against HolisticTraceAnalysis, in events per second.

The file repeats the events of our capture, each time later and under new correlation ids. tracekit creates every table
of events with all its columns; the peer creates its one frame, with its default settings.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import re
import resource
import sys
import time
from pathlib import Path

from measuring import Measure, install, median_of_runs

ROOT = Path(__file__).parents[2]
TRACE = ROOT / "fixtures" / "kineto" / "train.pt.trace.json.gz"
EVENTS = int(os.environ.get("TRACE_EVENTS", "1000000"))
PACKAGES = ("HolisticTraceAnalysis==0.5.0",)
PAUSE_US = 1_000_000
TABLES = ("kernels", "memcpys", "api_calls", "nvtx_ranges", "nvtx_marks")


def plain_trace(folder: Path) -> tuple[Measure, Measure]:
    """Measure tracekit and the peer on a trace."""
    return compared(folder, generate(folder))


def gzipped_trace(folder: Path) -> tuple[Measure, Measure]:
    """Measure tracekit and the peer on a gzipped trace."""
    plain = generate(folder)
    packed = plain.with_name(f"{plain.name}.gz")
    if not packed.exists():
        with gzip.open(packed, "wb", compresslevel=6) as file:
            file.write(plain.read_bytes())
    return compared(folder, packed)


def compared(folder: Path, path: Path) -> tuple[Measure, Measure]:
    """Run tracekit and the peer in fresh processes; medians."""
    peer = install(folder / "hta", PACKAGES)
    own, other = ([python, __file__, str(path)] for python in (sys.executable, peer))
    return median_of_runs(own), median_of_runs(other)


def generate(folder: Path) -> Path:
    """Repeat the events of our capture, once."""
    path = folder / f"trace_{EVENTS}.json"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    text = gzip.decompress(TRACE.read_bytes()).decode()
    head, events = text.split('"traceEvents":[', 1)
    events, named, tail = events.partition(',{"name":"process_name"')
    count = events.count('"ph":')
    making = path.with_suffix(".making")
    with making.open("w", encoding="utf-8") as file:
        file.write(f'{head}"traceEvents":[')
        for number in range(-(-EVENTS // count)):
            file.write(shifted(events, number) + ",")
        file.write((named + tail).removeprefix(","))
    making.rename(path)
    return path


def shifted(events: str, number: int) -> str:
    """Let events be later, and their correlation ids others."""
    later = re.sub(r'"ts":(\d+)', lambda m: f'"ts":{int(m[1]) + number * PAUSE_US}', events)
    return re.sub(r'"(correlation|id)":(\d+)', lambda m: f'"{m[1]}":{int(m[2]) + number * 1_000_000}', later)


def ours(path: str) -> None:
    """JSON to all columns of all tables of events."""
    import tracekit as tk

    with tk.load(path) as trace:
        for name in TABLES:
            trace.table(name)


def peers(path: str) -> None:
    """JSON to the peer's frame."""
    from hta.common.trace_parser import parse_trace_dataframe
    from hta.configs.parser_config import ParserConfig

    parse_trace_dataframe(path, ParserConfig.get_default_cfg())


def run(path: str) -> Measure:
    """Measure whichever is installed here; importing does not count."""
    job = peers if importlib.util.find_spec("hta") else ours
    importlib.import_module("hta.common.trace_parser" if job is peers else "tracekit.readers.kineto.capture")
    began = time.perf_counter()
    job(path)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {"seconds": seconds, "rows": EVENTS, "peak_mb": peak}


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1])))
