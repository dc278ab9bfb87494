"""Waits, transfers and bandwidths, against sums over Python objects and against captures by hand."""

from __future__ import annotations

import json

import polars as pl
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.communication import Row, calls, nccl
from tests.builders.nsys_rep import SHARED
from tracekit.core.communication import Communication, match_calls, read_rank_tables
from tracekit.core.communication.analysis import (
    aggregate_operations,
    compute_operation_times_by_rank,
    summarize_arrivals,
    summarize_operations,
)

MORE = SHARED / "captures" / "h200_more"


def ranks_of(rows: list[Row], count: int = 8) -> pl.DataFrame:
    return compute_operation_times_by_rank(match_calls(calls(rows), dict.fromkeys(range(count), 0)))


times = st.tuples(st.integers(0, 50), st.integers(0, 60))


@given(st.lists(st.lists(times, min_size=3, max_size=3), min_size=1, max_size=5))
def test_ranks_wait_for_the_last_one(drawn: list[list[tuple[int, int]]]) -> None:
    rows, expected = [], []
    for n, members in enumerate(drawn):
        base = 1000 * n
        spans = [(base + start, base + start + length) for start, length in members]
        last = max(start for start, _ in spans)
        spans = [(start, max(end, last)) for start, end in spans]
        rows += [nccl(rank, *span, hidden_ns=min(3, span[1] - span[0])) for rank, span in enumerate(spans)]
        by_start = sorted(start for start, _ in spans)
        for start, end in spans:
            waited = last - start
            arrival, hidden = start - by_start[0], min(3, end - start)
            expected.append((arrival, waited, end - start - waited, hidden, end - start - hidden))
        time = max(end for _, end in spans) - last
        assert time >= 0
    found = ranks_of(rows)
    columns = ("arrival_ns", "wait_ns", "transfer_ns", "hidden_ns", "exposed_ns")
    assert found.sort("operation_id", "rank").select(columns).rows() == expected
    assert found.group_by("operation_id").agg(pl.col("is_last").sum())["is_last"].to_list() == [1] * len(drawn)
    delays = [max(s for s, _ in members) - sorted(s for s, _ in members)[-2] for members in drawn]
    assert aggregate_operations(found).height == len(drawn)
    assert (
        found.group_by("operation_id", maintain_order=True).agg(pl.col("delay_ns").sum())["delay_ns"].to_list()
        == delays
    )


@pytest.mark.parametrize(
    ("kind", "size", "factor"),
    [
        ("all_reduce", 600, 4 / 3),
        ("all_gather", 1800, 2 / 3),
        ("reduce_scatter", 1800, 2 / 3),
        ("all_to_all", 1800, 2 / 3),
        ("gather", 1800, 2 / 3),
        ("scatter", 1800, 2 / 3),
        ("broadcast", 600, 1),
        ("reduce", 600, 1),
    ],
)
def test_bandwidths_are_those_of_nccl_tests(kind: str, size: int, factor: float) -> None:
    rows = [nccl(rank, 10 * rank, 20 + 2 * rank + 100, kind=kind, message_bytes=600) for rank in range(3)]
    found = aggregate_operations(ranks_of(rows)).row(0, named=True)
    assert (found["bytes"], found["time_ns"], found["last_rank"], found["skew_ns"]) == (size, 104, 2, 20)
    assert found["algorithm_gb_per_s"] == pytest.approx(size / 104)
    assert found["bus_gb_per_s"] == pytest.approx(size / 104 * factor)


def test_operations_without_data_or_time_have_no_bandwidth() -> None:
    rows = [nccl(rank, 0, 10, kind="barrier", message_bytes=None) for rank in range(2)]
    rows += [nccl(rank, 100, 100) for rank in range(2)]
    rows += [nccl(rank, 200, 300, message_bytes=0) for rank in range(2)]
    found = aggregate_operations(ranks_of(rows)).select("bytes", "algorithm_gb_per_s", "bus_gb_per_s")
    assert found.rows() == [(None, None, None), (64, None, None), (0, None, None)]


