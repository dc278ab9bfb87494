"""Traces of the PyTorch profiler, against a plain reading of them, and against nsys on the same steps."""

from __future__ import annotations

import gc
import gzip
import hashlib
import json
import re
import warnings
import weakref
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import kineto as files
from tests.builders.kineto import op, trace
from tests.helpers import count_undecoded
from tracekit import registry
from tracekit.errors import CorruptTraceError, MissingTableError, UnknownFormatError
from tracekit.readers.common.json.stream import Stream
from tracekit.readers.kineto.labels import shorten_function_name
from tracekit.registry.source import Source
from tracekit.system.files import InputFile

CAPTURES = sorted(files.CORPUS.rglob("*.json*")) if files.CORPUS.is_dir() else []
FIXTURES = files.TRACE.parents[1]


RANK_3 = {"distributedInfo": {"rank": 3, "world_size": 8}}


def written(folder: Path, text: str | bytes, name: str = "trace.json") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def rows(loaded: tk.Trace, table: str, columns: list[str]) -> list[dict[str, Any]]:
    return loaded.table(table, columns).to_pylist()


def compare(path: Path) -> None:
    """Hold every value that the plain reading gives against the table."""
    expected = files.tables(files.events(path))
    with tk.load(path) as loaded:
        assert loaded.format == "kineto"
        for name, listed in expected.items():
            assert loaded.count(name) == len(listed), name
            if listed:
                assert rows(loaded, name, list(listed[0])) == listed, name


def test_every_value_of_the_fixture_is_exact() -> None:
    compare(files.TRACE)


@pytest.mark.corpus
@pytest.mark.skipif(not CAPTURES, reason="no corpus beside the checkout")
@pytest.mark.parametrize("number", range(len(CAPTURES)))
def test_every_value_of_the_corpus_is_exact(number: int) -> None:
    try:
        compare(CAPTURES[number])
    except AssertionError:
        pytest.fail("differs", pytrace=False)


def test_facts_and_machine() -> None:
    with tk.load(files.TRACE) as loaded:
        assert loaded.info["origin_utc_ns"] == str(1790857026000000000 + 4396642768370636)
        assert loaded.info["cupti_version"] == "130001"
        device = loaded.devices.row(0, named=True)
        assert (device["name"], device["sm_count"], device["max_warps_per_sm"]) == ("NVIDIA H200", 132, 64)
        assert loaded["processes"].to_pylist() == [{"process_id": 2763, "name": "python3"}]
        assert loaded.frame("threads").select("thread_id", pl.col("name").cast(pl.String)).collect().rows() == [
            (2763, "python3"),
            (2799, "python3"),
            (2799, "pt_autograd_0"),
        ]
        assert loaded["streams"].to_pylist()[0]["stream_id"] == 7
        assert count_undecoded(loaded.undecoded) == {
            "flow fwdbwd": 184,
            "gpu_user_annotation": 16,
            "without category": 2,
            "Trace": 1,
        }


def test_arguments_are_the_payload() -> None:
    ops = [e for e in files.events(files.TRACE) if e.get("cat") in files.RANGES]
    with tk.load(files.TRACE) as loaded:
        found = loaded["nvtx_ranges"]
    assert [json.loads(t, parse_float=Decimal) for t in found["payload_text"].to_pylist()] == [e["args"] for e in ops]
    assert set(found["payload_type"].to_pylist()) == {"json"}


def test_the_program_knew_how_often_each_op_ran() -> None:
    """PyTorch counts an op once that does nothing but call itself."""
    truth = json.loads((FIXTURES / "kineto" / "train.json").read_text("utf-8"))
    with tk.load(files.TRACE) as loaded:
        ranges = loaded.correlate().frame("nvtx_ranges").select("range_id", "parent_id", pl.col("name").cast(pl.String))
        outer = ranges.select(parent_id="range_id", outer="name")
        nested = ranges.with_columns(children=pl.len().over("parent_id")).join(outer, "parent_id", how="left").collect()
    again = (pl.col("outer") == pl.col("name")) & (pl.col("children") == 1)
    found = Counter(nested.filter(~again.fill_null(value=False))["name"].to_list())
    expected = {name: n * truth["iterations"] for name, n in truth["ops"].items() if not name.startswith("cu")}
    assert {name: n for name, n in found.items() if not name.startswith("ProfilerStep#")} == expected


