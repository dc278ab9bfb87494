"""Run Python programs in processes forked from one that has imported the package, so that each starts at once.

``run`` takes the arguments of ``subprocess.run`` for ``[sys.executable, "-m", module, ...]`` or
``[sys.executable, "-c", code, ...]``. The program has a process of its own, with its own limits, signals, memory and
standard streams; only the imports, about 0.6 s per process, are done once. Coverage is not measured in it.

Programs whose imports, start or interpreter options are tested are run with ``subprocess.run`` instead.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
import types
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
IMPORTED = (
    *("adbc_driver_sqlite.dbapi", "click.shell_completion", "google.protobuf.message", "numpy", "polars", "pyarrow"),
    *(
        "pyarrow.compute",
        "pyarrow.csv",
        "pyarrow.dataset",
        "pyarrow.ipc",
        "pyarrow.parquet",
        "rich.box",
        "rich.console",
    ),
    *("rich.progress", "rich.table", "rich.text", "sqlite3", "wasmtime"),
)
UNIMPORTED = "tracekit.__main__", "tracekit.view"  # flask takes long, and few programs open the viewer
UNMEASURED = "COV_CORE", "COVERAGE"
LENGTH_BYTES = 8


def run(
    command: Sequence[str | Path],
    *,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    streams: Sequence[int] = (),
    capture_output: bool = True,
    text: bool = False,
    timeout: float | None = None,
    check: bool = False,
) -> subprocess.CompletedProcess[Any]:
    """Run a Python program as ``subprocess.run`` does; ``streams`` are used as its standard streams if given."""
    executable, *arguments = map(str, command)
    assert executable == sys.executable
    assert capture_output or streams
    request = {
        "arguments": arguments,
        "cwd": os.fspath(cwd or Path.cwd()),
        "env": dict(os.environ if env is None else env),
    }
    outputs = [] if streams else [_Output(), _Output()]
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a device
        child = _server().start(request, streams or [nothing.fileno(), *(o.writer for o in outputs)])
    for output in outputs:
        os.close(output.writer)
    status = _server().wait(child, timeout)
    printed: list[Any] = [o.result() for o in outputs] or [None, None]
    if text:
        printed = [io.TextIOWrapper(io.BytesIO(p), "utf-8").read() for p in printed]
    done = subprocess.CompletedProcess([executable, *arguments], status, *printed)
    if check:
        done.check_returncode()
    return done


class _Output:
    """A pipe that is read in a thread."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        self._data = b""
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with os.fdopen(self._reader, "rb") as file:
            self._data = file.read()

    def result(self) -> bytes:
        self._thread.join()
        return self._data


class _Server:
    """The process that has imported the package, as its client sees it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "tests.fork_server", str(theirs.fileno())]
            environment = {k: v for k, v in os.environ.items() if not k.startswith(UNMEASURED)}
            self._process = subprocess.Popen(command, cwd=ROOT, env=environment, pass_fds=[theirs.fileno()])
        atexit.register(self.close)

    def start(self, request: dict[str, Any], streams: Sequence[int]) -> int:
        """Start a program; return the number of its process."""
        data = json.dumps(request).encode("ascii")
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))
        self._socket.sendmsg([len(data).to_bytes(LENGTH_BYTES, "little")], [rights])
        self._socket.sendall(data)
        return self._number()

    def wait(self, child: int, timeout: float | None) -> int:
        """Wait for a program; return its exit status, or the negated number of the signal that ended it."""
        self._socket.settimeout(timeout)
        try:
            return self._number()
        except TimeoutError:
            os.kill(child, signal.SIGKILL)
            self._socket.settimeout(None)
            self._number()
            raise subprocess.TimeoutExpired("program", timeout or 0) from None
        finally:
            self._socket.settimeout(None)

    def _number(self) -> int:
        return int.from_bytes(_received(self._socket, LENGTH_BYTES), "little", signed=True)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


_threads = threading.local()


def _server() -> _Server:
    """Return the server of this thread, which runs one program at a time."""
    if not hasattr(_threads, "server"):
        _threads.server = _Server()
    server: _Server = _threads.server
    return server


def _received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise EOFError("the other process has ended")
        data += more
    return data


def serve(descriptor: int) -> None:
    """Import the package, then fork a process for each request."""
    import tracekit

    top = [m.name for m in pkgutil.iter_modules(tracekit.__path__, "tracekit.") if m.name not in UNIMPORTED]
    folders = [f"{tracekit.__path__[0]}/{name.partition('.')[2]}" for name in top]
    nested = (pkgutil.walk_packages([path], f"{name}.") for name, path in zip(top, folders, strict=True))
    modules = [*top, *(m.name for found in nested for m in found)]
    for module in (*IMPORTED, *modules):
        importlib.import_module(module)
    gc.freeze()
    with socket.socket(fileno=descriptor) as connection, contextlib.suppress(KeyboardInterrupt):
        while (request := _next_request(connection)) is not None:
            data, streams = request
            child = os.fork()
            if not child:
                break
            for stream in streams:
                os.close(stream)
            connection.sendall(child.to_bytes(LENGTH_BYTES, "little", signed=True))
            _, status = os.waitpid(child, 0)
            code = os.waitstatus_to_exitcode(status)
            connection.sendall(code.to_bytes(LENGTH_BYTES, "little", signed=True))
        else:
            return
    _run_program(json.loads(data), streams)


def _next_request(connection: socket.socket) -> tuple[bytes, list[int]] | None:
    size, rights, _, _ = connection.recvmsg(LENGTH_BYTES, socket.CMSG_SPACE(3 * array.array("i").itemsize))
    if not size:
        return None
    ((_, _, descriptors),) = rights
    return _received(connection, int.from_bytes(size, "little")), list(array.array("i", descriptors))


def _run_program(request: dict[str, Any], streams: list[int]) -> None:
    """Become the process that a request describes."""
    for stream, number in zip(streams, range(3), strict=True):
        os.dup2(stream, number)
    os.closerange(3, max(streams) + 1)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.path[0] = request["cwd"]
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(open(0, "rb", closefd=False), "utf-8")  # type: ignore[misc,assignment]  # noqa: SIM115
    sys.stdout = sys.__stdout__ = _output(1, "strict")  # type: ignore[misc,assignment]
    sys.stderr = sys.__stderr__ = _output(2, "backslashreplace")  # type: ignore[misc,assignment]
    arguments = request["arguments"]
    while arguments[0] == "-W":
        warnings.simplefilter(arguments[1])
        del arguments[:2]
    option, program, *rest = arguments
    sys.argv = [option, *rest]
    status: object = None
    try:
        if option == "-m":
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            module = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(program, "<string>", "exec"), module.__dict__)
    except SystemExit as e:
        status = e.code
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        status = 1
    _exit(status)


def _exit(status: object) -> None:
    """Exit as the interpreter does, but without deleting every module, which takes longer than most programs."""
    if status is not None and not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()
    try:
        sys.stdout.flush()
    except OSError:
        status = 120
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    os._exit(status or 0)


def _output(number: int, errors: str) -> io.TextIOWrapper:
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    raw = open(number, "wb", 0 if unbuffered else -1, closefd=False)  # noqa: SIM115
    lines = number > 1 or raw.isatty()
    return io.TextIOWrapper(raw, "utf-8", errors, line_buffering=lines, write_through=unbuffered)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
