"""The viewer, which shows captures in the browser. Its dependencies are installed with the extra ``tracekit[view]``."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from tracekit.errors import TracekitError
from tracekit.system.installation import create_extra_hint

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tracekit.trace import Layers
    from tracekit.view.server import Viewer

PACKAGES = ("flask", "sqlglot", "xlsxwriter")


def open_viewer(
    paths: Sequence[Path],
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    from_: str | None = None,
    cache: bool | None = None,
    layers: Layers | None = None,
    token: bool = False,
    strict: bool = False,
) -> Viewer:
    """Open captures, and return a web server that shows them in the browser. Call ``serve`` to answer requests.

    Args:
        paths: Files or folders of the captures to show.
        host: Address to listen on. If it is not a loopback address, the URL contains a token, without which requests
            are rejected.
        port: Port to listen on. If None, it is 8000 or the next free port.
        from_: Format of the captures. If None, it is detected.
        cache: Whether columns are read from the cache and stored in it, as in ``tracekit.load``.
        layers: Where the ranges inside of replays of CUDA graphs come from, as in ``tracekit.load``.
        token: Whether the URL contains a token even if the address is a loopback address.
        strict: Whether a capture that cannot be read is an error. By default, the viewer lists it with the reason.

    Raises:
        TracekitError: No capture can be read, a package is missing, or the port is in use.
    """
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        message = f"the viewer needs packages that are not installed: {', '.join(missing)}"
        raise TracekitError(message, hint=create_extra_hint("view", "view"))
    from tracekit.system.platform.allocator import make_malloc_return_large_blocks
    from tracekit.system.platform.open_files import allow_many_open_files
    from tracekit.view.opening import open_first_capture
    from tracekit.view.server import Viewer

    make_malloc_return_large_blocks()
    allow_many_open_files()
    captures, opener = open_first_capture(paths, from_, cache=cache, layers=layers, strict=strict)
    ports = range(DEFAULT_PORT, DEFAULT_PORT + TRIED_PORTS) if port is None else [port]
    for each in ports:
        try:
            viewer = Viewer(captures, host, each, token=token)
        except OSError as error:
            problem = error
        else:
            opener.start()
            return viewer
    captures.close()
    if port is None:
        message = f"no port from {DEFAULT_PORT} to {ports[-1]} is free on {host}"
        raise TracekitError(message, hint="choose a port with --port") from problem
    raise TracekitError(f"cannot listen on port {port} of {host}", hint="choose another port with --port") from problem


DEFAULT_PORT = 8000
TRIED_PORTS = 100
