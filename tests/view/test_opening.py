"""Captures that are opened after the server has started: late, new, growing, replaced and broken ones."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.builders.torch_ranks import write_ranks
from tests.conftest import FIXTURES
from tests.view.support import get, running
from tracekit.core.diagnosis import Options
from tracekit.errors import TracekitError
from tracekit.plan.view import TraceView
from tracekit.view import captures as view_captures
from tracekit.view import layout, open_viewer, opening, ranks
from tracekit.view.captures import MAX_SLOW_RESULTS, Cache, ViewedCaptures
from tracekit.view.opening import CaptureOpener, open_captures, open_first_capture
from tracekit.view.state import CaptureAggregation


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def look_twice(opener: CaptureOpener) -> None:
    """A file is opened when it did not change between two looks."""
    opener.look_for_changes()
    opener.look_for_changes()


def names(captures: ViewedCaptures) -> list[str]:
    return [capture.name for capture in captures.all]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_ranks(tmp_path, 3)
    return tmp_path


def test_only_the_first_capture_is_open_at_the_start(folder: Path) -> None:
    captures, opener = open_first_capture([folder])
    assert names(captures) == ["rank0.pt.trace.json"]
    assert captures.waiting == ["rank1.pt.trace.json", "rank2.pt.trace.json"]
    assert captures.describe() == {"opened": 1, "waiting": 2, "version": 1, "changed": []}
    assert ranks.get_rank_set(captures) is None
    opener.open_others()
    assert [(c.index, c.name) for c in captures.all] == [(n, f"rank{n}.pt.trace.json") for n in range(3)]
    assert captures.describe() == {"opened": 3, "waiting": 0, "version": 3, "changed": []}
    job = ranks.get_rank_set(captures)
    assert job is not None
    assert job.ranks == [0, 1, 2]
    captures.close()


def test_ranks_that_are_read_are_a_job_although_others_follow(folder: Path) -> None:
    captures, opener = open_first_capture([folder])
    opener._open(folder / "rank1.pt.trace.json")
    job = ranks.get_rank_set(captures)
    assert job is not None
    assert job.ranks == [0, 1]
    captures.close()


def test_new_files_are_opened_when_they_are_complete(folder: Path) -> None:
    captures, opener = open_first_capture([folder])
    opener.open_others()
    new, content = folder / "rank3.pt.trace.json", (folder / "rank2.pt.trace.json").read_bytes()
    new.write_bytes(content[:1000])
    opener.look_for_changes()
    assert captures.growing == [new.name]
    new.write_bytes(content[:2000])
    opener.look_for_changes()
    assert (captures.growing, captures.unreadable) == ([new.name], [])
    opener.look_for_changes()
    assert captures.growing == []
    assert [name for name, _ in captures.unreadable] == [new.name]
    new.write_bytes(content)
    (folder / "notes.txt").write_text("no capture", "utf-8")
    look_twice(opener)
    assert names(captures)[3:] == [new.name]
    assert captures.unreadable == []
    version = captures.version
    look_twice(opener)
    assert captures.version == version
    captures.close()


def test_exports_of_open_captures_are_not_opened(tmp_path: Path) -> None:
    report = tmp_path / "ddp2.nsys-rep"
    export = tmp_path / "ddp2.sqlite"
    export.write_bytes((FIXTURES / "ddp2.sqlite").read_bytes())
    other = tmp_path / "other.sqlite"
    other.write_bytes((FIXTURES / "empty.sqlite").read_bytes())
    captures, opener = open_first_capture([tmp_path])
    opener.open_others()
    report.write_bytes((FIXTURES / "ddp2.nsys-rep").read_bytes())
    (tmp_path / "new.sqlite-journal").touch()
    (tmp_path / "new.sqlite").write_bytes(other.read_bytes())
    look_twice(opener)
    assert names(captures) == [export.name, other.name]
    (tmp_path / "new.sqlite-journal").unlink()
    look_twice(opener)
    assert names(captures)[2:] == ["new.sqlite"]
    captures.close()


def test_replaced_and_removed_files(folder: Path) -> None:
    captures, opener = open_first_capture([folder / "rank0.pt.trace.json", folder / "rank1.pt.trace.json"])
    opener.open_others()
    before, at = captures.all[1], CaptureAggregation(1)
    trace = before.get_aggregated_trace(at)
    replacement = folder / "other"
    replacement.write_bytes((FIXTURES / "train_amp.sqlite").read_bytes())
    replacement.replace(folder / "rank1.pt.trace.json")
    assert captures.list_changed() == ["rank1.pt.trace.json"]
    captures.begin_request()
    look_twice(opener)
    assert captures.all[1] is not before
    assert captures.all[1].get_aggregated_trace(at).count("kernels") != trace.count("kernels")
    captures.end_request()
    with pytest.raises(TracekitError, match="closed"):
        before.trace.table("memcpys")
    assert captures.list_changed() == []
    (folder / "rank1.pt.trace.json").write_bytes(b"{")
    look_twice(opener)
    assert [name for name, _ in captures.unreadable] == ["rank1.pt.trace.json"]
    (folder / "rank0.pt.trace.json").unlink()
    look_twice(opener)
    assert captures.list_changed() == ["rank0.pt.trace.json", "rank1.pt.trace.json"]
    assert captures.all[0].trace.count("kernels") > 0
    captures.close()


def test_results_of_replaced_captures_are_not_cached() -> None:
    cache: Cache[str, int] = Cache(10)

    def compute() -> int:
        cache.clear()
        return 1

    assert cache.get("a", compute) == 1
    assert "a" not in cache
    with pytest.raises(ZeroDivisionError):
        cache.get("b", lambda: 1 // 0)
    assert cache._locks == {}


def test_names_of_many_captures_are_unique(tmp_path: Path) -> None:
    files = [tmp_path / node / "a.json" for node in ("x", "y")] + [tmp_path / "b.json", tmp_path / "b", tmp_path / "c"]
    assert list(opening._name_captures(files).values()) == ["x/a.json", "y/a.json", "b.json", f"{tmp_path.name}/b", "c"]


def test_the_server_opens_the_others_and_follows_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads end with the server, and errors do not end them before."""
    monkeypatch.setattr(opening, "INTERVAL_S", 0.05)
    others = set(threading.enumerate())  # those of servers that other tests share
    broken = folder / "rank1.pt.trace.json"
    broken.write_bytes(broken.read_bytes()[:2000])
    viewer = open_viewer([folder], port=0)
    captures = viewer._captures
    wait_until(lambda: not captures.waiting)
    assert names(captures) == ["rank0.pt.trace.json", "rank2.pt.trace.json"]
    assert [name for name, _ in captures.unreadable] == [broken.name]
    (folder / "rank3.pt.trace.json").write_bytes((folder / "rank2.pt.trace.json").read_bytes())
    wait_until(lambda: len(captures) == 3)
    status = viewer.flask.test_client().get("/status").json
    assert (status["opened"], status["waiting"], status["changed"]) == (3, 0, [])
    viewer.close()
    wait_until(lambda: all(t.name != "tracekit-captures" for t in set(threading.enumerate()) - others))


