"""The Perfetto exporter: what protobuf's runtime decodes is what the Chrome trace of the same capture draws."""

from __future__ import annotations

import contextlib
import functools
import gzip
import importlib
import importlib.util
import itertools
import json
import struct
import subprocess
import sys
import zlib
from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import FIXTURES
from tests.core.test_mpi import two_ranks
from tests.exporters.test_chrome_trace import QUEUE, THREAD, call, kernel, push, trace
from tests.helpers import small_blocks
from tracekit import schemas
from tracekit.errors import ExportError
from tracekit.exporters.perfetto import export, flows, packets, strings, wire
from tracekit.exporters.timeline import kinds
from tracekit.exporters.timeline.blocks import TableRows
from tracekit.native.arrays import ArraySandbox
from tracekit.system import sorting

BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
TABLES = ("event_names", "debug_annotation_names", "debug_annotation_string_values")
Event = dict[str, Any]


def packets_of(data: bytes) -> list[Any]:
    """Return the packets of a file, including those that are compressed."""
    whole = schemas.load_message_class("perfetto", "Trace").FromString(data)
    compressed = [p.compressed_packets for p in whole.packet]
    inner = [packets_of(zlib.decompress(c)) if c else [p] for c, p in zip(compressed, whole.packet, strict=True)]
    return list(itertools.chain.from_iterable(inner))


def decoded(data: bytes) -> list[Event]:
    """Return the packets of a file as dicts, with times and strings in place of differences and numbers."""
    clocks: dict[tuple[int, int], int] = {}
    default_clock: dict[int, int] = {}
    tables: defaultdict[tuple[int, str], dict[int, str]] = defaultdict(dict)
    found = []
    for packet in packets_of(data):
        number = packet.trusted_packet_sequence_id
        for name in TABLES:
            new = {entry.iid: entry.text for entry in getattr(packet.interned_data, name)}
            assert not new.keys() & tables[number, name].keys()
            tables[number, name] |= new
        if packet.sequence_flags == 1:
            assert number not in default_clock
        if packet.HasField("trace_packet_defaults"):
            default_clock[number] = packet.trace_packet_defaults.timestamp_clock_id
        clocks |= {(number, c.clock_id): c.timestamp for c in packet.clock_snapshot.clocks if c.is_incremental}
        if packet.HasField("track_event"):
            clock = number, default_clock[number]
            clocks[clock] += packet.timestamp
            names, keys, values = (tables[number, name] for name in TABLES)
            event = packet.track_event
            args = {keys[a.name_iid]: _value(a, values) for a in event.debug_annotations}
            assert len(args) == len(event.debug_annotations)
            value = event.double_counter_value if event.HasField("double_counter_value") else event.counter_value
            found.append(
                {"ts": clocks[clock], "type": event.type, "track": event.track_uuid, "args": args}
                | ({"name": names[event.name_iid]} if event.name_iid else {"value": value})
                | {"flows": list(event.flow_ids)}
            )
        elif packet.HasField("track_descriptor"):
            found.append({"descriptor": packet.track_descriptor})
    return found


def _value(annotation: Any, values: dict[int, str]) -> Any:
    (field,) = {f.name for f, _ in annotation.ListFields()} - {"name_iid"}
    return values[annotation.string_value_iid] if field == "string_value_iid" else getattr(annotation, field)


def drawn(data: bytes) -> tuple[Counter[str], Counter[str]]:
    """Return the events with their processes, threads and arguments, and the arrows, as Perfetto would draw them."""
    found = decoded(data)
    tracks = {e["descriptor"].uuid: e["descriptor"] for e in found if "descriptor" in e}
    open_slices: defaultdict[int, list[Event]] = defaultdict(list)
    events: list[Event] = []
    arrows: defaultdict[int, list[Event]] = defaultdict(list)
    for event in sorted((e for e in found if "ts" in e), key=lambda e: e["ts"]):
        if event["type"] == END:
            begun = open_slices[event["track"]].pop()
            begun["dur"] = event["ts"] - begun["ts"]
            continue
        events.append(event)
        if event["type"] == BEGIN:
            open_slices[event["track"]].append(event)
        for flow in event["flows"]:
            arrows[flow].append(event)
    assert not any(open_slices.values())
    assert all(len(ends) == 2 for ends in arrows.values())
    for event in events:
        event["text"] = json.dumps(
            [_place(tracks, event), *(event.get(k) for k in ("ts", "dur", "name", "args"))], sort_keys=True
        )
    drawn_arrows = Counter(json.dumps([e["text"] for e in ends]) for ends in arrows.values())
    return Counter(e["text"] for e in events), drawn_arrows


def _place(tracks: dict[int, Any], event: Event) -> list[Any]:
    track = tracks[event["track"]]
    process = tracks[track.parent_uuid].process
    if event["type"] == COUNTER:
        event |= {"name": track.name, "args": event["value"]}
        return [process.pid, process.process_name]
    assert track.thread.pid == process.pid
    return [process.pid, process.process_name, track.thread.tid, track.thread.thread_name]


