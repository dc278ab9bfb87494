"""The captured graphs that executable graphs run after ``cudaGraphExecUpdate``."""

from __future__ import annotations

import polars as pl
import pytest
import tracekit as tk
from tests.builders.frames import declared, nvtx
from tracekit.core.correlate import Correlation
from tracekit.core.layers import updates

A, B, C, EXECUTABLE = (graph << 32 for graph in (1, 2, 3, 9))
EVENT = ["process_id", "thread_id", "start_ns", "graph_node_id", "original_graph_node_id"]
CALL = ["process_id", "thread_id", "start_ns", "end_ns", "name", "correlation_id"]
KERNEL = ["process_id", "correlation_id", "start_ns", "end_ns", "graph_node_id", "name", "grid_x"]
UPDATES = (50, 70)


def frame(rows: list[tuple], names: list[str]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=names, orient="row", infer_schema_length=None)


def paths(captured: list[tuple[int, str]], ran: list[str]) -> list[str | None]:
    """Return the capture path of the kernels of an executable graph of A, which ran before and between the updates.

    Args:
        captured: The graphs, and the range in which the only node of each was created.
        ran: The kernels that ran before the first update, before the second and after it.
    """
    events = [(1, 1, 11 + 10 * i, graph, None) for i, (graph, _) in enumerate(captured)]
    events += [(1, 1, 45, EXECUTABLE, None), (1, 1, 45, EXECUTABLE, A)]
    calls = [(1, 1, 44, 46, "cudaGraphInstantiate_v12000", 1)]
    calls += [(1, 1, at, at + 2, "cudaGraphExecUpdate_v10020", at) for at in UPDATES]
    calls += [(1, 1, at, at + 2, "cudaGraphLaunch_v10000", at) for at in (48, 60, 80)]
    kernels = [(1, at, 90 + at, 91 + at, EXECUTABLE, name, 4) for at, name in zip((48, 60, 80), ran, strict=True)]
    tables = {
        "cuda_graph_node_events": frame(events, EVENT),
        "api_calls": frame(calls, CALL),
        "kernels": frame(kernels, KERNEL),
        "nvtx_ranges": nvtx(*((name, 1, 10 + 10 * i, 15 + 10 * i) for i, (_, name) in enumerate(captured))),
    }
    rows = Correlation(declared(**tables)).compute_columns("kernels", ["capture_path"])
    return rows["capture_path"].cast(pl.String).to_list()


@pytest.mark.parametrize(
    ("captured", "ran", "expected"),
    [
        ([(A, "a"), (B, "b")], ["f", "g", "f"], ["a", "b", "a"]),
        ([(A, "a"), (B, "b")], ["f", "g", "h"], ["a", "b", None]),
        ([(A, "a"), (B, "b")], ["f", "f", "f"], ["a", None, None]),
        ([(A, "a"), (B, "a")], ["f", "f", "f"], ["a", "a", "a"]),
        ([(A, "a"), (B, "b"), (C, "c")], ["f", "g", "g"], ["a", None, None]),
        ([(A, "a"), (B, "b"), (C, "b")], ["f", "g", "f"], ["a", "b", None]),
        ([(A, "a")], ["f", "f", "g"], ["a", "a", None]),
    ],
)
def test_after_an_update_the_kernels_tell_which_graph_runs(captured: list, ran: list, expected: list) -> None:
    assert paths(captured, ran) == expected


def test_too_many_graphs_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates, "MAX_COMPARISONS", 3)
    assert paths([(A, "a"), (B, "b")], ["f", "g", "f"]) == ["a", "b", None]


@pytest.mark.parametrize(("most", "expected"), [(2, ["a", "b", "a"]), (1, ["a", None, None])])
def test_no_graph_is_known_if_too_many_were_captured(
    most: int, expected: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates, "MAX_GRAPHS", most)
    assert paths([(A, "a"), (B, "b")], ["f", "g", "f"]) == expected


def test_runs_after_too_many_updates_have_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates, "MAX_GRAPHS", 1)
    assert paths([(A, "a")], ["f", "f", "f"]) == ["a", "a", None]


def test_a_real_update_and_a_second_one_back() -> None:
    with tk.load("fixtures/layers/update.nsys-rep") as trace:
        kernels = trace.correlate().frame("kernels").sort("start_ns").collect()
    number = kernels["name"].cast(pl.String).str.extract(r"^void layer<\(int\)(\d)>").cast(pl.Int64)
    number = number.fill_null(kernels["grid_x"] - 10)
    graph = pl.Series(["a" if n < 3 else "b" for n in number])
    expected = pl.select(pl.format("capture {}//{}/layer {}", graph, graph, number)).to_series()
    assert kernels["capture_path"].cast(pl.String).to_list() == expected.to_list()


def test_graphs_that_were_recorded_as_wholes_may_be_updated() -> None:
    calls = frame([(1, 1, 50, 52, "cudaGraphExecUpdate_v10020", 1)], CALL)
    assert Correlation(declared(api_calls=calls)).compute_columns("kernels", ["capture_path"]).height == 0
