"""How tests run the command line: in this process, in one of its own, or in a terminal."""

from __future__ import annotations

import os
import re
import signal
import struct
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest
from tests import fork_server
from tracekit import cli

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
MODULE = [sys.executable, "-m", "tracekit"]
_ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@dataclass(frozen=True)
class Result:
    """What a run printed, and its exit status."""

    status: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        return self.stdout.decode()


class Run(Protocol):
    """Runs the command line in this process."""

    def __call__(self, *args: str | Path, status: int = 0) -> Result: ...


class Spawn(Protocol):
    """Runs the command line in a process of its own."""

    def __call__(self, *args: str | Path) -> Result: ...


class Show(Protocol):
    """Returns what a terminal of some width shows, stdout and stderr together; without escape sequences by default."""

    def __call__(self, *args: str | Path, columns: int, color: bool = False) -> str: ...


@pytest.fixture
def run(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """The command line in this process; paths of fixtures are relative to the repository."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))  # click names the program after it
    kept = {n: signal.getsignal(n) for n in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))}

    def call(*args: str | Path, status: int = 0) -> Result:
        monkeypatch.setattr(sys, "argv", ["tracekit", *map(str, args)])
        capsysbinary.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsysbinary.readouterr()
        result = Result(int(ended.value.code or 0), printed.out, printed.err.decode())
        assert result.status == status, result
        return result

    yield call
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture
def spawn() -> Spawn:
    """The command line in a process of its own."""

    def call(*args: str | Path) -> Result:
        command = [*MODULE, *map(str, args)]
        done = fork_server.run(command, cwd=ROOT, timeout=120)
        return Result(done.returncode, done.stdout, done.stderr.decode())

    return call


@pytest.fixture
def show() -> Show:
    """The command line in a terminal."""
    fcntl, pty, termios = map(pytest.importorskip, ("fcntl", "pty", "termios"))

    def call(*args: str | Path, columns: int, color: bool = False) -> str:
        known = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
        environment = {"PAGER": "cat"} | known | {"TERM": "xterm-256color"}
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        command = [*MODULE, *map(str, args)]
        with ThreadPoolExecutor(1) as pool:
            read = pool.submit(lambda: b"".join(iter(lambda: _read(ours), b"")))
            fork_server.run(command, cwd=ROOT, env=environment, streams=[theirs] * 3, timeout=120)
            os.close(theirs)
            shown = read.result().decode().replace("\r\n", "\n")
        os.close(ours)
        return shown if color else _ANSI.sub("", shown)

    return call


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""
