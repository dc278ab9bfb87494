"""What nsys makes of a report, and tracekit: ``python against_nsys.py REPORT NSYS [NAME...]`` prints medians.

The names are those of the reports to print. The variable RUNS is the number of runs. The cache of tracekit is off.

Both begin with the report alone; nsys exports it to SQLite before it prints. What is printed must be the same bytes.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = int(os.environ.get("RUNS", "3"))
REPORTS = ("nvtx_kern_sum", "nvtx_gpu_proj_trace", "cuda_gpu_trace", "cuda_gpu_kern_sum")
TRACEKIT = [sys.executable, "-m", "tracekit"]


def main(report: Path, nsys: str, *names: str) -> None:
    """Compare, and print a table."""
    header = ["job", "nsys s", "tracekit s", "times faster"]
    print_row(header)
    print_row(["---"] * len(header))
    times = in_turn(export_by_nsys(report, nsys), export_by_tracekit(report))
    print_row(compared("everything, exported", *times))
    for name in names or REPORTS:
        theirs, ours = stats_by_nsys(report, nsys, name), stats_by_tracekit(report, name)
        times = in_turn(theirs, ours)
        same = (theirs.made.read_bytes() == ours.made.read_bytes()) if theirs.made.exists() else False
        print_row(compared(f"{name}{'' if same else ' (DIFFERENT OUTPUT)'}", *times))


def print_row(cells: list[str]) -> None:
    """Print a row of the table at once, as the next one may take long."""
    print("| " + " | ".join(cells) + " |", flush=True)


class Job:
    """A command that makes a file in a folder of its own."""

    def __init__(self, command: list[str], report: Path, made: str) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.made = self.folder / made
        self.report = self.folder / "capture.nsys-rep"
        self._command = [a.format(report=self.report, folder=self.folder, made=self.made) for a in command]
        shutil.copy(report, self.report)

    def run(self) -> float:
        """Run it from a fresh folder; return seconds."""
        for path in self.folder.iterdir():
            if path != self.report:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        began = time.perf_counter()
        environment = {**os.environ, "TRACEKIT_CACHE": "off"}
        done = subprocess.run(self._command, capture_output=True, check=False, env=environment)
        seconds = time.perf_counter() - began
        if done.returncode:
            sys.exit(f"{self._command[:3]} failed: {done.stderr.decode(errors='replace')[-500:]}")
        return seconds


def export_by_nsys(report: Path, nsys: str) -> Job:
    """Export to SQLite, as nsys does before anything else."""
    return Job([nsys, "export", "--type", "sqlite", "-o", "{made}", "{report}"], report, "all.sqlite")


def export_by_tracekit(report: Path) -> Job:
    """Convert all tables to Parquet."""
    return Job([*TRACEKIT, "convert", "{report}", "{made}", "--to", "parquet"], report, "all")


def stats_by_nsys(report: Path, nsys: str, name: str) -> Job:
    """Print a report of nsys."""
    command = [nsys, "stats", "-q", "-r", name, "-f", "csv", "-o", "{folder}/of_nsys", "{report}"]
    return Job(command, report, f"of_nsys_{name}.csv")


def stats_by_tracekit(report: Path, name: str) -> Job:
    """Print the same report."""
    command = [*TRACEKIT, "stats", "{report}", "--report", name, "--format", "csv", "-o", "{made}"]
    return Job(command, report, "of_tracekit.csv")


def in_turn(theirs: Job, ours: Job) -> tuple[float, float]:
    """Run two jobs in turn; medians."""
    times = [(theirs.run(), ours.run()) for _ in range(RUNS)]
    return statistics.median(a for a, _ in times), statistics.median(b for _, b in times)


def compared(job: str, theirs: float, ours: float) -> list[str]:
    """One line of the table."""
    return [job, f"{theirs:.2f}", f"{ours:.2f}", f"{theirs / ours:.1f}"]


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
