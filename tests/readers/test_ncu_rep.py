"""The reader of Nsight Compute reports: made-up reports, and our own captures."""

from __future__ import annotations

import json
import math
import shutil
import struct
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.ncu_rep import (
    FIXTURES,
    ROOT,
    Block,
    block,
    kernel,
    made,
    metric,
    report,
    sized,
    take_apart,
)
from tests.test_conformance import described
from tracekit import schemas
from tracekit.errors import CorruptTraceError, TracekitWarning, UnknownFormatError
from tracekit.readers.common.protobuf.messages import parse
from tracekit.readers.ncu_rep import metrics
from tracekit.readers.ncu_rep.capture import INSTANCES
from tracekit.readers.ncu_rep.container import ReportFile, message_class
from tracekit.readers.ncu_rep.rows import replace_links
from tracekit.registry.source import Source

BASIC = ROOT / "fixtures" / "ncu" / "ncu_basic.ncu-rep"
NVTX = ROOT / "fixtures" / "ncu" / "ncu_nvtx.ncu-rep"
PROCESSES = ROOT / "fixtures" / "ncu" / "ncu_processes.ncu-rep"
RANGE = ROOT / "fixtures" / "ncu" / "ncu_range.ncu-rep"
GRAPH = ROOT / "fixtures" / "ncu" / "ncu_graph.ncu-rep"
VALUES = st.one_of(
    st.none(),
    st.tuples(st.just("whole"), st.integers(0, (1 << 64) - 1)),
    st.tuples(st.just("small"), st.integers(0, (1 << 32) - 1)),
    st.tuples(st.just("real"), st.floats()),
    st.tuples(st.just("single"), st.floats(width=32)),
    st.tuples(st.just("text"), st.text(max_size=20).map(str.encode)),
)
METRICS = st.lists(st.tuples(st.integers(0, 5), VALUES, st.integers(0, 300)), max_size=12)


def written(folder: Path, *blocks: Block, **options: Any) -> tk.Trace:
    path = folder / "made.ncu-rep"
    path.write_bytes(report(*blocks, **options))
    return tk.load(path)


def values(trace: tk.Trace) -> dict[tuple[int, str], tuple[float | None, str | None, int]]:
    rows = trace.frame("ncu_metrics").select("launch_id", "metric", "value", "text", "instances").collect().rows()
    return {(launch, name): (value, text, instances) for launch, name, value, text, instances in rows}


def test_values_of_every_type(tmp_path: Path) -> None:
    given_values: list[dict[str, Any]] = [
        {"whole": (1 << 64) - 1}, {"small": 4_000_000_000}, {"real": -2.5}, {"single": 0.1}, {"text": "é\n".encode()},
        {"text": b"\xff"}, {}, {"whole": 0},
    ]  # fmt: skip
    names = [f"m{i}" for i in range(len(given_values))]
    parts = [metric(i, i * 100, **v) for i, v in enumerate(given_values)]
    with written(tmp_path, block(kernel(*parts), names=names)) as trace:
        assert values(trace) == {
            (0, "m0"): (float((1 << 64) - 1), None, 0),
            (0, "m1"): (4e9, None, 100),
            (0, "m2"): (-2.5, None, 200),
            (0, "m3"): (struct.unpack("<f", struct.pack("<f", 0.1))[0], None, 300),
            (0, "m4"): (None, "é\n", 400),
            (0, "m5"): (None, "\ufffd", 500),
            (0, "m6"): (None, None, 600),
            (0, "m7"): (0.0, None, 700),
        }


@given(st.lists(METRICS, min_size=1, max_size=5))
def test_metrics_as_the_protobuf_runtime_has_them(tmp_path_factory: pytest.TempPathFactory, found: list[Any]) -> None:
    """Names 4 and 5 are the same text, so a metric of either counts as the other."""
    names, expected = ["a", "b", "c", "d", "e", "e"], {}
    results = [kernel(*(metric(n, i, **dict([v] if v else [])) for n, v, i in parts)) for parts in found]
    for launch, (_, data) in enumerate(results):
        for encoded in message_class("KernelResult").FromString(data).metrics:
            one = parse(message_class("Metric"), encoded, "a metric")
            value = next((getattr(one.value, f.name) for f, _ in one.value.ListFields()), None)
            text = value.decode() if isinstance(value, bytes) else None
            number = None if value is None or isinstance(value, bytes) else float(value)
            expected[launch, names[one.name]] = (number, text, len(one.instances))
    folder = tmp_path_factory.mktemp("made")
    with written(folder, *(block(r, names=names if i == 0 else ()) for i, r in enumerate(results))) as trace:
        read = values(trace)
    assert read.keys() == expected.keys()
    for key, (number, text, instances) in expected.items():
        assert read[key][1:] == (text, instances)
        both = (read[key][0], number)
        assert both[0] == both[1] or (None not in both and all(map(math.isnan, both)))


