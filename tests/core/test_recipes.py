"""Recipes on made tables: exact statistics against brute force, and what each recipe returns."""

from __future__ import annotations

import statistics as py
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.test_reports import Row, call, frames, kernel, nvtx
from tracekit.core import intervals
from tracekit.core.intervals import CoveredTime
from tracekit.core.recipes import Clock, Request, load_recipe
from tracekit.core.recipes.statistics import STATISTICS, compute_statistics_from_counts, count_values, sum_counts
from tracekit.core.relations import fill_process_ids
from tracekit.errors import UnknownFormatError
from tracekit.registry.analyses import RECIPE, get_analysis, list_names

Tables = dict[str, pl.DataFrame]
NAMED = {"cuda_gpu_kern_pace", "nvtx_pace", "nvtx_gpu_proj_pace"}
INTEGERS = st.integers(0, 2**40)


def outputs(
    recipe_name: str, *ranks: dict[str, list[Row]], clocks: list[Clock] | None = None, **options: Any
) -> Tables:
    """Run a recipe over ranks of made tables."""
    recipe, values = load_recipe(recipe_name), get_analysis(recipe_name, RECIPE).resolve_options(options)
    times = clocks or [Clock(0, 100, 100)] * len(ranks)
    requests = [Request(frames(**tables), values, clock=clock) for tables, clock in zip(ranks, times, strict=True)]
    merged = recipe.merge_ranks([recipe.add_rank_column(recipe.per_rank(r), rank) for rank, r in enumerate(requests)])
    return recipe.combine(merged)


def quartile(values: list[int], quarter: int) -> float:
    return float(np.percentile(np.array(values, np.float64), 25 * quarter))


def brute_force(values: list[int]) -> dict[str, float | None]:
    return {
        "Count": len(values),
        "Mean": round(py.fmean(values), 1),
        "Std": round(py.stdev(values), 1) if len(values) > 1 else None,
        "Min": min(values),
        "Q1": round(quartile(values, 1), 1),
        "Median": round(quartile(values, 2), 1),
        "Q3": round(quartile(values, 3), 1),
        "Max": max(values),
        "Sum": sum(values),
    }


@given(st.lists(st.dictionaries(st.sampled_from("ab"), st.lists(INTEGERS, min_size=1, max_size=9)), min_size=1))
def test_statistics_over_ranks_equal_those_of_all_values(ranks: list[dict[str, list[int]]]) -> None:
    empty = pl.LazyFrame(schema={"name": pl.String, "value": pl.Int64})
    rows = [pl.LazyFrame({"name": [n] * len(v), "value": v}) for rank in ranks for n, v in rank.items()]
    counts = sum_counts(pl.concat([count_values(r, ["name"]) for r in (empty, *rows)]))
    described = {r["name"]: r for r in compute_statistics_from_counts(counts, ["name"]).iter_rows(named=True)}
    every = {n: [x for rank in ranks for x in rank.get(n, [])] for n in "ab"}
    assert list(described) == [n for n, values in every.items() if values]
    for name, row in described.items():
        expected = brute_force(every[name])
        assert {k: row[k] for k in ("Count", "Min", "Max", "Sum")} == {
            k: expected[k] for k in ("Count", "Min", "Max", "Sum")
        }
        for key in ("Mean", "Std", "Q1", "Median", "Q3"):
            assert row[key] == (None if expected[key] is None else pytest.approx(expected[key], abs=0.11, rel=1e-12))


def test_sums_of_bytes_that_exceed_the_type_are_null() -> None:
    counts = pl.DataFrame({"name": ["a"], "value": [2**63], "count": [2]}, schema_overrides={"value": pl.UInt64})
    row = compute_statistics_from_counts(counts, ["name"]).row(0, named=True)
    assert (row["Count"], row["Max"], row["Sum"]) == (2, 2**63, None)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20))), st.integers(1, 3))
def test_covered_time(pairs: list[tuple[int, int]], depth: int) -> None:
    intervals = pl.DataFrame(pairs, schema={"start_ns": pl.Int64, "end_ns": pl.Int64}, orient="row")
    running = [sum(a <= t < b for a, b in pairs) >= depth for t in range(25)]
    times = np.arange(-3, 25)
    expected = [sum(running[: max(t, 0)]) for t in times]
    covered = CoveredTime(intervals, depth)
    assert covered.compute_covered_time_before(times).tolist() == expected
    assert covered.compute_covered_time_between(times[:-1], times[1:]).sum() == expected[-1]


