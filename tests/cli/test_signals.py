"""A signal at any moment ends the program with "interrupted" and nothing written, or lets it finish."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import ALL

ROOT = Path(__file__).parents[2]
TRAIN = "fixtures/train_amp.nsys-rep"
MOMENTS = 8 if ALL else 3
PROGRAM = """
import os, runpy, signal, sys
at, number, ignored = (int(sys.argv.pop(1)) for _ in range(3))
normal = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
for n in normal:  # a shell ignores some for what it runs in the background
    signal.signal(n, signal.SIG_IGN if ignored else normal[n])
count = -1
def hook(event, arguments):
    global count
    if count < 0 and event == "import" and arguments[0] == "tracekit.cli":
        count = 0
    if count >= 0:
        count += 1
        if count == at:
            signal.raise_signal(number)
sys.addaudithook(hook)
try:
    runpy.run_module("tracekit", run_name="__main__", alter_sys=True)
finally:
    if not at:
        print("events", count, file=sys.stderr)
"""


def run(at: int, number: int, *arguments: str, ignored: bool = False) -> subprocess.CompletedProcess[str]:
    """Run the program and send it a signal at the n-th event that Python reports: an import, an open, a rename."""
    # a signal that meets coverage inside its own lock would never be answered
    unwatched = {k: v for k, v in os.environ.items() if not k.startswith("COVERAGE")}
    command = [sys.executable, "-c", PROGRAM, str(at), str(number), str(int(ignored)), *arguments]
    return subprocess.run(command, cwd=ROOT, env=unwatched, capture_output=True, text=True, timeout=120, check=False)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.slow
@pytest.mark.many(1)
@pytest.mark.parametrize(
    "arguments",
    [
        ["convert", TRAIN, "OUT/trace.json", "-f"],
        ["convert", TRAIN, "OUT/tables", "--to", "csv", "-f"],
        ["correlate", TRAIN, "-o", "OUT/kernels.parquet", "-f"],
        ["redact", "fixtures/graph_node.sqlite", "OUT/shared.sqlite", "-f", "--key-file", "OUT/key"],
    ],
    ids=lambda a: f"{a[0]} {Path(a[2]).name}",
)
def test_interrupted_or_finished(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "key").write_bytes(b"0123456789abcdef")  # makes the same pseudonyms each time
    command = [a.replace("OUT", str(tmp_path)) for a in arguments]
    whole = run(0, signal.SIGINT, *command)
    assert whole.returncode == 0, whole.stderr
    events = int(whole.stderr.split()[-1])
    before, ended = files(tmp_path), set()
    for nth in range(MOMENTS):
        number = (signal.SIGINT, signal.SIGTERM)[nth % 2]
        at = 1 + (events - 1) * nth // (MOMENTS - 1)
        done = run(at, number, *command)
        if done.returncode:
            assert done.returncode == 128 + number, (at, events, done)
            assert done.stderr == "tracekit: interrupted\n", (at, events)
        else:
            assert f"wrote {command[2] if arguments[0] == 'redact' else ''}" in done.stderr
        ended.add(done.returncode)
        assert files(tmp_path) == before, (at, events)
    assert {0, 130, 143} & ended >= {130, 143}


@pytest.mark.thorough
@pytest.mark.parametrize("arguments", [["info", TRAIN], ["stats", TRAIN, "-r", "cuda_gpu_kern_sum", "--format", "csv"]])
def test_printed_or_interrupted(arguments: list[str]) -> None:
    whole = run(0, signal.SIGINT, *arguments)
    events = int(whole.stderr.split()[-1])
    for nth in range(MOMENTS):
        number = (signal.SIGTERM, signal.SIGINT)[nth % 2]
        done = run(1 + (events - 1) * nth // (MOMENTS - 1), number, *arguments)
        if done.returncode:
            assert (done.returncode, done.stderr) == (128 + number, "tracekit: interrupted\n")
        else:
            assert done.stdout == whole.stdout


@pytest.mark.thorough
def test_ignored_signals_stay_ignored(tmp_path: Path) -> None:
    done = run(50, signal.SIGTERM, "convert", TRAIN, str(tmp_path / "o.json"), ignored=True)
    assert (done.returncode, done.stderr) == (0, f"wrote {tmp_path / 'o.json'}\n")


@pytest.mark.slow
def test_a_library_keeps_its_own_handlers() -> None:
    code = (
        "import signal, tracekit as tk; before = [signal.getsignal(n) for n in (1, 2, 15)]\n"
        f"tk.load({TRAIN!r}).correlate().count('kernels')\n"
        "assert before == [signal.getsignal(n) for n in (1, 2, 15)]"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
