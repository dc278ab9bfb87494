"""Run a job in fresh processes and take medians. A job prints its seconds, rows and ``peak_mb`` as a line of JSON."""

from __future__ import annotations

import json
import os
import re
import resource
import statistics
import subprocess
import sys
import time
import venv
from pathlib import Path

RUNS = int(os.environ.get("RUNS", "3"))
BUDGET_S = float(os.environ.get("BUDGET_S", "10"))
"""A job is not started again once its runs took this long, so that slow peers do not take most of the time."""

Measure = dict[str, float]
installation_s: list[float] = []
"""How long each installation of a peer took: it depends on the network, and the total is shown without it."""


def median_of_runs(command: list[str], runs: int = RUNS) -> Measure:
    """Run a command until it ran so often or took the budget, at least once; return medians and the number of runs."""
    results: list[Measure] = []
    began = time.perf_counter()
    while not results or (len(results) < runs and time.perf_counter() - began < BUDGET_S):
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        results.append(json.loads(printed.splitlines()[-1]))
    medians = {key: statistics.median(result[key] for result in results) for key in results[0]}
    return {**medians, "runs": len(results)}


def peak_mib() -> int:
    """Return the largest memory of this process so far, in MiB."""
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss counts what the process held that started this one
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status.read_text("ascii", errors="replace"))[0]) // 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1 << 20 if sys.platform == "darwin" else 1024)


def install(folder: Path, packages: tuple[str, ...]) -> str:
    """Install packages into an environment of their own, once; return its Python."""
    if not (folder / "installed").exists():
        began = time.perf_counter()
        venv.create(folder, with_pip=True)
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", *packages], check=True)
        (folder / "installed").touch()
        installation_s.append(time.perf_counter() - began)
    return str(folder / "bin" / "python")