@pytest.mark.parametrize("name", list_names(RECIPE))
def test_nothing_recorded(name: str) -> None:
    options = {"name": "x"} if name in NAMED else {}
    recipe = get_analysis(name, RECIPE)
    tables = outputs(name, {}, {}, **options)
    assert set(tables) == {o.name for o in recipe.results}
    assert recipe.doc.endswith(".")
    for output in recipe.results:
        table = tables[output.name]
        assert table.columns[table.width - len(output.key) :] == list(output.key)
        assert table.is_empty() or output.name in {"clocks", "steps"}


def api(start: int, end: int, name: str, **more: Any) -> Row:
    return call(start, end, name, **more)


def test_sums_by_rank_and_over_ranks() -> None:
    one = {"api_calls": [api(0, 10, "a"), api(0, 20, "b"), api(5, 9, "a")]}
    two = {"api_calls": [api(0, 1, "a")]}
    tables = outputs("cuda_api_sum", one, two)
    assert tables["rank_stats"].select("Count", "Mean", "Std", "Rank", "Name").rows() == [
        (2, 7.0, 4.2, 0, "a"),
        (1, 20.0, None, 0, "b"),
        (1, 1.0, None, 1, "a"),
    ]
    assert tables["all_stats"].rows(named=True)[0] == {**brute_force([10, 4, 1]), "Name": "a"}


def test_devices_of_a_rank_are_separate_and_together() -> None:
    rows = [kernel(0, 4, "full<int>", short_name="k", device_id=d) for d in (0, 1, 1)]
    tables = outputs("cuda_gpu_kern_sum", {"kernels": rows})
    assert tables["rank_stats"].select("Count", "Name").rows() == [(3, "k")]
    by_device = tables["rank_stats_by_device"]
    assert by_device.select("Count", "Rank", "Name", "Device ID").rows() == [(1, 0, "k", 0), (2, 0, "k", 1)]
    assert by_device.schema["Device ID"] == pl.UInt32
    full = outputs("cuda_gpu_kern_sum", {"kernels": rows}, kernel_name="full")
    assert full["all_stats"]["Name"].to_list() == ["full<int>"]


def test_parts_of_the_time_of_gpus() -> None:
    """Kernels of NCCL overlap with others from 5 to 10, and run alone until 20, when copies run alone until 25."""
    kernels = [kernel(0, 10, device_id=0), kernel(5, 20, "ncclKernel", device_id=0), kernel(2, 4, device_id=1)]
    copies = [{"start_ns": 18, "end_ns": 25, "device_id": 0, "copy_kind": "Host-to-Device"}]
    graphs = [{"start_ns": 1, "end_ns": 9, "device_id": 0}]
    ranks: list[dict[str, list[Row]]] = [{"kernels": kernels, "memcpys": copies}, {"graph_launches": graphs}]
    rows = outputs("gpu_time_sum", *ranks)["gpu_time"]
    columns = ["rank", "device_id", "kernel_count", "kernel_time_ns", "total_ns", "utilization_percent"]
    parts = ["compute_ns", "hidden_ns", "exposed_ns", "memory_ns", "idle_ns"]
    assert rows.columns == columns + parts
    assert rows.rows() == [
        (0, 0, 2, 25, 25, 80.0, 5, 5, 10, 5, 0),
        (0, 1, 1, 2, 2, 100.0, 2, 0, 0, 0, 0),
        (1, 0, 1, 8, 8, 100.0, 8, 0, 0, 0, 0),
    ]


def test_all_recipes_agree_about_the_idle_time_of_a_gpu() -> None:
    """A GPU is idle between its first and its last activity, whatever the other GPUs of the rank do."""
    kernels = [kernel(at, at + 10, device_id=d) for d, times in ((0, (0, 30, 90)), (1, (40, 70))) for at in times]
    rows = outputs("gpu_time_sum", {"kernels": kernels})["gpu_time"]
    busy = outputs("gpu_time_breakdown", {"kernels": kernels})["busy"]
    for name in ("device_id", "total_ns", "idle_ns"):
        assert rows[name].to_list() == busy[name].to_list()
    gaps = intervals.find_gaps(pl.DataFrame(kernels).select("device_id", "start_ns", "end_ns"), by=["device_id"])
    sums = gaps.group_by("device_id").agg((pl.col("end_ns") - pl.col("start_ns")).sum()).sort("device_id")
    assert rows["idle_ns"].to_list() == sums["end_ns"].to_list() == [70, 20]