def of_chrome(text: bytes) -> tuple[Counter[str], int]:
    """Return the events of a Chrome trace in the form of ``drawn``, and the number of arrows."""
    events = json.loads(text, parse_float=Decimal)["traceEvents"]
    metadata = [e for e in events if e["ph"] == "M" and "name" in e["args"]]
    names = {(e["name"], e["pid"], e["tid"]): e["args"]["name"] for e in metadata}
    found: Counter[str] = Counter()
    for e in events:
        if e["ph"] in "XiC":
            place, args = [e["pid"], names["process_name", e["pid"], 0]], e["args"]
            if e["ph"] == "C":
                args = float(*args.values())
            else:
                place += [e["tid"], names["thread_name", e["pid"], e["tid"]]]
                args = {k: float(v) if isinstance(v, Decimal) else v for k, v in args.items()}
            duration = int(e["dur"] * 1000) if e["ph"] == "X" else None
            found[json.dumps([place, int(e["ts"] * 1000), duration, e["name"], args], sort_keys=True)] += 1
    return found, sum(e["ph"] == "s" for e in events)


def floats(events: Counter[str]) -> Counter[str]:
    """Return events whose counters have floating-point values."""
    found: Counter[str] = Counter()
    for text, count in events.items():
        event = json.loads(text)
        event[4] = float(event[4]) if isinstance(event[4], int) else event[4]
        found[json.dumps(event, sort_keys=True)] += count
    return found


def check(of: tk.Trace | tk.TraceSet, folder: Path, tracks: str = "all") -> None:
    """Compare both timelines of a trace."""
    data = [of.export(folder / f"x.{s}", options={"tracks": tracks}).read_bytes() for s in ("json", "pftrace")]
    events, arrows = drawn(data[1])
    chrome, count = of_chrome(data[0])
    assert len(list((chrome - floats(events)).elements())) == len(list((floats(events) - chrome).elements())) == 0
    assert arrows.total() == count


@pytest.mark.slow
def test_it_draws_what_the_chrome_trace_draws(capture: Path, tmp_path: Path) -> None:
    with tk.load(capture) as raw:
        check(raw.correlate(), tmp_path)