def test_incomplete_operations_and_unknown_times_do_not_count() -> None:
    rows = [nccl(rank, 0, 10, communicator_size=3) for rank in range(2)]
    matched = match_calls(calls([*rows, nccl(2, 0, 10, communicator="8")]), {0: 0, 1: 0, 2: 0})
    assert compute_operation_times_by_rank(matched).height == 0
    whole = match_calls(calls([nccl(0, 0, 10), nccl(1, 0, 10)]), {0: 0, 1: 0})
    unaligned = whole.with_columns(start_ns=pl.when(pl.col("rank") == 0).then("start_ns"))
    assert compute_operation_times_by_rank(unaligned).height == 0
    assert compute_operation_times_by_rank(match_calls(calls([nccl(0, 0, 10, kind="unknown")]), {0: 0})).height == 0


def test_a_communicator_of_one_rank_waits_for_nobody() -> None:
    found = ranks_of([nccl(0, 0, 10, communicator_size=1)])
    assert found.select("is_last", "delay_ns", "wait_ns", "transfer_ns").rows() == [(False, 0, 0, 10)]


def test_calls_of_one_kernel_are_one_operation() -> None:
    """An all-gather of three tensors that are gathered together."""
    facts: Row = {"kind": "all_gather", "kernel_id": 5, "kernel_calls": 3}
    rows = [nccl(rank, 10, 110, message_bytes=size, **facts) for rank in range(2) for size in (1, 2, 3)]
    found = ranks_of(rows).select("operation_id", "rank", "rank_count", "call_count", "bytes")
    assert found.rows() == [(1, 0, 2, 3, 12), (1, 1, 2, 3, 12)]


def exchange(rank: int, count: int) -> list[Row]:
    """The two messages of a rank in a ring exchange, in one kernel."""
    facts: Row = {"kernel_id": 9, "kernel_calls": 2, "communicator_rank": rank, "message_bytes": 100 + rank}
    sends = nccl(rank, 10, 110, kind="send", peer=(rank + 1) % count, **facts)
    source = (rank - 1) % count
    return [sends, nccl(rank, 10, 110, kind="recv", peer=source, **{**facts, "message_bytes": 100 + source})]


@pytest.mark.parametrize("count", [2, 3, 40])
def test_messages_that_kernels_share_are_one_operation(count: int) -> None:
    found = ranks_of([row for rank in range(count) for row in exchange(rank, count)], count)
    assert found.select("operation_id", "kind", "rank_count", "call_count").unique().rows() == [
        (1, "send_recv", count, 2)
    ]
    assert found["bytes"].unique().to_list() == [100 + count - 1]


def test_separate_messages_are_separate_operations() -> None:
    rows = [nccl(0, 10, 30, kind="send", peer=1), nccl(1, 10, 35, kind="recv", peer=0)]
    rows += [nccl(1, 50, 60, kind="send", peer=0), nccl(0, 50, 60, kind="recv", peer=1)]
    found = aggregate_operations(ranks_of(rows)).select("kind", "bytes", "time_ns", "bus_gb_per_s")
    assert found.rows() == [("send_recv", 64, 25, 64 / 25), ("send_recv", 64, 10, 6.4)]


def test_summaries() -> None:
    rows = [
        nccl(0, 0, 100),
        nccl(1, 40, 100),
        nccl(0, 1000, 1100),
        nccl(1, 1010, 1090),
        nccl(2, 0, 5, communicator="8"),
    ]
    rows += [
        nccl(0, 5000, 5100, message_bytes=128, kernel_id=None),
        nccl(1, 5000, 5090, message_bytes=128, kernel_id=None),
    ]
    ranks = ranks_of(rows)
    summary = summarize_operations(aggregate_operations(ranks)).filter(pl.col("communicator") == "7")
    assert summary.select("bytes", "count", "time_ns", "mean_skew_ns", "max_skew_ns").rows() == [
        (64, 2, 150, 25.0, 40),
        (128, 1, 100, 0.0, 0),
    ]
    assert summary.select("wait_ns", "transfer_ns", "hidden_ns", "exposed_ns").rows() == [
        (50, 290, 0, 340),
        (0, 190, 0, None),
    ]
    assert summary["bus_gb_per_s"].to_list() == pytest.approx([128 / 150, 1.28])
    arrivals = summarize_arrivals(ranks).filter(pl.col("communicator") == "7")
    columns = (
        "rank",
        "count",
        "last_count",
        "mean_arrival_ns",
        "median_arrival_ns",
        "max_arrival_ns",
        "delay_ns",
        "wait_ns",
    )
    assert arrivals.select(columns).rows() == [(0, 3, 0, 0.0, 0.0, 0, 0, 50), (1, 3, 3, 50 / 3, 10.0, 40, 50, 0)]


