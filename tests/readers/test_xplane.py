"""Profiles of XLA are read as the profiler's own trace, public figures and the messages themselves say."""

from __future__ import annotations

import csv
import gzip
import json
import random
import re
import time
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tracekit as tk
from tests.conftest import ALL
from tracekit import schemas
from tracekit.errors import CorruptTraceError, TracekitError, TracekitWarning
from tracekit.readers.common.kernel_names import shorten_kernel_name
from tracekit.readers.xplane import programs, sniff, space, viewer
from tracekit.registry.source import Source

FIXTURE = Path(__file__).parents[2] / "fixtures" / "xplane" / "train.xplane.pb"
CORPUS = Path(__file__).parents[3] / "shared" / "corpus" / "makers" / "xplane"
TPU = FIXTURE.with_name("tpu.xplane.pb")
DATA = FIXTURE.read_bytes()
KERNELS = {
    "jax08_gemm": {(0, 16): (42, 3_415_244), (0, 17): (12, 60_240)},
    "jax_conv_minimal_legacy": {(7, 1): (25, 3_586_493)},
    "test_data_jax_te_fused_attn_categorization": {(0, 2): (150, 12_133_585)},
    "GPU-multi-worker": {(4, 134): (665, 14_825_385), (6, 142): (665, 14_865_363)},
}
"""Number and total duration in ns of the kernels of each device and stream, as CATALOG.tsv and gpu_timeline.csv say."""


def message(kind: str, /, **fields: Any) -> Any:
    return schemas.load_message_class("xla_profile", kind)(**fields)


def load(path: Path) -> tk.Trace:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TracekitWarning)
        return tk.load(path)


class Plane:
    """Builds a plane whose events and values have names."""

    def __init__(self, name: str, **values: object) -> None:
        self.plane = message("XPlane", name=name.encode())
        self.names: dict[str, int] = {}
        self.plane.stats.extend(self.values(values))

    def name(self, text: str) -> int:
        if text not in self.names:
            self.names[text] = len(self.names) + 1
            self.plane.stat_metadata.add(key=self.names[text]).value.name = text.encode()
            self.plane.event_metadata.add(key=self.names[text]).value.name = text.encode()
        return self.names[text]

    def values(self, values: dict[str, object]) -> list[Any]:
        kinds = {int: "int64_value", float: "double_value", bytes: "bytes_value"}
        made = []
        for name, value in values.items():
            field = {kinds[type(value)]: value} if type(value) in kinds else {"ref_value": self.name(str(value))}
            made.append(message("XStat", metadata_id=self.name(name), **field))
        return made

    def line(self, number: int, name: str, *events: tuple[str, int, int, dict[str, object]], origin: int = 0) -> None:
        line = self.plane.lines.add(id=number, name=name.encode(), timestamp_ns=origin)
        for text, offset, duration, values in events:
            line.events.add(
                metadata_id=self.name(text), offset_ps=offset, duration_ps=duration, stats=self.values(values)
            )


def save(folder: Path, *planes: Plane, **fields: Any) -> Path:
    path = folder / "made.xplane.pb"
    path.write_bytes(message("XSpace", planes=[p.plane for p in planes], **fields).SerializeToString())
    return path


def events_of_trace_viewer() -> dict[str, list[tuple[str, int, int]]]:
    """Names, starts and durations in ns, in the trace that the profiler wrote beside the profile."""
    with gzip.open(FIXTURE.with_name("train.trace.json.gz")) as file:
        events = json.load(file)["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"}
    found: dict[str, list[tuple[str, int, int]]] = {name: [] for name in names.values()}
    for e in events:
        if e.get("ph") == "X":
            found[names[e["pid"]]].append((e["name"], round(e["ts"] * 1000), round(e["dur"] * 1000)))
    return {name: sorted(rows) for name, rows in found.items()}


