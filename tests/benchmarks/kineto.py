"""Traces of the PyTorch profiler against HolisticTraceAnalysis, in events per second.

The file repeats the events of our capture, each time later and under new correlation ids. tracekit creates every table
of events with all its columns; the peer creates its one frame, with its default settings.
"""

from __future__ import annotations

import gzip
import importlib.util
import itertools
import json
import os
import re
import sys
import time
from pathlib import Path

from measuring import Measure, install, median_of_runs, peak_mib

ROOT = Path(__file__).parents[2]
TRACE = ROOT / "fixtures" / "kineto" / "train.pt.trace.json.gz"
EVENTS = int(os.environ.get("TRACE_EVENTS", "1000000"))
RANKS = 8
RANK_EVENTS = int(os.environ.get("RANK_EVENTS", "75000"))
PACKAGES = ("HolisticTraceAnalysis==0.5.0",)
PAUSE_US = 1_000_000
KERNEL = re.compile(r'"cat":"kernel","name":"(?:[^"\\]|\\.)*"')
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


def breakdown(folder: Path) -> tuple[Measure, Measure]:
    """Measure the breakdown of the time of eight ranks, from JSON to the tables."""
    own, other = compared(folder, generate_ranks(folder))
    print(f"breakdown of {RANKS} ranks, CPU seconds: {own['cpu_seconds']:.1f}, peer {other['cpu_seconds']:.1f}")
    return own, other


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


def generate_ranks(folder: Path) -> Path:
    """Repeat the events of our capture for each of several ranks, with a tenth of its kernels as collectives, once."""
    ranks = folder / f"ranks_{RANK_EVENTS}"
    if ranks.exists():
        return ranks
    making = ranks.with_suffix(".making")
    making.mkdir(parents=True, exist_ok=True)
    text = gzip.decompress(TRACE.read_bytes()).decode()
    head, events = text.split('"traceEvents":[', 1)
    events, named, tail = events.partition(',{"name":"process_name"')
    for rank in range(RANKS):
        count = -(-RANK_EVENTS // events.count('"ph":'))
        info = f'"distributedInfo": {{"backend": "nccl", "rank": {rank}, "world_size": {RANKS}}},'
        parts = ",".join(shifted(with_collectives(events, rank + n), n) for n in range(count))
        content = f'{head}{info}"traceEvents":[{parts}{named}{tail}'
        with gzip.open(making / f"rank{rank}.pt.trace.json.gz", "wt", compresslevel=6, encoding="utf-8") as file:
            file.write(content)
    making.rename(ranks)
    return ranks


def with_collectives(events: str, first: int) -> str:
    """Name every tenth kernel after a collective."""
    kernels = itertools.count(first)
    name = '"cat":"kernel","name":"ncclDevKernel_AllReduce_Sum_f32_RING_LL"'
    return KERNEL.sub(lambda m: m[0] if next(kernels) % 10 else name, events)


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


def our_breakdown(folder: str) -> None:
    """JSON of all ranks to the breakdown of their time."""
    import tracekit as tk

    tk.load_many(folder).recipe("gpu_time_breakdown", kernel_name="full")


def peers_breakdown(folder: str) -> None:
    """The same with the peer, which parses the files with as many processes as there are cores."""
    from hta.trace_analysis import TraceAnalysis

    found = TraceAnalysis(trace_dir=folder, include_last_profiler_step=True)
    found.get_comm_comp_overlap(visualize=False)
    found.get_temporal_breakdown(visualize=False)
    found.get_gpu_kernel_breakdown(visualize=False, num_kernels=1 << 20, duration_ratio=1.0)
    found.get_idle_time_breakdown(ranks=list(range(RANKS)), visualize=False)


def peers(path: str) -> None:
    """JSON to the peer's frame."""
    from hta.common.trace_parser import parse_trace_dataframe
    from hta.configs.parser_config import ParserConfig

    parse_trace_dataframe(path, ParserConfig.get_default_cfg())


def run(path: str) -> Measure:
    """Measure whichever is installed here; importing does not count."""
    is_peer, is_set = importlib.util.find_spec("hta") is not None, Path(path).is_dir()
    job = (peers_breakdown if is_set else peers) if is_peer else (our_breakdown if is_set else ours)
    for module in ("hta.trace_analysis",) if is_peer else ("tracekit.readers.kineto.capture", "polars"):
        importlib.import_module(module)
    before, began = cpu_seconds(), time.perf_counter()
    job(path)
    seconds = time.perf_counter() - began
    rows = RANKS * RANK_EVENTS if is_set else EVENTS
    return {"seconds": seconds, "cpu_seconds": cpu_seconds() - before, "rows": rows, "peak_mb": peak_mib()}


def cpu_seconds() -> float:
    """The CPU time of this process and of its children that have ended."""
    return sum(os.times()[:4])


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1])))
