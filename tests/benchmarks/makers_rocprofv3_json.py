"""A JSON file of rocprofv3, against ``json`` of the standard library, with which ROCm's own scripts read it."""

from __future__ import annotations

import sys
from pathlib import Path

TITLE = "rocprofv3-json"
PACKAGES: tuple[str, ...] = ()
STEPS = 12_000
PROGRAMS = Path(__file__).parents[2] / "fixtures" / "programs"


def write(folder: Path) -> Path:
    """Write the run of the fixtures with many steps."""
    sys.path.insert(0, str(PROGRAMS))
    import gen_rocm

    path = folder / "big_results.json"
    if not path.exists():
        gen_rocm.write_json(path, STEPS)
    return path


def read_with_peer(path: str) -> float:
    """Read the file, and count its records."""
    import json

    with Path(path).open(encoding="utf-8") as file:
        (tool,) = json.load(file)["rocprofiler-sdk-tool"]
    return float(sum(len(records) for records in tool["buffer_records"].values()))
