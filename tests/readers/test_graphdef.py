"""Graphs of TensorFlow are read, node by node, as TensorBoard's own messages say."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import tracekit as tk
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.compat.proto import attr_value_pb2, graph_pb2, types_pb2
from tests.builders.nsys_rep import message
from tests.readers.graphdef_oracle import CORPUS, FIXTURES, LONG, LONGEST, Rows, graphs, rows
from tracekit import schemas
from tracekit.errors import ExportError, TracekitWarning, UnknownFormatError
from tracekit.readers.common.damage import Damage
from tracekit.readers.tensorflow import graph
from tracekit.readers.tensorflow import graph as reading
from tracekit.readers.tensorflow.graph import MessageKind

OWN = sorted(FIXTURES.glob("network.*")) + sorted(FIXTURES.glob("*.pb"))
REFUSED = {
    "run_metadata_run_step99_tag_train.pbtxt": "run metadata",
    "graph_run_run2.pbtxt": "neither a TensorFlow graph",
}
REFUSED |= {"localhost.overview_page.pb": r"profiler \(overview_page\)", "localhost.input_pipeline.pb": "profiler"}
PUBLIC = sorted(p for p in (CORPUS / "graphdef").rglob("*.pb*") if p.name not in REFUSED)


def read(path: Path) -> tuple[Rows, Rows]:
    """Nodes and edges of a file, as a trace has them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TracekitWarning)
        trace = tk.load(path)
    with trace:
        assert trace.format == "graphdef"
        for name in trace.tables:
            trace[name].validate(full=True)
            assert trace.count(name) == trace[name].num_rows
        return trace["graph_nodes"].to_pylist(), trace["graph_edges"].to_pylist()


def expected(path: Path) -> tuple[Rows, Rows]:
    return in_order(rows(graphs(path.read_bytes(), text=path.suffix == ".pbtxt")))


def in_order(both: tuple[Rows, Rows]) -> tuple[Rows, Rows]:
    nodes, edges = ([{c: r[c] for c in schemas.table(t).names} for r in rs] for t, rs in zip(TABLES, both, strict=True))
    return nodes, edges


TABLES = ("graph_nodes", "graph_edges")


def taken(octets: bytes) -> tuple[Rows, Rows]:
    found = reading.read_graph(octets, label="it")
    made = (schemas.conform(t, schemas.table(n)) for n, t in zip(TABLES, (found.nodes, found.edges), strict=True))
    nodes, edges = (t.to_pylist() for t in made)
    return nodes, edges


@pytest.mark.parametrize("path", OWN, ids=lambda p: p.name)
def test_our_graphs(path: Path) -> None:
    assert read(path) == expected(path)


def test_the_graphs_are_made_by_the_program(tmp_path: Path) -> None:
    program = FIXTURES.parent / "programs" / "tensorflow_graphs.py"
    subprocess.run([sys.executable, program, tmp_path], check=True)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {
        p.name: p.read_bytes()
        for p in FIXTURES.iterdir()
        if p.name in ("network.pb", "network.pbtxt", "saved_model.pb")
    }


def test_what_a_node_says() -> None:
    frame = tk.load(FIXTURES / "network.pb").frame("graph_nodes").with_columns(pl.col(pl.Categorical).cast(pl.String))
    nodes = {n["name"]: n for n in frame.collect().to_dicts()}
    conv = nodes["conv1/Conv2D"]
    assert {
        k: conv[k] for k in ("op", "scope", "dtype", "strides", "padding", "data_format", "dilations", "ksize")
    } == {
        "op": "Conv2D",
        "scope": "conv1",
        "dtype": "float16",
        "strides": "[1,2,2,1]",
        "padding": "SAME",
        "data_format": "NHWC",
        "dilations": "[1,1,1,1]",
        "ksize": None,
    }
    assert nodes["heads/split"]["output_shapes"] == "[[-1,7,7,16],null]"
    assert nodes["heads/a"]["function"] == '["dense_layer"]'
    assert nodes["heads/axis"]["attributes"] == '{"dtype":"int32","value":{"dtype":"int32","shape":[]}}'
    assert nodes["product"]["graph"] == "function dense_layer"


