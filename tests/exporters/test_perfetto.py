"""What Perfetto's trace processor makes of an export: every slice is there, on its track, to the nanosecond."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tracekit as tk

CORPUS = Path(__file__).parents[3] / "shared" / "corpus"
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
join args c on o.arg_set_id = c.arg_set_id and c.key = 'args.api_call_id'
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
}
LAUNCHED = ["kernels", "memcpys", "memsets", "graph_launches"]
Row = tuple[int | None, ...]


def drawn(trace: tk.Trace, table: str) -> pl.DataFrame:
    """What is to be seen of a table: id, start, duration; moments last 0 ns."""
    key = KEYS[table]
    if "timestamp_ns" in trace.schema(table).names:
        rows = trace.frame(table).drop_nulls("timestamp_ns")
        return rows.select("process_id", id=key, ts="timestamp_ns", dur=pl.lit(0, pl.Int64)).collect()
    length = (pl.col("end_ns").fill_null(last_moment(trace)) - pl.col("start_ns")).clip(0)
    return trace.frame(table).select("process_id", id=key, ts="start_ns", dur=length).collect()


def last_moment(trace: tk.Trace) -> int:
    tables = [*KEYS, "gpu_metrics"]
    times = [(t, c) for t in tables for c in trace.schema(t).names if c in ("start_ns", "end_ns", "timestamp_ns")]
    found = [trace.frame(t).select(pl.col(c).max()).collect().item() for t, c in times]
    return max((f for f in found if f is not None), default=0)


def expected(trace: tk.Trace) -> Counter[Row]:
    """Every slice: what it is, its process if it lies on the CPU side, start, duration."""
    slices: Counter[Row] = Counter()
    for table, key in KEYS.items():
        gpu = table in LAUNCHED or table in ("syncs", "cuda_events")
        slices.update((f"args.{key}", None if gpu else p or 0, *r) for p, *r in drawn(trace, table).rows())
    length = (pl.col("end_ns") - pl.col("start_ns")).alias("dur")
    projected = trace.frame("nvtx_projections").select("range_id", "start_ns", length).collect()
    slices.update(("args.range_id", None, *r) for r in projected.rows())
    return slices


def shown(perfetto: Any) -> Counter[Row]:
    keys = ", ".join(f"'args.{k}'" for k in KEYS.values())
    rows = perfetto.query(SLICES.format(keys=keys))
    return Counter(
        (r["key"], None if r["pid"] >= FIRST_GPU_PID else r["pid"], r["id"], r["ts"], r["dur"]) for r in rows
    )


def expected_flows(trace: tk.Trace) -> Counter[Row]:
    calls = trace.frame("api_calls").select("api_call_id")
    flows: Counter[Row] = Counter()
    for table in LAUNCHED:
        linked = trace.frame(table).join(calls, on="api_call_id").filter(pl.col("api_start_ns") <= pl.col("start_ns"))
        ids = linked.select("api_call_id", KEYS[table]).collect().rows()
        flows.update((call, f"args.{KEYS[table]}", n) for call, n in ids)
    return flows


def shown_flows(perfetto: Any) -> Counter[Row]:
    keys = ", ".join(f"'args.{KEYS[t]}'" for t in LAUNCHED)
    return Counter((r["api_call_id"], r["key"], r["id"]) for r in perfetto.query(FLOWS.format(keys=keys)))


def check(path: Path, target: Path, perfetto: Any) -> None:
    """Export a capture and compare what Perfetto holds; says of a difference only how large it is."""
    with tk.load(path) as raw:
        trace = raw.correlate()
        perfetto.load(trace.export(target))
        assert perfetto.problems() == {}
        wanted, got = expected(trace), shown(perfetto)
        first = min((row[3] for row in wanted), default=0)
        if first < 0:
            wanted = Counter({(*row[:3], row[3] - first, row[4]): n for row, n in wanted.items()})
        assert len(list((wanted - got).elements())) == len(list((got - wanted).elements())) == 0
        assert expected_flows(trace) == shown_flows(perfetto)
        metrics = trace.frame("gpu_metrics").select(n=pl.len(), total=pl.col("value").sum().cast(pl.Float64)).collect()
        counters = perfetto.query("select count(*) as n, ifnull(sum(value), 0.0) as total from counter")
        assert counters == metrics.to_dicts()


@pytest.mark.perfetto
def test_perfetto_shows_every_slice(capture: Path, tmp_path: Path, perfetto: Any) -> None:
    check(capture, tmp_path / "trace.json.gz", perfetto)


@pytest.mark.perfetto
@pytest.mark.corpus
@pytest.mark.filterwarnings("ignore::tracekit.TracekitWarning")
@pytest.mark.skipif(not CAPTURES, reason="no corpus beside the checkout")
@pytest.mark.parametrize("nth", range(len(CAPTURES)))
def test_perfetto_shows_every_slice_of_public_captures(nth: int, tmp_path: Path, perfetto: Any) -> None:
    try:
        check(CAPTURES[nth], tmp_path / "trace.json", perfetto)
    except tk.TracekitError as e:
        pytest.skip(f"cannot be read: {type(e).__name__}")