def test_ten_tabs_compute_the_answer_once(monkeypatch: pytest.MonkeyPatch) -> None:
    explain, count = TraceView.why, []

    def count_calls(view: TraceView, options: Options) -> object:
        count.append(view)
        return explain(view, options)

    monkeypatch.setattr(TraceView, "why", count_calls)
    with running(FIXTURES / "train_amp.sqlite") as viewer, ThreadPoolExecutor(10) as tabs:
        pages = list(tabs.map(lambda _: urlopen(f"{viewer.url}?scripts=no", timeout=60).read(), range(10)))
    assert len(set(pages)) == 1
    assert len(count) == 1


def test_broken_captures_do_not_stop_the_server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    captures = open_captures([folder])
    monkeypatch.setattr(captures.all[0], "explain", lambda _: 1 // 0)
    captures.explain_first()
    assert captures.list_activities() == []
    captures.close()


def test_pages_that_take_long_are_shown_without_their_content_first(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(FIXTURES / "train_amp.sqlite") as viewer:
        complete = get(viewer, "/kernels").text
        monkeypatch.setattr(layout, "PATIENCE_S", 0)
        page = get(viewer, "/kernels").text
        (url,) = re.findall(r'data-fragment="(/fragment/later/\d+)"', page)
        (scope,) = re.findall(r'data-fragment="(/fragment/scope[^"]*)"', page)
        assert get(viewer, scope.replace("&amp;", "&")).text in complete
        assert "<h1>Kernels</h1>" in page
        assert "The capture is being read" in page
        content = get(viewer, url).text
        assert content.startswith("<h1>Kernels</h1>")
        assert re.sub(r"later/\d+", "", content) in re.sub(r"later/\d+", "", complete)
        assert get(viewer, url).text.count("this panel was not computed") == 1
        for _ in range(MAX_SLOW_RESULTS + 1):
            get(viewer, "/kernels")
        assert len(viewer._captures._slow_results) == MAX_SLOW_RESULTS


def test_the_end_does_not_wait_for_what_is_computed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace that is computed holds a lock that closing it would need, and the other way round."""
    monkeypatch.setattr(view_captures, "CLOSING_S", 0.01)
    captures = open_captures([folder])
    captures.begin_request()
    captures.close()
    assert captures.all[0].trace.count("kernels") > 0
    captures.end_request()
    captures.close()
    with pytest.raises(TracekitError, match="closed"):
        captures.all[0].trace.table("memcpys")
