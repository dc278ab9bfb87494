"""How well ``tracekit watch`` finds planted delays, and what many ranks cost.

``python -m tests.benchmarks.watch`` compares windows of generated ranks (``tests/builders/watched_ranks.py``) with and
without a rank that is slower in one phase, for several numbers of ranks and sizes of the delay, and prints how many
delays are named with rank and phase, how many alarms name something else, and how many alarms there are without delays.

``python -m tests.benchmarks.watch FOLDER RANKS WINDOWS [KILLS]`` watches a folder in which the captures of many ranks
arrive, kills the watch at random times and starts it again, and checks that each capture was counted once and that the
planted delays were named. It prints the memory by the number of captures, and how long after its last capture the
alarms of a window came.
"""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.builders.watched_ranks import PHASES, STEP_US, Delay, build_tables, write_window
from tracekit.core.watch import compare_ranks, summarize_capture

if TYPE_CHECKING:
    from collections.abc import Iterator

DELAYS_US = (200, 300, 400, 600, 1000, 2000)
WINDOWS_BY_RANKS = {2: 100, 8: 100, 64: 40, 1000: 8}
HEADER = ("ranks", "delay per step", "share of a step", "steps", "named", "rank alone", "other alarms", "windows")
SAMPLE_S = 2.0


class Counts(NamedTuple):
    """How many planted delays were named, for how many only the rank, and how many alarms were about something else."""

    named: int = 0
    rank_alone: int = 0
    other: int = 0


def measure(windows_by_ranks: dict[int, int], delays_us: tuple[int, ...] = DELAYS_US) -> Iterator[str]:
    """Yield the lines of a table of planted delays."""
    yield from ("| " + " | ".join(cells) + " |" for cells in (HEADER, ["---"] * len(HEADER)))
    for ranks, windows in windows_by_ranks.items():
        quiet = [count(ranks, window, None) for window in range(windows)]
        yield _format_line(f"{ranks:,}", "none", "", "", 0, 0, sum(c.other for c in quiet), windows)
        for us in delays_us:
            for every in (1, 4):
                plans = [Delay((7 * w) % ranks, PHASES[w % len(PHASES)], us, every) for w in range(windows)]
                results = [count(ranks, window, delay) for window, delay in enumerate(plans)]
                total = Counts(*(sum(column) for column in zip(*results, strict=True)))
                steps = "all" if every == 1 else f"each {every}th"
                yield _format_line(
                    f"{ranks:,}", f"{us / 1000:g} ms", f"{us / every / STEP_US:.1%}", steps, *total, windows
                )


def count(ranks: int, window: int, delay: Delay | None) -> Counts:
    """Compare the ranks of one window."""
    tables = build_tables(window, range(ranks), delays=[delay] if delay else [], seed=ranks)
    named = alone = other = 0
    for finding in compare_ranks(summarize_capture(tables, {rank: rank for rank in range(ranks)}, ranks)):
        phase = finding.causes[0].phase if finding.causes else None
        is_rank = delay is not None and finding.rank == delay.rank
        named += is_rank and delay is not None and phase == delay.phase
        alone += is_rank and phase is None
        other += not is_rank or phase not in (None, delay.phase if delay else None)
    return Counts(named, alone, other)


