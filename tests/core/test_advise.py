"""What is advised, on scenes in which it is known what is slow."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import pytest
import tracekit as tk
from tests.builders.frames import declared
from tests.builders.reports import compute_report
from tests.conftest import FIXTURES
from tracekit.core.advise import advise
from tracekit.core.diagnosis import diagnose
from tracekit.core.rollup import Rollup
from tracekit.text import format_duration

STEP = 1_000_000
GEMM = "ampere_sgemm_128x64_nn"


@dataclass
class Program:
    """A program with four steps of 1 ms, to which what is slow is added."""

    steps: int = 4
    ranges: list[tuple[str, int, int]] = field(default_factory=list)
    calls: list[tuple[str, int, int]] = field(default_factory=list)
    kernels: list[tuple[str, int, int, int, int]] = field(default_factory=list)
    copies: list[tuple[str, str, int, int, int]] = field(default_factory=list)

    def step(self, number: int, length: int = STEP) -> int:
        """Add the range of a step, and return when it starts."""
        self.ranges.append((f"step {number}", number * STEP, number * STEP + length))
        return number * STEP

    def kernel(self, launch: int, start: int, end: int, name: str = "k", device: int = 0) -> None:
        """Add a kernel and its call."""
        self.kernels.append((name, start, end, device, len(self.calls)))
        self.calls.append(("cudaLaunchKernel_v7000", launch, launch + 1000))

    def copy(self, kind: str, memory: str, start: int, end: int) -> None:
        """Add a copy and its call."""
        self.copies.append((kind, memory, start, end, len(self.calls)))
        self.calls.append(("cudaMemcpyAsync_v3020", start - 2000, start - 1000))

    def frames(self, name: str) -> pl.LazyFrame:
        """Give a declared table."""
        made = getattr(self, f"_{name}", list)()
        return declared(**{name: pl.DataFrame(made, infer_schema_length=None)})(name)

    def _nvtx_ranges(self) -> list[dict[str, object]]:
        place = {"kind": "push_pop", "process_id": 1, "thread_id": 1, "domain_id": 0}
        return [
            {"range_id": i, "name": n, "start_ns": s, "end_ns": e, **place} for i, (n, s, e) in enumerate(self.ranges)
        ]

    def _api_calls(self) -> list[dict[str, object]]:
        place = {"process_id": 1, "thread_id": 1}
        return [
            {"api_call_id": i, "correlation_id": i + 1, "name": n, "start_ns": s, "end_ns": e, **place}
            for i, (n, s, e) in enumerate(self.calls)
        ]

    def _kernels(self) -> list[dict[str, object]]:
        return [
            {
                "name": n,
                "short_name": n,
                "start_ns": s,
                "end_ns": e,
                "device_id": d,
                "correlation_id": i + 1,
                "process_id": 1,
                "context_id": 1,
                "stream_id": 7,
            }
            for n, s, e, d, i in self.kernels
        ]

    def _memcpys(self) -> list[dict[str, object]]:
        place = {"process_id": 1, "device_id": 0, "context_id": 1, "stream_id": 7, "bytes": 4096}
        return [
            {
                "copy_kind": k,
                "src_memory_kind": m,
                "dst_memory_kind": "Device",
                "start_ns": s,
                "end_ns": e,
                "correlation_id": i + 1,
                **place,
            }
            for k, m, s, e, i in self.copies
        ]

    def found(self) -> dict[str, dict[str, object]]:
        """Findings by rule."""
        return {f["rule"]: f for f in advise(Rollup.from_frames(self.frames)).to_dicts()}


def busy(program: Program, *, begin: int = 0) -> Program:
    """Fill each step with kernels that are launched long before they run, from ``begin`` on."""
    for number in range(program.steps):
        start = program.step(number)
        for k in range(10):
            at = start + begin + k * (STEP - begin) // 10
            program.kernel(start + k * 2000 + begin, max(at, start + begin + 30_000), at + (STEP - begin) // 10)
    return program


def test_nothing_to_say() -> None:
    assert advise(Rollup.from_frames(declared())).is_empty()
    assert "variation" not in busy(Program()).found()


def test_devices_with_as_much_work() -> None:
    program = busy(Program())
    for number in range(4):
        start = number * STEP
        program.kernel(start + 30_000, start + 40_000, start + 950_000, device=1)
    assert "imbalance" not in program.found()


def test_imbalance_between_devices() -> None:
    program = busy(Program())
    for number in range(4):
        start = number * STEP
        program.kernel(start + 30_000, start + 40_000, start + 540_000, device=1)
        program.kernel(start + 32_000, start + 540_000, start + 990_000, "ncclDevKernel_AllReduce", device=1)
    found = program.found()["imbalance"]
    assert "GPU 1 for 50 %" in str(found["problem"])
    assert found["count"] == 2
    assert json.loads(str(found["figures"]))["gpu_1_ns"] == 4 * 500_000


def test_steps_of_different_length() -> None:
    program = Program()
    bounds = [0, 1, 2, 3, 9]
    for number in range(5):
        program.ranges.append((f"step {number}", bounds[number] * STEP, (bounds[number] + 1) * STEP))
        for k in range(20):
            at = bounds[number] * STEP + k * 45_000
            program.kernel(at, at + 1000, at + 40_000)
    found = program.found()["variation"]
    assert (found["count"], found["time_ns"]) == (1, 5 * STEP)
    assert (found["start_ns"], found["end_ns"]) == (3 * STEP, 9 * STEP)
    assert "step 3 took 6 ms" in str(found["evidence"])


def test_a_short_step_is_no_slow_step() -> None:
    program = Program()
    bounds = [0, 10, 20, 30, 31, 32]
    program.ranges += [
        (f"step {n}", start * STEP // 10, end * STEP // 10) for n, (start, end) in enumerate(itertools.pairwise(bounds))
    ]
    for k in range(30):
        program.kernel(k * 100_000 + 1000, k * 100_000 + 5000, k * 100_000 + 100_000)
    lengths = (
        Rollup.from_frames(program.frames).iterations.frame.select(pl.col("end_ns") - pl.col("start_ns")).to_series()
    )
    assert lengths.std() > 0.25 * lengths.mean()
    assert "variation" not in program.found()


CAPTURES = [*sorted(FIXTURES.glob("*.nsys-rep")), *sorted((FIXTURES / "ops").glob("*.nsys-rep"))]


@pytest.mark.many(7)
@pytest.mark.parametrize("path", CAPTURES, ids=lambda p: p.stem)
def test_findings_of_real_captures_lie_within_them(path: Path) -> None:
    with tk.load(path) as trace:
        rolled = trace.rollup()
        rows, causes = rolled.report("advise").data, rolled.why().causes
        iterations = rolled.frame("iterations").collect()
    assert {cause.cause for cause in causes if cause.saving.high > 0} <= set(rows["rule"])
    assert rows.is_empty() or path.stem not in {"cpu_only", "empty", "omp"}
    assert (rows["time_ns"] >= 0).all()
    assert rows["share"].is_between(0, 100.0001).all()
    assert rows["after"].sum() == pytest.approx(100 * sum(cause.after for cause in causes))
    assert (rows["start_ns"] < rows["end_ns"]).all()
    assert (rows["start_ns"] >= 0).all()
    assert rows.filter(pl.col("end_ns") > iterations["end_ns"].max()).height == 0
    assert all((rows[c].str.len_chars() > 0).all() for c in ("problem", "evidence", "advice"))


@pytest.mark.slow
def test_the_report_rolls_up_by_itself() -> None:
    with tk.load(FIXTURES / "train_amp.nsys-rep") as trace:
        assert compute_report(trace.frame, "advise").data.equals(trace.report("advise").data)


def test_the_iterations_that_were_asked_for() -> None:
    with tk.load(FIXTURES / "train_amp.nsys-rep") as trace:
        every, some = (t.report("advise").frame() for t in (trace, trace.rollup(iterations=(2, 3))))
        second = trace.rollup().frame("iterations").collect()["start_ns"][2]
    assert every["Start (ns)"].min() < second <= some["Start (ns)"].min()
    assert "variation" not in some["Rule"]


@pytest.mark.parametrize("name", ["train_amp", "graph_node"])
def test_causes_are_those_of_the_diagnosis(name: str) -> None:
    with tk.load(FIXTURES / f"{name}.nsys-rep") as trace:
        answer, rows = trace.why(), trace.report("advise").data
    causes = {cause.cause: cause for cause in answer.causes if cause.saving.high > 0}
    assert causes
    assert set(rows["rule"]) - {"overrunning_kernels", "imbalance", "variation"} == set(causes)
    for row in rows.filter(pl.col("rule").is_in(list(causes))).iter_rows(named=True):
        cause, figures = causes[row["rule"]], json.loads(row["figures"])
        assert row["problem"].startswith(row["rule"].replace("_", " "))
        assert (row["evidence"], row["advice"], row["count"]) == (
            cause.evidence.text,
            cause.change,
            cause.evidence.count,
        )
        assert (figures["low"], figures["likely"], figures["high"]) == (
            cause.saving.low,
            cause.saving.likely,
            cause.saving.high,
        )
        assert row["share"] == pytest.approx(100 * cause.saving.likely)
        assert row["time_ns"] == round(cause.saving.likely * figures["length_ns"])


def test_other_problems_are_added_to_the_causes() -> None:
    program = Program()
    for number in range(4):
        start = program.step(number)
        program.kernel(start, start + 10_000, start + 900_000)
        program.kernel(start, start + 10_000, start + 300_000, device=1)
    rollup = Rollup.from_frames(program.frames)
    causes = {cause.cause for cause in diagnose(rollup.steady).causes if cause.saving.high > 0}
    assert set(advise(rollup)["rule"]) == {*causes, "imbalance"}


@pytest.mark.slow
@pytest.mark.parametrize("is_dlprof", [False, True])
def test_dlprof_mode_and_databases_of_dlprof_have_the_causes_of_their_steps(tmp_path: Path, *, is_dlprof: bool) -> None:
    with tk.load(FIXTURES / "train_amp.sqlite") as trace:
        chosen = trace.rollup(tensor_cores="dlprof") if is_dlprof else trace
        path = trace.export(tmp_path / "dlprof.sqlite", format="dlprof-db")
        with chosen if is_dlprof else tk.load(path) as other:
            rows, answer = other.report("advise").data, other.why()
    listed = [c.cause for c in answer.causes if c.saving.high > 0]
    assert rows.drop_nulls("after")["rule"].to_list() == listed
    assert ("first_call" if is_dlprof else "launch_overhead") in rows["rule"]


@pytest.mark.parametrize(("time", "text"), [(3, "3 ns"), (1500, "1.5 µs"), (2_000_000, "2 ms"), (3.25e9, "3.25 s")])
def test_times_as_people_read_them(time: float, text: str) -> None:
    assert format_duration(time) == text


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (999, "999 ns"),
        (999.6, "1 µs"),
        (999_400, "999 µs"),
        (999_972_000, "1 s"),
        (999_499_999, "999 ms"),
        (1_234_567_890_000, "1,235 s"),
    ],
)
def test_durations_have_no_exponents(time_ns: float, text: str) -> None:
    assert format_duration(time_ns) == text