def test_traces_of_many_tables(tmp_path: Path) -> None:
    mark = {**THREAD, "timestamp_ns": 12, "name": "m", "payload_type": "double", "payload_float": 1.5}
    check(
        trace(
            api_calls=[call(0, 4, correlation_id=1, return_value=-1), call(6, 8, correlation_id=2), call(9, 9)],
            kernels=[kernel(10 + n, 11 + n, correlation_id=1, grid_x=n) for n in range(5)]
            + [kernel(30, 31, correlation_id=2, short_name=None), kernel(31, 31), kernel(31, 31)],
            memcpys=[{**QUEUE, "start_ns": 31, "end_ns": 40, "bytes": 1 << 40, "copy_kind": "Host-to-Device"}],
            memsets=[{**QUEUE, "start_ns": 15, "end_ns": 30, "correlation_id": 2}],
            nvtx_ranges=[
                push(0, 50, "ä\0\n"), push(0, 50, None), push(5, 5), push(5, 9, ""), push(9, 10), push(20, None),
                push(50, 60, payload_type="uint64", payload_int=-1), push(60, 70, payload_type="int64", payload_int=-1),
                push(70, 80, payload_type="json", payload_text="{}", color=0xFF76B900, category_id=3, category="io"),
            ],
            nvtx_marks=[mark, {**mark, "payload_float": None}],
            gpu_metrics=[{"timestamp_ns": n, "device_id": n % 2, "metric_id": 4, "value": -n} for n in range(9)],
        ),
        tmp_path,
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore::tracekit.TracekitWarning")
def test_slices_that_were_not_closed_or_end_before_they_start(tmp_path: Path) -> None:
    check(trace(kernels=[kernel(5000, 4000), kernel(1, 2)], nvtx_ranges=[push(-7, None), push(9000, 8000)]), tmp_path)
    made = trace(kernels=[kernel(1, 2)], nvtx_ranges=[push(1, None), push(2, None)])
    files = [made.export(tmp_path / f"open.{suffix}").read_bytes() for suffix in ("json", "pftrace")]
    assert files[0].count(b'"open":true') == sum('"open": true' in event for event in drawn(files[1])[0]) == 2


def test_counters_of_all_forms(tmp_path: Path) -> None:
    sample = {"process_id": 7, "timestamp_ns": 5, "name": "c", "field": "f"}
    values: list[dict[str, object]] = [
        {"value_type": "int64", "value_int": -5}, {"value_type": "uint64", "value_int": -1},
        {"value_type": "double", "value_float": 0.25}, {"value_type": "int64"},
        {"value_type": "int64", "value_int": 3, "field": "c"},
    ]  # fmt: skip
    check(trace(counters=[sample | value for value in values]), tmp_path)


@pytest.mark.parametrize("process", [4_194_305, 2**31 - 1, 2**31, 2**60, -(2**31) - 1])
def test_large_process_ids(process: int, tmp_path: Path) -> None:
    of_process = {"process_id": process, "correlation_id": 1}
    kernels, calls = [kernel(2, 3, **of_process)], [call(0, 1, **of_process)]
    sample = {"process_id": process, "timestamp_ns": 5, "name": "c", "value_type": "int64", "value_int": 3}
    check(trace(kernels=kernels, api_calls=calls, counters=[sample]).correlate(), tmp_path)


def test_messages_and_collectives(tmp_path: Path) -> None:
    check(two_ranks().correlate(), tmp_path)


def test_communication_that_is_pending_is_open_and_only_timed_calls_are_slices(tmp_path: Path) -> None:
    logged = {"rank": 1, "library": "NCCL", "name": "all_reduce"}
    made = trace(
        communication_calls=[
            {**logged, "created_ns": 5, "start_ns": 10, "end_ns": 20, "state": "completed"},
            {**logged, "created_ns": 5, "start_ns": 12, "duration_ns": 6},
            {**logged, "created_ns": 30, "end_seen_ns": 90, "state": "completed"},
            {**logged, "created_ns": 40, "state": "scheduled"},
            {**logged, "state": "scheduled"},
        ]
    )
    check(made, tmp_path)
    events = [json.loads(text) for text in drawn((tmp_path / "x.pftrace").read_bytes())[0]]
    found = sorted((ts, dur, args.get("open")) for _, ts, dur, _, args in events)
    assert found == [(10, 10, None), (12, 6, None), (30, None, None), (40, 50, True)]


def test_without_events_there_are_no_tracks(tmp_path: Path) -> None:
    (only,) = packets_of(trace().export(tmp_path / "x.pftrace").read_bytes())
    assert [entry.name for entry in only.chrome_events.metadata] == ["producer", "schema_version"]


def test_utc_and_the_order_of_tracks(tmp_path: Path) -> None:
    facts = [{"name": "origin_utc_ns", "value": "1000000"}]
    made = trace(kernels=[kernel(-1, 999)], api_calls=[call(0, 1)], capture_info=facts)
    written = packets_of(made.export(tmp_path / "x.pftrace").read_bytes())
    (clock,) = [p for p in written if p.clock_snapshot.clocks and p.clock_snapshot.clocks[1].clock_id == 1]
    assert [c.timestamp for c in clock.clock_snapshot.clocks] == [0, 999_999]
    tracks = [p.track_descriptor for p in written if p.HasField("track_descriptor")]
    assert [t.process.legacy_sort_index for t in tracks if t.HasField("process")] == [0, 1]
    assert [(t.thread.tid, t.thread.legacy_sort_index) for t in tracks if t.HasField("thread")] == [(1, 1), (2, 2)]


@pytest.mark.slow
def test_batches_and_compression_do_not_change_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trace(kernels=[kernel(n, n + 2, name=f"k{n % 7}") for n in range(50)], api_calls=[call(0, 1)] * 3)
    whole = made.export(tmp_path / "a.pftrace").read_bytes()
    assert packets_of(gzip.decompress(made.export(tmp_path / "a.pftrace.gz").read_bytes())) == packets_of(whole)
    assert made.export(tmp_path / "b.pftrace").read_bytes() == whole
    monkeypatch.setattr(export, "BATCH_ROWS", 3)
    monkeypatch.setattr(strings, "BATCH_STRINGS", 2)
    assert drawn(made.export(tmp_path / "c.pftrace").read_bytes()) == drawn(whole)


def test_progress_comes_to_its_end(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    view = trace(kernels=[kernel(0, 1)], api_calls=[call(0, 1)])._view
    export.write(view, tmp_path / "p.pftrace", lambda *n: seen.append(n), {"gpu", "api"})
    assert seen == [(1, 2), (2, 2)]


numbers = st.integers(0, 2**64 - 1) | st.integers(0, 300)


def prefix(message: str, field: str, **more: Any) -> wire.Prefix:
    return wire.Prefix(wire.encode_field_tag(message, field), **more)


def values(numbers: list[int], choices: list[int]) -> wire.FieldValues:
    return wire.FieldValues(np.array(numbers, np.uint64), np.array(choices, np.uint8))


@given(
    st.lists(st.tuples(numbers, st.integers(0, 2), st.integers(0, 3), numbers, numbers), min_size=1, max_size=20),
    st.lists(st.lists(numbers, max_size=6), min_size=1, max_size=5),
    st.integers(1, 2**31),
    st.data(),
)
def test_packets_are_those_of_the_runtime(
    rows: list[tuple[int, int, int, int, int]], repeated: list[list[int]], sequence: int, data: st.DataObject
) -> None:
    words, choices, arrows, times, names = (list(column) for column in zip(*rows, strict=True))
    codes = data.draw(st.lists(st.integers(0, len(repeated) - 1), min_size=len(rows), max_size=len(rows)))
    copied = data.draw(st.sampled_from([0, 1 << 23]))
    tag = wire.encode_field_tag("TrackEvent", "debug_annotations")
    unsigned = wire.encode_field_tag("DebugAnnotation", "uint_value")
    annotation = wire.Prefix(tag + bytes([len(unsigned)]) + unsigned, length_position=len(tag))
    double = prefix("TrackEvent", "double_counter_value", is_fixed=True)
    columns = itertools.zip_longest(*repeated)
    fragments = wire.encode_fragments(
        [wire.PacketField([annotation], values([n or 0 for n in c], [n is not None for n in c])) for c in columns],
        len(repeated),
    )
    fields = [
        wire.PacketField([double, annotation], values(words, choices)),
        wire.PacketField([prefix("TrackEvent", "name_iid")], values(names, [1] * len(rows))),
    ]
    positions, ids = np.repeat(np.arange(len(rows)), arrows), np.arange(sum(arrows), dtype=np.uint64)
    lead = wire.encode_field_tag("TracePacket", "trusted_packet_sequence_id") + wire.encode_varint(sequence)
    lead += wire.encode_field_tag("TracePacket", "track_event")
    series = np.array([0, *times], np.uint64).view(np.int64)
    batch = wire.PacketBatch(lead, series, fields, fragments, np.array(codes), wire.Flows(positions, ids))
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(rows))] * 2)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "_COPIED_FRAGMENT_BYTES", copied)
        encoded = bytes(wire.PacketEncoder().encode_events(batch.select(start, stop)))
    read = schemas.load_message_class("perfetto", "Trace").FromString(encoded).packet
    chosen = range(start, stop)
    assert [p.trusted_packet_sequence_id for p in read] == [sequence] * len(chosen)
    assert [p.timestamp for p in read] == [(times[n] - (times[n - 1] if n else 0)) % 2**64 for n in chosen]
    events = [p.track_event for p in read]
    assert [e.name_iid for e in events] == [names[n] for n in chosen]
    doubles = [e.double_counter_value if e.HasField("double_counter_value") else None for e in events]
    expected = [struct.unpack("<d", words[n].to_bytes(8, "little"))[0] if choices[n] == 1 else None for n in chosen]
    assert list(map(repr, doubles)) == list(map(repr, expected))
    assert [[a.uint_value for a in e.debug_annotations] for e in events] == [
        [words[n]] * (choices[n] == 2) + repeated[codes[n]] for n in chosen
    ]
    assert [list(e.flow_ids) for e in events] == [np.flatnonzero(positions == n).tolist() for n in chosen]


