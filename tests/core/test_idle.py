"""The idle time of GPUs by cause is that of the ledger of ``why``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import polars as pl
import pytest
import tracekit as tk
from hypothesis import given
from tests.builders.programs import MS, US, Program, steps
from tests.builders.random_programs import captures
from tests.builders.reports import compute_report
from tests.conftest import FIXTURES
from tracekit.core.diagnosis import Why
from tracekit.core.diagnosis.idle import list_idle_times
from tracekit.core.diagnosis.steady_steps import list_steady_models

CAPTURES = [
    *sorted(FIXTURES.glob("*.sqlite")),
    *(FIXTURES / "why" / name for name in ("recommender.nsys-rep", "item_sync.pt.trace.json.gz")),
    FIXTURES / "kineto" / "train.pt.trace.json.gz",
]


def sum_idle_parts(answer: Why) -> Counter[str]:
    """Return the time of the idle parts of the ledger, of all processes."""
    totals = Counter[str]()
    for process in answer.ranks or (answer,):
        totals.update({part.part: part.total_ns for part in process.ledger if part.group == "idle"})
    return totals


def sum_causes(rows: pl.DataFrame) -> Counter[str]:
    """Return the time of each cause in rows of ``gpu_idle_causes``."""
    return Counter(dict(rows.group_by("cause").agg(pl.col("total_ns").sum()).iter_rows()))


@pytest.mark.many(6)
@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.name)
def test_causes_are_the_idle_parts_of_the_ledger(path: Path) -> None:
    with tk.load(path) as trace:
        rows, gaps = (trace.analyze(f"{rule}:rows=-1") for rule in ("gpu_idle_causes", "gpu_idle_gaps"))
        expected = sum_idle_parts(trace.why())
    names = {"Cause": "cause", "Total Time (ns)": "total_ns"}
    assert sum_causes(rows.rename(names)) == expected
    assert gaps["Duration (ns)"].sum() == expected.total()
    assert (gaps["Cause Time (ns)"] <= gaps["Duration (ns)"]).all()
    assert gaps["Duration (ns)"].is_sorted(descending=True)
    assert rows.group_by("PID").agg(pl.col("Idle (%)").sum())["Idle (%)"].to_list() == pytest.approx(
        [100] * rows["PID"].n_unique(), abs=0.5
    )


@pytest.mark.slow
@given(captures())
def test_causes_of_any_capture_are_those_of_the_ledger(program: Program) -> None:
    rows = compute_report(program.frames, "gpu_idle_causes:rows=-1").data
    gaps = compute_report(program.frames, "gpu_idle_gaps:rows=-1").data
    expected = sum_idle_parts(program.diagnose())
    assert sum_causes(rows) == expected
    assert gaps["duration_ns"].sum() == expected.total()


def test_what_is_printed() -> None:
    program = Program()

    def body(_: int) -> None:
        program.launch(ns=100 * US)
        program.wait()
        program.range("prepare", program.now, program.now + 2 * MS)
        program.pause(2 * MS)

    steps(program, 4, body)
    causes = compute_report(program.frames, "gpu_idle_causes").frame()
    assert causes.columns[:6] == ["Device ID", "PID", "Cause", "Idle (%)", "Total Time (ns)", "Gaps"]
    first = causes.row(0, named=True)
    assert (first["Device ID"], first["PID"], first["Cause"], first["Total Time (ns)"]) == (0, 1, "cpu_work", 8 * MS)
    assert (first["Gaps"], first["Mostly In"], first["Time In It (ns)"]) == (4, "prepare", 8 * MS)
    assert set(causes["Cause"]) == {"cpu_work", "launch_calls", "synchronization"}
    assert "cudaDeviceSynchronize_v3020" in causes["Mostly In"]
    gaps = compute_report(program.frames, "gpu_idle_gaps:rows=1").frame().rows()
    assert gaps[0][0] == 1
    assert gaps[0][3:8] == (0, 1, 1, "cpu_work", 2_000_000)


def test_models_of_steps_are_built_once_until_they_are_freed() -> None:
    program = Program()
    rollup = steps(program, 3, lambda _: program.launch(ns=100 * US)).rollup()
    models, idle = list_steady_models(rollup), list_idle_times(rollup)
    assert list_steady_models(rollup) is models
    rollup.free_working_data()
    assert list_steady_models(rollup) is not models
    assert list_idle_times(rollup).equals(idle)


@pytest.mark.slow
def test_the_chosen_iterations_and_a_time_window() -> None:
    with tk.load(FIXTURES / "train_amp.sqlite") as trace:
        some = trace.rollup(iterations=(2, 2))
        expected = sum_idle_parts(some.why())
        rows = some.analyze("gpu_idle_causes:rows=-1").rename({"Cause": "cause", "Total Time (ns)": "total_ns"})
        window = trace.analyze("gpu_idle_causes:start=0:end=1")
    assert sum_causes(rows) == expected
    assert window.is_empty()


def test_a_process_with_several_gpus_is_idle_if_none_of_them_works() -> None:
    program = Program()
    for device in (0, 1):
        start = 2 * MS * device
        call = program.call("cudaLaunchKernel", start, start + 5)
        program.kernel(call, start + 20, start + MS, device_id=device)
    rows = compute_report(program.frames, "gpu_idle_causes").data
    assert rows["device_id"].to_list() == [None] * rows.height
    assert sum_causes(rows) == sum_idle_parts(program.diagnose())
