"""Event files: TensorBoard's own readers see the graph, the times, the scalars and the tables that our tables say."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tracekit import registry, schemas
from tracekit.core.graph.nodes import append_numbers_to_duplicates, convert_to_legal_node_names
from tracekit.errors import ExportError, UnknownFormatError
from tracekit.exporters.tfevents import events

pytestmark = pytest.mark.slow

FIXTURES = Path(__file__).parents[2] / "fixtures"
GOLDEN = FIXTURES / "golden" / "train_amp.tfevents.json"
CAPTURES = [
    *(FIXTURES / f"{n}.sqlite" for n in ("train_amp", "ddp2", "graph_node", "jax_mlp", "gpu_metrics")),
    *sorted(FIXTURES.glob("ops/*.nsys-rep")),
    FIXTURES / "kineto" / "train.pt.trace.json.gz",
]
LEGAL = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\-/]*")
SECRETS = ("/home/somebody", "somebody", "host-of-somebody", "--password", "SECRET=1")


@pytest.fixture(params=CAPTURES, ids=lambda p: p.name, scope="module")
def rolled(request: pytest.FixtureRequest) -> tk.Trace:
    return tk.load(request.param).rollup()


@pytest.fixture(scope="module")
def run(rolled: tk.Trace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The event file of a capture, exported once for all tests."""
    return exported(rolled, tmp_path_factory.mktemp("tfevents"))


@pytest.fixture(scope="module")
def board(run: Path) -> Any:
    """The same file as TensorBoard reads it."""
    return accumulated(run)


def exported(trace: tk.Trace, folder: Path, **options: str) -> Path:
    return trace.export(folder / "run", format="tfevents", options=options)


