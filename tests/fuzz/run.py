"""Reads mutated files in a process of its own, each within limits of time and memory that the system holds.

``python -m tests.fuzz.run nsys_rep 4711 1`` runs one case again; ``--keep FILE`` writes the file that it reads.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

import tracekit as tk

ROOT = Path(__file__).parents[2]
SECONDS, BYTES = 2.0, 1 << 30
WHOLE, SOME = 16, 3
"""Of a format with many tables every sixteenth case reads all of them, the others three."""
MOST_FAILURES = 10
STATUS, FORGET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Target(Protocol):
    """A module of this folder: the format, and its mutated files by number; TABLES, if it has many."""

    FORMAT: str
    SUFFIX: str

    def made(self, case: int) -> tuple[str, bytes]:
        """Make a file: what was done to which, and its bytes. The same for the same number."""
        ...

    def unharmed(self) -> bytes:
        """Return a file as it should be."""
        ...


@dataclass
class Measured:
    """What cases took.

    Attributes:
        failures: What must not be, by case.
        slowest: Seconds of the processor, and the case.
        largest: Bytes of memory beyond those before, and the case.
    """

    failures: list[str] = field(default_factory=list)
    slowest: tuple[float, int] = (0.0, -1)
    largest: tuple[int, int] = (0, -1)


@dataclass
class Ended(Measured):
    """How cases ended.

    Attributes:
        errors: Cases that ended in an error of ours.
        traces: Cases of which every table was read.
    """

    errors: int = 0
    traces: int = 0


def run(name: str, first: int, number: int) -> Ended:
    """Run cases in a process of its own, which is not measured for coverage."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COV")}
    command = [sys.executable, "-m", "tests.fuzz.run", name, str(first), str(number)]
    timeout = 60 + number * SECONDS
    with tempfile.TemporaryFile("w+") as said:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=said, timeout=timeout, check=False
        )
        said.seek(0)
        told = said.read()[-3000:]
    if done.returncode == 0:
        return Ended(**json.loads(done.stdout))
    how = "took too long" if done.returncode == -signal.SIGPROF else f"ended the process: {done.returncode}"
    return Ended(failures=[f"the last case {how}\n{told}"])


def main(name: str, first: str, number: str, *keep: str) -> None:
    """Run cases and print how they ended."""
    target: Target = importlib.import_module(f"tests.fuzz.{name}")  # type: ignore[assignment]
    ended = Ended()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"case{target.SUFFIX}"
        path.write_bytes(target.unharmed())
        read_all(path, target.FORMAT)
        limit_memory()
        for case in range(int(first), int(first) + int(number)):
            what, data = target.made(case)
            sys.stderr.write(f"{name} case {case}: {what}, {len(data)} bytes\n")
            path.write_bytes(data)
            if keep:
                Path(keep[1]).write_bytes(data)
            run_one(path, target.FORMAT if case % 2 else None, case, ended, wanted(target, case))
            if len(ended.failures) == MOST_FAILURES:
                break
    print(json.dumps(asdict(ended)))


def wanted(target: Target, case: int) -> list[str] | None:
    """Choose the tables that a case reads; None is all of them."""
    tables: Sequence[str] = getattr(target, "TABLES", ())
    return random.Random(case).sample(tables, SOME) if tables and case % WHOLE else None


@contextlib.contextmanager
def measured(case: int, ended: Measured, limit: float = SECONDS) -> Iterator[None]:
    """Record the time and memory that a case takes; the system ends this process after ``limit`` seconds."""
    before, began = peak(forget=True), time.process_time()
    signal.setitimer(signal.ITIMER_PROF, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        seconds, more = time.process_time() - began, peak() - before
        ended.slowest = max(ended.slowest, (seconds, case))
        ended.largest = max(ended.largest, (more, case))
        if more > BYTES:
            ended.failures.append(f"case {case}: {more} bytes")


def run_one(path: Path, format: str | None, case: int, ended: Ended, tables: list[str] | None) -> None:
    """Read one file; the system ends this process if that takes too long."""
    try:
        with measured(case, ended):
            errors = read_all(path, format, tables)
    except Exception as e:  # noqa: BLE001 - its text may be private
        where = "".join(traceback.format_tb(e.__traceback__)[-4:])
        ended.failures.append(f"case {case}: {type(e).__name__}\n{where}")
        return
    ended.errors += bool(errors)
    ended.traces += not errors


def read_all(path: Path, format: str | None, tables: list[str] | None = None) -> list[str]:
    """Read every declared table, or some, whatever becomes of the others; name the errors of ours."""
    errors: list[str] = []
    try:
        trace = tk.load(path, format)
    except tk.TracekitError as e:
        return [named(e, path)]
    with trace:
        for name in tables or trace.tables:
            try:
                counted = trace.count(name)
                table = trace[name]
                table.validate(full=True)
                assert trace.count(name) == counted == table.num_rows, name
            except tk.TracekitError as e:
                errors.append(named(e, path))
        try:
            assert all(u.count > 0 for u in trace.undecoded.values())
        except tk.TracekitError as e:
            errors.append(named(e, path))
    return errors


def named(error: tk.TracekitError, path: Path) -> str:
    """Name the kind of an error, which says the file and what to do."""
    assert str(error).startswith(f"{path}: "), "an error that does not begin with the file"
    assert error.hint, "an error without a hint"
    return type(error).__name__


def peak(*, forget: bool = False) -> int:
    """Most memory held so far, or since it was last forgotten, where the system can forget it."""
    if forget and FORGET.exists():
        FORGET.write_text("5", "ascii")
    if STATUS.exists():
        lines = dict(line.split(":", 1) for line in STATUS.read_text("ascii", "replace").splitlines())
        return int(lines["VmHWM"].split()[0]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << (0 if sys.platform == "darwin" else 10)


def limit_memory() -> None:
    """Let the system refuse memory beyond the limit."""
    if STATUS.exists():
        lines = dict(line.split(":", 1) for line in STATUS.read_text("ascii", "replace").splitlines())
        held = int(lines["VmData"].split()[0]) << 10
        resource.setrlimit(resource.RLIMIT_DATA, (held + BYTES, resource.RLIM_INFINITY))


if __name__ == "__main__":
    main(*sys.argv[1:])
