"""Timelines of the Ascend PyTorch profiler, built by the names of fields in its source and documentation."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
import tracekit as tk
from tests.conftest import ALL
from tracekit.errors import CorruptTraceError, MissingTableError, TracekitError

FIXTURE = Path(__file__).parents[2] / "fixtures" / "ascend" / "trace_view.json"
EVENTS: list[dict[str, Any]] = json.loads(FIXTURE.read_text())
ORIGIN = 1_795_822_680_000_000_000


def columns(path: Path, table: str, *names: str) -> list[tuple[Any, ...]]:
    with tk.load(path) as trace:
        return trace.frame(table, names="string").select(names).collect().rows()


def nanoseconds(text: str) -> int:
    whole, _, fraction = text.partition(".")
    return int(whole) * 1000 + int(fraction) - ORIGIN


def write(path: Path, events: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps(events))
    return path


def test_tasks_are_kernels_copies_and_synchronizations() -> None:
    tasks = [e for e in EVENTS if "Task Type" in e.get("args", {})]
    kinds = {"KERNEL_AICORE": "kernels", "AI_VECTOR_CORE": "kernels", "MEMCPY_ASYNC": "memcpys", "EVENT_WAIT": "syncs"}
    for table in ("kernels", "memcpys", "syncs"):
        expected = [
            (nanoseconds(e["ts"]), nanoseconds(e["ts"]) + round(e["dur"] * 1000), 0, e["args"]["Physic Stream Id"])
            for e in tasks
            if kinds.get(e["args"]["Task Type"]) == table
        ]
        read = columns(FIXTURE, table, "start_ns", "end_ns", "device_id", "stream_id")
        assert [row for row in read if row[3] != 1] == expected, table
    assert columns(FIXTURE, "memcpys", "bytes") == [(4096,)] * 3
    assert len(columns(FIXTURE, "cuda_events", "timestamp_ns")) == 3
    with tk.load(FIXTURE) as trace:
        assert trace.info["origin_utc_ns"] == str(ORIGIN)
        flows = {f"flow async_{name}": tk.Undecoded(12, is_auxiliary=True) for name in ("npu", "task_queue")}
        assert trace.undecoded == {
            **flows,
            **{name: tk.Undecoded(3, is_auxiliary=True) for name in ("Communication", "task PROFILING_ENABLE")},
        }


def test_tasks_belong_to_the_ops_that_put_them_into_the_queue() -> None:
    with tk.load(FIXTURE) as trace:
        linked = trace.correlate()
        kernels = linked.frame("kernels", names="string").select("name", "range_path").collect().rows()
        copies = linked.frame("memcpys", names="string").select("range_path").collect().rows()
        assert trace.why().step.count == 3
        summed = trace.stats("cuda_gpu_kern_sum:base")
    ops = {"MatMulV3": "aten::matmul", "Add": "aten::add"}
    collectives = [path for name, path in kernels if name.startswith("hcom")]
    assert collectives == [f"ProfilerStep#{s}/c10d::allreduce_" for s in range(3)]
    expected = [(n, f"ProfilerStep#{s}/{ops[n]}") for s in range(3) for n in ops]
    assert [row for row in kernels if not row[0].startswith("hcom")] == expected
    assert copies == [(f"ProfilerStep#{s}/aten::copy_",) for s in range(3)]
    assert summed.height == 5


def test_calls_belong_to_threads_of_the_process_with_ops() -> None:
    calls = [e for e in EVENTS if e.get("cat") == "enqueue" or e["name"].startswith(("AscendCL@", "Node@"))]
    expected = [
        (4242, e["args"].get("Thread Id", e["tid"]), e["name"], "task queue" if e.get("cat") == "enqueue" else "CANN")
        for e in calls
    ]
    assert columns(FIXTURE, "api_calls", "process_id", "thread_id", "name", "api") == expected


def test_without_a_queue_tasks_belong_to_the_calls_of_the_layer_node(tmp_path: Path) -> None:
    direct = [e for e in EVENTS if e.get("cat") not in ("enqueue", "dequeue", "async_task_queue")]
    ids = columns(write(tmp_path / "trace_view.json", direct), "kernels", "correlation_id")
    assert [i for (i,) in ids if i is not None] == [1000, 1001, 3000, 1010, 1011, 3001, 1020, 1021, 3002]
    with tk.load(tmp_path / "trace_view.json") as trace:
        names = trace.correlate().frame("kernels").select("api_call_id").collect()["api_call_id"]
        calls = dict(trace.frame("api_calls", names="string").select("api_call_id", "name").collect().iter_rows())
    assert {calls[i] for i in names.drop_nulls()} == {"Node@launch", "AscendCL@HcclAllReduce"}


def test_a_layer_of_several_processes_belongs_to_the_process_in_its_id(tmp_path: Path) -> None:
    other = {"ph": "X", "cat": "cpu_op", "name": "x", "pid": 77, "tid": 1, "ts": "1795822680000000.000", "dur": 1}
    path = write(tmp_path / "trace_view.json", [*EVENTS, other])
    assert {p for (p,) in columns(path, "api_calls", "process_id")} == {4242}


def test_the_same_under_another_name_and_gzipped(tmp_path: Path) -> None:
    path = tmp_path / "unknown"
    path.write_bytes(gzip.compress(FIXTURE.read_bytes()))
    with tk.load(path) as packed, tk.load(FIXTURE) as plain:
        assert packed.format == plain.format == "ascend"
        for name in plain.tables:
            assert packed[name].equals(plain[name]), name


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("[{", CorruptTraceError, "no complete events"),
        ("[]", CorruptTraceError, "no complete events"),
        ('[{"ph":"X","name":"a","pid":1,"tid":1,"ts":"1","dur":1}]', MissingTableError, "1 events, but none"),
    ],
)
def test_files_without_events(text: str, error: type[TracekitError], words: str, tmp_path: Path) -> None:
    path = tmp_path / "trace_view.json"
    path.write_text(text)
    with pytest.raises(error, match=words):
        tk.load(path, format="ascend")


@pytest.mark.filterwarnings("ignore::tracekit.errors.TracekitWarning")
def test_damaged_files_raise_only_our_errors(tmp_path: Path) -> None:
    data, dice = FIXTURE.read_bytes(), random.Random(3)
    tokens = (b"", b"9" * 25, b'"', b"}", b"[", b"null", b"-1", b"\xff", b"1e999")
    for case in range(300 if ALL else 25):
        harmed = bytearray(data)
        for _ in range(dice.choice((1, 3, 20))):
            at = dice.randrange(len(harmed))
            harmed[at : at + dice.choice((0, 1, 9))] = dice.choice(tokens)
        path = tmp_path / f"{case}.json"
        path.write_bytes(harmed)
        try:
            with tk.load(path, format="ascend") as trace:
                for name in trace.tables:
                    trace.table(name).validate(full=True)
        except TracekitError:
            continue


def test_private_values_are_redacted(tmp_path: Path) -> None:
    stack = {"ph": "X", "cat": "cpu_op", "name": "aten::x", "pid": 4242, "tid": 4242, "ts": "1795822680000001.000"}
    stack |= {"dur": 1, "args": {"Call stack": "/home/jdoe/secret/train.py(3): main"}}
    path = write(tmp_path / "trace_view.json", [*EVENTS, stack])
    copy = tmp_path / "copy.json"
    assert sum(tk.redact(path, copy).values()) > 0
    assert b"jdoe" not in copy.read_bytes()
    with tk.load(path) as before, tk.load(copy) as after:
        assert after["kernels"].equals(before["kernels"])


def test_tasks_of_the_queue_with_equal_ids_do_not_multiply(tmp_path: Path) -> None:
    enqueue, dequeue = (next(e for e in EVENTS if e.get("cat") == cat) for cat in ("enqueue", "dequeue"))
    path = write(tmp_path / "trace_view.json", [*EVENTS, *[enqueue] * 5000, *[dequeue] * 5000])
    assert columns(path, "kernels", "correlation_id") == columns(FIXTURE, "kernels", "correlation_id")
    assert len(columns(path, "api_calls", "name")) == len(columns(FIXTURE, "api_calls", "name")) + 5000


@pytest.mark.parametrize("arguments", ["text", 5, 1 << 40, [1], None, True])
def test_arguments_that_are_no_object_are_skipped(arguments: object, tmp_path: Path) -> None:
    events = [event | {"args": arguments} if event["name"] == "aten::add" else event for event in EVENTS]
    read, expected = (
        columns(path, "nvtx_ranges", "name", "start_ns") for path in (write(tmp_path / "t.json", events), FIXTURE)
    )
    assert read == expected


def test_a_name_that_is_null(tmp_path: Path) -> None:
    events = [event | {"name": None} if event["name"] == "MatMulV3" else event for event in EVENTS]
    names = [name for (name,) in columns(write(tmp_path / "trace_view.json", events), "kernels", "name")]
    assert names.count(None) == 3


def test_a_file_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "trace_view.json"
    path.write_bytes(b"\xef\xbb\xbf" + FIXTURE.read_bytes())
    with tk.load(path) as trace, tk.load(FIXTURE) as expected:
        assert (trace.format, trace.tables) == ("ascend", expected.tables)
        assert trace["kernels"].equals(expected["kernels"])
