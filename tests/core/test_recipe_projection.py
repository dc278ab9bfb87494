"""Projections of NVTX ranges as the recipes make them: nodes of CUDA graphs, and nesting."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.test_recipes import launch, outputs
from tests.core.test_reports import Row, call, kernel, nvtx
from tracekit.core.trees import MAX_LEVELS

NODE, COPY, COPY_OF_COPY = 1, 2, 3


def created(time: int, node: int, original: int | None = None) -> Row:
    thread = {"process_id": 7, "thread_id": 1}
    return {"start_ns": time, "end_ns": time, "graph_node_id": node, "original_graph_node_id": original, **thread}


def of_graph(start: int, end: int, correlation: int, node: int = COPY) -> Row:
    return kernel(start, end, correlation_id=correlation, graph_node_id=node)


def trace(**tables: list[Row]) -> list[tuple[Any, ...]]:
    rows = outputs("nvtx_gpu_proj_trace", tables)["trace"]
    return rows.select("Text", "Start", "End", "Stack Level", "Children Count", "Parent ID").rows()


GRAPH = {
    "nvtx_ranges": [
        nvtx(0, 10, "capture", range_id=1),
        nvtx(2, 8, "layer", range_id=2),
        nvtx(11, 15, "instantiate", range_id=3),
        nvtx(20, 25, "replay", range_id=4),
    ],
    "cuda_graph_node_events": [created(5, NODE), created(12, COPY), created(12, COPY, NODE), created(22, 99, 98)],
    "api_calls": [call(21, 22, correlation_id=1), call(23, 24, correlation_id=2)],
    "kernels": [of_graph(30, 32, 1), of_graph(40, 43, 2), of_graph(50, 51, 2, node=99)],
}


def test_nodes_of_graphs_belong_to_the_ranges_in_which_they_were_created() -> None:
    assert trace(**GRAPH) == [
        ("replay", 30, 51, 0, 1, None),
        ("capture", 30, 43, 1, 1, 0),
        ("instantiate", 30, 43, 2, 2, 1),
        ("layer", 30, 32, 3, 0, 2),
        ("layer", 40, 43, 3, 0, 2),
    ]


def test_ranges_of_graphs_are_counted_once_on_the_cpu() -> None:
    sums = outputs("nvtx_gpu_proj_sum", GRAPH)["all_stats"]
    columns = ("Text", "Count", "Sum", "Sum of NVTX Ranges on CPU")
    assert sums.select(columns).rows() == [
        ("capture", 1, 13, 10.0),
        ("instantiate", 1, 13, 4.0),
        ("layer", 2, 5, 6.0),
        ("replay", 1, 21, 5.0),
    ]


def test_the_range_in_which_a_graph_is_captured_and_instantiated_has_both_projections() -> None:
    rows = trace(**{**GRAPH, "nvtx_ranges": [nvtx(0, 15, "capture"), nvtx(20, 25, "replay")]})
    assert rows == [
        ("replay", 30, 51, 0, 1, None),
        ("capture", 30, 43, 1, 2, 0),
        ("capture", 30, 32, 2, 0, 1),
        ("capture", 40, 43, 2, 0, 1),
    ]


@pytest.mark.parametrize("child", [nvtx(1, 2, "idle"), nvtx(13, 14, "idle", kind="start_end", domain="lib")])
def test_a_range_that_contains_another_range_has_one_projection(child: Row) -> None:
    # nsys 2025.3.1 does the same, also if the other range launched nothing.
    rows = trace(**{**GRAPH, "nvtx_ranges": [nvtx(0, 15, "capture"), child, nvtx(20, 25, "replay")]})
    assert rows == [("replay", 30, 51, 0, 1, None), ("capture", 30, 43, 1, 0, 0)]


def test_crossing_ranges_have_a_projection_per_node_each() -> None:
    rows = trace(**{**GRAPH, "nvtx_ranges": [nvtx(0, 11, "first", kind="start_end"), nvtx(2, 15, "second")]})
    assert [(text, start, end) for text, start, end, *_ in rows] == [
        ("second", 30, 43),
        *((text, *times) for times in ((30, 32), (40, 43)) for text in ("first", "second")),
    ]


def test_the_pace_of_projections_is_sorted_by_thread() -> None:
    launches = [(launch(1, (50, 51), 1), 2), (launch(3, (30, 32), 2), 2), (launch(5, (10, 13), 3), 9)]
    tables = {
        "nvtx_ranges": [nvtx(start, start + 2, "step", thread_id=thread) for start, thread in ((0, 2), (2, 2), (4, 9))],
        "api_calls": [{**call_, "thread_id": thread} for (call_, _), thread in launches],
        "kernels": [kernel_ for (_, kernel_), _ in launches],
    }
    starts = outputs("nvtx_gpu_proj_pace", tables, name="step")["pace_start"]
    assert starts.rows() == [(30,), (50,), (10,)]


def test_whole_graphs_belong_to_the_ranges_in_which_they_were_created_and_instantiated() -> None:
    # The same nesting as in a capture of nsys: everything is in one range, and each replay is inside the instantiation.
    def event(time: int, graph: int | None, executable: int | None = None) -> Row:
        ids = {"graph_id": graph, "graph_exec_id": executable, "process_id": 7, "thread_id": 1}
        return {"start_ns": time, "end_ns": time, **ids}

    eager, kernel_of_eager = launch(1, (10, 11), 1)
    ids = {"process_id": 7, "graph_id": 1, "graph_exec_id": 5}
    names = [(0, 60, "main"), (1, 20, "capture"), (4, 19, "layer"), (21, 30, "instantiate"), (31, 40, "replay0")]
    rows = trace(
        nvtx_ranges=[nvtx(*r, range_id=i) for i, r in enumerate([*names, (41, 50, "replay1")])],
        api_calls=[eager, call(32, 33, correlation_id=2), call(42, 43, correlation_id=3)],
        kernels=[kernel_of_eager],
        cuda_graph_events=[event(3, 1), event(22, 2), event(23, 1, 5)],
        graph_launches=[{"start_ns": t, "end_ns": t + 4, "correlation_id": c, **ids} for t, c in ((70, 2), (80, 3))],
    )
    assert rows == [
        ("main", 10, 84, 0, 1, None),
        ("capture", 10, 84, 1, 1, 0),
        ("instantiate", 70, 84, 2, 2, 1),
        ("replay0", 70, 74, 3, 0, 2),
        ("replay1", 80, 84, 3, 0, 2),
    ]


def test_projections_of_single_activities_contain_no_concurrent_ones() -> None:
    launches = [launch(2, (30, 90), 1), launch(6, (35, 40), 2)]
    ranges = [nvtx(0, 10, "outer"), nvtx(1, 4, "long"), nvtx(5, 8, "short")]
    rows = trace(
        nvtx_ranges=[{**r, "range_id": i} for i, r in enumerate(ranges)],
        api_calls=[c for c, _ in launches],
        kernels=[k for _, k in launches],
    )
    assert rows == [("outer", 30, 90, 0, 2, None), ("long", 30, 90, 1, 0, 0), ("short", 35, 40, 1, 0, 0)]


def test_copies_of_copies_of_nodes_are_followed() -> None:
    events = [created(5, NODE), created(12, COPY, NODE), created(13, COPY_OF_COPY, COPY)]
    kernels = [of_graph(30, 32, 1, node=COPY_OF_COPY)]
    rows = trace(**{**GRAPH, "cuda_graph_node_events": events, "kernels": kernels, "api_calls": []})
    assert {text for text, *_ in rows} == {"capture", "layer"}


def test_nodes_that_copy_one_another_belong_to_no_range() -> None:
    events = [created(5, NODE, COPY), created(6, COPY, NODE)]
    assert [r[0] for r in trace(**{**GRAPH, "cuda_graph_node_events": events})] == ["replay"]


def test_launches_of_whole_graphs_are_activities() -> None:
    graphs = [{"start_ns": 30, "end_ns": 39, "process_id": 7, "correlation_id": 1}]
    rows = trace(nvtx_ranges=[nvtx(20, 25)], api_calls=[call(21, 22)], graph_launches=graphs)
    assert rows == [("r", 30, 39, 0, 0, None)]


def test_projections_of_ranges_one_after_the_other_are_nested() -> None:
    launches = [launch(1, (30, 31), 1), launch(3, (35, 90), 2), launch(11, (40, 45), 3), launch(21, (89, 95), 4)]
    ranges = [nvtx(0, 10, "long"), nvtx(2, 5, "collective"), nvtx(10, 20, "next"), nvtx(20, 30, "crossing")]
    rows = trace(
        nvtx_ranges=[{**r, "range_id": i} for i, r in enumerate(ranges)],
        api_calls=[c for c, _ in launches],
        kernels=[k for _, k in launches],
    )
    assert rows == [
        ("long", 30, 90, 0, 2, None),
        ("collective", 35, 90, 1, 0, 0),
        ("next", 40, 45, 1, 0, 0),
        ("crossing", 89, 95, 0, 0, None),
    ]


def test_equal_ranges_contain_one_another_in_order() -> None:
    c, k = launch(1, (30, 31), 1)
    rows = trace(nvtx_ranges=[nvtx(0, 5, f"r{i}", range_id=i) for i in range(3)], api_calls=[c], kernels=[k])
    assert [(r[0], r[3], r[5]) for r in rows] == [("r0", 0, None), ("r1", 1, 0), ("r2", 2, 1)]


def test_the_stack_of_deep_projections_has_the_outermost_ranges() -> None:
    count = MAX_LEVELS + 3
    ranges = [nvtx(n, 2000 - n, f"r{n}", range_id=n) for n in range(count)]
    tables = {"nvtx_ranges": ranges, "api_calls": [call(1000, 1001, correlation_id=1)]}
    rows = outputs("nvtx_gpu_proj_trace", {**tables, "kernels": [kernel(3000, 3010, correlation_id=1)]})["trace"]
    stacks = rows["Range Stack"].to_list()
    assert stacks[MAX_LEVELS - 1] == list(range(MAX_LEVELS))
    assert stacks[-1] == [*range(MAX_LEVELS - 1), count - 1]
