"""Captures of other makers than NVIDIA are described without words of CUDA, and without commands of its profilers."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import polars as pl
import pytest
import tracekit as tk
from click.testing import CliRunner
from tracekit import cli
from tracekit.errors import ExportError, MissingTableError, TracekitError, format_count
from tracekit.exporters.timeline.tracks import API_TRACKS, TrackNames
from tracekit.registry import foreign_files
from tracekit.registry.absence import format_class
from tracekit.registry.source import Source
from tracekit.trace import get_trace_view
from tracekit.view.pages import PAGES, _create_missing_data_error

FIXTURES = Path(__file__).parents[1] / "fixtures"
AMD = FIXTURES / "rocm" / "train_results.db"
NVIDIA = FIXTURES / "train_amp.sqlite"
ASCEND = FIXTURES / "ascend" / "trace_view.json"
SNAPSHOT = FIXTURES / "memory_snapshot" / "oom.pickle"


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(cli.cli, [*map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


def test_labels_of_reports_name_no_cuda() -> None:
    with tk.load(AMD) as amd, tk.load(NVIDIA) as nvidia:
        for trace, prefix in ((amd, ""), (nvidia, "CUDA ")):
            copies = trace.stats("cuda_gpu_mem_time_sum")["Operation"].cast(pl.String)
            assert f"[{prefix}memcpy Host-to-Device]" in copies.to_list()
            categories = trace.stats("cuda_api_gpu_sum")["Category"].cast(pl.String).unique()
            underscored = prefix.replace(" ", "_")
            assert {*categories} == {f"{underscored}API", f"{underscored}KERNEL", "MEMORY_OPER"}


def test_copies_of_unknown_kind_are_counted() -> None:
    with tk.load(ASCEND) as trace:
        assert trace.frame("memcpys").select(pl.col("copy_kind").null_count()).collect().item() == 3
        row = trace.stats("cuda_gpu_mem_time_sum").row(0, named=True)
        assert (str(row["Operation"]), row["Count"], row["Total Time (ns)"]) == ("[memcpy]", 3, 18_000)
        categories = trace.stats("kernel_categories")
        assert categories.filter(Category="copy")["Top Kernel"].cast(pl.String).to_list() == ["[memcpy]"]


def test_gpus_have_the_words_of_their_maker() -> None:
    assert "GPU 0             AMD Instinct MI300X, gfx942, 304 compute units, 196,592 MiB" in run("info", AMD)
    assert "GPU 0         unknown AMD GPU" in run("info", FIXTURES / "rocm" / "train.rpd")
    assert "NVIDIA H200, compute capability 9.0, 132 SMs" in run("info", NVIDIA)
    assert "GPU 0         unknown Huawei GPU" in run("info", ASCEND)


def test_tracks_of_calls_are_those_of_the_runtime() -> None:
    with tk.load(AMD) as amd, tk.load(NVIDIA) as nvidia:
        labels = [
            API_TRACKS.make_track(TrackNames.read(get_trace_view(trace).tables), 1, 2).name for trace in (amd, nvidia)
        ]
    assert labels == ["API · thread 2", "CUDA API · thread 2"]


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        (AMD, "record them with rocprof-sys-sample"),
        (ASCEND, "record them with torch_npu.profiler.profile(with_stack=True)"),
        (FIXTURES / "xplane" / "train.trace.json.gz", None),
    ],
)
def test_hints_on_call_stacks_name_the_profiler_of_the_capture(path: Path, hint: str | None, tmp_path: Path) -> None:
    with tk.load(path) as trace, pytest.raises(MissingTableError) as raised:
        trace.export(tmp_path / "out.collapsed")
    assert raised.value.hint is not None
    assert "nsys" not in raised.value.hint
    assert hint is None or raised.value.hint == hint


def test_hints_of_exporters_and_pages_name_no_other_profiler(tmp_path: Path) -> None:
    with tk.load(SNAPSHOT) as snapshot, pytest.raises(ExportError) as raised:
        snapshot.export(tmp_path / "out", format="tfevents")
    reason = "because captures in the format memory-snapshot contain no kernels"
    assert raised.value.message == f"the trace has no ops to draw, {reason}"
    assert raised.value.hint is None
    with tk.load(AMD) as amd:
        for name in ("roofline", "stacks", "metrics"):
            error = _create_missing_data_error(amd, PAGES[name])
            assert not {"nsys", "ncu"} & {*(error.hint or "").split()}
    with tk.load(NVIDIA) as nvidia:
        assert _create_missing_data_error(nvidia, PAGES["roofline"]).hint == PAGES["roofline"].recording_hint


def test_tables_of_other_formats_keep_their_profiler(tmp_path: Path) -> None:
    with tk.load(AMD) as amd:
        amd.export(tmp_path / "tables", format="parquet")
    with tk.load(tmp_path / "tables") as again:
        hint = again.explain_missing_rows("cpu_samples").hint
    assert hint == "record them with rocprof-sys-sample"


def test_the_summary_answers_what_why_answers() -> None:
    stuck = FIXTURES / "nccl" / "stuck_rank0.pickle"
    sentence = "Rank 0 has not completed all_reduce #9 of tensor_parallel"
    assert sentence in " ".join(run(stuck).split())
    assert "The capture records only the memory of GPUs: the report allocator_peak" in " ".join(run(SNAPSHOT).split())
    assert "1,589 allocator_events" in run(SNAPSHOT)
    assert "No timeline was recorded, only totals" in run(FIXTURES / "proton" / "scopes.hatchet")
    assert "Not analyzed" not in run(stuck) + run(SNAPSHOT)


def test_the_span_contains_all_events_of_the_program() -> None:
    with tk.load(FIXTURES / "nccl" / "stuck_rank0.pickle") as trace:
        assert trace.span() == (0, trace.frame("communication_calls").select("end_seen_ns").max().collect().item())
    with tk.load(SNAPSHOT) as snapshot:
        assert snapshot.span() == (0, 1_487_631_000)


def test_undecoded_events_are_counted_in_words() -> None:
    assert "recorded, but not decoded: 1 argument of API calls\n" in run(FIXTURES / "rocm" / "train.rpd")
    assert "recorded, but not decoded: 58 arguments of API calls\n" in run(AMD)


def test_comparisons_say_what_they_do_not_compare() -> None:
    said = run("diff", SNAPSHOT, FIXTURES / "memory_snapshot" / "ring.pickle")
    assert "note: the memory of allocators is not compared; the report allocator_peak shows it" in said
    heading = next(line for line in said.splitlines() if line.startswith("# NVTX ranges on the GPU"))
    assert heading.startswith("# NVTX ranges on the GPU: no rows in A and B, because")
    stuck = FIXTURES / "nccl"
    said = run("diff", stuck / "stuck_rank0.pickle", stuck / "stuck_rank1.pickle")
    assert "the logs of collectives are not compared; tracekit why A B shows what the ranks of a job wait for" in said
    assert "A: 1 iteration, PyTorch flight recorder\n" in said
    slower = run("diff", FIXTURES / "rocm" / "train.rpd", NVIDIA)
    assert "# Iterations: " in slower
    assert "Iterations per iteration" not in slower


def test_chrome_traces_of_tools_for_amd_name_better_files(tmp_path: Path) -> None:
    """The names of processes and threads that rocprof (version 1) and rocmProfileData write."""
    slices = [{"ph": "X", "name": "kernel", "pid": 6, "tid": 1, "ts": 5, "dur": 2}]
    names = {
        "rocprof": {"ph": "M", "name": "process_name", "pid": 2, "args": {"name": "CPU HIP API"}},
        "rocmProfileData": {"ph": "M", "name": "thread_name", "pid": 6, "tid": 1, "args": {"name": "Hip 17"}},
        "Chrome trace": {"ph": "M", "name": "thread_name", "pid": 6, "tid": 1, "args": {"name": "Hipster"}},
    }
    hints = []
    for tool, named in names.items():
        path = tmp_path / f"{tool}.json"
        path.write_text(json.dumps({"traceEvents": [named, *slices]}), "utf-8")
        with tk.load(path, format="chrome-trace") as trace:
            assert (trace.info["tool"], trace.info.get("device_vendors")) == (tool, "AMD" if tool in _TOOLS else None)
            hints.append(trace.explain_missing_rows("kernels").hint or "")
    assert ["rocprofv3 --sys-trace" in hints[0], ".rpd" in hints[1], "Nsight Systems" in hints[2]] == [True] * 3


_TOOLS = ("rocprof", "rocmProfileData")


def test_chrome_traces_of_proton_are_not_those_of_pytorch(tmp_path: Path) -> None:
    kernel = {"ph": "X", "cat": "kernel", "name": "add", "tid": 7, "ts": 0, "dur": 2, "args": {"call_stack": ["ROOT"]}}
    for number, (metadata, tool) in enumerate((({}, "Proton"), ({"schemaVersion": 1}, "PyTorch profiler"))):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps({**metadata, "displayTimeUnit": "us", "traceEvents": [kernel]}), "utf-8")
        with tk.load(path) as trace:
            assert (trace.format, trace.info["tool"], trace.count("kernels")) == ("kineto", tool, 1)


def test_proton_writes_a_document_per_stream(tmp_path: Path) -> None:
    """Older versions of Proton write one JSON object after another."""
    path, streams = tmp_path / "streams.json", (7, 9, 11)
    documents = []
    for stream in streams:
        kernel = {"ph": "X", "cat": "kernel", "name": "add", "tid": stream, "args": {"call_stack": ["ROOT"]}}
        events = [{**kernel, "ts": 10.0 * number, "dur": 2} for number in range(stream)]
        documents.append(json.dumps({"displayTimeUnit": "us", "traceEvents": events}))
    path.write_text("".join(f"{document}\n" for document in documents), "utf-8")
    tk.redact(path, tmp_path / "redacted.json")
    for each in (path, tmp_path / "redacted.json"):
        with tk.load(each) as trace:
            counts = trace.frame("kernels").collect()["stream_id"].value_counts()
        assert dict(counts.iter_rows()) == {stream: stream for stream in streams}


def test_logs_among_captures_are_joined_and_no_ranks() -> None:
    with pytest.raises(TracekitError, match="the first are logs of collectives, and the others are captures") as raised:
        tk.load_many([FIXTURES / "nccl" / "captures", FIXTURES / "nccl" / "logs"])
    assert "join_logs(load_many(logs))" in (raised.value.hint or "")


def test_files_that_are_not_compressed_are_not_to_be_decompressed(tmp_path: Path) -> None:
    """A damaged session of the NVIDIA Visual Profiler, which no reader recognizes, with and without compression."""
    content = b"<?xml version='1.0'?><session><unknown/></session>"
    hints = []
    for name, data in (("plain", content), ("packed", gzip.compress(content))):
        path = tmp_path / name
        path.write_bytes(data)
        described = foreign_files.describe_foreign_file(Source(path))
        assert described is not None
        hints.append(described.hint)
    assert hints[0].startswith("choose its format with format= or --from")
    assert hints[1] == "decompress it first: gunzip FILE"


@pytest.mark.parametrize(
    ("name", "one", "three"),
    [
        ("arguments of API calls", "1 argument of API calls", "3 arguments of API calls"),
        ("events without valid times", "1 event without valid times", "3 events without valid times"),
        (
            "ends of slices without a beginning",
            "1 end of slices without a beginning",
            "3 ends of slices without a beginning",
        ),
        ("activities of the type X", "1 activity of the type X", "3 activities of the type X"),
        (
            "sample of a counter without its time",
            "1 sample of a counter without its time",
            "3 samples of a counter without its time",
        ),
        ("memory map", "1 memory map", "3 memory map events"),
        ("NVTX_EVENTS", "1 row of NVTX_EVENTS", "3 rows of NVTX_EVENTS"),
        ("process", "1 process", "3 process events"),
    ],
)
def test_classes_of_events_are_counted_in_words(name: str, one: str, three: str) -> None:
    assert (format_class(name, 1), format_class(name, 3)) == (one, three)


def test_numbers_of_things() -> None:
    assert format_count(1, "event", "do not match", "does not match") == "1 event does not match"
    assert format_count(1200, "event", "do not match", "does not match") == "1,200 events do not match"
    assert format_count(0, "call or range", plural="calls and ranges") == "0 calls and ranges"


def test_memory_stays_in_use_until_the_last_change() -> None:
    with tk.load(SNAPSHOT) as trace:
        lines = [
            line for line in trace.plot.memory_usage().data if line.mode == "lines" and line.customdata is not None
        ]
    assert {line.x[-1] for line in lines} == {max(max(line.x) for line in lines)}
    assert len(lines) == 2