def test_events_are_those_of_the_trace_viewer() -> None:
    expected = events_of_trace_viewer()
    span = ["name", "start_ns", (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns")]
    with tk.load(FIXTURE) as trace:
        kernels = trace.frame("kernels").select(span).collect().rows()
        on_host = [*trace.frame("nvtx_ranges").select(span).collect().rows()]
        on_host += trace.frame("api_calls").select(span).collect().rows()
    assert sorted(kernels) == expected["/device:GPU:0"]
    assert sorted(r[1:] for r in on_host) == sorted(r[1:] for r in expected["/host:CPU"])
    listed = {name for name, *_ in expected["/host:CPU"]} | {"ThenExecuteCallback:GetEventForComputeStreamSyncPoint"}
    is_listed = (
        name.split("#step_num")[0] in listed or re.sub(r"\((\d+)\):", r":\1", f"${name}") in listed
        for name, *_ in on_host
    )
    assert {name for (name, *_), known in zip(on_host, is_listed, strict=True) if not known} == {
        "Thunk:#hlo_op=command_buffer_1,hlo_module=jit_step,program_id=4640#",
        "XlaModule:#hlo_module=jit_step#",
        "cuGraphLaunch",
    }


@pytest.mark.parametrize("path", [FIXTURE, TPU])
def test_the_trace_beside_a_profile_has_the_same_kernels(path: Path) -> None:
    """It has neither what connects launches with runs on TPUs, nor asynchronous copies, nor the compiled programs."""
    columns = [
        "name",
        "start_ns",
        "end_ns",
        "device_id",
        "stream_id",
        "grid_x",
        "registers_per_thread",
        "graph_node_id",
    ]
    with load(path) as profile, load(path.with_name(path.name.replace("xplane.pb", "trace.json.gz"))) as trace:
        assert (trace.format, trace.info["tool"]) == ("xplane", "XLA profiler")
        expected, kernels = (t.frame("kernels").select(columns).sort(columns).collect() for t in (profile, trace))
        assert kernels.equals(expected)
        ops, found = (t.rollup().frame("ops").filter(pl.col("kernel_count") > 0).collect() for t in (profile, trace))
        assert trace.correlate().frame("kernels").select(pl.col("range_path").null_count()).collect().item() == 0
        assert not trace.undecoded
    if path == FIXTURE:
        assert found["op_name"].to_list() == ops["op_name"].to_list()
    else:
        assert {name.rpartition("/")[2] for name in ops["op_name"]} == {n.rpartition("/")[2] for n in found["op_name"]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "contains no events because it is truncated"),
        ('{"ph":"X","pid":1,"tid":1,"ts":2e15,"dur":1,"name":"a"}]}', "out of range"),
        ('{"ph":"X","pid":1,"tid":1,"ts":1,"dur":-1,"name":"a"}]}', "out of range"),
    ],
)
def test_damaged_traces_of_the_trace_viewer(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.trace.json"
    path.write_text('{"traceEvents":[{"ph":"M","pid":1,"name":"process_name","args":{"name":"/host:CPU"}},' + text)
    with pytest.raises(CorruptTraceError, match=said):
        load(path)


def test_traces_of_the_trace_viewer_may_lack_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.trace.json.gz"
    text = gzip.decompress(FIXTURE.with_name("train.trace.json.gz").read_bytes())
    others = b'{"ph":"X","pid":1,"tid":1,"name":"x"},{"ph":"i","pid":1},'
    path.write_bytes(gzip.compress(text[:-2000].replace(b'"traceEvents":[', b'"traceEvents":[' + others)))
    monkeypatch.setattr(viewer, "MAX_EVENTS", 100)
    with pytest.warns(TracekitWarning) as caught:
        trace = tk.load(path)
    with trace:
        assert 0 < trace.count("kernels") < 155
        assert trace.undecoded["other events of the trace viewer"].count == 2
    said = " ".join(str(w.message) for w in caught)
    assert "complete events were read" in said
    assert "the profiler leaves out all others: the profile beside it (.xplane.pb) contains them" in said


def test_what_a_profile_of_jax_says() -> None:
    with tk.load(FIXTURE) as trace:
        assert (trace.format, trace.info["tool"], trace.info["jax_version"]) == ("xplane", "XLA profiler", "0.11.2")
        assert trace.info["origin_utc_ns"] == "1795737883525913511"
        (device,) = trace["devices"].to_pylist()
        assert (device["name"], device["sm_count"], device["clock_rate_hz"]) == (
            "NVIDIA H100 80GB HBM3",
            132,
            1_980_000_000,
        )
        assert (device["compute_major"], device["compute_minor"]) == (9, 0)
        assert (device["memory_bytes"], device["memory_bandwidth_bytes_per_s"]) == (85_017_493_504, 3_352_320_000_000)
        first = trace["kernels"].slice(0, 1).to_pylist()[0]
        shown = ("name", "grid_x", "block_x", "registers_per_thread", "dynamic_shared_memory_bytes", "graph_id")
        assert [first[c] for c in shown] == ["gemm_fusion_dot_6", 256, 128, 106, 65_584, 2]
        assert first["graph_node_id"] == 2 << 32
        assert trace.frame("memory_events").select("operation", "bytes").collect().height == 90
        ranges = trace.frame("nvtx_ranges").filter(pl.col("name") == "train#step_num=4#").collect()
        assert json.loads(ranges["payload_text"][0]) == {"_r": 1, "step_num": 4}
        assert ranges["domain"].to_list() == [None]
        linked = trace.correlate().frame("kernels").select("range_name", "range_path", "process_id").collect()
    assert linked["range_name"].null_count() == 0
    assert linked["range_path"].cast(pl.String).str.starts_with("train#step_num=").all()
    assert linked["process_id"].unique().to_list() == [784]


def test_ops_are_those_of_the_programs() -> None:
    with tk.load(FIXTURE) as trace:
        ops = trace.rollup().frame("ops").collect()
        instructions = trace.frame("hlo_instructions").collect()
    assert ops.filter(pl.col("kernel_count") > 0)["op_name"].to_list() == [
        "train#step_num=*#/jit_step/command_buffer_1"
    ]
    step = instructions.filter(pl.col("program") == "jit_step")
    assert {*step["program_id"]} == {4640}
    dot = step.filter(pl.col("name") == "dot.17").row(0, named=True)
    assert dot["op_name"] == "jit(step)/jvp(layer0)/dot_general"
    assert dot["text"] == (
        "%dot.17 = f32[4,512,1024]{2,1,0} dot(bf16[512,4,256]{2,1,0} %parameter_0, bf16[4,256,1024]{2,1,0} "
        "%parameter_1), lhs_batch_dims={1}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}"
    )
    assert not instructions["text"].str.contains(r"\.py").any()
    scheduled = step.filter("is_entry", opcode="fusion").sort("position")["name"].to_list()
    assert scheduled[:3] == ["gemm_fusion_dot.6", "loop_multiply_fusion", "gemm_fusion_dot.7"]
    assert scheduled[-2:] == ["loop_add_fusion.4", "gemm_fusion_dot"]
    assert step.filter(~pl.col("is_entry"), opcode="dot")["position"].null_count() == 17


def test_kernels_of_a_graph_belong_to_the_layers_of_the_program() -> None:
    with tk.load(FIXTURE, layers="capture") as trace:
        ops = trace.rollup().frame("ops").filter(pl.col("kernel_count") > 0).collect()
        assert trace.correlate().frame("kernels").select(pl.col("capture_confidence").min()).collect().item() > 0.9
    products = ops.filter(pl.col("op_type") == "gemm_fusion_dot")
    names = products["op_name"].cast(pl.String).str.extract(r"^train#step_num=\*#/jit_step/(layer\d)/")
    by_layer = products.with_columns(layer=names).group_by("layer", "direction").agg(pl.col("kernel_count").sum())
    assert {(layer, direction): count for layer, direction, count in by_layer.rows()} == {
        (f"layer{i}", direction): 5 if direction == "fprop" or i == 0 else 10
        for i in range(6)
        for direction in ("fprop", "bprop")
    }


@pytest.mark.corpus
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_of_public_profiles(name: str) -> None:
    paths = list(CORPUS.rglob(f"{name}/*.xplane.pb"))
    if not paths:
        pytest.skip("no public profiles")
    duration = (pl.col("end_ns") - pl.col("start_ns")).sum()
    with load(paths[0]) as trace:
        linked = trace.correlate().frame("kernels").collect()
        copies = trace.frame("memcpys").select(pl.len(), ns=duration).collect().row(0)
        by = linked.group_by("device_id", "stream_id").agg(n=pl.len(), ns=duration).rows()
    assert {(device, stream): (n, ns) for device, stream, n, ns in by} == KERNELS[name]
    assert linked["api_call_id"].null_count() == 0
    if name == "jax_conv_minimal_legacy":
        assert copies == (53, 889_028)


@pytest.mark.corpus
def test_ops_of_a_public_profile_are_those_of_tracelens() -> None:
    folder = CORPUS / "AMD-AGI__TraceLens"
    if not folder.exists():
        pytest.skip("no public profiles")
    with (folder / "jax_conv_minimal_perf_report_csvs" / "kernel_launchers.csv").open() as file:
        expected = [(row["name"], round(float(row["total_direct_kernel_time"]) * 1000)) for row in csv.DictReader(file)]
    with load(next(folder.glob("jax_conv_minimal_legacy/*.pb"))) as trace:
        kernels = trace.frame("kernels").select("name", pl.col("end_ns") - pl.col("start_ns")).collect()
        ops = trace.rollup().frame("ops").filter(pl.col("kernel_count") > 0).collect()
    assert sorted(kernels.rows()) == sorted(expected)
    convolution = ops.filter(pl.col("op_type") == "cudnn-conv").row(0, named=True)
    assert (convolution["instance_count"], convolution["kernel_count"]) == (5, 10)
    assert convolution["op_name"].startswith("jit_forward_3d_conv/")


def test_streams_lines_and_devices_of_every_kind(tmp_path: Path) -> None:
    gpu = Plane("/device:GPU:1", device_vendor="AMD", clock_rate=2_100_000, core_count=0, compute_cap_major=9)
    details = {"kernel_details": " grid:5,6,7 block:8,1,1 private_mem:0 group_mem:64 occ_pct:0"}
    gpu.line(
        3,
        "Stream #3(Kernel)",
        ("void ns::f<int>(int).kd", 2_500, 1_700, {**details, "correlation_id": 1, "context_id": "$$4"}),
        ("g", 10_000, 1_000, {"kernel_details": "regs:2191500840 static_shared:9 grid:1,1,1 block:2,2,2"}),
        ("MemcpyH2D", 20_000, 1_000, {"memcpy_details": "kind_src:pageable kind_dst:device size:40 dest:0 async:1"}),
        ("CopyDeviceToDevice", 20_000, 1_000, {"memcpy_details": "kind:Unknown size:7"}),
        ("Memset", 30_000, 1_000, {"memset_details": "kind:device size:12 async:1"}),
        ("MemsetLater", 30_000, 0, {}),
        ("CudaGraph:5", 40_000, 9_000, {"cuda_graph_id": 5, "correlation_id": 8}),
        ("Residency", 1, 0, {"memory_residency_details": "x"}),
    )
    gpu.line(9, "Steps", ("0", 0, 5_000, {}))
    others = Plane("/device:CUSTOM:x")
    others.line(1, "a", ("b", 0, 0, {}))
    path = save(tmp_path, gpu, others, errors=[b"e"], warnings=[b"w", b"w"])
    with pytest.warns(TracekitWarning) as caught:
        trace = tk.load(path)
    said = " ".join(str(w.message) for w in caught)
    assert "1 error:" in said
    assert "2 warnings:" in said
    with trace:
        (mark,) = trace["nvtx_marks"].to_pylist()
        assert (mark["name"], mark["thread_id"], trace["threads"].to_pylist()[0]["name"]) == (
            *("b", -1),
            "/device:CUSTOM:x a",
        )
        kernels, copies, sets = (trace[name].to_pylist() for name in ("kernels", "memcpys", "memsets"))
        (graph,), (device,) = trace["graph_launches"].to_pylist(), trace["devices"].to_pylist()
        undecoded = trace.undecoded
    assert [(k["start_ns"], k["end_ns"], k["short_name"], k["stream_id"], k["context_id"]) for k in kernels] == [
        (2, 4, "f", 3, 4),
        (10, 11, "g", 3, None),
    ]
    assert [kernels[0][f"grid_{axis}"] for axis in "xyz"] == [5, 6, 7]
    assert (kernels[0]["static_shared_memory_bytes"], kernels[1]["static_shared_memory_bytes"]) == (64, None)
    assert (kernels[1]["registers_per_thread"], kernels[1]["block_z"]) == (None, 2)
    assert [(c["copy_kind"], c["bytes"], c["src_memory_kind"]) for c in copies] == [
        ("Host-to-Device", 40, "Pageable"),
        ("Device-to-Device", 7, None),
    ]
    assert [(m["bytes"], m["memory_kind"]) for m in sets] == [(12, "Device"), (None, None)]
    assert (graph["graph_id"], graph["correlation_id"]) == (5, 8)
    assert (device["device_id"], device["compute_major"], device["sm_count"]) == (1, None, 0)
    assert {name: (kind.count, kind.is_auxiliary) for name, kind in undecoded.items()} == {
        "memory events on streams": (1, False),
        "derived events of GPUs": (1, False),
        "messages of the profiler": (3, True),
    }


def read_xprof(path: Path) -> dict[str, Any]:
    truth: dict[str, Any] = json.loads(path.with_name(path.name.replace("xplane.pb", "xprof.json")).read_bytes())
    return truth


def sum_durations(trace: tk.Trace, *by: str) -> dict[Any, tuple[int, int]]:
    duration = (pl.col("end_ns") - pl.col("start_ns")).sum()
    rows = trace.correlate().frame("kernels").group_by(*by).agg(n=pl.len(), ns=duration).collect()
    return {row[0] if len(by) == 1 else row[:-2]: row[-2:] for row in rows.rows()}


def test_kernels_of_gpus_are_those_of_xprof() -> None:
    truth = read_xprof(FIXTURE)
    with tk.load(FIXTURE) as trace:
        assert sum_durations(trace, "name") == {name: (n, round(ns)) for name, (n, ns) in truth["kernels"].items()}
        kernels = (
            trace.correlate().frame("kernels").select("start_ns", "end_ns", "range_path").sort("start_ns").collect()
        )
    step = pl.col("range_path").cast(pl.String).str.extract(r"step_num=(\d+)#")
    covered = pl.col("end_ns") - pl.max_horizontal("start_ns", pl.col("end_ns").cum_max().shift().over("step"))
    busy = kernels.with_columns(step=step).with_columns(busy=pl.max_horizontal(covered, 0))
    by_step = busy.group_by("step").agg(pl.col("busy").sum()).sort("step")["busy"].to_list()
    assert by_step == [round(1e6 * step["deviceComputeTimeMs"]) for step in truth["steps"]]


@pytest.mark.parametrize("path", [FIXTURE, TPU])
def test_allocations_are_those_of_xprof(path: Path) -> None:
    truth = read_xprof(path)["memory"]
    columns = ["device_id", "timestamp_ns", "operation", "address", "bytes"]
    with load(path) as trace:
        events = trace.frame("memory_events").select(columns).sort("timestamp_ns").collect()
    allocators = {int(re.sub(r"\D", "", name)): rows for name, rows in truth.items()}
    assert {*events["device_id"]} == {*allocators}
    origin = min(rows[0][0] for rows in allocators.values()) // 1000 - events["timestamp_ns"].min()
    for device, rows in allocators.items():
        expected = [(ps // 1000 - origin, kind.capitalize(), address, size) for ps, kind, address, size in rows]
        own = events.filter(pl.col("device_id") == device).drop("device_id")
        assert own.rows() == expected
        assert len(expected) == (90 if path == FIXTURE else 5)


def test_ops_and_steps_of_tpus_are_those_of_xprof() -> None:
    """Times agree but for the rounding to ns of each event. XProf adds to loops the time between the ops in them."""
    truth = read_xprof(TPU)
    with tk.load(TPU) as trace:
        ops = {f"12190760917235803885/{name}": value for name, value in sum_durations(trace, "name").items()}
        windows = trace.rollup().frame("iterations").collect()
        bounds = windows.select("window_start_ns", "window_end_ns").rows()
        costs = trace.frame("hlo_instructions").select("name", "flop").collect()
        kernels = trace.frame("kernels").select(pl.col("name").cast(pl.String)).collect()
    assert kernels.join(costs, on="name")["flop"].sum() == truth["flop"]
    loops = {name for name in truth["ops"] if "while" in name}
    assert {*truth["ops"]} - loops == {*ops}
    for name, (count, ns) in ops.items():
        expected, expected_ns = truth["ops"][name]
        assert count == expected
        assert abs(ns - expected_ns) <= count
    steps_ns = [1e6 * step["tcComputeTimeMs"] for step in truth["steps"]]
    for (start, end), expected_ns in list(zip(bounds, steps_ns, strict=True))[1:]:
        assert abs(end - start - 3_000 - expected_ns) < 2_000  # the gap between two runs belongs to no step of XProf


def test_what_a_profile_of_tpus_says() -> None:
    with tk.load(TPU) as trace:
        (first, _), (copy, *_) = trace["devices"].to_pylist(), trace["memcpys"].to_pylist()
        assert (first["name"], first["peak_flop_per_s"]) == ("TPU v6 Lite", 918 * 10**12)
        assert first["memory_bandwidth_bytes_per_s"] == 1_637_993_152_512
        assert (copy["copy_kind"], copy["bytes"], copy["src_memory_kind"], copy["stream_id"]) == (
            *("Host-to-Device", 32 << 20),
            *("Pinned", 4),
        )
        kernels = trace.correlate().frame("kernels").collect()
        assert kernels["api_call_id"].null_count() == 0
        assert kernels.filter(pl.col("name") == "while.4").is_empty()
        kinds = kernels.select("name", "operation").unique().rows()
        assert {*kinds} >= {("fusion.2", "convolution fusion dot_general"), ("copy-done.1", "copy-done")}
        categories = tk.stats(trace, "kernel_categories").rows_by_key("Category", named=True, unique=True)
        assert (categories["gemm"]["Instances"], categories["communication"]["Instances"]) == (16, 8)
        by = (
            kernels.group_by("device_id", "stream_id").agg(pl.col("short_name").unique().len()).sort("device_id").rows()
        )
        assert by == [(0, 3, 5), (1, 3, 5)]
        paths = kernels.filter(pl.col("name") == "reduce.6")["range_path"].unique()
        text = "Thunk:#name=jit(step)/jvp(scan)/while/body/layer1/reduce_sum,hlo_op=reduce.6,hlo_module=jit_step,"
        assert len(paths) == 4
        assert all(text in path for path in paths)
        assert all(path.startswith("train#step_num=") for path in paths)
        ops = trace.rollup().frame("ops").filter(pl.col("kernel_count") > 0).collect()
        memory = (
            trace.frame("memory_events").group_by("device_id", "operation").agg(pl.len()).sort("device_id").collect()
        )
        named = trace.frame("nvtx_ranges").filter(pl.col("thread_id") < 0).collect()
        assert not trace.undecoded
    assert ops.select("op_name", "direction", "kernel_count").filter(
        pl.col("op_name").cast(pl.String).str.ends_with("fusion.3")
    ).rows() == [("train#step_num=*#/jit_step/layer0/dot_general/fusion.3", "bprop", 8)]
    assert {row[:2]: row[2] for row in memory.rows()} == {
        (device, kind): count for device in (0, 1) for kind, count in (("Allocation", 4), ("Deallocation", 1))
    }
    assert named["domain"].unique().to_list() == ["TraceMe"]
    assert named.filter(pl.col("name") == "while.4").height == 8


def build_core(number: int, *runs: tuple[str, int, int, dict[str, object]], **lines: Any) -> Plane:
    core = Plane(f"/device:TPU:{number}")
    if runs:
        core.line(2, "XLA Modules", *runs)
    for i, (name, events) in enumerate(lines.items(), start=3):
        core.line(i, name.replace("_", " "), *events)
    return core


def test_ops_without_launch_belong_to_their_device(tmp_path: Path) -> None:
    """Then steps are those of the first device, and an op with no place of its own belongs to its program."""
    ops = [(f"%op.{i} = f32[] add()", 10_000 + 1_000 * i, 1_000, {}) for i in range(5)]
    runs = [("jit_f(7)", 10_000, 4_000, {}), ("jit_g(8)", 100_000, 9_000, {})]
    core = build_core(3, *runs, XLA_Ops=ops, Steps=[("5", 0, 50_000, {}), ("x", 60_000, 1, {})])
    host = Plane("/host:CPU")
    host.line(1, "python", ("x", 0, 1_000, {"_p": 3, "_pt": 12}))
    with load(save(tmp_path, core, host)) as trace:
        kernels = trace.correlate().frame("kernels").collect()
        (launch,), calls = trace["graph_launches"].to_pylist(), trace["api_calls"].to_pylist()
        own = trace.frame("nvtx_ranges").filter(pl.col("domain") == "TSL").collect()
        steps = trace.frame("nvtx_ranges").filter(pl.col("domain").is_null()).collect()
    assert steps.select("name", "start_ns", "end_ns").rows() == [("step#step_num=5#", 0, 50)]
    assert kernels["range_path"].cast(pl.String).str.starts_with("step#step_num=5#/jit_f(7)/XlaModule:").all()
    assert [path.rpartition("/")[2] for path in kernels["range_path"]] == [
        *(f"Thunk:#hlo_op=op.{i},hlo_module=jit_f,program_id=7#" for i in range(3)),
        *["XlaModule:#hlo_module=jit_f#"] * 2,
    ]
    assert (launch["graph_id"], launch["start_ns"], launch["device_id"]) == (8, 100, 3)
    assert len(calls) == 5
    assert own.filter(pl.col("name").cast(pl.String).str.contains("jit_g"))["end_ns"].to_list() == [101]


def test_times_of_ops_are_those_of_the_clock_of_the_device(tmp_path: Path) -> None:
    """A run begins at the time of its first op, or at the end of the previous run if that is later."""

    def op(name: str, at: int, duration: int, device: int, real: int) -> tuple[str, int, int, dict[str, object]]:
        values: dict[str, object] = {"device_offset_ps": device * 1000, "device_duration_ps": real * 1000}
        return f"%{name} = f32[] add()", at * 1000, duration * 1000, values

    first = [op("a", 100, 10, 5100, 30), op("b", 110, 90, 5130, 50)]
    second = [op("c", 150, 20, 5200, 10), op("d", 171, 3, 5215, 5)]
    third = [op("e", 178, 2, 5300, 1), ("%f = f32[] add()", 181_000, 5_000, {})]
    runs = [("f", 100_000, 49_000, {}), ("f", 150_000, 25_000, {}), ("f", 178_000, 40_000, {})]
    with load(save(tmp_path, build_core(0, *runs, XLA_Ops=[*first, *second, *third]))) as trace:
        rows = trace.frame("kernels").select("name", "start_ns", "end_ns").sort("name").collect().rows()
    assert rows == [
        *[("a", 100, 130), ("b", 130, 180), ("c", 180, 190), ("d", 195, 200)],
        *[("e", 178, 180), ("f", 181, 186)],
    ]


def test_launches_are_followed_through_threads(tmp_path: Path) -> None:
    """A handover counts only if its event is inside of the event that took the previous one."""
    host = Plane("/host:CPU")
    host.line(1, "main", ("train", 0, 90_000, {"step_num": 1}), ("call", 10_000, 20_000, {"_pt": 5, "_p": 1}))
    host.line(
        2,
        "worker",
        ("taken", 40_000, 50_000, {"_ct": 5, "_c": 1}),
        ("other", 41_000, 1_000, {"_ct": 5, "_c": 99}),
        ("enqueue", 45_000, 5_000, {"_pt": 12, "_p": 4}),
        ("enqueue", 95_000, 5_000, {"_pt": 12, "_p": 5}),
    )
    runs = [("f(1)", 200_000, 10_000, {"_ct": 12, "_c": 4}), ("f(1)", 300_000, 10_000, {"_ct": 12, "_c": 5})]
    ops = [("%a = f32[] add()", at, 1_000, {}) for at in (201_000, 301_000)]
    with load(save(tmp_path, host, build_core(0, *runs, XLA_Ops=ops))) as trace:
        kernels = trace.correlate().frame("kernels").sort("start_ns").collect()
    assert kernels["thread_id"].to_list() == [1, 2]
    assert kernels["api_start_ns"].to_list() == [11, 96]


def test_ops_of_programs_that_are_not_in_the_profile_are_instructions(tmp_path: Path) -> None:
    core = build_core(0, ("jit_f(7)", 0, 9_000, {}), XLA_Ops=[("%dot.1 = f32[2]{0} dot(f32[2]{0} %a)", 0, 1_000, {})])
    key = core.name("%dot.1 = f32[2]{0} dot(f32[2]{0} %a)")
    entry = next(e for e in core.plane.event_metadata if e.key == key)
    entry.value.stats.extend(core.values({"hlo_category": "convolution", "flops": 12, "bytes_accessed": 34}))
    with load(save(tmp_path, core)) as trace:
        (row,) = trace["hlo_instructions"].to_pylist()
    shown = ("program_id", "program", "name", "opcode", "category", "flop", "model_flop", "accessed_bytes")
    assert [row[c] for c in shown] == [7, "jit_f", "dot.1", "dot", "convolution", 12, None, 34]


def test_operations_of_cpus_are_ranges_of_programs(tmp_path: Path) -> None:
    host, metadata = Plane("/host:CPU"), Plane("/host:metadata")
    op = {"hlo_op": "dot.1", "hlo_module": "jit_f", "program_id": 9}
    host.line(1, "tf_XLAEigen/1", ("dot.1", 0, 5_000, op), ("add.2", 5_000, 5_000, {**op, "hlo_op": "add.2"}))
    module = message("HloModuleProto", name=b"m", computations=[message("HloComputationProto", name=b"e", id=1)])
    instruction = module.computations[0].instructions.add(name=b"dot.1", opcode=b"dot")
    instruction.metadata.op_name = b"jit(f)/dot_general"
    key = metadata.name("f")
    entry = next(e for e in metadata.plane.event_metadata if e.key == key)
    proto = message("HloProto", hlo_module=module).SerializeToString()
    entry.value.stats.extend(metadata.values({"Hlo Proto": proto, "program_id": 9}))
    with load(save(tmp_path, host, metadata)) as trace:
        rows = trace.frame("nvtx_ranges").select("domain", "name", "start_ns", "end_ns").collect().rows()
        names = trace.rollup().frame("ops").collect()["op_name"].to_list()
    assert rows == [
        ("TSL", "Thunk:#name=jit(f)/dot_general,hlo_op=dot.1,hlo_module=jit_f,program_id=9#", 0, 5),
        ("TSL", "Thunk:#hlo_op=add.2,hlo_module=jit_f,program_id=9#", 5, 10),
    ]
    assert {*names} == {"dot_general/dot.1", "add.2"}


@pytest.mark.corpus
def test_ops_of_a_public_profile_of_tpus() -> None:
    """The numbers are those of XProf 2.24 (``hlo_stats``), in us."""
    path = CORPUS / "openxla__xprof" / "tpu_inference_2.xplane.pb"
    if not path.exists():
        pytest.skip("no public profiles")
    with load(path) as trace:
        totals = sum_durations(trace, "name")
        linked = trace.correlate().frame("kernels").select(pl.col("api_call_id").null_count()).collect().item()
        copies = trace.frame("memcpys").select(pl.len(), pl.col("bytes").min()).collect().row(0)
        threads = trace.frame("threads").filter(pl.col("thread_id") < 0).collect().height
    assert totals["copy-done.4"][0] == 400
    assert abs(totals["copy-done.4"][1] - 77_773_215_731) < 400
    assert abs(totals["broadcast_add_fusion.1"][1] - 3_262_107_414) < 400
    assert abs(totals["all-reduce"][1] - 1_460_345_259) < 12
    assert (linked, copies, threads) == (0, (600, 5_368_709_120), 8)


def test_threads_of_api_calls_are_those_of_their_ranges(tmp_path: Path) -> None:
    host = Plane("/host:CPU")
    host.line(
        -77,
        "python3/-77",
        ("outer", 0, 100_000, {"step": 3, "f": 0.5, "nan": float("nan"), "b": b"x", "_src": "y"}),
        ("dot.1", 1_000, 9_000, {}),
        ("dot.1", 20_000, 9_000, {}),
        ("jit_f:XLA GPU module", 500, 50_000, {}),
        ("$a.py:3 g", 60_000, 10_000, {}),
        ("mark", 5_000, 0, {}),
        ("MemoryAllocation", 6_000, 0, {"allocator_name": "GPU_2_bfc", "addr": 64, "allocation_bytes": 32}),
        ("MemoryDeallocation", 6_000, 0, {"allocator_name": "gpu_host_bfc", "addr": 64, "allocation_bytes": 32}),
    )
    op = {"hlo_op": "dot.1", "hlo_module": "jit_f", "program_id": 9, "name": "jit(f)/jvp(a)/dot", "tf_op": "XlaModule:"}
    host.line(
        12,
        "Host Threads/12",
        ("cuLaunchKernel", 2_000, 1_000, {"correlation_id": 1, **op}),
        ("cuLaunchKernel", 4_000, 1_000, {"correlation_id": 2, **op}),
        ("hipLaunchKernel", 21_000, 1_000, {"correlation_id": 3, **op}),
        ("cudaMemcpy (x)", 22_000, 1_000, {"correlation_id": 4}),
        ("void kernel<int>", 23_000, 1_000, {"correlation_id": 5}),
    )
    tensorflow = {"annotation": "a::conv/Conv2D:Conv2D#shape=(1)#"}
    plain = {"tf_op": "jit(g)/add:", "program_id": 1}
    host.line(
        13,
        "old",
        ("x", 0, 1_000_000, {}),
        ("cuLaunchKernel", 2_000, 1_000, {"correlation_id": 6, **plain}),
        ("cuLaunchKernel", 4_000, 1_000, {"correlation_id": 7, **plain}),
        ("y", 6_000, 500, {}),
        ("cuLaunchKernel", 7_000, 1_000, {"correlation_id": 8, **plain}),
        ("cuLaunchKernel", 9_000, 1_000, {"correlation_id": 9, **tensorflow}),
    )
    with load(save(tmp_path, host)) as trace:
        ranges = trace.frame("nvtx_ranges").collect()
        calls = trace["api_calls"].to_pylist()
        threads = {t["thread_id"]: t["name"] for t in trace["threads"].to_pylist()}
        marks, (memory,) = trace["nvtx_marks"].to_pylist(), trace["memory_events"].to_pylist()
        undecoded = trace.undecoded
    assert threads == {12: "python3", 13: "old"}
    thunk = "Thunk:#name=jit(f)/jvp(a)/dot,hlo_op=dot.1,hlo_module=jit_f,program_id=9#"
    rows = ranges.select("thread_id", "start_ns", "end_ns", "domain", "name").rows()
    assert {r for r in rows if r[3] != "TraceMe"} == {
        (12, 1, 10, "TSL", thunk),
        (12, 20, 29, "TSL", thunk),
        (12, 0, 50, "TSL", "XlaModule:#hlo_module=jit_f#"),
        (12, 60, 70, "python_function", "a.py(3): g"),
        (13, 2, 5, "TSL", "Thunk:#name=jit(g)/add,program_id=1#"),
        (13, 7, 8, "TSL", "Thunk:#name=jit(g)/add,program_id=1#"),
        (13, 9, 10, "tensorflow-core", "Conv2D: conv/Conv2D"),
    }
    outer = ranges.filter(pl.col("name") == "outer")["payload_text"][0]
    assert json.loads(outer) == {"step": 3, "f": 0.5, "nan": "nan", "b": None}
    assert [(c["name"], c["api"]) for c in calls[2:5]] == [
        ("hipLaunchKernel", "HIP runtime"),
        ("cudaMemcpy", "CUDA runtime"),
        (None, None),
    ]
    assert [m["name"] for m in marks] == ["mark"]
    assert (memory["device_id"], memory["bytes"], memory["operation"]) == (2, 32, "Allocation")
    assert {name: kind.count for name, kind in undecoded.items()} == {"memory events of the host": 1}


def test_absolute_times_are_made_relative(tmp_path: Path) -> None:
    host, metadata = Plane("/host:CPU", process_id=5), Plane("/host:metadata")
    utc = 1_700_000_000_000_000_000
    host.line(1, "a", ("x", 3_000, 2_000, {}), origin=utc)
    with load(save(tmp_path, host, metadata, hostnames=[b"node-17.example"])) as trace:
        assert not any("node-17" in pl.DataFrame(trace[name]).write_csv() for name in trace.tables)
        assert [(r["start_ns"], r["end_ns"]) for r in trace["nvtx_ranges"].to_pylist()] == [(0, 2)]
        assert trace.info["origin_utc_ns"] == str(utc + 3)
        assert trace["processes"].to_pylist() == [{"process_id": 5, "name": None}]


def add_total(plane: Plane, line: int, name: str, count: int, duration_ps: int, **values: object) -> None:
    plane.plane.lines[line].events.add(
        metadata_id=plane.name(name), num_occurrences=count, duration_ps=duration_ps, stats=plane.values(values)
    )


def test_events_that_stand_for_several_are_totals(tmp_path: Path) -> None:
    """A loop counts without the ops in it, and the events of all steps count together."""
    core = build_core(1, XLA_Ops=[("%fusion.1 = f32[] fusion()", 0, 5_000, {})], Steps=[])
    for group in (0, 1):
        add_total(core, 0, "%fusion.1 = f32[] fusion()", 3, 4_700, min_duration_ps=1_200 + group, group_id=group)
    add_total(core, 0, "%while.2 = f32[] while()", 1, 20_000, self_duration_ps=2_500)
    add_total(core, 1, "7", 1, 30_000)
    gpu, host = Plane("/device:GPU:0"), Plane("/host:CPU")
    gpu.line(3, "Stream #3(Kernel)")
    add_total(gpu, 0, "k<1>", 2, 999)
    gpu.line(4, "XLA Ops")
    add_total(gpu, 1, "derived", 2, 999)
    host.line(1, "a")
    add_total(host, 0, "x", 0, 0)
    with load(save(tmp_path, core, gpu, host)) as trace:
        columns = ["device_id", "kind", "name", "path", "depth", "count", "total_ns", "min_ns"]
        rows = trace.frame("activity_totals").select(columns).collect().rows()
        assert trace.count("kernels") == 1
        assert {name: kind.count for name, kind in trace.undecoded.items()} == {"derived events of GPUs": 1}
        assert trace.stats("activity_total_sum")["Name"].to_list() == ["fusion.1", "while.2", "k<1>"]
    assert rows == [
        (2, "activity", "fusion.1", "fusion.1", 0, 6, 9, 1),
        (2, "activity", "while.2", "while.2", 0, 1, 2, 20),
        (2, "scope", "7", "7", 0, 1, 30, 30),
        (0, "activity", "k<1>", "k<1>", 0, 2, 0, None),
        (None, "scope", "x", "x", 0, 0, 0, None),
    ]


@pytest.mark.parametrize("event", [{"num_occurrences": -1}, {"num_occurrences": 1, "duration_ps": -1}])
def test_totals_are_checked(event: dict[str, int], tmp_path: Path) -> None:
    host = Plane("/host:CPU")
    host.line(1, "a")
    host.plane.lines[0].events.add(**event)
    with pytest.raises(CorruptTraceError, match="the duration or the number of occurrences of an event"):
        load(save(tmp_path, host))


def test_a_plane_that_is_repeated_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "twice.xplane.pb"
    path.write_bytes(DATA + DATA)
    with pytest.warns(TracekitWarning, match="5 planes repeat others byte for byte and are read once"):
        trace = tk.load(path)
    with trace, load(FIXTURE) as once:
        for name in once.tables:
            assert trace[name] == once[name]
        repeated = trace.undecoded["repeated planes"]
        assert (repeated.count, repeated.is_auxiliary) == (5, True)


def test_planes_with_the_same_name_and_other_events_are_read(tmp_path: Path) -> None:
    gpus = []
    for start in (1_000, 5_000):
        gpus.append(Plane("/device:GPU:0"))
        gpus[-1].line(3, "Stream #3(Kernel)", ("k", start, 1_000, {}))
    with load(save(tmp_path, *gpus)) as trace:
        assert trace["kernels"]["start_ns"].to_pylist() == [1, 5]
        assert trace.count("devices") == 1
        assert not trace.undecoded


def test_threads_have_the_names_that_the_trace_viewer_shows(tmp_path: Path) -> None:
    host = Plane("/host:CPU")
    host.line(5, "python/5", ("x", 0, 1_000, {}))
    host.line(6, "", ("y", 0, 1_000, {}))
    for line, name in zip(host.plane.lines, (b"main loop", b"other"), strict=True):
        line.display_name = name
    with load(save(tmp_path, host)) as trace:
        assert trace["threads"].select(["thread_id", "name"]).to_pylist() == [
            {"thread_id": 5, "name": "main loop"},
            {"thread_id": 6, "name": "other"},
        ]


def test_invalid_events_of_the_trace_viewer_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.trace.json"
    name = '{"ph":"M","pid":1,"name":"process_name","args":{"name":"/host:CPU"}}'
    event = '{"ph":"X","pid":1,"tid":1,"ts":1,"dur":1,"name":"a"}'
    path.write_text(f'{{"traceEvents":[{name},{event},{{"ph":}},{event}]}}')
    with pytest.warns(TracekitWarning, match="1 event is not valid JSON and was skipped"), tk.load(path) as trace:
        assert trace.count("nvtx_ranges") == 2


def test_a_damaged_trailer_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.trace.json.gz"
    path.write_bytes(FIXTURE.with_name("train.trace.json.gz").read_bytes()[:-8] + bytes(8))
    with pytest.raises(CorruptTraceError, match="the compressed data is damaged near byte"):
        tk.load(path)


def test_traces_of_the_trace_viewer_may_lack_the_text_of_ops(tmp_path: Path) -> None:
    path = tmp_path / "a.trace.json"
    names = [
        {"ph": "M", "pid": 2, "name": "process_name", "args": {"name": "/device:TPU:0"}},
        {"ph": "M", "pid": 2, "tid": 1, "name": "thread_name", "args": {"name": "XLA Ops"}},
    ]
    event = {"ph": "X", "pid": 2, "tid": 1, "ts": 1, "dur": 1, "name": "x", "args": {"program_id": "-9" + "9" * 19}}
    path.write_text(json.dumps({"traceEvents": [*names, event]}))
    with load(path) as trace:
        assert trace["hlo_instructions"].select(["name", "text"]).to_pylist() == [{"name": "x", "text": ""}]


def test_batches_of_events_look_only_at_their_own_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host, count = message("XPlane", name=b"/host:CPU"), 1_000
    events = host.lines.add(id=1, name=b"a").events
    for i in range(1, count + 1):
        host.stat_metadata.add(key=i).value.name = b"value %d" % i
        host.event_metadata.add(key=i).value.name = b"event %d" % i
        events.add(metadata_id=i, offset_ps=i, duration_ps=1).stats.add(metadata_id=i, ref_value=i)
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(message("XSpace", planes=[host]).SerializeToString())
    calls: list[str] = []
    encode = json.dumps
    monkeypatch.setattr(json, "dumps", lambda text: calls.append(text) or encode(text))
    monkeypatch.setattr(space, "BATCH_BYTES", 1 << 11)
    with load(path) as trace:
        payloads = trace["nvtx_ranges"]["payload_text"].to_pylist()
    assert sorted(payloads) == sorted(f'{{"value {i}":"value {i}"}}' for i in range(1, count + 1))
    assert len(calls) < 3 * count


def test_bytes_after_a_compressed_profile_are_told(tmp_path: Path) -> None:
    path = tmp_path / "a.xplane.pb.gz"
    path.write_bytes(gzip.compress(DATA, 1) + b"abc")
    with pytest.warns(TracekitWarning, match="3 bytes after its end are ignored"), tk.load(path) as trace:
        assert trace.count("kernels") == 155


def test_an_empty_profile_has_no_rows(tmp_path: Path) -> None:
    with load(save(tmp_path, Plane("/host:CPU"))) as trace:
        assert not any(trace.count(name) for name in trace.tables if name not in ("capture_info", "processes"))


def test_instructions_of_every_kind(tmp_path: Path) -> None:
    shape = message("ShapeProto", element_type=16, dimensions=[2, 3])
    deep = shape
    for _ in range(20):
        deep = message("ShapeProto", element_type=13, tuple_shapes=[deep])
    window = {"size": 3, "stride": 2, "padding_low": 1, "padding_high": 1, "window_dilation": 2, "base_dilation": 3}
    labels = message(
        "ConvolutionDimensionNumbers",
        kernel_input_feature_dimension=0,
        kernel_output_feature_dimension=1,
        kernel_spatial_dimensions=[2],
        input_batch_dimension=0,
        input_feature_dimension=2,
        input_spatial_dimensions=[1],
        output_batch_dimension=0,
        output_feature_dimension=1,
        output_spatial_dimensions=[2],
    )
    convolution = message(
        "HloInstructionProto",
        name=b"c",
        opcode=b"convolution",
        shape=shape,
        id=1,
        feature_group_count=4,
        window=message("Window", dimensions=[message("WindowDimension", **window)]),
        convolution_dimension_numbers=labels,
        operand_ids=[1, 99],
        called_computation_ids=[7, 8],
    )
    assert programs.format_instruction(convolution, {1: convolution}, {7: "f", 8: "g"}) == (
        "%c = bf16[2,3] convolution(bf16[2,3] %c), window={size=3 stride=2 pad=1_1 lhs_dilate=3 rhs_dilate=2}, "
        "dim_labels=b0f_io0->bf0, feature_group_count=4, calls={%f, %g}"
    )
    pair = message("ShapeProto", element_type=13, tuple_shapes=[shape, message("ShapeProto", element_type=99)])
    call = message("HloInstructionProto", name=b"d", opcode=b"custom-call", shape=pair, custom_call_target=b"t")
    call.backend_config = b'{"a":1}'
    assert programs.format_instruction(call, {}, {}) == (
        '%d = (bf16[2,3], opaque[]) custom-call(), custom_call_target="t", backend_config={"a":1}'
    )
    call.backend_config = b"{" + b"x" * 100_000
    assert programs.format_instruction(call, {}, {}) == "%d = (bf16[2,3], opaque[]) custom-call()"
    call.shape.CopyFrom(deep)
    metadata = Plane("/host:metadata")
    for program in ("a(18446744073709551615)", "b", "c(x)"):
        module = message("HloModuleProto", name=b"m", computations=[message("HloComputationProto", name=b"e", id=1)])
        module.computations[0].instructions.add(name=b"i", opcode=b"add", shape=shape)
        if program == "c(x)":
            module.computations[0].instructions.add().CopyFrom(call)
        proto = message("HloProto", hlo_module=module).SerializeToString()
        key = metadata.name(program)
        entry = next(e for e in metadata.plane.event_metadata if e.key == key)
        entry.value.stats.extend(metadata.values({"Hlo Proto": proto}))
    damaged = save(tmp_path, metadata)
    with load(damaged) as trace, pytest.raises(CorruptTraceError, match="a shape is nested more than 8 levels deep"):
        trace["hlo_instructions"]
    entry.value.stats.pop()
    metadata.plane.event_metadata[1].value.stats.extend(metadata.values({"Hlo Proto": b"\xff"}))
    with load(save(tmp_path, metadata)) as trace, pytest.raises(CorruptTraceError, match="a compiled program is not"):
        trace["hlo_instructions"]
    assert programs._parse_id("a(18446744073709551615)", 3) == -1
    assert programs._parse_id("b", 3) == 3


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void a::b<c<d>>(e (*)(f))", "b"),
        ("gemm_fusion_dot_6.kd", "gemm_fusion_dot_6"),
        ("", ""),
        ("<" * 200, "<" * 200),
    ],
)
def test_short_names_of_kernels(name: str, short: str) -> None:
    assert shorten_kernel_name(name) == short


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"offset_ps": 1 << 62, "duration_ps": 1 << 62, "metadata_id": 1}, None),
        ({"offset_ps": -(1 << 63)}, "the time or duration of an event is out of range"),
        ({"offset_ps": (1 << 62) + 1}, "the time or duration of an event is out of range"),
        ({"duration_ps": -1}, "the time or duration of an event is out of range"),
    ],
)
def test_times_are_checked(event: dict[str, int], said: str | None, tmp_path: Path) -> None:
    host = Plane("/host:CPU")
    host.line(1, "a")
    host.plane.lines[0].events.add(**event)
    path = save(tmp_path, host)
    if said is None:
        with load(path) as trace:
            assert trace["nvtx_ranges"]["end_ns"].to_pylist() == [(1 << 63) // 1000]
        return
    with pytest.raises(CorruptTraceError, match=said):
        tk.load(path)


def test_texts_of_instructions_are_short(tmp_path: Path) -> None:
    large = message("ShapeProto", element_type=11, dimensions=[1] * 30_000)
    first = message("HloInstructionProto", name=b"a" * 30_000, opcode=b"parameter", shape=large, id=1)
    numbers = [1] * 4096
    others = [
        message("HloInstructionProto", name=b"b", opcode=b"add", id=2, operand_ids=numbers),
        message("HloInstructionProto", name=b"c", opcode=b"call", id=3, called_computation_ids=numbers),
    ]
    computation = message("HloComputationProto", name=b"d" * 30_000, id=1, instructions=[first, *others])
    names = {computation.id: "d" * 30_000}
    instructions = {i.id: i for i in computation.instructions}
    tracemalloc.start()
    texts = [programs.format_instruction(i, instructions, names) for i in others]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert texts == ["%b = opaque[] add()", "%c = opaque[] call(), calls=..."]
    assert peak < 8 << 20


def test_sizes_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Plane("/host:CPU")
    host.line(1, "a", ("x", 0, 1, {"t": "y" * 100}), origin=(1 << 62) + 1)
    path = save(tmp_path, host)
    with pytest.raises(CorruptTraceError, match="the time of a line is out of range"):
        tk.load(path)
    for name, limit, said in (
        ("MAX_FILE_BYTES", 10, "supports at most 10"),
        ("MAX_PLANES", 0, "5 planes, but tracekit supports at most 0"),
        ("MAX_EVENT_BYTES", 2, "an event has .* bytes"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(space, name, limit)
            with pytest.raises(CorruptTraceError, match=said):
                tk.load(FIXTURE)


def test_numbers_instead_of_bytes_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.xplane.pb"
    plane = b"\x12\x06/host:" + b"\x1a\x04\x0a\x02\x08\x01"
    path.write_bytes(b"\x0a" + bytes([len(plane)]) + plane)
    with pytest.raises(CorruptTraceError, match="holds bytes instead of a number"):
        tk.load(path, format="xplane")
    plane = b"\x12\x06/host:" + b"\x1a\x04\x22\x02\x08\x01" + b"\x22\x02\x10\x01"
    path.write_bytes(b"\x0a" + bytes([len(plane)]) + plane)
    with pytest.raises(CorruptTraceError, match="holds a number instead of bytes"):
        tk.load(path, format="xplane")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (DATA, True),
        (b"", False),
        (b"\x0a", False),
        (b"\x0a\x04\x12\x02ab", False),
        (b"\x0a\x02\x08\x01", False),
        (b"\x0a\x0f\x12\x0d/device:GPU:0", True),
        (b"\x0a\x02\x10\x01", False),
        (b"\x12\x00", False),
    ],
)
def test_profiles_are_recognized_by_their_first_plane(data: bytes, expected: bool, tmp_path: Path) -> None:
    path = tmp_path / "unknown"
    path.write_bytes(data)
    assert sniff(Source(path)) is expected


@pytest.mark.many(4)
@pytest.mark.parametrize("part", range(4))
def test_damaged_profiles_are_told(part: int, tmp_path: Path) -> None:
    """Truncated and mutated files end in an error of ours or in a trace."""
    dice = random.Random(part)
    path = tmp_path / "a.xplane.pb"
    for _ in range(40 if ALL else 8):
        data = bytearray(DATA)
        if part == 0:
            data = data[: dice.randrange(1, len(data))]
        for _ in range(dice.choice((1, 4, 40)) if part else 0):
            data[dice.randrange(len(data))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
        path.write_bytes(data)
        started = time.monotonic()
        try:
            with load(path) as trace:
                for name in trace.tables:
                    trace[name].validate(full=True)
        except TracekitError:
            pass
        assert time.monotonic() - started < 20


def test_a_gzipped_profile_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.xplane.pb.gz"
    data = gzip.compress(TPU.read_bytes(), 1)
    path.write_bytes(data)
    with load(path) as trace, load(TPU) as plain:
        assert (trace.format, trace["kernels"]) == ("xplane", plain["kernels"])
    path.write_bytes(data[:-20])
    with pytest.raises(CorruptTraceError, match="the compressed data ends before the end of the gzip trailer"):
        load(path)
    path.write_bytes(gzip.compress(b"\x0a\x0f\x12\x0d/device:GPU:0" + bytes(1 << 28), 9))
    with pytest.raises(CorruptTraceError, match="limit of 250 times the compressed size"):
        load(path)
    path.write_bytes(b"\x1f\x8b" + bytes(40))
    assert not sniff(Source(path))


def test_a_truncated_profile_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(DATA[:-100])
    with pytest.raises(CorruptTraceError, match="extends beyond the end"):
        tk.load(path)