def test_batches_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tk.load(BASIC)["ncu_metrics"]
    monkeypatch.setattr(metrics, "BATCH_BYTES", 1)
    with tk.load(BASIC) as trace:
        assert trace["ncu_metrics"].equals(whole)
        assert trace["ncu_metrics"]["value"].num_chunks > 12


def test_names_count_on_from_block_to_block(tmp_path: Path) -> None:
    first = block(kernel(metric(0, whole=1)), names=["sm__cycles_elapsed.max"])
    second = block(kernel(metric(1, whole=2), metric(0, whole=3)), names=["dram__bytes_read.sum"])
    with written(tmp_path, first, second) as trace:
        rows = trace.frame("ncu_metrics").select("launch_id", "metric", "value", "unit").collect().rows()
    assert rows == [
        (0, "sm__cycles_elapsed.max", 1.0, "cycle"),
        (1, "dram__bytes_read.sum", 2.0, "byte"),
        (1, "sm__cycles_elapsed.max", 3.0, "cycle"),
    ]


def test_launches_in_the_order_of_the_kinds(tmp_path: Path) -> None:
    size = message_class("Size")
    messages = (
        kernel(
            thread_id=7, api_call_id=1 << 40, function_name=b"f", mangled_name=b"_f", context_id=1, stream_id=7,
            created_s=1_700_000_000, grid=size(x=2, y=3, z=4), block=size(x=128, y=1, z=1),
        ),
        ("ranges", made("RangeResult", thread_id=8, context_id=2)),
        ("command_lists", made("CommandListResult", demangled_name=b"list", stream_id=9)),
        ("graphs", made("GraphResult", stream_id=13, metrics=[metric(0, whole=64), metric(1, real=1e300)])),
    )  # fmt: skip
    names = ["launch__block_dim_x", "launch__grid_dim_x"]
    with written(tmp_path, block(*messages, names=names, process=42, process_id=41)) as trace:
        rows = trace.frame("ncu_launches").drop("grid_x").collect().to_dicts()
        with pytest.raises(
            CorruptTraceError, match=r"table ncu_launches: a number does not fit into the column grid_x"
        ):
            trace["ncu_launches"]
    kernel_row, range_row, list_row, graph_row = rows
    assert {k: v for k, v in kernel_row.items() if v is not None} == {
        "launch_id": 0, "source_id": 0, "kind": "kernel", "invocations": 1, "process_id": 42, "thread_id": 7,
        "context_id": 1, "stream_id": 7, "api_call_id": 1 << 40, "name": "f", "short_name": "f", "mangled_name": "_f",
        "grid_y": 3, "grid_z": 4, "block_x": 128, "block_y": 1, "block_z": 1, "range_depth": 0,
        "created_utc_ns": 1_700_000_000_000_000_000,
    }  # fmt: skip
    assert (range_row["kind"], range_row["name"], range_row["stream_id"], range_row["block_x"]) == ("range",) * 2 + (
        None,
        None,
    )
    assert (list_row["kind"], list_row["name"], list_row["stream_id"]) == ("cmdlist", "list", 9)
    assert (graph_row["kind"], graph_row["name"], graph_row["block_x"]) == ("graph", "graph", 64)


def test_a_block_that_tells_no_process_belongs_to_the_first_one(tmp_path: Path) -> None:
    device = {"device_id": 3, "name": b"GPU"}
    session = block(process_id=5, created_s=10, devices=[device], versions=[{"provider": b"x", "version": b"y"}])
    with written(tmp_path, session, block(kernel(), process=6), block(kernel())) as trace:
        assert trace.frame("ncu_launches").select("process_id", "source_id").collect().rows() == [(6, 0), (5, 1)]
        assert trace.frame("processes").collect().rows() == [(5, None), (6, "program6")]
        assert trace.info == {"tool": "NVIDIA Nsight Compute", "origin_utc_ns": "10000000000"}
        assert trace.devices.select("device_id", "cuda_device_id", "name", "sm_count").rows() == [(3, 3, "GPU", None)]


