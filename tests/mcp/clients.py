"""A client of the SDK, as a program of a user has it, whose calls wait for their results."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp.client import Client
from mcp_types import CallToolResult
from tracekit.mcp.process import WorkerProcess, WorkerSettings
from tracekit.mcp.server import create_server


class Caller:
    """Calls tools of a server."""

    worker: WorkerProcess

    def __init__(self, portal: BlockingPortal, client: Client) -> None:
        self.portal = portal
        self.client = client

    def call(self, tool: str, arguments: dict[str, Any]) -> CallToolResult:
        return self.portal.call(lambda: self.client.call_tool(tool, arguments))

    def ask(self, tool: str, **arguments: Any) -> Any:
        """Return the first page of an answer."""
        result = self.call(tool, arguments)
        assert not result.is_error, result.content[0].text
        assert json.loads(result.content[0].text) == result.structured_content
        return result.structured_content

    def fail(self, tool: str, **arguments: Any) -> str:
        """Return the text of an error."""
        result = self.call(tool, arguments)
        assert result.is_error, result.structured_content
        return str(result.content[0].text)


@contextlib.contextmanager
def connect(transport: Any) -> Iterator[Caller]:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(Client(transport)) as client:
        yield Caller(portal, client)


@contextlib.contextmanager
def serve(
    *roots: Path, tokens: int = 8000, seconds: float = 120, memory: int = 4 << 30, private: bool = False
) -> Iterator[Caller]:
    """Connect to a server in this process."""
    server, worker = create_server(WorkerSettings(roots, seconds, memory, private), tokens)
    with connect(server) as caller:
        caller.worker = worker
        yield caller
