"""A flight recorder of PyTorch with 200,000 collectives, against ``pickle`` and plain Python.

PyTorch's own analyzer begins by loading every dump with ``pickle`` and reading the fields of each entry, as the peer
does here, and then compares the ranks.
"""

from __future__ import annotations

import pickle
import random
from pathlib import Path

TITLE = "flight recorder (pickle)"
PACKAGES: tuple[str, ...] = ()
ENTRIES, DEPTH, STACKS = 200_000, 12, 40
GROUPS = {"0": "[0, 1, 2, 3]", "1": "[0, 1]", "2": "[0, 2]"}


def write(folder: Path) -> Path:
    """Write a dump as PyTorch does, with call stacks."""
    path = folder / "nccl_trace_rank_0"
    if path.exists():
        return path
    dice = random.Random(7)
    frames = [{"name": f"function_{n}", "filename": f"/src/module_{n % 30}.py", "line": n} for n in range(300)]
    stacks = [[dice.choice(frames) for _ in range(DEPTH)] for _ in range(STACKS)]
    names, types = ("nccl:all_reduce", "nccl:all_gather", "nccl:_reduce_scatter_base"), ("Float", "BFloat16")
    groups = {name: (name, f"group_{name}") for name in GROUPS}
    entries, numbers = [], dict.fromkeys(GROUPS, 0)
    for n in range(ENTRIES):
        name = dice.choice(tuple(GROUPS))
        numbers[name] += 1
        size, data_type = dice.choice((1 << 10, 1 << 16, 1 << 20)), dice.choice(types)
        entries.append(
            {
                "frames": list(stacks[n % STACKS]),
                "record_id": n,
                "pg_id": int(name),
                "process_group": groups[name],
                "thread_name": "python",
                "thread_id": "140067022373632",
                "collective_seq_id": numbers[name],
                "p2p_seq_id": 0,
                "op_id": numbers[name],
                "profiling_name": dice.choice(names),
                "time_created_ns": 1_795_822_680_000_000_000 + n * 1000,
                "duration_ms": dice.random(),
                "input_sizes": [[size]],
                "input_dtypes": [data_type],
                "output_sizes": [[size]],
                "output_dtypes": [data_type],
                "state": "completed",
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": 1_795_822_680_000_000_000 + n * 1000 + 500,
                "retired": True,
                "timeout_ms": 600_000,
                "is_p2p": False,
            }
        )
    config = {name: {"name": name, "desc": f"group_{name}", "ranks": ranks} for name, ranks in GROUPS.items()}
    document = {"version": "2.10", "pg_config": config, "comm_lib_version": "2.28.9", "entries": entries}
    path.write_bytes(pickle.dumps(document, protocol=2))
    return path


def read_with_peer(path: str) -> float:
    """Load the dump and read the fields of its entries."""
    entries = pickle.loads(Path(path).read_bytes())["entries"]
    read = [
        (
            entry["process_group"][0],
            entry["collective_seq_id"],
            entry["profiling_name"],
            entry["state"],
            entry["input_sizes"],
            entry["input_dtypes"],
            entry["output_sizes"],
            entry["output_dtypes"],
            entry["time_created_ns"],
            entry["time_discovered_completed_ns"],
            entry["duration_ms"],
            tuple((frame["name"], frame["filename"], frame["line"]) for frame in entry["frames"]),
        )
        for entry in entries
    ]
    return float(len(read))
