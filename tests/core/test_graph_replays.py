"""The kernels of replays and of recorded steps, and a replay whose nodes prove the layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest
import tracekit as tk
from tests.builders.frames import declared, nvtx
from tracekit.core.correlate import Correlation
from tracekit.core.graph_replays import OUTSIDE, WHOLE, list_recorded_kernels, list_replayed_kernels
from tracekit.core.layers.alignment import align_replays
from tracekit.core.relations import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Callable

ADDED = ["api_call_id", "api_start_ns", "range_id", "range_path", "capture_path", "capture_range_id"]
TIMES = ["start_ns", "end_ns", "process_id"]
CALL = ["api_call_id", *TIMES, "thread_id", "correlation_id", "name"]
KERNEL = [*TIMES, "device_id", "stream_id", "correlation_id", "name", "graph_node_id"]


def correlated(**tables: pl.DataFrame) -> Callable[[str], pl.LazyFrame]:
    base = declared(**tables)
    correlation = Correlation(base)

    def frame(name: str) -> pl.LazyFrame:
        if name not in OPERATIONS:
            return base(name)
        return pl.concat([base(name), correlation.compute_columns(name, ADDED).select(ADDED).lazy()], how="horizontal")

    return frame


def calls(*rows: tuple[int, int, str]) -> pl.DataFrame:
    """API calls: start, correlation id, name."""
    return pl.DataFrame([(i, s, s + 1, 1, 1, c, n) for i, (s, c, n) in enumerate(rows, 1)], CALL, orient="row")


def kernels(*rows: tuple[int, int, int, str, int | None]) -> pl.DataFrame:
    """Kernels: start, stream, correlation id, name, node."""
    return pl.DataFrame([(s, s + 1, 1, 0, *r) for s, *r in rows], KERNEL, orient="row")


def node(graph: int, number: int) -> int:
    return (graph << 32) + number


def test_layers_of_a_recorded_capture() -> None:
    """The eager run tells the same layers as the recorded nodes of the graph."""
    inside, eager = (tk.load(f"fixtures/layers/layers_{mode}.nsys-rep").correlate() for mode in ("inside", "eager"))
    replayed, recorded = list_replayed_kernels(inside.frame), list_recorded_kernels(eager.frame)
    result = align_replays(replayed, recorded)
    paths = [inside.frame(t).select(pl.col("capture_path").cast(pl.String)).collect().to_series() for t in OPERATIONS]
    truth = [paths[OPERATIONS.index(t)][i].split("/", 1)[1] for t, i in replayed.select("table", "table_row").rows()]
    layer = recorded["path"].cast(pl.String).gather(result.kernels["recorded_row"]).str.splitn("/", 2).struct[1]
    assert (replayed.height, layer.to_list()) == (528, truth)
    assert result.kernels["confidence"].min() > 0.999
    assert recorded["sequence_name"].unique(maintain_order=True).to_list() == [f"step {i}" for i in range(8)]
    itself = list_recorded_kernels(inside.frame)
    assert itself["sequence_name"].unique().to_list().count("the capture of graph 2") == 1
    again = align_replays(replayed, itself)
    assert itself["path"].gather(again.kernels["recorded_row"]).cast(pl.String).str.slice(8).to_list() == truth


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
