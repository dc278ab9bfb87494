"""``make bench``: tracekit against a peer or a plain baseline, with the same files in the same run.

``make bench JOB=text`` runs the jobs whose names contain the text. ``JOB=growth`` runs each command with exports of
``SIZES=0.25,1`` million events, and with ``--memory`` of ``LIMIT_MB=400``. ``JOB=diff`` compares
``PAIRS=100`` pairs of runs, ``JOB=makers`` reads captures of other makers, and ``JOB=watch`` finds delays of generated
ranks. They take minutes, and therefore run only if they are named. ``JOB=why`` compares the savings that ``tracekit
why`` predicts with true ones; ``TRUTH=FOLDER:FOLDER`` are folders with further captures. ``JOB=answers`` scores its
answers to questions about captures with known causes; ``ANSWERS=FILE:FILE`` are files with answers of any tool, which
are scored instead.

The exports are synthetic with known answers (fixtures/programs/gen_nsys_sqlite.py): 2 M kernels of two processes, and
their twin of one process, because the peer mixes up the correlation ids of several. The reports repeat the events of a
real one (repeat.py), and so does the export that one of them is held against.
"""

from __future__ import annotations

import compileall
import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import deep
import growth
import kineto
import makers
import ncu
import ncu_rep
import startup
import tfevents
from measuring import BUDGET_S, RUNS, Measure, install, installation_s, median_of_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
OUT = ROOT / "out" / "bench"
PEER = OUT / "peer"
PEER_PACKAGES = ("nsys-ai==0.3.0", "duckdb==1.5.5", "duckdb-extension-sqlite-scanner==1.5.5")
KERNELS = int(os.environ.get("KERNELS", "2000000"))
EVENTS = int(os.environ.get("EVENTS", "50000000"))
KERNELS_OF_1_M_EVENTS = 400_000
EVENTS_OF_TRAIN_AMP = 3065
NEW_EVENTS = int(os.environ.get("NEW_EVENTS", "2000000"))
EVENTS_OF_OMP, EVENTS_OF_UM = 846, 1663
SAMPLES = float(os.environ.get("SAMPLES", "2000000"))
EVENTS_OF_1_MB = 25_000
PAIRS = int(os.environ.get("PAIRS", "100"))
LIMIT_MB = int(os.environ.get("LIMIT_MB", "400"))
SIZES = [int(float(n) * 1e6) for n in os.environ.get("SIZES", "0.25,1").split(",")]
EVENTS_OF_100_K_KERNELS = 250_000


@dataclass(frozen=True)
class Job:
    """A line of the table. ``measure`` returns the figures of tracekit, and those of a peer or baseline, if any."""

    name: str
    measure: Callable[[], tuple[Measure, Measure | None]]


