"""Download files over HTTP, and list the files of a folder that a server shows as an index page.

A file is requested once, as a whole. Nothing that the server states is believed before it is checked: the size, the
encoding, the number of redirects, and the time between two blocks are limited.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import fnmatch
import http.client
import os
import re
import socket
import ssl
import urllib.error
import urllib.request
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit

from tracekit.errors import TracekitError
from tracekit.system.remote import watching
from tracekit.system.remote.watching import Listing

if TYPE_CHECKING:
    from collections.abc import Iterator

_SCHEMES = ("http", "https")
_BLOCK_BYTES = 1 << 20
_MAX_INDEX_BYTES = 16 << 20
_MAX_REDIRECTS = 10
_PATTERN = re.compile(r"[*?\[]")
_NAME = re.compile(r"[^/]+/?")
_PROBE_S = 0.2
_MAX_ERRNO = 4096
_HTML = re.compile(rb"\s*<(?:!doctype|html|head|body|\?xml)\b", re.IGNORECASE)
_LATER = "try again later"
_STATUS = {
    401: ("requires a user name and a password", "add them to the URL, as in https://user:password@host/file"),
    403: ("denies access to this file", "check your permissions; if the URL is signed, the signature may have expired"),
    407: ("is behind a proxy that requires a password", "set the variable https_proxy with the password"),
    429: ("refuses further requests for now", _LATER),
}
_MISSING = (404, 410)
_FAILURES: tuple[tuple[type[Exception], str, str], ...] = (
    (
        ssl.SSLCertVerificationError,
        "the certificate of the server is not valid",
        "check the host of the URL, or install the certificate",
    ),
    (
        ssl.SSLError,
        "no encrypted connection to the server can be made",
        "check whether the URL begins with http or https",
    ),
    (
        socket.gaierror,
        "the host of the URL cannot be found",
        "check the spelling of the host, and the network connection",
    ),
    (http.client.RemoteDisconnected, "the server closed the connection without an answer", _LATER),
    (http.client.IncompleteRead, "the connection ended before the end of the file", "load the file again"),
    (
        http.client.InvalidURL,
        "this is not a valid URL",
        "percent-encode special characters, such as %20 for a space",
    ),
)


class RemoteFileNotFoundError(TracekitError, FileNotFoundError):
    """A server does not have the requested file."""


class Response:
    """The open response of a server to a request for a file.

    Attributes:
        url: The URL of the request, in which the user name and the password are kept.
        size: Size of the file in bytes according to the server. None if the server does not state it.
    """

    def __init__(self, url: str, response: http.client.HTTPResponse) -> None:
        self.url = url
        self.size = response.length
        self._response = response

    def read_file(self) -> Iterator[bytes]:
        """Yield the content of a file in blocks, exactly as it was sent.

        Raises:
            TracekitError: The server sent an HTML page instead of the file, or as for ``read_blocks``.
        """
        for number, block in enumerate(self.read_blocks()):
            if not number and self.is_html() and _HTML.match(block):
                hint = (
                    "if the page asks for a password, add it to the URL; to load several files of a folder, list them"
                )
                raise TracekitError("the server sends a web page instead of the file", path=self.url, hint=hint)
            yield block

    def read_blocks(self) -> Iterator[bytes]:
        """Yield the content in blocks, exactly as it was sent.

        Raises:
            TracekitError: The server sent fewer or more bytes than it announced, or the connection failed.
        """
        left = self.size
        while block := self._read_block():
            yield block
            left = None if left is None else left - len(block)
        if left:
            message = f"the server announced {self.size:,} bytes, but the connection ended {left:,} bytes earlier"
            raise TracekitError(message, path=self.url, hint="load the file again")
        if self.size is not None and self._has_more_bytes():
            message = f"the server announced {self.size:,} bytes, but sends more"
            raise TracekitError(message, path=self.url, hint="download the file in another way, and load the copy")

    def is_html(self) -> bool:
        """Return whether the server states that it sends an HTML page, which may list the files of a folder."""
        return self._response.headers.get_content_type() == "text/html"

    def read_index(self, folder: str) -> list[str]:
        """Return the sorted URLs of the files and folders in a folder to which an index page links.

        The URLs of folders end with a slash.

        Raises:
            TracekitError: The page is too large, or the connection failed.
        """
        page = bytearray()
        for block in self.read_blocks():
            page += block
            if len(page) > _MAX_INDEX_BYTES:
                message = f"the index page of this folder has more than {_MAX_INDEX_BYTES:,} bytes"
                raise TracekitError(message, path=self.url, hint="name the files instead of the folder")
        links = _Links()
        links.feed(page.decode("utf-8", "replace"))
        absolute = {urljoin(folder, urlsplit(link)._replace(query="", fragment="").geturl()) for link in links.targets}
        return sorted(u for u in absolute if u.startswith(folder) and _NAME.fullmatch(u[len(folder) :]))

    def _read_block(self) -> bytes:
        with convert_errors(self.url):
            return self._response.read1(_BLOCK_BYTES)

    def _has_more_bytes(self) -> bool:
        """Return whether the server sends more bytes. It was asked to close the connection after the file."""
        with contextlib.suppress(OSError, AttributeError, ValueError):
            file: Any = self._response.fp
            file.raw._sock.settimeout(_PROBE_S)  # noqa: SLF001 - the only way to wait for less time than for the file
            return bool(file.read1(1))
        return False


class _Links(HTMLParser):
    """The targets of the links in an HTML page."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the target of a link."""
        self.targets += [value for name, value in attrs if tag == "a" and name == "href" and value]


