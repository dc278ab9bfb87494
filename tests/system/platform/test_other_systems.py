"""The command line works in a process that lacks what other systems lack: the short part of ``make portable``."""

from __future__ import annotations

import errno
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.conftest import FIXTURES, ROOT

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import os, sys
from tests import portable
from tracekit.system import files
from tracekit.plan.cache import capture
capture.SMALLEST, files.SETTLED_NS = 0, -(10**12)
from tracekit import cli
from tracekit.system.platform import console

folder = sys.argv[1]
os.chdir(folder)
os.environ.update(TRACEKIT_CACHE="on", TRACEKIT_CACHE_DIR=os.path.join(folder, "cache"))
console.accept_all_characters()
for line in sys.argv[2:]:
    sys.argv[1:] = line.split()
    try:
        cli.main()
    except SystemExit as e:
        print(f"status {e.code or 0}", flush=True)
print("left", *sorted(os.listdir(folder)), flush=True)
"""
EXPORT, REPORT = FIXTURES / "mpi_rank0.sqlite", FIXTURES / "mpi_rank0.nsys-rep"
COMMANDS = (
    f"rows {EXPORT} kernels --memory 1KB",
    f"rows {EXPORT} kernels",
    f"convert {EXPORT} tables --to csv --table kernels --table streams",
    f"convert {EXPORT} tables --to csv --table kernels --table streams -f",
    f"convert {EXPORT} out.sqlite --to sqlite",
    "cache --clear",
)
MORE_COMMANDS = (
    f"info {REPORT}",
    f"{EXPORT}",
    f"why {EXPORT}",
    f"stats {EXPORT} --report cuda_gpu_kern_sum",
    f"convert {REPORT} out.sqlite --to sqlite -f",
    f"convert {REPORT} out.html",
    f"redact {EXPORT} redacted.sqlite",
    f"recipe nvtx_sum {FIXTURES / 'ranks'} --jobs 2",
)
"""Commands of ``make portable``."""
FAILURES = ("rows missing.sqlite kernels", f"convert {EXPORT} NUL.json")
OUTPUTS = ["cache", "out.sqlite", "tables"]
MORE_OUTPUTS = ["out.html", "redacted.sqlite"]
CHECKS = """
import os
def fails(action, *arguments):
    try:
        action(*arguments)
    except OSError as e:
        return getattr(e, "winerror", e.errno)
with open("used", "w") as file:
    results = [fails(os.rename, "used", "other"), fails(os.remove, "used")]
    os.mkdir("folder")
    with open("folder/used", "w"):
        results.append(fails(os.rename, "folder", "renamed"))
results += [fails(open, "USED", "w"), fails(os.mkdir, "aux.csv")]
results += [fails(open, "/proc/meminfo"), fails(os.listdir, "/sys")]
results += [fails(os.rename, "used", "other"), hasattr(os, "pread"), hasattr(os, "fork")]
print(*results)
"""


def run(folder: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-X", "utf8=0", "-c", program, str(folder), *arguments]
    environment = {"PATH": "", "PYTHONIOENCODING": "cp1252", "PYTHONPATH": str(ROOT), "HOME": str(folder / "home")}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False, timeout=300)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems need no simulation")
def test_the_simulation_works(tmp_path: Path) -> None:
    load = f"from tests import portable; exec(compile({CHECKS!r}, portable.PACKAGE + 'simulated.py', 'exec'))"
    done = run(tmp_path, load)
    codes = (32, 32, 32, errno.EEXIST, 123, errno.ENOENT, errno.ENOENT, None, False, False)
    assert done.stdout.decode().split() == [*map(str, codes)], done.stderr.decode()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems need no simulation")
def test_commands_in_cp1252(tmp_path: Path) -> None:
    is_whole = "tests.portable" in sys.modules
    commands = COMMANDS[:-1] + MORE_COMMANDS + COMMANDS[-1:] if is_whole else COMMANDS
    done = run(tmp_path, PROGRAM, *commands, *FAILURES)
    errors = done.stderr.decode("cp1252")
    assert done.returncode == 0, errors
    assert [line for line in done.stdout.splitlines() if line.startswith(b"status")] == (
        [b"status 0"] * len(commands) + [b"status 1"] * len(FAILURES)
    ), errors
    assert b"\x1b" not in done.stdout + done.stderr
    assert "Traceback" not in errors
    assert "Windows does not accept this name of a file" in errors
    left = done.stdout.splitlines()[-1].decode().split()[1:]
    assert left == sorted(OUTPUTS + (MORE_OUTPUTS if is_whole else []))