def test_only_what_is_asked_for_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(metrics, "read_metrics", refuse)
    with tk.load(BASIC) as trace:
        assert trace.count("ncu_launches") == 12
        assert trace.table("ncu_launches", ["name", "range_path"])["name"].null_count == 0
        assert trace.count("ncu_rules") == 48


def test_nvtx_ranges_of_every_kind() -> None:
    columns = [
        "launch_id", "kind", "depth", "source_id", "domain", "category_id", "category", "color", "name", "message_type",
        "payload_type", "payload_int", "payload_float",
    ]  # fmt: skip
    with tk.load(NVTX) as trace:
        ranges = trace.frame("ncu_nvtx_ranges").collect()
        paths = trace.frame("ncu_launches").select("range_name", "range_path", "range_depth").collect().rows()
        main = trace.frame("ncu_launches").select("thread_id").collect()["thread_id"].to_list()
    pushed = {r[0]: r for r in ranges.filter(pl.col("kind") == "push_pop").select(columns).rows()}
    color = 0xFF00FF00
    assert [pushed[i][5:] for i in range(3, 10)] == [
        (None, None, color, "pay", "ascii", None, None, None),
        (1, None, color + 1, "pay", "ascii", "uint64", (1 << 63) + 1 - (1 << 64), None),
        (2, None, color + 2, "pay", "ascii", "int64", -5, None),
        (3, "cat three", color + 3, "pay", "ascii", "double", None, 0.1),
        (4, None, color + 4, "pay", "ascii", "uint32", 4_000_000_000, None),
        (5, None, color + 5, "pay", "ascii", "int32", -7, None),
        (6, None, color + 6, "pay", "ascii", "float", None, struct.unpack("<f", struct.pack("<f", 0.1))[0]),
    ]
    assert ranges.filter(launch_id=10).select("depth", "domain", "name").rows() == [
        (1, None, 'q" c: m, n\nl :none:none'),
        (2, "dom", "reg: text"),
        (3, "a:b", "in e"),
    ]
    assert pushed[1][3:] == (None, None, None, None, None, "plain", None, None, None, None)
    started = ranges.filter((pl.col("kind") == "start_end") & (pl.col("launch_id") == 13)).select(columns).rows()
    assert [r[2:10] for r in started] == [
        (1, 0, None, None, None, None, "se one", None),
        (2, 1, "dom", 3, "dom three", None, "reg: text", "registered"),
        (3, 2, "a:b", None, None, None, "in e", "ascii"),
    ]
    assert main[15] != main[16] == main[0]
    assert ranges.filter(pl.col("launch_id").is_in([15, 16]), kind="push_pop").select("thread_id", "name").rows() == [
        (main[15], "on thread"),
        (main[16], "main open"),
    ]
    assert paths[0] == (None, None, 0)
    assert paths[2] == ("", "plain/", 2)
    assert paths[10] == ("in e", 'q" c: m, n\nl :none:none/reg: text/in e', 3)


def test_payloads_of_other_types(tmp_path: Path) -> None:
    def pushed(**payload: Any) -> Any:
        return {"name": b"r", "attributes": {"payload": payload}}

    ranges = [pushed(type=7, text=b"{}"), pushed(type=99), pushed(type=1), pushed(type=3, int64=5)]
    state = made("NvtxState", threads=[{"thread_id": 1, "stacks": [{"domain_id": 4, "ranges": ranges}]}])
    with written(tmp_path, block(kernel(thread_id=1, nvtx=state), kernel(thread_id=2, nvtx=state))) as trace:
        columns = ["launch_id", "domain", "payload_type", "payload_int", "payload_float", "payload_text"]
        assert trace.frame("ncu_nvtx_ranges").select(columns).collect().rows() == [
            (0, None, "json", None, None, "{}"),
            (0, None, "string", None, None, None),
            (0, None, "uint64", None, None, None),
            (0, None, "double", None, None, None),
        ]


