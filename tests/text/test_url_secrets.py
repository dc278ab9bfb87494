"""No output of tracekit contains the password or the signature of the URL that it was read from."""

from __future__ import annotations

import base64
import contextlib
import logging
import sys
import threading
import traceback
import urllib.parse
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import tracekit as tk
from tests.conftest import FIXTURES
from tests.sets.test_http import Server
from tests.test_nothing_leaks import contents
from tests.view.support import BASE, captures_of, flask_client
from tracekit import registry
from tracekit.cli import main
from tracekit.errors import MissingTableError, TracekitError, TracekitWarning
from tracekit.view.pages import PAGES
from tracekit.view.server import Viewer

PASSWORD, SIGNATURE = "pA55w0rd+of", "sIgN4tUr3/of"
CREDENTIALS = f"mallory7:{urllib.parse.quote(PASSWORD, safe='')}@"
QUERY = f"?X-Amz-Credential=AKIA%2F1&X-Amz-Signature={urllib.parse.quote(SIGNATURE, safe='')}#access_token={SIGNATURE}"
CAPTURES = {
    "report": "train_amp.nsys-rep",
    "export": "train_amp.sqlite",
    "pytorch": "kineto/train.pt.trace.json.gz",
    "stacks": "osrt_libs.nsys-rep",
    "ncu": "ncu/ncu_basic.ncu-rep",
}
STACK_FORMATS = ("collapsed", "pprof", "speedscope")


def spell(secret: str) -> set[bytes]:
    """Return a secret as text, percent-encoded, escaped, and in the encodings of databases and headers."""
    login = f"mallory7:{PASSWORD}"
    texts = {secret, urllib.parse.quote(secret), urllib.parse.quote(secret, safe=""), secret.replace("/", "\\/")}
    shifted = {base64.b64encode(b"x" * n + secret.encode())[4 * (n > 0) : -4] for n in range(3)}
    return {text.encode(code) for text in texts for code in ("utf-8", "utf-16-le", "utf-16-be")} | {
        base64.b64encode(login.encode()),
        *shifted,
    }


SECRETS = spell(PASSWORD) | spell(SIGNATURE) | {b"AKIA", b"X-Amz-", b"access_token", b"mallory7"}


def check(data: bytes, place: str) -> None:
    assert not [secret for secret in SECRETS if secret in data], place


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A web server that requires the password and the signature."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = Server()
    for name in CAPTURES.values():
        server.add_file(f"/runs/{Path(name).name}", (FIXTURES / name).read_bytes())
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def sign(server: Server, name: str) -> str:
    return f"{server.url.replace('//', f'//{CREDENTIALS}')}/runs/{Path(CAPTURES.get(name, name)).name}{QUERY}"


def test_the_search_finds_secrets() -> None:
    for secret in SECRETS:
        with pytest.raises(AssertionError):
            check(b"before" + secret + b"after", "")


