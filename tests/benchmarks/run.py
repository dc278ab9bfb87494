"""``make bench``: tracekit against a peer or a plain baseline, same files, same run, medians of 5.

The exports are synthetic with known answers (fixtures/programs/gen_nsys_sqlite.py): 2 M kernels of two processes, and
their twin of one process, because the peer mixes up the correlation ids of several. The reports repeat the events of a
real one (repeat.py), and so does the export that one of them is held against.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
import venv
from pathlib import Path

import deep
import kineto
import ncu
import ncu_rep
import startup
import tfevents

ROOT = Path(__file__).parents[2]
OUT = ROOT / "out" / "bench"
PEER = OUT / "peer"
PEER_PACKAGES = ("nsys-ai==0.3.0", "duckdb==1.5.5", "duckdb-extension-sqlite-scanner==1.5.5")
RUNS = int(os.environ.get("RUNS", "5"))
KERNELS = int(os.environ.get("KERNELS", "2000000"))
EVENTS = int(os.environ.get("EVENTS", "50000000"))
EVENTS_OF_TRAIN_AMP = 3065
NEW_EVENTS = int(os.environ.get("NEW_EVENTS", "2000000"))
EVENTS_OF_OMP, EVENTS_OF_UM = 846, 1663
SAMPLES = float(os.environ.get("SAMPLES", "2000000"))
EVENTS_OF_1_MB = 25_000


def main() -> None:
    """Generate what is missing, measure, print a table."""
    two = generate("two_processes", "--procs", "2")
    one = generate("one_process", "--procs", "1", "--gpus", "1")
    few, many = (repeated("train_amp.nsys-rep", events) for events in (EVENTS // 10, EVENTS))
    same = repeated("train_amp.sqlite", EVENTS // 10)
    rows = [
        row("SQLite → attribution → rollup, 2 processes", ours("end_to_end", two), None),
        row("SQLite → attribution → rollup, 1 process", ours("end_to_end", one), peer(one)),
        row("innermost range of each kernel, alone", ours("innermost", two), None),
        row("ranges 2,000 deep: JSON → group nodes", ours("deep_groups", nested()), None),
        row("kernels: SQLite → Chrome JSON", ours("chrome_kernels", two), None),
        row("8 kernel columns: SQLite → Arrow", ours("read_columns", two), ours("read_columns_baseline", two)),
        row("8 kernel columns, baseline without names", ours("read_columns", two), ours("read_numbers_baseline", two)),
        row(
            "4 tables of events: report → Arrow, against its export",
            ours("event_tables", few),
            ours("event_tables", same),
        ),
        row(f"4 tables of events: report of {EVENTS / 1e6:.0f} M events → Arrow", ours("event_tables", many, 3), None),
        row(
            "OpenMP events: report → Arrow",
            ours("openmp_table", repeated("omp.nsys-rep", NEW_EVENTS, EVENTS_OF_OMP)),
            ours("openmp_baseline", repeated("omp.sqlite", NEW_EVENTS, EVENTS_OF_OMP)),
        ),
        row(
            "unified memory: report → Arrow",
            ours("memory_tables", repeated("um.nsys-rep", NEW_EVENTS, EVENTS_OF_UM)),
            ours("memory_baseline", repeated("um.sqlite", NEW_EVENTS, EVENTS_OF_UM)),
        ),
        row("CPU samples, 20 frames: report → collapsed stacks", ours("collapsed_stacks", samples()), None),
        *(row(*measured) for measured in ncu.measured(OUT, RUNS)),
        *(row(*measured) for measured in kineto.measured(OUT, RUNS)),
        row("Nsight Compute report: metrics → Arrow", *ncu_rep.measure(RUNS)),
        *(row(*measured) for measured in tfevents.measured(OUT, RUNS)),
        row(*startup.measured(repeated("train_amp.nsys-rep", EVENTS_OF_1_MB), OUT, RUNS)),
    ]
    header = ["job", "rows", "s", "M rows/s", "peak MiB", "peer or baseline s", "times faster"]
    lines = ["| " + " | ".join(r) + " |" for r in [header, ["---"] * len(header), *rows]]
    lines.append(f"\n{machine()}; medians of {RUNS} runs.")
    lines.append("Peer: `nsys-ai warm` 0.3.0, the whole process; of Nsight Compute reports NVIDIA's `ncu_report`,")
    lines.append("of PyTorch traces `HolisticTraceAnalysis` 0.5.0, JSON to its frame;")
    lines.append("of event files `tbparse` 0.0.9 and `tensorboard` 2.21.0, which keeps nothing, one run each.")
    lines.append(
        "Baseline: rows of sqlite3 put into Arrow columns; of 4 tables of the report its export; of CSV the csv module."
    )
    lines.append(
        "Of the start the baseline is what the imports of pyarrow and polars take; importtime.txt lists all imports."
    )
    lines += ["", f"The viewer on {KERNELS / 1e6:.1f} M kernels of one process, seconds of one run:", "", *viewer(one)]
    text = "\n".join(lines)
    (OUT / "bench.md").write_text(text + "\n", "utf-8")
    print(text)


def generate(name: str, *options: str) -> Path:
    """Make a big export, once."""
    path = OUT / f"{name}_{KERNELS}.sqlite"
    if not path.with_name(path.name + ".truth.json").exists():
        OUT.mkdir(parents=True, exist_ok=True)
        program = ROOT / "fixtures" / "programs" / "gen_nsys_sqlite.py"
        subprocess.run([sys.executable, program, path, "--kernels", str(KERNELS), *options], check=True)
    return path


def viewer(path: Path) -> list[str]:
    """The steps of the viewer on a capture."""
    command = [sys.executable, str(Path(__file__).with_name("view.py")), str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout.splitlines()


def nested() -> Path:
    """Make a trace of ranges that nest deeply, once."""
    path = OUT / "deep.json"
    return path if path.exists() else deep.write(path)


def samples() -> Path:
    """Make a report of CPU samples, once."""
    path = OUT / f"samples_{SAMPLES:.0f}.nsys-rep"
    if not path.exists():
        OUT.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tests.benchmarks.stacks", str(path), str(SAMPLES / 1e6)]
        subprocess.run(command, check=True, cwd=ROOT)
    return path


def repeated(name: str, events: int, events_of_capture: int = EVENTS_OF_TRAIN_AMP) -> Path:
    """Repeat the events of a real capture until there are about so many, once."""
    source = ROOT / "fixtures" / name
    path = OUT / f"{source.stem}_{events}{source.suffix}"
    if not path.exists():
        made = path.with_name(f"making_{path.name}")
        made.unlink(missing_ok=True)
        program = Path(__file__).with_name("repeat.py")
        subprocess.run([sys.executable, program, source, made, str(events // events_of_capture + 1)], check=True)
        made.rename(path)
    return path


def ours(job: str, path: Path, runs: int = RUNS) -> dict[str, float]:
    """Run a job of ours in fresh processes; medians."""
    command = [sys.executable, str(Path(__file__).with_name("jobs.py")), job, str(path)]
    found = [
        json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(runs)
    ]
    return {key: statistics.median(f[key] for f in found) for key in found[0]}


def peer(path: Path) -> dict[str, float]:
    """Run the peer in an environment and home of its own, without its caches; medians."""
    install_peer()
    times = []
    for _ in range(RUNS):
        for cache in path.parent.glob(f"{path.stem}*"):
            if cache.is_dir():
                shutil.rmtree(cache)
        began = time.perf_counter()
        subprocess.run(
            [PEER / "bin" / "nsys-ai", "warm", path], check=True, capture_output=True, env=peer_environment()
        )
        times.append(time.perf_counter() - began)
    return {"seconds": statistics.median(times)}


def install_peer() -> None:
    """Install the peer, and the DuckDB extension that it would download when run."""
    if not (PEER / "bin" / "nsys-ai").exists():
        venv.create(PEER, with_pip=True)
        subprocess.run([PEER / "bin" / "pip", "install", "--quiet", *PEER_PACKAGES], check=True)
    name = "sqlite_scanner.duckdb_extension"
    target = PEER / "home" / ".duckdb" / "extensions" / "v1.5.5" / "linux_amd64" / name
    if not target.exists():
        extension = next(PEER.rglob(name))
        target.parent.mkdir(parents=True)
        shutil.copy(extension, target)


def peer_environment() -> dict[str, str]:
    """An environment in which the peer finds its extension and touches nothing of ours."""
    return {**os.environ, "HOME": str(PEER / "home")}


def row(job: str, own: dict[str, float], other: dict[str, float] | None) -> list[str]:
    """One line of the table."""
    rate = own["rows"] / own["seconds"] / 1e6
    compared = ["", ""] if other is None else [f"{other['seconds']:.2f}", f"{other['seconds'] / own['seconds']:.1f}"]
    return [job, f"{own['rows']:,.0f}", f"{own['seconds']:.2f}", f"{rate:.2f}", f"{own['peak_mb']:.0f}", *compared]


def machine() -> str:
    """Describe the machine in words that mean something elsewhere."""
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if "model name" in line), platform.machine())
    return f"{os.cpu_count()} cores of {model}, Python {platform.python_version()}"


if __name__ == "__main__":
    main()
