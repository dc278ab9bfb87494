"""Traces of other runtimes, of merged ranks, and of profilers that left out ids, times, launch shapes or escapes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import kineto as files
from tests.conftest import ALL
from tests.readers.test_kineto import written
from tracekit.errors import TracekitWarning
from tracekit.registry import detection
from tracekit.registry.source import Source

T0 = 1_719_000_000_000_000
CPU, GPU = {"pid": 4242, "tid": 4242}, {"pid": 0, "tid": 7}
PUBLIC = files.CORPUS.parent / "makers" / "kineto_other"
Event = dict[str, Any]


def event(cat: str, name: str, start: float, length: float, place: Event, **args: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, **place, "ts": T0 + start, "dur": length, "args": args}


def step(length: float = 1000, place: Event = CPU) -> Event:
    return event("user_annotation", "ProfilerStep#1", 0, length, place, **{"External id": 9001})


def launch(
    n: int, call: Event | None = None, kernel: Event | None = None, *, cat: str = "cuda_runtime", **places: Event
) -> list[Event]:
    """One op that launches one kernel, n-th of its rank."""
    cpu, gpu, at = places.get("cpu", CPU), places.get("gpu", GPU), 10 + 100 * n
    number = {"External id": n + 1}
    functions = {"cuda_runtime": "cudaLaunchKernel", "cuda_driver": "cuLaunchKernel"}
    function = functions.get(cat, "urEnqueueKernelLaunch")
    return [
        event("cpu_op", f"aten::op{n}", at, 50, cpu, **number),
        event(cat, function, at + 5, 10, cpu, **number, **({"correlation": 100 + n} if call is None else call)),
        event("kernel", f"kern{n}", at + 40, 20 + n, gpu, **(number | {"correlation": 100 + n} | (kernel or {}))),
    ]


def linked(path: Path, *columns: str) -> list[tuple[Any, ...]]:
    with tk.load(path) as loaded:
        rows = loaded.correlate().frame("kernels").select(columns).collect()
    return rows.with_columns(pl.col(pl.Categorical).cast(pl.String)).rows()


def again(path: Path, format_: str) -> Path:
    """Export a trace, and return the path of the result."""
    suffixes = {
        "sqlite": ".db",
        "chrome-trace": ".json",
        "perfetto": ".pftrace",
        "html": ".html",
        "dlprof-db": ".sqlite",
    }
    with tk.load(path) as loaded:
        return loaded.export(path.parent / f"again_{format_}{suffixes.get(format_, '')}", format=format_)


def paths_of_ops(count: int) -> list[tuple[str]]:
    return [(f"ProfilerStep#1/aten::op{n}",) for n in range(count)]


RUNTIMES = {
    "cuda_runtime": "CUDA runtime",
    "cuda_driver": "CUDA driver",
    "hip_runtime": "HIP runtime",
    "hip_driver": "HIP driver",
    "xpu_runtime": "XPU runtime",
    "xpu_driver": "XPU driver",
    "privateuse1_runtime": "PrivateUse1 runtime",
    "privateuse1_driver": "PrivateUse1 driver",
    "mtia_runtime": "MTIA runtime",
    "musa_runtime": "MUSA runtime",
    "musa_driver": "MUSA driver",
    "npu_runtime": "npu runtime",
}


@pytest.mark.many(4)
@pytest.mark.parametrize("cat", RUNTIMES)
def test_calls_of_any_runtime_launch_kernels(cat: str, tmp_path: Path) -> None:
    path = written(tmp_path, files.trace([step(), *(e for n in range(4) for e in launch(n, cat=cat))]))
    assert linked(path, "range_path") == paths_of_ops(4)
    with tk.load(path) as loaded:
        assert loaded["api_calls"]["api"].to_pylist() == [RUNTIMES[cat]] * 4
        assert loaded.undecoded == {}
    with tk.load(again(path, "chrome-trace")) as loaded:
        assert loaded["api_calls"]["api"].to_pylist() == [RUNTIMES[cat]] * 4


@pytest.mark.parametrize("cat", ["runtime", "cuda_runtime_x", "My_runtime", "a" * 41 + "_driver"])
def test_other_categories_are_no_calls(cat: str, tmp_path: Path) -> None:
    path = written(tmp_path, files.trace([files.op(), event(cat, "f", 0, 1, CPU)]))
    with tk.load(path) as loaded:
        assert loaded.count("api_calls") == 0
        assert list(loaded.undecoded) == [cat]


# Ids


def test_an_external_id_replaces_a_missing_correlation_id(tmp_path: Path) -> None:
    none: Event = {"correlation": 0}
    ops = [e for n in range(3) for e in launch(n, {}, none)]
    query = event("cuda_runtime", "hipGetDevice", 12, 1, CPU, **{"External id": 1})
    path = written(tmp_path, files.trace([step(), query, *ops, *launch(7)]))
    expected = [(-1, "aten::op0"), (-2, "aten::op1"), (-3, "aten::op2"), (107, "aten::op7")]
    assert linked(path, "correlation_id", "range_name") == expected
    with tk.load(path) as loaded:
        assert loaded["api_calls"]["correlation_id"].to_pylist() == [None, -1, -2, -3, 107]


@pytest.mark.parametrize("missing", [0, -1, None])
def test_an_external_id_links_single_kernels_without_a_correlation_id(missing: int | None, tmp_path: Path) -> None:
    events = [step(), *launch(0), *launch(1, None, {"correlation": missing}), *launch(2)]
    again_in_op = event("cuda_runtime", "cudaLaunchKernel", 20, 2, CPU, **{"External id": 1, "correlation": 200})
    second = event("kernel", "second", 400, 5, GPU, **{"External id": 1, "correlation": missing})
    path = written(tmp_path, files.trace([*events, again_in_op, second]))
    expected = [(100, "aten::op0"), (101, "aten::op1"), (102, "aten::op2"), (200, "aten::op0")]
    assert linked(path, "correlation_id", "range_name") == expected


def test_an_external_id_of_several_processes_links_nothing(tmp_path: Path) -> None:
    other = launch(0, {"correlation": 900}, cpu={"pid": 77, "tid": 77})[:2]
    path = written(tmp_path, files.trace([step(), *launch(0, None, {"correlation": 0}), *other]))
    with pytest.warns(TracekitWarning, match="1 have no correlation id"):
        assert linked(path, "correlation_id", "range_name") == [(None, None)]


@pytest.mark.parametrize(
    "kernel",
    [
        {"External id": None, "correlation": 0},
        {"External id": 0, "correlation": -1},
        {"External id": 77, "correlation": 0},
    ],
)
def test_kernels_without_an_id_are_counted(kernel: Event, tmp_path: Path) -> None:
    path = written(tmp_path, files.trace([step(), *launch(0, None, kernel), *launch(1)]))
    with pytest.warns(
        TracekitWarning, match="API calls of 1 of 2 kernels cannot be found.*: 1 have no correlation id$"
    ):
        found = linked(path, "correlation_id", "range_name")
    assert found == [(None, None), (101, "aten::op1")]


def test_an_id_of_zero_links_nothing(tmp_path: Path) -> None:
    path = written(
        tmp_path, files.trace([step(), *launch(0, {"correlation": 0}, {"correlation": 0, "External id": 9})])
    )
    with pytest.warns(TracekitWarning, match="1 have no correlation id"):
        assert linked(path, "api_call_id", "correlation_id") == [(None, None)]


REASONS = {
    "were probably launched before the recording began": {"correlation": 5},
    "have a correlation id that no recorded call has": {"correlation": 777},
    "have no correlation id": {"correlation": 0, "External id": 0},
}


FORMATS = ("kineto", "parquet", "arrow", "chrome-trace")


@pytest.mark.parametrize(
    ("format_", "reason"),
    [(f, r) for f in FORMATS for n, r in enumerate(REASONS) if ALL or f == "kineto" or n == FORMATS.index(f) - 1],
)
def test_kernels_without_a_call_are_counted_in_every_format(reason: str, format_: str, tmp_path: Path) -> None:
    events = [step(), *launch(0), *launch(1, None, REASONS[reason])]
    path = written(tmp_path, files.trace(events))
    if format_ != "kineto":
        with pytest.warns(TracekitWarning):
            path = again(path, format_)
    with tk.load(path) as loaded, pytest.warns(TracekitWarning, match=f"1 of 2 kernels cannot be found.*: 1 {reason}"):
        loaded.correlate().table("kernels", ["api_call_id"])
    with tk.load(path) as loaded, pytest.warns(TracekitWarning, match=reason):
        loaded.rollup()["ops"]
    with tk.load(path) as loaded:
        with pytest.warns(TracekitWarning, match=reason):
            loaded.stats("cuda_kern_exec_sum")
        loaded.correlate().rollup()["ops"]  # warns only once


def test_kernels_of_a_trace_without_calls_are_counted(tmp_path: Path) -> None:
    path = written(tmp_path, files.trace([e for e in [step(), *launch(0)] if e["cat"] != "cuda_runtime"]))
    with pytest.warns(TracekitWarning, match="1 of 1 kernels cannot be found.*: the capture contains no API calls"):
        linked(path, "api_call_id")


def test_kernels_of_an_unknown_process_are_counted(tmp_path: Path) -> None:
    other = {"pid": 5, "tid": 5}
    path = written(tmp_path, files.trace([*launch(0), *launch(0, cpu=other)[:2]]))
    with pytest.warns(TracekitWarning, match="1 have a correlation id that belongs to calls of several processes"):
        assert linked(path, "process_id", "api_call_id") == [(None, None)]


# Merged ranks


def rank_events(prefix: str, pid: int, device: int, *, stated: bool = True) -> list[Event]:
    cpu, gpu = {"pid": f"{prefix}{pid}", "tid": pid}, {"pid": f"{prefix}{device}", "tid": 7}
    kernel = {"device": device, "stream": 7, "context": 1} if stated else {}
    name = {"ph": "M", "name": "process_name", **cpu, "args": {"name": "python"}}
    return [name, step(place=cpu), *(e for n in range(4) for e in launch(n, None, kernel, cpu=cpu, gpu=gpu))]


@pytest.mark.parametrize(
    ("first", "second"), [("[TP00] ", "[TP01] "), ("rank0:", "rank1:"), ("DP0 / ", "DP1 / "), ("Rank 0: ", "Rank 1: ")]
)
def test_merged_traces_of_ranks_stay_apart(first: str, second: str, tmp_path: Path) -> None:
    merged = [*rank_events(first, 4242, 0), *rank_events(second, 4343, 1)]
    path = written(tmp_path, files.trace(merged))
    of_rank = [
        [(process, device, f"ProfilerStep#1/aten::op{n}") for n in range(4)]
        for process, device in [(4242, 0), (4343, 1)]
    ]
    assert linked(path, "process_id", "device_id", "range_path") == [*of_rank[0], *of_rank[1]]
    with tk.load(path) as loaded:
        assert loaded["processes"].to_pylist() == [{"process_id": p, "name": "python"} for p in (4242, 4343)]


@pytest.mark.parametrize("stated", [True, False])
def test_ranks_with_equal_processes_and_devices_stay_apart(tmp_path: Path, *, stated: bool) -> None:
    ranks = [e for n in range(3) for e in rank_events(f"[TP{n:02}] ", 1, 0, stated=stated)]
    path = written(tmp_path, files.trace(ranks))
    found = linked(path, "process_id", "device_id", "range_path")
    processes = [1, 1 + (2 << 32), 1 + (3 << 32)]
    assert found == [(p, d, f"ProfilerStep#1/aten::op{n}") for d, p in enumerate(processes) for n in range(4)]


@pytest.mark.parametrize("suffix", ["-r{}", " (rank {})", "/rank_{}", " [TP{}]", "r{}", " Rank {}"])
def test_ranks_after_the_number_of_a_process(suffix: str, tmp_path: Path) -> None:
    events = [(rank, event) for rank in range(2) for event in rank_events("", 4242, 0)]
    merged = [{**event, "pid": f"{event['pid']}{suffix.format(rank)}"} for rank, event in events]
    found = linked(written(tmp_path, files.trace(merged)), "process_id", "device_id", "range_path")
    processes = [4242, 4242 + (2 << 32)]
    assert found == [(p, d, f"ProfilerStep#1/aten::op{n}") for d, p in enumerate(processes) for n in range(4)]


def test_a_merged_trace_without_names_of_processes(tmp_path: Path) -> None:
    events = [e for e in rank_events("[TP00] ", 4242, 3) if e["ph"] != "M"]
    assert linked(written(tmp_path, files.trace(events)), "device_id", "range_path") == [
        (3, path) for (path,) in paths_of_ops(4)
    ]


def test_ids_without_a_number_are_counted(tmp_path: Path) -> None:
    with pytest.warns(TracekitWarning, match="2 API calls and ranges have no numeric process id"):
        tk.load(written(tmp_path, files.trace(launch(0, cpu={"pid": "Spans", "tid": 1}))))


# Values


def values(path: Path, table: str, *columns: str) -> list[tuple[Any, ...]]:
    with tk.load(path) as loaded:
        return loaded.frame(table).select(columns).collect().rows()


SHAPE = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "dynamic_shared_memory_bytes")


def test_the_shape_of_a_launch_is_that_of_the_call(tmp_path: Path) -> None:
    shape = {"grid": [3, 2, 1], "block": [128, 4, 1], "shared memory": 512}
    own = {"grid": [9, 9, 9], "block": [1, 1, 1], "shared memory": 0}
    launches = [
        *launch(0, {"correlation": 100, **shape}),
        *launch(1, {"correlation": 101, **shape}, own),
        *launch(2),
    ]
    path = written(tmp_path, files.trace([step(), *launches]))
    assert values(path, "kernels", *SHAPE) == [(3, 2, 1, 128, 4, 1, 512), (9, 9, 9, 1, 1, 1, 0), (None,) * 7]


def test_the_size_of_a_copy_is_that_of_the_call(tmp_path: Path) -> None:
    sizes: list[Event] = [{"bytes": "128"}, {"size": 2560}, {"bytes": 7}, {"bytes": "x"}, {}]
    events = [files.op()]
    for n, size in enumerate(sizes):
        own = {"bytes": 64} if n == 2 else {}
        events.append(event("cuda_runtime", "hipMemcpyAsync", n * 10, 5, CPU, correlation=n + 1, **size))
        events.append(event("gpu_memcpy", "Memcpy HtoD (Host -> Device)", n * 10, 5, GPU, correlation=n + 1, **own))
        events.append(event("gpu_memset", "Memset (Device)", n * 10, 5, GPU, correlation=n + 1, **own))
    path = written(tmp_path, files.trace(events))
    assert values(path, "memcpys", "bytes") == [(128,), (2560,), (64,), (None,), (None,)]
    assert values(path, "memsets", "bytes") == [(128,), (2560,), (64,), (None,), (None,)]


@pytest.mark.slow
def test_values_that_were_not_recorded_are_null(tmp_path: Path) -> None:
    path = written(tmp_path, files.trace(launch(0)))
    columns = (*SHAPE, "registers_per_thread", "static_shared_memory_bytes", "blocks_per_sm", "warps_per_sm")
    assert values(path, "kernels", *columns, "achieved_occupancy_percent") == [(None,) * 12]
    assert values(path, "api_calls", "return_value") == [(None,)]
    assert values(path, "streams", "priority") == [(None,)]
    for format_ in ("sqlite", "parquet", "chrome-trace", "perfetto", "html", "dlprof-db", "dlprof-reports"):
        exported = again(path, format_)
        if format_ in {"parquet", "chrome-trace"}:
            assert values(exported, "kernels", *columns) == [(None,) * 11]


OCCUPANCY = ("blocks_per_sm", "warps_per_sm", "achieved_occupancy_percent")


def test_occupancy_is_read_and_exported(tmp_path: Path) -> None:
    recorded = {"blocks per SM": 0.48484848, "warps per SM": 1.9393939, "est. achieved occupancy %": 3}
    odd = {"blocks per SM": "inf", "warps per SM": [1], "est. achieved occupancy %": 1e999}
    launches = [*launch(0, None, recorded), *launch(1, None, odd)]
    text = files.trace(launches).replace("Infinity", "1e999")
    path = written(tmp_path, text)
    expected = [(0.48484848, 1.9393939, 3.0), (None, None, None)]
    assert values(path, "kernels", *OCCUPANCY) == expected
    for format_ in ("chrome-trace", "parquet", "arrow"):
        assert values(again(path, format_), "kernels", *OCCUPANCY) == expected, format_


def test_metrics_of_profiled_ranges_are_read_and_exported(tmp_path: Path) -> None:
    metrics = {"sm__inst_executed.sum": 1024, "dram__bytes.sum": 2.5e9, "smsp__cycles.avg": "inf"}
    ranges = [event("cuda_profiler_range", f"range{n}", 10 * n, 5, GPU, **metrics) for n in range(2)]
    path = written(tmp_path, files.trace([step(), *ranges]))
    columns = ("profiler_range_id", "range_name", "metric", "value")
    expected = [
        (n, f"range{n - 1}", name, value if isinstance(value, int | float) else None)
        for n in (1, 2)
        for name, value in metrics.items()
    ]
    with tk.load(path) as loaded:
        frame = loaded.frame("profiler_metrics", names="string").collect()
        assert frame.select(columns).rows() == expected
        assert (frame["end_ns"] - frame["start_ns"]).to_list() == [5000] * 6
        assert loaded.undecoded == {}
    for format_ in ("parquet", "arrow"):
        with tk.load(again(path, format_)) as loaded:
            assert loaded.frame("profiler_metrics", names="string").select(columns).collect().rows() == expected


# Times


def unset(listed: list[Event]) -> list[Event]:
    return [e | {"ts": 0.0, "dur": 0.0} for e in listed]


@pytest.mark.parametrize("ts", [0.0, "0", -5.0, 3.0, 1e12, -T0])
@pytest.mark.parametrize("dur", [0.0, 20.0])
def test_events_far_from_all_others_have_no_valid_time(ts: float | str, dur: float, tmp_path: Path) -> None:
    far = [e | {"ts": ts, "dur": dur} for e in launch(7)]
    path = written(tmp_path, files.trace([step(), *(e for n in range(5) for e in launch(n)), *far]))
    with pytest.warns(TracekitWarning, match="3 events have no valid time or duration and were skipped"):
        loaded = tk.load(path)
    with loaded:
        assert loaded.info["origin_utc_ns"] == str(T0 * 1000)
        assert loaded.count("kernels") == 5


def test_gpu_times_of_another_clock_are_kept(tmp_path: Path) -> None:
    events = [e | {"ts": e["ts"] - T0} if e["cat"] == "kernel" else e for n in range(5) for e in launch(n)]
    path = written(tmp_path, files.trace([step(), *events]))
    with tk.load(path) as loaded:
        assert (loaded.count("kernels"), loaded.count("api_calls")) == (5, 5)


def test_events_whose_times_were_never_set_are_skipped(tmp_path: Path) -> None:
    launches = [e for n in range(5) for e in launch(n)]
    mark = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", **CPU, "ts": 0, "s": "t", "args": {}}
    only_end = event("cpu_op", "no start", -T0, T0 + 500, CPU)
    only_start = event("cpu_op", "no end", 500, -T0 - 500, CPU)
    path = written(tmp_path, files.trace([step(), *launches, *unset(launch(7)), mark, only_end, only_start]))
    with pytest.warns(TracekitWarning, match="6 events have no valid time or duration and were skipped"):
        loaded = tk.load(path)
    with loaded:
        assert loaded.info["origin_utc_ns"] == str(T0 * 1000)
        assert loaded.info["duration_ns"] == "1000000"
        assert loaded.count("kernels") == 5
        assert loaded.frame("kernels").select((pl.col("end_ns") - pl.col("start_ns")).sum()).collect().item() == 110_000


@pytest.mark.parametrize("start", [0, 1, 500])
def test_time_zero_is_valid_at_the_start_of_a_capture(start: int, tmp_path: Path) -> None:
    ops = [files.op(ts="0", dur="0"), files.op(ts=str(start), dur="900")]
    with tk.load(written(tmp_path, files.trace(ops))) as loaded:
        assert loaded.count("nvtx_ranges") == 2


def test_a_trace_in_which_no_time_was_set(tmp_path: Path) -> None:
    with tk.load(written(tmp_path, files.trace([files.op(ts="0", dur="0")] * 2))) as loaded:
        assert loaded.count("nvtx_ranges") == 2


# Backslashes


def named(texts: list[str], between: int = 0) -> str:
    """Ops with names as they are written, and others between the first and the rest."""
    ops = [files.op(name=f"«{n}»") for n in range(len(texts))]
    filler = [files.op(name=f"filler {n}") for n in range(between)]
    listed = files.trace([ops[0], *filler, *ops[1:]])
    for n, text in enumerate(texts):
        listed = listed.replace(json.dumps(f"«{n}»"), f'"{text}"')
    return listed


UNESCAPED = [
    (r"site-packages\torch\nn\functional.py(2): relu", 0),
    (r"torch\cuda\__init__.py(219): _lazy_init", 0),
    (r"C:\Users\me\torch\nn\modules\module.py(1): _call_impl", 0),
    (r"\\server\share\new\u0041.py", 0),
]


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("between", [0, 20_000])
def test_a_file_that_does_not_escape_backslashes(order: int, between: int, tmp_path: Path) -> None:
    texts = [text for text, _ in UNESCAPED][::order]
    with pytest.warns(TracekitWarning, match=r"strings contained invalid escapes and were repaired"):
        loaded = tk.load(written(tmp_path, named(texts, between)))
    with loaded:
        names = [t for t in loaded["nvtx_ranges"]["name"].to_pylist() if not t.startswith("filler")]
    assert names == texts


def test_arguments_of_a_file_that_does_not_escape_backslashes(tmp_path: Path) -> None:
    text = named([r"a\path"]).replace(
        '"dur": 2.25}', r'"dur": 2.25, "args": {"file": "C:\new\torch.py", "q": "\"x\""}}'
    )
    with pytest.warns(TracekitWarning, match="1 string contained invalid escapes and was repaired"):
        loaded = tk.load(written(tmp_path, text))
    with loaded:
        payload = loaded["nvtx_ranges"]["payload_text"].to_pylist()[0]
    assert json.loads(payload) == {"file": r"C:\new\torch.py", "q": '"x"'}


@given(names=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), min_size=1, max_size=4))
def test_valid_escapes_stay_escapes(names: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = written(tmp_path_factory.mktemp("names"), files.trace([files.op(name=n) for n in names]))
    with tk.load(path) as loaded:
        assert loaded["nvtx_ranges"]["name"].to_pylist() == names


# Other makers. XPU, HPU and MUSA: built from the names of fields in the source of libkineto, not captured.


def test_an_intel_gpu(tmp_path: Path) -> None:
    """The fields that the plug-in of libkineto for XPUs writes."""
    queue = {"device": 1, "context": "0x000000000b2f1c40", "sycl queue": 3, "l0 queue": "0x000000000b2f9d10"}
    place = {"pid": 1, "tid": 3}
    copy = {"correlation": 2, "bytes": 4096, "memory bandwidth (GB/s)": 1.5, "l0 call": "zeCommandListAppendMemoryCopy"}
    events = [
        step(),
        event("cpu_op", "aten::mm", 1, 60, CPU, **{"External id": 1}),
        event("xpu_runtime", "urEnqueueKernelLaunch", 5, 10, CPU, **{"External id": 1}, correlation=1),
        event("xpu_driver", "zeCommandListAppendLaunchKernel", 6, 4, CPU, correlation=9),
        event("xpu_runtime", "urEnqueueUSMMemcpy", 30, 10, CPU, correlation=2),
        event("xpu_runtime", "urEnqueueUSMFill", 45, 5, CPU, correlation=3),
        event("kernel", "gemm_kernel", 50, 20, place, correlation=1, kernel_id=7, sycl_node_id=0, **queue),
        event("gpu_memcpy", "Memcpy M2D (MEMORY -> DEVICE)", 70, 5, place, **copy, **queue),
        event("gpu_memset", "Memset (165 -> DEVICE)", 80, 5, place, correlation=3, bytes=64, **queue),
        event("collective_comm", "xccl::allreduce", 300, 50, CPU, Communicator_id=5),
        event("xpu_sync", "zeEventHostSynchronize", 90, 5, {"pid": -1, "tid": 4242}, Type="HOST_EVENT"),
    ]
    properties = {"id": 1, "name": "Intel Data Center GPU", "totalGlobalMem": 1 << 36, "maxComputeUnits": 512}
    document = json.loads(files.trace(events)) | {"deviceProperties": [properties]}
    path = written(tmp_path, json.dumps(document))
    assert linked(path, "device_id", "stream_id", "range_path", "correlation_id") == [
        (1, 3, "ProfilerStep#1/aten::mm", 1)
    ]
    with tk.load(path) as loaded:
        assert loaded.undecoded == {"xpu_sync": tk.Undecoded(1)}
        assert loaded.frame("devices").select("device_id", "name", "sm_count").collect().row(0) == (
            1,
            "Intel Data Center GPU",
            512,
        )
        ranges = loaded.frame("nvtx_ranges", names="string").filter(domain="collective_comm").collect()
        assert ranges["name"].to_list() == ["xccl::allreduce"]
        apis = loaded.frame("api_calls", names="string").collect()["api"].to_list()
    assert apis == ["XPU runtime", "XPU driver", "XPU runtime", "XPU runtime"]
    assert text_values(path, "memcpys", "bytes", "copy_kind", "dst_memory_kind") == [(4096, "Host-to-Device", "DEVICE")]
    assert text_values(path, "memsets", "bytes", "value", "memory_kind") == [(64, 165, "DEVICE")]


@pytest.mark.parametrize(
    ("runtime", "function", "device_category", "api"),
    [
        ("musa_runtime", "musaLaunchKernel", "kernel", "MUSA runtime"),
        ("privateuse1_runtime", "cnInvokeKernel", "kernel", "PrivateUse1 runtime"),
        ("hip_runtime", "hipLaunchKernel", "kernel", "HIP runtime"),
        ("glow_runtime", "launch", "hpu_op", "Glow runtime"),
    ],
)
def test_kernels_of_other_runtimes(runtime: str, function: str, device_category: str, api: str, tmp_path: Path) -> None:
    launches = [e for n in range(2) for e in launch(n)]
    names = {"cuda_runtime": (runtime, function), "kernel": (device_category, "kern")}
    renamed = [
        e | dict(zip(("cat", "name"), names.get(e["cat"], (e["cat"], e["name"])), strict=True)) for e in launches
    ]
    path = written(tmp_path, files.trace([step(), *renamed]))
    assert linked(path, "range_path") == paths_of_ops(2)
    assert set(text_values(path, "api_calls", "api", "name")) == {(api, function)}


@pytest.mark.parametrize(
    ("category", "name", "activity", "vendor"),
    [
        ("xpu_runtime", "NVIDIA", "XPU", "Intel"),
        ("mtia_runtime", "", "MTIA", "Meta"),
        ("glow_runtime", "", "HPU", "Intel"),
        ("musa_driver", "", "PrivateUse1", "Moore Threads"),
        ("privateuse1_runtime", "", "PrivateUse1", None),
        ("hip_runtime", "", None, None),
        ("cuda_runtime", "NVIDIA H100", None, None),
        ("cpu_op", "Intel(R) Data Center GPU Max 1550", "XPU", None),
        ("cpu_op", "HL-225", "HPU", None),
    ],
)
def test_hints_name_the_activity_of_the_device(
    category: str, name: str, activity: str | None, vendor: str | None, tmp_path: Path
) -> None:
    events = [step(), event("cpu_op", "aten::mm", 1, 60, CPU), event(category, "f", 5, 10, CPU)]
    document = json.loads(files.trace(events)) | {"deviceProperties": [{"id": 0, "name": name}]}
    with tk.load(written(tmp_path, json.dumps(document))) as loaded:
        info = loaded.info
        sentences = [loaded.why().sentence]
        sentences += [loaded.explain_missing_rows("cuda_gpu_kern_sum").sentence] * (category == "cpu_op")
    assert (info.get("profiler_activity"), info.get("device_vendors")) == (activity, vendor)
    for sentence in sentences:
        assert f"activities=[ProfilerActivity.CPU, ProfilerActivity.{activity or 'CUDA'}]" in sentence


def text_values(path: Path, table: str, *columns: str) -> list[tuple[Any, ...]]:
    with tk.load(path) as loaded:
        return loaded.frame(table, names="string").select(columns).collect().rows()


def test_recordings_of_events_are_read(tmp_path: Path) -> None:
    recording = event("cuda_event", "cudaEventRecord", 30, 0, GPU, event_id=4, device=0, context=1, stream=7)
    path = written(tmp_path, files.trace([step(), recording]))
    assert values(path, "cuda_events", "timestamp_ns", "device_id", "stream_id", "event_id") == [(30_000, 0, 7, 4)]


COMMANDS = {"dma_request": "memcpys", "event_wait": "syncs", "event_record": "cuda_events"}


@pytest.mark.corpus
@pytest.mark.skipif(not PUBLIC.is_dir(), reason="no corpus beside the checkout")
@pytest.mark.filterwarnings("ignore::tracekit.errors.TracekitWarning")
def test_commands_of_an_mtia() -> None:
    (path,) = PUBLIC.rglob("mtia_inference_rank_0.json.gz")
    commands = [e for e in files.events(path) if e.get("cat") == "mtia_ccp_events"]
    expected = {table: [] for table in ("kernels", *COMMANDS.values())}
    for e in commands:
        expected[COMMANDS.get(e["name"], "kernels")].append((17, e["args"]["stream"], e["args"].get("correlation")))
    for table, rows in expected.items():
        assert values(path, table, "device_id", "stream_id", "correlation_id") == rows, table
    copies = [e["args"] for e in commands if e["name"] == "dma_request"]
    directions = {"HOST_TO_DEVICE": "Host-to-Device", "DEVICE_TO_HOST": "Device-to-Host"}
    assert text_values(path, "memcpys", "bytes", "copy_kind") == [
        (args["size"], directions[args["direction"]]) for args in copies
    ]
    with tk.load(path) as loaded:
        assert set(loaded.undecoded) == {"without category", "Trace"}
        assert loaded.why().step.count > 1


# Public traces


def read_timelines() -> list[tuple[str, str]]:
    """The traces for which TraceLens states the times of the GPU, and the file with these times."""
    if not PUBLIC.is_dir():
        return []
    lines = (PUBLIC.parent / "CATALOG.tsv").read_text().splitlines()
    rows = [line.split("\t") for line in lines if line.startswith("kineto_other/")]
    return [(row[0], o) for row in rows for o in row[-1].split(";") if o.endswith("gpu_timeline.csv")]


PARTIAL = ("resnet_act_checkpoint", "normalization_layer_test")
"""Traces of which the file has the times of a part only, or without the memory sets."""


@pytest.mark.corpus
@pytest.mark.skipif(not PUBLIC.is_dir(), reason="no corpus beside the checkout")
@pytest.mark.filterwarnings("ignore::tracekit.errors.TracekitWarning")
def test_gpu_times_are_those_of_tracelens() -> None:
    pairs = [pair for pair in read_timelines() if not any(name in pair[0] for name in PARTIAL)]
    assert len(pairs) == 18
    for trace, timeline in pairs:
        lines = (PUBLIC.parent / timeline).read_text().splitlines()[1:]
        ms = {line.split(",")[0]: float(line.split(",")[1]) for line in lines}
        with tk.load_many([PUBLIC.parent / trace]) as ranks:
            row = ranks.recipe("gpu_time_sum")["gpu_time"].row(0, named=True)
        parts = {
            name: ms[f"{name}_time"] for name in ("computation", "exposed_comm", "exposed_memcpy", "idle", "total")
        }
        names = ("compute_ns", "exposed_ns", "memory_ns", "idle_ns", "total_ns")
        for name, (part, expected) in zip(names, parts.items(), strict=True):
            assert row[name] == pytest.approx(expected * 1e6, abs=row["kernel_count"] + 1), (trace, part)


@pytest.mark.corpus
@pytest.mark.skipif(not PUBLIC.is_dir(), reason="no corpus beside the checkout")
@pytest.mark.filterwarnings("ignore::tracekit.errors.TracekitWarning")
@pytest.mark.parametrize("number", range(len(sorted(PUBLIC.rglob("*.json*")))))
def test_public_traces_have_the_kernels_and_values_of_their_json(number: int) -> None:
    path = sorted(PUBLIC.rglob("*.json*"))[number]
    if getattr(detection.find_reader(Source(path)), "format", None) != "kineto":
        return
    loaded = tk.load(path)
    listed = [
        e
        for e in files.events(path)
        if e.get("cat") in ("kernel", "Kernel") or (e.get("cat") == "mtia_ccp_events" and e["name"] not in COMMANDS)
    ]
    calls = {
        e["args"]["correlation"]: e["args"]
        for e in files.events(path)
        if "runtime" in str(e.get("cat")).lower() and "correlation" in e.get("args", {})
    }
    with loaded:
        found = loaded.frame("kernels").select("grid_x", "achieved_occupancy_percent", "blocks_per_sm").collect().rows()
    expected = []
    for e in listed:
        args = e.get("args", {})
        grid = args.get("grid", calls.get(args.get("correlation"), {}).get("grid"))
        numbers = [args.get(name) for name in ("est. achieved occupancy %", "blocks per SM")]
        finite = [float(n) if n is not None and math.isfinite(n) else None for n in numbers]
        expected.append((grid[0] if grid else None, *finite))
    assert (found == expected) is True
