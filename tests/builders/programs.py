"""Programs of a few events, whose steps are diagnosed."""

from __future__ import annotations

import functools
import pickle
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl
from tests.builders.frames import declared
from tracekit.core.diagnosis import Options, Why, causes, diagnose
from tracekit.core.diagnosis.events import Events, read_events
from tracekit.core.diagnosis.inspection import Inspection
from tracekit.core.diagnosis.model import Model, build_model
from tracekit.core.rollup import Rollup

if TYPE_CHECKING:
    from tracekit.core.diagnosis.cures import Cure

US, MS = 1_000, 1_000_000
GEMM = "ampere_sgemm_128x64_nn"
HALF_GEMM = "ampere_fp16_s16816gemm_fp16_128x64_nn"
LAUNCH = "cudaLaunchKernel_v7000"


@dataclass
class Program:
    """A program, to which events are added. All times are in ns.

    Attributes:
        process: Id of the process of the events that are added next.
        thread: Id of the thread on which ranges and calls are added by default.
        now: Time at which the next event of ``run`` begins.
    """

    process: int | None = 1
    thread: int | None = 1
    now: int = 0
    tables: defaultdict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    free: dict[int, int] = field(default_factory=dict)

    def add(self, table: str, **row: object) -> dict[str, Any]:
        """Add a row of a table."""
        rows = self.tables[table]
        rows.append({"process_id": self.process, **row})
        return rows[-1]

    def range(self, name: str | None, start: int, end: int | None, **row: object) -> None:
        """Add a range."""
        values = {"thread_id": self.thread, "kind": "push_pop", "domain_id": 0, "name": name, **row}
        number = len(self.tables["nvtx_ranges"])
        self.add("nvtx_ranges", range_id=number, start_ns=start, end_ns=end, **values)

    def call(self, name: str | None, start: int, end: int, **row: object) -> int:
        """Add an API call, and return its correlation id."""
        number = len(self.tables["api_calls"]) + 1
        values = {"thread_id": self.thread, "correlation_id": number, "name_id": 0, "name": name, **row}
        self.add("api_calls", api_call_id=number, start_ns=start, end_ns=end, **values)
        return number

    def kernel(self, call: int | None, start: int, end: int, name: str = "k", **row: object) -> None:
        """Add a kernel."""
        grid = dict.fromkeys(("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"), 1)
        values = {**grid, "grid_x": 1000, "block_x": 256, "name": name, "short_name": name, **row}
        self._run("kernel_id", call, start, end, values)

    def copy(self, call: int | None, start: int, end: int, kind: str = "Host-to-Device", **row: object) -> None:
        """Add a memory copy."""
        values = {"copy_kind": kind, "bytes": 1000, "src_memory_kind": "Pinned", "dst_memory_kind": "Device", **row}
        self._run("memcpy_id", call, start, end, values)

    def memset(self, call: int | None, start: int, end: int, **row: object) -> None:
        """Add a memory set."""
        self._run("memset_id", call, start, end, {"bytes": 1000, **row})

    def graph(self, call: int | None, start: int, end: int, **row: object) -> None:
        """Add the launch of a CUDA graph that was recorded as a whole."""
        values = {"graph_id": 1, "graph_exec_id": 1, **row}
        self._run("graph_launch_id", call, start, end, values)

    def _run(self, key: str, call: int | None, start: int, end: int, values: dict[str, Any]) -> None:
        table = {"memcpy_id": "memcpys", "graph_launch_id": "graph_launches"}.get(key, key.removesuffix("_id") + "s")
        place = {"device_id": 0, "context_id": 1, "stream_id": 7, "correlation_id": call}
        self.add(table, **{key: len(self.tables[table]), **place, "start_ns": start, "end_ns": end, **values})

    def device(self, **row: object) -> None:
        """Add a GPU."""
        self.add("devices", **{"device_id": 0, "name": "NVIDIA H100 80GB HBM3", "sm_count": 132, **row})

    def sync(self, call: int, start: int, end: int, **row: object) -> None:
        """Add a synchronization, or a wait for an event."""
        place = {"device_id": 0, "context_id": 1, "stream_id": 7, "correlation_id": call, "event_id": 0}
        self.add("syncs", **{"sync_id": len(self.tables["syncs"]), **place, "start_ns": start, "end_ns": end, **row})

    def event(self, call: int, **row: object) -> None:
        """Add the recording of an event."""
        place = {"device_id": 0, "context_id": 1, "stream_id": 7, "correlation_id": call, "event_id": 0}
        self.add("cuda_events", **{"cuda_event_id": len(self.tables["cuda_events"]), **place, **row})

    # Events one after another on the thread and on streams.

    def pause(self, ns: int) -> None:
        """Let the CPU work without calls."""
        self.now += ns

    def do(self, name: str, ns: int = 5 * US) -> int:
        """Add the next call."""
        self.now += ns
        return self.call(name, self.now - ns, self.now)

    def launch(
        self, name: str = "k", ns: int = 50 * US, *, stream: int = 7, delay: int = 7 * US, **row: object
    ) -> None:
        """Launch a kernel, which starts when it has been launched and its stream is free."""
        call = self.do(LAUNCH)
        start, end = self._schedule(ns, stream, delay)
        self.kernel(call, start, end, name, stream_id=stream, **row)

    def transfer(
        self, kind: str = "Host-to-Device", ns: int = 50 * US, *, blocks: bool = False, stream: int = 7, **row: object
    ) -> None:
        """Launch a copy, and wait for its end if it blocks."""
        call = self.do("cudaMemcpyAsync_v3020")
        start, end = self._schedule(ns, stream, 7 * US)
        if blocks:
            self.now = self.tables["api_calls"][-1]["end_ns"] = max(self.now, end + 2 * US)
        self.copy(call, start, end, kind, stream_id=stream, **row)

    def wait(self, name: str = "cudaDeviceSynchronize_v3020") -> int:
        """Wait for all streams."""
        call = self.do(name)
        self.now = self.tables["api_calls"][-1]["end_ns"] = max(self.now, max(self.free.values(), default=0) + 2 * US)
        return call

    def _schedule(self, ns: int, stream: int, delay: int) -> tuple[int, int]:
        start = max(self.now - 5 * US + delay, self.free.get(stream, -1) + US)
        self.free[stream] = start + ns
        return start, start + ns

    # What the events say.

    def frames(self, name: str) -> pl.LazyFrame:
        """Return a declared table."""
        rows = self.tables.get(name, [])
        return declared(**{name: pl.DataFrame(rows, infer_schema_length=None)})(name)

    def rollup(self, **options: Any) -> Rollup:
        """Roll the program up, without the warm-up. Equal programs share one roll-up, whose answers are removed."""
        rollup = _roll_up(pickle.dumps(self.tables), tuple(sorted(options.items())))
        rollup.results.clear()
        rollup.free_working_data()
        return rollup

    def events(self) -> Events:
        """Return the events of the process with the most GPU work."""
        return next(read_events(self.rollup()))

    def model(self) -> Model:
        """Return the model of all steady steps."""
        events = self.events()
        return build_model(events, tuple(s for s in events.steps if not s.is_cold))

    def inspection(self) -> Inspection:
        """Return what rules examine."""
        return Inspection(self.model())

    def cures(self) -> list[Cure]:
        """Return the cures of all causes."""
        return list(causes.find_cures(self.inspection()))

    def causes(self) -> list[str]:
        """Return the names of all causes, in the order of the rules."""
        return [cure.cause for cure in self.cures()]

    def diagnose(self, step_ns: int | None = None, **options: Any) -> Why:
        """Explain why the steps take as long as they do."""
        return diagnose(self.rollup(**options), Options(step_ns))


@functools.lru_cache(128)
def _roll_up(tables: bytes, options: tuple[tuple[str, Any], ...]) -> Rollup:
    program = Program(tables=pickle.loads(tables))
    return Rollup.from_frames(functools.cache(program.frames), **dict(options)).steady


def steps(program: Program, count: int, body: Any, *, name: str = "step {}") -> Program:
    """Add steps, each of which runs a function of its number."""
    for number in range(count):
        start = program.now
        body(number)
        program.range(name.format(number), start, program.now)
    return program


def find_cure(program: Program, cause: str) -> Cure:
    """Return the only cure of a cause."""
    (cure,) = [c for c in program.cures() if c.cause == cause]
    return cure
