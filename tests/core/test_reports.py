"""Reports against what ``nsys stats`` printed, against brute force, and at their edges."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tracekit
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from tests.builders.reports import REPORTS_OF_NSYS, compute_report
from tracekit import schemas
from tracekit.core.reports import Frames, ReportTable
from tracekit.core.reports import nvtx as nvtx_reports
from tracekit.core.trees import MAX_LEVELS
from tracekit.errors import UnknownFormatError
from tracekit.registry.analyses import REPORT, list_analyses

FIXTURES = Path(__file__).parents[2] / "fixtures"
CAPTURES = sorted((p.stem for p in FIXTURES.glob("*.sqlite")), key=len, reverse=True)
GOLDEN = sorted((FIXTURES / "stats").glob("*.csv"))
OLD_NAMES = {old: report.name for report in list_analyses(REPORT).values() for old in report.old_names}
NEW = [{"name": "tool_version", "value": "2025.3.2.0"}]
Row = dict[str, Any]


def capture_and_report(golden: Path) -> tuple[str, str]:
    capture = next(c for c in CAPTURES if golden.stem.startswith(f"{c}_"))
    return capture, golden.stem.removeprefix(f"{capture}_")


def printed(report: ReportTable) -> str:
    sink = io.BytesIO()
    report.csv(sink)
    return sink.getvalue().decode()


def lines(report: ReportTable) -> list[str]:
    return printed(report).splitlines()[1:]


def frames(**tables: list[Row]) -> Frames:
    """Give declared tables with these rows; what a row leaves out is null, or 0 or "push_pop" where null may not be."""

    def frame(name: str) -> pl.LazyFrame:
        schema = schemas.table(name)
        zero = {c.name: None if c.nullable else "push_pop" if c.values else 0 for c in schema.columns}
        numbered = [zero | {schema.columns[0].name: i} | row for i, row in enumerate(tables.get(name, []), 1)]
        return pl.LazyFrame(numbered, schema=schemas.polars_schema(schema))

    return frame


def of(name: str, **tables: list[Row]) -> ReportTable:
    return compute_report(frames(capture_info=NEW, **tables), name)


def kernel(start: int, end: int, name: str | None = "k", **more: Any) -> Row:
    return {"start_ns": start, "end_ns": end, "name": name, "process_id": 7, "correlation_id": 1, **more}


def call(start: int, end: int, name: str = "cudaLaunchKernel_v7000", **more: Any) -> Row:
    thread = {"process_id": 7, "thread_id": 1, "correlation_id": 1, "name_id": 1}
    return {"start_ns": start, "end_ns": end, "name": name, **thread, **more}


def nvtx(start: int, end: int | None, name: str | None = "r", **more: Any) -> Row:
    return {"start_ns": start, "end_ns": end, "name": name, "process_id": 7, "thread_id": 1, **more}


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda p: p.stem)
def test_prints_what_nsys_prints(golden: Path) -> None:
    capture, name = capture_and_report(golden)
    with tracekit.load(FIXTURES / f"{capture}.sqlite") as trace:
        report = compute_report(trace.frame, name)
        assert printed(report).encode() == golden.read_bytes()
        shown = report.frame()
        assert ",".join(shown.columns) == golden.read_text("utf-8").partition("\n")[0]
        assert shown.height == report.rows
        assert all(d in (pl.Int64, pl.Float64, pl.String, pl.Categorical) for d in shown.dtypes)


def test_every_report_has_a_golden_file() -> None:
    modules = {n: str(list_analyses(REPORT)[n].compute).partition(":")[0] for n in REPORTS_OF_NSYS}
    without = {n for n, module in modules.items() if module.endswith((".graphics", ".network", ".wddm"))}
    assert len(without) == 13
    assert {capture_and_report(g)[1] for g in GOLDEN} >= modules.keys() - without - {"syscall_sum"}


@pytest.mark.parametrize("name", REPORTS_OF_NSYS)
def test_nothing_recorded_prints_nothing(name: str) -> None:
    report = list_analyses(REPORT)[name]
    for options in ["", *(f":{o.name}" for o in report.options if o.type == "flag")]:
        empty = compute_report(frames(), name + options)
        assert printed(empty) == ""
        assert empty.frame().columns == [c.name for c in report.columns]
    assert report.doc.endswith(".")


@pytest.mark.parametrize("old", OLD_NAMES)
def test_old_names(old: str) -> None:
    assert compute_report(frames(), old).name == OLD_NAMES[old]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nonsense", "unknown report 'nonsense'\nHint: choose one of these reports: nvtx_startend_sum, "),
        (
            "um_sum:rows=0",
            (
                "report 'um_sum': 0 is not a valid value of the option 'rows'\n"
                "Hint: set rows to an integer from 1 to 999999999"
            ),
        ),
        ("um_sum:rows=1e3", "'1e3' is not a valid value of the option 'rows'"),
        ("um_sum:rows", "'' is not a valid value of the option 'rows'"),
        ("network_congestion:ticks_threshold=-1", "Hint: set ticks_threshold to an integer from 0 to 999999999"),
        ("um_sum:row=2", "report 'um_sum' has no option 'row'\nHint: did you mean 'rows'?"),
        ("nvtx_sum:base", "report 'nvtx_sum' has no option 'base'\nHint: the report has no options"),
        ("nvtx_kern_sum:nvtx-name", "has no option 'nvtx-name'\nHint: choose one of these options: base, mangled"),
        (
            "gpukernsum:base:mangled",
            (
                "report 'cuda_gpu_kern_sum': options 'base' and 'mangled' are mutually exclusive\n"
                "Hint: use either base or mangled"
            ),
        ),
    ],
)
def test_unknown_reports_and_options(name: str, message: str) -> None:
    with pytest.raises(UnknownFormatError) as e:
        compute_report(frames(), name)
    assert message in str(e.value)


@pytest.mark.parametrize(
    ("version", "average"),
    [
        ("2025.3.2.0", "3.0"),
        ("2024.5", "3.0"),
        ("2024.4.9", "3.1"),
        ("2023.9.1", "3.1"),
        ("beta", "3.1"),
        (None, "3.1"),
    ],
)
def test_versions_round_alike_or_not(version: str | None, average: str) -> None:
    durations = [3] * 19 + [4]  # 3.05, which is a little less as a double
    rows = frames(capture_info=[{"name": "tool_version", "value": version}], kernels=[kernel(0, d) for d in durations])
    assert compute_report(rows, "cuda_gpu_kern_sum").frame()["Avg (ns)"].item() == float(average)


def test_unknown_version_rounds_as_old() -> None:
    assert (
        compute_report(frames(kernels=[kernel(0, 3)] * 19 + [kernel(0, 4)]), "gpukernsum").frame()["Avg (ns)"].item()
        == 3.1
    )


def test_kernel_ties_and_missing_names() -> None:
    rows = [
        kernel(0, 10, "b"),
        kernel(0, 10, "a"),
        kernel(0, 5, None),
        kernel(0, 5, None),
        kernel(0, 4, "Z"),
        kernel(9, 9, "z"),
    ]
    assert lines(of("cuda_gpu_kern_sum", kernels=rows)) == [
        "29.4,10,1,10.0,10.0,10,10,0.0,a",
        "29.4,10,1,10.0,10.0,10,10,0.0,b",
        "29.4,10,2,5.0,5.0,5,5,0.0,",
        "11.8,4,1,4.0,4.0,4,4,0.0,Z",
        "0.0,0,1,0.0,0.0,0,0,0.0,z",
    ]


def test_no_time_has_no_share() -> None:
    assert lines(of("cuda_gpu_kern_sum", kernels=[kernel(5, 5)])) == [",0,1,0.0,0.0,0,0,0.0,k"]


def test_grid_and_block() -> None:
    sizes = {"grid_x": 12345, "grid_y": 1, "grid_z": 1, "block_x": 128, "block_y": 1, "block_z": 1}
    rows = [kernel(0, 10, "a,b", **sizes), kernel(0, 10, "a,b", **sizes | {"grid_x": 2})]
    assert lines(of("cuda_gpu_kern_gb_sum", kernels=rows)) == [
        '50.0,10,1,10.0,10.0,10,10,0.0,   2    1    1, 128    1    1,"a,b"',
        '50.0,10,1,10.0,10.0,10,10,0.0,12345    1    1, 128    1    1,"a,b"',
    ]


def test_kernel_names_by_option() -> None:
    rows = [kernel(0, 10, "f<int>(int)", short_name="f", mangled_name="_Z1f"), kernel(0, 5, "g()")]
    shown = {
        o: [n.split(",")[-1] for n in lines(of(f"cuda_gpu_kern_sum{o}", kernels=rows))]
        for o in ("", ":base", ":mangled")
    }
    assert shown == {"": ["f<int>(int)", "g()"], ":base": ["f", "g()"], ":mangled": ["_Z1f", "g()"]}


def test_nvtx_names() -> None:
    tables = {
        "kernels": [
            kernel(50, 60, "k", short_name="s"),
            kernel(50, 60, None, correlation_id=2),
            kernel(50, 60, "k", correlation_id=3),
            kernel(50, 60, "k", correlation_id=4),
            kernel(50, 60, "k", correlation_id=9),
        ],
        "api_calls": [
            call(1, 3),
            call(3, 4, correlation_id=2),
            call(11, 12, correlation_id=3),
            call(5, 6, correlation_id=4),
        ],
        "nvtx_ranges": [
            nvtx(0, 10, "outer", domain="d"),
            nvtx(1, 4, "inner", domain="d"),
            nvtx(1, 20, "twin start, later row"),
            nvtx(5, 6, None),
        ],
    }
    names = lambda option: [n.rpartition(",0.0,")[2] for n in lines(of(f"cuda_gpu_kern_sum:{option}", **tables))]  # noqa: E731
    assert names("nvtx-name") == ["k", '"twin start, later row/k"', ""]
    assert names("nvtx-name:base") == ["k", "", '"twin start, later row/k"', '"twin start, later row/s"']
    assert lines(of("cuda_gpu_sum:nvtx-name", kernels=tables["kernels"], memcpys=[{"copy_kind": "X"}])) == []


def test_categories() -> None:
    tables = {
        "api_calls": [call(0, 9, "same"), call(0, 1, "f_v7000"), call(0, 2, "f_v3020", name_id=2)],
        "kernels": [kernel(0, 9, "same"), kernel(0, 3, "f")],
        "memcpys": [{"end_ns": 2, "copy_kind": "Host-to-Device"}, {"end_ns": 99}],
        "memsets": [{"end_ns": 1}],
    }
    assert lines(of("cuda_api_gpu_sum", **tables)) == [
        "66.7,18,2,9.0,9.0,9,9,0.0,CUDA_API,same",
        "22.2,6,3,2.0,2.0,1,3,1.0,CUDA_KERNEL,f",
        "7.4,2,1,2.0,2.0,2,2,0.0,MEMORY_OPER,[CUDA memcpy Host-to-Device]",
        "3.7,1,1,1.0,1.0,1,1,0.0,MEMORY_OPER,[CUDA memset]",
    ]
    assert len(lines(of("cuda_gpu_sum", **tables))) == 4


def test_memory_sizes() -> None:
    copies = [{"copy_kind": "Device-to-Host", "bytes": b} for b in (1_000_500, 2_000_500, 0)]
    assert lines(of("cuda_gpu_mem_size_sum", memcpys=copies, memsets=[{"bytes": 4096}])) == [
        "3.001,3,1.000,1.000,0.000,2.001,1.000,[CUDA memcpy Device-to-Host]".replace("2.001", f"{2.0005:.3f}"),
        "0.004,1,0.004,0.004,0.004,0.004,0.000,[CUDA memset]",
    ]


def test_memory_times_of_one_kind_without_label() -> None:
    assert lines(of("cuda_gpu_mem_time_sum", memcpys=[{"end_ns": 5}])) == []


def test_gpu_trace() -> None:
    place = {"device_id": 0, "context_id": 1, "green_context_id": 0, "stream_id": 7}
    copy = {"copy_kind": "Host-to-Device", "src_memory_kind": "Pinned", "dst_memory_kind": "Device", "bytes": 3_000_000}
    tables = {
        "kernels": [kernel(20, 30, "late"), kernel(10, 30, "k", grid_x=1, static_shared_memory_bytes=49_152, **place)],
        "memcpys": [
            {"start_ns": 10, "end_ns": 600_000_010, **copy},
            {"start_ns": 10, "end_ns": 10, "device_id": 5, "bytes": 8},
        ],
        "memsets": [{"start_ns": 10, "end_ns": 2_000_000_010, "bytes": 64, "memory_kind": "Device", "device_id": 3}],
        "devices": [{"device_id": 0, "name": "GPU, big"}, {"device_id": 3}],
    }
    assert lines(of("cuda_gpu_trace", **tables)) == [
        '10,20,1,1,,,,,,,0.049,,,,,,"GPU, big (0)",1,,7,k',
        '10,600000000,,,,,,,,,,,3.000,3.000,Pinned,Device,"GPU, big (0)",,,,[CUDA memcpy Host-to-Device]',
        "10,0,,,,,,,,,,,0.000,,,, (5),,,,",
        "10,2000000000,,,,,,,,,,,0.000,0.000,Device,, (3),,,,[CUDA memset]",
        '20,10,1,,,,,,,,,,,,,,"GPU, big (0)",,,,late',
    ]


def test_a_device_listed_twice_doubles_its_rows() -> None:
    twice = [{"device_id": 0, "name": "A"}, {"device_id": 0, "name": "B"}]
    assert [r.split(",")[16] for r in lines(of("cuda_gpu_trace", kernels=[kernel(0, 1)], devices=twice))] == [
        "A (0)",
        "B (0)",
    ]


def test_api_sum_groups_by_id_and_cuts_versions() -> None:
    rows = [
        call(0, 5, "f_v7000", name_id=9),
        call(0, 5, "f_v3020", name_id=4),
        call(0, 1, "cuMemcpyHtoDAsync_v2", name_id=2),
        call(0, 0, "_v7000", name_id=1),
        call(0, 0, "v70", name_id=3),
        {**call(0, 0), "name": None, "name_id": 5},
    ]
    assert [r.split(",")[-1] for r in lines(of("cuda_api_sum", api_calls=rows))] == [
        "f",
        "f",
        "cuMemcpyHtoDAsync_v2",
        "",
        "v70",
        "",
    ]


def test_api_trace_has_a_line_for_each_name_of_the_thread() -> None:
    rows = [call(5, 6, return_value=2), call(1, 2, thread_id=2), call(1, 3, thread_id=None)]
    threads = [{"process_id": 7, "thread_id": 1, "name": n, "priority": 20} for n in ("main", "worker")]
    assert lines(of("cuda_api_trace", api_calls=rows, threads=threads)) == [
        "1,1,cudaLaunchKernel,,1,7,2,,",
        "1,2,cudaLaunchKernel,,1,7,,,",
        "5,1,cudaLaunchKernel,2,1,7,1,20,main",
        "5,1,cudaLaunchKernel,2,1,7,1,20,worker",
    ]


def test_osrt_counts_traced_calls() -> None:
    rows = [{"end_ns": 5, "event_class": c, "name": "poll_v7000", "name_id": 1} for c in (27, 27, 28)]
    assert lines(of("osrt_sum", osrt_calls=rows)) == ["100.0,10,2,5.0,5.0,5,5,0.0,poll_v7000"]


def test_executions() -> None:
    tables = {
        "kernels": [
            kernel(30, 50, "late"),
            kernel(10, 50, "at once"),
            kernel(5, 8, "before the call ends"),
            kernel(0, 9, "no call", correlation_id=3),
            kernel(0, 9, "other process", process_id=8),
        ],
        "api_calls": [call(0, 10), call(0, 1, "unused", correlation_id=2)],
    }
    assert lines(of("cuda_kern_exec_trace", **tables)) == [
        "0,10,10,20,30,20,50,7,1,0,cudaLaunchKernel,,,late",
        "0,10,10,0,10,40,50,7,1,0,cudaLaunchKernel,,,at once",
        "0,10,,,5,3,10,7,1,0,cudaLaunchKernel,,,before the call ends",
    ]
    call_of_10 = "10.0,10.0,10,10,0.0"
    assert lines(of("cuda_kern_exec_sum", **tables)) == [
        f"7,1,0,1,1,50.0,50.0,50,50,0.0,{call_of_10},0.0,0.0,0,0,0.0,40.0,40.0,40,40,0.0,cudaLaunchKernel,at once",
        f"7,1,0,1,1,50.0,50.0,50,50,0.0,{call_of_10},20.0,20.0,20,20,0.0,20.0,20.0,20,20,0.0,cudaLaunchKernel,late",
        f"7,1,0,1,0,{call_of_10},{call_of_10},,,,,0.0,3.0,3.0,3,3,0.0,cudaLaunchKernel,before the call ends",
    ]


def test_execution_sums_tie_by_the_rounded_average() -> None:
    ends = [("b", [10] * 999 + [11]), ("a", [10] * 1000)]
    kernels = [kernel(0, e, name) for name, times in ends for e in times]
    shown = lines(of("cuda_kern_exec_sum", kernels=kernels, api_calls=[call(0, 1)]))
    assert [r.rpartition(",")[2] for r in shown] == ["a", "b"]


def test_range_sums_end_open_ranges_with_the_last_event() -> None:
    ranges = [
        nvtx(0, 10, "a"),
        nvtx(5, None, "b"),
        nvtx(2, 8, "a", kind="start_end", end_thread_id=3),
        nvtx(0, 2, None, domain="d"),
    ]
    assert lines(of("nvtx_sum", nvtx_ranges=ranges, nvtx_marks=[{"timestamp_ns": 30}])) == [
        "58.1,25,1,25.0,25.0,25,25,0.0,PushPop,:b",
        "23.3,10,1,10.0,10.0,10,10,0.0,PushPop,:a",
        "14.0,6,1,6.0,6.0,6,6,0.0,StartEnd,:a",
        "4.7,2,1,2.0,2.0,2,2,0.0,PushPop,d:",
    ]
    assert lines(of("nvtx_startend_sum", nvtx_ranges=ranges)) == ["100.0,6,1,6.0,6.0,6,6,0.0,:a"]
    assert [r[-2:] for r in lines(of("nvtx_pushpop_sum", nvtx_ranges=ranges))] == [":a", ":b", "d:"]


def test_ranges_with_equal_labels_are_one_row() -> None:
    ranges = [nvtx(0, 10, "b:c", domain="a"), nvtx(0, 30, "c", domain="a:b"), nvtx(0, 5, None), nvtx(0, 7, "")]
    shown = of("nvtx_pushpop_sum", nvtx_ranges=ranges).frame()
    assert shown.select("Range", "Instances", "Total Time (ns)").rows() == [("a:b:c", 2, 40), (":", 2, 12)]


def test_ranges_of_which_none_ends_have_no_duration() -> None:
    assert lines(of("nvtx_sum", nvtx_ranges=[nvtx(0, None)])) == [",,1,,,,,0.0,PushPop,:r"]
    assert lines(of("nvtx_pushpop_trace", nvtx_ranges=[nvtx(0, None)])) == ["0,,,0,,:r,7,1,0,0,1,,:1,:r"]


def test_range_stacks_of_deep_ranges_have_the_outermost_ids() -> None:
    ranges = [nvtx(n, 2000 - n, range_id=n) for n in range(MAX_LEVELS + 3)]
    stacks = [line.split(",")[-2] for line in lines(of("nvtx_pushpop_trace", nvtx_ranges=ranges))]
    outermost = "".join(f":{n}" for n in range(MAX_LEVELS - 1))
    assert stacks[MAX_LEVELS - 2 : MAX_LEVELS] == [outermost, f"{outermost}:{MAX_LEVELS - 1}"]
    assert stacks[MAX_LEVELS:] == [f"{outermost}:…:{MAX_LEVELS + n}" for n in range(3)]


def test_pushpop_trace() -> None:
    ranges = [
        nvtx(0, 20, "root"),
        nvtx(0, 5, "child, first"),
        nvtx(5, None, "open", domain="d"),
        nvtx(0, 20, "other thread", thread_id=2),
        nvtx(1, 2, "start/end", kind="start_end"),
        nvtx(30, 40, "twin"),
        nvtx(30, 40, "twin"),
        nvtx(31, 32, "below twins"),
        nvtx(50, 60, "no thread", thread_id=None),
    ]
    assert lines(of("nvtx_pushpop_trace", nvtx_ranges=ranges)) == [
        '0,5,5,0,5,":child, first",7,1,1,0,2,1,:1:2,"--:child, first"',
        "0,20,20,5,15,:root,7,1,0,1,1,,:1,:root",
        "0,20,20,0,20,:other thread,7,2,0,0,4,,:4,:other thread",
        "5,60,55,0,55,d:open,7,1,0,0,3,,:3,d:open",
        "50,60,10,0,10,:no thread,7,,0,0,9,,:9,:no thread",
    ]


def test_twins_have_no_place_in_the_tree() -> None:
    tables = {
        "nvtx_ranges": [nvtx(0, 10, "t"), nvtx(0, 10, "t"), nvtx(1, 5, "below")],
        "api_calls": [call(2, 3)],
        "kernels": [kernel(7, 9)],
    }
    assert lines(of("nvtx_pushpop_trace", **tables)) == []
    assert lines(of("nvtx_gpu_proj_trace", **tables)) == [
        ":t,7,2,0,10,PushPop,7,1,1,,2,1,,",
        ":t,7,2,0,10,PushPop,7,1,1,,1,2,,",
        ":below,7,2,1,4,PushPop,7,1,1,,0,3,,",
    ]
    assert lines(of("nvtx_gpu_proj_sum", **tables)) == [
        ":t,PushPop,4,20,2,2.0,2.0,2,2,0.0,2,1.0,,1.5",
        ":below,PushPop,2,4,1,2.0,2.0,2,2,0.0,1,1.0,,0.0",
    ]


def test_kernels_in_no_range_and_of_no_call() -> None:
    tables = {
        "nvtx_ranges": [
            nvtx(0, 10, "a"),
            nvtx(0, 20, "a"),
            nvtx(0, 99, "crosses threads", kind="start_end", end_thread_id=4),
        ],
        "api_calls": [call(0, 10), call(30, 31, correlation_id=2), call(30, 31, correlation_id=2, thread_id=None)],
        "kernels": [kernel(0, 4), kernel(0, 5, "out", correlation_id=2), kernel(0, 6, "lost", correlation_id=3)],
    }
    assert lines(of("nvtx_kern_sum", **tables)) == [
        ",,,,0,1,6,6.0,6.0,6,6,0.0,lost",
        ",,7,,0,1,5,5.0,5.0,5,5,0.0,out",
        ",,7,1,0,1,5,5.0,5.0,5,5,0.0,out",
        ":a,PushPop,7,1,2,1,8,4.0,4.0,4,4,0.0,k",
    ]
    assert lines(of("nvtx_kern_sum", **tables | {"nvtx_ranges": []})) == []
    assert lines(of("nvtx_kern_sum", **tables | {"api_calls": []})) == []


small = st.integers(0, 9)
threads = st.fixed_dictionaries({"process_id": st.sampled_from([7, 8]), "thread_id": st.sampled_from([1, 2])})


def spans(
    length: st.SearchStrategy[int | None] = small, **more: st.SearchStrategy[Any]
) -> st.SearchStrategy[list[Row]]:
    def row(start: int, length: int | None, thread: Row, more: Row) -> Row:
        return {"start_ns": start, "end_ns": None if length is None else start + length, **thread, **more}

    return st.lists(st.builds(row, small, length, threads, st.fixed_dictionaries(more)), max_size=9)


correlation = st.sampled_from([1, 2, 3, None])
word = st.sampled_from(["a", "b"])
kinds = st.sampled_from(["push_pop", "start_end"])
all_ranges = spans(small | st.none(), name=word, kind=kinds, end_thread_id=st.sampled_from([None, None, None, 9]))
all_calls = spans(correlation_id=correlation, name=st.just("f"), name_id=st.just(1))
gpu_rows = spans(correlation_id=correlation, name=word).map(lambda rows: [{**r, "thread_id": None} for r in rows])


def owners(ranges: list[Row]) -> dict[int, Row]:
    """The ranges that GPU work can belong to, by id, with ends."""
    ends = [r["end_ns"] for r in ranges if r["end_ns"] is not None]
    latest = max([r["start_ns"] for r in ranges] + ends) if ends else None
    closed = {i: {**r, "end_ns": latest if r["end_ns"] is None else r["end_ns"]} for i, r in enumerate(ranges, 1)}
    return {i: r for i, r in closed.items() if r["end_thread_id"] is None and r["end_ns"] is not None}


def around(c: Row, ranges: dict[int, Row]) -> list[int]:
    """The ranges that contain a call."""
    same = {i: r for i, r in ranges.items() if (r["process_id"], r["thread_id"]) == (c["process_id"], c["thread_id"])}
    return [i for i, r in same.items() if r["start_ns"] <= c["start_ns"] and r["end_ns"] >= c["end_ns"]]


def launches(rows: list[Row], calls: list[Row]) -> list[tuple[int, Row, Row]]:
    """Every pair of GPU work (with its number) and a call that launched it."""
    link = lambda r: (r["process_id"], r["correlation_id"])  # noqa: E731
    pairs = itertools.product(enumerate(rows), calls)
    return [(i, g, c) for (i, g), c in pairs if g["correlation_id"] is not None and link(g) == link(c)]


@given(all_ranges, all_calls, gpu_rows, gpu_rows)
def test_projection_by_brute_force(ranges: list[Row], calls: list[Row], kernels: list[Row], sets: list[Row]) -> None:
    sets = [{k: v for k, v in s.items() if k not in ("name", "thread_id")} for s in sets]
    kernels = [{k: v for k, v in s.items() if k != "thread_id"} for s in kernels]
    got = of("nvtx_gpu_proj_trace", nvtx_ranges=ranges, api_calls=calls, kernels=kernels, memsets=sets)
    known, want = owners(ranges), {}
    for _, g, c in launches(kernels + sets, calls):
        for i in around(c, known):
            want.setdefault(i, []).append((g["start_ns"], g["end_ns"], g["correlation_id"]))
    expected = [
        (i, min(s for s, _, _ in w), max(e for _, e, _ in w) - min(s for s, _, _ in w), len({n for _, _, n in w}))
        for i, w in sorted(want.items())
    ]
    shown = got.frame().select("RangeId", "Projected Start (ns)", "Projected Duration (ns)", "NumGPUOps")
    assert shown.rows() == expected


@given(all_ranges, all_calls, gpu_rows)
def test_kernels_by_range_by_brute_force(ranges: list[Row], calls: list[Row], kernels: list[Row]) -> None:
    kernels = [{k: v for k, v in s.items() if k != "thread_id"} for s in kernels]
    got = of("nvtx_kern_sum", nvtx_ranges=ranges, api_calls=calls, kernels=kernels)
    known, pairs = owners(ranges), launches(kernels, calls)
    want: dict[tuple[Any, ...], list[tuple[int | None, int, int]]] = {}
    for i, g, c in pairs:
        for r in around(c, known) or [None]:
            tag, kind = (None, None) if r is None else (":" + ranges[r - 1]["name"], ranges[r - 1]["kind"])
            key = (
                tag,
                {"push_pop": "PushPop", "start_end": "StartEnd"}.get(kind),
                c["process_id"],
                c["thread_id"],
                g["name"],
            )
            want.setdefault(key, []).append((r, i, g["end_ns"] - g["start_ns"]))
    for i, g in enumerate(kernels):
        if i not in {p[0] for p in pairs}:
            want.setdefault((None, None, None, None, g["name"]), []).append((None, i, g["end_ns"] - g["start_ns"]))
    expected = {
        (*k, len({r for r, _, _ in w} - {None}), len({i for _, i, _ in w}), sum(d for _, _, d in w))
        for k, w in want.items()
    }
    columns = ("NVTX Range", "Style", "PID", "TID", "Kernel Name", "NVTX Inst", "Kern Inst", "Total Time (ns)")
    assert set(got.frame().select(columns).rows()) == (expected if ranges and calls else set())


@given(all_ranges, all_calls, gpu_rows, st.integers(1, 3))
def test_copied_events_are_summed_alike(ranges: list[Row], calls: list[Row], kernels: list[Row], copies: int) -> None:
    kernels = [{k: v for k, v in s.items() if k != "thread_id"} for s in kernels]
    tables = {"nvtx_ranges": ranges * copies, "api_calls": calls * copies, "kernels": kernels * copies}
    shown = []
    for limit in (-1, 1 << 40):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(nvtx_reports, "_MAX_PAIRS_PER_KERNEL", limit)
            shown.append(of("nvtx_kern_sum", **tables).frame())
    assert_frame_equal(*shown)


def test_many_copies_of_events() -> None:
    """All pairs of these ranges, calls and kernels would take more memory than any machine has."""
    copies, thread = 2000, {"process_id": 7, "thread_id": 1}
    ranges = [{"start_ns": 0, "end_ns": 100 + i, "name": "r", "kind": "push_pop", **thread} for i in (0, 1)]
    calls = [{"start_ns": 10, "end_ns": 20, "correlation_id": 1, "name": "f", "name_id": 1, **thread}]
    tables = {"nvtx_ranges": ranges * copies, "api_calls": calls * copies}
    tables["kernels"] = [kernel(30, 40), kernel(50, 90)] * copies
    row = of("nvtx_kern_sum", **tables).frame().row(0, named=True)
    assert (row["NVTX Inst"], row["Kern Inst"]) == (2 * copies, 2 * copies)
    assert row["Total Time (ns)"] == 50 * 2 * copies**3
    assert (row["Avg (ns)"], row["Med (ns)"], row["Min (ns)"], row["Max (ns)"]) == (25.0, 25.0, 10, 40)
    assert row["StdDev (ns)"] == 15.0
    projected = of("nvtx_gpu_proj_sum", **tables).frame().row(0, named=True)
    assert (projected["Range Instances"], projected["Total GPU Ops"]) == (2 * copies, 2 * copies)


@given(all_ranges, all_calls, gpu_rows)
def test_nvtx_names_by_brute_force(ranges: list[Row], calls: list[Row], kernels: list[Row]) -> None:
    kernels = [{k: v for k, v in s.items() if k != "thread_id"} for s in kernels]
    got = of("cuda_gpu_trace:nvtx-name", nvtx_ranges=ranges, api_calls=calls, kernels=kernels)
    known, inside = owners(ranges), {}
    for i, _, c in launches(kernels, calls):
        inside.setdefault(i, []).extend((known[r]["start_ns"], r) for r in around(c, known))
    names = [(g["start_ns"], i, g["name"]) for i, g in enumerate(kernels)]
    expected = [
        f"{ranges[max(found)[1] - 1]['name']}/{name}" if (found := inside.get(i)) else name
        for _, i, name in sorted(names)
    ]
    assert got.frame()["Name"].to_list() == (expected if ranges and calls else [])


def event(kind: str, start: int, end: int, name: str = "f", **more: Any) -> Row:
    thread = {"process_id": 7, "thread_id": 1}
    return {"kind": kind, "start_ns": start, "end_ns": end, "name": name, "name_id": 1, **thread, **more}


def test_openacc_events_are_grouped_by_place() -> None:
    rows = [event("data", 0, 5, "Upload", source_file="a.c", line=3), event("other", 5, 25, "Wait")]
    rows += [event("launch", 30, 40, "Upload", source_file="a.c", line=3), event("data", 1, 2, "Upload")]
    assert lines(of("openacc_sum", openacc_events=rows)) == [
        "55.6,20,1,20.0,20.0,20,20,0.0,Wait",
        "41.7,15,2,7.5,7.5,5,10,3.5,Upload@a.c:3",
        "2.8,1,1,1.0,1.0,1,1,0.0,Upload",
    ]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("vulkan_marker_sum", "vulkan_debug"), ("dx11_pix_sum", "dx11_pix"), ("dx12_pix_sum", "dx12_pix")],
)
def test_two_calls_delimit_a_debug_range(name: str, kind: str) -> None:
    def begin(number: int, start: int, end: int, text: str) -> Row:
        return event(kind, start, end, correlation_id=number, text=text, text_id=ord(text))

    def finish(number: int, start: int, **more: Any) -> Row:
        return {**event(kind, start, start + 50, correlation_id=number), **more}

    rows = [
        begin(1, 0, 2, "b"),
        begin(2, 5, 6, "a"),
        finish(2, 10),
        finish(1, 20),
        begin(3, 30, 31, "b"),
        finish(3, 33),
    ]
    rows += [begin(4, 40, 41, "n"), finish(5, 99), {**begin(6, 0, 1, "a"), "thread_id": 2}, finish(6, 9)]
    rows += [begin(7, 60, 64, "z"), finish(7, 62)]
    assert lines(of(name, graphics_calls=rows)) == [
        "90.9,20,2,10.0,10.0,2,18,11.3,b",
        "18.2,4,1,4.0,4.0,4,4,0.0,a",
    ]


@pytest.mark.parametrize(("name", "kind"), [("vulkan_gpu_marker_sum", "vulkan"), ("dx12_gpu_marker_sum", "dx12")])
def test_gpu_workloads_are_grouped_by_text(name: str, kind: str) -> None:
    texts = {"text": "a", "text_id": 2}, {"text": "b", "text_id": 1}, {"text": "empty", "text_id": 3}
    rows = [event(kind, 0, 4, **texts[0]), event(kind, 4, 5, **texts[1]), event(kind, 5, 8, **texts[1])]
    rows += [event(kind, 0, 9), event("opengl", 0, 9, **texts[0]), event(kind, 7, 7, **texts[2])]
    report = of(name, graphics_workloads=rows)
    assert report.frame().columns[2] == "Instances"
    assert lines(report) == ["50.0,4,2,2.0,2.0,1,3,1.4,b", "50.0,4,1,4.0,4.0,4,4,0.0,a"]


def test_calls_of_graphics_and_video() -> None:
    calls = [event("vulkan", 6, 8, "vkB_v3020", name_id=2, event_class_id=53, context_id=4, correlation_id=5)]
    calls += [event("vulkan", 1, 2, "vkA", event_class_id=53), event("vulkan", 9, 11, "vkC", event_class_id=60)]
    calls += [event("jpeg", 0, 1, "decode"), event("dx12", 0, 1), event("video_encoder", 0, 3, "encode")]
    threads = [{"process_id": 7, "thread_id": 1, "name": "main", "priority": 3}]
    tables = {"graphics_calls": calls, "threads": threads}
    assert lines(of("vulkan_api_sum", **tables)) == [
        "66.7,2,1,2.0,2.0,2,2,0.0,vkB",
        "33.3,1,1,1.0,1.0,1,1,0.0,vkA",
    ]
    assert lines(of("vulkan_api_trace", **tables)) == [
        "1,1,vkA,53,,,7,1,3,main",
        "6,2,vkB_v3020,53,4,5,7,1,3,main",
        "9,2,vkC,60,,,7,1,3,main",
    ]
    assert lines(of("nvvideo_api_sum", **tables)) == [
        "75.0,3,1,3.0,3.0,3,3,0.0,Encoder,encode",
        "25.0,1,1,1.0,1.0,1,1,0.0,JPEG,decode",
    ]


def test_reports_name_the_columns_that_are_their_point() -> None:
    with tracekit.load(FIXTURES / "train_amp.sqlite") as trace:
        kernels, advice, types = (trace.report(name) for name in ("cuda_gpu_kern_sum", "advise", "op-type"))
    assert set(kernels.key_titles) <= set(kernels.frame().columns)
    assert "Name" in kernels.key_titles
    assert (kernels.machine_titles, advice.machine_titles, types.machine_titles) == ([], ["Figures"], [])
    assert types.key_titles