PROCESSES = st.sampled_from([None, None, 1, 2])
STREAMS = st.sampled_from([0, 1, None])


@given(st.lists(st.tuples(PROCESSES, st.integers(0, 1), st.integers(0, 1), STREAMS), max_size=12))
def test_missing_process_ids_are_those_of_the_stream(rows: list[tuple[int | None, int, int, int | None]]) -> None:
    columns = ["process_id", "device_id", "context_id", "stream_id"]
    found = fill_process_ids(pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.Int64), orient="row"))
    expected = list(rows)
    for width in (4, 3, 2):
        owners = {
            place: {r[0] for r in expected if r[1:width] == place and None not in place} - {None}
            for place in {r[1:width] for r in expected}
        }
        expected = [
            (next(iter(owners[r[1:width]])), *r[1:]) if r[0] is None and len(owners[r[1:width]]) == 1 else r
            for r in expected
        ]
    assert found.rows() == expected


@pytest.mark.parametrize("known", [7, None])
def test_a_stream_is_one_stream_if_the_process_of_some_activities_is_unknown(known: int | None) -> None:
    """The API calls of the first kernels were made before the capture began."""
    times = [(0, 10), (15, 20), (50, 60), (100, 110)]
    processes = [None, None, known, known]
    kernels = [
        kernel(*t, process_id=p, device_id=0, context_id=1, stream_id=7) for t, p in zip(times, processes, strict=True)
    ]
    kernels.append(kernel(0, 5, "ncclDevKernel_AllReduce", process_id=known, device_id=0, context_id=1, stream_id=20))
    tables = outputs("gpu_time_breakdown", {"kernels": kernels})
    found = tables["idle"].filter(stream_id=7).group_by("process_id").agg(pl.col("count", "idle_ns").sum()).rows()
    assert found == [(known, 3, 75)]
    overlap = outputs("nccl_gpu_overlap_trace", {"kernels": kernels})["rank_trace"]
    nccl = overlap.filter(pl.col("Name").str.starts_with("nccl"))
    assert nccl["Compute Overlap"].to_list() == [100.0]
    assert overlap["PID"].unique().to_list() == [known]


def test_memory_operations_have_the_names_of_nsys() -> None:
    copies = [
        {"start_ns": 0, "end_ns": 8, "bytes": 5, "device_id": 0, "copy_kind": kind}
        for kind in ("Device-to-Host", "Unified Host-to-Device", "New-Kind", None)
    ]
    sets = [{"start_ns": 0, "end_ns": 2, "bytes": 7, "device_id": 0}]
    names = ["CUDA_MEMCPY_KIND_DTOH", "CUDA_MEMCPY_KIND_New-Kind", "CUDA_MEMCPY_KIND_UVM_HTOD", "CUDA_MEMSET"]
    for name, total in (("cuda_gpu_mem_time_sum", 2), ("cuda_gpu_mem_size_sum", 7)):
        table = outputs(name, {"memcpys": copies, "memsets": sets})["all_stats"]
        assert table["Name"].to_list() == names
        assert table["Sum"].to_list()[-1] == total
    assert table.schema["Sum"] == pl.UInt64


def launch(start: int, gpu: tuple[int, int], correlation: int) -> tuple[Row, Row]:
    return (
        api(start, start + 1, "cudaLaunchKernel", correlation_id=correlation),
        kernel(*gpu, correlation_id=correlation),
    )


LAUNCHES = [launch(1, (30, 40), 1), launch(3, (45, 50), 2), launch(12, (60, 61), 3)]
RANGES = [
    nvtx(0, 10, "outer", range_id=1),
    nvtx(2, 5, "inner", range_id=2, domain="NCCL"),
    nvtx(11, 20, "outer", range_id=3),
    nvtx(21, None, "open", range_id=4),
]
PROJECTED = {"api_calls": [c for c, _ in LAUNCHES], "kernels": [k for _, k in LAUNCHES], "nvtx_ranges": RANGES}


