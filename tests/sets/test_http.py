"""Captures on web servers: one request per read, bounded sizes and times, and true messages."""

from __future__ import annotations

import contextlib
import gc
import gzip
import json
import operator
import os
import pickle
import shutil
import socket
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import tracekit as tk
from click.testing import CliRunner, Result
from tests.conftest import FIXTURES
from tracekit import cli
from tracekit.errors import TracekitError
from tracekit.sets import LocalEngine
from tracekit.sets.dask_engine import DaskEngine
from tracekit.sets.member_set import open_member
from tracekit.system import remote
from tracekit.system.remote import http, watching

RANKS = FIXTURES / "ranks"
REPORT = (RANKS / "mpi_rank0.nsys-rep").read_bytes()
SECRET = "sEcReT"


class Handler(BaseHTTPRequestHandler):
    """Answers each path with the function of the same name, and counts the bytes of all bodies."""

    server: Server

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.requests.append((self.command, self.path, self.headers.get("Authorization")))
        answer = self.server.answers.get(path)
        with contextlib.suppress(ConnectionError, BrokenPipeError, ValueError):
            if answer is None:
                self.send_error(404)
            else:
                answer(self)

    def do_HEAD(self) -> None:
        self.do_GET()

    def start(self, status: int = 200, **headers: Any) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def send(self, body: bytes) -> None:
        if self.command == "HEAD":
            return
        self.wfile.write(body)
        self.server.sent += len(body)

    def log_message(self, *_: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, Callable[[Handler], None]] = {}
        self.requests: list[tuple[str, str, str | None]] = []
        self.sent = 0
        self.is_closing = threading.Event()

    def handle_error(self, *_: Any) -> None:
        pass

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add_file(self, path: str, content: bytes, **headers: Any) -> None:
        def answer(handler: Handler) -> None:
            handler.start(Content_Length=len(content), **headers)
            handler.send(content)

        self.answers[path] = answer


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.is_closing.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Short limits, no proxy, and a folder for temporary files that is empty at the end."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(watching, "STALL_S", 0.4)
    monkeypatch.setattr(watching, "LISTING_S", 1.0)
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


def fail(url: str, match: str) -> TracekitError:
    """Load a file, check that the error is complete and shows no secret, and return it."""
    with pytest.raises(TracekitError, match=match) as raised:
        tk.load(url)
    text = str(raised.value)
    assert "\nHint: " in text
    assert SECRET not in text
    assert raised.value.path is not None
    assert "127.0.0.1" in raised.value.path
    assert not isinstance(raised.value.__cause__, TracekitError)
    assert SECRET not in repr(raised.value.__cause__)
    return raised.value


