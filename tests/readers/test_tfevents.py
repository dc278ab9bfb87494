"""Event files of TensorBoard: points, texts, steps, graphs, runs, and what is told of files that are damaged."""

from __future__ import annotations

import math
import os
import shutil
import struct
import threading
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import tfevents as files
from tests.builders.tfevents import (
    CORPUS,
    SHARED,
    event,
    message,
    packed,
    scalar,
    summary,
    tensor,
    value,
    written,
)
from tests.helpers import count_undecoded
from tracekit.errors import CorruptTraceError, MissingTableError, UnknownFormatError
from tracekit.readers.tfevents import events, exported, records
from tracekit.readers.tfevents.events import NO_TIME

WALL_NS = 1_700_000_000_250_000_000
TENSORBOARD = SHARED / "captures" / "h200" / "tensorboard"


def scalars(path: Path, *columns: str) -> list[dict[str, Any]]:
    with tk.load(path) as trace:
        assert trace.format == "tfevents"
        return trace.table("scalars", list(columns) or ["tag", "step", "value"]).to_pylist()


def one(path: Path, made: Any, **told: Any) -> float | None:
    """The number that a tensor is read as; None if it is no point of a curve."""
    written(path, summary(value(tensor=made, **told)))
    with tk.load(path) as trace:
        found: list[float] = trace["scalars"]["value"].to_pylist()
        return found[0] if found else None


def test_a_point(tmp_path: Path) -> None:
    path = written(tmp_path, scalar(7, 0.5))
    with tk.load(path) as trace:
        assert trace["scalars"].to_pylist() == [
            {
                "scalar_id": 1,
                "run": ".",
                "tag": "loss",
                "step": 7,
                "wall_time_ns": WALL_NS,
                "value": 0.5,
                "kind": "simple_value",
            }
        ]
        assert trace.info == {
            "tool": "TensorFlow events",
            "schema_version": "brain.Event:2",
            "runs": "1",
            "origin_utc_ns": str(WALL_NS),
            "duration_ns": "0",
        }
        assert trace.undecoded == {}


def test_several_values_of_an_event_and_files_of_a_run(tmp_path: Path) -> None:
    both = summary(value("a", simple_value=1), value("b", simple_value=2), step=1)
    written(tmp_path, both, name="events.out.tfevents.2")
    written(tmp_path, scalar(5, 3, "a"), name="events.out.tfevents.1")
    assert [(r["tag"], r["step"], r["value"]) for r in scalars(tmp_path)] == [("a", 5, 3), ("a", 1, 1), ("b", 1, 2)]


def test_runs_are_folders(tmp_path: Path) -> None:
    written(tmp_path / "b" / "eval", scalar(1, 1))
    written(tmp_path / "a", scalar(2, 2))
    written(tmp_path, scalar(3, 3))
    (tmp_path / "notes.txt").write_text("no events")
    (tmp_path / "b" / "model.pt").write_bytes(b"\0" * 100)
    found = scalars(tmp_path, "scalar_id", "run", "step")
    assert found == [
        {"scalar_id": 1, "run": ".", "step": 3},
        {"scalar_id": 2, "run": "a", "step": 2},
        {"scalar_id": 3, "run": "b/eval", "step": 1},
    ]