def test_rules(tmp_path: Path) -> None:
    items = [
        {"speedup": {"type": 2, "percent": 1.0}},
        {"message": {"text": b"See @section:Occupancy:Occupancy@.", "type": 4, "title": b"T"}},
        {"speedup": {"type": 1, "percent": 12.5}},
        {"message": {"text": b"odd", "type": 9}, "speedup": {"type": 2}},
        {},
        {"message": {"type": 2}},
    ]
    spoken = made("Rule", rule_id=b"R", name=b"A rule", section_id=b"S", body={"items": items})
    silent = made("Rule", rule_id=b"Q", section_id=b"S")
    section = made("Section", section_id=b"S", name=b"Some section")
    bare = made("Rule", body={"items": [{"message": {"text": b"x", "type": 3}}]})
    first = kernel(rules=[silent, spoken], sections=[section])
    with written(tmp_path, block(first, kernel(rules=[bare]))) as trace:
        assert [tuple(r.values()) for r in trace["ncu_rules"].to_pylist()] == [
            (1, 0, "Some section", "S", "R", "A rule", "OPT", "T", "See Occupancy.", "local", 12.5),
            (2, 0, "Some section", "S", "R", "A rule", "INF", None, "odd", "global", None),
            (3, 0, "Some section", "S", "R", "A rule", "WRN", None, None, None, None),
            (4, 1, None, None, None, None, "ERR", None, "x", None, None),
        ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a @url:guide:https://example.org/a#b@ c", "a guide (https://example.org/a#b) c"),
        ("@section:SourceCounters:Source Counters@", "Source Counters"),
        ("@sass:0x10:HMMA@ at @source:C:\\a.cu:12:line 12@", "HMMA at line 12"),
        ("mail a@b.c or @other:x:y@", "mail a@b.c or @other:x:y@"),
    ],
)
def test_links_in_messages(text: str, shown: str) -> None:
    assert replace_links(text) == shown


@pytest.mark.many(1)
@pytest.mark.parametrize("path", FIXTURES, ids=lambda p: p.stem)
def test_fixtures_are_as_declared_and_golden(path: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    golden = ROOT / "fixtures" / "golden" / f"{path.stem}.json"
    unknown = tmp_path / "unknown"
    shutil.copyfile(path, unknown)
    with tk.load(path) as trace, tk.load(unknown) as other:
        assert other.format == trace.format == "ncu-rep"
        for name in trace.tables:
            table = trace[name]
            table.validate(full=True)
            assert table.schema.equals(schemas.arrow_schema(schemas.table(name)), check_metadata=True)
            assert table.num_rows == trace.count(name) == tk.load(path).count(name)
        found = described(trace)
        assert described(other) == found
        again = tk.load(trace.export(tmp_path / "tables", format="parquet"))
        kept = [name for name in trace.tables if name != INSTANCES]
        assert all(again[name].equals(trace[name]) for name in kept)
        assert not (tmp_path / "tables" / f"{INSTANCES}.parquet").exists()
    if request.config.getoption("--golden"):
        golden.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    assert found == json.loads(golden.read_text("utf-8"))


@pytest.mark.parametrize("path", FIXTURES, ids=lambda p: p.stem)
def test_fixtures_name_no_machine(path: Path) -> None:
    data = path.read_bytes()
    for private in (b"/tmp/", b"/home/", b"/root", b"/usr/", b"/opt/", b"127.0.0.1", b"Xeon", b"PATH=", b".py\0"):
        assert private not in data
    with tk.load(path) as trace:
        assert "/" not in str(trace.frame("processes").collect()["name"].to_list())


def test_results_of_several_processes_have_no_printed_id() -> None:
    with tk.load(PROCESSES) as trace:
        rows = trace.frame("ncu_launches").select("source_id", "process_id", "range_name").collect().rows()
        names = trace.frame("processes").collect()["name"].to_list()
    assert [r[0] for r in rows] == [None] * 4
    assert [r[2] for r in rows] == ["child", "parent"] * 2
    assert rows[0][1] == rows[2][1] != rows[1][1] == rows[3][1]
    assert names == ["p", "p"]


def test_ranges_have_no_size() -> None:
    with tk.load(RANGE) as trace:
        rows = (
            trace.frame("ncu_launches").select("kind", "stream_id", "grid_x", "block_x", "range_path").collect().rows()
        )
    assert rows == [("range", None, None, None, "outer")] * 2


def test_graphs_have_the_size_of_their_launch() -> None:
    columns = ["kind", "name", "stream_id", "grid_x", "block_x", "device_id", "compute_major"]
    with tk.load(GRAPH) as trace:
        rows = trace.frame("ncu_launches").select(*columns, pl.col("duration_ns") > 0).collect().rows()
    assert rows[:2] == [("graph", "graph", 13, 64, 128, 0, 9, True)] * 2
    assert rows[2][0] == "kernel"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"NVR\0", "the file is truncated: 4 bytes are expected at byte 4, but only 0 are left"),
        (
            b"NVR\0\xff\xff\xff\xff",
            "the file is truncated: 4294967299 bytes are expected at byte 4, but only 4 are left",
        ),
        (b"NVR\0" + sized(b"\xff"), r"the header is not a valid protobuf message \(1 bytes\)"),
        (report(), None),
        (report() + b"\1", "the file is truncated: 4 bytes are expected at byte 10, but only 1 are left"),
        (report() + sized(b"\x0a"), r"the header of the block at byte 10 is not a valid protobuf message \(1 bytes\)"),
        (
            report() + sized(made("BlockHeader", payload_bytes=9)),
            "the file is truncated: 9 bytes are expected at byte 16, but",
        ),
        (
            report() + sized(made("BlockHeader", kernels=1 << 31)),
            "the file is truncated: 4 bytes are expected at byte 20, but",
        ),
        (report(block(("sources", b""))), "the message at byte 20 is empty"),
    ],
)
def test_damaged_files(tmp_path: Path, data: bytes, message: str | None) -> None:
    path = tmp_path / "bad.ncu-rep"
    path.write_bytes(data)
    if message is None:
        assert tk.load(path).count("ncu_launches") == 0
        return
    with pytest.raises(CorruptTraceError, match=rf"bad\.ncu-rep: {message}.*\nHint: copy the report again"):
        tk.load(path)


