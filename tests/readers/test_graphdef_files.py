"""Files that are graphs are told from files that are not, by their bytes; what is wrong with one is said."""

from __future__ import annotations

from pathlib import Path

import pytest
import tracekit as tk
from google.protobuf import text_format
from tensorboard.compat.proto import config_pb2, graph_pb2, meta_graph_pb2
from tests.builders.nsys_rep import message
from tests.readers.graphdef_oracle import FIXTURES
from tracekit.errors import CorruptTraceError, TracekitError, TracekitWarning, UnknownFormatError
from tracekit.readers.graphdef import capture
from tracekit.readers.tensorflow.forms import FileForm, FileMessage, detect_file_form

NETWORK = (FIXTURES / "network.pb").read_bytes()
TEXT = (FIXTURES / "network.pbtxt").read_bytes()
SAVED = (FIXTURES / "saved_model.pb").read_bytes()
OTHERS = sorted(p for p in FIXTURES.parent.rglob("*") if p.is_file() and p.parent != FIXTURES and p.suffix != ".py")


def metadata() -> config_pb2.RunMetadata:
    made = config_pb2.RunMetadata()
    device = made.step_stats.dev_stats.add(device="/job:localhost/replica:0/task:0/cpu:0")
    device.node_stats.add(node_name="a", all_start_micros=5)
    return made


def meta() -> meta_graph_pb2.MetaGraphDef:
    made = meta_graph_pb2.MetaGraphDef(graph_def=graph_pb2.GraphDef.FromString(NETWORK))
    made.meta_info_def.tensorflow_version = "2.17.0"
    return made


def listing() -> meta_graph_pb2.MetaGraphDef:
    made = meta_graph_pb2.MetaGraphDef(graph_def=graph_pb2.GraphDef.FromString(NETWORK))
    made.meta_info_def.stripped_op_list.op.add(name="Const")
    return made


def node(*more: tuple[int, bytes]) -> bytes:
    return message((1, message(*more)))


@pytest.mark.parametrize(
    ("octets", "message_", "is_text"),
    [
        (NETWORK, FileMessage.GRAPH, False),
        (SAVED, FileMessage.SAVED_MODEL, False),
        (TEXT, FileMessage.GRAPH, True),
        (b"# a remark\n\n  node\n{ # more\n op: 'x' }", FileMessage.GRAPH, True),
        (b"\xef\xbb\xbfversions <\n producer: 5 >", FileMessage.GRAPH, True),
        (b"library { function { } }", FileMessage.GRAPH, True),
        (b"node: {}", FileMessage.GRAPH, True),
        (b"saved_model_schema_version: 1\nmeta_graphs {", FileMessage.SAVED_MODEL, True),
        (b"meta_info_def {\n tags: 'serve' }", FileMessage.META_GRAPH, True),
        (text_format.MessageToString(metadata()).encode(), FileMessage.RUN_METADATA, True),
        (metadata().SerializeToString(), FileMessage.RUN_METADATA, False),
        (meta().SerializeToString(), FileMessage.META_GRAPH, False),
        (listing().SerializeToString(), FileMessage.META_GRAPH, False),
        (node((1, b"a"), (2, b"Const"), (5, bytes(5000)))[:4096], FileMessage.GRAPH, False),
        (node((1, b"only a name")), FileMessage.GRAPH, False),
        (b"\x22\x03\x08\xda\x0e", FileMessage.GRAPH, False),
        (b"\x22\x06\x08\xda\x0e\x1a\x01\x05", FileMessage.GRAPH, False),
        (b"\x12\x00\x22\x03\x08\xda\x0e", FileMessage.GRAPH, False),
    ],
)
def test_what_a_file_is(octets: bytes, message_: FileMessage, is_text: bool) -> None:
    assert detect_file_form(octets[:4096]) == FileForm(message_, is_text)


@pytest.mark.parametrize(
    "octets",
    [
        b"",
        b"\0" * 64,
        b"node",
        b"node is a word",
        b"node { id: 1 }",
        b"item {\n  id: 1\n  name: 'x'\n}",
        b"layer { name: 'x' }",
        b"{}",
        b"\x08\x02\x12\x02\x0a\x00",
        b"\x08\x01",
        message((1, b"text")),
        message((1, message((1, b"\x01\x02"), (2, b"Op")))),
        message((1, message((1, b"a"), (2, b"two words")))),
        message((1, message((1, b"a"), (8, b"x"), (2, b"Op")))),
        message((1, message((1, b"a"), (2, 5)))),
        message((7, b"x")),
        message((2, message((4, b"x")))),
        b"\xff" * 20,
        b"\x0a\x04\x0b\x0b\x0b\x0b",
        (24).to_bytes(8, "little") + b"1234\x09" + bytes(8) + b"\x1a\x0dbrain.Event:2",
    ],
)
def test_what_is_nothing_of_tensorflow(octets: bytes) -> None:
    found = detect_file_form(octets)
    assert found is None or (octets == b"\x08\x01" and found.message is FileMessage.SAVED_MODEL)


def test_no_other_fixture_is_taken_for_a_graph() -> None:
    assert len(OTHERS) > 50
    assert [p.name for p in OTHERS if detect_file_form(p.read_bytes()[:4096])] == []


