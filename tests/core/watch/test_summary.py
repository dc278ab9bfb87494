"""Summaries of captures: exact sums, medians within a bucket, and merging in any order."""

from __future__ import annotations

import json
import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.watched_ranks import Delay, build_tables
from tracekit.core.communication.calls import COLUMNS
from tracekit.core.watch import CaptureSummary, map_processes_to_ranks, merge_summaries, summarize_capture
from tracekit.core.watch.comparison import compute_statistics
from tracekit.core.watch.summary import (
    GROWTH,
    KINDS,
    MAX_NAME_CHARS,
    MAX_PHASES,
    RANKS,
    TIMES,
    find_buckets,
    read_step_numbers,
)
from tracekit.errors import TracekitError


def summary_of(window: int = 0, ranks: int = 2, **options: object) -> CaptureSummary:
    tables = build_tables(window, range(ranks), **options)  # type: ignore[arg-type]
    return summarize_capture(tables, {rank: rank for rank in range(ranks)}, ranks)


def test_sums_are_exact_and_medians_are_within_a_bucket() -> None:
    tables = build_tables(3, range(4), steps=9)
    statistics = compute_statistics(summarize_capture(tables, {r: r for r in range(4)}))
    for (rank, phase), rows in tables["phases"].group_by("process_id", "path"):
        row = statistics.filter(rank=rank, phase=phase, on="cpu").row(0, named=True)
        values = rows["cpu_ns"].to_numpy()
        assert row["steps"] == 9
        assert row["mean"] == pytest.approx(values.mean(), rel=1e-12)
        assert row["median"] == pytest.approx(np.median(values), rel=GROWTH - 1)
        assert row["deviation"] == pytest.approx(values.std(ddof=1), rel=0.3, abs=0.005 * values.mean())
        assert row["mad"] == pytest.approx(np.median(np.abs(values - np.median(values))), abs=0.011 * values.mean())


def test_the_description_of_ranks() -> None:
    row = summary_of(window=2, ranks=3).ranks.row(1, named=True)
    assert (row["rank"], row["captures"], row["steps"], row["first_step"], row["last_step"]) == (1, 1, 8, 16, 23)
    assert row["world_size"] == 3
    assert 0 < row["end_utc_ns"] - row["start_utc_ns"] < 1_000_000_000
    assert not row["is_cut"]


def test_waits_are_the_time_in_synchronizing_collectives() -> None:
    tables = build_tables(0, range(2), steps=4, delays=[Delay(1, "data", 5000)])
    calls = tables["calls"].with_columns(ns=pl.col("end_ns") - pl.col("start_ns"))
    sums = summarize_capture(tables, {0: 0, 1: 1}).times.filter(on="wait").group_by("rank").agg(pl.col("sum_ns").sum())
    assert dict(sums.iter_rows()) == dict(calls.group_by("process_id").agg(pl.col("ns").sum()).iter_rows())
    # messages, nonblocking calls, and a second call with the same kernel are left out
    first = tables["calls"].filter(process_id=0).head(1)
    others = pl.concat(
        [
            first.with_columns(kind=pl.lit("send"), kernel_id=pl.lit(900, pl.Int64)),
            first.with_columns(
                library=pl.lit("MPI"), kernel_id=pl.lit(None, pl.Int64), call_end_ns=pl.lit(1, pl.Int64)
            ),
            first,
            first.with_columns(communicator=pl.lit(None, pl.String), kernel_id=pl.lit(901, pl.Int64)),
        ]
    )
    again = summarize_capture({**tables, "calls": pl.concat([tables["calls"], others])}, {0: 0, 1: 1})
    assert again.times.filter(on="wait").equals(summarize_capture(tables, {0: 0, 1: 1}).times.filter(on="wait"))