class TestCost:
    def test_one_capture_is_sent_once(self, server: Server) -> None:
        server.add_file("/run/mpi_rank0.nsys-rep", REPORT)
        with tk.load(f"{server.url}/run/mpi_rank0.nsys-rep") as trace, tk.load(RANKS / "mpi_rank0.nsys-rep") as local:
            for name in local.tables:
                assert trace.table(name) == local.table(name)
        assert server.sent == len(REPORT)
        assert [command for command, *_ in server.requests] == ["GET"]

    @pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.thorough)])
    @pytest.mark.parametrize("is_folder", [True, False])
    def test_a_set_is_sent_once(self, server: Server, jobs: int, is_folder: bool) -> None:
        names = sorted(path.name for path in RANKS.glob("*.nsys-rep"))
        for name in names:
            server.add_file(f"/run/{name}", (RANKS / name).read_bytes())
        index = "".join(
            f'<a href="{name}">{name}</a>' for name in [*names, "../", ".hidden", "http://other/x.nsys-rep"]
        )
        server.add_file("/run/", index.encode(), Content_Type="text/html")
        size = sum((RANKS / name).stat().st_size for name in names)
        urls = f"{server.url}/run/" if is_folder else [f"{server.url}/run/{name}" for name in names]
        ranks = tk.load_many(urls, engine=LocalEngine(jobs))
        for _ in range(2):
            calls = ranks.correlate().map(operator.methodcaller("count", "mpi_calls"))
            assert calls == tk.load_many(RANKS).map(operator.methodcaller("count", "mpi_calls"))
        assert server.sent <= 1.2 * size

    def test_copies_that_are_not_read_are_deleted_with_the_set(self, server: Server, temporary: Path) -> None:
        server.add_file("/mpi_rank0.nsys-rep", REPORT)
        ranks = tk.load_many([f"{server.url}/mpi_rank0.nsys-rep", RANKS / "mpi_rank1.nsys-rep"])
        assert len(list(temporary.rglob("*.nsys-rep"))) == 1
        copy = pickle.loads(pickle.dumps(ranks))
        assert copy.map(lambda trace: trace.count("kernels")) == [15, 15]
        assert server.sent == len(REPORT)
        with ranks.open(0) as trace:
            del ranks
            assert trace.count("kernels") == 15
        assert copy.map(lambda trace: trace.count("kernels")) == [15, 15]
        assert server.sent == 2 * len(REPORT)

    def test_other_processes_share_one_download(self, server: Server, temporary: Path) -> None:
        """Each task of another process receives a pickled member, and no process reads the file before the tasks."""
        for name in ("mpi_rank0.nsys-rep", "mpi_rank1.nsys-rep"):
            server.add_file(f"/{name}", (RANKS / name).read_bytes())
        urls = [f"{server.url}/mpi_rank{n}.nsys-rep" for n in (0, 1)]
        ranks = tk.load_many(urls, ranks={"mpi_rank0": 0, "mpi_rank1": 1})
        for _ in range(3):
            for member in pickle.loads(pickle.dumps(ranks.captures)):
                with open_member(member) as trace:
                    assert trace.count("kernels") == 15
        assert ranks.map(lambda trace: trace.count("kernels")) == [15, 15]
        assert server.sent == sum((RANKS / f"mpi_rank{n}.nsys-rep").stat().st_size for n in (0, 1))
        assert len(list(temporary.rglob("*.nsys-rep"))) == 2
        again = pickle.loads(pickle.dumps(ranks))
        del ranks, member, trace
        gc.collect()
        assert list(temporary.iterdir()) == []
        assert again.map(lambda trace: trace.count("kernels")) == [15, 15]

    @pytest.mark.parametrize("change", ["another folder", "another user", "a full disk"])
    def test_other_machines_download_the_file_themselves(
        self, server: Server, temporary: Path, change: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server.add_file("/mpi_rank0.nsys-rep", REPORT)
        ranks = tk.load_many([f"{server.url}/mpi_rank0.nsys-rep"], ranks={"mpi_rank0": 0})
        pickled = pickle.dumps(ranks.captures)
        (shared,) = temporary.glob("*/0")
        if change == "another folder":
            shared.rename(shared.with_name("moved"))
            shared.mkdir()
        elif change == "another user":
            monkeypatch.setattr(os, "geteuid", lambda: -1)
        else:
            usage = shutil.disk_usage(temporary)
            monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=2 * len(REPORT)))
        for count in (1, 2):
            (member,) = pickle.loads(pickled)
            with open_member(member) as trace:
                assert trace.count("kernels") == 15
            assert server.sent == count * len(REPORT)
            del member, trace
            gc.collect()
            assert list(temporary.rglob("*.nsys-rep")) == []

    @pytest.mark.thorough
    def test_dask_downloads_each_file_once(self, server: Server, temporary: Path) -> None:
        pytest.importorskip("distributed")
        names = [f"mpi_rank{n}.nsys-rep" for n in (0, 1)]
        for name in names:
            server.add_file(f"/{name}", (RANKS / name).read_bytes())
        ranks = tk.load_many([f"{server.url}/{name}" for name in names], engine=DaskEngine(workers=2))
        for _ in range(2):
            assert ranks.map(operator.methodcaller("count", "kernels")) == [15, 15]
        assert server.sent <= 1.2 * sum((RANKS / name).stat().st_size for name in names)
        assert len(list(temporary.rglob("*.nsys-rep"))) == 2

    def test_copies_that_take_much_of_the_disk_are_not_kept(
        self, server: Server, temporary: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("mpi_rank0.nsys-rep", "mpi_rank1.nsys-rep"):
            server.add_file(f"/{name}", (RANKS / name).read_bytes())
        usage = shutil.disk_usage(temporary)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=4 * len(REPORT)))
        ranks = tk.load_many([f"{server.url}/mpi_rank{n}.nsys-rep" for n in (0, 1)])
        assert len(list(temporary.rglob("*.nsys-rep"))) == 1
        assert ranks.map(lambda trace: trace.count("kernels")) == [15, 15]

    def test_a_pattern(self, server: Server) -> None:
        server.add_file("/run/rank0.nsys-rep", REPORT)
        server.add_file("/run/", b'<a href="rank0.nsys-rep">', Content_Type="text/html")
        ranks = tk.load_many(f"{server.url}/run/*.nsys-rep", ranks={"rank0": 0})
        assert [m.name for m in ranks.captures] == ["rank0.nsys-rep"]
        with pytest.raises(TracekitError, match="no file matches this URL"):
            tk.load_many(f"{server.url}/run/*.sqlite")
        with pytest.raises(TracekitError, match="folders in an HTTP URL cannot contain wildcards"):
            tk.load_many(f"{server.url}/*/rank0.nsys-rep")

    def test_a_folder_without_a_slash(self, server: Server) -> None:
        def answer(handler: Handler) -> None:
            handler.start(301, Location="/run/")

        server.answers["/run"] = answer
        server.add_file("/run/rank0.nsys-rep", REPORT)
        server.add_file("/run/", b'<a href="rank0.nsys-rep"><a href="sub/">', Content_Type="text/html")
        with pytest.warns(tk.TracekitWarning, match="sub"):
            ranks = tk.load_many(f"{server.url}/run", ranks={"rank0": 0})
        assert [m.name for m in ranks.captures] == ["rank0.nsys-rep"]
        assert [command for command, *_ in server.requests] == ["HEAD", "HEAD", "GET"]

    def test_files_that_differ_in_their_query_strings(self, server: Server) -> None:
        def answer(handler: Handler) -> None:
            content = (RANKS / handler.path.rpartition("=")[2]).read_bytes()
            handler.start(Content_Length=len(content))
            handler.send(content)

        server.answers["/download"] = answer
        ranks = tk.load_many([f"{server.url}/download?name=mpi_rank{n}.nsys-rep" for n in (0, 1)])
        assert [m.name for m in ranks.captures] == ["download", "download#2"]
        assert ranks.map(lambda trace: trace.count("kernels")) == [15, 15]

    def test_a_gzipped_file_with_an_encoding(self, server: Server) -> None:
        content = (FIXTURES / "kineto" / "train.pt.trace.json.gz").read_bytes()
        server.add_file("/train.pt.trace.json.gz", content, Content_Encoding="gzip")
        with tk.load(f"{server.url}/train.pt.trace.json.gz") as trace:
            assert trace.count("kernels") > 0