def _format_line(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


class Watch:
    """The process ``tracekit watch``, which can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.alarms, self.metrics = folder / "alarms.jsonl", folder / "tracekit.prom"
        self._command = [sys.executable, "-m", "tracekit", "watch", folder / "captures", "--state", folder / "state"]
        self._command += ["--alarms", self.alarms, "--prometheus", self.metrics, "--interval", "1s", "--settle", "1s"]
        self._command += ["--jobs", "2", "--wait", "86400s", "-q"]
        self.samples: list[tuple[int, int]] = []
        self.kills = 0
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command)

    def kill(self) -> None:
        """Kill the process in the middle of whatever it does, and start it again."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.kills += 1
        self.start()

    def sample(self) -> None:
        """Record the number of captures so far, and the memory of the process and its workers in MiB."""
        pids, total = [self.process.pid], 0
        while pids:
            pid = pids.pop()
            try:
                status = Path(f"/proc/{pid}/status").read_text()
                children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
            except OSError:
                continue
            total += int((re.search(r"VmRSS:\s+(\d+)", status) or ["", "0"])[1]) // 1024
            pids += map(int, children.split())
        self.samples.append((self.count_captures(), total))

    def count_captures(self) -> int:
        """Return the number of captures according to the metrics."""
        try:
            text = self.metrics.read_text()
        except OSError:
            return 0
        match = re.search(r"^tracekit_watch_captures_total (\d+)", text, re.MULTILINE)
        return int(match[1]) if match else 0


def run(folder: Path, ranks: int, windows: int, kills: int) -> None:
    """Watch generated captures, kill the watch, and print what was found."""
    folder.mkdir(parents=True)
    (folder / "captures").mkdir()
    watch = Watch(folder)
    rng = random.Random(1)
    sampling = threading.Event()
    thread = threading.Thread(target=_sample_until, args=(watch, sampling))
    thread.start()
    planted, written, began = {}, {}, time.time()
    kill_at = sorted(rng.uniform(0.02, 0.98) * ranks * windows for _ in range(kills))
    for window in range(windows):
        delays = [
            Delay(rank, phase, us, every)
            for rank, phase, us, every in zip(
                rng.sample(range(ranks), 6),
                ("data", "forward", "backward", "optimizer", "data", "forward"),
                (400, 600, 1000, 2000, 3000, 4000),
                (1, 1, 1, 1, 2, 2),
                strict=True,
            )
        ]
        planted[window] = {(d.rank, d.phase) for d in delays}
        write_window(folder / "captures", window, range(ranks), delays=delays)
        written[window] = time.time()
        while (read := watch.count_captures()) < ranks * (window + 1):
            if kill_at and read >= kill_at[0]:
                kill_at.pop(0)
                time.sleep(rng.uniform(0, 5))
                watch.kill()
            assert watch.process.poll() is None, "the watch ended"
            time.sleep(0.5)
        print(f"window {window}: {time.time() - written[window]:.0f} s", flush=True)
    time.sleep(5)
    sampling.set()
    thread.join()
    interrupted = time.time()
    watch.process.send_signal(signal.SIGINT)
    status = watch.process.wait()
    print(f"\nCtrl-C: status {status} after {time.time() - interrupted:.2f} s")
    print(
        f"{watch.count_captures():,} captures of {ranks * windows:,} counted, {watch.kills} kills, "
        f"{ranks * windows / (time.time() - began):.1f} captures per second"
    )
    _print_memory(watch.samples)
    _print_alarms(watch.alarms, planted)


def _sample_until(watch: Watch, end: threading.Event) -> None:
    while not end.wait(SAMPLE_S):
        watch.sample()


def _print_memory(samples: list[tuple[int, int]]) -> None:
    """Print the largest memory in each eighth of the captures."""
    last = max(captures for captures, _ in samples) or 1
    for part in range(8):
        low, high = last * part // 8, last * (part + 1) // 8
        peaks = [mib for captures, mib in samples if low <= captures <= high]
        if peaks:
            print(f"| {low:,} to {high:,} captures | {max(peaks)} MiB |")


def _print_alarms(path: Path, planted: dict[int, set[tuple[int, str]]]) -> None:
    """Compare the alarms with the planted delays."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({line["id"] for line in lines}) == len(lines), "an alarm is in the file twice"
    named = {(line["window"]["first_step"] // 8, line["rank"], line["phase"]) for line in lines if line["window"]}
    true = {(window, *each) for window, delays in planted.items() for each in delays}
    print(f"{len(true & named)} of {len(true)} delays named, {len(named - true)} other alarms of {len(lines)}")
    for each in sorted(named - true, key=str):
        print("other:", each)
    for each in sorted(true - named):
        print("missed:", each)
    for line in lines[:3]:
        assert datetime.fromisoformat(line["time_utc"])
        print(line["sentence"])


def main() -> int:
    if len(sys.argv) > 1:
        folder, ranks, windows, *rest = sys.argv[1:]
        run(Path(folder), int(ranks), int(windows), int(rest[0]) if rest else 0)
        return 0
    for line in measure(WINDOWS_BY_RANKS):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
