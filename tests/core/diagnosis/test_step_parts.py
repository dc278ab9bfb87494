"""Every step is divided into parts that add up to it, and to the ledger of ``why``."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest
import tracekit as tk
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders.programs import MS, US, Program, steps
from tests.builders.random_programs import captures, programs
from tests.builders.reports import compute_report
from tests.conftest import FIXTURES, examples
from tracekit.core.diagnosis import Why, kinds, ledger
from tracekit.core.diagnosis.step_parts import (
    COLUMN_OF_PART,
    HIDDEN,
    PART_COLUMNS,
    StepTimes,
    compare_ledgers,
    measure_step_times,
)
from tracekit.core.figures.steps import reduce_communication, reduce_step_parts
from tracekit.errors import MissingTableError
from tracekit.plan import get_rollup
from tracekit.registry.analyses import METHOD, REPORT, get_analysis
from tracekit.trace import get_trace_view

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.core.diagnosis.answer import LedgerPart

CAPTURES = [
    *(FIXTURES / name for name in ("train_amp.sqlite", "ddp2.sqlite", "mpi_rank0.sqlite", "empty.sqlite")),
    *(
        FIXTURES / "why" / name
        for name in ("frames.nsys-rep", "item_sync.pt.trace.json.gz", "streamed_weights.nsys-rep")
    ),
]
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def sum_parts(ledger_parts: Iterable[LedgerPart]) -> Counter[str]:
    """Return the time of each column of steps, given the parts of ledgers."""
    totals = Counter[str]()
    for part in ledger_parts:
        totals[COLUMN_OF_PART[part.part]] += part.total_ns
    return totals


def check(times: StepTimes, answer: Why) -> None:
    """Check the parts of steps against their durations, and those of all steps against an answer."""
    rows, parts = times
    assert rows.select(pl.sum_horizontal(PART_COLUMNS)).to_series().to_list() == rows["duration_ns"].to_list()
    assert (rows["end_ns"] - rows["start_ns"]).to_list() == rows["duration_ns"].to_list()
    assert rows.select(pl.all_horizontal(pl.col(*PART_COLUMNS, *HIDDEN) >= 0)).to_series().all()
    key = ["process_id", "iteration"]
    sums = parts.group_by(key).agg(pl.col("ns").sum())
    compared = rows.filter(pl.col("duration_ns") > 0).join(sums, on=key, how="left", nulls_equal=True)
    assert compared["ns"].to_list() == compared["duration_ns"].to_list()
    processes = answer.ranks or (answer,)
    steady = sum_parts(part for process in processes for part in process.ledger)
    cold = sum_parts(part for process in processes if process.cold for part in process.cold.ledger)
    for is_warm_up, totals in ((False, steady), (True, cold)):
        own = rows.filter(is_warm_up=is_warm_up)
        assert +Counter({c: own[c].sum() for c in PART_COLUMNS}) == totals


@pytest.mark.many(5)
@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.name)
def test_parts_of_real_steps_are_the_ledger_of_why(path: Path) -> None:
    with tk.load(path) as trace:
        rollup = get_rollup(trace._plan).steady
        times, answer = measure_step_times(rollup), trace.why()
        printed = trace.stats("step_parts")
    check(times, answer)
    assert printed["Duration (ns)"].to_list() == times.steps["duration_ns"].to_list()
    assert measure_step_times(rollup) is times


@settings(max_examples=examples(60))
@given(st.one_of(captures(), programs(max_steps=6)))
def test_parts_of_any_capture(program: Program) -> None:
    check(measure_step_times(program.rollup()), program.diagnose())


@settings(max_examples=examples(60))
@given(programs(max_steps=3))
def test_hidden_times_are_those_of_every_interval(program: Program) -> None:
    """Copies and communication are hidden while the GPU does work of a group that comes before."""
    model = program.model()
    ops = model.operations
    groups = [kinds.CLASSES[c].group for c in ops.cls]
    points = sorted({*ops.start.tolist(), *ops.end.tolist(), *model.bounds.tolist()})
    for group in ("communication", "copy"):
        busy = [0] * len(model.steps)
        own = [(s, e) for g, s, e in zip(groups, ops.start, ops.end, strict=True) if g == group]
        for begin, stop in itertools.pairwise(points):
            step = int(np.searchsorted(model.bounds, begin, side="right")) - 1
            if 0 <= step < len(busy) and any(start <= begin and end >= stop for start, end in own):
                busy[step] += stop - begin
        assert ledger.measure_busy_times(model, group).tolist() == busy


@pytest.mark.parametrize("change", [0, 30, -30, 4])
def test_outliers_differ_from_the_median(change: int) -> None:
    program = Program()
    waits = [100 + n % 3 for n in range(9)]
    waits[4] += change

    def body(number: int) -> None:
        program.launch(ns=1 * MS)
        program.wait()
        program.pause(waits[number] * 100 * US)

    steps(program, 9, body, name="batch {}")
    rows = measure_step_times(program.rollup()).steps
    median = statistics.median_low(rows["duration_ns"].to_list())
    assert rows["median_ns"].to_list() == [median] * 9
    assert rows["change_ns"].to_list() == (rows["duration_ns"] - median).to_list()
    outliers = rows.filter("is_outlier")
    assert outliers["name"].to_list() == (["batch 4"] if abs(change) == 30 else [])
    assert outliers["mostly"].to_list() == ["idle_cpu_work_ns"] * outliers.height
    assert all(abs(ns - change * 100 * US) <= 200 * US for ns in outliers["mostly_ns"])
    printed = compute_report(program.frames, "step_parts").frame().filter(pl.col("Outlier") == 1)
    assert printed["Mostly"].to_list() == ["Idle: CPU Work"] * outliers.height


def test_communication_beside_computation_is_overlapped() -> None:
    program = Program()

    def body(_: int) -> None:
        program.launch(ns=100 * US, stream=7, delay=0)
        program.launch(NCCL, 150 * US, stream=8, delay=0)
        program.wait()

    steps(program, 3, body)
    rows = compute_report(program.frames, "communication_overlap").frame()
    kernels = program.frames("kernels").collect().sort("start_ns")
    computing, communicating = kernels.gather_every(2), kernels.gather_every(2, 1)
    overlapped = (computing["end_ns"] - communicating["start_ns"]).to_list()
    assert rows["Communication (ns)"].to_list() == [150 * US] * 3
    assert rows["Overlapped (ns)"].to_list() == overlapped
    assert rows["Exposed (ns)"].to_list() == [150 * US - ns for ns in overlapped]
    assert rows["Overlap (%)"].to_list() == pytest.approx([100 * ns / (150 * US) for ns in overlapped], abs=0.06)


def test_ranks_of_one_capture_wait_for_each_other() -> None:
    with tk.load(FIXTURES / "ddp2.sqlite") as trace:
        rows = trace.stats("communication_overlap")
        parts = trace.stats("step_ledger").filter(pl.col("Part") == "communication_wait")
    assert rows.height == 8
    assert (rows["Overlapped (ns)"] + rows["Exposed (ns)"]).to_list() == rows["Communication (ns)"].to_list()
    assert rows["Waiting For Ranks (ns)"].sum() == parts["Time (ns)"].sum() > 0
    assert set(parts["Class"]) == {"communication"}


def test_changes_of_ledgers_add_up_to_that_of_the_step() -> None:
    with tk.load(FIXTURES / "train_amp.sqlite") as trace:
        sides = [side.why() for side in (trace, trace.rollup(iterations=(1, 1)))]
    rows = compare_ledgers(*sides)
    for side, column in zip(sides, ("time_a_ns", "time_b_ns"), strict=True):
        assert side.step is not None
        assert rows[column].sum() == side.step.median_ns
        parts = {part.part: part.ns for part in side.ledger}
        assert dict(rows.filter(pl.col(column) > 0).select("part", column).iter_rows()) == parts
    assert rows["change_ns"].to_list() == (rows["time_b_ns"] - rows["time_a_ns"]).to_list()
    assert rows["change_ns"].abs().is_sorted(descending=True)
    assert rows.columns == [column.name for column in get_analysis("ledger_changes", METHOD).columns]
    assert compare_ledgers(Why("", "unsure"), Why("", "unsure")).is_empty()


def test_ranks_in_several_captures_wait_for_each_other() -> None:
    """The parts of the ranks are those of their answers, and a chart shows all ranks."""
    ranks = tk.load_many(FIXTURES / "why" / "ddp_straggler_rank*.nsys-rep")
    rows, answer = ranks.stats("step_parts"), ranks.why()
    names = {c.name: c.row_name for c in get_analysis("step_parts", REPORT).columns}
    steady = rows.rename(names).filter(pl.col("is_warm_up") == 0)
    for rank in answer.ranks:
        own = steady.filter(rank=rank.rank)
        assert +Counter({c: own[c].sum() for c in PART_COLUMNS}) == sum_parts(rank.ledger)
    waits = steady.group_by("rank").agg(pl.col("communication_wait_ns").sum()).sort("rank")["communication_wait_ns"]
    assert waits[0] > 1000 * waits[1]
    bars = reduce_step_parts(rows, 6)
    assert bars["process_id"].to_list() == [0, 0, 0, 1, 1, 1]
    assert reduce_communication(rows, 400)["process_id"].unique().to_list() == [0, 1]
    assert reduce_step_parts(rows.clear(), 400).is_empty()


@pytest.mark.parametrize("bins", [1, 4, 5, 400])
def test_a_bar_is_the_median_of_consecutive_steps(bins: int) -> None:
    with tk.load(FIXTURES / "why" / "frames.nsys-rep") as trace:
        view = get_trace_view(trace)
        rows, steady = view.figure_rows("step_parts", bins=bins), trace.stats("step_parts")
    assert rows.height == min(12, bins if bins != 5 else 4)
    assert rows.select(pl.sum_horizontal(PART_COLUMNS)).to_series().to_list() == rows["duration_ns"].to_list()
    for row in rows.iter_rows(named=True):
        own = steady.filter(pl.col("Step").is_between(row["first"], row["last"]))
        durations = own["Duration (ns)"].to_list()
        assert (row["min_ns"], row["max_ns"]) == (min(durations), max(durations))
        assert row["duration_ns"] == statistics.median_low(durations)
        assert row["longest_name"] == own.sort("Duration (ns)")["Name"][-1]
        assert row["outliers"] == own["Outlier"].sum()
        assert row["median_ns"] == statistics.median_low(steady["Duration (ns)"].to_list())


def test_figures_of_captures_without_steps_say_what_is_missing() -> None:
    with tk.load(FIXTURES / "cpu_only.sqlite") as trace:
        with pytest.raises(MissingTableError, match="no GPU work in steps"):
            trace.plot.step_parts()
        with pytest.raises(MissingTableError, match="no communication in steps"):
            trace.plot.communication_overlap()
    with tk.load(FIXTURES / "ddp2.sqlite") as trace:
        rows = get_trace_view(trace).figure_rows("communication_overlap")
        assert rows["process_id"].to_list() == [926, 926, 927, 927]
        names = [bar.name for bar in trace.plot.communication_overlap().data]
        assert names == ["Beside computation", "Exposed", "Waiting for ranks"]
        assert {"Computation", "Waiting for ranks", "Median"} <= {bar.name for bar in trace.plot.step_parts().data}
