"""Captured ranges that are placed inside of replays: against brute force, and in a real capture."""

from __future__ import annotations

import warnings
from collections import defaultdict

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.frames import declared, nvtx
from tests.core.layers.test_nodes import CALL, EVENT, frame
from tracekit.core.layered import LayeredCapture
from tracekit.core.layers import replays as replay_module
from tracekit.errors import TracekitError, TracekitWarning

GRAPH = 1 << 32
small = st.integers(0, 12)
KERNEL = ["start_ns", "end_ns", "process_id", "correlation_id", "graph_node_id"]


@st.composite
def replays(draw: st.DrawFn) -> dict[str, pl.DataFrame]:
    """Nodes captured on two threads in ranges that may cross, and calls of any length that replay some of them.

    Some ranges of the first thread never end, so that they contain the replays, too.
    """
    thread = st.integers(1, 2)
    captured = st.tuples(
        st.sampled_from("abc"), thread, small, st.one_of(st.integers(1, 9), st.integers(1, 9), st.none())
    )
    ranges = [(name, t, start, size and start + size) for name, t, start, size in draw(st.lists(captured, max_size=7))]
    nodes = draw(st.lists(st.tuples(thread, small), min_size=1, max_size=5))
    lengths = draw(st.lists(st.integers(0, 40), min_size=1, max_size=4))
    inner = draw(st.lists(st.tuples(st.sampled_from("xy"), st.integers(20, 200), st.integers(1, 30)), max_size=2))
    ran = draw(st.lists(st.lists(st.integers(0, len(nodes)), max_size=6), min_size=len(lengths), max_size=len(lengths)))
    calls = [(1, 1, 20 + 50 * i, 20 + 50 * i + size, "cudaGraphLaunch", i + 1) for i, size in enumerate(lengths)]
    kernels = [(0, 1, 1, i + 1, GRAPH + n) for i, numbers in enumerate(ran) for n in numbers]
    return {
        "cuda_graph_node_events": frame([(1, t, at, GRAPH + n, None) for n, (t, at) in enumerate(nodes)], EVENT),
        "api_calls": frame([(1, 1, 0, 1, "cudaFree", 99), *calls], CALL),
        "nvtx_ranges": nvtx(*ranges, *((name, 1, start, start + size) for name, start, size in inner)),
        "kernels": frame(kernels, KERNEL),
    }


def open_at(time: int, thread: int, ranges: list[dict]) -> list[dict]:
    """The ranges that are open on a thread, from the outermost inwards."""
    end = [10**6 if r["end_ns"] is None else r["end_ns"] for r in ranges]
    inside = [
        (r["start_ns"], -e, r["range_id"], r) for r, e in zip(ranges, end, strict=True) if r["thread_id"] == thread
    ]
    return [r for start, e, _, r in sorted(inside, key=lambda t: t[:3]) if start <= time < -e]


@given(replays())
def test_each_activity_is_launched_in_copies_of_the_ranges_around_its_node(tables) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layered = LayeredCapture(declared(**tables))
        copies = layered.compute_copied_ranges(
            ["range_id", "thread_id", "start_ns", "end_ns", "name", "captured_range_id"]
        )
        launches = layered.compute_activity_columns("kernels", ["launch_ns", "capture_range_id"]).to_dicts()
    copies, recorded = copies.to_dicts(), tables["nvtx_ranges"].to_dicts()
    events = {e["graph_node_id"]: e for e in tables["cuda_graph_node_events"].to_dicts()}
    calls = {c["correlation_id"]: c for c in tables["api_calls"].to_dicts()}
    activities = defaultdict(list)
    for kernel, launch in zip(tables["kernels"].to_dicts(), launches, strict=True):
        event = events.get(kernel["graph_node_id"])
        if event and (around := open_at(event["start_ns"], event["thread_id"], recorded)):
            activities[kernel["correlation_id"]].append((around, launch))
        else:
            assert launch == {"launch_ns": None, "capture_range_id": None}
    whole, expected = 0, []
    for number, ran in activities.items():
        call = calls[number]
        start, end = call["start_ns"], call["end_ns"]
        already = open_at(start, 1, recorded)
        held = {r["range_id"] for around, _ in ran for r in around}
        times = {t for r in recorded if r["thread_id"] == 1 for t in (r["start_ns"], r["end_ns"])}
        is_free = not any(t is not None and start < t < end for t in times) and end - start > 2 * len(held)
        whole += not is_free
        for around, launch in ran:
            new = [r for r in around if r not in already]
            if not is_free or around[-1] in already:
                assert launch == {"launch_ns": None, "capture_range_id": around[-1]["range_id"]}
                continue
            assert start < launch["launch_ns"] < end
            inside = open_at(launch["launch_ns"], 1, copies)
            assert [r["captured_range_id"] for r in inside] == [r["range_id"] for r in new]
            assert inside[-1]["range_id"] == launch["capture_range_id"]
            assert open_at(launch["launch_ns"], 1, recorded) == already
        expected += [(number, r) for r in held - {r["range_id"] for r in already}] if is_free else []
    assert layered.layout.whole_count == whole
    assert layered.layout.replay_count == len(activities)
    assert len(copies) == len(expected)
    for copy in copies:
        call = next(c for c in calls.values() if c["start_ns"] < copy["start_ns"] and copy["end_ns"] < c["end_ns"])
        expected.remove((call["correlation_id"], copy["captured_range_id"]))


