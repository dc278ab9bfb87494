"""The worker is ended when it takes too long, needs too much memory or dies. The next question starts another.

The worker of these tests has the real loop, but its answers come from a small program, which starts at once.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.conftest import FIXTURES, ROOT
from tests.helpers import run_async
from tracekit.errors import TracekitError
from tracekit.mcp import process
from tracekit.mcp.process import WorkerProcess, WorkerSettings

SETTINGS = WorkerSettings((FIXTURES,), 120, 4 << 30, private=False)
PROGRAM = """
    import os, sys, time
    sys.path.insert(0, {root!r})
    from tracekit.errors import TracekitError
    from tracekit.mcp import worker

    class Questioner:
        def answer(self, question, arguments):
            if question == "sleep":
                time.sleep(60)
            if question == "allocate":
                memory = bytearray(arguments["bytes"])
                time.sleep(60)
            if question == "fail":
                raise TracekitError("no table is called 'kernals'", hint="did you mean 'kernels'?")
            if question == "crash":
                raise arguments["x"]
            return {{"pid": os.getpid(), **arguments}}

        def mask_error(self, error):
            return str(error)

    worker._create_questioner = lambda settings: Questioner()
    worker.main()
"""


@pytest.fixture(autouse=True)
def worker_program(monkeypatch: pytest.MonkeyPatch) -> None:
    program = textwrap.dedent(PROGRAM).format(root=str(ROOT))
    monkeypatch.setattr(process, "COMMAND", (sys.executable, "-P", "-c", program))


def run(function: Callable[[WorkerProcess], Awaitable[Any]], **settings: Any) -> Any:
    async def main() -> Any:
        worker = WorkerProcess(dataclasses.replace(SETTINGS, **settings))
        try:
            return await function(worker)
        finally:
            await worker.close()
            assert worker._process is None

    return run_async(main)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_worker_is_ended_and_started_again() -> None:
    async def ask(worker: WorkerProcess) -> None:
        first = (await worker.ask("open", {"text": "\ud800"}))["pid"]
        assert (await worker.ask("open", {})) == {"pid": first}

        worker._settings = dataclasses.replace(SETTINGS, seconds=0.2)
        with pytest.raises(TracekitError, match=r"took longer than 0\.2 s") as error:
            await worker.ask("sleep", {})
        assert "--timeout" in str(error.value)
        assert not is_running(first)

        worker._settings = dataclasses.replace(SETTINGS, memory_bytes=100 << 20)
        with pytest.raises(TracekitError, match="needs more than 100 MiB") as error:
            await worker.ask("allocate", {"bytes": 200 << 20})
        assert "--memory" in str(error.value)

        worker._settings = SETTINGS
        second = (await worker.ask("open", {}))["pid"]
        assert second != first
        os.kill(second, signal.SIGKILL)
        with pytest.raises(TracekitError, match="the process that reads the capture died"):
            await worker.ask("open", {})
        assert (await worker.ask("open", {}))["pid"] not in (first, second)

    run(ask)


def test_a_question_that_is_cancelled_ends_the_worker() -> None:
    async def ask(worker: WorkerProcess) -> None:
        pid = (await worker.ask("open", {}))["pid"]
        with anyio.move_on_after(0.01):
            await worker.ask("sleep", {})
        assert not is_running(pid)

    run(ask)


def test_questions_at_once_are_answered_one_after_another() -> None:
    """The answers are not mixed up, and a question that is cancelled ends only its own worker."""

    async def ask(worker: WorkerProcess) -> None:
        answers: dict[int, Any] = {}

        async def ask_one(number: int) -> None:
            answers[number] = (await worker.ask("open", {"number": number}))["number"]

        async with anyio.create_task_group() as tasks:
            with anyio.move_on_after(0.05):
                await worker.ask("sleep", {})
            for number in range(20):
                tasks.start_soon(ask_one, number)
        assert answers == {number: number for number in range(20)}

    run(ask)


def test_errors_of_the_worker_have_a_hint() -> None:
    async def ask(worker: WorkerProcess) -> TracekitError:
        with pytest.raises(TracekitError, match=r"because of an error in tracekit \(KeyError\)"):
            await worker.ask("crash", {})
        with pytest.raises(TracekitError) as error:
            await worker.ask("fail", {})
        return error.value

    error = run(ask)
    assert "kernels" in str(error.hint)
    assert "\n" not in error.message