TEXTS = st.text(max_size=300) | st.integers(0, 3).map(lambda n: "x" * 50_000 * n)


@given(
    st.lists(TEXTS, min_size=1, max_size=20),
    st.integers(1, 2**31),
    st.integers(0, 3),
    st.sampled_from([1, 99, 1 << 24]),
)
def test_strings_are_those_of_the_runtime(texts: list[str], first: int, skipped: int, copied: int) -> None:
    array = pa.array(["skipped" * skipped, *texts], pa.large_string())[1:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "_COPIED_TEXT_BYTES", copied)
        data = wire.PacketEncoder().encode_string_table(
            wire.encode_field_tag("InternedData", "event_names"), first, array
        )
    read = schemas.load_message_class("perfetto", "InternedData").FromString(data)
    assert [(e.iid, e.text) for e in read.event_names] == list(enumerate(texts, first))


@given(st.randoms(use_true_random=False), st.sampled_from(list(wire.PROGRAM.arrays)), st.integers(0, 300))
def test_invalid_arrays_change_only_the_output(random: Random, function: str, capacity: int) -> None:
    """Arrays and parameters with any content lead to a result or an error, and nothing before the output changes."""
    sandbox = ArraySandbox(wire.PROGRAM)
    sizes = {name: random.randrange(40) for name in wire.PROGRAM.arrays[function]}
    arrays = sandbox.allocate(function, **sizes | {"output": capacity})
    for array in arrays.values():
        array.view(np.uint8)[:] = np.frombuffer(random.choices([random.randbytes, bytes])[0](array.nbytes), np.uint8)
    parameters = {name: random.choice([0, 1, 2, 3, 9, 2**32 - 1]) for name in wire.PROGRAM.parameters[function]}
    parameters |= {"capacity": capacity}
    parameters = {n: min(v, sizes.get(n, v)) for n, v in parameters.items()}
    before = {name: array.copy() for name, array in arrays.items() if name not in ("output", "ends")}
    with contextlib.suppress(MemoryError):
        assert 0 <= sandbox.call(function, **parameters) <= len(wire._ERRORS)
    assert all((arrays[name] == copy).all() for name, copy in before.items() if len(copy))


def test_names_and_arguments_of_their_own(tmp_path: Path) -> None:
    kernels = [kernel(n, n + 2, name=f"k{n}", short_name=f"s{n}", grid_x=n % 3, block_x=n) for n in range(300)]
    marks = [{**THREAD, "timestamp_ns": n, "name": f"m{n}", "category": f"c{n % 2}"} for n in range(300)]
    calls = [call(n, n + 1, return_value=n) for n in range(300)]
    check(trace(kernels=kernels, nvtx_marks=marks, api_calls=calls), tmp_path)


def test_many_arrows_begin_at_one_event(tmp_path: Path) -> None:
    kernels = [kernel(500 + n, 501 + n, correlation_id=1) for n in range(300)]
    check(trace(api_calls=[call(0, 9, correlation_id=1), call(9, 10)], kernels=kernels).correlate(), tmp_path)


@pytest.mark.slow
def test_strings_of_several_kinds_are_written_once(tmp_path: Path) -> None:
    ranges = [push(10 * n, 10 * n + 9, f"range {n}") for n in range(5)]
    calls = [call(10 * n + 1, 10 * n + 2, correlation_id=n + 1) for n in range(5)]
    kernels = [kernel(10 * n + 3, 10 * n + 4, correlation_id=n + 1, short_name="k") for n in range(5)]
    made = trace(nvtx_ranges=ranges, api_calls=calls, kernels=kernels).correlate()
    check(made, tmp_path)
    written = packets_of((tmp_path / "x.pftrace").read_bytes())
    texts = {name: [e.text for p in written for e in getattr(p.interned_data, name)] for name in TABLES}
    assert sorted(texts["event_names"]) == ["cudaLaunchKernel", "k", *(f"range {n}" for n in range(5))]
    assert all(len(set(own)) == len(own) for name, own in texts.items() if name != "debug_annotation_string_values")


@pytest.mark.slow
def test_streams_have_clocks_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds_of_events = {"nvtx_ranges": [push(3, 9)], "kernels": [kernel(4, 5)], "api_calls": [call(0, 1)]}
    whole = trace(**kinds_of_events).export(tmp_path / "a.pftrace").read_bytes()
    monkeypatch.setattr(packets, "SEQUENCE_CLOCKS", range(64, 66))
    few = trace(**kinds_of_events).export(tmp_path / "b.pftrace").read_bytes()
    clocks = [
        [p.trace_packet_defaults.timestamp_clock_id for p in packets_of(data) if p.HasField("trace_packet_defaults")]
        for data in (whole, few)
    ]
    assert clocks == [[*range(64, 70)], [64, 65] * 3]
    assert drawn(few) == drawn(whole)