# The same steps under nsys


def linked(path: Path) -> pl.DataFrame:
    """Kernels by start: what each is, where it was launched from, how long it took."""
    with tk.load(path) as loaded:
        frame = loaded.correlate().frame("kernels").sort("start_ns").collect()
    shared = pl.col("static_shared_memory_bytes").fill_null(0) + pl.col("dynamic_shared_memory_bytes")
    return frame.with_columns(
        pl.col("short_name", "range_path").cast(pl.String),
        shared=shared,
        took=pl.col("end_ns") - pl.col("start_ns"),
    )


def without_emitted(text: pl.Expr) -> pl.Expr:
    """Leave out what emit_nvtx puts behind the name of an op."""
    return text.str.replace_all(r", (?:seq|op_id|sizes|input_op_ids) = [^/]*", "")


def test_kernels_are_those_that_nsys_records() -> None:
    ours, theirs = linked(files.TRACE), linked(files.SAME_UNDER_NSYS)
    same = ["short_name", "device_id", "context_id", "stream_id", "registers_per_thread", "shared", "range_depth"]
    same += [f"{name}_{axis}" for name in ("grid", "block") for axis in "xyz"]
    for column in same:
        assert ours[column].to_list() == theirs[column].to_list(), column
    assert ours["range_path"].to_list() == theirs.select(without_emitted(pl.col("range_path"))).to_series().to_list()


def test_kernel_times_are_those_of_nsys_within_noise() -> None:
    ours, theirs = linked(files.TRACE)["took"], linked(files.SAME_UNDER_NSYS)["took"]
    assert abs(ours.sum() / theirs.sum() - 1) < 0.02
    assert (ours - theirs).abs().median() <= 64


def test_ops_and_their_gpu_times_are_those_of_nsys() -> None:
    def totals(path: Path) -> pl.DataFrame:
        with tk.load(path) as loaded:
            ranges = loaded.correlate().frame("nvtx_ranges")
            named = ranges.group_by(op=without_emitted(pl.col("name").cast(pl.String)))
            return named.agg(pl.len(), pl.col("gpu_op_count", "gpu_time_ns").sum()).sort("op").collect()

    ours, theirs = totals(files.TRACE), totals(files.SAME_UNDER_NSYS)
    for column in ("op", "len", "gpu_op_count"):
        assert ours[column].to_list() == theirs[column].to_list()
    long = ours["gpu_time_ns"] > 100_000
    assert (ours["gpu_time_ns"] / theirs["gpu_time_ns"] - 1).filter(long).abs().max() < 0.16


# Times


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1712195495505582.988", 1712195495505582988),
        ("4396642771715.465", 4396642771715465),
        ("0", 0),
        ("7", 7000),
        ("7.1", 7100),
        ("0.0014", 1),
        ("0.0015", 2),
        ("1.5e3", 1500000),
        ("-2.5", -2500),
        ('"12.25"', 12250),
        ("1" + "0" * 15, 10**18),
    ],
)
def test_times_are_never_floats(tmp_path: Path, text: str, expected: int) -> None:
    path = written(tmp_path, trace([op(ts=text), op(ts="0")]))
    with tk.load(path) as loaded:
        starts = loaded["nvtx_ranges"]["start_ns"].to_pylist()
    assert starts[0] - starts[1] == expected


@pytest.mark.parametrize(
    "text", ["1e30", "NaN", "Infinity", "null", '""', '"soon"', "[1]", "9" * 40, "9" * 5000, "1e999999999"]
)
def test_events_without_a_time_are_left_out(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, trace([op("bad", ts=text), op("good")]))
    with pytest.warns(tk.TracekitWarning, match="1 event has no valid time or duration and was skipped"):
        loaded = tk.load(path)
    assert loaded["nvtx_ranges"]["name"].to_pylist() == ["good"]


