"""Memory snapshots of PyTorch: PyTorch's own numbers, and brute force over the values that ``pickle`` reads."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tracekit as tk
from tracekit.errors import CorruptTraceError, TracekitWarning, UnknownFormatError
from tracekit.readers.common import pickled_stacks as frames

FIXTURES = Path(__file__).parents[2] / "fixtures" / "memory_snapshot"
CORPUS = Path(__file__).parents[3] / "shared" / "corpus" / "makers" / "pytorch_memory"
FILES = sorted(CORPUS.glob("*/*.pickle"))
TRUTH = json.loads((FIXTURES / "truth.json").read_text("utf-8"))
OPERATIONS = {
    "alloc": "allocate",
    "free_requested": "request free",
    "free_completed": "free",
    "segment_alloc": "allocate segment",
    "segment_free": "free segment",
    "oom": "out of memory",
}
IN_USE = ("active_allocated", "active_pending_free", "active_awaiting_free")


class Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        raise AssertionError(f"{module}.{name}")


def unpickle(path: Path) -> Any:
    with path.open("rb") as file:
        return Plain(file).load()


def get_paths(stacks: pl.DataFrame) -> dict[int | None, list[tuple[str, str | None, int]]]:
    """The frames of each stack, from the innermost one: name, file and line."""
    paths: dict[int | None, list[tuple[str, str | None, int]]] = {None: []}
    for stack, parent, *frame in stacks.select("stack_id", "parent_id", "symbol", "module", "line").iter_rows():
        paths[stack] = [(frame[0], frame[1], frame[2] or 0), *paths[parent]]
    return paths


def get_frames(recorded: dict[str, Any]) -> list[tuple[str, str | None, int]]:
    files = ((f, re.split(r"[/\\]", f["filename"])[-1]) for f in recorded.get("frames", []))
    return [(f["name"], None if name in ("", "??") else name, f["line"]) for f, name in files]


def format_size(number: float) -> str:
    power = min(int(number).bit_length() // 10, 3)
    power -= power > 0 and number < 1024**power
    return f"{number / 1024**power:3.1f}{('', 'Ki', 'Mi', 'Gi')[power]}B"


def check_against_values(path: Path) -> None:
    """Compare all tables with the values that ``pickle`` reads."""
    snapshot = unpickle(path)
    with tk.load(path) as trace:
        events, blocks, segments, stacks = (
            trace.frame(name).collect() for name in ("allocator_events", "memory_blocks", "memory_segments", "stacks")
        )
    paths = get_paths(stacks)
    recorded = [(device, e) for device, trace in enumerate(snapshot["device_traces"]) for e in trace]
    assert events["device_id"].to_list() == [device for device, _ in recorded]
    assert events["operation"].to_list() == [OPERATIONS[e["action"]] for _, e in recorded]
    for column, key in {"address": "addr", "bytes": "size", "stream_id": "stream", "free_bytes": "device_free"}.items():
        assert events[column].to_list() == [e.get(key) for _, e in recorded]
    times = [e.get("time_us") for _, e in recorded]
    notes = [note["time_us"] for note in snapshot.get("external_annotations", ())]
    origin = min([t for t in times if t is not None] + notes, default=0)
    assert events["timestamp_ns"].to_list() == [None if t is None else (t - origin) * 1000 for t in times]
    assert [paths[n] for n in events["stack_id"]] == [get_frames(e) for _, e in recorded]
    for column, key in {"bytes": "total_size", "requested_bytes": "requested_size", "stream_id": "stream"}.items():
        assert segments[column].to_list() == [s[key] for s in snapshot["segments"]]
    assert [paths[n] for n in segments["stack_id"]] == [get_frames(s) for s in snapshot["segments"]]
    pairs = [(n, b) for n, segment in enumerate(snapshot["segments"], 1) for b in segment["blocks"]]
    assert blocks["segment_id"].to_list() == [n for n, _ in pairs]
    for column, key in {"address": "address", "bytes": "size", "requested_bytes": "requested_size"}.items():
        assert blocks[column].to_list() == [b[key] for _, b in pairs]
    assert [paths[n] for n in blocks["stack_id"]] == [get_frames(b) for _, b in pairs]
    check_usage(snapshot, events)


def check_usage(snapshot: dict[str, Any], events: pl.DataFrame) -> None:
    """Compare the memory in use with a replay of the events from the last one to the first one."""
    for device, trace in enumerate(snapshot["device_traces"]):
        segments = [s for s in snapshot["segments"] if s["device"] == device]
        allocated = sum(b["requested_size"] for s in segments for b in s["blocks"] if b["state"] in IN_USE)
        reserved = sum(s["total_size"] for s in segments)
        of_device = events.filter(device_id=device)
        usage = list(zip(of_device["allocated_bytes"], of_device["reserved_bytes"], strict=True))
        for event, (a, r) in zip(reversed(trace), reversed(usage), strict=True):
            assert a in (allocated, None)
            assert r in (reserved, None)
            sign = {"alloc": 1, "free_completed": -1}.get(event["action"], 0)
            allocated -= sign * event["size"]
            grown = event["action"] in ("segment_alloc", "segment_map")
            reserved -= (grown - (event["action"] in ("segment_free", "segment_unmap"))) * event["size"]


@pytest.mark.parametrize("name", ["oom", "ring"])
def test_values_of_our_snapshots(name: str) -> None:
    check_against_values(FIXTURES / f"{name}.pickle")


@pytest.mark.every
@pytest.mark.parametrize("name", ["oom", "ring"])
def test_numbers_are_those_of_pytorch(name: str) -> None:
    """``torch.cuda.memory_stats`` when the snapshot was taken, and ``torch.cuda._memory_viz.segsum``."""
    truth = TRUTH[name]
    with tk.load(FIXTURES / f"{name}.pickle") as trace:
        events, blocks, segments = (
            trace.frame(table).collect() for table in ("allocator_events", "memory_blocks", "memory_segments")
        )
    for column, key in {"allocated_bytes": "requested_bytes", "reserved_bytes": "reserved_bytes"}.items():
        assert events[column][-1] == truth[f"{key}.all.current"]
        whole = name == "oom" or column == "reserved_bytes"  # the other one has only the last 300 events
        assert (events[column].max() == truth[f"{key}.all.peak"]) is whole
    assert segments["allocated_bytes"].sum() == truth["allocated_bytes.all.current"]
    assert segments["active_bytes"].sum() == truth["active_bytes.all.current"]
    assert segments["requested_bytes"].sum() == truth["requested_bytes.all.current"]
    assert str(segments.height) == truth["segments"]
    used = blocks.filter(state="allocated")
    assert used.height == truth["allocation.all.current"]
    assert events.filter(operation="out of memory").height == (truth["num_ooms"] if name == "oom" else 0)
    total, requested = segments["bytes"].sum(), used["requested_bytes"].sum()
    assert format_size(total) == truth["total_reserved"]
    assert format_size(requested) == truth["total_allocated"]
    assert truth["total_free"].startswith(format_size(total - requested))


def test_what_else_a_snapshot_says() -> None:
    with tk.load(FIXTURES / "oom.pickle") as trace:
        assert trace.format == "memory-snapshot"
        assert len(trace.undecoded) == 0
        times = trace.frame("allocator_events").collect()["timestamp_ns"]
        assert trace.span() == (times.min(), times.max())
        info = dict(trace.frame("capture_info").collect().iter_rows())
        ranges = trace.frame("nvtx_ranges").select("name", "start_ns", "end_ns").collect()
        stacks = trace.frame("stacks").collect()
        users = trace.frame("allocator_events").select("stack_id", "user_stack_id").unique().collect()
        pools = trace.frame("memory_segments").select("segment_type", "pool", "is_expandable").collect()
        failed = trace.frame("allocator_events").filter(operation="out of memory").collect()
    assert info["tool"] == "PyTorch memory history"
    assert int(info["origin_utc_ns"]) > 1_700_000_000 * 10**9
    assert info["allocator_max_split_size"] == "-1"
    assert info["allocator_roundup_power2_divisions"] == "0"
    assert not any("CONF" in name for name in info)
    assert ranges["name"].to_list()[:3] == ["step 0", "Optimizer.step#Adam.step", "Optimizer.zero_grad#Adam.zero_grad"]
    assert ranges.height == 9
    assert (ranges["end_ns"] > ranges["start_ns"]).all()
    paths = get_paths(stacks)
    for stack, user in users.iter_rows():
        own = [n for n, (_, module, _) in enumerate(paths[stack]) if module == "snap.py"]
        assert paths[user] == (paths[stack][own[0] :] if own else [])
    assert users["user_stack_id"].null_count() < users.height
    assert set(pools.select("segment_type", "pool", "is_expandable").unique().iter_rows()) == {
        ("small", None, False),
        ("large", None, False),
    }
    assert failed["bytes"].to_list() == [1 << 42]
    assert failed["address"].to_list() == [None]


def test_all_protocols_say_the_same(tmp_path: Path) -> None:
    snapshot = unpickle(FIXTURES / "ring.pickle")
    with tk.load(FIXTURES / "ring.pickle") as trace:
        for protocol in range(6):
            with tk.load(write(tmp_path, snapshot, protocol)) as other:
                assert all(other[name].equals(trace[name]) for name in trace.tables)


@pytest.mark.corpus
@pytest.mark.every
@pytest.mark.filterwarnings("ignore::tracekit.errors.TracekitWarning")
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name[:12]}-{path.stem}")
def test_values_of_public_snapshots(path: Path) -> None:
    check_against_values(path)


def write(tmp_path: Path, value: object, protocol: int = 4) -> Path:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(value, protocol))
    return path


def segment(**members: object) -> dict[str, object]:
    blocks = [
        {"address": 64, "size": 512, "requested_size": 500, "state": "active_allocated", "frames": []},
        {"address": 576, "size": 512, "requested_size": 10, "state": "active_pending_free", "frames": []},
        {"address": 1088, "size": 1024, "requested_size": 0, "state": "inactive", "frames": []},
    ]
    sizes = {"total_size": 2048, "allocated_size": 512, "active_size": 1024, "requested_size": 510}
    return {"device": 0, "address": 64, **sizes, "stream": 0, "segment_type": "small", "blocks": blocks, **members}


def event(action: str, time: int | None = None, **members: object) -> dict[str, object]:
    return {"action": action, "addr": 64, "size": 100, "stream": 0} | ({"time_us": time} if time else {}) | members


def test_snapshots_of_old_versions(tmp_path: Path) -> None:
    frame = {"name": "f", "filename": "/home/me/a.py", "line": 3}
    history = [{"addr": 64, "real_size": 300, "frames": [frame]}, {"addr": 64, "real_size": 1}]
    blocks = [
        {"size": 512, "state": "active_allocated", "history": history},
        {"size": 1536, "state": "inactive"},
    ]
    old = {k: v for k, v in segment(blocks=blocks, device=3).items() if k != "requested_size"}
    for value in ([old], {"segments": [old], "device_traces": []}):
        for protocol in (0, 2, 4):
            with tk.load(write(tmp_path, value, protocol)) as trace:
                read = trace.frame("memory_blocks").collect()
                assert read["address"].to_list() == [64, 576]
                assert read["requested_bytes"].to_list() == [300, None]
                assert read["state"].to_list() == ["allocated", "inactive"]
                assert trace.frame("stacks").select("symbol", "module", "line").collect().rows() == [("f", "a.py", 3)]
                assert trace.devices["device_id"].to_list() == [3]
                assert trace.count("allocator_events") == 0


def test_events_without_times_and_of_several_devices(tmp_path: Path) -> None:
    traces = [[], [event("alloc"), event("free_completed"), event("user_defined", size=None)], [event("segment_map")]]
    pool = segment(device=2, segment_pool_id=(7, 1), is_expandable=True, blocks=[])
    with tk.load(write(tmp_path, {"segments": [pool], "device_traces": traces})) as trace:
        events = trace.frame("allocator_events").collect()
        assert trace.frame("memory_segments").collect()["pool"].to_list() == ["7.1"]
        assert trace.devices["device_id"].to_list() == [1, 2]
        assert trace.span() is None
        assert "duration_ns" not in dict(trace.frame("capture_info").collect().iter_rows())
    assert events["operation"].to_list() == ["allocate", "free", "user_defined", "map segment"]
    assert events["timestamp_ns"].null_count() == 4
    assert events["allocated_bytes"].to_list() == [100, 0, 0, 0]
    assert events["reserved_bytes"].to_list() == [0, 0, 0, 2048]


def test_events_that_contradict_the_blocks(tmp_path: Path) -> None:
    traces = [[event("alloc", 5, size=1 << 20), event("free_completed", 6, size=9), event("alloc", 7, size=1 << 40)]]
    path = write(tmp_path, {"segments": [segment()], "device_traces": traces})
    with (
        pytest.warns(TracekitWarning, match="3 events do not match the blocks of the snapshot"),
        tk.load(path) as trace,
    ):
        events = trace.frame("allocator_events").collect()
    assert events["allocated_bytes"].null_count() == 3
    assert events["reserved_bytes"].to_list() == [2048] * 3


def test_annotations_nest_and_may_be_open(tmp_path: Path) -> None:
    def note(stage: str, name: str, time: int | None, device: int = 0) -> dict[str, object]:
        return {"stage": stage, "name": name, "device": device, "time_us": time}

    notes = [
        *(note("END", "a", 10), note("START", "a", 11), note("START", "a", 12), note("START", "a", 12, device=1)),
        *(note("END", "a", 13), note("END", "a", 14), note("START", "b", 15), note("OTHER", "b", 16)),
        *(note("END", "a", 17), note("START", "a", 18), note("END", "a", 19), note("END", "b", None)),
    ]
    value = {"segments": [], "device_traces": [], "external_annotations": notes, "more": 1, "allocator_settings": 3}
    with tk.load(write(tmp_path, value)) as trace:
        ranges = trace.frame("nvtx_ranges").select("name", "start_ns", "end_ns").collect()
        undecoded = {name: kind.count for name, kind in trace.undecoded.items()}
    assert ranges.rows() == [
        ("a", 1000, 4000),
        ("a", 2000, 3000),
        ("a", 2000, None),
        ("b", 5000, None),
        ("a", 8000, 9000),
    ]
    assert undecoded == {
        "annotations without a stage or time": 2,
        "ends of annotations that started before the recording": 2,
        "member more of the snapshot": 1,
    }


def test_settings_contain_no_text_of_the_environment(tmp_path: Path) -> None:
    settings = {
        "PYTORCH_CUDA_ALLOC_CONF": "secret",
        "max_split_size": -1,
        "threshold": 0.5,
        "expandable": True,
        "divisions": {"1": 0, "2": 4, "4": 8, "x": "y"},
        "not a name": 1,
        "none": None,
    }
    with tk.load(write(tmp_path, {"segments": [], "allocator_settings": settings})) as trace:
        info = dict(trace.frame("capture_info").collect().iter_rows())
    assert info == {
        "tool": "PyTorch memory history",
        "allocator_max_split_size": "-1",
        "allocator_threshold": "0.5",
        "allocator_expandable": "true",
        "allocator_divisions": "2:4, 4:8",
    }


class Called:
    def __reduce__(self) -> tuple[object, ...]:
        return print, ("called",)


@pytest.mark.every
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"segments": [], "device_traces": [Called()]}, "it would call .*print"),
        ({"segments": [], "device_traces": 3}, "lists were expected"),
        ({"segments": [], "device_traces": [3]}, "a list was expected"),
        ({"segments": [], "device_traces": [[3]]}, "events were expected"),
        ({"segments": [], "device_traces": [[{"addr": 1}]]}, "1 events of the snapshot have no action"),
        ({"segments": [], "device_traces": [[event("alloc", addr="x")]]}, "the value addr of the pickle"),
        ({"segments": [], "device_traces": [[event("alloc", time_us=-5)]]}, "not between 1970 and 2262"),
        ({"segments": [], "device_traces": [[event("alloc", time_us=1 << 62)]]}, "not between 1970 and 2262"),
        ({"segments": [], "device_traces": [[event("alloc", frames=[1])]]}, "frames were expected"),
        ({"segments": [segment(device=None)], "device_traces": []}, "segments of the snapshot have no device_id"),
        ({"segments": [segment(device=1 << 40)], "device_traces": []}, "an invalid device"),
        ({"segments": [segment(total_size=None)], "device_traces": []}, "segments of the snapshot have no bytes"),
        ({"segments": [segment(blocks=[{}])], "device_traces": []}, "blocks of the snapshot have no size"),
    ],
)
def test_damaged_snapshots_are_described(value: object, said: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptTraceError, match=said) as caught:
        tk.load(write(tmp_path, value))
    assert "Hint: " in str(caught.value)


def test_a_truncated_snapshot_is_corrupt(tmp_path: Path) -> None:
    data = (FIXTURES / "ring.pickle").read_bytes()
    path = tmp_path / "x.pickle"
    for size in (len(data) - 1, len(data) // 2, 600):
        path.write_bytes(data[:size])
        with pytest.raises(CorruptTraceError, match="the pickle is truncated"):
            tk.load(path)
    path.write_bytes(data + b"more")
    with pytest.warns(TracekitWarning, match="4 bytes after its end are ignored"), tk.load(path) as trace:
        assert trace.count("allocator_events") == 300


def test_other_pickles_are_no_snapshots(tmp_path: Path) -> None:
    path = write(tmp_path, {"entries": [1, 2]})
    with pytest.raises(UnknownFormatError, match="a pickle file"):
        tk.load(path)
    with pytest.raises(UnknownFormatError):
        tk.load(path, "memory-snapshot")


def test_repeated_blocks_do_not_take_much_memory(tmp_path: Path) -> None:
    blocks = [{"address": 0, "size": 1, "requested_size": 1, "state": "inactive", "frames": []}] * 50_000
    with pytest.raises(CorruptTraceError, match="would take"):
        tk.load(write(tmp_path, {"segments": [segment(blocks=blocks) for _ in range(5_000)], "device_traces": []}))


def test_shared_texts_and_events_do_not_take_much_memory(tmp_path: Path) -> None:
    text = "x" * (1 << 20)
    frames = [{"name": text, "filename": text, "line": line} for line in range(1, 10_001)]
    blocks = [{"size": 1, "state": text, "frames": frames}] * 10_000
    with tk.load(write(tmp_path, {"segments": [segment(blocks=blocks)], "device_traces": []})) as trace:
        assert (trace.count("memory_blocks"), trace.count("stacks")) == (10_000, 10_000)
    notes = [{"stage": "START", "name": text, "device": 0, "time_us": 5}] * 10_000
    with pytest.raises(CorruptTraceError, match="the strings of 10000 rows"):
        tk.load(write(tmp_path, {"segments": [], "device_traces": [], "external_annotations": notes}))
    with pytest.raises(CorruptTraceError, match="rows of allocator_events would take"):
        tk.load(write(tmp_path, {"segments": [], "device_traces": [[event("alloc")] * 100_000] * 10_000}))


def test_memory_of_many_devices(tmp_path: Path) -> None:
    segments = [segment(device=n % 64, total_size=n, blocks=[]) for n in range(20_000)]
    segments += [
        segment(device=64),
        segment(device=64),
        segment(device=65, blocks=[{"size": 1, "state": "active_allocated"}]),
    ]
    traces = [[event("alloc", 5)] if n > 62 else [] for n in range(67)]
    path = write(tmp_path, {"segments": segments, "device_traces": traces})
    with (
        pytest.warns(TracekitWarning, match="1 event does not match the blocks of the snapshot: its allocated_"),
        tk.load(path) as trace,
    ):
        events = trace.frame("allocator_events").collect()
    assert events["device_id"].to_list() == [63, 64, 65, 66]
    assert events["allocated_bytes"].to_list() == [0, 1020, None, 0]
    assert events["reserved_bytes"].to_list() == [sum(range(63, 20_000, 64)), 4096, 2048, 0]


def test_members_with_unknown_names(tmp_path: Path) -> None:
    more = {f"{n:03}" * 100: 1 for n in range(150)}
    with tk.load(write(tmp_path, {"segments": [], **more})) as trace:
        undecoded = {name: kind.count for name, kind in trace.undecoded.items()}
    assert undecoded.pop("other members of the snapshot") == 50
    assert (len(undecoded), max(map(len, undecoded))) == (100, len("member  of the snapshot") + 200)


@pytest.mark.every
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/home/me/proj/train.py", ("train.py", True)),
        ("C:\\Users\\me\\train.py", ("train.py", True)),
        ("<ipython-input-3-abc>", ("<ipython-input-3-abc>", True)),
        ("/home/me/torch/train.py", ("train.py", True)),
        ("/usr/lib/python3/dist-packages/numpy/core.py", ("core.py", False)),
        ("C:\\py\\Lib\\site-packages\\torch\\nn\\a.py", ("a.py", False)),
        ("/usr/lib/python3.11/threading.py", ("threading.py", False)),
        ("C:\\Python312\\Lib\\threading.py", ("threading.py", False)),
        ("<frozen importlib._bootstrap>", ("<frozen importlib._bootstrap>", False)),
        ("/src/torch/nn/modules/linear.py", ("linear.py", False)),
        ("/src/torch/_tensor.py", ("_tensor.py", False)),
        ("/pytorch/c10/cuda/CUDACachingAllocator.cpp", ("CUDACachingAllocator.cpp", False)),
        ("??", ("", False)),
        ("", ("", False)),
    ],
)
def test_files_of_the_program(path: str, expected: tuple[str, bool]) -> None:
    assert frames._locate(path) == expected
