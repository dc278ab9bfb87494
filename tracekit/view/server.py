"""The web server of the viewer, which checks requests, and sends pages, parts of pages, downloads and traces."""

from __future__ import annotations

import contextlib
import gzip
import hmac
import json
import logging
import secrets
import socket
import tempfile
import threading
import traceback
from collections import OrderedDict
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from flask import Flask, Response, abort, redirect, request
from werkzeug.exceptions import HTTPException
from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.wsgi import ClosingIterator

from tracekit.errors import TracekitError
from tracekit.system import interrupts
from tracekit.system.targets import create_workspace, delete_from_workspace
from tracekit.text.elements import render
from tracekit.view import components, downloads, layout, ranks, selection, timeline, tracks, windows
from tracekit.view.grid import FRAGMENT, parse_fragment
from tracekit.view.pages import PAGES, Context, find_moved_page
from tracekit.view.pages import timeline as timeline_page
from tracekit.view.state import make_url, parse_aggregation, parse_url
from tracekit.view.windows import TimeWindow

if TYPE_CHECKING:
    from collections.abc import Iterable
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from werkzeug.serving import BaseWSGIServer

    from tracekit.text.elements import Content
    from tracekit.view.captures import ViewedCaptures
    from tracekit.view.state import PageState

COOKIE = "tracekit-token"
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
STATUS = "/status"
MAX_TRACES = 4
"""Maximum number of time windows whose Perfetto traces are cached on disk."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""What pages may load: only files of this server, and no scripts or styles inside of pages."""
COMPRESSED = ("text/", "application/json", "image/svg+xml")
"""Beginnings of the media types of responses that are compressed."""
MIN_COMPRESSED = 1000
"""Minimum size of compressed responses in bytes."""
UNEXPECTED = TracekitError(
    "the viewer could not answer the request", hint="the terminal in which tracekit view runs shows the error"
)


