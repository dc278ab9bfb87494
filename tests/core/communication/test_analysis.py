"""The analysis of several traces, and of one trace that contains several ranks."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import tracekit as tk
from tests.exporters.test_chrome_trace import push, trace
from tracekit.core.communication import Communication, read_call_tables, read_rank_tables

FIXTURES = Path(__file__).parents[3] / "fixtures"


def analyze(*traces: tk.Trace, **options: bool | str) -> Communication:
    tables: dict[str, list[pl.DataFrame]] = {}
    for rank, loaded in enumerate(traces):
        for name, rows in read_rank_tables(loaded.frame, **options).items():  # type: ignore[arg-type]
            tables.setdefault(name, []).append(rows.with_columns(rank=pl.lit(rank, pl.Int64)))
    return Communication({name: pl.concat(rows) for name, rows in tables.items()})


def test_one_capture_of_two_ranks() -> None:
    with tk.load(FIXTURES / "ddp2.nsys-rep") as loaded:
        found = analyze(loaded)
        assert found.clocks["method"].to_list() == ["reference"]
        assert found.calls.select("rank", "trace_rank").unique().sort("rank").rows() == [(0, 0), (1, 0)]
    summary = found.summary.sort("bytes").select("kind", "rank_count", "bytes", "count", "time_ns", "bus_gb_per_s")
    assert summary.rows() == [
        ("all_reduce", 2, 16793600, 4, 311392, pytest.approx(16793600 * 4 / 311392)),
        ("all_reduce", 2, 17043712, 4, 311296, pytest.approx(17043712 * 4 / 311296)),
    ]
    assert found.arrivals.select("rank", "count", "last_count", "delay_ns").rows() == [(0, 8, 0, 0), (1, 8, 8, 9961480)]
    assert found.iterations.select("iteration", "rank_count").rows() == [(n, 2) for n in range(4)]
    assert found.operations["last_rank"].to_list() == [1] * 8
    assert found.stragglers.height == 0


@pytest.mark.slow
def test_reports_of_two_ranks_of_mpi() -> None:
    with (
        tk.load(FIXTURES / "ranks" / "mpi_rank0.nsys-rep") as first,
        tk.load(FIXTURES / "ranks" / "mpi_rank1.nsys-rep") as second,
    ):
        found, complete = analyze(first, second), analyze(first, second, include_warm_up=True)
    assert found.clocks["method"].to_list() == ["reference", "collectives"]
    assert found.clocks["max_residual_ns"][1] < 5_000
    assert found.steps["rank"].to_list() == [0, 1]
    assert len(found.step_notes) == 1
    assert "step" in found.step_notes[0]
    assert found.stragglers.is_empty()
    assert complete.stragglers.select("straggler", "phase", "iterations").rows() == [(1, "compute", "0")]
    for analysis, is_aggregated in ((found, False), (complete, True)):
        flags = analysis.iterations.select("is_warm_up", "is_aggregated").rows()
        assert flags == [(True, is_aggregated), *[(False, True)] * 4]
    started = found.calls.filter(pl.col("kind") == "barrier").sort("collective_id", "rank")
    assert (
        started.group_by("collective_id").agg(pl.col("end_ns").max() - pl.col("end_ns").min())["end_ns"].max() < 5_000
    )


def test_processes_without_calls_are_numbered_after_those_with_calls() -> None:
    ranges = [push(100 * n, 100 * n + 90, f"step {n}", process_id=p, thread_id=p) for p in (8, 5) for n in range(4)]
    ranges += [push(110, 120, "ncclAllReduce", process_id=8, thread_id=8, domain="NCCL", domain_id=2)]
    found = analyze(trace(nvtx_ranges=sorted(ranges, key=lambda r: int(str(r["start_ns"])))))
    assert found.iterations["rank_count"].to_list() == [2] * 4
    iterations, phases = found._aligned_iterations_and_phases
    assert iterations["rank"].unique().to_list() == phases["rank"].unique().to_list() == [0, 1]


@pytest.mark.parametrize("value", [None, "soon", "9" * 20])
def test_an_unknown_origin(value: str | None) -> None:
    tables = read_rank_tables(trace(capture_info=[{"name": "origin_utc_ns", "value": value}]).frame)
    assert tables["origins"]["origin_utc_ns"].to_list() == [None]
    nothing = Communication({n: rows.with_columns(rank=pl.lit(0, pl.Int64)) for n, rows in tables.items()})
    assert [nothing.summary.height, nothing.arrivals.height, nothing.iterations.height, nothing.clocks.height] == [
        0,
        0,
        0,
        1,
    ]


def test_iterations_of_a_rank_that_cannot_be_aligned_are_left_out() -> None:
    steps = [push(100 * n, 100 * n + 90, f"step {n}") for n in range(4)]
    known = trace(nvtx_ranges=steps, capture_info=[{"name": "origin_utc_ns", "value": "5"}])
    found = analyze(known, trace(nvtx_ranges=steps))
    assert found.clocks["method"].to_list() == ["reference", "none"]
    assert found.iterations["rank_count"].to_list() == [1] * 4


def test_clocks_need_only_calls() -> None:
    tables: dict[str, list[pl.DataFrame]] = {}
    for rank in range(2):
        with tk.load(FIXTURES / "ranks" / f"mpi_rank{rank}.nsys-rep") as loaded:
            for name, rows in read_call_tables(loaded.correlate().frame).items():
                tables.setdefault(name, []).append(rows.with_columns(rank=pl.lit(rank, pl.Int64)))
    found = Communication({name: pl.concat(rows) for name, rows in tables.items()})
    assert found.clocks["method"].to_list() == ["reference", "collectives"]
    assert (found.iterations.height, found.stragglers.height) == (0, 0)
