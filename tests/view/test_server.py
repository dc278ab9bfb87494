"""The web server: who may ask, what a page may load, requests that are not valid, and how the program ends."""

from __future__ import annotations

import gzip
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tracekit as tk
from tests.conftest import ALL
from tests.view.support import (
    BASE,
    FIXTURES,
    captures_of,
    flask_client,
    get,
    hostile_tables,
    running,
    show,
    table,
    texts,
)
from tracekit import cli, schemas
from tracekit.errors import TracekitError
from tracekit.view import PACKAGES, layout, open_viewer, opening, server
from tracekit.view.pages import GROUPS, PAGES

if TYPE_CHECKING:
    from tracekit.view.server import Viewer
    from werkzeug.test import TestResponse

pytestmark = pytest.mark.filterwarnings("ignore:.*the API calls of .* kernels cannot be found")

ROOT = Path(__file__).parents[2]
EMPTY = FIXTURES / "empty.sqlite"
NOT_LOOPBACK = "0.0.0.0"


@pytest.mark.slow
def test_working_data_is_freed_after_each_request() -> None:
    with running(FIXTURES / "train_amp.sqlite") as viewer:
        captures = viewer._captures
        stages = captures.all[0].trace._plan.source.stages
        captures.wait_for_requests(60)  # the answer is computed in the background
        captures.begin_request()
        assert "NVTX ranges by name" in show(viewer, "/nvtx")
        assert any("_correlation" in vars(tables) for tables in stages.values())
        captures.end_request()
        captures.wait_for_requests(60)
        assert stages
        assert not any("_correlation" in vars(tables) for tables in stages.values())
        assert get(viewer, "/not/there", Host="example.com").status_code == 403
        assert captures._requests == 0


def refused(answer: TestResponse) -> None:
    """A request that is not valid is refused with a short text and without a traceback."""
    assert 400 <= answer.status_code < 500, (answer.status_code, answer.text[:300])
    assert "Traceback" not in answer.text
    assert "File " not in answer.text


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200),
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("[::1]:8000", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example:8000", 403),
        ("evil.example@127.0.0.1", 403),
        ("[::1", 403),
        ("a b", 403),
        ("", 403),
    ],
)
def test_only_requests_for_this_machine_are_answered(amp: Viewer, host: str, status: int) -> None:
    """A name that an attacker lets point to 127.0.0.1 is not one of this server."""
    for path in ("/", "/fragment/navigation", "/download?format=csv&table=kernels", "/status", "/assets/view.js"):
        answer = flask_client(amp).get(path, headers={"Host": host})
        assert answer.status_code == status, path
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:8001"},
        {"Origin": "http://127.0.0.1:8000@evil.example"},
        {"Origin": "http://["},
        {"Origin": ""},
    ],
)
def test_other_sites_are_refused(amp: Viewer, headers: dict[str, str]) -> None:
    for path in ("/", "/trace.pftrace", "/fragment/table/kernels", "/download?format=csv&table=kernels"):
        assert get(amp, path, **headers).status_code == 403


def test_requests_of_the_page_itself_are_answered(amp: Viewer) -> None:
    assert get(amp, "/", **{"Sec-Fetch-Site": "same-origin", "Origin": BASE}).status_code == 200
    assert get(amp, "/", **{"Sec-Fetch-Site": "none"}).status_code == 200


@pytest.mark.slow
def test_headers_of_all_answers(amp: Viewer) -> None:
    """Pages load scripts, styles and data from this server only, and contain none themselves."""
    for path in ("/", "/kernels", "/nope", "/assets/view.js", "/download", "/trace.pftrace", "/status", "/?capture=9"):
        headers = get(amp, path).headers
        policy = headers["Content-Security-Policy"]
        directives = {d.split()[0]: d.split()[1:] for d in policy.split(";")}
        assert directives["default-src"] == directives["base-uri"] == directives["frame-ancestors"] == ["'none'"]
        assert directives["script-src"] == directives["style-src"] == directives["connect-src"] == ["'self'"]
        assert directives["form-action"] == ["'self'"]
        assert "unsafe" not in policy
        assert not [source for d in directives.values() for source in d if source == "*" or "//" in source]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert not [name for name, _ in headers if name.lower().startswith("access-control-")]
    for name in ("", "ops", "groups", "iterations", "pace", "compare", "tables"):
        page = get(amp, f"/{name}?scripts=no").text
        assert not re.search(r'\s(style|on\w+)="|(src|href|action)="(http|//|javascript)|<(style|iframe|object)', page)
        assert not re.search(r"<script[^>]*>[^<]", page)


