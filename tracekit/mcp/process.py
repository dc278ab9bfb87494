"""Control the worker process: start it, ask it, and end it when it takes too long or uses too much memory."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

from tracekit.errors import TracekitError
from tracekit.mcp.worker import HEADER, MAX_MESSAGE, encode_message
from tracekit.system import memory
from tracekit.system.platform import processes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from anyio.abc import Process

COMMAND = (sys.executable, "-P", "-m", "tracekit.mcp.worker")
"""Command that starts a worker."""
START_SECONDS = 120
"""Time in which a worker must have started, in seconds."""
_WATCH_SECONDS = 0.1
_SHARE_OF_QUERY = 0.8
"""Share of the time limit after which a query is interrupted, so that the captures stay open."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What the worker may do.

    Attributes:
        roots: Folders whose captures may be read.
        seconds: Time for one answer in seconds.
        memory_bytes: Memory of the worker in bytes.
        private: Whether answers contain private values.
        key: Secret that determines the pseudonyms of ids.
    """

    roots: tuple[Path, ...]
    seconds: float
    memory_bytes: int
    private: bool
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def to_message(self) -> dict[str, Any]:
        """Return the first message to a worker."""
        return {
            "roots": [os.path.realpath(root) for root in self.roots],
            "key": self.key.hex(),
            "private": self.private,
            "query_seconds": self.seconds * _SHARE_OF_QUERY,
            "query_memory_bytes": self.memory_bytes // 2,
        }


class WorkerDied(Exception):  # noqa: N818 - the process died, which is no error of the caller
    """The worker ended while it answered."""


class WorkerProcess:
    """The process that opens captures and computes answers, one at a time.

    It is started when it is asked for the first time, and again after it was ended.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._lock = anyio.Lock()
        self._process: Process | None = None
        self._output: BufferedByteReceiveStream | None = None
        self._is_over_limit = False

    async def ask(self, question: str, arguments: Mapping[str, Any]) -> Any:
        """Return the answer to a question.

        Raises:
            TracekitError: The question cannot be answered, takes too long or needs too much memory, or the worker
                died.
        """
        async with self._lock:
            try:
                reply = await self._exchange({"question": question, "arguments": dict(arguments)})
            except TimeoutError as e:
                message = f"the answer took longer than {self._settings.seconds:g} s, so it was stopped"
                hint = "ask for less, such as a shorter time, or start the server with a larger --timeout"
                raise TracekitError(message, hint=hint) from e
            except (WorkerDied, anyio.EndOfStream, anyio.IncompleteRead, OSError, anyio.BrokenResourceError) as e:
                raise self._create_death_error() from e
        if "error" in reply:
            message, _, hint = str(reply["error"]).partition("\nHint: ")
            raise TracekitError(message, hint=hint or None)
        return reply["answer"]

    async def _exchange(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a message to the worker and return its reply. The worker ends if there is no reply."""
        is_answered = False
        try:
            if self._process is None or self._process.returncode is not None:
                with anyio.fail_after(START_SECONDS):
                    await self._start()
            assert self._process is not None  # noqa: S101 - _start sets it
            assert self._process.stdin is not None  # noqa: S101 - a pipe
            with anyio.fail_after(self._settings.seconds):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._watch_memory, self._process.pid)
                    await self._process.stdin.send(encode_message(message))
                    reply = await self._receive()
                    tasks.cancel_scope.cancel()
            is_answered = True
        except BaseExceptionGroup as group:
            error = next((each for each in group.exceptions if isinstance(each, Exception)), None)
            raise (error or WorkerDied()) from group
        else:
            return reply
        finally:
            if not is_answered:
                with anyio.CancelScope(shield=True):
                    await self._end()

    async def _start(self) -> None:
        await self._end()
        self._is_over_limit = False
        self._process = await anyio.open_process(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            **processes.get_group_options(),
            cwd="/",  # the database would show the current folder
            env=memory.ALLOCATORS | os.environ,
        )
        assert self._process.stdin is not None  # noqa: S101 - a pipe
        assert self._process.stdout is not None  # noqa: S101 - a pipe
        self._output = BufferedByteReceiveStream(self._process.stdout)
        await self._process.stdin.send(encode_message(self._settings.to_message()))
        await self._receive()

    async def _receive(self) -> Mapping[str, Any]:
        assert self._output is not None  # noqa: S101 - _start sets it
        (size,) = HEADER.unpack(await self._output.receive_exactly(HEADER.size))
        if size > MAX_MESSAGE:
            raise WorkerDied
        reply = json.loads(await self._output.receive_exactly(size))
        if not isinstance(reply, dict):
            raise WorkerDied
        return reply

    async def _watch_memory(self, pid: int) -> None:
        """Raise an exception as soon as the worker and its children use more memory than they may."""
        while True:
            if sum(map(processes.measure_memory, processes.list_processes(pid))) > self._settings.memory_bytes:
                self._is_over_limit = True
                raise WorkerDied
            await anyio.sleep(_WATCH_SECONDS)

    def _create_death_error(self) -> TracekitError:
        if self._is_over_limit:
            message = f"the answer needs more than {self._settings.memory_bytes >> 20:,} MiB, so it was stopped"
            return TracekitError(message, hint="ask for less, or start the server with a larger --memory")
        return TracekitError("the process that reads the capture died", hint="the capture may be damaged")

    async def _end(self) -> None:
        """End the worker and its children, if there is one."""
        process, self._process, self._output = self._process, None, None
        if process is None:
            return
        processes.kill_group(process.pid)
        await process.aclose()

    async def close(self) -> None:
        """End the worker."""
        with anyio.CancelScope(shield=True):
            await self._end()

    def kill(self) -> None:
        """End the worker at once, from a signal handler."""
        if self._process is not None:
            processes.kill_group(self._process.pid)