def test_a_saved_model_has_its_tags_and_version(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    shutil.copyfile(FIXTURES / "saved_model.pb", folder / "saved_model.pb")
    for path in (FIXTURES / "saved_model.pb", folder):
        with tk.load(path) as trace:
            assert trace.info == {"tool": "TensorFlow", "tool_version": "2.17.0"}
            found = trace.frame("graph_nodes").select(pl.col("graph").cast(pl.String).unique(maintain_order=True))
            assert found.collect()["graph"].to_list() == [
                *("serve", "serve, function dense_layer", "serve, function unused"),
                *("train,gpu", "train,gpu, function dense_layer", "train,gpu, function unused"),
            ]


def test_a_meta_graph(tmp_path: Path) -> None:
    (tmp_path / "model.meta").write_bytes(meta := metas()[1])
    assert read(tmp_path / "model.meta") == in_order(rows(graphs(b"\x08\x01" + message((2, meta)))))


def metas() -> list[bytes]:
    from tests.fuzz.changes import fields

    found = fields((FIXTURES / "saved_model.pb").read_bytes())
    assert found
    return [f.value for f in found if f.number == 2]


@pytest.mark.parametrize("path", OWN, ids=lambda p: p.name)
def test_same_under_an_unknown_name(path: Path, tmp_path: Path) -> None:
    shutil.copyfile(path, tmp_path / "unknown")
    assert read(tmp_path / "unknown") == read(path)


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_exported_and_read_again_it_is_equal(tmp_path: Path, format: str) -> None:
    with tk.load(FIXTURES / "saved_model.pb") as trace, tk.load(trace.export(tmp_path / "out", format=format)) as again:
        for name in TABLES:
            assert again[name].equals(trace[name])


@pytest.mark.corpus
@pytest.mark.skipif(not PUBLIC, reason="no corpus beside the checkout")
@pytest.mark.parametrize("number", range(len(PUBLIC)))
def test_public_graphs(number: int) -> None:
    path = PUBLIC[number]
    found, wanted = read(path), expected(path)
    assert [len(t) for t in found] == [len(t) for t in wanted]
    unequal = {
        c for a, b in zip(found, wanted, strict=True) for x, y in zip(a, b, strict=True) for c in x if x[c] != y[c]
    }
    assert not unequal


@pytest.mark.corpus
@pytest.mark.skipif(not PUBLIC, reason="no corpus beside the checkout")
@pytest.mark.parametrize("name", REFUSED)
def test_public_files_that_are_no_graphs(name: str) -> None:
    paths = list(CORPUS.rglob(name))
    assert paths
    for path, of in itertools.product(paths, (None, "graphdef")):
        with pytest.raises(UnknownFormatError, match=REFUSED[name]):
            tk.load(path, of)


TYPES = st.sampled_from([*types_pb2.DataType.values(), 99, 1000])
TEXT = st.sampled_from(["", "a", "scope/a", "a/b/c", "é\n/x", '"', "\\", "x" * (LONGEST + 1)]) | st.text(max_size=9)
DEEPEST = 2
SIZES = st.lists(st.integers(-1, 1 << 40), max_size=4)


def shape(made: Any, sizes: list[int] | None) -> None:
    made.SetInParent()
    if sizes is None:
        made.unknown_rank = True
    for size in sizes or ():
        made.dim.add(size=size)


def listed(draw: st.DrawFn, made: Any, depth: int) -> None:
    made.SetInParent()
    for inner in draw(st.lists(values(depth=0), max_size=3)) + draw(
        st.lists(values(depth=0).filter(is_text), max_size=2)
    ):
        if (part := inner.WhichOneof("value")) in ("s", "i", "f", "b", "type"):
            getattr(made, part).append(getattr(inner, part))
        elif part in ("shape", "tensor"):
            getattr(made, part).add().CopyFrom(getattr(inner, part))
    for tensor in made.tensor:
        tensor.tensor_content = b""
    if depth and draw(st.booleans()):
        filled(draw, made.func.add(), depth)


@st.composite
def values(draw: st.DrawFn, depth: int = DEEPEST) -> attr_value_pb2.AttrValue:
    """A value of any kind."""
    made = attr_value_pb2.AttrValue()
    kind = draw(st.sampled_from(["s", "i", "f", "b", "type", "shape", "tensor", "func", "placeholder", "list", ""]))
    if kind == "func" and depth:
        filled(draw, made.func, depth)
    elif kind == "list":
        listed(draw, made.list, depth)
    elif kind == "shape":
        shape(made.shape, draw(st.none() | SIZES))
    elif kind == "tensor":
        made.tensor.dtype = draw(TYPES)
        shape(made.tensor.tensor_shape, draw(SIZES))
        made.tensor.tensor_content = draw(st.sampled_from([b"", b"1234", bytes(LONG if depth == DEEPEST else 9)]))
    elif kind and kind != "func":
        simple = {"s": st.binary(max_size=9) | TEXT.map(str.encode), "i": st.integers(-(1 << 63), (1 << 63) - 1)}
        simple |= {"f": st.floats(width=32), "b": st.booleans(), "type": TYPES, "placeholder": TEXT}
        setattr(made, kind, draw(simple[kind]))
    return made


def is_text(value: attr_value_pb2.AttrValue) -> bool:
    return value.WhichOneof("value") == "s"


def filled(draw: st.DrawFn, function: Any, depth: int) -> None:
    function.name = draw(TEXT)
    for key in draw(st.lists(TEXT, max_size=2)):
        function.attr[key].CopyFrom(draw(values(depth - 1)))


KEYS = (
    st.sampled_from(["dtype", "T", "DstT", "_output_shapes", "strides", "padding", "data_format", "f", "value"]) | TEXT
)
INPUTS = st.builds(
    "{}{}{}".format, st.sampled_from(["", "^", "^^"]), TEXT, st.sampled_from(["", ":0", ":1", ":y:2", ":", "::"])
)


@st.composite
def nodes(draw: st.DrawFn, made: Any) -> None:
    made.name, made.op = draw(TEXT), draw(st.sampled_from(["Const", "layer", "", "If"]))
    made.device = draw(st.sampled_from(["", "/device:GPU:0"]))
    made.input.extend(draw(st.lists(INPUTS | st.sampled_from(["a:99999999999", "a:١", "a:y:x"]), max_size=4)))
    for key in draw(st.lists(KEYS, max_size=5)):
        made.attr[key].CopyFrom(draw(values()))


@st.composite
def networks(draw: st.DrawFn) -> graph_pb2.GraphDef:
    """A graph with functions."""
    made = graph_pb2.GraphDef()
    for _ in range(draw(st.integers(0, 5))):
        draw(nodes(made.node.add()))
    for _ in range(draw(st.integers(0, 3))):
        function = made.library.function.add()
        function.signature.name = draw(st.sampled_from(["layer", "", "other/x"]))
        for _ in range(draw(st.integers(0, 3))):
            draw(nodes(function.node_def.add()))
    return made


@given(networks())
def test_any_graph(made: graph_pb2.GraphDef) -> None:
    assert taken(made.SerializeToString()) == in_order(rows([("", made)]))


@given(networks())
def test_any_graph_as_text(made: graph_pb2.GraphDef) -> None:
    from tracekit.readers.graphdef import capture

    written = text_format.MessageToString(made)
    known = text_format.Parse(written, graph_pb2.GraphDef())
    assert taken(capture.encode_text_message(memoryview(written.encode()), "GraphDef")) == in_order(rows([("", known)]))


def test_parts_of_a_message_may_come_in_any_order_and_several_times() -> None:
    node = lambda name, *more: message((1, name), (2, b"NoOp"), *more)  # noqa: E731
    library = lambda name: message((1, message((3, node(b"in")), (1, message((1, name))))))  # noqa: E731
    octets = message((2, library(b"f")), (1, node(b"a")), (4, b""), (2, library(b"g")), (1, node(b"b", (3, b"a"))))
    found, edges = taken(octets)
    assert [(n["graph"], n["name"]) for n in found] == [
        ("", "a"),
        ("", "b"),
        ("function f", "in"),
        ("function g", "in"),
    ]
    assert [(e["source"], e["target"]) for e in edges] == [(0, 1)]


def test_of_two_attributes_of_one_name_the_last_counts() -> None:
    entry = lambda key, number: (5, message((1, key), (2, message((6, number)))))  # noqa: E731
    octets = message((1, message((1, b"a"), (2, b"x"), entry(b"T", 1), entry(b"U", 3), entry(b"T", 19))))
    ((node,), _) = taken(octets)
    assert node["attributes"] == '{"T":"float16","U":"int32"}'


def test_texts_that_are_not_utf_8_are_repaired() -> None:
    octets = message((1, message((1, b"a\xff/b"), (2, b"No\xfeOp"), (3, b"^\xff"), (4, b"\xff"))))
    ((node,), (edge,)) = taken(octets)
    assert (node["name"], node["op"], node["device"], node["scope"]) == ("a\ufffd/b", "No\ufffdOp", "\ufffd", "a\ufffd")
    assert (edge["source_name"], edge["source"], edge["control"]) == ("\ufffd", None, True)


def test_a_long_value_is_told_by_its_size() -> None:
    made = graph_pb2.GraphDef()
    attr = made.node.add(name="engine", op="TRTEngineOp").attr
    attr["serialized_segment"].s = bytes(LONG)
    attr["many"].list.i.extend(range(LONGEST + 1))
    ((node,), _) = taken(made.SerializeToString())
    size = attr["serialized_segment"].ByteSize()
    assert node["attributes"] == f'{{"many":{{"values":{LONGEST + 1}}},"serialized_segment":{{"bytes":{size}}}}}'


def test_graphs_are_numbered_through() -> None:
    network = (FIXTURES / "network.pb").read_bytes()
    parts = [
        reading.read_graph(network, label="it", graph="a", run="r"),
        reading.read_graph(network, label="it", run="s"),
    ]
    both = reading.concat_graphs(parts)
    once = parts[0].nodes.num_rows
    assert both.nodes["node_id"].to_pylist() == list(range(2 * once))
    assert both.edges["edge_id"].to_pylist() == list(range(2 * parts[0].edges.num_rows))
    second = both.edges.slice(parts[0].edges.num_rows)
    assert np.array_equal(second["target"], np.array(parts[1].edges["target"]) + once)
    assert second["source"].null_count == parts[1].edges["source"].null_count
    assert both.nodes["run"].to_pylist() == ["r"] * once + ["s"] * once
    assert both.nodes["graph"].to_pylist()[0] == "a"
    assert reading.concat_graphs([]).nodes.num_rows == 0


def test_what_is_no_graph_is_named() -> None:
    with pytest.raises(Damage, match=r"^event 3: a field extends beyond the end of its message \(offset 0 of 3\)$"):
        reading.read_graph(b"\x0a\x05a", label="event 3")
    many = message(*((2, b"\x12\x00") for _ in range(65)))
    with pytest.raises(Damage, match=r"^it: the message contains 65 meta graphs, but tracekit supports at most 64$"):
        reading.read_saved_model(many, label="it")
    typed = message((1, message((5, message((1, b"k"), (2, message((8, message((1, b"x"))))))))))
    with pytest.raises(Damage, match="the element type of a tensor is encoded as bytes instead of a number"):
        reading.read_graph(typed, label="it")
    with pytest.raises(Damage, match=r"^it: the value of an attribute is not a valid protobuf message \(5 bytes\)$"):
        reading.read_graph(message((1, message((5, message((1, b"k"), (2, message((7, b"\x12\x05a")))))))), label="it")


@given(networks())
def test_large_graphs_are_read_without_their_constants(made: graph_pb2.GraphDef) -> None:
    octets = made.SerializeToString()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph, "LARGE_BYTES", 0)
        patch.setattr(graph, "SMALL_FIELD_BYTES", 8)
        assert taken(octets) == without_large(in_order(rows([("", made)])), taken(octets))