def refusal(path: Path, octets: bytes, format: str | None = None) -> TracekitError:
    path.write_bytes(octets)
    with pytest.raises(TracekitError) as caught:
        tk.load(path, format)
    assert str(caught.value).startswith(f"{path}: ")
    assert caught.value.hint
    return caught.value


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"


@pytest.mark.parametrize("format", [None, "graphdef"])
@pytest.mark.parametrize(
    ("name", "octets", "said"),
    [
        ("a.pb", b"", "the file is empty (0 bytes)"),
        ("a.pb", POINTER, "a Git LFS pointer"),
        ("a.pbtxt", POINTER, "a Git LFS pointer"),
        ("a.pb", bytes(500), "begins with zeros only"),
        (
            "host.overview_page.pb",
            message((2, message((2, b""), (4, b"page")))),
            "a page of TensorFlow's profiler (overview_page)",
        ),
        ("host.xplane.pb", message((1, b"\x08\x01")), "neither a TensorFlow graph"),
        ("a.pb", metadata().SerializeToString(), "contains run metadata (times of a step), but no graph"),
        (
            "a.pbtxt",
            text_format.MessageToString(metadata()).encode(),
            "contains run metadata (times of a step), but no graph",
        ),
        ("labels.pbtxt", b"item {\n  id: 1\n}\n", "neither a TensorFlow graph"),
        ("a.pb", b"\x07\x07", "neither a TensorFlow graph"),
    ],
)
def test_what_is_no_graph_is_refused(tmp_path: Path, name: str, octets: bytes, said: str, format: str | None) -> None:
    error = refusal(tmp_path / name, octets, format)
    assert isinstance(error, UnknownFormatError)
    assert said in str(error)


@pytest.mark.parametrize(
    ("file", "format", "other"),
    [
        ("xplane/train.xplane.pb", "graphdef", "xplane"),
        ("train_amp.nsys-rep", "xplane", "nsys-rep"),
        ("tensorflow/network.pb", "xplane", "graphdef"),
    ],
)
def test_a_file_of_another_format_than_the_chosen_one(file: str, format: str, other: str) -> None:
    with pytest.raises(UnknownFormatError, match=f"this is a file in the format {other}") as error:
        tk.load(FIXTURES.parent / file, format=format)
    assert error.value.hint == "omit the format"


def test_another_file_under_a_name_that_says_nothing(tmp_path: Path) -> None:
    assert "not a TensorFlow graph" in str(refusal(tmp_path / "unknown", b"what is this", "graphdef"))


@pytest.mark.parametrize(
    ("name", "octets", "said"),
    [
        ("a.pb", NETWORK[:1000], r"the GraphDef: a field extends beyond the end of its message (offset "),
        ("a.pb", SAVED[:-1], "the SavedModel: a field extends beyond the end of its message (offset "),
        (
            "a.pb",
            meta().SerializeToString()[:-9],
            "the MetaGraphDef: a field extends beyond the end of its message (offset ",
        ),
        ("a.pbtxt", TEXT[:3000], "the protobuf text of the GraphDef is invalid or truncated at line 208, column 13\n"),
        (
            "a.pbtxt",
            b"node { name: 'a' name: 'b' }",
            "the protobuf text of the GraphDef is invalid or truncated at line 1, column ",
        ),
        (
            "a.pbtxt",
            b"node { attr { key: 'a' value { i: 99999999999999999999 } } }",
            "the protobuf text of the GraphDef is invalid or truncated at line 1, column ",
        ),
        ("a.pbtxt", b"node { name: 'a' x " + b"{ x " * 5000, "the GraphDef is nested too deep"),
        (
            "a.pbtxt",
            b"node { name: 'a\\",
            "the protobuf text of the GraphDef is invalid or truncated at line 1, column ",
        ),
    ],
)
def test_damage_is_told_with_its_place(tmp_path: Path, name: str, octets: bytes, said: str) -> None:
    error = refusal(tmp_path / name, octets)
    assert isinstance(error, CorruptTraceError)
    assert said in str(error)
    assert "dense" not in str(error)


def test_a_cut_between_nodes_is_noticed_by_inputs_without_a_node(tmp_path: Path) -> None:
    (tmp_path / "a.pb").write_bytes(NETWORK[NETWORK.index(b"conv1/Conv2D") - 5 :])
    with (
        pytest.warns(TracekitWarning, match=r"a\.pb: 3 inputs refer to missing nodes"),
        tk.load(tmp_path / "a.pb") as trace,
    ):
        assert trace["graph_edges"]["source"].null_count == 4


def test_a_text_may_be_too_large(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(capture, "MAX_TEXT_BYTES", 100)
    assert "bytes of text, but tracekit supports at most 100: save" in str(refusal(tmp_path / "a.pbtxt", TEXT))


def test_unknown_fields_and_types_of_a_text_are_passed_over(tmp_path: Path) -> None:
    written = b'node { name: "a" op: "B" new { x: [1, 2] } attr { key: "T" value { type: 77 } } } newer: 5'
    (tmp_path / "a.pbtxt").write_bytes(written)
    with tk.load(tmp_path / "a.pbtxt") as trace:
        assert trace["graph_nodes"]["dtype"].to_pylist() == ["type 77"]
