"""A profile of Proton with 150,000 kernels in 50,000 scopes, against rows that a walk over the parsed JSON collects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TITLE = "Proton"
PACKAGES: tuple[str, ...] = ()
SCOPES, KERNELS = 50_000, 3


def write(folder: Path) -> Path:
    """Write scopes with kernels."""
    path = folder / "large.hatchet"
    metrics = {"count": 1, "time (ns)": 2048, "device_id": "0", "device_type": "CUDA", "bytes": 4096}
    names = [f"kernel_{n}" for n in range(KERNELS)]
    kernels = [{"children": [], "frame": {"name": n, "type": "function"}, "metrics": metrics} for n in names]
    steps = [f"step_{n}" for n in range(SCOPES)]
    scopes = [{"children": kernels, "frame": {"name": n, "type": "function"}, "metrics": {}} for n in steps]
    root = {"children": scopes, "frame": {"name": "ROOT", "type": "function"}, "metrics": {"count": 0, "time (ns)": 0}}
    path.write_text(json.dumps([root, {"CUDA": {"0": {"arch": "90", "num_sms": 132}}}]))
    return path


def read_with_peer(path: str) -> int:
    """Parse the tree, and collect the path and the metrics of each node."""
    rows: list[dict[str, Any]] = []
    remaining = [(json.loads(Path(path).read_text())[0], "")]
    while remaining:
        node, above = remaining.pop()
        name = f"{above}/{node['frame']['name']}"
        rows.append({"path": name, **node["metrics"]})
        remaining += [(child, name) for child in node["children"]]
    return len(rows)
