"""Traces of the PyTorch profiler against HolisticTraceAnalysis, events a second: ``python tests/benchmarks/kineto.py``.

The file repeats the events of our capture, each time later and under new correlation ids. Ours makes every table of
events with all its columns; the peer makes its one frame, with its default settings. ``measured`` gives the lines of
the table to ``make bench``.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
TRACE = ROOT / "fixtures" / "kineto" / "train.pt.trace.json.gz"
EVENTS = int(os.environ.get("TRACE_EVENTS", "1000000"))
PACKAGES = ("HolisticTraceAnalysis==0.5.0",)
PAUSE_US = 1_000_000
TABLES = ("kernels", "memcpys", "api_calls", "nvtx_ranges", "nvtx_marks")

Measure = dict[str, float]


def measured(folder: Path, runs: int) -> list[tuple[str, Measure, Measure | None]]:
    """Measure in fresh processes: what it is, medians of ours, medians of the peer."""
    plain = generate(folder)
    packed = plain.with_name(f"{plain.name}.gz")
    if not packed.exists():
        with gzip.open(packed, "wb", compresslevel=6) as file:
            file.write(plain.read_bytes())
    peer = install(folder / "hta")
    return [
        ("PyTorch profiler trace: events → Arrow", median(sys.executable, plain, runs), median(peer, plain, runs)),
        ("the same, gzipped", median(sys.executable, packed, runs), median(peer, packed, runs)),
    ]


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


def install(folder: Path) -> str:
    """Install the peer in an environment of its own, once."""
    if not (folder / "installed").exists():
        venv.create(folder, with_pip=True)
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", *PACKAGES], check=True)
        (folder / "installed").touch()
    return str(folder / "bin" / "python")


def median(python: str, path: Path, runs: int) -> Measure:
    """Run in fresh processes; medians."""
    command = [python, __file__, str(path)]
    lines = [subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(runs)]
    found = [json.loads(text.splitlines()[-1]) for text in lines]
    return {key: statistics.median(f[key] for f in found) for key in found[0]}


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


def main() -> None:
    """Print the table."""
    heads = ["job", "events", "s", "M events/s", "peak MiB", "peer s", "peer MiB", "times faster"]
    print("|", " | ".join(heads), "|\n|", " | ".join(["---"] * len(heads)), "|")
    for job, own, other in measured(ROOT / "out" / "bench", int(os.environ.get("RUNS", "3"))):
        compared = "" if other is None else f"{other['seconds']:.2f} | {other['peak_mb']:.0f}"
        faster = "" if other is None else f"{other['seconds'] / own['seconds']:.1f}"
        rate = own["rows"] / own["seconds"] / 1e6
        row = [job, f"{own['rows']:,.0f}", f"{own['seconds']:.2f}", f"{rate:.2f}", f"{own['peak_mb']:.0f}"]
        print("|", " | ".join([*row, compared, faster]), "|")


if __name__ == "__main__" and len(sys.argv) > 1:
    print(json.dumps(run(sys.argv[1])))
elif __name__ == "__main__":
    main()
