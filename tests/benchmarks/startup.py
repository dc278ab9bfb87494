"""What a command takes before it works: `tracekit stats` on a report of 1 MB, beyond the interpreter.

The baseline is the import of what it cannot do without, pyarrow, its functions, and polars. Beside the times,
``python -X importtime`` says which modules of tracekit were imported and what each took.

``python startup.py REPORT`` prints it; ``measured`` is what ``make bench`` needs.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from measuring import RUNS, Measure

INTERPRETER = ("-c", "pass")
LIBRARIES = ("-c", "import pyarrow, pyarrow.compute, polars")
STATS = ("-m", "tracekit", "stats", "--report", "cuda_gpu_kern_sum")


def measured(report: Path, out: Path) -> tuple[Measure, Measure]:
    """Measure the start, and what the libraries take of it, in turns; write the times of imports into a folder."""
    commands = {"interpreter": INTERPRETER, "libraries": LIBRARIES, "stats": (*STATS, str(report))}
    times: dict[str, list[float]] = {name: [] for name in commands}
    peaks = []
    for _ in range(max(RUNS, 3)):
        for name, command in commands.items():
            seconds, peak = _run(command)
            times[name].append(seconds)
            peaks += [peak] if name == "stats" else []
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    (out / "importtime.txt").write_text(imports(report), "utf-8")
    own = {"rows": 1, "seconds": medians["stats"] - medians["interpreter"], "peak_mb": statistics.median(peaks)}
    return own, {"seconds": medians["libraries"] - medians["interpreter"]}


def imports(report: Path) -> str:
    """Return what ``python -X importtime`` says of a run: own time, time with imports, module; longest first."""
    command = [sys.executable, "-X", "importtime", *STATS, str(report)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    rows = [line.removeprefix("import time:").split("|") for line in said.splitlines()]
    modules = [(int(own), int(all_), name.strip()) for own, all_, name in rows if own.strip().isdecimal()]
    return "".join(f"{own:>8} µs  {all_:>8} µs  {name}\n" for own, all_, name in sorted(modules, reverse=True))


def _run(command: tuple[str, ...]) -> tuple[float, float]:
    """Run Python; return seconds and the peak of its memory in MiB."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}  # as after an installation
    measured = [sys.executable, "-S", "-c", _MEASURED, sys.executable, *command]
    seconds, peak = subprocess.run(measured, check=True, capture_output=True, text=True, env=environment).stdout.split()
    return float(seconds), int(peak) / 1024


# A small process in between, because a program inherits the largest memory of the process that starts it.
_MEASURED = """
import resource, subprocess, sys, time
began = time.perf_counter()
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


if __name__ == "__main__":
    own, libraries = measured(Path(sys.argv[1]), Path(tempfile.mkdtemp()))
    print(f"start: {own['seconds']:.3f} s, {own['peak_mb']:.0f} MiB; libraries {libraries['seconds']:.3f} s")