def test_times_count_from_the_base(tmp_path: Path) -> None:
    path = written(tmp_path, trace([op(ts="10.5")], baseTimeNanoseconds=1_700_000_000_000_000_000))
    with tk.load(path) as loaded:
        assert loaded.info["origin_utc_ns"] == "1700000000000010500"


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
NUMBERS = st.integers(-(1 << 31), (1 << 31) - 1)
OPS = st.fixed_dictionaries(
    {
        "ph": st.just("X"),
        "cat": st.sampled_from(files.RANGES),
        "name": TEXT,
        "pid": NUMBERS,
        "tid": NUMBERS,
        "ts": st.integers(1 << 50, (1 << 50) + (1 << 36)),  # times of events that are far apart were never set
        "dur": st.integers(0, 1 << 36),
    },
    optional={
        "args": st.dictionaries(TEXT, st.recursive(TEXT | NUMBERS | st.none(), st.lists, max_leaves=5)),
        "id": NUMBERS,
    },
)


@given(st.lists(OPS, max_size=20), st.sampled_from([None, 0, 2]), st.booleans(), st.randoms())
def test_any_layout_of_the_json(
    tmp_path_factory: Any, ops: list[Any], indent: int | None, ascii: bool, random: Any
) -> None:
    for event in ops:
        items = list(event.items())
        random.shuffle(items)
        event.clear()
        event.update(items)
    document = {"schemaVersion": 1, "deviceProperties": [], "traceEvents": ops}
    path = tmp_path_factory.mktemp("layout") / "trace.json"
    path.write_text(json.dumps(document, indent=indent, ensure_ascii=ascii), "utf-8")
    expected = files.tables(ops)["nvtx_ranges"]
    with tk.load(path) as loaded:
        found = loaded.table("nvtx_ranges")
        assert found.num_rows == len(ops)
        if ops:
            assert found.select(list(expected[0])).to_pylist() == expected
            payloads = [json.loads(t) if t else {} for t in found["payload_text"].to_pylist()]
            assert payloads == [e.get("args", {}) for e in ops]


# Damage


def lengths(path: Path) -> list[int]:
    data = gzip.decompress(path.read_bytes())
    return [m.end() for m in re.finditer(rb"\}(?=,\{|\])", data)]


@pytest.mark.parametrize("keep", [0.05, 0.3, 0.7, 0.99])
@pytest.mark.parametrize("packed", [True, False])
def test_what_is_cut_is_read_up_to_the_last_whole_event(tmp_path: Path, keep: float, packed: bool) -> None:
    whole = files.TRACE.read_bytes() if packed else gzip.decompress(files.TRACE.read_bytes())
    path = written(tmp_path, whole[: int(len(whole) * keep)], "cut.json.gz" if packed else "cut.json")
    with pytest.warns(tk.TracekitWarning, match=r"is truncated .*: [\d,]+ complete events were read"):
        loaded = tk.load(path)
    with tk.load(files.TRACE) as complete:
        for name in ("kernels", "api_calls", "nvtx_ranges"):
            part = rows(loaded, name, ["name", "start_ns", "end_ns"])
            every = rows(complete, name, ["name", "start_ns", "end_ns"])[: len(part)]
            shift = every[0]["start_ns"] - part[0]["start_ns"] if part else 0
            assert [(r["name"], r["start_ns"] + shift, r["end_ns"] + shift) for r in part] == [
                (r["name"], r["start_ns"], r["end_ns"]) for r in every
            ]
        assert loaded.count("nvtx_ranges") > 0


