"""How often ``tracekit check`` finds a slow-down, and how often it raises a false alarm.

``python -m tests.benchmarks.power CHECKS`` generates runs with a known variation from run to run and a known change,
checks them, and prints the tables of ``docs/check.md``:

1. The share of checks that are failed by the duration of a step, by slow-down, variation and number of runs per side.
2. The share of checks without a change in which any row (step, kernels) is slower, and in which any is faster.
3. The same for captures that the whole command reads: generated captures of a training program.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tests.builders import training_runs
from tests.builders.check_runs import make_runs
from tracekit.core.check import CheckLimits, check_runs, reduce_to_run
from tracekit.sets.comparison import Summarizer

if TYPE_CHECKING:
    from collections.abc import Iterator

SLOW_DOWNS, VARIATIONS, RUNS = (0.0, 0.01, 0.03, 0.10), (0.01, 0.02, 0.05), (3, 5, 10)
KERNELS = 30


def measure_power(checks: int, variations: tuple[float, ...] = VARIATIONS, *, tail: bool = False) -> Iterator[str]:
    """Yield the first table: checks of the duration of a step, failed because of a planted slow-down."""
    names = [f"{s:.0%} slower" if s else "no change" for s in SLOW_DOWNS]
    yield "| variation | runs per side | " + " | ".join(names) + " |"
    yield "| --- | --- | " + " | ".join(["---"] * len(names)) + " |"
    for variation in variations:
        for runs in RUNS:
            cells = []
            for number, slow_down in enumerate(SLOW_DOWNS):
                failed = 0
                for i in range(checks):
                    seed = (i * 10 + number) * 100 + runs
                    a = make_runs(runs, 2 * seed, variation=variation, tail=tail)
                    b = make_runs(runs, 2 * seed + 1, variation=variation, factor=1 + slow_down, tail=tail)
                    failed += check_runs(a, b, kinds=()).verdict == "slower"
                cells.append(f"{failed / checks:.1%}")
            yield f"| {variation:.0%} | {runs} | " + " | ".join(cells) + " |"


def measure_false_alarms(checks: int) -> Iterator[str]:
    """Yield the second table: checks of a step and of kernels without a change."""
    yield "| variation | runs per side | distribution | any row slower | any row faster |"
    yield "| --- | --- | --- | --- | --- |"
    for tail in (False, True):
        for runs in RUNS:
            slower = faster = 0
            for i in range(checks):
                seed = i * 1000 + runs
                a, b = (make_runs(runs, 2 * seed + s, kernels=KERNELS, tail=tail) for s in (0, 1))
                verdicts = {row.verdict for row in check_runs(a, b, limits=CheckLimits(min_change_percent=0)).rows}
                slower += "slower" in verdicts
                faster += "faster" in verdicts
            name = "heavy tails" if tail else "normal"
            yield f"| 2% | {runs} | {name} | {slower / checks:.1%} | {faster / checks:.1%} |"


def measure_captures(captures: int, checks: int) -> Iterator[str]:
    """Yield the third table: generated captures, read by the whole command and checked in random groups of ten."""
    yield "| checks | change | failed | any row slower |"
    yield "| --- | --- | --- | --- |"
    generator = np.random.default_rng(0)
    summarizer = Summarizer(("iterations", "nvtx_gpu", "ops", "kernels"))
    sides = {}
    for name, options in (("none", {}), ("one kernel 3% slower", {"slow": (("kernel_f<(int)4>", 1.03),)})):
        first = 10_000 if options else 0
        sides[name] = [
            reduce_to_run(summarizer.summarize(training_runs.run(first + i, iterations=6, **options)))
            for i in range(captures)
        ]
    for name, changed in sides.items():
        failed = slower = 0
        for _ in range(checks):
            order = generator.permutation(captures)
            a = [sides["none"][i] for i in order[:10]]
            b = [changed[i] for i in order[10:20]]
            result = check_runs(a, b)
            failed += result.outcome == "failed"
            slower += any(row.verdict == "slower" for row in result.rows)
        yield f"| {checks} | {name} | {failed} | {slower} |"


def measure_command(checks: int, runs: int = 5) -> Iterator[str]:
    """Yield the fourth table: the whole command on files of generated captures, new ones for each check."""
    from click.testing import CliRunner
    from tracekit.cli import cli

    yield "| checks of files | change | exit status 3 | exit status 4 |"
    yield "| --- | --- | --- | --- |"
    for name, factor in (("none", 1.0), ("one kernel 20% slower", 1.2)):
        statuses = []
        for i in range(checks):
            with tempfile.TemporaryDirectory() as folder:
                for side in (0, 1):
                    for number in range(runs):
                        seed = 100_000 + ((i * 2 + side) * runs + number) * 2 + (factor > 1)
                        slow = (("kernel_f<(int)4>", factor),) if side else ()
                        path = Path(folder) / str(side) / f"run{number}"
                        path.parent.mkdir(exist_ok=True)
                        training_runs.run(seed, iterations=4, slow=slow).export(path, format="parquet")
                arguments = ["check", f"{folder}/0/*", f"{folder}/1/*", "--fail-if", "slower > 0", "-q"]
                statuses.append(CliRunner().invoke(cli, arguments, standalone_mode=False).return_value)
        yield f"| {checks} | {name} | {statuses.count(3)} | {statuses.count(4)} |"


if __name__ == "__main__":
    began = time.perf_counter()
    count = int(sys.argv[1])
    tables = (
        measure_power(count),
        measure_power(count, (0.02,), tail=True),
        measure_false_alarms(count),
        measure_captures(40, 100),
        measure_command(max(count // 20, 1)),
    )
    for table in tables:
        for line in table:
            print(line, flush=True)
        print(f"\n({time.perf_counter() - began:,.0f} s)\n", flush=True)
