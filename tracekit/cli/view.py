"""The command ``tracekit view``, which shows profiles in the browser."""

from __future__ import annotations

import os
import sys
import webbrowser
from typing import TYPE_CHECKING

import click

from tracekit.cli.options import CAPTURE, check_local, get_layers, input_options, is_cache_enabled, is_strict
from tracekit.cli.output import print_message
from tracekit.system import interrupts, memory

if TYPE_CHECKING:
    from tracekit.cli.options import CapturePath


@click.command("view")
@click.argument("captures", metavar="CAPTURE...", type=CAPTURE, nargs=-1, required=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port to listen on. 0 chooses a free port. The default is 8000 or the next free port.",
)
@click.option("--no-browser", is_flag=True, help="Print the URL without opening a browser.")
@click.option(
    "--token",
    is_flag=True,
    help="Require a token in the URL even on a loopback address, for machines with several users.",
)
@input_options
def view_command(
    *, captures: tuple[CapturePath, ...], host: str, port: int | None, no_browser: bool, token: bool, from_: str | None
) -> None:
    """Show captures in the browser: overview, ops, kernels, timeline and all tables.

    If CAPTURE is a folder, all captures in it are shown. Captures of the ranks of a job are also shown side by side.

    The viewer needs no network connection. Press Ctrl-C to stop it. If the viewer listens on an address that other
    machines can reach, the URL contains a token, and the server rejects requests without this token.
    """
    os.environ.update(memory.ALLOCATORS | os.environ)
    from tracekit.view import open_viewer

    cache, strict = is_cache_enabled(), is_strict()
    viewer = open_viewer(
        check_local(captures, "view"),
        host=host,
        port=port,
        from_=from_,
        cache=cache,
        layers=get_layers(),
        token=token,
        strict=strict,
    )
    with interrupts.cleaning_up(viewer.close):
        click.echo(viewer.url)
        print_message("Press Ctrl-C to stop the viewer.")
        if not no_browser and sys.stdout.isatty():
            webbrowser.open(viewer.url)
        try:
            viewer.serve()
        finally:
            viewer.close()