def test_steps_without_a_phase_count_as_zero() -> None:
    tables = build_tables(0, range(1), steps=4)
    rare = tables["phases"].filter(pl.col("path") == "data", pl.col("iteration") == 2)
    tables["phases"] = pl.concat([tables["phases"], rare.with_columns(path=pl.lit("checkpoint"))])
    rows = summarize_capture(tables, {0: 0}).times.filter(phase="checkpoint", on="cpu")
    assert rows["count"].to_list() == [3, 1]
    assert rows["bucket"].to_list()[0] == 0
    assert rows["sum_ns"].to_list() == [0, rare["cpu_ns"].item()]


def test_many_phases_and_long_names_are_bounded() -> None:
    tables = build_tables(0, range(1), steps=2)
    row = tables["phases"].filter(path="data")
    many = [
        row.with_columns(path=pl.lit(f"layer{n}" + "x" * 500 * (n % 2)), cpu_ns=pl.lit(10 + n, pl.Int64))
        for n in range(90)
    ]
    tables["phases"] = pl.concat([tables["phases"], *many])
    reduced = summarize_capture(tables, {0: 0})
    phases = reduced.times.filter(on="cpu")["phase"].unique()
    assert len(phases) == MAX_PHASES
    assert phases.str.len_chars().max() == MAX_NAME_CHARS
    assert reduced.ranks["is_cut"].item()
    assert "forward" in phases.to_list()
    # equal shortened names are added
    twice = [row.with_columns(path=pl.lit("a" * 300 + str(n) + "b" * 300)) for n in range(2)]
    tables["phases"] = pl.concat(twice)
    rows = summarize_capture(tables, {0: 0}).times.filter(on="cpu")
    assert rows["sum_ns"].sum() == 2 * row["cpu_ns"].sum()


@pytest.mark.parametrize(
    ("first", "last", "count", "key_op", "expected"),
    [
        ("step 3", "step 7", 5, "step *", (3, 7)),
        ("ProfilerStep#10", "ProfilerStep#10", 1, "ProfilerStep *", (10, 10)),
        ("step 3", "step 7", 4, "step *", None),
        ("step [0]", "step [4]", 5, "step", None),
        ("step", "step", 2, "step", None),
        ("", "", 1, None, None),
        ("9", "11", 3, "*", (9, 11)),
    ],
)
def test_numbers_of_steps(
    first: str, last: str, count: int, key_op: str | None, expected: tuple[int, int] | None
) -> None:
    columns = {"first": pl.String, "last": pl.String, "aggregated": pl.Int64, "key_op": pl.String}
    assert read_step_numbers(pl.DataFrame([(first, last, count, key_op)], columns, orient="row")) == expected
    assert read_step_numbers(pl.DataFrame(schema=columns)) is None


def test_the_ranks_of_processes() -> None:
    tables = build_tables(0, [4, 9], steps=1)
    assert map_processes_to_ranks(tables, 5) is None
    sizes = {"communicator_rank": pl.col("process_id") + 100, "communicator_size": pl.lit(512, pl.Int64)}
    tables["calls"] = tables["calls"].with_columns(**sizes)
    assert map_processes_to_ranks(tables, None) == {4: 104, 9: 109}
    assert map_processes_to_ranks(build_tables(0, [4], steps=1), 7) == {4: 7}
    assert map_processes_to_ranks({**tables, "iterations": tables["iterations"].clear()}, 3) == {-1: 3}
    assert map_processes_to_ranks({**tables, "iterations": tables["iterations"].clear()}, None) is None
    tables["calls"] = tables["calls"].with_columns(communicator_rank=pl.lit(1, pl.Int64))
    assert map_processes_to_ranks(tables, None) is None


def test_a_capture_without_steps() -> None:
    tables = build_tables(0, [0], steps=1)
    empty = {**tables, "iterations": tables["iterations"].clear(), "calls": pl.DataFrame(schema=COLUMNS)}
    reduced = summarize_capture(empty, {-1: 6})
    assert reduced.times.is_empty()
    assert reduced.ranks.select("rank", "steps", "start_utc_ns").row(0) == (6, 0, None)