class TestCredentials:
    def test_a_password_is_sent_only_to_the_server_of_the_url(self, server: Server) -> None:
        other = Server()
        threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        other.add_file("/x.nsys-rep", REPORT)
        server.answers["/x.nsys-rep"] = lambda handler: handler.start(302, Location=f"{other.url}/x.nsys-rep")
        with tk.load(server.url.replace("//", f"//user:{SECRET}@") + "/x.nsys-rep") as trace:
            assert trace.count("kernels") == 15
            assert SECRET not in f"{trace!r} {trace.path}"
        assert server.requests[0][2] == "Basic dXNlcjpzRWNSZVQ="
        assert other.requests[0][2] is None
        other.shutdown()
        other.server_close()

    def test_a_redirect_to_another_scheme(self, server: Server, tmp_path: Path) -> None:
        (tmp_path / "x.nsys-rep").write_bytes(REPORT)
        for target in (f"file://{tmp_path}/x.nsys-rep", "ftp://127.0.0.1/x.nsys-rep"):
            server.answers["/x"] = lambda handler, target=target: handler.start(302, Location=target)
            fail(f"{server.url}/x", "the server redirects")


STATUSES = {
    401: "requires a user name and a password",
    403: "denies access to this file",
    404: "does not have this file",
    410: "does not have this file",
    418: "rejects the request",
    429: "refuses further requests for now",
    500: "the server failed",
    503: "the server failed",
}