def test_files_of_pages_are_cached_by_their_content(amp: Viewer) -> None:
    page = get(amp, "/").text
    urls = re.findall(r'(?:src|href)="(/assets/[^"]*)"', page)
    assert len(urls) >= 4
    for url in urls:
        answer = get(amp, url)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["Cache-Control"]
        assert get(amp, url.partition("?")[0]).headers["Cache-Control"] == "no-cache"
        assert get(amp, f"{url}0").headers["Cache-Control"] == "no-cache"
    assert "immutable" not in get(amp, "/").headers["Cache-Control"]


def test_texts_are_compressed(amp: Viewer) -> None:
    for path in ("/", "/assets/view.js", "/download?format=csv&table=nvtx_ranges"):
        plain, packed = get(amp, path), get(amp, path, **{"Accept-Encoding": "gzip, br"})
        assert "Content-Encoding" not in plain.headers
        assert packed.headers["Content-Encoding"] == "gzip"
        assert int(packed.headers["Content-Length"]) == len(packed.data) < len(plain.data) / 2
        assert "Accept-Encoding" in packed.headers["Vary"]
        if path != "/":  # other tokens of parts that are computed later
            assert gzip.decompress(packed.data) == plain.data
        assert "Content-Encoding" not in get(amp, path, **{"Accept-Encoding": "gzip;q=0"}).headers
    assert "Content-Encoding" not in get(amp, "/trace.pftrace", **{"Accept-Encoding": "gzip"}).headers


def test_the_token_of_another_address() -> None:
    with running(EMPTY, host=NOT_LOOPBACK) as viewer:
        assert viewer.token
        assert len(viewer.token) >= 32
        assert viewer.url.endswith(f"/?token={viewer.token}")
        for path in ("/", "/fragment/navigation", "/download?format=csv&table=kernels", "/assets/view.js"):
            for cookie in (None, "wrong", "", "ü", viewer.token[:-1]):
                client = flask_client(viewer)
                if cookie is not None:
                    client.set_cookie(server.COOKIE, cookie)
                assert client.get(path).status_code == 403, (path, cookie)
        for wrong in ("wrong", "", viewer.token[:-1], "%C3%BC", viewer.token + "x"):
            assert flask_client(viewer).get(f"/?token={wrong}").status_code == 403
        client = flask_client(viewer)
        first = client.get(
            "/",
            query_string=f"token={viewer.token}&ops.search=a%26b%0A",
            environ_overrides={"PATH_INFO": "//evil.example/ops"},
        )
        assert first.status_code == 302
        assert first.headers["Location"] == "/evil.example/ops?ops.search=a%26b%0A"
        cookie = first.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert client.get(f"/?token={viewer.token}").headers["Location"] == "/"
        assert client.get("/").status_code == 200
        assert client.get("/", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../__init__.py",
        "/assets/..%2f__init__.py",
        "/assets/%2e%2e/__init__.py",
        "/assets/..%5c__init__.py",
        "/assets/..%2f..%2f..%2f..%2f..%2f..%2fetc%2fpasswd",
        "/assets/view.js%00",
        "/assets/nope",
        "/static/../server.py",
        "/tracekit/view/server.py",
    ],
)
def test_no_path_leads_out_of_the_folders(amp: Viewer, path: str) -> None:
    answer = get(amp, path)
    assert answer.status_code == 404
    assert "import" not in answer.text
    assert "root:" not in answer.text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "TRACE", "OPTIONS"])
def test_other_methods(amp: Viewer, method: str) -> None:
    for path in ("/", "/download", "/trace.pftrace", "/nope", "/fragment/navigation"):
        assert flask_client(amp).open(path, method=method, base_url=BASE).status_code == 405