def test_links_do_not_lead_out(tmp_path: Path) -> None:
    outside = written(tmp_path / "outside", scalar(1, 1))
    inside = written(tmp_path / "logs" / "a", scalar(2, 2))
    (tmp_path / "logs" / "b").symlink_to(outside.parent)
    (tmp_path / "logs" / "tfevents.link").symlink_to(outside)
    (tmp_path / "logs" / "tfevents.own").symlink_to(inside)
    assert [r["run"] for r in scalars(tmp_path / "logs", "run")] == [".", "a"]


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (tensor(files.FLOAT, float_val=[0.5]), 0.5),
        (tensor(files.FLOAT, tensor_content=struct.pack("<f", 1.5)), 1.5),
        (tensor(files.FLOAT, [1, 1], float_val=[2.5]), 2.5),
        (tensor(files.FLOAT), 0.0),
        (tensor(files.DOUBLE, double_val=[math.pi]), math.pi),
        (tensor(files.DOUBLE, tensor_content=struct.pack("<d", math.e)), math.e),
        (tensor(files.INT32, int_val=[-7]), -7),
        (tensor(files.INT32, tensor_content=struct.pack("<i", -8)), -8),
        (tensor(files.INT16, int_val=[-9]), -9),
        (tensor(files.INT8, tensor_content=b"\xff"), -1),
        (tensor(files.UINT8, tensor_content=b"\xff"), 255),
        (tensor(files.UINT16, int_val=[65535]), 65535),
        (tensor(files.UINT32, uint32_val=[4294967295]), 4294967295),
        (tensor(files.UINT64, uint64_val=[1 << 60]), float(1 << 60)),
        (tensor(files.INT64, int64_val=[-(1 << 52)]), -float(1 << 52)),
        (tensor(files.INT64, tensor_content=struct.pack("<q", 300)), 300),
        (tensor(files.BOOL, bool_val=[True]), 1),
        (tensor(files.BOOL, tensor_content=b"\0"), 0),
        (tensor(files.HALF, half_val=[0x3E00]), 1.5),
        (tensor(files.HALF, tensor_content=b"\x00\xc0"), -2),
        (tensor(files.BFLOAT16, half_val=[0x4049]), 3.140625),
        (tensor(files.BFLOAT16, tensor_content=b"\x49\x40"), 3.140625),
        (tensor(files.FLOAT, [2], float_val=[1, 2]), None),
        (tensor(files.FLOAT, [0]), None),
        (tensor(files.FLOAT, tensor_content=b"123"), None),
        (tensor(files.STRING, string_val=[b"1"]), None),
        (tensor(8, tensor_content=bytes(8)), None),
    ],
)
def test_tensors_of_one_number(tmp_path: Path, made: Any, expected: float | None) -> None:
    assert one(tmp_path, made, plugin="scalars") == expected


def test_which_tensors_are_points(tmp_path: Path) -> None:
    made = tensor(files.FLOAT, float_val=[2.0])
    assert one(tmp_path, made) == 2
    assert one(tmp_path, made, plugin="") == 2
    assert one(tmp_path, made, plugin="mine", data_class=1) == 2
    assert one(tmp_path, made, plugin="hparams") is None
    with tk.load(tmp_path) as trace:
        assert count_undecoded(trace.undecoded) == {"hparams": 1}


def test_metadata_of_the_first_value_hold_for_a_tag_of_the_run(tmp_path: Path) -> None:
    made = tensor(files.FLOAT, float_val=[2.0])
    first = summary(value("a", tensor=made, plugin="curves"), value("b", tensor=made, plugin="scalars"))
    again = summary(value("a", tensor=made, plugin="scalars"), value("b", tensor=made))
    written(tmp_path / "x", first, name="tfevents.1")
    written(tmp_path / "x", again, name="tfevents.2")
    written(tmp_path / "y", again)
    found = [(r["run"], r["tag"]) for r in scalars(tmp_path, "run", "tag")]
    assert found == [("x", "b"), ("x", "b"), ("y", "a"), ("y", "b")]
    with tk.load(tmp_path) as trace:
        assert count_undecoded(trace.undecoded) == {"curves": 2}
        assert set(trace["scalars"]["kind"].to_pylist()) == {"tensor"}


def test_texts(tmp_path: Path) -> None:
    first = tensor(files.STRING, [2], string_val=[b"one", "zwölf".encode()])
    bad = tensor(files.STRING, string_val=[b"\xff"])
    other = tensor(files.STRING, string_val=[b"{}"])
    written(
        tmp_path,
        summary(value("note", tensor=first, plugin="text"), step=3),
        summary(value("keras", tensor=other, plugin="keras")),
        summary(value("note", tensor=bad), step=4),
    )
    with tk.load(tmp_path) as trace:
        columns = ["text_id", "run", "tag", "step", "wall_time_ns", "element", "text"]
        rows = [
            (1, ".", "note", 3, WALL_NS, 0, "one"),
            (2, ".", "note", 3, WALL_NS, 1, "zwölf"),
            (3, ".", "note", 4, WALL_NS, 0, "\ufffd"),
        ]
        assert trace["texts"].to_pylist() == [dict(zip(columns, r, strict=True)) for r in rows]
        assert count_undecoded(trace.undecoded) == {"keras": 1}


