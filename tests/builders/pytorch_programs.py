"""Random exports of small PyTorch programs: several GPUs, processes, threads, iterations and backward passes."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypothesis import strategies as st

if TYPE_CHECKING:
    from pathlib import Path

STRINGS = [
    *("cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020", "cudaMemsetAsync_v3020", "cudaStreamSynchronize_v3020"),
    *("cudaMalloc_v3020", "fread", "fwrite", "read", "gemm", "void gemm<float>(int)", "volta_h884gemm_nn(int)"),
    *("relu", "void relu<float>(float*)", "ampere_s16816gemm_fp16(int)", "gemm_other(float)"),
    *("ncclAllReduce", "[DALI][Executor] RunCPU", "[DALI][Executor] RunMixed"),
]
ID = {s: i + 1 for i, s in enumerate(STRINGS)}
KERNELS = [
    ("gemm", "void gemm<float>(int)"),
    ("gemm", "volta_h884gemm_nn(int)"),
    ("gemm", "gemm_other(float)"),
    ("relu", "void relu<float>(float*)"),
    ("relu", "ampere_s16816gemm_fp16(int)"),
]
CONFIG = '{"model_config": {"num_workers": 2, "pin_memory": false, "emit_nvtx": true, "gradcheck": true}}'
TABLES = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE EXPORT_META_DATA (name TEXT, value TEXT);
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, computeMajor INTEGER, computeMinor INTEGER, smCount INTEGER);
CREATE TABLE SystemInfo (gpuCount TEXT, cpuModel TEXT, driverVersion TEXT, framework TEXT, cudaVersion TEXT,
    cudnnVersion TEXT, nsysVersion TEXT);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT,
    globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
    globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, registersPerThread INTEGER NOT NULL,
    gridX INTEGER NOT NULL, gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL,
    blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL,
    dynamicSharedMemory INTEGER NOT NULL, localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL,
    gridId INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, srcKind INTEGER, dstKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    value INTEGER NOT NULL, bytes INTEGER NOT NULL, memKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION (start INTEGER NOT NULL, end INTEGER NOT NULL,
    deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER,
    globalPid INTEGER, syncType INTEGER NOT NULL, eventId INTEGER NOT NULL);
CREATE TABLE OSRT_API (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER,
    correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL);
"""
Row = tuple[object, ...]