@pytest.mark.parametrize(
    ("table", "result", "message"),
    [
        ("ncu_metrics", ("kernels", b"\x6a\x7f"), r"result 0 at byte .* is not a valid protobuf message \(2 bytes\)"),
        (
            "ncu_metrics",
            kernel(metric(1, whole=1)),
            "a metric refers to the name with index 1, but the report has only 1 names",
        ),
        ("ncu_metrics", kernel(b"\x12\x00"), "a metric has no name"),
        ("ncu_metrics", kernel(b"\x0a\x01a"), "a metric has no name"),
        ("ncu_metrics", kernel(metric(0, whole=1), b""), "a metric has no name"),
        ("ncu_metrics", kernel(b"\x08\x00\x12\x02\x1a\x00"), "a metric contains bytes instead of a number"),
        ("ncu_metrics", kernel(b"\x08\x00\x12\x02\x08\x00"), "field 1 holds a number instead of bytes"),
        ("ncu_metrics", kernel(b"\x08\x00\x12\x00\x1a\x7f"), "a field extends beyond the end of its message"),
        ("ncu_metrics", kernel(b"\x08\x00\x12\x00\x02\x00"), "a metric is not a valid protobuf message"),
        ("ncu_metrics", kernel(b"\x08\x00\x12\x7f"), "a field extends beyond the end of its message"),
        ("ncu_rules", kernel(rules=[b"\x1a\x7f"]), r"a rule of result 0 is not a valid protobuf message \(2 bytes\)"),
        (
            "ncu_rules",
            kernel(rules=[b""], sections=[b"\x0a\x7f"]),
            r"a section is not a valid protobuf message \(2 b.*",
        ),
        ("ncu_nvtx_ranges", kernel(nvtx=b"\x0a\x7f"), "the NVTX state of result 0 is not a valid protobuf message .*"),
        ("ncu_launches", kernel(created_s=1 << 63), r"a number does not fit into the column created_utc_ns \(int64\)"),
    ],
)
def test_damaged_results(tmp_path: Path, table: str, result: tuple[str, bytes], message: str) -> None:
    trace = written(tmp_path, block(result, names=["m"]))
    with pytest.raises(CorruptTraceError, match=rf"made\.ncu-rep: table {table}: {message}\nHint: copy"):
        trace[table]