class _Redirects(urllib.request.HTTPRedirectHandler):
    """A handler that follows a few redirects, but neither to other schemes nor from https to http."""

    max_redirections = max_repeats = _MAX_REDIRECTS

    def redirect_request(  # noqa: PLR0917 - the signature of the base class
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Return the request for the URL to which a server redirects.

        Raises:
            TracekitError: The URL is not allowed.
        """
        scheme = urlsplit(newurl).scheme.lower()
        if scheme not in _SCHEMES or (scheme == "http" and req.type == "https"):
            fp.close()
            message = f"the server redirects from {req.type} to {scheme}, which is not allowed"
            raise TracekitError(message, path=req.full_url, hint="load the file from the other URL if you trust it")
        redirected = super().redirect_request(req, fp, code, msg, headers, newurl)
        if redirected is not None:
            redirected.method = req.get_method()
        return redirected


@contextlib.contextmanager
def open_response(url: str, *, method: str = "GET") -> Iterator[Response]:
    """Request a file, and yield the response, whose content is not read yet.

    Args:
        url: The URL of the file.
        method: ``GET``, or ``HEAD`` to request only the description of the file.

    Raises:
        TracekitError: The server cannot be reached or does not send the file.
        RemoteFileNotFoundError: The server does not have the file.
    """
    with contextlib.ExitStack() as stack:
        with convert_errors(url):
            opener = urllib.request.build_opener(_Redirects)
            response = stack.enter_context(opener.open(_create_request(url, method), timeout=watching.STALL_S))
        encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
        is_gzipped = encoding in ("gzip", "x-gzip") and urlsplit(url).path.lower().endswith("gz")
        if encoding not in ("", "identity") and not is_gzipped:
            message = f"the server sends the file in the encoding {encoding[:40]!r}, although none was requested"
            raise TracekitError(message, path=url, hint="download the file in another way, and load the copy")
        if response.status != http.client.OK:
            message = f"the server does not send the file (HTTP status {response.status})"
            raise TracekitError(message, path=url, hint="check the URL")
        yield Response(url, response)


def list_url(url: str) -> Listing:
    """Return the files that a URL refers to: a file, or the links of an index page to files in the same folder.

    Only the last part of a pattern may contain wildcards. A URL is that of a folder if it ends with a slash, or if its
    last part contains no dot and the server describes it as an HTML page.

    Raises:
        TracekitError: The server does not list the folder.
    """
    parts = urlsplit(url)
    folder, _, name = parts.path.rpartition("/")
    is_pattern = _PATTERN.search(name) is not None
    if not parts.query and "*" in folder:
        hint = "use wildcards only in the last part, such as https://host/run/*.nsys-rep"
        raise TracekitError("folders in an HTTP URL cannot contain wildcards", path=url, hint=hint)
    if parts.query or (name and not is_pattern and ("." in name or not _is_html(url))):
        return Listing([url], [])
    path = f"{folder}/" if is_pattern or not name else f"{parts.path}/"
    requested = urlunsplit((parts.scheme, parts.netloc, path, "", ""))
    with open_response(requested) as response:
        if not response.is_html():
            hint = "name the files instead of the folder or pattern"
            raise TracekitError("the server does not list the files of this folder", path=url, hint=hint)
        listed = response.read_index(requested)
    if is_pattern:
        listed = [each for each in listed if fnmatch.fnmatchcase(unquote(each.rstrip("/").rpartition("/")[2]), name)]
    folders = [each for each in listed if each.endswith("/")]
    return Listing([each for each in listed if not each.endswith("/")], folders, is_folder=not is_pattern)


def _is_html(url: str) -> bool:
    """Return whether a server describes a file as an HTML page. Servers that do not answer this request do not."""
    with contextlib.suppress(TracekitError), open_response(url, method="HEAD") as response:
        return response.is_html()
    return False


@contextlib.contextmanager
def convert_errors(url: str) -> Iterator[None]:
    """Return a context manager that converts errors of requests to ``TracekitError``.

    The original errors contain the URL with its secrets, and are therefore not shown as a cause.
    """
    try:
        yield
    except TracekitError:
        raise
    except urllib.error.HTTPError as e:
        e.close()
        error = _create_status_error(url, e.code)
    except (OSError, http.client.HTTPException, ValueError) as e:
        reason = e.reason if isinstance(e, urllib.error.URLError) else e
        what, hint = _describe_failure(reason)
        error = TracekitError(what, path=url, hint=hint)
        # the engine for Dask repeats a task whose error has an error of the operating system as its cause
        if isinstance(reason, OSError):
            raise error from OSError(reason.errno or errno.EIO, what)
    else:
        return
    raise error from None


def _create_status_error(url: str, status: int) -> TracekitError:
    """Return the error for the status of a response that is not a success."""
    if status in _MISSING:
        message, hint = "the server does not have this file", "check the spelling of the URL"
        return RemoteFileNotFoundError(f"{message} (HTTP status {status})", path=url, hint=hint)
    if status < http.client.BAD_REQUEST:
        message, hint = (
            "the server redirects without end or without a target",
            "check the URL",
        )
    elif status >= http.client.INTERNAL_SERVER_ERROR:
        message, hint = "the server failed", _LATER
    else:
        what, hint = _STATUS.get(status, ("rejects the request", "check the URL"))
        message = f"the server {what}"
    return TracekitError(f"{message} (HTTP status {status})", path=url, hint=hint)


def _describe_failure(reason: object) -> tuple[str, str]:
    """Return what went wrong in a request, and a hint."""
    for kind, what, hint in _FAILURES:
        if isinstance(reason, kind):
            return what, hint
    if isinstance(reason, TimeoutError):
        return f"the server did not answer within {watching.STALL_S:g} s", _LATER
    if isinstance(reason, OSError) and reason.errno is not None and 0 < reason.errno < _MAX_ERRNO:
        return f"the server cannot be reached: {os.strerror(reason.errno)}", "check the host and the port of the URL"
    return f"the server does not follow HTTP ({type(reason).__name__})", "check the host and the port of the URL"


def _create_request(url: str, method: str) -> urllib.request.Request:
    """Return the request for a file. The user name and the password are sent only to the server that the URL names."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    path = quote(parts.path, safe="/%:=&~+!$,;'@()*[]")
    query = quote(parts.query, safe="/%:=&?~+!$,;'@()*[]")
    request = urllib.request.Request(  # noqa: S310 - only called with the schemes http and https
        urlunsplit((parts.scheme, host, path, query, "")),
        headers={"Accept-Encoding": "identity", "User-Agent": "tracekit"},
        method=method,
    )
    if at:
        token = base64.b64encode(unquote(user).encode()).decode("ascii")
        request.add_unredirected_header("Authorization", f"Basic {token}")
    return request