def test_sums_of_ranges() -> None:
    tables = outputs("nvtx_sum", PROJECTED)
    assert tables["all_stats"].select("Text", "Count", "Sum").rows() == [("inner", 1, 3.0), ("outer", 2, 19.0)]
    assert outputs("nccl_sum", PROJECTED)["all_stats"]["Text"].to_list() == ["inner"]
    projected = outputs("nvtx_gpu_proj_sum", PROJECTED, PROJECTED)
    columns = ("Text", "Count", "Sum", "Sum of NVTX Ranges on CPU")
    assert projected["all_stats"].select(columns).rows() == [("inner", 2, 10, 6.0), ("outer", 4, 42, 38.0)]
    assert projected["rank_stats"].select(*columns, "Rank").rows()[1] == ("outer", 2, 21, 19.0, 0)
    assert outputs("nccl_gpu_proj_sum", PROJECTED)["rank_stats"].select("Text", "Sum").rows() == [("inner", 5)]


def test_projected_ranges_are_numbered_by_rank() -> None:
    trace = outputs("nvtx_gpu_proj_trace", PROJECTED, PROJECTED)["trace"]
    columns = ("Text", "Start", "End", "Stack Level", "Children Count", "Range ID", "Parent ID", "Range Stack", "Rank")
    rows = trace.select(columns).rows()
    assert rows[:3] == [
        ("outer", 30, 50, 0, 1, 0, None, [0], 0),
        ("inner", 45, 50, 1, 0, 1, 0, [0, 1], 0),
        ("outer", 60, 61, 0, 0, 2, None, [2], 0),
    ]
    assert [r[:-1] for r in rows[3:]] == [r[:-1] for r in rows[:3]]
    assert trace["__index_level_0__"].to_list() == [0, 1, 2] * 2


def test_pace() -> None:
    two = {"nvtx_ranges": [nvtx(5, 6, "outer", range_id=1)]}
    clocks = [Clock(100, 50, 150), Clock(0, 50, 150)]
    tables = outputs("nvtx_pace", PROJECTED, two, {}, clocks=[*clocks, Clock()], name="outer")
    assert tables["pace_start"].rows() == [(100, 5, None), (111, None, None)]
    assert tables["pace_end"].rows() == [(110.0, 6.0, None), (120.0, None, None)]
    assert tables["pace_duration_accum"].rows() == [(10.0, 1.0, None), (19.0, None, None)]
    assert tables["pace_delta"].rows() == [(0.0, 5.0, None), (1.0, None, None)]
    assert tables["pace_delta_accum"].columns == ["0", "1", "2"]
    assert tables["stats"].select("Count", "Sum", "Text").rows() == [(3, 20.0, "outer")]
    stats = tables["pace_delta_stats"].rows(named=True)
    assert (stats[0]["Mean"], stats[0]["Q1"], stats[1]["Std"]) == (2.5, 1.25, None)
    projected = outputs("nvtx_gpu_proj_pace", PROJECTED, name="outer", clocks=[Clock(7, 50, 57)])
    assert projected["pace_start"].rows() == [(37,), (67,)]
    kernels = outputs("cuda_gpu_kern_pace", PROJECTED, name="k")
    assert kernels["pace_duration"].rows() == [(10,), (5,), (1,)]
    assert kernels["stats"].columns[-1] == "Shortname"


def test_durations_for_histograms() -> None:
    table = outputs("cuda_gpu_kern_hist", PROJECTED, PROJECTED)["analysis"]
    assert table.select("Duration", "Name", "Rank", "__index_level_0__").rows()[2:4] == [
        (1, "k", 0, 2),
        (10, "k", 1, 0),
    ]


KERNELS = [
    kernel(0, 10, "ncclDevKernel_AllReduce", device_id=0),
    kernel(5, 25, "gemm", device_id=0),
    kernel(20, 30, "ncclDevKernel_AllReduce", device_id=0),
    kernel(28, 32, "ncclDevKernel_Send", device_id=0),
    kernel(0, 40, "gemm", device_id=1),
    kernel(7, 7, "empty", device_id=0),
]