def test_batches_are_compressed_packets(tmp_path: Path) -> None:
    made = trace(kernels=[kernel(n, n + 2) for n in range(500)])
    compressed, gzipped = (made.export(tmp_path / f"x.{s}").read_bytes() for s in ("pftrace", "pftrace.gz"))
    plain = gzip.decompress(gzipped)
    assert len(compressed) < len(plain) // 4
    read, whole = packets_of(compressed), schemas.load_message_class("perfetto", "Trace").FromString(plain)
    assert read == list(whole.packet)
    assert not any(packet.HasField("compressed_packets") for packet in whole.packet)


@given(st.integers(1, 9), st.data())
def test_flows_follow_the_order_of_their_events(count: int, data: st.DataObject) -> None:
    ends = data.draw(st.lists(st.lists(st.integers(0, count - 1), max_size=9), min_size=1, max_size=3))
    order = data.draw(st.none() | st.permutations(range(count)))
    start, stop = sorted(data.draw(st.tuples(st.integers(0, count), st.integers(0, count))))
    table, first = flows.FlowTable(), 1
    for rows in ends:
        ids = np.arange(first, first + len(rows), dtype=np.uint64)
        table._ends[kinds.KERNELS].append(flows._FlowEnds(np.array(rows, np.uint32), ids))
        first += len(rows)
    with small_blocks(3):
        chosen = table.find_flows(kinds.KERNELS, None if order is None else np.array(order), count)
    block = chosen.select_flows_of_events(start, stop)
    listed = [row for rows in ends for row in rows]
    expected = [[n for n, row in enumerate(listed, 1) if row == event] for event in (order or range(count))]
    assert [block.ids[block.positions == n].tolist() for n in range(stop - start)] == expected[start:stop]
    assert table.find_flows(kinds.KERNELS, None, count) is wire.NO_FLOWS


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5)), min_size=1, max_size=9, unique_by=lambda c: c[0]),
    st.lists(st.tuples(st.none() | st.integers(-1, 13), st.integers(0, 5)), max_size=12),
)
def test_flows_lead_from_calls_to_their_activities(
    calls: list[tuple[int, int]], activities: list[tuple[int | None, int]]
) -> None:
    ids, starts = (np.array([c[n] for c in calls], np.int64) for n in (0, 1))
    frame = pl.DataFrame(activities, schema={"api_call_id": pl.Int64, "start_ns": pl.Int64}, orient="row")
    with small_blocks(4):
        order, (ordered,) = sorting.sort_rows(ids)
        found = flows.Calls(order, ordered, starts).find_call_and_activity_rows(TableRows(frame.to_arrow()))
    *ends, backward_count = found
    row_of = {call: row for row, (call, _) in enumerate(calls)}
    expected = [
        (row_of[call], row)
        for row, (call, start) in enumerate(activities)
        if call is not None and call in row_of and calls[row_of[call]][1] <= start
    ]
    assert list(zip(*(rows.tolist() for rows in ends), strict=True)) == expected
    assert backward_count == sum(call in row_of for call, _ in activities) - len(expected)


TEXT = st.none() | st.sampled_from(["", "a", "b", "kernel"])


@given(st.lists(st.lists(st.tuples(TEXT, TEXT, st.sampled_from([None, 0, 1, 2**63 - 1]))), max_size=4), st.data())
def test_strings_are_numbered_in_the_order_of_their_first_rows(
    chunks: list[list[tuple[str | None, str | None, int | None]]], data: st.DataObject
) -> None:
    """The numbers do not depend on the dictionaries, which differ between chunks, or on the batches."""
    schema = {"name": pl.String, "other": pl.String, "n": pl.Int64}
    frame = pl.DataFrame([row for chunk in chunks for row in chunk], schema, orient="row")
    encoded = [pl.DataFrame(chunk, schema, orient="row").to_arrow() for chunk in chunks]
    encoded = [
        table.set_column(0, "name", table["name"].cast(pa.string()).combine_chunks().dictionary_encode())
        for table in encoded
    ]
    rows = TableRows(pa.concat_tables(encoded) if encoded else frame.to_arrow())
    order = np.array(data.draw(st.permutations(range(rows.height))), np.int64)
    expression = data.draw(
        st.sampled_from(
            [
                pl.col("name").cast(pl.String),
                pl.coalesce(pl.col("name").cast(pl.String), pl.lit("kernel")),
                pl.coalesce(pl.col("name").cast(pl.String), pl.col("other").cast(pl.String), pl.lit("kernel")),
                pl.col("name").cast(pl.String).str.replace("a", "b"),
                pl.concat_str(pl.lit("#"), pl.col("n")),
                pl.col("other"),
            ]
        )
    )
    ids: dict[str, int] = {}
    expected = frame[order].select(expression.alias("text")).to_series().to_list() if len(order) else []
    tables, size = strings.StringTables(strings.StringPool()), data.draw(st.integers(1, 9))
    for first in range(0, len(order), size):
        found = tables.intern(strings.EVENT_NAMES, rows.read_batch(order[first : first + size]), expression)
        texts = expected[first : first + size]
        assert found.tolist() == [0 if text is None else ids.setdefault(text, len(ids) + 1) for text in texts]
    batches = tables.pop_batches()
    assert [text for batch in batches for text in batch.texts.to_pylist()] == list(ids)
    assert [batch.first + n for batch in batches for n in range(len(batch.texts))] == list(ids.values())


