"""Compare the times of nsys and tracekit: ``python against_nsys.py REPORT NSYS [NAME...]`` prints medians.

A name is ``export``, the name of a report to print, or ``recipe:NAME:COUNT``: a recipe of COUNT copies of the report.
The variable RUNS is the number of runs. The cache of tracekit is off.

Both tools begin with the ``.nsys-rep`` files alone; nsys exports them before it computes anything. ``again:NAME`` keeps
what the first run of nsys exported. Reports must be the same bytes, and recipes the same table of statistics per rank.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl

RUNS = int(os.environ.get("RUNS", "3"))
NAMES = ("export", "nvtx_kern_sum", "nvtx_gpu_proj_trace", "cuda_gpu_trace", "cuda_gpu_kern_sum")
TRACEKIT = [sys.executable, "-m", "tracekit"]


def main(report: Path, nsys: str, *names: str) -> None:
    """Compare, and print a table."""
    header = ["job", "nsys s", "tracekit s", "times faster"]
    print_row(header)
    print_row(["---"] * len(header))
    for name in names or NAMES:
        theirs, ours, is_equal = jobs(report, nsys, name.removeprefix("again:"))
        theirs.keeps_exports = name.startswith("again:")
        times = in_turn(theirs, ours)
        print_row(compared(f"{name}{'' if is_equal(theirs.made, ours.made) else ' (DIFFERENT OUTPUT)'}", *times))


def jobs(report: Path, nsys: str, name: str) -> tuple[Job, Job, Callable[[Path, Path], bool]]:
    """Return the jobs of nsys and of tracekit for a name, and a function that compares what they made."""
    if name == "export":
        return export_by_nsys(report, nsys), export_by_tracekit(report), lambda *_: True
    if name.startswith("recipe:"):
        _, recipe, count = name.split(":")
        return (
            recipe_by_nsys(report, nsys, recipe, int(count)),
            recipe_by_tracekit(report, recipe, int(count)),
            same_rows,
        )
    return stats_by_nsys(report, nsys, name), stats_by_tracekit(report, name), same_bytes


def same_bytes(theirs: Path, ours: Path) -> bool:
    """Return whether two files have the same content."""
    return theirs.exists() and theirs.read_bytes() == ours.read_bytes()


def same_rows(theirs: Path, ours: Path) -> bool:
    """Return whether two Parquet files have the same columns and rows."""
    return theirs.exists() and pl.read_parquet(theirs).equals(pl.read_parquet(ours), null_equal=True)


def print_row(cells: list[str]) -> None:
    """Print a row of the table at once, as the next one may take long."""
    print("| " + " | ".join(cells) + " |", flush=True)


class Job:
    """A command that writes a file in a folder of its own, which contains copies of the report.

    Attributes:
        made: The file.
        keeps_exports: Whether a run may use what an earlier run wrote beside the reports.
    """

    def __init__(self, command: list[str], report: Path, made: str, copies: int = 1) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self._output = self.folder / "out"
        self.made = self._output / made
        self.keeps_exports = False
        self._reports = self.folder / "reports"
        self._reports.mkdir()
        paths = [self._reports / f"rank{n}.nsys-rep" for n in range(copies)]
        for path in paths:
            shutil.copy(report, path)
        arguments = [str(a) for c in command for a in (paths if c == "{reports}" else [c])]
        self._command = [a.format(folder=self._output, made=self.made) for a in arguments]

    def run(self) -> float:
        """Run the command without the output of an earlier run. Return seconds."""
        shutil.rmtree(self._output, ignore_errors=True)
        self._output.mkdir()
        for path in self._reports.iterdir():
            if path.suffix != ".nsys-rep" and not self.keeps_exports:
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
    return Job([nsys, "export", "--type", "sqlite", "-o", "{made}", "{reports}"], report, "all.sqlite")


def export_by_tracekit(report: Path) -> Job:
    """Convert all tables to Parquet."""
    return Job([*TRACEKIT, "convert", "{reports}", "{made}", "--to", "parquet"], report, "all")


def stats_by_nsys(report: Path, nsys: str, name: str) -> Job:
    """Print a report of nsys."""
    command = [nsys, "stats", "-q", "-r", name, "-f", "csv", "-o", "{folder}/of_nsys", "{reports}"]
    return Job(command, report, f"of_nsys_{name}.csv")


def stats_by_tracekit(report: Path, name: str) -> Job:
    """Print the same report."""
    command = [*TRACEKIT, "stats", "{reports}", "--report", name, "--format", "csv", "-o", "{made}"]
    return Job(command, report, "of_tracekit.csv")


def recipe_by_nsys(report: Path, nsys: str, recipe: str, copies: int) -> Job:
    """Compute a recipe of nsys."""
    command = [nsys, "recipe", recipe, "--output", "{folder}/recipe", "--input", "{reports}"]
    return Job(command, report, "recipe/rank_stats.parquet", copies)


def recipe_by_tracekit(report: Path, recipe: str, copies: int) -> Job:
    """Compute the same recipe."""
    command = [*TRACEKIT, "recipe", recipe, "{reports}", "-o", "{folder}/recipe"]
    return Job(command, report, "recipe/rank_stats.parquet", copies)


def in_turn(theirs: Job, ours: Job) -> tuple[float, float]:
    """Run two jobs in turn; medians."""
    if theirs.keeps_exports:
        theirs.run()
    times = [(theirs.run(), ours.run()) for _ in range(RUNS)]
    return statistics.median(a for a, _ in times), statistics.median(b for _, b in times)


def compared(job: str, theirs: float, ours: float) -> list[str]:
    """One line of the table."""
    return [job, f"{theirs:.2f}", f"{ours:.2f}", f"{theirs / ours:.1f}"]


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