times = st.builds(
    lambda rows: (
        pl.DataFrame(rows, TIMES, orient="row")
        .group_by("rank", "on", "phase", "bucket")
        .agg(pl.col("count", "sum_ns").sum())
    ),
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.sampled_from(KINDS),
            st.sampled_from(["", "a", "a/b"]),
            st.integers(0, 3000),
            st.integers(1, 9),
            st.integers(0, 1 << 40),
        ),
        max_size=12,
    ),
)


@st.composite
def summaries(draw: st.DrawFn) -> CaptureSummary:
    sketch = draw(times)
    ranks = sorted(set(sketch["rank"]) | draw(st.sets(st.integers(0, 3), max_size=2)))
    maybe = st.none() | st.integers(0, 1 << 60)
    rows = [
        (rank, draw(st.integers(1, 3)), draw(st.integers(0, 9)), *(draw(maybe) for _ in range(5)), draw(st.booleans()))
        for rank in ranks
    ]
    key = ["rank", "on", "phase", "bucket"]
    return CaptureSummary(pl.DataFrame(rows, RANKS, orient="row"), sketch.select(*TIMES).sort(key))


@given(summaries(), summaries(), summaries())
def test_summaries_are_merged_in_any_order(a: CaptureSummary, b: CaptureSummary, c: CaptureSummary) -> None:
    whole = merge_summaries([a, b, c])
    assert merge_summaries([merge_summaries([a, b]), c]).equals(whole)
    assert merge_summaries([a, merge_summaries([b, c])]).equals(whole)
    assert merge_summaries([c, b, a]).equals(whole)
    assert merge_summaries([a]).equals(a)
    assert whole.times["sum_ns"].sum() == sum(s.times["sum_ns"].sum() for s in (a, b, c))
    assert whole.times["count"].sum() == sum(s.times["count"].sum() for s in (a, b, c))


@given(summaries())
def test_summaries_survive_json(a: CaptureSummary) -> None:
    assert CaptureSummary.from_json(a.to_json()).equals(a)


@given(st.lists(st.integers(0, 1 << 60), min_size=1, max_size=30))
def test_values_of_a_bucket_differ_by_one_percent(values: list[int]) -> None:
    buckets = find_buckets(np.array(values, np.int64))
    for value, bucket in zip(values, buckets, strict=True):
        assert (bucket == 0) == (value == 0)
        if value:
            assert abs(math.log(value) / math.log(GROWTH) - (bucket - 1) - 0.5) < 0.501


BROKEN = [
    "",
    "[]",
    "{}",
    "null",
    '{"version":1}',
    "[" * 100_000,
    '{"version":1,"ranks":{},"times":{}}',
    '{"version":1,"ranks":5,"times":[]}',
]


@pytest.mark.parametrize("text", BROKEN)
def test_other_texts_are_no_summaries(text: str) -> None:
    with pytest.raises(TracekitError, match="this is not a summary of a capture"):
        CaptureSummary.from_json(text)


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("times", "rank", 77),
        ("times", "on", "disk"),
        ("times", "count", 0),
        ("times", "sum_ns", -1),
        ("times", "bucket", 100_000),
        ("times", "bucket", None),
        ("times", "sum_ns", 1 << 70),
        ("times", "sum_ns", "many"),
        ("ranks", "rank", -1),
        ("ranks", "captures", None),
        ("ranks", "steps", -2),
        ("ranks", "is_cut", None),
        ("ranks", "rank", 0),
    ],
)
def test_invalid_values_are_rejected(table: str, column: str, value: object) -> None:
    values = json.loads(summary_of(steps=2).to_json())
    values[table][column][-1] = value
    with pytest.raises(TracekitError, match="this is not a summary of a capture"):
        CaptureSummary.from_json(json.dumps(values))


def test_other_versions_are_rejected() -> None:
    values = json.loads(summary_of(steps=2).to_json())
    values["version"] = 2
    with pytest.raises(TracekitError, match="summary of version 2, but only 1 is supported"):
        CaptureSummary.from_json(json.dumps(values))