def accumulated(run: Path) -> Any:
    """The run as TensorBoard reads it."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(run), size_guidance={"tensors": 0})
    found.Reload()
    return found


def node_times(found: Any, tag: str) -> dict[str, tuple[int, int]]:
    """Time of each node of a step, in us and ns, summed over devices."""
    times: dict[str, tuple[int, int]] = {}
    for device in found.RunMetadata(tag).step_stats.dev_stats:
        for node in device.node_stats:
            us, ns = times.get(node.node_name, (0, 0))
            times[node.node_name] = us + node.all_end_rel_micros, ns + node.all_end_rel_nanos
    return times


def values(found: Any, tag: str) -> list[Any]:
    from tensorboard.util import tensor_util

    return [tensor_util.make_ndarray(e.tensor_proto).item() for e in found.Tensors(tag)]


def test_nodes_are_the_ops(rolled: tk.Trace, board: Any) -> None:
    graph = board.Graph()
    ops = {r["op_id"]: r for r in rolled.frame("ops").collect().iter_rows(named=True)}
    assert {n.attr["op_id"].s.decode() for n in graph.node} == set(ops)
    assert len({n.name for n in graph.node}) == len(graph.node) == len(ops)
    for node in graph.node:
        op = ops[node.attr["op_id"].s.decode()]
        assert LEGAL.fullmatch(node.name)
        assert node.attr["op_name"].s.decode() == op["op_name"]
        assert ("uses_tensor_cores" in node.attr) == (op["uses_tensor_cores"] is not None)
        assert node.attr["uses_tensor_cores"].b == bool(op["uses_tensor_cores"])
        assert node.attr["direction"].s.decode() == (op["direction"] or "")
        assert node.device == "/device:CPU:0" or re.fullmatch(r"/device:GPU:\d", node.device)
        assert node.device != "/device:CPU:0" or op["gpu_time_ns"] == 0


def test_inputs_are_nodes_called_before(board: Any) -> None:
    graph = board.Graph()
    ids = {n.name: n.attr["op_id"].s.decode() for n in graph.node}
    seen: set[str] = set()
    for node in graph.node:
        plain = [i for i in node.input if not i.startswith("^")]
        control = [i.removeprefix("^") for i in node.input if i.startswith("^")]
        assert [*plain, *(f"^{c}" for c in control)] == list(node.input)
        assert len(plain) <= 1
        assert len(control) <= 1
        assert {*plain, *control} <= seen
        for i in plain:
            assert ids[node.name] == f"{ids[i]}_BPROP"
        seen.add(node.name)


def test_times_are_those_of_the_op_table(rolled: tk.Trace, tmp_path: Path) -> None:
    found = accumulated(exported(rolled, tmp_path, steps="3"))
    names_of = {n.attr["op_id"].s.decode(): n.name for n in found.Graph().node}
    ops = rolled.frame("ops").filter(pl.col("instance_count") > 0).collect()
    times = node_times(found, "all iterations")
    assert {n: ns for n, (_, ns) in times.items()} == {
        names_of[i]: ns for i, ns in ops.select("op_id", "gpu_time_ns").iter_rows()
    }
    assert all(abs(1000 * us - ns) <= 1000 and (us > 0) == (ns > 0) for us, ns in times.values())
    chosen = rolled.frame("iterations").filter("is_aggregated").collect()["iteration"].to_list()
    assert sorted(found.Tags()["run_metadata"]) == sorted(["all iterations", *(f"step {i}" for i in chosen[:3])])
    for i in chosen[:3]:
        instances = rolled.frame("op_instances").filter(pl.col("iteration") == i).collect()
        expected = instances.group_by(pl.col("op_id").cast(pl.String)).agg(pl.col("gpu_time_ns").sum())
        assert {n: ns for n, (_, ns) in node_times(found, f"step {i}").items()} == {
            names_of[op]: ns for op, ns in expected.iter_rows()
        }


def test_a_group_takes_what_its_nodes_take(board: Any) -> None:
    """TensorBoard takes the first start and the last end of the nodes of a group."""
    placed: dict[str, list[tuple[int, int, int]]] = {}
    for device in board.RunMetadata("all iterations").step_stats.dev_stats:
        for n in device.node_stats:
            if n.all_end_rel_micros:
                parts = n.node_name.split("/")
                for group in ["/".join(parts[:i]) for i in range(len(parts) + 1)]:
                    end = n.all_start_micros + n.all_end_rel_micros
                    placed.setdefault(group, []).append((n.all_start_micros, end, n.all_end_rel_nanos))
    assert placed
    for nodes in placed.values():
        lasted = max(e for _, e, _ in nodes) - min(s for s, _, _ in nodes)
        assert abs(1000 * lasted - sum(ns for *_, ns in nodes)) <= 2000


def test_cpu_times_on_demand(tmp_path: Path) -> None:
    with tk.load(FIXTURES / "train_amp.sqlite") as trace:
        found = accumulated(exported(trace, tmp_path, time="cpu", steps="0"))
        ops = trace.rollup().frame("ops").collect()
    assert found.Tags()["run_metadata"] == ["all iterations"]
    assert [d.device for d in found.RunMetadata("all iterations").step_stats.dev_stats] == ["/device:CPU:0"]
    assert sum(ns for _, ns in node_times(found, "all iterations").values()) == ops["cpu_time_ns"].sum()


def in_ms(ns: pl.Series) -> list[float]:
    """Milliseconds in the precision of a file."""
    return (ns.cast(pl.Float64) / 1e6).cast(pl.Float32).cast(pl.Float64).to_list()


def test_scalars_are_the_iterations(rolled: tk.Trace, board: Any) -> None:
    found = board
    its = rolled.frame("iterations").filter("is_aggregated").collect()
    lasted = its["end_ns"] - its["start_ns"]
    assert values(found, "iteration/time_ms") == in_ms(lasted)
    assert values(found, "iteration/kernels") == its["kernel_count"].to_list()
    assert [e.step for e in found.Tensors("iteration/kernels")] == its["iteration"].to_list()
    parts = [c for c in schemas.table("iterations").names if c.startswith("in_")]
    busy = its.select(pl.sum_horizontal(parts[:3])).to_series()
    assert values(found, "iteration/gpu_busy_ms") == in_ms(busy)
    assert values(found, "iteration/gpu_idle_ms") == in_ms(lasted - busy)
    assert all(0 <= v <= 100 for v in values(found, "iteration/tensor_core_share_percent"))
    for part in parts:
        assert values(found, f"parts/{part.removesuffix('_ns')}_ms") == in_ms(its[part])
    origin = int(rolled.info.get("origin_utc_ns", 0))
    assert found.Tensors("iteration/kernels")[0].wall_time == pytest.approx((origin + its["end_ns"][0]) / 1e9)


def test_tables_are_texts(tmp_path: Path) -> None:
    with tk.load(FIXTURES / "train_amp.sqlite") as trace:
        found = accumulated(exported(trace, tmp_path))
        ops = trace.rollup(include_warm_up=False).frame("ops").filter(pl.col("instance_count") > 0).collect()
    (text,) = values(found, "tables/ops")
    lines = text.decode().splitlines()
    assert len(lines) == ops.height + 2
    assert {line.count("|") for line in lines} == {11}
    assert lines[2].startswith("| `BATCH_NORM_1_BPROP` | `Batch */Forward pass/layer1/aten::batch_norm` |")
    (model,) = values(found, "summary/model")
    assert "| All ops | 58 | 100.0 % |" in model.decode()
    assert "| Aggregated iterations | 3 of 4 |  |\n| Warm-up iterations that are left out | 1 of 1 |" in model.decode()
    assert found.SummaryMetadata("tables/ops").plugin_data.plugin_name == "text"


def test_results_have_shapes_and_sizes(tmp_path: Path) -> None:
    with tk.load(FIXTURES / "ops" / "pyprof_like.nsys-rep") as trace:
        found = accumulated(exported(trace, tmp_path))
    nodes = {n.attr["op_id"].s.decode(): n for n in found.Graph().node}
    (shape,) = nodes["CONV2D_1"].attr["_output_shapes"].list.shape
    assert [d.size for d in shape.dim] == [64, 32, 32, 32]
    stats = {
        n.timeline_label: n for d in found.RunMetadata("all iterations").step_stats.dev_stats for n in d.node_stats
    }
    conv = stats["CONV2D_1"]
    assert [d.size for d in conv.output[0].tensor_description.shape.dim] == [64, 32, 32, 32]
    size = {b"float32": 4, b"float16": 2}[nodes["CONV2D_1"].attr["data_type"].s]
    assert [(m.allocator_name, m.total_bytes) for m in conv.memory] == [("result", 64 * 32 * 32 * 32 * size)]


def small(*ops: tuple[str, int, int], **tables: pa.Table) -> tk.Trace:
    """A trace of ranges: name, start and end, each with a kernel in its second half."""
    rows = {"name": [o[0] for o in ops], "start_ns": [o[1] for o in ops], "end_ns": [o[2] for o in ops]}
    n = len(ops)
    own = {"process_id": [1] * n, "thread_id": [1] * n, "range_id": range(n), "kind": ["push_pop"] * n}
    ranges = table("nvtx_ranges", n, **rows, **own, domain_id=[0] * n)
    calls = [(s + e) // 2 for _, s, e in ops]
    api = table(
        "api_calls", n, api_call_id=range(n), process_id=[1] * n, thread_id=[1] * n, correlation_id=range(1, n + 1),
        start_ns=calls, end_ns=[c + 1 for c in calls], name=["cudaLaunchKernel"] * n,
    )  # fmt: skip
    ran = table(
        "kernels", n, process_id=[1] * n, correlation_id=range(1, n + 1), start_ns=calls, device_id=[0] * n,
        end_ns=[c + 2000 for c in calls], name=["k"] * n, short_name=["k"] * n,
    )  # fmt: skip
    return tk.Trace.from_tables({"nvtx_ranges": ranges, "api_calls": api, "kernels": ran, **tables})


def table(name: str, rows: int, /, **columns: Any) -> pa.Table:
    """A table with these columns; the others are null, or 0 and empty where they may not be."""
    schema = schemas.arrow_schema(schemas.table(name))
    made = {}
    for field in schema:
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        filler = [None] * rows if field.nullable else [{"string": "", "bool": False}.get(str(kind), 0)] * rows
        made[field.name] = pa.array(list(columns.get(field.name, filler)), kind)
    return schemas.conform(pa.table(made), schemas.table(name))


def test_a_node_may_be_a_scope(tmp_path: Path) -> None:
    trace = small(("a", 0, 100_000), ("a-b", 10, 20), ("a", 200_000, 300_000))
    graph = accumulated(exported(trace, tmp_path)).Graph()
    assert [n.name for n in graph.node] == ["a", "a/a-b"]
    assert list(graph.node[1].input) == ["^a"]


def test_types_that_tensorboard_would_hide_are_drawn(tmp_path: Path) -> None:
    trace = small(("ConstantPad2d", 0, 10_000), ("ImageSummary", 20_000, 30_000))
    graph = accumulated(exported(trace, tmp_path)).Graph()
    assert [n.op for n in graph.node] == ["constantPad2d", "Imagesummary"]
    assert [n.name for n in graph.node] == ["ConstantPad2d", "ImageSummary"]


def test_nothing_of_people_and_machines(tmp_path: Path) -> None:
    home, user, host, command, environment = SECRETS
    planted = {
        "processes": table("processes", 1, process_id=[1], name=[f"{home}/python {command} {environment}"]),
        "threads": table("threads", 1, process_id=[1], thread_id=[1], name=[user]),
        "capture_info": table(
            "capture_info", 3, name=["tool", "hostname", "command_line"], value=["t", host, f"run {command}"]
        ),
    }
    with small(("a", 0, 100_000), **planted) as trace:
        assert trace.frame("processes").collect()["name"].item().startswith(home)
        run = exported(trace, tmp_path)
    (file,) = run.iterdir()
    content = file.read_bytes()
    for secret in SECRETS:
        assert secret.encode() not in content
        assert secret not in file.name
    with tk.load(FIXTURES / "ops" / "pyprof_like.nsys-rep") as trace:
        assert trace.rollup().frame("ops").collect()["stack_trace"].drop_nulls().len()
        (file,) = exported(trace, run).iterdir()
    assert b".py" not in file.read_bytes()


@pytest.mark.many(1)
def test_the_same_capture_makes_the_same_file(rolled: tk.Trace, run: Path, tmp_path: Path) -> None:
    (one,) = run.iterdir()
    assert rolled.path
    with tk.load(rolled.path) as again:
        (two,) = exported(again.rollup(), tmp_path).iterdir()
    assert one.name == two.name
    assert one.read_bytes() == two.read_bytes()


def test_it_is_golden(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with tk.load(FIXTURES / "train_amp.sqlite") as trace:
        (file,) = exported(trace, tmp_path, steps="1").iterdir()
    made = {"file": file.name, "records": [described(r) for r in read(file.read_bytes())]}
    if request.config.getoption("--golden"):
        GOLDEN.write_text(json.dumps(made, indent=1) + "\n", "utf-8")
    assert made == json.loads(GOLDEN.read_text("utf-8"))


def described(record: bytes) -> list[Any]:
    """What a record is of, and a digest of it."""
    event = schemas.load_message_class("tensorflow_events", "Event").FromString(record)
    kinds = [f.name for f, _ in event.ListFields() if f.name not in ("wall_time", "step")]
    return [*kinds, event.step, round(event.wall_time * 1e6), hashlib.sha256(record).hexdigest()[:16]]


def read(content: bytes) -> list[bytes]:
    """Take a file apart, checksums and all; a CRC of each byte, one after the other."""
    found, at = [], 0
    while at < len(content):
        (length,), (crc,) = struct.unpack_from("<Q", content, at), struct.unpack_from("<I", content, at + 8)
        assert crc == masked(content[at : at + 8])
        record = content[at + 12 : at + 12 + length]
        assert struct.unpack_from("<I", content, at + 12 + length) == (masked(record),)
        found.append(record)
        at += 16 + length
    assert at == len(content)
    return found


def masked(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@given(st.integers(0, 3000), st.integers(0, 255))
def test_checksums_of_any_length(length: int, seed: int) -> None:
    data = bytes((i * i + seed) % 251 for i in range(length))
    assert read(events.encode_record(data)) == [data]


def test_long_records_are_summed_in_pieces() -> None:
    data = bytes(range(256)) * 400 + b"rest"
    assert read(events.encode_record(data)) == [data]


@given(st.lists(st.text(st.sampled_from("ab_1/:*- .é"), max_size=8), max_size=12))
def test_any_names_become_legal_and_unique(given_names: list[str]) -> None:
    spelt = convert_to_legal_node_names(pl.Series(given_names, dtype=pl.String))
    assert all(LEGAL.fullmatch(n) and "//" not in n and n.strip("/") == n for n in spelt)
    assert convert_to_legal_node_names(spelt).to_list() == spelt.to_list()
    made = append_numbers_to_duplicates(spelt).to_list()
    assert len(set(made)) == len(made)
    assert all(m.startswith(s) for m, s in zip(made, spelt, strict=True))
    assert [m for m, s in zip(made, spelt, strict=True) if m == s] == list(dict.fromkeys(spelt)) or "_" in "".join(
        spelt
    )


def test_legal_names_stay() -> None:
    kept = ["a", "a/b_", "Batch/layer1/aten_add_", "x.y-z/0"]
    assert convert_to_legal_node_names(pl.Series(kept)).to_list() == kept
    rough = ["iteration */aten::mm", "/module//main/Net::forward", "_x", "", "*/**", "é/b é"]
    expected = ["iteration/aten_mm", "module/main/Net_forward", "._x", "unnamed", "._/_", "._/b"]
    assert convert_to_legal_node_names(pl.Series(rough)).to_list() == expected


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with tk.load(FIXTURES / "train_amp.sqlite") as trace:
        with pytest.raises(ExportError, match="the name of the output folder must not contain 'tfevents'"):
            trace.export(tmp_path / "a.tfevents", format="tfevents")
        with pytest.raises(UnknownFormatError, match="'wall' is not a valid value of the option 'time'"):
            exported(trace, tmp_path, time="wall")
        for steps in ("-1", "99999", "x"):
            with pytest.raises(UnknownFormatError, match="set steps to an integer from 0 to 10000"):
                exported(trace, tmp_path, steps=steps)
        with pytest.raises(UnknownFormatError, match="has no option"):
            exported(trace, tmp_path, host="here")
    with tk.load(FIXTURES / "empty.sqlite") as trace, pytest.raises(ExportError, match="the trace has no ops to draw"):
        exported(trace, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.many(2)
@pytest.mark.parametrize("origin", ["", "soon", "-5", "9" * 19, "9" * 40, "٣"])
def test_any_origin_and_any_times(origin: str, tmp_path: Path) -> None:
    facts = table("capture_info", 1, name=["origin_utc_ns"], value=[origin])
    far = (1 << 61) - 10_000
    trace = small(("a", -4_000, -1_000), ('b\n"\\{é', 0, 1_000), ("c", far, far + 1_000), capture_info=facts)
    run = exported(trace, tmp_path)
    found = accumulated(run)
    assert [n.name for n in found.Graph().node] == ["a", "b", "c"]
    assert found.Graph().node[1].attr["op_name"].s.decode() == 'b\n"\\{é'
    starts = [
        n.all_start_micros for d in found.RunMetadata("all iterations").step_stats.dev_stats for n in d.node_stats
    ]
    assert min(starts) > 0
    assert {ns for _, ns in node_times(found, "all iterations").values()} == {2000}
    (file,) = run.iterdir()
    assert file.name == f"events.out.tfevents.{origin[:10] if len(origin) == 19 else '0' * 10}.tracekit"


def test_it_is_known_by_its_suffix() -> None:
    assert registry.find_exporter_for("run7.tensorboard").format == "tfevents"
