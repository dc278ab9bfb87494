"""Jobs of several ranks, whose collectives end when the last rank has arrived and the data is transferred."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl
from tests.builders.programs import LAUNCH, MS, US, Program
from tracekit.core.communication import Communication, read_call_tables
from tracekit.core.diagnosis import (
    Examination,
    Options,
    RankPlan,
    Why,
    examine_processes,
    explain_job,
    plan_ranks,
    profile_processes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.core.rollup import Rollup

_NUMBERS = ("kernel_id", "memcpy_id", "api_call_id", "range_id", "correlation_id", "mpi_call_id")


@dataclass
class Job:
    """Programs that run at the same time, one per rank.

    Attributes:
        size: Number of ranks.
        offsets: Time that the clock of each rank is ahead of that of the first one.
        communicator_size: Number of ranks of communicators, if some of them are missing.
    """

    size: int = 2
    offsets: tuple[int, ...] = ()
    communicator_size: int | None = None
    ranks: list[Program] = field(init=False)

    def __post_init__(self) -> None:
        self.ranks = [Program(process=rank + 1, thread=rank + 1) for rank in range(self.size)]
        for program, offset in zip(self.ranks, self.offsets, strict=False):
            program.now = offset

    def _offset(self, rank: int) -> int:
        return self.offsets[rank] if rank < len(self.offsets) else 0

    def all_reduce(
        self,
        ns: int = 500 * US,
        *,
        size: int = 1 << 20,
        communicator: int = 5,
        stream: int = 7,
        kind: str = "AllReduce",
    ) -> None:
        """Run a collective of all ranks."""
        starts, calls = [], []
        for rank, program in enumerate(self.ranks):
            begin = program.now
            program.now += 20 * US
            calls.append(program.call(LAUNCH, begin + 10 * US, begin + 15 * US))
            self._record(program, f"nccl{kind}", begin, size, communicator)
            starts.append(max(begin + 17 * US, program.free.get(stream, -1) + US) - self._offset(rank))
        end = max(starts) + ns
        for rank, program in enumerate(self.ranks):
            start, stop = starts[rank] + self._offset(rank), end + self._offset(rank)
            program.free[stream] = stop
            program.kernel(calls[rank], start, stop, f"ncclDevKernel_{kind}_RING_LL", stream_id=stream, device_id=rank)

    def _record(self, program: Program, name: str, begin: int, size: int, communicator: int) -> None:
        values: dict[str, Any] = {"NCCL communicator ID": communicator, "Message size [bytes]": size}
        values |= {"Reduction operation": "Sum"}
        row = {"domain_id": 1, "domain": "NCCL", "payload_type": "json", "payload_text": json.dumps(values)}
        program.range(name, begin, program.now, **row)

    def create_communicator(self, communicator: int = 5) -> None:
        """Create a communicator of all ranks."""
        for rank, program in enumerate(self.ranks):
            size = self.communicator_size or self.size
            values = {"NCCL communicator ID": communicator, "No. of ranks": size, "Rank": rank, "CUDA device": rank}
            row = {"domain_id": 1, "domain": "NCCL", "payload_type": "json", "payload_text": json.dumps(values)}
            program.range("ncclCommInitRankConfig", program.now, program.now + US, **row)
            program.now += 2 * US

    def mpi(self, name: str = "MPI_Barrier", ns: int = 10 * US) -> None:
        """Wait in a collective of MPI until all ranks have arrived."""
        end = max(p.now - self._offset(rank) for rank, p in enumerate(self.ranks)) + ns
        for rank, program in enumerate(self.ranks):
            if "mpi_ranks" not in program.tables:
                program.add("mpi_ranks", rank=rank, thread_id=program.thread)
                place = {"rank": rank, "local_rank": rank, "group_root": -1, "group_root_id": 0}
                size = self.communicator_size or self.size
                program.add("mpi_communicators", communicator=1, size=size, timestamp_ns=None, **place)
            stop, number = end + self._offset(rank), len(program.tables["mpi_calls"])
            values = {"name": name, "kind": "collectives", "thread_id": program.thread, "communicator": 1}
            program.add("mpi_calls", mpi_call_id=number, start_ns=program.now, end_ns=stop, **values)
            program.now = stop

    def steps(self, count: int, body: Callable[[Job, int], None]) -> Job:
        """Add steps, each of which runs a function of the job and the number of the step."""
        for number in range(count):
            starts = [program.now for program in self.ranks]
            body(self, number)
            for program, start in zip(self.ranks, starts, strict=True):
                program.range(f"step {number}", start, program.now)
        return self

    def work(self, label: str, ns: Sequence[int]) -> None:
        """Let the CPU of each rank work in a range."""
        for program, time in zip(self.ranks, ns, strict=True):
            program.now += time
            program.range(label, program.now - time, program.now)

    def compute(self, ns: Sequence[int], label: str = "forward") -> None:
        """Launch a kernel on each rank in a range."""
        for rank, (program, time) in enumerate(zip(self.ranks, ns, strict=True)):
            start = program.now
            program.launch("ampere_fp16_s16816gemm", time, device_id=rank)
            program.range(label, start, program.now)

    def synchronize(self) -> None:
        """Let each rank wait for its GPU."""
        for program in self.ranks:
            program.wait()

    def cut(self, rank: int, first: int, count: int) -> None:
        """Remove the events of a rank that begin outside some consecutive steps."""
        program = self.ranks[rank]
        steps = [r for r in program.tables["nvtx_ranges"] if str(r["name"]).startswith("step ")]
        begin, end = steps[first]["start_ns"], steps[first + count - 1]["end_ns"]
        for name, rows in program.tables.items():
            program.tables[name] = [r for r in rows if begin <= r.get("start_ns", begin) < end]

    # What the events say.

    @functools.cached_property
    def rollups(self) -> list[Rollup]:
        """The roll-ups of all ranks, once all events have been added."""
        return [program.rollup() for program in self.ranks]

    def plan(self) -> tuple[dict[int, dict[int | None, RankPlan]], list[str]]:
        """Return the plans of all ranks, one capture each."""
        tables = [read_call_tables(program.frames) for program in self.ranks]
        ranked = {
            name: pl.concat([t[name].with_columns(rank=pl.lit(r, pl.Int64)) for r, t in enumerate(tables)])
            for name in tables[0]
        }
        profiles = {rank: profile_processes(rollup) for rank, rollup in enumerate(self.rollups)}
        return plan_ranks(profiles, Communication(ranked, ignores_missing_ranks=True))

    def examine(self, step_ns: int | None = None) -> tuple[list[Examination], list[str]]:
        """Examine all ranks, one capture each."""
        plans, notes = self.plan()
        results = [
            e
            for rank, rollup in enumerate(self.rollups)
            for e in examine_processes(rollup, Options(step_ns), plans[rank])
        ]
        return results, notes

    def diagnose(self, step_ns: int | None = None) -> Why:
        """Explain why the steps of the job take as long as they do."""
        examinations, notes = self.examine(step_ns)
        return explain_job(examinations, notes=notes)

    def merge(self) -> Program:
        """Return a program with the processes of all ranks."""
        merged = Program(process=None)
        for rank, program in enumerate(self.ranks):
            for name, rows in program.tables.items():
                for row in rows:
                    numbers = {c: row[c] + 100_000 * rank for c in _NUMBERS if row.get(c) is not None}
                    merged.tables[name].append(row | numbers)
        return merged


def straggle(size: int = 2, *, late: int = 1, every: int = 1, ns: int = 8 * MS, count: int = 10, **job: Any) -> Job:
    """Return a job in which one rank loads data for longer than the others in every n-th step."""

    def body(job: Job, number: int) -> None:
        job.work("data", [ns if rank == late and number % every == every - 1 else 50 * US for rank in range(size)])
        job.compute([MS] * size)
        job.all_reduce()
        job.compute([200 * US] * size, "optimizer")
        job.synchronize()

    return Job(size, **job).steps(count, body)