def test_overlaps_of_kernels() -> None:
    tables = outputs("nccl_gpu_overlap_trace", {"kernels": KERNELS})
    columns = ("Name", "Start", "Communication Overlap", "Compute Overlap")
    assert tables["rank_trace"].select(columns).rows() == [
        ("ncclDevKernel_AllReduce", 0, 0.0, 50.0),
        ("ncclDevKernel_AllReduce", 20, 20.0, 50.0),
        ("ncclDevKernel_Send", 28, 50.0, 0.0),
        ("gemm", 5, 50.0, 0.0),
        ("empty", 7, 0.0, 0.0),
        ("gemm", 0, 0.0, 0.0),
    ]
    assert tables["grouped_trace"].rows() == [
        (1, 0.0, 0.0, "empty"),
        (2, 16.7, 0.0, "gemm"),
        (2, 10.0, 50.0, "ncclDevKernel_AllReduce"),
        (1, 50.0, 0.0, "ncclDevKernel_Send"),
    ]


def test_maps_of_utilization() -> None:
    clock = Clock(10, 35, 50)  # the capture covers half of the second bin and all but the last 5 ns of the last one
    tables = {"kernels": KERNELS}
    clocks = [clock, Clock(0, 10, 50)]
    both = outputs("nccl_gpu_time_util_map", tables, {"kernels": KERNELS[:1]}, clocks=clocks, bins=5)["analysis"]
    assert both.columns == [
        "Duration",
        "All",
        "NCCL",
        "Compute",
        "Overlap",
        "PID",
        "Device ID",
        "Rank",
        "__index_level_0__",
    ]
    table = both.filter(Rank=0)
    of_device = table.filter(pl.col("Device ID") == 0)
    assert of_device.select(table.columns[:5]).rows() == [
        (0, None, None, None, None),
        (10, 100.0, 100.0, 50.0, 50.0),
        (20, 100.0, 0.0, 100.0, 0.0),
        (30, 100.0, 100.0, 50.0, 50.0),
        (40, 40.0, 40.0, 0.0, 0.0),
    ]
    assert table["__index_level_0__"].to_list() == list(range(10))
    one = outputs("cuda_gpu_time_util_map", tables, clocks=[clock], bins=5)["analysis"]
    assert one["Kernel"].to_list() == table["All"].to_list()


@pytest.mark.parametrize(("name", "table", "title"), [("mpi", "mpi_calls", "MPI"), ("ucx", "ucx_calls", "UCX")])
def test_maps_of_calls(name: str, table: str, title: str) -> None:
    calls = [{"start_ns": 0, "end_ns": 25, "process_id": 7}, {"start_ns": 90, "end_ns": None, "process_id": 7}]
    rows = {table: calls, "kernels": [kernel(20, 60)]}
    mapped = outputs(f"{name}_gpu_time_util_map", rows, {"kernels": [kernel(20, 60)]}, bins=2)["analysis"]
    assert mapped["Rank"].to_list() == [0, 0]  # ranks without calls are not in the map
    assert mapped.select("Kernel", title, "Overlap", "PID").rows() == [(60.0, 50.0, 10.0, 7), (20.0, 0.0, 0.0, 7)]


def test_kernels_of_an_unknown_process_are_in_maps() -> None:
    mapped = outputs("cuda_gpu_time_util_map", {"kernels": [kernel(0, 50, device_id=1, process_id=None)]}, bins=1)
    assert mapped["analysis"].rows() == [(0, 50.0, None, 1, 0)]


def test_ranks_without_nccl_are_not_in_its_map() -> None:
    ranks: list[dict[str, list[Row]]] = [{"kernels": [kernel(0, 10)]}, {"kernels": KERNELS}, {}]
    mapped = outputs("nccl_gpu_time_util_map", *ranks, bins=2)["analysis"]
    assert mapped.select("Rank", "Device ID").unique(maintain_order=True).rows() == [(1, 0), (1, 1)]


def test_a_capture_inside_the_first_bin() -> None:
    # As in nsys, shares are of the whole bin only if the common axis begins with the capture.
    tables = {"kernels": [kernel(0, 10)]}
    for offset, share in (
        (0, 10.0),
        (1, 50.0),
    ):
        mapped = outputs("cuda_gpu_time_util_map", tables, clocks=[Clock(offset, 20, 200)], bins=2)["analysis"]
        assert mapped["Kernel"].to_list() == [share, None]