@pytest.mark.slow
def test_traces_do_not_depend_on_the_codes_of_categories(tmp_path: Path) -> None:
    """polars numbers the categories of a process in the order in which they are first used."""
    code = """
import sys, polars as pl, tracekit as tk
keep = pl.Series(sys.argv[3:], dtype=pl.Categorical)
with tk.load(sys.argv[1]) as trace:
    trace.export(sys.argv[2], format="perfetto")
"""
    with tk.load(FIXTURES / "train_amp.nsys-rep") as capture:
        columns = {"kernels": ["name", "short_name"], "nvtx_ranges": ["name"], "api_calls": ["name"]}
        frames = [capture.frame(table).select(pl.col(names).cast(pl.String)) for table, names in columns.items()]
        texts = [column for frame in frames for column in frame.collect()]
    earlier = pl.concat([column.alias("text") for column in texts]).drop_nulls().unique().sort(descending=True)
    files = []
    for number, categories in enumerate(([], earlier.to_list())):
        files.append(tmp_path / f"{number}.pftrace")
        command = [sys.executable, "-c", code, str(FIXTURES / "train_amp.nsys-rep"), str(files[-1]), *categories]
        subprocess.run(command, check=True)
    assert files[0].read_bytes() == files[1].read_bytes()


FRAGMENTS = st.lists(st.binary(max_size=300), min_size=1, max_size=9)


@given(FRAGMENTS, FRAGMENTS, st.data())
def test_fragments_are_joined_wrapped_and_concatenated(
    one: list[bytes], other: list[bytes], data: st.DataObject
) -> None:
    def build(parts: list[bytes]) -> wire.RepeatedFields:
        sizes = np.cumsum([0, *map(len, parts)])
        return wire.RepeatedFields(np.frombuffer(b"".join(parts), np.uint8), sizes)

    def parts(fragments: wire.RepeatedFields) -> list[bytes]:
        return [bytes(fragments.data[a:b]) for a, b in itertools.pairwise(fragments.offsets.tolist())]

    assert parts(wire.RepeatedFields.concatenate([build(one), build(other)])) == one + other
    pairs = list(zip(one, other, strict=False))
    firsts, seconds = (build([pair[n] for pair in pairs]) for n in (0, 1))
    assert parts(wire.RepeatedFields.join([firsts, seconds])) == [a + b for a, b in pairs]
    wrapped = [wire.encode_length_delimited(b"tag", b"lead" + part) if part else b"" for part in one]
    assert parts(build(one).wrap(b"tag", lead=b"lead")) == wrapped
    codes = np.array(data.draw(st.lists(st.integers(0, len(one) - 1), max_size=9)), np.int64)
    assert parts(build(one).take(codes)) == [one[code] for code in codes]
    starts = sorted({0, *data.draw(st.lists(st.integers(0, len(one) - 1), max_size=3))})
    groups = [b"".join(one[a:b]) for a, b in itertools.pairwise([*starts, len(one)])]
    assert parts(build(one).merge_groups(np.array(starts))) == groups


def render_stages(data: bytes) -> tuple[list[Event], list[tuple[int, list[int]]]]:
    """Return the GPU render stage events with what they refer to, and the times and launched events of API calls."""
    tables: defaultdict[tuple[int, str], dict[int, Any]] = defaultdict(dict)
    clocks: dict[tuple[int, int], int] = {}
    default_clock: dict[int, int] = {}
    events, launches = [], []
    names = ("graphics_contexts", "gpu_specifications", "compute_kernels", "compute_arg_names", *TABLES)
    for packet in packets_of(data):
        number = packet.trusted_packet_sequence_id
        for name in names:
            new = {entry.iid: entry for entry in getattr(packet.interned_data, name)}
            assert not new.keys() & tables[number, name].keys()
            tables[number, name] |= new
        if packet.HasField("trace_packet_defaults"):
            default_clock[number] = packet.trace_packet_defaults.timestamp_clock_id
        clocks |= {(number, c.clock_id): c.timestamp for c in packet.clock_snapshot.clocks if c.is_incremental}
        if packet.HasField("timestamp"):
            clocks[number, default_clock[number]] += packet.timestamp
        at = clocks.get((number, default_clock.get(number, 0)), 0)
        if packet.track_event.HasField("gpu_correlation"):
            launches.append((at, list(packet.track_event.gpu_correlation.render_stage_submission_event_ids)))
        if packet.HasField("gpu_render_stage_event"):
            event = packet.gpu_render_stage_event
            contexts, specifications, kernels, arg_names, event_names, _, values = (tables[number, n] for n in names)
            args: Event = {}
            for arg in event.launch.args:
                (field,) = {f.name for f, _ in arg.ListFields()} - {"name_iid"}
                value = getattr(arg, field)
                args[arg_names[arg.name_iid].text] = values[value].text if field == "string_value_iid" else value
            args |= {datum.name: datum.value for datum in event.extra_data}
            sizes = {
                name: tuple(getattr(message, axis) if message.HasField(axis) else None for axis in "xyz")
                for name in ("grid_size", "workgroup_size")
                if event.launch.HasField(name)
                for message in [getattr(event.launch, name)]
            }
            kernel_type = kernels.get(event.kernel_iid)
            for arg in kernel_type.args if kernel_type else ():
                (field,) = {f.name for f, _ in arg.ListFields()} - {"name_iid"}
                value = getattr(arg, field)
                args[arg_names[arg.name_iid].text] = values[value].text if field == "string_value_iid" else value
            events.append(
                {
                    "id": event.event_id, "ts": at, "dur": event.duration, "gpu": event.gpu_id,
                    "args": args | {f"{n}_xyz": size for n, size in sizes.items()},
                    "submission": event.submission_id if event.HasField("submission_id") else None,
                    "stage": specifications[event.stage_iid].name, "queue": specifications[event.hw_queue_iid].name,
                    "category": specifications[event.stage_iid].category, "name": event_names[event.name_iid].text,
                    "context": (event.context, contexts[event.context].pid, contexts[event.context].api),
                    "kernel": kernel_type and (kernel_type.demangled_name, kernel_type.arch),
                }
            )  # fmt: skip
    return events, launches