BROKEN = {
    "a key without a quote": '{"ph": "X", cat: "cpu_op", "name": "x", "ts": 1, "dur": 1}',
    "no colon": '{"ph" "X", "cat": "cpu_op", "name": "x", "ts": 1, "dur": 1}',
    "an open quote": '{"ph": "X", "cat": "cpu_op", "name": "x, "pid": 1, "tid": 2, "ts": 1, "dur": 1}',
    "a quote in another text": '{"ph": "X", "cat": "cpu_op", "name": "x", "s": "a"b", "tid": 2, "ts": 1, "dur": 1}',
    "no value": '{"ph": "X", "cat": , "name": "x", "ts": 1, "dur": 1}',
    "not an object": '12, {"ph": "q"}',
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
def test_an_event_that_breaks_json_is_left_out(tmp_path: Path, broken: str) -> None:
    path = written(tmp_path, trace([op("first"), broken, op("last"), op("very last")]))
    with pytest.warns(tk.TracekitWarning, match="1 event or metadata member is not valid JSON and was skipped"):
        loaded = tk.load(path)
    assert loaded["nvtx_ranges"]["name"].to_pylist() == ["first", "last", "very last"]


NAMES = st.text(st.sampled_from('"ab, :{}[]\u00e9\n'), min_size=1, max_size=12)


@given(st.lists(NAMES, min_size=1, max_size=6), st.booleans())
def test_quotes_in_names_are_repaired(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], compact: bool
) -> None:
    # A quote with a comma or brace after it may end the name.
    names = [name for name in names if not re.search(r'"\s*[,}]', name)]
    events = [op(f"NAME{i}") for i in range(len(names))]
    text = trace([op("first"), *events, op("last")])
    if compact:
        text = json.dumps(json.loads(text), separators=(",", ":"))
    for i, name in enumerate(names):
        text = text.replace(f"NAME{i}", name)
    path = written(tmp_path_factory.mktemp("quotes"), text)
    broken = sum('"' in name for name in names)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = tk.load(path)
    assert loaded["nvtx_ranges"]["name"].to_pylist() == ["first", *names, "last"]
    number, verb = ("1 name", "was") if broken == 1 else (f"{broken} names", "were")
    message = f"{number} contained unescaped quotes and {verb} repaired"
    assert [str(w.message).partition(": ")[2] for w in caught] == ([message] if broken else [])


def test_an_event_that_is_invalid_after_its_name_was_repaired_is_left_out(tmp_path: Path) -> None:
    broken = '{"ph": "X", "cat": "cpu_op", "name": "a"b", "s": "a"b", "pid": 1, "tid": 2, "ts": 1, "dur": 1}'
    path = written(tmp_path, trace([op("first"), broken, op("last")]))
    skipped = "1 event or metadata member is not valid JSON and was skipped"
    with pytest.warns(tk.TracekitWarning, match="1 name contained"), pytest.warns(tk.TracekitWarning, match=skipped):
        loaded = tk.load(path)
    assert loaded["nvtx_ranges"]["name"].to_pylist() == ["first", "last"]


@pytest.mark.slow
def test_a_name_that_ends_in_the_next_block_is_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f'step "{i}"' for i in range(300)]
    path = written(tmp_path, trace([op(name.replace('"', "QUOTE")) for name in names]).replace("QUOTE", '"'))
    for block_bytes in (37, 1000):
        monkeypatch.setattr(Stream.__init__, "__kwdefaults__", {"compressed": False, "block_bytes": block_bytes})
        with pytest.warns(tk.TracekitWarning, match="300 names contained unescaped quotes"):
            loaded = tk.load(path)
        assert loaded["nvtx_ranges"]["name"].to_pylist() == names


def test_too_many_events_that_break_json(tmp_path: Path) -> None:
    path = written(tmp_path, trace([BROKEN["no colon"]] * 20_000))
    message = r"10001 invalid events \(\d+ bytes\), but tracekit skips at most 10000 invalid events \(256 MiB\)\nHint"
    with pytest.raises(CorruptTraceError, match=message):
        tk.load(path)


@pytest.mark.parametrize(
    ("raw", "expected", "what"),
    [
        (rb"a\u00e9\n\"\\\/", 'aé\n"\\/', None),
        (rb"\ud83d\ude00", "😀", None),
        (b"a\xffb", "a�b", "UTF-8"),
        (rb"C:\path\x", "C:\\path\\x", "escapes"),
        (rb"half \ud83d pair", "half ? pair", None),
        (b"new\nline", "new\nline", None),
    ],
)
def test_texts_are_repaired_and_counted(tmp_path: Path, raw: bytes, expected: str, what: str | None) -> None:
    path = written(tmp_path, trace([op("NAME")]).encode().replace(b"NAME", raw))
    if what is None:
        loaded = tk.load(path)
    else:
        with pytest.warns(tk.TracekitWarning, match=f"1 string contained invalid {what} and was repaired"):
            loaded = tk.load(path)
    assert loaded["nvtx_ranges"]["name"].to_pylist() == [expected]


