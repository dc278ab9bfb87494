"""The ranges in which the nodes of CUDA graphs were created: against brute force, in real captures, and the traps."""

from __future__ import annotations

from contextlib import nullcontext

import polars as pl
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.frames import declared, nvtx
from tracekit.core.correlate import Correlation
from tracekit.core.layers.nodes import INFERRED_CONFIDENCE, number_nested_nodes

FIXTURES, NOTHING = "fixtures/layers", nullcontext()
COLUMNS = ["capture_range_id", "capture_path", "capture_confidence"]
Row = dict
small, process, thread = st.integers(0, 20), st.integers(1, 2), st.integers(1, 2)
node = st.builds(lambda graph, number: (graph << 32) + number, st.integers(1, 3), st.integers(0, 2))
RANGE = {"range_id": pl.Int64, "process_id": pl.Int64, "thread_id": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64}
EVENT = ["process_id", "thread_id", "start_ns", "graph_node_id", "original_graph_node_id"]
CALL = ["process_id", "thread_id", "start_ns", "end_ns", "name", "correlation_id"]


def frame(rows: list[tuple], names: list[str]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=names, orient="row", infer_schema_length=None)


def compute(table: str = "kernels", **tables: pl.DataFrame) -> list[tuple]:
    rows = Correlation(declared(**tables)).compute_columns(table, COLUMNS)
    return rows.cast({"capture_path": pl.String}).rows()


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, pl.DataFrame]:
    """Nodes that are created, copied (also in circles, or from unknown nodes) and run, in ranges that may cross."""
    events = draw(st.lists(st.tuples(process, thread, small, node, st.one_of(st.none(), st.none(), node)), max_size=9))
    names = st.sampled_from(["cudaGraphInstantiate_v12000", "cudaLaunchKernel_v7000", "cuGraphClone"])
    calls = draw(st.lists(st.tuples(process, thread, small, st.integers(0, 9), names), max_size=6))
    ranges = draw(st.lists(st.tuples(st.sampled_from("ab"), process, thread, small, st.integers(0, 15)), max_size=7))
    ran = draw(st.lists(st.tuples(st.sampled_from([1, 2, None]), st.one_of(st.none(), node, node)), max_size=8))
    nested = nvtx(*((name, t, start, start + size) for name, _, t, start, size in ranges))
    return {
        "cuda_graph_node_events": frame(events, EVENT),
        "api_calls": frame([(p, t, s, s + d, n, i) for i, (p, t, s, d, n) in enumerate(calls, 1)], CALL),
        "nvtx_ranges": nested.with_columns(process_id=pl.Series([p for _, p, *_ in ranges], dtype=pl.Int64)),
        "kernels": frame([(0, 1, p, n) for p, n in ran], ["start_ns", "end_ns", "process_id", "graph_node_id"]),
    }


def created(activity: Row, events: list[Row], calls: list[Row]) -> Row | None:
    """The event of the program that created the node of an activity."""
    number = activity["graph_node_id"]
    for _ in range(10):
        own = [e for e in events if (e["process_id"], e["graph_node_id"]) == (activity["process_id"], number)]
        originals = [e["original_graph_node_id"] for e in own if e["original_graph_node_id"] is not None]
        if not originals:
            break
        number = originals[0]
    else:
        return None
    if not own:
        return None
    copying = [c for c in calls if "Kernel" not in c["name"] and around(own[0], c, closed=True)]
    return None if copying else own[0]


def around(event: Row, outer: Row, *, closed: bool = False) -> bool:
    same = all(event[c] == outer[c] for c in ("process_id", "thread_id"))
    return same and outer["start_ns"] <= event["start_ns"] < outer["end_ns"] + closed


def test_graphs_that_were_recorded_as_wholes_have_no_nodes() -> None:
    launches = frame([(0, 5, 1, 7)], ["start_ns", "end_ns", "process_id", "correlation_id"])
    assert compute("graph_launches", graph_launches=launches) == [(None, None, None)]


@given(graphs())
def test_an_activity_belongs_to_the_ranges_in_which_the_program_created_its_node(tables) -> None:
    events, calls, ranges = (tables[name].to_dicts() for name in ("cuda_graph_node_events", "api_calls", "nvtx_ranges"))
    recorded = (declared(**tables)(name).collect() for name in ("cuda_graph_node_events", "api_calls"))
    events += number_nested_nodes(*recorded).to_dicts()
    expected = []
    for activity in tables["kernels"].to_dicts():
        event = created(activity, events, calls) if None not in activity.values() else None
        order = {"key": lambda r: (r["start_ns"], -r["end_ns"], r["range_id"])}
        outer = sorted((r for r in ranges if event and around(event, r)), **order)
        first = min((c["start_ns"] for c in calls if c["process_id"] == activity["process_id"]), default=99)
        is_known = event is not None and (bool(outer) or event["start_ns"] >= first)
        path = "/".join(r["name"] for r in outer) if outer else None
        expected.append((outer[-1]["range_id"] if outer else None, path, 1.0 if is_known else None))
    assert compute(**tables) == expected