SAMPLES = [
    {"timestamp_ns": t, "device_id": 0, "metric_id": 1, "metric": metric, "value": value}
    for t, metric, value in [
        (-1, "SMs Active [Throughput %]", 99),
        (0, "SMs Active [Throughput %]", 10),
        (60, "SMs Active [Throughput %]", 20),
        (70, "SMs Active [Throughput %]", 40),
        (70, "Tensor Active [Throughput %]", 5),
        (70, "NVLink RX Bandwidth [Throughput %]", 3),
        (70, "GPC Clock Frequency [MHz]", 10**9),
        (70, None, 7),
    ]
]


def test_gpu_metrics() -> None:
    tables = {"gpu_metrics": SAMPLES}
    stats = outputs("gpu_metric_util_sum", tables)
    assert list(stats) == ["rank_stats"]
    assert stats["rank_stats"].columns[-3:] == ["Rank", "GPU ID", "Metric Name"]
    assert stats["rank_stats"].select("GPU ID", "Metric Name", "Count", "Sum").rows() == [
        (0, "GPC Clock Frequency [MHz]", 1, 1e9),
        (0, "NVLink RX Bandwidth [Throughput %]", 1, 3.0),
        (0, "SMs Active", 3, 70.0),
        (0, "Tensor Active", 1, 5.0),
    ]


def test_nvlink_metrics_are_summed_by_rank_and_gpu_without_zeros() -> None:
    values = [(0, "RX", 0), (0, "RX", 5), (0, "RX", 7), (1, "RX", 1), (1, "TX", 2), (2, "TX", 4), (3, "TX", 0)]
    samples = [
        {"timestamp_ns": 1, "device_id": d, "metric_id": 1, "metric": f"NVLink {m} [Throughput %]", "value": v}
        for d, m, v in values
    ]
    gpus = [{"device_id": 0, "name": "H100", "bus_location": "0000:00:06.0"}, {"device_id": 1, "name": "H100"}]
    tables = {"gpu_metrics": samples, "devices": [*gpus, {"device_id": 2}]}
    stats = outputs("nvlink_sum", tables, {"gpu_metrics": samples[:2]})
    columns = ["Rank", "Metric Name"]
    assert stats["all_stats"].columns == [*STATISTICS, *columns]
    assert stats["all_stats"].select("Count", "Sum", *columns).rows() == [
        (3, 13, 0, "NVLink RX"),
        (2, 6, 0, "NVLink TX"),
        (1, 5, 1, "NVLink RX"),
    ]
    assert stats["stats_by_gpu"].columns == [*STATISTICS, *columns, "GPU"]
    assert stats["stats_by_gpu"].select("Count", "Sum", *columns, "GPU").rows() == [
        (2, 12, 0, "NVLink RX", "0000:00:06.0 - H100"),
        (1, 1, 0, "NVLink RX", "H100"),
        (1, 4, 0, "NVLink TX", "2"),
        (1, 2, 0, "NVLink TX", "H100"),
        (1, 5, 1, "NVLink RX", "0"),
    ]


def test_maps_of_gpu_metrics_list_bins_with_samples() -> None:
    tables = {"gpu_metrics": SAMPLES}
    mapped = outputs("gpu_metric_util_map", tables, tables, bins=4)["analysis"]
    assert mapped.columns[1:] == ["SMs Active", "SM Issue", "Tensor Active", "GPU", "Rank", "__index_level_0__"]
    assert mapped.filter(Rank=1).rows() == [(0, 10.0, None, None, 0, 1, 0), (50, 30.0, None, 5.0, 0, 1, 1)]
    assert outputs("gpu_metric_util_map", {})["analysis"].columns[1] == "SM Active"


def test_network_metrics() -> None:
    keys = {"metrics_list_id": 1, "metric_index": 2}
    names = [{**keys, "name": "Bytes sent"}, {**keys, "name": "repeated"}]
    values = [
        {**keys, "start_ns": 0, "end_ns": 1, "kind": "nic", "network_device_id": 5, "value": v} for v in (1, 3, None)
    ]
    tables = outputs("network_sum", {"network_metric_names": names, "network_metrics": values})
    assert tables["all_stats"].select("Name", "Count", "Sum").rows() == [("Bytes sent", 2, 4)]
    assert tables["rank_stats_by_device"]["Device ID"].to_list() == [5]