def test_what_no_table_holds_is_counted(tmp_path: Path) -> None:
    image = tensor(files.STRING, [3], string_val=[b"1", b"1", b"png"])
    written(
        tmp_path,
        summary(value("i", image=b""), value("j", tensor=image, plugin="images")),
        summary(value("h", histogram=b""), value("h", old_histogram=b""), value("a", audio=b"")),
        summary(value("_hparams_/experiment", plugin="hparams"), value("x")),
        summary(value("t", tensor=tensor(files.FLOAT, [2], float_val=[1, 2]))),
        event(session_log=message("SessionLog", status=1)),
        event(log_message=message("LogMessage", message=b"secret")),
    )
    with tk.load(tmp_path) as trace:
        assert count_undecoded(trace.undecoded) == {
            "histogram": 2,
            "image": 2,
            "audio": 1,
            "hparams": 1,
            "log message": 1,
            "session log": 1,
            "tensor": 1,
            "value of no known kind": 1,
        }


def test_names_of_plug_ins_are_printable_short_and_few(tmp_path: Path) -> None:
    written(tmp_path, *(summary(value(f"t{i}", plugin=f"{i:03}\x1b[31m" + "x" * 99)) for i in range(150)))
    with tk.load(tmp_path) as trace:
        assert len(trace.undecoded) == 101
        assert trace.undecoded["other"] == tk.Undecoded(50)
        assert all(len(n) <= 60 and n.isprintable() for n in trace.undecoded)


def node(name: str, **fields: Any) -> Any:
    return message("NodeExecStats", node_name=name.encode(), **fields)


def traced(*devices: tuple[str, list[Any]], tag: str = "step 9") -> bytes:
    """An event with run metadata."""
    made = [message("DeviceStepStats", device=name.encode(), node_stats=nodes) for name, nodes in devices]
    run = message("RunMetadata", step_stats=message("StepStats", dev_stats=made))
    tagged = message("TaggedRunMetadata", tag=tag.encode(), run_metadata=run.SerializeToString())
    return event(9, tagged_run_metadata=tagged)


def test_step_stats(tmp_path: Path) -> None:
    described = message(
        "TensorDescription", allocation_description=message("AllocationDescription", requested_bytes=64)
    )
    began = 1_700_000_000_250_001
    full = node(
        "conv",
        all_start_micros=began,
        op_start_rel_micros=2,
        op_end_rel_micros=8,
        all_end_rel_micros=9,
        scheduled_micros=began - 1,
        timeline_label=b"conv = Conv2D(x, w)",
        thread_id=5,
        memory=[
            message("AllocatorMemoryUsed", total_bytes=10, peak_bytes=8, live_bytes=-1),
            message("AllocatorMemoryUsed", total_bytes=5),
        ],
        output=[
            message("NodeOutput", slot=0, tensor_description=described),
            message("NodeOutput", slot=1, tensor_description=described),
        ],
        memory_stats=message("MemoryStats", temp_memory_size=3, persistent_memory_size=4),
    )
    fine = node(
        "add", all_start_micros=began, all_start_nanos=began * 1000 + 7, all_end_rel_micros=1, all_end_rel_nanos=999
    )
    written(tmp_path, traced(("/gpu:0", [full]), ("/cpu:0", [fine, node("bare")])), traced(("/gpu:0", [node("late")])))
    with tk.load(tmp_path) as trace:
        rows = trace["step_stats"].to_pylist()
    assert rows[0] == {
        "execution_id": 1,
        "run": ".",
        "tag": "step 9",
        "step": 9,
        "device": "/gpu:0",
        "node_name": "conv",
        "timeline_label": "conv = Conv2D(x, w)",
        "start_ns": 1000,
        "end_ns": 10000,
        "op_start_ns": 3000,
        "op_end_ns": 9000,
        "scheduled_ns": 0,
        "thread_id": 5,
        "requested_bytes": 15,
        "peak_bytes": 8,
        "live_bytes": -1,
        "temp_bytes": 3,
        "persistent_bytes": 4,
        "output_count": 2,
        "output_bytes": 128,
    }
    wanted = ("device", "node_name", "start_ns", "end_ns", "op_start_ns", "requested_bytes", "output_count")
    assert [tuple(row[c] for c in wanted) for row in rows[1:]] == [
        ("/cpu:0", "add", 1007, 2006, None, None, 0),
        ("/cpu:0", "bare", None, None, None, None, 0),
        ("/gpu:0", "late", None, None, None, None, 0),
    ]