# What is read and what is not


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        '{"a": 1}',
        '{"events": []}',
        '[{"ph": "X", "ts": 1, "dur": 1}]',
        '{"schemaVersion": 1, "name": "an object of others"}',
        '{"cells": [], "metadata": {"traceEvents": 5}}',
        "traceEvents",
        '{"traceEvents": [{"ph": "X", "cat": "toplevel", "ts": 1, "dur": 1, "name": "x"}]}',
        '{"traceEvents"',
    ],
)
@pytest.mark.parametrize("packed", [True, False])
def test_other_json_is_not_taken(tmp_path: Path, text: str, packed: bool) -> None:
    data = gzip.compress(text.encode()) if packed else text.encode()
    source = Source(written(tmp_path, data))
    assert not registry.reader("kineto").sniff(source)
    if '"ph"' in text:
        assert tk.load(source.path).format == "chrome-trace"
        return
    with pytest.raises(UnknownFormatError):
        tk.load(source.path)


def test_chrome_traces_of_others_are_refused_with_a_reason(tmp_path: Path) -> None:
    path = written(tmp_path, '{"traceEvents": [{"ph": "X", "cat": "toplevel", "ts": 1, "dur": 1, "name": "x"}]}')
    with pytest.raises(
        MissingTableError, match="contains 1 trace events, but none from the PyTorch profiler\nHint: read a trace"
    ):
        tk.load(path, format="kineto")


def test_a_trace_without_its_head_is_known_by_its_categories(tmp_path: Path) -> None:
    with tk.load(written(tmp_path, f'{{"traceEvents": [{op()}]}}')) as loaded:
        assert (loaded.format, loaded.count("nvtx_ranges")) == ("kineto", 1)


def test_a_trace_without_events(tmp_path: Path) -> None:
    with tk.load(written(tmp_path, trace([]))) as loaded:
        assert all(loaded.count(t) == 0 for t in loaded.tables if t != "capture_info")


def test_traces_of_2021(tmp_path: Path) -> None:
    call = {"ph": "X", "cat": "Runtime", "name": "cudaLaunchKernel", "pid": 5, "tid": 6, "ts": 1, "dur": 2}
    call["args"] = {"correlation": 9}
    run = {"ph": "X", "cat": "Kernel", "name": "k", "pid": 0, "tid": 7, "ts": 4, "dur": 2}
    run["args"] = {"correlation": 9, "device": 0, "context": 1, "stream": 7, "grid": [1, 2, 3], "block": [4, 5, 6]}
    path = written(tmp_path, trace([op().replace("cpu_op", "Operator"), call, run]))
    with tk.load(path) as loaded:
        assert (loaded.count("nvtx_ranges"), loaded.count("api_calls")) == (1, 1)
        kernel = loaded.correlate()["kernels"].to_pylist()[0]
    assert (kernel["process_id"], kernel["api_call_id"], kernel["grid_y"], kernel["block_z"]) == (5, 1, 2, 6)


def launched(tid: object, **more: object) -> list[Any]:
    """A range with a launch in it, and the kernel."""
    around = {"ph": "X", "cat": "Operator", "name": "aten::mm", "pid": 5, "tid": tid, "ts": 1, "dur": 9, **more}
    call = {"ph": "X", "cat": "Runtime", "name": "cudaLaunchKernel", "pid": 5, "tid": tid, "ts": 2, "dur": 2, **more}
    run = {"ph": "X", "cat": "Kernel", "name": "k", "pid": 0, "tid": 7, "ts": 4, "dur": 2}
    args = {"correlation": 9, "device": 0, "context": 1, "stream": 7}
    return [around, {**call, "args": {"correlation": 9}}, {**run, "args": args}]


@pytest.mark.parametrize("tid", [(1 << 31) - 1, 1 << 31, "4093687616", (1 << 63) - 1, -5])
def test_threads_of_any_number_keep_what_they_launched(tid: int | str, tmp_path: Path) -> None:
    with tk.load(written(tmp_path, trace(launched(tid)))) as loaded:
        kernel = loaded.correlate()["kernels"].to_pylist()[0]
        assert loaded["nvtx_ranges"]["thread_id"].to_pylist() == [int(tid)]
    assert (kernel["thread_id"], kernel["range_name"]) == (int(tid), "aten::mm")