@pytest.mark.many(4)
@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("path", ["/run/x.nsys-rep", f"/run/x.nsys-rep?sig={SECRET}", "/run/", "/run/*.nsys-rep"])
def test_a_status_is_named(server: Server, status: int, path: str) -> None:
    for name in ("/run/x.nsys-rep", "/run/"):
        server.answers[name] = lambda handler: handler.send_error(status)
    match = rf"{STATUSES[status]} \(HTTP status {status}\)\nHint: "
    with pytest.raises(TracekitError, match=match) as raised:
        tk.load_many(f"{server.url}{path}")
    assert SECRET not in str(raised.value)
    assert isinstance(raised.value, FileNotFoundError) == (status in (404, 410))
    if "*" not in path:
        fail(f"{server.url}{path}", match)


def endless(start: bytes = b"") -> Callable[[Handler], None]:
    def answer(handler: Handler) -> None:
        handler.start()
        handler.send(start)
        while not handler.server.is_closing.is_set():
            handler.send(bytes(1 << 20))

    return answer


def stalled(start: bytes | None, size: int = 10**6) -> Callable[[Handler], None]:
    def answer(handler: Handler) -> None:
        if start is not None:
            handler.start(Content_Length=size)
            handler.send(start)
            handler.wfile.flush()
        handler.server.is_closing.wait(20)

    return answer


def trickle(handler: Handler) -> None:
    handler.start(Content_Length=10**9)
    while not handler.server.is_closing.wait(0.02):
        handler.send(b"x")


