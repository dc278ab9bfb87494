"""Run metadata as ``tf.summary.trace_export`` writes them: values of summaries, read as tagged run metadata are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.compat.proto import config_pb2, event_pb2, graph_pb2, step_stats_pb2, types_pb2
from tests.builders.tfevents import WALL, packed, scalar, summary, tensor, value, written
from tests.helpers import count_undecoded
from tracekit.errors import CorruptTraceError
from tracekit.readers.tfevents import events, exported, records, step_stats

STRING = types_pb2.DT_STRING
PROFILE, GRAPH, KERAS = "graph_run_metadata", "graph_run_metadata_graph", "graph_keras_model"
BEGAN = 1_700_000_000_250_000

names = st.text("abc/:é", max_size=5)
small = st.integers(0, 1 << 40)
memory = st.builds(
    step_stats_pb2.AllocatorMemoryUsed,
    total_bytes=small,
    peak_bytes=small,
    live_bytes=st.integers(-(1 << 40), 1 << 40),
)
nodes = st.builds(
    step_stats_pb2.NodeExecStats,
    node_name=names,
    timeline_label=names,
    all_start_micros=st.sampled_from([0, BEGAN, BEGAN + 17]),
    op_start_rel_micros=st.integers(0, 9),
    op_end_rel_nanos=st.integers(0, 9999),
    all_end_rel_micros=st.integers(0, 99),
    thread_id=st.integers(0, 5),
    memory=st.lists(memory, max_size=2),
    output=st.lists(st.builds(step_stats_pb2.NodeOutput, slot=st.integers(0, 3)), max_size=2),
)
devices = st.builds(step_stats_pb2.DeviceStepStats, device=names, node_stats=st.lists(nodes, max_size=3))
runs = st.builds(
    config_pb2.RunMetadata,
    step_stats=st.builds(step_stats_pb2.StepStats, dev_stats=st.lists(devices, max_size=3)),
    partition_graphs=st.lists(st.just(graph_pb2.GraphDef()), max_size=2),
)
traces = st.lists(
    st.tuples(st.text("ab/é", min_size=1, max_size=3), st.integers(-5, 1 << 40), runs), min_size=1, max_size=4
)


def exports(tag: str, data: bytes, step: int = 0, plugin: str | None = PROFILE) -> bytes:
    """An event with run metadata as TensorFlow 2 writes them."""
    made = event_pb2.Event(step=step, wall_time=WALL)
    kept = made.summary.value.add(tag=tag)
    if plugin is not None:
        kept.metadata.plugin_data.plugin_name = plugin
        kept.metadata.plugin_data.content = b"1"
    kept.tensor.dtype = STRING
    kept.tensor.tensor_shape.SetInParent()
    kept.tensor.string_val.append(data)
    return bytes(made.SerializeToString())


def tags(tag: str, data: bytes, step: int = 0) -> bytes:
    """The same as TensorFlow 1 writes it."""
    tagged = event_pb2.TaggedRunMetadata(tag=tag, run_metadata=data)
    return bytes(event_pb2.Event(step=step, wall_time=WALL, tagged_run_metadata=tagged).SerializeToString())


def traced(*nodes: str) -> Any:
    run = config_pb2.RunMetadata()
    device = run.step_stats.dev_stats.add(device="/gpu:0")
    for name in nodes:
        device.node_stats.add(node_name=name, all_start_micros=BEGAN + 1, all_end_rel_micros=2)
    return run


def graph(*names: str) -> Any:
    made = graph_pb2.GraphDef()
    for name, before in zip(names, (None, *names), strict=False):
        made.node.add(name=name, op="Neg", input=[] if before is None else [before])
    return made


def executions(path: Path, *columns: str) -> list[tuple[Any, ...]]:
    with tk.load(path) as trace:
        return [tuple(row.values()) for row in trace.table("step_stats", list(columns)).to_pylist()]


@given(traces, st.sampled_from([PROFILE, GRAPH]))
def test_equal_to_the_same_run_metadata_with_a_tag(
    tmp_path_factory: pytest.TempPathFactory, made: list[tuple[str, int, Any]], plugin: str
) -> None:
    folder = tmp_path_factory.mktemp("both")
    old, new = (written(folder / name, version=False) for name in ("old", "new"))
    known = [(tag, run.SerializeToString(), step) for tag, step, run in made]
    old.write_bytes(packed(*(tags(*k) for k in known)))
    new.write_bytes(packed(*(exports(*k, plugin=plugin) for k in known)))
    with tk.load(old) as one, tk.load(new) as other:
        rows = one["step_stats"].to_pylist()
        assert len(rows) == sum(len(d.node_stats) for _, _, run in made for d in run.step_stats.dev_stats)
        assert other["step_stats"].to_pylist() == rows
        assert other.count("step_stats") == one.count("step_stats") == len(rows)
        assert other.undecoded == one.undecoded
        assert other.info == one.info


def test_rows_of_an_export(tmp_path: Path) -> None:
    path = written(tmp_path, scalar(1, 1), exports("train", traced("conv", "add").SerializeToString(), 7))
    with tk.load(path) as trace:
        assert trace.undecoded == {}
        assert trace.count("scalars") == 1
    columns = ("execution_id", "run", "tag", "step", "device", "node_name", "start_ns", "end_ns")
    assert executions(path, *columns) == [
        (1, ".", "train", 7, "/gpu:0", "conv", 1000, 3000),
        (2, ".", "train", 7, "/gpu:0", "add", 1000, 3000),
    ]


def test_the_plug_in_of_the_first_value_holds_for_the_tag_of_the_run(tmp_path: Path) -> None:
    data = traced("a").SerializeToString()
    first = exports("mine", data, 1, "text"), exports("train", data, 1)
    later = exports("mine", data, 2), exports("train", data, 2, None), exports("train", data, 3, "text")
    written(tmp_path / "x", *first, name="tfevents.1")
    written(tmp_path / "x", *later, name="tfevents.2")
    written(tmp_path / "y", *later)
    assert executions(tmp_path, "run", "tag", "step") == [
        ("x", "train", 1),
        ("x", "train", 2),
        ("x", "train", 3),
        ("y", "mine", 2),
    ]
    with tk.load(tmp_path) as trace:
        assert trace.count("texts") == 4
        assert trace.undecoded == {}


def test_graphs_of_functions(tmp_path: Path) -> None:
    run = traced("a")
    for names in (("a", "b"), ("c",)):
        function = run.function_graphs.add(pre_optimization_graph=graph(*names), post_optimization_graph=graph("o"))
        function.partition_graphs.extend([graph("p"), graph("q")])
    run.function_graphs.add()
    run.partition_graphs.extend([graph("p")])
    written(tmp_path, exports("f", run.SerializeToString(), 3, GRAPH), exports("f", run.SerializeToString(), 4, GRAPH))
    with tk.load(tmp_path) as trace:
        found = trace.table("graph_nodes", ["graph", "name", "op"]).to_pylist()
        edges = trace.table("graph_edges", ["source_name", "target"]).to_pylist()
        assert count_undecoded(trace.undecoded) == {
            "partition graph": 2,
            "partition graph of a function": 8,
            "optimized graph of a function": 4,
        }
    assert [tuple(n.values()) for n in found] == [
        ("graph 1", "a", "Neg"),
        ("graph 1", "b", "Neg"),
        ("graph 2", "c", "Neg"),
    ]
    assert [tuple(e.values()) for e in edges] == [("a", 1)]
    assert executions(tmp_path, "step", "node_name") == [(3, "a"), (4, "a")]


def test_what_is_counted(tmp_path: Path) -> None:
    run = config_pb2.RunMetadata()
    run.partition_graphs.add()
    run.function_graphs.add(pre_optimization_graph=graph("a"))
    data = run.SerializeToString()
    two = summary(value("two", tensor=tensor(STRING, [2], string_val=[data, data]), plugin=PROFILE))
    none = summary(value("none", tensor=tensor(STRING, [0]), plugin=PROFILE))
    written(tmp_path, exports("a", data), exports("k", b"{}", plugin=KERAS), two, none, exports("empty", b""))
    with tk.load(tmp_path) as trace:
        assert count_undecoded(trace.undecoded) == {"partition graph": 1, "function graph": 1, KERAS: 1, PROFILE: 2}
        assert trace.count("step_stats") == trace.count("graph_nodes") == 0


def test_many_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are found again wherever the windows of the file began, whatever lies between them."""
    monkeypatch.setattr(records, "WINDOW_BYTES", 512)
    monkeypatch.setattr(events, "VALUES_PER_BATCH", 2)
    monkeypatch.setattr(step_stats, "EXECUTIONS_PER_BATCH", 3)
    long = [f"long{i}" for i in range(50)]
    data = [traced(f"n{i}", f"m{i}").SerializeToString() for i in range(40)]
    made = [e for i, d in enumerate(data) for e in (scalar(i, i), exports(f"t{i % 3}", d, i))]
    path = written(tmp_path, *made, exports("t", traced(*long).SerializeToString(), 99), *made)
    one = [(f"t{i % 3}", i, f"{letter}{i}") for i in range(40) for letter in "nm"]
    assert executions(path, "tag", "step", "node_name") == [*one, *(("t", 99, name) for name in long), *one]