def test_processes_of_any_number_keep_what_they_launched(tmp_path: Path) -> None:
    with tk.load(written(tmp_path, trace(launched(6, pid=1 << 40)))) as loaded:
        kernel = loaded.correlate()["kernels"].to_pylist()[0]
    assert (kernel["process_id"], kernel["range_name"]) == (1 << 40, "aten::mm")


def test_threads_without_a_number_are_warned_of(tmp_path: Path) -> None:
    path = written(tmp_path, trace(launched("main")))
    with pytest.warns(tk.TracekitWarning, match="2 API calls and ranges have no numeric process id or no"):
        assert tk.load(path).count("kernels") == 1


OVERHEADS = {
    "Driver Compiler": "Driver JIT compiler (CUDA)",
    "Buffer Flush": "Buffer flush (Profiler)",
    "Instrumentation": "Instrumentation (Profiler)",
    "Resource": "Resource creation/destruction (Profiler)",
    "Runtime Triggered Module Loading": "Runtime module loading (CUDA)",
    "Lazy Function Loading": "Lazy function loading (CUDA)",
    "Command Buffer Full": "Command buffer full (CUDA)",
    "Activity Buffer Request": None,
    "a kind of the future": None,
}


def test_overheads_are_a_table_and_no_process(tmp_path: Path) -> None:
    listed = [
        {"ph": "X", "cat": "overhead", "name": name, "pid": -1, "tid": 0, "ts": 20 + n, "dur": 0.5}
        for n, name in enumerate(OVERHEADS)
    ]
    known = {"ph": "X", "cat": "overhead", "name": "Instrumentation", "pid": 4242, "tid": 7, "ts": 90, "dur": 1}
    untimed = {"ph": "X", "cat": "overhead", "name": "Resource", "pid": -1, "tid": 0, "dur": 1}
    path = written(tmp_path, trace([*launched(6, pid=4242), *listed, known, untimed]))
    with pytest.warns(tk.TracekitWarning, match="1 event has no valid time"):
        loaded = tk.load(path)
    with loaded:
        origin = loaded.frame("overheads").select(pl.col("start_ns").min()).collect().item()
        assert rows(loaded, "overheads", ["overhead_id", "start_ns", "process_id", "thread_id", "overhead_type"]) == [
            {"overhead_id": n + 1, "start_ns": origin + 1000 * n, "process_id": None, "thread_id": None} | kind
            for n, kind in enumerate({"overhead_type": kind} for kind in OVERHEADS.values())
        ] + [
            {"overhead_id": 10, "start_ns": origin + 70_000, "process_id": 4242, "thread_id": 7}
            | {"overhead_type": "Instrumentation (Profiler)"}
        ]
        assert rows(loaded, "overheads", ["name"]) == [{"name": n} for n in (*OVERHEADS, "Instrumentation")]
        assert rows(loaded, "processes", ["process_id"]) == [{"process_id": 4242}]
        assert loaded.correlate()["kernels"]["process_id"].to_pylist() == [4242]
        assert not count_undecoded(loaded.undecoded)
        drawn = json.loads(loaded.export(tmp_path / "out.json", format="chrome-trace").read_text("utf-8"))
        assert sum(e.get("name") == "Lazy function loading (CUDA)" for e in drawn["traceEvents"]) == 1
        again = loaded.export(tmp_path / "out", format="parquet")
    with tk.load(again) as other:
        assert other.count("overheads") == 10


