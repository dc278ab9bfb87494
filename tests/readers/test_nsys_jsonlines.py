"""JSON exports of nsys contain the same events as the SQLite export of the same report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tracekit as tk
from tests.helpers import count_undecoded
from tracekit.errors import CorruptTraceError, TracekitWarning

FIXTURES = Path(__file__).parents[2] / "fixtures"
EXPORT, SQLITE = FIXTURES / "nsys_jsonlines" / "nvtx_features.jsonlines", FIXTURES / "nvtx_features.sqlite"
KEYS = {
    "kernels": "start_ns",
    "memcpys": "start_ns",
    "memsets": "start_ns",
    "syncs": "start_ns",
    "api_calls": "start_ns",
    "overheads": "start_ns",
    "nvtx_ranges": "start_ns",
    "nvtx_marks": "timestamp_ns",
    "diagnostics": "timestamp_ns",
    "processes": "process_id",
    "threads": "thread_id",
}
"""A column by which rows of both exports are matched."""
pytestmark = pytest.mark.filterwarnings("ignore:.*does not end with the names of threads")
WHOLE = ("kernels", "memcpys", "memsets", "syncs", "overheads", "nvtx_ranges", "nvtx_marks", "diagnostics")
"""Tables that the shortened fixture contains whole."""


def frame(path: Path, name: str) -> pl.DataFrame:
    with tk.load(path) as trace:
        return pl.DataFrame(trace[name]).with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))


@pytest.mark.parametrize("name", KEYS)
def test_events_are_those_of_the_sqlite_export(name: str) -> None:
    short, whole = frame(EXPORT, name), frame(SQLITE, name)
    numbers = [c for c in ("api_call_id", "range_id") if c in short.columns]
    only_json = ("cluster_x", "cluster_y", "cluster_z")  # nsys 2025.3 does not export them to SQLite
    columns = [c for c in short.columns if c not in only_json and (c not in numbers or name in WHOLE)]
    matching = whole.join(short, on=KEYS[name], how="semi", nulls_equal=True)
    assert 0 < short.height == matching.height
    assert short.select(columns).sort(columns).equals(matching.select(columns).sort(columns))
    assert name not in WHOLE or short.height == whole.height


def test_what_is_not_in_other_exports() -> None:
    with tk.load(EXPORT) as trace:
        assert trace.format == "nsys-jsonlines"
        assert trace.count("cuda_overheads") == 16
        assert count_undecoded(trace.undecoded) == {"start or finish mark": 2}
        assert trace.count("devices") == 0
        assert trace.correlate().frame("kernels").select("api_call_id").collect().null_count().item() == 0


def test_reports_need_no_description_of_the_machine() -> None:
    with tk.load(EXPORT) as short, tk.load(SQLITE) as whole:
        report = "cuda_gpu_kern_sum"
        assert tk.stats(short, report).equals(tk.stats(whole, report))


def write(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    return path


def create_mark(**fields: Any) -> dict[str, Any]:
    event = {"Type": 34, "Timestamp": "5", "GlobalTid": "281497021973794", "DomainId": "0", **fields}
    return {"Type": 34, "NvtxEvent": event}


def test_numbers_may_be_strings_and_unsigned(tmp_path: Path) -> None:
    largest = {"Payload": {"Uint64Value": str((1 << 64) - 1)}}
    path = write(tmp_path / "a.json", {"data": ["x"]}, create_mark(TextId=0), create_mark(Timestamp=7, **largest))
    marks = frame(path, "nvtx_marks")
    assert marks.select("timestamp_ns", "name", "payload_int").rows() == [(5, "x", None), (7, None, -1)]


def test_a_file_without_strings_or_threads_is_read(tmp_path: Path) -> None:
    with pytest.warns(TracekitWarning, match="1 row of nvtx_marks refers to strings that the file lacks"):
        assert frame(write(tmp_path / "a.json", create_mark(TextId=3)), "nvtx_marks")["name"].to_list() == [None]
    assert frame(write(tmp_path / "b.json", {"data": []}), "kernels").height == 0


def test_many_short_lines_take_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "many.json"
    path.write_text('{"data":["x"]}\n' + "{}\n" * 300_000 + json.dumps(create_mark()) + "\n")
    assert frame(path, "nvtx_marks").height == 1


def test_binary_payloads_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", create_mark(Payload={"BinaryData": [{"SchemaId": "1", "Data": "UUp0"}]}))
    with tk.load(path) as trace:
        assert count_undecoded(trace.undecoded) == {"binary payloads of NVTX": 1}
        assert trace.count("nvtx_marks") == 1


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('{"Type":34,"NvtxEvent":{"Type":34', "line"),
        ("[1,2]", "NDJSON|object"),
        ('{"Type":34,"NvtxEvent":{"Type":34,"Timestamp":"text"}}', "text"),
        ('{"Type":34,"NvtxEvent":[1]}', "Array|struct"),
        ('{"Type":' + "[" * 9999, "line|Depth"),
        ('{"data":[{"nameIdx":"x"}]}', "x"),
    ],
)
def test_damaged_lines_are_errors(line: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "damaged.json"
    path.write_text('{"data":["x"]}\n' + line + "\n")
    with pytest.raises(CorruptTraceError, match=f"in the lines from 1 on: .*({text})"):
        tk.load(path)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("lines", [1, 2, 100])
def test_an_export_that_ends_after_a_line_may_be_truncated(lines: int, tmp_path: Path) -> None:
    path = tmp_path / "short.json"
    path.write_bytes(b"".join(EXPORT.read_bytes().splitlines(keepends=True)[:lines]))
    with pytest.warns(TracekitWarning, match="does not end with the names of threads, so it may be truncated"):
        tk.load(path).close()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("change", [b"", b"\n\n", b"\r\n"])
def test_a_whole_export_is_read_without_a_warning(change: bytes, tmp_path: Path) -> None:
    """Also with a byte order mark, without a line break at its end, and with other line breaks."""
    path, data = tmp_path / "whole.json", EXPORT.read_bytes().strip()
    path.write_bytes(b"\xef\xbb\xbf" + (data.replace(b"\n", change) if change == b"\r\n" else data + change))
    for name in ("kernels", "nvtx_ranges", "threads"):
        assert frame(path, name).equals(frame(EXPORT, name))


def test_two_exports_in_a_file_are_an_error(tmp_path: Path) -> None:
    """The ids of strings begin at 0 in each of them."""
    path = tmp_path / "twice.json"
    path.write_bytes(EXPORT.read_bytes() * 2)
    with pytest.raises(CorruptTraceError, match="the file consists of several exports: split it"):
        tk.load(path)


def test_a_truncated_export_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "short.json"
    path.write_bytes(EXPORT.read_bytes()[:-9])
    with pytest.raises(CorruptTraceError, match="in the lines from"):
        tk.load(path)


def test_events_of_very_many_types_are_counted_together(tmp_path: Path) -> None:
    lines = ({"Type": 1000 + n, "OtherEvent": {}} for n in range(1500))
    with tk.load(write(tmp_path / "a.json", {"data": ["a"]}, *lines)) as trace:
        counts = count_undecoded(trace.undecoded)
    assert sum(counts.values()) == 1500
    assert 990 < len(counts) <= 1001
    assert counts["events of other types"] >= 499


def test_events_without_a_type_or_a_class_are_counted(tmp_path: Path) -> None:
    call = {"Type": 48, "TraceProcessEvent": {"startNs": "1", "endNs": "2", "eventClass": None}}
    path = write(tmp_path / "a.json", {"data": ["a"]}, call, {"OtherEvent": {"a": 1}}, {"Type": 99, "OtherEvent": {}})
    with tk.load(path) as trace:
        counts = {kind: undecoded.count for kind, undecoded in trace.undecoded.items()}
    assert counts == {"calls of class null": 1, "events without a type": 1, "events of type 99": 1}