def trickle_of_headers(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
    while not handler.server.is_closing.wait(0.02):
        handler.send(b"x")


def raw(content: bytes) -> Callable[[Handler], None]:
    def answer(handler: Handler) -> None:
        handler.wfile.write(content)
        handler.close_connection = True

    return answer


def reset(handler: Handler) -> None:
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    handler.connection.close()


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
PART = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 3\r\n\r\nabc"
HOSTILE: dict[str, tuple[Callable[[Handler], None], str]] = {
    "no answer": (stalled(None), "(sent only 0 bytes in 0.4 s|did not answer within 0.4 s)"),
    "stall": (stalled(REPORT[:5000]), "(sent only [0-9,]+ bytes in 0.4 s|did not answer within 0.4 s)"),
    "trickle": (trickle, "the server sent only [0-9,]+ bytes in 0.4 s"),
    "trickle of headers": (trickle_of_headers, "the server sent only 0 bytes in 0.4 s"),
    "endless zeros": (endless(), "no reader recognizes|is empty|zeros|not a"),
    "endless report": (endless(REPORT), "does not report the size of this file, which has more than 8,000,000 bytes"),
    "endless headers": (raw(OK + b"X: y\r\n" * 1000), "does not follow HTTP"),
    "long header": (raw(OK + b"X: " + b"y" * 100_000), "does not follow HTTP"),
    "no HTTP": (raw(b"220 ftp ready\r\n"), "does not follow HTTP"),
    "nothing": (raw(b""), "closed the connection without an answer"),
    "reset": (reset, "Connection reset|without an answer"),
    "redirect loop": (lambda h: h.start(302, Location="/x.nsys-rep"), "redirects without end"),
    "redirect to nowhere": (lambda h: h.start(302), "redirects without end or without a target"),
    "redirects": (lambda h: h.start(301, Location=f"/x.nsys-rep?{time.time_ns()}"), "redirects without end"),
    "shorter": (stalled(b"", 0), "is empty|no reader"),
    "ends early": (
        raw(OK + b"Content-Length: 99999\r\n\r\n" + REPORT[:50_000]),
        "announced 99,999 bytes, but",
    ),
    "sends more": (raw(OK + b"Content-Length: 50000\r\n\r\n" + REPORT), "announced 50,000 bytes, but sends more"),
    "negative": (raw(OK + b"Content-Length: -5\r\n\r\n" + REPORT[:99]), "recognizes|damaged|ends|trunc"),
    "huge": (raw(OK + b"Content-Length: 99999999999999999999\r\n\r\n"), "bytes, but only [0-9,]+ are free"),
    "bad chunk": (
        raw(CHUNKED + b"zz\r\nabc"),
        "connection ended before|does not follow HTTP",
    ),
    "half a chunk": (raw(CHUNKED + b"9999\r\nabc"), "connection ended before"),
    "part": (
        raw(PART),
        r"does not send the file \(HTTP status 206\)",
    ),
    "no content": (raw(b"HTTP/1.1 204 None\r\n\r\n"), r"does not send the file \(HTTP status 204\)"),
    "compressed": (raw(OK + b"Content-Encoding: br\r\nContent-Length: 3\r\n\r\nabc"), "in the encoding 'br', although"),
    "bomb": (
        raw(OK + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(bytes(1 << 24))),
        "in the encoding 'gzip', although none was requested",
    ),
    "web page": (
        raw(OK + b"Content-Type: text/html; charset=utf-8\r\n\r\n<!DOCTYPE html><form>Password"),
        "sends a web page instead of the file",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_answers_take_bounded_memory_and_time(
    server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_MAX_UNKNOWN_BYTES", 8_000_000)
    monkeypatch.setattr(remote, "_CHECKED_BYTES", 1_000_000)
    server.answers["/x.nsys-rep"], message = HOSTILE[name]
    tracemalloc.start()
    start = time.monotonic()
    fail(f"{server.url.replace('//', f'//user:{SECRET}@')}/x.nsys-rep?sig={SECRET}#{SECRET}", message)
    assert time.monotonic() - start < 5
    assert tracemalloc.get_traced_memory()[1] < 32 << 20
    tracemalloc.stop()


def test_an_endless_index_page(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(handler: Handler) -> None:
        handler.start(Content_Type="text/html")
        while not handler.server.is_closing.is_set():
            handler.send(b"<a href=x.nsys-rep>" * 1000)

    monkeypatch.setattr(http, "_MAX_INDEX_BYTES", 1 << 20)
    server.answers["/run/"] = answer
    with pytest.raises(TracekitError, match="the index page of this folder has more than 1,048,576 bytes\nHint: "):
        tk.load_many(f"{server.url}/run/")
    server.answers["/run/"] = stalled(None)
    with pytest.raises(TracekitError, match=r"(did not list its files within|did not answer within)"):
        tk.load_many(f"{server.url}/run/")
    server.add_file("/run/", b"[]", Content_Type="application/json")
    with pytest.raises(TracekitError, match="the server does not list the files of this folder\nHint: "):
        tk.load_many(f"{server.url}/run/")


def test_a_bomb_in_a_capture(server: Server) -> None:
    """A small file that expands to much more is read like a local file. Warnings name the URL, not the copy."""
    events = [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "args": {"device": 0, "stream": 7}}]
    text = json.dumps({"schemaVersion": 1, "traceEvents": events})[:-2] + " " * (64 << 20)
    server.add_file("/x.pt.trace.json.gz", gzip.compress(text.encode(), 1))
    with pytest.warns(tk.TracekitWarning, match=rf"^{server.url}/x.pt.trace.json.gz: the file is truncated"):
        trace = tk.load(f"{server.url}/x.pt.trace.json.gz")
    with trace:
        assert trace.count("kernels") == 1


def test_unreachable_servers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    error = fail(f"http://127.0.0.1:{port}/x", "the server cannot be reached: Connection refused")
    assert isinstance(error.__cause__, OSError)
    with pytest.raises(TracekitError, match="the host of the URL cannot be found\nHint: "):
        tk.load("http://127.0.0.1.invalid/x")
    with pytest.raises(TracekitError, match="this is not a valid URL\nHint: "):
        tk.load(f"http://127.0.0.1:{SECRET}/x")


class SlowStorage:
    """A storage of fsspec whose files never end, stall, or have another size than it reports."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.released = threading.Event()

    def isdir(self, _: str) -> bool:
        if self.kind == "stalls at once":
            self.released.wait(20)
        return False

    def size(self, _: str) -> int | None:
        return {"endless": None, "more": 100, "less": 10**6}.get(self.kind, 10**6)

    @contextlib.contextmanager
    def open(self, _: str, __: str) -> Iterator[Any]:
        yield self

    def read(self, size: int) -> bytes:
        if self.kind == "denied":
            raise PermissionError(f"403 https://host/x?X-Amz-Signature={SECRET}")
        if self.kind == "stalls":
            self.released.wait(20)
        if self.kind == "fails":
            raise OSError(f"GET https://u:{SECRET}@h/x?token={SECRET} failed, Authorization: Bearer {SECRET}")
        return b"" if self.kind == "less" else bytes(size)


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        ("stalls at once", "sent only 0 bytes in 0.4 s"),
        ("stalls", "sent only 0 bytes in 0.4 s"),
        ("endless", "no reader recognizes|is empty|zeros|not a"),
        ("more", "the size of the file changed"),
        ("less", "the size of the file changed"),
        ("denied", "the storage denies access to this file"),
        ("fails", "the storage cannot be read"),
    ],
)
def test_hostile_storages(kind: str, match: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec")
    storage = SlowStorage(kind)
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda url: (storage, url))
    monkeypatch.setattr(remote, "_CHECKED_BYTES", 1_000_000)
    monkeypatch.setattr(remote, "_CHUNK_BYTES", 1 << 20)
    with pytest.raises(TracekitError, match=match) as raised:
        tk.load(f"s3://user:{SECRET}@bucket/x.nsys-rep?versionId={SECRET}")
    storage.released.set()
    assert str(raised.value).startswith("s3://bucket/x.nsys-rep: ")
    assert SECRET not in f"{raised.value} {raised.value.__cause__!r}"
    assert list(Path(tempfile.gettempdir()).iterdir()) == []


def test_an_abandoned_download_writes_nothing_more(temporary: Path) -> None:
    progress = watching.DownloadProgress()
    progress.add_bytes(5)
    progress.cancel()
    with pytest.raises(InterruptedError):
        progress.add_bytes(5)


COMMANDS = {
    "": ("{0}",),
    "analyze": ("analyze", "{0}"),
    "check": ("check", "{0}", "--save", "{1}.json", "-q"),
    "convert": ("convert", "{0}", "-o", "{1}.json"),
    "correlate": ("correlate", "{0}", "-o", "{1}.csv"),
    "diff": ("diff", "{0}", str(RANKS / "mpi_rank0.nsys-rep")),
    "diff, B": ("diff", str(RANKS / "mpi_rank0.nsys-rep"), "{0}"),
    "info": ("info", "{0}"),
    "recipe": ("recipe", "{0}", "-r", "cuda_gpu_kern_sum"),
    "rows": ("rows", "{0}", "kernels"),
    "stats": ("stats", "{0}", "-r", "cuda_gpu_kern_sum"),
    "tables": ("tables", "{0}"),
    "what-if": ("what-if", "{0}", "--edit", "call * x0.5"),
    "why": ("why", "{0}"),
}
"""The commands that read captures at URLs."""
LOCAL_COMMANDS = {"redact": ("redact", "{0}", "{1}"), "view": ("view", "{0}")}
"""The commands that read only local files."""


class TestCommands:
    def run(self, words: tuple[str, ...], url: str, out: Path) -> Result:
        """Run a command with a URL, and check that it shows no secret."""
        result = CliRunner().invoke(cli.cli, [word.format(url, out) for word in words])
        assert SECRET not in f"{result.output} {result.stderr} {result.exception}"
        return result

    def test_every_command_is_listed(self) -> None:
        """See tests/watching and tests/mcp for the commands that read folders, and answer questions."""
        assert {name.partition(",")[0] for name in COMMANDS} | set(LOCAL_COMMANDS) == {
            "",
            *set(cli.COMMANDS) - {"cache", "formats", "mcp", "schema", "watch"},
        }

    @pytest.mark.many(4)
    @pytest.mark.parametrize("name", COMMANDS)
    def test_a_url_is_read_like_a_file(self, server: Server, name: str, tmp_path: Path) -> None:
        server.add_file("/run/mpi_rank0.nsys-rep", REPORT)
        with_secrets = server.url.replace("//", f"//user:{SECRET}@") + f"/run/mpi_rank0.nsys-rep?token={SECRET}"
        outputs = []
        for path in (with_secrets, str(RANKS / "mpi_rank0.nsys-rep")):
            result = self.run(COMMANDS[name], path, tmp_path / f"out{len(outputs)}")
            assert result.exit_code == 0, result.output
            written = [file.read_bytes() for file in tmp_path.glob(f"out{len(outputs)}.*")]
            outputs.append((result.stdout.splitlines(), written))
        (remote_lines, remote_files), (local_lines, local_files) = outputs
        assert remote_files == local_files
        unequal = [pair for pair in zip(remote_lines, local_lines, strict=True) if pair[0] != pair[1]]
        assert all("mpi_rank0.nsys-rep" in line for pair in unequal for line in pair)
        assert server.sent == len(REPORT)

    @pytest.mark.many(3)
    @pytest.mark.parametrize("status", [403, 404, 500])
    @pytest.mark.parametrize("name", COMMANDS)
    def test_a_status_is_an_error_of_every_command(
        self, server: Server, name: str, status: int, tmp_path: Path
    ) -> None:
        server.answers["/x.nsys-rep"] = lambda handler: handler.start(status, Content_Length=0)
        result = self.run(COMMANDS[name], f"{server.url}/x.nsys-rep?token={SECRET}", tmp_path / "out")
        assert isinstance(result.exception, TracekitError)
        assert f"(HTTP status {status})" in str(result.exception)
        assert not list(tmp_path.glob("out*"))

    @pytest.mark.parametrize(
        ("kind", "match"), [("endless", "no reader recognizes"), ("stall", "the server sent only")]
    )
    def test_hostile_answers(
        self, server: Server, kind: str, match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watching, "STALL_S", 30.0 if kind == "endless" else 2.0)

        def answer(handler: Handler) -> None:
            handler.start()
            while kind == "endless" and not server.is_closing.is_set():
                handler.send(b"x" * (1 << 20))
            server.is_closing.wait(6)

        server.answers["/x.nsys-rep"] = answer
        result = self.run(COMMANDS["stats"], f"{server.url}/x.nsys-rep", tmp_path / "out")
        assert isinstance(result.exception, TracekitError)
        assert match in str(result.exception)

    @pytest.mark.parametrize("pattern", ["/run/", "/run/*.nsys-rep"])
    def test_folders_and_patterns(self, server: Server, pattern: str, tmp_path: Path) -> None:
        names = ("mpi_rank0.nsys-rep", "mpi_rank1.nsys-rep")
        for name in names:
            server.add_file(f"/run/{name}", (RANKS / name).read_bytes())
        index = "".join(f'<a href="{name}">{name}</a>' for name in names)
        server.add_file("/run/", index.encode(), Content_Type="text/html")
        local = self.run(COMMANDS["stats"], str(RANKS), tmp_path)
        assert self.run(COMMANDS["stats"], server.url + pattern, tmp_path).stdout == local.stdout
        info = self.run(COMMANDS["info"], server.url + pattern, tmp_path)
        assert [name in info.stdout for name in names] == [True, True]

    @pytest.mark.parametrize("name", LOCAL_COMMANDS)
    def test_commands_that_need_a_file_say_so(self, server: Server, name: str, tmp_path: Path) -> None:
        result = self.run(LOCAL_COMMANDS[name], f"{server.url}/x.nsys-rep?token={SECRET}", tmp_path / "out")
        assert f"{name} reads only files of this machine, not URLs\nHint: " in str(result.exception)
        assert server.requests == []

    def test_a_url_is_no_output(self, server: Server, tmp_path: Path) -> None:
        result = self.run(("convert", "{0}", "{0}"), f"{server.url}/x.json", tmp_path)
        assert result.exit_code == 2
        assert "the last argument is a URL, which cannot be written" in result.stderr
        result = self.run(("recipe", "{0}"), f"{server.url}/x.nsys-rep", tmp_path)
        assert "the name of the recipe is missing" in result.stderr

    def test_a_local_url_is_a_path(self, tmp_path: Path) -> None:
        path = RANKS / "mpi_rank0.nsys-rep"
        outputs = {self.run(COMMANDS["tables"], text, tmp_path).stdout for text in (path.as_uri(), str(path))}
        assert len(outputs) == 1
