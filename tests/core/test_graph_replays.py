"""The kernels of replays and of recorded steps, and a replay whose nodes prove the layers."""

from __future__ import annotations

import polars as pl
import pytest
import tracekit as tk
from tests.builders.frames import declared, nvtx
from tracekit.core.correlate import Correlation
from tracekit.core.graph_replays import OUTSIDE, WHOLE, align_captures, list_recorded_kernels, list_replayed_kernels
from tracekit.core.layers.nodes import INFERRED_CONFIDENCE
from tracekit.core.relations import OPERATIONS
from tracekit.core.reports.replays import graph_alignment
from tracekit.core.reports.report import Request

TIMES = ["start_ns", "end_ns", "process_id"]
CALL = ["api_call_id", *TIMES, "thread_id", "correlation_id", "name"]
KERNEL = [*TIMES, "device_id", "stream_id", "correlation_id", "name", "graph_node_id"]


def correlated(**tables: pl.DataFrame) -> Correlation:
    return Correlation(declared(**tables))


def calls(*rows: tuple[int, int, str]) -> pl.DataFrame:
    """API calls: start, correlation id, name."""
    return pl.DataFrame([(i, s, s + 1, 1, 1, c, n) for i, (s, c, n) in enumerate(rows, 1)], CALL, orient="row")


def kernels(*rows: tuple[int, int, int, str, int | None]) -> pl.DataFrame:
    """Kernels: start, stream, correlation id, name, node."""
    return pl.DataFrame([(s, s + 1, 1, 0, *r) for s, *r in rows], KERNEL, orient="row")


def node(graph: int, number: int) -> int:
    return (graph << 32) + number


def test_layers_of_a_recorded_capture() -> None:
    """The eager run tells the same layers as the recorded nodes of the graph, and so does the capture itself."""
    inside, eager = (tk.load(f"fixtures/layers/layers_{mode}.nsys-rep") for mode in ("inside", "eager"))
    captures = [Correlation(trace.frame) for trace in (inside, eager)]
    for recorded, name in ((captures[1], "step 4"), (captures[0], "the capture of graph 2")):
        result = align_captures(captures[0], recorded)
        assert result.graphs.select("kernels", "matched", "sequence_name").cast(pl.String).rows() == [
            ("528", "528", name)
        ]
        paths = list_recorded_kernels(recorded).select("table", "table_row", pl.col("path").cast(pl.String))
        count = 0
        for table in OPERATIONS:
            proof = captures[0].compute_columns(table, ["capture_path"])["capture_path"].cast(pl.String)
            rows = result.activities[table].with_columns(truth=proof).drop_nulls("truth")
            aligned = rows.join(paths, left_on=["recorded_table", "recorded_row"], right_on=["table", "table_row"])
            layers = aligned.select(pl.col("path", "truth").str.replace(r"^.*?/", ""))
            assert layers["path"].to_list() == layers["truth"].to_list()
            assert (rows["confidence"] > 0.999).all()
            count += aligned.height
        assert count == 528


def test_replays() -> None:
    frames = correlated(
        api_calls=calls((0, 1, "cudaLaunchKernel"), (10, 2, "cudaGraphLaunch_v10000"), (20, 3, "cudaGraphLaunch")),
        kernels=kernels(
            (1, 7, 1, "eager", 0),
            *((22, 7, 3, "b", node(4, 1)), (21, 8, 3, "c", node(4, 2)), (23, 7, 3, "a", node(4, 0))),
            *((12, 7, 2, "y", node(5, 0)), (11, 7, 2, "x", node(5, 1)), (13, 7, 0, "body", node(5, 2))),
        ),
        memsets=kernels((14, 7, 2, "", node(5, 3))).drop("name").with_columns(bytes=4),
    )
    rows = list_replayed_kernels(frames)
    assert rows["name"].cast(pl.String).to_list() == ["x", "y", "[memset]", "a", "b", "c"]
    assert rows["replay"].to_list() == [0, 0, 0, 1, 1, 1]
    assert rows["graph"].to_list() == [5, 5, 5, 4, 4, 4]
    assert rows["table_row"].to_list() == [5, 4, 0, 3, 1, 2]
    assert rows["grid_x"].to_list() == [None, None, 4, None, None, None]
    assert rows["step"].null_count() == 6


@pytest.mark.parametrize("in_steps", [True, False])
def test_replays_without_ids_of_graphs(in_steps: bool) -> None:
    rows = list_replayed_kernels(
        correlated(
            api_calls=calls(*((10 * i, i, "hipGraphLaunch") for i in range(1, 5))),
            kernels=kernels(*((10 * i + 2, 7, i, "k", None) for i in range(1, 5))),
            nvtx_ranges=nvtx(*((f"step {i}", 1, 20 * i + 5, 20 * i + 23) for i in range(2 * in_steps))),
        )
    )
    assert rows["replay"].to_list() == [0, 1, 2, 3]
    assert rows["graph"].null_count() == 4
    assert rows["step"].to_list() == ([0, 0, 1, 1] if in_steps else [0] * 4)


