"""A Chrome trace of a set: a group of processes for each rank, on one clock, with arrows between them."""

from __future__ import annotations

import json
import re
import warnings
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tracekit as tk
from tests.builders.ranks import kernel, nccl_init, write_capture
from tests.conftest import ALL, FIXTURES, SHARED
from tracekit.errors import ExportError, TracekitWarning
from tracekit.sets import timeline

MORE = SHARED / "captures" / "h200_more"
needs_more = pytest.mark.skipif(not MORE.is_dir(), reason="no captures beside the checkout")
Row = dict[str, Any]

pytestmark = pytest.mark.filterwarnings("ignore:.*kernels cannot be found:tracekit.TracekitWarning")
"""The captures that these tests write contain kernels without calls."""


def write(traces: tk.TraceSet, folder: Path, **options: Any) -> Row:
    path = traces.export(folder / "trace.json", overwrite=True, **options)
    written: Row = json.loads(path.read_text("utf-8"))
    return written


def ns(event: Row, key: str = "ts") -> int:
    """A time of an event, which is in µs."""
    whole, _, rest = event[key].partition(".") if isinstance(event[key], str) else (str(event[key]), "", "")
    return int(whole) * 1000 + int(rest or 0)


def load(path: Path) -> Row:
    """Times as strings, because JSON numbers would be rounded."""
    written: Row = json.loads(path.read_text("utf-8"), parse_float=str, parse_int=str)
    return written


def events_of(written: Row, phase: str) -> list[Row]:
    return [e for e in written["traceEvents"] if e["ph"] == phase]


def collective(rank: int, start: int, origin: str | None) -> dict[str, list[Row]]:
    """A capture in which a rank starts a collective, whose kernel ends at time 5000 of rank 0."""
    payload = '{"NCCL communicator ID":7,"Message size [bytes]":64,"Reduction operation":"Sum"}'
    call = {**nccl_init(rank, 2), "range_id": 2, "name": "ncclAllReduce", "payload_text": payload}
    end, name = 5000 - 1000 * rank, "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    api = {"api_call_id": 1, "start_ns": start - 100, "end_ns": start - 50, "process_id": 1, "thread_id": 1}
    return {
        "nvtx_ranges": [nccl_init(rank, 2), {**call, "start_ns": start - 200, "end_ns": start}],
        "api_calls": [{**api, "correlation_id": 9, "name": "cudaLaunchKernel"}],
        "kernels": [{**kernel(start, end), "correlation_id": 9, "name": name, "short_name": name}],
        "capture_info": [{"name": "origin_utc_ns", "value": origin}] if origin else [],
        "processes": [{"process_id": 1, "name": "python"}],
    }


@pytest.fixture
def two(tmp_path: Path) -> tk.TraceSet:
    """Two ranks whose clocks differ by 1000 ns, although their origins in UTC are equal."""
    for rank, start in ((0, 3000), (1, 3500)):
        write_capture(tmp_path / f"rank{rank}", **collective(rank, start, "1000000000000000000"))
    return tk.load_many([tmp_path / "rank0", tmp_path / "rank1"])


def test_ranks_are_on_one_clock(two: tk.TraceSet, tmp_path: Path) -> None:
    two.export(tmp_path / "trace.json")
    written = load(tmp_path / "trace.json")
    kernels = [e for e in events_of(written, "X") if "kernel_id" in e["args"]]
    assert [(ns(e), ns(e, "dur")) for e in kernels] == [(3000, 2000), (4500, 500)]
    assert written["otherData"] == {
        "producer": "tracekit",
        "schema_version": "1",
        "origin_utc_ns": "1000000000000000000",
        "ranks": "2",
        "clock_rank_0": "reference",
        "clock_rank_1": "collectives, offset 1000 ns, drift 0.000 ppm, residual 0 ns (max 0 ns) of 1 collectives",
    }