@pytest.mark.parametrize("fields", [{"all_start_micros": 1 << 60}, {"all_start_nanos": -(1 << 63)}])
def test_times_beyond_all_numbers(tmp_path: Path, fields: dict[str, int]) -> None:
    path = written(tmp_path, traced(("/cpu:0", [node("a", **fields)])))
    with pytest.raises(CorruptTraceError, match=r"start_ns of an execution is -?\d+ [µn]s, but .* \(bytes 0 to \d+\)"):
        tk.load(path)


def test_graphs(tmp_path: Path) -> None:
    graph = b"\x0a\x0a\x0a\x01a\x12\x05Const\x0a\x0b\x0a\x01b\x12\x03Neg\x1a\x01a"
    other = b"\x0a\x0a\x0a\x01c\x12\x05Const"
    meta = b"\x12" + bytes([len(graph)]) + graph
    written(tmp_path / "one", event(graph_def=graph), event(meta_graph_def=meta), event(graph_def=graph))
    written(tmp_path / "two", event(graph_def=graph), event(graph_def=other))
    written(tmp_path / "meta", event(meta_graph_def=meta))
    with tk.load(tmp_path) as trace:
        nodes = trace.table("graph_nodes", ["run", "graph", "name", "op"]).to_pylist()
        edges = trace.table("graph_edges", ["run", "source_name", "target"]).to_pylist()
    assert [tuple(n.values()) for n in nodes] == [
        ("meta", "", "a", "Const"),
        ("meta", "", "b", "Neg"),
        ("one", "", "a", "Const"),
        ("one", "", "b", "Neg"),
        ("two", "graph 1", "a", "Const"),
        ("two", "graph 1", "b", "Neg"),
        ("two", "graph 2", "c", "Const"),
    ]
    assert [tuple(e.values()) for e in edges] == [("meta", "a", 1), ("one", "a", 3), ("two", "a", 5)]


def test_a_damaged_graph_costs_no_points(tmp_path: Path) -> None:
    path = written(tmp_path, event(graph_def=b"\x0a\xff\x01"), scalar(1, 1))
    with tk.load(path) as trace:
        assert trace.count("scalars") == 1
        with pytest.raises(
            CorruptTraceError, match=r"the graph at byte \d+: a field extends beyond the end of its message"
        ):
            trace.table("graph_nodes")


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_seconds_become_the_nearest_nanoseconds(seconds: float) -> None:
    (found,) = events.convert_to_nanoseconds(np.array([seconds])).tolist()
    if not abs(seconds) < 9.2e9:
        assert found == NO_TIME
    else:
        assert abs(found - Fraction(seconds) * 1_000_000_000) <= Fraction(500_001, 1_000_000)


def test_a_time_that_is_none_is_null(tmp_path: Path) -> None:
    written(tmp_path, scalar(1, 1, wall_time=math.nan), scalar(2, 2, wall_time=1e300), scalar(3, 3, wall_time=0.0))
    assert [r["wall_time_ns"] for r in scalars(tmp_path, "wall_time_ns")] == [None, None, 0]


def test_a_file_that_is_still_being_written(tmp_path: Path) -> None:
    """A writer goes on byte by byte while we load: each load has whole records, in order, never fewer than before."""
    data, path = packed(*(scalar(i, i) for i in range(200))), tmp_path / "events.out.tfevents.1"
    path.write_bytes(data[:70])
    done = threading.Event()

    def write() -> None:
        with path.open("ab", buffering=0) as file:
            for first in range(70, len(data), 7):
                file.write(data[first : first + 7])
        done.set()

    writer = threading.Thread(target=write)
    seen, over = [], False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tk.TracekitWarning)
        writer.start()
        while not over:
            over = done.is_set()
            steps = [r["step"] for r in scalars(path, "step")]
            assert steps == list(range(len(steps)))
            seen.append(len(steps))
    writer.join()
    assert seen == sorted(seen)
    assert seen[-1] == 200


@pytest.mark.parametrize("cut", [1, 4, 5, 15, 16, 20])
def test_the_last_record_is_not_whole(tmp_path: Path, cut: int) -> None:
    path = written(tmp_path, scalar(1, 1), scalar(2, 2))
    data = path.read_bytes()
    path.write_bytes(data[:-cut])
    rest = len(files.framed(scalar(2, 2))) - cut
    said = rf"ends within a record, .* still being written: 2 records were read, but the last {rest} bytes were not"
    with pytest.warns(tk.TracekitWarning, match=said):
        assert [r["step"] for r in scalars(path)] == [1]


