"""A memory snapshot of PyTorch with 1.2 million events and their call stacks, against ``pickle``.

The peer only builds Python objects: a table of events would take it several times as long.
"""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

TITLE = "memory-snapshot"
PACKAGES: tuple[str, ...] = ()
ALLOCATIONS, LIVE, STACKS, FRAMES = 400_000, 500, 400, 300
FIRST_US, BASE = 1_700_000_000_000_000, 0x7F00_0000_0000
SIZES = (512, 1024, 1 << 18, 1 << 20, 3 << 20)


def write(folder: Path) -> Path:
    """Write allocations, of which 500 are in use at a time, each with the call stack of its line."""
    path = folder / "large.pickle"
    dice = random.Random(1)
    frames = [{"name": f"f{n}", "filename": f"/src/m{n % 40}.py", "line": n} for n in range(FRAMES)]
    stacks = [dice.sample(frames, dice.randint(10, 60)) for _ in range(STACKS)]
    live: list[tuple[int, int]] = []
    events: list[dict[str, Any]] = []
    for n in range(ALLOCATIONS):
        block = BASE + 512 * n, dice.choice(SIZES)
        live.append(block)
        events.append(_build_event("alloc", *block, n, [*dice.choice(stacks)]))
        if len(live) > LIVE:
            block = live.pop(dice.randrange(LIVE))
            events += [_build_event(action, *block, n, []) for action in ("free_requested", "free_completed")]
    blocks = [
        {"address": a, "size": size, "requested_size": size, "state": "active_allocated", "frames": []}
        for a, size in live
    ]
    segment = {"device": 0, "address": BASE, "total_size": 1 << 34, "stream": 0, "blocks": blocks, "frames": []}
    with path.open("wb") as file:
        pickle.dump({"segments": [segment], "device_traces": [events]}, file)
    return path


def _build_event(action: str, address: int, size: int, n: int, frames: list[dict[str, Any]]) -> dict[str, Any]:
    times = {"time_us": FIRST_US + 10 * n, "compile_context": "N/A", "user_metadata": ""}
    return {"action": action, "addr": address, "size": size, "stream": 0, **times, "frames": frames}


def read_with_peer(path: str) -> int:
    """Load the snapshot."""
    with Path(path).open("rb") as file:
        return sum(map(len, pickle.load(file)["device_traces"]))
