"""Traces of the PyTorch profiler of several ranks: ``python -m tests.builders.torch_ranks FOLDER``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

RANKS = 8
_STEPS = 3
_STEP_US = 1000
_KERNELS = ("gemm(float*, int)", "void add<float, 4>(float*)", "softmax_forward")
_ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def write_ranks(folder: Path, ranks: int = RANKS) -> Path:
    """Write one trace per rank, and return the folder."""
    for rank in range(ranks):
        (folder / f"rank{rank}.pt.trace.json").write_text(json.dumps(_trace(rank, ranks)))
    return folder


def _trace(rank: int, ranks: int) -> dict[str, Any]:
    events = [event for step in range(_STEPS) for event in _step(rank, step)]
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "GPU"}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks},
        "traceEvents": events,
        "traceName": f"rank{rank}.pt.trace.json",
    }


def _step(rank: int, step: int) -> list[dict[str, Any]]:
    """Return the events of a step: kernels on stream 7, copies on stream 20 and collectives on stream 13."""
    start = 10_000 + step * _STEP_US
    events = [_event("user_annotation", f"ProfilerStep#{step}", start, _STEP_US - 10, {})]
    for number in range(6):
        at = start + 20 + number * 130
        key = (rank * 10 + step) * 100 + number * 5
        launch = at + (37 * number + 11 * rank) % 60
        duration = 40 + (29 * number + 7 * rank + 13 * step) % 50
        kernel = _event("kernel", _KERNELS[number % 3], launch + 30, duration, {"stream": 7})
        events += _launch(key, at, kernel)
        if number % 2:
            reduce = _event(
                "kernel", _ALL_REDUCE, launch + 45, 15 + (23 * number + 19 * rank + step) % 90, {"stream": 13}
            )
            events += _launch(key + 1, at + 3, reduce)
        if number % 3 == 2:
            copy = _event(
                "gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", launch + 20, 8 + rank, {"stream": 20, "bytes": 9}
            )
            clear = _event("gpu_memset", "Memset (Device)", launch + 33 + duration, 2, {"stream": 7, "bytes": 9})
            events += [*_launch(key + 2, at + 5, copy), *_launch(key + 3, at + 6, clear)]
    return events


def _launch(key: int, at: int, activity: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a GPU activity and the call that launched it."""
    function = {"kernel": "cudaLaunchKernel", "gpu_memcpy": "cudaMemcpyAsync", "gpu_memset": "cudaMemsetAsync"}
    args = {"device": 0, "context": 1, "correlation": key + 1, **activity["args"]}
    return [
        _event("cuda_runtime", function[activity["cat"]], at, 4, {"correlation": key + 1, "cbid": 211}),
        {**activity, "args": args, "pid": 0, "tid": args["stream"]},
    ]


def _event(category: str, name: str, start: int, duration: int, args: dict[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 100,
        "tid": 100,
        "ts": start,
        "dur": duration,
        "args": args,
    }


if __name__ == "__main__":
    write_ranks(Path(sys.argv[1]))