def test_recorded_sequences() -> None:
    starts = [1, 10, 12, 20, 22]
    frames = correlated(
        api_calls=calls(*((s, i, "cudaLaunchKernel") for i, s in enumerate(starts, 1)), (50, 9, "cudaGraphLaunch")),
        kernels=kernels(*((s + 3, 7, i, "abcde"[i - 1], None) for i, s in enumerate(starts, 1)), (51, 7, 9, "r", None)),
        nvtx_ranges=nvtx(("step 0", 1, 9, 15), ("layer", 1, 12, 14), ("step 1", 1, 19, 25)),
    )
    rows = list_recorded_kernels(frames).select("sequence", "sequence_name", "path", "name")
    assert rows.cast(dict.fromkeys(rows.columns[1:], pl.String)).rows() == [
        (0, OUTSIDE, None, "a"),
        (1, "step 0", "step 0", "b"),
        (1, "step 0", "step 0/layer", "c"),
        (2, "step 1", "step 1", "d"),
        (2, "step 1", "step 1", "e"),
    ]
    whole = list_recorded_kernels(
        correlated(api_calls=calls((1, 1, "cuLaunchKernel")), kernels=kernels((2, 7, 1, "k", 0)))
    )
    assert whole["sequence_name"].to_list() == [WHOLE]
    assert list_recorded_kernels(correlated()).height == list_replayed_kernels(correlated()).height == 0


def test_report_of_graphs() -> None:
    """The layers of one graph are known, those of another are aligned in part, and those of the third are not known."""
    frames = declared(
        api_calls=calls(*((10 * i, i, "cudaGraphLaunch") for i in range(1, 6))),
        kernels=kernels(*((10 * i + 2, 7, i, "abbcd"[i - 1], node(1 + i // 2, i)) for i in range(1, 6))),
    )
    known = pl.DataFrame(
        {"capture_path": ["c/x", "step 3/y", None, None, None], "capture_confidence": [1.0, 0.9, 0.3, None, None]},
        schema_overrides={"capture_path": pl.Categorical},
    )
    rows = graph_alignment(
        Request(lambda t: pl.concat([frames(t), known.lazy()], how="horizontal") if t == "kernels" else frames(t))
    )
    columns = ["graph", "replays", "kernels", "matched", "abstained", "matched_share", "confidence", "layers"]
    assert sorted(rows.select(columns).rows()) == [
        (1, 1, 1, 1, 0, 100.0, 1.0, 1),
        (2, 2, 1, 1, 1, 50.0, 0.6, 1),
        (3, 1, 1, 0, 1, 0.0, None, 0),
        (3, 1, 1, 0, 1, 0.0, None, 0),
    ]
    recorded = graph_alignment(Request(tk.load("fixtures/layers/layers_inside.nsys-rep").frame))
    assert recorded.select("kernels", "replays", "matched", "confidence", "layers").rows() == [(66, 8, 528, 1.0, 12)]


def test_replays_of_a_captured_stream_without_ids_of_nodes() -> None:
    """The n-th kernel of a replay belongs to the n-th call of the capture that launched nothing at once."""
    captured = ((20, 1, "cudaStreamBeginCapture"), *((20 + i, 1 + i, "cudaLaunchKernel") for i in (2, 4, 6)))
    capture = correlated(
        api_calls=calls(
            *captured, (28, 9, "cudaStreamEndCapture"), *((30 + i, 30 + i, "cudaGraphLaunch") for i in (0, 5))
        ),
        kernels=kernels(*((s + i, 7, s, "abc"[i], 0) for s in (30, 35) for i in (0, 2, 1)), (50, 7, 99, "other", None)),
        nvtx_ranges=nvtx(("layer 0", 1, 21, 25), ("layer 1", 1, 25, 27)),
    )
    paths = capture.compute_columns("kernels", ["capture_path", "capture_confidence"])
    layers = ["layer 0", "layer 1", "layer 0"]
    assert paths["capture_path"].cast(pl.String).to_list() == [*layers, *layers, None]
    assert paths["capture_confidence"].to_list() == [INFERRED_CONFIDENCE] * 6 + [None]


@pytest.mark.parametrize(
    ("replays", "direct", "is_known"),
    [
        ((("a", 1), ("a", 1)), None, True),
        ((("a", 1), ("b", 1)), None, False),  # two graphs, one capture
        ((("a", 1), ("a", 2)), None, False),  # the names are equal, but the launch shapes are not
        ((("a", 1), ("a", 1)), "cudaLaunchKernel", True),
        ((("a", 1), ("a", 1)), "cuLaunchKernelEx", False),  # the captured call launched another kernel
    ],
)
def test_captures_and_replays_without_ids_must_fit_one_to_one(replays, direct, is_known) -> None:
    captured = ((20, 1, "cudaStreamBeginCapture"), (22, 2, "cudaLaunchKernel"), (24, 3, "cudaStreamEndCapture"))
    launches = [(10, 5, direct)] if direct else []
    rows = [(40 + 5 * i, 7, 30 + 5 * i, name, None) for i, (name, _) in enumerate(replays)]
    ran = kernels(*rows, *((12, 7, 5, "a", None) for _ in launches))
    capture = correlated(
        api_calls=calls(*launches, *captured, (30, 30, "cudaGraphLaunch"), (35, 35, "cudaGraphLaunch")),
        kernels=ran.with_columns(grid_x=pl.Series([*(grid for _, grid in replays), *(1 for _ in launches)])),
        nvtx_ranges=nvtx(("layer 0", 1, 21, 25)),
    )
    paths = capture.compute_columns("kernels", ["capture_path", "capture_confidence"])[:2]
    assert paths["capture_path"].cast(pl.String).to_list() == [*(["layer 0"] * 2 if is_known else [None] * 2)]
    assert paths["capture_confidence"].to_list() == [INFERRED_CONFIDENCE if is_known else None] * 2