@pytest.mark.slow
def test_each_rank_has_processes_and_tracks_of_its_own(two: tk.TraceSet, tmp_path: Path) -> None:
    written = write(two, tmp_path)
    named = [e for e in events_of(written, "M") if e["name"] == "process_name"]
    assert [(e["args"]["name"], e["pid"]) for e in named] == [
        ("rank 0 · python", 1),
        ("rank 0 · GPU 0 · pid 1", 4_194_305),
        ("rank 0 · GPU 0 · NVTX and sync · pid 1", 4_194_306),
        ("rank 1 · python · pid 1", 4_194_307),
        ("rank 1 · GPU 0 · pid 1", 4_194_308),
        ("rank 1 · GPU 0 · NVTX and sync · pid 1", 4_194_309),
    ]
    order = [e["args"]["sort_index"] for e in events_of(written, "M") if e["name"] == "process_sort_index"]
    assert order == [0, 1, 2, 3, 4, 5]
    threads = [(e["pid"], e["tid"]) for e in events_of(written, "M") if e["name"] == "thread_name"]
    assert [tid for _, tid in threads] == list(range(1, len(threads) + 1))
    assert {(e["pid"], e["tid"]) for e in events_of(written, "X")} <= set(threads)


@pytest.mark.slow
def test_a_process_whose_id_is_the_pid_of_a_gpu_of_another_rank(tmp_path: Path) -> None:
    for rank in (0, 1):
        tables = collective(rank, 3000, "1000000000000000000")
        for row in (row for rows in tables.values() for row in rows if rank and "process_id" in row):
            row["process_id"] = 4_194_305
        write_capture(tmp_path / f"rank{rank}", **tables)
    written = write(tk.load_many([tmp_path / "rank0", tmp_path / "rank1"]), tmp_path)
    named = [e for e in events_of(written, "M") if e["name"] == "process_name"]
    assert [(e["args"]["name"], e["pid"]) for e in named] == [
        ("rank 0 · python", 1),
        ("rank 0 · GPU 0 · pid 1", 4_194_305),
        ("rank 0 · GPU 0 · NVTX and sync · pid 1", 4_194_306),
        ("rank 1 · python · pid 4194305", 4_194_307),
        ("rank 1 · GPU 0 · pid 4194305", 4_194_308),
        ("rank 1 · GPU 0 · NVTX and sync · pid 4194305", 4_194_309),
    ]


def test_arrows_between_the_members_of_a_collective(two: tk.TraceSet, tmp_path: Path) -> None:
    two.export(tmp_path / "trace.json")
    written = load(tmp_path / "trace.json")
    arrows = [[(e["name"], e["id"], ns(e), e["pid"]) for e in events_of(written, phase)] for phase in "sf"]
    assert arrows == [
        [("launch", "1", 2900, "1"), ("launch", "2", 4400, "4194307"), ("collective", "3", 3000, "4194305")],
        [("launch", "1", 3000, "4194305"), ("launch", "2", 4500, "4194308"), ("collective", "3", 4500, "4194308")],
    ]


@pytest.mark.slow
def test_arrows_need_both_their_events(two: tk.TraceSet, tmp_path: Path) -> None:
    selected = write(two, tmp_path, tables=["nvtx_ranges"])
    assert events_of(selected, "s") == []
    assert len(events_of(selected, "X")) == 4
    on_cpu = write(two, tmp_path, options={"tracks": "nvtx"})
    assert events_of(on_cpu, "s") == []
    assert Counter(e["name"] for e in events_of(on_cpu, "X")) == {"ncclCommInitRankConfig": 2, "ncclAllReduce": 2}


@pytest.mark.slow
def test_events_before_the_earliest_origin_shift_all_times(tmp_path: Path) -> None:
    for rank in (0, 1):
        early = [] if rank else [{**kernel(7, 9), "start_ns": -300, "end_ns": -100}]
        tables = collective(rank, 3000, "1000000000000000000")
        write_capture(tmp_path / f"rank{rank}", **{**tables, "kernels": [*tables["kernels"], *early]})
    tk.load_many([tmp_path / "rank0", tmp_path / "rank1"]).export(tmp_path / "trace.json")
    written = load(tmp_path / "trace.json")
    starts = sorted(ns(e) for e in events_of(written, "X") if "kernel_id" in e["args"])
    assert starts == [0, 3300, 4300]
    assert written["otherData"]["origin_utc_ns"] == "999999999999999700"


