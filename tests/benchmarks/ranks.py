"""Many generated ranks on Dask: ``python ranks.py FOLDER [RANKS]`` generates what is missing, and prints a table.

It checks that one and two workers give the sequential result, also if a worker is killed in the middle or some files
are damaged, and measures the time and the peak memory of the workers. Numbers of ranks and kernels can be smaller:
``KERNELS=2000 python ranks.py FOLDER 8``.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import distributed
import tracekit as tk
from tracekit.sets import LocalEngine

if TYPE_CHECKING:
    import polars as pl

ROOT = Path(__file__).parents[2]
GENERATOR = ROOT / "fixtures" / "programs" / "gen_nsys_sqlite.py"
KERNELS = os.environ.get("KERNELS", "200000")
RECIPE = "cuda_gpu_kern_sum"
DAMAGED = 3
OF_ONE_GPU = ("--procs", "1", "--gpus", "1", "--no-truth")

Tables = dict[str, "pl.DataFrame"]


def main() -> None:
    """Generate, measure, compare, and print."""
    folder, count = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 64
    files = [generate(folder, number) for number in range(count)]
    expected, seconds = timed(functools.partial(compute, files, None))
    print(f"| sequential, {count} ranks | {seconds:.1f} s | |")
    times = {}
    for workers, ranks in ((1, count), (2, count), (2, count // 4)):
        with cluster(workers) as client:
            warm_up(client, files[0])
            found, seconds = timed(functools.partial(compute, files[:ranks], client))
            times[workers, ranks] = seconds
            assert ranks < count or equal(found, expected)
            peaks = max(client.run(peak_mib).values())
        print(f"| {workers} workers, {ranks} ranks | {seconds:.1f} s | {peaks:.0f} MiB per worker |")
    print(f"| two workers, times faster than one | {times[1, count] / times[2, count]:.2f} | |")
    _, seconds = timed(functools.partial(compute, files, LocalEngine(2)))
    print(f"| two local processes, with their start | {seconds:.1f} s | |")
    with cluster(2) as client:
        victim = min(client.run(os.getpid).values())
        timer = threading.Timer(times[2, count] / 2, os.kill, (victim, signal.SIGKILL))
        timer.start()
        assert equal(compute(files, client), expected)
        timer.join()
        assert victim not in client.run(os.getpid).values()
    print("| one of two workers killed in the middle | equal | |")
    check_damaged(folder, files)


def check_damaged(folder: Path, files: list[Path]) -> None:
    """Check that damaged files are listed, and that the others give the sequential result."""
    broken = [file.absolute() for file in files]
    for number in range(1, len(files), len(files) // DAMAGED)[:DAMAGED]:
        broken[number] = folder / f"damaged{number}.sqlite"
        broken[number].write_bytes(files[number].read_bytes()[: files[number].stat().st_size // 2])
    left = [file for file in broken if "damaged" not in file.name]
    with cluster(2) as client, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traces = tk.load_many(broken, ranks=numbered(broken), engine=client)
        tables = traces.recipe(RECIPE)
        ranks = {path.name: number for number, path in enumerate(broken)}
        assert equal(tables, tk.load_many(left, ranks={p.name: ranks[p.name] for p in left}).recipe(RECIPE))
    print(f"| {DAMAGED} damaged files | equal without them, {len(traces.errors)} errors are listed | |")


def generate(folder: Path, number: int) -> Path:
    """Return the capture of a rank, which is generated if it does not exist."""
    file = folder / f"seed{number}.sqlite"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, GENERATOR, file, "--kernels", KERNELS, "--seed", str(number), *OF_ONE_GPU]
        subprocess.run(command, check=True, capture_output=True)
    return file


def compute(files: list[Path], engine: object) -> Tables:
    return tk.load_many(files, ranks=numbered(files), engine=engine).recipe(RECIPE)


def numbered(files: list[Path]) -> dict[str, int]:
    return {file.name: number for number, file in enumerate(files)}


def equal(tables: Tables, expected: Tables) -> bool:
    return all(tables[name].equals(expected[name]) for name in expected if name != "files")


def timed(function: functools.partial[Tables]) -> tuple[Tables, float]:
    began = time.perf_counter()
    return function(), time.perf_counter() - began


def cluster(workers: int) -> distributed.Client:
    """Return a client of workers on this machine with one thread each. Closing it ends them."""
    return distributed.Client(n_workers=workers, threads_per_worker=1, dashboard_address=None)


def warm_up(client: distributed.Client, file: Path) -> None:
    """Give every worker one core, and let it import what it needs, which is done once however many ranks there are.

    Otherwise, one worker would use all cores, because reading uses several threads.
    """
    for core, worker in zip(sorted(os.sched_getaffinity(0)), client.scheduler_info()["workers"], strict=False):
        client.run(os.sched_setaffinity, 0, {core}, workers=[worker])
    client.run(warm_worker, str(file))


def warm_worker(file: str) -> None:
    tk.load_many(file, ranks={Path(file).name: 0}).recipe(RECIPE)


def peak_mib() -> float:
    """Return the peak memory of this process. The maximum of getrusage would include that of the parent process."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


if __name__ == "__main__":
    main()