@pytest.mark.parametrize("end", ["]", "", ",\n"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_bare_array_of_events(end: str, packed: bool, tmp_path: Path) -> None:
    text = "[ " + ", ".join(map(json.dumps, launched(1))) + end
    path = tmp_path / "unknown"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    with tk.load(path) as loaded:
        assert loaded.format == "kineto"
        assert [loaded.count(t) for t in ("kernels", "api_calls", "nvtx_ranges")] == [1, 1, 1]


@pytest.mark.parametrize("packed", [False, True])
def test_old_categories_and_facts_before_the_events_are_known(packed: bool, tmp_path: Path) -> None:
    facts = {f"fact {n}": hashlib.sha256(bytes([n])).hexdigest() for n in range(200)}
    text = json.dumps({"metadata": facts, "traceEvents": launched(1)[1:]})
    path = tmp_path / "unknown"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    with tk.load(path) as loaded:
        assert [loaded.count(t) for t in ("kernels", "api_calls")] == [1, 1]


def test_a_chrome_trace_of_os_runtime_calls_alone_is_read_back(tmp_path: Path) -> None:
    with tk.load(files.TRACE.parents[1] / "osrt_libs.sqlite") as recorded:
        alone = recorded.select(tables=["osrt_calls"]).export(tmp_path / "made.json", format="chrome-trace")
        columns = ["osrt_call_id", "start_ns", "end_ns", "process_id", "thread_id", "name", "return_value"]
        own = recorded.frame("osrt_calls").select(columns).cast({"name": pl.String}).collect()
    with tk.load(alone) as loaded:
        assert own.height > 0
        assert loaded.frame("osrt_calls").select(columns).cast({"name": pl.String}).collect().equals(own)
        assert loaded.count("devices") == 0


def test_waits(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "cuda_sync", "name": "Stream Wait Event", "pid": 0, "tid": 7, "ts": 1, "dur": 2}
    event["args"] = {"cuda_sync_kind": "Stream Wait Event", "device": 0, "context": 1, "stream": -1, "correlation": 3}
    with tk.load(written(tmp_path, trace([event]))) as loaded:
        found = loaded["syncs"].to_pylist()[0]
    assert (found["sync_type"], found["stream_id"], found["correlation_id"]) == ("Stream wait sync", (1 << 32) - 1, 3)


def test_kernels_belong_to_the_process_that_launched_them(tmp_path: Path) -> None:
    def call(process: int, correlation: int) -> Any:
        event = {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "pid": process,
            "tid": 1,
            "ts": 1,
            "dur": 2,
        }
        return {**event, "args": {"correlation": correlation}}

    def kernel(correlation: int) -> Any:
        event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 4, "dur": 2}
        return {**event, "args": {"correlation": correlation, "device": 0, "context": 1, "stream": 7}}

    listed = [call(5, 1), call(6, 2), call(5, 3), call(6, 3), kernel(1), kernel(2), kernel(3), kernel(4)]
    with tk.load(written(tmp_path, trace(listed))) as loaded:
        assert loaded["kernels"]["process_id"].to_pylist() == [5, 6, None, None]


def test_kernels_without_a_call_belong_to_the_process_of_their_stream(tmp_path: Path) -> None:
    """Two processes have CPU events. The first kernels and the copy were launched before the capture began."""

    def call(process: int, correlation: int) -> Any:
        event = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": process, "tid": 1, "ts": 1}
        return {**event, "dur": 2, "args": {"correlation": correlation}}

    def activity(correlation: int, stream: int, ts: float, category: str = "kernel") -> Any:
        place = {"device": 0, "context": 1, "stream": stream, "correlation": correlation, "bytes": 4}
        return {"ph": "X", "cat": category, "name": "k", "pid": 0, "tid": stream, "ts": ts, "dur": 2, "args": place}

    kernels = [activity(90, 7, 0), activity(1, 7, 10), activity(91, 20, 0), activity(92, 30, 0), activity(93, 40, 0)]
    others = [activity(94, 7, 5, "gpu_memcpy"), activity(2, 30, 9, "gpu_memset")]
    shared = [activity(3, 40, 9), activity(4, 40, 19)]
    calls = [call(5, 1), call(6, 2), call(5, 3), call(6, 4)]
    path = written(tmp_path, trace([*calls, *kernels, *others, *shared]))
    with tk.load(path) as loaded:
        rows = loaded.frame("kernels").sort("start_ns", "stream_id").collect()
        by_stream = rows.group_by("stream_id", maintain_order=True).agg("process_id").sort("stream_id").rows()
        assert by_stream == [(7, [5, 5]), (20, [None]), (30, [6]), (40, [None, 5, 6])]
        assert loaded["memcpys"]["process_id"].to_pylist() == [5]
    with pytest.warns(tk.TracekitWarning, match="4 of 7 kernels cannot be found.*: 2 have .* several .*; 2 have"):
        idle = tk.load_many(path).recipe("gpu_time_breakdown")["idle"].filter(stream_id=7)
    assert idle.group_by("process_id").agg(pl.col("idle_ns").sum()).rows() == [(5, 6000)]


def test_facts_that_tell_of_people_are_left_out(tmp_path: Path) -> None:
    facts = {"host_name": "secret-1", "username": "secret-2", "traceName": "/home/secret-3/x", "hostName": "secret-4"}
    path = written(tmp_path, trace([op()], distributedInfo={"rank": 3, "world_size": 8, "backend": "nccl"}, **facts))
    with tk.load(path) as loaded:
        info = loaded.info
        for name in loaded.tables:
            assert "secret" not in str(loaded[name].to_pylist())
    assert (info["distributed_rank"], info["distributed_world_size"], info["distributed_backend"]) == ("3", "8", "nccl")


def test_facts_behind_the_events_count(tmp_path: Path) -> None:
    text = trace([op(ts="1")])[:-1] + ', "traceName": "x", "baseTimeNanoseconds": 1700000000000000000}'
    with tk.load(written(tmp_path, text)) as loaded:
        assert loaded.info["origin_utc_ns"] == "1700000000000001000"


@pytest.mark.thorough
def test_facts_longer_than_what_is_held_in_memory(tmp_path: Path) -> None:
    ranks = json.dumps({"x": [[7] * 100, ']}\\"'] * 60_000})
    text = f'{{"schemaVersion": 1, "deviceProperties": [], "long": {ranks}, "text": "{"y" * (1 << 25)}", '
    path = written(tmp_path, text + trace([op()]).removeprefix("{"))
    assert path.stat().st_size > 1 << 25
    with tk.load(path) as loaded:
        assert loaded.count("nvtx_ranges") == 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, f<int>, std::array<char*, 1ul> >(int, f<int>)",
            "vectorized_elementwise_kernel",
        ),
        (
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        ),
        ("void (anonymous namespace)::softmax_warp_forward<c10::Half, 4, true>(c10::Half*)", "softmax_warp_forward"),
        ("sm80_xmma_gemm_f16f16", "sm80_xmma_gemm_f16f16"),
        ("f(int)::{lambda()#1}::operator()() const::g<h>(k)", "g"),
        ("", ""),
        ("<" * 500, "<" * 500),
    ],
)
def test_base_names(name: str, expected: str) -> None:
    assert shorten_function_name(name) == expected


