"""What Perfetto's trace processor makes of an export: every slice is there, on its track, to the nanosecond."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tracekit as tk
from tests.conftest import FIXTURES
from tests.core.test_mpi import two_ranks

SHARED = Path(__file__).parents[3] / "shared"
CORPUS, MORE = SHARED / "corpus", SHARED / "captures" / "h200_more"
CAPTURES = sorted(CORPUS.rglob("*.sqlite")) if CORPUS.is_dir() else []
FIRST_GPU_PID = 4_194_305

SLICES = """
select p.pid, a.key, a.int_value as id, s.ts, s.dur
from slice s
join thread_track k on s.track_id = k.id join thread t using (utid) join process p using (upid)
left join args a on s.arg_set_id = a.arg_set_id and a.key in ({keys})
"""
FLOWS = """
select c.int_value as api_call_id, a.key, a.int_value as id
from flow f
join slice o on f.slice_out = o.id join slice i on f.slice_in = i.id
join args c on o.arg_set_id = c.arg_set_id and c.key = '{prefix}.api_call_id'
join args a on i.arg_set_id = a.arg_set_id and a.key in ({keys})
"""
KEYS = {
    "api_calls": "api_call_id",
    "osrt_calls": "osrt_call_id",
    "nvtx_ranges": "range_id",
    "kernels": "kernel_id",
    "memcpys": "memcpy_id",
    "memsets": "memset_id",
    "graph_launches": "graph_launch_id",
    "syncs": "sync_id",
    "nvtx_marks": "mark_id",
    "cuda_events": "cuda_event_id",
    "gpu_page_faults": "gpu_page_fault_id",
    "cpu_page_faults": "cpu_page_fault_id",
    "memory_pool_events": "memory_pool_event_id",
    "gpu_context_switches": "gpu_context_switch_id",
    "diagnostics": "diagnostic_id",
    "mpi_calls": "mpi_call_id",
    "openmp_events": "openmp_event_id",
    "library_calls": "library_call_id",
    "cuda_graph_events": "cuda_graph_event_id",
    "cuda_graph_node_events": "cuda_graph_node_event_id",
    "jit_operations": "jit_operation_id",
    "overheads": "overhead_id",
    "cuda_overheads": "cuda_overhead_id",
    "cpu_scheduling": "cpu_scheduling_id",
    "cpu_samples": "cpu_sample_id",
    "python_samples": "python_sample_id",
}
TRACKS = """
select p.pid, p.name as process, t.name as thread, count(*) as n, sum(s.dur) as total
from slice s
join thread_track k on s.track_id = k.id join thread t using (utid) join process p using (upid)
group by utid
"""
STREAM = re.compile(r"(NVTX · |NVTX start/end · )?(?:stream (\d+)|context)\b.*?( · sync| · CUDA events)?", re.DOTALL)
DEVICE = re.compile(r"GPU (\d+)\b.* · pid (\d+)", re.DOTALL)
NO_STREAM = (1 << 32) - 1
WHOLE = {
    "gpu_page_faults": "page faults",
    "cpu_page_faults": "page faults",
    "memory_pool_events": "memory pools",
    "gpu_context_switches": "context switches",
    "diagnostics": "diagnostics",
}
"""The track of a table whose events have neither a thread nor a stream."""
ON_STREAMS = {"syncs": " · sync", "cuda_events": " · CUDA events"}
ON_THREADS = {
    "api_calls": "CUDA API",
    "osrt_calls": "OS runtime",
    "mpi_calls": "MPI",
    "openmp_events": "OpenMP",
    "library_calls": "libraries",
    "cuda_graph_events": "CUDA graphs",
    "cuda_graph_node_events": "CUDA graph nodes",
    "jit_operations": "compilation",
    "overheads": "profiler overhead",
    "cuda_overheads": "CUDA overhead",
    "cpu_scheduling": "thread state",
    "cpu_samples": "CPU samples",
    "python_samples": "Python samples",
}
THREAD = re.compile(rf"(NVTX(?: \[.*?\])?|{'|'.join(ON_THREADS.values())}) · .*?(\d+)?", re.DOTALL)
ON_GPUS = ("syncs", "cuda_events", "gpu_page_faults", "memory_pool_events", "gpu_context_switches")
LAUNCHED = ["kernels", "memcpys", "memsets", "graph_launches"]
Row = tuple[int | None, ...]


def drawn(trace: tk.Trace, table: str) -> pl.DataFrame:
    """What is to be seen of a table: id, start, duration; moments last 0 ns."""
    key = KEYS.get(table, "range_id")
    if table == "cpu_scheduling":
        rows = trace.frame(table).filter(pl.col("is_scheduled_in") | pl.col("next_switch_ns").is_not_null())
        end = pl.col("next_switch_ns").fill_null(last_moment(trace))
        return rows.with_columns(id=key, ts="timestamp_ns", dur=end - pl.col("timestamp_ns")).collect()
    if "timestamp_ns" in trace.schema(table).names:
        rows = trace.frame(table).drop_nulls("timestamp_ns")
        return rows.with_columns(id=key, ts="timestamp_ns", dur=pl.lit(0, pl.Int64)).collect()
    length = (pl.col("end_ns").fill_null(last_moment(trace)) - pl.col("start_ns")).clip(0)
    return trace.frame(table).with_columns(id=key, ts="start_ns", dur=length).collect()


def last_moment(trace: tk.Trace) -> int:
    tables = [*KEYS, "gpu_metrics"]
    times = [(t, c) for t in tables for c in trace.schema(t).names if c in ("start_ns", "end_ns", "timestamp_ns")]
    found = [trace.frame(t).select(pl.col(c).max()).collect().item() for t, c in times]
    return max((f for f in found if f is not None), default=0)


def expected(trace: tk.Trace) -> Counter[Row]:
    """Every slice: what it is, its process if it lies on the CPU side, start, duration."""
    slices: Counter[Row] = Counter()
    for table, key in KEYS.items():
        gpu = table in LAUNCHED or table in ON_GPUS
        slices.update(
            (key, None if gpu else p or 0, *r)
            for p, *r in drawn(trace, table).select("process_id", "id", "ts", "dur").rows()
        )
    length = (pl.col("end_ns") - pl.col("start_ns")).alias("dur")
    projected = trace.frame("nvtx_projections").select("range_id", "start_ns", length).collect()
    slices.update(("range_id", None, *r) for r in projected.rows())
    return slices


def shown(perfetto: Any, prefix: str) -> Counter[Row]:
    keys = ", ".join(f"'{prefix}.{k}'" for k in KEYS.values())
    rows = perfetto.query(SLICES.format(keys=keys))
    found: Counter[Row] = Counter()
    for r in rows:
        process = None if r["pid"] >= FIRST_GPU_PID else r["pid"]
        found[r["key"].removeprefix(f"{prefix}."), process, r["id"], r["ts"], r["dur"]] += 1
    return found


def on_tracks(trace: tk.Trace) -> Counter[tuple[Any, ...]]:
    """Slices and their summed duration by what the name of a track tells: what, where, which."""
    domain = pl.when(pl.col("domain") != "").then("domain")
    domain = pl.coalesce(domain, pl.when(pl.col("domain_id") != 0).then(pl.format("domain {}", "domain_id")))
    nvtx = pl.coalesce(pl.format("NVTX [{}]", domain), pl.lit("NVTX"))
    crossing = pl.when(pl.col("kind") == "start_end")
    process, stream = pl.col("process_id").fill_null(0), pl.col("stream_id").replace(NO_STREAM, None)
    found: Counter[tuple[Any, ...]] = Counter()
    for table in [*KEYS, "nvtx_projections"]:
        if table == "nvtx_projections":
            keys = [
                crossing.then(pl.lit("NVTX start/end · ")).otherwise(pl.lit("NVTX · ")),
                "device_id",
                process,
                stream,
            ]
        elif table == "nvtx_ranges":
            keys = [nvtx, process, crossing.then(pl.lit("start/end")).otherwise(pl.col("thread_id").cast(pl.String))]
        elif table == "nvtx_marks" or table in ON_THREADS:
            label = pl.lit(ON_THREADS[table]) if table in ON_THREADS else nvtx
            keys = [label, process, pl.col("thread_id").cast(pl.String)]
        elif table in WHOLE and table in ON_GPUS:
            keys = [pl.lit(WHOLE[table]), "device_id", process, pl.lit(None)]
        elif table in WHOLE:
            keys = [pl.lit(WHOLE[table]), process, pl.lit(None)]
        else:
            device = pl.lit(None) if table == "syncs" else "device_id"
            keys = [pl.lit(ON_STREAMS.get(table)), device, process, stream]
        named = {f"key_{n}": key for n, key in enumerate(keys)}
        rows = drawn(trace, table).select("dur", **named).group_by(*named).agg(pl.len(), pl.col("dur").sum())
        for *key, n, total in rows.rows():
            found[*key, "slices"] += n
            found[*key, "ns"] += total
    return found


def shown_tracks(perfetto: Any) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    for row in perfetto.query(TRACKS):
        name = re.sub(r" · lane \d+$", "", row["thread"])
        key: tuple[Any, ...]
        if row["pid"] >= FIRST_GPU_PID:
            device, process = map(int, DEVICE.fullmatch(row["process"]).groups())
            before, stream, after = (name, None, None) if name in WHOLE.values() else STREAM.fullmatch(name).groups()
            key = (before or after, None if after == " · sync" else device, process, stream and int(stream))
        elif name in WHOLE.values():
            key = (name, row["pid"], None)
        elif name.endswith(" start/end"):
            key = (name.removesuffix(" start/end"), row["pid"], "start/end")
        else:
            label, thread = THREAD.fullmatch(name).groups()
            key = (label, row["pid"], thread)
        found[*key, "slices"] += row["n"]
        found[*key, "ns"] += row["total"]
    return found


def expected_flows(trace: tk.Trace) -> Counter[Row]:
    calls = trace.frame("api_calls").select("api_call_id")
    flows: Counter[Row] = Counter()
    for table in LAUNCHED:
        linked = trace.frame(table).join(calls, on="api_call_id").filter(pl.col("api_start_ns") <= pl.col("start_ns"))
        ids = linked.select("api_call_id", KEYS[table]).collect().rows()
        flows.update((call, KEYS[table], n) for call, n in ids)
    return flows


def shown_flows(perfetto: Any, prefix: str) -> Counter[Row]:
    keys = ", ".join(f"'{prefix}.{KEYS[t]}'" for t in LAUNCHED)
    rows = perfetto.query(FLOWS.format(keys=keys, prefix=prefix))
    return Counter((r["api_call_id"], r["key"].removeprefix(f"{prefix}."), r["id"]) for r in rows)


def check(path: Path, target: Path, perfetto: Any) -> None:
    """Export all tracks of a capture and compare what Perfetto holds; says of a difference only how large it is."""
    prefix = "debug" if ".pftrace" in target.name else "args"
    with tk.load(path) as raw:
        trace = raw.correlate()
        perfetto.load(trace.export(target, options={"tracks": "all"}))
        assert perfetto.problems() == {}
        wanted, got = expected(trace), shown(perfetto, prefix)
        first = min((row[3] for row in wanted), default=0)
        if first < 0:
            wanted = Counter({(*row[:3], row[3] - first, row[4]): n for row, n in wanted.items()})
        assert len(list((wanted - got).elements())) == len(list((got - wanted).elements())) == 0
        wanted_sums, sums = on_tracks(trace), shown_tracks(perfetto)
        assert len(wanted_sums - sums) == len(sums - wanted_sums) == 0
        assert expected_flows(trace) == shown_flows(perfetto, prefix)
        values = [trace.frame("gpu_metrics").select("value"), trace.frame("memory_events").select(value="used_bytes")]
        metrics = pl.concat(values).select(n=pl.len(), total=pl.col("value").sum().cast(pl.Float64)).collect()
        counters = perfetto.query("select count(*) as n, ifnull(sum(value), 0.0) as total from counter")
        assert counters == metrics.to_dicts()


SUFFIXES = pytest.mark.parametrize("suffix", ["json.gz", "pftrace", "pftrace.gz"])


@pytest.mark.many(2)
@pytest.mark.perfetto
@SUFFIXES
def test_perfetto_shows_every_slice(suffix: str, capture: Path, tmp_path: Path, perfetto: Any) -> None:
    check(capture, tmp_path / f"trace.{suffix}", perfetto)


@pytest.mark.many(1)
@pytest.mark.perfetto
@pytest.mark.corpus
@pytest.mark.filterwarnings("ignore::tracekit.TracekitWarning")
@pytest.mark.skipif(not CAPTURES, reason="no corpus beside the checkout")
@pytest.mark.parametrize("nth", range(len(CAPTURES)))
def test_perfetto_shows_every_slice_of_public_captures(nth: int, tmp_path: Path, perfetto: Any) -> None:
    try:
        check(CAPTURES[nth], tmp_path / "trace.json", perfetto)
        check(CAPTURES[nth], tmp_path / "trace.pftrace", perfetto)
    except tk.TracekitError as e:
        pytest.skip(f"cannot be read: {type(e).__name__}")


@pytest.mark.thorough
@pytest.mark.perfetto
@pytest.mark.skipif(not MORE.is_dir(), reason="no captures beside the checkout")
@pytest.mark.parametrize("name", ["pystacks", "omp", "memory"])
def test_perfetto_shows_every_slice_of_more_captures(name: str, tmp_path: Path, perfetto: Any) -> None:
    check(MORE / f"{name}.nsys-rep", tmp_path / "trace.json", perfetto)
    check(MORE / f"{name}.nsys-rep", tmp_path / "trace.pftrace", perfetto)


MPI_FLOWS = """
select a.int_value as sender, b.int_value as receiver
from flow f join slice o on f.slice_out = o.id join slice i on f.slice_in = i.id
join args a on o.arg_set_id = a.arg_set_id and a.key = '{prefix}.mpi_call_id'
join args b on i.arg_set_id = b.arg_set_id and b.key = '{prefix}.mpi_call_id'
"""


@pytest.mark.perfetto
@pytest.mark.parametrize(("suffix", "prefix"), [("json", "args"), ("pftrace", "debug")])
def test_perfetto_shows_messages_between_ranks(suffix: str, prefix: str, tmp_path: Path, perfetto: Any) -> None:
    trace = two_ranks().correlate()
    perfetto.load(trace.export(tmp_path / f"mpi.{suffix}"))
    assert perfetto.problems() == {}
    # Perfetto lets a flow begin at the slice that starts first, and a receive may start before its send.
    rows = perfetto.query(MPI_FLOWS.format(prefix=prefix))
    shown = Counter(tuple(sorted((r["sender"], r["receiver"]))) for r in rows)
    calls = trace.frame("mpi_calls").select("mpi_call_id", "sender_call_id", "collective_id", "start_ns").collect()
    messages = calls.drop_nulls("sender_call_id").select("sender_call_id", "mpi_call_id").rows()
    collectives = calls.drop_nulls("collective_id").group_by("collective_id").agg("mpi_call_id")["mpi_call_id"]
    assert shown == Counter(tuple(sorted(pair)) for pair in (*messages, *collectives))
    assert len(messages) == 19


STAGES = {"kernels": "Kernel", "memcpys": "Memcpy", "memsets": "Memset", "graph_launches": "Graph"}
GPU_SLICES = """
select s.name, s.ts, s.dur, s.submission_id, p.pid, t.name as queue, extract_arg(s.arg_set_id, 'bytes') as bytes
from gpu_slice s join gpu_track t on s.track_id = t.id left join process p using (upid)
"""


@pytest.mark.perfetto
@pytest.mark.parametrize("name", ["ddp2.nsys-rep", "graph_node.nsys-rep", "serving/steps.nsys-rep"])
def test_perfetto_shows_gpu_render_stages(name: str, tmp_path: Path, perfetto: Any) -> None:
    """The trace processor of version 52 does not know the parameters of launches, and names slices by their stage."""
    with tk.load(FIXTURES / name) as raw:
        trace = raw.correlate()
        perfetto.load(trace.export(tmp_path / "x.pftrace", options={"gpu-activities": "render-stages"}))
        assert perfetto.problems().keys() <= {"unknown_extension_fields"}
        expected: Counter[tuple[Any, ...]] = Counter()
        for table, stage in STAGES.items():
            size = pl.col("bytes") if "bytes" in trace.schema(table).names else pl.lit(None).alias("bytes")
            rows = trace.frame(table).select(
                pl.lit(stage).alias("stage"), "start_ns", pl.col("end_ns") - pl.col("start_ns"),
                pl.col("correlation_id").fill_null(0), "process_id", "stream_id", size.cast(pl.String),
            )  # fmt: skip
            expected.update(rows.collect().rows())
    shown: Counter[tuple[Any, ...]] = Counter()
    for row in perfetto.query(GPU_SLICES):
        stream = int(re.search(r"stream (\d+)", row["queue"])[1])  # type: ignore[index]
        shown[row["name"], row["ts"], row["dur"], row["submission_id"], row["pid"], stream, row["bytes"]] += 1
    assert expected.total() > 50
    assert len(list((expected - shown).elements())) == len(list((shown - expected).elements())) == 0