@pytest.mark.slow
@pytest.mark.parametrize(
    "query",
    [
        "",
        "format=csv",
        "format=csv&table=nope",
        "format=html&table=kernels",
        "format=csv&table=table:nope",
        "format=csv&table=kernels&at=capture%3D9",
        "format=csv&table=ops&at=iterations%3D5:2",
        "format=csv&table=ops&at=iterations%3D77:99",
        "format=csv&table=ops&at=key_op%3Dnope",
        "format=csv&table=kernels&filter=[]",
        "format=csv&table=kernels&filter=%7B%22launches%22:5%7D",
        "format=csv&table=kernels&filter=" + "[" * 20_000,
        "format=csv&table=kernels&sort=nope:asc",
        "format=csv&table=kernels&sort=launches:up",
        "format=csv&table=kernels&condition=read_csv('x')",
        "format=csv&table=kernels&search=" + "x" * 40_000,
        "format=csv&table=iteration_kernels&arguments=iteration%3Dx",
        "format=csv&table=ncu_rules&arguments=launch_id%3D-",
        "format=csv&table=comparison",
        "format=csv&table=comparison&arguments=by%3Dkernels%26other_capture%3D9",
    ],
)
def test_downloads_that_are_not_valid(amp: Viewer, query: str) -> None:
    refused(get(amp, f"/download?{query}"))


@pytest.mark.parametrize(
    "query",
    [
        *("start=x", "start=%C2%B2", "end=%C2%B2", "start=5&end=2", "start=9999999999999999999", "start=" + "9" * 50),
        *("start=-9999999999999999999", "capture=7", "capture=%C2%B2", "start=1.5", "iterations=x"),
    ],
)
def test_windows_that_are_not_valid(amp: Viewer, query: str) -> None:
    refused(get(amp, f"/trace.pftrace?{query}"))


@pytest.mark.slow
def test_a_window_is_a_perfetto_trace_and_old_ones_are_removed() -> None:
    with running(FIXTURES / "train_amp.sqlite") as viewer:
        low, high = tk.load(FIXTURES / "train_amp.sqlite").span() or (0, 0)
        folder = viewer._traces._folder
        for start in range(low, low + 6):
            answer = get(viewer, f"/trace.pftrace?start={start}&end={high}")
            assert answer.mimetype == "application/octet-stream"
            trace = schemas.load_message_class("perfetto", "Trace")
            batches = [packet.compressed_packets for packet in trace.FromString(answer.data).packet]
            packets = [packet for b in batches if b for packet in trace.FromString(zlib.decompress(b)).packet]
            assert any(packet.track_event.debug_annotations for packet in packets)
        assert len(list(folder.glob("*.pftrace"))) == server.MAX_TRACES
        same = get(viewer, f"/trace.pftrace?start={start}&end={high}")
        assert same.data == answer.data
        assert len(list(folder.glob("*.pftrace"))) == server.MAX_TRACES
    assert not folder.exists()


@pytest.mark.slow
def test_windows_of_other_iterations_are_converted_anew() -> None:
    with running(FIXTURES / "train_amp.sqlite") as viewer:
        get(viewer, "/trace.pftrace?iterations=0:1")
        get(viewer, "/trace.pftrace?iterations=1:1")
        get(viewer, "/trace.pftrace?iterations=1:1")
        assert len(list(viewer._traces._folder.glob("*.pftrace"))) == 2


def test_errors_are_plain_text(amp: Viewer) -> None:
    """They quote values of the URL, which must not become markup."""
    for path in ("/trace.pftrace?start=<b>x</b>", "/download?format=<b>x</b>&table=kernels"):
        answer = get(amp, path)
        assert answer.status_code == 400
        assert answer.mimetype == "text/plain"
        assert "<b>x</b>" in answer.text


