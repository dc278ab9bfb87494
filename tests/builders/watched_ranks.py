"""Captures of the PyTorch profiler of many ranks, window by window, with planted delays and known answers.

A rank records some steps in each window. A step has the ranges ``data``, ``forward``, ``backward`` and ``optimizer``,
whose times vary as in real runs: by 1 % from step to step, and by 0.3 % from rank to rank. Its all-reduce begins when
the backward pass of the rank ends, and ends when the last rank has begun it and the data is transferred.

A ``Delay`` makes one rank slower in one phase of the steps of a window. ``write_window`` writes one file per rank.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from tracekit.core.communication.calls import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Times = NDArray[np.int64]

PHASES = ("data", "forward", "backward", "optimizer")
MEANS_US = (400, 3000, 5600, 1000)
STEP_US = sum(MEANS_US)
EPOCH_US = 1_700_000_000_000_000
_TRANSFER_US = 300
_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@dataclass(frozen=True)
class Delay:
    """By how much a rank is slower in a phase: in every step, or in each n-th step, on the CPU or on the GPU."""

    rank: int
    phase: str
    us: int
    every: int = 1
    on: str = "cpu"


def write_window(
    folder: Path,
    window: int,
    ranks: Sequence[int],
    *,
    world_size: int | None = None,
    steps: int = 8,
    delays: Iterable[Delay] = (),
    noise: float = 0.01,
    rank_noise: float = 0.003,
    collectives: bool = True,
    numbered: bool = True,
    period_us: int = 60_000_000,
    seed: int = 0,
) -> list[Path]:
    """Write the captures of one window, one file per rank, and return their paths."""
    count = len(ranks)
    cpu, gpu = _draw_times(window, ranks, steps, delays, noise, rank_noise, seed)
    folder.mkdir(parents=True, exist_ok=True)
    plans = _schedule(cpu, gpu, collectives=collectives)
    paths = []
    for row, rank in enumerate(ranks):
        path = folder / f"rank{rank}_window{window:04}.pt.trace.json"
        listed = _events(window * steps if numbered else None, *(part[row] for part in plans), collectives=collectives)
        document = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "GPU"}],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size or count},
            "baseTimeNanoseconds": (EPOCH_US + window * period_us) * 1000,
            "traceEvents": listed,
            "traceName": path.name,
        }
        path.write_text(json.dumps(document, separators=(",", ":")))
        paths.append(path)
    return paths


def _draw_times(  # noqa: PLR0917 - the arguments of write_window
    window: int, ranks: Sequence[int], steps: int, delays: Iterable[Delay], noise: float, rank_noise: float, seed: int
) -> tuple[Times, Times]:
    """Return the times of the phases in µs on the CPU and on the GPU: (rank, step, phase)."""
    rng = np.random.default_rng((seed, window))
    scale = 1 + rng.normal(0, rank_noise, (len(ranks), 1, len(PHASES)))
    cpu = np.array(MEANS_US) * scale * np.exp(rng.normal(0, noise, (len(ranks), steps, len(PHASES))))
    gpu = cpu * 0.7
    for delay in delays:
        target = cpu if delay.on == "cpu" else gpu
        target[list(ranks).index(delay.rank), delay.every - 1 :: delay.every, PHASES.index(delay.phase)] += delay.us
    return cpu.astype(np.int64), gpu.astype(np.int64)


def build_tables(
    window: int,
    ranks: Sequence[int],
    *,
    steps: int = 8,
    delays: Iterable[Delay] = (),
    noise: float = 0.01,
    rank_noise: float = 0.003,
    collectives: bool = True,
    seed: int = 0,
) -> dict[str, pl.DataFrame]:
    """Return the tables of ``communication.read_rank_tables`` for one window, with one process per rank."""
    cpu, gpu = _draw_times(window, ranks, steps, delays, noise, rank_noise, seed)
    on_cpu, _, reduces, waits = _schedule(cpu, gpu, collectives=collectives)
    process, step = (axis.ravel() for axis in np.meshgrid(ranks, np.arange(steps), indexing="ij"))
    begin, end = 1000 * on_cpu[:, :, 0, 0].ravel(), 1000 * waits[:, :, 1].ravel()
    rows = {"process_id": process, "iteration": step}
    on_gpu = np.where(np.array(PHASES) == "data", 0, gpu)
    phases = [
        {
            **rows,
            "path": [label] * len(step),
            "cpu_ns": 1000 * cpu[:, :, p].ravel(),
            "gpu_ns": 1000 * on_gpu[:, :, p].ravel(),
        }
        for p, label in enumerate(PHASES)
    ]
    whole = {"cpu_ns": 1000 * cpu.sum(2).ravel(), "gpu_ns": 1000 * on_gpu.sum(2).ravel()}
    phases.append({**rows, "path": [""] * len(step), **whole})
    flags = {"is_warm_up": [False] * len(step), "is_aggregated": [True] * len(step)}
    times = {"start_ns": 1000 * reduces[:, :, 0].ravel(), "end_ns": 1000 * reduces[:, :, 1].ravel()}
    call = {"process_id": process, "kernel_id": np.arange(len(step)), "call_start_ns": begin + 1, **times}
    call |= {"kind": ["all_reduce"] * len(step), "library": ["NCCL"] * len(step), "communicator": ["0"] * len(step)}
    first = window * steps
    names = {"first": f"step {first}", "last": f"step {first + steps - 1}", "key_op": "step *", "aggregated": steps}
    calls = pl.DataFrame(schema=COLUMNS)
    return {
        "calls": pl.concat([calls, pl.DataFrame(call).select(*call)], how="diagonal_relaxed") if collectives else calls,
        "origins": pl.DataFrame({"origin_utc_ns": [(EPOCH_US + window * 60_000_000) * 1000]}),
        "iterations": pl.DataFrame({**rows, "start_ns": begin, "end_ns": end, **flags}),
        "phases": pl.concat([pl.DataFrame(part) for part in phases]),
        "steps": pl.DataFrame([names]),
    }


def _schedule(cpu: Times, gpu: Times, *, collectives: bool) -> tuple[Times, Times, Times, Times]:
    """Return when each phase begins and ends on the CPU, the time of its kernel, the collectives, and the waits.

    The CPU waits for the GPU at the end of each step. The arrays have the shapes (rank, step, phase, 2) and
    (rank, step, 2).
    """
    ranks, steps, phases = cpu.shape
    on_cpu, on_gpu = np.zeros((ranks, steps, phases, 2), np.int64), np.zeros((ranks, steps, phases, 2), np.int64)
    reduces, waits = np.zeros((ranks, steps, 2), np.int64), np.zeros((ranks, steps, 2), np.int64)
    now, free = np.full(ranks, 1000), np.full(ranks, 1000)
    for step in range(steps):
        for phase in range(phases):
            if PHASES[phase] == "optimizer" and collectives:
                begin = np.maximum(now, free)
                end = begin.max() + _TRANSFER_US
                reduces[:, step] = np.stack([begin, np.full(ranks, end)], axis=1)
                free = np.full(ranks, end + 5)
            start = now.copy()
            now = now + cpu[:, step, phase]
            on_cpu[:, step, phase] = np.stack([start, now], axis=1)
            if PHASES[phase] != "data":
                begin = np.maximum(start + 30, free + 1)
                free = begin + gpu[:, step, phase]
                on_gpu[:, step, phase] = np.stack([begin, free], axis=1)
            now += 5
        waits[:, step, 0] = now
        now = np.maximum(now, free) + 10
        waits[:, step, 1] = now
        now += 8
    return on_cpu, on_gpu, reduces, waits


def _events(
    first: int | None, on_cpu: Times, on_gpu: Times, reduces: Times, waits: Times, *, collectives: bool
) -> list[dict[str, Any]]:
    """Return the events of one rank."""
    events: list[dict[str, Any]] = []
    for step in range(len(on_cpu)):
        begin, end = int(on_cpu[step, 0, 0]) - 2, int(waits[step, 1]) + 2
        name = "train_step" if first is None else f"ProfilerStep#{first + step}"
        events.append(_event("user_annotation", name, begin, end - begin))
        for phase, label in enumerate(PHASES):
            start, stop = (int(t) for t in on_cpu[step, phase])
            events.append(_event("user_annotation", label, start, stop - start))
            if label != "data":
                key = (step * 8 + phase) * 2 + 1
                events += _launch(key, start + 10, f"gemm_{label}", on_gpu[step, phase], stream=7)
        wait, done = (int(t) for t in waits[step])
        events.append(_event("cuda_runtime", "cudaDeviceSynchronize", wait, done - wait, {"cbid": 165}))
        if collectives:
            start, stop = (int(t) for t in reduces[step])
            call = int(on_cpu[step, 2, 1]) - 40
            facts = {"Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000, "Group size": 8}
            facts |= {"dtype": "Float", "Process Group Name": "0", "Process Group Ranks": "[0, ...]"}
            events.append(_event("cpu_op", "record_param_comms", call, 30, facts))
            events.append(_event("user_annotation", "nccl:all_reduce", call + 2, 20))
            events += _launch((step * 8 + 7) * 2 + 1, call + 4, _REDUCE, (start, stop), stream=13)
    return events


def _launch(key: int, at: int, name: str, times: Any, *, stream: int) -> list[dict[str, Any]]:
    """Return a kernel and the call that launched it."""
    start, stop = (int(t) for t in times)
    args = {"device": 0, "context": 1, "correlation": key, "stream": stream}
    kernel = {**_event("kernel", name, start, stop - start, args), "pid": 0, "tid": stream}
    return [_event("cuda_runtime", "cudaLaunchKernel", at, 4, {"correlation": key, "cbid": 211}), kernel]


def _event(category: str, name: str, start: int, duration: int, args: dict[str, Any] | None = None) -> dict[str, Any]:
    event = {"ph": "X", "cat": category, "name": name, "pid": 100, "tid": 100, "ts": start, "dur": duration}
    return {**event, "args": args or {}}
