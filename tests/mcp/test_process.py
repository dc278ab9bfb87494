"""The worker is ended when it takes too long, needs too much memory or dies. The next question starts another."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.conftest import FIXTURES
from tracekit.errors import TracekitError
from tracekit.mcp.process import WorkerProcess, WorkerSettings

AMP = {"capture": str(FIXTURES / "train_amp.sqlite")}
SETTINGS = WorkerSettings((FIXTURES,), 120, 4 << 30, private=False)


def run(function: Callable[[WorkerProcess], Awaitable[Any]], **settings: Any) -> Any:
    async def main() -> Any:
        worker = WorkerProcess(dataclasses.replace(SETTINGS, **settings))
        try:
            return await function(worker)
        finally:
            await worker.close()
            assert worker._process is None

    return anyio.run(main)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_worker_is_ended_and_started_again() -> None:
    async def ask(worker: WorkerProcess) -> None:
        answer = await worker.ask("open_capture", AMP)
        assert answer["status"] == "answered"
        assert worker._process is not None
        first = worker._process.pid
        await worker.ask("open_capture", AMP)
        assert worker._process.pid == first

        worker._settings = dataclasses.replace(SETTINGS, seconds=0.02)
        with pytest.raises(TracekitError, match=r"took longer than 0\.02 s") as error:
            await worker.ask("compare", {"a": AMP["capture"], "b": AMP["capture"], "limit": 1})
        assert "--timeout" in str(error.value)
        assert not is_running(first)

        worker._settings = dataclasses.replace(SETTINGS, memory_bytes=20 << 20)
        with pytest.raises(TracekitError, match="needs more than 20 MiB") as error:
            await worker.ask("open_capture", AMP)
        assert "--memory" in str(error.value)

        worker._settings = SETTINGS
        assert (await worker.ask("open_capture", AMP))["status"] == "answered"
        assert worker._process is not None
        os.kill(worker._process.pid, signal.SIGKILL)
        with pytest.raises(TracekitError, match="the process that reads the capture died"):
            await worker.ask("explain_slow_step", AMP)
        assert (await worker.ask("open_capture", AMP))["status"] == "answered"

    run(ask)


def test_a_question_that_is_cancelled_ends_the_worker() -> None:
    async def ask(worker: WorkerProcess) -> None:
        await worker.ask("open_capture", AMP)
        assert worker._process is not None
        pid = worker._process.pid
        with anyio.move_on_after(0.01):
            await worker.ask("compare", {"a": AMP["capture"], "b": AMP["capture"], "limit": 1})
        assert not is_running(pid)

    run(ask)


def test_errors_of_the_worker_have_a_hint() -> None:
    async def ask(worker: WorkerProcess) -> TracekitError:
        with pytest.raises(TracekitError) as error:
            await worker.ask("look_up_rows", {**AMP, "table": "kernals", "ids": [1], "limit": 1})
        return error.value

    error = run(ask)
    assert "kernels" in str(error.hint)
    assert "\n" not in error.message