def test_rules_list_all_rows() -> None:
    calls = [api(t, t + 9, "cudaDeviceSynchronize_v3020") for t in range(60)]
    tables = outputs("cuda_api_sync", {"api_calls": calls}, {"api_calls": calls[:1]})["analysis"]
    assert tables["Rank"].to_list() == [0] * 60 + [1]
    assert tables["__index_level_0__"].to_list() == [*range(60), 0]
    limited = outputs("cuda_api_sync", {"api_calls": calls}, rows=2)["analysis"]
    assert limited.columns == ["Duration", "Start", "PID", "TID", "API Name", "Rank"]
    assert limited.height == 2
    gaps = outputs("gpu_gaps", {"kernels": [kernel(0, 1, device_id=0), kernel(2_000_001, 2_000_002)]}, gap=1)[
        "analysis"
    ]
    assert gaps.select("Row#", "Duration", "Start").rows() == [(1, 2_000_000, 1)]


def test_rows_of_one_rank_have_no_index() -> None:
    calls = {"api_calls": [api(0, 9, "cudaDeviceSynchronize_v3020")]}
    only_one = outputs("cuda_api_sync", calls, {"api_calls": []})["analysis"]
    assert "__index_level_0__" not in only_one.columns
    assert "__index_level_0__" not in outputs("cuda_gpu_kern_hist", {"kernels": KERNELS})["analysis"].columns
    assert "__index_level_0__" in outputs("cuda_api_sync", calls, calls)["analysis"].columns


def test_green_contexts_are_listed_if_there_are_any() -> None:
    key = {"process_id": 7, "correlation_id": 1}
    copies = [
        {"start_ns": 0, "end_ns": 5, "bytes": 9, "src_memory_kind": "Pageable", "green_context_id": g, **key}
        for g in (0, 3)
    ]
    names = {"api_calls": [api(0, 1, "cudaMemcpyAsync_v3020")]}
    with_context = outputs("cuda_memcpy_async", {"memcpys": copies, **names})["analysis"]
    assert sorted(with_context["Green Context ID"].to_list(), key=str) == [3, None]
    without = outputs("cuda_memcpy_async", {"memcpys": copies[:1], **names})["analysis"]
    assert without.schema["Green Context ID"] == pl.Null


@pytest.mark.parametrize(
    ("recipe", "options", "message"),
    [
        (
            "cuda_sum",
            {},
            "unknown recipe 'cuda_sum'\nHint: did you mean 'cuda_api_sum'? choose one of these recipes: comm_log_sum, ",
        ),
        ("mpi_sum", {"bins": 3}, "recipe 'mpi_sum' has no option 'bins'\nHint: the recipe has no options"),
        (
            "gpu_gaps",
            {"gaps": 3},
            "recipe 'gpu_gaps' has no option 'gaps'\nHint: did you mean 'gap'? choose one of these options: rows, gap",
        ),
        ("nvtx_pace", {}, "recipe 'nvtx_pace' requires the option 'name'\nHint: Name of the kernel or range"),
        (
            "mpi_gpu_time_util_map",
            {"bins": 0},
            "recipe 'mpi_gpu_time_util_map': 0 is not a valid value of the option 'bins'\nHint: set bins to an integer",
        ),
        ("mpi_gpu_time_util_map", {"bins": True}, "recipe 'mpi_gpu_time_util_map': True is not a valid value"),
        (
            "nvtx_pace",
            {"name": "x", "align": "maybe"},
            "recipe 'nvtx_pace': 'maybe' is not a valid value of the option 'align'\nHint: set align to one of yes, no",
        ),
        (
            "nvtx_pace",
            {"name": 3},
            "recipe 'nvtx_pace': 3 is not a valid value of the option 'name'\nHint: set name to a string",
        ),
    ],
)
def test_invalid_options(recipe: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnknownFormatError) as raised:
        get_analysis(recipe, RECIPE).resolve_options(options)
    assert str(raised.value).startswith(message)