@dataclass
class Export:
    """What is written to an export, row by row."""

    gpus: int = 1
    ranges: list[tuple[int, int, str, int, int]] = field(default_factory=list)
    registered: list[tuple[int, int, str, int, int, int]] = field(default_factory=list)
    calls: list[tuple[int, int, int, int, str, tuple]] = field(default_factory=list)
    files: list[tuple[int, int, str, int, int]] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write it as a SQLite export."""
        db = sqlite3.connect(path)
        db.execute("PRAGMA synchronous = OFF")
        db.executescript(f"BEGIN; {TABLES} COMMIT;")
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", [(i, s) for s, i in ID.items()])
        told = {"EXPORT_SCHEMA_VERSION": "2.9.1", "EXPORT_PRODUCT_VERSION": "2022.1.3.3"}
        db.executemany("INSERT INTO EXPORT_META_DATA VALUES (?, ?)", told.items())
        gpus = [(i, f"GPU {i}", 7, 5, 40) for i in range(self.gpus)]
        db.executemany("INSERT INTO TARGET_INFO_GPU VALUES (?, ?, ?, ?, ?)", gpus)
        system = (str(self.gpus), "a processor", "1.2", "PyTorch 1", "11.7", "", "2022.1")
        db.execute("INSERT INTO SystemInfo VALUES (?, ?, ?, ?, ?, ?, ?)", system)
        marks = [(s, e, 59, text, tid(p, t), None, None, 0) for s, e, text, p, t in self.ranges]
        marks += [(s, e, 59, None, tid(p, t), None, ID[text], d) for s, e, text, p, t, d in self.registered]
        domains = [(p, d, name) for p in (1, 2, 3) for d, name in ((1, "NCCL"), (2, "DALI"))]
        marks += [(0, None, 75, name, tid(p, 1), None, None, d) for p, d, name in domains]
        db.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?, ?, ?)", marks)
        read = [(s, e, 27, tid(p, t), 0, ID[n], 0) for s, e, n, p, t in self.files]
        db.executemany("INSERT INTO OSRT_API VALUES (?, ?, ?, ?, ?, ?, ?)", read)
        for number, call in enumerate(self.calls, 1):
            self._call(db, number, call)
        db.commit()
        db.close()

    @staticmethod
    def _call(db: sqlite3.Connection, number: int, call: tuple[int, int, int, int, str, tuple]) -> None:
        start, end, process, thread, kind, said = call
        name = {"kernel": 0, "memcpy": 1, "memset": 2, "sync": 3, "call": 4}[kind] + 1
        runtime = (start, end, 0, tid(process, thread), number, name, 0)
        db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?, ?, ?)", runtime)
        if kind == "call":
            return
        at, lasts, device, more = said
        ran: Row = (at, at + lasts, device, 1, 7, number, process << 24)
        rows: dict[str, Row] = {
            "kernel": (*ran, ID[KERNELS[more % 5][1]], ID[KERNELS[more % 5][0]], 0, 1 + more % 3, 1, 1, 32, 1, 1),
            "memcpy": (*ran, 64 + more, 1 + more % 2, 0, 2),
            "memset": (*ran, 0, 32 + more, 2),
            "sync": (*ran, 1 + more % 4, 4294967295 if more % 2 else more),
        }
        table = {"kernel": "KERNEL", "memcpy": "MEMCPY", "memset": "MEMSET", "sync": "SYNCHRONIZATION"}[kind]
        row = rows[kind] + ((0, 0, 0, 0, 0) if kind == "kernel" else ())
        db.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_{table} VALUES ({', '.join('?' * len(row))})", row)


def tid(process: int, thread: int) -> int:
    """Pack the number of a thread as exports do."""
    return process << 24 | thread


def marker(op: str, dtype: str | None, shapes: list[tuple[int, ...]], values: str) -> str:
    """Write the marker of a call."""
    mod = "torch.nn.functional" if op != "forward" else "DistributedDataParallel"
    tensors = [f"{{'name': '', 'type': 'tensor', 'shape': {s}, 'dtype': '{dtype}'}}" for s in shapes if dtype]
    arguments = ", ".join([*tensors, *([values] if values else [])])
    return f"{{'mod': '{mod}', 'op': '{op}', 'args': [{arguments}]}}"


def place(path: str, line: int) -> str:
    """Write a trace marker."""
    return f"{{'traceMarker': ['main.py:{line}', 'net.py:{line}'], 'funcStack': '{path}'}}"


OPS = st.sampled_from(["conv2d", "linear", "relu", "matmul", "bmm", "forward", "dataloader", "addmm", "__matmul__"])
PATHS = st.sampled_from(["/<module>/Net::forward/conv(2)", "/<module>/Net::forward/relu", "/<module>/loss", "x"])
SHAPES = st.sampled_from(
    [[], [(8, 3, 16, 16), (6, 3, 5, 5)], [(4, 8), (3, 8), (3,)], [(2, 4, 8), (2, 8, 5)], [(7,), (7,)], [(), (3, 4)]]
)
VALUES = st.sampled_from(
    [
        "",
        "{'name': 'stride', 'type': 'tuple', 'value': (2, 1), 'dtype': 'int'}",
        "{'name': 'p', 'type': 'float', 'value': 0.1}, {'name': 'q', 'type': 'int', 'value': 3, 'dtype': 'int'}",
        "{'name': 'bias', 'type': 'None', 'value': None}",
    ]
)
MARKERS = st.builds(marker, OPS, st.sampled_from(["float16", "float32", None]), SHAPES, VALUES)
KINDS = st.sampled_from(["kernel", "kernel", "kernel", "memcpy", "memset", "sync", "call"])


@st.composite
def programs(draw: st.DrawFn) -> Export:
    """Programs that run in order: each process a loop of ops, most with a backward pass on a thread of its own."""
    export = Export(draw(st.integers(1, 3)))
    for process in range(1, draw(st.integers(1, 3)) + 1):
        layers = draw(st.lists(st.tuples(MARKERS, PATHS, st.integers(0, 2)), min_size=1, max_size=4))
        backward = draw(st.booleans())
        now = draw(st.integers(0, 50))
        for _ in range(draw(st.integers(1, 9 if len(layers) == 1 else 4))):
            now = _step(draw, export, process, layers, now, backward)
    if draw(st.booleans()):
        export.ranges.append((0, 5, CONFIG, 1, 1))
    order = draw(st.permutations(range(len(export.calls)))) if draw(st.booleans()) else range(len(export.calls))
    export.calls = [export.calls[i] for i in order]
    return export


def _step(draw: st.DrawFn, export: Export, process: int, layers: list, now: int, backward: bool) -> int:  # noqa: PLR0917
    """One iteration of a process; gives the time after it."""
    numbers = []
    now += 3 * draw(st.sampled_from([0, 0, 1, 40, 900]))
    for layer, (text, path, calls) in enumerate(layers):
        start = now
        if draw(st.integers(0, 3)):
            export.ranges.append((start, start + 200, place(path, layer), process, 1))
        export.ranges.append((start + 1, start + 190, text, process, 1))
        if backward and draw(st.booleans()):
            numbers.append(len(export.ranges))
            export.ranges.append((start + 2, start + 60, f"aten::op, seq = {numbers[-1]}", process, 1))
        now = _calls(draw, export, process, 1, start + 3, calls) + draw(st.integers(0, 30))
        now = max(now, start + 200)
    now = _calls(draw, export, process, 1, now + 1, draw(st.integers(0, 1)))
    if backward:
        start = now
        for number in reversed(numbers):
            export.ranges.append((now + 2, now + 40, f"OpBackward0, seq = {number}", process, 2))
            now = max(_calls(draw, export, process, 2, now + 4, draw(st.integers(0, 2))), now + 41)
        now = _calls(draw, export, process, 2, now, draw(st.integers(0, 1))) + 3
        export.ranges.append((start, now, marker("backward", None, [], ""), process, 1))
    return now + draw(st.integers(1, 20))


def _calls(draw: st.DrawFn, export: Export, process: int, thread: int, now: int, count: int) -> int:  # noqa: PLR0917
    for _ in range(count):
        lasts, said = draw(st.integers(0, 12)), draw(st.tuples(*[st.integers(0, 15)] * 4))
        at = (now + said[0] * 3, 2 * said[1], said[2] % export.gpus, said[3])
        export.calls.append((now, now + lasts, process, thread, draw(KINDS), at))
        now += lasts + 1
    return now


@st.composite
def disorder(draw: st.DrawFn) -> Export:
    """Ranges and calls at any time, on any thread: they nest, cross and coincide."""
    export = Export(draw(st.integers(1, 2)))
    where = st.tuples(st.integers(0, 30), st.integers(0, 14), st.integers(1, 2), st.integers(1, 2))
    texts = MARKERS | st.builds(place, PATHS, st.integers(0, 1)) | st.just(marker("backward", None, [], ""))
    texts |= st.builds("aten::x, seq = {}".format, st.integers(0, 3))
    for (start, lasts, process, thread), text in draw(st.lists(st.tuples(where, texts), max_size=10)):
        export.ranges.append((start, start + lasts, text, process, thread))
    export.ranges.append((1, 2, marker("relu", "float32", [(3,)], ""), 1, 1))
    for start, lasts, process, thread in draw(st.lists(where, max_size=9)):
        said = draw(st.tuples(*[st.integers(0, 15)] * 4))
        at = (start + said[0], said[1], said[2] % export.gpus, said[3])
        export.calls.append((start, start + lasts, process, thread, draw(KINDS), at))
    for start, lasts, process, thread in draw(st.lists(where, max_size=2)):
        export.files.append((start, start + lasts, draw(st.sampled_from(["fread", "read"])), process, thread))
    registered = st.tuples(where, st.sampled_from([("ncclAllReduce", 1), ("[DALI][Executor] RunCPU", 2)]))
    for (start, lasts, process, thread), (text, domain) in draw(st.lists(registered, max_size=2)):
        export.registered.append((start, start + lasts, text, process, thread, domain))
    return export