JOBS = [
    Job("SQLite → attribution → rollup, 2 processes", lambda: (ours("end_to_end", two()), None)),
    Job("SQLite → attribution → rollup, 1 process", lambda: (ours("end_to_end", one()), peer(one()))),
    Job("innermost range of each kernel, alone", lambda: (ours("innermost", two()), None)),
    Job("ranges 2,000 deep: JSON → group nodes", lambda: (ours("deep_groups", nested()), None)),
    Job("layers of 1 M replayed kernels", lambda: (ours("layers", OUT), None)),
    Job("alignment of 100 k replayed kernels, 20 graphs of 1 k", lambda: (ours("alignment", OUT), None)),
    Job("kernels: SQLite → Chrome JSON", lambda: (ours("chrome_kernels", two()), None)),
    Job(
        "timeline: SQLite → Perfetto trace, against Chrome JSON",
        lambda: both("perfetto_timeline", "chrome_timeline", two()),
    ),
    Job("8 kernel columns: SQLite → Arrow", lambda: both("read_columns", "read_columns_baseline", two())),
    Job("8 kernel columns, baseline without names", lambda: both("read_columns", "read_numbers_baseline", two())),
    Job(
        "4 tables of events: report → Arrow, against its export",
        lambda: (
            ours("event_tables", repeated("train_amp.nsys-rep", EVENTS // 10)),
            ours("event_tables", repeated("train_amp.sqlite", EVENTS // 10)),
        ),
    ),
    Job(
        f"4 tables of events: report of {EVENTS / 1e6:.0f} M events → Arrow",
        lambda: (ours("event_tables", repeated("train_amp.nsys-rep", EVENTS)), None),
    ),
    Job(
        "OpenMP events: report → Arrow",
        lambda: (
            ours("openmp_table", repeated("omp.nsys-rep", NEW_EVENTS, EVENTS_OF_OMP)),
            ours("openmp_baseline", repeated("omp.sqlite", NEW_EVENTS, EVENTS_OF_OMP)),
        ),
    ),
    Job(
        "unified memory: report → Arrow",
        lambda: (
            ours("memory_tables", repeated("um.nsys-rep", NEW_EVENTS, EVENTS_OF_UM)),
            ours("memory_baseline", repeated("um.sqlite", NEW_EVENTS, EVENTS_OF_UM)),
        ),
    ),
    Job("CPU samples, 20 frames: report → collapsed stacks", lambda: (ours("collapsed_stacks", samples()), None)),
    Job("cells of ncu-csv, raw page", lambda: ncu.raw_page(OUT)),
    Job("cells of ncu-csv, details page", lambda: ncu.details_page(OUT)),
    Job("PyTorch profiler trace: events → Arrow", lambda: kineto.plain_trace(OUT)),
    Job("PyTorch profiler trace, gzipped: events → Arrow", lambda: kineto.gzipped_trace(OUT)),
    Job("PyTorch profiler traces of 8 ranks: overlap, idle and kernel breakdown", lambda: kineto.breakdown(OUT)),
    Job("Nsight Compute report: metrics → Arrow", lambda: ncu_rep.measure(OUT)),
    Job("TensorBoard events: points → Arrow, peer tbparse", lambda: tfevents.against("tbparse", OUT)),
    Job("TensorBoard events, peer TensorBoard, which only reads", lambda: tfevents.against("tensorboard", OUT)),
    Job(
        "start of `stats`, report of 1 MB, beyond the interpreter",
        lambda: startup.measured(repeated("train_amp.nsys-rep", EVENTS_OF_1_MB), OUT),
    ),
]
MAKERS = [Job(f"makers: {makers.title(module)}", partial(makers.measure, module, OUT)) for module in makers.MODULES]
"""These take many minutes together. Like PLANTED, they run only if they are named, as with JOB=makers."""
VIEWER = "viewer: time to the verdict, weight of pages, memory"
GROWTH = "growth: time and memory of each command by number of events"
PLANTED = "diff: kernels that became slower"
WHY = "why: predicted and true savings"
ANSWERS = "answers: causes, places, savings and refusals"
WATCH = "watch: planted delays of ranks"
HEADER = ["job", "rows", "s", "M rows/s", "peak MiB", "peer or baseline s", "times faster"]
NOTES = """
Medians of up to {runs} runs; a job is not repeated once its runs took {budget:.0f} s.
Peer: `nsys-ai warm` 0.3.0, the whole process; of Nsight Compute reports NVIDIA's `ncu_report`, of PyTorch traces
`HolisticTraceAnalysis` 0.5.0, JSON to its frame; of event files `tbparse` 0.0.9 and `tensorboard` 2.21.0.
Baseline: rows of sqlite3 as Arrow columns; of 4 tables of the report its export; of CSV the csv module; of the start
the imports of pyarrow and polars. importtime.txt lists all imports.
"""


def main(part: str = "") -> int:
    """Measure the jobs whose names contain a text, print each line when it is measured, and return the exit status."""
    jobs = [job for job in (*JOBS, *(MAKERS if part else ())) if part.casefold() in job.name.casefold()]
    listed = (GROWTH, VIEWER, WHY, ANSWERS, *([PLANTED, WATCH] if part else []))
    others = [name for name in listed if part.casefold() in name]
    if not jobs and not others:
        names = [*(job.name for job in (*JOBS, *MAKERS)), *listed]
        print("no job contains", repr(part), "in its name; the jobs are:", *names, sep="\n")
        return 1
    OUT.mkdir(parents=True, exist_ok=True)
    compileall.compile_dir(ROOT / "tracekit", quiet=1)  # as pip does with a wheel
    with (OUT / "bench.md").open("w", encoding="utf-8") as file:
        failed = False
        for line in measured_lines(jobs, others):
            failed |= "| failed |" in line
            print(line, flush=True)
            print(line, file=file, flush=True)
    return int(failed)


def measured_lines(jobs: list[Job], others: list[str]) -> Iterator[str]:
    """Measure each job, and yield its line of the table. Then measure those that print a table of their own."""
    began = time.perf_counter()
    yield machine()
    yield ""
    if jobs:
        yield from ("| " + " | ".join(cells) + " |" for cells in (HEADER, ["---"] * len(HEADER)))
        yield from ("| " + " | ".join(cells_of(job)) + " |" for job in jobs)
        yield NOTES.format(runs=RUNS, budget=BUDGET_S)
    if GROWTH in others:
        yield "Each command, by number of events:"
        yield ""
        yield from growth.measured({events: grown(events) for events in SIZES}, LIMIT_MB, OUT)
        yield ""
    if VIEWER in others:
        yield "The viewer on a capture of 1 M events, and the weight of pages of small captures:"
        yield ""
        yield from module_lines("tests.benchmarks.view", str(one(KERNELS_OF_1_M_EVENTS)))
        yield ""
    if PLANTED in others:
        yield "Pairs of runs of one program, 40 iterations each, compared with `tracekit.diff`:"
        yield ""
        yield from module_lines("tests.benchmarks.planted", str(PAIRS))
    if WATCH in others:
        yield "Windows of generated ranks, one of which is slower in one phase, compared by `tracekit watch`:"
        yield ""
        yield from module_lines("tests.benchmarks.watch")
        yield ""
    if WHY in others:
        yield "What cures save, predicted by `tracekit why` and true, as shares of a step:"
        yield ""
        yield from module_lines("tests.benchmarks.why", *filter(None, os.environ.get("TRUTH", "").split(":")))
        yield ""
    if ANSWERS in others:
        yield "Answers to questions about captures with known causes:"
        yield ""
        files = [*filter(None, os.environ.get("ANSWERS", "").split(":"))]
        yield from module_lines("tests.benchmarks.answers", *(["score", *files] if files else []))
        yield ""
    installing = sum(installation_s)
    yield f"Took {time.perf_counter() - began - installing:.0f} s, and {installing:.0f} s more to install the peers."


def cells_of(job: Job) -> list[str]:
    """Run a job; return the cells of its line. The others go on if it fails."""
    try:
        return row(job.name, *job.measure())
    except subprocess.CalledProcessError as error:
        print(error.stderr, file=sys.stderr)
        return [job.name, "failed", *[""] * (len(HEADER) - 2)]


def two() -> Path:
    """Generate an export of two processes, once."""
    return generate("two_processes", KERNELS, "--procs", "2")


def one(kernels: int = KERNELS) -> Path:
    """Generate an export of one process, once."""
    return generate("one_process", kernels, "--procs", "1", "--gpus", "1")


def both(own: str, baseline: str, path: Path) -> tuple[Measure, Measure]:
    """Run a job of tracekit and its baseline on one file."""
    return ours(own, path), ours(baseline, path)


def generate(name: str, kernels: int, *options: str) -> Path:
    """Make a big export, once."""
    path = OUT / f"{name}_{kernels}.sqlite"
    if not path.with_name(path.name + ".truth.json").exists():
        OUT.mkdir(parents=True, exist_ok=True)
        program = ROOT / "fixtures" / "programs" / "gen_nsys_sqlite.py"
        subprocess.run([sys.executable, program, path, "--kernels", str(kernels), *options], check=True)
    return path


def module_lines(module: str, *arguments: str) -> Iterator[str]:
    """Run a module that prints a table, and yield its lines, each when it is measured."""
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        yield from (line.rstrip("\n") for line in process.stdout or ())
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


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


def grown(events: int) -> Path:
    """Continue a generated export of two processes until it has about so many events, once."""
    source = generate("two_processes", 100_000, "--procs", "2")
    return make(OUT / f"grown_{events}.sqlite", source, events // EVENTS_OF_100_K_KERNELS, "continue")


def repeated(name: str, events: int, events_of_capture: int = EVENTS_OF_TRAIN_AMP) -> Path:
    """Repeat the events of a real capture until there are about so many, once."""
    source = ROOT / "fixtures" / name
    return make(OUT / f"{source.stem}_{events}{source.suffix}", source, events // events_of_capture + 1)


def make(path: Path, source: Path, times: int, *options: str) -> Path:
    """Make a capture of the events of another one with repeat.py, once."""
    if not path.exists():
        made = path.with_name(f"making_{path.name}")
        made.unlink(missing_ok=True)
        program = Path(__file__).with_name("repeat.py")
        subprocess.run([sys.executable, program, source, made, str(times), *options], check=True)
        made.rename(path)
    return path


def ours(job: str, path: Path) -> Measure:
    """Run a job of jobs.py in fresh processes; medians."""
    return median_of_runs([sys.executable, str(Path(__file__).with_name("jobs.py")), job, str(path)])


def peer(path: Path) -> Measure:
    """Run the peer once, in an environment and home of its own, without its caches."""
    install_peer()
    for cache in path.parent.glob(f"{path.stem}*"):
        if cache.is_dir():
            shutil.rmtree(cache)
    began = time.perf_counter()
    subprocess.run([PEER / "bin" / "nsys-ai", "warm", path], check=True, capture_output=True, env=peer_environment())
    return {"seconds": time.perf_counter() - began}


def install_peer() -> None:
    """Install the peer, and the DuckDB extension that it would download when run."""
    install(PEER, PEER_PACKAGES)
    name = "sqlite_scanner.duckdb_extension"
    target = PEER / "home" / ".duckdb" / "extensions" / "v1.5.5" / "linux_amd64" / name
    if not target.exists():
        extension = next(PEER.rglob(name))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(extension, target)


def peer_environment() -> dict[str, str]:
    """An environment in which the peer finds its extension and touches nothing of ours."""
    return {**os.environ, "HOME": str(PEER / "home")}


def row(job: str, own: Measure, other: Measure | None) -> list[str]:
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
    sys.exit(main(*sys.argv[1:]))