@pytest.mark.parametrize(("place", "what"), [(3, "size"), (9, "size"), (14, "data"), (-1, "data")])
def test_damage_in_the_middle(tmp_path: Path, place: int, what: str) -> None:
    """What stands before the damage is read; the warning says where it is, and how much is lost."""
    path = written(tmp_path, scalar(1, 1))
    before = path.stat().st_size
    bad = bytearray(files.framed(scalar(2, 2)))
    bad[place] ^= 1
    rest = bytes(bad) + files.framed(scalar(3, 3))
    path.write_bytes(path.read_bytes() + rest)
    read = "the 2 records before it were read"
    said = f"the checksum of the {what} of a record is wrong at byte {before}: {read}, but the last {len(rest)} bytes"
    with pytest.warns(tk.TracekitWarning, match=said):
        assert [r["step"] for r in scalars(path)] == [1]


def test_a_size_that_lies(tmp_path: Path) -> None:
    path = written(tmp_path, scalar(1, 1))
    size = struct.pack("<Q", 1 << 40)
    path.write_bytes(path.read_bytes() + size + struct.pack("<I", files.masked(size)) + bytes(100))
    with pytest.warns(
        tk.TracekitWarning, match="a record of 1099511627776 bytes exceeds tracekit's limit of 1073741824 at byte"
    ):
        assert len(scalars(path)) == 1


def test_a_record_that_is_whole_and_no_message(tmp_path: Path) -> None:
    path = written(tmp_path, b"\x2a\xff\x7f")
    with pytest.raises(
        CorruptTraceError, match=r"a field extends beyond the end of its message.*\(bytes 0 to 61\)\nHint: "
    ):
        tk.load(path)
    path.write_bytes(packed(b"\x2d1234"))
    with pytest.raises(CorruptTraceError, match="a field of an event has an unexpected wire type"):
        tk.load(path)


def test_records_longer_than_a_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "WINDOW_BYTES", 256)
    monkeypatch.setattr(events, "VALUES_PER_BATCH", 2)
    long = summary(*(value(f"{i % 7}", simple_value=i) for i in range(100)), step=5)
    path = written(tmp_path, *(scalar(i, i) for i in range(20)), long, *(scalar(i, i) for i in range(20)))
    found = [r["value"] for r in scalars(path)]
    assert found == [*range(20), *range(100), *range(20)]


