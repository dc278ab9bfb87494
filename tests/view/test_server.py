"""The web server: who may ask, what a page may load, requests that are not valid, and how the program ends."""

from __future__ import annotations

import json
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
from typing import TYPE_CHECKING, Any

import flask
import polars as pl
import pytest
import tracekit as tk
from tests.conftest import ALL
from tests.view.support import (
    BASE,
    CALLS,
    FIXTURES,
    NAMES,
    call,
    captures_of,
    flask_client,
    hostile_tables,
    payload,
    running,
    table,
    texts,
)
from tracekit import cli, schemas
from tracekit.errors import TracekitError
from tracekit.view import PACKAGES, grid, open_viewer, server, windows
from tracekit.view.captures import ShownRows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.view.server import Viewer
    from werkzeug.test import TestResponse

pytestmark = pytest.mark.filterwarnings("ignore:.*the API calls of .* kernels cannot be found")

ROOT = Path(__file__).parents[2]
EMPTY = FIXTURES / "empty.sqlite"
GRID = {"table": "table:kernels", "at": "", "arguments": ""}
REQUEST = {"startRow": 0, "endRow": 5, "filterModel": {}, "sortModel": []}
NOT_LOOPBACK = "0.0.0.0"


@pytest.mark.slow
def test_working_data_is_freed_after_each_request() -> None:
    with running(FIXTURES / "train_amp.sqlite") as viewer:
        captures = viewer._captures
        stages = captures.all[0].trace._plan.source.stages
        captures.begin_request()
        assert "html" in get(viewer, "/").text
        page = call(viewer, "navigation.children", ["/nvtx", "", "light"])
        assert "NVTX ranges by name" in texts(page.json["response"]["page"]["children"])
        assert any("_correlation" in vars(tables) for tables in stages.values())
        captures.end_request()
        assert stages
        assert not any("_correlation" in vars(tables) for tables in stages.values())
        assert get(viewer, "/not/there", Host="example.com").status_code == 403
        assert captures._requests == 0


def get(viewer: Viewer, path: str, **headers: str) -> TestResponse:
    return flask_client(viewer).get(path, base_url=BASE, headers=headers)


def shown(answer: TestResponse) -> dict[str, Any]:
    """Return the properties that a callback changes, by component."""
    assert answer.status_code in (200, 204)
    return (answer.json or {}).get("response", {}) if answer.data else {}


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
    for path in ("/", "/_dash-layout", "/download?format=csv&table=kernels", "/perfetto/index.html", "/assets/view.js"):
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
    assert get(amp, "/trace.pftrace", **headers).status_code == 403
    body = payload(amp, "getRowsResponse", [REQUEST, "", "", "", {"part": "grid", **GRID}], GRID)
    assert flask_client(amp).post(CALLS, json=body, base_url=BASE, headers=headers).status_code == 403


def test_requests_of_the_page_itself_are_answered(amp: Viewer) -> None:
    assert get(amp, "/", **{"Sec-Fetch-Site": "same-origin", "Origin": BASE}).status_code == 200
    assert get(amp, "/", **{"Sec-Fetch-Site": "none"}).status_code == 200