@pytest.mark.slow
def test_pages_with_an_error_have_a_heading(amp: Viewer) -> None:
    """The timeline also says which times it shows. Rows of other tables may be outside them."""
    low, high = amp._captures.all[0].trace.span() or (0, 0)
    problem = f"the timeline has no events between {low - 5:,} and {low - 1:,} ns"
    hint = f"its events are between {low:,} and {high:,} ns"
    for path, search, status, expected in (
        ("/timeline", f"?start={low - 5}&end={low - 1}", 200, ["Timeline", problem, hint]),
        (
            "/nowhere",
            "",
            404,
            ["Error", "the requested page 'nowhere' does not exist", "choose a page in"],
        ),
        ("/a/b", "", 404, ["Error", "the requested page 'a/b' does not exist"]),
        ("/", "?capture=9", 400, ["Error", "the URL selects capture 9, but the number of captures is 3"]),
        ("/ops", "?devices=x", 400, ["Error"]),
        ("/ops", "?devices=7", 200, ["Ops and kernels"]),
        (
            "/ops",
            "?ranks=0",
            200,
            ["Ops and kernels", "the URL selects ranks, but the open captures are not"],
        ),
        ("/ops", "?" + "x" * 70_000, 400, ["Error"]),
    ):
        answer = get(amp, f"{path}{search}")
        assert answer.status_code == status
        for text, wanted in zip(texts(answer.text, "main"), expected, strict=False):
            assert text.startswith(wanted)


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("/iterations?first_iteration=1&last_iteration=2&key_op=", "/iterations?iterations=1%3A2"),
        ("/iterations?capture=1&first_iteration=1&last_iteration=", "/iterations?capture=1&iterations=1%3A"),
        ("/compare?by=ops&other_capture=0&other_first_iteration=0&other_last_iteration=2",
         "/compare?by=ops&other_capture=0&other_iterations=0%3A2"),
        ("/ops?devices=1&devices=0&ops.search=", "/ops?devices=0%2C1"),
        ("/ops?ops.search=a%26b&capture=0", "/ops?ops.search=a%26b"),
        ("/kernels?token=x", "/kernels"),
    ],
)  # fmt: skip
def test_forms_lead_to_the_url_that_links_have(amp: Viewer, url: str, target: str) -> None:
    answer = get(amp, url)
    assert (answer.status_code, answer.headers["Location"]) == (302, target)
    assert get(amp, target).status_code == 200


@pytest.mark.slow
def test_forms_with_values_that_are_not_valid(amp: Viewer) -> None:
    """The page shows the problem."""
    for query in ("first_iteration=9&last_iteration=99", "first_iteration=2&last_iteration=1", "key_op=nope"):
        answer = flask_client(amp).get(f"/iterations?{query}", base_url=BASE, follow_redirects=True)
        assert texts(answer.text, "main")[0] == "Iterations"
        assert 'class="panel message"' in answer.text
    for query in ("first_iteration=-5", "first_iteration=x", "last_iteration=1.5"):
        refused(get(amp, f"/iterations?{query}"))


@pytest.mark.slow
def test_pages_of_every_capture(amp: Viewer) -> None:
    for capture in ("0", "1", "2"):
        for page in PAGES if ALL or capture == "0" else ("", "kernels", "iterations"):
            answer = flask_client(amp).get(f"/{page}?capture={capture}", base_url=BASE, follow_redirects=True)
            assert answer.status_code == 200
            assert texts(answer.text, "h1") == [PAGES[page].title]
            assert PAGES[page].title in texts(answer.text, "title")[0]
            links = texts(answer.text, "nav")
            assert {each.title for each in PAGES.values()} <= set(links)
            assert [text for text in links if text in GROUPS] == [*GROUPS]


def test_pages_without_data_are_dimmed_and_say_why(amp: Viewer) -> None:
    navigation = get(amp, "/fragment/navigation?page=ops").text
    absent = re.findall(
        r'class="nav-link absent" title="No data: ([^"]*)"[^>]*>([^<]*)<span class="hidden">(.*?)<', navigation
    )
    titles = {title: (shown, hidden) for shown, title, hidden in absent}
    assert {"Roofline", "Call stacks", "Ranks", "Scalars"} <= set(titles)
    assert not {"Overview", "Kernels", "Ops and kernels"} & set(titles)
    for shown, hidden in titles.values():
        assert hidden == f": no data, {shown}"
    assert re.search(r'<a href="/ops"[^>]*aria-current="page"', navigation)
    assert navigation.count("aria-current") == 1
    assert "/fragment/navigation" not in get(amp, "/ops").text  # it is known now


@pytest.mark.slow
def test_names_of_files_are_safe() -> None:
    captures = captures_of(tk.Trace.from_tables(hostile_tables()))
    captures.all[0].name = 'a"b\r\nSet-Cookie: x=1;é.parquet'
    viewer = server.Viewer(captures, "127.0.0.1", 0)
    try:
        for name in ("csv", "json", "xlsx", "parquet", "tsv"):
            answer = get(viewer, f"/download?format={name}&table=table:kernels")
            assert answer.status_code == 200
            assert "Set-Cookie" not in answer.headers
            assert ("Content-Disposition" in answer.headers) == (name != "tsv")
            assert answer.mimetype != "text/html"
    finally:
        viewer.close()