class Viewer:
    """An HTTP server that shows captures in the browser.

    Attributes:
        host: Address on which the server listens.
        port: Port on which the server listens.
        url: URL of the first page, with the token if one is required.
        flask: The application that answers the requests.
    """

    def __init__(self, captures: ViewedCaptures, host: str, port: int, *, token: bool = False) -> None:
        self._captures = captures
        self.token = secrets.token_urlsafe(24) if token or not is_loopback(host) else None
        with _open_socket(host, port) as listening:
            self._id = secrets.token_hex(8)
            self.flask = Flask("tracekit.view", static_folder=None)
            self._add_routes(self.flask)
            self._server = _make_server(self.flask, listening)
        self._traces = _PerfettoTraces(captures)
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
        """Register the checks that run before each request, and the routes."""
        flask.wsgi_app = self._wrap_to_count_requests(flask.wsgi_app)  # type: ignore[assignment,method-assign]
        flask.before_request(self._check_request)
        flask.after_request(_compress)
        flask.after_request(_add_security_headers)
        flask.register_error_handler(TracekitError, _create_error_response)
        flask.register_error_handler(Exception, _create_failure_response)
        flask.add_url_rule("/", view_func=self._send_page, defaults={"name": ""})
        flask.add_url_rule("/<path:name>", view_func=self._send_page)
        flask.add_url_rule("/assets/<name>", view_func=_send_asset)
        flask.add_url_rule("/fragment/later/<token>", view_func=self._send_deferred_panel)
        flask.add_url_rule(f"{FRAGMENT}<path:name>", view_func=self._send_table)
        flask.add_url_rule("/fragment/navigation", view_func=self._send_navigation)
        flask.add_url_rule("/fragment/scope", view_func=self._send_scope)
        flask.add_url_rule(STATUS, view_func=self._send_status)
        flask.add_url_rule("/download", view_func=self._send_download)
        flask.add_url_rule("/timeline/data", view_func=self._send_timeline_data)
        flask.add_url_rule("/timeline/event", view_func=self._send_timeline_event)
        flask.add_url_rule("/timeline/op", view_func=self._send_timeline_op)
        flask.add_url_rule("/timeline/events", view_func=self._send_timeline_events)
        flask.add_url_rule("/timeline/search", view_func=self._send_timeline_search)
        flask.add_url_rule("/trace.pftrace", view_func=self._send_trace)

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
        """Reject requests from other sites, for other hosts, with a body, or without the token. Accept others."""
        if request.content_length or "Transfer-Encoding" in request.headers:
            abort(413, "This server rejects requests with a body.")
        if request.method not in ("GET", "HEAD"):
            abort(405, "This server only answers GET and HEAD requests.")
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

    def _send_page(self, name: str) -> Response:
        """Return a page. If a form has sent its state, return a redirect to the URL that other links have."""
        query = request.query_string.decode("utf-8", "replace")
        try:
            state = parse_url(name, query, len(self._captures))
            state = state if state.page else ranks.select_only_rank(self._captures, state)
        except TracekitError as error:
            return _create_page_response(layout.build_error_document(error), 400)
        if (moved := find_moved_page(state)) is not None:
            return redirect(moved)  # type: ignore[return-value]
        url = make_url(state.page, state.at, {name: value for name, value in state.parameters.items() if value})
        is_page = state.page in PAGES
        if is_page and sorted(parse_qsl(urlsplit(url).query)) != sorted(parse_qsl(query, keep_blank_values=True)):
            return redirect(url)  # type: ignore[return-value]
        status = 200 if is_page else 404
        return _create_page_response(layout.build_page_document(self._captures, state), status)

    def _send_deferred_panel(self, token: str) -> Response:
        """Return a panel that was not computed with its page, or nothing if the capture has no data for it."""
        try:
            content: Content = self._captures.compute_deferred_result(token)
        except TracekitError as error:
            content = components.build_error_message(error)
        return _create_html_response(render(content))

    def _send_table(self, name: str) -> Response:
        """Return a table of a page in the state that the URL describes."""
        state, arguments, heading = parse_fragment(self._parse_fragment_state())
        if state.page not in PAGES:
            raise TracekitError(f"the viewer has no page {state.page[:100]!r}", hint="follow a link of the viewer")
        context = Context(self._captures, state)
        return _create_html_response(render(context.build_table(name, arguments, heading=heading)))

    def _send_navigation(self) -> Response:
        """Return the navigation, in which the pages without data are dimmed."""
        state = self._parse_fragment_state()
        return _create_html_response(render(layout.build_navigation(self._captures, state)))

    def _send_scope(self) -> Response:
        """Return the bar that shows and changes the scope."""
        return _create_html_response(render(layout.build_scope(self._captures, self._parse_fragment_state())))

    def _parse_fragment_state(self) -> PageState:
        """Return the state of the page that contains the requested part. The parameter ``page`` is its name.

        Raises:
            TracekitError: A parameter has an invalid value.
        """
        query = request.query_string.decode("utf-8", "replace")
        state = parse_url(request.args.get("page", ""), query, len(self._captures))
        return replace(state, parameters={n: value for n, value in state.parameters.items() if n != "page"})

    def _send_status(self) -> dict[str, Any]:
        """Return the id of this server, what it computes, the numbers of captures, and those that have changed."""
        captures = self._captures
        return {"server": self._id, "activities": captures.list_activities(), **captures.describe()}

    def _send_download(self) -> Response:
        """Return a file with the rows that match the filters of a table."""
        content, kind, name = downloads.export_rows(self._captures, request.args)
        answer = Response(content, mimetype=kind)
        if not name.endswith(".tsv"):
            answer.headers.set("Content-Disposition", "attachment", filename=name)
        return answer

    def _send_timeline_data(self) -> Response:
        """Return what the timeline draws in a window."""
        return _create_json_response(timeline.build_answer(self._captures, self._parse_fragment_state()))

    def _send_timeline_event(self) -> Response:
        """Return what is known about an event of the timeline."""
        state = self._parse_fragment_state()
        key = selection.parse_event(state.get("event"), state, self._captures)
        members = timeline.get_timelines(self._captures).list_members(state)
        chosen = selection.find_event(self._captures, key)
        return _create_html_response(render(timeline_page.build_details(state, members, chosen)))

    def _send_timeline_op(self) -> Response:
        """Return the op and the step of an event of the timeline."""
        state = self._parse_fragment_state()
        key = selection.parse_event(state.get("event"), state, self._captures)
        return _create_html_response(render(selection.build_op(self._captures, state, key)))

    def _send_timeline_events(self) -> Response:
        """Return a table of the first events in a window of the timeline."""
        state = self._parse_fragment_state()
        members = timeline.get_timelines(self._captures).list_members(state)
        span = timeline.find_common_span(self._captures, members)
        window = windows.parse_window(state.get("start"), state.get("end"), span)
        return _create_html_response(render(timeline_page.build_event_table(self._captures, state, window)))

    def _send_timeline_search(self) -> Response:
        """Return the next event of the timeline whose name contains a text."""
        return _create_json_response(selection.search_event(self._captures, self._parse_fragment_state()))

    def _send_trace(self) -> Response:
        """Return the Perfetto trace of the requested time window."""
        answer = Response(self._traces.read_perfetto_trace(dict(request.args)), mimetype="application/octet-stream")
        answer.headers.set("Content-Disposition", "attachment", filename="timeline.pftrace")
        return answer