@pytest.mark.filterwarnings("ignore::tracekit.TracekitWarning")
def test_render_stages_say_what_the_tables_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {f"{size}_{axis}": n for size in ("grid", "block") for n, axis in enumerate("xyz", 2)}
    other = {"process_id": 8, "device_id": 1, "context_id": 1, "stream_id": None}
    made = trace(
        devices=[{"device_id": n, "name": f"GPU {n}", "compute_major": 9, "compute_minor": 0} for n in (0, 1)],
        processes=[{"process_id": 7, "name": "python"}],
        api_calls=[call(0, 4, correlation_id=1), call(6, 8, correlation_id=2), call(9, 9)],
        kernels=[
            *(kernel(10 + n, 11 + n, correlation_id=1, registers_per_thread=n, **sizes) for n in range(3)),
            kernel(30, 31, name=None, short_name=None, grid_x=1),
            kernel(35, 33, correlation_id=1 << 40, static_shared_memory_bytes=5, dynamic_shared_memory_bytes=6),
            kernel(12, 60, correlation_id=2, **other),
        ],
        memcpys=[
            {**QUEUE, "start_ns": 31 + n, "end_ns": 40, "bytes": 1 << 40, "copy_kind": "Host-to-Device"}
            for n in range(2)
        ],
        memsets=[{**QUEUE, "start_ns": 15, "end_ns": 30, "correlation_id": 2, "bytes": 4, "value": 0}],
        nvtx_ranges=[push(0, 50, "outer")],
    ).correlate()
    options = {"gpu-activities": "render-stages"}
    data = made.export(tmp_path / "a.pftrace", options=options).read_bytes()
    events, launches = render_stages(data)
    assert [e["id"] for e in events] == [1, 2, 6, 3, 4, 5, 7, 8, 9]
    by_id = {e["id"]: e for e in events}
    assert by_id[2] == {
        "id": 2, "ts": 11, "dur": 1, "gpu": 0, "submission": 1, "stage": "Kernel", "category": 2, "name": "k",
        "queue": "GPU 0 GPU 0 · pid 7 · stream 3", "context": (1, 7, 4), "kernel": ("k(int)", "sm_90"),
        "args": {
            "grid_size": 24, "workgroup_size": 24, "thread_count": 576, "process_id": 7, "process_name": "python",
            "registers_per_thread": 1, "nvtx_path": "outer", "grid_size_xyz": (2, 3, 4),
            "workgroup_size_xyz": (2, 3, 4),
        },
    }  # fmt: skip
    assert (by_id[4]["name"], by_id[4]["kernel"], by_id[4]["submission"]) == ("kernel", None, None)
    assert by_id[4]["args"] == {"process_id": 7, "process_name": "python", "grid_size_xyz": (1, None, None)}
    assert (by_id[5]["dur"], by_id[5]["submission"]) == (0, None)
    anomaly = {"shared_mem_static": 5, "shared_mem_dynamic": 6, "negative_duration_ns": -2}
    assert by_id[5]["args"] == {"process_id": 7, "process_name": "python", **anomaly}
    assert (by_id[6]["gpu"], by_id[6]["context"]) == (1, (2, 8, 4))
    assert by_id[6]["queue"] == "GPU 1 GPU 1 · pid 8 · unknown stream"
    assert [(by_id[n]["stage"], by_id[n]["name"], by_id[n]["category"]) for n in (7, 8, 9)] == [
        *[("Memcpy", "Memcpy Host-to-Device", 0)] * 2, ("Memset", "Memset", 0),
    ]  # fmt: skip
    assert by_id[7]["queue"] != by_id[8]["queue"] == "GPU 0 GPU 0 · pid 7 · stream 3 · lane 2"
    assert by_id[7]["args"] == {"bytes": str(1 << 40), "copy_kind": "Host-to-Device"}
    assert by_id[9]["args"] == {"bytes": "4", "value": "0", "nvtx_path": "outer"}
    assert launches == [(0, [1, 2, 3]), (6, [9])]
    assert not any(e["descriptor"].thread.thread_name == "stream 3" for e in decoded(data) if "descriptor" in e)
    monkeypatch.setattr(export, "BLOCK_ROWS", 2)
    small = made.export(tmp_path / "b.pftrace", options=options).read_bytes()
    assert render_stages(small) == (events, launches)
    whole = made.export(tmp_path / "c.pftrace").read_bytes()
    both = made.export(tmp_path / "d.pftrace", options={"gpu-activities": "both"}).read_bytes()
    assert render_stages(both) == (events, launches)
    assert render_stages(whole) == ([], [])
    assert drawn(both) == drawn(whole)