@pytest.fixture(scope="module")
def layers() -> pl.DataFrame:
    """The kernels of ``layers_inside`` that ran in the graph, in order of time."""
    with tk.load(f"{FIXTURES}/layers_inside.nsys-rep") as trace:
        rows = trace.correlate().frame("kernels").filter(pl.col("graph_node_id").is_not_null())
        return rows.sort("start_ns").collect()


def test_every_replayed_kernel_has_the_layer_that_the_eager_run_says(layers: pl.DataFrame) -> None:
    with tk.load(f"{FIXTURES}/layers_eager.nsys-rep") as trace:
        eager = trace.correlate().frame("kernels").sort("start_ns").collect()
    assert layers.height == eager.height == 8 * 60
    same = ["name", "grid_x", "grid_y", "grid_z"]
    assert layers.select(same).equals(eager.select(same))
    in_layers = eager["range_path"].cast(pl.String).str.strip_prefix("step ").str.replace(r"^\d+", "capture")
    assert layers["capture_path"].cast(pl.String).to_list() == in_layers.to_list()
    assert layers["range_path"].to_list() == [f"step {i}" for i in range(8) for _ in range(60)]
    assert layers["capture_confidence"].to_list() == [1.0] * 480


@pytest.mark.parametrize(
    ("name", "table", "expected"),
    [
        ("graph_node.nsys-rep", "kernels", [(None, None, 27), ("capture", 1.0, 25)]),
        ("layers/layers_inside.nsys-rep", "memsets", [(f"capture/layer {i}/attention", 1.0, 8) for i in range(6)]),
        ("jax_mlp.nsys-rep", "graph_launches", [(None, None, 4)]),
    ],
)
def test_activities_of_captures(name: str, table: str, expected: list) -> None:
    with tk.load(f"fixtures/{name}") as trace:
        rows = trace.correlate().frame(table).select(*COLUMNS[1:]).collect()
    rows = rows.cast({"capture_path": pl.String}).group_by(pl.all()).len()
    assert sorted(rows.rows(), key=str) == sorted(expected, key=str)


GRAPH = 2 << 32


def replay(*kinds: str, graph: int = GRAPH) -> dict[str, pl.DataFrame]:
    """The activities of one replay of a graph."""
    rows = [(kind, graph + number) for number, kind in enumerate(kinds)]
    return {
        table: frame(
            [(900, 901, 1, 99, number) for kind, number in rows if kind == table],
            ["start_ns", "end_ns", "process_id", "correlation_id", "graph_node_id"],
        )
        for table in ("kernels", "memcpys", "memsets")
    }


def captured(*names: str, start: int = 10) -> list[tuple]:
    """The calls of a stream capture, one every 10 ns."""
    calls = ["cudaStreamBeginCapture_v10000", *names, "cudaStreamEndCapture_v10000"]
    return [(1, 1, start + 10 * i, start + 10 * i + 5, name, start + i) for i, name in enumerate(calls)]


LAUNCH, COPY, SET = "cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020", "cuMemsetD32Async"
LAYERS = nvtx(("a", 1, 15, 25), ("b", 1, 25, 45))


@pytest.mark.parametrize(
    ("calls", "ran", "paths"),
    [
        (captured(LAUNCH, SET, LAUNCH), ("kernels", "memsets", "kernels"), ["a", "b"]),
        (captured(LAUNCH, COPY), ("kernels", "memcpys"), ["a"]),
        (captured(LAUNCH, LAUNCH), ("kernels", "kernels"), ["a", "b"]),
        (captured(LAUNCH, LAUNCH, LAUNCH), ("kernels", "kernels"), [None, None]),  # counts differ
        (captured(SET, LAUNCH), ("kernels", "memsets"), [None]),  # the order differs
        (captured(LAUNCH, LAUNCH) + captured(LAUNCH, LAUNCH, start=200), ("kernels", "kernels"), [None, None]),
        (captured(LAUNCH, LAUNCH)[:-1], ("kernels", "kernels"), [None, None]),  # the capture never ends
    ],
)
def test_the_order_of_captured_calls_tells_layers_where_nodes_have_no_events(calls, ran, paths) -> None:
    tables = {"api_calls": frame(calls, CALL), "nvtx_ranges": LAYERS, **replay(*ran)}
    rows = compute(**tables)
    assert [path for _, path, _ in rows] == paths
    assert [confidence for *_, confidence in rows] == [INFERRED_CONFIDENCE if path else None for path in paths]