def test_the_next_free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr("tracekit.view.DEFAULT_PORT", port)
        viewer = open_viewer([EMPTY])
        assert port < viewer.port < port + 100
        viewer.close()
        with pytest.raises(TracekitError, match=f"cannot listen on port {port}") as error:
            open_viewer([EMPTY], port=port)
        assert "--port" in str(error.value.hint)
        monkeypatch.setattr("tracekit.view.TRIED_PORTS", 1)
        with pytest.raises(TracekitError, match="no port from"):
            open_viewer([EMPTY])


def test_addresses() -> None:
    for host in ("127.0.0.1", "localhost", "::1", "[::1]", "127.9.9.9"):
        assert server.is_loopback(host)
    for host in (NOT_LOOPBACK, "::", "example.org", "10.0.0.1"):
        assert not server.is_loopback(host)
    with pytest.raises(TracekitError, match="cannot listen"):
        open_viewer([EMPTY], host="203.0.113.1", port=0)


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "flask" else find(name))
    assert "flask" in PACKAGES
    with pytest.raises(TracekitError, match="the viewer needs packages that are not installed: flask") as error:
        open_viewer([EMPTY])
    assert "tracekit[view]" in str(error.value.hint)


def test_files_are_opened_before_the_server_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wrong.txt").write_text("nothing\n")
    for name in ("missing.sqlite", "wrong.txt"):
        monkeypatch.setattr(sys, "argv", ["tracekit", "view", str(tmp_path / name), "--no-browser"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code in (1, 2)
        printed = capsys.readouterr()
        assert "http://" not in printed.out
        assert name in printed.err
        assert "Traceback" not in printed.err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*unclosed file|.*_io.FileIO:pytest.PytestUnraisableExceptionWarning")
def test_twenty_clients_at_once_and_one_that_leaves(hostile_path: Path) -> None:
    """Each client asks for pages, rows, downloads and the timeline over its own connection."""
    with running(FIXTURES / "ddp2.sqlite", hostile_path) as viewer:
        base = f"http://127.0.0.1:{viewer.port}"
        low, high = tk.load(FIXTURES / "ddp2.sqlite").span() or (0, 0)
        failures: list[str] = []

        def client(number: int) -> None:
            try:
                for path in (
                    "/",
                    f"/fragment/table/table:kernels?page=tables&table:kernels.search={number}",
                    f"/download?format=csv&table=kernels&search={number}",
                    f"/trace.pftrace?start={low + number % 3}&end={high}",
                ):
                    with urllib.request.urlopen(base + path, timeout=60) as answer:
                        answer.read()
            except Exception as error:  # noqa: BLE001
                failures.append(repr(error))

        def leave() -> None:
            for path in ("/download?format=json&table=table:kernels", "/trace.pftrace", "/"):
                with socket.create_connection(("127.0.0.1", viewer.port)) as connection:
                    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
                    connection.recv(100)
            with socket.create_connection(("127.0.0.1", viewer.port)) as connection:
                connection.sendall(b"GET / HTT")

        threads = [threading.Thread(target=client, args=(n,)) for n in range(20)] + [threading.Thread(target=leave)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert failures == []
        assert get(viewer, "/").status_code == 200


@pytest.mark.slow
@pytest.mark.many(1)
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_the_program(number: int, status: int, tmp_path: Path) -> None:
    """The real program ends at once, prints no traceback and removes its folder, also with a converted timeline."""
    unwatched = {k: v for k, v in os.environ.items() if not k.startswith("COVERAGE")} | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "tracekit", "view", str(FIXTURES / "ddp2.sqlite"), "--port", "0"]
    with subprocess.Popen(
        command, cwd=ROOT, env=unwatched, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    ) as program:  # fmt: skip
        assert program.stdout is not None
        assert program.stderr is not None
        url = program.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        if number == signal.SIGINT:
            with urllib.request.urlopen(f"{url}trace.pftrace", timeout=60) as answer:
                assert answer.read(1) == b"\n"  # the first field of a Perfetto trace
        (folder,) = tmp_path.iterdir()
        assert len(list(folder.glob("*.pftrace"))) == (number == signal.SIGINT)
        before = time.monotonic()
        program.send_signal(number)
        _, errors = program.communicate(timeout=60)
        assert program.returncode == status
        assert time.monotonic() - before < 20
        assert errors.removeprefix("Press Ctrl-C to stop the viewer.\n") == "tracekit: interrupted\n"
        assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_the_folder_of_a_killed_viewer_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next viewer removes it, but no viewer removes the folder of a running one."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "tracekit", "view", str(FIXTURES / "empty.sqlite"), "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline().startswith(b"http://127.0.0.1:")
        (folder,) = tmp_path.iterdir()
        with running(FIXTURES / "empty.sqlite"):
            assert len(list(tmp_path.iterdir())) == 2
        assert list(tmp_path.iterdir()) == [folder]
        program.kill()
        program.wait(60)
    assert list(tmp_path.iterdir()) == [folder]
    with running(FIXTURES / "empty.sqlite"):
        assert folder not in list(tmp_path.iterdir())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("length", ["1", "9" * 7, "9" * 22])
def test_a_request_with_a_body_is_refused_before_it_is_read(amp: Viewer, length: str) -> None:
    """The client announces a body and sends only its first byte, so the server would wait for the rest."""
    for method in ("POST", "GET"):
        head = f"{method} /status HTTP/1.1\r\nHost: 127.0.0.1:{amp.port}\r\nContent-Type: application/json\r\n"
        with socket.create_connection((amp.host, amp.port), timeout=20) as connection:
            connection.sendall(f"{head}Content-Length: {length}\r\n\r\n{{".encode())
            assert connection.recv(100).split(b" ")[1] == b"413"


def test_a_body_of_unknown_length_is_refused(amp: Viewer) -> None:
    head = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{amp.port}\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection((amp.host, amp.port), timeout=20) as connection:
        connection.sendall(head.encode())
        assert connection.recv(100).split(b" ")[1] == b"413"


def test_a_failure_is_printed_in_the_terminal_only(
    amp: Viewer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("private value")

    monkeypatch.setattr(layout, "build_navigation", fail)
    for path in ("/", "/fragment/navigation"):
        answer = get(amp, path)
        assert answer.status_code == 500
        assert "the viewer could not answer the request" in answer.text
        assert "private value" not in answer.text
        assert "RuntimeError: private value" in capsys.readouterr().err


@pytest.mark.slow
def test_iterations_that_do_not_exist_are_refused(amp: Viewer) -> None:
    """All pages refuse the first ones. ``make test`` opens one page with each of the others."""
    paths = ("/", "/ops", "/iterations", "/kernels")
    for number, bounds in enumerate(("3:99", "0:4", ":7", "2:4")):
        first = bounds.partition(":")[0] or "0"
        last = bounds.partition(":")[2]
        message = f"iterations {first} to {last} were requested, but the capture has only iterations 0 to 3"
        for path in paths if ALL or number == 0 else paths[number : number + 1]:
            assert message in show(amp, path, f"?iterations={bounds}")
        assert message in show(amp, "/compare", f"?other_capture=0&other_iterations={bounds}")
        url = f"/download?table=ops&at={urllib.parse.quote(f'iterations={bounds}')}&format=csv"
        assert message in get(amp, url).text
    assert "Iterations" in show(amp, "/iterations", "?iterations=3:3")


@pytest.mark.slow
@pytest.mark.parametrize("change", ["replaced", "appended", "removed"])
def test_a_changed_file_is_noticed_on_every_page(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "INTERVAL_S", 600)  # the file is not read again
    path = tmp_path / "train.sqlite"
    path.write_bytes(EMPTY.read_bytes())
    with running(path, FIXTURES / "cpu_only.sqlite") as viewer:
        text = "the file was changed, replaced or removed after it was opened. Pages may show old data."
        assert not any(text in each for each in show(viewer, "/"))
        assert get(viewer, "/status").json["changed"] == []
        if change == "replaced":
            (tmp_path / "new").write_bytes(EMPTY.read_bytes())
            (tmp_path / "new").replace(path)
        elif change == "appended":
            with path.open("ab") as file:
                file.write(b"x")
        else:
            path.unlink()
        for page in ("/", "/tables", "/compare", "/nvtx", "/nope"):
            for query in ("", "?capture=1"):
                assert f"train.sqlite: {text}" in show(viewer, page, query), page
        assert get(viewer, "/status").json["changed"] == ["train.sqlite"]


@pytest.mark.slow
def test_panels_are_computed_after_the_page_is_shown() -> None:
    with running(FIXTURES / "train_amp.sqlite") as viewer:
        page = get(viewer, "/").text
        assert "number-card" not in page
        assert "<svg" not in page
        urls = re.findall(r'data-fragment="(/fragment/later/\d+)"', page)
        assert len(urls) == len(set(urls)) == 11
        assert page.count("<noscript>") == 11
        panels = [get(viewer, url) for url in urls]
        assert {panel.status_code for panel in panels} == {200}
        assert 'class="sentence"' in panels[0].text
        assert "number-card" in panels[1].text
        assert sum("<svg" in panel.text for panel in panels) == 6  # all advice is in the first panel
        again = get(viewer, "/").text
        assert "/fragment/later/" not in again
        assert "<svg" in again
        for token in ("0", "9999", "x"):
            answer = get(viewer, f"/fragment/later/{token}")
            assert "this panel was not computed" in answer.text
        captures = viewer._captures
        with captures.report_activity("drawing x"):
            assert get(viewer, "/status").json["activities"] == ["drawing x"]
        assert get(viewer, "/status").json["activities"] == []


@pytest.mark.slow
def test_without_scripts_a_link_shows_all_panels() -> None:
    with running(FIXTURES / "train_amp.sqlite") as viewer:
        link = re.search(r'<noscript><p><a href="([^"]*)">', get(viewer, "/?iterations=1%3A2").text)
        assert link is not None
        page = get(viewer, link[1].replace("&amp;", "&")).text
        assert "<svg" in page
        assert "data-fragment" not in page
        assert 'class="nav-link absent"' in page


@pytest.mark.slow
def test_ten_tabs_get_their_panels() -> None:
    """Tabs that a user opens at once do not take the panels from one another."""
    with running(FIXTURES / "train_amp.sqlite") as viewer:
        pages = [get(viewer, f"/?iterations={n % 4}%3A{n % 4}").text for n in range(10)]
        for page in pages:
            for url in re.findall(r'data-fragment="(/fragment/later/\d+)"', page):
                assert "this panel was not computed" not in get(viewer, url).text


@pytest.mark.slow
def test_the_status_needs_the_token_and_frees_no_data() -> None:
    with running(EMPTY, token=True) as viewer:
        assert flask_client(viewer).get("/status", base_url=BASE).status_code == 403
    with running(EMPTY) as one, running(EMPTY) as two:
        assert get(one, "/status").json["server"] != get(two, "/status").json["server"]


DIRECTIONS = [chr(c) for c in (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*kernels cannot be found:tracekit.TracekitWarning")
def test_marks_of_direction_are_escaped(tmp_path: Path) -> None:
    """Names of files, ranges and ops could otherwise show a text in another order than it has."""
    name = "a".join(["", *DIRECTIONS, ""])
    ranges = [{"range_id": 1, "start_ns": 0, "end_ns": 900, "name": name, "thread_id": 1, "process_id": 1}]
    times = {"start_ns": 5, "end_ns": 9, "process_id": 1, "correlation_id": 3, "name": name}
    tables = {
        "kernels": table("kernels", [{"kernel_id": 1, "short_name": name, **times}]),
        "api_calls": table("api_calls", [{"api_call_id": 1, "thread_id": 1, **times}]),
        "nvtx_ranges": table("nvtx_ranges", ranges),
    }
    trace = tk.Trace.from_tables(tables)
    path = tmp_path / f"x{DIRECTIONS[3]}y"
    trace.export(path, format="parquet")
    with running(path, FIXTURES / "empty.sqlite") as viewer:
        for page in ("/", "/nvtx", "/kernels", "/compare", "/timeline", "/nope", "/tables"):
            answer = get(viewer, f"{page}?scripts=no").text
            assert not any(mark in answer for mark in DIRECTIONS), page
        assert r"x\u202ay" in " ".join(texts(get(viewer, "/").text, "header"))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "has_chart"), [("ncu_basic.ncu-rep", False), ("ncu_roofline_raw.csv", True)])
def test_the_roofline_page_says_how_to_collect_what_the_chart_needs(name: str, has_chart: bool) -> None:
    with running(FIXTURES / "ncu" / name) as viewer:
        shown = show(viewer, "/roofline")
    assert any("profile with ncu --set roofline" in each for each in shown) != has_chart
    assert {"Roofline", "What limits each kernel", "Launches"} <= set(shown)
