"""Traces of the PyTorch profiler, read with the standard library only; and files made like them."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterable
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

TRACE = Path(__file__).parents[2] / "fixtures" / "kineto" / "train.pt.trace.json.gz"
SAME_UNDER_NSYS = Path(__file__).parents[2] / "fixtures" / "ops" / "kineto_nsys.nsys-rep"
CORPUS = Path(__file__).parents[3] / "shared" / "corpus" / "kineto"
CALLS = {"cuda_runtime": "CUDA runtime", "cuda_driver": "CUDA driver"}
RANGES = ("cpu_op", "user_annotation", "python_function")
COPY = re.compile(r"Memcpy (.)to(.) \((.+) -> (.+)\)")
SIDES = {"H": "Host", "D": "Device"}
Row = dict[str, Any]


def events(path: Path) -> list[Row]:
    """The events of a trace; times as decimals."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    found: list[Row] = json.loads(text, parse_float=Decimal)["traceEvents"]
    return found


def nanoseconds(value: Decimal | int) -> int:
    """A time in µs as whole ns."""
    return int((Decimal(value) * 1000).quantize(Decimal(1), ROUND_HALF_UP))


def tables(listed: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows that a reader should make of events: what is certain of them."""
    found: dict[str, list[Row]] = {table: [] for table, _ in KINDS.values()}
    for event in listed:
        kind = KINDS.get((event.get("ph"), event.get("cat")))
        if kind is not None:
            found[kind[0]].append(kind[1](event))
    origin = min((r.get("start_ns", r.get("timestamp_ns")) for rows in found.values() for r in rows), default=0)
    for rows in found.values():
        for row in rows:
            row |= {name: row[name] - origin for name in ("start_ns", "end_ns", "timestamp_ns") if name in row}
    return found


def times(event: Row) -> Row:
    """Start and end."""
    start = nanoseconds(event["ts"])
    return {"start_ns": start, "end_ns": start + nanoseconds(event["dur"])}


def thread(event: Row) -> Row:
    """Process and thread of an event on the CPU."""
    return {"process_id": event["pid"], "thread_id": event["tid"]}


def on_gpu(event: Row) -> Row:
    """What all events of a GPU tell."""
    args = event["args"]
    place = {"device_id": args["device"], "context_id": args["context"], "stream_id": args["stream"]}
    return {**times(event), **place, "correlation_id": args["correlation"]}


def kernel(event: Row) -> Row:
    """What a kernel tells."""
    args = event["args"]
    sizes = {f"{name}_{axis}": args[name][i] for name in ("grid", "block") for i, axis in enumerate("xyz")}
    memory = {
        "registers_per_thread": args["registers per thread"],
        "dynamic_shared_memory_bytes": args["shared memory"],
    }
    return {**on_gpu(event), "name": event["name"], **sizes, **memory}


def memcpy(event: Row) -> Row:
    """What a copy tells."""
    way = COPY.fullmatch(event["name"])
    assert way
    kinds = {"copy_kind": f"{SIDES[way[1]]}-to-{SIDES[way[2]]}", "src_memory_kind": way[3], "dst_memory_kind": way[4]}
    return {**on_gpu(event), "bytes": event["args"]["bytes"], **kinds}


def memset(event: Row) -> Row:
    """What a setting of memory tells."""
    kind = event["name"].removeprefix("Memset (").removesuffix(")")
    return {**on_gpu(event), "bytes": event["args"]["bytes"], "memory_kind": kind}


def call(event: Row) -> Row:
    """What a call tells."""
    own = {"api": CALLS[event["cat"]], "name": event["name"], "correlation_id": event["args"]["correlation"]}
    return {**times(event), **thread(event), **own}


def range_(event: Row) -> Row:
    """What an op, an annotation or a Python function tells."""
    return {**times(event), **thread(event), "name": event["name"], "domain": event["cat"]}


def mark(event: Row) -> Row:
    """What an event without a duration tells."""
    return {"timestamp_ns": nanoseconds(event["ts"]), **thread(event), "name": event["name"]}


def overhead(event: Row) -> Row:
    """What an interval of work for the profiler tells: −1 stands for an unknown process."""
    known = event["pid"] >= 0
    return {**times(event), "name": event["name"], **(thread(event) if known else dict.fromkeys(thread(event)))}


KINDS: dict[tuple[Any, Any], tuple[str, Callable[[Row], Row]]] = {
    ("X", "kernel"): ("kernels", kernel),
    ("X", "gpu_memcpy"): ("memcpys", memcpy),
    ("X", "gpu_memset"): ("memsets", memset),
    **dict.fromkeys((("X", name) for name in CALLS), ("api_calls", call)),
    **dict.fromkeys((("X", name) for name in RANGES), ("nvtx_ranges", range_)),
    ("i", "cpu_instant_event"): ("nvtx_marks", mark),
    ("X", "overhead"): ("overheads", overhead),
}


def trace(listed: Iterable[str | Row], **facts: Any) -> str:
    """A document with some events, given as text or as what is to be written."""
    made = ",\n".join(e if isinstance(e, str) else json.dumps(e) for e in listed)
    head = "".join(f"{json.dumps(k)}: {json.dumps(v)}, " for k, v in facts.items())
    return f'{{"schemaVersion": 1, "deviceProperties": [], {head}"traceEvents": [{made}]}}'


def op(name: str = "aten::add", ts: str = "10.5", dur: str = "2.25", **more: Any) -> str:
    """A CPU op as text: times exactly as given."""
    rest = "".join(f", {json.dumps(k)}: {json.dumps(v)}" for k, v in more.items())
    head = f'{{"ph": "X", "cat": "cpu_op", "name": {json.dumps(name)}, "pid": 1, "tid": 2'
    return f'{head}, "ts": {ts}, "dur": {dur}{rest}}}'
