"""The Chrome trace exporter on traces of a few rows."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tracekit as tk
from hypothesis import given, settings
from hypothesis import strategies as st
from tracekit import schemas
from tracekit.errors import UnknownFormatError
from tracekit.exporters.chrome_trace import export
from tracekit.exporters.timeline import batches, exporter, kinds
from tracekit.exporters.timeline.batches import BatchFile
from tracekit.exporters.timeline.exporter import BY_DEFAULT
from tracekit.plan import ROLLED_UP

Event = dict[str, Any]
QUEUE = {"process_id": 7, "device_id": 0, "context_id": 1, "stream_id": 3}
THREAD = {"process_id": 7, "thread_id": 8}
DEFAULTS: dict[str, object] = {"int64": 0, "int32": 0, "float64": 0.0, "bool": False, "string": "", "dictionary": ""}


def trace(**tables: list[dict[str, object]]) -> tk.Trace:
    """A trace of the rows given; columns that may not be null are 0 or empty where nothing is said."""
    return tk.Trace.from_tables({name: table(name, rows) for name, rows in tables.items()})


def table(name: str, rows: list[dict[str, object]]) -> Any:
    schema = schemas.table(name)
    full = [
        {c.name: None if c.nullable else DEFAULTS[c.type] for c in schema.columns} | {schema.key[-1]: n} | row
        for n, row in enumerate(rows, 1)
    ]
    types = schemas.polars_schema(schema)
    return schemas.conform(pl.DataFrame(full, schema=types).to_arrow(), schema)


def kernel(start: int, end: int | None, **more: object) -> dict[str, object]:
    return {**QUEUE, "start_ns": start, "end_ns": end, "name": "k(int)", "short_name": "k", **more}


def call(start: int, end: int, **more: object) -> dict[str, object]:
    return {**THREAD, "start_ns": start, "end_ns": end, "name": "cudaLaunchKernel_v7000", **more}


def push(start: int, end: int | None, name: str | None = "r", **more: object) -> dict[str, object]:
    return {**THREAD, "kind": "push_pop", "start_ns": start, "end_ns": end, "name": name, **more}


def exported(of: tk.Trace, folder: Path) -> dict[str, Any]:
    """The file, parsed; numbers stay as they are written."""
    path = folder / "out.json"
    path.unlink(missing_ok=True)
    parsed: dict[str, Any] = json.loads(of.export(path).read_text("utf-8"), parse_float=str)
    return parsed


def drawn(of: tk.Trace, folder: Path, phase: str = "X") -> list[Event]:
    return [e for e in exported(of, folder)["traceEvents"] if e["ph"] == phase]


def names(of: tk.Trace, folder: Path, kind: str = "thread_name") -> dict[tuple[int, int], str]:
    found = drawn(of, folder, "M")
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in found if e["name"] == kind}


def test_every_kind_reads_columns_that_are_declared() -> None:
    for stage in kinds.STAGES:
        assert len({kind.placement for kind in stage}) == 1
        for kind in stage:
            schema = schemas.correlated_schema(kind.table)
            names = batches.choose_event_columns(kind, schema.names)
            assert set(names) <= set(schema.names)
            if not kind.key_values:
                assert not schema[kind.key].nullable
            else:
                assert kind.where is not None
            assert [
                *batches.select_available_args(kind.row_args, names),
                *batches.select_available_args(kind.repeated_args, names),
            ] == [
                *kind.row_args,
                *kind.repeated_args,
            ]


def test_every_table_of_times_is_drawn() -> None:
    timed = {t.name for t in schemas.tables().values() if {"start_ns", "timestamp_ns"} & set(t.names)} - set(ROLLED_UP)
    assert {kind.table for stage in kinds.STAGES for kind in stage} == timed - kinds.NOT_DRAWN
    assert timed >= kinds.NOT_DRAWN


def test_without_rows_it_is_an_empty_list(tmp_path: Path) -> None:
    whole = exported(trace(), tmp_path)
    assert whole["traceEvents"] == []
    assert whole["displayTimeUnit"] == "ns"


def test_a_kernel_with_all_its_arguments(tmp_path: Path) -> None:
    row = kernel(
        1_234_567, 1_240_000, grid_x=4, grid_y=2, grid_z=1, block_x=128, block_y=1, block_z=1, correlation_id=9
    )
    row |= {"registers_per_thread": 32, "static_shared_memory_bytes": 16, "dynamic_shared_memory_bytes": 1024}
    (slice_,) = drawn(trace(kernels=[row]), tmp_path)
    assert slice_ == {
        "ph": "X",
        "ts": "1234.567",
        "dur": "5.433",
        "pid": 4_194_305,
        "tid": 1,
        "name": "k",
        "args": {
            "kernel_id": 1,
            "correlation_id": 9,
            "grid": "[4,2,1]",
            "block": "[128,1,1]",
            "registers_per_thread": 32,
            "static_shared_bytes": 16,
            "dynamic_shared_bytes": 1024,
            "name": "k(int)",
        },
    }


@pytest.mark.parametrize(("labels", "paths"), [(1, 1), (1, 40), (8, 1), (8, 40), (40, 40)])
def test_repeated_arguments_of_many_kernels(labels: int, paths: int, tmp_path: Path) -> None:
    launched = [call(10 * n, 10 * n + 2, correlation_id=n) for n in range(1, 41)]
    ranges = [push(10 * n, 10 * n + 5, f'"r{n % paths}"' if n % 5 else None) for n in range(1, 41)]
    launch = {"grid_y": 1, "grid_z": 1, "block_x": 1, "block_y": 1, "block_z": 1, "registers_per_thread": 0}
    launch |= {"static_shared_memory_bytes": 0, "dynamic_shared_memory_bytes": 0}
    kernels = [
        kernel(10 * n + 3, 10 * n + 4, short_name=f"k{n % labels}", grid_x=n % 3, correlation_id=n, **launch)
        for n in range(1, 41)
    ]
    whole = trace(api_calls=launched, nvtx_ranges=ranges, kernels=kernels).correlate()
    found = [e for e in drawn(whole, tmp_path) if "kernel_id" in e["args"]]
    keys = ["grid", "block", "registers_per_thread", "static_shared_bytes", "dynamic_shared_bytes", "name", "nvtx_path"]
    assert all(list(e["args"])[2:] == keys for e in found)
    assert [(e["name"], e["args"]["grid"], e["args"]["nvtx_path"]) for e in found] == [
        (f"k{n % labels}", f"[{n % 3},1,1]", f'"r{n % paths}"' if n % 5 else "") for n in range(1, 41)
    ]


def test_a_kernel_without_names(tmp_path: Path) -> None:
    first, second = drawn(
        trace(kernels=[kernel(0, 1, short_name=None), kernel(2, 3, short_name=None, name=None)]), tmp_path
    )
    assert (first["name"], second["name"]) == ("k(int)", "kernel")
    assert "name" not in second["args"]


def test_overlapping_kernels_lie_on_lanes_of_their_stream(tmp_path: Path) -> None:
    made = trace(
        kernels=[kernel(0, 10), kernel(5, 15), kernel(12, 20), kernel(20, 30)],
        devices=[{"device_id": 0, "name": "H200"}],
    )
    labels = names(made, tmp_path)
    assert [labels[e["pid"], e["tid"]] for e in drawn(made, tmp_path)] == [
        "stream 3",
        "stream 3 · lane 2",
        "stream 3",
        "stream 3",
    ]
    assert list(names(made, tmp_path, "process_name").values()) == ["GPU 0 H200 · pid 7"]


def test_tracks_are_numbered_in_the_order_of_reading(tmp_path: Path) -> None:
    queue = {**QUEUE, "start_ns": 0, "end_ns": 5}
    made = trace(
        kernels=[kernel(0, 1), kernel(0, 1, stream_id=2)],
        syncs=[queue, queue | {"stream_id": 0xFFFFFFFF}],
        cuda_events=[{**QUEUE, "timestamp_ns": 4}],
        api_calls=[call(0, 1), call(0, 1, thread_id=None)],
        osrt_calls=[{**THREAD, "start_ns": 0, "end_ns": 1, "name": "poll"}],
        nvtx_ranges=[push(0, 1), push(0, 1, domain_id=2, domain="lib"), push(0, 9) | {"kind": "start_end"}],
        nvtx_marks=[{**THREAD, "timestamp_ns": 0, "domain_id": 5}],
        threads=[{**THREAD, "name": "old"}, {**THREAD, "name": "main"}],
        processes=[{"process_id": 7, "name": "python"}],
    )
    labels = names(made, tmp_path)
    assert [tid for _, tid in labels] == list(range(1, len(labels) + 1))
    assert list(labels.values()) == [
        "NVTX start/end",
        "CUDA API · unknown thread",
        "NVTX · main 8",
        "NVTX [lib] · main 8",
        "NVTX [domain 5] · main 8",
        "CUDA API · main 8",
        "OS runtime · main 8",
        "stream 2",
        "stream 3",
        "stream 3 · CUDA events",
        "stream 3 · sync",
        "context · sync",
    ]
    groups = ["python", "GPU 0 · pid 7", "GPU 0 · NVTX and sync · pid 7"]
    assert list(names(made, tmp_path, "process_name").values()) == groups


def test_waits_lie_with_the_device_of_their_context(tmp_path: Path) -> None:
    contexts = [{"process_id": 7, "context_id": 1, "device_id": 2}]
    made = trace(kernels=[kernel(0, 1, device_id=2)], syncs=[{**QUEUE, "start_ns": 0, "end_ns": 1}], contexts=contexts)
    drawn(made, tmp_path)
    assert list(names(made, tmp_path, "process_name").values()) == ["GPU 2 · pid 7", "GPU 2 · NVTX and sync · pid 7"]


def test_a_context_is_told_where_there_are_several(tmp_path: Path) -> None:
    both = trace(
        kernels=[kernel(0, 1), kernel(0, 1, context_id=2)],
        contexts=[{"process_id": 7, "context_id": n, "device_id": 0} for n in (1, 2)],
        streams=[{"process_id": 7, "context_id": 2, "stream_id": 3, "name": "copies"}],
    )
    assert list(names(both, tmp_path).values()) == ["stream 3 · context 1", "stream 3 · context 2 · copies"]


@pytest.mark.parametrize(
    ("recorded", "shown"),
    [
        ("cudaLaunchKernel_v7000", "cudaLaunchKernel"),
        ("cuMemcpyAsync_v2", "cuMemcpyAsync_v2"),
        (None, "API call"),
        ("a_v70000", "a_v70000"),
    ],
)
def test_api_calls_are_named_without_their_version(recorded: str | None, shown: str, tmp_path: Path) -> None:
    (slice_,) = drawn(trace(api_calls=[call(0, 1, name=recorded)]), tmp_path)
    assert slice_["name"] == shown


def test_nested_calls_stay_on_one_track_outer_first(tmp_path: Path) -> None:
    made = trace(api_calls=[call(5, 6), call(0, 4), call(0, 10)])
    slices = drawn(made, tmp_path)
    assert [e["args"]["api_call_id"] for e in slices] == [3, 2, 1]
    assert len({e["tid"] for e in slices}) == 1


def test_ranges_that_cross_are_spread(tmp_path: Path) -> None:
    slices = drawn(trace(nvtx_ranges=[push(0, 10), push(5, 15), push(20, 30), push(22, 28)]), tmp_path)
    assert [e["tid"] for e in slices] == [1, 2, 1, 1]


def test_an_open_range_ends_with_the_capture(tmp_path: Path) -> None:
    made = trace(nvtx_ranges=[push(1000, None), push(2000, 3000)], kernels=[kernel(0, 9000)])
    ranges = [e for e in drawn(made, tmp_path) if "range_id" in e["args"]]
    assert [(e["dur"], e["args"].get("open")) for e in ranges] == [("8.000", True), ("1.000", None)]


@pytest.mark.filterwarnings("ignore::tracekit.TracekitWarning")
def test_what_ends_before_it_starts_lasts_nothing_and_says_so(tmp_path: Path) -> None:
    (slice_,) = drawn(trace(kernels=[kernel(5000, 4000)]), tmp_path)
    assert (slice_["ts"], slice_["dur"], slice_["args"]["negative_duration_ns"]) == ("5.000", "0.000", -1000)


def test_times_before_the_origin_shift_the_whole_file(tmp_path: Path) -> None:
    facts = [{"name": "origin_utc_ns", "value": "1000000"}]
    made = trace(kernels=[kernel(-1, 999), kernel(2000, 3001)], capture_info=facts)
    assert [(e["ts"], e["dur"]) for e in drawn(made, tmp_path)] == [("0.000", "1.000"), ("2.001", "1.001")]
    other = exported(made, tmp_path)["otherData"]
    assert (other["origin_utc_ns"], other["shift_ns"]) == ("999999", "1")


def test_other_data_tells_nothing_of_people_and_machines(capture: Path, tmp_path: Path) -> None:
    with tk.load(capture) as real:
        other = exported(real, tmp_path)["otherData"]
    assert other.keys() <= {"producer", "schema_version", "tool", "tool_version", "origin_utc_ns", "shift_ns"}
    assert all(isinstance(value, str) for value in other.values())


def test_without_process_and_thread(tmp_path: Path) -> None:
    made = trace(api_calls=[call(0, 1, process_id=None, thread_id=None)], kernels=[kernel(0, 1, process_id=None)])
    assert [e["pid"] for e in drawn(made, tmp_path)] == [0, 4_194_305]
    assert list(names(made, tmp_path, "process_name").values()) == ["unknown process", "GPU 0"]


@pytest.mark.parametrize(
    ("process", "shown"),
    [
        (4_194_305, {4_194_305: "process", 4_194_306: "GPU 0 · pid 4194305"}),
        (2**31 - 1, {2**31 - 1: "process", 4_194_305: "GPU 0 · pid 2147483647"}),
        (2**31, {4_194_305: "process · pid 2147483648", 4_194_306: "GPU 0 · pid 2147483648"}),
        (-(2**31) - 1, {4_194_305: "process · pid -2147483649", 4_194_306: "GPU 0 · pid -2147483649"}),
    ],
)
def test_each_group_has_a_pid_of_its_own(process: int, shown: dict[int, str], tmp_path: Path) -> None:
    of_process = {"process_id": process}
    made = trace(kernels=[kernel(0, 1, **of_process)], api_calls=[call(0, 1, **of_process)])
    assert {pid: name for (pid, _), name in names(made, tmp_path, "process_name").items()} == shown
    assert [e["pid"] for e in drawn(made, tmp_path)] == list(shown)


@pytest.mark.parametrize("process", [1234, 4_194_305, 2**40])
def test_a_process_whose_pid_was_replaced_keeps_its_name(process: int, tmp_path: Path) -> None:
    """The file shows a process with the id 2^40 as another process."""
    ids, other = {"process_id": process, "correlation_id": 1}, {"process_id": 7, "correlation_id": 2}
    processes = [{"process_id": 7, "name": "server"}, {"process_id": process, "name": "python"}]
    made = trace(api_calls=[call(0, 1, **ids), call(0, 1, **other)], kernels=[kernel(2, 3, **ids)], processes=processes)
    with tk.load(made.export(tmp_path / "a.json")) as again:
        assert again["processes"].select(["process_id", "name"]).to_pylist() == processes
        assert again["api_calls"]["process_id"].to_pylist() == [process, 7]


@pytest.mark.slow
def test_arrows_lead_from_calls_to_all_that_they_launched(tmp_path: Path) -> None:
    made = trace(
        api_calls=[call(0, 4, correlation_id=1), call(6, 8, correlation_id=2), call(50, 60, correlation_id=3)],
        kernels=[kernel(10, 11, correlation_id=1), kernel(12, 13, correlation_id=1), kernel(20, 21, correlation_id=9)],
        memsets=[
            {**QUEUE, "start_ns": 30, "end_ns": 31, "correlation_id": 2},
            {**QUEUE, "start_ns": 40, "end_ns": 41, "correlation_id": 3},
        ],
    )
    with pytest.warns(tk.TracekitWarning, match="the timeline lacks 1 arrows .* starts before the first"):
        begins, ends = drawn(made, tmp_path, "s"), drawn(made, tmp_path, "f")
    assert [(e["id"], e["ts"]) for e in begins] == [(1, "0.000"), (2, "0.000"), (3, "0.006")]
    assert [(e["id"], e["ts"], e["bp"]) for e in ends] == [(1, "0.010", "e"), (2, "0.012", "e"), (3, "0.030", "e")]
    assert {(e["pid"], e["tid"]) for e in begins} == {(7, 1)}


def test_a_view_that_is_not_correlated_has_no_arrows_and_no_projections(tmp_path: Path) -> None:
    made = trace(
        api_calls=[call(0, 4, correlation_id=1)], kernels=[kernel(10, 11, correlation_id=1)], nvtx_ranges=[push(0, 5)]
    )
    path = tmp_path / "bare.json"
    export.write(made._view, path, lambda *_: None, BY_DEFAULT)
    found = json.loads(path.read_text("utf-8"))["traceEvents"]
    assert [e["ph"] for e in found if e["ph"] != "M"] == ["X", "X", "X"]


def test_ranges_are_projected_on_each_stream_that_they_launched_on(tmp_path: Path) -> None:
    calls = [call(0, 4, correlation_id=1), call(6, 8, correlation_id=2)]
    kernels = [kernel(10, 20, correlation_id=1), kernel(30, 40, correlation_id=2, device_id=1)]
    made = trace(api_calls=calls, kernels=kernels, nvtx_ranges=[push(0, 9, "step")])
    projected = [e for e in drawn(made, tmp_path) if e["name"] == "step" and e["ts"] != "0.000"]
    assert [(e["ts"], e["dur"]) for e in projected] == [("0.010", "0.010"), ("0.030", "0.010")]
    groups = [names(made, tmp_path, "process_name")[e["pid"], 0] for e in projected]
    assert groups == ["GPU 0 · NVTX and sync · pid 7", "GPU 1 · NVTX and sync · pid 7"]


@pytest.mark.slow
def test_the_group_of_a_gpu_holds_only_what_keeps_it_busy(tmp_path: Path) -> None:
    """A viewer summarizes the slices of a collapsed group."""
    calls, kernels = [call(0, 4, correlation_id=1)], [kernel(10, 20, correlation_id=1)]
    syncs = [{**QUEUE, "start_ns": 0, "end_ns": 500}]
    made = trace(api_calls=calls, kernels=kernels, syncs=syncs, nvtx_ranges=[push(0, 9, "step")])
    groups = names(made, tmp_path, "process_name")
    on_gpu = [e["name"] for e in drawn(made, tmp_path) if groups[e["pid"], 0] == "GPU 0 · pid 7"]
    assert on_gpu == ["k"]


def test_copies_tell_their_throughput(tmp_path: Path) -> None:
    copy = {**QUEUE, "start_ns": 0, "end_ns": 1000, "bytes": 12_345_678, "copy_kind": "Host-to-Device"}
    first, second = drawn(trace(memcpys=[copy, {**copy, "end_ns": 0, "copy_kind": None}]), tmp_path)
    assert (first["name"], first["args"]["throughput_gb_per_s"]) == ("Memcpy Host-to-Device", "12345.678")
    assert (second["name"], "throughput_gb_per_s" in second["args"]) == ("Memcpy", False)


def test_payloads_and_colors(tmp_path: Path) -> None:
    rows = [
        push(0, 1, payload_type="uint64", payload_int=-1),
        push(2, 3, payload_type="int64", payload_int=-1),
        push(4, 5, payload_type="double", payload_float=float("nan"), color=0xFF76B900),
        push(6, 7, payload_type="double", payload_float=1e300),
        push(8, 9, payload_type="json", payload_text='{"a":"b\\n"}', category_id=3, category="io"),
        push(10, 11, None),
    ]
    slices = drawn(trace(nvtx_ranges=rows), tmp_path)
    assert [e["args"].get("payload") for e in slices] == [2**64 - 1, -1, "NaN", "1e+300", '{"a":"b\\n"}', None]
    assert slices[2]["args"]["color"] == "#76B900"
    assert slices[4]["args"]["category"] == "io"
    assert slices[5]["name"] == "(no text)"


def test_counters_and_instants(tmp_path: Path) -> None:
    sample = {"timestamp_ns": 1500, "device_id": 0, "metric_id": 4}
    made = trace(
        gpu_metrics=[{**sample, "metric": "SM Active [%]", "value": 7}, {**sample, "value": 0}],
        nvtx_marks=[{**THREAD, "timestamp_ns": 3, "name": "m"}],
        cuda_events=[{**QUEUE, "timestamp_ns": 9, "event_id": 5}, {**QUEUE, "timestamp_ns": None}],
    )
    counters = [(e["name"], e["ts"], e["args"]) for e in drawn(made, tmp_path, "C")]
    assert counters == [("SM Active [%]", "1.500", {"value": 7}), ("metric 4", "1.500", {"value": 0})]
    assert [(e["name"], e["ts"], e["s"]) for e in drawn(made, tmp_path, "i")] == [
        ("CUDA event 5", "0.009", "t"),
        ("m", "0.003", "t"),
    ]
    assert "GPU 0 · metrics" in names(made, tmp_path, "process_name").values()


def test_gzip_holds_the_same_text_and_is_always_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "BATCH_ROWS", 3)
    made = trace(kernels=[kernel(n, n + 2, name=f"k{n % 7}") for n in range(50)])
    plain = made.export(tmp_path / "a.json").read_bytes()
    packed = [made.export(tmp_path / f"{n}.json.gz").read_bytes() for n in "bc"]
    assert packed[0] == packed[1]
    assert gzip.decompress(packed[0]) == plain
    monkeypatch.setattr(export, "BATCH_ROWS", 1000)
    assert made.export(tmp_path / "d.json").read_bytes() == plain


def test_gzip_has_one_header_if_the_first_batches_are_empty(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    with BatchFile(path) as file:
        for batch in (b"", b"", b"text"):
            file.write(batch)
    assert gzip.decompress(path.read_bytes()) == b"text"


def test_progress_comes_to_its_end(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    view = trace(kernels=[kernel(0, 1)], api_calls=[call(0, 1)])._view
    export.write(view, tmp_path / "p.json", lambda *n: seen.append(n), BY_DEFAULT)
    assert seen == [(1, 2), (2, 2)]


def test_an_error_in_a_chunk_comes_out(tmp_path: Path) -> None:
    def fails() -> memoryview:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), BatchFile(tmp_path / "x.json") as file:
        file.write_job_results([fails] * 10)


def test_executions_of_nodes_lie_on_their_device_and_thread(tmp_path: Path) -> None:
    row = {
        "run": "train",
        "device": "/device:GPU:0",
        "node_name": "conv",
        "tag": "step 1",
        "step": 1,
        "output_count": 1,
    }
    rows = [
        {**row, "execution_id": 1, "thread_id": 7, "start_ns": 1500, "end_ns": 2500},
        {**row, "execution_id": 2, "thread_id": 7, "start_ns": 2000, "end_ns": 3000},
        {**row, "execution_id": 3, "device": None, "thread_id": None, "start_ns": 4000, "end_ns": None},
        {**row, "execution_id": 4, "start_ns": None},
    ]
    traced = trace(step_stats=rows)
    slices = drawn(traced, tmp_path)
    assert [(e["name"], e["ts"], e["dur"], e["args"]["execution_id"]) for e in slices] == [
        ("conv", "1.500", "1.000", 1),
        ("conv", "2.000", "1.000", 2),
        ("conv", "4.000", "0.000", 3),
    ]
    assert slices[0]["args"] == {"execution_id": 1, "tag": "step 1", "step": 1}
    tracks, groups = names(traced, tmp_path), names(traced, tmp_path, "process_name")
    assert [tracks[e["pid"], e["tid"]] for e in slices] == ["thread 7", "thread 7 · lane 2", "executor"]
    assert sorted(groups.values()) == ["/device:GPU:0 · train", "unknown device · train"]


MPI = {"process_id": 7, "thread_id": 8, "kind": "p2p", "tag": 5}


def chosen(of: tk.Trace, folder: Path, tracks: str) -> list[Event]:
    path = of.export(folder / "chosen.json", options={"tracks": tracks}, overwrite=True)
    whole: dict[str, list[Event]] = json.loads(path.read_text("utf-8"))
    return [e for e in whole["traceEvents"] if e["ph"] in "Xis"]


@pytest.mark.slow
def test_tracks_are_chosen_by_name(tmp_path: Path) -> None:
    made = trace(
        kernels=[kernel(0, 5, correlation_id=1)],
        api_calls=[call(0, 4, correlation_id=1)],
        syscalls=[{**THREAD, "start_ns": 1, "end_ns": 2, "name": "read"}],
        library_calls=[{**THREAD, "start_ns": 1, "end_ns": 2, "name": "cudnnCreate", "library": "cuDNN"}],
    )
    names_of = {
        tracks: [e["name"] for e in chosen(made, tmp_path, tracks)]
        for tracks in ("default", "all", "gpu", "api, gpu", "syscalls,libraries", "default,syscalls", "threads")
    }
    default = ["cudaLaunchKernel", "k", "launch", "cudnnCreate"]
    assert names_of == {
        "default": default,
        "all": [*default, "read"],
        "gpu": ["k"],
        "api, gpu": default[:3],
        "syscalls,libraries": ["cudnnCreate", "read"],
        "default,syscalls": [*default, "read"],
        "threads": [],
    }
    assert [e["name"] for e in drawn(made, tmp_path)] == ["cudaLaunchKernel", "k", "cudnnCreate"]
    with pytest.raises(
        UnknownFormatError, match=r"'sample' is not a valid value of the option 'tracks'\nHint: .*samples"
    ):
        chosen(made, tmp_path, "gpu,sample")


def test_every_kind_of_tracks_has_a_name() -> None:
    every = {*exporter.BY_DEFAULT, *exporter.ON_REQUEST}
    assert len(every) == len(exporter.BY_DEFAULT) + len(exporter.ON_REQUEST)
    assert kinds.group_kinds_by_stage(every) == kinds.STAGES
    assert all(kinds.group_kinds_by_stage([name]) for name in every)


def test_samples_have_their_call_stack(tmp_path: Path) -> None:
    where = {**THREAD, "timestamp_ns": 5_000, "stack_id": 2}
    made = trace(
        stacks=[{"depth": 1, "symbol": "main"}, {"depth": 2, "parent_id": 1, "symbol": 'do "it"'}],
        cpu_samples=[
            {**where, "cpu": 3, "thread_state": "Running"},
            {**where, "stack_id": None, "timestamp_ns": 6_000},
        ],
        python_samples=[{**where, "kind": "periodic"}],
    )
    found = chosen(made, tmp_path, "samples,python")
    assert [e["name"] for e in found] == ['do "it"', "sample", 'do "it"']
    assert [e["args"] for e in found] == [
        {"cpu_sample_id": 1, "cpu": 3, "thread_state": "Running", "stack": 'main;do "it"'},
        {"cpu_sample_id": 2},
        {"python_sample_id": 1, "stack": 'main;do "it"'},
    ]
    assert chosen(made, tmp_path, "default") == []


def test_states_of_threads_last_until_the_next_switch(tmp_path: Path) -> None:
    def switch(time: int, is_in: bool, **more: object) -> dict[str, object]:
        return {**THREAD, "timestamp_ns": 1000 * time, "is_scheduled_in": is_in, "cpu": 2, **more}

    states = [switch(0, True), switch(3, False, thread_state="Blocked"), switch(5, True)]
    more = [switch(6, False, thread_state="Unknown"), switch(8, True), switch(9, False)]
    made = trace(cpu_scheduling=[*states, *more, switch(9, True, thread_id=4)])
    found = [(e["name"], e["ts"], e["dur"], "open" in e["args"]) for e in chosen(made, tmp_path, "threads")]
    assert found == [
        ("CPU 2", 0, 3, False), ("Blocked", 3, 2, False), ("CPU 2", 5, 1, False), ("not running", 6, 2, False),
        ("CPU 2", 8, 1, False), ("CPU 2", 9, 0, True),
    ]  # fmt: skip


def test_arrows_between_mpi_calls(tmp_path: Path) -> None:
    names_of = {"send": "MPI_Send", "receive": "MPI_Recv"}
    rows = [
        {**MPI, "process_id": rank, "start_ns": start, "end_ns": end, "name": names_of[what], "remote_rank": 1 - rank}
        for rank, what, start, end in [(0, "send", 2000, 3000), (1, "receive", 1000, 4000), (0, "send", 6000, None)]
    ]
    rows.append({**rows[1], "start_ns": 7000, "end_ns": None})
    rows.append(
        {**MPI, "process_id": 1, "start_ns": 9000, "end_ns": 9500, "kind": "collectives", "name": "MPI_Barrier"}
    )
    rows.append({**rows[-1], "process_id": 0, "start_ns": 9200})
    world = [{"rank": n, "communicator": 100 + n, "local_rank": n, "size": 2} for n in (0, 1)]
    made = trace(
        mpi_calls=[{**row, "communicator": 100 + int(str(row["process_id"]))} for row in rows],
        mpi_ranks=[{"process_id": n, "thread_id": 8, "rank": n} for n in (0, 1)],
        mpi_communicators=world,
    )
    begins, ends = drawn(made, tmp_path, "s"), drawn(made, tmp_path, "f")
    assert [(e["name"], e["id"], e["ts"], e["pid"]) for e in begins] == [
        ("message", 1, "2.000", 0), ("message", 2, "6.000", 0), ("collective", 3, "9.000", 1),
    ]  # fmt: skip
    assert [(e["id"], e["ts"], e["pid"]) for e in ends] == [(1, "3.999", 1), (2, "7.000", 1), (3, "9.200", 0)]


def test_events_without_thread_have_tracks_of_their_own(tmp_path: Path) -> None:
    at = {"process_id": 7, "timestamp_ns": 1}
    made = trace(
        memory_pool_events=[{**at, "device_id": 1, "operation": "Created"}],
        gpu_context_switches=[{**at, "operation": "Save start"}],
        diagnostics=[{**at, "text": "hello", "severity": "Info"}],
    )
    found = chosen(made, tmp_path, "all")
    assert [e["name"] for e in found] == ["Created", "Save start", "hello"]
    listed = json.loads((tmp_path / "chosen.json").read_text("utf-8"))["traceEvents"]
    labels = {(e["pid"], e["tid"]): e["args"]["name"] for e in listed if e["name"] == "thread_name"}
    assert [labels[e["pid"], e["tid"]] for e in found] == ["memory pools", "context switches", "diagnostics"]


HOSTILE = st.text(max_size=5) | st.sampled_from(['"', "\\", "\0\x1f\x7f", "\u2028\u2029", "é" * 100_000, "\n\r\t"])
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
PAYLOAD = st.fixed_dictionaries(
    {},
    optional={
        "payload_int": INT64,
        "payload_type": st.sampled_from(["uint64", "int64"]),
        "payload_float": st.floats(),
        "payload_text": HOSTILE,
        "category": HOSTILE,
        "color": st.integers(0, (1 << 32) - 1),
    },
)


@settings(max_examples=15)
@given(st.lists(st.tuples(INT64.filter(lambda n: abs(n) < 1 << 61), st.none() | HOSTILE, PAYLOAD), max_size=9))
def test_events_are_those_of_the_rows(rows: list[tuple[int, str | None, dict[str, Any]]]) -> None:
    marks = [{**THREAD, "timestamp_ns": start, "name": name, **more} for start, name, more in rows]
    with tempfile.TemporaryDirectory() as folder:
        found = drawn(trace(nvtx_marks=marks), Path(folder), "i")
    shift = min(0, *(start for start, _, _ in rows)) if rows else 0
    assert [(e["ts"], e["name"]) for e in found] == [
        (f"{(start - shift) // 1000}.{(start - shift) % 1000:03}", "(no text)" if name is None else name)
        for start, name, _ in rows
    ]
    for event, (_, _, more) in zip(found, rows, strict=True):
        number = more.get("payload_int")
        real = more.get("payload_float")
        if number is not None:
            assert event["args"]["payload"] == (number % (1 << 64) if more.get("payload_type") == "uint64" else number)
        elif real is not None:
            assert str(float(event["args"]["payload"])) == str(real)
        else:
            assert event["args"].get("payload") == more.get("payload_text")
        assert event["args"].get("category") == more.get("category")
        color = more.get("color")
        assert event["args"].get("color") == (None if color is None else f"#{color % (1 << 24):06X}")