def test_no_operations() -> None:
    ranks = ranks_of([])
    assert [
        t.height for t in (ranks, aggregate_operations(ranks), summarize_operations(aggregate_operations(ranks)))
    ] == [0, 0, 0]
    assert summarize_arrivals(ranks).height == 0


def by_hand(paths: list[str], kernel: str, call: str, shift: int) -> tuple[int, float]:
    """Number of bytes and average time of a kind of collective in two captures, from the tables as they are."""
    bounds, sizes = [], []
    for path in paths:
        with tk.load(MORE / path) as trace:
            kernels = trace.table("kernels", ["start_ns", "end_ns", "short_name"]).to_pylist()
            ranges = trace.table("nvtx_ranges", ["start_ns", "name", "payload_text"]).to_pylist()
        bounds.append(sorted((k["start_ns"], k["end_ns"]) for k in kernels if k["short_name"] == kernel))
        payloads = sorted((r["start_ns"], json.loads(r["payload_text"])) for r in ranges if r["name"] == call)
        sizes.append([p["Message size [bytes]"] for _, p in payloads])
    assert sizes[0] == sizes[1]
    total = 0
    for (start, end), (other_start, other_end) in zip(*bounds, strict=True):
        total += max(end, other_end + shift) - max(start, other_start + shift)
    return sum(sizes[0]), total


@pytest.mark.slow
@pytest.mark.skipif(not MORE.exists(), reason="the captures are not here")
def test_bandwidths_of_a_capture_by_hand() -> None:
    paths = [f"straggler_rank{rank}.nsys-rep" for rank in range(2)]
    tables: dict[str, list[pl.DataFrame]] = {}
    for rank, path in enumerate(paths):
        with tk.load(MORE / path) as trace:
            for name, rows in read_rank_tables(trace.correlate().frame).items():
                tables.setdefault(name, []).append(rows.with_columns(rank=pl.lit(rank, pl.Int64)))
    found = Communication({name: pl.concat(rows) for name, rows in tables.items()})
    shift = found.clocks["offset_ns"][1]
    for kind, name, scale in (("all_reduce", "AllReduce_Sum_f32", 1), ("all_gather", "AllGather", 2)):
        size, total = by_hand(paths, f"ncclDevKernel_{name}_RING_LL", f"nccl{name.partition('_')[0]}", shift)
        ours = found.summary.filter(kind=kind)
        assert (ours["bytes"] * ours["count"]).sum() == scale * size
        assert ours["time_ns"].sum() == total
        weighted = (ours["bus_gb_per_s"] * ours["time_ns"]).sum() / total
        assert weighted == pytest.approx(scale * size / total * (1 if kind == "all_reduce" else 1 / 2))
    overlaps = pl.read_parquet(MORE / "recipes" / "straggler" / "nccl_gpu_overlap_trace" / "rank_trace.parquet")
    hidden = 100 * pl.col("hidden_ns") / (pl.col("kernel_end_ns") - pl.col("kernel_start_ns"))
    ours = match_calls(found.tables["calls"], {}).unique(["rank", "kernel_id"]).with_columns(ours=hidden.round(1))
    compared = ours.join(overlaps, left_on=["rank", "kernel_start_ns"], right_on=["Rank", "Start"])
    assert compared.filter(pl.col("ours") != pl.col("Compute Overlap")).height == 0
    assert compared.height == 988
    assert found.stragglers.row(0, named=True)["iterations"] == "4, 9, 14, 19, 24, 29, 34, 39"
    named = found.iterations.filter(pl.col("iteration") % 5 == 4)
    assert set(named.select("straggler", "phase", "lost_on").rows()) == {(1, "load", "CPU")}
    assert named["lost_ns"].is_between(7_500_000, 8_500_000).all()