@pytest.mark.slow
def test_headers_of_pages_and_of_perfetto(amp: Viewer) -> None:
    for path in ("/", "/kernels", "/_dash-dependencies", "/download", "/perfetto/index.html", "/trace.pftrace"):
        headers = get(amp, path).headers
        policy = headers["Content-Security-Policy"]
        directives = {d.split()[0]: d.split()[1:] for d in policy.split(";")}
        assert directives["default-src"] == ["'none'"]
        assert directives["frame-ancestors"] == ["'self'"]
        assert set(directives["connect-src"]) <= {"'self'", "data:", "blob:"}
        assert not [source for d in directives.values() for source in d if source == "*" or "//" in source]
        if not path.startswith("/perfetto"):
            assert "unsafe-eval" not in policy
            assert "'unsafe-inline'" not in directives["script-src"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert not [name for name, _ in headers if name.lower().startswith("access-control-")]
    page = get(amp, "/").text
    assert 'src="http' not in page
    assert 'href="http' not in page


def test_the_token_of_another_address() -> None:
    with running(EMPTY, host=NOT_LOOPBACK) as viewer:
        assert viewer.token
        assert len(viewer.token) >= 32
        assert viewer.url.endswith(f"/?token={viewer.token}")
        for path in (
            "/",
            "/_dash-layout",
            "/download?format=csv&table=kernels",
            "/perfetto/index.html",
            "/assets/view.js",
        ):
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
        "/perfetto/../__init__.py",
        "/perfetto/..%2f__init__.py",
        "/perfetto/%2e%2e/__init__.py",
        "/perfetto/..%5c__init__.py",
        "/perfetto/..%2f..%2f..%2f..%2f..%2f..%2fetc%2fpasswd",
        "/perfetto/index.html%00",
        "/perfetto/nope",
        "/assets/..%2fapp.py",
        "/assets/%2e%2e/app.py",
        "/static/../app.py",
        "/_dash-component-suites/os/path.js",
        "/_dash-component-suites/dash/../../x",
        "/_dash-component-suites/tracekit/view.py",
    ],
)
def test_no_path_leads_out_of_the_folders(amp: Viewer, path: str) -> None:
    answer = get(amp, path)
    assert answer.status_code == 404
    assert "import" not in answer.text


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "TRACE"])
def test_other_methods(amp: Viewer, method: str) -> None:
    for path in ("/", "/download", "/trace.pftrace", CALLS):
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
def test_a_window_ends_early_if_it_has_too_many_events(monkeypatch: pytest.MonkeyPatch) -> None:
    capture = FIXTURES / "train_amp.sqlite"
    low, high = tk.load(capture).span() or (0, 0)
    with running(capture) as viewer:
        whole = get(viewer, "/trace.pftrace").data
        assert get(viewer, f"/trace.pftrace?start={low}&end={high}").data == whole
    monkeypatch.setattr(windows, "MAX_EVENTS", 50)
    with running(capture) as viewer:
        part = get(viewer, "/trace.pftrace").data
        assert get(viewer, f"/trace.pftrace?start={low}&end={high}").data == part
        assert len(part) < len(whole) / 4
        trace = viewer._captures.all[0].trace
        assert low < windows.limit_end(trace, low, high) < high
        assert windows.limit_end(trace, low, low + 1) == low + 1


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
    for path, search, expected in (
        ("/timeline", f"?start={low - 5}&end={low - 1}", ["Timeline", problem, hint]),
        ("/nowhere", "", ["Error", "the requested page 'nowhere' does not exist", "choose a page in the navigation"]),
        ("/", "?capture=9", ["Error"]),
    ):
        answer = call(amp, "navigation.children", [path, search, "light"])
        assert texts(answer.json["response"]["page"]["children"])[: len(expected)] == expected


def malformed(viewer: Viewer) -> Iterator[Any]:
    """Return bodies of requests for callbacks that the page never sends."""
    yield from ([], {}, "x", 5, {"output": "x"}, {"output": 5}, {"output": None, "inputs": []})
    page = payload(viewer, "navigation.children", ["/", "", "light"])
    rows = payload(viewer, "getRowsResponse", [REQUEST, "", "", "", {"part": "grid", **GRID}], GRID)
    for body in (page, rows):
        for name in ("inputs", "outputs", "state"):
            for wrong in (None, 5, "x", [5], [[5]], [{}], [{"id": 5, "property": "x"}], {"a": 1}):
                if not (name == "state" and not body["state"] and wrong is None):
                    yield body | {name: wrong}
        yield body | {"inputs": body["inputs"] * 2}
        yield body | {"changedPropIds": 5}
        yield body | {"changedPropIds": [{}]}
        yield {k: v for k, v in body.items() if k != "inputs"}


def test_calls_that_are_not_valid(amp: Viewer) -> None:
    for body in malformed(amp):
        refused(flask_client(amp).post(CALLS, json=body, base_url=BASE))
    for text in (b"", b"{", b"\xff", b"[" * 100_000, b'{"a":' * 5000):
        refused(flask_client(amp).post(CALLS, data=text, content_type="application/json", base_url=BASE))
    refused(flask_client(amp).post(CALLS, data=b"{}", content_type="text/plain", base_url=BASE))