def test_a_graph_that_ran_before_a_capture_was_captured_earlier() -> None:
    calls = frame(captured(LAUNCH, LAUNCH, start=1000), CALL)
    layers = nvtx(("a", 1, 1005, 1015), ("b", 1, 1015, 1035))
    assert compute(api_calls=calls, nvtx_ranges=layers, **replay("kernels", "kernels")) == [(None, None, None)] * 2


def test_a_call_that_launched_at_once_was_not_captured() -> None:
    tables = replay("kernels", "kernels")
    calls = frame(captured(LAUNCH, LAUNCH, LAUNCH), CALL)
    launched = frame([(0, 1, 1, 12, None)], ["start_ns", "end_ns", "process_id", "correlation_id", "graph_node_id"])
    tables["kernels"] = pl.concat([tables["kernels"], launched], how="vertical_relaxed")
    assert [path for _, path, _ in compute(api_calls=calls, nvtx_ranges=LAYERS, **tables)] == ["a", "b", None]


def test_a_capture_with_events_of_nodes_belongs_to_another_graph() -> None:
    tables = {"api_calls": frame(captured(LAUNCH, LAUNCH), CALL), "nvtx_ranges": LAYERS, **replay("kernels", "kernels")}
    events = frame([(1, 1, 21, 7 << 32, None)], EVENT)
    assert [path for _, path, _ in compute(**tables, cuda_graph_node_events=events)] == [None, None]
    twins = replay("kernels", "kernels", graph=3 << 32)["kernels"]
    tables["kernels"] = pl.concat([tables["kernels"], twins])
    assert [path for _, path, _ in compute(**tables)] == [None] * 4


def test_copies_of_unrecorded_nodes_are_found_by_the_order_of_their_originals() -> None:
    tables = {"api_calls": frame(captured(LAUNCH, LAUNCH), CALL), "nvtx_ranges": LAYERS, **replay("kernels", "kernels")}
    swapped = frame([(1, 1, 99, GRAPH, (1 << 32) + 1), (1, 1, 99, GRAPH + 1, 1 << 32)], EVENT)
    assert [path for _, path, _ in compute(**tables, cuda_graph_node_events=swapped)] == ["b", "a"]


@pytest.mark.parametrize(("name", "count"), [("deep", 44), ("nested", 72), ("switch", 32)])
def test_nodes_of_child_graphs_and_of_branches_have_the_layer_that_their_kernels_name(name: str, count: int) -> None:
    """The kernel ``layer<N>`` belongs to ``layer N``, and so does ``same_kernel`` with 10 + N blocks."""
    with (
        tk.load(f"{FIXTURES}/{name}.nsys-rep") as trace,
        pytest.warns(tk.TracekitWarning) if name != "deep" else NOTHING,
    ):
        kernels = trace.correlate().frame("kernels").collect()
    name_of_kernel = pl.col("name").cast(pl.String)
    number = pl.coalesce(
        name_of_kernel.str.extract(r"^void layer<\(int\)(\d)>"),
        pl.when(name_of_kernel.str.starts_with("same_kernel")).then((pl.col("grid_x") - 10).cast(pl.String)),
    )
    path = pl.col("capture_path").cast(pl.String).str.extract(r"layer (\d)$")
    rows = kernels.select(number=number, path=path, confidence="capture_confidence")
    assert rows["path"].to_list() == rows["number"].to_list()
    assert rows["confidence"].to_list() == [1.0] * count


def test_numbers_of_nested_nodes_must_agree_with_those_of_other_nodes() -> None:
    events = [(1, 1, 5, (7 << 32) + n, (1 << 32) + n) for n in (0, 1)] + [(1, 1, 5, 8 << 32, 2 << 32)]
    calls = frame([(1, 1, 4, 6, "cudaGraphInstantiate_v12000", 1)], CALL)
    for last, numbers in (((1, 1, 5, (7 << 32) + 3, None), [(7 << 32) + 2]), ((1, 1, 5, (7 << 32) + 2, None), [])):
        nested = number_nested_nodes(frame([*events, last], EVENT), calls)
        assert nested["graph_node_id"].to_list() == numbers
