"""Perfetto traces are read as Perfetto's trace processor reads them, and those of tracekit as what they show."""

from __future__ import annotations

import gzip
import importlib.util
import json
import random
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl
import pytest
import tracekit as tk
from tests.conftest import FIXTURES, ROOT, SHARED
from tests.exporters import trace_processor
from tests.exporters.trace_processor import TraceProcessor
from tracekit.errors import CorruptTraceError, MissingTableError, TracekitError, TracekitWarning, UnknownFormatError
from tracekit.readers.common.json import stream
from tracekit.readers.pftrace import exported, packets, sniff
from tracekit.registry.source import Source

FIXTURE = FIXTURES / "perfetto" / "events.pftrace"
CORPUS = SHARED / "corpus" / "makers" / "perfetto"
XSPACE = (FIXTURES / "xplane" / "train.xplane.pb").read_bytes()
CAPTURES = [
    *(
        "train_amp.sqlite",
        "nvtx_features.sqlite",
        "ddp2.sqlite",
        "graph_node.sqlite",
        "empty.sqlite",
        "gpu_metrics.sqlite",
    ),
    *("osrt_libs.sqlite", "counters/nvtx_counters.sqlite", "um.sqlite", "kineto/train.pt.trace.json.gz"),
    *("xplane/train.xplane.pb",),
]
NOT_RESTORED = ("um.sqlite", "train.xplane.pb")
"""Captures with tables that are drawn and cannot be restored."""
NOT_HELD = {
    "kernels": [
        *("green_context_id", "mangled_name", "launch_type", "shared_memory_executed_bytes", "grid_id"),
        *("local_memory_per_thread_bytes", "local_memory_total_bytes", "cluster_x", "cluster_y", "cluster_z"),
        "graph_id",
    ],
    "memcpys": ["green_context_id", "copy_count", "virtual_address", "src_device_id", "dst_device_id"],
    "memsets": ["green_context_id"],
    "graph_launches": ["green_context_id"],
    "api_calls": ["name", "name_id", "callchain_id", "stack_id"],
    "nvtx_ranges": ["color"],
    "nvtx_marks": ["color"],
    "osrt_calls": ["event_class", "name_id", "nesting_level", "callchain_id", "stack_id"],
    "overheads": ["name"],
    "counters": ["counter_id", "event_id", "thread_id", "source", "value_type"],
    "gpu_metrics": ["metric_id"],
    "syncs": ["green_context_id"],
}
"""Columns that a Perfetto trace does not hold, or not exactly: names of calls have no suffix, colors are opaque."""


def load_program() -> ModuleType:
    """The program that writes the fixture, which also writes the traces of these tests."""
    spec = importlib.util.spec_from_file_location("gen_perfetto", ROOT / "fixtures" / "programs" / "gen_perfetto.py")
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program


GEN = load_program()


def save(folder: Path, *parts: bytes) -> Path:
    path = folder / "made.pftrace"
    path.write_bytes(b"".join(parts))
    return path


def load(path: Path) -> tk.Trace:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TracekitWarning)
        return tk.load(path)


@pytest.fixture(scope="module")
def processor() -> Iterator[TraceProcessor]:
    if missing := trace_processor.missing():
        pytest.skip(f"no {missing}")
    with TraceProcessor() as processor:
        yield processor