@pytest.mark.parametrize("plugin", [PROFILE, GRAPH])
@pytest.mark.parametrize("data", [b"\x0a\xff\x7f", b"\x0a\x04\x0a\x02\x12\x05", b"not a message at all", b"\x0f"])
def test_damage_inside_a_right_record(tmp_path: Path, data: bytes, plugin: str) -> None:
    event = exports("train", data, 1, plugin)
    path = written(tmp_path, scalar(1, 1), event)
    start = path.read_bytes().rindex(data)
    said = rf"run metadata: .*\(bytes {start} to {start + len(data)}\)\nHint: "
    with pytest.raises(CorruptTraceError, match=said):
        tk.load(path)


@given(st.data())
def test_run_metadata_that_are_cut(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    run = traced("conv", "add")
    run.function_graphs.add(pre_optimization_graph=graph("a", "b"))
    whole = run.SerializeToString()
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    path = written(tmp_path_factory.mktemp("cut"), exports("t", cut, 1, GRAPH))
    try:
        config_pb2.RunMetadata.FromString(cut)
    except Exception:  # noqa: BLE001 - whatever protobuf raises, it is no message
        with pytest.raises(CorruptTraceError, match="run metadata: "):
            tk.load(path)
    else:
        with tk.load(path) as trace:
            assert trace.count("step_stats") == (2 if len(cut) else 0)


def test_times_beyond_all_numbers(tmp_path: Path) -> None:
    run = traced("a")
    run.step_stats.dev_stats[0].node_stats[0].all_start_micros = 1 << 60
    path = written(tmp_path, exports("t", run.SerializeToString()))
    with pytest.raises(CorruptTraceError, match=r"run metadata: start_ns of an execution is \d+ µs, but .* \(bytes"):
        tk.load(path)


def test_a_damaged_graph_of_a_function(tmp_path: Path) -> None:
    bad = b"\x22\x05\x12\x03\x0a\xff\x01"
    path = written(tmp_path, scalar(1, 1), exports("f", bad, plugin=GRAPH))
    with tk.load(path) as trace:
        assert trace.count("scalars") == 1
        with pytest.raises(
            CorruptTraceError, match=r"the graph at byte \d+: a field extends beyond the end of its message"
        ):
            trace.table("graph_nodes")


@pytest.mark.parametrize("how", ["shorter", "gone"])
def test_a_file_that_changes_once_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    path = written(tmp_path, exports("t", traced("a").SerializeToString()))
    with tk.load(path) as trace:
        expected = trace["step_stats"]
    read = exported.add_exported_run_metadata

    def changed(run: Any) -> Any:
        path.unlink() if how == "gone" else path.write_bytes(path.read_bytes()[:80])
        return read(run)

    monkeypatch.setattr(exported, "add_exported_run_metadata", changed)
    with tk.load(path) as trace:
        assert expected.num_rows > 0
        assert trace["step_stats"].equals(expected)