@pytest.mark.parametrize(
    ("limit", "table"),
    [
        ("container.MAX_RESULTS", "ncu_launches"),
        ("container.MAX_NAMES", "ncu_launches"),
        ("metrics.MAX_METRICS", "ncu_metrics"),
        ("rows.MAX_RULES", "ncu_rules"),
        ("rows.MAX_SECTIONS", "ncu_rules"),
        ("rows.MAX_ITEMS", "ncu_rules"),
        ("nvtx.MAX_ITEMS", "ncu_nvtx_ranges"),
    ],
)
def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, table: str) -> None:
    """What two of each pass, three do not."""

    def some(n: int) -> tk.Trace:
        stacks = [{"ranges": [{"name": b"r"}] * n}]
        parts = [metric(i % 2, whole=1) for i in range(n if limit == "metrics.MAX_METRICS" else 2)]
        rule = made("Rule", body={"items": [{"message": {"type": 1}}] * (n if limit == "rows.MAX_ITEMS" else 2)})
        result = kernel(
            *parts,
            rules=[rule] * (n if limit == "rows.MAX_RULES" else 2),
            sections=[made("Section", name=b"s")] * n,
            nvtx=made("NvtxState", threads=[{"thread_id": 1, "stacks": stacks}]),
        )
        return written(tmp_path, block(*[result] * (n if limit == "container.MAX_RESULTS" else 2), names="abc"[:n]))

    monkeypatch.setattr(f"tracekit.readers.ncu_rep.{limit}", 2)
    assert some(2).count(table) > 1
    with pytest.raises(
        CorruptTraceError,
        match=r"more than 2 results|[13] [a-zA-Z ]+( of result 0)?, but .* at most [02]",
    ):
        some(3).count(table)


def test_a_newer_format_is_read_with_a_warning(tmp_path: Path) -> None:
    with pytest.warns(TracekitWarning, match=r"has version 8 of the format, but tracekit supports version 7"):
        trace = written(tmp_path, block(kernel()), version=8)
    assert trace.count("ncu_launches") == 1


def test_results_of_unknown_kind_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "made.ncu-rep"
    header = made("BlockHeader", kernels=1, payload_bytes=20)
    path.write_bytes(report() + sized(header) + sized(made("KernelResult", thread_id=1)) + bytes(14))
    with pytest.warns(TracekitWarning, match=r"14 bytes of results of unknown kinds were skipped"):
        assert tk.load(path).count("ncu_launches") == 1


def test_a_closed_report_says_so() -> None:
    with tk.load(BASIC) as trace:
        pass
    with pytest.raises(tk.TracekitError, match=r"is closed\nHint: load it again"):
        trace["ncu_metrics"]


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.ncu-rep"
    path.write_bytes(b"NVQ\0 something")
    with pytest.raises(UnknownFormatError):
        tk.load(path)
    with pytest.raises(CorruptTraceError, match=r"not an Nsight Compute report: no reader recognizes"):
        tk.load(path, format="ncu-rep")
    path.unlink()
    path.touch()
    with pytest.raises(CorruptTraceError, match=r"not an Nsight Compute report: the file is empty"):
        tk.load(path, format="ncu-rep")


@pytest.mark.parametrize("keep", [0.001, 0.1, 0.5, 0.9, 0.999])
def test_cut_short_it_is_our_error(tmp_path: Path, keep: float) -> None:
    data, cut = BASIC.read_bytes(), tmp_path / "cut.ncu-rep"
    cut.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(CorruptTraceError, match=r"cut\.ncu-rep: the file is truncated: .*\nHint: "):
        tk.load(cut)


def test_real_reports_taken_apart_and_packed_again_hold_the_same(tmp_path: Path) -> None:
    with tk.load(GRAPH) as trace, written(tmp_path, *take_apart(GRAPH.read_bytes())) as again:
        assert described(again) == described(trace)