def test_what_is_read_is_let_go() -> None:
    kept = []
    for _ in range(3):
        with tk.load(files.TRACE) as loaded:
            assert loaded.count("streams") == 1
            kept.append(weakref.ref(loaded["kernels"]))
        del loaded
    gc.collect()
    assert [ref() for ref in kept] == [None] * 3
    assert [c for c in gc.get_objects() if type(c).__name__ == "KinetoCapture"] == []


def leading_info(path: Path) -> Any:
    reader = registry.reader("kineto")
    assert reader.leading_info is not None
    return reader.leading_info(Source(path))


def test_the_rank_is_read_without_the_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {"distributed_rank": "3", "distributed_world_size": "8"}
    text = trace([op(str(n)) for n in range(40_000)], **RANK_3)
    plain, packed = written(tmp_path, text), written(tmp_path, gzip.compress(text.encode()), "trace.json.gz")
    for path in (plain, packed, written(tmp_path, text[:200_000], "truncated.json")):
        assert leading_info(path) == expected
    sizes: list[int] = []
    read = InputFile.read
    monkeypatch.setattr(InputFile, "read", lambda *args: (data := read(*args), sizes.append(len(data)))[0])
    leading_info(plain)
    assert 0 < sum(sizes) < plain.stat().st_size / 10
    long = trace([op()], traceName="x" * 200_000, **RANK_3)
    assert leading_info(written(tmp_path, long, "long.json")) == expected


def test_files_without_a_rank_before_the_events_have_no_leading_facts(tmp_path: Path) -> None:
    text = trace([op()])
    after = f"{text[:-1]}, {json.dumps(RANK_3)[1:]}"
    assert tk.load(written(tmp_path, after, "after.json")).info["distributed_rank"] == "3"
    exported = trace([op()], otherData={"producer": "tracekit"}, **RANK_3)
    damaged = trace([op()], **RANK_3).partition('"traceEvents"')[0]
    for n, content in enumerate((text, after, exported, damaged, f"[{op()}]", "x" + text)):
        assert leading_info(written(tmp_path, content, f"{n}.json")) == {}, content