@pytest.mark.slow
def test_values_that_are_not_valid(amp: Viewer) -> None:
    """Values of a wrong type are answered with a message on the page."""
    for values in ([5, "", "light"], ["/", ["x"], "dark"], ["/nope", "", "light"], ["/", "?capture=9", "light"]):
        answer = call(amp, "navigation.children", values)
        assert answer.status_code == 200
        assert any(word in answer.text for word in ("not a string", "page 'nope' does not exist", "capture 9"))
    nested: Any = []
    for _ in range(400):
        nested = [nested]
    for request in (
        {},
        {"startRow": "0", "endRow": 5},
        {"startRow": 0, "endRow": 10**30},
        {"startRow": -(10**30), "endRow": 5},
        {"startRow": 0, "endRow": 5000},
        REQUEST | {"filterModel": [5]},
        REQUEST | {"filterModel": {"name": {"type": "nope"}}},
        REQUEST | {"filterModel": {"name": nested}},
        REQUEST | {"sortModel": {"a": 5}},
        REQUEST | {"sortModel": [{"colId": "nope", "sort": "asc"}]},
    ):
        answer = call(amp, "getRowsResponse", [request, "", "", "", {"part": "grid", **GRID}], GRID)
        assert answer.status_code == 200, request
        assert '"rowData":[]' in answer.text.replace(" ", ""), request
    for search, condition in ((["x"], ""), ("", 5), ("x" * 5000, ""), ("", "nope = 1"), ("", "x" * 5000)):
        answer = call(amp, "getRowsResponse", [REQUEST, search, condition, "", {"part": "grid", **GRID}], GRID)
        assert '"rowData":[]' in answer.text.replace(" ", "")
    groups = {"table": "groups", "at": "", "arguments": "depth=1"}
    for toggled in (["x"], 5, "1," * 3000):
        answer = call(amp, "getRowsResponse", [REQUEST, "", "", toggled, {"part": "grid", **groups}], groups)
        assert '"rowData":[]' in answer.text.replace(" ", "")
    for id_ in ({}, {"table": 5}, {"table": "kernels", "at": "capture=9"}, [], "x", {"table": "nope"}):
        answer = call(amp, "getRowsResponse", [REQUEST, "", "", "", id_], GRID)
        assert '"rowData":[]' in answer.text.replace(" ", ""), id_
    for selected in (None, 5, [], [5]):
        assert not shown(call(amp, "details", [selected, {"part": "grid", **GRID}, ""], GRID))
    for row in ({}, {"op_id": ["x"]}, {"op_id": None}):
        for id_ in ({"table": "ops"}, {"table": 5}, {"table": "nope"}, []):
            assert call(amp, "details", [[row], id_, ""], GRID | {"table": "ops"}).status_code == 200
    assert call(amp, "details", [[{}], {"table": "ops"}, "?capture=9"], GRID).status_code == 200


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*kernels cannot be found:tracekit.TracekitWarning")
def test_rows_and_details_as_the_page_asks_for_them(amp: Viewer) -> None:
    at = {"table": "table:nvtx_ranges", "at": "capture=2", "arguments": ""}
    answer = call(amp, "getRowsResponse", [REQUEST, "", "", "", {"part": "grid", **at}], at)
    (rows,) = [p["getRowsResponse"] for p in answer.json["response"].values() if "getRowsResponse" in p]
    assert [row["name"] for row in rows["rowData"]] == list(NAMES[:5])
    assert rows["rowCount"] == len(NAMES)
    ops = {"table": "ops", "at": "", "arguments": ""}
    answer = call(amp, "getRowsResponse", [REQUEST, "", "", "", {"part": "grid", **ops}], ops)
    (rows,) = [p["getRowsResponse"] for p in answer.json["response"].values() if "getRowsResponse" in p]
    below = call(amp, "details", [rows["rowData"][:1], {"part": "grid", **ops}, "?x=1"], ops)
    (details,) = below.json["response"].values()
    assert {"Kernels of the op", "Calls of the op"} <= set(texts(details["children"]))