@pytest.mark.slow
def test_kernels_of_render_stages_have_the_metrics_of_nsight_compute(tmp_path: Path) -> None:
    metrics = ["launch__waves_per_multiprocessor", "launch__registers_per_thread", "dram__bytes.sum"]
    metrics += ["launch__func_cache_config", "launch__cluster_size"]
    with tk.load(FIXTURES / "ncu" / "ncu_basic.ncu-rep") as ncu, tk.load(FIXTURES / "train_amp.nsys-rep") as trace:
        joined = trace.join_ncu(ncu, metrics=metrics)
        path = joined.export(tmp_path / "x.pftrace", options={"gpu-activities": "render-stages"})
        rows = joined.frame("kernels").collect().with_columns(pl.col(pl.Categorical).cast(pl.String))
    by_id = {e["id"]: e["args"] for e in render_stages(path.read_bytes())[0]}
    renamed = {"waves_per_multiprocessor": metrics[0], "func_cache_config": metrics[3]}
    for number, row in enumerate(rows.iter_rows(named=True), 1):
        args, own = by_id[number], ("ncu_match", "ncu_launch_id", metrics[2], metrics[4])
        expected = {name: row[column] for name, column in {**dict(zip(own, own, strict=True)), **renamed}.items()}
        assert {name: args.get(name) for name in expected} == expected
        assert args["registers_per_thread"] == row["registers_per_thread"]
        assert metrics[1] not in args
    assert sum("ncu_match" in args for args in by_id.values()) > 50


@pytest.mark.slow
def test_render_stages_of_many_traces_have_ids_of_their_own(tmp_path: Path) -> None:
    options = {"gpu-activities": "render-stages"}
    with pytest.warns(tk.TracekitWarning, match="the timeline lacks"):
        path = tk.load_many(FIXTURES / "ranks").export(tmp_path / "x.pftrace", options=options)
    events, launches = render_stages(path.read_bytes())
    ids = [e["id"] for e in events]
    assert len(set(ids)) == len(ids) > 0
    assert {n for _, launched in launches for n in launched} <= set(ids)
    ranks = tk.load_many(FIXTURES / "ranks")
    assert len({e["gpu"] for e in events}) >= len(ranks)


def test_every_form_of_values_has_a_field() -> None:
    args = [a for stage in kinds.STAGES for kind in stage for a in kind.row_args + kind.repeated_args]
    forms = {value.form for arg in args for value in arg.values}
    events = importlib.import_module("tracekit.exporters.perfetto.events")
    assert forms | {kinds.TRUE} == set(events._FIELDS)


@pytest.mark.skipif(importlib.util.find_spec("perfetto") is None, reason="perfetto is not installed")
def test_fields_are_those_of_perfetto() -> None:
    theirs = importlib.import_module("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    texts = ["EventName", "DebugAnnotationName", "InternedString", "InternedComputeArgName"]
    renamed = {"InternedText": texts}
    compiled = schemas.load_message_class("perfetto", "Trace").DESCRIPTOR.file
    assert set(compiled.message_types_by_name) >= {"TracePacket", "TrackEvent"}
    extensions = {
        "InternedData": {1000: "compute_kernels", 1001: "compute_arg_names"},
        "TrackEvent": {3000: "gpu_correlation"},
    }  # declared by files that the package does not contain: gpu_interned_data.proto and gpu_track_event.proto
    nested = {f"{m.name}.{n.name}": n for m in compiled.message_types_by_name.values() for n in m.nested_types}
    for name, message in {**compiled.message_types_by_name, **nested}.items():
        if name == "GpuCorrelation":
            continue
        for other in renamed.get(name, [name]):
            fields = functools.reduce(getattr, other.split("."), theirs).DESCRIPTOR.fields_by_number
            for field in message.fields:
                if extensions.get(name, {}).get(field.number) == field.name:
                    continue
                assert field.number in fields
                if name != "InternedText":
                    assert (field.name, field.type, field.is_repeated) == (
                        fields[field.number].name, fields[field.number].type, fields[field.number].is_repeated,
                    )  # fmt: skip
    begin, end = (theirs.TrackEvent.Type.Value(f"TYPE_SLICE_{n}") for n in ("BEGIN", "END"))
    assert (begin, end) == (BEGIN, END)
    clocks = (packets.UTC_CLOCK, packets.SHOWN_CLOCK)
    assert clocks == (theirs.BUILTIN_CLOCK_REALTIME, theirs.BUILTIN_CLOCK_BOOTTIME)


@pytest.mark.parametrize("suffix", ["json", "pftrace"])
def test_arrows_that_cannot_be_drawn_are_counted(suffix: str, tmp_path: Path) -> None:
    starts = {1: 0, 2: 50, 3: 51}
    calls = [call(at, at + 1, correlation_id=n) for n, at in starts.items()]
    made = trace(api_calls=calls, kernels=[kernel(20 + n, 40, correlation_id=n) for n in starts]).correlate()
    with pytest.warns(tk.TracekitWarning, match="^the timeline lacks 2 arrows between events"):
        path = made.export(tmp_path / f"x.{suffix}")
    if suffix == "json":
        events = json.loads(path.read_bytes())["traceEvents"]
        assert [sum(e["ph"] == phase for e in events) for phase in "Xsf"] == [6, 1, 1]
    else:
        events, arrows = drawn(path.read_bytes())
        assert (events.total(), arrows.total()) == (6, 1)


@pytest.mark.slow
def test_many_traces(tmp_path: Path) -> None:
    with pytest.warns(tk.TracekitWarning, match="the timeline lacks 4 arrows") as issued:
        check(tk.load_many(FIXTURES / "ranks"), tmp_path)
    assert len(issued) == 2  # one per format
    with pytest.raises(ExportError, match="nothing to draw: the traces have no events"):
        tk.load_many(FIXTURES / "ranks").export(tmp_path / "y.pftrace", tables=["devices"])
