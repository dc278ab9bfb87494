"""The command ``tracekit mcp``, which answers the questions of assistants about captures."""

from __future__ import annotations

import secrets
import socket
from importlib.util import find_spec
from pathlib import Path

import click

from tracekit.cli.options import parse_size
from tracekit.cli.output import print_message
from tracekit.errors import TracekitError
from tracekit.system import interrupts
from tracekit.system.installation import create_extra_hint

DEFAULT_PORT = 8765
_LOOPBACK = "127.0.0.1"


def _parse_memory(_: click.Context, __: click.Parameter, text: str) -> int:
    return parse_size(text)


@click.command("mcp")
@click.option(
    "--root",
    "roots",
    metavar="FOLDER",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder whose captures may be read, with its subfolders. Can be repeated. The default is the current folder.",
)
@click.option(
    "--http",
    "port",
    metavar="[PORT]",
    type=click.IntRange(0, 65535),
    is_flag=False,
    flag_value=DEFAULT_PORT,
    help=f"Serve over HTTP on this machine instead of standard input and output. The default port is {DEFAULT_PORT}; 0 "
    "chooses a free one.",
)
@click.option(
    "--token", is_flag=True, help="With --http, require a token in each request, for machines with several users."
)
@click.option(
    "--max-tokens",
    type=click.IntRange(1000, 1_000_000),
    default=8000,
    show_default=True,
    help="Maximum number of tokens of an answer. The rest is returned as further pages.",
)
@click.option(
    "--timeout",
    "seconds",
    metavar="SECONDS",
    type=click.FloatRange(0.1, 86_400),
    default=120,
    show_default=True,
    help="Time for one answer.",
)
@click.option(
    "--memory",
    "memory_bytes",
    metavar="SIZE",
    default="4GB",
    show_default=True,
    callback=_parse_memory,
    help="Memory for one answer.",
)
@click.option(
    "--private",
    is_flag=True,
    help="Do not mask private values, such as names of users and home folders, in answers.",
)
def mcp_command(
    *,
    roots: tuple[Path, ...],
    port: int | None,
    token: bool,
    max_tokens: int,
    seconds: float,
    memory_bytes: int,
    private: bool,
) -> None:
    """Answer the questions of an assistant about captures, as a server of the Model Context Protocol (MCP).

    The assistant starts this command, and asks over standard input and output. Only captures in the given folders are
    read, nothing is written, and no network connection is made.
    """
    if token and port is None:
        raise click.UsageError("--token works only with --http")
    if find_spec("mcp") is None or find_spec("duckdb") is None:
        raise TracekitError(
            "the server needs the packages mcp and duckdb, which are not installed",
            hint=create_extra_hint("mcp", "mcp"),
        )
    from tracekit.mcp.process import WorkerSettings
    from tracekit.mcp.server import create_server, serve_http, serve_stdio

    settings = WorkerSettings(roots or (Path(),), seconds, memory_bytes, private)
    server, worker = create_server(settings, max_tokens)
    with interrupts.cleaning_up(worker.kill):
        try:
            if port is None:
                serve_stdio(server)
                return
            with socket.create_server((_LOOPBACK, port)) as listener:
                secret = secrets.token_urlsafe(24) if token else None
                print_message(f"http://{_LOOPBACK}:{listener.getsockname()[1]}/mcp")
                if secret is not None:
                    print_message(f"Authorization: Bearer {secret}")
                print_message("Press Ctrl-C to stop the server.")
                serve_http(server, listener, secret)
        finally:
            worker.kill()