@pytest.mark.slow
def test_pages_of_every_capture(amp: Viewer) -> None:
    from tracekit.view.pages import PAGES

    for capture in ("0", "1", "2"):
        for page in PAGES if ALL or capture == "0" else ("", "kernels", "iterations"):
            answer = call(amp, "navigation.children", [f"/{page}", f"?capture={capture}", "dark"])
            now = answer.json["response"]
            assert PAGES[page].title in texts(now["page"]["children"])[0], page
            assert PAGES[page].title in now["document-title"]["data"]
            links = texts(now["navigation"]["children"])
            assert {"Overview", "Kernels", "Compare", "Tables"} <= set(links)
    assert not shown(call(amp, "navigation.children", ["/", "", None]))


@pytest.mark.slow
def test_forms(amp: Viewer) -> None:
    def href(part: str, values: list[Any]) -> Any:
        return call(amp, part, values).json["response"].get("url", {}).get("href")

    aggregation = "aggregation-problem"
    assert not shown(call(amp, aggregation, [None, 1, 2, "", ""]))
    assert href(aggregation, [1, 1, 2, "", ""]) == "/iterations?iterations=1%3A2"
    assert href(aggregation, [1, 1, "", "", "?capture=1"]) == "/iterations?capture=1&iterations=1%3A"
    for values in (
        [1, 9, 99, "", ""],
        [1, 2, 1, "", ""],
        [1, -5, 2, "", ""],
        [1, 1, 2, "nope", ""],
        [1, 1, 2, "", "?capture=7"],
    ):
        answer = call(amp, aggregation, values)
        assert "url" not in answer.json["response"]
        assert answer.json["response"][aggregation]["children"]
    assert href(aggregation, [1, float("inf"), ["x"], "", ""]) == "/iterations"
    compare = [key for key in amp._dash.callback_map if amp._dash.callback_map[key]["inputs"][0]["id"] == "compare"]
    assert not shown(call(amp, compare[0], [None, "1", "", "", ""]))
    assert href(compare[0], [1, "1", "", "", "?by=ops"]) == "/compare?other_capture=1&by=ops"
    assert "other_iterations=0%3A2" in href(compare[0], [1, "0", 0, 2, ""])
    assert not shown(call(amp, compare[0], [1, "0", 0, 2, "?capture=7"]))


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
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "dash" else find(name))
    assert "dash" in PACKAGES
    with pytest.raises(TracekitError, match="the viewer needs packages that are not installed: dash") as error:
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
        rows = json.dumps(
            payload(viewer, "getRowsResponse", [REQUEST, "e", "", "", {"part": "grid", **GRID}], GRID)
        ).encode()
        low, high = tk.load(FIXTURES / "ddp2.sqlite").span() or (0, 0)
        failures: list[str] = []

        def client(number: int) -> None:
            try:
                for path in (
                    "/",
                    f"/download?format=csv&table=kernels&search={number}",
                    f"/trace.pftrace?start={low + number % 3}&end={high}",
                ):
                    with urllib.request.urlopen(base + path, timeout=60) as answer:
                        answer.read()
                asked = urllib.request.Request(base + CALLS, rows, {"Content-Type": "application/json"})
                with urllib.request.urlopen(asked, timeout=60) as answer:
                    assert json.load(answer)["response"]
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


def show(viewer: Viewer, path: str, query: str = "") -> list[str]:
    """Return the texts of a page."""
    answer = call(viewer, "navigation.children", [path, query, "light"])
    return texts(answer.json["response"]["page"]["children"])


@pytest.mark.parametrize("length", [server.MAX_BODY + 1, 2**40, 2**70])
def test_a_large_request_is_refused_before_it_is_read(amp: Viewer, length: int) -> None:
    """The client announces a body and sends only its first byte, so the server would wait for the rest."""
    body = b"{"
    head = f"POST {CALLS} HTTP/1.1\r\nHost: 127.0.0.1:{amp.port}\r\nContent-Type: application/json\r\n"
    with socket.create_connection((amp.host, amp.port), timeout=20) as connection:
        connection.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode() + body)
        assert connection.recv(100).split(b" ")[1] == b"413"


