"""A process that is killed at any moment leaves a complete output or none, and nothing that the next run keeps."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
from tests import fork_server
from tests.conftest import ALL
from tracekit import registry
from tracekit.system import targets

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "fixtures" / "train_amp.nsys-rep"
STACKS = ROOT / "fixtures" / "osrt_libs.nsys-rep"
EXPORT = ROOT / "fixtures" / "graph_node.sqlite"
SEED = 19
MOMENTS = 50 if ALL else 3
PROGRAM = """
import os, runpy, signal, sys
at, seconds = int(sys.argv.pop(1)), float(sys.argv.pop(1))
count = 0
def hook(event, arguments):
    global count
    count += 1
    if count == at:
        os.kill(os.getpid(), signal.SIGKILL)
signal.signal(signal.SIGALRM, signal.SIG_DFL)
signal.setitimer(signal.ITIMER_REAL, seconds)
sys.addaudithook(hook)
try:
    runpy.run_module("tracekit", run_name="__main__", alter_sys=True)
finally:
    if not at:
        print("events", count, file=sys.stderr)
"""
"""The program, which is killed when Python reports the n-th event, or by an alarm in the middle of anything."""


def commands() -> dict[str, list[str]]:
    """Return a command for each exporter, for output to a pipe, and for each kind of file that is redacted."""
    exported = {
        e.format: [
            "convert",
            str(STACKS if e.format in ("collapsed", "pprof", "speedscope") else REPORT),
            "OUT",
            "--to",
        ]
        for e in registry.exporters().values()
    }
    return {
        **{name: [*words, name] for name, words in exported.items()},
        "pipe": ["convert", str(REPORT), "-", "--to", "chrome-trace"],
        "redact-report": ["redact", str(REPORT), "OUT", "--key-file", "KEY"],
        "redact-export": ["redact", str(EXPORT), "OUT", "--key-file", "KEY"],
    }


def contents(path: Path) -> dict[str, bytes]:
    """Return the content of a file, or of all files in a folder, by relative path."""
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return {str(p.relative_to(path)): p.read_bytes() for p in files}


def remove(path: Path) -> None:
    """Delete a file or folder, if it exists."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def clear_by_next_run(folder: Path) -> None:
    """Write something else to a folder, as the next run does.

    A workspace without a lock file was perhaps only just created. It is made old, because the next run would keep it.
    """
    for left in folder.glob(".tracekit-*.partial"):
        if not (left / "lock").exists():
            os.utime(left, (0, 0))
    with targets.open_atomic_output(folder / "other") as new:
        new.touch()
    (folder / "other").unlink()


@pytest.mark.slow
@pytest.mark.many(1)
@pytest.mark.parametrize("name", sorted(commands()))
def test_killed_at_any_moment(name: str, tmp_path: Path) -> None:
    folder, temporary = tmp_path / "out", tmp_path / "temporary"
    for path in (folder, temporary):
        path.mkdir()
    (tmp_path / "key").write_bytes(b"0123456789abcdef")
    target = folder / "result"
    replaced = {"OUT": str(target), "KEY": str(tmp_path / "key")}
    arguments = [replaced.get(a, a) for a in commands()[name]]
    source = Path(arguments[1])
    input_bytes = source.read_bytes()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COVERAGE")} | {"TMPDIR": str(temporary)}

    def run(at: int, seconds: float) -> tuple[int, str]:
        command = [sys.executable, "-c", PROGRAM, str(at), str(seconds), *arguments]
        done = fork_server.run(command, cwd=ROOT, env=environment, timeout=300)
        return done.returncode, done.stderr.decode()

    started = time.monotonic()
    status, said = run(0, 0)
    duration = time.monotonic() - started
    assert status == 0, said
    events, complete = int(said.split()[-1]), contents(target)
    moments = random.Random(f"{SEED} {name}")
    for number in range(MOMENTS):
        remove(target)
        at, seconds = (moments.randint(1, events), 0.0) if number % 2 else (10**9, moments.uniform(0.001, duration))
        status, said = run(at, seconds)
        assert status in (0, -signal.SIGKILL, -signal.SIGALRM), (number, said)
        assert contents(target) in (complete, {}), (number, at, seconds)
        assert target.exists() or status or name == "pipe", (number, at, seconds)
        assert source.read_bytes() == input_bytes
        for place in (folder, temporary):
            clear_by_next_run(place)
        assert {p.name for p in folder.iterdir()} <= {"result"}, (number, at, seconds)
        assert list(temporary.iterdir()) == [], (number, at, seconds)