class _PerfettoTraces:
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

        The whole file is read at once. A file that is read while the response is sent would stay open if the browser
        disconnects, and might be deleted meanwhile.

        Raises:
            TracekitError: The window is invalid, or it has more than ``windows.MAX_EXPORTED`` events.
        """
        at = parse_aggregation(parameters, len(self._captures))
        trace = self._captures[at].get_aggregated_trace(at)
        span = timeline.find_span(self._captures, self._captures[at])
        start, end = windows.parse_window(parameters.get("start", ""), parameters.get("end", ""), span)
        count = tracks.count_events(trace, TimeWindow(start, end))
        if count > windows.MAX_EXPORTED:
            raise TracekitError(
                f"the window has {count:,} events, but at most {windows.MAX_EXPORTED:,} can be downloaded",
                hint="choose a shorter window, or convert the capture with tracekit convert --to perfetto",
            )
        key = (at, start, end)
        with self._lock:
            if key not in self._paths:
                self._number += 1
                path = self._folder / f"{self._number}.pftrace"
                trace.select(time=(start, end)).export(path, format="perfetto")
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


def _send_asset(name: str) -> Response:
    """Return a style sheet or a script. If the URL contains the hash of its content, browsers may cache it forever."""
    asset = layout.read_asset(name)
    if asset is None:
        abort(404, "This file does not exist.")
    answer = Response(asset.content, mimetype=asset.media_type)
    is_current = request.args.get("v") == asset.hash
    answer.headers["Cache-Control"] = "private, max-age=31536000, immutable" if is_current else "no-cache"
    return answer


def _create_page_response(document: Content, status: int = 200) -> Response:
    return _create_html_response(f"<!doctype html>{render(document)}", status)


def _create_json_response(values: dict[str, Any]) -> Response:
    answer = Response(json.dumps(values, separators=(",", ":"), allow_nan=False), mimetype="application/json")
    answer.headers["Cache-Control"] = "no-cache"
    return answer


def _create_html_response(text: str, status: int = 200) -> Response:
    answer = Response(text, status, mimetype="text/html")
    answer.headers["Cache-Control"] = "no-cache"
    return answer


def _create_error_response(error: TracekitError) -> Response:
    """Return the response to a request that raised an error: the message and the hint as text, with status 400.

    The media type is plain text, because a message may contain values from the URL.
    """
    text = f"{error.message}. Hint: {error.hint}" if error.hint else error.message
    return Response(text, 400, mimetype="text/plain")


def _create_failure_response(error: Exception) -> Response:
    """Return the response to a request that is rejected or that failed.

    The details of a failure are only printed in the terminal, because they may be private.
    """
    if isinstance(error, HTTPException):
        reason, status = TracekitError(error.description or error.name), error.code or 500
    else:
        traceback.print_exception(error)
        reason, status = UNEXPECTED, 500
    return _create_page_response(layout.build_error_document(reason), status)


def _add_security_headers(response: Response) -> Response:
    """Add security headers to a response, such as those that restrict which resources a page may load."""
    response.headers["Content-Security-Policy"] = POLICY
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
    response.headers["Cross-Origin-Opener-Policy"] = "same-origin"
    return response


def _compress(response: Response) -> Response:
    """Compress a text response if the browser accepts this."""
    response.vary.add("Accept-Encoding")
    if (
        request.accept_encodings["gzip"] > 0
        and (response.mimetype or "").startswith(COMPRESSED)
        and not response.is_streamed
        and len(data := response.get_data()) >= MIN_COMPRESSED
    ):
        response.set_data(gzip.compress(data, compresslevel=5, mtime=0))
        response.headers["Content-Encoding"] = "gzip"
    return response