@pytest.mark.parametrize("path", FIXTURES, ids=lambda p: p.stem)
def test_instances_as_the_protobuf_runtime_has_them(path: Path, tmp_path: Path) -> None:
    def one(value: Any) -> Any:
        found = next((f for f in ("text", "single", "real", "small", "whole") if value.HasField(f)), None)
        return None if found is None else getattr(value, found)

    with tk.load(path) as trace:
        counts = trace.frame("ncu_metrics").filter(pl.col("instances") > 0).collect()
        table = trace.frame(INSTANCES).collect()
        assert trace.count(INSTANCES) == table.height == counts["instances"].sum() > 0
        alone = trace.export(tmp_path / "alone.parquet", tables=[INSTANCES])
        assert pl.read_parquet(alone).height == table.height
    assert table.group_by("launch_id", "metric").len().height == counts.height
    report = ReportFile(Source(path))
    names, expected = report._names, {}
    for number in range(len(report.results)):
        for data in report.read_result(number).metrics:
            metric = message_class("Metric").FromString(data)
            expected[number, names[metric.name]] = [message_class("Instance").FromString(i) for i in metric.instances]
    rows = table.with_columns(pl.col("metric", "correlation").cast(pl.String)).rows(named=True)
    for row in rows:
        instance = expected[row["launch_id"], row["metric"]][row["number"] - 1]
        value, of = one(instance.value), one(instance.correlation)
        assert (row["text"] or row["value"]) == (value.decode() if isinstance(value, bytes) else value)
        assert (row["correlation"] if isinstance(of, bytes) else row["correlation_id"]) == (
            of.decode() if isinstance(of, bytes) else of
        )


def test_instances_of_every_type(tmp_path: Path) -> None:
    value, instance = message_class("Value"), message_class("Instance")
    parts = [
        instance(correlation=value(whole=(1 << 64) - 1), value=value(real=0.5)),
        instance(correlation=value(text=b"FFMA"), value=value(text=b"x")),
        instance(correlation=value(small=7), value=value(whole=9)),
        instance(value=value(single=0.25)),
        instance(correlation=value(whole=1_795_244_435_000_000_001)),
        instance(),
    ]
    first = made("Metric", name=0, instances=[b""])
    metric_ = made("Metric", name=0, instances=[p.SerializeToString() for p in parts])
    path = tmp_path / "made.ncu-rep"
    path.write_bytes(report(block(kernel(first, metric_, made("Metric", name=1)), names=["a", "b"])))
    with tk.load(path) as trace:
        rows = trace.frame(INSTANCES).select("metric", "number", "correlation_id", "correlation", "value", "text")
        assert rows.collect().rows() == [
            ("a", 1, -1, None, 0.5, None),
            ("a", 2, None, "FFMA", None, "x"),
            ("a", 3, 7, None, 9.0, None),
            ("a", 4, None, None, 0.25, None),
            ("a", 5, 1_795_244_435_000_000_001, None, None, None),
            ("a", 6, None, None, None, None),
        ]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            made("Metric", name=9, instances=[b""]),
            "a metric refers to the name with index 9, but the report has only 1 names",
        ),
        (made("Metric", name=0, instances=[b"\x0a\x7f"]), "beyond"),
        (b"\x12\x7f", "a metric is not a valid protobuf message"),
    ],
)
def test_damaged_instances(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "made.ncu-rep"
    path.write_bytes(report(block(kernel(data), names=["a"])))
    with tk.load(path) as trace, pytest.raises(CorruptTraceError, match=message):
        trace.table(INSTANCES)


@pytest.mark.slow
def test_cut_anywhere_it_is_damaged_or_a_shorter_report(tmp_path: Path) -> None:
    """Nothing tells how many blocks there were: cut between two it holds the results before."""
    blocks = [
        block(process=5, created_s=9),
        block(kernel(metric(0, 2, whole=7), metric(1, text=b"x"), demangled_name=b"k()"), names=["a", "b"], process=5),
        block(("ranges", made("RangeResult", thread_id=1, metrics=[metric(1, real=0.5)])), process=5),
        block(("sources", b"\x08\x01"), kernel(metric(0, small=3))),
    ]
    data = report(*blocks)
    between = {len(report(*blocks[:n])): n for n in range(len(blocks) + 1)}
    path = tmp_path / "cut.ncu-rep"
    for size in range(len(data)):
        path.write_bytes(data[:size])
        if size in between:
            with tk.load(path) as trace:
                assert trace.count("ncu_launches") == max(between[size] - 1, 0)
                assert trace.count("ncu_metrics") == (0, 0, 2, 3)[between[size]]
        else:
            with pytest.raises(CorruptTraceError if size >= 4 else tk.TracekitError, match=r"(?s)cut.ncu-rep: .+"):
                tk.load(path, "ncu-rep")
