"""A trace whose ranges nest deeply: ``python tests/benchmarks/deep.py OUT.json [RANGES] [DEPTH]``.

Nests of ranges follow one another on one thread, each with some launches in its innermost range. The names of the
ranges are calls of Python functions, with the path of a file, as ``with_stack`` of the PyTorch profiler records them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

RANGES, DEPTH, LAUNCHES = 100_000, 2_000, 100


def write(path: Path, ranges: int = RANGES, depth: int = DEPTH) -> Path:
    """Write a trace of the PyTorch profiler."""
    events = [event for nest in range(ranges // depth) for event in _nest(nest, depth)]
    devices = [{"id": 0, "name": "GPU"}]
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": devices, "traceEvents": events}), "utf-8")
    return path


def _nest(number: int, depth: int) -> list[dict[str, object]]:
    began, here = number * 10 * (depth + LAUNCHES), {"ph": "X", "pid": 1, "tid": 1}
    length = 2 * depth + 10 * LAUNCHES
    made: list[dict[str, object]] = [
        {**here, "cat": "python_function", "name": _name(at), "ts": began + at, "dur": length - 2 * at, "args": {}}
        for at in range(depth)
    ]
    for launch in range(LAUNCHES):
        at = began + depth + 10 * launch
        args = {"correlation": number * LAUNCHES + launch + 1, "device": 0, "context": 1, "stream": 7}
        made.append({**here, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at, "dur": 2, "args": args})
        kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": at + 3, "dur": 5, "args": args}
        made.append(kernel)
    return made


def _name(level: int) -> str:
    return f"path/to/module_{level % 97}.py({level}): forward"


if __name__ == "__main__":
    write(Path(sys.argv[1]), *map(int, sys.argv[2:]))