REPLAY = {
    "cuda_graph_node_events": frame([(1, 1, 5, GRAPH, None), (1, 1, -5, GRAPH + 1, None)], EVENT),
    "api_calls": frame([(1, 1, 0, 9, "cudaLaunchKernel", 1), (1, 1, 20, 22, "cudaGraphLaunch", 2)], CALL),
    "nvtx_ranges": nvtx(("a", 1, 4, 8)),
    "kernels": frame([(0, 1, 1, 2, GRAPH), (0, 1, 1, 2, GRAPH + 1)], KERNEL),
    "graph_launches": frame([(0, 1, 1, 7), (1, 2, 1, 7)], ["start_ns", "end_ns", "process_id", "graph_id"]),
}


def test_what_has_no_layers_is_counted_and_said() -> None:
    with pytest.warns(TracekitWarning) as issued:
        assert LayeredCapture(declared(**REPLAY)).layout.copies.height == 0
    texts = [str(w.message) for w in issued]
    assert [text.partition(", ")[0] for text in texts] == [
        "the layers of 1 of 2 activities of CUDA graphs are not known",
        "no ranges are placed inside of 1 of 1 replays of CUDA graphs",
        "2 executions of 1 CUDA graph were recorded as wholes",
    ]
    assert "--layers FILE" in texts[0]
    assert "--cuda-graph-trace=node" in texts[2]


def test_replays_that_were_written_with_layers_say_so() -> None:
    ranges = nvtx(("a", 1, 4, 8), ("a", 1, 21, 22), ("a", 1, 23, 25))
    calls = frame([(1, 1, 20, 40, "cudaGraphLaunch", 2)], CALL)
    tables = {**REPLAY, "nvtx_ranges": ranges, "api_calls": calls, "kernels": REPLAY["kernels"].head(1)}
    with pytest.warns(TracekitWarning) as issued:
        assert LayeredCapture(declared(**tables)).layout.whole_count == 1
    assert "1 of 1 replays of CUDA graphs contain the ranges of their layers already" in str(issued[0].message)


def test_ids_of_copies_must_fit() -> None:
    tables = {**REPLAY, "nvtx_ranges": REPLAY["nvtx_ranges"].with_columns(range_id=pl.lit((1 << 63) - 1))}
    with pytest.warns(TracekitWarning), pytest.raises(TracekitError, match="has the last id"):
        LayeredCapture(declared(**tables)).compute_copied_ranges(["range_id"])


def test_only_the_innermost_ranges_of_many_levels_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_module, "MAX_LEVELS", 1)
    calls = frame([(1, 1, 20, 40, "cudaGraphLaunch", 2)], CALL)
    kernels = frame([(0, 1, 1, 2, GRAPH)], KERNEL)
    ranges = nvtx(("a", 1, 0, 10), ("b", 1, 4, 8))
    events = frame([(1, 1, 5, GRAPH, None)], EVENT)
    tables = declared(api_calls=calls, kernels=kernels, nvtx_ranges=ranges, cuda_graph_node_events=events)
    assert LayeredCapture(tables).compute_copied_ranges(["name"])["name"].to_list() == ["b"]
