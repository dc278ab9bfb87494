"""Record a program with the profiler on the PATH: with Nsight Systems, or else with the PyTorch profiler."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tracekit.errors import TracekitError, convert_to_printable_path
from tracekit.system import interrupts, pytorch_recorder, targets
from tracekit.system.platform import processes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ProfilerName = Literal["nsys", "pytorch"]
PROFILERS: tuple[ProfilerName, ...] = ("nsys", "pytorch")
SUFFIXES: dict[ProfilerName, str] = {"nsys": ".nsys-rep", "pytorch": ".pt.trace.json"}
"""Suffixes of the captures of each profiler."""
NSYS_OPTIONS = ("--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", "--force-overwrite=true")
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*t?(?:\.exe)?", re.IGNORECASE)
_OPTIONS_WITH_VALUES = ("-W", "-X", "--check-hash-based-pycs")
_POLL_S, _GRACE_S, _END_S = 0.2, 1.0, 10.0


def choose_profiler(command: Sequence[str], profiler: ProfilerName | None = None) -> ProfilerName:
    """Return the profiler that records a command: nsys if it is on the PATH, and otherwise that of PyTorch.

    Args:
        command: The program and its arguments.
        profiler: The profiler that the user chose, or None.

    Raises:
        TracekitError: No profiler can record the command.
    """
    if not command:
        raise TracekitError("no command was passed", hint="write the command after --, as in: -- python train.py")
    has_nsys = shutil.which("nsys") is not None
    if profiler == "nsys" and not has_nsys:
        raise TracekitError("the program nsys is not on the PATH", hint="add the folder of nsys to PATH")
    if profiler == "nsys" or (profiler is None and has_nsys):
        return "nsys"
    if _PYTHON.fullmatch(Path(command[0]).name) is None:
        what = "the program nsys is not on the PATH, and " if not has_nsys else ""
        raise TracekitError(
            f"{what}the PyTorch profiler records only Python programs, not {convert_to_printable_path(command[0])}",
            hint="add the folder of nsys to PATH, or run the program as: python FILE",
        )
    return "pytorch"


def record_runs(
    command: Sequence[str], count: int, profiler: ProfilerName, folder: Path | None = None
) -> Iterator[Path]:
    """Run a command several times, and yield the path of each capture.

    Args:
        command: The program and its arguments.
        count: Number of runs.
        profiler: The profiler.
        folder: Folder in which the captures are kept. It is created if it does not exist. If None, each capture is
            deleted as soon as the next one is requested.

    Raises:
        TracekitError: The command cannot be run, fails, or the profiler writes no capture.
        ExportError: A capture cannot be written.
    """
    suffix = SUFFIXES[profiler]
    if folder is None:
        for number in range(count):
            with targets.create_workspace(Path(tempfile.gettempdir())) as workspace:
                capture = workspace / f"run{number}{suffix}"
                record(command, capture, profiler)
                yield capture
        return
    folder.mkdir(exist_ok=True)
    for _ in range(count):
        now = dt.datetime.now(dt.UTC)
        path = folder / f"run-{now:%Y%m%dT%H%M%S%fZ}{suffix}"
        with targets.open_atomic_output(path) as new:
            record(command, new, profiler)
        yield path


def record(command: Sequence[str], capture: Path, profiler: ProfilerName) -> None:
    """Run a command without a shell, and record it.

    The standard output of the command is sent to standard error. An interruption reaches the command, which may end by
    itself before it is killed.

    Args:
        command: The program and its arguments.
        capture: Path of the new capture, with the suffix of the profiler.
        profiler: The profiler.

    Raises:
        TracekitError: The command cannot be run, fails, or the profiler writes no capture.
    """
    name = convert_to_printable_path(Path(command[0]).name)
    recorded = [shutil.which("nsys") or "nsys", "profile", *NSYS_OPTIONS, f"--output={capture}", *command]
    if profiler == "nsys" and command[0].startswith("-"):
        raise TracekitError(f"{name} is not the name of a program", hint="write the program first, then its options")
    status = _run(_build_pytorch_command(command, capture) if profiler == "pytorch" else recorded, name)
    if profiler == "pytorch" and status == pytorch_recorder.NO_TORCH:
        raise TracekitError(
            f"nsys is not on the PATH, and the Python of {name} has no PyTorch"
            if shutil.which("nsys") is None
            else f"the Python of {name} has no PyTorch",
            hint="add the folder of nsys to PATH",
        )
    if status:
        outcome = f"was ended by signal {-status}" if status < 0 else f"ended with exit status {status}"
        raise TracekitError(f"the command {name} {outcome}", hint="run the command on its own to see why")
    if not capture.is_file():
        raise TracekitError(
            f"the profiler wrote no capture of {name}", hint="run the command with the profiler to see why"
        )


def _build_pytorch_command(command: Sequence[str], capture: Path) -> list[str]:
    """Return the command that runs a Python program under the PyTorch profiler.

    Raises:
        TracekitError: The command does not run a file, a module or code.
    """
    position = 1
    while position < len(command) and command[position].startswith("-") and command[position] not in ("-m", "-c", "-"):
        position += 2 if command[position] in _OPTIONS_WITH_VALUES else 1
    options, rest = command[1:position], list(command[position:])
    mode = {"-m": "module", "-c": "code"}.get(rest[0] if rest else "-", "file")
    target = rest[1:] if mode != "file" else rest
    if not target or target[0] == "-":
        raise TracekitError(
            "the command does not name a Python program", hint="write it as in: python FILE, or python -m MODULE"
        )
    return [command[0], *options, pytorch_recorder.__file__, str(capture), mode, *target]


def _run(command: Sequence[str], name: str) -> int:
    """Run a command, and return its exit status."""
    try:
        process = subprocess.Popen(command, stdout=_get_standard_error())  # noqa: S603 - the command of the user
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
        raise TracekitError(f"the command {name} cannot be run: {reason}", hint="check the name of the program") from e
    with process, interrupts.cleaning_up(lambda: _end(process)):
        try:
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_S)
        except BaseException:
            _end(process)
            raise
        return process.returncode


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait until an interrupted process ends, send it an interruption if it did not receive one, or kill it."""
    for end, seconds in ((None, _GRACE_S), (processes.interrupt, _END_S), (_kill, _END_S)):
        if end is not None and not end(process):
            continue
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            return


def _kill(process: subprocess.Popen[bytes]) -> bool:
    process.kill()
    return True


def _get_standard_error() -> int:
    """Return the file descriptor to which the output of the command is sent."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return subprocess.DEVNULL