def test_a_clock_that_drifts_keeps_slices_nested(tmp_path: Path) -> None:
    calls = [{**nccl_init(0, 1), "range_id": n, "start_ns": n, "end_ns": 2_000_000_000 - n} for n in range(1, 40)]
    write_capture(tmp_path / "rank0", nvtx_ranges=calls)
    from tracekit.exporters.chrome_trace import export
    from tracekit.registry.interface import AlignedTraces, Part
    from tracekit.trace import get_trace_view

    with tk.load(tmp_path / "rank0") as trace:

        class Open:
            def __enter__(self) -> Any:
                return get_trace_view(trace)

            def __exit__(self, *_: object) -> None:
                pass

        links = timeline.find_flows_between_ranks(pl.DataFrame(schema=CALLS), [0])
        part = Part("rank 0", Open, 50, 1.7e-5)
        export.write_many(AlignedTraces([part], links), tmp_path / "x.json", lambda _, __: None, {"nvtx"})
    found = [(ns(e), ns(e) + ns(e, "dur")) for e in events_of(load(tmp_path / "x.json"), "X")]
    convert = [(n + round(1.7e-5 * n), t + round(1.7e-5 * t)) for n in range(1, 40) for t in [2_000_000_000 - n]]
    assert found == convert
    assert all(a[0] <= b[0] <= b[1] <= a[1] for a, b in pairwise(found))


CALLS = {
    "library": pl.String, "kind": pl.String, "status": pl.String, "collective_id": pl.Int64, "trace_rank": pl.Int64,
    "kernel_id": pl.Int64, "call_id": pl.Int64, "kernel_start_ns": pl.Int64, "kernel_end_ns": pl.Int64,
    "call_start_ns": pl.Int64, "call_end_ns": pl.Int64,
}  # fmt: skip


def test_links_of_collectives_and_messages() -> None:
    def call(kind: str, number: int, rank: int, start: int, **more: Any) -> Row:
        at = {"call_start_ns": start, "call_end_ns": start + 10, "call_id": start}
        row = {"library": "MPI", "kind": kind, "status": "matched", "collective_id": number, "trace_rank": rank, **at}
        return {**row, **more}

    calls = [
        call("barrier", 1, 5, 30), call("barrier", 1, 2, 20), call("barrier", 1, 9, 10),
        call("recv", 2, 2, 50), call("send", 2, 5, 55),
        call("send", 3, 2, 60, status="unmatched"),
        call("recv", 4, 5, 70, call_end_ns=None), call("send", 4, 9, 65),
        call("all_reduce", 5, 2, 0, library="NCCL", kernel_id=7, kernel_start_ns=80, kernel_end_ns=90),
        call("all_reduce", 5, 5, 0, library="NCCL", kernel_id=8, kernel_start_ns=80, kernel_end_ns=90),
        call("all_reduce", 5, 9, 85, library="NCCL"),
        call("barrier", 6, 2, 95), call("barrier", 6, 2, 96),
    ]  # fmt: skip
    rows = timeline.find_flows_between_ranks(pl.DataFrame(calls, schema=CALLS), [2, 5, 9])
    found = [
        (r["name"], *(r[f"{e}_{c}"] for e in ("from", "to") for c in ("part", "id", "ns"))) for r in rows.to_dicts()
    ]
    assert found == [
        ("collective", 2, 10, 10, 0, 20, 20),
        ("collective", 0, 20, 20, 1, 30, 30),
        ("collective", 0, 7, 80, 1, 8, 80),
        ("collective", 1, 8, 80, 2, 85, 85),
        ("message", 1, 55, 55, 0, 50, 59),
        ("message", 2, 65, 65, 1, 70, 70),
    ]
    assert set(rows["from_table"]) == {"mpi_calls", "kernels"}
    assert rows.filter(to_id=85)["to_table"].item() == "nvtx_ranges"


def test_ranks_that_cannot_be_aligned_are_not_merged(tmp_path: Path) -> None:
    write_capture(tmp_path / "rank0", kernels=[kernel(0, 5)])
    write_capture(tmp_path / "rank1", kernels=[kernel(0, 5)])
    traces = tk.load_many([tmp_path / "rank0", tmp_path / "rank1"])
    with pytest.raises(ExportError) as error:
        traces.export(tmp_path / "trace.json")
    assert str(error.value) == (
        "rank 1: the clock cannot be aligned with that of rank 0, because neither common collectives nor the UTC "
        "time of the trace origin are recorded\nHint: export these ranks separately"
    )
    assert not (tmp_path / "trace.json").exists()
    alone = write(traces.select(ranks=[1]), tmp_path)
    assert alone["otherData"]["clock_rank_1"] == "reference"


