"""The queues of streams, against every nanosecond and against plain SQL on a capture."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.frames import declared
from tests.builders.programs import US, Program
from tests.builders.reports import compute_report
from tracekit.core import queues
from tracekit.errors import MissingTableError

FIXTURES = Path(__file__).parents[2] / "fixtures"
SCHEMA = {**dict.fromkeys(queues.QUEUE, pl.Int64), "launch_ns": pl.Int64, "start_ns": pl.Int64}
operations = st.lists(
    st.tuples(st.integers(7, 8), st.none() | st.integers(-9, 20), st.integers(0, 12)).map(
        lambda o: (1, 0, None, o[0], o[1], (o[1] or 0) + o[2])
    ),
    max_size=12,
)
_SQL = """
WITH launches AS (
  SELECT o.streamId AS stream, min(r.start, o.start) AS launch, o.start AS start
  FROM (SELECT streamId, start, correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL
        UNION ALL SELECT streamId, start, correlationId FROM CUPTI_ACTIVITY_KIND_MEMCPY
        UNION ALL SELECT streamId, start, correlationId FROM CUPTI_ACTIVITY_KIND_MEMSET) AS o
  JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS r USING (correlationId)
), changes AS (
  SELECT stream, time, sum(change) AS change FROM (
    SELECT stream, launch AS time, 1 AS change FROM launches UNION ALL SELECT stream, start, -1 FROM launches
  ) GROUP BY stream, time
), lengths AS (
  SELECT stream, time, sum(change) OVER (PARTITION BY stream ORDER BY time) AS length,
         lead(time) OVER (PARTITION BY stream ORDER BY time) - time AS ns FROM changes
)
SELECT stream, max(time) - min(time), max(length), sum(length * ns), sum(CASE WHEN length > 2 THEN ns ELSE 0 END),
       sum(CASE WHEN length = 0 THEN ns ELSE 0 END) FROM lengths GROUP BY stream ORDER BY stream
"""


@given(operations, st.integers(0, 3))
def test_queues_are_those_of_every_nanosecond(rows: list[tuple[int | None, ...]], threshold: int) -> None:
    launches = pl.DataFrame(rows, SCHEMA, orient="row")
    found = queues.summarize_queues(launches, threshold)
    assert found["stream_id"].to_list() == sorted({row[3] for row in rows})
    lengths = queues.compute_queue_lengths(launches)
    for row in found.iter_rows(named=True):
        own = [(launch, start) for *_, stream, launch, start in rows if stream == row["stream_id"]]
        known = [(launch, start) for launch, start in own if launch is not None and start is not None]
        assert (row["operations"], row["without_call"]) == (len(own), len(own) - len(known))
        if not known:
            assert {row[c] for c in ("span_ns", "max_length", "mean_length", "waiting_ns", "empty_percent")} == {None}
            continue
        first, last = min(launch for launch, _ in known), max(start for _, start in known)
        counts = Counter({t: sum(launch <= t < start for launch, start in known) for t in range(first, last)})
        waiting = sum(start - launch for launch, start in known)
        above, empty = sum(n > threshold for n in counts.values()), sum(not n for n in counts.values())
        assert (row["span_ns"], row["waiting_ns"]) == (last - first, waiting)
        assert (row["max_length"], row["above_ns"], row["empty_ns"]) == (max(counts.values(), default=0), above, empty)
        if first < last:
            assert counts[row["max_ns"]] == row["max_length"]
            assert row["mean_length"] == pytest.approx(sum(counts.values()) / (last - first))
            assert row["above_percent"] == pytest.approx(100 * above / (last - first))
            assert row["empty_percent"] == pytest.approx(100 * empty / (last - first))
        steps = lengths.filter(stream_id=row["stream_id"])
        assert steps["timestamp_ns"].is_sorted()
        assert all(counts[time] == length for time, length in steps.select("timestamp_ns", "length").iter_rows())
        assert steps["length"][-1] == 0


def test_queues_of_a_capture_are_those_of_plain_sql() -> None:
    path = FIXTURES / "train_amp.sqlite"
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        expected = database.execute(_SQL).fetchall()
    with tk.load(path) as trace:
        rows = trace.stats("queue_length:threshold=2")
    columns = ("Strm", "Span (ns)", "Max", "Waiting (ns)", "Long (ns)", "Empty (ns)")
    assert rows.select(columns).rows() == expected


def test_an_operation_waits_from_its_call_to_its_start() -> None:
    program = Program()
    for start in (20, 30, 40):
        call = program.call("cudaLaunchKernel", start - 15, start - 14)
        program.kernel(call, start, start + 5)
    program.kernel(None, 50, 60)
    program.copy(program.call("cudaMemcpyAsync", 70, 75), 65, 80)  # the clocks of CPU and GPU differ
    rows = compute_report(program.frames, "queue_length:threshold=1").frame()
    names = ("Operations", "Without Call", "Span (ns)", "Max", "Max Start (ns)", "Waiting (ns)", "Long (ns)", "Mean")
    assert rows.select(names).rows() == [(5, 1, 60, 2, 15, 45, 10, 0.75)]
    assert compute_report(declared(), "queue_length").rows == 0


def test_calls_before_the_selected_time_count() -> None:
    program = Program()
    program.kernel(program.call("cudaLaunchKernel", 0, 5), 2 * US, 3 * US)
    none = declared(api_calls=pl.DataFrame())
    of_window = lambda name: none(name) if name == "api_calls" else program.frames(name)  # noqa: E731
    rows = compute_report(of_window, "queue_length", window=(1 * US, None), without=lambda *_: program.frames).frame()
    assert rows["Waiting (ns)"].to_list() == [2 * US]


def test_the_figure_shows_the_longest_queues_with_their_extremes() -> None:
    with tk.load(FIXTURES / "ddp2.sqlite") as trace:
        drawn, every = (
            [line for line in figure.data if line.name]
            for figure in (trace.plot.queue_length(2), trace.plot.queue_length())
        )
        report = trace.stats("queue_length")
    longest = report.sort("Max", descending=True)["Max"].to_list()
    assert [max(line.y) for line in drawn] == longest[:2]
    assert sorted((max(line.y) for line in every), reverse=True) == longest
    assert [line.name for line in drawn] == ["GPU 0, stream 7", "GPU 0, stream 17"]
    assert {line.name[-13:] for line in every} == {", process 926", ", process 927"}
    with (
        tk.load(FIXTURES / "cpu_only.sqlite") as trace,
        pytest.raises(MissingTableError, match="launches were recorded"),
    ):
        trace.plot.queue_length()