def flat(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """The arguments of an event as the trace processor names them."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, each in items:
            yield from flat(each, f"{key}.{name}" if isinstance(value, dict) else f"{key}[{name}]")
    else:
        yield key, str(int(value) if isinstance(value, bool) else value)


def events_of(trace: tk.Trace) -> Counter[tuple[Any, ...]]:
    """Name, start, duration, thread, track and arguments of all ranges, marks and kernels."""
    duration = (pl.col("end_ns") - pl.col("start_ns")).fill_null(-1)
    texts = [pl.col(name).cast(pl.String) for name in ("domain", "category")]
    ranges = trace.frame("nvtx_ranges").select(
        pl.col("name").cast(pl.String), "start_ns", duration, "thread_id", *texts, "payload_text"
    )
    marks = trace.frame("nvtx_marks").select(
        pl.col("name").cast(pl.String), "timestamp_ns", pl.lit(0), "thread_id", *texts, "payload_text"
    )
    found: Counter[tuple[Any, ...]] = Counter()
    for *row, text in [*ranges.collect().iter_rows(), *marks.collect().iter_rows()]:
        parsed = json.loads(text) if text else {}
        values = (pair for name, value in parsed.items() for pair in flat(value, f"debug.{name}"))
        found[(*row, tuple(sorted(values)))] += 1
    kernels = trace.frame("kernels").select(pl.col("name").cast(pl.String), "start_ns", duration).collect()
    for row in kernels.iter_rows():
        found[(*row, "kernel")] += 1
    return found


EVENTS = """
select s.name, s.ts, s.dur, s.category, s.arg_set_id, th.tid, t.name as track, t.type
from slice s join track t on s.track_id = t.id
left join thread_track k on k.id = t.id left join thread th using (utid)
"""
COUNTERS = "select c.ts, c.value, t.name, t.type from counter c join counter_track t on c.track_id = t.id"
FIRST = "select min(ts) as ts from (select ts from slice union all select ts from counter)"
ARGUMENTS = "select arg_set_id, key, display_value as value from args where key like 'debug.%'"


def events_in(processor: TraceProcessor, path: Path, origin: int) -> Counter[tuple[Any, ...]]:
    processor.load(path)
    arguments: dict[int, list[tuple[str, str]]] = {}
    for row in processor.query(ARGUMENTS):
        value = {"true": "1", "false": "0"}.get(row["value"], row["value"])
        arguments.setdefault(row["arg_set_id"], []).append((row["key"], value))
    found: Counter[tuple[Any, ...]] = Counter()
    for row in processor.query(EVENTS):
        start = row["name"], row["ts"] - origin, row["dur"]
        if row["type"] == "gpu_render_stage":
            found[(*start, "kernel")] += 1
        else:
            values = tuple(sorted(arguments.get(row["arg_set_id"], ())))
            track = None if row["tid"] is not None else row["track"]
            found[(*start, row["tid"], track, row["category"], values)] += 1
    return found


def counters_of(trace: tk.Trace) -> Counter[tuple[Any, ...]]:
    value = pl.coalesce(pl.col("value_int").cast(pl.Float64), "value_float")
    rows = trace.frame("counters").filter(pl.col("source").cast(pl.String) == "Perfetto")
    return Counter(rows.select(pl.col("name").cast(pl.String), "timestamp_ns", value).collect().rows())


def counters_in(processor: TraceProcessor, origin: int) -> Counter[tuple[Any, ...]]:
    rows = processor.query(
        "select c.ts, c.value, t.name, t.type from counter c join counter_track t on c.track_id = t.id"
    )
    return Counter((row["name"], row["ts"] - origin, row["value"]) for row in rows if "gpu" not in row["type"])


def pointers_in_decimal(events: Counter[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """The events with pointers as integers; the trace processor shows them in hexadecimal."""
    converted: Counter[tuple[Any, ...]] = Counter()
    for (*row, values), count in events.items():
        if not isinstance(values, str):
            values = tuple((key, str(int(v, 16)) if v.startswith("0x") else v) for key, v in values)
        converted[(*row, values)] += count
    return converted


def test_the_fixture() -> None:
    with tk.load(FIXTURE) as trace:
        assert trace.format == "perfetto"
        ranges = trace["nvtx_ranges"].to_pylist()
        assert [(r["name"], r["start_ns"], r["end_ns"], r["kind"]) for r in ranges] == [
            ("outer", 0, 1000, "push_pop"),
            ("inner", 100, 200, "push_pop"),
            ("request 1", 120, 900, "start_end"),
            ("part", 130, 140, "start_end"),
            ("never ends", 5000, None, "push_pop"),
            ("complete", 2000, 4000, "push_pop"),
            ("first", 10_010, 10_100, "push_pop"),
            ("second", 10_030, 10_060, "push_pop"),
        ]
        assert json.loads(ranges[0]["payload_text"]) == {
            "flag": True,
            "count": -5,
            "big": (1 << 64) - 1,
            "ratio": 0.25,
            "text": 'with "quotes"',
            "pointer": 4096,
            "json": {"a": 1},
            "nested": {"x": 1, "y": [2, "z"]},
            "result": "ok",
        }
        assert {r["domain"] for r in ranges} == {None, "requests"}
        kernels = trace["kernels"].to_pylist()
        assert [(k["name"], k["start_ns"], k["end_ns"], k["process_id"], k["stream_id"]) for k in kernels] == [
            *(("copy", 0, 100, 500, 1), ("compute", 1000, 1200, 500, 1), ("copy", 2000, 2300, 500, 1))
        ]
        assert trace["streams"]["name"].to_pylist() == ["queue 0"]
        assert [(m["metric"], m["timestamp_ns"], m["value"]) for m in trace["gpu_metrics"].to_pylist()] == [
            *(("clock", 0, 1000), ("clock", 500, 1000))
        ]
        assert {(p["process_id"], p["name"]) for p in trace["processes"].to_pylist()} == {
            (500, "program"),
            (600, "daemon"),
        }
        assert trace.info["origin_utc_ns"] == "1700000000000000000"
        assert {name: size.count for name, size in trace.undecoded.items()} == {
            "events with flows": 2,
            "ftrace events": 2,
            "messages of the Android log": 1,
            "ends of slices without a beginning": 1,
            "events without a known time": 1,
            "events without the state of their sequence": 2,
        }


def test_the_fixture_in_perfetto(processor: TraceProcessor) -> None:
    with tk.load(FIXTURE) as trace:
        theirs = pointers_in_decimal(events_in(processor, FIXTURE, GEN.START))
        ours = events_of(trace)
        assert {row[:3] for row in ours - theirs} == {row[:3] for row in theirs - ours} <= {("outer", 0, 1000)}
        assert counters_of(trace) == counters_in(processor, GEN.START)
        outer = [next(row for row in events if row[0] == "outer") for events in (ours, theirs)]
        keys = [{key: value for key, value in row[-1] if not key.startswith("debug.json")} for row in outer]
        assert keys[0].keys() == keys[1].keys()
        assert keys[0] | {"debug.big": ""} == keys[1] | {"debug.big": ""}


@pytest.mark.skipif(not CORPUS.is_dir(), reason="no corpus beside the checkout")
def test_a_public_file_in_perfetto(processor: TraceProcessor) -> None:
    path = CORPUS / "ztlevi__perfetto-trace-example" / "example.pftrace"
    with tk.load(path) as trace:
        processor.load(path)
        origin = processor.query("select min(ts) as ts from counter")[0]["ts"]
        assert counters_of(trace) == counters_in(processor, origin)
        assert trace.count("counters") == 30_001
    with pytest.raises(MissingTableError, match="contains no slices, instants, counters or events of GPUs"):
        tk.load(CORPUS / "barche__QmlJuliaExamples" / "trace.pftrace")


def make_random(dice: random.Random) -> bytes:
    """Random slices, instants and counters on two sequences, which clear their state now and then."""
    parts = [
        GEN.packet(4, GEN.snapshot((GEN.BOOT, GEN.START), (GEN.MONOTONIC, 5000), primary=GEN.BOOT)),
        *GEN.descriptors(),
    ]
    time = 0
    for sequence in (5, 6, 5, 6):
        clock = GEN.snapshot((GEN.BOOT, GEN.START + time), (GEN.INCREMENTAL, 7), incremental=GEN.INCREMENTAL)
        parts.append(GEN.packet(sequence, clock, flags=GEN.FLUSHED))
        names = [GEN.message(f1=n, f2=f"{'abcde'[n]}{sequence}") for n in range(1, 5)]
        parts.append(GEN.packet(sequence, GEN.field(12, GEN.message(f2=names, f3=GEN.message(f1=1, f2="x")))))
        parts.append(
            GEN.packet(sequence, GEN.field(59, GEN.message(f58=GEN.INCREMENTAL, f11=GEN.message(f11=GEN.ASYNC))))
        )
        for _ in range(100):
            step = dice.randrange(1, 5)
            time += step
            track = dice.choice((GEN.THREAD, None))
            args = GEN.field(4, GEN.message(f1=1, f4=dice.randrange(-3, 3)))
            kind, named = dice.choice((1, 1, 2, 2, 3)), {"f10": dice.randrange(1, 5)}
            if kind == GEN.END:
                named, args = {}, dice.choice((args, b""))
            if dice.random() < 0.2:
                event = GEN.event(GEN.COUNTER, dice.choice((GEN.TOTAL, GEN.DELTA)), f30=dice.randrange(-5, 9))
            else:
                event = GEN.event(kind, track, args, **named)
            parts.append(GEN.packet(sequence, event, time=step, flags=GEN.NEEDS))
    return b"".join(parts)


@pytest.mark.slow
def test_random_traces_in_perfetto(processor: TraceProcessor, tmp_path: Path) -> None:
    for case in range(20):
        path = save(tmp_path, make_random(random.Random(case)))
        with tk.load(path) as trace:
            ours, counters = events_of(trace), counters_of(trace)
            processor.load(path)
            origin = processor.query(
                "select min(ts) as ts from (select ts from slice union all select ts from counter)"
            )
            assert events_in(processor, path, origin[0]["ts"]) == ours
            assert counters_in(processor, origin[0]["ts"]) == counters


def test_batches_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, make_random(random.Random(7)), FIXTURE.read_bytes())
    whole = {name: load(path)[name] for name in ("nvtx_ranges", "nvtx_marks", "counters", "kernels")}
    monkeypatch.setattr(packets, "BATCH_BYTES", 300)
    monkeypatch.setattr(stream.Stream.__init__, "__kwdefaults__", {"block_bytes": 100})
    again = load(path)
    for name, table in whole.items():
        assert again[name].to_pylist() == table.to_pylist()


@pytest.mark.many(3)
@pytest.mark.parametrize("capture", CAPTURES)
def test_what_tracekit_wrote_comes_back(capture: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first.pftrace", tmp_path / "second.pftrace"
    with tk.load(FIXTURES / capture) as original:
        original.export(first)
        with load(first) as again:
            assert again.format == "perfetto"
            for name in (*exported.NAME_COLUMNS, "counters", "gpu_metrics"):
                if (original.format, name) != ("kineto", "overheads"):  # which have a name, but no type
                    check_equal(original, again, name)
            assert again.info.get("origin_utc_ns") == original.info.get("origin_utc_ns")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TracekitWarning)
                again.export(second)
    if Path(capture).name not in NOT_RESTORED:
        assert second.read_bytes() == first.read_bytes()


def check_equal(original: tk.Trace, again: tk.Trace, name: str) -> None:
    columns = [c for c in original.schema(name).names if c not in NOT_HELD.get(name, ())]
    frames = [trace.frame(name).select(columns).collect() for trace in (original, again)]
    if "timestamp_ns" in columns:
        frames[0] = frames[0].drop_nulls("timestamp_ns")
    if name == "counters":  # unsigned values of 64 bits are written as floating-point numbers
        value = pl.coalesce(pl.col("value_int").cast(pl.UInt64, wrap_numerical=True).cast(pl.Float64), "value_float")
        frames = [frame.select(pl.exclude("value_int", "value_float"), value) for frame in frames]
    if name in ("counters", "gpu_metrics"):
        frames = [frame.with_columns(pl.col(pl.Categorical).cast(pl.String)).sort(pl.all()) for frame in frames]
    if name == "diagnostics":
        return
    texts = [frame.with_columns(pl.col(pl.Categorical).cast(pl.String)) for frame in frames]
    assert texts[0].equals(texts[1]), name


@pytest.mark.parametrize("mode", ["render-stages", "both"])
def test_activities_as_render_stages_come_back(mode: str, tmp_path: Path) -> None:
    with tk.load(FIXTURES / "train_amp.sqlite") as original:
        path = original.export(tmp_path / "x.pftrace", options={"gpu-activities": mode})
        with tk.load(path) as again:
            columns = ["start_ns", "end_ns", "process_id", "device_id", "stream_id", "correlation_id"]
            for table in ("kernels", "memcpys", "memsets"):
                frames = [trace.frame(table).select(columns).sort(columns).collect() for trace in (original, again)]
                assert frames[0].equals(frames[1]), table


def test_gzipped_and_shifted(tmp_path: Path) -> None:
    kernel = {"kernel_id": 1, "start_ns": -50, "end_ns": 70, "device_id": 0, "name": "k", "short_name": "k"}
    info = [{"name": "origin_utc_ns", "value": "1700000000000000000"}]
    tables = {"kernels": pl.DataFrame([kernel]).to_arrow(), "capture_info": pl.DataFrame(info).to_arrow()}
    with tk.Trace.from_tables(tables) as trace:
        path = trace.export(tmp_path / "x.pftrace.gz")
    with tk.load(path) as again:
        assert [(k["start_ns"], k["end_ns"]) for k in again["kernels"].to_pylist()] == [(-50, 70)]
        assert again.info["origin_utc_ns"] == "1700000000000000000"


def test_truncated_and_damaged_files(tmp_path: Path) -> None:
    data = FIXTURE.read_bytes()
    with pytest.warns(TracekitWarning, match=r"truncated \(its last packet is incomplete\): \d+ complete packets"):
        tk.load(save(tmp_path, data[:-3]))
    ours = tk.load(FIXTURES / "nvtx_features.sqlite").export(tmp_path / "x.pftrace").read_bytes()
    with pytest.raises(CorruptTraceError, match=r"the file is truncated .* after [\d,]+ packets\nHint: "):
        tk.load(save(tmp_path, ours[: len(ours) // 2]))
    bad = GEN.packet(1, GEN.event(GEN.BEGIN, GEN.THREAD, f23="x"), time=1 << 63)
    with pytest.raises(CorruptTraceError, match=r"the timestamp of a packet is out of range \(in packets 1 to \d+\)"):
        tk.load(save(tmp_path, data, bad))
    with pytest.raises(CorruptTraceError, match="compressed packets are damaged"):
        tk.load(save(tmp_path, data, GEN.packet(1, GEN.field(50, b"nothing"))))
    path = tmp_path / "made.pftrace.gz"
    path.write_bytes(gzip.compress(data)[:-20])
    with pytest.warns(TracekitWarning, match="truncated"):
        tk.load(path)


def test_small_files_that_decompress_to_much(tmp_path: Path) -> None:
    import zlib

    bomb = zlib.compress(bytes(1 << 27), 9)
    with pytest.raises(CorruptTraceError, match="decompress to more than 250 times their size"):
        tk.load(save(tmp_path, FIXTURE.read_bytes(), GEN.packet(1, GEN.field(50, bomb))))


def test_other_fields_than_packets(tmp_path: Path) -> None:
    with tk.load(save(tmp_path, FIXTURE.read_bytes(), GEN.field(2, bytes(5 << 20)), GEN.field(1, b""))) as trace:
        assert trace.count("nvtx_ranges") == 8


def test_deep_and_cyclic(tmp_path: Path) -> None:
    nested = GEN.message(f10="x", f4=1)
    for _ in range(200):
        nested = GEN.message(f10="x", f11=nested)
    cycle = [GEN.packet(1, GEN.field(60, GEN.message(f1=a, f5=b, f2="c"))) for a, b in ((70, 71), (71, 70))]
    event = GEN.packet(1, GEN.event(GEN.BEGIN, 70, GEN.field(4, nested), f23="x"), time=1)
    with tk.load(save(tmp_path, GEN.packet(1, flags=1), *cycle, event)) as trace:
        (found,) = trace["nvtx_ranges"].to_pylist()
        assert found["payload_text"].startswith('{"x":{"x":')
        assert json.loads(found["payload_text"])
        assert found["process_id"] is None


@pytest.mark.parametrize(
    "data", [b"", b"\n", b"{}", b"\n\x02\x08\x01" * 9, (FIXTURES / "xplane/train.xplane.pb").read_bytes()]
)
def test_other_files_are_not_taken(data: bytes, tmp_path: Path) -> None:
    path = save(tmp_path, data)
    assert not sniff(Source(path))
    with pytest.raises(UnknownFormatError):
        tk.load(path, format="perfetto")


def test_changed_bytes_are_our_error_or_a_trace(tmp_path: Path) -> None:
    dice = random.Random(3)
    data = FIXTURE.read_bytes()
    for _ in range(60):
        changed = bytearray(data)
        for _ in range(dice.choice((1, 4))):
            changed[dice.randrange(len(data))] = dice.randrange(256)
        try:
            trace = load(save(tmp_path, bytes(changed)))
            for name in trace.tables:
                trace[name].validate(full=True)
        except TracekitError:
            pass