def test_ranks_aligned_by_utc_alone_are_a_warning(tmp_path: Path) -> None:
    for rank in (0, 1):
        info = [{"name": "origin_utc_ns", "value": str(10**18 - 4000 * rank)}]
        write_capture(tmp_path / f"rank{rank}", kernels=[kernel(0, 5)], capture_info=info)
    with pytest.warns(TracekitWarning, match="rank 1: the clock is aligned only by the UTC time of"):
        tk.load_many([tmp_path / "rank0", tmp_path / "rank1"]).export(tmp_path / "trace.json")
    written = load(tmp_path / "trace.json")
    assert [ns(e) for e in events_of(written, "X")] == [4000, 0]
    assert written["otherData"]["clock_rank_1"] == "UTC, offset -4000 ns"
    assert written["otherData"]["origin_utc_ns"] == str(10**18 - 4000)


@pytest.mark.slow
def test_a_set_without_events_cannot_be_drawn(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="nothing to draw: the traces have no events with timestamps"):
        tk.load_many(write_capture(tmp_path / "rank0")).export(tmp_path / "trace.json")


@pytest.mark.slow
def test_progress_counts_ranks(two: tk.TraceSet, tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    two.export(tmp_path / "trace.json.gz", progress=lambda done, total: steps.append((done, total)))
    assert steps == [(1, 2), (2, 2)]


COUNTS = """
select p.name as process, count(*) as n, sum(s.dur) as ns
from slice s join thread_track k on s.track_id = k.id join thread t using (utid) join process p using (upid)
group by upid
"""
FLOWS = """
select o.name as name, po.name as process, pi.name as other, i.ts - o.ts as later
from flow f join slice o on f.slice_out = o.id join slice i on f.slice_in = i.id
join thread_track ko on o.track_id = ko.id join thread t on ko.utid = t.utid join process po on t.upid = po.upid
join thread_track ki on i.track_id = ki.id join thread u on ki.utid = u.utid join process pi on u.upid = pi.upid
where substr(po.name, 1, 8) != substr(pi.name, 1, 8)
"""


def of_rank(rows: list[Row], rank: int) -> dict[str, tuple[int, int]]:
    """Number and duration of the slices of each process, by its name without the numbers of processes."""
    prefix = f"rank {rank} · "
    plain = [(re.sub(r" · pid \d+$", "", r["process"]), r) for r in rows]
    return {name.removeprefix(prefix): (r["n"], r["ns"]) for name, r in plain if name.startswith(prefix)}


@pytest.mark.thorough
@needs_more
@pytest.mark.perfetto
@pytest.mark.parametrize("name", ["mpi_rank", *(["straggler_rank"] if ALL else [])])
def test_perfetto_shows_every_slice_of_every_rank(name: str, tmp_path: Path, perfetto: Any) -> None:
    traces = tk.load_many(MORE / f"{name}*.nsys-rep")
    perfetto.load(traces.export(tmp_path / "all.json.gz"))
    assert perfetto.problems() == {}
    rows, flows = perfetto.query(COUNTS), perfetto.query(FLOWS)
    for rank in traces.ranks:
        with traces.open(rank) as trace:
            perfetto.load(trace.export(tmp_path / f"{rank}.json.gz"))
        one = {re.sub(r" · pid \d+$", "", r["process"]): (r["n"], r["ns"]) for r in perfetto.query(COUNTS)}
        assert of_rank(rows, rank) == one
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calls = traces.communication().calls
    pairs = timeline.find_flows_between_ranks(calls, traces.ranks).filter(pl.col("from_part") != pl.col("to_part"))
    matched = calls.filter(status="matched").group_by("collective_id").agg(pl.col("trace_rank").n_unique())
    assert pairs.height == matched.filter(pl.col("trace_rank") == 2).height
    assert len(flows) == pairs.filter(pl.col("from_ns") <= pl.col("to_ns")).height > 30
    assert min(f["later"] for f in flows if "AllReduce" in f["name"] or "Barrier" in f["name"]) >= 0


@pytest.mark.slow
def test_a_file_of_several_ranks_can_be_read_again(tmp_path: Path) -> None:
    traces = tk.load_many(FIXTURES / "ranks")
    with pytest.warns(TracekitWarning, match="the timeline lacks 4 arrows"):
        path = traces.export(tmp_path / "trace.json")
    with tk.load(path) as again:
        assert again.count("kernels") == 30
        assert again.count("api_calls") == traces.count("api_calls")
