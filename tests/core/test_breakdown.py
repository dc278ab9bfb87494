"""The recipe ``gpu_time_breakdown`` against HolisticTraceAnalysis, against brute force, and at its edges."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
import tracekit as tk
from hypothesis import example, given
from hypothesis import strategies as st
from tests.builders.torch_ranks import write_ranks
from tests.core.test_recipes import outputs
from tests.core.test_reports import Row, call, kernel, nvtx
from tracekit.core.recipes.breakdown import KINDS

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
RECORDED = {
    0: (1406, 1109, 2721, 70.1),
    1: (1298, 1185, 2731, 67.36),
    2: (1333, 1161, 2750, 66.49),
    3: (1236, 1137, 2769, 55.28),
    4: (1410, 1213, 2749, 85.37),
    5: (1288, 1189, 2657, 79.63),
    6: (1463, 1115, 2736, 79.59),
    7: (1293, 1191, 2755, 66.34),
}
"""What HolisticTraceAnalysis 0.5.0 returns for the eight ranks with the last step: idle, computing and total time in
µs by ``get_temporal_breakdown``, and the percentage of communication that overlaps with computation."""
COMPLETE = {
    0: (855, 728, 1711, 72.48),
    1: (770, 762, 1730, 64.17),
    2: (823, 746, 1749, 63.73),
    3: (742, 730, 1768, 48.47),
    4: (826, 814, 1736, 80.25),
    5: (761, 798, 1683, 78.71),
    6: (895, 732, 1735, 78.69),
    7: (784, 816, 1754, 72.84),
}
"""The same without the last step, which is the default of HolisticTraceAnalysis."""
OVERLAPS = [
    ("computation", 6188, 55.5),
    ("computation + communication", 3022, 27.1),
    ("communication", 1283, 11.5),
    ("memory", 525, 4.7),
    ("computation + memory", 90, 0.8),
    ("communication + memory", 33, 0.3),
]
"""The kinds and times in µs of ``get_gpu_kernel_breakdown`` for all ranks."""
KERNELS_OF_RANK_3 = [
    ("gemm(float*, int)", 405, 87, 48, 13.63451502621197, 67.5),
    ("softmax_forward", 403, 82, 45, 14.579666205598352, 67.16666666666667),
    ("void add<float, 4>(float*)", 329, 77, 40, 14.579666205598352, 54.833333333333336),
    (f"{NCCL}(ncclDevKernelArgsStorage<4096ul>)", 738, 99, 51, 22.533308678487497, 82.0),
    ("[CUDA memcpy Host-to-Device]", 66, 11, 11, 0.0, 11.0),
    ("[CUDA memset]", 12, 2, 2, 0.0, 2.0),
]
"""The sum, maximum, minimum, deviation and mean in µs of each name by the same function, with our names of copies."""
IDLE = {
    (0, 7): {"host_wait": 1410, "kernel_wait": 68, "other": 122},
    (0, 13): {"host_wait": 2035},
    (0, 20): {"host_wait": 2341},
    (1, 7): {"host_wait": 1295, "kernel_wait": 75, "other": 161},
    (2, 7): {"host_wait": 1182, "kernel_wait": 107, "other": 273},
}
"""The times in µs of ``get_idle_time_breakdown`` by rank, stream and cause."""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> tk.TraceSet:
    return tk.load_many(write_ranks(tmp_path_factory.mktemp("ranks")))


@pytest.mark.parametrize(("steps", "expected"), [("recorded", RECORDED), ("all", RECORDED), ("complete", COMPLETE)])
def test_times_of_ranks_equal_those_of_hta(ranks: tk.TraceSet, steps: Any, expected: dict[int, Any]) -> None:
    rows = ranks.recipe("gpu_time_breakdown", steps=steps)["busy"].iter_rows(named=True)
    found = {
        r["rank"]: (r["idle_ns"] / 1e3, r["computation_ns"] / 1e3, r["total_ns"] / 1e3, r["overlap_percent"])
        for r in rows
    }
    assert found == expected


def test_kernels_and_idle_times_equal_those_of_hta(ranks: tk.TraceSet) -> None:
    tables = ranks.recipe("gpu_time_breakdown", kernel_name="full")
    assert [(k, t / 1e3, round(p, 1)) for k, t, p in tables["overlaps"].rows()] == OVERLAPS
    third = tables["activities"].filter(rank=3)
    assert third["count"].to_list() == [6, 6, 6, 9, 6, 6]
    names = ("sum_ns", "max_ns", "min_ns", "std_ns", "mean_ns")
    for row, (name, *expected) in zip(third.iter_rows(named=True), KERNELS_OF_RANK_3, strict=True):
        assert row["name"] == name
        assert [row[n] / 1e3 for n in names] == pytest.approx(expected, abs=1e-4)
    idle = tables["idle"]
    for (rank, stream), causes in IDLE.items():
        rows = idle.filter(rank=rank, stream_id=stream)
        assert dict(rows.select("cause", pl.col("idle_ns") / 1e3).rows()) == causes


def test_the_delay_decides_what_is_a_wait_for_a_kernel(ranks: tk.TraceSet) -> None:
    none = ranks.recipe("gpu_time_breakdown", delay=0)["idle"]
    assert set(none["cause"].cast(pl.String)) == {"host_wait", "other"}
    every = ranks.recipe("gpu_time_breakdown", delay=1_000_000)["idle"]
    assert set(every["cause"].cast(pl.String)) == {"host_wait", "kernel_wait"}
    assert none["idle_ns"].sum() == every["idle_ns"].sum()


EVENTS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 1), st.integers(0, 30), st.integers(0, 12)))


@given(EVENTS)
@example([("computation", 0, 0, 1), ("communication", 0, 0, 1)])
def test_times_equal_those_of_every_nanosecond(events: list[tuple[str, int, int, int]]) -> None:
    tables: dict[str, list[Row]] = {"kernels": [], "memsets": []}
    for kind, device, start, duration in events:
        row = kernel(start, start + duration, NCCL if kind == "communication" else "gemm", device_id=device)
        tables["memsets" if kind == "memory" else "kernels"].append(row)
    found = outputs("gpu_time_breakdown", tables)
    combined: dict[str, int] = {}
    for row in found["busy"].iter_rows(named=True):
        own = [(kind, start, start + d) for kind, device, start, d in events if device == row["device_id"]]
        times = range(min(s for _, s, _ in own), max(e for *_, e in own))
        running = [[kind for kind in KINDS if any(k == kind and s <= t < e for k, s, e in own)] for t in times]
        assert row["total_ns"] == len(times)
        assert row["idle_ns"] == sum(not kinds for kinds in running)
        assert row["overlap_ns"] == sum({"computation", "communication"} <= set(kinds) for kinds in running)
        for kind in KINDS:
            assert row[f"{kind}_ns"] == sum(kind in kinds for kinds in running)
        for kinds in filter(None, running):
            combined[" + ".join(kinds)] = combined.get(" + ".join(kinds), 0) + 1
    assert found["busy"]["device_id"].to_list() == sorted({device for _, device, *_ in events})
    assert dict(found["overlaps"].select("kinds", "time_ns").rows()) == combined
    assert found["activities"]["count"].sum() == len(events)


def test_whole_graphs_and_launches_that_were_not_recorded() -> None:
    graph = {"start_ns": 50, "end_ns": 80, "process_id": 7, "correlation_id": 2}
    tables = {"kernels": [kernel(0, 10)], "graph_launches": [graph], "api_calls": [call(20, 25, correlation_id=2)]}
    found = outputs("gpu_time_breakdown", tables)
    assert found["busy"].select("total_ns", "computation_ns", "idle_ns", "overlap_percent").row(0) == (80, 40, 40, None)
    assert found["activities"].select("kind", "name").rows() == [("computation", "CUDA graph"), ("computation", "k")]
    assert found["idle"].select("cause", "count", "idle_ns", "median_ns").rows() == [("host_wait", 1, 40, 40.0)]
    unknown = outputs("gpu_time_breakdown", {**tables, "api_calls": []}, delay=0)["idle"]
    assert unknown.select("cause", "idle_ns").rows() == [("other", 40)]


def test_kernels_of_a_stream_that_overlap_are_not_idle() -> None:
    kernels = [kernel(0, 100), kernel(10, 20), kernel(130, 140)]
    idle = outputs("gpu_time_breakdown", {"kernels": kernels}, delay=0)["idle"]
    assert idle.select("count", "idle_ns", "percent").rows() == [(1, 30, 100.0)]


@pytest.mark.parametrize("unknown", [{1}, {0, 2}, {0, 1, 2}])
def test_activities_without_a_process_are_on_the_same_stream(unknown: set[int]) -> None:
    """Traces of PyTorch may state the process of only some activities of a stream."""
    stream = {"device_id": 0, "context_id": 1, "stream_id": 7}
    kernels = [
        kernel(start, start + 10, **stream, correlation_id=n, **({"process_id": None} if n in unknown else {}))
        for n, start in enumerate((0, 20, 50))
    ]
    calls = [call(start, start + 1, correlation_id=n) for n, start in enumerate((0, 1, 2))]
    found = outputs("gpu_time_breakdown", {"kernels": kernels, "api_calls": calls}, delay=0)
    assert found["busy"].select("total_ns", "computation_ns", "idle_ns").rows() == [(60, 30, 30)]
    assert found["idle"].select("stream_id", "count", "idle_ns").rows() == [(7, 2, 30)]


def test_one_step_leaves_nothing_out() -> None:
    steps = [nvtx(0, 10, "ProfilerStep#1"), nvtx(10, None, "ProfilerStep#2")]
    kernels = [kernel(t, t + 1, correlation_id=t) for t in (5, 15)]
    calls = [call(t - 1, t, correlation_id=t) for t in (5, 15)]

    def count(ranges: list[Row], option: str) -> int:
        tables = {"kernels": kernels, "api_calls": calls, "nvtx_ranges": ranges}
        return int(outputs("gpu_time_breakdown", tables, steps=option)["activities"]["count"].sum())

    assert [count(steps, option) for option in ("all", "recorded", "complete")] == [2, 1, 1]
    assert [count(steps[:1], option) for option in ("all", "recorded", "complete")] == [2, 2, 2]


def test_names_of_nccl_kernels_that_are_mangled() -> None:
    row = kernel(0, 10, NCCL, mangled_name=f"_Z{len(NCCL)}{NCCL}v")
    busy = outputs("gpu_time_breakdown", {"kernels": [row]}, kernel_name="mangled")["busy"]
    assert busy.select("communication_ns", "computation_ns").row(0) == (10, 0)