@pytest.mark.parametrize("data", [b"", packed()])
def test_files_without_content(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(data)
    for what in (path, tmp_path):
        with tk.load(what) as trace:
            assert trace.format == "tfevents"
            assert [n for n in trace.tables if trace.count(n)] == ["capture_info"]


def test_examples_are_no_events(tmp_path: Path) -> None:
    example = b"\x0a\x0f\x0a\x0d\x0a\x01x\x12\x08\x12\x06\x0a\x04\0\0\x80\x3f"
    path = tmp_path / "train.tfrecord"
    path.write_bytes(files.framed(example) * 3)
    with pytest.raises(UnknownFormatError, match="a TFRecord file, but its records are not TensorBoard events\nHint"):
        tk.load(path)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", "this is a Git LFS pointer"),
        (b"\x1f\x8b" + bytes(50), "this is a gzip file"),
        (
            b"hello, this is not an event file at all",
            "this is not an event file, because it does not begin",
        ),
    ],
)
def test_files_that_are_none(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(data)
    with pytest.raises(CorruptTraceError, match=rf"{said}.*\nHint: \w"):
        tk.load(path, "tfevents")
    with (
        pytest.warns(tk.TracekitWarning, match=f"skipped: {said}"),
        pytest.raises(CorruptTraceError, match="contains 1 files with names of event files, but none of them is"),
    ):
        tk.load(tmp_path)
    written(tmp_path, scalar(1, 1), name="events.out.tfevents.2")
    with pytest.warns(tk.TracekitWarning, match=said):
        assert len(scalars(tmp_path)) == 1


def test_the_mark_of_a_profile(tmp_path: Path) -> None:
    path = written(tmp_path, name="events.out.tfevents.1.host.profile-empty")
    for what in (path, tmp_path):
        with pytest.raises(MissingTableError, match=r"only the marker of a TensorFlow profile in plugins/profile"):
            tk.load(what)
    page = tmp_path / "plugins" / "profile" / "1" / "host.overview_page.pb"
    page.parent.mkdir(parents=True)
    page.write_bytes(b"\x12\x01\0")
    with pytest.raises(UnknownFormatError, match="a page of TensorFlow's profiler"):
        tk.load(page)
    written(tmp_path, scalar(1, 1))
    assert len(scalars(tmp_path)) == 1


def test_folders_without_events(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    with pytest.raises(UnknownFormatError, match="a folder whose content no reader recognizes"):
        tk.load(tmp_path)
    with pytest.raises(CorruptTraceError, match="the folder contains no event files"):
        tk.load(tmp_path, "tfevents")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = written(tmp_path, scalar(1, 1))
    path.chmod(0)
    with pytest.raises(tk.TracekitError, match="cannot be read: permission denied"):
        tk.load(tmp_path)


def test_a_graph_of_a_file_that_became_shorter(tmp_path: Path) -> None:
    path = written(tmp_path, event(graph_def=b"\x0a\x00" * 50))
    with tk.load(path) as trace:
        path.write_bytes(b"")
        with pytest.raises(tk.TracekitError, match=r"changed while it was open: the 100 bytes at offset"):
            trace.table("graph_nodes")


def test_same_under_an_unknown_name(tmp_path: Path) -> None:
    path = written(tmp_path, scalar(1, 1))
    unknown = shutil.copyfile(path, tmp_path / "unknown")
    assert scalars(unknown) == scalars(path)


def test_what_traced_runs_hold_beside_step_stats_is_counted(tmp_path: Path) -> None:
    run = message("RunMetadata", cost_graph=b"", partition_graphs=[b"", b""], function_graphs=[b""])
    tagged = message("TaggedRunMetadata", run_metadata=run.SerializeToString())
    path = written(tmp_path, event(tagged_run_metadata=tagged), event(tagged_run_metadata=tagged))
    with tk.load(path) as trace:
        assert count_undecoded(trace.undecoded) == {"partition graph": 4, "cost graph": 2, "function graph": 2}
        assert trace.count("step_stats") == 0


def test_a_folder_that_may_not_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "a", scalar(1, 1))
    written(tmp_path / "b", scalar(2, 2))
    scandir = os.scandir

    def refusing(path: Any) -> Any:
        if Path(path).name == "a":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.warns(tk.TracekitWarning, match=r"a: the folder cannot be read and was skipped: Permission denied"):
        assert [r["step"] for r in scalars(tmp_path)] == [2]


def test_too_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        written(tmp_path, name=f"tfevents.{number}")
    monkeypatch.setattr(exported, "MAX_ENTRIES", 4)
    with pytest.raises(
        tk.TracekitError, match="contains more than 4 files and folders\nHint: read one of its subfolders"
    ):
        tk.load(tmp_path)
    monkeypatch.setattr(exported, "DETECTION_ENTRIES", 4)
    with pytest.raises(UnknownFormatError, match=r"a folder of 5 captures \(5 of tfevents\)"):
        tk.load(tmp_path)


def test_folders_are_not_walked_to_the_bottom(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*"d" * (exported.MAX_DEPTH + 1))
    written(deep, scalar(1, 1))
    written(deep.parent, scalar(2, 2))
    assert [r["step"] for r in scalars(tmp_path)] == [2]


@pytest.mark.corpus
@pytest.mark.skipif(not CORPUS.exists(), reason="no corpus beside the checkout")
@pytest.mark.parametrize("nth", range(10))
def test_corpus(nth: int) -> None:
    """Every file of the corpus loads, or is refused for the right reason."""
    found = sorted(p for p in CORPUS.rglob("*") if p.is_file())
    if nth >= len(found):
        pytest.skip("no such file")
    path = found[nth]
    if path.name.endswith(".pb"):
        with pytest.raises(UnknownFormatError, match="a page of TensorFlow's profiler"):
            tk.load(path)
    elif path.name.endswith(".profile-empty"):
        with pytest.raises(MissingTableError, match="only the marker of a TensorFlow profile"):
            tk.load(path)
    else:
        with tk.load(path) as trace:
            assert trace.format == "tfevents"
            assert trace.count("scalars") or trace.count("graph_nodes")
            for name in trace.tables:
                trace[name].validate(full=True)
                assert trace.count(name) == trace[name].num_rows