def without_large(wanted: tuple[Rows, Rows], found: tuple[Rows, Rows]) -> tuple[Rows, Rows]:
    """Leave what is told of lists of tensors by their size, which is another one without the tensors."""
    for a, b in zip(wanted[0], found[0], strict=True):
        if '{"bytes":' in (a["attributes"] or ""):
            a["attributes"] = b["attributes"]
    return wanted


def test_constants_take_no_memory() -> None:
    made = graph_pb2.GraphDef.FromString((FIXTURES / "network.pb").read_bytes())
    for node in (made.node[1], made.library.function[0].node_def[0]):
        node.attr["value"].tensor.tensor_content = bytes(1 << 20)
        node.attr["values"].list.tensor.add(tensor_content=bytes(1 << 20), dtype=1)
    meta = message((1, message((5, b"1.2"))), (2, made.SerializeToString()), (7, bytes(1 << 20)))
    for octets, within in (
        (made.SerializeToString(), MessageKind.GRAPH),
        (meta, MessageKind.META_GRAPH),
        (message((1, 1), (2, meta), (2, meta)), MessageKind.SAVED_MODEL),
    ):
        slim = graph.drop_unused_fields(memoryview(octets), within)
        assert len(octets) > 4 << 20
        assert len(slim) < 9000
        read = {MessageKind.GRAPH: reading.read_graph, MessageKind.META_GRAPH: reading.read_meta_graph}.get(
            within, reading.read_saved_model
        )
        small, whole = (read(o, label="it") for o in (slim, octets))
        assert small.nodes.drop_columns("attributes").equals(whole.nodes.drop_columns("attributes"))
        assert small.edges.equals(whole.edges)
        assert small.versions == whole.versions


@pytest.mark.parametrize("octets", [b"\x0a\x85\x27a", b"\x0b\x00", b"\x0a\xff", b"\x0d\x00"])
def test_damage_in_a_large_graph_is_told_with_its_place(octets: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "LARGE_BYTES", 0)
    with pytest.raises(Damage, match=r"^it: .*(\(offset 2 of |at offset )"):
        reading.read_graph(b"\x12\x00" + octets, label="it")


def test_a_graph_is_not_drawn_in_time(tmp_path: Path) -> None:
    with (
        tk.load(FIXTURES / "network.pb") as trace,
        pytest.raises(ExportError, match=r"nothing to draw: the nodes of a graph have no timestamps"),
    ):
        trace.export(tmp_path / "a.json", format="chrome-trace")
    assert list(tmp_path.iterdir()) == []
