"""``tracekit mcp`` serves a client of the SDK over standard input and output and over HTTP, and ends when it should."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from click.testing import CliRunner
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from tests.conftest import FIXTURES
from tests.helpers import run_async
from tracekit.cli import mcp as command
from tracekit.errors import TracekitError

COMMAND = [sys.executable, "-m", "tracekit", "mcp", "--root", str(FIXTURES)]


def test_a_client_starts_the_server(tmp_path: Path) -> None:
    (tmp_path / "polars.py").write_text("raise SystemExit('a module of the current folder was imported')", "utf-8")
    pids: list[int] = []

    async def ask() -> None:
        parameters = StdioServerParameters(command=COMMAND[0], args=["-P", *COMMAND[1:]], cwd=tmp_path)
        async with Client(stdio_client(parameters)) as client:
            assert "explain_slow_step" in (await client.list_tools()).tools[2].name
            question = {"capture": "empty.sqlite", "sql": "SELECT count(*) AS n FROM kernels"}
            result = await client.call_tool("query", question)
            assert result.structured_content is not None
            assert result.structured_content["answer"]["results"][0]["rows"] == [{"n": 0}]
            pids.extend(list_workers())

    def list_workers() -> list[int]:
        lines = [(p, p / "cmdline") for p in Path("/proc").iterdir() if p.name.isdecimal()]
        return [int(p.name) for p, line in lines if b"tracekit.mcp.worker" in read(line)]

    def read(path: Path) -> bytes:
        try:
            return path.read_bytes()
        except OSError:
            return b""

    before = list_workers()
    run_async(ask)
    ours = set(pids) - set(before)
    assert ours
    deadline = time.monotonic() + 10
    while ours & set(list_workers()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not ours & set(list_workers())


@pytest.mark.many(1)  # the test of HTTP sends SIGTERM
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_signals_end_the_server_at_once(number: signal.Signals) -> None:
    with subprocess.Popen([*COMMAND, "--http", "0"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert re.search(r"http://127\.0\.0\.1:\d+/mcp$", process.stderr.readline())
        process.send_signal(number)
        assert process.wait(20) == 128 + number


def test_http_requires_a_local_host_and_the_token() -> None:
    with subprocess.Popen([*COMMAND, "--http", "0", "--token"], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = [process.stderr.readline() for _ in range(2)]
            port = int(re.search(r"127\.0\.0\.1:(\d+)/mcp", lines[0])[1])  # type: ignore[index]
            token = re.search(r"Bearer (\S+)", lines[1])[1]  # type: ignore[index]
            good = {"Authorization": f"Bearer {token}"}
            bad_host, bad_origin = {**good, "Host": f"evil.example:{port}"}, {**good, "Origin": "http://evil.example"}
            assert post(port, {}) == 401
            assert post(port, {"Authorization": "Bearer wrong"}) == 401
            assert post(port, bad_host) == 421
            assert post(port, bad_origin) == 403
            assert post(port, good) == 200

            async def ask() -> None:
                async with connect(port, good) as first:
                    async with connect(port, good) as second:
                        assert len((await second.list_tools()).tools) == len((await first.list_tools()).tools) > 10
                        result = await second.call_tool("list_captures", {"name_contains": "empty.sqlite"})
                        assert result.structured_content is not None
                    # the end of one client ends neither the server nor the worker
                    result = await first.call_tool("next_page", {"handle": "unknown"})
                    assert "ask the question again" in result.content[0].text
                    result = await first.call_tool("list_captures", {"name_contains": "empty.sqlite"})
                    assert result.structured_content is not None
                    assert result.structured_content["answer"]["captures"][0]["path"] == "empty.sqlite"

            run_async(ask)
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 128 + signal.SIGTERM
        finally:
            process.kill()


@contextlib.asynccontextmanager
async def connect(port: int, headers: dict[str, str]) -> AsyncIterator[Client]:
    """Connect a client of the SDK to a server on this machine."""
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http_client:
        transport = streamable_http_client(f"http://127.0.0.1:{port}/mcp", http_client=http_client)
        async with Client(transport) as client:
            yield client


def post(port: int, headers: dict[str, str]) -> int:
    """Return the status of a request to initialize a session."""
    parameters = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": parameters})
    accepted = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", "/mcp", body, {**accepted, **headers})
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda _: None)
    result = CliRunner().invoke(command.mcp_command, [])
    assert isinstance(result.exception, TracekitError)
    assert result.exception.hint == "pip install 'tracekit[mcp]'"


def test_options_are_checked() -> None:
    for arguments in (
        ["--token"],
        ["--http", "99999"],
        ["--max-tokens", "10"],
        ["--root", "missing"],
        ["--memory", "x"],
    ):
        assert CliRunner().invoke(command.mcp_command, arguments).exit_code == 2, arguments