def test_a_large_body_of_unknown_length_is_refused(amp: Viewer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(amp._dash.server.config, "MAX_CONTENT_LENGTH", 1000)
    data = b'{"a": "' + b"x" * 2000 + b'"}'
    client = flask_client(amp)
    options: dict[str, Any] = {"base_url": BASE, "content_type": "application/json"}
    assert client.post(CALLS, data=data, **options).status_code == 413
    environment = {"wsgi.input_terminated": True, "CONTENT_LENGTH": ""}
    answer = client.post(CALLS, data=data, environ_overrides=environment, **options)
    assert answer.status_code in (400, 413)


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
def test_a_changed_file_is_noticed_on_every_page(change: str, tmp_path: Path) -> None:
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
def test_charts_are_drawn_after_the_page_is_shown() -> None:
    with running(FIXTURES / "train_amp.sqlite") as viewer:
        page = call(viewer, "navigation.children", ["/", "", "light"]).text
        assert "number-card" in page
        assert '"type":"Graph"' not in page
        tokens = dict.fromkeys(re.findall(r'"token":"(\d+)"', page))
        assert len(tokens) == 7
        drawn = [call(viewer, '"part":"deferred"', [{"part": "deferred", "token": t}], {"token": t}) for t in tokens]
        assert sum('"type":"Graph"' in each.text for each in drawn) == 6  # all advice is in the first panel
        assert '"type":"Graph"' in call(viewer, "navigation.children", ["/", "", "light"]).text
        for token in ("0", "9999", "x"):
            answer = call(viewer, '"part":"deferred"', [{"part": "deferred", "token": token}], {"token": token})
            assert "this chart was not drawn" in answer.text
        captures = viewer._captures
        with captures.report_activity("drawing x"):
            assert get(viewer, "/status").json["activities"] == ["drawing x"]
        assert get(viewer, "/status").json["activities"] == []


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
            answer = call(viewer, "navigation.children", [page, "", "light"]).json["response"]
            shown = [*texts(answer["page"]["children"]), *texts(answer["context"]["children"])]
            shown += [str(answer["document-title"]["data"])]
            assert not any(mark in each for mark in DIRECTIONS for each in shown), page
        header = json.dumps(call(viewer, "navigation.children", ["/", "", "light"]).json["response"]["context"])
        assert r"x\\u202ay" in header
    definition = grid._build_column_definition("name", ShownRows(pl.DataFrame({"name": [name]}), {"name": "Name"}, {}))
    assert definition["valueFormatter"] == definition["tooltipValueGetter"] == {"function": "tracekitText(params)"}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "has_chart"), [("ncu_basic.ncu-rep", False), ("ncu_roofline_raw.csv", True)])
def test_the_roofline_page_says_how_to_collect_what_the_chart_needs(name: str, has_chart: bool) -> None:
    with running(FIXTURES / "ncu" / name) as viewer:
        answer = call(viewer, "navigation.children", ["/roofline", "", "light"])
    shown = texts(answer.json["response"]["page"]["children"])
    assert any("profile with ncu --set roofline" in each for each in shown) != has_chart
    assert {"Roofline", "What limits each kernel", "Launches"} <= set(shown)


def test_files_of_perfetto_are_closed_before_they_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the browser disconnects, werkzeug does not close the answer."""
    opened: list[Any] = []

    def send(folder: str, name: str) -> flask.Response:
        answer = flask.send_from_directory(folder, name)
        opened.append(answer.response.file)  # type: ignore[union-attr]
        return answer

    monkeypatch.setattr(server, "send_from_directory", send)
    with flask.Flask("test").test_request_context("/"):
        answer = server._send_perfetto_file("index.html")
    assert [file.closed for file in opened] == [True]
    assert answer.get_data().lstrip().startswith(b"<!doctype html>")
    assert int(answer.headers["Content-Length"]) == len(answer.get_data())
