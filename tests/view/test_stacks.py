"""The page of call stacks: events, threads and times that are selected, and the functions and frames it shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import tracekit as tk
from tests.view.support import FIXTURES, captures_of, running, show, table
from tracekit.errors import TracekitError
from tracekit.view import query as queries
from tracekit.view import stacks
from tracekit.view.captures import ViewedCaptures
from tracekit.view.query import Query
from tracekit.view.server import Viewer
from tracekit.view.state import CaptureAggregation

AT = CaptureAggregation()


@pytest.fixture(scope="module")
def osrt() -> Iterator[Viewer]:
    with running(FIXTURES / "osrt_libs.sqlite") as viewer:
        yield viewer


@pytest.fixture(scope="module")
def python() -> ViewedCaptures:
    """A capture with a Python stack of two frames, sampled by two threads."""
    frames = [
        {"stack_id": 1, "parent_id": None, "depth": 1, "symbol": "main", "module": "train.py", "line": 7},
        {"stack_id": 2, "parent_id": 1, "depth": 2, "symbol": "forward", "module": "model.py", "line": 30},
    ]
    samples = [
        {"python_sample_id": n, "timestamp_ns": 100 * n, "process_id": 5, "thread_id": thread, "kind": kind}
        | {"stack_id": stack, "thread_state": "Running"}
        for n, (thread, kind, stack) in enumerate(
            [(6, "periodic", 2), (6, "periodic", 1), (7, "periodic", 2), (6, "cuda", 2)]
        )
    ]
    calls = [{"api_call_id": 1, "start_ns": 300, "end_ns": 350, "process_id": 5, "thread_id": 6, "name": "cuda"}]
    threads = [{"process_id": 5, "thread_id": 6, "name": "old"}, {"process_id": 5, "thread_id": 6, "name": "loader"}]
    rows = {"stacks": frames, "python_samples": samples, "api_calls": calls, "threads": threads}
    return captures_of(tk.Trace.from_tables({name: table(name, each) for name, each in rows.items()}))


def rows(captures: ViewedCaptures, name: str, **arguments: str) -> list[dict[str, Any]]:
    return queries.load_page(captures, Query(name, AT, tuple(sorted(arguments.items()))), 0, 1000).rows


def test_python_stacks(python: ViewedCaptures) -> None:
    functions = rows(python, "stack_functions")
    assert [(f["name"], f["self_count"], f["in_stack_count"]) for f in functions] == [("forward", 2, 2), ("main", 1, 3)]
    assert [f["in_stack_percent"] for f in functions] == [pytest.approx(200 / 3), 100]
    (call_,) = rows(python, "stack_functions", events="python_calls", weight="time")[:1]
    assert (call_["name"], call_["self_time_ns"]) == ("forward", 50)
    events = rows(python, "stack_events", events="python_samples")
    assert [(e["timestamp_ns"], e["function"], e["thread_name"]) for e in events] == [
        (0, "forward", "loader"),
        (100, "main", "loader"),
        (200, "forward", None),
    ]
    assert [e["timestamp_ns"] for e in rows(python, "stack_events", thread="5:7")] == [200]
    assert [e["timestamp_ns"] for e in rows(python, "stack_events", start="50", end="150")] == [100]
    assert [f["name"] for f in rows(python, "stack_functions", start="50", end="150", weight="nope")] == ["main"]
    frames = rows(python, "stack_frames", stack_id="2")
    assert [(f["depth"], f["function"], f["line"]) for f in frames] == [(2, "forward", 30), (1, "main", 7)]
    assert rows(python, "stack_frames", stack_id="3") == rows(python, "stack_frames") == []
    threads = stacks.parse_selection(python.all[0].get_aggregated_trace(AT), {}).count_events_by_thread()
    assert threads.select("thread_id", "thread_name", "count").rows() == [(6, "loader", 2), (7, None, 1)]


@pytest.mark.parametrize(
    "arguments",
    [
        {"thread": "x"},
        {"thread": "5"},
        {"thread": "5:-6"},
        {"thread": "5:" + "9" * 19},
        {"start": "x"},
        {"start": "900"},
    ],
)
def test_selections_that_are_not_valid(python: ViewedCaptures, arguments: dict[str, str]) -> None:
    with pytest.raises(TracekitError):
        rows(python, "stack_events", **arguments)


@pytest.mark.slow
def test_the_page(osrt: Viewer) -> None:
    def shown(search: str) -> list[str]:
        return show(osrt, "/stacks", search)

    assert {"Call stacks", "CPU samples by call stack", "Functions", "Events"} <= set(shown(""))
    assert "Operating system calls by call stack" in shown("?events=osrt_calls&weight=time")
    limited = shown("?start=0&end=99999999999999")
    assert {"Whole capture", "CPU samples by call stack"} <= set(limited)
    assert not {"Functions"} & set(shown("?start=x"))
    trace = osrt._captures.all[0].trace
    event = trace.frame("cpu_samples").select("process_id", "thread_id").head(1).collect().row(0)
    one = rows(osrt._captures, "stack_events", thread="{}:{}".format(*event))
    assert 0 < len(one) < trace.count("cpu_samples")
    durations = [row["duration_ns"] for row in rows(osrt._captures, "stack_events", events="osrt_calls")]
    assert len(durations) == 6


def test_the_time_is_limited(osrt: Viewer) -> None:
    """The form accepts times as the page writes them."""
    written = show(osrt, "/stacks", "?events=osrt_calls&start=1%2C000&end=+99%2C999%2C999%2C999")
    assert written == show(osrt, "/stacks", "?events=osrt_calls&start=1000&end=99999999999")
    assert "Whole capture" in written
    assert "Whole capture" not in show(osrt, "/stacks", "?events=osrt_calls&start=&end=")


def test_a_capture_without_call_stacks() -> None:
    kernels = table("kernels", [{"kernel_id": 1}])
    with pytest.raises(TracekitError, match="no call stacks"):
        rows(captures_of(tk.Trace.from_tables({"kernels": kernels})), "stack_events")