@pytest.mark.slow
@pytest.mark.many(7)
@pytest.mark.filterwarnings("ignore::tracekit.errors.TracekitWarning")
@pytest.mark.parametrize("format_name", sorted(registry.exporters()))
@pytest.mark.parametrize("name", CAPTURES)
def test_exported_files(server: Server, format_name: str, name: str, tmp_path: Path) -> None:
    suffix = registry.exporter(format_name).suffixes[0]
    with tk.load(sign(server, name)) as trace, warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always", TracekitWarning)
        try:
            path = trace.export(tmp_path / f"out{suffix}", format=format_name)
        except TracekitError as e:
            check(f"{e} {e!r} {vars(e)}".encode(), format_name)
            if isinstance(e, MissingTableError) or "draw" in str(e):
                return
            raise
        check(f"{trace!r} {trace.path} {trace.info} {[str(w.message) for w in recorded]}".encode(), "attributes")
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    assert files
    for file in files:
        check(file.name.encode(), "file name")
        for data in list(contents(file)):
            check(data, file.name)
    assert "Basic" in str(server.requests[0][2])
    assert "X-Amz-Signature" in server.requests[0][1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::tracekit.errors.TracekitWarning")
def test_pages_and_tables_of_a_set(server: Server, tmp_path: Path) -> None:
    urls = [sign(server, "report"), sign(server, "export")]
    traces = tk.load_many(urls, ranks={"train_amp.nsys-rep": 0, "train_amp.sqlite": 1})
    for name in ("out.html", "out.json", "out.pftrace"):
        for data in list(contents(traces.export(tmp_path / name))):
            check(data, name)
    check(str([(m.name, m.path) for m in traces.captures]).encode(), "members")
    check(repr(traces).encode(), "set")


FAILURES = {
    "missing": ("gone.nsys-rep", b""),
    "empty": ("empty.nsys-rep", b""),
    "truncated": ("cut.nsys-rep", (FIXTURES / "train_amp.nsys-rep").read_bytes()[:5000]),
    "no capture": ("page.sqlite", b"<html>login</html>"),
    "damaged": ("damaged.sqlite", (FIXTURES / "train_amp.sqlite").read_bytes()[:20000]),
    "gzip": ("cut.pt.trace.json.gz", b"\x1f\x8b\x08" + bytes(50)),
}


@pytest.mark.parametrize("kind", FAILURES)
@pytest.mark.filterwarnings("ignore::tracekit.errors.TracekitWarning")
def test_messages_of_failures(
    kind: str, server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    name, content = FAILURES[kind]
    if content:
        server.add_file(f"/runs/{name}", content)
    with caplog.at_level(logging.DEBUG), pytest.raises(TracekitError) as raised:
        tk.load(sign(server, name)).export(tmp_path / "out", format="parquet")
    assert list(tmp_path.iterdir()) == []
    error: BaseException | None = raised.value
    assert name in str(error)
    while error is not None:
        check(f"{error} {error!r} {vars(error)}".encode(), kind)
        error = error.__cause__
    check("".join(traceback.format_exception(raised.value, limit=0)).encode(), "traceback")
    check("".join([*capfd.readouterr(), caplog.text]).encode(), "output")


def test_warnings_of_damage(server: Server) -> None:
    server.add_file("/runs/long.nsys-rep", (FIXTURES / "train_amp.nsys-rep").read_bytes() + b"\n")
    with (
        pytest.warns(TracekitWarning, match=r"long\.nsys-rep") as recorded,
        tk.load(sign(server, "long.nsys-rep")) as trace,
    ):
        trace.table("kernels")
    for warning in recorded:
        check(f"{warning.message} {warning.message!r} {vars(warning.message)}".encode(), "warning")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::tracekit.errors.TracekitWarning")
@pytest.mark.parametrize("name", ["report", "ncu"])
def test_responses_of_the_viewer(name: str, server: Server) -> None:
    """The pages of a trace that was loaded from a URL: the command takes only files."""
    with tk.load(sign(server, name)) as trace, contextlib.closing(Viewer(captures_of(trace), "127.0.0.1", 0)) as viewer:
        client = flask_client(viewer)
        responses = {page: client.get(f"/{page}?scripts=no", base_url=BASE) for page in PAGES}
        for place, response in responses.items():
            assert response.status_code == 200, place
            check(response.data + str(response.headers).encode(), place)


@pytest.mark.slow
def test_commands_show_no_secrets_of_urls(
    server: Server, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for arguments in ([], ["info", "--json"], ["stats", "-r", "advise"], ["why"], ["view", "--no-browser"]):
        monkeypatch.setattr(sys, "argv", ["tracekit", *arguments[:1], sign(server, "report"), *arguments[1:]])
        with warnings.catch_warnings(), pytest.raises(SystemExit) as ended:
            main()
        shown = "".join(capfd.readouterr())
        assert bool(ended.value.code) == (arguments[:1] == ["view"])
        assert "train_amp.nsys-rep" in shown or arguments in (["stats", "-r", "advise"], ["why"])
        check(shown.encode(), str(arguments))
    assert server.requests
